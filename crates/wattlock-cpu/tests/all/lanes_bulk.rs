//! Hashes, MACs and AES-CBC encryption in lanes: batches of unlike messages against AWS-LC one by one, with every
//! instruction set this machine has and with each of them turned off. Conformance and guarded buffers: `lanes_conform`,
//! `guarded_conforms`.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test that meets a failure has failed")]

use wattlock_core::dev::Random;
use wattlock_core::{Algorithm, Data, Engine, Error, Family, Feed, Item, Key, Kind, Request};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::lanes::{Isa, Lanes};

/// Hashes, MACs or ciphers of these lanes.
fn of(lanes: &Lanes, family: Family) -> impl Iterator<Item = Kind> {
    lanes.description().inline.iter().filter(move |kind| kind.info().family == family)
}

/// All of them.
fn bulk(lanes: &Lanes) -> impl Iterator<Item = Kind> {
    lanes.description().inline.iter().filter(|kind| !kind.is_asymmetric())
}

/// Where padding, blocks and lengths' halves end.
const LENGTHS: [usize; 17] =
    [0, 1, 55, 56, 63, 64, 65, 111, 112, 119, 120, 127, 128, 129, (1 << 16) - 1, 1 << 16, (1 << 16) + 1];

/// Lanes with all instructions, and without each set, and without several.
fn engines() -> Vec<(&'static str, Lanes)> {
    let cpu = Cpu::detect();
    let Some(isa) = Isa::best(&cpu) else { return Vec::new() };
    let narrow = Cpu { avx512: None, vaes512: None, ..cpu };
    [
        ("all", cpu),
        ("no AVX-512", narrow),
        ("no VAES", Cpu { vaes512: None, vaes256: None, ..cpu }),
        ("no SHA instructions", Cpu { sha: None, ..cpu }),
        ("no AVX-512, no SHA instructions", Cpu { sha: None, ..narrow }),
        ("no AVX2", Cpu { avx2: None, vaes256: None, ..narrow }),
        ("nothing", Cpu::PLAIN),
    ]
    .map(|(name, cpu)| (name, Lanes::with(isa, cpu)))
    .into()
}

/// A message with a key, prefix and nonce of its own, somewhere in a buffer.
struct Message {
    key: Key,
    nonce: Vec<u8>,
    prefix: Vec<u8>,
    text: Vec<u8>,
    begin: usize,
    /// Room for the result, behind bytes that nothing may touch and before others.
    output: Vec<u8>,
    shift: usize,
    len: usize,
}

const CANARY: u8 = 0xa5;

impl Message {
    fn new(kind: Kind, random: &Random, len: usize) -> Message {
        let info = kind.info();
        let len = len - len % info.multiple;
        let algorithm = info.algorithm;
        let (key, nonce, prefix) = match algorithm {
            Algorithm::None => (Key::none_owned(), 0, 0),
            Algorithm::Secret => {
                // Above a block it is hashed first.
                let bytes = random.bytes(*random.pick(&[0, 1, 20, 64, 65, 128, 129, 300]));
                let prefix = *random.pick(&[0, 5, 13, 63, 64, 65, 127, 128, 200]);
                (Key::symmetric(algorithm, &bytes).unwrap(), 0, prefix)
            }
            _ => (Key::symmetric(algorithm, &random.bytes(algorithm.key_len().unwrap())).unwrap(), 16, 0),
        };
        let (begin, shift) = (random.below(64), random.below(64));
        let room = match info.family {
            Family::Derive => 1 + random.below(600),
            _ => info.output.unwrap_or(len),
        };
        Message {
            key,
            nonce: random.bytes(nonce),
            prefix: random.bytes(prefix),
            text: random.bytes(begin + len),
            begin,
            output: vec![CANARY; shift + room + 64],
            shift,
            len: room,
        }
    }

    fn item(&mut self, kind: Kind) -> Item<'_> {
        let (from, to) = (&self.text[self.begin..], &mut self.output[self.shift..][..self.len]);
        let request = Request::new(kind, &self.key, Data::Apart { from, to });
        Item::new(Request { nonce: &self.nonce, aad: &self.prefix, ..request })
    }

    /// What AWS-LC makes of it, with a key of its own: a key keeps the form that was made of it first.
    fn right(&self, kind: Kind) -> Vec<u8> {
        let mut output = vec![0; self.len];
        let key = match kind.info().algorithm {
            Algorithm::None => Key::none_owned(),
            algorithm => Key::symmetric(algorithm, self.key.bytes()).unwrap(),
        };
        let data = Data::Apart { from: &self.text[self.begin..], to: &mut output };
        let request = Request::new(kind, &key, data);
        Instruction::with(Cpu::PLAIN)
            .execute(&mut Request { nonce: &self.nonce, aad: &self.prefix, ..request })
            .unwrap();
        output
    }

    fn judge(&self, kind: Kind, engine: &str, result: &Result<usize, Error>) {
        let what = || format!("{} of {}, {engine}", kind.name(), self.text.len() - self.begin);
        assert_eq!(*result, Ok(self.len), "{}", what());
        let (before, rest) = self.output.split_at(self.shift);
        let (found, behind) = rest.split_at(self.len);
        assert!(found == self.right(kind), "{}", what());
        assert!(before.iter().chain(behind).all(|byte| *byte == CANARY), "{}: beyond the output", what());
    }
}

fn together(lanes: &Lanes, kind: Kind, messages: &mut [Message]) -> Vec<Result<usize, Error>> {
    let mut items: Vec<Item<'_>> = messages.iter_mut().map(|message| message.item(kind)).collect();
    lanes.execute_all(&mut items);
    items.into_iter().map(|item| item.result).collect()
}

#[test]
fn one_to_forty_unlike_messages_are_what_one_by_one_gives() {
    let random = Random::new(0xb01c);
    for (name, lanes) in engines() {
        for kind in bulk(&lanes) {
            for count in 1..=40 {
                let length = |_| match random.below(4) {
                    0 => *random.pick(&LENGTHS[..14]),
                    1 if random.below(6) == 0 => *random.pick(&LENGTHS),
                    _ => random.below(1500),
                };
                let mut messages: Vec<Message> =
                    (0..count).map(length).map(|len| Message::new(kind, &random, len)).collect();
                let results = together(&lanes, kind, &mut messages);
                messages.iter().zip(&results).for_each(|(one, result)| one.judge(kind, name, result));
            }
        }
    }
}

#[test]
fn macs_and_encryptions_beside_each_other_are_what_one_by_one_gives() {
    let random = Random::new(0xb020);
    let mut pairs = 0;
    for (name, lanes) in engines() {
        let all = of(&lanes, Family::Mac)
            .flat_map(|mac| of(&lanes, Family::Cipher).map(move |cipher| (mac, cipher)));
        for (mac, cipher) in all {
            pairs += u32::from(lanes.joins(mac, cipher));
            if !lanes.joins(mac, cipher) {
                continue;
            }
            for (macs, ciphers) in [(1, 1), (3, 8), (4, 4), (5, 2), (8, 8), (8, 3), (8, 17), (9, 5), (20, 20)]
            {
                for most in [900, 3000, 40_000] {
                    let message = |kind| Message::new(kind, &random, random.below(most));
                    let mut first: Vec<Message> = (0..macs).map(|_| message(mac)).collect();
                    let mut second: Vec<Message> = (0..ciphers).map(|_| message(cipher)).collect();
                    let mut both: [Vec<Item<'_>>; 2] = [
                        first.iter_mut().map(|message| message.item(mac)).collect(),
                        second.iter_mut().map(|message| message.item(cipher)).collect(),
                    ];
                    let [a, b] = &mut both;
                    lanes.execute_both(a, b);
                    let results =
                        both.map(|items| items.into_iter().map(|item| item.result).collect::<Vec<_>>());
                    for (kind, messages, results) in
                        [(mac, &first, &results[0]), (cipher, &second, &results[1])]
                    {
                        messages.iter().zip(results).for_each(|(one, result)| one.judge(kind, name, result));
                    }
                }
            }
        }
    }
    let cpu = Cpu::detect();
    assert_eq!(pairs > 0, Isa::best(&cpu).is_some() && cpu.sha.is_some() && cpu.aes_ni.is_some());
}

/// Messages that are read piece by piece; each seventh is given up in its second piece.
struct Pieces {
    messages: Vec<Vec<u8>>,
    begun: usize,
    /// By lane: which, and how much of it was read.
    at: [(usize, usize); 64],
    digests: Vec<Option<Vec<u8>>>,
    given_up: Vec<usize>,
}

impl Pieces {
    fn of(messages: Vec<Vec<u8>>) -> Pieces {
        let digests = vec![None; messages.len()];
        Pieces { messages, begun: 0, at: [(0, 0); 64], digests, given_up: Vec::new() }
    }
}

impl Feed for Pieces {
    fn begin(&mut self, lane: usize) -> bool {
        self.at[lane] = (self.begun, 0);
        self.begun += 1;
        self.begun <= self.messages.len()
    }

    fn fill(&mut self, lane: usize, buffer: &mut [u8]) -> Option<usize> {
        let (which, read) = self.at[lane];
        if read > 0 && which % 7 == 3 {
            self.given_up.push(which);
            return None;
        }
        let rest = &self.messages[which][read..];
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        self.at[lane].1 += len;
        Some(len)
    }

    fn done(&mut self, lane: usize, digest: &[u8]) {
        assert!(self.digests[self.at[lane].0].replace(digest.to_vec()).is_none(), "done twice");
    }
}

#[test]
fn messages_that_come_in_pieces_are_what_whole_ones_are() {
    let random = Random::new(0xb021);
    for (name, lanes) in engines() {
        for kind in of(&lanes, Family::Digest) {
            for (count, room) in [(0, 1 << 16), (1, 1 << 16), (5, 1 << 17), (61, (1 << 16) + 4321)] {
                let around = [4095, 4096, 4097, 8191, 8192, 8193, 3 * 4096, 100_000];
                let length = |at| match random.below(3) {
                    _ if at % 14 == 3 => 100_000,
                    0 => *random.pick(&LENGTHS[..14]),
                    1 => *random.pick(&around),
                    _ => random.below(20_000),
                };
                let messages: Vec<Vec<u8>> = (0..count).map(length).map(|len| random.bytes(len)).collect();
                let mut pieces = Pieces::of(messages);
                let mut room = vec![0; room];
                lanes.hash_fed(kind, &mut room, &mut pieces).unwrap();
                for (which, message) in pieces.messages.iter().enumerate() {
                    let mut right = vec![0; kind.info().output.unwrap()];
                    let data = Data::Apart { from: message, to: &mut right };
                    Instruction::with(Cpu::PLAIN)
                        .execute(&mut Request::new(kind, Key::none(), data))
                        .unwrap();
                    let right = (!pieces.given_up.contains(&which)).then_some(right);
                    assert_eq!(pieces.digests[which], right, "{} of {}, {name}", kind.name(), message.len());
                }
                assert!(count < 61 || !pieces.given_up.is_empty());
            }
            let mut none = Pieces::of(Vec::new());
            assert!(lanes.hash_fed(kind, &mut [0; 1000], &mut none).is_err(), "no room");
        }
        let mut none = Pieces::of(Vec::new());
        let refused = lanes.hash_fed(Kind::HmacSha256, &mut vec![0; 1 << 17], &mut none);
        assert_eq!(refused, Err(Error::Unsupported));
    }
}

#[test]
fn every_length_around_blocks_is_right_in_every_lane() {
    let random = Random::new(0xb01d);
    for (name, lanes) in engines() {
        for kind in bulk(&lanes) {
            let lengths = (0..=300).chain([(1 << 16) - 1, 1 << 16, (1 << 16) + 1]);
            let mut messages: Vec<Message> = lengths.map(|len| Message::new(kind, &random, len)).collect();
            let results = together(&lanes, kind, &mut messages);
            messages.iter().zip(&results).for_each(|(one, result)| one.judge(kind, name, result));
        }
    }
}

#[test]
fn cbc_in_place_is_what_it_is_apart() {
    let random = Random::new(0xb01e);
    for (name, lanes) in engines() {
        for kind in of(&lanes, Family::Cipher) {
            let lengths = (0..23).map(|_| random.below(3000));
            let mut messages: Vec<Message> = lengths.map(|len| Message::new(kind, &random, len)).collect();
            let right: Vec<Vec<u8>> = messages.iter().map(|message| message.right(kind)).collect();
            let mut items: Vec<Item<'_>> = Vec::new();
            for message in &mut messages {
                let data = Data::InPlace(&mut message.text[message.begin..]);
                items.push(Item::new(Request {
                    nonce: &message.nonce,
                    ..Request::new(kind, &message.key, data)
                }));
            }
            lanes.execute_all(&mut items);
            assert!(items.iter().all(|item| item.result.is_ok()));
            drop(items);
            for (message, right) in messages.iter().zip(right) {
                assert!(message.text[message.begin..] == right, "{} in place, {name}", kind.name());
            }
        }
    }
}

#[test]
fn an_invalid_request_fails_alone() {
    let random = Random::new(0xb01f);
    for (name, lanes) in engines() {
        for kind in bulk(&lanes) {
            for bad in [0, 7, 19] {
                let mut messages: Vec<Message> =
                    (0..20).map(|at| Message::new(kind, &random, 100 * at)).collect();
                let other = if kind == Kind::Sha1 { Kind::Sha256 } else { Kind::Sha1 };
                for wrong in ["output", "kind", "place", "key"] {
                    messages.iter_mut().for_each(|message| message.output.fill(CANARY));
                    let key = Key::symmetric(Algorithm::Aes128Gcm, &[1; 16]).unwrap();
                    let mut scratch = vec![0; 48];
                    let mut items: Vec<Item<'_>> =
                        messages.iter_mut().map(|message| message.item(kind)).collect();
                    let request = &mut items[bad].request;
                    match wrong {
                        "output" => {
                            let from = &[1; 48];
                            // An extendable output has any length but none.
                            let room = if kind.info().family == Family::Derive { 0 } else { 15 };
                            request.data = Data::Apart { from, to: &mut scratch[..room] };
                        }
                        // The first says which kind the batch is of.
                        "kind" if bad > 0 => request.kind = other,
                        "place" if kind.info().family != Family::Cipher => {
                            request.data = Data::InPlace(&mut scratch)
                        }
                        "key" if kind.info().algorithm != Algorithm::None => request.key = &key,
                        _ => continue,
                    }
                    lanes.execute_all(&mut items);
                    let results: Vec<_> = items.into_iter().map(|item| item.result).collect();
                    for (at, (message, result)) in messages.iter().zip(&results).enumerate() {
                        match at == bad {
                            true => assert!(result.is_err(), "{} with a wrong {wrong}, {name}", kind.name()),
                            false => message.judge(kind, name, result),
                        }
                    }
                    assert!(messages[bad].output.iter().all(|byte| *byte == CANARY), "nothing was written");
                }
            }
        }
    }
}

#[test]
fn what_turns_off_is_gone_and_the_rest_stays() {
    let cpu = Cpu::detect();
    let Some(isa) = Isa::best(&cpu) else { return };
    let kinds = |cpu| Lanes::with(isa, cpu).description().inline;
    assert!(kinds(Cpu::PLAIN).iter().all(|kind| kind.is_asymmetric()));
    let chains = kinds(Cpu { avx512: None, avx2: None, sha: None, ..cpu });
    assert!(
        !chains.contains(Kind::Sha256) && chains.contains(Kind::Aes128CbcEncrypt) == cpu.aes_ni.is_some()
    );
    let rounds = kinds(Cpu { avx512: None, avx2: None, ..cpu });
    assert!(!rounds.contains(Kind::HmacSha512) && rounds.contains(Kind::HmacSha1) == cpu.sha.is_some());
}

/// Lengths beyond 32 bits, beside short ones. (Zeros that are not written take no memory.)
#[test]
#[ignore = "4 GiB by each hash, and as much memory for a chain; make soak"]
fn more_than_four_gibibytes() {
    const LEN: usize = (1 << 32) + 65;
    let zeros = vec![0; LEN];
    let Some(isa) = Isa::best(&Cpu::detect()) else { return };
    let (lanes, plain) = (Lanes::new(isa), Instruction::with(Cpu::PLAIN));
    let secret = Key::symmetric(Algorithm::Secret, b"a secret").unwrap();
    for kind in [Kind::Sha1, Kind::Sha256, Kind::Sha512, Kind::HmacSha1, Kind::HmacSha256, Kind::HmacSha384] {
        let key = if kind.info().algorithm == Algorithm::None { Key::none() } else { &secret };
        let inputs = [&zeros[..], &zeros[..1000], &zeros[..(1 << 32) - 9], &zeros[..64]];
        let mut outputs = [[0; 64]; 4];
        let mut items: Vec<Item<'_>> = inputs
            .iter()
            .zip(&mut outputs)
            .map(|(from, to)| Item::new(Request::new(kind, key, Data::Apart { from, to })))
            .collect();
        lanes.execute_all(&mut items);
        assert!(items.iter().all(|item| item.result.is_ok()));
        for (from, found) in inputs.iter().zip(outputs) {
            let mut right = [0; 64];
            plain.execute(&mut Request::new(kind, key, Data::Apart { from, to: &mut right })).unwrap();
            assert_eq!(found, right, "{} of {}", kind.name(), from.len());
        }
    }
    drop(zeros);
    let (kind, bytes) = (Kind::Aes128CbcEncrypt, [7; 16]);
    let key = || Key::symmetric(Algorithm::Aes128Cbc, &bytes).unwrap();
    let (mut long, mut short) = (vec![0; 1 << 32], vec![0; 1 << 16]);
    let ours = key();
    let mut items: Vec<Item<'_>> = [&mut long, &mut short]
        .map(|data| Item::new(Request { nonce: &bytes, ..Request::new(kind, &ours, Data::InPlace(data)) }))
        .into();
    lanes.execute_all(&mut items);
    assert!(items.iter().all(|item| item.result.is_ok()));
    // Of zeros each block is the encryption of the one before: the short message is the long one's beginning, and what
    // follows the middle is the rest of a chain that begins there.
    assert!(long[..1 << 16] == short);
    let middle = (1 << 32) - (1 << 16);
    let mut end = vec![0; 1 << 16];
    let request = Request::new(kind, &ours, Data::InPlace(&mut end));
    plain.execute(&mut Request { key: &key(), nonce: &long[middle - 16..middle], ..request }).unwrap();
    assert!(long[middle..] == end);
}
