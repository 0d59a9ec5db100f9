//! `openssl s_time`: the client for suites whose keys are exchanged by RSA, of which `rustls` has none. Each process makes
//! one full handshake after the other and states how many; it states no latency.
//!
//! It goes by whole seconds of the clock on the wall: told N, it stops with the connection during which the second after
//! the Nth ends. All start with a second, so that all stop together. What is counted is from the first handshake of
//! any process to the last count, so a rate is what the server did in that time and never more.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail, ensure};

use super::answer::cannot;
use crate::https::client::Tally;
use crate::tended::{Next, Stream, Tended};

/// Processes, at most: each is connected once at a time.
pub const MOST: usize = 64;

/// The suites, and what OpenSSL calls them.
pub const SUITES: [(&str, &str); 6] = [
    ("rsa-aes128-sha", "AES128-SHA"),
    ("rsa-aes256-sha", "AES256-SHA"),
    ("rsa-aes128-sha256", "AES128-SHA256"),
    ("rsa-aes256-sha256", "AES256-SHA256"),
    ("rsa-aes128-gcm-sha256", "AES128-GCM-SHA256"),
    ("rsa-aes256-gcm-sha384", "AES256-GCM-SHA384"),
];

/// Between two looks at all processes.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// How long it may take beyond its measuring.
const PATIENCE: Duration = Duration::from_secs(30);

/// A suite's name here and OpenSSL's, by either in small letters.
pub fn suite(wanted: &str) -> Option<(&'static str, &'static str)> {
    SUITES.into_iter().find(|(name, openssl)| *name == wanted || openssl.to_ascii_lowercase() == wanted)
}

/// That this OpenSSL has the program and the suite.
///
/// # Errors
/// It has not.
pub fn is_here(openssl: &str, suite: &str) -> Result<()> {
    let succeeds = |words: &[&str]| -> Result<bool> {
        Ok(Tended::to_end(Command::new("openssl").args(words), PATIENCE, drop)?.success())
    };
    if !succeeds(&["s_time", "-help"])? {
        return Err(cannot(format!("OpenSSL {openssl} has no s_time, which would be the client")));
    }
    match succeeds(&["ciphers", "-s", "-tls1_2", suite])? {
        true => Ok(()),
        false => Err(cannot(format!("OpenSSL {openssl} offers no {suite}"))),
    }
}

/// Some processes that connect to a server.
pub struct STime<'a> {
    pub address: SocketAddr,
    /// By OpenSSL's name.
    pub suite: &'a str,
    pub processes: usize,
    /// Whole ones, of which it takes another.
    pub seconds: u32,
    /// OpenSSL's configuration, without anything of the user's.
    pub configuration: &'a Path,
}

/// One of them.
struct Client {
    program: Tended,
    count: Option<u64>,
    complaint: String,
}

impl STime<'_> {
    /// Runs them all. `cpu` says how much processor time the server has used so far, when counting begins and when it ends.
    ///
    /// # Errors
    /// One fails or does not end, or the user interrupts.
    pub fn drive(&self, cpu: &dyn Fn() -> Result<Duration>) -> Result<Tally> {
        thread::sleep(to_next_second(SystemTime::now()));
        let deadline = Instant::now() + Duration::from_secs(self.seconds.into()) + PATIENCE;
        let mut clients: Vec<Client> = (0..self.processes).map(|_| self.start()).collect::<Result<_>>()?;
        let mut begun = None;
        while clients.iter().any(|client| client.count.is_none()) {
            for client in clients.iter_mut().filter(|client| client.count.is_none()) {
                // Its first line comes with its first handshake.
                if client.listen()? && begun.is_none() {
                    begun = Some((Instant::now(), cpu()?));
                }
            }
            ensure!(Instant::now() < deadline, "openssl s_time does not end");
            thread::sleep(LOOK_EVERY);
        }
        let Some((since, before)) = begun else { bail!("openssl s_time did not say when it began") };
        let (wall, cpu) = (since.elapsed(), cpu()?.saturating_sub(before));
        let count: u64 = clients.iter().filter_map(|client| client.count).sum();
        // The handshake that began the count was before it.
        Ok(Tally { done: count.saturating_sub(1), wall, cpu, ..Tally::default() })
    }

    fn start(&self) -> Result<Client> {
        let mut command = Command::new("openssl");
        command.args(["s_time", "-new", "-tls1_2", "-cipher", self.suite]);
        command.args(["-time", &self.seconds.to_string(), "-connect", &self.address.to_string()]);
        let program = Tended::start(command.env("OPENSSL_CONF", self.configuration))?;
        Ok(Client { program, count: None, complaint: String::new() })
    }
}

impl Client {
    /// Takes a line in, if there is one; whether it was one of its output.
    fn listen(&mut self) -> Result<bool> {
        match self.program.next(Duration::ZERO)? {
            Next::Line(line) if line.from == Stream::Output => {
                self.count = counted(&line.text);
                Ok(true)
            }
            Next::Line(line) => {
                if self.complaint.is_empty() && line.text != "ERROR" {
                    self.complaint = line.text;
                }
                Ok(false)
            }
            Next::Quiet => Ok(false),
            Next::End => bail!("openssl s_time: {}: {}", self.program.wait()?, self.complaint),
        }
    }
}

/// The connections in a line `223 connections in 2 real seconds, 0 bytes read per connection`.
fn counted(line: &str) -> Option<u64> {
    let (count, rest) = line.split_once(" connections in ")?;
    rest.contains(" real seconds").then(|| count.parse().ok())?
}

fn to_next_second(now: SystemTime) -> Duration {
    let passed = now.duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos();
    Duration::from_nanos(1_000_000_000 - u64::from(passed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_by_the_clock_on_the_wall_is_read() {
        assert_eq!(counted("223 connections in 2 real seconds, 0 bytes read per connection"), Some(223));
        for line in [
            "223 connections in 0.13s; 1715.38 connections/user sec, bytes read 0",
            "Collecting connection statistics for 1 seconds",
            "****",
            "many connections in 2 real seconds",
        ] {
            assert_eq!(counted(line), None, "{line}");
        }
    }

    #[test]
    fn a_suite_has_a_name_of_ours_and_openssls() {
        let both = Some(("rsa-aes128-sha", "AES128-SHA"));
        assert_eq!((suite("rsa-aes128-sha"), suite("aes128-sha")), (both, both));
        assert_eq!((suite("ecdhe-rsa-aes128-sha"), suite("")), (None, None));
    }

    #[test]
    fn a_second_begins_when_it_does() {
        let at = |ms| to_next_second(UNIX_EPOCH + Duration::from_millis(ms));
        assert_eq!((at(5000), at(5999)), (Duration::from_secs(1), Duration::from_millis(1)));
    }

    #[test]
    fn a_server_that_is_not_there_is_an_error_with_openssls_words() {
        let folder = tempfile::tempdir().unwrap();
        let configuration = folder.path().join("openssl.cnf");
        std::fs::write(&configuration, "").unwrap();
        let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let run = STime {
            address: unused,
            suite: "AES128-SHA",
            processes: 2,
            seconds: 1,
            configuration: &configuration,
        };
        let error = run.drive(&|| Ok(Duration::ZERO)).unwrap_err().to_string();
        assert!(
            error.starts_with("openssl s_time: exit status: 1: ") && error.contains("refused"),
            "{error}"
        );
    }
}
