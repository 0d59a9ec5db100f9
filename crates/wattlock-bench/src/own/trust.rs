//! Whose files root may run: those that only root can change. For other users there is nothing to guard: what they run
//! has their own rights.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use wattlock_door::one_line;

/// Everybody may write in such a folder, and change only what is their own.
const STICKY: u32 = 0o1000;

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

fn changed_by(about: &Metadata) -> Option<String> {
    let is_sticky = about.is_dir() && about.mode() & STICKY != 0;
    by(about.uid(), about.gid(), about.mode(), is_sticky)
}

/// Who but root may change something, in words.
fn by(owner: u32, group: u32, mode: u32, is_sticky: bool) -> Option<String> {
    if owner != 0 {
        return Some(format!("it belongs to user {owner}"));
    }
    let others = mode & 0o002 != 0;
    let of_group = mode & 0o020 != 0 && group != 0;
    ((others || of_group) && !is_sticky).then(|| match others {
        true => "every user may write it".to_owned(),
        false => format!("group {group} may write it"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_root_alone_can_change_is_run() {
        for (owner, group, mode, sticky, is_refused) in [
            (0, 0, 0o644, false, false),
            (0, 0, 0o664, false, false),
            (0, 33, 0o640, false, false),
            (0, 33, 0o664, false, true),
            (0, 0, 0o666, false, true),
            (0, 0, 0o646, false, true),
            (1000, 0, 0o600, false, true),
            (1000, 0, 0o1777, true, true),
            (0, 0, 0o1777, true, false),
        ] {
            assert_eq!(by(owner, group, mode, sticky).is_some(), is_refused, "{owner} {group} {mode:o}");
        }
    }
}
