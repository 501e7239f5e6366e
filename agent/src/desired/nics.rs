//! Which interface each NicClass selects, and its gateways and addresses.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ebpf::abi::MAX_NICS;

use super::{ManagedNic, Memory, refusal};
use crate::{
    api::Reason,
    config::{NicConfig, NicMatch, NodeConfig, PerFamily, Refusal},
    inventory::{Ifindex, Inventory, Link, NextHop, OWN_PROTOCOL},
    tables::Slot,
};

/// A managed NIC with its class.
#[derive(Debug)]
pub(super) struct Selected<'a> {
    pub(super) nic: ManagedNic,
    pub(super) config: &'a NicConfig,
}

/// One NIC per class and one class per NIC; everything else is refused, and none of the parties is managed.
pub(super) fn select<'a>(
    config: &'a NodeConfig,
    inventory: &Inventory,
    memory: &Memory,
    refused: &mut Vec<Refusal>,
) -> Vec<Selected<'a>> {
    let mut claims: BTreeMap<Ifindex, Vec<&NicConfig>> = BTreeMap::new();
    for class in &config.nics {
        let matched: Vec<&Link> =
            candidates(inventory).filter(|link| matches(&class.matches, link, inventory)).collect();
        let mut refuse = |reason, message| refused.push(refusal(&class.from, None, reason, message));
        match matched.as_slice() {
            [] => refuse(Reason::NoSuchNic, "no NIC of this node matches".to_owned()),
            [link] if !link.ethernet => refuse(
                Reason::NotEthernet,
                format!("{} has no Ethernet header; only Ethernet NICs can be managed", link.name),
            ),
            [link] => claims.entry(link.index).or_default().push(class),
            several => {
                // as many as a line takes: `*` matches every pod's device
                const NAMED: usize = 5;
                let names: Vec<&str> = several.iter().take(NAMED).map(|link| link.name.as_str()).collect();
                let more = match several.len() - names.len() {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                refuse(Reason::Ambiguous, format!("{}{more} all match, so none is managed", names.join(", ")));
            }
        }
    }
    let mut slots = Slots::new(memory, claims.keys());
    let mut selected = Vec::new();
    for (index, classes) in claims {
        let Some(link) = inventory.link(index) else {
            continue;
        };
        match classes.as_slice() {
            [class] => match slots.assign(index) {
                Some(slot) => {
                    let nic = manage(slot, link, class, inventory, memory, refused);
                    selected.push(Selected { nic, config: class });
                }
                None => refused.push(refusal(
                    &class.from,
                    None,
                    Reason::TooManyNics,
                    format!("{} would be one more than the {MAX_NICS} NICs that can be managed", link.name),
                )),
            },
            several => {
                let names: Vec<&str> = several.iter().map(|class| class.class.as_str()).collect();
                for class in several {
                    refused.push(refusal(
                        &class.from,
                        None,
                        Reason::ClaimedTwice,
                        format!("{} is claimed by NicClasses {}, so it is not managed", link.name, names.join(", ")),
                    ));
                }
            }
        }
    }
    selected
}

/// Interfaces that can be managed at all: a port of a bridge or bond has no traffic of its own, its master has.
fn candidates(inventory: &Inventory) -> impl Iterator<Item = &Link> {
    const MASTERS: [&str; 4] = ["bridge", "bond", "team", "openvswitch"];
    inventory.links.iter().filter(|link| {
        let master = link.master.and_then(|master| inventory.link(master)).and_then(|master| master.kind.as_deref());
        !link.loopback && !master.is_some_and(|kind| MASTERS.contains(&kind))
    })
}

/// Whether all given rules hold.
fn matches(rules: &NicMatch, link: &Link, inventory: &Inventory) -> bool {
    let name = rules.names.is_empty() || rules.names.iter().any(|glob| glob_matches(glob, &link.name));
    let mac = rules.macs.is_empty() || link.mac.is_some_and(|mac| rules.macs.contains(&mac));
    let subnet = rules.subnets.is_empty()
        || inventory
            .addresses_of(link.index)
            .any(|address| rules.subnets.iter().any(|subnet| subnet.contains(&address.net.addr())));
    name && mac && subnet
}

/// `*` stands for any characters, `?` for one.
fn glob_matches(glob: &str, name: &str) -> bool {
    let (glob, name): (Vec<char>, Vec<char>) = (glob.chars().collect(), name.chars().collect());
    let (mut g, mut n) = (0, 0);
    // the last `*` seen and the name's place it has eaten up to
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match glob.get(g) {
            Some('*') => {
                star = Some((g, n));
                g += 1;
            }
            Some('?') => (g, n) = (g + 1, n + 1),
            Some(c) if *c == name[n] => (g, n) = (g + 1, n + 1),
            _ => match star {
                Some((at, eaten)) => {
                    star = Some((at, eaten + 1));
                    (g, n) = (at + 1, eaten + 1);
                }
                None => return false,
            },
        }
    }
    glob[g..].iter().all(|c| *c == '*')
}

fn manage(
    slot: Slot,
    link: &Link,
    class: &NicConfig,
    inventory: &Inventory,
    memory: &Memory,
    refused: &mut Vec<Refusal>,
) -> ManagedNic {
    let mut gateways = PerFamily::default();
    for family in [IpAddr::from([0; 4]), IpAddr::from([0; 16])] {
        let declared = *class.gateways.of(family);
        *gateways.of_mut(family) = match declared {
            Some(gateway) if !is_on_link(inventory, link.index, gateway) => {
                refused.push(refusal(
                    &class.from,
                    None,
                    Reason::GatewayNotOnNic,
                    format!("gateway {gateway} is in no subnet of {}", link.name),
                ));
                None
            }
            Some(gateway) => Some(gateway),
            None => learned(inventory, link.index, family).or_else(|| {
                let last = *memory.gateways.get(&link.name)?.of(family);
                last.filter(|gateway| is_on_link(inventory, link.index, *gateway))
            }),
        };
    }
    let mut addresses: Vec<IpAddr> =
        inventory.addresses_of(link.index).map(|address| address.net.addr()).filter(|ip| can_be_owned(*ip)).collect();
    addresses.sort_unstable();
    addresses.dedup();
    ManagedNic {
        slot,
        link: link.index,
        name: link.name.clone(),
        class: class.class.clone(),
        network: class.network.clone(),
        gateways,
        addresses,
    }
}

/// Addresses that rule 0 exempts can decide nothing.
fn can_be_owned(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_loopback() && !v4.is_multicast() && !v4.is_unspecified(),
        IpAddr::V6(v6) => {
            !v6.is_unicast_link_local() && !v6.is_loopback() && !v6.is_multicast() && !v6.is_unspecified()
        }
    }
}

/// Whether an address other than the link's own can be reached on it without a gateway: link-local, or in a prefix
/// routed to the link. Routes of ours do not count, or what must hold would depend on what held.
pub(super) fn is_on_link(inventory: &Inventory, link: Ifindex, address: IpAddr) -> bool {
    if inventory.addresses_of(link).any(|own| own.net.addr() == address) {
        return false;
    }
    if matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
        return true;
    }
    inventory.addresses_of(link).any(|own| own.on_link().contains(&address))
        || inventory.routes.iter().any(|route| {
            !route.is_default()
                && route.protocol != OWN_PROTOCOL
                && route.destination.contains(&address)
                && route.hops.iter().any(|hop| hop.link == Some(link) && hop.gateway.is_none())
        })
}

/// The gateway of a route of this NIC in main that is not ours: of its default route with the lowest metric, else of
/// its widest route.
fn learned(inventory: &Inventory, link: Ifindex, family: IpAddr) -> Option<IpAddr> {
    inventory
        .routes
        .iter()
        .filter(|route| route.protocol != OWN_PROTOCOL && route.destination.addr().is_ipv4() == family.is_ipv4())
        .flat_map(|route| {
            let of_link = route.hops.iter().filter(move |hop| hop.link == Some(link));
            // an IPv4 route may have an IPv6 neighbour as gateway, which is none for an IPv4 table
            let gateway = move |hop: &NextHop| hop.gateway.filter(|gateway| gateway.is_ipv4() == family.is_ipv4());
            of_link.filter_map(move |hop| Some(((route.destination.prefix_len(), route.metric), gateway(hop)?)))
        })
        .min()
        .map(|(_, gateway)| gateway)
}

/// Hands out slots: a NIC keeps its own, a new one gets one that no published table uses, if there is any.
struct Slots {
    /// Of the NICs that have one.
    own: BTreeMap<Ifindex, Slot>,
    published: BTreeSet<Slot>,
    taken: BTreeSet<Slot>,
}

impl Slots {
    fn new<'a>(memory: &Memory, links: impl Iterator<Item = &'a Ifindex>) -> Self {
        let mut taken = BTreeSet::new();
        let own = links
            .filter_map(|link| Some((*link, *memory.slots.get(link)?)))
            .filter(|(_, slot)| (*slot as usize) < MAX_NICS && taken.insert(*slot))
            .collect();
        Self { own, published: memory.slots.values().copied().collect(), taken }
    }

    fn assign(&mut self, link: Ifindex) -> Option<Slot> {
        if let Some(own) = self.own.get(&link) {
            return Some(*own);
        }
        let free = |slot: &Slot| !self.taken.contains(slot);
        let slot = (0..MAX_NICS as Slot)
            .find(|slot| free(slot) && !self.published.contains(slot))
            .or_else(|| (0..MAX_NICS as Slot).find(free))?;
        self.taken.insert(slot);
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_whole_names() {
        for (glob, name, matched) in [
            ("eth1", "eth1", true),
            ("eth1", "eth10", false),
            ("ens*", "ens5", true),
            ("ens*", "ens", true),
            ("*", "anything", true),
            ("e?h*1", "eth01", true),
            ("e?h*1", "eh1", false),
            ("*a*b", "xaxbxb", true),
            ("*a*b", "xaxbx", false),
            ("", "eth0", false),
        ] {
            assert_eq!(glob_matches(glob, name), matched, "{glob} {name}");
        }
    }
}
