//! A way to do cryptography that shares nothing with the engines, and keys to test with.
#![allow(dead_code, reason = "each test file uses its own part")]

#[cfg(feature = "runtime")]
pub mod card;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use age::secrecy::ExposeSecret;
use aws_lc_rs::{aead, digest, hkdf, hmac};
use wattlock_core::{Data, Error as CoreError, Item, Kind, Request};
use wattlock_door::{Crypto, CryptoSource, Output};
use wattlock_files::{Error, Format, Input, Opened, Opener, Progress, Sealer, age, keys};

pub static NEVER: AtomicBool = AtomicBool::new(false);

/// AWS-LC called directly, on threads of a runtime whose engines have nothing to do.
pub struct Double;

impl CryptoSource for Double {
    fn here<T>(&self, work: impl FnOnce(&mut dyn Crypto) -> T) -> T {
        work(&mut Double)
    }

    #[cfg(feature = "runtime")]
    fn in_order<P: Send, R: Send>(
        &self,
        threads: usize,
        pieces: usize,
        next: impl FnMut() -> Option<P>,
        work: impl Fn(&mut dyn Crypto, P) -> R + Sync,
        sink: impl FnMut(R) + Send,
    ) {
        THREADS.in_order(threads, pieces, next, |_, piece| work(&mut Double, piece), sink);
    }
}

#[cfg(feature = "runtime")]
pub static THREADS: std::sync::LazyLock<wattlock::Runtime> =
    std::sync::LazyLock::new(|| wattlock::Runtime::builder().telemetry(false).build().unwrap());

impl Crypto for Double {
    fn run(&mut self, request: &mut Request<'_>) -> Result<usize, CoreError> {
        request.validate()?;
        let secret = request.key.bytes();
        match request.kind {
            Kind::Aes256GcmSeal => aead_seal(&aead::AES_256_GCM, secret, request),
            Kind::Aes256GcmOpen => aead_open(&aead::AES_256_GCM, secret, request),
            Kind::ChaCha20Poly1305Seal => aead_seal(&aead::CHACHA20_POLY1305, secret, request),
            Kind::ChaCha20Poly1305Open => aead_open(&aead::CHACHA20_POLY1305, secret, request),
            Kind::Sha512 => Ok(give(request, digest::digest(&digest::SHA512, &input(request)).as_ref())),
            Kind::HmacSha256 => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
                Ok(give(request, hmac::sign(&key, &input(request)).as_ref()))
            }
            Kind::HkdfSha256 => {
                let prk = hkdf::Salt::new(hkdf::HKDF_SHA256, request.nonce).extract(secret);
                expand(&prk, request)
            }
            Kind::HkdfExpandSha512 => expand(&hkdf::Prk::new_less_safe(hkdf::HKDF_SHA512, secret), request),
            _ => Err(CoreError::Unsupported),
        }
    }

    fn run_all(&mut self, items: &mut [Item<'_>]) {
        items.iter_mut().for_each(|item| item.result = self.run(&mut item.request));
    }
}

fn input(request: &Request<'_>) -> Vec<u8> {
    request.data.input().to_vec()
}

fn give(request: &mut Request<'_>, output: &[u8]) -> usize {
    request.data.output()[..output.len()].copy_from_slice(output);
    output.len()
}

struct Len(usize);

impl hkdf::KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

fn expand(prk: &hkdf::Prk, request: &mut Request<'_>) -> Result<usize, CoreError> {
    let info = [request.aad];
    let to = request.data.output();
    prk.expand(&info, Len(to.len())).and_then(|okm| okm.fill(to)).unwrap();
    Ok(to.len())
}

fn nonce(request: &Request<'_>) -> aead::Nonce {
    aead::Nonce::try_assume_unique_for_key(request.nonce).unwrap()
}

fn aead_seal(
    algorithm: &'static aead::Algorithm,
    key: &[u8],
    request: &mut Request<'_>,
) -> Result<usize, CoreError> {
    let key = aead::LessSafeKey::new(aead::UnboundKey::new(algorithm, key).unwrap());
    let nonce = nonce(request);
    let Data::InPlace(buffer) = &mut request.data else { return Err(CoreError::Unsupported) };
    let tag = key.seal_in_place_separate_tag(nonce, aead::Aad::from(request.aad), buffer).unwrap();
    request.tag.copy_from_slice(tag.as_ref());
    Ok(buffer.len())
}

/// Wipes the buffer on failure, as engines do, so that nothing here can come to rely on anything else.
fn aead_open(
    algorithm: &'static aead::Algorithm,
    key: &[u8],
    request: &mut Request<'_>,
) -> Result<usize, CoreError> {
    let key = aead::LessSafeKey::new(aead::UnboundKey::new(algorithm, key).unwrap());
    let nonce = nonce(request);
    let Data::InPlace(buffer) = &mut request.data else { return Err(CoreError::Unsupported) };
    let opened =
        key.open_in_place_separate_tag(nonce, aead::Aad::from(request.aad), request.tag, buffer).is_ok();
    if !opened {
        buffer.fill(0);
        return Err(CoreError::Authentication);
    }
    Ok(buffer.len())
}

/// A key pair, its files on disk.
pub struct Pair {
    pub identity: age::x25519::Identity,
}

impl Pair {
    pub fn new() -> Pair {
        Pair { identity: age::x25519::Identity::generate() }
    }

    pub fn recipient(&self) -> String {
        self.identity.to_public().to_string()
    }

    pub fn secret(&self) -> String {
        self.identity.to_string().expose_secret().to_owned()
    }

    pub fn sealer(&self) -> Sealer {
        Sealer::new(vec![Box::new(self.identity.to_public())]).unwrap()
    }

    pub fn opener(&self) -> Opener {
        Opener::new(keys::identities(self.secret().as_bytes(), age::NoCallbacks).unwrap())
    }

    pub fn write_identity(&self, directory: &Path) -> PathBuf {
        let path = directory.join("key.txt");
        std::fs::write(&path, self.secret() + "\n").unwrap();
        path
    }
}

pub fn sealer(recipient: &str) -> Sealer {
    let mut recipients = keys::Recipients::new();
    recipients.add(recipient).unwrap();
    Sealer::new(recipients.finish(age::NoCallbacks).unwrap()).unwrap()
}

/// A stream that keeps what is written to it.
#[derive(Clone, Default)]
pub struct Kept(pub Arc<Mutex<Vec<u8>>>);

impl io::Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub fn to_file(path: &Path) -> Output {
    Output::Path { path: path.into(), force: false }
}

pub fn stream(bytes: &[u8]) -> Input {
    Input::Stream(Box::new(io::Cursor::new(bytes.to_vec())))
}

pub fn progress() -> Progress<'static> {
    Progress::new(&NEVER)
}

/// Bytes that differ from place to place, at every scale that matters here.
pub fn content(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i ^ (i >> 7) ^ (i >> 13).wrapping_mul(31)) as u8).collect()
}

/// Seals in memory, through streams.
pub fn seal(sealer: &Sealer, plain: &[u8]) -> Vec<u8> {
    let kept = Kept::default();
    sealer.seal(stream(plain), Output::Stream(Box::new(kept.clone())), &Double, progress()).unwrap();
    let sealed = kept.0.lock().unwrap();
    sealed.clone()
}

/// Opens in memory, through streams; what came out even if it failed.
pub fn open_stream(opener: &Opener, sealed: &[u8]) -> (Result<Opened, Error>, Vec<u8>) {
    let kept = Kept::default();
    let result = opener.open(stream(sealed), Output::Stream(Box::new(kept.clone())), &Double, progress());
    let plain = kept.0.lock().unwrap().clone();
    (result, plain)
}

/// Opens from a file to a file, at positions; the output's bytes if there is an output.
pub fn open_file(opener: &Opener, sealed: &[u8]) -> (Result<Opened, Error>, Option<Vec<u8>>) {
    let directory = tempfile::tempdir().unwrap();
    let (from, to) = (directory.path().join("in"), directory.path().join("out"));
    std::fs::write(&from, sealed).unwrap();
    let result = opener.open(Input::Path(from.clone()), to_file(&to), &Double, progress());
    assert_eq!(std::fs::read(&from).unwrap(), sealed, "the input was touched");
    let plain = std::fs::read(&to).ok();
    let files = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(files, 1 + usize::from(plain.is_some()), "something was left behind");
    (result, plain)
}

/// Opens both ways, and insists that both say the same.
pub fn open(opener: &Opener, sealed: &[u8]) -> Result<Vec<u8>, Error> {
    let (from_stream, streamed) = open_stream(opener, sealed);
    let (from_file, filed) = open_file(opener, sealed);
    match (from_stream, from_file) {
        (Ok(one), Ok(other)) => {
            assert_eq!(one, other);
            assert_eq!(Some(&streamed), filed.as_ref());
            Ok(streamed)
        }
        (Err(one), Err(other)) => {
            assert_eq!(one.to_string(), other.to_string());
            assert_eq!(filed, None, "a failed opening left an output");
            Err(one)
        }
        (one, other) => panic!("stream: {one:?}, file: {other:?}"),
    }
}

pub const FORMATS: [Format; 2] = [Format::Sealed, Format::Age];
