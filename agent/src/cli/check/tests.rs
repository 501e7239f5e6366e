use super::*;
use crate::config::Provenance;

const CLASSES: &str = "
apiVersion: nicpath.dev/v1alpha1
kind: NicClass
metadata: {name: mgmt}
spec:
  match: {names: [eth1]}
  gateways:
    - 10.20.0.1
    - fd00:20::1
";

fn entry(name: &str, spec: &str) -> String {
    format!("---\napiVersion: nicpath.dev/v1alpha1\nkind: RouteEntry\nmetadata: {{name: {name}}}\nspec:\n{spec}")
}

fn class(name: &str, spec: &str) -> String {
    entry(name, spec).replace("RouteEntry", "NicClass")
}

fn check_text(text: &str, host: Option<HostRefusals<'_>>) -> Vec<ManifestError> {
    let files = [file("a-classes.yaml", CLASSES), file("routes.yaml", text)];
    check_files(&files, &NodeIdentity { name: "n1".into(), labels: BTreeMap::new() }, host)
}

fn file(name: &str, text: &str) -> ManifestFile {
    ManifestFile { name: name.into(), text: text.into() }
}

fn places(errors: &[ManifestError]) -> Vec<(&str, Option<usize>, &str, &str, Reason)> {
    errors.iter().map(|e| (e.name.as_str(), e.line, e.field.as_str(), e.value.as_str(), e.reason)).collect()
}

#[test]
fn good_manifests_have_no_error() {
    let text = entry("a", "  destinations: [172.30.0.0/16]\n  nic: {class: mgmt}\n");
    assert_eq!(check_text(&text, None), []);
}

#[test]
fn a_class_that_does_not_exist_is_told_with_those_that_do() {
    let text = entry("a", "  destinations: [172.30.0.0/16]\n  nic:\n    class: mgnt\n");
    let errors = check_text(&text, None);
    assert_eq!(places(&errors), [("a", Some(8), "spec.nic.class", "mgnt", Reason::UnknownNic)]);
    assert!(errors[0].cure.contains("mgmt"), "{}", errors[0]);
}

#[test]
fn halves_of_the_default_in_two_objects_are_told_at_both_even_for_a_pool_not_named() {
    for selector in ["", "  nodeSelector: {matchLabels: {pool: a}}\n"] {
        let text = entry("a", &format!("  destinations: [0.0.0.0/2]\n  nic: {{name: eth1}}\n{selector}"))
            + &entry("b", &format!("  nic: {{name: eth1}}\n  destinations: [64.0.0.0/2]\n{selector}"));
        let errors = check_text(&text, None);
        let found: Vec<_> = errors.iter().map(|e| (e.name.as_str(), e.field.as_str(), e.reason)).collect();
        let reason = Reason::ProtectedDestination;
        assert_eq!(found, [("a", "spec.destinations[0]", reason), ("b", "spec.destinations[0]", reason)]);
    }
    let apart =
        entry("a", "  destinations: [0.0.0.0/2]\n  nic: {name: eth1}\n  nodeSelector: {matchLabels: {pool: a}}\n")
            + &entry(
                "b",
                "  destinations: [64.0.0.0/2]\n  nic: {name: eth1}\n  nodeSelector: {matchLabels: {pool: b}}\n",
            );
    assert_eq!(check_text(&apart, None), []);
}

#[test]
fn one_destination_twice_is_an_error_unless_a_priority_decides() {
    let spec = "  destinations: [10.9.0.0/16, 172.30.0.0/16]\n  nic: {class: mgmt}\n";
    let other = "  destinations:\n  - 172.30.0.0/16\n  nic: {class: mgmt}\n";
    let errors = check_text(&(entry("a", spec) + &entry("b", other)), None);
    let reason = Reason::DuplicateDestination;
    assert_eq!(places(&errors), [("b", Some(14), "spec.destinations[0]", "172.30.0.0/16", reason)]);
    let decided = entry("a", spec) + &entry("b", &format!("{other}  priority: 5\n"));
    assert_eq!(check_text(&decided, None), []);
}

#[test]
fn two_classes_that_name_one_nic_are_told_with_both_places() {
    let errors = check_text(&class("other", "  match:\n    names: [\"ens*\", eth1]\n"), None);
    assert_eq!(places(&errors), [("other", Some(7), "spec.match.names[1]", "eth1", Reason::ClaimedTwice)]);
    assert!(errors[0].message.contains("NicClass/mgmt at a-classes.yaml:2: document 1"), "{}", errors[0]);
}

#[test]
fn classes_that_exclude_each_other_may_name_one_nic() {
    for (a, b) in [
        ("  match: {names: [eth5], subnets: [10.20.0.0/24]}\n", "  match: {names: [eth5], subnets: [10.30.0.0/24]}\n"),
        (
            "  match: {names: [eth5], macs: [\"02:00:00:00:00:01\"]}\n",
            "  match: {names: [eth5], macs: [\"02:00:00:00:00:02\"]}\n",
        ),
        (
            "  match: {names: [eth5]}\n  nodeSelector: {matchLabels: {pool: a}}\n",
            "  match: {names: [eth5]}\n  nodeSelector: {matchLabels: {pool: b}}\n",
        ),
    ] {
        assert_eq!(check_text(&(class("x", a) + &class("y", b)), None), []);
    }
}

#[test]
fn a_class_for_other_nodes_is_an_error_on_this_host_only() {
    let text = class("other", "  match: {names: [eth5]}\n  nodeSelector: {matchLabels: {pool: b}}\n")
        + &entry("a", "  destinations: [172.30.0.0/16]\n  nic: {class: other}\n");
    assert_eq!(check_text(&text, None), []);
    let errors = check_text(&text, Some(&|_| vec![]));
    assert_eq!(
        errors.iter().map(|e| (e.field.as_str(), e.reason)).collect::<Vec<_>>(),
        [("spec.nic", Reason::UnknownNic)]
    );
}

#[test]
fn what_the_host_refuses_is_told_at_the_field() {
    let refusal = |kind: &str, name: &str, destination: Option<&str>, reason: Reason, message: &str| Refusal {
        from: Provenance { kind: kind.into(), name: name.into(), uid: String::new(), generation: 0 },
        destination: destination.map(str::to_owned),
        reason,
        message: message.into(),
    };
    let text = entry("a", "  destinations: [172.30.0.0/16]\n  gateway: 10.9.9.9\n  nic: {class: mgmt}\n");
    let host = |config: &NodeConfig| {
        assert_eq!(config.routes.len(), 1);
        vec![
            refusal("NicClass", "mgmt", None, Reason::NoSuchNic, "no NIC matches"),
            refusal("NicClass", "mgmt", None, Reason::GatewayNotOnNic, "fd00:20::1 is in no subnet of eth1"),
            refusal("RouteEntry", "a", Some("172.30.0.0/16"), Reason::GatewayNotOnNic, "10.9.9.9 is not on eth1"),
            refusal("RouteEntry", "a", Some("172.30.0.0/16"), Reason::Conflict, "a foreign route"),
        ]
    };
    let errors = check_text(&text, Some(&host));
    assert_eq!(
        places(&errors),
        [
            ("mgmt", Some(6), "spec.match", "{\"names\":[\"eth1\"]}", Reason::NoSuchNic),
            ("mgmt", Some(9), "spec.gateways[1]", "fd00:20::1", Reason::GatewayNotOnNic),
            ("a", Some(6), "spec.destinations[0]", "172.30.0.0/16", Reason::Conflict),
            ("a", Some(7), "spec.gateway", "10.9.9.9", Reason::GatewayNotOnNic),
        ]
    );
    assert_eq!(errors[1].file, "a-classes.yaml");
}

#[test]
fn a_refused_route_of_a_node_route_config_is_told_where_it_stands() {
    let text = "---\napiVersion: nicpath.dev/v1alpha1\nkind: NodeRouteConfig\nmetadata: {name: n1}\nspec:\n  routes:\n  - nic: {name: eth1}\n    destination: 172.30.0.0/16\n    from: {name: gone}\n";
    let host = |config: &NodeConfig| {
        let route = &config.routes[0];
        vec![Refusal {
            from: route.from.clone(),
            destination: Some(route.destination.to_string()),
            reason: Reason::UnknownNic,
            message: "no NIC eth1".into(),
        }]
    };
    let errors = check_text(text, Some(&host));
    let expected = ("n1", Some(8), "spec.routes[0].destination", "172.30.0.0/16", Reason::UnknownNic);
    assert_eq!(places(&errors), [expected]);
}

#[test]
fn the_text_has_one_line_per_error_and_json_every_part() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("r.yaml"), entry("a", "  destinations: [172.30.0.1/16]\n  nic: {class: mgmt}\n"))
        .unwrap();
    let report = check(dir.path(), &NodeIdentity::default(), None);
    assert_eq!(
        report.to_string(),
        "r.yaml:6: document 1 (RouteEntry/a): spec.destinations[0]: 172.30.0.1/16: has bits set beyond its prefix \
         length of 16: write 172.30.0.0/16, or 172.30.0.1/32 for that one address\n"
    );
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["errors"][0]["reason"], "HostBits");
    assert_eq!(json["errors"][0]["line"], 6);
    assert!(check(&dir.path().join("gone"), &NodeIdentity::default(), None).errors[0].message.contains("No such file"));
}

#[test]
fn the_samples_are_good() {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/samples/two-nics");
    let report = check(&samples, &NodeIdentity::default(), None);
    assert_eq!(report, Report::default());
}
