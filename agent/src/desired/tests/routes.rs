//! Which routes must exist, and which are refused.

use super::*;
use crate::api::Allow;

/// The one route that the entry asks for on the lab, by the classes user and mgmt.
fn route(host: &Host, entry: RouteConfig) -> Result<OwnRoute, Reason> {
    let declared = PerFamily { v4: Some(ip("10.20.0.1")), v6: Some(ip("fe80::1")) };
    let desired = host.desire(&config([NicConfig { gateways: declared, ..mgmt() }, user()], [entry]));
    match (desired.routes.as_slice(), desired.refused.as_slice()) {
        ([route], []) => Ok(route.route.clone()),
        ([], [refusal]) => Err(refusal.reason),
        other => panic!("neither one route nor one refusal: {other:?}"),
    }
}

fn by_mgmt(destination: &str, gateway: Option<&str>, source: Option<&str>) -> OwnRoute {
    OwnRoute {
        destination: net(destination),
        link: Host::lab().index("eth1"),
        gateway: gateway.map(ip),
        source: source.map(ip),
        metric: OwnRoute::default_metric(&net(destination)),
        mtu: None,
        onlink: false,
    }
}

#[test]
fn an_entry_goes_by_its_nics_gateway_with_the_nics_address_as_source() {
    let host = Host::lab();
    let v4 = by_mgmt("172.30.0.0/16", Some("10.20.0.1"), Some("10.20.0.10"));
    let v6 = by_mgmt("fd00:30::/48", Some("fe80::1"), Some("fd00:20::10"));
    assert_eq!(route(&host, entry("172.30.0.0/16")), Ok(v4.clone()));
    assert_eq!(route(&host, entry("fd00:30::/48")), Ok(v6));
    let by_name = RouteConfig { nic: NicRef::Name("eth1".into()), ..entry("172.30.0.0/16") };
    assert_eq!(route(&host, by_name), Ok(v4));
}

#[test]
fn what_an_entry_declares_is_taken() {
    let declared = RouteConfig {
        gateway: Some(ip("10.20.0.9")),
        source: Some(ip("10.10.0.10")),
        mtu: Some(1400),
        ..entry("172.30.0.0/16")
    };
    let expected = OwnRoute { mtu: Some(1400), ..by_mgmt("172.30.0.0/16", Some("10.20.0.9"), Some("10.10.0.10")) };
    assert_eq!(route(&Host::lab(), declared), Ok(expected));
}

#[test]
fn a_nic_without_gateway_reaches_the_destination_on_link() {
    let desired = Host::lab().desire(&config([mgmt()], [entry("172.30.0.0/16")]));
    assert_eq!(desired.routes[0].route, by_mgmt("172.30.0.0/16", None, Some("10.20.0.10")));
}

#[test]
fn a_nic_that_no_class_selects_can_be_named() {
    let host = Host::lab().nic("eth2").address("eth2", "10.40.0.10/24");
    let by_name = RouteConfig { nic: NicRef::Name("eth2".into()), ..entry("172.30.0.0/16") };
    let found = route(&host, by_name).unwrap();
    assert_eq!((found.link, found.gateway, found.source), (host.index("eth2"), None, Some(ip("10.40.0.10"))));
}

#[test]
fn only_a_usable_lasting_address_is_chosen_as_source() {
    let host = Host::default()
        .nic("eth0")
        .nic("eth1")
        .address("eth1", "fe80::10/64")
        .bare_address("eth1", "fd00:20::1/64", |address| address.tentative = true)
        .bare_address("eth1", "fd00:20::2/64", |address| address.deprecated = true)
        .bare_address("eth1", "fd00:20::3/64", |address| address.secondary = true);
    let source = |host: &Host| host.desire(&config([mgmt()], [entry("fd00:30::/48")])).routes[0].route.source;
    assert_eq!(source(&host), None);
    assert_eq!(source(&host.address("eth1", "fd00:20::4/64")), Some(ip("fd00:20::4")));
}

#[test]
fn a_declared_source_must_be_a_usable_address_of_the_node() {
    let host = Host::lab().bare_address("eth1", "10.20.0.11/24", |address| address.tentative = true);
    for source in ["10.20.0.99", "10.20.0.11"] {
        let declared = RouteConfig { source: Some(ip(source)), ..entry("172.30.0.0/16") };
        assert_eq!(route(&host, declared), Err(Reason::SourceNotOnNic), "{source}");
    }
}

#[test]
fn a_gateway_that_the_nic_cannot_reach_is_refused() {
    for (destination, gateway) in [
        ("172.30.0.0/16", "10.10.0.1"),
        ("172.30.0.0/16", "192.0.2.1"),
        ("172.30.0.0/16", "10.20.0.10"),
        ("fd00:30::/48", "fd00:10::1"),
    ] {
        let declared = RouteConfig { gateway: Some(ip(gateway)), ..entry(destination) };
        assert_eq!(route(&Host::lab(), declared), Err(Reason::GatewayNotOnNic), "{gateway}");
    }
}

#[test]
fn a_gateway_may_be_reached_by_another_entry_that_is_on_link() {
    let behind = RouteConfig { gateway: Some(ip("192.0.2.1")), ..entry("172.30.0.0/16") };
    for routes in [[entry("192.0.2.0/24"), behind.clone()], [behind, entry("192.0.2.0/24")]] {
        let desired = Host::lab().desire(&config([mgmt()], routes));
        assert_eq!(refusals(&desired), []);
        assert_eq!(desired.routes.len(), 2);
    }
}

#[test]
fn a_foreign_route_with_the_same_destination_is_a_conflict_and_one_of_ours_is_not() {
    let foreign = Host::lab().route_with("eth0", "172.30.0.0/16", Some("10.10.0.1"), |route| route.metric = 700);
    assert_eq!(route(&foreign, entry("172.30.0.0/16")), Err(Reason::Conflict));
    let nested = Host::lab().route("eth0", "172.30.1.0/24", Some("10.10.0.1"));
    assert!(route(&nested, entry("172.30.0.0/16")).is_ok());
    let own = Host::lab().route_with("eth0", "172.30.0.0/16", Some("10.10.0.1"), |route| route.protocol = OWN_PROTOCOL);
    assert!(route(&own, entry("172.30.0.0/16")).is_ok());
}

#[test]
fn a_route_by_a_nic_that_is_down_waits() {
    let host = Host::lab().change("eth1", |link| link.up = false);
    assert_eq!(route(&host, entry("172.30.0.0/16")), Err(Reason::NicDown));
}

#[test]
fn an_unknown_nic_or_class_is_named() {
    for nic in [NicRef::Name("eth9".into()), NicRef::Class("gone".into())] {
        let desired =
            Host::lab().desire(&config([mgmt()], [RouteConfig { nic: nic.clone(), ..entry("172.30.0.0/16") }]));
        assert_eq!(refusals(&desired), [("172.30.0.0/16", Reason::UnknownNic)]);
        assert!(desired.refused[0].message.contains(&nic.to_string()), "{}", desired.refused[0].message);
    }
}

#[test]
fn a_class_that_selects_no_nic_here_carries_no_route() {
    let desired = Host::lab().desire(&config([class("mgmt", "eth9")], [entry("172.30.0.0/16")]));
    assert_eq!(refusals(&desired), [("mgmt", Reason::NoSuchNic), ("172.30.0.0/16", Reason::UnknownNic)]);
}

#[test]
fn destinations_that_the_host_shows_to_be_protected_need_leave() {
    // an address of the node, and a subnet of another network
    for destination in ["10.10.0.10/32", "10.10.0.0/25", "fd00:10::/65", "10.20.0.10/32"] {
        assert_eq!(route(&Host::lab(), entry(destination)), Err(Reason::ProtectedDestination), "{destination}");
        let allowed = RouteConfig { allow: [Allow::ControlPlane].into(), ..entry(destination) };
        assert!(route(&Host::lab(), allowed).is_ok(), "{destination}");
    }
    assert!(route(&Host::lab(), entry("10.20.0.128/25")).is_ok());
}

#[test]
fn what_the_operator_reserves_is_protected() {
    let reserved = Protected { cluster_ranges: vec![net("10.96.0.0/12")], ..Protected::default() };
    let desired = desire(&config([mgmt()], [entry("10.100.0.0/16")]), &Host::lab().0, &Memory::default(), &reserved);
    assert_eq!(refusals(&desired), [("10.100.0.0/16", Reason::ProtectedDestination)]);
}

#[test]
fn an_entry_that_is_refused_leaves_the_others_alone() {
    let bad = RouteConfig { nic: NicRef::Name("eth9".into()), ..entry("172.31.0.0/16") };
    let desired = Host::lab().desire(&config([mgmt()], [entry("172.30.0.0/16"), bad, entry("172.29.0.0/16")]));
    assert_eq!(desired.routes.len(), 2);
    assert_eq!(desired.refused[0].destination.as_deref(), Some("172.31.0.0/16"));
}

#[test]
fn what_the_merge_refused_stays_refused() {
    let earlier = refusal(&from("RouteEntry", "x"), None, Reason::HostBits, "m".into());
    let desired = Host::lab().desire(&NodeConfig { refused: vec![earlier.clone()], ..config([mgmt()], []) });
    assert_eq!(desired.refused, [earlier]);
}
