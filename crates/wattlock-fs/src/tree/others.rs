//! Names that a folder's own key does not open: entries of other records of the folder, and copies that other programs made
//! of entries. Contents do not depend on names, so a copy opens.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use wattlock_core::Key;
use wattlock_door::Crypto;

use super::copies::{self, Other};
use super::second::Second;
use super::stored::{
    Seen, Stored, Survey, beside_copy, go_on, is_of_volume, is_symbol, long_copy, open_stored, sealed_name,
};
use super::{Folder, Tree};
use crate::Error;
use crate::names;

/// Symbols of a stored name that another program adds at most: each is one trial more for a name that is not ours.
const ADDED: usize = 40;

/// Copies of the file beside one long name that are tried.
const BESIDE: usize = 16;

/// Symbols of the shortest stored name: a vector, and one byte.
const SHORTEST: usize = (names::VECTOR + 1) * 4 / 3 + 1;

impl Tree {
    /// What the folder's own key does not open as a name: entries of other records, and copies; of some of it, why it
    /// could not be read.
    pub(super) fn survey_unknown(
        &self,
        folder: &Folder,
        (unknown, mut unread): (Vec<Seen>, HashMap<OsString, Error>),
        survey: &mut Survey,
        stop: &dyn Fn() -> bool,
        crypto: &mut impl Crypto,
    ) -> Result<copies::Shown, Error> {
        let own = || survey.own.iter().filter(|(_, what)| *what == Stored::OwnCopy).map(|(stored, _)| stored);
        let (seconds, unread_records) = self.seconds(folder, own(), crypto)?;
        let mut beside: HashMap<Vec<u8>, Vec<OsString>> = HashMap::new();
        for copy in own() {
            if let Some(entry) = beside_copy(copy.as_bytes()) {
                beside.entry(entry).or_default().push(copy.clone());
            }
        }
        let keys = Keys { folder, seconds: &seconds, beside: &beside };
        survey.unread.extend(unread_records);
        let (mut others, mut seen_others) = (Vec::new(), HashMap::new());
        survey.records.extend(seconds.iter().map(|second| (second.stored.clone(), 0)));
        for seen in unknown {
            go_on(stop)?;
            let found = match keys.what(&seen.stored, crypto) {
                Err(error) if error.is_of_one() => {
                    unread.entry(seen.stored.clone()).or_insert(error);
                    None
                }
                found => found?,
            };
            let Some(Found { named, record, beside }) = found else {
                survey.foreign.push(seen.stored);
                continue;
            };
            // A copy of what could not be read has the name.
            unread.remove(&seen.stored);
            survey.beside.extend(beside.map(|sealed| (seen.stored.clone(), sealed)));
            if let Some(record) = record.and_then(|record| survey.records.get_mut(record)) {
                record.1 += 1;
            }
            match named {
                Named::Own(name) => survey.listed.extend(seen.shown(folder, name)),
                Named::Other(other) => {
                    others.push(other);
                    seen_others.insert(seen.stored.clone(), seen);
                }
            }
        }
        survey.unread.extend(unread);
        if others.is_empty() {
            return Ok(copies::Shown::default());
        }
        let entries: HashSet<_> = survey.listed.iter().map(|listed| &*listed.name).collect();
        let (names, shown) = copies::show(&entries, &mut others, &self.copies.names(folder));
        for (other, name) in others.iter().zip(names) {
            let seen = seen_others.remove(&other.stored);
            survey.listed.extend(seen.and_then(|seen| seen.shown(folder, name)));
        }
        Ok(shown)
    }
}

/// What a stored name is that the folder's own key and the file beside it do not open.
struct Found {
    named: Named,
    /// Which of the other records opens it.
    record: Option<usize>,
    /// Its sealed name, if only a copy of the file beside it has that.
    beside: Option<Vec<u8>>,
}

enum Named {
    /// By the folder's own key.
    Own(Vec<u8>),
    Other(Other),
}

/// All that opens names in a folder.
struct Keys<'a> {
    folder: &'a Folder,
    seconds: &'a [Second],
    /// Copies of the files beside long names, by the entry's stored name.
    beside: &'a HashMap<Vec<u8>, Vec<OsString>>,
}

impl Keys<'_> {
    fn what(&self, stored: &OsStr, crypto: &mut impl Crypto) -> Result<Option<Found>, Error> {
        let Some(own) = self.folder.key.as_ref().filter(|_| !is_of_volume(stored)) else { return Ok(None) };
        let (bytes, copies) = (stored.as_bytes(), self.copies_beside(stored.as_bytes()));
        let keys = || std::iter::once(own).chain(self.seconds.iter().map(|second| &second.key)).enumerate();
        let other = |copied, name, added: &[u8]| {
            Named::Other(Other { copied, stored: stored.to_owned(), name, added: added.to_vec() })
        };
        let sealed = match self.seconds.is_empty() && copies.is_empty() {
            true => None,
            false => sealed_name(self.folder, bytes, copies, crypto)?,
        };
        if let Some((sealed, of_copy)) = sealed {
            for (at, key) in keys() {
                let Some(name) = open_stored(key, bytes, &sealed, crypto)? else { continue };
                let record = at.checked_sub(1);
                let named = match record {
                    None => Named::Own(name),
                    Some(record) => other(false, name, &self.seconds[record].added),
                };
                return Ok(Some(Found { named, record, beside: of_copy.then_some(sealed) }));
            }
        }
        for (at, key) in keys() {
            if let Some((name, added)) = self.within(key, bytes, crypto)? {
                let named = other(true, name, added);
                return Ok(Some(Found { named, record: at.checked_sub(1), beside: None }));
            }
        }
        Ok(None)
    }

    fn copies_beside(&self, entry: &[u8]) -> &[OsString] {
        self.beside.get(entry).map_or(&[], |copies| &copies[..copies.len().min(BESIDE)])
    }

    /// The name of an entry of this key, with whose stored name another one begins, and what another program added: behind
    /// it, or within a long one. That may begin with symbols of base64url as well; only the entry's own part authenticates.
    /// Contents do not depend on names, so such a copy opens.
    fn within<'b>(
        &self,
        key: &Key,
        stored: &'b [u8],
        crypto: &mut impl Crypto,
    ) -> Result<Option<Added<'b>>, Error> {
        let opened = |entry: &[u8], crypto: &mut _| {
            let sealed = sealed_name(self.folder, entry, self.copies_beside(entry), crypto)?;
            sealed.map_or(Ok(None), |(sealed, _)| open_stored(key, entry, &sealed, crypto))
        };
        if let Some((entry, added)) = long_copy(stored) {
            return Ok(opened(&entry, crypto)?.map(|name| (name, added)));
        }
        let symbols = stored.iter().position(|byte| !is_symbol(byte)).unwrap_or(stored.len());
        let last = symbols.min(stored.len().saturating_sub(1));
        for end in (SHORTEST.max(last.saturating_sub(ADDED))..=last).rev() {
            if let Some(name) = opened(&stored[..end], crypto)? {
                return Ok(Some((name, &stored[end..])));
            }
        }
        Ok(None)
    }
}

/// An entry's name, and what another program added to its stored name.
type Added<'a> = (Vec<u8>, &'a [u8]);
