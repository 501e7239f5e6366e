//! What the kernel announces, and what it does not.

use std::collections::BTreeSet;

use agent::netlink::{Change, Netlink, Watch, watch};

use crate::{DEADLINE, batch, find, inside, node, own, routes};

/// The change that comes next.
async fn next(watch: &mut Watch) -> Change {
    tokio::time::timeout(DEADLINE, watch.next()).await.expect("a change in time").expect("a socket that works")
}

/// Waits until the change is announced; what else is announced before it.
async fn until(watch: &mut Watch, wanted: Change) -> BTreeSet<Change> {
    let mut others = BTreeSet::new();
    loop {
        match next(watch).await {
            change if change == wanted => return others,
            change => others.insert(change),
        };
    }
}

#[test]
fn every_kind_of_change_is_announced() {
    let netns = node();
    inside(&netns, async || {
        let mut watch = watch().unwrap();
        for (commands, change) in [
            ("link set eth1 mtu 1400", Change::Links),
            ("address add 10.20.0.99/24 dev eth1", Change::Addresses),
            ("-6 address add fd00:20::99/64 dev eth1 nodad", Change::Addresses),
            ("route add 172.30.0.0/16 via 10.20.0.1", Change::Routes),
            ("-6 route add fd00:30::/48 via fd00:20::1", Change::Routes),
            ("nexthop add id 1 via 10.20.0.1 dev eth1", Change::Routes),
            ("neigh add 10.20.0.1 lladdr 02:00:00:00:00:01 dev eth1", Change::Neighbours),
            ("-6 neigh add fd00:20::1 lladdr 02:00:00:00:00:01 dev eth1", Change::Neighbours),
        ] {
            netns.ip(commands);
            until(&mut watch, change).await;
        }
        for setting in ["net/ipv4/conf/eth1/rp_filter", "net/ipv6/conf/eth1/forwarding"] {
            netns.sysctl(setting, "1");
            until(&mut watch, Change::Sysctls).await;
        }
    });
}

#[test]
fn our_own_changes_are_announced_like_others() {
    let netns = node();
    inside(&netns, async || {
        let mut watch = watch().unwrap();
        Netlink::connect().unwrap().add_route(&own(&netns, "172.30.0.0/16", Some("10.20.0.1"))).await.unwrap();
        assert_eq!(next(&mut watch).await, Change::Routes);
    });
}

#[test]
fn ipv4_routes_that_go_with_a_link_set_down_are_announced_by_the_link_alone() {
    let netns = node();
    netns.sysctl("net/ipv6/conf/all/disable_ipv6", "1");
    netns.ip("route add 172.30.0.0/16 via 10.20.0.1");
    inside(&netns, async || {
        let mut watch = watch().unwrap();
        netns.ip("link set eth1 down");
        // a change made afterwards marks the end of what that command announced
        netns.ip("neigh add 10.0.0.1 lladdr 02:00:00:00:00:01 dev eth0");
        let mut announced = until(&mut watch, Change::Neighbours).await;
        assert!(announced.remove(&Change::Links));
        assert!(!announced.contains(&Change::Routes), "{announced:?}");
        assert!(find(&routes().await, "172.30.0.0/16").is_empty());
    });
}

#[test]
fn unread_announcements_beyond_the_buffer_are_reported_as_overflow() {
    let netns = node();
    let (v4, _) = batch("add", 40, 20_000);
    inside(&netns, async || {
        let mut small = Watch::open(16 << 10).unwrap();
        netns.ip_batch(&v4);
        assert_eq!(until(&mut small, Change::Overflow).await, BTreeSet::new());
        assert_eq!(next(&mut small).await, Change::Routes);
        netns.ip("link set eth1 mtu 1400");
        assert_eq!(next(&mut small).await, Change::Links, "goes on after the overflow");
    });
}

#[test]
fn a_burst_of_changes_of_one_kind_is_reported_once() {
    let netns = node();
    let (v4, _) = batch("add", 40, 1_000);
    inside(&netns, async || {
        let mut watch = watch().unwrap();
        netns.ip_batch(&v4);
        assert_eq!(next(&mut watch).await, Change::Routes);
        netns.ip("link set eth1 mtu 1400");
        assert_eq!(until(&mut watch, Change::Links).await, BTreeSet::new());
    });
}
