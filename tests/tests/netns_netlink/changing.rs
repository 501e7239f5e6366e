//! Routes of ours come and go, those of others stay.

use agent::{
    inventory::{Ifindex, OWN_PROTOCOL, OwnRoute, Route, RouteVerb},
    netlink::{Changed, Netlink, NetlinkError, NetlinkFailure},
};
use tests::Netns;

use crate::{addr, find, inside, node, own};

/// Every shape of route of ours, in both families.
fn every_own_route(netns: &Netns) -> Vec<OwnRoute> {
    let mut routes = Vec::new();
    for (destination, gateway, far, source) in [
        ("172.30.0.0/16", "10.20.0.1", "192.0.2.1", "10.20.0.10"),
        ("172.30.7.9/32", "10.20.0.1", "192.0.2.1", "10.20.0.10"),
        ("fd00:30::/48", "fd00:20::1", "2001:db8::1", "fd00:20::10"),
        ("fd00:30::9/128", "fe80::1", "2001:db8::1", "fd00:20::10"),
    ] {
        let on_link = own(netns, destination, None);
        let plain = own(netns, destination, Some(gateway));
        routes.extend([
            on_link.clone(),
            OwnRoute { source: Some(addr(source)), mtu: Some(1400), metric: 7, ..on_link },
            OwnRoute { metric: u32::MAX, ..plain.clone() },
            OwnRoute { source: Some(addr(source)), ..plain.clone() },
            OwnRoute { mtu: Some(1400), ..plain.clone() },
            OwnRoute { gateway: Some(addr(far)), onlink: true, ..plain.clone() },
            OwnRoute { source: Some(addr(source)), mtu: Some(1300), metric: 50, ..plain },
        ]);
    }
    routes
}

#[test]
fn an_own_route_of_any_shape_is_observed_as_it_was_added_and_deleted_again() {
    let netns = node();
    inside(&netns, async || {
        let netlink = Netlink::connect().unwrap();
        let before = netlink.routes().await.unwrap();
        for route in every_own_route(&netns) {
            netlink.add_route(&route).await.unwrap();
            let observed = netlink.routes().await.unwrap();
            assert_eq!(observed.iter().filter_map(Route::as_own).collect::<Vec<_>>(), std::slice::from_ref(&route));
            let again = netlink.add_route(&route).await.unwrap_err();
            assert_eq!(again.failure(), NetlinkFailure::Exists, "{route:?}");
            assert_eq!(netlink.delete_route(&route).await.unwrap(), Changed::Yes, "{route:?}");
            assert_eq!(netlink.delete_route(&route).await.unwrap(), Changed::No, "{route:?}");
            assert_eq!(netlink.routes().await.unwrap(), before);
        }
    });
}

#[test]
fn the_printed_commands_do_what_we_do() {
    let netns = node();
    inside(&netns, async || {
        let netlink = Netlink::connect().unwrap();
        for route in every_own_route(&netns) {
            let run = |verb| netns.ip(route.command(verb, "eth1").strip_prefix("ip ").unwrap());
            run(RouteVerb::Add);
            let typed = netlink.routes().await.unwrap();
            run(RouteVerb::Delete);
            netlink.add_route(&route).await.unwrap();
            assert_eq!(netlink.routes().await.unwrap(), typed, "{route:?}");
            run(RouteVerb::Replace);
            assert_eq!(netlink.routes().await.unwrap(), typed, "{route:?}");
            run(RouteVerb::Delete);
            assert!(netlink.routes().await.unwrap().iter().all(|r| r.as_own().is_none()), "{route:?}");
        }
    });
}

#[test]
fn a_route_is_replaced_in_place() {
    let netns = node();
    for (destination, gateway, other, elsewhere, source) in [
        ("172.30.0.0/16", "10.20.0.1", "10.20.0.2", "10.0.0.1", "10.20.0.10"),
        ("fd00:30::/48", "fd00:20::1", "fd00:20::2", "fd00:a::1", "fd00:20::10"),
    ] {
        inside(&netns, async || {
            let netlink = Netlink::connect().unwrap();
            let old = own(&netns, destination, Some(gateway));
            netlink.add_route(&old).await.unwrap();
            for new in [
                OwnRoute { gateway: Some(addr(other)), ..old.clone() },
                OwnRoute { source: Some(addr(source)), ..old.clone() },
                OwnRoute { mtu: Some(1400), ..old.clone() },
                OwnRoute { gateway: None, ..old.clone() },
                OwnRoute { link: Ifindex(netns.ifindex("eth0")), gateway: Some(addr(elsewhere)), ..old.clone() },
                old,
            ] {
                netlink.replace_route(&new).await.unwrap();
                let owned: Vec<_> = netlink.routes().await.unwrap().iter().filter_map(Route::as_own).collect();
                assert_eq!(owned, [new]);
            }
            netns.ip(&format!("route flush proto {OWN_PROTOCOL}"));
            netns.ip(&format!("-6 route flush proto {OWN_PROTOCOL}"));
        });
    }
}

#[test]
fn adding_refuses_to_touch_a_foreign_route_and_deleting_leaves_it() {
    let netns = node();
    netns.ip_batch(
        "route add 172.30.0.0/16 via 10.20.0.1 dev eth1 proto static
         route add fd00:30::/48 via fd00:20::1 dev eth1 proto static",
    );
    for (destination, gateway) in [("172.30.0.0/16", "10.20.0.1"), ("fd00:30::/48", "fd00:20::1")] {
        inside(&netns, async || {
            let netlink = Netlink::connect().unwrap();
            let before = netlink.routes().await.unwrap();
            let ours = own(&netns, destination, Some(gateway));

            let error = netlink.add_route(&ours).await.unwrap_err();
            assert_eq!(error.failure(), NetlinkFailure::Exists);
            assert_eq!(error.command(), Some(ours.command(RouteVerb::Add, "eth1").as_str()));
            assert_eq!(netlink.delete_route(&ours).await.unwrap(), Changed::No);
            assert_eq!(netlink.routes().await.unwrap(), before);

            let beside = OwnRoute { metric: 7, ..ours };
            netlink.add_route(&beside).await.unwrap();
            assert_eq!(find(&netlink.routes().await.unwrap(), destination).len(), 2);
            assert_eq!(netlink.delete_route(&beside).await.unwrap(), Changed::Yes);
            assert_eq!(netlink.routes().await.unwrap(), before);
        });
    }
}

#[test]
fn deleting_takes_no_route_of_ours_that_differs_in_link_gateway_or_metric() {
    let netns = node();
    for (destination, gateway, other) in
        [("172.30.0.0/16", "10.20.0.1", "10.20.0.2"), ("fd00:30::/48", "fd00:20::1", "fd00:20::2")]
    {
        inside(&netns, async || {
            let netlink = Netlink::connect().unwrap();
            let installed = OwnRoute { metric: 7, ..own(&netns, destination, Some(gateway)) };
            netlink.add_route(&installed).await.unwrap();
            for different in [
                OwnRoute { metric: 8, ..installed.clone() },
                OwnRoute { gateway: Some(addr(other)), ..installed.clone() },
                OwnRoute { link: Ifindex(netns.ifindex("eth0")), ..installed.clone() },
                OwnRoute { link: Ifindex(9999), ..installed.clone() },
            ] {
                assert_eq!(netlink.delete_route(&different).await.unwrap(), Changed::No, "{different:?}");
            }
            assert_eq!(netlink.delete_route(&installed).await.unwrap(), Changed::Yes);
        });
    }
}

#[test]
fn a_refused_route_tells_its_cause_command_and_kernel_message() {
    let netns = node();
    netns.ip("link set eth0 down");
    let eth0 = Ifindex(netns.ifindex("eth0"));
    for (destination, gateway, outside) in
        [("172.30.0.0/16", "10.20.0.1", "192.0.2.1"), ("fd00:30::/48", "fd00:20::1", "2001:db8::1")]
    {
        let refused = |route: &OwnRoute| -> NetlinkError {
            inside(&netns, async || Netlink::connect().unwrap().add_route(route).await.unwrap_err())
        };
        let good = own(&netns, destination, Some(gateway));

        let error = refused(&OwnRoute { gateway: Some(addr(outside)), ..good.clone() });
        assert_eq!(error.failure(), NetlinkFailure::GatewayUnreachable, "{error:?}");
        assert!(error.to_string().contains(&format!("via {outside} dev eth1")), "{error}");

        let error = refused(&OwnRoute { link: Ifindex(9999), ..good.clone() });
        assert_eq!(error.failure(), NetlinkFailure::LinkGone, "{error:?}");
        assert!(error.to_string().contains("dev if9999"), "{error}");

        for gateway in [None, good.gateway] {
            let error = refused(&OwnRoute { link: eth0, gateway, ..good.clone() });
            assert_eq!(error.failure(), NetlinkFailure::LinkDown, "{error:?}");
        }

        let error = refused(&OwnRoute { source: Some(addr(outside)), ..good });
        assert_eq!(error.failure(), NetlinkFailure::Other, "{error:?}");
        assert!(
            matches!(&error, NetlinkError::Refused { message: Some(text), .. } if text.contains("source") || text.contains("prefsrc")),
            "{error:?}"
        );
    }
}

#[test]
fn without_the_capability_tables_are_read_and_changes_refused() {
    let netns = node();
    let error = inside(&netns, async || {
        caps::drop(None, caps::CapSet::Effective, caps::Capability::CAP_NET_ADMIN).unwrap();
        let netlink = Netlink::connect().unwrap();
        assert!(!netlink.observe().await.unwrap().routes.is_empty());
        netlink.add_route(&own(&netns, "172.30.0.0/16", Some("10.20.0.1"))).await.unwrap_err()
    });
    assert_eq!(error.failure(), NetlinkFailure::NotPermitted);
    assert!(error.hint().contains("CAP_NET_ADMIN"));
}
