//! NicClass: a rule that selects NICs on nodes and says how they are treated.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Selects one NIC on each node that `nodeSelector` selects.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "nicpath.dev",
    version = "v1alpha1",
    kind = "NicClass",
    plural = "nicclasses",
    shortname = "nc",
    status = "NicClassStatus",
    derive = "PartialEq",
    doc = "A rule that selects one NIC on each node, and how that NIC is treated."
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NicClassSpec {
    /// Nodes this class is for; absent: every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<LabelSelector>,
    /// Which NIC: all given rules must hold, and exactly one NIC of the node may fit.
    pub r#match: NicMatchSpec,
    /// Isolation domain of the NIC; absent: the class's own name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Next hops, at most one per address family; an absent family is learned from the host's routes by this NIC.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<String>,
    #[serde(default)]
    pub mode: Mode,
    /// Local addresses without an owner NIC that this network reaches, as CIDRs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vips: Vec<String>,
    /// Sources that belong to this NIC besides its own addresses, as CIDRs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owned_prefixes: Vec<String>,
    /// Local UDP ports whose answers may come with another NIC's source and are put right.
    #[serde(default, rename = "wildcardUDP", skip_serializing_if = "Vec::is_empty")]
    pub wildcard_udp: Vec<String>,
    /// Answer ARP for the NIC's own addresses only (arp_ignore=1).
    #[serde(default, rename = "strictARP")]
    pub strict_arp: bool,
    #[serde(default)]
    pub reply_path: ReplyPath,
    #[serde(default)]
    pub isolation: Isolation,
    /// Local ports that new flows may reach by this NIC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_ports: Option<LocalPorts>,
    #[serde(default)]
    pub source_guard: SourceGuard,
    #[serde(default)]
    pub trunk: Trunk,
}

/// Rules over a NIC; an empty list is no rule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NicMatchSpec {
    /// Globs over the interface name: `*` and `?`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// MAC addresses like `02:00:00:00:00:01`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub macs: Vec<String>,
    /// CIDRs, one of which holds an address of the NIC.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subnets: Vec<String>,
}

/// Whether decisions are carried out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Mode {
    /// Decide and do.
    #[default]
    Enforce,
    /// Decide and count what would be moved or dropped, do nothing.
    Observe,
}

/// Whether replies leave by the NIC their flow arrived on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ReplyPath {
    #[default]
    Symmetric,
    Off,
}

/// What happens to a packet that leaves by the NIC with a source no NIC owns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum SourceGuard {
    Pass,
    /// It passes and is counted as `source_not_owned`.
    #[default]
    Count,
    /// It is dropped as `source_guard`.
    Drop,
}

/// How the NIC's network is kept apart from others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Isolation {
    #[serde(default)]
    pub mode: IsolationMode,
    /// Networks whose flows may pass all the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_from: Vec<String>,
    #[serde(default)]
    pub services: Services,
}

/// Whether other networks reach this one through the node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum IsolationMode {
    #[default]
    Open,
    /// No transit to or from other networks, no weak-host access.
    Isolated,
}

/// Whether a Service's address translation may lead into the network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Services {
    #[default]
    Allow,
    Deny,
}

/// Local ports per protocol, as numbers or ranges; an absent protocol is not limited, an empty list closes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LocalPorts {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<Vec<String>>,
}

/// A NIC that carries one VLAN per pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Trunk {
    #[serde(default)]
    pub enabled: bool,
    /// The trunk ENI's id in the cloud; empty: not compared.
    #[serde(default, rename = "eniID", skip_serializing_if = "String::is_empty")]
    pub eni_id: String,
    #[serde(default)]
    pub unknown_vlan: UnknownVlan,
}

/// What happens to a frame with a VLAN that belongs to no pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum UnknownVlan {
    #[default]
    Pass,
    Drop,
}

/// How the class fares over all nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NicClassStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Nodes that the class selects.
    #[serde(default)]
    pub nodes: u32,
    /// Nodes on which its NIC is ready.
    #[serde(default)]
    pub ready_nodes: u32,
}
