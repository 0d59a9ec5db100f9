//! The conformance suite: what every engine must pass, in one line of its tests:
//!
//! ```ignore
//! wattlock_core::dev::conform(&engine, &reference, &Harness::default());
//! ```
//!
//! Kinds in [`Description::inline`](crate::Description) are driven through [`Engine::execute`], or in batches of every
//! size through [`Engine::execute_all`] where the engine has a width for them, kinds in `queued` through [`Engine::open`] and the instance's calls; a kind in both is driven both ways. The suite is the contract
//! of `engine.rs` made executable. It knows no engine: whatever only one engine has, that engine's own tests show.
//!
//! It covers: known answers; Wycheproof; agreement with the reference on pseudo-random inputs at awkward lengths;
//! forgeries, bad keys, bad points and bad lengths; results that differ from run to run, by the reference's
//! [`Engine::check`]; the subject's own `check`; messages in pieces, where the engine has a
//! [`Stream`](crate::Stream) for the kind; and the queue's promises (exactly once, window, withdrawal, stop). The first
//! failure panics with kind, case and seed.
//!
//! Buffers: every inline request of the suite lies in buffers of the [`Arena`], which may end at an unmapped page; each
//! kind is also tried on misaligned ones, in place where it can be, and with outputs that have no byte to spare. Queued
//! requests own their memory, so nothing here decides where it ends or begins: a test that wants that guarded brings an
//! allocator that does (the runtime's `guarded_queues` test).

mod agree;
mod case;
mod make;
mod queue;
mod random;
mod refuse;
mod stream;
mod subject;
mod vary;
mod wycheproof;
mod wycheproof_kem;
mod wycheproof_rsa;

use std::ops::DerefMut;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::{Engine, Nanos};
use crate::kind::Kind;

pub use random::Random;

use case::{Case, Suite};
use subject::Way;

/// Where the suite's buffers come from. This crate forbids unsafe code, so a test that wants buffers that end at an
/// unmapped page brings them.
pub trait Arena {
    /// Exactly `len` bytes, with any content. Reading or writing beyond them should crash, if the arena can arrange it.
    fn buffer(&self, len: usize) -> Box<dyn DerefMut<Target = [u8]>>;
}

/// An arena without guards.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plain;

impl Arena for Plain {
    fn buffer(&self, len: usize) -> Box<dyn DerefMut<Target = [u8]>> {
        Box::new(vec![0x5a; len])
    }
}

/// What the suite needs from outside.
pub struct Harness<'a> {
    /// Where pseudo-random inputs start. Printed with every failure.
    pub seed: u64,
    /// The time, asked for with each queue call. A caller whose engine works in threads of its own may sleep in it
    /// for a moment; a caller whose engine is stepped advances its time in it.
    pub clock: &'a dyn Fn() -> Nanos,
    /// Where the buffers of inline requests come from.
    pub arena: &'a dyn Arena,
    /// Polls without a completion after which a request counts as lost.
    pub patience: u32,
    /// Longest input, in bytes.
    pub longest: usize,
}

impl Default for Harness<'_> {
    /// A fixed seed, no guards, inputs up to 1 MiB, and a clock of its own that advances 10 us each time it is read.
    fn default() -> Self {
        static TICKS: AtomicU64 = AtomicU64::new(0);
        Harness {
            seed: 0x7761_7474_6c6f_636b,
            clock: &|| TICKS.fetch_add(10_000, Ordering::Relaxed),
            arena: &Plain,
            patience: 2_000_000,
            longest: 1 << 20,
        }
    }
}

/// How much was tried; every bit of it passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Kinds.
    pub kinds: usize,
    /// Of these, kinds whose messages may also come in pieces.
    pub streams: usize,
    /// Requests.
    pub requests: usize,
}

/// Runs the suite on every kind that `engine` claims. `reference` is another engine, which must do inline every
/// deterministic kind that `engine` claims and check every other. For elliptic-curve kinds it must also generate keys,
/// for ECDSA and RSA hash, and an instance's window must have room for four requests.
///
/// # Panics
/// With kind, case and seed, at the first promise that `engine` breaks.
pub fn conform(engine: &dyn Engine, reference: &dyn Engine, harness: &Harness<'_>) -> Summary {
    let suite = Suite::new(engine, reference, harness);
    let kinds = engine.description().kinds();
    assert!(!kinds.is_empty(), "{} does nothing", engine.description().name);
    assert!(kinds.iter().all(|kind| engine.width(kind) > 0), "{} has no width", engine.description().name);
    let mut streams = 0;
    for kind in kinds.iter() {
        suite.run(kind, Case::known(kind));
        suite.run(kind, wycheproof::cases(&suite, kind));
        suite.run(kind, agree::cases(&suite, kind));
        suite.run(kind, refuse::cases(&suite, kind));
        suite.run(kind, vary::cases(&suite, kind));
        agree::buffers(&suite, kind);
        refuse::malformed(kind);
        vary::joined(&suite, kind);
        if stream::pieces(&suite, kind) {
            wycheproof::nonces(&suite, kind);
            streams += 1;
        }
    }
    wycheproof::signatures(&suite);
    for kind in Kind::ALL.iter().copied().filter(|kind| !kinds.contains(*kind)) {
        refuse::unclaimed(&suite, kind);
    }
    if !engine.description().queued.is_empty() {
        queue::promises(&suite);
    }
    suite.summary(kinds.iter().count(), streams)
}
