//! Destination routes as objects in the real routing table, beside routes of others.
#![expect(clippy::unwrap_used, clippy::panic, reason = "what a test stands on fails the test")]

#[path = "support/host.rs"]
mod host;
mod support;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::{Duration, Instant},
};

use host::{Condition, metric, own_routes, repaired, route_of, routes_to, stderr, succeeded};
use serde_json::Value;
use support::NIC_CLASSES;
use tests::{
    Family, TwoNic,
    lab::{node_address, subnet},
    product::Product,
    traffic::{Checker, Target, ping_check},
    wait::eventually,
};

const PATIENCE: Duration = Duration::from_secs(8);

/// A RouteEntry in one line of YAML.
fn entry(name: &str, destinations: &str, rest: &str) -> String {
    format!(
        "---\napiVersion: nicpath.dev/v1alpha1\nkind: RouteEntry\nmetadata: {{name: {name}}}\n\
         spec: {{destinations: [{destinations}], {rest}}}\n"
    )
}

const BY_MGMT: &str = "nic: {class: mgmt}";
const BY_USER: &str = "nic: {class: user}";
/// One destination of each family, and hosts in them.
const DESTINATIONS: [(&str, &str); 2] = [("172.30.0.0/16", "172.30.0.1"), ("fd00:30::/48", "fd00:30::1")];

fn services(rest: &str) -> String {
    entry("services", "172.30.0.0/16, \"fd00:30::/48\"", rest)
}

/// The hosts behind both gateways.
fn serve_destinations(lab: &TwoNic) {
    for nic in [0, 1] {
        for (_, host) in DESTINATIONS {
            lab.gw(nic).ns().ip(&format!("addr add {host}/{} dev lo nodad", Family::of(host.parse().unwrap()).bits()));
        }
    }
}

/// A check by the node itself, with the source that its route gives.
fn from_node(lab: &TwoNic, host: &str) -> Target {
    let host: IpAddr = host.parse().unwrap();
    Target::ping(&lab.node, unspecified(host), host)
}

fn unspecified(of: IpAddr) -> IpAddr {
    match of {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

fn setup(builder: tests::lab::Builder, routes: &str) -> (TwoNic, Product) {
    let lab = builder.build();
    let product = Product::new(&lab.node);
    product.manifests(&[("nics.yaml", NIC_CLASSES), ("routes.yaml", routes)]);
    (lab, product)
}

fn one_route(lab: &TwoNic, destination: &str, start: &str) -> Result<(), Vec<String>> {
    let found = routes_to(&lab.node, destination);
    if found.len() == 1 && found[0].starts_with(start) { Ok(()) } else { Err(found) }
}

fn state(status: &Value, destination: &str, entry: &str) -> (String, String) {
    let route = route_of(status, destination, entry);
    let text = |field: &str| route[field].as_str().unwrap_or_default().to_owned();
    (text("state"), text("reason"))
}

#[test]
fn routes_are_ours_by_protocol_and_packets_take_them_with_their_source() {
    let (lab, product) = setup(TwoNic::builder(), &services(BY_MGMT));
    serve_destinations(&lab);
    for (_, host) in DESTINATIONS {
        assert!(from_node(&lab, host).check(Duration::from_millis(500)).is_ok(), "by the default route");
    }
    assert_eq!(lab.gw(1).counter("from_node"), 0);
    lab.reset_counters();
    succeeded(&product.apply());
    for (family, (destination, host)) in Family::ALL.into_iter().zip(DESTINATIONS) {
        let gateway = lab.gateway(1, family);
        let found = routes_to(&lab.node, destination);
        let [line] = found.as_slice() else { panic!("{found:?}") };
        let words = [format!("via {gateway} dev eth1"), "proto 157".into(), format!("src {}", node_address(1, family))];
        assert!(words.iter().all(|word| line.contains(word)), "{line}");
        from_node(&lab, host).check(Duration::from_millis(500)).unwrap();
    }
    let counters = lab.counters();
    assert_eq!((counters.get("gw1 from_node_icmp4"), counters.get("gw1 from_node_icmp6")), (Some(&1), Some(&1)));
    assert!(!counters.keys().any(|name| name.starts_with("gw0") || name.contains("wrong")), "{counters:?}");
    let status = product.status();
    for (destination, _) in DESTINATIONS {
        let route = route_of(&status, destination, "services");
        assert_eq!((&route["state"], &route["nic"]), (&"applied".into(), &"eth1".into()), "{route}");
    }
}

#[test]
fn gateway_source_and_mtu_of_an_entry_are_in_the_kernel() {
    let routes = [
        entry("narrow", "172.30.0.0/16", "nic: {name: eth1}, gateway: 10.20.0.9, source: 10.20.0.77, mtu: 1400"),
        entry("narrow6", "\"fd00:30::/48\"", "nic: {name: eth1}, gateway: \"fd00:20::9\", mtu: 1300"),
        entry("by-link-local", "\"fd00:31::/48\"", "nic: {class: mgmt}, gateway: \"fe80::1\""),
    ];
    let (lab, product) = setup(TwoNic::builder(), &routes.concat());
    lab.node.ip("addr add 10.20.0.77/24 dev eth1");
    succeeded(&product.apply());
    let line = &routes_to(&lab.node, "172.30.0.0/16")[0];
    assert!(
        line.contains("via 10.20.0.9 dev eth1") && line.contains("src 10.20.0.77") && line.contains("mtu 1400"),
        "{line}"
    );
    let line = &routes_to(&lab.node, "fd00:30::/48")[0];
    assert!(line.contains("via fd00:20::9 dev eth1") && line.contains("mtu 1300"), "{line}");
    let line = &routes_to(&lab.node, "fd00:31::/48")[0];
    assert!(line.contains("via fe80::1 dev eth1"), "{line}");
    let said = succeeded(&product.apply());
    assert!(said.contains("3 routes, 0 changes"), "{said}");
}

#[test]
fn a_foreign_route_that_was_there_first_is_left_and_ours_comes_when_it_goes() {
    for (destination, foreign) in [
        ("172.30.0.0/16", "172.30.0.0/16 via 10.10.0.1 dev eth0"),
        // the very route that we would install
        ("172.30.0.0/16", "172.30.0.0/16 via 10.20.0.1 dev eth1 src 10.20.0.10"),
        ("fd00:30::/48", "fd00:30::/48 via fd00:10::1 dev eth0 metric 1024"),
    ] {
        let (lab, product) = setup(TwoNic::builder(), &services(BY_MGMT));
        lab.node.ip(&format!("route add {foreign} proto static"));
        let before = routes_to(&lab.node, destination);
        let agent = product.agent();
        let status = product.status();
        assert_eq!(state(&status, destination, "services"), ("conflict".into(), "Conflict".into()));
        let condition = Condition::of(&status, "Conflict");
        assert!(condition.holds() && condition.message.contains(destination), "{condition:?}");
        assert_eq!(routes_to(&lab.node, destination), before);
        assert_eq!(own_routes(&lab.node).len(), 1, "the other destination is applied");
        assert_eq!(metric(&agent.metrics(), "nicpath_routes{state=\"conflict\"}"), 1);
        lab.node.ip(&format!("route del {foreign} proto static"));
        repaired("ours comes", || {
            let found = own_routes(&lab.node);
            if found.len() == 2 { Ok(()) } else { Err(found) }
        });
        repaired("the conflict is over", || {
            let condition = Condition::of(&product.status(), "Conflict");
            if condition.holds() { Err(condition) } else { Ok(()) }
        });
    }
}

#[test]
fn a_foreign_route_that_comes_later_in_the_place_of_ours_is_left() {
    for (destination, foreign) in [
        ("172.30.0.0/16", "172.30.0.0/16 via 10.10.0.1 dev eth0"),
        ("fd00:30::/48", "fd00:30::/48 via fd00:10::1 dev eth0 metric 1024"),
    ] {
        let (lab, product) = setup(TwoNic::builder(), &services(BY_MGMT));
        let agent = product.agent();
        lab.node.ip(&format!("route replace {foreign} proto static"));
        let theirs = routes_to(&lab.node, destination);
        assert_eq!(theirs.len(), 1, "{theirs:?}");
        repaired("the conflict is told", || {
            let found = state(&product.status(), destination, "services");
            if found.0 == "conflict" { Ok(()) } else { Err(found) }
        });
        repaired("by the agent, too", || {
            let found = metric(&agent.metrics(), "nicpath_routes{state=\"conflict\"}");
            if found == 1 { Ok(()) } else { Err(found) }
        });
        assert_eq!(routes_to(&lab.node, destination), theirs);
        succeeded(&lab.node.command("ip").args(["route", "del"]).args(foreign.split(' ')).output().unwrap());
        let start =
            if destination.contains(':') { "fd00:30::/48 via fd00:20::1" } else { "172.30.0.0/16 via 10.20.0.1" };
        repaired("ours is back", || one_route(&lab, destination, start));
    }
}

#[test]
fn foreign_routes_beside_ours_survive_everything_we_do() {
    let (lab, product) = setup(TwoNic::builder(), &services(BY_MGMT));
    let foreign = [
        "172.31.0.0/16 via 10.20.0.1 dev eth1 proto static",
        "172.30.5.0/24 via 10.10.0.1 dev eth0 proto bird",
        "fd00:31::/48 via fd00:20::1 dev eth1 proto static metric 1024",
    ];
    for route in foreign {
        lab.node.ip(&format!("route add {route}"));
    }
    let theirs = || ["172.31.0.0/16", "172.30.5.0/24", "fd00:31::/48"].map(|to| routes_to(&lab.node, to));
    let before = theirs();
    succeeded(&product.apply());
    product.manifests(&[("nics.yaml", NIC_CLASSES)]);
    succeeded(&product.apply());
    assert!(own_routes(&lab.node).is_empty());
    succeeded(&product.uninstall());
    assert_eq!(theirs(), before);
}

#[test]
fn of_two_entries_for_one_destination_the_winner_is_stable_and_the_loser_follows_without_a_gap() {
    let both = |first: &str, second: &str| {
        entry("first", "172.30.0.0/16, \"fd00:30::/48\"", first)
            + &entry("second", "172.30.0.0/16, \"fd00:30::/48\"", second)
    };
    let (lab, product) = setup(TwoNic::builder(), &both(BY_MGMT, BY_USER));
    serve_destinations(&lab);
    let _agent = product.agent();
    let goes_by = |nic: usize| {
        repaired(&format!("eth{nic} wins"), || {
            let found = own_routes(&lab.node);
            let device = format!("dev eth{nic} ");
            if found.len() == 2 && found.iter().all(|line| line.contains(&device)) { Ok(()) } else { Err(found) }
        });
    };
    goes_by(1);
    let status = product.status();
    for (destination, _) in DESTINATIONS {
        assert_eq!(state(&status, destination, "first").0, "applied");
        assert_eq!(state(&status, destination, "second"), ("refused".into(), "DuplicateDestination".into()));
        let told = route_of(&status, destination, "second")["message"].as_str().unwrap().to_owned();
        assert!(told.contains("first"), "the loser is told who won: {told}");
    }
    let checker = Checker::start(DESTINATIONS.map(|(_, host)| from_node(&lab, host)).to_vec(), 200);
    let checks = |more| {
        let done = checker.done();
        eventually(PATIENCE, "checks", || (checker.done() >= done + more).then_some(()));
    };
    let change = |routes: &str| product.manifests(&[("nics.yaml", NIC_CLASSES), ("routes.yaml", routes)]);
    checks(10);
    // the file's order and a restart decide nothing; the winner goes; it comes back; the other gets a higher priority
    change(
        &(entry("second", "172.30.0.0/16, \"fd00:30::/48\"", BY_USER)
            + &services(BY_MGMT).replace("services", "first")),
    );
    checks(60);
    goes_by(1);
    change(&entry("second", "172.30.0.0/16, \"fd00:30::/48\"", BY_USER));
    goes_by(0);
    checks(10);
    change(&both(BY_MGMT, BY_USER));
    goes_by(1);
    change(&both(BY_MGMT, "nic: {class: user}, priority: 5"));
    goes_by(0);
    checks(10);
    let reports = checker.stop();
    for report in &reports {
        println!("{}: {} checks, longest gap {:?}", report.target, report.sent, report.max_gap);
        assert_eq!(report.failed, 0, "{report:?}");
    }
    let counters = lab.counters();
    assert!(!counters.keys().any(|name| name.contains("wrong_source")), "{counters:?}");
    for gateway in ["gw0", "gw1"] {
        for kind in ["icmp4", "icmp6"] {
            assert!(counters[&format!("{gateway} from_node_{kind}")] > 10, "{counters:?}");
        }
    }
}

#[test]
fn a_route_by_a_gateway_that_another_route_reaches_is_applied_and_repaired_with_it() {
    // without gateways of the class its routes are on-link
    const CLASS: &str = r#"
apiVersion: nicpath.dev/v1alpha1
kind: NicClass
metadata: {name: mgmt}
spec: {match: {names: [eth1]}}
"#;
    let lab = TwoNic::builder().build();
    let product = Product::new(&lab.node);
    let routes = entry("a-far", "172.31.0.0/16", "nic: {class: mgmt}, gateway: 192.0.2.1")
        + &entry("b-near", "192.0.2.0/24", BY_MGMT)
        + &entry("a-far6", "\"fd00:31::/48\"", "nic: {class: mgmt}, gateway: \"2001:db8:2::1\"")
        + &entry("b-near6", "\"2001:db8:2::/64\"", BY_MGMT);
    product.manifests(&[("nic.yaml", CLASS), ("routes.yaml", &routes)]);
    let all = || {
        one_route(&lab, "192.0.2.0/24", "192.0.2.0/24 dev eth1")?;
        one_route(&lab, "172.31.0.0/16", "172.31.0.0/16 via 192.0.2.1 dev eth1")?;
        one_route(&lab, "2001:db8:2::/64", "2001:db8:2::/64 dev eth1")?;
        one_route(&lab, "fd00:31::/48", "fd00:31::/48 via 2001:db8:2::1 dev eth1")
    };
    let applied = product.apply();
    assert!(!stderr(&applied).contains("GatewayNotOnNic"), "{}", tests::product::described(&applied));
    all().unwrap();
    let _agent = product.agent();
    for near in ["192.0.2.0/24", "2001:db8:2::/64"] {
        lab.node.ip(&format!("route del {near} dev eth1"));
        repaired(near, all);
    }
    lab.node.ip_batch("link set eth1 down\nlink set eth1 up\n");
    lab.node.ip(&format!("addr replace {}/64 dev eth1 nodad", node_address(1, Family::V6)));
    repaired("all routes after the NIC was down", all);
}

#[test]
fn a_changed_gateway_of_a_class_moves_all_its_routes_in_place() {
    let (lab, product) = setup(TwoNic::builder(), &services(BY_MGMT));
    let _agent = product.agent();
    let moved = NIC_CLASSES.replace("10.20.0.1,", "10.20.0.2,").replace("fd00:20::1", "fd00:20::2");
    product.manifests(&[("nics.yaml", &moved), ("routes.yaml", &services(BY_MGMT))]);
    repaired("the IPv4 route", || one_route(&lab, "172.30.0.0/16", "172.30.0.0/16 via 10.20.0.2 dev eth1"));
    repaired("the IPv6 route", || one_route(&lab, "fd00:30::/48", "fd00:30::/48 via fd00:20::2 dev eth1"));
}

#[test]
fn protected_destinations_are_refused_by_the_agent_and_the_others_are_applied() {
    let good = entry("good", "172.30.0.0/16", BY_MGMT);
    let other = |family| format!("\"{}\"", subnet(0, family));
    let cases = [
        ("the default route", entry("bad", "0.0.0.0/0", BY_MGMT), vec!["0.0.0.0/0"]),
        ("the default route of IPv6", entry("bad", "\"::/0\"", BY_MGMT), vec!["::/0"]),
        (
            "its halves in two objects",
            entry("bad", "0.0.0.0/1", BY_MGMT) + &entry("bad2", "128.0.0.0/1", BY_MGMT),
            vec!["0.0.0.0/1", "128.0.0.0/1"],
        ),
        (
            "halves of IPv6 in two objects",
            entry("bad", "\"::/1\"", BY_MGMT) + &entry("bad2", "\"8000::/1\"", BY_MGMT),
            vec!["::/1", "8000::/1"],
        ),
        ("an address of the node", entry("bad", "10.10.0.10/32", BY_MGMT), vec!["10.10.0.10/32"]),
        ("a range with one in it", entry("bad", "10.0.0.0/8", BY_MGMT), vec!["10.0.0.0/8"]),
        ("a network of others", entry("bad", &other(Family::V4), BY_MGMT), vec!["10.10.0.0/24"]),
        ("a part of one", entry("bad", "10.10.0.128/25", BY_MGMT), vec!["10.10.0.128/25"]),
        ("an IPv6 network of others", entry("bad", &other(Family::V6), BY_MGMT), vec!["fd00:10::/64"]),
        ("the metadata address", entry("bad", "169.254.169.254/32", BY_MGMT), vec!["169.254.169.254/32"]),
        ("a range with it", entry("bad", "169.254.0.0/16", BY_MGMT), vec!["169.254.0.0/16"]),
    ];
    let (lab, product) = setup(TwoNic::builder(), &good);
    let _agent = product.agent();
    for (what, bad, destinations) in cases {
        product.manifests(&[("nics.yaml", NIC_CLASSES), ("routes.yaml", &(good.clone() + &bad))]);
        // told either as an object of a directory that is refused, or as a route that is
        repaired(what, || {
            let condition = Condition::of(&product.status(), "Degraded");
            if condition.holds() && condition.message.contains("bad") { Ok(()) } else { Err(condition) }
        });
        let condition = Condition::of(&product.status(), "Degraded");
        assert_eq!(condition.reason, "ProtectedDestination", "{what}: {condition:?}");
        for destination in destinations {
            let ours = own_routes(&lab.node);
            assert!(!ours.iter().any(|line| line.starts_with(destination.trim_end_matches("/32"))), "{what}: {ours:?}");
            assert!(!ours.iter().any(|line| line.starts_with("default")), "{what}: {ours:?}");
        }
        one_route(&lab, "172.30.0.0/16", "172.30.0.0/16 via 10.20.0.1").unwrap();
        assert!(ping_check(lab.gw(0).ns(), lab.gateway(0, Family::V4), node_address(0, Family::V4), PATIENCE).is_ok());
        product.manifests(&[("nics.yaml", NIC_CLASSES), ("routes.yaml", &good)]);
        repaired("and all is well without it", || {
            let condition = Condition::of(&product.status(), "Degraded");
            if condition.holds() { Err(condition) } else { Ok(()) }
        });
    }
}

#[test]
fn a_protected_destination_is_applied_where_the_entry_allows_it() {
    let routes = entry("deliberate", "0.0.0.0/1, 128.0.0.0/1", "nic: {class: mgmt}, allow: [DefaultRoute]")
        + &entry("peer", "10.10.0.64/26", "nic: {class: mgmt}, allow: [ControlPlane]");
    let (lab, product) = setup(TwoNic::builder(), &routes);
    succeeded(&product.apply());
    for destination in ["0.0.0.0/1", "128.0.0.0/1", "10.10.0.64/26"] {
        one_route(&lab, destination, destination).unwrap();
    }
}

#[test]
fn an_entry_for_a_nic_that_comes_later_is_applied_when_it_comes() {
    let late = entry("late", "172.31.0.0/16", "nic: {name: eth2}, gateway: 10.40.0.1");
    let (lab, product) = setup(TwoNic::builder(), &(services(BY_MGMT) + &late));
    let _agent = product.agent();
    let status = product.status();
    assert_eq!(state(&status, "172.31.0.0/16", "late"), ("pending".into(), "UnknownNic".into()));
    assert_eq!(own_routes(&lab.node).len(), 2);
    lab.node.ip_batch(
        "link add eth2 type veth peer name peer2\naddr add 10.40.0.10/24 dev eth2\nlink set peer2 up\nlink set eth2 up\n",
    );
    repaired("the route by the new NIC", || one_route(&lab, "172.31.0.0/16", "172.31.0.0/16 via 10.40.0.1 dev eth2"));
    lab.node.ip("link del eth2");
    repaired("it is pending again", || {
        let found = state(&product.status(), "172.31.0.0/16", "late");
        if found.0 == "pending" { Ok(()) } else { Err(found) }
    });
    assert_eq!(own_routes(&lab.node).len(), 2);
}

#[test]
fn a_thousand_entries_are_applied_changed_and_removed() {
    let entries = |gateway: &str| -> String {
        let one = |n: u32| {
            let rest = format!("nic: {{class: mgmt}}, gateway: {gateway}");
            entry(&format!("e{n}"), &format!("172.{}.{}.0/24", 16 + n / 256, n % 256), &rest)
        };
        (0..1000).map(one).collect()
    };
    let (lab, product) = setup(TwoNic::builder(), &entries("10.20.0.1"));
    let start = Instant::now();
    succeeded(&product.apply());
    println!("1000 RouteEntries applied in {:?}", start.elapsed());
    assert_eq!(own_routes(&lab.node).len(), 1000);
    product.manifests(&[("nics.yaml", NIC_CLASSES), ("routes.yaml", &entries("10.20.0.2"))]);
    let start = Instant::now();
    succeeded(&product.apply());
    println!("all of them moved in {:?}", start.elapsed());
    let found = own_routes(&lab.node);
    assert!(found.len() == 1000 && found.iter().all(|line| line.contains("via 10.20.0.2")));
    product.manifests(&[("nics.yaml", NIC_CLASSES)]);
    succeeded(&product.apply());
    assert!(own_routes(&lab.node).is_empty());
}
