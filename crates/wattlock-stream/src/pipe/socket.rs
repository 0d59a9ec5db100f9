//! What is special about a socket as a sealed stream's output: whether its other side is still there, and whether it has
//! got the end.
//!
//! A receiver on TCP that is gone looks like one that has only ended what it sends, which is allowed. What tells them apart
//! is the answer to something that is sent: a reset.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, Shutdown, recv, shutdown, sockopt};

use crate::error::{Error, io};
use crate::sys::unsent;

/// How long a receiver may keep its connection once its system has acknowledged everything. It closes it when it has read
/// the end; one that does not may be a stranger that keeps it open.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often to ask, and how often at last.
const SOON: Duration = Duration::from_millis(1);
const AT_LAST: Duration = Duration::from_millis(50);

/// Whether it is a socket.
pub(super) fn is_socket(fd: impl AsFd) -> bool {
    rustix::fs::fstat(fd)
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Socket)
}

/// Ends the sending side of a connection and waits until the receiver has everything. On a Unix socket that is when it has
/// read it; on TCP when its system has acknowledged it and the receiver has closed its side. False if a receiver on TCP
/// has not closed it in some seconds, or ended its side before it was sent all: what it has read is then unknown.
///
/// # Errors
/// [`Error::ReceiverGone`] with these `frames` if it closed the connection before; [`wattlock_door::Error::Interrupted`]
/// when `stop` is readable.
pub fn deliver(socket: BorrowedFd<'_>, stop: BorrowedFd<'_>, frames: u64) -> Result<bool, Error> {
    let failed = |error: Errno| io("ending the connection", error);
    let gone = || Error::ReceiverGone { frames };
    let unix = sockopt::socket_domain(socket).map_err(failed)? == AddressFamily::UNIX;
    // An end that came before everything was sent says nothing about the rest.
    let mut side = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    let ended = poll(&mut side, Some(&Timespec::default())).is_ok_and(|some| some > 0);
    match shutdown(socket, Shutdown::Write) {
        Ok(()) => {}
        Err(Errno::NOTCONN | Errno::PIPE) => return Err(gone()),
        Err(error) => return Err(failed(error)),
    }
    let (mut closed, mut acknowledged, mut pause) = (false, None, SOON);
    loop {
        // Asked before the error: a reset empties the queue, too.
        let left = unsent(socket).map_err(failed)?;
        if sockopt::socket_error(socket).map_err(failed)?.is_err() {
            return Err(gone());
        }
        if left == 0 && (unix || closed) {
            return Ok(unix || !ended);
        }
        if left == 0 && acknowledged.get_or_insert_with(Instant::now).elapsed() >= PATIENCE {
            return Ok(false);
        }
        let time = Timespec { tv_sec: 0, tv_nsec: pause.as_nanos() as i64 };
        pause = (pause * 2).min(AT_LAST);
        let mut all =
            [PollFd::from_borrowed_fd(stop, PollFlags::IN), PollFd::from_borrowed_fd(socket, PollFlags::IN)];
        // A closed side is readable for ever.
        let some = if closed { 1 } else { 2 };
        match poll(&mut all[..some], Some(&time)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(failed(error)),
        }
        if !all[0].revents().is_empty() {
            return Err(wattlock_door::Error::Interrupted.into());
        }
        if !closed && !all[1].revents().is_empty() {
            match recv(socket, &mut [0u8; 512], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => closed = true,
                // What a receiver sends is not looked at.
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return Err(gone()),
            }
        }
    }
}
