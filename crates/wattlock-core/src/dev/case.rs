//! One case: a request, what must come of it, and the verdict. Failures panic here and nowhere else.

use std::cell::Cell;
use std::panic::panic_any;

use super::subject::Subject;
use super::{Harness, Random, Way};
use crate::engine::Engine;
use crate::error::Error;
use crate::kat::{Expected, known_answers};
use crate::kind::{Family, Kind, KindSet};
use crate::request::OwnedRequest;

/// What fills output buffers before a request, so that stray writes show.
pub(super) const CANARY: u8 = 0xa5;

/// A request and what must come of it.
pub(super) struct Case {
    pub name: String,
    pub request: OwnedRequest,
    pub want: Want,
}

/// What must come of a request.
pub(super) enum Want {
    /// This.
    This(Expected),
    /// An output that begins with these bytes (a truncated tag).
    Prefix(Vec<u8>),
    /// Any output that does not begin with these bytes (a wrong tag).
    Not(Vec<u8>),
    /// [`Error::Invalid`].
    Invalid,
    /// Exactly this or an error: a key whose parts do not belong together.
    ThisOrError(Vec<u8>),
}

impl Case {
    pub(super) fn new(name: impl Into<String>, request: OwnedRequest, want: Want) -> Case {
        Case { name: name.into(), request, want }
    }

    /// The known answers of a kind.
    pub(super) fn known(kind: Kind) -> Vec<Case> {
        let case = |answer: crate::KnownAnswer| Case {
            name: format!("known answer ({})", answer.source),
            request: answer.request,
            want: Want::This(answer.expected),
        };
        known_answers(kind).into_iter().map(case).collect()
    }
}

/// The subject, the reference, and the way to report a failure.
pub(super) struct Suite<'a> {
    pub engine: &'a dyn Engine,
    pub reference: &'a dyn Engine,
    pub harness: &'a Harness<'a>,
    pub random: Random,
    requests: Cell<usize>,
}

impl<'a> Suite<'a> {
    pub(super) fn new(
        engine: &'a dyn Engine,
        reference: &'a dyn Engine,
        harness: &'a Harness<'a>,
    ) -> Suite<'a> {
        Suite { engine, reference, harness, random: Random::new(harness.seed), requests: Cell::new(0) }
    }

    pub(super) fn summary(&self, kinds: usize, streams: usize) -> super::Summary {
        super::Summary { kinds, streams, requests: self.requests.get() }
    }

    pub(super) fn count(&self, requests: usize) {
        self.requests.set(self.requests.get() + requests);
    }

    /// The ways the subject does `kind`. Batches are for engines that gain something by doing several together.
    pub(super) fn ways(&self, kind: Kind) -> impl Iterator<Item = Way> + use<> {
        let with = |set: KindSet, way| set.contains(kind).then_some(way);
        let description = self.engine.description();
        let together = with(description.inline, Way::Together).filter(|_| self.engine.width(kind) > 1);
        [with(description.inline, Way::Inline), together, with(description.queued, Way::Queued)]
            .into_iter()
            .flatten()
    }

    /// Runs cases of one kind, shuffled together, in every way the subject knows, and judges each.
    pub(super) fn run(&self, kind: Kind, mut cases: Vec<Case>) {
        self.random.shuffle(&mut cases);
        for case in &mut cases {
            case.request.output.fill(CANARY);
            if let Err(error) = case.request.view().validate() {
                self.fail(kind, &case.name, &format!("the suite made an invalid request: {error}"));
            }
        }
        for way in self.ways(kind) {
            let mut subject = Subject::open(self, way);
            let answers = subject.run(cases.iter().map(|case| case.request.again()).collect());
            for (case, answer) in cases.iter().zip(answers) {
                let Some((request, result)) = answer else { continue };
                self.judge(way, case, &request, &result);
            }
            self.count(cases.len());
        }
    }

    /// Judges one answer.
    pub(super) fn judge(&self, way: Way, case: &Case, request: &OwnedRequest, result: &Result<usize, Error>) {
        if let Err(what) = self.verdict(case, request, result) {
            self.fail(case.request.kind, &format!("{way:?}: {}", case.name), &what);
        }
        if let (Ok(len), Want::This(Expected::Bytes { .. })) = (result, &case.want) {
            self.judge_check(case, request, *len);
        }
    }

    fn verdict(
        &self,
        case: &Case,
        after: &OwnedRequest,
        result: &Result<usize, Error>,
    ) -> Result<(), String> {
        let before = &case.request;
        if after.input != before.input || after.nonce != before.nonce || after.aad != before.aad {
            return Err("the request's input, nonce or associated data was changed".into());
        }
        if after.mark != before.mark || after.kind != before.kind {
            return Err("another request came back".into());
        }
        if after.kind.info().family != Family::Seal && after.tag != before.tag {
            return Err("the tag was changed".into());
        }
        if after.output.len() != before.output.len() {
            return Err("the output buffer's length changed".into());
        }
        if let Ok(len) = result {
            let Some(rest) = after.output.get(*len..) else {
                return Err(format!("the result's length is {len}, the buffer's {}", after.output.len()));
            };
            // A compressor may use all the room while it works.
            if after.kind.info().family != Family::Compress && rest.iter().any(|byte| *byte != CANARY) {
                return Err("bytes after the result were written".into());
            }
        }
        let produced = result.as_ref().map(|len| &after.output[..*len]);
        let mismatch = || Err(format!("got {}", shown(produced)));
        match (&case.want, produced) {
            (Want::This(Expected::Forged { .. }), Err(Error::Authentication))
                if !wiped_or_untouched(&after.output, before.input.len()) =>
            {
                Err("authentication failed, but the output is neither wiped nor untouched".into())
            }
            (Want::This(expected), _) => match expected.verdict(after, result, self.reference) {
                Ok(()) => Ok(()),
                Err(error) => Err(format!("{error}; want {}, got {}", wanted(expected), shown(produced))),
            },
            (Want::Prefix(prefix), Ok(bytes)) if bytes.starts_with(prefix) => Ok(()),
            (Want::Not(prefix), Ok(bytes)) if !bytes.starts_with(prefix) => Ok(()),
            (Want::Invalid, Err(Error::Invalid(_))) => Ok(()),
            (Want::ThisOrError(_), Err(_)) => Ok(()),
            (Want::ThisOrError(right), Ok(bytes)) if bytes == right => Ok(()),
            _ => mismatch(),
        }
    }

    /// A right result must pass the subject's own check, a wrong one must not; an engine may decline to check.
    fn judge_check(&self, case: &Case, request: &OwnedRequest, len: usize) {
        let (kind, verdict) = (request.kind, self.engine.check(request, len));
        if verdict == Err(Error::Unsupported) {
            return;
        }
        if let Err(error) = verdict {
            self.fail(kind, &case.name, &format!("its own check refuses the right result: {error}"));
        }
        let mut wrong = request.again();
        if len > 0 {
            wrong.output[self.random.below(len)] ^= 1 << self.random.below(8);
        } else if kind.info().family == Family::Seal {
            wrong.tag[self.random.below(16)] ^= 1;
        } else {
            return;
        }
        if self.engine.check(&wrong, len).is_ok() {
            self.fail(kind, &case.name, "its own check accepts a wrong result");
        }
    }

    /// What the reference makes of a request. A request the reference cannot do is a mistake in the caller's choice.
    pub(super) fn reference_answer(&self, request: &OwnedRequest) -> Expected {
        let mut request = request.again();
        match self.reference.execute(&mut request.view()) {
            Ok(len) => {
                let tag = request.tag[..].to_vec();
                let tag = if request.kind.info().family == Family::Seal { tag } else { Vec::new() };
                Expected::Bytes { output: request.output[..len].to_vec(), tag }
            }
            Err(error) => self.fail(request.kind, "the reference's answer", &format!("{error}")),
        }
    }

    /// The reference's output.
    pub(super) fn reference_bytes(&self, request: &OwnedRequest) -> Vec<u8> {
        match self.reference_answer(request) {
            Expected::Bytes { output, .. } => output,
            _ => Vec::new(),
        }
    }

    /// Ends the suite.
    pub(super) fn fail(&self, kind: Kind, case: &str, what: &str) -> ! {
        let engine = self.engine.description().name;
        panic_any(format!("{engine}: {}: {case}: {what} (seed {:#x})", kind.name(), self.harness.seed))
    }
}

/// Whether the part of an output that would have held plaintext is all zero or as it was.
pub(super) fn wiped_or_untouched(output: &[u8], len: usize) -> bool {
    let part = &output[..len.min(output.len())];
    part.iter().all(|byte| *byte == 0) || part.iter().all(|byte| *byte == CANARY)
}

fn wanted(expected: &Expected) -> String {
    match expected {
        Expected::Bytes { output, tag } => format!("{} tag {}", hex(output), hex(tag)),
        other => format!("{other:?}").chars().take(80).collect(),
    }
}

fn shown(result: Result<&[u8], &Error>) -> String {
    match result {
        Ok(bytes) => hex(bytes),
        Err(error) => format!("error: {error}"),
    }
}

/// The first bytes in hexadecimal.
fn hex(bytes: &[u8]) -> String {
    let mut text: String = bytes.iter().take(64).map(|byte| format!("{byte:02x}")).collect();
    if bytes.len() > 64 {
        text.push_str(&format!("... ({} bytes)", bytes.len()));
    }
    text
}
