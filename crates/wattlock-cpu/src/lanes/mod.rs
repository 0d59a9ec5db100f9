//! Many requests side by side in SIMD: what the operations waiting in an event loop are worth on a CPU, with no card.
//!
//! A *lane* is one 64-bit slot of a vector register. A kernel does the same arithmetic in every lane, each with its own
//! key and its own input, so a pass costs the same with one request as with a full batch. Work happens
//! inside the call, on the caller's thread and buffers. This engine refuses to wait, to hold a request, or to start a
//! thread: a door gathers full batches.
//!
//! *Layout.* `vector` is what a kernel may ask of a machine; a kernel is generic over it and has a thin entry for
//! each instruction set, for which it demands that set's witness: [`Ifma512`], or [`Fma256`], whose eight lanes are two
//! registers. Siblings are further implementations of `vector::Vector`. A kind is one row of `KERNELS`: which pass does it.
//! Hashes, MACs and CBC encryption have batches of another layout, messages of any length, and instruction sets of their
//! own: `bulk`.
//!
//! *Secrets.* Kernels read lanes back only through `vector::Vector::reveal`, so whatever leaves the constant-time
//! world is found by searching for one word; a vector type that panics when a secret is revealed runs the same kernels
//! in the tests.

mod bulk;
#[cfg(feature = "dev")]
pub mod dev;
mod keccak;
mod kem;
#[allow(unsafe_code)]
mod limit;
mod nist;
mod rsa;
mod sha1;
mod sha2;
#[allow(unsafe_code)]
mod vector;
#[allow(unsafe_code)]
mod words;
mod x25519;

pub use wattlock_core::Item;
use wattlock_core::{
    Description, Engine, EngineClass, Error, Family, Feed, Group, Kind, KindSet, Request, one_by_one,
};

use crate::detect::{Cpu, Fma256, Ifma512};
use crate::instruction;

use bulk::Bulk;
pub use limit::multiplications_per_second;
use vector::shorts;

/// Requests in one pass.
pub const WIDTH: usize = 8;

/// The instructions that a batch is done with.
#[derive(Debug, Clone, Copy)]
pub enum Isa {
    /// Eight lanes in a register, AVX-512 IFMA.
    Ifma512(Ifma512),
    /// Eight lanes in two registers, AVX2 and FMA.
    Fma256(Fma256),
}

impl Isa {
    /// The best that this CPU has.
    pub fn best(cpu: &Cpu) -> Option<Isa> {
        Isa::all(cpu).next()
    }

    /// All that this CPU has, the best first.
    pub fn all(cpu: &Cpu) -> impl Iterator<Item = Isa> {
        [cpu.ifma512.map(Isa::Ifma512), cpu.fma256.map(Isa::Fma256)].into_iter().flatten()
    }

    /// Its multiplications, in words: see [`multiplications_per_second`].
    pub fn multiplications(self) -> &'static str {
        match self {
            Isa::Ifma512(_) => "512-bit multiply-adds of 52 bits",
            Isa::Fma256(_) => "256-bit fused multiply-adds of doubles",
        }
    }

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Ifma512(_) => "8 lanes of 64 bits, AVX-512 IFMA",
            Isa::Fma256(_) => "8 lanes of 64 bits in two registers, AVX2 and FMA",
        }
    }

    fn pass_of(self, kind: Kind) -> Option<Pass> {
        let row = KERNELS.iter().find(|row| row.0 == kind)?;
        match self {
            Isa::Ifma512(isa) => Some(Pass::Ifma512(isa, row.1)),
            Isa::Fma256(isa) => row.2.map(|pass| Pass::Fma256(isa, pass)),
        }
    }

    fn kinds(self) -> KindSet {
        KERNELS.iter().map(|row| row.0).filter(|kind| self.pass_of(*kind).is_some()).collect()
    }
}

/// Does 1 to [`WIDTH`] requests of one kind side by side. A request that is wrong fails alone.
enum Pass {
    Ifma512(Ifma512, fn(Ifma512, &mut [Item<'_>])),
    Fma256(Fma256, fn(Fma256, &mut [Item<'_>])),
}

impl Pass {
    fn run(&self, items: &mut [Item<'_>]) {
        match self {
            Pass::Ifma512(isa, pass) => pass(*isa, items),
            Pass::Fma256(isa, pass) => pass(*isa, items),
        }
    }
}

/// A kind, and which pass does it with which instructions. Two registers pay for RSA only.
type Row = (Kind, fn(Ifma512, &mut [Item<'_>]), Option<fn(Fma256, &mut [Item<'_>])>);

const KERNELS: &[Row] = &[
    (Kind::Rsa2048Private, rsa::private_2048, Some(rsa::private_2048)),
    (Kind::Rsa3072Private, rsa::private_3072, Some(rsa::private_3072)),
    (Kind::Rsa4096Private, rsa::private_4096, Some(rsa::private_4096)),
    (Kind::X25519Derive, x25519::derive, None),
    (Kind::X25519Generate, x25519::generate, None),
    (Kind::P256Derive, nist::p256_derive, None),
    (Kind::P384Derive, nist::p384_derive, None),
    (Kind::EcdsaP256Sign, nist::p256_sign, None),
    (Kind::EcdsaP384Sign, nist::p384_sign, None),
    (Kind::P256Generate, nist::p256_generate, None),
    (Kind::P384Generate, nist::p384_generate, None),
];

/// The engine. It has no state; one serves all threads.
#[derive(Debug, Clone)]
pub struct Lanes {
    isa: Isa,
    kem: Option<shorts::Isa>,
    bulk: Bulk,
    description: Description,
}

impl Lanes {
    /// The engine on a machine with these instructions, and whatever else this CPU has for hashes and chains.
    pub fn new(isa: Isa) -> Lanes {
        Lanes::with(isa, Cpu::detect())
    }

    /// With no more than `cpu` has for hashes and chains: for tests and benchmarks of the narrower kernels.
    pub fn with(isa: Isa, cpu: Cpu) -> Lanes {
        let (bulk, kem) = (Bulk::new(cpu), shorts::Isa::best(&cpu));
        Lanes {
            isa,
            kem,
            description: Description {
                name: "lanes",
                class: EngineClass::Lanes,
                inline: isa.kinds().union(bulk.kinds()).union(kem::kinds(&cpu)),
                queued: KindSet::EMPTY,
                detail: format!(
                    "{}; {}; ML-KEM by {}",
                    isa.name(),
                    bulk.name(),
                    kem.map_or("none", shorts::Isa::name)
                ),
            },
            bulk,
        }
    }
}

impl Lanes {
    /// The instructions of ML-KEM's kernels, for its kinds.
    fn kem_of(&self, kind: Kind) -> Option<shorts::Isa> {
        self.kem.filter(|_| kind.info().group == Group::MlKem)
    }
}

impl Engine for Lanes {
    fn description(&self) -> &Description {
        &self.description
    }

    fn width(&self, kind: Kind) -> u16 {
        let public_keys = self
            .isa
            .pass_of(kind)
            .map(|_| WIDTH as u16)
            .or_else(|| self.kem_of(kind).map(|_| kem::LANES as u16));
        public_keys.or_else(|| self.bulk.width(kind)).unwrap_or(1)
    }

    /// A pass of one: what lanes are not for, but right.
    fn execute(&self, request: &mut Request<'_>) -> Result<usize, Error> {
        let mut items = [Item::new(request.reborrow())];
        self.execute_all(&mut items);
        items[0].result
    }

    fn execute_all(&self, items: &mut [Item<'_>]) {
        let Some(kind) = items.first().map(|item| item.request.kind) else { return };
        match (self.isa.pass_of(kind), self.kem_of(kind)) {
            (Some(pass), _) => items.chunks_mut(WIDTH).for_each(|batch| pass.run(batch)),
            (None, Some(isa)) => kem::run(isa, kind, items),
            _ if self.description.inline.contains(kind) => self.bulk.run(kind, items),
            _ => items.iter_mut().for_each(|item| item.result = Err(Error::Unsupported)),
        }
    }

    fn joins(&self, first: Kind, second: Kind) -> bool {
        self.bulk.joins(first, second)
    }

    fn execute_both(&self, first: &mut [Item<'_>], second: &mut [Item<'_>]) {
        self.bulk.run_both(first, second);
    }

    fn hash_fed(&self, kind: Kind, room: &mut [u8], feed: &mut dyn Feed) -> Result<(), Error> {
        let width = usize::from(self.bulk.width(kind).unwrap_or(0));
        if kind.info().family != Family::Digest || width == 0 {
            return Err(Error::Unsupported);
        }
        if room.len() < width * bulk::LEAST_PIECE {
            return Err(Error::Invalid("no room for pieces"));
        }
        if kind.info().group == Group::Sha3 {
            return one_by_one(&mut *instruction::hash_in_pieces(kind)?, room, feed);
        }
        self.bulk.run_fed(kind, room, feed);
        Ok(())
    }
}

/// Overwrites so many bytes of the stack below, where the arithmetic kept what its registers did not hold. (Zeros that
/// the compiler takes for read: wiping word by word shows beside a pass.)
#[inline(never)]
fn bleach<const BYTES: usize>() {
    std::hint::black_box(&mut [0u8; BYTES]);
}
