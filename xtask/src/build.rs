//! `cargo xtask build`: the eBPF programs for the kernel, then the agent that carries them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::setup::setup;
use crate::source_hash::source_hash;
use crate::step;
use crate::toolchain::{Toolchain, without_cargo_env};
use crate::workspace::Workspace;

const TARGET: &str = "bpfel-unknown-none";

/// Which eBPF programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Programs {
    Release,
    /// With the aya-log calls compiled in. Optimised all the same: what debug assertions add does not pass the verifier.
    Debug,
}

/// The programs' profile in the root `Cargo.toml`.
const PROFILE: &str = "bpf";

/// Builds everything, after [`setup`]; returns the path of the `nicpath` binary.
pub(crate) fn build(workspace: &Workspace, programs: Programs) -> Result<PathBuf> {
    let toolchain = setup(workspace)?;
    build_programs(workspace, &toolchain, programs)?;
    let mut agent = workspace.cargo();
    agent.args(["build", "--release", "--locked", "-p", "agent"]);
    step::run_cargo("build: nicpath", &mut agent)?;
    Ok(workspace.nicpath())
}

fn build_programs(workspace: &Workspace, toolchain: &Toolchain, programs: Programs) -> Result<()> {
    let folder = workspace.target.join("bpf");
    // Before compiling: a source that changes meanwhile makes the object stale, and that must show.
    let package = workspace.root.join("ebpf");
    let hash = source_hash(&package).with_context(|| format!("cannot read {}", package.display()))?;
    let mut command = programs_command(&workspace.root, &folder, toolchain, programs);
    step::run_cargo("build: eBPF programs", &mut command)?;
    let built = folder.join(TARGET).join(PROFILE).join("nicpath-ebpf");
    let object = fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?;
    write_if_changed(&workspace.bpf_object(), &object)?;
    write_if_changed(&workspace.bpf_object().with_extension("o.source"), hash.as_bytes())
}

fn programs_command(root: &Path, folder: &Path, toolchain: &Toolchain, programs: Programs) -> Command {
    let Toolchain { compiler, linker } = toolchain;
    let linker = format!("-Clinker={}", linker.path.display());
    let mut command = Command::new(&compiler.cargo);
    without_cargo_env(&mut command)
        .current_dir(root)
        .args(["build", "--locked", "--package", "ebpf", "--bin", "nicpath-ebpf"])
        .args(["--target", TARGET, "-Z", "build-std=core", "--profile", PROFILE, "--target-dir"])
        .arg(folder)
        .env("RUSTC", &compiler.rustc)
        .env("CARGO_ENCODED_RUSTFLAGS", ["-Cdebuginfo=2", "-Clink-arg=--btf", &linker].join("\x1f"));
    match programs {
        Programs::Release => {}
        Programs::Debug => {
            command.args(["--features", "log"]);
        }
    }
    if !compiler.version.nightly {
        command.env("RUSTC_BOOTSTRAP", "1");
    }
    command
}

/// Replaces `path` in one step, and only if its content differs, so that nothing that depends on it is built again.
fn write_if_changed(path: &Path, content: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|present| present == content) {
        return Ok(());
    }
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    fs::write(&partial, content)
        .and_then(|()| fs::rename(&partial, path))
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toolchain::{Compiler, Linker, RustcVersion, Version};

    fn toolchain(nightly: bool) -> Toolchain {
        let version = RustcVersion { release: Version::new(1, 96), nightly, llvm: 22 };
        Toolchain {
            compiler: Compiler { rustc: "/opt/bin/rustc".into(), cargo: "/opt/bin/cargo".into(), version },
            linker: Linker { path: "/opt/bin/bpf-linker".into(), llvm: Some(22) },
        }
    }

    fn variable(command: &Command, name: &str) -> Option<String> {
        command.get_envs().find(|(key, _)| *key == name)?.1.map(|value| value.to_string_lossy().into_owned())
    }

    #[test]
    fn the_programs_are_built_by_the_chosen_compiler_and_linker_only() {
        let root = Path::new("/src");
        let command = programs_command(root, Path::new("/out"), &toolchain(false), Programs::Release);
        assert_eq!(command.get_program(), "/opt/bin/cargo");
        assert_eq!(variable(&command, "RUSTC").as_deref(), Some("/opt/bin/rustc"));
        assert_eq!(variable(&command, "RUSTC_BOOTSTRAP").as_deref(), Some("1"));
        let flags = variable(&command, "CARGO_ENCODED_RUSTFLAGS").unwrap();
        assert!(flags.split('\x1f').any(|flag| flag == "-Clinker=/opt/bin/bpf-linker"), "{flags}");
        // cargo sets these two for the tests too, so their removal shows.
        for name in ["CARGO", "CARGO_MANIFEST_DIR"] {
            assert!(command.get_envs().any(|(key, value)| key == name && value.is_none()), "{name} leaks");
        }
    }

    #[test]
    fn a_nightly_needs_no_bootstrap_and_debug_programs_log() {
        let command = programs_command(Path::new("/src"), Path::new("/out"), &toolchain(true), Programs::Debug);
        assert_eq!(variable(&command, "RUSTC_BOOTSTRAP"), None);
        let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
        assert!(arguments.windows(2).any(|pair| pair == ["--features", "log"]), "{arguments:?}");
    }

    #[test]
    fn an_unchanged_object_keeps_its_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("object");
        write_if_changed(&path, b"one").unwrap();
        let old = std::time::SystemTime::UNIX_EPOCH;
        fs::File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
        write_if_changed(&path, b"one").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), old);
        write_if_changed(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_ne!(fs::metadata(&path).unwrap().modified().unwrap(), old);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no partial file stays");
    }

    #[test]
    fn the_source_hash_follows_content_names_and_new_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        fs::create_dir_all(folder.path().join("src/deep")).unwrap();
        file("Cargo.toml", "[package]");
        file("src/lib.rs", "mod a;");
        file("src/deep/a.rs", "");
        let hash = || source_hash(folder.path()).unwrap();
        let first = hash();
        assert_eq!(first, hash(), "the same source has the same hash");
        assert_eq!(first.len(), 16);
        file("README.md", "no source");
        assert_eq!(first, hash());
        file("src/deep/a.rs", " ");
        let edited = hash();
        assert_ne!(first, edited);
        fs::rename(folder.path().join("src/deep/a.rs"), folder.path().join("src/deep/b.rs")).unwrap();
        let renamed = hash();
        assert_ne!(edited, renamed);
        file("src/c.rs", "");
        assert_ne!(renamed, hash());
        file("Cargo.toml", "[package] ");
        assert_ne!(renamed, hash());
    }
}
