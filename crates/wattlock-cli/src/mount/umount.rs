//! `wattlock umount`: of what `wattlock mount` mounted, and of nothing else.
//!
//! Between the look at what is mounted at a place and the unmounting another process may put something over it. Root
//! therefore unmounts in two steps (`MNT_EXPIRE` of umount(2)): the first marks the mount on top, the second takes only
//! a mount that is marked, and in between the table says that the mount is still the one that was looked at. With
//! `--lazy` the mount is named by a descriptor. An ordinary user's unmounting is `fusermount3`'s, which takes only that
//! user's own FUSE mounts, by path.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use wattlock_door::one_line;
use wattlock_mount::control;

use super::place::{self, Mount, Mounts};
use super::{LOOK, refusal};

/// How long a mount's process may take to finish after it was unmounted.
const FINISH: Duration = Duration::from_secs(120);

/// How long a place may be in use before its unmounting is refused: programs that look at every mount hold each for a
/// moment.
const PATIENCE: Duration = Duration::from_secs(1);

/// Unmount a volume
#[derive(Debug, Args)]
pub struct Umount {
    /// Where the volume is mounted
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,
    /// Take it out of sight even if it is in use; it is served until it is closed
    #[arg(long)]
    lazy: bool,
}

/// Runs `wattlock umount`.
pub fn umount(command: &Umount) -> Result<()> {
    let shown = one_line(&command.mountpoint);
    let (pinned, mount) = look(&command.mountpoint).map_err(|why| refusal(90, &format!("{shown}: {why}")))?;
    // Taken out of sight, it would take that with it.
    if let Some(inner) = Mounts::read().within(&mount) {
        let (kind, point) = (&inner.kind, one_line(&inner.point));
        return Err(refusal(89, &format!("{shown}: in use: {kind} is mounted in it, at {point}")));
    }
    let socket = control::path(&mount.point).ok().and_then(|path| Some((pinned_socket(&path)?, path)));
    let alive = control::is_served(&mount.point);
    let unmounted = match command.lazy {
        true => detach(&pinned, &mount),
        false => {
            // A descriptor of it is a use of it.
            drop(pinned);
            expire(&mount)
        }
    };
    if let Err(error) = unmounted {
        let in_use = "in use: a program has a file or its working folder there; --lazy takes it out of sight";
        return Err(match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::INVAL) => refusal(90, &format!("{shown}: not mounted any longer")),
            _ if wattlock_mount::is_busy(&error) => refusal(89, &format!("{shown}: {in_use}")),
            Some(Errno::NOENT) => refusal(
                89,
                &format!(
                    "{shown}: unmounting takes root, or fusermount3 (package fuse3) if this user mounted it"
                ),
            ),
            _ => refusal(89, &format!("{shown}: {error}")),
        });
    }
    // The process brings everything into place and gives the volume back, then takes its socket away. The socket of
    // another mount at this place, which came meanwhile, is not waited for.
    let begun = Instant::now();
    while let (Some((its, socket)), true, false) = (&socket, alive, command.lazy) {
        if inode(socket) != Some(its.1) || begun.elapsed() > FINISH {
            break;
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Device and inode number of what is there.
fn inode(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    path.symlink_metadata().ok().map(|there| (there.dev(), there.ino()))
}

/// The same, with a descriptor that keeps its number from being given to another one.
fn pinned_socket(path: &Path) -> Option<(OwnedFd, (u64, u64))> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let socket = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let inode = crate::fs::inode_of(&socket)?;
    Some((socket, inode))
}

/// The mount that is on top at a place, if it is ours; else why not.
fn look(place: &Path) -> Result<(OwnedFd, Mount), String> {
    let pinned = place::pinned(place).map_err(|error| match error {
        Errno::NOENT | Errno::NOTDIR => "not mounted: there is nothing of that name".to_owned(),
        error => format!("not mounted, as far as this user sees: {}", io::Error::from(error).kind()),
    })?;
    let table = Mounts::read();
    let known = place::number(&pinned).and_then(|id| table.with_id(id)).zip(place::path_of(&pinned));
    let (mount, path) = known.ok_or("not mounted, as far as /proc tells")?;
    if mount.point != path {
        return Err(match mount.is_ours() {
            true => format!("not mounted: it is in the volume that is mounted at {}", one_line(&mount.point)),
            false => "not mounted".to_owned(),
        });
    }
    match (mount.is_ours(), table.ours_at(&path)) {
        (true, _) => Ok((pinned, mount.clone())),
        (false, true) => Err(format!(
            "{} lies over the volume that is mounted there: `umount {}` takes that away first",
            mount.kind,
            one_line(&path)
        )),
        (false, false) => Err(format!("not mounted by wattlock: what is there is {}", mount.kind)),
    }
}

/// Takes a mount out of sight.
fn detach(pinned: &OwnedFd, mount: &Mount) -> io::Result<()> {
    match unmount(format!("/proc/self/fd/{}", pinned.as_raw_fd()), UnmountFlags::DETACH) {
        Err(Errno::PERM) => wattlock_mount::unmount(&mount.point, true),
        done => Ok(done?),
    }
}

/// Unmounts exactly this mount, once nothing uses it.
fn expire(mount: &Mount) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        match unmount(&mount.point, UnmountFlags::EXPIRE | UnmountFlags::NOFOLLOW) {
            Err(Errno::PERM) => return wattlock_mount::unmount_patiently(&mount.point),
            // It is marked now, and any use of it takes the mark away.
            Err(Errno::AGAIN) if begun.elapsed() < PATIENCE => {
                let table = Mounts::read();
                if table.with_id(mount.id).is_none() || table.over(mount).is_some() {
                    return Err(Errno::INVAL.into());
                }
            }
            Err(Errno::BUSY) if begun.elapsed() < PATIENCE => std::thread::sleep(LOOK),
            Err(Errno::AGAIN) => return Err(Errno::BUSY.into()),
            done => return Ok(done?),
        }
    }
}
