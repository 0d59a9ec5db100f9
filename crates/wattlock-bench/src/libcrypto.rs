//! The system's OpenSSL beside ours: a small program around libcrypto's own calls (`libcrypto.c`), built when it is
//! needed, that measures a short turn whenever it is asked. `openssl speed` measures whole seconds only, which is too
//! long to take turns with: a neighbour that begins meanwhile falls on one side.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use wattlock_core::Kind;

use super::record::Record;

/// The program, waiting for a line.
pub struct Libcrypto {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// As in `3.0.19`.
    pub version: String,
    _folder: tempfile::TempDir,
}

impl Libcrypto {
    /// Builds and starts it as a peer, unless it is to be left out, which takes a C compiler and OpenSSL's headers.
    /// Without them there is no peer, and a line on standard error says so.
    pub fn beside(left_out: bool, record: &mut Record) -> Option<Libcrypto> {
        if left_out {
            return None;
        }
        let begun = Libcrypto::begin();
        match &begun {
            Some(peer) => record.peer("openssl", &peer.version),
            None => eprintln!(
                "wattlock: OpenSSL is left out: its loop needs a C compiler and libcrypto's headers (libssl-dev)"
            ),
        }
        begun
    }

    fn begin() -> Option<Libcrypto> {
        let folder = tempfile::tempdir().ok()?;
        let program = folder.path().join("libcrypto");
        if !build(&program) {
            return None;
        }
        // The peer is OpenSSL as it comes, also where the system's configuration loads another provider.
        let mut child = Command::new(&program)
            .env("OPENSSL_CONF", "/dev/null")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let (to, from) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        let mut peer = Libcrypto { child, to, from, version: String::new(), _folder: folder };
        // OpenSSL 3.0.19 27 Jan 2026
        peer.version = peer.answer()?.split(' ').nth(1)?.to_owned();
        Some(peer)
    }

    /// Its name and version, for beside a figure.
    pub fn name(&self) -> String {
        format!("OpenSSL {}", self.version)
    }

    fn ask(&mut self, line: &str) -> Option<String> {
        writeln!(self.to, "{line}").ok()?;
        self.answer()
    }

    fn answer(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.from.read_line(&mut line).ok()?;
        (read > 0).then(|| line.trim().to_owned())
    }

    /// Makes an operation ready (`libcrypto.c` lists them); whether it can be done.
    pub fn open(&mut self, operation: &str, bytes: usize) -> bool {
        self.ask(&format!("open {operation} {bytes}")).is_some_and(|answer| answer == "ok")
    }

    /// Operations a second of processor time, over so many seconds of it; 0 if it failed.
    pub fn rate(&mut self, seconds: f64) -> f64 {
        self.ask(&format!("go {seconds}")).and_then(|answer| answer.parse().ok()).unwrap_or(0.0)
    }
}

impl Drop for Libcrypto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether the program could be built.
fn build(program: &Path) -> bool {
    let compiler = Command::new("cc")
        .args(["-O2", "-w", "-x", "c", "-", "-lcrypto", "-o"])
        .arg(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut compiler) = compiler else { return false };
    let written =
        compiler.stdin.take().is_some_and(|mut input| input.write_all(include_bytes!("libcrypto.c")).is_ok());
    written & compiler.wait().is_ok_and(|status| status.success())
}

/// What OpenSSL calls a kind; `None` where it has nothing like it.
pub fn operation(kind: Kind) -> Option<&'static str> {
    Some(match kind {
        Kind::Aes128Ctr => "cipher AES-128-CTR",
        Kind::Aes192Ctr => "cipher AES-192-CTR",
        Kind::Aes256Ctr => "cipher AES-256-CTR",
        Kind::Aes128CbcEncrypt => "cipher AES-128-CBC",
        Kind::Aes192CbcEncrypt => "cipher AES-192-CBC",
        Kind::Aes256CbcEncrypt => "cipher AES-256-CBC",
        Kind::Aes128XtsEncrypt => "cipher AES-128-XTS",
        Kind::Aes256XtsEncrypt => "cipher AES-256-XTS",
        Kind::Aes128GcmSeal => "aead AES-128-GCM",
        Kind::Aes192GcmSeal => "aead AES-192-GCM",
        Kind::Aes256GcmSeal => "aead AES-256-GCM",
        Kind::ChaCha20Poly1305Seal => "aead ChaCha20-Poly1305",
        Kind::Sha1 => "digest SHA1",
        Kind::Sha256 => "digest SHA256",
        Kind::Sha384 => "digest SHA384",
        Kind::Sha512 => "digest SHA512",
        Kind::HmacSha1 => "hmac SHA1",
        Kind::HmacSha256 => "hmac SHA256",
        Kind::HmacSha384 => "hmac SHA384",
        Kind::HmacSha512 => "hmac SHA512",
        Kind::Rsa2048Private => "rsa 2048",
        Kind::Rsa3072Private => "rsa 3072",
        Kind::Rsa4096Private => "rsa 4096",
        Kind::EcdsaP256Sign => "ecdsa p256",
        Kind::EcdsaP384Sign => "ecdsa p384",
        Kind::P256Derive => "ecdh p256",
        Kind::P384Derive => "ecdh p384",
        Kind::X25519Derive => "ecdh x25519",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_that_has_a_name_is_done() {
        let Some(mut peer) = Libcrypto::begin() else {
            println!("skipped: no C compiler or no headers of OpenSSL");
            return;
        };
        assert!(peer.version.starts_with(|c: char| c.is_ascii_digit()), "{}", peer.version);
        let named = Kind::ALL.iter().filter_map(|kind| operation(*kind));
        for name in named.chain(["derive p256", "both p384", "both x25519"]) {
            assert!(peer.open(name, 64) && peer.rate(0.001) > 0.0, "{name}");
        }
        assert!(!peer.open("cipher no-such-cipher", 64) && !peer.open("nonsense p256", 0));
    }
}
