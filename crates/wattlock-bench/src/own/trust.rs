//! Whose files root may run: those that only root can change. For other users there is nothing to guard: what they run
//! has their own rights.

use std::fs::Metadata;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use wattlock_door::one_line;
use wattlock_shell::trust::changed_by;

/// Refuses, for root, a file that another user could have written. `about` is of the file that was opened.
///
/// # Errors
/// The file's name, and why.
pub fn file(path: &Path, about: &Metadata) -> Result<()> {
    refuse(path, if rustix::process::geteuid().is_root() { changed_by(about) } else { None })
}

/// Where a file really is: what is judged there is to be loaded from there, for a link on the way may be another user's
/// to turn. Refuses, for root, one that another user could write or replace before it is loaded.
///
/// # Errors
/// The file does not exist; its name or its folder's, and why.
pub fn whole_path(path: &Path) -> Result<PathBuf> {
    let named = || one_line(path);
    let real = path.canonicalize().with_context(named)?;
    if rustix::process::geteuid().is_root() {
        for part in real.ancestors() {
            let about = part.symlink_metadata().with_context(named)?;
            refuse(part, changed_by(&about))?;
        }
    }
    Ok(real)
}

fn refuse(path: &Path, why: Option<String>) -> Result<()> {
    let Some(why) = why else { return Ok(()) };
    bail!(
        "{}: {why}, and root would run it: `chown root`, `chmod go-w`, or run the command as that user",
        one_line(path)
    )
}
