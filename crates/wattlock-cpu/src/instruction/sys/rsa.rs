//! RSA private keys.
//!
//! AWS-LC blinds, uses the CRT, and raises every result to the public exponent before it hands it out
//! (`rsa_default_private_transform`, "Verify the result to protect against fault attacks"), so a fault in one half
//! cannot leak a factor; we do not repeat that. When a key is made it checks that n = pq, that d, dp, dq and qinv
//! belong together, and that e is theirs (`RSA_check_key`).

use wattlock_core::{Error, Fault, RsaKey};

use super::raw;
use super::result::{Failed, Owned, done};

/// An expanded RSA private key. AWS-LC wipes it when it is freed.
pub(in super::super) struct RsaPrivate {
    key: Owned<raw::RSA>,
    modulus: Vec<u8>,
}

// SAFETY: the header allows concurrent use of one key by operations that do not set its fields; the blinding cache
// inside has its own lock.
unsafe impl Send for RsaPrivate {}
// SAFETY: as above.
unsafe impl Sync for RsaPrivate {}

impl RsaPrivate {
    /// # Errors
    /// [`Error::Invalid`] if the parts do not belong together.
    pub(in super::super) fn new(key: &RsaKey) -> Result<RsaPrivate, Error> {
        let parts = [&key.n, &key.e, &key.d, &key.p, &key.q, &key.dp, &key.dq, &key.qinv];
        let object = (|| -> Result<_, Failed> {
            let [n, e, d, p, q, dp, dq, qinv] = parts.map(|part| Owned::number(part));
            let (n, e, d, p, q, dp, dq, qinv) = (n?, e?, d?, p?, q?, dp?, dq?, qinv?);
            // SAFETY: all eight are live; the call copies them, and returns an object we own, or null.
            unsafe {
                Owned::new(raw::RSA_new_private_key_large_e(
                    n.get(),
                    e.get(),
                    d.get(),
                    p.get(),
                    q.get(),
                    dp.get(),
                    dq.get(),
                    qinv.get(),
                ))
            }
        })();
        Ok(RsaPrivate { key: object.map_err(|_| Error::Invalid("RSA key"))?, modulus: key.n.clone() })
    }

    /// Raw private operation on integers as long as the modulus.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a length is wrong or the input is not below the modulus; [`Error::Device`] if the result
    /// did not survive the check with the public exponent.
    pub(in super::super) fn apply(&self, input: &[u8], out: &mut [u8]) -> Result<(), Error> {
        if input.len() != self.modulus.len() || !below(input, &self.modulus) {
            return Err(Error::Invalid("input not below the modulus"));
        }
        if out.len() != input.len() {
            return Err(Error::Invalid("output length"));
        }
        // AWS-LC refuses 0, 1 and n - 1, whose powers to any odd exponent are themselves.
        if self.is_fixed_point(input) {
            out.copy_from_slice(input);
            return Ok(());
        }
        let mut len = 0;
        // SAFETY: the key is live; reads `input`, writes at most `out.len()` bytes.
        let signed = done(unsafe {
            raw::RSA_sign_raw(
                self.key.get_mut(),
                &raw mut len,
                out.as_mut_ptr(),
                out.len(),
                input.as_ptr(),
                input.len(),
                raw::RSA_NO_PADDING,
            )
        });
        if signed.is_err() || len != out.len() {
            zeroize::Zeroize::zeroize(out);
            return Err(Error::Device(Fault::WrongResult));
        }
        Ok(())
    }

    /// Whether `result` is the private operation's on `input`: by the public exponent, without the private one.
    pub(in super::super) fn verifies(&self, input: &[u8], result: &[u8]) -> bool {
        if result.len() != self.modulus.len() || !below(result, &self.modulus) {
            return false;
        }
        let (mut back, mut len) = (vec![0; self.modulus.len()], 0);
        // SAFETY: the key is live; reads `result`, writes at most `back.len()` bytes.
        let raised = done(unsafe {
            raw::RSA_verify_raw(
                self.key.get_mut(),
                &raw mut len,
                back.as_mut_ptr(),
                back.len(),
                result.as_ptr(),
                result.len(),
                raw::RSA_NO_PADDING,
            )
        });
        raised.is_ok() && bool::from(subtle::ConstantTimeEq::ct_eq(&back[..len], input))
    }

    /// Whether the number is 0, 1 or n - 1. Only the answer leaks.
    fn is_fixed_point(&self, input: &[u8]) -> bool {
        // n is odd: n - 1 differs from it in the lowest bit only.
        let last = input.len() - 1;
        let (mut low, mut high) = (input[last] & !1, input[last] ^ self.modulus[last] ^ 1);
        for (byte, modulus) in input.iter().zip(&self.modulus).take(last) {
            low |= byte;
            high |= byte ^ modulus;
        }
        low == 0 || high == 0
    }
}

/// Whether one big-endian integer is below another of the same length. Only the answer leaks.
fn below(a: &[u8], b: &[u8]) -> bool {
    let borrow = a.iter().zip(b).rev().fold(0u16, |borrow, (a, b)| {
        (u16::from(*a).wrapping_sub(u16::from(*b)).wrapping_sub(borrow) >> 8) & 1
    });
    borrow == 1
}
