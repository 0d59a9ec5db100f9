//! Agreement with the reference, byte for byte, where the result is a function of the inputs.

use std::ops::DerefMut;
use std::sync::Arc;

use super::case::{CANARY, Case, Suite, Want, wiped_or_untouched};
use super::make::{ml_kem_key, rsa_parts, sealing};
use super::refuse::with_coefficient;
use super::subject::Way;
use crate::error::Error;
use crate::kat::Expected;
use crate::key::{Key, ML_KEM_768_PUBLIC};
use crate::kind::{Family, Group, Kind};
use crate::request::{Data, OwnedRequest, Request};

/// Around every block, batch and page that an engine may care about.
const LENGTHS: &[usize] = &[
    0,
    1,
    15,
    16,
    17,
    31,
    32,
    33,
    47,
    48,
    49,
    63,
    64,
    65,
    111,
    112,
    127,
    128,
    129,
    191,
    192,
    193,
    239,
    240,
    241,
    255,
    256,
    257,
    383,
    384,
    511,
    512,
    513,
    1023,
    1024,
    1025,
    4095,
    4096,
    4097,
    8191,
    8192,
    16383,
    16384,
    16385,
    65536,
    1 << 20,
    (1 << 20) + 5,
];

/// Associated data: none, part of a block, blocks, a TLS record header's 5 and 13, the two-byte length's edge, long.
const AADS: &[usize] =
    &[0, 1, 5, 12, 13, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 4097, 65536];

/// Random lengths tried beside those.
const EXTRA: usize = 48;

pub(super) fn cases(suite: &Suite<'_>, kind: Kind) -> Vec<Case> {
    if !kind.info().deterministic {
        return Vec::new();
    }
    assert!(suite.reference.description().inline.contains(kind), "the reference cannot do {}", kind.name());
    let info = kind.info();
    let requests = match info.family {
        Family::Sign => (0..6).map(|_| signing(suite, kind)).collect(),
        Family::Agree if kind == Kind::MlKem768Decapsulate => ciphertexts(suite),
        Family::Agree => (0..8).map(|_| agreeing(suite, kind)).collect(),
        Family::Generate => {
            (0..8).map(|_| suite.request(kind, suite.key(info.algorithm), Vec::new())).collect()
        }
        _ => bulk(suite, kind),
    };
    let case = |request: OwnedRequest| {
        let expected = suite.reference_answer(&request);
        let (input, aad) = (request.input.len(), request.aad.len());
        Case::new(format!("{input} bytes, {aad} associated"), request, Want::This(expected))
    };
    requests.into_iter().map(case).collect()
}

/// Below the modulus, because the modulus's first byte is at least 0x80.
fn signing(suite: &Suite<'_>, kind: Kind) -> OwnedRequest {
    let mut input = suite.random.bytes(kind.info().least);
    input[0] &= 0x7f;
    suite.request(kind, suite.key(kind.info().algorithm), input)
}

fn agreeing(suite: &Suite<'_>, kind: Kind) -> OwnedRequest {
    match kind {
        Kind::MlKem768Encapsulate => {
            let peer = suite.ml_kem()[ML_KEM_768_PUBLIC].to_vec();
            return suite.request(kind, Arc::new(Key::none_owned()), peer);
        }
        Kind::MlKem768Decapsulate => return ciphertexts(suite).swap_remove(0),
        _ => {}
    }
    let key = suite.key(kind.info().algorithm);
    let peer = kind.info().algorithm.curve().map(|curve| suite.pair(curve).public.clone());
    suite.request(kind, key, peer.unwrap_or_default())
}

/// Ciphertexts for one key: its own, with each sort of byte changed, another key's, and noise. All but the first are
/// answered, too (FIPS 203 algorithm 18, implicit rejection).
fn ciphertexts(suite: &Suite<'_>) -> Vec<OwnedRequest> {
    let secret = suite.ml_kem();
    let key = Arc::new(ml_kem_key(&secret));
    let own = suite.encapsulated(&secret);
    let mut ciphertexts =
        vec![own.clone(), suite.encapsulated(&suite.ml_kem()), suite.random.bytes(own.len())];
    // The first byte, the last of the vector, the first and the last of the polynomial, and any.
    for at in [0, 959, 960, own.len() - 1, suite.random.below(own.len())] {
        let mut changed = own.clone();
        changed[at] ^= 1 << suite.random.below(8);
        ciphertexts.push(changed);
    }
    ciphertexts.extend([vec![0; own.len()], vec![0xff; own.len()]]);
    let request = |input| suite.request(Kind::MlKem768Decapsulate, key.clone(), input);
    let mut requests: Vec<_> = ciphertexts.into_iter().map(request).collect();
    // A secret coefficient that is not reduced is taken modulo q (FIPS 203 algorithm 6).
    for (at, value) in [(0, 3329), (1, 3330), (500, 4095), (767, 3329)] {
        let key = Arc::new(ml_kem_key(&with_coefficient(&secret, at, value)));
        requests.push(suite.request(Kind::MlKem768Decapsulate, key, own.clone()));
    }
    requests
}

fn bulk(suite: &Suite<'_>, kind: Kind) -> Vec<OwnedRequest> {
    let info = kind.info();
    let fits = |len: &usize| {
        *len >= info.least && len.is_multiple_of(info.multiple) && *len <= suite.harness.longest
    };
    let random = |_| info.least + suite.random.below(160) * info.multiple + suite.random.below(2) * 16;
    let lengths: Vec<_> = LENGTHS.iter().copied().chain((0..EXTRA).map(random)).filter(fits).collect();
    let mut requests = Vec::new();
    for (index, len) in lengths.iter().enumerate() {
        // Derivation's work follows its output; a megabyte of seed shows nothing.
        let len = if info.family == Family::Derive { *len.min(&4097) } else { *len };
        let aad = if index < AADS.len() * 2 { AADS[index % AADS.len()] } else { suite.random.below(70) };
        requests.push(one(suite, kind, len, aad));
    }
    if matches!(info.family, Family::Seal | Family::Open | Family::Mac) {
        requests.extend(AADS.iter().flat_map(|aad| [0, 33].map(|len| one(suite, kind, len, *aad))));
    }
    if info.group == Group::Ctr {
        requests.extend((1..=16).map(|tail| wrapping(suite, kind, tail)));
    }
    if info.family == Family::Derive {
        // One byte, about one hash, and the longest HKDF allows for the shortest hash here: 255 blocks of 32.
        requests.extend([1, 31, 32, 33, 47, 48, 49, 64, 65, 255 * 32].map(|room| {
            let mut request = one(suite, kind, 40, 0);
            request.output = vec![CANARY; room];
            request
        }));
    }
    requests
}

/// One random request.
pub(super) fn one(suite: &Suite<'_>, kind: Kind, len: usize, aad: usize) -> OwnedRequest {
    let info = kind.info();
    let make = |kind: Kind| {
        let mut request = suite.request(kind, suite.key(info.algorithm), suite.random.bytes(len));
        if matches!(info.family, Family::Seal | Family::Open | Family::Mac) {
            request.aad = suite.random.bytes(aad);
        }
        request
    };
    if info.family != Family::Open {
        return make(kind);
    }
    suite.opened(kind, &make(sealing(kind))).0
}

/// A counter whose last `tail` bytes are about to wrap.
fn wrapping(suite: &Suite<'_>, kind: Kind, tail: usize) -> OwnedRequest {
    let mut request = one(suite, kind, 16 * 40 + 3, 0);
    request.nonce[16 - tail..].fill(0xff);
    request.nonce[15] -= suite.random.below(36) as u8;
    request
}

/// Inline requests on borrowed buffers, which end where the arena says: misaligned input, output, nonce, associated
/// data and tag, outputs with no byte to spare, in place and apart, right and forged.
pub(super) fn buffers(suite: &Suite<'_>, kind: Kind) {
    if !suite.ways(kind).any(|way| way == Way::Inline) {
        return;
    }
    for (turn, (request, expected)) in movable(suite, kind).into_iter().enumerate() {
        for offset in offsets(kind) {
            let other = (offset * 5 + turn) % 18;
            borrowed(suite, &request, &expected, [offset, other]);
            borrowed(suite, &request, &expected, [other, offset]);
            in_place(suite, &request, &expected, [offset, other]);
        }
        if kind.info().family == Family::Open {
            let mut forged = request.again();
            forged.tag[turn % 16] ^= 1 << (turn % 8);
            let plaintext = suite.reference_bytes(&request);
            let expected = Expected::Forged { plaintext };
            borrowed(suite, &forged, &expected, [turn, 0]);
            in_place(suite, &forged, &expected, [turn, 0]);
        }
    }
}

/// Every place in a vector, where a request is cheap; of public-key operations, which work on numbers that they load
/// first, aligned, odd, half a vector and beyond one.
fn offsets(kind: Kind) -> Vec<usize> {
    if kind.is_asymmetric() { vec![0, 1, 8, 17] } else { (0..18).collect() }
}

/// What is moved about: of each kind lengths at which its code takes different ways, and what must come of it.
fn movable(suite: &Suite<'_>, kind: Kind) -> Vec<(OwnedRequest, Expected)> {
    let info = kind.info();
    let key = || suite.key(info.algorithm);
    let requests: Vec<OwnedRequest> = match info.family {
        Family::Sign if info.deterministic => vec![signing(suite, kind)],
        Family::Sign => {
            [20, 32, 47, 64].map(|len| suite.request(kind, key(), suite.random.bytes(len))).into()
        }
        Family::Agree => vec![agreeing(suite, kind)],
        Family::Generate => vec![suite.request(kind, key(), Vec::new())],
        Family::Derive => [(0, 1), (13, 12), (40, 48), (77, 64), (129, 104), (1000, 200)]
            .map(|(len, room)| {
                let mut request = one(suite, kind, len, 0);
                request.output = vec![CANARY; room];
                request
            })
            .into(),
        Family::Compress => [0, 1, 33, 300, 5000].map(|len| suite.text_request(kind, len)).into(),
        _ => [1, 15, 16, 17, 33, 64, 129, 256, 257, 1040, 4096, 5000]
            .into_iter()
            .enumerate()
            .map(|(turn, len)| (turn, len - len % info.multiple))
            .filter(|(_, len)| *len >= info.least)
            .map(|(turn, len)| one(suite, kind, len, turn * 7 % 40))
            .collect(),
    };
    let answered = |request: OwnedRequest| {
        let expected = if info.deterministic { suite.reference_answer(&request) } else { Expected::Checked };
        (request, expected)
    };
    requests.into_iter().map(answered).collect()
}

/// Output bytes that a request needs: as many as the kind, the input or the caller says, and no slack.
fn need(request: &OwnedRequest) -> usize {
    match request.kind.info().family {
        Family::Derive | Family::Compress => request.output.len(),
        _ => request.kind.info().output.unwrap_or(request.input.len()),
    }
}

fn borrowed(suite: &Suite<'_>, request: &OwnedRequest, expected: &Expected, [from_at, to_at]: [usize; 2]) {
    let need = need(request);
    let from = suite.placed(from_at, &request.input);
    let mut to = suite.harness.arena.buffer(to_at + need);
    to.fill(CANARY);
    let mut small = Small::new(suite, request, [to_at, from_at]);
    let result = small.run(suite, request, Data::Apart { from: &from[from_at..], to: &mut to[to_at..] });
    let what = format!("apart, offsets {from_at} and {to_at}, {} bytes", request.input.len());
    let intact = from[from_at..] == request.input[..] && to[..to_at].iter().all(|byte| *byte == CANARY);
    if !intact {
        suite.fail(request.kind, &what, "input or bytes before the output were written");
    }
    let forged = matches!(expected, Expected::Forged { .. });
    if forged && !wiped_or_untouched(&to[to_at..], need) {
        suite.fail(
            request.kind,
            &what,
            "authentication failed, but the output is neither wiped nor untouched",
        );
    }
    compare(suite, request, expected, &what, result, &to[to_at..], small.tag());
}

fn in_place(suite: &Suite<'_>, request: &OwnedRequest, expected: &Expected, [at, other]: [usize; 2]) {
    if !matches!(request.kind.info().family, Family::Cipher | Family::Seal | Family::Open) {
        return;
    }
    let mut buffer = suite.placed(at, &request.input);
    let mut small = Small::new(suite, request, [other, at]);
    let result = small.run(suite, request, Data::InPlace(&mut buffer[at..]));
    let what = format!("in place, offset {at}, {} bytes", request.input.len());
    if buffer[..at].iter().any(|byte| *byte != CANARY) {
        suite.fail(request.kind, &what, "bytes before the buffer were written");
    }
    compare(suite, request, expected, &what, result, &buffer[at..], small.tag());
}

type Buffer = Box<dyn DerefMut<Target = [u8]>>;

/// Nonce, associated data and tag, each behind as many bytes as one of two offsets says.
struct Small {
    nonce: Buffer,
    aad: Buffer,
    tag: Buffer,
    at: [usize; 2],
}

impl Small {
    fn new(suite: &Suite<'_>, request: &OwnedRequest, at: [usize; 2]) -> Small {
        let tag = &request.tag[..request.kind.info().tag];
        Small {
            nonce: suite.placed(at[1], &request.nonce),
            aad: suite.placed(at[0], &request.aad),
            tag: suite.placed(at[1], tag),
            at,
        }
    }

    fn run(&mut self, suite: &Suite<'_>, request: &OwnedRequest, data: Data<'_>) -> Result<usize, Error> {
        let [first, second] = self.at;
        let (nonce, aad, tag) = (&self.nonce[second..], &self.aad[first..], &mut self.tag[second..]);
        let options = request.options;
        let mut view = Request { nonce, aad, tag, options, ..Request::new(request.kind, &request.key, data) };
        view.validate()?;
        suite.engine.execute(&mut view)
    }

    fn tag(&self) -> &[u8] {
        &self.tag[self.at[1]..]
    }
}

fn compare(
    suite: &Suite<'_>,
    request: &OwnedRequest,
    expected: &Expected,
    what: &str,
    result: Result<usize, Error>,
    output: &[u8],
    tag: &[u8],
) {
    suite.count(1);
    let mut after = request.again();
    after.output = output.to_vec();
    after.tag[..tag.len()].copy_from_slice(tag);
    if let Err(error) = expected.verdict(&after, &result, suite.reference) {
        suite.fail(request.kind, what, &format!("{error}"));
    }
}

/// An RSA key with one part altered so that its shape is still right.
pub(super) fn altered_rsa(key: &crate::Key) -> Vec<(&'static str, crate::Key)> {
    let Some(parts) = rsa_parts(key) else { return Vec::new() };
    type Part = fn(&mut crate::RsaKey) -> &mut Vec<u8>;
    let each: [(&'static str, Part); 6] = [
        ("p", |key| &mut key.p),
        ("q", |key| &mut key.q),
        ("dp", |key| &mut key.dp),
        ("dq", |key| &mut key.dq),
        ("qinv", |key| &mut key.qinv),
        ("d", |key| &mut key.d),
    ];
    let alter = |(name, part): (&'static str, Part)| {
        let mut parts = parts.clone();
        let bytes = part(&mut parts);
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x10;
        Some((name, crate::Key::rsa(parts).ok()?))
    };
    each.into_iter().filter_map(alter).collect()
}
