//! nicpath: replies leave by the NIC their flow arrived on, and destination routes are objects.
//!
//! One pipeline everywhere ([`pipeline`]): objects ([`source`], [`api`]) are merged ([`merge`]) into a node's
//! configuration ([`config`]); with what exists on the host ([`inventory`]) that gives what must hold ([`desired`]);
//! the difference is a plan of actions as data ([`plan`]), carried out by [`apply`]. The outside worlds have one module
//! each: [`dataplane`] (eBPF), [`netlink`], [`sysctl`], [`state`] (disk), [`telemetry`] (HTTP).

pub mod api;
pub mod apply;
pub mod backoff;
pub mod cli;
pub mod config;
pub mod contest;
pub mod dataplane;
pub mod desired;
pub mod effects;
pub mod hook;
pub mod inventory;
pub mod manifests;
pub mod merge;
pub mod netlink;
pub mod node;
pub mod pipeline;
pub mod plan;
pub mod source;
pub mod state;
pub mod status;
pub mod sysctl;
mod table;
pub mod tables;
pub mod telemetry;
