//! Where things lie to each other, and what is mounted at a place. By device and inode, and by what the system's table
//! of mounts says (`proc_pid_mountinfo(5)`), not by the text of a path.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// How a place lies to a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overlap {
    /// At the volume's folder, or in it.
    In,
    /// Above it.
    Above,
}

/// Whether a place and a volume's folder overlap, links and bind mounts resolved. A place that does not exist yet lies
/// where it would be made.
pub fn overlap(place: &Path, volume: &Path) -> Option<Overlap> {
    let volume = volume.canonicalize().ok()?;
    let exists = place.canonicalize().is_ok();
    let place = nearest(place)?;
    // A dead mount says nothing of itself.
    let inode = |path: &Path| path.symlink_metadata().ok().map(|stat| (stat.dev(), stat.ino()));
    let among = |inode_of: Option<(u64, u64)>, path: &Path| {
        inode_of.is_some() && path.ancestors().any(|path| inode(path) == inode_of)
    };
    let table = Mounts::read();
    let bound = match (table.inside(&place), table.inside(&volume)) {
        (Some((device, place)), Some((same, volume))) if device == same => {
            (place.starts_with(&volume), volume.starts_with(&place))
        }
        _ => (false, false),
    };
    if among(inode(&volume), &place) || bound.0 {
        return Some(Overlap::In);
    }
    (exists && (among(inode(&place), &volume) || bound.1)).then_some(Overlap::Above)
}

/// Whether a place is in the folder of some volume.
pub fn is_in_a_volume(place: &Path) -> bool {
    let holds = |above: &Path| above.join(wattlock_fs::volume::FILE).symlink_metadata().is_ok();
    nearest(place).is_some_and(|place| place.ancestors().any(holds))
}

/// The path of a place without links, or of the folder above it that exists.
fn nearest(place: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(place).ok()?;
    place.canonicalize().ok().or_else(|| absolute.ancestors().find_map(|above| above.canonicalize().ok()))
}

/// One mount of the system's table.
#[derive(Debug, Clone)]
pub struct Mount {
    pub id: u64,
    parent: u64,
    device: String,
    /// What of its file system it shows.
    root: PathBuf,
    pub point: PathBuf,
    pub kind: String,
    source: PathBuf,
}

impl Mount {
    /// Whether `wattlock mount` made it.
    pub fn is_ours(&self) -> bool {
        self.kind == "fuse.wattlock"
    }
}

/// The system's table of mounts.
pub struct Mounts(Vec<Mount>);

impl Mounts {
    pub fn read() -> Mounts {
        let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        Mounts(table.split(|byte| *byte == b'\n').filter_map(parse).collect())
    }

    /// The mount with this number.
    pub fn with_id(&self, id: u64) -> Option<&Mount> {
        self.0.iter().find(|mount| mount.id == id)
    }

    /// Of all that are mounted at a place, those that are ours.
    pub fn ours_at(&self, point: &Path) -> bool {
        self.0.iter().any(|mount| mount.is_ours() && mount.point == point)
    }

    /// What lies over a mount, at the same place.
    pub fn over(&self, mount: &Mount) -> Option<&Mount> {
        self.0.iter().find(|other| other.parent == mount.id && other.point == mount.point)
    }

    /// What is mounted in a mount.
    pub fn within(&self, mount: &Mount) -> Option<&Mount> {
        self.0.iter().find(|other| other.parent == mount.id && other.id != mount.id)
    }

    /// Where the volume is mounted in whose folder a place lies. The folder itself is not looked at: its file system may
    /// be dead.
    pub fn holding(&self, place: &Path) -> Option<&Path> {
        let (device, place) = self.inside(&place.canonicalize().ok()?)?;
        let holds = |mount: &&Mount| {
            let beneath = self.0.iter().filter(|other| mount.source.starts_with(&other.point));
            let Some(on) = beneath.max_by_key(|other| other.point.as_os_str().len()) else { return false };
            let below = mount.source.strip_prefix(&on.point).unwrap_or(&mount.source);
            on.device == device && place.starts_with(on.root.join(below))
        };
        self.0.iter().filter(|mount| mount.is_ours()).find(holds).map(|mount| &*mount.point)
    }

    /// Where volumes are mounted.
    pub fn ours(&self) -> impl Iterator<Item = PathBuf> {
        self.0.iter().filter(|mount| mount.is_ours()).map(|mount| mount.point.clone())
    }

    /// Where a volume is mounted.
    pub fn of_volume(&self, volume: &Path) -> Option<PathBuf> {
        // As it is written into the table.
        let source = volume.to_string_lossy().replace([',', '\\'], "_");
        let found = self.0.iter().find(|mount| mount.is_ours() && mount.source == Path::new(&source));
        found.map(|mount| mount.point.clone())
    }

    /// The device of a path, and where on it the path lies, whatever shows it.
    fn inside(&self, path: &Path) -> Option<(String, PathBuf)> {
        let mount = self.with_id(number(&pinned(path).ok()?)?)?;
        let below = path.strip_prefix(&mount.point).ok()?;
        Some((mount.device.clone(), mount.root.join(below)))
    }
}

fn parse(line: &[u8]) -> Option<Mount> {
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let text = |at: usize| words.get(at).map(|word| String::from_utf8_lossy(word).into_owned());
    let path = |at: usize| words.get(at).map(|word| PathBuf::from(OsString::from_vec(unescaped(word))));
    let behind = words.iter().position(|word| *word == b"-")?;
    Some(Mount {
        id: text(0)?.parse().ok()?,
        parent: text(1)?.parse().ok()?,
        device: text(2)?,
        root: path(3)?,
        point: path(4)?,
        kind: text(behind + 1)?,
        source: path(behind + 2)?,
    })
}

/// Blanks, line feeds and backslashes are octal numbers in the table.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let (mut bytes, mut at) = (Vec::new(), 0);
    while at < word.len() {
        let octal = word.get(at + 1..at + 4).filter(|_| word[at] == b'\\');
        let octal = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(octal.unwrap_or(word[at]));
        at += if octal.is_some() { 4 } else { 1 };
    }
    bytes
}

/// A descriptor that names a place, links followed. What is mounted there is asked nothing: a dead mount is named, too.
pub fn pinned(path: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// The path by which the system knows what a descriptor names.
pub fn path_of(place: &OwnedFd) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", place.as_raw_fd())).ok()
}

/// The number of the mount that a descriptor is on.
pub fn number(place: &OwnedFd) -> Option<u64> {
    let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", place.as_raw_fd())).ok()?;
    about.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table_is_read_with_its_blanks() {
        let line = b"32 31 0:43 /sub /m\\040x rw,nosuid shared:3 - fuse.wattlock /w\\134\\011y rw";
        let mount = parse(line).unwrap();
        assert_eq!((mount.id, mount.parent, &*mount.device), (32, 31, "0:43"));
        assert_eq!((mount.root.as_path(), mount.point.as_path()), (Path::new("/sub"), Path::new("/m x")));
        assert!(mount.is_ours() && mount.source == Path::new("/w\\\ty"));
        assert!(parse(b"32 31 0:43 / /m rw").is_none());
        assert_eq!(unescaped(b"\\04"), b"\\04");
    }

    #[test]
    fn places_overlap_by_what_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("top/vol/in")).unwrap();
        std::fs::create_dir(at("beside")).unwrap();
        std::os::unix::fs::symlink("top/vol/in", at("link")).unwrap();
        let to_volume = |place: &str| overlap(&at(place), &at("top/vol"));
        for place in ["top/vol", "top/vol/in", "link", "top/vol/in/../in", "link/to/be/made"] {
            assert_eq!(to_volume(place), Some(Overlap::In), "{place}");
        }
        for place in ["top", "", "top/vol/.."] {
            assert_eq!(to_volume(place), Some(Overlap::Above), "{place}");
        }
        for place in ["beside", "beside/new", "top/volume"] {
            assert_eq!(to_volume(place), None, "{place}");
        }
        assert_eq!(overlap(&at("beside"), &at("none")), None);
        std::fs::write(at("top/vol/wattlock.fs"), "").unwrap();
        assert!(is_in_a_volume(&at("link/new")) && is_in_a_volume(&at("top/vol")));
        assert!(!is_in_a_volume(&at("top")) && !is_in_a_volume(&at("beside/new")));
    }
}
