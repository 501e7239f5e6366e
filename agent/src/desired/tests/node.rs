//! The node as a whole: settings, devices nobody covers, determinism, speed.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

fn setting(family: SysctlFamily, nic: &str, name: &str) -> SysctlKey {
    SysctlKey { family, nic: nic.into(), name: name.into() }
}

#[test]
fn a_managed_nic_gets_its_settings_and_no_other_nic_any() {
    let desired = Host::lab().desire(&config([mgmt()], []));
    let expected = [
        (setting(SysctlFamily::Ipv4, "eth1", "rp_filter"), "2"),
        (setting(SysctlFamily::Ipv4, "eth1", "arp_announce"), "2"),
        (setting(SysctlFamily::Ipv4, "eth1", "arp_evict_nocarrier"), "0"),
        (setting(SysctlFamily::Ipv6, "eth1", "ndisc_evict_nocarrier"), "0"),
    ];
    assert_eq!(desired.sysctls, expected.map(|(key, value)| (key, value.to_owned())).into());
}

#[test]
fn strict_arp_makes_the_nic_answer_for_its_own_addresses_only() {
    let strict = NicConfig { strict_arp: true, ..mgmt() };
    let desired = Host::lab().desire(&config([strict, user()], []));
    let asked = |nic| desired.sysctls.get(&setting(SysctlFamily::Ipv4, nic, "arp_ignore")).map(String::as_str);
    assert_eq!((asked("eth1"), asked("eth0")), (Some("1"), None));
}

/// Devices and destinations that are reported as uncovered where only eth1 is managed.
fn uncovered(host: &Host) -> Vec<(String, String)> {
    let desired = host.desire(&config([mgmt()], []));
    desired.uncovered.into_iter().map(|item| (item.nic, item.destination.to_string())).collect()
}

fn item(nic: &str, destination: &str) -> (String, String) {
    (nic.to_owned(), destination.to_owned())
}

#[test]
fn the_device_of_a_default_route_that_no_class_selects_is_named() {
    assert_eq!(uncovered(&Host::lab()), [item("eth0", "0.0.0.0/0")]);
    let covered = Host::lab().desire(&config([mgmt(), user()], []));
    assert_eq!(covered.uncovered, []);
}

#[test]
fn each_device_is_named_once_with_its_widest_route() {
    let host = Host::default()
        .nic("eth1")
        .nic("eth2")
        .route("eth2", "172.16.0.0/12", Some("10.40.0.1"))
        .route("eth2", "172.0.0.0/8", Some("10.40.0.1"))
        .nic("eth3")
        .route("eth3", "0.0.0.0/1", None);
    assert_eq!(uncovered(&host), [item("eth3", "0.0.0.0/1"), item("eth2", "172.0.0.0/8")]);
}

#[test]
fn pod_devices_tunnels_and_own_subnets_are_no_way_around_us() {
    let kind = |kind: &'static str| move |link: &mut Link| link.kind = Some(kind.into());
    let host = Host::default()
        .nic("eth1")
        .address("eth1", "10.20.0.10/24")
        // a pod's device, as with Calico
        .link("cali1", kind("veth"))
        .route("cali1", "10.244.1.5/32", None)
        // other nodes' pods, as with flannel
        .link("flannel.1", kind("vxlan"))
        .route("flannel.1", "10.244.2.0/24", Some("10.244.2.0"))
        // pods by the node's own address on a device, as with Cilium
        .link("cilium_host", kind("veth"))
        .bare_address("cilium_host", "10.244.1.35/32", |_| {})
        .route("cilium_host", "10.244.1.0/24", Some("10.244.1.35"))
        // a NIC with nothing but its own subnet
        .nic("eth2")
        .address("eth2", "10.40.0.10/24");
    assert_eq!(uncovered(&host), []);
    let by_tunnel = host.route("flannel.1", "::/0", None);
    assert_eq!(uncovered(&by_tunnel), [item("flannel.1", "::/0")]);
}

#[test]
fn every_way_of_a_multipath_default_counts() {
    let host = Host::default().nic("eth1").nic("eth2").route_with("eth1", "0.0.0.0/0", Some("10.20.0.1"), |route| {
        route.hops.push(NextHop { link: Some(Ifindex(2)), gateway: Some(ip("10.40.0.1")), onlink: false });
    });
    assert_eq!(uncovered(&host), [item("eth2", "0.0.0.0/0")]);
}

#[test]
fn nothing_configured_asks_for_nothing() {
    let desired = Host::lab().desire(&NodeConfig::default());
    assert_eq!(Desired { uncovered: vec![], ..desired }, Desired::default());
}

/// Classes and entries that collide, fail and succeed.
fn configs() -> impl Strategy<Value = NodeConfig> {
    let gateway = prop_oneof![Just(None), Just(Some("10.20.0.1")), Just(Some("10.99.0.1")), Just(Some("10.10.0.1"))];
    let nics = proptest::collection::btree_map(
        "[a-d]",
        (
            proptest::sample::select(vec!["eth0", "eth1", "eth*", "eth9"]),
            gateway.clone(),
            proptest::option::of(Just("10.20.8.0/24")),
        ),
        0..4,
    );
    let destination = proptest::sample::select(vec![
        "172.30.0.0/16",
        "172.31.0.0/16",
        "10.99.0.0/24",
        "10.10.0.0/24",
        "192.0.2.0/24",
        "fd00:30::/48",
    ]);
    let by = prop_oneof!["[a-d]".prop_map(NicRef::Class), "eth[0-2]".prop_map(NicRef::Name)];
    let routes = proptest::collection::btree_map(destination, (by, gateway), 0..6);
    (nics, routes).prop_map(|(nics, routes)| {
        let nics = nics.into_iter().map(|(name, (nic, gateway, prefix))| NicConfig {
            gateways: PerFamily { v4: gateway.map(ip), v6: None },
            owned_prefixes: prefix.map(net).into_iter().collect(),
            ..class(&name, nic)
        });
        let routes = routes.into_iter().map(|(destination, (nic, gateway))| RouteConfig {
            nic,
            gateway: gateway.map(ip).filter(|_| net(destination).addr().is_ipv4()),
            ..entry(destination)
        });
        config(nics, routes)
    })
}

/// Without what is a list in no order of its own.
fn sorted(mut desired: Desired) -> Desired {
    desired.routes.sort_by(|a, b| (&a.route, &a.from).cmp(&(&b.route, &b.from)));
    desired.refused.sort_by(|a, b| (&a.from, &a.destination, a.reason).cmp(&(&b.from, &b.destination, b.reason)));
    // names of those who claim one thing are listed as the classes are
    for refusal in &mut desired.refused {
        refusal.message.clear();
    }
    desired
}

fn shuffled(config: NodeConfig) -> impl Strategy<Value = (NodeConfig, NodeConfig)> {
    (Just(config.nics.clone()).prop_shuffle(), Just(config.routes.clone()).prop_shuffle())
        .prop_map(move |(nics, routes)| (config.clone(), NodeConfig { nics, routes, refused: vec![] }))
}

fn with_own_routes(mut host: Host, desired: &Desired) -> Host {
    host.0.routes.extend(desired.routes.iter().map(|item| Route {
        hops: vec![NextHop { link: Some(item.route.link), gateway: item.route.gateway, onlink: item.route.onlink }],
        source: item.route.source,
        protocol: OWN_PROTOCOL,
        ..route_by(item.route.link, item.route.destination, None)
    }));
    host
}

proptest! {
    #[test]
    fn the_same_arguments_give_the_same_answer_and_the_order_of_objects_does_not_matter(
        (one, other) in configs().prop_flat_map(shuffled),
    ) {
        let host = Host::lab();
        prop_assert_eq!(host.desire(&one), host.desire(&one));
        prop_assert_eq!(sorted(host.desire(&one)), sorted(host.desire(&other)));
    }

    #[test]
    fn routes_of_ours_that_exist_already_do_not_change_what_must_hold(
        (one, other) in (configs(), configs()),
    ) {
        let host = Host::lab();
        let fresh = host.desire(&one);
        // after this configuration was applied, and after any other was
        for before in [&one, &other] {
            let host = with_own_routes(host.clone(), &host.desire(before));
            let again = host.desire(&one);
            prop_assert_eq!(Desired { uncovered: vec![], ..again }, Desired { uncovered: vec![], ..fresh.clone() });
        }
    }

    #[test]
    fn every_class_is_managed_or_refused_and_every_entry_is_a_route_or_refused_once(config in configs()) {
        let desired = Host::lab().desire(&config);
        for class in &config.nics {
            let managed = desired.nics.iter().filter(|nic| nic.class == class.class).count();
            let whole = [Reason::NoSuchNic, Reason::Ambiguous, Reason::ClaimedTwice];
            let refused = desired.refused.iter()
                .filter(|r| r.from == class.from && r.destination.is_none() && whole.contains(&r.reason)).count();
            prop_assert_eq!(managed + refused, 1, "{}", class.class);
        }
        for entry in &config.routes {
            let routes = desired.routes.iter().filter(|item| item.from == entry.from).count();
            let refused = desired.refused.iter().filter(|r| r.from == entry.from).count();
            prop_assert_eq!(routes + refused, 1, "{}", entry.destination);
        }
    }
}

#[test]
fn ten_thousand_routes_are_desired_in_a_fraction_of_a_second() {
    let limit = Duration::from_millis(if cfg!(debug_assertions) { 2000 } else { 200 });
    let gateways = [None, Some(ip("10.20.0.1")), Some(ip("10.20.0.2")), Some(ip("192.0.2.1"))];
    let entries = (0..10_000_u32).map(|i| {
        let destination = format!("{}.{}.{}.0/24", 172 + i / 4096, 16 + i / 256 % 16, i % 256);
        RouteConfig { gateway: gateways[i as usize % gateways.len()], ..entry(&destination) }
    });
    let config = config([mgmt(), user()], entries);
    let host = Host::lab();
    // as at a restart: all routes are there
    let host = with_own_routes(host.clone(), &host.desire(&config));
    let quickest = (0..3).map(|_| {
        let start = Instant::now();
        let desired = host.desire(&config);
        assert_eq!(desired.routes.len() + desired.refused.len(), 10_000);
        assert_eq!(desired.routes.len(), 7500);
        start.elapsed()
    });
    let quickest = quickest.min().unwrap();
    assert!(quickest < limit, "{quickest:?}");
}
