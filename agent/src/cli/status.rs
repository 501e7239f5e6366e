//! `nicpath status`: the pipeline's view, without acting on it. Needs no agent.

use clap::Args;
use k8s_openapi::jiff::Timestamp;

use super::{Answer, InForce, Output, Paths, preflight};
use crate::{
    hook::Position,
    status::{GatewayReport, NicReport, NodeMode, ProgramReport, ProgramState, StatusReport, report, route_counts},
    table::Table,
};

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    paths: Paths,
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

pub(super) async fn run(args: &StatusArgs) -> Answer {
    preflight::check(&args.paths.bpffs, preflight::Need::Read)?;
    let InForce { state, config, node, reserved } = args.paths.in_force()?;
    let pipeline = args.paths.pipeline(Position::default(), reserved)?;
    let view = pipeline.look(&config, &state).await?;
    let recorded = pipeline.state_dir.load_recorded()?;
    let report = report(view.facts(&node, &recorded.problems), &recorded.conditions, Timestamp::now());
    match args.output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&report)?),
        Output::Yaml => print!("{}", serde_saphyr::to_string(&report)?),
        Output::Table => print(&report),
    }
    Ok(())
}

fn print(report: &StatusReport) {
    let mode = match report.mode {
        NodeMode::Enforce => "enforce",
        NodeMode::Observe => "observe",
        NodeMode::Off => "OFF (`nicpath on` ends it)",
    };
    println!("node {}  nicpath {} (abi {})  mode {mode}\n", report.node, report.version, report.abi);
    let mut nics = Table::new(["NIC", "CLASS", "NETWORK", "READY", "ADDRESSES", "GATEWAYS", "INGRESS", "EGRESS"]);
    for nic in &report.nics {
        nics.row(nic_row(nic));
    }
    println!("{nics}");
    let shown: Vec<_> = report.routes.iter().take(40).collect();
    if !shown.is_empty() {
        let mut routes = Table::new(["DESTINATION", "NIC", "GATEWAY", "STATE", "REASON", "FROM"]);
        for route in &shown {
            routes.row([
                route.destination.clone(),
                route.nic.clone().unwrap_or_default(),
                route.gateway.map_or_else(|| "on-link".to_owned(), |ip| ip.to_string()),
                route.state.name().to_owned(),
                route.reason.to_string(),
                route.from.to_string(),
            ]);
        }
        println!("{routes}");
        let counts = route_counts(&report.routes);
        let counts: Vec<String> = counts.iter().map(|(state, n)| format!("{n} {}", state.name())).collect();
        println!("{} routes: {}\n", report.routes.len(), counts.join(", "));
    }
    let mut conditions = Table::new(["CONDITION", "STATUS", "REASON", "MESSAGE"]);
    for c in &report.conditions {
        conditions.row([c.type_.clone(), c.status.clone(), c.reason.clone(), c.message.clone()]);
    }
    println!("{conditions}");
    let maps: Vec<String> = report.maps.iter().map(|m| format!("{} {}/{}", m.name, m.entries, m.capacity)).collect();
    println!("tables: {}", maps.join("  "));
}

fn nic_row(nic: &NicReport) -> [String; 8] {
    let list = |items: Vec<String>| items.join(", ");
    let gateway = |g: &GatewayReport| {
        let state = g.state.map_or_else(|| "unknown".to_owned(), |state| format!("{state:?}").to_lowercase());
        format!("{} ({state})", g.address)
    };
    const SHOWN: usize = 4;
    let mut addresses: Vec<String> = nic.addresses.iter().take(SHOWN).map(ToString::to_string).collect();
    if nic.addresses.len() > SHOWN {
        addresses.push(format!("and {} more", nic.addresses.len() - SHOWN));
    }
    [
        format!("{} (#{})", nic.name, nic.ifindex),
        nic.class.clone(),
        nic.network.clone(),
        if nic.ready { "yes".to_owned() } else { format!("no: {}", nic.reason) },
        list(addresses),
        list(nic.gateways.iter().map(gateway).collect()),
        program(&nic.programs.ingress),
        program(&nic.programs.egress),
    ]
}

fn program(program: &ProgramReport) -> String {
    let state = match (program.state, program.id) {
        (ProgramState::Attached, Some(id)) => format!("#{id} {}", program.mode),
        (ProgramState::Attached, None) => "attached".to_owned(),
        (ProgramState::Dead, _) => "DEAD".to_owned(),
        (ProgramState::Missing, _) => "MISSING".to_owned(),
    };
    let company = |word: &str, names: &[String]| {
        if names.is_empty() { String::new() } else { format!(" {word} {}", names.join(" ")) }
    };
    format!("{state}{}{}", company("behind", &program.before), company("before", &program.after))
}
