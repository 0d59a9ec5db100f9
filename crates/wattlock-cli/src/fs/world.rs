//! An opened volume, and the way to what a path in it names.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::Result;
use rustix::fs::{AtFlags, FileType, OFlags, Stat};
use rustix::io::Errno;
use wattlock::{Dispatcher, Runtime};
use wattlock_door::one_line;
use wattlock_files::Error as FileError;
use wattlock_fs::content::{Age, Content, Contents};
use wattlock_fs::store::{FolderStore, Place};
use wattlock_fs::tree::{Entry, Folder, Listed, NAMELESS, Survey, Tree};
use wattlock_fs::volume::Volume;
use wattlock_fs::{Error, names};
use wattlock_shell::INTERRUPTED;
use zeroize::Zeroizing;

use super::access::{Keys, Opened};
use super::known::{Known, Use};
use super::store;

/// Bytes read or written together.
pub const STEP: usize = 1 << 20;

/// An opened volume.
pub struct World {
    pub volume: Volume,
    pub tree: Tree,
    root: Inner,
    pub crypto: Dispatcher,
    path: PathBuf,
    pub contents: Option<Contents<FolderStore>>,
    known: Known,
}

/// A folder of the volume, and where its backing folder lies below the volume's own.
#[derive(Clone)]
pub struct Inner {
    pub folder: Arc<Folder>,
    place: Vec<u8>,
}

impl Inner {
    /// Where the backing entry of that name lies.
    pub fn place_of(&self, entry: &Entry) -> Vec<u8> {
        let slash = if self.place.is_empty() { &b""[..] } else { b"/" };
        [&self.place, slash, entry.stored.as_bytes()].concat()
    }
}

/// What a path leads to: the folder that it is in, and its entry; none for the volume's own folder.
pub struct Spot {
    pub inside: Inner,
    pub entry: Option<Entry>,
    pub name: Vec<u8>,
}

/// A stored name that is shown by no name, and why; `None` for what is another program's.
pub type Unnamed = (OsString, Option<Error>);

/// Whether this command was interrupted.
pub fn stop() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// An error once this command was interrupted.
pub fn go_on() -> Result<(), FileError> {
    if stop() { Err(FileError::Door(wattlock_door::Error::Interrupted)) } else { Ok(()) }
}

/// An error with the path that it is about.
pub fn about(path: &Path, error: impl Into<anyhow::Error>) -> anyhow::Error {
    let error = error.into();
    match error.downcast_ref() {
        Some(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            wattlock_door::Error::NotFound(path.to_owned()).into()
        }
        _ => in_words(error).context(one_line(path)),
    }
}

/// An error of a volume with the folder that the volume is, unless it says already what it is about.
pub fn located(folder: &Path, error: anyhow::Error) -> anyhow::Error {
    match error.chain().next().and_then(|error| error.downcast_ref()) {
        Some(Error::Io { .. }) => in_words(error).context(one_line(folder)),
        _ => error,
    }
}

/// The system's error in words that say what it means here.
fn in_words(error: anyhow::Error) -> anyhow::Error {
    let Some(Error::Io { what, source }) = error.chain().next().and_then(|error| error.downcast_ref()) else {
        return error;
    };
    let Some(number) = source.raw_os_error() else { return error };
    let why = match Errno::from_raw_os_error(number) {
        Errno::ACCESS | Errno::PERM => "this user may not (permission denied)".to_owned(),
        Errno::ROFS => "the file system is read-only".to_owned(),
        Errno::XDEV => "something else is mounted there, and the volume ends at it".to_owned(),
        Errno::LOOP => "a symbolic link is there, and links are not followed".to_owned(),
        _ => source.to_string().trim_end_matches(&format!(" (os error {number})")).to_owned(),
    };
    Error::io(what, std::io::Error::new(source.kind(), why)).into()
}

/// Lines that begin with a file's stored path, with the path that is shown: contents know only where files are stored. A path
/// that no longer leads to a name stays.
pub fn in_clear(lines: Vec<String>, path: &Path, volume: &Volume, crypto: &mut Dispatcher) -> Vec<String> {
    if lines.is_empty() {
        return lines;
    }
    let Ok((tree, root)) = Tree::open_to_read(path, volume, crypto) else { return lines };
    let root = Arc::new(root);
    let mut clear = |line: &str| {
        let (stored, what) = line.split_once(": ")?;
        let (mut folder, mut shown) = (root.clone(), String::new());
        let mut names = stored.split('/').peekable();
        while let Some(name) = names.next() {
            let listed = tree.survey(&folder, &stop, crypto).ok()?.listed;
            let one = listed.into_iter().find(|one| one.entry().stored.as_bytes() == name.as_bytes())?;
            shown.push('/');
            shown.push_str(&String::from_utf8_lossy(&one.name));
            if names.peek().is_some() {
                folder = Arc::new(tree.folder(&folder, &one.entry(), crypto).ok()?);
            }
        }
        Some(format!("{shown}: {what}"))
    };
    lines.into_iter().map(|line| clear(&line).unwrap_or(line)).collect()
}

impl Drop for World {
    /// Says what came up on the way: files that were shown or kept only in part, folders that have a new record.
    fn drop(&mut self) {
        let lines = self.contents.as_ref().map(Contents::take_lines).unwrap_or_default();
        let lines = in_clear(lines, &self.path, &self.volume, &mut self.crypto);
        for line in lines.into_iter().chain(self.tree.take_notes()) {
            eprintln!("wattlock: {}", one_line(Path::new(&line)));
        }
    }
}

impl World {
    /// Opens a volume; `write` says whether anything in its folder may change.
    pub fn open(keys: &Keys, path: &Path, write: bool, runtime: &Runtime) -> Result<World> {
        let usage = if write { Use::Write } else { Use::Read };
        let Opened { volume, known, .. } = keys.open(path, usage, runtime)?;
        let mut crypto = runtime.dispatcher();
        let (tree, root) = match write {
            true => Tree::open(path, &volume, &mut crypto)?,
            false => Tree::open_to_read(path, &volume, &mut crypto)?,
        };
        let root = Inner { folder: Arc::new(root), place: Vec::new() };
        Ok(World { volume, tree, root, crypto, path: path.to_owned(), contents: None, known })
    }

    /// The contents: the journal's lock keeps mounts away. What it holds is brought into place if something is to be
    /// written, and else read over the files.
    pub fn contents(&mut self, write: bool) -> Result<()> {
        let (store, volume, crypto) = (store(&self.path)?, &self.volume, &mut self.crypto);
        let judge = &mut |age: &Age| self.known.judge(age);
        let started = Contents::start_judged(store, volume, !write, (&stop, judge), crypto);
        let (contents, recovered) = started.map_err(|error| self.known.refused(error))?;
        self.known.note(&contents.age());
        for line in recovered.lines {
            eprintln!("wattlock: {}", one_line(Path::new(&line)));
        }
        self.tree.set_crashed(contents.may_be_torn() && write);
        self.contents = Some(contents);
        Ok(())
    }

    pub fn finish(&mut self) -> Result<(), Error> {
        if self.contents.as_ref().is_some_and(Contents::is_read_only) {
            return Ok(());
        }
        self.tree.sync_records()?;
        match &self.contents {
            Some(contents) => contents.end(&mut self.crypto)?,
            None => return Ok(()),
        }
        if let Some(contents) = &self.contents {
            self.known.note(&contents.age());
        }
        Ok(())
    }

    /// The volume's own folder.
    pub fn root(&self) -> Inner {
        self.root.clone()
    }

    pub fn spot(&mut self, path: &Path) -> Result<Spot, Error> {
        let mut spot = Spot { inside: self.root(), entry: None, name: Vec::new() };
        for name in parts(path) {
            let inside = self.folder(&spot)?;
            let entry = self.found(&inside, name)?;
            spot = Spot { inside, entry: Some(entry), name: name.to_vec() };
        }
        Ok(spot)
    }

    /// The entry of a name, which is there or may be made. A copy that another program named is known from a listing
    /// only.
    fn found(&mut self, inside: &Inner, name: &[u8]) -> Result<Entry, Error> {
        if name == b".." {
            return Err(Error::Usage("a path in a volume has no ..".into()));
        }
        let entry = self.tree.entry(&inside.folder, name, &mut self.crypto);
        if entry.as_ref().is_ok_and(|entry| matches!(status(&inside.folder, entry), Ok(Some(_)))) {
            return entry;
        }
        let (listed, _) = self.list(inside)?;
        match listed.iter().find(|listed| listed.name == name) {
            Some(listed) => Ok(listed.entry()),
            None => entry,
        }
    }

    /// What is in a folder, by name; and the stored names that are shown by none.
    pub fn list(&mut self, inside: &Inner) -> Result<(Vec<Listed>, Vec<OsString>), Error> {
        let (mut listed, foreign) = self.tree.list_until(&inside.folder, &stop, &mut self.crypto)?;
        listed.sort_by(|one, other| one.name.cmp(&other.name));
        Ok((listed, foreign))
    }

    /// The same; each stored name that is shown by none with why, unless it is another program's. Also records of the
    /// folder that may have more names.
    pub fn list_all(&mut self, inside: &Inner) -> Result<(Vec<Listed>, Vec<Unnamed>), Error> {
        let survey = self.tree.survey(&inside.folder, &stop, &mut self.crypto)?;
        let Survey { mut listed, foreign, unread, .. } = survey;
        listed.sort_by(|one, other| one.name.cmp(&other.name));
        let unread: Vec<Unnamed> = unread.into_iter().map(|(stored, error)| (stored, Some(error))).collect();
        let known: HashSet<OsString> = unread.iter().map(|(stored, _)| stored.clone()).collect();
        let others = foreign.into_iter().filter(|stored| !known.contains(stored)).map(|stored| {
            let ours = !self.tree.is_of_others(&inside.folder, &stored);
            let why = ours.then(|| Error::Damaged(NAMELESS.into()));
            (stored, why)
        });
        Ok((listed, unread.into_iter().chain(others).collect()))
    }

    /// The folder that a spot is.
    pub fn folder(&mut self, spot: &Spot) -> Result<Inner, Error> {
        match &spot.entry {
            None => Ok(spot.inside.clone()),
            Some(entry) => self.enter(&spot.inside, entry),
        }
    }

    /// A folder in a folder.
    pub fn enter(&mut self, inside: &Inner, entry: &Entry) -> Result<Inner, Error> {
        let place = inside.place_of(entry);
        Ok(Inner { folder: Arc::new(self.tree.folder(&inside.folder, entry, &mut self.crypto)?), place })
    }

    /// What is there; `None` if nothing is.
    pub fn kind(&self, spot: &Spot) -> Result<Option<FileType>, Error> {
        let Some(entry) = &spot.entry else { return Ok(Some(FileType::Directory)) };
        let status = status(&spot.inside.folder, entry)?;
        Ok(status.map(|status| FileType::from_raw_mode(status.st_mode)))
    }

    /// A file's content.
    pub fn content(&mut self, inside: &Inner, entry: &Entry) -> Result<Arc<Content<FolderStore>>, Error> {
        let (file, meta) = self.backing(inside, entry)?;
        let contents = self.contents.as_ref().ok_or(Error::InUse)?;
        let place = Place { inode: (meta.dev(), meta.ino()), path: inside.place_of(entry) };
        contents.open(file, place, &mut self.crypto)
    }

    fn backing(&self, inside: &Inner, entry: &Entry) -> Result<(File, Metadata), Error> {
        // A pipe would wait for its other end.
        let file = self.tree.open_file(&inside.folder, entry, OFlags::RDONLY | OFlags::NONBLOCK)?;
        let meta = file.metadata().map_err(|error| Error::io("looking at a file", error))?;
        match meta.file_type() {
            kind if kind.is_file() => Ok((file, meta)),
            kind if kind.is_dir() => Err(Error::io("a file", Errno::ISDIR)),
            _ => Err(Error::io("a file", Errno::INVAL)),
        }
    }

    /// Writes a file's content.
    pub fn write_out(&mut self, content: &Content<FolderStore>, to: &mut dyn Write) -> Result<()> {
        let mut buffer = Zeroizing::new(vec![0; STEP]);
        let mut at = 0;
        loop {
            go_on()?;
            // The read at the end says that the end is the end.
            let read = content.read(&mut buffer, at, &mut self.crypto)?;
            if read == 0 {
                return Ok(());
            }
            to.write_all(&buffer[..read]).map_err(FileError::writing)?;
            at += read as u64;
        }
    }

    /// The length in clear of what is there.
    pub fn size(&mut self, inside: &Inner, entry: &Entry, status: &Stat) -> Result<u64, Error> {
        let stored = status.st_size as u64;
        match FileType::from_raw_mode(status.st_mode) {
            FileType::Symlink => Ok(names::target_len(stored)),
            FileType::RegularFile => {
                let inode = (status.st_dev, status.st_ino);
                let torn = self.contents.as_ref().is_some_and(|contents| !contents.is_sound(inode));
                // Opening it mends it, or says that it is damaged.
                if torn && let Ok(content) = self.content(inside, entry) {
                    return Ok(content.len());
                }
                match &self.contents {
                    Some(contents) => Ok(contents.len_of(inode, stored)),
                    None => {
                        let geometry = wattlock_fs::format::Geometry::new(self.volume.chunk)?;
                        Ok(geometry.content_len_lenient(stored))
                    }
                }
            }
            _ => Ok(0),
        }
    }
}

/// The names that a path in a volume consists of.
pub fn parts(path: &Path) -> impl DoubleEndedIterator<Item = &[u8]> {
    let names = path.as_os_str().as_bytes().split(|byte| *byte == b'/');
    names.filter(|name| !name.is_empty() && *name != b".")
}

/// What the backing folder has of an entry.
pub fn status(folder: &Folder, entry: &Entry) -> Result<Option<Stat>, Error> {
    match rustix::fs::statat(folder.fd(), &*entry.stored, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(status) => Ok(Some(status)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(Error::io("looking at a file", error)),
    }
}
