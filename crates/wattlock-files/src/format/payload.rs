//! The two payloads: where chunks lie, which nonce each has, and sealing and opening a run of them in place.
//!
//! *Cobblestone-256* (c2sp.org/chunked-encryption): 16 KiB chunks under AES-256-GCM, the last one shorter than that
//! and perhaps empty, nonce = base nonce XOR chunk number. *age STREAM* (c2sp.org/age): 64 KiB chunks under
//! ChaCha20-Poly1305, the last one marked in its nonce and empty only if everything is.
//!
//! Both lie in memory as they lie in the file: a chunk, its tag, the next chunk. Plaintext therefore sits in such a
//! buffer with gaps of 16 bytes, where the tags go or were, and is never copied to close them.

use wattlock_core::{Algorithm, Data, Error as CoreError, Key, Kind, LatencyClass, Request, Run};
use zeroize::Zeroizing;
#[cfg(feature = "runtime")]
use {crate::pipeline::Direction, std::sync::Arc, wattlock_core::OwnedRequest};

use crate::error::Error;
use wattlock_door::{Crypto, short};

/// Bytes of a tag, in both payloads.
pub const TAG_LEN: usize = 16;
/// Bytes of the salt that a Cobblestone payload starts with.
pub const SALT_LEN: usize = 24;
/// Bytes of the commitment behind the salt.
pub const COMMITMENT_LEN: usize = 32;
/// Bytes of the nonce that an age payload starts with.
pub const AGE_NONCE_LEN: usize = 16;

/// Domain separation of the key derivation: protocol, AEAD's IANA name, and the zero byte that ends it.
const COBBLESTONE_LABEL: &[u8] = b"c2sp.org/chunked-encryption@v1+AEAD_AES_256_GCM\0";

/// One of the two payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Cobblestone-256.
    Cobblestone,
    /// age's STREAM.
    Age,
}

impl Layout {
    /// Plaintext bytes of a full chunk. Fuzzing uses small chunks, since its inputs are short.
    pub const fn chunk_len(self) -> usize {
        match self {
            Layout::Cobblestone if cfg!(fuzzing) => 1 << 6,
            Layout::Age if cfg!(fuzzing) => 1 << 8,
            Layout::Cobblestone => 1 << 14,
            Layout::Age => 1 << 16,
        }
    }

    /// Bytes of a full chunk with its tag.
    pub const fn stride(self) -> usize {
        self.chunk_len() + TAG_LEN
    }

    /// Bytes between the header and the first chunk.
    pub const fn prefix_len(self) -> usize {
        match self {
            Layout::Cobblestone => SALT_LEN + COMMITMENT_LEN,
            Layout::Age => AGE_NONCE_LEN,
        }
    }

    /// Chunks that one file may have. Cobblestone's limit is its specification's; age's counter would allow 2^88, and
    /// this is the largest power of two whose bytes fit 64 bits with room for tags.
    pub const fn max_chunks(self) -> u64 {
        match self {
            Layout::Cobblestone => 1 << 38,
            Layout::Age => 1 << 46,
        }
    }

    /// Chunks that `plain` bytes make.
    pub const fn chunks(self, plain: u64) -> u64 {
        let chunk = self.chunk_len() as u64;
        match self {
            Layout::Cobblestone => plain / chunk + 1,
            Layout::Age if plain == 0 => 1,
            Layout::Age => plain.div_ceil(chunk),
        }
    }

    /// Bytes of all chunks and tags that `plain` bytes make.
    ///
    /// # Errors
    /// [`Error::TooLong`].
    pub const fn sealed_len(self, plain: u64) -> Result<u64, Error> {
        let chunks = self.chunks(plain);
        if chunks > self.max_chunks() {
            return Err(Error::TooLong);
        }
        Ok(plain + chunks * TAG_LEN as u64)
    }

    /// Plaintext bytes in `sealed` bytes of chunks and tags.
    ///
    /// # Errors
    /// [`Error::Truncated`] for a length that no content produces; [`Error::TooLong`].
    pub const fn plain_len(self, sealed: u64) -> Result<u64, Error> {
        let stride = self.stride() as u64;
        let (full, rest) = (sealed / stride, sealed % stride);
        if full >= self.max_chunks() {
            return Err(Error::TooLong);
        }
        match (self, rest) {
            (Layout::Age, 0) if full > 0 => Ok(full * self.chunk_len() as u64),
            (_, 0..16) => Err(Error::Truncated),
            _ => Ok(full * self.chunk_len() as u64 + rest - TAG_LEN as u64),
        }
    }

    /// Whether a last chunk of `plain` bytes with number `chunk` is one this layout writes.
    const fn may_end_with(self, chunk: u64, plain: usize) -> bool {
        match self {
            Layout::Cobblestone => plain < self.chunk_len(),
            Layout::Age => plain > 0 || chunk == 0,
        }
    }
}

/// Seals and opens the chunks of one payload.
pub struct PayloadKey {
    layout: Layout,
    key: Key,
    base: [u8; 12],
}

impl PayloadKey {
    /// Derives a Cobblestone-256 key and its commitment from the input key, the salt, and the whole header of the
    /// file, whose SHA-512 is the context. A changed header changes the commitment.
    ///
    /// # Errors
    /// [`wattlock_door::Error::Engine`].
    pub fn cobblestone(
        input_key: &[u8; 32],
        salt: &[u8; SALT_LEN],
        header: &[u8],
        crypto: &mut dyn Crypto,
    ) -> Result<(PayloadKey, [u8; COMMITMENT_LEN]), Error> {
        let mut context = [0; 64];
        short(crypto, Kind::Sha512, Key::none(), (b"", b""), header, &mut context)?;
        let info = [COBBLESTONE_LABEL, salt, &context].concat();
        let secret = Key::symmetric(Algorithm::Secret, input_key)?;
        let mut derived = Zeroizing::new([0; 32 + 12 + COMMITMENT_LEN]);
        short(crypto, Kind::HkdfExpandSha512, &secret, (b"", &info), b"", &mut derived[..])?;
        let mut base = [0; 12];
        base.copy_from_slice(&derived[32..44]);
        let mut commitment = [0; COMMITMENT_LEN];
        commitment.copy_from_slice(&derived[44..]);
        let key = Key::symmetric(Algorithm::Aes256Gcm, &derived[..32])?;
        Ok((PayloadKey { layout: Layout::Cobblestone, key, base }, commitment))
    }

    /// Derives an age payload key from the file key and the payload's nonce.
    ///
    /// # Errors
    /// [`wattlock_door::Error::Engine`].
    pub fn age(
        file_key: &[u8; 16],
        nonce: &[u8; AGE_NONCE_LEN],
        crypto: &mut dyn Crypto,
    ) -> Result<PayloadKey, Error> {
        let secret = Key::symmetric(Algorithm::Secret, file_key)?;
        let mut derived = Zeroizing::new([0; 32]);
        short(crypto, Kind::HkdfSha256, &secret, (nonce, b"payload"), b"", &mut derived[..])?;
        let key = Key::symmetric(Algorithm::ChaCha20Poly1305, &derived[..])?;
        Ok(PayloadKey { layout: Layout::Age, key, base: [0; 12] })
    }

    /// The layout.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The nonce of chunk number `chunk`. `last` matters to age alone.
    fn nonce(&self, chunk: u64, last: bool) -> [u8; 12] {
        let mut nonce = self.base;
        match self.layout {
            Layout::Cobblestone => {
                nonce[4..].iter_mut().zip(chunk.to_be_bytes()).for_each(|(byte, count)| *byte ^= count);
            }
            Layout::Age => {
                nonce[3..11].copy_from_slice(&chunk.to_be_bytes());
                nonce[11] = u8::from(last);
            }
        }
        nonce
    }

    fn kinds(&self) -> (Kind, Kind) {
        match self.layout {
            Layout::Cobblestone => (Kind::Aes256GcmSeal, Kind::Aes256GcmOpen),
            Layout::Age => (Kind::ChaCha20Poly1305Seal, Kind::ChaCha20Poly1305Open),
        }
    }

    /// Seals a run of chunks in place. `buffer` holds their plaintext with a gap for a tag behind each; chunk numbers
    /// start at `first`; `last` says that the payload ends here.
    ///
    /// # Errors
    /// [`Error::TooLong`], [`wattlock_door::Error::Engine`]. The buffer's content is then worthless.
    pub fn seal(
        &self,
        first: u64,
        buffer: &mut [u8],
        last: bool,
        crypto: &mut dyn Crypto,
    ) -> Result<(), Error> {
        match self.run(self.kinds().0, first, buffer, last, crypto)? {
            None => Ok(()),
            Some((_, error)) => Err(Error::Door(wattlock_door::Error::Engine(error))),
        }
    }

    /// Opens a run of chunks in place; the plaintext stays where the ciphertext was, with gaps.
    ///
    /// # Errors
    /// [`Failure`] with the number of the first chunk that did not authenticate; nothing in the buffer may then be
    /// used. Its [`Failure::explain`] says more.
    pub fn open(
        &self,
        first: u64,
        buffer: &mut [u8],
        last: bool,
        crypto: &mut dyn Crypto,
    ) -> Result<(), Failure> {
        let whole = buffer.len() / self.layout.stride() * self.layout.stride();
        let short_of_a_tag = buffer.len() - whole < TAG_LEN && whole < buffer.len();
        let ended = last && !short_of_a_tag;
        let run = if short_of_a_tag { &mut buffer[..whole] } else { &mut *buffer };
        match self.run(self.kinds().1, first, run, ended, crypto) {
            Ok(None) => {}
            Ok(Some((chunk, CoreError::Authentication))) => return Err(Failure::Chunk(chunk)),
            Ok(Some((_, error))) => {
                return Err(Failure::Other(Error::Door(wattlock_door::Error::Engine(error))));
            }
            Err(error) => return Err(Failure::Other(error)),
        }
        if !last {
            return Ok(());
        }
        if short_of_a_tag || buffer.is_empty() {
            return Err(Failure::Other(Error::Truncated));
        }
        let end = buffer.len().div_ceil(self.layout.stride()) - 1;
        let (chunk, plain) = (first + end as u64, buffer.len() - end * self.layout.stride() - TAG_LEN);
        if self.layout.may_end_with(chunk, plain) {
            return Ok(());
        }
        let full = plain == self.layout.chunk_len();
        Err(Failure::Other(if full { Error::Truncated } else { Error::Corrupted { chunk } }))
    }

    /// All chunks as one request; the first failure, by number.
    fn run(
        &self,
        kind: Kind,
        first: u64,
        buffer: &mut [u8],
        last: bool,
        crypto: &mut dyn Crypto,
    ) -> Result<Option<(u64, CoreError)>, Error> {
        let stride = self.layout.stride();
        let count = buffer.len().div_ceil(stride);
        if first + count as u64 > self.layout.max_chunks() {
            return Err(Error::TooLong);
        }
        if (1..TAG_LEN).contains(&(buffer.len() % stride)) {
            return Err(Error::Truncated);
        }
        let (nonce, run) = (self.nonces(first, count, last), Run::Stride(stride));
        let request = Request::new(kind, &self.key, Data::InPlace(buffer));
        let mut request = Request { nonce: &nonce, run: Some(&run), class: LatencyClass::Bulk, ..request };
        Ok(match crypto.run_messages(&mut request) {
            Ok(_) => None,
            Err(CoreError::ForgedMessage(index)) => {
                Some((first + u64::from(index), CoreError::Authentication))
            }
            Err(error) => Some((first, error)),
        })
    }

    /// The key of its chunks.
    pub(crate) fn chunk_key(&self) -> &Key {
        &self.key
    }

    /// The kind of request that opens its chunks.
    pub(crate) fn opens_by(&self) -> Kind {
        self.kinds().1
    }

    /// The nonces of chunks `first` and following, concatenated.
    pub(crate) fn nonces(&self, first: u64, count: usize, last: bool) -> Vec<u8> {
        let nonce = |i| self.nonce(first + i as u64, last && i + 1 == count);
        (0..count).flat_map(nonce).collect()
    }

    /// A run of full chunks, none of them the payload's last, that owns its buffers: `input` has them as
    /// [`PayloadKey::seal`] and [`PayloadKey::open`] take them, `output` has the same length.
    #[cfg(feature = "runtime")]
    pub(crate) fn owned(
        &self,
        direction: Direction,
        first: u64,
        input: Vec<u8>,
        output: Vec<u8>,
    ) -> OwnedRequest {
        let (stride, kind) = (self.layout.stride(), self.kind(direction));
        let nonce = self.nonces(first, input.len() / stride, false);
        let mut request = OwnedRequest::new(kind, Arc::new(self.key.clone()), input, 0);
        (request.output, request.nonce) = (output, nonce);
        request.run = Some(Box::new(Run::Stride(stride)));
        request.class = LatencyClass::Bulk;
        request
    }

    /// The kind of request that its chunks are.
    #[cfg(feature = "runtime")]
    pub(crate) fn kind(&self, direction: Direction) -> Kind {
        let (seal, open) = self.kinds();
        if direction == Direction::Seal { seal } else { open }
    }

    /// Whether `piece`, at the end of the file, was not written as the last chunk. age marks its last chunk, so a cut
    /// between two chunks can be distinguished from damage.
    fn goes_on_after(&self, chunk: u64, piece: &[u8], crypto: &mut dyn Crypto) -> bool {
        let mut scratch = Zeroizing::new(piece.to_vec());
        self.layout == Layout::Age
            && piece.len() == self.layout.stride()
            && matches!(self.run(self.kinds().1, chunk, &mut scratch, false, crypto), Ok(None))
    }

    /// Whether the payload really ends inside `piece`, the sealed bytes from the start of chunk `chunk` on. The bytes
    /// after that end were then added. Tries every length that the last chunk can have. That takes a second at worst
    /// and happens only after a failure.
    fn ends_within(&self, chunk: u64, piece: &[u8], last: bool, crypto: &mut dyn Crypto) -> bool {
        let longest = piece.len().min(self.layout.stride());
        // A whole piece that was already tried as the last one need not be tried again.
        let longest = if last && longest == piece.len() { longest.saturating_sub(1) } else { longest };
        let mut scratch = Zeroizing::new(vec![0; longest]);
        (TAG_LEN..=longest).rev().any(|len| {
            if !self.layout.may_end_with(chunk, len - TAG_LEN) {
                return false;
            }
            let attempt = &mut scratch[..len];
            attempt.copy_from_slice(&piece[..len]);
            matches!(self.run(self.kinds().1, chunk, attempt, true, crypto), Ok(None))
        })
    }
}

/// Why a run of chunks did not open.
#[derive(Debug)]
pub enum Failure {
    /// This chunk does not authenticate.
    Chunk(u64),
    /// Anything else.
    Other(Error),
}

impl Failure {
    /// The error to report, given the run's sealed bytes as they were before the attempt: distinguishes an altered
    /// chunk from something added behind the end and from an end that is cut.
    pub fn explain(
        self,
        key: &PayloadKey,
        first: u64,
        sealed: &[u8],
        last: bool,
        crypto: &mut dyn Crypto,
    ) -> Error {
        let chunk = match self {
            Failure::Chunk(chunk) => chunk,
            Failure::Other(error) => return error,
        };
        let start = ((chunk - first) as usize * key.layout.stride()).min(sealed.len());
        let piece = &sealed[start..];
        let at_end = last && piece.len() <= key.layout.stride();
        if key.ends_within(chunk, &piece[..piece.len().min(key.layout.stride())], at_end, crypto) {
            return Error::Extended;
        }
        if !at_end {
            return Error::Corrupted { chunk };
        }
        if key.goes_on_after(chunk, piece, crypto) { Error::Truncated } else { Error::DamagedEnd { chunk } }
    }
}

/// Opens a whole payload that lies in memory: the chunk reader without the pipeline, for fuzzing and for small files.
///
/// # Errors
/// Those of opening a file with these bytes.
pub fn open_slice(
    key: &PayloadKey,
    sealed: &[u8],
    crypto: &mut dyn Crypto,
) -> Result<Zeroizing<Vec<u8>>, Error> {
    let mut buffer = Zeroizing::new(sealed.to_vec());
    key.open(0, &mut buffer, true, crypto)
        .map_err(|failure| failure.explain(key, 0, sealed, true, crypto))?;
    let mut plain = Zeroizing::new(Vec::with_capacity(sealed.len()));
    for piece in buffer.chunks(key.layout.stride()) {
        plain.extend_from_slice(&piece[..piece.len() - TAG_LEN]);
    }
    Ok(plain)
}

/// Seals a whole content that lies in memory; the counterpart of [`open_slice`].
///
/// # Errors
/// [`wattlock_door::Error::Engine`].
pub fn seal_slice(key: &PayloadKey, plain: &[u8], crypto: &mut dyn Crypto) -> Result<Vec<u8>, Error> {
    let layout = key.layout;
    let mut sealed = vec![0; layout.sealed_len(plain.len() as u64)? as usize];
    for (piece, text) in sealed.chunks_mut(layout.stride()).zip(plain.chunks(layout.chunk_len())) {
        piece[..text.len()].copy_from_slice(text);
    }
    key.seal(0, &mut sealed, true, crypto)?;
    Ok(sealed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [Layout; 2] = [Layout::Cobblestone, Layout::Age];

    #[test]
    fn lengths_invert_each_other_around_every_boundary() {
        for layout in BOTH {
            let chunk = layout.chunk_len() as u64;
            for plain in [0, 1, chunk - 1, chunk, chunk + 1, 2 * chunk - 1, 2 * chunk, 1 << 40] {
                let sealed = layout.sealed_len(plain).unwrap();
                assert_eq!(layout.plain_len(sealed).unwrap(), plain, "{layout:?} {plain}");
            }
        }
    }

    #[test]
    fn specified_byte_counts_hold() {
        // The examples of c2sp.org/chunked-encryption: 0, 1 KiB, 16 KiB, 20 KiB.
        for (plain, chunks) in [(0, 1), (1 << 10, 1), (16 << 10, 2), (20 << 10, 2)] {
            assert_eq!(Layout::Cobblestone.chunks(plain), chunks);
        }
        assert_eq!(Layout::Age.chunks(1 << 16), 1);
        assert_eq!(Layout::Age.chunks((1 << 16) + 1), 2);
    }

    #[test]
    fn lengths_without_a_last_chunk_are_truncated() {
        for sealed in [0, 1, 15, 16_400, 16_401, 16_415, 32_800] {
            assert!(matches!(Layout::Cobblestone.plain_len(sealed), Err(Error::Truncated)), "{sealed}");
        }
        for sealed in [0, 15, 65_553, 65_567] {
            assert!(matches!(Layout::Age.plain_len(sealed), Err(Error::Truncated)), "{sealed}");
        }
    }

    #[test]
    fn length_limit_is_the_specification_s() {
        assert!(Layout::Cobblestone.sealed_len((1 << 52) - 1).is_ok());
        assert!(matches!(Layout::Cobblestone.sealed_len(1 << 52), Err(Error::TooLong)));
        assert!(matches!(Layout::Cobblestone.plain_len(u64::MAX), Err(Error::TooLong)));
        assert!(matches!(Layout::Age.plain_len(u64::MAX), Err(Error::TooLong)));
    }

    #[test]
    fn nonces_count_in_the_specified_bytes() {
        let key = |layout, algorithm| PayloadKey {
            layout,
            key: Key::symmetric(algorithm, &[0; 32]).unwrap(),
            base: [0xff; 12],
        };
        let cobblestone = key(Layout::Cobblestone, Algorithm::Aes256Gcm);
        assert_eq!(cobblestone.nonce(0, false), [0xff; 12]);
        let mut expected = [0xff; 12];
        expected[10..].copy_from_slice(&[0xfe, 0xfd]);
        assert_eq!(cobblestone.nonce(0x102, true), expected);
        let age = PayloadKey { base: [0; 12], ..key(Layout::Age, Algorithm::ChaCha20Poly1305) };
        assert_eq!(age.nonce(0x102, false), [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0]);
        assert_eq!(age.nonce(0, true), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    }
}
