//! After `nicpath uninstall` a node is as it was before (field case 67).
#![expect(clippy::unwrap_used, clippy::panic, reason = "what a test stands on fails the test")]

#[path = "support/host.rs"]
mod host;
mod support;

use std::fs;

use agent::hook::{Direction, Position};
use host::{Foreign, NICS, Servers, Snapshot, everything_is_answered, on_hook, own_routes, stderr, succeeded, targets};
use support::NIC_CLASSES;
use tests::{Family, TwoNic, lab::subnet, product::Product};

use tests::product::SERVICES as ROUTES;

/// A node with settings, routes and rules of its own, so that "as before" is not "as a fresh one".
fn lived_in() -> TwoNic {
    let lab = TwoNic::builder().forwarding().rp_filter(1, 1).build();
    lab.node.sysctls(&[
        ("net/ipv4/conf/eth0/arp_announce", "1"),
        ("net/ipv4/conf/eth1/arp_ignore", "1"),
        ("net/ipv4/conf/eth1/proxy_arp", "1"),
    ]);
    lab.node.ip_batch(&format!(
        "route add 192.0.2.0/24 via 10.20.0.1 dev eth1 proto static\n\
         route add 198.51.100.0/24 dev eth0 table 77\n\
         rule add from {} lookup 77\n",
        subnet(1, Family::V4)
    ));
    lab
}

fn product(lab: &TwoNic) -> Product {
    let product = Product::new(&lab.node);
    product.manifests(&[("nics.yaml", NIC_CLASSES), ("routes.yaml", ROUTES)]);
    product
}

fn as_before(before: &Snapshot, lab: &TwoNic, product: &Product) {
    assert_eq!(before.differences(&Snapshot::take(&lab.node, product)), Vec::<String>::new());
}

/// Checks go through the programs and change neighbours and counters, as in use.
fn use_it(lab: &TwoNic) {
    let _servers = Servers::start(lab);
    everything_is_answered(lab);
}

#[test]
fn a_node_is_as_before_after_install_use_and_uninstall() {
    let lab = lived_in();
    let product = product(&lab);
    let before = Snapshot::take(&lab.node, &product);
    succeeded(&product.apply());
    let installed = before.differences(&Snapshot::take(&lab.node, &product)).join("\n");
    for trace in [
        "+ setting: /proc/sys/net/ipv4/conf/eth1/rp_filter = 2",
        "+ setting: /proc/sys/net/ipv4/conf/eth0/arp_announce = 2",
        "172.30.0.0/16 via 10.20.0.1",
        "/state.json",
        "/links",
        "program: eth1 Egress",
    ] {
        assert!(installed.contains(trace), "the snapshot sees {trace}: {installed}");
    }
    use_it(&lab);
    succeeded(&product.uninstall());
    as_before(&before, &lab, &product);
    let again = product.uninstall();
    succeeded(&again);
    as_before(&before, &lab, &product);
}

#[test]
fn a_killed_agent_hinders_nothing() {
    let lab = lived_in();
    let product = product(&lab);
    let before = Snapshot::take(&lab.node, &product);
    let agent = product.agent();
    use_it(&lab);
    agent.kill9();
    let agent = product.agent();
    // what was changed by us is not taken for what was there before
    lab.node.sysctl("net/ipv4/conf/eth1/rp_filter", "2");
    agent.kill9();
    succeeded(&product.uninstall());
    as_before(&before, &lab, &product);
}

#[test]
fn an_agent_that_runs_is_named_and_nothing_is_taken_from_under_it() {
    let lab = lived_in();
    let product = product(&lab);
    let before = Snapshot::take(&lab.node, &product);
    let agent = product.agent();
    let installed = Snapshot::take(&lab.node, &product);
    let refused = product.uninstall();
    assert_eq!(refused.status.code(), Some(1));
    let message = stderr(&refused);
    assert!(message.contains(&format!("pid {}", agent.pid())) && message.contains("stop it first"), "{message}");
    as_before(&installed, &lab, &product);
    assert!(agent.terminate().success());
    succeeded(&product.uninstall());
    as_before(&before, &lab, &product);
}

#[test]
fn uninstall_where_nothing_was_installed_changes_nothing() {
    let lab = lived_in();
    let product = product(&lab);
    let before = Snapshot::take(&lab.node, &product);
    succeeded(&product.uninstall());
    as_before(&before, &lab, &product);
}

#[test]
fn programs_and_files_of_others_stay() {
    let lab = lived_in();
    let product = product(&lab);
    let foreign = Foreign::attach(&lab.node, &NICS, Position::First);
    fs::write(product.state_dir().join("notes.txt"), "mine").unwrap();
    let before = Snapshot::take(&lab.node, &product);
    succeeded(&product.apply());
    use_it(&lab);
    succeeded(&product.uninstall());
    as_before(&before, &lab, &product);
    assert_eq!(fs::read_to_string(product.state_dir().join("notes.txt")).unwrap(), "mine");
    let seen = foreign.packets();
    let _servers = Servers::start(&lab);
    for target in targets(&lab).iter().take(6) {
        target
            .check(std::time::Duration::from_millis(900))
            .unwrap_or_else(|failure| panic!("{}: {failure}", target.name()));
    }
    for (direction, packets) in foreign.packets() {
        assert!(packets > seen[&direction], "{direction:?}");
        assert_eq!(
            on_hook(&lab.node, "eth1", direction).iter().map(|p| p.id).collect::<Vec<_>>(),
            [foreign.ids[&direction]]
        );
    }
}

#[test]
fn a_foreign_route_in_the_place_of_ours_stays() {
    let lab = lived_in();
    let product = product(&lab);
    succeeded(&product.apply());
    lab.node.ip("route replace 172.30.0.0/16 via 10.10.0.1 dev eth0 proto static");
    succeeded(&product.uninstall());
    assert!(own_routes(&lab.node).is_empty());
    let left = lab.node.ip("route show exact 172.30.0.0/16");
    assert!(left.starts_with("172.30.0.0/16 via 10.10.0.1 dev eth0 proto static"), "{left}");
}

#[test]
fn a_nic_that_is_gone_hinders_nothing() {
    let lab = lived_in();
    let product = product(&lab);
    succeeded(&product.apply());
    lab.node.ip("link del eth1");
    succeeded(&product.uninstall());
    let left = fs::read_dir(product.bpffs()).unwrap().flatten().map(|entry| entry.path());
    // progs.debug and maps.debug are the file system's own
    let left: Vec<_> = left.filter(|path| path.extension().is_none()).collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(!product.state_dir().exists());
    assert!(Direction::ALL.iter().all(|direction| on_hook(&lab.node, "eth0", *direction).is_empty()));
    assert_eq!(lab.node.read_sysctl("net/ipv4/conf/eth0/arp_announce"), "1");
}

#[test]
fn maps_that_cannot_be_read_hinder_nothing() {
    let lab = lived_in();
    let product = product(&lab);
    let before = Snapshot::take(&lab.node, &product);
    succeeded(&product.apply());
    // as after a change of a map's layout: each of the two is not what its name says
    let pin = |name: &str| product.bpffs().join(name);
    for (from, to) in [("TABLES", "other"), ("COUNTERS", "TABLES"), ("other", "COUNTERS")] {
        fs::rename(pin(from), pin(to)).unwrap();
    }
    assert_eq!(product.run("status", &[]).status.code(), Some(1));
    succeeded(&product.uninstall());
    as_before(&before, &lab, &product);
}

#[test]
fn a_setting_that_an_operator_changed_after_us_is_put_back_to_what_was_before_us() {
    let lab = lived_in();
    let product = product(&lab);
    succeeded(&product.apply());
    lab.node.sysctl("net/ipv4/conf/eth1/rp_filter", "0");
    succeeded(&product.apply());
    assert_eq!(lab.node.read_sysctl("net/ipv4/conf/eth1/rp_filter"), "2");
    succeeded(&product.uninstall());
    assert_eq!(lab.node.read_sysctl("net/ipv4/conf/eth1/rp_filter"), "1");
}
