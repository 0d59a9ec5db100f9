//! The arithmetic against big integers, on the scalar model and on the instructions; the kernels over poisoned secrets.
//! What a caller sees is shown in `tests/lanes_x25519.rs`.

use std::panic::catch_unwind;

use num_bigint::BigUint;
use wattlock_core::dev::Random;
use x25519_dalek::{X25519_BASEPOINT_BYTES, x25519};

use super::comb::{self, Table};
use super::entries::Entries;
use super::field::{BIAS, Columns, LIMBS, Machine, Operand, Rows};
use super::inverse::inverse;
use super::ladder::{self, WORDS};
use super::sound::undisturbed;
use super::{BYTES, Words, clamped, get, put, vectors};
use crate::detect::Cpu;
use crate::lanes::vector::model::Model;
use crate::lanes::vector::{Ifma, LANES, MASK52, Vector};

/// The largest limb 4 of an operand.
const TOP: u64 = (1 << 47) + (1 << 9);

/// The largest fresh column.
const FRESH: u64 = 1 << 56;

type Limbs = [[u64; LANES]; LIMBS];

fn p() -> BigUint {
    (BigUint::from(1u8) << 255) - 19u8
}

/// The value of limbs or columns in one lane, each counted whole.
fn value(limbs: &Limbs, lane: usize) -> BigUint {
    (0..LIMBS).map(|k| BigUint::from(limbs[k][lane]) << (52 * k)).sum()
}

/// The value of an operand: rubbish above 52 bits does not count.
fn operand_value(limbs: &Limbs, lane: usize) -> BigUint {
    let mut limbs = *limbs;
    limbs[..LIMBS - 1].as_flattened_mut().iter_mut().for_each(|limb| *limb &= MASK52);
    value(&limbs, lane)
}

/// Operands random and extreme, mixed by lane and limb, with rubbish where it may be.
fn operands(random: &Random) -> Limbs {
    let limb = |k: usize| {
        let (largest, full) = if k < LIMBS - 1 { (u64::MAX, MASK52) } else { (TOP, (1 << 47) - 1) };
        *random.pick(&[0, largest, full, random.next() & full])
    };
    let mut limbs: Limbs = std::array::from_fn(|k| std::array::from_fn(|_| limb(k)));
    // One lane at every bound, one at p, one at p - 1.
    (0..LIMBS).for_each(|k| limbs[k][0] = if k < LIMBS - 1 { MASK52 } else { TOP });
    (0..LIMBS).for_each(|k| limbs[k][1] = if k < LIMBS - 1 { MASK52 } else { (1 << 47) - 1 });
    limbs[0][1] -= 18;
    (0..LIMBS).for_each(|k| limbs[k][2] = limbs[k][1]);
    limbs[0][2] -= 1;
    limbs
}

/// Everything the field does to two operands.
struct Found {
    /// With what the value must be modulo p. Fresh columns.
    fresh: Vec<Limbs>,
    /// Below 2^61.
    summed: Vec<Limbs>,
    carried: Vec<Limbs>,
    words: Words,
    /// Where it is zero, lane 0 lowest.
    zero: u8,
}

#[inline(always)]
fn compute<V: Machine>(a: &Limbs, b: &Limbs) -> Found {
    let (a, b) = (Operand(a.each_ref().map(V::new)), Operand(b.each_ref().map(V::new)));
    let (ab, aa) = (a.times(&b), a.squared());
    let (ab_biased, aa_biased) = (a.times_biased(&b), a.squared_biased());
    let summed = [
        ab_biased,
        aa_biased,
        ab_biased.plus(&aa),
        ab_biased.minus(&aa),
        aa_biased.plus_small(&b, 121_665),
        ab_biased.plus(&aa).plus(&aa).plus(&aa),
        ab_biased.minus(&aa).minus(&aa).minus(&aa),
        aa_biased.plus_small(&b, (1 << 19) - 1),
    ];
    let out = |columns: &Columns<V>| columns.limbs().map(V::reveal);
    Found {
        fresh: [ab, aa, Rows::of(a).times(&b), a.squared_plus_one()].iter().map(out).collect(),
        carried: summed.iter().map(|columns| columns.carried().0.map(V::reveal)).collect(),
        summed: summed.iter().map(out).collect(),
        words: a.to_words().map(V::reveal),
        zero: V::reveal_mask(a.is_zero()),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
#[inline(never)]
fn compute_ifma(a: &Limbs, b: &Limbs) -> Found {
    compute::<Ifma>(a, b)
}

/// What must be true of it, in big integers.
fn check(a: &Limbs, b: &Limbs, found: &Found) {
    let p = p();
    for lane in 0..LANES {
        let (x, y) = (operand_value(a, lane), operand_value(b, lane));
        let (xy, xx) = (&x * &y % &p, &x * &x % &p);
        for (limbs, want) in found.fresh.iter().zip([&xy, &xx, &xy, &((&xx + 1u32) % &p)]) {
            assert!(limbs.iter().all(|limb| limb[lane] <= FRESH), "a fresh column is too large");
            assert_eq!(&(value(limbs, lane) % &p), want);
        }
        let wants = [
            xy.clone(),
            xx.clone(),
            &xy + &xx,
            &xy + &p - &xx,
            &xx + &y * 121_665u32,
            &xy + &xx * 3u32,
            &xy + (&p - &xx) * 3u32,
            &xx + &y * ((1u32 << 19) - 1),
        ];
        for ((summed, carried), want) in found.summed.iter().zip(&found.carried).zip(wants) {
            assert!(summed.iter().all(|limb| limb[lane] < 1 << 61), "a column is too large to carry");
            assert!(carried[LIMBS - 1][lane] <= TOP, "limb 4 is too large");
            assert_eq!(value(summed, lane) % &p, &want % &p);
            assert_eq!(operand_value(carried, lane) % &p, &want % &p);
        }
        assert_eq!(found.zero >> lane & 1 == 1, &x % &p == BigUint::ZERO);
        assert_eq!(BigUint::from_bytes_le(&*get(&found.words, lane)), x % &p);
    }
}

#[test]
fn bias_is_a_multiple_of_p_and_exceeds_every_fresh_column_thrice() {
    let bias = BIAS.map(|column| [column; LANES]);
    assert_eq!(value(&bias, 0) % p(), BigUint::from(0u8));
    assert!(BIAS.iter().all(|column| (3 * FRESH..=1 << 60).contains(column)));
}

#[test]
fn field_computes_what_big_integers_compute_and_keeps_its_bounds() {
    let random = Random::new(0x0255_0019);
    let cpu = Cpu::detect();
    println!("AVX-512 IFMA: {}", cpu.ifma512.is_some());
    for _ in 0..if cfg!(miri) { 2 } else { 400 } {
        let (a, b) = (operands(&random), operands(&random));
        check(&a, &b, &compute::<Model>(&a, &b));
        if cpu.ifma512.is_some() {
            // SAFETY: the witness above says that the instructions are there.
            check(&a, &b, &unsafe { compute_ifma(&a, &b) });
        }
    }
}

#[test]
fn inverse_times_the_number_is_one_and_zero_has_zero() {
    let random = Random::new(0x0255_0020);
    for _ in 0..4 {
        let mut limbs = operands(&random);
        (0..LIMBS).for_each(|k| limbs[k][3] = 0);
        let number = Operand(limbs.each_ref().map(Model::new));
        let product = inverse(&number).times(&number).carried().to_words().map(Vector::reveal);
        for lane in 0..LANES {
            let zero = operand_value(&limbs, lane) % p() == BigUint::from(0u8);
            let want = BigUint::from(u8::from(!zero));
            assert_eq!(BigUint::from_bytes_le(&*get(&product, lane)), want);
        }
    }
}

/// Eight clamped scalars, two of them the smallest and the largest, the others random.
fn scalars(random: &Random) -> Words {
    let mut words = Words::default();
    for lane in 0..LANES {
        let bytes = match lane {
            0 => [0; BYTES],
            1 => [255; BYTES],
            _ => random.bytes(BYTES).try_into().unwrap(),
        };
        put(&mut words, lane, &clamped(&bytes));
    }
    words
}

fn secret(words: &Words) -> [Model; WORDS] {
    words.each_ref().map(Model::secret)
}

#[test]
fn ladder_reveals_nothing_of_scalars_and_multiplies() {
    let random = Random::new(0x0255_0021);
    let (scalars, mut points) = (scalars(&random), Words::default());
    (0..LANES).for_each(|lane| put(&mut points, lane, &random.bytes(BYTES).try_into().unwrap()));
    let (products, sound) = ladder::multiply(secret(&scalars), vectors::<Model>(&points), undisturbed);
    assert!(catch_unwind(|| Model::reveal_mask(sound)).is_err(), "until the entry says so");
    let products = products.map(Model::declassified);
    for lane in 0..LANES {
        assert_eq!(*get(&products, lane), x25519(*get(&scalars, lane), *get(&points, lane)));
    }
}

#[test]
fn comb_reveals_nothing_of_scalars_and_multiplies() {
    let table = Table::compute::<Model>();
    let scalars = scalars(&Random::new(0x0255_0022));
    let (products, sound) = comb::multiply(&table, secret(&scalars), undisturbed);
    assert!(catch_unwind(|| Model::reveal_mask(sound)).is_err(), "until the entry says so");
    let products = products.map(Model::declassified);
    for lane in 0..LANES {
        assert_eq!(*get(&products, lane), x25519(*get(&scalars, lane), X25519_BASEPOINT_BYTES));
    }
}

#[test]
#[should_panic(expected = "a secret was revealed")]
fn a_product_is_a_secret_until_it_is_declassified() {
    let scalars = scalars(&Random::new(0x0255_0023));
    super::reveal(ladder::multiply(secret(&scalars), vectors::<Model>(&scalars), undisturbed).0);
}

#[test]
fn table_of_the_instructions_is_that_of_the_model() {
    let (cpu, model) = (Cpu::detect(), Table::compute::<Model>());
    assert!(cpu.ifma512.is_none_or(|isa| isa.table() == model));
}
