//! ChaCha20-Poly1305 (RFC 8439): four ChaCha20 blocks side by side, which compilers turn into whatever vectors the
//! target always has, and the crate's plain [`Poly1305`].

use wattlock_core::Error;
use zeroize::{Zeroize, ZeroizeOnDrop};

use super::aead::{Aead, NONCE, TAG};
use super::ctr::add;
use crate::poly1305::Poly1305;

const LANES: usize = 4;
const BLOCK: usize = 64;
const WIDE_BYTES: usize = LANES * BLOCK;

type Row = [u32; LANES];

/// A key as the words ChaCha20 wants. Wipes itself.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct ChaCha20Poly1305 {
    key: [u32; 8],
}

/// Nonce words and the blocks with counters 0 to 3: block 0 holds the Poly1305 key, the others the first keystream.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct Start {
    nonce: [u32; 3],
    stream: [u8; WIDE_BYTES],
}

impl ChaCha20Poly1305 {
    /// Reads a key.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it has not 32 bytes.
    pub fn new(key: &[u8]) -> Result<ChaCha20Poly1305, Error> {
        let key: &[u8; 32] = key.try_into().map_err(|_| Error::Invalid("key length"))?;
        Ok(ChaCha20Poly1305 { key: words(key) })
    }

    /// Four blocks of keystream from `counter` on.
    fn keystream(&self, nonce: &[u32; 3], counter: u32, out: &mut [u8; WIDE_BYTES]) {
        // RFC 8439 section 2.3: "expand 32-byte k", key, counter, nonce.
        let mut start = [[0; LANES]; 16];
        let fixed = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];
        let known = fixed.into_iter().chain(self.key).chain([counter]).chain(*nonce);
        for (row, word) in start.iter_mut().zip(known) {
            *row = [word; LANES];
        }
        for (lane, word) in start[12].iter_mut().enumerate() {
            *word = word.wrapping_add(lane as u32);
        }
        let mut state = start;
        for _ in 0..10 {
            double_round(&mut state);
        }
        for (i, (row, start)) in state.iter().zip(&start).enumerate() {
            for (lane, (word, start)) in row.iter().zip(start).enumerate() {
                let at = BLOCK * lane + 4 * i;
                out[at..at + 4].copy_from_slice(&word.wrapping_add(*start).to_le_bytes());
            }
        }
    }
}

fn words<const BYTES: usize, const WORDS: usize>(bytes: &[u8; BYTES]) -> [u32; WORDS] {
    std::array::from_fn(|i| {
        u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
    })
}

#[inline(always)]
fn double_round(s: &mut [Row; 16]) {
    for (a, b, c, d) in [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)] {
        quarter_round(s, a, b, c, d);
    }
    for (a, b, c, d) in [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)] {
        quarter_round(s, a, b, c, d);
    }
}

/// RFC 8439 section 2.1, in every lane.
#[inline(always)]
fn quarter_round(s: &mut [Row; 16], a: usize, b: usize, c: usize, d: usize) {
    for (sum, other, mixed, turn) in [(a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)] {
        s[sum] = std::array::from_fn(|i| s[sum][i].wrapping_add(s[other][i]));
        s[mixed] = std::array::from_fn(|i| (s[mixed][i] ^ s[sum][i]).rotate_left(turn));
    }
}

impl Aead for ChaCha20Poly1305 {
    type Start = Start;

    fn start(&self, nonce: &[u8; NONCE]) -> Start {
        let mut start = Start { nonce: words(nonce), stream: [0; WIDE_BYTES] };
        self.keystream(&start.nonce, 0, &mut start.stream);
        start
    }

    fn apply(&self, start: &Start, data: &mut [u8]) {
        let (first, rest) = data.split_at_mut(data.len().min(WIDE_BYTES - BLOCK));
        add(first, &start.stream[BLOCK..]);
        let mut stream = [0; WIDE_BYTES];
        let mut counter = LANES as u32;
        for chunk in rest.chunks_mut(WIDE_BYTES) {
            self.keystream(&start.nonce, counter, &mut stream);
            add(chunk, &stream);
            counter = counter.wrapping_add(LANES as u32);
        }
        stream.zeroize();
    }

    fn tag(&self, start: &Start, aad: &[u8], ciphertext: &[u8]) -> [u8; TAG] {
        let mut key = [0; 32];
        key.copy_from_slice(&start.stream[..32]);
        let mut hash = Poly1305::new(&key);
        key.zeroize();
        hash.absorb(aad);
        hash.absorb(ciphertext);
        let mut lengths = [0; 16];
        lengths[..8].copy_from_slice(&(aad.len() as u64).to_le_bytes());
        lengths[8..].copy_from_slice(&(ciphertext.len() as u64).to_le_bytes());
        hash.absorb(&lengths);
        hash.finish()
    }
}
