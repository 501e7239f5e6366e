//! Frames against an independent parser; `raw` has them before the kernel.

use etherparse::{NetSlice, SlicedPacket, TransportSlice};

use super::*;

const CLIENT: [u8; 4] = [100, 64, 0, 5];
const NODE: [u8; 4] = [10, 20, 0, 10];
const CLIENT6: [u16; 8] = [0x2001, 0xdb8, 0x100, 0, 0, 0, 0, 5];
const NODE6: [u16; 8] = [0xfd00, 0x20, 0, 0, 0, 0, 0, 0x10];

#[test]
fn fields_are_where_they_belong() {
    let frame = Frame::v4(CLIENT, NODE)
        .tcp(40001, 80, SYN | ACK)
        .numbers(7, 9)
        .hop_limit(3)
        .traffic_class(0xb9)
        .identification(0x1_2345)
        .dont_fragment()
        .payload(b"data")
        .macs([1; 6], [2; 6])
        .build();
    let parsed = SlicedPacket::from_ethernet(&frame).unwrap();
    let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Tcp(tcp))) = (parsed.net, parsed.transport) else {
        panic!("{frame:02x?}")
    };
    let header = ip.header();
    assert_eq!((&frame[..6], &frame[6..12]), (&[2; 6][..], &[1; 6][..]));
    assert_eq!((header.source(), header.destination(), header.ttl()), (CLIENT, NODE, 3));
    assert_eq!((header.identification(), header.dont_fragment()), (0x2345, true));
    assert_eq!((header.dcp().value(), header.ecn().value()), (0x2e, 1));
    assert_eq!(
        (tcp.source_port(), tcp.destination_port(), tcp.syn(), tcp.ack(), tcp.rst()),
        (40001, 80, true, true, false)
    );
    assert_eq!((tcp.sequence_number(), tcp.acknowledgment_number(), tcp.payload()), (7, 9, &b"data"[..]));
    assert_eq!(tcp.calc_checksum_ipv4(CLIENT, NODE).unwrap(), tcp.checksum());
    assert_eq!(header.to_header().calc_header_checksum(), header.header_checksum());
}

#[test]
fn tags_stand_in_the_order_given() {
    let frame = Frame::v4(CLIENT, NODE).udp(1, 2).tag(0x88a8, 7).vlan(101).build();
    assert_eq!(frame[12..22], [0x88, 0xa8, 0, 7, 0x81, 0, 0, 101, 8, 0]);
}

#[test]
fn extension_headers_are_chained() {
    let frame = Frame::v6(CLIENT6, NODE6)
        .udp(1, 2)
        .extension(HOP_BY_HOP)
        .extension(ROUTING)
        .extension(DESTINATION_OPTIONS)
        .extension(AUTHENTICATION)
        .build();
    let ip = &frame[ETHERNET_HEADER..];
    let starts = [6, 40, 48, 56, 64];
    assert_eq!(starts.map(|at| ip[at]), [HOP_BY_HOP, ROUTING, DESTINATION_OPTIONS, AUTHENTICATION, 17]);
    let parsed = SlicedPacket::from_ethernet(&frame).unwrap();
    assert!(matches!(parsed.transport, Some(TransportSlice::Udp(udp)) if udp.destination_port() == 2));
}

#[test]
fn fragments_cover_the_payload_once() {
    for frame in [Frame::v4(CLIENT, NODE), Frame::v6(CLIENT6, NODE6).extension(DESTINATION_OPTIONS)] {
        let whole = frame.identification(5).udp(1, 2).payload(&(0..100).collect::<Vec<u8>>());
        let (v4, offset_of_payload) = if whole.is_v4() { (true, 20) } else { (false, 56) };
        let fragments = whole.fragments(48);
        let mut payload = Vec::new();
        for (index, fragment) in fragments.iter().enumerate() {
            let ip = &fragment[ETHERNET_HEADER..];
            let word = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
            let (offset, more) =
                if v4 { (8 * (word(6) & 0x1fff), word(6) & 0x2000 != 0) } else { (word(50) & !7, word(50) & 1 != 0) };
            assert_eq!((usize::from(offset), more), (payload.len(), index + 1 < fragments.len()));
            payload.extend(&ip[offset_of_payload..]);
        }
        assert_eq!(fragments.len(), 3);
        let packet = whole.build_packet();
        assert!(packet.ends_with(&payload));
        assert_eq!(payload.len(), 108);
    }
}

#[test]
fn wrong_headers_are_wrong_as_asked() {
    let spoilt = |frame: Frame| frame.build()[ETHERNET_HEADER];
    assert_eq!(spoilt(Frame::v4(CLIENT, NODE).udp(1, 2).ihl(4)), 0x44);
    assert_eq!(spoilt(Frame::v4(CLIENT, NODE).udp(1, 2).ihl(15).version(6)), 0x6f);
    assert_eq!(spoilt(Frame::v6(CLIENT6, NODE6).udp(1, 2).version(4)), 0x40);
    let cut = Frame::v4(CLIENT, NODE).udp(1, 2).truncated(25).build();
    assert_eq!((cut.len(), cut[16..18].to_vec()), (25, vec![0, 28]));
}

#[test]
fn an_error_quotes_the_packet_it_is_about() {
    let packet = Frame::v4(CLIENT, NODE).udp(40001, 9).vlan(101);
    let error = Frame::v4(NODE, CLIENT).port_unreachable(&packet).build_packet();
    assert_eq!(error[20..22], [3, 3]);
    assert_eq!(error[28..], packet.build_packet());
    let too_big = Frame::v6(NODE6, CLIENT6).too_big(1280, &Frame::v6(CLIENT6, NODE6).udp(1, 2)).build_packet();
    assert_eq!(too_big[40..48], [2, 0, too_big[42], too_big[43], 0, 0, 5, 0]);
}

#[test]
fn options_lengthen_the_header() {
    let frame = Frame::v4(CLIENT, NODE).options(&[1; 40]).udp(1, 2).build();
    assert_eq!((frame[ETHERNET_HEADER], frame.len()), (0x4f, ETHERNET_HEADER + 60 + 8));
    let parsed = SlicedPacket::from_ethernet(&frame).unwrap();
    assert!(matches!(parsed.transport, Some(TransportSlice::Udp(udp)) if udp.source_port() == 1));
}
