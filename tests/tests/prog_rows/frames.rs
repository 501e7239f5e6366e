//! Every shape of frame: what rule 0 leaves alone, what follows its source all the same, what cannot be read.

use ebpf::verdict::Counter;
use tests::packet::{AUTHENTICATION, DESTINATION_OPTIONS, ETHERNET_HEADER, Frame, HOP_BY_HOP, ROUTING};

use crate::{
    Addresses, FAMILIES, OWNED, PARSE, RECEIVED, UNTOUCHED, V4, V6, frame, out,
    runner::{ETH0, ETH1, Row, Runner, addr},
    udp, v4,
};

#[test]
fn every_protocol_number_with_an_owned_source_is_moved() {
    let runner = Runner::new();
    for at in FAMILIES {
        // an ICMPv6 type byte of 0 is no neighbour discovery
        for protocol in 0..=255 {
            let frame = Frame::ip(addr(at.second), addr(at.client)).protocol(protocol).payload(&[0; 32]).build();
            runner.row(out(frame).moved_to(ETH1));
        }
    }
}

#[test]
fn fragments_follow_their_source_with_no_state() {
    let runner = Runner::new();
    for at in FAMILIES {
        let large = frame(at.second, at.client).identification(7).payload(&[0x5a; 4000]);
        let fragments = large.fragments(1400);
        assert_eq!(fragments.len(), 3);
        // the last one first: nothing is remembered of the first
        for fragment in fragments.into_iter().rev() {
            runner.row(out(fragment).moved_to(ETH1));
        }
    }
}

#[test]
fn options_and_extension_headers_follow_their_source() {
    let runner = Runner::new();
    for length in (4..=40).step_by(4) {
        runner.row(out(frame(V4.second, V4.client).options(&vec![1; length]).build()).moved_to(ETH1));
    }
    let extensions = [HOP_BY_HOP, ROUTING, DESTINATION_OPTIONS, AUTHENTICATION];
    for extension in extensions {
        runner.row(out(frame(V6.second, V6.client).extension(extension).build()).moved_to(ETH1));
    }
    let all = extensions.into_iter().fold(frame(V6.second, V6.client), Frame::extension);
    runner.row(out(all.build()).moved_to(ETH1));
}

#[test]
fn errors_and_resets_are_answers_too() {
    let runner = Runner::new();
    for at in FAMILIES {
        let request = Frame::ip(addr(at.client), addr(at.second)).udp(40000, 9);
        let answer = || Frame::ip(addr(at.second), addr(at.client));
        for frame in [
            answer().port_unreachable(&request),
            answer().too_big(1280, &request),
            answer().echo_reply(1, 1),
            answer().tcp(80, 40000, tests::packet::RST),
        ] {
            runner.row(out(frame.build()).moved_to(ETH1));
        }
    }
}

/// Addresses of rule 0.
fn special(at: &Addresses) -> &'static [&'static str] {
    if addr(at.client).is_ipv4() {
        &["224.0.0.5", "239.1.2.3", "255.255.255.255", "169.254.169.254", "127.0.0.1", "0.0.0.0"]
    } else {
        &["ff02::1", "ff0e::1", "fe80::1", "febf::1", "::1", "::"]
    }
}

#[test]
fn rule_0_leaves_special_addresses_alone_whichever_end_they_are() {
    let runner = Runner::new();
    for at in FAMILIES {
        for special in special(&at) {
            runner.row(out(udp(at.second, special)).passes(UNTOUCHED));
            runner.row(out(udp(special, at.client)).passes(UNTOUCHED));
            // its owner sends it as it is either way
            runner.row(Row::egress(ETH1, udp(at.second, special)).passes(OWNED));
        }
    }
}

#[test]
fn rule_0_is_no_reason_to_drop_what_nobody_owns() {
    let runner = Runner::changed(|spec| {
        for nic in spec.nics.values_mut() {
            nic.source_guard = agent::api::SourceGuard::Drop;
        }
    });
    for at in FAMILIES {
        for special in special(&at) {
            runner.row(out(udp(at.stranger, special)).passes(UNTOUCHED));
        }
    }
}

#[test]
fn neighbour_discovery_and_listener_discovery_are_left_alone_and_other_icmp_is_not() {
    let runner = Runner::new();
    for kind in 0..=255 {
        let row = out(Frame::ip(addr(V6.second), addr(V6.client)).icmp(kind, 0, [0; 4]).build());
        let exempt = (130..=137).contains(&kind) || kind == 143;
        runner.row(if exempt { row.passes(UNTOUCHED) } else { row.moved_to(ETH1) });
        // the same numbers mean nothing in IPv4
        runner.row(out(Frame::ip(addr(V4.second), addr(V4.client)).icmp(kind, 0, [0; 4]).build()).moved_to(ETH1));
    }
    let query = Frame::ip(addr("fe80::1"), addr("ff02::1")).mld_query();
    runner.row(out(query.build()).passes(UNTOUCHED));
}

#[test]
fn what_is_not_ip_is_left_alone() {
    let runner = Runner::new();
    let (sender, target) = (v4(V4.second), v4(V4.client));
    for frame in [
        Frame::arp_request(sender, target),
        Frame::arp_reply(sender, target),
        Frame::ether(0x88cc, &[0; 50]),
        // the length of an 802.3 frame where the type would stand
        Frame::ether(46, &[0x42; 46]),
    ] {
        runner.row(out(frame.build()).passes(UNTOUCHED));
    }
}

#[test]
fn tagged_frames_are_left_alone() {
    let runner = Runner::new();
    for at in FAMILIES {
        let inner = frame(at.second, at.client);
        for frame in [inner.clone().vlan(101), inner.clone().tag(0x88a8, 5).vlan(101), inner.tag(0x88a8, 5)] {
            runner.row(out(frame.build()).passes(UNTOUCHED));
            runner.row(Row::ingress(ETH1, frame.build()).passes(UNTOUCHED));
        }
    }
}

#[test]
fn a_packet_cut_off_behind_its_ip_header_still_follows_its_source() {
    let runner = Runner::new();
    // below that the kernel refuses a test run; `hooks` sends such frames for real
    for (at, header) in FAMILIES.into_iter().zip([20, 40]) {
        for whole in [frame(at.second, at.client), Frame::ip(addr(at.second), addr(at.client)).echo_reply(1, 1)] {
            let whole = whole.build();
            for length in ETHERNET_HEADER + header..whole.len() {
                runner.row(out(whole[..length].to_vec()).moved_to(ETH1));
            }
        }
    }
}

#[test]
fn a_header_that_lies_about_itself_passes_and_is_counted() {
    let runner = Runner::new();
    for at in FAMILIES {
        let right = if addr(at.client).is_ipv4() { 4 } else { 6 };
        for version in (0..16).filter(|version| *version != right) {
            let lying = |source, destination| frame(source, destination).version(version).build();
            runner.row(out(lying(at.second, at.client)).passes_noted(UNTOUCHED, PARSE));
            runner.row(Row::ingress(ETH1, lying(at.client, at.second)).passes_noted(UNTOUCHED, PARSE));
        }
    }
    for words in 0..5 {
        runner.row(out(frame(V4.second, V4.client).ihl(words).build()).passes_noted(UNTOUCHED, PARSE));
    }
    // longer than the packet is: the addresses are right all the same
    runner.row(out(frame(V4.second, V4.client).ihl(15).build()).moved_to(ETH1));
}

#[test]
fn arrivals_are_received_whomever_they_are_for() {
    let runner = Runner::new();
    for at in FAMILIES {
        for nic in [ETH0, ETH1] {
            for destination in [at.first, at.second, at.stranger, at.client] {
                runner.row(Row::ingress(nic, udp(at.client, destination)).passes(RECEIVED));
            }
        }
        let received = frame(at.client, at.second).identification(7).payload(&[0x5a; 3000]);
        for fragment in received.fragments(1400) {
            runner.row(Row::ingress(ETH1, fragment).passes(RECEIVED));
        }
    }
    let arrives = |frame: Frame, verdict: Counter| runner.row(Row::ingress(ETH0, frame.build()).passes(verdict));
    arrives(Frame::arp_request(v4(V4.client), v4(V4.first)), UNTOUCHED);
    arrives(Frame::ether(0x88cc, &[0; 50]), UNTOUCHED);
    arrives(frame(V4.client, "224.0.0.5"), RECEIVED);
    arrives(
        Frame::ip(addr("fe80::1"), addr("ff02::1")).router_advertisement([0xfd00, 0x10, 0, 0, 0, 0, 0, 0]),
        RECEIVED,
    );
}
