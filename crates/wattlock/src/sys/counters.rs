//! A block of counters: in a shared mapping of a file where one can be had, else on the heap.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicU64;

use memmap2::{MmapOptions, MmapRaw};

/// Words that any thread, and any process that maps the same file, may read and write at any time.
pub(crate) enum Counters {
    /// Nobody else can see them.
    Private(Box<[AtomicU64]>),
    /// Shared with whoever maps the file.
    Shared(MmapRaw, usize),
}

impl Counters {
    /// `words` zeroes on the heap.
    pub(crate) fn private(words: usize) -> Counters {
        Counters::Private((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    /// The part of `file` from byte `offset` (a multiple of the page size), `words` long. The file is extended to that
    /// length with room that is really there: a page that a full file system cannot provide when it is first touched
    /// would end the process (SIGBUS). It must never shrink; ours are created by this process under a name of its own.
    pub(crate) fn shared(file: &File, offset: u64, words: usize) -> io::Result<Counters> {
        let too_long = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let end = libc::off_t::try_from(offset + words as u64 * 8).map_err(too_long)?;
        // SAFETY: the descriptor is open for as long as `file` is borrowed; the call touches no memory of ours.
        let error = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, end) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        let map = MmapOptions::new().offset(offset).len(words * 8).map_raw(file)?;
        Ok(Counters::Shared(map, words))
    }

    /// The words.
    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        match self {
            Counters::Private(words) => words,
            // SAFETY: the mapping is `words * 8` bytes long (set in `shared`, the only place that builds this
            // variant), page-aligned and readable and writable, and lives as long as `self`. `AtomicU64` has the
            // layout of `u64`, every bit pattern is one, and concurrent access from other processes is what atomics
            // are for. A file that shrank would raise SIGBUS, not break memory safety.
            Counters::Shared(map, words) => unsafe {
                std::slice::from_raw_parts(map.as_mut_ptr().cast::<AtomicU64>(), *words)
            },
        }
    }
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
    fn all_room_is_there_before_anything_is_counted() {
        let file = tempfile::tempfile().unwrap();
        let words = 100_000;
        Counters::shared(&file, 4096, words).unwrap();
        let metadata = file.metadata().unwrap();
        assert_eq!(metadata.len(), 4096 + words as u64 * 8);
        assert!(metadata.blocks() * 512 >= metadata.len(), "{} blocks", metadata.blocks());
    }

    #[test]
    fn file_that_cannot_be_extended_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("read-only");
        std::fs::write(&path, b"").unwrap();
        assert!(Counters::shared(&File::open(&path).unwrap(), 0, 13).is_err());
    }
}
