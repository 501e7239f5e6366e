//! The maps of the programs. Names and capacities come from [`ebpf::abi`] alone.

use aya_ebpf::{
    btf_maps::{Array, ArrayOfMaps, LpmTrie, PerCpuArray, RingBuf},
    macros::btf_map,
};
use ebpf::abi::{
    EVENT_BYTES, Event, HookCounters, MAX_NICS, Meta, NEXT_HOPS as NEXT_HOPS_LEN, NextHopKey, NextHopValue,
    OWNED_PREFIXES as OWNED_PREFIXES_LEN, PrefixOwner, Redirects, Switches, Tables,
};

/// One place: the tables in force. Replacing the inner map replaces all of them at once.
#[btf_map]
pub(crate) static TABLES: ArrayOfMaps<Array<Tables, 1>, 1> = ArrayOfMaps::new();

#[btf_map]
pub(crate) static OWNED_PREFIXES: LpmTrie<[u8; 16], PrefixOwner, OWNED_PREFIXES_LEN> = LpmTrie::new();

#[btf_map]
pub(crate) static NEXT_HOPS: LpmTrie<NextHopKey, NextHopValue, NEXT_HOPS_LEN> = LpmTrie::new();

/// Index: slot * 2 + direction.
#[btf_map]
pub(crate) static COUNTERS: PerCpuArray<HookCounters, { MAX_NICS * 2 }> = PerCpuArray::new();

/// Index: slot of the NIC that the packet was moved from.
#[btf_map]
pub(crate) static REDIRECTS: PerCpuArray<Redirects, MAX_NICS> = PerCpuArray::new();

/// Read by user space only.
#[btf_map]
pub(crate) static META: Array<Meta, 1> = Array::new();

#[btf_map]
pub(crate) static SWITCHES: Array<Switches, 1> = Array::new();

#[btf_map]
pub(crate) static EVENTS: RingBuf<Event, EVENT_BYTES> = RingBuf::new();
