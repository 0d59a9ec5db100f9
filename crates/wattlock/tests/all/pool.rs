//! Threads for doors: order, bounds, panics, waking, the end.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;

use wattlock::{Bounds, Dispatcher, Full, Pool, Runtime};
use wattlock_core::{Data, Key, Kind, Request};

fn runtime() -> Runtime {
    Runtime::builder().telemetry(false).build().unwrap()
}

fn in_order(threads: usize) -> Bounds {
    Bounds { in_order: true, ..Bounds::threads(threads) }
}

fn digest(dispatcher: &mut Dispatcher) -> bool {
    let mut out = [0; 32];
    let request = &mut Request::new(Kind::Sha256, Key::none(), Data::Apart { from: b"abc", to: &mut out });
    dispatcher.run(request) == Ok(32) && out[..4] == [0xba, 0x78, 0x16, 0xbf]
}

fn digests_counted(runtime: &Runtime) -> u64 {
    let cells = runtime.snapshot().cells;
    cells.iter().filter(|cell| cell.kind == "sha-256").map(|cell| cell.requests).sum()
}

#[test]
fn in_order_a_result_waits_for_all_earlier_ones() {
    let pool = Pool::new(&runtime(), in_order(4));
    let ((release, held), (tell, told)) = (channel::<()>(), channel());
    pool.submit(0, move |_| held.recv().unwrap());
    for _ in 0..3 {
        let tell = tell.clone();
        pool.submit(0, move |_| tell.send(()).unwrap());
    }
    (0..3).for_each(|_| told.recv().unwrap());
    assert!(pool.take().is_none(), "the first is not done");
    release.send(()).unwrap();
    assert_eq!([(); 4].map(|()| pool.wait().unwrap().ticket), [0, 1, 2, 3]);
    assert!(pool.wait().is_none());
}

#[test]
fn without_order_a_result_waits_for_nobody() {
    let pool = Pool::new(&runtime(), Bounds::threads(2));
    let (release, held) = channel::<()>();
    pool.submit(0, move |_| held.recv().unwrap());
    pool.submit(0, |_| {});
    assert_eq!(pool.wait().unwrap().ticket, 1);
    release.send(()).unwrap();
    assert_eq!(pool.wait().unwrap().ticket, 0);
}

#[test]
fn a_full_pool_gives_the_work_back_until_a_result_was_taken() {
    let pool = Pool::new(&runtime(), Bounds { units: 2, ..in_order(1) });
    let (release, held) = channel::<()>();
    pool.submit(0, move |_| {
        held.recv().unwrap();
        0
    });
    pool.submit(0, |_| 1);
    let Err(Full(work)) = pool.try_submit(0, |_: &mut Dispatcher| 7) else { panic!("there was room") };
    assert_eq!(runtime().local(work), 7, "untouched");
    release.send(()).unwrap();
    let one = pool.wait().unwrap();
    assert_eq!((one.ticket, one.outcome.unwrap()), (0, 0));
    assert_eq!(pool.try_submit(0, |_| 2).unwrap(), 2);
}

#[test]
fn bytes_are_bounded_and_what_is_larger_goes_alone() {
    let pool = Pool::new(&runtime(), Bounds { units: 100, bytes: 100, ..Bounds::threads(1) });
    pool.submit(1000, |_| {});
    assert!(pool.try_submit(1, |_| {}).is_err());
    assert_eq!(pool.wait().unwrap().ticket, 0);
    pool.submit(60, |_| {});
    pool.submit(40, |_| {});
    assert!(pool.try_submit(1, |_| {}).is_err());
    assert!(pool.try_submit(usize::MAX, |_| {}).is_err());
    assert!(pool.try_submit(0, |_| {}).is_ok());
    while pool.wait().is_some() {}
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn many_submitters_never_exceed_the_bound_and_lose_nothing() {
    const EACH: u64 = 300;
    let pool = Pool::new(&runtime(), Bounds { units: 5, ..in_order(3) });
    let most = AtomicUsize::new(0);
    let mut tickets: Vec<u64> = thread::scope(|scope| {
        let (pool, most) = (&pool, &most);
        let submit = move || -> Vec<u64> { (0..EACH).map(|_| pool.submit(0, digest)).collect() };
        let submitters: Vec<_> = (0..6).map(|_| scope.spawn(submit)).collect();
        let mut expected = 0;
        while expected < 6 * EACH {
            most.fetch_max(pool.outstanding(), Relaxed);
            let Some(done) = pool.wait() else { continue };
            assert_eq!(done.ticket, expected);
            assert!(done.outcome.unwrap());
            expected += 1;
        }
        submitters.into_iter().flat_map(|one| one.join().unwrap()).collect()
    });
    tickets.sort_unstable();
    assert_eq!(tickets, (0..6 * EACH).collect::<Vec<_>>());
    assert!((1..=5).contains(&most.load(Relaxed)));
}

#[test]
fn a_panic_is_told_to_the_submitter_and_ends_nothing() {
    for threads in [0, 1] {
        let pool = Pool::new(&runtime(), in_order(threads));
        pool.submit(0, |_| -> bool { panic!("a test's") });
        pool.submit(0, digest);
        let broken = pool.wait().unwrap().outcome.unwrap_err();
        assert_eq!(broken.downcast_ref::<&str>(), Some(&"a test's"));
        assert!(pool.wait().unwrap().outcome.unwrap(), "the next has a sound dispatcher");
    }
}

#[test]
fn without_threads_the_submitter_does_the_work_and_it_is_counted() {
    let runtime = runtime();
    let pool = Pool::new(&runtime, in_order(0));
    assert_eq!(pool.start().unwrap(), 0);
    for ticket in 0..3 {
        pool.submit(0, |dispatcher| (digest(dispatcher), thread::current().id()));
        let done = pool.take().expect("done by now");
        assert_eq!(done.ticket, ticket);
        assert_eq!(done.outcome.unwrap(), (true, thread::current().id()));
    }
    assert_eq!(digests_counted(&runtime), 3);
}

#[test]
fn without_threads_each_submitter_does_its_own_work() {
    let pool = Pool::new(&runtime(), Bounds { units: 10_000, ..in_order(0) });
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let done = Arc::new(AtomicBool::new(false));
                    let flag = done.clone();
                    let own = thread::current().id();
                    pool.submit(0, move |_| flag.store(thread::current().id() == own, Relaxed));
                    assert!(done.load(Relaxed));
                }
            });
        }
    });
    assert_eq!(std::iter::from_fn(|| pool.take()).map(|done| done.ticket).sum::<u64>(), 799 * 400);
}

#[test]
fn what_threads_do_is_counted() {
    let runtime = runtime();
    let pool = Pool::new(&runtime, Bounds { units: 100, ..Bounds::threads(3) });
    assert_eq!(pool.start().unwrap(), 3);
    (0..50).for_each(|_| _ = pool.submit(0, digest));
    while pool.wait().is_some() {}
    assert_eq!(digests_counted(&runtime), 50);
}

fn event_descriptor() -> OwnedFd {
    // SAFETY: a plain system call without pointers.
    let number = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    assert!(number >= 0);
    // SAFETY: just made, with one owner.
    unsafe { OwnedFd::from_raw_fd(number) }
}

#[test]
fn a_descriptor_wakes_whoever_waits_for_results() {
    for threads in [0, 2] {
        let pool = Pool::new(&runtime(), Bounds::threads(threads));
        let mut event = File::from(event_descriptor());
        pool.wake(event.as_fd()).unwrap();
        let mut taken = 0;
        for round in 1..=20 {
            for _ in 0..3 {
                pool.submit(0, digest);
            }
            while taken < 3 * round {
                // Sleeps until it is written to: a result that woke no thread would never be taken.
                let mut count = [0; 8];
                event.read_exact(&mut count).unwrap();
                assert!(u64::from_ne_bytes(count) >= 1);
                while let Some(done) = pool.take() {
                    assert!(done.outcome.unwrap());
                    taken += 1;
                }
            }
        }
    }
}

#[test]
fn a_descriptor_named_late_tells_of_what_is_ready() {
    let pool = Pool::new(&runtime(), Bounds::threads(0));
    pool.submit(0, |_| {});
    let mut event = File::from(event_descriptor());
    pool.wake(event.as_fd()).unwrap();
    let mut count = [0; 8];
    event.read_exact(&mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 1);
}

#[test]
fn a_closed_pipe_wakes_nobody_and_harms_nobody() {
    let pool = Pool::new(&runtime(), Bounds::threads(1));
    let (reader, writer) = std::io::pipe().unwrap();
    pool.wake(writer.as_fd()).unwrap();
    drop(reader);
    pool.submit(0, digest);
    assert!(pool.wait().unwrap().outcome.unwrap());
}

#[test]
fn a_closure_gets_every_result_in_order_and_one_at_a_time() {
    const COUNT: u64 = 2000;
    for helping in [false, true] {
        let (seen, inside) = (Arc::new(Mutex::new(Vec::new())), AtomicBool::new(false));
        let give = {
            let seen = seen.clone();
            move |done: wattlock::Done<u64>| {
                assert!(!inside.swap(true, Relaxed));
                assert_eq!(done.ticket, done.outcome.unwrap());
                seen.lock().unwrap().push(done.ticket);
                if done.ticket.is_multiple_of(5) {
                    thread::yield_now();
                }
                inside.store(false, Relaxed);
            }
        };
        let pool = Pool::giving(&runtime(), Bounds { units: 9, helping, ..in_order(4) }, give);
        for number in 0..COUNT {
            pool.submit(0, move |_| {
                if number % 7 < 2 {
                    thread::yield_now();
                }
                number
            });
        }
        assert!(pool.wait().is_none());
        assert_eq!(*seen.lock().unwrap(), (0..COUNT).collect::<Vec<_>>());
    }
}

#[test]
fn a_closure_that_panics_ends_nothing() {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let pool = Pool::giving(&runtime(), in_order(2), move |_| {
        assert!(counted.fetch_add(1, Relaxed) != 1, "a test's");
    });
    (0..5).for_each(|_| _ = pool.submit(0, |_| {}));
    assert!(pool.wait().is_none());
    assert_eq!(count.load(Relaxed), 5);
}

#[test]
fn a_caller_that_helps_does_queued_work_instead_of_waiting() {
    let pool = Pool::new(&runtime(), Bounds { units: 2, helping: true, ..in_order(1) });
    let (tell, told) = channel();
    // Whoever has the first waits for the second: the caller does one of them, for the third finds no room.
    pool.submit(0, move |_| {
        told.recv().unwrap();
        thread::current().id()
    });
    pool.submit(0, move |_| {
        tell.send(()).unwrap();
        thread::current().id()
    });
    let ids: Vec<_> = thread::scope(|scope| {
        let third = scope.spawn(|| {
            pool.submit(0, |_| thread::current().id());
            thread::current().id()
        });
        let ids = [(); 2].map(|()| pool.wait().unwrap().outcome.unwrap());
        let helpers = [thread::current().id(), third.join().unwrap()];
        ids.into_iter().filter(|id| helpers.contains(id)).collect()
    });
    assert!(!ids.is_empty());
}

/// Tells when it is dropped.
struct Told(std::sync::mpsc::Sender<()>);

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

#[test]
fn dropping_finishes_what_has_begun_and_drops_what_has_not() {
    let ((began, begun), (tell, dropped)) = (channel(), channel());
    let finished = Arc::new(AtomicBool::new(false));
    let pool = Pool::new(&runtime(), Bounds { units: 10, ..Bounds::threads(1) });
    let flag = finished.clone();
    pool.submit(0, move |_| {
        began.send(()).unwrap();
        // Until all that is queued was dropped.
        (0..5).for_each(|_| dropped.recv().unwrap());
        flag.store(true, Relaxed);
    });
    for _ in 0..5 {
        let told = Told(tell.clone());
        pool.submit(0, move |_| {
            drop(told);
            unreachable!("the one thread is busy until the pool has been emptied");
        });
    }
    begun.recv().unwrap();
    drop(pool);
    assert!(finished.load(Relaxed), "joined");
}

#[test]
fn a_unit_may_hold_the_last_reference() {
    let (tell, told) = channel();
    let (ready, go) = channel::<()>();
    let pool = Arc::new(Pool::new(&runtime(), Bounds::threads(2)));
    let last = pool.clone();
    pool.submit(0, move |_| {
        go.recv().unwrap();
        drop(last);
        tell.send(()).unwrap();
    });
    drop(pool);
    ready.send(()).unwrap();
    told.recv().unwrap();
}

#[test]
fn a_scope_lends_its_pool_what_lives_longer() {
    let (runtime, numbers, sum) = (runtime(), [1, 2, 3], Mutex::new(0));
    thread::scope(|scope| {
        let give = |done: wattlock::Done<i32>| *sum.lock().unwrap() += done.outcome.unwrap();
        let pool = Pool::scoped(&runtime, Bounds::threads(2), scope, give);
        for number in &numbers {
            pool.submit(0, move |_| *number);
        }
        assert!(pool.wait().is_none());
    });
    assert_eq!(*sum.lock().unwrap(), 6);
}

#[test]
fn a_local_dispatcher_is_the_same_at_the_next_call() {
    let runtime = runtime();
    assert!((0..5).all(|_| runtime.local(digest)));
    let proved = runtime.snapshot().engines.iter().map(|engine| engine.tests).sum::<u64>();
    assert!(runtime.local(digest));
    let again = runtime.snapshot().engines.iter().map(|engine| engine.tests).sum::<u64>();
    assert_eq!(proved, again, "proved once");
    assert_eq!(digests_counted(&runtime), 6);
}
