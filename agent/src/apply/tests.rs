//! What is done, passed over and taken back when a step fails, for every step of a plan that has all kinds.

use super::*;
use crate::{
    hook::{Direction, Hook, Installed, Position},
    inventory::{Ifindex, OwnRoute, SysctlFamily, SysctlKey},
    tables::TableSpec,
};

/// A world in which every action succeeds, except those it is told to fail at; it remembers what was asked of it in order.
/// It models nothing else: what an action does is not its subject.
#[derive(Default)]
struct Fake {
    fails: Vec<Action>,
    performed: Vec<Action>,
}

impl Effects for Fake {
    async fn perform(&mut self, action: &Action) -> Result<(), StepError> {
        self.performed.push(action.clone());
        if self.fails.contains(action) { Err(StepError("device is on fire".into())) } else { Ok(()) }
    }
}

fn every_kind() -> Vec<Action> {
    let hook = |direction| Hook { link: Ifindex(3), direction };
    let position = Position::Last;
    let key = |nic: &str| SysctlKey { family: SysctlFamily::Ipv4, nic: nic.into(), name: "rp_filter".into() };
    let route = |destination: &str, mtu| OwnRoute {
        destination: destination.parse().unwrap(),
        link: Ifindex(3),
        gateway: None,
        source: None,
        metric: 0,
        mtu,
        onlink: false,
    };
    let published = TableSpec { owners: [([10, 20, 0, 10].into(), 0)].into(), ..TableSpec::default() };
    vec![
        Action::SetSysctl { key: key("eth1"), value: "2".into(), previous: "1".into() },
        Action::Load { installed: Installed::None },
        Action::Publish { new: TableSpec::default(), old: published },
        Action::Attach { hook: hook(Direction::Ingress), position },
        Action::Refresh { hook: hook(Direction::Egress) },
        Action::Commit,
        Action::AddRoute(route("172.29.0.0/16", None)),
        Action::ReplaceRoute { new: route("172.30.0.0/16", Some(1400)), old: route("172.30.0.0/16", None) },
        Action::DeleteRoute(route("172.31.0.0/16", None)),
        Action::Detach { hook: Hook { link: Ifindex(9), direction: Direction::Ingress }, position },
        Action::RestoreSysctl { key: key("eth9"), value: "0".into() },
        Action::Unload,
    ]
}

fn steps(actions: &[Action]) -> Vec<Step> {
    actions.iter().map(|action| Step { action: action.clone(), why: "because".into() }).collect()
}

fn actions<'a>(steps: impl IntoIterator<Item = &'a Step>) -> Vec<Action> {
    steps.into_iter().map(|step| step.action.clone()).collect()
}

fn failed(failures: &[Failure]) -> Vec<Action> {
    actions(failures.iter().map(|failure| &failure.step))
}

fn undos_of(done: &[Action]) -> Vec<Action> {
    done.iter().rev().filter_map(Action::undo).collect()
}

#[tokio::test]
async fn a_plan_without_failure_is_done_in_order() {
    let mut fake = Fake::default();
    let outcome = apply(steps(&every_kind()), &mut fake).await;
    assert!(outcome.is_complete());
    assert_eq!(actions(&outcome.done), every_kind());
    assert_eq!(fake.performed, every_kind());
}

#[tokio::test]
async fn an_empty_plan_is_complete() {
    assert!(apply(vec![], &mut Fake::default()).await.is_complete());
}

#[tokio::test]
async fn a_failure_is_passed_over_or_takes_back_what_was_done_as_its_action_says() {
    let all = every_kind();
    for (at, failing) in all.iter().enumerate() {
        let mut fake = Fake { fails: vec![failing.clone()], ..Fake::default() };
        let outcome = apply(steps(&all), &mut fake).await;
        assert!(!outcome.is_complete(), "{failing:?}");
        assert!(outcome.stuck.is_empty(), "{failing:?}");
        match failing.on_failure() {
            OnFailure::Continue => {
                assert_eq!(fake.performed, all, "{failing:?}");
                assert_eq!(failed(&outcome.failed), std::slice::from_ref(failing));
                assert!(outcome.stopped.is_none(), "{failing:?}");
                assert_eq!(actions(&outcome.done), [&all[..at], &all[at + 1..]].concat());
            }
            OnFailure::Undo => {
                assert_eq!(fake.performed, [&all[..=at], &undos_of(&all[..at])].concat(), "{failing:?}");
                assert_eq!(outcome.stopped.map(|failure| failure.step.action).as_ref(), Some(failing));
                assert!(outcome.done.is_empty() && outcome.failed.is_empty(), "{failing:?}");
            }
        }
    }
}

#[test]
fn programs_and_their_tables_stop_a_plan_and_nothing_else_does() {
    let stopping: Vec<&'static str> = every_kind()
        .iter()
        .filter(|action| action.on_failure() == OnFailure::Undo)
        .map(|action| match action {
            Action::Load { .. } => "load",
            Action::Publish { .. } => "publish",
            Action::Attach { .. } => "attach",
            Action::Refresh { .. } => "refresh",
            Action::Commit => "commit",
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(stopping, ["load", "publish", "attach", "refresh", "commit"]);
}

#[tokio::test]
async fn what_was_passed_over_before_a_stop_is_not_taken_back() {
    let all = every_kind();
    let [passed_over, stopping] = [&all[0], &all[5]];
    let mut fake = Fake { fails: vec![passed_over.clone(), stopping.clone()], ..Fake::default() };
    let outcome = apply(steps(&all), &mut fake).await;
    assert_eq!(failed(&outcome.failed), std::slice::from_ref(passed_over));
    assert_eq!(fake.performed, [&all[..=5], &undos_of(&all[1..5])].concat());
}

#[tokio::test]
async fn a_step_that_cannot_be_taken_back_is_reported_and_the_others_are() {
    let all = every_kind();
    for undo in undos_of(&all[..5]) {
        let mut fake = Fake { fails: vec![Action::Commit, undo.clone()], ..Fake::default() };
        let outcome = apply(steps(&all), &mut fake).await;
        assert_eq!(fake.performed, [&all[..=5], &undos_of(&all[..5])].concat(), "{undo:?}");
        assert_eq!(failed(&outcome.stuck), [undo]);
        assert_eq!(outcome.stuck[0].step.why, "undo: because");
        assert!(!outcome.is_complete());
    }
}

#[tokio::test]
async fn the_cause_of_a_failure_is_kept_in_its_own_words() {
    let mut fake = Fake { fails: vec![Action::Commit, Action::Unload], ..Fake::default() };
    let outcome = apply(steps(&[Action::Load { installed: Installed::None }, Action::Commit]), &mut fake).await;
    assert_eq!(outcome.stopped.unwrap().error.to_string(), "device is on fire");
    assert_eq!(outcome.stuck[0].error.to_string(), "device is on fire");
}
