//! `nicpath monitor`: events of the programs as they happen. One reader at a time.

use std::os::fd::AsFd as _;

use clap::Args;
use ebpf::{
    abi::Event,
    verdict::{Counter, direction_name},
};
use nix::{
    net::if_::if_indextoname,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use serde::Serialize;

use super::{Answer, Output, Paths, preflight};
use crate::dataplane::Dataplane;

#[derive(Debug, Args)]
pub(super) struct MonitorArgs {
    #[command(flatten)]
    paths: Paths,
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    /// Seconds since boot
    time: f64,
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    direction: &'static str,
    nic: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    src: std::net::IpAddr,
    dst: std::net::IpAddr,
    protocol: u32,
}

pub(super) fn run(args: &MonitorArgs) -> Answer {
    preflight::check(&args.paths.bpffs, preflight::Need::Read)?;
    let mut events = Dataplane::new(&args.paths.bpffs).events()?;
    loop {
        poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)?;
        for event in events.by_ref() {
            let line = line(&event?);
            match args.output {
                Output::Json | Output::Yaml => println!("{}", serde_json::to_string(&line)?),
                Output::Table => print(&line),
            }
        }
    }
}

fn line(event: &Event) -> Line {
    let name = |index: u32| {
        if_indextoname(index).ok().and_then(|n| n.into_string().ok()).unwrap_or_else(|| format!("if{index}"))
    };
    let counter = |index: u32| Counter::from_index(index).map_or("?", Counter::name);
    Line {
        time: event.time_ns as f64 / 1e9,
        verdict: counter(event.verdict),
        reason: (event.reason != event.verdict).then(|| counter(event.reason)),
        direction: direction_name(event.direction),
        nic: name(event.ifindex),
        to: (event.to_ifindex != 0).then(|| name(event.to_ifindex)),
        src: event.src.to_ip(),
        dst: event.dst.to_ip(),
        protocol: event.protocol,
    }
}

fn print(line: &Line) {
    let to = line.to.as_ref().map(|to| format!(" → {to}")).unwrap_or_default();
    let reason = line.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    println!(
        "{:12.6} {}{reason} {} {}{to} {} → {} protocol {}",
        line.time, line.verdict, line.direction, line.nic, line.src, line.dst, line.protocol
    );
}
