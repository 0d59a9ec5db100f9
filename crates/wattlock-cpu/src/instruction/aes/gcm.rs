//! AES-GCM (SP 800-38D) over a [`Vector`] of 2 or 4 blocks: counter mode and [`ghash`](super::ghash) in one pass.
//!
//! A batch is [`WIDTH`] vectors. Between two rounds of a batch's cipher stands a piece of a batch's hash: the two keep
//! different units busy, and a core looks ahead too little to find the one behind the other. Opening hashes the batch
//! that it decrypts; sealing hashes the one before, whose ciphertext exists already, and so is one batch behind.
//!
//! Counter blocks and sums are integers, big-endian as GCM writes them: in a register that is a block with its bytes
//! reversed. The counter is the last 32 bits alone and wraps by itself (SP 800-38D section 6.2), as quarters of a
//! register do.
#![allow(unsafe_code, reason = "intrinsics on raw pointers; every entry takes a witness and a Span")]

use std::arch::x86_64::__m128i;
use std::mem::MaybeUninit;

use zeroize::{Zeroize, ZeroizeOnDrop};

use super::aes_ni::{Xmm, from_u128, to_u128};
use super::generic::{
    Cursor, NUMBERS, Vector, WIDTH, last_round, load_block_part, middle_rounds, rounds, splat_keys,
    store_block_part,
};
use super::ghash::{self, Batch, PIECES, Table, Tail};
use super::pages::{self, Cache, PAGE};
use super::schedule::Schedule;

/// What is kept of a message between its pieces. Wiped on drop.
#[derive(Clone, Default, Zeroize, ZeroizeOnDrop)]
pub(super) struct Message {
    /// The counter block of the next block.
    pub(super) counter: u128,
    /// What the hash is added to: the first counter block, encrypted.
    pub(super) mask: u128,
    /// The hash so far. Of a block under way the bytes that came are in it, and the multiplication is not.
    pub(super) sum: u128,
    /// Bytes of that block: associated data first, then data.
    pub(super) used: usize,
    /// The keystream of that block, if it is data.
    pub(super) stream: u128,
}

/// The counter block that is `blocks` further on.
#[inline]
pub(super) fn advanced(counter: u128, blocks: usize) -> u128 {
    let low = (counter as u32).wrapping_add(blocks as u32);
    counter & !u128::from(u32::MAX) | u128::from(low)
}

/// The hash's last block: lengths in bits.
#[inline]
pub(super) fn lengths(aad: u64, bytes: u64) -> u128 {
    u128::from(aad) << 67 | u128::from(bytes) << 3
}

/// Encrypts a block, an integer, to an integer.
///
/// # Safety
/// As for the methods of [`Xmm`].
#[inline(always)]
pub(super) unsafe fn encrypted<const R: usize>(keys: &Schedule, block: u128) -> u128 {
    // SAFETY: the instructions are the caller's.
    unsafe {
        let mut x = [Xmm(from_u128(block)).reversed()];
        rounds::<Xmm, R, 1, true>(&splat_keys::<Xmm, R>(keys), &mut x);
        to_u128(x[0].reversed().0)
    }
}

/// Encrypts or decrypts, and hashes the ciphertext, filled with zeros to whole blocks, and then `last`.
///
/// # Safety
/// As for the methods of `V`; `at` must come from a [`Span`](super::super::span::Span).
#[inline(always)]
pub(super) unsafe fn crypt<V: Vector, const R: usize, const SEAL: bool>(
    keys: &Schedule,
    table: &Table,
    sum: u128,
    counter: u128,
    at: Cursor,
    last: Option<u128>,
) -> u128 {
    // SAFETY: the instructions are the caller's; each step is as long as its loop condition allows.
    unsafe {
        let k = splat_keys::<V, R>(keys);
        let mut work = Work { k: &k, table, sum: from_u128(sum), at, behind: false };
        let batch = WIDTH * 16 * V::LANES;
        let mut counter = counter;
        if at.len >= LONG {
            let mut cache = Cache::EMPTY;
            let mut pages = Pages::<V>::new(&mut cache, &k, counter);
            work.batches::<R, SEAL, 3>(&mut pages);
            cache.wipe::<V>();
            counter = advanced(counter, (at.len - work.at.len) / 16);
        }
        let mut counters = Counters::<V>::new(counter);
        work.batches::<R, SEAL, 1>(&mut counters);
        let Work { mut sum, at, behind, .. } = work;
        if SEAL {
            let tail = crypt_tail::<V, R>(&k, &mut counters, at);
            if behind {
                sum = hash_batch::<V>(table, sum, at.to.cast_const().sub(batch));
            }
            sum = ghash::hash_tail(table, sum, tail, last);
        } else {
            sum = ghash::hash_tail(table, sum, tail_of::<V>(at), last);
            crypt_tail::<V, R>(&k, &mut counters, at);
        }
        to_u128(sum)
    }
}

/// States for a batch, as they are before the round that the caller begins with.
///
/// # Safety
/// As for the methods of `V`.
unsafe trait States<V> {
    /// # Safety
    /// As for the methods of `V`.
    unsafe fn batch(&mut self, k: &[V; 15]) -> [V; WIDTH];
}

/// A message under way.
struct Work<'a, V> {
    k: &'a [V; 15],
    table: &'a Table,
    sum: __m128i,
    at: Cursor,
    /// Whether the batch before `at` is written and not hashed yet.
    behind: bool,
}

impl<V: Vector> Work<'_, V> {
    /// As many batches as there are.
    ///
    /// # Safety
    /// As [`crypt`]; the states must be those before round FIRST.
    #[inline(always)]
    unsafe fn batches<const R: usize, const SEAL: bool, const FIRST: usize>(
        &mut self,
        states: &mut impl States<V>,
    ) {
        let batch = WIDTH * 16 * V::LANES;
        // SAFETY: the caller's; each step is as long as its condition allows.
        unsafe {
            if SEAL && !self.behind && self.at.len >= batch {
                let mut x = states.batch(self.k);
                batch_rounds::<V, R, FIRST>(self.k, &mut x, None);
                last_round::<V, R, WIDTH>(self.k, x, self.at);
                self.at.advance(batch);
                self.behind = true;
            }
            while self.at.len >= batch {
                let from = if SEAL { self.at.to.cast_const().sub(batch) } else { self.at.from };
                let mut hash = Batch::<V>::new(self.table, self.sum, from);
                let mut x = states.batch(self.k);
                batch_rounds::<V, R, FIRST>(self.k, &mut x, Some(&mut hash));
                self.sum = hash.done();
                last_round::<V, R, WIDTH>(self.k, x, self.at);
                self.at.advance(batch);
            }
        }
    }
}

/// Less than a batch.
///
/// # Safety
/// As [`crypt`].
#[inline(always)]
unsafe fn crypt_tail<V: Vector, const R: usize>(
    k: &[V; 15],
    counters: &mut Counters<V>,
    mut at: Cursor,
) -> Tail<V> {
    // SAFETY: the caller's; each step is as long as its condition allows.
    unsafe {
        let vector = 16 * V::LANES;
        let from = at.to.cast_const();
        let vectors = at.len / vector;
        if at.len >= 4 * vector {
            step::<V, R, 4>(k, counters, at);
            at.advance(4 * vector);
        }
        if at.len >= 2 * vector {
            step::<V, R, 2>(k, counters, at);
            at.advance(2 * vector);
        }
        if at.len >= vector {
            step::<V, R, 1>(k, counters, at);
            at.advance(vector);
        }
        let mut part = V::zero();
        if at.len > 0 {
            let mut x = counters.take::<1>(k[0]);
            middle_rounds::<V, R, 1, true>(k, &mut x);
            let out = x[0].encrypt_last(k[R]).xor(V::load_part(at.from, at.len));
            out.store_part(at.to, at.len);
            part = out.cut(at.len);
        }
        Tail { from, vectors, part, blocks: at.len.div_ceil(16) }
    }
}

/// The input as a tail.
///
/// # Safety
/// As [`crypt`].
#[inline(always)]
unsafe fn tail_of<V: Vector>(at: Cursor) -> Tail<V> {
    let (vectors, rest) = (at.len / (16 * V::LANES), at.len % (16 * V::LANES));
    // SAFETY: the caller's: `rest` bytes are left behind the vectors.
    let part = unsafe { V::load_part(at.from.add(at.len - rest), rest) };
    Tail { from: at.from, vectors, part, blocks: rest.div_ceil(16) }
}

/// # Safety
/// As [`Batch::new`].
#[inline(always)]
unsafe fn hash_batch<V: Vector>(table: &Table, sum: __m128i, from: *const u8) -> __m128i {
    // SAFETY: the caller's.
    unsafe {
        let mut hash = Batch::<V>::new(table, sum, from);
        for piece in 0..PIECES {
            hash.piece(piece);
        }
        hash.done()
    }
}

/// The counter blocks to come, as integers.
struct Counters<V> {
    next: V,
    increment: V,
}

impl<V: Vector> Counters<V> {
    /// # Safety
    /// As for the methods of `V`.
    #[inline(always)]
    unsafe fn new(counter: u128) -> Counters<V> {
        // SAFETY: the instructions are the caller's; four blocks are the widest vector.
        unsafe {
            let next = V::splat(from_u128(counter)).add32(V::load(NUMBERS.as_ptr().cast()));
            Counters { next, increment: V::splat(from_u128(V::LANES as u128)) }
        }
    }

    /// The states of the next N vectors before the first round.
    ///
    /// # Safety
    /// As for the methods of `V`.
    #[inline(always)]
    unsafe fn take<const N: usize>(&mut self, key: V) -> [V; N] {
        let mut x = [key; N];
        // SAFETY: the instructions are the caller's.
        unsafe {
            for v in &mut x {
                *v = self.next.reversed().xor(key);
                self.next = self.next.add32(self.increment);
            }
        }
        x
    }
}

// SAFETY: before the first round a state is the counter block xor the first key.
unsafe impl<V: Vector> States<V> for Counters<V> {
    #[inline(always)]
    unsafe fn batch(&mut self, k: &[V; 15]) -> [V; WIDTH] {
        // SAFETY: the caller's.
        unsafe { self.take::<WIDTH>(k[0]) }
    }
}

/// From this many bytes on a [`Cache`] is worth making. On Zen 3 with 256-bit vectors messages of 8 KiB take 5 % longer
/// with it and of 12 KiB as long; it saves 2 to 4 % at 16 KiB and 7 to 10 % at 64 KiB. There the multiplications are what
/// costs; where one AES round starts a cycle and is all a batch waits for, it saves up to a seventh.
const LONG: usize = 12 * 1024;

/// Counters by [`pages`]: the first two rounds are done once for 256 of them. Bytes 0, 5 and 10 belong to the nonce.
struct Pages<'c, V> {
    cache: &'c mut Cache,
    /// The first counter of this page, as an integer.
    counter: u128,
    page: V,
    /// How many counters of this page are used.
    used: usize,
}

impl<'c, V: Vector> Pages<'c, V> {
    /// # Safety
    /// As for the methods of `V`.
    #[inline(always)]
    unsafe fn new(cache: &'c mut Cache, k: &[V; 15], counter: u128) -> Pages<'c, V> {
        let used = counter as usize % PAGE;
        let first = counter - used as u128;
        // SAFETY: the instructions are the caller's; the cache holds PAGE blocks and as many more as the widest vector.
        unsafe {
            cache.fill(k, first);
            Pages { cache, counter: first, page: pages::rest(k, first), used }
        }
    }
}

// SAFETY: before the third round a state is what its page and its lowest byte add.
unsafe impl<V: Vector> States<V> for Pages<'_, V> {
    #[inline(always)]
    unsafe fn batch(&mut self, k: &[V; 15]) -> [V; WIDTH] {
        let mut x = [self.page; WIDTH];
        // SAFETY: the instructions are the caller's; a vector begins within the page and has LANES - 1 blocks more.
        unsafe {
            if self.used + WIDTH * V::LANES <= PAGE {
                for (i, v) in x.iter_mut().enumerate() {
                    *v = v.xor(V::load(self.cache.at(self.used + i * V::LANES)));
                }
                self.used += WIDTH * V::LANES;
                return x;
            }
            // The page ends in this batch, perhaps in the midst of a vector: its lanes are read from among as many of
            // this page and as many of the next.
            self.counter = advanced(self.counter, PAGE);
            let next = pages::rest(k, self.counter);
            let mut pages = [MaybeUninit::<u128>::uninit(); 8];
            self.page.store(pages.as_mut_ptr().cast());
            next.store(pages.as_mut_ptr().add(V::LANES).cast());
            for (i, v) in x.iter_mut().enumerate() {
                let place = self.used + i * V::LANES;
                let beyond = (place + V::LANES).saturating_sub(PAGE).min(V::LANES);
                let page = V::load(pages.as_ptr().add(beyond).cast());
                *v = page.xor(V::load(self.cache.at(place % PAGE)));
            }
            self.page = next;
            self.used = self.used + WIDTH * V::LANES - PAGE;
        }
        x
    }
}

/// # Safety
/// As [`last_round`].
#[inline(always)]
unsafe fn step<V: Vector, const R: usize, const N: usize>(
    k: &[V; 15],
    counters: &mut Counters<V>,
    at: Cursor,
) {
    // SAFETY: the caller's.
    unsafe {
        let mut x = counters.take::<N>(k[0]);
        middle_rounds::<V, R, N, true>(k, &mut x);
        last_round::<V, R, N>(k, x, at);
    }
}

/// Whether a piece of the hash stands behind a round: all pieces are spread evenly over the rounds.
#[inline(always)]
const fn due(piece: usize, round: usize, first: usize, end: usize) -> bool {
    let (from, to) = (PIECES * (round - first), PIECES * (round + 1 - first));
    piece * (end - first) >= from && piece * (end - first) < to
}

/// The rounds of a batch from FIRST to the last but one, and all pieces of a hash between them. Written out: which piece
/// stands where must be known when this is compiled.
///
/// # Safety
/// As for the methods of `V` and [`Batch::piece`].
#[inline(always)]
unsafe fn batch_rounds<V: Vector, const R: usize, const FIRST: usize>(
    k: &[V; 15],
    x: &mut [V; WIDTH],
    mut hash: Option<&mut Batch<'_, V>>,
) {
    macro_rules! round {
        ($round:literal) => {
            if $round >= FIRST && $round < R {
                // SAFETY: the caller's.
                unsafe {
                    for v in x.iter_mut() {
                        *v = v.encrypt(k[$round]);
                    }
                }
                pieces!($round: 0 1 2 3 4 5 6 7 8);
                if let Some(hash) = hash.as_deref_mut() {
                    // SAFETY: the caller's.
                    unsafe { hash.fence(x) };
                }
            }
        };
    }
    macro_rules! pieces {
        ($round:literal: $($piece:literal)*) => {
            $(if due($piece, $round, FIRST, R)
                && let Some(hash) = hash.as_deref_mut()
            {
                // SAFETY: the caller's.
                unsafe { hash.piece($piece) };
            })*
        };
    }
    const { assert!(PIECES == 9) };
    round!(1);
    round!(2);
    round!(3);
    round!(4);
    round!(5);
    round!(6);
    round!(7);
    round!(8);
    round!(9);
    round!(10);
    round!(11);
    round!(12);
    round!(13);
}

/// Goes on with a message: any number of bytes.
///
/// # Safety
/// As for the methods of [`Xmm`]; `whole` must encrypt or decrypt and hash whole blocks, and `at` must come from a
/// [`Span`](super::super::span::Span).
#[inline(always)]
pub(super) unsafe fn more<const R: usize, const SEAL: bool>(
    keys: &Schedule,
    table: &Table,
    message: &mut Message,
    mut at: Cursor,
    whole: unsafe fn(&Schedule, &Table, u128, u128, Cursor) -> u128,
) {
    // SAFETY: the caller's; each part is no longer than what is left.
    unsafe {
        if message.used > 0 {
            let len = at.len.min(16 - message.used);
            bytes::<SEAL>(message, Cursor { len, ..at });
            at.advance(len);
            if message.used < 16 {
                return;
            }
            message.sum = hashed_block(table, message.sum);
            message.used = 0;
        }
        let len = at.len & !15;
        if len > 0 {
            message.sum = whole(keys, table, message.sum, message.counter, Cursor { len, ..at });
            message.counter = advanced(message.counter, len / 16);
            at.advance(len);
        }
        if at.len > 0 {
            message.stream = encrypted::<R>(keys, message.counter);
            message.counter = advanced(message.counter, 1);
            begun::<SEAL>(message, at);
        }
    }
}

/// The first bytes of a block, fewer than it has: most messages end so, and one by one they would take as long as
/// several blocks.
///
/// # Safety
/// `at` must be valid, not empty, and shorter than a block.
#[inline(always)]
unsafe fn begun<const SEAL: bool>(message: &mut Message, at: Cursor) {
    // SAFETY: the caller's.
    unsafe {
        let input = load_block_part(at.from, at.len);
        let out = (input ^ message.stream.swap_bytes()) & ((1 << (8 * at.len)) - 1);
        store_block_part(out, at.to, at.len);
        message.sum ^= if SEAL { out } else { input }.swap_bytes();
    }
    message.used = at.len;
}

/// More bytes of the block under way.
///
/// # Safety
/// `at` must be valid, and no longer than what is left of the block.
#[inline(always)]
unsafe fn bytes<const SEAL: bool>(message: &mut Message, at: Cursor) {
    for i in 0..at.len {
        let place = 8 * (15 - message.used);
        // SAFETY: the caller's.
        unsafe {
            let byte = *at.from.add(i);
            let out = byte ^ (message.stream >> place) as u8;
            *at.to.add(i) = out;
            message.sum ^= u128::from(if SEAL { out } else { byte }) << place;
        }
        message.used += 1;
    }
}

/// Takes associated data, or a nonce that is not 12 bytes long.
///
/// # Safety
/// As for the methods of `V`.
#[inline(always)]
pub(super) unsafe fn associated<V: Vector>(table: &Table, message: &mut Message, mut data: &[u8]) {
    // SAFETY: the caller's.
    unsafe {
        if message.used > 0 {
            let (head, rest) = data.split_at(data.len().min(16 - message.used));
            associated_bytes(message, head);
            data = rest;
            if message.used < 16 {
                return;
            }
            message.sum = hashed_block(table, message.sum);
            message.used = 0;
        }
        let (whole, rest) = data.split_at(data.len() & !15);
        message.sum = ghash::hash::<V>(table, message.sum, whole);
        message.sum ^= load_block_part(rest.as_ptr(), rest.len()).swap_bytes();
        message.used = rest.len();
    }
}

/// More bytes of the block under way.
#[inline(always)]
fn associated_bytes(message: &mut Message, bytes: &[u8]) {
    for byte in bytes {
        message.sum ^= u128::from(*byte) << (8 * (15 - message.used));
        message.used += 1;
    }
}

/// Fills a block under way with zeros.
///
/// # Safety
/// As for the methods of [`Xmm`].
#[inline(always)]
pub(super) unsafe fn pad(table: &Table, message: &mut Message) {
    if message.used > 0 {
        // SAFETY: the caller's.
        message.sum = unsafe { hashed_block(table, message.sum) };
        message.used = 0;
    }
}

/// The hash after padding and a last block.
///
/// # Safety
/// As for the methods of [`Xmm`].
#[inline(always)]
pub(super) unsafe fn ended(table: &Table, message: &Message, last: u128) -> u128 {
    // SAFETY: the caller's; there is no vector to read.
    unsafe {
        // What came of the block under way is in the sum already: it stands for a block of zeros.
        let blocks = usize::from(message.used > 0);
        let tail = Tail { from: std::ptr::null(), vectors: 0, part: Xmm::zero(), blocks };
        to_u128(ghash::hash_tail(table, from_u128(message.sum), tail, Some(last)))
    }
}

/// The multiplication that completes a block.
///
/// # Safety
/// As for the methods of [`Xmm`].
#[inline(always)]
unsafe fn hashed_block(table: &Table, sum: u128) -> u128 {
    // SAFETY: the caller's; there is no vector to read.
    unsafe {
        let tail = Tail { from: std::ptr::null(), vectors: 0, part: Xmm::zero(), blocks: 1 };
        to_u128(ghash::hash_tail(table, from_u128(sum), tail, None))
    }
}

/// Writes a per-ISA file's safe entries for GCM: each demands the witness, so that its features are there. They are not
/// offered for inlining: the kernels behind them are long, and every crate that uses this one would compile its own.
macro_rules! gcm_kernels {
    ($witness:ty, $vector:ty, $features:literal) => {
        use super::gcm::{self, Message};
        use super::ghash::{self, Table};

        /// What is hashed with under these round keys.
        pub(super) fn gcm_table(_: $witness, keys: &Schedule) -> Table {
            #[target_feature(enable = $features)]
            unsafe fn run<const R: usize>(keys: &Schedule) -> Table {
                // SAFETY: this function enables the instructions.
                unsafe { Table::new::<$vector>(gcm::encrypted::<R>(keys, 0)) }
            }
            // SAFETY: the witness proves the instructions.
            unsafe {
                match keys.rounds() {
                    Rounds::Ten => run::<10>(keys),
                    Rounds::Twelve => run::<12>(keys),
                    Rounds::Fourteen => run::<14>(keys),
                }
            }
        }

        #[target_feature(enable = $features)]
        unsafe fn crypt<const R: usize, const SEAL: bool>(
            keys: &Schedule,
            table: &Table,
            sum: u128,
            counter: u128,
            at: Cursor,
            last: Option<u128>,
        ) -> u128 {
            // SAFETY: this function enables the instructions; the rest is the caller's.
            unsafe { gcm::crypt::<$vector, R, SEAL>(keys, table, sum, counter, at, last) }
        }

        /// A whole message; returns its tag.
        pub(super) fn gcm(
            _: $witness,
            keys: &Schedule,
            table: &Table,
            seal: bool,
            nonce: &[u8; 12],
            aad: &[u8],
            data: &Span<'_>,
        ) -> u128 {
            #[target_feature(enable = $features)]
            unsafe fn run<const R: usize, const SEAL: bool>(
                keys: &Schedule,
                table: &Table,
                nonce: u128,
                aad: &[u8],
                at: Cursor,
            ) -> u128 {
                // SAFETY: this function enables the instructions; the span is the caller's.
                unsafe {
                    let mask = gcm::encrypted::<R>(keys, nonce << 32 | 1);
                    let sum = ghash::hash::<$vector>(table, 0, aad);
                    let last = Some(gcm::lengths(aad.len() as u64, at.len as u64));
                    mask ^ crypt::<R, SEAL>(keys, table, sum, nonce << 32 | 2, at, last)
                }
            }
            let mut block = [0; 16];
            block[4..].copy_from_slice(nonce);
            let nonce = u128::from_be_bytes(block);
            let at = Cursor { from: data.from(), to: data.to(), len: data.len() };
            // SAFETY: the witness proves the instructions; `at` comes from a span that lives through this call.
            unsafe {
                match (keys.rounds(), seal) {
                    (Rounds::Ten, true) => run::<10, true>(keys, table, nonce, aad, at),
                    (Rounds::Twelve, true) => run::<12, true>(keys, table, nonce, aad, at),
                    (Rounds::Fourteen, true) => run::<14, true>(keys, table, nonce, aad, at),
                    (Rounds::Ten, false) => run::<10, false>(keys, table, nonce, aad, at),
                    (Rounds::Twelve, false) => run::<12, false>(keys, table, nonce, aad, at),
                    (Rounds::Fourteen, false) => run::<14, false>(keys, table, nonce, aad, at),
                }
            }
        }

        /// More data of a message that comes in pieces.
        pub(super) fn gcm_more(
            _: $witness,
            keys: &Schedule,
            table: &Table,
            seal: bool,
            message: &mut Message,
            data: Span<'_>,
        ) {
            #[target_feature(enable = $features)]
            unsafe fn whole<const R: usize, const SEAL: bool>(
                keys: &Schedule,
                table: &Table,
                sum: u128,
                counter: u128,
                at: Cursor,
            ) -> u128 {
                // SAFETY: this function enables the instructions; the rest is the caller's.
                unsafe { crypt::<R, SEAL>(keys, table, sum, counter, at, None) }
            }
            #[target_feature(enable = $features)]
            unsafe fn run<const R: usize, const SEAL: bool>(
                keys: &Schedule,
                table: &Table,
                message: &mut Message,
                at: Cursor,
            ) {
                // SAFETY: this function enables the instructions; the span is the caller's.
                unsafe { gcm::more::<R, SEAL>(keys, table, message, at, whole::<R, SEAL>) }
            }
            let at = Cursor { from: data.from(), to: data.to(), len: data.len() };
            // SAFETY: the witness proves the instructions; `at` comes from a span that lives through this call.
            unsafe {
                match (keys.rounds(), seal) {
                    (Rounds::Ten, true) => run::<10, true>(keys, table, message, at),
                    (Rounds::Twelve, true) => run::<12, true>(keys, table, message, at),
                    (Rounds::Fourteen, true) => run::<14, true>(keys, table, message, at),
                    (Rounds::Ten, false) => run::<10, false>(keys, table, message, at),
                    (Rounds::Twelve, false) => run::<12, false>(keys, table, message, at),
                    (Rounds::Fourteen, false) => run::<14, false>(keys, table, message, at),
                }
            }
        }

        /// More associated data of such a message, or its nonce, if that is not 12 bytes long.
        pub(super) fn gcm_associated(_: $witness, table: &Table, message: &mut Message, data: &[u8]) {
            #[target_feature(enable = $features)]
            unsafe fn run(table: &Table, message: &mut Message, data: &[u8]) {
                // SAFETY: this function enables the instructions.
                unsafe { gcm::associated::<$vector>(table, message, data) }
            }
            // SAFETY: the witness proves the instructions.
            unsafe { run(table, message, data) }
        }
    };
}
pub(super) use gcm_kernels;
