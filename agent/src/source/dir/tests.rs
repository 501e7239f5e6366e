use std::os::unix::{ffi::OsStrExt as _, fs::symlink};

use super::*;
use crate::source::Origin;

fn file(name: &str, text: &str) -> ManifestFile {
    ManifestFile { name: name.to_owned(), text: text.to_owned() }
}

fn entry(name: &str, spec: &str) -> String {
    format!("apiVersion: nicpath.dev/v1alpha1\nkind: RouteEntry\nmetadata:\n  name: {name}\nspec:\n{spec}")
}

fn class(name: &str, spec: &str) -> String {
    entry(name, spec).replace("RouteEntry", "NicClass")
}

const GOOD: &str = "  destinations: [172.30.0.0/16]\n  nic: {class: mgmt}\n";

/// A bad manifest, and what must be said about it: line, field, reason, and a word of message or cure.
struct Bad {
    what: &'static str,
    text: String,
    found: Vec<(usize, &'static str, Reason, &'static str)>,
}

fn bad(what: &'static str, text: impl Into<String>, found: &[(usize, &'static str, Reason, &'static str)]) -> Bad {
    Bad { what, text: text.into(), found: found.to_vec() }
}

fn bad_manifests() -> Vec<Bad> {
    use Reason::*;
    vec![
        bad("not YAML", "a: [1,\nb: 2\n", &[(1, "", NotYaml, "bracket")]),
        bad("a tab", "spec:\n\tmtu: 1400\n", &[(2, "", NotYaml, "tabs")]),
        bad("a byte order mark", "\u{feff}kind: RouteEntry\n", &[(1, "", ByteOrderMark, "without")]),
        bad("a list", "- kind: RouteEntry\n", &[(1, "", WrongType, "mapping")]),
        bad("a sentence", "hello\n", &[(1, "", WrongType, "mapping")]),
        bad(
            "missing kind",
            "apiVersion: nicpath.dev/v1alpha1\nmetadata: {name: a}\n",
            &[(1, "kind", UnknownKind, "NicClass, RouteEntry, NodeRouteConfig")],
        ),
        bad(
            "a foreign kind",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n",
            &[(1, "apiVersion", UnknownKind, "nicpath.dev/v1alpha1"), (2, "kind", UnknownKind, "RouteEntry")],
        ),
        bad(
            "a version of the future",
            "apiVersion: nicpath.dev/v2\nkind: RouteEntry\n",
            &[(1, "apiVersion", UnknownKind, "nicpath.dev/v1alpha1")],
        ),
        bad(
            "no metadata and no spec",
            "apiVersion: nicpath.dev/v1alpha1\nkind: RouteEntry\n",
            &[(1, "metadata", MissingField, "add"), (1, "spec", MissingField, "add")],
        ),
        bad(
            "no name",
            entry("x", GOOD).replace("name: x", "labels: {a: b}"),
            &[(4, "metadata.name", MissingField, "add")],
        ),
        bad("a bad name", entry("Bad_Name", GOOD), &[(4, "metadata.name", InvalidName, "lower case")]),
        bad(
            "a namespace",
            entry("x\n  namespace: default", GOOD),
            &[(5, "metadata.namespace", UnknownField, "remove it")],
        ),
        bad(
            "a misspelt metadata field",
            entry("x\n  lables: {a: b}", GOOD),
            &[(5, "metadata.lables", UnknownField, "labels")],
        ),
        bad(
            "an unknown top level field",
            entry("x", GOOD) + "specs: {}\n",
            &[(8, "specs", UnknownField, "apiVersion, kind, metadata, spec")],
        ),
        bad(
            "an unknown field",
            entry("x", "  destinations: [172.30.0.0/16]\n  nic: {class: mgmt}\n  prio: 1\n"),
            &[(8, "spec.prio", UnknownField, "priority")],
        ),
        bad(
            "an unknown field beside a bad value",
            entry("x", "  destinations: [172.30.0.1/16]\n  nic: {class: mgmt}\n  prio: 1\n"),
            &[(8, "spec.prio", UnknownField, "priority"), (6, "spec.destinations[0]", HostBits, "172.30.0.0/16")],
        ),
        bad(
            "a repeated key",
            entry("x", "  destinations: [172.30.0.0/16]\n  nic: {class: mgmt}\n  destinations: [172.31.0.0/16]\n"),
            &[(8, "spec.destinations", DuplicateKey, "has already")],
        ),
        bad(
            "a bad CIDR and host bits",
            entry(
                "x",
                "  nic: {class: mgmt}\n  destinations:\n    - 172.30.0.0\n    - 172.31.0.0/16\n    - 172.32.5.0/16\n",
            ),
            &[
                (8, "spec.destinations[0]", InvalidCidr, "write 172.30.0.0/32"),
                (10, "spec.destinations[2]", HostBits, "write 172.32.0.0/16"),
            ],
        ),
        bad(
            "an IPv4 network written as IPv6",
            entry("x", "  nic: {class: mgmt}\n  destinations: [\"::ffff:10.9.0.0/112\"]\n"),
            &[(7, "spec.destinations[0]", MappedAddress, "write 10.9.0.0/16")],
        ),
        bad(
            "a scalar for a list, a string for a number",
            entry("x", "  destinations: 172.30.0.0/16\n  nic: {class: mgmt}\n  mtu: \"1400\"\n"),
            &[
                (6, "spec.destinations", WrongType, "write a list: [172.30.0.0/16]"),
                (8, "spec.mtu", WrongType, "without quotes: 1400"),
            ],
        ),
        bad(
            "an empty key",
            entry("x", "  destinations:\n  nic: {class: mgmt}\n"),
            &[(6, "spec.destinations", WrongType, "give it a value")],
        ),
        bad(
            "no destination",
            entry("x", "  destinations: []\n  nic: {class: mgmt}\n"),
            &[(6, "spec.destinations", MissingField, "add one")],
        ),
        bad("no NIC", entry("x", "  destinations: [172.30.0.0/16]\n"), &[(6, "spec.nic", MissingField, "add")]),
        bad(
            "class and name at once",
            entry("x", "  destinations: [172.30.0.0/16]\n  nic: {class: mgmt, name: eth1}\n"),
            &[(7, "spec.nic", UnknownField, "exactly one of class and name")],
        ),
        bad(
            "a label that is a number",
            entry("x", &format!("{GOOD}  nodeSelector:\n    matchLabels:\n      pool: 7\n")),
            &[(10, "spec.nodeSelector.matchLabels.pool", WrongType, "in quotes: \"7\"")],
        ),
        bad(
            "a misspelt selector",
            entry("x", &format!("{GOOD}  nodeSelector:\n    matchLabel: {{pool: a}}\n")),
            &[(9, "spec.nodeSelector.matchLabel", UnknownField, "matchLabels")],
        ),
        bad(
            "an operator in lower case",
            entry(
                "x",
                &format!(
                    "{GOOD}  nodeSelector:\n    matchExpressions:\n    - {{key: pool, operator: in, values: [a]}}\n"
                ),
            ),
            &[(10, "spec.nodeSelector.matchExpressions[0].operator", UnknownValue, "NotIn")],
        ),
        bad(
            "protected destinations",
            entry(
                "x",
                "  nic: {class: mgmt}\n  destinations: [0.0.0.0/0, 169.254.169.254/32, 127.0.0.0/8, \"ff02::/16\"]\n",
            ),
            &[
                (7, "spec.destinations[1]", ProtectedDestination, "allow: [ControlPlane]"),
                (7, "spec.destinations[2]", ProtectedDestination, "no route may have it"),
                (7, "spec.destinations[3]", ProtectedDestination, "no route may have it"),
                (7, "spec.destinations[0]", ProtectedDestination, "allow: [DefaultRoute]"),
            ],
        ),
        bad(
            "both halves of the default",
            entry("x", "  nic: {class: mgmt}\n  destinations: [0.0.0.0/1, 128.0.0.0/1]\n"),
            &[
                (7, "spec.destinations[0]", ProtectedDestination, "DefaultRoute"),
                (7, "spec.destinations[1]", ProtectedDestination, "DefaultRoute"),
            ],
        ),
        bad(
            "a destination that holds its own gateway",
            entry("x", "  destinations: [10.20.0.0/24]\n  gateway: 10.20.0.1\n  nic: {class: mgmt}\n"),
            &[(6, "spec.destinations[0]", SelfCovering, "leave the gateway out")],
        ),
        bad(
            "a word outside a closed set hides what the fields mean",
            entry("x", &format!("{GOOD}  gateway: fe80::1\n  source: 10.20.0.10/24\n  mtu: 20\n  allow: [Default]\n")),
            &[(11, "spec.allow[0]", UnknownValue, "DefaultRoute or ControlPlane")],
        ),
        bad(
            "a gateway of the wrong family, a source with a mask, an MTU that is none",
            entry("x", &format!("{GOOD}  gateway: fe80::1\n  source: 10.20.0.10/24\n  mtu: 20\n")),
            &[
                (8, "spec.gateway", FamilyMismatch, "IPv6"),
                (9, "spec.source", InvalidAddress, "write 10.20.0.10"),
                (10, "spec.mtu", InvalidMtu, "68 to 65535"),
            ],
        ),
        bad(
            "a negative MTU",
            entry("x", &format!("{GOOD}  mtu: -1\n")),
            &[(8, "spec.mtu", WrongType, "from 0 to 4294967295")],
        ),
        bad("an empty match", class("x", "  match: {}\n"), &[(6, "spec.match", EmptyMatch, "at least one")]),
        bad(
            "a bad MAC, a bad glob and a word outside the set",
            class("x", "  match:\n    macs: [02-00-00-00-00-01]\n    names: [\"eth[0-9]\"]\n"),
            &[
                (8, "spec.match.names[0]", InvalidGlob, "wildcards"),
                (7, "spec.match.macs[0]", InvalidMac, "02:00:00:00:00:01"),
            ],
        ),
        bad(
            "a word outside a closed set, YAML 1.1's yes",
            class("x", "  match: {names: [eth1]}\n  mode: enforce\n  strictARP: yes\n"),
            &[(7, "spec.mode", UnknownValue, "Enforce or Observe"), (8, "spec.strictARP", WrongType, "true or false")],
        ),
        bad(
            "two gateways of one family",
            class("x", "  match: {names: [eth1]}\n  gateways:\n  - 10.20.0.1\n  - 10.20.0.2\n"),
            &[(9, "spec.gateways[1]", TwoGateways, "one gateway for each")],
        ),
        bad(
            "features of later versions",
            class(
                "x",
                "  match: {names: [eth1]}\n  isolation:\n    mode: Isolated\n  localPorts:\n    tcp: [\"32767-30000\"]\n",
            ),
            &[
                (10, "spec.localPorts.tcp[0]", InvalidPort, "30000-32767"),
                (8, "spec.isolation.mode", Unsupported, "remove"),
                (10, "spec.localPorts.tcp", Unsupported, "remove"),
            ],
        ),
        bad(
            "a bad NodeRouteConfig",
            "apiVersion: nicpath.dev/v1alpha1\nkind: NodeRouteConfig\nmetadata: {name: n1}\nspec:\n  routes:\n  - destination: x\n    nic: {class: mgmt}\n",
            &[(6, "spec.routes[0].destination", InvalidCidr, "prefix length")],
        ),
    ]
}

#[test]
fn every_bad_manifest_is_told_by_line_field_and_cure() {
    for Bad { what, text, found } in bad_manifests() {
        // the second document of its file: lines and numbers are those of the file
        let second = format!("{}---\n{text}", entry("first", GOOD));
        let (text, before, document) =
            if text.starts_with('\u{feff}') { (text, 0, None) } else { (second, 8, Some(2)) };
        let errors = parse(&[file("bad.yaml", &text)]).expect_err(what);
        let seen: Vec<_> = errors.iter().map(|e| (e.line.unwrap() - before, e.field.as_str(), e.reason)).collect();
        let expected: Vec<_> = found.iter().map(|(line, field, reason, _)| (*line, *field, *reason)).collect();
        assert_eq!(seen, expected, "{what}: {errors:#?}");
        for (error, (.., word)) in errors.iter().zip(&found) {
            assert_eq!((error.file.as_str(), error.document), ("bad.yaml", document), "{what}");
            assert!(error.message.contains(word) || error.cure.contains(word), "{what}: {word}: {error}");
            assert!(!error.cure.is_empty(), "{what}: {error}");
        }
    }
}

#[test]
fn one_bad_document_does_not_hide_the_next() {
    let text = format!("a: [\n---\n{}---\n{}", entry("a", "  nic: {}\n"), entry("b", GOOD));
    let errors = parse(&[file("one.yaml", &text), file("two.yaml", "kind: X\n")]).unwrap_err();
    let places: Vec<_> = errors.iter().map(|e| (e.file.as_str(), e.document, e.reason)).collect();
    assert_eq!(
        places,
        [
            ("one.yaml", Some(1), Reason::NotYaml),
            ("one.yaml", Some(2), Reason::MissingField),
            ("one.yaml", Some(2), Reason::MissingField),
            ("two.yaml", Some(1), Reason::UnknownKind),
            ("two.yaml", Some(1), Reason::UnknownKind),
        ]
    );
    assert_eq!((errors[1].kind.as_str(), errors[1].name.as_str()), ("RouteEntry", "a"));
}

#[test]
fn two_objects_of_one_name_are_told_with_both_places() {
    let files = [file("a.yaml", &entry("x", GOOD)), file("b.yaml", &format!("---\n{}", entry("x", GOOD)))];
    let errors = parse(&files).unwrap_err();
    assert_eq!(errors.len(), 1);
    assert_eq!(
        (errors[0].file.as_str(), errors[0].line, errors[0].reason),
        ("b.yaml", Some(5), Reason::DuplicateObject)
    );
    assert!(errors[0].message.contains("a.yaml:1: document 1"), "{}", errors[0]);
    let other_kind = [file("a.yaml", &entry("x", GOOD)), file("b.yaml", &class("x", "  match: {names: [eth1]}\n"))];
    assert!(parse(&other_kind).is_ok());
}

#[test]
fn good_manifests_keep_their_places_and_empty_documents_are_passed_over() {
    let text = format!("# header\n---\n---\n{}---\n# nothing\n", entry("x", GOOD));
    let json = r#"{"apiVersion": "nicpath.dev/v1alpha1", "kind": "NicClass", "metadata": {"name": "mgmt"},
        "spec": {"match": {"names": ["eth1"]}}, "status": {"nodes": 3}}"#;
    let objects = parse(&[file("r.yaml", &text), file("c.json", json)]).unwrap();
    let origin = Origin::File { file: "r.yaml".into(), document: 2, line: 4 };
    assert_eq!(objects.route_entries[0].origin, origin);
    assert_eq!(objects.nic_classes.len(), 1);
    assert_eq!(line_of(&[file("r.yaml", &text)], "r.yaml", 2, "spec.nic.class"), Some(10));
}

#[test]
fn anchors_serve_and_merge_keys_too() {
    let text = entry("x", "  nic: &nic {class: mgmt}\n  destinations: [172.30.0.0/16]\n")
        + "---\n"
        + &entry("y", "  destinations: &d [172.31.0.0/16]\n  nic: {<<: {class: mgmt}}\n");
    assert_eq!(parse(&[file("a.yaml", &text)]).unwrap().route_entries.len(), 2);
}

#[test]
fn more_than_the_most_entries_are_one_error() {
    let text: String = (0..=MAX_ROUTE_ENTRIES).map(|i| format!("---\n{}", entry(&format!("e{i}"), GOOD))).collect();
    let errors = parse(&[file("many.yaml", &text)]).unwrap_err();
    assert_eq!(errors.iter().map(|e| e.reason).collect::<Vec<_>>(), [Reason::TooManyObjects]);
}

#[test]
fn only_manifests_are_read_in_name_order_and_links_are_followed() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("..2024")).unwrap();
    fs::write(path("..2024/linked.yaml"), "b").unwrap();
    symlink("..2024", path("..data")).unwrap();
    symlink("..data/linked.yaml", path("linked.yaml")).unwrap();
    fs::create_dir(path("sub.yaml")).unwrap();
    for name in [".hidden.yaml", ".a.yaml.swp", "a.yaml~", "#a.yaml#", "README.md", "a.yaml.bak"] {
        fs::write(path(name), "not a manifest: [").unwrap();
    }
    fs::write(path("z.json"), "c").unwrap();
    fs::write(path("a.yml"), "a").unwrap();
    let found = read_files(dir.path()).unwrap();
    assert_eq!(found.files, [file("a.yml", "a"), file("linked.yaml", "b"), file("z.json", "c")]);
    assert_eq!(found.warnings, ["sub.yaml is a directory and is not read"]);
}

#[test]
fn an_empty_directory_is_no_error_and_a_missing_one_is() {
    let dir = tempfile::tempdir().unwrap();
    let objects = read(dir.path()).unwrap();
    assert_eq!(objects.warnings.len(), 1);
    let errors = read(&dir.path().join("gone")).unwrap_err();
    assert_eq!(errors[0].reason, Reason::Unreadable);
}

#[test]
fn files_that_cannot_be_text_are_told_all_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("a.yaml"), b"a: 1\nb: \xff\n").unwrap();
    fs::write(path("b.yaml"), vec![b'#'; usize::try_from(MAX_FILE_BYTES).unwrap() + 1]).unwrap();
    symlink("nowhere", path("c.yaml")).unwrap();
    nix::unistd::mkfifo(&path("d.yaml"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    let errors = read(dir.path()).unwrap_err();
    assert_eq!(
        errors.iter().map(|e| (e.file.as_str(), e.line, e.reason)).collect::<Vec<_>>(),
        [
            ("a.yaml", Some(2), Reason::NotUtf8),
            ("b.yaml", None, Reason::FileTooLarge),
            ("c.yaml", None, Reason::Unreadable),
            ("d.yaml", None, Reason::Unreadable),
        ]
    );
}

#[test]
fn a_file_name_that_is_not_utf8_is_read_or_told_but_never_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(std::ffi::OsStr::from_bytes(b"a\xff.yaml")), "x").unwrap();
    assert!(read(dir.path()).is_err());
}
