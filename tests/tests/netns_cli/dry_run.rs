//! `nicpath apply --dry-run`, and `apply` that is refused.

use tests::{
    TwoNic,
    product::{Product, described},
};

use crate::{
    MGMT, ROUTES,
    host::{Snapshot, own_routes, stderr, succeeded},
    support::NIC_CLASSES,
};

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
        lines
            .iter()
            .map(|(command, _)| command.trim().to_owned())
            .filter(|command| command.starts_with(program))
            .collect()
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
    product
        .manifests(&[("nics.yaml", NIC_CLASSES), ("routes.yaml", &ROUTES.replace("172.30.0.0/16", "172.30.0.1/16"))]);
    let before = Snapshot::take(&lab.node, &product);
    let output = product.apply();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("routes.yaml:4: document 1 (RouteEntry/services): spec.destinations[0]"));
    assert_eq!(before.differences(&Snapshot::take(&lab.node, &product)), Vec::<String>::new());
}
