//! From a node's configuration and what exists on it to what must hold: attachments, table entries, routes, sysctls,
//! and for everything that cannot be done a refusal that says why.
//!
//! Pure: the inventory and what is remembered from earlier are arguments. Called anew on every change; the same
//! arguments give the same answer.

mod nics;
mod routes;
mod tables;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;

use crate::{
    api::Reason,
    config::{NodeConfig, PerFamily, Provenance, Refusal},
    inventory::{Ifindex, Inventory, OwnRoute, SysctlFamily, SysctlKey},
    merge::{NetworkSubnet, Protected, protect},
    tables::{Slot, TableSpec},
};

/// What earlier runs know and the host no longer shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    /// Last gateway seen for a NIC, by interface name.
    pub gateways: BTreeMap<String, PerFamily<Option<IpAddr>>>,
    /// Slots in use, so that a NIC keeps its own.
    pub slots: BTreeMap<Ifindex, Slot>,
}

/// A NIC that a NicClass selects, alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagedNic {
    pub slot: Slot,
    pub link: Ifindex,
    pub name: String,
    pub class: String,
    pub network: String,
    pub gateways: PerFamily<Option<IpAddr>>,
    /// Addresses that this NIC owns.
    pub addresses: Vec<IpAddr>,
}

/// A route that must exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredRoute {
    pub route: OwnRoute,
    pub from: Provenance,
}

/// What must hold on the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Desired {
    pub nics: Vec<ManagedNic>,
    pub tables: TableSpec,
    pub routes: Vec<DesiredRoute>,
    pub sysctls: BTreeMap<SysctlKey, String>,
    pub refused: Vec<Refusal>,
    /// Interfaces that a reply could leave by and that no NicClass covers, with the route that says so.
    pub uncovered: Vec<Uncovered>,
    /// Gateways to remember.
    pub gateways: BTreeMap<String, PerFamily<Option<IpAddr>>>,
}

/// A device outside our reach that carries a route to elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Uncovered {
    pub nic: String,
    pub destination: IpNet,
}

impl Desired {
    /// The managed NIC with this interface index.
    pub fn nic(&self, link: Ifindex) -> Option<&ManagedNic> {
        self.nics.iter().find(|nic| nic.link == link)
    }
}

/// Computes what must hold. `reserved` is what no route may cover besides what the inventory shows to be so.
pub fn desire(config: &NodeConfig, inventory: &Inventory, memory: &Memory, reserved: &Protected) -> Desired {
    let mut refused = Vec::new();
    let selected = nics::select(config, inventory, memory, &mut refused);
    let gateways = remembered(&selected, memory);
    let permitted = protect(config.clone(), &protected(reserved, inventory, &selected));
    let routes = routes::desire(&permitted, inventory, &selected, &mut refused);
    refused.extend(permitted.refused);
    let tables = tables::build(inventory, &selected, &routes, &mut refused);
    let sysctls = selected.iter().flat_map(|nic| sysctls(&nic.nic.name, nic.config.strict_arp)).collect();
    let uncovered = uncovered(inventory, &selected.iter().map(|nic| nic.nic.link).collect());
    Desired {
        nics: selected.into_iter().map(|nic| nic.nic).collect(),
        tables,
        routes,
        sysctls,
        refused,
        uncovered,
        gateways,
    }
}

/// What the operator names, plus this node's addresses and the subnets of its networks.
fn protected(reserved: &Protected, inventory: &Inventory, selected: &[nics::Selected<'_>]) -> Protected {
    let mut protected = reserved.clone();
    protected.node_addresses.extend(inventory.addresses.iter().map(|address| IpNet::from(address.net.addr())));
    for nic in selected {
        protected.nic_networks.insert(nic.nic.name.clone(), nic.nic.network.clone());
        protected.networks.extend(
            inventory
                .addresses_of(nic.nic.link)
                .filter(|address| !is_link_local(address.net.addr()))
                .map(|address| NetworkSubnet { network: nic.nic.network.clone(), subnet: address.net.trunc() }),
        );
    }
    protected
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

fn refusal(from: &Provenance, destination: Option<String>, reason: Reason, message: String) -> Refusal {
    Refusal { from: from.clone(), destination, reason, message }
}

/// Last learned gateways, with those of NICs that are away for the moment kept. A declared one needs no memory, and must
/// not outlive its declaration.
fn remembered(selected: &[nics::Selected<'_>], memory: &Memory) -> BTreeMap<String, PerFamily<Option<IpAddr>>> {
    let mut gateways = memory.gateways.clone();
    for nic in selected {
        let (declared, found) = (nic.config.gateways, nic.nic.gateways);
        let learned = [found.v4.filter(|_| declared.v4.is_none()), found.v6.filter(|_| declared.v6.is_none())];
        for gateway in learned.into_iter().flatten() {
            *gateways.entry(nic.nic.name.clone()).or_default().of_mut(gateway) = Some(gateway);
        }
    }
    gateways
}

/// Settings of a managed NIC (design section 8): never of `all` or `default`.
///
/// Loose reverse-path check, since a request's way back is decided after the check; ARP requests with an address of
/// the NIC they leave by, since routers answer only their own subnet; neighbours that survive a lost carrier, since
/// other NICs' replies need them.
fn sysctls(nic: &str, strict_arp: bool) -> impl Iterator<Item = (SysctlKey, String)> {
    let setting = |family, name: &str, value: &str| {
        (SysctlKey { family, nic: nic.to_owned(), name: name.to_owned() }, value.to_owned())
    };
    let v4 = SysctlFamily::Ipv4;
    [
        Some(setting(v4, "rp_filter", "2")),
        Some(setting(v4, "arp_announce", "2")),
        Some(setting(v4, "arp_evict_nocarrier", "0")),
        Some(setting(SysctlFamily::Ipv6, "ndisc_evict_nocarrier", "0")),
        strict_arp.then(|| setting(v4, "arp_ignore", "1")),
    ]
    .into_iter()
    .flatten()
}

/// Devices that lead off the node, are not managed, and carry a default route or a route with a gateway.
///
/// Tunnels and pod devices are meant to carry traffic past us (more specific local routes win over rule 2); only a
/// default route makes one a way for replies to anywhere. Some networks route pods by an address of the node itself,
/// which leads nowhere else.
fn uncovered(inventory: &Inventory, managed: &BTreeSet<Ifindex>) -> Vec<Uncovered> {
    const TUNNELS: [&str; 13] = [
        "vxlan",
        "geneve",
        "ipip",
        "sit",
        "gre",
        "gretap",
        "ip6tnl",
        "ip6gre",
        "ip6gretap",
        "erspan",
        "wireguard",
        "tun",
        "vti",
    ];
    let own: BTreeSet<IpAddr> = inventory.addresses.iter().map(|address| address.net.addr()).collect();
    let mut found = BTreeSet::new();
    for route in inventory.routes.iter().filter(|route| route.from.is_none()) {
        for hop in &route.hops {
            let Some(link) = hop.link.filter(|link| !managed.contains(link)).and_then(|link| inventory.link(link))
            else {
                continue;
            };
            let tunnel = link.kind.as_deref().is_some_and(|kind| TUNNELS.contains(&kind));
            let elsewhere = hop.gateway.is_some_and(|gateway| !own.contains(&gateway));
            let leads_away = route.destination.prefix_len() <= 1 || (elsewhere && !tunnel);
            if leads_away && !link.loopback {
                found.insert(Uncovered { nic: link.name.clone(), destination: route.destination });
            }
        }
    }
    // one line per device is enough, its widest route first
    let mut seen = BTreeSet::new();
    let mut all: Vec<_> = found.into_iter().collect();
    all.sort_by_key(|item| (item.destination.prefix_len(), item.clone()));
    all.retain(|item| seen.insert(item.nic.clone()));
    all
}

#[cfg(test)]
mod tests;
