//! What a result keeps of the file that it was made from: owner, group, mode, times, and the access control list.
//!
//! Set-id and sticky bits are never kept: they say something of the former content. Rights are never widened. If the
//! group cannot be kept, as for an ordinary user outside the group, the result's group may do what everybody may; if
//! the list cannot be kept, the group may do what the list allowed it, since the mode's group bits are then the list's
//! mask.

use std::fs::{File, FileTimes, Metadata};
use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;

use rustix::fs::{Gid, Mode, Uid, XattrFlags, fchmod, fchown, fgetxattr, fremovexattr, fsetxattr};

use crate::error::Error;

/// The access control list, as Linux's file systems store it (acl(5), `linux/posix_acl_xattr.h`).
const ACL: &str = "system.posix_acl_access";

/// Longest list that is read: 64 KiB is what Linux allows for an attribute.
const ACL_MOST: usize = 1 << 16;

const GROUP: u32 = 0o070;
const OTHERS: u32 = 0o007;

/// What a file has, for another file to get.
#[derive(Debug, Clone)]
pub struct Attributes {
    owner: u32,
    group: u32,
    mode: u32,
    times: [Option<SystemTime>; 2],
    list: Option<Vec<u8>>,
}

impl Attributes {
    /// Those of an open file. `meta` is its own.
    pub fn of(file: &File, meta: &Metadata) -> Attributes {
        // Most files have none, and this is then the only call.
        let list = rustix::fs::fgetxattr_query(file, ACL).ok().filter(|len| (1..=ACL_MOST).contains(len));
        let list = list.and_then(|len| {
            let mut list = Vec::with_capacity(len);
            fgetxattr(file, ACL, rustix::buffer::spare_capacity(&mut list)).ok()?;
            Some(list)
        });
        Attributes {
            owner: meta.uid(),
            group: meta.gid(),
            mode: meta.mode() & 0o777,
            times: [meta.accessed().ok(), meta.modified().ok()],
            list,
        }
    }

    /// When the content changed last, if the system knows.
    pub fn modified(&self) -> Option<SystemTime> {
        self.times[1]
    }

    /// The same with another time of the content's last change.
    pub fn modified_at(self, time: SystemTime) -> Attributes {
        Attributes { times: [self.times[0], Some(time)], ..self }
    }

    /// Gives them to a file that no other program can open yet. Group before mode before owner: a program that gives a
    /// file away may set neither afterwards.
    ///
    /// # Errors
    /// [`Error::Io`] if the mode cannot be set. What an ordinary user may not keep is left out.
    pub fn give(&self, to: &File) -> Result<(), Error> {
        let failed = |error: std::io::Error| Error::io("setting the output's permissions", error);
        let now = to.metadata().map_err(failed)?;
        let group = now.gid() == self.group || fchown(to, None, Some(Gid::from_raw(self.group))).is_ok();
        let mode = match (&self.list, group) {
            (_, false) => {
                // A folder's default list would name others.
                let _ = fremovexattr(to, ACL);
                self.mode & !GROUP | self.mode & GROUP & ((self.mode & OTHERS) << 3)
            }
            (None, true) => {
                let _ = fremovexattr(to, ACL);
                self.mode
            }
            (Some(list), true) => match fsetxattr(to, ACL, list, XattrFlags::empty()) {
                Ok(()) => self.mode,
                Err(_) => self.mode & !GROUP | self.mode & GROUP & (groups_own(list) << 3),
            },
        };
        // Where times cannot be set, nothing is lost but the time.
        let [accessed, modified] = self.times;
        let times = accessed.map_or(FileTimes::new(), |time| FileTimes::new().set_accessed(time));
        let _ = to.set_times(modified.map_or(times, |time| times.set_modified(time)));
        fchmod(to, Mode::from_raw_mode(mode)).map_err(|error| failed(error.into()))?;
        if now.uid() != self.owner {
            let _ = fchown(to, Some(Uid::from_raw(self.owner)), None);
        }
        Ok(())
    }
}

/// What a list allows the file's own group.
fn groups_own(list: &[u8]) -> u32 {
    const GROUP_OBJ: u16 = 4;
    let entries = list.get(4..).unwrap_or_default().chunks_exact(8);
    let number = |entry: &[u8], at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
    let mut own = entries.filter(|entry| number(entry, 0) == GROUP_OBJ);
    own.next().map_or(0, |entry| u32::from(number(entry, 2)) & OTHERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lists_own_group_is_found_and_a_damaged_list_allows_nothing() {
        let entry = |tag: u16, rights: u16| {
            [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &u32::MAX.to_le_bytes()].concat()
        };
        let list =
            [2u32.to_le_bytes().to_vec(), entry(1, 6), entry(2, 7), entry(4, 5), entry(16, 7)].concat();
        assert_eq!(groups_own(&list), 5);
        for damaged in [&list[..3], &list[..4], &list[..27], &[]] {
            assert_eq!(groups_own(damaged), 0);
        }
    }
}
