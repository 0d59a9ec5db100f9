//! What the runtime leaves of the lanes' speed, and what it costs a request that has no company.

use std::mem;

use anyhow::{Context, Result, bail};
use wattlock::{Dispatcher, Runtime, Submitted, own_engines};
use wattlock_core::Engine;
use wattlock_core::{Error, Kind, OwnedRequest, known_answers};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::lanes::{Isa, Item, Lanes, WIDTH};

use super::pair;

/// Rounds of each comparison, and what one should take.
pub const ROUNDS: u32 = 30;
const ROUND_NS: f64 = 10e6;

/// Two ratios of times in the same run.
#[derive(Debug, Clone, Copy)]
pub struct Through {
    /// Rate of full batches through submit, hold and poll under `adaptive`, over the bare kernel's.
    pub of_kernel: f64,
    /// The same where a door hands over all of a batch at once.
    pub together: f64,
    /// Time of one request alone through submit under `adaptive`, over `instruction` called directly.
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
    let (of_kernel, together) = of_kernel(&runtime, &Lanes::new(isa), kind)?;
    let mut few = FEW.map(|count| (count, 0.0));
    for (count, ratio) in &mut few {
        *ratio = a_few(&runtime, kind, *count)?;
    }
    Ok(Through { of_kernel, together, alone: alone(&runtime, kind)?, few })
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

/// One by one, and together.
fn of_kernel(runtime: &Runtime, lanes: &Lanes, kind: Kind) -> Result<(f64, f64)> {
    let mut bare: Vec<OwnedRequest> = (0..WIDTH).map(|_| request(kind)).collect::<Result<_>>()?;
    let mut dispatcher = runtime.dispatcher();
    dispatcher.set_active(WIDTH as u32);
    let mut waiting: Vec<OwnedRequest> = (0..WIDTH).map(|_| request(kind)).collect::<Result<_>>()?;
    let mut back = Vec::with_capacity(WIDTH);
    // The first requests prove the engine.
    for _ in 0..4 {
        turn(&mut dispatcher, &mut waiting, &mut back);
    }
    let mut kernel = || {
        let mut items: Vec<Item<'_>> = bare
            .iter_mut()
            .map(|request| Item { request: request.view(), result: Err(Error::Unsupported) })
            .collect();
        let done = lanes.pass(kind, &mut items);
        assert!(done.is_ok() && items.iter().all(|item| item.result.is_ok()), "{done:?}");
    };
    let inner = pair::calls_for(ROUND_NS, &mut kernel);
    let mut through = || turn(&mut dispatcher, &mut waiting, &mut back);
    let mut other = runtime.dispatcher();
    let mut others: Vec<OwnedRequest> = (0..WIDTH).map(|_| request(kind)).collect::<Result<_>>()?;
    let mut others_back = Vec::with_capacity(WIDTH);
    for _ in 0..4 {
        turn_together(&mut other, &mut others, &mut others_back);
    }
    let mut together = || turn_together(&mut other, &mut others, &mut others_back);
    let times = pair::in_turn(&mut [&mut kernel, &mut through, &mut together], inner, ROUNDS);
    Ok((pair::ratio(&times[0], &times[1]), pair::ratio(&times[0], &times[2])))
}

/// As [`turn`], all in one call.
fn turn_together(dispatcher: &mut Dispatcher, waiting: &mut Vec<OwnedRequest>, back: &mut Vec<OwnedRequest>) {
    let count = waiting.len();
    dispatcher.submit_together(waiting, 0, &mut |_, submitted| {
        if let Submitted::Done(completion) = submitted {
            back.push(completion.request);
        }
    });
    while back.len() < count {
        dispatcher.poll(&mut |completion| back.push(completion.request));
    }
    mem::swap(waiting, back);
}

/// Submits all and polls until all are back, which then wait for the next turn. `back` is scratch.
fn turn(dispatcher: &mut Dispatcher, waiting: &mut Vec<OwnedRequest>, back: &mut Vec<OwnedRequest>) {
    for request in waiting.drain(..) {
        if let Submitted::Done(completion) = dispatcher.submit(request) {
            back.push(completion.request);
        }
    }
    while back.len() < WIDTH {
        dispatcher.poll(&mut |completion| back.push(completion.request));
    }
    mem::swap(waiting, back);
}

/// Time of so many together over that of as many calls.
fn a_few(runtime: &Runtime, kind: Kind, count: usize) -> Result<f64> {
    let instruction = Instruction::new();
    let mut direct = request(kind)?;
    let mut waiting: Vec<OwnedRequest> = (0..count).map(|_| request(kind)).collect::<Result<_>>()?;
    let mut back = Vec::with_capacity(count);
    let mut dispatcher = runtime.dispatcher();
    dispatcher.set_active(count as u32);
    // The first requests prove the engine.
    for _ in 0..4 {
        turn_together(&mut dispatcher, &mut waiting, &mut back);
    }
    let mut directly = || {
        for _ in 0..count {
            let result = instruction.execute(&mut direct.view());
            assert!(result.is_ok(), "{result:?}");
        }
    };
    let inner = pair::calls_for(ROUND_NS, &mut directly);
    let mut together = || turn_together(&mut dispatcher, &mut waiting, &mut back);
    let times = pair::in_turn(&mut [&mut directly, &mut together], inner, ROUNDS);
    Ok(pair::ratio(&times[1], &times[0]))
}

fn alone(runtime: &Runtime, kind: Kind) -> Result<f64> {
    let instruction = Instruction::new();
    let (mut direct, mut waiting) = (request(kind)?, Some(request(kind)?));
    let mut dispatcher = runtime.dispatcher();
    dispatcher.set_active(1);
    if !matches!(dispatcher.submit(request(kind)?), Submitted::Done(_)) {
        bail!("{} alone was queued", kind.name());
    }
    let mut directly = || {
        let result = instruction.execute(&mut direct.view());
        assert!(result.is_ok(), "{result:?}");
    };
    let inner = pair::calls_for(ROUND_NS, &mut directly);
    let mut through = || {
        let Some(request) = waiting.take() else { return };
        match dispatcher.submit(request) {
            Submitted::Done(completion) => waiting = Some(completion.request),
            Submitted::Pending(_) => {
                while waiting.is_none() {
                    dispatcher.poll(&mut |completion| waiting = Some(completion.request));
                }
            }
        }
    };
    let times = pair::in_turn(&mut [&mut directly, &mut through], inner, ROUNDS);
    Ok(pair::ratio(&times[1], &times[0]))
}
