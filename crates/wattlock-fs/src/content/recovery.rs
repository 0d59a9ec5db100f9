//! What an earlier run did not finish: its journal is brought into place, and files that were growing are cut where
//! their slots stop being whole.
//!
//! Everything here may crash and be repeated: slots from the journal are the same each time, a cut file is cut at the
//! same place, and the journal is emptied only when all of it is durable.

mod finding;
mod mending;
pub(crate) mod said;

use std::sync::Arc;
use std::time::SystemTime;

use rustix::fs::Timespec;
use wattlock_door::Crypto;

use super::{RANGE, Shared, lock, write};
use crate::Error;
use crate::journal::{Found, RANGES};
use crate::store::{File, Place, Store};
use finding::of_newer;
use said::{Lost, Said};

/// A file may be written so long after the journal's last record: what grows in place needs none.
const SAME_MOMENT_S: i64 = 10;

/// Whether a file was written after the journal: then the journal may say what was once, and not what was last. A time to
/// come says nothing.
fn is_newer(file: &impl File, journal: Option<Timespec>) -> Result<bool, Error> {
    let times = file.times().map_err(|error| Error::io("mending a file", error))?;
    let (Some(times), Some(journal)) = (times, journal) else { return Ok(false) };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let changed = times.last_modification.tv_sec;
    Ok(changed > journal.tv_sec + SAME_MOMENT_S && changed <= now as i64)
}

/// Refuses to bring an older journal into place in a volume that was copied.
fn refuse_newer(
    file: &impl File,
    place: &Place,
    lost: &Lost,
    written: Option<Timespec>,
) -> Result<(), Error> {
    if place.inode.1 == lost.place.inode.1 || !is_newer(file, written)? {
        return Ok(());
    }
    let path = place.shown();
    Err(Error::Damaged(format!(
        "a copied volume, whose journal is older than {path}: touch wattlock.journal if the copy is of one moment, else \
         remove it"
    )))
}

/// The line for a file that was not found though there are some that it might be.
fn not_the_file(lost: &Lost) -> String {
    let path = lost.place.shown();
    format!("{path}: is not the file that the journal knows, left as it is")
}

impl<S: Store> Shared<S> {
    /// Brings what was found into place and begins a new epoch. Returns lines for the log.
    pub(super) fn recover(
        self: &Arc<Self>,
        found: Found,
        stop: &dyn Fn() -> bool,
        crypto: &mut impl Crypto,
    ) -> Result<Vec<String>, Error> {
        let (mut said, mut lines) = (Said::default(), Vec::new());
        let worked = !found.records.is_empty();
        for record in found.records {
            said.hear(record, self.geometry)?;
        }
        let mut ranges = [&found.ranges[..], &said.ranges].concat();
        if worked {
            self.repeat(said.files, &ranges, &mut lines, stop, crypto)?;
        }
        if ranges.len() >= RANGES {
            self.look_at_all(&mut ranges, &mut lines, stop, crypto)?;
        }
        if found.fresh {
            // Both heads are written before the first record: one that is missing later was removed.
            self.journal.reset(&ranges, crypto)?;
        }
        self.journal.reset(&ranges, crypto)?;
        self.journal.shrink();
        *write(&self.unclean) = ranges;
        Ok(lines)
    }

    /// Brings into place what records say of files.
    fn repeat(
        self: &Arc<Self>,
        files: Vec<Lost>,
        ranges: &[u64],
        lines: &mut Vec<String>,
        stop: &dyn Fn() -> bool,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let (mut mended, written) = (Vec::new(), self.journal.written()?);
        // Records that only memory has are no replacement for what they overwrite.
        let durable = self.journal.sync_found(crypto)?;
        let wrong = self.each_known(files, stop, &mut |file, place, mut lost: Lost| {
            let found = self.header_of_lost(file, &lost, crypto);
            let Some((_, header, key)) = found.map_err(|error| of_newer(&place, error))? else {
                return Ok(Some(lost));
            };
            refuse_newer(file, &place, &lost, written)?;
            if let Some(len) = self.mend(file, &key, &mut lost, &durable, crypto)? {
                let path = place.shown();
                lines.push(format!("{path}: kept {len} bytes; what followed had not been synced"));
            }
            mended.push((place, header.id));
            Ok(None)
        })?;
        lines.extend(wrong.iter().map(not_the_file));
        lines.append(&mut lock(&self.lines));
        let synced = |error| Error::io("syncing the volume", error);
        self.store.sync_all().map_err(synced)?;
        mended.retain(|(_, id)| ranges.iter().any(|start| id.wrapping_sub(*start) < RANGE));
        self.each(mended, stop, &mut |file, _, id| match self.header_of(file, id, crypto)? {
            Some((header, key)) => self.rename_id(file, &header, ranges, &key, crypto).map(|_| ()),
            None => Ok(()),
        })?;
        self.store.sync_all().map_err(synced)
    }

    /// Takes in what was found, to be read over the files. Returns lines for the log.
    pub(super) fn read_over(
        self: &Arc<Self>,
        found: Found,
        stop: &dyn Fn() -> bool,
        crypto: &mut impl Crypto,
    ) -> Result<Vec<String>, Error> {
        let (mut said, mut lines) = (Said::default(), Vec::new());
        for record in found.records {
            said.hear(record, self.geometry)?;
        }
        *write(&self.unclean) = [&found.ranges[..], &said.ranges].concat();
        if said.files.is_empty() {
            return Ok(lines);
        }
        let written = self.journal.written()?;
        let wrong = self.each_known(said.files, stop, &mut |file, place, lost: Lost| {
            let (id, key) = match self.header_of_lost(file, &lost, crypto) {
                Ok(Some((id, _, key))) => (id, key),
                Ok(None) => return Ok(Some(lost)),
                Err(error @ Error::Newer(_)) => {
                    self.name_unseen(&place, &error);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            };
            refuse_newer(file, &place, &lost, written)?;
            let over = self.over(file, &key, lost, crypto)?;
            write(&self.over).insert(place.inode, (id, over));
            Ok(None)
        })?;
        lines.extend(wrong.iter().map(not_the_file));
        lines.append(&mut lock(&self.lines));
        Ok(lines)
    }

    /// The journal's head has no room for more ranges: all files are looked at, and none is forgotten.
    fn look_at_all(
        self: &Arc<Self>,
        ranges: &mut Vec<u64>,
        lines: &mut Vec<String>,
        stop: &dyn Fn() -> bool,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        *write(&self.unclean) = ranges.clone();
        if self.look_through(true, stop, crypto)? {
            ranges.clear();
        } else if stop() {
            return Err(wattlock_door::Error::Interrupted.into());
        }
        lines.append(&mut lock(&self.lines));
        if ranges.len() > RANGES {
            // Only an earlier version's journal has so many.
            lines.push("torn files may stay so: too many unclean ends before all could be looked at".into());
        }
        Ok(())
    }
}
