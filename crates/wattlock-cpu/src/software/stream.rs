//! Messages in pieces. GCM is put together here from the same cipher and hash as for whole messages; the other modes
//! go on where a whole message ended.

use std::fmt;

use subtle::ConstantTimeEq;
use wattlock_core::{Algorithm, Data, Error, Family, Key, Kind, Progress, Stream};
use zeroize::{Zeroize, Zeroizing};

use super::aes::BLOCK;
use super::chained::Chained;
use super::ctr;
use super::gcm::Gcm;
use super::hash::{Core, Hasher};
use super::{keccak, sha1, sha256, sha512};

/// A stream of `kind` under `key`.
///
/// # Errors
/// As [`wattlock_core::Engine::stream`].
pub fn open(kind: Kind, key: &Key) -> Result<Box<dyn Stream>, Error> {
    match kind {
        Kind::Sha1 => return hash::<sha1::Sha1>(kind),
        Kind::Sha256 => return hash::<sha256::Sha256>(kind),
        Kind::Sha384 => return hash::<sha512::Sha384>(kind),
        Kind::Sha512 => return hash::<sha512::Sha512>(kind),
        Kind::Sha3_256 => return keccak::stream::<sha3::Sha3_256>(kind),
        Kind::Sha3_512 => return keccak::stream::<sha3::Sha3_512>(kind),
        _ => {}
    }
    match kind.info().algorithm {
        Algorithm::Aes128Gcm | Algorithm::Aes192Gcm | Algorithm::Aes256Gcm => {
            Ok(Box::new(GcmStream::new(kind, key)?))
        }
        _ => Ok(Box::new(Chained::new(key.clone(), kind)?)),
    }
}

fn hash<C: Core + Send + 'static>(kind: Kind) -> Result<Box<dyn Stream>, Error> {
    Ok(Box::new(HashStream::<C> { hasher: Hasher::new(), progress: Progress::new(kind)? }))
}

/// A hash.
#[derive(Clone)]
struct HashStream<C: Core> {
    hasher: Hasher<C>,
    progress: Progress,
}

impl<C: Core + Send + 'static> Stream for HashStream<C> {
    fn kind(&self) -> Kind {
        self.progress.kind()
    }

    fn start(&mut self, nonce: &[u8]) -> Result<(), Error> {
        self.hasher = Hasher::new();
        self.progress.start(nonce.len())
    }

    fn aad(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.progress.aad(bytes.len())
    }

    fn update(&mut self, data: Data<'_>) -> Result<usize, Error> {
        let len = self.progress.update(&data)?;
        self.hasher.update(data.input());
        Ok(len)
    }

    fn finish(&mut self, tag: &mut [u8]) -> Result<(), Error> {
        self.progress.finish(tag.len())?;
        std::mem::replace(&mut self.hasher, Hasher::new()).finish(tag);
        Ok(())
    }

    fn try_clone(&self) -> Result<Box<dyn Stream>, Error> {
        Ok(Box::new(self.clone()))
    }
}

impl<C: Core> fmt::Debug for HashStream<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashStream").field("progress", &self.progress).finish_non_exhaustive()
    }
}

/// AES-GCM. Wipes what it holds of a message on drop.
struct GcmStream {
    key: Key,
    seal: bool,
    progress: Progress,
    /// The next counter block; its last 32 bits wrap by themselves.
    counter: u128,
    /// Bytes of the next block's keystream that are used.
    used: usize,
    /// What the hash is added to: the first counter block, encrypted.
    mask: [u8; BLOCK],
    sum: u128,
    /// Bytes that the hash has not taken yet, and how many.
    rest: [u8; BLOCK],
    held: usize,
}

impl GcmStream {
    fn new(kind: Kind, key: &Key) -> Result<GcmStream, Error> {
        let progress = Progress::new(kind)?;
        if key.algorithm() != kind.info().algorithm {
            return Err(Error::Invalid("key algorithm"));
        }
        let stream = GcmStream {
            key: key.clone(),
            seal: kind.info().family == Family::Seal,
            progress,
            counter: 0,
            used: 0,
            mask: [0; BLOCK],
            sum: 0,
            rest: [0; BLOCK],
            held: 0,
        };
        stream.gcm()?;
        Ok(stream)
    }

    fn gcm(&self) -> Result<&Gcm, Error> {
        super::expanded(&self.key, Gcm::new)
    }

    /// Hashes bytes, and keeps those that do not fill a block.
    fn hash(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        if self.held > 0 {
            let (head, behind) = bytes.split_at(bytes.len().min(BLOCK - self.held));
            self.rest[self.held..self.held + head.len()].copy_from_slice(head);
            (self.held, bytes) = (self.held + head.len(), behind);
            if self.held < BLOCK {
                return Ok(());
            }
            self.pad()?;
        }
        let (whole, tail) = bytes.split_at(bytes.len() - bytes.len() % BLOCK);
        self.sum = self.gcm()?.hashed(self.sum, whole);
        self.rest[..tail.len()].copy_from_slice(tail);
        self.held = tail.len();
        Ok(())
    }

    /// Fills the last block with zeros.
    fn pad(&mut self) -> Result<(), Error> {
        if self.held > 0 {
            self.sum = self.gcm()?.hashed(self.sum, &self.rest[..self.held]);
            self.held = 0;
        }
        Ok(())
    }

    /// Encrypts or decrypts.
    fn apply(&mut self, mut data: &mut [u8]) -> Result<(), Error> {
        if self.used > 0 {
            let mut stream = Zeroizing::new([0; BLOCK]);
            ctr::apply(self.gcm()?.aes(), self.counter, &mut stream[..]);
            let (head, behind) = data.split_at_mut(data.len().min(BLOCK - self.used));
            ctr::add(head, &stream[self.used..]);
            let len = head.len();
            data = behind;
            self.count(len);
        }
        while !data.is_empty() {
            // The counter is the last 32 bits alone (SP 800-38D section 6.2); a run ends where they wrap.
            let until_wrap = (1u64 << 32) - u64::from(self.counter as u32);
            let run =
                usize::try_from(until_wrap * BLOCK as u64).map_or(data.len(), |run| run.min(data.len()));
            let (piece, behind) = data.split_at_mut(run);
            ctr::apply(self.gcm()?.aes(), self.counter, piece);
            self.count(run);
            data = behind;
        }
        Ok(())
    }

    /// `len` bytes of keystream are used.
    fn count(&mut self, len: usize) {
        let sum = self.used + len;
        let low = (self.counter as u32).wrapping_add((sum / BLOCK) as u32);
        self.counter = self.counter >> 32 << 32 | u128::from(low);
        self.used = sum % BLOCK;
    }

    /// Lengths in bytes as the hash's last block has them: in bits.
    fn lengths(aad: u64, bytes: u64) -> [u8; BLOCK] {
        (u128::from(aad) << 67 | u128::from(bytes) << 3).to_be_bytes()
    }
}

impl Stream for GcmStream {
    fn kind(&self) -> Kind {
        self.progress.kind()
    }

    fn start(&mut self, nonce: &[u8]) -> Result<(), Error> {
        self.progress.start(nonce.len())?;
        (self.sum, self.held, self.used) = (0, 0, 0);
        if nonce.len() == 12 {
            let mut block = [0; BLOCK];
            block[..12].copy_from_slice(nonce);
            block[BLOCK - 1] = 1;
            self.counter = u128::from_be_bytes(block);
        } else {
            self.hash(nonce)?;
            self.pad()?;
            self.hash(&GcmStream::lengths(0, nonce.len() as u64))?;
            (self.counter, self.sum) = (self.sum, 0);
        }
        let mut mask = [0; BLOCK];
        ctr::apply(self.gcm()?.aes(), self.counter, &mut mask);
        self.mask = mask;
        self.count(BLOCK);
        Ok(())
    }

    fn aad(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.progress.aad(bytes.len())?;
        self.hash(bytes)
    }

    fn update(&mut self, mut data: Data<'_>) -> Result<usize, Error> {
        let first = self.progress.lengths().1 == 0;
        let len = self.progress.update(&data)?;
        if first && len > 0 {
            self.pad()?;
        }
        if !self.seal {
            self.hash(data.input())?;
        }
        let data = data.gathered();
        self.apply(data)?;
        if self.seal {
            self.hash(data)?;
        }
        Ok(len)
    }

    fn finish(&mut self, tag: &mut [u8]) -> Result<(), Error> {
        self.progress.finish(tag.len())?;
        let (aad, bytes) = self.progress.lengths();
        self.pad()?;
        self.hash(&GcmStream::lengths(aad, bytes))?;
        let mut right = Zeroizing::new(self.sum.to_be_bytes());
        ctr::add(&mut right[..], &self.mask);
        if self.seal {
            tag.copy_from_slice(&right[..tag.len()]);
            return Ok(());
        }
        if bool::from(right[..tag.len()].ct_eq(tag)) { Ok(()) } else { Err(Error::Authentication) }
    }

    fn try_clone(&self) -> Result<Box<dyn Stream>, Error> {
        Ok(Box::new(GcmStream {
            key: self.key.clone(),
            seal: self.seal,
            progress: self.progress.clone(),
            counter: self.counter,
            used: self.used,
            mask: self.mask,
            sum: self.sum,
            rest: self.rest,
            held: self.held,
        }))
    }
}

impl Drop for GcmStream {
    fn drop(&mut self) {
        self.mask.zeroize();
        self.sum.zeroize();
        self.rest.zeroize();
    }
}

impl fmt::Debug for GcmStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GcmStream").field("progress", &self.progress).finish_non_exhaustive()
    }
}
