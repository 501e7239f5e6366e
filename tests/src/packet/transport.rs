//! What an IP packet carries.

use std::net::IpAddr;

use etherparse::checksum::Sum16BitWords;
use etherparse::{IpNumber, TcpHeader, UdpHeader};

use super::{ACK, FIN, PSH, RST, SYN};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Tcp(Box<TcpHeader>),
    Udp {
        source_port: u16,
        destination_port: u16,
    },
    /// ICMP or ICMPv6, by the family of the packet; `rest` is the second word of its header.
    Icmp {
        icmp_type: u8,
        code: u8,
        rest: [u8; 4],
    },
    Other {
        protocol: IpNumber,
    },
}

impl Transport {
    pub(super) fn tcp(source_port: u16, destination_port: u16, flags: u8) -> Self {
        let mut header = TcpHeader::new(source_port, destination_port, 0, 64_240);
        header.fin = flags & FIN != 0;
        header.syn = flags & SYN != 0;
        header.rst = flags & RST != 0;
        header.psh = flags & PSH != 0;
        header.ack = flags & ACK != 0;
        Self::Tcp(Box::new(header))
    }

    pub(super) fn set_numbers(&mut self, sequence: u32, acknowledgement: u32) {
        let header = self.tcp_header();
        header.sequence_number = sequence;
        header.acknowledgment_number = acknowledgement;
    }

    pub(super) fn set_options(&mut self, options: &[u8]) {
        let header = self.tcp_header();
        header.set_options_raw(options).unwrap_or_else(|error| panic!("{} bytes of options: {error}", options.len()));
    }

    fn tcp_header(&mut self) -> &mut TcpHeader {
        match self {
            Self::Tcp(header) => header,
            Self::Udp { .. } | Self::Icmp { .. } | Self::Other { .. } => panic!("not a TCP segment: {self:?}"),
        }
    }

    pub(super) fn protocol(&self, v4: bool) -> IpNumber {
        match self {
            Self::Tcp(_) => IpNumber::TCP,
            Self::Udp { .. } => IpNumber::UDP,
            Self::Icmp { .. } if v4 => IpNumber::ICMP,
            Self::Icmp { .. } => IpNumber::IPV6_ICMP,
            Self::Other { protocol } => *protocol,
        }
    }

    /// Header and payload, the checksum right for these addresses.
    pub(super) fn build(&self, source: IpAddr, destination: IpAddr, payload: &[u8]) -> Vec<u8> {
        let mut bytes = match self {
            Self::Tcp(header) => header.to_bytes().to_vec(),
            Self::Udp { source_port, destination_port } => {
                let length = UdpHeader::LEN + payload.len();
                let length = u16::try_from(length).unwrap_or_else(|_| panic!("a UDP datagram of {length} bytes"));
                let (source_port, destination_port) = (*source_port, *destination_port);
                UdpHeader { source_port, destination_port, length, checksum: 0 }.to_bytes().to_vec()
            }
            Self::Icmp { icmp_type, code, rest } => [&[*icmp_type, *code, 0, 0], rest.as_slice()].concat(),
            Self::Other { .. } => Vec::new(),
        };
        bytes.extend(payload);
        if let Some(at) = self.checksum_at() {
            let v4 = source.is_ipv4();
            let mut sum = Sum16BitWords::new().add_slice(&bytes);
            // ICMP for IPv4 is the one without a pseudo header.
            if !(v4 && matches!(self, Self::Icmp { .. })) {
                sum = sum.add_slice(&pseudo_header(source, destination, self.protocol(v4), bytes.len()));
            }
            let checksum = match self {
                // 0 means "none" in UDP
                Self::Udp { .. } => sum.to_ones_complement_with_no_zero(),
                Self::Tcp(_) | Self::Icmp { .. } | Self::Other { .. } => sum.ones_complement(),
            };
            // The sum is over words as they stand in memory.
            bytes[at..at + 2].copy_from_slice(&checksum.to_ne_bytes());
        }
        bytes
    }

    fn checksum_at(&self) -> Option<usize> {
        match self {
            Self::Tcp(_) => Some(16),
            Self::Udp { .. } => Some(6),
            Self::Icmp { .. } => Some(2),
            Self::Other { .. } => None,
        }
    }
}

/// RFC 768, RFC 9293, RFC 8200 section 8.1; the sum over both forms is what counts, not their layout.
fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: IpNumber, length: usize) -> Vec<u8> {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let length = u32::try_from(length).unwrap_or_else(|_| panic!("a packet of {length} bytes"));
    [octets(source), octets(destination), length.to_be_bytes().to_vec(), vec![0, 0, 0, protocol.0]].concat()
}
