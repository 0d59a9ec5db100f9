//! What engines that do ML-KEM-768 and doors that take its keys have in common: which coefficients are reduced (FIPS 203 section 7.2).

/// FIPS 203's modulus.
const Q: u16 = 3329;

/// Bytes of a vector of polynomials at 12 bits a coefficient, with which keys of either sort begin.
pub(crate) const VECTOR: usize = 1152;

/// What becomes of keys of either sort that are not in order.
pub(crate) const BAD_PUBLIC: wattlock_core::Error = wattlock_core::Error::Invalid("encapsulation key");
pub(crate) const BAD_SECRET: wattlock_core::Error = wattlock_core::Error::Invalid("decapsulation key");

/// Whether each coefficient of the vector with which an encapsulation key begins is below the modulus. The key is public.
pub fn is_reduced(key: &[u8]) -> bool {
    let Some((vector, _)) = key.split_at_checked(VECTOR) else { return false };
    vector.as_chunks().0.iter().all(|three| two(three).iter().all(|coefficient| *coefficient < Q))
}

/// Takes each coefficient of the vector with which a decapsulation key begins modulo q, as FIPS 203 algorithm 6 decodes it. No
/// branch depends on one.
pub(crate) fn reduce(key: &mut [u8]) {
    for three in key[..VECTOR].as_chunks_mut().0 {
        let [a, b] = two(three).map(|x| {
            // Below zero, and so q more again, if it was reduced.
            let less = x.wrapping_sub(Q);
            less.wrapping_add(Q & 0u16.wrapping_sub(less >> 15))
        });
        *three = [a as u8, (a >> 8 | b << 4) as u8, (b >> 4) as u8];
    }
}

/// Two coefficients of 12 bits.
fn two([a, b, c]: &[u8; 3]) -> [u16; 2] {
    let (a, b, c) = (u16::from(*a), u16::from(*b), u16::from(*c));
    [a | (b & 15) << 8, b >> 4 | c << 4]
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

    #[test]
    fn every_pair_of_coefficients_is_taken_modulo_q() {
        for x in 0..4096u16 {
            let y = 4095 - x;
            let mut key = [x as u8, (x >> 8 | y << 4) as u8, (y >> 4) as u8].repeat(VECTOR / 3);
            reduce(&mut key);
            assert!(key.as_chunks().0.iter().all(|three| two(three) == [x % Q, y % Q]), "{x} and {y}");
        }
    }
}
