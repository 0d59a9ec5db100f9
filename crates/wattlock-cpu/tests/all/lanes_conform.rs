//! The lanes engine against the standards' known answers and the conformance suite.

use std::sync::Arc;

use wattlock_core::dev::{Harness, Random, conform};
use wattlock_core::{Curve, Engine, Key, Kind, KindSet, OwnedRequest};
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::lanes::WIDTH;
use wattlock_cpu::lanes::dev::{Passes, lanes_here, nist_publics, one_by_one, x25519_publics};
use wattlock_cpu::software::Software;

/// What answers beside them: the portable engine, or on an emulated CPU the quicker one, since there the difference is
/// half an hour.
fn reference() -> Box<dyn Engine> {
    match std::env::var_os("WATTLOCK_EMULATED_CPU") {
        None => Box::new(Software::new()),
        Some(_) => Box::new(Instruction::new()),
    }
}

#[test]
fn lanes_conform() {
    for lanes in lanes_here() {
        let summary = conform(&lanes, &*reference(), &Harness::default());
        println!("{}: {summary:?}", lanes.description().detail);
    }
}

#[test]
fn batches_of_lanes_conform_whoever_makes_the_passes() {
    let kinds = KindSet::of(&[Kind::X25519Derive, Kind::P256Derive]);
    let lanes = Passes::new(kinds, one_by_one(Arc::new(Instruction::new())));
    let summary = conform(&lanes, &Software::new(), &Harness::default());
    println!("{summary:?}");
}

/// What the test of times runs is the pass that makes pairs: the public keys are the scalars'.
#[test]
fn public_keys_of_given_scalars_are_right_and_there_is_none_for_one_out_of_range() {
    let random = Random::new(11);
    let pair = |kind: Kind, scalar: &[u8], public: &[u8]| {
        let mut request = OwnedRequest::new(kind, Arc::new(Key::none_owned()), Vec::new(), 0);
        request.output = [scalar, public].concat();
        let len = request.output.len();
        assert_eq!(Software::new().check(&request, len), Ok(()), "{}", kind.name());
    };
    for lanes in lanes_here() {
        let kinds = lanes.description().inline;
        let scalars: [[u8; 48]; WIDTH] = std::array::from_fn(|lane| {
            let mut scalar: [u8; 48] = random.bytes(48).try_into().expect("48 bytes");
            // The orders begin with ones, so that the first is in range on every curve and the last on none but X25519.
            scalar[0] &= 0x7f;
            if lane == WIDTH - 1 { [0xff; 48] } else { scalar }
        });
        let short = scalars.map(|scalar| std::array::from_fn(|at| scalar[at]));
        let made = x25519_publics(&lanes, &short);
        assert_eq!(made.is_some(), kinds.contains(Kind::X25519Generate));
        for (scalar, public) in short.iter().zip(made.into_iter().flatten()) {
            pair(Kind::X25519Generate, scalar, &public.expect("every scalar is in range"));
        }
        for (kind, curve) in [(Kind::P256Generate, Curve::P256), (Kind::P384Generate, Curve::P384)] {
            let made = nist_publics(&lanes, curve, &scalars);
            assert_eq!(made.is_some(), kinds.contains(kind), "{}", kind.name());
            let (Some(made), len) = (made, curve.scalar_len()) else { continue };
            assert!(made[WIDTH - 1].is_none(), "{}", kind.name());
            for (scalar, public) in scalars.iter().zip(made).take(WIDTH - 1) {
                let public = public.expect("a scalar in range");
                pair(kind, &scalar[..len], &[&[4], &public[..2 * len]].concat());
            }
        }
    }
}
