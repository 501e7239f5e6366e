//! `cargo xtask test`: runs every kind of test, or the one named, to its end, and sums up.

mod outcome;

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;

use crate::build::{Programs, build};
use crate::step::{self, Show};
use crate::workspace::{Workspace, is_root};
use outcome::{CargoTest, Row, table, totals};

/// What the developer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Selection {
    /// Every kind there is
    All,
    /// unit, prog and netns
    Quick,
    /// The crates' own tests; no root needed
    Unit,
    /// The loaded programs, packet by packet (root)
    Prog,
    /// Real traffic in network namespaces (root)
    Netns,
}

impl Selection {
    fn kinds(self) -> &'static [Kind] {
        match self {
            Self::All | Self::Quick => &[Kind::Unit, Kind::Prog, Kind::Netns],
            Self::Unit => &[Kind::Unit],
            Self::Prog => &[Kind::Prog],
            Self::Netns => &[Kind::Netns],
        }
    }
}

/// A kind of test: a file of `tests/tests` belongs to the kind its name begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Unit,
    Prog,
    Netns,
}

impl Kind {
    const OF_FILES: [Self; 2] = [Self::Prog, Self::Netns];

    fn name(self) -> &'static str {
        match self {
            Self::Unit => "unit",
            Self::Prog => "prog",
            Self::Netns => "netns",
        }
    }

    /// The kind of a test target.
    fn of_target(stem: &str) -> Option<Self> {
        Self::OF_FILES.into_iter().find(|kind| stem.starts_with(kind.name()))
    }
}

/// Builds, then runs the tests. Fails if one fails, does not compile, is ignored, or if none ran.
pub(crate) fn test(workspace: &Workspace, selection: Selection, arguments: &[String]) -> Result<ExitCode> {
    let kinds = selection.kinds();
    if kinds.iter().any(|kind| Kind::OF_FILES.contains(kind)) && !is_root() {
        bail!("prog and netns tests load programs and create network namespaces: run as root, or only `test unit`");
    }
    let targets = targets(&workspace.root.join("tests/tests"))?;
    let nicpath = build(workspace, Programs::Release)?;
    let mut rows = Vec::new();
    for kind in kinds {
        for cargo_arguments in runs(*kind, &targets) {
            rows.extend(run(workspace, *kind, &cargo_arguments, arguments, &nicpath)?);
        }
        if Kind::OF_FILES.contains(kind) && !targets.iter().any(|(of, _)| of == kind) {
            rows.push(Row::failure(kind.name(), "(no file in tests/tests)"));
        }
    }
    print!("\n{}\n", table(&rows));
    let sum = totals(&rows);
    println!("{sum}");
    Ok(if sum.failed == 0 && sum.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The arguments of each `cargo test` of a kind. One per file, so that a file that does not compile stops no other.
fn runs(kind: Kind, targets: &[(Kind, String)]) -> Vec<Vec<String>> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    match kind {
        Kind::Unit => vec![words(&["--workspace", "--exclude", "tests"])],
        Kind::Prog | Kind::Netns => {
            // The fixtures' own tests create namespaces; they come before those that build on them.
            let fixtures = (kind == Kind::Netns).then(|| words(&["-p", "tests", "--lib"]));
            let files = targets.iter().filter(|(of, _)| *of == kind);
            fixtures.into_iter().chain(files.map(|(_, target)| words(&["-p", "tests", "--test", target]))).collect()
        }
    }
}

/// Every test file with its kind, by name.
fn targets(folder: &Path) -> Result<Vec<(Kind, String)>> {
    let mut targets = Vec::new();
    if folder.is_dir() {
        for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let path = entry?.path();
            // A folder with main.rs is a target too; other folders are modules of the files beside them.
            let is_target =
                path.extension().is_some_and(|extension| extension == "rs") || path.join("main.rs").exists();
            let Some(stem) = path.file_stem().and_then(|stem| stem.to_str()).filter(|_| is_target) else { continue };
            let Some(kind) = Kind::of_target(stem) else {
                bail!("{}: no kind of test begins so; name it prog_… or netns_…", path.display());
            };
            targets.push((kind, stem.to_owned()));
        }
    }
    targets.sort_by(|(_, a), (_, b)| a.cmp(b));
    Ok(targets)
}

fn run(
    workspace: &Workspace,
    kind: Kind,
    cargo_arguments: &[String],
    arguments: &[String],
    nicpath: &Path,
) -> Result<Vec<Row>> {
    let mut command: Command = workspace.cargo();
    command
        .args(["test", "--locked", "--no-fail-fast"])
        .args(cargo_arguments)
        .arg("--")
        .args(arguments)
        .env("NICPATH_BIN", nicpath)
        .env("NICPATH_BPF_OBJECT", workspace.bpf_object());
    let target = match kind {
        Kind::Unit => "workspace",
        Kind::Prog | Kind::Netns => cargo_arguments.last().map_or("", |word| word.trim_start_matches("--")),
    };
    let name = format!("test: {} {target}", kind.name());
    println!("{name}");
    let mut reader = CargoTest::new(kind.name(), target);
    let finished = step::run(&name, &mut command, |line| {
        reader.read(line);
        Show::Print
    })?;
    Ok(reader.rows(finished.status.success(), finished.elapsed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_belongs_to_a_kind_and_folders_of_modules_to_none() {
        let folder = tempfile::tempdir().unwrap();
        for file in ["netns_reply.rs", "prog_rows.rs", "netns.rs", "support/mod.rs", "prog_deep/main.rs", "notes.txt"] {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let found = targets(folder.path()).unwrap();
        let expected = ["netns", "netns_reply", "prog_deep", "prog_rows"];
        assert_eq!(found.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>(), expected);
        assert_eq!(runs(Kind::Prog, &found).len(), 2);
        let netns = runs(Kind::Netns, &found);
        assert_eq!(netns[0], ["-p", "tests", "--lib"]);
        assert_eq!(netns[2], ["-p", "tests", "--test", "netns_reply"]);
    }

    #[test]
    fn a_file_of_no_kind_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("reply.rs"), "").unwrap();
        let error = targets(folder.path()).unwrap_err().to_string();
        assert!(error.contains("reply.rs: no kind of test"), "{error}");
    }

    #[test]
    fn quick_and_all_run_every_kind_that_exists() {
        for selection in [Selection::All, Selection::Quick] {
            assert_eq!(selection.kinds(), [Kind::Unit, Kind::Prog, Kind::Netns]);
        }
        assert_eq!(Selection::Netns.kinds(), [Kind::Netns]);
    }
}
