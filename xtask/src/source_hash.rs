//! A fingerprint of the eBPF programs' source. `cargo xtask build` writes it beside the object, and the agent's build
//! script compares it with the source it finds. Both compile this file, so it depends on nothing but std.

use std::path::{Path, PathBuf};
use std::{fs, io};

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// FNV-1a (64 bits, 16 hex digits, no newline) over `Cargo.toml` and every file under `src` of the package folder
/// `ebpf`, without tests: sorted by relative path, each as path, NUL, length of the content (8 bytes, little endian), content.
pub(crate) fn source_hash(ebpf: &Path) -> io::Result<String> {
    let mut files = vec![ebpf.join("Cargo.toml")];
    list_files(&ebpf.join("src"), &mut files)?;
    files.sort_unstable();
    let mut hash = FNV_OFFSET;
    for file in files {
        let relative = file.strip_prefix(ebpf).unwrap_or(&file);
        let content = fs::read(&file)?;
        hash = fnv1a(hash, relative.as_os_str().as_encoded_bytes());
        hash = fnv1a(hash, &[0]);
        hash = fnv1a(hash, &(content.len() as u64).to_le_bytes());
        hash = fnv1a(hash, &content);
    }
    Ok(format!("{hash:016x}"))
}

fn list_files(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // the host's tests are no part of the object
        if entry.path().file_stem().is_some_and(|name| name == "tests") {
            continue;
        }
        if entry.file_type()?.is_dir() {
            list_files(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}

fn fnv1a(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME))
}
