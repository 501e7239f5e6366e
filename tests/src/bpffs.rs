//! A private BPF file system, so that pins of one test are never seen by another.

use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tempfile::TempDir;

use crate::scratch;

/// A bpffs of its own on a fresh temporary directory; unmounted and removed on drop.
///
/// Everything pinned in it is released with it: a program stays attached no longer than its pin.
#[derive(Debug)]
pub struct Bpffs {
    directory: TempDir,
}

impl Bpffs {
    /// Mounts it. Needs root; panics where the kernel has no bpffs.
    #[must_use]
    pub fn mount() -> Self {
        let directory = scratch::directory("bpffs");
        mount(Some("bpf"), directory.path(), Some("bpf"), MsFlags::empty(), Some("mode=0700"))
            .unwrap_or_else(|error| panic!("mount -t bpf bpf {}: {error}", directory.path().display()));
        Self { directory }
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Bpffs {
    fn drop(&mut self) {
        if let Err(error) = umount2(self.path(), MntFlags::MNT_DETACH) {
            eprintln!("umount {}: {error}", self.path().display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounted(path: &Path) -> bool {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        mounts.lines().any(|line| line.split(' ').nth(1) == path.to_str() && line.contains(" bpf "))
    }

    #[test]
    fn is_mounted_while_it_lives_and_gone_afterwards() {
        let bpffs = Bpffs::mount();
        let path = bpffs.path().to_owned();
        assert!(mounted(&path));
        drop(bpffs);
        assert!(!mounted(&path));
        assert!(!path.exists());
    }
}
