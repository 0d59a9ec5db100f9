//! Files below a folder, by one name at a time, never through a link (openat2(2)).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::Error;

/// Of what no other user needs to read.
pub(crate) const PRIVATE: Mode = Mode::from_raw_mode(0o600);
/// Of what everybody may read that may enter the folder: it is sealed, and nothing opens without it.
pub(crate) const SHARED: Mode = Mode::from_raw_mode(0o644);

/// Opens a name below a folder. A link in its place is an error (`ELOOP`), whatever it points to; so is something mounted
/// there (`EXDEV`), which no sync of the volume would reach.
pub(crate) fn open(
    folder: impl AsFd,
    name: impl Arg + Copy,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    loop {
        match rustix::fs::openat2(folder.as_fd(), name, flags, mode, resolve) {
            // Another program's rename while the kernel looked; names here have one component.
            Err(Errno::AGAIN | Errno::INTR) => {}
            // Kernels before 5.6: a single name that is not followed stays below the folder all the same.
            Err(Errno::NOSYS) => return rustix::fs::openat(folder.as_fd(), name, flags, mode),
            result => return result,
        }
    }
}

/// Opens a folder; one that may be entered and not read, without the right to list it.
pub(crate) fn folder(parent: impl AsFd, name: impl Arg + Copy) -> Result<OwnedFd, Errno> {
    match open(parent.as_fd(), name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
        Err(Errno::ACCESS) => open(parent, name, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()),
        result => result,
    }
}

/// The names in a folder, without `.` and `..`.
pub(crate) fn names(folder: impl AsFd) -> Result<Vec<OsString>, Error> {
    let failed = |error: Errno| Error::io("listing a folder", error);
    let mut names = Vec::new();
    for entry in Dir::read_from(folder.as_fd()).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name));
        }
    }
    Ok(names)
}

/// A regular file's content, at most `most` bytes; `None` if there is no file of that name.
pub(crate) fn content(
    folder: impl AsFd,
    name: impl AsRef<OsStr>,
    most: usize,
) -> Result<Option<Vec<u8>>, Error> {
    let name = name.as_ref();
    let shown = || wattlock_door::one_line(std::path::Path::new(name));
    let fd = match open(folder, name, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(Error::io("opening a file of the volume", error)),
    };
    let file = File::from(fd);
    let failed = |error| Error::io("reading a file of the volume", error);
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(Error::Damaged(format!("{} is not a regular file", shown())));
    }
    let mut content = Vec::new();
    file.take(most as u64 + 1).read_to_end(&mut content).map_err(failed)?;
    if content.len() > most {
        return Err(Error::Damaged(format!("{} is longer than it can be", shown())));
    }
    Ok(Some(content))
}

/// Whether an error of [`content`] says that something is there which is no file: a link, a socket.
pub(crate) fn is_no_file(error: &Error) -> bool {
    let Error::Io { source, .. } = error else { return false };
    matches!(Errno::from_io_error(source), Some(Errno::LOOP | Errno::NXIO))
}

/// Puts a file with this content in place of what has the name, durably: after a crash it is the one or the other.
pub(crate) fn replace(
    folder: impl AsFd,
    name: impl AsRef<OsStr>,
    content: &[u8],
    mode: Mode,
) -> Result<(), Error> {
    let (folder, name) = (folder.as_fd(), name.as_ref());
    let temporary = temporary("new")?;
    let failed = |error: Errno| Error::io("writing a file of the volume", error);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let mut file = File::from(open(folder, &*temporary, flags, mode).map_err(failed)?);
    let written = file
        .write_all(content)
        .and_then(|()| file.sync_all())
        .map_err(|error| Error::io("writing a file of the volume", error))
        .and_then(|()| rustix::fs::renameat(folder, &*temporary, folder, name).map_err(failed));
    if written.is_err() {
        let _ = rustix::fs::unlinkat(folder, &*temporary, AtFlags::empty());
        return written;
    }
    match rustix::fs::fsync(folder) {
        // A folder that may be entered and not read: its descriptor only names it.
        Err(Errno::BADF) => rustix::fs::syncfs(&file).map_err(failed),
        synced => synced.map_err(failed),
    }
}

/// A reserved name that nothing else has.
pub(crate) fn temporary(what: &str) -> Result<String, Error> {
    let mut random = [0; 8];
    crate::random(&mut random)?;
    Ok(format!("wattlock.{what}.{:016x}", u64::from_be_bytes(random)))
}

/// Whether a stored name is one of ours.
pub(crate) fn is_reserved(name: &OsStr) -> bool {
    name.as_bytes().starts_with(crate::volume::RESERVED.as_bytes())
}
