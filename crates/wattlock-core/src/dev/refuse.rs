//! What must be refused, and how.

use std::sync::Arc;

use super::agree::altered_rsa;
use super::case::{CANARY, Case, Suite, Want};
use super::make::{ec_key, ml_kem_key, rsa_parts, sealing, unsupported};
use super::subject::Way;
use super::wycheproof::hashed;
use crate::error::Error;
use crate::kat::{Expected, known_answers};
use crate::key::{Algorithm, Curve, EcKey, Key, ML_KEM_768_PUBLIC, Material};
use crate::kind::{Family, Kind, NonceLen};
use crate::request::{DICTIONARY_MOST, OwnedRequest, Request};

pub(super) fn cases(suite: &Suite<'_>, kind: Kind) -> Vec<Case> {
    match kind.info().family {
        Family::Open => forgeries(suite, kind),
        Family::Sign if kind.info().algorithm.modulus_len().is_some() => rsa(kind),
        Family::Sign => bad_keys(suite, kind),
        Family::Agree if kind == Kind::MlKem768Encapsulate => not_reduced(suite, kind),
        Family::Agree if kind == Kind::MlKem768Decapsulate => bad_secret_keys(suite, kind),
        Family::Agree => bad_points(suite, kind).into_iter().chain(bad_keys(suite, kind)).collect(),
        Family::Derive => too_much(suite, kind),
        Family::Compress => no_room(suite, kind),
        _ => Vec::new(),
    }
}

/// Tag, ciphertext, associated data and nonce, each with one bit flipped.
fn forgeries(suite: &Suite<'_>, kind: Kind) -> Vec<Case> {
    let mut cases = Vec::new();
    for (len, aad) in [
        (0, 0),
        (0, 13),
        (1, 0),
        (15, 5),
        (16, 16),
        (17, 20),
        (64, 0),
        (255, 13),
        (1024, 13),
        (4097, 33),
        (16384, 5),
    ] {
        let seal = sealing(kind);
        let mut request = suite.request(seal, suite.key(kind.info().algorithm), suite.random.bytes(len));
        request.aad = suite.random.bytes(aad);
        let (sealed, plaintext) = suite.opened(kind, &request);
        let mut forge = |what: &str, change: &dyn Fn(&mut OwnedRequest)| {
            let mut forged = sealed.again();
            change(&mut forged);
            let want = Want::This(Expected::Forged { plaintext: plaintext.clone() });
            cases.push(Case::new(format!("forged {what}, {len} bytes, {aad} associated"), forged, want));
        };
        let bit = 1u8 << suite.random.below(8);
        for at in [0, suite.random.below(16), 15] {
            forge("tag", &|request| request.tag[at] ^= bit);
        }
        forge("tag (all zero)", &|request| request.tag = [0; 16]);
        // A nonce of any length may be none at all; then one that is there is wrong.
        forge("nonce", &|request| match request.nonce.last_mut() {
            Some(last) => *last ^= bit,
            None => request.nonce.push(bit),
        });
        if kind.info().nonce == NonceLen::Any {
            forge("nonce (extended)", &|request| request.nonce.push(0));
        }
        if len > 0 {
            for at in [0, suite.random.below(len), len - 1] {
                forge("ciphertext", &|request| request.input[at] ^= bit);
            }
        }
        if aad > 0 {
            for at in [0, aad - 1] {
                forge("associated data", &|request| request.aad[at] ^= bit);
            }
            forge("associated data (shortened)", &|request| request.aad.truncate(aad - 1));
        }
        forge("associated data (extended)", &|request| request.aad.push(0));
    }
    cases
}

/// Inputs at and above the modulus, and keys whose parts do not belong together.
fn rsa(kind: Kind) -> Vec<Case> {
    let mut cases = Vec::new();
    for answer in known_answers(kind) {
        let (Some(parts), Expected::Bytes { output, .. }) =
            (rsa_parts(&answer.request.key), &answer.expected)
        else {
            continue;
        };
        let mut above = parts.n.clone();
        above[parts.n.len() - 1] |= 0x02;
        let above = if above == parts.n { vec![0xff; parts.n.len()] } else { above };
        for (what, input) in [
            ("modulus", parts.n.clone()),
            ("above the modulus", above),
            ("all ones", vec![0xff; parts.n.len()]),
        ] {
            let mut request = answer.request.again();
            request.input = input;
            cases.push(Case::new(format!("input: {what}"), request, Want::Invalid));
        }
        for (part, key) in altered_rsa(&answer.request.key) {
            let mut request = answer.request.again();
            request.key = Arc::new(key);
            cases.push(Case::new(
                format!("key with a wrong {part}"),
                request,
                Want::ThisOrError(output.clone()),
            ));
        }
    }
    cases
}

/// Scalars out of range and public points off the curve, in the request's own key.
fn bad_keys(suite: &Suite<'_>, kind: Kind) -> Vec<Case> {
    let Some(curve) = kind.info().algorithm.curve().filter(|curve| *curve != Curve::X25519) else {
        return Vec::new();
    };
    let len = curve.scalar_len();
    let good = suite.pair(curve);
    let off = |at: usize| {
        let mut public = good.public.clone();
        public[at] ^= 1;
        EcKey { scalar: good.scalar.clone(), public }
    };
    let scalar = |scalar: Vec<u8>| EcKey { scalar, public: good.public.clone() };
    let order = order(curve);
    let mut beyond = order.clone();
    beyond[len - 1] += 1;
    let bad = [
        ("zero scalar", scalar(vec![0; len])),
        ("scalar equal to the order", scalar(order)),
        ("scalar one above the order", scalar(beyond)),
        ("scalar all ones", scalar(vec![0xff; len])),
        ("public point off the curve", off(curve.public_len() - 1)),
        ("public point with a wrong first byte", off(0)),
    ];
    let input = match kind.info().family {
        Family::Agree => suite.pair(curve).public.clone(),
        _ => suite.random.bytes(len),
    };
    let case = |(what, key): (&str, EcKey)| {
        let request = suite.request(kind, Arc::new(ec_key(curve, key)), input.clone());
        Case::new(format!("key: {what}"), request, Want::Invalid)
    };
    bad.into_iter().map(case).collect()
}

/// Peers that are no points, or points that give nothing.
fn bad_points(suite: &Suite<'_>, kind: Kind) -> Vec<Case> {
    let Some(curve) = kind.info().algorithm.curve() else { return Vec::new() };
    let len = curve.public_len();
    let mut bad: Vec<(&str, Vec<u8>)> = Vec::new();
    if curve == Curve::X25519 {
        let small = |first: u8| std::iter::once(first).chain([0; 31]).collect::<Vec<u8>>();
        let mut minus_one = vec![0xff; 32];
        (minus_one[0], minus_one[31]) = (0xec, 0x7f);
        bad.extend([("zero", small(0)), ("one", small(1)), ("minus one", minus_one)]);
    } else {
        let good = suite.pair(curve).public.clone();
        let with = |at: usize, value: u8| {
            let mut point = good.clone();
            point[at] = value;
            point
        };
        let mut big_x = good.clone();
        big_x[1..1 + curve.scalar_len()].fill(0xff);
        bad.extend([
            ("off the curve by y", with(len - 1, good[len - 1] ^ 1)),
            ("off the curve by x", with(8, good[8] ^ 0x40)),
            ("x above the prime", big_x),
            ("compressed by its first byte", with(0, 2)),
            ("hybrid by its first byte", with(0, 6)),
            ("infinity by its first byte", with(0, 0)),
            ("all zero", vec![0; len]),
            ("origin", std::iter::once(4).chain(vec![0; len - 1]).collect()),
        ]);
    }
    let key = suite.key(kind.info().algorithm);
    let case = |(what, input): (&str, Vec<u8>)| {
        Case::new(format!("peer: {what}"), suite.request(kind, key.clone(), input), Want::Invalid)
    };
    bad.into_iter().map(case).collect()
}

/// A key with the coefficient `at`, of 12 bits, replaced.
pub(super) fn with_coefficient(key: &[u8], at: usize, value: u16) -> Vec<u8> {
    let (mut key, byte, [low, high]) = (key.to_vec(), at / 2 * 3, value.to_le_bytes());
    if at.is_multiple_of(2) {
        (key[byte], key[byte + 1]) = (low, key[byte + 1] & 0xf0 | high);
    } else {
        (key[byte + 1], key[byte + 2]) = (key[byte + 1] & 0x0f | low << 4, (value >> 4) as u8);
    }
    key
}

/// The first coefficient, some in the midst of each polynomial, the last of a vector.
const COEFFICIENTS: [usize; 10] = [0, 1, 100, 255, 256, 400, 511, 512, 700, 767];

/// Encapsulation keys with one coefficient of 3329 or more (FIPS 203 section 7.2).
fn not_reduced(suite: &Suite<'_>, kind: Kind) -> Vec<Case> {
    let good = suite.ml_kem()[ML_KEM_768_PUBLIC].to_vec();
    let case = |at: usize, value: u16| {
        let peer = with_coefficient(&good, at, value);
        let request = suite.request(kind, Arc::new(Key::none_owned()), peer);
        Case::new(format!("peer: coefficient {at} is {value}"), request, Want::Invalid)
    };
    COEFFICIENTS.into_iter().flat_map(|at| [3329, 3330, 4095].map(|value| case(at, value))).collect()
}

/// Decapsulation keys whose hash is not that of their encapsulation key (FIPS 203 section 7.3), and keys whose encapsulation
/// key is not reduced, though the hash is right.
fn bad_secret_keys(suite: &Suite<'_>, kind: Kind) -> Vec<Case> {
    let good = suite.ml_kem();
    let ciphertext = suite.encapsulated(&good);
    let case = |what: String, key: Vec<u8>| {
        let request = suite.request(kind, Arc::new(ml_kem_key(&key)), ciphertext.clone());
        Case::new(format!("key: {what}"), request, Want::Invalid)
    };
    let mut cases = Vec::new();
    for at in [1152, 1500, 2303, 2304, 2335, 2336, 2367] {
        let mut key = good.clone();
        key[at] ^= 1 << suite.random.below(8);
        cases.push(case(format!("byte {at} changed"), key));
    }
    for at in COEFFICIENTS {
        let (secret, public) = good.split_at(ML_KEM_768_PUBLIC.start);
        let value = *suite.random.pick(&[3329, 4095]);
        let mut key = [secret, &with_coefficient(public, at, value)].concat();
        let hash = hashed(suite, Kind::Sha3_256, &key[ML_KEM_768_PUBLIC]);
        key[ML_KEM_768_PUBLIC.end..][..hash.len()].copy_from_slice(&hash);
        cases.push(case(format!("coefficient {at} of the public half is {value}"), key));
    }
    cases
}

/// HKDF gives at most 255 hashes (RFC 5869 section 2.3).
fn too_much(suite: &Suite<'_>, kind: Kind) -> Vec<Case> {
    let hash = match kind {
        Kind::HkdfSha256 | Kind::HkdfExpandSha256 => 32,
        Kind::HkdfSha384 | Kind::HkdfExpandSha384 => 48,
        Kind::HkdfSha512 | Kind::HkdfExpandSha512 => 64,
        _ => return Vec::new(),
    };
    let mut request = suite.request(kind, suite.key(kind.info().algorithm), Vec::new());
    request.output = vec![CANARY; 255 * hash + 1];
    vec![Case::new("256 blocks of output", request, Want::Invalid)]
}

/// Noise does not fit into a quarter of its length.
fn no_room(suite: &Suite<'_>, kind: Kind) -> Vec<Case> {
    let case = |len: usize| {
        let mut request = suite.request(kind, Arc::new(Key::none_owned()), suite.random.bytes(len));
        request.output.truncate(len / 4);
        Case::new(format!("{len} bytes of noise into a quarter of the room"), request, Want::Invalid)
    };
    [64, 1000, 40_000].into_iter().map(case).collect()
}

/// The group orders (SP 800-186 section 3.2.1).
fn order(curve: Curve) -> Vec<u8> {
    let words: &[u64] = match curve {
        Curve::P256 => &[0xffffffff00000000, 0xffffffffffffffff, 0xbce6faada7179e84, 0xf3b9cac2fc632551],
        _ => &[
            0xffffffffffffffff,
            0xffffffffffffffff,
            0xffffffffffffffff,
            0xc7634d81f4372ddf,
            0x581a0db248b0a77a,
            0xecec196accc52973,
        ],
    };
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Lengths and keys that [`Request::validate`] must turn away before any engine sees them, because engines rely on it.
pub(super) fn malformed(kind: Kind) {
    let info = kind.info();
    let answer = known_answers(kind).swap_remove(0).request;
    let refused = |what: &str, change: &dyn Fn(&mut OwnedRequest, &mut Vec<u8>)| {
        let (mut request, mut tag) = (answer.again(), vec![0; info.tag]);
        change(&mut request, &mut tag);
        let verdict = Request { tag: &mut tag, ..request.view() }.validate();
        assert!(matches!(verdict, Err(Error::Invalid(_))), "{}: {what} passes as {verdict:?}", kind.name());
    };
    if let NonceLen::Exactly(len) = info.nonce {
        refused("a nonce too long", &|request, _| request.nonce = vec![0; len + 1]);
        if len > 0 {
            refused("a nonce too short", &|request, _| request.nonce = vec![0; len - 1]);
        }
    }
    if info.multiple > 1 {
        refused("an input of part of a block", &|request, _| request.input.push(0));
    }
    if info.least > 0 {
        refused("an input too short", &|request, _| request.input.truncate(info.least - 1));
    }
    if matches!(info.family, Family::Agree | Family::Generate | Family::Sign) {
        refused("an input too long", &|request, _| request.input = vec![0; info.least.max(64) + 1]);
    }
    if info.family != Family::Derive {
        let need = info.output.unwrap_or(1);
        refused("an output too short", &|request, _| request.output.truncate(need - 1));
    }
    match info.family {
        Family::Seal | Family::Open | Family::Mac | Family::Derive => {}
        Family::Compress => {
            refused("a dictionary too long", &|request, _| request.aad = vec![1; DICTIONARY_MOST + 1])
        }
        _ => refused("associated data", &|request, _| request.aad = vec![1]),
    }
    refused("a tag too long", &|_, tag| tag.push(0));
    if info.tag > 0 {
        refused("a tag too short", &|_, tag| tag.truncate(info.tag - 1));
    }
    let other = if info.algorithm == Algorithm::Secret { Algorithm::Aes128Gcm } else { Algorithm::Secret };
    let key = Arc::new(Key::symmetric(other, &[7; 16]).expect("both take 16 bytes"));
    refused("a key of another algorithm", &|request, _| request.key = key.clone());
    if info.algorithm != Algorithm::None {
        debug_assert!(!matches!(answer.key.material(), Material::None));
        refused("no key", &|request, _| request.key = Arc::new(Key::none_owned()));
    }
}

/// What the engine does not claim it must decline, and hand back untouched.
pub(super) fn unclaimed(suite: &Suite<'_>, kind: Kind) {
    let mut request = known_answers(kind).swap_remove(0).request;
    request.output.fill(CANARY);
    let before = request.again();
    if !unsupported(&suite.engine.execute(&mut request.view())) {
        suite.fail(kind, "an unclaimed kind", "executed anyway");
    }
    let after = [&request.input, &request.output, &request.tag.to_vec()];
    if after != [&before.input, &before.output, &before.tag.to_vec()] {
        suite.fail(kind, "an unclaimed kind", "declined, but its buffers are touched");
    }
    if !suite.ways(kind).any(|way| way == Way::Queued) && !suite.engine.description().queued.is_empty() {
        let now = (suite.harness.clock)();
        let Ok(mut instance) = suite.engine.open(now) else { suite.fail(kind, "open", "does not open") };
        match instance.submit(crate::Token(0), request, now) {
            Err(refused) if refused.error == Error::Unsupported && refused.request.input == before.input => {}
            other => suite.fail(kind, "an unclaimed kind", &format!("submission gives {other:?}")),
        }
    }
}
