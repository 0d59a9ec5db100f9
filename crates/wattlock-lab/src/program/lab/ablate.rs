//! `wattlock lab ablate`: what each rule and each constant of `adaptive` is worth. The lab has the scenes of modelled
//! machines; files and nginx come from here, from the table that ships for this CPU.

use std::num::NonZero;

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;
use wattlock::policy::{Ablation, EngineClass, Tuning};
use wattlock::{Profile, own_engines};
use wattlock_core::{Kind, LatencyClass};
use wattlock_lab::ablate::{self, Ablated, Effect, Figure, Scene, WORTH};
use wattlock_lab::sim::thread::{Load, Model};

use super::print::figure;
use wattlock_shell::text;

/// Which of them, and how it is printed.
#[derive(Debug, Args)]
pub struct Command {
    /// Only these rules and constants, comma-separated; may be repeated [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<String>,
    /// One JSON object a line, one for each change and row
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(command: &Command) -> Result<()> {
    let ablations = asked(&command.only)?;
    let mut scenes = ablate::scenes();
    scenes.extend(here());
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let ablated = ablate::ablate(&scenes, &ablations, threads)?;
    match command.json {
        true => json(&ablated),
        false => table(&ablated),
    }
}

fn asked(only: &[String]) -> Result<Vec<Ablation>> {
    let all = Tuning::ablations();
    for name in only {
        if !all.iter().any(|one| one.name == name) {
            let mut names: Vec<&str> = all.iter().map(|one| one.name).collect();
            names.dedup();
            bail!(wattlock_lab::Error::option("--only", format!("among {}", names.join(", "))));
        }
    }
    let is_asked = |one: &Ablation| only.is_empty() || only.iter().any(|name| name == one.name);
    Ok(all.into_iter().filter(is_asked).collect())
}

/// Sealing files, and operations that gather in nginx's workers, with this CPU's engines at the times of the table that
/// ships.
fn here() -> Vec<Scene> {
    let table = Profile::built_in_for(&own_engines());
    let engines = [
        ("software", EngineClass::Software, 1),
        ("instruction", EngineClass::Instruction, 1),
        ("lanes", EngineClass::Lanes, 8),
    ];
    let models = |kind| -> Vec<Model> {
        let model = |(name, class, width)| {
            let curve = table.curve(name, kind);
            let (low, high) = (curve.first()?, curve.last()?);
            let per_byte_ns = if high.0 > low.0 { (high.1 - low.1) / (high.0 - low.0) as f64 } else { 0.0 };
            let setup_ns = (low.1 - per_byte_ns * low.0 as f64).max(1.0);
            Some(Model { class, width, ..Model::cpu(setup_ns, per_byte_ns) })
        };
        engines.into_iter().filter_map(model).collect()
    };
    let scene = |place, kind: Kind, class, bytes: usize, clients: u32| {
        let says_active = class == LatencyClass::Interactive;
        let load =
            Load { kind, class, sizes: vec![bytes], arrivals: Ok(clients), says_active, requests: 20_000 };
        Scene::thread(place, format!("{}, {clients} in hand", kind.name()), models(kind), load)
    };
    let mut all = Vec::new();
    for kind in [Kind::Aes256GcmSeal, Kind::Aes256GcmOpen, Kind::ChaCha20Poly1305Seal] {
        all.extend([1, 64].map(|chunks| scene("files", kind, LatencyClass::Bulk, 64 << 10, chunks)));
    }
    for kind in [Kind::Rsa2048Private, Kind::EcdsaP256Sign, Kind::X25519Derive] {
        for connections in [1, 2, 3, 8, 64] {
            all.push(scene("nginx", kind, LatencyClass::Interactive, 32, connections));
        }
    }
    all
}

#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    change: &'a str,
    place: &'a str,
    row: &'a str,
    quantity: &'a str,
    value: f64,
    changed: f64,
    /// A share of the value, or points where that is a share itself; negative where the row gains.
    loss: f64,
}

fn json(ablated: &Ablated) -> Result<()> {
    for Effect { ablation: Ablation { name, change, .. }, changed } in &ablated.effects {
        for (Figure { place, row, quantity, value, .. }, (changed, loss)) in
            ablated.figures.iter().zip(changed.iter().copied())
        {
            let line = Line { name, change, place, row, quantity, value: *value, changed, loss };
            say!("{}", serde_json::to_string(&line)?);
        }
    }
    Ok(())
}

const HEADER: [&str; 7] = ["rule or constant", "change", "loses", "rows", "gains", "worst row", "quantity"];

fn table(ablated: &Ablated) -> Result<()> {
    say!("What adaptive's rules and constants are worth (simulated; {} rows)\n", ablated.figures.len());
    let lines: Vec<Vec<String>> =
        ablated.effects.iter().map(|effect| cells(effect, &ablated.figures)).collect();
    put!("{}", text::table(&HEADER, &lines));
    say!("\nloses: the worst row's loss. rows: those that lose {} % or more.", figure(100.0 * WORTH));
    say!("gains: what the row gains that gains most.");
    let mut missed: Vec<&str> =
        ablated.effects.iter().filter(|one| one.is_missed()).map(|one| one.ablation.name).collect();
    missed.dedup();
    let mut others: Vec<&str> = ablated.effects.iter().map(|one| one.ablation.name).collect();
    others.dedup();
    others.retain(|name| !missed.contains(name));
    match others.is_empty() {
        true => say!("Each of them is missed by some row."),
        false => say!("No row misses: {}.", others.join(", ")),
    }
    Ok(())
}

fn cells(effect: &Effect, figures: &[Figure]) -> Vec<String> {
    let percent = |share: f64| format!("{:.1} %", 100.0 * share + 0.0);
    let Ablation { name, change, .. } = effect.ablation;
    let missed = effect.changed.iter().filter(|(_, loss)| *loss >= WORTH).count();
    let gain = effect.changed.iter().map(|(_, loss)| -loss).fold(0.0, f64::max);
    let (loss, row, quantity) = match effect.worst(figures).filter(|(_, loss)| *loss > 0.0) {
        Some((worst, loss)) => {
            (percent(loss), format!("{}: {}", worst.place, worst.row.trim()), worst.quantity)
        }
        None => (percent(0.0), "-".to_owned(), "-"),
    };
    vec![name.into(), change.into(), loss, missed.to_string(), percent(gain), row, quantity.into()]
}
