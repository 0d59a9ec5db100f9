//! The model computes what the instructions compute.

use super::model::PUBLISHED;
use super::pair::Pair;
use super::{BYTES, Row, SHORTS, Shorts};
use crate::detect::Cpu;
use crate::lanes::keccak::WORDS;
use crate::lanes::vector::model::Model;
use crate::lanes::words::Zmm;
use wattlock_core::dev::Random;

/// Every operation on the same bytes; the results run together into one list.
#[inline(always)]
fn every_operation<V: Shorts>(vectors: &[[u8; BYTES]; 8], from: &[usize; 8]) -> Vec<u8> {
    let mut v = [V::splat(0); 8];
    for (vector, bytes) in v.iter_mut().zip(vectors) {
        *vector = V::public(bytes);
    }
    let [a, b, ..] = v;
    let row: Row = std::array::from_fn(|at| at as i16 * 977);
    let order = u128::from_le_bytes(vectors[0][..16].try_into().unwrap());
    let mut all = vec![
        a.add16(b),
        a.sub16(b),
        a.mul_lo16(b),
        a.mul_hi16(b),
        a.mul_round16(b),
        a.pair_sums(b),
        a.sar16::<10>(),
        a.sar16::<15>(),
        a.shr16::<4>(),
        a.shl16::<5>(),
        a.shuffle(order),
        a.low8(b),
        a.high8(b),
        a.add(b),
        a.add32(b),
        a.and(b),
        a.or(b),
        a.xor(b),
        a.andnot(b),
        a.shr::<12>(),
        a.shr32::<16>(),
        a.ror::<63>(),
        a.ror::<0>(),
        a.ror32::<16>(),
        a.arrange(from),
        a.is_zero(),
        V::splat(0).is_zero(),
        V::public(&std::array::from_fn(|at| u8::from(at == 63))).is_zero(),
        V::row(&row),
        V::splat16(-3),
        V::secret(&vectors[1]).publish(),
        V::public_pieces::<12>(&vectors.as_flattened()[5..]),
        V::secret_pieces::<1>(&vectors.as_flattened()[9..]).publish(),
    ];
    for (a, b) in
        [V::exchange::<16>(a, b), V::exchange::<8>(a, b), V::exchange::<4>(a, b), V::exchange::<2>(a, b)]
    {
        all.extend([a, b]);
    }
    all.extend(V::pieces([v[0], v[1], v[2], v[3]]));
    all.extend(V::transpose(&v));
    let mut states = [V::splat(0); WORDS];
    for (at, word) in states.iter_mut().enumerate() {
        *word = v[at % 8].ror32::<3>();
    }
    V::keccak(&mut states, 8);
    all.extend(states);
    let mut out: Vec<u8> = Vec::new();
    for vector in all {
        out.extend(vector.reveal());
    }
    out.extend(&V::lowest_bits(&v).reveal()[..32]);
    let (mut pieces, mut numbers) = ([0x77; 100], [0; 256 + SHORTS]);
    a.reveal_pieces::<10>(&mut pieces[..70]);
    out.extend(pieces);
    let count = V::accept(&vectors.as_flattened()[..488], &mut numbers, 7);
    let count = V::accept(&vectors.as_flattened()[..128], &mut numbers, count);
    out.extend(numbers[..count].iter().flat_map(|number| number.to_le_bytes()));
    out
}

#[target_feature(enable = "avx512f,avx512bw")]
#[inline(never)]
fn on_512(vectors: &[[u8; BYTES]; 8], from: &[usize; 8]) -> Vec<u8> {
    every_operation::<Zmm>(vectors, from)
}

#[target_feature(enable = "avx2")]
#[inline(never)]
fn on_256(vectors: &[[u8; BYTES]; 8], from: &[usize; 8]) -> Vec<u8> {
    every_operation::<Pair>(vectors, from)
}

#[test]
fn the_model_computes_what_the_instructions_compute() {
    let (random, cpu) = (Random::new(0x5407), Cpu::detect());
    for turn in 0..300 {
        let mut vectors: [[u8; BYTES]; 8] = std::array::from_fn(|_| random.bytes(BYTES).try_into().unwrap());
        if turn % 4 == 0 {
            // The ends of the range.
            vectors[0]
                .as_chunks_mut::<2>()
                .0
                .iter_mut()
                .for_each(|x| *x = [[0, 0x80], [0xff, 0x7f]][random.below(2)]);
            vectors[1]
                .as_chunks_mut::<2>()
                .0
                .iter_mut()
                .for_each(|x| *x = [[0, 0x80], [0xff, 0xff]][random.below(2)]);
        }
        if turn % 5 == 0 {
            // Numbers about the modulus.
            let near = [[0x00, 0x1d, 0xd0], [0x01, 0x0d, 0xd0], [0x00, 0x0d, 0xd1], [0xff, 0xff, 0xff]];
            vectors
                .as_flattened_mut()
                .as_chunks_mut::<3>()
                .0
                .iter_mut()
                .for_each(|x| *x = near[random.below(4)]);
        }
        let from = std::array::from_fn(|_| random.below(8));
        let right = every_operation::<Model>(&vectors, &from);
        PUBLISHED.take();
        if cpu.avx512.is_some() {
            // SAFETY: the witness says that the instructions are there.
            assert_eq!(unsafe { on_512(&vectors, &from) }, right);
        }
        if cpu.avx2.is_some() {
            // SAFETY: as above.
            assert_eq!(unsafe { on_256(&vectors, &from) }, right);
        }
    }
    println!("compared with AVX-512: {}, AVX2: {}", cpu.avx512.is_some(), cpu.avx2.is_some());
}
