//! The runner against a stand-in for the binary: a shell script that prints its arguments, and as `agent` waits to be
//! ended. It models the command line only; what the product does is tested on the product.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use super::*;

const SCRIPT: &str = r#"#!/bin/sh
case "$1" in
agent) case "$*" in *--end*) exit 4;; esac
  echo "agent in $(readlink /proc/self/ns/net) with $*"; trap 'echo ending; exit 0' TERM; sleep 1000 & wait;;
status) printf '{"node":"%s"}' "$*";;
fail) echo "no such thing" >&2; exit 3;;
uninstall) printf '%s' "$*" > "$(dirname "$0")/uninstalled";;
*) echo "$*";;
esac
"#;

struct Fixture {
    directory: TempDir,
    netns: Netns,
}

impl Fixture {
    fn new() -> Self {
        let directory = scratch::directory("script");
        let script = directory.path().join("nicpath");
        std::fs::write(&script, SCRIPT).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { directory, netns: Netns::new("product") }
    }

    fn product(&self) -> Product {
        Product::with_binary(&self.netns, self.directory.path().join("nicpath"))
    }
}

fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn commands_get_their_directories() {
    let fixture = Fixture::new();
    let product = fixture.product();
    let (state, bpffs) = (product.state_dir(), product.bpffs().to_owned());
    let common = format!("--state-dir {} --bpffs {}", state.display(), bpffs.display());
    let manifests = format!("--manifests {}", product.manifest_dir().display());
    let said = |output: Output| String::from_utf8(output.stdout).unwrap().trim_end().to_owned();
    assert_eq!(said(product.apply()), format!("apply {common} {manifests}"));
    assert_eq!(said(product.check(&["--host"])), format!("check {common} --host {manifests}"));
    assert_eq!(product.status()["node"], format!("status {common} -o json"));
    let failed = product.run("fail", &[]);
    assert_eq!((failed.status.code(), failed.stderr.as_slice()), (Some(3), &b"no such thing\n"[..]));
    drop(product);
    let uninstalled = std::fs::read_to_string(fixture.directory.path().join("uninstalled")).unwrap();
    assert_eq!(uninstalled, format!("uninstall {common}"));
    assert!(!state.exists() && !bpffs.exists());
}

#[test]
fn the_manifest_directory_holds_exactly_what_was_given() {
    let fixture = Fixture::new();
    let product = fixture.product();
    let present = || {
        let entries = std::fs::read_dir(product.manifest_dir()).unwrap();
        let mut files: Vec<_> = entries
            .map(|entry| entry.unwrap().path())
            .map(|path| (path.file_name().unwrap().to_owned(), std::fs::read_to_string(path).unwrap()))
            .collect();
        files.sort();
        files
    };
    product.manifests(&[("a.yaml", "one"), ("b.yaml", "two")]);
    assert_eq!(present(), [("a.yaml".into(), "one".into()), ("b.yaml".into(), "two".into())]);
    product.manifests(&[("b.yaml", "three")]);
    assert_eq!(present(), [("b.yaml".into(), "three".into())]);
}

#[test]
fn an_agent_runs_in_the_namespace_and_ends_when_told_to() {
    let fixture = Fixture::new();
    let product = fixture.product();
    let inside = fixture.netns.run(|| std::fs::read_link("/proc/thread-self/ns/net").unwrap());
    let agent = product.agent_unready(&["--tc-mode", "tcx"]);
    eventually(PATIENCE, "the first line of the log", || agent.log().contains('\n').then_some(()));
    let log = agent.log();
    assert!(log.starts_with(&format!("agent in {} with agent --state-dir", inside.display())), "{log}");
    assert!(log.trim_end().ends_with("--tc-mode tcx"), "{log}");
    let path = agent.log.clone();
    assert!(agent.terminate().success());
    assert!(std::fs::read_to_string(path).unwrap().ends_with("ending\n"));
}

#[test]
fn an_agent_is_dead_after_a_kill_after_a_drop_and_when_its_thread_ends() {
    let fixture = Fixture::new();
    let product = fixture.product();
    let (killed, dropped) = (product.agent_unready(&[]), product.agent_unready(&[]));
    let pids = [killed.pid(), dropped.pid()];
    assert!(pids.into_iter().all(alive));
    killed.kill9();
    drop(dropped);
    assert!(!pids.into_iter().any(alive));
    let forgotten = std::thread::scope(|scope| {
        let start = || {
            let agent = product.agent_unready(&[]);
            let pid = agent.pid();
            std::mem::forget(agent);
            pid
        };
        scope.spawn(start).join().unwrap()
    });
    eventually(PATIENCE, "the agent died with its thread", || (!alive(forgotten)).then_some(()));
}

#[test]
fn an_agent_is_ready_when_its_page_says_so() {
    let fixture = Fixture::new();
    let product = fixture.product();
    let listener = fixture.netns.run(|| TcpListener::bind(METRICS).unwrap());
    let server = std::thread::spawn(move || {
        for (status, body) in [("503 Service Unavailable", ""), ("200 OK", ""), ("200 OK", "nicpath_pins 0\n")] {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let length = stream.read(&mut request).unwrap();
            assert!(request[..length].ends_with(b"\r\n\r\n"));
            stream.write_all(format!("HTTP/1.1 {status}\r\n\r\n{body}").as_bytes()).unwrap();
        }
    });
    let agent = product.agent();
    assert_eq!(agent.metrics(), "nicpath_pins 0\n");
    server.join().unwrap();
}

#[test]
#[should_panic(expected = "the agent ended: exit status: 4")]
fn an_agent_that_ends_at_once_is_never_ready() {
    let fixture = Fixture::new();
    let product = fixture.product();
    let _agent = product.agent_with(&["--end"]);
}
