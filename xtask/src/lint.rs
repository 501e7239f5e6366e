//! `cargo xtask lint`: format, clippy, and the rules of this project that no other tool knows. The rules are pure
//! functions over a file's text ([`manifest`], [`source`]) with one table of what may be where ([`rules`]).

mod manifest;
mod rules;
mod source;
mod text;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::step;
use crate::workspace::Workspace;

/// A place where a rule is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// Relative to the workspace.
    pub(crate) file: String,
    /// From 1.
    pub(crate) line: usize,
    pub(crate) rule: String,
    pub(crate) cure: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, rule, cure } = self;
        write!(out, "{file}:{line}: {rule}\n    cure: {cure}")
    }
}

/// Runs every check to its end, so that one run shows all there is to mend.
pub(crate) fn lint(workspace: &Workspace) -> Result<ExitCode> {
    let mut failed = Vec::new();
    let mut format = workspace.cargo();
    format.args(["fmt", "--all", "--check"]);
    let mut clippy = workspace.cargo();
    clippy.args(["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]);
    for (name, cure, mut command) in
        [("format", "cargo fmt --all", format), ("clippy", "mend what clippy names above", clippy)]
    {
        if let Err(error) = step::run_cargo(&format!("lint: {name}"), &mut command) {
            println!("{error:#}\n    cure: {cure}");
            failed.push(name);
        }
    }
    let files = files(workspace)?;
    println!("lint: rules, in {} files", files.len());
    let violations = check_rules(workspace, &files)?;
    for violation in &violations {
        println!("{violation}");
    }
    if !violations.is_empty() {
        failed.push("rules");
    }
    if failed.is_empty() {
        println!("lint: format, clippy and rules hold");
        return Ok(ExitCode::SUCCESS);
    }
    println!("lint: failed: {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// The manifest and the Rust files of every member.
fn files(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for member in workspace.members() {
        files.push(member.join("Cargo.toml"));
        list_rust_files(member, &workspace.target, &mut files)?;
    }
    files.sort_unstable();
    Ok(files)
}

fn check_rules(workspace: &Workspace, files: &[PathBuf]) -> Result<Vec<Violation>> {
    let mut violations = Vec::new();
    let mut with_unsafe = Vec::new();
    for file in files {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let path = file.strip_prefix(&workspace.root).unwrap_or(file).to_string_lossy().into_owned();
        if path.ends_with(".toml") {
            violations.extend(manifest::check(&path, &text));
        } else {
            violations.extend(source::check(&path, &text));
            if source::has_unsafe(&text) {
                with_unsafe.push(path);
            }
        }
    }
    violations.extend(source::check_table(&with_unsafe));
    Ok(violations)
}

fn list_rust_files(folder: &Path, target: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() && path != target {
            list_rust_files(&path, target, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}
