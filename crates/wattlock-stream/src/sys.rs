//! The one call that no crate offers: what a socket has sent and its other side has not taken.

use std::ffi::c_int;
use std::os::fd::AsFd;

use rustix::ioctl::{Getter, ioctl};

/// `SIOCOUTQ` (tcp(7), unix(7)): the same number as the terminals' `TIOCOUTQ`.
const SIOCOUTQ: rustix::ioctl::Opcode = 0x5411;

/// Of a TCP connection the bytes, the end among them, that the other side's system has not acknowledged; of a Unix socket
/// the memory of what its other side has not read.
pub(crate) fn unsent(socket: impl AsFd) -> Result<c_int, rustix::io::Errno> {
    // SAFETY: the number is a valid request, for which Linux writes one int (tcp_ioctl, unix_ioctl); for a descriptor that
    // does not know it the call fails.
    let asked = unsafe { Getter::<SIOCOUTQ, c_int>::new() };
    // SAFETY: the getter holds the memory that is written, and the descriptor is open while it is borrowed.
    unsafe { ioctl(socket, asked) }
}
