//! A volume's key and settings: the sealed file `wattlock.fs`.

use zeroize::Zeroizing;

/// How names are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NameMode {
    /// Sealed under a key of each folder.
    #[default]
    PerFolder,
    /// Sealed under one key of the volume: equal names look equal.
    Deterministic,
    /// In clear.
    Plain,
}

/// What `wattlock.fs` contains.
#[derive(Debug, Clone)]
pub struct Volume {
    /// Random, for life.
    pub id: [u8; 16],
    /// Bytes of content in a chunk: 4096, 16384, 65536 or 262144.
    pub chunk: usize,
    /// How names are stored.
    pub names: NameMode,
    /// Volume keys by generation, ascending; the last seals new files.
    pub keys: Vec<(u32, Zeroizing<[u8; 32]>)>,
}
