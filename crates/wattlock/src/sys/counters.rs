//! A block of counters: in a shared mapping of a file where one can be had, else on the heap.

use std::fs::File;
use std::io;
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

    /// The part of `file` from byte `offset` (a multiple of the page size), `words` long. The file must already have
    /// that length and must never shrink; ours are created by this process under a name of its own.
    pub(crate) fn shared(file: &File, offset: u64, words: usize) -> io::Result<Counters> {
        if file.metadata()?.len() < offset + words as u64 * 8 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "counter file too short"));
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
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn two_mappings_of_one_file_see_each_other() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096 + 80).unwrap();
        let (one, two) =
            (Counters::shared(&file, 4096, 10).unwrap(), Counters::shared(&file, 4096, 10).unwrap());
        one.words()[9].store(7, Relaxed);
        assert_eq!(two.words()[9].load(Relaxed), 7);
    }

    #[test]
    fn short_file_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(100).unwrap();
        assert!(Counters::shared(&file, 0, 13).is_err());
    }
}
