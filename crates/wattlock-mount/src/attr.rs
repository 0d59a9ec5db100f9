//! Attributes in the system's words and in FUSE's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, INodeNo, TimeOrNow};
use rustix::fs::{FileType, Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

/// FUSE's type of a file.
pub fn kind(kind: FileType) -> fuser::FileType {
    match kind {
        FileType::Directory => fuser::FileType::Directory,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::Socket => fuser::FileType::Socket,
        FileType::CharacterDevice => fuser::FileType::CharDevice,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
        _ => fuser::FileType::RegularFile,
    }
}

/// Times that set nothing.
pub fn unchanged() -> Timestamps {
    let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    Timestamps { last_access: omit, last_modification: omit }
}

/// Attributes of an inode whose content has `size` bytes.
pub fn attributes(number: u64, size: u64, stat: &Stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        size,
        blocks: stat.st_blocks as u64,
        atime: time(stat.st_atime, stat.st_atime_nsec as u32),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec as u32),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec as u32),
        crtime: UNIX_EPOCH,
        kind: kind(FileType::from_raw_mode(stat.st_mode)),
        perm: (stat.st_mode & 0o7777) as u16,
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: device_to_fuse(stat.st_rdev),
        blksize: 4096,
        flags: 0,
    }
}

/// A time of the system's in FUSE's words.
pub fn shown(at: &Timespec) -> SystemTime {
    time(at.tv_sec, at.tv_nsec as u32)
}

fn time(seconds: i64, nanos: u32) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base = if seconds >= 0 { UNIX_EPOCH.checked_add(whole) } else { UNIX_EPOCH.checked_sub(whole) };
    base.unwrap_or(UNIX_EPOCH) + Duration::from_nanos(u64::from(nanos))
}

/// A time to set. `fuser` makes of a time before 1970 one that lies twice its nanoseconds too early; this undoes it.
pub fn to_set(time: Option<TimeOrNow>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(TimeOrNow::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(TimeOrNow::SpecificTime(time)) => match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Timespec { tv_sec: since.as_secs() as i64, tv_nsec: since.subsec_nanos().into() },
            Err(before) => {
                let before = before.duration();
                Timespec { tv_sec: -(before.as_secs() as i64), tv_nsec: before.subsec_nanos().into() }
            }
        },
    }
}

/// A device number as FUSE writes it: 12 bits of major and 20 of minor number.
fn device_to_fuse(device: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// A device number as the system writes it.
pub fn device_from_fuse(device: u32) -> u64 {
    let (major, minor) = ((device & 0xfff00) >> 8, (device & 0xff) | ((device >> 12) & 0xfff00));
    rustix::fs::makedev(major, minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive() {
        for (major, minor) in [(1, 3), (0xfff, 0xfffff), (8, 257), (259, 0)] {
            let device = rustix::fs::makedev(major, minor);
            assert_eq!(device_from_fuse(device_to_fuse(device)), device, "{major}:{minor}");
        }
    }

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        let shown = time(-2, 800_000_000);
        let before = UNIX_EPOCH.duration_since(shown).unwrap();
        assert_eq!(before, Duration::from_millis(1200));
        // As fuser hands over (-2 s, 800,000,000 ns).
        let handed = UNIX_EPOCH - Duration::new(2, 800_000_000);
        let set = to_set(Some(TimeOrNow::SpecificTime(handed)));
        assert_eq!((set.tv_sec, set.tv_nsec), (-2, 800_000_000));
        let set = to_set(Some(TimeOrNow::SpecificTime(UNIX_EPOCH + Duration::new(5, 7))));
        assert_eq!((set.tv_sec, set.tv_nsec), (5, 7));
    }
}
