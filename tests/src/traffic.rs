//! Real programs on real sockets: servers, single checks, and checks that go on all the time.

mod check;
mod checker;
mod server;

pub use check::{Failure, IcmpError, ping_check, tcp_check, udp_check};
pub use checker::{CheckReport, Checker, Probe, Target};
pub use server::{TcpEcho, UdpEcho};

#[cfg(test)]
mod tests;
