//! `cargo xtask demo`: the same health checks against a node with two NICs, answered by the plain kernel, by policy
//! rules, and by nicpath. Each way gets a lab of its own, so that none profits from another.

mod table;

use std::path::{Path, PathBuf};
use std::process::{ExitCode, Output};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tests::lab::{CLIENT, Family, node_address};
use tests::product::Product;
use tests::traffic::{Probe, Target, TcpEcho, UdpEcho};
use tests::{Netns, TwoNic};

use crate::build::{Programs, build};
use crate::workspace::{Workspace, is_root};
use table::{Outcome, Packets, Score, table};

/// What becomes of the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Afterwards {
    Remove,
    Keep,
}

/// How the node finds the way for its answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    PlainKernel,
    PolicyRules,
    Nicpath,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::PlainKernel => "plain kernel",
            Self::PolicyRules => "policy rules",
            Self::Nicpath => "nicpath",
        }
    }
}

const PROBES: [Probe; 3] = [Probe::Tcp, Probe::Udp, Probe::Ping];
/// The port of the node's TCP and UDP servers.
const PORT: u16 = 8080;
/// Checks of each kind, family and NIC.
const CHECKS: u32 = 5;
/// Less than the second after which TCP would try again: one lost packet is one failed check.
const PATIENCE: Duration = Duration::from_millis(500);

const PICTURE: &str = "
  checker 100.64.0.5 ── gateway 1 ── eth0 10.10.0.10  user network, default route ┐
                                                                                 node
  checker 100.64.0.5 ── gateway 2 ── eth1 10.20.0.10  management network          ┘

  The load balancer's checker stands behind both gateways (IPv6 likewise, 2001:db8:100::5).
  A gateway drops what does not come from its own network, as a cloud does.
";

/// Builds, shows the three ways and compares them. Fails if one of them does not go as told.
pub(crate) fn demo(workspace: &Workspace, afterwards: Afterwards) -> Result<ExitCode> {
    ensure!(is_root(), "the demo builds network namespaces: run it as root");
    let binary = build(workspace, Programs::Release)?;
    println!("{PICTURE}");

    let mut outcomes = Vec::new();
    let plain = lab(Way::PlainKernel);
    outcomes.push(measure(&plain, Way::PlainKernel));
    remove(plain)?;

    let rules = lab(Way::PolicyRules);
    rules.policy_rules();
    for family in Family::ALL {
        print_indented(&rules.node.ip(&format!("{} rule show table 201", family.option())));
    }
    outcomes.push(measure(&rules, Way::PolicyRules));
    remove(rules)?;

    let lab = lab(Way::Nicpath);
    let product = Product::with_binary(&lab.node, binary.clone());
    let manifests = workspace.root.join("deploy/samples/two-nics");
    nicpath(&product, "apply", &["--manifests", &manifests.to_string_lossy()])?;
    for family in Family::ALL {
        print_indented(&lab.node.ip(&format!("{} route show proto 157", family.option())));
    }
    outcomes.push(measure(&lab, Way::Nicpath));
    nicpath(&product, "status", &[])?;
    let (source, client) = (node_address(1, Family::V4).to_string(), CLIENT.v4.to_string());
    nicpath(&product, "why", &["--src", &source, "--dst", &client, "--proto", "tcp"])?;

    let as_told = as_told(&outcomes);
    match afterwards {
        Afterwards::Keep => {
            println!("\n{}", table(&outcomes));
            keep(lab, product, &binary);
        }
        Afterwards::Remove => {
            nicpath(&product, "uninstall", &[])?;
            drop(product);
            remove(lab)?;
            println!("\n{}", table(&outcomes));
            println!("The labs are removed; `cargo xtask demo --keep` leaves the last one up.");
        }
    }
    as_told.map(|()| ExitCode::SUCCESS)
}

fn lab(way: Way) -> TwoNic {
    println!("== {}", way.name());
    TwoNic::builder().build()
}

/// Runs every check against both NICs, all at once, and reads what the gateways counted.
fn measure(lab: &TwoNic, way: Way) -> Outcome {
    let addresses = (0..2).flat_map(|nic| Family::ALL.map(|family| (nic, family)));
    let servers: Vec<_> = addresses
        .clone()
        .map(|(nic, family)| {
            let address = (node_address(nic, family), PORT).into();
            (TcpEcho::start(&lab.node, address), UdpEcho::start(&lab.node, address))
        })
        .collect();
    lab.reset_counters();
    let scores = thread::scope(|scope| {
        let running: Vec<_> = addresses
            .flat_map(|(nic, family)| PROBES.map(|probe| (nic, probe, target(lab, nic, family, probe))))
            .map(|(nic, probe, target)| (nic, probe, scope.spawn(move || check(&target))))
            .collect();
        let mut scores = [[Score::default(); PROBES.len()]; 2];
        for (nic, probe, thread) in running {
            // A check whose thread died has no answer.
            let answered = thread.join().unwrap_or(0);
            scores[nic][probe as usize] += Score { answered, sent: CHECKS };
        }
        scores
    });
    drop(servers);
    let outcome = Outcome { way: way.name(), scores, packets: [0, 1].map(|nic| packets(lab, nic)), rules: rules(lab) };
    for (nic, name) in ["eth0", "eth1"].into_iter().enumerate() {
        println!("   {name}: {} checks answered", outcome.score(nic));
    }
    outcome
}

fn target(lab: &TwoNic, nic: usize, family: Family, probe: Probe) -> Target {
    let (client, node) = (CLIENT.get(family), node_address(nic, family));
    let checker: &Netns = lab.gw(nic).ns();
    match probe {
        Probe::Tcp => Target::tcp(checker, (client, 0).into(), (node, PORT).into()),
        Probe::Udp => Target::udp(checker, (client, 0).into(), (node, PORT).into()),
        Probe::Ping => Target::ping(checker, client, node),
    }
}

fn check(target: &Target) -> u32 {
    (0..CHECKS).map(|_| u32::from(target.check(PATIENCE).is_ok())).sum()
}

fn packets(lab: &TwoNic, nic: usize) -> Packets {
    let wrong = lab.gw(nic).counter("wrong_source");
    Packets { right: lab.gw(nic).counter("from_node").saturating_sub(wrong), wrong }
}

/// The node's policy rules, without the ones every kernel starts with.
fn rules(lab: &TwoNic) -> usize {
    const BUILT_IN: [&str; 3] = ["0:", "32766:", "32767:"];
    let listing = Family::ALL.map(|family| lab.node.ip(&format!("{} rule show", family.option())));
    listing
        .iter()
        .flat_map(|text| text.lines())
        .filter(|line| !BUILT_IN.iter().any(|own| line.starts_with(own)))
        .count()
}

/// Runs a command of the product as a user would, and shows it.
fn nicpath(product: &Product, command: &str, arguments: &[&str]) -> Result<()> {
    println!("   $ nicpath {}", [&[command], arguments].concat().join(" "));
    let Output { status, stdout, stderr } = product.run(command, arguments);
    print_indented(&String::from_utf8_lossy(&stdout));
    print_indented(&String::from_utf8_lossy(&stderr));
    ensure!(status.success(), "nicpath {command}: {status}");
    Ok(())
}

fn print_indented(text: &str) {
    for line in text.lines() {
        println!("     {line}");
    }
}

/// The story the table has to tell.
fn as_told(outcomes: &[Outcome]) -> Result<()> {
    let find = |way: Way| outcomes.iter().find(|outcome| outcome.way == way.name()).context("a way is missing");
    let plain = find(Way::PlainKernel)?;
    if !plain.score(0).is_full() || plain.score(1).answered > 0 {
        bail!("the plain kernel should answer on eth0 only: this lab shows nothing");
    }
    for way in [Way::PolicyRules, Way::Nicpath] {
        let outcome = find(way)?;
        let wrong: u64 = outcome.packets.iter().map(|packets| packets.wrong).sum();
        if !outcome.score(0).is_full() || !outcome.score(1).is_full() || wrong > 0 {
            bail!("with {} every check should be answered and no packet leave by the wrong NIC", way.name());
        }
    }
    ensure!(find(Way::Nicpath)?.rules == 0, "nicpath should need no rule");
    Ok(())
}

/// Removes a lab and makes sure of it.
fn remove(lab: TwoNic) -> Result<()> {
    let paths: Vec<PathBuf> = lab.namespaces().map(Netns::path).collect();
    drop(lab);
    match paths.iter().find(|path| path.exists()) {
        Some(left) => bail!("{} is left behind: umount and remove it", left.display()),
        None => Ok(()),
    }
}

fn keep(lab: TwoNic, product: Product, binary: &Path) {
    let inside = |netns: &Netns| format!("nsenter --net={}", netns.path().display());
    let node = inside(&lab.node);
    let state = format!("--state-dir {} --bpffs {}", product.state_dir().display(), product.bpffs().display());
    println!("The last lab stays up. Look around:");
    for arguments in ["status", "why --src 10.20.0.10 --dst 100.64.0.5 --proto tcp", "uninstall"] {
        println!("  {node} {} {arguments} {state}", binary.display());
    }
    println!("  {node} ip route");
    for nic in 0..2 {
        println!("  {} nft list counters   # what gateway {} got", inside(lab.gw(nic).ns()), nic + 1);
    }
    println!("The next demo or test run removes it.");
    product.keep();
    lab.keep();
}
