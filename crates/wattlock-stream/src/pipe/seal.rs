//! Sealing: the producer's bytes in, frames out.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use wattlock_core::Nanos;
use wattlock_door::{Crypto, CryptoSource, random};
use wattlock_files::Sealer;

use super::ears::{Ears, Heard, bell};
use super::{Batch, Clock, Ends, Feed, Passed, Sealing, Steering, run, workers, write_all};
use crate::error::Error;
use crate::format::{Chain, SALT_LEN, encode_header};
use crate::framer::{Framer, Segment};
use crate::pace::Pace;

/// Frames under one key, at most.
const NEW_KEY_FRAMES: u64 = 1 << 32;

/// Seals everything from one end to the other. Blocks until the input ends or the work is stopped; the stream is then
/// ended, and a stop is reported as [`wattlock_door::Error::Interrupted`].
///
/// # Errors
/// Those of keys, input and output; [`Error::RecordCut`]. The stream then has no end.
pub fn seal(
    ends: Ends<'_>,
    sealer: &Sealer,
    settings: &Sealing,
    source: &impl CryptoSource,
) -> Result<Passed, Error> {
    seal_steered(ends, sealer, settings, source, None)
}

/// The same, with a governor that sets a clock.
///
/// # Errors
/// As [`seal`].
pub fn seal_steered(
    ends: Ends<'_>,
    sealer: &Sealer,
    settings: &Sealing,
    source: &impl CryptoSource,
    steering: Option<&mut dyn Steering>,
) -> Result<Passed, Error> {
    let (chain, start) = source.here(|crypto| begin(sealer, crypto))?;
    let bell = bell()?;
    let ears = Ears::new(&ends, &bell).both_ways();
    write_all(ends.output.as_fd(), &mut [IoSlice::new(&start)])?;
    let clock = Clock(Instant::now());
    let latency = settings.latency.map(|latency| latency.as_nanos() as Nanos);
    let feed = Reader {
        ears,
        clock,
        framer: Framer::new(settings.framing, settings.frame_len),
        pace: Pace::new(latency, settings.learns),
        chain,
        number: 0,
        under_key: (0, 0),
        new_key_bytes: settings.new_key_bytes.max(1),
        keys: 1,
        first_content: 0,
        steering: steering.map(|steering| steering as &mut dyn Steering),
        full: 0,
        ask: None,
    };
    run(feed, workers(settings.workers), source, (&ends.output, &bell, clock))
}

/// A fresh key, and the stream's first bytes, which carry it.
fn begin(sealer: &Sealer, crypto: &mut dyn Crypto) -> Result<(Chain, Vec<u8>), Error> {
    let (input_key, key_file) = sealer.fresh_key(crypto)?;
    let mut start = encode_header(&key_file)?;
    let mut salt = [0; SALT_LEN];
    random(&mut salt)?;
    let (chain, commitment) = Chain::new(&input_key, &salt, &start, crypto)?;
    start.extend_from_slice(&salt);
    start.extend_from_slice(&commitment);
    Ok((chain, start))
}

/// The leader's part of sealing.
struct Reader<'a> {
    ears: Ears<'a>,
    clock: Clock,
    framer: Framer,
    pace: Pace,
    chain: Chain,
    number: u64,
    /// Bytes and frames under the present key.
    under_key: (u64, u64),
    new_key_bytes: u64,
    keys: u64,
    /// Content of the segment when the open frame got its oldest record.
    first_content: u64,
    /// What sets a clock by the fill, and how often the window was found full.
    steering: Option<&'a mut dyn Steering>,
    full: u64,
    /// When to ask a receiver that sends no more whether it is there, and how long after the last time.
    ask: Option<(Nanos, Nanos)>,
}

/// A receiver that sends no more is asked at once, then after so long, and then after twice as long, up to a minute.
const ASK_NS: Nanos = 1_000_000_000;
const ASK_MOST_NS: Nanos = 60 * ASK_NS;

/// An idle input for so long is a rest.
const REST_NS: Nanos = 5_000_000;

/// Why the leader stops reading.
enum Leave {
    /// These frames are to go; whether more is there already.
    Frames {
        more: bool,
    },
    End(Option<Error>),
    /// Without an end.
    Broken(Option<Error>),
}

impl Reader<'_> {
    /// Reads until there are frames to be sealed.
    fn read_on(&mut self) -> Result<Leave, Error> {
        let mut rested = false;
        loop {
            if self.framer.is_full() {
                return Ok(Leave::Frames { more: true });
            }
            let now = self.clock.now();
            let due = self.framer.since().and_then(|since| self.pace.due(since));
            let overdue = due.is_some_and(|due| due <= now);
            let (watched, timeout) = match due {
                _ if self.framer.has_closed() || overdue => (true, Some(0)),
                // Without steering a silent producer wakes no thread.
                None => {
                    let rest = self.steering.as_ref().filter(|_| !rested).map(|_| REST_NS);
                    let ask = self.ask.map(|(at, _)| at.saturating_sub(now).max(1));
                    (true, rest.into_iter().chain(ask).min())
                }
                Some(due) => (!self.pace.may_sleep(now, due, self.framer.room()), Some(due - now)),
            };
            match self.ears.listen(watched, timeout)? {
                Heard::Bell => return Ok(Leave::Broken(None)),
                Heard::OutputGone => {
                    return Ok(Leave::Broken(Some(wattlock_door::Error::ClosedPipe.into())));
                }
                Heard::Stop => return Ok(Leave::End(Some(wattlock_door::Error::Interrupted.into()))),
                Heard::Input => match self.read()? {
                    Some(0) if self.framer.cuts_record() => {
                        return Ok(Leave::Broken(Some(Error::RecordCut)));
                    }
                    Some(0) => return Ok(Leave::End(None)),
                    // Less than there was room for: that was all.
                    Some(len) if overdue && len < self.framer.room() => return Ok(self.leave_due()),
                    _ => {}
                },
                Heard::Nothing if overdue => return Ok(self.leave_due()),
                Heard::Nothing if self.framer.has_closed() => return Ok(Leave::Frames { more: false }),
                Heard::HalfClosed => {
                    self.ask = Some((self.clock.now() + ASK_NS, ASK_NS));
                    self.framer.close_empty();
                }
                Heard::Nothing if due.is_none() && self.ask.is_some_and(|(at, _)| at <= self.clock.now()) => {
                    let pause = self.ask.map_or(ASK_NS, |(_, pause)| (pause * 2).min(ASK_MOST_NS));
                    self.ask = Some((self.clock.now() + pause, pause));
                    self.framer.close_empty();
                }
                Heard::Nothing if due.is_none() => {
                    if let Some(steering) = self.steering.as_mut().filter(|_| !rested) {
                        steering.on_rest(self.clock.now());
                    }
                    rested = true;
                }
                Heard::Nothing => {}
            }
        }
    }

    /// Tells of the window's fill with this batch.
    fn steer(&mut self, content: u64) {
        let Some(steering) = &mut self.steering else { return };
        let (waiting, window) = self.ears.window();
        // Pages that are not full count whole in a pipe: it takes no more long before its last byte.
        self.full += u64::from(waiting > window / 16 * 15);
        steering.on_batch((waiting + content).min(window), window, content, self.clock.now());
    }

    fn read(&mut self) -> Result<Option<usize>, Error> {
        let len = self.ears.read(self.framer.space())?;
        if let Some(len) = len {
            let fresh = self.framer.since().is_none();
            self.framer.on_read(len, self.clock.now());
            if fresh {
                self.first_content = self.framer.content();
            }
        }
        Ok(len)
    }

    fn leave_due(&mut self) -> Leave {
        self.pace.on_due(self.framer.content().saturating_sub(self.first_content));
        self.framer.close();
        Leave::Frames { more: false }
    }

    /// Whether a new key is to follow what is in the segment now.
    fn count(&mut self, bytes: u64, frames: u64) -> bool {
        self.under_key = (self.under_key.0 + bytes, self.under_key.1 + frames);
        let spent = self.under_key.0 >= self.new_key_bytes || self.under_key.1 >= NEW_KEY_FRAMES;
        spent && self.framer.announce_new_key()
    }
}

impl Feed for Reader<'_> {
    fn next(&mut self, spare: Option<Segment>, crypto: &mut dyn Crypto) -> Batch {
        let (mut failed, last, more) = match self.read_on() {
            Ok(Leave::Frames { more }) => (None, false, more),
            Ok(Leave::End(failed)) => {
                self.framer.end();
                (failed, true, false)
            }
            Ok(Leave::Broken(failed)) => {
                self.framer.close_all();
                (failed, true, false)
            }
            Err(error) => (Some(error), true, false),
        };
        let epoch = self.chain.epoch().clone();
        let fresh = spare.unwrap_or_else(|| self.framer.fresh());
        let (content, frames) = (self.framer.content(), self.framer.frames() as u64);
        if self.count(content, frames) {
            match self.chain.advance(crypto) {
                Ok(()) => (self.under_key, self.keys) = ((0, 0), self.keys + 1),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let (segment, oldest) = self.framer.take(fresh);
        let first = self.number;
        self.number += frames;
        self.pace.on_batch(content, self.clock.now());
        self.steer(content);
        let last = last || failed.is_some();
        Batch { segment, epoch, first, oldest, failed, last, more }
    }

    fn work(batch: &mut Batch, crypto: &mut dyn Crypto) -> (usize, Option<Error>) {
        let Segment { buffer, frames } = &mut batch.segment;
        match batch.epoch.seal(batch.first, buffer, frames, crypto) {
            Ok(()) => (frames.len(), None),
            Err(error) => (0, Some(error)),
        }
    }

    fn write(batch: &mut Batch, count: usize, to: BorrowedFd<'_>) -> Result<(), Error> {
        if count == 0 {
            return Ok(());
        }
        write_all(to, &mut [IoSlice::new(batch.segment.bytes())])
    }

    fn on_work(&mut self, ns: Nanos) {
        self.pace.on_work(ns);
    }

    fn counts(&self) -> (u64, u64, u64) {
        (self.ears.waits, self.keys, self.full)
    }
}
