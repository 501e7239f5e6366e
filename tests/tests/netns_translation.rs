//! Translated traffic: the node port of a pod, and destinations of a RouteEntry; field cases 24 and 35.
#![expect(clippy::unwrap_used, clippy::panic, reason = "what a test stands on fails the test")]

#[path = "support/host.rs"]
mod host;
#[path = "support/packets.rs"]
mod packets;
mod support;

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use host::{all_passed, nothing_left_by_the_wrong_nic, succeeded};
use packets::{NO_ANSWER, Seen, all_answered, no_wrong_source, none_answered, seen, unspecified};
use support::{NIC_CLASSES, applied};
use tests::{
    Family, TwoNic,
    lab::{Builder, CLIENT, NODE_PORT, POD, POD_PORT, gateway_address, node_address},
    product::Product,
    raw::{Capture, Direction},
    traffic::{Checker, Target, TcpEcho, UdpEcho},
    wait::eventually,
};

/// A rule, as other agents set them, that sends whatever the pod says by one NIC.
#[derive(Clone, Copy, Debug)]
enum SourceRule {
    None,
    ByEth1,
}

impl SourceRule {
    fn apply(self, lab: &TwoNic) {
        let Self::ByEth1 = self else { return };
        for family in Family::ALL {
            let (option, gateway, pod) = (family.option(), gateway_address(1, family), POD.get(family));
            lab.node.ip(&format!("{option} route add default via {gateway} dev eth1 table 201"));
            lab.node.ip(&format!("{option} rule add from {pod} lookup 201"));
        }
    }

    /// The NIC by which the plain kernel sends what a pod answers.
    fn nic(self) -> usize {
        match self {
            Self::None => 0,
            Self::ByEth1 => 1,
        }
    }
}

/// The client behind each gateway asks the node port at the node's address on that NIC: two lists of targets.
fn node_port(lab: &TwoNic) -> [Vec<Target>; 2] {
    [0, 1].map(|nic| {
        let of = |family| {
            let (client, node) =
                (SocketAddr::new(CLIENT.get(family), 0), SocketAddr::new(node_address(nic, family), NODE_PORT));
            let gateway = lab.gw(nic).ns();
            [Target::tcp(gateway, client, node), Target::udp(gateway, client, node)]
        };
        Family::ALL.into_iter().flat_map(of).collect()
    })
}

/// The pod answers at both NICs where the plain kernel serves only one, by 200 connections of each kind.
fn answers_by_the_nic_asked(builder: Builder, rule: SourceRule) {
    let lab = builder.build();
    rule.apply(&lab);
    let _servers = Family::ALL.map(|family| {
        let pod = SocketAddr::new(POD.get(family), POD_PORT);
        (TcpEcho::start(lab.pod(), pod), UdpEcho::start(lab.pod(), pod))
    });
    let targets = node_port(&lab);
    let (served, other) = (rule.nic(), 1 - rule.nic());
    all_answered(&targets[served]);
    no_wrong_source(&lab);
    none_answered(&targets[other]);
    for kind in ["tcp4", "udp4", "tcp6", "udp6"] {
        let counters = lab.gw(served).counters();
        assert!(counters[&format!("wrong_source_{kind}")] > 0, "{rule:?}: {counters:?}");
    }

    let _product = applied(&lab);
    lab.reset_counters();
    let checker = Checker::start(targets.concat(), 500);
    eventually(Duration::from_secs(20), "200 connections each", || (checker.done() >= 200).then_some(()));
    all_passed(&checker.stop(), 200);
    nothing_left_by_the_wrong_nic(&lab);
    for (nic, kind) in (0..2).flat_map(|nic| ["tcp4", "udp4", "tcp6", "udp6"].map(|kind| (nic, kind))) {
        let counters = lab.gw(nic).counters();
        assert!(counters[&format!("from_node_{kind}")] >= 200, "{rule:?}: {counters:?}");
    }
}

#[test]
fn a_pod_that_sees_its_client_answers_by_the_nic_that_was_asked() {
    answers_by_the_nic_asked(TwoNic::builder().pod(), SourceRule::None);
}

#[test]
fn a_pod_that_sees_the_node_answers_by_the_nic_that_was_asked() {
    answers_by_the_nic_asked(TwoNic::builder().masqueraded_pod(), SourceRule::None);
}

#[test]
fn a_source_rule_that_pulls_the_pods_answers_to_eth1_does_not_decide() {
    answers_by_the_nic_asked(TwoNic::builder().pod(), SourceRule::ByEth1);
}

#[test]
fn a_source_rule_does_not_decide_about_a_pod_that_sees_the_node() {
    answers_by_the_nic_asked(TwoNic::builder().masqueraded_pod(), SourceRule::ByEth1);
}

use tests::product::SERVICES as ROUTES;

/// A server behind gw1 in the destinations of [`ROUTES`].
fn service(family: Family) -> IpAddr {
    match family {
        Family::V4 => [172, 30, 0, 7].into(),
        Family::V6 => [0xfd00, 0x30, 0, 0, 0, 0, 0, 7].into(),
    }
}

#[test]
fn source_and_nic_agree_where_a_destination_has_a_route() {
    const PORT: u16 = 8080;
    let lab = TwoNic::builder().pod().build();
    lab.node.nft(
        "table inet egress { chain postrouting { type nat hook postrouting priority srcnat; \
         oifname eth0 masquerade; oifname eth1 masquerade; }; }",
    );
    let _servers = Family::ALL.map(|family| {
        let address = service(family);
        lab.gw(1).ns().ip(&format!("addr add {address}/{} dev lo nodad", family.bits()));
        let server = SocketAddr::new(address, PORT);
        (TcpEcho::start(lab.gw(1).ns(), server), UdpEcho::start(lab.gw(1).ns(), server))
    });
    let targets: Vec<_> = [lab.pod(), &lab.node]
        .into_iter()
        .flat_map(|netns| {
            Family::ALL.into_iter().flat_map(move |family| {
                let (from, to) = (SocketAddr::new(unspecified(family), 0), SocketAddr::new(service(family), PORT));
                [Target::tcp(netns, from, to), Target::udp(netns, from, to), Target::ping(netns, from.ip(), to.ip())]
            })
        })
        .collect();
    for target in &targets {
        target.check(NO_ANSWER).unwrap_err();
    }
    assert!(lab.gw(0).counter("from_node") > 0);
    assert_eq!(lab.gw(1).counter("from_node"), 0);

    let product = Product::new(&lab.node);
    product.manifests(&[("nics.yaml", NIC_CLASSES), ("routes.yaml", ROUTES)]);
    succeeded(&product.apply());
    lab.reset_counters();
    let capture = Capture::start(lab.gw(1).ns(), "g1");
    all_answered(&targets);
    let frames = capture.stop();
    let to_service = |packet: &Seen| Family::ALL.map(service).contains(&packet.destination);
    let from_node =
        frames.iter().filter_map(seen).filter(|packet| packet.direction == Direction::In && to_service(packet));
    let sources: BTreeSet<_> = from_node.map(|packet| packet.source).collect();
    assert_eq!(sources, Family::ALL.map(|family| node_address(1, family)).into());
    no_wrong_source(&lab);
    assert_eq!(lab.gw(0).counter("from_node"), 0);
}
