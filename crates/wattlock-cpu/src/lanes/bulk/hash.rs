//! Hashes and HMACs of messages of any length, side by side.
//!
//! A lane has one message and takes the next as soon as it is done, long ones first. What is hashed is read where it lies; only what does
//! not fill a block (the end of a prefix and the beginning of its text, the padding, an inner digest) is brought together
//! in the lane. A step takes as many blocks as the lane with the fewest has at hand. With few messages left, and at the
//! end of a batch of unlike ones, it is a step of [`Kernels::few`], since a wide step costs the same however many lanes
//! have something to do.
//!
//! *What is public.* Lengths: they alone decide what a step is. *What is wiped.* States, digests on the way and the lanes'
//! buffers lie in one structure, which is wiped when the batch is done.

use wattlock_core::{Data, Error, Feed, Item, Key, Kind};

use crate::instruction::aes::chains;
use crate::order::LongestFirst;

/// Words of the lanes' states: those of the same place lie together. SHA-1 uses five rows.
#[repr(C, align(64))]
pub struct State<W, const L: usize>(pub [[W; L]; 8]);

/// A word of a state.
pub trait Word: Copy + Default + 'static {
    /// Its bytes, the most significant first, to the front of `out`; what does not fit is cut off.
    fn write(self, out: &mut [u8]);
}

macro_rules! word {
    ($($word:ty)*) => {$(
        impl Word for $word {
            fn write(self, out: &mut [u8]) {
                out.copy_from_slice(&self.to_be_bytes()[..out.len()]);
            }
        }
    )*};
}
word!(u32 u64);

/// How a hash is computed on this CPU, in `L` lanes at most.
///
/// # Safety
/// Both ways read exactly so many blocks behind the pointers of the lanes that they are asked for: `wide` of the first
/// [`Kernels::lanes`], `few` of those named.
pub unsafe trait Kernels<const L: usize>: Copy {
    /// A word of the state.
    type Word: Word;
    /// Bytes of a block.
    const BLOCK: usize;

    /// Lanes of a wide step; 0 where there is none.
    fn lanes(&self) -> usize;
    /// Lanes in use from which a wide step takes less than steps of few.
    fn least(&self) -> usize;
    /// The most lanes of a step of few.
    fn most(&self) -> usize;
    /// Takes blocks into the states of all lanes.
    ///
    /// # Safety
    /// So many blocks must be readable behind each lane's pointer.
    unsafe fn wide(&self, state: &mut State<Self::Word, L>, at: &[*const u8; L], blocks: usize);
    /// Takes blocks into the states of these lanes, 1 to [`Kernels::most`].
    ///
    /// # Safety
    /// So many blocks must be readable behind the pointers of these lanes.
    unsafe fn few(
        &self,
        state: &mut State<Self::Word, L>,
        at: &[*const u8; L],
        lanes: &[usize],
        blocks: usize,
    );
    /// How many lanes' steps of few can have as many chains of AES-CBC beside them, and how many steps those take for each
    /// block; none can if 0.
    fn leads(&self) -> (usize, usize) {
        (0, 0)
    }
    /// As [`Kernels::few`] with chains as [`Kernels::leads`] says.
    ///
    /// # Safety
    /// As [`Kernels::few`]; so many steps must be at hand.
    unsafe fn few_beside(
        &self,
        _state: &mut State<Self::Word, L>,
        _at: &[*const u8; L],
        _lanes: &[usize],
        _blocks: usize,
        _chains: &mut chains::Batch<'_, '_>,
    ) {
    }
}

/// The words behind the inner and the outer pad of a key.
pub type Keyed<W> = fn(&Key) -> Result<[[W; 8]; 2], Error>;

/// A hash or a MAC.
pub struct Hash<W> {
    /// Which it is.
    pub kind: Kind,
    /// The words before any block.
    pub initial: [W; 8],
    /// Of a MAC.
    pub keyed: Option<Keyed<W>>,
}

/// Two blocks of 64 bytes for each of sixteen lanes, or of 128 for each of eight.
const BUFFERS: usize = 2048;

/// What a lane hashes next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Prefix,
    Joint,
    Text,
    Padding,
    Outer,
    Written,
}

/// A lane's message.
#[derive(Clone, Copy)]
struct Lane<W> {
    item: usize,
    stage: Stage,
    /// Bytes of the text that were handed to the kernels.
    taken: usize,
    /// Blocks at hand; 0 where the lane has no message.
    left: usize,
    /// Where in `buffer` they are, if they are there.
    own: Option<usize>,
    outer: [W; 8],
}

struct Batch<K: Kernels<L>, const L: usize> {
    state: State<K::Word, L>,
    at: [*const u8; L],
    lanes: [Lane<K::Word>; L],
    /// Two blocks for each lane.
    buffers: [u8; BUFFERS],
}

impl<K: Kernels<L>, const L: usize> Drop for Batch<K, L> {
    /// Zeros that the compiler takes for read: wiping them one by one takes as long as a short message.
    fn drop(&mut self) {
        self.state = State([[Default::default(); L]; 8]);
        self.lanes.iter_mut().for_each(|lane| lane.outer = Default::default());
        self.buffers = [0; BUFFERS];
        std::hint::black_box(self);
    }
}

/// Does all of them. Where a step of few is quicker than a wide one, chains go on beside it.
pub fn run<K: Kernels<L>, const L: usize>(
    kernels: &K,
    hash: &Hash<K::Word>,
    items: &mut [Item<'_>],
    mut beside: Option<&mut chains::Batch<'_, '_>>,
) {
    let mut batch: Batch<K, L> = Batch::new();
    let used = kernels.lanes().max(kernels.most()).min(items.len());
    let mut waiting = LongestFirst::of(items);
    for lane in 0..used {
        batch.refill(lane, hash, items, &mut waiting);
    }
    loop {
        let (busy, count) = batch.step(kernels, used, beside.as_deref_mut());
        if count == 0 {
            return;
        }
        for &lane in &busy[..count] {
            if batch.lanes[lane].left == 0 && !batch.advance(lane, hash, items) {
                batch.refill(lane, hash, items, &mut waiting);
            }
        }
    }
}

/// Hashes the messages of a feed, whose pieces come into equal parts of `room`.
pub fn run_fed<K: Kernels<L>, const L: usize>(
    kernels: &K,
    hash: &Hash<K::Word>,
    room: &mut [u8],
    feed: &mut dyn Feed,
) {
    let mut batch: Batch<K, L> = Batch::new();
    let used = kernels.lanes().max(kernels.most());
    let len = room.len() / used / K::BLOCK * K::BLOCK;
    let room = room.as_mut_ptr();
    // SAFETY: of a room that is borrowed until this returns, and of no other lane's; the lane's pointer into it is used
    // between two such calls only.
    let part = |lane: usize| unsafe { std::slice::from_raw_parts_mut(room.add(len * lane), len) };
    (0..used).for_each(|lane| batch.next_fed(lane, hash, part(lane), feed));
    loop {
        let (busy, count) = batch.step(kernels, used, None);
        if count == 0 {
            return;
        }
        for &lane in &busy[..count] {
            if batch.lanes[lane].left == 0 {
                batch.advance_fed(lane, hash, part(lane), feed);
            }
        }
    }
}

impl<K: Kernels<L>, const L: usize> Batch<K, L> {
    fn new() -> Batch<K, L> {
        let outer = Default::default();
        let none = Lane { item: 0, stage: Stage::Written, taken: 0, left: 0, own: None, outer };
        Batch {
            state: State([[Default::default(); L]; 8]),
            at: [std::ptr::null(); L],
            lanes: [none; L],
            buffers: [0; BUFFERS],
        }
    }

    /// Takes blocks of some lanes that have any: which, and how many those are.
    fn step(
        &mut self,
        kernels: &K,
        used: usize,
        mut beside: Option<&mut chains::Batch<'_, '_>>,
    ) -> ([usize; L], usize) {
        let (mut busy, mut count) = ([0; L], 0);
        for (lane, state) in self.lanes[..used].iter().enumerate() {
            if state.left > 0 {
                busy[count] = lane;
                count += 1;
            }
        }
        if count == 0 {
            return (busy, 0);
        }
        let wide = kernels.lanes() > 0 && count >= kernels.least();
        let (leads, steps) = kernels.leads();
        let ready = match &mut beside {
            Some(beside) if !wide && leads > 0 && count >= leads => beside.ready(),
            _ => None,
        };
        let ready = ready.filter(|ready| ready.lanes == leads && ready.blocks >= steps);
        if !wide {
            count = count.min(kernels.most());
        }
        let of = &busy[..count];
        let mut blocks = of.iter().map(|lane| self.lanes[*lane].left).min().unwrap_or(0);
        for &lane in of {
            if let Some(at) = self.lanes[lane].own {
                self.at[lane] = self.buffers[BUFFERS / L * lane + at..].as_ptr();
            }
        }
        if wide {
            // A lane without a message reads what another reads.
            let any = self.at[of[0]];
            (0..kernels.lanes())
                .filter(|lane| self.lanes[*lane].left == 0)
                .for_each(|lane| self.at[lane] = any);
            // SAFETY: `blocks` is the least that a lane has at hand behind its pointer; the others have the first one's.
            unsafe { kernels.wide(&mut self.state, &self.at, blocks) };
        } else if let (Some(ready), Some(beside)) = (ready, beside) {
            blocks = blocks.min(ready.blocks / steps);
            // SAFETY: as above; the chains have so many steps at hand.
            unsafe { kernels.few_beside(&mut self.state, &self.at, of, blocks, beside) };
            beside.advance_all(steps * blocks);
        } else {
            // SAFETY: as above.
            unsafe { kernels.few(&mut self.state, &self.at, of, blocks) };
        }
        for &lane in of {
            let Lane { left, own, .. } = &mut self.lanes[lane];
            *left -= blocks;
            match own {
                Some(at) => *at += K::BLOCK * blocks,
                // SAFETY: within the blocks at hand, or one past them.
                None => self.at[lane] = unsafe { self.at[lane].add(K::BLOCK * blocks) },
            }
        }
        (busy, count)
    }

    /// Begins the next message of a feed in a lane, if there is one.
    fn next_fed(&mut self, lane: usize, hash: &Hash<K::Word>, part: &mut [u8], feed: &mut dyn Feed) {
        while feed.begin(lane) {
            self.state.0.iter_mut().zip(hash.initial).for_each(|(row, word)| row[lane] = word);
            (self.lanes[lane].stage, self.lanes[lane].taken) = (Stage::Text, 0);
            if self.filled(lane, part, feed) {
                return;
            }
        }
    }

    /// Reads a lane's next piece: a full one is blocks at hand; of the last one, what does not fill a block is brought to
    /// the lane's buffer and padded. Not if the message was given up.
    fn filled(&mut self, lane: usize, part: &mut [u8], feed: &mut dyn Feed) -> bool {
        let Some(read) = feed.fill(lane, part) else { return false };
        let Lane { stage, taken, left, own, item, .. } = &mut self.lanes[lane];
        *taken += read;
        let (blocks, odd) = (read / K::BLOCK, read % K::BLOCK);
        if read < part.len() {
            let buffer = &mut self.buffers[BUFFERS / L * lane..][..BUFFERS / L];
            buffer[..odd].copy_from_slice(&part[blocks * K::BLOCK..read]);
            *item = pad::<K, L>(buffer, odd, *taken as u128);
            *stage = Stage::Padding;
        }
        (*own, *left, self.at[lane]) = (None, blocks, part.as_ptr());
        if blocks == 0 {
            self.padded(lane);
        }
        true
    }

    /// A lane's padded last blocks, how many of which `item` says, are at hand.
    fn padded(&mut self, lane: usize) {
        let Lane { stage, left, own, item, .. } = &mut self.lanes[lane];
        (*own, *left, *stage) = (Some(0), *item, Stage::Written);
    }

    /// Brings a lane's next blocks to hand; those of the next message after the last.
    fn advance_fed(&mut self, lane: usize, hash: &Hash<K::Word>, part: &mut [u8], feed: &mut dyn Feed) {
        match self.lanes[lane].stage {
            Stage::Padding => self.padded(lane),
            Stage::Written => {
                let mut digest = [0; 64];
                write(&self.state, lane, &mut digest[..hash.len()]);
                feed.done(lane, &digest[..hash.len()]);
                self.next_fed(lane, hash, part, feed);
            }
            _ => {
                if !self.filled(lane, part, feed) {
                    self.next_fed(lane, hash, part, feed);
                }
            }
        }
    }
}

impl<K: Kernels<L>, const L: usize> Batch<K, L> {
    /// Gives a lane the next message that can be hashed at all.
    fn refill(
        &mut self,
        lane: usize,
        hash: &Hash<K::Word>,
        items: &mut [Item<'_>],
        waiting: &mut LongestFirst,
    ) {
        while let Some(at) = waiting.next(items) {
            match self.begin(lane, hash, &items[at]) {
                Ok(()) => {
                    self.lanes[lane].item = at;
                    self.advance(lane, hash, items);
                    return;
                }
                Err(error) => items[at].result = Err(error),
            }
        }
    }

    fn begin(&mut self, lane: usize, hash: &Hash<K::Word>, item: &Item<'_>) -> Result<(), Error> {
        let request = &item.request;
        if request.kind != hash.kind {
            return Err(Error::Unsupported);
        }
        request.key.fits(hash.kind)?;
        let room = match &request.data {
            Data::Apart { to, .. } => to.len(),
            Data::InPlace(_) => return Err(Error::Invalid("this kind cannot work in place")),
        };
        if room < hash.len() {
            return Err(Error::Invalid("output length"));
        }
        let first = match hash.keyed {
            None => hash.initial,
            Some(keyed) => {
                let [inner, outer] = keyed(request.key)?;
                self.lanes[lane].outer = outer;
                inner
            }
        };
        self.state.0.iter_mut().zip(first).for_each(|(row, word)| row[lane] = word);
        (self.lanes[lane].stage, self.lanes[lane].taken) = (Stage::Prefix, 0);
        Ok(())
    }

    /// Brings the lane's next blocks to hand; writes the result if there are none.
    fn advance(&mut self, lane: usize, hash: &Hash<K::Word>, items: &mut [Item<'_>]) -> bool {
        let Lane { item, stage, taken, left, own, outer } = &mut self.lanes[lane];
        let buffer = &mut self.buffers[BUFFERS / L * lane..][..BUFFERS / L];
        let request = &mut items[*item].request;
        let (prefix, text) = (request.aad, request.data.input());
        let (whole, odd) = prefix.split_at(prefix.len() - prefix.len() % K::BLOCK);
        *own = None;
        loop {
            match *stage {
                Stage::Prefix => {
                    *stage = Stage::Joint;
                    if !whole.is_empty() {
                        (self.at[lane], *left) = (whole.as_ptr(), whole.len() / K::BLOCK);
                        return true;
                    }
                }
                Stage::Joint => {
                    *stage = Stage::Text;
                    let rest = K::BLOCK - odd.len();
                    if !odd.is_empty() && text.len() >= rest {
                        buffer[..odd.len()].copy_from_slice(odd);
                        buffer[odd.len()..K::BLOCK].copy_from_slice(&text[..rest]);
                        (*own, *left, *taken) = (Some(0), 1, rest);
                        return true;
                    }
                }
                Stage::Text => {
                    *stage = Stage::Padding;
                    // Of a text that does not fill the prefix's last block nothing is whole.
                    let rest = &text[*taken..];
                    let blocks = rest.len() / K::BLOCK;
                    if blocks > 0 {
                        (self.at[lane], *left) = (rest.as_ptr(), blocks);
                        *taken += blocks * K::BLOCK;
                        return true;
                    }
                }
                Stage::Padding => {
                    let odd = if *taken == 0 { odd } else { &[] };
                    let rest = &text[*taken..];
                    let end = odd.len() + rest.len();
                    buffer[..odd.len()].copy_from_slice(odd);
                    buffer[odd.len()..end].copy_from_slice(rest);
                    let before = if hash.keyed.is_some() { K::BLOCK } else { 0 };
                    let bytes = before as u128 + prefix.len() as u128 + text.len() as u128;
                    *left = pad::<K, L>(buffer, end, bytes);
                    *own = Some(0);
                    *stage = if hash.keyed.is_some() { Stage::Outer } else { Stage::Written };
                    return true;
                }
                Stage::Outer => {
                    write(&self.state, lane, &mut buffer[..hash.len()]);
                    self.state.0.iter_mut().zip(*outer).for_each(|(row, word)| row[lane] = word);
                    *left = pad::<K, L>(buffer, hash.len(), (K::BLOCK + hash.len()) as u128);
                    *own = Some(0);
                    *stage = Stage::Written;
                    return true;
                }
                Stage::Written => {
                    let len = hash.len();
                    write(&self.state, lane, &mut request.data.output()[..len]);
                    items[*item].result = Ok(len);
                    return false;
                }
            }
        }
    }
}

impl<W> Hash<W> {
    /// Bytes of the result.
    fn len(&self) -> usize {
        self.kind.info().output.unwrap_or(0)
    }
}

/// Pads what fills `end` bytes of the buffer (FIPS 180-4 section 5.1): how many blocks it then is.
fn pad<K: Kernels<L>, const L: usize>(buffer: &mut [u8], end: usize, bytes: u128) -> usize {
    let length = K::BLOCK / 8;
    let blocks = (end + length) / K::BLOCK + 1;
    let last = blocks * K::BLOCK;
    let bits = (bytes * 8).to_be_bytes();
    buffer[end] = 0x80;
    buffer[end + 1..last - length].fill(0);
    buffer[last - length..last].copy_from_slice(&bits[16 - length..]);
    blocks
}

/// A lane's words, as many bytes of them as there is room.
fn write<W: Word, const L: usize>(state: &State<W, L>, lane: usize, out: &mut [u8]) {
    for (bytes, row) in out.chunks_mut(size_of::<W>()).zip(&state.0) {
        row[lane].write(bytes);
    }
}
