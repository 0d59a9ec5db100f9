//! ChaCha20-Poly1305 by our own kernels.
//!
//! A key holds the witness it was made with; calling its kernels is therefore sound wherever the key goes. Sealing
//! hashes what it has just written. Opening hashes everything first: it writes nothing that
//! was not verified, and pays for that with a second reading.
#![allow(unsafe_code, reason = "calls kernels on the pointers of a Span; the key holds the witness")]

use subtle::ConstantTimeEq;
use wattlock_core::Error;
use zeroize::Zeroizing;

use super::super::span::Span;
use super::poly512::Hash;
use super::state::{BLOCK, State};
use super::stream512::{self, Buffer, STEP};
use super::{NONCE, TAG};
use crate::detect::{Cpu, Ifma512};

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

/// What a key and a nonce come to, a stretch at a time. Wipes itself.
struct Stream {
    state: State,
    buffer: Buffer,
    /// Where the unused part of the buffer begins and ends.
    used: usize,
    made: usize,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.buffer.wipe();
    }
}

impl Stream {
    /// Begun, with block 0, which is the hash's key, and no more others than a message of `len` bytes has use for.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    fn new(key: &[u32; 8], nonce: &[u8; NONCE], len: usize) -> Stream {
        let mut stream = Stream { state: State::new(key, nonce), buffer: Buffer::EMPTY, used: 0, made: 0 };
        stream.refill(BLOCK + len.min(STEP));
        stream.used = BLOCK;
        stream
    }

    fn hash_key(&self) -> &[u8; 32] {
        self.buffer.0.first_chunk().unwrap_or(&[0; 32])
    }

    /// Makes the next stretch, as much as `len` bytes have use for and the buffer has room for.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    fn refill(&mut self, len: usize) {
        self.made = stream512::fill(&mut self.state, &mut self.buffer, len.min(STEP));
        self.used = 0;
    }

    /// Adds what was made to as many of `len` bytes as it reaches, and returns how many that were.
    ///
    /// # Safety
    /// `len` bytes must be readable at `from` and writable at `to`, equal or disjoint.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    unsafe fn add(&mut self, from: *const u8, to: *mut u8, len: usize) -> usize {
        let len = len.min(self.made - self.used);
        // SAFETY: no more than the caller's bytes.
        unsafe { stream512::add(&self.buffer.0[self.used..self.made], from, to, len) };
        self.used += len;
        len
    }
}

/// # Safety
/// The instructions must be there.
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
unsafe fn seal(key: &[u32; 8], nonce: &[u8; NONCE], aad: &[u8], data: Span<'_>) -> [u8; TAG] {
    let (from, to, len) = (data.from(), data.to(), data.len());
    let mut stream = Stream::new(key, nonce, len);
    let mut hash = Hash::new(stream.hash_key(), aad, len);
    let (mut ready, mut done) = (0, 0);
    // SAFETY: the span's sides are valid for `len` bytes, equal or disjoint; `ready` never exceeds it, and the hash
    // reads what was written.
    unsafe {
        loop {
            ready += stream.add(from.add(ready), to.add(ready), len - ready);
            if ready == len {
                return hash.finish(to, done, len, aad.len());
            }
            // The hash is between the two, so that each finds written what it reads.
            stream.refill(len - ready);
            done = hash.take(to, done, ready, len);
        }
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
        let mut done = stream.add(from, to, len);
        while done < len {
            stream.refill(len - done);
            done += stream.add(from.add(done), to.add(done), len - done);
        }
    }
    Ok(())
}
