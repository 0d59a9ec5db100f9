//! When a batch goes: the one place that decides it.
//!
//! Operations of many connections that share one pass of the lanes take little longer than one of them alone. A door
//! therefore *gathers* operations: their connections pause until the batch goes. [`Gather`] says whether an operation
//! is gathered at all, and when, and of which kind, a batch goes. It is a pure value. The door tells it facts (what is
//! gathered, what is in flight, how many connections are active, where the event loop is, the time) and carries out the
//! answer. The provider's threads use it, nginx's loop through the provider's function table, and the lab's event loop.
//!
//! An operation that the policy gives to a device is submitted when it arrives and never gathered. What is decided of it
//! here is when the loop *looks* for its answer. A device that makes batches gets them at the end of a turn.
//!
//! *A full batch* goes at once, whatever the rule.
//!
//! *A loop that asks in each of its turns* follows a [`GatherRule`]:
//!
//! - `adaptive` (ours): a batch goes when no other operation can join it soon, which is when a few turns of the loop
//!   brought no connection any further. (nginx accepts one connection a turn, so under load many turns
//!   pass between a batch's first operation and its last, and each of them finds something to do.) If several kinds
//!   wait, the cheapest goes first: its connections then often reach the next step in time to join the dearer batch.
//!   It looks *in a hybrid way*, which the published rule leaves open: each turn looks while an answer is due within the
//!   time that two wake-ups take; else, if nothing is gathered, the loop sleeps until that is so ([`Expected`]). For an
//!   answer that is late it looks after each quarter of what it is late by. In the middle of a turn it looks where an
//!   operation ends and an answer is due: else answers that lie fill a device's window, the CPU does what has no room
//!   there, and that makes the turn longer still. What such a look wakes belongs to the next turn: else none would end.
//! - `heuristic` (published: Li et al., "QWEB", 2020): the loop looks, and batches go, when 48 operations are in flight
//!   while one of them is asymmetric, or 24 otherwise; when every active connection waits; and 5 us after the last time,
//!   a fail-safe. The rule is checked at every operation and in every turn, and the loop never sleeps while anything is
//!   in flight. (Published for answers of a device only; that batches of lanes follow it is ours.)
//! - `threshold` (ours): the same counts, but the loop may sleep, and a timer of milliseconds ends the wait.
//!
//! *A program that says nothing of its loop* has had every operation that could join when its loop has been round once:
//! the first operation's connection wakes itself, and everything goes when the loop comes to it. If gathering brought
//! a thread no batch-mates, its operations are done inside the call for a while, since a trial costs a turn of the loop.

use std::time::Duration;

use wattlock_core::{Kind, KindSet, Nanos};

use crate::error::PolicyError;
use crate::machine::Machine;
use crate::settings::Settings;

/// Turns without progress before a batch goes. One is not enough: a turn may do nothing but accept a connection, whose
/// first message the next turn reads. An empty turn takes about a microsecond.
const IDLE_TURNS: u32 = 4;

/// The same if every active connection waits: others may not have been accepted yet.
const IDLE_TURNS_ALL: u32 = 2;

/// How often in one turn the question is put off behind other events. They may gather, too, but a loop that never runs
/// out of events must not starve.
const BEHIND_MOST: u32 = 64;

/// The longest wait for batch-mates if the loop asks in each turn: a loop that is never idle would otherwise never let
/// a batch go. A pass of RSA takes 1 to 15 ms.
const HOLD_ASKED: Duration = Duration::from_millis(5);

/// The same for a program that says nothing of its loop, for which another thread keeps the time.
const HOLD_UNASKED: Duration = Duration::from_millis(1);

/// First and last pause between trials of gathering that brought no batch-mates.
const TRIAL_NS: (Nanos, Nanos) = (1_000_000, 16_000_000);

/// Gatherings without batch-mates before a thread counts as one that has none.
const IN_VAIN: u32 = 2;

/// What a thread that sleeps may come late: the slack that Linux gives timers by default (prctl(2), `PR_SET_TIMERSLACK`).
const WAKE_NS: Nanos = 50_000;

/// An answer so late is no longer looked for in each turn: a quarter of it is two wake-ups.
const LATE_NS: Nanos = 8 * WAKE_NS;

/// How an event loop's waiting for batch-mates ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GatherRule {
    /// `adaptive`: when turns of the loop bring nothing more.
    #[default]
    Turns,
    /// `heuristic` and `threshold`: by counts, and by a timer.
    Counts {
        /// In flight while one operation is asymmetric.
        asymmetric: u32,
        /// In flight otherwise.
        symmetric: u32,
        /// After so long without a batch.
        timer_ns: Nanos,
        /// Whether the loop may sleep until then.
        sleeps: bool,
    },
}

impl GatherRule {
    /// The published rule, with the numbers of these settings (`qweb.poll_asymmetric`, `qweb.poll_symmetric`,
    /// `qweb.timer_ns`), whose defaults are published.
    pub fn heuristic(settings: &Settings) -> GatherRule {
        GatherRule::Counts {
            asymmetric: settings.qweb_poll_asymmetric,
            symmetric: settings.qweb_poll_symmetric,
            timer_ns: settings.qweb_timer_ns,
            sleeps: false,
        }
    }

    /// Reads `adaptive`, `heuristic`, or `threshold [asymmetric=48] [timer=5ms]`.
    ///
    /// # Errors
    /// [`PolicyError::BadValue`] with what is allowed.
    pub fn parse(text: &str, settings: &Settings) -> Result<GatherRule, PolicyError> {
        let bad = |range: &str| {
            Err(PolicyError::BadValue { key: "poll", value: text.to_owned(), range: range.to_owned() })
        };
        let mut words = text.split_whitespace();
        let rule = match words.next() {
            Some("adaptive") => GatherRule::Turns,
            Some("heuristic") => GatherRule::heuristic(settings),
            Some("threshold") => return GatherRule::threshold(words, bad),
            _ => return bad("adaptive, heuristic or threshold"),
        };
        if words.next().is_some() { bad("no parameter after this rule") } else { Ok(rule) }
    }

    fn threshold<'a>(
        words: impl Iterator<Item = &'a str>,
        bad: impl Fn(&str) -> Result<GatherRule, PolicyError>,
    ) -> Result<GatherRule, PolicyError> {
        let (mut most, mut millis) = (48, 5);
        for word in words {
            if let Some(number) = word.strip_prefix("asymmetric=") {
                let Some(number) = number.parse().ok().filter(|most| (1..=65_535).contains(most)) else {
                    return bad("asymmetric= takes 1 to 65535");
                };
                most = number;
            } else if let Some(time) = word.strip_prefix("timer=") {
                let (number, unit) = match (time.strip_suffix("ms"), time.strip_suffix('s')) {
                    (None, Some(seconds)) => (seconds, 1000),
                    (millis, _) => (millis.unwrap_or(time), 1),
                };
                let time: Option<u64> = number.parse().ok().and_then(|number: u64| number.checked_mul(unit));
                let Some(time) = time.filter(|millis| (1..=1000).contains(millis)) else {
                    return bad("timer= takes 1ms to 1s");
                };
                millis = time;
            } else {
                return bad("asymmetric= and timer= are the parameters of threshold");
            }
        }
        let timer_ns = millis * 1_000_000;
        Ok(GatherRule::Counts { asymmetric: most, symmetric: most, timer_ns, sleeps: true })
    }
}

/// What a thread has in flight, gathered operations included, and what its program said of the loop.
#[derive(Debug, Clone, Copy, Default)]
pub struct Flight {
    /// Operations in flight.
    pub in_flight: u32,
    /// Of these, asymmetric ones.
    pub asymmetric: u32,
    /// Handshakes: connections that could be waiting for others. 0 if the program does not say.
    pub active: u32,
    /// Connections that are not idle, any of which could have something for a device. 0 if the program does not say.
    pub busy: u32,
    /// Whether the program's loop asks in each turn.
    pub asked: bool,
    /// When the first answer of a device is due to be looked for, if that is known of all.
    pub due: Option<Nanos>,
}

/// Where an event loop is when it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// An operation has begun, or was done inside its call while others are in flight; the turn goes on.
    Call,
    /// The turn has other events left, which may begin operations.
    Busy,
    /// Nothing else is to be done in this turn.
    Quiet,
}

/// What follows from an operation that was gathered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrived {
    /// Its kind's batch is full and goes now.
    Full,
    /// It is the first, of a program that does not ask: its connection is to be woken when the loop has been round.
    First,
    /// It waits.
    Waits,
}

/// What follows from a turn of the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// What is gathered of this kind, or of all, goes, and devices' answers are looked for; the next turn asks again.
    Go(Option<Kind>),
    /// Nothing goes; devices' answers are looked for; the next turn asks again.
    Poll,
    /// Nothing is to be done until the loop asks again: no look.
    Wait(Again),
}

/// When a loop asks again. It always does at the next operation and at the next change of active connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// Not at all: nothing is in flight.
    Idle,
    /// In this turn, behind all events that there are now.
    Behind,
    /// In the next turn, without sleeping before it.
    Turn,
    /// At this time; the loop may sleep until then.
    At(Nanos),
}

/// The decision, for one thread.
#[derive(Debug, Clone)]
pub struct Gather {
    rule: GatherRule,
    /// The longest wait, if the operator said.
    hold: Option<Duration>,
    /// Whether operations wait even if nothing is won by it.
    always: bool,
    /// How many requests of a kind make a full batch; 1 if they are done one by one.
    widths: Box<[u16; Kind::COUNT]>,
    /// What one request of a kind takes alone by calibration; 0 if unknown.
    alone_ns: Box<[f64; Kind::COUNT]>,
    /// Kinds of devices.
    devices: KindSet,
    behind: u32,
    idle: u32,
    /// The loop's progress when it last asked.
    seen: u32,
    /// When something last went or was looked for, or began to wait with nothing else in flight.
    last: Nanos,
    in_vain: u32,
    next_trial: Nanos,
    pause: Nanos,
}

impl Gather {
    /// For a thread of this machine. `hold` is the longest wait, if the operator said; `always` is whether operations
    /// wait even if nothing on this machine makes batches of them.
    pub fn new(machine: &Machine, rule: GatherRule, hold: Option<Duration>, always: bool) -> Gather {
        let inline = |kind| machine.engines.iter().filter(move |engine| engine.inline.contains(kind));
        // Of a kind that nobody measured (the built-in tables may be older) no policy makes batches.
        let measured = |kind| machine.alone_ns(kind).is_some();
        let width = |kind| inline(kind).map(|engine| engine.widths.of(kind)).max().filter(|_| measured(kind));
        let devices = machine.engines.iter().filter(|engine| !engine.class.is_cpu());
        Gather {
            rule,
            hold,
            always,
            widths: Box::new(std::array::from_fn(|at| width(Kind::ALL[at]).unwrap_or(1))),
            alone_ns: Box::new(std::array::from_fn(|at| machine.alone_ns(Kind::ALL[at]).unwrap_or(0.0))),
            devices: devices.fold(KindSet::EMPTY, |kinds, engine| kinds.union(engine.queued)),
            behind: 0,
            idle: 0,
            seen: 0,
            last: 0,
            in_vain: 0,
            next_trial: 0,
            pause: TRIAL_NS.0,
        }
    }

    /// How many requests of a kind this machine's lanes do together, if lanes and no device do the kind.
    pub fn lanes_of(&self, kind: Kind) -> Option<u16> {
        let width = self.widths[kind.index()];
        (width > 1 && !self.devices.contains(kind)).then_some(width)
    }

    /// Whether a device does this kind, so that the policy is to be asked when an operation arrives.
    pub fn has_device(&self, kind: Kind) -> bool {
        self.devices.contains(kind)
    }

    /// Whether an operation of this kind is gathered, before it is in flight, if no device was given it; if not, it is
    /// done inside the call.
    pub fn waits(&self, kind: Kind, flight: &Flight, gathered: usize, now: Nanos) -> bool {
        if self.widths[kind.index()] == 1 && !self.always {
            return false;
        }
        if gathered > 0 {
            return true;
        }
        if flight.asked { flight.active != 1 } else { self.in_vain < IN_VAIN || now >= self.next_trial }
    }

    /// A device was given an operation; `flight` includes it.
    pub fn submitted(&mut self, flight: &Flight, now: Nanos) {
        if flight.in_flight == 1 {
            self.last = now;
        }
    }

    /// Whether a device that makes batches gets what it holds now: when nothing else is to be done in this turn.
    pub fn rings(&self, moment: Moment) -> bool {
        moment == Moment::Quiet
    }

    /// An operation was gathered; `flight` and `gathered`, each with its kind, include it.
    pub fn arrived(
        &mut self,
        kind: Kind,
        flight: &Flight,
        gathered: impl Iterator<Item = Kind> + Clone,
        now: Nanos,
    ) -> Arrived {
        self.submitted(flight, now);
        let width = usize::from(self.widths[kind.index()]);
        if width > 1 && gathered.clone().filter(|one| *one == kind).count() >= width {
            return Arrived::Full;
        }
        if !flight.asked && gathered.count() == 1 { Arrived::First } else { Arrived::Waits }
    }

    /// Whether what is gathered goes when a paused connection is resumed before its operation is done. `blocked` is
    /// whether its pauses do not pause. In a program that asks, some other event woke the connection.
    pub fn resumed(&self, flight: &Flight, blocked: bool) -> bool {
        !flight.asked || blocked
    }

    /// Whether a batch that went helped: it had more than one request.
    pub fn learned(&mut self, helped: bool, now: Nanos) {
        if helped {
            (self.in_vain, self.pause) = (0, TRIAL_NS.0);
            return;
        }
        self.in_vain = self.in_vain.saturating_add(1);
        if self.in_vain >= IN_VAIN {
            self.next_trial = now.saturating_add(self.pause);
            self.pause = (self.pause * 2).min(TRIAL_NS.1);
        }
    }

    /// How long an operation that was gathered at `since` may still wait.
    pub fn left_ns(&self, since: Nanos, flight: &Flight, now: Nanos) -> Nanos {
        let hold = self.hold.unwrap_or(if flight.asked { HOLD_ASKED } else { HOLD_UNASKED });
        since.saturating_add(hold.as_nanos() as Nanos).saturating_sub(now)
    }

    /// A turn of an event loop. `gathered` is what waits, oldest first, with the time since when; `progress` is a
    /// number that the loop changes when it brings a connection further.
    pub fn turn(
        &mut self,
        gathered: impl Iterator<Item = (Kind, Nanos)> + Clone,
        flight: &Flight,
        (moment, progress): (Moment, u32),
        now: Nanos,
    ) -> Next {
        if flight.in_flight == 0 {
            (self.behind, self.idle) = (0, 0);
            return Next::Wait(Again::Idle);
        }
        match self.rule {
            GatherRule::Turns => self.by_turns(gathered, flight, (moment, progress), now),
            GatherRule::Counts { asymmetric, symmetric, timer_ns, sleeps } => {
                let enough = if flight.asymmetric > 0 { asymmetric } else { symmetric };
                // Only handshakes can join a batch, and a loop that sleeps must not keep them waiting for the others.
                let of_all = flight.busy > 0 && !sleeps && gathered.clone().next().is_none();
                let could = if of_all { flight.busy } else { flight.active };
                let all_wait = could > 0 && flight.in_flight >= could;
                if flight.in_flight >= enough || all_wait || now.saturating_sub(self.last) >= timer_ns {
                    self.last = now;
                    return Next::Go(None);
                }
                Next::Wait(if sleeps { Again::At(self.last + timer_ns) } else { Again::Turn })
            }
        }
    }

    fn by_turns(
        &mut self,
        gathered: impl Iterator<Item = (Kind, Nanos)> + Clone,
        flight: &Flight,
        (moment, progress): (Moment, u32),
        now: Nanos,
    ) -> Next {
        if moment == Moment::Call {
            let due = flight.due.is_some_and(|due| due <= now);
            return if due { Next::Poll } else { Next::Wait(Again::Behind) };
        }
        if moment == Moment::Busy && self.behind < BEHIND_MOST {
            self.behind += 1;
            return Next::Wait(Again::Behind);
        }
        self.behind = 0;
        if gathered.clone().next().is_none()
            && let Some(at) = flight.due.and_then(|due| asleep_until(due, now))
        {
            return Next::Wait(Again::At(at));
        }
        if let Some((late, _)) = gathered.clone().find(|(_, since)| self.left_ns(*since, flight, now) == 0) {
            return Next::Go(Some(late));
        }
        self.idle = if progress == self.seen { self.idle + 1 } else { 0 };
        self.seen = progress;
        let enough = if flight.in_flight < flight.active { IDLE_TURNS } else { IDLE_TURNS_ALL };
        if self.idle < enough {
            return Next::Poll;
        }
        self.idle = 0;
        let alone_ns = |kind: &Kind| self.alone_ns[kind.index()];
        let cheapest = gathered.map(|(kind, _)| kind).min_by(|a, b| alone_ns(a).total_cmp(&alone_ns(b)));
        cheapest.map_or(Next::Poll, |kind| Next::Go(Some(kind)))
    }
}

/// Until when a loop sleeps that waits for nothing but a device's answer, which is due at `due`; `None` if it is to look now.
fn asleep_until(due: Nanos, now: Nanos) -> Option<Nanos> {
    (due > now.saturating_add(2 * WAKE_NS)).then(|| due - WAKE_NS)
}

/// How long devices take, as a loop sees it: what hybrid looking goes by.
#[derive(Debug, Clone)]
pub struct Expected(Box<[Latency; Kind::COUNT]>);

#[derive(Debug, Clone, Copy)]
struct Latency {
    /// 0 if nothing is known.
    expected: Nanos,
    /// By how much less is expected if the next answer is there at the first look.
    step: Nanos,
}

impl Default for Expected {
    fn default() -> Expected {
        Expected(Box::new([Latency { expected: 0, step: WAKE_NS }; Kind::COUNT]))
    }
}

impl Expected {
    /// When the answer to a request of a kind is due that a device got at `since`, or, if it was late when it was last looked
    /// for at `looked`, when it is due to be looked for again; `None` if none of the kind was seen yet.
    pub fn due(&self, kind: Kind, since: Nanos, looked: Nanos) -> Option<Nanos> {
        let known = Some(self.0[kind.index()].expected).filter(|expected| *expected > 0);
        let due = since.saturating_add(known?);
        let late = looked.saturating_sub(due);
        Some(if late > LATE_NS { looked.saturating_add(late / 4) } else { due })
    }

    /// An answer was found at `now`, and was last looked for in vain at `looked`. If that was just before, it is known how
    /// long it took: an eighth of that is believed. If it was long before, nothing is expected that the two looks disprove;
    /// and if there was no such look, ever less is expected until there is one.
    ///
    /// Never is more than twice as much expected as before: the CPU did what a device lost, and the next is no later for it.
    pub fn found(&mut self, kind: Kind, since: Nanos, looked: Nanos, now: Nanos) {
        let Latency { expected, step } = &mut self.0[kind.index()];
        let [least, most] = [looked, now].map(|at| at.saturating_sub(since));
        let [least, most] =
            [least, most].map(|long| if *expected > 0 { long.min(expected.saturating_mul(2)) } else { long });
        if *expected == 0 {
            *expected = most;
        } else if least == 0 {
            *expected = expected.saturating_sub(*step).clamp(1, most.max(1));
            *step = step.saturating_mul(4).min(*expected / 2).max(WAKE_NS);
            return;
        } else if most.saturating_sub(least) <= 2 * WAKE_NS {
            *expected = *expected - *expected / 8 + most / 8;
        } else {
            *expected = (*expected).clamp(least, most.max(least));
        }
        *step = WAKE_NS;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::machine::{EngineId, EngineView, Widths};
    use crate::ranking::tests::server;
    use wattlock_core::EngineClass;

    const CHEAP: Kind = Kind::X25519Derive;
    const DEAR: Kind = Kind::P384Derive;
    const ODD: Kind = Kind::Sha256;

    /// Instructions, and lanes for two kinds.
    fn machine() -> Machine {
        let mut machine = server();
        machine.engines.truncate(2);
        machine.engines.push(EngineView {
            id: EngineId(2),
            class: EngineClass::Lanes,
            inline: KindSet::of(&[CHEAP, DEAR]),
            queued: KindSet::EMPTY,
            widths: Widths::all(8),
            window: 0,
        });
        machine.costs.set(EngineId(1), CHEAP, vec![(0, 30_000.0, None)]);
        machine.costs.set(EngineId(1), DEAR, vec![(0, 300_000.0, None)]);
        machine
    }

    fn gather(rule: GatherRule) -> Gather {
        Gather::new(&machine(), rule, None, false)
    }

    #[test]
    fn a_kind_that_nobody_measured_waits_for_nothing() {
        let mut machine = machine();
        let flight = Flight { asked: true, active: 9, ..Flight::default() };
        let waits = |machine: &Machine, always| {
            let gather = Gather::new(machine, GatherRule::Turns, None, always);
            [CHEAP, DEAR].map(|kind| (gather.waits(kind, &flight, 0, 0), gather.lanes_of(kind)))
        };
        assert_eq!(waits(&machine, false), [(true, Some(8)); 2]);
        machine.costs.set(EngineId(1), DEAR, vec![]);
        assert_eq!(waits(&machine, false), [(true, Some(8)), (false, None)]);
        assert!(waits(&machine, true).iter().all(|(waits, _)| *waits), "unless it is to wait in any case");
    }

    fn published() -> Gather {
        gather(GatherRule::heuristic(&Settings::default()))
    }

    fn loop_of(in_flight: u32, active: u32) -> Flight {
        Flight { in_flight, asymmetric: in_flight, active, busy: 0, asked: true, due: None }
    }

    fn turn(gather: &mut Gather, flight: &Flight, progress: u32, now: Nanos) -> Next {
        gather.turn([(CHEAP, 0)].into_iter(), flight, (Moment::Quiet, progress), now)
    }

    #[test]
    fn a_connection_alone_waits_for_nothing_and_so_do_kinds_without_lanes() {
        let gather = gather(GatherRule::Turns);
        assert!(!gather.waits(CHEAP, &loop_of(0, 1), 0, 0), "one connection");
        assert!(gather.waits(CHEAP, &loop_of(0, 2), 0, 0));
        assert!(gather.waits(CHEAP, &loop_of(0, 0), 0, 0), "the program does not say how many");
        assert!(gather.waits(CHEAP, &loop_of(1, 1), 1, 0), "it joins what is gathered");
        assert!(!gather.waits(ODD, &loop_of(0, 9), 3, 0), "no lanes");
        let always = Gather::new(&machine(), GatherRule::Turns, None, true);
        assert!(always.waits(ODD, &loop_of(0, 9), 0, 0));
        let with_card = Gather::new(&server(), GatherRule::Turns, None, false);
        assert!(
            with_card.has_device(ODD) && !with_card.waits(ODD, &loop_of(0, 9), 3, 0),
            "never gathered for it"
        );
        assert_eq!(
            (with_card.lanes_of(ODD), gather.lanes_of(ODD), gather.lanes_of(DEAR)),
            (None, None, Some(8))
        );
    }

    #[test]
    fn a_batch_is_full_at_the_width_of_its_kind() {
        let mut gather = gather(GatherRule::Turns);
        let mut waiting = vec![DEAR; 7];
        waiting.extend([CHEAP; 7]);
        let arrived = gather.arrived(CHEAP, &loop_of(14, 50), waiting.iter().copied(), 0);
        assert_eq!(arrived, Arrived::Waits);
        waiting.push(CHEAP);
        assert_eq!(gather.arrived(CHEAP, &loop_of(15, 50), waiting.iter().copied(), 0), Arrived::Full);
        waiting.push(ODD);
        let arrived = gather.arrived(ODD, &loop_of(16, 50), waiting.iter().copied(), 0);
        assert_eq!(arrived, Arrived::Waits, "a kind without lanes is never full");
    }

    #[test]
    fn the_first_wakes_itself_only_if_no_loop_asks() {
        let mut gather = gather(GatherRule::Turns);
        let unasked = Flight { asked: false, ..loop_of(1, 0) };
        let mut arrived = |flight, kinds: &[Kind]| gather.arrived(CHEAP, flight, kinds.iter().copied(), 0);
        assert_eq!(arrived(&unasked, &[CHEAP]), Arrived::First);
        assert_eq!(arrived(&unasked, &[DEAR, CHEAP]), Arrived::Waits);
        assert_eq!(arrived(&loop_of(1, 9), &[CHEAP]), Arrived::Waits);
        assert!(gather.resumed(&unasked, false), "the loop has been round");
        assert!(!gather.resumed(&loop_of(1, 9), false), "something else woke it");
        assert!(gather.resumed(&loop_of(1, 9), true), "it cannot pause");
    }

    #[test]
    fn a_thread_without_batch_mates_tries_again_ever_more_rarely() {
        let mut gather = gather(GatherRule::Turns);
        let waits = |gather: &Gather, now| gather.waits(CHEAP, &Flight::default(), 0, now);
        assert!(waits(&gather, 0));
        gather.learned(false, 10);
        assert!(waits(&gather, 10), "once is no rule");
        gather.learned(false, 20);
        assert!(!waits(&gather, 20 + TRIAL_NS.0 - 1) && waits(&gather, 20 + TRIAL_NS.0));
        for _ in 0..20 {
            gather.learned(false, 1000);
        }
        assert_eq!(gather.next_trial, 1000 + TRIAL_NS.1);
        gather.learned(true, 2000);
        assert!(waits(&gather, 2000));
    }

    #[test]
    fn adaptive_lets_go_after_four_turns_without_progress_and_after_two_if_all_wait() {
        for (active, turns) in [(9, 4), (1, 2)] {
            let mut gather = gather(GatherRule::Turns);
            let flight = loop_of(1, active);
            assert_eq!(turn(&mut gather, &flight, 1, 0), Next::Poll, "progress");
            for _ in 1..turns {
                assert_eq!(turn(&mut gather, &flight, 1, 0), Next::Poll);
            }
            assert_eq!(turn(&mut gather, &flight, 2, 0), Next::Poll, "progress again");
            for _ in 1..turns {
                assert_eq!(turn(&mut gather, &flight, 2, 0), Next::Poll);
            }
            assert_eq!(turn(&mut gather, &flight, 2, 0), Next::Go(Some(CHEAP)), "{active} active");
        }
    }

    #[test]
    fn adaptive_stays_behind_a_turns_other_events_but_not_for_ever() {
        let mut gather = gather(GatherRule::Turns);
        let mut ask = |moment| gather.turn([(CHEAP, 0)].into_iter(), &loop_of(1, 9), (moment, 7), 0);
        assert_eq!(ask(Moment::Call), Next::Wait(Again::Behind));
        for _ in 0..BEHIND_MOST {
            assert_eq!(ask(Moment::Busy), Next::Wait(Again::Behind));
        }
        assert_eq!(ask(Moment::Busy), Next::Poll);
        assert_eq!(ask(Moment::Busy), Next::Wait(Again::Behind), "a turn of its own");
    }

    #[test]
    fn adaptive_lets_the_cheapest_kind_go_first_and_none_wait_too_long() {
        let mut gather = gather(GatherRule::Turns);
        let waiting = [(DEAR, 10), (CHEAP, 20), (DEAR, 30)];
        let mut ask = |now| gather.turn(waiting.into_iter(), &loop_of(3, 3), (Moment::Quiet, 0), now);
        let hold_ns = HOLD_ASKED.as_nanos() as Nanos;
        assert_eq!([ask(30), ask(31)], [Next::Poll, Next::Go(Some(CHEAP))]);
        assert_eq!(ask(9 + hold_ns), Next::Poll);
        assert_eq!(ask(10 + hold_ns), Next::Go(Some(DEAR)), "the oldest has waited for 5 ms");
        let said = Gather::new(&machine(), GatherRule::Turns, Some(Duration::from_micros(300)), false);
        assert_eq!(said.left_ns(100, &loop_of(1, 9), 1100), 299_000);
        let unasked = Flight::default();
        assert_eq!(gather.left_ns(0, &unasked, 999_999), 1);
    }

    /// A loop that asks again just when it is told to: how often it looks until a device answers that takes `takes` ns.
    fn looks_until(gather: &mut Gather, expected: &mut Expected, takes: Nanos, start: Nanos) -> (u32, Nanos) {
        let (mut now, mut looks, mut looked) = (start, 0, start);
        loop {
            let flight = Flight { due: expected.due(CHEAP, start, looked), ..loop_of(1, 9) };
            match gather.turn(std::iter::empty(), &flight, (Moment::Quiet, 0), now) {
                Next::Wait(Again::At(at)) => {
                    assert!(at > now, "it sleeps until a time that has passed");
                    now = at;
                }
                Next::Poll if now >= start + takes => {
                    expected.found(CHEAP, start, looked, now);
                    return (looks + 1, now - start);
                }
                Next::Poll => {
                    (looks, looked, now) = (looks + 1, now, now + 2000);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_loop_sleeps_until_an_answer_is_nearly_due_and_looks_in_each_turn_then() {
        for takes in [10_000, 200_000, 3_000_000, 150_000_000] {
            let (mut gather, mut expected) = (gather(GatherRule::Turns), Expected::default());
            let first = looks_until(&mut gather, &mut expected, takes, 1_000_000_000);
            assert!(u64::from(first.0) >= takes / 2000, "nothing is known: {first:?}");
            for turn in 2..60 {
                let (looks, seen) = looks_until(&mut gather, &mut expected, takes, turn * 1_000_000_000);
                // Two wake-ups are fifty such turns.
                assert!(looks <= 55 && seen >= takes, "{takes}: {looks} looks");
                assert!(seen <= takes + takes / 8 + 2 * WAKE_NS, "{takes}: seen after {seen}");
            }
        }
    }

    #[test]
    fn what_is_expected_follows_a_device_that_gets_faster_or_slower() {
        let (mut gather, mut expected) = (gather(GatherRule::Turns), Expected::default());
        for (round, takes) in [5_000_000, 500_000, 50_000_000, 5_000_000].into_iter().enumerate() {
            let mut last = (0, 0);
            for turn in 0..60 {
                let start = (round as u64 * 100 + turn + 1) * 1_000_000_000;
                last = looks_until(&mut gather, &mut expected, takes, start);
            }
            assert!(last.0 <= 55 && last.1 <= takes + takes / 8 + 2 * WAKE_NS, "{takes}: {last:?}");
        }
    }

    #[test]
    fn an_answer_that_does_not_come_is_looked_for_ever_more_rarely_but_always_again() {
        let (mut gather, mut expected) = (gather(GatherRule::Turns), Expected::default());
        looks_until(&mut gather, &mut expected, 1_000_000, 0);
        // Ten seconds instead of a millisecond.
        let (looks, seen) = looks_until(&mut gather, &mut expected, 10_000_000_000, 20_000_000_000);
        assert!(looks < 1000 && seen <= 12_500_000_000, "{looks} looks, {seen} ns");
    }

    #[test]
    fn an_answer_that_was_lost_does_not_make_the_next_late() {
        let (mut gather, mut expected) = (gather(GatherRule::Turns), Expected::default());
        for turn in 1..20 {
            looks_until(&mut gather, &mut expected, 200_000, turn * 1_000_000_000);
        }
        for turn in (20..60).step_by(2) {
            looks_until(&mut gather, &mut expected, 200_000_000, turn * 1_000_000_000);
            let (looks, seen) = looks_until(&mut gather, &mut expected, 200_000, (turn + 1) * 1_000_000_000);
            assert!(looks <= 105 && seen <= 600_000, "{looks} looks, {seen} ns");
            for _ in 0..8 {
                looks_until(&mut gather, &mut expected, 200_000, (turn + 1) * 1_000_000_000);
            }
        }
    }

    #[test]
    fn many_at_once_that_took_long_do_not_make_those_late_that_come_alone() {
        let (mut gather, mut expected) = (gather(GatherRule::Turns), Expected::default());
        let start = 1_000_000_000;
        for turn in 1..40 {
            looks_until(&mut gather, &mut expected, 100_000_000, turn * start);
        }
        let lost = (40..60).map(|turn| looks_until(&mut gather, &mut expected, 1_000_000, turn * start).1);
        let lost: Vec<Nanos> = lost.map(|seen| seen - 1_000_000).collect();
        assert!(
            lost.iter().sum::<Nanos>() < 8 * 100_000_000 && lost[12..].iter().all(|late| *late < 600_000),
            "{lost:?}"
        );
    }

    #[test]
    fn an_answer_that_is_late_does_not_keep_others_waiting() {
        let mut expected = Expected::default();
        expected.found(CHEAP, 0, 0, 1_000_000);
        let (second, later) = (1_000_000_000, 1_000_100_000);
        let dues =
            [(0, later), (later, later)].map(|(since, looked)| expected.due(CHEAP, since, looked).unwrap());
        assert!(dues[0] > later + second / 5 && dues[1] == later + 1_000_000, "{dues:?}");
    }

    #[test]
    fn what_is_gathered_keeps_the_loop_awake_and_so_does_what_nothing_is_known_of() {
        let mut gather = gather(GatherRule::Turns);
        let flight = Flight { due: Some(1_000_000_000), ..loop_of(2, 9) };
        assert_eq!(turn(&mut gather, &flight, 1, 0), Next::Poll, "gathered");
        let quiet = |gather: &mut Gather, flight: &Flight, moment| {
            gather.turn(std::iter::empty(), flight, (moment, 1), 0)
        };
        let asleep = Next::Wait(Again::At(1_000_000_000 - WAKE_NS));
        assert_eq!(quiet(&mut gather, &flight, Moment::Quiet), asleep);
        assert_eq!(quiet(&mut gather, &flight, Moment::Call), Next::Wait(Again::Behind), "the turn goes on");
        assert_eq!(quiet(&mut gather, &loop_of(2, 9), Moment::Quiet), Next::Poll, "unknown");
    }

    /// Else a turn in which the CPU does what a full window has no room for goes on for as long as answers lie in it.
    #[test]
    fn an_answer_that_is_due_is_looked_for_in_the_middle_of_a_turn_and_nothing_goes() {
        let mut gather = gather(GatherRule::Turns);
        let mut ask = |due, now, gathered: &[(Kind, Nanos)]| {
            let flight = Flight { due, ..loop_of(2, 9) };
            gather.turn(gathered.iter().copied(), &flight, (Moment::Call, 1), now)
        };
        for gathered in [&[][..], &[(CHEAP, 0)]] {
            assert_eq!(ask(Some(1000), 999, gathered), Next::Wait(Again::Behind));
            assert_eq!(ask(Some(1000), 1000, gathered), Next::Poll);
            assert_eq!(ask(None, 1000, gathered), Next::Wait(Again::Behind), "nothing is known of it");
        }
    }

    #[test]
    fn the_published_rule_fires_at_48_with_public_keys_and_at_24_without() {
        let fires = |in_flight, asymmetric| {
            let flight = Flight { asymmetric, ..loop_of(in_flight, 100) };
            turn(&mut published(), &flight, 0, 0) == Next::Go(None)
        };
        assert!(!fires(47, 1) && fires(48, 1));
        assert!(!fires(23, 0) && fires(24, 0));
    }

    #[test]
    fn the_published_rule_fires_when_every_active_connection_waits_also_within_a_turn() {
        let mut gather = published();
        let mut ask =
            |in_flight, moment| gather.turn(std::iter::empty(), &loop_of(in_flight, 5), (moment, 0), 0);
        assert_eq!(ask(4, Moment::Quiet), Next::Wait(Again::Turn), "the loop does not sleep");
        assert_eq!(ask(5, Moment::Call), Next::Go(None));
        assert_eq!(ask(5, Moment::Busy), Next::Go(None));
        assert_eq!(ask(0, Moment::Quiet), Next::Wait(Again::Idle), "nothing is in flight");
    }

    #[test]
    fn all_that_are_not_idle_count_for_a_look_but_handshakes_alone_for_a_batch_and_for_sleep() {
        let settings = Settings::default();
        let asleep = || gather(GatherRule::parse("threshold", &settings).unwrap());
        let goes = |mut gather: Gather, in_flight, gathered: usize| {
            let flight = Flight { busy: 20, ..loop_of(in_flight, 3) };
            let gathered = [(CHEAP, 0); 3].into_iter().take(gathered);
            gather.turn(gathered, &flight, (Moment::Quiet, 0), 0) == Next::Go(None)
        };
        assert!(!goes(published(), 19, 0) && goes(published(), 20, 0), "a look");
        assert!(!goes(published(), 2, 1) && goes(published(), 3, 1), "a batch");
        assert!(!goes(asleep(), 2, 0) && goes(asleep(), 3, 0), "sleep");
    }

    #[test]
    fn the_published_timer_is_five_microseconds_and_does_not_run_while_idle() {
        let mut gather = published();
        gather.submitted(&loop_of(1, 5), 1_000_000);
        let mut ask = |now| turn(&mut gather, &loop_of(1, 5), 0, now);
        assert_eq!(ask(1_004_999), Next::Wait(Again::Turn));
        assert_eq!(ask(1_005_000), Next::Go(None));
        assert_eq!(ask(1_009_999), Next::Wait(Again::Turn), "the timer began anew");
        assert_eq!(turn(&mut gather, &loop_of(1, 1), 0, 1_009_999), Next::Go(None), "all wait");
        assert_eq!(turn(&mut gather, &loop_of(1, 5), 0, 1_014_998), Next::Wait(Again::Turn));
    }

    #[test]
    fn the_threshold_rule_sleeps_until_its_timer() {
        let settings = Settings::default();
        let rule = GatherRule::parse("threshold asymmetric=4 timer=2ms", &settings).unwrap();
        let mut gather = gather(rule);
        gather.arrived(CHEAP, &loop_of(1, 9), [CHEAP].into_iter(), 1000);
        assert_eq!(turn(&mut gather, &loop_of(3, 9), 0, 2000), Next::Wait(Again::At(2_001_000)));
        assert_eq!(turn(&mut gather, &loop_of(3, 9), 0, 2_001_000), Next::Go(None));
        assert_eq!(turn(&mut gather, &loop_of(4, 9), 0, 2_001_001), Next::Go(None));
    }

    #[test]
    fn a_rule_is_read_from_text_and_nonsense_is_refused() {
        let settings = Settings { qweb_poll_symmetric: 12, ..Settings::default() };
        let parse = |text| GatherRule::parse(text, &settings);
        assert_eq!(parse("adaptive"), Ok(GatherRule::Turns));
        let (asymmetric, symmetric, timer_ns) = (48, 12, 5000);
        assert_eq!(
            parse("heuristic"),
            Ok(GatherRule::Counts { asymmetric, symmetric, timer_ns, sleeps: false })
        );
        let (symmetric, timer_ns) = (48, 5_000_000);
        assert_eq!(
            parse("threshold"),
            Ok(GatherRule::Counts { asymmetric, symmetric, timer_ns, sleeps: true })
        );
        assert_eq!(parse("threshold timer=1s"), parse("threshold timer=1000ms"));
        for (text, words) in [
            ("sometimes", "adaptive, heuristic or threshold"),
            ("", "adaptive, heuristic or threshold"),
            ("adaptive timer=1ms", "no parameter"),
            ("heuristic asymmetric=4", "no parameter"),
            ("threshold asymmetric=0", "1 to 65535"),
            ("threshold timer=1001ms", "1ms to 1s"),
            ("threshold timer=2s", "1ms to 1s"),
            ("threshold timer=99999999999999999s", "1ms to 1s"),
            ("threshold loud=1", "parameters of threshold"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
