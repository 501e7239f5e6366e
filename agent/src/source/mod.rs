//! Where objects come from, and what came: plain values, each with the place it was written at.

pub mod dir;
pub mod watch;

use std::fmt;

use serde::Serialize;

use crate::{
    api::{Kind, NicClass, NodeRouteConfig, Reason, RouteEntry},
    config::Provenance,
};

/// The place an object was read from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    File {
        /// File name in the manifest directory.
        file: String,
        /// 1-based number of the document in the file.
        document: usize,
        /// 1-based line at which the document's content begins.
        line: usize,
    },
    /// The API server.
    Api,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { file, document, line } => write!(f, "{file}:{line}: document {document}"),
            Self::Api => f.write_str("API server"),
        }
    }
}

/// An object and where it is from.
#[derive(Debug, Clone, PartialEq)]
pub struct Sourced<K> {
    pub object: K,
    pub origin: Origin,
}

/// Objects of all kinds that a node may be told.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Objects {
    pub nic_classes: Vec<Sourced<NicClass>>,
    pub route_entries: Vec<Sourced<RouteEntry>>,
    pub node_route_configs: Vec<Sourced<NodeRouteConfig>>,
    /// What was passed over without being an error, one sentence each: a subdirectory, an empty directory.
    pub warnings: Vec<String>,
}

impl Objects {
    /// The place of the object `from` names.
    pub fn origin(&self, from: &Provenance) -> Option<&Origin> {
        fn find<'a, K: kube::Resource>(objects: &'a [Sourced<K>], name: &str) -> Option<&'a Origin> {
            objects.iter().find(|o| o.object.meta().name.as_deref() == Some(name)).map(|o| &o.origin)
        }
        let kind = Kind::ALL.into_iter().find(|kind| kind.as_str() == from.kind)?;
        match kind {
            Kind::NicClass => find(&self.nic_classes, &from.name),
            Kind::RouteEntry => find(&self.route_entries, &from.name),
            Kind::NodeRouteConfig => find(&self.node_route_configs, &from.name),
        }
    }
}

/// One thing that is wrong in a manifest directory, with everything a user needs to put it right.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ManifestError {
    pub file: String,
    /// 1-based line of the value or key; absent if the file as a whole is meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// 1-based number of the document in the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<usize>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// metadata.name
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Path of the field: `spec.destinations[1]`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
    /// The value as written.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    pub reason: Reason,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub cure: String,
}

impl fmt::Display for ManifestError {
    /// `FILE:LINE: document N (KIND/NAME): FIELD: VALUE: what is wrong: cure`, without the parts that are not known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if let Some(document) = self.document {
            write!(f, ": document {document}")?;
            match (self.kind.as_str(), self.name.as_str()) {
                ("", "") => {}
                (kind, "") => write!(f, " ({kind})")?,
                ("", name) => write!(f, " ({name})")?,
                (kind, name) => write!(f, " ({kind}/{name})")?,
            }
        }
        for part in [&self.field, &self.value, &self.message, &self.cure] {
            if !part.is_empty() {
                write!(f, ": {part}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_with_place_field_value_and_cure() {
        let error = ManifestError {
            file: "routes.yaml".into(),
            line: Some(7),
            document: Some(2),
            kind: "RouteEntry".into(),
            name: "services".into(),
            field: "spec.destinations[1]".into(),
            value: "172.30.5.0/16".into(),
            reason: Reason::HostBits,
            message: "has bits set beyond its prefix length of 16".into(),
            cure: "write 172.30.0.0/16".into(),
        };
        assert_eq!(
            error.to_string(),
            "routes.yaml:7: document 2 (RouteEntry/services): spec.destinations[1]: 172.30.5.0/16: \
             has bits set beyond its prefix length of 16: write 172.30.0.0/16"
        );
        let whole = ManifestError { line: None, document: None, field: "".into(), value: "".into(), ..error };
        assert_eq!(whole.to_string(), "routes.yaml: has bits set beyond its prefix length of 16: write 172.30.0.0/16");
    }
}
