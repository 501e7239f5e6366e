//! The node daemon: waits for changes of manifests and host, and runs the pipeline for each.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::time::{Instant, MissedTickBehavior};
use tracing::{error, info, warn};

use crate::{
    backoff::Backoff,
    config::NodeConfig,
    contest::{Contests, is_correction},
    dataplane::ProgramLogs,
    manifests::{Manifests, recall},
    netlink::{Change, Watch},
    pipeline::{LookError, Pipeline, View, problems_of},
    plan::{Action, Step},
    source::watch::DirWatch,
    state::{Recorded, State},
    status::{Problem, StatusReport, report},
    telemetry::Telemetry,
};

/// Settings and programs are compared this often: the kernel announces no change of them.
const GLANCE: Duration = Duration::from_secs(1);
/// Everything is read anew this often, in case a message was missed.
const RESYNC: Duration = Duration::from_secs(60);
/// The longest rest in a storm of changes: repairs are promised within two seconds.
const REST: Duration = Duration::from_secs(1);
/// Changes that come together are handled together.
const SETTLE: Duration = Duration::from_millis(50);

/// Why the pipeline runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Start,
    Manifests,
    /// The kernel announced a change.
    Host,
    /// Netlink messages were lost.
    Overflow,
    /// Settings or programs differ from what we left.
    Drift,
    /// Something could not be done before.
    Retry,
    Periodic,
}

impl Cause {
    fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Manifests => "manifests",
            Self::Host => "host",
            Self::Overflow => "overflow",
            Self::Drift => "drift",
            Self::Retry => "retry",
            Self::Periodic => "periodic",
        }
    }
}

/// The daemon's state between two runs of the pipeline.
#[derive(Debug)]
pub struct Node<'a> {
    pipeline: Pipeline,
    manifests: Manifests,
    state: State,
    config: NodeConfig,
    telemetry: &'a Telemetry,
    recorded: Recorded,
    problems: Vec<Problem>,
    lasting: Option<Problem>,
    view: Option<View>,
    /// What others undid while the last plan was carried out, or what waits because they keep undoing it.
    undone: Vec<Action>,
    /// For what could not be done.
    retry: Backoff,
    /// For each thing that others keep undoing.
    contests: Contests,
    /// No look at the host before this, so that a storm of changes cannot take a CPU.
    rest_until: Instant,
    start: Instant,
    /// Reported last, so that a state that lasts is logged once.
    logged: Vec<String>,
    /// The kernel announced a change of neighbours since they were read.
    stale_neighbours: bool,
    /// What the programs log, if they were built to.
    program_logs: Option<ProgramLogs>,
    /// A change of the host has not been looked at yet.
    postponed: bool,
}

impl<'a> Node<'a> {
    /// Takes over what an earlier run left behind. The first look comes with [`Node::run`].
    /// `lasting` is a problem found at the start that only people can solve.
    pub fn new(
        pipeline: Pipeline,
        manifests: Manifests,
        state: State,
        telemetry: &'a Telemetry,
        lasting: Option<Problem>,
    ) -> Self {
        let recorded = pipeline.state_dir.load_recorded().unwrap_or_default();
        Self {
            pipeline,
            manifests,
            state,
            config: NodeConfig::default(),
            telemetry,
            recorded,
            problems: Vec::new(),
            lasting,
            view: None,
            undone: Vec::new(),
            retry: Backoff::new(Duration::from_secs(1), Duration::from_secs(60)),
            contests: Contests::default(),
            rest_until: Instant::now(),
            start: Instant::now(),
            logged: Vec::new(),
            stale_neighbours: false,
            program_logs: None,
            postponed: false,
        }
    }

    /// Works until `stop` completes. Stopping changes nothing on the node.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let mut stop = std::pin::pin!(stop);
        let mut watch = self.watch_host();
        let mut dir_watch = self.watch_dir();
        self.reload();
        self.cycle(Cause::Start).await;
        self.program_logs = self.pipeline.dataplane.logs();
        let mut glance = tokio::time::interval(GLANCE);
        glance.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut resync = tokio::time::interval_at(Instant::now() + RESYNC, RESYNC);
        resync.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let cause = tokio::select! {
                () = &mut stop => return,
                change = next_change(&mut watch) => match change {
                    Some(change) => self.gather(change, &mut watch).await,
                    None => {
                        watch = self.watch_host();
                        Some(Cause::Overflow)
                    }
                },
                () = next_dir_change(&mut dir_watch) => {
                    self.manifests.at_rest().await;
                    Some(Cause::Manifests)
                }
                () = tokio::time::sleep_until(self.rest_until), if self.postponed => Some(Cause::Host),
                _ = glance.tick() => {
                    self.refresh_neighbours().await;
                    if let Some(logs) = &mut self.program_logs {
                        logs.forward();
                    }
                    if self.manifests.is_stale() {
                        // the directory itself may be another one now
                        dir_watch = self.watch_dir();
                        Some(Cause::Manifests)
                    } else {
                        self.glance()
                    }
                }
                _ = resync.tick() => {
                    if dir_watch.is_none() {
                        dir_watch = self.watch_dir();
                    }
                    Some(Cause::Periodic)
                }
            };
            self.telemetry.beat();
            let Some(cause) = cause else {
                continue;
            };
            if matches!(cause, Cause::Manifests | Cause::Periodic) {
                self.reload();
            }
            if self.may_act(cause) {
                let started = Instant::now();
                self.cycle(cause).await;
                self.rest_until = Instant::now() + REST.min(started.elapsed() * 9);
            }
        }
    }

    /// Waits for the burst to end, at most a while. Neighbours come and go all the time and decide nothing: they only
    /// make the report stale.
    async fn gather(&mut self, first: Change, watch: &mut Option<Watch>) -> Option<Cause> {
        if first == Change::Neighbours {
            self.stale_neighbours = true;
            return None;
        }
        let end = Instant::now() + SETTLE * 4;
        let mut lost = first == Change::Overflow;
        while let Ok(Some(change)) =
            tokio::time::timeout(SETTLE.min(end.saturating_duration_since(Instant::now())), next_change(watch)).await
        {
            lost |= change == Change::Overflow;
            if Instant::now() >= end {
                break;
            }
        }
        Some(if lost { Cause::Overflow } else { Cause::Host })
    }

    /// Brings the gateways' states in the report up to date.
    async fn refresh_neighbours(&mut self) {
        if !std::mem::take(&mut self.stale_neighbours) {
            return;
        }
        let Ok(neighbours) = self.pipeline.netlink.neighbours().await else {
            return;
        };
        let Some(mut view) = self.view.take() else {
            return;
        };
        view.inventory.neighbours = neighbours;
        self.publish(&view);
        self.view = Some(view);
    }

    /// Compares what the kernel does not announce; also time to try again what failed.
    fn glance(&self) -> Option<Cause> {
        let Some(view) = &self.view else {
            return Some(Cause::Retry);
        };
        let now = self.start.elapsed();
        let allowed = |step: &Step| self.contests.allow(&step.action, now);
        match self.pipeline.glance(view, &self.state) {
            Ok(steps) if steps != view.steps => Some(Cause::Drift),
            Ok(steps) if steps.iter().any(|step| self.is_undone(step) && allowed(step)) => Some(Cause::Drift),
            Ok(steps) if steps.iter().all(|step| self.is_undone(step)) => None,
            Ok(_) | Err(_) => Some(Cause::Retry),
        }
    }

    fn is_undone(&self, step: &Step) -> bool {
        self.undone.contains(&step.action)
    }

    /// A change of the host is followed at once, but in a storm of them we rest nine times as long as we work, at most
    /// [`REST`].
    fn may_act(&mut self, cause: Cause) -> bool {
        match cause {
            Cause::Retry => self.retry.is_due(self.start.elapsed()),
            Cause::Host => {
                self.postponed = Instant::now() < self.rest_until;
                !self.postponed
            }
            Cause::Start | Cause::Manifests | Cause::Overflow | Cause::Drift | Cause::Periodic => true,
        }
    }

    /// Reads the manifests; with errors the last valid ones stay in force.
    fn reload(&mut self) {
        match self.manifests.read() {
            Some((config, last_good)) => {
                self.config = config;
                self.state_with(|state| state.last_good = Some(last_good));
            }
            None if self.view.is_none() => {
                if let Some(config) = recall(&self.state) {
                    warn!("the manifests have errors; starting with the last valid ones");
                    self.config = config;
                }
            }
            None => {}
        }
    }

    fn state_with(&mut self, change: impl FnOnce(&mut State)) {
        let mut next = self.state.clone();
        change(&mut next);
        if next != self.state {
            match self.pipeline.state_dir.save(&next) {
                Ok(()) => self.state = next,
                Err(e) => warn!("cannot remember the configuration: {e}"),
            }
        }
    }

    /// Look, plan, apply, look again, report.
    async fn cycle(&mut self, cause: Cause) {
        let now = self.start.elapsed();
        self.telemetry.resyncs.get_or_create(&vec![("cause", cause.name().to_owned())]).inc();
        self.problems = self.lasting.iter().cloned().chain(self.manifests.problems()).collect();
        let looked = self.pipeline.look(&self.config, &self.state).await;
        let view = match looked {
            Ok(view) => view,
            Err(e) => return self.blind(&e, now),
        };
        let undone = std::mem::take(&mut self.undone);
        let view = if view.steps.is_empty() { Ok(view) } else { self.settle(cause, view, &undone).await };
        let view = match view {
            Ok(view) => view,
            Err(e) => return self.blind(&e, now),
        };
        if view.steps.iter().all(|step| self.is_undone(step)) {
            self.retry.reset();
        } else {
            self.retry.tried(now);
        }
        self.publish(&view);
        self.view = Some(view);
    }

    async fn settle(&mut self, cause: Cause, view: View, undone: &[Action]) -> Result<View, LookError> {
        let started = Instant::now();
        let now = self.start.elapsed();
        let mut view = view;
        view.steps.retain(|step| self.contests.allow(&step.action, now));
        let outcome = self.pipeline.settle(&view, &mut self.state, &mut self.problems).await;
        self.telemetry.apply_seconds.observe(started.elapsed().as_secs_f64());
        let before = self.view.as_ref();
        let corrections: Vec<&Step> = outcome
            .done
            .iter()
            .filter(|step| {
                undone.contains(&step.action) || before.is_some_and(|before| is_correction(&step.action, before))
            })
            .collect();
        for step in &corrections {
            let kind = vec![("kind", step.action.kind().to_owned())];
            self.telemetry.corrections.get_or_create(&kind).inc();
            self.contests.corrected(&step.action, now);
        }
        if !view.steps.is_empty() {
            info!(
                cause = cause.name(),
                done = outcome.done.len(),
                failed = outcome.failed.len(),
                "applied, the first: {}",
                outcome.done.first().map_or_else(|| "nothing".to_owned(), |s| s.action.command(&view.inventory))
            );
        }
        self.problems.extend(problems_of(&outcome, &view.inventory));
        let after = self.pipeline.look(&self.config, &self.state).await?;
        let undone_meanwhile =
            |action: &Action| is_correction(action, &view) || outcome.done.iter().any(|step| step.action == *action);
        self.undone = after.steps.iter().map(|step| &step.action).filter(|a| undone_meanwhile(a)).cloned().collect();
        Ok(after)
    }

    /// Nothing is concluded from a host that cannot be read.
    fn blind(&mut self, error: &LookError, now: Duration) {
        error!("{error}; nothing is changed");
        self.retry.tried(now);
        self.view = None;
    }

    fn publish(&mut self, view: &View) {
        let facts = view.facts(&self.manifests.node().name, &self.problems);
        let report: StatusReport = report(facts, &self.recorded.conditions, Timestamp::now());
        let worth_a_line: Vec<String> = report
            .conditions
            .iter()
            .filter(|c| (c.status == "True") != matches!(c.type_.as_str(), "Ready" | "Applied"))
            .map(|c| format!("{}: {}: {}", c.type_, c.reason, c.message))
            .collect();
        for line in worth_a_line.iter().filter(|line| !self.logged.contains(line)) {
            warn!("{line}");
        }
        self.logged = worth_a_line;
        let recorded = Recorded { conditions: report.conditions.clone(), problems: self.problems.clone() };
        if recorded != self.recorded {
            match self.pipeline.state_dir.save_recorded(&recorded) {
                Ok(()) => self.recorded = recorded,
                Err(e) => warn!("cannot record conditions: {e}"),
            }
        }
        let slots = view.desired.nics.iter().map(|nic| (nic.slot, nic.name.clone())).collect();
        self.telemetry.publish(report, slots);
    }

    fn watch_host(&self) -> Option<Watch> {
        Watch::open(crate::netlink::WATCH_BUFFER_BYTES)
            .inspect_err(|e| warn!("cannot watch the host's network, comparing every {RESYNC:?}: {e}"))
            .ok()
    }

    fn watch_dir(&self) -> Option<DirWatch> {
        DirWatch::new(self.manifests.dir()).inspect_err(|e| warn!("{e}; reading it every {RESYNC:?}")).ok()
    }
}

async fn next_change(watch: &mut Option<Watch>) -> Option<Change> {
    match watch {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}

async fn next_dir_change(watch: &mut Option<DirWatch>) {
    match watch {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}
