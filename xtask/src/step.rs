//! Runs a child process, shows that it lives, and says how long it took.

use std::fs;
use std::io::{BufRead as _, BufReader, PipeReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// A step that shows nothing for so long says that it is still there; one that has run for a while says so less often.
const SILENCE: Duration = Duration::from_secs(5);
const LONG_SILENCE: Duration = Duration::from_secs(15);
const A_WHILE: Duration = Duration::from_secs(60);
/// How often a finished child is noticed while a grandchild still holds its output open.
const POLL: Duration = Duration::from_millis(200);
/// What such a grandchild may still say.
const LINGER: Duration = Duration::from_secs(1);
const TAIL_LINES: usize = 40;

/// What to do with a line of the child's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    /// Print it.
    Print,
    /// Only the progress line mentions it.
    Fold,
}

/// How a child ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) elapsed: Duration,
}

/// Runs `command` with stdout and stderr in one stream, in the order they were written; `on_line` sees each line
/// (without its newline) and says whether it is printed.
pub(crate) fn run(name: &str, command: &mut Command, mut on_line: impl FnMut(&str) -> Show) -> Result<Finished> {
    let started = Instant::now();
    let (lines, mut child) = spawn(command).with_context(|| format!("{name}: cannot start {command:?}"))?;
    let mut shown = Instant::now();
    let mut folded = String::new();
    let mut exited: Option<(ExitStatus, Instant)> = None;
    loop {
        match lines.recv_timeout(POLL) {
            Ok(line) => match on_line(&line) {
                Show::Print => {
                    println!("{line}");
                    shown = Instant::now();
                }
                Show::Fold => folded = line,
            },
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if exited.is_some_and(|(_, at)| at.elapsed() > LINGER) => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
        let silence = if started.elapsed() < A_WHILE { SILENCE } else { LONG_SILENCE };
        if shown.elapsed() >= silence {
            println!("{}", progress(name, started.elapsed(), &folded));
            shown = Instant::now();
        }
        if exited.is_none() {
            exited = child.try_wait()?.map(|status| (status, Instant::now()));
        }
    }
    let status = child.wait()?;
    Ok(Finished { status, elapsed: started.elapsed() })
}

/// Runs a cargo command: what it compiles is folded into the progress line, warnings and errors are printed.
pub(crate) fn run_cargo(name: &str, command: &mut Command) -> Result<()> {
    println!("{name}");
    let finished = run(name, command, |line| if is_cargo_status(line) { Show::Fold } else { Show::Print })?;
    if !finished.status.success() {
        bail!("{name} failed ({})", finished.status);
    }
    println!("{name}: done in {}", seconds(finished.elapsed));
    Ok(())
}

/// Runs a command whose output belongs in a log file; the end of the log is shown if it fails.
pub(crate) fn run_logged(name: &str, command: &mut Command, log: &Path) -> Result<()> {
    println!("{name} (log: {})", log.display());
    if let Some(folder) = log.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let mut file = fs::File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut written = Ok(());
    let finished = run(name, command, |line| {
        if written.is_ok() {
            written = writeln!(file, "{line}");
        }
        Show::Fold
    })?;
    written.with_context(|| format!("cannot write {}", log.display()))?;
    if !finished.status.success() {
        let text = fs::read_to_string(log).unwrap_or_default();
        bail!("{name} failed ({}); the end of {}:\n{}", finished.status, log.display(), tail(&text, TAIL_LINES));
    }
    println!("{name}: done in {}", seconds(finished.elapsed));
    Ok(())
}

/// `34.2 s`
pub(crate) fn seconds(elapsed: Duration) -> String {
    format!("{:.1} s", elapsed.as_secs_f64())
}

fn spawn(command: &mut Command) -> std::io::Result<(Receiver<String>, Child)> {
    let (reader, writer) = std::io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let child = command.spawn()?;
    // The command keeps its ends of the pipe until told otherwise; with them open the reader would never see the end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut reader: BufReader<PipeReader> = BufReader::new(reader);
        let mut bytes = Vec::new();
        while reader.read_until(b'\n', &mut bytes).is_ok_and(|length| length > 0) {
            let line = String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_owned();
            if sender.send(line).is_err() {
                break;
            }
            bytes.clear();
        }
    });
    Ok((receiver, child))
}

/// Cargo's own lines: a verb, right-aligned to twelve columns.
fn is_cargo_status(line: &str) -> bool {
    let verb = line.trim_start();
    let indent = line.len() - verb.len();
    let Some((verb, _)) = verb.split_once(' ') else { return false };
    indent + verb.len() == 12 && indent > 0 && verb.starts_with(|first: char| first.is_ascii_uppercase())
}

fn progress(name: &str, elapsed: Duration, last: &str) -> String {
    let last: String = last.trim().chars().take(70).collect();
    let detail = if last.is_empty() { String::new() } else { format!(" ({last})") };
    format!("{name} … {} s{detail}", elapsed.as_secs())
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<_> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn cargo_status_lines_are_told_from_messages() {
        assert!(is_cargo_status("   Compiling core v0.0.0 (/usr/src)"));
        assert!(is_cargo_status("    Finished `bpf` profile [optimized] target(s) in 0.42s"));
        assert!(is_cargo_status("  Downloaded aya v0.14.0"));
        assert!(!is_cargo_status("warning: unused variable"));
        assert!(!is_cargo_status("error: linking with `bpf-linker` failed"));
        assert!(!is_cargo_status("    | Compiling"));
    }

    #[test]
    fn both_streams_arrive_in_the_order_they_were_written() {
        let mut lines = Vec::new();
        let finished = run("order", &mut shell("echo one; echo two >&2; printf three; exit 3"), |line| {
            lines.push(line.to_owned());
            Show::Fold
        })
        .unwrap();
        assert_eq!(lines, ["one", "two", "three"]);
        assert_eq!(finished.status.code(), Some(3));
    }

    #[test]
    fn a_grandchild_that_keeps_the_output_open_does_not_hang_the_step() {
        let mut pid = String::new();
        let finished = run("linger", &mut shell("sleep 60 & echo $!"), |line| {
            line.clone_into(&mut pid);
            Show::Fold
        })
        .unwrap();
        assert!(Command::new("kill").arg(&pid).status().unwrap().success());
        assert!(finished.status.success());
        assert!(finished.elapsed < Duration::from_secs(30));
    }

    #[test]
    fn a_failed_step_shows_the_end_of_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("deep/step.log");
        let error = run_logged("count", &mut shell("seq 1 100; false"), &log).unwrap_err().to_string();
        assert!(error.ends_with("\n98\n99\n100"), "{error}");
        assert!(!error.contains("\n60\n"), "{error}");
        assert_eq!(fs::read_to_string(&log).unwrap().lines().count(), 100);
    }

    #[test]
    fn a_progress_line_names_the_step_its_age_and_what_it_does() {
        let line = progress("build: eBPF programs", Duration::from_secs(20), "   Compiling core v0.0.0");
        assert_eq!(line, "build: eBPF programs … 20 s (Compiling core v0.0.0)");
        assert_eq!(progress("setup", Duration::from_secs(5), ""), "setup … 5 s");
    }
}
