//! Stored blocks (RFC 1951 section 3.2.4): what becomes of noise.

use wattlock_core::Error;

/// Most bytes of a stored block.
const BLOCK: usize = 65_535;
/// Its header, from a byte boundary: three bits, padding, length and its complement.
const HEADER: usize = 5;

/// Bytes that `input` bytes take in stored blocks; a stream that goes on ends with an empty one.
pub(super) fn len(input: usize, last: bool) -> usize {
    let blocks = if last { input.div_ceil(BLOCK).max(1) } else { input.div_ceil(BLOCK) + 1 };
    input + blocks * HEADER
}

/// Stores `input` in `out` and returns the length.
///
/// # Errors
/// [`Error::Invalid`] if `out` is too short.
pub(super) fn store(input: &[u8], out: &mut [u8], last: bool) -> Result<usize, Error> {
    let total = len(input.len(), last);
    let mut out = out.get_mut(..total).ok_or(Error::Invalid("output length"))?;
    let mut put = |block: &[u8], last: bool| {
        let (here, rest) = std::mem::take(&mut out).split_at_mut(HEADER + block.len());
        let count = block.len() as u16;
        here[0] = u8::from(last);
        here[1..3].copy_from_slice(&count.to_le_bytes());
        here[3..5].copy_from_slice(&(!count).to_le_bytes());
        here[HEADER..].copy_from_slice(block);
        out = rest;
    };
    let mut blocks = input.chunks(BLOCK).peekable();
    while let Some(block) = blocks.next() {
        put(block, last && blocks.peek().is_none());
    }
    if !last || input.is_empty() {
        put(&[], last);
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::super::inflates_to;
    use super::*;

    #[test]
    fn stored_blocks_inflate_at_every_edge() {
        for count in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK] {
            for last in [false, true] {
                let input: Vec<u8> = (0..count).map(|at| (at * 7) as u8).collect();
                let mut out = vec![0; len(count, last)];
                assert_eq!(store(&input, &mut out, last), Ok(out.len()));
                assert!(inflates_to(&out, &[], &input, last), "{count} {last}");
                let short = out.len() - 1;
                assert!(store(&input, &mut out[..short], last).is_err());
            }
        }
    }
}
