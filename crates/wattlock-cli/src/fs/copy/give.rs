//! What `cp -a` keeps beside the content: owner, mode, access control lists, extended attributes and times.
//!
//! What the system refuses (another owner to an ordinary user, attributes to a file system that has none) is left out
//! and told once. What the system does not let this user read is told, and decides the exit code.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::Result;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Uid, XattrFlags};
use rustix::io::Errno;
use wattlock_fs::Error;
use wattlock_fs::content::earlier;
use wattlock_mount::attributes as system;

use super::Copier;
use super::side::{Attributes, LISTS, Seen, Side, by_descriptor};
use crate::fs::report::Report;
use crate::fs::world::about;

/// All attributes of what a descriptor names, in clear. One that is damaged is told and left out.
pub fn attributes(
    side: &mut impl Side,
    fd: BorrowedFd<'_>,
    path: &Path,
    report: &mut Report,
) -> Result<Attributes> {
    let at = by_descriptor(fd);
    let stored = match system::list(at.as_ref()) {
        Ok(stored) => stored,
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(error) => {
            report.fail(path, about(path, Error::io("reading extended attributes", error)));
            return Ok(Vec::new());
        }
    };
    let mut attributes = Vec::new();
    for name in stored {
        let clear = match side.clear_name(name.clone()) {
            Ok(Some(clear)) => clear,
            Ok(None) => continue,
            Err(error @ Error::Damaged(_)) => {
                report.fail(path, about(path, error));
                continue;
            }
            Err(error) => return Err(about(path, error)),
        };
        let value = match system::get(at.as_ref(), OsStr::from_bytes(&name)) {
            Ok(value) => value,
            Err(Errno::NODATA) => continue,
            Err(error) => {
                report.fail(path, about(path, Error::io("reading extended attributes", error)));
                continue;
            }
        };
        match side.clear_value(&clear, value) {
            Ok(value) => attributes.push((clear, value)),
            Err(error @ Error::Damaged(_)) => report.fail(path, about(path, error)),
            Err(error) => return Err(about(path, error)),
        }
    }
    Ok(attributes)
}

impl<F: Side, T: Side> Copier<'_, F, T> {
    /// Gives what a descriptor names everything that the original has. Attributes before the mode, which may forbid
    /// writing; lists before the mode, whose bits of the group are a list's mask; times last.
    pub(super) fn give(
        &mut self,
        fd: BorrowedFd<'_>,
        like: &Seen,
        attributes: &Attributes,
        path: &Path,
    ) -> Result<()> {
        let at = by_descriptor(fd);
        let now = Seen::of(fd).map_err(|error| about(path, error))?;
        let mut mode = like.mode;
        if now.owner != like.owner && !self.own(&at, like.owner, path) {
            // A program that runs as its owner would run as another one.
            mode &= if like.kind == FileType::Directory { 0o1777 } else { 0o777 };
        }
        for (name, value) in attributes.iter().filter(|(name, _)| !LISTS.contains(&&name[..])) {
            if !self.set(&at, name, value) {
                self.report.left_out("extended attributes", path);
            }
        }
        if like.kind != FileType::Symlink {
            if !self.set_lists(&at, like.kind, attributes) {
                self.report.left_out("access control list", path);
                // The mode's bits of the group were the list's mask, and are now the group's own.
                mode = mode & !0o070 | mode & 0o070 & (mode & 0o007) << 3;
            }
            if rustix::fs::chmod(&*at, Mode::from_raw_mode(mode)).is_err() {
                self.report.left_out("mode", path);
            }
        }
        let times = |early| {
            let times = if early { &earlier(&like.times) } else { &like.times };
            rustix::fs::utimensat(CWD, &*at, times, AtFlags::empty())
        };
        if self.to.with_times(now.inode, &times).is_err() {
            self.report.left_out("times", path);
        }
        Ok(())
    }

    /// Sets owner and group; says whether it could.
    fn own(&mut self, at: &str, (owner, group): (u32, u32), path: &Path) -> bool {
        let (owner, group) = (Some(Uid::from_raw(owner)), Some(Gid::from_raw(group)));
        if rustix::fs::chown(at, owner, group).is_ok() {
            return true;
        }
        // An ordinary user may give a file to another of their groups.
        let _ = rustix::fs::chown(at, None, group);
        self.report.left_out("owner", path);
        false
    }

    fn set(&mut self, at: &str, name: &[u8], value: &[u8]) -> bool {
        let Ok((name, value)) = self.to.stored(name, value) else { return false };
        system::set(at.as_ref(), OsStr::from_bytes(&name), &value, XattrFlags::empty()).is_ok()
    }

    /// Sets access control lists, and removes those that a folder's default list gave.
    fn set_lists(&mut self, at: &str, kind: FileType, attributes: &Attributes) -> bool {
        let mut all = true;
        for list in LISTS.iter().take(if kind == FileType::Directory { 2 } else { 1 }) {
            match attributes.iter().find(|(name, _)| name == list) {
                Some((name, value)) => all &= self.set(at, name, value),
                None => _ = system::remove(at.as_ref(), OsStr::from_bytes(list)),
            }
        }
        all
    }
}
