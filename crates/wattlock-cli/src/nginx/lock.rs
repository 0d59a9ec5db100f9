//! One call at a time changes nginx's configuration: `enable`, `disable`, or the guard.

use std::fs::File;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;

/// Of root alone: whoever could open it could hold it for ever.
const FILE: &str = "/run/wattlock-nginx.lock";

/// How long another call is waited for, here and by the guard, which systemd ends after 90 s.
const PATIENCE: Duration = Duration::from_secs(60);
pub const PATIENCE_OF_THE_GUARD: Duration = Duration::from_secs(15);

/// The lock, held until the file is closed; `None` for other users than root, whose own configurations they are, and
/// where it cannot be made. Blocks.
///
/// # Errors
/// Another call holds it.
pub fn taken() -> Result<Option<File>> {
    taken_within(PATIENCE)
}

/// The same, within a time.
///
/// # Errors
/// As there.
pub fn taken_within(patience: Duration) -> Result<Option<File>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(file) = open(FILE, flags, Mode::RUSR | Mode::WUSR).map(File::from) else { return Ok(None) };
    let begun = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if begun.elapsed() > patience => {
                bail!("another `wattlock nginx` is at work ({FILE}): try again when it has ended")
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(Duration::from_millis(10)),
            Err(_) => return Ok(None),
            Ok(()) => return Ok(Some(file)),
        }
    }
}
