//! Runs: many messages under one key that are one request, so that 65,536 chunks are one submission and one completion.
//!
//! The messages lie in the request's data, each with its tag right behind it if its kind has one, as they lie in a
//! sealed file. Nonces are concatenated in the request's nonce; the request's own tag is empty. An engine that works
//! inside the call sees messages, never a run: [`execute`] does a run on any of them. An instance may take a run whole
//! ([`Engine::takes_runs`]).
//!
//! Invariants: messages ascend and do not overlap; what lies between them is untouched; if one message of an opened run
//! fails, no plaintext of the run is left.

use std::mem;

use zeroize::Zeroize;

use crate::engine::Engine;
use crate::error::{Error, Fault};
use crate::key::Key;
use crate::kind::{Family, Kind, NonceLen};
use crate::request::{Data, Item, LatencyClass, Options, OwnedRequest, Request};

/// Where the messages of a run lie in its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Run {
    /// Message `i` begins at byte `i * stride`; with its tag it fills the stride, and the last one may be shorter. The
    /// associated data are as many parts of one length as there are messages.
    Stride(usize),
    /// By list, in ascending order.
    Spans(Vec<Span>),
}

/// One message of a run, in bytes of the request's data and associated data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Where the message begins.
    pub at: usize,
    /// Its length without the tag, which lies right behind it.
    pub len: usize,
    /// Where its associated data begin.
    pub aad_at: usize,
    /// Their length.
    pub aad_len: usize,
}

impl Run {
    /// How many messages so many bytes of data hold.
    pub fn count(&self, bytes: usize) -> usize {
        match self {
            Run::Stride(stride) => bytes.div_ceil((*stride).max(1)),
            Run::Spans(spans) => spans.len(),
        }
    }

    /// How many of so many bytes of data are content: no tags, and nothing between the messages.
    pub fn content(&self, kind: Kind, bytes: usize) -> usize {
        match self {
            Run::Stride(_) => bytes.saturating_sub(self.count(bytes) * kind.info().tag),
            Run::Spans(spans) => spans.iter().fold(0, |sum, span| sum.saturating_add(span.len)),
        }
    }

    /// Where message `index` of a validated run lies.
    pub fn span(&self, kind: Kind, index: usize, bytes: usize, aad: usize) -> Span {
        match self {
            Run::Spans(spans) => spans[index],
            Run::Stride(stride) => {
                let (at, aad_len) = (index * stride, aad / self.count(bytes));
                let len = (bytes - at).min(*stride) - kind.info().tag;
                Span { at, len, aad_at: index * aad_len, aad_len }
            }
        }
    }

    /// Checks that so many bytes of data, nonces and associated data are the messages of a run.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the field.
    pub(crate) fn validate(
        &self,
        kind: Kind,
        (bytes, room): (usize, usize),
        nonce: usize,
        aad: usize,
    ) -> Result<(), Error> {
        let info = kind.info();
        if !matches!(info.family, Family::Cipher | Family::Seal | Family::Open) {
            return Err(Error::Invalid("this kind has no runs"));
        }
        let NonceLen::Exactly(each) = info.nonce else { return Err(Error::Invalid("this kind has no runs")) };
        if room < bytes {
            return Err(Error::Invalid("output length"));
        }
        if aad > 0 && info.family == Family::Cipher {
            return Err(Error::Invalid("associated data"));
        }
        if let Run::Stride(stride) = self {
            let last = bytes % (*stride).max(1);
            if *stride <= info.tag || (last > 0 && last < info.tag) {
                return Err(Error::Invalid("stride"));
            }
            if bytes > 0 && !aad.is_multiple_of(self.count(bytes)) {
                return Err(Error::Invalid("associated data"));
            }
        }
        let count = self.count(bytes);
        if u32::try_from(count).is_err() || count.checked_mul(each) != Some(nonce) {
            return Err(Error::Invalid("nonce length"));
        }
        let mut free = 0;
        let good =
            |len: usize| len >= info.least && (info.multiple <= 1 || len.is_multiple_of(info.multiple));
        let mut fits = |span: &Span| {
            let end = span.at.checked_add(span.len).and_then(|end| end.checked_add(info.tag));
            let aad_end = span.aad_at.checked_add(span.aad_len);
            if span.at < free || end.is_none_or(|end| end > bytes) {
                return Err(Error::Invalid("message offsets"));
            }
            if aad_end.is_none_or(|end| end > aad) {
                return Err(Error::Invalid("associated data"));
            }
            free = end.unwrap_or(usize::MAX);
            if good(span.len) { Ok(()) } else { Err(Error::Invalid("input length")) }
        };
        match self {
            Run::Spans(spans) => spans.iter().try_for_each(fits),
            // All but the last are alike.
            Run::Stride(_) if count == 0 => Ok(()),
            Run::Stride(_) => {
                fits(&self.span(kind, 0, bytes, aad))?;
                if count > 1 { fits(&self.span(kind, count - 1, bytes, aad)) } else { Ok(()) }
            }
        }
    }
}

/// The messages of a run, each a request of its own.
struct Messages<'a> {
    run: &'a Run,
    /// Kind, key, options and class are each message's.
    kind: Kind,
    key: &'a Key,
    options: Options,
    class: LatencyClass,
    nonce: &'a [u8],
    aad: &'a [u8],
    index: usize,
    bytes: usize,
    /// The whole input, where it lies apart.
    from: Option<&'a [u8]>,
    /// The output from byte `at` on.
    rest: &'a mut [u8],
    at: usize,
}

impl<'a> Messages<'a> {
    fn of(request: &'a mut Request<'_>, run: &'a Run) -> Messages<'a> {
        let bytes = request.data.len();
        let (from, rest) = match &mut request.data {
            Data::InPlace(buffer) => (None, &mut **buffer),
            Data::Apart { from, to } => (Some(*from), &mut **to),
        };
        let Request { kind, key, options, class, nonce, aad, .. } = *request;
        Messages { run, kind, key, options, class, nonce, aad, index: 0, bytes, from, rest, at: 0 }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Request<'a>;

    fn next(&mut self) -> Option<Request<'a>> {
        let count = self.run.count(self.bytes);
        if self.index == count {
            return None;
        }
        let span = self.run.span(self.kind, self.index, self.bytes, self.aad.len());
        let tag_len = self.kind.info().tag;
        let (_, rest) = mem::take(&mut self.rest).split_at_mut(span.at - self.at);
        let (text, rest) = rest.split_at_mut(span.len);
        let (tag, rest) = rest.split_at_mut(tag_len);
        self.rest = rest;
        self.at = span.at + span.len + tag_len;
        let data = match self.from {
            None => Data::InPlace(text),
            Some(from) => {
                if self.kind.info().family == Family::Open {
                    tag.copy_from_slice(&from[span.at + span.len..][..tag_len]);
                }
                Data::Apart { from: &from[span.at..][..span.len], to: text }
            }
        };
        let each = self.nonce.len() / count;
        let nonce = &self.nonce[self.index * each..][..each];
        let aad = &self.aad[span.aad_at..][..span.aad_len];
        self.index += 1;
        let request = Request::new(self.kind, self.key, data);
        Some(Request { nonce, aad, tag, options: self.options, class: self.class, ..request })
    }
}

impl Request<'_> {
    /// How many messages it has: 1 if it is no run.
    #[inline]
    pub fn messages(&self) -> usize {
        self.run.map_or(1, |run| run.count(self.data.len()))
    }

    /// The messages of a validated run as requests of their own, on the same buffers; nothing for a request that is no
    /// run. Where the output lies apart, tags to be checked are copied there first.
    pub fn items(&mut self) -> Vec<Item<'_>> {
        let Some(run) = self.run else { return Vec::new() };
        Messages::of(self, run).map(Item::new).collect()
    }

    /// What a run's outcome is if its messages, done one by one, had these. Call it when they are done.
    ///
    /// # Errors
    /// That of the first message that has one; [`Error::ForgedMessage`] for a wrong tag. Of an opened run nothing is
    /// left then.
    pub fn conclude(&mut self, results: &[Result<usize, Error>]) -> Result<usize, Error> {
        match results.iter().enumerate().find_map(|(index, result)| Some((index, (*result).err()?))) {
            None => Ok(self.data.len()),
            Some((index, error)) => {
                self.wipe_run();
                Err(of_message(index, error))
            }
        }
    }

    /// Of a run that did not open, nothing may be left: some of its messages may have been good.
    fn wipe_run(&mut self) {
        if self.kind.info().family == Family::Open {
            let bytes = self.data.len();
            self.data.output()[..bytes].zeroize();
        }
    }
}

fn of_message(index: usize, error: Error) -> Error {
    match error {
        Error::Authentication => Error::ForgedMessage(index as u32),
        other => other,
    }
}

/// Does a validated request or run inside the call; the one way to have an engine do what may be a run. A run is done
/// message by message. Allocates nothing.
///
/// # Errors
/// As [`Engine::execute`]; [`Error::ForgedMessage`] for a run. An engine that declines the first message has touched
/// nothing; one that fails at a later one in place has spoilt the run's input.
#[inline]
pub fn execute(engine: &dyn Engine, request: &mut Request<'_>) -> Result<usize, Error> {
    match request.run {
        None => engine.execute(request),
        Some(run) => execute_run(engine, run, request),
    }
}

fn execute_run(engine: &dyn Engine, run: &Run, request: &mut Request<'_>) -> Result<usize, Error> {
    let bytes = request.data.len();
    let mut messages = Messages::of(request, run);
    let failed = loop {
        let Some(mut message) = messages.next() else { return Ok(bytes) };
        match engine.execute(&mut message) {
            Ok(_) => {}
            Err(error) => break (messages.index - 1, error),
        }
    };
    let (index, error) = failed;
    let declined = matches!(error, Error::Unsupported | Error::Full);
    if declined && index == 0 {
        return Err(error);
    }
    request.wipe_run();
    // Whoever falls back must not take a half-done run in place for an untouched one.
    Err(if declined { Error::Device(Fault::Reported) } else { of_message(index, error) })
}

impl OwnedRequest {
    /// How many messages it has: 1 if it is no run.
    pub fn messages(&self) -> usize {
        self.run.as_ref().map_or(1, |run| run.count(self.input.len()))
    }

    /// Bytes of its longest message, associated data included.
    pub fn longest(&self) -> usize {
        let (bytes, aad) = (self.input.len(), self.aad.len());
        let Some(run) = &self.run else { return bytes + aad };
        let spans = (0..run.count(bytes)).map(|index| run.span(self.kind, index, bytes, aad));
        spans.map(|span| span.len + span.aad_len).max().unwrap_or(0)
    }

    /// Message `index` of a completed run as a request of its own, with its input, its output and its tag, for
    /// [`Engine::check`]. `None` if there is no such message.
    pub fn message(&self, index: usize) -> Option<OwnedRequest> {
        let run = self.run.as_ref()?;
        let count = run.count(self.input.len());
        if index >= count || self.output.len() < self.input.len() {
            return None;
        }
        let info = self.kind.info();
        let span = run.span(self.kind, index, self.input.len(), self.aad.len());
        let (text, end) = (span.at..span.at + span.len, span.at + span.len + info.tag);
        let input = self.input[text.clone()].to_vec();
        let mut one = OwnedRequest::new(self.kind, self.key.clone(), input, 0);
        one.output = self.output[text.clone()].to_vec();
        let tags = if info.family == Family::Open { &self.input } else { &self.output };
        one.tag[..info.tag].copy_from_slice(&tags[text.end..end]);
        let each = self.nonce.len() / count;
        one.nonce = self.nonce[index * each..][..each].to_vec();
        one.aad = self.aad[span.aad_at..][..span.aad_len].to_vec();
        (one.options, one.class) = (self.options, self.class);
        Some(one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Description, EngineClass};
    use crate::key::Algorithm;
    use crate::kind::KindSet;

    /// "Seals" by adding a byte of the nonce; the tag is that byte, associated data's length and the message's.
    struct Adder {
        description: Description,
        /// The message, by its nonce, that is answered with that error.
        fails: Option<(u8, Error)>,
    }

    impl Adder {
        fn new() -> Adder {
            let inline = KindSet::of(&[Kind::Aes128GcmSeal, Kind::Aes128GcmOpen, Kind::Aes128Ctr]);
            let description = Description {
                name: "adder",
                class: EngineClass::Software,
                inline,
                queued: KindSet::EMPTY,
                detail: String::new(),
            };
            Adder { description, fails: None }
        }
    }

    impl Engine for Adder {
        fn description(&self) -> &Description {
            &self.description
        }

        fn execute(&self, request: &mut Request<'_>) -> Result<usize, Error> {
            assert_eq!(request.validate(), Ok(()));
            let by = request.nonce[0];
            if let Some((_, error)) = self.fails.filter(|(at, _)| *at == by) {
                return Err(error);
            }
            let len = request.data.len();
            let seal = request.kind != Kind::Aes128GcmOpen;
            let tag = [[by, request.aad.len() as u8, len as u8, 0]; 4].concat();
            if request.kind == Kind::Aes128GcmOpen && request.tag != &tag[..] {
                return Err(Error::Authentication);
            }
            let add =
                |byte: &mut u8| *byte = if seal { byte.wrapping_add(by) } else { byte.wrapping_sub(by) };
            request.data.gathered().iter_mut().for_each(add);
            let tag_len = request.tag.len();
            request.tag.copy_from_slice(&tag[..tag_len]);
            Ok(len)
        }
    }

    fn key() -> Key {
        Key::symmetric(Algorithm::Aes128Gcm, &[1; 16]).unwrap()
    }

    fn nonces(count: u8) -> Vec<u8> {
        (1..=count).flat_map(|i| [i; 12]).collect()
    }

    fn ask<'a>(kind: Kind, key: &'a Key, run: &'a Run, nonce: &'a [u8], buffer: &'a mut [u8]) -> Request<'a> {
        Request { nonce, run: Some(run), ..Request::new(kind, key, Data::InPlace(buffer)) }
    }

    /// Three messages of 4, 4 and 2 bytes, each with room for its tag.
    const THREE: usize = 20 + 20 + 18;

    #[test]
    fn a_run_is_its_messages_one_by_one_in_place_and_apart() {
        let (key, run, nonce) = (key(), Run::Stride(20), nonces(3));
        let mut sealed = [7; THREE];
        let mut request = ask(Kind::Aes128GcmSeal, &key, &run, &nonce, &mut sealed);
        assert_eq!((request.validate(), request.messages()), (Ok(()), 3));
        assert_eq!(execute(&Adder::new(), &mut request), Ok(THREE));
        assert_eq!(
            (&sealed[..6], &sealed[20..26], &sealed[40..44]),
            (&[8, 8, 8, 8, 1, 0][..], &[9, 9, 9, 9, 2, 0][..], &[10, 10, 3, 0][..])
        );
        let mut apart = [0; THREE];
        let data = Data::Apart { from: &sealed, to: &mut apart };
        let mut request =
            Request { nonce: &nonce, run: Some(&run), ..Request::new(Kind::Aes128GcmOpen, &key, data) };
        assert_eq!(request.validate(), Ok(()));
        assert_eq!(execute(&Adder::new(), &mut request), Ok(THREE));
        assert_eq!((&apart[..4], &apart[20..24], &apart[40..42]), (&[7; 4][..], &[7; 4][..], &[7; 2][..]));
    }

    #[test]
    fn by_offsets_lengths_and_associated_data_are_each_message_s_own_and_gaps_stay() {
        let (key, nonce, mut buffer) = (key(), nonces(2), [7; 60]);
        let run = Run::Spans(vec![
            Span { at: 3, len: 1, aad_at: 0, aad_len: 2 },
            Span { at: 22, len: 9, aad_at: 1, aad_len: 3 },
        ]);
        let mut request =
            Request { aad: b"abcd", ..ask(Kind::Aes128GcmSeal, &key, &run, &nonce, &mut buffer) };
        assert_eq!(request.validate(), Ok(()));
        assert_eq!(execute(&Adder::new(), &mut request), Ok(60));
        assert_eq!(buffer[..8], [7, 7, 7, 8, 1, 2, 1, 0]);
        assert_eq!(buffer[20..23], [7, 7, 9]);
        assert_eq!((&buffer[31..34], &buffer[47..]), (&[2, 3, 9][..], &[7; 13][..]));
    }

    #[test]
    fn of_a_run_with_a_wrong_tag_nothing_is_left_and_the_first_bad_index_comes_back() {
        let (key, run, nonce) = (key(), Run::Stride(20), nonces(3));
        let mut sealed = [7; THREE];
        execute(&Adder::new(), &mut ask(Kind::Aes128GcmSeal, &key, &run, &nonce, &mut sealed)).unwrap();
        (sealed[24], sealed[42]) = (0xff, 0xff);
        let mut request = ask(Kind::Aes128GcmOpen, &key, &run, &nonce, &mut sealed);
        assert_eq!(execute(&Adder::new(), &mut request), Err(Error::ForgedMessage(1)));
        assert_eq!(sealed, [0; THREE]);
    }

    #[test]
    fn items_and_their_conclusion_are_the_same_as_execution() {
        let (key, run, nonce) = (key(), Run::Stride(20), nonces(3));
        let (mut whole, mut single) = ([7; THREE], [7; THREE]);
        execute(&Adder::new(), &mut ask(Kind::Aes128GcmSeal, &key, &run, &nonce, &mut whole)).unwrap();
        let mut request = ask(Kind::Aes128GcmSeal, &key, &run, &nonce, &mut single);
        let results: Vec<_> =
            request.items().iter_mut().rev().map(|item| Adder::new().execute(&mut item.request)).collect();
        assert_eq!(request.conclude(&results), Ok(THREE));
        assert_eq!(whole, single);
        let mut request = ask(Kind::Aes128GcmOpen, &key, &run, &nonce, &mut single);
        let forged = [Ok(4), Ok(4), Err(Error::Authentication)];
        assert_eq!(request.conclude(&forged), Err(Error::ForgedMessage(2)));
        assert_eq!(single, [0; THREE]);
    }

    #[test]
    fn an_engine_that_declines_leaves_a_run_untouched_and_one_that_fails_midway_says_so() {
        let (key, run, nonce) = (key(), Run::Stride(20), nonces(3));
        for (kind, declines) in [
            (Kind::Aes128GcmSeal, Error::Unsupported),
            (Kind::Aes128GcmSeal, Error::Full),
            (Kind::Aes128GcmOpen, Error::Unsupported),
            (Kind::Aes128GcmOpen, Error::Full),
        ] {
            let mut buffer = [7; THREE];
            if kind == Kind::Aes128GcmOpen {
                let mut sealing = ask(Kind::Aes128GcmSeal, &key, &run, &nonce, &mut buffer);
                execute(&Adder::new(), &mut sealing).unwrap();
            }
            let before = buffer;
            let mut engine = Adder { fails: Some((1, declines)), ..Adder::new() };
            let mut request = ask(kind, &key, &run, &nonce, &mut buffer);
            assert_eq!(execute(&engine, &mut request), Err(declines));
            assert_eq!(buffer, before);
            engine.fails = Some((2, declines));
            let mut request = ask(kind, &key, &run, &nonce, &mut buffer);
            let failed = execute(&engine, &mut request);
            assert_eq!(failed, Err(Error::Device(Fault::Reported)), "{kind:?} {declines:?}");
            assert!(kind == Kind::Aes128GcmSeal || buffer == [0; THREE], "plaintext is left");
        }
    }

    #[test]
    fn each_wrong_field_of_a_run_is_named() {
        let key = key();
        let check = |run: Run, nonce: usize, aad: &[u8], bytes: usize| {
            let (nonce, mut buffer) = (vec![0; nonce], vec![0; bytes]);
            let request = ask(Kind::Aes128GcmSeal, &key, &run, &nonce, &mut buffer);
            Request { aad, ..request }.validate()
        };
        let span = |at, len| Span { at, len, aad_at: 0, aad_len: 0 };
        assert_eq!(check(Run::Stride(20), 36, b"abc", THREE), Ok(()));
        assert_eq!(check(Run::Stride(20), 24, b"", THREE), Err(Error::Invalid("nonce length")));
        assert_eq!(check(Run::Stride(16), 36, b"", THREE), Err(Error::Invalid("stride")));
        assert_eq!(check(Run::Stride(0), 36, b"", THREE), Err(Error::Invalid("stride")));
        assert_eq!(check(Run::Stride(20), 24, b"", 35), Err(Error::Invalid("stride")), "a last tag is cut");
        assert_eq!(check(Run::Stride(20), 36, b"ab", THREE), Err(Error::Invalid("associated data")));
        let overlap = Run::Spans(vec![span(0, 4), span(19, 4)]);
        assert_eq!(check(overlap, 24, b"", 60), Err(Error::Invalid("message offsets")));
        assert_eq!(check(Run::Spans(vec![span(40, 5)]), 12, b"", 60), Err(Error::Invalid("message offsets")));
        assert_eq!(
            check(Run::Spans(vec![span(usize::MAX, 5)]), 12, b"", 60),
            Err(Error::Invalid("message offsets"))
        );
        let beyond = Run::Spans(vec![Span { aad_at: 2, aad_len: 2, ..span(0, 4) }]);
        assert_eq!(check(beyond, 12, b"abc", 60), Err(Error::Invalid("associated data")));
        let digest = Run::Stride(20);
        let mut to = [0; 64];
        let data = Data::Apart { from: &[0; 20], to: &mut to };
        let request = Request { run: Some(&digest), ..Request::new(Kind::Sha256, Key::none(), data) };
        assert_eq!(request.validate(), Err(Error::Invalid("this kind has no runs")));
    }

    #[test]
    fn a_message_of_an_owned_run_is_a_request_that_can_be_checked() {
        let mut input = vec![7; THREE];
        input[20..24].fill(9);
        let mut request = OwnedRequest::new(Kind::Aes128GcmSeal, std::sync::Arc::new(key()), input, THREE);
        request.nonce = nonces(3);
        request.run = Some(Box::new(Run::Stride(20)));
        assert_eq!((request.validate(), request.messages()), (Ok(()), 3));
        execute(&Adder::new(), &mut request.view()).unwrap();
        let one = request.message(1).unwrap();
        assert_eq!((&one.input[..], &one.output[..], one.tag[0]), (&[9; 4][..], &[11; 4][..], 2));
        assert_eq!((one.nonce.clone(), one.validate()), (vec![2; 12], Ok(())));
        assert!(request.message(3).is_none());
    }
}
