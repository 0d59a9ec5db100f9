//! Opening: frames in, verified content out.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use subtle::ConstantTimeEq;
use wattlock_core::Nanos;
use wattlock_door::{Crypto, CryptoSource};
use wattlock_files::Opener;

use super::ears::{Ears, Heard, bell};
use super::{Batch, Clock, Ends, Feed, Passed, SHORT_FRAME, run, run_for, workers, write_all};
use crate::error::Error;
use crate::format::{
    COMMITMENT_LEN, Chain, FIXED_LEN, FRAME_EXTRA, Flags, Frame, HEAD_LEN, Head, MAGIC, SALT_LEN, parse_fixed,
};
use crate::framer::{FRAME_LEN, SEGMENT_LEN, Segment};

/// Opens everything from one end to the other, on at most so many threads (0 for one a core). Blocks until the stream's
/// end was verified. Content is released frame by frame, each when it is verified.
///
/// The input's own end is awaited too, since something could follow the stream's; not on a socket, which the other
/// side may keep open.
///
/// # Errors
/// [`Error::Cut`] if the stream's end never comes; any other of [`Error`]. What was released before is the stream's
/// true beginning.
pub fn open(
    ends: Ends<'_>,
    opener: &Opener,
    asked_workers: usize,
    source: &impl CryptoSource,
) -> Result<Passed, Error> {
    let bell = bell()?;
    let mut ears = Ears::new(&ends, &bell);
    let chain = source.here(|crypto| start(&mut ears, opener, crypto))?;
    let clock = Clock(Instant::now());
    let stat =
        rustix::fs::fstat(&ends.input).map_err(|error| crate::error::io("looking at the input", error))?;
    let socket = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Socket;
    let feed = Reader::new(ears, clock, chain, !socket);
    run(feed, workers(asked_workers), source, (&ends.output, &bell, clock))
}

/// Opens the streams that follow one another, as `>>` leaves them in a file. Each is verified. That they belong together
/// is not: a program that can append to the file can append a stream. One that was cut before the next began is told of
/// when all have been opened.
///
/// # Errors
/// As [`open`].
pub fn open_joined(
    ends: Ends<'_>,
    opener: &Opener,
    asked_workers: usize,
    source: &impl CryptoSource,
) -> Result<Passed, Error> {
    let bell = bell()?;
    let mut ears = Ears::new(&ends, &bell);
    let clock = Clock(Instant::now());
    let (mut all, mut cut) = (Passed::default(), None);
    loop {
        let chain = match source.here(|crypto| start(&mut ears, opener, crypto)) {
            Err(Error::Files(wattlock_files::Error::Empty)) if all.keys > 0 => break,
            begun => begun?,
        };
        let reader = Reader { joined: true, ..Reader::new(ears, clock, chain, false) };
        let (passed, reader) = run_for(reader, workers(asked_workers), source, (&ends.output, &bell, clock));
        all.add(&passed?);
        let Some(reader) = reader else { break };
        let Reader { ears: mut next, segment, filled, cut: this, .. } = reader;
        cut = cut.or(this);
        // What is not parsed, and then what is not read again.
        next.ahead.splice(..0, segment.buffer[..filled].iter().copied());
        ears = next;
    }
    cut.map_or(Ok(all), Err)
}

fn fresh() -> Segment {
    Segment::new(SEGMENT_LEN + FRAME_LEN + FRAME_EXTRA)
}

/// Reads header, salt and commitment.
fn start(ears: &mut Ears<'_>, opener: &Opener, crypto: &mut dyn Crypto) -> Result<Chain, Error> {
    let mut fixed = [0; FIXED_LEN];
    let len = ears.read_full(&mut fixed)?;
    if len < FIXED_LEN {
        let known = len.min(MAGIC.len());
        return Err(match len {
            0 => wattlock_files::Error::Empty.into(),
            _ if fixed[..known] == MAGIC[..known] => Error::Cut { frames: 0 },
            _ => foreign(&fixed[..len]),
        });
    }
    let mut header = fixed.to_vec();
    let key_len = parse_fixed(&fixed).map_err(|error| match error {
        Error::NotAStream => foreign(&fixed),
        error => error,
    })?;
    header.resize(FIXED_LEN + key_len, 0);
    let mut rest = [0; SALT_LEN + COMMITMENT_LEN];
    if ears.read_full(&mut header[FIXED_LEN..])? < header.len() - FIXED_LEN {
        return Err(Error::Cut { frames: 0 });
    }
    let input_key = opener.input_key(&header[FIXED_LEN..], crypto)?;
    if ears.read_full(&mut rest)? < rest.len() {
        return Err(Error::Cut { frames: 0 });
    }
    let (salt, stored) = rest.split_at(SALT_LEN);
    let salt = salt.try_into().map_err(|_| Error::Cut { frames: 0 })?;
    let (chain, commitment) = Chain::new(&input_key, salt, &header, crypto)?;
    if bool::from(commitment.ct_eq(stored)) {
        Ok(chain)
    } else {
        Err(wattlock_files::Error::Commitment.into())
    }
}

/// What the beginning of something else is.
fn foreign(start: &[u8]) -> Error {
    if wattlock_files::is_sealed_file(start) { Error::AFile } else { Error::NotAStream }
}

/// The leader's part of opening.
struct Reader<'a> {
    ears: Ears<'a>,
    clock: Clock,
    chain: Chain,
    segment: Segment,
    /// Bytes read, and bytes in whole frames.
    filled: usize,
    parsed: usize,
    number: u64,
    keys: u64,
    ended: bool,
    awaits_eof: bool,
    /// Whether another stream may follow, and what is wrong with this one if it does too soon.
    joined: bool,
    cut: Option<Error>,
    /// When the first bytes of the segment came.
    came: Option<Nanos>,
}

/// What the bytes behind the whole frames are.
enum Behind {
    /// Part of a frame that ends there, if that much of it is known.
    Part(Option<usize>),
    /// Frames under another key.
    NewKey,
    /// Whatever follows the end.
    End,
    Bad(&'static str),
}

impl<'a> Reader<'a> {
    fn new(ears: Ears<'a>, clock: Clock, chain: Chain, awaits_eof: bool) -> Reader<'a> {
        Reader {
            ears,
            clock,
            chain,
            segment: fresh(),
            filled: 0,
            parsed: 0,
            number: 0,
            keys: 1,
            ended: false,
            awaits_eof,
            joined: false,
            cut: None,
            came: None,
        }
    }

    /// Whether another stream begins in what is not parsed: the sealer of this one was killed. Sealed bytes hold a
    /// stream's first eight by a chance of 2^-64 each.
    fn is_cut(&mut self) -> bool {
        let from = self.parsed.min(self.filled);
        let left = &self.segment.buffer[from..self.filled];
        let found = left.windows(MAGIC.len()).position(|window| window == MAGIC).filter(|_| self.joined);
        if let Some(at) = found {
            self.cut = Some(Error::Cut { frames: self.number + self.segment.frames.len() as u64 });
            self.parsed = from + at;
        }
        found.is_some()
    }

    /// Whether another stream begins inside the frame that follows, as far as it is there.
    fn next_begins_in_frame(&self) -> bool {
        let left = &self.segment.buffer[self.parsed..self.filled];
        let head = left.first_chunk::<HEAD_LEN>().map(|head| Head::parse(*head));
        let len = match head {
            Some(Ok(head)) => head.len + FRAME_EXTRA + MAGIC.len() - 1,
            _ => left.len(),
        };
        left[..len.min(left.len())].windows(MAGIC.len()).any(|window| window == MAGIC)
    }

    /// Finds whole frames.
    fn parse(&mut self) -> Behind {
        loop {
            if let Some(last) = self.segment.frames.last().filter(|last| last.end() == self.parsed) {
                if last.head.flags.has(Flags::END) {
                    return Behind::End;
                }
                if last.head.flags.has(Flags::NEW_KEY) {
                    return Behind::NewKey;
                }
            }
            if self.joined && self.next_begins_in_frame() {
                return Behind::Part(None);
            }
            let bytes = &self.segment.buffer[self.parsed..self.filled];
            let Some(head) = bytes.first_chunk::<HEAD_LEN>() else { return Behind::Part(None) };
            let head = match Head::parse(*head) {
                Ok(head) => head,
                Err(what) => return Behind::Bad(what),
            };
            let frame = Frame { at: self.parsed, head };
            if frame.end() > self.filled {
                return Behind::Part(Some(frame.end()));
            }
            self.segment.frames.push(frame);
            self.parsed = frame.end();
        }
    }

    /// Reads until there are frames to be opened: whether more is there already, or what ends the stream.
    fn read_on(&mut self) -> Result<bool, Option<Error>> {
        loop {
            let behind = self.parse();
            if !matches!(behind, Behind::End | Behind::NewKey) && self.is_cut() {
                return Err(None);
            }
            let some = !self.segment.frames.is_empty();
            let reach = match behind {
                Behind::Bad(what) => {
                    let frame = self.number + self.segment.frames.len() as u64;
                    return Err(Some(Error::BadFrame { frame, what }));
                }
                Behind::NewKey => return Ok(true),
                Behind::End if self.joined => return Err(None),
                Behind::End if self.filled > self.parsed => return Err(Some(Error::Extended)),
                Behind::End if !self.awaits_eof => return Err(None),
                Behind::End => {
                    self.ended = true;
                    return Ok(false);
                }
                Behind::Part(_) if some && self.filled >= SEGMENT_LEN => return Ok(true),
                // A frame's end is known before it comes: reading stops there rather than inside the next.
                Behind::Part(Some(end)) if end >= SEGMENT_LEN => end,
                Behind::Part(_) => SEGMENT_LEN,
            };
            self.segment.grow(reach, self.filled);
            if !self.read_to(reach, some)? {
                return Ok(false);
            }
        }
    }

    /// Reads at most to that place. False if there is nothing to read and frames can go.
    fn read_to(&mut self, reach: usize, some: bool) -> Result<bool, Option<Error>> {
        match self.ears.listen(true, some.then_some(0)).map_err(Some)? {
            Heard::Bell => return Err(None),
            Heard::OutputGone => return Err(Some(wattlock_door::Error::ClosedPipe.into())),
            Heard::Stop => return Err(Some(wattlock_door::Error::Interrupted.into())),
            Heard::Nothing | Heard::HalfClosed => return Ok(!some),
            Heard::Input => {}
        }
        match self.ears.read(&mut self.segment.buffer[self.filled..reach]).map_err(Some)? {
            Some(0) => Err(Some(Error::Cut { frames: self.number + self.segment.frames.len() as u64 })),
            len => {
                self.filled += len.unwrap_or(0);
                self.came.get_or_insert_with(|| self.clock.now());
                Ok(true)
            }
        }
    }

    /// Behind the stream's end: waits for the input's.
    fn await_eof(&mut self) -> Option<Error> {
        loop {
            match self.ears.listen(true, None) {
                Ok(Heard::Nothing | Heard::HalfClosed) => continue,
                // The content is whole and released: nothing is lost if the consumer is gone.
                Ok(Heard::Bell | Heard::OutputGone | Heard::Stop) => return None,
                Ok(Heard::Input) => {}
                Err(error) => return Some(error),
            }
            match self.ears.read(&mut [0]) {
                Ok(Some(0)) => return None,
                Ok(Some(_)) => return Some(Error::Extended),
                Ok(None) => {}
                Err(error) => return Some(error),
            }
        }
    }

    /// The segment's frames; what lies behind them goes on in `spare`.
    fn take(&mut self, spare: Option<Segment>) -> Segment {
        let mut spare = spare.unwrap_or_else(fresh);
        spare.frames.clear();
        let tail = self.filled - self.parsed;
        spare.grow(tail.max(SEGMENT_LEN), 0);
        spare.buffer[..tail].copy_from_slice(&self.segment.buffer[self.parsed..self.filled]);
        (self.filled, self.parsed) = (tail, 0);
        std::mem::replace(&mut self.segment, spare)
    }
}

impl Feed for Reader<'_> {
    fn next(&mut self, spare: Option<Segment>, crypto: &mut dyn Crypto) -> Batch {
        let (mut failed, mut last, more) = if self.ended {
            (self.await_eof(), true, false)
        } else {
            match self.read_on() {
                Ok(more) => (None, false, more),
                Err(failed) => (failed, true, false),
            }
        };
        let epoch = self.chain.epoch().clone();
        let segment = self.take(spare);
        if segment.frames.last().is_some_and(|frame| frame.head.flags.has(Flags::NEW_KEY)) {
            match self.chain.advance(crypto) {
                Ok(()) => self.keys += 1,
                Err(error) => (failed, last) = (failed.or(Some(error)), true),
            }
        }
        let first = self.number;
        self.number += segment.frames.len() as u64;
        let oldest = self.came.take().filter(|_| !segment.frames.is_empty());
        Batch { segment, epoch, first, oldest, failed, last, more }
    }

    fn work(batch: &mut Batch, crypto: &mut dyn Crypto) -> (usize, Option<Error>) {
        let Segment { buffer, frames } = &mut batch.segment;
        batch.epoch.open(batch.first, buffer, frames, crypto)
    }

    fn write(batch: &mut Batch, count: usize, to: BorrowedFd<'_>) -> Result<(), Error> {
        let Segment { buffer, frames } = &mut batch.segment;
        let frames = &frames[..count];
        let content: usize = frames.iter().map(|frame| frame.head.len).sum();
        if content >= SHORT_FRAME * count {
            let parts: Vec<_> = frames.iter().map(|frame| IoSlice::new(&buffer[frame.content()])).collect();
            return write_all(to, &mut { parts });
        }
        let mut at = 0;
        for frame in frames {
            buffer.copy_within(frame.content(), at);
            at += frame.head.len;
        }
        write_all(to, &mut [IoSlice::new(&buffer[..at])])
    }

    fn on_work(&mut self, _ns: Nanos) {}

    fn counts(&self) -> (u64, u64, u64) {
        (self.ears.waits, self.keys, 0)
    }
}
