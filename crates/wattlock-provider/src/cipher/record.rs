//! TLS's CBC records (RFC 5246 section 6.2.3.2): padding on; padding and MAC off, so that no attacker learns where they
//! were.
//!
//! Whoever can tell a wrong padding from a wrong MAC, be it by an error or by time, reads what was encrypted (Vaudenay,
//! "Security flaws induced by CBC padding", 2002; AlFardan and Paterson, "Lucky Thirteen", 2013). So how long the
//! padding is, whether it is right, and where text and MAC end are secrets here: they are [`Secret`]s, and every
//! record of one length takes the same steps. A wrong padding gets a random MAC,
//! which the caller's check of the MAC then refuses. Not done here is that check: computing the MAC of a text whose
//! length must stay hidden is libssl's part.

use std::array::from_fn;

use zeroize::Zeroize;

use super::secret::Secret;

const BLOCK: usize = 16;
/// Longest MAC, OpenSSL's `EVP_MAX_MD_SIZE`.
pub const MAC_MAX: usize = 64;
/// Most padding, besides the byte that says how much.
const MOST: usize = 255;

/// What padding looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Padding {
    /// Any bytes, less than a block of them (RFC 6101 section 5.2.3.2).
    Ssl3,
    /// Each byte says how many there are besides the last.
    Tls,
}

impl Padding {
    /// Bytes added to a text of `len` bytes: up to the next block, and at least one.
    pub fn added(len: usize) -> usize {
        BLOCK - len % BLOCK
    }

    /// Fills in the padding, which is all of `end`: 1 to 16 bytes.
    pub fn fill(self, end: &mut [u8]) {
        let Some((last, before)) = end.split_last_mut() else { return };
        *last = before.len() as u8;
        before.fill(if self == Padding::Tls { *last } else { 0 });
    }
}

/// Takes padding and MAC off a decrypted record, and returns how long the text before them is. That length is a secret
/// until the MAC was checked.
///
/// `mac` is as long as the record's MAC, at most [`MAC_MAX`]. It is filled with the record's MAC or, if the padding is
/// wrong, with `random`, as many bytes; the length is then that of a record without padding.
///
/// `None` if the record is too short to have a MAC and padding, which its length shows everybody. Without a MAC also if
/// the padding is wrong: then the record was authenticated before it was decrypted (RFC 7366), and no attacker learns
/// anything from it without the keys.
pub fn strip(record: &[u8], padding: Padding, random: &[u8], mac: &mut [u8]) -> Option<usize> {
    let (last, before) = record.split_last()?;
    let room = before.len().checked_sub(mac.len())?;
    let told = Secret::of(*last);

    let most = if padding == Padding::Tls { MOST } else { BLOCK - 1 };
    let mut wrong = !told.at_most(Secret::of(room.min(most) as u8));
    if padding == Padding::Tls {
        let inside: [Secret; MOST] = from_fn(|i| Secret::of(i as u8 + 1).at_most(told));
        for (inside, byte) in inside.iter().zip(before.iter().rev()) {
            wrong = wrong | *inside & (Secret::of(*byte) ^ told);
        }
    }
    let right = wrong.is_zero();
    if mac.is_empty() && right.reveal() == 0 {
        return None;
    }
    take_mac(before, told, right, random, mac);
    let off = usize::from((right & told).reveal()) + usize::from((right & Secret::of(1)).reveal());
    Some(room + 1 - off)
}

/// The MAC ends `told` bytes before the end. The bytes among which it must be are moved towards the front by 128, 64 and
/// so on down to 1, or not, until it is the first of them.
fn take_mac(before: &[u8], told: Secret, right: Secret, random: &[u8], mac: &mut [u8]) {
    let mut window = [Secret::of(0); MOST + MAC_MAX];
    let used = MOST + mac.len();
    let known = used.min(before.len());
    let bytes = &before[before.len() - known..];
    window[used - known..used].iter_mut().zip(bytes).for_each(|(place, byte)| *place = Secret::of(*byte));
    let by = !told;
    for (place, step) in (0..8).rev().map(|place| (place, 1 << place)) {
        let mask = by.bit(place);
        for i in 0..mac.len() + step - 1 {
            window[i] = mask.choose(window[i + step], window[i]);
        }
    }
    for ((out, mac), random) in mac.iter_mut().zip(&window).zip(random) {
        *out = right.choose(*mac, Secret::of(*random)).reveal();
    }
    window.zeroize();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the standard says, read from the end, with branches.
    fn plainly(record: &[u8], padding: Padding, size: usize) -> Option<(usize, Option<Vec<u8>>)> {
        let whole = record.len().checked_sub(size).filter(|rest| *rest > 0)?;
        let told = usize::from(*record.last()?);
        let fits = told < whole && (padding == Padding::Tls || told < BLOCK);
        let like =
            |bytes: &[u8]| padding == Padding::Ssl3 || bytes.iter().all(|byte| usize::from(*byte) == told);
        if !fits || !like(&record[record.len() - 1 - told..]) {
            return Some((whole, None));
        }
        let end = record.len() - 1 - told;
        Some((end - size, Some(record[end - size..end].to_vec())))
    }

    fn agrees(record: &[u8], padding: Padding, size: usize) {
        let (random, mut mac) = ([0xee; MAC_MAX], [0; MAC_MAX]);
        let got = strip(record, padding, &random[..size], &mut mac[..size]);
        match plainly(record, padding, size) {
            Some((_, None)) if size == 0 => assert_eq!(got, None),
            Some((len, right)) => {
                assert_eq!(got, Some(len), "{padding:?}, {size}, {record:?}");
                assert_eq!(
                    mac[..size],
                    right.unwrap_or(random[..size].to_vec()),
                    "{padding:?}, {size}, {record:?}"
                );
            }
            None => assert_eq!(got, None),
        }
        assert!(mac[size..].iter().all(|byte| *byte == 0));
    }

    const SIZES: [usize; 7] = [0, 16, 20, 28, 32, 48, 64];

    fn text(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 7 + i / 251) as u8 | 1).collect()
    }

    #[test]
    fn every_padding_is_told_from_the_wrong_ones_at_every_length() {
        for padding in [Padding::Tls, Padding::Ssl3] {
            for size in SIZES {
                for len in (1..=42).map(|blocks| blocks * BLOCK).chain([1, 15, 17, 300]) {
                    for told in 0..=255_u8 {
                        let mut record = text(len);
                        let start = len.saturating_sub(usize::from(told) + 1);
                        record[start..].fill(told);
                        agrees(&record, padding, size);
                        // One byte wrong: the first, one in the midst, the last before the length.
                        for at in [start, (start + len) / 2, len.saturating_sub(2)] {
                            let mut record = record.clone();
                            record[at] ^= 0x40;
                            agrees(&record, padding, size);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn every_byte_of_the_padding_counts() {
        for told in 0..=255_u8 {
            let mut record = text(400);
            let start = 399 - usize::from(told);
            record[start..].fill(told);
            for at in start..399 {
                record[at] ^= 1;
                agrees(&record, Padding::Tls, 20);
                record[at] ^= 1;
            }
            let mut mac = [0; 20];
            let right = strip(&record, Padding::Tls, &[0; 20], &mut mac);
            assert_eq!(right, Some(start - 20));
            assert_eq!(mac, record[start - 20..start]);
        }
    }

    #[test]
    fn what_is_added_is_taken_off() {
        for padding in [Padding::Tls, Padding::Ssl3] {
            for len in 20..100 {
                let mut record = text(len);
                record.resize(len + Padding::added(len), 0xaa);
                assert!(record.len().is_multiple_of(BLOCK));
                padding.fill(&mut record[len..]);
                let mut mac = [0; 20];
                assert_eq!(strip(&record, padding, &[0; 20], &mut mac), Some(len - 20));
                assert_eq!(mac, text(len)[len - 20..]);
            }
        }
    }
}
