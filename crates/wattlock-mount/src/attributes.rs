//! Extended attributes of what a path names, never through a link that another user planted. A path of the form
//! `/proc/self/fd/N` names what the descriptor names; any other is not followed at its end.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::XattrFlags;
use rustix::io::{Errno, Result};

/// `XATTR_SIZE_MAX` and `XATTR_LIST_MAX`.
const MOST: usize = 1 << 16;

/// Whether a path is a descriptor itself: then its end is to be followed.
fn is_descriptor(path: &OsStr) -> bool {
    let number = path.as_bytes().strip_prefix(b"/proc/self/fd/");
    number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

/// Sets one.
///
/// # Errors
/// The system's.
pub fn set(path: &OsStr, name: &OsStr, value: &[u8], flags: XattrFlags) -> Result<()> {
    match is_descriptor(path) {
        true => rustix::fs::setxattr(path, name, value, flags),
        false => rustix::fs::lsetxattr(path, name, value, flags),
    }
}

/// Removes one.
///
/// # Errors
/// The system's.
pub fn remove(path: &OsStr, name: &OsStr) -> Result<()> {
    match is_descriptor(path) {
        true => rustix::fs::removexattr(path, name),
        false => rustix::fs::lremovexattr(path, name),
    }
}

/// One's value.
///
/// # Errors
/// The system's.
pub fn get(path: &OsStr, name: &OsStr) -> Result<Vec<u8>> {
    whole(|to| match is_descriptor(path) {
        true => rustix::fs::getxattr(path, name, to),
        false => rustix::fs::lgetxattr(path, name, to),
    })
}

/// All names.
///
/// # Errors
/// The system's.
pub fn list(path: &OsStr) -> Result<Vec<Vec<u8>>> {
    let names = whole(|to| match is_descriptor(path) {
        true => rustix::fs::listxattr(path, to),
        false => rustix::fs::llistxattr(path, to),
    })?;
    Ok(names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
}

/// First tries a size that nearly always does, then the most that Linux allows for a value and for a list of names.
fn whole(read: impl Fn(&mut [u8]) -> Result<usize>) -> Result<Vec<u8>> {
    let mut value = vec![0; 256];
    let len = match read(&mut value) {
        Err(Errno::RANGE) => {
            value.resize(MOST, 0);
            read(&mut value)?
        }
        other => other?,
    };
    value.truncate(len);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_descriptor_is_followed_and_a_link_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        std::fs::write(&file, "").unwrap();
        let name = OsStr::new("user.x");
        if set(file.as_os_str(), name, &[7; 3000], XattrFlags::empty()) == Err(Errno::OPNOTSUPP) {
            eprintln!("skipped: no extended attributes in {}", folder.path().display());
            return;
        }
        let link = folder.path().join("l");
        std::os::unix::fs::symlink("f", &link).unwrap();
        assert!(get(link.as_os_str(), name).is_err());
        assert_eq!(get(file.as_os_str(), name).unwrap(), [7; 3000]);
        let opened = std::fs::File::open(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let path = format!("/proc/self/fd/{}", opened.as_raw_fd());
        assert_eq!(get(path.as_ref(), name).unwrap(), [7; 3000]);
        assert_eq!(list(path.as_ref()).unwrap(), [b"user.x"]);
        remove(path.as_ref(), name).unwrap();
        assert!(list(path.as_ref()).unwrap().is_empty());
    }
}
