//! The promises of [`Instance`]: exactly once, never beyond the window, withdrawal, stop.

use std::collections::BTreeMap;

use super::case::Suite;
use crate::engine::{Completion, Instance, Token};
use crate::error::Error;
use crate::kat::known_answers;
use crate::kind::{Family, Kind};
use crate::request::OwnedRequest;

/// More than this and a window counts as endless.
const ENOUGH: u32 = 5000;

/// How often each token came back, and with what.
type Back = BTreeMap<u64, Vec<Result<usize, Error>>>;

pub(super) fn promises(suite: &Suite<'_>) {
    let queue = Queue { suite, kind: cheapest(suite) };
    queue.nothing_comes_of_nothing();
    queue.every_request_comes_back_once_and_the_window_holds();
    queue.a_withdrawn_request_does_not_complete();
    queue.after_stop_everything_comes_back_and_nothing_is_taken();
    queue.an_instance_can_be_dropped_with_requests_in_flight();
}

/// Public-key work is slow; anything else serves.
fn cheapest(suite: &Suite<'_>) -> Kind {
    let queued = suite.engine.description().queued;
    let cheap = |kind: &Kind| {
        matches!(kind.info().family, Family::Digest | Family::Mac | Family::Cipher | Family::Seal)
    };
    queued.iter().find(cheap).or_else(|| queued.iter().next()).expect("the caller saw that there is one")
}

struct Queue<'s, 'a> {
    suite: &'s Suite<'a>,
    kind: Kind,
}

impl Queue<'_, '_> {
    fn now(&self) -> u64 {
        (self.suite.harness.clock)()
    }

    fn open(&self) -> Box<dyn Instance> {
        match self.suite.engine.open(self.now()) {
            Ok(instance) => instance,
            Err(error) => self.suite.fail(self.kind, "open", &format!("{error}")),
        }
    }

    fn request(&self) -> OwnedRequest {
        known_answers(self.kind).swap_remove(0).request
    }

    fn submit(&self, instance: &mut dyn Instance, token: u64) -> Result<(), Error> {
        let (request, before) = (self.request(), self.request());
        match instance.submit(Token(token), request, self.now()) {
            Ok(()) => Ok(()),
            Err(refused) => {
                self.same("a refused request", &refused.request, &before);
                Err(refused.error)
            }
        }
    }

    fn same(&self, what: &str, request: &OwnedRequest, before: &OwnedRequest) {
        let same =
            request.input == before.input && request.nonce == before.nonce && request.aad == before.aad;
        self.show(what, same && request.kind == before.kind, "came back changed");
    }

    fn show(&self, case: &str, holds: bool, otherwise: &str) {
        if !holds {
            self.suite.fail(self.kind, case, otherwise);
        }
    }

    /// Polls once.
    fn poll(&self, instance: &mut dyn Instance, back: &mut Back) {
        instance.poll(self.now(), &mut |completion: Completion| {
            self.same("a completed request", &completion.request, &self.request());
            back.entry(completion.token.0).or_default().push(completion.result);
        });
        let (held, flying) = (instance.held(), instance.in_flight());
        self.show("poll", held <= flying, "more is held than is in flight");
        self.show("poll", flying <= instance.window().requests, "more is in flight than the window allows");
    }

    /// Polls until nothing is in flight.
    fn drain(&self, instance: &mut dyn Instance, back: &mut Back) {
        instance.flush(self.now());
        for _ in 0..self.suite.harness.patience {
            if instance.in_flight() == 0 {
                return;
            }
            self.poll(instance, back);
        }
        self.suite.fail(self.kind, "drain", "something stays in flight beyond the harness's patience");
    }

    fn nothing_comes_of_nothing(&self) {
        let mut instance = self.open();
        let mut back = Back::new();
        instance.flush(self.now());
        self.poll(&mut *instance, &mut back);
        self.show("an empty instance", back.is_empty(), "completes something");
        self.show(
            "an empty instance",
            instance.withdraw(Token(3), self.now()).is_none(),
            "gives back a request",
        );
        self.show(
            "an empty instance",
            instance.in_flight() == 0 && instance.held() == 0,
            "has something in flight",
        );
        self.show("an empty instance", instance.window().requests > 0, "has no window");
        let announced = self.suite.engine.window() == instance.window();
        self.show("an empty instance", announced, "has another window than its engine announced");
    }

    fn every_request_comes_back_once_and_the_window_holds(&self) {
        let mut instance = self.open();
        let mut back = Back::new();
        let mut accepted = 0;
        loop {
            match self.submit(&mut *instance, accepted) {
                Ok(()) => accepted += 1,
                Err(Error::Full) => break,
                Err(error) => self.suite.fail(self.kind, "filling the window", &format!("{error}")),
            }
            let (flying, window) = (instance.in_flight(), instance.window().requests);
            self.show("filling the window", flying <= window, "the window is exceeded");
            self.show("filling the window", u64::from(flying) == accepted, "in flight is miscounted");
            if accepted >= u64::from(ENOUGH) {
                break;
            }
        }
        self.drain(&mut *instance, &mut back);
        self.once("a full window", &back, 0..accepted);
        self.show("a full window", back.values().all(|results| results[0].is_ok()), "a request failed");
        self.show("after a full window", self.submit(&mut *instance, accepted).is_ok(), "nothing is taken");
        self.drain(&mut *instance, &mut back);
        self.once("after a full window", &back, 0..accepted + 1);
        self.suite.count(accepted as usize + 1);
    }

    fn once(&self, case: &str, back: &Back, tokens: std::ops::Range<u64>) {
        let expected: Vec<u64> = tokens.collect();
        let came: Vec<u64> = back.keys().copied().collect();
        self.show(case, came == expected, "not exactly the accepted requests came back");
        self.show(case, back.values().all(|results| results.len() == 1), "a request came back twice");
    }

    fn a_withdrawn_request_does_not_complete(&self) {
        for flushed in [false, true] {
            let case = if flushed { "withdrawal after the doorbell" } else { "withdrawal of a held request" };
            let mut instance = self.open();
            let mut back = Back::new();
            for token in 0..2 {
                self.show(case, self.submit(&mut *instance, token).is_ok(), "submission is refused");
            }
            if flushed {
                instance.flush(self.now());
            }
            let withdrawn = instance.withdraw(Token(0), self.now());
            if let Some(request) = &withdrawn {
                self.same(case, request, &self.request());
                self.show(case, instance.withdraw(Token(0), self.now()).is_none(), "works twice");
            }
            self.drain(&mut *instance, &mut back);
            let first = u64::from(withdrawn.is_some());
            self.once(case, &back, first..2);
            self.show(
                case,
                instance.withdraw(Token(1), self.now()).is_none(),
                "gives back a completed request",
            );
            self.show(case, back.get(&1).is_some_and(|results| results[0].is_ok()), "the neighbour failed");
            self.suite.count(2);
        }
    }

    fn after_stop_everything_comes_back_and_nothing_is_taken(&self) {
        let mut instance = self.open();
        let mut back = Back::new();
        for token in 0..3 {
            self.show("stop", self.submit(&mut *instance, token).is_ok(), "submission is refused");
            if token == 1 {
                instance.flush(self.now());
            }
        }
        let withdrawn = instance.withdraw(Token(1), self.now()).is_some();
        instance.stop(self.now());
        self.poll(&mut *instance, &mut back);
        self.show("stop", instance.in_flight() == 0 && instance.held() == 0, "leaves something in flight");
        let expected = if withdrawn { vec![0, 2] } else { vec![0, 1, 2] };
        let came: Vec<u64> = back.keys().copied().collect();
        self.show("stop", came == expected, "the next poll does not give everything back");
        let fine =
            |results: &Vec<Result<usize, Error>>| matches!(results[..], [Ok(_) | Err(Error::Device(_))]);
        self.show(
            "stop",
            back.values().all(fine),
            "a result is neither done nor a device fault, or came twice",
        );
        self.poll(&mut *instance, &mut back);
        self.show(
            "stop",
            back.values().map(Vec::len).sum::<usize>() == expected.len(),
            "completes something later",
        );
        let refused = self.submit(&mut *instance, 9);
        self.show("stop", matches!(refused, Err(Error::Device(_))), "a later submission is not refused");
        instance.stop(self.now());
        self.suite.count(3);
    }

    fn an_instance_can_be_dropped_with_requests_in_flight(&self) {
        let mut instance = self.open();
        for token in 0..4 {
            self.show("drop", self.submit(&mut *instance, token).is_ok(), "submission is refused");
        }
        instance.flush(self.now());
        drop(instance);
    }
}
