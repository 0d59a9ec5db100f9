//! The store beneath file contents: files that are read, written and synced at positions. Real folders implement it,
//! and so does a simulated store whose writes can be cut by a crash at any moment.

use std::io;

/// One backing file. Shared by threads.
pub trait File: Send + Sync + 'static {
    /// Reads up to `to.len()` bytes at `at`; fewer only at the end of the file.
    fn read_at(&self, to: &mut [u8], at: u64) -> io::Result<usize>;
    /// Writes all of `from` at `at`; grows the file.
    fn write_at(&self, from: &[u8], at: u64) -> io::Result<()>;
    /// The stored length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Cuts or extends (with a hole) the file.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Makes content and length durable (`fdatasync`).
    fn sync(&self) -> io::Result<()>;
    /// Makes a hole without changing the length.
    fn punch(&self, at: u64, len: u64) -> io::Result<()>;
}

/// Where a file was when it was opened. Recovery finds it again by this.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    /// Device and inode number of the backing file.
    pub inode: (u64, u64),
    /// Path of the backing file below the volume's folder when it was opened; a hint only.
    pub path: Vec<u8>,
}

/// A folder of backing files.
pub trait Store: Send + Sync + 'static {
    /// Its files.
    type File: File;
    /// Opens the journal, making an empty one where there is none.
    fn journal(&self) -> io::Result<Self::File>;
    /// Finds a file again: at its path if its inode is the same, else anywhere by inode. `None` where it is gone.
    fn find(&self, place: &Place) -> io::Result<Option<Self::File>>;
    /// Makes everything written so far durable, names included (`syncfs`).
    fn sync_all(&self) -> io::Result<()>;
}
