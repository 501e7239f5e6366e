//! The difference between what must hold and what does, as ordered actions that are plain data, each with its undo.
//!
//! Order: settings first (a request that the kernel drops needs no reply), then programs with complete tables before
//! they are attached, then routes (new ones before old ones go, so that no destination is without a way in between),
//! then what is no longer wanted. Nothing is removed unless the inventory is complete, which the caller guarantees.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    desired::Desired,
    hook::{Direction, Hook, HookState, Installed, ObservedPrograms, Position},
    inventory::{Inventory, OwnRoute, RouteVerb, SysctlKey},
    tables::{Slot, TableSpec},
};

/// What holds now.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    pub inventory: &'a Inventory,
    pub programs: &'a ObservedPrograms,
    /// Present values of the settings that are wanted or were changed by us.
    pub sysctls: &'a BTreeMap<SysctlKey, String>,
    /// Values from before we changed them.
    pub originals: &'a BTreeMap<SysctlKey, String>,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    SetSysctl {
        key: SysctlKey,
        value: String,
        previous: String,
    },
    /// Puts back what was there before us, and forgets it.
    RestoreSysctl {
        key: SysctlKey,
        value: String,
    },
    /// Loads this binary's programs and pins them with their maps.
    Load {
        installed: Installed,
    },
    /// Removes pinned programs and maps that nothing is attached to.
    Unload,
    /// Replaces the tables; counters of slots that change hands start from zero.
    Publish {
        new: TableSpec,
        old: TableSpec,
    },
    Attach {
        hook: Hook,
        position: Position,
    },
    /// Switches a running attachment to the pinned program.
    Refresh {
        hook: Hook,
    },
    Detach {
        hook: Hook,
        position: Position,
    },
    /// Records that all attachments run the pinned programs.
    Commit,
    AddRoute(OwnRoute),
    /// Same destination and metric, in one step.
    ReplaceRoute {
        new: OwnRoute,
        old: OwnRoute,
    },
    DeleteRoute(OwnRoute),
}

/// What the failure of an action means for the rest of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// The others do not depend on it: go on, report, try again later.
    Continue,
    /// Take back what was done.
    Undo,
}

/// An action with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub action: Action,
    /// For people: which object or observation asks for it.
    pub why: String,
}

/// The ordered steps from what holds to what must.
pub fn plan(desired: &Desired, observed: &Observed<'_>, position: Position) -> Vec<Step> {
    let mut steps = Vec::new();
    settings(desired, observed, &mut steps);
    programs(desired, observed, position, &mut steps);
    routes(desired, observed, &mut steps);
    detach(desired, observed, position, &mut steps);
    restore(desired, observed, &mut steps);
    steps
}

fn settings(desired: &Desired, observed: &Observed<'_>, steps: &mut Vec<Step>) {
    for (key, value) in &desired.sysctls {
        // a key that this kernel or NIC does not have is not wanted
        if let Some(present) = observed.sysctls.get(key).filter(|present| *present != value) {
            steps.push(Step {
                action: Action::SetSysctl { key: key.clone(), value: value.clone(), previous: present.clone() },
                why: format!("{} is a managed NIC", key.nic),
            });
        }
    }
}

fn programs(desired: &Desired, observed: &Observed<'_>, position: Position, steps: &mut Vec<Step>) {
    let found = observed.programs;
    if desired.nics.is_empty() && found.installed == Installed::None {
        return;
    }
    let load = found.installed != Installed::Current;
    if load {
        let why = match found.installed {
            Installed::None => "no programs are pinned".to_owned(),
            Installed::OtherBuild => "the pinned programs are of another build".to_owned(),
            Installed::OtherAbi { version } => format!("the pinned maps have layout {version}"),
            Installed::Current => String::new(),
        };
        steps.push(Step { action: Action::Load { installed: found.installed }, why });
    }
    if found.tables != desired.tables || (load && found.installed != Installed::OtherBuild) {
        let action = Action::Publish { new: desired.tables.clone(), old: found.tables.clone() };
        steps.push(Step { action, why: table_changes(&found.tables, &desired.tables) });
    }
    for nic in &desired.nics {
        for direction in Direction::ALL {
            let hook = Hook { link: nic.link, direction };
            let attach =
                |why: &str| Step { action: Action::Attach { hook, position }, why: format!("{}: {why}", nic.name) };
            match found.hooks.get(&hook) {
                Some(HookState::Attached { current: true, .. }) if !load => {}
                Some(HookState::Attached { .. }) => steps.push(Step {
                    action: Action::Refresh { hook },
                    why: format!("{}: runs a program of another build", nic.name),
                }),
                Some(HookState::Dead) => steps.push(attach("the attachment is dead")),
                Some(HookState::Missing { .. }) | None => steps.push(attach("no program attached")),
            }
        }
    }
    if load {
        steps.push(Step { action: Action::Commit, why: "all attachments run this build".to_owned() });
    }
}

fn routes(desired: &Desired, observed: &Observed<'_>, steps: &mut Vec<Step>) {
    let present: Vec<OwnRoute> = observed.inventory.routes.iter().filter_map(|route| route.as_own()).collect();
    let identity = |route: &OwnRoute| (route.destination, route.kernel_metric());
    let mut by_identity: BTreeMap<_, Vec<&OwnRoute>> = BTreeMap::new();
    for route in &present {
        by_identity.entry(identity(route)).or_default().push(route);
    }
    let mut kept = BTreeSet::new();
    let mut wanted: Vec<_> = desired.routes.iter().collect();
    // a gateway may be reached by a route without one
    wanted.sort_by_key(|item| (item.route.gateway.is_some(), item.route.destination));
    for item in wanted {
        let why = item.from.to_string();
        match by_identity.get(&identity(&item.route)).map(Vec::as_slice) {
            None | Some([]) => steps.push(Step { action: Action::AddRoute(item.route.clone()), why }),
            Some(same) if same.contains(&&item.route) => {
                kept.insert(item.route.clone());
            }
            Some([old, ..]) => {
                kept.insert((*old).clone());
                let action = Action::ReplaceRoute { new: item.route.clone(), old: (*old).clone() };
                steps.push(Step { action, why });
            }
        }
    }
    let mut unwanted: Vec<&OwnRoute> = present.iter().filter(|route| !kept.contains(*route)).collect();
    unwanted.sort_by_key(|route| (route.gateway.is_none(), route.destination));
    for route in unwanted {
        let why = "no object asks for it any more".to_owned();
        steps.push(Step { action: Action::DeleteRoute(route.clone()), why });
    }
}

fn detach(desired: &Desired, observed: &Observed<'_>, position: Position, steps: &mut Vec<Step>) {
    for (hook, state) in &observed.programs.hooks {
        if desired.nic(hook.link).is_some() {
            continue;
        }
        match state {
            HookState::Attached { .. } | HookState::Dead => steps.push(Step {
                action: Action::Detach { hook: *hook, position },
                why: "no NicClass selects this NIC any more".to_owned(),
            }),
            HookState::Missing { .. } => {}
        }
    }
}

fn restore(desired: &Desired, observed: &Observed<'_>, steps: &mut Vec<Step>) {
    for (key, value) in observed.originals.iter().filter(|(key, _)| !desired.sysctls.contains_key(key)) {
        steps.push(Step {
            action: Action::RestoreSysctl { key: key.clone(), value: value.clone() },
            why: format!("{} is no longer managed", key.nic),
        });
    }
}

fn table_changes(old: &TableSpec, new: &TableSpec) -> String {
    let count = |what: &str, old: usize, new: usize| {
        if old == new { format!("{new} {what}") } else { format!("{old} → {new} {what}") }
    };
    [
        count("NICs", old.nics.len(), new.nics.len()),
        count("owned addresses", old.owners.len(), new.owners.len()),
        count("owned prefixes", old.prefixes.len(), new.prefixes.len()),
        count("next hops", old.hops.len(), new.hops.len()),
    ]
    .join(", ")
}

impl Action {
    /// What to do to take this back; None where nothing needs to be.
    pub fn undo(&self) -> Option<Self> {
        match self {
            Self::SetSysctl { key, value, previous } => {
                Some(Self::SetSysctl { key: key.clone(), value: previous.clone(), previous: value.clone() })
            }
            Self::Load { installed: Installed::None } => Some(Self::Unload),
            // empty tables would blind a program that runs with the new ones already; without programs they decide nothing
            Self::Publish { new, old } if *old != TableSpec::default() => {
                Some(Self::Publish { new: old.clone(), old: new.clone() })
            }
            Self::Attach { hook, position } => Some(Self::Detach { hook: *hook, position: *position }),
            Self::Detach { hook, position } => Some(Self::Attach { hook: *hook, position: *position }),
            Self::AddRoute(route) => Some(Self::DeleteRoute(route.clone())),
            Self::ReplaceRoute { new, old } => Some(Self::ReplaceRoute { new: old.clone(), old: new.clone() }),
            Self::DeleteRoute(route) => Some(Self::AddRoute(route.clone())),
            // The loaded programs stay pinned for the next attempt, and what runs them works with them.
            Self::Load { .. }
            | Self::Publish { .. }
            | Self::Refresh { .. }
            | Self::Commit
            | Self::Unload
            | Self::RestoreSysctl { .. } => None,
        }
    }

    /// Settings and routes stand for themselves; programs work together.
    pub fn on_failure(&self) -> OnFailure {
        match self {
            Self::SetSysctl { .. }
            | Self::RestoreSysctl { .. }
            | Self::AddRoute(_)
            | Self::ReplaceRoute { .. }
            | Self::DeleteRoute(_)
            | Self::Detach { .. }
            | Self::Unload => OnFailure::Continue,
            Self::Load { .. } | Self::Publish { .. } | Self::Attach { .. } | Self::Refresh { .. } | Self::Commit => {
                OnFailure::Undo
            }
        }
    }

    /// What kind of change it is, for metrics and logs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::SetSysctl { .. } | Self::RestoreSysctl { .. } => "sysctl",
            Self::Load { .. } | Self::Unload | Self::Commit => "load",
            Self::Publish { .. } => "tables",
            Self::Attach { .. } | Self::Refresh { .. } | Self::Detach { .. } => "program",
            Self::AddRoute(_) | Self::ReplaceRoute { .. } | Self::DeleteRoute(_) => "route",
        }
    }

    /// As a command that an operator could type, where there is one.
    pub fn command(&self, inventory: &Inventory) -> String {
        let name = |link| inventory.link(link).map_or_else(|| format!("if{link}"), |link| link.name.clone());
        let route = |verb, route: &OwnRoute| route.command(verb, &name(route.link));
        match self {
            Self::SetSysctl { key, value, .. } | Self::RestoreSysctl { key, value } => {
                format!("sysctl -w {key}={value}")
            }
            Self::Load { .. } => "nicpath: load programs".to_owned(),
            Self::Unload => "nicpath: unload programs".to_owned(),
            Self::Publish { .. } => "nicpath: publish tables".to_owned(),
            Self::Attach { hook, position } => {
                let position = match position {
                    Position::First => "first",
                    Position::Last => "last",
                };
                format!("nicpath: attach {} dev {} {position}", hook.direction.name(), name(hook.link))
            }
            Self::Refresh { hook } => format!("nicpath: update {} dev {}", hook.direction.name(), name(hook.link)),
            Self::Detach { hook, .. } => format!("nicpath: detach {} dev {}", hook.direction.name(), name(hook.link)),
            Self::Commit => "nicpath: commit programs".to_owned(),
            Self::AddRoute(r) => route(RouteVerb::Add, r),
            Self::ReplaceRoute { new, .. } => route(RouteVerb::Replace, new),
            Self::DeleteRoute(r) => route(RouteVerb::Delete, r),
        }
    }
}

/// Slots whose NIC is another one after a publication: their counters belong to the old one.
pub fn reassigned(old: &TableSpec, new: &TableSpec) -> Vec<Slot> {
    let changed = |(slot, nic): &(&Slot, &crate::tables::NicEntry)| {
        old.nics.get(slot).is_none_or(|before| before.link != nic.link)
    };
    new.nics.iter().filter(changed).map(|(slot, _)| *slot).collect()
}

#[cfg(test)]
mod tests;
