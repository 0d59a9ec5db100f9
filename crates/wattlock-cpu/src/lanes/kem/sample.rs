//! What hashing gives ML-KEM, eight states at a time (FIPS 203 section 4.1): digests, noise and the public matrix.
//!
//! A state has a lane. Lanes are filled with jobs of any of the batch's requests, so that few requests leave few idle: a
//! request alone has nine polynomials of the matrix to sample.
//!
//! The matrix is the one thing here that decides how long something takes. It is public: so is the seed that it is made of.

use super::LANES;
use crate::lanes::keccak::{State, WORDS};
use crate::lanes::vector::shorts::{BYTES, Poly, SHORTS, Shorts};

/// The last bit of padding, at the end of a block.
const LAST: u64 = 1 << 63;

/// 32 bytes of each lane, as words.
pub type Four<V> = [V; 4];

/// Blocks of SHA3-256 and SHAKE256.
const BLOCK: usize = 136;

/// An encapsulation key with its padding, or a ciphertext behind 32 bytes with its own: both nine blocks.
pub const MESSAGE: usize = 9 * BLOCK;

/// Bytes of a lane's message, so that whole vectors can be read.
pub type Message = [u8; MESSAGE + BYTES];

/// Secret bytes of each lane, 32 from each.
#[inline(always)]
pub fn columns<V: Shorts>(rows: &[&[u8]; LANES]) -> Four<V> {
    let mut vectors = [V::splat(0); 8];
    for (vector, row) in vectors.iter_mut().zip(rows) {
        *vector = V::secret(&beginning(row));
    }
    let [a, b, c, d, ..] = V::transpose(&vectors);
    [a, b, c, d]
}

/// The same of bytes that anybody knows.
#[inline(always)]
pub fn public_columns<V: Shorts>(rows: &[&[u8]; LANES]) -> Four<V> {
    let mut vectors = [V::splat(0); 8];
    for (vector, row) in vectors.iter_mut().zip(rows) {
        *vector = V::public(&beginning(row));
    }
    let [a, b, c, d, ..] = V::transpose(&vectors);
    [a, b, c, d]
}

/// 32 bytes, if there are as many, and zeros.
#[inline(always)]
fn beginning(row: &[u8]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    copy::<32>(&mut bytes, row);
    bytes
}

/// Copies `N` bytes, if there are as many on both sides.
#[inline(always)]
pub fn copy<const N: usize>(to: &mut [u8], from: &[u8]) {
    if let (Some(to), Some(from)) = (to.first_chunk_mut::<N>(), from.first_chunk::<N>()) {
        *to = *from;
    }
}

/// The way back: each lane's 32 bytes at the beginning of a vector.
#[inline(always)]
pub fn rows<V: Shorts>([a, b, c, d]: &Four<V>) -> [V; 8] {
    let zero = V::splat(0);
    V::transpose(&[*a, *b, *c, *d, zero, zero, zero, zero])
}

#[inline(always)]
fn state<V: Shorts, const N: usize>(begin: [V; N]) -> State<V> {
    let mut state = [V::splat(0); WORDS];
    for (word, begin) in state.iter_mut().zip(begin) {
        *word = begin;
    }
    state
}

/// SHA3-512 of two times 32 bytes: its two halves.
#[inline(always)]
pub fn g<V: Shorts>([a, b, c, d]: &Four<V>, [e, f, g, h]: &Four<V>, count: usize) -> (Four<V>, Four<V>) {
    split(state([*a, *b, *c, *d, *e, *f, *g, *h, V::splat(0x06 | LAST)]), count)
}

/// SHA3-512 of 32 bytes and the number of polynomials in a vector, 3.
#[inline(always)]
pub fn g_of_seed<V: Shorts>([a, b, c, d]: &Four<V>, count: usize) -> (Four<V>, Four<V>) {
    let zero = V::splat(0);
    split(state([*a, *b, *c, *d, V::splat(0x06_03), zero, zero, zero, V::splat(LAST)]), count)
}

#[inline(always)]
fn split<V: Shorts>(mut state: State<V>, count: usize) -> (Four<V>, Four<V>) {
    V::keccak(&mut state, count);
    let [a, b, c, d, e, f, g, h, ..] = state;
    ([a, b, c, d], [e, f, g, h])
}

/// SHA3-256, or the first 32 bytes of SHAKE256, of padded messages.
#[inline(always)]
pub fn digest<V: Shorts>(messages: &[Message; LANES], count: usize) -> Four<V> {
    let mut state = [V::splat(0); WORDS];
    for at in (0..MESSAGE).step_by(BLOCK) {
        for first in [0, 8, 16] {
            let mut words = [V::splat(0); 8];
            for (row, message) in words.iter_mut().zip(messages) {
                if let Some(bytes) = message[at + 8 * first..].first_chunk() {
                    *row = V::secret(bytes);
                }
            }
            let columns = V::transpose(&words);
            for (word, column) in state[first..17.min(first + 8)].iter_mut().zip(columns) {
                *word = word.xor(column);
            }
        }
        V::keccak(&mut state, count);
    }
    [state[0], state[1], state[2], state[3]]
}

/// Puts padding behind a message's `len` bytes: of SHA-3 with a first byte of 6, of SHAKE with 0x1f.
pub fn pad(message: &mut Message, len: usize, first: u8) {
    message[len..].fill(0);
    message[len] = first;
    message[MESSAGE - 1] |= 0x80;
}

/// `len` words of each state, at most eight, as the beginning of a vector of each lane.
#[inline(always)]
fn squeezed<V: Shorts>(state: &State<V>, at: usize, len: usize) -> [V; 8] {
    let mut words = [V::splat(0); 8];
    for (word, from) in words.iter_mut().zip(&state[at..at + len]) {
        *word = *from;
    }
    V::transpose(&words)
}

/// Random bits for noise (FIPS 203 section 4.1, PRF with eta 2), numbers 0 to `of - 1` for each of `count` seeds.
#[inline(always)]
pub fn noise<V: Shorts, const N: usize>(
    seeds: &Four<V>,
    count: usize,
    of: usize,
    random: &mut [[[V; 2]; N]; LANES],
) {
    let jobs = count * of;
    for from in (0..jobs).step_by(LANES) {
        let (mut lanes, mut fifth) = ([0; LANES], [0; BYTES]);
        for (at, word) in fifth.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            // What is beyond the last job repeats it.
            let job = (from + at).min(jobs - 1);
            (lanes[at], *word) = (job / of, ((job % of) as u64 | 0x1f << 8).to_le_bytes());
        }
        let mut state = arranged(seeds, &lanes, &fifth);
        state[16] = V::splat(LAST);
        V::keccak(&mut state, jobs - from);
        let (first, second) = (squeezed(&state, 0, 8), squeezed(&state, 8, 8));
        for lane in 0..LANES.min(jobs - from) {
            let job = from + lane;
            random[job / of][job % of] = [first[lane], second[lane]];
        }
    }
}

#[inline(always)]
fn arranged<V: Shorts>(seeds: &Four<V>, lanes: &[usize; LANES], fifth: &[u8; BYTES]) -> State<V> {
    let [a, b, c, d] = seeds;
    state([a.arrange(lanes), b.arrange(lanes), c.arrange(lanes), d.arrange(lanes), V::public(fifth)])
}

/// Bytes of a block of SHAKE128, and how many blocks nearly always suffice for a polynomial: of 336 numbers 81 in 100 are
/// taken.
const RATE: usize = 168;
const BLOCKS: usize = 3;

/// Eight polynomials on their way from public bytes.
pub struct Samples {
    bytes: [[u8; RATE * BLOCKS + BYTES]; LANES],
    numbers: [[i16; 256 + SHORTS]; LANES],
}

impl Samples {
    pub fn new() -> Samples {
        Samples { bytes: [[0; RATE * BLOCKS + BYTES]; LANES], numbers: [[0; 256 + SHORTS]; LANES] }
    }
}

impl Samples {
    /// Eight of `jobs` polynomials of public matrices, from job `from` on (FIPS 203 algorithm 7), below q: nine of each seed,
    /// row by row. A row of the transposed matrix is a column of the matrix.
    #[inline(always)]
    pub fn fill<V: Shorts>(&mut self, seeds: &Four<V>, from: usize, jobs: usize, transposed: bool) {
        let (mut lanes, mut fifth) = ([0; LANES], [0; BYTES]);
        for (at, word) in fifth.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            // What is beyond the last job repeats it.
            let job = (from + at).min(jobs - 1);
            let (row, column) = ((job / 3 % 3) as u64, (job % 3) as u64);
            let (first, second) = if transposed { (row, column) } else { (column, row) };
            (lanes[at], *word) = (job / 9, (first | second << 8 | 0x1f << 16).to_le_bytes());
        }
        let mut state = arranged(seeds, &lanes, &fifth);
        state[20] = V::splat(LAST);
        let (mut counts, mut blocks) = ([0; LANES], BLOCKS);
        let lanes = LANES.min(jobs - from);
        while counts[..lanes].iter().any(|count| *count < 256) {
            for block in 0..blocks {
                V::keccak(&mut state, jobs - from);
                squeeze(&state, &mut self.bytes, RATE * block);
            }
            for (lane, count) in counts.iter_mut().enumerate().take(lanes) {
                // Eight bytes more may be read, and are none of the block's.
                let bytes = &self.bytes[lane][..RATE * blocks + 8];
                *count = V::accept(bytes, &mut self.numbers[lane], *count);
            }
            blocks = 1;
        }
    }

    /// The polynomial of a lane.
    #[inline(always)]
    pub fn poly<V: Shorts>(&self, lane: usize) -> Poly<V> {
        poly(&self.numbers[lane])
    }
}

/// 21 words of each state to each lane's bytes from `at` on.
#[inline(always)]
fn squeeze<V: Shorts>(state: &State<V>, bytes: &mut [[u8; RATE * BLOCKS + BYTES]; LANES], at: usize) {
    for (first, len) in [(0, 8), (8, 8), (16, 5)] {
        let rows = squeezed(state, first, len);
        for (row, bytes) in rows.iter().zip(bytes.iter_mut()) {
            copy::<BYTES>(&mut bytes[at + 8 * first..], &row.reveal());
        }
    }
}

#[inline(always)]
fn poly<V: Shorts>(numbers: &[i16; 256 + SHORTS]) -> Poly<V> {
    let mut out = [V::splat(0); 8];
    for (vector, numbers) in out.iter_mut().zip(numbers.as_chunks::<SHORTS>().0) {
        *vector = V::row(numbers);
    }
    out
}
