//! NodeRouteConfig: everything one node is told to do, and what it made of it.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Allow, Kind, Mode, NicMatchSpec, NicReference, Reason, ReplyPath, SourceGuard};

/// The merge of all objects that select a node; the object's name is the node's.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "nicpath.dev",
    version = "v1alpha1",
    kind = "NodeRouteConfig",
    plural = "noderouteconfigs",
    shortname = "nrc",
    status = "NodeRouteConfigStatus",
    derive = "PartialEq",
    doc = "What one node is told to do: the merge of all NicClasses and RouteEntries that select it."
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeRouteConfigSpec {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<NodeNic>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<NodeRoute>,
    /// What was asked for and is not done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<NodeRefusal>,
}

/// A NicClass as one node takes it; fields as in NicClass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeNic {
    /// metadata.name of the NicClass
    pub class: String,
    pub r#match: NicMatchSpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<String>,
    #[serde(default)]
    pub mode: Mode,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owned_prefixes: Vec<String>,
    #[serde(default, rename = "strictARP")]
    pub strict_arp: bool,
    #[serde(default)]
    pub reply_path: ReplyPath,
    #[serde(default)]
    pub source_guard: SourceGuard,
    /// Absent: written by hand in this NodeRouteConfig.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<ObjectReference>,
}

/// One destination; fields as in RouteEntry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeRoute {
    pub destination: String,
    pub nic: NicReference,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// bytes
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub allow: BTreeSet<Allow>,
    /// Absent: written by hand in this NodeRouteConfig.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<ObjectReference>,
}

/// Something that was asked for and is not done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeRefusal {
    pub from: ObjectReference,
    /// Absent: the whole object is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    pub reason: Reason,
    pub message: String,
}

/// The object that an item comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ObjectReference {
    #[serde(default)]
    pub kind: Kind,
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(default)]
    pub generation: i64,
}

/// What the node made of its spec; written by that node only.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeRouteConfigStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<NicStatus>,
    /// Routes that are not applied; the applied ones are only counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteStatus>,
    #[serde(default)]
    pub route_counts: RouteCounts,
}

/// A managed NIC.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NicStatus {
    pub name: String,
    pub class: String,
    pub network: String,
    pub ready: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

/// A destination that is not applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RouteStatus {
    pub destination: String,
    pub state: RouteState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

/// What became of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum RouteState {
    Applied,
    Pending,
    Refused,
    Conflict,
}

/// Routes of a node by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RouteCounts {
    #[serde(default)]
    pub applied: u32,
    #[serde(default)]
    pub pending: u32,
    #[serde(default)]
    pub refused: u32,
    #[serde(default)]
    pub conflict: u32,
}
