//! Checks a whole volume: records, names, headers, every chunk, links and attributes. Deletes nothing.
//!
//! This crate starts no thread: any number of them call [`Check::work`] until it returns.
//!
//! *Repair.* What has lost its name gets a new one in its folder, since contents do not depend on names. A folder whose
//! record is lost gets a new record, and its entries new names, unless a copy of the record opens it: that comes into its
//! place. The damaged record stays beside it. Content that does not authenticate stays as it is.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use wattlock_core::sync::lock;

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use wattlock_door::Crypto;

use crate::Error;
use crate::content::{Content, Contents};
use crate::format::Geometry;
use crate::rotate::{shown, shown_stored};
use crate::store::{File as _, Place, Store};
use crate::tree::{Entry, Folder, NAMELESS, OF_OTHERS, RECORD, Stored, Survey, Tree, is_record};

/// Bytes read together.
const STEP: usize = 1 << 20;
/// Files handed to a thread together.
const TOGETHER: usize = 64;

/// What was found so far.
#[derive(Debug, Default, Clone)]
pub struct Found {
    /// Folders looked at.
    pub folders: u64,
    /// Files looked at; one with several names once.
    pub files: u64,
    /// Bytes of content that authenticated.
    pub bytes: u64,
    /// What is damaged and stays so, a line each.
    pub damaged: Vec<String>,
    /// What could not be looked at, a line each.
    pub closed: Vec<String>,
    /// What a newer program wrote, as it seems: left as it is, a line each.
    pub newer: Vec<String>,
    /// What was damaged and is no longer, a line each.
    pub repaired: Vec<String>,
    /// What is of no harm, a line each.
    pub notes: Vec<String>,
}

enum Task {
    Folder(Folder, Vec<u8>, String),
    Entries(Arc<Folder>, Vec<Item>),
}

struct Item {
    entry: Entry,
    kind: FileType,
    /// Path of the backing file, a hint for the journal.
    place: Vec<u8>,
    shown: String,
    /// Of one whose name does not open.
    nameless: Option<Nameless>,
}

#[derive(Clone, Copy)]
struct Nameless {
    /// It gets a new name.
    renamed: bool,
}

struct State {
    tasks: Vec<Task>,
    working: usize,
    found: Found,
    /// Files of several names that were looked at.
    seen: HashSet<(u64, u64)>,
    failed: bool,
}

/// A check in progress.
pub struct Check<'a, S: Store<File = File>> {
    tree: &'a Tree,
    /// None where the journal does not open: then contents are not read.
    contents: Option<&'a Contents<S>>,
    chunk: usize,
    repair: bool,
    state: Mutex<State>,
    more: Condvar,
}

impl<'a, S: Store<File = File>> Check<'a, S> {
    /// Of the volume with this tree, from its own folder on. `chunk` is the volume's chunk size.
    pub fn new(
        tree: &'a Tree,
        root: Folder,
        contents: Option<&'a Contents<S>>,
        chunk: usize,
        repair: bool,
    ) -> Check<'a, S> {
        let tasks = vec![Task::Folder(root, Vec::new(), String::new())];
        let state = State { tasks, working: 0, found: Found::default(), seen: HashSet::new(), failed: false };
        Check { tree, contents, chunk, repair, state: Mutex::new(state), more: Condvar::new() }
    }

    /// Checks until nothing is left to check, or `stop` says so. Any number of threads do this side by side.
    pub fn work(&self, stop: &dyn Fn() -> bool, crypto: &mut impl Crypto) {
        let mut buffer = vec![0; STEP];
        while let Some(task) = self.next(stop) {
            match task {
                Task::Folder(folder, place, shown) => self.folder(folder, &place, &shown, stop, crypto),
                Task::Entries(folder, items) => {
                    for item in items {
                        if stop() {
                            break;
                        }
                        self.entry(&folder, &item, &mut buffer, stop, crypto);
                    }
                }
            }
            let mut state = self.state();
            state.working -= 1;
            drop(state);
            self.more.notify_all();
        }
        zeroize::Zeroize::zeroize(&mut buffer);
    }

    /// Bytes of content that authenticated so far.
    pub fn bytes(&self) -> u64 {
        self.state().found.bytes
    }

    /// What was found, sorted by line.
    pub fn found(&self) -> Found {
        let mut found = self.state().found.clone();
        let found_lines = [&mut found.damaged, &mut found.closed, &mut found.newer, &mut found.repaired];
        for lines in found_lines.into_iter().chain([&mut found.notes]) {
            lines.sort();
        }
        found
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn next(&self, stop: &dyn Fn() -> bool) -> Option<Task> {
        let mut state = self.state();
        loop {
            if stop() {
                state.failed = true;
            }
            if state.failed {
                return None;
            }
            if let Some(task) = state.tasks.pop() {
                state.working += 1;
                return Some(task);
            }
            if state.working == 0 {
                return None;
            }
            state = self.more.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    fn damaged(&self, path: &str, what: impl std::fmt::Display) {
        self.state().found.damaged.push(format!("{}: {what}", whole(path)));
    }

    /// Notes an error of what was looked at: only bytes that were read can be damaged.
    fn failed(&self, path: &str, error: &Error) {
        let line = format!("{}: {error}", whole(path));
        match error {
            Error::Io { .. } => self.state().found.closed.push(line),
            Error::Newer(_) => self.state().found.newer.push(line),
            _ => self.state().found.damaged.push(line),
        }
    }

    fn repaired(&self, path: &str, what: impl std::fmt::Display) {
        self.state().found.repaired.push(format!("{}: {what}", whole(path)));
    }

    fn folder(
        &self,
        folder: Folder,
        place: &[u8],
        path: &str,
        stop: &dyn Fn() -> bool,
        crypto: &mut impl Crypto,
    ) {
        self.state().found.folders += 1;
        let folder = Arc::new(folder);
        let survey = match self.tree.survey(&folder, stop, crypto) {
            Ok(survey) => survey,
            Err(Error::Files(wattlock_files::Error::Door(wattlock_door::Error::Interrupted))) => return,
            Err(error) => return self.failed(path, &error),
        };
        self.own_files(&folder, path, &survey, crypto);
        for (stored, what) in survey.useless() {
            let what = match what {
                Stored::OwnCopy => "another program's copy of a file of the volume",
                _ => "left over by a crash or a repair",
            };
            let path = join(path, &shown_stored(stored));
            self.state().found.notes.push(format!("{path}: {what}, of no harm"));
        }
        let below = |stored: &OsString| {
            let slash = if place.is_empty() { &b""[..] } else { b"/" };
            [place, slash, stored.as_bytes()].concat()
        };
        let mut items: Vec<Item> = Vec::new();
        for entry in &survey.listed {
            let (place, shown) = (below(&entry.stored), join(path, &shown(&entry.name)));
            items.push(Item { entry: entry.entry(), kind: entry.kind, place, shown, nameless: None });
        }
        // While a name or a record of the folder is unread, what has no name may have one.
        let nameless = Some(Nameless { renamed: self.repair && survey.unread.is_empty() });
        for (stored, error) in &survey.unread {
            self.failed(&join(path, &shown_stored(stored)), error);
        }
        let unread: HashSet<&OsString> = survey.unread.iter().map(|(stored, _)| stored).collect();
        for stored in survey.foreign {
            if self.tree.is_of_others(&folder, &stored) {
                let path = join(path, &shown_stored(&stored));
                self.state().found.notes.push(format!("{path}: {OF_OTHERS}"));
                continue;
            }
            let (place, shown) = (below(&stored), join(path, &shown_stored(&stored)));
            let nameless = nameless.filter(|_| !unread.contains(&stored));
            let entry = Entry { stored, sidecar: None };
            items.push(Item { entry, kind: FileType::Unknown, place, shown, nameless });
        }
        // Not `split_off`: what it leaves keeps the room of all, and a folder of 200,000 entries took 24 GiB.
        let (mut tasks, mut items) = (Vec::new(), items.into_iter().peekable());
        while items.peek().is_some() {
            tasks.push(Task::Entries(folder.clone(), items.by_ref().take(TOGETHER).collect()));
        }
        self.state().tasks.extend(tasks);
        self.more.notify_all();
    }

    /// What only a version byte is wrong with; says whether it is right now.
    fn version(&self, path: &str, restore: impl FnOnce() -> Result<(), Error>) -> bool {
        let what = "its version byte was altered";
        if !self.repair {
            self.damaged(path, format!("{what}, which --repair writes back"));
            return false;
        }
        let restored = restore();
        match &restored {
            Ok(()) => self.repaired(path, format!("{what}; it is written back")),
            Err(error) => self.damaged(path, format!("{what}; not repaired: {error}")),
        }
        restored.is_ok()
    }

    /// What is wrong with a folder's record and with files beside long names, of which copies by other programs are whole;
    /// and records with other keys.
    fn own_files(&self, folder: &Folder, path: &str, survey: &Survey, crypto: &mut impl Crypto) {
        let mended = |path: &str, what: &str, restore: &mut dyn FnMut() -> Result<(), Error>| {
            if !self.repair {
                return self
                    .damaged(path, format!("{what}; a copy of it opens, which --repair puts in its place"));
            }
            match restore() {
                Ok(()) => self.repaired(path, format!("{what}; a copy of it is in its place")),
                Err(error) => self.damaged(path, format!("{what}; not repaired: {error}")),
            }
        };
        let copies = survey.own.iter().filter(|(stored, what)| *what == Stored::OwnCopy && is_record(stored));
        let own = OsString::from(RECORD);
        for stored in std::iter::once(&own).chain(copies.map(|(stored, _)| stored)) {
            // What cannot be read is told elsewhere.
            if let Ok(Some(whole)) = self.tree.altered_record(folder, stored, crypto) {
                let path = join(path, &shown_stored(stored));
                self.version(&path, || self.tree.restore_version(folder, stored, &whole));
            }
        }
        if let Some(what) = folder.lost() {
            mended(path, what, &mut || self.tree.restore_record(folder, crypto));
        }
        for (entry, sealed) in &survey.beside {
            let path = join(path, &shown_stored(entry));
            let mut restore = || self.tree.restore_beside(folder, entry, sealed);
            mended(&path, "the file beside it that has its name is lost", &mut restore);
        }
        for (record, opens) in survey.records.iter().filter(|(_, opens)| *opens > 0) {
            let path = join(path, &shown_stored(record));
            let many = if *opens == 1 { "1 name opens".into() } else { format!("{opens} names open") };
            let note = format!("{path}: two machines made this folder; {many} by this record only");
            self.state().found.notes.push(note);
        }
    }

    fn entry(
        &self,
        folder: &Folder,
        item: &Item,
        buffer: &mut [u8],
        stop: &dyn Fn() -> bool,
        crypto: &mut impl Crypto,
    ) {
        let path = &item.shown;
        let kind = match item.kind {
            FileType::Unknown => match self.tree.kind(folder, &item.entry.stored) {
                Ok(Some(kind)) => kind,
                Ok(None) => return,
                Err(error) => return self.failed(path, &error),
            },
            kind => kind,
        };
        let sound = match kind {
            FileType::RegularFile => self.file(folder, item, buffer, stop, crypto),
            FileType::Directory => {
                self.attributes(folder, item, crypto);
                self.inner(folder, item, crypto)
            }
            FileType::Symlink => match self.tree.read_link(folder, &item.entry, crypto) {
                Ok(_) => true,
                Err(error) => {
                    self.failed(path, &error);
                    false
                }
            },
            _ => true,
        };
        if let Some(nameless) = item.nameless {
            self.nameless(folder, item, nameless.renamed && sound, crypto);
        }
    }

    /// Hands a folder's content on; says whether there is a folder.
    fn inner(&self, folder: &Folder, item: &Item, crypto: &mut impl Crypto) -> bool {
        let inner = match self.tree.folder(folder, &item.entry, crypto) {
            Err(Error::Damaged(what)) if self.repair => {
                match self.tree.replace_record(folder, &item.entry, crypto) {
                    Ok(inner) => {
                        self.repaired(&item.shown, format!("{what}; it has a new record"));
                        inner
                    }
                    Err(error) => {
                        self.damaged(&item.shown, format!("{what}; not repaired: {error}"));
                        return false;
                    }
                }
            }
            Err(error) => {
                self.failed(&item.shown, &error);
                return false;
            }
            Ok(inner) => inner,
        };
        for note in self.tree.take_notes() {
            self.state().found.notes.push(note);
        }
        self.state().tasks.push(Task::Folder(inner, item.place.clone(), item.shown.clone()));
        self.more.notify_all();
        true
    }

    /// An entry whose name does not open.
    fn nameless(&self, folder: &Folder, item: &Item, renamed: bool, crypto: &mut impl Crypto) {
        let what = NAMELESS;
        if !renamed {
            return self.damaged(&item.shown, what);
        }
        match self.rename(folder, item, crypto) {
            Ok(name) => self.repaired(&item.shown, format!("{what}; it is called {name} now")),
            Err(error) => self.damaged(&item.shown, format!("{what}; not repaired: {error}")),
        }
    }

    fn rename(&self, folder: &Folder, item: &Item, crypto: &mut impl Crypto) -> Result<String, Error> {
        let status =
            rustix::fs::statat(folder.fd(), &*item.entry.stored, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
        let inode = status.map_err(|error| Error::io("looking at an entry", error))?.st_ino;
        for turn in 0.. {
            let name = if turn == 0 { format!("lost-{inode}") } else { format!("lost-{inode}-{turn}") };
            let to = self.tree.entry(folder, name.as_bytes(), crypto)?;
            match self.tree.rename_lost(folder, &item.entry, &to) {
                Ok(()) => return Ok(name),
                Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::io("naming an entry", Errno::EXIST))
    }

    /// Reads a file; says whether it is one of ours at all.
    fn file(
        &self,
        folder: &Folder,
        item: &Item,
        buffer: &mut [u8],
        stop: &dyn Fn() -> bool,
        crypto: &mut impl Crypto,
    ) -> bool {
        let path = &item.shown;
        let file = match self.tree.open_file(folder, &item.entry, OFlags::RDONLY) {
            Ok(file) => file,
            Err(error) => {
                self.failed(path, &error);
                return false;
            }
        };
        let meta = match file.metadata() {
            Ok(meta) => meta,
            Err(error) => {
                self.failed(path, &Error::io("looking at a file", error));
                return false;
            }
        };
        let inode = (meta.dev(), meta.ino());
        if meta.nlink() > 1 && !self.state().seen.insert(inode) {
            return true;
        }
        self.state().found.files += 1;
        self.attributes(folder, item, crypto);
        let Some(contents) = self.contents else { return true };
        // What cannot be read is told right below.
        if matches!(contents.is_version_altered(&file, crypto), Ok(true)) {
            let restored = self.version(path, || {
                let file = self.tree.open_file(folder, &item.entry, OFlags::RDWR)?;
                contents.restore_version(&file, crypto)
            });
            if !restored {
                return false;
            }
        }
        let place = Place { inode, path: item.place.clone() };
        match contents.open(file, place, crypto) {
            Ok(content) => {
                self.read(&content, path, buffer, stop, crypto);
                true
            }
            Err(error) => {
                self.failed(path, &error);
                false
            }
        }
    }

    fn read(
        &self,
        content: &Content<S>,
        path: &str,
        buffer: &mut [u8],
        stop: &dyn Fn() -> bool,
        crypto: &mut impl Crypto,
    ) {
        let (mut at, len, chunk) = (0, content.len(), self.chunk as u64);
        let mut bad: Vec<(u64, u64)> = Vec::new();
        while at < len {
            if stop() {
                return;
            }
            // Holes need no reading; where that cannot be said, reading says what is wrong.
            match content.seek(at, false, crypto) {
                Ok(Some(data)) => at = at.max(data / chunk * chunk),
                Ok(None) => break,
                Err(_) => {}
            }
            match content.read(buffer, at, crypto) {
                Ok(0) => break,
                Ok(read) => {
                    self.state().found.bytes += read as u64;
                    at += read as u64;
                }
                Err(Error::Damaged(_)) => {
                    let end = len.min(at + buffer.len() as u64);
                    at = match self.read_chunks(content, (at, end), buffer, &mut bad, crypto) {
                        Ok(at) => at,
                        Err(error) => {
                            self.failed(path, &error);
                            break;
                        }
                    };
                }
                Err(error) => {
                    self.failed(path, &error);
                    break;
                }
            }
        }
        // The last chunk of a content of whole chunks is empty: a read at the end asks for it.
        if len.is_multiple_of(chunk) {
            match content.read(&mut buffer[..1], len, crypto) {
                Ok(_) => {}
                Err(Error::Damaged(_)) => bad.push((len / chunk, len / chunk)),
                Err(error) => self.failed(path, &error),
            }
        }
        for (first, last) in bad {
            match first == last {
                true => self.damaged(path, format!("chunk {first} does not authenticate")),
                false => self.damaged(path, format!("chunks {first} to {last} do not authenticate")),
            }
        }
    }

    /// Reads chunk by chunk from one place to another, and enters those that are damaged. Returns where to go on.
    fn read_chunks(
        &self,
        content: &Content<S>,
        (mut at, end): (u64, u64),
        buffer: &mut [u8],
        bad: &mut Vec<(u64, u64)>,
        crypto: &mut impl Crypto,
    ) -> Result<u64, Error> {
        let (len, chunk) = (content.len(), self.chunk as u64);
        while at < end {
            let piece = (chunk - at % chunk).min(end - at) as usize;
            let index = at / chunk;
            at += piece as u64;
            match content.read(&mut buffer[..piece], at - piece as u64, crypto) {
                Ok(read) => self.state().found.bytes += read as u64,
                Err(Error::Damaged(_)) => {
                    let next = self.next_stored(content, index);
                    at = at.max(next.saturating_mul(chunk).min(len));
                    let last = (at - 1) / chunk;
                    match bad.last_mut() {
                        Some((_, before)) if *before + 1 == index => *before = last,
                        _ => bad.push((index, last)),
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(at)
    }

    /// The chunk behind a damaged one that may be anything else: all that lie in one hole of the backing file have no bytes
    /// either, and what says that a chunk is a hole of the content stands at that hole's first chunk. A hole costs a
    /// program that made it nothing, so it must cost nothing to check.
    fn next_stored(&self, content: &Content<S>, index: u64) -> u64 {
        let Ok(geometry) = Geometry::new(self.chunk) else { return index + 1 };
        let begin = geometry.slot_at(index);
        match content.file().next_data(begin) {
            Ok(None) => u64::MAX,
            Ok(Some(data)) => (index + 1).max(index + (data - begin) / geometry.stride()),
            Err(_) => index + 1,
        }
    }

    /// Attributes by the path of the folder's descriptor: a link's own, and those of what may not be opened.
    fn attributes(&self, folder: &Folder, item: &Item, crypto: &mut impl Crypto) {
        let mut path = format!("/proc/self/fd/{}/", folder.fd().as_raw_fd()).into_bytes();
        path.extend_from_slice(item.entry.stored.as_bytes());
        let path = std::path::Path::new(std::ffi::OsStr::from_bytes(&path));
        let mut names = vec![0; 65_536];
        let unread = |error| self.failed(&item.shown, &Error::io("reading extended attributes", error));
        let len = match rustix::fs::llistxattr(path, &mut names[..]) {
            Ok(len) => len,
            Err(Errno::OPNOTSUPP) => return,
            Err(error) => return unread(error),
        };
        let names = &names[..len];
        let extras = self.tree.extras();
        for stored in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let name = match extras.attribute_name(stored, crypto) {
                Ok(Some(name)) => name,
                Ok(None) => continue,
                Err(error) => {
                    self.damaged(&item.shown, error);
                    continue;
                }
            };
            let mut value = vec![0; 65_536];
            let len = match rustix::fs::lgetxattr(path, stored, &mut value[..]) {
                Ok(len) => len,
                // It is gone meanwhile.
                Err(Errno::NODATA) => continue,
                Err(error) => {
                    unread(error);
                    continue;
                }
            };
            if let Err(error) = extras.open_value(&name, &value[..len], crypto) {
                self.damaged(&item.shown, format!("{error} ({})", shown(&name)));
            }
        }
    }
}

/// A path in the volume, as it is said.
fn whole(path: &str) -> &str {
    if path.is_empty() { "the volume's folder" } else { path }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
}
