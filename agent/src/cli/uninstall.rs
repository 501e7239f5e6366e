//! `nicpath uninstall`: programs, pins, maps, routes, settings, state; nothing else. Needs no agent and no manifests.

use clap::Args;

use super::{Answer, Failure, Paths, preflight};
use crate::{
    config::NodeConfig,
    hook::Position,
    merge::Protected,
    pipeline::{LookError, problems_of},
};

#[derive(Debug, Args)]
pub(super) struct UninstallArgs {
    #[command(flatten)]
    paths: Paths,
}

pub(super) async fn run(args: &UninstallArgs) -> Answer {
    preflight::check(&args.paths.bpffs, preflight::Need::Read)?;
    let lock = args.paths.lock()?;
    let pipeline = args.paths.pipeline(Position::default(), Protected::default())?;
    let mut state = pipeline.state_dir.load()?;
    // an empty configuration desires nothing, so the plan is to take everything back
    let nothing = NodeConfig::default();
    let mut view = match pipeline.look(&nothing, &state).await {
        // maps of another layout, or damaged: what cannot be read can still be removed
        Err(LookError::Dataplane(_)) => {
            pipeline.dataplane.remove()?;
            pipeline.look(&nothing, &state).await?
        }
        looked => looked?,
    };
    // the programs go as a whole, also those of another build
    view.steps.retain(|step| matches!(step.action.kind(), "route" | "sysctl"));
    let mut problems = Vec::new();
    let outcome = pipeline.settle(&view, &mut state, &mut problems).await;
    problems.extend(problems_of(&outcome, &view.inventory));
    pipeline.dataplane.remove()?;
    if problems.is_empty() {
        pipeline.state_dir.remove()?;
        drop(lock);
        println!("removed {} routes and settings, all programs and maps", outcome.done.len());
        return Ok(());
    }
    for problem in &problems {
        eprintln!("{}: {}", problem.reason, problem.message);
    }
    let left =
        "something could not be taken back; what is left to restore stays in the state directory, so run it again";
    Err(Failure::No(left.to_owned()))
}
