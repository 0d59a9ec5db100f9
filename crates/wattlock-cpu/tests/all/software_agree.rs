//! The software engine's own arithmetic against implementations that share none of it: RustCrypto's block ciphers,
//! AEADs and hashes, num-bigint's integers, zlib-rs's inflate. Modes are written here a second time, the slow way, on
//! RustCrypto's block function. Known answers from the standards are in the conformance suite.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::sync::Arc;

use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes_gcm::aead::AeadInOut;
use hmac::{Hmac, Mac};
use num_bigint::BigUint;
use sha2::Digest;
use wattlock_core::dev::Random;
use wattlock_core::{
    Algorithm, Curve, Data, EcKey, Engine, Error, Fault, Key, Kind, Material, OwnedRequest, Request, RsaKey,
    known_answers,
};
use wattlock_cpu::software::Software;

/// About the width of the bitsliced state, of ChaCha20's four blocks and of every hash's block.
const LENGTHS: &[usize] = &[
    0, 1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 55, 56, 63, 64, 65, 79, 80, 111, 112, 119, 120, 127, 128, 129,
    191, 192, 193, 255, 256, 257, 447, 448, 449, 1000, 4096, 65_551,
];

fn random() -> Random {
    Random::new(0x0005_0f7a_a12e)
}

/// A request's output and tag.
fn ask(kind: Kind, key: &Key, nonce: &[u8], aad: &[u8], input: &[u8], room: usize) -> (Vec<u8>, [u8; 16]) {
    let (mut to, mut tag) = (vec![0xa5; room], [0; 16]);
    let mut request = Request {
        nonce,
        aad,
        tag: &mut tag[..kind.info().tag],
        ..Request::new(kind, key, Data::Apart { from: input, to: &mut to })
    };
    let len = Software::new().execute(&mut request).expect("a valid request");
    assert_eq!(len, room, "{}", kind.name());
    (to, tag)
}

/// The same in place.
fn ask_in_place(kind: Kind, key: &Key, nonce: &[u8], aad: &[u8], input: &[u8]) -> (Vec<u8>, [u8; 16]) {
    let (mut buffer, mut tag) = (input.to_vec(), [0; 16]);
    let mut request = Request {
        nonce,
        aad,
        tag: &mut tag[..kind.info().tag],
        ..Request::new(kind, key, Data::InPlace(&mut buffer))
    };
    Software::new().execute(&mut request).expect("a valid request");
    (buffer, tag)
}

/// RustCrypto's block function under a key of any size: encryption if true.
type BlockFunction = dyn Fn(bool, &mut [u8]);

struct Block(Box<BlockFunction>);

impl Block {
    fn new(key: &[u8]) -> Block {
        fn make<C: KeyInit + BlockCipherEncrypt + BlockCipherDecrypt + 'static>(key: &[u8]) -> Block {
            let cipher = C::new_from_slice(key).unwrap();
            Block(Box::new(move |encrypt, block| {
                let mut array = Array::try_from(&*block).unwrap();
                if encrypt {
                    cipher.encrypt_block(&mut array)
                } else {
                    cipher.decrypt_block(&mut array)
                }
                block.copy_from_slice(&array);
            }))
        }
        match key.len() {
            16 => make::<aes::Aes128>(key),
            24 => make::<aes::Aes192>(key),
            _ => make::<aes::Aes256>(key),
        }
    }

    fn encrypted(&self, block: &[u8]) -> Vec<u8> {
        let mut block = block.to_vec();
        (self.0)(true, &mut block);
        block
    }

    fn decrypted(&self, block: &[u8]) -> Vec<u8> {
        let mut block = block.to_vec();
        (self.0)(false, &mut block);
        block
    }
}

fn xor(a: &[u8], b: &[u8]) -> Vec<u8> {
    a.iter().zip(b).map(|(a, b)| a ^ b).collect()
}

fn slow_ctr(block: &Block, nonce: &[u8], input: &[u8]) -> Vec<u8> {
    let first = u128::from_be_bytes(nonce.try_into().unwrap());
    let chunk = |(i, chunk): (usize, &[u8])| {
        xor(chunk, &block.encrypted(&first.wrapping_add(i as u128).to_be_bytes()))
    };
    input.chunks(16).enumerate().flat_map(chunk).collect()
}

fn slow_cbc(block: &Block, iv: &[u8], input: &[u8]) -> Vec<u8> {
    let mut previous = iv.to_vec();
    let mut out = Vec::new();
    for chunk in input.chunks(16) {
        previous = block.encrypted(&xor(chunk, &previous));
        out.extend_from_slice(&previous);
    }
    out
}

/// IEEE 1619-2018 section 5.3, block by block.
fn slow_xts(data: &Block, tweak: &Block, nonce: &[u8], input: &[u8]) -> Vec<u8> {
    let mut t = tweak.encrypted(nonce);
    let mut out: Vec<u8> = Vec::new();
    for chunk in input.chunks(16) {
        if chunk.len() == 16 {
            out.extend(xor(&data.encrypted(&xor(chunk, &t)), &t));
        } else {
            let last = out.split_off(out.len() - 16);
            let stolen = [chunk, &last[chunk.len()..]].concat();
            out.extend(xor(&data.encrypted(&xor(&stolen, &t)), &t));
            out.extend_from_slice(&last[..chunk.len()]);
        }
        let carry = t[15] >> 7;
        for i in (1..16).rev() {
            t[i] = t[i] << 1 | t[i - 1] >> 7;
        }
        t[0] = (t[0] << 1) ^ (carry * 0x87);
    }
    out
}

#[test]
fn ctr_agrees_and_wraps_at_every_byte() {
    let random = random();
    let kinds = [
        (Kind::Aes128Ctr, Algorithm::Aes128Ctr),
        (Kind::Aes192Ctr, Algorithm::Aes192Ctr),
        (Kind::Aes256Ctr, Algorithm::Aes256Ctr),
    ];
    for (kind, algorithm) in kinds {
        let bytes = random.bytes(algorithm.key_len().unwrap());
        let (key, block) = (Key::symmetric(algorithm, &bytes).unwrap(), Block::new(&bytes));
        for &len in LENGTHS {
            let (nonce, input) = (random.bytes(16), random.bytes(len));
            let wanted = slow_ctr(&block, &nonce, &input);
            assert_eq!(ask(kind, &key, &nonce, b"", &input, len).0, wanted, "{len}");
            assert_eq!(ask_in_place(kind, &key, &nonce, b"", &input).0, wanted, "{len}");
        }
        for ones in 1..=16 {
            let mut nonce = random.bytes(16);
            nonce[16 - ones..].fill(0xff);
            nonce[15] = 0xfd;
            let input = random.bytes(200);
            assert_eq!(
                ask(kind, &key, &nonce, b"", &input, 200).0,
                slow_ctr(&block, &nonce, &input),
                "{ones}"
            );
        }
    }
}

#[test]
fn cbc_agrees_and_is_undone() {
    let random = random();
    let kinds = [
        (Kind::Aes128CbcEncrypt, Kind::Aes128CbcDecrypt, Algorithm::Aes128Cbc),
        (Kind::Aes192CbcEncrypt, Kind::Aes192CbcDecrypt, Algorithm::Aes192Cbc),
        (Kind::Aes256CbcEncrypt, Kind::Aes256CbcDecrypt, Algorithm::Aes256Cbc),
    ];
    for (encrypt, decrypt, algorithm) in kinds {
        let bytes = random.bytes(algorithm.key_len().unwrap());
        let (key, block) = (Key::symmetric(algorithm, &bytes).unwrap(), Block::new(&bytes));
        for len in (0..20).chain([255, 256, 257]).map(|blocks| 16 * blocks) {
            let (iv, input) = (random.bytes(16), random.bytes(len));
            let sealed = slow_cbc(&block, &iv, &input);
            assert_eq!(ask(encrypt, &key, &iv, b"", &input, len).0, sealed, "{len}");
            assert_eq!(ask_in_place(encrypt, &key, &iv, b"", &input).0, sealed, "{len}");
            assert_eq!(ask(decrypt, &key, &iv, b"", &sealed, len).0, input, "{len}");
            assert_eq!(ask_in_place(decrypt, &key, &iv, b"", &sealed).0, input, "{len}");
            // RustCrypto's inverse block function, so that an error of ours in both directions would show.
            if len > 0 {
                assert_eq!(xor(&block.decrypted(&sealed[..16]), &iv), input[..16]);
            }
        }
    }
}

#[test]
fn xts_agrees_with_and_without_stealing_and_is_undone() {
    let random = random();
    let kinds = [
        (Kind::Aes128XtsEncrypt, Kind::Aes128XtsDecrypt, Algorithm::Aes128Xts),
        (Kind::Aes256XtsEncrypt, Kind::Aes256XtsDecrypt, Algorithm::Aes256Xts),
    ];
    for (encrypt, decrypt, algorithm) in kinds {
        let bytes = random.bytes(algorithm.key_len().unwrap());
        let key = Key::symmetric(algorithm, &bytes).unwrap();
        let (data, tweak) = (Block::new(&bytes[..bytes.len() / 2]), Block::new(&bytes[bytes.len() / 2..]));
        for len in (16..150).chain([512, 520, 4096, 4111, 65_551]) {
            let (nonce, input) = (random.bytes(16), random.bytes(len));
            let sealed = slow_xts(&data, &tweak, &nonce, &input);
            assert_eq!(ask(encrypt, &key, &nonce, b"", &input, len).0, sealed, "{len}");
            assert_eq!(ask_in_place(encrypt, &key, &nonce, b"", &input).0, sealed, "{len}");
            assert_eq!(ask(decrypt, &key, &nonce, b"", &sealed, len).0, input, "{len}");
            assert_eq!(ask_in_place(decrypt, &key, &nonce, b"", &sealed).0, input, "{len}");
        }
    }
}

type Aes192Gcm = aes_gcm::AesGcm<aes::Aes192, aes::cipher::consts::U12>;

/// Seals, opens, and fails to open.
fn aead_agrees<A: AeadInOut + KeyInit>(seal: Kind, open: Kind, algorithm: Algorithm) {
    let random = random();
    let engine = Software::new();
    let bytes = random.bytes(algorithm.key_len().unwrap());
    let (key, other) = (Key::symmetric(algorithm, &bytes).unwrap(), A::new_from_slice(&bytes).unwrap());
    for &len in LENGTHS {
        for aad_len in [0, 1, 13, 16, 17, 64, 1000] {
            let (nonce, aad, input) = (random.bytes(12), random.bytes(aad_len), random.bytes(len));
            let mut wanted = input.clone();
            let nonce_array = Array::try_from(&nonce[..]).unwrap();
            let wanted_tag =
                other.encrypt_inout_detached(&nonce_array, &aad, (&mut wanted[..]).into()).unwrap();
            let (sealed, tag) = ask(seal, &key, &nonce, &aad, &input, len);
            assert_eq!((&sealed, &tag[..]), (&wanted, &wanted_tag[..]), "{len} {aad_len}");
            assert_eq!(ask_in_place(seal, &key, &nonce, &aad, &input), (sealed.clone(), tag));

            let open_with = |tag: &mut [u8; 16], data: Data<'_>| {
                let mut request =
                    Request { nonce: &nonce, aad: &aad, tag: &mut tag[..], ..Request::new(open, &key, data) };
                engine.execute(&mut request)
            };
            let mut to = vec![0x5a; len];
            let mut right = tag;
            assert_eq!(open_with(&mut right, Data::Apart { from: &sealed, to: &mut to }), Ok(len));
            assert_eq!(to, input);
            assert_eq!(right, tag, "opening leaves the tag as it was");

            let mut wrong = tag;
            wrong[random.below(16)] ^= 1 << random.below(8);
            to.fill(0x5a);
            let refused = open_with(&mut wrong, Data::Apart { from: &sealed, to: &mut to });
            assert_eq!(refused, Err(Error::Authentication));
            assert_eq!(to, vec![0; len], "a wrong tag releases nothing, apart");
            let mut buffer = sealed.clone();
            assert_eq!(open_with(&mut wrong, Data::InPlace(&mut buffer)), Err(Error::Authentication));
            assert_eq!(buffer, vec![0; len], "a wrong tag releases nothing, in place");
        }
    }
}

#[test]
fn gcm_agrees_and_a_wrong_tag_releases_nothing() {
    aead_agrees::<aes_gcm::Aes128Gcm>(Kind::Aes128GcmSeal, Kind::Aes128GcmOpen, Algorithm::Aes128Gcm);
    aead_agrees::<Aes192Gcm>(Kind::Aes192GcmSeal, Kind::Aes192GcmOpen, Algorithm::Aes192Gcm);
    aead_agrees::<aes_gcm::Aes256Gcm>(Kind::Aes256GcmSeal, Kind::Aes256GcmOpen, Algorithm::Aes256Gcm);
}

#[test]
fn chacha20_poly1305_agrees_and_a_wrong_tag_releases_nothing() {
    aead_agrees::<chacha20poly1305::ChaCha20Poly1305>(
        Kind::ChaCha20Poly1305Seal,
        Kind::ChaCha20Poly1305Open,
        Algorithm::ChaCha20Poly1305,
    );
}

#[test]
fn hashes_agree_at_every_length_about_two_blocks() {
    let random = random();
    for len in (0..270).chain([1 << 16, 100_001]) {
        let input = random.bytes(len);
        let ours = |kind: Kind| ask(kind, Key::none(), b"", b"", &input, kind.info().output.unwrap()).0;
        assert_eq!(ours(Kind::Sha1), sha1::Sha1::digest(&input)[..], "{len}");
        assert_eq!(ours(Kind::Sha256), sha2::Sha256::digest(&input)[..], "{len}");
        assert_eq!(ours(Kind::Sha384), sha2::Sha384::digest(&input)[..], "{len}");
        assert_eq!(ours(Kind::Sha512), sha2::Sha512::digest(&input)[..], "{len}");
    }
}

#[test]
fn hmac_agrees_for_keys_about_the_block() {
    let random = random();
    for key_len in [0, 1, 20, 32, 63, 64, 65, 127, 128, 129, 300] {
        for len in [0, 1, 55, 56, 64, 111, 112, 128, 1000] {
            let (secret, input) = (random.bytes(key_len), random.bytes(len));
            let key = Key::symmetric(Algorithm::Secret, &secret).unwrap();
            let ours = |kind: Kind| ask(kind, &key, b"", b"", &input, kind.info().output.unwrap()).0;
            macro_rules! theirs {
                ($hash:ty) => {{
                    let mut hmac = <Hmac<$hash> as hmac::KeyInit>::new_from_slice(&secret).unwrap();
                    hmac.update(&input);
                    hmac.finalize().into_bytes().to_vec()
                }};
            }
            assert_eq!(ours(Kind::HmacSha1), theirs!(sha1::Sha1));
            assert_eq!(ours(Kind::HmacSha256), theirs!(sha2::Sha256));
            assert_eq!(ours(Kind::HmacSha384), theirs!(sha2::Sha384));
            assert_eq!(ours(Kind::HmacSha512), theirs!(sha2::Sha512));
        }
    }
}

#[test]
fn hkdf_agrees_up_to_its_longest_output_and_refuses_more() {
    let random = random();
    macro_rules! agree {
        ($hash:ty, $len:literal, $full:ident, $expand:ident) => {
            for room in [1, $len - 1, $len, $len + 1, 100, 255 * $len] {
                let (salt, secret, info) =
                    (random.bytes(room % 150), random.bytes(64), random.bytes(room % 90));
                let key = Key::symmetric(Algorithm::Secret, &secret).unwrap();
                let mut wanted = vec![0; room];
                hkdf::Hkdf::<$hash>::new(Some(&salt), &secret).expand(&info, &mut wanted).unwrap();
                assert_eq!(ask(Kind::$full, &key, &salt, &info, b"", room).0, wanted);
                hkdf::Hkdf::<$hash>::from_prk(&secret).unwrap().expand(&info, &mut wanted).unwrap();
                assert_eq!(ask(Kind::$expand, &key, b"", &info, b"", room).0, wanted);
            }
            for kind in [Kind::$full, Kind::$expand] {
                let key = Key::symmetric(Algorithm::Secret, b"secret").unwrap();
                let mut to = vec![0; 255 * $len + 1];
                let mut request = Request::new(kind, &key, Data::Apart { from: b"", to: &mut to });
                let refused = Software::new().execute(&mut request);
                assert_eq!(refused, Err(Error::Invalid("output length")));
            }
        };
    }
    agree!(sha2::Sha256, 32, HkdfSha256, HkdfExpandSha256);
    agree!(sha2::Sha384, 48, HkdfSha384, HkdfExpandSha384);
    agree!(sha2::Sha512, 64, HkdfSha512, HkdfExpandSha512);
}

/// RFC 5246 section 5, on RustCrypto's HMAC.
#[test]
fn tls12_prf_agrees_for_any_output_length() {
    let random = random();
    macro_rules! agree {
        ($hash:ty, $kind:ident) => {
            for room in [1, 12, 31, 32, 33, 47, 48, 49, 104, 500] {
                let (secret, seed) = (random.bytes(48), random.bytes(77));
                let hmac = |parts: &[&[u8]]| {
                    let mut hmac = <Hmac<$hash> as hmac::KeyInit>::new_from_slice(&secret).unwrap();
                    parts.iter().for_each(|part| hmac.update(part));
                    hmac.finalize().into_bytes().to_vec()
                };
                let mut wanted = Vec::new();
                let mut a = hmac(&[&seed]);
                while wanted.len() < room {
                    wanted.extend(hmac(&[&a, &seed]));
                    a = hmac(&[&a]);
                }
                let key = Key::symmetric(Algorithm::Secret, &secret).unwrap();
                assert_eq!(ask(Kind::$kind, &key, b"", b"", &seed, room).0, wanted[..room]);
            }
        };
    }
    agree!(sha2::Sha256, Tls12PrfSha256);
    agree!(sha2::Sha384, Tls12PrfSha384);
}

#[test]
fn bytes_where_no_kind_takes_any_are_refused() {
    let key = Key::symmetric(Algorithm::Secret, b"secret").unwrap();
    let mut to = [0; 32];
    let data = Data::Apart { from: b"seed", to: &mut to };
    assert_eq!(
        Software::new().execute(&mut Request::new(Kind::HkdfSha256, &key, data)),
        Err(Error::Invalid("input length"))
    );
    let data = Data::Apart { from: b"seed", to: &mut to };
    let mut request = Request { aad: b"info", ..Request::new(Kind::Tls12PrfSha256, &key, data) };
    assert_eq!(Software::new().execute(&mut request), Err(Error::Invalid("associated data")));
}

#[test]
fn rsa_agrees_with_plain_exponentiation_at_the_edges_and_between() {
    let random = random();
    for kind in [Kind::Rsa2048Private, Kind::Rsa3072Private, Kind::Rsa4096Private] {
        let key = known_answers(kind).swap_remove(0).request.key.clone();
        let Material::Rsa(parts) = key.material() else { panic!("an RSA key") };
        let number = |bytes: &[u8]| BigUint::from_bytes_be(bytes);
        let (n, d, p, q) = (number(&parts.n), number(&parts.d), number(&parts.p), number(&parts.q));
        let len = parts.n.len();
        let one = BigUint::from(1_u8);
        let half = BigUint::from(1_u8) << (4 * len);
        // Multiples of a prime have residue zero; halves of all ones exceed both primes.
        let mut inputs =
            vec![BigUint::ZERO, one.clone(), &n - &one, p.clone(), &q * 2_u8, &p - &one, &half - &one, half];
        inputs.push(&q + &p);
        for _ in 0..3 {
            inputs.push(number(&random.bytes(len)) % &n);
        }
        for input in inputs {
            let mut bytes = vec![0; len];
            let raw = input.to_bytes_be();
            bytes[len - raw.len()..].copy_from_slice(&raw);
            let output = ask(kind, &key, b"", b"", &bytes, len).0;
            assert_eq!(number(&output), input.modpow(&d, &n), "{} {input:x}", kind.name());
        }
    }
}

#[test]
fn rsa_with_one_wrong_half_yields_an_error_and_no_bytes() {
    let answer = known_answers(Kind::Rsa2048Private).swap_remove(0).request;
    let Material::Rsa(parts) = answer.key.material() else { panic!("an RSA key") };
    let changes: [fn(&mut RsaKey); 3] = [|key| key.dp[9] ^= 4, |key| key.dq[9] ^= 4, |key| key.qinv[9] ^= 4];
    for change in changes {
        let mut parts = (**parts).clone();
        change(&mut parts);
        let key = Key::rsa(parts).unwrap();
        let mut to = vec![0x5a; 256];
        let mut request =
            Request::new(Kind::Rsa2048Private, &key, Data::Apart { from: &answer.input, to: &mut to });
        assert_eq!(Software::new().execute(&mut request), Err(Error::Invalid("RSA key")));
        assert_eq!(to, vec![0; 256]);
    }
}

/// A fresh pair of a curve.
fn pair(kind: Kind, curve: Curve) -> EcKey {
    let mut scalar = ask(kind, Key::none(), b"", b"", b"", kind.info().output.unwrap()).0;
    let public = scalar.split_off(curve.scalar_len());
    EcKey { scalar, public }
}

const CURVES: [(Kind, Kind, Option<Kind>, Curve); 3] = [
    (Kind::P256Generate, Kind::P256Derive, Some(Kind::EcdsaP256Sign), Curve::P256),
    (Kind::P384Generate, Kind::P384Derive, Some(Kind::EcdsaP384Sign), Curve::P384),
    (Kind::X25519Generate, Kind::X25519Derive, None, Curve::X25519),
];

#[test]
fn both_sides_of_an_agreement_come_to_the_same_secret() {
    for (generate, derive, _, curve) in CURVES {
        let (one, other) = (pair(generate, curve), pair(generate, curve));
        assert!(one.scalar != other.scalar);
        let side = |own: &EcKey, peer: &EcKey| {
            let key = Key::ec(curve, own.clone()).unwrap();
            ask(derive, &key, b"", b"", &peer.public, curve.scalar_len()).0
        };
        assert_eq!(side(&one, &other), side(&other, &one), "{curve:?}");
    }
}

#[test]
fn a_signing_key_whose_halves_do_not_match_is_refused() {
    for (generate, _, sign, curve) in CURVES {
        let Some(sign) = sign else { continue };
        let (one, other) = (pair(generate, curve), pair(generate, curve));
        let mixed = EcKey { scalar: one.scalar.clone(), public: other.public.clone() };
        let key = Key::ec(curve, mixed).unwrap();
        let mut to = [0; 96];
        let mut request = Request::new(sign, &key, Data::Apart { from: &[7; 32], to: &mut to });
        assert_eq!(Software::new().execute(&mut request), Err(Error::Invalid("elliptic-curve key")));
    }
}

#[test]
fn digests_shorter_and_longer_than_the_order_are_signed_by_their_leftmost_bits() {
    for (generate, _, sign, curve) in CURVES {
        let Some(sign) = sign else { continue };
        let key = Arc::new(Key::ec(curve, pair(generate, curve)).unwrap());
        for len in [20, 28, 32, 48, 64] {
            let digest = random().bytes(len);
            let mut request = OwnedRequest::new(sign, key.clone(), digest, 2 * curve.scalar_len());
            let made = Software::new().execute(&mut request.view()).unwrap();
            assert_eq!(Software::new().check(&request, made), Ok(()));
            request.input[curve.scalar_len().min(len) - 1] ^= 1;
            assert_eq!(Software::new().check(&request, made), Err(Error::Device(Fault::WrongResult)));
            request.input[curve.scalar_len().min(len) - 1] ^= 1;
            if len > curve.scalar_len() {
                request.input[len - 1] ^= 1;
                assert_eq!(Software::new().check(&request, made), Ok(()));
            }
        }
    }
}

#[test]
fn every_flipped_result_is_found_out() {
    let engine = Software::new();
    for &kind in Kind::ALL {
        let mut request = known_answers(kind).swap_remove(0).request;
        let len = engine.execute(&mut request.view()).unwrap();
        assert_eq!(engine.check(&request, len), Ok(()), "{}", kind.name());
        let wrong = Err(Error::Device(Fault::WrongResult));
        assert_eq!(engine.check(&request, request.output.len() + 1), wrong, "{}", kind.name());
        if len > 0 {
            assert_eq!(engine.check(&request, len - 1), wrong, "{} cut short", kind.name());
            // Deflate's last byte ends in padding that means nothing.
            let last = if kind == Kind::Deflate { len - 2 } else { len - 1 };
            for at in [0, len / 2, last] {
                request.output[at] ^= 0x20;
                assert_eq!(engine.check(&request, len), wrong, "{} at {at}", kind.name());
                request.output[at] ^= 0x20;
            }
        }
        if kind.info().tag > 0 {
            request.tag[15] ^= 1;
            assert_eq!(engine.check(&request, len), wrong, "{} tag", kind.name());
        }
    }
}

/// Inflates with zlib-rs.
fn inflated(stream: &[u8], room: usize) -> Option<Vec<u8>> {
    let mut out = vec![0; room + 1];
    let mut inflate = zlib_rs::Inflate::new(false, 15);
    let status = inflate.decompress(stream, &mut out, zlib_rs::InflateFlush::Finish).ok()?;
    out.truncate(inflate.total_out() as usize);
    let whole = status == zlib_rs::Status::StreamEnd && inflate.total_in() as usize == stream.len();
    whole.then_some(out)
}

#[test]
fn deflate_inflates_elsewhere_whole_and_joined_at_every_level() {
    let engine = Software::new();
    let random = random();
    let text: Vec<u8> = (0..40_000_u32).flat_map(|i| (i / 7 * 31 % 997).to_le_bytes()).collect();
    for input in [&b""[..], b"a", &text, &random.bytes(70_000)] {
        for level in 1..=9 {
            let compress = |input: &[u8], last: bool| {
                let mut to = vec![0; input.len() + input.len() / 8 + 64];
                let data = Data::Apart { from: input, to: &mut to };
                let mut request = Request::new(Kind::Deflate, Key::none(), data);
                request.options.level = level;
                request.options.last = last;
                let len = engine.execute(&mut request).unwrap();
                to.truncate(len);
                to
            };
            let whole = compress(input, true);
            assert_eq!(inflated(&whole, input.len()).as_deref(), Some(input), "level {level}");
            let (head, tail) = input.split_at(input.len() / 3);
            let joined = [compress(head, false), compress(b"", false), compress(tail, true)].concat();
            assert_eq!(inflated(&joined, input.len()).as_deref(), Some(input), "level {level}");
        }
    }
}

#[test]
fn deflate_uses_exactly_the_room_it_needs_and_refuses_less() {
    let engine = Software::new();
    let input = random().bytes(3000);
    for last in [true, false] {
        let compress = |room: usize| {
            let mut to = vec![0; room];
            let mut request =
                Request::new(Kind::Deflate, Key::none(), Data::Apart { from: &input, to: &mut to });
            request.options.last = last;
            engine.execute(&mut request)
        };
        let len = compress(4000).unwrap();
        assert_eq!(compress(len), Ok(len), "last: {last}");
        for room in [1, 2, len / 2, len - 1] {
            assert_eq!(compress(room), Err(Error::Invalid("output length")), "{room} last: {last}");
        }
    }
}
