//! What a node must have, from hosts and configurations made here.

mod nics;
mod node;
mod routes;
mod tables;

use super::*;
use crate::{
    api::{Mode, ReplyPath, SourceGuard},
    config::{NicConfig, NicMatch, NicRef, RouteConfig},
    inventory::{Address, Link, Mac, NextHop, OWN_PROTOCOL, Route, RouteKind},
};

/// Protocol ids as iproute2 names them.
const KERNEL: u8 = 2;
const STATIC: u8 = 4;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// A host under construction. Interface indexes count from 1 in the order of the links.
#[derive(Debug, Clone, Default)]
struct Host(Inventory);

impl Host {
    /// LAB-2NIC: eth0 with the default routes, eth1 on a network of its own.
    fn lab() -> Self {
        Self::default()
            .link("lo", |lo| lo.loopback = true)
            .nic("eth0")
            .address("eth0", "10.10.0.10/24")
            .address("eth0", "fd00:10::10/64")
            .route("eth0", "0.0.0.0/0", Some("10.10.0.1"))
            .route("eth0", "::/0", Some("fe80::1"))
            .nic("eth1")
            .address("eth1", "10.20.0.10/24")
            .address("eth1", "fd00:20::10/64")
    }

    fn nic(self, name: &str) -> Self {
        self.link(name, |_| {})
    }

    fn link(mut self, name: &str, change: impl FnOnce(&mut Link)) -> Self {
        let index = self.0.links.len() as u32 + 1;
        let mut link = Link {
            index: Ifindex(index),
            name: name.to_owned(),
            kind: None,
            mac: Some(Mac([2, 0, 0, 0, 0, index as u8])),
            ethernet: true,
            loopback: false,
            up: true,
            carrier: true,
            mtu: 1500,
            master: None,
            lower: None,
        };
        change(&mut link);
        self.0.links.push(link);
        self
    }

    fn change(mut self, name: &str, change: impl FnOnce(&mut Link)) -> Self {
        change(self.0.links.iter_mut().find(|link| link.name == name).unwrap());
        self
    }

    /// With its connected route, as the kernel makes it.
    fn address(self, nic: &str, address: &str) -> Self {
        let mut host = self.bare_address(nic, address, |_| {});
        let link = host.index(nic);
        host.0.routes.push(Route { protocol: KERNEL, ..route_by(link, net(address).trunc(), None) });
        host
    }

    fn bare_address(mut self, nic: &str, address: &str, change: impl FnOnce(&mut Address)) -> Self {
        let link = self.index(nic);
        let net = net(address);
        let mut address = Address { link, net, peer: None, tentative: false, deprecated: false, secondary: false };
        change(&mut address);
        self.0.addresses.push(address);
        self
    }

    /// A foreign route.
    fn route(self, nic: &str, destination: &str, gateway: Option<&str>) -> Self {
        self.route_with(nic, destination, gateway, |_| {})
    }

    fn route_with(
        mut self,
        nic: &str,
        destination: &str,
        gateway: Option<&str>,
        change: impl FnOnce(&mut Route),
    ) -> Self {
        let mut route = route_by(self.index(nic), net(destination), gateway.map(ip));
        change(&mut route);
        self.0.routes.push(route);
        self
    }

    fn index(&self, nic: &str) -> Ifindex {
        self.0.link_by_name(nic).unwrap().index
    }

    fn desire(&self, config: &NodeConfig) -> Desired {
        self.desire_with(config, &Memory::default())
    }

    fn desire_with(&self, config: &NodeConfig, memory: &Memory) -> Desired {
        desire(config, &self.0, memory, &Protected::default())
    }
}

fn route_by(link: Ifindex, destination: IpNet, gateway: Option<IpAddr>) -> Route {
    Route {
        destination,
        from: None,
        kind: RouteKind::Unicast,
        hops: vec![NextHop { link: Some(link), gateway, onlink: false }],
        source: None,
        metric: OwnRoute::default_metric(&destination),
        mtu: None,
        protocol: STATIC,
        tos: 0,
    }
}

fn from(kind: &str, name: &str) -> Provenance {
    Provenance { kind: kind.into(), name: name.into(), uid: String::new(), generation: 0 }
}

fn class_matching(name: &str, matches: NicMatch) -> NicConfig {
    NicConfig {
        class: name.into(),
        network: name.into(),
        matches,
        gateways: PerFamily::default(),
        mode: Mode::Enforce,
        reply_path: ReplyPath::Symmetric,
        owned_prefixes: vec![],
        strict_arp: false,
        source_guard: SourceGuard::Count,
        from: from("NicClass", name),
    }
}

fn class(name: &str, nic: &str) -> NicConfig {
    class_matching(name, NicMatch { names: vec![nic.into()], ..NicMatch::default() })
}

fn mgmt() -> NicConfig {
    class("mgmt", "eth1")
}

fn user() -> NicConfig {
    class("user", "eth0")
}

/// A RouteEntry named like its destination, by the class mgmt.
fn entry(destination: &str) -> RouteConfig {
    RouteConfig {
        destination: net(destination),
        nic: NicRef::Class("mgmt".into()),
        gateway: None,
        source: None,
        mtu: None,
        allow: BTreeSet::new(),
        from: from("RouteEntry", destination),
    }
}

fn config(nics: impl IntoIterator<Item = NicConfig>, routes: impl IntoIterator<Item = RouteConfig>) -> NodeConfig {
    NodeConfig { nics: nics.into_iter().collect(), routes: routes.into_iter().collect(), refused: vec![] }
}

fn names(desired: &Desired) -> Vec<&str> {
    desired.nics.iter().map(|nic| nic.name.as_str()).collect()
}

/// Name of the object and reason of every refusal.
fn refusals(desired: &Desired) -> Vec<(&str, Reason)> {
    desired.refused.iter().map(|refusal| (refusal.from.name.as_str(), refusal.reason)).collect()
}
