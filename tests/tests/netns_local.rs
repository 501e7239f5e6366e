//! What starts on the node: traffic that ends there is left alone, the rest leaves by the NIC of its source; field cases
//! 32 and 33.
#![expect(clippy::unwrap_used, clippy::panic, reason = "what a test stands on fails the test")]

#[path = "support/packets.rs"]
mod packets;
mod support;

use std::net::{IpAddr, SocketAddr};

use packets::{all_answered, counted, no_wrong_source, none_answered, settled, unspecified};
use support::applied;
use tests::{
    Family, Netns, TwoNic,
    lab::{CLIENT, CLUSTER, CLUSTER_PORT, NODE_PORT, POD, POD_PORT, gateway_address, node_address},
    traffic::{Target, TcpEcho, UdpEcho},
};

const HOST_PORT: u16 = 8080;

fn servers(netns: &Netns, addresses: &[SocketAddr]) -> Vec<(TcpEcho, UdpEcho)> {
    addresses.iter().map(|address| (TcpEcho::start(netns, *address), UdpEcho::start(netns, *address))).collect()
}

/// Servers on the node's addresses and in the pod.
fn node_and_pod(lab: &TwoNic) -> Vec<(TcpEcho, UdpEcho)> {
    let of = |family| {
        let on_node = [0, 1].map(|nic| SocketAddr::new(node_address(nic, family), HOST_PORT));
        let in_pod = SocketAddr::new(POD.get(family), POD_PORT);
        servers(&lab.node, &on_node).into_iter().chain(servers(lab.pod(), &[in_pod]))
    };
    Family::ALL.into_iter().flat_map(of).collect()
}

/// TCP and UDP from one client port.
fn both(netns: &Netns, from: SocketAddr, to: SocketAddr) -> [Target; 2] {
    [Target::tcp(netns, from, to), Target::udp(netns, from, to)]
}

/// From the node and from its pod to all that is on the node, with client ports from `first` on.
fn local(lab: &TwoNic, first: u16) -> Vec<Target> {
    let clients = [&lab.node, lab.pod()].into_iter().flat_map(|netns| Family::ALL.map(|family| (netns, family)));
    let reached = clients.flat_map(|(netns, family)| {
        let at = |nic, port| SocketAddr::new(node_address(nic, family), port);
        let (cluster, pod) = (CLUSTER.get(family), POD.get(family));
        let of_node = [at(0, HOST_PORT), at(1, HOST_PORT), at(0, NODE_PORT), at(1, NODE_PORT)];
        let of_pod = [SocketAddr::new(cluster, CLUSTER_PORT), SocketAddr::new(pod, POD_PORT)];
        of_node.into_iter().chain(of_pod).map(move |to| (netns, unspecified(family), to))
    });
    (first..).zip(reached).flat_map(|(port, (netns, from, to))| both(netns, SocketAddr::new(from, port), to)).collect()
}

/// From the client behind gw1 to the node's address on eth1, with client ports from `first` on.
fn remote(lab: &TwoNic, first: u16) -> Vec<Target> {
    let reached = Family::ALL.into_iter().flat_map(|family| {
        let servers = [HOST_PORT, NODE_PORT].map(|port| SocketAddr::new(node_address(1, family), port));
        (first..).zip(servers).map(move |(port, to)| (SocketAddr::new(CLIENT.get(family), port), to))
    });
    reached.flat_map(|(from, to)| both(lab.gw(1).ns(), from, to)).collect()
}

#[test]
fn what_starts_and_ends_on_the_node_stays_there() {
    let lab = TwoNic::builder().pod().build();
    let _servers = node_and_pod(&lab);
    all_answered(&local(&lab, 40001));
    counted(&lab, &[]);

    let _product = applied(&lab);
    // the same client ports from outside
    all_answered(&remote(&lab, 50001));
    assert!(lab.gw(1).counter("from_node") > 0);
    no_wrong_source(&lab);
    settled(&lab);
    all_answered(&local(&lab, 50001));
    counted(&lab, &[]);
    all_answered(&remote(&lab, 50101));
    no_wrong_source(&lab);
}

/// A wire between the gateways by which each reaches the network of the other, as the routers of a cloud do.
fn join_gateways(lab: &TwoNic) {
    let [gw0, gw1] = [0, 1].map(|nic| lab.gw(nic).ns());
    gw0.ip(&format!("link add between type veth peer name between netns {}", gw1.name()));
    for (netns, own, peer, far) in [(gw0, 1, 2, "20"), (gw1, 2, 1, "10")] {
        netns.sysctls(&[("net/ipv4/ip_forward", "1"), ("net/ipv6/conf/all/forwarding", "1")]);
        netns.ip_batch(&format!(
            "addr add 192.0.2.{own}/30 dev between\naddr add fd00:2::{own}/64 dev between nodad\n\
             link set between up\n\
             route add 10.{far}.0.0/24 via 192.0.2.{peer}\nroute add fd00:{far}::/64 via fd00:2::{peer}\n"
        ));
    }
}

/// A server that only gw1 knows.
fn behind_gw1(family: Family) -> IpAddr {
    match family {
        Family::V4 => [198, 51, 100, 7].into(),
        Family::V6 => [0x2001, 0xdb8, 0x198, 0, 0, 0, 0, 7].into(),
    }
}

#[test]
fn an_address_of_eth1_is_a_source_on_eth1_only_unless_another_device_is_nearer() {
    let lab = TwoNic::builder().pod().build();
    join_gateways(&lab);
    let mut running = Vec::new();
    let (mut to_pod, mut to_eth0s_subnet, mut to_far) = (Vec::new(), Vec::new(), Vec::new());
    for family in Family::ALL {
        let far = behind_gw1(family);
        lab.gw(1).ns().ip(&format!("addr add {far}/{} dev lo nodad", family.bits()));
        let reached = [
            (lab.pod(), SocketAddr::new(POD.get(family), POD_PORT), &mut to_pod),
            (lab.gw(0).ns(), SocketAddr::new(gateway_address(0, family), HOST_PORT), &mut to_eth0s_subnet),
            (lab.gw(1).ns(), SocketAddr::new(far, HOST_PORT), &mut to_far),
        ];
        let from = node_address(1, family);
        for (netns, to, targets) in reached {
            running.extend(servers(netns, &[to]));
            targets.extend(both(&lab.node, SocketAddr::new(from, 0), to));
            targets.push(Target::ping(&lab.node, from, to.ip()));
        }
    }
    all_answered(&to_pod);
    counted(&lab, &[]);
    for targets in [&to_eth0s_subnet, &to_far] {
        lab.reset_counters();
        none_answered(targets);
        counted(&lab, &[("gw0 from_node", 6), ("gw0 wrong_source", 6)]);
    }

    let _product = applied(&lab);
    settled(&lab);
    all_answered(&to_pod);
    counted(&lab, &[]);
    // by the gateway of eth1, though eth0 is on that subnet: its cloud would drop the source
    for targets in [&to_eth0s_subnet, &to_far] {
        settled(&lab);
        all_answered(targets);
        no_wrong_source(&lab);
        assert!(lab.gw(1).counter("from_node") >= 6);
        assert_eq!(lab.gw(0).counter("from_node"), 0);
    }
}
