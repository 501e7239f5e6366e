//! The commands as their users meet them: exit codes, errors that name the cure, `check` and `--dry-run`.

#[path = "support/host.rs"]
mod host;
mod support;

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use host::{Snapshot, nicpath, own_routes, stderr, stdout, succeeded};
use support::NIC_CLASSES;
use tests::{
    Netns, TwoNic,
    product::{Product, described},
};

const CLASS: &str = "apiVersion: nicpath.dev/v1alpha1\nkind: NicClass\n";
const ENTRY: &str = "apiVersion: nicpath.dev/v1alpha1\nkind: RouteEntry\n";
const USER: &str = "apiVersion: nicpath.dev/v1alpha1
kind: NicClass
metadata: {name: user}
spec: {match: {names: [eth0]}}
";
const MGMT: &str = "apiVersion: nicpath.dev/v1alpha1
kind: NicClass
metadata: {name: mgmt}
spec: {match: {names: [eth1]}}
";
const ROUTES: &str = "apiVersion: nicpath.dev/v1alpha1
kind: RouteEntry
metadata: {name: services}
spec: {destinations: [172.30.0.0/16, \"fd00:30::/48\"], nic: {class: mgmt}}
";

/// A refusal in one sentence on standard error, and nothing else there.
fn one_sentence(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{}", described(output));
    let message = stderr(output);
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.starts_with("nicpath: "), "{message}");
    message.trim_end().to_owned()
}

/// A node with nothing to manage, and the product's directories on it.
fn node() -> (Netns, Product) {
    let node = Netns::new("node");
    let product = Product::new(&node);
    product.manifests(&[("nics.yaml", NIC_CLASSES)]);
    (node, product)
}

/// The arguments of every command that touches the node.
fn commands(product: &Product) -> Vec<Vec<String>> {
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let paths = ["--state-dir".into(), text(&product.state_dir()), "--bpffs".into(), text(product.bpffs())];
    let manifests = ["--manifests".to_owned(), text(&product.manifest_dir())];
    let why = ["--src", "10.0.0.1", "--dst", "10.0.0.2"].map(str::to_owned);
    let with = |name: &str, more: &[String]| [&[name.to_owned()], &paths[..], more].concat();
    vec![
        with("agent", &manifests),
        with("apply", &manifests),
        with("apply", &[&manifests[..], &["--dry-run".to_owned()]].concat()),
        with("status", &[]),
        with("why", &why),
        with("off", &[]),
        with("on", &[]),
        with("monitor", &[]),
        with("uninstall", &[]),
    ]
}

/// `setpriv OPTIONS nicpath ARGUMENTS`.
fn with_privileges(node: &Netns, product: &Product, options: &[&str], arguments: &[String]) -> Command {
    let mut command = node.command("setpriv");
    command.args(options).arg(product.command("status", &[]).get_program()).args(arguments);
    command
}

#[test]
fn whoever_is_not_root_is_told_which_capabilities_are_missing() {
    let (node, product) = node();
    // a copy that anybody may run, wherever the binary lies
    let directory = tempfile_for_everybody();
    let binary = directory.path().join("nicpath");
    fs::copy(product.command("status", &[]).get_program(), &binary).unwrap();
    for arguments in commands(&product) {
        let mut command = node.command("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&binary).args(&arguments);
        let message = one_sentence(&command.output().unwrap(), 3);
        for capability in ["CAP_BPF", "CAP_NET_ADMIN", "CAP_SYS_ADMIN", "as root"] {
            assert!(message.contains(capability), "{arguments:?}: {message}");
        }
    }
}

fn tempfile_for_everybody() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    directory
}

#[test]
fn a_missing_capability_is_named_alone() {
    let (node, product) = node();
    const ALL: [(&str, &str); 3] = [("bpf", "CAP_BPF"), ("net_admin", "CAP_NET_ADMIN"), ("sys_admin", "CAP_SYS_ADMIN")];
    for (dropped, named) in ALL {
        for arguments in commands(&product) {
            let option = format!("--bounding-set=-{dropped}");
            let output = with_privileges(&node, &product, &[&option], &arguments).output().unwrap();
            let message = one_sentence(&output, 3);
            for (_, capability) in ALL {
                assert_eq!(message.contains(capability), capability == named, "{arguments:?}: {message}");
            }
        }
    }
}

#[test]
fn the_capabilities_that_are_asked_for_are_enough() {
    let lab = TwoNic::builder().build();
    let product = Product::new(&lab.node);
    product.manifests(&[("nics.yaml", NIC_CLASSES), ("routes.yaml", ROUTES)]);
    let options = ["--bounding-set=-all,+bpf,+net_admin,+sys_admin"];
    for arguments in commands(&product).into_iter().filter(|a| ["apply", "status", "why", "uninstall"].contains(&a[0].as_str())) {
        let output = with_privileges(&lab.node, &product, &options, &arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", described(&output));
    }
}

#[test]
fn no_bpffs_is_told_with_the_mount_command() {
    let (node, product) = node();
    let elsewhere = tempfile::tempdir().unwrap();
    let path = elsewhere.path().join("nicpath");
    for name in ["agent", "apply"] {
        let (state, manifests) = (product.state_dir(), product.manifest_dir());
        let arguments = [
            name,
            "--state-dir",
            state.to_str().unwrap(),
            "--bpffs",
            path.to_str().unwrap(),
            "--manifests",
            manifests.to_str().unwrap(),
        ];
        let message = one_sentence(&nicpath(&node, &product, &arguments).output().unwrap(), 4);
        assert!(message.contains("mount -t bpf bpf") && message.contains(path.to_str().unwrap()), "{message}");
    }
    assert!(!path.exists());
}

/// `commands` that change the node, of those that `Product` can wrap.
fn changing(product: &Product) -> Vec<Vec<String>> {
    commands(product).into_iter().filter(|a| a[0] == "agent" || (a[0] == "apply" && !a.contains(&"--dry-run".into()))).collect()
}

#[test]
fn a_kernel_without_btf_is_told_which_option_it_lacks() {
    let (node, product) = node();
    for arguments in changing(&product) {
        let mut command = node.command("unshare");
        command.args(["--mount", "sh", "-c", "mount -t tmpfs none /sys/kernel/btf && exec \"$0\" \"$@\""]);
        command.arg(product.command("status", &[]).get_program()).args(&arguments);
        let message = one_sentence(&command.output().unwrap(), 4);
        assert!(message.contains("/sys/kernel/btf/vmlinux") && message.contains("CONFIG_DEBUG_INFO_BTF"), "{message}");
    }
    assert!(Path::new("/sys/kernel/btf/vmlinux").exists(), "only the command's own view was without it");
}

#[test]
fn a_kernel_that_is_too_old_is_told_from_which_version_on_it_works() {
    let (node, product) = node();
    for arguments in changing(&product) {
        let mut command = node.command("setarch");
        command.args(["--uname-2.6"]).arg(product.command("status", &[]).get_program()).args(&arguments);
        let message = one_sentence(&command.output().unwrap(), 4);
        assert!(message.contains("2.6.") && message.contains("6.6 or newer"), "{message}");
    }
    assert!(product.state_dir().read_dir().unwrap().next().is_none(), "nothing was begun");
}

#[test]
fn a_command_line_that_makes_no_sense_is_a_usage_error() {
    let (node, product) = node();
    for arguments in [
        &[][..],
        &["no-such-command"],
        &["apply"],
        &["agent", "--no-such-option"],
        &["status", "-o", "xml"],
        &["why", "--src", "10.0.0.1"],
        &["why", "--src", "10.0.0.300", "--dst", "10.0.0.1"],
        &["why", "--src", "10.0.0.1", "--dst", "10.0.0.2", "--sport", "70000"],
        &["apply", "--manifests", "/tmp", "--node-labels", "nonsense"],
        &["apply", "--manifests", "/tmp", "--wait", "soon"],
        &["apply", "--manifests", "/tmp", "--protect", "10.0.0.0/33"],
        &["agent", "--manifests", "/tmp", "--metrics", "9909"],
    ] {
        let output = nicpath(&node, &product, arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", described(&output));
        let message = stderr(&output);
        assert!(message.contains("Usage") || message.contains("--help"), "{arguments:?}: {message}");
    }
}

#[test]
fn a_directory_that_is_not_there_is_told_with_its_option() {
    let (node, product) = node();
    for name in ["agent", "apply"] {
        let output = product.run(name, &["--manifests", "/no/such/directory"]);
        let message = one_sentence(&output, 1);
        assert!(message.contains("/no/such/directory") && message.contains("--manifests"), "{message}");
    }
    let output = nicpath(&node, &product, &["check", "--manifests", "/no/such/directory"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("/no/such/directory"), "{}", described(&output));
}

#[test]
fn on_and_off_without_programs_say_so() {
    let (_node, product) = node();
    for name in ["off", "on"] {
        let message = one_sentence(&product.run(name, &[]), 1);
        assert!(message.contains("no programs are pinned"), "{message}");
    }
}

/// What is wrong, the file's text, and the parts of the one line that must say so.
type Bad = (&'static str, String, &'static [&'static str]);

fn bad_manifests() -> Vec<Bad> {
    let entry = |spec: &str| format!("{ENTRY}metadata: {{name: services}}\nspec: {{{spec}}}\n");
    let class = |spec: &str| format!("{CLASS}metadata: {{name: mgmt}}\nspec: {{{spec}}}\n");
    let with_mgmt = |spec: &str| format!("{MGMT}---\n{}", entry(spec));
    let by_mgmt = |destinations: &str| with_mgmt(&format!("destinations: [{destinations}], nic: {{class: mgmt}}"));
    vec![
        ("no CIDR", by_mgmt("172.30.0.0/33"), &["document 2", "services", "spec.destinations[0]", "172.30.0.0/33", "prefix length"]),
        ("no address", by_mgmt("172.30.0/16"), &["document 2", "spec.destinations[0]", "172.30.0/16", "write"]),
        ("host bits", by_mgmt("\"fd00:31::/48\", 172.30.0.1/16"), &["document 2", "spec.destinations[1]", "172.30.0.1/16", "172.30.0.0/16"]),
        ("an IPv4 address as IPv6", by_mgmt("\"::ffff:10.9.0.0/112\""), &["spec.destinations[0]", "::ffff:10.9.0.0/112", "IPv4"]),
        ("an unknown field", with_mgmt("destinations: [172.30.0.0/16], nic: {class: mgmt}, metric: 5"), &["spec.metric", "5", "known here", "mtu"]),
        ("a field in the wrong place", class("match: {names: [eth1], gateway: 10.20.0.1}"), &["document 1", "spec.match.gateway", "10.20.0.1"]),
        ("a missing kind", format!("apiVersion: nicpath.dev/v1alpha1\nmetadata: {{name: x}}\nspec: {{}}\n{}", ""), &["document 1", "kind", "nicpath.dev/v1alpha1"]),
        ("another kind", "apiVersion: nicpath.dev/v1alpha1\nkind: ConfigMap\nmetadata: {name: x}\n".into(), &["document 1", "ConfigMap", "nicpath.dev/v1alpha1"]),
        ("a missing name", format!("{ENTRY}metadata: {{}}\nspec: {{destinations: [172.30.0.0/16], nic: {{name: eth1}}}}\n"), &["metadata.name", "add"]),
        ("a missing field", with_mgmt("nic: {class: mgmt}"), &["document 2", "destinations", "add"]),
        ("a number where a list belongs", with_mgmt("destinations: 5, nic: {class: mgmt}"), &["spec.destinations: 5", "write a list"]),
        ("both class and name", with_mgmt("destinations: [172.30.0.0/16], nic: {class: mgmt, name: eth1}"), &["document 2", "spec.nic"]),
        ("an unknown word", class("match: {names: [eth1]}, mode: Watch"), &["document 1", "spec.mode", "Watch", "Observe"]),
        ("no way to match", class("match: {}"), &["spec.match", "names, macs and subnets"]),
        ("no MAC", class("match: {macs: [\"02:00:00:00:01\"]}"), &["spec.match.macs[0]", "02:00:00:00:01", "hexadecimal"]),
        ("a gateway that is none", class("match: {names: [eth1]}, gateways: [10.20.0.0/24]"), &["spec.gateways[0]", "10.20.0.0/24", "write"]),
        ("two gateways of one family", class("match: {names: [eth1]}, gateways: [10.20.0.1, 10.20.0.2]"), &["spec.gateways[1]", "10.20.0.2", "one gateway"]),
        ("a gateway of another family", with_mgmt("destinations: [172.30.0.0/16], nic: {class: mgmt}, gateway: \"fd00:20::1\""), &["spec.gateway", "fd00:20::1", "family"]),
        ("a destination that holds its gateway", with_mgmt("destinations: [10.20.0.0/16], nic: {class: mgmt}, gateway: 10.20.0.1"), &["10.20.0.0/16", "10.20.0.1", "gateway"]),
        ("an MTU that is none", with_mgmt("destinations: [172.30.0.0/16], nic: {class: mgmt}, mtu: 20"), &["spec.mtu", "20", "68"]),
        ("the default route", by_mgmt("0.0.0.0/0"), &["spec.destinations[0]", "0.0.0.0/0", "allow"]),
        ("the metadata address", by_mgmt("169.254.169.254/32"), &["spec.destinations[0]", "169.254.169.254", "allow"]),
        ("a class that is not there", entry("destinations: [172.30.0.0/16], nic: {class: storage}"), &["document 1", "spec.nic.class", "storage", "NicClass"]),
        ("two classes for one NIC", format!("{USER}---\n{CLASS}metadata: {{name: second}}\nspec: {{match: {{names: [eth0]}}}}\n"), &["document 2", "second", "spec.match.names[0]", "eth0", "NicClass/user"]),
        ("two objects of one name", format!("{MGMT}---\n{MGMT}"), &["document 2", "mgmt", "rename"]),
        ("two entries for one destination", format!("{MGMT}---\n{}---\n{}", entry("destinations: [172.30.0.0/16], nic: {class: mgmt}"), entry("destinations: [172.30.0.0/16], nic: {class: mgmt}").replace("services", "services-too")), &["document 3", "services-too", "172.30.0.0/16", "priority"]),
        ("a key twice", format!("{MGMT}spec: {{match: {{names: [eth2]}}}}\n"), &["document 1", "spec", "keep one"]),
        ("a field of a later version", class("match: {names: [eth1]}, vips: [203.0.113.25/32]"), &["spec.vips", "remove"]),
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
        ("a gateway that is not on the NIC", class("match: {names: [eth1]}, gateways: [10.10.0.1]"), &["document 1", "spec.gateways[0]", "10.10.0.1", "eth1"]),
        ("no such NIC", class("match: {names: [eth7]}"), &["document 1", "spec.match", "no NIC"]),
        ("two NICs match", class("match: {names: [\"eth*\"]}"), &["document 1", "spec.match", "eth0, eth1", "one NIC"]),
        ("a route's gateway that is not on the NIC", entry("destinations: [172.30.0.0/16], nic: {class: mgmt}, gateway: 10.10.0.1"), &["document 2", "spec.gateway", "10.10.0.1"]),
        ("a route by a NIC that is not there", entry("destinations: [172.30.0.0/16], nic: {name: eth7}"), &["document 2", "spec.nic", "eth7"]),
        ("a source that is not here", entry("destinations: [172.30.0.0/16], nic: {class: mgmt}, source: 10.20.0.99"), &["document 2", "spec.source", "10.20.0.99"]),
        ("an address of the node", entry("destinations: [10.20.0.10/32], nic: {class: mgmt}"), &["document 2", "spec.destinations[0]", "10.20.0.10", "allow"]),
        ("two classes that match one NIC", format!("{MGMT}---\n{CLASS}metadata: {{name: second}}\nspec: {{match: {{subnets: [10.20.0.0/24]}}}}\n"), &["second", "spec.match", "eth1"]),
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

#[test]
fn a_dry_run_prints_every_change_with_its_reason_and_makes_none() {
    let lab = TwoNic::builder().build();
    let product = Product::new(&lab.node);
    let more = "---\napiVersion: nicpath.dev/v1alpha1\nkind: RouteEntry\nmetadata: {name: narrow}\n\
                spec: {destinations: [172.31.0.0/16, \"fd00:31::/48\"], nic: {name: eth0}, mtu: 1400}\n";
    product.manifests(&[("nics.yaml", NIC_CLASSES), ("routes.yaml", &format!("{ROUTES}{more}"))]);
    let dry_run = || succeeded(&product.run_with_manifests("apply", &["--dry-run"]));
    let before = Snapshot::take(&lab.node, &product);
    let said = dry_run();
    assert_eq!(before.differences(&Snapshot::take(&lab.node, &product)), Vec::<String>::new());
    println!("{said}");
    let lines: Vec<(&str, &str)> = said.lines().map(|line| line.split_once("  # ").unwrap()).collect();
    assert!(lines.iter().all(|(command, why)| !command.trim().is_empty() && !why.trim().is_empty()), "{said}");
    let commands_of = |program: &str| -> Vec<String> {
        lines.iter().map(|(command, _)| command.trim().to_owned()).filter(|command| command.starts_with(program)).collect()
    };
    let (routes, settings) = (commands_of("ip "), commands_of("sysctl "));
    assert_eq!(routes.len(), 4, "{said}");
    assert!(settings.contains(&"sysctl -w net/ipv4/conf/eth1/rp_filter=2".to_owned()), "{said}");
    let why = |part: &str| lines.iter().find(|(command, _)| command.contains(part)).unwrap().1;
    assert!(why("172.30.0.0/16").contains("RouteEntry/services"), "{said}");
    assert!(why("fd00:31::/48").contains("RouteEntry/narrow"), "{said}");
    assert!(why("attach egress dev eth1").contains("eth1"), "{said}");

    // what is printed is what would be done: pasted, nothing is left to do but the programs
    for line in said.lines().filter(|line| line.starts_with("ip ")) {
        let output = lab.node.command("sh").args(["-c", line]).output().unwrap();
        assert!(output.status.success(), "{line}: {}", described(&output));
    }
    let pasted = own_routes(&lab.node);
    assert_eq!(pasted.len(), 4);
    let left = dry_run();
    assert!(!left.lines().any(|line| line.starts_with("ip ")), "{left}");
    succeeded(&product.uninstall());
    assert!(own_routes(&lab.node).is_empty());
    succeeded(&product.apply());
    assert_eq!(own_routes(&lab.node), pasted);
    assert_eq!(dry_run(), "");
}

#[test]
fn a_dry_run_tells_what_would_be_removed_and_what_is_refused() {
    let lab = TwoNic::builder().build();
    let product = Product::new(&lab.node);
    product.manifests(&[("nics.yaml", NIC_CLASSES), ("routes.yaml", ROUTES)]);
    succeeded(&product.apply());
    let late = ROUTES.replace("172.30.0.0/16", "172.31.0.0/16").replace("class: mgmt", "name: eth7");
    product.manifests(&[("nics.yaml", MGMT), ("routes.yaml", &late)]);
    let before = Snapshot::take(&lab.node, &product);
    let output = product.run_with_manifests("apply", &["--dry-run"]);
    let said = succeeded(&output);
    for part in [
        "ip route del 172.30.0.0/16 via 10.20.0.1 dev eth1 proto 157",
        "no object asks for it any more",
        "detach egress dev eth0",
        "sysctl -w net/ipv4/conf/eth0/rp_filter=0",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert!(stderr(&output).contains("eth7 is no NIC of this node"), "{}", stderr(&output));
    assert_eq!(before.differences(&Snapshot::take(&lab.node, &product)), Vec::<String>::new());
}

#[test]
fn apply_with_bad_manifests_changes_nothing_and_says_where() {
    let lab = TwoNic::builder().build();
    let product = Product::new(&lab.node);
    product.manifests(&[("nics.yaml", NIC_CLASSES), ("routes.yaml", &ROUTES.replace("172.30.0.0/16", "172.30.0.1/16"))]);
    let before = Snapshot::take(&lab.node, &product);
    let output = product.apply();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("routes.yaml:4: document 1 (RouteEntry/services): spec.destinations[0]"));
    assert_eq!(before.differences(&Snapshot::take(&lab.node, &product)), Vec::<String>::new());
}
