//! Raw deflate (RFC 1951) by zlib-rs, whose matching and checksums use the CPU's vector instructions.
//!
//! A compressor is about 270 KB; each thread keeps the one it used last. Its window still holds what was compressed:
//! deflate's input is not a secret (see [`wattlock_core::Kind::output_is_secret`]); whoever compresses secrets has a
//! larger problem than this one.

use std::cell::RefCell;

use wattlock_core::{Error, Fault, Options};
use zlib_rs::{Deflate, DeflateFlush, Inflate, InflateFlush, Status};

/// log2 of the window.
const WINDOW_BITS: u8 = 15;

/// Input given to zlib-rs at once: it counts in 32 bits.
const PIECE: usize = 1 << 30;

/// What ends an output that does not end its stream: an empty stored block (the "sync flush" of zlib).
const SYNC: [u8; 4] = [0, 0, 0xff, 0xff];

thread_local! {
    static COMPRESSOR: RefCell<Option<(u8, Deflate)>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Inflate>> = const { RefCell::new(None) };
}

/// Compresses `input` into `out` and returns the length.
///
/// # Errors
/// [`Error::Invalid`] if `out` is too short. Output that does not end its stream needs one byte more than it takes,
/// for zlib cannot otherwise tell that it is complete.
pub(super) fn deflate(input: &[u8], out: &mut [u8], options: Options) -> Result<usize, Error> {
    COMPRESSOR.with_borrow_mut(|kept| {
        let level = options.level.clamp(1, 9);
        let (was, compressor) =
            kept.get_or_insert_with(|| (level, Deflate::new(level.into(), false, WINDOW_BITS)));
        compressor.reset();
        if *was != level {
            compressor.set_level(level.into()).map_err(|_| Error::Device(Fault::Reported))?;
            *was = level;
        }
        compress(compressor, input, out, options.last)
    })
}

fn compress(compressor: &mut Deflate, input: &[u8], out: &mut [u8], last: bool) -> Result<usize, Error> {
    let end = if last { DeflateFlush::Finish } else { DeflateFlush::SyncFlush };
    loop {
        let (read, written) = (progress(compressor.total_in())?, progress(compressor.total_out())?);
        let rest = &input[read..];
        let (piece, flush) =
            if rest.len() > PIECE { (&rest[..PIECE], DeflateFlush::NoFlush) } else { (rest, end) };
        let status = compressor
            .compress(piece, &mut out[written..], flush)
            .map_err(|_| Error::Device(Fault::Reported))?;
        let (all_read, now) =
            (progress(compressor.total_in())? == input.len(), progress(compressor.total_out())?);
        if status == Status::StreamEnd {
            return Ok(now);
        }
        if now == out.len() {
            return Err(Error::Invalid("output length"));
        }
        if !last && all_read {
            return Ok(now);
        }
        if progress(compressor.total_in())? == read && now == written {
            return Err(Error::Device(Fault::Reported));
        }
    }
}

fn progress(total: u64) -> Result<usize, Error> {
    usize::try_from(total).map_err(|_| Error::Device(Fault::Reported))
}

/// Whether `output` inflates to exactly `input`, and ends as `last` says. Work and memory are bounded by the input:
/// the first byte too many ends it.
pub(super) fn inflates_to(output: &[u8], input: &[u8], last: bool) -> bool {
    DECOMPRESSOR.with_borrow_mut(|kept| {
        let inflater = kept.get_or_insert_with(|| Inflate::new(false, WINDOW_BITS));
        inflater.reset(false);
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
