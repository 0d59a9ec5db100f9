//! Rights on a file or folder that its owner has for a moment.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;

use rustix::fs::Mode;
use rustix::io::Errno;
use wattlock_core::sync::lock;

/// What has rights now that it had not, by device and inode number. One table for the process: a tree and a store may
/// need the same folder at one time.
static GIVEN: Mutex<BTreeMap<(u64, u64), Given>> = Mutex::new(BTreeMap::new());

struct Given {
    /// How many need them.
    users: usize,
    /// The mode before.
    was: u32,
    /// The mode that was set.
    set: u32,
}

/// A right that its owner has until [`Grant::end`]. Several may be held, of one folder, too.
pub(crate) struct Grant<'a> {
    named: &'a OwnedFd,
    inode: (u64, u64),
}

impl Grant<'_> {
    /// Gives the owner a right. `None` where nobody but the owner may; and for what has the set-group-ID bit, since the
    /// system takes that bit from who is not of the group.
    pub(crate) fn give(named: &OwnedFd, right: Mode) -> Option<Grant<'_>> {
        let mut given = lock(&GIVEN);
        let status = rustix::fs::fstat(named).ok()?;
        let (inode, mode) = ((status.st_dev, status.st_ino), status.st_mode & 0o7777);
        if Mode::from_raw_mode(mode).contains(Mode::SGID) {
            return None;
        }
        let set = mode | right.bits();
        set_mode(named, set).ok()?;
        let entry = given.entry(inode).or_insert(Given { users: 0, was: mode, set });
        if entry.set != mode {
            // Another one set it meanwhile.
            entry.was = mode;
        }
        (entry.set, entry.users) = (set, entry.users + 1);
        Some(Grant { named, inode })
    }

    /// Takes the right again once nobody needs it, if the mode is still the one that was set.
    pub(crate) fn end(self) -> Result<(), Errno> {
        let mut given = lock(&GIVEN);
        let Some(entry) = given.get_mut(&self.inode) else { return Ok(()) };
        entry.users -= 1;
        if entry.users > 0 {
            return Ok(());
        }
        let (was, set) = (entry.was, entry.set);
        given.remove(&self.inode);
        if rustix::fs::fstat(self.named)?.st_mode & 0o7777 != set {
            return Ok(());
        }
        match set_mode(self.named, was) {
            // What was removed meanwhile needs no mode.
            Err(Errno::NOENT) => Ok(()),
            done => done,
        }
    }
}

fn set_mode(named: &OwnedFd, mode: u32) -> Result<(), Errno> {
    rustix::fs::chmod(format!("/proc/self/fd/{}", named.as_raw_fd()), Mode::from_raw_mode(mode))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_right_goes_with_its_last_user_and_a_mode_that_was_set_meanwhile_stays() {
        let place = tempfile::tempdir().unwrap();
        let mode = || place.path().metadata().unwrap().permissions().mode() & 0o7777;
        let set = |mode| std::fs::set_permissions(place.path(), PermissionsExt::from_mode(mode)).unwrap();
        let fd = OwnedFd::from(std::fs::File::open(place.path()).unwrap());
        set(0o040);
        let outer = Grant::give(&fd, Mode::RUSR).unwrap();
        let inner = Grant::give(&fd, Mode::RWXU).unwrap();
        assert_eq!(mode(), 0o740);
        outer.end().unwrap();
        assert_eq!(mode(), 0o740, "one user is left");
        inner.end().unwrap();
        assert_eq!(mode(), 0o040);
        let grant = Grant::give(&fd, Mode::RWXU).unwrap();
        set(0o750);
        grant.end().unwrap();
        assert_eq!(mode(), 0o750);
        set(0o2050);
        assert!(Grant::give(&fd, Mode::RWXU).is_none());
        assert_eq!(mode(), 0o2050);
        set(0o700);
    }
}
