//! A fork while a call waits for a device. One test, because it forks.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};

use wattlock::Clock;
use wattlock_core::Nanos;
use wattlock_core::{Data, Engine, Item, Key, Kind, Request};
use wattlock_cpu::instruction::Instruction;
use wattlock_emul::{Emulated, Model, Pace};
use wattlock_policy::{Ask, Choice, EngineId, Policy, Rest, Side, Weather};

/// Forks; the child runs `child` and exits with 0 if it returned true. Returns whether it did.
fn in_child(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the only other thread is the harness's, which waits and holds no lock the child needs.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
        // SAFETY: leaves without running the parent's destructors.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place for one int.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status == 0
}

/// Everything to the card, a piece at a time.
struct OneByOne;

impl Policy for OneByOne {
    fn name(&self) -> &'static str {
        "one by one"
    }

    fn choose(&mut self, ask: &Ask, _: &Weather, _: Nanos) -> Choice {
        Choice::now(EngineId(u8::from(ask.may_wait)))
    }

    fn claim(&self, side: Side, rest: &Rest, _: &Weather) -> u32 {
        if side == Side::Device { rest.free } else { 0 }
    }
}

/// A signal handler may fork inside any call: here the clock does, while the call waits for a card that stands still.
#[test]
fn a_child_made_while_a_call_waits_for_a_device_does_the_work_itself() {
    assert!(child_works(40, false));
    for reading in [3, 40] {
        assert!(child_works(reading, true), "reading {reading}, between two questions");
    }
}

/// Whether parent and child do a call's work if that reading of the clock forks, under a policy that is asked about all
/// pieces or about each.
fn child_works(reading: i32, one_by_one: bool) -> bool {
    // In a process without the other test's threads.
    in_child(|| {
        // Counts down to the reading of the clock that forks; then the child's number, or -1 in the child.
        let (time, fork) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicI32::new(0)));
        let (hands, forks) = (time.clone(), fork.clone());
        let clock = Clock::given(move || {
            let left = forks.load(Relaxed);
            if (2..1000).contains(&left) {
                forks.store(left - 1, Relaxed);
            } else if left == 1 {
                // SAFETY: this process has one thread.
                let child = unsafe { libc::fork() };
                forks.store(if child == 0 { -1 } else { child.max(1000) }, Relaxed);
            }
            // While it counts the card answers nothing.
            hands.fetch_add(if left > 0 && left < 1000 { 0 } else { 1_000_000 }, Relaxed)
        });
        let inside: Arc<dyn Engine> = Arc::new(Instruction::new());
        let card = Emulated::new(Model::qat_dh8970(), inside.clone(), Pace::Stepped).unwrap();
        let builder = wattlock::Runtime::builder().engines(vec![inside, Arc::new(card)]);
        let builder = match one_by_one {
            true => builder.own_policy("one by one", |_| Box::new(OneByOne)),
            false => builder.policy("offload", Default::default()),
        };
        let builder = builder.clock(clock).telemetry(false);
        let runtime = builder.profile(wattlock::Profile::built_in()).build().unwrap();
        let mut dispatcher = runtime.dispatcher();
        let mut digests = |count: usize| {
            let mut out = vec![[0; 32]; count];
            let mut items: Vec<Item<'_>> = out
                .iter_mut()
                .map(|to| {
                    Item::new(Request::new(Kind::Sha256, Key::none(), Data::Apart { from: b"abc", to }))
                })
                .collect();
            dispatcher.run_all(&mut items);
            items.iter().all(|item| item.result == Ok(32))
                && out.iter().all(|out| out[..4] == [0xba, 0x78, 0x16, 0xbf])
        };
        // Until the card has given its known answers, and is used.
        let used = (0..100).any(|_| {
            let before = runtime.snapshot().cells.iter().filter(|cell| cell.engine == "emulated").count();
            digests(3) && before > 0
        });
        fork.store(reading, Relaxed);
        let good = used && digests(300);
        match fork.load(Relaxed) {
            // SAFETY: leaves without running the parent's destructors.
            -1 => unsafe { libc::_exit(i32::from(!good)) },
            child if child >= 1000 => {
                let mut status = 0;
                // SAFETY: `status` is a valid place for one int.
                good && unsafe { libc::waitpid(child, &raw mut status, 0) } == child && status == 0
            }
            left => panic!("never forked: {left}"),
        }
    })
}
