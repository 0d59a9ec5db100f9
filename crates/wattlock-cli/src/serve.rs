//! `wattlock serve`: a folder over HTTPS by the nginx that is installed, with Wattlock in it, on loopback, until
//! interrupted; or the same nginx with and without Wattlock held against each other.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use wattlock_bench::https::client::{self, Load, TLS12, TLS13, Tally};
use wattlock_bench::https::groups::Group;
use wattlock_bench::https::rows::Measure;
use wattlock_bench::https::{Sides, done, engines, failures_of, in_turn, name_peers, pin, stock_name};
use wattlock_bench::machine_line;
use wattlock_bench::pair::{self, Gain};
use wattlock_bench::record::Record;
use wattlock_shell::INTERRUPTED;
use wattlock_shell::nginx::place::{Nginx, Places};
use wattlock_shell::nginx::server::{Certificate, KeyType, Listener, OpenSsl, Plan, Server};

use wattlock_shell::setup::Choice;
use wattlock_shell::text;

/// Connections at once in a comparison.
const CONNECTIONS: usize = 64;
/// Rounds of each side and measure in a comparison.
const ROUNDS: u32 = 5;
/// Files requested in turn in a comparison, and their greatest size.
const FILES: usize = 16;
const FILE_BYTES: u64 = 4 << 20;

/// Serve a folder over HTTPS on this machine, by the installed nginx with Wattlock; changes nothing else unless
/// --install is given
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  wattlock serve .\n  wattlock serve . --compare --json -\n  wattlock serve . --install\n  wattlock serve /srv/www --port 8444 --key-type p256 --workers 2"
)]
pub struct Command {
    /// Folder to serve
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Port on 127.0.0.1; 0 for any that is free
    #[arg(long, default_value_t = 8443)]
    port: u16,
    /// Install nginx first if there is none (Debian, Ubuntu; uses sudo if it must); nginx's own service stays off
    #[arg(long)]
    install: bool,
    /// Start the same nginx without Wattlock beside it, measure both in turn, print the figures and stop
    #[arg(long)]
    compare: bool,
    /// Seconds for each measure and each side of a comparison
    #[arg(long, default_value_t = 3.0, value_parser = text::parse_seconds)]
    seconds: f64,
    /// Also write the comparison to a file as JSON; `-` for standard output, after all else
    #[arg(long, value_name = "FILE", requires = "compare")]
    json: Option<PathBuf>,
    /// Certificate chain (PEM); without it one is made and signed by itself
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Kind of key of a certificate that is made
    #[arg(long, value_enum, default_value = "rsa2048", conflicts_with = "cert")]
    key_type: KeyType,
    /// Worker processes; by default as many as there are cores, in a comparison one
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: Option<u32>,
    #[command(flatten)]
    places: Places,
}

/// Runs the command.
pub fn run(command: &Command, choice: &Choice) -> Result<()> {
    ensure!(command.folder.is_dir(), "{}: not a folder", command.folder.display());
    let record = Record::begin(command.json.as_deref())?;
    if command.install {
        command.places.install()?;
    }
    let nginx = command.places.nginx()?;
    let parts = command.places.parts(&nginx, choice)?;
    let scratch = tempfile::Builder::new().prefix("wattlock-serve-").tempdir()?;
    let certificate = command.certificate(scratch.path())?;
    let start = |openssl, port| command.start(&nginx, openssl, port, &certificate);
    let mut ours = start(OpenSsl::Wattlock(&parts), command.port)?;
    command.greet(&nginx, &ours)?;
    if command.compare {
        let stock = start(OpenSsl::Stock, 0)?;
        return command.compare(&stock, &ours, &stock_name(&nginx), record);
    }
    say!("until Ctrl-C");
    while !INTERRUPTED.load(Ordering::Relaxed) {
        ours.check()?;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

impl Command {
    fn certificate(&self, scratch: &Path) -> Result<Certificate> {
        let whole = |path: &Path| path.canonicalize().with_context(|| path.display().to_string());
        match (&self.cert, &self.key) {
            (Some(chain), Some(key)) => Ok(Certificate { chain: whole(chain)?, key: whole(key)? }),
            _ => Certificate::self_signed(self.key_type, scratch),
        }
    }

    fn workers(&self) -> usize {
        self.workers.map_or(if self.compare { 1 } else { cores() }, |workers| workers as usize)
    }

    fn start(
        &self,
        nginx: &Nginx,
        openssl: OpenSsl<'_>,
        port: u16,
        certificate: &Certificate,
    ) -> Result<Server> {
        let core = (self.compare && self.workers() == 1 && cores() > 1).then_some(0);
        let listeners = vec![Listener { port, certificate: Some(certificate.clone()), more: String::new() }];
        Server::start(&Plan {
            nginx,
            openssl,
            root: &self.folder,
            listeners,
            workers: self.workers(),
            core,
            http2: !self.compare,
        })
    }

    fn greet(&self, nginx: &Nginx, server: &Server) -> Result<()> {
        let [major, minor, patch] = nginx.version;
        let address = server.addresses[0];
        say!(
            "https://{address}/  {} by nginx {major}.{minor}.{patch}, {} workers",
            self.folder.display(),
            server.workers.len()
        );
        say!(
            "https://{address}/wattlock_status?format=html  what is done where (also ?format=json, prometheus)"
        );
        match &server.active {
            Some(Ok(())) => say!("Wattlock is active"),
            Some(Err(why)) => say!("Wattlock is INACTIVE: {why}; nginx works without it"),
            None => bail!("nginx runs without Wattlock's module"),
        }
        Ok(())
    }

    fn compare(&self, stock: &Server, ours: &Server, against: &str, mut record: Record) -> Result<()> {
        if let Some(Err(why)) = &ours.active {
            bail!("nothing to compare: Wattlock's module is inactive: {why}");
        }
        let machine = machine_line();
        if cores() > 1 {
            pin(1)?;
        }
        say!("{machine}; {CONNECTIONS} connections; certificate {}", self.kind());
        let files = files(&self.folder)?;
        let mut rows = Vec::new();
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
            let config = client::config(version, &[Group::X25519, Group::P256, Group::P384], false)?;
            let time = Duration::from_secs_f64(self.seconds / f64::from(ROUNDS));
            let once = |server: &Server| {
                let (address, config) = (server.addresses[0], config.clone());
                let (config, head) = (Some(config), "");
                let load = Load { address, config, other: None, connections: CONNECTIONS, paths, head, time };
                client::drive(&load, &|| server.cpu()).context(what)
            };
            eprintln!("wattlock: {what}");
            let before = done(ours.addresses[0])?;
            let sides = in_turn(ROUNDS, || once(stock), || once(ours))?;
            rows.push(cells(what, &sides));
            if let Some(row) = sides.row("serve", name, Measure::Rate, !paths.is_empty()) {
                let row = row.param("connections", CONNECTIONS).param("certificate", self.kind());
                let engines = engines(&before, &done(ours.addresses[0])?);
                record.add(row.against(against).detail("engines", engines));
            }
            failures.extend(failures_of(what, "stock", &sides.stock));
            failures.extend(failures_of(what, "with Wattlock", &sides.ours));
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
        put!("{}", text::table(&header, &rows));
        say!(
            "each pair of figures is of one round, the one with its median gain; the worker's processor time says"
        );
        say!(
            "more where another process used the core, or where the client was the limit (worker below 95 %)"
        );
        say!("{}", pair::LEGEND);
        name_peers(against, &mut record);
        record.finish()?;
        ensure!(failures.is_empty(), "connections failed: {}", failures.join("; "));
        Ok(())
    }

    fn kind(&self) -> String {
        self.cert.as_ref().map_or_else(|| self.key_type.name().to_owned(), |path| path.display().to_string())
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
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
