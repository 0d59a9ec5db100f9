//! Starting: the keys of a volume, and which journal is accepted.

use wattlock_core::{Algorithm, Key};
use wattlock_door::Crypto;

use super::opening::{BEHIND, purpose};
use super::{Contents, Recovered, Shared};
use crate::Error;
use crate::format::Geometry;
use crate::journal::{Found, Journal};
use crate::names;
use crate::store::{File, JOURNAL, Store};
use crate::volume::{NameMode, Volume};
use crate::xaes::XaesKey;

/// How old a journal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Age {
    /// Random, for the life of the journal: only epochs of one origin can be compared.
    pub origin: [u8; 8],
    /// Grows by every checkpoint; 0 if there is no journal.
    pub epoch: u64,
    /// It has records, which change files.
    pub repeats: bool,
}

impl Age {
    /// Accepts a journal, whatever its age, and goes on with it: what a [`Judge`] is where nothing is known.
    ///
    /// # Errors
    /// None.
    pub fn go_on(&self) -> Result<Option<([u8; 8], u64)>, Error> {
        Ok(Some((self.origin, self.epoch)))
    }

    fn of<F: File>(journal: &Journal<F>, found: &Found) -> Age {
        let (origin, epoch) = journal.age();
        Age { origin, epoch, repeats: !found.records.is_empty() }
    }
}

impl Found {
    /// After an unclean end: what the earlier run made is older than this start then, by any clock.
    fn let_time_pass<F: File>(&self, journal: &Journal<F>) {
        if !self.records.is_empty() || !self.ranges.is_empty() {
            journal.wait(BEHIND);
        }
    }
}

/// Whether a journal of this age is accepted, and as which origin and from which epoch it goes on: `None` is a new origin.
pub type Judge<'a> = &'a mut dyn FnMut(&Age) -> Result<Option<([u8; 8], u64)>, Error>;

impl<S: Store> Contents<S> {
    /// Opens the journal and repeats what an earlier run did not finish.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a journal that is neither whole nor torn at its end; nothing was changed then.
    pub fn start(
        store: S,
        volume: &Volume,
        crypto: &mut impl Crypto,
    ) -> Result<(Contents<S>, Recovered), Error> {
        Contents::start_judged(store, volume, false, (&|| false, &mut Age::go_on), crypto)
    }

    /// As [`Contents::start`], of a volume that is only read. Nothing is written, so that its storage may be read-only, or
    /// another user's: what an earlier run did not bring into place is read over the files. As long as it is open no process
    /// opens it for writing, and it cannot be opened while one has it so; any number read it side by side. Whatever would
    /// write fails with `EROFS`; syncs and checkpoints do nothing.
    ///
    /// # Errors
    /// As [`Contents::start`].
    pub fn start_to_read(
        store: S,
        volume: &Volume,
        crypto: &mut impl Crypto,
    ) -> Result<(Contents<S>, Recovered), Error> {
        Contents::start_judged(store, volume, true, (&|| false, &mut Age::go_on), crypto)
    }

    /// As [`Contents::start`] or, with `read_only`, [`Contents::start_to_read`]: if `judge` accepts the journal, before
    /// anything is written, and until `stop` says so. The journal stays then as it is, and the next start begins again.
    ///
    /// # Errors
    /// As [`Contents::start`]; those of `judge`; [`wattlock_door::Error::Interrupted`].
    pub fn start_judged(
        store: S,
        volume: &Volume,
        read_only: bool,
        (stop, judge): (&dyn Fn() -> bool, Judge<'_>),
        crypto: &mut impl Crypto,
    ) -> Result<(Contents<S>, Recovered), Error> {
        let file = match read_only {
            true => store.journal_to_read(),
            false => store.journal().map(Some),
        };
        let mut keys = Keys::new(volume, crypto)?;
        let (journal, found) = match file.map_err(journal_refused)? {
            Some(file) => Journal::open(file, std::mem::take(&mut keys.journal), stop, crypto)?,
            None => Journal::none()?,
        };
        journal.go_on_as(judge(&Age::of(&journal, &found))?)?;
        found.let_time_pass(&journal);
        let shared = Shared::new(store, keys, journal, read_only);
        let lines = match read_only {
            true => shared.read_over(found, stop, crypto)?,
            false => shared.recover(found, stop, crypto)?,
        };
        Ok((Contents { shared }, Recovered { lines }))
    }

    /// How old the journal is now.
    pub fn age(&self) -> Age {
        let (origin, epoch) = self.shared.journal.age();
        Age { origin, epoch, repeats: false }
    }
}

/// Why the journal does not open, with what helps.
fn journal_refused(error: std::io::Error) -> Error {
    use std::io::ErrorKind::{InvalidData, PermissionDenied, ReadOnlyFilesystem, WouldBlock};
    let why = match error.kind() {
        WouldBlock => return Error::InUse,
        InvalidData => return Error::Damaged(format!("{JOURNAL} is {error}")),
        ReadOnlyFilesystem => {
            "the volume's folder is on a read-only file system: open the volume for reading"
        }
        PermissionDenied => {
            "this user may not open the volume's wattlock.journal so: without the right to write, open the volume for \
             reading"
        }
        _ => return Error::io("opening the journal", error),
    };
    Error::io("opening the journal", std::io::Error::new(error.kind(), format!("{error}: {why}")))
}

/// What a volume's keys are derived to, and its other settings.
pub(super) struct Keys {
    pub(super) plain_names: bool,
    pub(super) geometry: Geometry,
    /// Of files' headers, by generation.
    pub(super) files: Vec<(u32, XaesKey)>,
    pub(super) copy_ids: Key,
    /// Of the journal.
    pub(super) journal: Vec<(u32, Key)>,
}

impl Keys {
    pub(super) fn new(volume: &Volume, crypto: &mut impl Crypto) -> Result<Keys, Error> {
        let geometry = Geometry::new(volume.chunk)?;
        let (mut files, mut journal) = (Vec::new(), Vec::new());
        for (generation, key) in &volume.keys {
            files.push((*generation, XaesKey::new(&*purpose(key, b"files", crypto)?, crypto)?));
            let secret = purpose(key, b"journal", crypto)?;
            journal.push((*generation, Key::symmetric(Algorithm::Secret, &secret[..])?));
        }
        let plain_names = volume.names == NameMode::Plain;
        let copy_ids = names::lasting(volume, "copies", crypto)?;
        Ok(Keys { plain_names, geometry, files, copy_ids, journal })
    }
}
