//! What a test run cannot show, on the hooks of real devices: what ingress writes down for others, and frames that are
//! too short for a test run.

use std::time::Duration;

use agent::hook::Direction;
use serde_json::Value;
use tests::{
    packet::{ETHERNET_HEADER, Frame},
    raw::{Capture, Sender},
    wait::eventually,
};

use crate::{
    FAMILIES, PARSE, UNTOUCHED, V4, V6, frame,
    handmade::{self, Instruction, PASS},
    runner::{ETH0, ETH1, Runner, addr, prefix},
    udp, v4,
};

const PATIENCE: Duration = Duration::from_secs(5);

/// What an earlier hook may have left in `tc_index`.
const STALE: u32 = 0x7777;
/// `r2 = STALE; skb->tc_index = r2`
const SET_TC_INDEX: [Instruction; 2] = [[0xb7, 0x02, 0, 0, 0x77, 0x77, 0, 0], [0x63, 0x21, 44, 0, 0, 0, 0, 0]];
/// `r2 = skb->tc_index; skb->mark = r2`: nftables reads marks, and no tool reads `tc_index`.
const TC_INDEX_TO_MARK: [Instruction; 2] = [[0x61, 0x12, 44, 0, 0, 0, 0, 0], [0x63, 0x21, 8, 0, 0, 0, 0, 0]];

/// Every device is up and says nothing of its own.
fn up(runner: &Runner) {
    for device in ["eth0", "p0", "eth1", "p1"] {
        runner.ns().sysctl(&format!("net/ipv6/conf/{device}/disable_ipv6"), "1");
        runner.ns().ip(&format!("link set {device} up"));
    }
}

/// Puts a program behind TCX on a hook of a device, by the older way of attaching.
fn classify(runner: &Runner, device: &str, hook: &str, program: &[Instruction]) {
    let pin = runner.pins().join(format!("{device}-{hook}"));
    handmade::pin(&pin, &[program, &PASS].concat()).unwrap();
    let tc = |words: String| runner.ns().feed("tc", &words.split(' ').collect::<Vec<_>>(), "");
    tc(format!("qdisc add dev {device} clsact"));
    tc(format!("filter add dev {device} {hook} bpf direct-action object-pinned {}", pin.display()));
}

/// The mark of the one packet that a device has received since this was last asked.
fn mark_of_one(runner: &Runner) -> u32 {
    let one = || {
        let listed = runner.ns().feed("nft", &["-j", "list", "set", "netdev", "observed", "marks"], "");
        let listed: Value = serde_json::from_str(&listed).map_err(|error| error.to_string())?;
        let elements = listed["nftables"].as_array().into_iter().flatten().find_map(|entry| entry.get("set"));
        let elements = elements.and_then(|set| set["elem"].as_array()).ok_or("no packet")?;
        match elements.as_slice() {
            [element] => Ok(element.clone()),
            more => Err(format!("{more:?}")),
        }
    };
    let element = eventually(PATIENCE, "a packet with a mark", one);
    runner.ns().nft("flush set netdev observed marks");
    u32::try_from(element.as_u64().unwrap()).unwrap()
}

#[test]
fn ingress_writes_down_network_and_destination_of_every_packet_over_what_was_there() {
    let runner = Runner::changed(|spec| {
        spec.prefixes = [(prefix("10.244.0.0/16"), ETH1), (prefix("fd00:244::/32"), ETH1)].into();
    });
    up(&runner);
    for (device, peer) in [("eth0", "p0"), ("eth1", "p1")] {
        classify(&runner, peer, "egress", &SET_TC_INDEX);
        classify(&runner, device, "ingress", &TC_INDEX_TO_MARK);
    }
    runner.ns().nft(
        "table netdev observed {
            set marks { type mark; flags dynamic; }
            chain received {
                type filter hook ingress devices = { eth0, eth1 } priority 0;
                update @marks { meta mark }
            }
        }",
    );
    let elsewhere = [(V4.client, "10.99.0.1"), (V6.client, "fd00:99::1")];
    let mut rows = Vec::new();
    for at in FAMILIES {
        // an address of either NIC, of a prefix: it is the node that was addressed, whichever NIC the packet came by
        for owned in [at.first, at.second, at.stranger] {
            rows.push((frame(at.client, owned), 0x8000));
        }
    }
    rows.extend(elsewhere.map(|(source, destination)| (frame(source, destination), 0)));
    rows.extend([
        (Frame::arp_request(v4(V4.client), v4(V4.first)), 0),
        (Frame::ether(0x88cc, &[0; 50]), 0),
        (frame(V4.client, "224.0.0.5"), 0),
        (Frame::ip(addr("fe80::1"), addr("ff02::1")).mld_query(), 0),
        (frame(V4.client, V4.first).version(5), 0),
        // the kernel has taken the tag into the packet's metadata by then
        (frame(V4.client, V4.first).vlan(101), 0),
    ]);
    for (network, nic, peer) in [(1, ETH0, "p0"), (2, ETH1, "p1")] {
        let sender = Sender::new(runner.ns(), peer);
        sender.send(&udp(V4.client, V4.second));
        assert_eq!(mark_of_one(&runner), STALE, "with no program of ours");
        runner.attach(nic);
        for (frame, to_node) in &rows {
            sender.send(&frame.build());
            assert_eq!(mark_of_one(&runner), network | to_node, "{frame:?} by {peer}");
        }
    }
}

#[test]
fn frames_shorter_than_their_ip_header_pass_unchanged_and_are_counted() {
    let runner = Runner::new();
    up(&runner);
    runner.attach(ETH0);
    let sender = Sender::new(runner.ns(), "eth0");
    let capture = Capture::start(runner.ns(), "p0");
    let mut sent = Vec::new();
    for (at, header) in FAMILIES.into_iter().zip([20, 40]) {
        let whole = udp(at.second, at.client);
        sent.extend((ETHERNET_HEADER..ETHERNET_HEADER + header).map(|length| whole[..length].to_vec()));
    }
    sent.iter().for_each(|frame| sender.send(frame));
    eventually(PATIENCE, "every frame", || {
        let received = capture.frames().len();
        if received == sent.len() { Ok(()) } else { Err(received) }
    });
    assert_eq!(capture.stop().into_iter().map(|frame| frame.bytes).collect::<Vec<_>>(), sent);
    let tally = runner.tally();
    let counted = [UNTOUCHED, PARSE].map(|counter| tally.of(ETH0, Direction::Egress, counter));
    assert_eq!(counted, [sent.len() as u64; 2]);
    assert_eq!(tally.packets(), sent.len() as u64, "{tally:?}");
}
