//! Mending files that a crash left torn.

use wattlock_core::sync::lock;
use wattlock_door::Crypto;
use zeroize::Zeroizing;

use super::said::{Lost, slots_end};
use crate::Error;
use crate::content::ledger::{self, Look, Over};
use crate::content::slots::{self, FileKey};
use crate::content::{RANGE, Shared};
use crate::format::{HEADER_LEN, Header, OVERHEAD};
use crate::journal::Durable;
use crate::store::{File, Place, Store};

impl<S: Store> Shared<S> {
    /// Header and key of a file, if it is the one with this id, though its version byte may be altered. One of an
    /// unknown version that has the id is an error.
    pub(in crate::content) fn header_of(
        &self,
        file: &S::File,
        id: u64,
        crypto: &mut impl Crypto,
    ) -> Result<Option<(Header, FileKey)>, Error> {
        let mut bytes = [0; HEADER_LEN];
        let got = file.read_at(&mut bytes, 0).map_err(|error| Error::io("reading a header", error))?;
        let header = match Header::parse(&bytes[..got]) {
            Err(Error::Damaged(_)) => return Ok(None),
            parsed => parsed?,
        };
        if header.id != id {
            return Ok(None);
        }
        let header = self.restored(header, crypto)?;
        match self.open_header(&header, crypto) {
            Ok(secret) => Ok(Some((header, FileKey::new(&secret, crypto)?))),
            Err(Error::Damaged(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The same of a file that the journal names. If the journal has a header of it, that one says what opens the file: a
    /// recovery that was interrupted may have brought it into place, and its id may be another. Returns the id in place, too.
    pub(super) fn header_of_lost(
        &self,
        file: &S::File,
        lost: &Lost,
        crypto: &mut impl Crypto,
    ) -> Result<Option<(u64, Header, FileKey)>, Error> {
        let in_place = self.header_of(file, lost.id, crypto)?;
        let Some(at) = lost.header else {
            return Ok(in_place.map(|(header, key)| (header.id, header, key)));
        };
        let (header, key) = self.journaled_header(at, crypto)?;
        let in_place = match in_place {
            None => self.header_of(file, header.id, crypto)?,
            there => there,
        };
        Ok(in_place.map(|(there, _)| (there.id, header, key)))
    }

    /// A header that the journal has, and its key.
    pub(in crate::content) fn journaled_header(
        &self,
        at: u64,
        crypto: &mut impl Crypto,
    ) -> Result<(Header, FileKey), Error> {
        let mut bytes = [0; HEADER_LEN];
        self.journal.read(&mut bytes, at)?;
        let header = Header::parse(&bytes)?;
        let key = FileKey::new(&*self.open_header(&header, crypto)?, crypto)?;
        Ok((header, key))
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
        let (len, open_end) = self.whole(file, key, lost, stored, crypto)?;
        let replaced = !lost.overlay.is_empty() || lost.header.is_some();
        lost.overlay.cut(self.geometry.tail(len) + 1);
        let steps = ledger::recovering(self.geometry, &lost.overlay, lost.header, stored, (len, open_end));
        if !steps.is_empty() || replaced {
            self.place(file, key, (&steps, replaced), durable, crypto)?;
        }
        let cut = open_end || lost.overlay.is_empty() && stored != self.geometry.stored_len(len);
        Ok(cut.then_some(len))
    }

    /// What a recovery would make of a file, for reading alone.
    pub(in crate::content) fn over(
        &self,
        file: &S::File,
        key: &FileKey,
        mut lost: Lost,
        crypto: &mut impl Crypto,
    ) -> Result<Over, Error> {
        let stored = file.len().map_err(|error| Error::io("reading a file's length", error))?;
        let (len, open_end) = self.whole(file, key, &lost, stored, crypto)?;
        lost.overlay.cut(self.geometry.tail(len) + 1);
        let cut = open_end || lost.overlay.is_empty() && stored != self.geometry.stored_len(len);
        if cut {
            let path = lost.place.shown();
            let line = format!("{path}: {len} bytes are shown; what followed had not been synced");
            lock(&self.lines).push(line);
        }
        Ok(Over { len, open_end, cut, overlay: lost.overlay, header: lost.header })
    }

    /// The same of a file that was made in an epoch that did not end well.
    pub(in crate::content) fn over_unknown(
        &self,
        file: &S::File,
        place: &Place,
        header: &Header,
        key: &FileKey,
        crypto: &mut impl Crypto,
    ) -> Result<Over, Error> {
        self.over(file, key, Lost::unknown(header.id, place.clone()), crypto)
    }

    /// As [`ledger::whole`], of the file's bytes.
    fn whole(
        &self,
        file: &S::File,
        key: &FileKey,
        lost: &Lost,
        stored: u64,
        crypto: &mut impl Crypto,
    ) -> Result<(u64, bool), Error> {
        let geometry = self.geometry;
        let (mut slot, mut plain) =
            (vec![0; geometry.stride() as usize], Zeroizing::new(vec![0; geometry.chunk() as usize]));
        ledger::whole(geometry, (lost.committed, &lost.overlay), stored, &mut |index, room| {
            let slot = &mut slot[..room];
            let got = file.read_at(slot, geometry.slot_at(index));
            slot[got.map_err(|error| Error::io("reading a file", error))?..].fill(0);
            if slots::may_be_hole(slot)
                && let Some(level) = slots::open_hole(key, index, slot, crypto)?
                && slots_end(index, 1 << level, geometry).is_ok()
            {
                return Ok(Look::Hole(level));
            }
            let mut pieces: [&mut [u8]; 3] = [&mut plain[..room - OVERHEAD], &mut [], &mut []];
            match slots::open(key, geometry, index, slot, &mut pieces, crypto) {
                Ok(()) => Ok(Look::Opens),
                Err(Error::Damaged(_)) => Ok(Look::Broken),
                Err(error) => Err(error),
            }
        })
    }

    /// Gives a file an id outside all ranges, so that it need not be looked through again. A header lies within one
    /// sector, which is written wholly or not at all.
    pub(in crate::content) fn rename_id(
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
        self.write_header(file, &header)?;
        Ok(header)
    }

    /// Writes a header in place; the file's times stay.
    pub(in crate::content) fn write_header(&self, file: &S::File, header: &Header) -> Result<(), Error> {
        let times = file.times().ok().flatten();
        file.write_at(&header.encode(), 0).map_err(|error| Error::io("writing a header", error))?;
        if let Some(times) = times {
            _ = file.set_times(&times);
        }
        Ok(())
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
                let path = place.shown();
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

    /// Copies what a file has to another one that no entry is, unless it has only zeros; says which.
    fn keep_aside(&self, file: &S::File) -> Result<Option<String>, Error> {
        let mut aside = None;
        let copied = self.copy_aside(file, &mut aside);
        if let (Err(_), Some((name, _))) = (&copied, &aside) {
            self.store.remove_aside(name);
        }
        copied.map_err(|error| Error::io("keeping what a file had", error))?;
        Ok(aside.map(|(name, _)| name))
    }

    fn copy_aside(&self, file: &S::File, aside: &mut Option<(String, S::File)>) -> std::io::Result<()> {
        let (len, mut at) = (file.len()?, 0);
        let mut buffer = vec![0; 1 << 16];
        while let Some(data) = file.next_data(at)?.filter(|data| *data < len) {
            let got = file.read_at(&mut buffer, data)?;
            if got == 0 {
                break;
            }
            if buffer[..got].iter().any(|byte| *byte != 0) {
                let aside = match &mut *aside {
                    Some((_, aside)) => aside,
                    none => &none.insert(self.store.make_aside()?).1,
                };
                aside.write_at(&buffer[..got], data)?;
            }
            at = data + got as u64;
        }
        aside.as_ref().map_or(Ok(()), |(_, aside)| aside.sync())
    }

    /// A file without a header, made in an epoch that did not end well: nothing of it was durable. What it has is kept
    /// aside.
    pub(in crate::content) fn make_empty(
        &self,
        file: &S::File,
        place: &Place,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        self.writable(file, |file| {
            let aside = self.keep_aside(file)?;
            let (_, bytes) = self.empty_file(self.outside_ranges()?, crypto)?;
            let failed = |error| Error::io("mending a file", error);
            file.set_len(0).map_err(failed)?;
            // A header beside what was cut would be one of a damaged file.
            file.sync().map_err(failed)?;
            file.write_at(&bytes, 0).map_err(failed)?;
            file.sync().map_err(failed)?;
            let path = place.shown();
            let kept = aside.map(|name| format!("; what it had is in {name}")).unwrap_or_default();
            lock(&self.lines).push(format!("{path}: kept 0 bytes; nothing of it had been synced{kept}"));
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
