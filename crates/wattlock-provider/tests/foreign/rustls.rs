//! rustls as the other side: another TLS library with another cryptography, which checks what it gets.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, SupportedKxGroup, aws_lc_rs as cryptography};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, NamedGroup, ProtocolVersion, RootCertStore, ServerConfig,
    ServerConnection, Stream,
};

use super::*;

/// Keys of the certificates.
const KEYS: [(&str, &str); 3] = [
    ("rsa", "rsa:2048"),
    ("p256", "ec -pkeyopt ec_paramgen_curve:P-256"),
    ("p384", "ec -pkeyopt ec_paramgen_curve:P-384"),
];
/// What both sides can agree on with every OpenSSL.
const GROUPS: [(NamedGroup, &str); 3] =
    [(NamedGroup::X25519, "X25519"), (NamedGroup::secp256r1, "P-256"), (NamedGroup::secp384r1, "P-384")];

/// A host with a certificate of each kind that is no authority's: rustls takes no other from a server.
fn host() -> Host {
    let host = Host::new();
    host.write(
        "leaf.cnf",
        b"[req]\ndistinguished_name = name\nx509_extensions = extensions\n[name]\n[extensions]\n\
          subjectAltName = DNS:localhost,IP:127.0.0.1\n",
    );
    for (name, key) in KEYS {
        host.good(
            false,
            &format!(
                "req -x509 -config leaf.cnf -newkey {key} -nodes -keyout {name}.key -out {name}.crt -days 2 \
                 -subj /CN=localhost"
            ),
        );
        host.good(false, &format!("x509 -in {name}.crt -outform DER -out {name}.crt.der"));
        host.good(false, &format!("pkcs8 -topk8 -nocrypt -in {name}.key -outform DER -out {name}.key.der"));
    }
    host.write("page", b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nover TLS\r\nwhole\n");
    host
}

/// The cryptography of rustls with the groups above, this one first: with TLS 1.2 they are ECDSA's curves, too.
fn preferring(first: NamedGroup) -> CryptoProvider {
    let mut kx_groups: Vec<&'static dyn SupportedKxGroup> = cryptography::ALL_KX_GROUPS.to_vec();
    kx_groups.retain(|one| one.name() == first || GROUPS.iter().any(|(group, _)| one.name() == *group));
    kx_groups.sort_by_key(|one| one.name() != first);
    assert_eq!(kx_groups[0].name(), first);
    CryptoProvider { kx_groups, ..cryptography::default_provider() }
}

/// One client of rustls asks for the page. The version, suite and group that were agreed on.
fn ask(
    host: &Host,
    certificate: &str,
    port: u16,
    config: ClientConfig,
) -> (ProtocolVersion, CipherSuite, NamedGroup) {
    let name = ServerName::try_from("localhost").unwrap();
    let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut tls = Stream::new(&mut connection, &mut socket);
    tls.write_all(b"GET /page HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // `s_server` closes without saying so in TLS; that the answer is whole is seen from its end.
    let _ = tls.read_to_end(&mut answer);
    assert!(answer.ends_with(b"\r\n\r\nover TLS\r\nwhole\n"), "{}", String::from_utf8_lossy(&answer));
    let shown = connection.peer_certificates().unwrap()[0].to_vec();
    assert_eq!(shown, host.read(&format!("{certificate}.crt.der")));
    (
        connection.protocol_version().unwrap(),
        connection.negotiated_cipher_suite().unwrap().suite(),
        connection.negotiated_key_exchange_group().unwrap().name(),
    )
}

#[test]
fn rustls_asks_s_server_with_every_suite_and_certificate() {
    let host = host();
    for (certificate, _) in KEYS {
        let port = port();
        let more = format!("-HTTP -cert {certificate}.crt -key {certificate}.key");
        let _server = s_server(&host, true, port, &more);
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(host.read(&format!("{certificate}.crt.der")))).unwrap();
        let (mut old, mut new) = (0, 0);
        for (at, suite) in cryptography::ALL_CIPHER_SUITES.iter().enumerate() {
            let name = format!("{:?}", suite.suite());
            let other = if certificate == "rsa" { "ECDSA" } else { "ECDHE_RSA" };
            if name.contains(other) {
                continue;
            }
            let group = match hybrid(&host) {
                Some(_) if suite.version().version == ProtocolVersion::TLSv1_3 => NamedGroup::X25519MLKEM768,
                _ => GROUPS[at % GROUPS.len()].0,
            };
            let crypto = CryptoProvider { cipher_suites: vec![*suite], ..preferring(group) };
            let config = ClientConfig::builder_with_provider(Arc::new(crypto))
                .with_protocol_versions(&[suite.version()])
                .unwrap()
                .with_root_certificates(roots.clone())
                .with_no_client_auth();
            let agreed = ask(&host, certificate, port, config);
            assert_eq!(agreed, (suite.version().version, suite.suite(), group));
            if agreed.0 == ProtocolVersion::TLSv1_2 { old += 1 } else { new += 1 }
        }
        assert_eq!((old, new), (3, 3), "{certificate}");
    }
}

/// Serves so many connections with rustls, each for one question.
fn serve(
    host: &Host,
    certificate: &str,
    group: NamedGroup,
    count: usize,
) -> (u16, std::thread::JoinHandle<()>) {
    let key = PrivatePkcs8KeyDer::from(host.read(&format!("{certificate}.key.der")));
    let chain = vec![CertificateDer::from(host.read(&format!("{certificate}.crt.der")))];
    let config = ServerConfig::builder_with_provider(Arc::new(preferring(group)))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from(key))
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let work = move || {
        for _ in 0..count {
            let (mut socket, _) = listener.accept().unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let mut connection = ServerConnection::new(config.clone()).unwrap();
            let mut tls = Stream::new(&mut connection, &mut socket);
            let mut question = Vec::new();
            while !question.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                tls.read_exact(&mut byte).unwrap();
                question.push(byte[0]);
            }
            tls.write_all(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nover TLS\r\nwhole\n").unwrap();
            tls.conn.send_close_notify();
            tls.flush().unwrap();
        }
    };
    (port, std::thread::spawn(work))
}

#[test]
fn curl_and_s_client_with_the_provider_ask_rustls() {
    let host = host();
    host.write("question", b"GET /page HTTP/1.0\r\n\r\n");
    for (certificate, _) in KEYS {
        for (group, name) in GROUPS {
            let (port, server) = serve(&host, certificate, group, 4);
            let others = GROUPS.iter().map(|(_, other)| *other).filter(|other| *other != name);
            let groups = std::iter::once(name).chain(others).collect::<Vec<_>>().join(":");
            for (curl, s_client) in [("--tls-max 1.2", "-tls1_2"), ("--tlsv1.3", "-tls1_3")] {
                let line = format!(
                    "curl -sS --cacert {certificate}.crt {curl} --curves {groups} https://127.0.0.1:{port}/page"
                );
                assert!(client(&host, true, &line).contains("whole"), "{line}");
                let mut command = host.command(true, "timeout");
                let line = format!(
                    "60 openssl s_client -quiet -verify_return_error -CAfile {certificate}.crt {s_client} -groups \
                     {groups} -connect 127.0.0.1:{port}"
                );
                command.args(line.split_whitespace());
                command.stdin(std::fs::File::open(host.path("question")).unwrap());
                let output = command.output().unwrap();
                assert!(
                    output.status.success() && text(&output).contains("whole"),
                    "{line}: {}",
                    text(&output)
                );
            }
            server.join().unwrap();
        }
    }
}

/// Handshakes with the group of today, whatever OpenSSL this is: rustls asks the provider.
fn rustls_asks(host: &Host, port: u16, count: usize) {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(host.read("p256.crt.der"))).unwrap();
    for at in 0..count {
        // Every other one begins with a share of another group, and is asked for one more.
        let first = if at % 2 == 0 { NamedGroup::X25519MLKEM768 } else { NamedGroup::X25519 };
        let mut crypto = preferring(first);
        crypto.kx_groups.truncate(1);
        if at % 2 == 1 {
            crypto.kx_groups.push(cryptography::kx_group::X25519MLKEM768);
        }
        let config = ClientConfig::builder_with_provider(Arc::new(crypto))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        assert_eq!(ask(host, "p256", port, config).2, NamedGroup::X25519MLKEM768, "{at}");
    }
}

/// rustls, and Go's `crypto/tls` if there is a Go, each so many times: with every OpenSSL, by the provider alone.
fn agree_on_the_hybrid(count: usize) {
    let host = host();
    let at = port();
    let more = "-HTTP -cert p256.crt -key p256.key -groups X25519MLKEM768";
    let _server = s_server(&host, true, at, more);
    rustls_asks(&host, at, count);
    let s_client = |port: u16, groups: &str| {
        let mut command = host.command(true, "timeout");
        let line = format!("60 openssl s_client -quiet -groups {groups} -connect 127.0.0.1:{port}");
        command.args(line.split_whitespace()).stdin(std::fs::File::open(host.path("question")).unwrap());
        let output = command.output().unwrap();
        assert!(text(&output).contains("whole"), "{line}: {}", text(&output));
    };
    host.write("question", b"GET /page HTTP/1.0\r\n\r\n");
    let asked = (count / 20).max(1);
    let (own, served) = serve(&host, "p256", NamedGroup::X25519MLKEM768, asked);
    (0..asked).for_each(|_| s_client(own, "X25519MLKEM768"));
    served.join().unwrap();
    let Ok(built) = Command::new("go")
        .args(["build", "-o"])
        .arg(host.path("hybrid"))
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign/hybrid.go"))
        .env("GOTOOLCHAIN", "local")
        .status()
    else {
        eprintln!("skipped in part: no Go here");
        return;
    };
    assert!(built.success(), "hybrid.go was not compiled");
    let program = host.path("hybrid");
    let go = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).current_dir(host.path(""));
        command
    };
    let output = go(&["client", &format!("127.0.0.1:{at}"), &count.to_string()]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let mut serving =
        go(&["server", "p256.crt", "p256.key", &asked.to_string()]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(serving.stdout.as_mut().unwrap()), &mut line)
        .unwrap();
    let theirs = line.trim().parse().unwrap();
    // Also after a share of another group.
    (0..asked).for_each(|at| s_client(theirs, ["X25519MLKEM768", "P-256:X25519MLKEM768"][at % 2]));
    assert!(serving.wait().unwrap().success());
}

#[test]
fn rustls_and_go_agree_with_the_provider_on_the_hybrid_group() {
    agree_on_the_hybrid(60);
}

/// The whole of it: `make soak`.
#[test]
#[ignore = "takes minutes"]
fn they_do_so_ten_thousand_times() {
    agree_on_the_hybrid(5_000);
}
