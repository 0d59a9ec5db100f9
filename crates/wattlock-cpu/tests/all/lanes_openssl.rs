//! ECDSA in lanes, verified by the system's OpenSSL: random keys and random messages, each a process of its own that shares
//! nothing with us but the bytes. Lanes for these curves rest on AVX-512; where there is none, nothing is tried here, and
//! the tests say so. RSA is `lanes_rsa`'s.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use wattlock_core::dev::Random;
use wattlock_core::{Curve, EcKey, Engine, Error, Key, Kind, OwnedRequest};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::lanes::{Isa, Item, Lanes, WIDTH};

/// SubjectPublicKeyInfo (RFC 5480) up to the point.
const P256_SPKI: &[u8] = &[
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
const P384_SPKI: &[u8] = &[
    0x30, 0x76, 0x30, 0x10, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x05, 0x2b, 0x81,
    0x04, 0x00, 0x22, 0x03, 0x62, 0x00,
];

fn pass(lanes: &Lanes, batch: &mut [OwnedRequest]) {
    let kind = batch[0].kind;
    let mut items: Vec<Item<'_>> = batch
        .iter_mut()
        .map(|request| Item { request: request.view(), result: Err(Error::Unsupported) })
        .collect();
    lanes.execute_all(&mut items);
    assert!(items.iter().all(|item| item.result.is_ok()), "{}", kind.name());
}

/// A non-negative INTEGER of DER (X.690).
fn integer(number: &[u8]) -> Vec<u8> {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    let mut body = number[zeros.min(number.len() - 1)..].to_vec();
    if body[0] >= 0x80 {
        body.insert(0, 0);
    }
    [&[2, body.len() as u8], &body[..]].concat()
}

/// Ecdsa-Sig-Value (RFC 3279); shorter than 128 bytes for both curves.
fn signature(raw: &[u8]) -> Vec<u8> {
    let (r, s) = raw.split_at(raw.len() / 2);
    let body = [integer(r), integer(s)].concat();
    [&[0x30, body.len() as u8], &body[..]].concat()
}

/// Whether `openssl pkeyutl -verify` accepts it. A name for the files, since tests run side by side.
fn openssl_accepts(name: &str, spki: &[u8], digest: &[u8], signature: &[u8]) -> bool {
    let file = |part: &str, bytes: &[u8]| {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{part}"));
        fs::write(&path, bytes).unwrap();
        path
    };
    let status = Command::new("openssl")
        .args(["pkeyutl", "-verify", "-pubin", "-keyform", "DER", "-inkey"])
        .arg(file("spki", spki))
        .arg("-in")
        .arg(file("digest", digest))
        .arg("-sigfile")
        .arg(file("signature", signature))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.expect("openssl runs").success()
}

/// Batches of fresh keys, half of the signatures over each curve.
fn openssl_verifies(batches: usize, test: &str) {
    let isa = Isa::all(&Cpu::detect())
        .find(|isa| Lanes::new(*isa).description().inline.contains(Kind::EcdsaP256Sign));
    let Some(isa) = isa else {
        println!("no lanes for P-256 and P-384 on this CPU: ECDSA was not run");
        return;
    };
    let lanes = Lanes::new(isa);
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).unwrap();
    let random = Random::new(u64::from_ne_bytes(seed));
    let curves = [
        (Curve::P256, Kind::P256Generate, Kind::EcdsaP256Sign, P256_SPKI, 32),
        (Curve::P384, Kind::P384Generate, Kind::EcdsaP384Sign, P384_SPKI, 48),
    ];
    println!("{}: {} signatures", isa.name(), batches * WIDTH);
    for turn in 0..batches {
        let (curve, generate, sign, spki, len) = curves[turn % 2];
        let none = Arc::new(Key::none_owned());
        let pair = |_| OwnedRequest::new(generate, Arc::clone(&none), Vec::new(), 1 + 3 * len);
        let mut pairs: Vec<OwnedRequest> = (0..WIDTH).map(pair).collect();
        pass(&lanes, &mut pairs);
        let request = |pair: &OwnedRequest| {
            let (scalar, public) = pair.output.split_at(len);
            let key = Key::ec(curve, EcKey { scalar: scalar.to_vec(), public: public.to_vec() }).unwrap();
            OwnedRequest::new(sign, Arc::new(key), random.bytes(len), 2 * len)
        };
        let mut requests: Vec<OwnedRequest> = pairs.iter().map(request).collect();
        pass(&lanes, &mut requests);
        for (pair, request) in pairs.iter().zip(&requests) {
            let spki = [spki, &pair.output[len..]].concat();
            let name = format!("{test}.{}", sign.name());
            let right = signature(&request.output);
            assert!(openssl_accepts(&name, &spki, &request.input, &right), "{} {request:?}", sign.name());
        }
        // And it would have noticed.
        let spki = [spki, &pairs[0].output[len..]].concat();
        let wrong = signature(&requests[1].output);
        assert!(!openssl_accepts(&format!("{test}.wrong"), &spki, &requests[0].input, &wrong));
    }
}

#[test]
fn openssl_verifies_signatures_of_random_keys() {
    openssl_verifies(4, "few");
}

#[test]
#[ignore = "some minutes: 10,000 processes"]
fn openssl_verifies_ten_thousand_signatures_of_random_keys() {
    openssl_verifies(10_000 / WIDTH, "many");
}
