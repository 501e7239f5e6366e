//! What a lab is, and that the plain kernel does in it what it does in the field.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::*;
use crate::raw::{Capture, Direction};
use crate::traffic::{Checker, Failure, Target, TcpEcho, UdpEcho, ping_check, tcp_check, udp_check};

const TIMEOUT: Duration = Duration::from_millis(400);
const PORTS: (u16, u16) = (80, 5356);

/// Servers on both NICs of the node, for as long as they live.
fn servers(lab: &TwoNic) -> Vec<(TcpEcho, UdpEcho)> {
    let addresses = (0..2).flat_map(|nic| Family::ALL.map(|family| node_address(nic, family)));
    addresses
        .map(|ip| {
            let tcp = TcpEcho::start(&lab.node, SocketAddr::new(ip, PORTS.0));
            (tcp, UdpEcho::start(&lab.node, SocketAddr::new(ip, PORTS.1)))
        })
        .collect()
}

/// TCP, UDP and ping from the client behind a NIC to the node's address on it, in both families.
fn targets(lab: &TwoNic, nic: usize) -> Vec<Target> {
    let netns = lab.gw(nic).ns();
    let both = Family::ALL.map(|family| {
        let (from, to) = (CLIENT.get(family), node_address(nic, family));
        [
            Target::tcp(netns, SocketAddr::new(from, 0), SocketAddr::new(to, PORTS.0)),
            Target::udp(netns, SocketAddr::new(from, 0), SocketAddr::new(to, PORTS.1)),
            Target::ping(netns, from, to),
        ]
    });
    both.into_iter().flatten().collect()
}

#[test]
fn comes_up_in_time() {
    let _first = TwoNic::builder().build();
    let times: Vec<_> = (0..5)
        .map(|_| {
            let start = Instant::now();
            let lab = TwoNic::builder().build();
            let took = start.elapsed();
            drop(lab);
            took
        })
        .collect();
    // The best of five: other work on the machine is not the lab's fault.
    let best = times.iter().min().unwrap();
    println!("up in {times:?}");
    assert!(*best < Duration::from_millis(150), "{times:?}");
}

#[test]
fn the_plain_kernel_answers_the_second_nic_through_the_first() {
    let lab = TwoNic::builder().build();
    let _servers = servers(&lab);
    let capture = Capture::start(&lab.node, "eth0");
    for target in targets(&lab, 1) {
        assert_eq!(target.check(TIMEOUT), Err(Failure::Timeout), "{}", target.name());
    }
    let gw0 = lab.gw(0).counters();
    for kind in ["tcp4", "udp4", "icmp4", "tcp6", "udp6", "icmp6"] {
        assert!(gw0[&format!("wrong_source_{kind}")] > 0, "{kind}: {gw0:?}");
    }
    assert_eq!(lab.gw(1).counter("from_node"), 0);
    let reply = capture.wait_for(|frame| frame.direction == Direction::Out && frame.bytes[12..14] == [8, 0], TIMEOUT);
    assert_eq!((reply.source_mac(), reply.destination_mac()), (mac(0, Side::Node), mac(0, Side::Gateway)));
}

#[test]
fn the_plain_kernel_serves_the_nic_of_its_default_route() {
    let lab = TwoNic::builder().build();
    let _servers = servers(&lab);
    for target in targets(&lab, 0) {
        target.check(TIMEOUT).unwrap_or_else(|failure| panic!("{}: {failure}", target.name()));
    }
    assert_eq!((lab.gw(0).counter("wrong_source"), lab.gw(1).counter("from_node")), (0, 0));
}

#[test]
fn policy_rules_serve_both_nics() {
    for builder in [TwoNic::builder(), TwoNic::builder().link_local_gateway().extra_addresses(1, 3)] {
        let lab = builder.build();
        lab.policy_rules();
        let _servers = servers(&lab);
        let checker = Checker::start([targets(&lab, 0), targets(&lab, 1)].concat(), 50);
        crate::wait::eventually(Duration::from_secs(20), "ten checks of each", || (checker.done() >= 10).then_some(()));
        for report in checker.stop() {
            assert_eq!((report.failed, &report.first_failure), (0, &None), "{report:?}");
            assert_eq!(report.rtts.len(), report.sent);
        }
        let counters = lab.counters();
        assert!(counters.keys().all(|name| !name.contains("wrong_source")), "{counters:?}");
        for gw in ["gw0", "gw1"] {
            for kind in ["tcp4", "udp4", "icmp4", "tcp6", "udp6", "icmp6"] {
                assert!(counters[&format!("{gw} from_node_{kind}")] >= 10, "{counters:?}");
            }
        }
        // The last connections may still be closing.
        crate::wait::eventually(TIMEOUT, "no packet since the reset", || {
            lab.reset_counters();
            let counters = lab.counters();
            if counters.is_empty() { Ok(()) } else { Err(counters) }
        });
    }
}

#[test]
fn extra_addresses_are_reached_through_their_gateway() {
    let lab = TwoNic::builder().extra_addresses(1, 300).build();
    lab.policy_rules();
    for family in Family::ALL {
        let (from, to) = (CLIENT.get(family), extra_address(1, 299, family));
        ping_check(lab.gw(1).ns(), from, to, TIMEOUT).unwrap_or_else(|failure| panic!("{to}: {failure}"));
    }
    assert_eq!(lab.gw(1).counter("wrong_source"), 0);
}

#[test]
fn an_allowed_source_is_not_counted_as_wrong() {
    let lab = TwoNic::builder().build();
    for (vip, family) in [("203.0.113.25", Family::V4), ("2001:db8:203::25", Family::V6)] {
        let address = vip.parse().unwrap();
        lab.node.ip(&format!("addr add {vip}/{} dev lo nodad", family.bits()));
        let check = || ping_check(&lab.node, address, gateway_address(0, family), TIMEOUT);
        assert_eq!(check(), Err(Failure::Timeout));
        assert_eq!(lab.gw(0).counter("wrong_source"), 1);
        lab.gw(0).allow_source(vip);
        lab.gw(0).ns().ip(&format!("route add {vip} via {}", node_address(0, family)));
        check().unwrap_or_else(|failure| panic!("{vip}: {failure}"));
        assert_eq!(lab.gw(0).counter("wrong_source"), 1);
        lab.gw(0).reset();
    }
}

#[test]
fn a_pod_answers_at_the_node_port() {
    for (builder, seen) in [(TwoNic::builder().pod(), CLIENT), (TwoNic::builder().masqueraded_pod(), POD_GATEWAY)] {
        let lab = builder.build();
        for family in Family::ALL {
            let _tcp = TcpEcho::start(lab.pod(), SocketAddr::new(POD.get(family), POD_PORT));
            let _udp = UdpEcho::start(lab.pod(), SocketAddr::new(POD.get(family), POD_PORT));
            let to = SocketAddr::new(node_address(0, family), NODE_PORT);
            let from = SocketAddr::new(CLIENT.get(family), 0);
            let capture = Capture::start(lab.pod(), "eth0");
            tcp_check(lab.gw(0).ns(), from, to, TIMEOUT).unwrap_or_else(|failure| panic!("tcp {to}: {failure}"));
            udp_check(lab.gw(0).ns(), from, to, TIMEOUT).unwrap_or_else(|failure| panic!("udp {to}: {failure}"));
            let octets = match seen.get(family) {
                std::net::IpAddr::V4(address) => address.octets().to_vec(),
                std::net::IpAddr::V6(address) => address.octets().to_vec(),
            };
            let sources = if family == Family::V4 { 26..30 } else { 22..38 };
            let from_client = |frame: &crate::raw::Captured| {
                frame.direction == Direction::In && frame.bytes.get(sources.clone()) == Some(&octets)
            };
            capture.wait_for(from_client, TIMEOUT);
            // From the node itself, from the pod itself, and by the service address.
            for (netns, address) in [(&lab.node, node_address(1, family)), (lab.pod(), node_address(1, family))] {
                let (from, to) = (SocketAddr::new(unspecified(family), 0), SocketAddr::new(address, NODE_PORT));
                tcp_check(netns, from, to, TIMEOUT).unwrap_or_else(|failure| panic!("{to}: {failure}"));
                let to = SocketAddr::new(CLUSTER.get(family), CLUSTER_PORT);
                tcp_check(netns, from, to, TIMEOUT).unwrap_or_else(|failure| panic!("{to}: {failure}"));
            }
        }
    }
}

#[test]
fn a_second_node_shares_the_network_of_eth0_and_is_not_counted() {
    let lab = TwoNic::builder().second_node().forwarding().build();
    for family in Family::ALL {
        for to in [node_address(0, family), gateway_address(0, family)] {
            ping_check(lab.second_node(), SECOND_NODE.get(family), to, TIMEOUT)
                .unwrap_or_else(|failure| panic!("{to}: {failure}"));
        }
    }
    assert_eq!(lab.counters(), BTreeMap::new());
    ping_check(&lab.node, node_address(0, Family::V4), gateway_address(0, Family::V4), TIMEOUT).unwrap();
    assert_eq!(lab.gw(0).counter("from_node_icmp4"), 1);
}

#[test]
fn settings_are_as_asked_for() {
    let lab = TwoNic::builder().mtu(0, 9000).rp_filter(1, 1).build();
    let read = |path: &str| lab.node.read_sysctl(path);
    assert_eq!((read("net/ipv4/conf/eth0/rp_filter"), read("net/ipv4/conf/eth1/rp_filter")), ("0".into(), "1".into()));
    assert_eq!((read("net/ipv6/conf/eth0/mtu"), read("net/ipv6/conf/eth1/mtu")), ("9000".into(), "1500".into()));
    assert_eq!((read("net/ipv4/ip_forward"), read("net/ipv6/conf/all/forwarding")), ("0".into(), "0".into()));
    let forwarding = TwoNic::builder().forwarding().build();
    assert_eq!(forwarding.node.read_sysctl("net/ipv6/conf/all/forwarding"), "1");
}

#[test]
fn a_strict_reverse_path_filter_drops_the_request() {
    let lab = TwoNic::builder().rp_filter(1, 1).build();
    let check = || ping_check(lab.gw(1).ns(), CLIENT.get(Family::V4), node_address(1, Family::V4), TIMEOUT);
    assert_eq!(check(), Err(Failure::Timeout));
    assert_eq!(lab.counters(), BTreeMap::new());
    lab.node.sysctl("net/ipv4/conf/eth1/rp_filter", "2");
    assert_eq!(check(), Err(Failure::Timeout));
    assert_eq!(lab.counters()["gw0 wrong_source_icmp4"], 1);
}

#[test]
fn cold_forgets_neighbours() {
    let lab = TwoNic::builder().build();
    let known = || lab.node.ip("neigh show nud reachable nud stale nud delay");
    assert_eq!(known(), "");
    for family in Family::ALL {
        ping_check(&lab.node, node_address(0, family), gateway_address(0, family), TIMEOUT).unwrap();
    }
    assert!(known().contains("10.10.0.1 dev eth0 lladdr 02:00:00:00:00:02"), "{}", known());
    lab.cold();
    assert_eq!(known(), "");
}

#[test]
fn two_labs_do_not_meet() {
    let (one, other) = (TwoNic::builder().build(), TwoNic::builder().build());
    let _servers = servers(&one);
    let target = &targets(&one, 0)[0];
    target.check(TIMEOUT).unwrap();
    let in_other = &targets(&other, 0)[0];
    assert_eq!(in_other.check(TIMEOUT), Err(Failure::Refused));
    assert_eq!(one.gw(0).counters()["wrong_source"], 0);
    drop(one);
    assert_eq!(in_other.check(TIMEOUT), Err(Failure::Refused));
}

#[test]
fn nothing_is_left_behind() {
    let lab = TwoNic::builder().pod().second_node().build();
    let names: Vec<_> = lab.namespaces().map(|netns| netns.name().to_owned()).collect();
    assert_eq!(names.len(), 6);
    drop(lab);
    let listed = Command::new("ip").args(["netns", "list"]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    for name in names {
        assert!(!listed.contains(&name) && !mounts.contains(&name), "{name} is still there");
        assert!(!Path::new("/run/netns").join(name).exists());
    }
}

fn unspecified(family: Family) -> std::net::IpAddr {
    match family {
        Family::V4 => std::net::Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => std::net::Ipv6Addr::UNSPECIFIED.into(),
    }
}
