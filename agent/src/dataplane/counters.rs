//! Counters as user space reads them: summed over CPUs, named.

use aya::maps::{MapData, PerCpuArray};
use ebpf::{
    abi::{
        HookCounters, MAX_NICS, Redirects,
        map::{COUNTERS, REDIRECTS},
    },
    verdict::Counter,
};

use super::{Dataplane, Result, on};
use crate::{hook::Direction, tables::Slot};

/// One counter of one hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterRow {
    pub slot: Slot,
    pub direction: Direction,
    pub counter: Counter,
    pub packets: u64,
}

/// Packets moved from one NIC to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedirectRow {
    pub from: Slot,
    pub to: Slot,
    pub packets: u64,
}

impl Dataplane {
    /// Every counter of the given slots, zeros included.
    pub fn counters(&self, slots: impl IntoIterator<Item = Slot>) -> Result<Vec<CounterRow>> {
        let map: PerCpuArray<MapData, HookCounters> = self.open_map(COUNTERS)?;
        let mut rows = Vec::new();
        for slot in slots {
            for direction in Direction::ALL {
                let per_cpu = map.get(&(slot * 2 + direction.index()), 0).map_err(|e| on(COUNTERS, e))?;
                rows.extend(Counter::ALL.map(|counter| CounterRow {
                    slot,
                    direction,
                    counter,
                    packets: per_cpu.iter().map(|cpu| cpu.counts[counter.index() as usize]).sum(),
                }));
            }
        }
        Ok(rows)
    }

    /// Moves between the given slots, without zeros.
    pub fn redirects(&self, slots: impl IntoIterator<Item = Slot>) -> Result<Vec<RedirectRow>> {
        let map: PerCpuArray<MapData, Redirects> = self.open_map(REDIRECTS)?;
        let mut rows = Vec::new();
        for from in slots {
            let per_cpu = map.get(&from, 0).map_err(|e| on(REDIRECTS, e))?;
            rows.extend((0..MAX_NICS as Slot).filter_map(|to| {
                let packets = per_cpu.iter().map(|cpu| cpu.to[to as usize]).sum();
                (packets > 0).then_some(RedirectRow { from, to, packets })
            }));
        }
        Ok(rows)
    }

    /// Sets the counters of a slot to zero, when another NIC gets it.
    pub fn reset_counters(&self, slot: Slot) -> Result<()> {
        let mut counters: PerCpuArray<MapData, HookCounters> = self.open_map(COUNTERS)?;
        let cpus = aya::util::nr_cpus().map_err(|(_, source)| super::DataplaneError::Read { map: COUNTERS, source })?;
        let zero = || vec![HookCounters::default(); cpus].try_into();
        for direction in Direction::ALL {
            let values = zero().map_err(|source| super::DataplaneError::Read { map: COUNTERS, source })?;
            counters.set(slot * 2 + direction.index(), values, 0).map_err(|e| on(COUNTERS, e))?;
        }
        let mut redirects: PerCpuArray<MapData, Redirects> = self.open_map(REDIRECTS)?;
        let values = vec![Redirects::default(); cpus]
            .try_into()
            .map_err(|source| super::DataplaneError::Read { map: REDIRECTS, source })?;
        redirects.set(slot, values, 0).map_err(|e| on(REDIRECTS, e))
    }
}
