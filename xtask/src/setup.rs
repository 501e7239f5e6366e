//! `cargo xtask setup`: has what building and testing needs, or installs it, or says how to get it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use std::{env, iter};

use anyhow::{Context as _, Result, bail};

use crate::step;
use crate::toolchain::{Places, Survey, Toolchain, oldest_rustc, programs, without_cargo_env};
use crate::workspace::{Workspace, is_root};

/// Programs the tests, the demo and the benches run, and the Debian package of each.
const PROGRAMS: [(&str, &str); 7] = [
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("nft", "nftables"),
    ("iptables", "iptables"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("setarch", "util-linux"),
];

/// A compiler of Debian's own (12 and later) that has the standard library's sources.
const COMPILER_PACKAGES: [&str; 4] = ["rustc-web", "cargo-web", "rust-web-src", "rust-web-llvm"];

const BPF_LINKER_VERSION: &str = "0.13.0";
/// The LLVM versions that this bpf-linker can be built with.
const BPF_LINKER_LLVM: std::ops::RangeInclusive<u32> = 21..=23;

/// Whether packages can be installed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packages {
    /// A Debian-like system, and we are root.
    Apt,
    /// A Debian-like system, and we are not.
    NeedRoot,
    /// No apt-get.
    Unknown,
}

/// The next thing to get on the way to an eBPF tool chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    /// A compiler with the standard library's sources.
    Compiler,
    /// A bpf-linker with at least this LLVM.
    Linker { llvm: u32 },
}

/// Finds or installs everything and returns the tool chain that builds the eBPF programs.
pub(crate) fn setup(workspace: &Workspace) -> Result<Toolchain> {
    let started = Instant::now();
    let packages = packages();
    ensure_programs(workspace, packages)?;
    let toolchain = ensure_toolchain(workspace, packages)?;
    let Toolchain { compiler, linker } = &toolchain;
    let version = compiler.version;
    println!(
        "setup: eBPF by {} {} (LLVM {}) and {}, ready in {}",
        compiler.rustc.display(),
        version.release,
        version.llvm,
        linker.path.display(),
        step::seconds(started.elapsed()),
    );
    Ok(toolchain)
}

fn packages() -> Packages {
    match (Path::new("/usr/bin/apt-get").exists(), is_root()) {
        (true, true) => Packages::Apt,
        (true, false) => Packages::NeedRoot,
        (false, _) => Packages::Unknown,
    }
}

fn ensure_programs(workspace: &Workspace, packages: Packages) -> Result<()> {
    let folders = program_folders(&Places::from_env());
    let missing = missing_programs(&folders);
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = missing.iter().map(|(program, _)| *program).collect();
    let mut wanted: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    wanted.dedup();
    match packages {
        Packages::Apt => apt_install(workspace, "programs", &wanted)?,
        Packages::NeedRoot => bail!("missing: {}; run `sudo apt-get install {}`", names.join(" "), wanted.join(" ")),
        Packages::Unknown => bail!("missing: {}; install what Debian calls {}", names.join(" "), wanted.join(" ")),
    }
    let still: Vec<_> = missing_programs(&folders).iter().map(|(program, _)| *program).collect();
    if !still.is_empty() {
        bail!("{} still missing after installing {}", still.join(" "), wanted.join(" "));
    }
    Ok(())
}

/// `PATH`, and the folders of administration programs that an ordinary user's `PATH` leaves out.
fn program_folders(places: &Places) -> Vec<PathBuf> {
    places.path.iter().cloned().chain(["/usr/sbin", "/sbin"].map(PathBuf::from)).collect()
}

fn missing_programs(folders: &[PathBuf]) -> Vec<(&'static str, &'static str)> {
    PROGRAMS.into_iter().filter(|(program, _)| programs(folders.iter().cloned(), program).is_empty()).collect()
}

fn ensure_toolchain(workspace: &Workspace, packages: Packages) -> Result<Toolchain> {
    let places = Places::from_env();
    let scratch = workspace.target.join("xtask");
    let mut attempted: Option<Missing> = None;
    loop {
        let mut survey = Survey::of(&places);
        if let Some(toolchain) = survey.choose(&scratch)? {
            return Ok(toolchain);
        }
        let missing = next_missing(&survey);
        // Each install must bring the next need or success; the same need again would go on for ever.
        let repeated = matches!(
            (attempted, missing),
            (Some(Missing::Compiler), Missing::Compiler) | (Some(Missing::Linker { .. }), _)
        );
        if packages != Packages::Apt || repeated {
            bail!("{}", by_hand(missing, &survey.refused, packages));
        }
        for refused in &survey.refused {
            println!("setup: not usable: {refused}");
        }
        install(workspace, missing).with_context(|| by_hand(missing, &[], packages))?;
        attempted = Some(missing);
    }
}

/// A linker is enough if there is a compiler whose LLVM a bpf-linker can be built with.
fn next_missing(survey: &Survey) -> Missing {
    survey
        .compilers
        .iter()
        .map(|compiler| compiler.version.llvm)
        .find(|llvm| BPF_LINKER_LLVM.contains(llvm))
        .map_or(Missing::Compiler, |llvm| Missing::Linker { llvm })
}

fn install(workspace: &Workspace, missing: Missing) -> Result<()> {
    match missing {
        Missing::Compiler => apt_install(workspace, "compiler", &COMPILER_PACKAGES),
        Missing::Linker { llvm } => install_linker(workspace, llvm),
    }
}

fn install_linker(workspace: &Workspace, llvm: u32) -> Result<()> {
    let prefix = PathBuf::from(format!("/usr/lib/llvm-{llvm}"));
    if !prefix.join("bin/llvm-config").exists() || !prefix.join("include/llvm-c/Core.h").exists() {
        let packages = llvm_packages(llvm);
        apt_install(workspace, "llvm", &packages.iter().map(String::as_str).collect::<Vec<_>>())?;
    }
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // In the root folder, so that the workspace's settings stay out; LLVM_PREFIX, or the first llvm-config on PATH
    // decides, which may be an older LLVM.
    without_cargo_env(&mut command)
        .current_dir("/")
        .args(["install", "bpf-linker", "--version", BPF_LINKER_VERSION, "--locked", "--no-default-features"])
        .args(["--force", "--features", &format!("llvm-{llvm}")])
        .env("LLVM_PREFIX", &prefix)
        .env(format!("LLVM_SYS_{llvm}1_PREFIX"), &prefix);
    step::run_logged("setup: cargo install bpf-linker", &mut command, &workspace.log("setup-bpf-linker"))
}

fn llvm_packages(llvm: u32) -> Vec<String> {
    vec![
        format!("llvm-{llvm}-dev"),
        format!("llvm-{llvm}"),
        format!("libpolly-{llvm}-dev"),
        "libzstd-dev".into(),
        "zlib1g-dev".into(),
    ]
}

fn apt_install(workspace: &Workspace, what: &str, packages: &[&str]) -> Result<()> {
    let log = |verb: &str| workspace.log(&format!("setup-{what}-{verb}"));
    step::run_logged("setup: apt-get update", &mut apt_get(&["update"]), &log("update"))?;
    // --no-remove: never trade a compiler that the user has chosen for this one.
    let arguments: Vec<_> =
        ["install", "--no-install-recommends", "--no-remove"].iter().chain(packages).copied().collect();
    step::run_logged(&format!("setup: installing {}", packages.join(" ")), &mut apt_get(&arguments), &log("install"))
}

fn apt_get(arguments: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.args(["-y", "-q", "-o", "DPkg::Lock::Timeout=300"]).args(arguments);
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// The error that tells what was found wanting and how to get it.
fn by_hand(missing: Missing, refused: &[String], packages: Packages) -> String {
    let what = match missing {
        Missing::Compiler => format!("no Rust compiler (≥ {}) with the standard library's sources", oldest_rustc()),
        Missing::Linker { llvm } => format!("no bpf-linker with LLVM {llvm} or later"),
    };
    let here = match packages {
        Packages::Apt | Packages::NeedRoot => "as root: cargo xtask setup",
        Packages::Unknown => "on Debian 12 as root: cargo xtask setup installs both",
    };
    let refused = refused.iter().map(|why| format!("not usable: {why}"));
    let ways = [
        here.to_owned(),
        "with rustup: rustup toolchain install nightly --component rust-src".to_owned(),
        format!(
            "and a bpf-linker whose LLVM is not older than that compiler's: a release from \
             github.com/aya-rs/bpf-linker, or LLVM_PREFIX=/usr/lib/llvm-N cargo install bpf-linker --version \
             {BPF_LINKER_VERSION} --locked --no-default-features --features llvm-N"
        ),
    ];
    iter::once(format!("the eBPF programs cannot be built: {what}"))
        .chain(refused)
        .chain(ways)
        .collect::<Vec<_>>()
        .join("\n  ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toolchain::{Compiler, Linker, RustcVersion, Version};

    fn compiler(llvm: u32) -> Compiler {
        let version = RustcVersion { release: Version::new(1, 96), nightly: false, llvm };
        Compiler { rustc: "/usr/bin/rustc".into(), cargo: "/usr/bin/cargo".into(), version }
    }

    #[test]
    fn without_a_compiler_the_compiler_comes_first() {
        assert_eq!(next_missing(&Survey::default()), Missing::Compiler);
    }

    #[test]
    fn a_linker_is_built_for_the_compiler_that_is_there() {
        let old_linker = Linker { path: "/usr/bin/bpf-linker".into(), llvm: Some(14) };
        let survey = Survey { compilers: vec![compiler(22)], linkers: vec![old_linker], refused: vec![] };
        assert_eq!(next_missing(&survey), Missing::Linker { llvm: 22 });
    }

    #[test]
    fn a_compiler_that_no_linker_can_be_built_for_does_not_count() {
        let survey = |llvms: &[u32]| Survey {
            compilers: llvms.iter().map(|llvm| compiler(*llvm)).collect(),
            ..Survey::default()
        };
        assert_eq!(next_missing(&survey(&[99])), Missing::Compiler);
        assert_eq!(next_missing(&survey(&[99, 23])), Missing::Linker { llvm: 23 });
    }

    #[test]
    fn the_error_names_what_is_missing_why_others_do_not_do_and_both_ways_out() {
        let text = by_hand(Missing::Compiler, &["/usr/bin/rustc: is 1.63".into()], Packages::NeedRoot);
        for part in ["(≥ 1.", "not usable: /usr/bin/rustc: is 1.63", "as root: cargo xtask setup", "rust-src"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let text = by_hand(Missing::Linker { llvm: 22 }, &[], Packages::Unknown);
        assert!(text.contains("no bpf-linker with LLVM 22 or later"), "{text}");
        assert!(text.contains("on Debian 12 as root"), "{text}");
    }

    #[test]
    fn programs_that_are_missing_are_named_with_their_package() {
        let missing = missing_programs(&[PathBuf::from("/nonexistent")]);
        assert_eq!(missing, PROGRAMS);
        assert!(missing.contains(&("nft", "nftables")));
    }

    #[test]
    fn administration_programs_are_found_without_their_folders_in_path() {
        let places = Places { path: vec![], rustup_home: None, cargo_home: None };
        assert!(program_folders(&places).contains(&PathBuf::from("/usr/sbin")));
    }

    #[test]
    fn apt_asks_nothing_and_waits_for_its_lock() {
        let command = apt_get(&["update"]);
        let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
        assert_eq!(arguments, ["-y", "-q", "-o", "DPkg::Lock::Timeout=300", "update"]);
        assert!(command.get_envs().any(|(name, _)| name == "DEBIAN_FRONTEND"));
    }
}
