//! Kernel tables into inventory values.
//!
//! Of each message only the attributes we use are decoded, so that a new or odd one (a driver's, a tunnel's) cannot hide
//! a link or a route.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use rtnetlink::{
    packet_core::{DecodeError, Emitable, NlasIterator, Parseable, ParseableParametrized, parse_string},
    packet_route::{
        AddressFamily, RouteNetlinkMessage,
        address::{AddressAttribute, AddressFlags, AddressHeader, AddressMessage},
        link::{LinkAttribute, LinkExtentMask, LinkFlags, LinkHeader, LinkLayerType, LinkMessage},
        neighbour::{
            NeighbourAddress, NeighbourAttribute, NeighbourHeader, NeighbourMessage, NeighbourState as NudState,
        },
        route::{
            RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteLwEnCapType, RouteMessage, RouteMetric,
            RouteNextHopFlags, RouteType, RouteVia,
        },
    },
};

use super::{DUMP_ATTEMPTS, Netlink, NetlinkError, NetlinkFailure, connection::Frame, failed};
use crate::inventory::{Address, Ifindex, Link, Mac, Neighbour, NeighbourState, NextHop, Route, RouteKind};

// numbers of linux/rtnetlink.h and linux/if_link.h that libc does not have
const RTA_VIA: u16 = 18;
const IFLA_LINK_NETNSID: u16 = 37;

const FAMILIES: [AddressFamily; 2] = [AddressFamily::Inet, AddressFamily::Inet6];

impl Netlink {
    pub async fn links(&self) -> Result<Vec<Link>, NetlinkError> {
        let mut request = LinkMessage::default();
        request.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
        self.dump("ip -d link show", &RouteNetlinkMessage::GetLink(request), link).await
    }

    /// IPv4 addresses, then IPv6 addresses.
    pub async fn addresses(&self) -> Result<Vec<Address>, NetlinkError> {
        let mut addresses = Vec::new();
        for family in FAMILIES {
            let mut request = AddressMessage::default();
            request.header.family = family;
            let command = format!("ip {} address show", flag(family));
            let request = RouteNetlinkMessage::GetAddress(request);
            addresses.extend(self.dump(&command, &request, |frame| address(frame, family)).await?);
        }
        Ok(addresses)
    }

    /// The main table: IPv4 routes, then IPv6 routes. A route that is there all the time is among them, whatever happens
    /// to others meanwhile; in IPv4 unless it shares its destination with one that goes.
    pub async fn routes(&self) -> Result<Vec<Route>, NetlinkError> {
        let mut routes = self.routes_of(AddressFamily::Inet).await?;
        routes.extend(self.undisturbed_ipv6_routes().await?);
        Ok(routes)
    }

    async fn routes_of(&self, family: AddressFamily) -> Result<Vec<Route>, NetlinkError> {
        let mut request = RouteMessage::default();
        request.header.address_family = family;
        request.header.table = RouteHeader::RT_TABLE_MAIN;
        let request = RouteNetlinkMessage::GetRoute(request);
        match self.dump(&show_routes(family), &request, |frame| route(frame, family)).await {
            // a namespace has no main table before its first route
            Err(error) if error.failure() == NetlinkFailure::NotFound => Ok(Vec::new()),
            answer => answer,
        }
    }

    /// Reads the IPv6 routes until none comes or goes meanwhile.
    ///
    /// When the IPv6 table changes between two parts of a dump, the kernel finds its place again by counting
    /// (fib6_dump_table in net/ipv6/ip6_fib.c): it skips or repeats routes and sets no NLM_F_DUMP_INTR. Its announcements
    /// are made under the same lock, so they tell.
    async fn undisturbed_ipv6_routes(&self) -> Result<Vec<Route>, NetlinkError> {
        let command = || show_routes(AddressFamily::Inet6);
        let mut witness = self.ipv6_witness.lock().await;
        for _ in 0..DUMP_ATTEMPTS {
            witness.seen().map_err(|source| NetlinkError::Lost { command: command(), source })?;
            let routes = self.routes_of(AddressFamily::Inet6).await?;
            let seen = witness.seen().map_err(|source| NetlinkError::Lost { command: command(), source })?;
            if seen.is_empty() {
                return Ok(routes);
            }
        }
        Err(NetlinkError::Interrupted { command: command(), attempts: DUMP_ATTEMPTS })
    }

    /// The ARP table, then the NDP table; both hold multicast entries too (NOARP).
    pub async fn neighbours(&self) -> Result<Vec<Neighbour>, NetlinkError> {
        let mut neighbours = Vec::new();
        for family in FAMILIES {
            let mut request = NeighbourMessage::default();
            request.header.family = family;
            let command = format!("ip {} neigh show nud all", flag(family));
            let request = RouteNetlinkMessage::GetNeighbour(request);
            neighbours.extend(self.dump(&command, &request, |frame| neighbour(frame, family)).await?);
        }
        Ok(neighbours)
    }

    /// One entry of the ARP or NDP table.
    pub async fn neighbour(&self, link: Ifindex, destination: IpAddr) -> Result<Option<Neighbour>, NetlinkError> {
        let (family, address) = match destination {
            IpAddr::V4(address) => (AddressFamily::Inet, NeighbourAddress::Inet(address)),
            IpAddr::V6(address) => (AddressFamily::Inet6, NeighbourAddress::Inet6(address)),
        };
        let mut request = NeighbourMessage::default();
        request.header.family = family;
        request.header.ifindex = link.0;
        request.attributes.push(NeighbourAttribute::Destination(address));
        let request = RouteNetlinkMessage::GetNeighbour(request);
        let answer = self.connection.lock().await.request(request, 0, |frame| neighbour(frame, family)).await;
        match answer.map_err(|error| failed(format!("ip neigh get {destination} dev if{link}"), error)) {
            Ok(found) => Ok(found.into_iter().next()),
            Err(error) if matches!(error.failure(), NetlinkFailure::NotFound | NetlinkFailure::LinkGone) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// One link; None if it is gone or cannot be asked for.
    pub(super) async fn link(&self, index: Ifindex) -> Option<Link> {
        let mut request = LinkMessage::default();
        request.header.index = index.0;
        let request = RouteNetlinkMessage::GetLink(request);
        let answer = self.connection.lock().await.request(request, 0, link).await;
        answer.ok()?.into_iter().next()
    }
}

fn show_routes(family: AddressFamily) -> String {
    format!("ip {} route show table main", flag(family))
}

fn flag(family: AddressFamily) -> &'static str {
    if family == AddressFamily::Inet6 { "-6" } else { "-4" }
}

fn link(frame: &Frame<'_>) -> Result<Option<Link>, DecodeError> {
    if frame.kind != libc::RTM_NEWLINK {
        return Ok(None);
    }
    let header = LinkHeader::parse(frame.payload)?;
    let mut link = Link {
        index: Ifindex(header.index),
        name: String::new(),
        kind: None,
        mac: None,
        ethernet: header.link_layer_type == LinkLayerType::Ether,
        loopback: header.flags.contains(LinkFlags::Loopback),
        up: header.flags.contains(LinkFlags::Up),
        carrier: header.flags.contains(LinkFlags::LowerUp),
        mtu: 0,
        master: None,
        lower: None,
    };
    let mut lower_is_elsewhere = false;
    for attribute in NlasIterator::new(&frame.payload[header.buffer_len()..]) {
        let attribute = attribute?;
        match attribute.kind() {
            // its data are the driver's own; only the name is of interest
            libc::IFLA_LINKINFO => {
                for info in NlasIterator::new(attribute.value()) {
                    let info = info?;
                    if info.kind() == libc::IFLA_INFO_KIND {
                        link.kind = Some(parse_string(info.value())?);
                    }
                }
            }
            IFLA_LINK_NETNSID => lower_is_elsewhere = true,
            libc::IFLA_IFNAME | libc::IFLA_ADDRESS | libc::IFLA_MTU | libc::IFLA_LINK | libc::IFLA_MASTER => {
                match LinkAttribute::parse_with_param(&attribute, header.interface_family)? {
                    LinkAttribute::IfName(name) => link.name = name,
                    LinkAttribute::Address(bytes) => link.mac = mac(&bytes),
                    LinkAttribute::Mtu(mtu) => link.mtu = mtu,
                    LinkAttribute::Link(index) => link.lower = (index != 0).then_some(Ifindex(index)),
                    LinkAttribute::Controller(index) => link.master = (index != 0).then_some(Ifindex(index)),
                    _ => {}
                }
            }
            _ => {}
        }
    }
    // for one end of a pair the attribute names the other end, which is not below it
    let pair = matches!(link.kind.as_deref(), Some("veth" | "netkit" | "vxcan"));
    if lower_is_elsewhere || pair {
        link.lower = None;
    }
    Ok(Some(link))
}

fn mac(bytes: &[u8]) -> Option<Mac> {
    bytes.try_into().ok().map(Mac)
}

fn address(frame: &Frame<'_>, family: AddressFamily) -> Result<Option<Address>, DecodeError> {
    if frame.kind != libc::RTM_NEWADDR {
        return Ok(None);
    }
    let header = AddressHeader::parse(frame.payload)?;
    // a kernel without IPv6 answers a question about IPv6 with all families it has
    if header.family != family {
        return Ok(None);
    }
    let mut flags = AddressFlags::from_bits_retain(header.flags.bits().into());
    let (mut local, mut far) = (None, None);
    for attribute in NlasIterator::new(&frame.payload[header.buffer_len()..]) {
        let attribute = attribute?;
        if matches!(attribute.kind(), libc::IFA_ADDRESS | libc::IFA_LOCAL | libc::IFA_FLAGS) {
            match AddressAttribute::parse(&attribute)? {
                AddressAttribute::Local(address) => local = Some(address),
                AddressAttribute::Address(address) => far = Some(address),
                AddressAttribute::Flags(all) => flags = all,
                _ => {}
            }
        }
    }
    // IPv6 has IFA_LOCAL only where there is a peer
    let own = local.or(far).ok_or_else(|| DecodeError::from("an address message without an address"))?;
    Ok(Some(Address {
        link: Ifindex(header.index),
        net: prefix(own, header.prefix_len)?,
        peer: far.filter(|far| *far != own),
        tentative: flags.intersects(AddressFlags::Tentative | AddressFlags::Dadfailed),
        deprecated: flags.contains(AddressFlags::Deprecated),
        secondary: flags.contains(AddressFlags::Secondary),
    }))
}

fn prefix(address: IpAddr, length: u8) -> Result<IpNet, DecodeError> {
    IpNet::new(address, length).map_err(|_| DecodeError::from(format!("no prefix: {address}/{length}")))
}

fn route(frame: &Frame<'_>, family: AddressFamily) -> Result<Option<Route>, DecodeError> {
    if frame.kind != libc::RTM_NEWROUTE {
        return Ok(None);
    }
    let header = RouteHeader::parse(frame.payload)?;
    if header.address_family != family
        || header.table != RouteHeader::RT_TABLE_MAIN
        || header.flags.contains(RouteFlags::Cloned)
    {
        return Ok(None);
    }
    let RouteFields { destination, from, hops, source, metric, mtu } = RouteFields::decode(frame, &header)?;
    Ok(Some(Route {
        // absent in a default route
        destination: prefix(destination.unwrap_or(unspecified(family)), header.destination_prefix_length)?,
        from: from.map(|from| prefix(from, header.source_prefix_length)).transpose()?,
        kind: if header.kind == RouteType::Unicast { RouteKind::Unicast } else { RouteKind::Other },
        hops,
        source,
        metric,
        mtu,
        protocol: header.protocol.into(),
        tos: header.tos,
    }))
}

fn unspecified(family: AddressFamily) -> IpAddr {
    if family == AddressFamily::Inet6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// The attributes of a route message that we use.
#[derive(Default)]
pub(super) struct RouteFields {
    pub destination: Option<IpAddr>,
    pub from: Option<IpAddr>,
    pub hops: Vec<NextHop>,
    pub source: Option<IpAddr>,
    pub metric: u32,
    pub mtu: Option<u32>,
}

impl RouteFields {
    pub(super) fn decode(frame: &Frame<'_>, header: &RouteHeader) -> Result<Self, DecodeError> {
        let mut fields = Self::default();
        let mut only = NextHop { link: None, gateway: None, onlink: header.flags.contains(RouteFlags::Onlink) };
        for attribute in NlasIterator::new(&frame.payload[header.buffer_len()..]) {
            let attribute = attribute?;
            if !matches!(
                attribute.kind(),
                libc::RTA_DST
                    | libc::RTA_SRC
                    | libc::RTA_OIF
                    | libc::RTA_GATEWAY
                    | RTA_VIA
                    | libc::RTA_PREFSRC
                    | libc::RTA_PRIORITY
                    | libc::RTA_METRICS
                    | libc::RTA_MULTIPATH
            ) {
                continue;
            }
            let context = (header.address_family, header.kind, RouteLwEnCapType::None);
            match RouteAttribute::parse_with_param(&attribute, context)? {
                RouteAttribute::Destination(destination) => fields.destination = ip(&destination),
                RouteAttribute::Source(from) => fields.from = ip(&from),
                RouteAttribute::PrefSource(source) => fields.source = ip(&source),
                RouteAttribute::Priority(metric) => fields.metric = metric,
                RouteAttribute::Metrics(metrics) => {
                    fields.mtu = metrics.iter().find_map(|metric| match metric {
                        RouteMetric::Mtu(mtu) => Some(*mtu),
                        _ => None,
                    });
                }
                RouteAttribute::MultiPath(hops) => {
                    fields.hops.extend(hops.into_iter().map(|hop| {
                        let mut way = NextHop {
                            link: Some(Ifindex(hop.interface_index)),
                            gateway: None,
                            onlink: hop.flags.contains(RouteNextHopFlags::Onlink),
                        };
                        hop.attributes.into_iter().for_each(|attribute| way.take(attribute));
                        way
                    }));
                }
                way => only.take(way),
            }
        }
        if only.link.is_some() || only.gateway.is_some() {
            fields.hops.push(only);
        }
        Ok(fields)
    }
}

impl NextHop {
    /// Takes what the attribute says about the way.
    fn take(&mut self, attribute: RouteAttribute) {
        match attribute {
            RouteAttribute::Oif(index) => self.link = Some(Ifindex(index)),
            RouteAttribute::Gateway(gateway) => self.gateway = ip(&gateway),
            RouteAttribute::Via(RouteVia::Inet(gateway)) => self.gateway = Some(gateway.into()),
            RouteAttribute::Via(RouteVia::Inet6(gateway)) => self.gateway = Some(gateway.into()),
            _ => {}
        }
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        // no address of the two families dumped here
        _ => None,
    }
}

fn neighbour(frame: &Frame<'_>, family: AddressFamily) -> Result<Option<Neighbour>, DecodeError> {
    if frame.kind != libc::RTM_NEWNEIGH {
        return Ok(None);
    }
    let header = NeighbourHeader::parse(frame.payload)?;
    if header.family != family {
        return Ok(None);
    }
    let (mut destination, mut lladdr) = (None, None);
    for attribute in NlasIterator::new(&frame.payload[header.buffer_len()..]) {
        let attribute = attribute?;
        if matches!(attribute.kind(), libc::NDA_DST | libc::NDA_LLADDR) {
            match NeighbourAttribute::parse_with_param(&attribute, family)? {
                NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => destination = Some(address.into()),
                NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => destination = Some(address.into()),
                NeighbourAttribute::LinkLayerAddress(bytes) => lladdr = mac(&bytes),
                _ => {}
            }
        }
    }
    Ok(Some(Neighbour {
        link: Ifindex(header.ifindex),
        address: destination.ok_or_else(|| DecodeError::from("a neighbour without an address"))?,
        mac: lladdr,
        state: match header.state {
            NudState::Incomplete => NeighbourState::Incomplete,
            NudState::Reachable => NeighbourState::Reachable,
            NudState::Stale => NeighbourState::Stale,
            NudState::Delay => NeighbourState::Delay,
            NudState::Probe => NeighbourState::Probe,
            NudState::Failed => NeighbourState::Failed,
            NudState::Noarp => NeighbourState::Noarp,
            NudState::Permanent => NeighbourState::Permanent,
            // an entry is in one state at a time; an unknown one is not relied on
            NudState::None | _ => NeighbourState::None,
        },
    }))
}
