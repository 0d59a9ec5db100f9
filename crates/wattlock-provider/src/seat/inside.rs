//! Work inside the call, and when a call that cannot pause sleeps until a device has answered.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering::Relaxed;

use wattlock::Runtime;
use wattlock::core::{Error, Family, Fault, Group, Item, Kind, KindSet, Request};
use wattlock::policy::OFFLOADING;

use super::State;
use crate::provider::Provider;
use crate::sys;

/// The kinds for which a call that cannot pause waits for a device that the policy names: the one rule.
///
/// - Only under the published rules that offload: their papers measured callers that wait. `adaptive` has the CPU do what
///   would block its caller.
/// - Only what is one request by itself: operations of keys, derivations, records and data units of ciphers, and a piece
///   of whole CBC blocks, which needs nothing of what came before but a block of ciphertext. Other messages in pieces are
///   streams, and the CPU's.
/// - Nothing that a random generator is made of (SP 800-90A: counter mode, MACs, digests): no device sees its state.
pub(crate) fn waits(runtime: &Runtime) -> KindSet {
    if !OFFLOADING.contains(&&*runtime.policy()) {
        return KindSet::EMPTY;
    }
    let devices = runtime.machine().engines.iter().filter(|engine| !engine.class.is_cpu());
    let of_devices = devices.fold(KindSet::EMPTY, |kinds, engine| kinds.union(engine.queued));
    let whole = |kind: &Kind| match kind.info().family {
        Family::Cipher => kind.info().group != Group::Ctr,
        Family::Digest | Family::Mac | Family::Compress => false,
        _ => true,
    };
    of_devices.iter().filter(whole).collect()
}

impl Provider {
    /// Whether a request of this kind may wait for a device in a call that cannot pause.
    #[inline]
    pub(crate) fn may_wait(&self, kind: Kind) -> bool {
        self.waits.load(Relaxed) && self.seat().lock().may_wait(kind)
    }

    /// Whether a piece of a message may wait for a device: never in an `ASYNC_JOB`, whose loop would wait with it.
    #[inline]
    pub(crate) fn piece_may_wait(&self, kind: Kind) -> bool {
        self.waits.load(Relaxed) && !in_job() && self.seat().lock().waits.contains(kind)
    }

    /// Whether a record that this thread writes may wait for a device.
    pub(crate) fn records_wait(&self) -> bool {
        let record = |kind: Kind| matches!(kind.info().group, Group::Cbc | Group::Gcm);
        self.waits.load(Relaxed) && self.seat().lock().waits.iter().any(record)
    }

    /// Does a request inside the call, also inside an `ASYNC_JOB`, which it never pauses; it may wait for a device.
    ///
    /// # Errors
    /// As [`Dispatcher::run`](wattlock::Dispatcher::run).
    pub(crate) fn run_or_wait(&self, request: Request<'_>) -> Result<usize, Error> {
        let seat = self.seat();
        let done = seat.lock().with_room(|state| state.inside(request));
        done.unwrap_or(Err(Error::Device(Fault::Lost)))
    }
}

fn in_job() -> bool {
    // SAFETY: a public call without arguments.
    unsafe { !sys::ASYNC_get_current_job().is_null() }
}

impl State {
    /// Inside a job only if there is a stack for it: the CPU's own way needs none.
    fn may_wait(&mut self, kind: Kind) -> bool {
        self.waits.contains(kind) && (!in_job() || self.has_stack())
    }

    /// Does a request before it returns: by the CPU, or by a device for which the call then sleeps. What goes wrong there
    /// is the CPU's, at the latest when the runtime gives the device up; others' answers that come meanwhile are kept for
    /// them.
    #[inline]
    pub(super) fn inside(&mut self, mut request: Request<'_>) -> Result<usize, Error> {
        if !self.waits.contains(request.kind) {
            return self.dispatcher.run(&mut request);
        }
        let mut one = [Item::new(request)];
        self.dispatcher.run_all(&mut one);
        one[0].result
    }

    /// Does `work`; inside a job, whose stack is too small for it, on the seat's own, which takes calls to the kernel.
    pub(super) fn with_room<R>(&mut self, work: impl FnOnce(&mut State) -> R) -> Option<R> {
        if in_job() { self.deep(work) } else { Some(work(self)) }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use wattlock::core::{KnownAnswer, known_answers};
    use wattlock::policy::{NAMES, Settings};
    use wattlock::{Clock, Profile};
    use wattlock_cpu::instruction::Instruction;
    use wattlock_emul::{Emulated, Model, Pace};

    use super::super::tests::{Job, Loaded, Within, in_child};
    use super::*;
    use crate::table;

    const KIND: Kind = Kind::P384Derive;

    /// A provider under a rule, with a card that does everything and has these faults. The time passes by being read.
    pub(crate) struct UnderRule {
        pub(crate) loaded: Loaded,
        runtime: Runtime,
    }

    impl UnderRule {
        pub(crate) fn new(policy: &str, faults: &str) -> UnderRule {
            let inline = wattlock::own_engines().swap_remove(0);
            let kinds: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
            let model = format!(
                "name card\nwindow 64 requests 4194304 bytes\npool all 8 servers\ntable {} 0:1000000\n{faults}",
                kinds.join(",")
            );
            let model = Model::parse(&model).unwrap();
            let card = Emulated::new(model, Arc::new(Instruction::new()), Pace::Stepped).unwrap();
            let mut settings = Settings::default();
            settings.set("eeca.threshold_bytes=0").unwrap();
            let time = AtomicU64::new(1);
            let runtime = Runtime::builder()
                .engines(vec![inline, Arc::new(card)])
                .policy(policy, settings)
                .profile(Profile::built_in())
                .clock(Clock::given(move || time.fetch_add(100_000, Relaxed)))
                .verify_one_in(1)
                .telemetry(false)
                .build()
                .unwrap();
            UnderRule { loaded: Loaded::with(runtime.clone()), runtime }
        }

        pub(crate) fn provider(&self) -> &Provider {
            self.loaded.provider()
        }

        fn call(&self, kind: Kind) {
            call(self.provider(), kind);
        }

        pub(crate) fn on_card_of(&self, kind: Kind) -> u64 {
            let cells = self.runtime.snapshot().cells;
            let cells = cells.iter().filter(|cell| cell.engine == "emulated" && cell.kind == kind.name());
            cells.map(|cell| cell.requests).sum()
        }

        /// Has it do a kind until the card has given its known answers.
        fn until_proved(&self, kind: Kind) {
            let tried = (0..100).find(|_| {
                self.call(kind);
                self.on_card_of(kind) > 0
            });
            assert!(tried.is_some(), "{kind:?} never gets to the card");
        }

        /// Why the card did not do what it was named for, how often.
        fn fallbacks(&self) -> Vec<(String, u64)> {
            let mut engines = self.runtime.snapshot().engines.into_iter();
            let card = engines.find(|engine| engine.engine == "emulated").map(|card| card.fallbacks);
            card.into_iter().flatten().filter(|(_, count)| *count > 0).collect()
        }
    }

    /// Does every known answer of a kind outside jobs; each must come out right.
    fn call(provider: &Provider, kind: Kind) {
        let checker = wattlock::own_engines().swap_remove(0);
        for KnownAnswer { mut request, expected, .. } in known_answers(kind) {
            let result = provider.run_or_wait(request.view());
            expected.verdict(&request, &result, &*checker).unwrap();
        }
    }

    #[test]
    fn only_the_published_rules_that_offload_have_a_call_wait() {
        for policy in NAMES {
            let with = UnderRule::new(policy, "");
            (0..20).for_each(|_| with.call(KIND));
            let may = with.provider().may_wait(KIND);
            assert_eq!(may, OFFLOADING.contains(&policy), "{policy}");
            match policy {
                "offload" | "eeca" | "qweb" | "lecpaes" => assert!(with.on_card_of(KIND) > 0, "{policy}"),
                // It is not even asked.
                _ if !may => assert_eq!((with.on_card_of(KIND), with.fallbacks()), (0, vec![]), "{policy}"),
                _ => {}
            }
        }
    }

    #[test]
    fn every_kind_that_is_one_request_is_the_cards_and_comes_out_right() {
        let with = UnderRule::new("offload", "");
        let kinds = waits(&with.runtime);
        assert!(
            [Kind::Rsa2048Private, Kind::EcdsaP256Sign, Kind::X25519Generate, Kind::HkdfExpandSha256]
                .into_iter()
                .chain([Kind::Aes128GcmSeal, Kind::Aes256XtsDecrypt, Kind::Aes256CbcEncrypt])
                .all(|kind| kinds.contains(kind))
        );
        for kind in kinds.iter() {
            with.until_proved(kind);
            let (before, count) = (with.on_card_of(kind), known_answers(kind).len() as u64);
            with.call(kind);
            assert!(with.on_card_of(kind) > before && with.on_card_of(kind) <= before + count, "{kind:?}");
        }
        assert_eq!(with.provider().seat().in_flight(), 0);
    }

    /// SP 800-90A: a generator's state is in counter mode, a MAC or a digest.
    #[test]
    fn nothing_that_a_random_generator_is_made_of_is_a_cards() {
        let with = UnderRule::new("offload", "");
        for kind in Kind::ALL.iter().filter(|kind| {
            let info = kind.info();
            info.group == Group::Ctr || matches!(info.family, Family::Mac | Family::Digest)
        }) {
            assert!(!with.provider().may_wait(*kind));
            (0..4).for_each(|_| with.call(*kind));
        }
        assert_eq!(with.fallbacks(), []);
        assert!(with.runtime.snapshot().cells.iter().all(|cell| cell.engine != "emulated"));
    }

    #[test]
    fn a_card_that_fails_is_not_seen_in_a_result() {
        for (fault, reason) in [
            ("error every 5", "reported-error"),
            ("silence every 5", "silent"),
            ("wrong-result requests 20 90", "wrong-result"),
            ("lost requests 20 20", "lost"),
        ] {
            let with = UnderRule::new("offload", &format!("fault {fault}\n"));
            let struck = (0..200).find(|_| {
                [KIND, Kind::Rsa2048Private, Kind::Aes128GcmSeal]
                    .into_iter()
                    .for_each(|kind| with.call(kind));
                with.fallbacks().iter().any(|(name, _)| name == reason)
            });
            assert!(struck.is_some(), "{fault}: {:?}", with.fallbacks());
            (0..20).for_each(|_| with.call(KIND));
            assert_eq!(with.provider().seat().in_flight(), 0, "{fault}");
        }
    }

    #[test]
    fn threads_wait_each_for_its_own_answers() {
        let with = UnderRule::new("offload", "fault error every 7\n");
        std::thread::scope(|scope| {
            for kind in [KIND, Kind::X25519Derive, Kind::EcdsaP256Sign, Kind::HkdfExpandSha256] {
                let provider = with.provider();
                scope.spawn(move || {
                    (0..30).for_each(|_| call(provider, kind));
                    assert_eq!(provider.seat().in_flight(), 0);
                });
            }
        });
        assert!(with.on_card_of(KIND) > 0);
    }

    #[test]
    fn a_child_has_a_card_of_its_own_and_its_parent_goes_on() {
        let with = UnderRule::new("offload", "");
        with.until_proved(KIND);
        let before = with.on_card_of(KIND);
        let done = in_child(|| {
            with.until_proved(KIND);
            (0..5).for_each(|_| with.call(KIND));
            vec![u8::from(with.on_card_of(KIND) > 0)]
        });
        assert_eq!(done, [1]);
        with.call(KIND);
        assert!(with.on_card_of(KIND) > before);
    }

    #[test]
    fn a_job_that_cannot_pause_waits_too() {
        let with = UnderRule::new("offload", "");
        with.until_proved(KIND);
        // Of a program that does not poll; then within a call on another connection.
        for (within, claim) in [(Within::Other, 0), (Within::Nested, 1)] {
            let (table, before) = (table::make(with.provider()), with.on_card_of(KIND));
            // SAFETY: the table's own provider.
            unsafe { (table.claim)(table.provider, claim) };
            let job = Job::start_in(with.provider(), KIND, within);
            assert!(!job.waits());
            job.ends();
            assert_eq!(with.on_card_of(KIND), before + 1);
        }
    }

    #[test]
    fn what_comes_meanwhile_for_a_paused_job_is_kept_for_it() {
        let with = UnderRule::new("offload", "");
        with.until_proved(KIND);
        let before = with.on_card_of(KIND);
        let table = table::make(with.provider());
        // SAFETY: the table's own provider.
        unsafe { (table.claim)(table.provider, 1) };
        let job = Job::start_in(with.provider(), KIND, Within::Other);
        assert!(job.waits() && job.told() == 0);
        (0..3).for_each(|_| with.call(KIND));
        assert!(job.waits());
        // SAFETY: as above.
        let in_flight = unsafe { (table.poll)(table.provider) };
        assert_eq!((in_flight, job.told()), (0, 1));
        job.ends();
        assert_eq!(with.on_card_of(KIND), before + 1 + 3 * known_answers(KIND).len() as u64);
    }
}
