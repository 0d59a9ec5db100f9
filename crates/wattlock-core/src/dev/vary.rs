//! Results that differ from run to run: signatures, fresh keys, compressed texts. The reference's check decides, and
//! is itself shown to be able to refuse.

use std::sync::Arc;

use super::case::{Case, Suite, Want};
use super::subject::Subject;
use crate::kat::Expected;
use crate::key::Key;
use crate::kind::{Family, Kind};
use crate::request::{DICTIONARY_MOST, OwnedRequest};

pub(super) fn cases(suite: &Suite<'_>, kind: Kind) -> Vec<Case> {
    if kind.info().deterministic {
        return Vec::new();
    }
    let requests = match kind.info().family {
        Family::Sign => signatures(suite, kind),
        Family::Compress => texts(suite, kind),
        _ => (0..8).map(|_| suite.request(kind, Arc::new(Key::none_owned()), Vec::new())).collect(),
    };
    let case = |request: OwnedRequest| {
        let name = format!("{} bytes, {:?}", request.input.len(), request.options);
        Case::new(name, request, Want::This(Expected::Checked))
    };
    requests.into_iter().map(case).collect()
}

/// Digests of every usual length, the extreme ones, several keys.
fn signatures(suite: &Suite<'_>, kind: Kind) -> Vec<OwnedRequest> {
    let longest = kind.info().least.max(64);
    let digests = [20, 28, 32, 47, 48, 49, longest].into_iter().map(|len| suite.random.bytes(len)).chain([
        vec![0; 32],
        vec![0xff; 32],
        vec![0; 48],
        vec![0xff; 64],
    ]);
    digests.map(|digest| suite.request(kind, suite.key(kind.info().algorithm), digest)).collect()
}

fn texts(suite: &Suite<'_>, kind: Kind) -> Vec<OwnedRequest> {
    let mut requests = Vec::new();
    for (index, len) in [0, 1, 2, 3, 257, 258, 259, 4096, 32767, 32768, 65535, 65536, 200_000, 1 << 20]
        .into_iter()
        .enumerate()
    {
        for (turn, input) in
            [text(suite, len), vec![b'a'; len], suite.random.bytes(len)].into_iter().enumerate()
        {
            if len > suite.harness.longest {
                continue;
            }
            let mut request = suite.request(kind, Arc::new(Key::none_owned()), input);
            request.options.level = 1 + ((index * 3 + turn) % 9) as u8;
            request.options.last = (index + turn) % 3 != 0;
            requests.push(request);
        }
    }
    requests.extend(behind_dictionaries(suite, kind));
    requests
}

/// Texts that repeat their dictionary, whole or in part, and noise behind one.
fn behind_dictionaries(suite: &Suite<'_>, kind: Kind) -> Vec<OwnedRequest> {
    let mut requests = Vec::new();
    for (turn, dictionary) in [1, 2, 3, 100, 32_767, DICTIONARY_MOST].into_iter().enumerate() {
        let before = text(suite, dictionary);
        let again = [&before[dictionary / 2..], &before[..]].concat();
        for (at, input) in
            [again, text(suite, 3000), suite.random.bytes(500), Vec::new()].into_iter().enumerate()
        {
            let mut request = suite.request(kind, Arc::new(Key::none_owned()), input);
            request.aad = before.clone();
            request.options.level = 1 + ((turn * 4 + at) % 9) as u8;
            request.options.last = at % 2 == 0;
            requests.push(request);
        }
    }
    requests
}

impl Suite<'_> {
    /// A text of `len` bytes, to be compressed.
    pub(super) fn text_request(&self, kind: Kind, len: usize) -> OwnedRequest {
        self.request(kind, Arc::new(Key::none_owned()), text(self, len))
    }
}

/// Words that repeat, as texts do.
fn text(suite: &Suite<'_>, len: usize) -> Vec<u8> {
    const WORDS: &[&str] = &[
        "the ", "lock ", "of ", "a ", "canal ", "lifts ", "water, ", "not ", "ships; ", "\n", "<p>", "</p>",
    ];
    let mut text = Vec::with_capacity(len + 8);
    while text.len() < len {
        text.extend_from_slice(suite.random.pick(WORDS).as_bytes());
    }
    text.truncate(len);
    text
}

/// Chunks compressed with `last` unset join with a last one to one stream; fresh keys are not the same twice; a
/// signature is refused for another digest.
pub(super) fn joined(suite: &Suite<'_>, kind: Kind) {
    for way in suite.ways(kind) {
        let mut subject = Subject::open(suite, way);
        let mut run = |requests| -> Vec<(OwnedRequest, usize)> {
            let done = |answer: super::subject::Answer| match answer? {
                (request, Ok(len)) => Some((request, len)),
                (request, Err(error)) => suite.fail(request.kind, "joined", &format!("{error}")),
            };
            subject.run(requests).into_iter().filter_map(done).collect()
        };
        match kind.info().family {
            Family::Compress => {
                chunks(suite, kind, &mut run);
                dictionaries(suite, kind, &mut run);
            }
            Family::Generate => {
                let request = || suite.request(kind, Arc::new(Key::none_owned()), Vec::new());
                let keys = run((0..8).map(|_| request()).collect());
                let same = |a: &(OwnedRequest, usize), b: &(OwnedRequest, usize)| a.0.output == b.0.output;
                if keys.iter().enumerate().any(|(at, key)| keys[..at].iter().any(|other| same(key, other))) {
                    suite.fail(kind, "fresh keys", "the same twice");
                }
            }
            Family::Sign if !kind.info().deterministic => {
                let digest = suite.random.bytes(32);
                for (mut request, len) in
                    run(vec![suite.request(kind, suite.key(kind.info().algorithm), digest)])
                {
                    request.input[5] ^= 1;
                    if suite.reference.check(&request, len).is_ok() {
                        suite.fail(kind, "the reference's check", "accepts a signature of another digest");
                    }
                }
            }
            _ => return,
        }
    }
}

fn chunks(
    suite: &Suite<'_>,
    kind: Kind,
    run: &mut dyn FnMut(Vec<OwnedRequest>) -> Vec<(OwnedRequest, usize)>,
) {
    for lens in [vec![5000, 5000, 700], vec![0, 10, 0], vec![65536, 1], vec![1, 0, 0, 30_000]] {
        let end = lens.len() - 1;
        let chunk = |(at, len): (usize, usize)| {
            let mut request = suite.request(kind, Arc::new(Key::none_owned()), text(suite, len));
            request.options.last = at == end;
            request
        };
        let requests: Vec<_> = lens.into_iter().enumerate().map(chunk).collect();
        let input: Vec<u8> = requests.iter().flat_map(|request| request.input.clone()).collect();
        let done = run(requests);
        let output: Vec<u8> =
            done.iter().flat_map(|(request, len)| request.output[..*len].to_vec()).collect();
        let mut whole = suite.request(kind, Arc::new(Key::none_owned()), input);
        let len = output.len();
        whole.output = output;
        if let Err(error) = suite.reference.check(&whole, len) {
            suite.fail(kind, "joined chunks", &format!("{error}"));
        }
        let mut cut = whole.again();
        cut.output.truncate(len - 1);
        if suite.reference.check(&cut, len - 1).is_ok() {
            suite.fail(kind, "the reference's check", "accepts a stream cut short");
        }
    }
}

/// A dictionary is used, and by the check, too: what repeats it becomes a few bytes, which are refused for another
/// dictionary; deflate's chunks behind dictionaries join to one stream that needs none.
fn dictionaries(
    suite: &Suite<'_>,
    kind: Kind,
    run: &mut dyn FnMut(Vec<OwnedRequest>) -> Vec<(OwnedRequest, usize)>,
) {
    let noise = suite.random.bytes(4000);
    let mut request = suite.request(kind, Arc::new(Key::none_owned()), noise.clone());
    request.aad = noise;
    for (mut request, len) in run(vec![request]) {
        if len > 400 {
            suite.fail(kind, "dictionary", &format!("4,000 bytes that repeat it became {len}"));
        }
        if suite.reference.check(&request, len).is_err() {
            suite.fail(kind, "dictionary", "the reference's check does not use it");
        }
        request.aad[2000] ^= 1;
        if suite.reference.check(&request, len).is_ok() {
            suite.fail(kind, "dictionary", "the reference's check accepts another one");
        }
    }
    if kind != Kind::Deflate {
        return;
    }
    for level in 1..=9 {
        let whole = text(suite, 90_000 + suite.random.below(20_000));
        let size = 1 + suite.random.below(50_000);
        let chunk = |(at, input): (usize, &[u8])| {
            let begin = at * size;
            let mut request = suite.request(kind, Arc::new(Key::none_owned()), input.to_vec());
            request.aad = whole[begin.saturating_sub(DICTIONARY_MOST)..begin].to_vec();
            request.options.last = begin + input.len() == whole.len();
            request.options.level = level;
            request
        };
        let done = run(whole.chunks(size).enumerate().map(chunk).collect());
        let output: Vec<u8> =
            done.iter().flat_map(|(request, len)| request.output[..*len].to_vec()).collect();
        let mut joined = suite.request(kind, Arc::new(Key::none_owned()), whole);
        let len = output.len();
        joined.output = output;
        if let Err(error) = suite.reference.check(&joined, len) {
            suite.fail(kind, "joined chunks with dictionaries", &format!("level {level}: {error}"));
        }
    }
}
