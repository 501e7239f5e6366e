//! What is read is what there is.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use agent::{
    inventory::{Address, Ifindex, Inventory, Link, NeighbourState, NextHop, Route, RouteKind},
    netlink::{Netlink, NetlinkError, NetlinkFailure, RouteQuery},
};
use tests::Netns;

use crate::{addr, batch, find, inside, net, node, routes};

async fn observe() -> Inventory {
    Netlink::connect().unwrap().observe().await.unwrap()
}

fn link<'a>(inventory: &'a Inventory, name: &str) -> &'a Link {
    inventory.link_by_name(name).unwrap()
}

fn only<'a>(routes: &'a [Route], destination: &str) -> &'a Route {
    let found = find(routes, destination);
    assert_eq!(found.len(), 1, "{destination}: {found:?}");
    found[0]
}

#[test]
fn a_new_namespace_has_a_loopback_device_and_no_route() {
    let netns = Netns::new("empty");
    let inventory = inside(&netns, observe);
    assert_eq!(inventory.links.len(), 1);
    let lo = &inventory.links[0];
    assert!(lo.loopback && lo.up && !lo.ethernet, "{lo:?}");
    assert_eq!(inventory.addresses.iter().map(|a| a.net).collect::<Vec<_>>(), [net("127.0.0.1/8"), net("::1/128")]);
    assert!(inventory.routes.iter().all(|r| r.destination == net("::1/128")), "{:?}", inventory.routes);
}

#[test]
fn links_carry_state_kind_mac_and_what_they_are_part_of() {
    let netns = node();
    netns.ip_batch(
        "link add br0 type bridge
         link set far0 master br0
         link set eth1 address 02:00:00:00:00:01 mtu 1400
         link add mv0 link eth0 type macvlan
         link set far1 down",
    );
    let inventory = inside(&netns, observe);
    let (eth0, eth1) = (link(&inventory, "eth0"), link(&inventory, "eth1"));
    assert_eq!(eth1.kind.as_deref(), Some("veth"));
    assert_eq!(eth1.mac.unwrap().to_string(), "02:00:00:00:00:01");
    assert_eq!(eth1.mtu, 1400);
    assert!(eth1.ethernet && !eth1.loopback);
    assert!(eth1.up && !eth1.carrier, "the other end is down");
    assert!(eth0.up && eth0.carrier);
    assert!(!link(&inventory, "far1").up);
    assert_eq!(link(&inventory, "far0").master, Some(link(&inventory, "br0").index));
    assert_eq!(link(&inventory, "mv0").lower, Some(eth0.index));
    assert_eq!(eth0.lower, None, "the other end of a pair is not below it");
    assert_eq!(eth0.index, Ifindex(netns.ifindex("eth0")));
}

#[test]
fn addresses_carry_prefix_peer_and_usability() {
    let netns = node();
    netns.sysctls(&[("net/ipv6/conf/eth1/accept_dad", "1"), ("net/ipv6/conf/eth1/dad_transmits", "100")]);
    netns.ip_batch(
        "address add 10.20.0.11/24 dev eth1
         address add 10.9.0.1 peer 10.9.1.0/24 dev eth1
         address add fd00:9::1 peer fd00:9::2 dev eth1 nodad
         address add fd00:20::11/64 dev eth1 preferred_lft 0 nodad
         address add fd00:20::12/64 dev eth1",
    );
    let inventory = inside(&netns, observe);
    let eth1 = link(&inventory, "eth1").index;
    let find = |text: &str| -> &Address {
        let found = inventory.addresses_of(eth1).find(|a| a.net.addr() == addr(text));
        found.unwrap_or_else(|| panic!("{text} in {:?}", inventory.addresses))
    };
    let first = find("10.20.0.10");
    assert_eq!((first.net, first.peer, first.secondary), (net("10.20.0.10/24"), None, false));
    assert!(find("10.20.0.11").secondary);
    assert_eq!((find("10.9.0.1").peer, find("10.9.0.1").on_link()), (Some(addr("10.9.1.0")), net("10.9.1.0/24")));
    assert_eq!((find("fd00:9::1").peer, find("fd00:9::1").net), (Some(addr("fd00:9::2")), net("fd00:9::1/128")));
    let usable = |text: &str| (find(text).tentative, find(text).deprecated);
    assert_eq!(usable("fd00:20::10"), (false, false));
    assert_eq!(usable("fd00:20::11"), (false, true));
    assert_eq!(usable("fd00:20::12"), (true, false));
}

#[test]
fn routes_of_every_kind_in_the_main_table_are_read() {
    let netns = node();
    netns.ip_batch(
        "route add 172.16.0.0/24 via 10.20.0.1 src 10.20.0.10 metric 9 mtu 1300 proto 42
         route add 172.16.1.0/24 via 192.0.2.1 dev eth1 onlink
         route add tos 0x10 172.16.2.0/24 via 10.20.0.1
         route add blackhole 172.16.3.0/24
         route add 172.16.4.0/24 nexthop via 10.20.0.1 nexthop via 10.0.0.1
         route add 172.16.5.0/24 via inet6 fe80::1 dev eth1
         route add 172.16.6.0/24 via 10.20.0.1 table 100
         route add default via 10.0.0.1
         nexthop add id 1 via 10.20.0.1 dev eth1
         route add 172.16.7.0/24 nhid 1
         route add fd00:16:0::/64 via fd00:20::1 src fd00:20::10 mtu 1300
         route add fd00:16:1::/64 via 2001:db8::1 dev eth1 onlink
         route add unreachable fd00:16:3::/64
         route add fd00:16:4::/64 nexthop via fd00:20::1 nexthop via fd00:a::1
         route append fd00:16:5::/64 via fd00:20::1
         route append fd00:16:5::/64 via fd00:a::1
         route add fd00:16:6::/64 via fd00:20::1 table 100
         route add ::/0 via fe80::1 dev eth0
         nexthop add id 2 via fd00:20::1 dev eth1
         route add fd00:16:7::/64 nhid 2",
    );
    let (eth0, eth1) = (Some(Ifindex(netns.ifindex("eth0"))), Some(Ifindex(netns.ifindex("eth1"))));
    let hop = |link, gateway: &str| NextHop { link, gateway: Some(addr(gateway)), onlink: false };
    let routes = inside(&netns, routes);

    let full = only(&routes, "172.16.0.0/24");
    assert_eq!(full.hops, [hop(eth1, "10.20.0.1")]);
    assert_eq!((full.metric, full.mtu, full.protocol), (9, Some(1300), 42));
    assert_eq!((full.source, full.kind, full.tos), (Some(addr("10.20.0.10")), RouteKind::Unicast, 0));
    assert_eq!(only(&routes, "172.16.1.0/24").hops, [NextHop { onlink: true, ..hop(eth1, "192.0.2.1") }]);
    assert_eq!(only(&routes, "172.16.2.0/24").tos, 0x10);
    assert_eq!(only(&routes, "172.16.3.0/24").kind, RouteKind::Other);
    assert_eq!(only(&routes, "172.16.4.0/24").hops, [hop(eth1, "10.20.0.1"), hop(eth0, "10.0.0.1")]);
    assert_eq!(only(&routes, "172.16.5.0/24").hops, [hop(eth1, "fe80::1")]);
    assert!(find(&routes, "172.16.6.0/24").is_empty(), "another table");
    assert_eq!(only(&routes, "172.16.7.0/24").hops, [hop(eth1, "10.20.0.1")]);
    assert!(only(&routes, "0.0.0.0/0").is_default());
    let connected = only(&routes, "10.20.0.0/24");
    assert_eq!(connected.hops, [NextHop { link: eth1, gateway: None, onlink: false }]);
    assert_eq!((connected.protocol, connected.source), (2, Some(addr("10.20.0.10"))));

    let full = only(&routes, "fd00:16:0::/64");
    assert_eq!(full.hops, [hop(eth1, "fd00:20::1")]);
    assert_eq!((full.metric, full.mtu, full.source), (1024, Some(1300), Some(addr("fd00:20::10"))));
    assert_eq!(only(&routes, "fd00:16:1::/64").hops, [NextHop { onlink: true, ..hop(eth1, "2001:db8::1") }]);
    assert_eq!(only(&routes, "fd00:16:3::/64").kind, RouteKind::Other);
    for multipath in ["fd00:16:4::/64", "fd00:16:5::/64"] {
        assert_eq!(only(&routes, multipath).hops, [hop(eth1, "fd00:20::1"), hop(eth0, "fd00:a::1")]);
    }
    assert!(find(&routes, "fd00:16:6::/64").is_empty(), "another table");
    assert_eq!(only(&routes, "fd00:16:7::/64").hops, [hop(eth1, "fd00:20::1")]);
    assert!(only(&routes, "::/0").is_default());
    assert_eq!(find(&routes, "fe80::/64").len(), 4, "one connected prefix on each of the four ends");
}

#[test]
fn a_route_through_a_nexthop_object_that_the_kernel_does_not_resolve_has_no_hop() {
    let netns = node();
    netns.sysctl("net/ipv4/nexthop_compat_mode", "0");
    netns.ip_batch(
        "nexthop add id 1 via 10.20.0.1 dev eth1
         route add 172.16.7.0/24 nhid 1",
    );
    assert_eq!(only(&inside(&netns, routes), "172.16.7.0/24").hops, []);
}

#[test]
fn neighbours_are_read_with_state_and_mac() {
    let netns = node();
    netns.ip_batch(
        "neigh add 10.20.0.1 lladdr 02:00:00:00:00:01 dev eth1 nud permanent
         neigh add fd00:20::1 lladdr 02:00:00:00:00:02 dev eth1 nud stale
         neigh add 10.20.0.2 dev eth1 nud failed",
    );
    let eth1 = Ifindex(netns.ifindex("eth1"));
    let eth0 = Ifindex(netns.ifindex("eth0"));
    inside(&netns, async || {
        let netlink = Netlink::connect().unwrap();
        let inventory = netlink.observe().await.unwrap();
        for (address, mac, state) in [
            ("10.20.0.1", Some("02:00:00:00:00:01"), NeighbourState::Permanent),
            ("fd00:20::1", Some("02:00:00:00:00:02"), NeighbourState::Stale),
            ("10.20.0.2", None, NeighbourState::Failed),
        ] {
            let listed = inventory.neighbour(eth1, addr(address)).unwrap();
            assert_eq!((listed.mac.map(|m| m.to_string()).as_deref(), listed.state), (mac, state), "{address}");
            let asked = netlink.neighbour(eth1, addr(address)).await.unwrap();
            assert_eq!(asked.as_ref(), Some(listed));
        }
        assert_eq!(netlink.neighbour(eth1, addr("10.20.0.77")).await.unwrap(), None);
        assert_eq!(netlink.neighbour(eth0, addr("10.20.0.1")).await.unwrap(), None);
        assert_eq!(netlink.neighbour(Ifindex(9999), addr("fd00:20::1")).await.unwrap(), None);
    });
}

#[test]
fn the_kernels_choice_is_told_and_none_where_it_has_no_way() {
    let netns = node();
    netns.ip_batch(
        "route add 172.30.0.0/16 via 10.20.0.1
         route add fd00:30::/48 via fd00:20::1
         route add unreachable 172.31.0.0/16
         route add blackhole fd00:31::/48
         route add prohibit 172.29.0.0/16
         route add blackhole 172.28.0.0/16
         route add prohibit fd00:29::/48",
    );
    let eth1 = Ifindex(netns.ifindex("eth1"));
    inside(&netns, async || {
        let netlink = Netlink::connect().unwrap();
        let get = async |destination: &str, source: Option<&str>| {
            let query = RouteQuery { destination: addr(destination), source: source.map(addr), input: None };
            netlink.route_get(query).await
        };
        for (destination, gateway, source) in [
            ("172.30.1.1", Some("10.20.0.1"), "10.20.0.10"),
            ("10.20.0.99", None, "10.20.0.10"),
            ("fd00:30::9", Some("fd00:20::1"), "fd00:20::10"),
            ("fd00:20::99", None, "fd00:20::10"),
        ] {
            let choice = get(destination, None).await.unwrap().unwrap();
            assert_eq!((choice.link, choice.gateway), (eth1, gateway.map(addr)), "{destination}");
            assert_eq!(choice.source, Some(addr(source)), "{destination}");
        }
        assert_eq!(get("172.30.1.1", Some("10.0.0.10")).await.unwrap().unwrap().link, eth1);
        assert_eq!(get("10.0.0.10", None).await.unwrap().unwrap().link, Ifindex(netns.ifindex("lo")));
        for nowhere in
            ["198.51.100.1", "172.31.0.1", "172.29.0.1", "172.28.0.1", "2001:db8::1", "fd00:31::1", "fd00:29::1"]
        {
            assert_eq!(get(nowhere, None).await.unwrap(), None, "{nowhere}");
        }
        assert_eq!(get("172.30.1.1", Some("192.0.2.77")).await.unwrap(), None, "not an address of this host");
        let query =
            RouteQuery { destination: addr("172.30.1.1"), source: Some(addr("10.0.0.77")), input: Some(Ifindex(9999)) };
        let error = netlink.route_get(query).await.unwrap_err();
        assert_eq!(error.failure(), NetlinkFailure::LinkGone);
        assert_eq!(error.command(), Some("ip route get 172.30.1.1 from 10.0.0.77 iif if9999"));
    });
}

#[test]
fn the_choice_for_a_forwarded_packet_follows_forwarding() {
    let netns = node();
    netns.ip("route add 172.30.0.0/16 via 10.20.0.1");
    let query = RouteQuery {
        destination: addr("172.30.1.1"),
        source: Some(addr("10.0.0.77")),
        input: Some(Ifindex(netns.ifindex("eth0"))),
    };
    let get = || inside(&netns, async || Netlink::connect().unwrap().route_get(query).await.unwrap());
    netns.sysctl("net/ipv4/ip_forward", "0");
    assert_eq!(get(), None);
    netns.sysctl("net/ipv4/ip_forward", "1");
    assert_eq!(get().unwrap().link, Ifindex(netns.ifindex("eth1")));
}

#[test]
fn ten_thousand_routes_are_read_within_a_tenth_of_a_second() {
    let netns = node();
    let (v4, v6) = batch("add", 40, 5_000);
    netns.ip_batch(&v4);
    netns.ip_batch(&v6);
    let (count, best) = inside(&netns, async || {
        let netlink = Netlink::connect().unwrap();
        let mut best = Duration::MAX;
        let mut count = 0;
        for _ in 0..5 {
            let start = Instant::now();
            count = netlink.routes().await.unwrap().len();
            best = best.min(start.elapsed());
        }
        (count, best)
    });
    assert!(count >= 10_000, "{count}");
    println!("{count} routes in {best:?}");
    let bound = if cfg!(debug_assertions) { Duration::from_secs(1) } else { Duration::from_millis(100) };
    assert!(best < bound, "{best:?}");
}

#[test]
fn no_reading_misses_or_repeats_a_route_that_stays_while_others_come_and_go() {
    let netns = node();
    let (v4, v6) = batch("add", 41, 600);
    netns.ip_batch(&v4);
    netns.ip_batch(&v6);
    // below and above the ones that stay, so that they go before and behind the reader's place in the table
    let churn: Vec<String> = [40, 42]
        .into_iter()
        .flat_map(|second| ["add", "del"].map(|verb| batch(verb, second, 100)))
        .map(|(v4, v6)| v4 + &v6)
        .collect();
    let stays =
        |route: &&Route| [net("172.41.0.0/16"), net("fd00:41::/64")].iter().any(|n| n.contains(&route.destination));
    let stop = AtomicBool::new(false);
    let readings = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                churn.iter().for_each(|lines| netns.ip_batch(lines));
            }
        });
        let readings = inside(&netns, async || {
            let netlink = Netlink::connect().unwrap();
            let mut readings = Vec::new();
            for _ in 0..200 {
                readings.push(netlink.routes().await.map(|routes| {
                    let stable: Vec<_> = routes.iter().filter(stays).map(|r| r.destination).collect();
                    (stable.len(), stable.into_iter().collect::<BTreeSet<_>>().len())
                }));
            }
            readings
        });
        stop.store(true, Ordering::Relaxed);
        readings
    });
    let (complete, interrupted): (Vec<_>, Vec<_>) = readings.into_iter().partition(Result::is_ok);
    println!("{} complete readings, {} given up", complete.len(), interrupted.len());
    assert!(complete.len() > 20);
    for counts in complete {
        assert_eq!(counts.unwrap(), (1_200, 1_200));
    }
    for error in interrupted {
        assert!(matches!(error, Err(NetlinkError::Interrupted { .. })), "{error:?}");
    }
}

#[test]
fn concurrent_and_abandoned_requests_do_not_disturb_each_other() {
    let netns = node();
    let (v4, _) = batch("add", 40, 5_000);
    netns.ip_batch(&v4);
    let eth1 = Ifindex(netns.ifindex("eth1"));
    inside(&netns, async || {
        let netlink = Arc::new(Netlink::connect().unwrap());
        let complete = netlink.routes().await.unwrap();
        for _ in 0..20 {
            let (routes, links, neighbour, again) = tokio::join!(
                netlink.routes(),
                netlink.links(),
                netlink.neighbour(eth1, addr("10.20.0.1")),
                netlink.routes()
            );
            assert_eq!((routes.unwrap().len(), again.unwrap().len()), (complete.len(), complete.len()));
            assert_eq!((links.unwrap().len(), neighbour.unwrap()), (5, None));
            let shared = Arc::clone(&netlink);
            let elsewhere = tokio::spawn(async move { shared.observe().await.unwrap().routes });
            assert_eq!(elsewhere.await.unwrap(), complete);
            // given up in the middle of the answer
            let abandoned = tokio::time::timeout(Duration::from_micros(500), netlink.routes()).await;
            drop(abandoned);
            assert_eq!(netlink.routes().await.unwrap(), complete);
        }
    });
}
