//! Products of the base point, eight lanes with a scalar each: a fixed-base comb on the Edwards form of the curve.
//!
//! # From a scalar to signs and digits
//! A clamped scalar is s = 8k with k below 2^252. Write k in 42 digits m of six bits. With n = 2m - 63, odd and between
//! -63 and 63, and Q = 4B,
//!
//! ```text
//! sum of n 64^i = 2k - (64^42 - 1)        so        sB = 8kB = (sum of n 64^i) Q + (2^252 - 1) Q
//! ```
//!
//! The last point is a constant with which the accumulator starts. No digit is zero and none carries into the next.
//! Window i of the table has the odd multiples 1, 3, ..., 63 of 64^i Q: for m above 31 the entry is m - 32 and the sign
//! plus, else 31 - m and minus; both are the low five bits of m, flipped if m is below 32.
//!
//! # Formulas
//! Edwards curve -x^2 + y^2 = 1 + d x^2 y^2 (RFC 8032), extended coordinates x = X/Z, y = Y/Z, T = XY/Z. Addition is
//! `madd-2008-hwcd-3` of the EFD with the entry's three numbers halved, ((y + x)/2, (y - x)/2, dxy), which scales the
//! result by a quarter and spares doubling Z:
//!
//! ```text
//! a = (Y - X) (y - x)/2   b = (Y + X) (y + x)/2   c = T dxy
//! E = b - a   H = b + a   F = Z - c   G = Z + c
//! X = E F   Y = G H   T = E H   Z = F G
//! ```
//!
//! The other sign exchanges y + x with y - x, and F with G. The formulas are complete, since d is no square. u of the
//! Montgomery form is (Z + Y)/(Z - Y) = (F + H)/(F - H), so the last addition stops there; F = H would need a product
//! that is the neutral point, which no clamped scalar has (k is not 0 modulo the order, a prime above 2^252).
//!
//! # Table
//! 161 KB, computed at first use by the same kernel (about a millisecond) and public. It is read whole: every
//! window's rows in order, by loads whose addresses know no digit; digits choose among registers
//! ([`crate::lanes::vector::Vector::pick`]).

use super::field::{Columns, LIMBS, Machine, Operand};
use super::inverse::inverse;
use super::ladder::WORDS;
use super::sound::{Spot, is_on_curve};
use crate::lanes::vector::LANES;

/// Bits of a digit.
const BITS: u32 = 6;

/// Digits of a scalar's eighth.
const WINDOWS: usize = 42;

/// Odd multiples in a window.
const ENTRIES: usize = 1 << (BITS - 1);

/// Digits in a word of 60 bits.
const DIGITS: usize = 10;

/// Numbers of an entry: (y + x)/2, (y - x)/2, dxy.
const PARTS: usize = 3;

/// 1/2.
const HALF: [u64; LIMBS] =
    [0xffffffffffff7, 0xfffffffffffff, 0xfffffffffffff, 0xfffffffffffff, 0x3fffffffffff];

/// The curve's d, -121665/121666.
const D: [u64; LIMBS] = [0xb4dca135978a3, 0x4d4141d8ab75e, 0x779e89800700a, 0xfe738cc740797, 0x52036cee2b6f];

/// B of RFC 8032 section 5.1: y + x, y - x, xy and 1.
const BASE: Constant = [
    [0xc93c6f58c3b85, 0xc6fb8c0e192fb, 0x43d42c2cf932d, 0xba65270b48986, 0x7cf9d3a33d4],
    [0x3905d740913e, 0x5d140beb39d1, 0x88f8a09fd399f, 0x1267a5c184346, 0x44fd2f9298f8],
    [0xe8ab3a5b7dda3, 0x80775152f56dd, 0x4abe37d20f09f, 0x766566ea4e8e6, 0x67875f0fd78b],
    [1, 0, 0, 0, 0],
];

/// The same limb of all entries.
type Row = [[u64; LANES]; ENTRIES / LANES];

/// One window: for each part and limb, that of every entry.
#[derive(PartialEq)]
#[repr(align(64))]
struct Window([[Row; LIMBS]; PARTS]);

/// Plus, minus, t and z of a point, the same in every lane.
type Constant = [[u64; LIMBS]; 4];

/// The base point's multiples, and where the accumulator starts.
#[derive(PartialEq)]
pub(in crate::lanes) struct Table {
    windows: Vec<Window>,
    /// (2^252 - 1) Q.
    start: Constant,
}

/// An entry, one for each lane.
#[derive(Clone, Copy)]
struct Entry<V>([Operand<V>; PARTS]);

/// An entry and where it is subtracted.
struct Addend<V: Machine> {
    entry: Entry<V>,
    negative: V::Mask,
}

/// a, b (biased) and c.
struct Products<V> {
    a: Columns<V>,
    b: Columns<V>,
    c: Columns<V>,
}

/// Two quotients, not divided.
struct Fractions<V> {
    /// x = E/G of the Edwards form.
    x: [Operand<V>; 2],
    /// u = (F + H)/(F - H) of the Montgomery form.
    u: [Operand<V>; 2],
}

/// A point in extended coordinates, X and Y by their sum and difference.
#[derive(Clone, Copy)]
struct Point<V> {
    plus: Operand<V>,
    minus: Operand<V>,
    t: Operand<V>,
    /// Biased.
    z: Columns<V>,
}

/// u of the product of a clamped scalar with the base point, below p, both as little-endian words, and where it is
/// sound ([`super::sound`]).
#[inline(always)]
pub(super) fn multiply<V: Machine>(
    table: &Table,
    scalar: [V; WORDS],
    disturb: impl Fn(Spot, &mut Operand<V>),
) -> ([V; WORDS], V::Mask) {
    let digits = digits(scalar);
    let mut word = digits[0];
    let mut point = Point::splat(&table.start);
    let mut addend = table.windows[0].entry(word);
    for at in 1..WINDOWS {
        word = if at.is_multiple_of(DIGITS) { digits[at / DIGITS] } else { word.shr::<BITS>() };
        let products = point.products(&addend);
        // Here, where the machine would wait for the products.
        let next = table.windows[at].entry(word);
        point = point.sum(&products, addend.negative);
        addend = next;
        disturb(Spot::Comb(at, 0), &mut point.plus);
        disturb(Spot::Comb(at, 1), &mut point.minus);
        disturb(Spot::Comb(at, 2), &mut point.t);
    }
    let Fractions { x: [e, g], u: [up, down] } = point.last_sum(&point.products(&addend), addend.negative);
    let mut inverse = inverse(&down);
    disturb(Spot::Inverse, &mut inverse);
    let mut result = up.times(&inverse).carried();
    disturb(Spot::Result, &mut result);
    let result = result.to_words();
    (result, is_on_curve(&Operand::from_words(result), &e, &g))
}

/// An eighth of a scalar, sixty bits to a word.
#[inline(always)]
fn digits<V: Machine>(scalar: [V; WORDS]) -> [V; WORDS + 1] {
    let [a, b, c, d] = scalar;
    let (a, b) = (a.shr::<3>().or(b.shl::<61>()), b.shr::<3>().or(c.shl::<61>()));
    let (c, d) = (c.shr::<3>().or(d.shl::<61>()), d.shr::<3>());
    // Bits above sixty are never looked at: a word gives ten digits.
    [
        a,
        a.shr::<60>().or(b.shl::<4>()),
        b.shr::<56>().or(c.shl::<8>()),
        c.shr::<52>().or(d.shl::<12>()),
        d.shr::<48>(),
    ]
}

impl Window {
    /// The entry that each lane's low six bits name, and where it is to be subtracted.
    #[inline(always)]
    fn entry<V: Machine>(&self, word: V) -> Addend<V> {
        let digit = word.and(V::splat(63));
        let negative = digit.is_less(V::splat(32));
        let at = V::choose(negative, digit.xor(V::splat(31)), digit).and(V::splat(31));
        let parts = &self.0;
        Addend { entry: Entry([part(&parts[0], at), part(&parts[1], at), part(&parts[2], at)]), negative }
    }
}

/// One of a part's entries.
#[inline(always)]
fn part<V: Machine>(rows: &[Row; LIMBS], at: V) -> Operand<V> {
    Operand([
        pick(&rows[0], at),
        pick(&rows[1], at),
        pick(&rows[2], at),
        pick(&rows[3], at),
        pick(&rows[4], at),
    ])
}

/// One of a row's limbs.
#[inline(always)]
fn pick<V: Machine>(row: &Row, at: V) -> V {
    let lower = at.pick(V::new(&row[0]), V::new(&row[1]));
    let upper = at.pick(V::new(&row[2]), V::new(&row[3]));
    V::choose(V::splat(15).is_less(at), upper, lower)
}

impl<V: Machine> Point<V> {
    #[inline(always)]
    fn splat(constant: &Constant) -> Point<V> {
        let [plus, minus, t, z] = constant;
        Point {
            plus: Operand::splat(plus),
            minus: Operand::splat(minus),
            t: Operand::splat(t),
            z: Operand::splat(z).times_biased(&Operand::small(1)),
        }
    }

    /// A constant for each lane; the first for lanes that have none.
    #[inline(always)]
    fn gathered(constants: &[Constant]) -> Point<V> {
        let limb = |part: usize, limb: usize| {
            let of = |lane: usize| constants.get(lane).unwrap_or(&constants[0])[part][limb];
            V::new(&std::array::from_fn(of))
        };
        let part = |part: usize| {
            Operand([limb(part, 0), limb(part, 1), limb(part, 2), limb(part, 3), limb(part, 4)])
        };
        Point { plus: part(0), minus: part(1), t: part(2), z: part(3).times_biased(&Operand::small(1)) }
    }

    /// The first lane's point, which is public.
    #[inline(always)]
    fn constant(&self) -> Constant {
        let first = |part: Operand<V>| part.reduced().map(|limb| limb.reveal()[0]);
        [first(self.plus), first(self.minus), first(self.t), first(self.z.carried())]
    }

    /// The products that begin an addition.
    #[inline(always)]
    fn products(&self, addend: &Addend<V>) -> Products<V> {
        let ([plus, minus, dxy], negative) = (&addend.entry.0, addend.negative);
        Products {
            a: self.minus.times(&Operand::choose(negative, *plus, *minus)),
            b: self.plus.times_biased(&Operand::choose(negative, *minus, *plus)),
            c: self.t.times(dxy),
        }
    }

    /// The sum, or the difference, of which these are the products.
    #[inline(always)]
    fn sum(&self, Products { a, b, c }: &Products<V>, negative: V::Mask) -> Point<V> {
        let (e, h) = (b.minus(a).carried(), b.plus(a).carried());
        let (less, more) = (self.z.minus(c), self.z.plus(c));
        let f = Columns::choose(negative, &more, &less).carried();
        let g = Columns::choose(negative, &less, &more).carried();
        Point::of(&e, &f, &g, &h)
    }

    /// x of that sum or difference, and u, as fractions.
    #[inline(always)]
    fn last_sum(&self, Products { a, b, c }: &Products<V>, negative: V::Mask) -> Fractions<V> {
        let (less, more) = (self.z.minus(c), self.z.plus(c));
        let f = Columns::choose(negative, &more, &less);
        let g = Columns::choose(negative, &less, &more);
        // Of two fresh ones; f is a biased one with one fresh one taken off or added, so that it holds these two.
        let h = b.plus(a).minus(&Columns::bias());
        Fractions { x: [b.minus(a).carried(), g.carried()], u: [f.plus(&h).carried(), f.minus(&h).carried()] }
    }

    /// X = EF, Y = GH, T = EH, Z = FG.
    #[inline(always)]
    fn of(e: &Operand<V>, f: &Operand<V>, g: &Operand<V>, h: &Operand<V>) -> Point<V> {
        let x = e.times(f);
        let y = g.times_biased(h);
        let t = e.times(h);
        let (plus, minus) = (y.plus(&x).carried(), y.minus(&x).carried());
        let z = f.times_biased(g);
        Point { plus, minus, t: t.carried(), z }
    }

    /// Twice the point: `dbl-2008-hwcd` in terms of the sum p and the difference m, with E, G, H and F twice as large and
    /// all signs turned.
    #[inline(always)]
    fn doubled(&self) -> Point<V> {
        let (p2, m2) = (self.plus.squared_biased(), self.minus.squared());
        let pm = self.plus.times(&self.minus);
        let g = pm.plus(&pm);
        let z = self.z.carried();
        let (z2, biased) = (z.squared(), z.squared_biased());
        let f = biased.plus(&z2).plus(&z2).plus(&z2).minus(&g);
        Point::of(&p2.minus(&m2).carried(), &f.carried(), &g.carried(), &p2.plus(&m2).carried())
    }

    /// The point as an entry.
    #[inline(always)]
    fn entry(&self) -> Entry<V> {
        let inverse = inverse(&self.z.carried());
        let half = inverse.times(&Operand::splat(&HALF)).carried();
        let d = inverse.times(&Operand::splat(&D)).carried();
        let times = |a: &Operand<V>, b: &Operand<V>| a.times(b).carried();
        Entry([times(&self.plus, &half), times(&self.minus, &half), times(&self.t, &d)])
    }
}

impl Table {
    /// The table, computed by the lanes that will use it.
    #[inline(always)]
    pub(super) fn compute<V: Machine>() -> Table {
        let never = V::splat(0).is_less(V::splat(0));
        let mut power = Point::<V>::splat(&BASE).doubled().doubled();
        let q = Addend { entry: power.entry(), negative: V::not(never) };
        // 64^i Q.
        let mut powers = Vec::with_capacity(WINDOWS);
        for _ in 0..WINDOWS {
            powers.push(power.constant());
            for _ in 0..BITS {
                power = power.doubled();
            }
        }
        let start = power.sum(&power.products(&q), q.negative).constant();
        let mut windows: Vec<Window> =
            (0..WINDOWS).map(|_| Window([[Row::default(); LIMBS]; PARTS])).collect();
        for (windows, powers) in windows.chunks_mut(LANES).zip(powers.chunks(LANES)) {
            let mut point = Point::<V>::gathered(powers);
            let twice = Addend { entry: point.doubled().entry(), negative: never };
            for at in 0..ENTRIES {
                scatter(&point.entry(), at, windows);
                point = point.sum(&point.products(&twice), never);
            }
        }
        Table { windows, start }
    }
}

/// Writes each lane's entry to that lane's window.
#[inline(always)]
fn scatter<V: Machine>(entry: &Entry<V>, at: usize, windows: &mut [Window]) {
    for (part, number) in entry.0.iter().enumerate() {
        for (limb, numbers) in number.reduced().into_iter().map(V::reveal).enumerate() {
            for (window, number) in windows.iter_mut().zip(numbers) {
                window.0[part][limb][at / LANES][at % LANES] = number;
            }
        }
    }
}
