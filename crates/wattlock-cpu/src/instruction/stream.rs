//! Messages in pieces, through the kernels that whole messages take.
//!
//! A stream has an expansion of its key of its own: a search for the one that requests under that key share takes as long
//! as a block, and for GCM, whose messages take four calls, four times that (AWS-LC, where there is no kernel of ours,
//! keeps GCM's key and message in one object anyway). Counter mode's can be made anew where it lies, for random
//! generators, which change keys all the time.

use std::fmt;
use std::sync::Arc;

use wattlock_core::{Algorithm, Data, Error, Family, Key, Kind, Progress, Stream};
use zeroize::{Zeroize, Zeroizing};

use super::aes::{Block, CbcKey, CtrKey, GcmMessage, XtsKey};
use super::span::Span;
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
            let own = Arc::new(CtrKey::new(cpu, key.bytes())?);
            Ok(Box::new(Ctr { cpu: *cpu, key: own, counter: 0, used: 0, progress }))
        }
        Algorithm::Aes128Xts | Algorithm::Aes256Xts => Ok(Box::new(Xts {
            key: Arc::new(XtsKey::new(cpu, key.bytes())?),
            encrypt: kind.info().name.ends_with("-encrypt"),
            tweak: Zeroizing::default(),
            progress,
        })),
        _ => Err(Error::Unsupported),
    }
}

/// AES-CTR.
struct Ctr {
    cpu: Cpu,
    /// Shared with streams cloned from this one, until a key changes.
    key: Arc<CtrKey>,
    /// The counter of the next block. Public.
    counter: u128,
    /// Bytes of the next block's keystream that are used.
    used: usize,
    progress: Progress,
}

impl Ctr {
    /// Adds what is left of the next block's keystream to as much of `data` as it covers, and returns what is behind. The
    /// keystream is not kept between pieces, but made again.
    #[inline(never)]
    fn use_up<'d>(&mut self, data: Data<'d>) -> Data<'d> {
        let mut block: Block = [0; 16];
        self.key.apply(self.counter, Span::in_place(&mut block));
        let len = data.len().min(16 - self.used);
        let left = &block[self.used..self.used + len];
        let rest = match data {
            Data::InPlace(buffer) => {
                let (head, rest) = buffer.split_at_mut(len);
                head.iter_mut().zip(left).for_each(|(byte, key)| *byte ^= key);
                Data::InPlace(rest)
            }
            Data::Apart { from, to } => {
                let ((head, from), (out, to)) = (from.split_at(len), to.split_at_mut(len));
                out.iter_mut().zip(head.iter().zip(left)).for_each(|(out, (byte, key))| *out = byte ^ key);
                Data::Apart { from, to }
            }
        };
        block.zeroize();
        self.count(len);
        rest
    }

    #[inline]
    fn count(&mut self, len: usize) {
        let sum = self.used + len;
        self.counter = self.counter.wrapping_add((sum / 16) as u128);
        self.used = sum % 16;
    }
}

impl Stream for Ctr {
    fn kind(&self) -> Kind {
        self.progress.kind()
    }

    fn start(&mut self, nonce: &[u8]) -> Result<(), Error> {
        self.progress.start(nonce.len())?;
        let first = nonce.try_into().map_err(|_| Error::Invalid("nonce length"))?;
        (self.counter, self.used) = (u128::from_be_bytes(first), 0);
        Ok(())
    }

    fn aad(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.progress.aad(bytes.len())
    }

    #[inline]
    fn update(&mut self, mut data: Data<'_>) -> Result<usize, Error> {
        let len = self.progress.update(&data)?;
        if self.used > 0 {
            data = self.use_up(data);
        }
        let span = Span::of(&mut data)?;
        let left = span.len();
        self.key.apply(self.counter, span);
        self.count(left);
        Ok(len)
    }

    fn finish(&mut self, tag: &mut [u8]) -> Result<(), Error> {
        self.progress.finish(tag.len())
    }

    fn rekey(&mut self, key: &[u8]) -> Result<(), Error> {
        match Arc::get_mut(&mut self.key) {
            Some(own) => own.rekey(key)?,
            None => self.key = Arc::new(CtrKey::new(&self.cpu, key)?),
        }
        self.progress.failed();
        Ok(())
    }

    fn try_clone(&self) -> Result<Box<dyn Stream>, Error> {
        Ok(Box::new(Ctr { key: self.key.clone(), progress: self.progress.clone(), ..*self }))
    }
}

impl fmt::Debug for Ctr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ctr").field("progress", &self.progress).finish_non_exhaustive()
    }
}

/// AES-XTS, in which a piece is a data unit.
struct Xts {
    key: Arc<XtsKey>,
    encrypt: bool,
    /// The first one, encrypted: another data unit under the same nonce need not make it again, which takes as long as one
    /// block does.
    tweak: Zeroizing<Block>,
    progress: Progress,
}

impl Stream for Xts {
    fn kind(&self) -> Kind {
        self.progress.kind()
    }

    #[inline]
    fn start(&mut self, nonce: &[u8]) -> Result<(), Error> {
        self.progress.start(nonce.len())?;
        let nonce = nonce.try_into().map_err(|_| Error::Invalid("nonce length"))?;
        self.key.begin(nonce, &mut self.tweak);
        Ok(())
    }

    fn aad(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.progress.aad(bytes.len())
    }

    #[inline]
    fn update(&mut self, mut data: Data<'_>) -> Result<usize, Error> {
        let len = self.progress.update(&data)?;
        self.key.apply(&self.tweak, Span::of(&mut data)?, self.encrypt)?;
        Ok(len)
    }

    fn finish(&mut self, tag: &mut [u8]) -> Result<(), Error> {
        self.progress.finish(tag.len())
    }

    fn try_clone(&self) -> Result<Box<dyn Stream>, Error> {
        let (key, progress) = (self.key.clone(), self.progress.clone());
        Ok(Box::new(Xts { key, encrypt: self.encrypt, tweak: self.tweak.clone(), progress }))
    }
}

impl fmt::Debug for Xts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Xts").field("progress", &self.progress).finish_non_exhaustive()
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
