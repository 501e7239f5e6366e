//! What exists on the host: links, addresses, routes, neighbours and the sysctls we care about, as plain values.
//!
//! Filled by [`crate::netlink`], compared by [`crate::plan`], never read from the system here: decisions take an
//! inventory as an argument, so tests make their own.

use std::{collections::BTreeMap, fmt, net::IpAddr, str::FromStr};

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
            let hex = |p: &&str| p.len() == 2 && p.bytes().all(|b| b.is_ascii_hexdigit());
            let part = parts.next().filter(hex).ok_or_else(invalid)?;
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

impl Address {
    /// The prefix the kernel takes as directly reachable through the link: that of the peer, if there is one.
    pub fn on_link(&self) -> IpNet {
        match self.peer {
            // the kernel has one prefix length for both and applies it to the peer
            Some(peer) => IpNet::new(peer, self.net.prefix_len()).unwrap_or(self.net).trunc(),
            None => self.net.trunc(),
        }
    }
}

/// One way of a route.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NextHop {
    pub link: Option<Ifindex>,
    /// An IPv6 address in an IPv4 route is RTA_VIA.
    pub gateway: Option<IpAddr>,
    /// RTNH_F_ONLINK: the gateway was not checked against the link's prefixes.
    pub onlink: bool,
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
    /// More than one is a multipath route. Routes through nexthop objects are resolved by the kernel's own dump, except
    /// where `net.ipv4.nexthop_compat_mode` is 0: no hop then. Several IPv6 routes of one destination and metric that are
    /// no multipath route (one connected prefix on two links) stay several.
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

    /// The route as one of ours: protocol 157, one way, through a link. None for every foreign route.
    ///
    /// Equal to the [`OwnRoute`] it was installed from, if that one has a metric (see [`OwnRoute::metric`]).
    pub fn as_own(&self) -> Option<OwnRoute> {
        let [hop] = self.hops.as_slice() else { return None };
        let own =
            self.protocol == OWN_PROTOCOL && self.kind == RouteKind::Unicast && self.from.is_none() && self.tos == 0;
        own.then_some(OwnRoute {
            destination: self.destination,
            link: hop.link?,
            gateway: hop.gateway,
            source: self.source,
            metric: self.metric,
            mtu: self.mtu,
            onlink: hop.onlink,
        })
    }
}

/// Protocol id (RTPROT_*) of the routes we install; the kernel and iproute2 name none with this number.
pub const OWN_PROTOCOL: u8 = 157;

/// A unicast route of ours in the main table: protocol [`OWN_PROTOCOL`], TOS 0, scope link if it has no gateway.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnRoute {
    /// Host bits are not looked at.
    pub destination: IpNet,
    pub link: Ifindex,
    /// Of the destination's family; None is a directly reachable destination.
    pub gateway: Option<IpAddr>,
    /// Preferred source, an address of this host.
    pub source: Option<IpAddr>,
    /// RTA_PRIORITY, lower wins. IPv6 has no 0: the kernel takes it as 1024 ([`OwnRoute::kernel_metric`]), and that is what
    /// an observed route carries.
    pub metric: u32,
    /// In bytes.
    pub mtu: Option<u32>,
    /// Take the gateway as directly reachable although no prefix of the link holds it.
    pub onlink: bool,
}

/// What is done to an [`OwnRoute`], as iproute2 names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteVerb {
    Add,
    Replace,
    Delete,
}

impl RouteVerb {
    pub fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Replace => "replace",
            Self::Delete => "del",
        }
    }
}

impl OwnRoute {
    /// The metric the kernel gives a route that asks for none: 0 in IPv4, 1024 (IP6_RT_PRIO_USER) in IPv6.
    pub fn default_metric(destination: &IpNet) -> u32 {
        match destination {
            IpNet::V4(_) => 0,
            IpNet::V6(_) => 1024,
        }
    }

    /// The metric as the kernel keeps and reports it.
    pub fn kernel_metric(&self) -> u32 {
        if self.metric == 0 { Self::default_metric(&self.destination) } else { self.metric }
    }

    /// The `ip route` command that does the same, with `link_name` for the link.
    pub fn command(&self, verb: RouteVerb, link_name: &str) -> String {
        let family = match self.destination {
            IpNet::V4(_) => "",
            IpNet::V6(_) => " -6",
        };
        let mut command = format!("ip{family} route {} {}", verb.name(), self.destination.trunc());
        let mut word = |name: &str, value: &dyn fmt::Display| {
            command.push_str(&format!(" {name} {value}"));
        };
        if let Some(gateway) = self.gateway {
            word("via", &gateway);
        }
        word("dev", &link_name);
        word("proto", &OWN_PROTOCOL);
        if self.gateway.is_none() {
            word("scope", &"link");
        }
        if self.kernel_metric() != 0 {
            word("metric", &self.kernel_metric());
        }
        // the rest is no part of what identifies a route
        if verb != RouteVerb::Delete {
            if let Some(source) = self.source {
                word("src", &source);
            }
            if let Some(mtu) = self.mtu {
                word("mtu", &mtu);
            }
            if self.onlink {
                command.push_str(" onlink");
            }
        }
        command
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

#[cfg(test)]
mod tests {
    use super::*;

    fn route(destination: &str, gateway: Option<&str>) -> OwnRoute {
        OwnRoute {
            destination: destination.parse().unwrap(),
            link: Ifindex(3),
            gateway: gateway.map(|g| g.parse().unwrap()),
            source: None,
            metric: 0,
            mtu: None,
            onlink: false,
        }
    }

    #[test]
    fn a_full_ipv4_route_reads_as_its_ip_command() {
        let full = OwnRoute {
            source: Some("10.20.0.10".parse().unwrap()),
            metric: 7,
            mtu: Some(1400),
            onlink: true,
            ..route("172.30.5.1/16", Some("10.20.0.1"))
        };
        assert_eq!(
            full.command(RouteVerb::Add, "eth1"),
            "ip route add 172.30.0.0/16 via 10.20.0.1 dev eth1 proto 157 metric 7 src 10.20.0.10 mtu 1400 onlink"
        );
        assert_eq!(
            full.command(RouteVerb::Delete, "eth1"),
            "ip route del 172.30.0.0/16 via 10.20.0.1 dev eth1 proto 157 metric 7"
        );
    }

    #[test]
    fn an_ipv6_command_says_the_metric_the_kernel_will_give() {
        assert_eq!(
            route("fd00:30::/48", None).command(RouteVerb::Replace, "eth1"),
            "ip -6 route replace fd00:30::/48 dev eth1 proto 157 scope link metric 1024"
        );
    }

    #[test]
    fn only_a_single_way_unicast_route_of_our_protocol_is_own() {
        let hop = NextHop { link: Some(Ifindex(3)), gateway: Some("10.20.0.1".parse().unwrap()), onlink: false };
        let observed = Route {
            destination: "172.30.0.0/16".parse().unwrap(),
            from: None,
            kind: RouteKind::Unicast,
            hops: vec![hop.clone()],
            source: None,
            metric: 0,
            mtu: None,
            protocol: OWN_PROTOCOL,
            tos: 0,
        };
        assert_eq!(observed.as_own(), Some(route("172.30.0.0/16", Some("10.20.0.1"))));
        assert_eq!(Route { protocol: 4, ..observed.clone() }.as_own(), None);
        assert_eq!(Route { kind: RouteKind::Other, ..observed.clone() }.as_own(), None);
        assert_eq!(Route { tos: 8, ..observed.clone() }.as_own(), None);
        for hops in [vec![], vec![hop.clone(), hop]] {
            assert_eq!(Route { hops, ..observed.clone() }.as_own(), None);
        }
    }

    #[test]
    fn the_on_link_prefix_of_a_point_to_point_address_is_the_peers() {
        let address = |peer: Option<&str>| Address {
            link: Ifindex(1),
            net: "10.0.0.1/24".parse().unwrap(),
            peer: peer.map(|p| p.parse().unwrap()),
            tentative: false,
            deprecated: false,
            secondary: false,
        };
        assert_eq!(address(None).on_link(), "10.0.0.0/24".parse::<IpNet>().unwrap());
        assert_eq!(address(Some("10.9.0.7")).on_link(), "10.9.0.0/24".parse::<IpNet>().unwrap());
    }
}
