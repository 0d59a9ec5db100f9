//! Programs that are known to confine themselves, tried under a configuration before it becomes the machine's: one of them
//! that dies for what a provider does can lock an operator out.
//!
//! OpenSSH's server does the unauthenticated part of a login behind a seccomp filter that kills. A server of our own, with a
//! key of its own on a port of loopback, is asked as far as "Permission denied": so far came the confined part, and no login
//! is needed.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use super::trial::said;

/// How long one login may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// What is asked for: the ciphers that Wattlock offers, and the sorts of key exchange.
const LOGINS: [(&str, &str); 2] =
    [("aes128-gcm@openssh.com", "curve25519-sha256"), ("aes256-ctr", "ecdh-sha2-nistp256")];

/// What became of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Works as with the former configuration.
    Good,
    /// Could not be tried, and why.
    Untried(String),
    /// Dies, or refuses, and does not with the former configuration.
    Dies(String),
}

/// Tries sshd under a configuration; the former one is tried if that fails.
///
/// # Errors
/// Files for the trial cannot be made.
pub(super) fn sshd(configuration: &Path, former: &Path) -> Result<Outcome> {
    let places = ["/usr/sbin/sshd", "/usr/local/sbin/sshd"];
    let Some(server) = places.iter().map(Path::new).find(|path| path.is_file()) else {
        return Ok(Outcome::Untried("not installed".to_owned()));
    };
    let trial = match Trial::new(server) {
        Ok(trial) => trial,
        Err(error) => return Ok(Outcome::Untried(format!("{error:#}"))),
    };
    if trial.logins(configuration).is_ok() {
        return Ok(Outcome::Good);
    }
    if let Err(before) = trial.logins(former) {
        return Ok(Outcome::Untried(format!("it does not work without Wattlock either: {before:#}")));
    }
    // A machine under load may have been the reason the first time.
    match trial.logins(configuration) {
        Ok(()) => Ok(Outcome::Good),
        Err(why) => Ok(Outcome::Dies(format!("{why:#}"))),
    }
}

struct Trial {
    folder: tempfile::TempDir,
    server: PathBuf,
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Trial {
    fn new(server: &Path) -> Result<Trial> {
        let folder = tempfile::Builder::new().prefix("wattlock-sshd-").tempdir()?;
        let mut command = Command::new("ssh-keygen");
        command.args(["-q", "-t", "ed25519", "-N", "", "-f", "key"]).env("OPENSSL_CONF", "/dev/null");
        said(command, folder.path(), PATIENCE)?;
        anyhow::ensure!(folder.path().join("key").is_file(), "ssh-keygen made no key");
        // Its service makes this folder when it starts, and leaves it; none may be running.
        let _ = std::fs::create_dir("/run/sshd");
        Ok(Trial { folder, server: server.to_owned() })
    }

    fn logins(&self, configuration: &Path) -> Result<()> {
        let at = self.folder.path();
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let text = format!(
            "ListenAddress 127.0.0.1\nPort {port}\nPidFile none\nUsePAM no\nHostKey {}\nPasswordAuthentication no\n\
             KbdInteractiveAuthentication no\n",
            at.join("key").display()
        );
        std::fs::write(at.join("sshd_config"), text)?;
        let log = std::fs::File::create(at.join("log"))?;
        let server = Command::new(&self.server)
            .arg("-D")
            .arg("-e")
            .arg("-f")
            .arg(at.join("sshd_config"))
            .env("OPENSSL_CONF", configuration)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .with_context(|| self.server.display().to_string())?;
        let mut server = Server(server);
        for _ in 0..100 {
            if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() || server.0.try_wait()?.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        for (cipher, exchange) in LOGINS {
            let mut client = Command::new("ssh");
            client.args(["-F", "none", "-p", &port.to_string(), "-o", "BatchMode=yes"]);
            client.args(["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]);
            client.args(["-o", "IdentityFile=none", "-o", "IdentitiesOnly=yes", "-o", "ConnectTimeout=10"]);
            client
                .arg("-o")
                .arg(format!("Ciphers={cipher}"))
                .arg("-o")
                .arg(format!("KexAlgorithms={exchange}"));
            client.args(["nobody@127.0.0.1", "true"]).env("OPENSSL_CONF", "/dev/null");
            let said = said(client, at, PATIENCE)?;
            if !said.err.contains("Permission denied") {
                let log = std::fs::read_to_string(at.join("log")).unwrap_or_default();
                let died = log.lines().find(|line| line.contains("signal") || line.contains("crash"));
                let last = died.or(said.err.lines().last()).unwrap_or("it said nothing");
                anyhow::bail!("a login with {cipher} and {exchange}: {}", last.trim());
            }
        }
        Ok(())
    }
}
