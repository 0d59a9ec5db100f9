//! Hashes, MACs and AES-CBC encryption side by side: each message is a chain, and one chain leaves most of a core idle.
//!
//! This file says which kernel does a kind on which CPU; [`hash`] and the AES kernels' `chains` lead messages through the
//! lanes. Width alone decides nothing: with SHA instructions a few interleaved messages beat AVX-512 lanes for SHA-256 on
//! Zen 4, and lose to them on Zen 5, and everywhere for SHA-1. Where a CPU has both, a measurement at first use decides.
//! Eight AVX2 lanes are worse than one message with SHA instructions. Whether lanes or one message after the other is
//! quicker is calibration's to say.
//!
//! One message, and fewer than make up for lanes that idle, are done as `instruction` does them.

#[allow(unsafe_code)]
mod entries;
#[allow(unsafe_code)]
mod hash;
#[allow(unsafe_code)]
mod rounds;
#[allow(unsafe_code)]
mod sponge;
#[cfg(test)]
mod tests;

use wattlock_core::{Algorithm, Family, Feed, Item, Kind, KindSet};

use crate::detect::Cpu;
use crate::instruction::aes::chains;
use crate::instruction::sys::hash::{Hash as Library, Sha1, Sha256, Sha384, Sha512};
use crate::instruction::{self, expand};
use crate::lanes::vector::shorts;
use entries::{Isa, OfSha1, OfSha256, OfSha512};
use hash::{Hash, Kernels};

const KINDS: [Kind; 11] = [
    Kind::Sha1,
    Kind::Sha256,
    Kind::Sha384,
    Kind::Sha512,
    Kind::HmacSha1,
    Kind::HmacSha256,
    Kind::HmacSha384,
    Kind::HmacSha512,
    Kind::Aes128CbcEncrypt,
    Kind::Aes192CbcEncrypt,
    Kind::Aes256CbcEncrypt,
];

/// What this CPU does side by side.
#[derive(Debug, Clone)]
pub struct Bulk {
    cpu: Cpu,
}

/// Bytes of a few messages, or of chains whose round keys must be brought into lanes, that are done sooner one by one.
const SHORT: usize = 1024;

/// The shortest piece of a message that comes in pieces: a block, and a kernel's call pays.
pub const LEAST_PIECE: usize = 4096;

/// Lanes of a kind, and from how many messages on they pay.
#[derive(Debug, Clone, Copy)]
struct Extent {
    width: usize,
    least: usize,
}

impl Bulk {
    /// With no more than `cpu` has.
    pub fn new(cpu: Cpu) -> Bulk {
        Bulk { cpu }
    }

    /// What it does.
    pub fn kinds(&self) -> KindSet {
        KINDS.into_iter().chain(sponge::KINDS).filter(|kind| self.extent(*kind).is_some()).collect()
    }

    /// Lanes of a kind, if it does that kind.
    pub fn width(&self, kind: Kind) -> Option<u16> {
        self.extent(kind).map(|extent| extent.width as u16)
    }

    /// In words: with which instructions.
    pub fn name(&self) -> String {
        let hash = |isa: Option<Isa>| isa.map_or("none", Isa::name);
        let sha1 = hash(OfSha1::best(&self.cpu).map(|one| one.0));
        let sha256 = hash(OfSha256::best(&self.cpu).map(|one| one.0));
        let sha512 = hash(OfSha512::best(&self.cpu).map(|one| one.0));
        let cbc = chains::Isa::best(&self.cpu).map_or("none", |isa| isa.name());
        let sha3 = shorts::Isa::best(&self.cpu).map_or("none", shorts::Isa::name);
        format!(
            "SHA-1 by {sha1}, SHA-256 by {sha256}, SHA-384 and SHA-512 by {sha512}, SHA-3 by {sha3}, AES-CBC by {cbc}"
        )
    }

    fn extent(&self, kind: Kind) -> Option<Extent> {
        match kind {
            Kind::Sha1 | Kind::HmacSha1 => OfSha1::best(&self.cpu).map(extent),
            Kind::Sha256 | Kind::HmacSha256 => OfSha256::best(&self.cpu).map(extent),
            Kind::Sha384 | Kind::HmacSha384 | Kind::Sha512 | Kind::HmacSha512 => {
                OfSha512::best(&self.cpu).map(extent)
            }
            _ if sponge::KINDS.contains(&kind) => {
                shorts::Isa::best(&self.cpu).map(|_| Extent { width: sponge::LANES, least: 2 })
            }
            _ if KINDS.contains(&kind) => {
                chains::Isa::best(&self.cpu).map(|isa| Extent { width: isa.lanes(), least: 2 })
            }
            _ => None,
        }
    }

    /// Does requests of a kind of [`Bulk::kinds`], any number of them.
    pub fn run(&self, kind: Kind, items: &mut [Item<'_>]) {
        let least = self.extent(kind).map_or(usize::MAX, |extent| extent.least);
        if let Some(isa) = shorts::Isa::best(&self.cpu)
            && sponge::KINDS.contains(&kind)
            && items.len() >= least
        {
            sponge::run_all(isa, kind, items);
            return;
        }
        let bytes = || items.iter().map(|item| item.request.data.len()).fold(0, usize::saturating_add);
        if items.len() < least
            || (bytes() <= SHORT && (items.len() < 8 || kind.info().family == Family::Cipher))
        {
            items.iter_mut().for_each(|item| item.result = instruction::alone(&self.cpu, &mut item.request));
            return;
        }
        match chains::Isa::best(&self.cpu) {
            Some(isa) if kind.info().family == Family::Cipher => chains::encrypt(isa, &self.cpu, kind, items),
            _ => self.hashes(kind, items, None),
        }
        bleach_after(kind);
    }

    /// Whether MACs, and encryptions that do not wait for them, go on beside each other: a hash by the SHA instructions
    /// leaves those of AES idle.
    pub fn joins(&self, first: Kind, second: Kind) -> bool {
        matches!(first, Kind::HmacSha1 | Kind::HmacSha256)
            && KINDS[8..].contains(&second)
            && self.cpu.sha.is_some()
            && self.width(second).is_some()
    }

    /// Does MACs and encryptions of two kinds that [`Bulk::joins`].
    pub fn run_both(&self, macs: &mut [Item<'_>], ciphers: &mut [Item<'_>]) {
        let (Some(mac), Some(cipher)) = (macs.first(), ciphers.first()) else { return };
        let (mac, cipher) = (mac.request.kind, cipher.request.kind);
        let bytes = |items: &[Item<'_>]| items.iter().any(|item| item.request.data.len() >= SHORT);
        let isa = chains::Isa::best(&self.cpu).filter(|_| bytes(macs) && bytes(ciphers));
        let Some(isa) = isa else {
            self.run(mac, macs);
            self.run(cipher, ciphers);
            return;
        };
        let mut chains = chains::Batch::new(isa, &self.cpu, cipher, ciphers, rounds::MOST);
        self.hashes(mac, macs, Some(&mut chains));
        chains.run();
        drop(chains);
        bleach_after(mac);
    }

    fn hashes(&self, kind: Kind, items: &mut [Item<'_>], beside: Option<&mut chains::Batch<'_, '_>>) {
        self.hash(kind, Work::Items(items, beside));
    }

    /// Hashes the messages of a feed.
    pub fn run_fed(&self, kind: Kind, room: &mut [u8], feed: &mut dyn Feed) {
        self.hash(kind, Work::Fed(room, feed));
    }

    fn hash(&self, kind: Kind, work: Work<'_, '_, '_, '_>) {
        match kind {
            Kind::Sha1 | Kind::HmacSha1 => work.run::<_, Sha1, 16>(OfSha1::best(&self.cpu), kind),
            Kind::Sha256 | Kind::HmacSha256 => work.run::<_, Sha256, 16>(OfSha256::best(&self.cpu), kind),
            Kind::Sha384 | Kind::HmacSha384 => work.run::<_, Sha384, 8>(OfSha512::best(&self.cpu), kind),
            _ => work.run::<_, Sha512, 8>(OfSha512::best(&self.cpu), kind),
        }
    }
}

/// What is hashed: requests, and beside them chains; or messages that come in pieces.
enum Work<'w, 'i, 'b, 'c> {
    Items(&'w mut [Item<'i>], Option<&'w mut chains::Batch<'b, 'c>>),
    Fed(&'w mut [u8], &'w mut dyn Feed),
}

impl Work<'_, '_, '_, '_> {
    fn run<K, H, const L: usize>(self, kernels: Option<K>, kind: Kind)
    where
        K: Kernels<L>,
        H: Library<Word = K::Word> + Send + Sync + 'static,
    {
        let Some(kernels) = kernels else { return };
        let is_mac = kind.info().family == Family::Mac;
        let keyed: hash::Keyed<K::Word> = |key| expand::hmac::<H>(key).map(|hmac| hmac.words());
        let hash = Hash { kind, initial: H::new().words(), keyed: is_mac.then_some(keyed) };
        match self {
            Work::Items(items, beside) => hash::run(&kernels, &hash, items, beside),
            Work::Fed(room, feed) => hash::run_fed(&kernels, &hash, room, feed),
        }
    }
}

/// The stack below, where kernels keep what registers do not hold: 3 KB of columns and round keys at most.
fn bleach_after(kind: Kind) {
    if kind.info().algorithm != Algorithm::None {
        super::bleach::<{ 4 << 10 }>();
    }
}

fn extent<K: Kernels<L>, const L: usize>(kernels: K) -> Extent {
    let width = kernels.lanes().max(kernels.most());
    // Interleaving two messages by the SHA instructions pays already.
    let least = if kernels.most() > 1 { 2 } else { kernels.least() };
    Extent { width, least }
}
