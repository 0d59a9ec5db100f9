//! What is ours in a folder asks its owner for no rights that the operation itself does not need.

use std::ffi::OsString;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{Folder, Tree};
use crate::Error;
use crate::beneath;
use crate::grant::Grant;

impl Tree {
    /// Does something in a folder whose owner may list it and not enter it, as if the owner might. Repeats what failed
    /// for want of that.
    ///
    /// # Errors
    /// What `work` says.
    pub fn entered<T>(&self, folder: &Folder, work: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        self.granted(&folder.fd, work)
    }

    /// Does something in a folder that its owner may have closed: what is ours in there asks for no rights that the
    /// operation itself does not need. The owner has them for that moment, unless nothing is written. Repeats what failed
    /// for want of them.
    pub(super) fn granted<T>(
        &self,
        folder: &OwnedFd,
        mut work: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let denied = match work() {
            Err(error) if error.errno() == Errno::ACCESS.raw_os_error() && !self.read_only => error,
            done => return done,
        };
        let Some(grant) = Grant::give(folder, Mode::RWXU) else { return Err(denied) };
        let done = work();
        grant.end().map_err(|error| Error::io("closing a folder again", error))?;
        done
    }
}

/// The names in a folder that a descriptor names.
pub(super) fn names_in(folder: &OwnedFd) -> Result<Vec<OsString>, Error> {
    let fd = beneath::open(folder, ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
    beneath::names(fd.map_err(|error| Error::io("listing a folder", error))?)
}
