//! Writing segments: at their position in a file by any thread, or in their order into a stream.

use std::fs::File;
use std::io::{self, IoSlice, Write};

use rustix::io::pwritev;

use super::Segments;
use crate::error::Error;

/// The output from the first payload byte on.
pub(crate) enum Drain<'a> {
    File { file: &'a File, base: u64 },
    Stream(&'a mut (dyn Write + Send)),
}

/// Where a finished segment's output lies in its buffer.
#[derive(Clone, Copy)]
pub(super) enum Shape {
    /// So many bytes, all in one piece.
    Whole(usize),
    /// So many bytes of plaintext, with gaps where the tags were.
    Gapped(usize),
}

impl Shape {
    fn parts(self, segments: Segments, buffer: &[u8]) -> Vec<IoSlice<'_>> {
        match self {
            Shape::Whole(len) => vec![IoSlice::new(&buffer[..len])],
            Shape::Gapped(plain) => segments.gapped(buffer, plain).map(IoSlice::new).collect(),
        }
    }

    /// Writes a finished segment at `at`.
    pub(super) fn write_at(
        self,
        segments: Segments,
        buffer: &[u8],
        file: &File,
        at: u64,
    ) -> Result<(), Error> {
        write_at(file, &mut self.parts(segments, buffer), at).map_err(Error::writing)
    }

    /// Writes a finished segment where the last one ended.
    pub(super) fn write(
        self,
        segments: Segments,
        buffer: &[u8],
        writer: &mut (dyn Write + Send),
    ) -> Result<(), Error> {
        write_all(writer, &mut self.parts(segments, buffer)).map_err(Error::writing)
    }
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
