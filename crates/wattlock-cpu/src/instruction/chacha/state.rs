//! ChaCha20's state: the block function's input (RFC 8439 section 2.3), the buffer that keystream waits in, and the order of
//! the twenty rounds.

use zeroize::{Zeroize, ZeroizeOnDrop};

/// Bytes of a block.
pub(super) const BLOCK: usize = 64;

/// RFC 8439 section 2.3: "expand 32-byte k".
const FIXED: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// The word that counts blocks.
pub(super) const COUNTER: usize = 12;

/// How far a stream has come. Wipes itself.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(super) struct State {
    /// The block function's input, the counter among them.
    pub(super) words: [u32; 16],
    /// The same as far into the first two rounds as words can be brought that do not depend on the counter: columns 1
    /// to 3 through the first round, and of column 0 and of two diagonals what their quarter rounds begin with. It
    /// saves 41 of 960 steps.
    pub(super) early: [u32; 16],
}

impl State {
    /// A stream at block 0.
    pub(super) fn new(key: &[u32; 8], nonce: &[u8; 12]) -> State {
        let (nonce, _) = nonce.as_chunks::<4>();
        let mut words = [0; 16];
        words[..4].copy_from_slice(&FIXED);
        words[4..12].copy_from_slice(key);
        for (word, bytes) in words[COUNTER + 1..].iter_mut().zip(nonce) {
            *word = u32::from_le_bytes(*bytes);
        }
        let mut early = words;
        early[0] = early[0].wrapping_add(early[4]);
        for column in 1..4 {
            quarter_round(&mut early, column);
        }
        early[1] = early[1].wrapping_add(early[6]);
        early[2] = early[2].wrapping_add(early[7]);
        early[13] = (early[13] ^ early[2]).rotate_left(16);
        State { words, early }
    }

    pub(super) fn advance(&mut self, blocks: u32) {
        self.words[COUNTER] = self.words[COUNTER].wrapping_add(blocks);
    }
}

/// RFC 8439 section 2.1, on a column.
fn quarter_round(s: &mut [u32; 16], column: usize) {
    let (a, b, c, d) = (column, 4 + column, 8 + column, 12 + column);
    for (sum, other, mixed, turn) in [(a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)] {
        s[sum] = s[sum].wrapping_add(s[other]);
        s[mixed] = (s[mixed] ^ s[sum]).rotate_left(turn);
    }
}

/// Keystream that waits to be used, aligned for whole registers.
#[repr(C, align(64))]
pub(super) struct Buffer<const BYTES: usize>(pub(super) [u8; BYTES]);

impl<const BYTES: usize> Buffer<BYTES> {
    pub(super) const EMPTY: Self = Buffer([0; BYTES]);

    /// Overwrites all of it.
    #[inline]
    pub(super) fn wipe(&mut self) {
        self.0 = [0; BYTES];
        // The compiler must believe that the zeros are read.
        std::hint::black_box(&raw const *self);
    }
}

/// `sum += other; mixed = (mixed ^ sum) <<< TURN` for several registers, step by step, so that the chains hide each other.
/// `$v` is a module with `add` and `xor_turn` for its registers. A macro, as what is built of it: functions are not always
/// inlined, and would then work on memory.
macro_rules! add_xor_turn {
    ($v:ident, $turn:literal: $([$sum:expr, $other:expr, $mixed:expr])*) => {
        $(
            $sum = $v::add($sum, $other);
            $mixed = $v::xor_turn::<$turn>($mixed, $sum);
        )*
    };
}

/// Quarter rounds (RFC 8439 section 2.1) side by side.
macro_rules! quarter_rounds {
    ($v:ident: $([$a:expr, $b:expr, $c:expr, $d:expr])*) => {
        add_xor_turn!($v, 16: $([$a, $b, $d])*);
        add_xor_turn!($v, 12: $([$c, $d, $b])*);
        add_xor_turn!($v, 8: $([$a, $b, $d])*);
        add_xor_turn!($v, 7: $([$c, $d, $b])*);
    };
}

/// The first two rounds of blocks that stand side by side, a word of each in a register, from where [`State::early`] has
/// brought them.
macro_rules! first_rounds {
    ($v:ident, $x:ident) => {
        $x[12] = $v::xor_turn::<16>($x[12], $x[0]);
        add_xor_turn!($v, 12: [$x[8], $x[12], $x[4]]);
        add_xor_turn!($v, 8: [$x[0], $x[4], $x[12]]);
        add_xor_turn!($v, 7: [$x[8], $x[12], $x[4]]);
        $x[12] = $v::xor_turn::<16>($x[12], $x[1]);
        add_xor_turn!($v, 16: [$x[0], $x[5], $x[15]] [$x[3], $x[4], $x[14]]);
        add_xor_turn!($v, 12:
            [$x[10], $x[15], $x[5]] [$x[11], $x[12], $x[6]] [$x[8], $x[13], $x[7]] [$x[9], $x[14], $x[4]]);
        add_xor_turn!($v, 8:
            [$x[0], $x[5], $x[15]] [$x[1], $x[6], $x[12]] [$x[2], $x[7], $x[13]] [$x[3], $x[4], $x[14]]);
        add_xor_turn!($v, 7:
            [$x[10], $x[15], $x[5]] [$x[11], $x[12], $x[6]] [$x[8], $x[13], $x[7]] [$x[9], $x[14], $x[4]]);
    };
}

/// The eighteen others.
macro_rules! further_rounds {
    ($v:ident, $x:ident) => {
        for _ in 1..10 {
            quarter_rounds!($v:
                [$x[0], $x[4], $x[8], $x[12]] [$x[1], $x[5], $x[9], $x[13]]
                [$x[2], $x[6], $x[10], $x[14]] [$x[3], $x[7], $x[11], $x[15]]
            );
            quarter_rounds!($v:
                [$x[0], $x[5], $x[10], $x[15]] [$x[1], $x[6], $x[11], $x[12]]
                [$x[2], $x[7], $x[8], $x[13]] [$x[3], $x[4], $x[9], $x[14]]
            );
        }
    };
}

pub(super) use {add_xor_turn, first_rounds, further_rounds, quarter_rounds};

/// What the streams are held against.
#[cfg(test)]
pub(super) mod model {
    use super::State;

    /// RFC 8439 section 2.3, as it stands there.
    pub(in super::super) fn block(state: &State) -> [u8; 64] {
        let mut x = state.words;
        for _ in 0..10 {
            for [a, b, c, d] in [
                [0, 4, 8, 12],
                [1, 5, 9, 13],
                [2, 6, 10, 14],
                [3, 7, 11, 15],
                [0, 5, 10, 15],
                [1, 6, 11, 12],
                [2, 7, 8, 13],
                [3, 4, 9, 14],
            ] {
                for (sum, other, mixed, turn) in [(a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)] {
                    x[sum] = x[sum].wrapping_add(x[other]);
                    x[mixed] = (x[mixed] ^ x[sum]).rotate_left(turn);
                }
            }
        }
        let words: [u32; 16] = std::array::from_fn(|i| x[i].wrapping_add(state.words[i]));
        words.map(u32::to_le_bytes).as_flattened().try_into().unwrap()
    }

    /// A stream with a key and a nonce without a pattern.
    pub(in super::super) fn stream_at(counter: u32) -> State {
        let key = std::array::from_fn(|i| 0x9e37_79b9_u32.wrapping_mul(i as u32 + 1));
        let mut state = State::new(&key, b"twelve bytes");
        state.words[super::COUNTER] = counter;
        state
    }

    /// RFC 8439 section 2.3.2.
    #[test]
    fn the_model_gives_the_published_block() {
        let key: [u32; 8] = std::array::from_fn(|i| 0x0302_0100 + 0x0404_0404 * i as u32);
        let mut state = State::new(&key, &[0, 0, 0, 9, 0, 0, 0, 0x4a, 0, 0, 0, 0]);
        state.words[super::COUNTER] = 1;
        let words: [u32; 4] = [0xe4e7_f110, 0x1559_3bd1, 0x1fdd_0f50, 0xc471_20a3];
        assert_eq!(block(&state)[..16], *words.map(u32::to_le_bytes).as_flattened());
    }
}
