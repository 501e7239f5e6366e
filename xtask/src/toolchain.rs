//! Finds what compiles and links an eBPF program: a rustc with cargo and the standard library's sources, and a
//! bpf-linker whose LLVM is not older than that rustc's. Installs nothing ([`crate::setup`] does).

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use anyhow::{Context as _, Result, bail};

/// Where to look.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// The folders of `PATH`.
    pub(crate) path: Vec<PathBuf>,
    /// Where rustup keeps its toolchains: `RUSTUP_HOME`, or `~/.rustup`.
    pub(crate) rustup_home: Option<PathBuf>,
    /// Where `cargo install` puts programs: `CARGO_HOME`, or `~/.cargo`.
    pub(crate) cargo_home: Option<PathBuf>,
}

impl Places {
    pub(crate) fn from_env() -> Self {
        let home = env::home_dir();
        let under_home = |variable: &str, folder: &str| {
            env::var_os(variable).map(PathBuf::from).or_else(|| home.as_ref().map(|home| home.join(folder)))
        };
        let path = env::var_os("PATH").unwrap_or_default();
        Self {
            path: env::split_paths(&path).collect(),
            rustup_home: under_home("RUSTUP_HOME", ".rustup"),
            cargo_home: under_home("CARGO_HOME", ".cargo"),
        }
    }
}

/// A version such as 1.96: major and minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(u32, u32);

impl Version {
    pub(crate) const fn new(major: u32, minor: u32) -> Self {
        Self(major, minor)
    }

    /// Reads the first two numbers of `1.96.0-nightly`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.trim().split(['.', '-']).map(|number| number.parse().ok());
        Some(Self(numbers.next()??, numbers.next()??))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.0, self.1)
    }
}

/// The oldest compiler that builds the workspace.
pub(crate) fn oldest_rustc() -> Version {
    Version::parse(env!("CARGO_PKG_RUST_VERSION")).unwrap_or(Version::new(1, 92))
}

/// What a rustc says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RustcVersion {
    pub(crate) release: Version,
    pub(crate) nightly: bool,
    /// LLVM's major version.
    pub(crate) llvm: u32,
}

impl RustcVersion {
    /// Reads the answer to `rustc -vV`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let release = field("release:")?;
        Some(Self {
            release: Version::parse(release)?,
            nightly: release.ends_with("-nightly") || release.ends_with("-dev"),
            llvm: field("LLVM version:")?.split('.').next()?.parse().ok()?,
        })
    }
}

/// A rustc with its cargo and its sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Compiler {
    pub(crate) rustc: PathBuf,
    pub(crate) cargo: PathBuf,
    pub(crate) version: RustcVersion,
}

/// A bpf-linker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Linker {
    pub(crate) path: PathBuf,
    /// LLVM's major version, if the program tells.
    pub(crate) llvm: Option<u32>,
}

impl Linker {
    /// Whether it may read what a compiler with this LLVM writes. Only a try tells if its LLVM is unknown.
    pub(crate) fn reads(&self, llvm: u32) -> bool {
        self.llvm.is_none_or(|own| own >= llvm)
    }
}

/// A compiler and a linker that fit each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Toolchain {
    pub(crate) compiler: Compiler,
    pub(crate) linker: Linker,
}

/// All that was found, the preferred first, and why the rest cannot be used.
#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    pub(crate) compilers: Vec<Compiler>,
    pub(crate) linkers: Vec<Linker>,
    /// One line for each candidate that was put aside.
    pub(crate) refused: Vec<String>,
}

impl Survey {
    /// Looks at rustup's toolchains (nightly ones first), then at the rustc programs of `PATH`; at the bpf-linkers of
    /// `PATH`, then of cargo's own folder.
    pub(crate) fn of(places: &Places) -> Self {
        let mut survey = Self::default();
        for rustc in rustc_candidates(places) {
            match compiler_at(&rustc) {
                Ok(compiler) => survey.compilers.push(compiler),
                Err(error) => survey.refused.push(format!("{}: {error:#}", rustc.display())),
            }
        }
        survey.compilers.sort_by_key(|compiler| !compiler.version.nightly);
        let cargo_bin = places.cargo_home.iter().map(|home| home.join("bin"));
        for path in programs(places.path.iter().cloned().chain(cargo_bin), "bpf-linker") {
            survey.linkers.push(Linker { llvm: linker_llvm(&path), path });
        }
        survey
    }

    /// The pairs whose versions fit, the preferred first.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = Toolchain> {
        self.compilers.iter().flat_map(|compiler| {
            self.linkers
                .iter()
                .filter(|linker| linker.reads(compiler.version.llvm))
                .map(|linker| Toolchain { compiler: compiler.clone(), linker: linker.clone() })
        })
    }

    /// The first pair that compiles and links a trial program, with the trials' files in `scratch`.
    pub(crate) fn choose(&mut self, scratch: &Path) -> Result<Option<Toolchain>> {
        let pairs: Vec<_> = self.pairs().collect();
        for pair in pairs {
            match try_out(&pair, scratch)? {
                Trial::Works => return Ok(Some(pair)),
                Trial::Fails(why) => self.refused.push(why),
            }
        }
        Ok(None)
    }
}

fn rustc_candidates(places: &Places) -> Vec<PathBuf> {
    let mut toolchains: Vec<_> = places
        .rustup_home
        .iter()
        .filter_map(|home| fs::read_dir(home.join("toolchains")).ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("bin/rustc")))
        .filter(|rustc| is_program(rustc))
        .collect();
    toolchains.sort_unstable();
    // A rustc that is a link to rustup only forwards to one of the toolchains above.
    let on_path = programs(places.path.iter().cloned(), "rustc").into_iter().filter(|rustc| !is_rustup_proxy(rustc));
    toolchains.into_iter().chain(on_path).collect()
}

fn is_rustup_proxy(program: &Path) -> bool {
    fs::canonicalize(program).is_ok_and(|real| real.file_name().is_some_and(|name| name == "rustup"))
        || program.with_file_name("rustup").exists()
}

/// Every different program `name` in `folders`, in their order.
pub(crate) fn programs(folders: impl Iterator<Item = PathBuf>, name: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    let mut seen: Vec<PathBuf> = Vec::new();
    for program in folders.map(|folder| folder.join(name)).filter(|program| is_program(program)) {
        let real = fs::canonicalize(&program).unwrap_or_else(|_| program.clone());
        if !seen.contains(&real) {
            seen.push(real);
            found.push(program);
        }
    }
    found
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

fn compiler_at(rustc: &Path) -> Result<Compiler> {
    if !has_sources(rustc.ancestors().nth(2)) {
        // Not laid out as usual: only the compiler knows where its files are.
        let sysroot = PathBuf::from(ask(rustc, &["--print", "sysroot"])?.trim());
        if !has_sources(Some(&sysroot)) {
            bail!("has no sources of the standard library ({} is missing)", sysroot.join(LIBRARY).display());
        }
    }
    let version = RustcVersion::parse(&ask(rustc, &["-vV"])?).context("does not tell its version and LLVM")?;
    let oldest = oldest_rustc();
    if version.release < oldest {
        bail!("is {}, older than {oldest}", version.release);
    }
    let cargo = rustc.with_file_name("cargo");
    if !is_program(&cargo) {
        bail!("has no cargo beside it");
    }
    Ok(Compiler { rustc: rustc.to_owned(), cargo, version })
}

const LIBRARY: &str = "lib/rustlib/src/rust/library";

fn has_sources(sysroot: Option<&Path>) -> bool {
    sysroot.is_some_and(|sysroot| sysroot.join(LIBRARY).join("core").is_dir())
}

fn ask(program: &Path, arguments: &[&str]) -> Result<String> {
    let output = without_cargo_env(Command::new(program).args(arguments)).output().context("does not start")?;
    if !output.status.success() {
        bail!("{}", first_line(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn first_line(output: &[u8]) -> String {
    String::from_utf8_lossy(output).lines().next().unwrap_or("failed without a word").to_owned()
}

/// Takes out of a child's environment what rustup and the cargo that runs xtask have put there, and the user's
/// settings for host builds.
pub(crate) fn without_cargo_env(command: &mut Command) -> &mut Command {
    let set_for_us = env::vars_os().map(|(name, _)| name).filter(|name| {
        let Some(name) = name.to_str() else { return false };
        let build = ["CARGO_MANIFEST_", "CARGO_PKG_", "CARGO_BUILD_", "CARGO_PROFILE_", "CARGO_TARGET_"];
        let exact = ["CARGO", "CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS", "LD_LIBRARY_PATH", "RUSTUP_TOOLCHAIN"];
        exact.contains(&name) || name.starts_with("RUSTC") || build.iter().any(|prefix| name.starts_with(prefix))
    });
    for name in set_for_us {
        command.env_remove(name);
    }
    command
}

/// The LLVM of a linker: the shared library it needs, or the name that a linked-in LLVM carries.
fn linker_llvm(path: &Path) -> Option<u32> {
    let output = Command::new("grep")
        .args(["-aoE", r"libLLVM(-|\.so\.)[0-9]+|LLVM[0-9]+\.[0-9]+\.[0-9]+"])
        .arg(path)
        .output()
        .ok()?;
    parse_llvm_mention(&String::from_utf8_lossy(&output.stdout))
}

/// Reads `libLLVM.so.22`, `libLLVM-14` or `LLVM22.1.8`; the first line counts.
fn parse_llvm_mention(text: &str) -> Option<u32> {
    let mention = text.lines().next()?;
    let digits = mention.trim_start_matches(|c: char| !c.is_ascii_digit());
    digits.split('.').next()?.parse().ok()
}

enum Trial {
    Works,
    Fails(String),
}

/// The smallest crate a compiler accepts: nothing of core is needed.
const TRIAL_CRATE: &str = "#![feature(no_core)]\n#![no_core]\n#![no_std]\n";

fn try_out(pair: &Toolchain, scratch: &Path) -> Result<Trial> {
    fs::create_dir_all(scratch).with_context(|| format!("cannot create {}", scratch.display()))?;
    let file = |extension: &str| scratch.join(format!("trial-{}.{extension}", std::process::id()));
    let (source, bitcode, object) = (file("rs"), file("bc"), file("o"));
    fs::write(&source, TRIAL_CRATE).with_context(|| format!("cannot write {}", source.display()))?;
    let mut compile = Command::new(&pair.compiler.rustc);
    compile
        .args(["--crate-type=lib", "--crate-name=trial", "--emit=llvm-bc", "--target=bpfel-unknown-none", "-o"])
        .args([&bitcode, &source]);
    let mut link = Command::new(&pair.linker.path);
    link.args(["--target=bpfel", "--btf", "-o"]).args([&object, &bitcode]);
    let mut outcome = Trial::Works;
    for command in [&mut compile, &mut link] {
        let output = without_cargo_env(command).env("RUSTC_BOOTSTRAP", "1").stdin(Stdio::null()).output();
        let why = match output {
            Ok(output) if output.status.success() => continue,
            Ok(output) => first_line(&output.stderr),
            Err(error) => error.to_string(),
        };
        outcome = Trial::Fails(format!("{}: fails on a trial program: {why}", command.get_program().display()));
        break;
    }
    for leftover in [source, bitcode, object] {
        // Absent if the trial stopped early.
        let _ = fs::remove_file(leftover);
    }
    Ok(outcome)
}

#[cfg(test)]
#[path = "toolchain_tests.rs"]
mod tests;
