//! A pool and a thread's own dispatcher in a process that forks. One test, because it counts its process's threads.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;

use wattlock::{Bounds, Dispatcher, Pool, Runtime};
use wattlock_core::{Data, Key, Kind, Request};

/// Forks; the child runs `child` and exits with 0 if it returned true. Returns whether it did. A child that hangs is
/// ended by its alarm.
fn in_child(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: what the child calls takes no lock of other threads: that is what this file tests. glibc keeps its
    // allocator usable.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: a system call without pointers.
        unsafe { libc::alarm(60) };
        let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
        // SAFETY: leaves without running the parent's destructors.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place for one int.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status == 0
}

fn digest(dispatcher: &mut Dispatcher) -> bool {
    let mut out = [0; 32];
    let request = &mut Request::new(Kind::Sha256, Key::none(), Data::Apart { from: b"abc", to: &mut out });
    dispatcher.run(request) == Ok(32) && out[..4] == [0xba, 0x78, 0x16, 0xbf]
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Uses an inherited pool as its own: new tickets, new threads.
fn works_anew(pool: &Pool<'static, bool>) -> bool {
    let alone = threads() == 1 && pool.take().is_none() && pool.outstanding() == 0;
    let tickets: Vec<u64> = (0..10).map(|_| pool.submit(0, digest)).collect();
    let own = threads() == 3 && tickets == (0..10).collect::<Vec<_>>();
    let results = (0..10).all(|ticket| {
        let done = pool.wait().unwrap();
        done.ticket == ticket && done.outcome.unwrap()
    });
    alone && own && results && pool.wait().is_none()
}

#[test]
fn no_thread_and_no_lock_crosses_a_fork() {
    let runtime = Runtime::builder().telemetry(false).build().unwrap();
    let bounds = Bounds { in_order: true, units: 20, ..Bounds::threads(2) };

    // Never used by the parent, and used by it.
    let pool = Pool::new(&runtime, bounds);
    assert!(in_child(|| works_anew(&pool)));
    pool.submit(0, digest);
    assert!(pool.wait().unwrap().outcome.unwrap());
    assert!(in_child(|| works_anew(&pool) && in_child(|| works_anew(&pool))), "a grandchild as well");

    // With one result ready, one unit begun and one that is done before its turn: they are the parent's alone, and so
    // is its descriptor.
    // SAFETY: a plain system call without pointers; the descriptor has no other owner.
    let event = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)) };
    pool.wake(event.as_fd()).unwrap();
    let mut event = File::from(event);
    let mut was_written = || event.read_exact(&mut [0; 8]).is_ok();
    let ((release, held), (began, begun)) = (channel::<()>(), channel());
    pool.submit(0, digest);
    while !was_written() {
        std::thread::yield_now();
    }
    pool.submit(0, move |_| {
        began.send(()).unwrap();
        held.recv().is_ok()
    });
    begun.recv().unwrap();
    pool.submit(0, digest);
    let mut kept = Some(pool);
    assert!(in_child(|| {
        let pool = kept.take().unwrap();
        let right = works_anew(&pool);
        drop(pool);
        right && threads() == 1
    }));
    // A child that never uses it drops it, too.
    assert!(in_child(|| kept.take().is_some() && threads() == 1));
    assert!(!was_written(), "by a child");
    let pool = kept.unwrap();
    release.send(()).unwrap();
    assert_eq!([(); 3].map(|()| pool.wait().unwrap().outcome.unwrap()), [true; 3]);
    // While other threads take and leave its locks all the time.
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    let _ = pool.try_submit(0, digest);
                    pool.take();
                    pool.outstanding();
                }
            });
        }
        let all = (0..100).all(|_| in_child(|| works_anew(&pool)));
        stop.store(true, Relaxed);
        assert!(all);
    });
    drop(pool);

    // A thread's own dispatcher goes on in a child, which has no other thread's.
    assert!(runtime.local(digest));
    assert!(in_child(|| runtime.local(digest) && in_child(|| runtime.local(digest))));
    assert!(runtime.local(digest));
}
