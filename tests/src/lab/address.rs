//! The addresses of the lab. A NIC is 0 (eth0) or 1 (eth1).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An IP family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// The option that chooses it in iproute2.
    #[must_use]
    pub fn option(self) -> &'static str {
        match self {
            Self::V4 => "-4",
            Self::V6 => "-6",
        }
    }

    /// Prefix length of a single address.
    #[must_use]
    pub fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }
}

/// One host's addresses in both families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dual {
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
}

impl Dual {
    const fn new(v4: [u8; 4], v6: [u16; 8]) -> Self {
        let [a, b, c, d, e, f, g, h] = v6;
        Self { v4: Ipv4Addr::new(v4[0], v4[1], v4[2], v4[3]), v6: Ipv6Addr::new(a, b, c, d, e, f, g, h) }
    }

    /// The address of one family.
    #[must_use]
    pub fn get(self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.v4.into(),
            Family::V6 => self.v6.into(),
        }
    }
}

/// The health checker, behind both gateways.
pub const CLIENT: Dual = Dual::new([100, 64, 0, 5], [0x2001, 0xdb8, 0x100, 0, 0, 0, 0, 5]);
/// The pod behind the node; its network is a /24 and a /64.
pub const POD: Dual = Dual::new([10, 244, 0, 2], [0xfd00, 0x244, 0, 0, 0, 0, 0, 2]);
/// The node's address on `vpod`.
pub const POD_GATEWAY: Dual = Dual::new([10, 244, 0, 1], [0xfd00, 0x244, 0, 0, 0, 0, 0, 1]);
/// The service address that the node translates to the pod.
pub const CLUSTER: Dual = Dual::new([10, 96, 0, 10], [0xfd00, 0x96, 0, 0, 0, 0, 0, 0x10]);
/// The second node, on the network of eth0.
pub const SECOND_NODE: Dual = Dual::new([10, 10, 0, 20], [0xfd00, 0x10, 0, 0, 0, 0, 0, 0x20]);
/// A pod of the second node: an address on its `lo`.
pub const SECOND_NODE_POD: Dual = Dual::new([10, 245, 0, 2], [0xfd00, 0x245, 0, 0, 0, 0, 0, 2]);
/// The link-local address that each gateway has.
pub const LINK_LOCAL_GATEWAY: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1));

/// The port that the node translates to the pod on all of its addresses, TCP and UDP.
pub const NODE_PORT: u16 = 30080;
/// The port of [`CLUSTER`].
pub const CLUSTER_PORT: u16 = 80;
/// The port of the pod behind both.
pub const POD_PORT: u16 = 80;

const NODE: [Dual; 2] = [
    Dual::new([10, 10, 0, 10], [0xfd00, 0x10, 0, 0, 0, 0, 0, 0x10]),
    Dual::new([10, 20, 0, 10], [0xfd00, 0x20, 0, 0, 0, 0, 0, 0x10]),
];
const GATEWAY: [Dual; 2] = [
    Dual::new([10, 10, 0, 1], [0xfd00, 0x10, 0, 0, 0, 0, 0, 1]),
    Dual::new([10, 20, 0, 1], [0xfd00, 0x20, 0, 0, 0, 0, 0, 1]),
];

/// The node's address on a NIC.
#[must_use]
pub fn node_address(nic: usize, family: Family) -> IpAddr {
    NODE[nic].get(family)
}

/// The global address of the gateway of a NIC.
#[must_use]
pub fn gateway_address(nic: usize, family: Family) -> IpAddr {
    GATEWAY[nic].get(family)
}

/// The connected network of a NIC, as a prefix.
#[must_use]
pub fn subnet(nic: usize, family: Family) -> &'static str {
    match family {
        Family::V4 => ["10.10.0.0/24", "10.20.0.0/24"][nic],
        Family::V6 => ["fd00:10::/64", "fd00:20::/64"][nic],
    }
}

/// The network of the pods behind the node.
#[must_use]
pub fn pod_subnet(family: Family) -> &'static str {
    match family {
        Family::V4 => "10.244.0.0/24",
        Family::V6 => "fd00:244::/64",
    }
}

/// The prefix of the extra addresses of a NIC.
#[must_use]
pub fn extra_prefix(nic: usize, family: Family) -> &'static str {
    match family {
        Family::V4 => ["10.11.0.0/16", "10.21.0.0/16"][nic],
        Family::V6 => ["fd00:11::/64", "fd00:21::/64"][nic],
    }
}

/// The extra address number `index` (from 0, below 65 000) of a NIC.
#[must_use]
pub fn extra_address(nic: usize, index: usize, family: Family) -> IpAddr {
    let number = u16::try_from(index + 1).unwrap_or_else(|_| panic!("extra address {index}: there are fewer"));
    let [high, low] = number.to_be_bytes();
    Dual::new([10, [11, 21][nic], high, low], [0xfd00, [0x11, 0x21][nic], 0, 0, 0, 0, 0, number]).get(family)
}

/// Which end of a NIC's wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Node,
    Gateway,
    SecondNode,
}

/// The Ethernet address of one end: `02:00:00:00:<nic>:<side>`.
#[must_use]
pub fn mac(nic: usize, side: Side) -> [u8; 6] {
    let side = match side {
        Side::Node => 1,
        Side::Gateway => 2,
        Side::SecondNode => 3,
    };
    [2, 0, 0, 0, [0, 1][nic], side]
}

/// An Ethernet address as iproute2 and nft write it.
pub(super) fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
