//! What must be there before anything is touched: capabilities, kernel, BTF, bpffs. One sentence for each lack.

use std::path::Path;

use caps::{CapSet, Capability};
use nix::sys::{statfs, utsname};

use super::Failure;

/// Kernel that brought TCX.
const MINIMUM: (u32, u32) = (6, 6);
const BTF: &str = "/sys/kernel/btf/vmlinux";

/// What a command is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// Load and attach programs.
    Change,
    /// Read programs and maps that may be there.
    Read,
}

/// Everything that changing a node needs; reading needs capabilities alone.
pub(super) fn check(bpffs: &Path, need: Need) -> Result<(), Failure> {
    capabilities()?;
    match need {
        Need::Read => Ok(()),
        Need::Change => kernel().and_then(|()| btf()).and_then(|()| file_system(bpffs)),
    }
}

fn capabilities() -> Result<(), Failure> {
    // loading and maps; attaching, routes and settings; reading other programs by id
    let needed = [Capability::CAP_BPF, Capability::CAP_NET_ADMIN, Capability::CAP_SYS_ADMIN];
    let have = caps::read(None, CapSet::Effective)?;
    let missing: Vec<String> = needed.iter().filter(|cap| !have.contains(cap)).map(ToString::to_string).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::NotPermitted(format!(
        "this needs {}: run it as root or in a privileged container",
        missing.join(", ")
    )))
}

fn kernel() -> Result<(), Failure> {
    let release = utsname::uname()?.release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= MINIMUM {
        return Ok(());
    }
    let (major, minor) = MINIMUM;
    Err(Failure::Environment(format!(
        "this kernel is {release} and attaching programs by TCX needs {major}.{minor} or newer: run a newer kernel"
    )))
}

fn btf() -> Result<(), Failure> {
    if Path::new(BTF).exists() {
        return Ok(());
    }
    Err(Failure::Environment(format!(
        "{BTF} is missing: run a kernel built with CONFIG_DEBUG_INFO_BTF=y and mount /sys"
    )))
}

/// The directory, or the nearest one above that exists, is on a bpffs.
fn file_system(bpffs: &Path) -> Result<(), Failure> {
    let existing = bpffs.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
    let found = statfs::statfs(existing)?.filesystem_type();
    if found == statfs::BPF_FS_MAGIC {
        return Ok(());
    }
    Err(Failure::Environment(format!(
        "{} is not on a bpffs: run `mount -t bpf bpf /sys/fs/bpf`, or give a directory on one by --bpffs",
        bpffs.display()
    )))
}
