//! Raw deflate (RFC 1951): by igzip where the machine has it and it is the better one, else by zlib-rs, whose matching
//! uses the CPU's vector instructions.
//!
//! *Levels.* A level means what zlib means by it: at level n the output is at most 2 % longer than zlib's at n
//! (`tests/compress.rs`). Neither igzip nor zlib-rs counts as zlib does, so [`route`] maps the levels. zlib-rs 1, for
//! one, leaves a quarter more than zlib 1 on HTML, and must not serve as level 1.
//!
//! *Memory.* A compressor is 270 to 480 KB; each thread keeps the one it used last. Its window still holds what was
//! compressed: deflate's input is not a secret (see [`wattlock_core::Kind::output_is_secret`]); compression of secrets
//! beside a stranger's text shows them by its length (CRIME, BREACH), and that is the door's concern.

mod store;
mod zlib;

use std::cell::RefCell;

use wattlock_core::{CompressStream, Error, Fault, Kind, Moved, Options, Order, Then};

use super::sys::isal::{Igzip, Isal};
use zlib::Zlib;
pub(super) use zlib::inflates_to;

/// Which compressor does a level, and at which level of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    Igzip(u8),
    Zlib(u8),
}

/// Chosen by measurement on generated HTML, JSON and text of 4 KiB to 1 MiB (`examples/deflate_levels.rs`): the fastest
/// that keeps to zlib's size.
fn route(igzip: bool, level: u8) -> Route {
    match level {
        0..=2 if igzip => Route::Igzip(level.max(1)),
        0..=2 => Route::Zlib(2),
        // zlib-rs 2 and igzip 3 leave up to 4 % more than zlib 3, zlib-rs 3 5 % less, and as much as zlib 4.
        3..=4 => Route::Zlib(3),
        _ => Route::Zlib(level.min(9)),
    }
}

/// A compressor.
enum Coder {
    Igzip(Igzip),
    Zlib(Box<Zlib>),
}

impl Coder {
    fn new(library: Option<&'static Isal>, route: Route) -> Result<Coder, Error> {
        match (route, library) {
            (Route::Igzip(level), Some(library)) => {
                Igzip::new(library, level).map(Coder::Igzip).ok_or(Error::Device(Fault::Reported))
            }
            (Route::Zlib(level) | Route::Igzip(level), _) => Ok(Coder::Zlib(Box::new(Zlib::new(level)))),
        }
    }

    fn start(&mut self, dictionary: &[u8]) -> Result<(), Error> {
        match self {
            Coder::Igzip(coder) => coder.start(dictionary),
            Coder::Zlib(coder) => coder.start(dictionary),
        }
    }

    fn update(&mut self, input: &[u8], output: &mut [u8], then: Then) -> Result<Moved, Error> {
        match self {
            Coder::Igzip(coder) => coder.update(input, output, then),
            Coder::Zlib(coder) => coder.update(input, output, then),
        }
    }
}

thread_local! {
    static KEPT: RefCell<Option<(Route, Coder)>> = const { RefCell::new(None) };
}

/// Compresses `input` behind `dictionary` into `out` and returns the length, which is never more than that of the input
/// in stored blocks.
///
/// # Errors
/// [`Error::Invalid`] if `out` is too short; [`Error::Device`].
pub(super) fn deflate(
    library: Option<&'static Isal>,
    dictionary: &[u8],
    input: &[u8],
    out: &mut [u8],
    options: Options,
) -> Result<usize, Error> {
    let way = route(library.is_some(), options.level);
    let then = if options.last { Then::End } else { Then::Flush };
    let moved = KEPT.with_borrow_mut(|kept| {
        if kept.as_ref().is_none_or(|(was, _)| *was != way) {
            *kept = Some((way, Coder::new(library, way)?));
        }
        let Some((_, coder)) = kept else { return Err(Error::Device(Fault::Reported)) };
        coder.start(dictionary)?;
        // zlib cannot tell without one more byte that a flush is complete.
        let room = out.len().min(store::len(input.len(), options.last) + 1);
        let moved = coder.update(input, &mut out[..room], then);
        if moved.is_err() {
            *kept = None;
        }
        moved
    })?;
    if moved.done && moved.read == input.len() {
        return Ok(moved.written);
    }
    store::store(input, out, options.last)
}

/// A compressor for content in pieces.
pub(super) struct Pieces {
    coder: Coder,
    order: Order,
}

impl Pieces {
    /// At a level.
    ///
    /// # Errors
    /// As [`wattlock_core::Engine::compress_stream`].
    pub(super) fn new(library: Option<&'static Isal>, level: u8) -> Result<Pieces, Error> {
        let order = Order::new(Kind::Deflate, level)?;
        Ok(Pieces { coder: Coder::new(library, route(library.is_some(), level))?, order })
    }
}

impl std::fmt::Debug for Pieces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pieces").field("order", &self.order).finish_non_exhaustive()
    }
}

impl CompressStream for Pieces {
    fn kind(&self) -> Kind {
        self.order.kind()
    }

    fn start(&mut self, dictionary: &[u8]) -> Result<(), Error> {
        self.order.start(dictionary.len())?;
        self.coder.start(dictionary)
    }

    fn update(&mut self, input: &[u8], output: &mut [u8], then: Then) -> Result<Moved, Error> {
        if !self.order.update(input.len(), then)? {
            return Ok(Moved { done: true, ..Moved::default() });
        }
        let moved = self.coder.update(input, output, then);
        self.order.moved(moved, then)
    }
}
