//! Programs of a few instructions, made by hand: the empty one is the limit of what any program costs.
#![allow(unsafe_code, reason = "bpf(2): loading and pinning a hand-made program, which aya cannot")]

use std::{
    ffi::CString,
    io, mem,
    os::{fd::AsRawFd as _, fd::FromRawFd as _, fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::Path,
};

const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_OBJ_PIN: libc::c_int = 6;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;

/// Opcode, registers, offset (2 bytes), immediate (4 bytes), as `struct bpf_insn` (include/uapi/linux/bpf.h).
pub(crate) type Instruction = [u8; 8];

/// `r0 = -1` and `exit`: every packet passes and other programs run.
pub(crate) const PASS: [Instruction; 2] = [[0xb7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff], [0x95, 0, 0, 0, 0, 0, 0, 0]];

/// The first fields of `union bpf_attr` for BPF_PROG_LOAD.
#[repr(C)]
struct LoadAttr {
    prog_type: u32,
    instructions: u32,
    instructions_at: u64,
    license_at: u64,
    log_level: u32,
    log_size: u32,
    log_at: u64,
    kernel_version: u32,
    flags: u32,
}

/// The fields for BPF_OBJ_PIN.
#[repr(C)]
struct PinAttr {
    path_at: u64,
    fd: u32,
    flags: u32,
}

fn bpf<T>(command: libc::c_int, attr: &T) -> io::Result<libc::c_long> {
    // SAFETY: `attr` is the command's struct; what it points to lives in the caller.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, attr, mem::size_of::<T>()) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// Loads a program and pins it, so that it can be opened like any other.
pub(crate) fn pin(path: &Path, program: &[Instruction]) -> io::Result<()> {
    let license = c"GPL";
    let load = LoadAttr {
        prog_type: BPF_PROG_TYPE_SCHED_CLS,
        instructions: u32::try_from(program.len()).map_err(io::Error::other)?,
        instructions_at: program.as_ptr() as u64,
        license_at: license.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_at: 0,
        kernel_version: 0,
        flags: 0,
    };
    let fd = i32::try_from(bpf(BPF_PROG_LOAD, &load)?).map_err(io::Error::other)?;
    // SAFETY: the kernel has just given us this descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let path = CString::new(path.as_os_str().as_bytes())?;
    let pin = PinAttr { path_at: path.as_ptr() as u64, fd: fd.as_raw_fd().cast_unsigned(), flags: 0 };
    bpf(BPF_OBJ_PIN, &pin).map(|_| ())
}
