//! What a context was told so far. An absent byte string and an empty one are the same here; where they are not,
//! OpenSSL's own has been asked before.

use zeroize::Zeroize;

use super::Flavour;
use super::given::{Given, Hash, Mode, PARTS, Part};
use crate::params::List;

/// Bytes that lie in the context itself; all that libssl sets is shorter.
const NEAR: usize = 96;
/// Most bytes of info or seed: what OpenSSL 3.0 has room for.
const INFO_MOST: usize = 2048;
const SEED_MOST: usize = 1024;

/// A byte string that wipes itself. It has no `Clone`: a copy that is moved would stay behind where it was made.
struct Octets {
    len: usize,
    near: [u8; NEAR],
    /// All of it, if it is longer than [`NEAR`].
    far: Vec<u8>,
}

impl Octets {
    const EMPTY: Octets = Octets { len: 0, near: [0; NEAR], far: Vec::new() };

    fn bytes(&self) -> &[u8] {
        if self.len > NEAR { &self.far } else { &self.near[..self.len] }
    }

    fn push(&mut self, more: &[u8]) {
        let len = self.len + more.len();
        if len <= NEAR {
            self.near[self.len..len].copy_from_slice(more);
        } else {
            // Not by growing: that would leave a copy behind.
            let mut far = Vec::with_capacity(len);
            far.extend_from_slice(self.bytes());
            far.extend_from_slice(more);
            self.clear();
            self.far = far;
        }
        self.len = len;
    }

    fn set(&mut self, bytes: &[u8]) {
        self.clear();
        self.push(bytes);
    }

    fn clear(&mut self) {
        // Most are empty, and a context is cleared when it is made another's and when it goes.
        if self.len == 0 {
            return;
        }
        let near = self.len.min(NEAR);
        self.near[..near].zeroize();
        self.far.zeroize();
        self.len = 0;
    }
}

impl Drop for Octets {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Parameters of one derivation. It is not moved once it holds a secret.
pub struct State {
    pub digest: Option<Hash>,
    pub mode: Option<Mode>,
    parts: [Octets; PARTS],
    joined: Octets,
}

impl State {
    pub const NEW: State =
        State { digest: None, mode: None, parts: [const { Octets::EMPTY }; PARTS], joined: Octets::EMPTY };

    /// One of the parts; empty if it is not set.
    pub fn part(&self, part: Part) -> &[u8] {
        self.parts[part as usize].bytes()
    }

    /// HKDF's info, the PRF's seed.
    pub fn joined(&self) -> &[u8] {
        self.joined.bytes()
    }

    /// Forgets everything. (Another in its place would be a copy of a kilobyte.)
    pub fn clear(&mut self) {
        (self.digest, self.mode) = (None, None);
        self.parts.iter_mut().for_each(Octets::clear);
        self.joined.clear();
    }

    /// Becomes what another is.
    pub fn copy(&mut self, from: &State) {
        (self.digest, self.mode) = (from.digest, from.mode);
        self.parts.iter_mut().zip(&from.parts).for_each(|(to, from)| to.set(from.bytes()));
        self.joined.set(from.joined.bytes());
    }

    /// Takes in a list. `false`, with nothing changed, if OpenSSL's own has to look at it.
    pub fn take(&mut self, flavour: Flavour, given: &Given<'_>) -> bool {
        if !self.can_take(flavour, given) {
            return false;
        }
        self.digest = given.digest.or(self.digest);
        self.mode = given.mode.or(self.mode);
        for part in [Part::Key, Part::Salt, Part::Prefix, Part::Label, Part::Data] {
            if let Some(bytes) = given.part(part) {
                self.parts[part as usize].set(bytes);
            }
        }
        if let Some(pieces) = given.joined() {
            // Infos replace those of before, seeds come after them.
            if flavour == Flavour::Hkdf {
                self.joined.clear();
            }
            pieces.iter().for_each(|piece| self.joined.push(piece));
        }
        true
    }

    fn can_take(&self, flavour: Flavour, given: &Given<'_>) -> bool {
        let more: usize = given.joined().unwrap_or_default().iter().map(|piece| piece.len()).sum();
        match flavour {
            // Versions differ about an empty salt after one that was not.
            Flavour::Hkdf => {
                let kept =
                    given.part(Part::Salt).is_some_and(<[u8]>::is_empty) && !self.part(Part::Salt).is_empty();
                !kept && more <= INFO_MOST
            }
            // A mode must be set by now; versions differ about whether data of before is kept.
            Flavour::Tls13 => {
                let mode = given.mode.or(self.mode);
                let kept = given.part(Part::Data).is_none() && !self.part(Part::Data).is_empty();
                !kept && !matches!(mode, None | Some(Mode::ExtractAndExpand))
            }
            Flavour::Prf => self.joined().len() + more <= SEED_MOST,
        }
    }

    /// The list that brings a new context of OpenSSL's own into this state, if it is not that of a new one.
    pub fn with_list<R>(&self, flavour: Flavour, work: impl FnOnce(&List<'_>) -> R) -> Option<R> {
        if self.is_new() {
            return None;
        }
        let mode = self.mode.map(|mode| mode as std::ffi::c_int);
        let mut list = List::new();
        if let Some(digest) = self.digest {
            list = list.text(c"digest", digest.c_name());
        }
        if let Some(mode) = &mode {
            list = list.int(c"mode", mode);
        }
        let (key, joined) = match flavour {
            Flavour::Prf => (c"secret", c"seed"),
            _ => (c"key", c"info"),
        };
        let strings = [
            (key, self.part(Part::Key)),
            (c"salt", self.part(Part::Salt)),
            (c"prefix", self.part(Part::Prefix)),
            (c"label", self.part(Part::Label)),
            (c"data", self.part(Part::Data)),
            (joined, self.joined()),
        ];
        for (name, bytes) in strings.into_iter().filter(|(_, bytes)| !bytes.is_empty()) {
            list = list.octets(name, bytes);
        }
        Some(work(&list))
    }

    /// Whether nothing is set.
    fn is_new(&self) -> bool {
        let is_empty = |octets: &Octets| octets.len == 0;
        self.digest.is_none()
            && self.mode.is_none()
            && self.parts.iter().all(is_empty)
            && is_empty(&self.joined)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octets_hold_what_they_were_given_near_and_far_and_forget_it() {
        let bytes: Vec<u8> = (0..=255).collect();
        for first in [0, 1, NEAR - 1, NEAR, NEAR + 1, 200] {
            for second in [0, 1, NEAR, 256 - first] {
                let mut octets = Octets::EMPTY;
                octets.push(&bytes[..first]);
                octets.push(&bytes[first..][..second.min(256 - first)]);
                assert_eq!(octets.bytes(), &bytes[..first + second.min(256 - first)]);
                octets.clear();
                assert_eq!((octets.bytes(), octets.near, octets.far.len()), (&[][..], [0; NEAR], 0));
                octets.set(&bytes[..second]);
                assert_eq!(octets.bytes(), &bytes[..second]);
            }
        }
    }
}
