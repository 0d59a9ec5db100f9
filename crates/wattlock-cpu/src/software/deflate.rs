//! Raw deflate (RFC 1951) by `miniz_oxide`. Compression is the one kind that is not constant time: what it does to a
//! secret's length is the caller's concern (CRIME, BREACH).
//!
//! `miniz_oxide` has no dictionaries. It compresses the dictionary first and throws the output up to the flush behind it
//! away: what follows refers to it, and begins on a byte boundary.

use miniz_oxide::deflate::core::{
    CompressorOxide, TDEFLFlush, TDEFLStatus, compress_to_output, create_comp_flags_from_zip_params,
};
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};
use wattlock_core::{CompressStream, Error, Fault, Kind, Moved, Options, Order, Then};

const NO_ROOM: Error = Error::Invalid("output length");

/// What a stream that has not ended stops with: an empty stored block, on a byte boundary (a "sync flush").
const FLUSHED: &[u8] = &[0x00, 0x00, 0xff, 0xff];
/// An empty last block with fixed codes; from a byte boundary it takes ten bits.
const ENDING: &[u8] = &[0x03, 0x00];

/// Compresses `input` behind `dictionary` and returns how many bytes of `output` that took.
///
/// # Errors
/// [`Error::Invalid`] if `output` is too short.
pub fn compress(
    dictionary: &[u8],
    input: &[u8],
    output: &mut [u8],
    options: Options,
) -> Result<usize, Error> {
    let mut coder = Coder::new(options.level);
    coder.start(dictionary)?;
    let moved = coder.update(input, output, if options.last { Then::End } else { Then::Flush })?;
    if moved.done {
        return Ok(moved.written);
    }
    Err(NO_ROOM)
}

/// Input compressed before its output is brought out.
const PIECE: usize = 16 << 10;

/// A compressor at a level.
///
/// All that `miniz_oxide` makes of a piece is taken from it into `waiting`. If it is left with output of its own, its
/// next call does nothing but bring that out, and does not say whether the flush that was asked for was made.
struct Coder {
    compressor: Box<CompressorOxide>,
    level: u8,
    /// Made, and from `out` on not brought out yet.
    waiting: Vec<u8>,
    out: usize,
    /// The flush or end that was made behind the last of the input.
    made: Then,
}

impl Coder {
    fn new(level: u8) -> Coder {
        Coder { compressor: fresh(level), level, waiting: Vec::new(), out: 0, made: Then::More }
    }

    fn start(&mut self, dictionary: &[u8]) -> Result<(), Error> {
        self.compressor = fresh(self.level);
        self.made = Then::More;
        if !dictionary.is_empty() {
            self.make(dictionary, Then::Flush)?;
            // What follows is behind a flush of nothing of its own: it still asks for one.
            self.made = Then::More;
        }
        (self.waiting, self.out) = (Vec::new(), 0);
        Ok(())
    }

    fn update(&mut self, input: &[u8], output: &mut [u8], then: Then) -> Result<Moved, Error> {
        let (mut read, mut written) = (0, 0);
        loop {
            written += self.bring_out(&mut output[written..]);
            let rest = &input[read..];
            let all_made = rest.is_empty() && (then == Then::More || then == self.made);
            let waits = self.out < self.waiting.len();
            if all_made && (then == Then::More || !waits) {
                return Ok(Moved { read, written, done: true });
            }
            if waits || written == output.len() {
                return Ok(Moved { read, written, done: false });
            }
            let piece = &rest[..rest.len().min(PIECE)];
            self.make(piece, if piece.len() == rest.len() { then } else { Then::More })?;
            read += piece.len();
        }
    }

    /// Compresses all of a piece.
    fn make(&mut self, piece: &[u8], then: Then) -> Result<(), Error> {
        let flush = match then {
            Then::More => TDEFLFlush::None,
            Then::Flush => TDEFLFlush::Sync,
            Then::End => TDEFLFlush::Finish,
        };
        let waiting = &mut self.waiting;
        let take = |bytes: &[u8]| {
            waiting.extend_from_slice(bytes);
            true
        };
        let (status, read) = compress_to_output(&mut self.compressor, piece, flush, take);
        let wanted = if then == Then::End { TDEFLStatus::Done } else { TDEFLStatus::Okay };
        if status != wanted || read != piece.len() {
            return Err(Error::Device(Fault::Reported));
        }
        self.made = then;
        Ok(())
    }

    fn bring_out(&mut self, output: &mut [u8]) -> usize {
        let waiting = &self.waiting[self.out..];
        let count = waiting.len().min(output.len());
        output[..count].copy_from_slice(&waiting[..count]);
        self.out += count;
        if self.out == self.waiting.len() {
            self.waiting.clear();
            self.out = 0;
        }
        count
    }
}

fn fresh(level: u8) -> Box<CompressorOxide> {
    const RAW: i32 = -15;
    let flags = create_comp_flags_from_zip_params(i32::from(level.clamp(1, 9)), RAW, 0);
    Box::new(CompressorOxide::new(flags))
}

/// A compressor for content in pieces.
pub struct Pieces {
    coder: Coder,
    order: Order,
}

impl Pieces {
    /// At a level.
    ///
    /// # Errors
    /// As [`wattlock_core::Engine::compress_stream`].
    pub fn new(level: u8) -> Result<Pieces, Error> {
        Ok(Pieces { order: Order::new(Kind::Deflate, level)?, coder: Coder::new(level) })
    }
}

impl std::fmt::Debug for Pieces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pieces").field("order", &self.order).finish_non_exhaustive()
    }
}

impl CompressStream for Pieces {
    fn kind(&self) -> Kind {
        Kind::Deflate
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

/// Whether `output` behind `dictionary` inflates to exactly `input` and ends as `options` say. Never inflates more than
/// `input` has, plus one byte to see that there is more.
pub fn is_compressed(dictionary: &[u8], input: &[u8], output: &[u8], options: Options) -> bool {
    if options.last {
        return inflates_to(output, dictionary, input);
    }
    output.ends_with(FLUSHED) && inflates_to(&[output, ENDING].concat(), dictionary, input)
}

fn inflates_to(stream: &[u8], dictionary: &[u8], wanted: &[u8]) -> bool {
    let start = dictionary.len();
    let mut inflated = [dictionary, wanted, &[0]].concat();
    inflated[start..].fill(0);
    let mut decompressor = Box::<DecompressorOxide>::default();
    let (status, consumed, produced) =
        decompress(&mut decompressor, stream, &mut inflated, start, TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF);
    status == TINFLStatus::Done && consumed == stream.len() && inflated[start..start + produced] == *wanted
}
