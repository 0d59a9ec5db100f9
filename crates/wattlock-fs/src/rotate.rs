//! Sealing everything under a new volume key: the headers of files and the records of folders, 96 and 128 bytes each.
//!
//! What is sealed inside them (the key of a file's chunks, of a folder's names) stays, so nothing else is rewritten.
//! The new key is in `wattlock.fs` before the first header is, and the old ones are until the last is done, so that
//! rotation can stop at any moment and begin again: what has the newest generation is not sealed again. A header lies
//! within a file's first 512 bytes, which storage writes whole or not at all. One that has the newest generation is
//! written as it is: if an earlier rotation's sync failed, memory has it, the disk may have the old one, and no later sync
//! says so.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{FileType, OFlags};
use wattlock_door::Crypto;

use crate::Error;
use crate::content::Contents;
use crate::record;
use crate::store::FolderStore;
use crate::tree::{Entry, Folder, Stored, Survey, Tree, is_record};

/// What a rotation did.
#[derive(Debug, Default)]
pub struct Rotated {
    /// Headers and records that were sealed anew.
    pub sealed: u64,
    /// Those that had the newest key already.
    pub skipped: u64,
    /// What could not be sealed anew, a line each: the old keys must stay.
    pub failed: Vec<String>,
    /// The gravest reason for that: damage before an unknown version, and that before what could not be read or
    /// written.
    pub gravest: Option<Error>,
    /// Files that none of the volume's keys opens, a line each.
    pub lost: Vec<String>,
}

/// Seals every header and record below `root` under the newest key of `tree` and `contents`, headers where they are, while
/// the volume is in use, too. `first` is false of another look at what this rotation has seen. `stop` is asked before each
/// entry.
///
/// # Errors
/// [`Error::Io`] for a root that cannot be listed; everything else is in the result.
pub fn rotate<C: Crypto>(
    tree: &Tree,
    root: Folder,
    (contents, first): (&Contents<FolderStore>, bool),
    stop: &dyn Fn() -> bool,
    crypto: &mut C,
) -> Result<Rotated, Error> {
    let mut reseal = |file: &File, named: bool, crypto: &mut C| {
        let meta = file.metadata().map_err(|error| Error::io("looking at a file", error))?;
        contents.reseal(file, (meta.dev(), meta.ino()), (named, first), crypto)
    };
    rotate_with(tree, root, &mut reseal, stop, crypto)
}

/// Seals one file's header anew: is given the backing file, opened for writing, and whether its name opened.
pub type Reseal<'a, C> = dyn FnMut(&File, bool, &mut C) -> Result<Resealed, Error> + 'a;

/// What became of a file's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resealed {
    /// It was sealed.
    Anew,
    /// It has the newest key, or is not the volume's.
    AsItWas,
    /// Its key has this generation, and the volume has no such key: none that stays would help.
    Lost(u32),
}

/// As [`rotate`], with another way to seal headers.
///
/// # Errors
/// As [`rotate`].
pub fn rotate_with<C: Crypto>(
    tree: &Tree,
    root: Folder,
    reseal: &mut Reseal<'_, C>,
    stop: &dyn Fn() -> bool,
    crypto: &mut C,
) -> Result<Rotated, Error> {
    let mut done = Rotated::default();
    count(&mut done, "the volume's folder record", tree.rotate_record(&root, crypto));
    let mut left = vec![(root, String::new())];
    'folders: while let Some((folder, path)) = left.pop() {
        let Survey { listed, foreign, own, .. } = match tree.survey(&folder, stop, crypto) {
            Ok(survey) => survey,
            Err(Error::Files(wattlock_files::Error::Door(wattlock_door::Error::Interrupted))) => {
                done.failed.push("interrupted".into());
                break;
            }
            Err(error) if path.is_empty() => return Err(error),
            Err(error) => {
                done.fail(&path, error);
                continue;
            }
        };
        for (stored, _) in own.iter().filter(|(stored, what)| *what == Stored::OwnCopy && is_record(stored)) {
            count(&mut done, &path, tree.rotate_copy(&folder, stored, crypto));
        }
        // What has no name has a header all the same, unless it is another program's.
        let entries = listed.iter().map(|entry| (entry.entry(), entry.kind, shown(&entry.name), false));
        let nameless = foreign.iter().filter(|stored| !tree.is_of_others(&folder, stored));
        let nameless = nameless.map(|stored| {
            let entry = Entry { stored: stored.clone(), sidecar: None };
            (entry, FileType::Unknown, shown_stored(stored), true)
        });
        for (entry, kind, name, name_is_foreign) in entries.chain(nameless) {
            if stop() {
                done.failed.push("interrupted".into());
                break 'folders;
            }
            let path = if path.is_empty() { name } else { format!("{path}/{name}") };
            let kind = match kind {
                FileType::Unknown => match tree.kind(&folder, &entry.stored) {
                    Ok(Some(kind)) => kind,
                    Ok(None) => continue,
                    Err(error) => {
                        done.fail(&path, error);
                        continue;
                    }
                },
                kind => kind,
            };
            match kind {
                FileType::RegularFile => {
                    let file = tree.open_file(&folder, &entry, OFlags::RDWR);
                    match file.and_then(|file| reseal(&file, !name_is_foreign, crypto)) {
                        Ok(Resealed::Lost(key)) => done.lost.push(format!("{path}: {}", lacks(key))),
                        result => {
                            count(&mut done, &path, result.map(|what| what == Resealed::Anew));
                        }
                    }
                }
                FileType::Directory => match tree.folder(&folder, &entry, crypto) {
                    Ok(inner) => {
                        count(&mut done, &path, tree.rotate_record(&inner, crypto));
                        left.push((inner, path));
                    }
                    Err(error) => done.fail(&path, error),
                },
                _ => {}
            }
        }
    }
    tree.sync_all()?;
    Ok(done)
}

fn count(done: &mut Rotated, path: &str, result: Result<bool, Error>) {
    match result {
        Ok(true) => done.sealed += 1,
        Ok(false) => done.skipped += 1,
        Err(error) => done.fail(path, error),
    }
}

impl Rotated {
    fn fail(&mut self, path: &str, error: Error) {
        let grave = |error: &Error| match error {
            Error::Io { .. } => 0,
            Error::Newer(_) => 1,
            _ => 2,
        };
        self.failed.push(format!("{path}: {error}"));
        if self.gravest.as_ref().is_none_or(|before| grave(before) < grave(&error)) {
            self.gravest = Some(error);
        }
    }
}

/// Said of a header of an unknown generation.
pub(crate) fn lacks(generation: u32) -> String {
    format!("the header names key {generation}, which the volume lacks")
}

/// A name as a line of text.
pub(crate) fn shown(name: &[u8]) -> String {
    use std::os::unix::ffi::OsStrExt;
    wattlock_door::one_line(std::path::Path::new(std::ffi::OsStr::from_bytes(name)))
}

pub(crate) fn shown_stored(stored: &std::ffi::OsStr) -> String {
    format!("[{}]", wattlock_door::one_line(std::path::Path::new(stored)))
}

impl Tree {
    /// Seals a folder's record under the newest key; says whether it had to.
    fn rotate_record(&self, folder: &Folder, crypto: &mut impl Crypto) -> Result<bool, Error> {
        let Some(content) = crate::beneath::content(folder.fd(), record::NAME, record::LEN)? else {
            return Ok(false);
        };
        match self.reseal(&content, crypto)? {
            Some(sealed) => {
                self.may_write()?;
                let mode = crate::beneath::SHARED;
                crate::beneath::replace(folder.fd(), record::NAME, &sealed, mode).map(|()| true)
            }
            None => Ok(false),
        }
    }
}
