//! `cargo xtask VERB`: what a developer and CI run. One file per verb; each verb does what it needs first, so
//! `cargo xtask test` and `cargo xtask demo` are enough on a fresh machine with Rust and root.
//!
//! Below the verbs: [`step`] runs a child process and shows its progress, [`toolchain`] finds a compiler and a linker
//! for eBPF, [`workspace`] knows the folders.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

mod bench;
mod build;
mod demo;
mod lint;
mod setup;
mod source_hash;
mod step;
mod test;
mod toolchain;
mod workspace;

use workspace::Workspace;

/// nicpath's developer commands
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Find or install the eBPF tool chain and the programs the tests use
    Setup,
    /// Build the eBPF programs and target/release/nicpath, which holds them
    Build {
        /// Compile the aya-log calls into the eBPF programs
        #[arg(long)]
        debug_programs: bool,
    },
    /// Run the tests: every kind, or the one named
    Test {
        #[arg(value_enum, default_value_t = test::Selection::All)]
        kinds: test::Selection,
        /// Arguments for the test binaries (a filter, --nocapture …)
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Show on two networks what the plain kernel, policy rules and nicpath do
    Demo {
        /// Leave the lab up and print how to look around
        #[arg(long)]
        keep: bool,
    },
    /// Measure what steering costs
    Bench {
        /// Arguments for the bench program
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Format, clippy and the project's own rules
    Lint,
}

fn main() -> ExitCode {
    match run(Arguments::parse().verb) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> Result<ExitCode> {
    let workspace = Workspace::locate()?;
    match verb {
        Verb::Setup => setup::setup(&workspace).map(|_| ExitCode::SUCCESS),
        Verb::Build { debug_programs } => {
            let programs = if debug_programs { build::Programs::Debug } else { build::Programs::Release };
            build::build(&workspace, programs).map(|_| ExitCode::SUCCESS)
        }
        Verb::Test { kinds, arguments } => test::test(&workspace, kinds, &arguments),
        Verb::Demo { keep } => {
            let afterwards = if keep { demo::Afterwards::Keep } else { demo::Afterwards::Remove };
            demo::demo(&workspace, afterwards)
        }
        Verb::Bench { arguments } => bench::bench(&workspace, &arguments),
        Verb::Lint => lint::lint(&workspace),
    }
}
