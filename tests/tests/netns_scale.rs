//! A thousand owned addresses and a thousand RouteEntries.
#![expect(clippy::unwrap_used, clippy::panic, reason = "what a test stands on fails the test")]

#[path = "support/host.rs"]
mod host;
mod support;

use std::{
    fmt::Write as _,
    net::SocketAddr,
    time::{Duration, Instant},
};

use host::{Condition, nic_of, one_program_per_hook, own_routes, succeeded};
use support::NIC_CLASSES;
use tests::{
    Family, TwoNic,
    lab::{CLIENT, extra_address},
    product::Product,
    traffic::{Checker, Target, TcpEcho, UdpEcho, ping_check},
    wait::eventually,
};

/// Of each family, so that twice as many are owned.
const ADDRESSES: usize = 500;
const ENTRIES: usize = 1000;
/// Every so many addresses one is asked.
const STEP: usize = ADDRESSES / 25;
/// A restart takes over in less (design section 11); an unoptimised binary is given more.
const ADOPTION: Duration = Duration::from_secs(1);

fn entries() -> String {
    let mut yaml = String::new();
    for n in 0..ENTRIES {
        let _ = write!(
            yaml,
            "---\napiVersion: nicpath.dev/v1alpha1\nkind: RouteEntry\nmetadata: {{name: e{n}}}\n\
             spec: {{destinations: [172.{}.{}.0/24], nic: {{class: mgmt}}}}\n",
            16 + n / 256,
            n % 256
        );
    }
    yaml
}

#[test]
fn a_thousand_addresses_and_a_thousand_entries_are_applied_and_taken_over_by_a_restart() {
    let lab = TwoNic::builder().extra_addresses(1, ADDRESSES).build();
    let product = Product::new(&lab.node);
    product.manifests(&[("nics.yaml", NIC_CLASSES), ("routes.yaml", &entries())]);
    let start = Instant::now();
    succeeded(&product.apply());
    println!("{} addresses and {ENTRIES} RouteEntries applied in {:?}", 2 * ADDRESSES, start.elapsed());
    assert_eq!(own_routes(&lab.node).len(), ENTRIES);
    let status = product.status();
    // its own two beside the extra ones
    assert_eq!(nic_of(&status, "eth1")["addresses"].as_array().unwrap().len(), 2 * ADDRESSES + 2);
    let owners = status["maps"].as_array().unwrap().iter().find(|map| map["name"] == "OWNERS").unwrap();
    assert_eq!(owners["entries"], 2 * ADDRESSES + 4);
    assert!(Condition::of(&status, "Applied").holds() && !Condition::of(&status, "Degraded").holds());

    let sample: Vec<_> = (0..ADDRESSES)
        .step_by(STEP)
        .chain([ADDRESSES - 1])
        .flat_map(|index| Family::ALL.map(|family| (family, extra_address(1, index, family))))
        .collect();
    assert!(sample.len() >= 50);
    lab.reset_counters();
    for (family, address) in &sample {
        ping_check(lab.gw(1).ns(), CLIENT.get(*family), *address, Duration::from_millis(900))
            .unwrap_or_else(|failure| panic!("{address}: {failure}"));
    }
    let counters = lab.counters();
    let each = (sample.len() / 2) as u64;
    assert_eq!((counters["gw1 from_node_icmp4"], counters["gw1 from_node_icmp6"]), (each, each));
    assert!(!counters.keys().any(|name| name.starts_with("gw0")), "{counters:?}");

    let address = |family| extra_address(1, ADDRESSES - 1, family);
    let _servers = Family::ALL.map(|family| {
        let tcp = TcpEcho::start(&lab.node, SocketAddr::new(address(family), 80));
        (tcp, UdpEcho::start(&lab.node, SocketAddr::new(address(family), 5356)))
    });
    let targets = Family::ALL.map(|family| {
        let (client, address) = (SocketAddr::new(CLIENT.get(family), 0), address(family));
        let gateway = lab.gw(1).ns();
        [
            Target::tcp(gateway, client, SocketAddr::new(address, 80)),
            Target::udp(gateway, client, SocketAddr::new(address, 5356)),
            Target::ping(gateway, client.ip(), address),
        ]
    });
    let programs = one_program_per_hook(&lab.node);
    let routes = own_routes(&lab.node);
    let checker = Checker::start(targets.concat(), 20);
    let adoptions: Vec<Duration> = (0..3)
        .map(|_| {
            let start = Instant::now();
            let agent = product.agent();
            let took = start.elapsed();
            agent.kill9();
            took
        })
        .collect();
    println!("taken over by a restart in {adoptions:?}");
    let done = checker.done();
    eventually(Duration::from_secs(5), "more checks", || (checker.done() >= done + 5).then_some(()));
    host::all_passed(&checker.stop(), 5);
    assert_eq!((lab.gw(0).counter("wrong_source"), lab.gw(1).counter("wrong_source")), (0, 0));
    assert_eq!(one_program_per_hook(&lab.node), programs);
    assert_eq!(own_routes(&lab.node), routes);
    // the best of three: other work on the machine is not the agent's fault
    assert!(adoptions.iter().min().unwrap() < &ADOPTION, "{adoptions:?}");
    let start = Instant::now();
    succeeded(&product.uninstall());
    println!("uninstalled in {:?}", start.elapsed());
    assert!(own_routes(&lab.node).is_empty());
}
