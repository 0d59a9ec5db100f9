//! ML-KEM-768 (FIPS 203), up to eight requests side by side: key pairs, encapsulations, decapsulations.
//!
//! This file is between requests and [`kernel`]. It refuses arithmetic, and the choice of instructions, which is
//! [`entries`]'s. Requests that FIPS 203's input checks refuse (section 7) fail alone.
//!
//! *What is public* and *what is wiped*: see [`kernel`]. After a pass [`bleach`](super::bleach) overwrites the stack.

mod codec;
#[allow(unsafe_code)]
mod entries;
mod kernel;
mod ntt;
mod sample;
#[cfg(test)]
mod tests;

use wattlock_core::{Data, Error, Item, Kind, KindSet, ML_KEM_768_PUBLIC, Material};

use super::vector::shorts::Isa;
use crate::detect::Cpu;
use crate::kem::{BAD_PUBLIC, BAD_SECRET};
use kernel::{Decapsulation, Encapsulation, Generation};

/// Requests in a pass.
pub const LANES: usize = 8;

/// Bytes of an encapsulation key, a ciphertext, a key pair's seed and a decapsulation key.
const PUBLIC: usize = ML_KEM_768_PUBLIC.end - ML_KEM_768_PUBLIC.start;
const CIPHERTEXT: usize = 1088;
const SEED: usize = 64;
const SECRET: usize = 2400;

/// Bytes of a shared secret.
const SHARED: usize = 32;

/// The kinds.
const KINDS: [Kind; 3] = [Kind::MlKem768Generate, Kind::MlKem768Encapsulate, Kind::MlKem768Decapsulate];

/// Which of them this CPU does.
pub fn kinds(cpu: &Cpu) -> KindSet {
    if Isa::best(cpu).is_some() { KindSet::of(&KINDS) } else { KindSet::EMPTY }
}

/// Does any number of requests of one of [`kinds`].
pub fn run(isa: Isa, kind: Kind, items: &mut [Item<'_>]) {
    for batch in items.chunks_mut(LANES) {
        match kind {
            Kind::MlKem768Generate => generate(isa, batch),
            Kind::MlKem768Encapsulate => encapsulate(isa, batch),
            Kind::MlKem768Decapsulate => decapsulate(isa, batch),
            _ => batch.iter_mut().for_each(|item| item.result = Err(Error::Unsupported)),
        }
    }
    isa.bleach();
}

fn generate(isa: Isa, items: &mut [Item<'_>]) {
    let (mut work, mut count): ([Generation<'_>; LANES], usize) = Default::default();
    for Item { request, result } in items {
        let Some((_, out)) = apart(&mut request.data, SECRET) else {
            *result = Err(Error::Invalid("output length"));
            continue;
        };
        if request.nonce.len() != SEED {
            *result = Err(Error::Invalid("nonce length"));
            continue;
        }
        work[count] = Generation { seed: request.nonce, out };
        (*result, count) = (Ok(SECRET), count + 1);
    }
    if count > 0 {
        isa.generate(&mut work[..count]);
    }
}

fn encapsulate(isa: Isa, items: &mut [Item<'_>]) {
    let (mut work, mut count): ([Encapsulation<'_>; LANES], usize) = Default::default();
    for Item { request, result } in items {
        let Some((peer, out)) = apart(&mut request.data, CIPHERTEXT + SHARED) else {
            *result = Err(Error::Invalid("output length"));
            continue;
        };
        if request.nonce.len() != 32 {
            *result = Err(Error::Invalid("nonce length"));
            continue;
        }
        if peer.len() != PUBLIC || !isa.is_reduced(peer) {
            *result = Err(BAD_PUBLIC);
            continue;
        }
        work[count] = Encapsulation { peer, m: request.nonce, out };
        (*result, count) = (Ok(CIPHERTEXT + SHARED), count + 1);
    }
    if count > 0 {
        isa.encapsulate(&mut work[..count]);
    }
}

fn decapsulate(isa: Isa, items: &mut [Item<'_>]) {
    let (mut work, mut count): ([Decapsulation<'_>; LANES], usize) = Default::default();
    let (mut results, mut waiting): ([Option<&mut Result<usize, Error>>; LANES], _) = Default::default();
    for Item { request, result } in items {
        let key = match request.key.material() {
            Material::MlKem(key) if key.len() == SECRET => key,
            _ => {
                *result = Err(Error::Invalid("key algorithm"));
                continue;
            }
        };
        let Some((ciphertext, out)) = apart(&mut request.data, SHARED) else {
            *result = Err(Error::Invalid("output length"));
            continue;
        };
        if ciphertext.len() != CIPHERTEXT {
            *result = Err(Error::Invalid("input length"));
            continue;
        }
        work[count] = Decapsulation { key, ciphertext, out, fits: false };
        (results[count], count) = (Some(result), count + 1);
        waiting = count;
    }
    if waiting > 0 {
        isa.decapsulate(&mut work[..waiting]);
    }
    for (result, item) in results.into_iter().flatten().zip(&work) {
        *result = if item.fits { Ok(SHARED) } else { Err(BAD_SECRET) };
    }
}

/// Input, and so many bytes of output; nothing if there are fewer, or if both are one.
fn apart<'r>(data: &'r mut Data<'_>, room: usize) -> Option<(&'r [u8], &'r mut [u8])> {
    match data {
        Data::Apart { from, to } => Some((from, to.get_mut(..room)?)),
        Data::InPlace(_) => None,
    }
}
