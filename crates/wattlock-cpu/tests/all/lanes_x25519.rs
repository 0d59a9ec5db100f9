//! X25519 in lanes, as its callers see it: every lane, every size of a batch, bad peers among good ones, and the same
//! results as two libraries that share no arithmetic with it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use wattlock_core::dev::Random;
use wattlock_core::{Curve, Data, EcKey, Engine, Error, Key, Kind, Request};
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::lanes::dev;
use wattlock_cpu::lanes::{Item, Lanes, WIDTH};
use wattlock_cpu::software::Software;

type Bytes = [u8; 32];

/// The lanes of this CPU that do X25519.
fn lanes_here() -> impl Iterator<Item = Lanes> {
    dev::lanes_here().into_iter().filter(|lanes| lanes.description().queued.contains(Kind::X25519Derive))
}

const BASE: Bytes = {
    let mut base = [0; 32];
    base[0] = 9;
    base
};

/// Little-endian coordinates of the points of order 1, 2, 4 and 8 on the curve and its twist, p - 1, p and p + 1 among
/// them, as in RFC 7748 section 6.1's references.
const SMALL: [&str; 7] = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
];

fn hex(text: &str) -> Bytes {
    std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
}

fn key(scalar: &Bytes) -> Key {
    Key::ec(Curve::X25519, EcKey { scalar: scalar.to_vec(), public: BASE.to_vec() }).unwrap()
}

/// One pass over scalars and peers. A refused request must not have written anything.
fn derive(lanes: &Lanes, batch: &[(Bytes, Vec<u8>)]) -> Vec<Result<Bytes, Error>> {
    let keys: Vec<Key> = batch.iter().map(|(scalar, _)| key(scalar)).collect();
    let mut outputs = vec![[0xa5; 32]; batch.len()];
    let mut items: Vec<Item<'_>> = (keys.iter().zip(batch).zip(&mut outputs))
        .map(|((key, (_, peer)), to)| Item {
            request: Request::new(Kind::X25519Derive, key, Data::Apart { from: peer, to }),
            result: Err(Error::Unsupported),
        })
        .collect();
    lanes.execute_all(&mut items);
    let results: Vec<_> = items.into_iter().map(|item| item.result).collect();
    results
        .into_iter()
        .zip(outputs)
        .map(|(result, output)| match result {
            Ok(len) => {
                assert_eq!(len, 32);
                Ok(output)
            }
            Err(error) => {
                assert_eq!(output, [0xa5; 32], "a refused request wrote");
                Err(error)
            }
        })
        .collect()
}

fn generate(lanes: &Lanes, count: usize) -> Vec<[u8; 64]> {
    let mut pairs = vec![[0; 64]; count];
    let mut items: Vec<Item<'_>> = pairs
        .iter_mut()
        .map(|to| Item {
            request: Request::new(Kind::X25519Generate, Key::none(), Data::Apart { from: &[], to }),
            result: Err(Error::Unsupported),
        })
        .collect();
    lanes.execute_all(&mut items);
    assert!(items.iter().all(|item| item.result == Ok(64)));
    drop(items);
    pairs
}

fn by(engine: &dyn Engine, scalar: &Bytes, peer: &[u8]) -> Result<Bytes, Error> {
    let (key, mut to) = (key(scalar), [0; 32]);
    let data = Data::Apart { from: peer, to: &mut to };
    engine.execute(&mut Request::new(Kind::X25519Derive, &key, data)).map(|_| to)
}

fn random_pair(random: &Random) -> (Bytes, Vec<u8>) {
    (random.bytes(32).try_into().unwrap(), random.bytes(32))
}

#[test]
fn every_lane_of_every_batch_has_its_own_key_and_peer() {
    for lanes in lanes_here() {
        let (random, library) = (Random::new(0x7748), Instruction::new());
        for size in 1..=WIDTH {
            for _ in 0..3 {
                let batch: Vec<_> = (0..size).map(|_| random_pair(&random)).collect();
                let found = derive(&lanes, &batch);
                for ((scalar, peer), found) in batch.iter().zip(found) {
                    assert_eq!(found, by(&library, scalar, peer));
                }
            }
        }
    }
}

#[test]
fn a_bad_peer_fails_alone_in_every_lane() {
    for lanes in lanes_here() {
        let (random, software) = (Random::new(0x7749), Software::new());
        let bad: Vec<Vec<u8>> =
            SMALL.iter().map(|small| hex(small).to_vec()).chain([vec![9; 31], vec![9; 33], vec![]]).collect();
        for bad in bad {
            for at in 0..WIDTH {
                let mut batch: Vec<_> = (0..WIDTH).map(|_| random_pair(&random)).collect();
                batch[at].1.clone_from(&bad);
                for (lane, (found, (scalar, peer))) in
                    derive(&lanes, &batch).into_iter().zip(&batch).enumerate()
                {
                    match lane == at {
                        true => assert!(matches!(found, Err(Error::Invalid(_))), "{bad:x?}"),
                        false => assert_eq!(found, by(&software, scalar, peer)),
                    }
                }
            }
        }
    }
}

#[test]
fn highest_bit_of_a_peer_is_masked_and_a_coordinate_above_p_is_taken() {
    for lanes in lanes_here() {
        let random = Random::new(0x774a);
        let scalar: Bytes = random.bytes(32).try_into().unwrap();
        for small in SMALL {
            let mut peer = hex(small);
            peer[31] |= 0x80;
            assert!(derive(&lanes, &[(scalar, peer.to_vec())])[0].is_err());
        }
        // p + 2 to p + 18 are 2 to 18; p + 9 is the base point.
        for above in 2..19u8 {
            let mut peer = hex(SMALL[5]);
            peer[0] += above;
            let mut low = [0; 32];
            low[0] = above;
            let batch = [peer, low, peer.map(|byte| byte | 0x80)].map(|peer| (scalar, peer.to_vec()));
            let found = derive(&lanes, &batch[..2]);
            assert!(found[0].is_ok());
            assert_eq!(found[0], found[1]);
            assert_eq!(found[0], by(&Software::new(), &scalar, &peer));
        }
    }
}

/// RFC 7748 section 5.2: k becomes the product of k and u, u the former k.
fn iterated(lanes: &Lanes, times: u32) -> Bytes {
    let (mut k, mut u) = (BASE, BASE);
    for _ in 0..times {
        let next = derive(lanes, &[(k, u.to_vec())]).remove(0).unwrap();
        (k, u) = (next, k);
    }
    k
}

#[test]
fn iterated_test_of_rfc_7748_holds_after_1_and_1000() {
    for lanes in lanes_here() {
        let once = hex("422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079");
        let thousand = hex("684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51");
        assert_eq!(iterated(&lanes, 1), once);
        assert_eq!(iterated(&lanes, 1000), thousand);
    }
}

#[test]
#[ignore = "takes a minute"]
fn iterated_test_of_rfc_7748_holds_after_1_000_000() {
    for lanes in lanes_here() {
        let million = hex("7c3911e0ab2586fd864497297e575e6f3bc601c0883c30df5f4dd2d24f665424");
        assert_eq!(iterated(&lanes, 1_000_000), million);
    }
}

#[test]
fn fresh_pairs_are_pairs_and_all_different() {
    for lanes in lanes_here() {
        let (mut all, library) = (Vec::new(), Instruction::new());
        for size in (1..=WIDTH).chain([WIDTH; 20]) {
            all.extend(generate(&lanes, size));
        }
        for pair in &all {
            let (scalar, public) = pair.split_at(32);
            assert_eq!(by(&library, scalar.try_into().unwrap(), &BASE).unwrap(), public);
        }
        let count = all.len();
        all.sort_unstable();
        all.dedup_by_key(|pair| pair[..32].to_vec());
        assert_eq!(all.len(), count);
    }
}

fn both_sides_agree(rounds: usize) {
    for lanes in lanes_here() {
        let (random, library) = (Random::new(0x774b), Instruction::new());
        for _ in 0..rounds {
            let (ours, theirs) = (generate(&lanes, WIDTH), generate(&lanes, WIDTH));
            let scalar = |pair: &[u8; 64]| -> Bytes { pair[..32].try_into().unwrap() };
            let batch: Vec<_> =
                ours.iter().zip(&theirs).map(|(our, their)| (scalar(our), their[32..].to_vec())).collect();
            let shared = derive(&lanes, &batch);
            for ((our, their), shared) in ours.iter().zip(&theirs).zip(shared) {
                assert_eq!(shared, by(&library, &scalar(their), &our[32..]));
            }
            let strange: Vec<_> = (0..WIDTH).map(|_| random_pair(&random)).collect();
            for (found, (scalar, peer)) in derive(&lanes, &strange).into_iter().zip(&strange) {
                assert_eq!(found, by(&library, scalar, peer));
            }
        }
    }
}

#[test]
fn both_sides_of_an_exchange_agree_the_other_being_aws_lc() {
    both_sides_agree(40);
}

#[test]
#[ignore = "a soak: ten thousand exchanges"]
fn both_sides_of_ten_thousand_exchanges_agree() {
    both_sides_agree(10_000 / WIDTH);
}
