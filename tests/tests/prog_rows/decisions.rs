//! Rules 2 and 3: who owns the source, what its NIC is told to do, and by which next hop.

use agent::{
    api::{Mode, ReplyPath, SourceGuard},
    config::PerFamily,
    tables::{AdminState, Hop, NicEntry, Slot, TableSpec},
};
use ebpf::verdict::{Counter, DropReason, Note};

use crate::{
    FAMILIES, KERNEL, OWNED, RECEIVED, UNTOUCHED, V4, V6, out,
    runner::{ETH0, ETH1, Row, Runner, addr, prefix},
    udp,
};

fn nic(spec: &mut TableSpec, slot: Slot) -> &mut NicEntry {
    spec.nics.get_mut(&slot).expect("the NIC of the runner")
}

#[test]
fn a_source_that_the_nic_owns_passes_and_one_of_the_other_nic_is_moved() {
    let runner = Runner::new();
    for at in FAMILIES {
        runner.row(Row::egress(ETH0, udp(at.first, at.client)).passes(OWNED));
        runner.row(Row::egress(ETH0, udp(at.second, at.client)).moved_to(ETH1));
        runner.row(Row::egress(ETH1, udp(at.second, at.client)).passes(OWNED));
        runner.row(Row::egress(ETH1, udp(at.first, at.client)).moved_to(ETH0));
    }
}

#[test]
fn owned_prefixes_count_as_owned_the_longer_one_wins_and_an_exact_address_over_both() {
    let runner = Runner::changed(|spec| {
        spec.prefixes = [
            (prefix("10.244.0.0/16"), ETH1),
            (prefix("10.244.7.0/24"), ETH0),
            (prefix("10.244.7.128/25"), ETH1),
            (prefix("fd00:244::/32"), ETH1),
            (prefix("fd00:244:7::/48"), ETH0),
            (prefix("fd00:244:7:8::/64"), ETH1),
            (prefix("10.10.0.0/24"), ETH1),
            (prefix("fd00:10::/64"), ETH1),
        ]
        .into();
    });
    for (source, client, owner) in [
        ("10.244.1.1", V4.client, ETH1),
        ("10.244.7.1", V4.client, ETH0),
        ("10.244.7.200", V4.client, ETH1),
        ("fd00:244:1::1", V6.client, ETH1),
        ("fd00:244:7::1", V6.client, ETH0),
        ("fd00:244:7:8::1", V6.client, ETH1),
        (V4.first, V4.client, ETH0),
        (V6.first, V6.client, ETH0),
        ("10.10.0.11", V4.client, ETH1),
        ("fd00:10::11", V6.client, ETH1),
    ] {
        for here in [ETH0, ETH1] {
            let row = Row::egress(here, udp(source, client));
            runner.row(if owner == here { row.passes(OWNED) } else { row.moved_to(owner) });
        }
    }
    for (source, client) in [("10.245.0.1", V4.client), ("fd00:245::1", V6.client)] {
        runner.row(out(udp(source, client)).passes(KERNEL));
    }
}

#[test]
fn a_source_that_nobody_owns_is_passed_counted_or_dropped_as_the_class_says() {
    let guarded = |guard| Runner::changed(|spec| nic(spec, ETH0).source_guard = guard);
    let (pass, count, drop) = (guarded(SourceGuard::Pass), guarded(SourceGuard::Count), guarded(SourceGuard::Drop));
    for at in FAMILIES {
        let row = || out(udp(at.stranger, at.client));
        pass.row(row().passes(KERNEL));
        count.row(row().passes_noted(KERNEL, Counter::Note(Note::SourceNotOwned)));
        drop.row(row().dropped(DropReason::SourceGuard));
        // the guard of another NIC is its own
        drop.row(Row::egress(ETH1, udp(at.stranger, at.client)).passes(KERNEL));
        // and it guards against strangers only
        drop.row(out(udp(at.second, at.client)).moved_to(ETH1));
    }
}

#[test]
fn observe_on_either_nic_counts_what_would_be_moved_and_moves_nothing() {
    for observing in [ETH0, ETH1] {
        let runner = Runner::changed(|spec| nic(spec, observing).mode = Mode::Observe);
        for at in FAMILIES {
            runner.row(out(udp(at.second, at.client)).would_move_to(ETH1));
            runner.row(out(udp(at.first, at.client)).passes(OWNED));
        }
    }
}

#[test]
fn observe_counts_what_would_be_dropped_and_drops_nothing() {
    for observing in [ETH0, ETH1] {
        let down = Runner::changed(|spec| {
            nic(spec, observing).mode = Mode::Observe;
            nic(spec, ETH1).state = AdminState::Down;
        });
        for at in FAMILIES {
            down.row(out(udp(at.second, at.client)).would_drop(DropReason::NicDown));
        }
    }
    let guarded = Runner::changed(|spec| {
        nic(spec, ETH0).mode = Mode::Observe;
        nic(spec, ETH0).source_guard = SourceGuard::Drop;
    });
    for at in FAMILIES {
        guarded.row(out(udp(at.stranger, at.client)).would_drop(DropReason::SourceGuard));
    }
}

#[test]
fn an_owner_that_is_down_drops() {
    let runner = Runner::changed(|spec| nic(spec, ETH1).state = AdminState::Down);
    for at in FAMILIES {
        runner.row(out(udp(at.second, at.client)).dropped(DropReason::NicDown));
    }
}

#[test]
fn an_owner_whose_reply_path_is_off_leaves_the_choice_to_the_kernel() {
    let runner = Runner::changed(|spec| nic(spec, ETH1).reply_path = ReplyPath::Off);
    for at in FAMILIES {
        runner.row(out(udp(at.second, at.client)).passes(KERNEL));
        // what leaves by it is moved all the same if another NIC owns it
        runner.row(Row::egress(ETH1, udp(at.first, at.client)).moved_to(ETH0));
    }
}

#[test]
fn an_owner_without_a_gateway_of_the_family_leaves_the_choice_to_the_kernel() {
    let (v4, v6) = (addr("10.20.0.1"), addr("fd00:20::1"));
    let with = |gateways| Runner::changed(|spec| nic(spec, ETH1).gateways = gateways);
    let no_hop = Counter::Note(Note::NoNextHop);
    let neither = with(PerFamily::default());
    for at in FAMILIES {
        neither.row(out(udp(at.second, at.client)).passes_noted(KERNEL, no_hop));
    }
    let only_v4 = with(PerFamily { v4: Some(v4), v6: None });
    only_v4.row(out(udp(V4.second, V4.client)).moved_to(ETH1));
    only_v4.row(out(udp(V6.second, V6.client)).passes_noted(KERNEL, no_hop));
    let only_v6 = with(PerFamily { v4: None, v6: Some(v6) });
    only_v6.row(out(udp(V4.second, V4.client)).passes_noted(KERNEL, no_hop));
    only_v6.row(out(udp(V6.second, V6.client)).moved_to(ETH1));
}

#[test]
fn what_a_macvlan_or_the_like_hands_down_has_left_by_its_owner_already() {
    let runner = Runner::changed(|spec| nic(spec, ETH1).lower = Some(Runner::link(ETH0)));
    for at in FAMILIES {
        runner.row(out(udp(at.second, at.client)).passes(KERNEL));
        runner.row(Row::egress(ETH1, udp(at.first, at.client)).moved_to(ETH0));
    }
}

#[test]
fn the_next_hop_is_the_destination_a_route_or_the_gateway() {
    let runner = Runner::changed(|spec| {
        nic(spec, ETH0).gateways.v6 = Some(addr("fe80::1"));
        spec.hops = [
            ((ETH1, prefix("10.20.0.0/24")), Hop::OnLink),
            ((ETH1, prefix("172.30.0.0/16")), Hop::Gateway(addr("10.20.0.7"))),
            ((ETH1, prefix("172.30.5.0/24")), Hop::OnLink),
            ((ETH1, prefix("fd00:20::/64")), Hop::OnLink),
            ((ETH1, prefix("fd00:30::/48")), Hop::Gateway(addr("fe80::7"))),
            ((ETH1, prefix("fd00:30:0:5::/64")), Hop::OnLink),
            // another NIC's hops are not ours
            ((ETH0, prefix("0.0.0.0/0")), Hop::OnLink),
        ]
        .into();
    });
    for (here, source, destination, hop) in [
        (ETH0, V4.second, "10.20.0.99", "10.20.0.99"),
        (ETH0, V4.second, "172.30.1.1", "10.20.0.7"),
        (ETH0, V4.second, "172.30.5.9", "172.30.5.9"),
        (ETH0, V4.second, V4.client, "10.20.0.1"),
        (ETH0, V6.second, "fd00:20::99", "fd00:20::99"),
        (ETH0, V6.second, "fd00:30::1", "fe80::7"),
        (ETH0, V6.second, "fd00:30:0:5::9", "fd00:30:0:5::9"),
        (ETH0, V6.second, V6.client, "fd00:20::1"),
        (ETH1, V4.first, V4.client, V4.client),
        (ETH1, V6.first, V6.client, "fe80::1"),
    ] {
        let frame = udp(source, destination);
        assert_eq!(runner.hop(here, &frame), addr(hop), "{source} to {destination}");
        runner.row(Row::egress(here, frame).moved_to(ETH1 - here));
    }
}

#[test]
fn an_on_link_route_needs_no_gateway() {
    let runner = Runner::changed(|spec| {
        nic(spec, ETH1).gateways = PerFamily::default();
        spec.hops = ["10.20.0.0/24", "fd00:20::/64"].map(|net| ((ETH1, prefix(net)), Hop::OnLink)).into();
    });
    for (source, destination) in [(V4.second, "10.20.0.99"), (V6.second, "fd00:20::99")] {
        runner.row(out(udp(source, destination)).moved_to(ETH1));
    }
}

#[test]
fn a_switched_off_program_passes_what_it_would_move_or_drop_and_goes_on_when_switched_on() {
    let runner = Runner::changed(|spec| nic(spec, ETH0).source_guard = SourceGuard::Drop);
    runner.switch(true);
    for at in FAMILIES {
        runner.row(out(udp(at.second, at.client)).passes(UNTOUCHED));
        runner.row(out(udp(at.stranger, at.client)).passes(UNTOUCHED));
        runner.row(out(udp(at.first, at.client)).passes(OWNED));
        runner.row(Row::ingress(ETH1, udp(at.client, at.second)).passes(RECEIVED));
    }
    runner.switch(false);
    for at in FAMILIES {
        runner.row(out(udp(at.second, at.client)).moved_to(ETH1));
        runner.row(out(udp(at.stranger, at.client)).dropped(DropReason::SourceGuard));
    }
}

#[test]
fn without_tables_or_on_a_nic_they_do_not_know_nothing_is_done_or_counted() {
    let empty = Runner::with(&TableSpec::default());
    let without_eth0 = Runner::changed(|spec| spec.nics.retain(|slot, _| *slot != ETH0));
    for runner in [Runner::unpublished(), empty, without_eth0] {
        for at in FAMILIES {
            runner.row(Row::egress(ETH0, udp(at.second, at.client)));
            runner.row(Row::ingress(ETH0, udp(at.client, at.second)));
        }
    }
}
