//! Finds the eBPF object that `cargo xtask build` leaves in the target directory and tells whether it is the one of
//! this source. Without it the crate still checks, lints and documents; only producing code for it fails, with one
//! sentence (see `dataplane/object.rs`).

use std::{env, fs, path::Path};

#[path = "../xtask/src/source_hash.rs"]
mod source_hash;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(programs_built)");
    println!("cargo::rerun-if-env-changed=OUT_DIR");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../ebpf/src");
    println!("cargo::rerun-if-changed=../ebpf/Cargo.toml");
    let (Ok(out), Ok(manifest)) = (env::var("OUT_DIR"), env::var("CARGO_MANIFEST_DIR")) else {
        return;
    };
    // OUT_DIR is TARGET/[TRIPLE/]PROFILE/build/agent-HASH/out; the object stands in TARGET/bpf
    let Some(object) = Path::new(&out).ancestors().map(|dir| dir.join("bpf/nicpath.bpf.o")).find(|p| p.exists()) else {
        // look again as soon as it may be there
        if let Some(target) = Path::new(&out).ancestors().nth(4) {
            println!("cargo::rerun-if-changed={}", target.join("bpf/nicpath.bpf.o").display());
        }
        return;
    };
    println!("cargo::rerun-if-changed={}", object.display());
    let recorded = object.with_extension("o.source");
    println!("cargo::rerun-if-changed={}", recorded.display());
    let current = source_hash::source_hash(&Path::new(&manifest).join("../ebpf"));
    if current.is_ok_and(|hash| fs::read_to_string(&recorded).is_ok_and(|r| r.trim() == hash)) {
        println!("cargo::rustc-cfg=programs_built");
        println!("cargo::rustc-env=NICPATH_OBJECT={}", object.display());
    }
}
