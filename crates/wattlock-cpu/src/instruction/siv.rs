//! AES-SIV: S2V block by block on AWS-LC's AES, since each block waits for the one before it, and counter mode on the
//! kernels that requests in counter mode take.

use wattlock_core::{Data, Error};

use super::aes::CtrKey;
use super::span::Span;
use super::sys::aes::EncryptKey;
use crate::detect::Cpu;
use crate::siv::{Block, Parts, Subkeys};

/// An expanded key. Wipes itself.
pub(super) struct SivKey {
    halves: Halves,
    keys: Subkeys,
}

struct Halves {
    first: EncryptKey,
    second: CtrKey,
}

impl SivKey {
    /// # Errors
    /// [`Error::Invalid`] if the halves are no AES keys.
    pub(super) fn new(cpu: &Cpu, key: &[u8]) -> Result<SivKey, Error> {
        let (first, second) = key.split_at(key.len() / 2);
        let halves = Halves { first: EncryptKey::new(first)?, second: CtrKey::new(cpu, second)? };
        Ok(SivKey { keys: Subkeys::new(&halves), halves })
    }

    /// As [`crate::siv::seal`].
    pub(super) fn seal(
        &self,
        strings: (&[u8], &[u8]),
        data: &mut Data<'_>,
        tag: &mut Block,
    ) -> Result<usize, Error> {
        crate::siv::seal(&self.halves, &self.keys, strings, data, tag)
    }

    /// As [`crate::siv::open`].
    pub(super) fn open(
        &self,
        strings: (&[u8], &[u8]),
        data: &mut Data<'_>,
        tag: &Block,
    ) -> Result<usize, Error> {
        crate::siv::open(&self.halves, &self.keys, strings, data, tag)
    }
}

impl Parts for Halves {
    fn encrypt(&self, block: &mut Block) {
        *block = self.first.block(*block);
    }

    fn ctr(&self, counter: u128, data: &mut Data<'_>) -> Result<(), Error> {
        self.second.apply(counter, Span::of(data)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_rfc_5297_agree() {
        for cpu in [Cpu::detect(), Cpu::PLAIN] {
            crate::siv::examples::agree(|key| {
                let SivKey { halves, keys } = SivKey::new(&cpu, key).unwrap();
                (halves, keys)
            });
        }
    }
}
