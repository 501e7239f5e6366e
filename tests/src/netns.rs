//! One network namespace, and code and programs that run in it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread::{self, JoinHandle};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use crate::{scratch, sys};

/// Where `ip netns` looks for namespaces.
const RUN: &str = "/run/netns";
const PREFIX: &str = "np";
const NO: Option<&str> = None;

/// A network namespace named `np<pid>-<n>-<role>`, removed on drop.
///
/// It is visible to `ip netns`. A process that is killed leaves its namespaces: [`sweep`] of a later one removes them.
#[derive(Debug)]
pub struct Netns {
    entry: Entry,
}

/// A way into a namespace that may outlive its [`Netns`]: the namespace then lives on without a name.
#[derive(Clone, Debug)]
pub struct Entry {
    name: Arc<str>,
    file: Arc<File>,
}

impl Netns {
    /// Makes a namespace with `lo` up. `role` is one word: it ends the name.
    #[must_use]
    pub fn new(role: &str) -> Self {
        let netns = Self::bare(role);
        netns.ip("link set lo up");
        netns
    }

    /// Makes a namespace whose `lo` is still down.
    pub(crate) fn bare(role: &str) -> Self {
        static SWEPT: Once = Once::new();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        SWEPT.call_once(sweep);
        let name = format!("{PREFIX}{}-{}-{role}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(RUN).join(&name);
        let file = create(&path).unwrap_or_else(|error| panic!("network namespace {name}: {error:#}"));
        let entry = Entry { name: name.into(), file: Arc::new(file) };
        Self { entry }
    }

    /// The name that `ip netns` shows.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.entry.name
    }

    /// The file that holds the namespace, for `nsenter --net=`.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new(RUN).join(self.name())
    }

    /// A way in that can be moved to another thread.
    #[must_use]
    pub fn entry(&self) -> Entry {
        self.entry.clone()
    }

    /// Runs `work` on a new thread inside the namespace and returns what it returns; a panic is passed on.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.entry.run(work)
    }

    /// A command whose child enters the namespace. Mounts (/sys, bpffs) stay those of the caller.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.entry.command(program)
    }

    /// `ip ARGUMENTS` in the namespace, split at blanks; its standard output. Panics with its message if it fails.
    pub fn ip(&self, arguments: &str) -> String {
        self.feed("ip", &arguments.split_whitespace().collect::<Vec<_>>(), "")
    }

    /// Many `ip` commands, one a line without the word `ip`, in one process; stops and panics at the first failure.
    pub fn ip_batch(&self, lines: &str) {
        self.feed("ip", &["-batch", "-"], lines);
    }

    /// `nft -f -` with `ruleset`: one transaction.
    pub fn nft(&self, ruleset: &str) {
        self.feed("nft", &["-f", "-"], ruleset);
    }

    /// Runs `program` in the namespace with `input` as its standard input; returns its standard output.
    ///
    /// Panics with the standard error if it cannot be run or fails.
    pub fn feed(&self, program: &str, arguments: &[&str], input: &str) -> String {
        let mut command = self.command(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let ran = command.spawn().and_then(|mut child| {
            let mut stdin = child.stdin.take();
            if let Some(stdin) = stdin.as_mut().filter(|_| !input.is_empty()) {
                // A program that fails early closes its end; its own message says more than the broken pipe.
                stdin.write_all(input.as_bytes()).or_else(|error| match error.kind() {
                    std::io::ErrorKind::BrokenPipe => Ok(()),
                    _ => Err(error),
                })?;
            }
            drop(stdin);
            child.wait_with_output()
        });
        let call = || format!("{program} {} in {}", arguments.join(" "), self.name());
        let output = ran.unwrap_or_else(|error| panic!("{}: {error}", call()));
        if !output.status.success() {
            let input = if input.is_empty() { String::new() } else { format!("\ninput:\n{input}") };
            panic!("{}: {}\n{}{input}", call(), output.status, String::from_utf8_lossy(&output.stderr).trim_end());
        }
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Writes a setting below /proc/sys, for instance `net/ipv4/conf/eth1/rp_filter`.
    pub fn sysctl(&self, path: &str, value: &str) {
        self.sysctls(&[(path, value)]);
    }

    /// Writes several settings below /proc/sys, in this order.
    pub fn sysctls(&self, settings: &[(&str, &str)]) {
        self.run(|| {
            for (path, value) in settings {
                std::fs::write(Path::new("/proc/sys").join(path), value)
                    .unwrap_or_else(|error| panic!("sysctl {path}={value} in {}: {error}", self.name()));
            }
        });
    }

    /// Reads a setting below /proc/sys.
    #[must_use]
    pub fn read_sysctl(&self, path: &str) -> String {
        let read = self.run(|| std::fs::read_to_string(Path::new("/proc/sys").join(path)));
        read.unwrap_or_else(|error| panic!("sysctl {path} in {}: {error}", self.name())).trim_end().to_owned()
    }

    /// Index of a device of this namespace.
    #[must_use]
    pub fn ifindex(&self, device: &str) -> u32 {
        self.run(|| nix::net::if_::if_nametoindex(device))
            .unwrap_or_else(|error| panic!("device {device} in {}: {error}", self.name()))
    }

    /// Leaves the namespace in place when this value is dropped, until a later [`sweep`].
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Entry {
    /// As [`Netns::run`].
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| scope.spawn(|| self.enter_and(work)).join()).unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Starts a thread that runs inside the namespace for as long as `work` lasts.
    pub fn spawn<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let entry = self.clone();
        thread::spawn(move || entry.enter_and(work))
    }

    /// As [`Netns::command`].
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        sys::enter_before_exec(&mut command, Arc::clone(&self.file));
        command
    }

    /// For threads of our own only: the thread stays in the namespace.
    fn enter_and<T>(&self, work: impl FnOnce() -> T) -> T {
        setns(self.file.as_fd(), CloneFlags::CLONE_NEWNET)
            .unwrap_or_else(|error| panic!("enter network namespace {}: {error}", self.name));
        work()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path()) {
            eprintln!("network namespace {} stays: {error}", self.name());
        }
        let mut run = RUN_MOUNT.lock().unwrap_or_else(PoisonError::into_inner);
        // Refused as busy while any namespace, ours or not, is left in it.
        if *run == RunMount::Ours && umount(RUN).is_ok() {
            *run = RunMount::Foreign;
        }
    }
}

/// Removes the namespaces and temporary directories of fixture processes that no longer live.
///
/// Runs by itself before a process makes its first namespace.
pub fn sweep() {
    scratch::sweep();
    let Ok(entries) = std::fs::read_dir(RUN) else { return };
    let orphans = entries.flatten().filter(|entry| scratch::is_orphan(&entry.file_name().to_string_lossy(), PREFIX));
    for entry in orphans {
        match remove(&entry.path()) {
            // Another process swept at the same time.
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(error) => eprintln!("network namespace {} of a dead process stays: {error}", entry.path().display()),
        }
    }
}

/// Who made /run/netns the mount point that `ip netns` makes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunMount {
    Foreign,
    Ours,
}

static RUN_MOUNT: Mutex<RunMount> = Mutex::new(RunMount::Foreign);

fn create(path: &Path) -> anyhow::Result<File> {
    use anyhow::Context as _;
    let mut run = RUN_MOUNT.lock().unwrap_or_else(PoisonError::into_inner);
    std::fs::create_dir_all(RUN).context(RUN)?;
    // As `ip netns` does. Without it, an `ip netns add` of somebody else would bind /run/netns over itself together
    // with the namespaces that are mounted in it, and removing the copy would not free them.
    if mount(NO, RUN, NO, MsFlags::MS_SHARED | MsFlags::MS_REC, NO).is_err() {
        mount(Some(RUN), RUN, NO, MsFlags::MS_BIND | MsFlags::MS_REC, NO).context("bind mount")?;
        mount(NO, RUN, NO, MsFlags::MS_SHARED | MsFlags::MS_REC, NO).context("shared mount")?;
        *run = RunMount::Ours;
    }
    File::create_new(path).context("name")?;
    let made = thread::scope(|scope| {
        let make = || {
            unshare(CloneFlags::CLONE_NEWNET).context("unshare")?;
            mount(Some("/proc/thread-self/ns/net"), path, NO, MsFlags::MS_BIND, NO).context("bind mount")?;
            // Checks ping by unprivileged sockets, whose answers the kernel sorts by id.
            std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647").context("ping_group_range")
        };
        scope.spawn(make).join().unwrap_or_else(|panic| resume_unwind(panic))
    });
    made.and_then(|()| File::open(path).context("open")).inspect_err(|_| {
        let _removed = remove(path);
    })
}

fn remove(path: &Path) -> Result<(), Errno> {
    match umount2(path, MntFlags::MNT_DETACH) {
        // EINVAL: the process died between making the file and mounting on it.
        Ok(()) | Err(Errno::EINVAL) => nix::unistd::unlink(path),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(name: &str) -> bool {
        let list = Command::new("ip").args(["netns", "list"]).output().unwrap();
        String::from_utf8_lossy(&list.stdout).lines().any(|line| line.split(' ').next() == Some(name))
    }

    #[test]
    fn lives_as_long_as_its_guard() {
        let netns = Netns::new("life");
        let name = netns.name().to_owned();
        assert!(listed(&name));
        drop(netns);
        assert!(!listed(&name));
        assert!(!Path::new(RUN).join(name).exists());
    }

    #[test]
    fn is_removed_when_the_test_panics() {
        let name = Mutex::new(String::new());
        let result = std::panic::catch_unwind(|| {
            let netns = Netns::new("panic");
            netns.name().clone_into(&mut name.lock().unwrap());
            netns.ip("link show no-such-device");
        });
        assert!(result.is_err());
        assert!(!listed(&name.into_inner().unwrap_or_else(PoisonError::into_inner)));
    }

    #[test]
    fn threads_and_programs_run_inside_and_the_caller_stays_outside() {
        let outside = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let netns = Netns::new("inside");
        let thread = netns.run(|| std::fs::read_link("/proc/thread-self/ns/net").unwrap());
        let program = netns.command("readlink").arg("/proc/self/ns/net").output().unwrap();
        assert_ne!(thread, outside);
        assert_eq!(String::from_utf8_lossy(&program.stdout).trim_end(), thread.to_str().unwrap());
        assert_eq!(std::fs::read_link("/proc/thread-self/ns/net").unwrap(), outside);
    }

    #[test]
    fn settings_are_those_of_the_namespace() {
        let (one, other) = (Netns::new("one"), Netns::new("other"));
        other.sysctl("net/ipv4/ip_forward", "0");
        one.sysctl("net/ipv4/ip_forward", "1");
        assert_eq!(
            (one.read_sysctl("net/ipv4/ip_forward").as_str(), other.read_sysctl("net/ipv4/ip_forward").as_str()),
            ("1", "0")
        );
    }

    #[test]
    #[should_panic(expected = "Cannot find device \"nowhere\"")]
    fn a_failed_command_tells_why() {
        Netns::new("fail").ip("link set nowhere up");
    }

    #[test]
    fn namespaces_of_dead_processes_are_swept() {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let alive = Netns::new("alive");
        let orphan = Path::new(RUN).join(format!("{PREFIX}{}-0-orphan", child.id()));
        create(&orphan).unwrap();
        sweep();
        assert!(!orphan.exists());
        assert!(listed(alive.name()));
    }
}
