//! Messages in pieces, through the kernels that whole messages take.
//!
//! A stream of XTS holds a clone of its key, whose expansion it shares with every request under that key. GCM has an
//! expansion of its own, because a message takes four calls, each of which would search for it (and because AWS-LC,
//! where there is no kernel of ours, keeps key and message in one object); and so has CBC, because its pieces wait for
//! each other: what stands between two of them is added to the chain, and a search for the expansion takes as long as a
//! block. Counter mode's own can be made anew where it lies, for random generators, which change keys all the time.

use std::fmt;
use std::sync::Arc;

use wattlock_core::{Algorithm, Data, Error, Family, Key, Kind, Progress, Request, Stream};

use super::aes::{Block, CbcKey, CtrKey, GcmMessage};
use super::span::Span;
use crate::chained::{Chained, Whole};
use crate::detect::Cpu;

/// A stream of `kind` under `key`.
///
/// # Errors
/// As [`wattlock_core::Engine::stream`].
pub(super) fn open(cpu: &Cpu, kind: Kind, key: &Key) -> Result<Box<dyn Stream>, Error> {
    let progress = Progress::new(kind)?;
    if key.algorithm() != kind.info().algorithm {
        return Err(Error::Invalid("key algorithm"));
    }
    match key.algorithm() {
        Algorithm::Aes128Gcm | Algorithm::Aes192Gcm | Algorithm::Aes256Gcm => {
            let seal = kind.info().family == Family::Seal;
            Ok(Box::new(Gcm { message: GcmMessage::new(cpu, key.bytes(), seal)?, progress }))
        }
        Algorithm::Aes128Cbc | Algorithm::Aes192Cbc | Algorithm::Aes256Cbc => Ok(Box::new(Cbc {
            key: Arc::new(CbcKey::new(cpu, key.bytes())?),
            encrypt: kind.info().name.ends_with("-encrypt"),
            chain: [0; 16],
            progress,
        })),
        Algorithm::Aes128Ctr | Algorithm::Aes192Ctr | Algorithm::Aes256Ctr => {
            let counter = Counter { cpu: *cpu, key: Arc::new(CtrKey::new(cpu, key.bytes())?) };
            Ok(Box::new(Chained::new(counter, kind, key)?.without_key()))
        }
        _ => Ok(Box::new(Chained::new(Kernels(*cpu), kind, key)?)),
    }
}

/// The modes that this engine's own kernels do.
#[derive(Clone, Copy)]
struct Kernels(Cpu);

impl Whole for Kernels {
    #[inline]
    fn apply(&self, request: &mut Request<'_>) -> Result<usize, Error> {
        super::cipher(&self.0, request).unwrap_or(Err(Error::Unsupported))
    }
}

/// Counter mode under a key of the stream's own.
#[derive(Clone)]
struct Counter {
    cpu: Cpu,
    /// Shared with streams cloned from this one, until a key changes.
    key: Arc<CtrKey>,
}

impl Whole for Counter {
    #[inline]
    fn apply(&self, request: &mut Request<'_>) -> Result<usize, Error> {
        let first: &Block = request.nonce.try_into().map_err(|_| Error::Invalid("nonce length"))?;
        let len = request.data.len();
        self.key.apply(first, Span::of(&mut request.data)?);
        Ok(len)
    }

    fn rekey(&mut self, key: &[u8]) -> Result<(), Error> {
        let fresh = CtrKey::new(&self.cpu, key)?;
        match Arc::get_mut(&mut self.key) {
            Some(place) => *place = fresh,
            None => self.key = Arc::new(fresh),
        }
        Ok(())
    }
}

/// AES-CBC.
struct Cbc {
    key: Arc<CbcKey>,
    encrypt: bool,
    /// The block before the next. Public: a nonce, then ciphertext.
    chain: Block,
    progress: Progress,
}

impl Stream for Cbc {
    fn kind(&self) -> Kind {
        self.progress.kind()
    }

    fn start(&mut self, nonce: &[u8]) -> Result<(), Error> {
        self.progress.start(nonce.len())?;
        self.chain = nonce.try_into().map_err(|_| Error::Invalid("nonce length"))?;
        Ok(())
    }

    fn aad(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.progress.aad(bytes.len())
    }

    #[inline]
    fn update(&mut self, mut data: Data<'_>) -> Result<usize, Error> {
        let len = self.progress.update(&data)?;
        let span = Span::of(&mut data)?;
        if self.encrypt {
            self.key.encrypt(&mut self.chain, span)?;
        } else {
            self.key.decrypt(&mut self.chain, span)?;
        }
        Ok(len)
    }

    fn finish(&mut self, tag: &mut [u8]) -> Result<(), Error> {
        self.progress.finish(tag.len())
    }

    fn try_clone(&self) -> Result<Box<dyn Stream>, Error> {
        Ok(Box::new(Cbc { key: self.key.clone(), progress: self.progress.clone(), ..*self }))
    }
}

impl fmt::Debug for Cbc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cbc").field("progress", &self.progress).finish_non_exhaustive()
    }
}

/// AES-GCM.
struct Gcm {
    message: GcmMessage,
    progress: Progress,
}

impl Gcm {
    /// A fault of the library ends the message.
    #[inline]
    fn noted(&mut self, result: Result<(), Error>) -> Result<(), Error> {
        if result.is_err() {
            self.progress.failed();
        }
        result
    }
}

impl Stream for Gcm {
    fn kind(&self) -> Kind {
        self.progress.kind()
    }

    fn start(&mut self, nonce: &[u8]) -> Result<(), Error> {
        self.progress.start(nonce.len())?;
        let started = self.message.start(nonce);
        self.noted(started)
    }

    fn aad(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.progress.aad(bytes.len())?;
        let taken = self.message.aad(bytes);
        self.noted(taken)
    }

    fn update(&mut self, mut data: Data<'_>) -> Result<usize, Error> {
        let len = self.progress.update(&data)?;
        let done = self.message.update(Span::of(&mut data)?);
        self.noted(done)?;
        Ok(len)
    }

    fn finish(&mut self, tag: &mut [u8]) -> Result<(), Error> {
        self.progress.finish(tag.len())?;
        self.message.finish(tag)
    }

    fn try_clone(&self) -> Result<Box<dyn Stream>, Error> {
        Ok(Box::new(Gcm { message: self.message.try_clone()?, progress: self.progress.clone() }))
    }
}

impl fmt::Debug for Gcm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gcm").field("progress", &self.progress).finish_non_exhaustive()
    }
}
