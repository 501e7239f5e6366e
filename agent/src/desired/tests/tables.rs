//! What the programs look up.

use std::collections::HashMap;

use ebpf::abi::Addr;
use proptest::prelude::*;

use super::*;
use crate::tables::{AdminState, Hop, hop_key};

#[test]
fn the_tables_say_of_each_nic_what_its_class_and_link_say() {
    let host = Host::lab().link("eth1.5", |link| {
        link.kind = Some("vlan".into());
        link.lower = Some(Ifindex(3));
        link.up = false;
    });
    let vlan = NicConfig {
        network: "user".into(),
        mode: Mode::Observe,
        reply_path: ReplyPath::Off,
        source_guard: SourceGuard::Drop,
        ..class("pods", "eth1.5")
    };
    let tables = host.desire(&config([user(), mgmt(), vlan], [])).tables;
    let entry = |name: &str| &tables.nics[&tables.slot_of(host.index(name)).unwrap()];
    assert_eq!(
        (entry("eth1.5").state, entry("eth1.5").mode, entry("eth1.5").reply_path, entry("eth1.5").source_guard),
        (AdminState::Down, Mode::Observe, ReplyPath::Off, SourceGuard::Drop)
    );
    assert_eq!(entry("eth1.5").lower, Some(host.index("eth1")));
    assert_eq!(entry("eth0").gateways, PerFamily { v4: Some(ip("10.10.0.1")), v6: Some(ip("fe80::1")) });
    assert_eq!((entry("eth1").state, entry("eth1").lower), (AdminState::Up, None));
    // networks are numbered from 1, and two NICs may share one
    assert_eq!(["eth0", "eth1", "eth1.5"].map(|name| entry(name).network), [2, 1, 2]);
}

#[test]
fn an_address_on_two_managed_nics_is_owned_by_nobody() {
    let shared = "192.0.2.9/32";
    let host = Host::lab().address("eth0", shared).address("eth1", shared).nic("eth2").address("eth2", shared);
    let owned = |classes: Vec<NicConfig>| {
        let tables = host.desire(&config(classes, [])).tables;
        tables.owners.get(&ip("192.0.2.9")).map(|slot| tables.nics[slot].link)
    };
    assert_eq!(owned(vec![mgmt()]), Some(host.index("eth1")));
    assert_eq!(owned(vec![mgmt(), user()]), None);
    // a third one does not make it anyone's again
    assert_eq!(owned(vec![mgmt(), user(), class("third", "eth2")]), None);
}

#[test]
fn addresses_of_nics_that_are_not_managed_are_owned_by_nobody() {
    let host = Host::lab().address("lo", "203.0.113.25/32");
    let owners = host.desire(&config([mgmt()], [])).tables.owners;
    assert_eq!(owners.into_keys().collect::<Vec<_>>(), ["10.20.0.10", "fd00:20::10"].map(ip));
}

#[test]
fn a_prefix_that_two_classes_claim_is_owned_by_nobody_and_both_are_told() {
    let claim = |class: NicConfig, prefixes: &[&str]| NicConfig {
        owned_prefixes: prefixes.iter().map(|prefix| net(prefix)).collect(),
        ..class
    };
    let desired = Host::lab().desire(&config(
        [claim(mgmt(), &["10.20.8.0/24", "10.20.9.0/24"]), claim(user(), &["10.20.8.0/24", "10.20.8.0/25"])],
        [],
    ));
    let owned: Vec<IpNet> = desired.tables.prefixes.keys().copied().collect();
    assert_eq!(owned, ["10.20.8.0/25", "10.20.9.0/24"].map(net));
    let refused: BTreeSet<_> =
        desired.refused.iter().map(|r| (r.from.name.as_str(), r.destination.as_deref(), r.reason)).collect();
    let twice = |name| (name, Some("10.20.8.0/24"), Reason::ClaimedTwice);
    assert_eq!(refused, [twice("mgmt"), twice("user")].into());
    assert_eq!(desired.refused.len(), 2);
}

#[test]
fn a_prefix_that_one_class_names_twice_is_its_own() {
    let class = NicConfig { owned_prefixes: vec![net("10.20.8.0/24"), net("10.20.8.0/24")], ..mgmt() };
    let desired = Host::lab().desire(&config([class], []));
    assert_eq!((desired.tables.prefixes.len(), refusals(&desired)), (1, vec![]));
}

/// Next hops of eth1 as text.
fn hops(host: &Host, class: NicConfig, routes: &[RouteConfig]) -> BTreeMap<String, Hop> {
    let tables = host.desire(&config([class], routes.iter().cloned())).tables;
    tables.hops.into_iter().map(|((_, net), hop)| (net.to_string(), hop)).collect()
}

fn expected(hops: &[(&str, Option<&str>)]) -> BTreeMap<String, Hop> {
    hops.iter().map(|(net, hop)| ((*net).to_owned(), hop.map_or(Hop::OnLink, |g| Hop::Gateway(ip(g))))).collect()
}

fn with_gateway() -> NicConfig {
    NicConfig { gateways: PerFamily { v4: Some(ip("10.20.0.1")), v6: None }, ..mgmt() }
}

const SUBNETS: [(&str, Option<&str>); 2] = [("10.20.0.0/24", None), ("fd00:20::/64", None)];

#[test]
fn only_what_differs_from_the_gateway_and_from_the_covering_prefix_is_stored() {
    let host = Host::lab()
        .route("eth1", "172.16.0.0/12", Some("10.20.0.1"))
        .route("eth1", "172.30.0.0/16", Some("10.20.0.2"))
        .route("eth1", "172.30.1.0/24", Some("10.20.0.2"))
        .route("eth1", "172.30.2.0/24", Some("10.20.0.1"));
    let mut stored = SUBNETS.to_vec();
    stored.extend([("172.30.0.0/16", Some("10.20.0.2")), ("172.30.2.0/24", Some("10.20.0.1"))]);
    assert_eq!(hops(&host, with_gateway(), &[]), expected(&stored));
}

#[test]
fn routes_of_entries_are_next_hops_before_they_are_in_the_kernel_and_those_of_yesterday_are_not() {
    let host =
        Host::lab().route_with("eth1", "172.29.0.0/16", Some("10.20.0.7"), |route| route.protocol = OWN_PROTOCOL);
    let wanted = RouteConfig { gateway: Some(ip("10.20.0.2")), ..entry("172.30.0.0/16") };
    let mut stored = SUBNETS.to_vec();
    stored.push(("172.30.0.0/16", Some("10.20.0.2")));
    assert_eq!(hops(&host, with_gateway(), &[wanted]), expected(&stored));
}

#[test]
fn of_two_routes_to_one_prefix_the_lower_metric_decides() {
    let host = Host::lab()
        .route_with("eth1", "172.30.0.0/16", Some("10.20.0.3"), |route| route.metric = 300)
        .route_with("eth1", "172.30.0.0/16", Some("10.20.0.2"), |route| route.metric = 200);
    assert_eq!(hops(&host, with_gateway(), &[])["172.30.0.0/16"], Hop::Gateway(ip("10.20.0.2")));
}

#[test]
fn routes_that_say_nothing_about_a_nics_packets_are_no_next_hops() {
    let host = Host::lab()
        .route("eth0", "172.29.0.0/16", Some("10.10.0.2"))
        .route("eth1", "fe80::/64", None)
        .route("eth1", "ff00::/8", None)
        .route("eth1", "169.254.0.0/16", None)
        .route_with("eth1", "172.30.0.0/16", None, |route| route.kind = RouteKind::Other)
        .route_with("eth1", "fd00:31::/48", None, |route| route.from = Some(net("fd00:20::/64")))
        // by an IPv6 neighbour, for which an IPv4 entry has no room
        .route("eth1", "172.31.0.0/16", Some("fe80::5"));
    assert_eq!(hops(&host, with_gateway(), &[]), expected(&SUBNETS));
}

/// The trie as the kernel has it: both families in one, the key's bits compared from the first one on.
struct Trie(Vec<(u32, [u8; 20], Hop)>);

impl Trie {
    fn of(hops: &BTreeMap<(Slot, IpNet), Hop>) -> Self {
        Self(
            hops.iter()
                .map(|((slot, net), hop)| (hop_key(*slot, *net), *hop))
                .map(|((bits, key), hop)| (bits, bytes(key.slot_be, key.addr), hop))
                .collect(),
        )
    }

    fn longest(&self, slot: Slot, dst: IpAddr) -> Option<Hop> {
        let key = bytes(slot.to_be(), Addr::from_ip(dst).to_bytes());
        let matching = self.0.iter().filter(|(bits, entry, _)| {
            let equal: u32 = key
                .iter()
                .zip(entry)
                .map(|(a, b)| (a ^ b).leading_zeros())
                .scan(true, |go_on, same| std::mem::replace(go_on, *go_on && same == 8).then_some(same))
                .sum();
            equal >= *bits
        });
        matching.max_by_key(|(bits, ..)| *bits).map(|(.., hop)| *hop)
    }
}

fn bytes(slot_be: u32, addr: [u8; 16]) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[..4].copy_from_slice(&slot_be.to_ne_bytes());
    bytes[4..].copy_from_slice(&addr);
    bytes
}

/// A route of eth1 or eth0, foreign or of an entry.
#[derive(Debug, Clone)]
struct Drawn {
    destination: IpNet,
    by_mgmt: bool,
    own: bool,
    metric: u32,
    gateway: Option<IpAddr>,
}

fn destination() -> impl Strategy<Value = IpNet> {
    let v4 = (0..3_u8, any::<u8>(), proptest::sample::select(vec![0, 1, 2, 12, 16, 17, 24, 25, 32]));
    let v6 = (0..3_u16, any::<u16>(), proptest::sample::select(vec![0, 1, 2, 16, 32, 47, 48, 64, 128]));
    prop_oneof![
        v4.prop_map(|(a, b, len)| IpNet::new([172, 16 + a, b & 3, b].into(), len).unwrap().trunc()),
        v6.prop_map(|(a, b, len)| {
            // one in three below the half of the address space that holds ::ffff:0:0/96
            let first = if a == 0 { 0x0064 } else { 0xfd40 };
            IpNet::new([first, a, b & 3, 0, 0, 0, 0, b].into(), len).unwrap().trunc()
        }),
    ]
}

fn gateway_of(destination: IpNet) -> impl Strategy<Value = Option<IpAddr>> {
    let v4 = destination.addr().is_ipv4();
    proptest::option::weighted(0.8, 1..4_u8).prop_map(move |n| {
        n.map(
            |n| if v4 { IpAddr::from([10, 20, 0, n]) } else { IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, u16::from(n)]) },
        )
    })
}

fn drawn() -> impl Strategy<Value = Drawn> {
    destination().prop_flat_map(|destination| {
        let coin = proptest::bool::weighted;
        (gateway_of(destination), coin(0.9), coin(0.3), 0..3_u32).prop_map(move |(gateway, by_mgmt, own, metric)| {
            Drawn { destination, by_mgmt, own, metric: 1024 + metric, gateway }
        })
    })
}

fn targets() -> impl Strategy<Value = Vec<IpAddr>> {
    let host = |net: IpNet| net.hosts().next().unwrap_or(net.addr());
    let v4 = (0..4_u8, any::<u8>()).prop_map(|(a, b)| IpAddr::from([172, 16 + a, b & 3, b]));
    let v6 = (0..4_u16, any::<u16>()).prop_map(|(a, b)| IpAddr::from([0xfd40, a, b & 3, 0, 0, 0, 0, b]));
    let anywhere = any::<u32>().prop_map(|bits| IpAddr::V4(bits.into()));
    proptest::collection::vec(prop_oneof![v4, v6, anywhere, destination().prop_map(host)], 40)
}

proptest! {
    #[test]
    fn the_reduced_table_answers_as_the_full_list_of_routes(
        routes in proptest::collection::vec(drawn(), 0..24),
        gateway4 in gateway_of(net("0.0.0.0/0")),
        gateway6 in gateway_of(net("::/0")),
        targets in targets(),
    ) {
        let mut host = Host::lab();
        let mut entries: HashMap<IpNet, RouteConfig> = HashMap::new();
        for (i, route) in routes.iter().enumerate() {
            let text = route.destination.to_string();
            if route.own {
                let allow = [crate::api::Allow::ControlPlane, crate::api::Allow::DefaultRoute].into();
                entries.insert(route.destination, RouteConfig { gateway: route.gateway, allow, ..entry(&text) });
            } else {
                let nic = if route.by_mgmt { "eth1" } else { "eth0" };
                let gateway = route.gateway.map(|gateway| gateway.to_string());
                // no two alike: of equal metrics the kernel takes the first, which is not the subject here
                let metric = route.metric * 100 + i as u32;
                host = host.route_with(nic, &text, gateway.as_deref(), |route| route.metric = metric);
            }
        }
        let class = NicConfig { gateways: PerFamily { v4: gateway4, v6: gateway6 }, ..mgmt() };
        let desired = host.desire(&config([class], entries.into_values()));
        let nic = &desired.nics[0];

        let foreign = host.0.routes.iter().filter(|route| !route.is_default()).flat_map(|route| {
            let of_link = route.hops.iter().filter(|hop| hop.link == Some(nic.link));
            of_link.map(|hop| (route.destination, route.metric, hop.gateway))
        });
        let own = desired.routes.iter().map(|item| (item.route.destination, item.route.metric, item.route.gateway));
        let full: Vec<_> = foreign.chain(own).collect();
        let gateway = |dst: IpAddr| nic.gateways.of(dst).map(Hop::Gateway);
        let trie = Trie::of(&desired.tables.hops);
        for dst in targets.into_iter().filter(|dst| !dst.is_loopback() && !dst.is_multicast()) {
            let best = full
                .iter()
                .filter(|(net, ..)| net.contains(&dst))
                .min_by_key(|(net, metric, _)| (std::cmp::Reverse(net.prefix_len()), *metric));
            let expected = best.map(|(.., gateway)| gateway.map_or(Hop::OnLink, Hop::Gateway)).or_else(|| gateway(dst));
            let found = trie.longest(nic.slot, dst).or_else(|| gateway(dst));
            prop_assert_eq!(found, expected, "{} in {:?}", dst, desired.tables.hops);
        }
        // nothing is stored that the covering entry or the gateway says too
        for ((slot, net), hop) in &desired.tables.hops {
            let covering = desired.tables.hops.iter().filter(|((s, other), _)| s == slot && other != net && other.contains(net));
            let above = covering.max_by_key(|((_, other), _)| other.prefix_len()).map(|(_, hop)| *hop);
            prop_assert_ne!(above.or_else(|| gateway(net.addr())), Some(*hop), "{} is not needed", net);
        }
    }
}
