//! Nanoseconds of each program per packet, by BPF_PROG_TEST_RUN, beside an empty program.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use agent::{
    api::{Mode, ReplyPath, SourceGuard},
    config::PerFamily,
    dataplane::{Dataplane, Probe},
    hook::Direction,
    inventory::Ifindex,
    tables::{AdminState, Hop, NicEntry, TableSpec},
};
use anyhow::{Context as _, Result};
use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions};
use ipnet::IpNet;
use serde::Serialize;
use tests::{
    Family, TwoNic,
    bpffs::Bpffs,
    lab::{CLIENT, node_address},
    packet::Frame,
};

use crate::{
    empty,
    stats::{Summary, summarise},
};

/// One measured way through a program.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) path: &'static str,
    pub(crate) family: &'static str,
    /// Owned addresses in the tables.
    pub(crate) owners: usize,
    pub(crate) ns: Summary,
    /// Above the empty program's median of the same run.
    pub(crate) above_empty: f64,
}

enum Program {
    Empty,
    Ours(Direction, &'static str),
}

struct Case {
    path: &'static str,
    family: Family,
    program: Program,
    frame: Vec<u8>,
}

/// Sizes of the owner table.
const OWNERS: [usize; 3] = [1, 1000, 10_000];
/// Next hops of each NIC besides, in the larger tables.
const HOPS: u32 = 1000;

/// Measures everything, `rounds` times in random order.
pub(crate) fn measure(rounds: usize, repeat: u32) -> Result<Vec<Row>> {
    let lab = TwoNic::builder().build();
    let bpffs = Bpffs::mount();
    let dir = bpffs.path().join("nicpath");
    let empty_path = bpffs.path().join("empty");
    empty::pin(&empty_path).context("the empty program")?;
    let dataplane = Dataplane::new(&dir);
    dataplane.load()?;
    let links = ["eth0", "eth1"].map(|nic| Ifindex(lab.node.ifindex(nic)));
    let cases: Vec<Case> = Family::ALL.into_iter().flat_map(cases).collect();
    let mut rows = Vec::new();
    for owners in OWNERS {
        dataplane.publish(&tables(links, owners))?;
        let mut samples: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for _ in 0..rounds {
            let mut order: Vec<usize> = (0..cases.len()).collect();
            fastrand::shuffle(&mut order);
            for place in order {
                // a test run looks the interface up in the namespace of its caller
                let ns = lab.node.run(|| run(&cases[place], &dataplane, &empty_path, links, repeat))?;
                samples.entry(place).or_default().push(ns);
            }
        }
        let summaries: Vec<Summary> = samples.values().map(|samples| summarise(samples)).collect();
        for (case, ns) in cases.iter().zip(&summaries) {
            let floor = cases
                .iter()
                .zip(&summaries)
                .find(|(other, _)| matches!(other.program, Program::Empty) && other.family == case.family);
            rows.push(Row {
                path: case.path,
                family: if case.family == Family::V4 { "IPv4" } else { "IPv6" },
                owners,
                ns: *ns,
                above_empty: ns.median - floor.map_or(0.0, |(_, floor)| floor.median),
            });
        }
    }
    Ok(rows)
}

fn run(case: &Case, dataplane: &Dataplane, empty: &std::path::Path, links: [Ifindex; 2], repeat: u32) -> Result<f64> {
    let duration = match case.program {
        Program::Empty => {
            let options = TestRunOptions { data_in: Some(case.frame.as_slice()), repeat, ..TestRunOptions::default() };
            SchedClassifier::from_pin(empty)?.test_run(options)?.duration
        }
        Program::Ours(direction, nic) => {
            let link = if nic == "eth0" { links[0] } else { links[1] };
            dataplane.run(&Probe { link, direction, frame: &case.frame }, repeat)?.duration
        }
    };
    Ok(duration.as_nanos() as f64)
}

fn cases(family: Family) -> Vec<Case> {
    let client = CLIENT.get(family);
    let own = node_address(1, family);
    let multicast: IpAddr = match family {
        Family::V4 => Ipv4Addr::new(224, 0, 0, 251).into(),
        Family::V6 => Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb).into(),
    };
    let stranger: IpAddr = match family {
        Family::V4 => Ipv4Addr::new(10, 244, 0, 2).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, 0x244, 0, 0, 0, 0, 0, 2).into(),
    };
    let udp = |from: IpAddr, to: IpAddr| Frame::ip(from, to).udp(80, 40000).payload(&[0; 64]).build();
    let case = |path, program, frame| Case { path, family, program, frame };
    vec![
        case("empty program", Program::Empty, udp(own, client)),
        case("ingress, to an owned address", Program::Ours(Direction::Ingress, "eth1"), udp(client, own)),
        case("egress, owned here", Program::Ours(Direction::Egress, "eth1"), udp(own, client)),
        case("egress, moved to its owner", Program::Ours(Direction::Egress, "eth0"), udp(own, client)),
        case("egress, owned by nobody", Program::Ours(Direction::Egress, "eth0"), udp(stranger, client)),
        case("egress, rule 0", Program::Ours(Direction::Egress, "eth0"), udp(own, multicast)),
    ]
}

/// Two NICs; the second owns its lab addresses and as many neighbours as it takes.
fn tables(links: [Ifindex; 2], owners: usize) -> TableSpec {
    let nic = |link, network, gateways| NicEntry {
        link,
        lower: None,
        network,
        state: AdminState::Up,
        mode: Mode::Enforce,
        reply_path: ReplyPath::Symmetric,
        source_guard: SourceGuard::Pass,
        gateways,
    };
    let gateways = |n| PerFamily {
        v4: Some(tests::lab::gateway_address(n, Family::V4)),
        v6: Some(tests::lab::gateway_address(n, Family::V6)),
    };
    let mut spec = TableSpec {
        nics: [(0, nic(links[0], 1, gateways(0))), (1, nic(links[1], 2, gateways(1)))].into(),
        ..TableSpec::default()
    };
    for family in Family::ALL {
        spec.owners.insert(node_address(1, family), 1);
    }
    for i in 1..owners as u32 {
        let ip = if i % 2 == 0 {
            IpAddr::from(Ipv4Addr::from_bits(0x0a15_0000 + i))
        } else {
            IpAddr::from(Ipv6Addr::from_bits(0xfd00_0021_u128 << 96 | u128::from(i)))
        };
        spec.owners.insert(ip, 1);
    }
    if owners > 1 {
        for i in 0..HOPS {
            let net = Ipv4Addr::from_bits(0xac20_0000 + (i << 8));
            let hop = Hop::Gateway(Ipv4Addr::new(10, 20, 0, 2).into());
            if let Ok(net) = ipnet::Ipv4Net::new(net, 24) {
                spec.hops.insert((1, IpNet::V4(net)), hop);
            }
        }
    }
    spec
}
