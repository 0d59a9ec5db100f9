//! `perf_event_open`, which the C library has no function for. The only unsafe code of this crate.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// `struct perf_event_attr` as of its first version (perf_event_open(2): `PERF_ATTR_SIZE_VER0`, 64 bytes), which every
/// kernel takes. What is not needed here stays zero.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
}

const _: () = assert!(size_of::<Attributes>() == 64);

/// Close the descriptor on `exec`: the command that is measured must not inherit it.
const CLOEXEC: libc::c_ulong = 1 << 3;

/// Opens a counter of all processes on one CPU. It counts from now on; a read gives 8 bytes, the count.
pub(crate) fn perf_event(kind: u32, config: u64, cpu: i32) -> io::Result<File> {
    let attributes = Attributes { kind, size: 64, config, ..Attributes::default() };
    let (every_process, no_group): (libc::pid_t, libc::c_int) = (-1, -1);
    // SAFETY: `attributes` is a live, fully initialised structure of the size it states, which the kernel only reads
    // during the call; the other arguments are integers.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attributes, every_process, cpu, no_group, CLOEXEC)
    };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just made this descriptor for us and no other code knows its number.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}
