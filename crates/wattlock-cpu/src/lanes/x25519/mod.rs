//! X25519 (RFC 7748), up to eight requests side by side: shared secrets by a ladder ([`ladder`]), fresh pairs by a comb.
//!
//! This file is between requests and lanes. It refuses arithmetic, which is [`field`]'s, and the choice of
//! instructions, which is [`entries`]'s. A lane without a request does the work of a scalar of zeros.
//!
//! *What is public.* A peer's key, whether the shared secret came out as zero, which RFC 7748 section 6.1 has us
//! refuse, and whether a result is sound ([`sound`]): what is not does not leave its lane. Nothing else decides anything.
//!
//! *What is wiped.* A batch lies in one structure, which is wiped when the pass ends; then [`bleach`](super::bleach) overwrites the
//! stack where the arithmetic spilled its intermediates.

mod comb;
#[allow(unsafe_code)]
mod entries;
#[cfg(test)]
#[allow(unsafe_code)]
mod faults;
mod field;
mod inverse;
mod ladder;
mod sound;
#[cfg(test)]
#[allow(unsafe_code)]
mod tests;

use std::sync::OnceLock;

use subtle::ConstantTimeEq;
use wattlock_core::{Data, Error, Fault, Material};
use x25519_dalek::x25519;
use zeroize::{Zeroize, Zeroizing};

use super::Item;
use super::vector::{LANES, Vector};
use entries::Entries;
use ladder::WORDS;

/// Bytes of a scalar, a coordinate and a shared secret.
const BYTES: usize = 8 * WORDS;

const BAD_PEER: Error = Error::Invalid("peer's public key");

/// What becomes of a request whose lane's result is not sound.
const FAULTED: Error = Error::Device(Fault::WrongResult);

/// Numbers of 256 bits, one in each lane: words of the same weight lie together.
type Words = [[u64; LANES]; WORDS];

/// What goes into the lanes and what comes out.
#[derive(Zeroize)]
#[zeroize(drop)]
#[repr(align(64))]
pub(in crate::lanes) struct Batch {
    /// Clamped scalars.
    scalars: Words,
    /// Peers' coordinates, as they came.
    points: Words,
    /// Coordinates below p.
    results: Words,
    /// Where they are sound, one bit for each lane. Says nothing of a shared secret of zero.
    sound: u8,
}

impl Batch {
    /// Every lane with the smallest clamped scalar and the base point.
    fn new() -> Batch {
        let mut batch = Batch {
            scalars: Words::default(),
            points: Words::default(),
            results: Words::default(),
            sound: 0,
        };
        for lane in 0..LANES {
            put(&mut batch.scalars, lane, &clamped(&[0; BYTES]));
            batch.points[0][lane] = 9;
        }
        batch
    }

    fn is_sound(&self, lane: usize) -> bool {
        self.sound >> lane & 1 == 1
    }
}

/// Shared secrets.
pub(super) fn derive<I: Entries>(isa: I, items: &mut [Item<'_>]) {
    let mut batch = Batch::new();
    for (lane, item) in items.iter_mut().enumerate() {
        item.result = load(&mut batch, lane, item);
    }
    isa.derive(&mut batch);
    for (lane, item) in items.iter_mut().enumerate() {
        if item.result.is_ok() {
            item.result = store(&batch, lane, &mut item.request.data);
        }
    }
    isa.bleach();
}

fn load(batch: &mut Batch, lane: usize, item: &Item<'_>) -> Result<usize, Error> {
    let Material::Ec(key) = item.request.key.material() else {
        return Err(Error::Invalid("elliptic-curve key"));
    };
    let scalar = key.scalar[..].try_into().map_err(|_| Error::Invalid("elliptic-curve key"))?;
    let point = item.request.data.input().try_into().map_err(|_| BAD_PEER)?;
    put(&mut batch.scalars, lane, &clamped(scalar));
    put(&mut batch.points, lane, point);
    Ok(BYTES)
}

/// Fresh pairs: scalar, then public key. The scalar is the system's randomness as it came; its user clamps it.
pub(super) fn generate<I: Entries>(isa: I, items: &mut [Item<'_>]) {
    let mut scalars = Zeroizing::new([[0; BYTES]; LANES]);
    let random = getrandom::fill(scalars[..items.len()].as_flattened_mut());
    if random.is_err() {
        items.iter_mut().for_each(|item| item.result = Err(Error::Device(Fault::Reported)));
        return;
    }
    let publics = publics(isa, &scalars);
    for (lane, item) in items.iter_mut().enumerate() {
        let Some(found) = publics[lane] else {
            item.result = Err(FAULTED);
            continue;
        };
        let (scalar, public) = item.request.data.output()[..2 * BYTES].split_at_mut(BYTES);
        scalar.copy_from_slice(&scalars[lane]);
        public.copy_from_slice(&found);
        item.result = Ok(2 * BYTES);
    }
}

/// Public keys of scalars, where they are sound.
pub(super) fn publics<I: Entries>(isa: I, scalars: &[[u8; BYTES]; LANES]) -> [Option<[u8; BYTES]>; LANES] {
    static TABLE: OnceLock<comb::Table> = OnceLock::new();
    let table = TABLE.get_or_init(|| isa.table());
    let mut batch = Batch::new();
    for (lane, scalar) in scalars.iter().enumerate() {
        put(&mut batch.scalars, lane, &clamped(scalar));
    }
    isa.generate(table, &mut batch);
    isa.bleach();
    std::array::from_fn(|lane| batch.is_sound(lane).then(|| *get(&batch.results, lane)))
}

fn store(batch: &Batch, lane: usize, data: &mut Data<'_>) -> Result<usize, Error> {
    let shared = get(&batch.results, lane);
    if bool::from(shared[..].ct_eq(&[0; BYTES])) {
        return Err(if is_small(data.input()) { BAD_PEER } else { FAULTED });
    }
    if !batch.is_sound(lane) {
        return Err(FAULTED);
    }
    data.output()[..BYTES].copy_from_slice(&*shared);
    Ok(BYTES)
}

/// Whether a peer's point is of small order, in plain code: then every clamped scalar takes it to zero, else none does.
fn is_small(peer: &[u8]) -> bool {
    peer.try_into().is_ok_and(|peer| x25519([0; BYTES], peer) == [0; BYTES])
}

/// RFC 7748 section 5: a multiple of 8 between 2^254 and 2^255.
fn clamped(scalar: &[u8; BYTES]) -> Zeroizing<[u8; BYTES]> {
    let mut scalar = Zeroizing::new(*scalar);
    scalar[0] &= 248;
    scalar[31] = scalar[31] & 127 | 64;
    scalar
}

fn put(words: &mut Words, lane: usize, bytes: &[u8; BYTES]) {
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        word[lane] = u64::from_le_bytes(*bytes);
    }
}

fn get(words: &Words, lane: usize) -> Zeroizing<[u8; BYTES]> {
    let mut bytes = Zeroizing::new([0; BYTES]);
    for (word, bytes) in words.iter().zip(bytes.as_chunks_mut().0) {
        *bytes = word[lane].to_le_bytes();
    }
    bytes
}

/// Numbers into a vector's lanes.
#[inline(always)]
fn vectors<V: Vector>(words: &Words) -> [V; WORDS] {
    [V::new(&words[0]), V::new(&words[1]), V::new(&words[2]), V::new(&words[3])]
}

/// Results out of a vector's lanes: the way out of the constant-time world.
#[inline(always)]
fn reveal<V: Vector>(vectors: [V; WORDS]) -> Words {
    let [a, b, c, d] = vectors;
    [a.reveal(), b.reveal(), c.reveal(), d.reveal()]
}
