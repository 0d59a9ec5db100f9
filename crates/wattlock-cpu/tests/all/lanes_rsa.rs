//! RSA in lanes: fresh keys by the hundred, every position and every partial batch, and one bad request among good ones.
//!
//! Results are checked by AWS-LC with the public exponent alone; those of fresh keys by OpenSSL's command line, too, in the
//! soak test those of ten thousand keys of 2048 bits and hundreds of the larger ones. Keys are pairs of primes from a pool (of
//! 142 for those ten thousand), so that each has a modulus of its own, but shares either prime with others.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use num_bigint::BigUint;
use wattlock_core::{Engine, Error, Fault, Key, Kind, OwnedRequest, RsaKey, known_answers};
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::lanes::dev::lanes_here;
use wattlock_cpu::lanes::{Item, Lanes, WIDTH};

const SIZES: [(Kind, u64); 3] =
    [(Kind::Rsa2048Private, 1024), (Kind::Rsa3072Private, 1536), (Kind::Rsa4096Private, 2048)];

/// Exponents that keys take by turns, where they are no factor of `p - 1`: the common one, short ones, long ones.
const EXPONENTS: [u64; 6] = [65_537, 3, 17, 0x1_0000_000f, 65_537, 0xffff_ffff_ffff_ffc5];

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) ^ mixed >> 31
    }

    fn number(&mut self, bits: u64) -> BigUint {
        let words: Vec<u32> = (0..bits / 32).map(|_| self.next() as u32).collect();
        BigUint::from_slice(&words)
    }

    /// A prime whose two highest bits are set, so that a product of two has all its bits. Sieved, then tried by
    /// Fermat's test, which a random number practically never passes by accident; the checks would show it.
    fn prime(&mut self, bits: u64) -> BigUint {
        let two = BigUint::from(2u8);
        let small: Vec<u32> =
            (3..2000).step_by(2).filter(|n| (3..*n).all(|d| d * d > *n || n % d != 0)).collect();
        loop {
            let mut number = self.number(bits);
            for bit in [0, bits - 1, bits - 2] {
                number.set_bit(bit, true);
            }
            let sieved = small.iter().all(|prime| &number % prime != BigUint::ZERO);
            if sieved && two.modpow(&(&number - 1u8), &number) == BigUint::from(1u8) {
                return number;
            }
        }
    }
}

/// A key of two primes with the exponent, if it has an inverse.
fn key(p: &BigUint, q: &BigUint, e: u64) -> Option<RsaKey> {
    let (one, e) = (BigUint::from(1u8), BigUint::from(e));
    let (p1, q1) = (p - &one, q - &one);
    let d = e.modinv(&(&p1 * &q1))?;
    let bytes = |number: BigUint| number.to_bytes_be();
    Some(RsaKey {
        n: bytes(p * q),
        e: bytes(e),
        dp: bytes(&d % p1),
        dq: bytes(&d % q1),
        d: bytes(d),
        qinv: bytes(q.modinv(p)?),
        p: bytes(p.clone()),
        q: bytes(q.clone()),
    })
}

/// Every ordered pair of different primes makes a key.
fn keys(random: &mut Random, bits: u64, primes: usize) -> Vec<RsaKey> {
    let primes: Vec<BigUint> = (0..primes).map(|_| random.prime(bits)).collect();
    pairs(&primes, |i, j| i != j)
}

/// Those pairs, by their places, that are wanted.
fn pairs(primes: &[BigUint], wanted: impl Fn(usize, usize) -> bool) -> Vec<RsaKey> {
    let mut keys = Vec::new();
    for (i, p) in primes.iter().enumerate() {
        for (j, q) in primes.iter().enumerate().filter(|(j, _)| wanted(i, *j)) {
            let mut exponents = (0..EXPONENTS.len()).map(|turn| EXPONENTS[(i + j + turn) % EXPONENTS.len()]);
            keys.push(exponents.find_map(|e| key(p, q, e)).expect("one of them has an inverse"));
        }
    }
    keys
}

fn request(kind: Kind, key: &RsaKey, random: &mut Random) -> OwnedRequest {
    let n = BigUint::from_bytes_be(&key.n);
    let number = (random.number(key.n.len() as u64 * 8) % n).to_bytes_be();
    let mut input = vec![0; key.n.len() - number.len()];
    input.extend(number);
    OwnedRequest::new(kind, Arc::new(Key::rsa(key.clone()).expect("a good key")), input, key.n.len())
}

fn pass(lanes: &Lanes, batch: &mut [OwnedRequest]) -> Vec<Result<usize, Error>> {
    let mut items: Vec<Item<'_>> = batch
        .iter_mut()
        .map(|request| Item { request: request.view(), result: Err(Error::Unsupported) })
        .collect();
    lanes.execute_all(&mut items);
    items.into_iter().map(|item| item.result).collect()
}

fn check(request: &OwnedRequest, result: &Result<usize, Error>) {
    let len = request.input.len();
    assert_eq!(*result, Ok(len), "{}", request.kind.name());
    assert_eq!(Instruction::new().check(request, len), Ok(()), "{}", request.kind.name());
}

/// One element of DER.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let len = content.len();
    let mut bytes = vec![tag];
    match len {
        0..0x80 => bytes.push(len as u8),
        _ => bytes.extend([0x82, (len >> 8) as u8, len as u8]),
    }
    bytes.extend(content);
    bytes
}

/// The public key as a SubjectPublicKeyInfo (RFC 5280, RFC 8017 appendix A.1.1).
fn public_der(key: &RsaKey) -> Vec<u8> {
    let integer = |number: &[u8]| {
        let mut positive = vec![0; usize::from(number[0] >= 0x80)];
        positive.extend(number);
        der(2, &positive)
    };
    let mut bits = vec![0];
    bits.extend(der(0x30, &[integer(&key.n), integer(&key.e)].concat()));
    let rsa_encryption = [6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 13, 1, 1, 1, 5, 0];
    der(0x30, &[der(0x30, &rsa_encryption), der(3, &bits)].concat())
}

/// What OpenSSL makes of these bytes by raising them to the key's public exponent. A name for the files, since tests run side
/// by side.
fn raised_by_openssl(name: &str, key: &RsaKey, signed: &[u8]) -> Vec<u8> {
    let file = |part: &str, bytes: &[u8]| {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("lanes-rsa-{name}.{part}"));
        fs::write(&path, bytes).expect("a file in a folder of ours");
        path
    };
    let raised = Command::new("openssl")
        .args(["pkeyutl", "-encrypt", "-pubin", "-keyform", "DER"])
        .args(["-pkeyopt", "rsa_padding_mode:none", "-inkey"])
        .arg(file("public", &public_der(key)))
        .arg("-in")
        .arg(file("signed", signed))
        .output()
        .expect("openssl runs");
    assert!(raised.status.success(), "{}", String::from_utf8_lossy(&raised.stderr));
    raised.stdout
}

#[test]
fn fresh_keys_by_the_hundred_give_results_that_verify() {
    for lanes in lanes_here() {
        let mut random = Random(1);
        for ((kind, bits), primes) in SIZES.into_iter().zip([12, 4, 3]) {
            let mut keys = keys(&mut random, bits, primes);
            let mut size = 0;
            while !keys.is_empty() {
                // Batches of every size, with as many keys.
                size = size % WIDTH + 1;
                let batch_keys = keys.split_off(keys.len().saturating_sub(size));
                let mut batch: Vec<_> =
                    batch_keys.iter().map(|key| request(kind, key, &mut random)).collect();
                let results = pass(&lanes, &mut batch);
                for ((key, request), result) in batch_keys.iter().zip(&batch).zip(&results) {
                    check(request, result);
                    let raised = raised_by_openssl("hundred", key, &request.output);
                    assert!(raised == request.input, "{}, modulus {:02x?}", kind.name(), key.n);
                }
            }
        }
    }
}

#[test]
fn openssl_notices_a_result_that_is_off_by_a_bit() {
    let mut random = Random(5);
    let (kind, key) = (Kind::Rsa2048Private, &keys(&mut random, 1024, 2)[0]);
    let mut right = request(kind, key, &mut random);
    assert_eq!(Instruction::new().execute(&mut right.view()), Ok(256));
    assert!(raised_by_openssl("right", key, &right.output) == right.input);
    right.output[255] ^= 1;
    assert!(raised_by_openssl("wrong", key, &right.output) != right.input);
}

#[test]
fn every_position_of_every_partial_batch_is_right() {
    for lanes in lanes_here() {
        for (kind, _) in SIZES {
            let answer = &known_answers(kind)[0];
            let wattlock_core::Expected::Bytes { output, .. } = &answer.expected else { panic!("bytes") };
            for size in 1..=WIDTH {
                let mut batch: Vec<_> = (0..size)
                    .map(|place| {
                        let mut input = answer.request.input.clone();
                        // 0 and 1 are their own powers: neighbours that differ.
                        if place % 3 != 0 {
                            input.fill(0);
                            *input.last_mut().unwrap() = (place % 3) as u8 - 1;
                        }
                        OwnedRequest::new(kind, answer.request.key.clone(), input, output.len())
                    })
                    .collect();
                let results = pass(&lanes, &mut batch);
                for (place, (request, result)) in batch.iter().zip(results).enumerate() {
                    assert_eq!(result, Ok(output.len()));
                    let expected = if place % 3 == 0 { output } else { &request.input };
                    assert!(request.output == *expected, "place {place} of {size}");
                }
            }
        }
    }
}

/// What is wrong with one request, and what it gets.
fn bad_ones(good: &RsaKey) -> Vec<(RsaKey, Vec<u8>, Error)> {
    let input = vec![1; good.n.len()];
    let altered = |part: fn(&mut RsaKey) -> &mut Vec<u8>| {
        let mut key = good.clone();
        part(&mut key)[7] ^= 0x20;
        key
    };
    let wrong = Error::Device(Fault::WrongResult);
    vec![
        (good.clone(), good.n.clone(), Error::Invalid("input is not below the modulus")),
        (good.clone(), vec![0xff; good.n.len()], Error::Invalid("input is not below the modulus")),
        (altered(|key| &mut key.p), input.clone(), Error::Invalid("RSA key")),
        (altered(|key| &mut key.q), input.clone(), Error::Invalid("RSA key")),
        (altered(|key| &mut key.dp), input.clone(), wrong),
        (altered(|key| &mut key.dq), input.clone(), wrong),
        (altered(|key| &mut key.qinv), input, wrong),
    ]
}

#[test]
fn one_bad_request_fails_alone_in_every_position() {
    for lanes in lanes_here() {
        let mut random = Random(2);
        let keys = keys(&mut random, 1024, 4);
        let kind = Kind::Rsa2048Private;
        for size in [1, 3, 4, 5, WIDTH] {
            for place in 0..size {
                for (bad, input, error) in bad_ones(&keys[11]) {
                    let mut batch: Vec<_> =
                        keys[..size].iter().map(|key| request(kind, key, &mut random)).collect();
                    let key = Arc::new(Key::rsa(bad).expect("its shape is right"));
                    batch[place] = OwnedRequest::new(kind, key, input, 256);
                    batch[place].output.fill(0x5a);
                    let results = pass(&lanes, &mut batch);
                    for (at, (request, result)) in batch.iter().zip(&results).enumerate() {
                        if at == place {
                            assert_eq!(*result, Err(error));
                            let untouched = if matches!(error, Error::Device(_)) { 0 } else { 0x5a };
                            assert!(request.output.iter().all(|byte| *byte == untouched));
                        } else {
                            check(request, result);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_batch_of_nothing_but_bad_requests_fails() {
    for lanes in lanes_here() {
        let mut random = Random(3);
        let good = &keys(&mut random, 1024, 2)[0];
        let mut batch: Vec<_> = (0..WIDTH)
            .map(|_| {
                let key = Arc::new(Key::rsa(good.clone()).expect("a good key"));
                OwnedRequest::new(Kind::Rsa2048Private, key, good.n.clone(), 256)
            })
            .collect();
        assert!(pass(&lanes, &mut batch).iter().all(|result| matches!(result, Err(Error::Invalid(_)))));
    }
}

/// Where that test's random numbers begin: another place each time, unless one is asked for.
fn seed() -> u64 {
    match std::env::var(SEED) {
        Ok(number) => number.parse().unwrap_or_else(|_| panic!("{SEED} is no number: {number}")),
        Err(_) => {
            let mut seed = [0; 8];
            getrandom::fill(&mut seed).expect("the system has random bytes");
            u64::from_ne_bytes(seed)
        }
    }
}

/// What repeats a failure.
const SEED: &str = "WATTLOCK_LANES_RSA_SEED";

#[test]
#[ignore = "minutes: ten thousand keys, each verified by a process of OpenSSL's"]
fn openssl_verifies_the_results_of_ten_thousand_keys() {
    let seed = seed();
    println!("{SEED}={seed}");
    for lanes in lanes_here() {
        let mut random = Random(seed);
        for ((kind, bits), count) in SIZES.into_iter().zip([142, 28, 17]) {
            let primes: Vec<BigUint> = (0..count).map(|_| random.prime(bits)).collect();
            // Each pair once, in one order or the other: no two keys have the same modulus.
            let keys = pairs(&primes, |i, j| i != j && (i < j) == ((i + j) % 2 == 0));
            assert_eq!(keys.len(), count * (count - 1) / 2);
            for keys in keys.chunks(WIDTH) {
                let mut batch: Vec<_> = keys.iter().map(|key| request(kind, key, &mut random)).collect();
                let results = pass(&lanes, &mut batch);
                for ((key, request), result) in keys.iter().zip(&batch).zip(results) {
                    assert_eq!(result, Ok(key.n.len()));
                    let raised = raised_by_openssl("thousands", key, &request.output);
                    assert!(raised == request.input, "{}, modulus {:02x?}", kind.name(), key.n);
                }
            }
            println!("{}, {}: {} keys", lanes.description().detail, kind.name(), keys.len());
        }
    }
}
