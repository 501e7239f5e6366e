//! What the programs and user space share: map values, keys, capacities.
//!
//! Every struct is `repr(C)` with its padding named, has no `bool`, `Option`, `usize` or reference, and its size and
//! alignment are asserted below, so both sides read the same bytes or do not compile. A change of any layout, name or
//! meaning needs a new [`ABI_VERSION`].
#![allow(unsafe_code, reason = "aya::Pod is an unsafe marker trait, and Tables is too large to pass by a stack")]

use crate::verdict::COUNTERS_PER_HOOK;

/// Number of this layout. User space publishes tables only to programs that carry the same number.
pub const ABI_VERSION: u32 = 1;

/// NICs that can be managed at once.
pub const MAX_NICS: usize = 32;
/// Places of the open-addressed table from interface index to NIC.
pub const NIC_INDEX_PLACES: usize = 128;
/// Places that a look-up in it visits at most.
pub const NIC_INDEX_PROBES: usize = 4;
/// Buckets of the owner table; each holds [`OWNER_WAYS`] addresses.
pub const OWNER_BUCKETS: usize = 16384;
/// Addresses per bucket: two of 32 bytes fill one cache line.
pub const OWNER_WAYS: usize = 2;
/// Owned addresses that fit for certain (half of all places; more may fit, placement then says when it does not).
pub const OWNED_ADDRESSES: usize = OWNER_BUCKETS * OWNER_WAYS / 2;
/// Prefixes that can be owned.
pub const OWNED_PREFIXES: usize = 16384;
/// Next hops that differ from their NIC's gateway: on-link subnets and routes with a gateway of their own.
pub const NEXT_HOPS: usize = 65536;
/// Bytes of the event ring buffer.
pub const EVENT_BYTES: usize = 256 * 1024;

/// An IPv6 address, or an IPv4 address mapped into IPv6 (RFC 4291 section 2.5.5.2): 16 bytes in network order, held
/// as two native words so that a comparison is two instructions.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Addr {
    /// bytes 0..8
    pub hi: u64,
    /// bytes 8..16
    pub lo: u64,
}

impl Addr {
    /// From the four bytes of an IPv4 address as they stand in a header, read as one native word.
    #[inline(always)]
    pub const fn from_v4_word(word: u32) -> Self {
        let [a, b, c, d] = word.to_ne_bytes();
        Self { hi: 0, lo: u64::from_ne_bytes([0, 0, 0xff, 0xff, a, b, c, d]) }
    }

    /// The IPv4 address of a mapped one as it stands in a header, read as one native word.
    #[inline(always)]
    pub const fn v4_word(self) -> u32 {
        let [_, _, _, _, a, b, c, d] = self.lo.to_ne_bytes();
        u32::from_ne_bytes([a, b, c, d])
    }

    /// From 16 bytes in network order.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
        Self { hi: u64::from_ne_bytes([a, b, c, d, e, f, g, h]), lo: u64::from_ne_bytes([i, j, k, l, m, n, o, p]) }
    }

    /// 16 bytes in network order.
    pub const fn to_bytes(self) -> [u8; 16] {
        let [a, b, c, d, e, f, g, h] = self.hi.to_ne_bytes();
        let [i, j, k, l, m, n, o, p] = self.lo.to_ne_bytes();
        [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
    }

    /// From an address of the standard library.
    pub const fn from_ip(ip: core::net::IpAddr) -> Self {
        match ip {
            core::net::IpAddr::V4(v4) => Self::from_v4_word(u32::from_ne_bytes(v4.octets())),
            core::net::IpAddr::V6(v6) => Self::from_bytes(v6.octets()),
        }
    }

    /// To an address of the standard library, a mapped one as IPv4.
    pub const fn to_ip(self) -> core::net::IpAddr {
        core::net::Ipv6Addr::from_octets(self.to_bytes()).to_canonical()
    }
}

/// Where an interface index is found in [`Tables::nics`]; `ifindex` 0 is an empty place.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NicIndex {
    pub ifindex: u32,
    /// index into [`Tables::nics`]
    pub slot: u32,
}

/// The NIC is administratively down: what it owns is dropped, as nothing else could send it.
pub const NIC_DOWN: u32 = 1 << 0;
/// Decide and count, change nothing (NicClass `mode: Observe`).
pub const NIC_OBSERVE: u32 = 1 << 1;
/// Addresses of this NIC do not pull replies to it (NicClass `replyPath: Off`).
pub const NIC_REPLY_OFF: u32 = 1 << 2;
/// `gateway4` holds an address.
pub const NIC_HAS_GATEWAY4: u32 = 1 << 3;
/// `gateway6` holds an address.
pub const NIC_HAS_GATEWAY6: u32 = 1 << 4;
/// Packets whose source nobody owns are counted (NicClass `sourceGuard: Count`).
pub const NIC_SOURCE_COUNT: u32 = 1 << 5;
/// Packets whose source nobody owns are dropped (NicClass `sourceGuard: Drop`).
pub const NIC_SOURCE_DROP: u32 = 1 << 6;

/// A managed NIC. Gateways are network-order bytes held in native words.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Nic {
    /// 0: the slot is free
    pub ifindex: u32,
    /// The device below a VLAN, macvlan or the like; 0 if none. Its hook sees this NIC's packets a second time.
    pub lower_ifindex: u32,
    /// `NIC_*`
    pub flags: u32,
    /// Isolation domain, from 1.
    pub network: u32,
    pub gateway4: u32,
    pub _pad: [u32; 3],
    pub gateway6: [u32; 4],
    pub _reserved: [u32; 4],
}

/// In the first way of a bucket: an address whose first bucket this is stands in its second one.
pub const OWNER_SPILLED: u32 = 1 << 0;

/// An owned address. The unspecified address marks an empty place: nobody can own it.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Owner {
    pub addr: Addr,
    /// index into [`Tables::nics`]
    pub slot: u16,
    pub _pad: u16,
    /// `OWNER_*`
    pub flags: u32,
    pub _reserved: [u32; 2],
}

/// One cache line of the owner table.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnerBucket {
    pub ways: [Owner; OWNER_WAYS],
}

/// [`Tables::flags`]: the map OWNED_PREFIXES holds something, ask it when no exact address matched.
pub const TABLES_HAS_PREFIXES: u32 = 1 << 0;

/// Everything that decides, as one value: replaced as a whole (one update of the outer map TABLES), so a packet sees
/// either the old or the new configuration, and a writer that dies in the middle leaves the old one.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Tables {
    /// Counts publications.
    pub generation: u64,
    /// `TABLES_*`
    pub flags: u32,
    /// Seed of the owner table's hash.
    pub seed: u32,
    /// Factor of the index's hash, chosen so that every NIC is within reach.
    pub index_factor: u32,
    pub _pad: u32,
    pub index: [NicIndex; NIC_INDEX_PLACES],
    pub nics: [Nic; MAX_NICS],
    pub owners: [OwnerBucket; OWNER_BUCKETS],
}

#[cfg(any(test, feature = "user"))]
impl Tables {
    /// Empty tables on the heap: at 1 MiB they are too large for a stack.
    pub fn boxed() -> alloc::boxed::Box<Self> {
        // SAFETY: all fields are integers, so zero bytes are a value of the type.
        unsafe { alloc::boxed::Box::<Self>::new_zeroed().assume_init() }
    }
}

/// Value of OWNED_PREFIXES, whose key is the 16 bytes of an [`Addr`] (an IPv4 prefix is 96 bits longer).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrefixOwner {
    /// index into [`Tables::nics`]
    pub slot: u32,
}

/// Key of NEXT_HOPS after the prefix length, which counts 32 bits for the slot first.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct NextHopKey {
    /// index into [`Tables::nics`], big-endian so that its bits are matched in order
    pub slot_be: u32,
    /// destination, 16 bytes in network order
    pub addr: [u8; 16],
}

/// The next hop is the destination itself.
pub const HOP_ON_LINK: u32 = 0;
/// The next hop is the gateway stored.
pub const HOP_GATEWAY: u32 = 1;

/// Value of NEXT_HOPS: where packets of a NIC to a prefix go, if not to the NIC's gateway.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NextHopValue {
    /// `HOP_*`
    pub kind: u32,
    pub _pad: u32,
    /// network-order bytes; IPv4 mapped into IPv6
    pub gateway: [u32; 4],
}

/// Direction of a hook: row of [`HookCounters`] and of the metrics' `direction` label.
pub const INGRESS: u32 = 0;
/// See [`INGRESS`].
pub const EGRESS: u32 = 1;

/// Per-CPU counters of one hook of one NIC, at index `slot * 2 + direction` of COUNTERS; meaning of each place: see
/// [`crate::verdict::Counter`].
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HookCounters {
    pub counts: [u64; COUNTERS_PER_HOOK],
}

impl Default for HookCounters {
    fn default() -> Self {
        Self { counts: [0; COUNTERS_PER_HOOK] }
    }
}

/// Per-CPU counts of packets moved from the NIC whose slot is the map's index to each other slot.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Redirects {
    pub to: [u64; MAX_NICS],
}

/// What the programs are, at index 0 of META; written by user space after it has replaced all programs.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meta {
    pub abi_version: u32,
    pub _pad: u32,
    /// Identifies the object file the programs come from.
    pub build: u64,
}

/// [`Switches::flags`]: pass everything, decide nothing (`nicpath off`).
pub const SWITCH_OFF: u32 = 1 << 0;

/// Index 0 of SWITCHES; kept apart from [`Tables`] so that publishing cannot undo an operator's `off`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Switches {
    /// `SWITCH_*`
    pub flags: u32,
}

/// A record of the ring buffer EVENTS.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Event {
    /// CLOCK_MONOTONIC, ns
    pub time_ns: u64,
    pub src: Addr,
    pub dst: Addr,
    /// The hook's NIC.
    pub ifindex: u32,
    /// The NIC the packet was moved to; 0 if it was not.
    pub to_ifindex: u32,
    /// [`INGRESS`] or [`EGRESS`]
    pub direction: u32,
    /// Index of the verdict's [`crate::verdict::Counter`].
    pub verdict: u32,
    /// Index of the reason's [`crate::verdict::Counter`]; equal to `verdict` where there is no reason.
    pub reason: u32,
    /// IP protocol number
    pub protocol: u32,
}

/// Words that ask a program, in `skb->cb[0]` and `[1]` of a test run, to answer in `cb` and count nothing.
///
/// Real packets never carry them on purpose; one that did by chance (1 in 2^64) would merely go uncounted.
pub const TRACE_REQUEST: [u32; 2] = [0x6e69_6370, 0x6174_683f];

/// The answer to [`TRACE_REQUEST`], in `skb->cb[0..5]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceAnswer {
    /// Index of the verdict's [`crate::verdict::Counter`].
    pub verdict: u8,
    /// Rule of design section 5 that decided: 0, 2 or 3.
    pub rule: u8,
    /// Index of the reason's counter, 255 if none.
    pub reason: u8,
    /// NIC slot the packet leaves by (or would), 255 if the hook's own.
    pub slot: u8,
    /// Next hop if it was moved, else unspecified.
    pub hop: [u32; 4],
}

impl TraceAnswer {
    /// As the five words of `skb->cb`.
    #[inline(always)]
    pub const fn to_cb(self) -> [u32; 5] {
        let [a, b, c, d] = self.hop;
        [u32::from_le_bytes([self.verdict, self.rule, self.reason, self.slot]), a, b, c, d]
    }

    /// From the five words of `skb->cb`; None while they still hold the request.
    pub const fn from_cb(cb: [u32; 5]) -> Option<Self> {
        let [head, a, b, c, d] = cb;
        if head == TRACE_REQUEST[0] {
            return None;
        }
        let [verdict, rule, reason, slot] = head.to_le_bytes();
        Some(Self { verdict, rule, reason, slot, hop: [a, b, c, d] })
    }
}

/// `skb->tc_index` as written at ingress for every packet: the arrival network in the low bits …
pub const MARK_NETWORK: u16 = 0x0fff;
/// … and whether the wire destination was the node's own (an owned address).
pub const MARK_TO_NODE: u16 = 0x8000;

/// Names of the maps, which are also their file names below `--bpffs`.
pub mod map {
    pub const TABLES: &str = "TABLES";
    pub const OWNED_PREFIXES: &str = "OWNED_PREFIXES";
    pub const NEXT_HOPS: &str = "NEXT_HOPS";
    pub const COUNTERS: &str = "COUNTERS";
    pub const REDIRECTS: &str = "REDIRECTS";
    pub const META: &str = "META";
    pub const SWITCHES: &str = "SWITCHES";
    pub const EVENTS: &str = "EVENTS";
    /// All of them.
    pub const ALL: [&str; 8] = [TABLES, OWNED_PREFIXES, NEXT_HOPS, COUNTERS, REDIRECTS, META, SWITCHES, EVENTS];
}

/// Names of the programs, which are also their file names below `--bpffs`.
pub mod program {
    pub const INGRESS: &str = "ingress";
    pub const EGRESS: &str = "egress";
}

const _: () = {
    assert!(size_of::<Addr>() == 16 && align_of::<Addr>() == 8);
    assert!(size_of::<NicIndex>() == 8);
    assert!(size_of::<Nic>() == 64);
    assert!(size_of::<Owner>() == 32);
    assert!(size_of::<OwnerBucket>() == 64);
    assert!(size_of::<Tables>() == 24 + 8 * NIC_INDEX_PLACES + 64 * MAX_NICS + 64 * OWNER_BUCKETS);
    assert!(size_of::<PrefixOwner>() == 4);
    assert!(size_of::<NextHopKey>() == 20);
    assert!(size_of::<NextHopValue>() == 24);
    assert!(size_of::<HookCounters>() == 8 * COUNTERS_PER_HOOK);
    assert!(size_of::<Redirects>() == 8 * MAX_NICS);
    assert!(size_of::<Meta>() == 16);
    assert!(size_of::<Switches>() == 4);
    assert!(size_of::<Event>() == 64);
    assert!(NIC_INDEX_PLACES.is_power_of_two() && OWNER_BUCKETS.is_power_of_two());
    assert!(MAX_NICS * 2 <= NIC_INDEX_PLACES && MAX_NICS <= MARK_NETWORK as usize && MAX_NICS < u8::MAX as usize);
};

#[cfg(feature = "user")]
mod pod {
    //! SAFETY of every line: the type is `repr(C)`, `Copy`, `'static`, without padding (sizes asserted above), and
    //! every bit pattern is a value of it.
    use super::*;

    macro_rules! pod {
        ($($type:ty),+ $(,)?) => { $(
            // SAFETY: see the module's comment.
            unsafe impl aya::Pod for $type {}
        )+ };
    }
    pod!(
        Addr,
        NicIndex,
        Nic,
        Owner,
        OwnerBucket,
        Tables,
        PrefixOwner,
        NextHopKey,
        NextHopValue,
        HookCounters,
        Redirects,
        Meta,
        Switches,
        Event,
    );
}

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn a_layout_that_differs_has_another_number() {
        let sizes = [size_of::<Tables>(), size_of::<HookCounters>(), size_of::<Redirects>(), size_of::<Event>()];
        assert_eq!((ABI_VERSION, sizes), (1, [1_051_672, 128, 256, 64]), "a new layout needs a new ABI_VERSION");
    }

    #[test]
    fn an_address_survives_the_way_to_the_map_and_back() {
        for ip in [
            IpAddr::V4(Ipv4Addr::new(10, 20, 0, 10)),
            IpAddr::V4(Ipv4Addr::BROADCAST),
            IpAddr::V6(Ipv6Addr::new(0xfd00, 0x20, 0, 0, 0, 0, 0, 0x10)),
            IpAddr::V6(Ipv6Addr::LOCALHOST),
        ] {
            assert_eq!(Addr::from_ip(ip).to_ip(), ip);
        }
    }

    #[test]
    fn a_mapped_ipv4_address_has_the_bytes_of_rfc_4291() {
        let addr = Addr::from_ip(IpAddr::V4(Ipv4Addr::new(1, 2, 3, 4)));
        assert_eq!(addr.to_bytes(), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 1, 2, 3, 4]);
    }

    #[test]
    fn a_trace_answer_survives_the_control_block_and_a_request_is_no_answer() {
        let answer = TraceAnswer { verdict: 3, rule: 2, reason: 255, slot: 1, hop: [1, 2, 3, 4] };
        assert_eq!(TraceAnswer::from_cb(answer.to_cb()), Some(answer));
        let [a, b] = TRACE_REQUEST;
        assert_eq!(TraceAnswer::from_cb([a, b, 0, 0, 0]), None);
    }
}
