//! Routes of ours, and the kernel's answer to "which way?".

use std::net::IpAddr;

use rtnetlink::{
    packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE},
    packet_route::{
        AddressFamily, RouteNetlinkMessage,
        route::{
            RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteProtocol, RouteScope, RouteType,
        },
    },
};

use super::{ExchangeError, Netlink, NetlinkError, NetlinkFailure, failed, observe::RouteFields};
use crate::inventory::{Ifindex, OWN_PROTOCOL, OwnRoute, RouteVerb};

/// Whether an operation that makes something so found it so already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Changed {
    Yes,
    No,
}

/// A packet, as far as its way depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteQuery {
    pub destination: IpAddr,
    /// Of a packet that is sent here: an address of this host. None: the kernel chooses.
    pub source: Option<IpAddr>,
    /// Received by this link, to be forwarded; None is a packet that is sent here.
    pub input: Option<Ifindex>,
}

/// The way the kernel would take, after all rules and tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelChoice {
    /// The loopback device for a destination that is this host.
    pub link: Ifindex,
    /// None: the destination is directly reachable.
    pub gateway: Option<IpAddr>,
    /// The source a packet without one would get.
    pub source: Option<IpAddr>,
}

impl Netlink {
    /// Installs the route unless its destination has a route of the same metric, whoever's it is: then
    /// [`NetlinkFailure::Exists`].
    pub async fn add_route(&self, route: &OwnRoute) -> Result<(), NetlinkError> {
        let request = RouteNetlinkMessage::NewRoute(message(route));
        // without EXCL the kernel would put an IPv4 route before a foreign one and make an IPv6 one a way of it
        self.change(route, RouteVerb::Add, request, NLM_F_CREATE | NLM_F_EXCL).await
    }

    /// Puts the route in the place of the one with its destination and metric, with no moment in between; installs it if
    /// there is none.
    ///
    /// The kernel replaces the first such route **whoever's it is** and offers no condition on its protocol: for a route
    /// that was just observed to be ours.
    pub async fn replace_route(&self, route: &OwnRoute) -> Result<(), NetlinkError> {
        let request = RouteNetlinkMessage::NewRoute(message(route));
        self.change(route, RouteVerb::Replace, request, NLM_F_CREATE | NLM_F_REPLACE).await
    }

    /// Removes the route with this destination, metric, link and gateway if it is ours; never a foreign one.
    ///
    /// Among routes of ours the kernel is less exact: an IPv4 metric of 0 stands for any, and so does no gateway in IPv6.
    pub async fn delete_route(&self, route: &OwnRoute) -> Result<Changed, NetlinkError> {
        let identity = OwnRoute { source: None, mtu: None, ..route.clone() };
        let request = RouteNetlinkMessage::DelRoute(message(&identity));
        match self.change(route, RouteVerb::Delete, request, 0).await {
            Ok(()) => Ok(Changed::Yes),
            Err(error) => match error.failure() {
                NetlinkFailure::NotFound | NetlinkFailure::LinkGone => Ok(Changed::No),
                NetlinkFailure::NotPermitted
                | NetlinkFailure::Exists
                | NetlinkFailure::LinkDown
                | NetlinkFailure::GatewayUnreachable
                | NetlinkFailure::Other => Err(error),
            },
        }
    }

    async fn change(
        &self,
        route: &OwnRoute,
        verb: RouteVerb,
        request: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<(), NetlinkError> {
        let answer = self.connection.lock().await.request(request, flags, |_| Ok(None::<()>)).await;
        match answer {
            Ok(_) => Ok(()),
            Err(error) => {
                let link = self.link(route.link).await;
                let name = link.as_ref().map_or_else(|| nameless(route.link), |link| link.name.clone());
                Err(failed(route.command(verb, &name), error).seen_from(link.as_ref()))
            }
        }
    }

    /// The kernel's choice for a packet. None: it has no way or would not let it pass (unreachable, blackhole, prohibit,
    /// reverse path filter, forwarding off, a source that is not of this host).
    pub async fn route_get(&self, query: RouteQuery) -> Result<Option<KernelChoice>, NetlinkError> {
        let mut request = RouteMessage::default();
        request.header.address_family = family(query.destination);
        request.header.destination_prefix_length = bits(query.destination);
        request.attributes.push(RouteAttribute::Destination(query.destination.into()));
        if let Some(source) = query.source {
            request.header.source_prefix_length = bits(source);
            request.attributes.push(RouteAttribute::Source(source.into()));
        }
        if let Some(input) = query.input {
            request.attributes.push(RouteAttribute::Iif(input.0));
        }
        let request = RouteNetlinkMessage::GetRoute(request);
        let answer = self
            .connection
            .lock()
            .await
            .request(request, 0, |frame| {
                let header = RouteHeader::parse(frame.payload)?;
                let dropped = matches!(
                    header.kind,
                    RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit | RouteType::Throw
                );
                let fields = RouteFields::decode(frame, &header)?;
                let way = fields.hops.first().filter(|_| !dropped);
                Ok(way.and_then(|way| {
                    Some(KernelChoice { link: way.link?, gateway: way.gateway, source: fields.source })
                }))
            })
            .await;
        match answer {
            Ok(choices) => Ok(choices.into_iter().next()),
            // in this order: no route, unreachable or not forwarding, prohibit, reverse path filter, blackhole or source
            Err(ExchangeError::Refused {
                errno: libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EXDEV | libc::EINVAL,
                ..
            }) => Ok(None),
            Err(error) => Err(failed(self.get_command(query).await, error)),
        }
    }

    async fn get_command(&self, query: RouteQuery) -> String {
        let mut command = format!("ip route get {}", query.destination);
        if let Some(source) = query.source {
            command.push_str(&format!(" from {source}"));
        }
        if let Some(input) = query.input {
            let name = self.link(input).await.map_or_else(|| nameless(input), |link| link.name);
            command.push_str(&format!(" iif {name}"));
        }
        command
    }
}

/// What iproute2 takes for a link that it does not find either.
fn nameless(link: Ifindex) -> String {
    format!("if{link}")
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv6() { 128 } else { 32 }
}

fn message(route: &OwnRoute) -> RouteMessage {
    let destination = route.destination.network();
    let mut message = RouteMessage::default();
    message.header.address_family = family(destination);
    message.header.destination_prefix_length = route.destination.prefix_len();
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = RouteProtocol::from(OWN_PROTOCOL);
    message.header.kind = RouteType::Unicast;
    message.header.scope = if route.gateway.is_some() { RouteScope::Universe } else { RouteScope::Link };
    if route.onlink {
        message.header.flags |= RouteFlags::Onlink;
    }
    message.attributes.push(RouteAttribute::Destination(destination.into()));
    message.attributes.push(RouteAttribute::Oif(route.link.0));
    message.attributes.push(RouteAttribute::Priority(route.kernel_metric()));
    if let Some(gateway) = route.gateway {
        message.attributes.push(RouteAttribute::Gateway(gateway.into()));
    }
    if let Some(source) = route.source {
        message.attributes.push(RouteAttribute::PrefSource(source.into()));
    }
    if let Some(mtu) = route.mtu {
        message.attributes.push(RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu)]));
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_protocol_number_survives_the_library() {
        assert_eq!(u8::from(RouteProtocol::from(OWN_PROTOCOL)), OWN_PROTOCOL);
    }
}
