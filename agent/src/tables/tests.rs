//! Plain tables against the values that programs see.

use ebpf::abi::NIC_INDEX_PLACES;
use proptest::prelude::*;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn v4() -> impl Strategy<Value = IpAddr> {
    any::<u32>().prop_map(|bits| IpAddr::V4(bits.into()))
}

/// Not a mapped IPv4 address, which no table of ours holds.
fn v6() -> impl Strategy<Value = IpAddr> {
    any::<u128>().prop_map(|bits| IpAddr::V6((bits | 1 << 127).into()))
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![v4(), v6()].prop_filter("marks an empty place", |ip| !ip.is_unspecified())
}

fn network() -> impl Strategy<Value = IpNet> {
    let v4 = (v4(), 0..=32_u8);
    let v6 = (v6(), 0..=128_u8);
    prop_oneof![v4, v6].prop_map(|(ip, len)| IpNet::new(ip, len).unwrap().trunc())
}

fn nic_entry() -> impl Strategy<Value = NicEntry> {
    (
        proptest::option::of((1..u32::MAX).prop_map(Ifindex)),
        1..4096_u16,
        prop_oneof![Just(AdminState::Up), Just(AdminState::Down)],
        prop_oneof![Just(Mode::Enforce), Just(Mode::Observe)],
        prop_oneof![Just(ReplyPath::Symmetric), Just(ReplyPath::Off)],
        prop_oneof![Just(SourceGuard::Pass), Just(SourceGuard::Count), Just(SourceGuard::Drop)],
        (proptest::option::of(v4()), proptest::option::of(v6())),
    )
        .prop_map(|(lower, network, state, mode, reply_path, source_guard, (v4, v6))| NicEntry {
            link: Ifindex(0),
            lower,
            network,
            state,
            mode,
            reply_path,
            source_guard,
            gateways: PerFamily { v4, v6 },
        })
}

fn hop() -> impl Strategy<Value = Hop> {
    prop_oneof![Just(Hop::OnLink), address().prop_map(Hop::Gateway)]
}

fn table_spec() -> impl Strategy<Value = TableSpec> {
    let slot = || 0..MAX_NICS as Slot;
    // interface indexes with distinct places, so that they fit for certain
    let index = |slot: Slot, round: u32| Ifindex(slot + 1 + round * NIC_INDEX_PLACES as u32);
    let nics = proptest::collection::btree_map(slot(), (nic_entry(), 0..1000_u32), 0..=MAX_NICS);
    (
        nics,
        proptest::collection::btree_map(address(), slot(), 0..200),
        proptest::collection::btree_map(network(), slot(), 0..20),
        proptest::collection::btree_map((slot(), network()), hop(), 0..20),
    )
        .prop_map(move |(nics, owners, prefixes, hops)| TableSpec {
            nics: nics
                .into_iter()
                .map(|(slot, (nic, round))| (slot, NicEntry { link: index(slot, round), ..nic }))
                .collect(),
            owners,
            prefixes,
            hops,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_published_reads_back_the_same(spec in table_spec(), generation in any::<u64>()) {
        let tables = spec.to_tables(generation).unwrap();
        prop_assert_eq!(tables.generation, generation);
        prop_assert_eq!(tables.flags & TABLES_HAS_PREFIXES != 0, !spec.prefixes.is_empty());
        for (slot, nic) in &spec.nics {
            prop_assert_eq!(tables.slot_of(nic.link.0), Some(*slot));
            prop_assert_eq!(spec.slot_of(nic.link), Some(*slot));
        }
        let read = TableSpec::from_parts(&tables, spec.prefixes.clone(), spec.hops.clone());
        prop_assert_eq!(read, spec);
    }
}

proptest! {
    #[test]
    fn keys_of_both_tries_read_back_the_same(net in network(), slot in any::<Slot>()) {
        let (bits, bytes) = prefix_key(net);
        prop_assert_eq!(prefix_of_key(bits, bytes), Some(net));
        let (bits, key) = hop_key(slot, net);
        prop_assert_eq!(hop_of_key(bits, key), Some((slot, net)));
    }

    #[test]
    fn host_bits_do_not_change_a_key(ip in address(), len in 0..=32_u8) {
        let net = IpNet::new(ip, len).unwrap();
        prop_assert_eq!(prefix_key(net), prefix_key(net.trunc()));
    }

    #[test]
    fn next_hops_read_back_the_same(hop in hop()) {
        prop_assert_eq!(Hop::from_abi(hop.to_abi()), hop);
    }

    #[test]
    fn a_longer_prefix_has_a_longer_key_that_begins_like_it(net in network(), slot in 0..MAX_NICS as Slot) {
        let Some(above) = net.supernet() else { return Ok(()) };
        let ((bits, key), (above_bits, above_key)) = (hop_key(slot, net), hop_key(slot, above));
        prop_assert_eq!(above_bits + 1, bits);
        prop_assert_eq!(key.slot_be, above_key.slot_be);
        let differing = u128::from_be_bytes(key.addr) ^ u128::from_be_bytes(above_key.addr);
        prop_assert!(differing.leading_zeros() + 32 >= above_bits);
    }

    #[test]
    fn a_traced_hop_is_the_address_that_was_stored(gateway in address()) {
        let words = words(gateway);
        let answer = if gateway.is_ipv4() { [words[3], 0, 0, 0] } else { words };
        prop_assert_eq!(traced_hop(answer, gateway), gateway);
    }
}

#[test]
fn keys_are_the_bytes_that_programs_look_up() {
    let (bits, bytes) = prefix_key("10.20.8.0/24".parse().unwrap());
    assert_eq!((bits, bytes), (120, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 20, 8, 0]));
    let (bits, key) = hop_key(3, "fd00:20::/32".parse().unwrap());
    assert_eq!((bits, key.slot_be.to_ne_bytes(), &key.addr[..4]), (64, [0, 0, 0, 3], [0xfd, 0, 0, 0x20].as_slice()));
}

#[test]
fn a_key_that_is_not_ours_is_none() {
    assert_eq!(prefix_of_key(129, [0; 16]), None);
    assert_eq!(prefix_of_key(u32::MAX, [0; 16]), None);
    let (_, key) = hop_key(3, "10.0.0.0/8".parse().unwrap());
    assert_eq!(hop_of_key(31, key), None);
}

fn nic(link: u32) -> NicEntry {
    NicEntry {
        link: Ifindex(link),
        lower: None,
        network: 1,
        state: AdminState::Up,
        mode: Mode::Enforce,
        reply_path: ReplyPath::Symmetric,
        source_guard: SourceGuard::Pass,
        gateways: PerFamily { v4: Some(ip("10.0.0.1")), v6: None },
    }
}

#[test]
fn what_does_not_fit_is_refused_by_the_tables_name_with_its_capacity() {
    let addresses = |count: usize| (1..=count as u32).map(|bits| (IpAddr::V4(bits.into()), 0));
    let networks = |count: usize| (1..=count as u32).map(|bits| IpNet::new(IpAddr::V4(bits.into()), 32).unwrap());
    let refused = |spec: TableSpec| spec.to_tables(1).map(|_| ()).unwrap_err();
    let nics = (0..=MAX_NICS as Slot).map(|slot| (slot, nic(slot + 1))).collect();
    assert_eq!(
        refused(TableSpec { nics, ..TableSpec::default() }),
        TableFull { what: "NICs", asked: MAX_NICS + 1, capacity: MAX_NICS }
    );
    let prefixes = networks(OWNED_PREFIXES + 1).map(|net| (net, 0)).collect();
    assert_eq!(refused(TableSpec { prefixes, ..TableSpec::default() }).what, "owned prefixes");
    let hops = networks(NEXT_HOPS + 1).map(|net| ((0, net), Hop::OnLink)).collect();
    assert_eq!(refused(TableSpec { hops, ..TableSpec::default() }).what, "next hops");
    let owners = addresses(2 * OWNED_ADDRESSES + 1).collect();
    assert_eq!(
        refused(TableSpec { owners, ..TableSpec::default() }).to_string(),
        "32769 owned addresses do not fit into the programs' table of 16384"
    );
    assert!(TableSpec { owners: addresses(OWNED_ADDRESSES).collect(), ..TableSpec::default() }.to_tables(1).is_ok());
}

#[test]
fn nics_made_at_start_up_fit_beside_ones_made_long_after() {
    let fits = |links: Vec<u32>| {
        let nics = links.iter().enumerate().map(|(slot, link)| (slot as Slot, nic(*link))).collect();
        let spec = TableSpec { nics, ..TableSpec::default() };
        let tables = spec.to_tables(1).unwrap();
        for (slot, nic) in &spec.nics {
            assert_eq!(tables.slot_of(nic.link.0), Some(*slot), "{links:?}");
        }
    };
    const ROUND: u32 = NIC_INDEX_PLACES as u32;
    fits((1..=MAX_NICS as u32).collect());
    for crowd in [4, 16, 28] {
        for place in 1..=crowd {
            // one, then as many as there are probes, whose first place is another's
            fits((1..=crowd).chain([place + ROUND]).collect());
            fits((1..=crowd).chain([1, 2, 3].map(|round| place + round * ROUND)).collect());
        }
    }
}
