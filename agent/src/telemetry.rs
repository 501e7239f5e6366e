//! Logs, metrics and health. Packet counters are read from the programs' maps at each scrape, so they cost nothing in
//! between; labels are NICs, reasons and states, never addresses.

use std::{
    fmt,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{Router, extract::State, http::StatusCode, response::IntoResponse, routing::get};
use ebpf::verdict::Counter as PacketCounter;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, NoLabelSet, text::encode},
    metrics::{MetricType, counter::Counter, family::Family, histogram::Histogram, info::Info},
    registry::Registry,
};

use crate::{dataplane::Dataplane, status::StatusReport, tables::Slot};

type Labels = Vec<(&'static str, String)>;

/// What `/metrics`, `/healthz` and `/readyz` show of the agent.
#[derive(Debug)]
pub struct Telemetry {
    registry: Registry,
    /// Changes that undid somebody else's change to what we own.
    pub corrections: Family<Labels, Counter>,
    /// Full readings of the host by cause.
    pub resyncs: Family<Labels, Counter>,
    pub apply_seconds: Histogram,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug)]
struct Shared {
    bpffs: PathBuf,
    slots: Vec<(Slot, String)>,
    report: Option<StatusReport>,
    /// Set by the loop; health asks whether it still turns.
    beat: Option<tokio::time::Instant>,
}

/// A loop that has not come round for this long hangs.
const BEAT_LIMIT: Duration = Duration::from_secs(30);

impl Telemetry {
    /// `bpffs` is where the programs' maps are pinned.
    pub fn new(bpffs: PathBuf) -> Self {
        let shared = Arc::new(Mutex::new(Shared { bpffs, slots: Vec::new(), report: None, beat: None }));
        let mut registry = Registry::with_prefix("nicpath");
        let corrections = Family::default();
        let resyncs = Family::default();
        let apply_seconds = Histogram::new([0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0]);
        let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION").to_owned())]);
        registry.register("build", "Version of the agent", build);
        registry.register("corrections", "Changes by others to what nicpath owns, put right", corrections.clone());
        registry.register("resyncs", "Full readings of the host by cause", resyncs.clone());
        registry.register("apply_seconds", "Time from a plan to its end", apply_seconds.clone());
        registry.register_collector(Box::new(Packets(shared.clone())));
        Self { registry, corrections, resyncs, apply_seconds, shared }
    }

    /// Shows a new report.
    pub fn publish(&self, report: StatusReport, slots: Vec<(Slot, String)>) {
        let mut shared = lock(&self.shared);
        shared.report = Some(report);
        shared.slots = slots;
    }

    /// Says that the loop turns.
    pub fn beat(&self) {
        lock(&self.shared).beat = Some(tokio::time::Instant::now());
    }

    /// Serves the three paths until the listener fails.
    ///
    /// # Errors
    ///
    /// The address cannot be bound.
    pub async fn serve(self: Arc<Self>, address: SocketAddr) -> std::io::Result<()> {
        let listener = tokio::net::TcpListener::bind(address).await?;
        let router = Router::new()
            .route("/metrics", get(metrics))
            .route("/healthz", get(healthz))
            .route("/readyz", get(readyz))
            .with_state(self);
        axum::serve(listener, router).await
    }
}

/// A panic elsewhere must not take the metrics with it.
fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn metrics(State(telemetry): State<Arc<Telemetry>>) -> impl IntoResponse {
    let mut text = String::new();
    match encode(&mut text, &telemetry.registry) {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([("content-type", kind)], text).into_response()
        }
        Err(fmt::Error) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn healthz(State(telemetry): State<Arc<Telemetry>>) -> (StatusCode, String) {
    match lock(&telemetry.shared).beat {
        Some(beat) if beat.elapsed() > BEAT_LIMIT => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("the loop has not come round for {:?}\n", beat.elapsed()))
        }
        _ => (StatusCode::OK, "ok\n".to_owned()),
    }
}

async fn readyz(State(telemetry): State<Arc<Telemetry>>) -> (StatusCode, String) {
    let shared = lock(&telemetry.shared);
    let conditions = shared.report.iter().flat_map(|report| &report.conditions);
    let missing: Vec<String> = conditions
        .filter(|c| matches!(c.type_.as_str(), "Ready" | "Applied") && c.status != "True")
        .map(|c| format!("{}: {}: {}\n", c.type_, c.reason, c.message))
        .collect();
    match (&shared.report, missing.as_slice()) {
        (None, _) => (StatusCode::SERVICE_UNAVAILABLE, "the node has not been looked at yet\n".to_owned()),
        (Some(_), []) => (StatusCode::OK, "ok\n".to_owned()),
        (Some(_), _) => (StatusCode::SERVICE_UNAVAILABLE, missing.concat()),
    }
}

/// Everything that is read at the time of the scrape.
#[derive(Debug)]
struct Packets(Arc<Mutex<Shared>>);

impl Collector for Packets {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let shared = lock(&self.0);
        let Some(report) = &shared.report else {
            return Ok(());
        };
        node_metrics(report, &mut encoder)?;
        packet_metrics(&shared, &mut encoder)
    }
}

/// One metric with a line per label set.
fn lines(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    kind: MetricType,
    values: impl IntoIterator<Item = (Labels, u64)>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in values {
        let mut line = metric.encode_family(&labels)?;
        match kind {
            MetricType::Counter => line.encode_counter::<NoLabelSet, _, u64>(&value, None)?,
            _ => line.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))?,
        }
    }
    Ok(())
}

fn node_metrics(report: &StatusReport, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let gauge = MetricType::Gauge;
    let ready = report
        .nics
        .iter()
        .map(|nic| (vec![("nic", nic.name.clone()), ("network", nic.network.clone())], u64::from(nic.ready)));
    lines(encoder, "nic_ready", "Whether a managed NIC answers what it is asked", gauge, ready)?;
    let gateways = report.nics.iter().flat_map(|nic| {
        nic.gateways.iter().map(|gateway| {
            let family = if gateway.address.is_ipv4() { "ipv4" } else { "ipv6" };
            let up = gateway.state.is_some_and(|state| state.is_valid());
            (vec![("nic", nic.name.clone()), ("family", family.to_owned())], u64::from(up))
        })
    });
    lines(encoder, "gateway_up", "Whether the gateway's neighbour entry is valid", gauge, gateways)?;
    let routes = crate::status::route_counts(&report.routes)
        .into_iter()
        .map(|(state, count)| (vec![("state", state.name().to_owned())], count as u64));
    lines(encoder, "routes", "Routes by state", gauge, routes)?;
    let maps = |value: fn(&crate::status::MapReport) -> usize| {
        report.maps.iter().map(move |map| (vec![("map", map.name.to_owned())], value(map) as u64))
    };
    lines(encoder, "map_entries", "Entries of a table of the programs", gauge, maps(|map| map.entries))?;
    lines(encoder, "map_capacity", "Entries that fit", gauge, maps(|map| map.capacity))
}

fn packet_metrics(shared: &Shared, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let dataplane = Dataplane::new(&shared.bpffs);
    let slots = || shared.slots.iter().map(|(slot, _)| *slot);
    let nic = |slot: Slot| {
        shared.slots.iter().find(|(s, _)| *s == slot).map_or_else(|| slot.to_string(), |(_, name)| name.clone())
    };
    // unreadable maps (uninstalled meanwhile) are no reason to fail the whole scrape
    let counters = dataplane.counters(slots()).unwrap_or_default();
    let rows = |label: &'static str, wanted: fn(PacketCounter) -> bool| {
        counters.iter().filter(move |row| wanted(row.counter)).map(move |row| {
            let labels = vec![
                ("nic", nic(row.slot)),
                ("direction", row.direction.name().to_owned()),
                (label, row.counter.name().to_owned()),
            ];
            (labels, row.packets)
        })
    };
    let counter = MetricType::Counter;
    let verdicts = rows("verdict", |c| matches!(c, PacketCounter::Verdict(_)));
    lines(encoder, "packets", "Packets by verdict", counter, verdicts)?;
    let drops = rows("reason", |c| matches!(c, PacketCounter::Drop(_)));
    lines(encoder, "drops", "Packets dropped by reason", counter, drops)?;
    let notes = rows("reason", |c| matches!(c, PacketCounter::Note(_)));
    lines(encoder, "notes", "Packets passed with a note", counter, notes)?;
    let redirects = dataplane.redirects(slots()).unwrap_or_default();
    let redirects = redirects.iter().map(|row| (vec![("from", nic(row.from)), ("to", nic(row.to))], row.packets));
    lines(encoder, "redirects", "Packets moved to the NIC that owns their source", counter, redirects)
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

/// Sends logs to standard error; the level comes from `RUST_LOG`, default `info`.
pub fn init_logs(format: LogFormat) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => builder.with_ansi(false).init(),
        LogFormat::Json => builder.json().init(),
    }
}
