//! `nicpath off` and `nicpath on`: takes effect on the next packet, needs no agent, undoes nothing else.

use clap::Args;

use super::{Answer, Failure, Paths, preflight};
use crate::{dataplane::Dataplane, hook::Installed};

#[derive(Debug, Args)]
pub(super) struct SwitchArgs {
    #[command(flatten)]
    paths: Paths,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    On,
    Off,
}

pub(super) fn run(args: &SwitchArgs, to: To) -> Answer {
    preflight::check(&args.paths.bpffs, preflight::Need::Read)?;
    let dataplane = Dataplane::new(&args.paths.bpffs);
    match dataplane.installed()? {
        Installed::None => Err(Failure::No(format!("no programs are pinned in {}", args.paths.bpffs.display()))),
        Installed::OtherAbi { version } => {
            Err(Failure::No(format!("the pinned programs have layout {version}: use the nicpath they came with")))
        }
        Installed::Current | Installed::OtherBuild => {
            dataplane.switch(to == To::Off)?;
            println!(
                "{}",
                match to {
                    To::On => "on: the programs decide again",
                    To::Off => "off: the programs pass every packet; `nicpath on` ends it",
                }
            );
            Ok(())
        }
    }
}
