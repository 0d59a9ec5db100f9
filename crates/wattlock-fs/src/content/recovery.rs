//! What an earlier run did not finish: its journal is brought into place, and files that were growing are cut where
//! their slots stop being whole.
//!
//! Everything here may crash and be repeated: slots from the journal are the same each time, a cut file is cut at the
//! same place, and the journal is emptied only when all of it is durable.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use rustix::fs::Timespec;
use wattlock_door::Crypto;

use super::overlay::{Overlay, Piece};
use super::slots::{self, FileKey, Writer};
use super::{RANGE, Shared, lock, read, write};
use crate::Error;
use crate::format::{Geometry, HEADER_LEN, HOLE_LEN, Header, OVERHEAD, SlotKind};
use crate::journal::{Found, Op, RANGES, Record};
use crate::store::{File, Place, Store};

/// What the journal says of one file.
struct Lost {
    id: u64,
    place: Place,
    committed: u64,
    overlay: Overlay,
    header: Option<u64>,
    /// Another file has its inode number.
    stranger: bool,
}

/// Files that a journal names, and ranges of ids that it reserved.
#[derive(Default)]
struct Said {
    files: Vec<Lost>,
    by_id: HashMap<u64, usize>,
    by_number: HashMap<u32, usize>,
    ranges: Vec<u64>,
}

impl Said {
    fn file(&mut self, number: u32) -> Result<&mut Lost, Error> {
        let index = self.by_number.get(&number).copied();
        index
            .and_then(|index| self.files.get_mut(index))
            .ok_or_else(|| Error::Damaged("the journal names a file that it has not introduced".into()))
    }

    /// Repeats one record. Whoever has the key can write any number into one: places that no file has are refused here,
    /// so that nothing later has to count beyond them.
    fn hear(&mut self, record: Record, geometry: Geometry) -> Result<(), Error> {
        let end = record.blob_at + record.blob_len;
        let mut at = record.blob_at;
        for op in record.ops {
            match op {
                Op::Range(start) => self.ranges.push(start),
                Op::File { number, id, place, committed } => {
                    let committed = content_len(committed, geometry)?;
                    let index = *self.by_id.entry(id).or_insert(self.files.len());
                    self.by_number.insert(number, index);
                    match self.files.get_mut(index) {
                        Some(file) => (file.place, file.committed) = (place, committed),
                        None => {
                            let overlay = Overlay::default();
                            let (header, stranger) = (None, false);
                            self.files.push(Lost { id, place, committed, overlay, header, stranger });
                        }
                    }
                }
                Op::Put { number, first, count, last_len } => {
                    let until = slots_end(first, u64::from(count), geometry)?;
                    let file = self.file(number)?;
                    for index in first..until {
                        let len = if index + 1 == until { last_len } else { geometry.stride() as u32 };
                        file.overlay.insert(index, Piece { at, len, level: None });
                        at += u64::from(len);
                        if at > end {
                            break;
                        }
                    }
                }
                Op::Hole { number, first, level } => {
                    let slots = 1_u64.checked_shl(u32::from(level)).unwrap_or(u64::MAX);
                    slots_end(first, slots, geometry)?;
                    let piece = Piece { at, len: HOLE_LEN as u32, level: Some(level) };
                    self.file(number)?.overlay.insert(first, piece);
                    at += HOLE_LEN as u64;
                }
                Op::Commit { number, len } => {
                    self.file(number)?.committed = content_len(len, geometry)?;
                }
                Op::Cut { number, len } => {
                    let len = content_len(len, geometry)?;
                    let file = self.file(number)?;
                    file.overlay.cut(geometry.tail(len));
                    file.committed = file.committed.min(len);
                }
                Op::Header { number } => {
                    self.file(number)?.header = Some(at);
                    at += HEADER_LEN as u64;
                }
            }
            if at > end {
                return Err(Error::Damaged("a record of the journal is shorter than it says".into()));
            }
        }
        Ok(())
    }
}

fn nowhere() -> Error {
    Error::Damaged("the journal names a place that no file has".into())
}

/// A content's length, if a file may be so long.
fn content_len(len: u64, geometry: Geometry) -> Result<u64, Error> {
    if len <= geometry.max_len() { Ok(len) } else { Err(nowhere()) }
}

/// The slot behind `count` slots from `first` on, if a file may have them.
fn slots_end(first: u64, count: u64, geometry: Geometry) -> Result<u64, Error> {
    let end = first.checked_add(count).filter(|end| *end <= geometry.tail(geometry.max_len()) + 1);
    end.ok_or_else(nowhere)
}

/// How often all folders are looked through while names move.
const PASSES: usize = 8;

/// Lines for the log about what one walk could not look at.
const LINES: usize = 100;

/// Whether something could not be looked at because its name moved meanwhile.
fn is_move(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}

/// What a walk could not look at, and why.
type Missed = (Place, std::io::Error);

/// A file that the journal has content of was not found, and may be in what was missed.
fn refused((place, error): Missed) -> Error {
    if error.kind() == std::io::ErrorKind::Interrupted {
        return wattlock_door::Error::Interrupted.into();
    }
    let path = String::from_utf8_lossy(&place.path);
    let text = format!("it may be in {path}, which cannot be looked at: {error}");
    let what = "finding a file again that the journal has content of";
    Error::io(what, std::io::Error::new(error.kind(), text))
}

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

/// Whether files of the journal were found under their own inodes, or under others: then the volume is a copy.
#[derive(Default)]
struct Seen {
    same: bool,
    copied: bool,
}

/// What is done with a file that was found, and with what belongs to it.
type Work<'a, F, T> = dyn FnMut(&F, Place, T) -> Result<(), Error> + 'a;

/// The same for a file that a journal names; gives back what belongs to another file.
type Known<'a, F> = dyn FnMut(&F, Place, Lost) -> Result<Option<Lost>, Error> + 'a;

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
        let (mut mended, written) = (Vec::new(), self.journal.written()?);
        let wrong = self.each_known(said.files, stop, &mut |file, place, lost: Lost| {
            let Some((_, key)) = self.header_of(file, lost.id, crypto)? else { return Ok(Some(lost)) };
            if place.inode.1 != lost.place.inode.1 && is_newer(file, written)? {
                let path = String::from_utf8_lossy(&place.path);
                return Err(Error::Damaged(format!(
                    "a copied volume, whose journal is older than {path}: touch wattlock.journal if the copy is of one \
                     moment, else remove it"
                )));
            }
            if let Some(len) = self.mend(file, &key, lost.committed, lost.overlay, lost.header, crypto)? {
                let path = String::from_utf8_lossy(&place.path);
                lines.push(format!("{path}: kept {len} bytes; what followed had not been synced"));
            }
            mended.push((place, lost.id));
            Ok(None)
        })?;
        for lost in wrong {
            let path = String::from_utf8_lossy(&lost.place.path);
            lines.push(format!("{path}: is not the file that the journal knows, left as it is"));
        }
        let mut ranges = [&found.ranges[..], &said.ranges].concat();
        if worked {
            let synced = |error| Error::io("syncing the volume", error);
            self.store.sync_all().map_err(synced)?;
            mended.retain(|(_, id)| ranges.iter().any(|start| id.wrapping_sub(*start) < RANGE));
            self.each(mended, stop, &mut |file, _, id| match self.header_of(file, id, crypto)? {
                Some((header, key)) => self.rename_id(file, &header, &ranges, &key, crypto).map(|_| ()),
                None => Ok(()),
            })?;
            self.store.sync_all().map_err(synced)?;
        }
        if ranges.len() >= RANGES {
            // The journal's head has no room for more: now all files are looked at, and none is forgotten.
            *write(&self.unclean) = ranges.clone();
            if self.look_through(true, stop, crypto)? {
                ranges.clear();
            } else if stop() {
                return Err(wattlock_door::Error::Interrupted.into());
            }
            lines.append(&mut lock(&self.lines));
            if ranges.len() > RANGES {
                // Only an earlier version's journal has so many.
                lines.push(
                    "torn files may stay so: too many unclean ends before all could be looked at".into(),
                );
            }
        }
        if found.fresh {
            // Both heads are written before the first record: one that is missing later was removed.
            self.journal.reset(&ranges, crypto)?;
        }
        self.journal.reset(&ranges, crypto)?;
        *write(&self.unclean) = ranges;
        Ok(lines)
    }

    /// Does something with each file that a journal names, opened for writing one after the other. Those that are not
    /// where they were are looked for by their inodes, in one walk. A volume that was copied has other inodes, and some
    /// file systems number them anew whenever they are mounted: then ids in headers tell which file is which, in another
    /// walk. Those that are gone were removed: their content is not missed. A file is gone only if everything was
    /// looked at; until then its content stays in the journal, and this fails.
    ///
    /// `work` gives back what belongs to another file. Returns what had an inode of its own with another file in it.
    fn each_known(
        &self,
        files: Vec<Lost>,
        stop: &dyn Fn() -> bool,
        work: &mut Known<'_, S::File>,
    ) -> Result<Vec<Lost>, Error> {
        let (mut seen, mut left, mut missed) = (Seen::default(), Vec::new(), None);
        for lost in files {
            if stop() {
                return Err(wattlock_door::Error::Interrupted.into());
            }
            let place = lost.place.clone();
            self.at(&place, lost, &mut left, &mut seen, work)?;
        }
        if !left.is_empty() {
            let mut by_inode: HashMap<u64, Vec<Lost>> = HashMap::new();
            for lost in std::mem::take(&mut left) {
                by_inode.entry(lost.place.inode.1).or_default().push(lost);
            }
            let (by_inode, mut done) = (RefCell::new(by_inode), Ok(()));
            let wanted = &|inode| by_inode.borrow().contains_key(&inode);
            let found = &mut |place: Place, file: S::File| {
                for lost in by_inode.borrow_mut().remove(&place.inode.1).unwrap_or_default() {
                    match work(&file, place.clone(), lost) {
                        Ok(None) => seen.same = true,
                        Ok(Some(lost)) => left.push(Lost { stranger: true, ..lost }),
                        Err(error) => done = Err(error),
                    }
                }
                done.is_ok() && !by_inode.borrow().is_empty()
            };
            missed = self.look_for(true, stop, wanted, found);
            done?;
            left.extend(by_inode.into_inner().into_values().flatten());
        }
        if !left.is_empty() && (seen.copied || !seen.same) {
            let places;
            (places, missed) = self.places(left.iter().map(|lost| lost.id).collect(), stop);
            for lost in std::mem::take(&mut left) {
                match places.get(&lost.id) {
                    None => left.push(lost),
                    Some(place) => {
                        if !self.at(place, lost, &mut left, &mut seen, work)? {
                            let closed = std::io::ErrorKind::PermissionDenied;
                            missed.get_or_insert((place.clone(), closed.into()));
                        }
                    }
                }
            }
        }
        match missed.filter(|_| !left.is_empty()) {
            Some(missed) => return Err(refused(missed)),
            None => left.retain(|lost| lost.stranger),
        }
        Ok(left)
    }

    /// Does the work with what is at a place now, and puts what belongs to another file with what is left. Whether there
    /// is a file that may be written.
    fn at(
        &self,
        place: &Place,
        lost: Lost,
        left: &mut Vec<Lost>,
        seen: &mut Seen,
        work: &mut Known<'_, S::File>,
    ) -> Result<bool, Error> {
        let failed = |error| Error::io("finding a file again", error);
        let Some((there, file)) = self.store.find(place).map_err(failed)? else {
            left.push(lost);
            return Ok(false);
        };
        let inode = there.inode.1 == lost.place.inode.1;
        match work(&file, there, lost)? {
            Some(lost) => left.push(Lost { stranger: lost.stranger || inode, ..lost }),
            None if inode => seen.same = true,
            None => seen.copied = true,
        }
        Ok(true)
    }

    /// Where files with these ids in their headers are; and what could not be looked at.
    fn places(&self, ids: HashSet<u64>, stop: &dyn Fn() -> bool) -> (HashMap<u64, Place>, Option<Missed>) {
        let (mut ids, mut places, mut unread) = (ids, HashMap::new(), None);
        let found = &mut |place: Place, file: S::File| {
            let mut bytes = [0; HEADER_LEN];
            match file.read_at(&mut bytes, 0) {
                Ok(got) => {
                    let id = Header::parse(&bytes[..got]).ok().map(|header| header.id);
                    if let Some(id) = id.filter(|id| ids.remove(id)) {
                        places.insert(id, place);
                    }
                }
                Err(error) => _ = unread.get_or_insert((place, error)),
            }
            !ids.is_empty()
        };
        let missed = self.look_for(false, stop, &|_| true, found);
        (places, missed.or(unread))
    }

    /// Looks for files in all folders, until `found` wants no more; again if names moved meanwhile. Returns what could not
    /// be looked at, if anything.
    fn look_for(
        &self,
        write: bool,
        stop: &dyn Fn() -> bool,
        wanted: &dyn Fn(u64) -> bool,
        found: &mut dyn FnMut(Place, S::File) -> bool,
    ) -> Option<Missed> {
        let mut missed = None;
        for _ in 0..PASSES {
            missed = None;
            let mut enough = false;
            self.store.walk(write, stop, &mut |inode| wanted(inode), &mut |place, file| {
                match file {
                    Ok(file) => enough = !found(place, file),
                    Err(error) => _ = missed.get_or_insert((place, error)),
                }
                !enough
            });
            if enough {
                return None;
            }
            if !missed.as_ref().is_some_and(|(_, error)| is_move(error)) {
                break;
            }
        }
        missed
    }

    /// Does something with each of some files, opened for writing one after the other, by their inodes, as this run found
    /// them. One that is not found though not everything could be looked at fails this.
    fn each<T>(
        &self,
        files: Vec<(Place, T)>,
        stop: &dyn Fn() -> bool,
        work: &mut Work<'_, S::File, T>,
    ) -> Result<(), Error> {
        let failed = |error| Error::io("finding a file again", error);
        let mut moved: HashMap<u64, Vec<T>> = HashMap::new();
        for (place, what) in files {
            match self.store.find(&place).map_err(failed)? {
                Some((there, file)) if there.inode.1 == place.inode.1 => work(&file, place, what)?,
                _ => moved.entry(place.inode.1).or_default().push(what),
            }
        }
        if moved.is_empty() {
            return Ok(());
        }
        let (moved, mut done) = (RefCell::new(moved), Ok(()));
        let wanted = &|inode| moved.borrow().contains_key(&inode);
        let found = &mut |place: Place, file: S::File| {
            for what in moved.borrow_mut().remove(&place.inode.1).unwrap_or_default() {
                if done.is_ok() {
                    done = work(&file, place.clone(), what);
                }
            }
            done.is_ok() && !moved.borrow().is_empty()
        };
        let missed = self.look_for(true, stop, wanted, found);
        done?;
        missed.filter(|_| !moved.borrow().is_empty()).map_or(Ok(()), |missed| Err(refused(missed)))
    }

    /// Opens every file once, so that what is torn is mended, and again if names moved meanwhile. Says whether every
    /// file was seen: `stop` did not say so before, nothing was refused or unreadable, and nothing moved that a walk may
    /// have missed. Only those moves are known that [`Contents::while_moving`](super::Contents::while_moving) hears of:
    /// where there are others, this is not `alone`.
    pub(super) fn look_through(
        self: &Arc<Self>,
        alone: bool,
        stop: &dyn Fn() -> bool,
        crypto: &mut impl Crypto,
    ) -> Result<bool, Error> {
        for _ in 0..PASSES {
            let before = self.moved.load(Ordering::SeqCst);
            let (mut failed, mut stopped, mut missed, mut moved) = (None, false, 0, false);
            let found = &mut |place: Place, file: std::io::Result<S::File>| {
                let path = String::from_utf8_lossy(&place.path).into_owned();
                let opened = match file {
                    Ok(file) => {
                        let _epoch = read(&self.epoch);
                        self.open(file, place, crypto).map(drop)
                    }
                    Err(error) => Err(Error::io("looking for what a crash left torn", error)),
                };
                match opened {
                    // What is damaged for another reason stays so.
                    Ok(()) | Err(Error::Damaged(_)) => {}
                    Err(Error::Io { source, .. }) if is_move(&source) => moved = true,
                    Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(error @ Error::Io { .. }) => {
                        missed += 1;
                        if missed <= LINES {
                            lock(&self.lines).push(format!("{path}: {error}"));
                        }
                    }
                    Err(error) => failed = Some(error),
                }
                stopped = stop();
                !stopped && failed.is_none()
            };
            self.store.walk(false, stop, &mut |_| true, found);
            if let Some(error) = failed {
                return Err(error);
            }
            if missed > 0 {
                let rest = "the next start looks again for what a crash left torn";
                lock(&self.lines).push(format!("not looked at: {missed}; {rest}"));
            }
            if stopped || missed > 0 || !alone {
                return Ok(false);
            }
            let moving = self.moving.load(Ordering::SeqCst) > 0;
            if !moved && !moving && self.moved.load(Ordering::SeqCst) == before {
                return Ok(true);
            }
        }
        let line =
            "folders were renamed all the while: the next start looks again for what a crash left torn";
        lock(&self.lines).push(line.to_owned());
        Ok(false)
    }

    /// Header and key of a file, if it is the one with this id.
    fn header_of(
        &self,
        file: &S::File,
        id: u64,
        crypto: &mut impl Crypto,
    ) -> Result<Option<(Header, FileKey)>, Error> {
        let mut bytes = [0; HEADER_LEN];
        let got = file.read_at(&mut bytes, 0).map_err(|error| Error::io("reading a header", error))?;
        let Ok(header) = Header::parse(&bytes[..got]) else { return Ok(None) };
        if header.id != id {
            return Ok(None);
        }
        match self.open_header(&header, crypto) {
            Ok(secret) => Ok(Some((header, FileKey::new(&secret, crypto)?))),
            Err(Error::Damaged(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Brings a file's slots into place, and cuts it where what was never synced stops being whole. Returns its length
    /// if it was cut.
    fn mend(
        &self,
        file: &S::File,
        key: &FileKey,
        committed: u64,
        mut overlay: Overlay,
        header: Option<u64>,
        crypto: &mut impl Crypto,
    ) -> Result<Option<u64>, Error> {
        let failed = |error| Error::io("mending a file", error);
        let stored = file.len().map_err(failed)?;
        let (len, open_end) = self.whole(file, key, committed, &overlay, stored, crypto)?;
        let tail = self.geometry.tail(len);
        overlay.cut(tail + 1);
        let replaced = !overlay.is_empty();
        if open_end {
            let mut slot = [0; OVERHEAD];
            slots::seal_one(key, &mut Writer::default(), (tail, SlotKind::Data), &[], &mut slot, crypto)?;
            file.write_at(&slot, self.geometry.slot_at(tail)).map_err(failed)?;
        }
        if replaced || open_end || header.is_some() || stored != self.geometry.stored_len(len) {
            self.settle(file, &overlay, header, len)?;
        }
        let cut = open_end || !replaced && stored != self.geometry.stored_len(len);
        Ok(cut.then_some(len))
    }

    /// How many bytes of a file are whole, from the committed ones on; and whether a last slot must be written behind
    /// them.
    fn whole(
        &self,
        file: &S::File,
        key: &FileKey,
        committed: u64,
        overlay: &Overlay,
        stored: u64,
        crypto: &mut impl Crypto,
    ) -> Result<(u64, bool), Error> {
        let geometry = self.geometry;
        let chunk = geometry.chunk();
        let mut index = geometry.tail(committed);
        if committed > 0 && overlay.covering(index).is_none() {
            // The committed end was not replaced: nothing behind it was begun, or what was begun had no more than that.
            return Ok((committed, false));
        }
        let (mut slot, mut plain) = (vec![0; geometry.stride() as usize], vec![0; chunk as usize]);
        if committed == 0 {
            index = 0;
        }
        loop {
            if let Some((start, piece)) = overlay.covering(index) {
                let text = u64::from(piece.len).saturating_sub(OVERHEAD as u64);
                match piece.level {
                    Some(level) => index = start + (1 << level),
                    None if text < chunk => return Ok((index * chunk + text, false)),
                    None => index += 1,
                }
                continue;
            }
            let at = geometry.slot_at(index);
            let room = stored.saturating_sub(at).min(geometry.stride()) as usize;
            if room < OVERHEAD {
                return Ok((index * chunk, true));
            }
            let got =
                file.read_at(&mut slot[..room], at).map_err(|error| Error::io("reading a file", error))?;
            slot[got..].fill(0);
            let full = room == slot.len();
            if full
                && slots::may_be_hole(&slot)
                && let Some(level) = slots::open_hole(key, index, &slot, crypto)?
                && let Ok(end) = slots_end(index, 1 << level, geometry)
            {
                index = end;
                continue;
            }
            let mut pieces: [&mut [u8]; 3] = [&mut plain[..room - OVERHEAD], &mut [], &mut []];
            let opened = slots::open(key, geometry, index, &mut slot[..room], &mut pieces, crypto);
            match opened {
                Ok(()) if full => index += 1,
                Ok(()) => return Ok((index * chunk + (room - OVERHEAD) as u64, false)),
                Err(Error::Damaged(_)) => return Ok((index * chunk, true)),
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives a file an id outside all ranges, so that it need not be looked through again. A header lies within one
    /// sector, which is written wholly or not at all.
    fn rename_id(
        &self,
        file: &S::File,
        header: &Header,
        ranges: &[u64],
        key: &FileKey,
        crypto: &mut impl Crypto,
    ) -> Result<Header, Error> {
        let id = loop {
            let id = self.outside_ranges()?;
            if !ranges.iter().any(|start| id.wrapping_sub(*start) < RANGE) {
                break id;
            }
        };
        let header = self.seal_header(id, header.flags, &key.secret(), crypto)?;
        let times = file.times().ok().flatten();
        file.write_at(&header.encode(), 0).map_err(|error| Error::io("writing a header", error))?;
        if let Some(times) = times {
            _ = file.set_times(&times);
        }
        Ok(header)
    }

    /// A file that was made in an epoch that did not end well, and is opened for the first time since.
    pub(super) fn mend_lazily(
        &self,
        file: &S::File,
        place: &Place,
        header: Header,
        key: &FileKey,
        crypto: &mut impl Crypto,
    ) -> Result<Header, Error> {
        self.writable(file, |file| {
            if let Some(len) = self.mend(file, key, 0, Overlay::default(), None, crypto)? {
                let path = String::from_utf8_lossy(&place.path);
                let line = format!("{path}: kept {len} bytes; what followed had not been synced");
                lock(&self.lines).push(line);
            }
            let sync = || file.sync().map_err(|error| Error::io("syncing a file", error));
            sync()?;
            let header = self.rename_id(file, &header, &[], key, crypto)?;
            // The journal may name the new id at once, and what it keeps of this file must find the file.
            sync()?;
            Ok(header)
        })
    }

    /// A file without a header, made in an epoch that did not end well: nothing of it was durable.
    pub(super) fn make_empty(
        &self,
        file: &S::File,
        place: &Place,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        self.writable(file, |file| {
            let (_, bytes) = self.empty_file(self.outside_ranges()?, crypto)?;
            let failed = |error| Error::io("mending a file", error);
            file.set_len(0).map_err(failed)?;
            // A header beside what was cut would be one of a damaged file.
            file.sync().map_err(failed)?;
            file.write_at(&bytes, 0).map_err(failed)?;
            file.sync().map_err(failed)?;
            let path = String::from_utf8_lossy(&place.path);
            lock(&self.lines).push(format!("{path}: kept 0 bytes; nothing of it had been synced"));
            Ok(())
        })
    }

    /// Writes once more what [`Shared::mend_lazily`] or [`Shared::make_empty`] wrote when a sync failed: memory has it, and
    /// the system takes it for written.
    pub(super) fn mend_again(&self, file: &S::File) -> Result<(), Error> {
        self.writable(file, |file| {
            let failed = |error| Error::io("mending a file", error);
            let len = file.len().map_err(failed)?;
            let tail = self.geometry.slot_at(self.geometry.tail(self.geometry.content_len_lenient(len)));
            for (at, bytes) in [(0, HEADER_LEN as u64), (tail, self.geometry.stride())] {
                let mut bytes = vec![0; bytes as usize];
                let got = file.read_at(&mut bytes, at).map_err(failed)?;
                file.write_at(&bytes[..got], at).map_err(failed)?;
            }
            file.sync().map_err(failed)
        })
    }

    /// Does something with a file that may be written.
    fn writable<T>(
        &self,
        file: &S::File,
        work: impl FnOnce(&S::File) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if file.writable() {
            return work(file);
        }
        work(&file.for_writing().map_err(|error| Error::io("opening a file that is not whole", error))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_no_file_has_are_damage() {
        let geometry = Geometry::new(4096).unwrap();
        let (most, slots) = (geometry.max_len(), geometry.tail(geometry.max_len()) + 1);
        let file = |committed| {
            let place = Place { inode: (1, 1), path: Vec::new() };
            Op::File { number: 1, id: 5, place, committed }
        };
        let hear = |op: Op| {
            let mut said = Said::default();
            let record = |op, blob_len| Record { ops: vec![op], blob_at: 9000, blob_len };
            said.hear(record(file(0), 0), geometry).unwrap();
            said.hear(record(op, 1 << 27), geometry)
        };
        let put = |first, count| Op::Put { number: 1, first, count, last_len: 4136 };
        let hole = |first, level| Op::Hole { number: 1, first, level };
        let commit = |len| Op::Commit { number: 1, len };
        let cut = |len| Op::Cut { number: 1, len };
        for good in [file(most), put(slots - 9, 9), hole(0, 50), hole(slots - 1, 0), commit(most), cut(most)]
        {
            assert!(hear(good.clone()).is_ok(), "{good:?}");
        }
        let bad = [file(most + 1), commit(most + 1), cut(u64::MAX), put(slots - 9, 10), put(u64::MAX - 3, 7)];
        let bad_holes = [hole(slots, 0), hole(0, 51), hole(0, 64), hole(u64::MAX, 0), hole(1 << 63, 63)];
        for bad in bad.into_iter().chain(bad_holes) {
            let error = hear(bad.clone()).unwrap_err().to_string();
            assert!(error.contains("no file has"), "{bad:?}: {error}");
        }
    }
}
