//! zlib-rs: compression at zlib's levels, and the decompression that checks another engine's result.

use std::cell::RefCell;

use wattlock_core::{Error, Fault, Moved, Then};
use zlib_rs::{Deflate, DeflateFlush, Inflate, InflateFlush, Status};

/// log2 of the window.
const WINDOW_BITS: u8 = 15;

/// Input given to zlib-rs at once: it counts in 32 bits.
const PIECE: usize = 1 << 30;

/// What ends an output that does not end its stream: an empty stored block (the "sync flush" of zlib).
const SYNC: [u8; 4] = [0, 0, 0xff, 0xff];

/// A compressor.
pub(super) struct Zlib(Deflate);

impl Zlib {
    /// At zlib-rs's level.
    pub(super) fn new(level: u8) -> Zlib {
        Zlib(Deflate::new(level.into(), false, WINDOW_BITS))
    }

    /// Begins a stream behind a dictionary.
    pub(super) fn start(&mut self, dictionary: &[u8]) -> Result<(), Error> {
        self.0.reset();
        if !dictionary.is_empty() {
            self.0.set_dictionary(dictionary).map_err(|_| Error::Device(Fault::Reported))?;
        }
        Ok(())
    }

    /// As [`wattlock_core::CompressStream::update`]. Without room left over, a flush is not known to be complete: the next
    /// call then writes nothing and says so.
    pub(super) fn update(&mut self, input: &[u8], output: &mut [u8], then: Then) -> Result<Moved, Error> {
        let end = match then {
            Then::More => DeflateFlush::NoFlush,
            Then::Flush => DeflateFlush::SyncFlush,
            Then::End => DeflateFlush::Finish,
        };
        let (mut read, mut written) = (0, 0);
        loop {
            let rest = &input[read..];
            let (piece, flush) =
                if rest.len() > PIECE { (&rest[..PIECE], DeflateFlush::NoFlush) } else { (rest, end) };
            let room = output.len().min(written + PIECE);
            let before = (self.0.total_in(), self.0.total_out());
            let status = self
                .0
                .compress(piece, &mut output[written..room], flush)
                .map_err(|_| Error::Device(Fault::Reported))?;
            let moved = (
                progress(self.0.total_in().wrapping_sub(before.0))?,
                progress(self.0.total_out().wrapping_sub(before.1))?,
            );
            (read, written) = (read + moved.0, written + moved.1);
            if status == Status::StreamEnd {
                return Ok(Moved { read, written, done: true });
            }
            if written == output.len() {
                let done = then == Then::More && read == input.len();
                return Ok(Moved { read, written, done });
            }
            if read == input.len() && then != Then::End {
                return Ok(Moved { read, written, done: true });
            }
            if moved == (0, 0) {
                return Err(Error::Device(Fault::Reported));
            }
        }
    }
}

fn progress(total: u64) -> Result<usize, Error> {
    usize::try_from(total).map_err(|_| Error::Device(Fault::Reported))
}

thread_local! {
    static DECOMPRESSOR: RefCell<Option<Inflate>> = const { RefCell::new(None) };
}

/// Whether `output` behind `dictionary` inflates to exactly `input`, and ends as `last` says. Work and memory are
/// bounded by the input: the first byte too many ends it.
pub(in super::super) fn inflates_to(output: &[u8], dictionary: &[u8], input: &[u8], last: bool) -> bool {
    DECOMPRESSOR.with_borrow_mut(|kept| {
        let inflater = kept.get_or_insert_with(|| Inflate::new(false, WINDOW_BITS));
        inflater.reset(false);
        if !dictionary.is_empty() && inflater.set_dictionary(dictionary).is_err() {
            return false;
        }
        inflate_and_compare(inflater, output, input, last)
    })
}

fn inflate_and_compare(inflater: &mut Inflate, output: &[u8], input: &[u8], last: bool) -> bool {
    let mut buffer = [0u8; 16_384];
    let (mut read, mut compared) = (0, 0);
    loop {
        let piece = &output[read..output.len().min(read + PIECE)];
        let Ok(status) = inflater.decompress(piece, &mut buffer, InflateFlush::NoFlush) else { return false };
        let (Ok(now), Ok(made)) = (progress(inflater.total_in()), progress(inflater.total_out())) else {
            return false;
        };
        let fresh = &buffer[..made - compared];
        if input.get(compared..made) != Some(fresh) {
            return false;
        }
        let moved = now > read || made > compared;
        (read, compared) = (now, made);
        let whole = read == output.len() && compared == input.len();
        if status == Status::StreamEnd {
            return last && whole;
        }
        if !moved {
            return !last && whole && output.ends_with(&SYNC);
        }
    }
}
