//! Frames on a real wire.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::*;
use crate::lab::{CLIENT, Family, Side, TwoNic, gateway_address, mac, node_address};
use crate::packet::{ACK, DESTINATION_OPTIONS, Frame, HOP_BY_HOP, NEIGHBOR_ADVERTISEMENT, PSH, SYN};
use crate::traffic::{TcpEcho, UdpEcho};

const DEADLINE: Duration = Duration::from_secs(5);

/// From the client behind gw0 to the node, as gw0 would send it.
fn request(family: Family) -> Frame {
    Frame::ip(CLIENT.get(family), node_address(0, family)).macs(mac(0, Side::Gateway), mac(0, Side::Node))
}

/// Part of what stands behind the Ethernet header.
fn at(frame: &Captured, offset: usize) -> Option<u8> {
    frame.bytes.get(14 + offset).copied()
}

fn is_reply(frame: &Captured, family: Family, protocol: u8, first: u8) -> bool {
    let (protocol_at, header) = match family {
        Family::V4 => (9, 20),
        Family::V6 => (6, 40),
    };
    frame.direction == Direction::In && at(frame, protocol_at) == Some(protocol) && at(frame, header) == Some(first)
}

#[test]
fn the_kernel_takes_hand_made_packets_for_real_ones() {
    let lab = TwoNic::builder().build();
    let gw0 = lab.gw(0);
    let sender = Sender::new(gw0.ns(), "g0");
    assert_eq!(sender.mac(), mac(0, Side::Gateway));
    for (family, icmp, echo_reply) in [(Family::V4, 1, 0), (Family::V6, 58, 129)] {
        let _tcp = TcpEcho::start(&lab.node, SocketAddr::new(node_address(0, family), 80));
        let _udp = UdpEcho::start(&lab.node, SocketAddr::new(node_address(0, family), 5356));
        let capture = Capture::start(gw0.ns(), "g0");
        sender.send(&request(family).echo_request(7, 1).payload(b"hello").build());
        capture.wait_for(|frame| is_reply(frame, family, icmp, echo_reply), DEADLINE);
        sender.send(&request(family).udp(40001, 5356).payload(b"odd").build());
        let udp = capture.wait_for(|frame| is_reply(frame, family, 17, 0x14), DEADLINE);
        assert!(udp.bytes.ends_with(b"odd"));
        sender.send(&request(family).tcp(40002, 80, SYN).numbers(1000, 0).tcp_options(&[2, 4, 5, 180]).build());
        let reply = capture.wait_for(|frame| is_reply(frame, family, 6, 0), DEADLINE);
        let headers = reply.headers().unwrap();
        let tcp = headers.transport.and_then(|transport| match transport {
            etherparse::TransportSlice::Tcp(tcp) => Some(tcp),
            _ => None,
        });
        let tcp = tcp.unwrap();
        assert!(tcp.syn() && tcp.ack());
        assert_eq!(tcp.acknowledgment_number(), 1001);
        // No listener knows of this connection: the node resets it.
        sender.send(&request(family).tcp(40003, 80, ACK | PSH).payload(b"stray").build());
        capture.wait_for(
            |frame| {
                is_reply(frame, family, 6, 0) && frame.headers().is_some_and(|headers| is_reset_to(&headers, 40003))
            },
            DEADLINE,
        );
    }
}

fn is_reset_to(headers: &LaxSlicedPacket<'_>, port: u16) -> bool {
    let Some(etherparse::TransportSlice::Tcp(tcp)) = &headers.transport else { return false };
    tcp.rst() && tcp.destination_port() == port
}

#[test]
fn the_kernel_reassembles_hand_made_fragments() {
    let lab = TwoNic::builder().build();
    let sender = Sender::new(lab.gw(0).ns(), "g0");
    let capture = Capture::start(&lab.node, "eth0");
    for (family, options) in [(Family::V4, &[][..]), (Family::V6, &[HOP_BY_HOP, DESTINATION_OPTIONS])] {
        let _udp = UdpEcho::answering(&lab.node, SocketAddr::new(node_address(0, family), 5356), |datagram| {
            format!("{} bytes", datagram.len()).into_bytes()
        });
        let whole = request(family).udp(40001, 5356).payload(&[0x5a; 3000]).identification(77);
        let whole = options.iter().fold(whole, |frame, number| frame.extension(*number));
        let fragments = whole.fragments(1400);
        assert_eq!(fragments.len(), 3);
        for fragment in fragments.iter().rev() {
            sender.send(fragment);
        }
        capture.wait_for(|frame| frame.direction == Direction::Out && frame.bytes.ends_with(b"3000 bytes"), DEADLINE);
    }
}

#[test]
fn the_kernel_answers_hand_made_neighbour_discovery() {
    let lab = TwoNic::builder().build();
    let sender = Sender::new(lab.gw(0).ns(), "g0");
    let capture = Capture::start(lab.gw(0).ns(), "g0");
    let (gateway, node) = (gateway_address(0, Family::V6), node_address(0, Family::V6));
    let (IpAddr::V6(gateway), IpAddr::V6(node)) = (gateway, node) else { panic!("{gateway} {node}") };
    let group: Ipv6Addr = "ff02::1:ff00:10".parse().unwrap();
    for source in [gateway, Ipv6Addr::UNSPECIFIED] {
        let seen = capture.frames().len();
        let macs = (mac(0, Side::Gateway), [0x33, 0x33, 0xff, 0, 0, 0x10]);
        sender.send(&Frame::v6(source, group).neighbor_solicitation(node).macs(macs.0, macs.1).build());
        let advertised = || {
            let frames = capture.frames();
            let found = frames[seen..].iter().any(|frame| is_reply(frame, Family::V6, 58, NEIGHBOR_ADVERTISEMENT));
            found.then_some(())
        };
        crate::wait::eventually(DEADLINE, "an advertisement", advertised);
    }
    let node_v4: [u8; 4] = [10, 10, 0, 10];
    sender.send(&Frame::arp_request([10, 10, 0, 1], node_v4).macs(mac(0, Side::Gateway), [0xff; 6]).build());
    capture.wait_for(|frame| frame.bytes[12..14] == [8, 6] && frame.bytes[28..32] == node_v4, DEADLINE);
}

#[test]
fn a_capture_shows_both_directions_and_tags_in_their_place() {
    let lab = TwoNic::builder().build();
    let (near, far) = (Capture::start(lab.gw(1).ns(), "g1"), Capture::start(&lab.node, "eth1"));
    let frames = [
        Frame::ether(0x88b5, b"plain").build(),
        Frame::ether(0x88b5, b"tagged").vlan(101).build(),
        Frame::ether(0x88b5, b"tagged twice").tag(0x88a8, 7).vlan(101).build(),
    ];
    let before = SystemTime::now();
    let sender = Sender::new(lab.gw(1).ns(), "g1");
    for frame in &frames {
        sender.send(frame);
    }
    for frame in &frames {
        let sent = near.wait_for(|seen| seen.bytes == *frame, DEADLINE);
        let received = far.wait_for(|seen| seen.bytes == *frame, DEADLINE);
        assert_eq!((sent.direction, received.direction), (Direction::Out, Direction::In));
        assert!(received.at >= before - Duration::from_millis(1) && received.at <= SystemTime::now());
    }
    let all = far.stop();
    assert!(all.iter().filter(|seen| seen.direction == Direction::In).count() >= frames.len());
}

#[test]
#[should_panic(expected = "no such frame within 20ms")]
fn waiting_for_a_frame_that_never_comes_fails() {
    let netns = Netns::new("quiet");
    let _frame = Capture::start(&netns, "lo").wait_for(|_| true, Duration::from_millis(20));
}
