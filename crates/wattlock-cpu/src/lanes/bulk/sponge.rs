//! SHA-3 and SHAKE (FIPS 202) of messages of any length, eight side by side.
//!
//! A lane has one message and takes the next as soon as it is done, long ones first. A step is a permutation of all eight
//! states: a lane takes a block of its message into its state before it, or gives a block of output after it. A block is
//! read where it lies; the last one, with its padding, is brought together in the lane's buffer.
//!
//! *What is public.* Lengths. *What is wiped.* States and buffers.

use wattlock_core::{Data, Error, Item, Kind};

use crate::lanes::keccak::{State, WORDS};
use crate::lanes::vector::shorts::pair::Pair;
use crate::lanes::vector::shorts::{BYTES, Isa, Shorts};
use crate::lanes::words::Zmm;
use crate::order::LongestFirst;

/// Messages side by side.
pub const LANES: usize = 8;

/// The kinds.
pub const KINDS: [Kind; 4] = [Kind::Sha3_256, Kind::Sha3_512, Kind::Shake128, Kind::Shake256];

/// Does requests of one of [`KINDS`], any number of them.
pub fn run_all(isa: Isa, kind: Kind, items: &mut [Item<'_>]) {
    let Some(sponge) = Sponge::of(kind) else { return };
    // SAFETY: the witness says that the CPU has the entry's instructions.
    unsafe {
        match isa {
            Isa::Wide512(_) => run_512(&sponge, items),
            Isa::Wide256(_) => run_256(&sponge, items),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw")]
fn run_512(sponge: &Sponge, items: &mut [Item<'_>]) {
    run::<Zmm>(sponge, items);
}

#[target_feature(enable = "avx2")]
fn run_256(sponge: &Sponge, items: &mut [Item<'_>]) {
    run::<Pair>(sponge, items);
}

/// A function of FIPS 202.
pub(super) struct Sponge {
    kind: Kind,
    /// Words of a block.
    words: usize,
    /// The first byte of padding, with the function's own bits before it (FIPS 202 section 6).
    pad: u8,
}

impl Sponge {
    pub(super) fn of(kind: Kind) -> Option<Sponge> {
        let (words, pad) = match kind {
            Kind::Sha3_256 => (17, 0x06),
            Kind::Sha3_512 => (9, 0x06),
            Kind::Shake128 => (21, 0x1f),
            Kind::Shake256 => (17, 0x1f),
            _ => return None,
        };
        Some(Sponge { kind, words, pad })
    }

    fn block(&self) -> usize {
        8 * self.words
    }
}

/// Whole vectors that hold a block.
const ROOM: usize = 3 * BYTES;

/// No block: what a lane takes that has none, or gives output.
static NOTHING: [u8; ROOM] = [0; ROOM];

/// A lane's message.
#[derive(Clone, Copy, Default)]
struct Lane {
    item: usize,
    /// Whether it has one.
    busy: bool,
    /// Bytes taken into the state.
    taken: usize,
    /// Whether all are, with the padding.
    padded: bool,
    /// Bytes of output given.
    given: usize,
}

/// All messages.
#[inline(always)]
pub(super) fn run<V: Shorts>(sponge: &Sponge, items: &mut [Item<'_>]) {
    let (mut state, mut buffers) = ([V::splat(0); WORDS], [[0; ROOM]; LANES]);
    let (mut lanes, mut waiting) = ([Lane::default(); LANES], LongestFirst::of(items));
    for lane in &mut lanes {
        begin(sponge, lane, items, &mut waiting);
    }
    while let Some(last) = lanes.iter().rposition(|lane| lane.busy) {
        absorb(sponge, &mut state, &mut lanes, &mut buffers, items);
        V::keccak(&mut state, last + 1);
        let mut keep = [0xff; BYTES];
        if lanes.iter().any(|lane| lane.busy && lane.padded) {
            squeeze(sponge, &state, &mut lanes, items);
            for (lane, keep) in lanes.iter_mut().zip(keep.as_chunks_mut::<8>().0) {
                if lane.busy && lane.given == items[lane.item].request.data.output().len().min(sponge.most())
                {
                    begin(sponge, lane, items, &mut waiting);
                    *keep = [0; 8];
                }
            }
            let keep = V::public(&keep);
            for word in &mut state {
                *word = word.and(keep);
            }
        }
    }
    // Zeros that the compiler takes for read.
    (state, buffers) = ([V::splat(0); WORDS], [[0; ROOM]; LANES]);
    std::hint::black_box((&state, &buffers));
}

impl Sponge {
    /// The most output of a message; of the caller's room only so much is used.
    fn most(&self) -> usize {
        self.kind.info().output.unwrap_or(usize::MAX)
    }
}

/// Gives a lane the next message that can be hashed at all; it is idle if there is none.
#[inline(always)]
fn begin(sponge: &Sponge, lane: &mut Lane, items: &mut [Item<'_>], waiting: &mut LongestFirst) {
    *lane = Lane::default();
    while let Some(at) = waiting.next(items) {
        let Item { request, result } = &mut items[at];
        let room = match &request.data {
            Data::Apart { to, .. } => to.len(),
            Data::InPlace(_) => 0,
        };
        let least = sponge.kind.info().output.unwrap_or(1);
        *result = match request.key.fits(sponge.kind) {
            _ if request.kind != sponge.kind => Err(Error::Unsupported),
            Ok(()) if room < least => Err(Error::Invalid("output length")),
            Ok(()) => Ok(room.min(sponge.most())),
            Err(error) => Err(error),
        };
        if result.is_ok() {
            (lane.item, lane.busy) = (at, true);
            return;
        }
    }
}

/// Takes each lane's next block into its state.
#[inline(always)]
fn absorb<V: Shorts>(
    sponge: &Sponge,
    state: &mut State<V>,
    lanes: &mut [Lane; LANES],
    buffers: &mut [[u8; ROOM]; LANES],
    items: &[Item<'_>],
) {
    let mut blocks: [&[u8]; LANES] = [&NOTHING; LANES];
    for ((block, lane), buffer) in blocks.iter_mut().zip(lanes).zip(buffers) {
        if !lane.busy || lane.padded {
            continue;
        }
        let rest = &items[lane.item].request.data.input()[lane.taken..];
        if rest.len() >= ROOM {
            *block = rest;
            lane.taken += sponge.block();
            continue;
        }
        let len = rest.len().min(sponge.block());
        let (from, behind) = buffer.split_at_mut(len);
        from.copy_from_slice(&rest[..len]);
        behind.fill(0);
        if len < sponge.block() {
            buffer[len] = sponge.pad;
            buffer[sponge.block() - 1] |= 0x80;
            lane.padded = true;
        }
        lane.taken += len;
        *block = buffer;
    }
    for first in (0..sponge.words).step_by(8) {
        let mut rows = [V::splat(0); 8];
        for (row, block) in rows.iter_mut().zip(blocks) {
            if let Some(bytes) = block[8 * first..].first_chunk() {
                *row = V::secret(bytes);
            }
        }
        let columns = V::transpose(&rows);
        for (word, column) in state[first..sponge.words.min(first + 8)].iter_mut().zip(columns) {
            *word = word.xor(column);
        }
    }
}

/// Gives each lane that has taken all of its message a block of output, or what there is room for.
#[inline(always)]
fn squeeze<V: Shorts>(sponge: &Sponge, state: &State<V>, lanes: &mut [Lane; LANES], items: &mut [Item<'_>]) {
    for first in (0..sponge.words).step_by(8) {
        let mut words = [V::splat(0); 8];
        for (word, from) in words.iter_mut().zip(&state[first..sponge.words.min(first + 8)]) {
            *word = *from;
        }
        let len = (sponge.block() - 8 * first).min(BYTES);
        for (row, lane) in V::transpose(&words).into_iter().zip(&mut *lanes) {
            if !lane.busy || !lane.padded {
                continue;
            }
            let out = items[lane.item].request.data.output();
            let room = out.len().min(sponge.most());
            let out = &mut out[lane.given..room];
            let len = len.min(out.len());
            out[..len].copy_from_slice(&row.publish().reveal()[..len]);
            lane.given += len;
        }
    }
}
