//! Temporary directories whose names tell the process they belong to, so that those of dead processes can be found.

use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, umount2};
use tempfile::TempDir;

const PREFIX: &str = "nicpath-";

/// A fresh directory `nicpath-<pid>-<purpose>-…` in the system's place for temporary files; removed on drop.
pub(crate) fn directory(purpose: &str) -> TempDir {
    let prefix = format!("{PREFIX}{}-{purpose}-", std::process::id());
    tempfile::Builder::new()
        .prefix(&prefix)
        .tempdir()
        .unwrap_or_else(|error| panic!("no temporary directory {prefix}…: {error}"))
}

/// Whether `name`, `<prefix><pid>-…`, belongs to a process that no longer lives.
pub(crate) fn is_orphan(name: &str, prefix: &str) -> bool {
    let pid = name.strip_prefix(prefix).and_then(|rest| rest.split('-').next()).and_then(|pid| pid.parse::<u32>().ok());
    pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
}

/// Removes the directories of dead processes, and what is mounted on them.
pub(crate) fn sweep() {
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else { return };
    let orphans = entries.flatten().filter(|entry| is_orphan(&entry.file_name().to_string_lossy(), PREFIX));
    for path in orphans.map(|entry| entry.path()).filter(|path| path.is_dir()) {
        remove(&path);
    }
}

fn remove(path: &PathBuf) {
    // EINVAL: nothing is mounted there, which is the rule.
    while umount2(path, MntFlags::MNT_DETACH).is_ok() {}
    if let Err(error) = std::fs::remove_dir_all(path) {
        eprintln!("left behind by a dead process and not removable: {}: {error}", path.display());
    }
}
