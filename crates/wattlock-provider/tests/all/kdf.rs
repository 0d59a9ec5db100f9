//! Key derivation against OpenSSL's own: the same random calls on both (`kdf.c`), published answers, and handshakes whose
//! two sides must export the same keying material.
//!
//! Everything listens on loopback only, for as long as one handshake lasts.
#![allow(clippy::unwrap_used, reason = "a test that meets a failure has failed")]

use crate::common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use common::{Host, port};

/// The program, compiled once, with or without the address sanitizer.
fn program(sanitizer: bool) -> &'static Path {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf, PathBuf)> = OnceLock::new();
    let (_, plain, checked) = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kdf.c");
        let build = |name: &str, flags: &[&str]| {
            let out = folder.path().join(name);
            let mut command = Command::new("cc");
            command.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror"]).args(flags);
            let built = command.arg("-o").args([&out, &source]).arg("-lcrypto").status();
            assert!(built.unwrap().success(), "kdf.c was not compiled");
            out
        };
        let (plain, checked) = (build("plain", &[]), build("checked", &["-fsanitize=address"]));
        (folder, plain, checked)
    });
    if sanitizer { checked } else { plain }
}

/// What it printed.
fn run(sanitizer: bool, scenario: &str, more: &[&str]) -> String {
    let module = common::module();
    let mut command = Command::new(program(sanitizer));
    command.arg(scenario).arg(module.parent().unwrap()).args(more);
    let output = command.env("OPENSSL_CONF", "/dev/null").output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{scenario} {more:?}: {}\n{told}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// How many derivations succeeded, and how many did not, for each algorithm.
fn random(sanitizer: bool, seed: &str, count: u32) -> Vec<(u32, u32)> {
    let told = run(sanitizer, "random", &[seed, &count.to_string()]);
    let number = |word: Option<&str>| word.unwrap().parse().unwrap();
    let line = |line: &str| {
        let mut words = line.split(' ').skip(1);
        (number(words.next()), number(words.next()))
    };
    told.lines().map(line).collect()
}

#[test]
fn the_same_calls_return_the_same_bytes_and_errors_as_openssls_own() {
    for seed in ["1", "2", "3"] {
        let counts = random(false, seed, 20_000);
        assert_eq!(counts.len(), 3);
        for (good, bad) in counts {
            assert!(good > 3_000 && bad > 1_000, "too few derivations succeed or fail: {good}, {bad}");
        }
    }
}

#[test]
fn no_call_touches_memory_that_it_should_not() {
    random(true, "4", 3_000);
}

/// Requests of a kind, by any engine.
fn requests(status: &str, kind: &str) -> u32 {
    let of_kind = |line: &&str| {
        line.starts_with("wattlock_requests_total") && line.contains(&format!("kind=\"{kind}\""))
    };
    status.lines().filter(of_kind).map(|line| line.rsplit(' ').next().unwrap().parse::<u32>().unwrap()).sum()
}

#[test]
fn published_answers_are_given_and_counted() {
    let status = run(false, "vectors", &[]);
    let counts = ["hkdf-sha-256", "hkdf-expand-sha-256", "hmac-sha-256", "tls12-prf-sha-256", "hmac-sha-1"]
        .map(|kind| requests(&status, kind));
    // Two whole HKDFs; an expansion of HKDF's, one of TLS 1.3's, and one inside the master secret's extraction; that of
    // HKDF's, of the handshake secret and of the master secret; an HKDF of an extraction and three blocks. The early
    // secret, and what is derived from it, is not computed.
    assert_eq!(counts, [2, 3, 3, 1, 4], "{status}");
}

/// A server, killed at the end of its handshake.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn within(limit: Duration, what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !so() {
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What the first line that begins so says after it.
fn said(text: &[u8], beginning: &str) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    text.lines().find_map(|line| line.trim().strip_prefix(beginning)).map(|rest| rest.trim().to_owned())
}

const EXPORT: [&str; 4] = ["-keymatexport", "EXPERIMENTAL-label", "-keymatexportlen", "83"];

/// Keying material that server and client export after a handshake.
fn exported(host: &Host, ours: (bool, bool), server: &str, both: &str) -> (String, String) {
    let port = port();
    let mut command = host.command(ours.0, "openssl");
    command.args(["s_server", "-naccept", "1", "-cert", "rsa.pem", "-accept", &format!("127.0.0.1:{port}")]);
    command.args(EXPORT).args(server.split_whitespace()).args(both.split_whitespace());
    let heard = std::fs::File::create(host.path("heard")).unwrap();
    let server = command.stdin(Stdio::piped()).stdout(heard).stderr(Stdio::null()).spawn().unwrap();
    let _server = Server(server);
    within(Duration::from_secs(20), "the server accepts", || said(&host.read("heard"), "ACCEPT").is_some());

    let mut command = host.command(ours.1, "timeout");
    command.args(["60", "openssl", "s_client", "-connect", &format!("127.0.0.1:{port}")]);
    let output = command.args(EXPORT).args(both.split_whitespace()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    let client = said(&output.stdout, "Keying material:");
    assert!(output.status.success(), "{ours:?} {both}: {}\n{told}", output.status);
    let mut server = None;
    within(Duration::from_secs(20), "the server exports", || {
        server = said(&host.read("heard"), "Keying material:");
        server.is_some()
    });
    (server.unwrap(), client.unwrap())
}

#[test]
fn both_sides_of_every_handshake_derive_the_same_whoever_derives() {
    let host = Host::new();
    host.good(false, "req -x509 -newkey rsa:2048 -nodes -keyout key -out crt -days 2 -subj /CN=localhost");
    host.write("rsa.pem", &[host.read("key"), host.read("crt")].concat());
    let handshakes = [
        "-tls1_3 -ciphersuites TLS_AES_128_GCM_SHA256",
        "-tls1_3 -ciphersuites TLS_AES_256_GCM_SHA384",
        "-tls1_2 -cipher ECDHE-RSA-AES128-GCM-SHA256",
        "-tls1_2 -cipher ECDHE-RSA-AES256-GCM-SHA384",
        "-tls1_1 -cipher ECDHE-RSA-AES128-SHA:@SECLEVEL=0",
        "-tls1 -cipher AES256-SHA:@SECLEVEL=0",
    ];
    for both in handshakes {
        for (ours, server) in
            [((true, false), ""), ((false, true), ""), ((true, true), ""), ((true, false), "-async")]
        {
            let (server, client) = exported(&host, ours, server, both);
            assert_eq!(server, client, "{ours:?} {both}");
            assert_eq!(server.len(), 2 * 83);
        }
    }
}

#[test]
fn openssls_command_line_takes_and_prints_the_same() {
    let host = Host::new();
    for line in [
        "kdf -keylen 42 -kdfopt digest:SHA256 -kdfopt hexkey:0b0b0b -kdfopt salt:salt -kdfopt info:label HKDF",
        "kdf -keylen 48 -kdfopt digest:SHA384 -kdfopt hexkey:0b0b0b -kdfopt salt:salt -kdfopt mode:EXTRACT_ONLY HKDF",
        "kdf -keylen 48 -kdfopt digest:SHA384 -kdfopt hexkey:0b0b0b -kdfopt mode:EXPAND_ONLY -kdfopt info:label HKDF",
        "kdf -keylen 32 -kdfopt digest:SHA256 -kdfopt key:0123456789 -kdfopt mode:EXPAND_ONLY -kdfopt prefix:p \
         -kdfopt label:l -kdfopt data:d TLS13-KDF",
        "kdf -keylen 48 -kdfopt digest:SHA256 -kdfopt secret:secret -kdfopt seed:seed TLS1-PRF",
        "kdf -keylen 48 -kdfopt digest:MD5-SHA1 -kdfopt secret:secret -kdfopt seed:seed TLS1-PRF",
        "kdf -keylen 48 -kdfopt digest:SHA256 -kdfopt secret:secret TLS1-PRF",
        "pkeyutl -kdf TLS1-PRF -kdflen 48 -pkeyopt md:SHA256 -pkeyopt secret:secret -pkeyopt seed:seed -hexdump",
        "pkeyutl -kdf HKDF -kdflen 48 -pkeyopt md:SHA384 -pkeyopt key:secret -pkeyopt salt:salt -pkeyopt info:x \
         -hexdump",
    ] {
        let told = host.same(line);
        assert_eq!(told.is_empty(), line.contains("secret:secret TLS1-PRF"), "{line}: {told}");
    }
}
