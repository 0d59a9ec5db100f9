//! Known answers: what every engine must get right before the runtime may choose it for a kind.
//!
//! This is a power-on self-test, not a test suite: a handful of vectors a kind, small enough to run each time a
//! program starts using an engine. Thorough checks are the conformance suite's (feature `dev`). The vectors lie in
//! `vectors.txt` beside this file, each with its published source; nothing here computes an answer.

mod parse;

use crate::engine::Engine;
use crate::error::{Error, Fault};
use crate::kind::{Family, Kind};
use crate::request::OwnedRequest;

/// A request and how to tell whether an engine answered it rightly.
pub struct KnownAnswer {
    /// The request, ready to run.
    pub request: OwnedRequest,
    /// What must come of it.
    pub expected: Expected,
    /// Where the vector is published, or why it had to be computed.
    pub source: &'static str,
}

/// What must come of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expected {
    /// Exactly this output and tag.
    Bytes {
        /// The whole output.
        output: Vec<u8>,
        /// The tag, empty except for seal.
        tag: Vec<u8>,
    },
    /// [`Error::Authentication`], and no part of this plaintext in the output.
    Forged {
        /// What an engine that released unverified data would have released.
        plaintext: Vec<u8>,
    },
    /// The result differs each time (a signature, a fresh key, a compressed text): [`Engine::check`] decides.
    Checked,
}

impl Expected {
    /// Whether `result`, with `request` as it came back, is what was expected. `checker` decides where the result is
    /// not a function of the inputs; it may be the engine under test, which then is a pairwise consistency test.
    ///
    /// # Errors
    /// [`Error::Device`] with [`Fault::WrongResult`] for a wrong answer, else the error that the engine or the
    /// checker gave in place of an answer.
    pub fn verdict(
        &self,
        request: &OwnedRequest,
        result: &Result<usize, Error>,
        checker: &dyn Engine,
    ) -> Result<(), Error> {
        let right = match (self, result) {
            (Expected::Bytes { output, tag }, Ok(len)) => {
                *len == output.len()
                    && request.output.get(..*len) == Some(output)
                    && request.tag[..tag.len()] == tag[..]
            }
            (Expected::Forged { plaintext }, Err(Error::Authentication)) => {
                !reveals(&request.output, plaintext)
            }
            (Expected::Forged { .. }, Ok(_)) => false,
            (Expected::Checked, Ok(len)) => return checker.check(request, *len),
            (_, Err(error)) => return Err(*error),
        };
        if right { Ok(()) } else { Err(Error::Device(Fault::WrongResult)) }
    }
}

/// Whether `output` holds eight consecutive bytes of `plaintext` at their place: by chance once in 2^64.
pub(crate) fn reveals(output: &[u8], plaintext: &[u8]) -> bool {
    output.windows(8).zip(plaintext.windows(8)).any(|(got, secret)| got == secret)
}

/// The known answers of a kind, at least one for every kind. Authenticated decryption has forged ones among them.
pub fn known_answers(kind: Kind) -> Vec<KnownAnswer> {
    let mut answers: Vec<_> = parse::records(kind).collect();
    if kind.info().family == Family::Open {
        let forged: Vec<_> =
            answers.iter().flat_map(|answer| [0, 15].map(|byte| forge(answer, byte))).collect();
        answers.extend(forged);
    }
    answers
}

/// The same request with one bit of one byte of its tag flipped.
fn forge(answer: &KnownAnswer, byte: usize) -> KnownAnswer {
    let mut request = answer.request.again();
    request.tag[byte] ^= 1;
    let plaintext = match &answer.expected {
        Expected::Bytes { output, .. } => output.clone(),
        _ => Vec::new(),
    };
    KnownAnswer { request, expected: Expected::Forged { plaintext }, source: answer.source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Description;

    struct Says(Result<(), Error>, Description);

    impl Engine for Says {
        fn description(&self) -> &Description {
            &self.1
        }
        fn check(&self, _: &OwnedRequest, _: usize) -> Result<(), Error> {
            self.0
        }
    }

    fn says(verdict: Result<(), Error>) -> Says {
        let none = crate::KindSet::EMPTY;
        let class = crate::EngineClass::Software;
        let detail = String::new();
        Says(verdict, Description { name: "toy", class, inline: none, queued: none, detail })
    }

    const WRONG: Error = Error::Device(Fault::WrongResult);

    #[test]
    fn every_kind_has_a_valid_known_answer() {
        for kind in Kind::ALL {
            let answers = known_answers(*kind);
            assert!(!answers.is_empty(), "{}", kind.name());
            for mut answer in answers {
                assert_eq!(answer.request.view().validate(), Ok(()), "{}", kind.name());
                let exact = matches!(answer.expected, Expected::Bytes { .. } | Expected::Forged { .. });
                assert_eq!(exact, kind.info().deterministic, "{}", kind.name());
            }
        }
    }

    #[test]
    fn ciphers_are_asked_for_at_least_two_blocks_and_a_partial_one_where_there_is_one() {
        for kind in Kind::ALL {
            if !matches!(kind.info().family, Family::Cipher | Family::Seal | Family::Open) {
                continue;
            }
            let lens: Vec<_> = known_answers(*kind).iter().map(|answer| answer.request.input.len()).collect();
            assert!(lens.iter().any(|len| *len >= 32), "{}", kind.name());
            assert!(kind.info().multiple == 16 || lens.iter().any(|len| len % 16 != 0), "{}", kind.name());
        }
    }

    #[test]
    fn wrong_byte_wrong_tag_and_wrong_length_are_wrong_results() {
        let mut answer = known_answers(Kind::Aes128GcmSeal).remove(0);
        let Expected::Bytes { output, tag } = answer.expected.clone() else { panic!("seal has bytes") };
        let len = output.len();
        answer.request.output.copy_from_slice(&output);
        answer.request.tag.copy_from_slice(&tag);
        let judge = |request: &OwnedRequest, result| answer.expected.verdict(request, &result, &says(Ok(())));
        assert_eq!(judge(&answer.request, Ok(len)), Ok(()));
        assert_eq!(judge(&answer.request, Ok(len - 1)), Err(WRONG));
        assert_eq!(judge(&answer.request, Ok(len + 1)), Err(WRONG));
        assert_eq!(judge(&answer.request, Err(Error::Unsupported)), Err(Error::Unsupported));
        answer.request.tag[15] ^= 1;
        assert_eq!(judge(&answer.request, Ok(len)), Err(WRONG));
        answer.request.tag[15] ^= 1;
        answer.request.output[len - 1] ^= 1;
        assert_eq!(judge(&answer.request, Ok(len)), Err(WRONG));
    }

    #[test]
    fn forgery_must_be_refused_and_reveal_nothing() {
        let mut answer = known_answers(Kind::Aes256GcmOpen).pop().unwrap();
        let Expected::Forged { plaintext } = answer.expected.clone() else {
            panic!("the last one is forged")
        };
        let judge = |request: &OwnedRequest, result| answer.expected.verdict(request, &result, &says(Ok(())));
        assert_eq!(judge(&answer.request, Err(Error::Authentication)), Ok(()));
        assert_eq!(judge(&answer.request, Ok(plaintext.len())), Err(WRONG));
        answer.request.output[16..32].copy_from_slice(&plaintext[16..32]);
        assert_eq!(judge(&answer.request, Err(Error::Authentication)), Err(WRONG));
    }

    #[test]
    fn where_results_vary_the_checker_decides() {
        let answer = known_answers(Kind::EcdsaP256Sign).remove(0);
        let judge = |checker: Says| answer.expected.verdict(&answer.request, &Ok(64), &checker);
        assert_eq!(judge(says(Ok(()))), Ok(()));
        assert_eq!(judge(says(Err(WRONG))), Err(WRONG));
    }
}
