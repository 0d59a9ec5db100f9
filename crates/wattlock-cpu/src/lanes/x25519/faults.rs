//! Faults injected into every stage of both kernels, on the model and on the instructions, under whole passes: that
//! request alone fails and its output is not written. And what must not be taken for one.

use num_bigint::BigUint;
use wattlock_core::dev::Random;
use wattlock_core::{Curve, Data, EcKey, Error, Key, Kind, Request};
use x25519_dalek::{X25519_BASEPOINT_BYTES, x25519};

use super::comb::{self, Table};
use super::entries::Entries;
use super::field::{Columns, LIMBS, Machine, Operand};
use super::sound::{Spot, is_neighbour, is_on_curve};
use super::{BAD_PEER, BYTES, Batch, FAULTED, ladder, reveal, vectors};
use crate::detect::{Cpu, Ifma512};
use crate::lanes::Item;
use crate::lanes::vector::model::Model;
use crate::lanes::vector::{Ifma, LANES, Vector};

type Bytes = [u8; BYTES];

/// What an output holds before a pass.
const UNTOUCHED: u8 = 0xa5;

/// What happens to a number in one lane.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// A limb's bit is flipped.
    Flipped(usize, u32),
    /// All limbs are cleared.
    Cleared,
}

/// What kernels run on.
#[derive(Debug, Clone, Copy)]
enum On {
    Model,
    Ifma(Ifma512),
}

/// The model, and the instructions if they are here.
fn everywhere() -> impl Iterator<Item = On> {
    std::iter::once(On::Model).chain(Cpu::detect().ifma512.map(On::Ifma))
}

/// Entries whose kernels are faulted in one lane.
#[derive(Clone, Copy)]
struct Faulted<'a> {
    on: On,
    lane: usize,
    faults: &'a [(Spot, Fault)],
}

impl Faulted<'_> {
    fn disturb<V: Machine>(&self, spot: Spot, number: &mut Operand<V>) {
        for (_, fault) in self.faults.iter().filter(|(at, _)| *at == spot) {
            match *fault {
                Fault::Flipped(limb, bit) => {
                    let bits = std::array::from_fn(|lane| u64::from(lane == self.lane) << bit);
                    number.0[limb] = number.0[limb].xor(V::new(&bits));
                }
                Fault::Cleared => {
                    let kept =
                        V::new(&std::array::from_fn(|lane| u64::from(lane == self.lane).wrapping_sub(1)));
                    number.0 = number.0.map(|limb| limb.and(kept));
                }
            }
        }
    }

    #[inline(always)]
    fn derive_on<V: Machine>(&self, batch: &mut Batch) {
        let (scalars, points) = (vectors(&batch.scalars), vectors(&batch.points));
        let (results, sound) =
            ladder::multiply::<V>(scalars, points, |spot, number| self.disturb(spot, number));
        (batch.results, batch.sound) = (reveal(results), V::reveal_mask(sound));
    }

    #[inline(always)]
    fn generate_on<V: Machine>(&self, table: &Table, batch: &mut Batch) {
        let scalars = vectors(&batch.scalars);
        let (results, sound) = comb::multiply::<V>(table, scalars, |spot, number| self.disturb(spot, number));
        (batch.results, batch.sound) = (reveal(results), V::reveal_mask(sound));
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    #[inline(never)]
    fn derive_on_ifma(&self, batch: &mut Batch) {
        self.derive_on::<Ifma>(batch);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    #[inline(never)]
    fn generate_on_ifma(&self, table: &Table, batch: &mut Batch) {
        self.generate_on::<Ifma>(table, batch);
    }
}

impl Entries for Faulted<'_> {
    fn derive(self, batch: &mut Batch) {
        match self.on {
            On::Model => self.derive_on::<Model>(batch),
            // SAFETY: the witness says that the instructions are there.
            On::Ifma(_) => unsafe { self.derive_on_ifma(batch) },
        }
    }

    fn generate(self, table: &Table, batch: &mut Batch) {
        match self.on {
            On::Model => self.generate_on::<Model>(table, batch),
            // SAFETY: the witness says that the instructions are there.
            On::Ifma(_) => unsafe { self.generate_on_ifma(table, batch) },
        }
    }

    fn table(self) -> Table {
        Table::compute::<Model>()
    }

    fn bleach(self) {}
}

/// A pass over scalars and peers.
fn derive(isa: Faulted<'_>, batch: &[(Bytes, Bytes); LANES]) -> Vec<Result<Bytes, Error>> {
    let key = |scalar: &Bytes| EcKey { scalar: scalar.to_vec(), public: X25519_BASEPOINT_BYTES.to_vec() };
    let keys = batch.each_ref().map(|(scalar, _)| Key::ec(Curve::X25519, key(scalar)).unwrap());
    let mut outputs = [[UNTOUCHED; BYTES]; LANES];
    let mut items: Vec<Item<'_>> = (keys.iter().zip(batch).zip(&mut outputs))
        .map(|((key, (_, peer)), to)| Item {
            request: Request::new(Kind::X25519Derive, key, Data::Apart { from: peer, to }),
            result: Err(Error::Unsupported),
        })
        .collect();
    super::derive(isa, &mut items);
    let results: Vec<_> = items.into_iter().map(|item| item.result).collect();
    results
        .into_iter()
        .zip(outputs)
        .map(|(result, output)| delivered(result, &output).map(|_| output))
        .collect()
}

/// A failed request must not have written.
fn delivered(result: Result<usize, Error>, output: &[u8]) -> Result<(), Error> {
    match result {
        Ok(len) => assert_eq!(len, output.len()),
        Err(_) => assert!(output.iter().all(|byte| *byte == UNTOUCHED), "a failed request wrote"),
    }
    result.map(drop)
}

/// Fresh pairs.
fn generate(isa: Faulted<'_>) -> Vec<Result<[u8; 2 * BYTES], Error>> {
    let mut outputs = [[UNTOUCHED; 2 * BYTES]; LANES];
    let mut items: Vec<Item<'_>> = (outputs.iter_mut())
        .map(|to| Item {
            request: Request::new(Kind::X25519Generate, Key::none(), Data::Apart { from: &[], to }),
            result: Err(Error::Unsupported),
        })
        .collect();
    super::generate(isa, &mut items);
    let results: Vec<_> = items.into_iter().map(|item| item.result).collect();
    results
        .into_iter()
        .zip(outputs)
        .map(|(result, output)| delivered(result, &output).map(|_| output))
        .collect()
}

fn random_batch(random: &Random) -> [(Bytes, Bytes); LANES] {
    let number = || random.bytes(BYTES).try_into().unwrap();
    std::array::from_fn(|_| (number(), number()))
}

/// A flipped bit that counts, another one each turn.
fn flip(turn: usize) -> Fault {
    Fault::Flipped(turn % LIMBS, (turn * 7 % 47) as u32)
}

#[test]
fn a_lane_whose_ladder_is_faulted_fails_alone() {
    let random = Random::new(0x0255_0030);
    // From step 251 on the bits are clear in every scalar.
    let steps = [0, 1, 126, 250, 251, 252];
    let spots = (steps.into_iter().flat_map(|step| (0..4).map(move |number| Spot::Ladder(step, number))))
        .chain([Spot::Inverse, Spot::Result]);
    let faults = (spots.enumerate().map(|(turn, spot)| (spot, flip(turn))))
        .chain([Spot::Inverse, Spot::Result].map(|spot| (spot, Fault::Cleared)));
    for (turn, fault) in faults.enumerate() {
        let (batch, lane) = (random_batch(&random), 3 * turn % LANES);
        for on in everywhere() {
            let found = derive(Faulted { on, lane, faults: &[fault] }, &batch);
            for (at, ((scalar, peer), found)) in batch.iter().zip(found).enumerate() {
                let want = if at == lane { Err(FAULTED) } else { Ok(x25519(*scalar, *peer)) };
                assert_eq!(found, want, "{fault:?}, {on:?}, lane {at}");
            }
        }
    }
}

#[test]
fn a_lane_whose_comb_is_faulted_fails_alone() {
    let windows = [1, 20, 40, 41];
    let spots = (windows.into_iter().flat_map(|at| (0..3).map(move |number| Spot::Comb(at, number))))
        .chain([Spot::Inverse, Spot::Result]);
    let faults = spots.enumerate().flat_map(|(turn, spot)| [(spot, flip(turn)), (spot, Fault::Cleared)]);
    for (turn, fault) in faults.enumerate() {
        let lane = 3 * turn % LANES;
        for on in everywhere() {
            let found = generate(Faulted { on, lane, faults: &[fault] });
            for (at, found) in found.into_iter().enumerate() {
                let right = found.map(|pair| {
                    let scalar = pair[..BYTES].try_into().unwrap();
                    x25519(scalar, X25519_BASEPOINT_BYTES) == pair[BYTES..]
                });
                let want = if at == lane { Err(FAULTED) } else { Ok(true) };
                assert_eq!(right, want, "{fault:?}, {on:?}, lane {at}");
            }
        }
    }
}

/// The neighbour (0 : 0), with which the relation holds whatever the result is.
#[test]
fn a_neighbour_that_is_no_point_vouches_for_nothing() {
    let (random, lane) = (Random::new(0x0255_0031), 5);
    let faults = [0, 1].map(|number| (Spot::Ladder(252, number), Fault::Cleared));
    let batch = random_batch(&random);
    for on in everywhere() {
        assert_eq!(derive(Faulted { on, lane, faults: &faults }, &batch)[lane], Err(FAULTED));
    }
    let (u, nothing) = (Operand::<Model>::small(9), Operand::small(0));
    let point = [nothing.times_biased(&u), nothing.times(&u)];
    assert_eq!(Model::reveal_mask(is_neighbour(&u, &Operand::small(4), &point)), 0);
    assert_eq!(Model::reveal_mask(is_on_curve(&nothing, &nothing, &nothing)), 0);
    assert_eq!(point[0].minus(&Columns::bias()).limbs().map(Vector::reveal), [[0; LANES]; LIMBS]);
}

fn bytes(number: &BigUint) -> Bytes {
    let mut bytes = number.to_bytes_le();
    bytes.resize(BYTES, 0);
    bytes.try_into().unwrap()
}

fn p() -> BigUint {
    (BigUint::from(1u8) << 255) - 19u8
}

/// u of points of order 4, 2 and 8, and of order 4 on the twist.
fn small() -> [Bytes; 4] {
    let eight = "325606250916557431795983626356110631294008115727848805560023387167927233504";
    [1u32.into(), 0u32.into(), eight.parse().unwrap(), p() - 1u32].map(|number| bytes(&number))
}

#[test]
fn a_peer_of_small_order_is_to_blame_unless_a_fault_hides_it() {
    let random = Random::new(0x0255_0032);
    for (lane, peer) in small().into_iter().enumerate() {
        let mut batch = random_batch(&random);
        batch[lane].1 = peer;
        for on in everywhere() {
            assert_eq!(derive(Faulted { on, lane, faults: &[] }, &batch)[lane], Err(BAD_PEER));
            let faults = [(Spot::Result, flip(lane))];
            assert_eq!(derive(Faulted { on, lane, faults: &faults }, &batch)[lane], Err(FAULTED));
        }
    }
}

/// Where R1 is infinite, or the point (0, 0): -P's neighbour, and -P + (0, 0)'s.
#[test]
fn neighbours_at_infinity_and_at_zero_are_honest() {
    let order: BigUint =
        (BigUint::from(1u8) << 252) + "27742317777372353535851937790883648493".parse::<BigUint>().unwrap();
    // Of all multiples less one the only one that is clamped.
    let minus_one = bytes(&(order * 5u32 - 1u32));
    let (base, shifted) = (X25519_BASEPOINT_BYTES, bytes(&BigUint::from(9u8).modpow(&(p() - 2u32), &p())));
    let batch = [base, shifted, base, shifted, base, shifted, base, shifted].map(|peer| (minus_one, peer));
    for on in everywhere() {
        let found = derive(Faulted { on, lane: 0, faults: &[] }, &batch);
        assert_eq!(found, [Ok(base); LANES]);
    }
}
