//! What a node is like, in one typed model: `nicpath status` prints it, conditions and metrics derive from it.
//!
//! Field names are the contract of design section 3; fields are only ever added.

use std::{
    collections::{BTreeMap, HashSet},
    net::IpAddr,
};

use ebpf::abi::{ABI_VERSION, MAX_NICS, NEXT_HOPS, OWNED_ADDRESSES, OWNED_PREFIXES, map};
use ipnet::IpNet;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use serde::{Deserialize, Serialize};

use crate::{
    api::{
        Mode, Reason,
        conditions::{ConditionStatus, ConditionType, Finding, set_condition},
    },
    config::Provenance,
    desired::{Desired, ManagedNic},
    hook::{Direction, Hook, HookState, ObservedPrograms},
    inventory::{Inventory, NeighbourState, OwnRoute},
    plan::{Action, Step},
};

/// The answer of `nicpath status`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusReport {
    pub node: String,
    pub version: String,
    pub abi: u32,
    pub mode: NodeMode,
    pub conditions: Vec<Condition>,
    pub nics: Vec<NicReport>,
    pub routes: Vec<RouteReport>,
    /// Pods with an ENI of their own.
    pub pods: Vec<PodReport>,
    pub maps: Vec<MapReport>,
}

/// What the node's programs do with packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeMode {
    Enforce,
    /// Every managed NIC only observes.
    Observe,
    /// `nicpath off`
    Off,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NicReport {
    pub name: String,
    pub ifindex: u32,
    pub mac: Option<String>,
    pub class: String,
    pub network: String,
    pub ready: bool,
    pub reason: Reason,
    pub addresses: Vec<IpAddr>,
    pub gateways: Vec<GatewayReport>,
    pub programs: ProgramsReport,
}

#[derive(Debug, Clone, Serialize)]
pub struct GatewayReport {
    pub address: IpAddr,
    /// State of its neighbour entry; absent if the kernel has none.
    pub state: Option<NeighbourState>,
    pub mac: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct ProgramsReport {
    pub ingress: ProgramReport,
    pub egress: ProgramReport,
}

#[derive(Debug, Clone, Serialize)]
pub struct ProgramReport {
    pub id: Option<u32>,
    pub name: &'static str,
    /// How it is attached.
    pub mode: &'static str,
    /// Among the programs of the hook.
    pub position: Option<PositionReport>,
    pub state: ProgramState,
    /// Names of programs that run before it.
    pub before: Vec<String>,
    /// Names of programs that run after it.
    pub after: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PositionReport {
    Only,
    First,
    Middle,
    Last,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProgramState {
    Attached,
    /// The attachment outlived its device.
    Dead,
    Missing,
}

#[derive(Debug, Clone, Serialize)]
pub struct RouteReport {
    pub destination: String,
    pub nic: Option<String>,
    pub gateway: Option<IpAddr>,
    pub source: Option<IpAddr>,
    pub state: RouteState,
    pub reason: Reason,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    pub from: Provenance,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteState {
    Applied,
    /// Wanted, and not in the kernel (yet).
    Pending,
    Refused,
    /// A route that is not ours has the destination.
    Conflict,
}

impl RouteState {
    /// All, for metrics.
    pub const ALL: [Self; 4] = [Self::Applied, Self::Pending, Self::Refused, Self::Conflict];

    pub fn name(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Pending => "pending",
            Self::Refused => "refused",
            Self::Conflict => "conflict",
        }
    }
}

/// A pod with an ENI of its own.
#[derive(Debug, Clone, Serialize)]
pub struct PodReport {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub addresses: Vec<IpAddr>,
    pub vid: u16,
    pub eni: String,
    pub state: String,
}

#[derive(Debug, Clone, Serialize)]
pub struct MapReport {
    pub name: &'static str,
    pub entries: usize,
    pub capacity: usize,
}

/// Everything a report is made of.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    pub node: &'a str,
    pub desired: &'a Desired,
    pub inventory: &'a Inventory,
    pub programs: &'a ObservedPrograms,
    /// What a plan would still do.
    pub open: &'a [Step],
    /// Problems outside the plan: manifests that cannot be read, a state directory that cannot be written …
    pub problems: &'a [Problem],
}

/// Something that is wrong with the node beyond single objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    pub reason: Reason,
    pub message: String,
}

/// Makes the report; `recorded` are the conditions as last reported, `now` is the time of a transition.
pub fn report(facts: Facts<'_>, recorded: &[Condition], now: Timestamp) -> StatusReport {
    let nics: Vec<NicReport> = facts.desired.nics.iter().map(|nic| nic_report(nic, facts)).collect();
    let routes = route_reports(facts);
    let mut conditions = recorded.to_vec();
    for finding in findings(facts, &nics, &routes) {
        let _changed = set_condition(&mut conditions, finding, now);
    }
    let tables = &facts.programs.tables;
    let map = |name, entries, capacity| MapReport { name, entries, capacity };
    StatusReport {
        node: facts.node.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        abi: ABI_VERSION,
        mode: mode(facts),
        conditions,
        nics,
        routes,
        pods: Vec::new(),
        maps: vec![
            map("NICS", tables.nics.len(), MAX_NICS),
            map("OWNERS", tables.owners.len(), OWNED_ADDRESSES),
            map(map::OWNED_PREFIXES, tables.prefixes.len(), OWNED_PREFIXES),
            map(map::NEXT_HOPS, tables.hops.len(), NEXT_HOPS),
        ],
    }
}

fn mode(facts: Facts<'_>) -> NodeMode {
    let nics = &facts.desired.tables.nics;
    if facts.programs.switched_off {
        NodeMode::Off
    } else if !nics.is_empty() && nics.values().all(|nic| nic.mode == Mode::Observe) {
        NodeMode::Observe
    } else {
        NodeMode::Enforce
    }
}

fn nic_report(nic: &ManagedNic, facts: Facts<'_>) -> NicReport {
    let link = facts.inventory.link(nic.link);
    let program = |direction| program_report(facts.programs.hooks.get(&Hook { link: nic.link, direction }), direction);
    let programs = ProgramsReport { ingress: program(Direction::Ingress), egress: program(Direction::Egress) };
    let gateways: Vec<GatewayReport> = [nic.gateways.v4, nic.gateways.v6]
        .into_iter()
        .flatten()
        .map(|address| {
            let neighbour = facts.inventory.neighbour(nic.link, address);
            GatewayReport {
                address,
                state: neighbour.map(|n| n.state),
                mac: neighbour.and_then(|n| n.mac).map(|mac| mac.to_string()),
            }
        })
        .collect();
    let attached = [&programs.ingress, &programs.egress].iter().all(|p| p.state == ProgramState::Attached);
    let reason = if !link.is_some_and(|link| link.up) {
        Reason::NicDown
    } else if !attached {
        Reason::Pending
    } else if gateways.is_empty() {
        Reason::NoGateway
    } else {
        Reason::AsExpected
    };
    NicReport {
        name: nic.name.clone(),
        ifindex: nic.link.0,
        mac: link.and_then(|link| link.mac).map(|mac| mac.to_string()),
        class: nic.class.clone(),
        network: nic.network.clone(),
        // without a gateway it still answers its own subnet
        ready: matches!(reason, Reason::AsExpected | Reason::NoGateway),
        reason,
        addresses: nic.addresses.clone(),
        gateways,
        programs,
    }
}

fn program_report(state: Option<&HookState>, direction: Direction) -> ProgramReport {
    let names = |programs: &[crate::hook::ProgramRef]| programs.iter().map(|p| p.name.clone()).collect::<Vec<_>>();
    let (id, position, state, before, after) = match state {
        Some(HookState::Attached { program, before, after, .. }) => {
            let position = match (before.is_empty(), after.is_empty()) {
                (true, true) => PositionReport::Only,
                (true, false) => PositionReport::First,
                (false, true) => PositionReport::Last,
                (false, false) => PositionReport::Middle,
            };
            (Some(*program), Some(position), ProgramState::Attached, names(before), names(after))
        }
        Some(HookState::Dead) => (None, None, ProgramState::Dead, Vec::new(), Vec::new()),
        Some(HookState::Missing { others }) => (None, None, ProgramState::Missing, Vec::new(), names(others)),
        None => (None, None, ProgramState::Missing, Vec::new(), Vec::new()),
    };
    ProgramReport { id, name: direction.name(), mode: "tcx", position, state, before, after }
}

fn route_reports(facts: Facts<'_>) -> Vec<RouteReport> {
    let nic_name = |route: &OwnRoute| facts.inventory.link(route.link).map(|link| link.name.clone());
    let open: HashSet<&OwnRoute> = facts
        .open
        .iter()
        .filter_map(|step| match &step.action {
            Action::AddRoute(route) | Action::ReplaceRoute { new: route, .. } => Some(route),
            _ => None,
        })
        .collect();
    let wanted = facts.desired.routes.iter().map(|item| {
        let pending = open.contains(&item.route);
        RouteReport {
            destination: item.route.destination.to_string(),
            nic: nic_name(&item.route),
            gateway: item.route.gateway,
            source: item.route.source,
            state: if pending { RouteState::Pending } else { RouteState::Applied },
            reason: if pending { Reason::Pending } else { Reason::Applied },
            message: String::new(),
            from: item.from.clone(),
        }
    });
    let refused = facts.desired.refused.iter().filter_map(|refusal| {
        let destination = refusal.destination.clone()?;
        Some(RouteReport {
            destination,
            nic: None,
            gateway: None,
            source: None,
            state: match refusal.reason {
                Reason::Conflict => RouteState::Conflict,
                Reason::NicDown | Reason::UnknownNic | Reason::SourceNotOnNic => RouteState::Pending,
                _ => RouteState::Refused,
            },
            reason: refusal.reason,
            message: refusal.message.clone(),
            from: refusal.from.clone(),
        })
    });
    wanted.chain(refused).collect()
}

/// The conditions of a node; every type is reported every time, so that a stale one cannot stay.
fn findings(facts: Facts<'_>, nics: &[NicReport], routes: &[RouteReport]) -> Vec<Finding> {
    let finding = |condition, status: bool, reason, message: String| Finding {
        condition,
        status: if status { ConditionStatus::True } else { ConditionStatus::False },
        reason,
        message,
        observed_generation: None,
    };
    let good = |what: &str| (Reason::AsExpected, what.to_owned());

    let down: Vec<&NicReport> = nics.iter().filter(|nic| !nic.ready).collect();
    let (reason, message) = match (nics, down.as_slice()) {
        ([], _) => (Reason::NoSuchNic, "no NIC is managed".to_owned()),
        (_, []) => good(&format!("{} NICs answer by the NIC asked", nics.len())),
        (_, [first, ..]) => (first.reason, join(down.iter().map(|nic| format!("{}: {}", nic.name, nic.reason)))),
    };
    let ready = finding(ConditionType::Ready, down.is_empty() && !nics.is_empty(), reason, message);

    let pending = facts.open.len();
    let (reason, message) = match pending {
        0 => (Reason::Applied, "the node is as its objects say".to_owned()),
        n => (
            Reason::Pending,
            format!("{n} changes are open, the first: {}", facts.open[0].action.command(facts.inventory)),
        ),
    };
    let applied = finding(ConditionType::Applied, pending == 0, reason, message);

    let refusals: Vec<String> = facts
        .desired
        .refused
        .iter()
        .map(|r| format!("{}: {}", r.from, r.message))
        .chain(facts.problems.iter().map(|problem| problem.message.clone()))
        .collect();
    let reason = facts
        .problems
        .first()
        .map(|problem| problem.reason)
        .or_else(|| facts.desired.refused.first().map(|r| r.reason))
        .unwrap_or(Reason::AsExpected);
    let degraded = finding(ConditionType::Degraded, !refusals.is_empty(), reason, join(refusals.into_iter()));

    let of_reason = |wanted: &[Reason]| -> Vec<String> {
        let matching = facts.desired.refused.iter().filter(|r| wanted.contains(&r.reason));
        matching.map(|r| format!("{}: {}", r.from, r.message)).collect()
    };
    let ambiguous = of_reason(&[Reason::Ambiguous, Reason::ClaimedTwice]);
    let conflicts: Vec<String> = routes
        .iter()
        .filter(|route| route.state == RouteState::Conflict)
        .map(|route| format!("{}: {}", route.destination, route.message))
        .collect();
    let uncovered: Vec<String> = facts
        .desired
        .uncovered
        .iter()
        .map(|item| format!("{} carries {} and no NicClass covers it", item.nic, route_name(item.destination)))
        .collect();
    let problems_of = |reason: Reason| -> Vec<String> {
        facts.problems.iter().filter(|p| p.reason == reason).map(|p| p.message.clone()).collect()
    };
    let listed = |condition, bad: Reason, items: Vec<String>| {
        let reason = if items.is_empty() { Reason::AsExpected } else { bad };
        finding(condition, !items.is_empty(), reason, join(items.into_iter()))
    };
    vec![
        ready,
        applied,
        degraded,
        listed(ConditionType::Ambiguous, Reason::Ambiguous, ambiguous),
        listed(ConditionType::Conflict, Reason::Conflict, conflicts),
        listed(ConditionType::UncoveredDevice, Reason::UncoveredDevice, uncovered),
        listed(ConditionType::RolledBack, Reason::RolledBack, problems_of(Reason::RolledBack)),
        listed(ConditionType::ContestedBy, Reason::Contested, problems_of(Reason::Contested)),
    ]
}

fn route_name(destination: IpNet) -> String {
    if destination.prefix_len() == 0 {
        let family = if destination.addr().is_ipv4() { "IPv4" } else { "IPv6" };
        format!("the {family} default route")
    } else {
        format!("the route to {destination}")
    }
}

/// The first few, and how many more: a message stays readable with a thousand causes, or with one of a thousand lines.
fn join(items: impl Iterator<Item = String>) -> String {
    const SHOWN: usize = 5;
    const CHARS_EACH: usize = 500;
    let items: Vec<String> = items.collect();
    let shown = items.iter().take(SHOWN).map(|item| match item.char_indices().nth(CHARS_EACH) {
        Some((end, _)) => format!("{}…", &item[..end]),
        None => item.clone(),
    });
    let mut text = shown.collect::<Vec<_>>().join("; ");
    if items.len() > SHOWN {
        text.push_str(&format!("; and {} more", items.len() - SHOWN));
    }
    text
}

/// How many routes are in each state, zeros included.
pub fn route_counts(routes: &[RouteReport]) -> BTreeMap<RouteState, usize> {
    let mut counts: BTreeMap<RouteState, usize> = RouteState::ALL.into_iter().map(|state| (state, 0)).collect();
    for route in routes {
        *counts.entry(route.state).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests;
