//! One document's tree → an object of ours, or everything that is wrong with it.

use std::{collections::HashMap, sync::LazyLock};

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, JSONSchemaProps},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::core::CustomResourceExt as _;
use serde::de::DeserializeOwned;

use super::{
    shape::{self, Fault},
    yaml::{Node, Value},
};
use crate::{
    api::{
        API_VERSION, Kind, NicClass, NodeRouteConfig, Reason, RouteEntry,
        validate::{self, Violation},
    },
    config::Provenance,
    source::{ManifestError, Objects, Origin, Sourced},
};

/// Where each object seen so far is.
#[derive(Debug, Default)]
pub(super) struct Origins(HashMap<(Kind, String), Origin>);

/// Adds the object that `tree` is to `objects`, or what is wrong with it to `errors`.
pub(super) fn read(
    file: &str,
    document: usize,
    tree: &Node,
    objects: &mut Objects,
    origins: &mut Origins,
    errors: &mut Vec<ManifestError>,
) {
    let mut faults = vec![];
    let text = |key: &str| tree.get(key).and_then(|entry| entry.node.as_str()).unwrap_or_default();
    let name = tree.get("metadata").and_then(|m| m.node.get("name")).and_then(|n| n.node.as_str()).unwrap_or_default();
    if let Some(kind) = kind(tree, &mut faults) {
        check_shape(kind, tree, &mut faults);
        let origin = Origin::File { file: file.to_owned(), document, line: tree.line };
        if !name.is_empty() {
            if let Some(first) = origins.0.get(&(kind, name.to_owned())) {
                faults.push(Fault {
                    line: tree.line_of("metadata.name"),
                    field: "metadata.name".to_owned(),
                    value: name.to_owned(),
                    reason: Reason::DuplicateObject,
                    message: format!("is the name of another {kind} at {first}"),
                    cure: Reason::DuplicateObject.cure().to_owned(),
                });
            } else {
                origins.0.insert((kind, name.to_owned()), origin.clone());
            }
        }
        // what has a name too many can still be judged by what it holds; what has a wrong type cannot
        let readable = |fault: &Fault| matches!(fault.reason, Reason::UnknownField | Reason::DuplicateKey);
        if faults.is_empty() {
            faults = decode(kind, tree, origin, objects);
        } else if faults.iter().all(readable) {
            let more = decode(kind, tree, origin, objects);
            faults.extend(more.into_iter().filter(|fault| fault.reason != Reason::WrongType));
        }
    }
    errors.extend(faults.into_iter().map(|fault| ManifestError {
        file: file.to_owned(),
        line: Some(fault.line),
        document: Some(document),
        kind: text("kind").to_owned(),
        name: name.to_owned(),
        field: fault.field,
        value: fault.value,
        reason: fault.reason,
        message: fault.message,
        cure: fault.cure,
    }));
}

/// The kind that the document says to be of.
fn kind(tree: &Node, faults: &mut Vec<Fault>) -> Option<Kind> {
    if !matches!(tree.value, Value::Mapping(_)) {
        faults.push(shape::wrong_type(tree, "", "object"));
        return None;
    }
    let known = Kind::ALL.map(Kind::as_str).join(", ");
    let mut check = |field: &str, fits: &dyn Fn(&str) -> bool| {
        let cure = format!("known here: {known} of {API_VERSION}");
        match tree.get(field) {
            None => {
                let fault = shape::missing_field(tree, field.to_owned());
                faults.push(Fault { reason: Reason::UnknownKind, cure, ..fault });
            }
            Some(entry) if entry.node.as_str().is_some_and(fits) => {}
            Some(entry) => faults.push(Fault {
                line: entry.node.line,
                field: field.to_owned(),
                value: entry.node.to_string(),
                reason: Reason::UnknownKind,
                message: "is not known".to_owned(),
                cure,
            }),
        }
    };
    check("apiVersion", &|version| version == API_VERSION);
    check("kind", &|kind| Kind::ALL.iter().any(|known| known.as_str() == kind));
    if !faults.is_empty() {
        return None;
    }
    let kind = tree.get("kind")?.node.as_str()?;
    Kind::ALL.into_iter().find(|known| known.as_str() == kind)
}

/// Schemas of the kinds' `spec`, as in their CustomResourceDefinitions.
static SPECS: LazyLock<HashMap<Kind, JSONSchemaProps>> = LazyLock::new(|| {
    Kind::ALL
        .into_iter()
        .filter_map(|kind| {
            let definition = match kind {
                Kind::NicClass => NicClass::crd(),
                Kind::RouteEntry => RouteEntry::crd(),
                Kind::NodeRouteConfig => NodeRouteConfig::crd(),
            };
            Some((kind, spec_schema(definition)?))
        })
        .collect()
});

fn spec_schema(definition: CustomResourceDefinition) -> Option<JSONSchemaProps> {
    let version = definition.spec.versions.into_iter().next()?;
    version.schema?.open_api_v3_schema?.properties?.remove("spec")
}

/// Fields that metadata may have (Kubernetes ObjectMeta); `namespace` is not one of a cluster scoped object.
const METADATA: [&str; 14] = [
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

fn check_shape(kind: Kind, tree: &Node, faults: &mut Vec<Fault>) {
    let Value::Mapping(entries) = &tree.value else { return };
    shape::check_repeats(entries, "", faults);
    for entry in entries {
        match entry.key.as_str() {
            // status is the cluster's business, and exported objects have one
            "apiVersion" | "kind" | "status" => {}
            "metadata" => check_metadata(&entry.node, faults),
            "spec" => {
                if let Some(schema) = SPECS.get(&kind) {
                    shape::check(&entry.node, "spec", schema, faults);
                }
            }
            key => {
                faults.push(shape::unknown_field(entry, key.to_owned(), &["apiVersion", "kind", "metadata", "spec"]))
            }
        }
    }
    for required in ["metadata", "spec"] {
        if tree.get(required).is_none() {
            faults.push(shape::missing_field(tree, required.to_owned()));
        }
    }
}

fn check_metadata(metadata: &Node, faults: &mut Vec<Fault>) {
    let Value::Mapping(entries) = &metadata.value else {
        faults.push(shape::wrong_type(metadata, "metadata", "object"));
        return;
    };
    shape::check_repeats(entries, "metadata", faults);
    for entry in entries.iter().filter(|entry| !METADATA.contains(&entry.key.as_str())) {
        faults.push(if entry.key == "namespace" {
            Fault {
                message: "does not go with an object of the whole cluster".to_owned(),
                cure: "remove it".to_owned(),
                ..shape::unknown_field(entry, "metadata.namespace".to_owned(), &[])
            }
        } else {
            shape::unknown_field(entry, format!("metadata.{}", entry.key), &METADATA)
        });
    }
    match metadata.get("name") {
        None => faults.push(shape::missing_field(metadata, "metadata.name".to_owned())),
        Some(entry) => match entry.node.as_str() {
            None => faults.push(shape::wrong_type(&entry.node, "metadata.name", "string")),
            Some(name) => {
                if let Err(message) = validate::dns_subdomain(name) {
                    faults.push(Fault {
                        line: entry.node.line,
                        field: "metadata.name".to_owned(),
                        value: name.to_owned(),
                        reason: Reason::InvalidName,
                        message,
                        cure: Reason::InvalidName.cure().to_owned(),
                    });
                }
            }
        },
    }
}

/// Adds the object to `objects`; its shape is right.
fn decode(kind: Kind, tree: &Node, origin: Origin, objects: &mut Objects) -> Vec<Fault> {
    let metadata: ObjectMeta = match part(tree, "metadata", None) {
        Ok(metadata) => metadata,
        Err(fault) => return vec![fault],
    };
    let name = metadata.name.clone().unwrap_or_default();
    let from = Provenance {
        kind: kind.to_string(),
        name: name.clone(),
        uid: metadata.uid.clone().unwrap_or_default(),
        generation: metadata.generation.unwrap_or_default(),
    };
    let schema = SPECS.get(&kind);
    let violations = match kind {
        Kind::NicClass => part(tree, "spec", schema).map(|spec| {
            let violations = validate::nic_class(&name, &spec, from).err();
            let object = NicClass { metadata, spec, status: None };
            objects.nic_classes.push(Sourced { object, origin });
            violations
        }),
        Kind::RouteEntry => part(tree, "spec", schema).map(|spec| {
            let violations = validate::route_entry(&spec, &from).err();
            let object = RouteEntry { metadata, spec, status: None };
            objects.route_entries.push(Sourced { object, origin });
            violations
        }),
        Kind::NodeRouteConfig => part(tree, "spec", schema).map(|spec| {
            let violations = validate::node_route_config(&spec, &from).err();
            let object = NodeRouteConfig { metadata, spec, status: None };
            objects.node_route_configs.push(Sourced { object, origin });
            violations
        }),
    };
    match violations {
        Ok(violations) => violations.into_iter().flatten().map(|violation| located(tree, violation)).collect(),
        Err(fault) => vec![fault],
    }
}

/// The value of `key` without fields that `schema` does not know, decoded.
fn part<T: DeserializeOwned>(tree: &Node, key: &str, schema: Option<&JSONSchemaProps>) -> Result<T, Fault> {
    let json = tree.get(key).map(|entry| match schema {
        Some(schema) => shape::known(&entry.node, schema),
        None => entry.node.to_json(),
    });
    let json = json.unwrap_or_default();
    serde_json::from_value(json).map_err(|error| Fault {
        line: tree.line_of(key),
        field: key.to_owned(),
        value: String::new(),
        reason: Reason::WrongType,
        message: error.to_string(),
        cure: Reason::WrongType.cure().to_owned(),
    })
}

fn located(tree: &Node, violation: Violation) -> Fault {
    let Violation { field, value, reason, message, cure } = violation;
    Fault { line: tree.line_of(&field), field, value, reason, message, cure }
}
