//! ICMP in both families, neighbour discovery included.

use std::net::Ipv6Addr;

use super::transport::Transport;
use super::{Frame, HOP_BY_HOP};

/// Types of ICMPv6 (RFC 4443, RFC 4861, RFC 2710) that tests name.
pub const MLD_QUERY: u8 = 130;
pub const ROUTER_SOLICITATION: u8 = 133;
pub const ROUTER_ADVERTISEMENT: u8 = 134;
pub const NEIGHBOR_SOLICITATION: u8 = 135;
pub const NEIGHBOR_ADVERTISEMENT: u8 = 136;
pub const REDIRECT: u8 = 137;

/// Neighbour discovery is not forwarded: RFC 4861 asks for this hop limit.
const NDP_HOP_LIMIT: u8 = 255;

impl Frame {
    /// ICMP or ICMPv6, by the family of the packet. `rest` is the second word of its header: identifier and
    /// sequence number, or the MTU, or unused.
    #[must_use]
    pub fn icmp(self, icmp_type: u8, code: u8, rest: [u8; 4]) -> Self {
        self.transport(Transport::Icmp { icmp_type, code, rest })
    }

    /// An echo request.
    #[must_use]
    pub fn echo_request(self, id: u16, sequence: u16) -> Self {
        let icmp_type = if self.is_v4() { 8 } else { 128 };
        self.icmp(icmp_type, 0, words(id, sequence))
    }

    /// An echo reply.
    #[must_use]
    pub fn echo_reply(self, id: u16, sequence: u16) -> Self {
        let icmp_type = if self.is_v4() { 0 } else { 129 };
        self.icmp(icmp_type, 0, words(id, sequence))
    }

    /// "Destination unreachable: port", about `packet`.
    #[must_use]
    pub fn port_unreachable(self, packet: &Frame) -> Self {
        let (icmp_type, code) = if self.is_v4() { (3, 3) } else { (1, 4) };
        self.icmp(icmp_type, code, [0; 4]).payload(&packet.build_packet())
    }

    /// "Fragmentation needed" or "packet too big", about `packet`; `mtu` in bytes.
    #[must_use]
    pub fn too_big(self, mtu: u16, packet: &Frame) -> Self {
        let (icmp_type, code) = if self.is_v4() { (3, 4) } else { (2, 0) };
        self.icmp(icmp_type, code, words(0, mtu)).payload(&packet.build_packet())
    }

    /// A neighbour solicitation for `target`, with the source link-layer address unless the source is `::`.
    #[must_use]
    pub fn neighbor_solicitation(self, target: impl Into<Ipv6Addr>) -> Self {
        self.discovery(NEIGHBOR_SOLICITATION, [0; 4], target.into(), 1)
    }

    /// A solicited neighbour advertisement that overrides, for `target` at the frame's source address.
    #[must_use]
    pub fn neighbor_advertisement(self, target: impl Into<Ipv6Addr>) -> Self {
        self.discovery(NEIGHBOR_ADVERTISEMENT, [0x60, 0, 0, 0], target.into(), 2)
    }

    /// A router solicitation.
    #[must_use]
    pub fn router_solicitation(self) -> Self {
        self.icmp(ROUTER_SOLICITATION, 0, [0; 4]).hop_limit(NDP_HOP_LIMIT)
    }

    /// A router advertisement of this /64, on-link and for addresses, from a router that is no default router.
    #[must_use]
    pub fn router_advertisement(self, prefix: impl Into<Ipv6Addr>) -> Self {
        /// Valid and preferred lifetime, in seconds.
        const LIFETIME: [u8; 4] = 600u32.to_be_bytes();
        let (timers, option) = ([0; 8], [3, 4, 64, 0xc0]);
        let body = [&timers[..], &option, &LIFETIME, &LIFETIME, &[0; 4], &prefix.into().octets()].concat();
        self.icmp(ROUTER_ADVERTISEMENT, 0, [64, 0, 0, 0]).payload(&body).hop_limit(NDP_HOP_LIMIT)
    }

    /// A general query for multicast listeners, which carries the router alert option (RFC 2710).
    #[must_use]
    pub fn mld_query(self) -> Self {
        const ROUTER_ALERT: [u8; 8] = [0, 0, 5, 2, 0, 0, 1, 0];
        let query = self.icmp(MLD_QUERY, 0, words(1000, 0)).payload(&Ipv6Addr::UNSPECIFIED.octets());
        query.raw_extension(HOP_BY_HOP, &ROUTER_ALERT).hop_limit(1)
    }

    fn discovery(mut self, icmp_type: u8, rest: [u8; 4], target: Ipv6Addr, option: u8) -> Self {
        let mut body = target.octets().to_vec();
        if !self.packet().source.is_unspecified() {
            body.extend([option, 1]);
            body.extend(self.source_mac);
        }
        self.icmp(icmp_type, 0, rest).payload(&body).hop_limit(NDP_HOP_LIMIT)
    }
}

fn words(first: u16, second: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = (first.to_be_bytes(), second.to_be_bytes());
    [a, b, c, d]
}
