//! Judges another engine's result.
//!
//! Where the kind is a function of its inputs the result is computed again and compared; RSA is cheaper to check by
//! the public exponent; what differs from run to run is verified by what it must satisfy. A claimed success of a
//! request that this engine refuses is a wrong result too.

use constant_time_eq::constant_time_eq;
use crypto_bigint::{U2048, U3072, U4096};
use p256::NistP256;
use p384::NistP384;
use subtle::ConstantTimeEq;
use wattlock_core::{Data, Error, Family, Fault, Kind, Material, OwnedRequest, Request};
use zeroize::Zeroizing;

use super::nist::{self, Nist};
use super::rsa::RsaPublic;
use super::{compute, deflate, x25519};

const WRONG: Error = Error::Device(Fault::WrongResult);

/// See [`wattlock_core::Engine::check`].
pub fn check(request: &OwnedRequest, len: usize) -> Result<(), Error> {
    let output = request.output.get(..len).ok_or(WRONG)?;
    let right = match request.kind {
        Kind::Rsa2048Private => belongs::<{ U2048::LIMBS }>(request, output),
        Kind::Rsa3072Private => belongs::<{ U3072::LIMBS }>(request, output),
        Kind::Rsa4096Private => belongs::<{ U4096::LIMBS }>(request, output),
        Kind::EcdsaP256Sign => verifies::<NistP256>(request, output),
        Kind::EcdsaP384Sign => verifies::<NistP384>(request, output),
        Kind::P256Generate => nist::is_pair::<NistP256>(output),
        Kind::P384Generate => nist::is_pair::<NistP384>(output),
        Kind::X25519Generate => x25519::is_pair(output),
        Kind::Deflate => deflate::is_compressed(&request.aad, &request.input, output, request.options),
        Kind::Zstd => crate::zstd::decompresses_to(output, &request.aad, &request.input),
        _ => return recompute(request, output),
    };
    if right { Ok(()) } else { Err(WRONG) }
}

fn belongs<const FULL: usize>(request: &OwnedRequest, output: &[u8]) -> bool {
    // Above, the modulus length decides the kind; here a shorter output would be a smaller number.
    let whole = Some(output.len()) == request.kind.info().output;
    let public = RsaPublic::<FULL>::new(request.key.material());
    whole && public.is_ok_and(|public| public.belongs(&request.input, output))
}

fn verifies<C: Nist>(request: &OwnedRequest, output: &[u8]) -> bool {
    match request.key.material() {
        Material::Ec(key) => nist::verify::<C>(&key.public, &request.input, output),
        _ => false,
    }
}

/// Computes the request again, apart, and compares length, output and tag.
fn recompute(request: &OwnedRequest, output: &[u8]) -> Result<(), Error> {
    let mut again = Zeroizing::new(vec![0; request.output.len()]);
    let mut tag = request.tag;
    let info = request.kind.info();
    let mut copy = Request {
        nonce: &request.nonce,
        aad: &request.aad,
        tag: &mut tag[..info.tag],
        options: request.options,
        class: request.class,
        ..Request::new(request.kind, &request.key, Data::Apart { from: &request.input, to: &mut again })
    };
    let len = match compute(&mut copy) {
        Ok(len) => len,
        Err(Error::Unsupported) => return Err(Error::Unsupported),
        Err(_) => return Err(WRONG),
    };
    let same_tag = info.family != Family::Seal || bool::from(tag.ct_eq(&request.tag));
    if same_tag && constant_time_eq(&again[..len], output) { Ok(()) } else { Err(WRONG) }
}
