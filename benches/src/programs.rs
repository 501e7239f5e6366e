//! Nanoseconds of each program per packet, by BPF_PROG_TEST_RUN, beside an empty program.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use agent::{
    api::{Mode, ReplyPath, SourceGuard},
    config::PerFamily,
    dataplane::{Dataplane, Probe},
    hook::Direction,
    inventory::Ifindex,
    tables::{AdminState, Hop, NicEntry, Slot, TableSpec},
};
use anyhow::{Context as _, Result};
use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::Serialize;
use tests::{
    Family, TwoNic,
    bpffs::Bpffs,
    lab::{CLIENT, gateway_address, node_address, subnet},
    packet::Frame,
};

use crate::{
    family_name,
    handmade::{self, PASS},
    stats::{Summary, difference, summarise},
};

/// A way through a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Way {
    Empty,
    /// The empty program once more: what differs between the two is what this run cannot tell apart.
    EmptyAgain,
    IngressOwned,
    EgressOwned,
    EgressMoved,
    EgressNobody,
    EgressExempt,
}

impl Way {
    const EMPTY: [Self; 2] = [Self::Empty, Self::EmptyAgain];
    const OURS: [Self; 5] =
        [Self::IngressOwned, Self::EgressOwned, Self::EgressMoved, Self::EgressNobody, Self::EgressExempt];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty program",
            Self::EmptyAgain => "empty program, again",
            Self::IngressOwned => "ingress, to an owned address",
            Self::EgressOwned => "egress, owned here",
            Self::EgressMoved => "egress, moved to its owner",
            Self::EgressNobody => "egress, owned by nobody",
            Self::EgressExempt => "egress, rule 0",
        }
    }

    /// The hook that the packet passes; None for the empty program, which looks at nothing.
    fn hook(self) -> Option<(Slot, Direction)> {
        match self {
            Self::Empty | Self::EmptyAgain => None,
            Self::IngressOwned => Some((ETH1, Direction::Ingress)),
            Self::EgressOwned => Some((ETH1, Direction::Egress)),
            Self::EgressMoved | Self::EgressNobody | Self::EgressExempt => Some((ETH0, Direction::Egress)),
        }
    }

    fn frame(self, family: Family) -> Vec<u8> {
        let (client, own) = (CLIENT.get(family), node_address(1, family));
        let (stranger, multicast): (IpAddr, IpAddr) = match family {
            Family::V4 => (Ipv4Addr::new(10, 244, 0, 2).into(), Ipv4Addr::new(224, 0, 0, 251).into()),
            Family::V6 => (
                Ipv6Addr::new(0xfd00, 0x244, 0, 0, 0, 0, 0, 2).into(),
                Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb).into(),
            ),
        };
        let (source, destination) = match self {
            Self::IngressOwned => (client, own),
            Self::Empty | Self::EmptyAgain | Self::EgressOwned | Self::EgressMoved => (own, client),
            Self::EgressNobody => (stranger, client),
            Self::EgressExempt => (own, multicast),
        };
        Frame::ip(source, destination).udp(80, 40000).payload(&[0; 64]).build()
    }
}

/// What one way costs, in ns per packet.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) way: Way,
    pub(crate) family: &'static str,
    /// Owned addresses in the tables; 0 for the empty program.
    pub(crate) owners: usize,
    pub(crate) ns: Summary,
    /// Above the empty program in the same round.
    pub(crate) above_empty: Summary,
    /// Above the same way with the smallest table in the same round.
    pub(crate) above_smallest: Summary,
}

/// Sizes of the owner table; all are loaded at once, so that they are measured in the same rounds.
pub(crate) const OWNERS: [usize; 3] = [1, 1000, 10_000];
/// Routes of the second NIC with a gateway of their own, per family, in all tables but the smallest.
const HOPS: u32 = 1000;

const ETH0: Slot = 0;
const ETH1: Slot = 1;

struct Case {
    way: Way,
    family: Family,
    owners: usize,
    frame: Vec<u8>,
    samples: Vec<f64>,
}

impl Case {
    fn is(&self, way: Way, family: Family, owners: usize) -> bool {
        (self.way, self.family, self.owners) == (way, family, owners)
    }
}

/// The loaded programs, once per size of table, and the empty one.
struct Loaded {
    sizes: Vec<(usize, Dataplane)>,
    links: [Ifindex; 2],
    /// Holds them all, the empty one as [`EMPTY`].
    bpffs: Bpffs,
}

const EMPTY: &str = "empty";

/// Measures everything in random order: `loads` times loaded afresh, as a program's place in memory makes it a few ns
/// faster or slower, and `rounds` times each. A sample is the average of `repeat` runs.
pub(crate) fn measure(loads: usize, rounds: usize, repeat: u32) -> Result<Vec<Row>> {
    let lab = TwoNic::builder().build();
    let links = ["eth0", "eth1"].map(|nic| Ifindex(lab.node.ifindex(nic)));
    let mut cases = cases();
    for _ in 0..loads {
        let loaded = Loaded::new(links)?;
        for _ in 0..rounds {
            fastrand::shuffle(&mut cases);
            for case in &mut cases {
                // a test run looks the interface up in the namespace of its caller
                let ns = lab.node.run(|| loaded.run(case, repeat))?;
                case.samples.push(ns);
            }
        }
    }
    cases.sort_by_key(|case| (case.owners, case.family, case.way as u8));
    Ok(rows(&cases))
}

impl Loaded {
    fn new(links: [Ifindex; 2]) -> Result<Self> {
        let bpffs = Bpffs::mount();
        handmade::pin(&bpffs.path().join(EMPTY), &PASS).context("the empty program")?;
        let load = |owners| {
            let dataplane = Dataplane::new(bpffs.path().join(format!("owners-{owners}")));
            dataplane.load()?;
            dataplane.publish(&tables(links, owners))?;
            Ok((owners, dataplane))
        };
        let sizes = OWNERS.into_iter().map(load).collect::<Result<_>>()?;
        Ok(Self { sizes, links, bpffs })
    }

    fn run(&self, case: &Case, repeat: u32) -> Result<f64> {
        let dataplane = self.sizes.iter().find(|(owners, _)| *owners == case.owners).map(|(_, dataplane)| dataplane);
        let duration = match (case.way.hook(), dataplane) {
            (Some((slot, direction)), Some(dataplane)) => {
                let probe = Probe { link: self.links[slot as usize], direction, frame: &case.frame };
                dataplane.run(&probe, repeat)?.duration
            }
            _ => {
                let options =
                    TestRunOptions { data_in: Some(case.frame.as_slice()), repeat, ..TestRunOptions::default() };
                SchedClassifier::from_pin(self.bpffs.path().join(EMPTY))?.test_run(options)?.duration
            }
        };
        Ok(duration.as_nanos() as f64)
    }
}

fn cases() -> Vec<Case> {
    let case = |way: Way, family, owners| {
        let frame = way.frame(family);
        Case { way, family, owners, frame, samples: Vec::new() }
    };
    let mut cases = Vec::new();
    for family in Family::ALL {
        cases.extend(Way::EMPTY.map(|way| case(way, family, 0)));
        for owners in OWNERS {
            cases.extend(Way::OURS.map(|way| case(way, family, owners)));
        }
    }
    cases
}

fn rows(cases: &[Case]) -> Vec<Row> {
    let samples = |way, family, owners| {
        cases.iter().find(|case| case.is(way, family, owners)).map_or(&[][..], |case| &case.samples)
    };
    let row = |case: &Case| {
        let above = |floor: &[f64]| summarise(&difference(&case.samples, floor));
        Row {
            way: case.way,
            family: family_name(case.family),
            owners: case.owners,
            ns: summarise(&case.samples),
            above_empty: above(samples(Way::Empty, case.family, 0)),
            above_smallest: above(samples(case.way, case.family, OWNERS[0].min(case.owners))),
        }
    };
    cases.iter().map(row).collect()
}

/// Two NICs; the second owns its lab addresses and as many neighbours as it takes.
fn tables(links: [Ifindex; 2], owners: usize) -> TableSpec {
    let nic = |n: usize| NicEntry {
        link: links[n],
        lower: None,
        network: n as u16 + 1,
        state: AdminState::Up,
        mode: Mode::Enforce,
        reply_path: ReplyPath::Symmetric,
        source_guard: SourceGuard::Pass,
        gateways: PerFamily { v4: Some(gateway_address(n, Family::V4)), v6: Some(gateway_address(n, Family::V6)) },
    };
    let mut spec = TableSpec { nics: [(ETH0, nic(0)), (ETH1, nic(1))].into(), ..TableSpec::default() };
    spec.owners.extend(Family::ALL.map(|family| (node_address(1, family), ETH1)));
    spec.owners.extend((1..owners as u32).map(|i| {
        let address: IpAddr = match i % 2 {
            0 => Ipv4Addr::from_bits(0x0a15_0000 + i).into(),
            _ => Ipv6Addr::from_bits(0xfd00_0021_u128 << 96 | u128::from(i)).into(),
        };
        (address, ETH1)
    }));
    for net in Family::ALL.map(|family| subnet(1, family)).iter().filter_map(|net| net.parse().ok()) {
        spec.hops.insert((ETH1, net), Hop::OnLink);
    }
    if owners > OWNERS[0] {
        for i in 0..HOPS {
            let v4 = Ipv4Net::new_assert(Ipv4Addr::from_bits(0xac20_0000 + (i << 8)), 24);
            let v6 = Ipv6Net::new_assert(Ipv6Addr::from_bits(0xfd00_0030_u128 << 96 | u128::from(i) << 64), 64);
            spec.hops.insert((ETH1, IpNet::V4(v4)), Hop::Gateway(Ipv4Addr::new(10, 20, 0, 2).into()));
            spec.hops.insert((ETH1, IpNet::V6(v6)), Hop::Gateway(Ipv6Addr::new(0xfd00, 0x20, 0, 0, 0, 0, 0, 2).into()));
        }
    }
    spec
}
