//! Mending files that a crash left torn.

use wattlock_core::sync::lock;
use wattlock_door::Crypto;

use super::said::{Lost, slots_end};
use crate::Error;
use crate::content::ledger;
use crate::content::overlay::Overlay;
use crate::content::slots::{self, FileKey};
use crate::content::{RANGE, Shared};
use crate::format::{HEADER_LEN, Header, OVERHEAD};
use crate::journal::Durable;
use crate::store::{File, Place, Store};

impl<S: Store> Shared<S> {
    /// Header and key of a file, if it is the one with this id.
    pub(super) fn header_of(
        &self,
        file: &S::File,
        id: u64,
        crypto: &mut impl Crypto,
    ) -> Result<Option<(Header, FileKey)>, Error> {
        let mut bytes = [0; HEADER_LEN];
        let got = file.read_at(&mut bytes, 0).map_err(|error| Error::io("reading a header", error))?;
        let Ok(header) = Header::parse(&bytes[..got]) else { return Ok(None) };
        if header.id != id {
            return Ok(None);
        }
        match self.open_header(&header, crypto) {
            Ok(secret) => Ok(Some((header, FileKey::new(&secret, crypto)?))),
            Err(Error::Damaged(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Brings a file's slots into place, and cuts it where what was never synced stops being whole. Returns its length
    /// if it was cut.
    pub(super) fn mend(
        &self,
        file: &S::File,
        key: &FileKey,
        lost: &mut Lost,
        durable: &Durable,
        crypto: &mut impl Crypto,
    ) -> Result<Option<u64>, Error> {
        let stored = file.len().map_err(|error| Error::io("mending a file", error))?;
        let (len, open_end) = self.whole(file, key, lost.committed, &lost.overlay, stored, crypto)?;
        lost.overlay.cut(self.geometry.tail(len) + 1);
        let steps = ledger::recovering(self.geometry, &lost.overlay, lost.header, stored, (len, open_end));
        if !steps.is_empty() {
            self.place(file, key, &steps, durable, crypto)?;
        }
        let cut = open_end || lost.overlay.is_empty() && stored != self.geometry.stored_len(len);
        Ok(cut.then_some(len))
    }

    /// How many bytes of a file are whole, from the committed ones on; and whether a last slot must be written behind
    /// them.
    fn whole(
        &self,
        file: &S::File,
        key: &FileKey,
        committed: u64,
        overlay: &Overlay,
        stored: u64,
        crypto: &mut impl Crypto,
    ) -> Result<(u64, bool), Error> {
        let geometry = self.geometry;
        let chunk = geometry.chunk();
        let mut index = geometry.tail(committed);
        if committed > 0 && overlay.covering(index).is_none() {
            // The committed end was not replaced: nothing behind it was begun, or what was begun had no more than that.
            return Ok((committed, false));
        }
        let (mut slot, mut plain) = (vec![0; geometry.stride() as usize], vec![0; chunk as usize]);
        if committed == 0 {
            index = 0;
        }
        loop {
            if let Some((start, piece)) = overlay.covering(index) {
                let text = u64::from(piece.len).saturating_sub(OVERHEAD as u64);
                match piece.level {
                    Some(level) => index = start + (1 << level),
                    None if text < chunk => return Ok((index * chunk + text, false)),
                    None => index += 1,
                }
                continue;
            }
            let at = geometry.slot_at(index);
            let room = stored.saturating_sub(at).min(geometry.stride()) as usize;
            if room < OVERHEAD {
                return Ok((index * chunk, true));
            }
            let got =
                file.read_at(&mut slot[..room], at).map_err(|error| Error::io("reading a file", error))?;
            slot[got..].fill(0);
            let full = room == slot.len();
            if full
                && slots::may_be_hole(&slot)
                && let Some(level) = slots::open_hole(key, index, &slot, crypto)?
                && let Ok(end) = slots_end(index, 1 << level, geometry)
            {
                index = end;
                continue;
            }
            let mut pieces: [&mut [u8]; 3] = [&mut plain[..room - OVERHEAD], &mut [], &mut []];
            let opened = slots::open(key, geometry, index, &mut slot[..room], &mut pieces, crypto);
            match opened {
                Ok(()) if full => index += 1,
                Ok(()) => return Ok((index * chunk + (room - OVERHEAD) as u64, false)),
                Err(Error::Damaged(_)) => return Ok((index * chunk, true)),
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives a file an id outside all ranges, so that it need not be looked through again. A header lies within one
    /// sector, which is written wholly or not at all.
    pub(super) fn rename_id(
        &self,
        file: &S::File,
        header: &Header,
        ranges: &[u64],
        key: &FileKey,
        crypto: &mut impl Crypto,
    ) -> Result<Header, Error> {
        let id = loop {
            let id = self.outside_ranges()?;
            if !ranges.iter().any(|start| id.wrapping_sub(*start) < RANGE) {
                break id;
            }
        };
        let header = self.seal_header(id, header.flags, &key.secret(), crypto)?;
        let times = file.times().ok().flatten();
        file.write_at(&header.encode(), 0).map_err(|error| Error::io("writing a header", error))?;
        if let Some(times) = times {
            _ = file.set_times(&times);
        }
        Ok(header)
    }

    /// A file that was made in an epoch that did not end well, and is opened for the first time since.
    pub(in crate::content) fn mend_lazily(
        &self,
        file: &S::File,
        place: &Place,
        header: Header,
        key: &FileKey,
        crypto: &mut impl Crypto,
    ) -> Result<Header, Error> {
        self.writable(file, |file| {
            let mut lost = Lost::unknown(header.id, place.clone());
            if let Some(len) = self.mend(file, key, &mut lost, &Durable::of_nothing(), crypto)? {
                let path = String::from_utf8_lossy(&place.path);
                let line = format!("{path}: kept {len} bytes; what followed had not been synced");
                lock(&self.lines).push(line);
            }
            let sync = || file.sync().map_err(|error| Error::io("syncing a file", error));
            sync()?;
            let header = self.rename_id(file, &header, &[], key, crypto)?;
            // The journal may name the new id at once, and what it keeps of this file must find the file.
            sync()?;
            Ok(header)
        })
    }

    /// A file without a header, made in an epoch that did not end well: nothing of it was durable.
    pub(in crate::content) fn make_empty(
        &self,
        file: &S::File,
        place: &Place,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        self.writable(file, |file| {
            let (_, bytes) = self.empty_file(self.outside_ranges()?, crypto)?;
            let failed = |error| Error::io("mending a file", error);
            file.set_len(0).map_err(failed)?;
            // A header beside what was cut would be one of a damaged file.
            file.sync().map_err(failed)?;
            file.write_at(&bytes, 0).map_err(failed)?;
            file.sync().map_err(failed)?;
            let path = String::from_utf8_lossy(&place.path);
            lock(&self.lines).push(format!("{path}: kept 0 bytes; nothing of it had been synced"));
            Ok(())
        })
    }

    /// Writes once more what [`Shared::mend_lazily`] or [`Shared::make_empty`] wrote when a sync failed: memory has it, and
    /// the system takes it for written.
    pub(in crate::content) fn mend_again(&self, file: &S::File) -> Result<(), Error> {
        self.writable(file, |file| {
            let failed = |error| Error::io("mending a file", error);
            let len = file.len().map_err(failed)?;
            let tail = self.geometry.slot_at(self.geometry.tail(self.geometry.content_len_lenient(len)));
            for (at, bytes) in [(0, HEADER_LEN as u64), (tail, self.geometry.stride())] {
                let mut bytes = vec![0; bytes as usize];
                let got = file.read_at(&mut bytes, at).map_err(failed)?;
                file.write_at(&bytes[..got], at).map_err(failed)?;
            }
            file.sync().map_err(failed)
        })
    }

    /// Does something with a file that may be written.
    fn writable<T>(
        &self,
        file: &S::File,
        work: impl FnOnce(&S::File) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if file.writable() {
            return work(file);
        }
        work(&file.for_writing().map_err(|error| Error::io("opening a file that is not whole", error))?)
    }
}
