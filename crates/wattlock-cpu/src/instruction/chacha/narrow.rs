//! ChaCha20-Poly1305 with 256-bit registers.
//!
//! As [`wide`](super::wide), but the hash runs beside the keystream, one block after another in plain registers. So opening
//! decrypts as it hashes, and wipes what it wrote where the tag is wrong.
#![allow(unsafe_code, reason = "calls kernels on the pointers of a Span; the key holds the witness")]

use subtle::ConstantTimeEq;
use wattlock_core::Error;
use zeroize::Zeroizing;

use super::super::span::Span;
use super::poly64::{self, Hash};
use super::state::{BLOCK, State};
use super::stream256::{self, Buffer, NOTHING, STEP};
use super::{NONCE, TAG};
use crate::detect::{Avx2, Cpu};

/// An expanded key. Wipes itself.
pub(in super::super) struct Key {
    proof: Avx2,
    words: Zeroizing<[u32; 8]>,
}

impl Key {
    pub(super) fn available(cpu: &Cpu) -> bool {
        cpu.avx2.is_some()
    }

    /// A key, if the CPU can use it.
    pub(super) fn new(cpu: &Cpu, key: &[u8; 32]) -> Option<Key> {
        let proof = cpu.avx2?;
        let (words, _) = key.as_chunks::<4>();
        let words = Zeroizing::new(std::array::from_fn(|i| u32::from_le_bytes(words[i])));
        Some(Key { proof, words })
    }

    #[inline]
    pub(super) fn seal(&self, nonce: &[u8; NONCE], aad: &[u8], data: Span<'_>) -> [u8; TAG] {
        let Avx2 { .. } = self.proof;
        // SAFETY: the witness proves the instructions.
        unsafe { crypt::<true>(&self.words, nonce, aad, &data) }
    }

    #[inline]
    pub(super) fn open(
        &self,
        nonce: &[u8; NONCE],
        aad: &[u8],
        data: Span<'_>,
        tag: &[u8; TAG],
    ) -> Result<(), Error> {
        let Avx2 { .. } = self.proof;
        // The right tag for a wrong ciphertext is a forgery ready to use.
        // SAFETY: the witness proves the instructions.
        let right = Zeroizing::new(unsafe { crypt::<false>(&self.words, nonce, aad, &data) });
        if bool::from(right.ct_eq(tag)) {
            return Ok(());
        }
        // SAFETY: the span's own bytes.
        unsafe { data.to().write_bytes(0, data.len()) };
        Err(Error::Authentication)
    }
}

/// Encrypts or decrypts, and gives the tag of the ciphertext.
///
/// # Safety
/// The instructions must be there.
#[target_feature(enable = "avx2,bmi2")]
unsafe fn crypt<const SEAL: bool>(
    key: &[u32; 8],
    nonce: &[u8; NONCE],
    aad: &[u8],
    data: &Span<'_>,
) -> [u8; TAG] {
    let (from, to, len) = (data.from(), data.to(), data.len());
    let mut state = State::new(key, nonce);
    let mut buffer = Buffer::EMPTY;
    let keystream = buffer.0.as_mut_ptr();
    // SAFETY: the span's sides are valid for `len` bytes, equal or disjoint; neither `ready` nor `hashed` passes `len`. The hash
    // reads what is ciphertext already (sealing: `hashed <= ready`) or still (opening: it is never behind).
    unsafe {
        let mut hash = Hash::new(&[0; 32], &[]);
        stream256::eight::<false>(&mut state, NOTHING.as_ptr(), keystream, &mut hash, from);
        // Block 0 is the hash's key (RFC 8439 section 2.6).
        hash = Hash::new(buffer.0.first_chunk().unwrap_or(&[0; 32]), aad);
        let mut tail = [0; poly64::BLOCK];
        let tail = &mut tail[..len % poly64::BLOCK];
        let whole = len - tail.len();
        if !SEAL {
            tail.copy_from_slice(std::slice::from_raw_parts(from.add(whole), tail.len()));
        }
        let text = if SEAL { to.cast_const() } else { from };
        let (mut ready, mut hashed, mut used) = (0, 0, BLOCK);
        loop {
            // What waits in the buffer, for the beginning and the end of the message.
            let step = (STEP - used).min(len - ready);
            if !SEAL {
                // What is about to be overwritten.
                let blocks = (ready + step - hashed) / poly64::BLOCK;
                hash.take(from.add(hashed), blocks);
                hashed += blocks * poly64::BLOCK;
            }
            stream256::add(&buffer.0[used..], from.add(ready), to.add(ready), step);
            ready += step;
            while len - ready >= STEP {
                let (from, to) = (from.add(ready), to.add(ready));
                if !SEAL || ready - hashed >= STEP {
                    stream256::eight::<true>(&mut state, from, to, &mut hash, text.add(hashed));
                    hashed += STEP;
                } else {
                    stream256::eight::<false>(&mut state, from, to, &mut hash, text);
                }
                ready += STEP;
            }
            if ready == len {
                break;
            }
            if SEAL && ready - hashed >= STEP {
                stream256::eight::<true>(
                    &mut state,
                    NOTHING.as_ptr(),
                    keystream,
                    &mut hash,
                    text.add(hashed),
                );
                hashed += STEP;
            } else {
                stream256::eight::<false>(&mut state, NOTHING.as_ptr(), keystream, &mut hash, text);
            }
            used = 0;
        }
        buffer.wipe();
        if SEAL {
            hash.take(to.add(hashed), (whole - hashed) / poly64::BLOCK);
            tail.copy_from_slice(std::slice::from_raw_parts(to.add(whole), tail.len()));
        }
        hash.finish(tail, aad.len(), len)
    }
}

#[cfg(test)]
mod tests {
    use wattlock_core::Data;

    use super::super::{AeadKey, Cipher};
    use super::*;

    /// Shorter messages than are sent here, too.
    #[test]
    fn every_length_is_sealed_as_aws_lc_does_and_opened_again() {
        let bytes = std::array::from_fn(|i| (i * 29) as u8);
        let Some(key) = Key::new(&Cpu::detect(), &bytes) else {
            println!("not tested: this CPU has no 256-bit integers");
            return;
        };
        let library = AeadKey::new(Cipher::ChaCha20Poly1305, &bytes).unwrap();
        let text: Vec<u8> = (0..3000u32).map(|i| (i * 11 + i / 239) as u8).collect();
        for len in (0..=1100).chain([1471, 1472, 1473, 1983, 1984, 1985, 2495, 2496, 2497, 3000]) {
            let (text, aad, nonce) = (&text[..len], &text[..len % 37], [len as u8; NONCE]);
            // One byte further, so that registers come from places without alignment.
            let (mut wanted, mut sealed, mut apart) = (text.to_vec(), vec![0; len + 1], vec![0; len + 1]);
            let mut tag = [0; TAG];
            library.seal(&nonce, aad, Span::in_place(&mut wanted), &mut tag).unwrap();
            sealed[1..].copy_from_slice(text);
            assert_eq!(key.seal(&nonce, aad, Span::in_place(&mut sealed[1..])), tag, "{len}");
            assert!(sealed[1..] == wanted, "{len}");
            let mut data = Data::Apart { from: text, to: &mut apart[1..] };
            assert_eq!(key.seal(&nonce, aad, Span::of(&mut data).unwrap()), tag, "{len}");
            assert!(apart[1..] == wanted, "{len} apart");
            let mut data = Data::Apart { from: &wanted, to: &mut apart[1..] };
            assert_eq!(key.open(&nonce, aad, Span::of(&mut data).unwrap(), &tag), Ok(()));
            assert!(apart[1..] == *text, "{len} opened apart");
            assert_eq!(key.open(&nonce, aad, Span::in_place(&mut sealed[1..]), &tag), Ok(()));
            assert!(sealed[1..] == *text, "{len} opened");
            tag[len % TAG] ^= 1;
            let outcome = key.open(&nonce, aad, Span::in_place(&mut wanted), &tag);
            assert_eq!(outcome, Err(Error::Authentication));
            assert!(wanted.iter().all(|byte| *byte == 0), "{len} wiped");
        }
    }
}
