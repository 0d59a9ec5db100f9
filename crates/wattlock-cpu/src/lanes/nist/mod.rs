//! P-256 and P-384 in eight lanes: ECDSA signing, ECDH and key generation.
//!
//! [`field`] has the arithmetic and its bounds, [`point`] the formulas, [`multiply`] the proof that they are never used
//! where they are wrong, [`pieces`] what is compiled for each instruction set, [`kernel`] the three operations from
//! numbers to numbers. This file goes from requests to numbers and back: it refuses to do arithmetic.
//!
//! *What is wrong with one request stays with it*: its lane works on the generator and a scalar of one instead, and its
//! error is its own. So it is with a lane whose computation was faulted: see [`kernel`].

mod comb;
mod curve;
#[allow(unsafe_code)]
mod entry;
mod field;
mod kernel;
mod multiply;
mod nonce;
#[allow(unsafe_code)]
mod pieces;
mod point;
#[cfg(test)]
mod tests;
mod words;

use wattlock_core::{Error, Fault, Material};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use super::{Item, WIDTH};
use crate::detect::Ifma512;
use crate::software::nist::{Agreer, Signer};
use curve::{Curve, P256, P384};
use field::{Limbs, Modulus, minus};
use multiply::alignment;
use nonce::{FRESH, SEED};
use words::{is_less, is_nonzero, limbs_of, write};

const BAD_PEER: Error = Error::Invalid("peer's public key");
const BAD_KEY: Error = Error::Invalid("elliptic-curve key");

/// Bytes of the longest scalar.
const BYTES_MAX: usize = 48;

/// One number for each lane, wiped.
type Lanes<const N: usize> = Zeroizing<[Limbs<N>; WIDTH]>;

/// ECDH over P-256.
pub fn p256_derive(isa: Ifma512, items: &mut [Item<'_>]) {
    derive::<P256, 5>(isa, items);
}

/// ECDH over P-384.
pub fn p384_derive(isa: Ifma512, items: &mut [Item<'_>]) {
    derive::<P384, 8>(isa, items);
}

/// ECDSA over P-256.
pub fn p256_sign(isa: Ifma512, items: &mut [Item<'_>]) {
    sign::<P256, 5>(isa, items);
}

/// ECDSA over P-384.
pub fn p384_sign(isa: Ifma512, items: &mut [Item<'_>]) {
    sign::<P384, 8>(isa, items);
}

/// A key pair on P-256.
pub fn p256_generate(isa: Ifma512, items: &mut [Item<'_>]) {
    generate::<P256, 5>(isa, items);
}

/// A key pair on P-384.
pub fn p384_generate(isa: Ifma512, items: &mut [Item<'_>]) {
    generate::<P384, 8>(isa, items);
}

/// What is to become of a request whose lane has been worked on: `bad` where the first mask says that it was wrong itself,
/// and a fault where the second says that its result is not sound.
fn verdict(item: &mut Item<'_>, lane: usize, [good, sound]: [u8; 2], bad: Error) {
    if item.result.is_ok() && good >> lane & 1 == 0 {
        item.result = Err(bad);
    } else if item.result.is_ok() && sound >> lane & 1 == 0 {
        item.result = Err(Error::Device(Fault::WrongResult));
    }
}

/// What a lane works on whose request is wrong or missing: one, in its place for a multiplication.
fn dummy<const N: usize>(shift: usize) -> Limbs<N> {
    limbs_of(&[1], shift)
}

/// A key for ECDH: its scalar as the kernel takes it.
#[derive(Zeroize, ZeroizeOnDrop)]
struct Agreeing<const N: usize>(Limbs<N>);

impl<const N: usize> Agreeing<N> {
    fn new<C: Curve<N>>(material: &Material) -> Result<Agreeing<N>, Error> {
        let Material::Ec(key) = material else { return Err(BAD_KEY) };
        Agreer::<C::Portable>::new(material)?;
        Ok(Agreeing(limbs_of(&key.scalar, alignment::<N>(C::BITS))))
    }
}

fn derive<C: Curve<N>, const N: usize>(isa: Ifma512, items: &mut [Item<'_>]) {
    let mut scalars: Lanes<N> = Zeroizing::new([dummy(alignment::<N>(C::BITS)); WIDTH]);
    let mut peers = [[C::GENERATOR[0]; WIDTH], [C::GENERATOR[1]; WIDTH]];
    for (lane, item) in items.iter_mut().enumerate() {
        item.result = prepare::<C, N>(item).map(|(scalar, peer)| {
            scalars[lane] = *scalar;
            (peers[0][lane], peers[1][lane]) = (peer[0], peer[1]);
            C::BYTES
        });
    }
    let (shared, masks) = entry::derive::<C, N>(isa, &scalars, &peers);
    for (lane, item) in items.iter_mut().enumerate() {
        verdict(item, lane, masks, BAD_PEER);
        if item.result.is_ok() {
            write(&shared[lane], &mut item.request.data.output()[..C::BYTES]);
        }
    }
}

/// A key's scalar and the peer's coordinates, which are public.
fn prepare<'k, C: Curve<N>, const N: usize>(item: &Item<'k>) -> Result<(&'k Limbs<N>, [Limbs<N>; 2]), Error> {
    let key = item.request.key.expanded(Agreeing::<N>::new::<C>)?;
    let input = item.request.data.input();
    if input.len() != 1 + 2 * C::BYTES || input[0] != 4 {
        return Err(BAD_PEER);
    }
    let (x, y) = input[1..].split_at(C::BYTES);
    let peer = [limbs_of(x, 0), limbs_of(y, 0)];
    let reduced = |coordinate| is_less(coordinate, &C::Field::PRIME) == 1;
    if !peer.iter().all(reduced) {
        return Err(BAD_PEER);
    }
    Ok((&key.0, peer))
}

/// A key for ECDSA.
struct Signing<C: Curve<N>, const N: usize> {
    signer: Signer<C::Portable>,
    /// The scalar, big-endian.
    bytes: [u8; BYTES_MAX],
    /// The scalar in Montgomery's form.
    scalar: Limbs<N>,
}

impl<C: Curve<N>, const N: usize> Drop for Signing<C, N> {
    fn drop(&mut self) {
        self.bytes.zeroize();
        self.scalar.zeroize();
    }
}

impl<C: Curve<N>, const N: usize> Signing<C, N> {
    fn new(material: &Material) -> Result<Signing<C, N>, Error> {
        let Material::Ec(key) = material else { return Err(BAD_KEY) };
        let signer = Signer::new(material)?;
        let mut plain = limbs_of(&key.scalar, 0);
        let scalar = kernel::scalar_to_montgomery::<C, N>(&plain);
        plain.zeroize();
        let mut bytes = [0; BYTES_MAX];
        bytes[..C::BYTES].copy_from_slice(&key.scalar);
        Ok(Signing { signer, bytes, scalar })
    }
}

fn sign<C: Curve<N>, const N: usize>(isa: Ifma512, items: &mut [Item<'_>]) {
    let mut fresh = Zeroizing::new([[0; FRESH]; WIDTH]);
    // Without randomness the nonces are RFC 6979's own, and still safe.
    let _ = getrandom::fill(fresh[..items.len()].as_flattened_mut());
    let mut seeds = Zeroizing::new([[0; SEED]; WIDTH]);
    let (mut scalars, mut digests) = ([None; WIDTH], [[0; N]; WIDTH]);
    for (lane, item) in items.iter_mut().enumerate() {
        match item.request.key.expanded(Signing::<C, N>::new) {
            Ok(key) => {
                let digest = digest::<C, N>(item.request.data.input());
                let mut bytes = [0; BYTES_MAX];
                write(&digest, &mut bytes[..C::BYTES]);
                seeds[lane] =
                    nonce::seed::<C::Hash>(&key.bytes[..C::BYTES], &bytes[..C::BYTES], &fresh[lane]);
                (scalars[lane], digests[lane]) = (Some(key), digest);
                item.result = Ok(2 * C::BYTES);
            }
            Err(error) => item.result = Err(error),
        }
    }
    let nonces = nonces::<C, N>(isa, &seeds, &fresh, &scalars, &digests);
    let keys: Lanes<N> = Zeroizing::new(scalars.map(|key| key.map_or(dummy(0), |key| key.scalar)));
    let (signatures, masks) = entry::sign::<C, N>(isa, &nonces, &keys, &digests);
    for (lane, item) in items.iter_mut().enumerate() {
        // `r` or `s` is zero: as likely as guessing the key. Another engine draws another nonce.
        verdict(item, lane, masks, Error::Device(Fault::Reported));
        if item.result.is_ok() {
            let (r, s) = item.request.data.output()[..2 * C::BYTES].split_at_mut(C::BYTES);
            write(&signatures[0][lane], r);
            write(&signatures[1][lane], s);
        }
    }
}

/// A digest's leftmost bits, modulo the order (FIPS 186-5 section 6.4.1 step 2, RFC 6979 section 2.3.4). Digests are whole bytes, the orders
/// whole bytes long. Less than twice the order: it starts with 32 ones.
fn digest<C: Curve<N>, const N: usize>(digest: &[u8]) -> Limbs<N> {
    let number = limbs_of(&digest[..digest.len().min(C::BYTES)], 0);
    let (reduced, borrowed) = minus(&number, &C::Order::PRIME);
    let keep = u64::from(borrowed).wrapping_neg();
    std::array::from_fn(|at| (number[at] & keep) | (reduced[at] & !keep))
}

/// A nonce for each lane, in range.
fn nonces<C: Curve<N>, const N: usize>(
    isa: Ifma512,
    seeds: &[[u64; SEED]; WIDTH],
    fresh: &[[u8; FRESH]; WIDTH],
    keys: &[Option<&Signing<C, N>>; WIDTH],
    digests: &[Limbs<N>; WIDTH],
) -> Lanes<N> {
    let words = entry::nonces::<C, N>(isa, seeds);
    let mut out: Lanes<N> = Zeroizing::new([dummy(0); WIDTH]);
    for (lane, key) in keys.iter().enumerate() {
        let Some(key) = key else { continue };
        let mut bytes = Zeroizing::new([0; BYTES_MAX]);
        let bytes = &mut bytes[..C::BYTES];
        nonce::write::<C::Hash>(&words, lane, bytes);
        out[lane] = limbs_of(bytes, 0);
        if !in_range::<C, N>(&out[lane]) {
            // For P-256 once in 2^32 nonces. The portable engine makes the same one first, and then the next.
            let mut digest = [0; BYTES_MAX];
            write(&digests[lane], &mut digest[..C::BYTES]);
            key.signer.nonce(&digest[..C::BYTES], &fresh[lane], bytes);
            out[lane] = limbs_of(bytes, 0);
        }
    }
    out
}

/// Whether a scalar is in `[1, n)`. Only the answer is public: a scalar that is not is thrown away.
fn in_range<C: Curve<N>, const N: usize>(scalar: &Limbs<N>) -> bool {
    is_less(scalar, &C::Order::PRIME) & is_nonzero(scalar) == 1
}

fn generate<C: Curve<N>, const N: usize>(isa: Ifma512, items: &mut [Item<'_>]) {
    let mut scalars: Lanes<N> = Zeroizing::new([dummy(0); WIDTH]);
    let drawn = draw::<C, N>(&mut scalars[..items.len()]);
    let (publics, sound) = entry::generate::<C, N>(isa, &scalars);
    for (lane, item) in items.iter_mut().enumerate() {
        item.result = drawn.map(|()| 1 + 3 * C::BYTES);
        verdict(item, lane, [u8::MAX, sound], BAD_KEY);
        if item.result.is_ok() {
            let (scalar, public) = item.request.data.output()[..1 + 3 * C::BYTES].split_at_mut(C::BYTES);
            write(&scalars[lane], scalar);
            public[0] = 4;
            write(&publics[0][lane], &mut public[1..=C::BYTES]);
            write(&publics[1][lane], &mut public[1 + C::BYTES..]);
        }
    }
}

/// Scalars as [`draw`] draws them: big-endian, a curve's length of each from the front.
#[cfg(feature = "dev")]
pub type Drawn = [[u8; BYTES_MAX]; WIDTH];

/// Public keys: `x` and `y`, big-endian, one after the other from the front.
#[cfg(feature = "dev")]
pub type Publics = [Option<[u8; 2 * BYTES_MAX]>; WIDTH];

/// What [`p256_generate`] makes of scalars that are drawn, with these. None where the scalar is not in range, which would be
/// drawn anew, or the result is not sound.
#[cfg(feature = "dev")]
pub fn p256_publics(isa: Ifma512, drawn: &Drawn) -> Publics {
    publics::<P256, 5>(isa, drawn)
}

/// The same on P-384.
#[cfg(feature = "dev")]
pub fn p384_publics(isa: Ifma512, drawn: &Drawn) -> Publics {
    publics::<P384, 8>(isa, drawn)
}

#[cfg(feature = "dev")]
fn publics<C: Curve<N>, const N: usize>(isa: Ifma512, drawn: &Drawn) -> Publics {
    let mut scalars: Lanes<N> = Zeroizing::new([dummy(0); WIDTH]);
    let mut taken = [false; WIDTH];
    for (lane, bytes) in drawn.iter().enumerate() {
        scalars[lane] = limbs_of(&bytes[..C::BYTES], 0);
        taken[lane] = in_range::<C, N>(&scalars[lane]);
    }
    let (made, sound) = entry::generate::<C, N>(isa, &scalars);
    std::array::from_fn(|lane| {
        (taken[lane] && sound >> lane & 1 == 1).then(|| {
            let mut public = [0; 2 * BYTES_MAX];
            write(&made[0][lane], &mut public[..C::BYTES]);
            write(&made[1][lane], &mut public[C::BYTES..2 * C::BYTES]);
            public
        })
    })
}

/// Fresh scalars in `[1, n)`, by rejection (FIPS 186-5 A.2.2): all at once, and anew those that are not in range, which
/// for P-256 is one in 2^32.
fn draw<C: Curve<N>, const N: usize>(scalars: &mut [Limbs<N>]) -> Result<(), Error> {
    let mut bytes = Zeroizing::new([[0u8; 48]; WIDTH]);
    let mut wanted: Vec<&mut Limbs<N>> = scalars.iter_mut().collect();
    for _ in 0..64 {
        getrandom::fill(bytes[..wanted.len()].as_flattened_mut())
            .map_err(|_| Error::Device(Fault::Reported))?;
        let mut lanes = bytes.iter();
        wanted.retain_mut(|scalar| {
            let Some(bytes) = lanes.next() else { return true };
            **scalar = limbs_of(&bytes[..C::BYTES], 0);
            !in_range::<C, N>(scalar)
        });
        if wanted.is_empty() {
            return Ok(());
        }
    }
    Err(Error::Device(Fault::Reported))
}
