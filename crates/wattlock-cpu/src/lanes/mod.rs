//! Many requests side by side in SIMD: what the operations waiting in an event loop are worth on a CPU, with no card.
//!
//! A *lane* is one 64-bit slot of a vector register. A kernel does the same arithmetic in every lane, each with its own
//! key and its own input, so a pass costs the same with one request as with a full batch. This engine refuses to do
//! anything inside the call (one request alone is what `instruction` is for), to wait, or to start a thread: it holds
//! what it is given until it is flushed or a batch of one kind is full, and works then, on the caller's thread, in the
//! requests' own buffers.
//!
//! *Layout.* `vector` is what a kernel may ask of a machine; a kernel is generic over it and has a thin entry for
//! each instruction set, for which it demands that set's witness ([`Ifma512`]). Narrower siblings are further
//! implementations of `vector::Vector`. A kind is one row of `KERNELS`: which pass does it. Kinds with another
//! layout of batches (records through AES-CBC, HMAC, SHA) are further rows; holding, filling and flushing do not change.
//!
//! *Secrets.* Kernels read lanes back only through `vector::Vector::reveal`, so whatever leaves the constant-time
//! world is found by searching for one word; a vector type that panics when a secret is revealed runs the same kernels
//! in the tests.

#[cfg(feature = "dev")]
pub mod dev;
#[allow(unsafe_code)]
mod limit;
mod nist;
mod queue;
mod rsa;
mod sha2;
#[allow(unsafe_code)]
mod vector;
mod x25519;

use wattlock_core::{
    Description, Engine, EngineClass, Error, Instance, Kind, KindSet, Nanos, Request, Window,
};

use crate::detect::Ifma512;

pub use limit::multiplications_per_second;

/// Requests in one pass.
pub const WIDTH: usize = 8;

/// One request of a pass and what becomes of it.
pub struct Item<'a> {
    /// A validated request of the pass's kind.
    pub request: Request<'a>,
    /// Output length, or what was wrong with this very request. Kernels write every one.
    pub result: Result<usize, Error>,
}

/// Does 1 to [`WIDTH`] requests of one kind side by side. A request that is wrong fails alone.
type Pass = fn(Ifma512, &mut [Item<'_>]);

/// Which pass does which kind.
const KERNELS: &[(Kind, Pass)] = &[
    (Kind::Rsa2048Private, rsa::private_2048),
    (Kind::Rsa3072Private, rsa::private_3072),
    (Kind::Rsa4096Private, rsa::private_4096),
    (Kind::X25519Derive, x25519::derive),
    (Kind::X25519Generate, x25519::generate),
    (Kind::P256Derive, nist::p256_derive),
    (Kind::P384Derive, nist::p384_derive),
    (Kind::EcdsaP256Sign, nist::p256_sign),
    (Kind::EcdsaP384Sign, nist::p384_sign),
    (Kind::P256Generate, nist::p256_generate),
    (Kind::P384Generate, nist::p384_generate),
];

fn pass_of(kind: Kind) -> Option<Pass> {
    KERNELS.iter().find(|row| row.0 == kind).map(|row| row.1)
}

/// The engine. It has no state; one serves all threads.
#[derive(Debug, Clone)]
pub struct Lanes {
    isa: Ifma512,
    description: Description,
}

impl Lanes {
    /// The engine on a machine with these instructions.
    pub fn new(isa: Ifma512) -> Lanes {
        Lanes {
            isa,
            description: Description {
                name: "lanes",
                class: EngineClass::Lanes,
                inline: KindSet::EMPTY,
                queued: queue::Kernels::kinds(&Vector(isa)),
                width: WIDTH as u16,
                detail: "8 lanes of 64 bits, AVX-512 IFMA".into(),
            },
        }
    }

    /// Does a batch of one kind in one pass, at once: for callers that have their batch together, and for benchmarks of
    /// the bare kernel. Requests must have passed [`Request::validate`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a kind this engine does not do, an empty batch or more than [`WIDTH`] requests; what is
    /// wrong with one request is in its [`Item::result`].
    pub fn pass(&self, kind: Kind, items: &mut [Item<'_>]) -> Result<(), Error> {
        let pass = pass_of(kind).ok_or(Error::Unsupported)?;
        if !(1..=WIDTH).contains(&items.len()) || items.iter().any(|item| item.request.kind != kind) {
            return Err(Error::Unsupported);
        }
        pass(self.isa, items);
        Ok(())
    }
}

impl Engine for Lanes {
    fn description(&self) -> &Description {
        &self.description
    }

    fn window(&self) -> Window {
        queue::WINDOW
    }

    fn open(&self, _now: Nanos) -> Result<Box<dyn Instance>, Error> {
        Ok(queue::open(Vector(self.isa)))
    }
}

/// The kernels of this CPU, for a queue.
struct Vector(Ifma512);

impl queue::Kernels for Vector {
    fn kinds(&self) -> KindSet {
        KERNELS.iter().map(|row| row.0).collect()
    }

    fn pass(&mut self, kind: Kind, items: &mut [Item<'_>]) {
        if let Some(pass) = pass_of(kind) {
            pass(self.0, items);
        }
    }
}
