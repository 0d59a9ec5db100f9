//! Raw deflate (RFC 1951) by `miniz_oxide`. Compression is the one kind that is not constant time: what it does to a
//! secret's length is the caller's concern (CRIME, BREACH).
//!
//! `miniz_oxide` has no dictionaries. It compresses the dictionary first and throws the output up to the flush behind it
//! away: what follows refers to it, and begins on a byte boundary.

use miniz_oxide::deflate::core::{CompressorOxide, create_comp_flags_from_zip_params};
use miniz_oxide::deflate::stream::deflate;
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};
use miniz_oxide::{MZFlush, MZStatus};
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
    if moved.done || (!options.last && coder.is_complete(moved, input.len())) {
        return Ok(moved.written);
    }
    Err(NO_ROOM)
}

/// A compressor at a level.
struct Coder {
    compressor: Box<CompressorOxide>,
    level: u8,
}

impl Coder {
    fn new(level: u8) -> Coder {
        Coder { compressor: fresh(level), level }
    }

    fn start(&mut self, dictionary: &[u8]) -> Result<(), Error> {
        self.compressor = fresh(self.level);
        let (mut rest, mut buffer) = (dictionary, [0; 4096]);
        // Everything, and with a call that finds room left over: the flush is complete.
        while !dictionary.is_empty() {
            let moved = self.update(rest, &mut buffer, Then::Flush)?;
            rest = &rest[moved.read..];
            if moved.done {
                break;
            }
        }
        Ok(())
    }

    fn update(&mut self, input: &[u8], output: &mut [u8], then: Then) -> Result<Moved, Error> {
        let flush = match then {
            Then::More => MZFlush::None,
            Then::Flush => MZFlush::Sync,
            Then::End => MZFlush::Finish,
        };
        let (mut read, mut written) = (0, 0);
        loop {
            let result = deflate(&mut self.compressor, &input[read..], &mut output[written..], flush);
            (read, written) = (read + result.bytes_consumed, written + result.bytes_written);
            let room = written < output.len();
            let done = match result.status {
                Ok(MZStatus::StreamEnd) => true,
                // No progress is not an error: there was nothing to do, or no room.
                Ok(_) | Err(miniz_oxide::MZError::Buf) => {
                    read == input.len() && (then == Then::More || (then == Then::Flush && room))
                }
                Err(_) => return Err(Error::Device(Fault::Reported)),
            };
            if done || !room {
                return Ok(Moved { read, written, done });
            }
            if result.bytes_consumed + result.bytes_written == 0 {
                return Err(Error::Device(Fault::Reported));
            }
        }
    }

    /// Whether a flush that filled its room was complete: a full buffer leaves that open, an empty one shows it.
    fn is_complete(&mut self, moved: Moved, input: usize) -> bool {
        moved.read == input && deflate(&mut self.compressor, &[], &mut [0], MZFlush::None).bytes_written == 0
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
