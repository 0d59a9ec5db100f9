//! `wattlock engines`: what this machine has, what would be chosen, and why.

use std::collections::BTreeMap;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use wattlock::Runtime;
use wattlock::policy::{Ask, EngineId, Machine, Weather};
use wattlock_core::{EngineClass, Family, Kind, LatencyClass, Shape};

use crate::cpu::Summary;
use wattlock_shell::setup::{self, Choice, parse_kind};
use wattlock_shell::{program, text};

/// Show what this machine has, what would be chosen, and why
#[derive(Debug, Args)]
pub struct Command {
    /// Show one kind of request at many sizes
    #[arg(long, value_parser = parse_kind)]
    kind: Option<Kind>,
    /// List the accelerator models that can be emulated
    #[arg(long)]
    models: bool,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(command: &Command, choice: &Choice) -> Result<()> {
    if command.models {
        let Some(emulation) = setup::emulation() else { return Err(program::become_emulated()) };
        for model in (emulation.models)() {
            say!("{model}");
        }
        return Ok(());
    }
    let runtime = setup::runtime(choice, None, true)?;
    match (command.json, command.kind) {
        (true, _) => print_json(&runtime),
        (false, Some(kind)) => print_kind(&runtime, kind),
        (false, None) => print_all(&runtime),
    }
}

const SIZES: [usize; 6] = [64, 1024, 4096, 16 << 10, 256 << 10, 4 << 20];

/// What the policy chooses for a request of this kind and size with nothing in flight.
fn chosen(runtime: &Runtime, kind: Kind, bytes: usize) -> Option<EngineId> {
    let mut weather = Weather { submitters: 1, idle_permille: 1000, ..Weather::default() };
    weather.engines.iter_mut().take(runtime.engines().len()).for_each(|engine| engine.available = true);
    let shape = Shape { kind, bytes, class: LatencyClass::Bulk, messages: 1 };
    let choice = runtime.fresh_policy().choose(&Ask::one(shape), &weather, runtime.clock().now());
    (choice.engine.index() < runtime.engines().len()).then_some(choice.engine)
}

fn name(runtime: &Runtime, id: EngineId) -> &'static str {
    runtime.engines()[id.index()].description().name
}

fn sizes_of(kind: Kind) -> Vec<usize> {
    use Family::{Cipher, Compress, Digest, Mac, Open, Seal};
    match kind.info().family {
        Cipher | Seal | Open | Digest | Mac | Compress => SIZES.to_vec(),
        _ => vec![kind.info().least],
    }
}

/// Calibrated nanoseconds of every engine that does the kind, cheapest first.
fn costs(machine: &Machine, kind: Kind, bytes: usize) -> Vec<(EngineId, f64)> {
    let mut costs: Vec<(EngineId, f64)> = machine
        .engines
        .iter()
        .filter(|engine| engine.can(kind))
        .filter_map(|engine| Some((engine.id, machine.costs.latency_ns(engine.id, kind, bytes)?)))
        .collect();
    costs.sort_by(|a, b| a.1.total_cmp(&b.1));
    costs
}

const NO_COST: &str = "no calibrated cost";

/// Why, in figures: what the chosen engine costs and what the next one would.
fn why(runtime: &Runtime, kind: Kind, bytes: usize, id: EngineId) -> String {
    let costs = costs(runtime.machine(), kind, bytes);
    let Some(mine) = costs.iter().find(|(engine, _)| *engine == id) else {
        return NO_COST.into();
    };
    let mut why = text::nanos(mine.1);
    for (other, ns) in costs.iter().filter(|(engine, _)| *engine != id) {
        why += &format!(", {} {}", name(runtime, *other), text::nanos(*ns));
    }
    why
}

fn print_all(runtime: &Runtime) -> Result<()> {
    say!("Engines");
    for engine in runtime.engines() {
        let description = engine.description();
        let width = description.kinds().iter().map(|kind| engine.width(kind)).max().unwrap_or(1);
        let how = match (description.queued.is_empty(), width) {
            (true, 1) => "inside the call".to_owned(),
            (true, width) => format!("inside the call, up to {width} at a time"),
            (false, width) => format!("queued, {width} a doorbell"),
        };
        say!("  {:<12} {} kinds, {how}", description.name, description.kinds().iter().count());
        say!("  {:<12} {}", "", description.detail);
        let narrow = |kind: &&Kind| kind.is_asymmetric() && !description.inline.contains(**kind);
        let absent: Vec<&str> = Kind::ALL.iter().filter(narrow).map(|kind| kind.name()).collect();
        if description.class == EngineClass::Lanes && !absent.is_empty() {
            say!("  {:<12} not {}: those need AVX-512 IFMA", "", absent.join(", "));
        }
    }
    for (name, why) in wattlock::missing_engines() {
        say!("Not here: {name}: {why}");
    }
    match setup::gpu() {
        Err(why) => say!("Not here: cuda: {why}"),
        Ok(gpu) => {
            if gpu.copies_block(setup::nvml().as_deref()) {
                say!("  {:<12} {CONFIDENTIAL}", "");
            }
            gpu_data(runtime)?;
        }
    }
    say!("Not here: {CARDS}");
    let cpu = Summary::here(runtime);
    say!("This CPU    {} (its class in docs/measurements/performance.md)", cpu.class);
    say!("Handshakes  {}", cpu.handshakes());
    say!("Files       {}", cpu.files);
    say!("Policy      {}", runtime.policy());
    say!("Profile     {}", runtime.profile_origin());
    say!("            {CALIBRATION}");
    say!("\nChosen for one request alone (and what the others would cost)");
    let mut rows = Vec::new();
    for kind in Kind::ALL {
        for (bytes, id) in turning_points(runtime, *kind) {
            let size = match kind.info().family {
                Family::Sign | Family::Agree | Family::Generate | Family::Derive => "-".to_owned(),
                _ => format!(">= {}", text::bytes(bytes as u64)),
            };
            rows.push(vec![
                kind.name().into(),
                size,
                name(runtime, id).into(),
                why(runtime, *kind, bytes, id),
            ]);
        }
    }
    put!("{}", text::table(&["kind", "size", "engine", "why"], &rows));
    if rows.iter().any(|row| row[3] == NO_COST) {
        say!("\n`wattlock calibrate` measures what has no calibrated cost (a few seconds with --quick)");
    }
    Ok(())
}

/// Kinds for which rates on a GPU are told.
const GPU_KINDS: [Kind; 2] = [Kind::Aes256GcmSeal, Kind::ChaCha20Poly1305Seal];
/// What is measured in the GPU's memory: bytes, message, rounds. Some milliseconds on hardware.
const GPU_SAMPLE: (usize, usize, usize) = (64 << 20, 64 << 10, 3);
/// A request of the host's data for which the choice is told.
const HOST_SAMPLE: usize = 4 << 20;

/// Which engine does data of the host's and data of the GPU's, at which rates: the former as calibrated, the latter
/// measured now.
fn gpu_data(runtime: &Runtime) -> Result<()> {
    let rate = |bytes: f64| format!("{:.1} GB/s", bytes / 1e9);
    for kind in GPU_KINDS {
        let costs = costs(runtime.machine(), kind, HOST_SAMPLE);
        let known: Vec<String> = costs
            .iter()
            .map(|(id, ns)| format!("{} {}", name(runtime, *id), rate(HOST_SAMPLE as f64 * 1e9 / ns)))
            .collect();
        let chosen = chosen(runtime, kind, HOST_SAMPLE).map_or("-", |id| name(runtime, id));
        let known = if known.is_empty() { NO_COST.to_owned() } else { known.join(", ") };
        say!("  data on the host: {} by {chosen} ({known})", kind.name());
    }
    match setup::gpu_memory() {
        Err(why) => say!("  data on the GPU: {why}"),
        Ok(direct) => {
            let (bytes, message, rounds) = GPU_SAMPLE;
            for kind in GPU_KINDS {
                let measured = direct.rate(kind, bytes, message, rounds);
                let told = measured.map_or_else(
                    |trouble| trouble.to_string(),
                    |rates| rate(rates.into_iter().fold(0.0, f64::max)),
                );
                say!("  data on the GPU: {} by cuda ({told}; libwattlock_gpu)", kind.name());
            }
        }
    }
    Ok(())
}

/// What it means for the engine that the GPU is in confidential mode.
const CONFIDENTIAL: &str = "cuda: confidential computing is on: copies between host and GPU are encrypted, block, and overlap nothing";

/// What no machine has yet.
const CARDS: &str =
    "accelerator cards (no engine for them is built in yet); `--emulate` has models of some, and of GPUs";

/// When a profile is made; the other doors never make one.
const CALIBRATION: &str = "(`wattlock calibrate` makes one, and so does the first `seal` or `open`; the provider and nginx only read it)";

/// The smallest size shown, and each larger one where the choice changes.
fn turning_points(runtime: &Runtime, kind: Kind) -> Vec<(usize, EngineId)> {
    let mut points: Vec<(usize, EngineId)> = Vec::new();
    for bytes in sizes_of(kind) {
        if let Some(id) = chosen(runtime, kind, bytes)
            && points.last().is_none_or(|(_, last)| *last != id)
        {
            points.push((bytes, id));
        }
    }
    points
}

fn print_kind(runtime: &Runtime, kind: Kind) -> Result<()> {
    say!("{} under {} ({})", kind.name(), runtime.policy(), runtime.profile_origin());
    let rows: Vec<Vec<String>> = sizes_of(kind)
        .into_iter()
        .filter_map(|bytes| {
            let id = chosen(runtime, kind, bytes)?;
            Some(vec![text::bytes(bytes as u64), name(runtime, id).into(), why(runtime, kind, bytes, id)])
        })
        .collect();
    put!("{}", text::table(&["size", "engine", "why"], &rows));
    Ok(())
}

fn print_json(runtime: &Runtime) -> Result<()> {
    let engines: Vec<_> = runtime
        .engines()
        .iter()
        .map(|engine| {
            let d = engine.description();
            let width = d.kinds().iter().map(|kind| engine.width(kind)).max().unwrap_or(1);
            let names = |set: wattlock_core::KindSet| set.iter().map(Kind::name).collect::<Vec<_>>();
            json!({"name": d.name, "class": d.class.name(), "detail": d.detail, "width": width,
                   "inline": names(d.inline), "queued": names(d.queued)})
        })
        .collect();
    let choices: BTreeMap<&str, Vec<_>> = Kind::ALL
        .iter()
        .map(|kind| {
            let points = sizes_of(*kind).into_iter().filter_map(|bytes| {
                let id = chosen(runtime, *kind, bytes)?;
                Some(json!({"bytes": bytes, "engine": name(runtime, id)}))
            });
            (kind.name(), points.collect())
        })
        .collect();
    let all = json!({"engines": engines, "policy": runtime.policy(), "profile": runtime.profile_origin(),
                     "cpu": Summary::here(runtime), "choices": choices});
    say!("{all:#}");
    Ok(())
}
