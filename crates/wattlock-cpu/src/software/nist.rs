//! P-256 and P-384: ECDH, ECDSA, key generation. Curve and scalar arithmetic is RustCrypto's, constant time except
//! where a verification works on public values; the nonces, and the hash below them, are ours.
//!
//! Points are taken uncompressed only and are checked to be on the curve, so there is no invalid-curve attack and, the
//! groups being of prime order, no small subgroup.

use p256::elliptic_curve::ff::{Field, PrimeField};
use p256::elliptic_curve::group::{Curve as _, Group};
use p256::elliptic_curve::ops::{LinearCombination, Reduce};
use p256::elliptic_curve::point::AffineCoordinates;
use p256::elliptic_curve::sec1::{FromSec1Point, ModulusSize, Sec1Point, ToSec1Point};
use p256::elliptic_curve::{Curve, CurveArithmetic, FieldBytes};
use wattlock_core::{EcKey, Error, Fault, Material};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use super::hash::{Core, OUT_MAX};
use super::hmac::Hmac;
use super::random;
use super::sha256::Sha256;
use super::sha512::Sha384;

const BAD_KEY: Error = Error::Invalid("elliptic-curve key");
const BAD_PEER: Error = Error::Invalid("peer's public key");

/// A curve, with the hash of its own size for nonces.
pub trait Nist:
    Curve<FieldBytesSize: ModulusSize> + CurveArithmetic<AffinePoint: FromSec1Point<Self> + ToSec1Point<Self>>
{
    /// As many bytes of digest as the order has.
    type Hash: Core;
}

impl Nist for p256::NistP256 {
    type Hash = Sha256;
}

impl Nist for p384::NistP384 {
    type Hash = Sha384;
}

fn point<C: Nist>(bytes: &[u8]) -> Option<C::AffinePoint> {
    // A compressed or infinite point is a shorter encoding, a hybrid one begins otherwise.
    if bytes.len() != 1 + 2 * C::Hash::OUT || bytes[0] != 4 {
        return None;
    }
    let encoded = Sec1Point::<C>::from_bytes(bytes).ok()?;
    C::AffinePoint::from_sec1_point(&encoded).into_option()
}

/// A scalar from 1 to the order less one.
fn scalar<C: Nist>(bytes: &[u8]) -> Option<C::Scalar> {
    let mut repr = FieldBytes::<C>::default();
    if bytes.len() != repr.len() {
        return None;
    }
    repr.copy_from_slice(bytes);
    let scalar = C::Scalar::from_repr(repr).into_option();
    repr.as_mut_slice().zeroize();
    scalar.filter(|scalar| !bool::from(scalar.is_zero()))
}

/// The leftmost bits of a digest as a scalar (FIPS 186-5 section 6.4.1 step 2). Our digests are whole bytes and the
/// orders whole bytes long.
fn digest_scalar<C: Nist>(digest: &[u8]) -> C::Scalar {
    let mut repr = FieldBytes::<C>::default();
    let len = digest.len().min(repr.len());
    let at = repr.len() - len;
    repr[at..].copy_from_slice(&digest[..len]);
    <C::Scalar as Reduce<FieldBytes<C>>>::reduce(&repr)
}

fn x_scalar<C: Nist>(point: C::ProjectivePoint) -> C::Scalar {
    <C::Scalar as Reduce<FieldBytes<C>>>::reduce(&point.to_affine().x())
}

fn ec_parts(material: &Material) -> Result<&EcKey, Error> {
    match material {
        Material::Ec(key) => Ok(key),
        _ => Err(BAD_KEY),
    }
}

/// A key for ECDH: the scalar in range and the public point on the curve. Wipes itself.
pub struct Agreer<C: Nist> {
    scalar: C::Scalar,
}

impl<C: Nist> Drop for Agreer<C> {
    fn drop(&mut self) {
        self.scalar.zeroize();
    }
}

impl<C: Nist> ZeroizeOnDrop for Agreer<C> {}

impl<C: Nist> Agreer<C> {
    /// Reads a key.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the scalar is out of range or the public point is not on the curve.
    pub fn new(material: &Material) -> Result<Agreer<C>, Error> {
        let key = ec_parts(material)?;
        point::<C>(&key.public).ok_or(BAD_KEY)?;
        Ok(Agreer { scalar: scalar::<C>(&key.scalar).ok_or(BAD_KEY)? })
    }

    /// Writes the shared x coordinate to `out`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the peer's point is not on the curve.
    pub fn derive(&self, peer: &[u8], out: &mut [u8]) -> Result<usize, Error> {
        let peer = point::<C>(peer).ok_or(BAD_PEER)?;
        let mut shared = (C::ProjectivePoint::from(peer) * self.scalar).to_affine();
        let mut x = shared.x();
        let len = x.len();
        out[..len].copy_from_slice(&x);
        x.as_mut_slice().zeroize();
        shared.zeroize();
        Ok(len)
    }
}

/// A key for ECDSA: scalar and public point belong together. Wipes itself.
pub struct Signer<C: Nist> {
    scalar: C::Scalar,
}

impl<C: Nist> Drop for Signer<C> {
    fn drop(&mut self) {
        self.scalar.zeroize();
    }
}

impl<C: Nist> ZeroizeOnDrop for Signer<C> {}

impl<C: Nist> Signer<C> {
    /// Reads a key and checks that the public point is the scalar's: otherwise its signatures could not be verified.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn new(material: &Material) -> Result<Signer<C>, Error> {
        let key = ec_parts(material)?;
        let public = point::<C>(&key.public).ok_or(BAD_KEY)?;
        let signer = Signer { scalar: scalar::<C>(&key.scalar).ok_or(BAD_KEY)? };
        if C::ProjectivePoint::mul_by_generator(&signer.scalar).to_affine() != public {
            return Err(BAD_KEY);
        }
        Ok(signer)
    }

    /// Signs a digest; writes `r || s` to `out`. The nonce is RFC 6979's with fresh random bytes mixed in (its section
    /// 3.6): as unpredictable as the key if the randomness fails, and not a fixed function of key and digest, which
    /// is what fault attacks on deterministic signatures need, if it does not.
    pub fn sign(&self, digest: &[u8], out: &mut [u8]) -> usize {
        let mut fresh = Zeroizing::new([0; 32]);
        // Without randomness the nonce is RFC 6979's own, and still safe.
        let _ = random::fill(&mut *fresh);
        self.sign_hedged(digest, &*fresh, out)
    }

    /// The nonce with which [`Signer::sign`] would sign, given its random bytes: for engines that sign by other means.
    /// Big-endian, in `[1, n)`.
    pub fn nonce(&self, digest: &[u8], fresh: &[u8], out: &mut [u8]) {
        let mut k = Nonces::<C>::new(&self.scalar, &digest_scalar::<C>(digest), fresh).next();
        let mut repr = k.to_repr();
        out.copy_from_slice(&repr);
        k.zeroize();
        repr.as_mut_slice().zeroize();
    }

    fn sign_hedged(&self, digest: &[u8], fresh: &[u8], out: &mut [u8]) -> usize {
        let z = digest_scalar::<C>(digest);
        let mut nonces = Nonces::<C>::new(&self.scalar, &z, fresh);
        loop {
            let mut k = nonces.next();
            let r = x_scalar::<C>(C::ProjectivePoint::mul_by_generator(&k));
            let mut inverse = k.invert().unwrap_or(C::Scalar::ZERO);
            let s = inverse * (z + r * self.scalar);
            k.zeroize();
            inverse.zeroize();
            if bool::from(r.is_zero() | s.is_zero()) {
                continue;
            }
            let len = C::Hash::OUT;
            out[..len].copy_from_slice(&r.to_repr());
            out[len..2 * len].copy_from_slice(&s.to_repr());
            return 2 * len;
        }
    }
}

/// Whether `signature` is a signature of `digest` under a public point. Variable time: all of it is public.
pub fn verify<C: Nist>(public: &[u8], digest: &[u8], signature: &[u8]) -> bool {
    let len = C::Hash::OUT;
    if signature.len() != 2 * len {
        return false;
    }
    let (Some(public), Some(r), Some(s)) =
        (point::<C>(public), scalar::<C>(&signature[..len]), scalar::<C>(&signature[len..]))
    else {
        return false;
    };
    let Some(w) = s.invert().into_option() else { return false };
    let z = digest_scalar::<C>(digest);
    let terms = [(C::ProjectivePoint::generator(), z * w), (C::ProjectivePoint::from(public), r * w)];
    let sum = C::ProjectivePoint::lincomb_vartime(&terms);
    !bool::from(sum.is_identity()) && x_scalar::<C>(sum) == r
}

/// A fresh pair: scalar, then uncompressed point.
///
/// # Errors
/// [`Error::Device`] if the system gives no randomness.
pub fn generate<C: Nist>(out: &mut [u8]) -> Result<usize, Error> {
    let len = C::Hash::OUT;
    // P-256's order is the rarer hit: all but one in 2^32 tries succeed.
    for _ in 0..64 {
        random::fill(&mut out[..len])?;
        if let Some(mut secret) = scalar::<C>(&out[..len]) {
            write_public::<C>(&secret, &mut out[len..]);
            secret.zeroize();
            return Ok(1 + 3 * len);
        }
    }
    out.zeroize();
    Err(Error::Device(Fault::Reported))
}

fn write_public<C: Nist>(scalar: &C::Scalar, out: &mut [u8]) {
    let encoded = C::ProjectivePoint::mul_by_generator(scalar).to_affine().to_sec1_point(false);
    out[..encoded.as_bytes().len()].copy_from_slice(encoded.as_bytes());
}

/// Whether `pair` is a scalar in range and its public point.
pub fn is_pair<C: Nist>(pair: &[u8]) -> bool {
    let len = C::Hash::OUT;
    if pair.len() != 1 + 3 * len {
        return false;
    }
    let Some(mut secret) = scalar::<C>(&pair[..len]) else { return false };
    let mut public = [0; 1 + 2 * OUT_MAX];
    write_public::<C>(&secret, &mut public);
    secret.zeroize();
    public[..1 + 2 * len] == pair[len..]
}

/// RFC 6979 section 3.2: HMAC-DRBG seeded with the key and the digest, here with a hash exactly as long as the order.
struct Nonces<C: Nist> {
    key: [u8; OUT_MAX],
    value: [u8; OUT_MAX],
    curve: std::marker::PhantomData<C>,
}

impl<C: Nist> Drop for Nonces<C> {
    fn drop(&mut self) {
        self.key.zeroize();
        self.value.zeroize();
    }
}

impl<C: Nist> Nonces<C> {
    fn new(secret: &C::Scalar, digest: &C::Scalar, fresh: &[u8]) -> Nonces<C> {
        let mut nonces = Nonces { key: [0; OUT_MAX], value: [1; OUT_MAX], curve: std::marker::PhantomData };
        let mut secret = secret.to_repr();
        for step in [0, 1] {
            nonces.rekey(&[&[step], &secret, &digest.to_repr(), fresh]);
        }
        secret.as_mut_slice().zeroize();
        nonces
    }

    fn hmac(&self) -> Hmac<C::Hash> {
        Hmac::new(&self.key[..C::Hash::OUT]).with(&self.value[..C::Hash::OUT])
    }

    fn rekey(&mut self, seed: &[&[u8]]) {
        let hmac = seed.iter().fold(self.hmac(), |hmac, part| hmac.with(part));
        hmac.finish(&mut self.key[..C::Hash::OUT]);
        self.advance();
    }

    fn advance(&mut self) {
        self.hmac().finish(&mut self.value[..C::Hash::OUT]);
    }

    fn next(&mut self) -> C::Scalar {
        loop {
            self.advance();
            let nonce = scalar::<C>(&self.value[..C::Hash::OUT]);
            self.rekey(&[&[0]]);
            if let Some(nonce) = nonce {
                return nonce;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::hash::digest;
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    /// Without fresh bytes the signature is the deterministic one of the message "sample".
    fn signs_sample<C: Nist>(secret: &str, r: &str, s: &str) {
        let signer = Signer::<C> { scalar: scalar::<C>(&bytes(secret)).unwrap() };
        let (mut hash, mut out) = ([0; OUT_MAX], [0; 2 * OUT_MAX]);
        digest::<C::Hash>(b"sample", &mut hash);
        let hash = &hash[..C::Hash::OUT];
        let len = signer.sign_hedged(hash, &[], &mut out);
        assert_eq!(out[..len], [bytes(r), bytes(s)].concat());
        let deterministic = out;
        signer.sign(hash, &mut out);
        assert_ne!(out, deterministic, "fresh bytes give a fresh nonce");
        signer.sign_hedged(hash, &[1], &mut out);
        assert_ne!(out, deterministic);
    }

    #[test]
    fn rfc_6979_appendix_a_2_5_p256_with_sha_256() {
        signs_sample::<p256::NistP256>(
            "C9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721",
            "EFD48B2AACB6A8FD1140DD9CD45E81D69D2C877B56AAF991C34D0EA84EAF3716",
            "F7CB1C942D657C41D436C7A1B6E29F65F3E900DBB9AFF4064DC4AB2F843ACDA8",
        );
    }

    #[test]
    fn rfc_6979_appendix_a_2_6_p384_with_sha_384() {
        signs_sample::<p384::NistP384>(
            "6B9D3DAD2E1B8C1C05B19875B6659F4DE23C3B667BF297BA9AA47740787137D896D5724E4C70A825F872C9EA60D2EDF5",
            "94EDBB92A5ECB8AAD4736E56C691916B3F88140666CE9FA73D64C4EA95AD133C81A648152E44ACF96E36DD1E80FABE46",
            "99EF4AEB15F178CEA1FE40DB2603138F130E740A19624526203B6351D0A3A94FA329C145786E679E7B82C71A38628AC8",
        );
    }
}
