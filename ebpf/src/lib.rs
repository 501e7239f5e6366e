//! nicpath's packet path.
//!
//! Read in this order: [`abi`] (the maps that programs and user space share), [`owners`] (how an address finds its
//! NIC), [`packet`] (what is read of a frame), [`steer`] (what is decided), [`verdict`] (what a decision is called
//! and counted as). The binary of the same package (`main.rs`, `maps.rs`, `act.rs`) is the thin part that runs in the
//! kernel: it reads the frame, asks these modules and acts. Nothing here knows aya, a clock or a system call, so the
//! code that decides in the kernel is the code the host's tests run.
#![no_std]

#[cfg(any(test, feature = "user"))]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod abi;
pub mod owners;
pub mod packet;
pub mod steer;
pub mod verdict;
