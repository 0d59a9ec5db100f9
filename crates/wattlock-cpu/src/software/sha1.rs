//! SHA-1 (FIPS 180-4 section 6.1), for protocols that still carry it.

use zeroize::Zeroize;

use super::hash::Core;

/// SHA-1's state.
#[derive(Clone, Copy, Zeroize)]
pub struct Sha1([u32; 5]);

impl Core for Sha1 {
    const BLOCK: usize = 64;
    const OUT: usize = 20;
    const LENGTH: usize = 8;
    const INITIAL: Sha1 = Sha1([0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0]);

    fn compress(&mut self, block: &[u8]) {
        let mut w = [0; 16];
        for (word, bytes) in w.iter_mut().zip(block.chunks_exact(4)) {
            *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        let mut state = self.0;
        rounds::<0>(&mut state, &mut w, 0x5a82_7999, |b, c, d| d ^ (b & (c ^ d)));
        rounds::<20>(&mut state, &mut w, 0x6ed9_eba1, |b, c, d| b ^ c ^ d);
        rounds::<40>(&mut state, &mut w, 0x8f1b_bcdc, |b, c, d| (b & c) | (d & (b | c)));
        rounds::<60>(&mut state, &mut w, 0xca62_c1d6, |b, c, d| b ^ c ^ d);
        for (old, new) in self.0.iter_mut().zip(state) {
            *old = old.wrapping_add(new);
        }
    }

    fn write(&self, out: &mut [u8]) {
        for (bytes, word) in out.chunks_mut(4).zip(self.0) {
            bytes.copy_from_slice(&word.to_be_bytes()[..bytes.len()]);
        }
    }
}

/// Twenty rounds from round `FROM` on. `w` is the last sixteen words of the message schedule.
#[inline(always)]
fn rounds<const FROM: usize>(
    state: &mut [u32; 5],
    w: &mut [u32; 16],
    constant: u32,
    f: impl Fn(u32, u32, u32) -> u32,
) {
    let [mut a, mut b, mut c, mut d, mut e] = *state;
    for i in FROM..FROM + 20 {
        if i >= 16 {
            w[i % 16] = (w[(i + 13) % 16] ^ w[(i + 8) % 16] ^ w[(i + 2) % 16] ^ w[i % 16]).rotate_left(1);
        }
        let next = a
            .rotate_left(5)
            .wrapping_add(f(b, c, d))
            .wrapping_add(e)
            .wrapping_add(constant)
            .wrapping_add(w[i % 16]);
        (a, b, c, d, e) = (next, a, b.rotate_left(30), c, d);
    }
    *state = [a, b, c, d, e];
}
