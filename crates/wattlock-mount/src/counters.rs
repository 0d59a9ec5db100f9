//! What the door was asked for, by operation, and by size for reads and writes.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

/// Operations that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Op {
    /// Reading content.
    Read,
    /// Writing content.
    Write,
    /// Looking a name up.
    Lookup,
    /// Making an entry.
    Make,
    /// Opening a file.
    Open,
    /// Renaming and removing.
    Remove,
    /// Attributes, extended ones too.
    Attributes,
    /// Listing a folder.
    List,
    /// Making durable.
    Sync,
    /// Everything else.
    Other,
}

/// Their names, in order.
const NAMES: [&str; 10] =
    ["read", "write", "lookup", "make", "open", "remove", "attributes", "list", "sync", "other"];

/// Answers that POSIX programs ask for and expect: that a name or an attribute is not there, that something is, that
/// something may not be done. All others (`EIO`, `ENOSPC`, `EMFILE`, ...) are failures.
const EXPECTED: [Errno; 26] = [
    Errno::NOENT,
    // The kernel walks the path once more.
    Errno::STALE,
    Errno::NODATA,
    Errno::EXIST,
    Errno::NOTEMPTY,
    Errno::NOTDIR,
    Errno::ISDIR,
    Errno::ACCESS,
    Errno::PERM,
    Errno::INVAL,
    Errno::NAMETOOLONG,
    Errno::LOOP,
    Errno::XDEV,
    Errno::RANGE,
    Errno::TOOBIG,
    Errno::FBIG,
    Errno::MLINK,
    Errno::BUSY,
    Errno::TXTBSY,
    Errno::BADF,
    Errno::NXIO,
    Errno::OPNOTSUPP,
    Errno::NOSYS,
    Errno::NOTTY,
    Errno::AGAIN,
    Errno::INTR,
];

/// Sizes are counted by power of two up to this many bytes.
const CLASSES: usize = 22;

/// Counters of one mount. Only ever added to.
#[derive(Debug, Default)]
pub struct Counters {
    ops: [AtomicU64; NAMES.len()],
    refused: AtomicU64,
    failed: AtomicU64,
    bytes: [AtomicU64; 2],
    sizes: [[AtomicU64; CLASSES]; 2],
}

impl Counters {
    pub(crate) fn op(&self, op: Op) {
        self.ops[op as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self, write: bool, bytes: usize) {
        let at = usize::from(write);
        self.bytes[at].fetch_add(bytes as u64, Ordering::Relaxed);
        let class = bytes.max(1).next_power_of_two().trailing_zeros() as usize;
        self.sizes[at][class.min(CLASSES - 1)].fetch_add(1, Ordering::Relaxed);
    }

    /// A request was answered with an errno.
    pub(crate) fn error(&self, errno: i32) {
        let expected = EXPECTED.iter().any(|known| known.raw_os_error() == errno);
        let count = if expected { &self.refused } else { &self.failed };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// All requests so far.
    pub fn total(&self) -> u64 {
        self.ops.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Requests that change content so far.
    pub fn changes(&self) -> u64 {
        let of = |op: Op| self.ops[op as usize].load(Ordering::Relaxed);
        of(Op::Write) + of(Op::Make) + of(Op::Remove) + of(Op::Sync) + of(Op::Attributes)
    }

    /// Lines for a person: operations and their numbers, bytes, requests by size.
    pub fn lines(&self) -> Vec<String> {
        let ops = NAMES.iter().zip(&self.ops).map(|(name, count)| (name, count.load(Ordering::Relaxed)));
        let ops: Vec<String> =
            ops.filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}")).collect();
        let mut lines = vec![format!("requests {}", ops.join(" "))];
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        lines.push(format!(
            "refused {} (no such name, no such attribute, no permission, ...)",
            of(&self.refused)
        ));
        lines.push(format!("failed {}", of(&self.failed)));
        for (at, name) in ["read", "written"].iter().enumerate() {
            let sizes = self.sizes[at].iter().enumerate();
            let sizes = by_size(sizes.map(|(class, count)| (class, count.load(Ordering::Relaxed))));
            let bytes = self.bytes[at].load(Ordering::Relaxed);
            let sizes = if sizes.is_empty() { sizes } else { format!(", requests up to {sizes}") };
            lines.push(format!("{name} {bytes} bytes{sizes}"));
        }
        lines
    }
}

/// Counts by the power of two that sizes are not above, for people: `4 KiB: 3, 1 MiB: 12`.
pub(crate) fn by_size(counts: impl Iterator<Item = (usize, u64)>) -> String {
    let shown = |(class, count): (usize, u64)| {
        let unit = ["B", "KiB", "MiB", "GiB"][class / 10];
        format!("{} {unit}: {count}", 1_u64 << (class % 10))
    };
    counts.filter(|(_, count)| *count > 0).map(shown).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_come_out_as_they_went_in() {
        let counters = Counters::default();
        counters.op(Op::Write);
        counters.op(Op::Write);
        counters.bytes(true, 4096);
        counters.bytes(true, 4097);
        counters.bytes(true, 1 << 30);
        assert_eq!(counters.total(), 2);
        let lines = counters.lines();
        assert_eq!(lines[0], "requests write 2");
        assert_eq!(lines[3], "read 0 bytes");
        assert!(lines[4].ends_with("requests up to 4 KiB: 1, 8 KiB: 1, 2 MiB: 1"), "{}", lines[4]);
    }

    #[test]
    fn an_answer_that_programs_expect_is_no_failure() {
        let counters = Counters::default();
        for errno in [Errno::NOENT, Errno::NODATA, Errno::EXIST, Errno::ACCESS] {
            counters.error(errno.raw_os_error());
        }
        for errno in [Errno::IO, Errno::NOSPC, Errno::MFILE] {
            counters.error(errno.raw_os_error());
        }
        let lines = counters.lines();
        assert!(lines[1].starts_with("refused 4 "), "{lines:?}");
        assert_eq!(lines[2], "failed 3");
    }
}
