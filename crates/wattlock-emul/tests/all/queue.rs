//! Random histories of calls: every accepted request leaves exactly once, the window is never exceeded, and the same
//! calls give the same completions.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::sync::Arc;

use wattlock_core::dev::Random;
use wattlock_core::{Engine, Error, Fault as CoreFault, Kind, Nanos, OwnedRequest, Token, known_answers};
use wattlock_cpu::software::Software;
use wattlock_emul::{Effect, Emulated, Fault, Model, Pace, Trigger};

const KINDS: &[Kind] =
    &[Kind::Sha256, Kind::Aes128Ctr, Kind::Aes128GcmSeal, Kind::Aes128GcmOpen, Kind::HmacSha256];

fn request(random: &Random) -> OwnedRequest {
    let answers = known_answers(*random.pick(KINDS));
    let at = random.below(answers.len());
    answers.into_iter().nth(at).unwrap().request
}

fn model(random: &Random) -> Model {
    let mut model = Model::qat_dh8970();
    model.pools[1].servers = 1 + random.below(4) as u32;
    model.window.requests = 4 + random.below(12) as u32;
    model.window.bytes = 400 + random.below(2000) as u64;
    model.width = 1 + random.below(4) as u16;
    model
}

fn faults(random: &Random) -> Vec<Fault> {
    let trigger = Trigger::Every(2 + random.below(9) as u64);
    let effect = match random.below(5) {
        0 => Effect::Error,
        1 => Effect::Silence,
        2 => Effect::WrongResult,
        3 => Effect::Slow { permille: 5000 },
        _ => return Vec::new(),
    };
    let mut faults = vec![Fault::new(effect, trigger)];
    if random.below(4) == 0 {
        let n = 10 + random.below(100) as u64;
        faults.push(Fault::new(Effect::Lost { back_after_ns: None }, Trigger::nth(n)));
    }
    faults
}

/// What a history looks like from outside.
type History = Vec<(Nanos, Token, Result<usize, Error>, Vec<u8>)>;

/// Drives one instance at random and checks its promises after every call.
fn history(seed: u64, steps: usize, pace: Pace) -> History {
    let random = Random::new(seed);
    let card = Emulated::new(model(&random), Arc::new(Software::new()), pace).unwrap();
    let card = card.with_faults(faults(&random));
    let mut instance = card.open(0).unwrap();
    let (mut now, mut next, mut inside, mut history) = (0, 0, BTreeSet::new(), History::new());
    let mut stopped = false;
    for _ in 0..steps {
        now += random.below(9000) as Nanos;
        match random.below(100) {
            0..=49 => match instance.submit(Token(next), request(&random), now) {
                Ok(()) => {
                    assert!(!stopped, "seed {seed}: accepted after stop");
                    assert!(inside.insert(Token(next)));
                    next += 1;
                }
                Err(refused) => {
                    let lost = refused.error == Error::Device(CoreFault::Lost);
                    assert!(refused.error == Error::Full || lost, "seed {seed}: {:?}", refused.error);
                    assert!(!stopped || lost, "seed {seed}: {:?} after stop", refused.error);
                    assert!(!refused.request.input.is_empty(), "seed {seed}: refused without its input");
                }
            },
            50..=59 => instance.flush(now),
            60..=89 => {
                instance.poll(now, &mut |done| {
                    assert!(
                        inside.remove(&done.token),
                        "seed {seed}: {:?} came twice or never went in",
                        done.token
                    );
                    history.push((now, done.token, done.result, done.request.output.clone()));
                });
            }
            90..=98 => {
                let token = Token(random.below(next as usize + 1) as u64);
                let back = instance.withdraw(token, now);
                assert_eq!(back.is_some(), inside.remove(&token), "seed {seed}: withdrawal of {token:?}");
            }
            _ if random.below(8) == 0 => {
                instance.stop(now);
                stopped = true;
            }
            _ => {}
        }
        let (held, flying, window) = (instance.held(), instance.in_flight(), instance.window());
        assert!(held <= flying && flying <= window.requests, "seed {seed}: window exceeded");
        assert!(inside.len() as u32 <= flying, "seed {seed}: a request that is inside is not counted");
    }
    instance.stop(now);
    instance.poll(now, &mut |done| {
        assert!(inside.remove(&done.token), "seed {seed}: {:?} came twice", done.token);
        assert!(matches!(done.result, Err(Error::Device(_))), "seed {seed}");
    });
    assert!(inside.is_empty(), "seed {seed}: lost {inside:?}");
    assert_eq!(instance.in_flight(), 0, "seed {seed}");
    history
}

#[test]
fn every_accepted_request_leaves_exactly_once() {
    let completed: usize = (0..400).map(|seed| history(seed, 300, Pace::Stepped).len()).sum();
    assert!(completed > 10_000, "only {completed} completions: the histories show little");
}

#[test]
fn every_accepted_request_leaves_a_threaded_card_exactly_once() {
    let completed: usize = (0..40).map(|seed| history(seed, 300, Pace::RealTime).len()).sum();
    assert!(completed > 0);
}

#[test]
fn same_calls_give_the_same_completions() {
    for seed in 0..40 {
        assert_eq!(history(seed, 300, Pace::Stepped), history(seed, 300, Pace::Stepped), "seed {seed}");
    }
}

#[test]
fn nothing_comes_before_the_answer_that_is_due_next() {
    let card = Emulated::new(Model::qat_dh8970(), Arc::new(Software::new()), Pace::Stepped).unwrap();
    let mut instance = card.open(0).unwrap();
    let mut answers_by = |now| instance.poll(now, &mut |_| {});
    assert_eq!((answers_by(0), card.next_due()), (0, None), "nothing is in flight");
    let request = || known_answers(Kind::Sha256).swap_remove(0).request;
    let mut instance = card.open(0).unwrap();
    for (token, now) in [(1, 100), (2, 300)] {
        instance.submit(Token(token), request(), now).unwrap();
        instance.flush(now);
        instance.poll(now, &mut |_| panic!("too soon"));
    }
    for _ in 0..2 {
        let due = card.next_due().unwrap();
        assert_eq!(instance.poll(due - 1, &mut |_| {}), 0);
        assert_eq!(instance.poll(due, &mut |_| {}), 1);
    }
    assert_eq!(card.next_due(), None);
    instance.submit(Token(3), request(), 1_000_000).unwrap();
    instance.flush(1_000_000);
    instance.poll(1_000_000, &mut |_| panic!("too soon"));
    instance.stop(1_000_000);
    assert_eq!(card.next_due(), None, "a stopped one answers nothing");
}
