//! Every declared fault does what it says, to the requests it names and to no other.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use wattlock_core::{
    Completion, Engine, Error, Fault as CoreFault, Instance, Kind, Nanos, OwnedRequest, Token, known_answers,
};
use wattlock_cpu::software::Software;
use wattlock_emul::{Effect, Emulated, Fault, Model, Pace, Trigger};

const LOST: Error = Error::Device(CoreFault::Lost);
/// Longer than anything here takes.
const LATER: Nanos = 1_000_000_000;

fn card(faults: &[Fault]) -> Emulated {
    let card = Emulated::new(Model::qat_dh8970(), Arc::new(Software::new()), Pace::Stepped).unwrap();
    card.with_faults(faults.to_vec())
}

fn request(kind: Kind) -> OwnedRequest {
    known_answers(kind).swap_remove(0).request
}

fn submit(instance: &mut dyn Instance, token: u64, now: Nanos) {
    instance.submit(Token(token), request(Kind::Sha256), now).unwrap();
    instance.flush(now);
}

fn poll(instance: &mut dyn Instance, now: Nanos) -> Vec<Completion> {
    let mut done = Vec::new();
    assert_eq!(instance.poll(now, &mut |completion| done.push(completion)), done.len());
    done
}

/// Submits `count` digests at once and says which came back how.
fn outcomes(faults: &[Fault], count: u64) -> Vec<(u64, Result<(), Error>)> {
    let mut instance = card(faults).open(0).unwrap();
    for token in 1..=count {
        submit(&mut *instance, token, 0);
    }
    let mut outcomes: Vec<_> = poll(&mut *instance, LATER)
        .into_iter()
        .map(|done| {
            let expected = &known_answers(Kind::Sha256)[0].expected;
            (done.token.0, expected.verdict(&done.request, &done.result, &Software::new()))
        })
        .collect();
    outcomes.sort_by_key(|outcome| outcome.0);
    outcomes
}

/// Of an empty message nothing but the tag can be wrong, and the tag of what is opened belongs to the caller.
#[test]
fn a_wrong_result_of_opening_nothing_leaves_the_tag_alone() {
    let sealed = known_answers(Kind::Aes256GcmOpen).swap_remove(0).request;
    let mut message = OwnedRequest::new(Kind::Aes256GcmOpen, sealed.key.clone(), Vec::new(), 0);
    message.nonce = sealed.nonce.clone();
    message.tag = [9; 16];
    let (tag, faults) = (message.tag, [Fault::new(Effect::WrongResult, Trigger::always())]);
    let mut instance = card(&faults).open(0).unwrap();
    instance.submit(Token(1), message, 0).unwrap();
    instance.flush(0);
    // The card accepts a forgery, and the CPU that checks it has the tag that came.
    let done = poll(&mut *instance, LATER).swap_remove(0);
    assert_eq!(done.request.tag, tag);
    // A true one: its tag is as it was, too.
    let mut seal = OwnedRequest::new(Kind::Aes256GcmSeal, sealed.key.clone(), Vec::new(), 0);
    seal.nonce = sealed.nonce.clone();
    Software::new().execute(&mut seal.view()).unwrap();
    let mut open = OwnedRequest::new(Kind::Aes256GcmOpen, sealed.key.clone(), Vec::new(), 0);
    (open.nonce, open.tag) = (sealed.nonce.clone(), seal.tag);
    instance.submit(Token(2), open, LATER).unwrap();
    instance.flush(LATER);
    let done = poll(&mut *instance, 2 * LATER).swap_remove(0);
    assert_eq!(done.request.tag, seal.tag);
}

#[test]
fn without_faults_everything_is_right() {
    assert_eq!(outcomes(&[], 4), [(1, Ok(())), (2, Ok(())), (3, Ok(())), (4, Ok(()))]);
}

#[test]
fn error_on_the_nth_request_hits_that_request_alone() {
    let reported = Err(Error::Device(CoreFault::Reported));
    let faults = [Fault::new(Effect::Error, Trigger::nth(2))];
    assert_eq!(outcomes(&faults, 3), [(1, Ok(())), (2, reported), (3, Ok(()))]);
}

#[test]
fn error_on_every_nth_request_hits_those() {
    let reported = Err(Error::Device(CoreFault::Reported));
    let faults = [Fault::new(Effect::Error, Trigger::Every(2))];
    assert_eq!(outcomes(&faults, 4), [(1, Ok(())), (2, reported), (3, Ok(())), (4, reported)]);
}

#[test]
fn wrong_result_differs_and_claims_to_be_right() {
    let wrong = Err(Error::Device(CoreFault::WrongResult));
    let faults = [Fault::new(Effect::WrongResult, Trigger::nth(1))];
    assert_eq!(outcomes(&faults, 2), [(1, wrong), (2, Ok(()))]);
}

#[test]
fn wrong_result_of_an_empty_seal_is_a_wrong_tag() {
    let faults = [Fault::new(Effect::WrongResult, Trigger::nth(1))];
    let mut instance = card(&faults).open(0).unwrap();
    for token in 1..=2 {
        let mut empty = request(Kind::Aes128GcmSeal);
        (empty.input, empty.output) = (Vec::new(), Vec::new());
        instance.submit(Token(token), empty, 0).unwrap();
        instance.flush(0);
    }
    let done = poll(&mut *instance, LATER);
    assert_eq!((done[0].result, done[1].result), (Ok(0), Ok(0)));
    assert_ne!(done[0].request.tag, done[1].request.tag);
}

#[test]
fn silence_leaves_a_hostage_that_counts_until_stop() {
    let faults = [Fault::new(Effect::Silence, Trigger::nth(1))];
    let mut instance = card(&faults).open(0).unwrap();
    submit(&mut *instance, 1, 0);
    submit(&mut *instance, 2, 0);
    let done = poll(&mut *instance, LATER);
    assert_eq!(done.iter().map(|done| done.token.0).collect::<Vec<_>>(), [2]);
    assert_eq!(instance.in_flight(), 1);
    let back = instance.withdraw(Token(1), LATER).unwrap();
    assert_eq!(back.input, request(Kind::Sha256).input);
    assert!(poll(&mut *instance, 2 * LATER).is_empty());
    assert_eq!(instance.in_flight(), 1, "the copy is hostage");
    instance.stop(2 * LATER);
    assert_eq!(instance.in_flight(), 0);
    assert!(poll(&mut *instance, 3 * LATER).is_empty());
}

#[test]
fn hostage_is_freed_and_dropped_when_the_card_answers() {
    let mut instance = card(&[]).open(0).unwrap();
    submit(&mut *instance, 1, 0);
    assert!(instance.withdraw(Token(1), 10).is_some());
    assert_eq!(instance.in_flight(), 1);
    assert!(poll(&mut *instance, LATER).is_empty());
    assert_eq!(instance.in_flight(), 0);
}

#[test]
fn hostages_fill_the_window() {
    let faults = [Fault::new(Effect::Silence, Trigger::always())];
    let card = card(&faults);
    let mut instance = card.open(0).unwrap();
    let window = instance.window().requests;
    for token in 0..u64::from(window) {
        submit(&mut *instance, token, 0);
        assert!(instance.withdraw(Token(token), 0).is_some());
    }
    let refused = instance.submit(Token(9999), request(Kind::Sha256), LATER).unwrap_err();
    assert_eq!((refused.error, instance.in_flight()), (Error::Full, window));
}

#[test]
fn machine_lost_by_the_nth_request_gives_everything_back() {
    let faults = [Fault::new(Effect::Lost { back_after_ns: None }, Trigger::nth(2))];
    let card = card(&faults);
    let mut instance = card.open(0).unwrap();
    for token in 1..=3 {
        submit(&mut *instance, token, 0);
    }
    let done = poll(&mut *instance, LATER);
    assert_eq!(done.len(), 3);
    assert!(done.iter().all(|done| done.result == Err(LOST)));
    assert_eq!(instance.in_flight(), 0);
    assert_eq!(instance.submit(Token(4), request(Kind::Sha256), LATER).unwrap_err().error, LOST);
    assert_eq!(card.open(LATER).err(), Some(LOST));
}

#[test]
fn machine_lost_at_a_time_is_lost_though_no_request_comes() {
    let lost = Trigger::Time { from_ns: 5_000, to_ns: 9_000 };
    let card = card(&[Fault::new(Effect::Lost { back_after_ns: None }, lost)]);
    let mut instance = card.open(100).unwrap();
    submit(&mut *instance, 1, 200);
    assert!(poll(&mut *instance, 300).is_empty());
    let done = poll(&mut *instance, 5_200);
    assert_eq!(done[0].result, Err(LOST));
    assert!(card.open(6_000).is_err());
}

#[test]
fn recovered_machine_can_be_opened_again_but_old_instances_stay_lost() {
    let faults = [Fault::new(Effect::Lost { back_after_ns: Some(50_000) }, Trigger::nth(1))];
    let card = card(&faults);
    let (mut first, mut second) = (card.open(0).unwrap(), card.open(0).unwrap());
    submit(&mut *first, 1, 0);
    assert_eq!(poll(&mut *first, 10)[0].result, Err(LOST));
    assert!(card.open(40_000).is_err());
    let mut again = card.open(60_000).unwrap();
    submit(&mut *again, 1, 60_000);
    assert!(poll(&mut *again, LATER)[0].result.is_ok());
    assert_eq!(second.submit(Token(1), request(Kind::Sha256), LATER).unwrap_err().error, LOST);
    assert_eq!(poll(&mut *second, LATER).len(), 0);
}

#[test]
fn slow_machine_takes_the_factor_and_recovers_after_its_range() {
    let slow = Fault::new(Effect::Slow { permille: 3000 }, Trigger::Requests { from: 2, to: 3 });
    let mut instance = card(&[slow]).open(0).unwrap();
    let mut latencies = Vec::new();
    for token in 1..=4 {
        let now = token * LATER;
        submit(&mut *instance, token, now);
        latencies.push(poll(&mut *instance, now + LATER / 2)[0].cost.latency_ns);
    }
    assert_eq!(latencies[1], 3 * latencies[0]);
    assert_eq!(latencies, [latencies[0], latencies[1], latencies[1], latencies[0]]);
}

#[test]
fn cost_is_the_models() {
    let model = Model::qat_dh8970();
    let mut instance = card(&[]).open(0).unwrap();
    let request = request(Kind::Rsa2048Private);
    instance.submit(Token(1), request, 1000).unwrap();
    instance.flush(1000);
    assert!(poll(&mut *instance, 745_999).is_empty());
    let done = poll(&mut *instance, 746_000);
    let cost = done[0].cost;
    assert_eq!((cost.latency_ns, cost.held_ns, cost.batch), (745_000, 0, 1));
    // One of 119 servers' share of 10 W for 745 us.
    let expected = 10_000 * 745_000 / u64::from(model.servers()) / 1000;
    assert_eq!(cost.energy_nj, Some(expected));
}

#[test]
fn time_held_for_company_is_told() {
    let mut model = Model::qat_dh8970();
    model.width = 4;
    let card = Emulated::new(model, Arc::new(Software::new()), Pace::Stepped).unwrap();
    let mut instance = card.open(0).unwrap();
    instance.submit(Token(1), request(Kind::Sha256), 0).unwrap();
    instance.submit(Token(2), request(Kind::Sha256), 300).unwrap();
    assert_eq!(instance.held(), 2);
    assert!(poll(&mut *instance, LATER).is_empty(), "held requests do not move");
    instance.flush(LATER);
    let done = poll(&mut *instance, 2 * LATER);
    assert_eq!(done.iter().map(|done| done.cost.batch).collect::<Vec<_>>(), [2, 2]);
    assert_eq!(done.iter().map(|done| done.cost.held_ns).collect::<Vec<_>>(), [LATER, LATER - 300]);
    for token in 3..=6 {
        assert_eq!(instance.held(), token as u32 - 3);
        instance.submit(Token(token), request(Kind::Sha256), 2 * LATER).unwrap();
    }
    assert_eq!(instance.held(), 0, "a full batch rings the doorbell itself");
}

#[test]
fn a_panicking_computation_is_a_lost_machine_not_a_hung_one() {
    struct Panics(Software);
    impl Engine for Panics {
        fn description(&self) -> &wattlock_core::Description {
            self.0.description()
        }
        fn execute(&self, _: &mut wattlock_core::Request<'_>) -> Result<usize, Error> {
            panic!("on purpose, to show what the card does");
        }
    }
    let card = Emulated::new(Model::qat_dh8970(), Arc::new(Panics(Software::new())), Pace::RealTime).unwrap();
    let mut instance = card.open(0).unwrap();
    submit(&mut *instance, 1, 0);
    let done = std::iter::repeat_with(|| {
        std::thread::yield_now();
        poll(&mut *instance, 1)
    });
    let done = done.into_iter().find(|done| !done.is_empty()).unwrap();
    assert_eq!(done[0].result, Err(LOST));
}

#[test]
fn threaded_card_that_is_lost_gives_everything_back() {
    let card = Emulated::new(Model::qat_dh8970(), Arc::new(Software::new()), Pace::RealTime).unwrap();
    let card = card.with_faults(vec![Fault::new(Effect::Lost { back_after_ns: None }, Trigger::nth(5))]);
    let mut instance = card.open(0).unwrap();
    for token in 1..=8 {
        if instance.submit(Token(token), request(Kind::Sha256), 0).is_err() {
            assert!(token > 5);
        }
    }
    instance.flush(0);
    let mut lost = 0;
    while instance.in_flight() > 0 {
        std::thread::yield_now();
        lost += poll(&mut *instance, 1).iter().filter(|done| done.result == Err(LOST)).count();
    }
    assert!(lost >= 1);
}
