//! The manifest directory while the agent runs.

use std::{fs, os::unix::fs::symlink};

use agent::hook::Direction;
use tests::{TwoNic, product::Product};

use crate::{
    ROUTES,
    host::{Condition, NICS, Servers, Snapshot, everything_is_answered, on_hook, own_routes, repaired, routes_to},
    product, routes_are_there,
    support::NIC_CLASSES,
};

use tests::product::MGMT_CLASS;

#[test]
fn changed_manifests_are_in_the_kernel_within_two_seconds() {
    let lab = TwoNic::builder().build();
    let product = Product::new(&lab.node);
    product.manifests(&[("mgmt.yaml", MGMT_CLASS)]);
    let _agent = product.agent();
    assert!(on_hook(&lab.node, "eth0", Direction::Egress).is_empty());
    let rp_filter = || lab.node.read_sysctl("net/ipv4/conf/eth0/rp_filter");
    assert_eq!(rp_filter(), "0");

    product.manifests(&[("mgmt.yaml", MGMT_CLASS), ("both.yaml", &NIC_CLASSES.replace("mgmt", "second"))]);
    let refused = repaired("two classes claim eth1", || {
        let condition = Condition::of(&product.status(), "Ambiguous");
        if condition.holds() { Ok(condition) } else { Err(condition) }
    });
    assert!(refused.message.contains("mgmt") && refused.message.contains("second"), "{refused:?}");

    product.manifests(&[("nics.yaml", NIC_CLASSES)]);
    repaired("a NicClass added", || {
        let ids = NICS.map(|nic| on_hook(&lab.node, nic, Direction::Egress).len());
        if ids == [1, 1] && rp_filter() == "2" { Ok(()) } else { Err((ids, rp_filter())) }
    });

    product.manifests(&[("nics.yaml", NIC_CLASSES), ("routes.yaml", ROUTES)]);
    repaired("a RouteEntry added", || routes_are_there(&lab));
    let changed = ROUTES.replace("172.30.0.0/16", "172.31.0.0/16").replace("class: mgmt", "class: user");
    product.manifests(&[("nics.yaml", NIC_CLASSES), ("routes.yaml", &changed)]);
    let routes = repaired("a RouteEntry changed", || {
        let found = own_routes(&lab.node);
        let moved = found.iter().all(|line| line.contains("eth0"));
        if moved && found.iter().any(|line| line.starts_with("172.31.0.0/16 via 10.10.0.1")) {
            Ok(found)
        } else {
            Err(found)
        }
    });
    assert_eq!(routes.len(), 2);
    product.manifests(&[("nics.yaml", NIC_CLASSES)]);
    repaired("a RouteEntry removed", || {
        let found = own_routes(&lab.node);
        if found.is_empty() { Ok(()) } else { Err(found) }
    });

    product.manifests(&[("mgmt.yaml", MGMT_CLASS)]);
    repaired("a NicClass removed", || {
        let ids = NICS.map(|nic| on_hook(&lab.node, nic, Direction::Egress).len());
        if ids == [0, 1] && rp_filter() == "0" { Ok(()) } else { Err((ids, rp_filter())) }
    });
}

#[test]
fn a_bad_or_half_written_file_changes_nothing_and_is_told_with_its_place() {
    let lab = TwoNic::builder().build();
    let product = product(&lab);
    let _servers = Servers::start(&lab);
    let agent = product.agent();
    let before = Snapshot::take(&lab.node, &product);
    // cut in the middle of a list, cut after a complete key, a wrong value, not YAML at all
    let half = ROUTES.split_at(ROUTES.find("\"fd00").unwrap()).0;
    let cut = ROUTES.split_at(ROUTES.find("spec").unwrap()).0;
    let wrong = ROUTES.replace("172.30.0.0/16", "172.30.0.1/16");
    for (bad, place, reason) in [
        (half, "routes.yaml:5", "NotYaml"),
        (cut, "routes.yaml:2: document 1 (RouteEntry/services): spec", "MissingField"),
        (
            wrong.as_str(),
            "routes.yaml:5: document 1 (RouteEntry/services): spec.destinations[0]: 172.30.0.1/16",
            "HostBits",
        ),
        ("kind: [", "routes.yaml:1", "NotYaml"),
    ] {
        product.manifests(&[("nics.yaml", NIC_CLASSES), ("routes.yaml", bad)]);
        let condition = repaired(place, || {
            let condition = Condition::of(&product.status(), "Degraded");
            if condition.message.contains(place) { Ok(condition) } else { Err(condition) }
        });
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("True", reason), "{condition:?}");
        assert!(agent.log().contains(place), "{}", agent.log());
        let after = Snapshot::take(&lab.node, &product);
        assert_eq!(before.differences(&after), Vec::<String>::new(), "{bad}");
    }
    everything_is_answered(&lab);
    let good = ROUTES.replace("172.30.0.0/16", "172.31.0.0/16");
    product.manifests(&[("nics.yaml", NIC_CLASSES), ("routes.yaml", &good)]);
    repaired("the good file is taken", || {
        let found = routes_to(&lab.node, "172.31.0.0/16");
        if found.len() == 1 { Ok(()) } else { Err(found) }
    });
    repaired("all is well again", || {
        let condition = Condition::of(&product.status(), "Degraded");
        if condition.holds() { Err(condition) } else { Ok(()) }
    });
}

#[test]
fn a_bad_file_at_the_start_means_the_last_good_ones() {
    let lab = TwoNic::builder().build();
    let product = product(&lab);
    let agent = product.agent();
    let before = Snapshot::take(&lab.node, &product);
    agent.kill9();
    product.manifests(&[("nics.yaml", NIC_CLASSES), ("routes.yaml", "kind: [")]);
    // as after a reboot: what is on disk is all there is
    lab.node.ip("route flush proto 157");
    let _agent = product.agent();
    assert_eq!(before.differences(&Snapshot::take(&lab.node, &product)), Vec::<String>::new());
    assert!(Condition::of(&product.status(), "Degraded").message.contains("routes.yaml:1"));
}

#[test]
fn an_empty_directory_after_a_full_one_is_no_change() {
    let lab = TwoNic::builder().build();
    let product = product(&lab);
    let _servers = Servers::start(&lab);
    let agent = product.agent();
    let before = Snapshot::take(&lab.node, &product);
    let degraded = |wanted: bool| {
        repaired("the directory's state is told", || {
            let condition = Condition::of(&product.status(), "Degraded");
            if condition.holds() == wanted { Ok(condition) } else { Err(condition) }
        })
    };
    product.manifests(&[]);
    let condition = degraded(true);
    assert!(condition.message.contains("holds no manifest"), "{condition:?}");
    assert!(agent.log().contains("holds no manifest"), "{}", agent.log());
    assert_eq!(before.differences(&Snapshot::take(&lab.node, &product)), Vec::<String>::new());

    product.manifests(&[("nics.yaml", NIC_CLASSES), ("routes.yaml", ROUTES)]);
    degraded(false);

    fs::remove_dir_all(product.manifest_dir()).unwrap();
    degraded(true);
    assert_eq!(before.differences(&Snapshot::take(&lab.node, &product)), Vec::<String>::new());
    fs::create_dir(product.manifest_dir()).unwrap();
    product.manifests(&[("nics.yaml", NIC_CLASSES), ("routes.yaml", ROUTES)]);
    degraded(false);
    everything_is_answered(&lab);
}

#[test]
fn a_config_map_volume_is_followed_when_its_link_is_swapped() {
    let lab = TwoNic::builder().build();
    let product = Product::new(&lab.node);
    let directory = product.manifest_dir();
    let version = |name: &str, routes: &str| {
        let version = directory.join(name);
        fs::create_dir(&version).unwrap();
        fs::write(version.join("nics.yaml"), NIC_CLASSES).unwrap();
        fs::write(version.join("routes.yaml"), routes).unwrap();
        let half = directory.join("..data_tmp");
        symlink(name, &half).unwrap();
        fs::rename(&half, directory.join("..data")).unwrap();
    };
    version("..2026_1", ROUTES);
    for name in ["nics.yaml", "routes.yaml"] {
        symlink(format!("..data/{name}"), directory.join(name)).unwrap();
    }
    let _agent = product.agent();
    routes_are_there(&lab).unwrap();
    version("..2026_2", &ROUTES.replace("172.30.0.0/16", "172.31.0.0/16"));
    fs::remove_dir_all(directory.join("..2026_1")).unwrap();
    repaired("the new version is taken", || {
        let found = [routes_to(&lab.node, "172.31.0.0/16"), routes_to(&lab.node, "172.30.0.0/16")];
        if found[0].len() == 1 && found[1].is_empty() { Ok(()) } else { Err(found) }
    });
}

#[test]
fn a_directory_that_is_a_link_is_followed_when_the_link_is_swapped() {
    let lab = TwoNic::builder().build();
    let product = Product::new(&lab.node);
    let link = product.manifest_dir();
    let versions = link.with_file_name("versions");
    let version = |name: &str, routes: &str| {
        let version = versions.join(name);
        fs::create_dir_all(&version).unwrap();
        fs::write(version.join("nics.yaml"), NIC_CLASSES).unwrap();
        fs::write(version.join("routes.yaml"), routes).unwrap();
        let half = link.with_file_name("half-made-link");
        symlink(&version, &half).unwrap();
        fs::rename(&half, &link).unwrap();
    };
    fs::remove_dir(&link).unwrap();
    version("1", ROUTES);
    let _agent = product.agent();
    routes_are_there(&lab).unwrap();
    version("2", &ROUTES.replace("172.30.0.0/16", "172.31.0.0/16"));
    let taken = |what: &str, destination: &str| {
        repaired(what, || {
            let found = routes_to(&lab.node, destination);
            if found.len() == 1 { Ok(()) } else { Err(found) }
        });
    };
    taken("the other directory is taken", "172.31.0.0/16");
    fs::write(versions.join("2/routes.yaml"), ROUTES.replace("172.30.0.0/16", "172.29.0.0/16")).unwrap();
    taken("and watched from then on", "172.29.0.0/16");
}
