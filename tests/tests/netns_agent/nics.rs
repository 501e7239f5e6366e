//! NICs and addresses that come and go.

use std::{fs, time::Duration};

use agent::hook::Direction;
use tests::{
    Family, TwoNic,
    lab::{CLIENT, Side, gateway_address, mac, node_address},
    traffic::ping_check,
};

use crate::{
    host::{
        Servers, everything_is_answered, nic_of, on_hook, repaired, routes_to, status_has_one_program_per_hook, targets,
    },
    product, routes_are_there,
};

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
