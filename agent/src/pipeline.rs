//! One way for everything: configuration and host → desired → plan → apply, whether at boot, at a restart, on a change
//! of an object or of the host, or for a dry run.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    api::Reason,
    apply::{self, Outcome},
    config::NodeConfig,
    dataplane::{Dataplane, DataplaneError},
    desired::{Desired, Memory, desire},
    effects,
    hook::{ObservedPrograms, Position},
    inventory::{Ifindex, Inventory, SysctlKey},
    merge::Protected,
    netlink::{Netlink, NetlinkError},
    plan::{Action, Observed, Step, plan},
    state::{State, StateDir},
    status::{Facts, Problem},
    sysctl::{SysctlError, Sysctls},
};

/// The node as far as we read and change it.
#[derive(Debug)]
pub struct Pipeline {
    pub netlink: Netlink,
    pub dataplane: Dataplane,
    pub sysctls: Sysctls,
    pub state_dir: StateDir,
    pub position: Position,
    /// Destinations that no route may cover, beside those the host shows.
    pub reserved: Protected,
}

/// What was seen and what it takes.
#[derive(Debug, Clone)]
pub struct View {
    pub inventory: Inventory,
    pub programs: ObservedPrograms,
    pub desired: Desired,
    pub steps: Vec<Step>,
}

/// The host or the BPF side cannot be read, so nothing is concluded from it.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    #[error("cannot read the host's network: {0}")]
    Netlink(#[from] NetlinkError),
    #[error("cannot read the programs' state: {0}")]
    Dataplane(#[from] DataplaneError),
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
}

impl View {
    /// As a status report sees it.
    pub fn facts<'a>(&'a self, node: &'a str, problems: &'a [Problem]) -> Facts<'a> {
        Facts {
            node,
            desired: &self.desired,
            inventory: &self.inventory,
            programs: &self.programs,
            open: &self.steps,
            problems,
        }
    }

    /// Names of all links.
    pub fn link_names(&self) -> BTreeMap<Ifindex, String> {
        link_names(&self.inventory)
    }
}

fn link_names(inventory: &Inventory) -> BTreeMap<Ifindex, String> {
    inventory.links.iter().map(|link| (link.index, link.name.clone())).collect()
}

impl Pipeline {
    /// Reads everything and plans; changes nothing.
    pub async fn look(&self, config: &NodeConfig, state: &State) -> Result<View, LookError> {
        let inventory = self.netlink.observe().await?;
        let names = link_names(&inventory);
        // slots are needed to desire, the desired NICs to read their hooks
        let mut programs = self.dataplane.observe()?;
        let slots = programs.tables.nics.iter().map(|(slot, nic)| (nic.link, *slot)).collect();
        let memory = Memory { gateways: state.gateways.clone(), slots };
        let desired = desire(config, &inventory, &memory, &self.reserved);
        programs.hooks = self.dataplane.hooks(programs.installed, &names, desired.nics.iter().map(|nic| nic.link))?;
        let steps = self.plan(&desired, &inventory, &programs, state)?;
        Ok(View { inventory, programs, desired, steps })
    }

    /// Reads only what changes without a netlink message — hooks and settings — and plans against a view of the rest.
    pub fn glance(&self, view: &View, state: &State) -> Result<Vec<Step>, LookError> {
        let managed = view.desired.nics.iter().map(|nic| nic.link);
        let installed = self.dataplane.installed()?;
        let hooks = self.dataplane.hooks(installed, &view.link_names(), managed)?;
        let programs = ObservedPrograms { installed, hooks, ..view.programs.clone() };
        self.plan(&view.desired, &view.inventory, &programs, state)
    }

    fn plan(
        &self,
        desired: &Desired,
        inventory: &Inventory,
        programs: &ObservedPrograms,
        state: &State,
    ) -> Result<Vec<Step>, LookError> {
        let keys: BTreeSet<&SysctlKey> = desired.sysctls.keys().chain(state.originals.keys()).collect();
        let sysctls = self.sysctls.read(keys)?;
        let observed = Observed { inventory, programs, sysctls: &sysctls, originals: &state.originals };
        Ok(plan(desired, &observed, self.position))
    }

    /// Carries out the view's steps. What must be remembered is on disk before anything is changed; where that fails,
    /// nothing is changed that could not be put back.
    pub async fn settle(&self, view: &View, state: &mut State, problems: &mut Vec<Problem>) -> Outcome {
        let mut steps = view.steps.clone();
        let mut next = state.clone();
        next.gateways.clone_from(&view.desired.gateways);
        for step in &steps {
            if let Action::SetSysctl { key, previous, .. } = &step.action {
                next.originals.entry(key.clone()).or_insert_with(|| previous.clone());
            }
        }
        if next != *state {
            match self.state_dir.save(&next) {
                Ok(()) => *state = next,
                Err(error) => {
                    problems.push(Problem {
                        reason: Reason::ApplyFailed,
                        message: format!("settings stay as they are, since they could not be remembered: {error}"),
                    });
                    let known = &state.originals;
                    steps.retain(|step| match &step.action {
                        Action::SetSysctl { key, .. } => known.contains_key(key),
                        _ => true,
                    });
                }
            }
        }
        let mut effects = effects::Node { netlink: &self.netlink, dataplane: &self.dataplane, sysctls: &self.sysctls };
        let outcome = apply::apply(steps, &mut effects).await;
        let mut next = state.clone();
        for step in &outcome.done {
            if let Action::RestoreSysctl { key, .. } = &step.action {
                next.originals.remove(key);
            }
        }
        if next != *state {
            // restored twice is harmless, so a failure here is only reported
            match self.state_dir.save(&next) {
                Ok(()) => *state = next,
                Err(error) => problems.push(Problem { reason: Reason::ApplyFailed, message: error.to_string() }),
            }
        }
        outcome
    }
}

/// What went wrong while a plan was carried out, for the status.
pub fn problems_of(outcome: &Outcome, inventory: &Inventory) -> Vec<Problem> {
    let problem = |failure: &apply::Failure, what: &str| Problem {
        reason: Reason::ApplyFailed,
        message: format!("{}{what}: {}", failure.step.action.command(inventory), failure.error),
    };
    let failed = outcome.failed.iter().map(|failure| problem(failure, ""));
    let stopped = outcome.stopped.iter().map(|failure| problem(failure, " (everything before it was taken back)"));
    let stuck = outcome.stuck.iter().map(|failure| problem(failure, " (could not be taken back)"));
    stopped.chain(stuck).chain(failed).collect()
}
