//! The programs by BPF_PROG_TEST_RUN, row by row: packet in → verdict, packet out, and *all* counters, so that an effect
//! nobody planned fails.

mod prog_support;

use std::net::IpAddr;

use agent::{
    api::{Mode, ReplyPath, SourceGuard},
    hook::Direction,
    tables::{AdminState, Hop, TableSpec},
};
use ebpf::verdict::{Counter, DropReason, Note, Verdict};
use prog_support::{Bench, DROP, ETH0, ETH1, NEXT, Row, addr, prefix};
use tests::packet::Frame;

const V4: [&str; 3] = ["10.10.0.10", "10.20.0.10", "100.64.0.5"];
const V6: [&str; 3] = ["fd00:10::10", "fd00:20::10", "2001:db8:100::5"];

fn verdict(verdict: Verdict) -> Counter {
    Counter::Verdict(verdict)
}

fn udp(source: &str, destination: &str) -> Vec<u8> {
    Frame::ip(addr(source), addr(destination)).udp(80, 40000).payload(b"answer").build()
}

/// Leaves by eth0.
fn out(frame: Vec<u8>) -> Row {
    Row::new(ETH0, Direction::Egress, frame)
}

#[test]
fn a_source_that_the_nic_owns_passes_and_one_of_the_other_nic_is_moved() {
    let bench = Bench::new();
    for [first, second, client] in [V4, V6] {
        bench.row(out(udp(first, client)).passes(NEXT, &[verdict(Verdict::Owned)]));
        bench.row(out(udp(second, client)).moved_to(ETH1));
        bench.row(Row::new(ETH1, Direction::Egress, udp(second, client)).passes(NEXT, &[verdict(Verdict::Owned)]));
        bench.row(Row::new(ETH1, Direction::Egress, udp(first, client)).moved_to(ETH0));
    }
}

#[test]
fn every_protocol_number_with_an_owned_source_is_moved() {
    let bench = Bench::new();
    for [_, second, client] in [V4, V6] {
        // an ICMPv6 type byte of 0 is no neighbour discovery
        for protocol in 0..=255 {
            let frame = Frame::ip(addr(second), addr(client)).protocol(protocol).payload(&[0; 32]).build();
            bench.row(out(frame).moved_to(ETH1));
        }
    }
}

#[test]
fn fragments_options_and_extension_headers_follow_their_source() {
    let bench = Bench::new();
    for [_, second, client] in [V4, V6] {
        let large = Frame::ip(addr(second), addr(client)).udp(80, 40000).identification(7).payload(&[0x5a; 4000]);
        for fragment in large.fragments(1400) {
            bench.row(out(fragment).moved_to(ETH1));
        }
    }
    let v4 = Frame::ip(addr(V4[1]), addr(V4[2])).options(&[1; 40]).udp(1, 2).build();
    bench.row(out(v4).moved_to(ETH1));
    for extension in [0, 43, 60] {
        let v6 = Frame::ip(addr(V6[1]), addr(V6[2])).extension(extension).udp(1, 2).build();
        bench.row(out(v6).moved_to(ETH1));
    }
}

#[test]
fn rule_0_leaves_packets_alone_that_would_be_moved_otherwise() {
    let bench = Bench::new();
    let untouched = [verdict(Verdict::Untouched)];
    for special in ["224.0.0.5", "239.1.2.3", "255.255.255.255", "169.254.169.254", "127.0.0.1", "0.0.0.0"] {
        bench.row(out(udp(V4[1], special)).passes(NEXT, &untouched));
        bench.row(out(udp(special, V4[2])).passes(NEXT, &untouched));
    }
    for special in ["ff02::1", "fe80::1", "::1", "::"] {
        bench.row(out(udp(V6[1], special)).passes(NEXT, &untouched));
        bench.row(out(udp(special, V6[2])).passes(NEXT, &untouched));
    }
    for kind in (130..=137).chain([143]) {
        let frame = Frame::ip(addr(V6[1]), addr(V6[2])).icmp(kind, 0, [0; 4]).build();
        bench.row(out(frame).passes(NEXT, &untouched));
    }
    let echo = Frame::ip(addr(V6[1]), addr(V6[2])).icmp(129, 0, [0; 4]).build();
    bench.row(out(echo).moved_to(ETH1));
    let IpAddr::V4(sender) = addr(V4[1]) else { panic!("IPv4") };
    let IpAddr::V4(target) = addr(V4[2]) else { panic!("IPv4") };
    for frame in [Frame::arp_request(sender, target).build(), Frame::arp_reply(sender, target).build()] {
        bench.row(out(frame).passes(NEXT, &untouched));
    }
    bench.row(out(Frame::ether(0x88cc, &[0; 50]).build()).passes(NEXT, &untouched));
}

#[test]
fn tagged_frames_are_left_alone() {
    let bench = Bench::new();
    for [_, second, client] in [V4, V6] {
        let inner = Frame::ip(addr(second), addr(client)).udp(1, 2);
        for frame in [inner.clone().vlan(101).build(), inner.clone().tag(0x88a8, 5).vlan(101).build()] {
            bench.row(out(frame).passes(NEXT, &[verdict(Verdict::Untouched)]));
        }
    }
}

#[test]
fn what_cannot_be_read_passes_and_is_counted() {
    let bench = Bench::new();
    let unreadable = [verdict(Verdict::Untouched), Counter::Note(Note::Parse)];
    for ([_, second, client], header) in [(V4, 20), (V6, 40)] {
        // the kernel refuses to run a program on less than an IP header; the parser's own tests have these
        let whole = udp(second, client);
        for length in 14 + header..whole.len() {
            bench.row(out(whole[..length].to_vec()).moved_to(ETH1));
        }
        for version in [0, 5, 15] {
            let lying = Frame::ip(addr(second), addr(client)).udp(1, 2).version(version).build();
            bench.row(out(lying).passes(NEXT, &unreadable));
        }
    }
    for words in 0..5 {
        let lying = Frame::ip(addr(V4[1]), addr(V4[2])).udp(1, 2).ihl(words).build();
        bench.row(out(lying).passes(NEXT, &unreadable));
    }
}

#[test]
fn arrivals_are_received_and_counted_whatever_they_are() {
    let bench = Bench::new();
    let arrives = |frame| Row::new(ETH1, Direction::Ingress, frame);
    for [first, second, client] in [V4, V6] {
        for destination in [first, second, client] {
            bench.row(arrives(udp(client, destination)).passes(NEXT, &[verdict(Verdict::Received)]));
        }
        let lying = Frame::ip(addr(client), addr(second)).udp(1, 2).version(5).build();
        bench.row(arrives(lying).passes(NEXT, &[verdict(Verdict::Untouched), Counter::Note(Note::Parse)]));
    }
    bench.row(arrives(Frame::ether(0x88cc, &[0; 50]).build()).passes(NEXT, &[verdict(Verdict::Untouched)]));
}

#[test]
fn owned_prefixes_count_as_owned_and_the_more_exact_one_wins() {
    let mut spec = Bench::spec();
    spec.prefixes = [
        (prefix("10.244.0.0/16"), ETH1),
        (prefix("10.244.7.0/24"), ETH0),
        (prefix("fd00:244::/32"), ETH1),
        (prefix("fd00:244:7::/48"), ETH0),
        // an exact address is asked first
        (prefix("10.10.0.0/24"), ETH1),
    ]
    .into();
    let bench = Bench::with(&spec);
    for (source, client, owner) in [
        ("10.244.1.1", V4[2], ETH1),
        ("10.244.7.1", V4[2], ETH0),
        ("fd00:244:1::1", V6[2], ETH1),
        ("fd00:244:7::1", V6[2], ETH0),
        (V4[0], V4[2], ETH0),
        ("10.10.0.11", V4[2], ETH1),
    ] {
        let row = out(udp(source, client));
        bench.row(if owner == ETH0 { row.passes(NEXT, &[verdict(Verdict::Owned)]) } else { row.moved_to(ETH1) });
    }
    bench.row(out(udp("10.245.0.1", V4[2])).passes(NEXT, &[verdict(Verdict::Kernel)]));
}

#[test]
fn a_source_that_nobody_owns_is_passed_counted_or_dropped_as_the_class_says() {
    for (guard, code, counters) in [
        (SourceGuard::Pass, NEXT, vec![verdict(Verdict::Kernel)]),
        (SourceGuard::Count, NEXT, vec![verdict(Verdict::Kernel), Counter::Note(Note::SourceNotOwned)]),
        (SourceGuard::Drop, DROP, vec![verdict(Verdict::Drop), Counter::Drop(DropReason::SourceGuard)]),
    ] {
        let bench = Bench::with(&changed(|spec| nic(spec, ETH0).source_guard = guard));
        for (source, client) in [("10.244.0.2", V4[2]), ("fd00:244::2", V6[2])] {
            bench.row(out(udp(source, client)).passes(code, &counters));
        }
    }
}

#[test]
fn observe_on_either_nic_counts_what_would_be_done_and_does_nothing() {
    for observing in [ETH0, ETH1] {
        let bench = Bench::with(&changed(|spec| nic(spec, observing).mode = Mode::Observe));
        for [_, second, client] in [V4, V6] {
            bench.row(out(udp(second, client)).passes(NEXT, &[verdict(Verdict::WouldRedirect)]));
        }
    }
    let bench = Bench::with(&changed(|spec| {
        nic(spec, ETH0).mode = Mode::Observe;
        nic(spec, ETH0).source_guard = SourceGuard::Drop;
        nic(spec, ETH1).state = AdminState::Down;
    }));
    for (source, client) in [("10.244.0.2", V4[2]), (V4[1], V4[2]), (V6[1], V6[2])] {
        bench.row(out(udp(source, client)).passes(NEXT, &[verdict(Verdict::WouldDrop)]));
    }
}

#[test]
fn an_owner_that_is_down_drops_one_that_is_off_or_without_gateway_does_not() {
    let down = Bench::with(&changed(|spec| nic(spec, ETH1).state = AdminState::Down));
    let off = Bench::with(&changed(|spec| nic(spec, ETH1).reply_path = ReplyPath::Off));
    let blind = Bench::with(&changed(|spec| nic(spec, ETH1).gateways = agent::config::PerFamily::default()));
    let below = Bench::with(&changed(|spec| {
        let here = nic(spec, ETH0).link;
        nic(spec, ETH1).lower = Some(here);
    }));
    for [_, second, client] in [V4, V6] {
        let frame = udp(second, client);
        let dropped = [verdict(Verdict::Drop), Counter::Drop(DropReason::NicDown)];
        down.row(out(frame.clone()).passes(DROP, &dropped));
        off.row(out(frame.clone()).passes(NEXT, &[verdict(Verdict::Kernel)]));
        blind.row(out(frame.clone()).passes(NEXT, &[verdict(Verdict::Kernel), Counter::Note(Note::NoNextHop)]));
        below.row(out(frame).passes(NEXT, &[verdict(Verdict::Kernel)]));
    }
}

#[test]
fn the_next_hop_is_the_destination_a_route_or_the_gateway() {
    let mut spec = Bench::spec();
    spec.hops = [
        ((ETH1, prefix("10.20.0.0/24")), Hop::OnLink),
        ((ETH1, prefix("172.30.0.0/16")), Hop::Gateway(addr("10.20.0.7"))),
        ((ETH1, prefix("fd00:20::/64")), Hop::OnLink),
        ((ETH1, prefix("fd00:30::/48")), Hop::Gateway(addr("fe80::7"))),
        // another NIC's hops are not ours
        ((ETH0, prefix("0.0.0.0/0")), Hop::OnLink),
    ]
    .into();
    let bench = Bench::with(&spec);
    for (source, destination, hop) in [
        (V4[1], "10.20.0.99", "10.20.0.99"),
        (V4[1], "172.30.1.1", "10.20.0.7"),
        (V4[1], V4[2], "10.20.0.1"),
        (V6[1], "fd00:20::99", "fd00:20::99"),
        (V6[1], "fd00:30::1", "fe80::7"),
        (V6[1], V6[2], "fd00:20::1"),
    ] {
        let frame = udp(source, destination);
        bench.row(out(frame.clone()).moved_to(ETH1));
        assert_eq!(bench.hop(ETH0, &frame), addr(hop), "{source} to {destination}");
    }
}

#[test]
fn a_switched_off_program_passes_what_it_would_move_or_drop_and_goes_on_when_switched_on() {
    let bench = Bench::with(&changed(|spec| nic(spec, ETH0).source_guard = SourceGuard::Drop));
    bench.switch(true);
    for [_, second, client] in [V4, V6] {
        bench.row(out(udp(second, client)).passes(NEXT, &[verdict(Verdict::Untouched)]));
    }
    bench.row(out(udp("10.244.0.2", V4[2])).passes(NEXT, &[verdict(Verdict::Untouched)]));
    bench.switch(false);
    bench.row(out(udp(V4[1], V4[2])).moved_to(ETH1));
}

#[test]
fn without_tables_or_on_a_nic_they_do_not_know_nothing_is_counted() {
    let bench = Bench::with(&TableSpec::default());
    for direction in Direction::ALL {
        bench.row(Row::new(ETH0, direction, udp(V4[1], V4[2])).passes(NEXT, &[]));
    }
    let mut spec = Bench::spec();
    spec.nics.remove(&ETH0);
    let bench = Bench::with(&spec);
    bench.row(out(udp(V4[1], V4[2])).passes(NEXT, &[]));
}

#[test]
fn a_question_is_answered_like_the_packet_itself_and_changes_no_counter() {
    let bench = Bench::new();
    for [first, second, client] in [V4, V6] {
        for source in [first, second] {
            bench.row(Row::new(ETH0, Direction::Egress, udp(source, client)).asked());
        }
    }
}

#[test]
fn the_first_move_and_the_first_drops_are_events_with_their_facts() {
    let bench = Bench::with(&changed(|spec| nic(spec, ETH0).source_guard = SourceGuard::Drop));
    let mut events = bench.events();
    bench.row(out(udp(V4[1], V4[2])).moved_to(ETH1));
    let moved = events.next().expect("an event").unwrap();
    assert_eq!((moved.src.to_ip(), moved.dst.to_ip()), (addr(V4[1]), addr(V4[2])));
    assert_eq!((moved.ifindex, moved.to_ifindex), (bench.link(ETH0).0, bench.link(ETH1).0));
    assert_eq!(Counter::from_index(moved.verdict), Some(verdict(Verdict::Redirect)));
    let dropped = [verdict(Verdict::Drop), Counter::Drop(DropReason::SourceGuard)];
    bench.row(out(udp("fd00:244::2", V6[2])).passes(DROP, &dropped));
    let event = events.next().expect("an event").unwrap();
    assert_eq!(Counter::from_index(event.reason), Some(Counter::Drop(DropReason::SourceGuard)));
    assert_eq!(event.protocol, 17);
    assert!(events.next().is_none());
}

#[test]
fn no_map_is_written_on_the_owned_path_but_the_counters() {
    let bench = Bench::new();
    let before = bench.maps_but_counters();
    for [first, second, client] in [V4, V6] {
        for (nic, direction, frame) in [
            (ETH0, Direction::Egress, udp(first, client)),
            (ETH0, Direction::Egress, udp(second, client)),
            (ETH1, Direction::Ingress, udp(client, second)),
        ] {
            bench.repeat(nic, direction, &frame, 1000);
        }
    }
    assert_eq!(bench.maps_but_counters(), before);
    assert_eq!(bench.total(), 6000);
}

#[test]
fn every_owner_of_a_full_table_is_found() {
    let mut spec = Bench::spec();
    for i in spec.owners.len() as u32..ebpf::abi::OWNED_ADDRESSES as u32 {
        spec.owners.insert(std::net::Ipv4Addr::from_bits(0x0b00_0000 + i).into(), ETH1);
    }
    let bench = Bench::with(&spec);
    for (address, slot) in spec.owners.iter().step_by(7) {
        let client = if address.is_ipv4() { V4[2] } else { V6[2] };
        let moved = bench.slot(ETH0, &Frame::ip(*address, addr(client)).udp(1, 2).build());
        assert_eq!(moved, (*slot != ETH0).then_some(*slot), "{address}");
    }
}

#[test]
fn tables_change_as_a_whole_under_packets() {
    let bench = Bench::new();
    let addresses: Vec<IpAddr> = (0..500).map(|i| std::net::Ipv4Addr::from_bits(0x0b00_0000 + i).into()).collect();
    let all_on = |slot| {
        let mut spec = Bench::spec();
        spec.owners.extend(addresses.iter().map(|address| (*address, slot)));
        spec
    };
    let (first, second) = (all_on(ETH0), all_on(ETH1));
    bench.publish(&first);
    let frame = Frame::ip(addresses[250], addr(V4[2])).udp(1, 2).build();
    bench.while_publishing([&first, &second], || {
        let (mut here, mut moved) = (0, 0);
        while here < 200 || moved < 200 {
            match bench.answer(ETH0, &frame) {
                Some(Counter::Verdict(Verdict::Owned)) => here += 1,
                Some(Counter::Verdict(Verdict::Redirect)) => moved += 1,
                other => panic!("a packet saw neither the old nor the new tables: {other:?}"),
            }
        }
    });
}

fn changed(change: impl FnOnce(&mut TableSpec)) -> TableSpec {
    let mut spec = Bench::spec();
    change(&mut spec);
    spec
}

fn nic(spec: &mut TableSpec, slot: u32) -> &mut agent::tables::NicEntry {
    spec.nics.get_mut(&slot).expect("the NIC of the bench")
}
