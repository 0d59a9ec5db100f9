//! Doing things as the caller: as root with `allow_other`, what a caller makes belongs to the caller, and counts
//! against the caller's quota.

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use wattlock_fs::Error;

/// Whose request it is.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Process, for its supplementary groups.
    pub pid: u32,
}

/// Whether the supplementary groups matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Groups {
    /// They do.
    Needed,
    /// Only if it fails without them.
    Perhaps,
}

/// Puts the thread's own identity back.
struct Back {
    groups: bool,
}

impl Drop for Back {
    fn drop(&mut self) {
        let root = (set_thread_res_uid(None, Uid::ROOT, None), set_thread_res_gid(None, Gid::ROOT, None));
        let groups = if self.groups { set_thread_groups(&[]) } else { Ok(()) };
        // A thread that cannot become root again must not go on with another's rights, nor without its own.
        if root.0.is_err() || root.1.is_err() || groups.is_err() {
            std::process::abort();
        }
    }
}

/// Does something as the caller, if this process is root and the caller is not.
pub fn as_caller<T>(
    root: bool,
    caller: Caller,
    groups: Groups,
    mut work: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    if !root || (caller.uid == 0 && caller.gid == 0) {
        return work();
    }
    if groups == Groups::Perhaps {
        match within(caller, None, &mut work) {
            Err(error) if matches!(error.errno(), EPERM | EACCES) => {}
            done => return done,
        }
    }
    within(caller, Some(supplementary(caller)), &mut work)
}

const EPERM: i32 = 1;
const EACCES: i32 = 13;

fn within<T>(
    caller: Caller,
    groups: Option<Vec<Gid>>,
    work: &mut impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let failed = |error: rustix::io::Errno| Error::io("taking the caller's identity", error);
    let back = Back { groups: groups.is_some() };
    if let Some(groups) = &groups {
        set_thread_groups(groups).map_err(failed)?;
    }
    set_thread_res_gid(None, Gid::from_raw(caller.gid), None).map_err(failed)?;
    set_thread_res_uid(None, Uid::from_raw(caller.uid), None).map_err(failed)?;
    let done = work();
    drop(back);
    done
}

/// The supplementary groups of the process that asks. The kernel tells only its number, and another process may have that
/// number by now, or in the namespace that `/proc` shows: groups count only of a process that has the user and the group
/// of the request, all from one look at it. Otherwise there are none, and the request has the rights of its group.
fn supplementary(caller: Caller) -> Vec<Gid> {
    // Zero is a process that this namespace does not have.
    if caller.pid == 0 || !is_own_proc() {
        return Vec::new();
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", caller.pid)).unwrap_or_default();
    groups_in(&status, caller).unwrap_or_default()
}

/// Whether `/proc` shows the numbers of this process's namespace: then this process has one number there.
fn is_own_proc() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    numbers(&status, "NSpid:").is_some_and(|numbers| numbers == [std::process::id()])
}

/// The groups in a `proc_pid_status(5)`, if the process has the caller's file-system user and group.
fn groups_in(status: &str, caller: Caller) -> Option<Vec<Gid>> {
    let (uids, gids) = (numbers(status, "Uid:")?, numbers(status, "Gid:")?);
    if uids.get(3) != Some(&caller.uid) || gids.get(3) != Some(&caller.gid) {
        return None;
    }
    Some(numbers(status, "Groups:")?.into_iter().map(Gid::from_raw).collect())
}

/// The numbers of a line.
fn numbers(status: &str, name: &str) -> Option<Vec<u32>> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_the_groups_that_the_kernel_tells() {
        let own = rustix::process::getgroups().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let caller = Caller { uid, gid: rustix::process::getegid().as_raw(), pid: std::process::id() };
        assert_eq!(supplementary(caller), own);
        assert!(supplementary(Caller { pid: 0, ..caller }).is_empty());
    }

    #[test]
    fn groups_of_a_process_that_is_not_the_callers_do_not_count() {
        let status = "Name:\tx\nUid:\t1000\t1000\t1000\t1000\nGid:\t100\t100\t100\t100\nGroups:\t4 27 100 \n";
        let caller = Caller { uid: 1000, gid: 100, pid: 7 };
        let raw = |groups: Vec<Gid>| groups.into_iter().map(Gid::as_raw).collect::<Vec<_>>();
        assert_eq!(groups_in(status, caller).map(raw), Some(vec![4, 27, 100]));
        // The number went to another user's process, or to one that took another group meanwhile.
        assert!(groups_in(status, Caller { uid: 1001, ..caller }).is_none());
        assert!(groups_in(status, Caller { gid: 101, ..caller }).is_none());
        let set_user = status.replace("Uid:\t1000\t1000\t1000\t1000", "Uid:\t1000\t0\t0\t0");
        assert!(groups_in(&set_user, caller).is_none());
        assert!(groups_in("", caller).is_none() && groups_in("Groups:\t27\n", caller).is_none());
    }

    #[test]
    fn what_root_makes_for_a_caller_belongs_to_the_caller() {
        use std::os::unix::fs::MetadataExt;
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: not root");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let caller = Caller { uid: 1234, gid: 5678, pid: std::process::id() };
        let path = folder.path().join("f");
        let made = as_caller(true, caller, Groups::Perhaps, || {
            std::fs::write(&path, "x").map_err(|error| Error::io("making", error))
        });
        made.unwrap();
        let metadata = std::fs::metadata(&path).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (1234, 5678));
        std::fs::write(folder.path().join("g"), "x").unwrap();
        assert_eq!(std::fs::metadata(folder.path().join("g")).unwrap().uid(), 0);
    }
}
