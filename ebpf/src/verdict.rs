//! What became of a packet, why, and where it is counted.

use crate::abi::{EGRESS, INGRESS};

/// `TC_ACT_UNSPEC`, also `TCX_NEXT` (include/uapi/linux/pkt_cls.h): the next program of the hook runs.
pub const TC_NEXT: i32 = -1;
/// `TC_ACT_SHOT`: drop.
pub const TC_DROP: i32 = 2;

/// What is counted for a packet as its outcome: exactly one per packet and hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
#[repr(u32)]
pub enum Verdict {
    /// Rule 0, a VLAN tag of a device above, `nicpath off`: not looked at further.
    Untouched = 0,
    /// Already leaving by the NIC that owns its source.
    Owned = 1,
    /// Rule 3: the kernel's choice stands.
    Kernel = 2,
    /// Moved to another NIC.
    Redirect = 3,
    /// Dropped; the reason is counted too.
    Drop = 4,
    /// Would have been moved, were it not for `mode: Observe`.
    WouldRedirect = 5,
    /// Would have been dropped, were it not for `mode: Observe`; the reason is not counted as a drop.
    WouldDrop = 6,
    /// Ingress: arrived and was handed on.
    Received = 7,
}

/// Why a packet was dropped; one cause each (design section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
#[repr(u32)]
pub enum DropReason {
    /// `sourceGuard: Drop`: no NIC owns the source.
    SourceGuard = 8,
    /// The NIC that owns the source is administratively down.
    NicDown = 9,
}

/// Something worth counting about a packet that passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Note {
    /// The frame could not be read as what its type says.
    Parse = 10,
    /// No NIC owns the source.
    SourceNotOwned = 11,
    /// The owner has neither a gateway nor a route for the destination, so the kernel's choice stands.
    NoNextHop = 12,
}

/// Places of [`crate::abi::HookCounters`]: verdicts, drop reasons and notes in one row.
pub const COUNTERS_PER_HOOK: usize = 16;

/// One place of a hook's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Counter {
    Verdict(Verdict),
    Drop(DropReason),
    Note(Note),
}

impl Counter {
    /// Every counter, in the order of their places.
    pub const ALL: [Self; 13] = [
        Self::Verdict(Verdict::Untouched),
        Self::Verdict(Verdict::Owned),
        Self::Verdict(Verdict::Kernel),
        Self::Verdict(Verdict::Redirect),
        Self::Verdict(Verdict::Drop),
        Self::Verdict(Verdict::WouldRedirect),
        Self::Verdict(Verdict::WouldDrop),
        Self::Verdict(Verdict::Received),
        Self::Drop(DropReason::SourceGuard),
        Self::Drop(DropReason::NicDown),
        Self::Note(Note::Parse),
        Self::Note(Note::SourceNotOwned),
        Self::Note(Note::NoNextHop),
    ];

    /// Place in [`crate::abi::HookCounters`], below [`COUNTERS_PER_HOOK`].
    #[inline(always)]
    pub const fn index(self) -> u32 {
        match self {
            Self::Verdict(verdict) => verdict as u32,
            Self::Drop(reason) => reason as u32,
            Self::Note(note) => note as u32,
        }
    }

    /// The counter at a place; None for a place that has none.
    pub fn from_index(index: u32) -> Option<Self> {
        Self::ALL.get(index as usize).copied()
    }

    /// Label value of the metrics, and the word in `why` and `monitor`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Verdict(Verdict::Untouched) => "untouched",
            Self::Verdict(Verdict::Owned) => "owned",
            Self::Verdict(Verdict::Kernel) => "kernel",
            Self::Verdict(Verdict::Redirect) => "redirect",
            Self::Verdict(Verdict::Drop) => "drop",
            Self::Verdict(Verdict::WouldRedirect) => "would_redirect",
            Self::Verdict(Verdict::WouldDrop) => "would_drop",
            Self::Verdict(Verdict::Received) => "received",
            Self::Drop(DropReason::SourceGuard) => "source_guard",
            Self::Drop(DropReason::NicDown) => "nic_down",
            Self::Note(Note::Parse) => "parse",
            Self::Note(Note::SourceNotOwned) => "source_not_owned",
            Self::Note(Note::NoNextHop) => "no_next_hop",
        }
    }
}

/// Label value of the metrics' `direction`.
pub const fn direction_name(direction: u32) -> &'static str {
    match direction {
        INGRESS => "ingress",
        EGRESS => "egress",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_has_its_own_place_within_the_row() {
        for (place, counter) in Counter::ALL.iter().enumerate() {
            assert_eq!(counter.index() as usize, place);
            assert!(place < COUNTERS_PER_HOOK);
            assert_eq!(Counter::from_index(counter.index()), Some(*counter));
        }
        assert_eq!(Counter::from_index(COUNTERS_PER_HOOK as u32), None);
    }

    #[test]
    fn names_are_distinct() {
        for (i, a) in Counter::ALL.iter().enumerate() {
            for b in &Counter::ALL[i + 1..] {
                assert_ne!(a.name(), b.name());
            }
        }
    }
}
