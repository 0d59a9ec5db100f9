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
use crate::content::opening::ALTERED;
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
type Missed = (Place, Error);

/// A file that the journal has content of was not found, and may be in what was missed.
fn refused((place, error): Missed) -> Error {
    let what = "finding a file again that the journal has content of";
    match error {
        Error::Io { source, .. } if source.kind() == std::io::ErrorKind::Interrupted => {
            wattlock_door::Error::Interrupted.into()
        }
        Error::Io { source, .. } => {
            let text = format!("it may be in {}, which cannot be looked at: {source}", place.shown());
            Error::io(what, std::io::Error::new(source.kind(), text))
        }
        error => of_newer(&place, error),
    }
}

/// An error about a file that the journal has content of, or may have, with its path if a newer program wrote it. Its
/// content stays in the journal: dropping what was acknowledged is for none but that program.
pub(super) fn of_newer(place: &Place, error: Error) -> Error {
    match error {
        Error::Newer(what) => {
            Error::Newer(format!("{what} of {}, of which the journal may have content", place.shown()))
        }
        error => error,
    }
}

/// What is looked for.
#[derive(Default)]
struct Search {
    /// Inodes that are the journal's.
    claimed: HashSet<(u64, u64)>,
    /// Files that were not found yet.
    left: Vec<Lost>,
    /// Something that could not be looked at.
    missed: Option<Missed>,
}

impl Search {
    /// The work was tried with an inode; it gave back what belongs to another file.
    fn tried(&mut self, inode: (u64, u64), given_back: Option<Lost>) {
        match given_back {
            Some(lost) => self.left.push(Lost { stranger: true, ..lost }),
            None => _ = self.claimed.insert(inode),
        }
    }
}

/// The id that a file's header says, if it has one, of whatever version.
fn id_of(file: &impl File) -> Result<Option<u64>, Error> {
    let mut bytes = [0; HEADER_LEN];
    let got = file.read_at(&mut bytes, 0).map_err(|error| Error::io("finding a file again", error))?;
    match Header::parse(&bytes[..got]) {
        Err(Error::Damaged(_)) => Ok(None),
        parsed => parsed.map(|header| Some(header.id)),
    }
}

/// What is where a file was.
enum Seen<F> {
    There(Option<(Place, F)>),
    /// It may not be opened, and was named.
    Closed,
}

/// What is done with a file that was found, and with what belongs to it.
type Work<'a, F, T> = dyn FnMut(&F, Place, T) -> Result<(), Error> + 'a;

/// The same for a file that a journal names; gives back what belongs to another file.
type Known<'a, F> = dyn FnMut(&F, Place, Lost) -> Result<Option<Lost>, Error> + 'a;

impl<S: Store> Shared<S> {
    /// Does something with each file that a journal names, opened one after the other. The file with its inode and its id
    /// is the one, wherever it is by now. Only if there is none, the id alone decides: a volume that was copied has other
    /// inodes, some file systems number them anew whenever they are mounted, and a file may have been put back from a
    /// copy. Then one file with the id is the one; of several only that which is where the journal says, and the others
    /// are named. Those that are gone were removed: their content is not missed. A file is gone only if everything was
    /// looked at; until then its content stays in the journal, and this fails.
    ///
    /// `work` gives back what belongs to another file. Returns what no file was found for though there are some that it
    /// might be.
    pub(super) fn each_known(
        &self,
        files: Vec<Lost>,
        stop: &dyn Fn() -> bool,
        work: &mut Known<'_, S::File>,
    ) -> Result<Vec<Lost>, Error> {
        let mut search = Search::default();
        for lost in files {
            if stop() {
                return Err(wattlock_door::Error::Interrupted.into());
            }
            self.at_its_path(lost, &mut search, work)?;
        }
        if !search.left.is_empty() {
            self.by_inode(&mut search, stop, work)?;
        }
        // In a volume that is no copy what has no inode any longer was removed.
        if search.left.iter().any(|lost| search.claimed.is_empty() || lost.elsewhere) {
            self.by_id(&mut search, stop, work)?;
        }
        match search.missed.filter(|_| !search.left.is_empty()) {
            Some((place, error)) if self.read_only => self.name_unseen(&place, &error),
            Some(missed) => return Err(refused(missed)),
            None => {}
        }
        search.left.retain(|lost| lost.stranger);
        Ok(search.left)
    }

    /// Says what cannot be looked at in a volume that is only read.
    pub(super) fn name_unseen(&self, place: &Place, error: &dyn std::fmt::Display) {
        let path = place.shown();
        let why = "what the journal has of files there is not shown";
        lock(&self.lines).push(format!("{path}: cannot be looked at, {error}: {why}"));
    }

    /// As [`Store::find`]. In a volume that is only read one that may not be opened is named, and fails nothing else.
    fn find(&self, place: &Place) -> Result<Seen<S::File>, Error> {
        match self.store.find(place, !self.read_only) {
            Ok(found) => Ok(Seen::There(found)),
            Err(error) if self.read_only => {
                self.name_unseen(place, &error);
                Ok(Seen::Closed)
            }
            Err(error) => Err(Error::io("finding a file again", error)),
        }
    }

    /// Does the work if the file's own inode is where the journal says.
    fn at_its_path(
        &self,
        lost: Lost,
        search: &mut Search,
        work: &mut Known<'_, S::File>,
    ) -> Result<(), Error> {
        let Seen::There(found) = self.find(&lost.place)? else { return Ok(()) };
        match found {
            Some((there, file)) if there.inode.1 == lost.place.inode.1 => {
                search.tried(there.inode, work(&file, there, lost)?);
            }
            Some((_, file)) => {
                let elsewhere = id_of(&file)? == Some(lost.id);
                search.left.push(Lost { elsewhere, ..lost });
            }
            None => search.left.push(lost),
        }
        Ok(())
    }

    /// Looks for what is left by its inodes.
    fn by_inode(
        &self,
        search: &mut Search,
        stop: &dyn Fn() -> bool,
        work: &mut Known<'_, S::File>,
    ) -> Result<(), Error> {
        let mut by_inode: HashMap<u64, Vec<Lost>> = HashMap::new();
        for lost in std::mem::take(&mut search.left) {
            by_inode.entry(lost.place.inode.1).or_default().push(lost);
        }
        let (by_inode, mut done) = (RefCell::new(by_inode), Ok(()));
        let wanted = &|inode| by_inode.borrow().contains_key(&inode);
        let found = &mut |place: Place, file: S::File| {
            for lost in by_inode.borrow_mut().remove(&place.inode.1).unwrap_or_default() {
                match work(&file, place.clone(), lost) {
                    Ok(tried) => search.tried(place.inode, tried),
                    Err(error) => done = Err(error),
                }
            }
            done.is_ok() && !by_inode.borrow().is_empty()
        };
        let missed = self.look_for(!self.read_only, stop, wanted, found);
        done?;
        search.missed = missed;
        search.left.extend(by_inode.into_inner().into_values().flatten());
        Ok(())
    }

    /// Looks for what is left by the ids in headers.
    fn by_id(
        &self,
        search: &mut Search,
        stop: &dyn Fn() -> bool,
        work: &mut Known<'_, S::File>,
    ) -> Result<(), Error> {
        let (places, missed) = self.places(&search.left.iter().map(|lost| lost.id).collect(), stop);
        search.missed = missed;
        let mut rivals: HashMap<u64, usize> = HashMap::new();
        search.left.iter().for_each(|lost| *rivals.entry(lost.id).or_default() += 1);
        for lost in std::mem::take(&mut search.left) {
            let named = places.get(&lost.id).map_or(&[][..], Vec::as_slice);
            let free: Vec<&Place> =
                named.iter().filter(|place| !search.claimed.contains(&place.inode)).collect();
            let several = free.iter().any(|place| place.inode != free[0].inode)
                || !free.is_empty() && rivals.get(&lost.id).is_some_and(|count| *count > 1);
            let there = match several {
                true => free.iter().find(|place| place.path == lost.place.path).copied(),
                false => free.first().copied(),
            };
            if several {
                self.name_copies(&free, there);
            }
            let Some(place) = there else {
                search.left.push(Lost { stranger: lost.stranger || several, ..lost });
                continue;
            };
            let Seen::There(found) = self.find(place)? else { continue };
            match found {
                Some((there, file)) if there.inode == place.inode => {
                    search.tried(there.inode, work(&file, there, lost)?);
                }
                _ => {
                    let closed = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
                    let closed = Error::io("finding a file again", closed);
                    search.missed.get_or_insert((place.clone(), closed));
                    search.left.push(lost);
                }
            }
        }
        Ok(())
    }

    /// Says which files have one id.
    fn name_copies(&self, places: &[&Place], there: Option<&Place>) {
        for place in places.iter().filter(|place| there.is_none_or(|there| there.inode != place.inode)) {
            let path = place.shown();
            let why = "is a copy of a file that the journal knows, left as it is";
            lock(&self.lines).push(format!("{path}: {why}"));
        }
    }

    /// Where files with these ids in their headers are, by all of their names; and what could not be looked at.
    fn places(
        &self,
        ids: &HashSet<u64>,
        stop: &dyn Fn() -> bool,
    ) -> (HashMap<u64, Vec<Place>>, Option<Missed>) {
        let (mut places, mut unread) = (HashMap::<u64, Vec<Place>>::new(), None);
        let found = &mut |place: Place, file: S::File| {
            match id_of(&file) {
                Ok(id) => {
                    if let Some(id) = id.filter(|id| ids.contains(id)) {
                        places.entry(id).or_default().push(place);
                    }
                }
                Err(error) => _ = unread.get_or_insert((place, error)),
            }
            true
        };
        let missed = self.look_for(false, stop, &|_| true, found);
        places.values_mut().for_each(|places| places.dedup());
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
                    Err(error) => {
                        _ = missed.get_or_insert((place, Error::io("finding a file again", error)));
                    }
                }
                !enough
            });
            if enough {
                return None;
            }
            let moved = |error: &Error| matches!(error, Error::Io { source, .. } if is_move(source));
            if !missed.as_ref().is_some_and(|(_, error)| moved(error)) {
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
            match self.store.find(&place, true).map_err(failed)? {
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
                let path = place.shown();
                let opened = match file {
                    Ok(file) => {
                        let _epoch = read(&self.epoch);
                        self.open(file, place, crypto).map(drop)
                    }
                    Err(error) => Err(Error::io("looking for what a crash left torn", error)),
                };
                match opened {
                    // What is damaged for another reason stays so, but for one byte that a check writes back.
                    Err(Error::Damaged(what)) if what != ALTERED => {}
                    Ok(()) => {}
                    Err(Error::Io { source, .. }) if is_move(&source) => moved = true,
                    Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::Interrupted => {}
                    // What a newer program wrote may be torn, too: only that one can look.
                    Err(error @ (Error::Io { .. } | Error::Newer(_) | Error::Damaged(_))) => {
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
