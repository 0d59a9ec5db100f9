//! Programs that know nothing of Wattlock meet each other over TLS, with the provider on either side: curl, Python's
//! `ssl`, GnuTLS, rustls, PostgreSQL, the `openssl` program; and an accelerator that dies while `openssl speed` and
//! `s_server` work.
//!
//! Everything listens on loopback only, for as long as one test lasts.
#![allow(clippy::unwrap_used, reason = "a test that meets a failure has failed")]

use crate::{cbc, common};
#[path = "../foreign/postgres.rs"]
mod foreign_postgres;
#[path = "../foreign/rustls.rs"]
mod foreign_rustls;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{Host, port};

/// Which side has the provider: server, client.
const SIDES: [(bool, bool); 3] = [(true, false), (false, true), (true, true)];
const CERTIFICATES: [&str; 2] = ["rsa", "ec"];
const TLS13: [&str; 3] = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];
/// Endings of TLS 1.2 suites as OpenSSL names them, and GnuTLS's names of the ciphers.
const CIPHERS: [(&str, &str); 3] = [
    ("AES128-GCM-SHA256", "AES-128-GCM"),
    ("AES256-GCM-SHA384", "AES-256-GCM"),
    ("CHACHA20-POLY1305", "CHACHA20-POLY1305"),
];

/// A server, killed at the end of its test.
struct Server(Child);

impl Server {
    /// Starts it and waits until it listens.
    fn start(command: &mut Command, port: u16) -> Server {
        let mut server = Server(command.stdin(Stdio::piped()).spawn().unwrap());
        within(Duration::from_secs(20), "a server listens", || {
            assert_eq!(server.0.try_wait().unwrap(), None, "{command:?} ended");
            listens(port)
        });
        server
    }

    fn loaded(&self) -> bool {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.0.id()));
        maps.unwrap_or_default().contains("libwattlock_provider")
    }
}

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

/// Whether a TCP port is listened on, without a connection.
fn listens(port: u16) -> bool {
    let table =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let ending = format!(":{port:04X}");
    table.iter().flat_map(|text| text.lines()).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&ending)) && fields.nth(1) == Some("0A")
    })
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign").join(name)
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Runs a client, which must end well within a minute; what it printed.
fn client(host: &Host, provider: bool, line: &str) -> String {
    let mut command = host.command(provider, "timeout");
    let output = command.args(["60"]).args(line.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "provider {provider}: {line}: {}\n{}", output.status, text(&output));
    text(&output)
}

/// A host with two certificates: `rsa.pem` and `ec.pem` have key and certificate of localhost.
fn host() -> Host {
    let host = Host::new();
    for (name, key) in [("rsa", "rsa:2048"), ("ec", "ec -pkeyopt ec_paramgen_curve:P-256")] {
        host.good(
            false,
            &format!(
                "req -x509 -newkey {key} -nodes -keyout {name}.key -out {name}.crt -days 2 -subj /CN=localhost \
                 -addext subjectAltName=DNS:localhost,IP:127.0.0.1"
            ),
        );
        let both = [host.read(&format!("{name}.key")), host.read(&format!("{name}.crt"))].concat();
        host.write(&format!("{name}.pem"), &both);
    }
    host.write("all.crt", &[host.read("rsa.crt"), host.read("ec.crt")].concat());
    host.write("page", b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nover TLS\r\nwhole\n");
    host
}

fn s_server(host: &Host, provider: bool, port: u16, more: &str) -> Server {
    let mut command = host.command(provider, "openssl");
    command.args(["s_server", "-accept", &format!("127.0.0.1:{port}")]).args(more.split_whitespace());
    let server = Server::start(command.stdout(Stdio::null()).stderr(Stdio::null()), port);
    assert_eq!(server.loaded(), provider);
    server
}

/// Priorities for GnuTLS.
fn priority(version: &str, cipher: &str) -> String {
    format!("NORMAL:-VERS-ALL:+VERS-TLS{version}:-CIPHER-ALL:+{cipher}")
}

#[test]
fn curl_and_s_server_agree_on_every_suite_with_either_side_ours() {
    let host = host();
    for (server, ours) in SIDES {
        for certificate in CERTIFICATES {
            let port = port();
            let _server = s_server(
                &host,
                server,
                port,
                &format!("-HTTP -cert {certificate}.pem -key {certificate}.key"),
            );
            let kind = if certificate == "rsa" { "RSA" } else { "ECDSA" };
            let old = CIPHERS.map(|(ending, _)| format!("ECDHE-{kind}-{ending}"));
            let get = |version: &str, suite: &str| {
                let line = format!(
                    "curl -sv --cacert all.crt --connect-timeout 20 {version} {suite} https://127.0.0.1:{port}/page"
                );
                let told = client(&host, ours, &line);
                let suite = suite.split(' ').nth(1).unwrap();
                assert!(told.contains("whole") && told.contains(suite), "{line}: {told}");
            };
            old.iter().for_each(|suite| get("--tls-max 1.2", &format!("--ciphers {suite}")));
            TLS13.iter().for_each(|suite| get("--tlsv1.3", &format!("--tls13-ciphers {suite}")));
        }
    }
}

/// Suites by what TLS calls their exchange, authentication and cipher, of which there must be some, where they are not
/// left out of this OpenSSL.
const FAMILIES: [(&str, &str); 9] = [
    ("ECDHE-RSA-", "ec"),
    ("DHE-RSA-", "dh"),
    ("ADH-", "dh"),
    ("-PSK-", "psk"),
    ("-CCM8", "aes"),
    ("ARIA", "aria"),
    ("CAMELLIA", "camellia"),
    ("CHACHA20", "chacha"),
    ("NULL-SHA", "tls1_2"),
];

/// Also suites of which Wattlock does the key agreement, the signature or the key derivation and not the records.
#[test]
fn s_client_and_s_server_agree_on_every_suite_of_this_openssl() {
    const TLS13_MORE: [&str; 2] = ["TLS_AES_128_CCM_SHA256", "TLS_AES_128_CCM_8_SHA256"];
    let host = host();
    let disabled = host.good(false, "list -disabled").to_lowercase();
    let list = host.good(false, "ciphers -s -tls1_2 -psk ALL:COMPLEMENTOFALL:@SECLEVEL=0");
    // Those need a DSA certificate or passwords, and nothing else of ours than the others.
    let suites: Vec<&str> =
        list.trim().split(':').filter(|suite| !suite.contains("DSS") && !suite.contains("SRP")).collect();
    for (family, without) in FAMILIES {
        let left_out = disabled.lines().any(|line| line == without);
        assert!(left_out || suites.iter().any(|suite| suite.contains(family)), "{family}: {list}");
    }
    let newer: Vec<&str> = TLS13.into_iter().chain(TLS13_MORE).collect();
    for (provider, ours) in [(true, false), (false, true)] {
        let port = port();
        let more = format!(
            "-www -cert rsa.pem -dcert ec.pem -psk 0123456789abcdef -cipher ALL:COMPLEMENTOFALL:@SECLEVEL=0 \
             -ciphersuites {}",
            newer.join(":")
        );
        let _server = s_server(&host, provider, port, &more);
        let connect = |suite: &str, options: &str| {
            let mut command = host.command(ours, "timeout");
            command.args(["60", "openssl", "s_client", "-connect", &format!("127.0.0.1:{port}"), "-ign_eof"]);
            command.args(options.split_whitespace()).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut client = command.stderr(Stdio::piped()).spawn().unwrap();
            // A client whose handshake failed reads no more.
            let _ = std::io::Write::write_all(client.stdin.as_mut().unwrap(), b"GET / HTTP/1.0\r\n\r\n");
            let told = text(&client.wait_with_output().unwrap());
            assert!(
                told.contains("HTTP/1.0 200 ok") && told.contains(&format!("Cipher is {suite}\n")),
                "{suite}, the provider on {}: {told}",
                if provider { "the server" } else { "the client" }
            );
        };
        for suite in &suites {
            // A suite with a certificate has it checked.
            let anonymous = suite.starts_with("ADH") || suite.starts_with("AECDH");
            let proof = if anonymous { "" } else { "-CAfile all.crt -verify_return_error" };
            let secret = if suite.contains("PSK") { "-psk 0123456789abcdef" } else { "" };
            connect(suite, &format!("-tls1_2 -cipher {suite}:@SECLEVEL=0 {proof} {secret}"));
        }
        for suite in &newer {
            connect(
                suite,
                &format!("-tls1_3 -ciphersuites {suite} -cipher DEFAULT:@SECLEVEL=0 -CAfile all.crt"),
            );
        }
    }
}

/// The group that joins X25519 with ML-KEM, where this OpenSSL has it: from 3.5.
fn hybrid(host: &Host) -> Option<&'static str> {
    const NAME: &str = "X25519MLKEM768";
    let version = host.good(false, "version");
    let number = version.split(' ').nth(1).unwrap();
    let mut parts = number.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let at_least = (parts.next().unwrap(), parts.next().unwrap()) >= (3, 5);
    if at_least {
        assert!(host.good(false, "list -kem-algorithms").contains(NAME), "{version}");
    }
    at_least.then_some(NAME)
}

/// Before 3.5 the same with X25519 alone, which is the half of the hybrid that is ours.
#[test]
fn s_client_and_s_server_agree_on_the_hybrid_group_where_openssl_has_it() {
    let host = host();
    let group = hybrid(&host).unwrap_or("X25519");
    for (server, ours) in SIDES {
        for certificate in CERTIFICATES {
            let port = port();
            let _server =
                s_server(&host, server, port, &format!("-WWW -cert {certificate}.pem -groups {group}"));
            let mut command = host.command(ours, "timeout");
            let line = format!(
                "60 openssl s_client -tls1_3 -verify_return_error -CAfile all.crt -groups {group} -connect \
                 127.0.0.1:{port}"
            );
            let output = command.args(line.split_whitespace()).output().unwrap();
            let told = text(&output);
            assert!(output.status.success(), "{line}: {told}");
            let words = if group == "X25519" { "Server Temp Key: X25519" } else { group };
            assert!(told.contains(words), "{line}: {told}");
        }
    }
}

#[test]
fn a_client_certificate_is_asked_for_shown_and_checked() {
    let host = host();
    for (server, ours) in SIDES {
        for certificate in CERTIFICATES {
            let port = port();
            let more =
                format!("-HTTP -cert rsa.pem -CAfile {certificate}.crt -Verify 1 -verify_return_error");
            let _server = s_server(&host, server, port, &more);
            for version in ["--tls-max 1.2", "--tlsv1.3"] {
                let curl = format!("curl -sS --cacert all.crt {version} https://127.0.0.1:{port}/page");
                let told = client(&host, ours, &format!("{curl} --cert {certificate}.pem"));
                assert!(told.contains("whole"), "{told}");
                let other = if certificate == "rsa" { "ec" } else { "rsa" };
                for refused in ["".to_owned(), format!("--cert {other}.pem")] {
                    let mut command = host.command(ours, "timeout");
                    let line = format!("60 {curl} {refused}");
                    let output = command.args(line.split_whitespace()).output().unwrap();
                    assert!(!output.status.success(), "{line}: {}", text(&output));
                }
            }
        }
    }
}

fn python(host: &Host, provider: bool, port: u16, more: &str) -> serde_json::Value {
    let line = format!("python3 {} {port} --ca all.crt {more}", script("client.py").display());
    let told = client(host, provider, &line);
    let found: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(found["loaded"], provider, "{told}");
    assert_eq!(found["bad"], serde_json::json!([]), "{told}");
    found
}

#[test]
fn python_serves_and_asks_and_resumes_with_either_side_ours() {
    let host = host();
    for (server, ours) in SIDES {
        for certificate in CERTIFICATES {
            let port = port();
            let mut command = host.command(server, "python3");
            command.arg(script("server.py")).arg(port.to_string());
            command.args(["--cert", &format!("{certificate}.pem"), "--clients", "ec.crt"]);
            let running = Server::start(&mut command, port);
            assert_eq!(running.loaded(), server);
            for version in ["1.2", "1.3"] {
                let found = python(&host, ours, port, &format!("--version {version} --cert ec.pem --resume"));
                assert_eq!(found["seen"][0][0], format!("TLSv{version}"));
                assert_eq!((&found["seen"][0][2], &found["seen"][1][2]), (&false.into(), &true.into()));
                let more = format!("--version {version} --cert ec.pem --handshakes 24 --threads 8");
                assert_eq!(python(&host, ours, port, &more)["good"], 24);
            }
        }
    }
}

#[test]
fn gnutls_asks_s_server_and_resumes() {
    let host = host();
    for certificate in CERTIFICATES {
        let port = port();
        let _server = s_server(&host, true, port, &format!("-HTTP -cert {certificate}.pem"));
        for version in ["1.2", "1.3"] {
            for (_, cipher) in CIPHERS {
                // It connects twice, the second time with the ticket of the first.
                let mut command = host.command(false, "timeout");
                command.args(["60", "gnutls-cli", "--x509cafile", "all.crt", "--resume", "--priority"]);
                command.args([&priority(version, cipher), "-p", &port.to_string(), "localhost"]);
                let mut child = command
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
                    .unwrap();
                std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"GET /page HTTP/1.0\r\n\r\n")
                    .unwrap();
                let told = text(&child.wait_with_output().unwrap());
                assert!(told.contains("(TLS") && told.contains(cipher), "{told}");
                assert!(told.contains("This is a resumed session"), "{version} {cipher}: {told}");
            }
        }
    }
}

#[test]
fn gnutls_answers_curl() {
    let host = host();
    for certificate in CERTIFICATES {
        for (version, option) in [("1.2", "--tls-max 1.2"), ("1.3", "--tlsv1.3")] {
            for (_, cipher) in CIPHERS {
                let port = port();
                let alone = script("alone.py");
                let line = format!(
                    "python3 {} {port} gnutls-serv --http --port {port} --x509certfile {certificate}.crt \
                     --x509keyfile {certificate}.key --priority {} -- \
                     curl -sS --cacert all.crt {option} https://127.0.0.1:{port}/",
                    alone.display(),
                    priority(version, cipher)
                );
                let told = client(&host, true, &line);
                assert!(told.contains(cipher) && told.contains(&format!("TLS{version}")), "{told}");
            }
        }
    }
}

/// What a program printed into a file of the host's so far.
fn said(host: &Host, name: &str) -> String {
    String::from_utf8_lossy(&host.read(name)).into_owned()
}

/// Waits until a program has printed that so many times.
fn until(host: &Host, name: &str, what: &str, times: usize) {
    within(Duration::from_secs(60), &format!("{what} is in {name} {times} times"), || {
        said(host, name).matches(what).count() >= times
    });
}

/// An `s_server` that prints into the file `heard`, with the messages of the handshake; and its port.
fn hears(host: &Host, provider: bool, more: &str) -> (Server, u16) {
    let port = port();
    let heard = std::fs::File::create(host.path("heard")).unwrap();
    let mut command = host.command(provider, "openssl");
    command.args(["s_server", "-msg", "-accept", &format!("127.0.0.1:{port}"), "-cert", "ec.pem"]);
    command.args(more.split_whitespace()).stdout(heard).stderr(Stdio::null());
    (Server::start(&mut command, port), port)
}

/// An `s_client` that prints into the file `told`, with the messages of the handshake.
fn tells(host: &Host, provider: bool, port: u16, more: &str) -> Server {
    let told = std::fs::File::create(host.path("told")).unwrap();
    let mut command = host.command(provider, "openssl");
    command.args(["s_client", "-msg", "-connect", &format!("127.0.0.1:{port}"), "-CAfile", "all.crt"]);
    command.args(more.split_whitespace()).stderr(told.try_clone().unwrap()).stdout(told);
    Server(command.stdin(Stdio::piped()).spawn().unwrap())
}

/// Types a line. A command letter counts only where it is read by itself, so what the line before it brought must
/// have been seen.
fn enter(program: &mut Server, line: &str) {
    std::io::Write::write_all(program.0.stdin.as_mut().unwrap(), line.as_bytes()).unwrap();
}

/// Ends a client, and waits for its end.
fn quit(mut client: Server) {
    enter(&mut client, "Q\n");
    within(Duration::from_secs(60), "a client ends", || client.0.try_wait().unwrap().is_some());
}

#[test]
fn keys_are_updated_by_both_ends_in_the_middle_of_a_connection() {
    let host = host();
    for (provider, ours) in SIDES {
        for suite in TLS13 {
            let (mut server, port) = hears(&host, provider, "");
            let mut client = tells(&host, ours, port, &format!("-ciphersuites {suite}"));
            enter(&mut client, "before\n");
            until(&host, "heard", "before", 1);
            assert!(said(&host, "told").contains(&format!("Cipher is {suite}")), "{}", said(&host, "told"));
            let updates = |times| until(&host, "told", ", KeyUpdate", times);
            // Each asks the other to do the same, which it does before it writes next.
            enter(&mut client, "K\n");
            updates(1);
            until(&host, "heard", ", KeyUpdate", 1);
            enter(&mut server, "answer\n");
            updates(2);
            until(&host, "told", "answer", 1);
            enter(&mut server, "K\n");
            updates(3);
            enter(&mut client, "after\n");
            updates(4);
            until(&host, "heard", "after", 1);
            enter(&mut server, "last\n");
            until(&host, "told", "last", 1);
            quit(client);
            let told = said(&host, "told");
            for way in [">>>", "<<<"] {
                let update = format!("{way} TLS 1.3, Handshake [length 0005], KeyUpdate");
                assert_eq!(told.matches(&update).count(), 2, "{suite}: {told}");
            }
        }
    }
}

#[test]
fn early_data_is_taken() {
    const EARLY: &str = "said before the handshake was over";
    let host = host();
    host.write("early", format!("{EARLY}\n").as_bytes());
    for (provider, ours) in SIDES {
        let (_server, port) = hears(&host, provider, "-early_data");
        host.write("ticket", b"");
        let client = tells(&host, ours, port, "-tls1_3 -sess_out ticket");
        until(&host, "ticket", "END SSL SESSION", 1);
        quit(client);
        let client = tells(&host, ours, port, "-tls1_3 -sess_in ticket -early_data early");
        until(&host, "told", "Early data was accepted", 1);
        until(&host, "heard", EARLY, 1);
        quit(client);
    }
}

/// Ways to fail: the model's lines, and the counter that says that it came to that. The card is lost at a request that
/// comes only after others were answered: 64 jobs and the known answers are in flight at most.
const DEATHS: [(&str, &str); 3] = [
    ("fault lost requests 300 300", "lost"),
    ("fault error every 5", "reported-error"),
    ("fault silence every 20", "silent"),
];

/// Settings under which everything goes to an accelerator that fails.
fn with_accelerator(host: &Host, fault: &str, give_up_ms: u32) {
    let tables = "table rsa-2048-private 256:200000\n\
                  table ecdsa-p256-sign,p256-derive,p256-generate,x25519-derive,x25519-generate 0:100000";
    with_card(host, &format!("{tables}\n{fault}"), give_up_ms);
}

/// The same with whatever card.
fn with_card(host: &Host, model: &str, give_up_ms: u32) {
    let head = "name dying-card\nwindow 128 requests 4194304 bytes\nwidth 1\npool all 8 servers\n";
    host.write("card", format!("{head}{model}\n").as_bytes());
    let config = String::from_utf8(host.read("with.cnf")).unwrap();
    let settings = format!(
        "[wattlock_section]\nemulate = {}\npolicy = offload\ngive-up-ms = {give_up_ms}\n",
        host.path("card").display()
    );
    let [plain, emulated] = [common::module(), common::emulated()].map(|path| path.display().to_string());
    assert!(config.contains(&plain), "{config}");
    let config = config.replace(&plain, &emulated).replacen("[wattlock_section]\n", &settings, 1);
    host.write("with.cnf", config.as_bytes());
}

/// What a process counts for the accelerator, or counted if it has ended: the sums over its threads' rows, by name.
/// `requests` is there, too. The layout is in docs/design/architecture.md under "Telemetry".
fn counters(folder: &Path, process: u32) -> HashMap<String, u64> {
    let mine =
        |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&format!("{process}-"));
    let mut sums = HashMap::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten().filter(mine) {
        let Ok(mut bytes) = std::fs::read(entry.path()) else { continue };
        // The mark of one that has ended.
        if let Some(first) = bytes.first_mut().filter(|first| **first == b'-') {
            *first = b'{';
        }
        let Some((header, rows)) = bytes.split_at_checked(65536) else { continue };
        let end = header.iter().position(|byte| *byte == 0).unwrap_or(header.len());
        let Ok(header) = serde_json::from_slice::<serde_json::Value>(&header[..end]) else { continue };
        let names = |key: &str| -> Vec<String> {
            let list = header[key].as_array().into_iter().flatten();
            list.map(|name| name.as_str().unwrap().to_owned()).collect()
        };
        let (engines, kinds, cells, tallies) =
            (names("engines"), names("kinds"), names("cell"), names("engine"));
        let Some(at) = engines.iter().position(|name| name == "emulated") else { continue };
        let words: Vec<u64> =
            rows.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
        let row = (engines.len() * (kinds.len() * cells.len() + tallies.len())).next_multiple_of(8);
        for row in words.chunks_exact(row) {
            let first = engines.len() * kinds.len() * cells.len() + at * tallies.len();
            for (place, name) in tallies.iter().enumerate() {
                *sums.entry(name.clone()).or_default() += row[first + place];
            }
            let own = &row[at * kinds.len() * cells.len()..(at + 1) * kinds.len() * cells.len()];
            let requests = own.chunks_exact(cells.len()).map(|cell| cell[0]).sum::<u64>();
            *sums.entry("requests".to_owned()).or_default() += requests;
            for (kind, cell) in kinds.iter().zip(own.chunks_exact(cells.len())) {
                *sums.entry(kind.clone()).or_default() += cell[0];
            }
            let all = row[..first].chunks_exact(cells.len()).map(|cell| cell[0]).sum::<u64>();
            *sums.entry("of others".to_owned()).or_default() += all - requests;
        }
    }
    sums
}

/// Runs a program to its end; what it counted for the accelerator. It leaves its file, marked as ended, until another
/// process looks: however short it ran, nothing is missed.
fn watched(host: &Host, command: &mut Command, time: Duration) -> (HashMap<String, u64>, Output) {
    let folder = host.path("telemetry");
    command.env("WATTLOCK_TELEMETRY_DIR", &folder);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    within(time, "the program ends", || child.try_wait().unwrap().is_some());
    let counted = counters(&folder, child.id());
    (counted, child.wait_with_output().unwrap())
}

/// Runs `speed` for so long with each algorithm of its arguments; what it counted. Nothing may have failed.
fn speed(host: &Host, seconds: u32, arguments: &str) -> HashMap<String, u64> {
    let mut command = host.command(true, "openssl");
    command.args(["speed", "-seconds", &seconds.to_string()]).args(arguments.split_whitespace());
    let (last, output) = watched(host, &mut command, Duration::from_secs(60 + 10 * u64::from(seconds)));
    let told = text(&output);
    assert!(output.status.success(), "{arguments}: {told}");
    // What goes wrong is on stderr; the compiler's options, on stdout, have the word error in them.
    let lower = String::from_utf8_lossy(&output.stderr).to_lowercase();
    assert!(!lower.contains("fail") && !lower.contains("error"), "{arguments}: {told}");
    last
}

#[test]
fn speed_fails_no_operation_when_the_accelerator_dies() {
    for (fault, counter) in DEATHS {
        // Without jobs each call waits for the card.
        for jobs in ["-async_jobs 16", "-async_jobs 64", ""] {
            // Where the machine is busy, an answer of the card's comes late, is taken for a silence, and the card may
            // spend all of a short run in quarantine. So it is given longer until it was used and its fault struck: a
            // card that is never asked gets neither however long.
            let mut seen = Vec::new();
            let struck = [(1, 20), (2, 80), (4, 320), (8, 1280)].into_iter().any(|(seconds, give_up_ms)| {
                let host = host();
                with_accelerator(&host, fault, give_up_ms);
                let counted = speed(&host, seconds, &format!("{jobs} rsa2048 ecdsap256 ecdhx25519"));
                let struck = counted["requests"] > 0 && counted[counter] > 0;
                seen.push(counted);
                struck
            });
            assert!(struck, "{fault}, {jobs}: {seen:?}");
        }
    }
}

/// Everything that is one request, in any program, goes to a card under `offload`.
const WHOLE: &str = "table rsa-2048-private,ecdsa-p256-sign,p256-derive,p256-generate,x25519-derive,x25519-generate,\
                     aes-128-gcm-seal,aes-128-gcm-open,aes-256-gcm-seal,aes-256-gcm-open,\
                     aes-128-cbc-encrypt,aes-128-cbc-decrypt,aes-192-cbc-encrypt,aes-192-cbc-decrypt,\
                     aes-256-cbc-encrypt,aes-256-cbc-decrypt,aes-128-xts-encrypt,aes-256-ctr,hmac-sha-256,\
                     tls12-prf-sha-256,tls12-prf-sha-384,hkdf-expand-sha-256,hkdf-expand-sha-384 0:50000";

/// A host with such a card, and every group on.
fn with_whole() -> Host {
    with_whole_that("")
}

/// The same with a card that fails in some way.
fn with_whole_that(fault: &str) -> Host {
    let host = host();
    with_card(&host, &format!("{WHOLE}\n{fault}"), 5000);
    let config = String::from_utf8(host.read("with.cnf")).unwrap();
    let all = "[wattlock_section]\nalgorithms = gcm,cbc,ctr,xts,rsa,ec,x25519,kdf\n";
    host.write("with.cnf", config.replacen("[wattlock_section]\n", all, 1).as_bytes());
    host
}

#[test]
fn speed_without_jobs_is_done_by_a_card_and_no_random_number_is() {
    let host = with_whole();
    for (arguments, kind) in [
        ("rsa2048", "rsa-2048-private"),
        ("ecdsap256", "ecdsa-p256-sign"),
        ("ecdhx25519", "x25519-derive"),
        ("-evp aes-128-xts -bytes 4096", "aes-128-xts-encrypt"),
        // EECA's table 1.
        ("-evp aes-256-cbc -bytes 4096", "aes-256-cbc-encrypt"),
        ("-decrypt -evp aes-256-cbc -bytes 4096", "aes-256-cbc-decrypt"),
    ] {
        let counted = speed(&host, 2, arguments);
        assert!(counted[kind] > 0, "{arguments}: {counted:?}");
    }
    let counted = speed(&host, 2, "rand");
    let asked: u64 = ["requests", "tests", "untested"].iter().map(|name| counted[*name]).sum();
    assert!(counted["of others"] > 0 && asked == 0, "{counted:?}");
}

/// Pieces of CBC in any order and of any length are OpenSSL's bytes, also where a card does those of whole blocks and fails.
/// How many it is asked for hangs on the CPU's pace, 292 at the least that was seen: it is lost long before.
#[test]
fn pieces_of_cbc_that_a_card_does_are_what_openssl_gives() {
    for (fault, counter) in
        [("", "requests"), ("fault error every 5", "reported-error"), ("fault lost requests 100 100", "lost")]
    {
        let host = with_whole_that(fault);
        let mut command = cbc::call_for_call(&host, &["-O1", "-fsanitize=address"]);
        command.arg("400");
        let (counted, output) = watched(&host, &mut command, Duration::from_secs(300));
        assert!(output.status.success(), "{fault}: {}", text(&output));
        assert!(counted[counter] > 0, "{fault}: {counted:?}");
        let kinds = ["aes-128-cbc-encrypt", "aes-192-cbc-decrypt", "aes-256-cbc-encrypt"];
        assert!(!fault.is_empty() || kinds.iter().all(|kind| counted[*kind] > 0), "{counted:?}");
    }
}

/// Handshakes and records of a server that has no jobs, with clients that have no Wattlock.
#[test]
fn a_server_without_jobs_has_its_records_made_by_a_card() {
    let host = with_whole();
    let folder = host.path("telemetry");
    for (suite, version, kinds) in [
        ("ECDHE-RSA-AES128-GCM-SHA256", "1.2", ["aes-128-gcm-seal", "aes-128-gcm-open", "tls12-prf-sha-256"]),
        (
            "ECDHE-RSA-AES128-SHA256",
            "1.2",
            ["aes-128-cbc-encrypt", "aes-128-cbc-decrypt", "rsa-2048-private"],
        ),
        ("", "1.3", ["aes-256-gcm-seal", "aes-256-gcm-open", "hkdf-expand-sha-384"]),
    ] {
        let port = port();
        let mut command = host.command(true, "openssl");
        command.env("WATTLOCK_TELEMETRY_DIR", &folder).args(["s_server", "-HTTP", "-cert", "rsa.pem"]);
        if !suite.is_empty() {
            command.args(["-cipher", suite]);
        }
        command.args(["-accept", &format!("127.0.0.1:{port}")]).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Server::start(&mut command, port);
        let more = format!("--version {version} --handshakes 40 --path /page");
        assert_eq!(python(&host, false, port, &more)["good"], 40, "{suite}");
        let counted = counters(&folder, server.0.id());
        assert!(kinds.iter().all(|kind| counted[*kind] > 0), "{suite} {version}: {counted:?}");
    }
}

/// `s_server` resumes a paused job at once and again, until its work is taken back and done inside the call. How much of it a
/// card answers before that hangs on how fast this CPU comes round, so only the handshakes count here, and that the card
/// was chosen: what its faults do is shown by the test below.
#[test]
fn s_server_async_completes_every_handshake_when_the_accelerator_dies() {
    for (fault, _) in DEATHS {
        let counted = serve_while_it_dies(fault, 20);
        let asked =
            ["tests", "untested", "requests"].iter().filter_map(|name| counted.get(*name)).sum::<u64>();
        assert!(asked > 0, "{fault}: {counted:?}");
    }
}

/// Where it serves pages, `s_server` sleeps for a second whenever a job is paused instead of resuming it at once. So here
/// nothing is taken back: what a card never answers is waited for until its time is up, and the CPU does it.
#[test]
fn s_server_async_completes_every_handshake_and_meets_every_fault() {
    // Each kind's known answers are one request, three in a handshake and four or five in all. The ninth request is a
    // handshake's own in any case, and others were answered before it: what is lost was in use.
    let faults = [
        ("fault lost requests 9 9", "lost"),
        ("fault error every 5", "reported-error"),
        ("fault silence every 5", "silent"),
    ];
    std::thread::scope(|scope| {
        for (fault, counter) in faults {
            scope.spawn(move || serve_slowly_until(fault, counter));
        }
    });
}

/// Handshakes with an `s_server` that sleeps, until it counted that the fault struck, and two more.
fn serve_slowly_until(fault: &str, counter: &str) {
    let host = host();
    // Longer than a busy machine keeps an answer back, less than the sleep.
    with_accelerator(&host, fault, 500);
    let folder = host.path("telemetry");
    let port = port();
    let mut command = host.command(true, "openssl");
    command.env("WATTLOCK_TELEMETRY_DIR", &folder).args(["s_server", "-async", "-HTTP", "-cert", "rsa.pem"]);
    command.args(["-accept", &format!("127.0.0.1:{port}")]).stdout(Stdio::null()).stderr(Stdio::null());
    let server = Server::start(&mut command, port);
    let good = |version| {
        let more = format!("--version {version} --path /page");
        assert_eq!(python(&host, false, port, &more)["good"], 1, "{fault}");
        counters(&folder, server.0.id())
    };
    let (mut seen, mut versions) = (Vec::new(), ["1.3", "1.2"].into_iter().cycle());
    let struck = versions.by_ref().take(8).any(|version| {
        let counted = good(version);
        let struck = counted["requests"] > 0 && counted[counter] > 0;
        seen.push(counted);
        struck
    });
    assert!(struck, "{fault}: {seen:?}");
    versions.take(2).for_each(|version| drop(good(version)));
}

/// 120 handshakes with `s_server`, all of which succeed; what it counted for the accelerator.
fn serve_while_it_dies(fault: &str, give_up_ms: u32) -> HashMap<String, u64> {
    let host = host();
    with_accelerator(&host, fault, give_up_ms);
    let folder = host.path("telemetry");
    let port = port();
    let mut command = host.command(true, "openssl");
    // Not -WWW: there s_server sleeps for a second whenever a job is paused.
    command.env("WATTLOCK_TELEMETRY_DIR", &folder).args(["s_server", "-async", "-cert", "rsa.pem"]);
    command.args(["-accept", &format!("127.0.0.1:{port}")]).stderr(Stdio::null());
    let heard = std::fs::File::create(host.path("heard")).unwrap();
    let server = Server::start(command.stdout(heard), port);
    for version in ["1.2", "1.3"] {
        let more = format!("--version {version} --handshakes 60 --threads 4 --say arrived");
        assert_eq!(python(&host, false, port, &more)["good"], 60);
    }
    within(Duration::from_secs(20), "everything said is heard", || {
        String::from_utf8_lossy(&host.read("heard")).matches("arrived\n").count() == 120
    });
    counters(&folder, server.0.id())
}
