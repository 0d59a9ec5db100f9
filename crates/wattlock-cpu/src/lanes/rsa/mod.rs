//! RSA's private operation (RFC 8017 RSASP1 and RSADP) for eight keys side by side.
//!
//! [`mont`] is the arithmetic and its bounds, [`work`] the operation, [`key`] what a key expands to, [`machine`] the
//! pieces that are compiled as entries. There is no blinding, because no time or address depends on base, exponent or
//! primes; modulus, public exponent and input count as public. This folder refuses padding and key generation.
//!
//! A pass raises all lanes to p's exponents and then all to q's. With four requests or fewer, p and q go side by side in
//! one such round, so a thin batch costs about half.

mod key;
mod machine;
mod mont;
#[cfg(test)]
mod tests;
mod work;

use wattlock_core::{Error, Fault};
use zeroize::Zeroize;

use super::vector::{Fma, Ifma, LANES};
use super::{Item, WIDTH, bleach};
use crate::detect::{Fma256, Ifma512};
use key::{Expanded, bytes_of_limbs, limbs_of_bytes};
use machine::Machine;
use mont::T;
use work::{LONGEST, Lane, Wiped};

const TOO_LARGE: Error = Error::Invalid("input is not below the modulus");

/// RSA-2048.
pub(super) fn private_2048<I: Entry>(isa: I, items: &mut [Item<'_>]) {
    pass::<I, 2, 4>(isa, items);
}

/// RSA-3072.
pub(super) fn private_3072<I: Entry>(isa: I, items: &mut [Item<'_>]) {
    pass::<I, 3, 6>(isa, items);
}

/// RSA-4096.
pub(super) fn private_4096<I: Entry>(isa: I, items: &mut [Item<'_>]) {
    pass::<I, 4, 8>(isa, items);
}

/// More than the largest frames on the stack, with factors of numbers of 80 limbs: 10 KB.
const FRAME: usize = 12 << 10;

/// What lanes give back: limbs, and one where the limbs are right.
type Outcome = ([[u64; LANES]; LONGEST * T], [u64; LANES]);

fn pass<I: Entry, const B: usize, const F: usize>(isa: I, items: &mut [Item<'_>]) {
    let mut lanes: Vec<Lane<'_>> = Vec::with_capacity(WIDTH);
    let mut places = Vec::with_capacity(WIDTH);
    for (place, item) in items.iter_mut().enumerate() {
        match prepare(item) {
            Ok(lane) => {
                lanes.push(lane);
                places.push(place);
            }
            Err(error) => item.result = Err(error),
        }
    }
    if lanes.is_empty() {
        return;
    }
    let mut outcome = Box::new(([[0; LANES]; LONGEST * T], [0; LANES]));
    isa.run::<B, F>(&lanes, &mut outcome);
    bleach::<FRAME>();
    for (lane, place) in places.into_iter().enumerate() {
        items[place].result = deliver(&mut items[place], &outcome, lane, F);
    }
    outcome.0.zeroize();
}

/// The request's place in the pass, if key and input allow one.
fn prepare<'a>(item: &Item<'a>) -> Result<Lane<'a>, Error> {
    let key: &'a wattlock_core::Key = item.request.key;
    let key = key.expanded(Expanded::new)?;
    let mut input = [0; LONGEST * T];
    limbs_of_bytes(item.request.data.input(), &mut input);
    if !below(&input, &key.n.number) {
        return Err(TOO_LARGE);
    }
    Ok(Lane { key, input })
}

/// Whether the number is below the modulus. Only the answer leaks.
fn below(number: &[u64], modulus: &[u64]) -> bool {
    let pairs = number.iter().zip(modulus);
    pairs.fold(0, |borrow, (a, b)| a.wrapping_sub(*b).wrapping_sub(borrow) >> 63) == 1
}

/// A right result goes to its request; a wrong one never leaves.
fn deliver(item: &mut Item<'_>, outcome: &Outcome, lane: usize, blocks: usize) -> Result<usize, Error> {
    let len = item.request.data.len();
    let output = &mut item.request.data.output()[..len];
    if outcome.1[lane] != 1 {
        output.zeroize();
        return Err(Error::Device(Fault::WrongResult));
    }
    let mut limbs = [0; LONGEST * T];
    for (limb, lanes) in limbs.iter_mut().zip(&outcome.0).take(blocks * T) {
        *limb = lanes[lane];
    }
    bytes_of_limbs(&limbs, output);
    limbs.zeroize();
    Ok(len)
}

/// Lanes without a request repeat the others. In a thin pass the upper half repeats the lower.
fn spread<'l, 'a>(lanes: &'l [Lane<'a>]) -> ([&'l Lane<'a>; LANES], bool) {
    let thin = lanes.len() <= LANES / 2;
    let at = |lane: usize| if thin { lane % (LANES / 2) } else { lane };
    (std::array::from_fn(|lane| &lanes[at(lane) % lanes.len()]), thin)
}

/// What a witness gives entry to.
pub(super) trait Entry: Copy {
    /// The pass.
    fn run<const B: usize, const F: usize>(self, lanes: &[Lane<'_>], outcome: &mut Outcome);
}

#[allow(unsafe_code)]
impl Entry for Ifma512 {
    fn run<const B: usize, const F: usize>(self, lanes: &[Lane<'_>], outcome: &mut Outcome) {
        // SAFETY: the witness says that the instructions are there.
        unsafe { on_ifma::<B, F>(lanes, outcome) }
    }
}

#[allow(unsafe_code)]
impl Entry for Fma256 {
    fn run<const B: usize, const F: usize>(self, lanes: &[Lane<'_>], outcome: &mut Outcome) {
        // SAFETY: as above.
        unsafe { on_fma::<B, F>(lanes, outcome) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
#[inline(never)]
fn on_ifma<const B: usize, const F: usize>(lanes: &[Lane<'_>], outcome: &mut Outcome) {
    run::<Ifma, B, F>(lanes, outcome);
}

#[target_feature(enable = "avx2,fma")]
#[inline(never)]
fn on_fma<const B: usize, const F: usize>(lanes: &[Lane<'_>], outcome: &mut Outcome) {
    run::<Fma, B, F>(lanes, outcome);
}

#[inline(always)]
fn run<V: Machine, const B: usize, const F: usize>(lanes: &[Lane<'_>], outcome: &mut Outcome) {
    let mut work = Wiped::<V, B, F>::new();
    let (lanes, thin) = spread(lanes);
    work.load(&lanes, thin, V::new);
    work.run(|_| {});
    let (output, right) = work.outcome();
    for (to, limb) in outcome.0.iter_mut().zip(output.iter().flatten()) {
        *to = limb.reveal();
    }
    outcome.1 = right.reveal();
}
