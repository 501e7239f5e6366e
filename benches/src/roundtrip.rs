//! Round trips through the lab: a client behind a gateway asks the node, for each way the node may find back.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
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
    product::Product,
};

use crate::{
    empty,
    stats::{Summary, summarise},
};

/// How the node's answers find their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Way {
    /// The kernel alone, asked on the NIC of its default route.
    Kernel,
    /// Programs that let everything pass on every hook; asked on the NIC of the default route.
    EmptyPrograms,
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
            Self::EmptyPrograms => "empty programs, first NIC",
            Self::PolicyRules => "policy rules, second NIC",
            Self::NicpathOwned => "nicpath, first NIC",
            Self::NicpathMoved => "nicpath, second NIC (moved)",
        }
    }

    fn nic(self) -> usize {
        match self {
            Self::Kernel | Self::EmptyPrograms | Self::NicpathOwned => 0,
            Self::PolicyRules | Self::NicpathMoved => 1,
        }
    }
}

/// What one way costs.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) way: Way,
    /// Owned addresses of the second NIC, and rules.
    pub(crate) sources: usize,
    /// Medians of the rounds, in µs.
    pub(crate) p50_us: Summary,
    /// 99th percentiles of the rounds, in µs.
    pub(crate) p99_us: Summary,
}

/// A lab in which one way is set up, with its server running.
struct Contender {
    way: Way,
    sources: usize,
    lab: TwoNic,
    client: UdpSocket,
    _server: Server,
    _product: Option<Product>,
    _empty: Option<(Bpffs, Vec<SchedClassifier>)>,
    medians: Vec<f64>,
    tails: Vec<f64>,
}

const WAYS: [(Way, usize); 8] = [
    (Way::Kernel, 1),
    (Way::EmptyPrograms, 1),
    (Way::PolicyRules, 1),
    (Way::NicpathOwned, 1),
    (Way::NicpathMoved, 1),
    (Way::PolicyRules, 1000),
    (Way::NicpathOwned, 1000),
    (Way::NicpathMoved, 1000),
];

/// Runs all ways `rounds` times in random order, `trips` round trips each.
pub(crate) fn measure(rounds: usize, trips: usize) -> Result<Vec<Row>> {
    let mut contenders = WAYS.iter().map(|(way, sources)| set_up(*way, *sources)).collect::<Result<Vec<_>>>()?;
    for contender in &mut contenders {
        trip_times(&contender.client, 200).with_context(|| contender.way.name())?;
    }
    for _ in 0..rounds {
        let mut order: Vec<usize> = (0..contenders.len()).collect();
        fastrand::shuffle(&mut order);
        for place in order {
            let contender = &mut contenders[place];
            let times = trip_times(&contender.client, trips).with_context(|| contender.way.name())?;
            contender.medians.push(times[times.len() / 2]);
            contender.tails.push(times[times.len() * 99 / 100]);
        }
    }
    for contender in &contenders {
        let wrong: u64 = (0..2).map(|nic| contender.lab.gw(nic).counter("wrong_source")).sum();
        ensure!(wrong == 0, "{}: {wrong} packets left by the wrong NIC", contender.way.name());
    }
    Ok(contenders
        .iter()
        .map(|c| Row { way: c.way, sources: c.sources, p50_us: summarise(&c.medians), p99_us: summarise(&c.tails) })
        .collect())
}

const MANIFESTS: &str = r#"
apiVersion: nicpath.dev/v1alpha1
kind: NicClass
metadata: {name: user}
spec: {match: {names: [eth0]}, gateways: [10.10.0.1, "fd00:10::1"]}
---
apiVersion: nicpath.dev/v1alpha1
kind: NicClass
metadata: {name: mgmt}
spec: {match: {names: [eth1]}, gateways: [10.20.0.1, "fd00:20::1"]}
"#;

fn set_up(way: Way, sources: usize) -> Result<Contender> {
    let lab = TwoNic::builder().extra_addresses(1, sources - 1).build();
    let mut product = None;
    let mut empty = None;
    match way {
        Way::Kernel => {}
        Way::EmptyPrograms => empty = Some(attach_empty(&lab)?),
        Way::PolicyRules => lab.policy_rules(),
        Way::NicpathOwned | Way::NicpathMoved => {
            let applied = Product::new(&lab.node);
            applied.manifests(&[("nics.yaml", MANIFESTS)]);
            let output = applied.apply();
            ensure!(output.status.success(), "{}", tests::product::described(&output));
            product = Some(applied);
        }
    }
    let address = SocketAddr::new(node_address(way.nic(), Family::V4), 7000);
    let server = Server::start(&lab, address)?;
    let client = lab.gw(way.nic()).ns().run(|| -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind(SocketAddr::new(CLIENT.get(Family::V4), 0))?;
        socket.connect(address)?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        Ok(socket)
    })?;
    Ok(Contender {
        way,
        sources,
        lab,
        client,
        _server: server,
        _product: product,
        _empty: empty,
        medians: Vec::new(),
        tails: Vec::new(),
    })
}

/// An empty program on every hook of the node. The links live as long as the returned programs.
fn attach_empty(lab: &TwoNic) -> Result<(Bpffs, Vec<SchedClassifier>)> {
    let bpffs = Bpffs::mount();
    let path = bpffs.path().join("empty");
    empty::pin(&path)?;
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

/// A UDP echo on a socket that is bound and not connected, as a server's is: each answer is routed anew.
struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(lab: &TwoNic, address: SocketAddr) -> Result<Self> {
        let socket = lab.node.run(|| UdpSocket::bind(address))?;
        socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            pin_to(1);
            let mut buffer = [0; 2048];
            while !stopped.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut buffer) {
                    // a lost answer shows at the client
                    let _lost = socket.send_to(&buffer[..length], from);
                }
            }
        });
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // it has nothing to say that matters at the end
            let _panicked = thread.join();
        }
    }
}

/// Client and server on CPUs of their own, as far as there are two.
fn pin_to(cpu: usize) {
    let mut set = CpuSet::new();
    if set.set(cpu).is_ok() {
        let _one_cpu = sched_setaffinity(Pid::from_raw(0), &set);
    }
}

/// Sorted round-trip times in µs.
fn trip_times(client: &UdpSocket, trips: usize) -> Result<Vec<f64>> {
    pin_to(0);
    let mut buffer = [0; 64];
    let mut times = Vec::with_capacity(trips);
    for number in 0..trips as u64 {
        let start = Instant::now();
        client.send(&number.to_be_bytes())?;
        loop {
            let length = client.recv(&mut buffer).context("no answer")?;
            if buffer[..length] == number.to_be_bytes() {
                break;
            }
        }
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}
