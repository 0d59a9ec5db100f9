//! What is said of two looks, whatever the counters were.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::LazyLock;
use std::time::Duration;

use proptest::prelude::*;
use wattlock::Runtime;
use wattlock::telemetry::{Cell, EngineCounts, Snapshot, own_uid};
use wattlock_core::{EngineClass, Kind, KindSet};
use wattlock_policy::{Costs as Table, EngineId, Machine, Widths, inline_engine};
use wattlock_watch::{By, Costs, Figures, Look, Program, Rates, since, verdict, worth};

static EMPTY: LazyLock<Snapshot> = LazyLock::new(|| {
    let mut snapshot = Runtime::builder().telemetry(false).build().unwrap().snapshot();
    snapshot.engines.clear();
    snapshot.header.started = 0;
    snapshot
});

const SIGN: &str = "ecdsa-p256-sign";
const SEAL: &str = "aes-256-gcm-seal";

fn process(program: &str, pid: u32, cells: Vec<Cell>) -> Snapshot {
    let mut snapshot = EMPTY.clone();
    (snapshot.header.program, snapshot.header.pid, snapshot.header.born) = (program.into(), pid, 1);
    snapshot.cells = cells;
    snapshot
}

fn cell(engine: &str, kind: &str, requests: u64) -> Cell {
    Cell { engine: engine.into(), kind: kind.into(), requests, ..Cell::default() }
}

/// Batches of this size in lanes, each pass of so many nanoseconds.
fn signed(requests: u64, batch: u64, pass_ns: u64) -> Cell {
    let (timed, timed_ns, batch_sum) = (requests, requests * pass_ns, requests * batch);
    Cell { bytes: 32 * requests, timed, timed_ns, batch_sum, ..cell("lanes", SIGN, requests) }
}

fn look(seconds: u64, found: &[Snapshot]) -> Look {
    Look::new(Duration::from_secs(seconds), 1000 + seconds, found.to_vec())
}

fn verdict_of(now: &Look, before: Option<&Look>) -> Vec<String> {
    verdict::lines(now, before, own_uid())
}

fn between(before: &[Snapshot], now: &[Snapshot]) -> Vec<Program> {
    since(&look(2, now), Some(&look(0, before)), By::Program)
}

/// A machine on which one signature takes 12 us alone, and eight in lanes take a pass.
fn costs() -> Costs {
    let kinds = KindSet::of(&[Kind::EcdsaP256Sign, Kind::Aes256GcmSeal]);
    let mut lanes = inline_engine(EngineId(2), EngineClass::Lanes, KindSet::of(&[Kind::EcdsaP256Sign]));
    lanes.widths = Widths::all(8);
    let engines = vec![
        inline_engine(EngineId(0), EngineClass::Instruction, kinds),
        inline_engine(EngineId(1), EngineClass::Software, kinds),
        lanes,
    ];
    let mut costs = Table::new();
    costs.set(EngineId(0), Kind::EcdsaP256Sign, vec![(32, 12_000.0, None)]);
    costs.set(EngineId(1), Kind::EcdsaP256Sign, vec![(32, 60_000.0, None)]);
    costs.set(EngineId(2), Kind::EcdsaP256Sign, vec![(32, 25_000.0, None)]);
    costs.set(EngineId(0), Kind::Aes256GcmSeal, vec![(64, 50.0, None), (1024, 100.0, None)]);
    let names = ["instruction", "software", "lanes"].map(str::to_owned).to_vec();
    Costs::new(Machine { engines, costs, ..Machine::default() }, names)
}

/// `None`: they are not known.
fn known(before: &[Snapshot], now: &[Snapshot]) -> Option<Figures> {
    Rates::of(&between(before, now)[0], 2.0, &costs()).figures
}

fn figures(before: &[Snapshot], now: &[Snapshot]) -> Figures {
    known(before, now).unwrap()
}

#[test]
fn processes_of_a_program_are_one_and_so_are_the_runtimes_of_a_process() {
    let at = |each: u64| {
        [
            process("nginx", 1, vec![signed(each, 8, 25_000)]),
            process("nginx", 2, vec![signed(2 * each, 4, 25_000), cell("instruction", SIGN, each)]),
            process("nginx", 2, vec![cell("instruction", SEAL, 7)]),
        ]
    };
    let found = between(&at(100), &at(200));
    let [program] = &found[..] else { panic!("{found:?}") };
    assert_eq!(program.pids.iter().copied().collect::<Vec<_>>(), [1, 2]);
    let rates = Rates::of(program, 2.0, &costs()).figures.unwrap();
    assert_eq!(rates.operations_per_s, 200.0);
    assert_eq!(rates.lanes_share, Some(0.75));
    let batch = rates.mean_batch.unwrap();
    assert!((batch - (100.0 * 8.0 + 200.0 * 4.0) / 300.0).abs() < 1e-9, "{batch}");
    assert!(rates.work.iter().all(|work| work.kind != SEAL), "nothing was sealed meanwhile");
    let apart = since(&look(2, &at(200)), Some(&look(0, &at(100))), By::Process);
    assert_eq!(apart.iter().map(|one| one.pids.len()).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn counters_that_fell_are_others_and_tell_nothing() {
    let then = process("a", 1, vec![signed(1000, 8, 25_000), cell("instruction", SEAL, 5)]);
    let mut fewer = then.clone();
    fewer.cells[0].timed_ns -= 1;
    fewer.cells[1].requests += 100;
    let mut gone = then.clone();
    gone.cells.remove(1);
    for now in [fewer, gone] {
        let before = [then.clone(), process("b", 2, vec![])];
        assert_eq!(known(&before, &[now.clone(), before[1].clone()]), None);
        let told = verdict_of(&look(2, &[now.clone(), before[1].clone()]), Some(&look(0, &before)));
        assert!(
            told[0].starts_with("a: what it did is not known") && told[1].starts_with("b: idle"),
            "{told:?}"
        );
        // A sum of which one process's part is not known is none.
        let other = process("a", 3, vec![cell("instruction", SEAL, 5)]);
        assert_eq!(known(&[then.clone(), other.clone()], &[now, other]), None);
    }
}

#[test]
fn what_is_not_known_is_absent_for_programs_too() {
    let then = process("a", 1, vec![signed(1000, 8, 25_000)]);
    let now = process("a", 1, vec![signed(900, 8, 25_000)]);
    let seen = Rates::of(&between(std::slice::from_ref(&then), &[now])[0], 2.0, &costs());
    let text = serde_json::to_string(&seen).unwrap();
    assert_eq!(text, format!("{{\"program\":\"a\",\"uid\":{},\"pids\":[1],\"in_flight\":0}}", own_uid()));
    let idle =
        Rates::of(&between(std::slice::from_ref(&then), std::slice::from_ref(&then))[0], 2.0, &costs());
    let text = serde_json::to_string(&idle).unwrap();
    assert!(text.contains("\"operations_per_s\":0.0") && !text.contains("-0.0"), "{text}");
    let named = &since(&look(2, &[then]), None, By::Program)[0];
    assert_eq!(Rates::named(named).figures, None, "without an earlier look there is only a name");
}

#[test]
fn the_first_burst_of_a_process_that_had_done_nothing_is_seen() {
    let opened = process("a", 1, vec![]);
    let busy = process("a", 1, vec![cell("instruction", SEAL, 500)]);
    assert_eq!(figures(std::slice::from_ref(&opened), std::slice::from_ref(&busy)).operations_per_s, 250.0);
    // Meanwhile it has nothing to tell.
    let now = look(2, &[opened]);
    assert!(since(&now.of_used(), None, By::Program).is_empty() && since(&now, None, By::Program).len() == 1);
    assert_eq!(since(&look(2, &[busy]).of_used(), Some(&now), By::Program).len(), 1);
}

#[test]
fn a_new_process_began_at_nothing_and_one_that_could_not_be_read_is_not_new() {
    let mut new = process("a", 1, vec![cell("instruction", SEAL, 20)]);
    let old = process("a", 1, vec![cell("instruction", SEAL, 500)]);
    new.header.born += 1;
    new.header.started = 1001;
    assert_eq!(figures(std::slice::from_ref(&old), std::slice::from_ref(&new)).operations_per_s, 10.0);
    new.header.started = 900;
    assert_eq!(known(&[old], &[new]), None);
}

#[test]
fn saved_time_is_the_plain_ways_less_what_was_spent() {
    let nothing = [process("a", 1, vec![])];
    let saved = |cells: Vec<Cell>| figures(&nothing, &[process("a", 1, cells)]).saved_cpu_s_per_s;
    let each = |ns: f64| Some(1000.0 * ns / 1e9 / 2.0);
    let is = |saved: Option<f64>, wanted: Option<f64>| match (saved, wanted) {
        (Some(saved), Some(wanted)) => assert!((saved - wanted).abs() < 1e-12, "{saved} {wanted}"),
        (saved, wanted) => assert_eq!(saved, wanted),
    };
    // Full passes: an eighth of 25 us instead of 12 us.
    is(saved(vec![signed(1000, 8, 25_000)]), each(12_000.0 - 25_000.0 / 8.0));
    // A mean of 4.5 may be as many single ones as full passes.
    is(saved(vec![signed(1000, 1, 25_000)]), each(12_000.0 - 25_000.0));
    let half = Cell { batch_sum: 4500, ..signed(1000, 1, 25_000) };
    is(saved(vec![half]), each(12_000.0 - 25_000.0 * 4.5 / 8.0));
    // The plain way itself, and a dearer one.
    let alone = |engine| Cell { bytes: 32_000, timed: 10, timed_ns: 600_000, ..cell(engine, SIGN, 1000) };
    is(saved(vec![alone("instruction")]), Some(0.0));
    is(saved(vec![alone("software")]), each(12_000.0 - 60_000.0));
}

#[test]
fn saved_time_is_absent_if_any_part_of_it_is_not_known() {
    let nothing = [process("a", 1, vec![])];
    let saved = |cells: Vec<Cell>| figures(&nothing, &[process("a", 1, cells)]).saved_cpu_s_per_s;
    let known = signed(10, 8, 25_000);
    assert!(saved(vec![known.clone()]).is_some());
    for unknown in [
        cell("cuda", SIGN, 1),
        cell("instruction", "sha-256", 1),
        cell("instruction", "no-such-kind", 1),
        cell("lanes", SIGN, 1),
    ] {
        let cells = match unknown.engine == "lanes" {
            true => vec![unknown.clone()],
            false => vec![known.clone(), unknown.clone()],
        };
        assert_eq!(saved(cells), None, "{unknown:?}");
    }
    assert_eq!(saved(vec![]), None, "nothing was done");
}

#[test]
fn joules_keep_the_word_that_promises_least() {
    let mut now = process("a", 1, vec![]);
    now.header.engines = vec!["instruction".into(), "cuda".into()];
    now.header.energy = vec!["measured: by a counter".into(), "derived: less idle".into()];
    now.engines = ["instruction", "cuda"]
        .map(|engine| EngineCounts { engine: engine.into(), ..EngineCounts::default() })
        .to_vec();
    let joules = |engine, requests| Cell { timed: 10, energy_nj: 5_000, ..cell(engine, SEAL, requests) };
    now.cells = vec![joules("instruction", 1000), joules("cuda", 1000)];
    let power = |now: &Snapshot| figures(&[], std::slice::from_ref(now)).power;
    now.header.started = 5000;
    let seen = power(&now).unwrap();
    assert!((seen.watts - 2.0 * 1000.0 * 500.0 / 1e9 / 2.0).abs() < 1e-12, "{seen:?}");
    assert_eq!(seen.worth, "derived: less idle");
    now.header.energy[1] = "modelled: its own".into();
    assert_eq!(power(&now), None, "modelled joules are not added to others");
    let counted = now.cells.remove(0);
    assert_eq!(power(&now).unwrap().worth, "modelled: its own");
    now.cells.insert(0, Cell { energy_nj: 0, ..counted });
    assert_eq!(power(&now), None, "a part without joules is no part with none");
    now.header.energy.clear();
    assert!(worth(&now.header, "cuda").starts_with("modelled: by an older version"));
}

/// The same engine and kind in two processes, or in two runtimes of one.
#[test]
fn joules_are_shown_only_if_they_are_known_for_everything() {
    let one = |pid, energy_nj, worth: &str| {
        let mut one =
            process("a", pid, vec![Cell { timed: 10, energy_nj, ..cell("instruction", SEAL, 1000) }]);
        (one.header.engines, one.header.energy) = (vec!["instruction".into()], vec![worth.into()]);
        one.header.started = 5000;
        one
    };
    let (measured, derived) = ("measured: by a counter", "derived: less idle");
    for (energy_nj, worth, wanted) in [
        (5_000, measured, Some(measured)),
        (0, measured, None),
        (5_000, derived, Some(derived)),
        (0, derived, None),
        (5_000, "modelled: its own", None),
        (5_000, "measured: by another", Some("measured")),
        (5_000, "", None),
    ] {
        for pid in [1, 2] {
            let mut found = vec![one(1, 5_000, measured), one(pid, energy_nj, worth)];
            if pid == 1 && energy_nj == 0 {
                // Runtimes of one process that began in one second are told apart by the word only.
                found[1].header.started += 1;
            }
            for _ in 0..2 {
                found.reverse();
                let seen = figures(&[], &found);
                let told =
                    |power: &Option<wattlock_watch::Power>| power.as_ref().map(|power| power.worth.clone());
                assert_eq!(told(&seen.power).as_deref(), wanted, "{pid} {worth} {energy_nj}");
                assert_eq!((seen.work.len(), told(&seen.work[0].power).as_deref()), (1, wanted));
                assert_eq!(seen.operations_per_s, 1000.0);
            }
        }
    }
}

#[test]
fn the_verdict_hides_no_failure() {
    let failed = Cell { errors: 5_000, refused: 90_000, ..cell("lanes", SEAL, 0) };
    let told = |cells: Vec<Cell>| verdict_of(&look(2, &[process("a", 1, cells)]), None).join("");
    assert_eq!(told(vec![failed.clone()]), "a: 5,000 failed; 90,000 refused; no fallbacks");
    assert_eq!(told(vec![Cell { errors: 1, ..cell("lanes", SIGN, 0) }]), "a: 1 failed; no fallbacks");
    assert_eq!(
        told(vec![cell("lanes", SEAL, 7)]),
        "a: 100 % of 7 operations without bytes by lanes; no fallbacks"
    );
    assert_eq!(told(vec![]), "a: idle; no fallbacks");
    let before = [process("a", 1, vec![failed.clone()])];
    let now = [process("a", 1, vec![Cell { errors: 5_001, refused: 90_100, ..failed }])];
    let told = verdict_of(&look(2, &now), Some(&look(0, &before)));
    assert_eq!(told, ["a: 0.5/s failed; 50/s refused; no fallbacks"]);
    // What is something never reads as nothing.
    let told = verdict_of(&look(200, &now), Some(&look(0, &before)));
    assert_eq!(told, ["a: under 0.1/s failed; 0.5/s refused; no fallbacks"]);
}

/// A header may be as long as a file allows, and name hundreds of kinds: what is held of it does not grow with both.
#[test]
fn all_kinds_of_an_engine_share_what_its_joules_are_worth() {
    let mut one = process("a", 1, (0..256).map(|at| cell("x", &format!("kind-{at}"), 1)).collect());
    one.cells.iter_mut().for_each(|cell| (cell.timed, cell.energy_nj) = (1, 1));
    (one.header.engines, one.header.energy) = (vec!["x".into()], vec!["derived: ".repeat(6000)]);
    let all = since(&look(2, &[one]), None, By::Program).remove(0).all.unwrap();
    assert_eq!(all.done.len(), 256);
    assert!(all.done.iter().all(|done| std::sync::Arc::ptr_eq(&done.worth, &all.done[0].worth)));
}

/// Nine in lanes of eight are two passes: the time that was saved is never more than what that leaves.
#[test]
fn batches_wider_than_the_lanes_cost_every_pass() {
    let nothing = [process("a", 1, vec![])];
    for count in 1..40_u64 {
        let passes = count.div_ceil(8);
        // As the dispatcher counts them.
        let batch_sum = if count > 8 { count * count / passes } else { count * count };
        let cells = vec![Cell { batch_sum, ..signed(count, 1, 25_000) }];
        let saved = figures(&nothing, &[process("a", 1, cells)]).saved_cpu_s_per_s.unwrap();
        let true_ns = count as f64 * 12_000.0 - passes as f64 * 25_000.0;
        assert!(saved <= true_ns / 1e9 / 2.0 + 1e-12, "{count}: {saved} {true_ns}");
        if count % 8 == 0 {
            assert!((saved - true_ns / 1e9 / 2.0).abs() < 1e-12, "full passes are known exactly: {count}");
        }
    }
}

fn any_cell() -> impl Strategy<Value = Cell> {
    let counts = prop::array::uniform10(prop_oneof![0..1000_u64, any::<u64>()]);
    (0..4_usize, 0..4_usize, counts).prop_map(|(engine, kind, counts)| {
        let [requests, bytes, errors, refused, timed, timed_ns, held_ns, batch_sum, energy_nj, submit_ns] =
            counts;
        Cell {
            engine: ["instruction", "software", "lanes", "cuda"][engine].into(),
            kind: [SIGN, SEAL, "sha-256", "nonsense"][kind].into(),
            requests,
            bytes,
            errors,
            refused,
            timed,
            timed_ns,
            held_ns,
            batch_sum,
            energy_nj,
            submit_ns,
        }
    })
}

fn any_process() -> impl Strategy<Value = Snapshot> {
    let started = prop_oneof![0..2000_u64, any::<u64>()];
    let fell = prop_oneof![0..9_u64, any::<u64>()];
    let parts = (1..4_u32, started, prop::collection::vec(any_cell(), 0..4), fell);
    parts.prop_map(|(pid, started, cells, fell)| {
        let mut one = process(["a", "b"][pid as usize % 2], pid, cells);
        one.header.started = started;
        let fallbacks = vec![("silent".into(), fell)];
        let engine = "cuda".into();
        one.engines = vec![EngineCounts { engine, in_flight: fell, fallbacks, ..EngineCounts::default() }];
        one
    })
}

fn check(seen: &Rates) -> Result<(), TestCaseError> {
    let Some(seen) = &seen.figures else { return Ok(()) };
    let figures = [seen.operations_per_s, seen.bytes_per_s, seen.failed_per_s, seen.refused_per_s];
    let fallbacks = seen.fallbacks_per_s.values().copied();
    for figure in figures.into_iter().chain(fallbacks) {
        prop_assert!(figure >= 0.0 && figure.is_finite(), "{seen:?}");
    }
    prop_assert!(seen.lanes_share.is_none_or(|share| (0.0..=1.0).contains(&share)), "{seen:?}");
    prop_assert!(seen.mean_batch.is_none_or(|batch| batch >= 0.0 && batch.is_finite()), "{seen:?}");
    prop_assert!(seen.saved_cpu_s_per_s.is_none_or(f64::is_finite), "{seen:?}");
    prop_assert!(
        seen.power.as_ref().is_none_or(|power| power.watts >= 0.0 && !power.worth.is_empty()),
        "{seen:?}"
    );
    Ok(())
}

proptest! {
    #[test]
    fn no_rate_is_negative_whatever_the_counters_were(
        before in prop::collection::vec(any_process(), 0..4),
        now in prop::collection::vec(any_process(), 0..4),
    ) {
        for program in between(&before, &now) {
            check(&Rates::of(&program, 2.0, &costs()))?;
        }
        for program in since(&look(2, &now), None, By::Process) {
            prop_assert!(program.all.is_some());
            check(&Rates::of(&program, 1.0, &costs()))?;
        }
        for earlier in [None, Some(look(0, &before))] {
            let (now, told) = (look(2, &now), verdict_of(&look(2, &now), earlier.as_ref()));
            for (program, line) in since(&now, earlier.as_ref(), By::Program).iter().zip(told) {
                let Some(all) = &program.all else {
                    prop_assert!(line.ends_with("not read before)"), "{}", line);
                    continue;
                };
                prop_assert_eq!(line.contains(" failed"), all.done.iter().any(|done| done.cell.errors > 0));
                prop_assert_eq!(line.contains(" refused"), all.done.iter().any(|done| done.cell.refused > 0));
                prop_assert_eq!(line.contains(": idle"), all.done.is_empty());
            }
        }
    }

    #[test]
    fn a_process_that_only_counts_on_has_done_the_difference(
        cells in prop::collection::vec(any_cell(), 0..4), more in 0..1_000_000_u64,
    ) {
        let mut cells: Vec<Cell> = cells.into_iter().map(|one| Cell { requests: one.requests >> 8, ..one }).collect();
        cells.sort_by_key(|one| (one.engine.clone(), one.kind.clone()));
        cells.dedup_by_key(|one| (one.engine.clone(), one.kind.clone()));
        let before = process("a", 1, cells);
        let mut now = before.clone();
        now.cells.iter_mut().for_each(|one| one.requests += more);
        let program = between(&[before], &[now.clone()]).remove(0);
        let done: u64 = program.all.unwrap().done.iter().map(|done| done.cell.requests).sum();
        prop_assert_eq!(done, more * now.cells.len() as u64);
    }
}
