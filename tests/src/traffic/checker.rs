//! Checks that go on all the time, as a load balancer's do.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::check::{self, Failure};
use crate::netns::{Entry, Netns};

/// Below the first retransmission of a TCP SYN (1 s), so that one lost packet is one failed check.
const TIMEOUT: Duration = Duration::from_millis(900);

/// What a check asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Probe {
    Tcp,
    Udp,
    Ping,
}

/// One thing to check: who asks whom, and how.
#[derive(Clone, Debug)]
pub struct Target {
    name: String,
    probe: Probe,
    entry: Entry,
    from: SocketAddr,
    to: SocketAddr,
}

impl Target {
    /// Asks the TCP server at `to` from `from` in `netns`; port 0 in `from` takes a free one for each check.
    #[must_use]
    pub fn tcp(netns: &Netns, from: SocketAddr, to: SocketAddr) -> Self {
        Self::new(Probe::Tcp, netns, from, to)
    }

    /// Asks the UDP server at `to` from `from` in `netns`; port 0 in `from` takes a free one for each check.
    #[must_use]
    pub fn udp(netns: &Netns, from: SocketAddr, to: SocketAddr) -> Self {
        Self::new(Probe::Udp, netns, from, to)
    }

    /// Pings `to` from `from` in `netns`.
    #[must_use]
    pub fn ping(netns: &Netns, from: IpAddr, to: IpAddr) -> Self {
        Self::new(Probe::Ping, netns, (from, 0).into(), (to, 0).into())
    }

    fn new(probe: Probe, netns: &Netns, from: SocketAddr, to: SocketAddr) -> Self {
        let name = match probe {
            Probe::Tcp => format!("tcp {to} from {}", from.ip()),
            Probe::Udp => format!("udp {to} from {}", from.ip()),
            Probe::Ping => format!("ping {} from {}", to.ip(), from.ip()),
        };
        Self { name, probe, entry: netns.entry(), from, to }
    }

    /// The same under a name of the caller's choice in the report.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// What the report calls it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One check now; the time to the answer.
    ///
    /// # Errors
    /// Why no right answer came within `timeout`.
    pub fn check(&self, timeout: Duration) -> Result<Duration, Failure> {
        self.entry.run(|| self.check_here(timeout))
    }

    fn check_here(&self, timeout: Duration) -> Result<Duration, Failure> {
        match self.probe {
            Probe::Tcp => check::tcp(self.from, self.to, timeout),
            Probe::Udp => check::udp(self.from, self.to, timeout),
            Probe::Ping => check::ping(self.from.ip(), self.to.ip(), timeout),
        }
    }
}

/// How the checks of one target went.
#[derive(Clone, Debug)]
pub struct CheckReport {
    pub target: String,
    pub sent: usize,
    pub failed: usize,
    /// When, counted from the start, the first check that failed was sent, and why it failed.
    pub first_failure: Option<(Duration, Failure)>,
    /// Longest time without a right answer, the start and the end of the run included.
    pub max_gap: Duration,
    /// Times to the answer, in the order of the checks.
    pub rtts: Vec<Duration>,
}

/// Checks targets all the time, one thread each, until it is stopped.
#[derive(Debug)]
pub struct Checker {
    stop: Vec<Sender<()>>,
    threads: Vec<JoinHandle<CheckReport>>,
    done: Vec<Arc<AtomicUsize>>,
}

impl Checker {
    /// Starts `rate_per_second` checks a second of each target. A check that gets no answer waits 900 ms for it and
    /// holds back the next ones of its target.
    #[must_use]
    pub fn start(targets: Vec<Target>, rate_per_second: u32) -> Self {
        let interval = Duration::from_secs(1) / rate_per_second;
        let mut checker = Self { stop: Vec::new(), threads: Vec::new(), done: Vec::new() };
        for target in targets {
            let (stop, stopped) = channel();
            let done = Arc::new(AtomicUsize::new(0));
            checker.stop.push(stop);
            checker.done.push(Arc::clone(&done));
            let entry = target.entry.clone();
            checker.threads.push(entry.spawn(move || run(&target, interval, &stopped, &done)));
        }
        checker
    }

    /// Checks done so far, answered or not, of the target that has the fewest.
    #[must_use]
    pub fn done(&self) -> usize {
        self.done.iter().map(|done| done.load(Ordering::Relaxed)).min().unwrap_or(0)
    }

    /// Stops after the checks under way, and reports in the order of the targets.
    #[must_use]
    pub fn stop(mut self) -> Vec<CheckReport> {
        self.stop.clear();
        let threads = std::mem::take(&mut self.threads);
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    }
}

fn run(target: &Target, interval: Duration, stopped: &Receiver<()>, done: &AtomicUsize) -> CheckReport {
    let mut report = CheckReport {
        target: target.name.clone(),
        sent: 0,
        failed: 0,
        first_failure: None,
        max_gap: Duration::ZERO,
        rtts: Vec::new(),
    };
    let start = Instant::now();
    let (mut due, mut last_answer) = (start, start);
    loop {
        let sent = Instant::now();
        report.sent += 1;
        match target.check_here(TIMEOUT) {
            Ok(rtt) => {
                report.rtts.push(rtt);
                report.max_gap = report.max_gap.max(last_answer.elapsed());
                last_answer = Instant::now();
            }
            Err(failure) => {
                report.failed += 1;
                report.first_failure.get_or_insert((sent - start, failure));
            }
        }
        done.fetch_add(1, Ordering::Relaxed);
        // Checks missed while one waited are not made up for.
        due = (due + interval).max(Instant::now());
        match stopped.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    report.max_gap = report.max_gap.max(last_answer.elapsed());
    report
}
