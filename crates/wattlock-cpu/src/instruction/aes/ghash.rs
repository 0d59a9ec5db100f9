//! GHASH (SP 800-38D section 6.4) by carry-less multiplication, over a [`Vector`] of 1, 2 or 4 blocks.
//!
//! *Representation.* GCM numbers a block's bits from the first byte's highest: bit i is the coefficient of x^i. Read as a
//! big-endian integer, a block therefore has the coefficient of x^i at 2^(127-i): it is the polynomial in y = 1/x, times
//! y^127. The field's modulus x^128 + x^7 + x^2 + x + 1 becomes M = y^128 + y^127 + y^126 + y^121 + 1. Products are taken
//! of these integers as they are; nothing is reflected but the order of bytes, by one shuffle a vector.
//!
//! *Product.* For blocks a and b the integers are A = a y^127 and B = b y^127, the integer of their product must be
//! C = ab y^127, and A B is ab y^254. So C = (A B y) y^-128 mod M, which is a Montgomery multiplication (Gueron and
//! Kounavis arrive at the same from the reflection of bits) of A with B y. The factor y is put into what is kept: a
//! [`Table`] holds H^k y mod M. Then nothing is shifted afterwards, and nothing can be lost on top: A and H^k y have
//! degrees up to 127, their product up to 254, and 256 bits hold it, as they hold any sum of such products. Powers stay
//! in this form by themselves: (H^i y)(H^j y) y^-128, read in the same way, is H^(i+j) y.
//!
//! *Reduction.* M is y^128 + p y^64 + 1 with p = 0xc2 followed by 56 zero bits. Modulo M a low half l is thus
//! y^64 (l p + l y^64): the 64 lowest bits of a product go up by 64, at the price of one multiplication by p. Twice this
//! is the division by y^128. It is linear, so one reduction serves a sum of products: that of a whole batch.
//!
//! Constant time: no branch and no address depends on anything but lengths.
#![allow(unsafe_code, reason = "intrinsics on raw pointers; every caller has enabled the instructions")]

use std::arch::x86_64::{__m128i, _mm_set_epi64x};

use zeroize::{Zeroize, ZeroizeOnDrop};

use super::aes_ni::{Xmm, from_u128, to_u128};
use super::generic::{Vector, WIDTH};

/// The highest power there is room for: a batch of the widest vectors, and a vector more for what follows it.
const POWERS: usize = (WIDTH + 1) * 4;

/// Powers of H, descending, each times y; and behind the first power zeros, so that a vector that has fewer blocks than
/// lanes finds factors for all of its lanes. Wiped on drop.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
#[repr(C, align(64))]
pub(super) struct Table {
    /// H^[`POWERS`] to H^1, and three zeros. Powers above `(WIDTH + 1) * LANES` are absent.
    powers: [u128; POWERS + 4],
    /// For each vector of a batch the xor of its factors' halves, in the lower half.
    sums: [u128; 2 * WIDTH],
}

impl Table {
    /// From the hash key: a block of zeros, encrypted, as a big-endian integer.
    ///
    /// # Safety
    /// As for the methods of `V`.
    #[inline(always)]
    pub(super) unsafe fn new<V: Vector>(h: u128) -> Table {
        const { assert!(V::LANES <= 4 && (!V::KARATSUBA || V::LANES <= 2)) };
        let mut table = Table { powers: [0; POWERS + 4], sums: [0; 2 * WIDTH] };
        // SAFETY: the instructions are the caller's; powers are asked for that exist and were stored before. There are sums
        // for WIDTH vectors of two blocks, the widest that use them, as the assertion says.
        unsafe {
            table.put::<Xmm>(1, Xmm::splat(from_u128(times_y(h))));
            let mut lanes = 1;
            while lanes < V::LANES {
                for power in 1..=lanes {
                    let next = multiply(table.at::<Xmm>(power), table.at::<Xmm>(lanes));
                    table.put(power + lanes, next);
                }
                lanes *= 2;
            }
            // Each round doubles how many vectors there are, and none waits for another within it.
            let mut vectors = 1;
            while vectors < WIDTH + 1 {
                let step = V::splat(table.at::<Xmm>(vectors * V::LANES).0);
                for i in 1..=vectors.min(WIDTH + 1 - vectors) {
                    let next = multiply(table.at::<V>(i * V::LANES), step);
                    table.put((i + vectors) * V::LANES, next);
                }
                vectors *= 2;
            }
            if V::KARATSUBA {
                for i in 0..WIDTH {
                    let power = table.at::<V>((WIDTH - i) * V::LANES);
                    let sum = power.xor(power.halves_swapped());
                    sum.store(table.sums.as_mut_ptr().add(i * V::LANES).cast());
                }
            }
        }
        table
    }

    /// The factors of a vector whose first block takes H^`power`.
    ///
    /// # Safety
    /// As for the methods of `V`; `power` from 1 to `(WIDTH + 1) * LANES`.
    #[inline(always)]
    unsafe fn at<V: Vector>(&self, power: usize) -> V {
        debug_assert!((1..=POWERS).contains(&power));
        // SAFETY: from power 1 on there are four blocks, as many as the widest vector has.
        unsafe { V::load(self.powers.as_ptr().add(POWERS - power).cast()) }
    }

    /// # Safety
    /// As [`Table::at`]; `power` at least LANES.
    #[inline(always)]
    unsafe fn put<V: Vector>(&mut self, power: usize, factors: V) {
        // SAFETY: as in `at`.
        unsafe { factors.store(self.powers.as_mut_ptr().add(POWERS - power).cast()) }
    }
}

/// Multiplies by y modulo M.
fn times_y(block: u128) -> u128 {
    // The mask is all ones or zero: no branch on the key.
    (block << 1) ^ ((block >> 127).wrapping_neg() & (0xc2 << 120 | 1))
}

/// A sum of products, not reduced: lowest, middle and highest 128 bits, which overlap by 64.
#[derive(Clone, Copy)]
struct Sum<V> {
    parts: [V; 3],
}

impl<V: Vector> Sum<V> {
    /// # Safety
    /// As for the methods of `V`.
    #[inline(always)]
    unsafe fn zero() -> Sum<V> {
        // SAFETY: the instructions are the caller's.
        let zero = unsafe { V::zero() };
        Sum { parts: [zero; 3] }
    }

    /// Adds products, each of four multiplications.
    ///
    /// # Safety
    /// As for the methods of `V`.
    #[inline(always)]
    unsafe fn add(&mut self, x: V, factors: V) {
        // SAFETY: the instructions are the caller's.
        unsafe {
            let [low, middle, high] = &mut self.parts;
            *low = low.xor(x.multiply::<0x00>(factors));
            *middle = middle.xor(x.multiply::<0x01>(factors)).xor(x.multiply::<0x10>(factors));
            *high = high.xor(x.multiply::<0x11>(factors));
        }
    }

    /// Adds products, each of three multiplications (Karatsuba's): `sums` has in each lower half the xor of a factor's
    /// halves. The middle is complete after [`Sum::completed`] only.
    ///
    /// # Safety
    /// As for the methods of `V`.
    #[inline(always)]
    unsafe fn add_three(&mut self, x: V, factors: V, sums: V) {
        // SAFETY: the instructions are the caller's.
        unsafe {
            let both = x.xor(x.halves_swapped());
            let [low, middle, high] = &mut self.parts;
            *low = low.xor(x.multiply::<0x00>(factors));
            *middle = middle.xor(both.multiply::<0x00>(sums));
            *high = high.xor(x.multiply::<0x11>(factors));
        }
    }

    /// # Safety
    /// As for the methods of `V`.
    #[inline(always)]
    unsafe fn completed(self) -> Sum<V> {
        // SAFETY: the instructions are the caller's.
        unsafe {
            let [low, middle, high] = self.parts;
            Sum { parts: [low, middle.xor(low).xor(high), high] }
        }
    }

    /// Each lane's sum divided by y^128, modulo M.
    ///
    /// # Safety
    /// As for the methods of `V`.
    #[inline(always)]
    unsafe fn reduced(self) -> V {
        // SAFETY: the instructions are the caller's; the constant needs SSE2.
        unsafe {
            let p = V::splat(_mm_set_epi64x(0, (0xc2_u64 << 56).cast_signed()));
            let [low, middle, high] = self.parts;
            let middle = middle.xor(low.halves_swapped()).xor(low.multiply::<0x00>(p));
            high.xor(middle.halves_swapped()).xor(middle.multiply::<0x00>(p))
        }
    }
}

/// # Safety
/// As for the methods of `V`.
#[inline(always)]
unsafe fn multiply<V: Vector>(x: V, factors: V) -> V {
    // SAFETY: the instructions are the caller's.
    unsafe {
        let mut sum = Sum::zero();
        sum.add(x, factors);
        sum.reduced()
    }
}

/// The hash of one batch of [`WIDTH`] vectors, in pieces that a cipher takes between its rounds.
pub(super) struct Batch<'t, V> {
    table: &'t Table,
    from: *const u8,
    before: __m128i,
    sum: Sum<V>,
    /// The vectors of a pair of pieces.
    pair: [V; 2],
    after: __m128i,
}

/// Pieces of a [`Batch`]: its vectors, and the reduction.
pub(super) const PIECES: usize = WIDTH + 1;

impl<'t, V: Vector> Batch<'t, V> {
    /// # Safety
    /// As for the methods of `V`; until the last piece, WIDTH vectors must be readable at `from`.
    #[inline(always)]
    pub(super) unsafe fn new(table: &'t Table, before: __m128i, from: *const u8) -> Batch<'t, V> {
        // SAFETY: the instructions are the caller's.
        unsafe { Batch { table, from, before, sum: Sum::zero(), pair: [V::zero(); 2], after: before } }
    }

    /// All pieces from 0 on must be taken in order. What was hashed before comes in with the last vector: it is the end
    /// of the batch before this one, and so has the longest time to be ready.
    ///
    /// With four multiplications the pieces go in pairs, two vectors a pair: the three-way exclusive or of AVX-512 then
    /// adds two products at a time.
    ///
    /// # Safety
    /// As [`Batch::new`].
    #[inline(always)]
    pub(super) unsafe fn piece(&mut self, piece: usize) {
        // SAFETY: the caller's; there are WIDTH vectors at `from`, and as many factors.
        unsafe {
            if piece == WIDTH {
                let sum = if V::KARATSUBA { self.sum.completed() } else { self.sum };
                self.after = sum.reduced().folded();
                return;
            }
            if V::KARATSUBA {
                let i = (piece + 1) % WIDTH;
                let sums = V::load(self.table.sums.as_ptr().add(i * V::LANES).cast());
                self.sum.add_three(self.vector(i), self.factors(i), sums);
                return;
            }
            let (i, j) = ((piece & !1) + 1, ((piece | 1) + 1) % WIDTH);
            let (f, g) = (self.factors(i), self.factors(j));
            if piece.is_multiple_of(2) {
                let (x, y) = (self.vector(i), self.vector(j));
                self.pair = [x, y];
                let [low, _, high] = &mut self.sum.parts;
                *low = low.xor(x.multiply::<0x00>(f).xor(y.multiply::<0x00>(g)));
                *high = high.xor(x.multiply::<0x11>(f).xor(y.multiply::<0x11>(g)));
            } else {
                let [x, y] = self.pair;
                let inner = x.multiply::<0x01>(f).xor(x.multiply::<0x10>(f));
                let outer = y.multiply::<0x01>(g).xor(y.multiply::<0x10>(g));
                let [_, middle, _] = &mut self.sum.parts;
                *middle = middle.xor(inner.xor(outer));
            }
        }
    }

    /// # Safety
    /// As [`Batch::new`].
    #[inline(always)]
    unsafe fn vector(&self, i: usize) -> V {
        // SAFETY: the caller's.
        unsafe {
            let x = V::load(self.from.add(i * 16 * V::LANES)).reversed();
            if i == 0 { x.xor(V::lone(self.before)) } else { x }
        }
    }

    /// # Safety
    /// As [`Batch::new`].
    #[inline(always)]
    unsafe fn factors(&self, i: usize) -> V {
        // SAFETY: the caller's.
        unsafe { self.table.at::<V>((WIDTH - i) * V::LANES) }
    }

    /// Keeps the pieces behind this point behind a cipher's rounds before it, and the other way round.
    ///
    /// # Safety
    /// As for the methods of `V`.
    #[inline(always)]
    pub(super) unsafe fn fence(&mut self, states: &mut [V; WIDTH]) {
        // SAFETY: the instructions are the caller's.
        unsafe { V::fence(states, &mut self.sum.parts) }
    }

    /// The hash after all pieces.
    #[inline(always)]
    pub(super) fn done(self) -> __m128i {
        self.after
    }
}

/// What is hashed after the last batch of a message, or of a piece of one.
pub(super) struct Tail<V> {
    /// Whole vectors, fewer than [`WIDTH`] + 1.
    pub(super) from: *const u8,
    pub(super) vectors: usize,
    /// Less than a vector, zeros behind it, and its number of blocks.
    pub(super) part: V,
    pub(super) blocks: usize,
}

/// Hashes a tail and, if there is one, a last block that comes as an integer; together at most `(WIDTH + 1) * LANES`
/// blocks.
///
/// # Safety
/// As for the methods of `V`; the tail's vectors must be readable.
#[inline(always)]
pub(super) unsafe fn hash_tail<V: Vector>(
    table: &Table,
    before: __m128i,
    tail: Tail<V>,
    last: Option<u128>,
) -> __m128i {
    // SAFETY: the caller's; the factors asked for are as many as there are blocks.
    unsafe {
        let mut power = tail.vectors * V::LANES + tail.blocks + usize::from(last.is_some());
        if power == 0 {
            return before;
        }
        let (mut sum, mut carried) = (Sum::zero(), V::lone(before));
        for i in 0..tail.vectors {
            let x = V::load(tail.from.add(i * 16 * V::LANES)).reversed();
            sum.add(x.xor(carried), table.at(power));
            carried = V::zero();
            power -= V::LANES;
        }
        if tail.blocks > 0 {
            sum.add(tail.part.reversed().xor(carried), table.at(power));
            carried = V::zero();
        }
        if let Some(last) = last {
            sum.add(V::lone(from_u128(last)).xor(carried), table.at(1));
        }
        sum.reduced().folded()
    }
}

/// Hashes bytes, the last block filled with zeros.
///
/// # Safety
/// As for the methods of `V`.
#[inline(always)]
pub(super) unsafe fn hash<V: Vector>(table: &Table, sum: u128, bytes: &[u8]) -> u128 {
    if bytes.is_empty() {
        return sum;
    }
    let (mut from, mut len) = (bytes.as_ptr(), bytes.len());
    let vector = 16 * V::LANES;
    // SAFETY: the instructions are the caller's; nothing is read beyond `len` bytes.
    unsafe {
        let mut sum = from_u128(sum);
        while len >= WIDTH * vector {
            let mut batch = Batch::<V>::new(table, sum, from);
            for piece in 0..PIECES {
                batch.piece(piece);
            }
            sum = batch.done();
            (from, len) = (from.add(WIDTH * vector), len - WIDTH * vector);
        }
        let (vectors, rest) = (len / vector, len % vector);
        let part = V::load_part(from.add(vectors * vector), rest);
        to_u128(hash_tail(table, sum, Tail { from, vectors, part, blocks: rest.div_ceil(16) }, None))
    }
}
