//! The programs by BPF_PROG_TEST_RUN, row by row: packet in → verdict, packet out, *all* counters, moves and events, so
//! that an effect nobody planned fails ([`runner`]). What a test run cannot show is asked of real hooks ([`hooks`]).
#![expect(clippy::unwrap_used, clippy::panic, reason = "what a test stands on fails the test")]

mod decisions;
mod frames;
#[path = "../../../benches/src/handmade.rs"]
mod handmade;
mod hooks;
mod maps;
mod runner;

use std::net::{IpAddr, Ipv4Addr};

use ebpf::verdict::{Counter, Note, Verdict};
use runner::{ETH0, Row, addr};
use tests::packet::Frame;

/// Addresses of one family.
struct Addresses {
    /// Owned by eth0.
    first: &'static str,
    /// Owned by eth1.
    second: &'static str,
    /// A client behind both gateways.
    client: &'static str,
    /// Owned by nobody.
    stranger: &'static str,
}

const V4: Addresses =
    Addresses { first: "10.10.0.10", second: "10.20.0.10", client: "100.64.0.5", stranger: "10.244.0.2" };
const V6: Addresses =
    Addresses { first: "fd00:10::10", second: "fd00:20::10", client: "2001:db8:100::5", stranger: "fd00:244::2" };
const FAMILIES: [Addresses; 2] = [V4, V6];

const OWNED: Counter = Counter::Verdict(Verdict::Owned);
const KERNEL: Counter = Counter::Verdict(Verdict::Kernel);
const UNTOUCHED: Counter = Counter::Verdict(Verdict::Untouched);
const RECEIVED: Counter = Counter::Verdict(Verdict::Received);
const PARSE: Counter = Counter::Note(Note::Parse);

fn frame(source: &str, destination: &str) -> Frame {
    Frame::ip(addr(source), addr(destination)).udp(80, 40000).payload(b"answer")
}

fn udp(source: &str, destination: &str) -> Vec<u8> {
    frame(source, destination).build()
}

/// Leaves by eth0.
fn out(frame: Vec<u8>) -> Row {
    Row::egress(ETH0, frame)
}

fn v4(text: &str) -> Ipv4Addr {
    match addr(text) {
        IpAddr::V4(address) => address,
        IpAddr::V6(address) => panic!("{address} is not IPv4"),
    }
}
