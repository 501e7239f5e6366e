//! `nicpath status`, `why`, `off` and `on`: what a node is like, told truly and without touching it (field case 94).
#![expect(clippy::unwrap_used, clippy::panic, reason = "what a test stands on fails the test")]

#[path = "support/host.rs"]
mod host;
mod support;

use std::{collections::BTreeMap, fs, net::SocketAddr, time::Duration};

use agent::{dataplane::Dataplane, hook::Position};
use host::{Condition, Foreign, NICS, Servers, everything_is_answered, nic_of, succeeded, targets};
use serde_json::{Value, json};
use support::{NIC_CLASSES, applied};
use tests::{
    Family, Netns, TwoNic,
    lab::{CLIENT, Side, gateway_address, mac, node_address},
    product::{Product, described},
    traffic::{Failure, ping_check, tcp_check},
};

const TIMEOUT: Duration = Duration::from_millis(900);

use tests::product::MGMT_CLASS as MGMT;

const ROUTES: &str = r#"
apiVersion: nicpath.dev/v1alpha1
kind: RouteEntry
metadata: {name: services}
spec: {destinations: [172.30.0.0/16, "fd00:30::/48"], nic: {class: mgmt}}
---
apiVersion: nicpath.dev/v1alpha1
kind: RouteEntry
metadata: {name: late}
spec: {destinations: [172.31.0.0/16], nic: {name: eth7}}
"#;

/// Every counter of the programs, by slot, direction and name.
fn counters(product: &Product) -> BTreeMap<String, u64> {
    let rows = Dataplane::new(product.bpffs()).counters(0..2).unwrap();
    rows.iter().map(|row| (format!("{} {:?} {}", row.slot, row.direction, row.counter.name()), row.packets)).collect()
}

fn keys(object: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

/// `object` has at least these fields: more may be added, none may go.
fn has(object: &Value, fields: &[&str]) {
    for field in fields {
        assert!(object.get(field).is_some(), "no {field} in {:?}", keys(object));
    }
}

#[test]
fn json_has_the_fields_of_the_contract() {
    let lab = TwoNic::builder().build();
    let product = Product::new(&lab.node);
    product.manifests(&[("nics.yaml", NIC_CLASSES), ("routes.yaml", ROUTES)]);
    let _agent = product.agent();
    let status = product.status();
    has(&status, &["node", "version", "abi", "mode", "conditions", "nics", "routes", "pods", "maps"]);
    assert_eq!((&status["node"], &status["mode"]), (&json!("node"), &json!("enforce")));
    assert!(status["abi"].is_u64() && status["version"].is_string());
    for condition in status["conditions"].as_array().unwrap() {
        has(condition, &["type", "status", "reason", "message", "lastTransitionTime"]);
    }
    for (index, name) in NICS.into_iter().enumerate() {
        let nic = nic_of(&status, name);
        has(
            nic,
            &["name", "ifindex", "mac", "class", "network", "ready", "reason", "addresses", "gateways", "programs"],
        );
        let class = ["user", "mgmt"][index];
        let addresses: Vec<_> = Family::ALL.iter().map(|family| node_address(index, *family).to_string()).collect();
        let mac = mac(index, Side::Node).map(|byte| format!("{byte:02x}")).join(":");
        let expected = json!({
            "ifindex": lab.node.ifindex(name), "mac": mac, "class": class, "network": class, "ready": true,
            "addresses": addresses,
        });
        for field in keys(&expected) {
            assert_eq!(nic[field], expected[field], "{field} of {name}");
        }
        for gateway in nic["gateways"].as_array().unwrap() {
            has(gateway, &["address", "state", "mac"]);
        }
        for direction in ["ingress", "egress"] {
            let program = &nic["programs"][direction];
            has(program, &["id", "name", "mode", "position", "state", "before", "after"]);
            assert_eq!(
                (&program["name"], &program["mode"], &program["state"]),
                (&json!(direction), &json!("tcx"), &json!("attached"))
            );
        }
    }
    let routes = status["routes"].as_array().unwrap();
    assert_eq!(routes.len(), 3);
    for route in routes {
        has(route, &["destination", "nic", "gateway", "source", "state", "reason", "from"]);
        has(&route["from"], &["kind", "name", "generation"]);
        assert!(["applied", "pending", "refused", "conflict"].contains(&route["state"].as_str().unwrap()), "{route}");
    }
    assert_eq!(status["pods"], json!([]));
    for map in status["maps"].as_array().unwrap() {
        has(map, &["name", "entries", "capacity"]);
        assert!(map["entries"].as_u64() < map["capacity"].as_u64(), "{map}");
    }
    let owners = status["maps"].as_array().unwrap().iter().find(|map| map["name"] == "OWNERS").unwrap();
    assert_eq!(owners["entries"], 4);
    let kinds: Vec<&str> =
        status["conditions"].as_array().unwrap().iter().map(|c| c["type"].as_str().unwrap()).collect();
    for kind in ["Ready", "Applied", "Degraded", "Ambiguous", "Conflict", "UncoveredDevice"] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
}

#[test]
fn the_three_forms_say_the_same() {
    let lab = TwoNic::builder().build();
    let product = applied(&lab);
    let table = succeeded(&product.run("status", &[]));
    let yaml = succeeded(&product.run("status", &["-o", "yaml"]));
    for text in ["eth0", "eth1", "10.20.0.10", "fd00:10::1", "mgmt"] {
        assert!(table.contains(text) && yaml.contains(text), "{text} in {table}{yaml}");
    }
    assert!(table.contains("enforce") && yaml.contains("mode: enforce"), "{table}{yaml}");
}

#[test]
fn without_anything_installed_status_says_so_and_makes_nothing() {
    let node = Netns::new("node");
    let product = Product::new(&node);
    let status = product.status();
    assert_eq!((&status["nics"], &status["routes"]), (&json!([]), &json!([])));
    let ready = Condition::of(&status, "Ready");
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "NoSuchNic"));
    assert!(fs::read_dir(product.state_dir()).unwrap().next().is_none());
}

#[test]
fn status_is_true_with_no_agent_and_conditions_keep_their_time() {
    let lab = TwoNic::builder().build();
    let product = Product::new(&lab.node);
    product.manifests(&[("nics.yaml", NIC_CLASSES), ("routes.yaml", ROUTES)]);
    let agent = product.agent();
    let with_agent = product.status();
    assert!(agent.terminate().success());
    assert_eq!(product.status(), with_agent);
    lab.node.ip("route del 172.30.0.0/16");
    let status = product.status();
    let route = host::route_of(&status, "172.30.0.0/16", "services");
    assert_eq!(route["state"], "pending", "the kernel is asked, not the memory");
    let applied = Condition::of(&status, "Applied");
    assert!(!applied.holds() && applied.message.contains("172.30.0.0/16"), "{applied:?}");
}

#[test]
fn an_attachment_is_told_as_attached_missing_or_dead() {
    let lab = TwoNic::builder().build();
    let product = applied(&lab);
    let state = |nic: &str, direction: &str| nic_of(&product.status(), nic)["programs"][direction].clone();
    for nic in NICS {
        for direction in ["ingress", "egress"] {
            let program = state(nic, direction);
            assert_eq!((&program["state"], &program["position"]), (&json!("attached"), &json!("only")));
            assert!(program["id"].is_u64());
        }
    }
    let link = |direction| product.bpffs().join(format!("links/{}-{direction}", lab.node.ifindex("eth1")));
    fs::remove_file(link("egress")).unwrap();
    let program = state("eth1", "egress");
    assert_eq!(
        (&program["state"], &program["id"], &program["position"]),
        (&json!("missing"), &Value::Null, &Value::Null)
    );
    assert_eq!(state("eth1", "ingress")["state"], "attached");
    let status = product.status();
    assert_eq!(nic_of(&status, "eth1")["ready"], false);
    let ready = Condition::of(&status, "Ready");
    assert!(!ready.holds() && ready.message.contains("eth1"), "{ready:?}");

    // the pinned attachment of ingress outlives its device, also where a new one has the same index
    let index = lab.node.ifindex("eth1");
    lab.node.ip("link del eth1");
    let status = product.status();
    assert!(status["nics"].as_array().unwrap().iter().all(|nic| nic["name"] != "eth1"), "{status}");
    let degraded = Condition::of(&status, "Degraded");
    assert!(degraded.holds() && degraded.message.contains("NicClass/mgmt"), "{degraded:?}");
    lab.node.ip(&format!("link add eth1 index {index} type veth peer name peer1 index 500"));
    assert_eq!(state("eth1", "ingress")["state"], "dead");
    assert_eq!(state("eth1", "egress")["state"], "missing");
    assert_eq!(state("eth0", "ingress")["state"], "attached");
}

#[test]
fn who_runs_before_and_after_ours_is_told() {
    let lab = TwoNic::builder().build();
    let product = applied(&lab);
    let program = |direction: &str| nic_of(&product.status(), "eth1")["programs"][direction].clone();
    let first = Foreign::attach(&lab.node, &["eth1"], Position::First);
    for direction in ["ingress", "egress"] {
        let ours = program(direction);
        assert_eq!((&ours["before"], &ours["after"]), (&json!([direction]), &json!([])), "{ours}");
        assert_eq!(ours["position"], "last");
    }
    let last = Foreign::attach(&lab.node, &["eth1"], Position::Last);
    let ours = program("egress");
    assert_eq!(
        (&ours["before"], &ours["after"], &ours["position"]),
        (&json!(["egress"]), &json!(["egress"]), &json!("middle"))
    );
    drop(first);
    let ours = program("egress");
    assert_eq!((&ours["before"], &ours["after"], &ours["position"]), (&json!([]), &json!(["egress"]), &json!("first")));
    assert!(!last.ids.values().any(|id| ours["id"] == *id));
}

#[test]
fn a_device_that_replies_could_leave_by_and_no_class_covers_is_named() {
    let lab = TwoNic::builder().build();
    let product = Product::new(&lab.node);
    product.manifests(&[("nic.yaml", MGMT)]);
    let output = product.apply();
    assert!(host::stderr(&output).contains("UncoveredDevice: eth0"), "{}", described(&output));
    let condition = Condition::of(&product.status(), "UncoveredDevice");
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("True", "UncoveredDevice"));
    assert!(condition.message.contains("eth0") && condition.message.contains("default route"), "{condition:?}");
    // and truly so: replies of eth1 leave by eth0
    let _servers = Servers::start(&lab);
    let (client, address) = (CLIENT.get(Family::V4), node_address(1, Family::V4));
    assert_eq!(ping_check(lab.gw(1).ns(), client, address, TIMEOUT), Err(Failure::Timeout));
    assert_eq!(lab.gw(0).counter("wrong_source"), 1);
    product.manifests(&[("nics.yaml", NIC_CLASSES)]);
    succeeded(&product.apply());
    assert!(!Condition::of(&product.status(), "UncoveredDevice").holds());
    lab.reset_counters();
    everything_is_answered(&lab);
}

#[test]
fn neighbour_states_of_gateways_are_the_kernels() {
    let lab = TwoNic::builder().build();
    let product = applied(&lab);
    let gateways = |nic: &str| nic_of(&product.status(), nic)["gateways"].clone();
    lab.node.ip("neigh flush all");
    for gateway in gateways("eth1").as_array().unwrap() {
        assert_eq!((&gateway["state"], &gateway["mac"]), (&Value::Null, &Value::Null), "{gateway}");
    }
    for family in Family::ALL {
        ping_check(&lab.node, node_address(1, family), gateway_address(1, family), TIMEOUT).unwrap();
    }
    lab.node.ip("neigh replace 10.20.0.1 lladdr 02:00:00:00:01:02 dev eth1 nud stale");
    let found = gateways("eth1");
    let mac = mac(1, Side::Gateway).map(|byte| format!("{byte:02x}")).join(":");
    assert_eq!(found[0], json!({"address": "10.20.0.1", "state": "stale", "mac": mac}));
    assert_eq!(found[1]["mac"], json!(mac));
    assert!(["reachable", "delay", "stale"].contains(&found[1]["state"].as_str().unwrap()), "{found}");
    lab.node.ip("neigh replace 10.20.0.1 lladdr 02:00:00:00:00:77 dev eth1 nud permanent");
    lab.node.ip("neigh replace fd00:20::1 dev eth1 nud failed");
    let found = gateways("eth1");
    assert_eq!(found[0], json!({"address": "10.20.0.1", "state": "permanent", "mac": "02:00:00:00:00:77"}));
    assert_eq!(found[1], json!({"address": "fd00:20::1", "state": "failed", "mac": null}));
}

fn why(product: &Product, src: &str, dst: &str, more: &[&str]) -> Value {
    product.why(&[&["--src", src, "--dst", dst][..], more].concat())
}

/// The fields of `found` that `expected` has.
fn answers(found: &Value, expected: &Value) {
    for field in keys(expected) {
        assert_eq!(found[field], expected[field], "{field} of {found}");
    }
}

#[test]
fn why_tells_nic_next_hop_and_rule_as_the_packets_show_them() {
    let lab = TwoNic::builder().build();
    let product = applied(&lab);
    let tcp = ["--proto", "tcp", "--sport", "80", "--dport", "40000"];
    for (family, client) in [(Family::V4, "100.64.0.5"), (Family::V6, "2001:db8:100::5")] {
        let address = |nic| node_address(nic, family).to_string();
        let gateway = |nic| gateway_address(nic, family).to_string();
        for protocol in [&tcp[..], &["--proto", "udp", "--sport", "53"], &["--proto", "icmp"]] {
            let found = why(&product, &address(1), client, protocol);
            has(&found, &["verdict", "rule", "nic", "gateway", "vid", "reason", "kernelNic"]);
            answers(
                &found,
                &json!({
                    "verdict": "redirect", "rule": 2, "nic": "eth1", "gateway": gateway(1), "vid": null, "reason": null,
                    "kernelNic": "eth0",
                }),
            );
            let found = why(&product, &address(0), client, protocol);
            answers(
                &found,
                &json!({"verdict": "owned", "rule": 2, "nic": "eth0", "gateway": gateway(0), "kernelNic": "eth0"}),
            );
        }
        // the next hop on a NIC's own network is the destination itself
        let found = why(&product, &address(1), &gateway(1), &tcp);
        answers(&found, &json!({"verdict": "owned", "nic": "eth1", "gateway": null, "kernelNic": "eth1"}));
    }
}

#[test]
fn why_tells_what_is_left_alone() {
    let lab = TwoNic::builder().build();
    let product = applied(&lab);
    // a source that no NIC owns: the kernel's choice
    lab.node.ip("addr add 203.0.113.25/32 dev lo");
    let found = why(&product, "203.0.113.25", "100.64.0.5", &[]);
    answers(
        &found,
        &json!({"verdict": "kernel", "rule": 3, "nic": "eth0", "gateway": "10.10.0.1", "kernelNic": "eth0", "reason": "source_not_owned"}),
    );
    // rule 0: link-local, although another NIC owns the source
    lab.node.ip("route add 169.254.0.0/16 dev eth0");
    let found = why(&product, "10.20.0.10", "169.254.0.9", &["--proto", "udp", "--dport", "5353"]);
    answers(&found, &json!({"verdict": "untouched", "rule": 0, "nic": "eth0", "kernelNic": "eth0"}));
    // the node itself
    let found = why(&product, "10.20.0.10", "10.10.0.10", &[]);
    answers(&found, &json!({"verdict": "local", "rule": null}));
    // a way by a NIC that nobody manages
    product.manifests(&[("nic.yaml", MGMT)]);
    let _uncovered = product.apply();
    let found = why(&product, "10.20.0.10", "100.64.0.5", &[]);
    answers(
        &found,
        &json!({"verdict": "unmanaged", "rule": null, "nic": "eth0", "gateway": "10.10.0.1", "kernelNic": "eth0"}),
    );
    lab.node.ip("route del default");
    let found = why(&product, "10.20.0.10", "100.64.0.5", &[]);
    answers(&found, &json!({"verdict": "unreachable", "nic": null, "kernelNic": null}));
}

#[test]
fn why_of_an_arriving_packet_tells_where_its_answer_goes() {
    let lab = TwoNic::builder().build();
    let product = applied(&lab);
    let found = why(&product, "100.64.0.5", "10.20.0.10", &["--in", "eth1", "--sport", "40000", "--dport", "80"]);
    answers(&found, &json!({"verdict": "received", "nic": "eth1"}));
    answers(
        &found["reply"],
        &json!({"verdict": "redirect", "nic": "eth1", "gateway": "10.20.0.1", "kernelNic": "eth0"}),
    );
    let output = product.run("why", &["--src", "100.64.0.5", "--dst", "10.20.0.10", "--in", "eth7"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(host::stderr(&output).contains("there is no NIC eth7"), "{}", described(&output));
}

#[test]
fn looking_counts_nothing_and_changes_nothing() {
    let lab = TwoNic::builder().build();
    let product = applied(&lab);
    let _servers = Servers::start(&lab);
    everything_is_answered(&lab);
    // the kernel's own discovery and closing connections must be over before counters can be compared
    lab.node.ip_batch("link set eth0 down\nlink set eth1 down\nlink set eth0 up\nlink set eth1 up\n");
    lab.node.ip_batch("route replace default via 10.10.0.1 dev eth0\nlink set eth0 arp off\nlink set eth1 arp off\n");
    let quiet = || {
        let before = counters(&product);
        for _ in 0..3 {
            let _status = product.status();
            for more in [&[][..], &["--in", "eth1"], &["--proto", "udp"], &["--proto", "icmp"]] {
                why(&product, "10.20.0.10", "100.64.0.5", more);
                why(&product, "10.20.0.77", "100.64.0.5", more);
            }
        }
        let after = counters(&product);
        let changed: Vec<_> = after.iter().filter(|(name, count)| before[*name] != **count).collect();
        if changed.is_empty() { Ok(()) } else { Err(format!("{changed:?}")) }
    };
    assert!(counters(&product).values().sum::<u64>() > 0);
    tests::wait::eventually(Duration::from_secs(6), "a look that counts nothing", quiet);
}

#[test]
fn off_passes_everything_at_once_and_on_ends_it() {
    let lab = TwoNic::builder().build();
    let product = applied(&lab);
    let _servers = Servers::start(&lab);
    everything_is_answered(&lab);
    let second = || targets(&lab).into_iter().skip(6);
    let routes = lab.node.ip("route show table all");
    succeeded(&product.run("off", &[]));
    let status = product.status();
    assert_eq!(status["mode"], "off");
    assert!(succeeded(&product.run("status", &[])).contains("OFF"));
    for target in second() {
        assert_eq!(target.check(Duration::from_millis(150)), Err(Failure::Timeout), "{}", target.name());
    }
    assert!(lab.gw(0).counter("wrong_source") >= 6, "as the plain kernel does");
    assert_eq!(lab.node.ip("route show table all"), routes);
    answers(
        &why(&product, "10.20.0.10", "100.64.0.5", &[]),
        &json!({"verdict": "untouched", "rule": 0, "nic": "eth0"}),
    );
    // an agent that starts meanwhile leaves it off
    product.agent().kill9();
    assert_eq!(product.status()["mode"], "off");
    succeeded(&product.run("off", &[]));
    succeeded(&product.run("on", &[]));
    assert_eq!(product.status()["mode"], "enforce");
    // segments of connections that were cut off may still be sent again
    tests::wait::eventually(Duration::from_secs(2), "everything is answered", || {
        second().try_for_each(|target| target.check(TIMEOUT).map(drop))
    });
    lab.reset_counters();
    everything_is_answered(&lab);
}

#[test]
fn a_connection_survives_off_and_on() {
    let lab = TwoNic::builder().build();
    let product = applied(&lab);
    let _servers = Servers::start(&lab);
    let (from, to) = (SocketAddr::new(CLIENT.v4.into(), 0), SocketAddr::new(node_address(1, Family::V4), 80));
    tcp_check(lab.gw(1).ns(), from, to, TIMEOUT).unwrap();
    succeeded(&product.run("off", &[]));
    succeeded(&product.run("on", &[]));
    tcp_check(lab.gw(1).ns(), from, to, TIMEOUT).unwrap();
    assert_eq!(lab.gw(0).counter("wrong_source"), 0);
}
