//! AES-CBC encryption of several messages side by side. Each is a chain, whose every block waits for the one before; the
//! instructions start once or twice a cycle and take three to five, and several blocks each where they are wide.
//!
//! A lane has one message and its key, and takes the next message as soon as it is done. A step takes as many blocks as
//! the lane with the fewest has left. The last message that is left is encrypted by itself, as it would be alone.
//!
//! Constant time as the other modes: addresses and steps depend on lengths. Round keys and chains lie in one structure,
//! which is wiped at the end.
#![allow(
    unsafe_code,
    reason = "intrinsics on raw pointers; every entry takes a witness, and pointers come from Spans"
)]

use wattlock_core::{Error, Item, Kind};

use super::super::span::Span;
use super::super::{block, expand};
use super::generic::Vector;
use super::schedule::Rounds;
use super::{CbcKey, aes_ni, vaes256, vaes512, wide};
use crate::detect::Cpu;
use crate::order::LongestFirst;

pub(crate) use super::{aes_ni::Xmm, vaes256::Ymm, vaes512::Zmm, wide::Isa as Registers};

/// Lanes at most.
pub(super) const CHAINS: usize = 16;

/// Round keys, chains and places of the lanes.
#[repr(C, align(64))]
pub(crate) struct Chains {
    keys: [[u128; CHAINS]; 15],
    blocks: [u128; CHAINS],
    from: [*const u8; CHAINS],
    to: [*mut u8; CHAINS],
}

/// Something that goes on a step at a time between the rounds of a hash, which wait for each other.
pub(crate) trait Beside<'c> {
    /// What it begins with.
    type Of;
    /// # Safety
    /// The instructions must be enabled in the caller, here and in the other two.
    unsafe fn begin(of: Self::Of) -> Self;
    /// # Safety
    /// What it began with must have another step.
    unsafe fn step(&mut self);
    /// # Safety
    /// None but the instructions.
    unsafe fn end(self);
}

/// Nothing goes on.
impl Beside<'_> for () {
    type Of = ();
    #[inline(always)]
    unsafe fn begin((): ()) {}
    #[inline(always)]
    unsafe fn step(&mut self) {}
    #[inline(always)]
    unsafe fn end(self) {}
}

/// Chains of M * LANES lanes, of which a step encrypts the next block.
///
/// So many blocks as there are steps must be readable and writable behind the pointers of each lane, which are equal or
/// disjoint. Lanes without a message may share a place that is never read.
pub(crate) struct Led<'c, V, const M: usize> {
    chains: &'c mut Chains,
    states: [V; M],
    rounds: usize,
    at: usize,
}

impl<'c, V: Vector, const M: usize> Beside<'c> for Led<'c, V, M> {
    type Of = (&'c mut Chains, usize);

    #[inline(always)]
    unsafe fn begin((chains, rounds): (&'c mut Chains, usize)) -> Self {
        // SAFETY: a row of blocks has one for each lane; the instructions are the caller's.
        unsafe {
            let mut states = [V::zero(); M];
            for (vector, state) in states.iter_mut().enumerate() {
                *state = V::load(chains.blocks.as_ptr().add(V::LANES * vector).cast());
            }
            Led { chains, states, rounds, at: 0 }
        }
    }

    #[inline(always)]
    unsafe fn step(&mut self) {
        let Led { chains, states, rounds, at } = self;
        // SAFETY: the caller's blocks; a row of keys has one for each lane.
        unsafe {
            let key = |round: usize, vector: usize| {
                V::load(chains.keys[round].as_ptr().add(V::LANES * vector).cast())
            };
            let mut texts = [V::zero(); M];
            for (vector, text) in texts.iter_mut().enumerate() {
                *text = V::gather(chains.from.as_ptr().add(V::LANES * vector), *at);
            }
            for (vector, state) in states.iter_mut().enumerate() {
                *state = state.xor(texts[vector].xor(key(0, vector)));
            }
            for round in 1..*rounds {
                for (vector, state) in states.iter_mut().enumerate() {
                    *state = state.encrypt(key(round, vector));
                }
            }
            for (vector, state) in states.iter_mut().enumerate() {
                *state = state.encrypt_last(key(*rounds, vector));
                state.scatter(chains.to.as_ptr().add(V::LANES * vector), *at);
            }
        }
        *at += 16;
    }

    #[inline(always)]
    unsafe fn end(self) {
        for (vector, state) in self.states.iter().enumerate() {
            // SAFETY: as where it began.
            unsafe { state.store(self.chains.blocks.as_mut_ptr().add(V::LANES * vector).cast()) };
        }
    }
}

/// Encrypts so many blocks in each of M * LANES lanes.
///
/// # Safety
/// The instructions must be enabled in the caller; so many steps must be at hand ([`Led`]).
#[inline(always)]
pub(super) unsafe fn encrypt_blocks<V: Vector, const R: usize, const M: usize>(
    chains: &mut Chains,
    blocks: usize,
) {
    // SAFETY: the caller's.
    unsafe {
        let mut led = Led::<V, M>::begin((chains, R));
        for _ in 0..blocks {
            led.step();
        }
        led.end();
    }
}

/// Instructions for it.
#[derive(Clone, Copy)]
pub(crate) struct Isa(wide::Isa);

impl Isa {
    /// The widest this CPU has.
    pub(crate) fn best(cpu: &Cpu) -> Option<Isa> {
        wide::Isa::best(cpu).map(Isa)
    }

    /// Messages side by side: registers of 128 bits hide the instructions' time with eight.
    pub(crate) fn lanes(self) -> usize {
        match self.0 {
            wide::Isa::AesNi(_) => 8,
            _ => CHAINS,
        }
    }

    /// In words.
    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            wide::Isa::Vaes512(..) => "512-bit VAES",
            wide::Isa::Vaes256(..) => "256-bit VAES",
            wide::Isa::AesNi(_) => "AES-NI",
        }
    }

    /// # Safety
    /// As [`encrypt_blocks`], in the first `lanes` lanes.
    unsafe fn step(self, chains: &mut Chains, lanes: usize, rounds: Rounds, blocks: usize) {
        // SAFETY: the witness proves the instructions; the pointers are the caller's.
        unsafe {
            match self.0 {
                wide::Isa::Vaes512(proof, _) => vaes512::cbc_chains(proof, chains, lanes, rounds, blocks),
                wide::Isa::Vaes256(proof, _) => vaes256::cbc_chains(proof, chains, lanes, rounds, blocks),
                wide::Isa::AesNi(proof) => aes_ni::cbc_chains(proof, chains, lanes, rounds, blocks),
            }
        }
    }
}

impl Drop for Chains {
    /// Zeros that the compiler takes for read: wiping them one by one takes as long as a short message.
    fn drop(&mut self) {
        (self.keys, self.blocks) = ([[0; CHAINS]; 15], [0; CHAINS]);
        std::hint::black_box(self);
    }
}

impl Chains {
    /// Gives a lane a message: how many blocks it has.
    fn begin(&mut self, lane: usize, key: &CbcKey, item: &mut Item<'_>) -> Result<usize, Error> {
        // A key that was expanded first without these instructions keeps that form: its message goes by itself.
        let CbcKey::Wide(key) = key else { return Err(Error::Unsupported) };
        let chain = u128::from_le_bytes(*block(item.request.nonce)?);
        let data = Span::of(&mut item.request.data)?;
        super::whole_blocks(&data)?;
        self.keys.iter_mut().zip(key.encryption().keys()).for_each(|(row, key)| row[lane] = *key);
        (self.blocks[lane], self.from[lane], self.to[lane]) = (chain, data.from(), data.to());
        Ok(data.len() / 16)
    }
}

/// Messages on their way through the lanes.
pub(crate) struct Batch<'b, 'i> {
    isa: Isa,
    cpu: &'b Cpu,
    kind: Kind,
    items: &'b mut [Item<'i>],
    chains: Chains,
    rounds: Rounds,
    /// Lanes in use.
    lanes: usize,
    /// The message of each lane, and its blocks left; 0 where there is none.
    of: [usize; CHAINS],
    left: [usize; CHAINS],
    waiting: LongestFirst,
    /// What lanes without a message read and write. It holds nothing but zeros encrypted with keys that are done with.
    idle: [u8; 16 * IDLE],
}

/// Blocks of a step in which some lanes have no message and encrypt what is never read.
const IDLE: usize = 128;

/// What the lanes can do next: so many blocks in the first so many lanes.
#[derive(Clone, Copy)]
pub(crate) struct Ready {
    pub(crate) lanes: usize,
    pub(crate) blocks: usize,
}

/// Encrypts all of them.
pub(crate) fn encrypt(isa: Isa, cpu: &Cpu, kind: Kind, items: &mut [Item<'_>]) {
    Batch::new(isa, cpu, kind, items, isa.lanes()).run();
}

impl<'b, 'i> Batch<'b, 'i> {
    /// Brings the first messages into so many lanes.
    pub(crate) fn new(
        isa: Isa,
        cpu: &'b Cpu,
        kind: Kind,
        items: &'b mut [Item<'i>],
        lanes: usize,
    ) -> Batch<'b, 'i> {
        let chains = Chains {
            keys: [[0; CHAINS]; 15],
            blocks: [0; CHAINS],
            from: [std::ptr::null(); CHAINS],
            to: [std::ptr::null_mut(); CHAINS],
        };
        let rounds = match kind {
            Kind::Aes128CbcEncrypt => Rounds::Ten,
            Kind::Aes192CbcEncrypt => Rounds::Twelve,
            _ => Rounds::Fourteen,
        };
        let waiting = LongestFirst::of(items);
        let (of, left, idle) = ([0; CHAINS], [0; CHAINS], [0; 16 * IDLE]);
        let mut batch = Batch { isa, cpu, kind, items, chains, rounds, lanes, of, left, waiting, idle };
        (0..lanes).for_each(|lane| batch.refill(lane));
        batch
    }

    /// Encrypts all that is left, in all lanes that there are.
    pub(crate) fn run(&mut self) {
        (self.lanes..self.isa.lanes()).for_each(|lane| self.refill(lane));
        self.lanes = self.isa.lanes();
        while let Some(Ready { lanes, blocks }) = self.ready() {
            // SAFETY: `blocks` is the least that a lane has left of its span; the others have room for IDLE blocks.
            unsafe { self.isa.step(&mut self.chains, lanes, self.rounds, blocks) };
            self.advance_all(blocks);
        }
    }

    /// What the lanes can do next; lanes without a message among them have the idle place. A last message that is left
    /// by itself is encrypted here.
    pub(crate) fn ready(&mut self) -> Option<Ready> {
        loop {
            let busy = || self.left.iter().enumerate().filter(|lane| *lane.1 > 0);
            let (some, blocks) = busy().min_by_key(|lane| *lane.1)?;
            let (count, last, blocks) = (busy().count(), busy().next_back()?.0, *blocks);
            if count == 1 {
                self.finish(some);
                continue;
            }
            // Half as many lanes take hardly less time for a block, but those that idle read and write, too.
            let lanes = (last + 1).next_power_of_two().max(4);
            if count == lanes {
                return Some(Ready { lanes, blocks });
            }
            let nobody = self.idle.as_mut_ptr();
            for lane in (0..lanes).filter(|lane| self.left[*lane] == 0) {
                (self.chains.from[lane], self.chains.to[lane]) = (nobody, nobody);
            }
            return Some(Ready { lanes, blocks: blocks.min(IDLE) });
        }
    }

    /// For a step beside something else: with which registers, the lanes, and how many rounds a block has.
    pub(crate) fn lead(&mut self) -> (Registers, &mut Chains, usize) {
        (self.isa.0, &mut self.chains, self.rounds.count())
    }

    /// All lanes are so many blocks further.
    pub(crate) fn advance_all(&mut self, blocks: usize) {
        for lane in 0..CHAINS {
            if self.left[lane] > 0 {
                self.advance(lane, blocks);
            }
        }
    }

    /// Gives a lane the next message that has anything to encrypt.
    fn refill(&mut self, lane: usize) {
        while let Some(at) = self.waiting.next(self.items) {
            let item = &mut self.items[at];
            self.of[lane] = at;
            let key = match item.request.kind == self.kind {
                true => {
                    item.request.key.fits(self.kind).and_then(|()| expand::cbc(self.cpu, item.request.key))
                }
                false => Err(Error::Unsupported),
            };
            item.result = match key.and_then(|key| self.chains.begin(lane, key, item)) {
                Ok(blocks) => {
                    self.left[lane] = blocks;
                    Ok(16 * blocks)
                }
                Err(Error::Unsupported) if item.request.kind == self.kind => {
                    super::super::alone(self.cpu, &mut item.request)
                }
                Err(error) => Err(error),
            };
            if self.left[lane] > 0 {
                return;
            }
        }
    }

    /// A lane is so many blocks further.
    fn advance(&mut self, lane: usize, blocks: usize) {
        self.left[lane] -= blocks;
        // SAFETY: within the span, or one past it.
        unsafe {
            self.chains.from[lane] = self.chains.from[lane].add(16 * blocks);
            self.chains.to[lane] = self.chains.to[lane].add(16 * blocks);
        }
        if self.left[lane] == 0 {
            self.refill(lane);
        }
    }

    /// Encrypts what is left of the only message that is left.
    fn finish(&mut self, lane: usize) {
        let (item, left) = (&mut self.items[self.of[lane]], std::mem::take(&mut self.left[lane]));
        let mut chain = self.chains.blocks[lane].to_le_bytes();
        let encrypted = expand::cbc(self.cpu, item.request.key).and_then(|key| {
            let data = Span::of(&mut item.request.data)?;
            let done = data.len() - 16 * left;
            key.encrypt(&mut chain, data.behind(done)?)
        });
        if let Err(error) = encrypted {
            item.result = Err(error);
        }
        self.refill(lane);
    }
}
