//! How this crate reaches engines and threads, and nothing about any engine.
//!
//! Two small traits stand between this crate and the runtime: a [`CryptoSource`] is shared by all threads and lends
//! each of them a [`Crypto`]. Programs use [`wattlock::Runtime`]. Tests bring their own source, so that a defect here
//! and a defect in an engine cannot hide each other.

use wattlock_core::{
    Data, Error as CoreError, Feed, Item, Key, Kind, LatencyClass, Part, Place, Request, Stream, one_by_one,
};

use crate::error::Error;

/// One thread's access to the engines.
pub trait Crypto {
    /// Does one request inside the call, and returns the output's length.
    ///
    /// # Errors
    /// The engine's; see [`wattlock_core::Error`].
    fn run(&mut self, request: &mut Request<'_>) -> Result<usize, CoreError>;

    /// Does all of them, in whatever order and wherever, and returns when all are done, each with its result.
    fn run_all(&mut self, items: &mut [Item<'_>]);

    /// A stream for a message that comes in pieces, here a file's content to be hashed.
    ///
    /// # Errors
    /// [`CoreError::Unsupported`] if no engine has one of the kind.
    fn open_stream(&mut self, kind: Kind, key: &Key) -> Result<Box<dyn Stream>, CoreError> {
        let _ = (kind, key);
        Err(CoreError::Unsupported)
    }

    /// Counts what streams of a kind did.
    fn streamed(&mut self, kind: Kind, messages: u64, bytes: u64) {
        let _ = (kind, messages, bytes);
    }

    /// Hashes the messages of a feed, about so many of so many bytes together; `room` is for their pieces.
    ///
    /// # Errors
    /// [`CoreError::Unsupported`] if no engine hashes this kind in pieces; the engine's own.
    fn hash_fed(
        &mut self,
        kind: Kind,
        (count, bytes): (usize, usize),
        room: &mut [u8],
        feed: &mut dyn Feed,
    ) -> Result<(), CoreError> {
        one_by_one(&mut *self.open_stream(kind, Key::none())?, room, feed)?;
        self.streamed(kind, count as u64, bytes as u64);
        Ok(())
    }

    /// Does a validated run ([`Request::run`]), and returns its length.
    ///
    /// # Errors
    /// That of the first message that has one; [`CoreError::ForgedMessage`] for a wrong tag, and nothing of the run is
    /// then left.
    fn run_messages(&mut self, request: &mut Request<'_>) -> Result<usize, CoreError> {
        let mut items = request.items();
        self.run_all(&mut items);
        let results: Vec<_> = items.into_iter().map(|item| item.result).collect();
        request.conclude(&results)
    }

    /// As [`Crypto::run_all`], for requests that are a part of something larger. Says where they were done, if it was one
    /// place for all.
    fn run_all_of(&mut self, items: &mut [Item<'_>], part: Part) -> Option<Place> {
        let _ = part;
        self.run_all(items);
        None
    }

    /// As [`Crypto::run_messages`], for a run that is a part of something larger.
    ///
    /// # Errors
    /// As [`Crypto::run_messages`].
    fn run_messages_of(&mut self, request: &mut Request<'_>, part: Part) -> Result<usize, CoreError> {
        let _ = part;
        self.run_messages(request)
    }

    /// The same on the CPU only: its part of a job that is split.
    ///
    /// # Errors
    /// As [`Crypto::run_messages`].
    fn run_inside(&mut self, request: &mut Request<'_>) -> Result<usize, CoreError> {
        self.run_messages(request)
    }
}

/// Lends a [`Crypto`] to each thread, and threads to a pipeline.
pub trait CryptoSource: Sync {
    /// The runtime that may split one large job between the CPU and a device; `None`: none does.
    #[cfg(feature = "runtime")]
    fn runtime(&self) -> Option<&wattlock::Runtime> {
        None
    }

    /// Calls `work` with the calling thread's access.
    fn here<T>(&self, work: impl FnOnce(&mut dyn Crypto) -> T) -> T;

    /// Asks `next` for pieces until there are none, does them on up to `threads` threads, the calling one included,
    /// and gives the results to `sink`, one at a time and in the pieces' order. `next` is called on this thread. At
    /// most `pieces` are between `next` and the end of their `sink`, and one more is in the caller's hands. Returns
    /// when all are done. A panic in any of the three ends the work and reaches the caller.
    ///
    /// A source without threads of its own needs no other than this one, which does everything here.
    fn in_order<P: Send, R: Send>(
        &self,
        threads: usize,
        pieces: usize,
        mut next: impl FnMut() -> Option<P>,
        work: impl Fn(&mut dyn Crypto, P) -> R + Sync,
        mut sink: impl FnMut(R) + Send,
    ) {
        let _ = (threads, pieces);
        while let Some(piece) = next() {
            sink(self.here(|crypto| work(crypto, piece)));
        }
    }
}

#[cfg(feature = "runtime")]
impl Crypto for wattlock::Dispatcher {
    fn run(&mut self, request: &mut Request<'_>) -> Result<usize, CoreError> {
        wattlock::Dispatcher::run(self, request)
    }

    fn run_all(&mut self, items: &mut [Item<'_>]) {
        wattlock::Dispatcher::run_all(self, items);
    }

    fn open_stream(&mut self, kind: Kind, key: &Key) -> Result<Box<dyn Stream>, CoreError> {
        wattlock::Dispatcher::open_stream(self, kind, key)
    }

    fn streamed(&mut self, kind: Kind, messages: u64, bytes: u64) {
        wattlock::Dispatcher::streamed(self, kind, messages, bytes);
    }

    fn hash_fed(
        &mut self,
        kind: Kind,
        about: (usize, usize),
        room: &mut [u8],
        feed: &mut dyn Feed,
    ) -> Result<(), CoreError> {
        wattlock::Dispatcher::hash_fed(self, kind, about, room, feed)
    }

    fn run_messages(&mut self, request: &mut Request<'_>) -> Result<usize, CoreError> {
        wattlock::Dispatcher::run(self, request)
    }

    fn run_all_of(&mut self, items: &mut [Item<'_>], part: Part) -> Option<Place> {
        wattlock::Dispatcher::run_all_of(self, items, part)
    }

    fn run_messages_of(&mut self, request: &mut Request<'_>, part: Part) -> Result<usize, CoreError> {
        wattlock::Dispatcher::run_of(self, request, part)
    }

    fn run_inside(&mut self, request: &mut Request<'_>) -> Result<usize, CoreError> {
        wattlock::Dispatcher::run_inside(self, request)
    }
}

/// A thread's access, for requests that are a part of something larger.
pub struct Within<'a> {
    /// The access.
    pub crypto: &'a mut dyn Crypto,
    /// What its requests are a part of.
    pub part: Part,
}

impl Crypto for Within<'_> {
    fn run(&mut self, request: &mut Request<'_>) -> Result<usize, CoreError> {
        self.crypto.run(request)
    }

    fn run_all(&mut self, items: &mut [Item<'_>]) {
        self.crypto.run_all_of(items, self.part);
    }

    fn run_messages(&mut self, request: &mut Request<'_>) -> Result<usize, CoreError> {
        self.crypto.run_messages_of(request, self.part)
    }
}

#[cfg(feature = "runtime")]
impl CryptoSource for wattlock::Runtime {
    fn runtime(&self) -> Option<&wattlock::Runtime> {
        Some(self)
    }

    fn here<T>(&self, work: impl FnOnce(&mut dyn Crypto) -> T) -> T {
        self.local(|dispatcher| work(dispatcher))
    }

    fn in_order<P: Send, R: Send>(
        &self,
        threads: usize,
        pieces: usize,
        mut next: impl FnMut() -> Option<P>,
        work: impl Fn(&mut dyn Crypto, P) -> R + Sync,
        sink: impl FnMut(R) + Send,
    ) {
        use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
        use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
        use std::sync::{Mutex, PoisonError};
        use wattlock_core::sync::lock;

        // The caller helps, and so is one of the threads.
        let threads = threads.saturating_sub(1);
        let bounds =
            wattlock::Bounds { threads, units: pieces, bytes: usize::MAX, in_order: true, helping: true };
        // The sink, or the panic after which it is called no more. Results come one at a time: no thread waits for
        // this lock.
        let state = Mutex::new(Ok(sink));
        let broken = AtomicBool::new(false);
        let give = |done: wattlock::Done<R>| {
            let mut state = lock(&state);
            let Ok(sink) = &mut *state else { return };
            let given = done.outcome.and_then(|result| catch_unwind(AssertUnwindSafe(|| sink(result))));
            if let Err(panic) = given {
                broken.store(true, Relaxed);
                *state = Err(panic);
            }
        };
        std::thread::scope(|scope| {
            let pool = wattlock::Pool::scoped(self, bounds, scope, give);
            let work = &work;
            while !broken.load(Relaxed)
                && let Some(piece) = next()
            {
                pool.submit(0, move |dispatcher| work(dispatcher, piece));
            }
            pool.wait();
        });
        if let Err(panic) = state.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(panic);
        }
    }
}

/// Derives, digests or authenticates `input` into all of `to`; `aad` is HKDF's info.
///
/// # Errors
/// [`Error::Engine`], also for an output of another length than `to`.
pub fn short(
    crypto: &mut dyn Crypto,
    kind: Kind,
    key: &Key,
    (nonce, aad): (&[u8], &[u8]),
    input: &[u8],
    to: &mut [u8],
) -> Result<(), Error> {
    let wanted = to.len();
    let data = Data::Apart { from: input, to };
    let mut request =
        Request { nonce, aad, class: LatencyClass::Interactive, ..Request::new(kind, key, data) };
    let len = crypto.run(&mut request)?;
    if len == wanted { Ok(()) } else { Err(Error::Engine(CoreError::Invalid("output length"))) }
}

/// Fills `to` from the kernel's generator.
///
/// # Errors
/// [`Error::Io`].
pub fn random(to: &mut [u8]) -> Result<(), Error> {
    let mut filled = 0;
    while filled < to.len() {
        match rustix::rand::getrandom(&mut to[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(len) => filled += len,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::io("reading random bytes", error.into())),
        }
    }
    Ok(())
}
