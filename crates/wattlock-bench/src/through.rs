//! What the runtime leaves of the lanes' speed, and what it costs a request without batch-mates.

use std::mem;

use anyhow::{Context, Result};
use wattlock::{Dispatcher, Runtime, Submitted, own_engines};
use wattlock_core::{Engine, Kind, OwnedRequest, known_answers};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::lanes::{Isa, Item, Lanes, WIDTH};

use super::pair;

/// Rounds of each comparison, and what one should take.
pub const ROUNDS: u32 = 30;
const ROUND_NS: f64 = 10e6;

/// Ratios of times in the same run.
#[derive(Debug, Clone, Copy)]
pub struct Through {
    /// Rate of full batches of borrowed requests under `adaptive`, over the bare kernel's.
    pub borrowed: f64,
    /// The same of requests that own their buffers, as a paused operation's does.
    pub owned: f64,
    /// Time of one request alone under `adaptive`, over `instruction` called directly.
    pub alone: f64,
    /// How many together, and their time over that of as many calls of `instruction`.
    pub few: [(usize, f64); FEW.len()],
}

/// Batches that are not full: here lanes begin to pay, and there must be no cliff before.
const FEW: [usize; 4] = [2, 3, 4, 6];

/// Measures one kind of lanes.
///
/// # Errors
/// If there are no lanes here, or they do not do the kind, or `adaptive` would not use them.
pub fn through(kind: Kind) -> Result<Through> {
    let isa = Isa::best(&Cpu::detect()).context("no lanes here")?;
    let runtime = Runtime::builder()
        .engines(own_engines())
        .profile(wattlock::calibrate::calibrate(&own_engines(), &plan(kind), &mut |_| {}))
        .telemetry(false)
        .build()?;
    let (borrowed, owned) = of_kernel(&runtime, &Lanes::new(isa), kind)?;
    let mut few = FEW.map(|count| (count, 0.0));
    for (count, ratio) in &mut few {
        *ratio = a_few(&runtime, kind, *count)?;
    }
    Ok(Through { borrowed, owned, alone: alone(&runtime, kind)?, few })
}

/// This kind only, one at a time: what a request costs alone and what a pass costs.
fn plan(kind: Kind) -> wattlock::calibrate::Plan {
    let kinds = wattlock_core::KindSet::of(&[kind]);
    wattlock::calibrate::Plan {
        within: None,
        per_point: std::time::Duration::from_millis(40),
        ..wattlock::calibrate::Plan::quick(kinds)
    }
}

fn request(kind: Kind) -> Result<OwnedRequest> {
    Ok(known_answers(kind).into_iter().next().context("no known answer")?.request)
}

fn requests(kind: Kind, count: usize) -> Result<Vec<OwnedRequest>> {
    (0..count).map(|_| request(kind)).collect()
}

/// Borrowed, and owned.
fn of_kernel(runtime: &Runtime, lanes: &Lanes, kind: Kind) -> Result<(f64, f64)> {
    let mut bare = requests(kind, WIDTH)?;
    let mut kernel = || {
        let mut items: Vec<Item<'_>> = bare.iter_mut().map(|request| Item::new(request.view())).collect();
        lanes.execute_all(&mut items);
        assert!(items.iter().all(|item| item.result.is_ok()));
    };
    let (mut lent, mut dispatcher) = (requests(kind, WIDTH)?, runtime.dispatcher());
    let mut borrowed = || borrowed_turn(&mut dispatcher, &mut lent);
    let (mut own, mut other) = (requests(kind, WIDTH)?, runtime.dispatcher());
    let mut back = Vec::with_capacity(WIDTH);
    let mut owned = || owned_turn(&mut other, &mut own, &mut back);
    // The first requests prove the engine.
    (0..4).for_each(|_| borrowed());
    (0..4).for_each(|_| owned());
    let inner = pair::calls_for(ROUND_NS, &mut kernel);
    let times = pair::in_turn(&mut [&mut kernel, &mut borrowed, &mut owned], inner, ROUNDS);
    Ok((pair::ratio(&times[0], &times[1]), pair::ratio(&times[0], &times[2])))
}

/// All in one call, in their own buffers.
fn borrowed_turn(dispatcher: &mut Dispatcher, requests: &mut [OwnedRequest]) {
    let mut items: Vec<Item<'_>> = requests.iter_mut().map(|request| Item::new(request.view())).collect();
    dispatcher.run_all(&mut items);
    assert!(items.iter().all(|item| item.result.is_ok()));
}

/// All in one call, given away and taken back. `back` is scratch.
fn owned_turn(dispatcher: &mut Dispatcher, waiting: &mut Vec<OwnedRequest>, back: &mut Vec<OwnedRequest>) {
    dispatcher.submit_together(waiting, 0, &mut |_, submitted| {
        if let Submitted::Done(completion) = submitted {
            back.push(completion.request);
        }
    });
    mem::swap(waiting, back);
}

/// Time of so many together over that of as many calls.
fn a_few(runtime: &Runtime, kind: Kind, count: usize) -> Result<f64> {
    let instruction = Instruction::new();
    let (mut direct, mut lent) = (request(kind)?, requests(kind, count)?);
    let mut dispatcher = runtime.dispatcher();
    let mut directly = || {
        for _ in 0..count {
            let result = instruction.execute(&mut direct.view());
            assert!(result.is_ok(), "{result:?}");
        }
    };
    let mut together = || borrowed_turn(&mut dispatcher, &mut lent);
    // The first requests prove the engine.
    (0..4).for_each(|_| together());
    let inner = pair::calls_for(ROUND_NS, &mut directly);
    let times = pair::in_turn(&mut [&mut directly, &mut together], inner, ROUNDS);
    Ok(pair::ratio(&times[1], &times[0]))
}

fn alone(runtime: &Runtime, kind: Kind) -> Result<f64> {
    a_few(runtime, kind, 1)
}
