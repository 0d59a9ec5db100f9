//! What each rule and each constant of `adaptive` is worth: every row that can run, run again with one of them taken
//! out, halved or doubled ([`Tuning::ablations`]). A row is one figure of one simulation; what it loses is a share of
//! what it is with the rule. Everything here is simulated.

use wattlock_core::LatencyClass;
use wattlock_policy::{Ablation, Adaptive, Objective, Settings, Tuning};

use crate::error::Error;
use crate::machines::{Case, emulated, random, seeds, typical};
use crate::papers::{aca_sds, eeca, eep, lecpaes, qweb, velocity};
use crate::row::{Better, Study};
use crate::sim::event_loop;
use crate::sim::stream::pass;
use crate::sim::thread::{Event, Load, Model, Report, machine, run, run_fixed};

/// A rule stays if some row loses this share without it.
pub const WORTH: f64 = 0.02;

/// One figure of a simulation under `adaptive`.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// `eeca`, `random machine`, `nginx` …
    pub place: &'static str,
    /// Which of them.
    pub row: String,
    /// What is counted.
    pub quantity: &'static str,
    /// Which way it is better.
    pub better: Better,
    /// Whether it is a share itself, so that only the difference says something.
    pub is_share: bool,
    /// What came out.
    pub value: f64,
}

impl Figure {
    /// What this figure loses where it becomes `changed`: a share of it, or points where it is a share itself.
    /// Negative where it gains.
    pub fn loss(&self, changed: f64) -> f64 {
        let worse = match self.better {
            Better::More => self.value - changed,
            Better::Less => changed - self.value,
            Better::Neither => 0.0,
        };
        match self.is_share {
            true => worse,
            false if self.value == 0.0 => 0.0,
            false => worse / self.value.abs(),
        }
    }
}

/// Figures that come from one simulation, or a few, under a tuning.
type Simulate = Box<dyn Fn(&'static Tuning) -> Result<Vec<Figure>, Error> + Send + Sync>;

/// What can be run under any tuning, and gives the same figures in the same order each time.
pub struct Scene {
    run: Simulate,
}

impl Scene {
    /// Of a function from a tuning to figures.
    pub fn new(run: impl Fn(&'static Tuning) -> Result<Vec<Figure>, Error> + Send + Sync + 'static) -> Scene {
        Scene { run: Box::new(run) }
    }

    /// A load on one thread's machine: its throughput.
    pub fn thread(place: &'static str, row: String, models: Vec<Model>, load: Load) -> Scene {
        Scene::new(move |tuning| {
            let report = adaptive(&models, &load, Objective::Performance, tuning, &[]);
            Ok(vec![figure(place, row.clone(), "throughput", Better::More, report.throughput)])
        })
    }

    fn study(study: impl Fn(&'static Tuning) -> Result<Study, Error> + Send + Sync + 'static) -> Scene {
        Scene::new(move |tuning| Ok(figures_of(&study(tuning)?)))
    }
}

/// The same with one change.
#[derive(Debug, Clone)]
pub struct Effect {
    /// What was changed.
    pub ablation: Ablation,
    /// For each figure, in their order: what it became, and its loss.
    pub changed: Vec<(f64, f64)>,
}

impl Effect {
    /// The figure that loses most, and how much.
    pub fn worst<'a>(&self, figures: &'a [Figure]) -> Option<(&'a Figure, f64)> {
        let losses = figures.iter().zip(self.changed.iter().map(|changed| changed.1));
        losses.max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Whether some figure loses [`WORTH`].
    pub fn is_missed(&self) -> bool {
        self.changed.iter().any(|(_, loss)| *loss >= WORTH)
    }
}

/// Figures with everything in place, and what each ablation makes of them.
#[derive(Debug, Clone, Default)]
pub struct Ablated {
    /// With [`Tuning::DEFAULT`].
    pub figures: Vec<Figure>,
    /// In the order of the ablations.
    pub effects: Vec<Effect>,
}

/// Runs every scene as it is and under each ablation, on as many threads. Which thread does what changes nothing.
///
/// # Errors
/// The first scene's that cannot run.
pub fn ablate(scenes: &[Scene], ablations: &[Ablation], threads: usize) -> Result<Ablated, Error> {
    let figures = figures(scenes, &Tuning::DEFAULT)?;
    let next = std::sync::atomic::AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some(ablation) = ablations.get(at) else { return Ok(done) };
            done.push((at, effect(scenes, ablation, &figures)?));
        }
    };
    let parts: Vec<Result<Vec<(usize, Effect)>, Error>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let mut effects = parts.into_iter().collect::<Result<Vec<_>, _>>()?.concat();
    effects.sort_by_key(|(at, _)| *at);
    Ok(Ablated { effects: effects.into_iter().map(|(_, effect)| effect).collect(), figures })
}

fn effect(scenes: &[Scene], ablation: &Ablation, figures: &[Figure]) -> Result<Effect, Error> {
    // A policy holds its tuning for as long as it lives. There are some dozens of them in a program that ends after.
    let tuning: &'static Tuning = Box::leak(Box::new(ablation.tuning));
    let changed = self::figures(scenes, tuning)?;
    let changed = changed.iter().zip(figures).map(|(one, before)| (one.value, before.loss(one.value)));
    Ok(Effect { ablation: *ablation, changed: changed.collect() })
}

fn figures(scenes: &[Scene], tuning: &'static Tuning) -> Result<Vec<Figure>, Error> {
    let parts = scenes.iter().map(|scene| (scene.run)(tuning)).collect::<Result<Vec<_>, _>>()?;
    Ok(parts.concat())
}

/// Every scene that needs nothing but the lab: the papers' studies, the typical machines, emulated cards, machines
/// whose calibration is wrong or whose device changes, and random ones.
pub fn scenes() -> Vec<Scene> {
    let mut all = papers();
    all.extend(other_platforms());
    all.extend(thin());
    all.extend(steady("typical machine", typical(), &[1, 4, 16, 48]));
    all.extend(typical().into_iter().flat_map(|case| [0.3, 0.7].map(|share| open(&case, share))));
    all.extend(steady("emulated card", emulated(), &[1, 8, 64]));
    all.extend(crowded());
    all.extend(learning());
    all.extend(frugal());
    let some = seeds(0).into_iter().flat_map(|seed| random(seed, 24));
    all.extend(some.map(|case| {
        let load = case.load(Ok(case.clients), REQUESTS / 2);
        Scene::thread("random machine", format!("{}, {} clients", case.name, case.clients), case.models, load)
    }));
    all
}

/// Requests of a run on one thread; the first quarter is not counted.
const REQUESTS: usize = 10_000;

fn papers() -> Vec<Scene> {
    vec![
        Scene::study(|tuning| eeca::study(&eeca::Options { tuning, ..Default::default() })),
        Scene::study(|tuning| qweb::study(&qweb::Options { tuning, ..Default::default() })),
        Scene::study(|tuning| lecpaes::study(&lecpaes::Options { tuning, ..Default::default() })),
        Scene::study(|tuning| aca_sds::study(&aca_sds::Options { tuning, ..Default::default() })),
        Scene::study(|tuning| eep::study(&eep::Options { tuning, ..Default::default() })),
        Scene::study(|tuning| velocity::study(&velocity::Options { tuning, ..Default::default() })),
    ]
}

/// Machines and loads that no table has: small windows that all cores fill, one request a core, GPUs that take long to
/// begin, windows that overflow, few clients.
fn other_platforms() -> Vec<Scene> {
    let mut all = Vec::new();
    type Change<O> = (&'static str, fn(&mut O));
    let changes: [Change<eeca::Options>; 6] = [
        ("window=2", |o| o.window = 2),
        ("window=4", |o| o.window = 4),
        ("cores=1", |o| o.cores = 1),
        ("cores=32", |o| o.cores = 32),
        ("blocks_in_hand=1", |o| o.blocks_in_hand = 1),
        ("call_us=2", |o| o.call_us = Some(2.0)),
    ];
    for ((name, change), kib) in changes.into_iter().flat_map(|one| [16.0, 256.0].map(|kib| (one, kib))) {
        all.push(Scene::new(move |tuning| {
            let mut options = eeca::Options { tuning, ..Default::default() };
            change(&mut options);
            let steady = eeca::scene(&options, kib, "adaptive", |closed| closed.run())?;
            let row = format!("{name} block_kib={kib}");
            Ok(vec![figure("eeca, other machines", row, "throughput", Better::More, steady.rounds_per_s)])
        }));
    }
    let changes: [Change<aca_sds::Options>; 4] = [
        ("window=2", |o| o.window = 2),
        ("window=8", |o| o.window = 8),
        ("cores=32", |o| o.cores = 32),
        ("call_us=1", |o| o.call_us = Some(1.0)),
    ];
    for ((name, change), processes) in changes.into_iter().flat_map(|one| [20, 64].map(|n| (one, n))) {
        all.push(Scene::new(move |tuning| {
            let mut options = aca_sds::Options { tuning, ..Default::default() };
            change(&mut options);
            let steady = aca_sds::scene(&options, 16.0, processes, "adaptive", |closed| closed.run())?;
            let row = format!("{name} processes={processes}");
            Ok(vec![figure("aca-sds, other machines", row, "throughput", Better::More, steady.rounds_per_s)])
        }));
    }
    let changes: [Change<eep::Options>; 8] = [
        ("streams=4", |o| o.streams = 4),
        ("setup_us=1000", |o| o.setup_us = 1000.0),
        ("setup_us=4000", |o| o.setup_us = 4000.0),
        ("setup_us=20000", |o| o.setup_us = 20_000.0),
        ("setup_us=5000 streams=4", |o| (o.setup_us, o.streams) = (5000.0, 4)),
        ("cores=2", |o| o.cores = 2),
        ("cores=256", |o| o.cores = 256),
        ("chunk_kib=1024", |o| o.chunk_kib = 1024.0),
    ];
    for (name, change) in changes {
        all.push(Scene::new(move |tuning| {
            let mut options = eep::Options { tuning, ..Default::default() };
            change(&mut options);
            let (node, step, mut policy) = eep::scene(&options, "adaptive")?;
            let cost = eep::split(&node, 1000.0, step, policy.as_mut());
            Ok(vec![figure("eep, other machines", name.to_owned(), "time", Better::Less, cost.seconds)])
        }));
    }
    for (window_kib, latency_us) in [(256.0, 250.0), (384.0, 150.0), (384.0, 400.0), (384.0, 1000.0)] {
        all.push(Scene::new(move |tuning| {
            let mut options = lecpaes::Options { tuning, ..Default::default() };
            options.platform.window_kib = window_kib;
            let passage =
                lecpaes::scene(&options, latency_us, "adaptive", |station, messages, mut policy| {
                    pass(station, messages, policy.as_mut(), options.seed, None)
                })?;
            let row = format!("window_kib={window_kib} latency_us={latency_us}");
            let place = "lecpaes, other machines";
            let again = passage.retransmission_rate();
            Ok(vec![
                figure(place, row.clone(), "energy_j", Better::Less, passage.joules),
                Figure { is_share: true, ..figure(place, row, "retransmission_rate", Better::Less, again) },
            ])
        }));
    }
    all.push(Scene::new(|tuning| {
        let (concurrency, transfer_concurrency, client_us, handshakes) = (32, 32, 0.0, 300);
        let options = qweb::Options {
            tuning,
            concurrency,
            transfer_concurrency,
            client_us,
            handshakes,
            ..Default::default()
        };
        let at_once = |one: Figure| Figure { place: "qweb, 32 clients that answer at once", ..one };
        Ok(figures_of(&qweb::study(&options)?).into_iter().map(at_once).collect())
    }));
    for (concurrency, client_us) in [(1, 100.0), (6, 0.0), (12, 0.0), (12, 100.0), (64, 0.0)] {
        all.push(Scene::new(move |tuning| {
            let (workers, cores, curve_workers, handshakes) = (1, 1, 1, 2000);
            let options = qweb::Options {
                tuning,
                curve_workers,
                workers,
                cores,
                concurrency,
                client_us,
                handshakes,
                ..Default::default()
            };
            let measured = qweb::scene(&options, "adaptive", |server, load, policy| {
                event_loop::run(server, load, policy)
            })?;
            let row = format!("one loop, {concurrency} clients that take {client_us} us");
            Ok(vec![figure("qweb, other loads", row, "handshakes", Better::More, measured.per_second)])
        }));
    }
    all
}

/// Lanes that do half a batch in half the time, as they do RSA, with a calibration that knows and one that does not.
fn thin() -> Vec<Scene> {
    let mut all = Vec::new();
    for (batches, clients) in [true, false].into_iter().flat_map(|b| [2, 3, 5, 6, 8, 13].map(|n| (b, n))) {
        for (thin, pass_ns) in [(0.5, 220_000.0), (0.5, 360_000.0), (0.7, 160_000.0)] {
            let models = vec![Model::cpu(60_000.0, 0.0), Model { thin, batches, ..Model::lanes(pass_ns) }];
            let known = if batches { "calibrated" } else { "unknown" };
            let row = format!("{known} batches, half a pass in {thin} of {pass_ns} ns, {clients} clients");
            let load = typical().swap_remove(1).load(Ok(clients), REQUESTS);
            all.push(Scene::thread("thin passes", row, models, load));
        }
    }
    all
}

/// What a study's rows are about, and what they are paid with: messages that must be sent again.
fn figures_of(study: &Study) -> Vec<Figure> {
    let counted = study.rows.iter().filter(|row| row.own || row.quantity == "retransmission_rate");
    let figures = counted.filter_map(|row| {
        let is_share = row.unit == "1/submission";
        let place = if row.experiment == "velocity" { "velocity" } else { row.paper };
        let name = format!("{} {}", row.experiment, row.row);
        Some(Figure { is_share, ..figure(place, name, row.quantity, row.better, row.adaptive?) })
    });
    figures.collect()
}

fn figure(place: &'static str, row: String, quantity: &'static str, better: Better, value: f64) -> Figure {
    Figure { place, row, quantity, better, is_share: false, value }
}

fn adaptive(
    models: &[Model],
    load: &Load,
    objective: Objective,
    tuning: &'static Tuning,
    events: &[(u64, Event)],
) -> Report {
    let settings = Settings { adaptive_tuning: tuning, ..Settings::default() };
    let mut policy = Adaptive::new(machine(models, load.kind, objective), &settings);
    run(models, load, &mut policy, events)
}

/// Clients that ask again as soon as they are answered.
fn steady(place: &'static str, cases: Vec<Case>, clients: &[u32]) -> Vec<Scene> {
    let scene = |case: &Case, clients: u32| {
        let load = case.load(Ok(clients), REQUESTS);
        Scene::thread(place, format!("{}, {clients} clients", case.name), case.models.clone(), load)
    };
    cases.iter().flat_map(|case| clients.iter().map(|clients| scene(case, *clients))).collect()
}

/// Requests that come at their own times: that share of what the best engine can do alone.
fn open(case: &Case, share: f64) -> Scene {
    let saturated = case.load(Ok(48), REQUESTS / 2);
    let each = (0..case.models.len()).map(|engine| run_fixed(engine, &case.models, &saturated).throughput);
    let load = case.load(Err(share * each.fold(0.0, f64::max)), REQUESTS);
    let (row, models) = (format!("{}, {share} of capacity", case.name), case.models.clone());
    Scene::new(move |tuning| {
        let report = adaptive(&models, &load, Objective::Performance, tuning, &[]);
        Ok(vec![figure("typical machine", row.clone(), "latency_ns", Better::Less, report.mean_latency_ns)])
    })
}

/// A door that does not say how many are active, and its bulk work.
fn crowded() -> Vec<Scene> {
    let mut all = Vec::new();
    for case in typical() {
        for (class, clients) in [(LatencyClass::Interactive, 8), (LatencyClass::Bulk, 8)] {
            let load = Load { class, says_active: false, ..case.load(Ok(clients), REQUESTS) };
            let row = format!("{}, {clients} clients unsaid, {class:?}", case.name);
            all.push(Scene::thread("typical machine", row, case.models.clone(), load));
        }
    }
    all
}

/// Calibrations that are wrong, and devices that change: throughput of the whole run after its first quarter.
fn learning() -> Vec<Scene> {
    let rsa = |clients: u32, requests: usize| {
        let case = Case { clients, ..typical().swap_remove(1) };
        case.load(Ok(clients), requests)
    };
    let mut all = Vec::new();
    for (clients, truth) in [(1, 20_000.0), (4, 20_000.0), (1, 100_000.0), (4, 400_000.0), (16, 30_000.0)] {
        for (cpu, device) in [(1.0, 0.2), (3.0, 1.0), (0.5, 0.5), (1.0, 1.4), (1.0, 0.0)] {
            let mut models = vec![Model::cpu(30_000.0, 0.0), Model::device(truth, 0.0, 12)];
            (models[0].believed, models[1].believed) = (cpu, device);
            let row =
                format!("device {truth} ns, believed {cpu} and {device} of the truth, {clients} clients");
            all.push(Scene::thread("wrong calibration", row, models, rsa(clients, REQUESTS)));
        }
    }
    for (clients, pass_ns) in [(1, 90_000.0), (3, 90_000.0), (8, 160_000.0)] {
        for believed in [0.4, 2.5, 0.0] {
            let models = vec![Model::cpu(30_000.0, 0.0), Model { believed, ..Model::lanes(pass_ns) }];
            let row = format!("lanes {pass_ns} ns, believed {believed} of the truth, {clients} clients");
            all.push(Scene::thread("wrong calibration", row, models, rsa(clients, REQUESTS)));
        }
    }
    for (clients, times) in [(1, 20.0), (8, 20.0), (8, 3.0)] {
        let models = vec![Model::cpu(30_000.0, 0.0), Model::device(20_000.0, 0.0, 12)];
        let load = rsa(clients, 5 * REQUESTS);
        let events = [(200_000_000, Event::Slow(1, times)), (500_000_000, Event::Slow(1, 1.0))];
        all.push(Scene::new(move |tuning| {
            let report = adaptive(&models, &load, Objective::Performance, tuning, &events);
            let row = format!("{times} times for 300 ms, {clients} clients");
            Ok(vec![figure("slow device", row, "throughput", Better::More, report.throughput)])
        }));
    }
    for share in [0.9, 1.0, 1.1] {
        let mut models = vec![Model::cpu(30_000.0, 0.0), Model::device(29_500.0 * share, 0.0, 12)];
        models.iter_mut().for_each(|model| model.noise = 0.3);
        let load = rsa(1, REQUESTS);
        all.push(Scene::new(move |tuning| {
            let report = adaptive(&models, &load, Objective::Performance, tuning, &[]);
            let switches = report.switches as f64 / load.requests as f64;
            let row = format!("device at {share} of the CPU");
            let switched = figure("noise", row.clone(), "switches", Better::Less, switches);
            Ok(vec![
                Figure { is_share: true, ..switched },
                figure("noise", row, "throughput", Better::More, report.throughput),
            ])
        }));
    }
    all
}

/// Metered machines under the other objectives.
fn frugal() -> Vec<Scene> {
    let mut all = Vec::new();
    for (cpu, device) in [(10.0, 2.0), (2.0, 10.0), (5.0, 5.0)] {
        for (objective, clients) in [
            (Objective::Energy, 1),
            (Objective::Energy, 8),
            (Objective::Balanced, 1),
            (Objective::Balanced, 8),
        ] {
            let mut models = vec![Model::cpu(30_000.0, 0.0), Model::device(60_000.0, 0.0, 12)];
            (models[0].watts, models[1].watts) = (cpu, device);
            let case = typical().swap_remove(1);
            let load = Load { class: LatencyClass::Bulk, ..case.load(Ok(clients), REQUESTS) };
            let row = format!("{cpu} W and {device} W, {clients} clients, {objective:?}");
            all.push(Scene::new(move |tuning| {
                let report = adaptive(&models, &load, objective, tuning, &[]);
                let value = match objective {
                    Objective::Balanced => report.energy_nj / report.throughput,
                    _ => report.energy_nj,
                };
                Ok(vec![figure("metered machine", row.clone(), "energy", Better::Less, value)])
            }));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without its experiments a device that was slow for a while is never used again: a row must say so.
    #[test]
    fn a_rule_that_a_row_needs_is_missed_there_and_one_that_it_does_not_see_is_not() {
        let scenes: Vec<Scene> = learning().into_iter().skip(34).take(1).collect();
        let named = |name: &str| Tuning::ablations().into_iter().find(|one| one.name == name).unwrap();
        let ablated = ablate(&scenes, &[named("explore"), named("turns")], 2).unwrap();
        assert_eq!(ablated.effects.len(), 2);
        let worst = ablated.effects[0].worst(&ablated.figures).unwrap();
        assert!(worst.0.place == "slow device" && worst.1 > WORTH, "{worst:?}");
        assert_eq!(ablated.effects[1].worst(&ablated.figures).unwrap().1, 0.0, "it has no clocks");
    }

    #[test]
    fn less_of_what_should_be_more_is_a_loss_and_shares_lose_points() {
        let more = figure("x", String::new(), "throughput", Better::More, 10.0);
        assert_eq!((more.loss(9.0), more.loss(11.0)), (0.1, -0.1));
        let less = figure("x", String::new(), "latency_ns", Better::Less, 10.0);
        assert_eq!((less.loss(9.0), less.loss(11.0)), (-0.1, 0.1));
        let share = Figure { is_share: true, value: 0.5, ..less };
        assert_eq!(share.loss(0.75), 0.25);
    }
}
