//! RouteEntry → [`RouteConfig`]s, and the destinations that are protected on every node.

use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{Flaw, Reason, Violation, Violations, field, selector};
use crate::{
    api::{Allow, NicReference, RouteEntrySpec},
    config::{NicRef, Provenance, RouteConfig},
};

/// The routes of an entry with `spec`, one per destination.
///
/// # Errors
/// Every violation, with fields below `spec`.
pub fn route_entry(spec: &RouteEntrySpec, from: &Provenance) -> Result<Vec<RouteConfig>, Vec<Violation>> {
    let mut violations = Violations::default();
    selector::check(&mut violations, "spec.nodeSelector", spec.node_selector.as_ref());
    if spec.destinations.is_empty() {
        violations.add(
            "spec.destinations",
            "",
            Flaw::new(Reason::MissingField, "names no destination").cured_by("add one like 172.30.0.0/16"),
        );
    }
    let mut routes = Routes::default();
    let fields = RouteFields {
        base: "spec",
        destinations: spec
            .destinations
            .iter()
            .enumerate()
            .map(|(index, text)| (format!("spec.destinations[{index}]"), text.as_str()))
            .collect(),
        nic: &spec.nic,
        gateway: spec.gateway.as_deref(),
        source: spec.source.as_deref(),
        mtu: spec.mtu,
        allow: &spec.allow,
    };
    routes.add(&mut violations, &fields, from);
    let routes = routes.finish(&mut violations);
    violations.into_result(routes)
}

/// What RouteEntry and NodeRouteConfig both say of routes.
pub(super) struct RouteFields<'a> {
    /// The path that `nic`, `gateway`, `source` and `mtu` lie below.
    pub(super) base: &'a str,
    /// Path and text of each destination.
    pub(super) destinations: Vec<(String, &'a str)>,
    pub(super) nic: &'a NicReference,
    pub(super) gateway: Option<&'a str>,
    pub(super) source: Option<&'a str>,
    pub(super) mtu: Option<u32>,
    pub(super) allow: &'a BTreeSet<Allow>,
}

/// The routes of one object, gathered so that what they are together can be judged.
#[derive(Default)]
pub(super) struct Routes {
    routes: Vec<RouteConfig>,
    /// Where each destination is.
    fields: HashMap<IpNet, String>,
}

impl Routes {
    pub(super) fn add(&mut self, violations: &mut Violations, route: &RouteFields<'_>, from: &Provenance) {
        let base = route.base;
        let nic = match route.nic {
            NicReference::Class(class) => {
                violations.keep(format!("{base}.nic.class"), class, field::object_name(class)).map(NicRef::Class)
            }
            NicReference::Name(name) => {
                violations.keep(format!("{base}.nic.name"), name, field::interface_name(name)).map(NicRef::Name)
            }
        };
        let destinations = self.destinations(violations, route);
        let mut address = |name: &str, text: Option<&str>| {
            let text = text?;
            let path = format!("{base}.{name}");
            let address = violations.keep(&path, text, field::unicast_address(text))?;
            if !destinations.is_empty() && destinations.iter().all(|(_, net)| !same_family(*net, address)) {
                let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
                let flaw = Flaw::new(Reason::FamilyMismatch, format!("is {family}, and no destination is"));
                violations.add(path, text, flaw);
            }
            Some(address)
        };
        let gateway = address("gateway", route.gateway);
        let source = address("source", route.source);
        for (path, net) in &destinations {
            if let Some(flaw) = protection(*net, route.allow) {
                violations.add(path, net, flaw);
            }
            if let Some(gateway) = gateway
                && net.contains(&gateway)
                && !is_default(*net)
            {
                let flaw =
                    Flaw::new(Reason::SelfCovering, format!("is a destination that holds its own gateway {gateway}"));
                violations.add(path, net, flaw);
            }
        }
        if let Some(mtu) = route.mtu {
            let has_v6 = destinations.iter().any(|(_, net)| net.addr().is_ipv6());
            violations.keep(format!("{base}.mtu"), mtu, check_mtu(mtu, has_v6));
        }
        let Some(nic) = nic else { return };
        self.routes.extend(destinations.into_iter().map(|(_, destination)| RouteConfig {
            destination,
            nic: nic.clone(),
            gateway: gateway.filter(|gateway| same_family(destination, *gateway)),
            source: source.filter(|source| same_family(destination, *source)),
            mtu: route.mtu,
            allow: route.allow.clone(),
            from: from.clone(),
        }));
    }

    /// The destinations that parse and were not there before.
    fn destinations(&mut self, violations: &mut Violations, route: &RouteFields<'_>) -> Vec<(String, IpNet)> {
        let mut destinations = vec![];
        for (path, text) in &route.destinations {
            let Some(net) = violations.keep(path, text, field::cidr(text)) else { continue };
            if let Some(first) = self.fields.get(&net) {
                let flaw = Flaw::new(Reason::DuplicateDestination, format!("is already at {first}"))
                    .cured_by("remove one of the two");
                violations.add(path, text, flaw);
            } else {
                self.fields.insert(net, path.clone());
                destinations.push((path.clone(), net));
            }
        }
        destinations
    }

    /// The routes, once none takes the default without leave, alone or together.
    pub(super) fn finish(self, violations: &mut Violations) -> Vec<RouteConfig> {
        for route in takes_default(&self.routes) {
            let path = self.fields.get(&route.destination).cloned().unwrap_or_default();
            violations.add(path, route.destination, default_flaw(route.destination));
        }
        self.routes
    }
}

/// The routes that, without `allow: [DefaultRoute]`, cover the default of a family or a half of it, alone or as a
/// union. Their destinations are aggregated; an aggregate of at most one bit, or of all global unicast IPv6
/// (2000::/3), amounts to the default, and the routes that make it up are those inside it which no other one holds.
/// What remains is judged again, so that a route which merely lies below such a one is not taken with it.
pub fn takes_default(routes: &[RouteConfig]) -> Vec<&RouteConfig> {
    let mut open: Vec<&RouteConfig> =
        routes.iter().filter(|route| !route.allow.contains(&Allow::DefaultRoute)).collect();
    // a prefix sorts before those it holds
    open.sort_by_key(|route| route.destination);
    let mut taking = vec![];
    loop {
        let mut defaults = IpNet::aggregate(&open.iter().map(|route| route.destination).collect());
        defaults.retain(|net| is_default(*net) || net.contains(&IpNet::V6(GLOBAL_UNICAST)));
        if defaults.is_empty() {
            return taking;
        }
        let mut widest: Option<IpNet> = None;
        open.retain(|route| {
            let net = route.destination;
            if widest.is_some_and(|widest| widest != net && widest.contains(&net)) {
                return true;
            }
            widest = Some(net);
            let takes = defaults.iter().any(|default| default.contains(&net));
            if takes {
                taking.push(*route);
            }
            !takes
        });
    }
}

/// Why a route that [`takes_default`] is refused.
pub(crate) fn default_flaw(destination: IpNet) -> Flaw {
    let message = if is_default(destination) {
        "is the default route or a half of it"
    } else {
        "covers, with other destinations, the default route or a half of it"
    };
    Flaw::new(Reason::ProtectedDestination, message)
        .cured_by("name narrower destinations, or add `allow: [DefaultRoute]` if it is meant")
}

/// Whether `net` is the default route of its family or a half of it. What such a route covers besides is judged by
/// `DefaultRoute` alone: every more specific route wins over it.
pub(crate) fn is_default(net: IpNet) -> bool {
    net.prefix_len() <= 1
}

/// IPv6 has no global unicast addresses outside (RFC 4291 section 2.4, IANA's allocations).
const GLOBAL_UNICAST: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

const fn v4(a: u8, b: u8, c: u8, d: u8, length: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length))
}

const fn v6(first: u16, second: u16, last: u16, length: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(first, second, 0, 0, 0, 0, 0, last), length))
}

/// Never a destination of a route (RFC 6890).
const SPECIAL: [(IpNet, &str); 8] = [
    (v4(0, 0, 0, 0, 8), "this network"),
    (v4(127, 0, 0, 0, 8), "loopback"),
    (v4(224, 0, 0, 0, 4), "multicast"),
    (v4(255, 255, 255, 255, 32), "broadcast"),
    (v6(0, 0, 0, 128), "the unspecified address"),
    (v6(0, 0, 1, 128), "loopback"),
    (v6(0xfe80, 0, 0, 10), "link-local"),
    (v6(0xff00, 0, 0, 8), "multicast"),
];

/// Where cloud machines find their metadata, and for IPv4 more that comes from the hypervisor.
const METADATA: [(IpNet, &str); 2] = [
    (v4(169, 254, 0, 0, 16), "link-local, with the metadata address 169.254.169.254"),
    (v6(0xfd00, 0xec2, 0x254, 128), "the metadata address"),
];

/// Why `net` may not be a destination on any node, apart from the default route.
fn protection(net: IpNet, allow: &BTreeSet<Allow>) -> Option<Flaw> {
    if let Some((special, what)) = SPECIAL.iter().find(|(special, _)| special.contains(&net)) {
        let message = format!("lies in {special}, {what}");
        return Some(Flaw::new(Reason::ProtectedDestination, message).cured_by("remove it: no route may have it"));
    }
    if is_default(net) || allow.contains(&Allow::ControlPlane) {
        return None;
    }
    let (metadata, what) = METADATA.iter().find(|(metadata, _)| overlap(*metadata, net))?;
    Some(
        Flaw::new(Reason::ProtectedDestination, format!("covers {metadata}, {what}"))
            .cured_by("name narrower destinations, or add `allow: [ControlPlane]` if it is meant"),
    )
}

/// Whether one of the two holds the other.
pub(crate) fn overlap(a: IpNet, b: IpNet) -> bool {
    a.contains(&b) || b.contains(&a)
}

fn same_family(net: IpNet, address: IpAddr) -> bool {
    net.addr().is_ipv4() == address.is_ipv4()
}

/// RFC 791 and RFC 8200 section 5 say the least, the IP length fields the most.
fn check_mtu(mtu: u32, has_v6: bool) -> Result<(), Flaw> {
    let least = if has_v6 { 1280 } else { 68 };
    if (least..=65535).contains(&mtu) {
        return Ok(());
    }
    let family = if has_v6 { "for IPv6 " } else { "" };
    Err(Flaw::new(Reason::InvalidMtu, format!("is not an MTU {family}in bytes"))
        .cured_by(format!("write {least} to 65535")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(spec: Value) -> Result<Vec<RouteConfig>, Vec<Violation>> {
        let from = Provenance { kind: "RouteEntry".into(), name: "r".into(), uid: String::new(), generation: 0 };
        route_entry(&serde_json::from_value(spec).unwrap(), &from)
    }

    fn flaws(spec: Value) -> Vec<(String, Reason)> {
        parse(spec).unwrap_err().into_iter().map(|v| (v.field, v.reason)).collect()
    }

    fn to(destinations: &[&str], allow: &[&str]) -> Value {
        json!({"destinations": destinations, "nic": {"class": "mgmt"}, "allow": allow})
    }

    #[test]
    fn gateway_and_source_serve_the_destinations_of_their_family() {
        let routes = parse(json!({
            "destinations": ["172.30.0.0/16", "fd00:30::/48"],
            "nic": {"class": "mgmt"}, "gateway": "10.20.0.1", "source": "10.20.0.10", "mtu": 1400,
        }))
        .unwrap();
        assert_eq!(routes[0].gateway, Some("10.20.0.1".parse().unwrap()));
        assert_eq!(routes[0].source, Some("10.20.0.10".parse().unwrap()));
        assert_eq!((routes[1].gateway, routes[1].source, routes[1].mtu), (None, None, Some(1400)));
    }

    #[test]
    fn every_bad_field_is_found_at_once() {
        assert_eq!(
            flaws(json!({
                "destinations": ["172.30.0.1/16", "10.9.0.0/16", "10.9.0.0/16", "10.20.0.0/24"],
                "nic": {"name": "eth*"}, "gateway": "10.20.0.1", "source": "fd00::1", "mtu": 60,
            })),
            [
                ("spec.nic.name", Reason::InvalidName),
                ("spec.destinations[0]", Reason::HostBits),
                ("spec.destinations[2]", Reason::DuplicateDestination),
                ("spec.source", Reason::FamilyMismatch),
                ("spec.destinations[3]", Reason::SelfCovering),
                ("spec.mtu", Reason::InvalidMtu),
            ]
            .map(|(field, reason)| (field.to_owned(), reason))
        );
    }

    #[test]
    fn an_ipv6_destination_needs_an_mtu_of_1280() {
        let mut spec = to(&["fd00:30::/48"], &[]);
        spec["mtu"] = 1279.into();
        assert_eq!(flaws(spec.clone()), [("spec.mtu".to_owned(), Reason::InvalidMtu)]);
        spec["mtu"] = 1280.into();
        assert!(parse(spec).is_ok());
    }

    #[test]
    fn special_destinations_are_refused_whatever_is_allowed() {
        for destination in
            ["0.1.0.0/16", "127.0.0.0/8", "127.0.0.1/32", "239.0.0.0/8", "255.255.255.255/32", "::/128", "::1/128"]
                .into_iter()
                .chain(["fe80::/64", "ff05::/16"])
        {
            let found = flaws(to(&[destination], &["DefaultRoute", "ControlPlane"]));
            assert_eq!(found, [("spec.destinations[0]".to_owned(), Reason::ProtectedDestination)], "{destination}");
        }
    }

    #[test]
    fn the_metadata_address_needs_leave() {
        for destination in ["169.254.169.254/32", "169.254.0.0/16", "168.0.0.0/6", "fd00:ec2::/32"] {
            let found = flaws(to(&[destination], &["DefaultRoute"]));
            assert_eq!(found, [("spec.destinations[0]".to_owned(), Reason::ProtectedDestination)], "{destination}");
            assert!(parse(to(&[destination], &["ControlPlane"])).is_ok(), "{destination}");
        }
    }

    #[test]
    fn the_default_its_halves_and_unions_that_amount_to_them_need_leave() {
        for (destinations, taking) in [
            (vec!["0.0.0.0/0"], vec![0]),
            (vec!["::/0"], vec![0]),
            (vec!["128.0.0.0/1", "10.9.0.0/16"], vec![0]),
            (vec!["8000::/1"], vec![0]),
            (vec!["0.0.0.0/2", "10.9.0.0/16", "64.0.0.0/2"], vec![0, 2]),
            (vec!["0.0.0.0/0", "0.0.0.0/1", "172.30.0.0/16"], vec![0, 1]),
            (vec!["2000::/4", "3000::/4"], vec![0, 1]),
        ] {
            let expected: Vec<_> =
                taking.iter().map(|i| (format!("spec.destinations[{i}]"), Reason::ProtectedDestination)).collect();
            assert_eq!(flaws(to(&destinations, &["ControlPlane"])), expected, "{destinations:?}");
            assert!(parse(to(&destinations, &["DefaultRoute", "ControlPlane"])).is_ok(), "{destinations:?}");
        }
        for destinations in [vec!["0.0.0.0/2"], vec!["64.0.0.0/2", "192.0.0.0/2"], vec!["2000::/4"]] {
            assert!(parse(to(&destinations, &["ControlPlane"])).is_ok(), "{destinations:?}");
        }
    }

    #[test]
    fn a_default_route_that_is_meant_may_hold_its_gateway() {
        let mut spec = to(&["0.0.0.0/0"], &["DefaultRoute"]);
        spec["gateway"] = "10.20.0.1".into();
        assert!(parse(spec).is_ok());
    }
}
