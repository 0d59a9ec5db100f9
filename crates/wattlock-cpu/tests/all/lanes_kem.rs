//! ML-KEM-768 in lanes, as its callers see it: every size of a batch, bad requests among good ones, and the same bytes as
//! the other engines.

use wattlock_core::dev::Random;
use wattlock_core::{Data, Engine, Error, Item, Key, Kind, ML_KEM_768_PUBLIC, Request};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::lanes::{Isa, Lanes};
use wattlock_cpu::software::Software;

/// The lanes of this CPU that do ML-KEM: of each width that it has.
fn here() -> Vec<Lanes> {
    let cpu = Cpu::detect();
    let narrow = Cpu { avx512: None, ..cpu };
    let with = |cpu| Isa::all(&Cpu::detect()).next().map(|isa| Lanes::with(isa, cpu));
    let does = |lanes: &Lanes| lanes.description().inline.contains(Kind::MlKem768Encapsulate);
    let wide = Some(cpu).filter(|cpu| cpu.avx512.is_some());
    wide.into_iter().chain([narrow]).filter_map(with).filter(does).collect()
}

/// What becomes of requests of one kind in one call: keys, nonces and inputs.
fn outputs(
    engine: &dyn Engine,
    kind: Kind,
    requests: &[(Option<Key>, Vec<u8>, Vec<u8>)],
) -> Vec<Result<Vec<u8>, Error>> {
    let mut rooms = vec![vec![0x5a; kind.info().output.unwrap()]; requests.len()];
    let mut items: Vec<Item<'_>> = requests
        .iter()
        .zip(&mut rooms)
        .map(|((key, nonce, input), to)| {
            let key = key.as_ref().unwrap_or(Key::none());
            Item::new(Request { nonce, ..Request::new(kind, key, Data::Apart { from: input, to }) })
        })
        .collect();
    engine.execute_all(&mut items);
    let results: Vec<_> = items.into_iter().map(|item| item.result).collect();
    results.into_iter().zip(rooms).map(|(result, room)| result.map(|len| room[..len].to_vec())).collect()
}

/// Keys, ciphertexts and secrets of random seeds, by one engine.
struct Made {
    seeds: Vec<(Option<Key>, Vec<u8>, Vec<u8>)>,
    keys: Vec<Vec<u8>>,
    to_peers: Vec<(Option<Key>, Vec<u8>, Vec<u8>)>,
    answers: Vec<Vec<u8>>,
}

fn made(engine: &dyn Engine, random: &Random, count: usize) -> Made {
    let seeds: Vec<_> = (0..count).map(|_| (None, random.bytes(64), Vec::new())).collect();
    let keys: Vec<Vec<u8>> =
        outputs(engine, Kind::MlKem768Generate, &seeds).into_iter().map(Result::unwrap).collect();
    let to_peers: Vec<_> =
        keys.iter().map(|key| (None, random.bytes(32), key[ML_KEM_768_PUBLIC].to_vec())).collect();
    let answers =
        outputs(engine, Kind::MlKem768Encapsulate, &to_peers).into_iter().map(Result::unwrap).collect();
    Made { seeds, keys, to_peers, answers }
}

fn to_open(made: &Made) -> Vec<(Option<Key>, Vec<u8>, Vec<u8>)> {
    let key = |key: &Vec<u8>| Some(Key::ml_kem_768(key).unwrap());
    made.keys
        .iter()
        .zip(&made.answers)
        .map(|(k, answer)| (key(k), Vec::new(), answer[..1088].to_vec()))
        .collect()
}

/// NIST's seeds and what becomes of them, cut short by a hash.
const NIST: &str = include_str!("ml_kem_768_keys.txt");

#[test]
fn keys_of_nists_seeds_are_nists_on_every_engine() {
    let hex = |word: &str| -> Vec<u8> {
        (0..word.len()).step_by(2).map(|at| u8::from_str_radix(&word[at..at + 2], 16).unwrap()).collect()
    };
    let lines: Vec<Vec<&str>> =
        NIST.lines().filter(|line| !line.starts_with('#')).map(|line| line.split(' ').collect()).collect();
    assert_eq!(lines.len(), 25);
    let seeds: Vec<_> =
        lines.iter().map(|line| (None, [hex(line[1]), hex(line[2])].concat(), Vec::new())).collect();
    let (software, instruction, lanes) = (Software::new(), Instruction::new(), here());
    let mut engines: Vec<&dyn Engine> = vec![&software, &instruction];
    engines.extend(lanes.iter().map(|lanes| lanes as &dyn Engine));
    for engine in engines {
        let keys = outputs(engine, Kind::MlKem768Generate, &seeds);
        let keys: Vec<_> = keys.into_iter().map(|key| (None, Vec::new(), key.unwrap())).collect();
        for (line, digest) in lines.iter().zip(outputs(engine, Kind::Sha3_256, &keys)) {
            assert_eq!(digest.unwrap(), hex(line[3]), "{} of {}", line[0], engine.description().name);
        }
    }
}

#[test]
fn every_batch_of_one_to_seventeen_is_what_the_other_engines_make_of_it() {
    let random = Random::new(0x6b656d);
    for lanes in here() {
        for count in 1..=17 {
            let (software, instruction) = (Software::new(), Instruction::new());
            let made = made(&instruction, &random, count);
            let opened = to_open(&made);
            for (kind, requests, want) in [
                (Kind::MlKem768Generate, &made.seeds, Some(&made.keys)),
                (Kind::MlKem768Encapsulate, &made.to_peers, Some(&made.answers)),
                (Kind::MlKem768Decapsulate, &opened, None),
            ] {
                let found = outputs(&lanes, kind, requests);
                let name = format!("{} of {count}", kind.name());
                assert_eq!(found, outputs(&instruction, kind, requests), "{name}");
                assert_eq!(found, outputs(&software, kind, requests), "{name}");
                if let Some(want) = want {
                    assert!(found.iter().zip(want).all(|(found, want)| found.as_ref() == Ok(want)), "{name}");
                }
            }
            let secrets = outputs(&lanes, Kind::MlKem768Decapsulate, &opened);
            for (secret, answer) in secrets.iter().zip(&made.answers) {
                assert_eq!(secret.as_deref(), Ok(&answer[1088..]), "both sides agree on a secret");
            }
        }
    }
}

#[test]
fn a_ciphertext_with_any_byte_changed_is_rejected_as_the_reference_rejects_it() {
    let random = Random::new(0x72656a);
    for lanes in here() {
        let made = made(&lanes, &random, 1);
        let (key, right) = (Key::ml_kem_768(&made.keys[0]).unwrap(), &made.answers[0]);
        // Every byte once, a bit of it at a time, in batches that are full.
        let changed: Vec<_> = (0..1088)
            .map(|at| {
                let mut ciphertext = right[..1088].to_vec();
                ciphertext[at] ^= 1 << random.below(8);
                (Some(key.clone()), Vec::new(), ciphertext)
            })
            .collect();
        let found = outputs(&lanes, Kind::MlKem768Decapsulate, &changed);
        assert_eq!(found, outputs(&Instruction::new(), Kind::MlKem768Decapsulate, &changed));
        assert!(found.iter().all(|secret| secret.as_deref() != Ok(&right[1088..])));
    }
}

#[test]
fn a_bad_request_fails_alone_in_every_place() {
    let random = Random::new(0x626164);
    for lanes in here() {
        let made = made(&lanes, &random, 11);
        let (opened, secrets) = (to_open(&made), outputs(&lanes, Kind::MlKem768Decapsulate, &to_open(&made)));
        for bad in 0..11 {
            let mut peers = made.to_peers.clone();
            // 4095 in the place of a coefficient.
            (peers[bad].2[300], peers[bad].2[301]) = (0xff, 0xff);
            let found = outputs(&lanes, Kind::MlKem768Encapsulate, &peers);
            let mut keys = opened.clone();
            let mut key = made.keys[bad].clone();
            key[2336 + random.below(32)] ^= 1;
            keys[bad].0 = Some(Key::ml_kem_768(&key).unwrap());
            let opened = outputs(&lanes, Kind::MlKem768Decapsulate, &keys);
            for at in 0..11 {
                if at == bad {
                    assert_eq!(found[at], Err(Error::Invalid("encapsulation key")));
                    assert_eq!(opened[at], Err(Error::Invalid("decapsulation key")));
                } else {
                    assert_eq!(found[at].as_ref(), Ok(&made.answers[at]));
                    assert_eq!(opened[at], secrets[at]);
                }
            }
        }
    }
}

#[test]
fn inputs_and_nonces_of_other_lengths_are_refused() {
    let random = Random::new(0x6c656e);
    let key = made(&Instruction::new(), &random, 1).keys.remove(0);
    let key = Key::ml_kem_768(&key).unwrap();
    for (kind, key, nonce, input) in [
        (Kind::MlKem768Generate, Key::none(), 64, 0),
        (Kind::MlKem768Encapsulate, Key::none(), 32, 1184),
        (Kind::MlKem768Decapsulate, &key, 0, 1088),
    ] {
        let ask = |nonce: usize, input: usize, room: usize| {
            let (nonce, from, mut to) = (vec![1; nonce], vec![0; input], vec![0; room]);
            let data = Data::Apart { from: &from, to: &mut to };
            Request { nonce: &nonce, ..Request::new(kind, key, data) }.validate()
        };
        let room = kind.info().output.unwrap();
        assert_eq!(ask(nonce, input, room), Ok(()));
        let lens = [0, 1, 31, 33, 63, 65, 1087, 1089, 1183, 1185, 2 * 1088, 2 * 1184, 2400];
        for len in lens {
            assert_eq!(ask(nonce, len, room).is_ok(), len == input, "{kind:?}, {len} bytes");
            assert_eq!(ask(len, input, room).is_ok(), len == nonce, "{kind:?}, a nonce of {len}");
        }
        assert!(ask(nonce, input, room - 1).is_err());
    }
}
