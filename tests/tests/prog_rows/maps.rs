//! What the programs read and write besides a packet: tables that change as a whole, counters, events.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::{Duration, Instant},
};

use agent::{
    api::{Mode, SourceGuard},
    hook::Direction,
    tables::{AdminState, TableSpec},
};
use ebpf::{
    abi::OWNED_ADDRESSES,
    verdict::{Counter, DropReason, Verdict},
};
use tests::packet::Frame;

use crate::{
    FAMILIES, KERNEL, OWNED, RECEIVED, V4, V6, frame, out,
    runner::{ETH0, ETH1, Row, Runner, addr, prefix},
    udp,
};

const REDIRECT: Counter = Counter::Verdict(Verdict::Redirect);

#[test]
fn no_map_is_written_on_the_owned_path_but_the_counters() {
    let runner = Runner::changed(|spec| {
        // a prefix, so that the trie is asked about what has no exact owner
        spec.prefixes = [(prefix("10.244.0.0/16"), ETH0), (prefix("fd00:244::/32"), ETH0)].into();
    });
    let before = runner.maps();
    let mut packets = 0;
    for at in FAMILIES {
        for source in [at.first, at.stranger] {
            runner.run(ETH0, Direction::Egress, &udp(source, at.client), 1000);
            runner.run(ETH0, Direction::Ingress, &udp(at.client, source), 1000);
            packets += 1000;
        }
    }
    assert_eq!(runner.maps(), before);
    let tally = runner.tally();
    assert_eq!(
        (tally.of(ETH0, Direction::Egress, OWNED), tally.of(ETH0, Direction::Ingress, RECEIVED)),
        (packets, packets)
    );
    assert_eq!(tally.packets(), 2 * packets);
}

#[test]
fn a_question_changes_no_map_whatever_its_answer_is() {
    let runner = Runner::changed(|spec| {
        let mut third = spec.nics[&ETH1].clone();
        third.link.0 += 1;
        third.state = AdminState::Down;
        let mut fourth = third.clone();
        fourth.link.0 += 1;
        fourth.mode = Mode::Observe;
        spec.nics.extend([(2, third), (3, fourth)]);
        spec.nics.get_mut(&ETH0).unwrap().source_guard = SourceGuard::Drop;
        spec.owners.extend([(addr("10.30.0.10"), 2), (addr("fd00:30::10"), 2), (addr("10.40.0.10"), 3)]);
    });
    let (maps, tally) = (runner.maps(), runner.tally());
    let drop = |reason| (Counter::Verdict(Verdict::Drop), Some(Counter::Drop(reason)));
    for (source, client, answer) in [
        (V4.first, V4.client, (OWNED, None)),
        (V6.second, V6.client, (REDIRECT, None)),
        (V4.stranger, V4.client, drop(DropReason::SourceGuard)),
        ("10.30.0.10", V4.client, drop(DropReason::NicDown)),
        ("fd00:30::10", V6.client, drop(DropReason::NicDown)),
        ("10.40.0.10", V4.client, (Counter::Verdict(Verdict::WouldDrop), Some(Counter::Drop(DropReason::NicDown)))),
        (V4.second, "224.0.0.5", (crate::UNTOUCHED, None)),
    ] {
        let told = runner.answer(ETH0, &udp(source, client));
        assert_eq!((told.verdict, told.reason), answer, "{source}");
    }
    let told = runner.answer(ETH0, &frame(V4.second, V4.client).version(5).build());
    assert_eq!((told.verdict, told.reason), (crate::UNTOUCHED, Some(crate::PARSE)));
    assert_eq!(runner.maps(), maps);
    assert_eq!(runner.tally(), tally);
}

#[test]
fn of_drops_the_first_are_events_and_of_the_others_and_of_moves_a_sample() {
    let runner = Runner::changed(|spec| spec.nics.get_mut(&ETH0).unwrap().source_guard = SourceGuard::Drop);
    let told = |source: &str, client: &str, packets| {
        runner.run(ETH0, Direction::Egress, &udp(source, client), packets);
        let events = runner.take_events();
        assert!(events.is_sorted_by_key(|event| event.time_ns));
        events.len()
    };
    // 0 to 15, 256, 512, 768
    assert_eq!(told(V4.stranger, V4.client, 1000), 19);
    // 0, 1024, 2048
    assert_eq!(told(V6.second, V6.client, 3000), 3);
    // both families are one count
    assert_eq!(told(V6.stranger, V6.client, 24), 0);
    assert_eq!(told(V6.stranger, V6.client, 1), 1);
}

#[test]
fn every_owner_of_a_full_table_is_found_and_no_other_address_is() {
    let mut spec = Runner::spec();
    let extra = |i: u32| -> IpAddr {
        match i % 2 {
            0 => Ipv4Addr::from_bits(0x0b00_0000 + i).into(),
            _ => Ipv6Addr::from_bits(0xfd00_0011_u128 << 96 | u128::from(i)).into(),
        }
    };
    let client = |address: &IpAddr| addr(if address.is_ipv4() { V4.client } else { V6.client });
    let fill = OWNED_ADDRESSES - spec.owners.len();
    spec.owners.extend((0..fill as u32).map(|i| (extra(i), i % 2)));
    assert_eq!(spec.owners.len(), OWNED_ADDRESSES);
    let runner = Runner::with(&spec);
    runner.ns().run(|| {
        for (address, slot) in &spec.owners {
            let told = runner.answer_inside(ETH0, &Frame::ip(*address, client(address)).udp(1, 2).build());
            let expected = if *slot == ETH0 { (OWNED, None) } else { (REDIRECT, Some(*slot)) };
            assert_eq!((told.verdict, told.slot), expected, "{address}");
        }
        for address in (fill as u32..fill as u32 + 2000).map(extra) {
            let told = runner.answer_inside(ETH0, &Frame::ip(address, client(&address)).udp(1, 2).build());
            assert_eq!((told.verdict, told.slot), (KERNEL, None), "{address}");
        }
    });
}

/// How long packets run while tables change.
const WHILE: Duration = Duration::from_secs(1);

/// Sources by an exact address and by a prefix, in both families, that all belong to one NIC.
const SOURCES: [(&str, &str); 4] =
    [("11.0.1.1", V4.client), ("fd00:11::1:1", V6.client), ("12.0.1.1", V4.client), ("fd00:12::1:1", V6.client)];

fn all_on(slot: u32) -> TableSpec {
    let mut spec = Runner::spec();
    for i in 0..1000 {
        spec.owners.insert(Ipv4Addr::from_bits(0x0b00_0000 + i).into(), slot);
        spec.owners.insert(Ipv6Addr::from_bits(0xfd00_0011_u128 << 96 | 0x1_0000 | u128::from(i)).into(), slot);
    }
    spec.prefixes = [(prefix("12.0.0.0/16"), slot), (prefix("fd00:12::/64"), slot)].into();
    spec
}

#[test]
fn a_packet_sees_the_old_tables_or_the_new_ones_and_never_neither() {
    let (first, second) = (all_on(ETH0), all_on(ETH1));
    let runner = Runner::with(&first);
    let frames = SOURCES.map(|(source, client)| udp(source, client));
    let mut packets = 0;
    let published = runner.while_publishing([&second, &first], |runner| {
        let start = Instant::now();
        let both =
            |runner: &Runner| [OWNED, REDIRECT].map(|counter| runner.tally().of(ETH0, Direction::Egress, counter));
        // for as long as it takes to see both on a busy machine
        while start.elapsed() < WHILE || both(runner).contains(&0) {
            for frame in &frames {
                runner.run(ETH0, Direction::Egress, frame, 2000);
                packets += 2000;
            }
            assert!(start.elapsed() < 30 * WHILE, "one of the tables was never seen: {:?}", both(runner));
        }
    });
    let tally = runner.tally();
    let [here, moved] = [OWNED, REDIRECT].map(|counter| tally.of(ETH0, Direction::Egress, counter));
    println!("{published} publications under {packets} packets: {here} owned, {moved} moved");
    assert_eq!((here + moved, tally.packets()), (packets, packets), "some saw no owner: {tally:?}");
}

#[test]
fn an_address_that_becomes_a_prefix_and_back_is_owned_all_the_time() {
    let mut exact = Runner::spec();
    exact.owners.extend([(addr("12.0.1.1"), ETH1), (addr("fd00:12::1:1"), ETH1)]);
    let mut by_prefix = Runner::spec();
    by_prefix.prefixes = [(prefix("12.0.0.0/16"), ETH1), (prefix("fd00:12::/64"), ETH1)].into();
    let runner = Runner::with(&exact);
    let mut packets = 0;
    let published = runner.while_publishing([&by_prefix, &exact], |runner| {
        let start = Instant::now();
        while start.elapsed() < WHILE {
            for (source, client) in [("12.0.1.1", V4.client), ("fd00:12::1:1", V6.client)] {
                runner.run(ETH0, Direction::Egress, &udp(source, client), 2000);
                packets += 2000;
            }
        }
    });
    let tally = runner.tally();
    println!("{published} publications under {packets} packets");
    assert!(published > 1);
    assert_eq!((tally.of(ETH0, Direction::Egress, REDIRECT), tally.packets()), (packets, packets), "{tally:?}");
}

#[test]
fn a_nic_that_appears_in_the_tables_is_managed_from_the_next_packet_on() {
    let runner = Runner::unpublished();
    runner.row(out(udp(V4.second, V4.client)));
    runner.publish(&Runner::spec());
    runner.row(out(udp(V4.second, V4.client)).moved_to(ETH1));
    runner.publish(&TableSpec::default());
    runner.row(Row::egress(ETH0, udp(V4.second, V4.client)));
}
