//! What a command says when it cannot do its work, and its exit code.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use tests::{
    Netns, TwoNic,
    product::{Product, described},
};

use crate::{
    ROUTES,
    host::{nicpath, stderr, stdout},
    node,
    support::NIC_CLASSES,
};

/// A refusal in one sentence on standard error, and nothing else there.
fn one_sentence(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{}", described(output));
    let message = stderr(output);
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.starts_with("nicpath: "), "{message}");
    message.trim_end().to_owned()
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
    for arguments in
        commands(&product).into_iter().filter(|a| ["apply", "status", "why", "uninstall"].contains(&a[0].as_str()))
    {
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
    commands(product)
        .into_iter()
        .filter(|a| a[0] == "agent" || (a[0] == "apply" && !a.contains(&"--dry-run".into())))
        .collect()
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
