//! A node as a plain value, and random ones.
//!
//! It models of the kernel: one route for each destination and metric, no deletion of what is not there, programs that
//! must be loaded before they run, tables that must be published for a NIC before a program runs on it; and of the agent:
//! maps of another layout are lost on loading, and a load counts as another build until it is committed.

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) sysctls: BTreeMap<SysctlKey, String>,
    pub(super) originals: BTreeMap<SysctlKey, String>,
    pub(super) installed: Installed,
    pub(super) tables: TableSpec,
    pub(super) hooks: BTreeMap<Hook, HookState>,
    pub(super) own: Vec<OwnRoute>,
    pub(super) foreign: Vec<Route>,
}

impl Node {
    pub(super) fn bare(installed: Installed) -> Self {
        Self {
            sysctls: BTreeMap::new(),
            originals: BTreeMap::new(),
            installed,
            tables: TableSpec::default(),
            hooks: BTreeMap::new(),
            own: vec![],
            foreign: vec![],
        }
    }

    pub(super) fn own_routes(&mut self, routes: impl IntoIterator<Item = OwnRoute>) {
        self.own.extend(routes);
    }

    pub(super) fn inventory(&self) -> Inventory {
        let own = self.own.iter().map(|route| as_route(route, OWN_PROTOCOL));
        Inventory { routes: self.foreign.iter().cloned().chain(own).collect(), ..Inventory::default() }
    }

    pub(super) fn plan(&self, desired: &Desired) -> Vec<Step> {
        let programs = ObservedPrograms {
            installed: self.installed,
            tables: self.tables.clone(),
            hooks: self.hooks.clone(),
            switched_off: false,
        };
        let observed = Observed {
            inventory: &self.inventory(),
            programs: &programs,
            sysctls: &self.sysctls,
            originals: &self.originals,
        };
        plan(desired, &observed, POSITION)
    }

    /// Carries out one action, and panics where the kernel would refuse it or it would do harm.
    pub(super) fn perform(&mut self, action: &Action) {
        let is_attached = |state: Option<&HookState>| matches!(state, Some(HookState::Attached { .. }));
        match action {
            Action::SetSysctl { key, value, previous } => {
                assert_eq!(self.sysctls.insert(key.clone(), value.clone()).as_ref(), Some(previous), "{key}");
                self.originals.entry(key.clone()).or_insert_with(|| previous.clone());
            }
            Action::RestoreSysctl { key, value } => {
                assert_eq!(self.originals.remove(key).as_ref(), Some(value), "{key}");
                // the NIC may be gone
                if let Some(present) = self.sysctls.get_mut(key) {
                    present.clone_from(value);
                }
            }
            Action::Load { installed } => {
                assert_eq!(*installed, self.installed);
                match installed {
                    Installed::None | Installed::OtherAbi { .. } => self.tables = TableSpec::default(),
                    Installed::Current | Installed::OtherBuild => {}
                }
                self.installed = Installed::OtherBuild;
            }
            Action::Unload => {
                assert!(self.hooks.values().all(|state| !is_attached(Some(state))), "takes running programs away");
                (self.installed, self.tables) = (Installed::None, TableSpec::default());
            }
            Action::Publish { new, old } => {
                assert!(self.can_run(), "there are no maps to write to");
                assert_eq!(*old, self.tables);
                self.tables = new.clone();
            }
            Action::Attach { hook, .. } => {
                assert!(self.can_run() && self.tables.slot_of(hook.link).is_some(), "{hook} without tables");
                assert!(!is_attached(self.hooks.insert(*hook, attached(true)).as_ref()), "{hook} twice");
            }
            Action::Refresh { hook } => {
                assert!(self.can_run() && self.tables.slot_of(hook.link).is_some(), "{hook} without tables");
                assert!(is_attached(self.hooks.insert(*hook, attached(true)).as_ref()), "{hook} is not attached");
            }
            Action::Detach { hook, .. } => {
                assert!(self.hooks.remove(hook).is_some(), "{hook} has nothing of ours");
            }
            Action::Commit => {
                let of_tables = self.hooks.iter().filter(|(hook, _)| self.tables.slot_of(hook.link).is_some());
                assert!(of_tables.into_iter().all(|(_, state)| *state == attached(true)), "not all are switched over");
                self.installed = Installed::Current;
            }
            Action::AddRoute(route) => {
                let taken = self
                    .inventory()
                    .routes
                    .iter()
                    .any(|other| other.destination == route.destination && other.metric == route.kernel_metric());
                assert!(!taken, "{route:?} exists");
                self.own.push(route.clone());
            }
            Action::ReplaceRoute { new, old } => {
                let identity = |route: &OwnRoute| (route.destination, route.kernel_metric());
                assert_eq!(identity(new), identity(old));
                let present = self.own.iter_mut().find(|route| *route == old);
                *present.expect("replaces what is there") = new.clone();
            }
            Action::DeleteRoute(route) => {
                let place = self.own.iter().position(|own| own == route);
                self.own.remove(place.expect("deletes what is there"));
            }
        }
    }

    fn can_run(&self) -> bool {
        match self.installed {
            Installed::Current | Installed::OtherBuild => true,
            Installed::None | Installed::OtherAbi { .. } => false,
        }
    }

    /// With programs that run already or none, and no setting to give back: changes that have an exact undo.
    pub(super) fn without_one_way_changes(mut self, desired: &Desired) -> Self {
        self.hooks.retain(|hook, _| desired.nic(hook.link).is_some());
        self.hooks.values_mut().for_each(|state| *state = attached(true));
        match self.installed {
            Installed::Current if self.tables != TableSpec::default() => {}
            _ => {
                self.hooks.clear();
                (self.installed, self.tables) = (Installed::None, TableSpec::default());
            }
        }
        self.originals.retain(|key, _| desired.sysctls.contains_key(key));
        self
    }

    pub(super) fn sorted(mut self) -> Self {
        self.own.sort();
        self
    }
}

fn as_route(route: &OwnRoute, protocol: u8) -> Route {
    Route {
        destination: route.destination,
        from: None,
        kind: RouteKind::Unicast,
        hops: vec![NextHop { link: Some(route.link), gateway: route.gateway, onlink: route.onlink }],
        source: route.source,
        metric: route.kernel_metric(),
        mtu: route.mtu,
        protocol,
        tos: 0,
    }
}

const LINKS: [u32; 4] = [1, 2, 3, 4];

fn links() -> impl Strategy<Value = Vec<u32>> {
    proptest::sample::subsequence(LINKS.to_vec(), 0..=LINKS.len())
}

fn settings() -> impl Strategy<Value = BTreeMap<SysctlKey, String>> {
    let keys: Vec<SysctlKey> = LINKS
        .iter()
        .flat_map(|link| ["rp_filter", "arp_announce"].map(|name| key(&format!("eth{link}"), name)))
        .collect();
    proptest::collection::btree_map(proptest::sample::select(keys), "[0-2]", 0..8)
}

fn routes(destinations: &'static [&'static str]) -> impl Strategy<Value = Vec<OwnRoute>> {
    let by = (proptest::sample::select(LINKS.to_vec()), 0..3_u8, proptest::option::of(Just(1400)));
    proptest::collection::btree_map(proptest::sample::select(destinations), by, 0..6).prop_map(|routes| {
        let route = |(destination, (link, gateway, mtu)): (&str, (u32, u8, Option<u32>))| {
            let family = if destination.contains(':') { "fe80::" } else { "10.0.0." };
            let gateway = (gateway > 0).then(|| format!("{family}{gateway}"));
            OwnRoute { mtu, ..own(destination, link, gateway.as_deref()) }
        };
        routes.into_iter().map(route).collect()
    })
}

const DESTINATIONS: &[&str] =
    &["172.28.0.0/16", "172.29.0.0/16", "172.30.0.0/16", "172.31.1.0/24", "fd00:30::/48", "fd00:31::/48"];

/// What a node may be told: routes never to where a foreign one leads, which the desired state refuses.
pub(super) fn desired() -> impl Strategy<Value = Desired> {
    (links(), settings(), routes(DESTINATIONS)).prop_map(|(links, sysctls, routes)| Desired {
        nics: links.iter().map(|link| nic(*link)).collect(),
        tables: tables(&links),
        routes: routes.into_iter().map(wanted).collect(),
        sysctls,
        ..Desired::default()
    })
}

fn hooks() -> impl Strategy<Value = BTreeMap<Hook, HookState>> {
    let hook = (proptest::sample::select(LINKS.to_vec()), proptest::sample::select(Direction::ALL.to_vec()))
        .prop_map(|(link, direction)| hook(link, direction));
    let state = prop_oneof![Just(attached(true)), Just(attached(false)), Just(HookState::Dead)];
    proptest::collection::btree_map(hook, state, 0..6)
}

/// A node in any state that a crash, an upgrade or a person may have left behind.
pub(super) fn start() -> impl Strategy<Value = Node> {
    let installed = prop_oneof![
        1 => Just(Installed::None),
        3 => Just(Installed::Current),
        1 => Just(Installed::OtherBuild),
        1 => Just(Installed::OtherAbi { version: 7 }),
    ];
    let foreign = routes(&["10.0.0.0/8", "192.0.2.0/24", "fd00:99::/48"]);
    (settings(), settings(), installed, links(), hooks(), routes(DESTINATIONS), foreign).prop_map(
        |(sysctls, originals, installed, published, mut hooks, own, foreign)| {
            let readable = matches!(installed, Installed::Current | Installed::OtherBuild);
            let tables = if readable { tables(&published) } else { TableSpec::default() };
            match installed {
                Installed::Current => {}
                Installed::None => hooks.clear(),
                Installed::OtherBuild | Installed::OtherAbi { .. } => {
                    for state in hooks.values_mut().filter(|state| **state == attached(true)) {
                        *state = attached(false);
                    }
                }
            }
            // only what was changed by us has an original, and only what exists is remembered with another value
            let originals = originals.into_iter().filter(|(key, _)| sysctls.contains_key(key)).collect();
            let foreign = foreign.iter().map(|route| as_route(route, 4)).collect();
            Node { sysctls, originals, installed, tables, hooks, own, foreign }
        },
    )
}
