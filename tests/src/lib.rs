//! Fixtures of everything that runs on real packets: the tests, the benches and the demonstration.
//!
//! Reading order: [`netns`] (one network namespace and what runs in it), [`lab`] (the node with two NICs that the
//! scenarios share), [`traffic`] (servers and checks on real sockets), [`raw`] (frames in and out of a device),
//! [`packet`] (frames made by hand), [`product`] (the product's binary by its command line), [`wait`].
//!
//! All of it needs root and touches no namespace but those it made. A fixture that cannot do its work panics with the
//! reason: there is nobody else to hand the error to. Nothing here depends on the product's crates.
#![expect(clippy::panic, reason = "a fixture that cannot do its work fails its test")]

pub mod bpffs;
pub mod lab;
pub mod netns;
pub mod packet;
pub mod product;
pub mod raw;
mod scratch;
mod sys;
pub mod traffic;
pub mod wait;

pub use lab::{Family, TwoNic};
pub use netns::Netns;
