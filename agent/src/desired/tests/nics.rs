//! Which NICs are managed, their slots, gateways and addresses.

use ebpf::abi::MAX_NICS;
use proptest::prelude::*;

use super::*;

/// The NICs that a NicClass with these rules selects on the host.
fn selected(host: &Host, names: &[&str], macs: &[Mac], subnets: &[&str]) -> (Vec<String>, Vec<Reason>) {
    let matches = NicMatch {
        names: names.iter().map(|&name| name.to_owned()).collect(),
        macs: macs.to_vec(),
        subnets: subnets.iter().map(|subnet| net(subnet)).collect(),
    };
    let desired = host.desire(&config([class_matching("mgmt", matches)], []));
    let managed = desired.nics.iter().map(|nic| nic.name.clone()).collect();
    (managed, desired.refused.iter().map(|refusal| refusal.reason).collect())
}

fn one(name: &str) -> (Vec<String>, Vec<Reason>) {
    (vec![name.to_owned()], vec![])
}

fn none(reason: Reason) -> (Vec<String>, Vec<Reason>) {
    (vec![], vec![reason])
}

const ETH0_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
const ETH1_MAC: Mac = Mac([2, 0, 0, 0, 0, 3]);

#[test]
fn a_nic_is_selected_by_name_glob_mac_or_subnet() {
    let host = Host::lab();
    assert_eq!(selected(&host, &["eth1"], &[], &[]), one("eth1"));
    assert_eq!(selected(&host, &["ens*", "*1"], &[], &[]), one("eth1"));
    assert_eq!(selected(&host, &[], &[ETH1_MAC], &[]), one("eth1"));
    assert_eq!(selected(&host, &[], &[], &["10.20.0.0/16"]), one("eth1"));
    assert_eq!(selected(&host, &[], &[], &["10.99.0.0/24", "fd00:20::/64"]), one("eth1"));
}

#[test]
fn all_given_rules_must_hold() {
    let host = Host::lab();
    assert_eq!(selected(&host, &["eth*"], &[ETH1_MAC], &["10.20.0.0/24"]), one("eth1"));
    for (names, mac, subnet) in
        [("eth0", ETH1_MAC, "10.20.0.0/24"), ("eth1", ETH0_MAC, "10.20.0.0/24"), ("eth1", ETH1_MAC, "10.10.0.0/24")]
    {
        assert_eq!(selected(&host, &[names], &[mac], &[subnet]), none(Reason::NoSuchNic), "{names} {mac} {subnet}");
    }
}

#[test]
fn ports_of_a_bridge_or_bond_and_the_loopback_are_no_candidates_and_their_master_is() {
    for kind in ["bridge", "bond", "team", "openvswitch"] {
        let host = Host::default()
            .link("lo", |lo| lo.loopback = true)
            .link("up0", |link| link.kind = Some(kind.into()))
            .link("port0", |link| link.master = Some(Ifindex(2)));
        assert_eq!(selected(&host, &["*"], &[], &[]), one("up0"), "{kind}");
        assert_eq!(selected(&host, &["port0"], &[], &[]), none(Reason::NoSuchNic), "{kind}");
    }
}

#[test]
fn a_member_of_a_vrf_has_traffic_of_its_own() {
    let host = Host::default()
        .link("vrf0", |link| link.kind = Some("vrf".into()))
        .link("eth0", |link| link.master = Some(Ifindex(1)));
    assert_eq!(selected(&host, &["eth0"], &[], &[]), one("eth0"));
}

#[test]
fn of_several_matching_nics_none_is_managed_and_the_message_stays_short() {
    let host = Host::lab();
    assert_eq!(selected(&host, &["eth*"], &[], &[]), none(Reason::Ambiguous));
    let many = (0..1000).fold(Host::default(), |host, i| host.nic(&format!("veth{i:08}")));
    let desired = many.desire(&config([class("mgmt", "*")], []));
    assert_eq!(refusals(&desired), [("mgmt", Reason::Ambiguous)]);
    let message = &desired.refused[0].message;
    assert!(message.contains("veth00000000") && message.len() < 300, "{} bytes: {message}", message.len());
}

#[test]
fn a_nic_that_two_classes_claim_is_not_managed_and_both_are_told() {
    let desired = Host::lab().desire(&config([class("a", "eth1"), class("b", "*1"), user()], []));
    assert_eq!(names(&desired), ["eth0"]);
    assert_eq!(refusals(&desired), [("a", Reason::ClaimedTwice), ("b", Reason::ClaimedTwice)]);
}

#[test]
fn a_nic_without_ethernet_header_is_refused() {
    let host = Host::default().link("wg0", |link| {
        link.ethernet = false;
        link.mac = None;
    });
    assert_eq!(selected(&host, &["wg0"], &[], &[]), none(Reason::NotEthernet));
}

#[test]
fn one_class_that_cannot_be_met_does_not_hinder_another() {
    let desired = Host::lab().desire(&config([class("gone", "eth9"), mgmt()], []));
    assert_eq!(names(&desired), ["eth1"]);
    assert_eq!(refusals(&desired), [("gone", Reason::NoSuchNic)]);
}

/// A host with eth0 … and a class for each.
fn crowd(count: usize) -> (Host, NodeConfig) {
    let name = |i| format!("eth{i}");
    let host = (0..count).fold(Host::default(), |host, i| host.nic(&name(i)));
    (host, config((0..count).map(|i| class(&name(i), &name(i))), []))
}

#[test]
fn nics_beyond_the_limit_are_refused_and_the_others_managed() {
    let (host, config) = crowd(MAX_NICS + 2);
    let desired = host.desire(&config);
    assert_eq!(desired.nics.len(), MAX_NICS);
    let slots: BTreeSet<Slot> = desired.nics.iter().map(|nic| nic.slot).collect();
    assert_eq!(slots, (0..MAX_NICS as Slot).collect());
    assert_eq!(refusals(&desired), [("eth32", Reason::TooManyNics), ("eth33", Reason::TooManyNics)]);
}

fn memory_of(desired: &Desired) -> Memory {
    Memory { gateways: desired.gateways.clone(), slots: desired.nics.iter().map(|nic| (nic.link, nic.slot)).collect() }
}

fn slot(desired: &Desired, name: &str) -> Slot {
    desired.nics.iter().find(|nic| nic.name == name).unwrap().slot
}

#[test]
fn a_nic_keeps_its_slot_while_others_come_and_go() {
    let host = Host::lab();
    let alone = host.desire(&config([mgmt()], []));
    let both = host.desire_with(&config([mgmt(), user()], []), &memory_of(&alone));
    assert_eq!(slot(&both, "eth1"), slot(&alone, "eth1"));
    let rest = host.desire_with(&config([user()], []), &memory_of(&both));
    assert_eq!(slot(&rest, "eth0"), slot(&both, "eth0"));
}

#[test]
fn a_new_nic_takes_no_published_slot_while_others_are_free() {
    let host = Host::lab();
    let before = host.desire(&config([user()], []));
    let after = host.desire_with(&config([mgmt()], []), &memory_of(&before));
    assert_ne!(slot(&after, "eth1"), slot(&before, "eth0"));
}

#[test]
fn where_all_slots_are_published_a_new_nic_takes_that_of_one_that_went_and_of_no_other() {
    let (host, config) = crowd(MAX_NICS + 1);
    // eth0 is new, eth7 has gone, all others keep theirs
    let slots = (1..=MAX_NICS).map(|i| (host.index(&format!("eth{i}")), i as Slot - 1)).collect();
    let mut without = config;
    without.nics.retain(|nic| nic.class != "eth7");
    let desired = host.desire_with(&without, &Memory { slots, ..Memory::default() });
    assert_eq!(refusals(&desired), []);
    for i in (1..=MAX_NICS).filter(|i| *i != 7) {
        assert_eq!(slot(&desired, &format!("eth{i}")), i as Slot - 1, "eth{i}");
    }
    assert_eq!(slot(&desired, "eth0"), 6);
}

proptest! {
    #[test]
    fn slots_are_distinct_and_kept_over_any_change(
        first in proptest::sample::subsequence((0..40_usize).collect::<Vec<_>>(), 0..=MAX_NICS),
        second in proptest::sample::subsequence((0..40_usize).collect::<Vec<_>>(), 0..=MAX_NICS),
    ) {
        let (host, all) = crowd(40);
        let of = |nics: &[usize]| config(nics.iter().map(|i| all.nics[*i].clone()), []);
        let before = host.desire(&of(&first));
        let after = host.desire_with(&of(&second), &memory_of(&before));
        for desired in [&before, &after] {
            let slots: BTreeSet<Slot> = desired.nics.iter().map(|nic| nic.slot).collect();
            prop_assert_eq!(slots.len(), desired.nics.len());
            prop_assert!(slots.iter().all(|slot| (*slot as usize) < MAX_NICS));
        }
        prop_assert_eq!(after.nics.len(), second.len());
        for nic in &before.nics {
            if let Some(later) = after.nic(nic.link) {
                prop_assert_eq!(later.slot, nic.slot, "{}", nic.name);
            }
        }
        let fresh = |nic: &&ManagedNic| before.nic(nic.link).is_none();
        let published: BTreeSet<Slot> = before.nics.iter().map(|nic| nic.slot).collect();
        let taken = after.nics.iter().filter(fresh).filter(|nic| published.contains(&nic.slot)).count();
        let unpublished = MAX_NICS - published.len();
        prop_assert_eq!(taken, after.nics.iter().filter(fresh).count().saturating_sub(unpublished));
    }
}

fn gateways(host: &Host, class: NicConfig, memory: &Memory) -> PerFamily<Option<IpAddr>> {
    host.desire_with(&config([class], []), memory).nics[0].gateways
}

fn v4(gateway: &str) -> PerFamily<Option<IpAddr>> {
    PerFamily { v4: Some(ip(gateway)), v6: None }
}

#[test]
fn declared_gateways_are_taken_also_a_link_local_one() {
    let declared = PerFamily { v4: Some(ip("10.20.0.1")), v6: Some(ip("fe80::1")) };
    let class = NicConfig { gateways: declared, ..mgmt() };
    assert_eq!(gateways(&Host::lab(), class, &Memory::default()), declared);
}

#[test]
fn a_declared_gateway_wins_over_the_route_of_the_host() {
    let host = Host::lab().route("eth1", "0.0.0.0/0", Some("10.20.0.254"));
    let class = NicConfig { gateways: v4("10.20.0.1"), ..mgmt() };
    assert_eq!(gateways(&host, class, &Memory::default()), v4("10.20.0.1"));
}

#[test]
fn a_declared_gateway_that_the_nic_cannot_reach_is_refused_and_no_other_is_taken_for_it() {
    let host = Host::lab().route("eth1", "0.0.0.0/0", Some("10.20.0.254"));
    // another NIC's subnet, and the NIC's own address
    for gateway in ["10.10.0.1", "10.20.0.10"] {
        let class = NicConfig { gateways: v4(gateway), ..mgmt() };
        let desired = host.desire(&config([class], []));
        assert_eq!(desired.nics[0].gateways, PerFamily::default(), "{gateway}");
        assert_eq!(refusals(&desired), [("mgmt", Reason::GatewayNotOnNic)], "{gateway}");
    }
}

#[test]
fn a_gateway_behind_a_host_route_or_a_point_to_point_address_is_on_the_nic() {
    let by_route = Host::lab().route("eth1", "192.0.2.1/32", None);
    let by_peer = Host::lab().bare_address("eth1", "198.51.100.9/32", |address| address.peer = Some(ip("192.0.2.1")));
    for host in [by_route, by_peer] {
        let class = NicConfig { gateways: v4("192.0.2.1"), ..mgmt() };
        assert_eq!(gateways(&host, class, &Memory::default()), v4("192.0.2.1"));
    }
}

#[test]
fn a_gateway_is_learned_from_the_default_route_with_the_lowest_metric() {
    let host = Host::lab()
        .route_with("eth1", "0.0.0.0/0", Some("10.20.0.3"), |route| route.metric = 300)
        .route_with("eth1", "0.0.0.0/0", Some("10.20.0.2"), |route| route.metric = 200)
        .route("eth1", "172.16.0.0/12", Some("10.20.0.4"))
        .route("eth1", "::/0", Some("fe80::2"));
    let expected = PerFamily { v4: Some(ip("10.20.0.2")), v6: Some(ip("fe80::2")) };
    assert_eq!(gateways(&host, mgmt(), &Memory::default()), expected);
}

#[test]
fn without_a_default_route_the_widest_one_teaches_the_gateway() {
    let host =
        Host::lab().route("eth1", "172.16.0.0/16", Some("10.20.0.3")).route("eth1", "172.0.0.0/8", Some("10.20.0.2"));
    assert_eq!(gateways(&host, mgmt(), &Memory::default()), v4("10.20.0.2"));
}

#[test]
fn a_route_of_ours_or_of_another_nic_teaches_no_gateway() {
    let host = Host::lab().route_with("eth1", "0.0.0.0/0", Some("10.20.0.1"), |route| route.protocol = OWN_PROTOCOL);
    assert_eq!(gateways(&host, mgmt(), &Memory::default()), PerFamily::default());
}

#[test]
fn an_ipv6_neighbour_of_an_ipv4_route_is_no_ipv4_gateway() {
    let host = Host::lab().route("eth1", "0.0.0.0/0", Some("fe80::1"));
    assert_eq!(gateways(&host, mgmt(), &Memory::default()), PerFamily::default());
}

#[test]
fn a_learned_gateway_is_remembered_while_its_route_is_away() {
    let with = Host::lab().route("eth1", "0.0.0.0/0", Some("10.20.0.1")).route("eth1", "::/0", Some("fe80::1"));
    let memory = memory_of(&with.desire(&config([mgmt()], [])));
    let both = PerFamily { v4: Some(ip("10.20.0.1")), v6: Some(ip("fe80::1")) };
    let later = Host::lab().desire_with(&config([mgmt()], []), &memory);
    assert_eq!(later.nics[0].gateways, both);
    assert_eq!(later.gateways, memory.gateways);
    let moved = Host::lab().route("eth1", "0.0.0.0/0", Some("10.20.0.2"));
    let expected = PerFamily { v4: Some(ip("10.20.0.2")), ..both };
    assert_eq!(gateways(&moved, mgmt(), &memory), expected);
}

#[test]
fn a_gateway_is_remembered_while_its_nic_is_away_and_forgotten_for_another_subnet() {
    let with = Host::lab().route("eth1", "0.0.0.0/0", Some("10.20.0.1"));
    let memory = memory_of(&with.desire(&config([mgmt()], [])));
    let away = Host::default().nic("eth0").desire_with(&config([mgmt()], []), &memory);
    assert_eq!(away.gateways, memory.gateways);
    let renumbered = Host::default().nic("eth1").address("eth1", "10.30.0.10/24");
    assert_eq!(gateways(&renumbered, mgmt(), &memory), PerFamily::default());
}

#[test]
fn a_gateway_that_was_only_declared_is_gone_with_its_declaration() {
    let declared = NicConfig { gateways: v4("10.20.0.1"), ..mgmt() };
    let memory = memory_of(&Host::lab().desire(&config([declared], [])));
    assert_eq!(gateways(&Host::lab(), mgmt(), &memory), PerFamily::default());
}

#[test]
fn link_local_and_loopback_addresses_are_not_owned_and_secondary_ones_are() {
    let host = Host::lab()
        .address("eth1", "fe80::10/64")
        .address("eth1", "169.254.9.9/16")
        .address("eth1", "127.0.0.5/8")
        .bare_address("eth1", "10.20.0.11/24", |address| address.secondary = true)
        .bare_address("eth1", "fd00:20::11/64", |address| address.deprecated = true);
    let desired = host.desire(&config([mgmt()], []));
    let expected = ["10.20.0.10", "10.20.0.11", "fd00:20::10", "fd00:20::11"].map(ip);
    assert_eq!(desired.nics[0].addresses, expected);
    assert_eq!(desired.tables.owners.keys().copied().collect::<Vec<_>>(), expected);
}
