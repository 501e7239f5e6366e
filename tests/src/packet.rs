//! Frames made by hand, right by default and wrong where a test asks for it.
//!
//! ```
//! use tests::packet::{Frame, SYN};
//! let frame = Frame::v4([100, 64, 0, 5], [10, 20, 0, 10]).tcp(40001, 80, SYN).vlan(101).build();
//! assert_eq!(frame.len(), 14 + 4 + 20 + 20);
//! ```

mod icmp;
mod transport;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{
    ArpEthIpv4Packet, ArpOperation, EtherType, IpDscp, IpEcn, IpFragOffset, IpNumber, Ipv4Header, Ipv6FragmentHeader,
    Ipv6Header,
};

use transport::Transport;

pub use icmp::{
    MLD_QUERY, NEIGHBOR_ADVERTISEMENT, NEIGHBOR_SOLICITATION, REDIRECT, ROUTER_ADVERTISEMENT, ROUTER_SOLICITATION,
};

/// TCP flags, to be combined by `|` (RFC 9293).
pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const PSH: u8 = 0x08;
pub const ACK: u8 = 0x10;

/// Numbers of IPv6 extension headers (RFC 8200, RFC 4302).
pub const HOP_BY_HOP: u8 = 0;
pub const ROUTING: u8 = 43;
pub const AUTHENTICATION: u8 = 51;
pub const DESTINATION_OPTIONS: u8 = 60;

/// Length of an Ethernet header without tags, in bytes.
pub const ETHERNET_HEADER: usize = 14;

/// Unless a frame says otherwise: from the node's eth0 to its gateway.
const SOURCE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const DESTINATION_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// A frame under construction. Lengths and checksums are filled in when it is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    source_mac: [u8; 6],
    destination_mac: [u8; 6],
    /// Outermost first: EtherType of the tag and its 16 bits.
    tags: Vec<(EtherType, u16)>,
    body: Body,
    /// Keep this many bytes only.
    truncated: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Body {
    Ip(Box<Ip>),
    Other { ether_type: EtherType, bytes: Vec<u8> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Ip {
    source: IpAddr,
    destination: IpAddr,
    hop_limit: u8,
    traffic_class: u8,
    identification: u32,
    dont_fragment: bool,
    /// IPv4 options.
    options: Vec<u8>,
    /// IPv6 extension headers with their numbers; their first byte is filled in.
    extensions: Vec<(u8, Vec<u8>)>,
    transport: Transport,
    payload: Vec<u8>,
    /// Written over the right ones.
    version: Option<u8>,
    ihl: Option<u8>,
}

/// A piece of an IP payload.
struct Piece<'a> {
    bytes: &'a [u8],
    offset: IpFragOffset,
    more: bool,
}

impl Frame {
    /// An IPv4 packet with no payload yet (protocol 59, no next header).
    #[must_use]
    pub fn v4(source: impl Into<Ipv4Addr>, destination: impl Into<Ipv4Addr>) -> Self {
        Self::ip(source.into().into(), destination.into().into())
    }

    /// An IPv6 packet with no payload yet (next header 59).
    #[must_use]
    pub fn v6(source: impl Into<Ipv6Addr>, destination: impl Into<Ipv6Addr>) -> Self {
        Self::ip(source.into().into(), destination.into().into())
    }

    /// A packet of the family of its addresses; panics if these are of two.
    #[must_use]
    pub fn ip(source: IpAddr, destination: IpAddr) -> Self {
        assert_eq!(source.is_ipv4(), destination.is_ipv4(), "{source} and {destination} are of two families");
        Self::of(Body::Ip(Box::new(Ip {
            source,
            destination,
            hop_limit: 64,
            traffic_class: 0,
            identification: 0,
            dont_fragment: false,
            options: Vec::new(),
            extensions: Vec::new(),
            transport: Transport::Other { protocol: IpNumber::IPV6_NO_NEXT_HEADER },
            payload: Vec::new(),
            version: None,
            ihl: None,
        })))
    }

    /// A frame of any other EtherType.
    #[must_use]
    pub fn ether(ether_type: u16, bytes: &[u8]) -> Self {
        Self::of(Body::Other { ether_type: EtherType(ether_type), bytes: bytes.to_vec() })
    }

    /// An ARP request "who has `target`, tell `sender`", broadcast.
    #[must_use]
    pub fn arp_request(sender: impl Into<Ipv4Addr>, target: impl Into<Ipv4Addr>) -> Self {
        Self::arp(ArpOperation::REQUEST, sender.into(), [0; 6], target.into()).macs(SOURCE_MAC, [0xff; 6])
    }

    /// An ARP reply "`sender` is at the frame's source address".
    #[must_use]
    pub fn arp_reply(sender: impl Into<Ipv4Addr>, target: impl Into<Ipv4Addr>) -> Self {
        Self::arp(ArpOperation::REPLY, sender.into(), DESTINATION_MAC, target.into())
    }

    fn arp(operation: ArpOperation, sender: Ipv4Addr, target_mac: [u8; 6], target: Ipv4Addr) -> Self {
        let packet = ArpEthIpv4Packet {
            operation,
            sender_mac: SOURCE_MAC,
            sender_ipv4: sender.octets(),
            target_mac,
            target_ipv4: target.octets(),
        };
        Self::ether(EtherType::ARP.0, &packet.to_bytes())
    }

    fn of(body: Body) -> Self {
        let (source_mac, destination_mac) = (SOURCE_MAC, DESTINATION_MAC);
        Self { source_mac, destination_mac, tags: Vec::new(), body, truncated: None }
    }

    /// Ethernet addresses; node to gateway on the network of eth0 unless given. An ARP body keeps its own.
    #[must_use]
    pub fn macs(mut self, source: [u8; 6], destination: [u8; 6]) -> Self {
        (self.source_mac, self.destination_mac) = (source, destination);
        self
    }

    /// An 802.1Q tag in the bytes, inside of those given before.
    #[must_use]
    pub fn vlan(self, vid: u16) -> Self {
        self.tag(EtherType::VLAN_TAGGED_FRAME.0, vid)
    }

    /// A tag of any EtherType (0x88a8 for the outer one of QinQ), inside of those given before.
    #[must_use]
    pub fn tag(mut self, ether_type: u16, tci: u16) -> Self {
        self.tags.push((EtherType(ether_type), tci));
        self
    }

    /// Cuts the built frame off behind its first `bytes` bytes; lengths in headers stay as if it were whole.
    #[must_use]
    pub fn truncated(mut self, bytes: usize) -> Self {
        self.truncated = Some(bytes);
        self
    }

    /// A TCP segment; `flags` of [`SYN`] and its kin.
    #[must_use]
    pub fn tcp(self, source_port: u16, destination_port: u16, flags: u8) -> Self {
        self.transport(Transport::tcp(source_port, destination_port, flags))
    }

    /// Sequence and acknowledgement number of a TCP segment, 0 unless given.
    #[must_use]
    pub fn numbers(mut self, sequence: u32, acknowledgement: u32) -> Self {
        self.packet().transport.set_numbers(sequence, acknowledgement);
        self
    }

    /// Options of a TCP segment, padded to a multiple of four bytes.
    #[must_use]
    pub fn tcp_options(mut self, options: &[u8]) -> Self {
        self.packet().transport.set_options(options);
        self
    }

    /// A UDP datagram.
    #[must_use]
    pub fn udp(self, source_port: u16, destination_port: u16) -> Self {
        self.transport(Transport::Udp { source_port, destination_port })
    }

    /// A payload of any other protocol, with no header that this builder knows.
    #[must_use]
    pub fn protocol(self, number: u8) -> Self {
        self.transport(Transport::Other { protocol: IpNumber(number) })
    }

    /// What stands behind the transport header.
    #[must_use]
    pub fn payload(mut self, bytes: &[u8]) -> Self {
        bytes.clone_into(&mut self.packet().payload);
        self
    }

    /// Time to live or hop limit, 64 unless given.
    #[must_use]
    pub fn hop_limit(mut self, hops: u8) -> Self {
        self.packet().hop_limit = hops;
        self
    }

    /// Type of service or traffic class.
    #[must_use]
    pub fn traffic_class(mut self, class: u8) -> Self {
        self.packet().traffic_class = class;
        self
    }

    /// Identification, by which fragments find together; IPv4 takes the lower 16 bits.
    #[must_use]
    pub fn identification(mut self, identification: u32) -> Self {
        self.packet().identification = identification;
        self
    }

    /// IPv4 "don't fragment".
    #[must_use]
    pub fn dont_fragment(mut self) -> Self {
        self.packet().dont_fragment = true;
        self
    }

    /// IPv4 options, a multiple of four bytes and at most 40.
    #[must_use]
    pub fn options(mut self, options: &[u8]) -> Self {
        options.clone_into(&mut self.packet().options);
        self
    }

    /// An IPv6 extension header of eight bytes that asks for nothing, behind those given before; 24 bytes for
    /// [`AUTHENTICATION`].
    #[must_use]
    pub fn extension(self, number: u8) -> Self {
        match number {
            // PadN over the whole header
            HOP_BY_HOP | DESTINATION_OPTIONS => self.raw_extension(number, &[0, 0, 1, 4, 0, 0, 0, 0]),
            // an experimental type (RFC 4727) with no segments left
            ROUTING => self.raw_extension(number, &[0, 0, 253, 0, 0, 0, 0, 0]),
            // its length counts words of four bytes, less two
            AUTHENTICATION => self.raw_extension(number, &[&[0, 4][..], &[0; 22]].concat()),
            _ => panic!("extension header {number}: give its bytes to raw_extension"),
        }
    }

    /// An IPv6 extension header as it is, but for the number of the next header in its first byte.
    #[must_use]
    pub fn raw_extension(mut self, number: u8, bytes: &[u8]) -> Self {
        assert!(!bytes.is_empty(), "an extension header has at least the number of the next");
        self.packet().extensions.push((number, bytes.to_vec()));
        self
    }

    /// Another version in the IP header.
    #[must_use]
    pub fn version(mut self, version: u8) -> Self {
        self.packet().version = Some(version);
        self
    }

    /// Another header length, in words of four bytes, in the IPv4 header; its checksum stays that of the right one.
    #[must_use]
    pub fn ihl(mut self, words: u8) -> Self {
        self.packet().ihl = Some(words);
        self
    }

    /// The frame, from its Ethernet header on.
    #[must_use]
    pub fn build(&self) -> Vec<u8> {
        match &self.body {
            Body::Ip(ip) => {
                let payload = ip.transport.build(ip.source, ip.destination, &ip.payload);
                self.framed(ip.ether_type(), &ip.whole(&payload))
            }
            Body::Other { ether_type, bytes } => self.framed(*ether_type, bytes),
        }
    }

    /// The packet without its Ethernet header, as an ICMP error quotes it.
    #[must_use]
    pub fn build_packet(&self) -> Vec<u8> {
        self.build().split_off(ETHERNET_HEADER + 4 * self.tags.len())
    }

    /// The frames of the packet in fragments with at most `bytes` (a multiple of eight) of the IP payload each.
    /// Extension headers stand before the fragment header, in every fragment.
    #[must_use]
    pub fn fragments(&self, bytes: usize) -> Vec<Vec<u8>> {
        assert!(bytes > 0 && bytes.is_multiple_of(8), "fragments of {bytes} bytes: not a multiple of eight");
        let Body::Ip(ip) = &self.body else { panic!("not an IP packet: {self:?}") };
        let payload = ip.transport.build(ip.source, ip.destination, &ip.payload);
        let count = payload.chunks(bytes).count();
        let pieces = payload.chunks(bytes).enumerate().map(|(index, piece)| {
            let units = u16::try_from(index * bytes / 8).unwrap_or(u16::MAX);
            let offset = IpFragOffset::try_new(units).unwrap_or_else(|error| panic!("fragment {index}: {error}"));
            Piece { bytes: piece, offset, more: index + 1 < count }
        });
        pieces.map(|piece| self.framed(ip.ether_type(), &ip.piece(&piece))).collect()
    }

    fn framed(&self, ether_type: EtherType, body: &[u8]) -> Vec<u8> {
        let mut frame = [self.destination_mac, self.source_mac].concat();
        for (tag_type, tci) in &self.tags {
            frame.extend(tag_type.0.to_be_bytes());
            frame.extend(tci.to_be_bytes());
        }
        frame.extend(ether_type.0.to_be_bytes());
        frame.extend(body);
        frame.truncate(self.truncated.unwrap_or(usize::MAX));
        frame
    }

    fn transport(mut self, transport: Transport) -> Self {
        self.packet().transport = transport;
        self
    }

    fn packet(&mut self) -> &mut Ip {
        match &mut self.body {
            Body::Ip(ip) => ip,
            Body::Other { ether_type, .. } => panic!("a frame of type {:#06x} is not an IP packet", ether_type.0),
        }
    }

    fn is_v4(&self) -> bool {
        matches!(&self.body, Body::Ip(ip) if ip.source.is_ipv4())
    }
}

impl Ip {
    fn ether_type(&self) -> EtherType {
        if self.source.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 }
    }

    fn whole(&self, payload: &[u8]) -> Vec<u8> {
        match (self.source, self.destination) {
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let protocol = self.transport.protocol(false);
                self.v6(source, destination, self.chained(&self.extensions, protocol), payload)
            }
            _ => self.piece(&Piece { bytes: payload, offset: IpFragOffset::ZERO, more: false }),
        }
    }

    fn piece(&self, piece: &Piece<'_>) -> Vec<u8> {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => self.v4(source, destination, piece),
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let protocol = self.transport.protocol(false);
                let header = Ipv6FragmentHeader::new(protocol, piece.offset, piece.more, self.identification);
                let fragment = (IpNumber::IPV6_FRAGMENTATION_HEADER.0, header.to_bytes().to_vec());
                let extensions = [self.extensions.as_slice(), &[fragment]].concat();
                self.v6(source, destination, self.chained(&extensions, protocol), piece.bytes)
            }
            _ => unreachable!("the constructor takes two addresses of one family"),
        }
    }

    fn v4(&self, source: Ipv4Addr, destination: Ipv4Addr, piece: &Piece<'_>) -> Vec<u8> {
        let options = self.options.as_slice().try_into();
        let mut header = Ipv4Header {
            dscp: IpDscp::try_new(self.traffic_class >> 2).unwrap_or_default(),
            ecn: IpEcn::try_new(self.traffic_class & 3).unwrap_or_default(),
            identification: u16::try_from(self.identification & 0xffff).unwrap_or_default(),
            dont_fragment: self.dont_fragment,
            more_fragments: piece.more,
            fragment_offset: piece.offset,
            time_to_live: self.hop_limit,
            protocol: self.transport.protocol(true),
            source: source.octets(),
            destination: destination.octets(),
            options: options.unwrap_or_else(|error| panic!("{} bytes of options: {error}", self.options.len())),
            ..Ipv4Header::default()
        };
        let length = header.header_len() + piece.bytes.len();
        header.total_len = u16::try_from(length).unwrap_or_else(|_| panic!("an IPv4 packet of {length} bytes"));
        header.header_checksum = header.calc_header_checksum();
        let mut packet = [header.to_bytes().as_slice(), piece.bytes].concat();
        if let Some(ihl) = self.ihl {
            packet[0] = packet[0] & 0xf0 | ihl & 0x0f;
        }
        self.spoil_version(packet)
    }

    fn v6(&self, source: Ipv6Addr, destination: Ipv6Addr, chain: (u8, Vec<u8>), payload: &[u8]) -> Vec<u8> {
        let (next_header, extensions) = chain;
        let length = extensions.len() + payload.len();
        let header = Ipv6Header {
            traffic_class: self.traffic_class,
            payload_length: u16::try_from(length).unwrap_or_else(|_| panic!("an IPv6 payload of {length} bytes")),
            next_header: IpNumber(next_header),
            hop_limit: self.hop_limit,
            source: source.octets(),
            destination: destination.octets(),
            ..Ipv6Header::default()
        };
        self.spoil_version([&header.to_bytes(), extensions.as_slice(), payload].concat())
    }

    /// The number of the first header, and the headers, each with the number of the next.
    fn chained(&self, extensions: &[(u8, Vec<u8>)], last: IpNumber) -> (u8, Vec<u8>) {
        extensions.iter().rev().fold((last.0, Vec::new()), |(next, behind), (number, header)| {
            (*number, [&[next], &header[1..], behind.as_slice()].concat())
        })
    }

    fn spoil_version(&self, mut packet: Vec<u8>) -> Vec<u8> {
        if let Some(version) = self.version {
            packet[0] = packet[0] & 0x0f | version << 4;
        }
        packet
    }
}

#[cfg(test)]
mod tests;
