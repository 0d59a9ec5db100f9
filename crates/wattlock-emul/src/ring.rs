//! A bounded ring between one sender and one receiver, without `unsafe`.
//!
//! Positions count up from 0 and never wrap in a program's life (2^64 of them); position `p` uses slot `p mod capacity`.
//!
//! | field  | written by | read by  | means                                        |
//! |--------|------------|----------|----------------------------------------------|
//! | `tail` | sender     | both     | positions below it have been filled          |
//! | `head` | receiver   | both     | positions below it have been emptied         |
//! | slot   | both       | both     | full for positions in `head..tail`, else empty |
//!
//! Rules:
//! 1. Only the sender stores `tail`, only the receiver stores `head`; neither ever decreases.
//! 2. `head <= tail <= head + capacity`.
//! 3. The sender fills the slot at `tail` only after it saw `tail - head < capacity` (acquire on `head`), and then stores
//!    `tail + 1` (release).
//! 4. The receiver empties the slot at `head` only after it saw `head < tail` (acquire on `tail`), and then stores
//!    `head + 1` (release).
//! 5. By 3 and 4 no two parties ever touch one slot at once. The slot's lock is there because safe Rust wants one; it is
//!    taken by `try_lock`, no thread ever waits for it, and finding it taken would be a defect.
//! 6. Items in the ring when both ends are gone are dropped with it.
//!
//! Rules 1 to 6 are model-checked with the capacity at 1 and 2, where the edges meet:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p wattlock-emul --release --lib --target-dir target/loom ring
//! ```

#[cfg(loom)]
use loom::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};
#[cfg(not(loom))]
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

struct Shared<T> {
    head: AtomicUsize,
    tail: AtomicUsize,
    slots: Box<[Mutex<Option<T>>]>,
}

impl<T> Shared<T> {
    /// Takes the slot of a position for a moment (rule 5).
    fn slot<R>(&self, position: usize, touch: impl FnOnce(&mut Option<T>) -> R) -> R {
        match self.slots[position % self.slots.len()].try_lock() {
            Ok(mut slot) => touch(&mut slot),
            Err(_) => unreachable!("two parties touched one slot (rule 5)"),
        }
    }
}

/// The sending end.
pub struct Sender<T>(Arc<Shared<T>>);

/// The receiving end.
pub struct Receiver<T>(Arc<Shared<T>>);

/// A ring with room for `capacity` items, at least one.
pub fn ring<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let slots = (0..capacity.max(1)).map(|_| Mutex::new(None)).collect();
    let shared = Arc::new(Shared { head: AtomicUsize::new(0), tail: AtomicUsize::new(0), slots });
    (Sender(shared.clone()), Receiver(shared))
}

impl<T> Sender<T> {
    /// Puts an item in. Never blocks.
    ///
    /// # Errors
    /// The item, if the ring is full.
    pub fn send(&mut self, item: T) -> Result<(), T> {
        let shared = &*self.0;
        // Only this end stores `tail` (rule 1).
        let tail = shared.tail.load(Ordering::Relaxed);
        if tail - shared.head.load(Ordering::Acquire) >= shared.slots.len() {
            return Err(item);
        }
        shared.slot(tail, |slot| *slot = Some(item));
        shared.tail.store(tail + 1, Ordering::Release);
        Ok(())
    }
}

impl<T> Receiver<T> {
    /// Takes the oldest item out, if there is one. Never blocks.
    pub fn receive(&mut self) -> Option<T> {
        let shared = &*self.0;
        // Only this end stores `head` (rule 1).
        let head = shared.head.load(Ordering::Relaxed);
        if head == shared.tail.load(Ordering::Acquire) {
            return None;
        }
        let item = shared.slot(head, Option::take);
        shared.head.store(head + 1, Ordering::Release);
        item
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn items_come_in_order_and_a_full_ring_gives_the_item_back() {
        let (mut sender, mut receiver) = ring(2);
        assert_eq!((sender.send(1), sender.send(2), sender.send(3)), (Ok(()), Ok(()), Err(3)));
        assert_eq!(receiver.receive(), Some(1));
        assert_eq!(sender.send(3), Ok(()));
        assert_eq!((receiver.receive(), receiver.receive(), receiver.receive()), (Some(2), Some(3), None));
    }

    #[test]
    fn items_left_in_the_ring_are_dropped_with_it() {
        let item = Arc::new(());
        let (mut sender, receiver) = ring(4);
        sender.send(item.clone()).unwrap();
        drop(sender);
        assert_eq!(Arc::strong_count(&item), 2);
        drop(receiver);
        assert_eq!(Arc::strong_count(&item), 1);
    }

    #[test]
    fn two_threads_move_many_items() {
        let (mut sender, mut receiver) = ring(3);
        let thread = std::thread::spawn(move || {
            for item in 0..20_000u32 {
                let mut next = item;
                while let Err(back) = sender.send(next) {
                    next = back;
                    std::thread::yield_now();
                }
            }
        });
        for item in 0..20_000 {
            let got = std::iter::repeat_with(|| receiver.receive()).find_map(|got| {
                got.is_none().then(std::thread::yield_now);
                got
            });
            assert_eq!(got, Some(item));
        }
        thread.join().unwrap();
        assert_eq!(receiver.receive(), None);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;

    /// Every item arrives once and in order, whatever the interleaving, and the ring never holds more than it may.
    fn moves(capacity: usize, items: usize) {
        loom::model(move || {
            let (mut sender, mut receiver) = ring(capacity);
            let producer = thread::spawn(move || {
                let mut sent = 0;
                while sent < items {
                    match sender.send(sent) {
                        Ok(()) => sent += 1,
                        Err(back) => {
                            assert_eq!(back, sent);
                            thread::yield_now();
                        }
                    }
                }
            });
            let mut received = 0;
            while received < items {
                match receiver.receive() {
                    Some(item) => {
                        assert_eq!(item, received);
                        received += 1;
                    }
                    None => thread::yield_now(),
                }
            }
            producer.join().unwrap();
            assert_eq!(receiver.receive(), None);
        });
    }

    #[test]
    fn ring_of_one_moves_three_items() {
        moves(1, 3);
    }

    #[test]
    fn ring_of_two_moves_three_items() {
        moves(2, 3);
    }

    #[test]
    fn ring_drops_what_is_left_in_it() {
        loom::model(|| {
            let item = Arc::new(());
            let (mut sender, mut receiver) = ring(2);
            let sent = item.clone();
            let producer = thread::spawn(move || {
                let _ = sender.send(sent.clone());
                let _ = sender.send(sent);
            });
            let got = receiver.receive();
            drop(receiver);
            producer.join().unwrap();
            drop(got);
            assert_eq!(Arc::strong_count(&item), 1);
        });
    }
}
