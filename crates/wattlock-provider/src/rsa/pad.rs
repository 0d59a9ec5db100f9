//! Paddings of RFC 8017, on and off. Where secrets decide, in constant time: what is inside a decrypted block shows in
//! the outcome only, and for PKCS#1 v1.5 not even there.

use subtle::{Choice, ConditionallySelectable, ConstantTimeEq, ConstantTimeGreater, ConstantTimeLess};
use zeroize::{Zeroize, Zeroizing};

use crate::child::{Digest, Hashing};
use crate::params::Params;

/// A hash function that signatures name.
pub struct Hash {
    names: &'static [&'static str],
    /// What it is fetched by.
    pub fetch: &'static std::ffi::CStr,
    /// Output bytes.
    pub size: usize,
    /// What precedes it in a PKCS#1 v1.5 signature: `DigestInfo` up to the hash (RFC 8017 section 9.2, note 1).
    pub prefix: &'static [u8],
}

const fn nist(last: u8, size: u8) -> [u8; 19] {
    // SEQUENCE { SEQUENCE { OID 2.16.840.1.101.3.4.2.last, NULL }, OCTET STRING of `size` }
    [0x30, 17 + size, 0x30, 13, 6, 9, 0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, last, 5, 0, 4, size]
}

/// Every hash whose signatures are accelerated. Others work too, slower.
pub static HASHES: [Hash; 13] = [
    Hash { names: &["SHA256", "SHA2-256", "SHA-256"], fetch: c"SHA2-256", size: 32, prefix: &nist(1, 32) },
    Hash { names: &["SHA384", "SHA2-384", "SHA-384"], fetch: c"SHA2-384", size: 48, prefix: &nist(2, 48) },
    Hash { names: &["SHA512", "SHA2-512", "SHA-512"], fetch: c"SHA2-512", size: 64, prefix: &nist(3, 64) },
    Hash {
        names: &["SHA1", "SHA-1", "SSL3-SHA1"],
        fetch: c"SHA1",
        size: 20,
        prefix: &[0x30, 33, 0x30, 9, 6, 5, 0x2b, 0x0e, 3, 2, 0x1a, 5, 0, 4, 20],
    },
    // TLS before 1.2 signs both hashes, without naming them (RFC 4346 section 7.4.3).
    Hash { names: &["MD5-SHA1"], fetch: c"MD5-SHA1", size: 36, prefix: &[] },
    Hash { names: &["SHA224", "SHA2-224", "SHA-224"], fetch: c"SHA2-224", size: 28, prefix: &nist(4, 28) },
    Hash {
        names: &["SHA512-224", "SHA2-512/224", "SHA-512/224"],
        fetch: c"SHA2-512/224",
        size: 28,
        prefix: &nist(5, 28),
    },
    Hash {
        names: &["SHA512-256", "SHA2-512/256", "SHA-512/256"],
        fetch: c"SHA2-512/256",
        size: 32,
        prefix: &nist(6, 32),
    },
    Hash { names: &["SHA3-224"], fetch: c"SHA3-224", size: 28, prefix: &nist(7, 28) },
    Hash { names: &["SHA3-256"], fetch: c"SHA3-256", size: 32, prefix: &nist(8, 32) },
    Hash { names: &["SHA3-384"], fetch: c"SHA3-384", size: 48, prefix: &nist(9, 48) },
    Hash { names: &["SHA3-512"], fetch: c"SHA3-512", size: 64, prefix: &nist(10, 64) },
    Hash {
        names: &["MD5", "SSL3-MD5"],
        fetch: c"MD5",
        size: 16,
        prefix: &[0x30, 32, 0x30, 12, 6, 8, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 2, 5, 5, 0, 4, 16],
    },
];

/// The place in [`HASHES`] of a hash by one of its names; case does not count.
pub fn named(name: &str) -> Option<usize> {
    HASHES.iter().position(|hash| hash.names.iter().any(|one| one.eq_ignore_ascii_case(name)))
}

/// EMSA-PKCS1-v1_5 (RFC 8017 section 9.2) of `prefix || data` into all of `em`; `false` if there is no room.
#[must_use]
pub fn type_1(em: &mut [u8], prefix: &[u8], data: &[u8]) -> bool {
    let Some(padding) = em.len().checked_sub(3 + prefix.len() + data.len()) else { return false };
    if padding < 8 {
        return false;
    }
    let (head, rest) = em.split_at_mut(2 + padding);
    head.fill(0xff);
    head[..2].copy_from_slice(&[0, 1]);
    rest[0] = 0;
    rest[1..=prefix.len()].copy_from_slice(prefix);
    rest[1 + prefix.len()..].copy_from_slice(data);
    true
}

/// EMSA-PSS (RFC 8017 section 9.1.1) of a hashed message into all of `em`, for a modulus that fills its first byte.
/// `false` if there is no room or hashing fails.
#[must_use]
pub fn pss(em: &mut [u8], digest: &Digest, mask: &Digest, hashed: &[u8], salt: &[u8]) -> bool {
    let hash_len = digest.size();
    let Some(padding) = em.len().checked_sub(hash_len + salt.len() + 2) else { return false };
    if hash_len == 0 {
        return false;
    }
    let (block, tail) = em.split_at_mut(em.len() - hash_len - 1);
    let (hash, end) = tail.split_at_mut(hash_len);
    end[0] = 0xbc;
    if !digest.hash(&[&[0; 8], hashed, salt], hash) {
        return false;
    }
    block[..padding].fill(0);
    block[padding] = 1;
    block[padding + 1..].copy_from_slice(salt);
    let done = mask_with(mask, hash, block);
    block[0] &= 0x7f;
    done
}

/// Adds MGF1 of a seed (RFC 8017 appendix B.2.1) to `block`.
#[must_use]
fn mask_with(digest: &Digest, seed: &[u8], block: &mut [u8]) -> bool {
    let Some(mut hashing) = Hashing::begin(digest) else { return false };
    let size = digest.size();
    let mut mask = Zeroizing::new([0_u8; 64]);
    if size == 0 || size > mask.len() {
        return false;
    }
    for (count, piece) in (0_u32..).zip(block.chunks_mut(size)) {
        let good = (count == 0 || hashing.restart(digest, Params::EMPTY))
            && hashing.update(seed)
            && hashing.update(&count.to_be_bytes())
            && hashing.finish(&mut *mask).is_some();
        if !good {
            return false;
        }
        piece.iter_mut().zip(mask.iter()).for_each(|(byte, mask)| *byte ^= mask);
    }
    true
}

/// Takes OAEP off (RFC 8017 section 7.1.2 step 3) and returns the message's length, or `None`: what was wrong is not
/// told, nor shown by time. `em` is spoilt and wiped.
pub fn oaep(em: &mut [u8], digest: &Digest, mask: &Digest, label: &[u8], out: &mut [u8]) -> Option<usize> {
    let hash_len = digest.size();
    let mut label_hash = [0_u8; 64];
    if hash_len == 0 || em.len() < 2 * hash_len + 2 || !digest.hash(&[label], &mut label_hash) {
        return None;
    }
    let (head, block) = em.split_at_mut(1 + hash_len);
    let (first, seed) = head.split_at_mut(1);
    if !mask_with(mask, block, seed) || !mask_with(mask, seed, block) {
        return None;
    }
    let mut good = first[0].ct_eq(&0) & block[..hash_len].ct_eq(&label_hash[..hash_len]);
    let (mut found, mut place) = (Choice::from(0), 0_u32);
    for (at, byte) in (0_u32..).zip(block.iter()).skip(hash_len) {
        let one = byte.ct_eq(&1);
        place.conditional_assign(&at, one & !found);
        good &= found | one | byte.ct_eq(&0);
        found |= one;
    }
    good &= found;
    let message = &block[(place as usize + 1).min(block.len())..];
    let fits = message.len() <= out.len();
    let outcome = (bool::from(good) && fits).then(|| {
        out[..message.len()].copy_from_slice(message);
        message.len()
    });
    em.zeroize();
    outcome
}

/// Most lengths tried for a synthetic message.
const LENGTHS: usize = 128;

/// What implicit rejection derives from a key and a ciphertext (draft-irtf-cfrg-rsa-guidance-00 section 6).
pub struct Rejection<'a> {
    sha256: &'a Digest,
    /// Key derivation key. On the heap: each move of an array would leave a copy behind that nobody wipes.
    key: Zeroizing<Vec<u8>>,
}

impl<'a> Rejection<'a> {
    /// `exponent_hash` is SHA-256 of the private exponent as long as the modulus, as is the ciphertext.
    pub fn new(sha256: &'a Digest, exponent_hash: &[u8], ciphertext: &[u8]) -> Option<Rejection<'a>> {
        let mut key = Zeroizing::new(vec![0; 32]);
        hmac(sha256, exponent_hash, &[ciphertext], &mut key)?;
        Some(Rejection { sha256, key })
    }

    fn stream(&self, name: &[u8], out: &mut [u8]) -> Option<()> {
        let bits = u16::try_from(out.len() * 8).ok()?.to_be_bytes();
        for (count, piece) in (0_u16..).zip(out.chunks_mut(32)) {
            let mut block = Zeroizing::new([0; 32]);
            hmac(self.sha256, &self.key, &[&count.to_be_bytes(), name, &bits], &mut *block)?;
            piece.copy_from_slice(&block[..piece.len()]);
        }
        Some(())
    }

    /// The message of a decrypted block, or the synthetic one; which of the two is not told, nor shown by time.
    /// Returns its length. `None` if hashing fails or `out` is shorter than the block.
    pub fn open(&self, em: &[u8], out: &mut [u8]) -> Option<usize> {
        let len = u32::try_from(em.len()).ok()?;
        if em.len() < 11 || out.len() < em.len() {
            return None;
        }
        let mut synthetic = Zeroizing::new(vec![0; em.len()]);
        self.stream(b"message", &mut synthetic)?;
        let mut lengths = Zeroizing::new([0; 2 * LENGTHS]);
        self.stream(b"length", &mut *lengths)?;
        let longest = len - 10;
        let mask = u32::MAX >> longest.leading_zeros();
        let mut synthetic_len = 0_u32;
        for pair in lengths.chunks_exact(2) {
            let candidate = u32::from(u16::from_be_bytes([pair[0], pair[1]])) & mask;
            synthetic_len.conditional_assign(&candidate, candidate.ct_lt(&longest));
        }
        let (mut found, mut zero) = (Choice::from(0), 0_u32);
        for (at, byte) in (0_u32..).zip(em).skip(2) {
            let here = byte.ct_eq(&0);
            zero.conditional_assign(&at, here & !found);
            found |= here;
        }
        let good = em[0].ct_eq(&0) & em[1].ct_eq(&2) & zero.ct_gt(&9);
        let begin = u32::conditional_select(&(len - synthetic_len), &(zero + 1), good) as usize;
        let pairs = em[begin..].iter().zip(&synthetic[begin..]);
        for (to, (real, other)) in out.iter_mut().zip(pairs) {
            *to = u8::conditional_select(other, real, good);
        }
        Some(em.len() - begin)
    }
}

/// HMAC-SHA-256 (RFC 2104) with a key of 32 bytes, to as many.
fn hmac(sha256: &Digest, key: &[u8], pieces: &[&[u8]], out: &mut [u8]) -> Option<()> {
    let mut pad = Zeroizing::new([0x36_u8; 64]);
    pad.iter_mut().zip(key).for_each(|(pad, key)| *pad ^= key);
    let mut hashing = Hashing::begin(sha256)?;
    let mut inner = Zeroizing::new([0_u8; 32]);
    let inside = hashing.update(&*pad) && pieces.iter().all(|piece| hashing.update(piece));
    if !inside || hashing.finish(&mut *inner)? != 32 {
        return None;
    }
    pad.iter_mut().for_each(|byte| *byte ^= 0x36 ^ 0x5c);
    let outside = hashing.restart(sha256, Params::EMPTY) && hashing.update(&*pad) && hashing.update(&*inner);
    (outside && hashing.finish(out)? == 32).then_some(())
}

/// Bytes of a TLS premaster secret.
pub const PREMASTER: usize = 48;

/// The premaster secret of a decrypted block (RFC 5246 section 7.4.7.1), or `random` if anything about it is wrong;
/// which of the two is not told, nor shown by time. `version` is what the client hello said; another one may be
/// tolerated. `em` is at least 59 bytes.
#[must_use]
pub fn premaster(
    em: &[u8],
    version: u16,
    tolerated: Option<u16>,
    random: &[u8; PREMASTER],
) -> [u8; PREMASTER] {
    let (head, secret) = em.split_at(em.len() - PREMASTER);
    let (padding, zero) = head.split_at(head.len() - 1);
    let mut good = padding[0].ct_eq(&0) & padding[1].ct_eq(&2) & zero[0].ct_eq(&0);
    for byte in &padding[2..] {
        good &= !byte.ct_eq(&0);
    }
    let says = |version: u16| secret[..2].ct_eq(&version.to_be_bytes());
    let mut right = says(version);
    if let Some(tolerated) = tolerated {
        right |= says(tolerated);
    }
    good &= right;
    let mut out = [0; PREMASTER];
    for ((to, real), other) in out.iter_mut().zip(secret).zip(random) {
        *to = u8::conditional_select(other, real, good);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_go_by_their_names_and_their_prefix_says_their_length() {
        for (place, hash) in HASHES.iter().enumerate() {
            for name in hash.names {
                assert_eq!(named(&name.to_lowercase()), Some(place), "{name}");
            }
            if let Some(len) = hash.prefix.last() {
                assert_eq!(usize::from(*len), hash.size);
                assert_eq!(usize::from(hash.prefix[1]), hash.prefix.len() - 2 + hash.size);
            }
        }
        assert_eq!(named("SHA"), None);
    }

    #[test]
    fn type_1_fills_the_block_and_needs_eight_bytes_of_padding() {
        let mut em = [7; 16];
        assert!(type_1(&mut em, &[5], &[6, 7]));
        assert_eq!(em, [0, 1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0, 5, 6, 7]);
        assert!(type_1(&mut em, &[], &[1; 5]));
        assert!(!type_1(&mut em, &[], &[1; 6]));
        assert!(!type_1(&mut em, &[], &[1; 60]));
    }

    fn block() -> Vec<u8> {
        let mut em = vec![9; 256];
        em[..2].copy_from_slice(&[0, 2]);
        em[256 - PREMASTER - 1] = 0;
        em[256 - PREMASTER..256 - PREMASTER + 2].copy_from_slice(&[3, 3]);
        em
    }

    #[test]
    fn a_premaster_secret_comes_out_of_a_good_block_only() {
        let random = [1; PREMASTER];
        let good = block();
        assert_eq!(premaster(&good, 0x0303, None, &random), good[256 - PREMASTER..]);
        assert_eq!(premaster(&good, 0x0304, Some(0x0303), &random), good[256 - PREMASTER..]);
        assert_eq!(premaster(&good, 0x0304, None, &random), random);
        for (at, value) in [(0, 1), (1, 1), (2, 0), (100, 0), (206, 0), (207, 1), (208, 2), (209, 4)] {
            let mut bad = block();
            bad[at] = value;
            assert_eq!(premaster(&bad, 0x0303, None, &random), random, "byte {at}");
        }
    }
}
