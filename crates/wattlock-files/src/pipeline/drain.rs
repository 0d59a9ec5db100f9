//! Writing segments: at their position in a file, or in their order into a stream.

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::sync::{Condvar, Mutex, MutexGuard};

use rustix::io::pwritev;

use super::Segments;
use crate::error::Error;

/// The output from the first payload byte on.
pub(crate) enum Drain<'a> {
    File { file: &'a File, base: u64 },
    Stream { turn: Mutex<Turn<'a>>, changed: Condvar },
}

pub(crate) struct Turn<'a> {
    writer: &'a mut (dyn Write + Send),
    /// Whose turn it is.
    next: u64,
    /// Segments from here on are never written: one of them failed.
    failed_from: u64,
}

impl<'a> Drain<'a> {
    pub(crate) fn file(file: &'a File, base: u64) -> Drain<'a> {
        Drain::File { file, base }
    }

    pub(crate) fn stream(writer: &'a mut (dyn Write + Send)) -> Drain<'a> {
        let turn = Turn { writer, next: 0, failed_from: u64::MAX };
        Drain::Stream { turn: Mutex::new(turn), changed: Condvar::new() }
    }

    /// Writes a segment that is all in one piece.
    pub(super) fn put_whole(&self, segments: Segments, index: u64, bytes: &[u8]) -> Result<(), Error> {
        self.put(segments, index, &mut [IoSlice::new(bytes)])
    }

    /// Writes the `plain` bytes that lie in `buffer` with gaps.
    pub(super) fn put_gapped(
        &self,
        segments: Segments,
        index: u64,
        buffer: &[u8],
        plain: usize,
    ) -> Result<(), Error> {
        let mut parts: Vec<IoSlice<'_>> = segments.gapped(buffer, plain).map(IoSlice::new).collect();
        self.put(segments, index, &mut parts)
    }

    fn put(&self, segments: Segments, index: u64, parts: &mut [IoSlice<'_>]) -> Result<(), Error> {
        match self {
            Drain::File { file, base } => {
                write_at(file, parts, base + index * segments.output_len() as u64).map_err(Error::writing)
            }
            Drain::Stream { turn, changed } => {
                let mut turn = lock(turn);
                while turn.next != index && index < turn.failed_from {
                    turn = changed.wait(turn).unwrap_or_else(|poisoned| poisoned.into_inner());
                }
                if index >= turn.failed_from {
                    return Ok(());
                }
                write_all(turn.writer, parts).map_err(Error::writing)?;
                turn.next += 1;
                changed.notify_all();
                Ok(())
            }
        }
    }

    /// Lets nobody wait for a segment that will not come.
    pub(super) fn fail(&self, index: u64) {
        if let Drain::Stream { turn, changed } = self {
            let mut turn = lock(turn);
            turn.failed_from = turn.failed_from.min(index);
            changed.notify_all();
        }
    }
}

fn lock<'m, 'a>(turn: &'m Mutex<Turn<'a>>) -> MutexGuard<'m, Turn<'a>> {
    turn.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn write_at(file: &File, mut parts: &mut [IoSlice<'_>], mut at: u64) -> io::Result<()> {
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match pwritev(file, parts, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(len) => {
                at += len as u64;
                IoSlice::advance_slices(&mut parts, len);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn write_all(writer: &mut dyn Write, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match writer.write_vectored(parts) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(len) => IoSlice::advance_slices(&mut parts, len),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
