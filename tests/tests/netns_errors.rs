//! What the node says without a socket behind it leaves by the NIC that was asked: field case 12.
#![expect(clippy::unwrap_used, clippy::panic, reason = "what a test stands on fails the test")]

#[path = "support/host.rs"]
mod host;
#[path = "support/packets.rs"]
mod packets;
mod support;

use std::{
    io::Read,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd,
    time::Duration,
};

use etherparse::TransportSlice;
use host::{Servers, all_passed, nothing_left_by_the_wrong_nic, succeeded, targets};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, socket};
use packets::{
    ANSWER, COUNTED, Seen, Transport, counted, netstat, none_answered, seen, settled, to_gateway, to_nic,
    wait_for_packet,
};
use support::applied;
use tests::{
    Family, TwoNic,
    lab::{CLIENT, POD, Side, mac, node_address},
    packet::{ACK, FIN, Frame, PSH, RST},
    raw::{Capture, Direction, Sender},
    traffic::{Checker, Failure, Target},
    wait::eventually,
};

const CLOSED_PORT: u16 = 81;

/// From the client behind gw1 to the node's address on eth1, as gw1 sends it.
fn from_client(family: Family) -> Frame {
    Frame::ip(CLIENT.get(family), node_address(1, family)).macs(mac(1, Side::Gateway), mac(1, Side::Node))
}

#[test]
fn a_closed_port_is_refused_at_once() {
    let lab = TwoNic::builder().build();
    let targets: Vec<_> = Family::ALL
        .into_iter()
        .flat_map(|family| {
            let (from, to) =
                (SocketAddr::new(CLIENT.get(family), 0), SocketAddr::new(node_address(1, family), CLOSED_PORT));
            let gw1 = lab.gw(1).ns();
            [Target::tcp(gw1, from, to), Target::udp(gw1, from, to)]
        })
        .collect();
    none_answered(&targets);
    counted(&lab, &[("gw0 from_node", 4), ("gw0 wrong_source", 4)]);

    let _product = applied(&lab);
    lab.reset_counters();
    for target in &targets {
        assert_eq!(target.check(ANSWER), Err(Failure::Refused), "{}", target.name());
    }
    counted(&lab, &[("gw1 from_node", 4)]);
    let counters = lab.gw(1).counters();
    for kind in ["tcp4", "icmp4", "tcp6", "icmp6"] {
        assert_eq!(counters[&format!("from_node_{kind}")], 1, "{counters:?}");
    }
}

#[test]
fn a_segment_of_no_connection_is_reset() {
    let lab = TwoNic::builder().build();
    let _servers = Servers::start(&lab);
    let sender = Sender::new(lab.gw(1).ns(), "g1");
    let stray = |family, flags| from_client(family).tcp(40001, 80, flags).numbers(7, 9).payload(b"late").build();
    let send_all = || {
        for (family, flags) in
            Family::ALL.into_iter().flat_map(|family| [ACK | PSH, ACK | FIN].map(|flags| (family, flags)))
        {
            sender.send(&stray(family, flags));
        }
    };
    send_all();
    counted(&lab, &[("gw0 from_node", 4), ("gw0 wrong_source", 4)]);

    let _product = applied(&lab);
    lab.reset_counters();
    let capture = Capture::start(lab.gw(1).ns(), "g1");
    send_all();
    counted(&lab, &[("gw1 from_node", 4)]);
    let frames = capture.stop();
    let resets = frames.iter().filter_map(seen).filter(|packet| {
        matches!(packet.transport, Transport::Tcp { flags, source: 80, destination: 40001 } if flags & RST != 0)
            && packet.macs == to_gateway(1)
    });
    assert_eq!(resets.count(), 4);
}

#[test]
fn time_exceeded_leaves_by_the_nic_whose_address_it_carries() {
    let lab = TwoNic::builder().pod().build();
    let sender = Sender::new(lab.gw(1).ns(), "g1");
    let expired = |family| {
        let frame = Frame::ip(CLIENT.get(family), POD.get(family)).udp(40001, 9).hop_limit(1);
        frame.macs(mac(1, Side::Gateway), mac(1, Side::Node)).build()
    };
    // IPv6 takes an address of the arrival NIC; IPv4 one of the NIC by which the kernel answers, unless told otherwise
    let own_address = "net/ipv4/icmp_errors_use_inbound_ifaddr";
    lab.node.sysctl(own_address, "1");
    for family in Family::ALL {
        sender.send(&expired(family));
    }
    counted(&lab, &[("gw0 from_node", 2), ("gw0 wrong_source", 2)]);

    let _product = applied(&lab);
    let leaves_by = |nic, family, count| {
        lab.reset_counters();
        let capture = Capture::start(lab.gw(nic).ns(), lab.gw(nic).device());
        sender.send(&expired(family));
        let error = exceeded(&capture, family);
        assert_eq!((error.source, error.macs), (node_address(nic, family), to_gateway(nic)));
        counted(&lab, &[(count, 1)]);
    };
    for family in Family::ALL {
        leaves_by(1, family, "gw1 from_node");
    }
    lab.node.sysctl(own_address, "0");
    leaves_by(0, Family::V4, "gw0 from_node");
}

/// Waits for a "time exceeded" (RFC 792, RFC 4443) from the node.
fn exceeded(capture: &Capture, family: Family) -> Seen {
    let wanted = if family == Family::V4 { 11 } else { 3 };
    let is_error = |packet: &Seen| matches!(packet.transport, Transport::Icmp { icmp_type, .. } if icmp_type == wanted);
    wait_for_packet(capture, "time exceeded", |packet| packet.direction == Direction::In && is_error(packet)).1
}

#[test]
fn handshakes_by_syn_cookies_are_answered() {
    let lab = TwoNic::builder().build();
    lab.node.sysctl("net/ipv4/tcp_syncookies", "2");
    let _servers = Servers::start(&lab);
    let tcp: Vec<_> = targets(&lab).into_iter().filter(|target| target.name().starts_with("tcp")).collect();
    none_answered(&to_nic(1, tcp.clone()));
    assert!(lab.gw(0).counter("wrong_source_tcp4") > 0 && lab.gw(0).counter("wrong_source_tcp6") > 0);

    let _product = applied(&lab);
    lab.reset_counters();
    let before = ["SyncookiesSent", "SyncookiesRecv"].map(|name| netstat(&lab.node, name));
    let checker = Checker::start(tcp, 100);
    eventually(Duration::from_secs(10), "100 handshakes each", || (checker.done() >= 100).then_some(()));
    all_passed(&checker.stop(), 100);
    nothing_left_by_the_wrong_nic(&lab);
    let after = ["SyncookiesSent", "SyncookiesRecv"].map(|name| netstat(&lab.node, name));
    assert!(after[0] >= before[0] + 400 && after[1] >= before[1] + 400, "{before:?} {after:?}");
}

/// Connects from the client behind gw1 to `port` of the node and has the node close first, then the client.
fn closed_by_the_node(lab: &TwoNic, family: Family, port: u16) {
    let to = SocketAddr::new(node_address(1, family), port);
    let listener = lab.node.run(|| TcpListener::bind(to)).unwrap();
    let connected = lab.gw(1).ns().run(|| {
        let ip = if family == Family::V4 { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let socket = socket(ip, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(CLIENT.get(family), 0)))?;
        connect(socket.as_raw_fd(), &SockaddrStorage::from(to))?;
        nix::Result::Ok(TcpStream::from(socket))
    });
    let mut client = connected.unwrap();
    drop(listener.accept().unwrap());
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0, "the node has closed");
}

/// Sockets of the node in state TIME_WAIT (include/net/tcp_states.h) on a local port.
fn time_wait(lab: &TwoNic, port: u16) -> usize {
    const TIME_WAIT: &str = "06";
    let read = |file| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap();
    let text = lab.node.run(|| ["tcp", "tcp6"].map(read).concat());
    let local = format!(":{port:04X}");
    let sockets = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let waits = |socket: &Vec<&str>| socket.len() > 3 && socket[1].ends_with(&local) && socket[3] == TIME_WAIT;
    sockets.filter(waits).count()
}

/// The FIN that the client sent to `port`, once more: a copy of the frame would lack the checksum that a device adds.
fn fin_again(capture: &Capture, family: Family, port: u16) -> Vec<u8> {
    let is_fin = |packet: &Seen| match packet.transport {
        Transport::Tcp { flags, destination, .. } => flags & FIN != 0 && destination == port,
        Transport::Udp { .. } | Transport::Icmp { .. } | Transport::Other => false,
    };
    let (frame, _) = wait_for_packet(capture, "the client's FIN", is_fin);
    let headers = frame.headers().unwrap();
    let Some(TransportSlice::Tcp(tcp)) = headers.transport else { panic!("{headers:?}") };
    let again = from_client(family).tcp(tcp.source_port(), port, FIN | ACK);
    again.numbers(tcp.sequence_number(), tcp.acknowledgment_number()).build()
}

#[test]
fn a_closed_connection_in_time_wait_acknowledges_a_late_fin() {
    let lab = TwoNic::builder().build();
    let product = applied(&lab);
    // the client's kernel knows the connection no more and would reset it
    lab.gw(1).ns().nft("table inet quiet { chain c { type filter hook output priority 0; tcp flags rst drop; }; }");
    let sender = Sender::new(lab.gw(1).ns(), "g1");
    let fins = Family::ALL.map(|family| {
        let port = if family == Family::V4 { 5004 } else { 5006 };
        let capture = Capture::start(lab.gw(1).ns(), "g1");
        closed_by_the_node(&lab, family, port);
        let fin = fin_again(&capture, family, port);
        eventually(COUNTED, "the node waits", || (time_wait(&lab, port) == 1).then_some(()));
        (family, port, fin)
    });
    for (family, port, fin) in &fins {
        settled(&lab);
        let capture = Capture::start(lab.gw(1).ns(), "g1");
        sender.send(fin);
        let is_answer = |packet: &Seen| match packet.transport {
            Transport::Tcp { flags, source, .. } => flags == ACK && source == *port,
            Transport::Udp { .. } | Transport::Icmp { .. } | Transport::Other => false,
        };
        let (_, answer) = wait_for_packet(&capture, "an acknowledgement", is_answer);
        assert_eq!((answer.source, answer.macs), (node_address(1, *family), to_gateway(1)));
        counted(&lab, &[("gw1 from_node", 1)]);
        assert_eq!(time_wait(&lab, *port), 1);
    }

    // and without the product
    succeeded(&product.uninstall());
    lab.reset_counters();
    for (_, _, fin) in &fins {
        sender.send(fin);
    }
    counted(&lab, &[("gw0 from_node", 2), ("gw0 wrong_source", 2)]);
}
