//! `wattlock status`: what every process with a runtime has done where, read from shared memory.

use std::io::IsTerminal;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::Args;
use wattlock::telemetry::{Cell, Snapshot, own_uid, read_running};

use wattlock_shell::text;
use wattlock_watch::{Look, verdict, worth};

/// Show what running programs did, on which engine, and why requests fell back to the CPU
#[derive(Debug, Args)]
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
    let (begun, mut before) = (Instant::now(), None);
    loop {
        let (mut running, at) = (read_running(), begun.elapsed());
        let left_out = verdict::left_out(running.users_left_out);
        if command.json {
            // A host that has used nothing yet has nothing to tell.
            running.found.retain(Snapshot::is_used);
            say!("{}", serde_json::to_string_pretty(&running.found)?);
            if let Some(line) = left_out {
                tell!("wattlock: {line}");
            }
        } else {
            let epoch = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            let look = Look::new(at, epoch, running.found.clone());
            print_people(&running.found, &look.of_used(), before.as_ref(), left_out)?;
            before = Some(look);
        }
        let Some(seconds) = command.watch else { return Ok(()) };
        std::thread::sleep(Duration::from_secs_f64(seconds));
    }
}

/// Moves to the upper left corner and clears the screen (ECMA-48: CUP, ED).
const CLEAR: &str = "\x1b[H\x1b[2J";

/// A line a program, and then each process. What is printed again replaces what is on a terminal.
fn print_people(
    found: &[Snapshot],
    now: &Look,
    before: Option<&Look>,
    left_out: Option<String>,
) -> Result<()> {
    if before.is_some() && std::io::stdout().is_terminal() {
        put!("{CLEAR}");
    }
    let mut lines = verdict::lines(now, before, own_uid());
    if lines.is_empty() {
        lines.push("No running program uses Wattlock (or none whose counters you may read).".to_owned());
    }
    for line in lines.into_iter().chain(left_out) {
        say!("{line}");
    }
    for snapshot in found.iter().filter(|one| one.is_used()) {
        put!("\n{}", describe(snapshot));
    }
    Ok(())
}

/// A request's mean joules and what they are worth; the header says it for each engine.
fn joules(snapshot: &Snapshot, cell: &Cell) -> String {
    if cell.energy_nj == 0 || cell.timed == 0 {
        return "-".to_owned();
    }
    let worth = worth(&snapshot.header, &cell.engine);
    let each = cell.energy_nj as f64 / cell.timed as f64;
    let shown = match each {
        nj if nj >= 1e6 => format!("{:.2} mJ", nj / 1e6),
        nj if nj >= 1e3 => format!("{:.2} uJ", nj / 1e3),
        nj => format!("{nj:.0} nJ"),
    };
    format!("{shown} {worth}")
}

/// One process, for people.
pub fn describe(snapshot: &Snapshot) -> String {
    let header = &snapshot.header;
    let mut out = format!(
        "{} (pid {}), Wattlock {}, policy {} for {}\n  costs: {}\n",
        verdict::named(&header.program, snapshot.uid, own_uid()),
        header.pid,
        header.version,
        header.policy,
        header.objective,
        header.profile
    );
    for engine in &snapshot.engines {
        let said = |what, count| if count == 0 { String::new() } else { format!("; {what} {count}") };
        let returned = said("returned to it", engine.returned) + &said("chained", engine.chained);
        let fallbacks: Vec<String> =
            engine.fallbacks.iter().map(|(why, count)| format!("{why} {count}")).collect();
        out += &format!(
            "  {:<12} in flight {}, quarantines {}, checked {}, fallbacks {}{returned}\n",
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
            let or_dash = |shown: Option<String>| shown.unwrap_or_else(|| "-".to_owned());
            vec![
                format!("  {}", cell.kind),
                cell.engine.clone(),
                cell.requests.to_string(),
                text::bytes(cell.bytes),
                or_dash(cell.mean_ns().map(text::nanos)),
                or_dash(cell.mean_held_ns().map(text::nanos)),
                or_dash(cell.mean_batch().map(|batch| format!("{batch:.1}"))),
                cell.refused.to_string(),
                cell.errors.to_string(),
                joules(snapshot, cell),
            ]
        })
        .collect();
    if !rows.is_empty() {
        out += &text::table(
            &[
                "  kind",
                "engine",
                "requests",
                "bytes",
                "mean time",
                "held",
                "batch",
                "refused",
                "failed",
                "joules a request",
            ],
            &rows,
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> Snapshot {
        let runtime = wattlock::Runtime::builder().telemetry(false).build().unwrap();
        let mut snapshot = runtime.snapshot();
        snapshot.header.energy = vec!["derived: calibrated with powercap, above idle".into(), String::new()];
        let cell = |engine: &str, energy_nj| Cell {
            engine: engine.into(),
            kind: "sha-256".into(),
            requests: 640,
            timed: 10,
            timed_ns: 50_000,
            held_ns: 640_000,
            energy_nj,
            ..Cell::default()
        };
        snapshot.cells = vec![cell("instruction", 25_000), cell("software", 0)];
        snapshot
    }

    #[test]
    fn joules_are_shown_with_what_they_are_worth_or_not_at_all() {
        let shown = describe(&snapshot());
        let line = |engine: &str| {
            shown.lines().find(|line| line.contains("sha-256") && line.contains(engine)).unwrap()
        };
        assert!(
            line("instruction").ends_with("2.50 uJ derived: calibrated with powercap, above idle"),
            "{shown}"
        );
        assert!(line("software").trim_end().ends_with('-'), "{shown}");
        let mut old = snapshot();
        old.header.energy.clear();
        assert!(describe(&old).contains("2.50 uJ modelled"));
    }

    #[test]
    fn another_users_process_begins_with_whose_it_is() {
        let mut theirs = snapshot();
        (theirs.uid, theirs.header.program) = (own_uid() + 1, format!("uid {}: sshd", own_uid()));
        assert!(describe(&theirs).starts_with(&format!("uid {}: uid {}: sshd (pid ", theirs.uid, own_uid())));
        assert!(describe(&snapshot()).starts_with(&snapshot().header.program));
    }

    #[test]
    fn time_is_a_mean_over_those_timed_and_time_held_over_all() {
        let shown = describe(&snapshot());
        let line = shown.lines().find(|line| line.contains("software") && line.contains("sha-256")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[5..10], ["5.00", "us", "1.00", "us", "-"], "{shown}");
    }
}
