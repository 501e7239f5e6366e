//! The product's binary, run by its command line in the namespace of a node.
//!
//! What it leaves behind is seen by the tests through the kernel and through its own output, as its users see it.

use std::fs::File;
use std::io::{Read, Write};
use std::marker::PhantomData;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::bpffs::Bpffs;
use crate::netns::{Entry, Netns};
use crate::wait::eventually;
use crate::{scratch, sys};

/// A NicClass for each NIC of [`crate::TwoNic`], with its gateways.
pub const NIC_CLASSES: &str = r#"
apiVersion: nicpath.dev/v1alpha1
kind: NicClass
metadata: {name: user}
spec: {match: {names: [eth0]}, gateways: [10.10.0.1, "fd00:10::1"]}
---
apiVersion: nicpath.dev/v1alpha1
kind: NicClass
metadata: {name: mgmt}
spec: {match: {names: [eth1]}, gateways: [10.20.0.1, "fd00:20::1"]}
"#;

/// The second of [`NIC_CLASSES`] alone.
pub const MGMT_CLASS: &str = r#"
apiVersion: nicpath.dev/v1alpha1
kind: NicClass
metadata: {name: mgmt}
spec: {match: {names: [eth1]}, gateways: [10.20.0.1, "fd00:20::1"]}
"#;

/// A RouteEntry with one destination of each family by eth1.
pub const SERVICES: &str = r#"
apiVersion: nicpath.dev/v1alpha1
kind: RouteEntry
metadata: {name: services}
spec: {destinations: [172.30.0.0/16, "fd00:30::/48"], nic: {class: mgmt}}
"#;

/// Names the binary; without it the release build of this workspace is taken.
const BINARY_VARIABLE: &str = "NICPATH_BIN";
/// Where an agent serves /metrics and /readyz, inside the node's namespace.
const METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9909);
/// How long an agent may take until it is ready, and until it ends when told to.
const PATIENCE: Duration = Duration::from_secs(20);

/// The product on one node: its state, its bpffs and its manifests are its own and go with it.
///
/// On drop it is uninstalled, as far as that works.
#[derive(Debug)]
pub struct Product {
    entry: Entry,
    binary: PathBuf,
    bpffs: Bpffs,
    directory: TempDir,
    agents: AtomicU32,
}

impl Product {
    /// Prepares the directories; runs nothing yet. The binary is the one that `NICPATH_BIN` names, or the workspace's
    /// release build.
    #[must_use]
    pub fn new(node: &Netns) -> Self {
        Self::with_binary(node, binary())
    }

    /// As [`Product::new`], with a binary of the caller's choice.
    #[must_use]
    pub fn with_binary(node: &Netns, binary: PathBuf) -> Self {
        let directory = scratch::directory("product");
        for name in ["state", "manifests"] {
            let path = directory.path().join(name);
            std::fs::create_dir(&path).unwrap_or_else(|error| panic!("mkdir {}: {error}", path.display()));
        }
        Self { entry: node.entry(), binary, bpffs: Bpffs::mount(), directory, agents: AtomicU32::new(0) }
    }

    /// What `--state-dir` says.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// What `--manifests` says.
    #[must_use]
    pub fn manifest_dir(&self) -> PathBuf {
        self.directory.path().join("manifests")
    }

    /// What `--bpffs` says.
    #[must_use]
    pub fn bpffs(&self) -> &Path {
        self.bpffs.path()
    }

    /// Makes the manifest directory hold exactly these files, each replaced in one step.
    pub fn manifests(&self, files: &[(&str, &str)]) {
        let directory = self.manifest_dir();
        for (name, yaml) in files {
            // Outside the directory, so that an agent that watches it never sees a part of a file.
            let half = self.directory.path().join("half-written");
            let written = std::fs::write(&half, yaml).and_then(|()| std::fs::rename(&half, directory.join(name)));
            written.unwrap_or_else(|error| panic!("manifest {name}: {error}"));
        }
        let present = std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        for entry in present.flatten().filter(|entry| files.iter().all(|(name, _)| entry.file_name() != *name)) {
            std::fs::remove_file(entry.path()).unwrap_or_else(|error| panic!("{}: {error}", entry.path().display()));
        }
    }

    /// `nicpath COMMAND --state-dir … --bpffs … ARGUMENTS`, not started yet.
    pub fn command(&self, command: &str, arguments: &[&str]) -> Command {
        let mut made = self.entry.command(&self.binary);
        made.arg(command).arg("--state-dir").arg(self.state_dir()).arg("--bpffs").arg(self.bpffs()).args(arguments);
        made
    }

    /// Runs [`Product::command`] to its end, whatever its exit code is. Panics only if it cannot be started.
    pub fn run(&self, command: &str, arguments: &[&str]) -> Output {
        let output = self.command(command, arguments).output();
        output.unwrap_or_else(|error| panic!("{} {command}: {error}", self.binary.display()))
    }

    /// `nicpath apply` with the manifests.
    pub fn apply(&self) -> Output {
        self.run_with_manifests("apply", &[])
    }

    /// `nicpath check` with the manifests.
    pub fn check(&self, arguments: &[&str]) -> Output {
        self.run_with_manifests("check", arguments)
    }

    /// `nicpath COMMAND --manifests …`, for `apply` and `check`.
    pub fn run_with_manifests(&self, command: &str, arguments: &[&str]) -> Output {
        let output = self.command(command, arguments).arg("--manifests").arg(self.manifest_dir()).output();
        output.unwrap_or_else(|error| panic!("{} {command}: {error}", self.binary.display()))
    }

    /// `nicpath status -o json`; panics if it fails.
    #[must_use]
    pub fn status(&self) -> Value {
        self.json("status", &[])
    }

    /// `nicpath why ARGUMENTS -o json`; panics if it fails.
    #[must_use]
    pub fn why(&self, arguments: &[&str]) -> Value {
        self.json("why", arguments)
    }

    /// `nicpath uninstall`.
    pub fn uninstall(&self) -> Output {
        self.run("uninstall", &[])
    }

    /// Starts `nicpath agent` with the manifests and waits until it is ready.
    #[must_use]
    pub fn agent(&self) -> AgentGuard<'_> {
        self.agent_with(&[])
    }

    /// As [`Product::agent`], with more arguments.
    #[must_use]
    pub fn agent_with(&self, arguments: &[&str]) -> AgentGuard<'_> {
        let mut agent = self.agent_unready(arguments);
        agent.wait_until_ready();
        agent
    }

    /// As [`Product::agent_with`], without waiting. The agent dies with the thread that starts it.
    #[must_use]
    pub fn agent_unready(&self, arguments: &[&str]) -> AgentGuard<'_> {
        let number = self.agents.fetch_add(1, Ordering::Relaxed);
        let log = self.directory.path().join(format!("agent-{number}.log"));
        let open = || File::create(&log).and_then(|file| Ok((Stdio::from(file.try_clone()?), Stdio::from(file))));
        let (stdout, stderr) = open().unwrap_or_else(|error| panic!("{}: {error}", log.display()));
        let mut command = self.command("agent", &["--node-name", "node", "--metrics", &METRICS.to_string()]);
        command.arg("--manifests").arg(self.manifest_dir()).args(arguments);
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        sys::die_with_spawner(&mut command);
        let child = command.spawn().unwrap_or_else(|error| panic!("{} agent: {error}", self.binary.display()));
        AgentGuard { child, log, entry: self.entry.clone(), product: PhantomData }
    }

    /// Leaves everything installed, and the directories in place, when this value is dropped: until a later process of
    /// the fixtures sweeps.
    pub fn keep(self) {
        std::mem::forget(self);
    }

    fn json(&self, command: &str, arguments: &[&str]) -> Value {
        let output = self.run(command, &[arguments, &["-o", "json"]].concat());
        assert!(output.status.success(), "nicpath {command}: {}", described(&output));
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("nicpath {command} -o json: {error}: {}", described(&output)))
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        let output = self.command("uninstall", &[]).output();
        match output {
            Ok(output) if output.status.success() => {}
            Ok(output) => eprintln!("nicpath uninstall: {}", described(&output)),
            Err(error) => eprintln!("nicpath uninstall: {error}"),
        }
    }
}

/// What a program said, for a message.
#[must_use]
pub fn described(output: &Output) -> String {
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{}\nstdout: {}\nstderr: {}", output.status, stdout.trim_end(), stderr.trim_end())
}

fn binary() -> PathBuf {
    let built = || Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target/release/nicpath");
    let binary = std::env::var_os(BINARY_VARIABLE).map_or_else(built, PathBuf::from);
    assert!(binary.is_file(), "{}: no such file; `cargo xtask build` makes it", binary.display());
    binary
}

/// A running agent; killed on drop. When the test panics, its log is printed.
#[derive(Debug)]
pub struct AgentGuard<'a> {
    child: Child,
    log: PathBuf,
    entry: Entry,
    /// An agent ends before its product is uninstalled.
    product: PhantomData<&'a Product>,
}

impl AgentGuard<'_> {
    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has written to standard output and standard error so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_else(|error| format!("{}: {error}", self.log.display()))
    }

    /// Waits until /readyz answers 200; panics if it ends or takes too long.
    pub fn wait_until_ready(&mut self) {
        eventually(PATIENCE, "the agent is ready", || {
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("the agent ended: {status}");
            }
            match self.get("/readyz") {
                Ok((200, _)) => Ok(()),
                other => Err(other),
            }
        });
    }

    /// The text of /metrics.
    #[must_use]
    pub fn metrics(&self) -> String {
        match self.get("/metrics") {
            Ok((200, body)) => body,
            other => panic!("/metrics: {other:?}"),
        }
    }

    /// Status code and body of a page that the agent serves.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn get(&self, page: &str) -> std::io::Result<(u16, String)> {
        let invalid = || std::io::Error::from(std::io::ErrorKind::InvalidData);
        let answer = self.entry.run(|| {
            let mut stream = TcpStream::connect_timeout(&METRICS, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let request = format!("GET {page} HTTP/1.1\r\nHost: {METRICS}\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok::<_, std::io::Error>(answer)
        })?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(invalid)?;
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(invalid)?;
        Ok((code, body.to_owned()))
    }

    /// Kills it as a crash would, and waits for its end.
    pub fn kill9(mut self) {
        self.end();
    }

    /// Tells it to end (SIGTERM) and waits; panics if it takes too long.
    #[must_use]
    pub fn terminate(mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        let start = Instant::now();
        let status = eventually(PATIENCE, "the agent ends on SIGTERM", || match self.child.try_wait() {
            Ok(Some(status)) => Ok(status),
            other => Err(format!("{other:?} after {:?}", start.elapsed())),
        });
        assert_ne!(status.signal(), Some(Signal::SIGKILL as i32), "somebody else killed the agent");
        status
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).map(Pid::from_raw);
        let pid = pid.unwrap_or_else(|error| panic!("process {}: {error}", self.child.id()));
        kill(pid, signal).unwrap_or_else(|error| panic!("{signal} to the agent: {error}"));
    }

    fn end(&mut self) {
        // Both fail only if it has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for AgentGuard<'_> {
    fn drop(&mut self) {
        self.end();
        if std::thread::panicking() {
            eprintln!("--- log of the agent:\n{}--- end of the log", self.log());
        }
    }
}

#[cfg(test)]
mod tests;
