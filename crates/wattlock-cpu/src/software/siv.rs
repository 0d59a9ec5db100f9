//! AES-SIV on bitsliced AES: two keys, the first for S2V, the second for counter mode.

use wattlock_core::{Data, Error};

use super::aes::{Aes, BLOCK};
use super::ctr;
use crate::siv::{Block, Parts, Subkeys};

/// An expanded key. Wipes itself.
pub struct Siv {
    halves: Halves,
    /// What S2V needs of the first half.
    pub keys: Subkeys,
}

struct Halves {
    first: Aes,
    second: Aes,
}

impl Siv {
    /// Expands a double key.
    ///
    /// # Errors
    /// [`Error::Invalid`] if its halves are no AES keys.
    pub fn new(key: &[u8]) -> Result<Siv, Error> {
        let (first, second) = key.split_at(key.len() / 2);
        let halves = Halves { first: Aes::new(first)?, second: Aes::new(second)? };
        Ok(Siv { keys: Subkeys::new(&halves), halves })
    }

    /// The two ciphers.
    pub fn parts(&self) -> &impl Parts {
        &self.halves
    }
}

impl Parts for Halves {
    fn encrypt(&self, block: &mut Block) {
        self.first.encrypt_block(block);
    }

    fn ctr(&self, counter: u128, data: &mut Data<'_>) -> Result<(), Error> {
        ctr::apply(&self.second, counter, data.gathered());
        Ok(())
    }
}

const _: () = assert!(BLOCK == crate::siv::BLOCK);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_rfc_5297_agree() {
        crate::siv::examples::agree(|key| {
            let Siv { halves, keys } = Siv::new(key).unwrap();
            (halves, keys)
        });
    }
}
