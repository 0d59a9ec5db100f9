//! The RSA private operation (RFC 8017 sections 5.1.2 and 5.2.1), by the Chinese remainder theorem, on
//! `crypto-bigint`'s constant-time Montgomery arithmetic.
//!
//! Every result is raised to the public exponent before it leaves: one wrong half would give the factors away (Boneh,
//! DeMillo and Lipton 1997). There is no blinding, because no time or address depends on base, exponent or primes;
//! only the public exponent's bits do. This file refuses padding.

use crypto_bigint::modular::{FixedMontyForm, FixedMontyParams};
use crypto_bigint::{Limb, Odd, U64, U1024, U1536, U2048, U3072, U4096, Uint};
use subtle::ConstantTimeEq;
use wattlock_core::{Error, Material, RsaKey};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// 2048-bit modulus.
pub type Rsa2048 = Rsa<{ U1024::LIMBS }, { U2048::LIMBS }>;
/// 3072-bit modulus.
pub type Rsa3072 = Rsa<{ U1536::LIMBS }, { U3072::LIMBS }>;
/// 4096-bit modulus.
pub type Rsa4096 = Rsa<{ U2048::LIMBS }, { U4096::LIMBS }>;

const BAD_KEY: Error = Error::Invalid("RSA key");
const TOO_LARGE: Error = Error::Invalid("input is not below the modulus");

/// The public half, which is all that checking a result needs.
pub struct RsaPublic<const FULL: usize> {
    modulus: FixedMontyParams<FULL>,
    exponent: U64,
}

impl<const FULL: usize> RsaPublic<FULL> {
    /// From a key of this size.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is not of this size.
    pub fn new(material: &Material) -> Result<RsaPublic<FULL>, Error> {
        let key = rsa_parts(material)?;
        let modulus = FixedMontyParams::new_vartime(odd(&key.n)?);
        Ok(RsaPublic { modulus, exponent: integer(&key.e)? })
    }

    /// A big-endian integer below the modulus.
    fn below_modulus(&self, bytes: &[u8]) -> Result<Uint<FULL>, Error> {
        let number = integer(bytes)?;
        let (_, borrow) = number.borrowing_sub(self.modulus.modulus().as_ref(), Limb::ZERO);
        if borrow == Limb::ZERO {
            return Err(TOO_LARGE);
        }
        Ok(number)
    }

    fn raise(&self, base: &Uint<FULL>) -> Uint<FULL> {
        FixedMontyForm::new(base, &self.modulus).pow_vartime(&self.exponent).retrieve()
    }

    /// Whether `output` is the private operation's result for `input`.
    pub fn belongs(&self, input: &[u8], output: &[u8]) -> bool {
        let (Ok(input), Ok(output)) = (self.below_modulus(input), self.below_modulus(output)) else {
            return false;
        };
        self.raise(&output) == input
    }
}

/// One prime and what belongs to it.
struct Prime<const HALF: usize> {
    params: FixedMontyParams<HALF>,
    /// 2^bits(HALF) in Montgomery form.
    shift: FixedMontyForm<HALF>,
    exponent: Uint<HALF>,
}

impl<const HALF: usize> Prime<HALF> {
    fn new(prime: &[u8], exponent: &[u8]) -> Result<Prime<HALF>, Error> {
        let params = FixedMontyParams::new(odd(prime)?);
        // Montgomery's one is the residue of the very power of two that a high half stands for.
        let shift = FixedMontyForm::new(params.one(), &params);
        Ok(Prime { params, shift, exponent: integer(exponent)? })
    }

    /// `(low + high 2^bits)` to the secret exponent. Both halves may exceed the prime: conversion reduces.
    fn raise(&self, low: &Uint<HALF>, high: &Uint<HALF>) -> FixedMontyForm<HALF> {
        let mut base = FixedMontyForm::new(high, &self.params)
            .mul(&self.shift)
            .add(&FixedMontyForm::new(low, &self.params));
        let power = base.pow_amm(&self.exponent);
        base.zeroize();
        power
    }
}

impl<const HALF: usize> Drop for Prime<HALF> {
    fn drop(&mut self) {
        self.params.zeroize();
        self.shift.zeroize();
        self.exponent.zeroize();
    }
}

/// An expanded private key. Wipes itself.
pub struct Rsa<const HALF: usize, const FULL: usize> {
    public: RsaPublic<FULL>,
    p: Prime<HALF>,
    q: Prime<HALF>,
    q_inverse: FixedMontyForm<HALF>,
}

impl<const HALF: usize, const FULL: usize> Drop for Rsa<HALF, FULL> {
    fn drop(&mut self) {
        self.q_inverse.zeroize();
    }
}

impl<const HALF: usize, const FULL: usize> ZeroizeOnDrop for Rsa<HALF, FULL> {}

impl<const HALF: usize, const FULL: usize> Rsa<HALF, FULL> {
    /// Expands a key.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is not of this size or the primes do not make the modulus.
    pub fn new(material: &Material) -> Result<Rsa<HALF, FULL>, Error> {
        let key = rsa_parts(material)?;
        let public = RsaPublic::new(material)?;
        let p = Prime::new(&key.p, &key.dp)?;
        let q = Prime::new(&key.q, &key.dq)?;
        let (low, high) = p.params.modulus().as_ref().widening_mul(q.params.modulus().as_ref());
        if low.concat_resize::<HALF, FULL>(&high) != *public.modulus.modulus().as_ref() {
            return Err(BAD_KEY);
        }
        let q_inverse = FixedMontyForm::new(&integer(&key.qinv)?, &p.params);
        Ok(Rsa { public, p, q, q_inverse })
    }

    /// `input` to the private exponent, into `output`, which is as long as the modulus.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `input` is not below the modulus, or if the parts of the key do not belong together; the
    /// output is zeroed then.
    pub fn private(&self, input: &[u8], output: &mut [u8]) -> Result<usize, Error> {
        let number = self.public.below_modulus(input)?;
        let (low, high) = number.split_resize::<HALF, HALF>();
        let mut of_p = self.p.raise(&low, &high);
        let mut of_q = self.q.raise(&low, &high);
        let mut mq = of_q.retrieve();
        // Garner: m = mq + q ((mp - mq) / q mod p).
        let mut h = of_p.sub(&FixedMontyForm::new(&mq, &self.p.params)).mul(&self.q_inverse).retrieve();
        let (low, high) = self.q.params.modulus().as_ref().widening_mul(&h);
        let (low, carry) = low.carrying_add(&mq, Limb::ZERO);
        let mut result = low.concat_resize::<HALF, FULL>(&high.wrapping_add(&Uint::from(carry)));
        let right = self.public.raise(&result).ct_eq(&number);
        if bool::from(right) {
            output.copy_from_slice(result.to_be_bytes().as_ref());
        } else {
            output.zeroize();
        }
        of_p.zeroize();
        of_q.zeroize();
        mq.zeroize();
        h.zeroize();
        result.zeroize();
        if bool::from(right) { Ok(output.len()) } else { Err(BAD_KEY) }
    }
}

fn rsa_parts(material: &Material) -> Result<&RsaKey, Error> {
    match material {
        Material::Rsa(key) => Ok(key),
        _ => Err(BAD_KEY),
    }
}

/// A big-endian integer of at most `LIMBS` limbs, zeros in front supplied.
fn integer<const LIMBS: usize>(bytes: &[u8]) -> Result<Uint<LIMBS>, Error> {
    let mut number = Uint::ZERO;
    let limbs: &mut [Limb] = number.as_mut_limbs();
    if bytes.len() > limbs.len() * Limb::BYTES {
        return Err(BAD_KEY);
    }
    for (limb, bytes) in limbs.iter_mut().zip(bytes.rchunks(Limb::BYTES)) {
        *limb = bytes.iter().fold(Limb::ZERO, |limb, byte| limb.wrapping_shl(8) | Limb::from(*byte));
    }
    Ok(number)
}

fn odd<const LIMBS: usize>(bytes: &[u8]) -> Result<Odd<Uint<LIMBS>>, Error> {
    Option::from(integer(bytes)?.to_odd()).ok_or(BAD_KEY)
}
