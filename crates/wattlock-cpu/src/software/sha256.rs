//! SHA-256 (FIPS 180-4 section 6.2).

use zeroize::Zeroize;

use super::hash::Core;

/// Fractional parts of the cube roots of the first 64 primes.
#[rustfmt::skip]
pub const K: [u32; 64] = [
    0x428a_2f98, 0x7137_4491, 0xb5c0_fbcf, 0xe9b5_dba5, 0x3956_c25b, 0x59f1_11f1, 0x923f_82a4, 0xab1c_5ed5,
    0xd807_aa98, 0x1283_5b01, 0x2431_85be, 0x550c_7dc3, 0x72be_5d74, 0x80de_b1fe, 0x9bdc_06a7, 0xc19b_f174,
    0xe49b_69c1, 0xefbe_4786, 0x0fc1_9dc6, 0x240c_a1cc, 0x2de9_2c6f, 0x4a74_84aa, 0x5cb0_a9dc, 0x76f9_88da,
    0x983e_5152, 0xa831_c66d, 0xb003_27c8, 0xbf59_7fc7, 0xc6e0_0bf3, 0xd5a7_9147, 0x06ca_6351, 0x1429_2967,
    0x27b7_0a85, 0x2e1b_2138, 0x4d2c_6dfc, 0x5338_0d13, 0x650a_7354, 0x766a_0abb, 0x81c2_c92e, 0x9272_2c85,
    0xa2bf_e8a1, 0xa81a_664b, 0xc24b_8b70, 0xc76c_51a3, 0xd192_e819, 0xd699_0624, 0xf40e_3585, 0x106a_a070,
    0x19a4_c116, 0x1e37_6c08, 0x2748_774c, 0x34b0_bcb5, 0x391c_0cb3, 0x4ed8_aa4a, 0x5b9c_ca4f, 0x682e_6ff3,
    0x748f_82ee, 0x78a5_636f, 0x84c8_7814, 0x8cc7_0208, 0x90be_fffa, 0xa450_6ceb, 0xbef9_a3f7, 0xc671_78f2,
];

/// SHA-256's state.
#[derive(Clone, Copy, Zeroize)]
pub struct Sha256([u32; 8]);

impl Core for Sha256 {
    const BLOCK: usize = 64;
    const OUT: usize = 32;
    const LENGTH: usize = 8;
    /// Fractional parts of the square roots of the first eight primes.
    #[rustfmt::skip]
    const INITIAL: Sha256 = Sha256([
        0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19,
    ]);

    fn compress(&mut self, block: &[u8]) {
        let mut w = [0; 16];
        for (word, bytes) in w.iter_mut().zip(block.chunks_exact(4)) {
            *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = self.0;
        for (sixteen, constants) in K.chunks_exact(16).enumerate() {
            if sixteen > 0 {
                extend(&mut w);
            }
            for (word, constant) in w.iter().zip(constants) {
                let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
                let choice = g ^ (e & (f ^ g));
                let t1 = h.wrapping_add(s1).wrapping_add(choice).wrapping_add(*constant).wrapping_add(*word);
                let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
                let majority = (a & b) | (c & (a | b));
                let t2 = s0.wrapping_add(majority);
                (h, g, f, e, d, c, b, a) = (g, f, e, d.wrapping_add(t1), c, b, a, t1.wrapping_add(t2));
            }
        }
        for (old, new) in self.0.iter_mut().zip([a, b, c, d, e, f, g, h]) {
            *old = old.wrapping_add(new);
        }
    }

    fn write(&self, out: &mut [u8]) {
        for (bytes, word) in out.chunks_mut(4).zip(self.0) {
            bytes.copy_from_slice(&word.to_be_bytes()[..bytes.len()]);
        }
    }
}

/// The next sixteen words of the message schedule in place of the last sixteen.
#[inline(always)]
fn extend(w: &mut [u32; 16]) {
    for i in 0..16 {
        let (x, y) = (w[(i + 1) % 16], w[(i + 14) % 16]);
        let s0 = x.rotate_right(7) ^ x.rotate_right(18) ^ x >> 3;
        let s1 = y.rotate_right(17) ^ y.rotate_right(19) ^ y >> 10;
        w[i] = w[i].wrapping_add(s0).wrapping_add(w[(i + 9) % 16]).wrapping_add(s1);
    }
}
