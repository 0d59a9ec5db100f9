//! Messages in pieces: whatever an engine's streams make of one is what whole requests make of it.

use super::agree::one;
use super::case::{CANARY, Suite};
use super::make::unsupported;
use crate::error::Error;
use crate::kind::{Family, Group, Kind};
use crate::request::{Data, OwnedRequest};
use crate::stream::{Stream, stream_known_answers};

/// Around blocks, kernels' steps and the sizes at which kernels change.
const LENGTHS: &[usize] = &[
    0, 1, 15, 16, 17, 31, 32, 33, 64, 100, 255, 256, 257, 1000, 1040, 4096, 4099, 16384, 16391, 65536, 65553,
];

/// Lengths of pieces: each message is cut with a few of them, chosen at random.
const CUTS: &[usize] = &[1, 3, 13, 15, 16, 17, 32, 47, 64, 240, 256, 1000, 4096, 9000, 70000];

/// Cuts of each message.
const ROUNDS: usize = 6;

/// Tries the subject's streams of `kind`, and says whether it has any. Answers to whole messages are the reference's.
pub(super) fn pieces(suite: &Suite<'_>, kind: Kind) -> bool {
    let info = kind.info();
    let key = suite.key(info.algorithm);
    let stream = suite.engine.stream(kind, &key);
    if unsupported(&stream) {
        return false;
    }
    if !matches!(info.family, Family::Cipher | Family::Seal | Family::Open | Family::Digest) {
        suite.fail(kind, "stream", "messages of this kind do not come in pieces");
    }
    if let Err(error) = stream_known_answers(suite.engine, kind) {
        suite.fail(kind, "known answers in pieces", &format!("{error}"));
    }
    misuse(suite, kind);
    for (index, len) in LENGTHS.iter().enumerate() {
        let len = len - len % info.multiple;
        if len < info.least || len > suite.harness.longest {
            continue;
        }
        let request = one(suite, kind, len, index * 7 % 90);
        let mut messages = Message::open(suite, &request);
        for round in 0..ROUNDS {
            messages.begin();
            if round == 2 {
                messages.rekeyed();
            }
            if round == 3 {
                // The first of these messages is abandoned, perhaps in the midst of a block.
                messages.some();
                messages.begin();
            }
            if round % 2 == 1 {
                messages.some();
                let mut copy = messages.copied();
                messages.all_of_it();
                copy.all_of_it();
                copy.right();
            } else {
                messages.all_of_it();
            }
            messages.right();
            suite.count(1);
        }
        if info.family == Family::Open {
            tags(suite, &request);
        }
    }
    true
}

/// A stream, a message that it is given in pieces, and what has come out.
struct Message<'s, 'a> {
    suite: &'s Suite<'a>,
    request: &'s OwnedRequest,
    stream: Box<dyn Stream>,
    output: Vec<u8>,
    aad: usize,
    in_place: bool,
}

impl<'s, 'a> Message<'s, 'a> {
    fn open(suite: &'s Suite<'a>, request: &'s OwnedRequest) -> Message<'s, 'a> {
        match suite.engine.stream(request.kind, &request.key) {
            Ok(stream) => {
                assert_eq!(stream.kind(), request.kind);
                Message { suite, request, stream, output: Vec::new(), aad: 0, in_place: false }
            }
            Err(error) => suite.fail(request.kind, "stream", &format!("{error}")),
        }
    }

    fn fail(&self, what: &str) -> ! {
        let (len, aad) = (self.request.input.len(), self.request.aad.len());
        let case = format!("{len} bytes and {aad} associated in pieces, {} bytes done", self.output.len());
        self.suite.fail(self.request.kind, &case, what)
    }

    fn begin(&mut self) {
        (self.output, self.aad) = (Vec::new(), 0);
        if let Err(error) = self.stream.start(&self.request.nonce) {
            self.fail(&format!("start: {error}"));
        }
    }

    fn copied(&self) -> Message<'s, 'a> {
        match self.stream.try_clone() {
            Ok(stream) => Message { stream, output: self.output.clone(), ..*self },
            Err(error) => self.fail(&format!("copy: {error}")),
        }
    }

    /// Begins anew after going over to another key and back, where the engine has a way; a copy keeps the old key.
    fn rekeyed(&mut self) {
        let key = self.request.key.bytes();
        let other: Vec<u8> = key.iter().map(|byte| !byte).collect();
        self.some();
        let mut copy = self.copied();
        match self.stream.rekey(&other) {
            Ok(()) => {}
            Err(Error::Unsupported) => return self.begin(),
            Err(error) => self.fail(&format!("another key: {error}")),
        }
        if self.stream.update(Data::InPlace(&mut [0; 16])).is_ok() {
            self.fail("the message goes on under another key");
        }
        if !matches!(self.stream.rekey(&other[1..]), Err(Error::Invalid(_))) {
            self.fail("a key of a wrong length is taken");
        }
        copy.all_of_it();
        copy.right();
        self.begin();
        self.all_of_it();
        if copy.output.len() >= 16 && copy.output == self.output {
            self.fail("another key gives the same");
        }
        if let Err(error) = self.stream.rekey(key) {
            self.fail(&format!("the first key again: {error}"));
        }
        self.begin();
    }

    /// A piece or a few.
    fn some(&mut self) {
        for _ in 0..1 + self.suite.random.below(4) {
            self.piece();
        }
    }

    fn all_of_it(&mut self) {
        while self.aad < self.request.aad.len() || self.output.len() < self.request.input.len() {
            self.piece();
        }
    }

    fn piece(&mut self) {
        let random = &self.suite.random;
        if self.aad < self.request.aad.len() {
            let rest = &self.request.aad[self.aad..];
            let piece = &rest[..rest.len().min(*random.pick(CUTS))];
            let mut guarded = self.suite.harness.arena.buffer(piece.len());
            guarded.copy_from_slice(piece);
            if let Err(error) = self.stream.aad(&guarded) {
                self.fail(&format!("associated data: {error}"));
            }
            self.aad += piece.len();
            return;
        }
        let info = self.request.kind.info();
        let rest = &self.request.input[self.output.len()..];
        let cut = random.pick(CUTS).next_multiple_of(info.multiple);
        // A data unit is one piece.
        let len = if info.least > 0 { rest.len() } else { rest.len().min(cut) };
        if len < info.least {
            return;
        }
        self.in_place = random.below(2) == 0;
        let out =
            if self.in_place { self.feed_in_place(&rest[..len]) } else { self.feed_apart(&rest[..len]) };
        self.output.extend(out);
    }

    fn feed_in_place(&mut self, piece: &[u8]) -> Vec<u8> {
        let at = self.suite.random.below(18);
        let mut buffer = self.suite.harness.arena.buffer(at + piece.len());
        buffer[..at].fill(CANARY);
        buffer[at..].copy_from_slice(piece);
        let result = self.stream.update(Data::InPlace(&mut buffer[at..]));
        if result != Ok(piece.len()) || buffer[..at].iter().any(|byte| *byte != CANARY) {
            self.fail(&format!("in place: {result:?}, or bytes before the buffer were written"));
        }
        if self.is_hash() && buffer[at..] != *piece {
            self.fail("a hash wrote to its input");
        }
        buffer[at..].to_vec()
    }

    fn feed_apart(&mut self, piece: &[u8]) -> Vec<u8> {
        let arena = self.suite.harness.arena;
        let [from_at, slack] = [18, 3].map(|below| self.suite.random.below(below));
        let mut from = arena.buffer(from_at + piece.len());
        let mut to = arena.buffer(piece.len() + slack);
        from[from_at..].copy_from_slice(piece);
        to.fill(CANARY);
        let result = self.stream.update(Data::Apart { from: &from[from_at..], to: &mut to });
        let untouched = to[piece.len()..].iter().all(|byte| *byte == CANARY);
        if result != Ok(piece.len()) || from[from_at..] != *piece || !untouched {
            self.fail(&format!("apart: {result:?}, or the input or bytes after the result were written"));
        }
        to[..piece.len()].to_vec()
    }

    fn is_hash(&self) -> bool {
        self.request.kind.info().family == Family::Digest
    }

    /// Ends the message with a tag and says how that went.
    fn end(&mut self, tag: &mut [u8]) -> Result<(), Error> {
        self.stream.finish(tag)
    }

    /// Ends the message, which must be what the reference makes of it whole.
    fn right(&mut self) {
        let info = self.request.kind.info();
        let mut tag = self.request.tag;
        let ended = if self.is_hash() {
            // What went in is behind it; what comes out is the digest.
            let mut digest = vec![0; info.output.unwrap_or_default()];
            let ended = self.end(&mut digest);
            self.output = digest;
            ended
        } else {
            self.end(&mut tag[..info.tag])
        };
        let mut after = self.request.again();
        if after.output.len() < self.output.len() {
            self.fail("more came out than went in");
        }
        after.output[..self.output.len()].copy_from_slice(&self.output);
        after.tag = tag;
        let expected = self.suite.reference_answer(self.request);
        let result = ended.map(|()| self.output.len());
        if let Err(error) = expected.verdict(&after, &result, self.suite.reference) {
            self.fail(&format!("{error}"));
        }
    }
}

/// Whole and shortened tags, right and forged.
fn tags(suite: &Suite<'_>, request: &OwnedRequest) {
    let mut message = Message::open(suite, request);
    for len in [16, 12, 4] {
        let at = suite.random.below(len);
        for wrong in [0u8, 1 << suite.random.below(8)] {
            message.begin();
            message.all_of_it();
            let mut tag = request.tag;
            tag[at] ^= wrong;
            let ended = message.end(&mut tag[..len]);
            let want = if wrong == 0 { Ok(()) } else { Err(Error::Authentication) };
            if ended != want {
                message.fail(&format!("{len} bytes of tag, byte {at} xor {wrong:#x}: {ended:?}"));
            }
        }
    }
}

/// Calls in a wrong order or of a wrong length are refused; a message in progress survives them.
fn misuse(suite: &Suite<'_>, kind: Kind) {
    let info = kind.info();
    let authenticated = info.tag > 0;
    let request = one(suite, kind, 64, if authenticated { 20 } else { 0 });
    let mut message = Message::open(suite, &request);
    let refused = |message: &Message<'_, '_>, what: &str, result: Result<(), Error>| {
        if !matches!(result, Err(Error::Invalid(_))) {
            message.fail(&format!("{what}: {result:?}"));
        }
    };
    let feed = |message: &mut Message<'_, '_>, data: Data<'_>| message.stream.update(data).map(drop);
    let mut tag = request.tag;
    let hash = message.is_hash();
    let shorter = request.nonce.get(1..).unwrap_or_default();
    for wrong in if hash { [&[0][..], &[0; 16]] } else { [&[][..], shorter] } {
        if hash || wrong.is_empty() || info.group != Group::Gcm {
            let started = message.stream.start(wrong);
            refused(&message, "a nonce of a wrong length", started);
        }
        let result = feed(&mut message, Data::InPlace(&mut [0; 32]));
        refused(&message, "data before a message", result);
        let result = message.stream.aad(&[0; 3]);
        refused(&message, "associated data before a message", result);
        let result = message.end(&mut tag[..info.tag]);
        refused(&message, "an end before a message", result);
    }
    message.begin();
    if !hash {
        let result = feed(&mut message, Data::Apart { from: &[0; 32], to: &mut [0; 31] });
        refused(&message, "an output too short", result);
    }
    let mut long = [0; 17];
    for len in [0, 3, 17].into_iter().filter(|len| authenticated || *len > 0) {
        let result = message.end(&mut long[..len]);
        refused(&message, "a tag of a wrong length", result);
    }
    if !authenticated {
        let result = message.stream.aad(&[0; 3]);
        refused(&message, "associated data for a kind that has none", result);
    }
    message.all_of_it();
    let result = message.stream.aad(&[0; 3]);
    refused(&message, "associated data after data", result);
    message.right();
    let mut digest = [0; 64];
    let end = if hash { &mut digest[..info.output.unwrap_or_default()] } else { &mut tag[..info.tag] };
    let result = message.end(end);
    refused(&message, "a second end", result);
}
