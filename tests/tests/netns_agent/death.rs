//! The agent killed, started again, started twice, told to end.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use agent::hook::Direction;
use tests::{TwoNic, product::Product, traffic::Checker, wait::eventually};

use crate::{
    PATIENCE,
    host::{
        NICS, Servers, Snapshot, all_passed, everything_is_answered, nicpath, nothing_left_by_the_wrong_nic, on_hook,
        one_program_per_hook, own_routes, random_below, status_has_one_program_per_hook, stderr, succeeded, targets,
    },
    product, routes_are_there,
};

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
        let started = Instant::now();
        eventually(PATIENCE, "the moment of the kill", || (started.elapsed() >= moment).then_some(()));
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
fn an_agent_killed_anywhere_in_its_very_first_start_leaves_nothing_that_the_next_cannot_finish() {
    let lab = TwoNic::builder().build();
    let product = product(&lab);
    let _servers = Servers::start(&lab);
    // maps, then programs, then attachments, each of which is a file; then routes
    for pins in [1, 4, 8, 10, 11, 12, 13, 14] {
        let agent = product.agent_unready(&[]);
        let deadline = Instant::now() + PATIENCE;
        while pinned(&product) < pins {
            assert!(Instant::now() < deadline, "{} of {pins} pins", pinned(&product));
        }
        agent.kill9();
        let hooks =
            NICS.iter().flat_map(|nic| Direction::ALL.map(|direction| on_hook(&lab.node, nic, direction).len()));
        let hooks: Vec<_> = hooks.collect();
        println!("killed with {} pins, programs per hook {hooks:?}", pinned(&product));
        assert!(hooks.iter().all(|count| *count <= 1), "{hooks:?}");
        let next = product.agent();
        one_program_per_hook(&lab.node);
        routes_are_there(&lab).unwrap();
        lab.reset_counters();
        everything_is_answered(&lab);
        next.kill9();
        succeeded(&product.uninstall());
    }
}

/// Maps, programs and attachments in the product's bpffs.
fn pinned(product: &Product) -> usize {
    let in_directory = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().count();
    // not the file system's own progs.debug and maps.debug, nor the directory of attachments
    (in_directory(product.bpffs()) + in_directory(&product.bpffs().join("links"))).saturating_sub(3)
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
}
