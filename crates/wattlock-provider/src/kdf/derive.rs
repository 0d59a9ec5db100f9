//! Derivations as requests to the runtime. Only what cannot fail for a reason of the caller's is done here: for
//! everything else the answer is `None`, and OpenSSL's own says what is wrong.

use wattlock::core::{Algorithm, Data, Error, Family, Key, Kind, Request};
use zeroize::Zeroizing;

use super::given::{Hash, Mode, Part};
use super::state::State;
use super::{Flavour, salt};
use crate::provider::Provider;
use crate::seat::is_known;

/// Most output bytes of the PRF. It has no limit; OpenSSL does longer ones.
const PRF_MOST: usize = 1 << 16;
/// Bytes of the longest `HkdfLabel` (RFC 8446 section 7.1): length, label and context with their lengths.
const LABEL_MOST: usize = 2 + 1 + 255 + 1 + 255;

impl Hash {
    /// Bytes of a digest.
    pub const fn len(self) -> usize {
        match self {
            Hash::Sha1 => 20,
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
            Hash::Sha512 => 64,
        }
    }

    /// The PRF of TLS 1.2, if there is a kind for all of it.
    const fn prf(self) -> Option<Kind> {
        match self {
            Hash::Sha256 => Some(Kind::Tls12PrfSha256),
            Hash::Sha384 => Some(Kind::Tls12PrfSha384),
            Hash::Sha1 | Hash::Sha512 => None,
        }
    }

    /// HKDF, if there is a kind for all of it.
    const fn hkdf(self) -> Option<Kind> {
        match self {
            Hash::Sha1 => None,
            Hash::Sha256 => Some(Kind::HkdfSha256),
            Hash::Sha384 => Some(Kind::HkdfSha384),
            Hash::Sha512 => Some(Kind::HkdfSha512),
        }
    }

    /// HKDF's second half, if there is a kind for it.
    const fn expand(self) -> Option<Kind> {
        match self {
            Hash::Sha1 => None,
            Hash::Sha256 => Some(Kind::HkdfExpandSha256),
            Hash::Sha384 => Some(Kind::HkdfExpandSha384),
            Hash::Sha512 => Some(Kind::HkdfExpandSha512),
        }
    }

    const fn mac(self) -> Kind {
        match self {
            Hash::Sha1 => Kind::HmacSha1,
            Hash::Sha256 => Kind::HmacSha256,
            Hash::Sha384 => Kind::HmacSha384,
            Hash::Sha512 => Kind::HmacSha512,
        }
    }

    /// The digest of nothing, the context of the label `derived`.
    const fn of_nothing(self) -> &'static [u8] {
        match self {
            Hash::Sha1 => b"\xda\x39\xa3\xee\x5e\x6b\x4b\x0d\x32\x55\xbf\xef\x95\x60\x18\x90\xaf\xd8\x07\x09",
            Hash::Sha256 => b"\xe3\xb0\xc4\x42\x98\xfc\x1c\x14\x9a\xfb\xf4\xc8\x99\x6f\xb9\x24\x27\xae\x41\xe4\x64\x9b\x93\x4c\xa4\x95\x99\x1b\x78\x52\xb8\x55",
            Hash::Sha384 => b"\x38\xb0\x60\xa7\x51\xac\x96\x38\x4c\xd9\x32\x7e\xb1\xb1\xe3\x6a\x21\xfd\xb7\x11\x14\xbe\x07\x43\x4c\x0c\xc7\xbf\x63\xf6\xe1\xda\x27\x4e\xde\xbf\xe7\x6f\x65\xfb\xd5\x1a\xd2\xf1\x48\x98\xb9\x5b",
            Hash::Sha512 => b"\xcf\x83\xe1\x35\x7e\xef\xb8\xbd\xf1\x54\x28\x50\xd6\x6d\x80\x07\xd6\x20\xe4\x05\x0b\x57\x15\xdc\x83\xf4\xa9\x21\xd3\x6c\xe9\xce\x47\xd0\xd1\x3c\x5d\x85\xf2\xb0\xff\x83\x18\xd2\x87\x7e\xec\x2f\x63\xb9\x31\xbd\x47\x41\x7a\x81\xa5\x38\x32\x7a\xf9\x27\xda\x3e",
        }
    }
}

/// Where every key schedule without a pre-shared key begins: the early secret, which is the digest's own code of zeros, and
/// the salt that the label `derived` makes of it (RFC 8446 section 7.1). Both are anybody's to compute, and ten of
/// the ninety blocks that a handshake's derivations hash.
struct Beginning {
    early: &'static [u8],
    salt: &'static [u8],
}

impl Hash {
    /// The digests of TLS 1.3's suites have one.
    const fn beginning(self) -> Option<Beginning> {
        match self {
            Hash::Sha256 => Some(Beginning {
                early: b"\x33\xad\x0a\x1c\x60\x7e\xc0\x3b\x09\xe6\xcd\x98\x93\x68\x0c\xe2\x10\xad\xf3\x00\xaa\x1f\x26\x60\xe1\xb2\x2e\x10\xf1\x70\xf9\x2a",
                salt: b"\x6f\x26\x15\xa1\x08\xc7\x02\xc5\x67\x8f\x54\xfc\x9d\xba\xb6\x97\x16\xc0\x76\x18\x9c\x48\x25\x0c\xeb\xea\xc3\x57\x6c\x36\x11\xba",
            }),
            Hash::Sha384 => Some(Beginning {
                early: b"\x7e\xe8\x20\x6f\x55\x70\x02\x3e\x6d\xc7\x51\x9e\xb1\x07\x3b\xc4\xe7\x91\xad\x37\xb5\xc3\x82\xaa\x10\xba\x18\xe2\x35\x7e\x71\x69\x71\xf9\x36\x2f\x2c\x2f\xe2\xa7\x6b\xfd\x78\xdf\xec\x4e\xa9\xb5",
                salt: b"\x15\x91\xda\xc5\xcb\xbf\x03\x30\xa4\xa8\x4d\xe9\xc7\x53\x33\x0e\x92\xd0\x1f\x0a\x88\x21\x4b\x44\x64\x97\x2f\xd6\x68\x04\x9e\x93\xe5\x2f\x2b\x16\xfa\xd9\x22\xfd\xc0\x58\x44\x78\x42\x8f\x28\x2b",
            }),
            Hash::Sha1 | Hash::Sha512 => None,
        }
    }
}

/// Fills `out`. `None`, with nothing written, if OpenSSL's own has to do it.
pub fn derive(
    provider: &Provider,
    flavour: Flavour,
    state: &State,
    out: &mut [u8],
) -> Option<Result<(), Error>> {
    let with = With { provider, flavour, hash: state.digest?, state };
    if out.is_empty() {
        return None;
    }
    match flavour {
        Flavour::Hkdf => with.hkdf(out),
        Flavour::Tls13 => with.tls13(out),
        Flavour::Prf => with.prf(out),
    }
}

/// Everything that a derivation works with.
struct With<'a> {
    provider: &'a Provider,
    flavour: Flavour,
    hash: Hash,
    state: &'a State,
}

impl With<'_> {
    fn hkdf(&self, out: &mut [u8]) -> Option<Result<(), Error>> {
        let (key, salt) = (self.key()?, self.state.part(Part::Salt));
        let info = self.state.joined();
        match self.state.mode.unwrap_or(Mode::ExtractAndExpand) {
            Mode::ExtractAndExpand => self.fits(out).then(|| self.extract_and_expand(key, (salt, info), out)),
            Mode::Extract => self.is_one(out).then(|| self.run(self.hash.mac(), salt, NONE, key, out)),
            Mode::Expand => self.fits(out).then(|| self.expand(key, info, out)),
        }
    }

    fn tls13(&self, out: &mut [u8]) -> Option<Result<(), Error>> {
        match self.state.mode? {
            Mode::Extract => self.is_one(out).then(|| self.next_secret(out)).flatten(),
            Mode::Expand => {
                let len = u16::try_from(out.len()).ok().filter(|_| self.fits(out))?;
                let mut room = [0; LABEL_MOST];
                let info = self.label(len, self.state.part(Part::Data), &mut room)?;
                Some(self.expand(self.key()?, info, out))
            }
            Mode::ExtractAndExpand => None,
        }
    }

    /// One step down the key schedule: the secret before, if there is one, is derived once more and becomes the salt.
    fn next_secret(&self, out: &mut [u8]) -> Option<Result<(), Error>> {
        let len = self.hash.len();
        let (before, new) = (self.state.part(Part::Salt), self.state.part(Part::Key));
        let beginning = self.hash.beginning();
        if let (Some(known), true, true) = (&beginning, before.is_empty(), new.is_empty()) {
            out.copy_from_slice(known.early);
            return Some(Ok(()));
        }
        let new = if new.is_empty() { &[0; 64][..len] } else { new };
        if before.is_empty() {
            return Some(self.run(self.hash.mac(), &[], NONE, new, out));
        }
        // OpenSSL's own takes a salt to be as long as the digest, whatever it is.
        if before.len() != len {
            return None;
        }
        if let Some(known) = beginning.filter(|known| self.begins(known)) {
            let salt = salt(self.provider, self.hash, known.salt);
            return Some(salt.and_then(|salt| self.request(self.hash.mac(), salt, NONE, new, out)));
        }
        let mut room = [0; LABEL_MOST];
        let info = self.label(u16::try_from(len).ok()?, self.hash.of_nothing(), &mut room)?;
        let mut salt = Zeroizing::new([0; 64]);
        let derived = self.expand(before, info, &mut salt[..len]);
        Some(derived.and_then(|()| self.run(self.hash.mac(), &salt[..len], NONE, new, out)))
    }

    /// Whether the secret before is that of a schedule without a pre-shared key, which is no secret, and the label TLS's.
    fn begins(&self, known: &Beginning) -> bool {
        let early = is_known(Some(known.early), self.state.part(Part::Salt));
        early && self.state.part(Part::Prefix) == b"tls13 " && self.state.part(Part::Label) == b"derived"
    }

    /// The `HkdfLabel` for `len` bytes of output.
    fn label<'r>(&self, len: u16, data: &[u8], room: &'r mut [u8; LABEL_MOST]) -> Option<&'r [u8]> {
        let (prefix, label) = (self.state.part(Part::Prefix), self.state.part(Part::Label));
        let label_len = [u8::try_from(prefix.len() + label.len()).ok()?];
        let data_len = [u8::try_from(data.len()).ok()?];
        let mut at = 0;
        for piece in [&len.to_be_bytes()[..], &label_len, prefix, label, &data_len, data] {
            room[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        Some(&room[..at])
    }

    fn prf(&self, out: &mut [u8]) -> Option<Result<(), Error>> {
        let (key, seed) = (self.key()?, self.state.joined());
        (!seed.is_empty() && out.len() <= PRF_MOST).then(|| match self.hash.prf() {
            Some(kind) => self.request(kind, &self.secret(key)?, NONE, seed, out),
            None => self.prf_by_mac(key, seed, out),
        })
    }

    fn key(&self) -> Option<&[u8]> {
        Some(self.state.part(Part::Key)).filter(|key| !key.is_empty())
    }

    /// Whether HKDF-Expand can give that much (RFC 5869 section 2.3).
    fn fits(&self, out: &[u8]) -> bool {
        out.len() <= 255 * self.hash.len()
    }

    fn is_one(&self, out: &[u8]) -> bool {
        out.len() == self.hash.len()
    }

    fn extract_and_expand(
        &self,
        key: &[u8],
        (salt, info): (&[u8], &[u8]),
        out: &mut [u8],
    ) -> Result<(), Error> {
        if let Some(kind) = self.hash.hkdf() {
            return self.run(kind, key, (salt, info), &[], out);
        }
        let mut room = Zeroizing::new([0; 64]);
        let secret = &mut room[..self.hash.len()];
        self.run(self.hash.mac(), salt, NONE, key, secret)?;
        self.expand(secret, info, out)
    }

    fn expand(&self, key: &[u8], info: &[u8], out: &mut [u8]) -> Result<(), Error> {
        match self.hash.expand() {
            Some(kind) => self.request(kind, &self.secret(key)?, (&[], info), &[], out),
            None => self.expand_by_mac(key, info, out),
        }
    }

    /// HKDF-Expand (RFC 5869 section 2.3), one block a request.
    fn expand_by_mac(&self, key: &[u8], info: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let (key, len) = (Key::symmetric(Algorithm::Secret, key)?, self.hash.len());
        // The block before, info, the block's number.
        let mut room = Zeroizing::new([&[0; 64][..len], info, &[0]].concat());
        let (last, mut block) = (len + info.len(), Zeroizing::new([0; 64]));
        for (number, piece) in (1..=255).zip(out.chunks_mut(len)) {
            room[last] = number;
            let from = if number == 1 { &room[len..] } else { &room[..] };
            self.request(self.hash.mac(), &key, NONE, from, &mut block[..len])?;
            room[..len].copy_from_slice(&block[..len]);
            piece.copy_from_slice(&block[..piece.len()]);
        }
        Ok(())
    }

    /// P_hash (RFC 5246 section 5), one block a request.
    fn prf_by_mac(&self, key: &[u8], seed: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let (key, len) = (Key::symmetric(Algorithm::Secret, key)?, self.hash.len());
        let (mut a, mut block) = (Zeroizing::new([0; 64]), Zeroizing::new([0; 64]));
        // A(i), then the seed.
        let mut room = Zeroizing::new([&a[..len], seed].concat());
        for (number, piece) in out.chunks_mut(len).enumerate() {
            let from = if number == 0 { seed } else { &room[..len] };
            self.request(self.hash.mac(), &key, NONE, from, &mut a[..len])?;
            room[..len].copy_from_slice(&a[..len]);
            self.request(self.hash.mac(), &key, NONE, &room, &mut block[..len])?;
            piece.copy_from_slice(&block[..piece.len()]);
        }
        Ok(())
    }

    /// TLS comes back with the same secret, each time in a new context. Of HKDF's callers that is not known.
    fn secret(&self, secret: &[u8]) -> Result<Key, Error> {
        match self.flavour {
            Flavour::Hkdf => Key::symmetric(Algorithm::Secret, secret),
            Flavour::Tls13 | Flavour::Prf => self.provider.secret(secret),
        }
    }

    fn run(
        &self,
        kind: Kind,
        secret: &[u8],
        (salt, info): (&[u8], &[u8]),
        from: &[u8],
        to: &mut [u8],
    ) -> Result<(), Error> {
        self.request(kind, &Key::symmetric(Algorithm::Secret, secret)?, (salt, info), from, to)
    }

    fn request(
        &self,
        kind: Kind,
        key: &Key,
        (salt, info): (&[u8], &[u8]),
        from: &[u8],
        to: &mut [u8],
    ) -> Result<(), Error> {
        let mut request = Request::new(kind, key, Data::Apart { from, to });
        (request.nonce, request.aad) = (salt, info);
        // A MAC's input is the secret itself where it extracts, and a request that waits would leave a copy of it.
        let done = match kind.info().family {
            Family::Derive => self.provider.run_or_pause(request),
            _ => self.provider.run(&mut request),
        };
        done.map(|_| ())
    }
}

/// Neither salt nor info.
const NONE: (&[u8], &[u8]) = (&[], &[]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_nothing_is_what_an_engine_makes_of_nothing() {
        let runtime = wattlock::Runtime::builder().telemetry(false).build().unwrap();
        let kinds = [Kind::Sha1, Kind::Sha256, Kind::Sha384, Kind::Sha512];
        for (hash, kind) in Hash::ALL.into_iter().zip(kinds) {
            let mut out = vec![0; hash.len()];
            let mut request = Request::new(kind, Key::none(), Data::Apart { from: &[], to: &mut out });
            runtime.dispatcher().run(&mut request).unwrap();
            assert_eq!(out, hash.of_nothing());
        }
    }

    #[test]
    fn every_schedule_begins_with_what_an_engine_makes_of_zeros() {
        let runtime = wattlock::Runtime::builder().telemetry(false).build().unwrap();
        let made = |kind, secret: &[u8], info: &[u8], from: &[u8]| {
            let key = Key::symmetric(Algorithm::Secret, secret).unwrap();
            let mut to = vec![0; from.len().max(secret.len())];
            let mut request = Request::new(kind, &key, Data::Apart { from, to: &mut to });
            request.aad = info;
            runtime.dispatcher().run(&mut request).unwrap();
            to
        };
        let begin = Hash::ALL.into_iter().filter_map(|hash| hash.beginning().map(|known| (hash, known)));
        for (hash, known) in begin {
            let len = hash.len();
            assert_eq!(made(hash.mac(), &[], &[], &vec![0; len]), known.early);
            let sizes = [&[0, len as u8, 13][..], b"tls13 derived", &[len as u8], hash.of_nothing()];
            assert_eq!(made(hash.expand().unwrap(), known.early, &sizes.concat(), &[]), known.salt);
        }
        assert_eq!(Hash::ALL.into_iter().filter(|hash| hash.beginning().is_some()).count(), 2);
    }
}
