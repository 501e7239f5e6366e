//! IP packets handed to a node's stack as they are, what a capture shows of a frame, and what the kernel counts.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    os::fd::AsRawFd,
    time::Duration,
};

use etherparse::{LaxNetSlice, TransportSlice};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, sendto, setsockopt, socket,
    sockopt::{BindToDevice, Broadcast},
};
use tests::{
    Family, Netns, TwoNic,
    lab::{Side, mac, node_address},
    packet::ETHERNET_HEADER,
    raw::{Capture, Captured, Direction},
    traffic::{Failure, Target},
    wait::eventually,
};

/// Below the first retransmission of a TCP SYN (1 s), so that one lost packet is one failure.
pub(crate) const ANSWER: Duration = Duration::from_millis(900);
/// How long a check that must fail waits; the gateways' counters tell that it was not merely too slow.
pub(crate) const NO_ANSWER: Duration = Duration::from_millis(150);
/// How long what has been sent may take to be counted.
pub(crate) const COUNTED: Duration = Duration::from_secs(3);

/// Gives packets (from the IP header on) to the stack of `netns`, which chooses the way by their destination; with a
/// `device`, it has no choice.
pub(crate) fn send_packets(netns: &Netns, device: Option<&str>, packets: &[Vec<u8>]) {
    let send_all = || {
        for packet in packets {
            let to = destination(packet);
            let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
            let socket = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw)?;
            setsockopt(&socket, Broadcast, &true)?;
            if let Some(device) = device {
                setsockopt(&socket, BindToDevice, &device.into())?;
            }
            sendto(socket.as_raw_fd(), packet, &SockaddrStorage::from(SocketAddr::new(to, 0)), MsgFlags::empty())?;
        }
        nix::Result::Ok(())
    };
    netns.run(send_all).unwrap_or_else(|error| panic!("packets to the stack of {}: {error}", netns.name()));
}

/// The packets in frames.
pub(crate) fn without_ethernet(frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    frames.into_iter().map(|mut frame| frame.split_off(ETHERNET_HEADER)).collect()
}

fn destination(packet: &[u8]) -> IpAddr {
    match packet[0] >> 4 {
        4 => <[u8; 4]>::try_from(&packet[16..20]).unwrap().into(),
        _ => <[u8; 16]>::try_from(&packet[24..40]).unwrap().into(),
    }
}

/// An IP packet as a capture saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub direction: Direction,
    /// Source and destination of the Ethernet header.
    pub macs: ([u8; 6], [u8; 6]),
    pub source: IpAddr,
    pub destination: IpAddr,
    /// Protocol, or the first next header.
    pub protocol: u8,
    pub transport: Transport,
}

/// What stands behind the IP header, as far as the tests tell it apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp { flags: u8, source: u16, destination: u16 },
    Udp { source: u16, destination: u16 },
    Icmp { icmp_type: u8, code: u8 },
    Other,
}

/// None for what is not IP.
pub(crate) fn seen(frame: &Captured) -> Option<Seen> {
    let headers = frame.headers()?;
    let (source, destination, protocol): (IpAddr, IpAddr, u8) = match headers.net? {
        LaxNetSlice::Ipv4(ip) => {
            let head = ip.header();
            (head.source_addr().into(), head.destination_addr().into(), head.protocol().0)
        }
        LaxNetSlice::Ipv6(ip) => {
            let head = ip.header();
            (head.source_addr().into(), head.destination_addr().into(), head.next_header().0)
        }
        LaxNetSlice::Arp(_) => return None,
    };
    let transport = match headers.transport {
        Some(TransportSlice::Tcp(tcp)) => Transport::Tcp {
            // flags stand in the fourteenth byte (RFC 9293)
            flags: tcp.slice()[13],
            source: tcp.source_port(),
            destination: tcp.destination_port(),
        },
        Some(TransportSlice::Udp(udp)) => {
            Transport::Udp { source: udp.source_port(), destination: udp.destination_port() }
        }
        Some(TransportSlice::Icmpv4(icmp)) => Transport::Icmp { icmp_type: icmp.type_u8(), code: icmp.code_u8() },
        Some(TransportSlice::Icmpv6(icmp)) => Transport::Icmp { icmp_type: icmp.type_u8(), code: icmp.code_u8() },
        Some(TransportSlice::Igmp(_)) | None => Transport::Other,
    };
    let (direction, macs) = (frame.direction, (frame.source_mac(), frame.destination_mac()));
    Some(Seen { direction, macs, source, destination, protocol, transport })
}

/// Waits for an IP packet; what was seen instead is told by its headers.
pub(crate) fn wait_for_packet(capture: &Capture, what: &str, wanted: impl Fn(&Seen) -> bool) -> (Captured, Seen) {
    eventually(COUNTED, what, || {
        let frames = capture.frames();
        let mut packets: Vec<Seen> = frames.iter().filter_map(seen).collect();
        let mut both = frames.into_iter().filter(|frame| seen(frame).is_some()).zip(packets.clone());
        both.find(|(_, packet)| wanted(packet)).ok_or_else(|| std::mem::take(&mut packets))
    })
}

/// Ethernet addresses of a frame from the node to the gateway of a NIC.
pub(crate) fn to_gateway(nic: usize) -> ([u8; 6], [u8; 6]) {
    (mac(nic, Side::Node), mac(nic, Side::Gateway))
}

/// A counter of /proc/net/netstat, for instance `IPReversePathFilter`.
pub(crate) fn netstat(netns: &Netns, name: &str) -> u64 {
    let text = netns.run(|| std::fs::read_to_string("/proc/thread-self/net/netstat")).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    let found = lines.chunks(2).find_map(|pair| {
        let column = pair[0].iter().position(|column| *column == name)?;
        Some(pair[1][column].parse().unwrap())
    });
    found.unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// Those that ask the node at its addresses on a NIC (0 or 1).
pub(crate) fn to_nic(nic: usize, targets: Vec<Target>) -> Vec<Target> {
    let addresses = Family::ALL.map(|family| node_address(nic, family).to_string());
    let asks_it = |target: &Target| addresses.iter().any(|address| target.name().contains(address));
    targets.into_iter().filter(asks_it).collect()
}

/// Asks every target and panics unless each is answered.
pub(crate) fn all_answered(targets: &[Target]) {
    for target in targets {
        target.check(ANSWER).unwrap_or_else(|failure| panic!("{}: {failure}", target.name()));
    }
}

/// Asks every target and panics unless each waits in vain.
pub(crate) fn none_answered(targets: &[Target]) {
    for target in targets {
        assert_eq!(target.check(NO_ANSWER), Err(Failure::Timeout), "{}", target.name());
    }
}

/// Waits until the gateways have counted exactly this, of what [`TwoNic::counters`] tells, kinds of packets aside.
pub(crate) fn counted(lab: &TwoNic, expected: &[(&str, u64)]) {
    let expected: BTreeMap<String, u64> =
        expected.iter().filter(|(_, count)| *count > 0).map(|(name, count)| ((*name).to_owned(), *count)).collect();
    eventually(COUNTED, &format!("{expected:?}"), || {
        let mut counters = lab.counters();
        let all = counters.clone();
        counters.retain(|name, _| name.ends_with("from_node") || name.ends_with("wrong_source"));
        if counters == expected { Ok(()) } else { Err(all) }
    });
}

/// Waits until the node is silent and sets the counters to zero.
pub(crate) fn settled(lab: &TwoNic) {
    eventually(COUNTED, "no packet since the reset", || {
        lab.reset_counters();
        let counters = lab.counters();
        if counters.is_empty() { Ok(()) } else { Err(counters) }
    });
}

/// By the gateways' counters: nothing came to either with a source of another network.
pub(crate) fn no_wrong_source(lab: &TwoNic) {
    let counters = lab.counters();
    assert!(counters.keys().all(|name| !name.contains("wrong_source")), "{counters:?}");
}

/// An address of no host.
pub(crate) fn unspecified(family: Family) -> IpAddr {
    match family {
        Family::V4 => std::net::Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => std::net::Ipv6Addr::UNSPECIFIED.into(),
    }
}
