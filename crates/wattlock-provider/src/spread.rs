//! A large response's content on other cores: cut into chunks, compressed by the threads of a pool, joined in order.
//!
//! A chunk is compressed with the 32 KiB before it as dictionary, so that cutting costs nothing in length; its output ends
//! on a byte boundary, and the outputs one behind the other are one deflate stream with one last block. On a machine with a
//! device each chunk is a request, and the pool's dispatchers choose the engine. What a device says is decompressed and
//! compared, all of it: what has gone to a client cannot be taken back. Without one the CPU engine does it that makes
//! streams, as in the loop.
//!
//! A response that the policy gives to a device goes there from its first byte on. One thread of the pool at a time then
//! *feeds*: it submits every chunk, of all responses, as soon as it comes and the device has room, and waits for none before
//! the next. It does nothing else: what comes back, with an answer to check or for the CPU to do, the loop hands to the pool.
//!
//! The event loop never waits. A descriptor becomes readable when chunks are done; the loop then calls again and takes
//! what is due. Threads start when a response is spread for the first time, in the process that does it.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use wattlock::core::{
    Completion, CompressStream, DICTIONARY_MOST, Data, Error, Fault, Item, Key, Kind, LatencyClass, Moved,
    Options, Request, Then,
};
use wattlock::{Bounds, Dispatcher, Pool, Runtime};
use wattlock_core::sync::lock;
use zlib_rs::crc32::{crc32, crc32_combine};
use zlib_rs::{Inflate, InflateFlush, Status};

/// This process's threads.
pub(crate) struct Crew {
    pool: Pool<'static, ()>,
    threads: usize,
    /// Whether anything compresses here besides the CPU.
    device: bool,
    feeder: Arc<Feeder>,
    wake: Arc<OwnedFd>,
}

/// Chunks on their way to a device. (Units of work hold this and not the pool, which ends when its owner does.)
struct Feeder {
    feed: Mutex<Feed>,
    /// A chunk has come.
    came: Condvar,
    wake: Arc<OwnedFd>,
    /// The process whose threads feed. A child may inherit this locked.
    forks: u32,
}

#[derive(Default)]
struct Feed {
    /// Not yet submitted.
    chunks: VecDeque<Piece>,
    /// With a device's answer, or without one: for the CPU.
    back: Vec<(Piece, Option<Completion>)>,
    /// Whether a thread submits them.
    fed: bool,
}

/// How soon a thread that feeds looks again for answers.
const LOOK: Duration = Duration::from_micros(50);

impl Crew {
    /// So many threads, which start when something is submitted, where the process may use so many cores. `None` if they
    /// could only share the loop's core and there is no device, or if there is no descriptor for waking.
    pub(crate) fn new(runtime: &Runtime, threads: usize, cores: usize) -> Option<Crew> {
        let mut engines = runtime.machine().engines.iter();
        let device = engines.any(|one| !one.class.is_cpu() && one.can(Kind::Deflate));
        if threads == 0 || (cores < 2 && !device) {
            return None;
        }
        // SAFETY: plain numbers; a descriptor that is returned has no other user.
        let wake = unsafe {
            let made = libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC);
            Arc::new((made >= 0).then(|| OwnedFd::from_raw_fd(made))?)
        };
        // A response's chunks are bounded by its `most`, and responses by their memory: the pool never refuses one.
        // The thread that feeds a device sleeps, mostly.
        let many = threads + usize::from(device);
        let pool = Pool::new(runtime, Bounds { units: usize::MAX, ..Bounds::threads(many) });
        pool.wake(wake.as_fd()).ok()?;
        let (feed, came, forks) = (Mutex::default(), Condvar::new(), wattlock::forks());
        let feeder = Arc::new(Feeder { feed, came, wake: wake.clone(), forks });
        Some(Crew { pool, threads, device, feeder, wake })
    }

    /// Whether another response would find an idle core, or a device. A response whose client takes nothing has no
    /// chunk in work and keeps no core from others.
    pub(crate) fn has_room(&self, idle_cores: usize) -> bool {
        let most = if self.device { 8 * self.threads } else { self.threads.min(idle_cores) };
        self.take_in();
        self.pool.outstanding() < most
    }

    /// What becomes readable when chunks are done.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.wake.as_raw_fd()
    }

    /// The loop was woken.
    pub(crate) fn woken(&self) {
        let mut count = [0; 8];
        // SAFETY: our own descriptor, and room for the number that it gives.
        unsafe { libc::read(self.wake.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        self.take_in();
    }

    /// Has a chunk go to a device.
    fn send(&self, piece: Piece) {
        if self.feeder.forks != wattlock::forks() {
            self.pool.submit(0, move |dispatcher| piece.make(dispatcher, true));
            return;
        }
        let mut feed = lock(&self.feeder.feed);
        feed.chunks.push_back(piece);
        let fed = feed.fed;
        drop(feed);
        self.feeder.came.notify_one();
        if !fed {
            let feeder = self.feeder.clone();
            self.pool.submit(0, move |dispatcher| feeder.run(dispatcher));
        }
    }

    /// Forgets what the pool has done (it keeps a result until it is taken; ours are empty, for chunks carry their answers),
    /// and hands it what has come back from devices.
    fn take_in(&self) {
        while self.pool.take().is_some() {}
        if !self.device || self.feeder.forks != wattlock::forks() {
            return;
        }
        let back = std::mem::take(&mut lock(&self.feeder.feed).back);
        for (piece, answer) in back {
            self.pool.submit(0, move |dispatcher| piece.end(dispatcher, answer));
        }
    }
}

impl Feeder {
    /// Submits chunks as they come until none is left and all are answered. Returns at once if another thread does.
    fn run(&self, dispatcher: &mut Dispatcher) {
        let Some(mut feeding) = Feeding::begin(self) else { return };
        while feeding.feed(dispatcher) {
            let mut answers = Vec::new();
            dispatcher.poll(&mut |answer| answers.push(answer));
            for answer in answers {
                let place = feeding.sent.get_mut(answer.request.mark as usize);
                if let Some(piece) = place.and_then(Option::take) {
                    self.give_back(piece, Some(answer));
                }
            }
        }
    }

    fn give_back(&self, piece: Piece, answer: Option<Completion>) {
        lock(&self.feed).back.push((piece, answer));
        self.ring();
    }

    /// Wakes the loop.
    fn ring(&self) {
        let one = 1_u64;
        // SAFETY: our own descriptor, which does not block; eight bytes as it wants.
        unsafe { libc::write(self.wake.as_raw_fd(), (&raw const one).cast(), 8) };
    }
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crew").field("threads", &self.threads).finish_non_exhaustive()
    }
}

/// A thread that feeds.
struct Feeding<'a> {
    feeder: &'a Feeder,
    /// What a device has, by the requests' marks.
    sent: Vec<Option<Piece>>,
    /// Room that a request names; its copy has its own.
    room: Vec<u8>,
}

impl Feeding<'_> {
    fn begin(feeder: &Feeder) -> Option<Feeding<'_>> {
        let before = std::mem::replace(&mut lock(&feeder.feed).fed, true);
        (!before).then_some(Feeding { feeder, sent: Vec::new(), room: Vec::new() })
    }

    /// Submits what has come and has room. If there is none of it, waits for a while first. Whether it goes on.
    fn feed(&mut self, dispatcher: &mut Dispatcher) -> bool {
        let out = self.sent.iter().any(Option::is_some);
        let mut feed = lock(&self.feeder.feed);
        if !out && feed.chunks.is_empty() {
            feed.fed = false;
            return false;
        }
        let waits = |piece: &Piece, dispatcher: &Dispatcher| {
            dispatcher.waits_for_room(Kind::Deflate, piece.parts().1.len())
        };
        if feed.chunks.front().is_none_or(|piece| waits(piece, dispatcher)) {
            feed = self.feeder.came.wait_timeout(feed, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        while feed.chunks.front().is_some_and(|piece| !waits(piece, dispatcher)) {
            let next = feed.chunks.pop_front();
            drop(feed);
            if let Some(piece) = next.filter(|piece| !piece.is_cancelled()) {
                self.submit(dispatcher, piece);
            }
            feed = lock(&self.feeder.feed);
        }
        true
    }

    fn submit(&mut self, dispatcher: &mut Dispatcher, piece: Piece) {
        let slot = self.sent.iter().position(Option::is_none).unwrap_or(self.sent.len());
        self.sent.resize_with(self.sent.len().max(slot + 1), || None);
        let piece = self.sent[slot].insert(piece);
        let bound = Kind::Deflate.output_bound(piece.parts().1.len());
        let submitted = bound.and_then(|bound| {
            self.room.resize(self.room.len().max(bound), 0);
            let request = piece.request(&mut self.room[..bound]);
            dispatcher.submit_to_device(&request, slot as u64, request.shape().bytes, 0)
        });
        if submitted.is_none()
            && let Some(piece) = self.sent[slot].take()
        {
            // Too short for a device, for example.
            self.feeder.give_back(piece, None);
        }
    }
}

impl Drop for Feeding<'_> {
    /// If the thread panics, the CPU does what it had.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut feed = lock(&self.feeder.feed);
            let Feed { chunks, back, fed } = &mut *feed;
            let sent = self.sent.drain(..).flatten();
            back.extend(sent.chain(chunks.drain(..)).map(|piece| (piece, None)));
            *fed = false;
            drop(feed);
            self.feeder.ring();
        }
    }
}

/// A chunk with all that a device needs for it.
struct Piece {
    answer: Answer,
    level: u8,
    /// The dictionary, and behind it the content.
    whole: Vec<u8>,
    dictionary: usize,
    last: bool,
}

impl Piece {
    fn parts(&self) -> (&[u8], &[u8]) {
        self.whole.split_at(self.dictionary)
    }

    fn is_cancelled(&self) -> bool {
        self.answer.0.cancelled.load(Relaxed)
    }

    fn request<'a>(&'a self, to: &'a mut [u8]) -> Request<'a> {
        let (aad, from) = self.parts();
        let request = Request::new(Kind::Deflate, Key::none(), Data::Apart { from, to });
        let options = Options::compress(self.level, self.last);
        Request { aad, options, class: LatencyClass::Bulk, ..request }
    }

    /// Takes a device's answer, if there is one; without one, or if it is wrong, the CPU does it.
    fn end(self, dispatcher: &mut Dispatcher, answer: Option<Completion>) {
        if self.is_cancelled() {
            return;
        }
        let output = answer
            .and_then(|mut answer| self.right(answer.result, std::mem::take(&mut answer.request.output)));
        match output {
            Some(output) => self.answer.give(Ok(output), self.parts().1),
            None => self.inside(dispatcher),
        }
    }

    /// Has the engine do it that the policy names, and waits for it.
    fn make(self, dispatcher: &mut Dispatcher, devices: bool) {
        if self.is_cancelled() {
            return;
        }
        match if devices { self.ask(dispatcher) } else { None } {
            Some(output) => self.answer.give(Ok(output), self.parts().1),
            None => self.inside(dispatcher),
        }
    }

    /// By the engine that the policy names; `None` if that came to nothing.
    fn ask(&self, dispatcher: &mut Dispatcher) -> Option<Vec<u8>> {
        let mut output = vec![0; Kind::Deflate.output_bound(self.parts().1.len())?];
        // A batch of one: unlike a single request, it may go to an engine that answers later.
        let mut items = [Item::new(self.request(&mut output))];
        dispatcher.run_all(&mut items);
        let [item] = items;
        self.right(item.result, output)
    }

    /// What an engine made, if it is right.
    fn right(&self, result: Result<usize, Error>, mut output: Vec<u8>) -> Option<Vec<u8>> {
        let (dictionary, content) = self.parts();
        let len = result.ok().filter(|len| *len <= output.len())?;
        output.truncate(len);
        output.shrink_to_fit();
        gives_back(dictionary, &output, content, self.last).then_some(output)
    }

    /// Has a CPU engine do it.
    fn inside(self, dispatcher: &mut Dispatcher) {
        let (dictionary, content) = self.parts();
        let made = inside(dispatcher, self.level, dictionary, content, self.last);
        self.answer.give(made, content);
    }
}

#[derive(Debug)]
struct Made {
    output: Vec<u8>,
    checksum: u32,
    length: u64,
}

/// A chunk in work; `None` in it if no engine could do it.
#[derive(Debug, Default)]
struct Chunk {
    made: OnceLock<Option<Made>>,
    cancelled: AtomicBool,
}

/// A chunk's answer, given whatever happens to its work.
struct Answer(Arc<Chunk>);

impl Answer {
    fn give(&self, made: Result<Vec<u8>, Error>, content: &[u8]) {
        let made =
            made.map(|output| Made { output, checksum: crc32(0, content), length: content.len() as u64 });
        let _ = self.0.made.set(made.ok());
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let _ = self.0.made.set(None);
    }
}

/// One response's content in chunks. Dropping it cancels what has not begun.
#[derive(Debug)]
pub(crate) struct Spread {
    crew: Arc<Crew>,
    level: u8,
    /// Whether chunks go to a device.
    offloaded: bool,
    /// What is to be written before the first output.
    before: &'static [u8],
    chunk: usize,
    /// Chunks that may be in work or wait for room.
    most: usize,
    /// The dictionary, and behind it content that is no chunk yet.
    gathered: Vec<u8>,
    dictionary: usize,
    chunks: VecDeque<Arc<Chunk>>,
    /// What of the first chunk's output was written.
    at: usize,
    /// The last chunk was submitted.
    ended: bool,
    pub(crate) checksum: u32,
    pub(crate) length: u64,
}

impl Spread {
    /// Goes on with a stream that ends on a byte boundary: its content so far has this checksum and length. Chunks of
    /// `chunk` bytes, at most `most` bytes of them at once.
    pub(crate) fn new(
        crew: Arc<Crew>,
        level: u8,
        chunk: usize,
        most: usize,
        checksum: u32,
        length: u64,
    ) -> Spread {
        let chunk = chunk.clamp(4096, 16 << 20);
        let (gathered, chunks) = (Vec::new(), VecDeque::new());
        let most = (most / chunk).max(2);
        Spread {
            crew,
            level,
            offloaded: false,
            before: &[],
            chunk,
            most,
            gathered,
            dictionary: 0,
            chunks,
            at: 0,
            ended: false,
            checksum,
            length,
        }
    }

    /// The same for a stream that has not begun and goes to a device. Its first output has something before it.
    pub(crate) fn offloaded(
        crew: Arc<Crew>,
        level: u8,
        chunk: usize,
        most: usize,
        before: &'static [u8],
    ) -> Spread {
        let mut spread = Spread::new(crew, level, chunk, most, 0, 0);
        (spread.offloaded, spread.before) = (true, before);
        spread
    }

    /// As a stream's: takes content, and writes what is done and due. If it is not done though there is room, the
    /// descriptor will wake.
    pub(crate) fn update(&mut self, input: &[u8], output: &mut [u8], then: Then) -> Result<Moved, Error> {
        if self.offloaded {
            self.crew.take_in();
        }
        let mut written = self.write(output)?;
        let mut rest = input;
        while !rest.is_empty() {
            let full = self.gathered.len() - self.dictionary == self.chunk;
            if full && self.chunks.len() >= self.most {
                break;
            }
            if full {
                self.submit(false);
            }
            let room = self.chunk - (self.gathered.len() - self.dictionary);
            let (head, tail) = rest.split_at(room.min(rest.len()));
            self.gathered.extend_from_slice(head);
            rest = tail;
        }
        if rest.is_empty() && !self.ended {
            match then {
                Then::End => self.submit(true),
                Then::Flush if self.gathered.len() > self.dictionary => self.submit(false),
                _ => {}
            }
        }
        written += self.write(&mut output[written..])?;
        let out = then == Then::More || self.chunks.is_empty();
        Ok(Moved { read: input.len() - rest.len(), written, done: rest.is_empty() && out })
    }

    fn submit(&mut self, last: bool) {
        let chunk = Arc::new(Chunk::default());
        let (dictionary, device) = (self.dictionary, self.crew.device);
        let keep = DICTIONARY_MOST.min(self.gathered.len());
        let mut next = Vec::with_capacity(if last { 0 } else { DICTIONARY_MOST + self.chunk });
        if !last {
            next.extend_from_slice(&self.gathered[self.gathered.len() - keep..]);
        }
        self.dictionary = next.len();
        let whole = std::mem::replace(&mut self.gathered, next);
        let piece = Piece { answer: Answer(chunk.clone()), level: self.level, whole, dictionary, last };
        // A loop that is kept busy by a slow disk is never woken.
        self.crew.take_in();
        match self.offloaded {
            true => self.crew.send(piece),
            false => _ = self.crew.pool.submit(0, move |dispatcher| piece.make(dispatcher, device)),
        }
        self.chunks.push_back(chunk);
        self.ended = last;
    }

    /// Writes what is done, in order.
    fn write(&mut self, output: &mut [u8]) -> Result<usize, Error> {
        let mut written = 0;
        while let Some(chunk) = self.chunks.front() {
            let Some(answer) = chunk.made.get() else { break };
            let made = answer.as_ref().ok_or(Error::Device(Fault::Reported))?;
            let (head, tail) = self.before.split_at(self.before.len().min(output.len() - written));
            output[written..written + head.len()].copy_from_slice(head);
            (self.before, written) = (tail, written + head.len());
            if !tail.is_empty() {
                break;
            }
            let rest = &made.output[self.at..];
            let len = rest.len().min(output.len() - written);
            output[written..written + len].copy_from_slice(&rest[..len]);
            (written, self.at) = (written + len, self.at + len);
            if len < rest.len() {
                break;
            }
            self.checksum = crc32_combine(self.checksum, made.checksum, made.length);
            self.length += made.length;
            self.at = 0;
            self.chunks.pop_front();
        }
        Ok(written)
    }
}

impl Drop for Spread {
    fn drop(&mut self) {
        self.chunks.iter().for_each(|chunk| chunk.cancelled.store(true, Relaxed));
    }
}

thread_local! {
    /// This thread's compressor, of a level: making one anew means some hundred page faults.
    static STREAM: RefCell<Option<(u8, Box<dyn CompressStream>)>> = const { RefCell::new(None) };
}

/// By a CPU engine inside the call, which is counted as a stream of its own.
fn inside(
    dispatcher: &mut Dispatcher,
    level: u8,
    dictionary: &[u8],
    content: &[u8],
    last: bool,
) -> Result<Vec<u8>, Error> {
    let kept = STREAM.take().filter(|(of, _)| *of == level);
    let mut stream = match kept {
        Some((_, stream)) => stream,
        None => dispatcher.open_compress_stream(Kind::Deflate, level)?,
    };
    stream.start(dictionary)?;
    let mut output = vec![0; Kind::Deflate.output_bound(content.len()).unwrap_or_default()];
    let moved = stream.update(content, &mut output, if last { Then::End } else { Then::Flush })?;
    if !moved.done {
        return Err(Error::Device(Fault::WrongResult));
    }
    dispatcher.streamed(Kind::Deflate, 1, content.len() as u64);
    STREAM.set(Some((level, stream)));
    output.truncate(moved.written);
    output.shrink_to_fit();
    Ok(output)
}

/// Whether a decoder gets the content, and nothing else, and is ready for another block behind it if that is not the last.
fn gives_back(dictionary: &[u8], output: &[u8], content: &[u8], last: bool) -> bool {
    /// A block that is the last one, and empty.
    const END: [u8; 2] = [3, 0];
    let mut inflate = Inflate::new(false, 15);
    let mut found = vec![0; content.len() + 1];
    if !dictionary.is_empty() && inflate.set_dictionary(dictionary).is_err() {
        return false;
    }
    let Ok(mut status) = inflate.decompress(output, &mut found, InflateFlush::NoFlush) else { return false };
    let (read, written) = (inflate.total_in(), inflate.total_out() as usize);
    if !last {
        let more = inflate.decompress(&END, &mut found[written..], InflateFlush::NoFlush);
        let Ok(then) = more else { return false };
        status = if status == Status::StreamEnd { Status::Ok } else { then };
    }
    let whole = read == output.len() as u64 && inflate.total_out() as usize == content.len();
    status == Status::StreamEnd && whole && found.starts_with(content)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::Instant;

    use wattlock::core::{Nanos, Shape};
    use wattlock::policy::{Ask, Choice, EngineId, Policy, Weather};
    use wattlock::{Builder, Clock};
    use wattlock_emul::{Emulated, Model, Pace};

    use super::*;

    fn runtime() -> Runtime {
        Runtime::builder().telemetry(false).build().unwrap()
    }

    fn content(len: usize) -> Vec<u8> {
        (0..len)
            .flat_map(|n| format!("{} lines of {} words\n", n % 977, n * n % 1013).into_bytes())
            .take(len)
            .collect()
    }

    /// What comes out, whatever the room and the pieces; content, pieces, room, a flush behind the n-th piece.
    fn through(
        crew: &Arc<Crew>,
        content: &[u8],
        piece: usize,
        room: usize,
        flush: usize,
    ) -> (Vec<u8>, Spread) {
        let mut spread = Spread::new(crew.clone(), 6, 4096, 16384, 0, 0);
        let (mut all, mut output) = (Vec::new(), vec![0; room]);
        let pieces: Vec<&[u8]> = content.chunks(piece).chain([&[][..]]).collect();
        for (at, piece) in pieces.iter().enumerate() {
            let then = match at {
                _ if at + 1 == pieces.len() => Then::End,
                _ if at == flush => Then::Flush,
                _ => Then::More,
            };
            let mut rest = *piece;
            loop {
                let moved = spread.update(rest, &mut output, then).unwrap();
                all.extend_from_slice(&output[..moved.written]);
                rest = &rest[moved.read..];
                if moved.done {
                    break;
                }
                if moved.written < room {
                    wait(crew);
                }
            }
            if at == flush {
                assert!(spread.chunks.is_empty(), "a flush is done when all before it is out");
            }
        }
        (all, spread)
    }

    fn wait(crew: &Crew) {
        let mut poll = libc::pollfd { fd: crew.descriptor(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor of ours.
        assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 10_000) }, 1, "the loop is woken");
        crew.woken();
    }

    /// A chunk's answer is there a moment before its unit of work is over.
    fn all_is_over(crew: &Crew) {
        crew.take_in();
        while crew.pool.outstanding() > 0 {
            wait(crew);
        }
    }

    #[test]
    fn chunks_are_one_stream_whatever_the_pieces_and_the_room() {
        let crew = Arc::new(Crew::new(&runtime(), 3, 2).unwrap());
        for (len, piece, room, flush) in [
            (0, 1, 40, 9),
            (1, 1, 40, 0),
            (4096, 4096, 4096, 9),
            (4097, 100, 64, 3),
            (300_000, 7000, 900, 20),
            (65536, 65536, 40, 0),
        ] {
            let content = content(len);
            let (out, spread) = through(&crew, &content, piece, room, flush);
            assert!(gives_back(&[], &out, &content, true), "{len} bytes by {piece}");
            assert_eq!((spread.checksum, spread.length), (crc32(0, &content), len as u64));
        }
        all_is_over(&crew);
    }

    /// A card that works in virtual time, so that nothing is answered while it stands still.
    struct Carded {
        runtime: Runtime,
        crew: Arc<Crew>,
        time: Arc<AtomicU64>,
        content: Vec<u8>,
    }

    impl Carded {
        fn new(window: u32, policy: impl FnOnce(Builder) -> Builder) -> Carded {
            let card = format!(
                "name card\nwindow {window} requests 16777216 bytes\npool all 64 servers\ntable deflate 0:1000000\n"
            );
            let compute = Arc::new(wattlock_cpu::instruction::Instruction::new());
            let card = Emulated::new(Model::parse(&card).unwrap(), compute, Pace::Stepped).unwrap();
            let mut engines = wattlock::own_engines();
            engines.push(Arc::new(card));
            let time = Arc::new(AtomicU64::new(1));
            let hands = time.clone();
            let builder = Runtime::builder().engines(engines).telemetry(false);
            let clock = Clock::given(move || hands.load(Relaxed));
            let runtime = policy(builder.clock(clock)).build().unwrap();
            let crew = Arc::new(Crew::new(&runtime, 1, 1).unwrap());
            Carded { runtime, crew, time, content: content(4 * 4096) }
        }

        fn published(window: u32) -> Carded {
            Carded::new(window, |builder| builder.policy("qweb", Default::default()))
        }

        fn on_card(&self) -> u64 {
            let cells = self.runtime.snapshot().cells;
            cells.iter().filter(|cell| cell.engine == "emulated").map(|cell| cell.requests).sum()
        }

        fn flying(&self) -> u64 {
            let engines = self.runtime.snapshot().engines;
            engines.iter().filter(|one| one.engine == "emulated").map(|one| one.in_flight).sum()
        }

        /// Four chunks, none of which anybody has looked at.
        fn begin(&self) -> Spread {
            let mut spread = Spread::offloaded(self.crew.clone(), 1, 4096, 16384, b"head");
            let moved = spread.update(&self.content, &mut [], Then::End).unwrap();
            assert_eq!((moved.read, moved.done), (self.content.len(), false));
            spread
        }

        fn end(&self, mut spread: Spread) {
            let (mut output, mut len) = (vec![0; 1 << 16], 0);
            loop {
                self.time.fetch_add(1_000_000, Relaxed);
                let moved = spread.update(&[], &mut output[len..], Then::End).unwrap();
                len += moved.written;
                if moved.done {
                    break;
                }
                std::thread::yield_now();
            }
            let stream = output[..len].strip_prefix(b"head").unwrap();
            assert!(gives_back(&[], stream, &self.content, true));
            let whole = (crc32(0, &self.content), self.content.len() as u64);
            assert_eq!((spread.checksum, spread.length), whole);
        }
    }

    #[test]
    fn all_chunks_are_on_a_device_before_any_is_awaited() {
        let with = Carded::published(64);
        let goes = |bytes| {
            let shape = Shape { kind: Kind::Deflate, bytes, class: LatencyClass::Bulk, messages: 1 };
            with.runtime.local(|dispatcher| dispatcher.goes_to_device(&shape, 1, 0))
        };
        assert!(goes(256) && !goes(255));
        // Until the card has given each thread its known answers, the CPU helps out.
        for _ in 0..1000 {
            let before = with.on_card();
            let spread = with.begin();
            let made = || spread.chunks.iter().filter(|one| one.made.get().is_some()).count();
            let begun = Instant::now();
            while made() < 4 && (made() > 0 || with.flying() != 4) && begun.elapsed().as_secs() < 1 {
                with.crew.take_in();
                std::thread::yield_now();
            }
            let at_once = made() == 0 && with.flying() == 4;
            with.end(spread);
            if at_once && with.on_card() == before + 4 {
                return;
            }
        }
        panic!("never all at once");
    }

    #[test]
    fn chunks_that_find_a_device_full_wait_for_it() {
        let with = Carded::published(14);
        let all_by_card = |responses: u64| {
            let before = with.on_card();
            let begun: Vec<_> = (0..responses).map(|_| with.begin()).collect();
            begun.into_iter().for_each(|spread| with.end(spread));
            with.on_card() == before + 4 * responses
        };
        // Until it has given each thread its known answers.
        assert!((0..1000).any(|_| all_by_card(10)));
        let engines = with.runtime.snapshot().engines;
        let full = |one: &(String, u64)| one.0 == "window-full" && one.1 > 0;
        assert!(!engines.iter().any(|one| one.fallbacks.iter().any(full)), "{engines:?}");
    }

    /// What may wait goes to the card; one question ends in a panic, when a test says so.
    struct Panics(Arc<AtomicBool>);

    impl Policy for Panics {
        fn name(&self) -> &'static str {
            "panics"
        }

        fn choose(&mut self, ask: &Ask, _: &Weather, _: Nanos) -> Choice {
            assert!(!ask.may_wait || !self.0.swap(false, Relaxed), "a defect");
            let engine = if ask.may_wait { wattlock::own_engines().len() } else { 0 };
            Choice::now(EngineId(engine as u8))
        }
    }

    #[test]
    fn what_a_thread_had_that_panicked_the_cpu_does() {
        let panics = Arc::new(AtomicBool::new(false));
        let flag = panics.clone();
        let with =
            Carded::new(64, |builder| builder.own_policy("panics", move |_| Box::new(Panics(flag.clone()))));
        for _ in 0..3 {
            panics.store(true, Relaxed);
            with.end(with.begin());
            assert!(!panics.load(Relaxed));
            with.end(with.begin());
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_child_waits_for_no_thread_of_its_parents() {
        let with = Carded::published(64);
        // What a process makes once: another test may be in the midst of it when this one forks.
        with.runtime.local(|dispatcher| dispatcher.open_compress_stream(Kind::Deflate, 1)).unwrap();
        let mut feed = lock(&with.crew.feeder.feed);
        feed.fed = true;
        // Locked, too, as by a thread that does not come along.
        let done = crate::seat::tests::in_child(|| {
            with.end(with.begin());
            vec![1]
        });
        assert_eq!(done, [1]);
        feed.fed = false;
    }

    #[test]
    fn a_loop_that_is_never_woken_loses_nothing() {
        let crew = Arc::new(Crew::new(&runtime(), 2, 2).unwrap());
        let mut spread = Spread::new(crew.clone(), 1, 4096, 16384, 0, 0);
        let (piece, mut output, mut all) = (content(1 << 20), vec![0; 1 << 16], Vec::new());
        for at in 0..21 {
            let (mut rest, then) = if at < 20 { (&piece[..], Then::More) } else { (&[][..], Then::End) };
            loop {
                let moved = spread.update(rest, &mut output, then).unwrap();
                all.extend_from_slice(&output[..moved.written]);
                rest = &rest[moved.read..];
                if moved.done {
                    break;
                }
                std::thread::yield_now();
            }
        }
        assert!(gives_back(&[], &all, &piece.repeat(20), true));
        assert_eq!(spread.length, 20 << 20);
        all_is_over(&crew);
    }

    #[test]
    fn a_response_that_goes_away_leaves_nothing() {
        let crew = Arc::new(Crew::new(&runtime(), 1, 2).unwrap());
        for _ in 0..20 {
            let mut spread = Spread::new(crew.clone(), 9, 65536, 1 << 20, 0, 0);
            spread.update(&content(1 << 20), &mut [0; 64], Then::End).unwrap();
        }
        all_is_over(&crew);
        let content = content(100_000);
        assert!(gives_back(&[], &through(&crew, &content, 9000, 4096, 99).0, &content, true));
    }

    #[test]
    fn room_is_for_idle_cores_only() {
        let crew = Arc::new(Crew::new(&runtime(), 4, 2).unwrap());
        assert!(crew.has_room(1) && !crew.has_room(0));
        let (end, ended) = std::sync::mpsc::channel::<()>();
        crew.pool.submit(0, move |_| _ = ended.recv());
        assert!(crew.has_room(2) && !crew.has_room(1));
        drop(end);
        wait(&crew);
        assert!(crew.has_room(1), "a chunk that is done keeps no core");
    }

    #[test]
    fn a_process_bound_to_one_core_has_no_other_cores() {
        assert!(Crew::new(&runtime(), 4, 1).is_none());
        assert!(Crew::new(&runtime(), 0, 4).is_none());
    }

    #[test]
    fn what_does_not_give_the_content_back_is_found() {
        let runtime = runtime();
        let (before, content) = (content(40_000), content(9_000));
        let dictionary = &before[before.len() - DICTIONARY_MOST..];
        for last in [false, true] {
            let good = runtime.local(|dispatcher| inside(dispatcher, 6, dictionary, &content, last)).unwrap();
            assert!(gives_back(dictionary, &good, &content, last));
            assert!(!gives_back(dictionary, &good, &content, !last));
            assert!(!gives_back(dictionary, &good[..good.len() - 1], &content, last));
            assert!(!gives_back(dictionary, &good, &content[1..], last));
            assert!(!gives_back(dictionary, &[&good[..], &[0]].concat(), &content, last));
            let chunk = Arc::new(Chunk::default());
            let (answer, whole) = (Answer(chunk.clone()), [dictionary, &content].concat());
            let piece = Piece { answer, level: 6, whole, dictionary: dictionary.len(), last };
            runtime.local(|dispatcher| piece.make(dispatcher, true));
            let made = chunk.made.get().unwrap().as_ref().unwrap();
            assert!(gives_back(dictionary, &made.output, &content, last));
        }
    }
}
