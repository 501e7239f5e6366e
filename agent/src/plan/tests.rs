//! Plans against a node that is a plain value and follows actions strictly: what the kernel would refuse fails here.

mod node;

use ipnet::IpNet;
use proptest::prelude::*;

use self::node::{Node, desired, start};
use super::*;
use crate::{
    config::{PerFamily, Provenance},
    desired::{DesiredRoute, ManagedNic},
    hook::ProgramRef,
    inventory::{Ifindex, NextHop, OWN_PROTOCOL, Route, RouteKind, SysctlFamily},
    tables::{AdminState, NicEntry},
};

const POSITION: Position = Position::Last;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn key(nic: &str, name: &str) -> SysctlKey {
    SysctlKey { family: SysctlFamily::Ipv4, nic: nic.into(), name: name.into() }
}

fn nic(link: u32) -> ManagedNic {
    ManagedNic {
        slot: link,
        link: Ifindex(link),
        name: format!("eth{link}"),
        class: "c".into(),
        network: "n".into(),
        gateways: PerFamily::default(),
        addresses: vec![],
    }
}

fn nic_entry(link: u32) -> NicEntry {
    NicEntry {
        link: Ifindex(link),
        lower: None,
        network: 1,
        state: AdminState::Up,
        mode: <_>::default(),
        reply_path: <_>::default(),
        source_guard: <_>::default(),
        gateways: PerFamily::default(),
    }
}

fn tables(links: &[u32]) -> TableSpec {
    TableSpec { nics: links.iter().map(|link| (*link, nic_entry(*link))).collect(), ..TableSpec::default() }
}

fn own(destination: &str, link: u32, gateway: Option<&str>) -> OwnRoute {
    OwnRoute {
        destination: net(destination),
        link: Ifindex(link),
        gateway: gateway.map(|gateway| gateway.parse().unwrap()),
        source: None,
        metric: OwnRoute::default_metric(&net(destination)),
        mtu: None,
        onlink: false,
    }
}

fn wanted(route: OwnRoute) -> DesiredRoute {
    let from = Provenance { kind: "RouteEntry".into(), name: "r".into(), uid: String::new(), generation: 0 };
    DesiredRoute { route, from }
}

fn hook(link: u32, direction: Direction) -> Hook {
    Hook { link: Ifindex(link), direction }
}

fn attached(current: bool) -> HookState {
    HookState::Attached { program: 1, current, before: vec![], after: vec![] }
}

/// A node where everything holds that is desired for these NICs.
fn settled(links: &[u32]) -> (Desired, Node) {
    let desired = Desired {
        nics: links.iter().map(|link| nic(*link)).collect(),
        tables: tables(links),
        sysctls: links.iter().map(|link| (key(&format!("eth{link}"), "rp_filter"), "2".to_owned())).collect(),
        ..Desired::default()
    };
    let hooks = links.iter().flat_map(|link| Direction::ALL.map(|direction| (hook(*link, direction), attached(true))));
    let node = Node {
        sysctls: desired.sysctls.clone(),
        originals: desired.sysctls.keys().map(|key| (key.clone(), "1".to_owned())).collect(),
        tables: desired.tables.clone(),
        hooks: hooks.collect(),
        ..Node::bare(Installed::Current)
    };
    (desired, node)
}

fn actions(node: &Node, desired: &Desired) -> Vec<Action> {
    node.plan(desired).into_iter().map(|step| step.action).collect()
}

#[test]
fn a_node_where_everything_holds_needs_no_step() {
    let (desired, node) = settled(&[1, 2]);
    assert_eq!(node.plan(&desired), []);
}

#[test]
fn a_node_that_is_asked_for_nothing_and_has_nothing_stays_untouched() {
    assert_eq!(Node::bare(Installed::None).plan(&Desired::default()), []);
}

#[test]
fn a_first_start_sets_loads_publishes_attaches_commits_and_routes_in_this_order() {
    let (mut desired, _) = settled(&[1]);
    let route = own("172.30.0.0/16", 1, None);
    desired.routes = vec![wanted(route.clone())];
    let mut node = Node::bare(Installed::None);
    node.sysctls.insert(key("eth1", "rp_filter"), "1".into());
    let attach = |direction| Action::Attach { hook: hook(1, direction), position: POSITION };
    assert_eq!(
        actions(&node, &desired),
        [
            Action::SetSysctl { key: key("eth1", "rp_filter"), value: "2".into(), previous: "1".into() },
            Action::Load { installed: Installed::None },
            Action::Publish { new: desired.tables.clone(), old: TableSpec::default() },
            attach(Direction::Ingress),
            attach(Direction::Egress),
            Action::Commit,
            Action::AddRoute(route),
        ]
    );
}

#[test]
fn a_setting_that_the_kernel_does_not_have_is_not_wanted() {
    let (desired, mut node) = settled(&[1]);
    node.sysctls.clear();
    assert_eq!(node.plan(&desired), []);
}

#[test]
fn a_dead_or_missing_attachment_is_made_anew() {
    let (desired, node) = settled(&[1]);
    let other = ProgramRef { id: 7, name: "other".into() };
    for state in [Some(HookState::Dead), Some(HookState::Missing { others: vec![other] }), None] {
        let mut node = node.clone();
        node.hooks.remove(&hook(1, Direction::Egress));
        node.hooks.extend(state.map(|state| (hook(1, Direction::Egress), state)));
        let attach = Action::Attach { hook: hook(1, Direction::Egress), position: POSITION };
        assert_eq!(actions(&node, &desired), [attach]);
    }
}

#[test]
fn programs_of_another_build_are_loaded_switched_over_without_detaching_and_committed() {
    let (desired, mut node) = settled(&[1]);
    node.installed = Installed::OtherBuild;
    for state in node.hooks.values_mut() {
        *state = attached(false);
    }
    assert_eq!(
        actions(&node, &desired),
        [
            Action::Load { installed: Installed::OtherBuild },
            Action::Refresh { hook: hook(1, Direction::Ingress) },
            Action::Refresh { hook: hook(1, Direction::Egress) },
            Action::Commit,
        ]
    );
}

#[test]
fn maps_of_another_layout_are_filled_before_any_attachment_is_switched_over() {
    let (desired, mut node) = settled(&[1]);
    node.installed = Installed::OtherAbi { version: 9 };
    node.tables = TableSpec::default();
    for state in node.hooks.values_mut() {
        *state = attached(false);
    }
    assert_eq!(
        actions(&node, &desired),
        [
            Action::Load { installed: node.installed },
            Action::Publish { new: desired.tables.clone(), old: TableSpec::default() },
            Action::Refresh { hook: hook(1, Direction::Ingress) },
            Action::Refresh { hook: hook(1, Direction::Egress) },
            Action::Commit,
        ]
    );
}

#[test]
fn one_attachment_of_another_build_is_switched_over_alone() {
    let (desired, mut node) = settled(&[1]);
    node.hooks.insert(hook(1, Direction::Ingress), attached(false));
    assert_eq!(actions(&node, &desired), [Action::Refresh { hook: hook(1, Direction::Ingress) }]);
}

#[test]
fn a_nic_that_is_no_longer_selected_is_detached_and_gets_its_settings_back_and_no_other_does() {
    let (_, mut node) = settled(&[1, 2]);
    node.sysctls.insert(key("eth1", "foreign"), "5".into());
    let (desired, _) = settled(&[2]);
    let detach = |direction| Action::Detach { hook: hook(1, direction), position: POSITION };
    assert_eq!(
        actions(&node, &desired),
        [
            Action::Publish { new: desired.tables.clone(), old: node.tables.clone() },
            detach(Direction::Ingress),
            detach(Direction::Egress),
            Action::RestoreSysctl { key: key("eth1", "rp_filter"), value: "1".into() },
        ]
    );
}

#[test]
fn a_route_is_added_replaced_in_place_kept_or_deleted() {
    let (mut desired, mut node) = settled(&[1]);
    let kept = own("172.28.0.0/16", 1, None);
    let moved = OwnRoute { mtu: Some(1400), ..own("172.29.0.0/16", 1, Some("10.0.0.2")) };
    let new = own("172.30.0.0/16", 1, None);
    desired.routes = [&kept, &moved, &new].map(|route| wanted(route.clone())).into();
    let old = own("172.29.0.0/16", 2, Some("10.0.0.1"));
    let gone = own("172.31.0.0/16", 1, None);
    node.own_routes([&kept, &old, &gone].map(Clone::clone));
    assert_eq!(
        actions(&node, &desired),
        [Action::AddRoute(new), Action::ReplaceRoute { new: moved, old }, Action::DeleteRoute(gone)]
    );
}

#[test]
fn of_two_own_routes_to_one_destination_the_wanted_one_stays_and_the_other_goes() {
    let (mut desired, mut node) = settled(&[1]);
    let [a, b, c] = ["fe80::1", "fe80::2", "fe80::3"].map(|gateway| own("fd00:30::/48", 1, Some(gateway)));
    node.own_routes([a.clone(), b.clone()]);
    desired.routes = vec![wanted(b.clone())];
    assert_eq!(actions(&node, &desired), [Action::DeleteRoute(a.clone())]);
    desired.routes = vec![wanted(c.clone())];
    assert_eq!(actions(&node, &desired), [Action::ReplaceRoute { new: c, old: a }, Action::DeleteRoute(b)]);
}

#[test]
fn routes_that_a_gateway_is_reached_by_come_first_and_go_last() {
    let (mut desired, mut node) = settled(&[1]);
    let on_link = own("192.0.2.0/24", 1, None);
    let behind = own("172.30.0.0/16", 1, Some("192.0.2.1"));
    desired.routes = [&behind, &on_link].map(|route| wanted(route.clone())).into();
    let added = [&on_link, &behind].map(|route| Action::AddRoute(route.clone()));
    assert_eq!(actions(&node, &desired), added);
    node.own_routes([on_link.clone(), behind.clone()]);
    desired.routes.clear();
    assert_eq!(actions(&node, &desired), [behind, on_link].map(Action::DeleteRoute));
}

#[test]
fn slots_that_change_hands_are_those_that_are_new_or_of_another_nic() {
    let mut new = tables(&[1, 2, 3]);
    new.nics.insert(2, nic_entry(9));
    assert_eq!(reassigned(&tables(&[1, 2, 4]), &new), [2, 3]);
    assert_eq!(reassigned(&new, &new), [0_u32; 0]);
}

#[test]
fn actions_read_as_what_an_operator_would_type() {
    let node = Node::bare(Installed::None);
    let inventory = node.inventory();
    let set = Action::SetSysctl { key: key("eth1", "rp_filter"), value: "2".into(), previous: "1".into() };
    assert_eq!(set.command(&inventory), "sysctl -w net/ipv4/conf/eth1/rp_filter=2");
    let attach = Action::Attach { hook: hook(3, Direction::Egress), position: Position::First };
    assert_eq!(attach.command(&inventory), "nicpath: attach egress dev if3 first");
    let add = Action::AddRoute(own("172.30.0.0/16", 3, Some("10.0.0.1")));
    assert_eq!(add.command(&inventory), "ip route add 172.30.0.0/16 via 10.0.0.1 dev if3 proto 157");
}

/// Place of an action in the order that every plan keeps.
fn stage(action: &Action) -> u32 {
    match action {
        Action::SetSysctl { .. } => 0,
        Action::Load { .. } => 1,
        Action::Publish { .. } => 2,
        Action::Attach { .. } | Action::Refresh { .. } => 3,
        Action::Commit => 4,
        Action::AddRoute(_) | Action::ReplaceRoute { .. } => 5,
        Action::DeleteRoute(_) => 6,
        Action::Detach { .. } => 7,
        Action::RestoreSysctl { .. } => 8,
        Action::Unload => 9,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn a_plan_reaches_what_must_hold_and_touches_nothing_else(desired in desired(), start in start()) {
        let mut node = start.clone();
        for step in node.plan(&desired) {
            prop_assert!(!step.why.is_empty());
            node.perform(&step.action);
        }
        prop_assert_eq!(node.plan(&desired), []);
        prop_assert_eq!(&node.foreign, &start.foreign);
        let wanted: BTreeSet<_> = desired.routes.iter().map(|item| item.route.clone()).collect();
        prop_assert_eq!(BTreeSet::from_iter(node.own.clone()), wanted);
        for (key, value) in &node.sysctls {
            let expected = desired.sysctls.get(key).or(start.originals.get(key)).or(start.sysctls.get(key));
            prop_assert_eq!(Some(value), expected, "{}", key);
        }
        let hooks: BTreeSet<_> = node.hooks.into_keys().collect();
        prop_assert_eq!(hooks, desired.nics.iter().flat_map(|nic| {
            Direction::ALL.map(|direction| Hook { link: nic.link, direction })
        }).collect());
    }

    #[test]
    fn every_plan_keeps_the_order(desired in desired(), start in start()) {
        let steps = start.plan(&desired);
        let stages: Vec<u32> = steps.iter().map(|step| stage(&step.action)).collect();
        prop_assert!(stages.is_sorted(), "{:?}", steps);
    }

    #[test]
    fn what_was_done_until_any_step_is_taken_back_in_reverse(desired in desired(), start in start()) {
        let start = start.without_one_way_changes(&desired);
        let steps = start.plan(&desired);
        for done in 0..=steps.len() {
            let mut node = start.clone();
            for step in &steps[..done] {
                node.perform(&step.action);
            }
            for step in steps[..done].iter().rev() {
                if let Some(undo) = step.action.undo() {
                    node.perform(&undo);
                }
            }
            // what a setting was before us stays remembered, which does no harm
            node.originals.clone_from(&start.originals);
            prop_assert_eq!(node.sorted(), start.clone().sorted(), "after {} of {:?}", done, steps);
        }
    }

    #[test]
    fn a_plan_that_stops_takes_no_running_program_and_none_of_its_tables_away(desired in desired(), start in start()) {
        let steps = start.plan(&desired);
        for stop in (0..steps.len()).filter(|stop| steps[*stop].action.on_failure() == OnFailure::Undo) {
            let mut node = start.clone();
            for step in &steps[..stop] {
                node.perform(&step.action);
            }
            for step in steps[..stop].iter().rev() {
                if let Some(undo) = step.action.undo() {
                    node.perform(&undo);
                }
            }
            for (hook, state) in &start.hooks {
                if !matches!(state, HookState::Attached { .. }) {
                    continue;
                }
                let now = node.hooks.get(hook);
                prop_assert!(matches!(now, Some(HookState::Attached { .. })), "{} after {} of {:?}", hook, stop, steps);
                let switched = now != Some(state) && now == Some(&attached(true));
                if switched && start.tables != TableSpec::default() {
                    prop_assert_eq!(&node.tables, &start.tables);
                } else if switched {
                    prop_assert_eq!(&node.tables, &desired.tables, "{} looks into empty tables", hook);
                }
            }
        }
    }
}
