//! `nicpath agent`

use std::{net::SocketAddr, sync::Arc, time::Duration};

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use super::{Answer, AttachArgs, Failure, ManifestArgs, Paths, preflight};
use crate::{
    node::Node,
    state::{Lock, Locking, StateDir},
    telemetry::{LogFormat, Telemetry, init_logs},
};

#[derive(Debug, Args)]
pub(super) struct AgentArgs {
    #[command(flatten)]
    manifests: ManifestArgs,
    #[command(flatten)]
    paths: Paths,
    #[command(flatten)]
    attach: AttachArgs,
    /// Serve /metrics, /healthz and /readyz here
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Form of the log lines on standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

pub(super) async fn run(args: &AgentArgs) -> Answer {
    init_logs(args.log_format);
    preflight::check(&args.paths.bpffs, preflight::Need::Change)?;
    let manifests = args.manifests.read()?;
    let state_dir = StateDir::new(&args.paths.state_dir);
    let _lock = alone(&state_dir).await;
    let (state, problem) = state_dir.load_or_set_aside();
    let pipeline = args.paths.pipeline(args.attach.position.into(), args.manifests.reserved())?;
    let telemetry = Arc::new(Telemetry::new(args.paths.bpffs.clone()));
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        info!("stopping; programs, routes and settings stay");
    };
    let node = Node::new(pipeline, manifests, state, &telemetry, problem).run(stop);
    match args.metrics {
        Some(address) => {
            tokio::select! {
                () = node => Ok(()),
                served = telemetry.clone().serve(address) => {
                    served.map_err(|e| Failure::Environment(format!("cannot serve metrics on {address}: {e}")))
                }
            }
        }
        None => {
            node.await;
            Ok(())
        }
    }
}

/// Waits until no other agent works with the state directory: during a roll-out the old one may still be ending. A
/// directory that takes no lock (full, read-only) is no reason to leave the node without an agent.
async fn alone(state_dir: &StateDir) -> Option<Lock> {
    let mut told = None;
    loop {
        match state_dir.lock() {
            Ok(Locking::Taken(lock)) => return Some(lock),
            Ok(Locking::Held(pid)) => {
                if told != Some(pid) {
                    warn!(pid, "another nicpath works with this state directory; waiting for its end");
                    told = Some(pid);
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            Err(error) => {
                warn!("working without a lock: {error}");
                return None;
            }
        }
    }
}
