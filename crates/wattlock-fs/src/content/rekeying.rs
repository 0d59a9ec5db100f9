//! Rotation of a volume that is in use: its headers and its journal under another key.

use std::sync::atomic::Ordering;

use wattlock_core::sync::{read, write};
use wattlock_door::Crypto;

use super::Contents;
use super::starting::Keys;
use super::times::{Move, move_time};
use crate::Error;
use crate::format::{HEADER_LEN, Header};
use crate::rotate::Resealed;
use crate::store::{File, Store};
use crate::volume::Volume;

impl<S: Store> Contents<S> {
    /// Takes over the volume keys of `volume`: the same volume after [`Volume::add_generation`], or after old ones were
    /// removed. Nothing that is being made has another key when this returns.
    ///
    /// # Errors
    /// [`Error::Engine`]; nothing has changed.
    pub fn rekey(&self, volume: &Volume, crypto: &mut impl Crypto) -> Result<(), Error> {
        let (shared, keys) = (&self.shared, Keys::new(volume, crypto)?);
        let _creating = write(&shared.creating);
        let _epoch = write(&shared.epoch);
        *write(&shared.keys) = keys.files;
        shared.journal.rekey(keys.journal);
        Ok(())
    }

    /// Seals a file's header under the newest key, while the volume is in use; `named` says whether its name opens. One
    /// that has the newest key is written as it is if this is the `first` look at it: after a sync that failed memory
    /// has it, the disk may have the old one, and no later sync says so.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`] for a header that does not open, [`Error::Newer`].
    pub fn reseal(
        &self,
        file: &S::File,
        inode: (u64, u64),
        (named, first): (bool, bool),
        crypto: &mut impl Crypto,
    ) -> Result<Resealed, Error> {
        let shared = &self.shared;
        let _creating = write(&shared.creating);
        let _epoch = write(&shared.epoch);
        let body = shared.known_body(inode);
        if body.as_ref().is_some_and(|body| body.state().ledger.has_header()) {
            // One of the journal would take its place later.
            shared.bring_into_place(crypto)?;
        }
        let _state = body.as_ref().map(|body| body.state_mut());
        let mut bytes = [0; HEADER_LEN];
        let got = file.read_at(&mut bytes, 0).map_err(|error| Error::io("reading a header", error))?;
        let header = match Header::parse(&bytes[..got]) {
            // A stranger's file keeps no volume key in use. One of an unknown version may be a key holder's.
            Err(Error::Damaged(_)) if !named => return Ok(Resealed::AsItWas),
            parsed => shared.restored(parsed?, crypto)?,
        };
        if read(&shared.keys).last().is_some_and(|(newest, _)| *newest == header.generation) {
            if first {
                shared.write_header(file, &header)?;
            }
            return Ok(Resealed::AsItWas);
        }
        if !read(&shared.keys).iter().any(|(generation, _)| *generation == header.generation) {
            return Ok(Resealed::Lost(header.generation));
        }
        let secret = shared.open_header(&header, crypto)?;
        let header = shared.seal_header(header.id, header.flags, &secret, crypto)?;
        shared.write_header(file, &header)?;
        // A backup by sizes and times would keep the old header, which nothing opens any longer, beside the new keys.
        move_time(file, Move::On);
        Ok(Resealed::Anew)
    }

    /// Whether nothing but the version byte of a file's header was altered.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Engine`].
    pub fn is_version_altered(&self, file: &S::File, crypto: &mut impl Crypto) -> Result<bool, Error> {
        Ok(self.altered(file, crypto)?.is_some())
    }

    /// Writes that byte back.
    ///
    /// # Errors
    /// As [`Contents::is_version_altered`].
    pub fn restore_version(&self, file: &S::File, crypto: &mut impl Crypto) -> Result<(), Error> {
        let _creating = write(&self.shared.creating);
        let _epoch = write(&self.shared.epoch);
        let header = self.altered(file, crypto)?;
        header.map_or(Ok(()), |header| self.shared.write_header(file, &header))
    }

    /// The header of such a file as it was sealed.
    fn altered(&self, file: &S::File, crypto: &mut impl Crypto) -> Result<Option<Header>, Error> {
        let mut bytes = [0; HEADER_LEN];
        let got = file.read_at(&mut bytes, 0).map_err(|error| Error::io("reading a header", error))?;
        let Ok(header) = Header::parse(&bytes[..got]) else { return Ok(None) };
        match self.shared.restored(header.clone(), crypto) {
            Ok(whole) => Ok(Some(whole).filter(|whole| *whole != header)),
            Err(Error::Newer(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Has [`Contents::while_moving`] count, from now on or no longer.
    pub fn count_moves(&self, count: bool) {
        self.shared.counting.store(count, Ordering::SeqCst);
    }

    /// How many names have moved, if none does just now.
    pub fn moves(&self) -> Option<u64> {
        let moved = self.shared.moved.load(Ordering::SeqCst);
        (self.shared.moving.load(Ordering::SeqCst) == 0).then_some(moved)
    }

    /// Whether [`Contents::while_moving`] has anything to do.
    pub fn counts_moves(&self) -> bool {
        self.may_be_torn() || self.shared.counting.load(Ordering::SeqCst)
    }

    /// Empties the journal and seals both of its heads under the volume's newest key, after which no older key opens
    /// anything of it.
    ///
    /// # Errors
    /// As [`Contents::checkpoint`].
    pub fn rekey_journal(&self, crypto: &mut impl Crypto) -> Result<(), Error> {
        let shared = &self.shared;
        shared.relieve(crypto)?;
        // Most of it before anybody has to wait.
        shared.checkpoint(crypto)?;
        let _creating = write(&shared.creating);
        let _epoch = write(&shared.epoch);
        shared.bring_into_place(crypto)?;
        let unclean = read(&shared.unclean);
        shared.journal.reset(&unclean, crypto)
    }
}
