//! Key pairs made in advance.
//!
//! Lanes generate eight key pairs in about the time that one takes alone, and a generation depends on nothing that its
//! caller says. So where a thread generates keys all the time, as servers do for every handshake, it makes a batch at
//! once and hands out one after the other: no job pauses for a key or waits for batch-mates, and it pays outside of jobs and
//! for a single connection, too.
//!
//! A pair is handed out once, and only within [`FRESH`] of its making; then it is wiped. Pairs lie in memory that the kernel
//! zeroes in every child, however it was made: no child has any of its parent's. Whether batches pay is not assumed: where the policy did one by one what
//! was handed to it together, none is made for a while, and longer each time.

use std::sync::Arc;

use wattlock::core::{Completion, Key, Kind, Nanos, OwnedRequest};
use wattlock::{WIPED_BYTES, Wiped};
use zeroize::{Zeroize, Zeroizing};

use super::State;

/// How long a pair keeps, and how soon a batch must have been wanted before for another to be made.
const FRESH: Nanos = 1_000_000_000;

/// First and last pause where batches do not pay.
const PAUSE: (Nanos, Nanos) = (1_000_000, 16_000_000_000);

/// What a thread has made ahead, of each kind that it generates.
#[derive(Default)]
pub(super) struct KeyStock(Vec<Stock>);

struct Stock {
    kind: Kind,
    pairs: Pairs,
    made: Nanos,
    /// Generations wanted since then.
    wanted: u32,
    since: Nanos,
    /// When a batch may be made again, and how long the pause after it will be.
    not_before: Nanos,
    pause: Nanos,
}

/// Pairs of one length, one behind the other.
#[derive(Default)]
struct Pairs {
    place: Option<Wiped>,
    len: usize,
    count: usize,
}

impl Pairs {
    /// Whether there is room for so many more of a length: none if no such memory is left in this process.
    fn has_room(&mut self, count: usize, len: usize) -> bool {
        self.place = self.place.take().or_else(Wiped::take);
        let fits = self.count == 0 || self.len == len;
        self.place.is_some() && fits && (self.count + count) * len <= WIPED_BYTES
    }

    fn push(&mut self, pair: &[u8]) {
        let at = self.count * pair.len();
        let room =
            self.place.as_mut().and_then(Wiped::bytes).and_then(|bytes| bytes.get_mut(at..at + pair.len()));
        if let Some(room) = room {
            room.copy_from_slice(pair);
            (self.len, self.count) = (pair.len(), self.count + 1);
        }
    }

    fn pop(&mut self) -> Option<Zeroizing<Vec<u8>>> {
        let last = self.count.checked_sub(1)?;
        self.count = last;
        let bytes = self.place.as_mut()?.bytes()?.get_mut(last * self.len..(last + 1) * self.len)?;
        let pair = Zeroizing::new(bytes.to_vec());
        bytes.zeroize();
        Some(pair)
    }

    fn clear(&mut self) {
        *self = Pairs::default();
    }
}

impl KeyStock {
    fn stock(&mut self, kind: Kind) -> &mut Stock {
        let at = self.0.iter().position(|stock| stock.kind == kind).unwrap_or_else(|| {
            let (pairs, pause) = (Pairs::default(), PAUSE.0);
            self.0.push(Stock { kind, pairs, made: 0, wanted: 0, since: 0, not_before: 0, pause });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    /// A pair, if there is a fresh one.
    pub(super) fn take(&mut self, kind: Kind, now: Nanos) -> Option<Zeroizing<Vec<u8>>> {
        let stock = self.stock(kind);
        if now.saturating_sub(stock.made) >= FRESH {
            stock.pairs.clear();
        }
        stock.pairs.pop()
    }

    /// Whether a batch of `width` is worth making, for a request of one pair now: if as many were wanted of late.
    pub(super) fn is_worth_it(&mut self, kind: Kind, width: u16, now: Nanos) -> bool {
        let stock = self.stock(kind);
        if now.saturating_sub(stock.since) >= FRESH {
            (stock.wanted, stock.since) = (0, now);
        }
        stock.wanted = stock.wanted.saturating_add(1);
        stock.wanted > u32::from(width) && now >= stock.not_before
    }

    /// Takes in what was made.
    pub(super) fn put(&mut self, completion: Completion, now: Nanos) {
        let stock = self.stock(completion.request.kind);
        if completion.cost.batch > 1 {
            (stock.not_before, stock.pause) = (0, PAUSE.0);
        } else if now >= stock.not_before {
            stock.not_before = now + stock.pause;
            stock.pause = (stock.pause * 2).min(PAUSE.1);
        }
        if completion.result == Ok(completion.request.output.len()) {
            (stock.made, stock.wanted, stock.since) = (now, u32::MAX, now);
            stock.pairs.push(&completion.request.output);
        }
    }

    /// Wipes everything.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl State {
    /// A pair of `room` bytes out of a batch, if one is worth making and was made.
    pub(super) fn make_stock(&mut self, kind: Kind, width: u16, room: usize) -> Option<Zeroizing<Vec<u8>>> {
        if !self.key_stock.stock(kind).pairs.has_room(width.into(), room) {
            return None;
        }
        let key = Arc::new(Key::none_owned());
        let mut batch = Vec::new();
        for _ in 0..width {
            batch.push(OwnedRequest::new(kind, key.clone(), Vec::new(), room));
        }
        let now = self.now();
        let State { dispatcher, key_stock, .. } = self;
        // No device does the kind ([`Gather::lanes_of`]): all are done when this returns.
        dispatcher.submit_together(&mut batch, 0, &mut |_, submitted| {
            if let wattlock::Submitted::Done(done) = submitted {
                key_stock.put(done, now);
            }
        });
        self.key_stock.take(kind, now)
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

    use wattlock::Clock;
    use wattlock::core::KindSet;
    use wattlock::policy::{Gather, GatherRule};

    use super::super::tests::{Loaded, Made, in_child, runtime};
    use super::*;

    const KIND: Kind = Kind::X25519Generate;
    const PAIR: usize = 64;
    const WIDTH: u16 = wattlock_cpu::lanes::WIDTH as u16;

    /// A thread's state, and what it does when a pair is wanted.
    struct Thread {
        state: State,
        passes: Made,
        now: Arc<AtomicU64>,
    }

    impl Thread {
        fn new(to_lanes: bool) -> Thread {
            let passes = Made::default();
            let now = Arc::new(AtomicU64::new(FRESH));
            let hand = now.clone();
            let clock = Clock::given(move || hand.load(Relaxed));
            let runtime = runtime(KindSet::of(&[KIND]), to_lanes, clock, &passes);
            let gather = Gather::new(runtime.machine(), GatherRule::default(), None, false);
            let state = State::new(&runtime, gather, Arc::new(AtomicBool::new(false)));
            Thread { state, passes, now }
        }

        /// A pair made ahead, if there is one or a batch is made now.
        fn want(&mut self) -> Option<Vec<u8>> {
            let now = self.state.now();
            let mut made = self.state.key_stock.take(KIND, now);
            if made.is_none() && self.state.key_stock.is_worth_it(KIND, WIDTH, now) {
                made = self.state.make_stock(KIND, WIDTH, PAIR);
            }
            made.map(|one| one.to_vec())
        }

        fn wait(&self, nanos: Nanos) {
            self.now.fetch_add(nanos, Relaxed);
        }

        /// Batches since last asked.
        fn batches(&self) -> Vec<usize> {
            std::mem::take(&mut *self.passes.lock().unwrap())
        }

        /// A thread whose lanes have passed their test and have just made a batch.
        fn busy() -> Thread {
            let mut thread = Thread::new(true);
            for _ in 0..4 * WIDTH {
                thread.want();
                thread.wait(PAUSE.0);
            }
            while thread.state.key_stock.stock(KIND).pairs.count > 0 {
                thread.want();
            }
            thread.batches();
            thread
        }
    }

    #[test]
    fn a_thread_that_wants_few_pairs_makes_none_ahead() {
        let mut thread = Thread::new(true);
        for _ in 0..100 {
            assert_eq!(thread.want(), None);
            thread.wait(FRESH / 8 + 1);
        }
        assert!(thread.batches().is_empty());
    }

    #[test]
    fn a_busy_thread_gets_every_pair_out_of_full_batches_and_each_once() {
        let mut thread = Thread::busy();
        let pairs: BTreeSet<Vec<u8>> = (0..5 * WIDTH).map(|_| thread.want().unwrap()).collect();
        assert_eq!(pairs.len(), 5 * usize::from(WIDTH));
        assert_eq!(thread.batches(), [usize::from(WIDTH); 5]);
    }

    #[test]
    fn a_pair_that_is_not_fresh_is_never_handed_out() {
        let mut thread = Thread::busy();
        assert!(thread.want().is_some());
        let pairs = &mut thread.state.key_stock.stock(KIND).pairs;
        let held: BTreeSet<Vec<u8>> = std::iter::from_fn(|| pairs.pop()).map(|pair| pair.to_vec()).collect();
        held.iter().for_each(|pair| pairs.push(pair));
        assert_eq!(held.len(), usize::from(WIDTH) - 1);
        thread.wait(FRESH);
        assert_eq!(thread.want(), None, "the thread is not busy any more");
        assert_eq!(thread.state.key_stock.stock(KIND).pairs.count, 0);
        for _ in 0..10 * WIDTH {
            assert!(thread.want().is_none_or(|pair| !held.contains(&pair)));
        }
    }

    #[test]
    fn a_child_hands_out_no_pair_that_its_parent_made() {
        let clock = Clock::given(|| FRESH);
        let loaded = Loaded::with(runtime(KindSet::of(&[KIND]), true, clock, &Made::default()));
        let provider = loaded.provider();
        let held = || provider.seat().lock().key_stock.stock(KIND).pairs.count;
        let want = || {
            let mut pair = [0; PAIR];
            assert_eq!(provider.generate(KIND, &mut pair), Ok(PAIR));
            pair
        };
        let count = 2 * usize::from(WIDTH);
        (0..=WIDTH).for_each(|_| _ = want());
        assert_eq!(held(), usize::from(WIDTH) - 1, "made ahead");
        let child = in_child(|| (0..count).flat_map(|_| want()).collect());
        let (childs, rest) = child.as_chunks::<PAIR>();
        assert_eq!((childs.len(), rest.len()), (count, 0));
        let pairs: BTreeSet<[u8; PAIR]> = (0..count).map(|_| want()).chain(childs.iter().copied()).collect();
        assert_eq!(pairs.len(), 2 * count);
    }

    #[test]
    fn where_batches_do_not_pay_they_are_made_ever_more_rarely_and_their_pairs_used() {
        let mut thread = Thread::new(false);
        let mut ahead = 0;
        for _ in 0..100_000 {
            ahead += u32::from(thread.want().is_some());
            thread.wait(PAUSE.0);
        }
        // In a hundred seconds, after pauses of 1, 2, 4 ... 16,000 milliseconds and then of 16 seconds.
        let trials = ahead / u32::from(WIDTH);
        assert!((10..25).contains(&trials), "{trials} batches");
        assert!(thread.batches().is_empty());
    }
}
