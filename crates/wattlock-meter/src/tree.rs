//! The files that counters are read from: the kernel's, or a fixture's.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

/// Most bytes taken from a file: what we read is a page at most, except of `/proc/stat` of a large machine.
const MOST_BYTES: u64 = 1 << 20;

/// A tree of small text files. Paths are relative to its root, without a leading slash.
pub trait Tree: Send + Sync {
    /// A file's content.
    ///
    /// # Errors
    /// The system's.
    fn text(&self, path: &str) -> io::Result<String>;

    /// At least the first bytes of a file, for files whose rest is not needed and expensive to produce.
    ///
    /// # Errors
    /// The system's.
    fn head(&self, path: &str, bytes: u64) -> io::Result<String> {
        let _ = bytes;
        self.text(path)
    }

    /// The names in a folder, sorted.
    ///
    /// # Errors
    /// The system's.
    fn names(&self, path: &str) -> io::Result<Vec<String>>;
}

/// A tree on disk: `/` for this machine, or a fixture.
#[derive(Debug, Clone)]
pub struct Folder(pub PathBuf);

impl Tree for Folder {
    fn text(&self, path: &str) -> io::Result<String> {
        self.head(path, MOST_BYTES)
    }

    fn head(&self, path: &str, bytes: u64) -> io::Result<String> {
        let mut content = Vec::new();
        File::open(self.0.join(path))?.take(bytes).read_to_end(&mut content)?;
        Ok(String::from_utf8_lossy(&content).into_owned())
    }

    fn names(&self, path: &str) -> io::Result<Vec<String>> {
        let mut names: Vec<String> = std::fs::read_dir(self.0.join(path))?
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        Ok(names)
    }
}

/// A whole number in a file of its own.
pub(crate) fn number(tree: &dyn Tree, path: &str) -> io::Result<u64> {
    tree.head(path, 64)?
        .trim()
        .parse()
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not a number"))
}

/// A word or line in a file of its own; empty if there is none.
pub(crate) fn word(tree: &dyn Tree, path: &str) -> String {
    tree.head(path, 256).unwrap_or_default().trim().replace(char::is_control, " ")
}
