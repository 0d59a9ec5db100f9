//! Where root writes, and what it names to be run at every start: only what root alone can change. For other users
//! there is nothing to guard: what they write has their own rights.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use wattlock_door::one_line;

/// Everybody may write in such a folder, and change only what is their own.
const STICKY: u32 = 0o1000;

/// Refuses, for root, a path that another user could change: the file, if there is one, and each folder above it, links
/// resolved.
///
/// # Errors
/// The file or folder, and why; or it cannot be looked at.
pub fn only_by_root(path: &Path) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let there = path.ancestors().find(|part| part.symlink_metadata().is_ok()).unwrap_or(Path::new("/"));
    let real = there.canonicalize().with_context(|| one_line(there))?;
    for part in real.ancestors() {
        let about = part.symlink_metadata().with_context(|| one_line(part))?;
        if let Some(why) = by(about.uid(), about.gid(), about.mode(), about.is_dir()) {
            bail!(
                "{}: {why}, and root would trust it: `chown root` and `chmod go-w` it first",
                one_line(part)
            );
        }
    }
    Ok(())
}

/// Who but root may change something, in words.
fn by(owner: u32, group: u32, mode: u32, is_folder: bool) -> Option<String> {
    if owner != 0 {
        return Some(format!("it belongs to user {owner}"));
    }
    let others = mode & 0o002 != 0;
    let of_group = mode & 0o020 != 0 && group != 0;
    let sticky = is_folder && mode & STICKY != 0;
    ((others || of_group) && !sticky).then(|| match others {
        true => "every user may write it".to_owned(),
        false => format!("group {group} may write it"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_root_alone_can_change_is_trusted() {
        for (owner, group, mode, folder, refused) in [
            (0, 0, 0o644, false, false),
            (0, 0, 0o775, true, false),
            (0, 33, 0o750, true, false),
            (0, 33, 0o775, true, true),
            (0, 0, 0o666, false, true),
            (0, 0, 0o1666, false, true),
            (0, 0, 0o1777, true, false),
            (1000, 0, 0o700, true, true),
            (1000, 0, 0o1777, true, true),
        ] {
            assert_eq!(by(owner, group, mode, folder).is_some(), refused, "{owner} {group} {mode:o}");
        }
    }
}
