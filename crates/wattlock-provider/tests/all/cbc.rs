//! AES-CBC: call for call what OpenSSL's own gives (`cbc.c`), and records of every TLS that still has it, both ways,
//! with the MAC before and behind the encryption; forged ones are refused as they are without the provider.
//!
//! Everything listens on loopback only, for as long as one test lasts.
#![allow(clippy::unwrap_used, reason = "a test that meets a failure has failed")]

use crate::common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Host, port};

/// A host whose provider offers AES-CBC on any machine, and a certificate.
fn host() -> Host {
    let host = Host::new();
    let config = String::from_utf8(host.read("with.cnf")).unwrap();
    host.write("with.cnf", format!("{config}[wattlock_section]\nalgorithms = cbc\n").as_bytes());
    host.good(
        false,
        "req -x509 -newkey rsa:2048 -nodes -keyout rsa.key -out rsa.crt -days 2 -subj /CN=localhost",
    );
    host
}

#[test]
fn every_call_gives_what_openssl_gives() {
    let host = host();
    for flags in [&["-O1"][..], &["-O1", "-fsanitize=address"]] {
        let output = call_for_call(&host, flags).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// `cbc.c`, compiled with more flags, which compares a host's provider with OpenSSL's own.
pub fn call_for_call(host: &Host, flags: &[&str]) -> Command {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cbc.c");
    let program = host.path("program");
    let mut compiler = Command::new("cc");
    compiler.args(["-g", "-Wall", "-Wextra", "-Werror", "-o"]).args([&program, &source]);
    let built = compiler.args(flags).arg("-lcrypto").status();
    assert!(built.unwrap().success(), "cbc.c was not compiled");
    let mut command = host.command(true, program.to_str().unwrap());
    command.arg(host.path("with.cnf"));
    command
}

#[test]
fn files_are_encrypted_and_decrypted_alike() {
    let host = host();
    for bits in [128, 192, 256] {
        for len in [0, 1, 15, 16, 17, 4095, 8192, 100_003] {
            let text: Vec<u8> = (0..len).map(|i: usize| (i * 7 + i / 251) as u8).collect();
            host.write("text", &text);
            let options = format!(
                "enc -aes-{bits}-cbc -K {} -iv 0102030405060708090a0b0c0d0e0f10",
                "5a".repeat(bits / 8)
            );
            host.good(true, &format!("{options} -in text -out ours"));
            host.good(false, &format!("{options} -in text -out theirs"));
            assert!(host.read("ours") == host.read("theirs"), "{bits} bits, {len} bytes");
            host.good(true, &format!("{options} -d -in theirs -out back"));
            assert!(host.read("back") == text, "{bits} bits, {len} bytes");
        }
    }
}

/// TLS version, suite, and what it takes for libssl to encrypt with plain AES-CBC under a MAC of its own: OpenSSL's
/// combined ciphers have SHA-1 and SHA-256 and are there where it sees AES instructions.
const SUITES: [(&str, &str, bool); 6] = [
    ("-tls1", "ECDHE-RSA-AES128-SHA", true),
    ("-tls1_1", "AES256-SHA", true),
    ("-tls1_2", "ECDHE-RSA-AES128-SHA", true),
    ("-tls1_2", "AES128-SHA256", true),
    ("-tls1_2", "ECDHE-RSA-AES256-SHA384", false),
    ("-tls1_2", "ECDHE-RSA-AES256-SHA384", true),
];
/// Which side has the provider: server, client.
const SIDES: [(bool, bool); 3] = [(true, false), (false, true), (true, true)];

/// Hides AES instructions from OpenSSL (OPENSSL_ia32cap(3)); Wattlock asks the CPU itself.
const WITHOUT_AES: (&str, &str) = ("OPENSSL_ia32cap", "~0x200000200000000");

fn program(host: &Host, provider: bool, hidden: bool, line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = host.command(provider, words.next().unwrap());
    command.args(words);
    if hidden {
        command.env(WITHOUT_AES.0, WITHOUT_AES.1);
    }
    command
}

/// A process that is killed at the end of its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server that sends back what it gets, each line turned round (`-rev`).
fn server(host: &Host, provider: bool, hidden: bool, more: &str) -> (Running, u16) {
    let port = port();
    let line = format!(
        "openssl s_server -accept 127.0.0.1:{port} -cert rsa.crt -key rsa.key -no_ticket -rev {more}"
    );
    let mut command = program(host, provider, hidden, &line);
    command.env("WATTLOCK_TELEMETRY_DIR", host.path(&port.to_string()));
    let mut running = Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let end = Instant::now() + Duration::from_secs(20);
    while !listens(port) {
        assert!(Instant::now() < end && running.0.try_wait().unwrap().is_none(), "{line}");
        std::thread::sleep(Duration::from_millis(20));
    }
    (running, port)
}

/// Whether a TCP port is listened on, without a connection.
fn listens(port: u16) -> bool {
    let ending = format!(":{port:04X}");
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    table.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&ending)) && fields.nth(1) == Some("0A")
    })
}

/// How many pieces of a kind a living server has counted: docs/design/architecture.md, "Telemetry".
fn counted(host: &Host, port: u16, kind: &str) -> u64 {
    let mut sum = 0;
    for file in std::fs::read_dir(host.path(&port.to_string())).into_iter().flatten().flatten() {
        let bytes = std::fs::read(file.path()).unwrap();
        let Some((header, rows)) = bytes.split_at_checked(65536) else { continue };
        let end = header.iter().position(|byte| *byte == 0).unwrap_or(header.len());
        let Ok(header) = serde_json::from_slice::<serde_json::Value>(&header[..end]) else { continue };
        let names = |key: &str| header[key].as_array().cloned().unwrap_or_default();
        let (engines, kinds, cells, tallies) =
            (names("engines").len(), names("kinds"), names("cell").len(), names("engine").len());
        let Some(place) = kinds.iter().position(|name| name == kind) else { continue };
        let words: Vec<u64> =
            rows.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
        let row = (engines * (kinds.len() * cells + tallies)).next_multiple_of(8);
        for row in words.chunks_exact(row) {
            sum += (0..engines).map(|engine| row[(engine * kinds.len() + place) * cells]).sum::<u64>();
        }
    }
    sum
}

/// Lines of many lengths, the last one longer than a record.
fn lines() -> Vec<String> {
    let lengths = (1..80).chain([240, 241, 255, 256, 257, 1000, 4000, 15_999]);
    lengths.map(|len| (0..len).map(|i| char::from(b'a' + (i * 7 % 25) as u8)).collect()).collect()
}

/// What `s_client` is called with.
fn client(port: u16, more: &str) -> String {
    format!("timeout 60 openssl s_client -connect 127.0.0.1:{port} -quiet -no_ign_eof {more}")
}

/// Says these lines through a client and returns what it printed.
fn say(mut command: Command, lines: &[String]) -> String {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = child.stdout.take().unwrap();
    let mut told = Vec::new();
    let mut buffer = [0; 4096];
    // One line at a time, so that each is a record of its own length.
    'lines: for line in lines {
        if input.write_all(format!("{line}\n").as_bytes()).is_err() {
            break;
        }
        let enough = told.len() + line.len() + 1;
        while told.len() < enough {
            match output.read(&mut buffer) {
                Ok(0) | Err(_) => break 'lines,
                Ok(len) => told.extend_from_slice(&buffer[..len]),
            }
        }
    }
    drop(input);
    let rest = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&told).into_owned() + &String::from_utf8_lossy(&rest.stderr)
}

#[test]
fn records_of_every_version_and_length_go_both_ways() {
    let host = host();
    let lines = lines();
    for (version, suite, hidden) in SUITES {
        for etm in ["", " -no_etm"] {
            for (serves, asks) in SIDES {
                let more = format!("{version} -cipher {suite}:@SECLEVEL=0{etm}");
                let (_server, port) = server(&host, serves, hidden, &more);
                let told = say(program(&host, asks, hidden, &client(port, &more)), &lines);
                for line in &lines {
                    let turned: String = line.chars().rev().collect();
                    assert!(
                        told.contains(&format!("{turned}\n")),
                        "{more} {serves} {asks}: {} of\n{told}",
                        line.len()
                    );
                }
                // The server counts when it lets the connection go.
                let kind = if suite.contains("128") { "aes-128-cbc-decrypt" } else { "aes-256-cbc-decrypt" };
                let end = Instant::now() + Duration::from_secs(20);
                while serves && counted(&host, port, kind) < lines.len() as u64 {
                    assert!(Instant::now() < end, "{more}: the provider did not decrypt the records");
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }
}

/// Carries one connection, and turns over one bit of each of the client's records of data, `from_end` bytes before
/// its end.
fn meddle(to: u16, from_end: usize) -> (std::thread::JoinHandle<()>, u16) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let carry = move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(("127.0.0.1", to)).unwrap();
        let limit = Some(Duration::from_secs(20));
        for stream in [&client, &server] {
            stream.set_read_timeout(limit).unwrap();
        }
        let (mut back, mut answers) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let returning = std::thread::spawn(move || {
            let _ = std::io::copy(&mut answers, &mut back);
            let _ = back.shutdown(std::net::Shutdown::Both);
        });
        let mut head = [0; 5];
        while client.read_exact(&mut head).is_ok() {
            let mut body = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
            if client.read_exact(&mut body).is_err() {
                break;
            }
            // TLS 1.0 sends an empty record first.
            if head[0] == 23 && body.len() > 100 {
                let at = body.len() - from_end;
                body[at] ^= 1;
            }
            if server.write_all(&[&head[..], &body].concat()).is_err() {
                break;
            }
        }
        let _ = server.shutdown(std::net::Shutdown::Both);
        let _ = returning.join();
    };
    (std::thread::spawn(carry), port)
}

#[test]
fn a_record_with_one_bit_wrong_is_refused_as_it_is_without_the_provider() {
    let host = host();
    let text = ["x".repeat(100)];
    for (version, suite, hidden) in SUITES {
        for etm in ["", " -no_etm"] {
            // The last block is padding in part, the one before it turns bits of the last.
            for from_end in [1, 17, 33, 90] {
                let more = format!("{version} -cipher {suite}:@SECLEVEL=0{etm}");
                let alerts = [true, false].map(|provider| {
                    let (_server, port) = server(&host, provider, hidden, &more);
                    let (carrier, between) = meddle(port, from_end);
                    let told = say(program(&host, false, hidden, &client(between, &more)), &text);
                    carrier.join().unwrap();
                    assert!(!told.contains(&text[0]), "{more} {from_end}: {told}");
                    let alert = told.split("alert ").nth(1).and_then(|rest| rest.split(':').next());
                    alert
                        .unwrap_or_else(|| panic!("{more} {from_end}, provider {provider}: {told}"))
                        .to_owned()
                });
                assert_eq!(alerts[0], "bad record mac");
                assert_eq!(alerts[0], alerts[1], "{more} {from_end}");
            }
        }
    }
}

#[test]
fn gnutls_and_the_provider_agree() {
    let host = host();
    let lines = lines();
    for (bits, suite) in [(128, "ECDHE-RSA-AES128-SHA"), (256, "ECDHE-RSA-AES256-SHA")] {
        for version in ["1.0", "1.1", "1.2"] {
            for (etm, theirs) in [("", ""), ("-no_etm", ":%NO_ETM")] {
                let (_server, port) =
                    server(&host, true, true, &format!("-cipher {suite}:@SECLEVEL=0 {etm}"));
                let line = format!(
                    "timeout 60 gnutls-cli --insecure --port {port} 127.0.0.1 --priority \
                     NORMAL:-VERS-ALL:+VERS-TLS{version}:-CIPHER-ALL:+AES-{bits}-CBC:-MAC-ALL:+SHA1{theirs}"
                );
                let told = say(program(&host, false, false, &line), &lines);
                for line in &lines {
                    let turned: String = line.chars().rev().collect();
                    assert!(told.contains(&turned), "{version} {suite} {etm}: {} of\n{told}", line.len());
                }
                let kind = format!("aes-{bits}-cbc-encrypt");
                let end = Instant::now() + Duration::from_secs(20);
                while counted(&host, port, &kind) < lines.len() as u64 {
                    assert!(Instant::now() < end, "{version} {suite} {etm}: the provider did not encrypt");
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }
}
