//! What exists on the host: links, addresses, routes, neighbours and the sysctls we care about, as plain values.
//!
//! Filled by [`crate::netlink`], compared by [`crate::plan`], never read from the system here: decisions take an
//! inventory as an argument, so tests make their own.

use std::{
    collections::BTreeMap,
    fmt,
    net::IpAddr,
    str::FromStr,
};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Kernel interface index, unique in a network namespace while the link lives; 0 never names a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ifindex(pub u32);

impl fmt::Display for Ifindex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// 48-bit Ethernet address, written `02:00:00:00:00:01`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The text is not six two-digit hexadecimal bytes joined by colons.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a MAC address like 02:00:00:00:00:01")]
pub struct InvalidMac(String);

impl FromStr for Mac {
    type Err = InvalidMac;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidMac(text.to_owned());
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|p| p.len() == 2).ok_or_else(invalid)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| invalid())?;
        }
        if parts.next().is_some() { Err(invalid()) } else { Ok(Self(bytes)) }
    }
}

impl Serialize for Mac {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Mac {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A network device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub index: Ifindex,
    pub name: String,
    /// IFLA_INFO_KIND: `veth`, `bridge`, `vlan`, `macvlan`, `bond`, …; absent for physical NICs.
    pub kind: Option<String>,
    /// None for devices without an Ethernet address (tun, WireGuard, IPIP).
    pub mac: Option<Mac>,
    /// ARPHRD_ETHER: the device's frames start with an Ethernet header.
    pub ethernet: bool,
    pub loopback: bool,
    /// Administratively up (IFF_UP).
    pub up: bool,
    /// IFF_LOWER_UP: the driver sees a carrier.
    pub carrier: bool,
    pub mtu: u32,
    /// IFLA_MASTER: the bridge, bond or VRF this device is a port of.
    pub master: Option<Ifindex>,
    /// IFLA_LINK without IFLA_LINK_NETNSID: the device below a VLAN or macvlan, in this namespace.
    pub lower: Option<Ifindex>,
}

/// An address of a link with its prefix length.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    pub link: Ifindex,
    /// Address and prefix as configured, host bits kept: 10.20.0.10/24.
    pub net: IpNet,
    /// IFA_ADDRESS when it differs from IFA_LOCAL: the far end of a point-to-point address.
    pub peer: Option<IpAddr>,
    /// IFA_F_TENTATIVE or IFA_F_DADFAILED: not usable (yet).
    pub tentative: bool,
    pub deprecated: bool,
    /// IFA_F_SECONDARY / IFA_F_TEMPORARY (one bit in the kernel).
    pub secondary: bool,
}

/// One way of a route.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NextHop {
    pub link: Option<Ifindex>,
    pub gateway: Option<IpAddr>,
}

/// What a route does with a packet (RTN_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteKind {
    Unicast,
    /// blackhole, unreachable, prohibit, throw and whatever else the kernel has
    Other,
}

/// A route of the main table (table 254); others are not observed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    pub destination: IpNet,
    /// A source-specific IPv6 route (`from PREFIX`); None is the usual case.
    pub from: Option<IpNet>,
    pub kind: RouteKind,
    /// More than one is a multipath route; routes through nexthop objects are resolved by the kernel's own dump.
    pub hops: Vec<NextHop>,
    /// RTA_PREFSRC.
    pub source: Option<IpAddr>,
    /// RTA_PRIORITY; IPv4's default is 0, IPv6's 1024.
    pub metric: u32,
    /// RTA_METRICS: RTAX_MTU in bytes.
    pub mtu: Option<u32>,
    /// RTPROT_*: 157 is ours.
    pub protocol: u8,
    pub tos: u8,
}

impl Route {
    /// Whether the destination is the default route of its family.
    pub fn is_default(&self) -> bool {
        self.destination.prefix_len() == 0
    }
}

/// State of a neighbour entry (NUD_*), as far as it matters to a reader of `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NeighbourState {
    None,
    Incomplete,
    Reachable,
    Stale,
    Delay,
    Probe,
    Failed,
    Noarp,
    Permanent,
}

impl NeighbourState {
    /// Whether packets to the neighbour leave with its address (NUD_VALID).
    pub fn is_valid(self) -> bool {
        match self {
            Self::Reachable | Self::Stale | Self::Delay | Self::Probe | Self::Noarp | Self::Permanent => true,
            Self::None | Self::Incomplete | Self::Failed => false,
        }
    }
}

/// An entry of the ARP or NDP table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    pub link: Ifindex,
    pub address: IpAddr,
    pub mac: Option<Mac>,
    pub state: NeighbourState,
}

/// A per-NIC setting below /proc/sys/net.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SysctlKey {
    pub family: SysctlFamily,
    /// Interface name: /proc names directories by it.
    pub nic: String,
    /// File name: `rp_filter`, `arp_announce`, …
    pub name: String,
}

impl SysctlKey {
    /// Path below /proc/sys/net: `ipv4/conf/eth1/rp_filter`.
    pub fn path(&self) -> String {
        let family = match self.family {
            SysctlFamily::Ipv4 => "ipv4",
            SysctlFamily::Ipv6 => "ipv6",
        };
        format!("{family}/conf/{}/{}", self.nic, self.name)
    }
}

impl fmt::Display for SysctlKey {
    /// As sysctl(8) names it, with slashes so that dots in interface names are not ambiguous.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "net/{}", self.path())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SysctlFamily {
    Ipv4,
    Ipv6,
}

/// Everything observed on the host in one reading.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    pub links: Vec<Link>,
    pub addresses: Vec<Address>,
    pub routes: Vec<Route>,
    pub neighbours: Vec<Neighbour>,
    /// Present values; a key that is absent does not exist on this kernel or NIC.
    pub sysctls: BTreeMap<SysctlKey, String>,
}

impl Inventory {
    pub fn link(&self, index: Ifindex) -> Option<&Link> {
        self.links.iter().find(|l| l.index == index)
    }

    pub fn link_by_name(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|l| l.name == name)
    }

    pub fn addresses_of(&self, link: Ifindex) -> impl Iterator<Item = &Address> {
        self.addresses.iter().filter(move |a| a.link == link)
    }

    pub fn neighbour(&self, link: Ifindex, address: IpAddr) -> Option<&Neighbour> {
        self.neighbours.iter().find(|n| n.link == link && n.address == address)
    }
}
