//! The arithmetic and the operation against integers of any size, on the scalar model and on the instructions; secrets
//! poisoned; faults injected.

use num_bigint::{BigInt, BigUint};
use wattlock_core::{Kind, Material, RsaKey, known_answers};

use super::key::{Expanded, bytes_of_limbs, limbs_of_bytes};
use super::machine::Machine;
use super::mont::{Block, MARGIN, Modulus, Number, T};
use super::work::{LONGEST, Lane, Wiped};
use crate::detect::Cpu;
use crate::lanes::vector::model::Model;
use crate::lanes::vector::{Fma, Ifma, LANES, MASK52, Vector};

/// Numbers for tests: mostly random, often extreme.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) ^ mixed >> 31
    }

    /// Any 64 bits; now and then all limbs are at an end of their range.
    fn limbs(&mut self, count: usize) -> Vec<u64> {
        match self.next() % 8 {
            0 => vec![u64::MAX; count],
            1 => vec![0; count],
            _ => (0..count).map(|_| self.next()).collect(),
        }
    }

    /// An odd modulus with so many bits, at an end of its range now and then.
    fn modulus(&mut self, bits: usize) -> BigUint {
        let top = BigUint::from(1u8) << (bits - 1);
        match self.next() % 4 {
            0 => top + 1u8,
            1 => (top << 1) - 1u8,
            _ => {
                let words: Vec<u32> = (0..bits / 32).map(|_| self.next() as u32).collect();
                (BigUint::from_slice(&words) % &top + &top) | BigUint::from(1u8)
            }
        }
    }
}

/// The number that limbs mean when bits above the 52nd are ignored.
fn value(limbs: &[u64]) -> BigUint {
    limbs.iter().rev().fold(BigUint::ZERO, |sum, limb| (sum << 52) + (limb & MASK52))
}

/// The number that columns mean, every bit counted, each column signed.
fn whole(columns: &[u64]) -> BigUint {
    let sum = |sum: BigInt, column: &u64| (sum << 52) + column.cast_signed();
    columns.iter().rev().fold(BigInt::ZERO, sum).to_biguint().expect("a product is not negative")
}

fn limbs_of(number: &BigUint, count: usize) -> Vec<u64> {
    let mut limbs = vec![0; count];
    limbs_of_bytes(&number.to_bytes_be(), &mut limbs);
    limbs
}

/// Eight lists of limbs as blocks of vectors.
#[inline(always)]
fn blocks<V: Vector>(lanes: &[Vec<u64>]) -> Vec<Block<V>> {
    let vector = |limb: usize| V::new(&std::array::from_fn(|lane| lanes[lane][limb]));
    (0..lanes[0].len() / T).map(|block| std::array::from_fn(|at| vector(block * T + at))).collect()
}

#[inline(always)]
fn number<V: Vector, const B: usize>(lanes: &[Vec<u64>]) -> Number<V, B> {
    let Ok(number) = blocks(lanes).try_into() else { panic!("B blocks") };
    number
}

#[inline(always)]
fn lanes_of<V: Vector>(blocks: &[Block<V>]) -> Vec<Vec<u64>> {
    let rows: Vec<[u64; LANES]> = blocks.iter().flatten().map(|limb| limb.reveal()).collect();
    (0..LANES).map(|lane| rows.iter().map(|row| row[lane]).collect()).collect()
}

/// What [`arithmetic`] is to compute with, by lane.
struct Inputs {
    a: Vec<Vec<u64>>,
    b: Vec<Vec<u64>>,
    modulus: Vec<BigUint>,
}

/// The columns of `a b` and of `a a`, and `a b / R` modulo the moduli.
type Found = [Vec<Vec<u64>>; 3];

#[inline(always)]
fn arithmetic<V: Machine, const B: usize>(inputs: &Inputs) -> Found {
    let (a, b) = (number::<V, B>(&inputs.a), number::<V, B>(&inputs.b));
    let mut wide = vec![[V::splat(0); T]; 2 * B + MARGIN];
    let modulus = modulus_of::<V, B>(&inputs.modulus);
    V::square(&mut wide, &a);
    let squared = lanes_of(&wide);
    V::product(&mut wide, &a, &b);
    let product = lanes_of(&wide);
    let mut out = [[V::splat(0); T]; B];
    V::reduce(&mut out, &mut wide, &modulus);
    [product, squared, lanes_of(&out)]
}

#[inline(always)]
fn modulus_of<V: Vector, const B: usize>(moduli: &[BigUint]) -> Modulus<V, B> {
    let radix = BigUint::from(1u8) << 52;
    let limbs = |number: &dyn Fn(&BigUint) -> BigUint| -> Vec<Vec<u64>> {
        moduli.iter().map(|modulus| limbs_of(&number(modulus), B * T)).collect()
    };
    let factor = |modulus: &BigUint| &radix - modulus.modinv(&radix).expect("it is odd");
    Modulus {
        number: number(&limbs(&|modulus| modulus.clone())),
        friendly: number(&limbs(&|modulus| (factor(modulus) * modulus + 1u8) >> 52)),
        upper: number(&limbs(&|modulus| modulus >> 52)),
        factor: V::new(&std::array::from_fn(|lane| {
            value(&[factor(&moduli[lane]).to_u64_digits()[0]]).to_u64_digits()[0]
        })),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
#[inline(never)]
fn arithmetic_on_ifma<const B: usize>(inputs: &Inputs) -> Found {
    arithmetic::<Ifma, B>(inputs)
}

#[target_feature(enable = "avx2,fma")]
#[inline(never)]
fn arithmetic_on_fma<const B: usize>(inputs: &Inputs) -> Found {
    arithmetic::<Fma, B>(inputs)
}

/// By the model and by all instructions that are here.
#[allow(unsafe_code)]
fn on_all<const B: usize>(inputs: &Inputs) -> Vec<Found> {
    let mut found = vec![arithmetic::<Model, B>(inputs)];
    let cpu = Cpu::detect();
    if cpu.ifma512.is_some() {
        // SAFETY: the witness says that the instructions are there.
        found.push(unsafe { arithmetic_on_ifma::<B>(inputs) });
    }
    if cpu.fma256.is_some() {
        // SAFETY: as above.
        found.push(unsafe { arithmetic_on_fma::<B>(inputs) });
    }
    println!("{} instruction sets beside the model", found.len() - 1);
    found
}

fn arithmetic_is_right<const B: usize>(bits: usize) {
    let mut random = Random(bits as u64);
    for round in 0..60 {
        // Raw limbs; a product of factors whose bounds multiply to less than R / N: here `a < R`, `b < 3 N`.
        let modulus: Vec<BigUint> = (0..LANES).map(|_| random.modulus(bits)).collect();
        let a: Vec<Vec<u64>> = (0..LANES).map(|_| random.limbs(B * T)).collect();
        let b: Vec<Vec<u64>> = modulus
            .iter()
            .map(|modulus| {
                let limbs = random.limbs(B * T);
                let number =
                    if round % 3 == 0 { modulus * 3u8 - 1u8 } else { value(&limbs) % (modulus * 3u8) };
                limbs_of(&number, B * T)
            })
            .collect();
        let inputs = Inputs { a, b, modulus };
        for [product, squared, reduced] in on_all::<B>(&inputs) {
            for lane in 0..LANES {
                let (a, b) = (value(&inputs.a[lane]), value(&inputs.b[lane]));
                let (r, modulus) = (BigUint::from(1u8) << (52 * B * T), &inputs.modulus[lane]);
                assert_eq!(whole(&product[lane]), &a * &b);
                assert_eq!(whole(&squared[lane]), &a * &a);
                let out = value(&reduced[lane]);
                assert_eq!(&out * &r % modulus, &a * &b % modulus);
                assert!(out < &a * &b / r + modulus * 2u8 + 1u8, "the bound of the derivation");
                let columns = product[lane].iter().chain(&squared[lane]).map(|column| column.cast_signed());
                let (least, most) = (-((B * T) as i64) << 51, (2 * B * T) as i64 * (1 << 52));
                assert!(columns.into_iter().all(|column| (least..most).contains(&column)));
            }
        }
    }
}

#[test]
fn arithmetic_is_right_for_primes_of_1024_bits() {
    arithmetic_is_right::<2>(1024);
}

#[test]
fn arithmetic_is_right_for_primes_of_1536_bits() {
    arithmetic_is_right::<3>(1536);
}

#[test]
fn arithmetic_is_right_for_numbers_of_2048_bits() {
    arithmetic_is_right::<4>(2048);
}

#[test]
fn arithmetic_is_right_for_moduli_of_3072_bits() {
    arithmetic_is_right::<6>(3072);
}

#[test]
fn arithmetic_is_right_for_moduli_of_4096_bits() {
    arithmetic_is_right::<8>(4096);
}

fn parts(kind: Kind) -> RsaKey {
    match known_answers(kind).swap_remove(0).request.key.material() {
        Material::Rsa(parts) => (**parts).clone(),
        _ => panic!("an RSA key"),
    }
}

fn expand(parts: RsaKey) -> Expanded {
    Expanded::new(&Material::Rsa(Box::new(parts))).expect("a good key")
}

/// The known key, and itself with its primes exchanged: `p > q` and `p < q`.
fn keys(kind: Kind) -> [Expanded; 2] {
    let parts = parts(kind);
    let integer = |bytes: &[u8]| BigUint::from_bytes_be(bytes);
    let inverse = integer(&parts.p).modinv(&integer(&parts.q)).expect("primes").to_bytes_be();
    let mut exchanged = parts.clone();
    (exchanged.p, exchanged.q) = (parts.q.clone(), parts.p.clone());
    (exchanged.dp, exchanged.dq) = (parts.dq.clone(), parts.dp.clone());
    exchanged.qinv = inverse;
    [expand(parts), expand(exchanged)]
}

/// Inputs at the ends of the range and between, the keys by turns.
fn lanes<'k>(keys: &'k [Expanded; 2], seed: u64) -> [Lane<'k>; LANES] {
    let mut random = Random(seed);
    std::array::from_fn(|lane| {
        let key = &keys[lane % 2];
        let n = value(&key.n.number);
        let number = match lane {
            0 => BigUint::ZERO,
            1 => BigUint::from(1u8),
            2 => &n - 1u8,
            // A multiple of one prime.
            3 => value(&key.p.modulus.number) * 12_345u32,
            _ => value(&(0..key.n.number.len()).map(|_| random.next()).collect::<Vec<_>>()) % &n,
        };
        let mut input = [0; LONGEST * T];
        limbs_of_bytes(&number.to_bytes_be(), &mut input);
        Lane { key, input }
    })
}

fn expected(lane: &Lane<'_>, d: &[u8]) -> BigUint {
    value(&lane.input).modpow(&BigUint::from_bytes_be(d), &value(&lane.key.n.number))
}

fn model_agrees<const B: usize, const F: usize>(kind: Kind) {
    let (d, keys) = (parts(kind).d.clone(), keys(kind));
    let lanes = lanes(&keys, 7);
    for thin in [false, true] {
        let at = |lane: usize| if thin { lane % 4 } else { lane };
        let spread: [&Lane<'_>; LANES] = std::array::from_fn(|lane| &lanes[at(lane)]);
        let mut work = Wiped::<Model, B, F>::new();
        // Every part of a prime is poisoned: had anything been revealed on the way, this would have panicked.
        work.load(&spread, thin, Model::secret);
        work.run(|_| {});
        let (output, right) = work.outcome();
        let rows: Vec<[u64; LANES]> = output.iter().flatten().map(|limb| limb.declassified()).collect();
        for lane in 0..if thin { LANES / 2 } else { LANES } {
            let limbs: Vec<u64> = rows.iter().map(|row| row[lane]).collect();
            assert_eq!(value(&limbs), expected(spread[lane], &d), "lane {lane}");
            assert!(limbs.iter().all(|limb| *limb <= MASK52));
            assert_eq!(right.declassified()[lane], 1);
        }
    }
}

#[test]
fn poisoned_model_agrees_with_integers_for_2048_bits() {
    model_agrees::<2, 4>(Kind::Rsa2048Private);
}

#[test]
fn poisoned_model_agrees_with_integers_for_3072_bits() {
    model_agrees::<3, 6>(Kind::Rsa3072Private);
}

#[test]
#[ignore = "a minute in scalar arithmetic"]
fn poisoned_model_agrees_with_integers_for_4096_bits() {
    model_agrees::<4, 8>(Kind::Rsa4096Private);
}

#[test]
#[should_panic(expected = "a secret was revealed")]
fn a_result_is_poisoned_until_it_is_declassified() {
    let keys = keys(Kind::Rsa2048Private);
    let lanes = lanes(&keys, 7);
    let mut work = Wiped::<Model, 2, 4>::new();
    work.load(&lanes.each_ref(), false, Model::secret);
    work.run(|_| {});
    work.outcome().0[0][0].reveal();
}

/// Which lanes the check lets through when `disturb` changes limb 3 of p's residue.
#[inline(always)]
fn right_after_fault<V: Machine, const B: usize, const F: usize>(
    lanes: &[&Lane<'_>; LANES],
    fault: [u64; LANES],
) -> [u64; LANES] {
    let mut work = Wiped::<V, B, F>::new();
    work.load(lanes, false, V::new);
    work.run(|residue| residue[0][3] = residue[0][3].xor(V::new(&fault)));
    work.outcome().1.reveal()
}

#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
#[inline(never)]
fn right_on_ifma<const B: usize, const F: usize>(
    lanes: &[&Lane<'_>; LANES],
    fault: [u64; LANES],
) -> [u64; LANES] {
    right_after_fault::<Ifma, B, F>(lanes, fault)
}

#[target_feature(enable = "avx2,fma")]
#[inline(never)]
fn right_on_fma<const B: usize, const F: usize>(
    lanes: &[&Lane<'_>; LANES],
    fault: [u64; LANES],
) -> [u64; LANES] {
    right_after_fault::<Fma, B, F>(lanes, fault)
}

#[allow(unsafe_code)]
fn fault_fails_alone<const B: usize, const F: usize>(kind: Kind) {
    let cpu = Cpu::detect();
    let keys = keys(kind);
    let lanes = lanes(&keys, 9);
    for faulty in 0..LANES {
        let fault = std::array::from_fn(|lane| u64::from(lane == faulty) << (5 * lane));
        let want: [u64; LANES] = std::array::from_fn(|lane| u64::from(lane != faulty));
        if cpu.ifma512.is_some() {
            // SAFETY: the witness says that the instructions are there.
            assert_eq!(unsafe { right_on_ifma::<B, F>(&lanes.each_ref(), fault) }, want);
        }
        if cpu.fma256.is_some() {
            // SAFETY: as above.
            assert_eq!(unsafe { right_on_fma::<B, F>(&lanes.each_ref(), fault) }, want);
        }
    }
}

#[test]
fn a_faulted_lane_alone_is_found_wrong() {
    fault_fails_alone::<2, 4>(Kind::Rsa2048Private);
    fault_fails_alone::<3, 6>(Kind::Rsa3072Private);
    fault_fails_alone::<4, 8>(Kind::Rsa4096Private);
}

#[test]
fn a_wrong_result_never_reaches_the_output() {
    let answer = known_answers(Kind::Rsa2048Private).swap_remove(0).request;
    let mut output = vec![0x5a; 300];
    let data = wattlock_core::Data::Apart { from: &answer.input, to: &mut output };
    let request = wattlock_core::Request::new(Kind::Rsa2048Private, &answer.key, data);
    let mut item = crate::lanes::Item { request, result: Ok(0) };
    let outcome = ([[7; LANES]; LONGEST * T], [1, 1, 0, 1, 1, 1, 1, 1]);
    let fault = wattlock_core::Error::Device(wattlock_core::Fault::WrongResult);
    assert_eq!(super::deliver(&mut item, &outcome, 2, 4), Err(fault));
    assert_eq!(super::deliver(&mut item, &outcome, 3, 4), Ok(256));
    assert!(super::deliver(&mut item, &outcome, 2, 4).is_err());
    assert!(output[..256].iter().all(|byte| *byte == 0) && output[256..].iter().all(|byte| *byte == 0x5a));
}

#[test]
fn wiping_leaves_nothing() {
    let keys = keys(Kind::Rsa2048Private);
    let lanes = lanes(&keys, 3);
    let mut work = Wiped::<Model, 2, 4>::new();
    work.load(&lanes.each_ref(), false, Model::new);
    work.run(|_| {});
    assert!(work.every_secret().iter().any(|vector| *vector != Model::splat(0)));
    work.wipe();
    assert!(work.every_secret().iter().all(|vector| *vector == Model::splat(0)));
}

#[test]
fn a_key_whose_primes_do_not_make_its_modulus_is_refused() {
    let mut wrong = parts(Kind::Rsa2048Private);
    wrong.p[5] ^= 1;
    assert!(Expanded::new(&Material::Rsa(Box::new(wrong))).is_err());
    let mut small = parts(Kind::Rsa2048Private);
    small.e = vec![0, 1];
    assert!(Expanded::new(&Material::Rsa(Box::new(small))).is_err());
}

#[test]
fn limbs_and_bytes_mean_the_same_number() {
    let bytes: Vec<u8> = (1..=192u8).collect();
    let mut limbs = vec![0; 30];
    limbs_of_bytes(&bytes, &mut limbs);
    assert_eq!(value(&limbs), BigUint::from_bytes_be(&bytes));
    let mut back = vec![0; 192];
    bytes_of_limbs(&limbs, &mut back);
    assert_eq!(back, bytes);
}
