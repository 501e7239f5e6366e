//! `nicpath check` on bad manifests and on good ones.

use std::{
    path::Path,
    process::{Command, Output},
};

use tests::{
    TwoNic,
    product::{Product, described},
};

use crate::{
    CLASS, ENTRY, MGMT, USER,
    host::{nicpath, stderr, stdout},
    node,
};

/// What is wrong, the file's text, and the parts of the one line that must say so.
type Bad = (&'static str, String, &'static [&'static str]);

fn bad_manifests() -> Vec<Bad> {
    let entry = |spec: &str| format!("{ENTRY}metadata: {{name: services}}\nspec: {{{spec}}}\n");
    let class = |spec: &str| format!("{CLASS}metadata: {{name: mgmt}}\nspec: {{{spec}}}\n");
    let with_mgmt = |spec: &str| format!("{MGMT}---\n{}", entry(spec));
    let by_mgmt = |destinations: &str| with_mgmt(&format!("destinations: [{destinations}], nic: {{class: mgmt}}"));
    vec![
        (
            "no CIDR",
            by_mgmt("172.30.0.0/33"),
            &["document 2", "services", "spec.destinations[0]", "172.30.0.0/33", "prefix length"],
        ),
        ("no address", by_mgmt("172.30.0/16"), &["document 2", "spec.destinations[0]", "172.30.0/16", "write"]),
        (
            "host bits",
            by_mgmt("\"fd00:31::/48\", 172.30.0.1/16"),
            &["document 2", "spec.destinations[1]", "172.30.0.1/16", "172.30.0.0/16"],
        ),
        (
            "an IPv4 address as IPv6",
            by_mgmt("\"::ffff:10.9.0.0/112\""),
            &["spec.destinations[0]", "::ffff:10.9.0.0/112", "IPv4"],
        ),
        (
            "an unknown field",
            with_mgmt("destinations: [172.30.0.0/16], nic: {class: mgmt}, metric: 5"),
            &["spec.metric", "5", "known here", "mtu"],
        ),
        (
            "a field in the wrong place",
            class("match: {names: [eth1], gateway: 10.20.0.1}"),
            &["document 1", "spec.match.gateway", "10.20.0.1"],
        ),
        (
            "a missing kind",
            format!("apiVersion: nicpath.dev/v1alpha1\nmetadata: {{name: x}}\nspec: {{}}\n{}", ""),
            &["document 1", "kind", "nicpath.dev/v1alpha1"],
        ),
        (
            "another kind",
            "apiVersion: nicpath.dev/v1alpha1\nkind: ConfigMap\nmetadata: {name: x}\n".into(),
            &["document 1", "ConfigMap", "nicpath.dev/v1alpha1"],
        ),
        (
            "a missing name",
            format!("{ENTRY}metadata: {{}}\nspec: {{destinations: [172.30.0.0/16], nic: {{name: eth1}}}}\n"),
            &["metadata.name", "add"],
        ),
        ("a missing field", with_mgmt("nic: {class: mgmt}"), &["document 2", "destinations", "add"]),
        (
            "a number where a list belongs",
            with_mgmt("destinations: 5, nic: {class: mgmt}"),
            &["spec.destinations: 5", "write a list"],
        ),
        (
            "both class and name",
            with_mgmt("destinations: [172.30.0.0/16], nic: {class: mgmt, name: eth1}"),
            &["document 2", "spec.nic"],
        ),
        (
            "an unknown word",
            class("match: {names: [eth1]}, mode: Watch"),
            &["document 1", "spec.mode", "Watch", "Observe"],
        ),
        ("no way to match", class("match: {}"), &["spec.match", "names, macs and subnets"]),
        (
            "no MAC",
            class("match: {macs: [\"02:00:00:00:01\"]}"),
            &["spec.match.macs[0]", "02:00:00:00:01", "hexadecimal"],
        ),
        (
            "a gateway that is none",
            class("match: {names: [eth1]}, gateways: [10.20.0.0/24]"),
            &["spec.gateways[0]", "10.20.0.0/24", "write"],
        ),
        (
            "two gateways of one family",
            class("match: {names: [eth1]}, gateways: [10.20.0.1, 10.20.0.2]"),
            &["spec.gateways[1]", "10.20.0.2", "one gateway"],
        ),
        (
            "a gateway of another family",
            with_mgmt("destinations: [172.30.0.0/16], nic: {class: mgmt}, gateway: \"fd00:20::1\""),
            &["spec.gateway", "fd00:20::1", "family"],
        ),
        (
            "a destination that holds its gateway",
            with_mgmt("destinations: [10.20.0.0/16], nic: {class: mgmt}, gateway: 10.20.0.1"),
            &["10.20.0.0/16", "10.20.0.1", "gateway"],
        ),
        (
            "an MTU that is none",
            with_mgmt("destinations: [172.30.0.0/16], nic: {class: mgmt}, mtu: 20"),
            &["spec.mtu", "20", "68"],
        ),
        ("the default route", by_mgmt("0.0.0.0/0"), &["spec.destinations[0]", "0.0.0.0/0", "allow"]),
        ("the metadata address", by_mgmt("169.254.169.254/32"), &["spec.destinations[0]", "169.254.169.254", "allow"]),
        (
            "a class that is not there",
            entry("destinations: [172.30.0.0/16], nic: {class: storage}"),
            &["document 1", "spec.nic.class", "storage", "NicClass"],
        ),
        (
            "two classes for one NIC",
            format!("{USER}---\n{CLASS}metadata: {{name: second}}\nspec: {{match: {{names: [eth0]}}}}\n"),
            &["document 2", "second", "spec.match.names[0]", "eth0", "NicClass/user"],
        ),
        ("two objects of one name", format!("{MGMT}---\n{MGMT}"), &["document 2", "mgmt", "rename"]),
        (
            "two entries for one destination",
            format!(
                "{MGMT}---\n{}---\n{}",
                entry("destinations: [172.30.0.0/16], nic: {class: mgmt}"),
                entry("destinations: [172.30.0.0/16], nic: {class: mgmt}").replace("services", "services-too")
            ),
            &["document 3", "services-too", "172.30.0.0/16", "priority"],
        ),
        ("a key twice", format!("{MGMT}spec: {{match: {{names: [eth2]}}}}\n"), &["document 1", "spec", "keep one"]),
        (
            "a field of a later version",
            class("match: {names: [eth1]}, vips: [203.0.113.25/32]"),
            &["spec.vips", "remove"],
        ),
        ("not YAML", "kind: [\n".into(), &["not YAML", "correct the syntax"]),
        ("a tab", "kind: NicClass\nspec:\n\tmatch: {}\n".into(), &["bad.yaml:3", "not YAML"]),
    ]
}

#[test]
fn each_bad_manifest_is_told_with_file_document_field_value_and_cure() {
    let (_node, product) = node();
    let all = bad_manifests();
    assert!(all.len() >= 20);
    let mut missed = Vec::new();
    for (what, text, parts) in all {
        product.manifests(&[("bad.yaml", &text)]);
        let output = product_check(&product, &[]);
        let said = stdout(&output);
        println!("{what}:\n  {}", said.trim_end());
        let told = said.starts_with("bad.yaml:") && parts.iter().all(|part| said.contains(part));
        // one mistake, one line
        if output.status.code() != Some(1) || !told || said.lines().count() != 1 {
            missed.push(format!("{what}: {parts:?} in {}", described(&output)));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// `nicpath check` takes no state directory: it needs no node.
fn product_check(product: &Product, arguments: &[&str]) -> Output {
    let mut command = Command::new(product.command("status", &[]).get_program());
    command.args(["check", "--manifests"]).arg(product.manifest_dir()).args(arguments).output().unwrap()
}

#[test]
fn halves_of_the_default_route_in_two_objects_are_refused_in_both() {
    let (_node, product) = node();
    let half = |name: &str, destination: &str| {
        format!("{ENTRY}metadata: {{name: {name}}}\nspec: {{destinations: [{destination}], nic: {{class: mgmt}}}}\n")
    };
    for (low, high) in [("0.0.0.0/1", "128.0.0.0/1"), ("\"::/1\"", "\"8000::/1\"")] {
        let (first, second) = (half("low", low), half("high", high));
        product.manifests(&[("a.yaml", MGMT), ("b.yaml", &first), ("c.yaml", &second)]);
        let output = product_check(&product, &[]);
        let said = stdout(&output);
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 2), "{}", described(&output));
        for (file, name, destination) in [("b.yaml", "low", low), ("c.yaml", "high", high)] {
            let found = said.lines().any(|line| {
                line.starts_with(file)
                    && line.contains(name)
                    && line.contains(destination.trim_matches('"'))
                    && line.contains("allow")
            });
            assert!(found, "{said}");
        }
    }
}

#[test]
fn all_errors_of_all_files_are_told_at_once_and_as_json() {
    let (_node, product) = node();
    let bad = |spec: &str| format!("{ENTRY}metadata: {{name: services}}\nspec: {{{spec}}}\n");
    product.manifests(&[
        ("a.yaml", &bad("destinations: [172.30.0.1/16, 10.0.0.0/40], nic: {class: mgmt}")),
        ("b.yaml", "kind: ["),
        ("c.yaml", MGMT),
    ]);
    let output = product_check(&product, &["-o", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let errors = report["errors"].as_array().unwrap();
    let found: Vec<_> = errors.iter().map(|e| (e["file"].as_str().unwrap(), e["reason"].as_str().unwrap())).collect();
    assert_eq!(found, [("a.yaml", "HostBits"), ("a.yaml", "InvalidCidr"), ("b.yaml", "NotYaml")], "{report}");
    let first = &errors[0];
    assert_eq!(
        (&first["document"], &first["field"], &first["value"], &first["line"]),
        (&1.into(), &"spec.destinations[0]".into(), &"172.30.0.1/16".into(), &4.into()),
        "{first}"
    );
}

#[test]
fn check_on_the_host_finds_what_only_the_host_can_tell() {
    let lab = TwoNic::builder().build();
    let product = Product::new(&lab.node);
    let class = |spec: &str| format!("{CLASS}metadata: {{name: mgmt}}\nspec: {{{spec}}}\n");
    let entry = |spec: &str| format!("{MGMT}---\n{ENTRY}metadata: {{name: services}}\nspec: {{{spec}}}\n");
    let cases: [(&str, String, &[&str]); 8] = [
        (
            "a gateway that is not on the NIC",
            class("match: {names: [eth1]}, gateways: [10.10.0.1]"),
            &["document 1", "spec.gateways[0]", "10.10.0.1", "eth1"],
        ),
        ("no such NIC", class("match: {names: [eth7]}"), &["document 1", "spec.match", "no NIC"]),
        ("two NICs match", class("match: {names: [\"eth*\"]}"), &["document 1", "spec.match", "eth0, eth1", "one NIC"]),
        (
            "a route's gateway that is not on the NIC",
            entry("destinations: [172.30.0.0/16], nic: {class: mgmt}, gateway: 10.10.0.1"),
            &["document 2", "spec.gateway", "10.10.0.1"],
        ),
        (
            "a route by a NIC that is not there",
            entry("destinations: [172.30.0.0/16], nic: {name: eth7}"),
            &["document 2", "spec.nic", "eth7"],
        ),
        (
            "a source that is not here",
            entry("destinations: [172.30.0.0/16], nic: {class: mgmt}, source: 10.20.0.99"),
            &["document 2", "spec.source", "10.20.0.99"],
        ),
        (
            "an address of the node",
            entry("destinations: [10.20.0.10/32], nic: {class: mgmt}"),
            &["document 2", "spec.destinations[0]", "10.20.0.10", "allow"],
        ),
        (
            "two classes that match one NIC",
            format!("{MGMT}---\n{CLASS}metadata: {{name: second}}\nspec: {{match: {{subnets: [10.20.0.0/24]}}}}\n"),
            &["second", "spec.match", "eth1"],
        ),
    ];
    for (what, text, parts) in cases {
        product.manifests(&[("bad.yaml", &text)]);
        assert!(product_check(&product, &[]).status.success(), "{what}: nothing is wrong without a host");
        let mut command = nicpath(&lab.node, &product, &["check", "--host", "--manifests"]);
        let output = command.arg(product.manifest_dir()).output().unwrap();
        let said = stdout(&output);
        println!("{what}:\n  {}", said.trim_end());
        assert_eq!(output.status.code(), Some(1), "{what}: {}", described(&output));
        assert!(said.lines().any(|line| parts.iter().all(|part| line.contains(part))), "{what}: {parts:?} in\n{said}");
    }
}

#[test]
fn the_samples_are_good_on_their_host_and_without() {
    let lab = TwoNic::builder().build();
    let product = Product::new(&lab.node);
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("deploy/samples/two-nics");
    for more in [&[][..], &["--host"]] {
        let mut command = nicpath(&lab.node, &product, &["check", "--manifests"]);
        let output = command.arg(&samples).args(more).output().unwrap();
        assert!(output.status.success(), "{}", described(&output));
        assert_eq!((stdout(&output), stderr(&output)), (String::new(), String::new()));
    }
}
