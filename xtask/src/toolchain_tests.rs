//! The machines described here are folders with small shell scripts in the place of rustc, cargo and bpf-linker.

use super::*;

struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.folder.path().join(relative)
    }

    fn program(&self, relative: &str, script: &str) -> PathBuf {
        let path = self.path(relative);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // Written by another process: a program that a test running beside this one forks would otherwise hold the file
        // open for writing for a moment, in which it cannot be executed.
        let status = Command::new("sh")
            .args(["-c", "printf '#!/bin/sh\\n%s\\n' \"$2\" > \"$1\" && chmod 755 \"$1\"", "sh"])
            .args([path.as_os_str(), script.as_ref()])
            .status();
        assert!(status.unwrap().success());
        path
    }

    /// A toolchain below `sysroot`, as rustup and the distributions lay it out.
    fn toolchain(&self, sysroot: &str, release: &str, llvm: &str) -> PathBuf {
        let root = self.path(sysroot);
        let answer = format!(
            "case $1 in -vV) printf 'release: {release}\\nLLVM version: {llvm}\\n';; --print) echo {};; esac",
            root.display()
        );
        self.program(&format!("{sysroot}/bin/cargo"), "true");
        self.program(&format!("{sysroot}/bin/rustc"), &answer)
    }

    fn sources(&self, sysroot: &str) {
        fs::create_dir_all(self.path(sysroot).join("lib/rustlib/src/rust/library/core")).unwrap();
    }

    fn places(&self) -> Places {
        Places {
            path: vec![self.path("usr/bin")],
            rustup_home: Some(self.path("rustup")),
            cargo_home: Some(self.path("cargo")),
        }
    }

    fn survey(&self) -> Survey {
        Survey::of(&self.places())
    }
}

#[test]
fn an_empty_machine_has_nothing() {
    let survey = Machine::new().survey();
    assert!(survey.compilers.is_empty());
    assert!(survey.linkers.is_empty());
    assert!(survey.refused.is_empty());
}

#[test]
fn a_compiler_without_sources_is_refused_with_the_missing_folder() {
    let machine = Machine::new();
    machine.toolchain("usr", "1.96.0", "22.1.8");
    let survey = machine.survey();
    assert!(survey.compilers.is_empty());
    assert!(survey.refused[0].contains("usr/bin/rustc: has no sources"), "{:?}", survey.refused);
    assert!(survey.refused[0].contains("lib/rustlib/src/rust/library"), "{:?}", survey.refused);
}

#[test]
fn a_compiler_that_is_too_old_or_has_no_cargo_is_refused() {
    let machine = Machine::new();
    machine.toolchain("usr", "1.63.0", "14.0.5");
    machine.sources("usr");
    machine.toolchain("rustup/toolchains/nightly-x", "1.97.0-nightly", "22.1.4");
    machine.sources("rustup/toolchains/nightly-x");
    fs::remove_file(machine.path("rustup/toolchains/nightly-x/bin/cargo")).unwrap();
    let survey = machine.survey();
    assert!(survey.compilers.is_empty());
    assert!(survey.refused.iter().any(|why| why.contains("is 1.63, older than 1.")), "{:?}", survey.refused);
    assert!(survey.refused.iter().any(|why| why.contains("has no cargo")), "{:?}", survey.refused);
}

#[test]
fn a_rustup_nightly_with_sources_comes_before_the_distribution() {
    let machine = Machine::new();
    machine.toolchain("usr", "1.96.0", "22.1.8");
    machine.sources("usr");
    for name in ["1.95.0-x", "nightly-x"] {
        let sysroot = format!("rustup/toolchains/{name}");
        let release = if name.starts_with("nightly") { "1.97.0-nightly" } else { "1.95.0" };
        machine.toolchain(&sysroot, release, "22.1.4");
        machine.sources(&sysroot);
    }
    machine.program("cargo/bin/bpf-linker", "# libLLVM.so.22.1");
    let chosen = machine.survey().pairs().next().unwrap();
    assert_eq!(chosen.compiler.rustc, machine.path("rustup/toolchains/nightly-x/bin/rustc"));
    assert_eq!(chosen.linker.path, machine.path("cargo/bin/bpf-linker"));
    let all: Vec<_> = machine.survey().pairs().map(|pair| pair.compiler.rustc).collect();
    assert_eq!(all.len(), 3);
    assert_eq!(all[2], machine.path("usr/bin/rustc"));
}

#[test]
fn a_linker_with_an_older_llvm_than_the_compiler_is_not_paired_with_it() {
    let machine = Machine::new();
    machine.toolchain("usr", "1.96.0", "22.1.8");
    machine.sources("usr");
    machine.toolchain("rustup/toolchains/nightly-x", "1.99.0-nightly", "23.1.0");
    machine.sources("rustup/toolchains/nightly-x");
    machine.program("usr/bin/bpf-linker", "# libLLVM-14.so.1");
    machine.program("cargo/bin/bpf-linker", "# LLVM22.1.8");
    let survey = machine.survey();
    assert_eq!(survey.linkers.iter().map(|linker| linker.llvm).collect::<Vec<_>>(), [Some(14), Some(22)]);
    let pairs: Vec<_> = survey.pairs().collect();
    assert_eq!(pairs.len(), 1);
    assert_eq!(pairs[0].compiler.version.llvm, 22);
    assert_eq!(pairs[0].linker.path, machine.path("cargo/bin/bpf-linker"));
}

#[test]
fn a_pair_that_fails_the_trial_gives_way_to_the_next_and_says_why() {
    let machine = Machine::new();
    machine.toolchain("usr", "1.96.0", "22.1.8");
    machine.sources("usr");
    machine.program("usr/bin/bpf-linker", "echo 'error while loading shared libraries: libLLVM.so.22.1' >&2; exit 127");
    machine.program("cargo/bin/bpf-linker", "true");
    let mut survey = machine.survey();
    let chosen = survey.choose(&machine.path("scratch")).unwrap().unwrap();
    assert_eq!(chosen.linker.path, machine.path("cargo/bin/bpf-linker"));
    assert_eq!(survey.refused.len(), 1);
    assert!(survey.refused[0].contains("usr/bin/bpf-linker: fails on a trial program: error while loading"));
    assert_eq!(fs::read_dir(machine.path("scratch")).unwrap().count(), 0, "the trial leaves nothing");
}

#[test]
fn a_rustc_that_only_forwards_to_rustup_is_no_candidate() {
    let machine = Machine::new();
    let rustup = machine.program("cargo/bin/rustup", "true");
    std::os::unix::fs::symlink(&rustup, machine.path("cargo/bin/rustc")).unwrap();
    let places = Places { path: vec![machine.path("cargo/bin")], ..machine.places() };
    let survey = Survey::of(&places);
    assert!(survey.compilers.is_empty());
    assert!(survey.refused.is_empty(), "{:?}", survey.refused);
}

#[test]
fn the_same_program_in_two_folders_of_path_counts_once() {
    let machine = Machine::new();
    machine.program("usr/bin/bpf-linker", "true");
    std::os::unix::fs::symlink(machine.path("usr/bin"), machine.path("bin")).unwrap();
    let folders = [machine.path("usr/bin"), machine.path("bin"), machine.path("absent")];
    assert_eq!(programs(folders.into_iter(), "bpf-linker"), [machine.path("usr/bin/bpf-linker")]);
}

#[test]
fn versions_are_read_as_the_programs_print_them() {
    let debian = "rustc 1.96.0 (ac68faa20 2026-05-25) (built from a source tarball)\nbinary: rustc\n\
                  host: x86_64-unknown-linux-gnu\nrelease: 1.96.0\nLLVM version: 22.1.8\n";
    let expected = RustcVersion { release: Version::new(1, 96), nightly: false, llvm: 22 };
    assert_eq!(RustcVersion::parse(debian), Some(expected));
    let nightly = "release: 1.97.0-nightly\nLLVM version: 22.1.4\n";
    assert!(RustcVersion::parse(nightly).unwrap().nightly);
    assert_eq!(RustcVersion::parse("release: 1.96.0\n"), None, "a compiler with another back end");
    assert_eq!(parse_llvm_mention("libLLVM.so.22\nLLVM22.1.8\n"), Some(22));
    assert_eq!(parse_llvm_mention("libLLVM-14\n"), Some(14));
    assert_eq!(parse_llvm_mention("LLVM21.0.0\n"), Some(21));
    assert_eq!(parse_llvm_mention(""), None);
}
