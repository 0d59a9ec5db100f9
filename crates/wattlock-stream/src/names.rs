//! Record keys that a broker cannot read and can still compare: equal keys of a topic stay equal, so that compaction
//! and partitioning go on as before.
//!
//! AES-SIV (RFC 5297) without a nonce, under a key for the topic that must not change while the topic lives. What it
//! gives away is which records have the same key, and how long the key is.

use wattlock_core::{Algorithm, Data, Error as CoreError, Item, Key, Kind, LatencyClass, Request};
use wattlock_door::{Crypto, short};
use zeroize::Zeroizing;

use crate::error::Error;
use crate::format::expand;

const LABEL: &[u8] = b"wattlock record v1 key\0";
const TAG_LEN: usize = 16;

/// The record keys of a topic.
pub struct RecordNames {
    key: Key,
}

impl RecordNames {
    /// Of this topic, under this stream key.
    ///
    /// # Errors
    /// [`Error::Files`] for an engine that failed.
    pub fn new(stream_key: &[u8; 32], topic: &str, crypto: &mut dyn Crypto) -> Result<RecordNames, Error> {
        let context = [&(topic.len() as u32).to_be_bytes()[..], topic.as_bytes()].concat();
        let mut digest = [0; 64];
        short(crypto, Kind::Sha512, Key::none(), (b"", b""), &context, &mut digest)?;
        let mut derived = Zeroizing::new([0; 64]);
        expand(stream_key, &[LABEL, &digest].concat(), &mut derived[..], crypto)?;
        Ok(RecordNames { key: Key::symmetric(Algorithm::Aes256Siv, &derived[..])? })
    }

    /// What stands for these keys on the sealed topic, 16 bytes longer; in one call of the engines.
    ///
    /// # Errors
    /// [`Error::Files`] for an engine that failed.
    pub fn hide(
        &self,
        keys: &[Option<&[u8]>],
        crypto: &mut dyn Crypto,
    ) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let hidden = |key: &Option<&[u8]>| key.map(|key| vec![0; TAG_LEN + key.len()]);
        let mut hidden: Vec<Option<Vec<u8>>> = keys.iter().map(hidden).collect();
        let pairs = keys.iter().flatten().zip(hidden.iter_mut().flatten());
        let mut items: Vec<Item<'_>> = pairs
            .map(|(from, to)| {
                let (tag, to) = to.split_at_mut(TAG_LEN);
                let request = Request::new(Kind::Aes256SivSeal, &self.key, Data::Apart { from, to });
                Item::new(Request { tag, class: LatencyClass::Bulk, ..request })
            })
            .collect();
        crypto.run_all(&mut items);
        match items.iter().find_map(|item| item.result.err()) {
            Some(error) => Err(error.into()),
            None => {
                drop(items);
                Ok(hidden)
            }
        }
    }

    /// The keys that these stand for, each with a result of its own; in one call of the engines.
    pub fn show(
        &self,
        hidden: &[Option<&[u8]>],
        crypto: &mut dyn Crypto,
    ) -> Vec<Result<Option<Zeroizing<Vec<u8>>>, Error>> {
        struct Apart<'a> {
            tag: [u8; TAG_LEN],
            text: &'a [u8],
            key: Zeroizing<Vec<u8>>,
        }
        let mut all: Vec<Result<Option<Apart<'_>>, Error>> = hidden
            .iter()
            .map(|hidden| {
                let Some(hidden) = hidden else { return Ok(None) };
                let (tag, text) =
                    hidden.split_first_chunk().ok_or(Error::NotARecord("its key is too short"))?;
                Ok(Some(Apart { tag: *tag, text, key: Zeroizing::new(vec![0; text.len()]) }))
            })
            .collect();
        let mut items: Vec<Item<'_>> = all
            .iter_mut()
            .flatten()
            .flatten()
            .map(|apart| {
                let data = Data::Apart { from: apart.text, to: &mut apart.key };
                let request = Request::new(Kind::Aes256SivOpen, &self.key, data);
                Item::new(Request { tag: &mut apart.tag, class: LatencyClass::Bulk, ..request })
            })
            .collect();
        crypto.run_all(&mut items);
        let results: Vec<_> = items.iter().map(|item| item.result).collect();
        drop(items);
        let mut results = results.into_iter();
        let shown = all.into_iter().map(|apart| {
            let Some(apart) = apart? else { return Ok(None) };
            match results.next() {
                Some(Ok(_)) => Ok(Some(apart.key)),
                Some(Err(CoreError::Authentication)) | None => Err(Error::RecordAltered),
                Some(Err(error)) => Err(error.into()),
            }
        });
        shown.collect()
    }
}
