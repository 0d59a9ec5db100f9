//! What the door was asked for, by operation, and by size for reads and writes.

use std::sync::atomic::{AtomicU64, Ordering};

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

/// Sizes are counted by power of two up to this many bytes.
const CLASSES: usize = 22;

/// Counters of one mount. Only ever added to.
#[derive(Debug, Default)]
pub struct Counters {
    ops: [AtomicU64; NAMES.len()],
    errors: AtomicU64,
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

    pub(crate) fn error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
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
        lines.push(format!("errors {}", self.errors.load(Ordering::Relaxed)));
        for (at, name) in ["read", "written"].iter().enumerate() {
            let sizes = self.sizes[at].iter().enumerate();
            let sizes: Vec<String> = sizes
                .map(|(class, count)| (1_u64 << class, count.load(Ordering::Relaxed)))
                .filter(|(_, count)| *count > 0)
                .map(|(size, count)| format!("{size}:{count}"))
                .collect();
            let bytes = self.bytes[at].load(Ordering::Relaxed);
            lines.push(format!("{name} {bytes} bytes, requests up to {}", sizes.join(" ")));
        }
        lines
    }
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
        assert!(lines[3].ends_with("requests up to 4096:1 8192:1 2097152:1"), "{}", lines[3]);
    }
}
