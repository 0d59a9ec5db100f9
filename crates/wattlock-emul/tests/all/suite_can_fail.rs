//! The conformance suite finds public-key flaws. (Its own crate shows the same for bulk kinds and queues, with a toy
//! that has no public keys.) Each engine here is a right one with one check taken out or one result altered.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use wattlock_core::dev::{Harness, conform};
use wattlock_core::{Description, Engine, Error, Family, Kind, KindSet, OwnedRequest, Request};
use wattlock_cpu::instruction::Instruction;

/// What is wrong, given the request and the right result (whose output may be altered).
type Flaw = fn(&mut Request<'_>, Result<usize, Error>) -> Result<usize, Error>;
/// What is wrong with the check.
type Blindness = fn(&OwnedRequest, usize, Result<(), Error>) -> Result<(), Error>;

struct Flawed {
    right: Instruction,
    description: Description,
    flaw: Flaw,
    blindness: Blindness,
}

impl Engine for Flawed {
    fn description(&self) -> &Description {
        &self.description
    }

    fn execute(&self, request: &mut Request<'_>) -> Result<usize, Error> {
        if !self.description.inline.contains(request.kind) {
            return Err(Error::Unsupported);
        }
        let result = self.right.execute(request);
        (self.flaw)(request, result)
    }

    fn check(&self, request: &OwnedRequest, len: usize) -> Result<(), Error> {
        (self.blindness)(request, len, self.right.check(request, len))
    }
}

fn verdict(kind: Kind, flaw: Flaw, blindness: Blindness) -> Result<(), String> {
    let right = Instruction::new();
    let description =
        Description { name: "flawed", inline: KindSet::of(&[kind]), ..right.description().clone() };
    let engine = Flawed { right, description, flaw, blindness };
    let reference = Instruction::new();
    let run = AssertUnwindSafe(|| conform(&engine, &reference, &Harness::default()));
    let text =
        |panic: Box<dyn std::any::Any + Send>| panic.downcast_ref::<String>().cloned().unwrap_or_default();
    catch_unwind(run).map(drop).map_err(text)
}

fn none(_: &mut Request<'_>, result: Result<usize, Error>) -> Result<usize, Error> {
    result
}

fn sees(_: &OwnedRequest, _: usize, verdict: Result<(), Error>) -> Result<(), Error> {
    verdict
}

fn fails(kind: Kind, flaw: Flaw, words: &str) {
    let message = verdict(kind, flaw, sees).expect_err("the suite passes a broken engine");
    assert!(message.contains(words), "fails with: {message}");
}

/// An engine without the check that made `result` an error answers with something.
fn pretend(request: &mut Request<'_>) -> Result<usize, Error> {
    let len = request.kind.info().output.unwrap_or(0);
    request.data.output()[..len].fill(1);
    Ok(len)
}

#[test]
fn without_a_flaw_each_of_these_kinds_passes() {
    for kind in
        [Kind::Rsa2048Private, Kind::EcdsaP256Sign, Kind::P384Derive, Kind::X25519Derive, Kind::P256Generate]
    {
        assert_eq!(verdict(kind, none, sees), Ok(()));
    }
}

#[test]
fn rsa_input_at_or_above_the_modulus_taken_is_found() {
    let flaw: Flaw = |request, result| match result {
        Err(Error::Invalid(_)) if request.data.input()[0] >= 0x80 => pretend(request),
        other => other,
    };
    // Wycheproof has such inputs, too, and comes first.
    fails(Kind::Rsa2048Private, flaw, "added n to c");
    let ones: Flaw = |request, result| match result {
        Err(Error::Invalid(_)) if request.data.input().iter().all(|byte| *byte == 0xff) => pretend(request),
        other => other,
    };
    fails(Kind::Rsa2048Private, ones, "input: ");
}

#[test]
fn rsa_result_of_a_broken_key_released_is_found() {
    let flaw: Flaw = |request, result| match result {
        Err(_) if request.data.input()[0] == 0 => pretend(request),
        other => other,
    };
    fails(Kind::Rsa2048Private, flaw, "key with a wrong");
}

#[test]
fn off_curve_point_taken_is_found() {
    let flaw: Flaw = |request, result| if result.is_err() { pretend(request) } else { result };
    fails(Kind::P256Derive, flaw, "p256-derive");
    fails(Kind::P384Derive, flaw, "p384-derive");
}

#[test]
fn all_zero_shared_secret_released_is_found() {
    let flaw: Flaw = |request, result| match result {
        Err(_) => {
            request.data.output()[..32].fill(0);
            Ok(32)
        }
        other => other,
    };
    fails(Kind::X25519Derive, flaw, "x25519-derive");
}

#[test]
fn signature_with_a_bad_key_is_found() {
    let flaw: Flaw = |request, result| if result.is_err() { pretend(request) } else { result };
    fails(Kind::EcdsaP256Sign, flaw, "key: ");
}

#[test]
fn wrong_signature_is_found() {
    let flaw: Flaw = |request, result| {
        if request.data.len() == 47 {
            request.data.output()[63] ^= 1;
        }
        result
    };
    fails(Kind::EcdsaP384Sign, flaw, "47 bytes");
}

#[test]
fn key_pair_that_does_not_match_is_found() {
    let flaw: Flaw = |request, result| {
        request.data.output()[31] ^= 1;
        result
    };
    assert_eq!(Kind::P256Generate.info().family, Family::Generate);
    fails(Kind::P256Generate, flaw, "p256-generate");
}

#[test]
fn the_same_key_pair_twice_is_found() {
    static FIRST: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    let flaw: Flaw = |request, result| {
        let output = &mut request.data.output()[..64];
        output.copy_from_slice(FIRST.get_or_init(|| output.to_vec()));
        result
    };
    fails(Kind::X25519Generate, flaw, "the same twice");
}

#[test]
fn check_that_passes_every_signature_is_found() {
    let message = verdict(Kind::EcdsaP256Sign, none, |_, _, _| Ok(())).unwrap_err();
    assert!(message.contains("check, Wycheproof"), "{message}");
}
