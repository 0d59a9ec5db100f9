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

use wattlock_core::{Data, Error, Item, Kind, KindSet, ML_KEM_768_PUBLIC, Material, Request};

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

/// Bytes of a shared secret, and of an encapsulation's randomness.
const SHARED: usize = 32;
const RANDOMNESS: usize = 32;

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
        *result = generation(request).map(|one| {
            (work[count], count) = (one, count + 1);
            SECRET
        });
    }
    if count > 0 {
        isa.generate(&mut work[..count]);
    }
}

fn generation<'r>(request: &'r mut Request<'_>) -> Result<Generation<'r>, Error> {
    let (_, out) = apart(&mut request.data, SECRET)?;
    if request.nonce.len() != SEED {
        return Err(Error::Invalid("nonce length"));
    }
    Ok(Generation { seed: request.nonce, out })
}

fn encapsulate(isa: Isa, items: &mut [Item<'_>]) {
    let (mut work, mut count): ([Encapsulation<'_>; LANES], usize) = Default::default();
    for Item { request, result } in items {
        *result = encapsulation(isa, request).map(|one| {
            (work[count], count) = (one, count + 1);
            CIPHERTEXT + SHARED
        });
    }
    if count > 0 {
        isa.encapsulate(&mut work[..count]);
    }
}

fn encapsulation<'r>(isa: Isa, request: &'r mut Request<'_>) -> Result<Encapsulation<'r>, Error> {
    let (peer, out) = apart(&mut request.data, CIPHERTEXT + SHARED)?;
    if request.nonce.len() != RANDOMNESS {
        return Err(Error::Invalid("nonce length"));
    }
    if peer.len() != PUBLIC || !isa.is_reduced(peer) {
        return Err(BAD_PUBLIC);
    }
    Ok(Encapsulation { peer, m: request.nonce, out })
}

fn decapsulate(isa: Isa, items: &mut [Item<'_>]) {
    let (mut work, mut count): ([Decapsulation<'_>; LANES], usize) = Default::default();
    let mut results: [Option<&mut Result<usize, Error>>; LANES] = Default::default();
    for Item { request, result } in items {
        match decapsulation(request) {
            Ok(one) => (work[count], results[count], count) = (one, Some(result), count + 1),
            Err(error) => *result = Err(error),
        }
    }
    if count > 0 {
        isa.decapsulate(&mut work[..count]);
    }
    for (result, item) in results.into_iter().flatten().zip(&work) {
        *result = if item.fits { Ok(SHARED) } else { Err(BAD_SECRET) };
    }
}

fn decapsulation<'r>(request: &'r mut Request<'_>) -> Result<Decapsulation<'r>, Error> {
    let Material::MlKem(key) = request.key.material() else { return Err(Error::Invalid("key algorithm")) };
    let (ciphertext, out) = apart(&mut request.data, SHARED)?;
    if key.len() != SECRET || ciphertext.len() != CIPHERTEXT {
        return Err(Error::Invalid("input length"));
    }
    Ok(Decapsulation { key, ciphertext, out, fits: false })
}

/// Input, and so many bytes of output.
///
/// # Errors
/// [`Error::Invalid`] if there are fewer, or if both are one.
fn apart<'r>(data: &'r mut Data<'_>, room: usize) -> Result<(&'r [u8], &'r mut [u8]), Error> {
    match data {
        Data::Apart { from, to } => Ok((from, to.get_mut(..room).ok_or(Error::Invalid("output length"))?)),
        Data::InPlace(_) => Err(Error::Invalid("this kind cannot work in place")),
    }
}
