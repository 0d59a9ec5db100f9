//! The same FUSE layer without cryptography: names, contents and attributes go to the backing folder as they are. What
//! this costs is FUSE's price, and the measure for what `wattlock mount` adds to it.
//!
//! ```sh
//! cargo run --release -p wattlock-mount --example plain -- FOLDER MOUNTPOINT [allow_other] [shared]
//! ```

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{
    AtFlags, Dir, FallocateFlags, FileType, Mode, OFlags, RenameFlags, SeekFrom, Stat, XattrFlags,
};
use rustix::io::Errno;
use wattlock_fs::Error;
use wattlock_fs::store::Place;
use wattlock_fs::tree::{Entry, Listed};
use wattlock_mount::{Backing, Options, Result, attributes, mount};

/// A folder, as it is.
struct Plain {
    root: PathBuf,
}

fn failed(error: impl Into<std::io::Error>) -> Error {
    Error::io("backing folder", error)
}

const INSIDE: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC);

impl Backing for Plain {
    type Thread = ();
    type Folder = OwnedFd;
    type Content = Arc<File>;

    fn thread(&self, _number: usize) {}

    fn root(&self, _thread: &mut ()) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&self.root, flags, Mode::empty()).map_err(failed)
    }

    fn fd<'a>(&self, folder: &'a OwnedFd) -> BorrowedFd<'a> {
        folder.as_fd()
    }

    fn folder(&self, parent: &OwnedFd, entry: &Entry, _thread: &mut ()) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | INSIDE;
        rustix::fs::openat(parent, &*entry.stored, flags, Mode::empty()).map_err(failed)
    }

    fn entry(&self, _folder: &OwnedFd, name: &OsStr, _thread: &mut ()) -> Result<Entry> {
        if name.len() > 255 {
            return Err(failed(Errno::NAMETOOLONG));
        }
        Ok(Entry { stored: name.to_owned(), sidecar: None })
    }

    fn name(&self, _folder: &OwnedFd, stored: &OsStr, _thread: &mut ()) -> Result<Option<Vec<u8>>> {
        Ok(Some(stored.as_bytes().to_vec()))
    }

    fn list(&self, folder: &OwnedFd, _thread: &mut ()) -> Result<(Vec<Listed>, Vec<OsString>)> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(folder, ".", flags, Mode::empty()).map_err(failed)?;
        let mut listed = Vec::new();
        for entry in Dir::new(opened).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                listed.push(Listed {
                    name: name.to_vec(),
                    stored: OsString::from_vec(name.to_vec()),
                    inode: entry.ino(),
                    kind: entry.file_type(),
                });
            }
        }
        Ok((listed, Vec::new()))
    }

    fn open_file(&self, folder: &OwnedFd, entry: &Entry, flags: OFlags) -> Result<File> {
        let opened = rustix::fs::openat(folder, &*entry.stored, flags | INSIDE, Mode::empty());
        opened.map(File::from).map_err(failed)
    }

    fn create_file(&self, folder: &OwnedFd, entry: &Entry, mode: Mode) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | INSIDE;
        rustix::fs::openat(folder, &*entry.stored, flags, mode).map(File::from).map_err(failed)
    }

    fn make_folder(&self, folder: &OwnedFd, entry: &Entry, mode: Mode, _thread: &mut ()) -> Result<()> {
        rustix::fs::mkdirat(folder, &*entry.stored, mode).map_err(failed)
    }

    fn make_node(
        &self,
        folder: &OwnedFd,
        entry: &Entry,
        kind: FileType,
        mode: Mode,
        device: u64,
    ) -> Result<()> {
        rustix::fs::mknodat(folder, &*entry.stored, kind, mode, device).map_err(failed)
    }

    fn make_link(&self, folder: &OwnedFd, entry: &Entry, target: &OsStr, _thread: &mut ()) -> Result<()> {
        rustix::fs::symlinkat(target, folder, &*entry.stored).map_err(failed)
    }

    fn open_target(&self, stored: &[u8], _thread: &mut ()) -> Result<Vec<u8>> {
        Ok(stored.to_vec())
    }

    fn link_len(&self, stored: u64) -> u64 {
        stored
    }

    fn hard_link(&self, (_, path): ((u64, u64), &OsStr), to: (&OwnedFd, &Entry)) -> Result<()> {
        rustix::fs::linkat(to.0, path, to.0, &*to.1.stored, AtFlags::SYMLINK_FOLLOW).map_err(failed)
    }

    fn rename(&self, from: (&OwnedFd, &Entry), to: (&OwnedFd, &Entry), flags: RenameFlags) -> Result<()> {
        let done = rustix::fs::renameat_with(from.0, &*from.1.stored, to.0, &*to.1.stored, flags);
        done.map_err(failed)
    }

    fn remove(&self, folder: &OwnedFd, entry: &Entry, folder_itself: bool) -> Result<()> {
        let flags = if folder_itself { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        rustix::fs::unlinkat(folder, &*entry.stored, flags).map_err(failed)
    }

    fn sync_records(&self) -> Result<()> {
        Ok(())
    }

    fn set_attribute(
        &self,
        path: &OsStr,
        name: &OsStr,
        value: &[u8],
        flags: XattrFlags,
        _thread: &mut (),
    ) -> Result<()> {
        attributes::set(path, name, value, flags).map_err(failed)
    }

    fn attribute(&self, path: &OsStr, name: &OsStr, _thread: &mut ()) -> Result<Vec<u8>> {
        attributes::get(path, name).map_err(failed)
    }

    fn attributes(&self, path: &OsStr, _thread: &mut ()) -> Result<Vec<Vec<u8>>> {
        attributes::list(path).map_err(failed)
    }

    fn remove_attribute(&self, path: &OsStr, name: &OsStr, _thread: &mut ()) -> Result<()> {
        attributes::remove(path, name).map_err(failed)
    }

    fn create_content(&self, file: File, _place: Place, _thread: &mut ()) -> Result<Arc<File>> {
        Ok(Arc::new(file))
    }

    fn open_content(&self, file: File, _place: Place, _thread: &mut ()) -> Result<Arc<File>> {
        Ok(Arc::new(file))
    }

    fn file(&self, content: &Arc<File>) -> Arc<File> {
        content.clone()
    }

    fn len_of(&self, stat: &Stat) -> u64 {
        stat.st_size as u64
    }

    fn len(&self, content: &Arc<File>) -> u64 {
        rustix::fs::fstat(content).map_or(0, |stat| stat.st_size as u64)
    }

    fn read(&self, content: &Arc<File>, to: &mut [u8], at: u64, _thread: &mut ()) -> Result<usize> {
        let mut done = 0;
        while done < to.len() {
            match content.read_at(&mut to[done..], at + done as u64).map_err(failed)? {
                0 => break,
                len => done += len,
            }
        }
        Ok(done)
    }

    fn write(&self, content: &Arc<File>, from: &[u8], at: u64, _thread: &mut ()) -> Result<()> {
        content.write_all_at(from, at).map_err(failed)
    }

    fn append(&self, content: &Arc<File>, from: &[u8], _thread: &mut ()) -> Result<u64> {
        let end = self.len(content);
        content.write_all_at(from, end).map_err(failed)?;
        Ok(end)
    }

    fn set_len(&self, content: &Arc<File>, len: u64, _thread: &mut ()) -> Result<()> {
        content.set_len(len).map_err(failed)
    }

    fn grow(&self, content: &Arc<File>, len: u64, _thread: &mut ()) -> Result<()> {
        rustix::fs::fallocate(content, FallocateFlags::empty(), 0, len).map_err(failed)
    }

    fn zero(&self, content: &Arc<File>, at: u64, len: u64, _thread: &mut ()) -> Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(content, flags, at, len).map_err(failed)
    }

    fn seek(&self, content: &Arc<File>, at: u64, hole: bool, _thread: &mut ()) -> Result<Option<u64>> {
        let to = if hole { SeekFrom::Hole(at) } else { SeekFrom::Data(at) };
        match rustix::fs::seek(content, to) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    fn sync(&self, content: &Arc<File>, _thread: &mut ()) -> Result<()> {
        content.sync_data().map_err(failed)
    }

    fn wants_checkpoint(&self, _idle: bool) -> bool {
        false
    }

    fn checkpoint(&self, _thread: &mut ()) -> Result<()> {
        Ok(())
    }

    fn engines(&self) -> Vec<String> {
        vec!["no cryptography".to_owned()]
    }

    fn set(&self, _settings: &[String]) -> std::result::Result<(), String> {
        Err("nothing to set".to_owned())
    }
}

fn main() {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let [folder, mountpoint, options @ ..] = arguments.as_slice() else {
        eprintln!("usage: plain FOLDER MOUNTPOINT [allow_other] [shared]");
        std::process::exit(2);
    };
    let given = |word: &str| options.iter().any(|option| option.as_bytes() == word.as_bytes());
    let flags = ["dev", "suid"].into_iter().filter(|flag| given(flag)).map(str::to_owned).collect();
    let options = Options {
        mountpoint: mountpoint.into(),
        source: folder.to_string_lossy().into_owned(),
        shared: given("shared"),
        allow_other: given("allow_other"),
        flags,
        threads: None,
        idle: None,
        stop: Arc::new(|| false),
        log: Arc::new(|line: &str| eprintln!("plain: {line}")),
    };
    let plain = Plain { root: folder.into() };
    if let Err(error) = mount(plain, &options, || println!("ready")) {
        eprintln!("plain: {error}");
        std::process::exit(1);
    }
}
