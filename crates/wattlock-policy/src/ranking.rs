//! Which engines can do a kind, in a fixed order of preference. The published rules say "the accelerator" and "the
//! CPU"; this says which engine that is when there are two, or none, or it is away.
//!
//! Made once per machine, read without arithmetic: a look-up is a table row and, as a rule, one test of availability.

use wattlock_core::{EngineClass, Kind};

use crate::machine::{EngineId, EngineView, MAX_ENGINES, Machine};
use crate::weather::{Ask, Choice, Weather};

/// After a rule's own preferences: instructions, then plain code, then whatever else can do the kind.
const FALLBACK: [EngineClass; 5] = [
    EngineClass::Instruction,
    EngineClass::Software,
    EngineClass::Lanes,
    EngineClass::Accelerator,
    EngineClass::Gpu,
];

/// Engines of the published rules' "accelerator".
pub(crate) const DEVICES: [EngineClass; 2] = [EngineClass::Accelerator, EngineClass::Gpu];

#[derive(Clone, Copy)]
struct Row {
    len: u8,
    ids: [EngineId; MAX_ENGINES],
}

/// For each kind the engines that can do it, best first.
pub(crate) struct Ranking {
    rows: [Row; Kind::COUNT],
}

impl Ranking {
    /// Engines that do the kind in any way: these classes first, then [`FALLBACK`].
    pub(crate) fn any(machine: &Machine, first: &[EngineClass]) -> Ranking {
        Ranking::new(machine, first, EngineView::can)
    }

    /// Engines that do the kind inside the call.
    pub(crate) fn inline(machine: &Machine, first: &[EngineClass]) -> Ranking {
        Ranking::new(machine, first, |engine, kind| engine.inline.contains(kind))
    }

    fn new(machine: &Machine, first: &[EngineClass], can: impl Fn(&EngineView, Kind) -> bool) -> Ranking {
        let mut order: Vec<&EngineView> = machine
            .engines
            .iter()
            .filter(|engine| engine.id.index() < MAX_ENGINES)
            .take(MAX_ENGINES)
            .collect();
        order.sort_by_key(|engine| {
            let place = first.iter().chain(&FALLBACK).position(|class| *class == engine.class);
            place.unwrap_or(usize::MAX)
        });
        let mut rows = [Row { len: 0, ids: [EngineId(0); MAX_ENGINES] }; Kind::COUNT];
        for (row, kind) in rows.iter_mut().zip(Kind::ALL) {
            for engine in order.iter().filter(|engine| can(engine, *kind)) {
                row.ids[usize::from(row.len)] = engine.id;
                row.len += 1;
            }
        }
        Ranking { rows }
    }

    /// The engines that can do the kind, best first.
    #[inline]
    pub(crate) fn of(&self, kind: Kind) -> &[EngineId] {
        let row = &self.rows[kind.index()];
        &row.ids[..usize::from(row.len)]
    }

    /// The best one that is available; if none is, the best one all the same, and the runtime says why not. On a
    /// machine that breaks its own rule (no engine for the kind) it is engine 0, which will answer "not supported".
    #[inline]
    pub(crate) fn pick(&self, kind: Kind, weather: &Weather) -> EngineId {
        let ids = self.of(kind);
        let there = ids.iter().find(|id| weather.engines[id.index()].available);
        *there.or(ids.first()).unwrap_or(&EngineId(0))
    }
}

/// The two questions of every rule: which engine it prefers, and which does a request that cannot wait.
pub(crate) struct Sides {
    any: Ranking,
    inline: Ranking,
}

impl Sides {
    /// These classes first.
    pub(crate) fn new(machine: &Machine, first: &[EngineClass]) -> Sides {
        Sides { any: Ranking::any(machine, first), inline: Ranking::inline(machine, first) }
    }

    /// Which engine is preferred for a kind by a caller that can wait.
    #[inline]
    pub(crate) fn pick(&self, kind: Kind, weather: &Weather) -> EngineId {
        self.any.pick(kind, weather)
    }

    /// The preferred engine's answer: it does all that are in hand.
    #[inline]
    pub(crate) fn answer(&self, ask: &Ask, weather: &Weather) -> Choice {
        let ranking = if ask.may_wait { &self.any } else { &self.inline };
        Choice { count: ask.count, ..Choice::now(ranking.pick(ask.shape.kind, weather)) }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::machine::Widths;
    use wattlock_core::KindSet;

    /// Plain code (0), instructions (1), an accelerator with a window of 64 (2).
    pub(crate) fn server() -> Machine {
        let engine = |id, class, inline, queued, window| EngineView {
            id: EngineId(id),
            class,
            inline,
            queued,
            widths: Widths::all(1),
            window,
        };
        let (all, none) = (KindSet::ALL, KindSet::EMPTY);
        Machine {
            engines: vec![
                engine(0, EngineClass::Software, all, none, 0),
                engine(1, EngineClass::Instruction, all, none, 0),
                engine(2, EngineClass::Accelerator, none, all, 64),
            ],
            cores: 8,
            ..Machine::default()
        }
    }

    /// [`server`]'s engines, all there and idle.
    pub(crate) fn weather() -> Weather {
        let mut weather = Weather { submitters: 1, ..Weather::default() };
        for state in &mut weather.engines[..3] {
            state.available = true;
        }
        weather
    }

    #[test]
    fn an_absent_class_falls_to_instructions_then_plain_code() {
        let machine = server();
        let ranking = Ranking::any(&machine, &DEVICES);
        let mut weather = weather();
        for expected in [2, 1, 0] {
            assert_eq!(ranking.pick(Kind::Sha256, &weather), EngineId(expected));
            weather.engines[usize::from(expected)].available = false;
        }
        assert_eq!(
            ranking.pick(Kind::Sha256, &weather),
            EngineId(2),
            "nobody is there: the rule's own choice"
        );
    }
}
