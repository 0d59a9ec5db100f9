//! What one loaded provider makes once and keeps for all keys and derivations. It is in the child context, and
//! therefore freed before that.

use std::sync::OnceLock;

use wattlock::core::Key;

use crate::child::{Kdf, Pkey};

/// Curves that engines do.
pub const GROUPS: usize = 2;
/// Derivations that are offered.
pub const DERIVATIONS: usize = 3;
/// Digests of derivations.
pub const HASHES: usize = 4;

/// Each is made when it is first needed; `None` if that failed.
#[derive(Default)]
pub struct Kept {
    /// Curves' groups in OpenSSL's own provider, as keys without halves.
    pub groups: [OnceLock<Option<Pkey>>; GROUPS],
    /// OpenSSL's own derivations.
    pub kdfs: [OnceLock<Option<Kdf>>; DERIVATIONS],
    /// By digest: the salt of every key schedule without a pre-shared key.
    pub salts: [OnceLock<Key>; HASHES],
}
