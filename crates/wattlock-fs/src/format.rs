//! Where a file's bytes lie: a header of 96 bytes, then slots. Pure arithmetic and bytes; no key is used here.
//!
//! Content of `n` bytes has `n / C + 1` slots for a chunk size `C`. All but the last seal `C` bytes; the last seals
//! `n mod C` bytes, perhaps none, so that a file that was cut is noticed. A slot is a nonce of 24 bytes, the
//! ciphertext and a tag of 16 bytes.

use crate::Error;

/// Bytes of a file's header.
pub const HEADER_LEN: usize = 96;
/// Bytes of a nonce.
pub const NONCE_LEN: usize = 24;
/// Bytes of a tag.
pub const TAG_LEN: usize = 16;
/// Bytes that a slot has beside its ciphertext.
pub const OVERHEAD: usize = NONCE_LEN + TAG_LEN;
/// Bytes of a slot that is a hole record: it seals its run's length as a power of two.
pub const HOLE_LEN: usize = OVERHEAD + 8;
/// A hole record covers at most two to this power of slots.
pub const HOLE_LEVEL_MAX: u32 = 52;

/// The header's flag of a file that may have hole records. In a file without it a zeroed slot is damage at once.
pub const SPARSE: u16 = 1;

/// First bytes of every file's header.
const MAGIC: &[u8; 8] = b"wattlofs";
/// The version of the header.
pub(crate) const VERSION: u8 = 1;
/// Bytes of the header that are authenticated and not encrypted.
pub(crate) const CLEAR_LEN: usize = 24;

/// What a slot contains; the last byte of its associated data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotKind {
    /// Content.
    Data = 0,
    /// The length of a run of slots that are a hole.
    Hole = 1,
}

/// A slot's associated data: its index, and what it contains.
pub fn slot_aad(index: u64, kind: SlotKind) -> [u8; 9] {
    let mut aad = [0; 9];
    aad[..8].copy_from_slice(&index.to_be_bytes());
    aad[8] = kind as u8;
    aad
}

/// Where slots lie, for one chunk size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    log2: u8,
}

impl Geometry {
    /// The geometry of a chunk size; 4096, 16384, 65536 or 262144 bytes.
    ///
    /// # Errors
    /// [`Error::Usage`] for any other.
    pub fn new(chunk: usize) -> Result<Geometry, Error> {
        match chunk {
            4096 | 16384 | 65536 | 262_144 => Ok(Geometry { log2: chunk.trailing_zeros() as u8 }),
            _ => Err(Error::Usage(format!("a chunk of {chunk} bytes is not 4096, 16384, 65536 or 262144"))),
        }
    }

    /// The chunk size's logarithm to base 2.
    pub const fn log2(self) -> u8 {
        self.log2
    }

    /// Bytes of content in a full chunk.
    #[inline]
    pub const fn chunk(self) -> u64 {
        1 << self.log2
    }

    /// Bytes of a full slot.
    #[inline]
    pub const fn stride(self) -> u64 {
        self.chunk() + OVERHEAD as u64
    }

    /// Where slot `index` begins in the backing file.
    #[inline]
    pub const fn slot_at(self, index: u64) -> u64 {
        HEADER_LEN as u64 + index * self.stride()
    }

    /// The index of the last slot of `len` bytes of content.
    #[inline]
    pub const fn tail(self, len: u64) -> u64 {
        len >> self.log2
    }

    /// Bytes of content in slot `index` of `len` bytes in all; the slot must be one of the content's.
    #[inline]
    pub const fn within(self, index: u64, len: u64) -> usize {
        if index < self.tail(len) { self.chunk() as usize } else { (len & (self.chunk() - 1)) as usize }
    }

    /// Bytes of the backing file of `len` bytes of content.
    #[inline]
    pub const fn stored_len(self, len: u64) -> u64 {
        self.slot_at(self.tail(len)) + (len & (self.chunk() - 1)) + OVERHEAD as u64
    }

    /// The longest content whose backing file's length fits a signed 64-bit offset.
    pub const fn max_len(self) -> u64 {
        let slots = (i64::MAX as u64 - HEADER_LEN as u64) / self.stride();
        slots * self.chunk() - 1
    }

    /// Bytes of content in a backing file of `stored` bytes; `None` for a length that no content makes.
    pub const fn content_len(self, stored: u64) -> Option<u64> {
        if stored < HEADER_LEN as u64 {
            return None;
        }
        let slots = stored - HEADER_LEN as u64;
        let rest = slots % self.stride();
        if rest < OVERHEAD as u64 {
            return None;
        }
        Some(slots / self.stride() * self.chunk() + rest - OVERHEAD as u64)
    }

    /// The same for any length: what is missing at the end is not counted.
    pub const fn content_len_lenient(self, stored: u64) -> u64 {
        let slots = stored.saturating_sub(HEADER_LEN as u64);
        let rest = slots % self.stride();
        slots / self.stride() * self.chunk() + rest.saturating_sub(OVERHEAD as u64)
    }
}

/// A file's header, or a folder record's: what is in it in clear, and what is sealed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// What else is here has its place in this version; the id has it in every one.
    pub version: u8,
    /// The chunk size's logarithm to base 2.
    pub chunk_log2: u8,
    /// [`SPARSE`] or 0.
    pub flags: u16,
    /// The generation of the volume key that seals the file's key.
    pub generation: u32,
    /// Tells files of one volume apart.
    pub id: u64,
    /// Nonce of the sealed key.
    pub nonce: [u8; NONCE_LEN],
    /// The file's key and its tag, sealed.
    pub sealed: [u8; 48],
}

impl Header {
    /// The bytes that are authenticated and not encrypted: the associated data of the sealed key.
    pub fn clear(&self) -> [u8; CLEAR_LEN] {
        let mut clear = [0; CLEAR_LEN];
        clear[..8].copy_from_slice(MAGIC);
        clear[8] = self.version;
        clear[9] = self.chunk_log2;
        clear[10..12].copy_from_slice(&self.flags.to_be_bytes());
        clear[12..16].copy_from_slice(&self.generation.to_be_bytes());
        clear[16..24].copy_from_slice(&self.id.to_be_bytes());
        clear
    }

    /// The header's bytes.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..CLEAR_LEN].copy_from_slice(&self.clear());
        bytes[CLEAR_LEN..CLEAR_LEN + NONCE_LEN].copy_from_slice(&self.nonce);
        bytes[CLEAR_LEN + NONCE_LEN..].copy_from_slice(&self.sealed);
        bytes
    }

    /// Reads a header of any version; what is sealed stays sealed.
    ///
    /// # Errors
    /// [`Error::Damaged`] for what is no header.
    pub fn parse(bytes: &[u8]) -> Result<Header, Error> {
        let bytes: &[u8; HEADER_LEN] = match bytes.first_chunk() {
            Some(bytes) => bytes,
            None => return Err(Error::Damaged("the header is cut".into())),
        };
        if bytes[..8] != *MAGIC {
            return Err(Error::Damaged("the header is none of this format".into()));
        }
        let mut header = Header {
            version: bytes[8],
            chunk_log2: bytes[9],
            flags: u16::from_be_bytes([bytes[10], bytes[11]]),
            generation: u32::from_be_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]),
            id: be64(&bytes[16..24]),
            nonce: [0; NONCE_LEN],
            sealed: [0; 48],
        };
        header.nonce.copy_from_slice(&bytes[CLEAR_LEN..CLEAR_LEN + NONCE_LEN]);
        header.sealed.copy_from_slice(&bytes[CLEAR_LEN + NONCE_LEN..]);
        Ok(header)
    }
}

/// Eight bytes, big-endian. Missing bytes count as zero.
pub(crate) fn be64(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// Whether a file begins as one of a volume does. What cannot be read does.
pub(crate) fn begins(file: &std::os::fd::OwnedFd) -> bool {
    let mut bytes = [0; MAGIC.len()];
    match rustix::io::pread(file, &mut bytes, 0) {
        Ok(got) => got == bytes.len() && bytes == *MAGIC,
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_the_worked_ones() {
        let four = Geometry::new(4096).unwrap();
        assert_eq!(four.stride(), 4136);
        assert_eq!(four.stored_len(0), 136);
        assert_eq!(four.stored_len(1), 137);
        assert_eq!(four.stored_len(4095), 96 + 4095 + 40);
        assert_eq!(four.stored_len(4096), 96 + 4136 + 40);
        assert_eq!(four.stored_len(1 << 30), 1_084_227_720);
        assert_eq!(Geometry::new(16384).unwrap().stored_len(1 << 30), 1_076_363_400);
        assert!(Geometry::new(8192).is_err());
    }

    #[test]
    fn length_of_content_follows_from_length_of_file() {
        for chunk in [4096, 16384, 65536, 262_144] {
            let geometry = Geometry::new(chunk).unwrap();
            let stride = geometry.stride();
            let mut made = std::collections::BTreeMap::new();
            for len in 0..3 * geometry.chunk() + 2 {
                made.insert(geometry.stored_len(len), len);
            }
            for stored in 0..96 + 3 * stride + 42 {
                assert_eq!(geometry.content_len(stored), made.get(&stored).copied(), "{chunk} {stored}");
                if let Some(len) = made.get(&stored) {
                    assert_eq!(geometry.content_len_lenient(stored), *len);
                }
            }
            let most = geometry.max_len();
            assert!(i64::try_from(geometry.stored_len(most)).is_ok());
            assert_eq!(geometry.content_len(geometry.stored_len(most)), Some(most));
        }
    }

    #[test]
    fn header_is_read_as_it_was_written() {
        let header = Header {
            version: VERSION,
            chunk_log2: 12,
            flags: 0,
            generation: 7,
            id: 1 << 63 | 5,
            nonce: [3; 24],
            sealed: [4; 48],
        };
        let mut bytes = header.encode();
        assert_eq!(Header::parse(&bytes).unwrap(), header);
        assert!(Header::parse(&bytes[..95]).is_err());
        bytes[8] = 2;
        let other = Header::parse(&bytes).unwrap();
        assert_eq!((other.encode(), other), (bytes, Header { version: 2, ..header }));
        bytes[0] ^= 1;
        assert!(Header::parse(&bytes).is_err());
    }
}
