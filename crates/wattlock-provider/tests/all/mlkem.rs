//! ML-KEM-768 and X25519MLKEM768: handshakes, shares and keys that a peer must refuse, forks and jobs in a program of our own
//! (`mlkem.c`), also with the address sanitizer; keys in files; and both against an OpenSSL that has them itself (3.5), if
//! there is one: the system's, the one named by `OPENSSL_NEWER`, or that of `scripts/test/newer.sh`.
//!
//! Known answers and Wycheproof's cases are tests of the engines.
#![allow(clippy::unwrap_used, reason = "a test that meets a failure has failed")]

use crate::common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use common::{Host, module, port};

/// A program of ours, compiled.
fn build(folder: &Path, source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let out = folder.join(name);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror"]).args(flags).arg("-o");
    let built = compiler.args([&out, &path]).args(["-lssl", "-lcrypto"]).status();
    assert!(built.unwrap().success(), "{source} was not compiled");
    out
}

/// The program, compiled once, with or without the address sanitizer.
fn program(sanitizer: bool) -> &'static Path {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf, PathBuf)> = OnceLock::new();
    let (_, plain, checked) = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let build = |name, flags: &[&str]| build(folder.path(), "mlkem.c", name, flags);
        let (plain, checked) = (build("plain", &[]), build("checked", &["-fsanitize=address"]));
        (folder, plain, checked)
    });
    if sanitizer { checked } else { plain }
}

fn run(scenario: &str, count: u32) {
    let host = Host::new();
    // Not `ctr`, which is on where the CPU has VAES: OpenSSL 3.0 frees a context's random generator after its providers, so
    // one that uses our AES-CTR keeps the provider for ever. 3.5 does not.
    let config = String::from_utf8(host.read("with.cnf")).unwrap();
    host.write(
        "with.cnf",
        format!("{config}[wattlock_section]\nalgorithms = gcm,rsa,ec,x25519,ml-kem,kdf\n").as_bytes(),
    );
    // A child leaves by `_exit`, and what it had is lost.
    let leaks = u8::from(scenario != "forked");
    for sanitizer in [false, true] {
        let output = Command::new(program(sanitizer))
            .args([scenario, "with.cnf", &count.to_string()])
            .current_dir(host.path(""))
            .env("OPENSSL_CONF", "/dev/null")
            .env("ASAN_OPTIONS", format!("detect_leaks={leaks}"))
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{scenario} {count}: {}\n{errors}", output.status);
    }
}

#[test]
fn both_groups_are_agreed_on_also_after_another_share_was_asked_for_and_never_in_tls_1_2() {
    run("handshakes", 40);
}

#[test]
fn handshakes_of_one_thread_pause_and_all_end() {
    for count in [1, 7, 8, 20] {
        run("paused", count);
    }
}

/// Cut, too long, empty, one half only, with swapped halves, not reduced, with a point of small order, of another group.
#[test]
fn a_spoilt_share_is_refused_by_server_and_client() {
    run("shares", 1);
}

#[test]
fn a_spoilt_or_repeated_share_after_a_retry_is_refused_and_a_hello_may_come_byte_by_byte() {
    run("retried", 1);
}

/// Lengths, reduction, hashes, seeds that disagree; a changed ciphertext gives another secret and no error.
#[test]
fn keys_are_checked_where_they_come_in() {
    run("keys", 1);
}

/// In all memory of a process (`wiped.c`), after work in jobs and outside of them, by any engine.
#[test]
fn seeds_and_private_keys_are_wiped_wherever_they_were() {
    let host = Host::new();
    let program = build(&host.path(""), "wiped.c", "wiped", &[]);
    let with = String::from_utf8(host.read("with.cnf")).unwrap();
    let config = with.replace("pause = always", "pause = always\nengines = instruction");
    host.write("instruction.cnf", config.as_bytes());
    host.write("software.cnf", config.replace("engines = instruction", "engines = software").as_bytes());
    for config in ["with.cnf", "instruction.cnf", "software.cnf"] {
        for scenario in ["planted", "seed", "ikme", "generated", "hybrid", "ephemeral"] {
            for job in ["0", "1"] {
                let mut command = Command::new(&program);
                command.args([scenario, config, job]).current_dir(host.path(""));
                let output =
                    command.envs([("OPENSSL_CONF", "/dev/null"), ("LD_BIND_NOW", "1")]).output().unwrap();
                let errors = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{scenario} {config} {job}: {}\n{errors}", output.status);
            }
        }
    }
}

#[test]
fn nothing_that_was_fresh_comes_twice_in_a_parent_and_its_child() {
    run("forked", 40);
}

#[test]
fn keys_come_back_from_every_form_in_which_they_are_written() {
    let host = Host::new();
    host.good(true, "genpkey -algorithm ML-KEM-768 -out one.pem");
    host.good(true, "pkey -in one.pem -pubout -out one.pub");
    let (private, public) = (host.read("one.pem"), host.read("one.pub"));
    assert!(private.starts_with(b"-----BEGIN PRIVATE KEY-----\n"));
    assert!(public.starts_with(b"-----BEGIN PUBLIC KEY-----\n"));
    host.good(true, "pkey -in one.pem -outform DER -out one.der");
    host.good(true, "pkey -in one.der -inform DER -out two.pem");
    assert_eq!(host.read("two.pem"), private);
    host.good(true, "pkey -pubin -in one.pub -outform DER -out pub.der");
    host.good(true, "pkey -pubin -in pub.der -inform DER -out two.pub");
    assert_eq!(host.read("two.pub"), public);
    host.good(true, "pkey -in one.pem -check -noout");
    let text = host.good(true, "pkey -in one.pem -text -noout");
    assert!(text.starts_with("ML-KEM-768 Private-Key:\nseed:\n    ") && text.contains("\ndk:\n    "));
    let text = host.good(true, "pkey -pubin -in one.pub -text -noout");
    assert!(text.starts_with("ML-KEM-768 Public-Key:\nek:\n    ") && !text.contains("dk:"));
    // By whatever name.
    for name in ["MLKEM768", "id-alg-ml-kem-768", "2.16.840.1.101.3.4.4.2"] {
        host.good(true, &format!("genpkey -algorithm {name} -out other.pem"));
        assert_ne!(host.read("other.pem"), private);
    }
    // Some versions cannot encrypt them, and then nothing is written.
    let asked = host.openssl(true, "genpkey -algorithm ML-KEM-768 -aes256 -pass pass:word -out asked.pem");
    let written = host.read("asked.pem");
    let encrypted = written.starts_with(b"-----BEGIN ENCRYPTED PRIVATE KEY-----");
    assert!(if asked.status.success() { encrypted } else { written.is_empty() });
}

/// A key in DER: PKCS#8 around one of the choices of RFC 9935.
fn pkcs8(choice: &[u8]) -> Vec<u8> {
    let algorithm = [0x30, 0x0b, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x04, 0x02];
    value(0x30, &[&[2, 1, 0], &algorithm, &value(4, &[choice])])
}

fn value(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let len = content.len();
    let head = match len {
        0..=0x7f => vec![tag, len as u8],
        0x80..=0xff => vec![tag, 0x81, len as u8],
        _ => vec![tag, 0x82, (len >> 8) as u8, len as u8],
    };
    [head, content].concat()
}

#[test]
fn keys_in_files_that_are_not_in_order_are_refused() {
    let host = Host::new();
    host.good(true, "genpkey -algorithm ML-KEM-768 -outform DER -out one.der");
    host.good(true, "pkey -in one.der -inform DER -pubout -outform DER -out pub.der");
    let (whole, public) = (host.read("one.der"), host.read("pub.der"));
    // The seed and the expanded key lie behind these heads.
    let (seed, expanded) = (&whole[30..94], &whole[98..]);
    assert_eq!((whole.len(), expanded.len(), public.len()), (2498, 2400, 1206));
    let both =
        |seed: &[u8], expanded: &[u8]| pkcs8(&value(0x30, &[&value(4, &[seed]), &value(4, &[expanded])]));
    let reads = |der: &[u8], how: &str| {
        host.write("try.der", der);
        host.openssl(true, &format!("pkey -in try.der -inform DER {how} -noout")).status.success()
    };
    let changed = |bytes: &[u8], at: usize, by: u8| {
        let mut bytes = bytes.to_vec();
        bytes[at] ^= by;
        bytes
    };
    assert_eq!(both(seed, expanded), whole);
    for good in [whole.clone(), pkcs8(&value(0x80, &[seed])), pkcs8(&value(4, &[expanded]))] {
        assert!(reads(&good, ""));
    }
    for (why, bad) in [
        ("another seed", both(&changed(seed, 0, 1), expanded)),
        ("another secret of rejection", both(seed, &changed(expanded, 2399, 1))),
        ("a short seed", pkcs8(&value(0x80, &[&seed[1..]]))),
        ("a long key", pkcs8(&value(4, &[expanded, &[0]]))),
        ("another secret vector", pkcs8(&value(4, &[&changed(expanded, 5, 1)]))),
        ("another hash", pkcs8(&value(4, &[&changed(expanded, 2336, 1)]))),
        ("another public half", pkcs8(&value(4, &[&changed(expanded, 1152, 1)]))),
        ("nothing", pkcs8(&[])),
        ("a choice that there is not", pkcs8(&value(0x81, &[seed]))),
        ("a cut value", whole[..whole.len() - 1].to_vec()),
        ("a length that says more", changed(&whole, 3, 0x40)),
    ] {
        assert!(!reads(&bad, ""), "{why}");
    }
    // Attributes may follow (RFC 5958), of an object and a set each.
    let attribute = value(0x30, &[&value(6, &[&[0x55, 4, 3]]), &value(0x31, &[&value(4, &[b"word"])])]);
    let with = |attributes: &[u8]| value(0x30, &[&whole[4..], &value(0xa0, &[attributes])]);
    assert!(reads(&with(&attribute), "") && reads(&with(&[attribute.clone(), attribute].concat()), ""));
    assert!(!reads(&with(&[1, 2, 3]), "") && !reads(&with(&value(0x30, &[b"word"])), ""));
    assert!(reads(&public, "-pubin"));
    let mut not_reduced = public.clone();
    (not_reduced[22], not_reduced[23]) = (0x01, not_reduced[23] & 0xf0 | 0x0d);
    for (why, bad) in [
        ("not reduced", not_reduced),
        ("cut", public[..1205].to_vec()),
        ("unused bits", changed(&public, 21, 1)),
        ("another size", changed(&public, 3, 1)),
    ] {
        assert!(!reads(&bad, "-pubin"), "{why}");
    }
}

/// An OpenSSL that has ML-KEM, without the provider.
struct Peer(PathBuf);

impl Peer {
    /// `None` is said in a line.
    fn find() -> Option<Peer> {
        let newer =
            module().ancestors().map(|folder| folder.join("newer/openssl/bin/openssl")).find(|p| p.exists());
        let named = std::env::var_os("OPENSSL_NEWER").map(PathBuf::from);
        let has_it = |program: &PathBuf| {
            let listed = Command::new(program)
                .args(["list", "-kem-algorithms", "-propquery", "provider=default"])
                .env("OPENSSL_CONF", "/dev/null")
                .output();
            listed.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("ML-KEM-768"))
        };
        let found = [named, Some("openssl".into()), newer].into_iter().flatten().find(has_it);
        if found.is_none() {
            eprintln!("skipped: no OpenSSL 3.5 here (OPENSSL_NEWER=PROGRAM, or scripts/test/newer.sh)");
        }
        found.map(Peer)
    }

    fn command(&self, host: &Host, arguments: &str) -> Command {
        let mut command = host.command(false, self.0.to_str().unwrap());
        command.args(arguments.split_whitespace());
        command
    }

    fn good(&self, host: &Host, arguments: &str) -> Vec<u8> {
        let output = self.command(host, arguments).output().unwrap();
        assert!(output.status.success(), "{arguments}\n{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }
}

#[test]
fn keys_of_openssl_3_5_are_read_and_it_reads_ours() {
    let Some(peer) = Peer::find() else { return };
    let host = Host::new();
    peer.good(&host, "genpkey -algorithm ML-KEM-768 -out theirs.pem");
    host.good(true, "genpkey -algorithm ML-KEM-768 -out ours.pem");
    for key in ["theirs", "ours"] {
        // The same bytes from either.
        for (how, name) in [
            ("-outform PEM", "private.pem"),
            ("-outform DER", "private.der"),
            ("-pubout -outform PEM", "public.pem"),
            ("-pubout -outform DER", "public.der"),
            ("-text -noout", "private.txt"),
            ("-text_pub -noout", "public.txt"),
        ] {
            peer.good(&host, &format!("pkey -in {key}.pem {how} -out by-them.{name}"));
            host.good(true, &format!("pkey -in {key}.pem {how} -out {name}"));
            let (by_them, by_us) = (host.read(&format!("by-them.{name}")), host.read(name));
            assert!(!by_us.is_empty() && by_us == by_them, "{key} {name}");
        }
        // Each choice of what is written.
        for form in ["seed-only", "priv-only", "seed-priv"] {
            peer.good(
                &host,
                &format!("pkey -in {key}.pem -provparam ml-kem.output_formats={form} -out {form}.pem"),
            );
            host.good(true, &format!("pkey -in {form}.pem -pubout -out {form}.pub"));
            assert_eq!(host.read(&format!("{form}.pub")), host.read("public.pem"), "{key} {form}");
        }
        peer.good(&host, &format!("pkey -in {key}.pem -aes256 -passout pass:word -out sealed.pem"));
        host.good(true, "pkey -in sealed.pem -passin pass:word -pubout -out sealed.pub");
        assert_eq!(host.read("sealed.pub"), host.read("public.pem"));
    }
}

/// A server that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(mut command: Command, port: u16) -> Server {
    command.args(["-accept", &port.to_string(), "-www", "-quiet", "-key", "s.key", "-cert", "s.crt"]);
    let server = Server(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let begun = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the server does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    server
}

/// Whether a handshake succeeds; with which group, if the client says.
fn connect(mut client: Command, port: u16) -> (bool, Option<String>) {
    let output = client.args(["-connect", &format!("127.0.0.1:{port}")]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let group = text.lines().find_map(|line| line.strip_prefix("Negotiated TLS1.3 group: "));
    (text.contains("New, TLSv1.3"), group.map(str::to_owned))
}

#[test]
fn openssl_3_5_agrees_with_us_as_server_and_as_client() {
    let Some(peer) = Peer::find() else { return };
    let host = Host::new();
    host.good(false, "req -x509 -config with.cnf -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout s.key -out s.crt -days 30 -subj /CN=test");
    let ours = |arguments: &str| {
        let mut command = host.command(true, "openssl");
        command.args(arguments.split_whitespace());
        command
    };
    for asynchronous in ["", "-async"] {
        let at = port();
        let groups = "X25519MLKEM768:MLKEM768:X25519";
        let _server = serve(ours(&format!("s_server -groups {groups} {asynchronous}")), at);
        for (groups, expected) in [
            ("", "X25519MLKEM768"),
            ("-groups X25519MLKEM768", "X25519MLKEM768"),
            ("-groups MLKEM768", "MLKEM768"),
            // Its first share is of another group: it is asked for one of ours.
            ("-groups P-256:X25519MLKEM768", "X25519MLKEM768"),
        ] {
            let (good, group) = connect(peer.command(&host, &format!("s_client {groups}")), at);
            assert!(good && group.as_deref() == Some(expected), "{asynchronous} {groups}: {group:?}");
        }
        assert!(connect(peer.command(&host, "s_client -groups X25519"), at).0);
        assert!(!connect(peer.command(&host, "s_client -groups P-521"), at).0);
    }
    for groups in ["X25519MLKEM768", "MLKEM768", "P-256:X25519MLKEM768"] {
        let at = port();
        let only = groups.rsplit(':').next().unwrap();
        let _server = serve(peer.command(&host, &format!("s_server -groups {only}")), at);
        assert!(connect(ours(&format!("s_client -groups {groups}")), at).0, "{groups}");
        assert!(!connect(ours("s_client -groups X25519"), at).0);
    }
}
