//! The daemon: its death changes nothing, manifests are followed, what others change is put right.

#[path = "support/host.rs"]
mod host;
mod support;

use std::{
    fs,
    os::unix::fs::symlink,
    time::{Duration, Instant},
};

use agent::hook::{Direction, Position};
use host::{
    Condition, Foreign, NICS, REPAIR, Servers, Snapshot, all_passed, everything_is_answered, metric, nic_of, nicpath,
    nothing_left_by_the_wrong_nic, on_hook, one_program_per_hook, own_routes, random_below, repaired, routes_to,
    status_has_one_program_per_hook, stderr, succeeded, targets,
};
use support::NIC_CLASSES;
use tests::{
    Family, TwoNic,
    lab::{CLIENT, Side, gateway_address, mac, node_address},
    product::{AgentGuard, Product},
    traffic::{Checker, ping_check},
    wait::eventually,
};

const PATIENCE: Duration = Duration::from_secs(8);

const MGMT_CLASS: &str = r#"
apiVersion: nicpath.dev/v1alpha1
kind: NicClass
metadata: {name: mgmt}
spec: {match: {names: [eth1]}, gateways: [10.20.0.1, "fd00:20::1"]}
"#;

/// One destination of each family by eth1.
const ROUTES: &str = r#"
apiVersion: nicpath.dev/v1alpha1
kind: RouteEntry
metadata: {name: services}
spec: {destinations: [172.30.0.0/16, "fd00:30::/48"], nic: {class: mgmt}}
"#;

fn product(lab: &TwoNic) -> Product {
    let product = Product::new(&lab.node);
    product.manifests(&[("nics.yaml", NIC_CLASSES), ("routes.yaml", ROUTES)]);
    product
}

fn corrections(agent: &AgentGuard<'_>, kind: &str) -> u64 {
    metric(&agent.metrics(), &format!("nicpath_corrections_total{{kind=\"{kind}\"}}"))
}

fn routes_are_there(lab: &TwoNic) -> Result<(), Vec<String>> {
    let found = own_routes(&lab.node);
    let all = ["172.30.0.0/16 via 10.20.0.1", "fd00:30::/48 via fd00:20::1"]
        .iter()
        .all(|start| found.iter().any(|line| line.starts_with(start)));
    if all && found.len() == 2 { Ok(()) } else { Err(found.into_iter().collect()) }
}

#[test]
fn every_check_passes_while_the_agent_is_killed_at_random_moments_and_started_again() {
    let lab = TwoNic::builder().build();
    let product = product(&lab);
    let _servers = Servers::start(&lab);
    let agent = product.agent();
    let programs = one_program_per_hook(&lab.node);
    let routes = own_routes(&lab.node);
    let checker = Checker::start(targets(&lab), 20);
    eventually(PATIENCE, "checks before the first kill", || (checker.done() >= 10).then_some(()));
    agent.kill9();
    for _ in 0..5 {
        // most of these fall into the start, which takes some tens of milliseconds
        let moment = random_below(Duration::from_millis(150));
        let agent = product.agent_unready(&[]);
        std::thread::sleep(moment);
        println!("killed after {moment:?}");
        agent.kill9();
    }
    let dead = checker.done();
    eventually(PATIENCE, "checks while no agent lives", || (checker.done() >= dead + 10).then_some(()));
    let agent = product.agent();
    let restarted = checker.done();
    eventually(PATIENCE, "checks after the restart", || (checker.done() >= restarted + 20).then_some(()));
    all_passed(&checker.stop(), 40);
    nothing_left_by_the_wrong_nic(&lab);
    assert_eq!(one_program_per_hook(&lab.node), programs, "the same programs run on");
    assert_eq!(own_routes(&lab.node), routes);
    status_has_one_program_per_hook(&product.status());
    drop(agent);
}

#[test]
fn an_agent_killed_during_its_very_first_start_leaves_nothing_that_the_next_cannot_finish() {
    let lab = TwoNic::builder().build();
    let product = product(&lab);
    let _servers = Servers::start(&lab);
    for _ in 0..6 {
        let moment = random_below(Duration::from_millis(120));
        let agent = product.agent_unready(&[]);
        std::thread::sleep(moment);
        agent.kill9();
        let attached: Vec<_> = NICS.iter().flat_map(|nic| Direction::ALL.map(|d| on_hook(&lab.node, nic, d).len())).collect();
        println!("killed after {moment:?}: programs per hook {attached:?}, {} routes", own_routes(&lab.node).len());
        assert!(attached.iter().all(|count| *count <= 1), "{attached:?}");
        succeeded(&product.uninstall());
    }
    let _agent = product.agent();
    one_program_per_hook(&lab.node);
    everything_is_answered(&lab);
}

#[test]
fn a_second_agent_waits_and_takes_over_without_a_failed_check() {
    let lab = TwoNic::builder().build();
    let product = product(&lab);
    let _servers = Servers::start(&lab);
    let first = product.agent();
    let programs = one_program_per_hook(&lab.node);
    let checker = Checker::start(targets(&lab), 20);
    let mut second = product.agent_unready(&[]);
    let waits = format!("another nicpath works with this state directory; waiting for its end pid={}", first.pid());
    eventually(PATIENCE, "the second agent waits", || {
        let log = second.log();
        if log.contains(&waits) { Ok(()) } else { Err(log) }
    });
    let refused = product.apply();
    assert_eq!(refused.status.code(), Some(1));
    let message = stderr(&refused);
    assert!(message.contains(&format!("pid {}", first.pid())) && message.contains("stop it first"), "{message}");
    assert_eq!(one_program_per_hook(&lab.node), programs);
    first.kill9();
    second.wait_until_ready();
    let taken_over = checker.done();
    eventually(PATIENCE, "checks after the change", || (checker.done() >= taken_over + 5).then_some(()));
    all_passed(&checker.stop(), 5);
    nothing_left_by_the_wrong_nic(&lab);
    assert_eq!(one_program_per_hook(&lab.node), programs);
    drop(second);
}

#[test]
fn two_agents_with_a_memory_each_on_one_node_do_not_disturb_traffic() {
    let lab = TwoNic::builder().build();
    let product = product(&lab);
    let _servers = Servers::start(&lab);
    let first = product.agent();
    let programs = one_program_per_hook(&lab.node);
    let other = Product::new(&lab.node);
    let checker = Checker::start(targets(&lab), 20);
    let (bpffs, manifests) = (product.bpffs().to_str().unwrap(), product.manifest_dir());
    let (state, manifests) = (other.state_dir(), manifests.to_str().unwrap());
    let arguments = ["apply", "--state-dir", state.to_str().unwrap(), "--bpffs", bpffs, "--manifests", manifests];
    for _ in 0..3 {
        let said = succeeded(&nicpath(&lab.node, &product, &arguments).output().unwrap());
        assert!(said.contains("2 NICs, 2 routes, 0 changes"), "{said}");
    }
    eventually(PATIENCE, "checks", || (checker.done() >= 10).then_some(()));
    all_passed(&checker.stop(), 10);
    nothing_left_by_the_wrong_nic(&lab);
    assert_eq!(one_program_per_hook(&lab.node), programs);
    drop(first);
}

#[test]
fn an_agent_that_is_told_to_end_leaves_everything_working() {
    let lab = TwoNic::builder().build();
    let product = product(&lab);
    let _servers = Servers::start(&lab);
    let agent = product.agent();
    let (programs, before) = (one_program_per_hook(&lab.node), Snapshot::take(&lab.node, &product));
    assert!(agent.terminate().success());
    assert_eq!(before.differences(&Snapshot::take(&lab.node, &product)), Vec::<String>::new());
    assert_eq!(one_program_per_hook(&lab.node), programs);
    everything_is_answered(&lab);
    let output = lab.node.command("true").status().unwrap();
    assert!(output.success());
}

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
        if moved && found.iter().any(|line| line.starts_with("172.31.0.0/16 via 10.10.0.1")) { Ok(found) } else { Err(found) }
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
        (wrong.as_str(), "routes.yaml:5: document 1 (RouteEntry/services): spec.destinations[0]: 172.30.0.1/16", "HostBits"),
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

#[test]
fn routes_and_settings_that_others_change_are_put_right() {
    let lab = TwoNic::builder().build();
    let product = product(&lab);
    let agent = product.agent();
    let before = Snapshot::take(&lab.node, &product);
    let (routes, settings) = (corrections(&agent, "route"), corrections(&agent, "sysctl"));
    assert_eq!((routes, settings), (0, 0), "what is set for the first time is no correction");

    lab.node.ip("route del 172.30.0.0/16");
    repaired("a deleted route", || routes_are_there(&lab));
    lab.node.ip("-6 route del fd00:30::/48");
    repaired("a deleted IPv6 route", || routes_are_there(&lab));
    for family in ["-4", "-6"] {
        lab.node.ip(&format!("{family} route flush proto 157"));
    }
    repaired("flushed routes", || routes_are_there(&lab));
    lab.node.ip("route change 172.30.0.0/16 via 10.10.0.1 dev eth0 proto 157");
    repaired("a route of ours that was bent", || {
        let found = routes_to(&lab.node, "172.30.0.0/16");
        if found.len() == 1 && found[0].starts_with("172.30.0.0/16 via 10.20.0.1 dev eth1") { Ok(()) } else { Err(found) }
    });
    eventually(PATIENCE, "five corrected routes are counted", || {
        let counted = corrections(&agent, "route");
        if counted == 5 { Ok(()) } else { Err(counted) }
    });

    let changed = [
        ("net/ipv4/conf/eth0/rp_filter", "1"),
        ("net/ipv4/conf/eth1/rp_filter", "0"),
        ("net/ipv4/conf/eth1/arp_announce", "0"),
    ];
    for (setting, value) in changed {
        lab.node.sysctl(setting, value);
        repaired(setting, || {
            let found = lab.node.read_sysctl(setting);
            if found == "2" { Ok(()) } else { Err(found) }
        });
    }
    eventually(PATIENCE, "three corrected settings are counted", || {
        let counted = corrections(&agent, "sysctl");
        if counted == 3 { Ok(()) } else { Err(counted) }
    });
    assert_eq!(before.differences(&Snapshot::take(&lab.node, &product)), Vec::<String>::new());
}

#[test]
fn programs_that_others_detach_are_attached_again() {
    let lab = TwoNic::builder().build();
    let product = product(&lab);
    let _servers = Servers::start(&lab);
    let agent = product.agent();
    let programs = one_program_per_hook(&lab.node);
    assert_eq!(corrections(&agent, "program"), 0);
    for (count, nic, direction) in [(1, "eth1", Direction::Egress), (2, "eth1", Direction::Ingress), (3, "eth0", Direction::Egress)] {
        let link = product.bpffs().join(format!("links/{}-{}", lab.node.ifindex(nic), direction.name()));
        fs::remove_file(&link).unwrap();
        repaired(&format!("{} of {nic}", direction.name()), || {
            let found = on_hook(&lab.node, nic, direction);
            if found.len() == 1 && link.exists() { Ok(()) } else { Err(found) }
        });
        eventually(PATIENCE, "it is counted", || {
            let counted = corrections(&agent, "program");
            if counted == count { Ok(()) } else { Err(counted) }
        });
    }
    assert_eq!(one_program_per_hook(&lab.node), programs, "the same programs as before");
    everything_is_answered(&lab);
    // with the pins of programs and maps gone as well, all is loaded anew
    fs::remove_file(product.bpffs().join("egress")).unwrap();
    repaired("a pinned program", || product.bpffs().join("egress").exists().then_some(()));
    repaired("and the hooks", || {
        let status = product.status();
        let states = NICS.map(|nic| nic_of(&status, nic)["programs"]["egress"]["state"].clone());
        if states.iter().all(|state| state == "attached") { Ok(()) } else { Err(states) }
    });
    one_program_per_hook(&lab.node);
    everything_is_answered(&lab);
}

#[test]
fn a_foreign_program_on_the_hook_runs_on_whatever_happens_to_ours() {
    let lab = TwoNic::builder().build();
    let product = product(&lab);
    let _servers = Servers::start(&lab);
    let foreign = Foreign::attach(&lab.node, &NICS, Position::First);
    let agent = product.agent();
    let beside = |order: [bool; 2]| {
        for nic in NICS {
            for direction in Direction::ALL {
                let ids: Vec<bool> =
                    on_hook(&lab.node, nic, direction).iter().map(|p| p.id == foreign.ids[&direction]).collect();
                assert_eq!(ids, order, "{nic} {direction:?}");
            }
        }
    };
    let runs = || {
        let before = foreign.packets();
        everything_is_answered(&lab);
        for (direction, packets) in foreign.packets() {
            assert!(packets > before[&direction], "{direction:?}: {packets} after {before:?}");
        }
    };
    beside([true, false]);
    runs();
    for direction in Direction::ALL {
        let link = product.bpffs().join(format!("links/{}-{}", lab.node.ifindex("eth1"), direction.name()));
        fs::remove_file(link).unwrap();
        repaired("ours is attached again", || {
            let found = on_hook(&lab.node, "eth1", direction);
            if found.len() == 2 { Ok(()) } else { Err(found) }
        });
    }
    beside([true, false]);
    runs();
    agent.kill9();
    succeeded(&product.uninstall());
    for direction in Direction::ALL {
        let found = on_hook(&lab.node, "eth1", direction);
        assert!(found.len() == 1 && found[0].id == foreign.ids[&direction], "{found:?}");
    }
    // nobody moves replies any more, so only the NIC of the default route is asked
    let before = foreign.packets();
    for target in targets(&lab).iter().take(6) {
        target.check(Duration::from_millis(900)).unwrap();
    }
    assert!(foreign.packets().iter().all(|(direction, packets)| packets > &before[direction]));
}

#[test]
fn a_nic_that_goes_down_and_up_works_again_within_two_seconds() {
    let lab = TwoNic::builder().build();
    let product = product(&lab);
    let _servers = Servers::start(&lab);
    let _agent = product.agent();
    everything_is_answered(&lab);
    lab.node.ip("link set eth1 down");
    repaired("the NIC's state is told", || {
        let status = product.status();
        let nic = nic_of(&status, "eth1");
        if nic["ready"] == false && nic["reason"] == "NicDown" { Ok(()) } else { Err(nic.clone()) }
    });
    // the kernel drops the IPv6 address with the link
    let address = node_address(1, Family::V6);
    lab.node.ip_batch(&format!("link set eth1 up\naddr replace {address}/64 dev eth1 nodad\n"));
    repaired("the routes", || routes_are_there(&lab));
    assert!(routes_to(&lab.node, "172.30.0.0/16")[0].starts_with("172.30.0.0/16 via 10.20.0.1 dev eth1"));
    works_again(&lab);
}

/// Every kind of check passes within the time of a repair; packets of before it do not count.
fn works_again(lab: &TwoNic) {
    for target in targets(lab) {
        repaired(target.name(), || target.check(Duration::from_millis(200)));
    }
    lab.reset_counters();
    everything_is_answered(lab);
}

#[test]
fn an_address_added_or_removed_is_owned_or_not_within_two_seconds() {
    let lab = TwoNic::builder().build();
    let product = product(&lab);
    let _servers = Servers::start(&lab);
    let _agent = product.agent();
    for (added, family) in [("10.20.0.77", Family::V4), ("fd00:20::77", Family::V6)] {
        let bits = if family == Family::V4 { 24 } else { 64 };
        let (client, address) = (CLIENT.get(family), added.parse().unwrap());
        lab.node.ip(&format!("addr add {added}/{bits} dev eth1 nodad"));
        repaired(added, || ping_check(lab.gw(1).ns(), client, address, Duration::from_millis(200)));
        lab.reset_counters();
        ping_check(lab.gw(1).ns(), client, address, Duration::from_millis(900)).unwrap();
        assert_eq!(lab.gw(0).counter("wrong_source"), 0);
        assert_eq!(lab.gw(1).counter("from_node"), 1);
        lab.node.ip(&format!("addr del {added}/{bits} dev eth1"));
        repaired("it is forgotten", || {
            let status = product.status();
            let owned = nic_of(&status, "eth1")["addresses"].as_array().unwrap().clone();
            if owned.iter().any(|address| address == added) { Err(owned) } else { Ok(()) }
        });
    }
    // the main address: its routes with it as source go, too
    let address = node_address(1, Family::V4);
    lab.node.ip(&format!("addr del {address}/24 dev eth1"));
    repaired("nothing is routed by a NIC without an address", || {
        let found = routes_to(&lab.node, "172.30.0.0/16");
        if found.is_empty() { Ok(()) } else { Err(found) }
    });
    lab.node.ip(&format!("addr add {address}/24 dev eth1"));
    let routes = repaired("the route is back", || {
        let found = routes_to(&lab.node, "172.30.0.0/16");
        if found.is_empty() { Err(found) } else { Ok(found) }
    });
    assert!(routes[0].starts_with("172.30.0.0/16 via 10.20.0.1 dev eth1") && routes[0].contains("src 10.20.0.10"));
    works_again(&lab);
}

#[test]
fn a_nic_that_is_deleted_and_made_again_is_taken_over_by_its_name() {
    let lab = TwoNic::builder().build();
    let product = product(&lab);
    let _servers = Servers::start(&lab);
    let agent = product.agent();
    let index = lab.node.ifindex("eth1");
    // once under another index, once under the same, where the dead attachment has the name of the new one
    for new_index in [index + 100, index + 100] {
        lab.node.ip("link del eth1");
        make_eth1(&lab, new_index);
        repaired("both hooks", || {
            let found = Direction::ALL.map(|direction| on_hook(&lab.node, "eth1", direction).len());
            if found == [1, 1] { Ok(()) } else { Err(found) }
        });
        repaired("the routes", || routes_are_there(&lab));
        let settings = ["rp_filter", "arp_announce"].map(|s| lab.node.read_sysctl(&format!("net/ipv4/conf/eth1/{s}")));
        assert_eq!(settings, ["2", "2"]);
        works_again(&lab);
        let status = product.status();
        assert_eq!(nic_of(&status, "eth1")["ifindex"], new_index);
        status_has_one_program_per_hook(&status);
    }
    let links: Vec<_> = fs::read_dir(product.bpffs().join("links")).unwrap().flatten().map(|e| e.file_name()).collect();
    assert_eq!(links.len(), 4, "no attachment of a NIC that is gone is left: {links:?}");
    drop(agent);
}

/// eth1 and its gateway's end, as the lab made them.
fn make_eth1(lab: &TwoNic, index: u32) {
    let text = |side| mac(1, side).map(|byte| format!("{byte:02x}")).join(":");
    lab.node.ip_batch(&format!(
        "link add eth1 index {index} address {node} type veth peer name g1 address {gateway} netns {ns}\n\
         link set eth1 up\naddr add {v4}/24 dev eth1\naddr add {v6}/64 dev eth1 nodad\n",
        node = text(Side::Node),
        gateway = text(Side::Gateway),
        ns = lab.gw(1).ns().name(),
        v4 = node_address(1, Family::V4),
        v6 = node_address(1, Family::V6),
    ));
    lab.gw(1).ns().ip_batch(&format!(
        "link set g1 up\naddr add {v4}/24 dev g1\naddr add {v6}/64 dev g1 nodad\naddr add fe80::1/64 dev g1 nodad\n",
        v4 = gateway_address(1, Family::V4),
        v6 = gateway_address(1, Family::V6),
    ));
}

#[test]
fn somebody_who_undoes_our_changes_all_the_time_is_not_followed_at_the_same_pace() {
    let lab = TwoNic::builder().build();
    let product = product(&lab);
    let agent = product.agent();
    let start = Instant::now();
    let mut deleted = 0;
    while start.elapsed() < REPAIR * 2 {
        let delete = lab.node.command("ip").args(["route", "del", "172.30.0.0/16", "proto", "157"]).output().unwrap();
        deleted += u32::from(delete.status.success());
    }
    println!("deleted {deleted} times, corrected {} times", corrections(&agent, "route"));
    assert!((2..=12).contains(&deleted), "{deleted} repairs in {:?}", start.elapsed());
    eventually(PATIENCE, "the route is back when it is left alone", || routes_are_there(&lab));
}
