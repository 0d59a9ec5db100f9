//! Counter mode, CBC and XTS in pieces, for an engine that does them whole.
//!
//! In these modes a message can go on where it stopped: a piece is a whole message whose nonce is the next counter or
//! the last block of ciphertext. So a piece runs on the very kernels that whole messages run on. What is kept between
//! pieces is public; the one exception, the rest of a keystream block, is made again when it is needed.

use std::fmt;

use wattlock_core::{Data, Error, Family, Key, Kind, Progress, Stream};
use zeroize::Zeroize;

/// Bytes of a block, and of a nonce.
const BLOCK: usize = 16;

/// Does whole messages of [`Family::Cipher`] under one key.
pub(crate) trait Whole: Clone + Send + 'static {
    /// Does one of that kind.
    fn apply(&self, kind: Kind, nonce: &[u8; BLOCK], data: Data<'_>) -> Result<(), Error>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Ctr,
    CbcEncrypt,
    CbcDecrypt,
    Xts,
}

/// A message in one of the modes.
pub(crate) struct Chained<W> {
    whole: W,
    mode: Mode,
    progress: Progress,
    /// The counter of the next block, the block before the next, or the tweak.
    chain: [u8; BLOCK],
    /// Counter mode: bytes of the next block's keystream that are used.
    used: usize,
}

impl<W: Whole> Chained<W> {
    /// `whole` has `key`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the kind is none of the modes; [`Error::Invalid`] if the key is not one of the kind's.
    pub(crate) fn new(whole: W, kind: Kind, key: &Key) -> Result<Chained<W>, Error> {
        let progress = Progress::new(kind)?;
        let info = kind.info();
        let mode = match (info.family, info.name) {
            (Family::Cipher, name) if name.ends_with("-ctr") => Mode::Ctr,
            (Family::Cipher, name) if name.ends_with("-cbc-encrypt") => Mode::CbcEncrypt,
            (Family::Cipher, name) if name.ends_with("-cbc-decrypt") => Mode::CbcDecrypt,
            (Family::Cipher, name) if name.contains("-xts-") => Mode::Xts,
            _ => return Err(Error::Unsupported),
        };
        if key.algorithm() != info.algorithm {
            return Err(Error::Invalid("key algorithm"));
        }
        let chained = Chained { whole, mode, progress, chain: [0; BLOCK], used: 0 };
        // The key is expanded here, so that no message has to.
        chained.apply(Data::InPlace(&mut [0; BLOCK]))?;
        Ok(chained)
    }

    /// A piece from the state as it is.
    fn apply(&self, data: Data<'_>) -> Result<(), Error> {
        self.whole.apply(self.progress.kind(), &self.chain, data)
    }

    /// Adds what is left of the next block's keystream to as much of `data` as it covers, and returns what is behind.
    fn use_up<'d>(&mut self, data: Data<'d>) -> Result<Data<'d>, Error> {
        let mut stream = [0; BLOCK];
        self.apply(Data::InPlace(&mut stream))?;
        let len = data.len().min(BLOCK - self.used);
        let left = &stream[self.used..self.used + len];
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
        stream.zeroize();
        self.count(len);
        Ok(rest)
    }

    /// Counter mode: `len` bytes of keystream are used.
    #[inline]
    fn count(&mut self, len: usize) {
        let sum = self.used + len;
        let counter = u128::from_be_bytes(self.chain).wrapping_add((sum / BLOCK) as u128);
        self.chain = counter.to_be_bytes();
        self.used = sum % BLOCK;
    }

    fn ctr(&mut self, mut data: Data<'_>) -> Result<(), Error> {
        if self.used > 0 {
            data = self.use_up(data)?;
        }
        let len = data.len();
        if len > 0 {
            self.apply(data)?;
            self.count(len);
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

impl<W: Whole> Stream for Chained<W> {
    fn kind(&self) -> Kind {
        self.progress.kind()
    }

    fn start(&mut self, nonce: &[u8]) -> Result<(), Error> {
        self.progress.start(nonce.len())?;
        self.chain = nonce.try_into().map_err(|_| Error::Invalid("nonce length"))?;
        self.used = 0;
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
        let (whole, progress) = (self.whole.clone(), self.progress.clone());
        Ok(Box::new(Chained { whole, progress, ..*self }))
    }
}

impl<W> fmt::Debug for Chained<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chained").field("progress", &self.progress).finish_non_exhaustive()
    }
}
