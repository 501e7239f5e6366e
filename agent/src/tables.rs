//! The programs' tables as plain values: what is compared, published, undone and shown.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
};

use ebpf::{
    abi::{
        Addr, HOP_GATEWAY, HOP_ON_LINK, MAX_NICS, NEXT_HOPS, NIC_DOWN, NIC_HAS_GATEWAY4, NIC_HAS_GATEWAY6,
        NIC_INDEX_PLACES, NIC_OBSERVE, NIC_REPLY_OFF, NIC_SOURCE_COUNT, NIC_SOURCE_DROP, NextHopKey, NextHopValue, Nic,
        OWNED_ADDRESSES, OWNED_PREFIXES, TABLES_HAS_PREFIXES, Tables,
    },
    owners::Full,
};
use ipnet::{IpNet, Ipv6Net};

use crate::{
    api::{Mode, ReplyPath, SourceGuard},
    config::PerFamily,
    inventory::Ifindex,
};

/// Index of a NIC in the programs' tables and counters, below [`MAX_NICS`].
pub type Slot = u32;

/// Whether a NIC can send at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminState {
    Up,
    Down,
}

/// A managed NIC as the programs know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicEntry {
    pub link: Ifindex,
    /// The device below a VLAN or macvlan.
    pub lower: Option<Ifindex>,
    /// Number of its isolation domain, from 1.
    pub network: u16,
    pub state: AdminState,
    pub mode: Mode,
    pub reply_path: ReplyPath,
    pub source_guard: SourceGuard,
    pub gateways: PerFamily<Option<IpAddr>>,
}

/// Where packets of a NIC to a prefix go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hop {
    /// To the destination itself.
    OnLink,
    Gateway(IpAddr),
}

/// Everything the programs look up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableSpec {
    pub nics: BTreeMap<Slot, NicEntry>,
    pub owners: BTreeMap<IpAddr, Slot>,
    pub prefixes: BTreeMap<IpNet, Slot>,
    /// Where a NIC's packets go, if not to its gateway.
    pub hops: BTreeMap<(Slot, IpNet), Hop>,
}

/// A table of the programs cannot hold what is asked of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{asked} {what} do not fit into the programs' table of {capacity}")]
pub struct TableFull {
    pub what: &'static str,
    pub asked: usize,
    pub capacity: usize,
}

impl TableSpec {
    /// The value to publish.
    ///
    /// # Errors
    ///
    /// [`TableFull`] names the table that is too small.
    pub fn to_tables(&self, generation: u64) -> Result<Box<Tables>, TableFull> {
        let full = |what, asked, capacity| TableFull { what, asked, capacity };
        let mut tables = Tables::boxed();
        tables.generation = generation;
        // In the order of their first places: each then stands as near to it as it can, and NICs with low numbers beside one
        // that was made long after them all fit.
        let mut nics: Vec<_> = self.nics.iter().collect();
        nics.sort_by_key(|(_, nic)| nic.link.0 as usize % NIC_INDEX_PLACES);
        for (slot, nic) in nics {
            let placed = tables.place_nic(*slot, nic.to_abi());
            placed.map_err(|Full| full("NICs", self.nics.len(), MAX_NICS))?;
        }
        let owners = self.owners.iter().map(|(ip, slot)| (Addr::from_ip(*ip), *slot as u16));
        tables.place_owners(&owners).map_err(|Full| full("owned addresses", self.owners.len(), OWNED_ADDRESSES))?;
        if self.prefixes.len() > OWNED_PREFIXES {
            return Err(full("owned prefixes", self.prefixes.len(), OWNED_PREFIXES));
        }
        if self.hops.len() > NEXT_HOPS {
            return Err(full("next hops", self.hops.len(), NEXT_HOPS));
        }
        if !self.prefixes.is_empty() {
            tables.flags |= TABLES_HAS_PREFIXES;
        }
        Ok(tables)
    }

    /// What published tables and the two tries say.
    pub fn from_parts(tables: &Tables, prefixes: BTreeMap<IpNet, Slot>, hops: BTreeMap<(Slot, IpNet), Hop>) -> Self {
        Self {
            nics: tables.managed().map(|(slot, nic)| (slot, NicEntry::from_abi(nic))).collect(),
            owners: tables.owners().map(|(addr, slot)| (addr.to_ip(), Slot::from(slot))).collect(),
            prefixes,
            hops,
        }
    }

    /// The slot a link has.
    pub fn slot_of(&self, link: Ifindex) -> Option<Slot> {
        self.nics.iter().find(|(_, nic)| nic.link == link).map(|(slot, _)| *slot)
    }
}

impl NicEntry {
    fn to_abi(&self) -> Nic {
        let mut flags = 0;
        match self.state {
            AdminState::Up => {}
            AdminState::Down => flags |= NIC_DOWN,
        }
        match self.mode {
            Mode::Enforce => {}
            Mode::Observe => flags |= NIC_OBSERVE,
        }
        match self.reply_path {
            ReplyPath::Symmetric => {}
            ReplyPath::Off => flags |= NIC_REPLY_OFF,
        }
        match self.source_guard {
            SourceGuard::Pass => {}
            SourceGuard::Count => flags |= NIC_SOURCE_COUNT,
            SourceGuard::Drop => flags |= NIC_SOURCE_DROP,
        }
        let mut nic = Nic {
            ifindex: self.link.0,
            lower_ifindex: self.lower.map_or(0, |lower| lower.0),
            network: u32::from(self.network),
            ..Nic::default()
        };
        if let Some(gateway) = self.gateways.v4 {
            flags |= NIC_HAS_GATEWAY4;
            nic.gateway4 = words(gateway)[3];
        }
        if let Some(gateway) = self.gateways.v6 {
            flags |= NIC_HAS_GATEWAY6;
            nic.gateway6 = words(gateway);
        }
        nic.flags = flags;
        nic
    }

    fn from_abi(nic: &Nic) -> Self {
        let has = |flag| nic.flags & flag != 0;
        let v4 = has(NIC_HAS_GATEWAY4).then(|| Addr::from_v4_word(nic.gateway4).to_ip());
        let v6 = has(NIC_HAS_GATEWAY6).then(|| address(nic.gateway6));
        Self {
            link: Ifindex(nic.ifindex),
            lower: (nic.lower_ifindex != 0).then_some(Ifindex(nic.lower_ifindex)),
            network: nic.network as u16,
            state: if has(NIC_DOWN) { AdminState::Down } else { AdminState::Up },
            mode: if has(NIC_OBSERVE) { Mode::Observe } else { Mode::Enforce },
            reply_path: if has(NIC_REPLY_OFF) { ReplyPath::Off } else { ReplyPath::Symmetric },
            source_guard: if has(NIC_SOURCE_DROP) {
                SourceGuard::Drop
            } else if has(NIC_SOURCE_COUNT) {
                SourceGuard::Count
            } else {
                SourceGuard::Pass
            },
            gateways: PerFamily { v4, v6 },
        }
    }
}

/// The 16 network-order bytes of an address, IPv4 mapped into IPv6, as four native words.
fn words(ip: IpAddr) -> [u32; 4] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = Addr::from_ip(ip).to_bytes();
    [[a, b, c, d], [e, f, g, h], [i, j, k, l], [m, n, o, p]].map(u32::from_ne_bytes)
}

fn address(words: [u32; 4]) -> IpAddr {
    let [[a, b, c, d], [e, f, g, h], [i, j, k, l], [m, n, o, p]] = words.map(u32::to_ne_bytes);
    Addr::from_bytes([a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]).to_ip()
}

/// Prefix length and bytes of a key of OWNED_PREFIXES.
pub fn prefix_key(net: IpNet) -> (u32, [u8; 16]) {
    let bits = u32::from(net.prefix_len()) + if net.addr().is_ipv4() { 96 } else { 0 };
    (bits, Addr::from_ip(net.network()).to_bytes())
}

/// The prefix of a key of OWNED_PREFIXES; None if it is no key of ours.
pub fn prefix_of_key(bits: u32, bytes: [u8; 16]) -> Option<IpNet> {
    let bits = u8::try_from(bits).ok()?;
    match Addr::from_bytes(bytes).to_ip() {
        IpAddr::V4(v4) if bits >= 96 => ipnet::Ipv4Net::new(v4, bits - 96).ok().map(IpNet::V4),
        IpAddr::V4(_) | IpAddr::V6(_) => Ipv6Net::new(Ipv6Addr::from(bytes), bits).ok().map(IpNet::V6),
    }
}

/// Prefix length and key of NEXT_HOPS.
pub fn hop_key(slot: Slot, net: IpNet) -> (u32, NextHopKey) {
    let (bits, addr) = prefix_key(net);
    (bits + 32, NextHopKey { slot_be: slot.to_be(), addr })
}

/// Slot and prefix of a key of NEXT_HOPS; None if it is no key of ours.
pub fn hop_of_key(bits: u32, key: NextHopKey) -> Option<(Slot, IpNet)> {
    let net = prefix_of_key(bits.checked_sub(32)?, key.addr)?;
    Some((Slot::from_be(key.slot_be), net))
}

impl Hop {
    /// Value of NEXT_HOPS.
    pub fn to_abi(self) -> NextHopValue {
        match self {
            Self::OnLink => NextHopValue { kind: HOP_ON_LINK, ..NextHopValue::default() },
            Self::Gateway(ip) => NextHopValue { kind: HOP_GATEWAY, _pad: 0, gateway: words(ip) },
        }
    }

    /// From a value of NEXT_HOPS.
    pub fn from_abi(value: NextHopValue) -> Self {
        if value.kind == HOP_ON_LINK { Self::OnLink } else { Self::Gateway(address(value.gateway)) }
    }
}

/// The next hop of an answer of the programs, which for IPv4 stands in the first word.
pub fn traced_hop(hop: [u32; 4], family_of: IpAddr) -> IpAddr {
    match family_of {
        IpAddr::V4(_) => Addr::from_v4_word(hop[0]).to_ip(),
        IpAddr::V6(_) => address(hop),
    }
}

#[cfg(test)]
mod tests;
