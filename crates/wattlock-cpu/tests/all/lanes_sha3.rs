//! SHA-3 and SHAKE in lanes, as their callers see them: every number of messages, all lengths about blocks and of output.

use wattlock_core::dev::Random;
use wattlock_core::{Data, Engine, Item, Key, Kind, Request};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::lanes::{Isa, Lanes};
use wattlock_cpu::software::Software;

const KINDS: [Kind; 4] = [Kind::Sha3_256, Kind::Sha3_512, Kind::Shake128, Kind::Shake256];

/// The lanes of this CPU that do SHA-3: of each width that it has.
fn here() -> Vec<Lanes> {
    let cpu = Cpu::detect();
    let narrow = Cpu { avx512: None, ..cpu };
    let with = |cpu| Isa::all(&Cpu::detect()).next().map(|isa| Lanes::with(isa, cpu));
    let does = |lanes: &Lanes| lanes.description().inline.contains(Kind::Sha3_256);
    let wide = Some(cpu).filter(|cpu| cpu.avx512.is_some());
    wide.into_iter().chain([narrow]).filter_map(with).filter(does).collect()
}

/// One call, or one for each: messages with the room that each has.
fn outputs(engine: &dyn Engine, kind: Kind, requests: &[(Vec<u8>, usize)]) -> Vec<Vec<u8>> {
    let mut rooms: Vec<Vec<u8>> = requests.iter().map(|(_, room)| vec![0x5a; *room]).collect();
    let mut items: Vec<Item<'_>> = requests
        .iter()
        .zip(&mut rooms)
        .map(|((from, _), to)| Item::new(Request::new(kind, Key::none(), Data::Apart { from, to })))
        .collect();
    engine.execute_all(&mut items);
    for (item, (from, room)) in items.iter().zip(requests) {
        let want = kind.info().output.unwrap_or(*room);
        assert_eq!(item.result, Ok(want), "{} of {} bytes", kind.name(), from.len());
    }
    drop(items);
    rooms
}

fn room(kind: Kind, random: &Random) -> usize {
    kind.info().output.map_or_else(|| 1 + random.below(700), |len| len + random.below(9))
}

#[test]
fn every_length_about_three_blocks_is_right_in_every_lane() {
    let random = Random::new(0x5ba3);
    for lanes in here() {
        for kind in KINDS {
            // As many messages of a call as there are lanes, or any other number.
            let mut lens: Vec<usize> = (0..=520).collect();
            while !lens.is_empty() {
                let count = (1 + random.below(21)).min(lens.len());
                let requests: Vec<_> =
                    lens.drain(..count).map(|len| (random.bytes(len), room(kind, &random))).collect();
                assert_eq!(
                    outputs(&lanes, kind, &requests),
                    outputs(&Software::new(), kind, &requests),
                    "{} in a call of {count}",
                    kind.name()
                );
            }
        }
    }
}

#[test]
fn unlike_messages_and_outputs_leave_each_other_alone() {
    let random = Random::new(0x5bae);
    for lanes in here() {
        for kind in KINDS {
            for count in 1..=17 {
                let long = |at: usize| if at.is_multiple_of(5) { 20_000 } else { 300 };
                let requests: Vec<_> = (0..count)
                    .map(|at| (random.bytes(random.below(long(at))), room(kind, &random)))
                    .collect();
                assert_eq!(outputs(&lanes, kind, &requests), outputs(&Software::new(), kind, &requests));
            }
        }
    }
}

#[test]
fn every_length_of_output_is_the_beginning_of_a_longer_one() {
    for lanes in here() {
        for kind in [Kind::Shake128, Kind::Shake256] {
            let requests: Vec<_> = (1..=600).map(|room| (b"wattlock".to_vec(), room)).collect();
            let found = outputs(&lanes, kind, &requests);
            let longest = &found[599];
            assert_eq!(longest, &outputs(&Software::new(), kind, &requests[599..])[0]);
            assert!(found.iter().all(|output| longest.starts_with(output)), "{}", kind.name());
        }
    }
}
