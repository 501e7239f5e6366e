//! A node's configuration, parsed: what [`crate::merge`] produces from objects and [`crate::desired`] turns into
//! attachments, map entries, routes and sysctls. No strings that still need checking pass this point.

use std::{collections::BTreeSet, fmt, net::IpAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{
    api::{Allow, Mode, ReplyPath, SourceGuard},
    inventory::Mac,
};

/// Where an item comes from, so that a status, an error or a plan line can name it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Provenance {
    /// `RouteEntry`, `NicClass` or `NodeRouteConfig`
    pub kind: String,
    pub name: String,
    /// metadata.uid; empty for manifests from a directory
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// metadata.generation; 0 for manifests from a directory
    #[serde(default)]
    pub generation: i64,
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)
    }
}

/// One value per address family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PerFamily<T> {
    pub v4: T,
    pub v6: T,
}

impl<T> PerFamily<T> {
    /// The value for the family of `address`.
    pub fn of(&self, address: IpAddr) -> &T {
        if address.is_ipv4() { &self.v4 } else { &self.v6 }
    }

    /// The value for the family of `address`, to change it.
    pub fn of_mut(&mut self, address: IpAddr) -> &mut T {
        if address.is_ipv4() { &mut self.v4 } else { &mut self.v6 }
    }
}

/// Which host interfaces a NicClass selects: all given rules must hold; at least one is given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NicMatch {
    /// Globs over the interface name (`*` and `?`).
    pub names: Vec<String>,
    pub macs: Vec<Mac>,
    /// An address of the NIC lies in one of them.
    pub subnets: Vec<IpNet>,
}

/// A NicClass selected for this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicConfig {
    /// metadata.name of the NicClass
    pub class: String,
    pub network: String,
    pub matches: NicMatch,
    /// Declared gateways; an absent family is learned from the host's routes.
    pub gateways: PerFamily<Option<IpAddr>>,
    pub mode: Mode,
    pub reply_path: ReplyPath,
    pub owned_prefixes: Vec<IpNet>,
    pub strict_arp: bool,
    pub source_guard: SourceGuard,
    pub from: Provenance,
}

/// How a RouteEntry names its NIC.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NicRef {
    /// `nic: {class: mgmt}`
    Class(String),
    /// `nic: {name: eth1}`
    Name(String),
}

impl fmt::Display for NicRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Class(class) => write!(f, "class {class}"),
            Self::Name(name) => write!(f, "NIC {name}"),
        }
    }
}

/// One destination that a RouteEntry sends by a NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteConfig {
    /// Host bits are zero.
    pub destination: IpNet,
    pub nic: NicRef,
    /// Default: the NIC's gateway of that family; if it has none, the destination is on-link.
    pub gateway: Option<IpAddr>,
    pub source: Option<IpAddr>,
    /// bytes
    pub mtu: Option<u32>,
    pub allow: BTreeSet<Allow>,
    pub from: Provenance,
}

/// Something a user asked for that is not done, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub from: Provenance,
    /// The destination it is about; absent when the whole object is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    pub reason: crate::api::Reason,
    pub message: String,
}

/// Everything a node is told to do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeConfig {
    pub nics: Vec<NicConfig>,
    pub routes: Vec<RouteConfig>,
    pub refused: Vec<Refusal>,
}
