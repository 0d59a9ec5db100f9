//! Whether a descriptor names what this copy looked at, or what it made. A folder in which another user may rename has
//! something else under a name at any moment.

use std::os::fd::BorrowedFd;
use std::path::Path;

use anyhow::Result;
use rustix::fs::{FileType, Timestamps};
use wattlock_fs::Error;

use super::side::Seen;
use crate::fs::world::about;

/// File systems that give all entries an owner of their own choice: FAT, exFAT, NTFS (FUSE's too), CIFS, SMB.
const OWNERLESS: [u32; 7] =
    [0x4d44, 0x2011_bab0, 0x5346_544e, 0x7366_746e, 0x6573_5546, 0xff53_4d42, 0xfe53_4d42];
const NFS: u32 = 0x6969;
/// Whom an NFS server takes root for.
const SQUASHED: u32 = 65534;

/// What an entry is now that it is open; an error if it is not the one that was looked at.
pub fn still(fd: BorrowedFd<'_>, seen: &Seen, path: &Path) -> Result<Seen> {
    let now = Seen::of(fd).map_err(|error| about(path, error))?;
    match (now.kind, now.inode) == (seen.kind, seen.inode) {
        // Opening a file of a volume reads its header, and so changes when it was read last; and its time may be another than
        // its backing file's. Whether it has changed since is looked for at the end.
        true => {
            let times = match seen.kind {
                FileType::RegularFile => seen.times.clone(),
                _ => Timestamps { last_access: seen.times.last_access, ..now.times },
            };
            Ok(Seen { size: seen.size, times, ..now })
        }
        false => Err(another(path)),
    }
}

/// An error if an entry, which was made a moment ago like another one, is not what this user made: only that is given
/// an owner and a mode.
pub fn ours(fd: BorrowedFd<'_>, dir: BorrowedFd<'_>, like: &Seen, path: &Path) -> Result<()> {
    let failed = |error: Error| about(path, error);
    let (made, dir_seen) = (Seen::of(fd).map_err(failed)?, Seen::of(dir).map_err(failed)?);
    // A folder without folders has two names, or one.
    let names = if like.kind == FileType::Directory { 2 } else { 1 };
    // Of what is no folder, overlayfs may tell another device.
    let near = like.kind != FileType::Directory || made.inode.0 == dir_seen.inode.0;
    let same = made.kind == like.kind && near && made.links <= names;
    let device = match like.kind {
        FileType::BlockDevice | FileType::CharacterDevice => made.device == like.device,
        _ => true,
    };
    match same && device && (is_own(made.owner.0) || has_no_owners(dir, made.owner.0)) {
        true => Ok(()),
        false => Err(another(path)),
    }
}

fn is_own(owner: u32) -> bool {
    rustix::process::geteuid().as_raw() == owner
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the numbers have 32 bits")]
#[allow(clippy::unnecessary_cast, reason = "the field's type differs between architectures")]
fn has_no_owners(dir: BorrowedFd<'_>, owner: u32) -> bool {
    rustix::fs::fstatfs(dir).is_ok_and(|system| match system.f_type as u32 {
        NFS => owner == SQUASHED,
        kind => OWNERLESS.contains(&kind),
    })
}

/// The error of an entry that became another one.
pub fn another(path: &Path) -> anyhow::Error {
    let why = "another program has put something else in its place meanwhile";
    about(path, Error::io("an entry", std::io::Error::other(why)))
}
