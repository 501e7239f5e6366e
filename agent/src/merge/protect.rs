//! Destinations that are protected by what is known of the host and the cluster.

use std::collections::BTreeMap;

use ipnet::IpNet;

use crate::{
    api::{
        Allow, Reason,
        validate::{is_default, overlap},
    },
    config::{NicRef, NodeConfig, Refusal, RouteConfig},
};

/// What routes may cover only with `allow: [ControlPlane]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Protected {
    /// API server end points.
    pub control_plane: Vec<IpNet>,
    /// Addresses of nodes.
    pub node_addresses: Vec<IpNet>,
    /// Pod and service ranges.
    pub cluster_ranges: Vec<IpNet>,
    /// DNS servers of the node.
    pub dns: Vec<IpNet>,
    /// Metadata addresses besides 169.254.169.254, which is protected everywhere.
    pub metadata: Vec<IpNet>,
    /// On-link subnets of managed NICs; protected from routes by NICs of other networks.
    pub networks: Vec<NetworkSubnet>,
    /// The network of each managed NIC by interface name, for routes that name a NIC rather than a class. A NIC that
    /// is absent is in no network: every subnet in `networks` is another network's to it.
    pub nic_networks: BTreeMap<String, String>,
}

/// An on-link subnet of a NIC.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NetworkSubnet {
    pub network: String,
    pub subnet: IpNet,
}

/// `config` without the routes that overlap something protected (hold it or lie in it) and do not say
/// `allow: [ControlPlane]`; they are in `refused`. The default route and its halves are left to `DefaultRoute`, which
/// [`super::merge`] has judged: every more specific route wins over them.
pub fn protect(mut config: NodeConfig, protected: &Protected) -> NodeConfig {
    let class_networks: BTreeMap<&str, &str> =
        config.nics.iter().map(|nic| (nic.class.as_str(), nic.network.as_str())).collect();
    let mut refused = vec![];
    config.routes.retain(|route| {
        let network = match &route.nic {
            NicRef::Class(class) => class_networks.get(class.as_str()).copied(),
            NicRef::Name(name) => protected.nic_networks.get(name).map(String::as_str),
        };
        let Some(message) = reason(route, network, protected) else { return true };
        refused.push(Refusal {
            from: route.from.clone(),
            destination: Some(route.destination.to_string()),
            reason: Reason::ProtectedDestination,
            message,
        });
        false
    });
    config.refused.append(&mut refused);
    config
}

fn reason(route: &RouteConfig, network: Option<&str>, protected: &Protected) -> Option<String> {
    if route.allow.contains(&Allow::ControlPlane) || is_default(route.destination) {
        return None;
    }
    let overlaps = |net: &&IpNet| overlap(**net, route.destination);
    let groups = [
        (&protected.control_plane, "the API server"),
        (&protected.node_addresses, "a node's address"),
        (&protected.cluster_ranges, "a pod or service range"),
        (&protected.dns, "a DNS server"),
        (&protected.metadata, "a metadata address"),
    ];
    for (nets, what) in groups {
        if let Some(net) = nets.iter().find(overlaps) {
            return Some(format!("covers {net}, {what}; allow: [ControlPlane] would let it"));
        }
    }
    let other = protected
        .networks
        .iter()
        .find(|other| Some(other.network.as_str()) != network && overlap(other.subnet, route.destination))?;
    Some(format!("covers {}, a subnet of network {}; allow: [ControlPlane] would let it", other.subnet, other.network))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{NicConfig, NicMatch, PerFamily, Provenance},
        inventory::Mac,
    };

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn from(kind: &str, name: &str) -> Provenance {
        Provenance { kind: kind.into(), name: name.into(), uid: String::new(), generation: 0 }
    }

    fn nic(class: &str) -> NicConfig {
        NicConfig {
            class: class.into(),
            network: format!("{class}-net"),
            matches: NicMatch { macs: vec![Mac([2, 0, 0, 0, 0, 1])], ..NicMatch::default() },
            gateways: PerFamily::default(),
            mode: <_>::default(),
            reply_path: <_>::default(),
            owned_prefixes: vec![],
            strict_arp: false,
            source_guard: <_>::default(),
            from: from("NicClass", class),
        }
    }

    fn route(destination: &str, nic: NicRef, allow: &[Allow]) -> RouteConfig {
        RouteConfig {
            destination: net(destination),
            nic,
            gateway: None,
            source: None,
            mtu: None,
            allow: allow.iter().copied().collect(),
            from: from("RouteEntry", "r"),
        }
    }

    fn protected() -> Protected {
        Protected {
            control_plane: vec![net("10.10.0.100/32"), net("fd00:10::100/128")],
            node_addresses: vec![net("10.10.0.11/32")],
            cluster_ranges: vec![net("10.96.0.0/12")],
            dns: vec![net("10.30.0.53/32")],
            metadata: vec![net("100.100.100.200/32")],
            networks: vec![
                NetworkSubnet { network: "mgmt-net".into(), subnet: net("10.20.0.0/24") },
                NetworkSubnet { network: "user-net".into(), subnet: net("10.11.0.0/24") },
            ],
            nic_networks: [("eth1".to_owned(), "mgmt-net".to_owned())].into(),
        }
    }

    fn mgmt() -> NicRef {
        NicRef::Class("mgmt".into())
    }

    fn is_refused(route: RouteConfig) -> bool {
        let config = NodeConfig { nics: vec![nic("mgmt"), nic("user")], routes: vec![route], refused: vec![] };
        let config = protect(config, &protected());
        assert_eq!(config.routes.len() + config.refused.len(), 1);
        config.routes.is_empty()
    }

    #[test]
    fn what_holds_or_lies_in_a_protected_item_is_refused_unless_it_says_so() {
        for destination in [
            "10.10.0.100/32",
            "10.10.0.0/24",
            "fd00:10::/64",
            "10.10.0.11/32",
            "10.96.0.10/32",
            "10.0.0.0/8",
            "10.30.0.0/16",
            "100.64.0.0/10",
        ] {
            assert!(is_refused(route(destination, mgmt(), &[Allow::DefaultRoute])), "{destination}");
            assert!(!is_refused(route(destination, mgmt(), &[Allow::ControlPlane])), "{destination}");
        }
        assert!(!is_refused(route("172.30.0.0/16", mgmt(), &[])));
    }

    #[test]
    fn subnets_of_other_networks_are_protected_and_those_of_the_own_are_not() {
        assert!(is_refused(route("10.11.0.0/24", mgmt(), &[])));
        assert!(is_refused(route("10.11.0.128/25", mgmt(), &[])));
        assert!(is_refused(route("10.11.0.0/16", mgmt(), &[])));
        assert!(!is_refused(route("10.20.0.128/25", mgmt(), &[])));
        assert!(!is_refused(route("10.20.0.0/25", NicRef::Name("eth1".into()), &[])));
        assert!(is_refused(route("10.11.0.0/25", NicRef::Name("eth1".into()), &[])));
        assert!(is_refused(route("10.20.0.0/25", NicRef::Name("eth7".into()), &[])));
    }

    #[test]
    fn a_default_route_that_was_allowed_is_not_asked_for_the_control_plane_too() {
        assert!(!is_refused(route("0.0.0.0/0", mgmt(), &[Allow::DefaultRoute])));
        assert!(!is_refused(route("::/0", mgmt(), &[Allow::DefaultRoute])));
    }

    #[test]
    fn protecting_twice_is_protecting_once() {
        let config = NodeConfig {
            nics: vec![nic("mgmt")],
            routes: vec![route("10.0.0.0/8", mgmt(), &[]), route("172.30.0.0/16", mgmt(), &[])],
            refused: vec![],
        };
        let once = protect(config, &protected());
        assert_eq!(protect(once.clone(), &protected()), once);
    }
}
