//! [`Shorts`] in plain numbers, with poison: what kernels are compared with, and what shows that they reveal nothing.

use super::{BYTES, Poly, Row, SHORTS, Shorts};
use crate::lanes::keccak::{self, State};
use crate::lanes::vector::Vector;
use crate::lanes::vector::model::Model;

/// Numbers of 12 bits, one after the other: FIPS 203 algorithm 7, in plain code.
fn accept_plainly(bytes: &[u8], out: &mut [i16; 256 + SHORTS], mut count: usize) -> usize {
    for three in bytes.as_chunks::<3>().0 {
        let [a, b, c] = three.map(i16::from);
        for number in [a | (b & 15) << 8, b >> 4 | c << 4] {
            if number < 3329 && count < 256 {
                out[count] = number;
                count += 1;
            }
        }
    }
    count
}

thread_local! {
    /// What the model published, in order.
    pub static PUBLISHED: std::cell::RefCell<Vec<[u8; BYTES]>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Between words of 64 bits, bytes and numbers of 16.
mod plain {
    use super::{BYTES, Row};

    pub fn bytes_of(numbers: &[u64; 8]) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes.as_chunks_mut().0.iter_mut().zip(numbers).for_each(|(to, from)| *to = from.to_le_bytes());
        bytes
    }

    pub fn of_bytes(bytes: &[u8; BYTES]) -> [u64; 8] {
        std::array::from_fn(|lane| u64::from_le_bytes(bytes.as_chunks().0[lane]))
    }

    pub fn shorts_of(numbers: &[u64; 8]) -> Row {
        std::array::from_fn(|at| (numbers[at / 4] >> (16 * (at % 4))) as i16)
    }

    pub fn of_shorts(shorts: &Row) -> [u64; 8] {
        std::array::from_fn(|lane| {
            (0..4).fold(0, |sum, at| sum | u64::from(shorts[4 * lane + at] as u16) << (16 * at))
        })
    }
}

impl Model {
    fn numbers(self) -> [u64; 8] {
        self.numbers
    }

    /// Other numbers, as secret as these.
    fn with(self, numbers: [u64; 8]) -> Model {
        Model { numbers, ..self }
    }

    /// Numbers that were computed from all of these.
    fn joined(from: &[Model], numbers: [u64; 8]) -> Model {
        Model { numbers, poisoned: from.iter().any(|one| one.poisoned) }
    }

    #[inline(never)]
    fn shorts(self, f: impl Fn(i16) -> i16) -> Model {
        self.with(plain::of_shorts(&plain::shorts_of(&self.numbers()).map(f)))
    }

    #[inline(never)]
    fn zip16(self, other: Model, f: impl Fn(i32, i32) -> i32) -> Model {
        let (a, b) = (plain::shorts_of(&self.numbers()), plain::shorts_of(&other.numbers()));
        let each = std::array::from_fn(|at| f(a[at].into(), b[at].into()) as i16);
        Model::joined(&[self, other], plain::of_shorts(&each))
    }

    /// Bytes of both, of which `f` says those of the result: below 64 of the first.
    #[inline(never)]
    fn mixed(self, other: Model, f: impl Fn(usize) -> Option<usize>) -> Model {
        let both = [plain::bytes_of(&self.numbers()), plain::bytes_of(&other.numbers())];
        let bytes = std::array::from_fn(|at| f(at).map_or(0, |from| both.as_flattened()[from]));
        Model::joined(&[self, other], plain::of_bytes(&bytes))
    }
}

// Not inlined, as the rest of the model is not: kernels written out for registers would take minutes to compile.
impl Shorts for Model {
    #[inline(never)]
    fn public(bytes: &[u8; BYTES]) -> Model {
        Vector::new(&plain::of_bytes(bytes))
    }

    #[inline(never)]
    fn secret(bytes: &[u8; BYTES]) -> Model {
        Model::secret(&plain::of_bytes(bytes))
    }

    #[inline(never)]
    fn reveal(self) -> [u8; BYTES] {
        plain::bytes_of(&Vector::reveal(self))
    }

    #[inline(never)]
    fn publish(self) -> Model {
        PUBLISHED.with_borrow_mut(|list| list.push(plain::bytes_of(&self.numbers())));
        Vector::new(&self.numbers())
    }

    #[inline(never)]
    fn row(numbers: &Row) -> Model {
        Vector::new(&plain::of_shorts(numbers))
    }

    #[inline(never)]
    fn splat16(number: i16) -> Model {
        Model::row(&[number; SHORTS])
    }

    #[inline(never)]
    fn add16(self, other: Model) -> Model {
        self.zip16(other, |a, b| a + b)
    }

    #[inline(never)]
    fn sub16(self, other: Model) -> Model {
        self.zip16(other, |a, b| a - b)
    }

    #[inline(never)]
    fn mul_lo16(self, other: Model) -> Model {
        self.zip16(other, |a, b| a * b)
    }

    #[inline(never)]
    fn mul_hi16(self, other: Model) -> Model {
        self.zip16(other, |a, b| (a * b) >> 16)
    }

    #[inline(never)]
    fn mul_round16(self, other: Model) -> Model {
        self.zip16(other, |a, b| (a * b + (1 << 14)) >> 15)
    }

    #[inline(never)]
    fn pair_sums(self, other: Model) -> Model {
        let (a, b) = (plain::shorts_of(&self.numbers()), plain::shorts_of(&other.numbers()));
        let product = |at: usize| i32::from(a[at]).wrapping_mul(b[at].into());
        let sum = |word: usize| product(2 * word).wrapping_add(product(2 * word + 1)) as u32;
        let pair = |lane: usize| u64::from(sum(2 * lane)) | u64::from(sum(2 * lane + 1)) << 32;
        Model::joined(&[self, other], std::array::from_fn(pair))
    }

    #[inline(never)]
    fn sar16<const BITS: u32>(self) -> Model {
        self.shorts(|a| a >> BITS)
    }

    #[inline(never)]
    fn shr16<const BITS: u32>(self) -> Model {
        self.shorts(|a| (a as u16 >> BITS) as i16)
    }

    #[inline(never)]
    fn shl16<const BITS: u32>(self) -> Model {
        self.shorts(|a| a << BITS)
    }

    #[inline(never)]
    fn shuffle(self, order: u128) -> Model {
        let order = order.to_le_bytes();
        let from = |at: usize| Some(order[at % 16]).filter(|from| *from < 128);
        self.mixed(self, |at| from(at).map(|from| at / 16 * 16 + usize::from(from % 16)))
    }

    #[inline(never)]
    fn low8(self, other: Model) -> Model {
        self.mixed(other, |at| Some(at / 16 * 16 + at % 16 / 2 + at % 2 * BYTES))
    }

    #[inline(never)]
    fn high8(self, other: Model) -> Model {
        self.mixed(other, |at| Some(at / 16 * 16 + 8 + at % 16 / 2 + at % 2 * BYTES))
    }

    #[inline(never)]
    fn pieces(rows: [Model; 4]) -> [Model; 4] {
        let numbers = rows.map(Model::numbers);
        std::array::from_fn(|piece| {
            Model::joined(&rows, std::array::from_fn(|lane| numbers[lane / 2][2 * piece + lane % 2]))
        })
    }

    #[inline(never)]
    fn exchange<const LEN: usize>(a: Model, b: Model) -> (Model, Model) {
        let block = 2 * LEN;
        let second = |at: usize| at / block % 2 == 1;
        (
            a.mixed(b, |at| Some(if second(at) { BYTES + at - block } else { at })),
            a.mixed(b, |at| Some(if second(at) { BYTES + at } else { at + block })),
        )
    }

    #[inline(never)]
    fn transpose(rows: &[Model; 8]) -> [Model; 8] {
        std::array::from_fn(|word| {
            Model::joined(rows, std::array::from_fn(|lane| rows[lane].numbers()[word]))
        })
    }

    #[inline(never)]
    fn arrange(self, from: &[usize; 8]) -> Model {
        self.with(from.map(|from| self.numbers()[from]))
    }

    #[inline(never)]
    fn lowest_bits(poly: &Poly<Model>) -> Model {
        let bit = |at: usize| plain::shorts_of(&poly[at / SHORTS].numbers())[at % SHORTS] as u8 & 1;
        let byte = |at: usize| (0..8).fold(0, |sum, place| sum | bit(8 * at + place) << place);
        let bytes = std::array::from_fn(|at| if at < 32 { byte(at) } else { 0 });
        Model::joined(poly, plain::of_bytes(&bytes))
    }

    #[inline(never)]
    fn is_zero(self) -> Model {
        let none = self.numbers().iter().all(|number| *number == 0);
        self.with([if none { u64::MAX } else { 0 }; 8])
    }

    #[inline(never)]
    fn keccak(state: &mut State<Model>, _: usize) {
        keccak::permute(state);
    }

    #[inline(never)]
    fn accept(bytes: &[u8], out: &mut [i16; 256 + SHORTS], count: usize) -> usize {
        accept_plainly(&bytes[..bytes.len() - 8], out, count)
    }
}
