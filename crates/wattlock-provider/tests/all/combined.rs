//! AES-CBC with HMAC: several TLS records in one call, whole connections with them, and peers that are not OpenSSL
//! (`combined.c`). Everything listens on loopback only, for as long as one test lasts.
#![allow(clippy::unwrap_used, reason = "a test that meets a failure has failed")]

use crate::common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Host, port};

/// A host whose provider offers the combined ciphers on any machine, a certificate, and the program.
fn host(flags: &[&str]) -> Host {
    let host = Host::new();
    let config = String::from_utf8(host.read("with.cnf")).unwrap();
    host.write("with.cnf", format!("{config}[wattlock_section]\nalgorithms = cbc-hmac\n").as_bytes());
    host.good(
        false,
        "req -x509 -newkey rsa:2048 -nodes -keyout rsa.key -out rsa.crt -days 2 -subj /CN=localhost",
    );
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/combined.c");
    let built = Command::new("cc")
        .args(["-g", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&host.path("program"), &source])
        .args(flags)
        .args(["-lssl", "-lcrypto"])
        .status();
    assert!(built.unwrap().success(), "combined.c was not compiled");
    host
}

fn good(host: &Host, what: &str) {
    let mut command = host.command(true, host.path("program").to_str().unwrap());
    let output = command.arg(what).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && output.stdout == b"good\n", "{what}: {said}");
}

#[test]
fn several_records_in_one_call_are_what_openssl_opens_and_no_vector_comes_twice() {
    good(&host(&[]), "calls");
}

#[test]
fn no_more_than_the_header_is_read_and_no_more_than_was_asked_for_is_written() {
    good(&host(&["-fsanitize=address"]), "calls");
}

#[test]
fn connections_go_on_across_sizes_numbers_callbacks_and_renegotiation() {
    good(&host(&[]), "talk");
}

#[test]
fn python_and_gnutls_read_what_was_written_in_large_pieces() {
    const BYTES: usize = 8 * 131_072;
    let host = host(&[]);
    let python = "import socket, ssl, sys\n\
        c = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT); c.check_hostname = False; c.verify_mode = ssl.CERT_NONE\n\
        c.set_ciphers('ALL:@SECLEVEL=0')\n\
        s = c.wrap_socket(socket.create_connection(('127.0.0.1', int(sys.argv[1]))))\n\
        n = 0\n\
        while True:\n    b = s.recv(65536)\n    if not b: break\n    assert b == (b'0123456789abcdef' * 4097)[n % 16:][:len(b)]; n += len(b)\n\
        print(s.cipher()[0], n)\n";
    for (suite, bits, mac) in
        [("AES128-SHA", 128, "SHA1"), ("AES256-SHA", 256, "SHA1"), ("AES128-SHA256", 128, "SHA256")]
    {
        for fragment in ["512", "16384"] {
            for gnutls in [false, true] {
                let port = port().to_string();
                let mut server = host.command(true, host.path("program").to_str().unwrap());
                server.args(["serve", &port, suite, fragment, &BYTES.to_string()]);
                let mut server = server.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
                let mut said = BufReader::new(server.stdout.take().unwrap()).lines();
                assert_eq!(said.next().unwrap().unwrap(), "listening");
                let mut client = if gnutls {
                    let priority = format!(
                        "NORMAL:-VERS-ALL:+VERS-TLS1.2:-KX-ALL:+RSA:-CIPHER-ALL:+AES-{bits}-CBC:-MAC-ALL:+{mac}"
                    );
                    let mut client = host.command(false, "timeout");
                    client.args(["60", "gnutls-cli", "--insecure", "--logfile=/dev/null", "--port", &port]);
                    client.args(["127.0.0.1", "--priority", &priority]);
                    client
                } else {
                    let mut client = host.command(false, "python3");
                    client.args(["-c", python, &port]);
                    client
                };
                let told = client.stdin(Stdio::piped()).output().unwrap();
                let case = format!("{suite} {fragment} {}", String::from_utf8_lossy(&told.stderr));
                if gnutls {
                    let digits = |byte: &&u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
                    assert!(told.stdout.iter().filter(digits).count() >= BYTES, "{case}");
                } else {
                    assert_eq!(String::from_utf8_lossy(&told.stdout), format!("{suite} {BYTES}\n"), "{case}");
                }
                assert!(server.wait().unwrap().success(), "{case}");
            }
        }
    }
}

#[test]
fn openssl_speed_exercises_several_records_at_once() {
    let host = host(&[]);
    // Nobody else's cipher may serve.
    let line = "speed -propquery provider=wattlock -mb -seconds 1 -evp aes-128-cbc-hmac-sha1";
    let told = host.good(true, line);
    assert!(told.contains("131072 bytes"), "{told}");
    assert!(!host.openssl(false, line).status.success());
}
