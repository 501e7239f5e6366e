//! `nicpath apply`: the agent's pipeline once.

use std::time::Duration;

use clap::Args;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::{Answer, AttachArgs, Failure, ManifestArgs, Paths, preflight};
use crate::{
    pipeline::problems_of,
    state::{Recorded, StateDir},
    status::report,
};

#[derive(Debug, Args)]
pub(super) struct ApplyArgs {
    #[command(flatten)]
    manifests: ManifestArgs,
    #[command(flatten)]
    paths: Paths,
    #[command(flatten)]
    attach: AttachArgs,
    /// How long to wait for NICs, addresses and gateways that are not there yet, like 60s
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    wait: Duration,
    /// Print what would be done, and why, and do nothing
    #[arg(long)]
    dry_run: bool,
}

/// `500ms`, `60s`, `2m`, or a number of seconds.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| format!("`{text}` is not a time like 60s"))?;
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "s" | "" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(number * 60)),
        _ => Err(format!("`{text}` is not a time like 500ms, 60s or 2m")),
    }
}

pub(super) async fn run(args: &ApplyArgs) -> Answer {
    let need = if args.dry_run { preflight::Need::Read } else { preflight::Need::Change };
    preflight::check(&args.paths.bpffs, need)?;
    let mut manifests = args.manifests.read()?;
    let Some((config, last_good)) = manifests.read() else {
        for error in &manifests.errors {
            eprintln!("{error}");
        }
        return Err(Failure::Told);
    };
    let state_dir = StateDir::new(&args.paths.state_dir);
    let mut state = state_dir.load()?;
    let pipeline = args.paths.pipeline(args.attach.position.into(), args.manifests.reserved())?;
    if args.dry_run {
        let view = pipeline.look(&config, &state).await?;
        let commands: Vec<String> = view.steps.iter().map(|step| step.action.command(&view.inventory)).collect();
        let width = commands.iter().map(String::len).max().unwrap_or(0).min(90);
        for (command, step) in commands.iter().zip(&view.steps) {
            println!("{command:width$}  # {}", step.why);
        }
        for refusal in &view.desired.refused {
            eprintln!("# refused: {}: {}: {}", refusal.from, refusal.reason, refusal.message);
        }
        return Ok(());
    }
    let _lock = args.paths.lock()?;
    let mut remembered = state.clone();
    remembered.last_good = Some(last_good);
    state_dir.save(&remembered)?;
    state = remembered;
    let node = args.manifests.identity()?.name;
    let recorded = state_dir.load_recorded()?;
    let deadline = Instant::now() + args.wait;
    loop {
        let mut problems = Vec::new();
        let view = pipeline.look(&config, &state).await?;
        let outcome = pipeline.settle(&view, &mut state, &mut problems).await;
        problems.extend(problems_of(&outcome, &view.inventory));
        let view = pipeline.look(&config, &state).await?;
        let complete = view.steps.is_empty() && problems.is_empty() && view.desired.refused.is_empty();
        if !complete && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(200)).await;
            continue;
        }
        let report = report(view.facts(&node, &problems), &recorded.conditions, Timestamp::now());
        state_dir.save_recorded(&Recorded { conditions: report.conditions, problems: problems.clone() })?;
        for problem in &problems {
            eprintln!("{}: {}", problem.reason, problem.message);
        }
        for refusal in &view.desired.refused {
            eprintln!("refused: {}: {}: {}", refusal.from, refusal.reason, refusal.message);
        }
        for item in &view.desired.uncovered {
            eprintln!(
                "UncoveredDevice: {} carries {} and no NicClass covers it: replies may leave by it",
                item.nic, item.destination
            );
        }
        println!(
            "{} NICs, {} routes, {} changes",
            view.desired.nics.len(),
            view.desired.routes.len(),
            outcome.done.len()
        );
        return if complete { Ok(()) } else { Err(Failure::Told) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_or_are_seconds() {
        assert_eq!(duration("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("5"), Ok(Duration::from_secs(5)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        for bad in ["", "s", "1h", "-1s", "1.5s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
