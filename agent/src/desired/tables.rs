//! What the programs look up: owners, owned prefixes, next hops.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use ipnet::IpNet;

use super::{DesiredRoute, nics::Selected, refusal};
use crate::{
    api::Reason,
    config::{PerFamily, Refusal},
    inventory::{Ifindex, Inventory, OWN_PROTOCOL, Route, RouteKind},
    tables::{AdminState, Hop, NicEntry, Slot, TableSpec},
};

pub(super) fn build(
    inventory: &Inventory,
    selected: &[Selected<'_>],
    routes: &[DesiredRoute],
    refused: &mut Vec<Refusal>,
) -> TableSpec {
    let networks: BTreeSet<&str> = selected.iter().map(|nic| nic.nic.network.as_str()).collect();
    let number = |network: &str| networks.iter().position(|n| *n == network).map_or(0, |place| place as u16 + 1);
    let mut spec = TableSpec::default();
    for Selected { nic, config } in selected {
        let link = inventory.link(nic.link);
        spec.nics.insert(
            nic.slot,
            NicEntry {
                link: nic.link,
                lower: link.and_then(|link| link.lower),
                network: number(&nic.network),
                state: if link.is_some_and(|link| link.up) { AdminState::Up } else { AdminState::Down },
                mode: config.mode,
                reply_path: config.reply_path,
                source_guard: config.source_guard,
                gateways: nic.gateways,
            },
        );
        spec.hops.extend(hops(inventory, nic.link, &nic.gateways, routes).map(|(net, hop)| ((nic.slot, net), hop)));
    }
    spec.owners = owners(selected);
    spec.prefixes = prefixes(selected, refused);
    spec
}

/// An address on two managed NICs belongs to neither: its flows are told apart by the NIC they arrive on.
fn owners(selected: &[Selected<'_>]) -> BTreeMap<IpAddr, Slot> {
    let mut owners = BTreeMap::new();
    let mut shared = BTreeSet::new();
    for Selected { nic, .. } in selected {
        for address in &nic.addresses {
            if owners.insert(*address, nic.slot).is_some() {
                shared.insert(*address);
            }
        }
    }
    owners.retain(|address, _| !shared.contains(address));
    owners
}

/// A prefix that two NicClasses claim belongs to neither.
fn prefixes(selected: &[Selected<'_>], refused: &mut Vec<Refusal>) -> BTreeMap<IpNet, Slot> {
    let mut claims: BTreeMap<IpNet, Vec<&Selected<'_>>> = BTreeMap::new();
    for nic in selected {
        for prefix in BTreeSet::from_iter(&nic.config.owned_prefixes) {
            claims.entry(*prefix).or_default().push(nic);
        }
    }
    let mut prefixes = BTreeMap::new();
    for (prefix, claimants) in claims {
        match claimants.as_slice() {
            [nic] => {
                prefixes.insert(prefix, nic.nic.slot);
            }
            several => refused.extend(several.iter().map(|nic| {
                let names: Vec<&str> = several.iter().map(|nic| nic.config.class.as_str()).collect();
                let message = format!("{prefix} is claimed by NicClasses {}, so nobody owns it", names.join(", "));
                refusal(&nic.config.from, Some(prefix.to_string()), Reason::ClaimedTwice, message)
            })),
        }
    }
    prefixes
}

/// Where a NIC's packets go, as far as that differs from its gateway: its on-link subnets and its own routes, without
/// those whose covering prefix says the same.
fn hops(
    inventory: &Inventory,
    link: Ifindex,
    gateways: &PerFamily<Option<IpAddr>>,
    routes: &[DesiredRoute],
) -> impl Iterator<Item = (IpNet, Hop)> {
    let mut all: HashMap<IpNet, (u32, Hop)> = HashMap::new();
    let mut add = |net: IpNet, metric: u32, gateway: Option<IpAddr>| {
        // an IPv6 neighbour of an IPv4 route has no form in the programs' table
        if gateway.is_some_and(|gateway| gateway.is_ipv4() != net.addr().is_ipv4()) {
            return;
        }
        let hop = gateway.map_or(Hop::OnLink, Hop::Gateway);
        let best = all.entry(net.trunc()).or_insert((metric, hop));
        if metric < best.0 {
            *best = (metric, hop);
        }
    };
    let foreign = |r: &&Route| r.protocol != OWN_PROTOCOL && r.kind == RouteKind::Unicast && r.from.is_none();
    let decides = |r: &&Route| !r.is_default() && !is_exempt(r.destination);
    for route in inventory.routes.iter().filter(foreign).filter(decides) {
        for hop in route.hops.iter().filter(|hop| hop.link == Some(link)) {
            add(route.destination, route.metric, hop.gateway);
        }
    }
    for DesiredRoute { route, .. } in routes.iter().filter(|r| r.route.link == link) {
        add(route.destination, route.metric, route.gateway);
    }
    keep_clear_of_ipv4(&mut all);
    let gateway = |net: &IpNet| gateways.of(net.addr()).map(Hop::Gateway);
    let needed: BTreeMap<IpNet, Hop> = all
        .iter()
        .filter(|(net, (_, hop))| {
            let covering = std::iter::successors(net.supernet(), IpNet::supernet).find_map(|above| all.get(&above));
            covering.map(|(_, above)| *above).or_else(|| gateway(net)) != Some(*hop)
        })
        .map(|(net, (_, hop))| (*net, *hop))
        .collect();
    needed.into_iter()
}

/// Replaces each IPv6 prefix that holds ::ffff:0:0/96 by its parts beside that: the programs keep both families in one
/// table, with IPv4 mapped there, and would follow an IPv6 default route for IPv4.
fn keep_clear_of_ipv4<T: Copy>(all: &mut HashMap<IpNet, T>) {
    const MAPPED: u128 = 0xffff << 32;
    const MAPPED_LEN: u8 = 96;
    let holds = |net: &IpNet| net.prefix_len() <= MAPPED_LEN && net.contains(&IpAddr::from(MAPPED.to_be_bytes()));
    let mut wide: Vec<IpNet> = all.keys().filter(|net| holds(net)).copied().collect();
    // where one lies in another, its parts win
    wide.sort_by_key(|net| std::cmp::Reverse(net.prefix_len()));
    for net in wide {
        let Some(value) = all.remove(&net) else { continue };
        for len in net.prefix_len() + 1..=MAPPED_LEN {
            let beside = MAPPED ^ (1 << (128 - u32::from(len)));
            if let Ok(part) = IpNet::new(IpAddr::from(beside.to_be_bytes()), len) {
                all.entry(part.trunc()).or_insert(value);
            }
        }
    }
}

/// Destinations that rule 0 leaves alone anyway.
fn is_exempt(net: IpNet) -> bool {
    match net {
        IpNet::V4(net) => net.addr().is_multicast() || net.addr().is_link_local(),
        IpNet::V6(net) => net.addr().is_multicast() || net.addr().is_unicast_link_local(),
    }
}
