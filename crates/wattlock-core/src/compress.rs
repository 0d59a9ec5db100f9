//! Compression whose content comes in pieces.
//!
//! The sibling of [`Stream`](crate::Stream) for kinds whose output has another length than their input. A door that
//! gets its content piece by piece asks an engine for a [`CompressStream`]. It is always inline: each call does what it
//! can with the room it was given and returns. There is no queue, no choice and no fallback within a stream.
//!
//! [`Order`] holds the rules of the calls' order, once for all engines.

use std::fmt;

use crate::engine::Engine;
use crate::error::{Error, Fault};
use crate::kat::known_answers;
use crate::kind::{Family, Kind};

/// What is to be brought out behind the input of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Then {
    /// Nothing: more content follows, and the compressor may keep what it has for better matches.
    More,
    /// Everything given so far, so that a decoder can have it now: deflate's "sync flush", an empty stored block; the
    /// end of a zstd block. More content may follow.
    Flush,
    /// Everything, and the end of the stream.
    End,
}

/// What one call did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moved {
    /// Bytes of input taken.
    pub read: usize,
    /// Bytes of output written.
    pub written: usize,
    /// Whether all input was taken and everything that was asked for ([`Then`]) has come out. If not, the output is full:
    /// call again with the rest of the input, the same `then` and new room.
    pub done: bool,
}

/// One compressed stream after another, each in pieces: [`start`](CompressStream::start), then any number of
/// [`update`](CompressStream::update), the last of them with [`Then::End`] until it is done. Starting again abandons a
/// stream and keeps the memory.
///
/// One thread uses it at a time; it may move between threads. It does not block. The stream's state still holds what
/// was compressed when it is dropped: a compressor's input is not a secret.
pub trait CompressStream: Send + fmt::Debug {
    /// What it does.
    fn kind(&self) -> Kind;

    /// Begins a stream behind a dictionary: for deflate the last up to 32 KiB that a decoder has before it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a dictionary above [`crate::DICTIONARY_MOST`]; [`Error::Unsupported`] if the kind takes none
    /// in pieces (zstd); [`Error::Device`].
    fn start(&mut self, dictionary: &[u8]) -> Result<(), Error>;

    /// More content. Takes what fits, and returns how far it came. With room for less than 16 bytes a flush may never be
    /// done: a compressor that filled its room does not always know that this was all.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no stream has begun or it has ended; [`Error::Device`], and the stream is over.
    fn update(&mut self, input: &[u8], output: &mut [u8], then: Then) -> Result<Moved, Error>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No stream.
    Idle,
    /// Content is to come.
    Open,
    /// Everything so far has come out.
    Flushed,
}

/// What a stream's calls may do next: every engine's compressors ask this before they work. Knows no bytes.
#[derive(Debug, Clone)]
pub struct Order {
    kind: Kind,
    phase: Phase,
}

impl Order {
    /// For a kind and one of its levels.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the kind does not compress; [`Error::Invalid`] for the level.
    pub fn new(kind: Kind, level: u8) -> Result<Order, Error> {
        let levels = kind.levels().ok_or(Error::Unsupported)?;
        if !levels.contains(&level) {
            return Err(Error::Invalid("compression level"));
        }
        Ok(Order { kind, phase: Phase::Idle })
    }

    /// The kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// A stream begins.
    ///
    /// # Errors
    /// As [`CompressStream::start`], for the dictionary.
    pub fn start(&mut self, dictionary: usize) -> Result<(), Error> {
        self.phase = Phase::Idle;
        if dictionary > crate::DICTIONARY_MOST {
            return Err(Error::Invalid("dictionary length"));
        }
        self.phase = Phase::Open;
        Ok(())
    }

    /// Content comes. Returns whether there is anything to do: a flush directly behind a flush asks for nothing.
    ///
    /// # Errors
    /// As [`CompressStream::update`].
    pub fn update(&mut self, input: usize, then: Then) -> Result<bool, Error> {
        match self.phase {
            Phase::Idle => Err(Error::Invalid("no stream was begun")),
            Phase::Flushed if input == 0 && then != Then::End => Ok(false),
            _ => {
                self.phase = Phase::Open;
                Ok(true)
            }
        }
    }

    /// What the engine made of it.
    ///
    /// # Errors
    /// The engine's; the stream is then over.
    pub fn moved(&mut self, moved: Result<Moved, Error>, then: Then) -> Result<Moved, Error> {
        self.phase = match (&moved, then) {
            (Err(_), _) | (Ok(Moved { done: true, .. }), Then::End) => Phase::Idle,
            (Ok(Moved { done: true, .. }), Then::Flush) => Phase::Flushed,
            _ => self.phase,
        };
        moved
    }
}

/// Puts a kind's known answers through an engine's compressor: in two pieces with a flush between them, into little
/// room at a time, then again on the same compressor. Returns how many there were.
///
/// # Errors
/// [`Error::Unsupported`] if the engine does not compress the kind in pieces; [`Error::Device`] with
/// [`Fault::WrongResult`] if the engine's own check refuses what came out.
pub fn compress_known_answers(engine: &dyn Engine, kind: Kind) -> Result<usize, Error> {
    if kind.info().family != Family::Compress {
        return Err(Error::Unsupported);
    }
    let mut answers = known_answers(kind);
    for answer in &mut answers {
        let request = &mut answer.request;
        let mut stream = engine.compress_stream(kind, request.options.level)?;
        for room in [16, 4096] {
            stream.start(&[])?;
            let (mut output, mut buffer) = (Vec::new(), vec![0; room]);
            let (first, second) = request.input.split_at(request.input.len() / 3);
            for (mut rest, then) in [(first, Then::Flush), (second, Then::End)] {
                loop {
                    let moved = stream.update(rest, &mut buffer, then)?;
                    output.extend_from_slice(buffer.get(..moved.written).unwrap_or_default());
                    rest = rest.get(moved.read..).unwrap_or_default();
                    if moved.done {
                        break;
                    }
                    if moved.read + moved.written == 0 {
                        return Err(Error::Device(Fault::WrongResult));
                    }
                }
            }
            let len = output.len();
            request.output = output;
            engine.check(request, len)?;
        }
    }
    Ok(answers.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_out_of_order_are_refused() {
        let mut order = Order::new(Kind::Deflate, 6).unwrap();
        assert!(order.update(1, Then::More).is_err());
        assert_eq!(order.start(crate::DICTIONARY_MOST + 1), Err(Error::Invalid("dictionary length")));
        assert!(order.update(1, Then::More).is_err());
        order.start(0).unwrap();
        let done = Ok(Moved { read: 1, written: 1, done: true });
        assert_eq!(order.update(0, Then::Flush), Ok(true));
        order.moved(done, Then::Flush).unwrap();
        assert_eq!(order.update(0, Then::Flush), Ok(false));
        assert_eq!(order.update(0, Then::End), Ok(true));
        order.moved(done, Then::End).unwrap();
        assert!(order.update(0, Then::End).is_err());
        order.start(0).unwrap();
        order.moved(Err(Error::Device(Fault::Reported)), Then::More).unwrap_err();
        assert!(order.update(1, Then::More).is_err());
    }

    #[test]
    fn only_compressing_kinds_have_levels() {
        for kind in Kind::ALL {
            let compresses = kind.info().family == Family::Compress;
            assert_eq!(Order::new(*kind, 1).is_ok(), compresses, "{}", kind.name());
            assert!(Order::new(*kind, 0).is_err() && Order::new(*kind, 20).is_err());
        }
    }
}
