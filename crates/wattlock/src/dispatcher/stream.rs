//! Messages in pieces through the runtime: which engine makes the stream, and what is counted of it.
//!
//! A message that has begun cannot move: neither its state nor what it has already given back can be had from another
//! engine. So the choice is made once for each kind, before there is a stream, and only among CPU engines, which
//! cannot fail midway: first the one the policy names, then the others, the fastest first. An engine must give the
//! kind's known answers in pieces before it makes the first stream for a dispatcher, whatever it proved whole.
//!
//! A stream holds nothing of the dispatcher. It may go to another thread and outlive it.

use wattlock_core::{
    CompressStream, Error, Family, Feed, Key, Kind, LatencyClass, Nanos, Shape, Stream,
    compress_known_answers, one_by_one, stream_known_answers,
};
use wattlock_policy::{Ask, EngineId};

use super::Dispatcher;
use crate::telemetry::{Counter, EngineCounter};

/// The size that the policy is asked about: it is unknown how long a message in pieces will be. A TLS record's.
const TYPICAL_BYTES: usize = 16 * 1024;

/// Which engine makes streams, by kind.
pub(super) struct Streams([Maker; Kind::COUNT]);

#[derive(Clone, Copy)]
enum Maker {
    Unknown,
    Nobody,
    Engine(EngineId),
}

impl Default for Streams {
    fn default() -> Streams {
        Streams([Maker::Unknown; Kind::COUNT])
    }
}

/// A feed, and what went through it.
struct Counted<'f> {
    feed: &'f mut dyn Feed,
    messages: u64,
    bytes: u64,
}

impl Feed for Counted<'_> {
    fn begin(&mut self, lane: usize) -> bool {
        self.feed.begin(lane)
    }

    fn fill(&mut self, lane: usize, buffer: &mut [u8]) -> Option<usize> {
        let read = self.feed.fill(lane, buffer)?;
        self.bytes += read as u64;
        Some(read)
    }

    fn done(&mut self, lane: usize, digest: &[u8]) {
        self.messages += 1;
        self.feed.done(lane, digest);
    }
}

impl Dispatcher {
    /// A cipher of `kind` under `key` for messages that come in pieces, on the CPU engine that the policy names, or on
    /// the fastest that has one and has proved it. Allocates, and tests an engine on its first use for a kind; does
    /// not block. What is done with the stream is counted only if its owner says so ([`Dispatcher::streamed`]).
    ///
    /// A stream that opens gives out plaintext before its tag was checked: see [`Stream`] for its users.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if no engine here has streams of the kind; [`Error::Invalid`] if the key is not one of
    /// the kind's.
    pub fn open_stream(&mut self, kind: Kind, key: &Key) -> Result<Box<dyn Stream>, Error> {
        key.fits(kind)?;
        let maker = self.stream_maker(kind).ok_or(Error::Unsupported)?;
        self.stations[maker.index()].engine.stream(kind, key)
    }

    /// A compressor of `kind` at a level for content that comes in pieces: [`Dispatcher::open_stream`]'s sibling, made,
    /// proved and counted as that one's are.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if no engine here compresses the kind in pieces; [`Error::Invalid`] for the level.
    pub fn open_compress_stream(&mut self, kind: Kind, level: u8) -> Result<Box<dyn CompressStream>, Error> {
        let maker = self.stream_maker(kind).ok_or(Error::Unsupported)?;
        self.stations[maker.index()].engine.compress_stream(kind, level)
    }

    /// Counts what streams of `kind` did since this was last called for them: whole messages, and bytes of data. Two
    /// plain additions to this dispatcher's own counters, under the engine that makes its streams; a stream's owner
    /// may gather many messages first. Nothing is counted for a kind without streams.
    #[inline]
    pub fn streamed(&mut self, kind: Kind, messages: u64, bytes: u64) {
        if let Some(maker) = self.stream_maker(kind) {
            self.row.add(maker, kind, Counter::Requests, messages);
            self.row.add(maker, kind, Counter::Bytes, bytes);
        }
    }

    /// Counts the time of one message of those that [`Dispatcher::streamed`] counts, which is one of many like it.
    #[cold]
    pub fn streamed_in(&mut self, kind: Kind, bytes: usize, latency_ns: Nanos) {
        if let Some(maker) = self.stream_maker(kind) {
            self.row.add(maker, kind, Counter::Timed, 1);
            self.row.add(maker, kind, Counter::TimedNs, latency_ns);
            self.count_energy(
                maker,
                &Shape { kind, bytes, class: LatencyClass::Stream, messages: 1 },
                (1, 1),
                None,
            );
        }
    }

    /// Hashes the messages of a feed, about so many of so many bytes together, side by side if the policy gives as many
    /// requests to lanes, else one after the other. `room` is for their pieces. What was hashed is counted; the policy
    /// learns nothing of it, since its time is the reader's, too.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if no engine here hashes this kind in pieces; the engine's own.
    pub fn hash_fed(
        &mut self,
        kind: Kind,
        (count, bytes): (usize, usize),
        room: &mut [u8],
        feed: &mut dyn Feed,
    ) -> Result<(), Error> {
        self.keep_up();
        let shape = Shape { kind, bytes: bytes / count.max(1), class: LatencyClass::Bulk, messages: 1 };
        let ask = Ask { count: count as u32, bytes, ..Ask::inline(shape) };
        let id = self.policy.choose(&ask, &self.weather, self.now).engine;
        let width = self.stations.get(id.index()).map_or(1, |station| station.engine.width(kind));
        let mut feed = Counted { feed, messages: 0, bytes: 0 };
        if width > 1 && count > 1 && self.prove_inline(id, kind) {
            let done = self.stations[id.index()].engine.hash_fed(kind, room, &mut feed);
            self.row.add(id, kind, Counter::Requests, feed.messages);
            self.row.add(id, kind, Counter::Bytes, feed.bytes);
            return done;
        }
        let mut stream = self.open_stream(kind, Key::none())?;
        let done = one_by_one(&mut *stream, room, &mut feed);
        let Counted { messages, bytes, .. } = feed;
        self.streamed(kind, messages, bytes);
        done
    }

    #[inline]
    fn stream_maker(&mut self, kind: Kind) -> Option<EngineId> {
        self.keep_up();
        match self.streams.0[kind.index()] {
            Maker::Engine(id) => Some(id),
            Maker::Nobody => None,
            Maker::Unknown => self.choose_stream_maker(kind),
        }
    }

    #[cold]
    fn choose_stream_maker(&mut self, kind: Kind) -> Option<EngineId> {
        let shape = Shape { kind, bytes: TYPICAL_BYTES, class: LatencyClass::Stream, messages: 1 };
        let named = self.policy.choose(&Ask::inline(shape), &self.weather, self.now).engine;
        let others = self.runtime.cpu_engines(kind).filter(|id| *id != named);
        let found = std::iter::once(named).chain(others).find(|id| self.proves_stream(*id, kind));
        self.streams.0[kind.index()] = found.map_or(Maker::Nobody, Maker::Engine);
        found
    }

    /// Whether an engine gives a kind's known answers in pieces.
    fn proves_stream(&self, id: EngineId, kind: Kind) -> bool {
        let Some(station) = self.stations.get(id.index()).filter(|station| station.is_cpu) else {
            return false;
        };
        let prove = match kind.info().family {
            Family::Compress => compress_known_answers,
            _ => stream_known_answers,
        };
        match prove(&*station.engine, kind) {
            Ok(answers) => {
                self.row.add_engine(id, EngineCounter::Tests, answers as u64);
                true
            }
            Err(Error::Unsupported) => false,
            Err(error) => {
                let engine = station.engine.description().name;
                tracing::error!(engine, kind = kind.name(), %error, "known-answer test in pieces failed");
                false
            }
        }
    }
}
