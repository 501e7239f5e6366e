//! The host's network configuration, read, watched and changed on a real kernel.
#![expect(clippy::unwrap_used, reason = "what a test stands on fails the test")]

mod changing;
mod reading;
mod settings;
mod watching;

use std::{fmt::Write as _, future::Future, net::IpAddr, time::Duration};

use agent::{
    inventory::{Ifindex, OwnRoute, Route},
    netlink::Netlink,
};
use ipnet::IpNet;
use tests::{Netns, wait::eventually};

/// Longer than the kernel ever takes to announce something.
const DEADLINE: Duration = Duration::from_secs(10);

/// Runs the future inside the namespace, on a runtime of its own.
fn inside<T: Send, F: Future<Output = T>>(netns: &Netns, work: impl FnOnce() -> F + Send) -> T {
    netns.run(|| tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work()))
}

/// A node with `eth0` (10.0.0.10/24, fd00:a::10/64) and `eth1` (10.20.0.10/24, fd00:20::10/64), both up. Their other
/// ends are in the namespace too.
fn node() -> Netns {
    let netns = Netns::new("netlink");
    netns.sysctls(&[("net/ipv6/conf/default/accept_dad", "0"), ("net/ipv6/conf/all/forwarding", "0")]);
    netns.ip_batch(
        "link add eth0 type veth peer name far0
         link add eth1 type veth peer name far1
         link set far0 up
         link set far1 up
         link set eth0 up
         link set eth1 up
         address add 10.0.0.10/24 dev eth0
         address add 10.20.0.10/24 dev eth1
         address add fd00:a::10/64 dev eth0 nodad
         address add fd00:20::10/64 dev eth1 nodad",
    );
    // the kernel adds these some time after a link got its carrier
    eventually(DEADLINE, "four link-local prefixes", || {
        let connected = netns.ip("-6 route show fe80::/64 proto kernel");
        (connected.lines().count() == 4).then_some(()).ok_or(connected)
    });
    netns
}

fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn own(netns: &Netns, destination: &str, gateway: Option<&str>) -> OwnRoute {
    OwnRoute {
        destination: net(destination),
        link: Ifindex(netns.ifindex("eth1")),
        gateway: gateway.map(addr),
        source: None,
        metric: OwnRoute::default_metric(&net(destination)),
        mtu: None,
        onlink: false,
    }
}

fn find<'a>(routes: &'a [Route], destination: &str) -> Vec<&'a Route> {
    let destination = net(destination);
    routes.iter().filter(|r| r.destination == destination).collect()
}

async fn routes() -> Vec<Route> {
    Netlink::connect().unwrap().routes().await.unwrap()
}

/// `ip -batch` lines that do `verb` to `count` routes of their own /32 or /128, from 172.`second`.0.0 or fd00:`second`::.
fn batch(verb: &str, second: u8, count: u32) -> (String, String) {
    let (mut v4, mut v6) = (String::new(), String::new());
    for n in 0..count {
        writeln!(v4, "route {verb} 172.{second}.{}.{} via 10.20.0.1 dev eth1", n >> 8, n & 255).unwrap();
        writeln!(v6, "route {verb} fd00:{second}::{n:x} via fd00:20::1 dev eth1").unwrap();
    }
    (v4, v6)
}
