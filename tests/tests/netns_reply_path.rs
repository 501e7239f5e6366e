//! Answers leave by the NIC that was asked: field cases 1 and 20, and the half of 7 that needs no state.
#![expect(clippy::unwrap_used, clippy::panic, reason = "what a test stands on fails the test")]

#[path = "support/host.rs"]
mod host;
#[path = "support/packets.rs"]
mod packets;
mod support;

use std::{
    collections::BTreeSet,
    net::{SocketAddr, UdpSocket},
    os::fd::AsRawFd,
    time::Duration,
};

use host::{Servers, all_passed, nothing_left_by_the_wrong_nic, succeeded, targets};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, socket};
use packets::{
    ANSWER, NO_ANSWER, all_answered, counted, netstat, no_wrong_source, none_answered, seen, send_packets, to_gateway,
    to_nic, without_ethernet,
};
use support::applied;
use tests::{
    Family, TwoNic,
    lab::{CLIENT, gateway_address, node_address},
    packet::{AUTHENTICATION, DESTINATION_OPTIONS, Frame, HOP_BY_HOP, ROUTING},
    raw::Capture,
    traffic::{Checker, Target, UdpEcho, ping_check},
    wait::eventually,
};

const KINDS: [&str; 6] = ["tcp4", "udp4", "icmp4", "tcp6", "udp6", "icmp6"];

#[test]
fn health_checks_of_both_nics_are_answered_by_the_nic_they_ask() {
    let lab = TwoNic::builder().build();
    let _servers = Servers::start(&lab);
    all_answered(&to_nic(0, targets(&lab)));
    none_answered(&to_nic(1, targets(&lab)));
    for kind in KINDS {
        assert!(lab.gw(0).counter(&format!("wrong_source_{kind}")) > 0, "{kind}: {:?}", lab.counters());
    }
    assert_eq!(lab.gw(1).counter("from_node"), 0);

    let _product = applied(&lab);
    lab.reset_counters();
    let checker = Checker::start(targets(&lab), 20);
    eventually(Duration::from_secs(20), "60 checks of each target", || (checker.done() >= 60).then_some(()));
    all_passed(&checker.stop(), 60);
    nothing_left_by_the_wrong_nic(&lab);
    for (nic, kind) in (0..2).flat_map(|nic| KINDS.map(|kind| (nic, kind))) {
        assert!(lab.gw(nic).counter(&format!("from_node_{kind}")) >= 60, "{kind}: {:?}", lab.counters());
    }
}

/// One packet of every protocol, or next header, from the node's address on eth1 to the client.
fn every_protocol(family: Family) -> Vec<Vec<u8>> {
    // as the first byte of ICMPv6 an echo request, which is no neighbour discovery
    const PAYLOAD: [u8; 32] = [128; 32];
    const EXTENSIONS: [u8; 4] = [HOP_BY_HOP, ROUTING, AUTHENTICATION, DESTINATION_OPTIONS];
    const FRAGMENT: u8 = 44;
    let packet = || Frame::ip(node_address(1, family), CLIENT.get(family)).payload(&PAYLOAD);
    let packets = (0..=u8::MAX).map(|number| match (family, number) {
        (Family::V6, FRAGMENT) => without_ethernet(packet().protocol(253).fragments(32)).remove(0),
        (Family::V6, number) if EXTENSIONS.contains(&number) => packet().protocol(253).extension(number).build_packet(),
        (Family::V4 | Family::V6, number) => packet().protocol(number).build_packet(),
    });
    packets.collect()
}

/// Lets the node learn the Ethernet addresses of both gateways: a burst to an unknown neighbour loses packets anywhere.
fn acquaint(lab: &TwoNic, family: Family) {
    for nic in 0..2 {
        let (node, gateway) = (node_address(nic, family), gateway_address(nic, family));
        ping_check(&lab.node, node, gateway, ANSWER).unwrap();
    }
    lab.reset_counters();
}

#[test]
fn every_ip_protocol_with_an_owned_source_leaves_by_the_owner() {
    let lab = TwoNic::builder().build();
    for family in Family::ALL {
        acquaint(&lab, family);
        send_packets(&lab.node, None, &every_protocol(family));
        counted(&lab, &[("gw0 from_node", 256), ("gw0 wrong_source", 256)]);
    }
    let _product = applied(&lab);
    for family in Family::ALL {
        acquaint(&lab, family);
        let capture = Capture::start(lab.gw(1).ns(), "g1");
        send_packets(&lab.node, None, &every_protocol(family));
        counted(&lab, &[("gw1 from_node", 256)]);
        let frames = capture.stop();
        let from_node = frames.iter().filter_map(seen).filter(|packet| packet.source == node_address(1, family));
        let protocols: BTreeSet<u8> = from_node
            .inspect(|packet| assert_eq!(packet.macs, to_gateway(1), "{packet:?}"))
            .map(|packet| packet.protocol)
            .collect();
        assert_eq!(protocols, (0..=u8::MAX).collect());
    }
}

/// The answer to a question from the client behind gw1.
fn ask(lab: &TwoNic, question: Question, family: Family, timeout: Duration) -> std::io::Result<Vec<u8>> {
    let (client, node) = (SocketAddr::new(CLIENT.get(family), 0), node_address(1, family));
    lab.gw(1).ns().run(|| {
        let (socket, to, sent) = match question {
            Question::Datagram => (UdpSocket::bind(client)?, SocketAddr::new(node, PORT), vec![0x5a; SIZE]),
            Question::Ping => {
                let (ip, icmp, echo_request) = match family {
                    Family::V4 => (AddressFamily::Inet, SockProtocol::Icmp, 8),
                    Family::V6 => (AddressFamily::Inet6, SockProtocol::IcmpV6, 128),
                };
                let socket = socket(ip, SockType::Datagram, SockFlag::SOCK_CLOEXEC, icmp)?;
                bind(socket.as_raw_fd(), &SockaddrStorage::from(client))?;
                let header = [echo_request, 0, 0, 0, 0, 0, 0, 1];
                (UdpSocket::from(socket), SocketAddr::new(node, 0), [&header[..], &[0x5a; SIZE - 8]].concat())
            }
        };
        socket.set_read_timeout(Some(timeout))?;
        socket.send_to(&sent, to)?;
        let mut answer = vec![0; 2 * SIZE];
        let (length, from) = socket.recv_from(&mut answer)?;
        assert_eq!(from.ip(), node);
        answer.truncate(length);
        Ok(answer)
    })
}

#[derive(Clone, Copy, Debug)]
enum Question {
    Datagram,
    Ping,
}

const PORT: u16 = 5357;
/// Bytes of a question and its answer behind the IP header, less the UDP header: three fragments.
const SIZE: usize = 4000;

#[test]
fn fragmented_answers_arrive_whole_by_the_nic_that_was_asked() {
    let lab = TwoNic::builder().build();
    let _servers = Family::ALL.map(|family| UdpEcho::start(&lab.node, SocketAddr::new(node_address(1, family), PORT)));
    let all = || Family::ALL.into_iter().flat_map(|family| [(family, Question::Datagram), (family, Question::Ping)]);
    for (family, question) in all() {
        acquaint(&lab, family);
        ask(&lab, question, family, NO_ANSWER).unwrap_err();
        counted(&lab, &[("gw0 from_node", 3), ("gw0 wrong_source", 3)]);
    }
    let _product = applied(&lab);
    for (family, question) in all() {
        acquaint(&lab, family);
        let answer =
            ask(&lab, question, family, ANSWER).unwrap_or_else(|error| panic!("{question:?} {family:?}: {error}"));
        assert_eq!(answer.len(), SIZE);
        assert!(answer[8..].iter().all(|byte| *byte == 0x5a));
        counted(&lab, &[("gw1 from_node", 3)]);
    }
}

#[test]
fn later_fragments_leave_by_the_owner_though_the_first_was_never_seen() {
    let lab = TwoNic::builder().build();
    let later = |family, identification| {
        let whole = Frame::ip(node_address(1, family), CLIENT.get(family)).udp(PORT, 40001).payload(&[0; 4000]);
        without_ethernet(whole.identification(identification).fragments(1400)).split_off(1)
    };
    for family in Family::ALL {
        acquaint(&lab, family);
        send_packets(&lab.node, None, &later(family, 7));
        counted(&lab, &[("gw0 from_node", 2), ("gw0 wrong_source", 2)]);
    }
    let _product = applied(&lab);
    for family in Family::ALL {
        acquaint(&lab, family);
        send_packets(&lab.node, None, &later(family, 8));
        counted(&lab, &[("gw1 from_node", 2)]);
    }
}

#[test]
fn a_strict_reverse_path_filter_is_loosened_on_the_nics_and_put_back_at_the_end() {
    for all in ["0", "1"] {
        let lab = TwoNic::builder().rp_filter(1, 1).build();
        lab.node.sysctl("net/ipv4/conf/all/rp_filter", all);
        let filters = || {
            ["all", "default", "eth0", "eth1"]
                .map(|name| lab.node.read_sysctl(&format!("net/ipv4/conf/{name}/rp_filter")))
        };
        let before = filters();
        assert_eq!(before, [all, "0", "0", "1"]);
        let _servers = Servers::start(&lab);
        let v4 = |target: &Target| !target.name().contains("::");
        let [eth0, eth1] = [0, 1].map(|nic| to_nic(nic, targets(&lab).into_iter().filter(v4).collect()));
        none_answered(&eth1);
        let filtered = netstat(&lab.node, "IPReversePathFilter");
        assert!(filtered >= 3, "TCP, UDP and ping are dropped: {filtered}");
        counted(&lab, &[]);

        let product = applied(&lab);
        assert_eq!(filters(), [all, "0", "2", "2"]);
        let filtered = netstat(&lab.node, "IPReversePathFilter");
        all_answered(&eth0);
        all_answered(&eth1);
        assert_eq!(netstat(&lab.node, "IPReversePathFilter"), filtered);
        no_wrong_source(&lab);
        assert!((0..2).all(|nic| lab.gw(nic).counter("from_node") > 0));

        succeeded(&product.uninstall());
        assert_eq!(filters(), before);
        let filtered = netstat(&lab.node, "IPReversePathFilter");
        none_answered(&eth1[..1]);
        assert!(netstat(&lab.node, "IPReversePathFilter") > filtered);
    }
}
