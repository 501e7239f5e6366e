//! What each check says when things go wrong, on the real network stack.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::Duration;

use super::*;
use crate::netns::Netns;
use crate::wait::eventually;

const TIMEOUT: Duration = Duration::from_millis(400);

/// Two hosts on one wire: `here` .1 and `there` .2.
struct Wire {
    here: Netns,
    there: Netns,
}

impl Wire {
    fn new() -> Self {
        let (here, there) = (Netns::new("here"), Netns::new("there"));
        for netns in [&here, &there] {
            netns.sysctl("net/ipv6/conf/default/accept_dad", "0");
        }
        here.ip_batch(&format!(
            "link add wire index 10 type veth peer name wire index 11 netns {}\n\
             addr add 192.0.2.1/24 dev wire\naddr add 2001:db8::1/64 dev wire\nlink set wire up\n",
            there.name()
        ));
        there.ip_batch(
            "addr add 192.0.2.2/24 dev wire\naddr add 2001:db8::2/64 dev wire\nlink set wire up\n\
             addr add 192.0.2.3/24 dev wire\naddr add 2001:db8::3/64 dev wire\n",
        );
        Self { here, there }
    }
}

fn address(v4: bool, host: u8) -> IpAddr {
    if v4 {
        Ipv4Addr::new(192, 0, 2, host).into()
    } else {
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host.into()).into()
    }
}

#[test]
fn answers_are_told_from_failures() {
    let wire = Wire::new();
    for v4 in [true, false] {
        let (from, to) = (SocketAddr::new(address(v4, 1), 0), SocketAddr::new(address(v4, 2), 7));
        assert_eq!(tcp_check(&wire.here, from, to, TIMEOUT), Err(Failure::Refused));
        assert_eq!(udp_check(&wire.here, from, to, TIMEOUT), Err(Failure::Refused));
        let (tcp, udp) = (TcpEcho::start(&wire.there, to), UdpEcho::start(&wire.there, to));
        tcp_check(&wire.here, from, tcp.address(), TIMEOUT).unwrap();
        udp_check(&wire.here, from, udp.address(), TIMEOUT).unwrap();
        ping_check(&wire.here, from.ip(), to.ip(), TIMEOUT).unwrap();
        drop((tcp, udp));
        assert_eq!(tcp_check(&wire.here, from, to, TIMEOUT), Err(Failure::Refused));
        assert_eq!(udp_check(&wire.here, from, to, TIMEOUT), Err(Failure::Refused));
    }
}

#[test]
fn a_source_port_is_kept_when_asked_for() {
    let wire = Wire::new();
    let seen = SocketAddr::new(address(true, 2), 7);
    let listener = wire.there.run(|| TcpListener::bind(seen).unwrap());
    let from = SocketAddr::new(address(true, 1), 40001);
    assert_eq!(tcp_check(&wire.here, from, seen, TIMEOUT), Err(Failure::Timeout));
    assert_eq!(listener.accept().unwrap().1, from);
}

#[test]
fn silence_is_a_timeout() {
    let wire = Wire::new();
    wire.there
        .nft("table inet t { chain c { type filter hook input priority 0; meta l4proto { tcp, udp, icmp } drop; }; }");
    let (from, to) = (SocketAddr::new(address(true, 1), 0), SocketAddr::new(address(true, 2), 7));
    assert_eq!(tcp_check(&wire.here, from, to, TIMEOUT), Err(Failure::Timeout));
    assert_eq!(udp_check(&wire.here, from, to, TIMEOUT), Err(Failure::Timeout));
    assert_eq!(ping_check(&wire.here, from.ip(), to.ip(), TIMEOUT), Err(Failure::Timeout));
}

#[test]
fn icmp_errors_are_reported_with_type_code_and_sender() {
    let wire = Wire::new();
    wire.there.nft(
        "table inet t { chain c { type filter hook input priority 0; meta l4proto != ipv6-icmp ct state new \
         reject with icmpx admin-prohibited; icmpv6 type echo-request reject with icmpx admin-prohibited; }; }",
    );
    for (v4, icmp_type, code) in [(true, 3, 13), (false, 1, 1)] {
        let (from, to) = (SocketAddr::new(address(v4, 1), 0), SocketAddr::new(address(v4, 2), 7));
        let prohibited = Err(Failure::Unreachable(IcmpError { icmp_type, code, from: Some(to.ip()) }));
        assert_eq!(tcp_check(&wire.here, from, to, TIMEOUT), prohibited);
        assert_eq!(udp_check(&wire.here, from, to, TIMEOUT), prohibited);
        assert_eq!(ping_check(&wire.here, from.ip(), to.ip(), TIMEOUT), prohibited);
    }
}

#[test]
fn a_client_without_a_route_says_so() {
    let wire = Wire::new();
    for (v4, far) in [(true, "198.51.100.7:7"), (false, "[2001:db8:1::7]:7")] {
        let (from, to) = (SocketAddr::new(address(v4, 1), 0), far.parse::<SocketAddr>().unwrap());
        assert_eq!(tcp_check(&wire.here, from, to, TIMEOUT), Err(Failure::NoRoute));
        assert_eq!(udp_check(&wire.here, from, to, TIMEOUT), Err(Failure::NoRoute));
        assert_eq!(ping_check(&wire.here, from.ip(), to.ip(), TIMEOUT), Err(Failure::NoRoute));
    }
}

#[test]
fn a_wrong_answer_is_none() {
    let wire = Wire::new();
    for (v4, wildcard) in [(true, "0.0.0.0:8"), (false, "[::]:8")] {
        let (from, to) = (SocketAddr::new(address(v4, 1), 0), SocketAddr::new(address(v4, 2), 7));
        let _other_bytes = UdpEcho::answering(&wire.there, to, |_| b"something else".to_vec());
        let outcome = udp_check(&wire.here, from, to, TIMEOUT);
        assert!(matches!(&outcome, Err(Failure::WrongAnswer(why)) if why.contains("something else")), "{outcome:?}");
        // A server on the wildcard address answers by the address that the kernel likes best.
        let _other_source = UdpEcho::start(&wire.there, wildcard.parse().unwrap());
        wire.there.ip(&format!("route replace {from} dev wire src {src}", from = from.ip(), src = address(v4, 3)));
        let to = SocketAddr::new(address(v4, 2), 8);
        let outcome = udp_check(&wire.here, from, to, TIMEOUT);
        let other = SocketAddr::new(address(v4, 3), 8).to_string();
        assert!(matches!(&outcome, Err(Failure::WrongAnswer(why)) if why.contains(&other)), "{outcome:?}");
    }
}

#[test]
fn a_checker_tells_when_and_why_it_first_failed() {
    let wire = Wire::new();
    let (from, to) = (SocketAddr::new(address(true, 1), 0), SocketAddr::new(address(true, 2), 7));
    let server = TcpEcho::start(&wire.there, to);
    let targets = vec![Target::tcp(&wire.here, from, to).named("web"), Target::ping(&wire.here, from.ip(), to.ip())];
    let checker = Checker::start(targets, 100);
    let wait = |checks| {
        eventually(Duration::from_secs(10), "more checks", || (checker.done() >= checks).then_some(()));
        checker.done()
    };
    let before = wait(5);
    drop(server);
    wait(before + 20);
    let reports = checker.stop();
    let [web, ping] = reports.as_slice() else { panic!("{reports:?}") };
    assert_eq!((web.target.as_str(), web.sent), ("web", web.failed + web.rtts.len()));
    let (when, why) = web.first_failure.clone().unwrap();
    assert!(matches!(why, Failure::Refused | Failure::Reset | Failure::Closed), "{why}");
    assert!(web.rtts.len() >= 4 && web.failed >= 10, "{web:?}");
    assert!(when > Duration::from_millis(30) && web.max_gap > Duration::from_millis(100), "{web:?}");
    assert_eq!((ping.failed, &ping.first_failure), (0, &None));
    assert!(ping.max_gap < web.max_gap, "{ping:?}");
}
