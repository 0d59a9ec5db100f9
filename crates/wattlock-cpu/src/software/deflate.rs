//! Raw deflate (RFC 1951) by `miniz_oxide`. Compression is the one kind that is not constant time: what it does to a
//! secret's length is the caller's concern (CRIME, BREACH).

use miniz_oxide::deflate::core::{CompressorOxide, create_comp_flags_from_zip_params};
use miniz_oxide::deflate::stream::deflate;
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};
use miniz_oxide::{MZFlush, MZStatus};
use wattlock_core::{Error, Options};

const NO_ROOM: Error = Error::Invalid("output length");

/// What a stream that has not ended stops with: an empty stored block, on a byte boundary (a "sync flush").
const FLUSHED: &[u8] = &[0x00, 0x00, 0xff, 0xff];
/// An empty last block with fixed codes; from a byte boundary it takes ten bits.
const ENDING: &[u8] = &[0x03, 0x00];

/// Compresses `input` and returns how many bytes of `output` that took.
///
/// # Errors
/// [`Error::Invalid`] if `output` is too short.
pub fn compress(input: &[u8], output: &mut [u8], options: Options) -> Result<usize, Error> {
    const RAW: i32 = -15;
    let flags = create_comp_flags_from_zip_params(i32::from(options.level.clamp(1, 9)), RAW, 0);
    let mut compressor = Box::new(CompressorOxide::new(flags));
    let flush = if options.last { MZFlush::Finish } else { MZFlush::Sync };
    let result = deflate(&mut compressor, input, output, flush);
    let written = result.bytes_written;
    let complete = match result.status {
        Ok(MZStatus::StreamEnd) => options.last,
        // A full buffer leaves open whether that was all; an empty one shows.
        Ok(MZStatus::Ok) if !options.last => {
            result.bytes_consumed == input.len()
                && (written < output.len()
                    || deflate(&mut compressor, &[], &mut [0], MZFlush::None).bytes_written == 0)
        }
        _ => false,
    };
    if complete { Ok(written) } else { Err(NO_ROOM) }
}

/// Whether `output` inflates to exactly `input` and ends as `options` say. Never inflates more than `input` has, plus
/// one byte to see that there is more.
pub fn is_compressed(input: &[u8], output: &[u8], options: Options) -> bool {
    if options.last {
        return inflates_to(output, input);
    }
    output.ends_with(FLUSHED) && inflates_to(&[output, ENDING].concat(), input)
}

fn inflates_to(stream: &[u8], wanted: &[u8]) -> bool {
    let mut inflated = vec![0; wanted.len() + 1];
    let mut decompressor = Box::<DecompressorOxide>::default();
    let (status, consumed, produced) =
        decompress(&mut decompressor, stream, &mut inflated, 0, TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF);
    status == TINFLStatus::Done && consumed == stream.len() && inflated[..produced] == *wanted
}
