//! Objects of group `nicpath.dev`, version `v1alpha1`: what users write and what nodes report.
//!
//! Pure: no clock, environment, file or API server. What an object says in text is parsed into [`crate::config`] by
//! [`validate`], which is also the only place that says what a field may hold.

pub mod conditions;
pub mod nic_class;
pub mod node_route_config;
pub mod reason;
pub mod route_entry;
pub mod validate;

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::{
    nic_class::{
        Isolation, IsolationMode, LocalPorts, Mode, NicClass, NicClassSpec, NicClassStatus, NicMatchSpec, ReplyPath,
        Services, SourceGuard, Trunk, UnknownVlan,
    },
    node_route_config::{
        NicStatus, NodeNic, NodeRefusal, NodeRoute, NodeRouteConfig, NodeRouteConfigSpec, NodeRouteConfigStatus,
        ObjectReference, RouteCounts, RouteState, RouteStatus,
    },
    reason::Reason,
    route_entry::{Allow, NicReference, RouteEntry, RouteEntrySpec, RouteEntryStatus},
};

/// API group of every object here.
pub const GROUP: &str = "nicpath.dev";
/// The one version served.
pub const VERSION: &str = "v1alpha1";
/// `apiVersion` of every object here.
pub const API_VERSION: &str = "nicpath.dev/v1alpha1";

/// The kinds of the group that a node reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Kind {
    NicClass,
    #[default]
    RouteEntry,
    NodeRouteConfig,
}

impl Kind {
    /// Every kind, in the order in which messages list them.
    pub const ALL: [Self; 3] = [Self::NicClass, Self::RouteEntry, Self::NodeRouteConfig];

    /// The `kind` field's text.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NicClass => "NicClass",
            Self::RouteEntry => "RouteEntry",
            Self::NodeRouteConfig => "NodeRouteConfig",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use kube::core::CustomResourceExt as _;

    use super::*;

    #[test]
    fn definitions_are_cluster_scoped_with_the_documented_short_names() {
        for (definition, short) in [(NicClass::crd(), "nc"), (RouteEntry::crd(), "re"), (NodeRouteConfig::crd(), "nrc")]
        {
            assert_eq!(definition.spec.group, GROUP);
            assert_eq!(definition.spec.scope, "Cluster");
            assert_eq!(definition.spec.versions[0].name, VERSION);
            assert_eq!(definition.spec.names.short_names, Some(vec![short.to_owned()]));
            assert!(definition.spec.versions[0].subresources.as_ref().is_some_and(|s| s.status.is_some()));
        }
    }

    #[test]
    fn a_class_that_only_matches_gets_the_documented_defaults() {
        let spec: NicClassSpec = serde_json::from_value(serde_json::json!({"match": {"names": ["eth1"]}})).unwrap();
        assert_eq!(spec.mode, Mode::Enforce);
        assert_eq!(spec.reply_path, ReplyPath::Symmetric);
        assert_eq!(spec.source_guard, SourceGuard::Count);
        assert_eq!(spec.isolation.mode, IsolationMode::Open);
        assert_eq!(spec.isolation.services, Services::Allow);
        assert_eq!(spec.trunk.unknown_vlan, UnknownVlan::Pass);
        assert!(!spec.strict_arp && !spec.trunk.enabled && spec.network.is_none() && spec.local_ports.is_none());
    }

    #[test]
    fn field_names_are_those_of_the_contract() {
        let spec: NicClassSpec = serde_json::from_value(serde_json::json!({
            "nodeSelector": {"matchLabels": {"pool": "a"}},
            "match": {"names": ["eth1"], "macs": ["02:00:00:00:00:01"], "subnets": ["10.20.0.0/24"]},
            "network": "mgmt",
            "gateways": ["10.20.0.1", "fe80::1"],
            "mode": "Observe",
            "vips": ["203.0.113.25/32"],
            "ownedPrefixes": ["10.20.8.0/24"],
            "wildcardUDP": ["53"],
            "strictARP": true,
            "replyPath": "Off",
            "isolation": {"mode": "Isolated", "allowFrom": ["user"], "services": "Deny"},
            "localPorts": {"tcp": ["22"], "udp": []},
            "sourceGuard": "Drop",
            "trunk": {"enabled": true, "eniID": "eni-1", "unknownVlan": "Drop"},
        }))
        .unwrap();
        assert_eq!(spec.local_ports.unwrap().udp, Some(vec![]));
        let entry: RouteEntrySpec = serde_json::from_value(serde_json::json!({
            "nodeSelector": {"matchLabels": {"pool": "a"}},
            "destinations": ["172.30.0.0/16", "fd00:30::/48"],
            "nic": {"class": "mgmt"},
            "gateway": "10.20.0.1",
            "source": "10.20.0.10",
            "priority": 0,
            "mtu": 1400,
            "allow": ["DefaultRoute", "ControlPlane"],
        }))
        .unwrap();
        assert_eq!(entry.nic, NicReference::Class("mgmt".into()));
    }

    #[test]
    fn an_unknown_field_is_an_error() {
        let error = serde_json::from_value::<RouteEntrySpec>(serde_json::json!({
            "destinations": ["172.30.0.0/16"], "nic": {"class": "mgmt"}, "prio": 1,
        }))
        .unwrap_err();
        assert!(error.to_string().contains("unknown field `prio`"), "{error}");
    }
}
