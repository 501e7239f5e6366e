//! `nicpath agent`

use std::{net::SocketAddr, sync::Arc};

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

use super::{Answer, AttachArgs, ManifestArgs, Paths, preflight};
use crate::{
    node::Node,
    state::StateDir,
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
    let state = StateDir::new(&args.paths.state_dir).load()?;
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
    let node = Node::new(pipeline, manifests, state, &telemetry).run(stop);
    match args.metrics {
        Some(address) => {
            tokio::select! {
                () = node => Ok(()),
                served = telemetry.clone().serve(address) => {
                    served.map_err(|e| super::Failure::Environment(format!("cannot serve metrics on {address}: {e}")))
                }
            }
        }
        None => {
            node.await;
            Ok(())
        }
    }
}
