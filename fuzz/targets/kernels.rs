//! Each engine of the CPU against the portable one, and that against the fuzz crate's own where it has the kind: random
//! lengths, alignments, associated data, in place and apart, alone and in batches of mixed lengths; openings of right and
//! of altered texts. Nothing outside an output is written, and what does not authenticate leaves no plaintext.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use wattlock_core::{Algorithm, Data, Engine, Error, Family, Item, Key, Kind, NonceLen, Request};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::software::Software;
use wattlock_door::Crypto;
use wattlock_fuzz::{Bytes, Portable};

const CANARY: u8 = 0xc7;

fn engines() -> &'static (Software, Vec<Box<dyn Engine>>) {
    static ENGINES: OnceLock<(Software, Vec<Box<dyn Engine>>)> = OnceLock::new();
    ENGINES.get_or_init(|| {
        let mut others: Vec<Box<dyn Engine>> = vec![Box::new(Instruction::new())];
        #[cfg(target_arch = "x86_64")]
        for isa in wattlock_cpu::lanes::Isa::all(&Cpu::detect()) {
            others.push(Box::new(wattlock_cpu::lanes::Lanes::new(isa)));
        }
        (Software::new(), others)
    })
}

struct Wanted {
    kind: Kind,
    key: Key,
    nonce: Vec<u8>,
    aad: Vec<u8>,
    input: Vec<u8>,
    tag: Vec<u8>,
    /// Bytes before input, output, associated data and tag.
    offsets: [usize; 4],
    in_place: bool,
    room: usize,
}

/// A request's buffers, each behind its offset, with canaries around.
struct Laid<'a> {
    wanted: &'a Wanted,
    from: Vec<u8>,
    to: Vec<u8>,
    aad: Vec<u8>,
    tag: Vec<u8>,
}

#[derive(Debug, PartialEq)]
struct Outcome {
    result: Result<usize, Error>,
    output: Vec<u8>,
    tag: Vec<u8>,
}

fn behind(offset: usize, bytes: &[u8]) -> Vec<u8> {
    let mut all = vec![CANARY; offset];
    all.extend_from_slice(bytes);
    all
}

impl<'a> Laid<'a> {
    fn new(wanted: &'a Wanted) -> Laid<'a> {
        let [from, to, aad, tag] = wanted.offsets;
        let mut out = vec![CANARY; to + wanted.room + 3];
        if wanted.in_place {
            out[to..to + wanted.input.len()].copy_from_slice(&wanted.input);
        }
        Laid {
            wanted,
            from: behind(from, &wanted.input),
            to: out,
            aad: behind(aad, &wanted.aad),
            tag: behind(tag, &wanted.tag),
        }
    }

    fn request(&mut self) -> Request<'_> {
        let Wanted { kind, key, nonce, offsets: [from, to, aad, tag], in_place, room, .. } = self.wanted;
        let out = &mut self.to[*to..*to + *room];
        let data =
            if *in_place { Data::InPlace(out) } else { Data::Apart { from: &self.from[*from..], to: out } };
        let request = Request::new(*kind, key, data);
        Request { nonce, aad: &self.aad[*aad..], tag: &mut self.tag[*tag..], ..request }
    }

    fn outcome(self, result: Result<usize, Error>) -> Outcome {
        let [from, to, _, tag] = self.wanted.offsets;
        assert!(self.from[from..] == self.wanted.input, "the input was written");
        let outside = self.to[..to].iter().chain(&self.to[to + self.wanted.room..]);
        assert!(outside.chain(&self.tag[..tag]).all(|byte| *byte == CANARY), "bytes outside were written");
        let mut output = self.to[to..to + self.wanted.room].to_vec();
        if result.is_err() {
            let wiped = output[..self.wanted.input.len().min(output.len())].iter().all(|byte| *byte == 0);
            let untouched = if self.wanted.in_place {
                output == self.wanted.input
            } else {
                output.iter().all(|byte| *byte == CANARY)
            };
            assert!(wiped || untouched, "something is left of {:?}", self.wanted.kind);
            output.clear();
        }
        Outcome { result, output, tag: self.tag[tag..].to_vec() }
    }
}

fn alone(engine: &dyn Engine, wanted: &Wanted) -> Outcome {
    let mut laid = Laid::new(wanted);
    let result = engine.execute(&mut laid.request());
    laid.outcome(result)
}

fn together(engine: &dyn Engine, all: &[Wanted]) -> Vec<Outcome> {
    let mut laid: Vec<Laid<'_>> = all.iter().map(Laid::new).collect();
    let mut items: Vec<Item<'_>> = laid.iter_mut().map(|one| Item::new(one.request())).collect();
    engine.execute_all(&mut items);
    let results: Vec<_> = items.iter().map(|item| item.result).collect();
    drop(items);
    laid.into_iter().zip(results).map(|(one, result)| one.outcome(result)).collect()
}

fn kinds() -> Vec<Kind> {
    let symmetric = |kind: &Kind| {
        let family = kind.info().family;
        matches!(
            family,
            Family::Cipher | Family::Seal | Family::Open | Family::Digest | Family::Mac | Family::Derive
        )
    };
    Kind::ALL.iter().copied().filter(symmetric).collect()
}

/// A length: of nothing, around blocks, or any.
fn length(bytes: &mut Bytes<'_>) -> usize {
    match bytes.byte() % 4 {
        0 => bytes.below(18),
        1 => bytes.below(20) * 16 + bytes.below(3),
        2 => (bytes.below(20) * 64).saturating_sub(bytes.below(3)),
        _ => bytes.below(5000),
    }
}

fn fill(bytes: &mut Bytes<'_>, len: usize) -> Vec<u8> {
    let mut state = bytes.number(3) | 1;
    let random = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..len).map(random).collect()
}

/// A request of this kind; `None` for a key that there is not.
fn wanted(kind: Kind, reference: &Software, bytes: &mut Bytes<'_>) -> Option<Wanted> {
    let info = kind.info();
    let len = length(bytes) / info.multiple * info.multiple;
    let len = if len < info.least { info.least } else { len };
    let secret_len = info.algorithm.key_len().unwrap_or_else(|| bytes.below(200));
    let key = match info.family {
        _ if info.algorithm == Algorithm::None => Key::none_owned(),
        _ => Key::symmetric(info.algorithm, &fill(bytes, secret_len)).ok()?,
    };
    let nonce_len = match info.nonce {
        NonceLen::Exactly(len) => len,
        NonceLen::Any => bytes.below(80),
    };
    let mut nonce = fill(bytes, nonce_len);
    if bytes.byte() < 40 && nonce_len == 16 {
        // A counter that is about to wrap.
        nonce[bytes.below(15)..15].fill(0xff);
        nonce[15] |= 0xf0;
    }
    let aad_len = match info.family {
        Family::Seal | Family::Open | Family::Mac | Family::Derive => length(bytes) % 400,
        _ => 0,
    };
    let room = match info.family {
        Family::Derive => 1 + bytes.below(300),
        _ => info.output.unwrap_or(len),
    };
    let in_place = matches!(info.family, Family::Cipher | Family::Seal | Family::Open) && bytes.byte() < 128;
    let offsets = [0; 4].map(|_| bytes.below(34));
    let (aad, input) = (fill(bytes, aad_len), fill(bytes, len));
    let mut wanted = Wanted { kind, key, nonce, aad, input, tag: vec![0; info.tag], offsets, in_place, room };
    if let (Family::Open, Some(seals)) = (info.family, info.undoes) {
        let sealing = Wanted {
            kind: seals,
            key: wanted.key.clone(),
            tag: vec![0; info.tag],
            ..Wanted {
                nonce: wanted.nonce.clone(),
                aad: wanted.aad.clone(),
                input: wanted.input.clone(),
                in_place: false,
                tag: Vec::new(),
                ..wanted
            }
        };
        let sealed = alone(reference, &sealing);
        wanted = Wanted { kind, input: sealed.output, tag: sealed.tag, in_place, ..sealing };
        let at = bytes.below(4096);
        match bytes.byte() {
            0..=20 => wanted.tag[at % 16] ^= 1 << (at % 8),
            21..=40 if len > 0 => wanted.input[at % len] ^= 1 << (at % 8),
            41..=60 if aad_len > 0 => wanted.aad[at % aad_len] ^= 1 << (at % 8),
            _ => {}
        }
    }
    Laid::new(&wanted).request().validate().ok()?;
    Some(wanted)
}

fuzz_target!(|bytes: &[u8]| {
    let (software, others) = engines();
    let mut bytes = Bytes(bytes);
    let kind = bytes.pick(&kinds());
    let count = 1 + bytes.below(20);
    let all: Vec<Wanted> = (0..count).filter_map(|_| wanted(kind, software, &mut bytes)).collect();
    let right: Vec<Outcome> = all.iter().map(|one| alone(software, one)).collect();
    assert!(together(software, &all) == right, "{kind:?}: a batch of the portable engine");
    for (one, right) in all.iter().zip(&right) {
        let mut laid = Laid::new(one);
        let result = Portable.run(&mut laid.request());
        if result != Err(Error::Unsupported) && !matches!(result, Err(Error::Invalid(_))) {
            assert!(laid.outcome(result) == *right, "{kind:?}: the portable engine");
        }
    }
    for engine in others.iter().filter(|engine| engine.description().inline.contains(kind)) {
        let name = engine.description().name;
        for (one, right) in all.iter().zip(&right) {
            let got = alone(&**engine, one);
            let what = format!(
                "{kind:?}: {name} alone, {} bytes, key {}, nonce {}, associated {}, room {}, in place {}",
                one.input.len(),
                one.key.bytes().len(),
                one.nonce.len(),
                one.aad.len(),
                one.room,
                one.in_place
            );
            assert_eq!(got, *right, "{what}");
        }
        assert!(together(&**engine, &all) == right, "{kind:?}: {name} in a batch of {}", all.len());
    }
});
