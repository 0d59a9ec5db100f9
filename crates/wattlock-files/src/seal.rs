//! Sealing: write a header for the recipients, then run the pipeline.

use age_core::format::FileKey;
use age_core::secrecy::ExposeSecret;
use std::io::Write;
use zeroize::Zeroizing;

use crate::Format;
use crate::error::Error;
use crate::format::payload::{AGE_NONCE_LEN, PayloadKey, SALT_LEN, seal_slice};
use crate::format::{age as age_format, armor, header};
use crate::gzip::{Gzip, name_of};
use crate::input::{Input, Source};
use crate::keys::BoxedRecipient;
use crate::pipeline::{self, Direction, Drain, Feed, Progress};
use wattlock_door::Attributes;
use wattlock_door::{Crypto, CryptoSource, random};
use wattlock_door::{Output, Target};

/// Seals files for the same recipients, each with a fresh key of its own.
pub struct Sealer {
    recipients: Vec<BoxedRecipient>,
    format: Format,
    armor: bool,
    gzip: Option<Gzip>,
}

impl Sealer {
    /// For these recipients; see [`crate::keys`] for where they come from. A passphrase must be alone.
    ///
    /// # Errors
    /// [`wattlock_door::Error::Usage`] if there are none.
    pub fn new(recipients: Vec<BoxedRecipient>) -> Result<Sealer, Error> {
        if recipients.is_empty() {
            return Err(Error::Door(wattlock_door::Error::Usage("no recipients".into())));
        }
        Ok(Sealer { recipients, format: Format::Sealed, armor: false, gzip: None })
    }

    /// Chooses the format; the default is [`Format::Sealed`].
    #[must_use]
    pub fn format(self, format: Format) -> Sealer {
        Sealer { format, ..self }
    }

    /// Whether to wrap the result in ASCII armor. It is then written in order, on one core.
    #[must_use]
    pub fn armor(self, armor: bool) -> Sealer {
        Sealer { armor, ..self }
    }

    /// Compresses the input first, in the same pass: what is sealed is a gzip file, and the format is no other. Its length
    /// tells something of the content to a reader of the sealed file.
    #[must_use]
    pub fn gzip(self, gzip: Option<Gzip>) -> Sealer {
        Sealer { gzip, ..self }
    }

    /// Seals `input` into `output`. Blocks until it is done; uses as many threads as there are cores.
    ///
    /// # Errors
    /// Any of [`Error`]; a file under the output's name then does not exist, or is unchanged. A stream has been written
    /// to by then, in full if the input has grown.
    pub fn seal(
        &self,
        input: Input,
        output: Output,
        source: &impl CryptoSource,
        progress: Progress<'_>,
    ) -> Result<(), Error> {
        let name = name_of(&input);
        let input = Source::open(input, progress.cancel())?;
        let like = input.like.clone();
        let target = Target::open(output, input.identity, progress.cancel())?;
        let (key, start) = source.here(|crypto| self.start(crypto))?;
        let ready = (&start[..], like, target);
        let Some(gzip) = &self.gzip else {
            let mut feed = Feed::new(input.into_body());
            if let Some(len) = feed.len() {
                key.layout().sealed_len(len)?;
            }
            return self.write(ready, |drain| {
                pipeline::run(Direction::Seal, &key, &mut feed, drain, source, progress)?;
                feed.refuse_grown()
            });
        };
        self.write(ready, |drain| gzip.sealed(name.as_deref(), input, (&key, drain), source, progress))
    }

    /// Writes a sealed file whose payload `run` writes.
    fn write(
        &self,
        (start, like, target): (&[u8], Option<Attributes>, Target<'_>),
        run: impl FnOnce(Drain<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        match target {
            Target::Atomic(file) if !self.armor => {
                let mut to = file.file();
                to.write_all(start).map_err(Error::writing)?;
                run(Drain::File { file: file.file(), base: start.len() as u64 })?;
                Ok(file.commit(like.as_ref())?)
            }
            Target::Atomic(file) => {
                self.seal_stream(&mut file.file(), start, run)?;
                Ok(file.commit(like.as_ref())?)
            }
            Target::Stream(mut writer) => self.seal_stream(&mut *writer, start, run),
        }
    }

    fn seal_stream(
        &self,
        writer: &mut (dyn Write + Send),
        start: &[u8],
        run: impl FnOnce(Drain<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if !self.armor {
            writer.write_all(start).map_err(Error::writing)?;
            run(Drain::Stream(writer))?;
            return writer.flush().map_err(Error::writing);
        }
        let label = if self.format == Format::Age { armor::Label::Age } else { armor::Label::Sealed };
        let mut writer = armor::Writer::new(writer, label).map_err(Error::writing)?;
        writer.write_all(start).map_err(Error::writing)?;
        run(Drain::Stream(&mut writer))?;
        writer.finish().map_err(Error::writing)
    }

    /// A fresh key, and everything that precedes the first chunk.
    fn start(&self, crypto: &mut dyn Crypto) -> Result<(PayloadKey, Vec<u8>), Error> {
        match self.format {
            Format::Age => self.start_age(crypto),
            Format::Sealed => self.start_sealed(crypto),
        }
    }

    fn start_age(&self, crypto: &mut dyn Crypto) -> Result<(PayloadKey, Vec<u8>), Error> {
        let mut failed = None;
        let file_key = FileKey::init_with_mut(|key| failed = random(key).err());
        if let Some(error) = failed {
            return Err(error.into());
        }
        let recipients = self.recipients.iter().map(|recipient| &**recipient);
        let mut start = age_format::write_header(recipients, &file_key, crypto)?;
        let mut nonce = [0; AGE_NONCE_LEN];
        random(&mut nonce)?;
        start.extend_from_slice(&nonce);
        Ok((PayloadKey::age(file_key.expose_secret(), &nonce, crypto)?, start))
    }

    /// A fresh key of 32 bytes, and a complete age file that carries it to the recipients. Sealed files have one in
    /// their header; so have sealed streams.
    ///
    /// # Errors
    /// Those of wrapping a key; [`wattlock_door::Error::Engine`].
    pub fn fresh_key(
        &self,
        crypto: &mut dyn Crypto,
    ) -> Result<(Zeroizing<[u8; header::INPUT_KEY_LEN]>, Vec<u8>), Error> {
        let mut input_key = Zeroizing::new([0; header::INPUT_KEY_LEN]);
        random(&mut input_key[..])?;
        let key_file = self.wrap_key(&input_key, crypto)?;
        Ok((input_key, key_file))
    }

    /// A complete age file that carries this key of 32 bytes to the recipients.
    ///
    /// # Errors
    /// Those of wrapping a key; [`wattlock_door::Error::Engine`].
    pub fn wrap_key(
        &self,
        input_key: &[u8; header::INPUT_KEY_LEN],
        crypto: &mut dyn Crypto,
    ) -> Result<Vec<u8>, Error> {
        let (key, mut key_file) = self.start_age(crypto)?;
        key_file.extend(seal_slice(&key, input_key, crypto)?);
        Ok(key_file)
    }

    fn start_sealed(&self, crypto: &mut dyn Crypto) -> Result<(PayloadKey, Vec<u8>), Error> {
        let (input_key, key_file) = self.fresh_key(crypto)?;
        let mut start = header::encode(&key_file)?;
        let mut salt = [0; SALT_LEN];
        random(&mut salt)?;
        let (key, commitment) = PayloadKey::cobblestone(&input_key, &salt, &start, crypto)?;
        start.extend_from_slice(&salt);
        start.extend_from_slice(&commitment);
        Ok((key, start))
    }
}
