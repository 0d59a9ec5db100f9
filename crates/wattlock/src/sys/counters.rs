//! A block of counters: in a shared mapping of a file where one can be had, else on the heap.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use memmap2::{Advice, MmapOptions, MmapRaw};

/// Words that any thread, and any process that maps the same file, may read and write at any time.
pub(crate) enum Counters {
    /// Nobody else can see them.
    Private(Box<[AtomicU64]>),
    /// Shared with the processes that map the file.
    Shared {
        /// `words * 8` bytes of it.
        map: MmapRaw,
        /// The file's first page.
        first: MmapRaw,
        words: usize,
        /// Whether there is room for all of them, and nothing to provide.
        whole: bool,
    },
}

impl Counters {
    /// `words` zeroes on the heap.
    pub(crate) fn private(words: usize) -> Counters {
        // Zeroes that were not touched take no memory.
        let zeroes = Box::into_raw(vec![0_u64; words].into_boxed_slice());
        // SAFETY: `AtomicU64` has the size and bit validity of `u64`, and its alignment on 64-bit systems, which are the
        // only ones this builds for; the box was just taken apart.
        Counters::Private(unsafe { Box::from_raw(zeroes as *mut [AtomicU64]) })
    }

    /// The part of `file` from byte `offset` (a multiple of the page size), `words` long. The file is extended to that
    /// length and must never shrink; ours are created by this process under a name of its own. Room for the words is
    /// there where [`Counters::provide`] saw to it, and all of it where the kernel is older than that (Linux 5.14).
    pub(crate) fn shared(file: &File, offset: u64, words: usize) -> io::Result<Counters> {
        let end = offset + words as u64 * 8;
        if !may_have(end) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        file.set_len(end)?;
        let map = MmapOptions::new().offset(offset).len(words * 8).map_raw(file)?;
        let first = MmapOptions::new().len(4096).map_raw(file)?;
        let counters = Counters::Shared { map, first, words, whole: false };
        match counters.provide(0..words.min(1)) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => counters.whole(file, end),
            outcome => outcome.map(|()| counters),
        }
    }

    /// Room for everything up to the file's end, at once.
    fn whole(mut self, file: &File, end: u64) -> io::Result<Counters> {
        let end = libc::off_t::try_from(end).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the descriptor is open for as long as `file` is borrowed; the call touches no memory of ours.
        let error = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, end) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        if let Counters::Shared { whole, .. } = &mut self {
            *whole = true;
        }
        Ok(self)
    }

    /// Sees to it that there is room for these words: a page that a full file system cannot provide when it is first
    /// touched would end the process (SIGBUS). EINVAL where the kernel cannot say so beforehand.
    pub(crate) fn provide(&self, words: Range<usize>) -> io::Result<()> {
        match self {
            Counters::Private(_) | Counters::Shared { whole: true, .. } => Ok(()),
            Counters::Shared { map, .. } => {
                map.advise_range(Advice::PopulateWrite, words.start * 8, words.len() * 8)
            }
        }
    }

    /// Puts another first byte into the file, which has content: by a store, not by a call.
    pub(crate) fn mark(&self, byte: u8) {
        if let Counters::Shared { first, .. } = self {
            // SAFETY: one byte of a live mapping that is readable and writable, and that this process touches by atomic
            // access alone; the page has content, and so room.
            let first = unsafe { AtomicU8::from_ptr(first.as_mut_ptr()) };
            // What was counted before is there for a reader that sees it.
            first.store(byte, Ordering::Release);
        }
    }

    /// The words. Those that no room was provided for are not to be touched, not even read: that would take room, too.
    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        match self {
            Counters::Private(words) => words,
            // SAFETY: the mapping is `words * 8` bytes long (set in `shared`, the only place that builds this
            // variant), page-aligned and readable and writable, and lives as long as `self`. `AtomicU64` has the
            // layout of `u64`, every bit pattern is one, and concurrent access from other processes is what atomics
            // are for. A file that shrank, or has no room, would raise SIGBUS, not break memory safety.
            Counters::Shared { map, words, .. } => unsafe {
                std::slice::from_raw_parts(map.as_mut_ptr().cast::<AtomicU64>(), *words)
            },
        }
    }
}

/// Whether a file of this process may have so many bytes: beyond its limit (`ulimit -f`) the kernel ends the process
/// (SIGXFSZ), which is not ours.
pub(crate) fn may_have(bytes: u64) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for one such structure.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0;
    known && (limit.rlim_cur == libc::RLIM_INFINITY || bytes <= limit.rlim_cur)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn two_mappings_of_one_file_see_each_other() {
        let file = tempfile::tempfile().unwrap();
        let (one, two) =
            (Counters::shared(&file, 4096, 10).unwrap(), Counters::shared(&file, 4096, 10).unwrap());
        one.words()[9].store(7, Relaxed);
        assert_eq!(two.words()[9].load(Relaxed), 7);
    }

    #[test]
    fn room_is_there_before_anything_is_counted_and_no_more_than_that() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        let words = 100_000;
        let counters = Counters::shared(&file, 4096, words).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 4096 + words as u64 * 8);
        let room = || file.metadata().unwrap().blocks() * 512;
        if matches!(counters, Counters::Shared { whole: true, .. }) {
            return assert!(room() >= 8 * words as u64, "an old kernel: all of it, {} bytes", room());
        }
        assert!(room() <= 8192, "{} bytes", room());
        counters.provide(50_000..52_000).unwrap();
        let before = room();
        assert!((16_000..40_000).contains(&before), "{before} bytes");
        counters.words()[50_000..52_000].iter().for_each(|word| word.store(1, Relaxed));
        assert_eq!(room(), before);
        // As it is where the kernel cannot provide a part.
        let counters = counters.whole(&file, 4096 + words as u64 * 8).unwrap();
        assert!(room() >= 8 * words as u64, "{} bytes", room());
        counters.provide(90_000..99_000).unwrap();
    }

    #[test]
    fn file_that_cannot_be_extended_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("read-only");
        std::fs::write(&path, b"").unwrap();
        assert!(Counters::shared(&File::open(&path).unwrap(), 0, 13).is_err());
    }
}
