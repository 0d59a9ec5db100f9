//! Where root writes, and what it names to be run at every start: only what root alone can change. For other users
//! there is nothing to guard: what they write has their own rights.

use std::path::Path;

use anyhow::{Context, Result, bail};
use wattlock_door::one_line;
use wattlock_shell::trust::changed_by;

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
        if let Some(why) = changed_by(&about) {
            bail!(
                "{}: {why}, and root would trust it: `chown root` and `chmod go-w` it first",
                one_line(part)
            );
        }
    }
    Ok(())
}
