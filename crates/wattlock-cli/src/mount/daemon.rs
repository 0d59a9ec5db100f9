//! The process that serves a mount: started anew by this program, told apart by one variable, without a terminal once
//! it is ready.

use std::io::{Read, Write};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

/// Set for the process that is to serve.
const VARIABLE: &str = "WATTLOCK_MOUNT_SERVES";

/// What it says when it is ready.
const READY: &[u8] = b"ready\n";

/// Where the system's log listens.
const LOG: &str = "/dev/log";

/// The serving process.
pub struct Daemon {
    foreground: bool,
    away: AtomicBool,
}

/// Starts the serving process and waits until it is ready. If it ends before that, it has said why.
pub fn start() -> Result<()> {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let program = std::env::current_exe().context("where this program is")?;
    let mut child = Command::new(program)
        .arg0(name)
        .args(arguments)
        .env(VARIABLE, "1")
        .stdout(Stdio::piped())
        .spawn()
        .context("starting the process that serves the mount")?;
    let mut said = Vec::new();
    if let Some(mut output) = child.stdout.take() {
        // To its end: the process closes it when it is ready.
        let _ = output.read_to_end(&mut said);
    }
    if said == READY {
        return Ok(());
    }
    let status = child.wait()?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0);
    Err(wattlock_door::Code(code.unwrap_or(1)).into())
}

impl Daemon {
    /// Whether this process is to serve.
    pub fn is_one() -> bool {
        std::env::var_os(VARIABLE).is_some()
    }

    /// This process.
    pub fn new(foreground: bool) -> Daemon {
        Daemon { foreground, away: AtomicBool::new(false) }
    }

    /// Says that the mount is ready: to the process that waits, or to systemd.
    pub fn ready(&self) {
        notify();
        if self.foreground {
            return;
        }
        let mut output = std::io::stdout();
        let _ = output.write_all(READY).and_then(|()| output.flush());
        let _ = rustix::process::setsid();
        let _ = std::env::set_current_dir("/");
        self.away.store(true, Ordering::SeqCst);
        if let Ok(null) = std::fs::File::options().read(true).write(true).open("/dev/null") {
            let _ = rustix::stdio::dup2_stdin(&null);
            let _ = rustix::stdio::dup2_stderr(&null);
            // Last: the process that waits returns.
            let _ = rustix::stdio::dup2_stdout(&null);
        }
    }

    /// One line for the log: standard error, or the system's log once the terminal is left.
    pub fn log(&self, line: &str) {
        let line = line.replace(char::is_control, " ");
        if !self.away.load(Ordering::SeqCst) {
            eprintln!("wattlock: {line}");
            return;
        }
        // Facility daemon, severity error.
        let text = format!("<27>wattlock[{}]: {line}", std::process::id());
        // A system without a log has no place for it.
        let _ = UnixDatagram::unbound().and_then(|socket| socket.send_to(text.as_bytes(), LOG));
    }
}

/// `sd_notify`, as systemd documents it.
fn notify() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::SocketAddr;
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&name),
    };
    let sent = address.and_then(|address| {
        UnixDatagram::unbound().and_then(|socket| socket.send_to_addr(b"READY=1", &address))
    });
    if let Err(error) = sent {
        tracing::debug!(%error, "systemd was not told");
    }
}
