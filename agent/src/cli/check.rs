//! What `nicpath check` says of a manifest directory: everything that is wrong with its objects one by one, together,
//! and, if the caller knows the host, on this host. No I/O but reading the directory.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::Path,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::Resource;
use serde::Serialize;
use serde_json::Value;

use crate::{
    api::{Kind, NicReference, NodeRouteConfig, Reason, RouteEntry},
    config::{NicConfig, NodeConfig, Refusal},
    merge::{NodeIdentity, merge},
    source::{
        ManifestError, Objects, Origin, Sourced,
        dir::{self, ManifestFile, ManifestFiles},
    },
};

/// Everything that was found. Printed as text, one line per error, or serialised as
/// `{errors: [{file, line, document, kind, name, field, value, reason, message, cure}], warnings: […]}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// In order of file and line.
    pub errors: Vec<ManifestError>,
    /// What was passed over without being an error, one sentence each.
    pub warnings: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.errors.iter().try_for_each(|error| writeln!(f, "{error}"))
    }
}

/// What this host refuses of a configuration: `desired`'s refusals.
pub type HostRefusals<'a> = &'a dyn Fn(&NodeConfig) -> Vec<Refusal>;

/// Checks the manifests in `dir` for `node`.
///
/// With `host`, or if the node has labels, the objects are judged as that node takes them. Otherwise they are judged
/// for every pool of nodes that their selectors name: as an API server would at admission, which knows no node.
pub fn check(dir: &Path, node: &NodeIdentity, host: Option<HostRefusals<'_>>) -> Report {
    match dir::read_files(dir) {
        Ok(ManifestFiles { files, warnings }) => Report { errors: check_files(&files, node, host), warnings },
        Err(errors) => Report { errors, warnings: vec![] },
    }
}

/// The same for files that were read already.
pub fn check_files(files: &[ManifestFile], node: &NodeIdentity, host: Option<HostRefusals<'_>>) -> Vec<ManifestError> {
    let objects = match dir::parse(files) {
        Ok(objects) => objects,
        Err(errors) => return errors,
    };
    let manifests = Manifests { files, objects: &objects };
    let mut errors: BTreeSet<ManifestError> = manifests.unknown_classes().collect();
    let nodes = if host.is_some() || !node.labels.is_empty() { vec![node.clone()] } else { pools(&objects, node) };
    for node in &nodes {
        let config = merge(&objects, node);
        errors.extend(manifests.claimed_twice(&config));
        let on_host = host.map(|refusals| refusals(&config)).unwrap_or_default();
        let refused = config.refused.iter().filter(|refusal| manifests.is_error(refusal, &config, host.is_some()));
        errors.extend(refused.map(|refusal| manifests.error(refusal, node)));
        let found_here = on_host.iter().filter(|refusal| !config.refused.contains(refusal));
        errors.extend(found_here.map(|refusal| manifests.error(refusal, node)));
    }
    errors.into_iter().collect()
}

/// One node of each pool that a selector names, `node` first.
fn pools(objects: &Objects, node: &NodeIdentity) -> Vec<NodeIdentity> {
    let classes = objects.nic_classes.iter().filter_map(|class| class.object.spec.node_selector.as_ref());
    let entries = objects.route_entries.iter().filter_map(|entry| entry.object.spec.node_selector.as_ref());
    let labels: BTreeSet<BTreeMap<String, String>> = classes.chain(entries).map(labels_of).collect();
    let named = labels.into_iter().filter(|labels| !labels.is_empty());
    [node.clone()].into_iter().chain(named.map(|labels| NodeIdentity { name: node.name.clone(), labels })).collect()
}

/// Labels that `selector` selects, as far as it asks for any.
fn labels_of(selector: &LabelSelector) -> BTreeMap<String, String> {
    let expressions = selector.match_expressions.iter().flatten().filter_map(|requirement| {
        let value = match requirement.operator.as_str() {
            "In" => requirement.values.as_ref()?.first()?.clone(),
            "Exists" => String::new(),
            _ => return None,
        };
        Some((requirement.key.clone(), value))
    });
    expressions.chain(selector.match_labels.clone().unwrap_or_default()).collect()
}

/// A place in the manifests.
struct Place<'a> {
    kind: Kind,
    name: &'a str,
    origin: &'a Origin,
    field: String,
    /// The object's `spec`, to show the field's value.
    spec: Value,
}

/// The objects of a directory and the text they were read from.
struct Manifests<'a> {
    files: &'a [ManifestFile],
    objects: &'a Objects,
}

impl Manifests<'_> {
    /// RouteEntries whose NicClass is nowhere in the directory, for no node.
    fn unknown_classes(&self) -> impl Iterator<Item = ManifestError> {
        let known: BTreeSet<&str> = self.objects.nic_classes.iter().map(|class| name_of(&class.object)).collect();
        self.objects.route_entries.iter().filter_map(move |entry| {
            let NicReference::Class(class) = &entry.object.spec.nic else { return None };
            if known.contains(class.as_str()) {
                return None;
            }
            let list = known.iter().copied().collect::<Vec<_>>().join(", ");
            let cure = match list.as_str() {
                "" => "add the NicClass to the directory, or name a NIC: {name: eth1}".to_owned(),
                list => format!("name one of {list}, add the NicClass, or name a NIC: {{name: eth1}}"),
            };
            let place = entry_place(entry, "spec.nic.class".to_owned());
            Some(self.at(&place, Reason::UnknownNic, "is no NicClass of the directory".to_owned(), cure))
        })
    }

    /// NicClasses of one node that name the same NIC, by name or by MAC, told at the later of the two.
    fn claimed_twice(&self, config: &NodeConfig) -> Vec<ManifestError> {
        let mut errors = vec![];
        for (index, later) in config.nics.iter().enumerate() {
            for (earlier, field) in config.nics[..index].iter().filter_map(|first| Some((first, shared(first, later)?)))
            {
                let message = format!("is claimed by {} at {} too", earlier.from, self.origin_of(earlier));
                let refusal = Refusal {
                    from: later.from.clone(),
                    destination: None,
                    reason: Reason::ClaimedTwice,
                    message: message.clone(),
                };
                let Some(mut place) = self.place(&refusal, &NodeIdentity::default()) else { continue };
                place.field = field;
                errors.push(self.at(&place, refusal.reason, message, refusal.reason.cure().to_owned()));
            }
        }
        errors
    }

    fn origin_of(&self, nic: &NicConfig) -> String {
        self.objects.origin(&nic.from).map_or_else(|| "an unknown place".to_owned(), Origin::to_string)
    }

    /// Whether what [`merge`] refused is a mistake, rather than what the objects say on purpose.
    fn is_error(&self, refusal: &Refusal, config: &NodeConfig, on_host: bool) -> bool {
        match refusal.reason {
            // a NodeRouteConfig beside the objects it was made from
            Reason::Superseded => false,
            // the class is there, for other nodes
            Reason::UnknownNic => on_host,
            // a higher priority is meant; a tie is decided by name, which nobody means
            Reason::DuplicateDestination => {
                let winner =
                    config.routes.iter().find(|route| Some(route.destination.to_string()) == refusal.destination);
                winner.is_none_or(|winner| self.priority(&winner.from.name) == self.priority(&refusal.from.name))
            }
            _ => true,
        }
    }

    fn priority(&self, entry: &str) -> Option<i32> {
        self.objects.route_entries.iter().find(|e| name_of(&e.object) == entry).map(|e| e.object.spec.priority)
    }

    fn error(&self, refusal: &Refusal, node: &NodeIdentity) -> ManifestError {
        let cure = refusal.reason.cure().to_owned();
        match self.place(refusal, node) {
            Some(place) => self.at(&place, refusal.reason, refusal.message.clone(), cure),
            // of an object that is in no file, as a NodeRouteConfig may name it
            None => ManifestError {
                file: refusal.from.to_string(),
                line: None,
                document: None,
                kind: refusal.from.kind.clone(),
                name: refusal.from.name.clone(),
                field: String::new(),
                value: refusal.destination.clone().unwrap_or_default(),
                reason: refusal.reason,
                message: refusal.message.clone(),
                cure,
            },
        }
    }

    fn at(&self, place: &Place<'_>, reason: Reason, message: String, cure: String) -> ManifestError {
        let (file, document) = match place.origin {
            Origin::File { file, document, .. } => (file.clone(), Some(*document)),
            Origin::Api => (place.origin.to_string(), None),
        };
        let line = document.and_then(|document| dir::line_of(self.files, &file, document, &place.field));
        ManifestError {
            file,
            line,
            document,
            kind: place.kind.to_string(),
            name: place.name.to_owned(),
            field: place.field.clone(),
            value: value_at(&place.spec, &place.field),
            reason,
            message,
            cure,
        }
    }

    /// The field that a refusal is about.
    fn place(&self, refusal: &Refusal, node: &NodeIdentity) -> Option<Place<'_>> {
        let named = |name: &str| name == refusal.from.name;
        let Objects { nic_classes, route_entries, node_route_configs, .. } = self.objects;
        if refusal.from.kind == Kind::RouteEntry.as_str()
            && let Some(entry) = route_entries.iter().find(|entry| named(name_of(&entry.object)))
        {
            let spec = &entry.object.spec;
            let field = match refusal.reason {
                Reason::UnknownNic | Reason::NoSuchNic | Reason::Ambiguous => "spec.nic".to_owned(),
                Reason::GatewayNotOnNic if spec.gateway.is_some() => "spec.gateway".to_owned(),
                Reason::SourceNotOnNic => "spec.source".to_owned(),
                _ => index_field("spec.destinations", &spec.destinations, refusal.destination.as_deref()),
            };
            return Some(entry_place(entry, field));
        }
        if refusal.from.kind == Kind::NicClass.as_str()
            && let Some(class) = nic_classes.iter().find(|class| named(name_of(&class.object)))
        {
            let spec = &class.object.spec;
            let field = match refusal.reason {
                Reason::GatewayNotOnNic | Reason::NoGateway => {
                    let gateway = spec
                        .gateways
                        .iter()
                        .find(|gateway| refusal.message.contains(gateway.as_str()))
                        .map(String::as_str);
                    index_field("spec.gateways", &spec.gateways, refusal.destination.as_deref().or(gateway))
                }
                Reason::StrictArpWithVip => "spec.strictARP".to_owned(),
                Reason::ClaimedTwice if refusal.destination.is_some() => {
                    index_field("spec.ownedPrefixes", &spec.owned_prefixes, refusal.destination.as_deref())
                }
                _ => "spec.match".to_owned(),
            };
            return Some(Place {
                kind: Kind::NicClass,
                name: name_of(&class.object),
                origin: &class.origin,
                field,
                spec: serde_json::to_value(spec).unwrap_or_default(),
            });
        }
        let own = node_route_configs
            .iter()
            .find(|config| named(name_of(&config.object)) || name_of(&config.object) == node.name)?;
        Some(node_place(own, refusal))
    }
}

/// The field of `later` that names a NIC which `first` names too, if one NIC can fit both.
fn shared(first: &NicConfig, later: &NicConfig) -> Option<String> {
    let (a, b) = (&first.matches, &later.matches);
    let literal = |name: &&String| !name.contains(['*', '?']);
    let same_mac = b.macs.iter().position(|mac| a.macs.contains(mac));
    let same_name = b.names.iter().position(|name| literal(&name) && a.names.contains(name));
    let macs_exclude = !a.macs.is_empty() && !b.macs.is_empty() && same_mac.is_none();
    let subnets_exclude = !a.subnets.is_empty()
        && !b.subnets.is_empty()
        && !a.subnets.iter().any(|a| b.subnets.iter().any(|b| a.contains(b) || b.contains(a)));
    if macs_exclude || subnets_exclude {
        return None;
    }
    same_mac
        .map(|index| format!("spec.match.macs[{index}]"))
        .or_else(|| same_name.map(|index| format!("spec.match.names[{index}]")))
}

fn entry_place(entry: &Sourced<RouteEntry>, field: String) -> Place<'_> {
    Place {
        kind: Kind::RouteEntry,
        name: name_of(&entry.object),
        origin: &entry.origin,
        field,
        spec: serde_json::to_value(&entry.object.spec).unwrap_or_default(),
    }
}

fn node_place<'a>(config: &'a Sourced<NodeRouteConfig>, refusal: &Refusal) -> Place<'a> {
    let spec = &config.object.spec;
    let route = spec.routes.iter().position(|route| Some(&route.destination) == refusal.destination.as_ref());
    let nic = spec.nics.iter().position(|nic| nic.class == refusal.from.name);
    let field = match (route, nic) {
        (Some(index), _) => format!("spec.routes[{index}].destination"),
        (None, Some(index)) => format!("spec.nics[{index}].match"),
        (None, None) => "spec".to_owned(),
    };
    Place {
        kind: Kind::NodeRouteConfig,
        name: name_of(&config.object),
        origin: &config.origin,
        field,
        spec: serde_json::to_value(spec).unwrap_or_default(),
    }
}

/// `FIELD[INDEX]` of `item`, or `FIELD` if the list does not have it.
fn index_field(field: &str, list: &[String], item: Option<&str>) -> String {
    match list.iter().position(|candidate| Some(candidate.as_str()) == item) {
        Some(index) => format!("{field}[{index}]"),
        None => field.to_owned(),
    }
}

/// The text of a field: `spec.destinations[1]` in `{"destinations": […]}`.
fn value_at(spec: &Value, field: &str) -> String {
    let mut value = spec;
    for part in field.split(['.', '[']).skip(1) {
        let next = match part.strip_suffix(']') {
            Some(index) => index.parse().ok().and_then(|index: usize| value.get(index)),
            None => value.get(part),
        };
        let Some(next) = next else { return String::new() };
        value = next;
    }
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn name_of<K: Resource>(object: &K) -> &str {
    object.meta().name.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests;
