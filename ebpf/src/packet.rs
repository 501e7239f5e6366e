//! What is read of a frame: as little as a decision needs, each access bounded.
//!
//! [`Bytes`] is the only difference between the kernel and the host: there it is the packet between `data` and
//! `data_end`, here a slice.

use network_types::{eth::EtherType, ip::IpProto};

use crate::abi::Addr;

/// Plain data that any bytes of a packet are a valid value of.
///
/// Implemented for header structs with word-sized fields: byte-wise (packed) ones cost 12 to 18 ns per packet.
pub trait Wire: Copy {}

impl Wire for u8 {}
impl Wire for u16 {}
impl Wire for Ipv4Head {}
impl Wire for Ipv6Head {}

/// A frame, from its Ethernet header on.
pub trait Bytes {
    /// The value at a byte offset; None where the frame (or the part of it that can be read directly) is too short.
    fn load<T: Wire>(&self, offset: usize) -> Option<T>;
}

/// Bytes of an Ethernet header without VLAN tags.
pub const ETH_LEN: usize = 14;
/// Bytes that [`parse`] may read: up to the end of an IPv6 header and the type byte of an ICMPv6 message behind it.
pub const READ_LEN: usize = ETH_LEN + size_of::<Ipv6Head>() + 1;

/// IPv4 header without options (RFC 791); words as they stand in the packet.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Ipv4Head {
    version_ihl: u8,
    tos: u8,
    total_len_be: u16,
    id_be: u16,
    fragment_be: u16,
    ttl: u8,
    protocol: u8,
    checksum_be: u16,
    src: u32,
    dst: u32,
}

/// IPv6 header (RFC 8200); words as they stand in the packet.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Ipv6Head {
    version_class_flow: u32,
    payload_len_be: u16,
    next_header: u8,
    hop_limit: u8,
    src: [u64; 2],
    dst: [u64; 2],
}

const _: () = assert!(size_of::<Ipv4Head>() == 20 && size_of::<Ipv6Head>() == 40);

/// Address family of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// An IP packet that rules 1 to 3 apply to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    pub family: Family,
    pub src: Addr,
    pub dst: Addr,
    /// Protocol (IPv4) or first next header (IPv6)
    pub protocol: u8,
}

/// What a frame is to the decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Parsed {
    /// Whether rule 0 exempts it is asked apart, by [`is_exempt`]: most packets need no answer to that.
    Ip(Packet),
    /// Rule 0: not IP (ARP and others); and frames that carry a VLAN tag, which a device above this one has decided about.
    Exempt,
    /// The Ethernet type says IP and the bytes do not.
    Malformed,
}

/// Reads a frame from its Ethernet header on.
#[inline(always)]
pub fn parse(frame: &(impl Bytes + ?Sized)) -> Parsed {
    const IPV4: u16 = EtherType::Ipv4 as u16;
    const IPV6: u16 = EtherType::Ipv6 as u16;
    match frame.load::<u16>(12) {
        Some(IPV4) => parse_v4(frame),
        Some(IPV6) => parse_v6(frame),
        Some(_) => Parsed::Exempt,
        None => Parsed::Malformed,
    }
}

#[inline(always)]
fn parse_v4(frame: &(impl Bytes + ?Sized)) -> Parsed {
    let Some(head) = frame.load::<Ipv4Head>(ETH_LEN) else {
        return Parsed::Malformed;
    };
    // version 4, at least five words of header
    if head.version_ihl & 0xf0 != 0x40 || head.version_ihl & 0x0f < 5 {
        return Parsed::Malformed;
    }
    Parsed::Ip(Packet {
        family: Family::V4,
        src: Addr::from_v4_word(head.src),
        dst: Addr::from_v4_word(head.dst),
        protocol: head.protocol,
    })
}

/// Rule 0 for a packet that [`parse`] has read from the same frame: multicast, broadcast, link-local, loopback and
/// unspecified addresses at either end, NDP and MLD.
#[inline(always)]
pub fn is_exempt(frame: &(impl Bytes + ?Sized), packet: &Packet) -> bool {
    match packet.family {
        Family::V4 => v4_exempt(packet.src.v4_word()) || v4_exempt(packet.dst.v4_word()),
        Family::V6 => {
            let discovery = packet.protocol == IpProto::Ipv6Icmp as u8
                && frame.load::<u8>(ETH_LEN + size_of::<Ipv6Head>()).is_some_and(is_neighbour_discovery);
            discovery || v6_exempt(packet.src) || v6_exempt(packet.dst)
        }
    }
}

/// Addresses of rule 0: 0.0.0.0/8, 127.0.0.0/8, 169.254.0.0/16, 224.0.0.0/4 and 255.255.255.255.
#[inline(always)]
fn v4_exempt(word: u32) -> bool {
    let bits = u32::from_be(word);
    let first = bits >> 24;
    first == 0 || first == 127 || bits >> 16 == 0xa9fe || first & 0xf0 == 0xe0 || bits == u32::MAX
}

#[inline(always)]
fn parse_v6(frame: &(impl Bytes + ?Sized)) -> Parsed {
    let Some(head) = frame.load::<Ipv6Head>(ETH_LEN) else {
        return Parsed::Malformed;
    };
    if u32::from_be(head.version_class_flow) >> 28 != 6 {
        return Parsed::Malformed;
    }
    let [src, dst] = [head.src, head.dst].map(|[hi, lo]| Addr { hi, lo });
    Parsed::Ip(Packet { family: Family::V6, src, dst, protocol: head.next_header })
}

/// Addresses of rule 0: ff00::/8, fe80::/10, ::1 and ::.
#[inline(always)]
fn v6_exempt(addr: Addr) -> bool {
    let top = u64::from_be(addr.hi) >> 48;
    top & 0xff00 == 0xff00 || top & 0xffc0 == 0xfe80 || (addr.hi == 0 && u64::from_be(addr.lo) <= 1)
}

/// ICMPv6 types of MLD (130–132, 143; RFC 3810) and NDP (133–137; RFC 4861), which may go to unicast addresses.
#[inline(always)]
const fn is_neighbour_discovery(kind: u8) -> bool {
    matches!(kind, 130..=137 | 143)
}

#[cfg(not(target_arch = "bpf"))]
mod host {
    #![allow(unsafe_code, reason = "reads a Wire value out of a slice; the one place that does on the host")]

    use super::{Bytes, Wire};

    impl Bytes for [u8] {
        fn load<T: Wire>(&self, offset: usize) -> Option<T> {
            let bytes = self.get(offset..)?.get(..size_of::<T>())?;
            // SAFETY: `bytes` is as long as T, and any bytes are a value of a Wire type.
            Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    use std::{vec, vec::Vec};

    use etherparse::{EtherType as Type, PacketBuilder, SlicedPacket};
    use proptest::prelude::*;

    use super::*;

    fn udp(src: IpAddr, dst: IpAddr) -> Vec<u8> {
        let eth = PacketBuilder::ethernet2([2; 6], [4; 6]);
        let mut frame = Vec::new();
        match (src, dst) {
            (IpAddr::V4(s), IpAddr::V4(d)) => {
                eth.ipv4(s.octets(), d.octets(), 64).udp(1, 2).write(&mut frame, b"x").unwrap();
            }
            (IpAddr::V6(s), IpAddr::V6(d)) => {
                eth.ipv6(s.octets(), d.octets(), 64).udp(1, 2).write(&mut frame, b"x").unwrap();
            }
            _ => panic!("two families"),
        }
        frame
    }

    fn classified(frame: &[u8]) -> Parsed {
        match parse(frame) {
            Parsed::Ip(packet) if is_exempt(frame, &packet) => Parsed::Exempt,
            parsed => parsed,
        }
    }

    fn parsed(src: &str, dst: &str) -> Parsed {
        classified(udp(src.parse().unwrap(), dst.parse().unwrap()).as_slice())
    }

    #[test]
    fn source_and_destination_are_read_in_both_families() {
        for (src, dst) in [("10.20.0.10", "100.64.0.5"), ("fd00:20::10", "2001:db8:100::5")] {
            let Parsed::Ip(packet) = parsed(src, dst) else { panic!("{src} is not exempt") };
            assert_eq!(packet.src.to_ip(), src.parse::<IpAddr>().unwrap());
            assert_eq!(packet.dst.to_ip(), dst.parse::<IpAddr>().unwrap());
            assert_eq!(packet.protocol, 17);
        }
    }

    #[test]
    fn rule_0_leaves_special_addresses_alone_whichever_end_they_are() {
        for (special, peer) in [
            ("0.1.2.3", "10.0.0.1"),
            ("127.0.0.1", "10.0.0.1"),
            ("169.254.169.254", "10.0.0.1"),
            ("224.0.0.5", "10.0.0.1"),
            ("239.255.255.255", "10.0.0.1"),
            ("255.255.255.255", "10.0.0.1"),
            ("::", "fd00::1"),
            ("::1", "fd00::1"),
            ("fe80::1", "fd00::1"),
            ("febf::1", "fd00::1"),
            ("ff02::1", "fd00::1"),
        ] {
            assert_eq!(parsed(special, peer), Parsed::Exempt, "from {special}");
            assert_eq!(parsed(peer, special), Parsed::Exempt, "to {special}");
        }
        for (src, dst) in [("128.0.0.1", "223.255.255.255"), ("fec0::1", "::2"), ("169.253.0.1", "240.0.0.1")] {
            assert!(matches!(parsed(src, dst), Parsed::Ip(_)), "{src} to {dst}");
        }
    }

    #[test]
    fn neighbour_discovery_and_mld_are_exempt_and_other_icmpv6_is_not() {
        for kind in 0..=255_u8 {
            let mut frame = Vec::new();
            PacketBuilder::ethernet2([2; 6], [4; 6])
                .ipv6(Ipv6Addr::from_bits(0xfd << 120 | 1).octets(), Ipv6Addr::from_bits(0xfd << 120 | 2).octets(), 255)
                .icmpv6_raw(kind, 0, [0; 4])
                .write(&mut frame, &[])
                .unwrap();
            let exempt = classified(frame.as_slice()) == Parsed::Exempt;
            assert_eq!(exempt, (130..=137).contains(&kind) || kind == 143, "type {kind}");
        }
    }

    #[test]
    fn other_ethernet_types_are_exempt_and_short_or_lying_frames_malformed() {
        let ip = [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))];
        let good = udp(ip[0], ip[1]);
        let mut arp = good.clone();
        arp[12..14].copy_from_slice(&[0x08, 0x06]);
        assert_eq!(parse(arp.as_slice()), Parsed::Exempt);
        assert_eq!(parse(&good[..ETH_LEN + 19]), Parsed::Malformed);
        assert_eq!(parse(&good[..13]), Parsed::Malformed);
        for version_ihl in [0x44, 0x65, 0x05] {
            let mut bad = good.clone();
            bad[ETH_LEN] = version_ihl;
            assert_eq!(parse(bad.as_slice()), Parsed::Malformed, "{version_ihl:#x}");
        }
        let mut tagged = vec![0; 12];
        tagged.extend([0x81, 0, 0, 7]);
        tagged.extend(&good[12..]);
        assert_eq!(parse(tagged.as_slice()), Parsed::Exempt);
    }

    proptest! {
        #[test]
        fn agrees_with_an_independent_parser_on_any_bytes(
            mut frame in proptest::collection::vec(any::<u8>(), 0..120),
            kind in prop_oneof![Just([0x08, 0x00]), Just([0x86, 0xdd]), any::<[u8; 2]>()],
            version in prop_oneof![Just(0x45_u8), Just(0x60), any::<u8>()],
        ) {
            if frame.len() >= 14 { frame[12..14].copy_from_slice(&kind); }
            if frame.len() > 14 { frame[14] = version; }
            let ours = classified(frame.as_slice());
            // the independent parser checks more (lengths, whole headers): what it accepts, we must read alike
            if let Ok(sliced) = SlicedPacket::from_ethernet(&frame) {
                match (&sliced.net, ours) {
                    (Some(etherparse::NetSlice::Ipv4(v4)), Parsed::Ip(packet)) => {
                        prop_assert_eq!(packet.src.to_ip(), IpAddr::V4(v4.header().source_addr()));
                        prop_assert_eq!(packet.dst.to_ip(), IpAddr::V4(v4.header().destination_addr()));
                        prop_assert_eq!(packet.protocol, v4.header().protocol().0);
                    }
                    (Some(etherparse::NetSlice::Ipv6(v6)), Parsed::Ip(packet)) => {
                        prop_assert_eq!(packet.src.to_bytes(), v6.header().source());
                        prop_assert_eq!(packet.dst.to_bytes(), v6.header().destination());
                        prop_assert_eq!(packet.protocol, v6.header().next_header().0);
                    }
                    (Some(etherparse::NetSlice::Ipv4(v4)), Parsed::Exempt) => {
                        let special = |a: Ipv4Addr| a.octets()[0] == 0 || a.is_loopback() || a.is_link_local()
                            || a.is_multicast() || a.is_broadcast();
                        prop_assert!(special(v4.header().source_addr()) || special(v4.header().destination_addr()));
                    }
                    (Some(etherparse::NetSlice::Ipv4(_) | etherparse::NetSlice::Ipv6(_)), Parsed::Malformed) => {
                        prop_assert!(false, "malformed to us alone");
                    }
                    (None, ours) => prop_assert!(
                        !matches!(ours, Parsed::Ip(_)) || matches!(Type(u16::from_be_bytes(kind)), Type::IPV4 | Type::IPV6)
                    ),
                    _ => {}
                }
            }
        }
    }
}
