//! NodeRouteConfig → [`NodeConfig`].

use std::collections::HashMap;

use super::{
    Flaw, Reason, Violation, Violations, field,
    nic_class::nic,
    route_entry::{RouteFields, Routes},
};
use crate::{
    api::{Kind, NicClassSpec, NodeNic, NodeRouteConfigSpec, ObjectReference},
    config::{NodeConfig, Provenance, Refusal},
};

/// The configuration that `spec` states, taken as it is.
///
/// # Errors
/// Every violation, with fields below `spec`.
pub fn node_route_config(spec: &NodeRouteConfigSpec, own: &Provenance) -> Result<NodeConfig, Vec<Violation>> {
    let mut violations = Violations::default();
    let mut classes = HashMap::new();
    let mut nics = vec![];
    for (index, item) in spec.nics.iter().enumerate() {
        let base = format!("spec.nics[{index}]");
        let path = format!("{base}.class");
        violations.keep(&path, &item.class, field::object_name(&item.class));
        if let Some(first) = classes.insert(item.class.as_str(), index) {
            let flaw = Flaw::new(Reason::DuplicateObject, format!("is already the class of spec.nics[{first}]"));
            violations.add(path, &item.class, flaw);
        }
        nics.push(nic(&mut violations, &base, &item.class, &as_class(item), origin(item.from.as_ref(), own)));
    }
    let mut routes = Routes::default();
    for (index, route) in spec.routes.iter().enumerate() {
        let base = format!("spec.routes[{index}]");
        let fields = RouteFields {
            base: &base,
            destinations: vec![(format!("{base}.destination"), &route.destination)],
            nic: &route.nic,
            gateway: route.gateway.as_deref(),
            source: route.source.as_deref(),
            mtu: route.mtu,
            allow: &route.allow,
        };
        routes.add(&mut violations, &fields, &origin(route.from.as_ref(), own));
    }
    let routes = routes.finish(&mut violations);
    let refused = spec
        .refused
        .iter()
        .map(|refused| Refusal {
            from: origin(Some(&refused.from), own),
            destination: refused.destination.clone(),
            reason: refused.reason,
            message: refused.message.clone(),
        })
        .collect();
    violations.into_result(NodeConfig { nics, routes, refused })
}

fn as_class(nic: &NodeNic) -> NicClassSpec {
    NicClassSpec {
        r#match: nic.r#match.clone(),
        network: nic.network.clone(),
        gateways: nic.gateways.clone(),
        mode: nic.mode,
        owned_prefixes: nic.owned_prefixes.clone(),
        strict_arp: nic.strict_arp,
        reply_path: nic.reply_path,
        source_guard: nic.source_guard,
        ..NicClassSpec::default()
    }
}

fn origin(from: Option<&ObjectReference>, own: &Provenance) -> Provenance {
    from.map_or_else(
        || own.clone(),
        |ObjectReference { kind, name, uid, generation }| Provenance {
            kind: Kind::to_string(kind),
            name: name.clone(),
            uid: uid.clone(),
            generation: *generation,
        },
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::config::NicRef;

    fn parse(spec: Value) -> Result<NodeConfig, Vec<Violation>> {
        let own = Provenance { kind: "NodeRouteConfig".into(), name: "n1".into(), uid: String::new(), generation: 0 };
        node_route_config(&serde_json::from_value(spec).unwrap(), &own)
    }

    #[test]
    fn items_keep_their_origin_and_default_to_the_config_itself() {
        let config = parse(json!({
            "nics": [{"class": "mgmt", "match": {"names": ["eth1"]}, "gateways": ["10.20.0.1"]}],
            "routes": [
                {"destination": "172.30.0.0/16", "nic": {"class": "mgmt"}, "from": {"name": "services", "generation": 4}},
                {"destination": "fd00:30::/48", "nic": {"name": "eth1"}},
            ],
            "refused": [{"from": {"name": "x"}, "destination": "0.0.0.0/0", "reason": "ProtectedDestination", "message": "m"}],
        }))
        .unwrap();
        assert_eq!(config.nics[0].from.to_string(), "NodeRouteConfig/n1");
        assert_eq!(config.routes[0].from.to_string(), "RouteEntry/services");
        assert_eq!(config.routes[0].from.generation, 4);
        assert_eq!(config.routes[1].nic, NicRef::Name("eth1".into()));
        assert_eq!(config.refused[0].reason, Reason::ProtectedDestination);
    }

    #[test]
    fn fields_are_named_where_they_stand() {
        let violations = parse(json!({
            "nics": [
                {"class": "mgmt", "match": {"names": ["eth1"]}},
                {"class": "mgmt", "match": {"macs": ["x"]}},
            ],
            "routes": [
                {"destination": "0.0.0.0/1", "nic": {"class": "mgmt"}},
                {"destination": "172.30.0.1/16", "nic": {"class": "mgmt"}, "gateway": "fe80::1"},
            ],
        }))
        .unwrap_err();
        assert_eq!(
            violations.iter().map(|v| (v.field.as_str(), v.reason)).collect::<Vec<_>>(),
            [
                ("spec.nics[1].class", Reason::DuplicateObject),
                ("spec.nics[1].match.macs[0]", Reason::InvalidMac),
                ("spec.routes[1].destination", Reason::HostBits),
                ("spec.routes[0].destination", Reason::ProtectedDestination),
            ]
        );
    }
}
