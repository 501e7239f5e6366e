//! `cargo xtask bench`: what steering costs. See README.md for what each figure answers.

mod handmade;
mod programs;
mod report;
mod roundtrip;
mod stats;

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result};
use clap::Parser;
use tests::Family;

/// Measures programs by test-run and round trips through the lab, everything interleaved in one run.
#[derive(Debug, Parser)]
struct Options {
    /// A short form of less than half a minute
    #[arg(long)]
    quick: bool,
    /// Also write everything as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// How much is measured.
struct Size {
    /// Times that the programs are loaded afresh
    loads: usize,
    /// Rounds of test runs per load
    rounds: usize,
    /// Runs of a program per sample
    repeat: u32,
    trip_rounds: usize,
    /// Round trips per sample
    trips: usize,
}

const FULL: Size = Size { loads: 6, rounds: 9, repeat: 200_000, trip_rounds: 101, trips: 1000 };
const QUICK: Size = Size { loads: 3, rounds: 5, repeat: 50_000, trip_rounds: 15, trips: 300 };

fn main() -> Result<()> {
    let options = Options::parse();
    let size = if options.quick { QUICK } else { FULL };
    eprintln!("programs by test-run …");
    let programs = programs::measure(size.loads, size.rounds, size.repeat)?;
    eprintln!("round trips …");
    let trips = roundtrip::measure(size.trip_rounds, size.trips)?;
    let report = report::Report::new(programs, &trips);
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&report)?;
        fs::write(path, text).with_context(|| path.display().to_string())?;
    }
    print!("{report}");
    Ok(())
}

fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}
