//! Messages in pieces, through the kernels that whole messages take.
//!
//! A stream has an expansion of its key of its own: a search for the one that requests under that key share takes as long
//! as a block, and for GCM, whose messages take four calls, four times that (AWS-LC, where there is no kernel of ours,
//! keeps GCM's key and message in one object anyway). Counter mode's can be made anew where it lies, for random
//! generators, which change keys all the time.

use std::fmt;
use std::sync::Arc;

use wattlock_core::{Algorithm, Data, Error, Family, Key, Kind, Progress, Stream};
use zeroize::Zeroizing;

use super::aes::{Block, CbcKey, CtrKey, GcmMessage, XtsKey};
use super::span::Span;
use super::sys::hash::{Hash, Sha1, Sha256, Sha384, Sha512};
use super::sys::sha3::Sha3;
use crate::counter::Counter;
use crate::detect::Cpu;

/// A stream of `kind` under `key`.
///
/// # Errors
/// As [`wattlock_core::Engine::stream`].
pub(super) fn open(cpu: &Cpu, kind: Kind, key: &Key) -> Result<Box<dyn Stream>, Error> {
    let progress = Progress::new(kind)?;
    key.fits(kind)?;
    let encrypt = kind.info().undoes.is_none();
    match kind {
        Kind::Sha1 => return Ok(Box::new(Hashing { state: Sha1::new(), progress })),
        Kind::Sha256 => return Ok(Box::new(Hashing { state: Sha256::new(), progress })),
        Kind::Sha384 => return Ok(Box::new(Hashing { state: Sha384::new(), progress })),
        Kind::Sha512 => return Ok(Box::new(Hashing { state: Sha512::new(), progress })),
        Kind::Sha3_256 | Kind::Sha3_512 => return Ok(Box::new(Sponge { state: Sha3::new(kind)?, progress })),
        _ => {}
    }
    match key.algorithm() {
        Algorithm::Aes128Gcm | Algorithm::Aes192Gcm | Algorithm::Aes256Gcm => {
            let seal = kind.info().family == Family::Seal;
            Ok(Box::new(Gcm { message: GcmMessage::new(cpu, key.bytes(), seal)?, progress }))
        }
        Algorithm::Aes128Cbc | Algorithm::Aes192Cbc | Algorithm::Aes256Cbc => {
            let key = Arc::new(CbcKey::new(cpu, key.bytes())?);
            Ok(Box::new(Plain { mode: Cbc { key, encrypt, chain: [0; 16] }, progress }))
        }
        Algorithm::Aes128Ctr | Algorithm::Aes192Ctr | Algorithm::Aes256Ctr => {
            let key = Arc::new(CtrKey::new(cpu, key.bytes())?);
            Ok(Box::new(Plain { mode: Ctr { cpu: *cpu, key, counter: Counter::default() }, progress }))
        }
        Algorithm::Aes128Xts | Algorithm::Aes256Xts => {
            let key = Arc::new(XtsKey::new(cpu, key.bytes())?);
            Ok(Box::new(Plain { mode: Xts { key, encrypt, tweak: Zeroizing::default() }, progress }))
        }
        _ => Err(Error::Unsupported),
    }
}

/// A mode of AES without a tag: what is its own in a stream.
trait Mode: Clone + Send + 'static {
    /// A message begins.
    fn start(&mut self, nonce: &Block);

    /// A piece of it, of a length that the mode takes.
    fn update(&mut self, data: Data<'_>) -> Result<(), Error>;

    /// As [`Stream::rekey`].
    fn rekey(&mut self, _: &[u8]) -> Result<(), Error> {
        Err(Error::Unsupported)
    }
}

/// A message in such a mode.
#[derive(Clone)]
struct Plain<M> {
    mode: M,
    progress: Progress,
}

impl<M: Mode> Stream for Plain<M> {
    fn kind(&self) -> Kind {
        self.progress.kind()
    }

    #[inline]
    fn start(&mut self, nonce: &[u8]) -> Result<(), Error> {
        self.progress.start(nonce.len())?;
        self.mode.start(nonce.try_into().map_err(|_| Error::Invalid("nonce length"))?);
        Ok(())
    }

    fn aad(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.progress.aad(bytes.len())
    }

    #[inline]
    fn update(&mut self, data: Data<'_>) -> Result<usize, Error> {
        let len = self.progress.update(&data)?;
        self.mode.update(data)?;
        Ok(len)
    }

    fn finish(&mut self, tag: &mut [u8]) -> Result<(), Error> {
        self.progress.finish(tag.len())
    }

    fn rekey(&mut self, key: &[u8]) -> Result<(), Error> {
        self.mode.rekey(key)?;
        self.progress.failed();
        Ok(())
    }

    fn try_clone(&self) -> Result<Box<dyn Stream>, Error> {
        Ok(Box::new(self.clone()))
    }
}

impl<M> fmt::Debug for Plain<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plain").field("progress", &self.progress).finish_non_exhaustive()
    }
}

/// AES-CTR.
#[derive(Clone)]
struct Ctr {
    cpu: Cpu,
    /// Shared with streams cloned from this one, until a key changes.
    key: Arc<CtrKey>,
    counter: Counter,
}

impl Ctr {
    #[inline(never)]
    fn use_up<'d>(&mut self, data: Data<'d>) -> Data<'d> {
        let mut keystream: Zeroizing<Block> = Zeroizing::default();
        self.key.apply(self.counter.next(), Span::in_place(&mut *keystream));
        self.counter.use_up(&keystream, data)
    }
}

impl Mode for Ctr {
    #[inline(always)]
    fn start(&mut self, nonce: &Block) {
        self.counter = Counter::new(*nonce);
    }

    #[inline(always)]
    fn update(&mut self, mut data: Data<'_>) -> Result<(), Error> {
        if self.counter.is_within() {
            data = self.use_up(data);
        }
        let span = Span::of(&mut data)?;
        let len = span.len();
        self.key.apply(self.counter.next(), span);
        self.counter.count(len);
        Ok(())
    }

    fn rekey(&mut self, key: &[u8]) -> Result<(), Error> {
        match Arc::get_mut(&mut self.key) {
            Some(own) => own.rekey(key),
            None => {
                self.key = Arc::new(CtrKey::new(&self.cpu, key)?);
                Ok(())
            }
        }
    }
}

/// AES-XTS, in which a piece is a data unit.
#[derive(Clone)]
struct Xts {
    key: Arc<XtsKey>,
    encrypt: bool,
    /// The first one, encrypted: another data unit under the same nonce need not make it again, which takes as long as one
    /// block does.
    tweak: Zeroizing<Block>,
}

impl Mode for Xts {
    #[inline(always)]
    fn start(&mut self, nonce: &Block) {
        self.key.begin(nonce, &mut self.tweak);
    }

    #[inline(always)]
    fn update(&mut self, mut data: Data<'_>) -> Result<(), Error> {
        self.key.apply(&self.tweak, Span::of(&mut data)?, self.encrypt)
    }
}

/// AES-CBC.
#[derive(Clone)]
struct Cbc {
    key: Arc<CbcKey>,
    encrypt: bool,
    /// The block before the next. Public: a nonce, then ciphertext.
    chain: Block,
}

impl Mode for Cbc {
    #[inline(always)]
    fn start(&mut self, nonce: &Block) {
        self.chain = *nonce;
    }

    #[inline(always)]
    fn update(&mut self, mut data: Data<'_>) -> Result<(), Error> {
        let span = Span::of(&mut data)?;
        if self.encrypt {
            self.key.encrypt(&mut self.chain, span)
        } else {
            self.key.decrypt(&mut self.chain, span)
        }
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

/// A hash.
#[derive(Clone)]
struct Hashing<H> {
    state: H,
    progress: Progress,
}

impl<H: Hash + Send + 'static> Stream for Hashing<H> {
    fn kind(&self) -> Kind {
        self.progress.kind()
    }

    fn start(&mut self, nonce: &[u8]) -> Result<(), Error> {
        self.state = H::new();
        self.progress.start(nonce.len())
    }

    fn aad(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.progress.aad(bytes.len())
    }

    fn update(&mut self, data: Data<'_>) -> Result<usize, Error> {
        let len = self.progress.update(&data)?;
        self.state.update(data.input());
        Ok(len)
    }

    fn finish(&mut self, tag: &mut [u8]) -> Result<(), Error> {
        self.progress.finish(tag.len())?;
        std::mem::replace(&mut self.state, H::new()).finish(tag);
        Ok(())
    }

    fn try_clone(&self) -> Result<Box<dyn Stream>, Error> {
        Ok(Box::new(self.clone()))
    }
}

impl<H> fmt::Debug for Hashing<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hashing").field("progress", &self.progress).finish_non_exhaustive()
    }
}

/// SHA-3. A fault of the library ends the message.
struct Sponge {
    state: Sha3,
    progress: Progress,
}

impl Sponge {
    fn noted(&mut self, result: Result<(), Error>) -> Result<(), Error> {
        if result.is_err() {
            self.progress.failed();
        }
        result
    }
}

impl Stream for Sponge {
    fn kind(&self) -> Kind {
        self.progress.kind()
    }

    fn start(&mut self, nonce: &[u8]) -> Result<(), Error> {
        self.progress.start(nonce.len())?;
        let begun = self.state.restart();
        self.noted(begun)
    }

    fn aad(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.progress.aad(bytes.len())
    }

    fn update(&mut self, data: Data<'_>) -> Result<usize, Error> {
        let len = self.progress.update(&data)?;
        let taken = self.state.update(data.input());
        self.noted(taken)?;
        Ok(len)
    }

    fn finish(&mut self, tag: &mut [u8]) -> Result<(), Error> {
        self.progress.finish(tag.len())?;
        self.state.finish(tag)
    }

    fn try_clone(&self) -> Result<Box<dyn Stream>, Error> {
        Ok(Box::new(Sponge { state: self.state.try_clone()?, progress: self.progress.clone() }))
    }
}

impl fmt::Debug for Sponge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sponge").field("progress", &self.progress).finish_non_exhaustive()
    }
}
