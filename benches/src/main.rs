//! `cargo xtask bench`: what steering costs. See README.md for what each figure answers.

mod empty;
mod programs;
mod report;
mod roundtrip;
mod stats;

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result};
use clap::Parser;

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

fn main() -> Result<()> {
    let options = Options::parse();
    let (rounds, repeat, trip_rounds, trips) =
        if options.quick { (7, 50_000, 6, 500) } else { (21, 200_000, 40, 2000) };
    eprintln!("programs by test-run …");
    let programs = programs::measure(rounds, repeat)?;
    eprintln!("round trips …");
    let trips = roundtrip::measure(trip_rounds, trips)?;
    let report = report::Report { programs, trips };
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&report)?;
        fs::write(path, text).with_context(|| path.display().to_string())?;
    }
    print!("{report}");
    Ok(())
}
