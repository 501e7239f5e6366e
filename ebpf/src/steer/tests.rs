//! The decision against a slow model that knows addresses, prefixes and flags only as plain values, and one row for each
//! rule.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::{boxed::Box, collections::HashMap, vec, vec::Vec};

use proptest::prelude::*;

use super::*;
use crate::{
    abi::{HOP_GATEWAY, MAX_NICS, NIC_INDEX_PLACES},
    packet::READ_LEN,
};

/// What `sourceGuard` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guard {
    Pass,
    Count,
    Drop,
}

#[derive(Debug, Clone)]
struct ModelNic {
    ifindex: u32,
    lower: u32,
    down: bool,
    observe: bool,
    reply_off: bool,
    guard: Guard,
    gateway4: Option<Ipv4Addr>,
    gateway6: Option<Ipv6Addr>,
}

/// The configuration as plain values; slots are places in `nics`.
#[derive(Debug, Clone)]
struct Model {
    nics: Vec<Option<ModelNic>>,
    owners: HashMap<IpAddr, usize>,
    prefixes: Vec<(Prefix, usize)>,
    /// None is on-link.
    hops: Vec<(usize, Prefix, Option<IpAddr>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Prefix {
    address: IpAddr,
    len: u32,
}

impl Prefix {
    fn new(address: IpAddr, len: u32) -> Self {
        let address = match address {
            IpAddr::V4(a) => Ipv4Addr::from_bits(a.to_bits() & u32::MAX.checked_shl(32 - len).unwrap_or(0)).into(),
            IpAddr::V6(a) => Ipv6Addr::from_bits(a.to_bits() & u128::MAX.checked_shl(128 - len).unwrap_or(0)).into(),
        };
        Self { address, len }
    }

    fn contains(&self, other: IpAddr) -> bool {
        self.address.is_ipv4() == other.is_ipv4() && Self::new(other, self.len) == *self
    }
}

fn longest<'a, T>(entries: impl Iterator<Item = (Prefix, &'a T)>, address: IpAddr) -> Option<&'a T> {
    entries.filter(|(net, _)| net.contains(address)).max_by_key(|(net, _)| net.len).map(|(_, value)| value)
}

fn next_hop(address: IpAddr) -> NextHop {
    let word = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().unwrap());
    match address {
        IpAddr::V4(v4) => NextHop { family: Family::V4, address: [word(&v4.octets()), 0, 0, 0] },
        IpAddr::V6(v6) => {
            let bytes = v6.octets();
            NextHop { family: Family::V6, address: [0, 4, 8, 12].map(|at| word(&bytes[at..at + 4])) }
        }
    }
}

impl Model {
    fn nic(&self, slot: usize) -> Option<&ModelNic> {
        self.nics.get(slot).and_then(Option::as_ref)
    }

    fn owner(&self, address: IpAddr) -> Option<usize> {
        let by_prefix = || longest(self.prefixes.iter().map(|(net, slot)| (*net, slot)), address).copied();
        self.owners.get(&address).copied().or_else(by_prefix)
    }

    /// Where a packet of the NIC in `slot` to `dst` goes next.
    fn hop(&self, slot: usize, dst: IpAddr) -> Option<IpAddr> {
        let of_slot = self.hops.iter().filter(|(s, ..)| *s == slot).map(|(_, net, hop)| (*net, hop));
        match longest(of_slot, dst) {
            Some(None) => Some(dst),
            Some(Some(gateway)) => Some(*gateway),
            None => {
                let nic = self.nic(slot)?;
                if dst.is_ipv4() { nic.gateway4.map(IpAddr::V4) } else { nic.gateway6.map(IpAddr::V6) }
            }
        }
    }

    fn decide(&self, here: usize, src: IpAddr, dst: IpAddr) -> Decision {
        let nic = self.nic(here).unwrap();
        let kernel = |note| Decision { fate: Fate::Pass(Verdict::Kernel), rule: Rule::Kernel, note };
        let dropped =
            |observe, reason| if observe { Fate::Observed(Observed::Drop(reason)) } else { Fate::Drop(reason) };
        let Some(slot) = self.owner(src) else {
            return match nic.guard {
                Guard::Pass => kernel(None),
                Guard::Count => kernel(Some(Note::SourceNotOwned)),
                Guard::Drop => {
                    let fate = dropped(nic.observe, DropReason::SourceGuard);
                    Decision { fate, rule: Rule::Kernel, note: None }
                }
            };
        };
        let by_owner = |fate| Decision { fate, rule: Rule::Owner, note: None };
        if slot == here {
            return by_owner(Fate::Pass(Verdict::Owned));
        }
        match self.nic(slot) {
            None => kernel(None),
            Some(owner) if owner.reply_off || owner.lower == nic.ifindex => kernel(None),
            Some(owner) if owner.down => by_owner(dropped(owner.observe || nic.observe, DropReason::NicDown)),
            Some(owner) => match self.hop(slot, dst) {
                None => kernel(Some(Note::NoNextHop)),
                Some(hop) => {
                    let to = Move { slot: slot as u32, ifindex: owner.ifindex, hop: next_hop(hop) };
                    let observe = owner.observe || nic.observe;
                    by_owner(if observe { Fate::Observed(Observed::Move(to)) } else { Fate::Move(to) })
                }
            },
        }
    }

    fn tables(&self) -> Box<Tables> {
        let mut tables = Tables::boxed();
        for (slot, nic) in self.nics.iter().enumerate().filter_map(|(slot, nic)| Some((slot, nic.as_ref()?))) {
            let mut flags = match nic.guard {
                Guard::Pass => 0,
                Guard::Count => NIC_SOURCE_COUNT,
                Guard::Drop => NIC_SOURCE_DROP,
            };
            for (set, flag) in [
                (nic.down, NIC_DOWN),
                (nic.observe, NIC_OBSERVE),
                (nic.reply_off, NIC_REPLY_OFF),
                (nic.gateway4.is_some(), NIC_HAS_GATEWAY4),
                (nic.gateway6.is_some(), NIC_HAS_GATEWAY6),
            ] {
                flags |= if set { flag } else { 0 };
            }
            let words = |gateway: Option<IpAddr>| gateway.map_or([0; 4], |gateway| next_hop(gateway).address);
            let entry = Nic {
                ifindex: nic.ifindex,
                lower_ifindex: nic.lower,
                flags,
                network: 1,
                gateway4: words(nic.gateway4.map(IpAddr::V4))[0],
                gateway6: words(nic.gateway6.map(IpAddr::V6)),
                ..Nic::default()
            };
            tables.place_nic(slot as u32, entry).unwrap();
        }
        tables.place_owners(&self.owners.iter().map(|(ip, slot)| (Addr::from_ip(*ip), *slot as u16))).unwrap();
        if !self.prefixes.is_empty() {
            tables.flags |= TABLES_HAS_PREFIXES;
        }
        tables
    }

    fn real(&self, tables: &Tables, here: usize, src: IpAddr, dst: IpAddr) -> Decision {
        let nic = tables.nic(here as u32).unwrap();
        egress([].as_slice(), tables, &Tries(self), here as u32, nic, &packet(src, dst))
    }

    /// The real decision, having compared it with the model's.
    fn decided(&self, here: usize, src: IpAddr, dst: IpAddr) -> Decision {
        let real = self.real(&self.tables(), here, src, dst);
        assert_eq!(real, self.decide(here, src, dst), "{src} → {dst}");
        real
    }
}

/// The two tries of the kernel, matching the 128 bits of an [`Addr`] one by one.
struct Tries<'a>(&'a Model);

impl Tries<'_> {
    fn matches(net: &Prefix, addr: Addr) -> Option<u32> {
        let bits = net.len + if net.address.is_ipv4() { 96 } else { 0 };
        let differing =
            u128::from_be_bytes(Addr::from_ip(net.address).to_bytes()) ^ u128::from_be_bytes(addr.to_bytes());
        (differing.leading_zeros() >= bits).then_some(bits)
    }
}

impl Lookup for Tries<'_> {
    fn prefix_owner(&self, addr: Addr) -> Option<u32> {
        let matching = self.0.prefixes.iter().filter_map(|(net, slot)| Some((Self::matches(net, addr)?, *slot)));
        matching.max_by_key(|(bits, _)| *bits).map(|(_, slot)| slot as u32)
    }

    fn next_hop(&self, slot: u32, dst: Addr) -> Option<NextHopValue> {
        let of_slot = self.0.hops.iter().filter(|(s, ..)| *s == slot as usize);
        let matching = of_slot.filter_map(|(_, net, hop)| Some((Self::matches(net, dst)?, *hop)));
        let hop = matching.max_by_key(|(bits, _)| *bits)?.1;
        Some(match hop {
            None => NextHopValue::default(),
            Some(gateway) => {
                let bytes = Addr::from_ip(gateway).to_bytes();
                let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
                NextHopValue { kind: HOP_GATEWAY, _pad: 0, gateway: [word(0), word(4), word(8), word(12)] }
            }
        })
    }
}

fn packet(src: IpAddr, dst: IpAddr) -> Packet {
    let family = if dst.is_ipv4() { Family::V4 } else { Family::V6 };
    Packet { family, src: Addr::from_ip(src), dst: Addr::from_ip(dst), protocol: 6 }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Few addresses that lie near one another, so that owners, prefixes and packets meet.
fn address(v4: bool) -> impl Strategy<Value = IpAddr> {
    (0..4_u16, 0..8_u16).prop_map(move |(net, host)| {
        if v4 { IpAddr::from([10, net as u8, 0, host as u8]) } else { IpAddr::from([0xfd00, net, 0, 0, 0, 0, 0, host]) }
    })
}

fn any_address() -> impl Strategy<Value = IpAddr> {
    any::<bool>().prop_flat_map(address)
}

fn prefix(v4: bool) -> impl Strategy<Value = Prefix> {
    let lens: &[u32] = if v4 { &[8, 16, 24, 30, 31, 32] } else { &[8, 32, 64, 126, 127, 128] };
    (address(v4), proptest::sample::select(lens)).prop_map(|(address, len)| Prefix::new(address, len))
}

/// Flags as three independent coins, biased to off.
fn model_nic(slot: usize) -> impl Strategy<Value = ModelNic> {
    let coin = || proptest::bool::weighted(0.2);
    (
        (0..2_usize, 0..MAX_NICS, coin()),
        (coin(), coin(), coin()),
        prop_oneof![Just(Guard::Pass), Just(Guard::Count), Just(Guard::Drop)],
        proptest::option::of(address(true)),
        proptest::option::of(address(false)),
    )
        .prop_map(move |((round, below, stacked), (down, observe, reply_off), guard, gateway4, gateway6)| {
            let ifindex = |slot: usize, round: usize| (slot + 2 + round * NIC_INDEX_PLACES) as u32;
            let v4 = |ip| if let IpAddr::V4(v4) = ip { Some(v4) } else { None };
            let v6 = |ip| if let IpAddr::V6(v6) = ip { Some(v6) } else { None };
            ModelNic {
                ifindex: ifindex(slot, round),
                lower: if stacked { ifindex(below % 6, 0) } else { 0 },
                down,
                observe,
                reply_off,
                guard,
                gateway4: gateway4.and_then(v4),
                gateway6: gateway6.and_then(v6),
            }
        })
}

fn model() -> impl Strategy<Value = Model> {
    const SLOTS: usize = 6;
    let nics: Vec<_> = (0..SLOTS).map(|slot| proptest::option::weighted(0.8, model_nic(slot))).collect();
    let family = any::<bool>;
    let hop = family().prop_flat_map(|v4| (0..SLOTS, prefix(v4), proptest::option::of(address(v4))));
    (
        nics,
        proptest::collection::hash_map(any_address(), 0..SLOTS, 0..24),
        proptest::collection::hash_map(family().prop_flat_map(prefix), 0..SLOTS, 0..6),
        proptest::collection::vec(hop, 0..24),
    )
        .prop_map(|(nics, owners, prefixes, hops)| {
            let hops: HashMap<_, _> = hops.into_iter().map(|(slot, net, hop)| ((slot, net), hop)).collect();
            Model {
                nics,
                owners,
                prefixes: prefixes.into_iter().collect(),
                hops: hops.into_iter().map(|((slot, net), hop)| (slot, net, hop)).collect(),
            }
        })
}

fn ends() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    any::<bool>().prop_flat_map(|v4| (address(v4), address(v4)))
}

proptest! {
    // 500 configurations with 12 packets at every NIC of each, of which there are 4.8 on average: 28 800 decisions
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn every_packet_is_decided_as_the_model_says(
        model in model(), packets in proptest::collection::vec(ends(), 12),
    ) {
        let tables = model.tables();
        for here in (0..model.nics.len()).filter(|here| model.nics[*here].is_some()) {
            for (src, dst) in &packets {
                let expected = model.decide(here, *src, *dst);
                prop_assert_eq!(model.real(&tables, here, *src, *dst), expected, "{} → {} at slot {}", src, dst, here);
            }
        }
        for (src, dst) in &packets {
            let to_node = is_to_node(&tables, &Tries(&model), &packet(*src, *dst));
            prop_assert_eq!(to_node, model.owner(*dst).is_some(), "{}", dst);
        }
    }
}

/// Both families of a row: the addresses of a client, the management NIC, its gateway, and of a peer in its subnet.
struct Ends {
    client: IpAddr,
    mgmt: IpAddr,
    gateway: IpAddr,
    peer: IpAddr,
}

fn both() -> [Ends; 2] {
    [
        Ends { client: ip("192.0.2.7"), mgmt: ip("10.20.0.10"), gateway: ip("10.20.0.1"), peer: ip("10.20.0.9") },
        Ends { client: ip("2001:db8::7"), mgmt: ip("fd00:20::10"), gateway: ip("fe80::1"), peer: ip("fd00:20::9") },
    ]
}

const USER: usize = 0;
const MGMT: usize = 1;

/// A user and a management NIC; the management NIC has a gateway and an on-link subnet in each family.
fn lab() -> Model {
    let nic = |ifindex| ModelNic {
        ifindex,
        lower: 0,
        down: false,
        observe: false,
        reply_off: false,
        guard: Guard::Pass,
        gateway4: None,
        gateway6: None,
    };
    let mgmt = ModelNic {
        gateway4: Some(Ipv4Addr::new(10, 20, 0, 1)),
        gateway6: Some(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1)),
        ..nic(3)
    };
    Model {
        nics: vec![Some(nic(2)), Some(mgmt)],
        owners: [
            (ip("10.10.0.10"), USER),
            (ip("fd00:10::10"), USER),
            (ip("10.20.0.10"), MGMT),
            (ip("fd00:20::10"), MGMT),
        ]
        .into(),
        prefixes: vec![],
        hops: vec![(MGMT, Prefix::new(ip("10.20.0.0"), 24), None), (MGMT, Prefix::new(ip("fd00:20::"), 64), None)],
    }
}

fn lab_with(change: impl FnOnce(&mut ModelNic, &mut ModelNic)) -> Model {
    let mut model = lab();
    let [Some(user), Some(mgmt)] = model.nics.as_mut_slice() else { panic!("the lab has two NICs") };
    change(user, mgmt);
    model
}

fn to_mgmt(hop: IpAddr) -> Move {
    Move { slot: MGMT as u32, ifindex: 3, hop: next_hop(hop) }
}

fn kernel(note: Option<Note>) -> Decision {
    Decision { fate: Fate::Pass(Verdict::Kernel), rule: Rule::Kernel, note }
}

fn by_owner(fate: Fate) -> Decision {
    Decision { fate, rule: Rule::Owner, note: None }
}

#[test]
fn an_owned_source_leaves_by_its_owner_through_that_nics_gateway() {
    for Ends { client, mgmt, gateway, .. } in both() {
        assert_eq!(lab().decided(USER, mgmt, client), by_owner(Fate::Move(to_mgmt(gateway))));
    }
}

#[test]
fn a_packet_at_its_owner_stays_even_where_the_reply_path_is_off_or_only_observed() {
    for Ends { client, mgmt, .. } in both() {
        let stays = by_owner(Fate::Pass(Verdict::Owned));
        assert_eq!(lab().decided(MGMT, mgmt, client), stays);
        let changed = lab_with(|_, mgmt| {
            mgmt.reply_off = true;
            mgmt.observe = true;
        });
        assert_eq!(changed.decided(MGMT, mgmt, client), stays);
    }
}

#[test]
fn an_on_link_destination_of_the_owner_is_its_own_next_hop() {
    for Ends { mgmt, peer, .. } in both() {
        assert_eq!(lab().decided(USER, mgmt, peer), by_owner(Fate::Move(to_mgmt(peer))));
    }
}

#[test]
fn the_owners_longest_route_decides_before_its_gateway() {
    for Ends { client, mgmt, peer, .. } in both() {
        let mut model = lab();
        let len = if client.is_ipv4() { 32 } else { 128 };
        model.hops.push((MGMT, Prefix::new(client, len / 2), None));
        model.hops.push((MGMT, Prefix::new(client, len), Some(peer)));
        model.hops.push((USER, Prefix::new(client, len), None));
        assert_eq!(model.decided(USER, mgmt, client), by_owner(Fate::Move(to_mgmt(peer))));
    }
}

#[test]
fn an_owner_without_a_way_to_the_destination_leaves_the_kernels_choice_and_a_note() {
    for Ends { client, mgmt, peer, .. } in both() {
        let model = lab_with(|_, mgmt| (mgmt.gateway4, mgmt.gateway6) = (None, None));
        assert_eq!(model.decided(USER, mgmt, client), kernel(Some(Note::NoNextHop)));
        assert_eq!(model.decided(USER, mgmt, peer), by_owner(Fate::Move(to_mgmt(peer))));
    }
}

#[test]
fn a_gateway_of_one_family_is_none_for_the_other() {
    let [v4, v6] = both();
    let model = lab_with(|_, mgmt| mgmt.gateway4 = None);
    assert_eq!(model.decided(USER, v4.mgmt, v4.client), kernel(Some(Note::NoNextHop)));
    assert_eq!(model.decided(USER, v6.mgmt, v6.client), by_owner(Fate::Move(to_mgmt(v6.gateway))));
}

#[test]
fn what_an_owner_that_is_down_should_send_is_dropped() {
    for Ends { client, mgmt, .. } in both() {
        let model = lab_with(|_, mgmt| mgmt.down = true);
        assert_eq!(model.decided(USER, mgmt, client), by_owner(Fate::Drop(DropReason::NicDown)));
    }
}

#[test]
fn observe_on_either_nic_does_nothing_and_says_what_would_be_done() {
    type Change = fn(&mut ModelNic, &mut ModelNic);
    let observers: [Change; 2] = [|user, _| user.observe = true, |_, mgmt| mgmt.observe = true];
    for Ends { client, mgmt, gateway, .. } in both() {
        for observer in observers {
            let moved = Observed::Move(to_mgmt(gateway));
            assert_eq!(lab_with(observer).decided(USER, mgmt, client), by_owner(Fate::Observed(moved)));
            let down = lab_with(|user, mgmt| {
                observer(user, mgmt);
                mgmt.down = true;
            });
            let dropped = Observed::Drop(DropReason::NicDown);
            assert_eq!(down.decided(USER, mgmt, client), by_owner(Fate::Observed(dropped)));
        }
    }
}

#[test]
fn a_nic_whose_reply_path_is_off_pulls_nothing_to_it() {
    for Ends { client, mgmt, .. } in both() {
        let model = lab_with(|_, mgmt| mgmt.reply_off = true);
        assert_eq!(model.decided(USER, mgmt, client), kernel(None));
    }
}

#[test]
fn the_device_below_the_owner_passes_what_the_owner_hands_down() {
    for Ends { client, mgmt, .. } in both() {
        let model = lab_with(|user, mgmt| mgmt.lower = user.ifindex);
        assert_eq!(model.decided(USER, mgmt, client), kernel(None));
    }
}

#[test]
fn an_owner_whose_slot_is_empty_leaves_the_kernels_choice() {
    for Ends { client, mgmt, .. } in both() {
        let mut model = lab();
        model.nics[MGMT] = None;
        assert_eq!(model.decided(USER, mgmt, client), kernel(None));
        for slot in [MAX_NICS, usize::from(u16::MAX)] {
            model.owners.insert(mgmt, slot);
            assert_eq!(model.decided(USER, mgmt, client), kernel(None), "slot {slot}");
        }
    }
}

#[test]
fn a_source_nobody_owns_passes_is_counted_or_dropped_as_the_nic_it_leaves_by_says() {
    for Ends { client, peer, .. } in both() {
        let guard = |guard, observe| {
            lab_with(|user, _| {
                user.guard = guard;
                user.observe = observe;
            })
            .decided(USER, peer, client)
        };
        let dropped = |fate| Decision { fate, rule: Rule::Kernel, note: None };
        let reason = DropReason::SourceGuard;
        assert_eq!(guard(Guard::Pass, false), kernel(None));
        assert_eq!(guard(Guard::Count, false), kernel(Some(Note::SourceNotOwned)));
        assert_eq!(guard(Guard::Drop, false), dropped(Fate::Drop(reason)));
        assert_eq!(guard(Guard::Drop, true), dropped(Fate::Observed(Observed::Drop(reason))));
    }
}

#[test]
fn the_source_guard_of_another_nic_does_not_matter() {
    for Ends { client, peer, .. } in both() {
        let model = lab_with(|_, mgmt| mgmt.guard = Guard::Drop);
        assert_eq!(model.decided(USER, peer, client), kernel(None));
    }
}

#[test]
fn an_owned_prefix_owns_its_sources_and_an_exact_address_in_it_wins() {
    for Ends { client, mgmt, gateway, peer } in both() {
        let len = if client.is_ipv4() { 24 } else { 64 };
        let mut model = lab();
        model.prefixes = vec![(Prefix::new(peer, len), MGMT), (Prefix::new(peer, len - 8), USER)];
        assert_eq!(model.decided(USER, peer, client), by_owner(Fate::Move(to_mgmt(gateway))));
        model.prefixes = vec![(Prefix::new(peer, len), USER)];
        assert_eq!(model.decided(USER, peer, client), by_owner(Fate::Pass(Verdict::Owned)));
        assert_eq!(model.decided(USER, mgmt, client), by_owner(Fate::Move(to_mgmt(gateway))));
    }
}

#[test]
fn prefixes_are_not_asked_where_the_tables_say_that_there_are_none() {
    for Ends { client, peer, .. } in both() {
        let mut model = lab();
        let tables = model.tables();
        model.prefixes = vec![(Prefix::new(peer, 16), MGMT)];
        assert_eq!(model.real(&tables, USER, peer, client), kernel(None));
        assert!(!is_to_node(&tables, &Tries(&model), &packet(client, peer)));
        assert!(is_to_node(&model.tables(), &Tries(&model), &packet(client, peer)));
    }
}

#[test]
fn what_rule_0_exempts_is_neither_moved_nor_guarded_not_even_if_a_nic_owns_it() {
    for (special, client) in [("169.254.9.9", "192.0.2.7"), ("fe80::9", "2001:db8::7")] {
        let (special, client) = (ip(special), ip(client));
        let mut model = lab_with(|user, _| user.guard = Guard::Drop);
        let untouched = Decision::untouched(None);
        assert_eq!(model.real(&model.tables(), USER, special, client), untouched);
        assert_eq!(model.real(&model.tables(), USER, client, special), untouched);
        model.owners.insert(special, MGMT);
        assert_eq!(model.real(&model.tables(), USER, special, client), untouched);
    }
}

#[test]
fn neighbour_discovery_from_an_owned_source_is_left_alone() {
    const ICMPV6: u8 = 58;
    const TYPE_AT: usize = READ_LEN - 1;
    let [_, Ends { mgmt, peer, .. }] = both();
    let model = lab();
    let tables = model.tables();
    let solicitation = Packet { protocol: ICMPV6, ..packet(mgmt, peer) };
    for (kind, expected) in [(135, Decision::untouched(None)), (128, by_owner(Fate::Move(to_mgmt(peer))))] {
        let mut frame = [0; READ_LEN];
        frame[TYPE_AT] = kind;
        let nic = tables.nic(USER as u32).unwrap();
        assert_eq!(egress(frame.as_slice(), &tables, &Tries(&model), USER as u32, nic, &solicitation), expected);
    }
}
