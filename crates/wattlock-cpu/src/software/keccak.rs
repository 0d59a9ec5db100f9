//! SHA-3 and SHAKE (FIPS 202), by `sha3`: portable code over 64-bit words, whose states wipe themselves.

use std::fmt;

use sha3::digest::{ExtendableOutput, FixedOutputReset, Update, XofReader};
use wattlock_core::{Data, Error, Kind, Progress, Stream};

/// Hashes `input` into the first bytes of `out`.
pub fn digest<D: Default + Update + FixedOutputReset>(input: &[u8], out: &mut [u8]) -> Result<usize, Error> {
    let out = out.get_mut(..D::output_size()).ok_or(Error::Invalid("output length"))?;
    let mut hash = D::default();
    hash.update(input);
    finish(&mut hash, out);
    Ok(out.len())
}

/// As much of the function's output as `out` takes.
pub fn extend<X: Default + Update + ExtendableOutput>(input: &[u8], out: &mut [u8]) -> Result<usize, Error> {
    let mut hash = X::default();
    hash.update(input);
    hash.finalize_xof().read(out);
    Ok(out.len())
}

fn finish<D: FixedOutputReset>(hash: &mut D, out: &mut [u8]) {
    out.copy_from_slice(&hash.finalize_fixed_reset());
}

/// A hash in pieces.
///
/// # Errors
/// As [`wattlock_core::Engine::stream`].
pub fn stream<D>(kind: Kind) -> Result<Box<dyn Stream>, Error>
where
    D: Default + Update + FixedOutputReset + Clone + Send + 'static,
{
    Ok(Box::new(Pieces { hash: D::default(), progress: Progress::new(kind)? }))
}

#[derive(Clone)]
struct Pieces<D> {
    hash: D,
    progress: Progress,
}

impl<D: Default + Update + FixedOutputReset + Clone + Send + 'static> Stream for Pieces<D> {
    fn kind(&self) -> Kind {
        self.progress.kind()
    }

    fn start(&mut self, nonce: &[u8]) -> Result<(), Error> {
        self.hash = D::default();
        self.progress.start(nonce.len())
    }

    fn aad(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.progress.aad(bytes.len())
    }

    fn update(&mut self, data: Data<'_>) -> Result<usize, Error> {
        let len = self.progress.update(&data)?;
        self.hash.update(data.input());
        Ok(len)
    }

    fn finish(&mut self, tag: &mut [u8]) -> Result<(), Error> {
        self.progress.finish(tag.len())?;
        finish(&mut self.hash, tag);
        Ok(())
    }

    fn try_clone(&self) -> Result<Box<dyn Stream>, Error> {
        Ok(Box::new(self.clone()))
    }
}

impl<D> fmt::Debug for Pieces<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pieces").field("progress", &self.progress).finish_non_exhaustive()
    }
}
