//! Keys that another provider holds and does not give away, as those of PKCS#11 tokens and TPMs, keep working where
//! Wattlock is preferred: the provider is a small one of our own (`held/held.c`), whose keys sign and decrypt.
#![allow(clippy::unwrap_used, reason = "a test that meets a failure has failed")]

use crate::common;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Host, port};

const BOTH: [bool; 2] = [true, false];
/// Where the other provider stands in the configuration: OpenSSL asks providers of equal preference in that order.
const PLACES: [&str; 2] = ["first", "last"];

/// Compiles a file beside this one's namesake.
fn compile(host: &Host, source: &str, out: &str, flags: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/held").join(source);
    let out = host.path(out);
    let mut command = Command::new("cc");
    command.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror"]).args(flags.split_whitespace());
    let built = command.arg("-o").args([&out, &source]).arg("-lcrypto").status();
    assert!(built.unwrap().success(), "{} was not compiled", source.display());
    out
}

/// A file that only the other provider can read: `NAME.held`, from `NAME.key`.
fn hand_over(host: &Host, name: &str) {
    host.good(false, &format!("pkcs8 -topk8 -nocrypt -in {name}.key -outform DER -out plain.der"));
    let mut string = b"held".to_vec();
    string.extend(host.read("plain.der"));
    // A length of two bytes where one would do is BER, which is read, too.
    let mut der = [&[4, 0x82], &u16::try_from(string.len()).unwrap().to_be_bytes()[..]].concat();
    der.extend(string);
    host.write("held.der", &der);
    let text = host.good(false, "base64 -in held.der");
    let label = "HELD PRIVATE KEY";
    host.write(
        &format!("{name}.held"),
        format!("-----BEGIN {label}-----\n{text}-----END {label}-----\n").as_bytes(),
    );
}

/// A host with the other provider in both of its configurations, and two keys in its hands, `rsa` and `ec`: `.key` is
/// the plain key, for comparison.
fn host(place: &str) -> Host {
    let host = Host::new();
    let module = compile(&host, "held.c", "held.so", "-fPIC -shared");
    for (name, key) in [("rsa", "rsa:2048"), ("ec", "ec -pkeyopt ec_paramgen_curve:P-256")] {
        host.good(
            false,
            &format!(
                "req -x509 -newkey {key} -nodes -keyout {name}.key -out {name}.crt -days 2 -subj /CN=localhost"
            ),
        );
        hand_over(&host, name);
    }
    let ours = String::from_utf8(host.read("with.cnf")).unwrap();
    let begin = "[providers]\n";
    let end = "[default_section]\n";
    assert!(ours.contains(begin) && ours.contains(end));
    let entry = "held = held_section\n";
    let listed = if place == "first" {
        ours.replace(begin, &format!("{begin}{entry}"))
    } else {
        ours.replace(end, &format!("{entry}{end}"))
    };
    let section = format!("[held_section]\nmodule = {}\nactivate = 1\n", module.display());
    let ours = listed.replace(end, &format!("{section}{end}"));
    // Without Wattlock a provider must be preferred, too, if keys that no provider holds are not to go to the other
    // provider.
    let theirs =
        ours.replace("wattlock = wattlock_section\n", "").replace("provider=wattlock", "provider=default");
    host.write("with.cnf", ours.as_bytes());
    host.write("without.cnf", theirs.as_bytes());
    for (provider, expected) in [(true, true), (false, false)] {
        let listed = host.good(provider, "list -providers");
        assert!(listed.contains("keys that are held"), "{listed}");
        assert_eq!(listed.contains("wattlock"), expected, "{listed}");
    }
    host
}

#[test]
fn held_keys_sign_and_decrypt_as_without_the_provider() {
    for place in PLACES {
        let host = host(place);
        host.write("message", b"a message");
        // Nobody has the private part; everybody has the other.
        for name in ["rsa", "ec"] {
            for provider in BOTH {
                let given = host.openssl(provider, &format!("pkey -in {name}.held -outform DER -out leak"));
                assert!(!given.status.success() && host.read("leak").is_empty());
            }
            let public = host.same(&format!("pkey -in {name}.held -pubout"));
            assert_eq!(public, host.good(false, &format!("pkey -in {name}.key -pubout")));
            host.write(&format!("{name}.pub"), public.as_bytes());
        }
        // No randomness in it: the same bytes, which are the plain key's.
        let signature = host.same("dgst -sha256 -hex -sign rsa.held message");
        assert_eq!(
            signature.rsplit(' ').next(),
            host.good(false, "dgst -sha256 -hex -sign rsa.key message").rsplit(' ').next()
        );
        for provider in BOTH {
            for (name, options) in [("rsa", "-sigopt rsa_padding_mode:pss"), ("ec", "")] {
                let sign = format!("dgst -sha384 {options} -sign {name}.held -out signature message");
                host.good(provider, &sign);
                let verify =
                    format!("dgst -sha384 {options} -verify {name}.pub -signature signature message");
                host.good(!provider, &verify);
            }
            for padding in ["pkcs1", "oaep"] {
                let options = format!("-pkeyopt rsa_padding_mode:{padding}");
                host.good(
                    provider,
                    &format!("pkeyutl -encrypt -certin -inkey rsa.crt {options} -in message -out sealed"),
                );
                let opened =
                    host.same(&format!("pkeyutl -decrypt -inkey rsa.held {options} -in sealed -hexdump"));
                assert!(opened.contains("a message"), "{opened}");
            }
            for name in ["rsa", "ec"] {
                host.good(
                    provider,
                    &format!(
                        "cms -sign -nodetach -in message -signer {name}.crt -inkey {name}.held -outform DER -out signed"
                    ),
                );
                host.good(
                    !provider,
                    &format!("cms -verify -inform DER -in signed -CAfile {name}.crt -purpose any"),
                );
            }
            host.good(provider, "cms -encrypt -aes256 -in message -outform DER -out sealed rsa.crt");
            let opened = host.same("cms -decrypt -inform DER -in sealed -recip rsa.crt -inkey rsa.held");
            assert_eq!(opened.trim_end(), "a message");
        }
    }
}

#[test]
fn held_keys_work_in_sixty_four_jobs_that_pause_for_other_things() {
    let host = host("last");
    let plain = compile(&host, "jobs.c", "plain", "");
    let checked = compile(&host, "jobs.c", "checked", "-fsanitize=address");
    let run = |program: &Path, provider: bool, count: u32| {
        let (config, pauses) = if provider { ("with.cnf", "pauses") } else { ("without.cnf", "goes-on") };
        let mut command = host.command(provider, program.to_str().unwrap());
        command.env("OPENSSL_CONF", "/dev/null").args([config, pauses, &count.to_string()]);
        let output = command.args(["rsa.held", "rsa.crt", "ec.held", "ec.crt"]).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program:?} {config} {count}: {}\n{errors}", output.status);
        String::from_utf8(output.stdout).unwrap()
    };
    let signature = run(&plain, true, 200);
    assert_eq!(signature.trim().len(), 512);
    assert_eq!(signature, run(&plain, false, 64));
    assert_eq!(signature, run(&checked, true, 80));
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An `s_server`, listening.
fn s_server(host: &Host, provider: bool, port: u16, more: &str) -> Server {
    let mut command = host.command(provider, "openssl");
    command.args(["s_server", "-www", "-accept", &format!("127.0.0.1:{port}")]).args(more.split_whitespace());
    let errors = std::fs::File::create(host.path("errors")).unwrap();
    let mut server = Server(command.stdout(Stdio::null()).stderr(errors).spawn().unwrap());
    let end = Instant::now() + Duration::from_secs(20);
    let listening = format!("0100007F:{port:04X} 00000000:0000 0A");
    while !std::fs::read_to_string("/proc/net/tcp").unwrap().contains(&listening) {
        let errors = String::from_utf8_lossy(&host.read("errors")).into_owned();
        assert_eq!(server.0.try_wait().unwrap(), None, "{more}: {errors}");
        assert!(Instant::now() < end, "{more}: does not listen: {errors}");
        std::thread::sleep(Duration::from_millis(20));
    }
    server
}

/// What a client printed that asked for the page.
fn ask(host: &Host, provider: bool, port: u16, more: &str) -> String {
    let mut command = host.command(provider, "timeout");
    let line = format!("60 openssl s_client -connect 127.0.0.1:{port} -verify_return_error -ign_eof {more}");
    command.args(line.split_whitespace()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut client = command.spawn().unwrap();
    // A client whose handshake failed reads no more.
    let _ = client.stdin.as_mut().unwrap().write_all(b"GET / HTTP/1.0\r\n\r\n");
    let output = client.wait_with_output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn handshakes_succeed_with_held_keys_at_either_end() {
    let host = host("last");
    let cases = [
        ("rsa", "-tls1_2 -cipher ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        // The premaster secret is decrypted by the held key.
        ("rsa", "-tls1_2 -cipher AES128-GCM-SHA256", "AES128-GCM-SHA256"),
        ("rsa", "-tls1_3", "TLSv1.3"),
        ("ec", "-tls1_2", "ECDHE-ECDSA-"),
        ("ec", "-tls1_3", "TLSv1.3"),
    ];
    for (name, options, says) in cases {
        let credentials = format!("-cert {name}.crt -key {name}.held");
        for asynchronous in ["", "-async"] {
            let port = port();
            let _server = s_server(&host, true, port, &format!("{credentials} {asynchronous}"));
            let told = ask(&host, false, port, &format!("-CAfile {name}.crt {options}"));
            assert!(told.contains("HTTP/1.0 200 ok") && told.contains(says), "{name} {options}: {told}");
        }
        // The client's.
        let port = port();
        let asks = "-Verify 1 -verify_return_error";
        let server = format!("-cert {name}.crt -key {name}.key -CAfile {name}.crt {asks}");
        let _server = s_server(&host, false, port, &server);
        let told = ask(&host, true, port, &format!("-CAfile {name}.crt {options} {credentials}"));
        assert!(told.contains("HTTP/1.0 200 ok") && told.contains(says), "{name} {options}: {told}");
    }
}

/// Through the child context, in which there are several now that know these types of key.
#[test]
fn what_is_not_accelerated_is_not_given_to_a_provider_that_only_holds_keys() {
    for place in PLACES {
        let host = host(place);
        host.write("message", b"a message");
        for key in [
            "RSA -pkeyopt rsa_keygen_bits:1024",
            "RSA -pkeyopt rsa_keygen_bits:2048 -pkeyopt rsa_keygen_primes:3",
            "EC -pkeyopt ec_paramgen_curve:secp256k1",
            "EC -pkeyopt ec_paramgen_curve:brainpoolP384r1",
        ] {
            for provider in BOTH {
                host.good(provider, &format!("genpkey -quiet -algorithm {key} -out key.pem"));
                host.good(!provider, "pkey -in key.pem -check -noout");
                host.good(provider, "dgst -sha256 -sign key.pem -out signature message");
                host.good(provider, "pkey -in key.pem -pubout -out key.pub");
                host.good(!provider, "dgst -sha256 -verify key.pub -signature signature message");
                host.good(provider, "dgst -sha256 -verify key.pub -signature signature message");
            }
        }
    }
}
