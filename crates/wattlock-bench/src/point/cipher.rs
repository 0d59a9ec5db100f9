//! `openssl speed` of one cipher with Wattlock's provider: a program that calls libcrypto and waits for each answer.
//!
//! The provider offers the cipher's group whatever it gains here, since a method is what is measured. Figures are by the
//! clock on the wall: a program that waits for a device uses no processor.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use wattlock_shell::nginx::place::settings;
use wattlock_shell::nginx::server::provider_section;
use wattlock_shell::nginx::site::cores;

use super::answer::{Figures, Measured, Per, cannot};
use super::given::{Given, usage};
use super::{Point, by_board, refuse_idle_device};
use crate::record::version_of;
use crate::tally::{self, Done, between, engines};
use crate::tended::{Next, Stream, Tended};

pub const KEYS: &[(&str, &str)] = &[("cipher", "aes-256-cbc"), ("bytes", "16384"), ("processes", "1")];

/// Between two looks at the counters, which end with the program.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long it may take beyond its measuring.
const PATIENCE: Duration = Duration::from_secs(30);
/// Processes that wait for each other on one core without telling anything more.
const A_CORE: usize = 16;

/// One run.
struct Speed<'a> {
    cipher: &'a str,
    bytes: usize,
    processes: usize,
    seconds: u32,
    configuration: &'a Path,
}

pub fn run(given: &mut Given, point: &mut Point<'_>) -> Result<Measured> {
    let cipher = given.text("cipher").to_ascii_lowercase();
    let odd = |c: char| !c.is_ascii_alphanumeric() && c != '-';
    if cipher.is_empty() || cipher.starts_with('-') || cipher.contains(odd) {
        return Err(given.wrong("cipher", "a cipher's name as in `openssl list -cipher-algorithms`"));
    }
    let bytes = given.bytes("bytes", 1..=64 << 20)?;
    let processes = given.number("processes", 1..=1024_usize)?;
    given.set("cipher", &cipher);
    let device = point.device()?;
    let openssl = version_of("openssl", "version").ok_or_else(|| cannot("there is no openssl here"))?;
    let group = group(&cipher)
        .ok_or_else(|| cannot(format!("Wattlock's provider has no {cipher}: OpenSSL would do all of it")))?;
    if processes > A_CORE * cores() {
        return Err(cannot(format!("{processes} processes on {} cores tell nothing", cores())));
    }
    if group == "cbc-hmac" && processes > 1 {
        return Err(usage(format!("{cipher} is measured as records of one process")));
    }
    // `openssl speed` takes whole seconds.
    let seconds = point.seconds.ceil();
    point.seconds = seconds;

    let folder = super::folder(None)?;
    let configuration = folder.path().join("openssl.cnf");
    let provider = point.places.provider(point.choice)?;
    let offered = [settings(point.choice)?, vec![("algorithms".to_owned(), group.to_owned())]].concat();
    std::fs::write(&configuration, provider_section(&provider, &offered)?)?;
    loads(&configuration)?;

    let speed =
        Speed { cipher: &cipher, bytes, processes, seconds: seconds as u32, configuration: &configuration };
    let mut watch = point.watch()?;
    watch.per(Per::Byte);
    let (mut figures, mut rounds) = (Figures::default(), Vec::new());
    for _ in 0..point.rounds {
        let mut spell = None;
        let (rate, did) = speed.run(&openssl, &mut |begins| {
            if begins {
                watch.begin();
            } else {
                spell = Some(watch.end()?);
            }
            Ok(())
        })?;
        let spell = spell.context("openssl speed did not say when it measured")?;
        watch.worked(rate * spell.wall.as_secs_f64());
        rounds.push(did);
        figures.add("throughput", "kB/s", rate / 1e3);
        figures.add("cpu_share", "1", spell.cpu_share());
    }
    refuse_idle_device(point.choice, &rounds, &format!("calls of {cipher} do not wait for one"))?;
    Ok(Measured {
        figures,
        engines: engines(&rounds),
        device,
        joules: watch.joules(by_board(&rounds)),
        busy: watch.busy(),
    })
}

/// The provider's group of a cipher.
fn group(cipher: &str) -> Option<&'static str> {
    let mode = cipher.strip_prefix("aes-128-").or_else(|| cipher.strip_prefix("aes-192-"));
    match mode.or_else(|| cipher.strip_prefix("aes-256-"))? {
        "gcm" => Some("gcm"),
        "cbc" => Some("cbc"),
        "ctr" => Some("ctr"),
        "xts" => Some("xts"),
        "cbc-hmac-sha1" | "cbc-hmac-sha256" if !cipher.starts_with("aes-192") => Some("cbc-hmac"),
        _ => None,
    }
}

/// Whether OpenSSL takes the provider.
pub fn loads(configuration: &Path) -> Result<()> {
    let mut command = Command::new("openssl");
    command.args(["list", "-providers"]).env("OPENSSL_CONF", configuration);
    let (mut listed, mut complaint) = (false, None);
    let status = Tended::to_end(&command, PATIENCE, |line| match line.from {
        Stream::Output => listed |= line.text.contains("Wattlock"),
        Stream::Error => drop(complaint.get_or_insert(line.text)),
    })?;
    ensure!(
        status.success() && listed,
        "OpenSSL does not load the provider: {}",
        complaint.as_deref().unwrap_or("it says nothing")
    );
    Ok(())
}

impl Speed<'_> {
    /// Bytes a second, and what engines did. `spell` is told when its measuring begins and when it ends.
    fn run(&self, openssl: &str, spell: &mut dyn FnMut(bool) -> Result<()>) -> Result<(f64, Done)> {
        let mut command = Command::new("openssl");
        command.args(["speed", "-elapsed", "-mr", "-evp", self.cipher]);
        command.args(["-bytes", &self.bytes.to_string(), "-seconds", &self.seconds.to_string()]);
        if self.processes > 1 {
            command.args(["-multi", &self.processes.to_string()]);
        }
        if self.cipher.contains("-hmac-") {
            command.arg("-mb");
        }
        let mut program = Tended::start(command.env("OPENSSL_CONF", self.configuration))?;
        let deadline = Instant::now() + Duration::from_secs(self.seconds.into()) + PATIENCE;
        let (mut rate, mut complaint, mut counted) = (None, String::new(), Done::new());
        let (mut begun, mut ended) = (false, false);
        loop {
            let next = program.next(LOOK_EVERY)?;
            // The counters go with the program: the last look counts.
            let now = tally::of(&[program.id()]);
            if !now.is_empty() {
                counted = now;
            }
            match next {
                Next::Line(line) if line.from == Stream::Output => rate = rated(&line.text).or(rate),
                Next::Line(line) if line.text.starts_with("+DT:") && !begun => {
                    begun = true;
                    spell(true)?;
                }
                Next::Line(line) if line.text.starts_with("+R") && begun && !ended => {
                    ended = true;
                    spell(false)?;
                }
                Next::Line(line) if complaint.is_empty() && !line.text.starts_with('+') => {
                    complaint = line.text;
                }
                Next::Line(_) | Next::Quiet => {}
                Next::End => break,
            }
            ensure!(Instant::now() < deadline, "openssl speed does not end");
        }
        let status = program.wait()?;
        let unknown = ["unknown cipher", "not a supported", "is not", "unsupported", "not supported"];
        match rate {
            // Cells of what it did nothing of are none of a device's.
            Some(rate) if status.success() && ended => Ok((rate, between(&Done::new(), &counted))),
            _ if unknown.iter().any(|words| complaint.contains(words)) => {
                Err(cannot(format!("OpenSSL {openssl} cannot measure {}: {complaint}", self.cipher)))
            }
            _ => bail!("openssl speed ended with no figure ({status}): {complaint}"),
        }
    }
}

/// Bytes a second of a line `+F:25:AES-256-CBC:153195012.97`: of one process, or of all.
fn rated(line: &str) -> Option<f64> {
    let rate: f64 = line.strip_prefix("+F:")?.rsplit(':').next()?.parse().ok()?;
    Some(rate).filter(|rate| rate.is_finite() && *rate > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ciphers_of_the_provider_have_a_group_and_others_have_none() {
        for (cipher, wanted) in [
            ("aes-256-cbc", Some("cbc")),
            ("aes-128-gcm", Some("gcm")),
            ("aes-192-ctr", Some("ctr")),
            ("aes-128-cbc-hmac-sha1", Some("cbc-hmac")),
            ("aes-192-cbc-hmac-sha1", None),
            ("chacha20-poly1305", None),
            ("aes-512-cbc", None),
            ("aes-256-cfb", None),
        ] {
            assert_eq!(group(cipher), wanted, "{cipher}");
        }
    }

    #[test]
    fn only_the_sum_of_all_processes_is_a_rate() {
        assert_eq!(rated("+F:25:AES-256-CBC:153195012.97"), Some(153_195_012.97));
        for line in
            ["Got: +F:25:AES-256-CBC:75251712.00 from 0", "+H:16384", "+F:25:AES-256-CBC:0.00", "+F:x"]
        {
            assert_eq!(rated(line), None, "{line}");
        }
    }

    #[test]
    fn what_is_no_name_reaches_no_command_line() {
        for name in ["", "-seconds", "aes 256", "a;b"] {
            let words = [format!("cipher={name}")];
            let mut given = Given::read("cipher", KEYS, &words).unwrap();
            let odd = given.text("cipher").to_owned();
            let choice = crate::point::tests::choice("adaptive");
            let mut point = crate::point::tests::point(&choice);
            let error = run(&mut given, &mut point).unwrap_err().to_string();
            assert!(error.starts_with(&format!("cipher={odd}: expected")), "{error}");
        }
    }
}
