//! Zstandard (RFC 8878) by the reference library, for both engines that compress: there is no second encoder to choose
//! from that is as good. Its code is portable C; only the decoder has assembly of its own.
//!
//! A request is one frame with its content's size. In pieces the frame does not know its size, and the window is
//! 512 KiB ([`STREAM_WINDOW`]): of what zstd does with more, little is left on a page, and every open response holds one.
//! No frame asks a decoder for more than 8 MiB ([`LARGEST_WINDOW`], RFC 9659).

use std::cell::RefCell;

use wattlock_core::{CompressStream, Error, Fault, Kind, Moved, Order, Then};
use zstd_safe::zstd_sys::ZSTD_EndDirective::{ZSTD_e_continue, ZSTD_e_end, ZSTD_e_flush};
use zstd_safe::{CCtx, CParameter, DCtx, DParameter, InBuffer, OutBuffer, ResetDirective};

/// log2 of the largest window that a decoder is asked for.
const LARGEST_WINDOW: u32 = 23;
/// log2 of the window in pieces.
const STREAM_WINDOW: u32 = 19;

const FAULT: Error = Error::Device(Fault::Reported);

thread_local! {
    static COMPRESSOR: RefCell<Option<(u8, CCtx<'static>)>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

/// The library's version.
pub(crate) fn version() -> &'static str {
    zstd_safe::version_string()
}

/// A compressor at a level. zstd chooses a window that suits level and content.
fn compressor<'a>(level: u8, window: Option<u32>) -> Result<CCtx<'a>, Error> {
    let mut coder = CCtx::try_create().ok_or(FAULT)?;
    coder.set_parameter(CParameter::CompressionLevel(level.into())).map_err(|_| FAULT)?;
    if let Some(window) = window {
        coder.set_parameter(CParameter::WindowLog(window)).map_err(|_| FAULT)?;
    }
    Ok(coder)
}

/// Compresses `input` behind `dictionary` into one frame and returns its length.
///
/// # Errors
/// [`Error::Invalid`] if `out` is too short; [`Error::Device`].
pub(crate) fn compress(dictionary: &[u8], input: &[u8], out: &mut [u8], level: u8) -> Result<usize, Error> {
    if !dictionary.is_empty() {
        let mut coder = compressor(level, None)?;
        coder.ref_prefix(dictionary).map_err(|_| FAULT)?;
        return whole(&mut coder, input, out);
    }
    COMPRESSOR.with_borrow_mut(|kept| {
        if kept.as_ref().is_none_or(|(was, _)| *was != level) {
            // Levels 17 to 19 have an 8 MiB window already; the levels above are not ours.
            *kept = Some((level, compressor(level, None)?));
        }
        let Some((_, coder)) = kept else { return Err(FAULT) };
        let result = whole(coder, input, out);
        if result.is_err() {
            *kept = None;
        }
        result
    })
}

fn whole(coder: &mut CCtx<'_>, input: &[u8], out: &mut [u8]) -> Result<usize, Error> {
    match coder.compress2(out, input) {
        Ok(len) => Ok(len),
        Err(_) if out.len() < zstd_safe::compress_bound(input.len()) => Err(Error::Invalid("output length")),
        Err(_) => Err(FAULT),
    }
}

/// Whether `output` is frames that decompress to exactly `input` behind `dictionary`. Work and memory are bounded by the
/// input and the largest window.
pub(crate) fn decompresses_to(output: &[u8], dictionary: &[u8], input: &[u8]) -> bool {
    if dictionary.is_empty() {
        return DECOMPRESSOR.with_borrow_mut(|kept| {
            let Some(decoder) = kept.take().or_else(DCtx::try_create) else { return false };
            compare(kept.insert(decoder), output, input)
        });
    }
    let Some(mut decoder) = DCtx::try_create() else { return false };
    decoder.ref_prefix(dictionary).is_ok() && compare_frames(&mut decoder, output, input)
}

fn compare(decoder: &mut DCtx<'_>, output: &[u8], input: &[u8]) -> bool {
    decoder.reset(ResetDirective::SessionOnly).is_ok() && compare_frames(decoder, output, input)
}

fn compare_frames(decoder: &mut DCtx<'_>, output: &[u8], input: &[u8]) -> bool {
    if decoder.set_parameter(DParameter::WindowLogMax(LARGEST_WINDOW)).is_err() || output.is_empty() {
        return false;
    }
    let (mut buffer, mut compared) = ([0u8; 16_384], 0);
    let mut from = InBuffer::around(output);
    loop {
        let mut to = OutBuffer::around(&mut buffer[..]);
        let before = from.pos();
        let Ok(hint) = decoder.decompress_stream(&mut to, &mut from) else { return false };
        let fresh = to.as_slice();
        if input.get(compared..compared + fresh.len()) != Some(fresh) {
            return false;
        }
        compared += fresh.len();
        if hint == 0 && from.pos() == output.len() {
            return compared == input.len();
        }
        if fresh.is_empty() && from.pos() == before {
            return false;
        }
    }
}

/// A compressor for content in pieces.
pub(crate) struct Pieces {
    coder: CCtx<'static>,
    order: Order,
}

impl Pieces {
    /// At a level.
    ///
    /// # Errors
    /// As [`wattlock_core::Engine::compress_stream`].
    pub(crate) fn new(level: u8) -> Result<Pieces, Error> {
        let order = Order::new(Kind::Zstd, level)?;
        Ok(Pieces { coder: compressor(level, Some(STREAM_WINDOW))?, order })
    }
}

impl std::fmt::Debug for Pieces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pieces").field("order", &self.order).finish_non_exhaustive()
    }
}

impl CompressStream for Pieces {
    fn kind(&self) -> Kind {
        Kind::Zstd
    }

    fn start(&mut self, dictionary: &[u8]) -> Result<(), Error> {
        self.order.start(dictionary.len())?;
        if !dictionary.is_empty() {
            return Err(Error::Unsupported);
        }
        self.coder.reset(ResetDirective::SessionOnly).map_err(|_| FAULT)?;
        Ok(())
    }

    fn update(&mut self, input: &[u8], output: &mut [u8], then: Then) -> Result<Moved, Error> {
        if !self.order.update(input.len(), then)? {
            return Ok(Moved { done: true, ..Moved::default() });
        }
        let moved = self.step(input, output, then);
        self.order.moved(moved, then)
    }
}

impl Pieces {
    fn step(&mut self, input: &[u8], output: &mut [u8], then: Then) -> Result<Moved, Error> {
        let ask = match then {
            Then::More => ZSTD_e_continue,
            Then::Flush => ZSTD_e_flush,
            Then::End => ZSTD_e_end,
        };
        let (mut from, mut to) = (InBuffer::around(input), OutBuffer::around(output));
        loop {
            let before = (from.pos(), to.pos());
            let left = self.coder.compress_stream2(&mut to, &mut from, ask).map_err(|_| FAULT)?;
            let (read, written) = (from.pos(), to.pos());
            let done = read == input.len() && (then == Then::More || left == 0);
            if done || written == to.capacity() {
                return Ok(Moved { read, written, done });
            }
            if (read, written) == before {
                return Err(FAULT);
            }
        }
    }
}
