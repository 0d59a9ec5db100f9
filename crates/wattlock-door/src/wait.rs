//! Waiting for a descriptor that obeys a cancel flag.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::Error;

/// How often a wait for a pipe looks at the cancel flag.
const CANCEL_POLL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Size asked for pipes: 64 KiB, the default, costs sixteen times as many wake-ups. Refusal changes nothing.
pub const PIPE_BYTES: usize = 1 << 20;

/// Waits until `fd` is ready, or fails with [`Error::Interrupted`] when the flag is raised.
pub fn wait(fd: impl AsFd, what: PollFlags, cancel: &AtomicBool) -> io::Result<()> {
    loop {
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::Interrupted.into());
        }
        match poll(&mut [PollFd::new(&fd, what)], Some(&CANCEL_POLL)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
