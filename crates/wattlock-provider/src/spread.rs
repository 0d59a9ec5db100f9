//! A large response's content on other cores: cut into chunks, compressed by the threads of a pool, joined in order.
//!
//! A chunk is compressed with the 32 KiB before it as dictionary, so that cutting costs nothing in length; its output ends
//! on a byte boundary, and the outputs one behind the other are one deflate stream with one last block. On a machine with a
//! device each chunk is a request, and the pool's dispatchers choose the engine. What a device says is decompressed and
//! compared, all of it: what has gone to a client cannot be taken back. Without one the CPU engine does it that makes
//! streams, as in the loop.
//!
//! A response that the policy gives to a device goes there from its first byte on. One thread of the pool at a time then
//! *feeds*: it submits every chunk, of all responses, as soon as it comes, and waits for none before the next.
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
    Options, OwnedRequest, Request, Shape, Then,
};
use wattlock::policy::{Ask, EngineId, Policy, Weather};
use wattlock::{Bounds, Dispatcher, Pool, Runtime};
use wattlock_core::sync::lock;
use zlib_rs::crc32::{crc32, crc32_combine};
use zlib_rs::{Inflate, InflateFlush, Status};

/// This process's threads.
pub(crate) struct Crew {
    pool: Pool<'static, ()>,
    threads: usize,
    /// What compresses here besides the CPU: its results are looked at.
    devices: Vec<EngineId>,
    /// Asked whether a response goes to one.
    policy: Mutex<Box<dyn Policy>>,
    feeder: Arc<Feeder>,
    wake: Arc<OwnedFd>,
}

/// Chunks on their way to a device. (Units of work hold this and not the pool, which ends when its owner does.)
struct Feeder {
    feed: Mutex<Feed>,
    /// A chunk has come.
    came: Condvar,
    wake: Arc<OwnedFd>,
}

#[derive(Default)]
struct Feed {
    /// Not yet submitted.
    chunks: VecDeque<Piece>,
    /// Whether a thread submits them.
    fed: bool,
}

/// How soon a thread that feeds looks again for answers.
const LOOK: Duration = Duration::from_micros(50);

impl Crew {
    /// So many threads, which start when something is submitted, where the process may use so many cores. `None` if they
    /// could only share the loop's core and there is no device, or if there is no descriptor for waking.
    pub(crate) fn new(runtime: &Runtime, threads: usize, cores: usize) -> Option<Crew> {
        let engines = runtime.machine().engines.iter();
        let devices = engines.filter(|one| !one.class.is_cpu() && one.can(Kind::Deflate));
        let devices: Vec<EngineId> = devices.map(|one| one.id).collect();
        if threads == 0 || (cores < 2 && devices.is_empty()) {
            return None;
        }
        // SAFETY: plain numbers; a descriptor that is returned has no other user.
        let wake = unsafe {
            let made = libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC);
            Arc::new((made >= 0).then(|| OwnedFd::from_raw_fd(made))?)
        };
        // A response's chunks are bounded by its `most`, and responses by their memory: the pool never refuses one.
        // The thread that feeds a device sleeps, mostly.
        let many = threads + usize::from(!devices.is_empty());
        let pool = Pool::new(runtime, Bounds { units: usize::MAX, ..Bounds::threads(many) });
        pool.wake(wake.as_fd()).ok()?;
        let policy = Mutex::new(runtime.fresh_policy());
        let feeder = Feeder { feed: Mutex::default(), came: Condvar::new(), wake: wake.clone() };
        Some(Crew { pool, threads, devices, policy, feeder: Arc::new(feeder), wake })
    }

    /// Whether the policy gives a response of so many bytes to a device.
    pub(crate) fn offloads(&self, bytes: usize) -> bool {
        if self.devices.is_empty() {
            return false;
        }
        // The loop itself waits for nothing else.
        let mut weather = Weather { submitters: 1, files: 1, active: 1, ..Weather::default() };
        weather.engines.iter_mut().for_each(|engine| engine.available = true);
        let shape = Shape { kind: Kind::Deflate, bytes, class: LatencyClass::Bulk, messages: 1 };
        let choice = lock(&self.policy).choose(&Ask::one(shape), &weather, 0);
        self.devices.contains(&choice.engine)
    }

    /// Whether another response would find an idle core, or a device. A response whose client takes nothing has no
    /// chunk in work and keeps no core from others.
    pub(crate) fn has_room(&self, idle_cores: usize) -> bool {
        let most = match self.devices.is_empty() {
            true => self.threads.min(idle_cores),
            false => 8 * self.threads,
        };
        self.forget_done();
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
        self.forget_done();
    }

    /// Has a chunk go to a device.
    fn send(&self, piece: Piece) {
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

    /// The pool keeps a result until it is taken; ours are empty, for chunks carry their answers.
    fn forget_done(&self) {
        while self.pool.take().is_some() {}
    }
}

impl Feeder {
    /// Submits chunks as they come until none is left and all are answered. Returns at once if another thread does.
    fn run(&self, dispatcher: &mut Dispatcher) {
        let Some(_feeding) = Feeding::begin(self) else { return };
        let mut sent: Vec<Option<Piece>> = Vec::new();
        while let Some(come) = self.next(sent.iter().any(Option::is_some)) {
            for piece in come {
                self.submit(dispatcher, piece, &mut sent);
            }
            let mut answers = Vec::new();
            dispatcher.poll(&mut |answer| answers.push(answer));
            for answer in answers {
                let place = sent.get_mut(answer.request.mark as usize);
                if let Some(piece) = place.and_then(Option::take) {
                    piece.answered(dispatcher, answer);
                    self.ring();
                }
            }
        }
    }

    /// The chunks that have come. If there are none it waits for a while, if others are `out`, or it is over.
    fn next(&self, out: bool) -> Option<VecDeque<Piece>> {
        let mut feed = lock(&self.feed);
        if feed.chunks.is_empty() {
            if !out {
                feed.fed = false;
                return None;
            }
            feed = self.came.wait_timeout(feed, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        Some(std::mem::take(&mut feed.chunks))
    }

    fn submit(&self, dispatcher: &mut Dispatcher, piece: Piece, sent: &mut Vec<Option<Piece>>) {
        if piece.answer.0.cancelled.load(Relaxed) {
            return;
        }
        let slot = sent.iter().position(Option::is_none).unwrap_or(sent.len());
        let submitted =
            piece.request().and_then(|mut request| dispatcher.submit_to_device(&request.view(), slot as u64));
        match submitted {
            Some(_) => {
                sent.resize_with(sent.len().max(slot + 1), || None);
                sent[slot] = Some(piece);
                return;
            }
            // Too short for a device, for example.
            None => piece.inside(dispatcher),
        }
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

/// That a thread feeds, also if it panics.
struct Feeding<'a>(&'a Feeder);

impl Feeding<'_> {
    fn begin(feeder: &Feeder) -> Option<Feeding<'_>> {
        let before = std::mem::replace(&mut lock(&feeder.feed).fed, true);
        (!before).then_some(Feeding(feeder))
    }
}

impl Drop for Feeding<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            lock(&self.0.feed).fed = false;
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

    /// `None` if it is too long to be one.
    fn request(&self) -> Option<OwnedRequest> {
        let (dictionary, content) = self.parts();
        let room = Kind::Deflate.output_bound(content.len())?;
        let key = Arc::new(Key::none_owned());
        let mut request = OwnedRequest::new(Kind::Deflate, key, content.to_vec(), room);
        request.aad = dictionary.to_vec();
        request.options = Options::compress(self.level, self.last);
        request.class = LatencyClass::Bulk;
        Some(request)
    }

    /// Takes an answer; one that is wrong the CPU makes anew.
    fn answered(self, dispatcher: &mut Dispatcher, mut answer: Completion) {
        match self.right(answer.result, std::mem::take(&mut answer.request.output)) {
            Some(output) => self.answer.give(Ok(output), self.parts().1),
            None => self.inside(dispatcher),
        }
    }

    /// Has the engine do it that the policy names, and waits for it.
    fn make(self, dispatcher: &mut Dispatcher, devices: bool) {
        if self.answer.0.cancelled.load(Relaxed) {
            return;
        }
        match if devices { self.ask(dispatcher) } else { None } {
            Some(output) => self.answer.give(Ok(output), self.parts().1),
            None => self.inside(dispatcher),
        }
    }

    /// By the engine that the policy names; `None` if that came to nothing.
    fn ask(&self, dispatcher: &mut Dispatcher) -> Option<Vec<u8>> {
        let (dictionary, content) = self.parts();
        let mut output = vec![0; Kind::Deflate.output_bound(content.len())?];
        let data = Data::Apart { from: content, to: &mut output };
        let request = Request::new(Kind::Deflate, Key::none(), data);
        let options = Options::compress(self.level, self.last);
        let request = Request { aad: dictionary, options, class: LatencyClass::Bulk, ..request };
        // A batch of one: unlike a single request, it may go to an engine that answers later.
        let mut items = [Item::new(request)];
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
        let (dictionary, devices) = (self.dictionary, !self.crew.devices.is_empty());
        let keep = DICTIONARY_MOST.min(self.gathered.len());
        let mut next = Vec::with_capacity(if last { 0 } else { DICTIONARY_MOST + self.chunk });
        if !last {
            next.extend_from_slice(&self.gathered[self.gathered.len() - keep..]);
        }
        self.dictionary = next.len();
        let whole = std::mem::replace(&mut self.gathered, next);
        let piece = Piece { answer: Answer(chunk.clone()), level: self.level, whole, dictionary, last };
        // A loop that is kept busy by a slow disk is never woken.
        self.crew.forget_done();
        match self.offloaded {
            true => self.crew.send(piece),
            false => _ = self.crew.pool.submit(0, move |dispatcher| piece.make(dispatcher, devices)),
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

    use wattlock::Clock;
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
        assert_eq!(crew.pool.outstanding(), 0);
    }

    /// A card that works in virtual time, so that nothing is answered while it stands still.
    #[test]
    fn all_chunks_are_on_a_device_before_any_is_awaited() {
        let card =
            "name card\nwindow 64 requests 16777216 bytes\npool all 64 servers\ntable deflate 0:1000000\n";
        let compute = Arc::new(wattlock_cpu::instruction::Instruction::new());
        let card = Emulated::new(Model::parse(card).unwrap(), compute, Pace::Stepped).unwrap();
        let mut engines = wattlock::own_engines();
        engines.push(Arc::new(card));
        let time = Arc::new(AtomicU64::new(1));
        let hands = time.clone();
        let runtime = Runtime::builder()
            .engines(engines)
            .policy("qweb", Default::default())
            .clock(Clock::given(move || hands.load(Relaxed)))
            .telemetry(false)
            .build()
            .unwrap();
        let crew = Arc::new(Crew::new(&runtime, 1, 1).unwrap());
        assert!(crew.offloads(256) && !crew.offloads(255));
        let on_card = || -> u64 {
            let cells = runtime.snapshot().cells;
            cells.iter().filter(|cell| cell.engine == "emulated").map(|cell| cell.requests).sum()
        };
        let flying = || -> u64 {
            let engines = runtime.snapshot().engines;
            engines.iter().filter(|one| one.engine == "emulated").map(|one| one.in_flight).sum()
        };
        let (content, mut output) = (content(4 * 4096), vec![0; 1 << 16]);
        // Until the card has given each thread its known answers, the CPU helps out.
        for _ in 0..1000 {
            let before = on_card();
            let mut spread = Spread::offloaded(crew.clone(), 1, 4096, 16384, b"head");
            let moved = spread.update(&content, &mut [], Then::End).unwrap();
            assert_eq!((moved.read, moved.done), (content.len(), false));
            let made = |spread: &Spread| spread.chunks.iter().filter(|one| one.made.get().is_some()).count();
            let begun = Instant::now();
            while made(&spread) < 4 && (made(&spread) > 0 || flying() != 4) && begun.elapsed().as_secs() < 1 {
                std::thread::yield_now();
            }
            let at_once = made(&spread) == 0 && flying() == 4;
            let mut len = 0;
            loop {
                time.fetch_add(1_000_000, Relaxed);
                let moved = spread.update(&[], &mut output[len..], Then::End).unwrap();
                len += moved.written;
                if moved.done {
                    break;
                }
                std::thread::yield_now();
            }
            let stream = output[..len].strip_prefix(b"head").unwrap();
            assert!(gives_back(&[], stream, &content, true));
            assert_eq!((spread.checksum, spread.length), (crc32(0, &content), content.len() as u64));
            if at_once && on_card() == before + 4 {
                return;
            }
        }
        panic!("never all at once");
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
        crew.woken();
        assert_eq!((spread.length, crew.pool.outstanding()), (20 << 20, 0));
    }

    #[test]
    fn a_response_that_goes_away_leaves_nothing() {
        let crew = Arc::new(Crew::new(&runtime(), 1, 2).unwrap());
        for _ in 0..20 {
            let mut spread = Spread::new(crew.clone(), 9, 65536, 1 << 20, 0, 0);
            spread.update(&content(1 << 20), &mut [0; 64], Then::End).unwrap();
        }
        while crew.pool.outstanding() > 0 {
            wait(&crew);
        }
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
