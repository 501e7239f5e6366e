//! Which routes must exist for the RouteEntries of this node.

use std::{collections::HashMap, net::IpAddr};

use super::{
    DesiredRoute,
    nics::{Selected, is_on_link},
    refusal,
};
use crate::{
    api::Reason,
    config::{NicRef, NodeConfig, Refusal, RouteConfig},
    inventory::{Ifindex, Inventory, Link, OWN_PROTOCOL, OwnRoute, Route},
};

pub(super) fn desire(
    config: &NodeConfig,
    inventory: &Inventory,
    selected: &[Selected<'_>],
    refused: &mut Vec<Refusal>,
) -> Vec<DesiredRoute> {
    let foreign: HashMap<ipnet::IpNet, &Route> = inventory
        .routes
        .iter()
        .filter(|route| route.protocol != OWN_PROTOCOL && route.from.is_none())
        .map(|route| (route.destination, route))
        .collect();
    let mut routes: Vec<DesiredRoute> = Vec::new();
    // a gateway may be reached by another entry's route, which is on-link
    let (through, direct): (Vec<_>, Vec<_>) = config.routes.iter().partition(|entry| entry.gateway.is_some());
    // thousands of entries share few gateways
    let mut known: HashMap<(Ifindex, IpAddr), bool> = HashMap::new();
    for entry in direct.into_iter().chain(through) {
        let reaches = |link, gateway| {
            *known.entry((link, gateway)).or_insert_with(|| {
                is_on_link(inventory, link, gateway) || routes.iter().any(|item| leads_to(&item.route, link, gateway))
            })
        };
        match resolve(entry, inventory, selected, reaches, foreign.get(&entry.destination).copied()) {
            Ok(route) => routes.push(DesiredRoute { route, from: entry.from.clone() }),
            Err((reason, message)) => {
                refused.push(refusal(&entry.from, Some(entry.destination.to_string()), reason, message));
            }
        }
    }
    routes
}

fn resolve(
    entry: &RouteConfig,
    inventory: &Inventory,
    selected: &[Selected<'_>],
    reaches: impl FnOnce(Ifindex, IpAddr) -> bool,
    foreign: Option<&Route>,
) -> Result<OwnRoute, (Reason, String)> {
    let (link, managed) = nic_of(entry, inventory, selected)?;
    if let Some(foreign) = foreign {
        return Err((
            Reason::Conflict,
            format!(
                "a route that is not ours (protocol {}) has this destination; it is left as it is",
                foreign.protocol
            ),
        ));
    }
    if !link.up {
        return Err((Reason::NicDown, format!("{} is down", link.name)));
    }
    let family = entry.destination.addr();
    let gateway = match entry.gateway {
        Some(gateway) if !reaches(link.index, gateway) => {
            return Err((Reason::GatewayNotOnNic, format!("gateway {gateway} is in no subnet of {}", link.name)));
        }
        Some(gateway) => Some(gateway),
        None => managed.and_then(|nic| *nic.nic.gateways.of(family)),
    };
    Ok(OwnRoute {
        destination: entry.destination,
        link: link.index,
        gateway,
        source: source(entry, inventory, link.index)?,
        metric: OwnRoute::default_metric(&entry.destination),
        mtu: entry.mtu,
        onlink: false,
    })
}

/// Whether a route makes an address directly reachable on a link.
fn leads_to(route: &OwnRoute, link: Ifindex, address: IpAddr) -> bool {
    route.link == link && route.gateway.is_none() && route.destination.contains(&address)
}

type NicOf<'a> = (&'a Link, Option<&'a Selected<'a>>);

fn nic_of<'a>(
    entry: &RouteConfig,
    inventory: &'a Inventory,
    selected: &'a [Selected<'_>],
) -> Result<NicOf<'a>, (Reason, String)> {
    let managed = selected.iter().find(|nic| match &entry.nic {
        NicRef::Class(class) => nic.nic.class == *class,
        NicRef::Name(name) => nic.nic.name == *name,
    });
    let link = match (&entry.nic, managed) {
        (_, Some(nic)) => inventory.link(nic.nic.link),
        (NicRef::Name(name), None) => inventory.link_by_name(name),
        (NicRef::Class(_), None) => None,
    };
    let link = link.ok_or_else(|| (Reason::UnknownNic, format!("{} is no NIC of this node", entry.nic)))?;
    Ok((link, managed))
}

/// The declared source, else the NIC's first usable address, so that what the node itself sends there is answered.
fn source(entry: &RouteConfig, inventory: &Inventory, link: Ifindex) -> Result<Option<IpAddr>, (Reason, String)> {
    let same_family = |ip: IpAddr| ip.is_ipv4() == entry.destination.addr().is_ipv4();
    if let Some(declared) = entry.source {
        let there = inventory.addresses.iter().any(|a| a.net.addr() == declared && !a.tentative);
        return if there {
            Ok(Some(declared))
        } else {
            Err((Reason::SourceNotOnNic, format!("source {declared} is no usable address of this node")))
        };
    }
    Ok(inventory
        .addresses_of(link)
        .filter(|a| !a.tentative && !a.deprecated && !a.secondary)
        .map(|a| a.net.addr())
        .find(|ip| same_family(*ip) && !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())))
}
