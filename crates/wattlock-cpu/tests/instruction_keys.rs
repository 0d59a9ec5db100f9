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

#[test]
fn scalar_out_of_range_or_point_of_another_scalar_is_refused() {
    for (curve, generate, derive) in [
        (Curve::P256, Kind::P256Generate, Kind::P256Derive),
        (Curve::P384, Kind::P384Generate, Kind::P384Derive),
    ] {
        let pair = || {
            let both = run(generate, Key::none(), &[], curve.scalar_len() + curve.public_len()).unwrap();
            let (scalar, public) = both.split_at(curve.scalar_len());
            EcKey { scalar: scalar.to_vec(), public: public.to_vec() }
        };
        let (mine, other) = (pair(), pair());
        let agree = |scalar: &[u8], public: &[u8], peer: &[u8]| {
            let key = EcKey { scalar: scalar.to_vec(), public: public.to_vec() };
            run(derive, &Key::ec(curve, key).unwrap(), peer, curve.scalar_len())
        };
        let shared = agree(&mine.scalar, &mine.public, &other.public).unwrap();
        assert_eq!(agree(&other.scalar, &other.public, &mine.public).unwrap(), shared);
        let invalid = Err(Error::Invalid("elliptic-curve key"));
        assert_eq!(agree(&mine.scalar, &other.public, &other.public), invalid);
        assert_eq!(agree(&vec![0; curve.scalar_len()], &mine.public, &other.public), invalid);
        assert_eq!(agree(&vec![0xff; curve.scalar_len()], &mine.public, &other.public), invalid);
        let mut off = other.public.clone();
        *off.last_mut().unwrap() ^= 1;
        assert_eq!(agree(&mine.scalar, &mine.public, &off), Err(Error::Invalid("point")));
        let mut hybrid = other.public.clone();
        hybrid[0] = 6 | (hybrid.last().unwrap() & 1);
        assert_eq!(agree(&mine.scalar, &mine.public, &hybrid), Err(Error::Invalid("point")));
        assert_eq!(
            agree(&mine.scalar, &mine.public, &vec![0; curve.public_len()]),
            Err(Error::Invalid("point"))
        );
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
                // X25519 ignores five bits of a scalar, so they are not wrong; a deflate stream may end in padding.
                let free = kind == Kind::X25519Generate && (bit < 3 || bit == 254 || bit == 255)
                    || kind == Kind::Deflate;
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
