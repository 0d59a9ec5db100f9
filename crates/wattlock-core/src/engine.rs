//! What an engine is, and what a queue pair of one is.

use std::fmt;

use crate::compress::CompressStream;
use crate::error::Error;
use crate::feed::{self, Feed};
use crate::key::Key;
use crate::kind::{Kind, KindSet};
use crate::request::{Item, OwnedRequest, Request};
use crate::stream::Stream;

/// Nanoseconds on a clock that the runtime owns; only differences mean anything.
pub type Nanos = u64;

/// What sort of machine an engine is. Published policies speak of these, never of products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum EngineClass {
    /// Portable code without special instructions.
    Software,
    /// The CPU's cryptographic instructions, one request at a time.
    Instruction,
    /// Many requests side by side in SIMD.
    Lanes,
    /// An accelerator behind request and response rings.
    Accelerator,
    /// A GPU.
    Gpu,
}

impl EngineClass {
    /// Stable name.
    pub const fn name(self) -> &'static str {
        match self {
            EngineClass::Software => "software",
            EngineClass::Instruction => "instruction",
            EngineClass::Lanes => "lanes",
            EngineClass::Accelerator => "accelerator",
            EngineClass::Gpu => "gpu",
        }
    }

    /// Whether the engine's work is the CPU's own: it cannot hang or disappear while the program runs.
    pub const fn is_cpu(self) -> bool {
        matches!(self, EngineClass::Software | EngineClass::Instruction | EngineClass::Lanes)
    }
}

/// What an engine says of itself. Fixed for the engine's life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Stable name, unique in a registry: `software`, `instruction`, `emulated`.
    pub name: &'static str,
    /// What sort of machine it is.
    pub class: EngineClass,
    /// Kinds it does inside the call ([`Engine::execute`]).
    pub inline: KindSet,
    /// Kinds it does through an [`Instance`].
    pub queued: KindSet,
    /// What was found and what it rests on, for people: CPU features, library, device, firmware.
    pub detail: String,
}

impl Description {
    /// Every kind the engine does, in whichever way.
    pub fn kinds(&self) -> KindSet {
        self.inline.union(self.queued)
    }
}

/// What a GPU says of its parts: the inputs of published formulas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuAttributes {
    /// Core clocks that it can be set to, in MHz, lowest first; of a GPU that names only its highest, that one. Not
    /// empty.
    pub clocks_mhz: Vec<u32>,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Threads of a warp.
    pub warp: u32,
}

/// A kind of machine and what it can do. Shared by all threads.
pub trait Engine: Send + Sync {
    /// What it is.
    fn description(&self) -> &Description;

    /// Does a validated request, which is no run, on the caller's thread and buffers, and returns the output's length. Allocates
    /// nothing except when it expands a key for the first time or compresses. Never blocks.
    ///
    /// # Errors
    /// [`Error::Authentication`] with the output wiped; [`Error::Invalid`]; [`Error::Unsupported`] for a kind that is
    /// not in [`Description::inline`], with everything untouched so that another engine can do the request. After
    /// [`Error::Device`] an output buffer holds nothing of use, and with [`crate::Data::InPlace`] the input is gone:
    /// such a request cannot be repeated.
    fn execute(&self, request: &mut Request<'_>) -> Result<usize, Error> {
        let _ = request;
        Err(Error::Unsupported)
    }

    /// How many requests of a kind a device works on at a time, as far as it knows: more of them wait inside it.
    fn at_once(&self, kind: Kind) -> Option<u32> {
        let _ = kind;
        None
    }

    /// How many requests of a kind this engine does together for about the cost of one: the lanes of a pass, or the
    /// requests behind one doorbell. 1 where doing several together gains nothing.
    fn width(&self, kind: Kind) -> u16 {
        let _ = kind;
        1
    }

    /// Whether its instances take runs of a kind ([`Request::run`]) whole if no message is longer than so many bytes, its
    /// associated data included. Others are given each message by itself.
    fn takes_runs(&self, kind: Kind, longest: usize) -> bool {
        let _ = (kind, longest);
        false
    }

    /// Does validated requests of one kind together, on the caller's thread and buffers, and writes every
    /// [`Item::result`]. Any number of them; keys and lengths may differ. A request that is wrong fails alone. Promises
    /// what [`Engine::execute`] promises of each. By default one after the other.
    fn execute_all(&self, items: &mut [Item<'_>]) {
        items.iter_mut().for_each(|item| item.result = self.execute(&mut item.request));
    }

    /// Whether requests of these two kinds, none of which waits for another, take less in one call than in two.
    fn joins(&self, first: Kind, second: Kind) -> bool {
        let _ = (first, second);
        false
    }

    /// Does validated requests of two kinds that [`Engine::joins`], as [`Engine::execute_all`] does those of one.
    fn execute_both(&self, first: &mut [Item<'_>], second: &mut [Item<'_>]) {
        self.execute_all(first);
        self.execute_all(second);
    }

    /// Hashes the messages of `feed`, several side by side where the engine has lanes for `kind`, on the caller's thread.
    /// `room` is the caller's buffer for their pieces, at least [`Engine::width`] times 64 KiB. By default one message after
    /// the other, by [`Engine::stream`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a kind that is no hash or that the engine does not do in pieces; the engine's own.
    /// Messages that were begun and not done are then lost.
    fn hash_fed(&self, kind: Kind, room: &mut [u8], feed: &mut dyn Feed) -> Result<(), Error> {
        feed::one_by_one(&mut *self.stream(kind, Key::none())?, room, feed)
    }

    /// A cipher for messages of `kind` under `key` that come in pieces, on the caller's thread and buffers. Expands the
    /// key; the messages themselves then allocate nothing.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a kind whose messages the engine takes only whole; [`Error::Invalid`] if the key is
    /// not one of the kind's.
    fn stream(&self, kind: Kind, key: &Key) -> Result<Box<dyn Stream>, Error> {
        let _ = (kind, key);
        Err(Error::Unsupported)
    }

    /// A compressor of `kind` at a level for content that comes in pieces, on the caller's thread and buffers. Makes its
    /// state, up to some MiB; pieces then allocate nothing, except that zstd grows its state with the first ones.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a kind that the engine does not compress in pieces; [`Error::Invalid`] for a level that
    /// the kind does not have.
    fn compress_stream(&self, kind: Kind, level: u8) -> Result<Box<dyn CompressStream>, Error> {
        let _ = (kind, level);
        Err(Error::Unsupported)
    }

    /// How much may be in flight in one instance, known before one is opened; nothing for an engine without queues.
    fn window(&self) -> Window {
        Window { requests: 0, bytes: 0 }
    }

    /// What its parts are, if it is a GPU that says so.
    fn gpu(&self) -> Option<GpuAttributes> {
        None
    }

    /// Opens a queue pair for the calling thread.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an engine without queues; [`Error::Device`] if the machine is not there.
    fn open(&self, now: Nanos) -> Result<Box<dyn Instance>, Error> {
        let _ = now;
        Err(Error::Unsupported)
    }

    /// Checks another engine's result for a request, independently: recomputes it where the kind is deterministic,
    /// verifies the signature, recomputes the public key, or inflates. `len` is the claimed output length.
    ///
    /// # Errors
    /// [`Error::Device`] with [`crate::Fault::WrongResult`] if the result is wrong; [`Error::Unsupported`] if this
    /// engine cannot tell.
    fn check(&self, request: &OwnedRequest, len: usize) -> Result<(), Error> {
        let _ = (request, len);
        Err(Error::Unsupported)
    }
}

/// Names one request in flight in one instance. Chosen by the runtime; never used twice in an instance's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// How much may be in flight at once in one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Requests, held ones and hostages included.
    pub requests: u32,
    /// Input bytes, likewise.
    pub bytes: u64,
}

/// What a request cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// From submission to completion, in nanoseconds, time held included; 0 if it was not measured.
    pub latency_ns: u64,
    /// Of that, the time it was held for batch-mates.
    pub held_ns: u64,
    /// Requests that shared the doorbell with it, itself included.
    pub batch: u16,
    /// Joules times 1e9, where a meter or a model said so.
    pub energy_nj: Option<u64>,
}

/// A request's outcome. The request comes back with it, buffers and all.
#[derive(Debug)]
pub struct Completion {
    /// Which request.
    pub token: Token,
    /// The request, its output filled if `result` is `Ok`.
    pub request: OwnedRequest,
    /// Output length in bytes, or why there is none.
    pub result: Result<usize, Error>,
    /// What it cost.
    pub cost: Cost,
}

/// A request that an instance did not take, given back untouched.
pub struct Refused {
    /// Why.
    pub error: Error,
    /// The request.
    pub request: OwnedRequest,
}

impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("error", &self.error).finish_non_exhaustive()
    }
}

/// One opened queue pair of an engine. One thread at a time calls it, not always the same, and no call's `now` is before
/// the last one's. No call blocks.
///
/// Every accepted request leaves exactly once: by a completion from [`Instance::poll`], or by
/// [`Instance::withdraw`].
pub trait Instance: Send {
    /// How much may be in flight.
    fn window(&self) -> Window;

    /// Requests that count against the window now: held, in flight, finished but not polled, and hostages.
    fn in_flight(&self) -> u32;

    /// Requests accepted but not yet handed to the machine.
    fn held(&self) -> u32;

    /// Accepts a validated request; it may be held until [`Instance::flush`] or until the batch is full.
    ///
    /// # Errors
    /// The request comes back with [`Error::Full`], [`Error::Unsupported`], [`Error::Invalid`] or [`Error::Device`].
    fn submit(&mut self, token: Token, request: OwnedRequest, now: Nanos) -> Result<(), Refused>;

    /// Rings the doorbell for everything held.
    fn flush(&mut self, now: Nanos);

    /// Hands every finished request to `done`, and returns how many there were.
    fn poll(&mut self, now: Nanos, done: &mut dyn FnMut(Completion)) -> usize;

    /// Takes a request back, its input untouched. If the machine already has it, the machine's own copies stay
    /// hostage, and count against the window, until it answers or is stopped; that answer is then dropped.
    /// `None` if the token is not here (it completed, or never was).
    fn withdraw(&mut self, token: Token, now: Nanos) -> Option<OwnedRequest>;

    /// Stops the machine's use of this queue pair for good: hostages are freed, and what was in flight or held is
    /// given back by the next [`Instance::poll`] with [`Error::Device`]. Later submissions are refused.
    fn stop(&mut self, now: Nanos);
}
