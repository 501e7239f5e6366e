//! The decision: section 5 of the design as a pure function over looked-up entries.

use crate::{
    abi::{
        Addr, HOP_ON_LINK, NIC_DOWN, NIC_HAS_GATEWAY4, NIC_HAS_GATEWAY6, NIC_OBSERVE, NIC_REPLY_OFF, NIC_SOURCE_COUNT,
        NIC_SOURCE_DROP, NextHopValue, Nic, TABLES_HAS_PREFIXES, Tables,
    },
    packet::{Bytes, Family, Packet, is_exempt},
    verdict::{DropReason, Note, Verdict},
};

/// Look-ups beside [`Tables`] that cost a helper call and are asked only when needed.
pub trait Lookup {
    /// Slot of the NIC that owns the longest matching prefix.
    fn prefix_owner(&self, addr: Addr) -> Option<u32>;
    /// Where packets of a NIC to this destination go, if not to its gateway.
    fn next_hop(&self, slot: u32, dst: Addr) -> Option<NextHopValue>;
}

/// Where a moved packet goes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextHop {
    pub family: Family,
    /// Network-order bytes; an IPv4 address stands in the first word.
    pub address: [u32; 4],
}

/// A packet that leaves by another NIC than the kernel chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    pub slot: u32,
    pub ifindex: u32,
    pub hop: NextHop,
}

/// What to do with a packet at a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Fate {
    /// Leave it; counted as this verdict.
    Pass(Verdict),
    Move(Move),
    Drop(DropReason),
    /// `mode: Observe`: what would have been done.
    Observed(Observed),
}

/// An action that Observe mode kept back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observed {
    Move(Move),
    Drop(DropReason),
}

/// Rule of design section 5 that decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Rule {
    Exempt = 0,
    Owner = 2,
    Kernel = 3,
}

/// A fate with its reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Decision {
    pub fate: Fate,
    pub rule: Rule,
    pub note: Option<Note>,
}

impl Decision {
    /// A packet that no rule looks at.
    #[inline(always)]
    pub const fn untouched(note: Option<Note>) -> Self {
        Self { fate: Fate::Pass(Verdict::Untouched), rule: Rule::Exempt, note }
    }
}

/// Decides about a packet that leaves by the NIC in slot `here`.
///
/// Rule 0 is asked only of packets that would not stay as they are: a packet that its owner NIC sends is left alone
/// whether the rule exempts it or not, and that is what nearly all packets are.
#[inline(always)]
pub fn egress(
    frame: &(impl Bytes + ?Sized),
    tables: &Tables,
    lookup: &impl Lookup,
    here: u32,
    nic: &Nic,
    packet: &Packet,
) -> Decision {
    // A number instead of an Option: of the latter's None the compiler may copy the undefined payload, which the
    // verifier refuses to read.
    const NOBODY: u32 = u32::MAX;
    let owner = match tables.owner(packet.src) {
        Some(owner) => u32::from(owner.slot),
        None if tables.flags & TABLES_HAS_PREFIXES != 0 => lookup.prefix_owner(packet.src).unwrap_or(NOBODY),
        None => NOBODY,
    };
    if owner == here {
        return Decision { fate: Fate::Pass(Verdict::Owned), rule: Rule::Owner, note: None };
    }
    if is_exempt(frame, packet) {
        return Decision::untouched(None);
    }
    match owner {
        NOBODY => not_owned(nic),
        slot => to_owner(tables, lookup, slot, nic, packet),
    }
}

/// Rule 2 for a packet that the kernel sends by a NIC that does not own its source.
#[inline(always)]
fn to_owner(tables: &Tables, lookup: &impl Lookup, slot: u32, here: &Nic, packet: &Packet) -> Decision {
    let kernel = |note| Decision { fate: Fate::Pass(Verdict::Kernel), rule: Rule::Kernel, note };
    let Some(owner) = tables.nic(slot) else {
        return kernel(None);
    };
    // A VLAN or macvlan hands its packets down to this NIC: they have left by their owner already.
    if owner.lower_ifindex == here.ifindex || owner.flags & NIC_REPLY_OFF != 0 {
        return kernel(None);
    }
    let observe = (owner.flags | here.flags) & NIC_OBSERVE != 0;
    let decision = |fate| Decision { fate, rule: Rule::Owner, note: None };
    if owner.flags & NIC_DOWN != 0 {
        let reason = DropReason::NicDown;
        return decision(if observe { Fate::Observed(Observed::Drop(reason)) } else { Fate::Drop(reason) });
    }
    match next_hop(lookup, slot, owner, packet) {
        Some(hop) => {
            let to = Move { slot, ifindex: owner.ifindex, hop };
            decision(if observe { Fate::Observed(Observed::Move(to)) } else { Fate::Move(to) })
        }
        None => kernel(Some(Note::NoNextHop)),
    }
}

/// The destination itself if it is on-link on the owner NIC, else that NIC's own route, else its gateway.
#[inline(always)]
fn next_hop(lookup: &impl Lookup, slot: u32, owner: &Nic, packet: &Packet) -> Option<NextHop> {
    let family = packet.family;
    let hop = |address| Some(NextHop { family, address });
    match lookup.next_hop(slot, packet.dst) {
        Some(NextHopValue { kind: HOP_ON_LINK, .. }) => hop(hop_address(family, packet.dst)),
        Some(NextHopValue { gateway, .. }) => match family {
            Family::V4 => hop([gateway[3], 0, 0, 0]),
            Family::V6 => hop(gateway),
        },
        None => match family {
            Family::V4 if owner.flags & NIC_HAS_GATEWAY4 != 0 => hop([owner.gateway4, 0, 0, 0]),
            Family::V6 if owner.flags & NIC_HAS_GATEWAY6 != 0 => hop(owner.gateway6),
            _ => None,
        },
    }
}

/// An address as the words of [`NextHop::address`].
#[inline(always)]
fn hop_address(family: Family, addr: Addr) -> [u32; 4] {
    let word = |half: u64, second: bool| {
        let [a, b, c, d, e, f, g, h] = half.to_ne_bytes();
        u32::from_ne_bytes(if second { [e, f, g, h] } else { [a, b, c, d] })
    };
    match family {
        Family::V4 => [word(addr.lo, true), 0, 0, 0],
        Family::V6 => [word(addr.hi, false), word(addr.hi, true), word(addr.lo, false), word(addr.lo, true)],
    }
}

/// Rule 3: nobody owns the source.
#[inline(always)]
fn not_owned(nic: &Nic) -> Decision {
    let pass = |note| Decision { fate: Fate::Pass(Verdict::Kernel), rule: Rule::Kernel, note };
    if nic.flags & NIC_SOURCE_DROP != 0 {
        let reason = DropReason::SourceGuard;
        let fate =
            if nic.flags & NIC_OBSERVE != 0 { Fate::Observed(Observed::Drop(reason)) } else { Fate::Drop(reason) };
        return Decision { fate, rule: Rule::Kernel, note: None };
    }
    pass(if nic.flags & NIC_SOURCE_COUNT != 0 { Some(Note::SourceNotOwned) } else { None })
}

/// Whether a packet's wire destination is the node's own: an owned address or one of an owned prefix.
#[inline(always)]
pub fn is_to_node(tables: &Tables, lookup: &impl Lookup, packet: &Packet) -> bool {
    tables.owner(packet.dst).is_some()
        || (tables.flags & TABLES_HAS_PREFIXES != 0 && lookup.prefix_owner(packet.dst).is_some())
}

#[cfg(test)]
mod tests;
