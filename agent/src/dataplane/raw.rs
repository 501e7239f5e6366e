//! Values of the programs as bytes: a map value too large for a stack, which aya reads only by value, and records of
//! the ring buffer.
#![allow(unsafe_code, reason = "bpf(2) with a pointer to a heap value; plain values out of bytes")]

use std::{
    io, mem,
    os::fd::{AsFd as _, AsRawFd as _},
};

use aya::maps::MapData;
use ebpf::abi::{Event, Tables};

const BPF_MAP_LOOKUP_ELEM: libc::c_int = 1;

/// `struct { map_fd; key; value; flags }` of `union bpf_attr` (include/uapi/linux/bpf.h).
#[repr(C)]
struct ElementAttr {
    map_fd: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Reads element 0 of a map whose values are [`Tables`].
pub(super) fn read_tables(map: &MapData) -> io::Result<Box<Tables>> {
    let info = map.info().map_err(io::Error::other)?;
    if info.value_size() as usize != mem::size_of::<Tables>() || info.max_entries() == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the tables have another layout than this binary's"));
    }
    let key = 0_u32;
    let mut tables = Tables::boxed();
    let mut attr = ElementAttr {
        map_fd: map.fd().as_fd().as_raw_fd().cast_unsigned(),
        _pad: 0,
        key: (&raw const key) as u64,
        value: (&raw mut *tables) as u64,
        flags: 0,
    };
    // SAFETY: the kernel reads four bytes at `key` and writes the map's value size, which is that of Tables as
    // checked above, at `value`; both outlive the call.
    let answer =
        unsafe { libc::syscall(libc::SYS_bpf, BPF_MAP_LOOKUP_ELEM, &raw mut attr, mem::size_of::<ElementAttr>()) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(tables) }
}

/// An event out of a record; None if the record has another length.
pub(super) fn event(record: &[u8]) -> Option<Event> {
    if record.len() != mem::size_of::<Event>() {
        return None;
    }
    // SAFETY: the record is as long as an Event, whose fields are integers, so any bytes are a value of it.
    Some(unsafe { record.as_ptr().cast::<Event>().read_unaligned() })
}
