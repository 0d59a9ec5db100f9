//! Montgomery arithmetic in eight lanes, each with a modulus of its own, on 52-bit limbs in blocks of ten.
//!
//! *Numbers.* A number has `n = 10 B` limbs, limb `i` of weight `2^(52 i)`; `R = 2^(52 n)`. Numbers of 1024, 1536, 2048,
//! 3072 and 4096 bits take 20, 30, 40, 60 and 80 limbs, so that 16, 24, 32, 48 and 64 bits are spare. A *raw* number has
//! arbitrary bits above bit 51 of its limbs; the multiplier ignores them, so numbers between multiplications stay
//! raw, and code that adds or compares them masks first ([`mask`]).
//!
//! *Columns.* A product is a list of `2 n` columns of weight `2^(52 c)`; the product of limbs `i` and `j` gives its low 52
//! bits to column `i + j` and its high 52 bits to column `i + j + 1`. A column takes at most `2 n` such parts from a
//! product of two numbers, so it stays below `2 n 2^52`. Carries wait until the reduction.
//!
//! *Blocks.* The products of two blocks of ten limbs fall into 20 columns, which stay in 20 registers while all pairs
//! of blocks with the same columns are done (`I + J = K`). Then the ten lower columns are complete and the window
//! moves up by ten. The 200 multiply-adds of a pair of blocks need 20 loads, and ten of them in a row are independent, which
//! hides their latency of 4 cycles on two ports.
//!
//! *Squares.* Products of different limbs are summed once and doubled at the end: a column of them is below `n 2^52`,
//! twice that below `2 n 2^52`, and the squares come on top, within the bound of a product. `n^2 + n` multiply-adds
//! instead of `2 n^2`.
//!
//! *Reduction.* Montgomery's, with the quotient of a step at no cost (H. Orup, "Simplifying quotient determination in high-radix
//! modular multiplication", ARITH-12, 1995). Let `k = -N^-1 mod 2^52` and `M = (k N + 1) / 2^52`, which has `n` limbs again.
//! A step with quotient `q`, the low 52 bits of the lowest column, adds `q k N = q M 2^52 - q`: this clears those bits, and
//! what is to be added begins one column higher. So `q` needs no multiplication and the next step waits for one
//! multiply-add and one addition. Steps of this kind grow the result by up to `k N`, 52 bits more than `N`; the last
//! step is therefore an ordinary one, with `q = k column mod 2^52`, adding `q N`. With `T` the number reduced:
//!
//! ```text
//! after n - 1 steps   T1 = (T + Q k N) / 2^(52 (n - 1)) < T / 2^(52 (n - 1)) + k N        because Q < 2^(52 (n - 1))
//! after the last      T2 = (T1 + q N) / 2^52            < T / R + k N / 2^52 + N < T / R + 2 N
//! ```
//!
//! `T2` is `T / R` modulo `N`. Factors `a < A N`, `b < B N` have `T / R < A B N (N / R)`, and `N / R <= 2^-16`: with
//! `A B <= 2^16` the result is below `3 N`, and with both below `3 N` below `2 N + 9 N 2^-16`. No subtraction is needed
//! between multiplications, and `T2 < R`, so the carry out of the top column is zero.
//!
//! *Cost*, in instructions that only two ports take, for `n` limbs: a product `2 n^2`, a square `n^2 + n` and `2 n` additions, a
//! reduction `2 n^2 + 1` and `4 n` for carries. Square and reduction of 20 limbs are 1,341 in all, 40 limbs 5,081. An RSA-2048
//! pass raises twice with 1,027 squares, 262 products, as many reductions and 256 scans of 16 times 20 limbs: with all the
//! rest 3.9 million, 3.4 of them multiply-adds (3072 bits: 12.5 and 11.4; 4096 bits: 28.7 and 26.9).
//! 20 limbs have forms of their own ([`square_short`], [`reduce_short`]), because a window
//! of blocks leaves too little to do between its ends.
//!
//! *No carry is lost.* A column of the reduction takes at most `2 n` parts of the product, `2 n` parts of the quotients
//! times `M` or `N`, and the carry of the column below: less than `(4 n + 1) 2^52 + 2^12 < 2^61` for `n <= 80`. A sum of two
//! products (`reduce` of `a b + c d`) adds `2 n 2^52`: still below `2^61`.

use super::super::vector::Vector;

#[cfg(target_arch = "x86_64")]
pub(super) mod fma;

/// Limbs in a block.
pub(super) const T: usize = 10;

/// Ten limbs, or ten columns.
pub(super) type Block<V> = [V; T];

/// A number of `B` blocks.
pub(super) type Number<V, const B: usize> = [Block<V>; B];

/// Blocks of columns beyond the product that the reduction's window looks at; they stay zero.
pub(super) const MARGIN: usize = 2;

/// An odd modulus, and what reduction needs of it.
#[derive(Clone, Copy)]
pub(super) struct Modulus<V, const B: usize> {
    /// N.
    pub number: Number<V, B>,
    /// M.
    pub friendly: Number<V, B>,
    /// N without its lowest limb: N as the last step needs it, in line with M.
    pub upper: Number<V, B>,
    /// k.
    pub factor: V,
}

/// Repeats a body for the ten values of a constant, so that every index of a register is one.
macro_rules! ten {
    ($i:ident => $body:block) => {{
        ten!(@ $i $body 0 1 2 3 4 5 6 7 8 9);
    }};
    (@ $i:ident $body:block $($value:literal)*) => {
        $({
            const $i: usize = $value;
            $body
        })*
    };
}

/// Repeats a body for the eight values of a constant.
macro_rules! eight {
    ($i:ident => $body:block) => {{
        ten!(@ $i $body 0 1 2 3 4 5 6 7);
    }};
}

/// Repeats a body for the five values of a constant.
macro_rules! five {
    ($i:ident => $body:block) => {{
        ten!(@ $i $body 0 1 2 3 4);
    }};
}

/// Repeats a body for the twenty values of a constant.
macro_rules! twenty {
    ($i:ident => $body:block) => {{
        ten!(@ $i $body 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19);
    }};
}

/// The parts of `row` times `by`, lowest part to column `at`.
macro_rules! add_row {
    ($columns:ident, $at:expr, $row:expr, $by:expr) => {{
        let (row, by) = ($row, $by);
        ten!(J => { $columns[$at + J] = $columns[$at + J].mul_lo(row, by[J]); });
        ten!(J => { $columns[$at + J + 1] = $columns[$at + J + 1].mul_hi(row, by[J]); });
    }};
}

/// `columns += a b`.
#[inline(always)]
fn add_product<V: Vector>(columns: &mut [V; 2 * T], a: &Block<V>, b: &Block<V>) {
    ten!(I => { add_row!(columns, I, a[I], b); });
}

/// `columns += ` the products of different limbs of `a`, each once.
#[allow(clippy::absurd_extreme_comparisons, reason = "every pair is written out, the first ones too")]
#[inline(always)]
fn add_triangle<V: Vector>(columns: &mut [V; 2 * T], a: &Block<V>) {
    ten!(I => {
        ten!(J => { if I < J { columns[I + J] = columns[I + J].mul_lo(a[I], a[J]); } });
        ten!(J => { if I < J { columns[I + J + 1] = columns[I + J + 1].mul_hi(a[I], a[J]); } });
    });
}

/// The ten lower columns; the window moves up.
#[inline(always)]
fn take_lower<V: Vector>(columns: &mut [V; 2 * T]) -> Block<V> {
    let mut lower = [V::splat(0); T];
    ten!(I => {
        lower[I] = columns[I];
        columns[I] = columns[I + T];
        columns[I + T] = V::splat(0);
    });
    lower
}

/// `wide = a b`, as columns. `wide` has `2 B + MARGIN` blocks, the last [`MARGIN`] of which are left alone.
#[inline(always)]
pub(super) fn product<V: Vector, const B: usize>(wide: &mut [Block<V>], a: &Number<V, B>, b: &Number<V, B>) {
    let mut columns = [V::splat(0); 2 * T];
    let wide = &mut wide[..2 * B];
    for (k, lower) in wide.iter_mut().enumerate() {
        let first = (k + 1).saturating_sub(B);
        for i in first..B.min(k + 1) {
            add_product(&mut columns, &a[i], &b[k - i]);
        }
        *lower = take_lower(&mut columns);
    }
}

/// `wide = a a`, as columns.
#[inline(always)]
pub(super) fn square<V: Vector, const B: usize>(wide: &mut [Block<V>], a: &Number<V, B>) {
    if let ([low, high], true) = (a.as_slice(), B == 2) {
        return square_short(wide, low, high);
    }
    let mut columns = [V::splat(0); 2 * T];
    let wide = &mut wide[..2 * B];
    for (k, lower) in wide.iter_mut().enumerate() {
        let first = (k + 1).saturating_sub(B);
        for i in first..k.div_ceil(2) {
            add_product(&mut columns, &a[i], &a[k - i]);
        }
        if k % 2 == 0 {
            add_triangle(&mut columns, &a[k / 2]);
        }
        let (once, of) = (take_lower(&mut columns), &a[k / 2]);
        // Column 2 i takes the low part of the square of limb i, column 2 i + 1 the high part. Two blocks of columns
        // belong to one block of limbs.
        let half = if k % 2 == 0 { 0 } else { T / 2 };
        ten!(C => {
            let (twice, limb) = (once[C].add(once[C]), of[half + C / 2]);
            lower[C] = if C.is_multiple_of(2) { twice.mul_lo(limb, limb) } else { twice.mul_hi(limb, limb) };
        });
    }
}

/// Product `S` of column `C` of the square of 20 limbs: different limbs `i < j` with `i + j = C`. None beyond the last.
const fn pair(column: usize, s: usize) -> Option<(usize, usize)> {
    let i = column.saturating_sub(2 * T - 1) + s;
    if 2 * i < column { Some((i, column - i)) } else { None }
}

/// [`square`] of 20 limbs, all of which stay in registers. Eight columns at a time, by turns, hide the latency.
#[inline(always)]
fn square_short<V: Vector>(wide: &mut [Block<V>], low: &Block<V>, high: &Block<V>) {
    let wide = &mut wide[..4];
    let mut a = [V::splat(0); 2 * T];
    ten!(I => {
        a[I] = low[I];
        a[I + T] = high[I];
    });
    five!(GROUP => {
        let mut columns = [V::splat(0); 8];
        ten!(S => {
            eight!(C => {
                // The first column takes no high part, as the column below it would have no pair.
                const PAIR: Option<(usize, usize)> = pair((8 * GROUP + C).saturating_sub(1), S);
                if let Some((i, j)) = PAIR {
                    columns[C] = columns[C].mul_hi(a[i], a[j]);
                }
            });
        });
        ten!(S => {
            eight!(C => {
                const PAIR: Option<(usize, usize)> = pair(8 * GROUP + C, S);
                if let Some((i, j)) = PAIR {
                    columns[C] = columns[C].mul_lo(a[i], a[j]);
                }
            });
        });
        eight!(C => {
            const COLUMN: usize = 8 * GROUP + C;
            let (twice, limb) = (columns[C].add(columns[C]), a[COLUMN / 2]);
            wide[COLUMN / T][COLUMN % T] =
                if C.is_multiple_of(2) { twice.mul_lo(limb, limb) } else { twice.mul_hi(limb, limb) };
        });
    });
}

/// Columns in the window of a reduction: quotients of one block times one block of M reach one column further.
const WINDOW: usize = 2 * T + 1;

/// `columns += q M 2^52` for a block of quotients and a block of M; `last` is what the tenth quotient goes with.
#[inline(always)]
fn add_quotients<V: Vector>(columns: &mut [V; WINDOW], q: &Block<V>, friendly: &Block<V>, last: &Block<V>) {
    ten!(I => {
        if I < T - 1 {
            add_row!(columns, I + 1, q[I], friendly);
        } else {
            add_row!(columns, I + 1, q[I], last);
        }
    });
}

/// The window moves up by ten; the next ten columns of `wide` come in.
#[inline(always)]
fn advance<V: Vector>(columns: &mut [V; WINDOW], next: &[V; T]) {
    ten!(I => {
        columns[I] = columns[I + T];
    });
    columns[T] = columns[2 * T];
    ten!(I => { columns[T + 1 + I] = next[I]; });
}

/// `out = wide / R` modulo N, raw, below `wide / R + 2 N`. Overwrites the lower half of `wide`. Column `c` of what is
/// to be reduced is in block `c / 10`; [`MARGIN`] blocks of zeros follow.
#[inline(always)]
pub(super) fn reduce<V: Vector, const B: usize>(
    out: &mut Number<V, B>,
    wide: &mut [Block<V>],
    modulus: &Modulus<V, B>,
) {
    if B == 2 {
        return reduce_short(out, wide, modulus);
    }
    let wide = &mut wide[..2 * B + MARGIN];
    let mut columns = [V::splat(0); WINDOW];
    ten!(I => {
        columns[I] = wide[0][I];
        columns[I + T] = wide[1][I];
    });
    columns[2 * T] = wide[2][0];
    let friendly = &modulus.friendly;
    for k in 0..B {
        for i in 0..k {
            add_quotients(&mut columns, &wide[i], &friendly[k - i], &friendly[k - i]);
        }
        let mut quotients = [V::splat(0); T];
        ten!(I => {
            if I < T - 1 {
                quotients[I] = columns[I];
                columns[I + 1] = columns[I + 1].add(columns[I].shr::<52>());
                add_row!(columns, I + 1, columns[I], &friendly[0]);
            }
        });
        const LAST: usize = T - 1;
        if k < B - 1 {
            quotients[LAST] = columns[LAST];
            columns[T] = columns[T].add(columns[LAST].shr::<52>());
            add_row!(columns, T, columns[LAST], &friendly[0]);
        } else {
            let q = V::splat(0).mul_lo(columns[LAST], modulus.factor);
            let lowest = modulus.number[0][0];
            quotients[LAST] = q;
            columns[LAST] = columns[LAST].mul_lo(q, lowest);
            columns[T] = columns[T].add(columns[LAST].shr::<52>()).mul_hi(q, lowest);
            add_row!(columns, T, q, &modulus.upper[0]);
        }
        wide[k] = quotients;
        advance_from(&mut columns, wide, k);
    }
    for k in B..2 * B {
        for i in k - B + 1..B - 1 {
            add_quotients(&mut columns, &wide[i], &friendly[k - i], &friendly[k - i]);
        }
        if k < 2 * B - 1 {
            let i = B - 1;
            add_quotients(&mut columns, &wide[i], &friendly[k - i], &modulus.upper[k - i]);
        }
        ten!(I => {
            out[k - B][I] = columns[I];
            columns[I + 1] = columns[I + 1].add(columns[I].shr::<52>());
        });
        if k < 2 * B - 1 {
            advance_from(&mut columns, wide, k);
        }
    }
}

/// The parts of `row` times the 20 limbs of `by`, lowest part to column `at`. Only five limbs of `by` need registers.
macro_rules! add_long_row {
    ($columns:ident, $at:expr, $row:expr, $by:expr) => {{
        let (row, by) = ($row, $by);
        ten!(@ G {
            five!(J => { $columns[$at + G + J] = $columns[$at + G + J].mul_lo(row, by[G / T][G % T + J]); });
            five!(J => { $columns[$at + G + J + 1] = $columns[$at + G + J + 1].mul_hi(row, by[G / T][G % T + J]); });
        } 0 5 10 15);
    }};
}

/// As `add_long_row!` for two rows, the second one column further, except for the lowest limb of `by` in the first row.
/// Each limb is loaded once for both.
macro_rules! add_two_long_rows {
    ($columns:ident, $at:expr, $first:expr, $second:expr, $by:expr) => {{
        let (first, second, by) = ($first, $second, $by);
        // Neighbours share columns, and a multiplication waits four cycles for the one before it: not one after another.
        ten!(@ G {
            five!(J => {
                if G + J > 0 {
                    $columns[$at + G + J] = $columns[$at + G + J].mul_lo(first, by[G / T][G % T + J]);
                }
            });
            five!(J => {
                if G + J > 0 {
                    $columns[$at + G + J + 1] = $columns[$at + G + J + 1].mul_hi(first, by[G / T][G % T + J]);
                }
            });
            five!(J => {
                $columns[$at + G + J + 1] = $columns[$at + G + J + 1].mul_lo(second, by[G / T][G % T + J]);
            });
            five!(J => {
                $columns[$at + G + J + 2] = $columns[$at + G + J + 2].mul_hi(second, by[G / T][G % T + J]);
            });
        } 0 10 5 15);
    }};
}

/// [`reduce`] for 20 limbs, whose columns all stay in registers: two quotients at a time, with the modulus from memory.
/// (One quotient at a time takes a load for two multiplications, which is more than some CPUs can do.) `B` is 2.
#[inline(always)]
fn reduce_short<V: Vector, const B: usize>(
    out: &mut Number<V, B>,
    wide: &[Block<V>],
    modulus: &Modulus<V, B>,
) {
    const LAST: usize = 2 * T - 1;
    let wide = &wide[..5];
    let mut columns = [V::splat(0); 4 * T + 1];
    twenty!(I => { columns[I] = wide[I / T][I % T]; });
    columns[2 * T] = wide[2][0];
    twenty!(I => {
        columns[I + 21] = wide[(I + 21) / T][(I + 21) % T];
        // Opaque, or all limbs of the modulus would be loaded first and the columns moved out for them.
        let friendly = std::hint::black_box(&modulus.friendly);
        if I % 2 == 1 && I < LAST {
            let lowest = friendly[0][0];
            columns[I] = columns[I].add(columns[I - 1].shr::<52>()).mul_lo(columns[I - 1], lowest);
            columns[I + 1] = columns[I + 1].mul_hi(columns[I - 1], lowest).add(columns[I].shr::<52>());
            add_two_long_rows!(columns, I, columns[I - 1], columns[I], friendly);
        } else if I == LAST - 1 {
            columns[I + 1] = columns[I + 1].add(columns[I].shr::<52>());
            add_long_row!(columns, I + 1, columns[I], friendly);
        }
    });
    let q = V::splat(0).mul_lo(columns[LAST], modulus.factor);
    let lowest = modulus.number[0][0];
    columns[LAST] = columns[LAST].mul_lo(q, lowest);
    columns[LAST + 1] = columns[LAST + 1].add(columns[LAST].shr::<52>()).mul_hi(q, lowest);
    add_long_row!(columns, LAST + 1, q, &modulus.upper);
    twenty!(I => {
        out[I / T][I % T] = columns[2 * T + I];
        columns[2 * T + I + 1] = columns[2 * T + I + 1].add(columns[2 * T + I].shr::<52>());
    });
}

/// Brings in the columns that follow those of window `k`.
#[inline(always)]
fn advance_from<V: Vector>(columns: &mut [V; WINDOW], wide: &[Block<V>], k: usize) {
    let mut next = [V::splat(0); T];
    ten!(I => { next[I] = if I < T - 1 { wide[k + 2][(I + 1) % T] } else { wide[k + 3][0] }; });
    advance(columns, &next);
}

/// Block `block` of the entry of `table` that `digit` names in each lane. The block is read of every entry.
#[inline(always)]
pub(super) fn select<V: Vector, const B: usize>(
    out: &mut Number<V, B>,
    table: &[Number<V, B>],
    digit: V,
    block: usize,
) {
    let mut chosen = [V::splat(0); T];
    let (mut number, one) = (V::splat(0), V::splat(1));
    for entry in table {
        let (here, entry) = (digit.is_equal(number), &entry[block]);
        ten!(I => { chosen[I] = V::choose(here, entry[I], chosen[I]); });
        number = number.add(one);
    }
    out[block] = chosen;
}
