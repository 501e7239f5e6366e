//! NicClass → [`NicConfig`].

use std::net::IpAddr;

use super::{Flaw, Reason, Violation, Violations, field, selector};
use crate::{
    api::{IsolationMode, NicClassSpec, Services},
    config::{NicConfig, NicMatch, PerFamily, Provenance},
};

/// The class `name` with `spec`, parsed.
///
/// # Errors
/// Every violation, with fields below `spec`.
pub fn nic_class(name: &str, spec: &NicClassSpec, from: Provenance) -> Result<NicConfig, Vec<Violation>> {
    let mut violations = Violations::default();
    selector::check(&mut violations, "spec.nodeSelector", spec.node_selector.as_ref());
    let config = nic(&mut violations, "spec", name, spec, from);
    violations.0.extend(unsupported(spec));
    violations.into_result(config)
}

/// The fields of a class below `base`, whether they stand in a NicClass or in a NodeRouteConfig.
pub(super) fn nic(
    violations: &mut Violations,
    base: &str,
    class: &str,
    spec: &NicClassSpec,
    from: Provenance,
) -> NicConfig {
    let matches = NicMatch {
        names: violations.each(&format!("{base}.match.names"), &spec.r#match.names, field::glob),
        macs: violations.each(&format!("{base}.match.macs"), &spec.r#match.macs, field::mac),
        subnets: violations.each(&format!("{base}.match.subnets"), &spec.r#match.subnets, field::cidr),
    };
    if spec.r#match == <_>::default() {
        violations.add(
            format!("{base}.match"),
            "",
            Flaw::new(Reason::EmptyMatch, "has no rule, and would match every NIC"),
        );
    }
    let network = spec.network.clone().unwrap_or_else(|| class.to_owned());
    if let Some(network) = &spec.network {
        violations.keep(format!("{base}.network"), network, field::object_name(network));
    }
    let owned = format!("{base}.ownedPrefixes");
    let owned_prefixes = violations.each(&owned, &spec.owned_prefixes, field::source_prefix);
    // not built yet, but a typing error in them is one all the same
    violations.each(&format!("{base}.vips"), &spec.vips, field::source_prefix);
    violations.each(&format!("{base}.wildcardUDP"), &spec.wildcard_udp, field::ports);
    for (protocol, list) in spec.local_ports.iter().flat_map(|ports| [("tcp", &ports.tcp), ("udp", &ports.udp)]) {
        violations.each(&format!("{base}.localPorts.{protocol}"), list.as_deref().unwrap_or_default(), field::ports);
    }
    NicConfig {
        class: class.to_owned(),
        network,
        matches,
        gateways: gateways(violations, &format!("{base}.gateways"), &spec.gateways),
        mode: spec.mode,
        reply_path: spec.reply_path,
        owned_prefixes,
        strict_arp: spec.strict_arp,
        source_guard: spec.source_guard,
        from,
    }
}

fn gateways(violations: &mut Violations, path: &str, texts: &[String]) -> PerFamily<Option<IpAddr>> {
    let mut gateways = PerFamily::default();
    for (index, text) in texts.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let Some(gateway) = violations.keep(&path, text, field::unicast_address(text)) else { continue };
        let slot = gateways.of_mut(gateway);
        if let Some(first) = slot {
            let flaw = Flaw::new(Reason::TwoGateways, format!("is a second gateway beside {first} of the same family"));
            violations.add(path, text, flaw);
        } else {
            *slot = Some(gateway);
        }
    }
    gateways
}

/// Fields of the contract whose feature this version does not have. They are refused rather than ignored: a user who
/// asks for isolation must not believe to have it.
pub fn unsupported(spec: &NicClassSpec) -> Vec<Violation> {
    let mut violations = Violations::default();
    let mut refuse = |asked: bool, field: &str, value: &str, feature: &str| {
        if asked {
            let flaw = Flaw::new(Reason::Unsupported, format!("asks for {feature}, which this version does not have"));
            violations.add(field, value, flaw);
        }
    };
    refuse(spec.isolation.mode == IsolationMode::Isolated, "spec.isolation.mode", "Isolated", "isolation of a network");
    refuse(
        !spec.isolation.allow_from.is_empty(),
        "spec.isolation.allowFrom",
        &spec.isolation.allow_from.join(","),
        "exceptions from isolation",
    );
    refuse(
        spec.isolation.services == Services::Deny,
        "spec.isolation.services",
        "Deny",
        "keeping Services out of a network",
    );
    let ports = spec.local_ports.as_ref();
    refuse(ports.is_some_and(|p| p.tcp.is_some()), "spec.localPorts.tcp", "", "a limit on local ports");
    refuse(ports.is_some_and(|p| p.udp.is_some()), "spec.localPorts.udp", "", "a limit on local ports");
    refuse(
        !spec.wildcard_udp.is_empty(),
        "spec.wildcardUDP",
        &spec.wildcard_udp.join(","),
        "correcting the source of UDP answers",
    );
    refuse(!spec.vips.is_empty(), "spec.vips", &spec.vips.join(","), "declared VIPs");
    refuse(spec.trunk.enabled, "spec.trunk.enabled", "true", "a trunk NIC");
    violations.0
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(spec: Value) -> Result<NicConfig, Vec<Violation>> {
        let from = Provenance { kind: "NicClass".into(), name: "mgmt".into(), uid: String::new(), generation: 0 };
        nic_class("mgmt", &serde_json::from_value(spec).unwrap(), from)
    }

    fn flaws(spec: Value) -> Vec<(String, Reason)> {
        parse(spec).unwrap_err().into_iter().map(|v| (v.field, v.reason)).collect()
    }

    #[test]
    fn a_class_is_parsed_with_one_gateway_per_family() {
        let config = parse(json!({
            "match": {"names": ["eth1"], "macs": ["02:00:00:00:00:01"], "subnets": ["10.20.0.0/24"]},
            "gateways": ["fe80::1", "10.20.0.1"],
            "ownedPrefixes": ["10.20.8.0/24"],
        }))
        .unwrap();
        assert_eq!(config.network, "mgmt");
        assert_eq!(config.gateways.v4, Some("10.20.0.1".parse().unwrap()));
        assert_eq!(config.gateways.v6, Some("fe80::1".parse().unwrap()));
        assert_eq!(config.owned_prefixes, ["10.20.8.0/24".parse().unwrap()]);
    }

    #[test]
    fn every_bad_field_is_found_at_once() {
        assert_eq!(
            flaws(json!({
                "match": {"names": ["eth[1]"], "macs": ["x"], "subnets": ["10.20.0.1/24"]},
                "network": "Mgmt",
                "gateways": ["10.20.0.1", "10.20.0.2", "nonsense"],
                "ownedPrefixes": ["0.0.0.0/0", "127.0.0.0/8"],
            })),
            [
                ("spec.match.names[0]", Reason::InvalidGlob),
                ("spec.match.macs[0]", Reason::InvalidMac),
                ("spec.match.subnets[0]", Reason::HostBits),
                ("spec.network", Reason::InvalidName),
                ("spec.ownedPrefixes[0]", Reason::InvalidCidr),
                ("spec.ownedPrefixes[1]", Reason::InvalidAddress),
                ("spec.gateways[1]", Reason::TwoGateways),
                ("spec.gateways[2]", Reason::InvalidAddress),
            ]
            .map(|(field, reason)| (field.to_owned(), reason))
        );
    }

    #[test]
    fn an_empty_match_would_match_everything() {
        assert_eq!(flaws(json!({"match": {}})), [("spec.match".to_owned(), Reason::EmptyMatch)]);
    }

    #[test]
    fn features_not_built_yet_are_refused_and_their_off_values_are_not() {
        let fields: Vec<_> = flaws(json!({
            "match": {"names": ["eth1"]},
            "vips": ["203.0.113.25/32"],
            "wildcardUDP": ["53"],
            "isolation": {"mode": "Isolated", "allowFrom": ["user"], "services": "Deny"},
            "localPorts": {"tcp": ["22"], "udp": []},
            "trunk": {"enabled": true},
        }))
        .into_iter()
        .map(|(field, reason)| {
            assert_eq!(reason, Reason::Unsupported, "{field}");
            field
        })
        .collect();
        assert_eq!(
            fields,
            [
                "spec.isolation.mode",
                "spec.isolation.allowFrom",
                "spec.isolation.services",
                "spec.localPorts.tcp",
                "spec.localPorts.udp",
                "spec.wildcardUDP",
                "spec.vips",
                "spec.trunk.enabled",
            ]
        );
        assert!(
            parse(json!({
                "match": {"names": ["eth1"]},
                "vips": [],
                "wildcardUDP": [],
                "isolation": {"mode": "Open", "allowFrom": [], "services": "Allow"},
                "localPorts": {},
                "trunk": {"enabled": false, "eniID": "", "unknownVlan": "Pass"},
            }))
            .is_ok()
        );
    }
}
