//! Waiting: for input, for a time, for the word to stop, for a failed worker, for a consumer that left.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use wattlock_core::Nanos;

use super::Ends;
use crate::error::{Error, io};

/// What the leader listens to.
pub(super) struct Ears<'a> {
    pub(super) ends: &'a Ends<'a>,
    bell: &'a OwnedFd,
    /// Whether the output's other side may still end what it sends.
    both_ways: bool,
    /// What was read already and comes first.
    pub(super) ahead: Vec<u8>,
    /// How often it really waited.
    pub(super) waits: u64,
}

/// What it heard, the most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// Another worker failed.
    Bell,
    /// Nobody reads the output.
    OutputGone,
    /// The output's other side sends no more: it may be gone. Heard once.
    HalfClosed,
    /// The work is to stop.
    Stop,
    /// There is input, or its end.
    Input,
    /// None of it in time.
    Nothing,
}

/// What workers ring when they fail.
pub(super) fn bell() -> Result<OwnedFd, Error> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| io("making an eventfd", error))
}

impl<'a> Ears<'a> {
    pub(super) fn new(ends: &'a Ends<'a>, bell: &'a OwnedFd) -> Ears<'a> {
        for pipe in [&ends.input, &ends.output] {
            let _ = rustix::pipe::fcntl_setpipe_size(pipe, super::PIPE_BYTES);
        }
        Ears { ends, bell, both_ways: false, ahead: Vec::new(), waits: 0 }
    }

    /// Also listens for the other side of an output that is a socket.
    pub(super) fn both_ways(self) -> Ears<'a> {
        Ears { both_ways: super::socket::is_socket(&self.ends.output), ..self }
    }

    /// Listens for so long; `None` is for ever. The input only if it is `watched`.
    pub(super) fn listen(&mut self, watched: bool, timeout: Option<Nanos>) -> Result<Heard, Error> {
        let timeout = if watched && !self.ahead.is_empty() { Some(0) } else { timeout };
        self.waits += u64::from(timeout != Some(0));
        let timeout = timeout
            .map(|ns| Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 });
        // An output without a reader is told of with no flag asked for.
        let other_side = if self.both_ways { PollFlags::RDHUP } else { PollFlags::empty() };
        let mut all = [
            PollFd::new(self.bell, PollFlags::IN),
            PollFd::new(&self.ends.output, other_side),
            PollFd::new(&self.ends.input, PollFlags::IN),
            PollFd::new(self.bell, PollFlags::IN),
        ];
        let mut len = 2;
        if let Some(stop) = &self.ends.stop {
            all[len] = PollFd::from_borrowed_fd(*stop, PollFlags::IN);
            len += 1;
        }
        if watched {
            all[len] = PollFd::new(&self.ends.input, PollFlags::IN);
            len += 1;
        }
        match poll(&mut all[..len], timeout.as_ref()) {
            Ok(_) => {}
            // Whoever is interrupted looks again: the word to stop may be what interrupted.
            Err(Errno::INTR) => return Ok(Heard::Nothing),
            Err(error) => return Err(io("waiting for input", error)),
        }
        let heard = |at: usize| at < len && !all[at].revents().is_empty();
        let stop = self.ends.stop.is_some();
        let half = all[1].revents().contains(PollFlags::RDHUP);
        self.both_ways &= !half;
        Ok(match () {
            () if heard(0) => Heard::Bell,
            // A pipe without a reader; a connection whose other side closed it.
            () if all[1].revents().intersects(PollFlags::ERR | PollFlags::HUP) => Heard::OutputGone,
            () if stop && heard(2) => Heard::Stop,
            () if half => Heard::HalfClosed,
            () if watched && (heard(len - 1) || !self.ahead.is_empty()) => Heard::Input,
            () => Heard::Nothing,
        })
    }

    /// Reads; `None` if there was nothing after all.
    pub(super) fn read(&mut self, to: &mut [u8]) -> Result<Option<usize>, Error> {
        if !self.ahead.is_empty() {
            let len = to.len().min(self.ahead.len());
            to[..len].copy_from_slice(&self.ahead[..len]);
            self.ahead.drain(..len);
            return Ok(Some(len));
        }
        match rustix::io::read(&self.ends.input, to) {
            Ok(len) => Ok(Some(len)),
            Err(Errno::INTR | Errno::AGAIN) => Ok(None),
            // A connection that was reset ends there; whether the stream does is for the format to say.
            Err(Errno::CONNRESET) => Ok(Some(0)),
            Err(error) => Err(io("reading the input", error)),
        }
    }

    /// Bytes that wait to be read, and how many can.
    pub(super) fn window(&self) -> (u64, u64) {
        let input = &self.ends.input;
        let window = rustix::pipe::fcntl_getpipe_size(input).unwrap_or(super::PIPE_BYTES) as u64;
        (rustix::io::ioctl_fionread(input).unwrap_or(0).min(window), window)
    }

    /// Fills all of `to`; how much of it, if the input ends before.
    pub(super) fn read_full(&mut self, to: &mut [u8]) -> Result<usize, Error> {
        let mut filled = 0;
        while filled < to.len() {
            match self.listen(true, None)? {
                Heard::Stop | Heard::Bell => return Err(wattlock_door::Error::Interrupted.into()),
                Heard::OutputGone => return Err(wattlock_door::Error::ClosedPipe.into()),
                Heard::Nothing | Heard::HalfClosed => continue,
                Heard::Input => {}
            }
            match self.read(&mut to[filled..])? {
                Some(0) => break,
                Some(len) => filled += len,
                None => {}
            }
        }
        Ok(filled)
    }

    pub(super) fn wait_writable(to: BorrowedFd<'_>) -> Result<(), Error> {
        match poll(&mut [PollFd::new(&to.as_fd(), PollFlags::OUT)], None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(io("waiting for the output", error)),
        }
    }
}
