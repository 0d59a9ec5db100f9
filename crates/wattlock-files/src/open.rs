//! Opening: determine the format, unlock the header, then run the pipeline.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use age_core::secrecy::ExposeSecret;
use subtle::ConstantTimeEq;

use crate::Format;
use crate::error::Error;
use crate::format::payload::{AGE_NONCE_LEN, COMMITMENT_LEN, PayloadKey, SALT_LEN, open_slice};
use crate::format::{GUESS_LEN, Guess, age as age_format, armor, guess, header};
use crate::input::{Body, Input, Source};
use crate::keys::{AskPassphrase, BoxedIdentity, Unlock, WORK_FACTOR_LIMIT};
use crate::pipeline::{self, Direction, Drain, Feed, Progress};
use crate::reader::Reader;
use wattlock_door::{Crypto, CryptoSource};
use wattlock_door::{Output, Target};

/// Opens files with the same identities.
pub struct Opener {
    unlock: Unlock,
}

/// What [`Opener::open`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// The format found.
    pub format: Format,
    /// Whether it was in ASCII armor.
    pub armor: bool,
}

impl Opener {
    /// With these identities; see [`crate::keys::identities`].
    pub fn new(identities: Vec<BoxedIdentity>) -> Opener {
        Opener { unlock: Unlock { identities, passphrase: None, work_factor_limit: WORK_FACTOR_LIMIT } }
    }

    /// Also with a passphrase, which `ask` supplies when a file is locked with one.
    #[must_use]
    pub fn passphrase(mut self, ask: AskPassphrase) -> Opener {
        self.unlock.passphrase = Some(ask);
        self
    }

    /// Refuses files that ask for more scrypt work than two to the power of `limit`; the default is 22.
    #[must_use]
    pub fn work_factor_limit(mut self, limit: u8) -> Opener {
        self.unlock.work_factor_limit = limit;
        self
    }

    /// Opens `input`, of either format, into `output`. Blocks until it is done. Only verified bytes are written, and
    /// the output is untouched until the header is unlocked.
    ///
    /// # Errors
    /// Any of [`Error`]; a file under the output's name then does not exist, or is unchanged.
    pub fn open(
        &self,
        input: Input,
        output: Output,
        source: &impl CryptoSource,
        progress: Progress<'_>,
    ) -> Result<Opened, Error> {
        let mut input = Source::open(input, progress.cancel())?;
        let (like, identity) = (input.like.clone(), input.identity);
        let armor = guess(input.peek(GUESS_LEN)?) == Guess::Armored;
        let mut label = None;
        if armor {
            let (inner, said) = input.unarmored()?;
            (input, label) = (inner, Some(said));
        }
        let format = match (guess(input.peek(GUESS_LEN)?), label) {
            (Guess::Sealed, None | Some(armor::Label::Sealed)) => Format::Sealed,
            (Guess::Age, None | Some(armor::Label::Age)) => Format::Age,
            (_, Some(_)) => return Err(Error::BadArmor("its content is not what its first line says")),
            _ => return Err(why_unknown(input.peek(GUESS_LEN)?)),
        };
        // A missing or wrong key is told first; but no passphrase is asked for for an output that is in the way.
        if input.peek(PASSPHRASE_WITHIN)?.windows(PASSPHRASE.len()).any(|window| window == PASSPHRASE) {
            output.refuse_early()?;
        }
        let key = source.here(|crypto| {
            let key = match format {
                Format::Sealed => self.start_sealed(&mut input, crypto)?,
                Format::Age => self.start_age(&mut input, crypto)?,
            };
            refuse_cut_file(&key, &mut input, crypto).map(|()| key)
        })?;
        let target = Target::open(output, identity, progress.cancel())?;
        let mut feed = Feed::new(input.into_body());
        let mut run =
            |drain: Drain<'_>| pipeline::run(Direction::Open, &key, &mut feed, drain, source, progress);
        match target {
            Target::Atomic(file) => {
                run(Drain::File { file: file.file(), base: 0 })?;
                file.commit(like.as_ref())?;
            }
            Target::Stream(mut writer) => {
                run(Drain::Stream(&mut *writer))?;
                writer.flush().map_err(Error::writing)?;
            }
        }
        Ok(Opened { format, armor })
    }

    /// Unlocks a sealed or age file, a regular one and without armor, to be read at any position. The last chunk is
    /// verified here: what can be read later belongs to a file that is whole.
    ///
    /// # Errors
    /// Any of [`Error`].
    pub fn reader(&self, path: PathBuf, crypto: &mut dyn Crypto) -> Result<Reader, Error> {
        let never = AtomicBool::new(false);
        let mut input = Source::open(Input::Path(path.clone()), &never)?;
        let key = match guess(input.peek(GUESS_LEN)?) {
            Guess::Sealed => self.start_sealed(&mut input, crypto)?,
            Guess::Age => self.start_age(&mut input, crypto)?,
            Guess::Armored => {
                return Err(Error::Door(wattlock_door::Error::Usage(
                    "a file in ASCII armor cannot be read at a position".into(),
                )));
            }
            _ => return Err(why_unknown(input.peek(GUESS_LEN)?)),
        };
        refuse_cut_file(&key, &mut input, crypto)?;
        match input.into_body() {
            Body::File { file, at, end } => Reader::new(key, file, at, end.saturating_sub(at), crypto),
            Body::Stream(_) => Err(Error::Door(wattlock_door::Error::NotRegular(path))),
        }
    }

    fn start_sealed(&self, input: &mut Source<'_>, crypto: &mut dyn Crypto) -> Result<PayloadKey, Error> {
        let fixed = input.peek(header::FIXED_LEN)?.try_into().map_err(|_| Error::Truncated)?;
        let len = header::FIXED_LEN + header::parse_fixed(fixed)?;
        let whole = input.peek(len)?.to_vec();
        let input_key = self.input_key(header::parse(&whole)?, crypto)?;
        input.consume(len);
        let salt = input.take::<SALT_LEN>()?;
        let stored = input.take::<COMMITMENT_LEN>()?;
        let (key, commitment) = PayloadKey::cobblestone(&input_key, &salt, &whole, crypto)?;
        if bool::from(commitment.ct_eq(&stored)) { Ok(key) } else { Err(Error::Commitment) }
    }

    /// The key of 32 bytes that an age file carries: what [`crate::Sealer::wrap_key`] made.
    ///
    /// # Errors
    /// [`Error::BadHeader`], and those of an identity that does not open it.
    pub fn input_key(
        &self,
        file: &[u8],
        crypto: &mut dyn Crypto,
    ) -> Result<zeroize::Zeroizing<[u8; 32]>, Error> {
        let damaged = |_| Error::BadHeader("the key in it");
        let parsed = age_format::parse_header(file).map_err(|error| match error {
            Error::Truncated | Error::NotSealed => Error::BadHeader("the key in it"),
            other => other,
        })?;
        let file_key = self.unlock.file_key(&parsed, file, crypto)?;
        let (nonce, sealed) = file[parsed.len..]
            .split_first_chunk::<AGE_NONCE_LEN>()
            .ok_or(Error::BadHeader("the key in it"))?;
        let key = PayloadKey::age(file_key.expose_secret(), nonce, crypto)?;
        if sealed.len() != header::INPUT_KEY_LEN + crate::format::payload::TAG_LEN {
            return Err(Error::BadHeader("length of the key in it"));
        }
        let plain = open_slice(&key, sealed, crypto).map_err(damaged)?;
        let mut input_key = zeroize::Zeroizing::new([0; header::INPUT_KEY_LEN]);
        input_key.copy_from_slice(&plain);
        Ok(input_key)
    }

    fn start_age(&self, input: &mut Source<'_>, crypto: &mut dyn Crypto) -> Result<PayloadKey, Error> {
        let text = peek_age_header(input)?;
        let parsed = age_format::parse_header(&text)?;
        let file_key = self.unlock.file_key(&parsed, &text, crypto)?;
        input.consume(parsed.len);
        let nonce = input.take::<AGE_NONCE_LEN>()?;
        PayloadKey::age(file_key.expose_secret(), &nonce, crypto)
    }
}

/// Reads on until it finds the header's end, the input's end or the limit.
fn peek_age_header(input: &mut Source<'_>) -> Result<Vec<u8>, Error> {
    let (mut len, mut searched) = (1 << 10, 0);
    loop {
        let seen = input.peek(len)?;
        let ended = seen.len() < len || len > age_format::MAX_LEN;
        if ended || age_format::find_end(seen, searched).is_some() {
            return Ok(seen.to_vec());
        }
        searched = seen.len();
        len = (len * 2).min(age_format::MAX_LEN + 1);
    }
}

/// What a header has if it asks for a passphrase, and within how many bytes.
const PASSPHRASE: &[u8] = b"\n-> scrypt ";
const PASSPHRASE_WITHIN: usize = 256;

/// What a sealed stream begins with (docs/formats/stream.md).
const STREAM: [u8; 8] = *b"\x8bwattls\n";

fn why_unknown(start: &[u8]) -> Error {
    if start.is_empty() {
        return Error::Empty;
    }
    if start.starts_with(&STREAM) {
        return Error::AStream;
    }
    let begins = |magic: &[u8]| start.len() < magic.len() && magic.starts_with(start);
    if begins(&header::MAGIC) || begins(age_format::MAGIC) { Error::Truncated } else { Error::NotSealed }
}

/// Refuses a file whose length no content produces before anything is written; its last piece is examined now.
fn refuse_cut_file(key: &PayloadKey, input: &mut Source<'_>, crypto: &mut dyn Crypto) -> Result<(), Error> {
    let Body::File { file, at, end } = &input.body else { return Ok(()) };
    let (layout, sealed) = (key.layout(), end.saturating_sub(*at));
    let stride = layout.stride() as u64;
    match layout.plain_len(sealed) {
        Err(Error::Truncated) => {}
        Err(error) => return Err(error),
        Ok(_) => return Ok(()),
    }
    let first = (sealed / stride).saturating_sub(1);
    let mut tail = vec![0; (sealed - first * stride) as usize];
    std::os::unix::fs::FileExt::read_exact_at(file, &mut tail, at + first * stride)
        .map_err(|_| Error::Door(wattlock_door::Error::InputChanged))?;
    let mut attempt = zeroize::Zeroizing::new(tail.clone());
    match key.open(first, &mut attempt, true, crypto) {
        Err(failure) => Err(failure.explain(key, first, &tail, true, crypto)),
        Ok(()) => Ok(()),
    }
}
