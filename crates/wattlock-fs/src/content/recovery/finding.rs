//! Finding files again: at their paths, by their inodes, by the ids in their headers.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use wattlock_core::sync::{lock, read};
use wattlock_door::Crypto;

use super::said::Lost;
use crate::Error;
use crate::content::Shared;
use crate::format::{HEADER_LEN, Header};
use crate::store::{File, Place, Store};

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
    /// Does something with each file that a journal names, opened for writing one after the other. Those that are not
    /// where they were are looked for by their inodes, in one walk. A volume that was copied has other inodes, and some
    /// file systems number them anew whenever they are mounted: then ids in headers tell which file is which, in another
    /// walk. Those that are gone were removed: their content is not missed. A file is gone only if everything was
    /// looked at; until then its content stays in the journal, and this fails.
    ///
    /// `work` gives back what belongs to another file. Returns what had an inode of its own with another file in it.
    pub(super) fn each_known(
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
    pub(super) fn each<T>(
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
    pub(in crate::content) fn look_through(
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
}
