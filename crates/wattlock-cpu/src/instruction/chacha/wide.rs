//! ChaCha20-Poly1305 by our own kernels.
//!
//! A key holds the witness it was made with; calling its kernels is therefore sound wherever the key goes. Sealing
//! hashes what it has just written. Opening hashes everything first: it writes nothing that
//! was not verified, and pays for that with a second reading.
#![allow(unsafe_code, reason = "calls kernels on the pointers of a Span; the key holds the witness")]

use subtle::ConstantTimeEq;
use wattlock_core::Error;
use zeroize::{Zeroize, Zeroizing};

use super::super::span::Span;
use super::poly512::Hash;
use super::stream512::{self, BLOCK, Buffer, STEP, State};
use super::{NONCE, TAG};
use crate::detect::{Cpu, Ifma512};

/// Bytes encrypted before they are hashed. One step: while its blocks are transposed, which only one of the two vector
/// ports can do, the other multiplies. Four steps were a tenth slower.
const PIECE: usize = STEP;

/// An expanded key. Wipes itself.
pub(in super::super) struct Key {
    proof: Ifma512,
    words: Zeroizing<[u32; 8]>,
}

impl Key {
    pub(super) fn available(cpu: &Cpu) -> bool {
        cpu.ifma512.is_some()
    }

    /// A key, if the CPU can use it.
    pub(super) fn new(cpu: &Cpu, key: &[u8; 32]) -> Option<Key> {
        let proof = cpu.ifma512?;
        let (words, _) = key.as_chunks::<4>();
        let words = Zeroizing::new(std::array::from_fn(|i| u32::from_le_bytes(words[i])));
        Some(Key { proof, words })
    }

    #[inline]
    pub(super) fn seal(&self, nonce: &[u8; NONCE], aad: &[u8], data: Span<'_>) -> [u8; TAG] {
        let Ifma512 { .. } = self.proof;
        // SAFETY: the witness proves the instructions.
        unsafe { seal(&self.words, nonce, aad, data) }
    }

    #[inline]
    pub(super) fn open(
        &self,
        nonce: &[u8; NONCE],
        aad: &[u8],
        data: Span<'_>,
        tag: &[u8; TAG],
    ) -> Result<(), Error> {
        let Ifma512 { .. } = self.proof;
        // SAFETY: the witness proves the instructions.
        unsafe { open(&self.words, nonce, aad, data, tag) }
    }
}

/// What a key and a nonce come to: the first blocks, of which number 0 is the hash's key, and how to make the others.
/// Wipes itself.
struct Stream {
    state: State,
    first: Buffer,
    made: usize,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.state.zeroize();
        self.first.wipe();
    }
}

impl Stream {
    /// With no more first blocks than a message of `len` bytes has use for.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    fn new(key: &[u32; 8], nonce: &[u8; NONCE], len: usize) -> Stream {
        let mut stream = Stream { state: stream512::state(key, nonce), first: Buffer([0; STEP]), made: 0 };
        stream.made = stream512::fill(&mut stream.state, &mut stream.first, STEP.min(BLOCK + len.min(STEP)));
        stream
    }

    fn hash_key(&self) -> &[u8; 32] {
        self.first.0.first_chunk().unwrap_or(&[0; 32])
    }

    /// Adds what is left of the first blocks to the beginning of a message; returns how far they reached.
    ///
    /// # Safety
    /// `len` bytes must be readable at `from` and writable at `to`, equal or disjoint.
    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    unsafe fn begin(&self, from: *const u8, to: *mut u8, len: usize) -> usize {
        let len = len.min(self.made - BLOCK);
        // SAFETY: no more than the caller's bytes.
        unsafe { stream512::add(&self.first.0[BLOCK..], from, to, len) };
        len
    }

    /// Adds the next stretch of the stream to `len` bytes, and leaves off in a block only if `len` does.
    ///
    /// # Safety
    /// As [`Stream::begin`].
    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    unsafe fn go_on(&mut self, from: *const u8, to: *mut u8, len: usize) {
        let whole = len - len % STEP;
        // SAFETY: no more than the caller's bytes.
        unsafe {
            for at in (0..whole).step_by(STEP) {
                stream512::sixteen::<true>(&mut self.state, from.add(at), to.add(at));
            }
            if whole < len {
                stream512::fill(&mut self.state, &mut self.first, len - whole);
                stream512::add(&self.first.0, from.add(whole), to.add(whole), len - whole);
            }
        }
    }
}

/// # Safety
/// The instructions must be there.
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
unsafe fn seal(key: &[u32; 8], nonce: &[u8; NONCE], aad: &[u8], data: Span<'_>) -> [u8; TAG] {
    let (from, to, len) = (data.from(), data.to(), data.len());
    let mut stream = Stream::new(key, nonce, len);
    let mut hash = Hash::new(stream.hash_key(), aad, len);
    // SAFETY: the span's sides are valid for `len` bytes, equal or disjoint; `ready` never exceeds it, and the hash
    // reads what was written.
    unsafe {
        let mut ready = stream.begin(from, to, len);
        let mut done = 0;
        while ready < len {
            let piece = PIECE.min(len - ready);
            stream.go_on(from.add(ready), to.add(ready), piece);
            ready += piece;
            done = hash.take(to, done, ready, len);
        }
        hash.finish(to, done, len, aad.len())
    }
}

/// # Safety
/// The instructions must be there.
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
unsafe fn open(
    key: &[u32; 8],
    nonce: &[u8; NONCE],
    aad: &[u8],
    data: Span<'_>,
    tag: &[u8; TAG],
) -> Result<(), Error> {
    let (from, to, len) = (data.from(), data.to(), data.len());
    let mut stream = Stream::new(key, nonce, len);
    let mut hash = Hash::new(stream.hash_key(), aad, len);
    // SAFETY: as in `seal`; here the hash reads the input.
    unsafe {
        // The right tag for a wrong ciphertext is a forgery ready to use.
        let right = Zeroizing::new(hash.finish(from, 0, len, aad.len()));
        if !bool::from(right.ct_eq(tag)) {
            to.write_bytes(0, len);
            return Err(Error::Authentication);
        }
        let begun = stream.begin(from, to, len);
        stream.go_on(from.add(begun), to.add(begun), len - begun);
    }
    Ok(())
}
