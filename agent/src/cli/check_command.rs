//! `nicpath check`: the answer of [`super::check`] on the command line.

use clap::Args;

use super::{Answer, Failure, ManifestArgs, Output, check};
use crate::{
    config::{NodeConfig, Refusal},
    desired::{Memory, desire},
    netlink::Netlink,
};

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    manifests: ManifestArgs,
    /// Also against the NICs, addresses and routes of this host
    #[arg(long)]
    host: bool,
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

pub(super) async fn run(args: &CheckArgs) -> Answer {
    let node = args.manifests.identity()?;
    let report = if args.host {
        let inventory = Netlink::connect()?.observe().await?;
        let reserved = args.manifests.reserved();
        let refusals =
            |config: &NodeConfig| -> Vec<Refusal> { desire(config, &inventory, &Memory::default(), &reserved).refused };
        check::check(&args.manifests.manifests, &node, Some(&refusals))
    } else {
        check::check(&args.manifests.manifests, &node, None)
    };
    match args.output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&report)?),
        Output::Yaml => print!("{}", serde_saphyr::to_string(&report)?),
        Output::Table => {
            print!("{report}");
            for warning in &report.warnings {
                eprintln!("warning: {warning}");
            }
        }
    }
    if report.errors.is_empty() { Ok(()) } else { Err(Failure::Told) }
}
