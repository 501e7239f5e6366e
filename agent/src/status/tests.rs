//! Reports of nodes made here.

use std::collections::BTreeSet;

use k8s_openapi::jiff::SignedDuration;
use serde_json::{Value, json};

use super::*;
use crate::{
    api::{ReplyPath, SourceGuard},
    config::{PerFamily, Refusal},
    desired::{DesiredRoute, Uncovered},
    hook::{Installed, Position, ProgramRef},
    inventory::{Ifindex, Link, Mac, Neighbour, SysctlFamily, SysctlKey},
    tables::{AdminState, NicEntry, TableSpec},
};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn from(kind: &str, name: &str) -> Provenance {
    Provenance { kind: kind.into(), name: name.into(), uid: String::new(), generation: 0 }
}

fn own(destination: &str) -> OwnRoute {
    OwnRoute {
        destination: destination.parse().unwrap(),
        link: Ifindex(3),
        gateway: Some(ip("10.20.0.1")),
        source: Some(ip("10.20.0.10")),
        metric: 0,
        mtu: None,
        onlink: false,
    }
}

fn step(action: Action) -> Step {
    Step { action, why: "because".into() }
}

/// Everything a report is made of, owned; starts as eth1 managed and in order.
#[derive(Clone)]
struct Node {
    desired: Desired,
    inventory: Inventory,
    programs: ObservedPrograms,
    open: Vec<Step>,
    problems: Vec<Problem>,
}

impl Node {
    fn healthy() -> Self {
        let link = Link {
            index: Ifindex(3),
            name: "eth1".into(),
            kind: None,
            mac: Some(Mac([2, 0, 0, 0, 0, 3])),
            ethernet: true,
            loopback: false,
            up: true,
            carrier: true,
            mtu: 1500,
            master: None,
            lower: None,
        };
        let nic = ManagedNic {
            slot: 0,
            link: Ifindex(3),
            name: "eth1".into(),
            class: "mgmt".into(),
            network: "mgmt-net".into(),
            gateways: PerFamily { v4: Some(ip("10.20.0.1")), v6: Some(ip("fe80::1")) },
            addresses: vec![ip("10.20.0.10"), ip("fd00:20::10")],
        };
        let entry = NicEntry {
            link: Ifindex(3),
            lower: None,
            network: 1,
            state: AdminState::Up,
            mode: Mode::Enforce,
            reply_path: ReplyPath::Symmetric,
            source_guard: SourceGuard::Count,
            gateways: nic.gateways,
        };
        let tables = TableSpec {
            nics: [(0, entry)].into(),
            owners: nic.addresses.iter().map(|address| (*address, 0)).collect(),
            ..TableSpec::default()
        };
        let attached = |program| HookState::Attached { program, current: true, before: vec![], after: vec![] };
        let neighbour = Neighbour {
            link: Ifindex(3),
            address: ip("10.20.0.1"),
            mac: Some(Mac([2, 0, 0, 0, 0, 9])),
            state: NeighbourState::Reachable,
        };
        Self {
            desired: Desired { nics: vec![nic], tables: tables.clone(), ..Desired::default() },
            inventory: Inventory { links: vec![link], neighbours: vec![neighbour], ..Inventory::default() },
            programs: ObservedPrograms {
                installed: Installed::Current,
                tables,
                hooks: [(hook(Direction::Ingress), attached(11)), (hook(Direction::Egress), attached(12))].into(),
                switched_off: false,
            },
            open: vec![],
            problems: vec![],
        }
    }

    fn with(change: impl FnOnce(&mut Self)) -> Self {
        let mut node = Self::healthy();
        change(&mut node);
        node
    }

    fn refusing(reason: Reason, destination: Option<&str>, message: &str) -> Self {
        Self::with(|node| node.refuse(reason, destination, message))
    }

    fn refuse(&mut self, reason: Reason, destination: Option<&str>, message: &str) {
        self.desired.refused.push(Refusal {
            from: from("RouteEntry", "e"),
            destination: destination.map(str::to_owned),
            reason,
            message: message.into(),
        });
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            node: "n1",
            desired: &self.desired,
            inventory: &self.inventory,
            programs: &self.programs,
            open: &self.open,
            problems: &self.problems,
        }
    }

    fn report(&self) -> StatusReport {
        report(self.facts(), &[], at(0))
    }

    /// Status, reason and message of a condition.
    fn condition(&self, kind: ConditionType) -> (String, String, String) {
        let conditions = self.report().conditions;
        let found = conditions.into_iter().find(|c| c.type_ == kind.as_str()).unwrap();
        (found.status, found.reason, found.message)
    }

    fn nic(&self) -> (bool, Reason) {
        let nic = self.report().nics.remove(0);
        (nic.ready, nic.reason)
    }
}

fn hook(direction: Direction) -> Hook {
    Hook { link: Ifindex(3), direction }
}

const ALL_TYPES: [ConditionType; 8] = [
    ConditionType::Ready,
    ConditionType::Applied,
    ConditionType::Degraded,
    ConditionType::RolledBack,
    ConditionType::Ambiguous,
    ConditionType::Conflict,
    ConditionType::UncoveredDevice,
    ConditionType::ContestedBy,
];

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn field_names_are_those_of_the_contract() {
    let mut node = Node::refusing(Reason::ProtectedDestination, Some("10.0.0.0/8"), "no");
    node.desired.routes = vec![DesiredRoute { route: own("172.30.0.0/16"), from: from("RouteEntry", "r") }];
    let pod = PodReport {
        namespace: "ns".into(),
        name: "p".into(),
        uid: "u".into(),
        addresses: vec![],
        vid: 7,
        eni: "eni".into(),
        state: "ready".into(),
    };
    let status = serde_json::to_value(StatusReport { pods: vec![pod], ..node.report() }).unwrap();
    let top = ["abi", "conditions", "maps", "mode", "nics", "node", "pods", "routes", "version"];
    assert_eq!(keys(&status), top.into());
    let nic = &status["nics"][0];
    let of_nic = ["addresses", "class", "gateways", "ifindex", "mac", "name", "network", "programs", "ready", "reason"];
    assert_eq!(keys(nic), of_nic.into());
    assert_eq!(keys(&nic["gateways"][0]), ["address", "mac", "state"].into());
    assert_eq!(keys(&nic["programs"]), ["egress", "ingress"].into());
    for direction in ["egress", "ingress"] {
        let of_program = ["after", "before", "id", "mode", "name", "position", "state"];
        assert_eq!(keys(&nic["programs"][direction]), of_program.into());
    }
    let of_route = ["destination", "from", "gateway", "nic", "reason", "source", "state"];
    assert_eq!(keys(&status["routes"][0]), of_route.into());
    assert_eq!(keys(&status["routes"][1]), of_route.into_iter().chain(["message"]).collect());
    let of_pod = ["addresses", "eni", "name", "namespace", "state", "uid", "vid"];
    assert_eq!(keys(&status["pods"][0]), of_pod.into());
    assert_eq!(keys(&status["maps"][0]), ["capacity", "entries", "name"].into());
    let of_condition = ["lastTransitionTime", "message", "reason", "status", "type"];
    assert_eq!(keys(&status["conditions"][0]), of_condition.into());
}

#[test]
fn values_are_the_words_of_the_contract() {
    let status = serde_json::to_value(Node::healthy().report()).unwrap();
    assert_eq!(
        (&status["node"], &status["mode"], &status["abi"]),
        (&json!("n1"), &json!("enforce"), &json!(ABI_VERSION))
    );
    let gateways = json!([
        {"address": "10.20.0.1", "state": "reachable", "mac": "02:00:00:00:00:09"},
        {"address": "fe80::1", "state": null, "mac": null},
    ]);
    let program = |id: u32, name: &str| json!({"id": id, "name": name, "mode": "tcx", "position": "only", "state": "attached", "before": [], "after": []});
    let nic = json!({
        "name": "eth1", "ifindex": 3, "mac": "02:00:00:00:00:03", "class": "mgmt", "network": "mgmt-net", "ready": true,
        "reason": "AsExpected", "addresses": ["10.20.0.10", "fd00:20::10"], "gateways": gateways,
        "programs": {"ingress": program(11, "ingress"), "egress": program(12, "egress")},
    });
    assert_eq!(status["nics"], json!([nic]));
    assert!(
        status["maps"]
            .as_array()
            .unwrap()
            .contains(&json!({"name": "OWNERS", "entries": 2, "capacity": OWNED_ADDRESSES}))
    );
}

#[test]
fn every_type_of_condition_is_reported_once_whatever_the_node_is_like() {
    let empty = Node::with(|node| {
        node.desired = Desired::default();
        node.inventory = Inventory::default();
    });
    let troubled = Node::with(|node| {
        node.refuse(Reason::Conflict, Some("172.30.0.0/16"), "m");
        node.problems.push(Problem { reason: Reason::Contested, message: "m".into() });
    });
    for node in [Node::healthy(), empty, troubled] {
        let mut types: Vec<String> = node.report().conditions.into_iter().map(|c| c.type_).collect();
        types.sort();
        let mut expected = ALL_TYPES.map(ConditionType::as_str);
        expected.sort_unstable();
        assert_eq!(types, expected);
    }
}

#[test]
fn a_healthy_node_is_ready_and_applied_and_nothing_else() {
    for kind in ALL_TYPES {
        let (status, reason, _) = Node::healthy().condition(kind);
        let expected = match kind {
            ConditionType::Ready => ("True", "AsExpected"),
            ConditionType::Applied => ("True", "Applied"),
            _ => ("False", "AsExpected"),
        };
        assert_eq!((status.as_str(), reason.as_str()), expected, "{kind:?}");
    }
}

#[test]
fn a_condition_keeps_its_time_until_its_status_flips() {
    let first = Node::healthy().report().conditions;
    let later = report(Node::healthy().facts(), &first, at(60)).conditions;
    assert_eq!(later, first);
    let open = Node::with(|node| node.open.push(step(Action::Commit)));
    let flipped = report(open.facts(), &later, at(120)).conditions;
    for (before, after) in later.iter().zip(&flipped) {
        let waited = after.last_transition_time.0.duration_since(before.last_transition_time.0);
        let expected = if after.type_ == "Applied" { SignedDuration::from_secs(120) } else { SignedDuration::ZERO };
        assert_eq!(waited, expected, "{}", after.type_);
    }
}

#[test]
fn a_condition_that_is_no_longer_true_becomes_false_rather_than_stay() {
    let before = Node::refusing(Reason::Conflict, Some("172.30.0.0/16"), "foreign").report().conditions;
    let after = report(Node::healthy().facts(), &before, at(60)).conditions;
    assert!(after.iter().all(|c| (c.status == "True") == matches!(c.type_.as_str(), "Ready" | "Applied")), "{after:?}");
}

#[test]
fn a_nic_is_ready_only_if_it_is_up_and_both_programs_run() {
    type Change = fn(&mut Node);
    let rows: [(Change, (bool, Reason)); 6] = [
        (|_| {}, (true, Reason::AsExpected)),
        (|node| node.inventory.links[0].up = false, (false, Reason::NicDown)),
        (|node| node.inventory.links.clear(), (false, Reason::NicDown)),
        (
            |node| {
                node.programs.hooks.remove(&hook(Direction::Egress));
            },
            (false, Reason::Pending),
        ),
        (
            |node| {
                node.programs.hooks.insert(hook(Direction::Ingress), HookState::Dead);
            },
            (false, Reason::Pending),
        ),
        (|node| node.desired.nics[0].gateways = PerFamily::default(), (true, Reason::NoGateway)),
    ];
    for (i, (change, expected)) in rows.into_iter().enumerate() {
        let node = Node::with(change);
        assert_eq!(node.nic(), expected, "row {i}");
        let (status, ..) = node.condition(ConditionType::Ready);
        assert_eq!(status == "True", expected.0, "row {i}");
    }
}

#[test]
fn a_node_without_managed_nics_is_not_ready() {
    let node = Node::with(|node| node.desired = Desired::default());
    let (status, reason, _) = node.condition(ConditionType::Ready);
    assert_eq!((status.as_str(), reason.as_str()), ("False", "NoSuchNic"));
}

#[test]
fn a_program_says_where_it_stands_and_who_runs_before_and_after_it() {
    let named = |names: &[&str]| -> Vec<ProgramRef> {
        names.iter().map(|name| ProgramRef { id: 1, name: (*name).to_owned() }).collect()
    };
    for (before, after, position) in [
        (&["a"][..], &[][..], PositionReport::Last),
        (&[][..], &["b"][..], PositionReport::First),
        (&["a"][..], &["b", "c"][..], PositionReport::Middle),
        (&[][..], &[][..], PositionReport::Only),
    ] {
        let state = HookState::Attached { program: 5, current: true, before: named(before), after: named(after) };
        let found = program_report(Some(&state), Direction::Egress);
        assert_eq!((found.id, found.position, found.state), (Some(5), Some(position), ProgramState::Attached));
        assert_eq!(
            (found.before, found.after),
            (before.iter().map(|b| (*b).to_owned()).collect(), after.iter().map(|a| (*a).to_owned()).collect())
        );
    }
    let missing = program_report(Some(&HookState::Missing { others: named(&["x"]) }), Direction::Egress);
    assert_eq!((missing.id, missing.position, missing.state), (None, None, ProgramState::Missing));
    let dead = program_report(Some(&HookState::Dead), Direction::Egress);
    assert_eq!((dead.id, dead.state), (None, ProgramState::Dead));
}

#[test]
fn the_mode_is_observe_only_if_every_nic_observes_and_off_wins() {
    let observe = |node: &mut Node| node.desired.tables.nics.values_mut().for_each(|nic| nic.mode = Mode::Observe);
    assert_eq!(Node::healthy().report().mode, NodeMode::Enforce);
    assert_eq!(Node::with(observe).report().mode, NodeMode::Observe);
    let mixed = Node::with(|node| {
        let mut other = node.desired.tables.nics[&0].clone();
        other.mode = Mode::Observe;
        node.desired.tables.nics.insert(1, other);
    });
    assert_eq!(mixed.report().mode, NodeMode::Enforce);
    let off = Node::with(|node| {
        observe(node);
        node.programs.switched_off = true;
    });
    assert_eq!(off.report().mode, NodeMode::Off);
    assert_eq!(Node::with(|node| node.desired = Desired::default()).report().mode, NodeMode::Enforce);
}

#[test]
fn a_wanted_route_is_pending_while_a_plan_would_still_make_it_and_applied_then() {
    let [pending, replaced, applied] = ["172.28.0.0/16", "172.29.0.0/16", "172.30.0.0/16"].map(own);
    let node = Node::with(|node| {
        let wanted = |route: &OwnRoute| DesiredRoute { route: route.clone(), from: from("RouteEntry", "r") };
        node.desired.routes = [&pending, &replaced, &applied].map(wanted).into();
        let old = OwnRoute { gateway: None, ..replaced.clone() };
        node.open = vec![
            step(Action::AddRoute(pending.clone())),
            step(Action::ReplaceRoute { new: replaced.clone(), old }),
            step(Action::DeleteRoute(own("172.31.0.0/16"))),
        ];
    });
    let routes = node.report().routes;
    let states: Vec<(RouteState, Reason)> = routes.iter().map(|route| (route.state, route.reason)).collect();
    let open = (RouteState::Pending, Reason::Pending);
    assert_eq!(states, [open, open, (RouteState::Applied, Reason::Applied)]);
    assert_eq!(routes[0].nic.as_deref(), Some("eth1"));
    let counts: Vec<usize> = RouteState::ALL.iter().map(|state| route_counts(&routes)[state]).collect();
    assert_eq!(counts, [1, 2, 0, 0]);
}

#[test]
fn a_refused_route_is_in_conflict_waits_for_the_host_or_is_refused_for_good() {
    for (reason, state) in [
        (Reason::Conflict, RouteState::Conflict),
        (Reason::NicDown, RouteState::Pending),
        (Reason::UnknownNic, RouteState::Pending),
        (Reason::SourceNotOnNic, RouteState::Pending),
        (Reason::ProtectedDestination, RouteState::Refused),
        (Reason::GatewayNotOnNic, RouteState::Refused),
        (Reason::DuplicateDestination, RouteState::Refused),
    ] {
        let routes = Node::refusing(reason, Some("172.30.0.0/16"), "why").report().routes;
        let found: Vec<_> =
            routes.iter().map(|r| (r.destination.as_str(), r.state, r.reason, r.message.as_str())).collect();
        assert_eq!(found, [("172.30.0.0/16", state, reason, "why")]);
    }
    // an object that is refused as a whole is no route
    assert!(Node::refusing(Reason::NoSuchNic, None, "why").report().routes.is_empty());
}

#[test]
fn the_names_of_route_states_are_those_of_the_json() {
    for state in RouteState::ALL {
        assert_eq!(serde_json::to_value(state).unwrap(), state.name());
    }
}

#[test]
fn each_kind_of_trouble_has_its_condition_that_names_the_object() {
    let uncovered = Node::with(|node| {
        node.desired.uncovered = vec![
            Uncovered { nic: "eth0".into(), destination: "0.0.0.0/0".parse().unwrap() },
            Uncovered { nic: "eth2".into(), destination: "172.0.0.0/8".parse().unwrap() },
        ];
    });
    let problem = |reason| Node::with(|node| node.problems.push(Problem { reason, message: "something".into() }));
    for (node, kind, reason, words) in [
        (Node::refusing(Reason::Ambiguous, None, "two"), ConditionType::Ambiguous, "Ambiguous", "RouteEntry/e: two"),
        (Node::refusing(Reason::ClaimedTwice, None, "two"), ConditionType::Ambiguous, "Ambiguous", "RouteEntry/e: two"),
        (
            Node::refusing(Reason::Conflict, Some("172.30.0.0/16"), "foreign"),
            ConditionType::Conflict,
            "Conflict",
            "172.30.0.0/16: foreign",
        ),
        (Node::refusing(Reason::HostBits, None, "bits"), ConditionType::Degraded, "HostBits", "RouteEntry/e: bits"),
        (problem(Reason::Unreadable), ConditionType::Degraded, "Unreadable", "something"),
        (problem(Reason::Contested), ConditionType::ContestedBy, "Contested", "something"),
        (problem(Reason::RolledBack), ConditionType::RolledBack, "RolledBack", "something"),
        (uncovered.clone(), ConditionType::UncoveredDevice, "UncoveredDevice", "eth0 carries the IPv4 default route"),
        (uncovered, ConditionType::UncoveredDevice, "UncoveredDevice", "eth2 carries the route to 172.0.0.0/8"),
    ] {
        let (status, found, message) = node.condition(kind);
        assert_eq!((status.as_str(), found.as_str()), ("True", reason), "{kind:?}");
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn open_steps_are_counted_and_the_first_is_shown_as_its_command() {
    let key = SysctlKey { family: SysctlFamily::Ipv4, nic: "eth1".into(), name: "rp_filter".into() };
    let node = Node::with(|node| {
        node.open = vec![
            step(Action::SetSysctl { key, value: "2".into(), previous: "1".into() }),
            step(Action::Attach { hook: hook(Direction::Egress), position: Position::Last }),
        ];
    });
    let (status, reason, message) = node.condition(ConditionType::Applied);
    assert_eq!((status.as_str(), reason.as_str()), ("False", "Pending"));
    assert!(message.contains("2 changes") && message.contains("net/ipv4/conf/eth1/rp_filter=2"), "{message}");
}

#[test]
fn messages_stay_short_with_a_thousand_causes_or_one_of_a_thousand_lines() {
    // Kubernetes takes 32 KiB, a person one screen
    const LIMIT: usize = 4000;
    let long = "a line of the verifier's log\n".repeat(1000);
    let node = Node::with(|node| {
        for i in 0..1000 {
            let (destination, message) = (format!("172.30.{}.{}/32", i / 256, i % 256), format!("cause {i}"));
            for reason in [Reason::Conflict, Reason::Ambiguous] {
                node.refuse(reason, Some(&destination), &message);
            }
            node.problems.push(Problem { reason: Reason::Contested, message: format!("ü{long}") });
            node.desired
                .uncovered
                .push(Uncovered { nic: format!("eth{i}"), destination: "0.0.0.0/0".parse().unwrap() });
            let mut nic = node.desired.nics[0].clone();
            nic.link = Ifindex(1000 + i);
            node.desired.nics.push(nic);
            node.open.push(step(Action::AddRoute(own(&destination))));
        }
    });
    for condition in node.report().conditions {
        let length = condition.message.len();
        assert!(length < LIMIT, "{}: {length} bytes", condition.type_);
    }
    for (kind, more) in [
        (ConditionType::Conflict, "and 995 more"),
        (ConditionType::Ambiguous, "and 995 more"),
        (ConditionType::UncoveredDevice, "and 995 more"),
        (ConditionType::Degraded, "and 2995 more"),
    ] {
        assert!(node.condition(kind).2.ends_with(more), "{kind:?}");
    }
}
