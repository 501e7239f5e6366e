//! `cargo xtask bench`: builds, then runs the bench program with the remaining arguments.

use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::build::{Programs, build};
use crate::step;
use crate::workspace::Workspace;

pub(crate) fn bench(workspace: &Workspace, arguments: &[String]) -> Result<ExitCode> {
    let nicpath = build(workspace, Programs::Release)?;
    let mut compile = workspace.cargo();
    compile.args(["build", "--release", "--locked", "-p", "benches"]);
    step::run_cargo("bench: compile", &mut compile)?;
    let mut benches = workspace.cargo();
    benches
        .args(["run", "--release", "--locked", "--quiet", "-p", "benches", "--"])
        .args(arguments)
        .env("NICPATH_BIN", nicpath)
        .env("NICPATH_BPF_OBJECT", workspace.bpf_object());
    // On the terminal itself: the bench draws its own progress.
    let status = benches.status().context("cannot run the bench program")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
