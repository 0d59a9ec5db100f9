//! Counter mode, CBC and XTS in pieces, by whole messages.
//!
//! In these modes a message can go on where it stopped: a piece is a whole message whose nonce is the next counter or
//! the last block of ciphertext. So a piece runs on the very code that whole messages run on. What is kept between
//! pieces is public.

use std::fmt;

use wattlock_core::{Data, Error, Group, Key, Kind, Progress, Request, Stream};
use zeroize::Zeroizing;

use super::aes::BLOCK;
use crate::counter::Counter;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Ctr,
    CbcEncrypt,
    CbcDecrypt,
    Xts,
}

/// A message in one of the modes.
#[derive(Clone)]
pub struct Chained {
    key: Key,
    mode: Mode,
    progress: Progress,
    /// The block before the next, or the tweak.
    chain: [u8; BLOCK],
    /// In place of the chain in counter mode.
    counter: Counter,
}

impl Chained {
    /// No message yet.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the kind is none of the modes; [`Error::Invalid`] if the key is not one of the kind's.
    pub fn new(key: Key, kind: Kind) -> Result<Chained, Error> {
        let progress = Progress::new(kind)?;
        let info = kind.info();
        let mode = match (info.group, info.undoes) {
            (Group::Ctr, _) => Mode::Ctr,
            (Group::Cbc, None) => Mode::CbcEncrypt,
            (Group::Cbc, Some(_)) => Mode::CbcDecrypt,
            (Group::Xts, _) => Mode::Xts,
            _ => return Err(Error::Unsupported),
        };
        key.fits(kind)?;
        let chained = Chained { key, mode, progress, chain: [0; BLOCK], counter: Counter::default() };
        // The key is expanded here, so that no message has to.
        chained.apply(Data::InPlace(&mut [0; BLOCK]))?;
        Ok(chained)
    }

    /// A piece from the state as it is.
    fn apply(&self, data: Data<'_>) -> Result<(), Error> {
        let counter = self.counter.next().to_be_bytes();
        let nonce = if self.mode == Mode::Ctr { &counter } else { &self.chain };
        let request = Request::new(self.progress.kind(), &self.key, data);
        super::compute(&mut Request { nonce, ..request }).map(drop)
    }

    fn ctr(&mut self, mut data: Data<'_>) -> Result<(), Error> {
        if self.counter.is_within() {
            let mut keystream = Zeroizing::new([0; BLOCK]);
            self.apply(Data::InPlace(&mut *keystream))?;
            data = self.counter.use_up(&keystream, data);
        }
        let len = data.len();
        if len > 0 {
            self.apply(data)?;
            self.counter.count(len);
        }
        Ok(())
    }

    fn cbc(&mut self, mut data: Data<'_>) -> Result<(), Error> {
        let len = data.len();
        // In place, a decrypted block is no longer the ciphertext that the next one needs.
        let last = data.input().last_chunk().copied();
        let again = match &mut data {
            Data::InPlace(buffer) => Data::InPlace(buffer),
            Data::Apart { from, to } => Data::Apart { from, to },
        };
        self.apply(again)?;
        let last = match self.mode {
            Mode::CbcEncrypt => data.output()[..len].last_chunk().copied(),
            _ => last,
        };
        self.chain = last.unwrap_or(self.chain);
        Ok(())
    }
}

impl Stream for Chained {
    fn kind(&self) -> Kind {
        self.progress.kind()
    }

    fn start(&mut self, nonce: &[u8]) -> Result<(), Error> {
        self.progress.start(nonce.len())?;
        self.chain = nonce.try_into().map_err(|_| Error::Invalid("nonce length"))?;
        self.counter = Counter::new(self.chain);
        Ok(())
    }

    fn aad(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.progress.aad(bytes.len())
    }

    fn update(&mut self, data: Data<'_>) -> Result<usize, Error> {
        let len = self.progress.update(&data)?;
        let done = match self.mode {
            Mode::Ctr => self.ctr(data),
            Mode::CbcEncrypt | Mode::CbcDecrypt => self.cbc(data),
            Mode::Xts => self.apply(data),
        };
        if done.is_err() {
            self.progress.failed();
        }
        done.map(|()| len)
    }

    fn finish(&mut self, tag: &mut [u8]) -> Result<(), Error> {
        self.progress.finish(tag.len())
    }

    fn try_clone(&self) -> Result<Box<dyn Stream>, Error> {
        Ok(Box::new(self.clone()))
    }
}

impl fmt::Debug for Chained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chained").field("progress", &self.progress).finish_non_exhaustive()
    }
}
