//! What goes to a folder: its entries, and making them durable.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use wattlock_core::sync::lock;
use wattlock_fs::Error;
use wattlock_fs::tree::Listed;

use crate::backing::{Backing, Result};
use crate::door::{Inner, errno};
use crate::node::proc_path;
use crate::table::ROOT;

impl<B: Backing> Inner<B> {
    /// A folder's entries, made anew from the start.
    pub(super) fn listing(&self, number: u64, handle: u64, from: u64) -> Result<Arc<Vec<Listed>>> {
        let open = self.dirs.get(handle).ok_or_else(|| errno(Errno::BADF))?;
        let mut listing = lock(&open.listing);
        if let (Some(listed), true) = (&*listing, from > 0) {
            return Ok(listed.clone());
        }
        let (listed, foreign) = self.on_thread(|thread, _| {
            let dir = self.dir(number, thread)?;
            self.backing.list(&dir.folder, thread)
        })?;
        for stored in foreign {
            let path = self.table.path(number, &stored);
            let path = wattlock_door::one_line(path.as_ref());
            self.refuse(&Error::Damaged("a name that does not open".to_owned()), || path.to_string());
        }
        let listed = Arc::new(listed);
        *listing = Some(listed.clone());
        Ok(listed)
    }

    pub(super) fn sync_folder(&self, number: u64) -> Result<()> {
        self.backing.sync_records()?;
        rustix::fs::fsync(self.folder_to_sync(number)?).map_err(errno)
    }

    fn folder_to_sync(&self, number: u64) -> Result<OwnedFd> {
        self.on_thread(|thread, _| {
            let dir = self.dir(number, thread)?;
            // By its own descriptor: who may read a folder may sync it, without the right to enter it.
            let path = proc_path(self.backing.fd(&dir.folder).as_raw_fd(), None);
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(&path, flags, Mode::empty()).map_err(errno)
        })
    }

    /// Makes names in a folder durable. One that does not open, or is gone, is synced with all that its file system has.
    pub(super) fn sync_name_in(&self, folder: u64) -> Result<()> {
        match self.folder_to_sync(folder) {
            Ok(folder) => rustix::fs::fsync(folder).map_err(errno),
            Err(_) => self.sync_all(),
        }
    }

    /// Makes all names durable.
    pub(crate) fn sync_all(&self) -> Result<()> {
        rustix::fs::syncfs(self.backing.fd(&self.root.folder)).map_err(errno)
    }

    /// Makes all names durable where too many may not be.
    pub(crate) fn sync_many(&self) -> Result<()> {
        let Some(so_far) = self.renamed.many() else { return Ok(()) };
        self.sync_all()?;
        self.renamed.all_synced(so_far);
        Ok(())
    }

    /// The number shown for `.` and `..`.
    pub(super) fn dot(&self, number: u64, parent: bool) -> u64 {
        if parent { self.table.parent(number).unwrap_or(ROOT) } else { number }
    }

    /// The device that a folder is on.
    pub(super) fn device(&self, number: u64) -> u64 {
        let stat = self.on_thread(|thread, _| self.spot(number, thread).map(|(_, stat)| stat));
        stat.map_or(0, |stat| stat.st_dev)
    }
}
