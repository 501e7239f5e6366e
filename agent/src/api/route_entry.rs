//! RouteEntry: which destinations are reached by which NIC on which nodes.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Destinations reached by one NIC.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "nicpath.dev",
    version = "v1alpha1",
    kind = "RouteEntry",
    plural = "routeentries",
    shortname = "re",
    status = "RouteEntryStatus",
    derive = "PartialEq",
    doc = "Destinations that the selected nodes reach by one of their NICs."
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RouteEntrySpec {
    /// Nodes this entry is for; absent: every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<LabelSelector>,
    /// CIDRs of either family, host bits zero.
    pub destinations: Vec<String>,
    pub nic: NicReference,
    /// Next hop of the destinations of its family; absent: the NicClass's gateway, and without one on-link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// Preferred source of the destinations of its family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Of two entries with one destination the higher wins, then the smaller name.
    #[serde(default)]
    pub priority: i32,
    /// Path MTU in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Protected destinations that this entry may cover.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub allow: BTreeSet<Allow>,
}

/// The NIC of a route: exactly one of the two.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum NicReference {
    /// Name of a NicClass.
    Class(String),
    /// Interface name.
    Name(String),
}

/// A kind of protected destination that a route may cover all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Allow {
    /// The default route or a part of it that amounts to it.
    DefaultRoute,
    /// API server, node, pod and service addresses, DNS servers, metadata address, other networks' subnets.
    ControlPlane,
}

/// How the entry fares over all nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RouteEntryStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Nodes that the entry selects.
    #[serde(default)]
    pub nodes: u32,
    /// Nodes on which all of its destinations are applied.
    #[serde(default)]
    pub applied_nodes: u32,
    /// At most ten nodes on which one is not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failing_nodes: Vec<String>,
}
