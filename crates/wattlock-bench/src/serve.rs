//! `wattlock serve --compare`: the nginx that is installed with Wattlock and without, held against each other over a folder.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use wattlock_shell::nginx::server::Server;
use wattlock_shell::nginx::site::{Command, cores};
use wattlock_shell::setup::Choice;
use wattlock_shell::text;

use crate::https::client::{self, Load, TLS12, TLS13, Tally};
use crate::https::groups::Group;
use crate::https::offer::Offer;
use crate::https::rows::Measure;
use crate::https::{Sides, done, in_turn, name_peers, pin, stock_name};
use crate::machine_line;
use crate::own;
use crate::pair::{self, Gain};
use crate::record::Record;
use crate::tally::{between, engines};

/// Files requested in turn in a comparison, and their greatest size.
const FILES: usize = 16;
const FILE_BYTES: u64 = 4 << 20;

/// Runs the command.
pub fn run(command: &Command, choice: &Choice) -> Result<()> {
    ensure!(command.compare, "`wattlock serve` serves; this program only compares: --compare");
    let record = Record::begin(command.json.as_deref())?;
    if let Some(config) = &command.config {
        return own::run(command, config, choice, record);
    }
    let site = command.open(choice)?;
    let stock = command.stock(&site)?;
    compare(command, &stock, &site.ours, &stock_name(&site.nginx), record)
}

fn compare(
    command: &Command,
    stock: &Server,
    ours: &Server,
    against: &str,
    mut record: Record,
) -> Result<()> {
    if let Some(Err(why)) = &ours.active {
        bail!("nothing to compare: Wattlock's module is inactive: {why}");
    }
    let machine = machine_line();
    let (connections, rounds) = (command.connections as usize, command.rounds);
    if cores() > 1 {
        pin(1)?;
    }
    say!("{machine}; {connections} connections; certificate {}", command.kind());
    let files = files(command.folder())?;
    let mut lines = Vec::new();
    let mut failures = Vec::new();
    for (name, what, version, paths) in [
        ("tls12-handshakes", "handshakes, TLS 1.2", &TLS12, &[][..]),
        ("tls13-handshakes", "handshakes, TLS 1.3", &TLS13, &[][..]),
        ("tls13-responses", "requests, TLS 1.3, keep-alive", &TLS13, &files[..]),
    ] {
        if what.starts_with("requests") && paths.is_empty() {
            say!(
                "no file of 1 byte to {} directly in the folder: requests are not measured",
                text::bytes(FILE_BYTES)
            );
            continue;
        }
        let offer = Offer::new(version, &[Group::X25519, Group::P256, Group::P384]);
        let sorts = [(1.0, offer.config()?)];
        let time = Duration::from_secs_f64(command.seconds / f64::from(rounds));
        let once = |server: &Server| {
            let (address, sorts) = (server.addresses[0], &sorts[..]);
            let load = Load { address, sorts, connections, paths, stays: true, head: "", time, visit: None };
            client::drive(&load, &|| server.cpu()).context(what)
        };
        eprintln!("wattlock: {what}");
        let before = done(ours.addresses[0])?;
        let sides = in_turn(rounds, || once(stock), || once(ours))?;
        lines.push(cells(what, &sides));
        if let Some(row) = sides.row("serve", name, Measure::Rate, !paths.is_empty()) {
            let row = row.param("connections", connections).param("certificate", command.kind());
            let row = row.param("workers", command.workers());
            let engines = engines(&[between(&before, &done(ours.addresses[0])?)]);
            record.add(row.against(against).detail("engines", engines));
        }
        failures.extend(sides.failures(what, ["stock", "with Wattlock"]));
    }
    let header = [
        "what",
        "stock",
        "with Wattlock",
        "gain",
        "CPU each, stock",
        "with Wattlock",
        "gain by CPU",
        "worker, %",
    ];
    put!("{}", text::table(&header, &lines));
    say!(
        "each pair of figures is of one round, the one with its median gain; the worker's processor time says"
    );
    say!("more where another process used the core, or where the client was the limit (worker below 95 %)");
    say!("{}", pair::LEGEND);
    name_peers(against, &mut record);
    record.finish()?;
    ensure!(failures.is_empty(), "connections failed: {}", failures.join("; "));
    Ok(())
}

/// One line of a comparison: rates, and processor time of the worker for each. Each gain stands behind its own figures.
fn cells(what: &str, sides: &Sides) -> Vec<String> {
    let share = sides.both(Tally::share);
    let of = |measure: Measure| {
        let gain = sides.gain(measure);
        let shown = |of: fn(Gain) -> f64| gain.map_or_else(|| "-".into(), |gain| measure.show(of(gain)));
        [shown(|gain| gain.theirs), shown(|gain| gain.ours), pair::cell(gain)]
    };
    let figures = [of(Measure::Rate), of(Measure::Cpu)].concat();
    let worker = format!("{:.0} > {:.0}", share[0] * 100.0, share[1] * 100.0);
    [vec![what.to_owned()], figures, vec![worker]].concat()
}

/// Paths of some files that lie directly in the folder and can be requested.
fn files(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let fits =
            entry.metadata().is_ok_and(|about| about.is_file() && (1..=FILE_BYTES).contains(&about.len()));
        if let (true, Some(name)) =
            (fits && std::fs::File::open(entry.path()).is_ok(), entry.file_name().to_str())
        {
            names.push(format!("/{}", escaped(name)));
        }
    }
    names.sort_unstable();
    names.truncate(FILES);
    Ok(names)
}

/// A name as part of a path in a request (RFC 3986, section 2.1).
fn escaped(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    name.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_for_requests() {
        assert_eq!(escaped("a b?c%d.txt"), "a%20b%3Fc%25d.txt");
        assert_eq!(escaped("\u{e9}"), "%C3%A9");
    }

    #[test]
    fn files_are_found_and_empty_ones_and_folders_are_not() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("full"), "x").unwrap();
        std::fs::write(folder.path().join("empty"), "").unwrap();
        std::fs::create_dir(folder.path().join("deeper")).unwrap();
        assert_eq!(files(folder.path()).unwrap(), ["/full"]);
    }
}
