//! What the programs read of a packet's kernel context and do to it: the only unsafe code of the packet path.
#![allow(unsafe_code, reason = "direct packet access, map values and kernel helpers; checked by the verifier")]

use aya_ebpf::{
    bindings::{__sk_buff, bpf_redir_neigh, bpf_redir_neigh__bindgen_ty_1, bpf_tunnel_key},
    btf_maps::lpm_trie::Key,
    helpers::generated::{bpf_ktime_get_ns, bpf_redirect_neigh, bpf_skb_pull_data, bpf_skb_set_tunnel_key},
    programs::TcContext,
};
use ebpf::{
    abi::{Addr, EGRESS, Event, MAX_NICS, NextHopKey, NextHopValue, SWITCH_OFF, TRACE_REQUEST, Tables, TraceAnswer},
    packet::{Bytes, Family, Packet, READ_LEN, Wire},
    steer::{Decision, Fate, Lookup, Move, Observed, Rule},
    verdict::{COUNTERS_PER_HOOK, Counter, Note, TC_DROP, TC_NEXT, Verdict},
};

use crate::maps::{COUNTERS, EVENTS, NEXT_HOPS, OWNED_PREFIXES, REDIRECTS, SWITCHES, TABLES};

const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;

/// The packet between `data` and `data_end`.
pub(crate) struct Linear {
    data: usize,
    end: usize,
}

impl Bytes for Linear {
    #[inline(always)]
    fn load<T: Wire>(&self, offset: usize) -> Option<T> {
        if self.data + offset + size_of::<T>() > self.end {
            return None;
        }
        // SAFETY: the bytes lie between data and data_end, as the verifier requires of the comparison above, and any
        // bytes are a value of a Wire type. BPF has no alignment requirement where the kernel reports efficient
        // unaligned access; elsewhere the verifier refuses the program.
        Some(unsafe { *((self.data + offset) as *const T) })
    }
}

/// What becomes of a packet, for counters, events and explanations.
struct Told {
    rule: Rule,
    verdict: Verdict,
    reason: Option<Counter>,
    moved: Option<Move>,
}

/// A packet at a hook.
pub(crate) struct Skb<'a> {
    pub(crate) context: &'a TcContext,
}

impl Skb<'_> {
    #[inline(always)]
    fn raw(&self) -> *mut __sk_buff {
        self.context.skb.skb
    }

    #[inline(always)]
    pub(crate) fn ifindex(&self) -> u32 {
        // SAFETY: the kernel passes a valid context; the verifier turns the read into one of the real field.
        unsafe { (*self.raw()).ifindex }
    }

    /// A VLAN tag travels beside the packet (hardware offload, or a VLAN device above).
    #[inline(always)]
    pub(crate) fn has_vlan_metadata(&self) -> bool {
        // SAFETY: as in `ifindex`.
        unsafe { (*self.raw()).vlan_present != 0 }
    }

    /// The frame as far as [`ebpf::packet::parse`] reads it, pulled into the linear part if it is not there.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> Linear {
        let linear = Linear { data: self.context.data(), end: self.context.data_end() };
        if linear.data + READ_LEN <= linear.end {
            return linear;
        }
        // a short packet that is whole has no more to give
        let len = self.context.len().min(READ_LEN as u32);
        if linear.data + len as usize <= linear.end {
            return linear;
        }
        // SAFETY: a helper call on the hook's own context. A failure leaves the packet as it is.
        unsafe { bpf_skb_pull_data(self.raw(), len) };
        Linear { data: self.context.data(), end: self.context.data_end() }
    }

    #[inline(always)]
    pub(crate) fn set_tc_index(&self, value: u16) {
        // SAFETY: tc_index is writable for programs of this type.
        unsafe { (*self.raw()).tc_index = u32::from(value) };
    }

    /// Whether a test run asks for an explanation instead of a count.
    #[inline(always)]
    fn is_traced(&self) -> bool {
        // SAFETY: as in `ifindex`; cb is readable.
        let cb = unsafe { &(*self.raw()).cb };
        cb[0] == TRACE_REQUEST[0] && cb[1] == TRACE_REQUEST[1]
    }

    /// Counts a decision and carries it out: the one place that turns a fate into a TC code. Each fate has a way of its
    /// own to the end, so that a packet that passes carries nothing of the others along.
    #[inline(always)]
    pub(crate) fn settle(&self, direction: u32, slot: u32, packet: Option<&Packet>, decision: &Decision) -> i32 {
        let rule = decision.rule;
        match decision.fate {
            Fate::Pass(verdict) => self.pass(direction, slot, rule, verdict, decision.note),
            // `nicpath off` passes everything, which is what a fate that passes does anyway
            Fate::Move(_) | Fate::Drop(_) if is_off() => {
                self.pass(direction, slot, Rule::Exempt, Verdict::Untouched, None)
            }
            Fate::Move(to) => {
                self.tell(
                    direction,
                    slot,
                    packet,
                    &Told { rule, verdict: Verdict::Redirect, reason: None, moved: Some(to) },
                );
                self.redirect(to)
            }
            Fate::Drop(reason) => {
                let reason = Some(Counter::Drop(reason));
                self.tell(direction, slot, packet, &Told { rule, verdict: Verdict::Drop, reason, moved: None });
                TC_DROP
            }
            Fate::Observed(Observed::Move(to)) => {
                let verdict = Verdict::WouldRedirect;
                self.tell(direction, slot, packet, &Told { rule, verdict, reason: None, moved: Some(to) });
                TC_NEXT
            }
            Fate::Observed(Observed::Drop(reason)) => {
                let (verdict, reason) = (Verdict::WouldDrop, Some(Counter::Drop(reason)));
                self.tell(direction, slot, packet, &Told { rule, verdict, reason, moved: None });
                TC_NEXT
            }
        }
    }

    #[inline(always)]
    fn pass(&self, direction: u32, slot: u32, rule: Rule, verdict: Verdict, note: Option<Note>) -> i32 {
        let note = note.map(Counter::Note);
        if self.is_traced() {
            self.explain(&Told { rule, verdict, reason: note, moved: None });
        } else {
            count(direction, slot, verdict, note);
        }
        TC_NEXT
    }

    /// Counts and reports what happens to a packet that does not just pass, or explains it to a test run.
    #[inline(always)]
    fn tell(&self, direction: u32, slot: u32, packet: Option<&Packet>, told: &Told) {
        if self.is_traced() {
            return self.explain(told);
        }
        let counted = if matches!(told.verdict, Verdict::WouldDrop) { None } else { told.reason };
        let seen = count(direction, slot, told.verdict, counted);
        if let (Verdict::Redirect, Some(to), Some(row)) = (told.verdict, told.moved, REDIRECTS.get_ptr_mut(slot)) {
            // SAFETY: a per-CPU map value; nothing else on this CPU writes it while the program runs.
            unsafe { (&mut (*row).to)[to.slot as usize & (MAX_NICS - 1)] += 1 };
        }
        if let Some(packet) = packet {
            self.report(direction, packet, told.verdict, told.reason, told.moved, seen);
        }
    }

    /// Answers a test run in words: `slot` 255 is the hook's own NIC.
    #[inline(always)]
    fn explain(&self, told: &Told) {
        let answer = TraceAnswer {
            verdict: Counter::Verdict(told.verdict).index() as u8,
            rule: told.rule as u8,
            reason: told.reason.map_or(u8::MAX, |reason| reason.index() as u8),
            slot: told.moved.map_or(u8::MAX, |to| to.slot as u8),
            hop: told.moved.map_or([0; 4], |to| to.hop.address),
        };
        for (place, word) in answer.to_cb().into_iter().enumerate() {
            // SAFETY: cb is writable for programs of this type, one word at a time (a copy as a whole would be byte-wise
            // and is refused), hence volatile.
            unsafe { (&raw mut (*self.raw()).cb[place]).write_volatile(word) };
        }
    }

    /// Sends an event for the first drops and a sample of the others and of the redirects.
    #[inline(always)]
    fn report(
        &self,
        direction: u32,
        packet: &Packet,
        verdict: Verdict,
        reason: Option<Counter>,
        moved: Option<Move>,
        seen: u64,
    ) {
        const FIRST_DROPS: u64 = 16;
        const EVERY_DROP: u64 = 256;
        const EVERY_MOVE: u64 = 1024;
        let wanted = match verdict {
            Verdict::Drop | Verdict::WouldDrop => seen < FIRST_DROPS || seen % EVERY_DROP == 0,
            Verdict::Redirect | Verdict::WouldRedirect => seen % EVERY_MOVE == 0,
            Verdict::Untouched | Verdict::Owned | Verdict::Kernel | Verdict::Received => false,
        };
        if !wanted {
            return;
        }
        let verdict = Counter::Verdict(verdict);
        if let Some(mut entry) = EVENTS.reserve(0) {
            entry.write(Event {
                // SAFETY: a helper without arguments.
                time_ns: unsafe { bpf_ktime_get_ns() },
                src: packet.src,
                dst: packet.dst,
                ifindex: self.ifindex(),
                to_ifindex: moved.map_or(0, |to| to.ifindex),
                direction,
                verdict: verdict.index(),
                reason: reason.unwrap_or(verdict).index(),
                protocol: u32::from(packet.protocol),
            });
            entry.submit(0);
        }
    }

    /// Sends the packet out of another NIC with that NIC's next hop.
    ///
    /// The kernel's own route is dropped first, by way of an empty tunnel key: an unresolved neighbour flushes its
    /// queue by the packet's route, which would give the first packet the wrong addresses.
    #[inline(always)]
    fn redirect(&self, to: Move) -> i32 {
        // SAFETY: zero bytes are a value of this plain C struct.
        let key: bpf_tunnel_key = unsafe { core::mem::zeroed() };
        // SAFETY: the helper reads `key` only. It fails for want of memory alone; the packet then keeps its route,
        // which matters for the very first packet to a silent neighbour and for no other.
        unsafe {
            bpf_skb_set_tunnel_key(self.raw(), (&raw const key).cast_mut(), size_of::<bpf_tunnel_key>() as u32, 0)
        };
        let mut hop = bpf_redir_neigh {
            nh_family: match to.hop.family {
                Family::V4 => AF_INET,
                Family::V6 => AF_INET6,
            },
            __bindgen_anon_1: bpf_redir_neigh__bindgen_ty_1 { ipv6_nh: to.hop.address },
        };
        // SAFETY: the helper reads `hop` only. It answers TC_ACT_REDIRECT; the rest happens after the hook.
        unsafe { bpf_redirect_neigh(to.ifindex, &raw mut hop, size_of::<bpf_redir_neigh>() as i32, 0) as i32 }
    }
}

/// Adds one to the verdict's counter and to the reason's, and answers what the verdict's was.
#[inline(always)]
fn count(direction: u32, slot: u32, verdict: Verdict, reason: Option<Counter>) -> u64 {
    let Some(row) = COUNTERS.get_ptr_mut(slot * 2 + (direction & EGRESS)) else {
        return 0;
    };
    // SAFETY: a per-CPU map value; nothing else on this CPU writes it while the program runs.
    let counts = unsafe { &mut (*row).counts };
    if let Some(reason) = reason {
        counts[reason.index() as usize & (COUNTERS_PER_HOOK - 1)] += 1;
    }
    let place = &mut counts[Counter::Verdict(verdict).index() as usize & (COUNTERS_PER_HOOK - 1)];
    let seen = *place;
    *place = seen + 1;
    seen
}

/// The tables in force; None before user space has published any.
#[inline(always)]
pub(crate) fn tables() -> Option<&'static Tables> {
    TABLES.get_value(0, &0)
}

/// Whether `nicpath off` is in force.
#[inline(always)]
fn is_off() -> bool {
    SWITCHES.get(0).is_some_and(|switches| switches.flags & SWITCH_OFF != 0)
}

/// The two tries.
pub(crate) struct Tries;

impl Lookup for Tries {
    #[inline(always)]
    fn prefix_owner(&self, addr: Addr) -> Option<u32> {
        OWNED_PREFIXES.get(&Key::new(128, addr.to_bytes())).map(|owner| owner.slot)
    }

    #[inline(always)]
    fn next_hop(&self, slot: u32, dst: Addr) -> Option<NextHopValue> {
        let key = NextHopKey { slot_be: slot.to_be(), addr: dst.to_bytes() };
        NEXT_HOPS.get(&Key::new(32 + 128, key)).copied()
    }
}
