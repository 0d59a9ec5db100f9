//! AES, bitsliced: several blocks side by side, one bit of every byte to a word.
//!
//! There is no table and no branch on data, so neither caches nor predictors learn anything. The S-box is Boyar and
//! Peralta's circuit of 115 gates ("A new combinational logic minimization technique with applications to
//! cryptology", eprint 2009/191); its inverse is the same circuit between two inverse affine maps. ShiftRows is never computed: as in fixslicing
//! (Adomnicai and Peyrin, eprint 2020/1123) the state stays put, MixColumns looks for its rows where the missing
//! rotations left them, and the round keys are rotated to match. What is left to do at the end depends only on the
//! number of rounds.
//!
//! *Layout.* Bit `i` of every state byte lies in `State[i]`. Within a 64-bit word, which holds four blocks, the byte
//! in row `r`, column `c` of block `b` has position `16 r + 4 c + b`: rows rotate the word, columns rotate its 16-bit
//! fields. Pairs of words, eight blocks, were tried in the hope of a target's baseline vectors: compilers kept them
//! apart, and spilling made it a tenth slower.
//!
//! This file refuses to know modes. Keys wipe themselves.

use wattlock_core::Error;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Bytes of a block.
pub const BLOCK: usize = 16;
/// Blocks done at the cost of one.
pub const WIDE: usize = 4;
/// Bytes done at the cost of one block.
pub const WIDE_BYTES: usize = WIDE * BLOCK;

const MAX_ROUND_KEYS: usize = 15;

type State = [u64; 8];

/// Row `r` takes what row `r + rows` held, column `c` what column `c + columns` held.
#[inline(always)]
fn turned(word: u64, rows: u32, columns: u32) -> u64 {
    let word = word.rotate_right(16 * rows);
    match columns {
        0 => word,
        _ => rotate_fields_right(word, 4 * columns),
    }
}

/// Rotates each 16-bit field right by `bits`, 0 < `bits` < 16.
#[inline(always)]
fn rotate_fields_right(word: u64, bits: u32) -> u64 {
    let low = (0xffff >> bits) * 0x0001_0001_0001_0001;
    (word >> bits & low) | (word << (16 - bits) & !low)
}

/// An expanded key: round keys in the layout of the round that adds them, the same for every block.
pub struct Aes {
    rounds: usize,
    keys: [State; MAX_ROUND_KEYS],
}

impl Drop for Aes {
    fn drop(&mut self) {
        self.keys.zeroize();
    }
}

impl ZeroizeOnDrop for Aes {}

impl Aes {
    /// Expands a key of 16, 24 or 32 bytes (FIPS 197 section 5.2).
    ///
    /// # Errors
    /// [`Error::Invalid`] for any other length.
    pub fn new(key: &[u8]) -> Result<Aes, Error> {
        let words = match key.len() {
            16 | 24 | 32 => key.len() / 4,
            _ => return Err(Error::Invalid("key length")),
        };
        let rounds = words + 6;
        let mut schedule = [0_u32; 4 * MAX_ROUND_KEYS];
        for (word, bytes) in schedule.iter_mut().zip(key.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        let mut constant = 1_u32;
        for i in words..4 * (rounds + 1) {
            let mut word = schedule[i - 1];
            if i % words == 0 {
                word = substitute_word(word.rotate_right(8)) ^ constant;
                constant = (constant << 1) ^ ((constant >> 7) * 0x11b);
            } else if words == 8 && i % words == 4 {
                word = substitute_word(word);
            }
            schedule[i] = schedule[i - words] ^ word;
        }
        let mut aes = Aes { rounds, keys: [[0; 8]; MAX_ROUND_KEYS] };
        for (round, key) in aes.keys.iter_mut().enumerate().take(rounds + 1) {
            *key = sliced_round_key(&schedule[4 * round..4 * round + 4], round as u32 % 4);
        }
        schedule.zeroize();
        Ok(aes)
    }

    /// Encrypts [`WIDE`] blocks.
    #[inline]
    pub fn encrypt_wide(&self, blocks: &mut [u8; WIDE_BYTES]) {
        let mut state = slice(blocks);
        self.encrypt_state(&mut state);
        unslice(&state, blocks);
    }

    /// Decrypts [`WIDE`] blocks.
    #[inline]
    pub fn decrypt_wide(&self, blocks: &mut [u8; WIDE_BYTES]) {
        let mut state = slice(blocks);
        self.decrypt_state(&mut state);
        unslice(&state, blocks);
    }

    /// Encrypts one block, at the cost of [`WIDE`].
    pub fn encrypt_block(&self, block: &mut [u8; BLOCK]) {
        let mut wide = [0; WIDE_BYTES];
        wide[..BLOCK].copy_from_slice(block);
        self.encrypt_wide(&mut wide);
        block.copy_from_slice(&wide[..BLOCK]);
        wide.zeroize();
    }

    fn encrypt_state(&self, state: &mut State) {
        add_round_key(state, &self.keys[0]);
        let mut round = 1;
        while round < self.rounds {
            substitute(state);
            match round % 4 {
                0 => mix_columns::<0>(state),
                1 => mix_columns::<1>(state),
                2 => mix_columns::<2>(state),
                _ => mix_columns::<3>(state),
            }
            add_round_key(state, &self.keys[round]);
            round += 1;
        }
        substitute(state);
        add_round_key(state, &self.keys[self.rounds]);
        settle_rows(state, self.rounds);
    }

    fn decrypt_state(&self, state: &mut State) {
        settle_rows(state, self.rounds);
        add_round_key(state, &self.keys[self.rounds]);
        substitute_inverse(state);
        for round in (1..self.rounds).rev() {
            add_round_key(state, &self.keys[round]);
            match round % 4 {
                0 => mix_columns_inverse::<0>(state),
                1 => mix_columns_inverse::<1>(state),
                2 => mix_columns_inverse::<2>(state),
                _ => mix_columns_inverse::<3>(state),
            }
            substitute_inverse(state);
        }
        add_round_key(state, &self.keys[0]);
    }
}

/// The rotations that `rounds` omitted ShiftRows still owe. 10 and 14 rounds owe two steps (rows 1 and 3 by half a
/// row, which undoes itself), 12 rounds owe none.
#[inline(always)]
fn settle_rows(state: &mut State, rounds: usize) {
    if rounds.is_multiple_of(4) {
        return;
    }
    const ODD_ROWS: u64 = 0xffff_0000_ffff_0000;
    for word in state {
        *word = (*word & !ODD_ROWS) | (rotate_fields_right(*word, 8) & ODD_ROWS);
    }
}

#[inline(always)]
fn add_round_key(state: &mut State, key: &State) {
    for (word, key) in state.iter_mut().zip(key) {
        *word ^= key;
    }
}

/// Multiplies every byte by x modulo x^8 + x^4 + x^3 + x + 1.
#[inline(always)]
fn times_x(t: &State) -> State {
    [t[7], t[0] ^ t[7], t[1], t[2] ^ t[7], t[3] ^ t[7], t[4], t[5], t[6]]
}

/// MixColumns on a state to which `SKIPPED` ShiftRows are owed: `2 a + 3 a' + a'' + a'''` is `2 (a + a') + a'` plus
/// the sum `a + a'` of two rows further down, and each row further down lies `SKIPPED` columns further right.
#[inline(always)]
fn mix_columns<const SKIPPED: u32>(state: &mut State) {
    let next = state.map(|word| turned(word, 1, SKIPPED));
    let sum: State = std::array::from_fn(|i| state[i] ^ next[i]);
    let double = times_x(&sum);
    for i in 0..8 {
        state[i] = double[i] ^ next[i] ^ turned(sum[i], 2, 2 * SKIPPED % 4);
    }
}

/// The inverse: its matrix is MixColumns' times the one that adds `4 (a + a'')` to `a`.
#[inline(always)]
fn mix_columns_inverse<const SKIPPED: u32>(state: &mut State) {
    let sum: State = std::array::from_fn(|i| state[i] ^ turned(state[i], 2, 2 * SKIPPED % 4));
    let quadruple = times_x(&times_x(&sum));
    for i in 0..8 {
        state[i] ^= quadruple[i];
    }
    mix_columns::<SKIPPED>(state);
}

/// SubBytes: the 115-gate circuit, with its authors' names for the wires; x0 and s0 are the most significant bits.
#[inline(always)]
fn substitute(state: &mut State) {
    let [x7, x6, x5, x4, x3, x2, x1, x0] = *state;

    let y14 = x3 ^ x5;
    let y13 = x0 ^ x6;
    let y9 = x0 ^ x3;
    let y8 = x0 ^ x5;
    let t0 = x1 ^ x2;
    let y1 = t0 ^ x7;
    let y4 = y1 ^ x3;
    let y12 = y13 ^ y14;
    let y2 = y1 ^ x0;
    let y5 = y1 ^ x6;
    let y3 = y5 ^ y8;
    let t1 = x4 ^ y12;
    let y15 = t1 ^ x5;
    let y20 = t1 ^ x1;
    let y6 = y15 ^ x7;
    let y10 = y15 ^ t0;
    let y11 = y20 ^ y9;
    let y7 = x7 ^ y11;
    let y17 = y10 ^ y11;
    let y19 = y10 ^ y8;
    let y16 = t0 ^ y11;
    let y21 = y13 ^ y16;
    let y18 = x0 ^ y16;

    let t2 = y12 & y15;
    let t4 = (y3 & y6) ^ t2;
    let t6 = (y4 & x7) ^ t2;
    let t7 = y13 & y16;
    let t9 = (y5 & y1) ^ t7;
    let t11 = (y2 & y7) ^ t7;
    let t12 = y9 & y11;
    let t14 = (y14 & y17) ^ t12;
    let t16 = (y8 & y10) ^ t12;
    let t21 = t4 ^ t14 ^ y20;
    let t22 = t6 ^ t16 ^ y19;
    let t23 = t9 ^ t14 ^ y21;
    let t24 = t11 ^ t16 ^ y18;
    let t25 = t21 ^ t22;
    let t26 = t21 & t23;
    let t27 = t24 ^ t26;
    let t29 = (t25 & t27) ^ t22;
    let t30 = t23 ^ t24;
    let t31 = t22 ^ t26;
    let t33 = (t31 & t30) ^ t24;
    let t36 = t24 & (t27 ^ t33);
    let t37 = t36 ^ t23 ^ t33;
    let t38 = t27 ^ t36;
    let t40 = t25 ^ (t29 & t38);
    let t41 = t40 ^ t37;
    let t42 = t29 ^ t33;
    let t43 = t29 ^ t40;
    let t44 = t33 ^ t37;
    let t45 = t42 ^ t41;

    let z0 = t44 & y15;
    let z1 = t37 & y6;
    let z2 = t33 & x7;
    let z3 = t43 & y16;
    let z4 = t40 & y1;
    let z5 = t29 & y7;
    let z6 = t42 & y11;
    let z7 = t45 & y17;
    let z8 = t41 & y10;
    let z9 = t44 & y12;
    let z10 = t37 & y3;
    let z11 = t33 & y4;
    let z12 = t43 & y13;
    let z13 = t40 & y5;
    let z14 = t29 & y2;
    let z15 = t42 & y9;
    let z16 = t45 & y14;
    let z17 = t41 & y8;

    let t46 = z15 ^ z16;
    let t47 = z10 ^ z11;
    let t48 = z5 ^ z13;
    let t49 = z9 ^ z10;
    let t50 = z2 ^ z12;
    let t51 = z2 ^ z5;
    let t52 = z7 ^ z8;
    let t53 = z0 ^ z3;
    let t54 = z6 ^ z7;
    let t55 = z16 ^ z17;
    let t56 = z12 ^ t48;
    let t57 = t50 ^ t53;
    let t58 = z4 ^ t46;
    let t59 = z3 ^ t54;
    let t60 = t46 ^ t57;
    let t61 = z14 ^ t57;
    let t62 = t52 ^ t58;
    let t63 = t49 ^ t58;
    let t64 = z4 ^ t59;
    let t65 = t61 ^ t62;
    let t66 = z1 ^ t63;
    let t67 = t64 ^ t65;
    let s0 = t59 ^ t63;
    let s3 = t53 ^ t66;
    let s1 = !(t64 ^ s3);
    let s2 = !(t55 ^ t67);
    let s4 = t51 ^ t66;
    let s5 = t47 ^ t65;
    let s6 = !(t56 ^ t62);
    let s7 = !(t48 ^ t60);
    *state = [s7, s6, s5, s4, s3, s2, s1, s0];
}

/// InvSubBytes. SubBytes is the affine map after inversion, so inversion is its inverse after SubBytes, and
/// InvSubBytes is inversion after the inverse affine map.
#[inline(always)]
fn substitute_inverse(state: &mut State) {
    affine_inverse(state);
    substitute(state);
    affine_inverse(state);
}

/// Inverse of the affine map of FIPS 197 section 5.1.1: bit `i` is the sum of bits `i + 2`, `i + 5` and `i + 7` of the
/// byte, plus bit `i` of 0x05.
#[inline(always)]
fn affine_inverse(state: &mut State) {
    let a = *state;
    *state = std::array::from_fn(|i| a[(i + 2) % 8] ^ a[(i + 5) % 8] ^ a[(i + 7) % 8]);
    state[0] = !state[0];
    state[2] = !state[2];
}

/// The S-box on the four bytes of a key-schedule word.
fn substitute_word(word: u32) -> u32 {
    let mut state: State = std::array::from_fn(|bit| u64::from(word >> bit & 0x0101_0101));
    substitute(&mut state);
    let mut out = 0;
    for (bit, word) in state.iter().enumerate() {
        out |= (*word as u32 & 0x0101_0101) << bit;
    }
    state.zeroize();
    out
}

/// A round key in the layout of a state to which `skipped` ShiftRows are owed: row `r` of it lies `r * skipped`
/// columns further right.
fn sliced_round_key(words: &[u32], skipped: u32) -> State {
    let mut out = [0; 8];
    for (column, word) in words.iter().enumerate() {
        for row in 0..4_u32 {
            let byte = word >> (8 * row);
            let position = 16 * row + 4 * ((column as u32 + row * skipped) % 4);
            for (bit, out) in out.iter_mut().enumerate() {
                *out |= (u64::from(byte >> bit & 1) * 0b1111) << position;
            }
        }
    }
    out
}

/// Spreads four bytes over the even bytes of a word.
#[inline(always)]
fn spread(word: u32) -> u64 {
    let word = u64::from(word);
    let word = (word | word << 16) & 0x0000_ffff_0000_ffff;
    (word | word << 8) & 0x00ff_00ff_00ff_00ff
}

/// Undoes [`spread`], whatever the odd bytes hold.
#[inline(always)]
fn gather(word: u64) -> u32 {
    let word = word & 0x00ff_00ff_00ff_00ff;
    let word = (word | word >> 8) & 0x0000_ffff_0000_ffff;
    (word | word >> 16) as u32
}

/// Transposes eight by eight bits, eight times: bit `8 k + j` of word `i` trades places with bit `8 k + i` of word `j`.
#[inline(always)]
fn transpose(w: &mut [u64; 8]) {
    #[inline(always)]
    fn swap(w: &mut [u64; 8], low: usize, high: usize, shift: u32, mask: u64) {
        let difference = (w[low] >> shift ^ w[high]) & mask;
        w[high] ^= difference;
        w[low] ^= difference << shift;
    }
    for i in [0, 2, 4, 6] {
        swap(w, i, i + 1, 1, 0x5555_5555_5555_5555);
    }
    for i in [0, 1, 4, 5] {
        swap(w, i, i + 2, 2, 0x3333_3333_3333_3333);
    }
    for i in [0, 1, 2, 3] {
        swap(w, i, i + 4, 4, 0x0f0f_0f0f_0f0f_0f0f);
    }
}

/// Blocks into slices. The transposition makes the number of a word the low three bits of a position: word
/// `4 (c mod 2) + b` therefore gets the bytes of columns `c` and `c + 2` of block `b`, alternating.
#[inline(always)]
fn slice(blocks: &[u8; WIDE_BYTES]) -> State {
    let mut words = [0; 8];
    for (b, block) in blocks.chunks_exact(BLOCK).enumerate() {
        let column = |c: usize| {
            u32::from_le_bytes([block[4 * c], block[4 * c + 1], block[4 * c + 2], block[4 * c + 3]])
        };
        words[b] = spread(column(0)) | spread(column(2)) << 8;
        words[4 + b] = spread(column(1)) | spread(column(3)) << 8;
    }
    transpose(&mut words);
    words
}

/// Slices back into blocks.
#[inline(always)]
fn unslice(state: &State, blocks: &mut [u8; WIDE_BYTES]) {
    let mut words = *state;
    transpose(&mut words);
    for (b, block) in blocks.chunks_exact_mut(BLOCK).enumerate() {
        let (even, odd) = (words[b], words[4 + b]);
        let columns = [gather(even), gather(odd), gather(even >> 8), gather(odd >> 8)];
        for (bytes, column) in block.chunks_exact_mut(4).zip(columns) {
            bytes.copy_from_slice(&column.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The S-box by definition (FIPS 197 section 5.1.1): the inverse in GF(2^8), then the affine map.
    fn defined_sbox(x: u8) -> u8 {
        let times = |mut a: u8, mut b: u8| {
            let mut product = 0;
            while b != 0 {
                product ^= a * (b & 1);
                a = (a << 1) ^ (0x1b * (a >> 7));
                b >>= 1;
            }
            product
        };
        let inverse = (0..=255).find(|&y| times(x, y) == 1).unwrap_or(0);
        (0..5).fold(0x63, |sum, turn| sum ^ inverse.rotate_left(turn))
    }

    fn sliced_byte(byte: u8) -> State {
        std::array::from_fn(|i| u64::from(byte >> i & 1) * u64::MAX)
    }

    #[test]
    fn circuit_is_the_sbox_and_its_inverse_on_every_byte() {
        for byte in 0..=255 {
            let mut state = sliced_byte(byte);
            substitute(&mut state);
            assert_eq!(state, sliced_byte(defined_sbox(byte)), "{byte:#x}");
            substitute_inverse(&mut state);
            assert_eq!(state, sliced_byte(byte), "{byte:#x}");
        }
    }

    #[test]
    fn slicing_is_undone_by_unslicing() {
        let blocks: [u8; WIDE_BYTES] = std::array::from_fn(|i| (i * 37 + i / 7) as u8);
        let mut back = [0; WIDE_BYTES];
        unslice(&slice(&blocks), &mut back);
        assert_eq!(back, blocks);
    }

    /// FIPS 197 appendix C: one block under each key size, both ways, in every position.
    #[test]
    fn fips_197_examples_hold_in_every_position() {
        let plain: [u8; 16] = std::array::from_fn(|i| 0x11 * i as u8);
        let key: [u8; 32] = std::array::from_fn(|i| i as u8);
        let wanted: [(usize, u128); 3] = [
            (16, 0x69c4e0d86a7b0430d8cdb78070b4c55a),
            (24, 0xdda97ca4864cdfe06eaf70a0ec0d7191),
            (32, 0x8ea2b7ca516745bfeafc49904b496089),
        ];
        for (len, cipher) in wanted {
            let aes = Aes::new(&key[..len]).unwrap();
            let mut blocks = [0; WIDE_BYTES];
            blocks.chunks_exact_mut(16).for_each(|block| block.copy_from_slice(&plain));
            aes.encrypt_wide(&mut blocks);
            assert!(blocks.chunks_exact(16).all(|block| block == cipher.to_be_bytes()), "{len}");
            aes.decrypt_wide(&mut blocks);
            assert!(blocks.chunks_exact(16).all(|block| block == plain), "{len}");
        }
        assert!(Aes::new(&key[..17]).is_err());
    }
}
