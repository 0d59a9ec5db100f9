//! The kinds of request, as data. A new kind is a row in the table below and a case in the engines that can do it;
//! nothing in the runtime, the policies' plumbing, calibration or telemetry names a kind.

use crate::key::Algorithm;

/// What sort of operation a kind is, as far as anyone outside an engine needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Family {
    /// Unauthenticated encryption or decryption; output as long as input.
    Cipher,
    /// Authenticated encryption; output as long as input, tag apart.
    Seal,
    /// Authenticated decryption; output as long as input, tag apart.
    Open,
    /// Hash of the input.
    Digest,
    /// Keyed hash of the associated data and then the input: one message in two parts, so that a record's header need not
    /// be copied in front of its text.
    Mac,
    /// Private-key operation on a short input.
    Sign,
    /// Shared secret from a private key and what the peer sent, or from fresh randomness and the peer's public key.
    Agree,
    /// A fresh key pair.
    Generate,
    /// Output as long as the caller asks: keys from keys, extendable-output functions.
    Derive,
    /// Compression; output length varies.
    Compress,
}

/// What a kind has in common with others of its sort: a mode, a curve, a construction. Rules that hold for all of them
/// (the nonces of GCM, the parts of an HKDF) and settings that turn all of them on go by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Group {
    /// Counter mode.
    Ctr,
    /// Cipher block chaining.
    Cbc,
    /// XTS.
    Xts,
    /// Galois counter mode.
    Gcm,
    /// ChaCha20-Poly1305.
    ChaChaPoly,
    /// AES-SIV.
    Siv,
    /// SHA-1 and SHA-2.
    Hash,
    /// SHA-3 and SHAKE.
    Sha3,
    /// HMAC.
    Hmac,
    /// RSA.
    Rsa,
    /// Everything over P-256.
    P256,
    /// Everything over P-384.
    P384,
    /// Everything over Curve25519.
    X25519,
    /// ML-KEM.
    MlKem,
    /// The PRF of TLS 1.2.
    Tls12Prf,
    /// HKDF, whole or its second half.
    Hkdf,
    /// Deflate.
    Deflate,
    /// Zstandard.
    Zstd,
}

/// Which nonce (initialisation vector, tweak, salt) lengths a kind takes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NonceLen {
    /// Exactly this many bytes; 0 where the kind takes none.
    Exactly(usize),
    /// Any length, including none (an HKDF salt).
    Any,
}

/// The fixed facts about one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KindInfo {
    /// Stable name, used in profiles, telemetry and on the command line.
    pub name: &'static str,
    /// What sort of operation it is.
    pub family: Family,
    /// What else it is of.
    pub group: Group,
    /// The algorithm a key must be for.
    pub algorithm: Algorithm,
    /// Accepted nonce lengths.
    pub nonce: NonceLen,
    /// Tag bytes written by seal and read by open; 0 for every other family.
    pub tag: usize,
    /// The input length must be a multiple of this many bytes.
    pub multiple: usize,
    /// Least input length in bytes.
    pub least: usize,
    /// Output length where the kind fixes it (a digest, a signature); `None` where it follows the input or the caller.
    pub output: Option<usize>,
    /// Whether the result is the same function of the inputs on every engine, byte for byte. Where it is not
    /// (ECDSA, key generation, deflate), results are checked by an independent implementation instead.
    pub deterministic: bool,
    /// The kind whose result this one takes back to its input: that which seals what this opens, or encrypts what this
    /// decrypts. `None` for the others; counter mode is its own inverse.
    pub undoes: Option<Kind>,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $id:ident = $name:literal, $family:ident $group:ident, $algorithm:ident, nonce $nonce:expr, tag $tag:literal,
       multiple $multiple:literal, least $least:literal, output $output:expr, $det:ident $(, undoes $made:ident)?;)*) => {
        /// One kind of work. The order is not stable between versions; [`Kind::name`] is.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum Kind { $($(#[$doc])* $id),* }

        impl Kind {
            /// Every kind, in the order of their discriminants.
            pub const ALL: &'static [Kind] = &[$(Kind::$id),*];
            const INFO: &'static [KindInfo] = &[$(KindInfo {
                name: $name, family: Family::$family, group: Group::$group, algorithm: Algorithm::$algorithm,
                nonce: $nonce, tag: $tag,
                multiple: $multiple, least: $least, output: $output, deterministic: kinds!(@det $det),
                undoes: kinds!(@undoes $($made)?),
            }),*];
        }
    };
    (@det exact) => { true };
    (@det varies) => { false };
    (@undoes) => { None };
    (@undoes $made:ident) => { Some(Kind::$made) };
}

use NonceLen::{Any, Exactly as N};

kinds! {
    /// AES-128 in counter mode (SP 800-38A 6.5), 128-bit big-endian counter; encrypts and decrypts.
    Aes128Ctr = "aes-128-ctr", Cipher Ctr, Aes128Ctr, nonce N(16), tag 0, multiple 1, least 0, output None, exact;
    /// AES-192 in counter mode.
    Aes192Ctr = "aes-192-ctr", Cipher Ctr, Aes192Ctr, nonce N(16), tag 0, multiple 1, least 0, output None, exact;
    /// AES-256 in counter mode.
    Aes256Ctr = "aes-256-ctr", Cipher Ctr, Aes256Ctr, nonce N(16), tag 0, multiple 1, least 0, output None, exact;
    /// AES-128 in CBC mode without padding, encryption.
    Aes128CbcEncrypt = "aes-128-cbc-encrypt", Cipher Cbc, Aes128Cbc, nonce N(16), tag 0, multiple 16, least 0, output None, exact;
    /// AES-128 in CBC mode without padding, decryption.
    Aes128CbcDecrypt = "aes-128-cbc-decrypt", Cipher Cbc, Aes128Cbc, nonce N(16), tag 0, multiple 16, least 0, output None, exact, undoes Aes128CbcEncrypt;
    /// AES-192 in CBC mode without padding, encryption.
    Aes192CbcEncrypt = "aes-192-cbc-encrypt", Cipher Cbc, Aes192Cbc, nonce N(16), tag 0, multiple 16, least 0, output None, exact;
    /// AES-192 in CBC mode without padding, decryption.
    Aes192CbcDecrypt = "aes-192-cbc-decrypt", Cipher Cbc, Aes192Cbc, nonce N(16), tag 0, multiple 16, least 0, output None, exact, undoes Aes192CbcEncrypt;
    /// AES-256 in CBC mode without padding, encryption.
    Aes256CbcEncrypt = "aes-256-cbc-encrypt", Cipher Cbc, Aes256Cbc, nonce N(16), tag 0, multiple 16, least 0, output None, exact;
    /// AES-256 in CBC mode without padding, decryption.
    Aes256CbcDecrypt = "aes-256-cbc-decrypt", Cipher Cbc, Aes256Cbc, nonce N(16), tag 0, multiple 16, least 0, output None, exact, undoes Aes256CbcEncrypt;
    /// XTS-AES-128 (IEEE 1619, two 128-bit keys) with ciphertext stealing, encryption. Nonce: the 16-byte tweak.
    Aes128XtsEncrypt = "aes-128-xts-encrypt", Cipher Xts, Aes128Xts, nonce N(16), tag 0, multiple 1, least 16, output None, exact;
    /// XTS-AES-128, decryption.
    Aes128XtsDecrypt = "aes-128-xts-decrypt", Cipher Xts, Aes128Xts, nonce N(16), tag 0, multiple 1, least 16, output None, exact, undoes Aes128XtsEncrypt;
    /// XTS-AES-256 (two 256-bit keys), encryption. IEEE 1619 defines no XTS-AES-192.
    Aes256XtsEncrypt = "aes-256-xts-encrypt", Cipher Xts, Aes256Xts, nonce N(16), tag 0, multiple 1, least 16, output None, exact;
    /// XTS-AES-256, decryption.
    Aes256XtsDecrypt = "aes-256-xts-decrypt", Cipher Xts, Aes256Xts, nonce N(16), tag 0, multiple 1, least 16, output None, exact, undoes Aes256XtsEncrypt;
    /// AES-128-GCM (SP 800-38D), 96-bit nonce, seal.
    Aes128GcmSeal = "aes-128-gcm-seal", Seal Gcm, Aes128Gcm, nonce N(12), tag 16, multiple 1, least 0, output None, exact;
    /// AES-128-GCM, open.
    Aes128GcmOpen = "aes-128-gcm-open", Open Gcm, Aes128Gcm, nonce N(12), tag 16, multiple 1, least 0, output None, exact, undoes Aes128GcmSeal;
    /// AES-192-GCM, seal.
    Aes192GcmSeal = "aes-192-gcm-seal", Seal Gcm, Aes192Gcm, nonce N(12), tag 16, multiple 1, least 0, output None, exact;
    /// AES-192-GCM, open.
    Aes192GcmOpen = "aes-192-gcm-open", Open Gcm, Aes192Gcm, nonce N(12), tag 16, multiple 1, least 0, output None, exact, undoes Aes192GcmSeal;
    /// AES-256-GCM, seal.
    Aes256GcmSeal = "aes-256-gcm-seal", Seal Gcm, Aes256Gcm, nonce N(12), tag 16, multiple 1, least 0, output None, exact;
    /// AES-256-GCM, open.
    Aes256GcmOpen = "aes-256-gcm-open", Open Gcm, Aes256Gcm, nonce N(12), tag 16, multiple 1, least 0, output None, exact, undoes Aes256GcmSeal;
    /// ChaCha20-Poly1305 (RFC 8439), seal.
    ChaCha20Poly1305Seal = "chacha20-poly1305-seal", Seal ChaChaPoly, ChaCha20Poly1305, nonce N(12), tag 16, multiple 1, least 0, output None, exact;
    /// ChaCha20-Poly1305, open.
    ChaCha20Poly1305Open = "chacha20-poly1305-open", Open ChaChaPoly, ChaCha20Poly1305, nonce N(12), tag 16, multiple 1, least 0, output None, exact, undoes ChaCha20Poly1305Seal;
    /// AES-SIV (RFC 5297) with two 256-bit keys, seal: encryption that stays safe without a nonce. The tag is the
    /// synthetic initialisation vector V. S2V takes the associated data as its first string, present even if empty,
    /// then the nonce, unless that is empty, then the plaintext (RFC 5297 section 6 with one string of associated
    /// data). Without a nonce equal inputs give equal outputs.
    Aes256SivSeal = "aes-256-siv-seal", Seal Siv, Aes256Siv, nonce Any, tag 16, multiple 1, least 0, output None, exact;
    /// AES-SIV with two 256-bit keys, open.
    Aes256SivOpen = "aes-256-siv-open", Open Siv, Aes256Siv, nonce Any, tag 16, multiple 1, least 0, output None, exact, undoes Aes256SivSeal;
    /// SHA-1 (FIPS 180-4); kept for protocols that still carry it.
    Sha1 = "sha-1", Digest Hash, None, nonce N(0), tag 0, multiple 1, least 0, output Some(20), exact;
    /// SHA-256.
    Sha256 = "sha-256", Digest Hash, None, nonce N(0), tag 0, multiple 1, least 0, output Some(32), exact;
    /// SHA-384.
    Sha384 = "sha-384", Digest Hash, None, nonce N(0), tag 0, multiple 1, least 0, output Some(48), exact;
    /// SHA-512.
    Sha512 = "sha-512", Digest Hash, None, nonce N(0), tag 0, multiple 1, least 0, output Some(64), exact;
    /// SHA3-256 (FIPS 202).
    Sha3_256 = "sha3-256", Digest Sha3, None, nonce N(0), tag 0, multiple 1, least 0, output Some(32), exact;
    /// SHA3-512.
    Sha3_512 = "sha3-512", Digest Sha3, None, nonce N(0), tag 0, multiple 1, least 0, output Some(64), exact;
    /// SHAKE128 (FIPS 202) of the input; any output length of 1 byte or more.
    Shake128 = "shake128", Derive Sha3, None, nonce N(0), tag 0, multiple 1, least 0, output None, exact;
    /// SHAKE256.
    Shake256 = "shake256", Derive Sha3, None, nonce N(0), tag 0, multiple 1, least 0, output None, exact;
    /// HMAC-SHA-1 (FIPS 198-1), untruncated.
    HmacSha1 = "hmac-sha-1", Mac Hmac, Secret, nonce N(0), tag 0, multiple 1, least 0, output Some(20), exact;
    /// HMAC-SHA-256.
    HmacSha256 = "hmac-sha-256", Mac Hmac, Secret, nonce N(0), tag 0, multiple 1, least 0, output Some(32), exact;
    /// HMAC-SHA-384.
    HmacSha384 = "hmac-sha-384", Mac Hmac, Secret, nonce N(0), tag 0, multiple 1, least 0, output Some(48), exact;
    /// HMAC-SHA-512.
    HmacSha512 = "hmac-sha-512", Mac Hmac, Secret, nonce N(0), tag 0, multiple 1, least 0, output Some(64), exact;
    /// RSA private operation (RFC 8017 RSASP1 / RSADP), 2048-bit modulus: input and output are 256-byte big-endian
    /// integers, the input below the modulus. The result is verified with the public exponent before it leaves.
    Rsa2048Private = "rsa-2048-private", Sign Rsa, Rsa2048, nonce N(0), tag 0, multiple 256, least 256, output Some(256), exact;
    /// RSA private operation, 3072-bit modulus.
    Rsa3072Private = "rsa-3072-private", Sign Rsa, Rsa3072, nonce N(0), tag 0, multiple 384, least 384, output Some(384), exact;
    /// RSA private operation, 4096-bit modulus.
    Rsa4096Private = "rsa-4096-private", Sign Rsa, Rsa4096, nonce N(0), tag 0, multiple 512, least 512, output Some(512), exact;
    /// ECDSA over P-256 (FIPS 186-5): input is the message digest (its leftmost 256 bits count), output `r || s`.
    EcdsaP256Sign = "ecdsa-p256-sign", Sign P256, P256, nonce N(0), tag 0, multiple 1, least 20, output Some(64), varies;
    /// ECDSA over P-384: output `r || s`, 96 bytes.
    EcdsaP384Sign = "ecdsa-p384-sign", Sign P384, P384, nonce N(0), tag 0, multiple 1, least 20, output Some(96), varies;
    /// ECDH over P-256: input is the peer's uncompressed point (65 bytes), output the shared x coordinate.
    P256Derive = "p256-derive", Agree P256, P256, nonce N(0), tag 0, multiple 65, least 65, output Some(32), exact;
    /// ECDH over P-384: input 97 bytes.
    P384Derive = "p384-derive", Agree P384, P384, nonce N(0), tag 0, multiple 97, least 97, output Some(48), exact;
    /// X25519 (RFC 7748): input is the peer's 32-byte public key. An all-zero result is refused as invalid.
    X25519Derive = "x25519-derive", Agree X25519, X25519, nonce N(0), tag 0, multiple 32, least 32, output Some(32), exact;
    /// A fresh P-256 key pair: no input, output the 32-byte scalar then the 65-byte uncompressed point.
    P256Generate = "p256-generate", Generate P256, None, nonce N(0), tag 0, multiple 1, least 0, output Some(97), varies;
    /// A fresh P-384 key pair: output 48 + 97 bytes.
    P384Generate = "p384-generate", Generate P384, None, nonce N(0), tag 0, multiple 1, least 0, output Some(145), varies;
    /// A fresh X25519 key pair: output 32 + 32 bytes.
    X25519Generate = "x25519-generate", Generate X25519, None, nonce N(0), tag 0, multiple 1, least 0, output Some(64), varies;
    /// An ML-KEM-768 key pair (FIPS 203 algorithm 16). Nonce: 64 bytes of fresh randomness `d || z`, the caller's duty,
    /// as every nonce is; they are the key pair's seed, which other formats keep in the key's place. No input; output the
    /// 2,400-byte decapsulation key, in which the encapsulation key lies at [`crate::ML_KEM_768_PUBLIC`].
    MlKem768Generate = "ml-kem-768-generate", Generate MlKem, None, nonce N(64), tag 0, multiple 1, least 0, output Some(2400), exact;
    /// ML-KEM-768 encapsulation (FIPS 203 algorithms 17 and 20): input is the peer's 1,184-byte encapsulation key, which is
    /// refused as invalid if a coefficient is not reduced. Nonce: the 32 bytes of fresh randomness `m`, the caller's duty.
    /// Output the 1,088-byte ciphertext, then the 32-byte shared secret.
    MlKem768Encapsulate = "ml-kem-768-encapsulate", Agree MlKem, None, nonce N(32), tag 0, multiple 1184, least 1184, output Some(1120), exact;
    /// ML-KEM-768 decapsulation (FIPS 203 algorithms 18 and 21): input is the ciphertext, output the 32-byte shared secret.
    /// A ciphertext that was not made for the key gives another secret (implicit rejection), never an error. A key is refused
    /// as invalid if its hash is not that of its encapsulation key, or if that is not reduced.
    MlKem768Decapsulate = "ml-kem-768-decapsulate", Agree MlKem, MlKem768, nonce N(0), tag 0, multiple 1088, least 1088, output Some(32), exact;
    /// TLS 1.2 PRF with SHA-256 (RFC 5246 section 5): key is the secret, input `label || seed`, any output length.
    Tls12PrfSha256 = "tls12-prf-sha-256", Derive Tls12Prf, Secret, nonce N(0), tag 0, multiple 1, least 0, output None, exact;
    /// TLS 1.2 PRF with SHA-384.
    Tls12PrfSha384 = "tls12-prf-sha-384", Derive Tls12Prf, Secret, nonce N(0), tag 0, multiple 1, least 0, output None, exact;
    /// HKDF-SHA-256 (RFC 5869), extract and expand: key is the input keying material, nonce the salt, aad the info;
    /// no input; output up to 255 hashes long.
    HkdfSha256 = "hkdf-sha-256", Derive Hkdf, Secret, nonce Any, tag 0, multiple 1, least 0, output None, exact;
    /// HKDF-SHA-384, extract and expand.
    HkdfSha384 = "hkdf-sha-384", Derive Hkdf, Secret, nonce Any, tag 0, multiple 1, least 0, output None, exact;
    /// HKDF-SHA-512, extract and expand.
    HkdfSha512 = "hkdf-sha-512", Derive Hkdf, Secret, nonce Any, tag 0, multiple 1, least 0, output None, exact;
    /// HKDF-Expand alone with SHA-256: key is the pseudorandom key, aad the info.
    HkdfExpandSha256 = "hkdf-expand-sha-256", Derive Hkdf, Secret, nonce N(0), tag 0, multiple 1, least 0, output None, exact;
    /// HKDF-Expand alone with SHA-384.
    HkdfExpandSha384 = "hkdf-expand-sha-384", Derive Hkdf, Secret, nonce N(0), tag 0, multiple 1, least 0, output None, exact;
    /// HKDF-Expand alone with SHA-512.
    HkdfExpandSha512 = "hkdf-expand-sha-512", Derive Hkdf, Secret, nonce N(0), tag 0, multiple 1, least 0, output None, exact;
    /// Raw deflate (RFC 1951) of the input; see [`crate::Options`] for level and ending. The associated data is the
    /// dictionary: the up to 32 KiB before the input, which a decoder has already.
    Deflate = "deflate", Compress Deflate, None, nonce N(0), tag 0, multiple 1, least 0, output None, varies;
    /// Zstandard (RFC 8878): one frame without a checksum, with its content size. The associated data is a raw
    /// dictionary of up to 32 KiB, which a decoder must be given.
    Zstd = "zstd", Compress Zstd, None, nonce N(0), tag 0, multiple 1, least 0, output None, varies;
}

impl Kind {
    /// How many kinds there are; the length of an array indexed by [`Kind::index`].
    pub const COUNT: usize = Kind::ALL.len();

    /// Position in [`Kind::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The fixed facts about this kind.
    pub const fn info(self) -> &'static KindInfo {
        &Kind::INFO[self as usize]
    }

    /// Stable name.
    pub const fn name(self) -> &'static str {
        self.info().name
    }

    /// The kind of that name, if there is one.
    pub fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// Whether the output is itself a secret and is wiped with the request.
    pub const fn output_is_secret(self) -> bool {
        matches!(
            self.info().family,
            Family::Open | Family::Sign | Family::Agree | Family::Generate | Family::Derive
        )
    }

    /// Whether the nonce is itself a secret, randomness that keys are made of, and is wiped with the request.
    pub const fn nonce_is_secret(self) -> bool {
        matches!(self.info().group, Group::MlKem)
    }

    /// Whether a wrong result can give the private key away: RSA with the CRT (Boneh, DeMillo, Lipton 1997) and ECDSA
    /// (Biehl, Meyer, Mueller 2000). The runtime checks every such result that comes from a device. A signature that is
    /// right but was made with a nonce that others can guess gives the key away, too, and no check can see that.
    pub const fn wrong_result_tells_key(self) -> bool {
        matches!(self.info().family, Family::Sign)
    }

    /// Room in which every engine's output for `len` bytes of input fits. `None` for a derivation, whose caller chooses
    /// the length. Compression may add a few bytes to noise: blocks stored as they are take 5 more for each 65,535
    /// (RFC 1951 section 3.2.4), zstd's 3 for each 128 KiB and a frame's header, a flush 5.
    pub const fn output_bound(self, len: usize) -> Option<usize> {
        let info = self.info();
        match info.family {
            Family::Compress => Some(len + len / 256 + 128),
            Family::Derive => None,
            _ => match info.output {
                Some(fixed) => Some(fixed),
                None => Some(len),
            },
        }
    }

    /// The levels of a kind that compresses, 1 (fast) to the last (small); `None` for any other kind. Zstandard's
    /// last ones need a window above the 8 MiB that RFC 9659 allows, and gain little.
    pub const fn levels(self) -> Option<std::ops::RangeInclusive<u8>> {
        match self {
            Kind::Deflate => Some(1..=9),
            Kind::Zstd => Some(1..=19),
            _ => None,
        }
    }

    /// Whether this is a public-key operation, the kind a server counts apart from bulk work.
    pub const fn is_asymmetric(self) -> bool {
        matches!(self.info().family, Family::Sign | Family::Agree | Family::Generate)
    }
}

const _: () = assert!(Kind::COUNT <= 64, "KindSet is one 64-bit word");

/// A set of kinds in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct KindSet(u64);

impl KindSet {
    /// No kind.
    pub const EMPTY: KindSet = KindSet(0);
    /// Every kind.
    pub const ALL: KindSet = KindSet(u64::MAX >> (64 - Kind::COUNT));

    /// The set of these kinds.
    pub const fn of(kinds: &[Kind]) -> KindSet {
        let (mut set, mut i) = (0, 0);
        while i < kinds.len() {
            set |= 1 << kinds[i] as u8;
            i += 1;
        }
        KindSet(set)
    }

    /// The kinds of one family.
    pub fn of_family(family: Family) -> KindSet {
        Kind::ALL.iter().copied().filter(|kind| kind.info().family == family).collect()
    }

    /// Whether `kind` is in the set.
    #[inline]
    pub const fn contains(self, kind: Kind) -> bool {
        self.0 >> kind as u8 & 1 == 1
    }

    /// The set with `kind` added.
    #[must_use]
    pub const fn with(self, kind: Kind) -> KindSet {
        KindSet(self.0 | 1 << kind as u8)
    }

    /// The set with `kind` removed.
    #[must_use]
    pub const fn without(self, kind: Kind) -> KindSet {
        KindSet(self.0 & !(1 << kind as u8))
    }

    /// Kinds in both.
    #[must_use]
    pub const fn intersection(self, other: KindSet) -> KindSet {
        KindSet(self.0 & other.0)
    }

    /// Kinds in either.
    #[must_use]
    pub const fn union(self, other: KindSet) -> KindSet {
        KindSet(self.0 | other.0)
    }

    /// Whether no kind is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The kinds in the set, in order.
    pub fn iter(self) -> impl Iterator<Item = Kind> {
        Kind::ALL.iter().copied().filter(move |kind| self.contains(*kind))
    }
}

impl FromIterator<Kind> for KindSet {
    fn from_iter<I: IntoIterator<Item = Kind>>(kinds: I) -> KindSet {
        kinds.into_iter().fold(KindSet::EMPTY, KindSet::with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_undone_has_the_same_facts_the_other_way_round() {
        for kind in Kind::ALL {
            let (info, Some(made)) = (kind.info(), kind.info().undoes) else { continue };
            let other = made.info();
            assert_eq!(
                (info.group, info.algorithm, info.nonce, info.tag, info.multiple, info.least, None),
                (
                    other.group,
                    other.algorithm,
                    other.nonce,
                    other.tag,
                    other.multiple,
                    other.least,
                    other.undoes
                ),
                "{}",
                info.name
            );
            let families = (other.family, info.family);
            assert!(
                matches!(families, (Family::Seal, Family::Open) | (Family::Cipher, Family::Cipher)),
                "{}",
                info.name
            );
        }
        let undone =
            |family| KindSet::of_family(family).iter().filter(|kind| kind.info().undoes.is_some()).count();
        assert_eq!(undone(Family::Open), KindSet::of_family(Family::Open).iter().count());
        assert_eq!(undone(Family::Seal), 0);
        assert_eq!(Kind::Aes128CbcDecrypt.info().undoes, Some(Kind::Aes128CbcEncrypt));
        assert_eq!(Kind::Aes128Ctr.info().undoes, None);
    }

    #[test]
    fn names_are_unique_and_resolve() {
        for (index, kind) in Kind::ALL.iter().enumerate() {
            assert_eq!(kind.index(), index);
            assert_eq!(Kind::from_name(kind.name()), Some(*kind));
        }
    }

    #[test]
    fn set_holds_exactly_what_was_put_in() {
        let set = KindSet::of(&[Kind::Aes128Ctr, Kind::Deflate]);
        assert_eq!(set.iter().collect::<Vec<_>>(), [Kind::Aes128Ctr, Kind::Deflate]);
        assert!(set.without(Kind::Deflate).with(Kind::Aes128Ctr) == KindSet::of(&[Kind::Aes128Ctr]));
        assert_eq!(KindSet::ALL.iter().count(), Kind::COUNT);
    }
}
