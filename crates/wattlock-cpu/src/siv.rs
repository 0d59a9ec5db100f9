//! AES-SIV (RFC 5297): S2V over CMAC, then counter mode under the vector that S2V gave.
//!
//! The construction, for both engines that do it; the block cipher and counter mode are each engine's own
//! ([`Parts`]). Opening has to decrypt before it can verify: a plaintext that does not verify is wiped before the
//! call returns. Nothing here branches on a byte of key or data, and nothing allocates.

use subtle::ConstantTimeEq;
use wattlock_core::{Data, Error};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// Bytes of a block and of a tag.
pub(crate) const BLOCK: usize = 16;

/// One block.
pub(crate) type Block = [u8; BLOCK];

/// What an engine brings: one block under the first key, counter mode under the second.
pub(crate) trait Parts {
    /// Encrypts a block under the key of S2V.
    fn encrypt(&self, block: &mut Block);
    /// Counter mode under the other key, the first counter as given.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an output that is too short.
    fn ctr(&self, counter: u128, data: &mut Data<'_>) -> Result<(), Error>;
}

/// What S2V needs of a key beyond the block cipher: CMAC's two subkeys (RFC 4493 section 2.3), and the code of the zero
/// block, with which every S2V begins.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(crate) struct Subkeys {
    whole: Block,
    padded: Block,
    zero: Block,
}

impl Subkeys {
    /// Of a block cipher.
    pub(crate) fn new(parts: &impl Parts) -> Subkeys {
        let mut first = Zeroizing::new([0; BLOCK]);
        parts.encrypt(&mut first);
        let whole = doubled(&first);
        let mut keys = Subkeys { whole, padded: doubled(&whole), zero: [0; BLOCK] };
        keys.zero = keys.cmac(parts, &[0; BLOCK], None);
        keys
    }

    /// CMAC (RFC 4493) of `message`, whose last 16 bytes are added to `end` if that is given: `message` must have as
    /// many then.
    fn cmac(&self, parts: &impl Parts, message: &[u8], end: Option<&Block>) -> Block {
        let mut state = [0; BLOCK];
        let last = message.len().saturating_sub(1) / BLOCK * BLOCK;
        let (whole, tail) = message.split_at(last);
        let end_from = message.len().wrapping_sub(BLOCK);
        let mask = |state: &mut Block, at: usize, len: usize| {
            let Some(end) = end else { return };
            for (offset, byte) in state.iter_mut().enumerate().take(len) {
                if at + offset >= end_from {
                    *byte ^= end[at + offset - end_from];
                }
            }
        };
        for (number, block) in whole.chunks_exact(BLOCK).enumerate() {
            add(&mut state, block);
            mask(&mut state, number * BLOCK, BLOCK);
            parts.encrypt(&mut state);
        }
        add(&mut state, tail);
        mask(&mut state, last, tail.len());
        if tail.len() == BLOCK {
            add(&mut state, &self.whole);
        } else {
            state[tail.len()] ^= 0x80;
            add(&mut state, &self.padded);
        }
        parts.encrypt(&mut state);
        state
    }

    /// S2V (RFC 5297 section 2.4) of `strings`, of which the last is the plaintext.
    pub(crate) fn s2v<'a>(
        &self,
        parts: &impl Parts,
        strings: impl Iterator<Item = &'a [u8]>,
        plaintext: &[u8],
    ) -> Block {
        let mut sum = self.zero;
        for string in strings {
            sum = doubled(&sum);
            add(&mut sum, &self.cmac(parts, string, None));
        }
        if plaintext.len() >= BLOCK {
            return self.cmac(parts, plaintext, Some(&sum));
        }
        let mut last = doubled(&sum);
        add(&mut last, plaintext);
        last[plaintext.len()] ^= 0x80;
        self.cmac(parts, &last, None)
    }
}

/// The strings before the plaintext: associated data, even if empty, and the nonce, if there is one.
fn strings<'a>(aad: &'a [u8], nonce: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    [Some(aad), Some(nonce).filter(|nonce| !nonce.is_empty())].into_iter().flatten()
}

/// Encrypts, writes the synthetic vector and returns the length.
///
/// # Errors
/// [`Error::Invalid`] for a length that validation would have refused.
pub(crate) fn seal(
    parts: &impl Parts,
    keys: &Subkeys,
    (aad, nonce): (&[u8], &[u8]),
    data: &mut Data<'_>,
    tag: &mut Block,
) -> Result<usize, Error> {
    *tag = keys.s2v(parts, strings(aad, nonce), data.input());
    parts.ctr(counter(tag), data)?;
    Ok(data.len())
}

/// Decrypts, verifies, and returns the length.
///
/// # Errors
/// [`Error::Authentication`], the plaintext wiped.
pub(crate) fn open(
    parts: &impl Parts,
    keys: &Subkeys,
    (aad, nonce): (&[u8], &[u8]),
    data: &mut Data<'_>,
    tag: &Block,
) -> Result<usize, Error> {
    parts.ctr(counter(tag), data)?;
    let len = data.len();
    let plaintext = &mut data.output()[..len];
    // The right vector for a wrong ciphertext is half of a forgery.
    let right = Zeroizing::new(keys.s2v(parts, strings(aad, nonce), plaintext));
    if !bool::from(right.ct_eq(tag)) {
        plaintext.zeroize();
        return Err(Error::Authentication);
    }
    Ok(len)
}

/// The first counter: the vector without the top bits of its last two words (section 2.5).
fn counter(tag: &Block) -> u128 {
    u128::from_be_bytes(*tag) & !(1 << 63 | 1 << 31)
}

/// Times x in GF(2^128), most significant bit first (section 2.3).
fn doubled(block: &Block) -> Block {
    let number = u128::from_be_bytes(*block);
    ((number << 1) ^ ((number >> 127) * 0x87)).to_be_bytes()
}

fn add(sum: &mut Block, bytes: &[u8]) {
    for (to, from) in sum.iter_mut().zip(bytes) {
        *to ^= from;
    }
}

/// RFC 5297's examples, whose keys are of AES-128: each engine's tests run them through its own parts.
#[cfg(test)]
pub(crate) mod examples {
    /// Key, strings before the plaintext, plaintext, vector, ciphertext.
    pub(crate) type Example =
        (&'static str, &'static [&'static str], &'static str, &'static str, &'static str);

    /// Appendix A.1 and A.2.
    pub(crate) const EXAMPLES: [Example; 2] = [
        (
            "fffefdfcfbfaf9f8f7f6f5f4f3f2f1f0f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff",
            &["101112131415161718191a1b1c1d1e1f2021222324252627"],
            "112233445566778899aabbccddee",
            "85632d07c6e8f37f950acd320a2ecc93",
            "40c02b9690c4dc04daef7f6afe5c",
        ),
        (
            "7f7e7d7c7b7a79787776757473727170404142434445464748494a4b4c4d4e4f",
            &[
                "00112233445566778899aabbccddeeffdeaddadadeaddadaffeeddccbbaa99887766554433221100",
                "102030405060708090a0",
                "09f911029d74e35bd84156c5635688c0",
            ],
            "7468697320697320736f6d6520706c61696e7465787420746f20656e6372797074207573696e67205349562d414553",
            "7bdb6e3b432667eb06f4d14bff2fbd0f",
            "cb900f2fddbe404326601965c889bf17dba77ceb094fa663b7a3f748ba8af829ea64ad544a272e9c485b62a3fd5c0d",
        ),
    ];

    /// Bytes of hexadecimal digits.
    pub(crate) fn bytes(digits: &str) -> Vec<u8> {
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
    }

    /// Runs the examples through an engine's parts.
    pub(crate) fn agree<P: super::Parts>(make: impl Fn(&[u8]) -> (P, super::Subkeys)) {
        for (key, strings, plaintext, vector, ciphertext) in EXAMPLES {
            let (parts, keys) = make(&bytes(key));
            let (strings, mut data): (Vec<_>, _) =
                (strings.iter().map(|string| bytes(string)).collect(), bytes(plaintext));
            let got = keys.s2v(&parts, strings.iter().map(|string| &string[..]), &data);
            assert_eq!(got[..], bytes(vector));
            parts.ctr(super::counter(&got), &mut wattlock_core::Data::InPlace(&mut data)).unwrap();
            assert_eq!(data, bytes(ciphertext));
        }
    }
}
