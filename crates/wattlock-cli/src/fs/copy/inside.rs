//! The volume's side of a copy.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use rustix::fs::{FileType, Mode, RenameFlags};
use rustix::io::Errno;
use wattlock_fs::Error;
use wattlock_fs::content::Content;
use wattlock_fs::store::{FolderStore, Place};
use wattlock_fs::tree::{Entry, OF_OTHERS};

use super::side::{Seen, Side, Unread};
use crate::fs::world::{Inner, World, about, parts, status};

impl World {
    fn entry(&mut self, dir: &Inner, name: &[u8]) -> Result<Entry, Error> {
        self.tree.entry(&dir.folder, name, &mut self.crypto)
    }
}

impl Side for World {
    type Dir = Inner;
    type Body = Arc<Content<FolderStore>>;

    fn folder_at(&mut self, path: &Path) -> Result<Option<Inner>> {
        let spot = self.spot(path).map_err(|error| about(path, error))?;
        match self.kind(&spot).map_err(|error| about(path, error))? {
            Some(FileType::Directory) => {
                let inner = self.folder(&spot).map_err(|error| about(path, error))?;
                // What other programs named is known from a listing.
                self.list(&inner).map_err(|error| about(path, error))?;
                Ok(Some(inner))
            }
            _ => Ok(None),
        }
    }

    fn parent_at(&mut self, path: &Path) -> Result<Inner> {
        let names: Vec<&[u8]> = parts(path).collect();
        let above = names.split_last().map_or(Vec::new(), |(_, above)| above.join(&b'/'));
        let above = PathBuf::from(OsString::from_vec(above));
        let folder = self.folder_at(&above)?;
        folder.ok_or_else(|| wattlock_door::Error::NotFound(above).into())
    }

    fn enter(&mut self, dir: &Inner, name: &[u8]) -> Result<Inner, Error> {
        let entry = self.entry(dir, name)?;
        World::enter(self, dir, &entry)
    }

    fn fd<'a>(&self, dir: &'a Inner) -> BorrowedFd<'a> {
        dir.folder.fd().as_fd()
    }

    fn pin(&mut self, dir: &Inner, name: &[u8]) -> Result<OwnedFd, Error> {
        let entry = self.entry(dir, name)?;
        super::pin(dir.folder.fd().as_fd(), &entry.stored)
    }

    fn list(&mut self, dir: &Inner) -> Result<(Vec<Vec<u8>>, Unread), Error> {
        let (listed, unnamed) = self.list_all(dir)?;
        let mut refused = Vec::new();
        for (stored, why) in unnamed {
            match why {
                Some(error) => refused.push((stored, error)),
                None => {
                    let stored = wattlock_door::one_line(Path::new(&stored));
                    eprintln!("wattlock: {stored}: {OF_OTHERS}: left out");
                }
            }
        }
        Ok((listed.into_iter().map(|entry| entry.name).collect(), refused))
    }

    fn look(&mut self, dir: &Inner, name: &[u8]) -> Result<Option<Seen>, Error> {
        let entry = self.entry(dir, name)?;
        let Some(status) = status(&dir.folder, &entry)? else { return Ok(None) };
        let size = self.size(dir, &entry, &status)?;
        let mut seen = Seen::new(&status, size);
        if let Some(contents) = self.contents.as_ref().filter(|_| seen.kind == FileType::RegularFile) {
            let time = &mut seen.times.last_modification;
            *time = contents.modified(seen.inode, *time);
        }
        Ok(Some(seen))
    }

    fn target(&mut self, dir: &Inner, name: &[u8], _link: &OwnedFd) -> Result<Vec<u8>, Error> {
        let entry = self.entry(dir, name)?;
        self.tree.read_link(&dir.folder, &entry, &mut self.crypto)
    }

    fn clear_name(&mut self, stored: Vec<u8>) -> Result<Option<Vec<u8>>, Error> {
        self.tree.extras().attribute_name(&stored, &mut self.crypto)
    }

    fn clear_value(&mut self, name: &[u8], stored: Vec<u8>) -> Result<Vec<u8>, Error> {
        self.tree.extras().open_value(name, &stored, &mut self.crypto)
    }

    fn stored(&mut self, name: &[u8], value: &[u8]) -> Result<(Vec<u8>, Vec<u8>), Error> {
        let extras = self.tree.extras();
        let stored = extras.attribute(name, &mut self.crypto)?;
        Ok((stored, extras.seal_value(name, value, &mut self.crypto)?))
    }

    fn open(&mut self, dir: &Inner, name: &[u8]) -> Result<Self::Body, Error> {
        let entry = self.entry(dir, name)?;
        self.content(dir, &entry)
    }

    fn file(&self, body: &Self::Body) -> Arc<File> {
        body.file()
    }

    fn read(&mut self, body: &Self::Body, to: &mut [u8], at: u64) -> Result<usize, Error> {
        body.read(to, at, &mut self.crypto)
    }

    fn seek(&mut self, body: &Self::Body, at: u64, hole: bool) -> Result<Option<u64>, Error> {
        body.seek(at, hole, &mut self.crypto)
    }

    fn take_over(&mut self, dir: &Inner, name: &[u8]) -> Result<(), Error> {
        match Side::look(self, dir, name)? {
            // The journal's lock: no other copy is running.
            Some(_) => Side::remove(self, dir, name),
            None => Ok(()),
        }
    }

    fn make_file(&mut self, dir: &Inner, name: &[u8]) -> Result<Self::Body, Error> {
        let entry = self.entry(dir, name)?;
        let contents = self.contents.as_ref().ok_or(Error::InUse)?;
        let _creating = contents.before_create(&mut self.crypto)?;
        let file = self.tree.create_file(&dir.folder, &entry, Mode::RUSR | Mode::WUSR)?;
        let meta = file.metadata().map_err(|error| Error::io("making a file", error))?;
        let place = Place { inode: (meta.dev(), meta.ino()), path: dir.place_of(&entry) };
        contents.create(file, place, &mut self.crypto)
    }

    fn write(&mut self, body: &Self::Body, from: &[u8], at: u64) -> Result<(), Error> {
        body.write(from, at, &mut self.crypto)
    }

    fn extend(&mut self, body: &Self::Body, len: u64) -> Result<(), Error> {
        body.grow(len, &mut self.crypto)
    }

    fn make_folder(&mut self, dir: &Inner, name: &[u8]) -> Result<(), Error> {
        let entry = self.entry(dir, name)?;
        self.tree.make_folder(&dir.folder, &entry, Mode::RWXU, &mut self.crypto)
    }

    fn make_link(&mut self, dir: &Inner, name: &[u8], target: &[u8]) -> Result<(), Error> {
        let entry = self.entry(dir, name)?;
        self.tree.make_link(&dir.folder, &entry, target, &mut self.crypto)
    }

    fn make_node(&mut self, dir: &Inner, name: &[u8], like: &Seen) -> Result<(), Error> {
        let entry = self.entry(dir, name)?;
        self.tree.make_node(&dir.folder, &entry, like.kind, Mode::RUSR | Mode::WUSR, like.device)
    }

    fn hard_link(&mut self, from: (&Inner, &[u8]), to: (&Inner, &[u8])) -> Result<(), Error> {
        let (old, new) = (self.entry(from.0, from.1)?, self.entry(to.0, to.1)?);
        self.tree.hard_link((&from.0.folder, &old), (&to.0.folder, &new))
    }

    fn rename(&mut self, dir: &Inner, from: &[u8], to: &[u8], replace: bool) -> Result<(), Error> {
        let (old, new) = (self.entry(dir, from)?, self.entry(dir, to)?);
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        self.tree.rename((&dir.folder, &old), (&dir.folder, &new), flags)
    }

    fn remove(&mut self, dir: &Inner, name: &[u8]) -> Result<(), Error> {
        let entry = self.entry(dir, name)?;
        match self.tree.remove(&dir.folder, &entry, false) {
            Err(Error::Io { source, .. }) if Errno::from_io_error(&source) == Some(Errno::NOENT) => Ok(()),
            done => done,
        }
    }

    fn with_times(
        &self,
        inode: (u64, u64),
        set: &dyn Fn(bool) -> rustix::io::Result<()>,
    ) -> rustix::io::Result<()> {
        match &self.contents {
            // A checkpoint puts times back.
            Some(contents) => contents.with_times(inode, set),
            None => set(false),
        }
    }
}
