//! Somebody else keeps undoing what we do: put it right at once a few times, then at growing intervals. Each thing (a
//! setting, a destination, a hook) has its own patience, so one quarrel does not delay the repair of the rest.

use std::{collections::BTreeMap, time::Duration};

use crate::{backoff::Backoff, hook::Hook, inventory::SysctlKey, pipeline::View, plan::Action};

/// What an action is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Sysctl(SysctlKey),
    Route(ipnet::IpNet),
    Hook(Hook),
}

impl Target {
    fn of(action: &Action) -> Option<Self> {
        match action {
            Action::SetSysctl { key, .. } => Some(Self::Sysctl(key.clone())),
            Action::AddRoute(route) | Action::ReplaceRoute { new: route, .. } => Some(Self::Route(route.destination)),
            Action::Attach { hook, .. } | Action::Refresh { hook } => Some(Self::Hook(*hook)),
            Action::DeleteRoute(_)
            | Action::RestoreSysctl { .. }
            | Action::Load { .. }
            | Action::Unload
            | Action::Publish { .. }
            | Action::Detach { .. }
            | Action::Commit => None,
        }
    }
}

/// Corrections of one thing in a row that are made without waiting.
const AT_ONCE: u32 = 5;

/// Who has been quarrelling about what. Times are since any fixed moment.
#[derive(Debug, Default)]
pub struct Contests {
    targets: BTreeMap<Target, Backoff>,
}

impl Contests {
    /// Whether an action may be carried out now.
    pub fn allow(&self, action: &Action, now: Duration) -> bool {
        let contest = Target::of(action).and_then(|target| self.targets.get(&target));
        contest.is_none_or(|contest| contest.tries() < AT_ONCE || contest.is_due(now))
    }

    /// Records that an action undid somebody else's change.
    pub fn corrected(&mut self, action: &Action, now: Duration) {
        /// A quarrel that has rested this long is over.
        const OVER: Duration = Duration::from_secs(600);
        const FIRST: Duration = Duration::from_millis(500);
        const LIMIT: Duration = Duration::from_secs(60);
        self.targets.retain(|_, contest| !contest.is_quiet(now, OVER));
        if let Some(target) = Target::of(action) {
            self.targets.entry(target).or_insert_with(|| Backoff::new(FIRST, LIMIT)).tried(now);
        }
    }
}

/// Whether an action puts back what held before and is still wanted, so that somebody else must have changed it.
pub fn is_correction(action: &Action, before: &View) -> bool {
    let desired = &before.desired;
    let wanted = match action {
        Action::SetSysctl { key, value, .. } => desired.sysctls.get(key) == Some(value),
        Action::AddRoute(route) | Action::ReplaceRoute { new: route, .. } => {
            desired.routes.iter().any(|item| item.route == *route)
        }
        Action::Attach { hook, .. } | Action::Refresh { hook } => desired.nic(hook.link).is_some(),
        Action::DeleteRoute(_)
        | Action::RestoreSysctl { .. }
        | Action::Load { .. }
        | Action::Unload
        | Action::Publish { .. }
        | Action::Detach { .. }
        | Action::Commit => false,
    };
    wanted && !before.steps.iter().any(|step| step.action == *action)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::SysctlFamily;

    fn setting(nic: &str) -> Action {
        let key = SysctlKey { family: SysctlFamily::Ipv4, nic: nic.into(), name: "rp_filter".into() };
        Action::SetSysctl { key, value: "2".into(), previous: "1".into() }
    }

    #[test]
    fn a_quarrel_about_one_thing_waits_longer_and_longer_and_leaves_the_others_alone() {
        let mut contests = Contests::default();
        let mut now = Duration::ZERO;
        for _ in 0..AT_ONCE {
            assert!(contests.allow(&setting("eth0"), now));
            contests.corrected(&setting("eth0"), now);
            now += Duration::from_millis(100);
        }
        assert!(!contests.allow(&setting("eth0"), now));
        assert!(contests.allow(&setting("eth1"), now));
        let mut waited = Duration::ZERO;
        while !contests.allow(&setting("eth0"), now + waited) {
            waited += Duration::from_millis(100);
        }
        assert!(waited > Duration::from_secs(5) && waited <= Duration::from_secs(60), "{waited:?}");
        // a week later it is forgotten
        now += Duration::from_secs(7 * 24 * 3600);
        contests.corrected(&setting("eth1"), now);
        assert!(contests.allow(&setting("eth0"), now));
        assert_eq!(contests.targets.len(), 1);
    }
}
