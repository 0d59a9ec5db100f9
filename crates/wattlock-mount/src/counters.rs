//! What the door was asked for, by operation, and by size for reads and writes.

use std::collections::BTreeMap;
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

/// A mount's counters, read from the lines of its answer: what [`Counters::lines`] writes, and the line of the process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// The process that serves the mount.
    pub pid: Option<u32>,
    /// Requests by operation: those that occurred.
    pub operations: BTreeMap<String, u64>,
    /// Requests answered with an expected refusal.
    pub refused: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
}

impl Counts {
    /// The counts in an answer; lines that it does not know are passed over.
    pub fn told(lines: &[String]) -> Counts {
        let mut counts = Counts::default();
        for line in lines {
            let mut words = line.split_whitespace();
            let what = words.next();
            if what == Some("requests") {
                let words: Vec<&str> = words.collect();
                let pairs = words.as_chunks::<2>().0.iter();
                let pair = |[name, count]: &[&str; 2]| Some(((*name).to_owned(), count.parse().ok()?));
                counts.operations = pairs.filter_map(pair).collect();
                continue;
            }
            let Some(number) = words.next().and_then(|word| word.trim_end_matches(',').parse().ok()) else {
                continue;
            };
            match what {
                Some("process") => counts.pid = u32::try_from(number).ok(),
                Some("refused") => counts.refused = number,
                Some("failed") => counts.failed = number,
                Some("read") => counts.read = number,
                Some("written") => counts.written = number,
                _ => {}
            }
        }
        counts
    }

    /// What was counted since an earlier answer of the same mount; `None` if it is another's.
    pub fn since(&self, then: &Counts) -> Option<Counts> {
        if self.pid != then.pid {
            return None;
        }
        let mut operations = self.operations.clone();
        for (name, had) in &then.operations {
            let count = operations.get_mut(name)?;
            *count = count.checked_sub(*had)?;
        }
        Some(Counts {
            pid: self.pid,
            operations,
            refused: self.refused.checked_sub(then.refused)?,
            failed: self.failed.checked_sub(then.failed)?,
            read: self.read.checked_sub(then.read)?,
            written: self.written.checked_sub(then.written)?,
        })
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
    fn an_answer_is_read_as_it_was_written() {
        let counters = Counters::default();
        counters.op(Op::Write);
        counters.op(Op::Write);
        counters.op(Op::List);
        counters.bytes(true, 4096);
        counters.bytes(false, 5);
        counters.error(Errno::NOENT.raw_os_error());
        counters.error(Errno::IO.raw_os_error());
        let mut lines = counters.lines();
        lines.insert(0, "process 12, for 3 s".to_owned());
        lines.push("  instruction in flight 0".to_owned());
        let told = Counts::told(&lines);
        let operations = [("write".to_owned(), 2), ("list".to_owned(), 1)].into();
        let (pid, refused, failed, read, written) = (Some(12), 1, 1, 5, 4096);
        assert_eq!(told, Counts { pid, operations, refused, failed, read, written });
        counters.op(Op::Read);
        let mut later = counters.lines();
        later.insert(0, lines[0].clone());
        let later = Counts::told(&later);
        assert_eq!(later.since(&told).unwrap().operations["read"], 1);
        assert_eq!(told.since(&later), None, "a count that falls is another mount's");
        assert_eq!(Counts::told(&["read x bytes".into(), "requests read".into()]), Counts::default());
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
