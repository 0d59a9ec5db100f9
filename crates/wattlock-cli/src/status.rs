//! `wattlock status`: what every process with a runtime has done where, read from shared memory.

use anyhow::Result;
use clap::Args;
use wattlock::telemetry::{Snapshot, read_all};

use crate::text;

/// What running programs did, on which engine, and why not elsewhere
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  wattlock status\n  wattlock status --json | jq '.[].cells'\n  wattlock status --watch 1"
)]
pub struct Command {
    /// A JSON array, one object a process
    #[arg(long)]
    json: bool,
    /// Print again every so many seconds, until interrupted
    #[arg(long, value_name = "SECONDS", value_parser = text::parse_seconds)]
    watch: Option<f64>,
}

/// Runs the command.
pub fn run(command: &Command) -> Result<()> {
    loop {
        let found = read_all();
        if command.json {
            say!("{}", serde_json::to_string_pretty(&found)?);
        } else {
            print_people(&found)?;
        }
        let Some(seconds) = command.watch else { return Ok(()) };
        std::thread::sleep(std::time::Duration::from_secs_f64(seconds));
    }
}

fn print_people(found: &[Snapshot]) -> Result<()> {
    if found.is_empty() {
        say!("No running program uses Wattlock (or none whose counters you may read).");
    }
    for snapshot in found {
        put!("{}", describe(snapshot));
    }
    Ok(())
}

/// One process, for people.
pub fn describe(snapshot: &Snapshot) -> String {
    let header = &snapshot.header;
    let mut out = format!(
        "{} (pid {}), Wattlock {}, policy {} for {}\n  costs: {}\n",
        header.program, header.pid, header.version, header.policy, header.objective, header.profile
    );
    for engine in &snapshot.engines {
        let fallbacks: Vec<String> =
            engine.fallbacks.iter().map(|(why, count)| format!("{why} {count}")).collect();
        out += &format!(
            "  {:<12} in flight {}, quarantines {}, checked {}, fallbacks {}\n",
            engine.engine,
            engine.in_flight,
            engine.quarantines,
            engine.verified,
            if fallbacks.is_empty() { "none".to_owned() } else { fallbacks.join(", ") }
        );
    }
    for (name, why) in &header.inactive {
        out += &format!("  {name:<12} inactive: {why}\n");
    }
    let rows: Vec<Vec<String>> = snapshot
        .cells
        .iter()
        .map(|cell| {
            let mean = |sum: u64| {
                if cell.timed == 0 { "-".to_owned() } else { text::nanos(sum as f64 / cell.timed as f64) }
            };
            let batch = if cell.batch_sum == 0 {
                "-".to_owned()
            } else {
                format!("{:.1}", cell.batch_sum as f64 / cell.timed as f64)
            };
            vec![
                format!("  {}", cell.kind),
                cell.engine.clone(),
                cell.requests.to_string(),
                text::bytes(cell.bytes),
                mean(cell.timed_ns),
                mean(cell.held_ns),
                batch,
                cell.errors.to_string(),
            ]
        })
        .collect();
    if !rows.is_empty() {
        out += &text::table(
            &["  kind", "engine", "requests", "bytes", "mean time", "held", "batch", "errors"],
            &rows,
        );
    }
    out
}
