//! How an address finds the NIC that owns it, and an interface index its NIC: look-up and placement in one place, so
//! that they cannot disagree.
//!
//! The owner table is a hash table of two-way buckets with two candidate buckets per address (cuckoo hashing, Pagh and
//! Rodler 2004). The programs read the first bucket, one cache line, and the second only if something has spilled out
//! of the first, so the common look-up costs the same at one address and at ten thousand.

use crate::abi::{
    Addr, MAX_NICS, NIC_INDEX_PLACES, NIC_INDEX_PROBES, Nic, NicIndex, OWNER_BUCKETS, OWNER_SPILLED, OWNER_WAYS, Owner,
    OwnerBucket, Tables,
};

const UNSPECIFIED: Addr = Addr { hi: 0, lo: 0 };

const _: () = assert!(OWNER_WAYS == 2, "`bucket` compares two ways");

/// Both candidate buckets of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Buckets {
    first: usize,
    mixed: u64,
}

impl Buckets {
    /// Multiply-shift hashing: the top bits of the product choose the first bucket, so every bit of the address counts.
    #[inline(always)]
    const fn of(addr: Addr, seed: u32) -> Self {
        const K: u64 = 0x9e37_79b9_7f4a_7c15;
        let folded = addr.lo ^ addr.hi.wrapping_mul(K);
        let folded = (folded ^ (folded >> 32) ^ seed as u64).wrapping_mul(K);
        let mixed = folded ^ (folded >> 29);
        Self { first: (mixed >> 7) as usize & (OWNER_BUCKETS - 1), mixed }
    }

    #[inline(always)]
    const fn second(self) -> usize {
        const K: u64 = 0xbf58_476d_1ce4_e5b9;
        (self.mixed.wrapping_mul(K) >> 40) as usize & (OWNER_BUCKETS - 1)
    }
}

impl OwnerBucket {
    #[inline(always)]
    fn find(&self, addr: Addr) -> Option<&Owner> {
        let [a, b] = &self.ways;
        if a.addr == addr {
            Some(a)
        } else if b.addr == addr {
            Some(b)
        } else {
            None
        }
    }
}

/// First place of an interface index: the top bits of the product, so that all bits of the index count.
#[inline(always)]
const fn place_of(ifindex: u32, factor: u32) -> usize {
    (ifindex.wrapping_mul(factor) >> (u32::BITS - NIC_INDEX_PLACES.trailing_zeros())) as usize
}

/// The owner table or the NIC table has no place left for an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

impl Tables {
    /// The owner of exactly this address; the unspecified one, which marks an empty place, has none.
    #[inline(always)]
    pub fn owner(&self, addr: Addr) -> Option<&Owner> {
        if addr.hi | addr.lo == 0 {
            return None;
        }
        let buckets = Buckets::of(addr, self.seed);
        let first = &self.owners[buckets.first];
        if let Some(owner) = first.find(addr) {
            return Some(owner);
        }
        if first.ways[0].flags & OWNER_SPILLED == 0 {
            return None;
        }
        self.owners[buckets.second()].find(addr)
    }

    /// The slot of the NIC with this interface index.
    #[inline(always)]
    pub fn slot_of(&self, ifindex: u32) -> Option<u32> {
        let first = place_of(ifindex, self.index_factor);
        let mut probe = 0;
        while probe < NIC_INDEX_PROBES {
            let place = &self.index[(first + probe) & (NIC_INDEX_PLACES - 1)];
            if place.ifindex == ifindex {
                return Some(place.slot);
            }
            probe += 1;
        }
        None
    }

    /// The NIC in a slot; None where none is.
    #[inline(always)]
    pub fn nic(&self, slot: u32) -> Option<&Nic> {
        self.nics.get(slot as usize).filter(|nic| nic.ifindex != 0)
    }

    /// Puts a NIC into a slot and makes it findable by its interface index.
    ///
    /// # Errors
    ///
    /// [`Full`] if the slot does not exist or is taken, or no factor brings all NICs within reach (not seen for any
    /// pattern of indexes: there are four places for each NIC).
    pub fn place_nic(&mut self, slot: u32, nic: Nic) -> Result<(), Full> {
        const FACTORS: u32 = 256;
        let entry = self.nics.get_mut(slot as usize).filter(|n| n.ifindex == 0).ok_or(Full)?;
        *entry = nic;
        (0..FACTORS)
            .any(|number| {
                // odd multiples of the golden ratio's fraction
                self.index_factor = 0x9e37_79b1_u32.wrapping_mul(2 * number + 1);
                self.index_nics().is_ok()
            })
            .then_some(())
            .ok_or(Full)
    }

    fn index_nics(&mut self) -> Result<(), Full> {
        self.index = [NicIndex::default(); NIC_INDEX_PLACES];
        for (slot, nic) in (0..).zip(&self.nics).filter(|(_, nic)| nic.ifindex != 0) {
            let first = place_of(nic.ifindex, self.index_factor);
            let free = (0..NIC_INDEX_PROBES)
                .map(|probe| (first + probe) & (NIC_INDEX_PLACES - 1))
                .find(|place| self.index[*place].ifindex == 0)
                .ok_or(Full)?;
            self.index[free] = NicIndex { ifindex: nic.ifindex, slot };
        }
        Ok(())
    }

    /// Places all owners, trying other seeds until they fit. What the table held before is gone.
    ///
    /// # Errors
    ///
    /// [`Full`] if there are more than fit; certain not to happen up to [`crate::abi::OWNED_ADDRESSES`].
    pub fn place_owners(&mut self, owners: &(impl Iterator<Item = (Addr, u16)> + Clone)) -> Result<(), Full> {
        const SEEDS: u32 = 16;
        if owners.clone().count() > OWNER_BUCKETS * OWNER_WAYS {
            return Err(Full);
        }
        for seed in 0..SEEDS {
            self.seed = seed;
            self.owners.fill(OwnerBucket::default());
            let placed =
                owners.clone().try_for_each(|(addr, slot)| self.place_owner(Owner { addr, slot, ..Owner::default() }));
            if placed.is_ok() {
                self.mark_spilled();
                return Ok(());
            }
        }
        Err(Full)
    }

    /// Inserts one owner; each round puts the one in hand into the other bucket of the one it displaces.
    fn place_owner(&mut self, owner: Owner) -> Result<(), Full> {
        const ROUNDS: usize = 500;
        let mut hand = owner;
        let mut target = Buckets::of(hand.addr, self.seed).first;
        for round in 0..ROUNDS {
            let ways = &mut self.owners[target].ways;
            if let Some(way) = ways.iter_mut().find(|way| way.addr == UNSPECIFIED || way.addr == hand.addr) {
                *way = hand;
                return Ok(());
            }
            let other = Buckets::of(hand.addr, self.seed);
            if target == other.first && round == 0 {
                target = other.second();
                continue;
            }
            core::mem::swap(&mut hand, &mut ways[round % OWNER_WAYS]);
            let evicted = Buckets::of(hand.addr, self.seed);
            target = if target == evicted.first { evicted.second() } else { evicted.first };
        }
        Err(Full)
    }

    fn mark_spilled(&mut self) {
        for bucket in 0..OWNER_BUCKETS {
            for way in 0..OWNER_WAYS {
                let addr = self.owners[bucket].ways[way].addr;
                let first = Buckets::of(addr, self.seed).first;
                if addr != UNSPECIFIED && first != bucket {
                    self.owners[first].ways[0].flags |= OWNER_SPILLED;
                }
            }
        }
    }

    /// Every owned address with its NIC's slot, in the table's order.
    pub fn owners(&self) -> impl Iterator<Item = (Addr, u16)> + '_ {
        self.owners.iter().flat_map(|b| b.ways.iter()).filter(|o| o.addr != UNSPECIFIED).map(|o| (o.addr, o.slot))
    }

    /// Every managed NIC with its slot.
    pub fn managed(&self) -> impl Iterator<Item = (u32, &Nic)> + '_ {
        (0..MAX_NICS as u32).filter_map(|slot| self.nic(slot).map(|nic| (slot, nic)))
    }
}

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    use std::{collections::BTreeMap, vec::Vec};

    use proptest::prelude::*;

    use super::*;
    use crate::abi::OWNED_ADDRESSES;

    fn dense(count: usize) -> Vec<(Addr, u16)> {
        (0..count as u32)
            .map(|i| {
                let ip = if i % 2 == 0 {
                    IpAddr::V4(Ipv4Addr::from_bits(0x0a14_0000 + i))
                } else {
                    IpAddr::V6(Ipv6Addr::from_bits(0xfd00_0020_u128 << 96 | u128::from(i)))
                };
                (Addr::from_ip(ip), (i % 7) as u16)
            })
            .collect()
    }

    #[test]
    fn the_promised_number_of_neighbouring_addresses_fits_and_each_is_found() {
        let mut tables = Tables::boxed();
        let owners = dense(OWNED_ADDRESSES);
        tables.place_owners(&owners.iter().copied()).unwrap();
        for (addr, slot) in &owners {
            assert_eq!(tables.owner(*addr).map(|o| o.slot), Some(*slot));
        }
        assert_eq!(tables.owners().count(), OWNED_ADDRESSES);
        for (absent, _) in dense(OWNED_ADDRESSES + 1000).split_off(OWNED_ADDRESSES) {
            assert_eq!(tables.owner(absent), None);
        }
    }

    #[test]
    fn the_unspecified_address_is_owned_by_nobody_though_it_marks_empty_places() {
        assert_eq!(Tables::boxed().owner(UNSPECIFIED), None);
    }

    #[test]
    fn more_than_all_places_is_refused_and_not_half_done_silently() {
        let mut tables = Tables::boxed();
        assert_eq!(tables.place_owners(&dense(OWNER_BUCKETS * OWNER_WAYS + 1).into_iter()), Err(Full));
    }

    #[test]
    fn as_many_nics_as_slots_are_found_whatever_their_indexes() {
        for step in [1, 2, 3, 4, 100, NIC_INDEX_PLACES as u32, 1 << 16, 0x0080_0000] {
            let mut tables = Tables::boxed();
            let index = |slot: u32| 1 + slot * step;
            for slot in 0..MAX_NICS as u32 {
                tables.place_nic(slot, Nic { ifindex: index(slot), ..Nic::default() }).unwrap();
            }
            for slot in 0..MAX_NICS as u32 {
                assert_eq!(tables.slot_of(index(slot)), Some(slot), "step {step}");
            }
            assert_eq!(tables.slot_of(index(MAX_NICS as u32)), None);
            assert_eq!(tables.place_nic(0, Nic { ifindex: 7, ..Nic::default() }), Err(Full));
            assert_eq!(tables.place_nic(MAX_NICS as u32, Nic { ifindex: 7, ..Nic::default() }), Err(Full));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn look_up_agrees_with_a_map(owners in proptest::collection::btree_map(any::<u128>(), 0_u16..32, 0..3000),
                                     others in proptest::collection::vec(any::<u128>(), 100)) {
            let owners: BTreeMap<u128, u16> = owners.into_iter().filter(|(a, _)| *a != 0).collect();
            let addr = |a: u128| Addr::from_bytes(a.to_be_bytes());
            let mut tables = Tables::boxed();
            tables.place_owners(&owners.iter().map(|(a, slot)| (addr(*a), *slot))).unwrap();
            for a in owners.keys().chain(others.iter().filter(|a| **a != 0)) {
                prop_assert_eq!(tables.owner(addr(*a)).map(|o| o.slot), owners.get(a).copied());
            }
        }
    }
}
