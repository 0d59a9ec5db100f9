//! What engines that do ML-KEM-768 have in common: the check of FIPS 203 section 7.2, also of keys that are secret.

/// FIPS 203's modulus.
const Q: u16 = 3329;

/// Bytes of a vector of polynomials at 12 bits a coefficient, with which keys of either sort begin.
pub(crate) const VECTOR: usize = 1152;

/// What becomes of keys of either sort that are not in order.
pub(crate) const BAD_PUBLIC: wattlock_core::Error = wattlock_core::Error::Invalid("encapsulation key");
pub(crate) const BAD_SECRET: wattlock_core::Error = wattlock_core::Error::Invalid("decapsulation key");

/// Whether each coefficient of the vector with which `key` begins is below the modulus. No branch depends on one; the verdict
/// is public.
pub(crate) fn is_reduced(key: &[u8]) -> bool {
    let Some((vector, _)) = key.split_at_checked(VECTOR) else { return false };
    let above = |[a, b, c]: &[u8; 3]| {
        let (a, b, c) = (u16::from(*a), u16::from(*b), u16::from(*c));
        let (first, second) = (a | (b & 15) << 8, b >> 4 | c << 4);
        // Below zero if one is the modulus or more.
        (Q - 1).wrapping_sub(first) | (Q - 1).wrapping_sub(second)
    };
    vector.as_chunks().0.iter().fold(0, |all, three| all | above(three)) >> 15 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modulus_in_any_place_is_found() {
        let mut key = [0x00, 0x0d, 0xd0].repeat(VECTOR / 3);
        assert!(is_reduced(&key) && !is_reduced(&key[1..]), "3328 in every place, but not in too few");
        for at in 0..2 * VECTOR / 3 {
            let (byte, one) = (at / 2 * 3 + at % 2, if at % 2 == 0 { 1 } else { 0x10 });
            key[byte] += one;
            assert!(!is_reduced(&key), "3329 in place {at}");
            key[byte] -= one;
        }
    }
}
