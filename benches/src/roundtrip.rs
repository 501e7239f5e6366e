//! Round trips through the lab: a client behind a gateway asks the node, for each way the node may find back.
//!
//! One thread on one CPU is client and server in turn. A veth hands a packet over within `send`, so nobody sleeps and is
//! woken: what is left is the packets' way through both network stacks, and a ratio of it is stricter than one of what
//! two processes see.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType, tc::TcAttachOptions};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};
use serde::Serialize;
use tests::{
    Family, TwoNic,
    bpffs::Bpffs,
    lab::{CLIENT, node_address},
    product::{Product, described},
};

use crate::{
    family_name,
    handmade::{self, PASS},
    stats::{Summary, summarise},
};

/// How the node's answers find their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Way {
    /// The kernel alone, asked on the NIC of its default route.
    Kernel,
    /// The same with `rp_filter` 0: what that setting costs all others.
    KernelUnfiltered,
    /// Programs that let everything pass on every hook; asked on the NIC of the default route.
    EmptyPrograms,
    /// The same in another lab: what differs between the two is what this run cannot tell apart.
    EmptyProgramsAgain,
    /// iproute2 policy rules; asked on the second NIC.
    PolicyRules,
    /// nicpath, asked on the NIC of the default route: nothing is moved.
    NicpathOwned,
    /// nicpath, asked on the second NIC: every answer is moved.
    NicpathMoved,
}

impl Way {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel, first NIC",
            Self::KernelUnfiltered => "kernel, first NIC, rp_filter 0",
            Self::EmptyPrograms => "empty programs, first NIC",
            Self::EmptyProgramsAgain => "empty programs, again",
            Self::PolicyRules => "policy rules, second NIC",
            Self::NicpathOwned => "nicpath, first NIC",
            Self::NicpathMoved => "nicpath, second NIC (moved)",
        }
    }

    fn nic(self) -> usize {
        match self {
            Self::Kernel
            | Self::KernelUnfiltered
            | Self::EmptyPrograms
            | Self::EmptyProgramsAgain
            | Self::NicpathOwned => 0,
            Self::PolicyRules | Self::NicpathMoved => 1,
        }
    }
}

/// What the server answers from. Both are bound to the address that is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum ServerSocket {
    /// Answers whoever asked, as a DNS or health-check server does: each answer is routed anew.
    Unconnected,
    /// Connected to the client: the kernel keeps the route.
    Connected,
}

impl ServerSocket {
    const ALL: [Self; 2] = [Self::Unconnected, Self::Connected];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unconnected => "unconnected",
            Self::Connected => "connected",
        }
    }
}

/// Of what a sample is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Subject {
    pub(crate) way: Way,
    /// Owned addresses of the second NIC, and rules, per family.
    pub(crate) sources: usize,
    pub(crate) family: &'static str,
    pub(crate) socket: ServerSocket,
}

/// The round trips of one subject.
#[derive(Debug)]
pub(crate) struct Trips {
    pub(crate) subject: Subject,
    /// Median of each round, in µs.
    pub(crate) medians: Vec<f64>,
    /// 99th percentile of each round, in µs.
    pub(crate) tails: Vec<f64>,
}

/// Summary of [`Trips`].
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) subject: Subject,
    pub(crate) p50_us: Summary,
    pub(crate) p99_us: Summary,
}

impl From<&Trips> for Row {
    fn from(trips: &Trips) -> Self {
        Self { subject: trips.subject, p50_us: summarise(&trips.medians), p99_us: summarise(&trips.tails) }
    }
}

/// How many addresses and rules "many" are.
pub(crate) const MANY: usize = 1000;

const WAYS: [(Way, usize); 10] = [
    (Way::Kernel, 1),
    (Way::KernelUnfiltered, 1),
    (Way::EmptyPrograms, 1),
    (Way::EmptyProgramsAgain, 1),
    (Way::PolicyRules, 1),
    (Way::NicpathOwned, 1),
    (Way::NicpathMoved, 1),
    (Way::PolicyRules, MANY),
    (Way::NicpathOwned, MANY),
    (Way::NicpathMoved, MANY),
];

/// Unmeasured round trips before a sample: another lab has had the caches.
const WARM_UP: usize = 30;

/// A lab in which one way is set up.
struct Contender {
    way: Way,
    lab: TwoNic,
    _product: Option<Product>,
    _empty: Option<(Bpffs, Vec<SchedClassifier>)>,
}

/// A client and the server it asks.
struct Talk {
    client: UdpSocket,
    server: UdpSocket,
    trips: Trips,
}

/// Runs all ways `rounds` times in random order, `trips` round trips each.
pub(crate) fn measure(rounds: usize, trips: usize) -> Result<Vec<Trips>> {
    let mut contenders = Vec::new();
    let mut talks = Vec::new();
    for (way, sources) in WAYS {
        let contender = set_up(way, sources).context(way.name())?;
        for family in Family::ALL {
            for socket in ServerSocket::ALL {
                talks.push(talk(&contender, sources, family, socket).context(way.name())?);
            }
        }
        contenders.push(contender);
    }
    stay_on_one_cpu()?;
    for _ in 0..rounds {
        fastrand::shuffle(&mut talks);
        for talk in &mut talks {
            let Subject { way, family, .. } = talk.trips.subject;
            let failed = || format!("{}, {family}", way.name());
            talk.trip_times(WARM_UP).with_context(failed)?;
            let times = talk.trip_times(trips).with_context(failed)?;
            talk.trips.medians.push(times[times.len() / 2]);
            talk.trips.tails.push(times[times.len() * 99 / 100]);
        }
    }
    for contender in &contenders {
        let wrong: u64 = (0..2).map(|nic| contender.lab.gw(nic).counter("wrong_source")).sum();
        ensure!(wrong == 0, "{}: {wrong} packets left by the wrong NIC", contender.way.name());
    }
    let mut all: Vec<Trips> = talks.into_iter().map(|talk| talk.trips).collect();
    all.sort_by_key(|trips| {
        let Subject { way, sources, family, socket } = trips.subject;
        (family, socket as u8, sources, way as u8)
    });
    Ok(all)
}

use tests::product::NIC_CLASSES as MANIFESTS;

fn set_up(way: Way, sources: usize) -> Result<Contender> {
    // as systemd sets it on every NIC, and as nicpath does
    let rp_filter = if way == Way::KernelUnfiltered { 0 } else { 2 };
    let builder = TwoNic::builder().extra_addresses(1, sources - 1);
    let lab = builder.rp_filter(0, rp_filter).rp_filter(1, rp_filter).build();
    let (mut product, mut empty) = (None, None);
    match way {
        Way::Kernel | Way::KernelUnfiltered => {}
        Way::EmptyPrograms | Way::EmptyProgramsAgain => empty = Some(attach_empty(&lab)?),
        Way::PolicyRules => lab.policy_rules(),
        Way::NicpathOwned | Way::NicpathMoved => {
            let applied = Product::new(&lab.node);
            applied.manifests(&[("nics.yaml", MANIFESTS)]);
            let output = applied.apply();
            ensure!(output.status.success(), "{}", described(&output));
            product = Some(applied);
        }
    }
    Ok(Contender { way, lab, _product: product, _empty: empty })
}

/// An empty program on every hook of the node. The links live as long as the returned programs.
fn attach_empty(lab: &TwoNic) -> Result<(Bpffs, Vec<SchedClassifier>)> {
    let bpffs = Bpffs::mount();
    let path = bpffs.path().join("empty");
    handmade::pin(&path, &PASS)?;
    let programs = lab.node.run(|| -> Result<Vec<SchedClassifier>> {
        let mut programs = Vec::new();
        for nic in ["eth0", "eth1"] {
            for at in [TcAttachType::Ingress, TcAttachType::Egress] {
                let mut program = SchedClassifier::from_pin(&path)?;
                program.attach_with_options(nic, at, TcAttachOptions::TcxOrder(LinkOrder::last()))?;
                programs.push(program);
            }
        }
        Ok(programs)
    })?;
    Ok((bpffs, programs))
}

/// How long either end waits for what the other has sent.
const PATIENCE: Duration = Duration::from_secs(2);

/// The sockets of both ends.
fn talk(contender: &Contender, sources: usize, family: Family, socket: ServerSocket) -> Result<Talk> {
    let Contender { way, lab, .. } = contender;
    let bound = |address| -> io::Result<(UdpSocket, SocketAddr)> {
        let socket = UdpSocket::bind(SocketAddr::new(address, 0))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let address = socket.local_addr()?;
        Ok((socket, address))
    };
    let (server, asked) = lab.node.run(|| bound(node_address(way.nic(), family)))?;
    let (client, asking) = lab.gw(way.nic()).ns().run(|| bound(CLIENT.get(family)))?;
    client.connect(asked)?;
    match socket {
        ServerSocket::Unconnected => {}
        ServerSocket::Connected => server.connect(asking)?,
    }
    let subject = Subject { way: *way, sources, family: family_name(family), socket };
    Ok(Talk { client, server, trips: Trips { subject, medians: Vec::new(), tails: Vec::new() } })
}

fn stay_on_one_cpu() -> Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(0)?;
    sched_setaffinity(Pid::from_raw(0), &cpus).context("CPU 0")
}

impl Talk {
    /// Sorted round-trip times in µs.
    fn trip_times(&self, trips: usize) -> Result<Vec<f64>> {
        let mut buffer = [0; 64];
        let mut times = Vec::with_capacity(trips);
        for number in 0..trips as u64 {
            let start = Instant::now();
            self.client.send(&number.to_be_bytes())?;
            match self.trips.subject.socket {
                ServerSocket::Unconnected => {
                    let (length, from) = self.server.recv_from(&mut buffer).context("no request")?;
                    self.server.send_to(&buffer[..length], from)?;
                }
                ServerSocket::Connected => {
                    let length = self.server.recv(&mut buffer).context("no request")?;
                    self.server.send(&buffer[..length])?;
                }
            }
            let length = self.client.recv(&mut buffer).context("no answer")?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
            ensure!(buffer[..length] == number.to_be_bytes(), "the answer to another request");
        }
        times.sort_by(f64::total_cmp);
        Ok(times)
    }
}
