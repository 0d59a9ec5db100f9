//! Keys and inputs that are wrong in ways only an engine can see, and results that differ from run to run.

use std::sync::Arc;

use wattlock_core::{
    Curve, Data, EcKey, Engine, Error, Family, Fault, Key, Kind, Material, Options, OwnedRequest, Request,
    RsaKey, known_answers,
};
use wattlock_cpu::instruction::Instruction;

const RSA: [Kind; 3] = [Kind::Rsa2048Private, Kind::Rsa3072Private, Kind::Rsa4096Private];

fn rsa_parts(kind: Kind) -> RsaKey {
    let answer = known_answers(kind).swap_remove(0);
    match answer.request.key.material() {
        Material::Rsa(parts) => (**parts).clone(),
        _ => panic!("{kind:?} has an RSA key"),
    }
}

fn run(kind: Kind, key: &Key, input: &[u8], room: usize) -> Result<Vec<u8>, Error> {
    let mut out = vec![0; room];
    let mut request = Request::new(kind, key, Data::Apart { from: input, to: &mut out });
    request.validate()?;
    let len = Instruction::new().execute(&mut request)?;
    out.truncate(len);
    Ok(out)
}

#[test]
fn rsa_key_whose_parts_do_not_belong_together_gives_an_error() {
    for kind in RSA {
        let right = rsa_parts(kind);
        let input = vec![3; right.n.len()];
        let spoil: [fn(&mut RsaKey); 8] = [
            |key| key.n[10] ^= 1,
            |key| key.e = vec![0x11],
            |key| *key.d.last_mut().unwrap() ^= 2,
            |key| key.p[10] ^= 1,
            |key| key.q[10] ^= 1,
            |key| *key.dp.last_mut().unwrap() ^= 2,
            |key| *key.dq.last_mut().unwrap() ^= 2,
            |key| *key.qinv.last_mut().unwrap() ^= 2,
        ];
        for (which, spoil) in spoil.into_iter().enumerate() {
            let mut parts = right.clone();
            spoil(&mut parts);
            let key = Key::rsa(parts).unwrap();
            assert_eq!(
                run(kind, &key, &input, input.len()),
                Err(Error::Invalid("RSA key")),
                "{kind:?} {which}"
            );
        }
        assert!(run(kind, &Key::rsa(right).unwrap(), &input, input.len()).is_ok());
    }
}

#[test]
fn rsa_input_must_be_below_the_modulus() {
    let parts = rsa_parts(Kind::Rsa2048Private);
    let n = parts.n.clone();
    let key = Key::rsa(parts).unwrap();
    let last = n.len() - 1;
    let with_last = |byte: u8| [&n[..last], &[byte]].concat();
    assert_eq!(run(Kind::Rsa2048Private, &key, &n, 256), Err(Error::Invalid("input not below the modulus")));
    assert!(run(Kind::Rsa2048Private, &key, &[0xff; 256], 256).is_err());
    let (mut zero, mut one) = (vec![0; 256], vec![0; 256]);
    one[last] = 1;
    // 0, 1 and n - 1 are their own powers to any odd exponent.
    for fixed in [&zero, &one, &with_last(n[last] ^ 1)] {
        assert_eq!(run(Kind::Rsa2048Private, &key, fixed, 256).as_ref(), Ok(fixed));
    }
    zero[last] = 2;
    assert_ne!(run(Kind::Rsa2048Private, &key, &zero, 256).unwrap(), zero);
}

/// The kinds of a curve: generate, derive, sign.
const NIST: [(Curve, [Kind; 3]); 2] = [
    (Curve::P256, [Kind::P256Generate, Kind::P256Derive, Kind::EcdsaP256Sign]),
    (Curve::P384, [Kind::P384Generate, Kind::P384Derive, Kind::EcdsaP384Sign]),
];

fn pair(curve: Curve, generate: Kind) -> EcKey {
    let both =
        run(generate, Key::none(), &[], curve.scalar_len() + curve.public_len()).expect("it generates");
    let (scalar, public) = both.split_at(curve.scalar_len());
    EcKey { scalar: scalar.to_vec(), public: public.to_vec() }
}

/// The bytes with one bit of the last one changed: a point off the curve, the order's neighbour.
fn spoiled(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    *bytes.last_mut().expect("there are bytes") ^= 1;
    bytes
}

/// A curve's order (SP 800-186 section 3.2.1), big-endian.
fn order(curve: Curve) -> Vec<u8> {
    let words: &[u64] = match curve {
        Curve::P256 => &[0xffffffff00000000, 0xffffffffffffffff, 0xbce6faada7179e84, 0xf3b9cac2fc632551],
        Curve::P384 => {
            &[u64::MAX, u64::MAX, u64::MAX, 0xc7634d81f4372ddf, 0x581a0db248b0a77a, 0xecec196accc52973]
        }
        Curve::X25519 => panic!("its scalars are not taken modulo an order"),
    };
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

#[test]
fn scalar_out_of_range_is_refused_by_derive_and_by_sign() {
    for (curve, [generate, derive, sign]) in NIST {
        let (mine, peer) = (pair(curve, generate), pair(curve, generate).public.clone());
        let len = curve.scalar_len();
        let order = order(curve);
        let mut above = order.clone();
        above[len - 1] += 1;
        for scalar in [vec![0; len], order.clone(), above, vec![0xff; len]] {
            let key =
                || Key::ec(curve, EcKey { scalar: scalar.clone(), public: mine.public.clone() }).unwrap();
            let invalid = Err(Error::Invalid("elliptic-curve key"));
            assert_eq!(run(derive, &key(), &peer, len), invalid, "{scalar:02x?}");
            assert_eq!(run(sign, &key(), &[7; 32], 2 * len), invalid, "{scalar:02x?}");
        }
        // The largest scalar is in range, and n - 1 times a point is the point's negative: the same x coordinate.
        let largest = Key::ec(curve, EcKey { scalar: spoiled(&order), public: mine.public.clone() }).unwrap();
        assert_eq!(run(derive, &largest, &peer, len).unwrap(), peer[1..1 + len]);
    }
}

/// Agreement does not look at the public point, and a key share is used once: multiplying to check it would be a
/// large part of the work. A signature that could not be verified is another matter.
#[test]
fn point_of_another_scalar_is_refused_by_sign_and_changes_nothing_for_derive() {
    for (curve, [generate, derive, sign]) in NIST {
        let (mine, other) = (pair(curve, generate), pair(curve, generate));
        let len = curve.scalar_len();
        let right = || Key::ec(curve, mine.clone()).unwrap();
        let mixed =
            || Key::ec(curve, EcKey { scalar: mine.scalar.clone(), public: other.public.clone() }).unwrap();
        let shared = run(derive, &right(), &other.public, len).unwrap();
        assert_eq!(run(derive, &Key::ec(curve, other.clone()).unwrap(), &mine.public, len).unwrap(), shared);
        assert_eq!(run(derive, &mixed(), &other.public, len).unwrap(), shared);
        let invalid = Err(Error::Invalid("elliptic-curve key"));
        assert_eq!(run(sign, &mixed(), &[7; 32], 2 * len), invalid);
        assert!(run(sign, &right(), &[7; 32], 2 * len).is_ok());
        // What derive left in a key does not pass for what sign demands.
        let key = mixed();
        assert!(run(derive, &key, &other.public, len).is_ok());
        assert_eq!(run(sign, &key, &[7; 32], 2 * len), invalid);
    }
}

#[test]
fn what_is_no_uncompressed_point_on_the_curve_is_refused_as_peer_and_as_own() {
    for (curve, [generate, derive, sign]) in NIST {
        let (mine, other) = (pair(curve, generate), pair(curve, generate).public.clone());
        let len = curve.scalar_len();
        let good = Key::ec(curve, mine.clone()).unwrap();
        let mut hybrid = other.clone();
        hybrid[0] = 6 | (hybrid.last().unwrap() & 1);
        let mut infinity = other.clone();
        infinity[0] = 0;
        for bad in [spoiled(&other), hybrid, infinity, vec![0; curve.public_len()]] {
            assert_eq!(run(derive, &good, &bad, len), Err(Error::Invalid("point")));
            let key = || Key::ec(curve, EcKey { scalar: mine.scalar.clone(), public: bad.clone() }).unwrap();
            let invalid = Err(Error::Invalid("elliptic-curve key"));
            assert_eq!(run(derive, &key(), &other, len), invalid);
            assert_eq!(run(sign, &key(), &[7; 32], 2 * len), invalid);
        }
    }
}

#[test]
fn x25519_point_of_small_order_is_refused() {
    let both = run(Kind::X25519Generate, Key::none(), &[], 64).unwrap();
    let key = EcKey { scalar: both[..32].to_vec(), public: both[32..].to_vec() };
    let key = Key::ec(Curve::X25519, key).unwrap();
    let mut one = [0; 32];
    one[0] = 1;
    for point in [[0; 32], one] {
        assert!(matches!(run(Kind::X25519Derive, &key, &point, 32), Err(Error::Invalid(_))));
    }
}

/// Every known answer is right to `check`, and wrong after any one bit of it changed.
#[test]
fn check_sees_every_spoiled_bit() {
    let engine = Instruction::new();
    for &kind in Kind::ALL {
        for answer in known_answers(kind) {
            let mut request = answer.request;
            let Ok(len) = engine.execute(&mut request.view()) else { continue };
            assert_eq!(engine.check(&request, len), Ok(()), "{kind:?}");
            let wrong = Err(Error::Device(Fault::WrongResult));
            assert_eq!(engine.check(&request, request.output.len() + 1), wrong);
            for bit in (0..len * 8).step_by((len / 8).max(1)) {
                // X25519 ignores five bits of a scalar, so they are not wrong. Compressed data may have
                // padding: what counts is whether it still decompresses to the input.
                let free = kind == Kind::X25519Generate && (bit < 3 || bit == 254 || bit == 255)
                    || kind.info().family == Family::Compress;
                request.output[bit / 8] ^= 1 << (bit % 8);
                assert!(free || engine.check(&request, len) == wrong, "{kind:?} bit {bit}");
                request.output[bit / 8] ^= 1 << (bit % 8);
            }
            if kind.info().family == Family::Seal {
                request.tag[15] ^= 0x80;
                assert_eq!(engine.check(&request, len), wrong);
            }
        }
    }
}

fn text(len: usize) -> Vec<u8> {
    (0..len).map(|i| b"the quick brown fox "[(i * i / 7 + i / 3) % 20]).collect()
}

fn deflated(input: &[u8], options: Options, room: usize) -> (OwnedRequest, Result<usize, Error>) {
    let mut request = OwnedRequest::new(Kind::Deflate, Arc::new(Key::none_owned()), input.to_vec(), room);
    request.options = options;
    let outcome = Instruction::new().execute(&mut request.view());
    (request, outcome)
}

#[test]
fn consecutive_deflate_chunks_join_to_one_stream() {
    let engine = Instruction::new();
    for level in 1..=9 {
        let whole = text(100_000);
        let mut joined = Vec::new();
        let chunks: Vec<&[u8]> = whole.chunks(30_000).collect();
        for (i, chunk) in chunks.iter().enumerate() {
            let mut options = Options::default();
            (options.level, options.last) = (level, i + 1 == chunks.len());
            let (request, outcome) = deflated(chunk, options, chunk.len() + 100);
            let len = outcome.unwrap();
            assert_eq!(engine.check(&request, len), Ok(()));
            joined.extend_from_slice(&request.output[..len]);
        }
        let mut request = OwnedRequest::new(Kind::Deflate, Arc::new(Key::none_owned()), whole, 0);
        let len = joined.len();
        request.output = joined;
        assert_eq!(engine.check(&request, len), Ok(()), "level {level}");
        assert!(len < 50_000);
    }
}

#[test]
fn deflate_that_is_not_what_it_claims_is_wrong() {
    let engine = Instruction::new();
    let wrong = Err(Error::Device(Fault::WrongResult));
    for last in [true, false] {
        let mut options = Options::default();
        options.last = last;
        let (mut request, outcome) = deflated(&text(50_000), options, 60_000);
        let len = outcome.unwrap();
        assert_eq!(engine.check(&request, len), Ok(()));
        assert_eq!(engine.check(&request, len - 1), wrong, "truncated");
        assert_eq!(engine.check(&request, len + 1), wrong, "extended");
        request.options.last = !last;
        assert_eq!(engine.check(&request, len), wrong, "ends otherwise");
        request.options.last = last;
        request.input.push(0);
        assert_eq!(engine.check(&request, len), wrong, "longer input");
        request.input.truncate(49_999);
        assert_eq!(engine.check(&request, len), wrong, "shorter input");
    }
}

#[test]
fn deflate_without_room_is_refused() {
    let input = text(20_000);
    for last in [true, false] {
        let mut options = Options::default();
        options.last = last;
        let (_, outcome) = deflated(&input, options, 60_000);
        let len = outcome.unwrap();
        for room in [1, 2, 100, len - 1] {
            let (_, outcome) = deflated(&input, options, room);
            assert_eq!(outcome, Err(Error::Invalid("output length")), "{room} of {len}");
        }
        // The compressor that failed is used again.
        assert_eq!(deflated(&input, options, 60_000).1, Ok(len));
    }
}
