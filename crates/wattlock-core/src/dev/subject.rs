//! The engine under test, driven inline or through an instance.

use std::ops::DerefMut;

use super::case::Suite;
use crate::engine::{Completion, Instance, Refused, Token};
use crate::error::Error;
use crate::kind::Kind;
use crate::request::{Data, Item, OwnedRequest, Request, Work};

/// How a kind is driven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Inline,
    /// Inline, several in a call.
    Together,
    Queued,
}

/// A request as it came back, with its result; `None` if it is larger than the instance's whole window.
pub(super) type Answer = Option<(OwnedRequest, Result<usize, Error>)>;

/// The engine, ready for requests.
pub(super) struct Subject<'s, 'a> {
    suite: &'s Suite<'a>,
    way: Way,
    instance: Option<Box<dyn Instance>>,
    tokens: u64,
}

/// The most that is done in one call: two batches of eight and a half.
const TOGETHER: usize = 20;

impl<'s, 'a> Subject<'s, 'a> {
    pub(super) fn open(suite: &'s Suite<'a>, way: Way) -> Subject<'s, 'a> {
        let instance = (way == Way::Queued).then(|| match suite.engine.open((suite.harness.clock)()) {
            Ok(instance) => instance,
            Err(error) => panic!("{} does not open: {error}", suite.engine.description().name),
        });
        Subject { suite, way, instance, tokens: 0 }
    }

    /// Answers in the order of the requests.
    pub(super) fn run(&mut self, requests: Vec<OwnedRequest>) -> Vec<Answer> {
        match self.instance.take() {
            None if self.way == Way::Together => self.together(requests),
            None => requests.into_iter().flat_map(|request| self.inline(vec![request])).collect(),
            Some(mut instance) => {
                let answers = self.queued(&mut *instance, requests);
                self.instance = Some(instance);
                answers
            }
        }
    }

    /// Batches of one size after the other, the largest first.
    fn together(&self, requests: Vec<OwnedRequest>) -> Vec<Answer> {
        let (mut answers, mut left, mut size) = (Vec::new(), requests.into_iter(), 0);
        loop {
            let count = TOGETHER - size % TOGETHER;
            size += 1;
            let batch: Vec<OwnedRequest> = left.by_ref().take(count).collect();
            if batch.is_empty() {
                return answers;
            }
            answers.extend(self.inline(batch));
        }
    }

    /// On buffers of the arena, whose contents go back into the requests: several in one call, or one by itself.
    fn inline(&self, mut requests: Vec<OwnedRequest>) -> Vec<Answer> {
        let mut placed: Vec<Placed> =
            requests.iter().map(|request| Placed::new(self.suite, request)).collect();
        let mut items: Vec<Item<'_>> = requests
            .iter()
            .zip(&mut placed)
            .map(|(request, placed)| Item::new(placed.view(request)))
            .collect();
        match (self.way, &mut items[..]) {
            (Way::Inline, [item]) => item.result = self.suite.engine.execute(&mut item.request),
            _ => self.suite.engine.execute_all(&mut items),
        }
        let results: Vec<_> = items.into_iter().map(|item| item.result).collect();
        requests.iter_mut().zip(&placed).for_each(|(request, placed)| placed.put_back(request));
        requests.into_iter().zip(results).map(Some).collect()
    }

    fn queued(&mut self, instance: &mut dyn Instance, requests: Vec<OwnedRequest>) -> Vec<Answer> {
        let first = self.tokens;
        let mut answers: Vec<Answer> = Vec::new();
        answers.resize_with(requests.len(), || None);
        let mut pending = 0;
        for (index, request) in requests.into_iter().enumerate() {
            let token = Token(first + index as u64);
            self.tokens = token.0 + 1;
            let mut request = Some(request);
            while let Some(next) = request.take() {
                match instance.submit(token, next, self.now()) {
                    Ok(()) => pending += 1,
                    Err(refused) if refused.error == Error::Full && pending > 0 => {
                        instance.flush(self.now());
                        pending -= self.collect(instance, first, &mut answers);
                        request = Some(refused.request);
                    }
                    Err(refused) => self.refused(instance, refused),
                }
            }
            let (held, flying, window) = (instance.held(), instance.in_flight(), instance.window().requests);
            assert!(held <= flying && flying <= window, "held {held}, in flight {flying}, window {window}");
        }
        instance.flush(self.now());
        while pending > 0 {
            pending -= self.collect(instance, first, &mut answers);
        }
        assert_eq!(instance.in_flight(), 0, "everything came back, yet something is in flight");
        answers
    }

    /// A refusal is right only if the request is larger than the whole window.
    fn refused(&self, instance: &dyn Instance, refused: Refused) {
        let Refused { error, request } = refused;
        let bytes = (request.input.len() + request.aad.len()) as u64;
        if error != Error::Full || bytes <= instance.window().bytes {
            self.suite.fail(request.kind, "submission to an idle instance", &format!("refused: {error}"));
        }
    }

    /// Polls until something comes.
    fn collect(&self, instance: &mut dyn Instance, first: u64, answers: &mut [Answer]) -> usize {
        for _ in 0..self.suite.harness.patience {
            let mut came = 0;
            let polled = instance.poll(self.now(), &mut |completion: Completion| {
                came += 1;
                let kind = completion.request.kind;
                let slot = completion.token.0.checked_sub(first).and_then(|at| answers.get_mut(at as usize));
                match slot {
                    Some(slot @ None) => *slot = Some((completion.request, completion.result)),
                    _ => self.suite.fail(kind, "completion", "a token came twice or was never submitted"),
                }
            });
            assert_eq!(polled, came, "poll miscounts its completions");
            if came > 0 {
                return came;
            }
        }
        let kind = self.suite.engine.description().queued.iter().next().unwrap_or(Kind::Sha256);
        self.suite.fail(kind, "poll", "nothing came back within the harness's patience")
    }

    fn now(&self) -> u64 {
        (self.suite.harness.clock)()
    }
}

/// A request's buffers, in the arena.
struct Placed {
    nonce: Buffer,
    aad: Buffer,
    from: Buffer,
    to: Buffer,
    tag: Buffer,
}

type Buffer = Box<dyn DerefMut<Target = [u8]>>;

impl Placed {
    fn new(suite: &Suite<'_>, request: &OwnedRequest) -> Placed {
        let place = |bytes: &[u8]| suite.placed(0, bytes);
        Placed {
            nonce: place(&request.nonce),
            aad: place(&request.aad),
            from: place(&request.input),
            to: place(&request.output),
            tag: place(&request.tag[..request.kind.info().tag]),
        }
    }

    fn view<'v>(&'v mut self, request: &'v OwnedRequest) -> Request<'v> {
        Request {
            nonce: &self.nonce,
            aad: &self.aad,
            tag: &mut self.tag,
            options: request.options,
            class: request.class,
            ..Request::new(request.kind, &request.key, Data::Apart { from: &self.from, to: &mut self.to })
        }
    }

    fn put_back(&self, request: &mut OwnedRequest) {
        let owned: &mut Work = request;
        owned.nonce.copy_from_slice(&self.nonce);
        owned.aad.copy_from_slice(&self.aad);
        owned.input.copy_from_slice(&self.from);
        owned.output.copy_from_slice(&self.to);
        owned.tag[..self.tag.len()].copy_from_slice(&self.tag);
    }
}
