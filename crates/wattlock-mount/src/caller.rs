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
    within(caller, Some(supplementary(caller.pid)), &mut work)
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

/// The supplementary groups of a process, as the kernel tells them; none if it is gone.
fn supplementary(pid: u32) -> Vec<Gid> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_whitespace().filter_map(|group| group.parse().ok()).map(Gid::from_raw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_the_groups_that_the_kernel_tells() {
        let own = rustix::process::getgroups().unwrap();
        assert_eq!(supplementary(std::process::id()), own);
        assert!(supplementary(0).is_empty());
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
