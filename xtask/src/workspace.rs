//! The workspace's folders, as cargo sees them, and cargo itself.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

/// What `cargo metadata` says about this workspace.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Workspace {
    /// The folder of the root `Cargo.toml`.
    #[serde(rename = "workspace_root")]
    pub(crate) root: PathBuf,
    /// `CARGO_TARGET_DIR`, or the workspace's `target`.
    #[serde(rename = "target_directory")]
    pub(crate) target: PathBuf,
    packages: Vec<Package>,
}

#[derive(Clone, Debug, Deserialize)]
struct Package {
    manifest_path: PathBuf,
}

impl Workspace {
    pub(crate) fn locate() -> Result<Self> {
        let output = Command::new(cargo())
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .context("cannot run cargo metadata")?;
        ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
        serde_json::from_slice(&output.stdout).context("cargo metadata answered something else than its JSON")
    }

    /// The folder of each member, in the order of their names.
    pub(crate) fn members(&self) -> Vec<&Path> {
        let mut folders: Vec<_> = self.packages.iter().filter_map(|package| package.manifest_path.parent()).collect();
        folders.sort_unstable();
        folders
    }

    /// A cargo command for the host, in the workspace's root.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = Command::new(cargo());
        command.current_dir(&self.root);
        command
    }

    /// The binary that `cargo xtask build` leaves.
    pub(crate) fn nicpath(&self) -> PathBuf {
        self.target.join("release/nicpath")
    }

    /// The eBPF programs that `cargo xtask build` leaves.
    pub(crate) fn bpf_object(&self) -> PathBuf {
        self.target.join("bpf/nicpath.bpf.o")
    }

    /// Where a long step keeps its output.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.target.join("xtask").join(format!("{name}.log"))
    }
}

/// The cargo that started us, else the one on PATH.
fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Whether this process may create namespaces and install packages: its effective user is root.
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    // The owner of /proc/self is the effective user of the process.
    std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}
