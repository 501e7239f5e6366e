//! Where programs are attached, as plain values.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::{inventory::Ifindex, tables::TableSpec};

/// Direction of a TC hook, seen from the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    /// Also the program's name and the metrics' label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ingress => ebpf::abi::program::INGRESS,
            Self::Egress => ebpf::abi::program::EGRESS,
        }
    }

    /// Row of the counters.
    pub fn index(self) -> u32 {
        match self {
            Self::Ingress => ebpf::abi::INGRESS,
            Self::Egress => ebpf::abi::EGRESS,
        }
    }
}

/// One hook of one NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hook {
    pub link: Ifindex,
    pub direction: Direction,
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of interface {}", self.direction.name(), self.link)
    }
}

/// Where a program stands among the others of a hook when it is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Position {
    First,
    /// Behind programs that count or translate, whose result is then what we see.
    #[default]
    Last,
}

/// A program on a hook, ours or another's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProgramRef {
    pub id: u32,
    pub name: String,
}

/// What is on a hook where we have (or had) a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HookState {
    /// Ours runs; `current` tells whether it is the program the agent would attach.
    Attached { program: u32, current: bool, before: Vec<ProgramRef>, after: Vec<ProgramRef> },
    /// The pinned attachment points at a device that is gone.
    Dead,
    /// Nothing of ours; whoever else is there.
    Missing { others: Vec<ProgramRef> },
}

/// Which programs and maps are pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Installed {
    /// Nothing, or not all of it.
    None,
    /// Programs and maps of this very build.
    Current,
    /// Of another build, whose maps have this build's layout.
    OtherBuild,
    /// Of another layout: its maps cannot be read.
    OtherAbi { version: u32 },
}

/// What was found of ours on the kernel's BPF side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedPrograms {
    pub installed: Installed,
    pub tables: TableSpec,
    /// Every hook that has a pinned link or was asked about.
    pub hooks: BTreeMap<Hook, HookState>,
    pub switched_off: bool,
}
