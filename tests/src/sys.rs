//! The system calls that have no safe form. All unsafe code of the fixtures is here.
#![allow(unsafe_code, reason = "pre_exec hooks and PACKET_AUXDATA have no safe wrapper")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use nix::sched::{CloneFlags, setns};
use nix::sys::signal::Signal;

/// Makes the child of `command` enter the network namespace `netns` before it executes.
///
/// Mounts and /sys stay those of the caller, unlike with `ip netns exec`.
pub(crate) fn enter_before_exec(command: &mut Command, netns: Arc<File>) {
    let enter = move || setns(netns.as_fd(), CloneFlags::CLONE_NEWNET).map_err(io::Error::from);
    // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(enter) };
}

/// Makes the kernel kill the child of `command` when the thread that spawns it ends, however that happens.
pub(crate) fn die_with_spawner(command: &mut Command) {
    let arm = || nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from);
    // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(arm) };
}

/// Asks a packet socket to hand out, with every frame, the VLAN tag that the kernel keeps beside the bytes.
pub(crate) fn enable_packet_auxdata(socket: BorrowedFd<'_>) -> io::Result<()> {
    /// linux/if_packet.h
    const PACKET_AUXDATA: libc::c_int = 8;
    let on: libc::c_int = 1;
    // SAFETY: the pointer and the length describe `on`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            PACKET_AUXDATA,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
