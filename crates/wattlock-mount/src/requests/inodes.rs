//! What goes to an inode: permissions, owner, times, extended attributes, a link's target.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::{Errno as Refusal, FileAttr, INodeNo, ReplyXattr, Request};
use rustix::fs::{FileType, Timestamps, UTIME_NOW, UTIME_OMIT, XattrFlags};
use rustix::io::Errno;

use crate::attr::shown;
use crate::attributes;
use crate::backing::{Backing, Result};
use crate::caller::Groups;
use crate::door::{Inner, errno, type_of};
use crate::node::Spot;
use crate::table::ROOT;

const EXECUTES: u32 = 0o111;
/// Names of attributes that are none.
const NAMESPACES: [&str; 3] = ["user.", "trusted.", "security."];
const CAPABILITY: &str = "security.capability";
const ACL: &[u8] = b"system.posix_acl_";

impl<B: Backing> Inner<B> {
    /// What the kernel wants to set, in the order in which a failure leaves least behind.
    pub(super) fn set(&self, number: u64, request: &Request, wanted: &Wanted) -> Result<FileAttr> {
        self.on_thread(|thread, _| {
            if let Some(size) = wanted.size {
                self.truncate(number, size, request, wanted.handle, thread)?;
            }
            let (spot, stat) = self.pinned(number, thread)?;
            if wanted.uid.is_some() || wanted.gid.is_some() {
                self.chown(&spot, wanted.uid, wanted.gid)?;
                self.table.not_plain(number);
            }
            if let Some(mode) = wanted.mode {
                self.chmod(&spot, &stat, mode)?;
            }
            let mut times = wanted.times.clone();
            if wanted.size.is_some() && times.last_modification.tv_nsec == UTIME_OMIT {
                times.last_modification.tv_nsec = UTIME_NOW;
            }
            if times.last_access.tv_nsec != UTIME_OMIT || times.last_modification.tv_nsec != UTIME_OMIT {
                let time = times.last_modification;
                let kept = !matches!(time.tv_nsec, UTIME_OMIT | UTIME_NOW) && !self.behaviour.shared;
                self.set_times(&spot, &stat, &times, || {
                    if kept {
                        self.table.timed(number, time);
                    }
                })?;
            }
            if wanted.is_time_written() && !self.behaviour.shared && self.table.is_written(number) {
                // The kernel has these times itself. Asking for a status behind a change makes the next change of the
                // backing file one of a time of its own, and with it the next write of any file.
                let attr = self.attr(number, &stat);
                return Ok(FileAttr { mtime: shown(&times.last_modification), ..attr });
            }
            self.attr_of(number, thread)
        })
    }

    pub(super) fn get_attribute(&self, number: u64, name: &OsStr) -> Result<Vec<u8>> {
        // The kernel asks for this one at the first write and at each change of owner.
        if name == CAPABILITY && !self.behaviour.shared && self.table.is_known_plain(number) {
            return Err(errno(Errno::NODATA));
        }
        self.on_thread(|thread, _| {
            let (spot, _) = self.pinned(number, thread)?;
            self.with_path(&spot, |path| match is_acl(name) {
                true => attributes::get(path, name).map_err(errno),
                false => self.backing.attribute(path, name, thread),
            })
        })
    }

    /// Whether root may use an inode: all but execute what no user may.
    pub(super) fn access(&self, number: u64, execute: bool) -> Result<()> {
        let (_, stat) = self.on_thread(|thread, _| self.spot(number, thread))?;
        match execute && type_of(&stat) != FileType::Directory && stat.st_mode & EXECUTES == 0 {
            true => Err(errno(Errno::ACCESS)),
            false => Ok(()),
        }
    }

    pub(super) fn list_attributes(&self, number: u64) -> Result<Vec<u8>> {
        self.on_thread(|thread, _| {
            let (spot, _) = self.pinned(number, thread)?;
            self.with_path(&spot, |path| {
                let mut list = Vec::new();
                for name in self.backing.attributes(path, thread)? {
                    list.extend_from_slice(&name);
                    list.push(0);
                }
                Ok(list)
            })
        })
    }

    pub(super) fn set_attribute(
        &self,
        request: &Request,
        number: u64,
        name: &OsStr,
        value: Option<(&[u8], XattrFlags)>,
    ) -> Result<()> {
        if NAMESPACES.iter().any(|namespace| name == *namespace) {
            return Err(errno(Errno::INVAL));
        }
        self.is_writable()?;
        self.on_thread(|thread, _| {
            let (spot, _) = self.pinned(number, thread)?;
            self.table.not_plain(number);
            self.with_path(&spot, |path| {
                if !is_acl(name) {
                    return match value {
                        Some((value, flags)) => self.backing.set_attribute(path, name, value, flags, thread),
                        None => self.backing.remove_attribute(path, name, thread),
                    };
                }
                // The backing file system takes the set-group bit from a file whose group the caller is not in.
                self.as_caller(Inner::<B>::caller(request), Groups::Needed, || {
                    match value {
                        Some((value, flags)) => attributes::set(path, name, value, flags),
                        None => attributes::remove(path, name),
                    }
                    .map_err(errno)
                })
            })?;
            // A write in between may have believed that there was none.
            self.table.not_plain(number);
            if is_acl(name) {
                if let (true, Some(notifier)) = (self.behaviour.unbound, self.notifier.get()) {
                    // An ACL changes the mode, which the kernel expects only of file systems whose ACLs it checks.
                    let _ = notifier.inval_inode(INodeNo(number), -1, 0);
                }
                match self.folders.get(number) {
                    Some(dir) => dir.acl_changed(),
                    None if number == ROOT => self.root.acl_changed(),
                    None => {}
                }
            }
            Ok(())
        })
    }

    pub(super) fn read_link(&self, number: u64) -> Result<Vec<u8>> {
        self.on_thread(|thread, _| {
            let Spot::Held(link) = self.pinned(number, thread)?.0 else { return Err(errno(Errno::INVAL)) };
            let stored = rustix::fs::readlinkat(&link, "", Vec::new()).map_err(|error| match error {
                // That is what the system says of an inode that is no link and was named by a descriptor.
                Errno::NOENT => errno(Errno::INVAL),
                error => errno(error),
            })?;
            self.backing.open_target(stored.as_bytes(), thread)
        })
    }
}

/// What `setattr` was asked for.
pub(super) struct Wanted {
    pub(super) mode: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) size: Option<u64>,
    pub(super) times: Timestamps,
    pub(super) handle: Option<u64>,
}

impl Wanted {
    /// Whether nothing but the modification time is to be set, to one that the kernel names.
    fn is_time_written(&self) -> bool {
        let others = [self.mode, self.uid, self.gid].iter().all(Option::is_none) && self.size.is_none();
        let named = !matches!(self.times.last_modification.tv_nsec, UTIME_OMIT | UTIME_NOW);
        others && named && self.times.last_access.tv_nsec == UTIME_OMIT
    }
}

fn is_acl(name: &OsStr) -> bool {
    name.as_bytes().starts_with(ACL)
}

pub(super) fn answer_attribute(reply: ReplyXattr, value: &[u8], room: u32) {
    match room {
        0 => reply.size(value.len() as u32),
        _ if value.len() > room as usize => reply.error(Refusal::ERANGE),
        _ => reply.data(value),
    }
}
