//! The kernels over poisoned secrets, and their parts against plain code. What a caller sees is shown in
//! `tests/all/lanes_kem.rs`.

use std::panic::catch_unwind;

use wattlock_core::dev::Random;
use wattlock_core::{Data, Engine, Key, Kind, ML_KEM_768_PUBLIC, Request};

use super::codec::{self, Public};
use super::kernel::{self, Decapsulation, Encapsulation, Generation};
use super::ntt::{self, Operand, Q, Sum};
use super::{CIPHERTEXT, LANES, PUBLIC, SECRET};
use crate::lanes::vector::model::Model;
use crate::lanes::vector::shorts::model::PUBLISHED;
use crate::lanes::vector::shorts::{BYTES, Poly, Row, SHORTS, Shorts};
use crate::lanes::words::Words;
use crate::software::Software;

/// What the plain engine makes of a request.
fn plainly(kind: Kind, key: &Key, nonce: &[u8], input: &[u8]) -> Vec<u8> {
    let mut output = vec![0; kind.info().output.unwrap()];
    let data = Data::Apart { from: input, to: &mut output };
    Software::new().execute(&mut Request { nonce, ..Request::new(kind, key, data) }).unwrap();
    output
}

/// Seeds, keys, and encapsulations to them, of as many requests.
struct Made {
    seeds: Vec<Vec<u8>>,
    keys: Vec<Vec<u8>>,
    randomness: Vec<Vec<u8>>,
    answers: Vec<Vec<u8>>,
}

fn made(random: &Random, count: usize) -> Made {
    let seeds: Vec<_> = (0..count).map(|_| random.bytes(64)).collect();
    let generate = |seed: &Vec<u8>| plainly(Kind::MlKem768Generate, Key::none(), seed, &[]);
    let keys: Vec<_> = seeds.iter().map(generate).collect();
    let randomness: Vec<_> = (0..count).map(|_| random.bytes(32)).collect();
    let encapsulate = |(key, m): (&Vec<u8>, &Vec<u8>)| {
        plainly(Kind::MlKem768Encapsulate, Key::none(), m, &key[ML_KEM_768_PUBLIC])
    };
    let answers = keys.iter().zip(&randomness).map(encapsulate).collect();
    Made { seeds, keys, randomness, answers }
}

/// All bytes that the model published since the last look, joined.
fn published() -> Vec<u8> {
    PUBLISHED.take().into_iter().flatten().collect()
}

/// Whether `all` has so many bytes together anywhere.
fn has(all: &[u8], part: &[u8]) -> bool {
    all.windows(part.len()).any(|window| window == part)
}

#[test]
fn key_pairs_reveal_nothing_but_themselves_and_are_right() {
    let made = made(&Random::new(0x9e4), LANES);
    let mut outs = vec![vec![0; SECRET]; LANES];
    let mut items: Vec<Generation<'_>> =
        made.seeds.iter().zip(&mut outs).map(|(seed, out)| Generation { seed, out }).collect();
    published();
    kernel::generate::<Model>(&mut items);
    assert_eq!(outs, made.keys);
    // Of each key: the matrix's seed (four words of all eight), two vectors of polynomials, the hash. Coefficients are
    // published before they are packed: 16 bits each.
    assert_eq!(published().len(), 4 * BYTES + LANES * (2 * 3 * 512 + BYTES));
}

#[test]
fn encapsulations_reveal_nothing_but_ciphertext_and_secret_and_are_right() {
    let made = made(&Random::new(0xe9c), LANES);
    let mut outs = vec![vec![0; CIPHERTEXT + 32]; LANES];
    let mut items: Vec<Encapsulation<'_>> = (made.keys.iter().zip(&made.randomness))
        .zip(&mut outs)
        .map(|((key, m), out)| Encapsulation { peer: &key[ML_KEM_768_PUBLIC], m, out })
        .collect();
    published();
    kernel::encapsulate::<Model>(&mut items);
    assert_eq!(outs, made.answers);
    let published = published();
    // Four polynomials of rounded coefficients, and a vector with the secret.
    assert_eq!(published.len(), LANES * (4 * 512 + BYTES));
    for (answer, m) in made.answers.iter().zip(&made.randomness) {
        assert!(has(&published, &answer[CIPHERTEXT..]) && !has(&published, &m[..8]));
    }
}

#[test]
fn decapsulations_reveal_nothing_but_the_secret_and_whether_a_key_fits_and_are_right() {
    let random = Random::new(0xdec);
    let mut made = made(&random, LANES);
    // Three ciphertexts are not the key's, and one key's hash is wrong.
    for (at, byte) in [(1, 0), (4, CIPHERTEXT - 1), (6, 777)] {
        made.answers[at][byte] ^= 1 << random.below(8);
    }
    let kept = ML_KEM_768_PUBLIC.end;
    made.keys[5][kept] ^= 1;
    let mut outs = vec![vec![0; 32]; LANES];
    let mut items: Vec<Decapsulation<'_>> = (made.keys.iter().zip(&made.answers))
        .zip(&mut outs)
        .map(|((key, answer), out)| Decapsulation {
            key,
            ciphertext: &answer[..CIPHERTEXT],
            out,
            fits: false,
        })
        .collect();
    published();
    kernel::decapsulate::<Model>(&mut items);
    let fits: Vec<bool> = items.iter().map(|item| item.fits).collect();
    assert_eq!(fits, [true, true, true, true, true, false, true, true]);
    // Eight times whether the hash is right, and the secrets of those seven.
    assert_eq!(published().len(), LANES * BYTES + 7 * BYTES);
    for (at, (key, answer)) in made.keys.iter().zip(&made.answers).enumerate() {
        if at == 5 {
            assert_eq!(outs[at], [0; 32]);
            continue;
        }
        let key = Key::ml_kem_768(key).unwrap();
        let right = plainly(Kind::MlKem768Decapsulate, &key, &[], &answer[..CIPHERTEXT]);
        assert_eq!(outs[at], right);
        assert_eq!(outs[at] == answer[CIPHERTEXT..], ![1, 4, 6].contains(&at));
    }
}

#[test]
fn a_secret_that_is_not_published_cannot_be_revealed() {
    let secret = Model::secret(&[3; LANES]);
    assert!(catch_unwind(|| secret.add16(Model::splat16(1)).reveal()).is_err());
    let chosen = secret.is_zero().and(Model::splat16(7));
    assert!(catch_unwind(|| chosen.reveal()).is_err());
    assert!(catch_unwind(|| Model::lowest_bits(&[secret; 8]).reveal()).is_err());
}

/// Public coefficients as a model's polynomial, and back.
fn poly(numbers: &[i16; 256]) -> Poly<Model> {
    std::array::from_fn(|at| Model::row(&numbers.as_chunks::<SHORTS>().0[at]))
}

fn numbers(poly: &Poly<Model>) -> [i16; 256] {
    let bytes: Vec<u8> = poly.iter().flat_map(|vector| vector.reveal()).collect();
    std::array::from_fn(|at| i16::from_le_bytes(bytes.as_chunks().0[at]))
}

/// A product modulo `X^256 + 1` and q, term by term.
fn product(a: &[i16; 256], b: &[i16; 256]) -> [i64; 256] {
    let mut out = [0; 256];
    for (i, a) in a.iter().enumerate() {
        for (j, b) in b.iter().enumerate() {
            let term = i64::from(*a) * i64::from(*b);
            out[(i + j) % 256] += if i + j < 256 { term } else { -term };
        }
    }
    out.map(|sum| sum.rem_euclid(Q.into()))
}

#[test]
fn transforms_multiply_polynomials_and_stay_within_their_bounds() {
    let random = Random::new(0x477);
    for turn in 0..20 {
        // The largest that a transform takes, 2.7 q, or anything.
        let number = |_| match turn {
            0 => 8988,
            1 => -8988,
            2 => [8988, -8988][random.below(2)],
            _ => random.below(2 * 8988) as i16 - 8988,
        };
        let (a, b): ([i16; 256], [i16; 256]) = (std::array::from_fn(number), std::array::from_fn(number));
        let [mut ta, mut tb] = [poly(&a), poly(&b)];
        ntt::ntt(&mut ta);
        ntt::ntt(&mut tb);
        assert!(numbers(&ta).iter().chain(&numbers(&tb)).all(|x| x.abs() <= 7 * Q / 10));
        let (operand, mut sum) = (Operand::new(&tb), Sum::new());
        for (at, x) in ta.iter().enumerate() {
            sum.add(at, ntt::canonical(*x), &operand);
        }
        let mut back = sum.reduced();
        assert!(numbers(&back).iter().all(|x| x.abs() < Q));
        ntt::inverse(&mut back);
        let back = numbers(&back);
        assert!(back.iter().all(|x| x.abs() < Q));
        assert_eq!(back.map(|x| i64::from(x).rem_euclid(Q.into())), product(&a, &b));
    }
}

#[test]
fn three_of_the_largest_products_do_not_overflow() {
    for (a, b) in [(4095, 2330), (4095, -2330)] {
        let (operand, mut sum) = (Operand::new(&[Model::splat16(b); 8]), Sum::new());
        (0..3).for_each(|_| (0..8).for_each(|at| sum.add(at, Model::splat16(a), &operand)));
        let found = numbers(&sum.reduced());
        assert!(found.iter().all(|x| x.abs() < Q));
        // The odd coefficients are 3 * (a * b + b * a) / 2^16.
        let right = (6 * i64::from(a) * i64::from(b)).rem_euclid(Q.into());
        assert!(found.iter().skip(1).step_by(2).all(|x| (i64::from(*x) << 16).rem_euclid(Q.into()) == right));
    }
}

/// Every number of 16 bits, a vector at a time.
fn each_short(f: impl Fn(Model, Row)) {
    for first in (i16::MIN..=i16::MAX).step_by(SHORTS) {
        let row: Row = std::array::from_fn(|at| first + at as i16);
        f(Model::row(&row), row);
    }
}

fn row(vector: Model) -> Row {
    let bytes = vector.reveal();
    std::array::from_fn(|at| i16::from_le_bytes(bytes.as_chunks().0[at]))
}

#[test]
fn every_number_is_reduced_and_every_coefficient_rounded_as_the_standard_says() {
    each_short(|x, numbers| {
        assert_eq!(row(ntt::canonical(x)), numbers.map(|x| x.rem_euclid(Q)));
    });
    each_short(|x, numbers| {
        if !numbers.iter().all(|x| (0..Q).contains(x)) {
            return;
        }
        let rounded = |bits: u32| {
            numbers.map(|x| {
                (((i64::from(x) << (bits + 1)) + i64::from(Q)) / (2 * i64::from(Q))) as i16
                    & ((1 << bits) - 1)
            })
        };
        assert_eq!(row(codec::compress::<_, 10>(x)), rounded(10));
        assert_eq!(row(codec::compress::<_, 4>(x)), rounded(4));
        assert_eq!(row(codec::compress::<_, 1>(x)), rounded(1));
    });
}

#[test]
fn each_encoding_is_undone_and_each_value_stands_for_what_the_standard_says() {
    let random = Random::new(0xc0d);
    for (bits, most) in [(12, 4095), (10, 1023), (4, 15)] {
        let values: [i16; 256] = std::array::from_fn(|_| random.below(most + 1) as i16);
        let mut bytes = vec![0; 32 * bits + 16];
        for (at, x) in poly(&values).into_iter().enumerate() {
            match bits {
                12 => codec::encode12(x, &mut bytes, at),
                10 => codec::encode10(x, &mut bytes, at),
                _ => codec::encode4(x, &mut bytes, at),
            }
        }
        // Algorithm 5 of FIPS 203: bits of each value, the lowest first.
        let bit = |at: usize| values[at / bits] >> (at % bits) & 1;
        let right: Vec<u8> =
            (0..32 * bits).map(|at| (0..8).fold(0, |sum, i| sum | (bit(8 * at + i) as u8) << i)).collect();
        assert_eq!(bytes[..32 * bits], right, "{bits} bits");
        let decoded: Poly<Model> = std::array::from_fn(|at| match bits {
            12 => codec::decode12::<_, Public>(&bytes, at),
            10 => codec::decode10(&bytes, at),
            _ => codec::decode4(&bytes, at),
        });
        let shift = if bits == 12 { 0 } else { 15 - bits };
        assert_eq!(numbers(&decoded), values.map(|x| x << shift), "{bits} bits");
        if bits < 12 {
            let meant = |x: i16| ((i64::from(x) * i64::from(Q) + (1 << (bits - 1))) >> bits) as i16;
            assert_eq!(numbers(&decoded.map(codec::decompress)), values.map(meant), "{bits} bits");
        }
    }
}

#[test]
fn noise_is_the_difference_of_two_pairs_of_bits() {
    let random = Random::new(0xcbd);
    let bytes: [u8; 128] = random.bytes(128).try_into().unwrap();
    let [a, b] = bytes.as_chunks::<BYTES>().0 else { panic!("two vectors") };
    let found = numbers(&codec::binomial(&[Model::public(a), Model::public(b)]));
    let bit = |at: usize| i16::from(bytes[at / 8] >> (at % 8) & 1);
    let right = |i: usize| bit(4 * i) + bit(4 * i + 1) - bit(4 * i + 2) - bit(4 * i + 3);
    assert_eq!(found, std::array::from_fn(right));
}

#[test]
fn a_key_is_reduced_up_to_its_last_coefficient() {
    let mut peer = vec![0; PUBLIC];
    for pair in peer[..1152].as_chunks_mut::<3>().0 {
        *pair = [0x00, 0x0d, 0xd0];
    }
    assert!(kernel::is_reduced::<Model>(&peer), "3328 in every place");
    for at in 0..768 {
        let byte = at / 2 * 3 + at % 2;
        let before = peer[byte];
        peer[byte] += if at % 2 == 0 { 1 } else { 0x10 };
        assert!(!kernel::is_reduced::<Model>(&peer), "3329 in place {at}");
        peer[byte] = before;
    }
}
