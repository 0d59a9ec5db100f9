//! The generic kernels over poisoned secrets, and what the model makes of them. What a caller sees is shown in
//! `tests/lanes_bulk.rs`.

use std::panic::catch_unwind;

use wattlock_core::dev::Random;
use wattlock_core::{Data, Engine, Item, Key, Kind, Request};

use super::sponge;
use crate::lanes::vector::model::Model;
use crate::lanes::vector::{LANES, Vector};
use crate::lanes::{sha1, sha2};
use crate::software::Software;
use crate::software::hash::Core;
use crate::software::{sha1::Sha1, sha256::Sha256, sha512::Sha512};

/// Random words, both halves of each for itself.
fn words<const N: usize>(random: &Random) -> [[u64; LANES]; N] {
    std::array::from_fn(|_| std::array::from_fn(|_| random.next()))
}

/// The bytes of a message's block: sixteen words of one lane, whole or a half of each.
fn bytes(block: &[[u64; LANES]; 16], lane: usize, half: Option<u32>) -> Vec<u8> {
    let each = block.iter().map(|word| word[lane]);
    match half {
        None => each.flat_map(u64::to_be_bytes).collect(),
        Some(half) => each.flat_map(|word| ((word >> (32 * half)) as u32).to_be_bytes()).collect(),
    }
}

/// What plain code makes of one block after the initial state.
fn one<C: Core>(block: &[u8]) -> Vec<u8> {
    let (mut core, mut out) = (C::INITIAL, vec![0; C::OUT]);
    core.compress(block);
    core.write(&mut out);
    out
}

/// The initial words, those of 32 bits in both halves, from the state before any block.
fn initial<C: Core, const N: usize>(half: bool) -> [Model; N] {
    let mut out = vec![0; C::OUT];
    C::INITIAL.write(&mut out);
    let bytes = out.len() / N;
    std::array::from_fn(|word| {
        let number = out[bytes * word..][..bytes].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        Model::secret(&[if half { number * 0x1_0000_0001 } else { number }; LANES])
    })
}

#[test]
fn sixteen_blocks_of_sha_1_reveal_nothing_and_are_right() {
    let random = Random::new(0x5a1);
    let block = words(&random);
    let mut state = initial::<Sha1, 5>(true);
    sha1::compress(&mut state, &block.each_ref().map(Model::secret));
    assert!(catch_unwind(|| state[0].reveal()).is_err(), "a state is a secret");
    let state = state.map(Model::declassified);
    for (lane, half) in (0..LANES).flat_map(|lane| [(lane, 0), (lane, 1)]) {
        let found: Vec<u8> =
            state.iter().flat_map(|word| ((word[lane] >> (32 * half)) as u32).to_be_bytes()).collect();
        assert_eq!(found, one::<Sha1>(&bytes(&block, lane, Some(half))));
    }
}

#[test]
fn sixteen_blocks_of_sha_256_reveal_nothing_and_are_right() {
    let random = Random::new(0x5a256);
    let block = words(&random);
    let mut state = initial::<Sha256, 8>(true);
    sha2::compress::<sha2::Sha256, _>(&mut state, &block.each_ref().map(Model::secret));
    assert!(catch_unwind(|| state[0].reveal()).is_err(), "a state is a secret");
    let state = state.map(Model::declassified);
    for (lane, half) in (0..LANES).flat_map(|lane| [(lane, 0), (lane, 1)]) {
        let found: Vec<u8> =
            state.iter().flat_map(|word| ((word[lane] >> (32 * half)) as u32).to_be_bytes()).collect();
        assert_eq!(found, one::<Sha256>(&bytes(&block, lane, Some(half))));
    }
}

#[test]
fn eight_blocks_of_sha_512_reveal_nothing_and_are_right() {
    let random = Random::new(0x5a512);
    let block = words(&random);
    let mut state = initial::<Sha512, 8>(false);
    sha2::compress::<sha2::Sha512, _>(&mut state, &block.each_ref().map(Model::secret));
    assert!(catch_unwind(|| state[0].reveal()).is_err(), "a state is a secret");
    let state = state.map(Model::declassified);
    for lane in 0..LANES {
        let found: Vec<u8> = state.iter().flat_map(|word| word[lane].to_be_bytes()).collect();
        assert_eq!(found, one::<Sha512>(&bytes(&block, lane, None)));
    }
}

/// A request of a hash.
fn ask<'a>(kind: Kind, from: &'a [u8], to: &'a mut [u8]) -> Item<'a> {
    Item::new(Request::new(kind, Key::none(), Data::Apart { from, to }))
}

#[test]
fn sponges_reveal_nothing_but_their_output_and_are_right() {
    let random = Random::new(0x5a3);
    for kind in sponge::KINDS {
        let room = kind.info().output.unwrap_or(300);
        let texts: Vec<Vec<u8>> = (0..11).map(|at| random.bytes(at * 61)).collect();
        let mut rooms = vec![vec![0; room]; texts.len()];
        let mut items: Vec<Item<'_>> =
            texts.iter().zip(&mut rooms).map(|(from, to)| ask(kind, from, to)).collect();
        sponge::run::<Model>(&sponge::Sponge::of(kind).unwrap(), &mut items);
        assert!(items.iter().all(|item| item.result == Ok(room)));
        drop(items);
        for (text, found) in texts.iter().zip(&rooms) {
            let mut right = vec![0; room];
            Software::new().execute(&mut ask(kind, text, &mut right).request).unwrap();
            assert_eq!(*found, right, "{} of {}", kind.name(), text.len());
        }
    }
}
