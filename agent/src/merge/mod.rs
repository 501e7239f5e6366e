//! All objects of a source + one node → what that node is told to do, with the provenance of every item and the
//! refusal of everything that is not done.
//!
//! Pure: knows neither the host's NICs nor the time. The order of the objects does not matter.

mod protect;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
};

use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::Resource;

pub use self::protect::{NetworkSubnet, Protected, protect};
use crate::{
    api::{
        Kind, Reason,
        validate::{self, Violation},
    },
    config::{NicConfig, NicRef, NodeConfig, Provenance, Refusal, RouteConfig},
    source::Objects,
};

/// Most routes that one node takes from a directory.
pub const MAX_ROUTES: usize = 10_000;

/// The node that objects are selected for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeIdentity {
    pub name: String,
    pub labels: BTreeMap<String, String>,
}

/// What `node` is told by `objects`.
///
/// A NodeRouteConfig named like the node is taken as it is; NicClasses and RouteEntries beside it are then refused as
/// superseded. Otherwise every NicClass and RouteEntry that selects the node takes part, and every destination of such
/// an entry is either in `routes` or refused once; an entry that is invalid in itself is refused as a whole.
pub fn merge(objects: &Objects, node: &NodeIdentity) -> NodeConfig {
    let mut config = match objects.node_route_configs.iter().find(|c| name_of(&c.object) == node.name) {
        Some(own) => {
            let from = provenance(Kind::NodeRouteConfig, &own.object);
            let mut config = validate::node_route_config(&own.object.spec, &from).unwrap_or_else(|violations| {
                NodeConfig { refused: vec![refused_object(from.clone(), &violations)], ..NodeConfig::default() }
            });
            config.refused.extend(superseded(objects, node, &from));
            config
        }
        None => merge_selected(objects, node),
    };
    config.nics.sort_by(|a, b| a.class.cmp(&b.class));
    config.routes.sort_by_key(|route| route.destination);
    config.refused.sort_by(|a, b| (&a.from, &a.destination, a.reason).cmp(&(&b.from, &b.destination, b.reason)));
    config
}

fn merge_selected(objects: &Objects, node: &NodeIdentity) -> NodeConfig {
    let mut refused = vec![];
    let nics = nics(objects, node, &mut refused);
    let mut candidates = candidates(objects, node, &mut refused);
    drop_takers_of_default(&mut candidates, &mut refused);
    drop_unknown_classes(&mut candidates, &nics, &mut refused);
    let mut routes = winners(candidates, &mut refused);
    for late in routes.split_off(routes.len().min(MAX_ROUTES)) {
        let message = format!("is one of more than {MAX_ROUTES} routes for this node, with the lowest priority");
        refused.push(refusal(late.route, Reason::TooManyRoutes, message));
    }
    NodeConfig { nics, routes: routes.into_iter().map(|candidate| candidate.route).collect(), refused }
}

/// A route with what decides between two of them.
struct Candidate {
    priority: i32,
    route: RouteConfig,
}

impl Candidate {
    /// Smaller wins: higher priority, then the smaller name.
    fn rank(&self) -> (Reverse<i32>, &str) {
        (Reverse(self.priority), &self.route.from.name)
    }
}

fn nics(objects: &Objects, node: &NodeIdentity, refused: &mut Vec<Refusal>) -> Vec<NicConfig> {
    let mut nics = vec![];
    for class in &objects.nic_classes {
        let spec = &class.object.spec;
        let from = provenance(Kind::NicClass, &class.object);
        match validate::nic_class(name_of(&class.object), spec, from.clone()) {
            Ok(nic) if validate::selects(spec.node_selector.as_ref(), &node.labels) => nics.push(nic),
            Err(violations) if takes_part(spec.node_selector.as_ref(), node, &violations) => {
                refused.push(refused_object(from, &violations));
            }
            Ok(_) | Err(_) => {}
        }
    }
    nics.sort_by(|a, b| a.class.cmp(&b.class));
    drop_shared_prefixes(&mut nics, refused);
    nics
}

/// A prefix can have one owner: the class with the smaller name keeps it.
fn drop_shared_prefixes(nics: &mut [NicConfig], refused: &mut Vec<Refusal>) {
    let mut owners: HashMap<IpNet, String> = HashMap::new();
    for nic in nics {
        let (class, from) = (&nic.class, &nic.from);
        nic.owned_prefixes.retain(|prefix| {
            let owner = owners.entry(*prefix).or_insert_with(|| class.clone());
            if owner == class {
                return true;
            }
            refused.push(Refusal {
                from: from.clone(),
                destination: Some(prefix.to_string()),
                reason: Reason::ClaimedTwice,
                message: format!("is in ownedPrefixes of NicClass/{owner} too, which keeps it"),
            });
            false
        });
    }
}

fn candidates(objects: &Objects, node: &NodeIdentity, refused: &mut Vec<Refusal>) -> Vec<Candidate> {
    let mut candidates = vec![];
    for entry in &objects.route_entries {
        let spec = &entry.object.spec;
        let from = provenance(Kind::RouteEntry, &entry.object);
        match validate::route_entry(spec, &from) {
            Ok(routes) if validate::selects(spec.node_selector.as_ref(), &node.labels) => {
                candidates.extend(routes.into_iter().map(|route| Candidate { priority: spec.priority, route }));
            }
            Err(violations) if takes_part(spec.node_selector.as_ref(), node, &violations) => {
                refused.push(refused_object(from, &violations));
            }
            Ok(_) | Err(_) => {}
        }
    }
    candidates
}

/// Whether an invalid object is this node's business: it selects the node, or nobody can say whom it selects.
fn takes_part(selector: Option<&LabelSelector>, node: &NodeIdentity, violations: &[Violation]) -> bool {
    violations.iter().any(|v| v.field.starts_with("spec.nodeSelector")) || validate::selects(selector, &node.labels)
}

fn drop_takers_of_default(candidates: &mut Vec<Candidate>, refused: &mut Vec<Refusal>) {
    let routes: Vec<RouteConfig> = candidates.iter().map(|candidate| candidate.route.clone()).collect();
    let taking: BTreeSet<(IpNet, &Provenance)> =
        validate::takes_default(&routes).into_iter().map(|route| (route.destination, &route.from)).collect();
    drop_where(candidates, refused, |route| {
        taking.contains(&(route.destination, &route.from)).then(|| {
            let flaw = validate::default_flaw(route.destination);
            (flaw.reason, flaw.message)
        })
    });
}

fn drop_unknown_classes(candidates: &mut Vec<Candidate>, nics: &[NicConfig], refused: &mut Vec<Refusal>) {
    let classes: BTreeSet<&str> = nics.iter().map(|nic| nic.class.as_str()).collect();
    drop_where(candidates, refused, |route| match &route.nic {
        NicRef::Class(class) if !classes.contains(class.as_str()) => {
            Some((Reason::UnknownNic, format!("goes by NicClass/{class}, which this node does not have")))
        }
        NicRef::Class(_) | NicRef::Name(_) => None,
    });
}

/// One candidate per destination, best ranks first.
fn winners(mut candidates: Vec<Candidate>, refused: &mut Vec<Refusal>) -> Vec<Candidate> {
    candidates.sort_by(|a, b| (a.rank(), a.route.destination).cmp(&(b.rank(), b.route.destination)));
    let mut winners: HashMap<IpNet, Provenance> = HashMap::new();
    drop_where(&mut candidates, refused, |route| match winners.get(&route.destination) {
        Some(winner) => Some((Reason::DuplicateDestination, format!("goes to {winner}, which ranks higher"))),
        None => {
            winners.insert(route.destination, route.from.clone());
            None
        }
    });
    candidates
}

fn drop_where(
    candidates: &mut Vec<Candidate>,
    refused: &mut Vec<Refusal>,
    mut why: impl FnMut(&RouteConfig) -> Option<(Reason, String)>,
) {
    candidates.retain(|candidate| match why(&candidate.route) {
        Some((reason, message)) => {
            refused.push(refusal(candidate.route.clone(), reason, message));
            false
        }
        None => true,
    });
}

fn refusal(route: RouteConfig, reason: Reason, message: String) -> Refusal {
    Refusal { from: route.from, destination: Some(route.destination.to_string()), reason, message }
}

fn refused_object(from: Provenance, violations: &[Violation]) -> Refusal {
    Refusal {
        from,
        destination: None,
        reason: violations.first().map_or(Reason::Other, |violation| violation.reason),
        message: violations.iter().map(Violation::to_string).collect::<Vec<_>>().join("; "),
    }
}

/// The objects that select the node and do not decide, because `winner` does.
fn superseded<'a>(
    objects: &'a Objects,
    node: &'a NodeIdentity,
    winner: &'a Provenance,
) -> impl Iterator<Item = Refusal> + 'a {
    let classes = objects
        .nic_classes
        .iter()
        .filter(|class| validate::selects(class.object.spec.node_selector.as_ref(), &node.labels))
        .map(|class| provenance(Kind::NicClass, &class.object));
    let entries = objects
        .route_entries
        .iter()
        .filter(|entry| validate::selects(entry.object.spec.node_selector.as_ref(), &node.labels))
        .map(|entry| provenance(Kind::RouteEntry, &entry.object));
    classes.chain(entries).map(move |from| Refusal {
        from,
        destination: None,
        reason: Reason::Superseded,
        message: format!("{winner} alone decides for this node"),
    })
}

fn name_of<K: Resource>(object: &K) -> &str {
    object.meta().name.as_deref().unwrap_or_default()
}

fn provenance<K: Resource>(kind: Kind, object: &K) -> Provenance {
    let meta = object.meta();
    Provenance {
        kind: kind.to_string(),
        name: name_of(object).to_owned(),
        uid: meta.uid.clone().unwrap_or_default(),
        generation: meta.generation.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
