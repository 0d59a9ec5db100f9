//! The secrets that a thread's TLS derived from last, as keys with what engines made of them.
//!
//! TLS derives two to four times from each secret of its key schedule, one after the other, each time in a context of
//! its own (RFC 8446 section 7.1), and of the four blocks that a derivation hashes two are the secret's. Two places are
//! enough: a stage's secret and a traffic secret made of it are used in turn. Where another connection's come in between
//! nothing is found, and that is all.
//!
//! Nothing is kept but while the application says that handshakes are under way ([`set_active`](super::Seat::set_active)): with
//! the last of them every secret is wiped, before that when another takes its place. A program that says nothing has
//! nothing kept.

use std::sync::atomic::Ordering::Relaxed;

use wattlock::core::{Algorithm, Error, Key};

use crate::provider::Provider;

/// Bytes of the longest secret that is kept: as many as the longest digest has.
const MOST: usize = 64;

#[derive(Default)]
pub(super) struct SecretCache {
    keys: [Option<Key>; 2],
    /// The place used last.
    last: usize,
}

impl SecretCache {
    fn key(&mut self, secret: &[u8]) -> Result<Key, Error> {
        if secret.len() > MOST {
            return Key::symmetric(Algorithm::Secret, secret);
        }
        for at in [self.last, 1 - self.last] {
            // Which secret comes again is the protocol's order, and no secret.
            if let Some(key) = self.keys[at].as_ref().filter(|key| is_known(Some(key.bytes()), secret)) {
                self.last = at;
                return Ok(key.clone());
            }
        }
        let key = Key::symmetric(Algorithm::Secret, secret)?;
        self.last = 1 - self.last;
        self.keys[self.last] = Some(key.clone());
        Ok(key)
    }

    /// Wipes everything.
    pub(super) fn clear(&mut self) {
        *self = SecretCache::default();
    }
}

/// Whether a key is the one known, in constant time. (The comparison of `subtle` looks at each byte by itself, which
/// for a small message takes as long as its encryption.)
pub(crate) fn is_known(known: Option<&[u8]>, key: &[u8]) -> bool {
    let Some(known) = known.filter(|known| known.len() == key.len()) else { return false };
    let difference = known.iter().zip(key).fold(0, |sum, (a, b)| sum | (a ^ b));
    std::hint::black_box(difference) == 0
}

impl Provider {
    /// A secret that TLS derives from, as a key: one of those that this thread was asked for last in the handshakes that
    /// are under way, or a new one.
    ///
    /// # Errors
    /// As [`Key::symmetric`].
    pub fn secret(&self, secret: &[u8]) -> Result<Key, Error> {
        let seat = self.seat();
        if seat.active.load(Relaxed) == 0 {
            return Key::symmetric(Algorithm::Secret, secret);
        }
        seat.lock().secret_cache.key(secret)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// Whether a key is new: whether nothing was left in it.
    fn is_new(key: &Key) -> bool {
        let mut new = false;
        key.expanded(|_| {
            new = true;
            Ok(0_u8)
        })
        .unwrap();
        new
    }

    #[test]
    fn two_secrets_come_back_and_the_one_not_used_for_longer_makes_room() {
        let mut cache = SecretCache::default();
        let (stage, one, other) = ([1; 48], [2; 48], [3; 48]);
        let mut ask = |secret: &[u8]| {
            let key = cache.key(secret).unwrap();
            assert_eq!(key.bytes(), secret);
            is_new(&key)
        };
        let asked = [&stage, &one, &one, &stage, &other, &stage, &other, &one];
        assert_eq!(asked.map(|secret| ask(secret)), [true, true, false, false, true, false, false, true]);
        // A part of one that is known is another.
        assert!(ask(&one[..32]));
    }

    #[test]
    fn what_is_longer_than_any_digest_is_not_kept() {
        let mut cache = SecretCache::default();
        for _ in 0..3 {
            assert!(is_new(&cache.key(&[7; MOST + 1]).unwrap()));
        }
        cache.key(&[7; MOST]).unwrap();
        cache.clear();
        assert!(is_new(&cache.key(&[7; MOST]).unwrap()));
    }
}
