//! Entries of the kernels: the generic code compiled with AVX-512 or AVX2.

use super::kernel::{self, Decapsulation, Encapsulation, Generation};
use crate::lanes::bleach;
use crate::lanes::vector::shorts::Isa;
use crate::lanes::vector::shorts::pair::Pair;
use crate::lanes::words::Zmm;

macro_rules! entries {
    ($vector:ident, $features:literal: $generate:ident $encapsulate:ident $decapsulate:ident $is_reduced:ident) => {
        #[target_feature(enable = $features)]
        #[inline(never)]
        fn $generate(items: &mut [Generation<'_>]) {
            kernel::generate::<$vector>(items);
        }

        #[target_feature(enable = $features)]
        #[inline(never)]
        fn $encapsulate(items: &mut [Encapsulation<'_>]) {
            kernel::encapsulate::<$vector>(items);
        }

        #[target_feature(enable = $features)]
        #[inline(never)]
        fn $decapsulate(items: &mut [Decapsulation<'_>]) {
            kernel::decapsulate::<$vector>(items);
        }

        #[target_feature(enable = $features)]
        #[inline(never)]
        fn $is_reduced(peer: &[u8]) -> bool {
            kernel::is_reduced::<$vector>(peer)
        }
    };
}

entries!(Zmm, "avx512f,avx512bw": generate_512 encapsulate_512 decapsulate_512 is_reduced_512);
entries!(Pair, "avx2": generate_256 encapsulate_256 decapsulate_256 is_reduced_256);

impl Isa {
    // SAFETY of all that follow: the witness says that the CPU has the entry's instructions.

    /// Key pairs of one to eight seeds.
    pub fn generate(self, items: &mut [Generation<'_>]) {
        // SAFETY: as above.
        unsafe {
            match self {
                Isa::Wide512(_) => generate_512(items),
                Isa::Wide256(_) => generate_256(items),
            }
        }
    }

    /// One to eight encapsulations.
    pub fn encapsulate(self, items: &mut [Encapsulation<'_>]) {
        // SAFETY: as above.
        unsafe {
            match self {
                Isa::Wide512(_) => encapsulate_512(items),
                Isa::Wide256(_) => encapsulate_256(items),
            }
        }
    }

    /// One to eight decapsulations.
    pub fn decapsulate(self, items: &mut [Decapsulation<'_>]) {
        // SAFETY: as above.
        unsafe {
            match self {
                Isa::Wide512(_) => decapsulate_512(items),
                Isa::Wide256(_) => decapsulate_256(items),
            }
        }
    }

    /// Whether an encapsulation key, which is as long as one, is reduced.
    pub fn is_reduced(self, peer: &[u8]) -> bool {
        // SAFETY: as above.
        unsafe {
            match self {
                Isa::Wide512(_) => is_reduced_512(peer),
                Isa::Wide256(_) => is_reduced_256(peer),
            }
        }
    }

    /// [`bleach`] for the largest frames of these entries.
    pub fn bleach(self) {
        bleach::<{ 96 << 10 }>();
    }
}
