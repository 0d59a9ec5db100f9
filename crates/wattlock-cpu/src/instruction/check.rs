//! Checking another engine's result.

use constant_time_eq::constant_time_eq;
use subtle::ConstantTimeEq;
use wattlock_core::{Curve, Data, EcKey, Error, Family, Fault, Kind, Material, OwnedRequest, Request};
use zeroize::Zeroizing;

use super::sys::ec::{self, EcSigner};
use super::sys::x25519;
use super::{Instruction, deflate, expand};
use crate::zstd;

const WRONG: Error = Error::Device(Fault::WrongResult);

/// Whether the first `len` bytes of the output (and the tag, where there is one) are a right answer.
pub(super) fn check(engine: &Instruction, request: &OwnedRequest, len: usize) -> Result<(), Error> {
    let result = request.output.get(..len).ok_or(WRONG)?;
    let info = request.kind.info();
    if info.output.is_some_and(|fixed| fixed != len) {
        return Err(WRONG);
    }
    let right = match info.family {
        Family::Compress if request.kind == Kind::Zstd => {
            zstd::decompresses_to(result, &request.aad, &request.input)
        }
        Family::Compress => deflate::inflates_to(result, &request.aad, &request.input, request.options.last),
        Family::Generate if !info.deterministic => is_key_pair(request.kind, result),
        Family::Sign if info.deterministic => {
            expand::rsa(&request.key).map_err(|_| WRONG)?.verifies(&request.input, result)
        }
        Family::Sign => is_signature(request, result),
        _ => recomputes_to(engine, request, result),
    };
    if right { Ok(()) } else { Err(WRONG) }
}

/// Repeats a deterministic request and compares in constant time.
fn recomputes_to(engine: &Instruction, request: &OwnedRequest, result: &[u8]) -> bool {
    // Derived keys are as long as the output asked for; everything else follows from the request.
    let room = match request.kind.info().family {
        Family::Derive => request.output.len(),
        _ => request.kind.info().output.unwrap_or(request.input.len()),
    };
    let mut again = Zeroizing::new(vec![0u8; room]);
    let mut tag = request.tag;
    let used = request.kind.info().tag;
    let mut repeated = Request {
        nonce: &request.nonce,
        aad: &request.aad,
        tag: &mut tag[..used],
        options: request.options,
        class: request.class,
        ..Request::new(request.kind, &request.key, Data::Apart { from: &request.input, to: &mut again })
    };
    let Ok(len) = engine.run(&mut repeated) else { return false };
    // By words: `subtle` takes a nanosecond a byte, three times as long as the work that is repeated.
    let same = again.get(..len).is_some_and(|again| constant_time_eq(again, result));
    same & bool::from(tag.ct_eq(&request.tag))
}

/// Whether `signature` is one of the request's digest, by the key's public point alone.
fn is_signature(request: &OwnedRequest, signature: &[u8]) -> bool {
    match (request.key.algorithm().curve(), request.key.material()) {
        (Some(curve), Material::Ec(pair)) => ec::verifies(curve, &pair.public, &request.input, signature),
        _ => false,
    }
}

/// Whether `pair` is a scalar and its public key.
fn is_key_pair(kind: Kind, pair: &[u8]) -> bool {
    let curve = match kind {
        Kind::P256Generate => Curve::P256,
        Kind::P384Generate => Curve::P384,
        _ => Curve::X25519,
    };
    let (scalar, public) = pair.split_at(curve.scalar_len().min(pair.len()));
    if curve == Curve::X25519 {
        return <&[u8; 32]>::try_from(scalar)
            .is_ok_and(|scalar| bool::from(x25519::public(scalar).ct_eq(public)));
    }
    let key = EcKey { scalar: scalar.to_vec(), public: public.to_vec() };
    EcSigner::new(curve, &key).is_ok()
}
