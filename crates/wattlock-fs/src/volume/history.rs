//! What a machine that knew a volume can tell of it later: that it is the same one, and that its newest keys come from
//! a holder of the keys before.
//!
//! Everybody who knows a recipient can seal settings to it, and everybody who was an opener once knows the secret. So
//! the secret tells volumes apart, and only a chain of keys tells a rotation from what a removed opener made up.

use wattlock_door::Crypto;
use zeroize::Zeroizing;

use super::{Opener, Volume, hex};
use crate::Error;
use crate::format::{NONCE_LEN, TAG_LEN};
use crate::xaes::XaesKey;

/// Bytes of a sealed succession key: nonce, key, tag.
pub const SUCCESSOR_LEN: usize = NONCE_LEN + 32 + TAG_LEN;
/// Symbols of a fingerprint: letters and digits that no reader takes for one another. 25 are 125 bits.
const SYMBOLS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// Symbols in a group, and groups.
const GROUP: usize = 5;
const GROUPS: usize = 5;

/// Whether a text is a fingerprint as [`Volume::fingerprint`] gives it.
pub fn is_fingerprint(text: &str) -> bool {
    let group = |group: &str| group.len() == GROUP && group.bytes().all(|symbol| SYMBOLS.contains(&symbol));
    text.split('-').count() == GROUPS && text.split('-').all(group)
}

impl Volume {
    /// What tells this volume from every other, for life, in a form that a person can compare: 125 bits that derive from
    /// its secret and its id.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub fn fingerprint(&self, crypto: &mut impl Crypto) -> Result<String, Error> {
        let mut bits = [0; 16];
        self.derive_lasting(&format!("fingerprint {}", *hex(&self.id)), &mut bits, crypto)?;
        let number = u128::from_be_bytes(bits);
        let symbol = |at: usize| SYMBOLS[(number >> (128 - 5 * (at + 1)) & 31) as usize] as char;
        let group = |group: usize| (group * GROUP..(group + 1) * GROUP).map(symbol).collect::<String>();
        Ok((0..GROUPS).map(group).collect::<Vec<_>>().join("-"))
    }

    /// What tells an opener from every other; says nothing of its recipient to a reader without the secret.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub fn mark(&self, opener: &Opener, crypto: &mut impl Crypto) -> Result<[u8; 16], Error> {
        let mut mark = [0; 16];
        let kind = if opener.passphrase { "passphrase " } else { "" };
        let purpose = format!("opener {} {kind}{}", opener.name, opener.recipient);
        self.derive_lasting(&purpose, &mut mark, crypto)?;
        Ok(mark)
    }

    /// What the holders of the newest key know, and nobody else. It opens nothing of the volume.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub fn succession(&self, crypto: &mut impl Crypto) -> Result<Zeroizing<[u8; 32]>, Error> {
        let mut key = Zeroizing::new([0; 32]);
        self.derive(self.generation(), "succession", &mut key[..], crypto)?;
        Ok(key)
    }

    /// [`Volume::add_generation`], with the proof that it was made by a holder of the key before: the succession key of
    /// the new generation, sealed under that of the old one.
    ///
    /// # Errors
    /// As [`Volume::add_generation`]; [`Error::Engine`].
    pub fn succeed(&mut self, crypto: &mut impl Crypto) -> Result<u32, Error> {
        let (old, before) = (self.succession(crypto)?, self.generation());
        let generation = self.add_generation()?;
        let mut sealed = [0; SUCCESSOR_LEN];
        let (nonce, rest) = sealed.split_first_chunk_mut::<NONCE_LEN>().expect("it is longer");
        let (text, tag) = rest.split_at_mut(32);
        crate::random(nonce)?;
        text.copy_from_slice(&self.succession(crypto)?[..]);
        tag.copy_from_slice(&XaesKey::new(&old, crypto)?.seal(nonce, &before.to_be_bytes(), text, crypto)?);
        self.successors.push((before, sealed));
        Ok(generation)
    }

    /// Whether the newest key was made by holders of the key of `generation`, whose succession key is `known`.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub fn descends(
        &self,
        generation: u32,
        known: &[u8; 32],
        crypto: &mut impl Crypto,
    ) -> Result<bool, Error> {
        let mut key = Zeroizing::new(*known);
        for before in generation..self.generation() {
            let Some((_, sealed)) = self.successors.iter().find(|(of, _)| *of == before) else {
                return Ok(false);
            };
            let (nonce, rest) = sealed.split_first_chunk::<NONCE_LEN>().expect("it is longer");
            let (text, tag) = rest.split_first_chunk::<32>().expect("it is longer");
            let tag = tag.try_into().expect("the rest is the tag");
            let mut next = Zeroizing::new(*text);
            let under = XaesKey::new(&key, crypto)?;
            if !under.open(nonce, &before.to_be_bytes(), &mut next[..], tag, crypto)? {
                return Ok(false);
            }
            key = next;
        }
        Ok(self.generation() >= generation && key == self.succession(crypto)?)
    }
}
