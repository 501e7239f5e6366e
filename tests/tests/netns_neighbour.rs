//! Ethernet addresses and neighbours: the very first answer of a cold NIC, field cases 13 and 16.
#![expect(clippy::unwrap_used, clippy::panic, reason = "what a test stands on fails the test")]

#[path = "support/host.rs"]
mod host;
#[path = "support/packets.rs"]
mod packets;
mod support;

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use host::{Servers, succeeded, targets};
use packets::{
    ANSWER, COUNTED, Seen, Transport, all_answered, counted, no_wrong_source, seen, send_packets, settled, to_gateway,
    to_nic, wait_for_packet,
};
use support::{NIC_CLASSES, applied};
use tests::{
    Family, TwoNic,
    lab::{CLIENT, POD, SECOND_NODE, SECOND_NODE_POD, Side, gateway_address, mac, node_address},
    packet::{ACK, Frame, NEIGHBOR_ADVERTISEMENT, SYN},
    product::Product,
    raw::{Capture, Direction, Sender},
    traffic::{Target, TcpEcho, UdpEcho, ping_check},
    wait::eventually,
};

/// [`NIC_CLASSES`] with the link-local address that both gateways have.
fn link_local_classes() -> String {
    NIC_CLASSES.replace("fd00:10::1", "fe80::1").replace("fd00:20::1", "fe80::1")
}

/// The node knows no neighbour, and the gateways know the node's addresses, so that they need not ask for them, by
/// which they would make themselves known.
fn cold(lab: &TwoNic) {
    for nic in 0..2 {
        let node_mac = mac(nic, Side::Node).map(|byte| format!("{byte:02x}")).join(":");
        let (gateway, device) = (lab.gw(nic).ns(), lab.gw(nic).device());
        for node in Family::ALL.map(|family| node_address(nic, family)) {
            gateway.ip(&format!("neigh replace {node} lladdr {node_mac} dev {device} nud permanent"));
        }
    }
    // the last packets of an earlier connection may still be on their way
    eventually(COUNTED, "no neighbour is known", || {
        settled(lab);
        lab.node.ip("neigh flush all");
        let known = lab.node.ip("neigh show");
        if known.contains("lladdr") { Err(known) } else { Ok(()) }
    });
}

#[test]
fn the_first_answer_of_a_cold_nic_is_the_only_one_and_has_the_right_addresses() {
    for (lab, classes) in [
        (TwoNic::builder().build(), NIC_CLASSES.to_owned()),
        (TwoNic::builder().link_local_gateway().build(), link_local_classes()),
    ] {
        let _servers = Servers::start(&lab);
        let product = Product::new(&lab.node);
        product.manifests(&[("nics.yaml", &classes)]);
        succeeded(&product.apply());
        for target in to_nic(1, targets(&lab)) {
            cold(&lab);
            let capture = Capture::start(lab.gw(1).ns(), "g1");
            target.check(ANSWER).unwrap_or_else(|failure| panic!("{}: {failure}", target.name()));
            let packets: Vec<Seen> = capture.stop().iter().filter_map(seen).filter(not_discovery).collect();
            let (asked, answered): (Vec<&Seen>, Vec<&Seen>) =
                packets.iter().filter(|packet| is_first(packet)).partition(|packet| packet.direction == Direction::Out);
            assert_eq!((asked.len(), answered.len()), (1, 1), "{}: {packets:#?}", target.name());
            for answer in packets.iter().filter(|packet| packet.direction == Direction::In) {
                assert_eq!(answer.macs, to_gateway(1), "{answer:?}");
            }
            assert!(lab.gw(1).counter("from_node") > 0);
            assert_eq!((lab.gw(1).counter("wrong_source"), lab.gw(0).counter("from_node")), (0, 0));
        }
    }
}

/// The first packets of a check: SYN, SYN-ACK, any datagram, echo request and reply.
fn is_first(packet: &Seen) -> bool {
    match packet.transport {
        Transport::Tcp { flags, .. } => flags & !ACK == SYN,
        Transport::Udp { .. } | Transport::Icmp { .. } => true,
        Transport::Other => false,
    }
}

fn not_discovery(packet: &Seen) -> bool {
    !matches!(packet.transport, Transport::Icmp { icmp_type: 130..=137 | 143, .. })
}

#[test]
fn a_gateway_that_announces_another_mac_is_followed_at_once() {
    const NEW: [u8; 6] = [2, 0, 0, 0, 1, 0x77];
    let lab = TwoNic::builder().build();
    let _servers = Servers::start(&lab);
    let _product = applied(&lab);
    let of_eth1 = to_nic(1, targets(&lab));
    all_answered(&of_eth1);
    lab.gw(1).ns().sysctls(&[("net/ipv4/conf/g1/arp_notify", "1"), ("net/ipv6/conf/g1/ndisc_notify", "1")]);
    lab.gw(1).ns().ip("link set g1 address 02:00:00:00:01:77");
    for family in Family::ALL {
        let gateway = gateway_address(1, family);
        eventually(COUNTED, "the announcement", || {
            let known = lab.node.ip(&format!("neigh show {gateway} dev eth1"));
            if known.contains("02:00:00:00:01:77") { Ok(()) } else { Err(known) }
        });
    }
    let capture = Capture::start(lab.gw(1).ns(), "g1");
    all_answered(&of_eth1);
    let frames = capture.stop();
    let answers =
        frames.iter().filter_map(seen).filter(|packet| packet.direction == Direction::In && not_discovery(packet));
    let macs: BTreeSet<_> = answers.map(|packet| packet.macs).collect();
    assert_eq!(macs, BTreeSet::from([(mac(1, Side::Node), NEW)]));
    no_wrong_source(&lab);
}

#[test]
fn what_the_kernel_routes_into_a_tunnel_goes_there_with_the_tunnels_own_addresses() {
    const TUNNEL: &str = "vx0";
    let lab = TwoNic::builder().pod().second_node().build();
    // the node's way to the second node's pods is a tunnel; theirs to it is none
    let nodes = [(&lab.node, 10, SECOND_NODE.get(Family::V4)), (lab.second_node(), 20, node_address(0, Family::V4))];
    for (netns, number, remote) in nodes {
        netns.ip_batch(&format!(
            "link add {TUNNEL} type vxlan id 7 dev eth0 remote {remote} dstport 4789\n\
             addr add 10.246.0.{number}/24 dev {TUNNEL}\naddr add fd00:246::{number}/64 dev {TUNNEL} nodad\n\
             link set {TUNNEL} up\n"
        ));
    }
    lab.node.ip("route add 10.245.0.0/24 via 10.246.0.20");
    lab.node.ip("route add fd00:245::/64 via fd00:246::20");
    let mut servers = Vec::new();
    let mut targets = Vec::new();
    for family in Family::ALL {
        let client = SECOND_NODE_POD.get(family);
        for (netns, address) in
            [(lab.pod(), POD.get(family)), (&lab.node, node_address(0, family)), (&lab.node, node_address(1, family))]
        {
            let server = SocketAddr::new(address, 80);
            servers.push((TcpEcho::start(netns, server), UdpEcho::start(netns, server)));
            targets.push(Target::tcp(lab.second_node(), SocketAddr::new(client, 0), server));
            targets.push(Target::udp(lab.second_node(), SocketAddr::new(client, 0), server));
            targets.push(Target::ping(lab.second_node(), client, address));
        }
        // natively, by the second node's only NIC
        lab.second_node().ip(&format!("route add {} via {}", node_address(1, family), node_address(0, family)));
    }
    let works = || {
        let (tunnel, wire) = (Capture::start(&lab.node, TUNNEL), Capture::start(lab.switch(), "node"));
        all_answered(&targets);
        let answers: BTreeSet<IpAddr> = tunnel
            .stop()
            .iter()
            .filter_map(seen)
            .filter(not_discovery)
            .map(|packet| {
                assert_eq!(packet.direction, Direction::Out, "{packet:?}");
                packet.source
            })
            .collect();
        assert_eq!(answers.len(), 6, "{answers:?}");
        let allowed = [mac(0, Side::Gateway), mac(0, Side::SecondNode)];
        for frame in wire.stop().iter().filter(|frame| frame.direction == Direction::In) {
            let to = frame.destination_mac();
            assert!(to[0] & 1 == 1 || allowed.contains(&to), "{frame:?}");
            assert_eq!(frame.source_mac(), mac(0, Side::Node));
        }
        counted(&lab, &[]);
    };
    works();
    let _product = applied(&lab);
    works();
}

/// The multicast Ethernet address of an IPv6 group.
fn group_mac(group: Ipv6Addr) -> [u8; 6] {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

fn v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V6(address) => address,
        IpAddr::V4(address) => panic!("{address}"),
    }
}

#[test]
fn neighbour_discovery_and_multicast_listeners_are_answered() {
    const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    const SOLICITED: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0x10);
    let router: Ipv6Addr = "fe80::1".parse().unwrap();
    let lab = TwoNic::builder().build();
    let _product = applied(&lab);
    let _servers = Servers::start(&lab);
    let (node, gateway) = (v6(node_address(1, Family::V6)), v6(gateway_address(1, Family::V6)));
    let sender = Sender::new(lab.gw(1).ns(), "g1");
    let (from, to) = (mac(1, Side::Gateway), mac(1, Side::Node));

    for (asking, target_mac, target, answer_to) in [
        (Ipv6Addr::UNSPECIFIED, group_mac(SOLICITED), SOLICITED, ALL_NODES),
        (gateway, group_mac(SOLICITED), SOLICITED, gateway),
        (gateway, to, node, gateway),
    ] {
        let capture = Capture::start(lab.gw(1).ns(), "g1");
        sender.send(&Frame::v6(asking, target).neighbor_solicitation(node).macs(from, target_mac).build());
        let (frame, answer) = wait_for_packet(&capture, "an advertisement", |packet| {
            packet.direction == Direction::In && packet.transport == icmp(NEIGHBOR_ADVERTISEMENT)
        });
        assert_eq!(answer.destination, IpAddr::from(answer_to));
        assert_eq!(frame.source_mac(), to);
        assert_eq!(frame.bytes[14 + 40 + 8..][..16], node.octets(), "the target");
    }

    let advertised: Ipv6Addr = "fd00:99::".parse().unwrap();
    sender
        .send(&Frame::v6(router, ALL_NODES).router_advertisement(advertised).macs(from, group_mac(ALL_NODES)).build());
    eventually(COUNTED, "an address of the advertised prefix", || {
        let addresses = lab.node.ip("-6 addr show dev eth1");
        if addresses.contains("fd00:99::") { Ok(()) } else { Err(addresses) }
    });

    let capture = Capture::start(lab.gw(1).ns(), "g1");
    sender.send(&Frame::v6(router, ALL_NODES).mld_query().macs(from, group_mac(ALL_NODES)).build());
    wait_for_packet(&capture, "a listener's report", |packet| {
        packet.direction == Direction::In && [131, 143].map(icmp).contains(&packet.transport)
    });

    lab.cold();
    ping_check(&lab.node, node.into(), gateway.into(), ANSWER).unwrap();
    lab.cold();
    all_answered(&to_nic(1, targets(&lab)));
    no_wrong_source(&lab);
    assert_eq!(lab.gw(0).counter("from_node"), 0);
}

fn icmp(icmp_type: u8) -> Transport {
    Transport::Icmp { icmp_type, code: 0 }
}

#[test]
fn what_is_meant_for_the_link_stays_on_the_kernels_nic() {
    let lab = TwoNic::builder().build();
    let (gateway, source) = (gateway_address(0, Family::V6), node_address(1, Family::V6));
    // NDP and MLD to a unicast address, then what no router passes on, all with a source that eth1 owns
    let discovery =
        (130..=137).chain([143]).map(|icmp_type| Frame::ip(source, gateway).icmp(icmp_type, 0, [0; 4]).hop_limit(255));
    let groups = ["ff02::fb", "ff05::2", "224.0.0.251", "239.1.2.3", "255.255.255.255"];
    let for_the_link = groups.into_iter().map(|group| {
        let group: IpAddr = group.parse().unwrap();
        Frame::ip(node_address(1, Family::of(group)), group).udp(5353, 5353)
    });
    let packets: Vec<Vec<u8>> = discovery.chain(for_the_link).map(|frame| frame.build_packet()).collect();
    ping_check(&lab.node, node_address(0, Family::V6), gateway, ANSWER).unwrap();
    let all_by_eth0 = || {
        let (g0, g1) = (Capture::start(lab.gw(0).ns(), "g0"), Capture::start(lab.gw(1).ns(), "g1"));
        send_packets(&lab.node, Some("eth0"), &packets);
        let moved = |capture: &Capture| {
            let from_eth1 =
                |packet: &Seen| [Family::V4, Family::V6].map(|family| node_address(1, family)).contains(&packet.source);
            capture.frames().iter().filter_map(seen).filter(from_eth1).count()
        };
        eventually(COUNTED, "all packets at g0", || {
            let count = moved(&g0);
            if count == packets.len() { Ok(()) } else { Err(count) }
        });
        assert_eq!(moved(&g1), 0);
    };
    all_by_eth0();
    let _product = applied(&lab);
    all_by_eth0();
    // to a host, the same source is moved
    lab.reset_counters();
    send_packets(&lab.node, Some("eth0"), &[Frame::ip(source, CLIENT.get(Family::V6)).udp(5353, 5353).build_packet()]);
    counted(&lab, &[("gw1 from_node", 1)]);
}
