//! A byte on which no branch and no address may depend.
//!
//! It has no comparison, indexes nothing and becomes a number by [`Secret::reveal`] only, so that a branch on one does
//! not type-check. The compiler is kept from making one: it knows no value of a mask (`black_box`).

use std::hint::black_box;
use std::ops::{BitAnd, BitOr, BitXor, Not};

use zeroize::DefaultIsZeroes;

/// The byte. A mask is one of all ones or all zeros.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Secret(u8);

impl DefaultIsZeroes for Secret {}

impl Secret {
    /// Hides a byte.
    #[inline]
    pub fn of(byte: u8) -> Secret {
        Secret(byte)
    }

    /// Where it leaves: what is revealed must be public, or become a caller's to hide.
    #[inline]
    pub fn reveal(self) -> u8 {
        self.0
    }

    /// The mask of `self <= other`.
    #[inline]
    pub fn at_most(self, other: Secret) -> Secret {
        let borrow = u16::from(self.0).wrapping_sub(u16::from(other.0) + 1) >> 8;
        Secret(black_box(borrow as u8))
    }

    /// The mask of `self == 0`.
    #[inline]
    pub fn is_zero(self) -> Secret {
        self.at_most(Secret(0))
    }

    /// The mask of one bit, 0 being the lowest.
    #[inline]
    pub fn bit(self, place: u32) -> Secret {
        Secret(black_box((self.0 >> place & 1).wrapping_neg()))
    }

    /// For a mask: `yes` where it is all ones, `no` where it is zero.
    #[inline]
    pub fn choose(self, yes: Secret, no: Secret) -> Secret {
        (self & yes) | (!self & no)
    }
}

macro_rules! bitwise {
    ($($name:ident $function:ident $operator:tt)*) => {$(
        impl $name for Secret {
            type Output = Secret;
            #[inline]
            fn $function(self, other: Secret) -> Secret {
                Secret(self.0 $operator other.0)
            }
        }
    )*};
}
bitwise!(BitAnd bitand & BitOr bitor | BitXor bitxor ^);

impl Not for Secret {
    type Output = Secret;
    #[inline]
    fn not(self) -> Secret {
        Secret(!self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_right_for_all_bytes() {
        let mask = |yes: bool| if yes { 0xff } else { 0 };
        for a in 0..=255 {
            assert_eq!(Secret(a).is_zero().0, mask(a == 0));
            for b in 0..=255 {
                assert_eq!(Secret(a).at_most(Secret(b)).0, mask(a <= b), "{a} {b}");
            }
            for place in 0..8 {
                assert_eq!(Secret(a).bit(place).0, mask(a & 1 << place != 0), "{a} {place}");
            }
            assert_eq!(Secret(0xff).choose(Secret(a), Secret(!a)).0, a);
            assert_eq!(Secret(0).choose(Secret(!a), Secret(a)).0, a);
        }
    }
}
