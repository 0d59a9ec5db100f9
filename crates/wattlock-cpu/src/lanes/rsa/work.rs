//! The private operation on eight keys, between numbers in lanes and numbers in lanes.
//!
//! With `c` the input, `x_s = c^(d_s) mod s` for each prime `s`, and Garner's recombination
//! (RFC 8017 section 5.1.2): `h = (x_p - x_q) q^-1 mod p`, `m = x_q + q h`. Then `m^e mod n` is compared with `c`: one
//! wrong half would give the factors away (Boneh, DeMillo and Lipton 1997).
//!
//! *Bounds* (`<` as in [`super::mont`], where a reduction gives less than `T / R + 2 N`):
//! - Into Montgomery form: `c = low + high R` with both below `R`, so `T = low (R^2 mod s) + high (R^3 mod s) < 2 R s`
//!   gives `c R mod s`, below `4 s`. Its square is below `16 s^2`: `T / R < s`, the result below `3 s`; and so on.
//! - Out of it: `T = x < R`, so the result is below `1 + 2 s`: two conditional subtractions make it less than `s`.
//! - Garner: the primes make an `n` with its highest bit set, so both have their highest bit set and `q < 2 p`. Then
//!   `x_p - x_q + 2 p` is positive and below `4 p`. Times `q^-1 R < p`: `T / R < 4 p (p / R) < p`, the result below `3 p`,
//!   and two conditional subtractions make `h < p`. So `m < q + q (p - 1) = n`.
//! - Check: the last multiplication is by `m < n`, `T / R < 3 n (n / R) < n`: below `3 n`, two subtractions.
//!
//! The public exponent decides branches; nothing else does. [`Work`] holds every intermediate and is wiped. Unsafe here is
//! its allocation, which must not pass through the stack, and its wiping.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::sync::atomic::{Ordering, compiler_fence};

use super::key::{DIGIT, DIGITS, Expanded, KeyModulus, KeyPrime, digit_count};
use super::machine::Machine;
use super::mont::{Block, MARGIN, Modulus, Number, T};
use crate::lanes::vector::{LANES, MASK52, Vector};

/// Entries of a table of powers.
const TABLE: usize = 1 << DIGIT;

/// Words of the longest exponent.
const WORDS: usize = digit_count(2048).div_ceil(DIGITS);

/// Blocks of the longest number and half.
pub(super) const LONGEST: usize = 8;

/// One request's place in a pass.
pub(in crate::lanes) struct Lane<'a> {
    pub key: &'a Expanded,
    /// Below the modulus.
    pub input: [u64; LONGEST * T],
}

/// What a prime, or in a thin pass both, brings.
struct Side<V, const B: usize> {
    modulus: Modulus<V, B>,
    one: Number<V, B>,
    square: Number<V, B>,
    cube: Number<V, B>,
    exponent: [V; WORDS],
    /// The power, in the end a number below the prime.
    residue: Number<V, B>,
}

/// Everything a pass computes with. `B` blocks make a prime, `F = 2 B` a modulus.
pub(super) struct Work<V, const B: usize, const F: usize> {
    p: Side<V, B>,
    q: Side<V, B>,
    q_inverse: Number<V, B>,
    n: Modulus<V, F>,
    n_square: Number<V, F>,
    e: [u64; LANES],
    /// Requests 0 to 3 only: lanes 0 to 3 raise to p's exponent while lanes 4 to 7 raise to q's.
    thin: bool,
    input: Number<V, F>,
    output: Number<V, F>,
    /// One where the check found the input again, else zero.
    right: V,
    table: [Number<V, B>; TABLE],
    factor: Number<V, B>,
    narrow: [Block<V>; LONGEST + MARGIN],
    wide: [Block<V>; 2 * LONGEST + MARGIN],
    check: Number<V, F>,
    base: Number<V, F>,
    aside: Number<V, F>,
}

/// [`Work`] on the heap, wiped when it goes: a caller's stack may be a fiber's, of a few pages.
pub(super) struct Wiped<V: Machine, const B: usize, const F: usize>(Box<Work<V, B, F>>);

#[allow(unsafe_code)]
impl<V: Machine, const B: usize, const F: usize> Wiped<V, B, F> {
    pub(super) fn new() -> Wiped<V, B, F> {
        const { assert!(F == 2 * B && F <= LONGEST && B <= DIGIT as usize) };
        let layout = Layout::new::<Work<V, B, F>>();
        // SAFETY: the layout is not of size zero.
        let work = unsafe { alloc_zeroed(layout) }.cast::<Work<V, B, F>>();
        if work.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: allocated with this very layout; zeros are a value of every field (`Machine` promises it for `V`).
        Wiped(unsafe { Box::from_raw(work) })
    }
}

#[allow(unsafe_code)]
impl<V: Machine, const B: usize, const F: usize> Wiped<V, B, F> {
    /// Word by word: `zeroize` would write each byte by itself, which shows beside a pass.
    pub(super) fn wipe(&mut self) {
        const {
            assert!(
                size_of::<Work<V, B, F>>().is_multiple_of(8) && align_of::<Work<V, B, F>>().is_multiple_of(8)
            )
        };
        let words = (&raw mut *self.0).cast::<u64>();
        for word in 0..size_of::<Work<V, B, F>>() / 8 {
            // SAFETY: inside the allocation, and aligned; zeros are a value of every field, and nothing inside has a
            // destructor or owns anything. Volatile, so that it happens though it is not read.
            unsafe { words.add(word).write_volatile(0) }
        }
        compiler_fence(Ordering::SeqCst);
    }
}

impl<V: Machine, const B: usize, const F: usize> Drop for Wiped<V, B, F> {
    fn drop(&mut self) {
        self.wipe();
    }
}

impl<V: Machine, const B: usize, const F: usize> std::ops::Deref for Wiped<V, B, F> {
    type Target = Work<V, B, F>;

    fn deref(&self) -> &Work<V, B, F> {
        &self.0
    }
}

impl<V: Machine, const B: usize, const F: usize> std::ops::DerefMut for Wiped<V, B, F> {
    fn deref_mut(&mut self) -> &mut Work<V, B, F> {
        &mut self.0
    }
}

impl<V: Machine, const B: usize, const F: usize> Work<V, B, F> {
    /// Brings keys and inputs into lanes; at most four different ones if `thin`. `secret` makes a vector of what is
    /// secret.
    #[inline(always)]
    pub(super) fn load(
        &mut self,
        lanes: &[&Lane<'_>; LANES],
        thin: bool,
        secret: impl Fn(&[u64; LANES]) -> V + Copy,
    ) {
        self.thin = thin;
        let upper = |lane: usize| thin && lane >= LANES / 2;
        let first = |lane: usize| if upper(lane) { &lanes[lane].key.q } else { &lanes[lane].key.p };
        load_side(&mut self.p, first, secret);
        let second = |lane: usize| &lanes[lane].key.q;
        if thin {
            load_number(&mut self.q.modulus.number, |lane| &second(lane).modulus.number, secret);
        } else {
            load_side(&mut self.q, second, secret);
        }
        load_number(&mut self.q_inverse, |lane| &lanes[lane].key.q_inverse, secret);
        load_modulus(&mut self.n, |lane| &lanes[lane].key.n, V::new);
        load_number(&mut self.n_square, |lane| &lanes[lane].key.n.square, V::new);
        load_number(&mut self.input, |lane| &lanes[lane].input, V::new);
        self.e = std::array::from_fn(|lane| lanes[lane].key.e);
    }

    /// The result, limb by limb, and where it is right.
    pub(super) fn outcome(&self) -> (&Number<V, F>, V) {
        (&self.output, self.right)
    }

    /// Every vector that has held a secret.
    #[cfg(test)]
    pub(super) fn every_secret(&self) -> Vec<V> {
        let mut all = Vec::new();
        for side in [&self.p, &self.q] {
            let Side {
                modulus: Modulus { number, friendly, upper, factor },
                one,
                square,
                cube,
                exponent,
                residue,
            } = side;
            all.extend([number, friendly, upper, one, square, cube, residue].into_iter().flatten().flatten());
            all.extend(exponent.iter().chain([factor]));
        }
        all.extend(self.table.iter().chain([&self.q_inverse, &self.factor]).flatten().flatten());
        all.extend([&self.output, &self.check, &self.base, &self.aside].into_iter().flatten().flatten());
        all.extend(self.narrow.iter().chain(&self.wide).flatten());
        all
    }

    /// The whole operation. `disturb` may change p's residue before the recombination: a test's fault.
    #[inline(always)]
    pub(super) fn run(&mut self, disturb: impl FnOnce(&mut Number<V, B>)) {
        self.enter_and_raise(true);
        if self.thin {
            for (q, p) in self.q.residue.iter_mut().flatten().zip(self.p.residue.iter().flatten()) {
                *q = p.swap_halves();
            }
        } else {
            self.enter_and_raise(false);
        }
        disturb(&mut self.p.residue);
        self.recombine();
        self.verify();
    }

    /// The residue of one side.
    #[inline(always)]
    fn enter_and_raise(&mut self, first: bool) {
        let side = if first { &mut self.p } else { &mut self.q };
        let (low, high) = self.input.split_at(B);
        let (aside, narrow) = (&mut self.wide, &mut self.narrow);
        V::product(aside, as_number(low), &side.square);
        V::product(narrow, as_number(high), &side.cube);
        for (sum, other) in narrow.iter_mut().zip(&*aside).take(2 * B) {
            sum.iter_mut().zip(other).for_each(|(sum, other)| *sum = sum.add(*other));
        }
        self.table[0] = side.one;
        V::reduce(&mut self.table[1], narrow, &side.modulus);
        for entry in 2..TABLE {
            let (made, rest) = self.table.split_at_mut(entry);
            if entry % 2 == 0 {
                V::square(narrow, &made[entry / 2]);
            } else {
                V::product(narrow, &made[entry - 1], &made[1]);
            }
            V::reduce(&mut rest[0], narrow, &side.modulus);
        }
        raise(side, &self.table, &mut self.factor, narrow);
        leave(&mut side.residue, narrow, &side.modulus);
        reduce_below(&mut side.residue, &side.modulus.number);
    }

    /// Garner: the output from both residues.
    #[inline(always)]
    fn recombine(&mut self) {
        let (p, q) = (&self.p, &self.q);
        let mut carry = V::splat(0);
        for b in 0..B {
            for i in 0..T {
                let prime = p.modulus.number[b][i];
                let limb = p.residue[b][i].add(prime).add(prime).sub(q.residue[b][i]).add(carry);
                self.factor[b][i] = mask(limb);
                carry = limb.sar::<52>();
            }
        }
        V::product(&mut self.narrow, &self.factor, &self.q_inverse);
        V::reduce(&mut self.factor, &mut self.narrow, &p.modulus);
        reduce_below(&mut self.factor, &p.modulus.number);
        V::product(&mut self.narrow, &self.factor, &q.modulus.number);
        let mut carry = V::splat(0);
        for b in 0..F {
            for i in 0..T {
                let mut column = self.narrow[b][i].add(carry);
                if b < B {
                    column = column.add(q.residue[b][i]);
                }
                self.output[b][i] = mask(column);
                carry = column.sar::<52>();
            }
        }
    }

    /// The output to the public exponent, against the input.
    #[inline(always)]
    fn verify(&mut self) {
        let wide = &mut self.wide;
        V::product(wide, &self.output, &self.n_square);
        V::reduce(&mut self.base, wide, &self.n);
        let bits = self.e.iter().map(|e| 64 - e.leading_zeros()).max().unwrap_or(1);
        let has = |bit: u32| self.e.map(|e| e >> bit & 1);
        self.check = self.base;
        if has(bits - 1) != [1; LANES] {
            // Shorter exponents start from one, that is from R.
            self.aside = self.n_square;
            leave(&mut self.aside, wide, &self.n);
            choose(&mut self.check, &self.aside, V::new(&has(bits - 1)));
        }
        for bit in (0..bits - 1).rev() {
            V::square(wide, &self.check);
            V::reduce(&mut self.check, wide, &self.n);
            // Exponents are odd: the lowest bit is the multiplication below.
            if bit > 0 && has(bit) != [0; LANES] {
                self.aside = self.check;
                V::product(wide, &self.check, &self.base);
                V::reduce(&mut self.check, wide, &self.n);
                choose(&mut self.check, &self.aside, V::new(&has(bit)));
            }
        }
        V::product(wide, &self.check, &self.output);
        V::reduce(&mut self.check, wide, &self.n);
        reduce_below(&mut self.check, &self.n.number);
        let zero = V::splat(0);
        let pairs = self.check.iter().flatten().zip(self.input.iter().flatten());
        let difference = pairs.fold(zero, |difference, (a, b)| difference.or(a.xor(*b)));
        self.right = V::choose(difference.is_equal(zero), V::splat(1), zero);
    }
}

/// `side.residue` becomes `table[1]` to the side's exponent, in Montgomery form and raw.
#[inline(always)]
fn raise<V: Machine, const B: usize>(
    side: &mut Side<V, B>,
    table: &[Number<V, B>; TABLE],
    factor: &mut Number<V, B>,
    wide: &mut [Block<V>],
) {
    // A prime of B blocks has 512 B bits.
    let digits = digit_count(512 * B);
    let power = &mut side.residue;
    for (index, word) in side.exponent.iter().take(digits.div_ceil(DIGITS)).enumerate() {
        let (mut word, count) = (*word, if index == 0 { (digits - 1) % DIGITS + 1 } else { DIGITS });
        for place in 0..count {
            let digit = word.shr::<{ 64 - DIGIT }>();
            word = word.shl::<DIGIT>();
            if index + place == 0 {
                (0..B).for_each(|block| V::select(power, table, digit, block));
                continue;
            }
            // The table is larger than the first cache: read block by block, it arrives while the CPU still squares.
            for block in 0..DIGIT as usize {
                V::square(wide, power);
                V::reduce(power, wide, &side.modulus);
                if block < B {
                    V::select(factor, table, digit, block);
                }
            }
            V::product(wide, power, factor);
            V::reduce(power, wide, &side.modulus);
        }
    }
}

/// `number / R`, raw.
#[inline(always)]
fn leave<V: Machine, const B: usize>(
    number: &mut Number<V, B>,
    wide: &mut [Block<V>],
    modulus: &Modulus<V, B>,
) {
    for (b, column) in wide.iter_mut().take(2 * B).enumerate() {
        *column = if b < B { number[b].map(mask) } else { [V::splat(0); T] };
    }
    V::reduce(number, wide, modulus);
}

/// A raw number below `3 modulus` becomes one below the modulus, its limbs below `2^52`.
#[inline(always)]
fn reduce_below<V: Vector, const B: usize>(number: &mut Number<V, B>, modulus: &Number<V, B>) {
    number.iter_mut().flatten().for_each(|limb| *limb = mask(*limb));
    for _ in 0..2 {
        // All ones where the number is below the modulus and stays.
        let mut borrow = V::splat(0);
        for (limb, modulus) in number.iter().flatten().zip(modulus.iter().flatten()) {
            borrow = limb.sub(*modulus).add(borrow).sar::<52>();
        }
        let (stays, mut borrow) = (borrow, V::splat(0));
        for (limb, modulus) in number.iter_mut().flatten().zip(modulus.iter().flatten()) {
            let difference = limb.sub(stays.andnot(*modulus)).add(borrow);
            borrow = difference.sar::<52>();
            *limb = mask(difference);
        }
    }
}

/// Where `keep` is zero, `number` becomes `other`.
#[inline(always)]
fn choose<V: Vector, const F: usize>(number: &mut Number<V, F>, other: &Number<V, F>, keep: V) {
    let change = keep.is_equal(V::splat(0));
    for (limb, other) in number.iter_mut().flatten().zip(other.iter().flatten()) {
        *limb = V::choose(change, *other, *limb);
    }
}

#[inline(always)]
fn mask<V: Vector>(limb: V) -> V {
    limb.and(V::splat(MASK52))
}

/// The half of a number.
#[inline(always)]
fn as_number<V, const B: usize>(blocks: &[Block<V>]) -> &Number<V, B> {
    blocks.try_into().expect("a number has two halves")
}

#[inline(always)]
fn load_side<'k, V: Vector, const B: usize>(
    side: &mut Side<V, B>,
    key: impl Fn(usize) -> &'k KeyPrime,
    secret: impl Fn(&[u64; LANES]) -> V + Copy,
) {
    load_modulus(&mut side.modulus, |lane| &key(lane).modulus, secret);
    load_number(&mut side.square, |lane| &key(lane).modulus.square, secret);
    load_number(&mut side.cube, |lane| &key(lane).cube, secret);
    load_number(&mut side.one, |lane| &key(lane).one, secret);
    let words = key(0).exponent.len();
    for (index, word) in side.exponent.iter_mut().take(words).enumerate() {
        *word = secret(&std::array::from_fn(|lane| key(lane).exponent[index]));
    }
}

#[inline(always)]
fn load_modulus<'k, V: Vector, const B: usize>(
    modulus: &mut Modulus<V, B>,
    key: impl Fn(usize) -> &'k KeyModulus,
    secret: impl Fn(&[u64; LANES]) -> V + Copy,
) {
    load_number(&mut modulus.number, |lane| &key(lane).number, secret);
    load_number(&mut modulus.friendly, |lane| &key(lane).friendly, secret);
    for limb in 0..B * T {
        let above = limb + 1;
        modulus.upper[limb / T][limb % T] =
            if above < B * T { modulus.number[above / T][above % T] } else { V::splat(0) };
    }
    modulus.factor = secret(&std::array::from_fn(|lane| key(lane).factor));
}

#[inline(always)]
fn load_number<'k, V: Vector, const B: usize>(
    number: &mut Number<V, B>,
    limbs: impl Fn(usize) -> &'k [u64],
    secret: impl Fn(&[u64; LANES]) -> V + Copy,
) {
    for (index, limb) in number.iter_mut().flatten().enumerate() {
        *limb = secret(&std::array::from_fn(|lane| limbs(lane)[index]));
    }
}
