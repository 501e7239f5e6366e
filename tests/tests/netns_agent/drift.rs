//! What others change of routes, settings and programs.

use std::{
    fs,
    time::{Duration, Instant},
};

use agent::hook::{Direction, Position};
use tests::{TwoNic, wait::eventually};

use crate::{
    PATIENCE, corrections,
    host::{
        Foreign, NICS, REPAIR, Servers, Snapshot, everything_is_answered, nic_of, on_hook, one_program_per_hook,
        repaired, routes_to, succeeded, targets,
    },
    product, routes_are_there,
};

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
        if found.len() == 1 && found[0].starts_with("172.30.0.0/16 via 10.20.0.1 dev eth1") {
            Ok(())
        } else {
            Err(found)
        }
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
    for (count, nic, direction) in
        [(1, "eth1", Direction::Egress), (2, "eth1", Direction::Ingress), (3, "eth0", Direction::Egress)]
    {
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
        fs::remove_file(&link).unwrap();
        repaired("ours is attached again", || {
            let found = on_hook(&lab.node, "eth1", direction);
            // the kernel detaches a moment after the pin is gone
            if found.len() == 2 && link.exists() { Ok(()) } else { Err(found) }
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
fn somebody_who_undoes_our_changes_all_the_time_is_not_followed_at_the_same_pace() {
    let lab = TwoNic::builder().build();
    let product = product(&lab);
    let agent = product.agent();
    let start = Instant::now();
    let mut deleted = 0;
    while start.elapsed() < REPAIR {
        let delete = lab.node.command("ip").args(["route", "del", "172.30.0.0/16", "proto", "157"]).output().unwrap();
        deleted += u32::from(delete.status.success());
    }
    println!("deleted {deleted} times, corrected {} times", corrections(&agent, "route"));
    assert!((2..=8).contains(&deleted), "{deleted} repairs in {:?}", start.elapsed());
    // the quarrel about one route delays nothing else
    lab.node.ip("-6 route del fd00:30::/48");
    repaired("another route", || {
        let found = routes_to(&lab.node, "fd00:30::/48");
        if found.len() == 1 { Ok(()) } else { Err(found) }
    });
    lab.node.sysctl("net/ipv4/conf/eth1/rp_filter", "1");
    repaired("a setting", || (lab.node.read_sysctl("net/ipv4/conf/eth1/rp_filter") == "2").then_some(()));
    eventually(PATIENCE, "the route is back when it is left alone", || routes_are_there(&lab));
}
