//! What the node says without a socket behind it leaves by the NIC that was asked: field case 12.

#[path = "support/host.rs"]
mod host;
#[path = "support/packets.rs"]
mod packets;
mod support;

use std::{
    io::Read,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use host::{Servers, all_passed, nothing_left_by_the_wrong_nic, targets};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt::ReuseAddr,
};
use packets::{ANSWER, COUNTED, Seen, Transport, counted, netstat, none_answered, seen, to_gateway, wait_for_packet};
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
            let (from, to) = (SocketAddr::new(CLIENT.get(family), 0), SocketAddr::new(node_address(1, family), CLOSED_PORT));
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
        for (family, flags) in Family::ALL.into_iter().flat_map(|family| [ACK | PSH, ACK | FIN].map(|flags| (family, flags))) {
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

/// Type of "time exceeded" (RFC 792, RFC 4443).
fn time_exceeded(family: Family) -> u8 {
    match family {
        Family::V4 => 11,
        Family::V6 => 3,
    }
}

#[test]
fn time_exceeded_leaves_by_the_nic_whose_address_it_carries() {
    let lab = TwoNic::builder().pod().build();
    let sender = Sender::new(lab.gw(1).ns(), "g1");
    let expired = |family| {
        let frame = Frame::ip(CLIENT.get(family), POD.get(family)).udp(40001, 9).hop_limit(1);
        frame.macs(mac(1, Side::Gateway), mac(1, Side::Node)).build()
    };
    // the kernel gives it the address of the NIC by which it answers, unless told to take that of the arrival NIC
    let _product = applied(&lab);
    for family in Family::ALL {
        lab.reset_counters();
        let capture = Capture::start(lab.gw(0).ns(), "g0");
        sender.send(&expired(family));
        let error = exceeded(&capture, family);
        assert_eq!((error.source, error.macs), (node_address(0, family), to_gateway(0)));
        counted(&lab, &[("gw0 from_node", 1)]);
    }
    lab.node.sysctl("net/ipv4/icmp_errors_use_inbound_ifaddr", "1");
    lab.reset_counters();
    let capture = Capture::start(lab.gw(1).ns(), "g1");
    sender.send(&expired(Family::V4));
    let error = exceeded(&capture, Family::V4);
    assert_eq!((error.source, error.macs), (node_address(1, Family::V4), to_gateway(1)));
    counted(&lab, &[("gw1 from_node", 1)]);
}

fn exceeded(capture: &Capture, family: Family) -> Seen {
    let wanted = time_exceeded(family);
    let is_error = |packet: &Seen| matches!(packet.transport, Transport::Icmp { icmp_type, .. } if icmp_type == wanted);
    wait_for_packet(capture, "time exceeded", |packet| packet.direction == Direction::In && is_error(packet)).1
}

#[test]
fn handshakes_by_syn_cookies_are_answered() {
    let lab = TwoNic::builder().build();
    lab.node.sysctl("net/ipv4/tcp_syncookies", "2");
    let _servers = Servers::start(&lab);
    let tcp: Vec<_> = targets(&lab).into_iter().filter(|target| target.name().starts_with("tcp")).collect();
    none_answered(&tcp[2..]);
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

/// Connects from the client behind gw1 to `port` of the node and lets the node close first.
fn closed_by_the_node(lab: &TwoNic, family: Family, port: u16) -> TcpStream {
    let to = SocketAddr::new(node_address(1, family), port);
    let listener = lab.node.run(|| TcpListener::bind(to)).unwrap();
    let mut client = lab.gw(1).ns().run(|| {
        let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&socket, ReuseAddr, &true)?;
        let from = SockaddrStorage::from(SocketAddr::new(CLIENT.get(Family::of(to.ip())), 0));
        use std::os::fd::AsRawFd as _;
        nix::sys::socket::bind(socket.as_raw_fd(), &from)?;
        connect(socket.as_raw_fd(), &SockaddrStorage::from(to))?;
        nix::Result::Ok(TcpStream::from(socket))
    })
    .unwrap();
    let (server, _) = listener.accept().unwrap();
    server.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0, "the node has closed");
    client
}

/// Sockets of the node in state TIME_WAIT (include/net/tcp_states.h) on a local port.
fn time_wait(lab: &TwoNic, port: u16) -> usize {
    const TIME_WAIT: &str = "06";
    let text = lab.node.run(|| ["tcp", "tcp6"].map(|file| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap()).concat());
    let local = format!(":{port:04X}");
    text.lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|columns| columns.get(1).is_some_and(|address| address.ends_with(&local)) && columns.get(3) == Some(&TIME_WAIT))
        .count()
}

#[test]
fn a_closed_connection_that_waits_acknowledges_a_late_fin() {
    let lab = TwoNic::builder().build();
    let product = applied(&lab);
    let sender = Sender::new(lab.gw(1).ns(), "g1");
    // the client's kernel, which knows the connection no more, would reset it
    lab.gw(1).ns().nft("table inet quiet { chain c { type filter hook output priority 0; tcp flags rst drop; }; }");
    for (port, family) in (5001..).zip(Family::ALL) {
        let capture = Capture::start(lab.gw(1).ns(), "g1");
        let client = closed_by_the_node(&lab, family, port);
        drop(client);
        let is_fin = |packet: &Seen| {
            packet.direction == Direction::Out
                && matches!(packet.transport, Transport::Tcp { flags, destination, .. } if flags & FIN != 0 && destination == port)
        };
        let (fin, _) = wait_for_packet(&capture, "the client's FIN", is_fin);
        eventually(COUNTED, "the node waits", || (time_wait(&lab, port) == 1).then_some(()));
        // its first acknowledgement is on the wire now
        eventually(COUNTED, "the connection is over", || {
            let before = lab.counters();
            std::thread::yield_now();
            (lab.counters() == before).then_some(())
        });
        lab.reset_counters();
        let again = Capture::start(lab.gw(1).ns(), "g1");
        sender.send(&fin.bytes);
        let is_answer = |packet: &Seen| matches!(packet.transport, Transport::Tcp { flags: ACK, source, .. } if source == port);
        let (_, answer) = wait_for_packet(&again, "an acknowledgement", is_answer);
        assert_eq!((answer.source, answer.macs), (node_address(1, family), to_gateway(1)));
        counted(&lab, &[("gw1 from_node", 1)]);
        assert_eq!(time_wait(&lab, port), 1);

        if family == Family::V6 {
            // the same with the plain kernel
            host::succeeded(&product.uninstall());
            lab.reset_counters();
            sender.send(&fin.bytes);
            counted(&lab, &[("gw0 from_node", 1), ("gw0 wrong_source", 1)]);
        }
    }
}
