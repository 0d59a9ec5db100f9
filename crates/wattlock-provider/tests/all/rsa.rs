//! RSA through the real `openssl` program: what it prints, signs, decrypts and refuses is the same with and without
//! the provider, and each side takes what the other made.
#![allow(clippy::unwrap_used, reason = "a test that meets a failure has failed")]

use crate::common;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Output, Stdio};

use common::reasons;

/// What does the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    /// OpenSSL with the provider preferred.
    Ours,
    /// OpenSSL alone.
    Default,
}

const BOTH: [Side; 2] = [Side::Ours, Side::Default];

/// A folder in which either side works, with outputs as bytes: signatures are no text.
struct Host(common::Host);

impl Host {
    fn new() -> Host {
        Host(common::Host::new())
    }

    fn write(&self, name: &str, content: &[u8]) {
        self.0.write(name, content);
    }

    fn read(&self, name: &str) -> Vec<u8> {
        let content = self.0.read(name);
        assert!(!content.is_empty() || name == "empty", "{name} is empty");
        content
    }

    fn program(&self, side: Side, program: &str) -> Command {
        self.0.command(side == Side::Ours, program)
    }

    fn try_openssl(&self, side: Side, arguments: &str) -> Output {
        self.0.openssl(side == Side::Ours, arguments)
    }

    /// Runs `openssl`, which must succeed; returns what it printed.
    #[track_caller]
    fn openssl(&self, side: Side, arguments: &str) -> Vec<u8> {
        let output = self.try_openssl(side, arguments);
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "openssl {arguments} ({side:?}): {words}");
        output.stdout
    }

    /// Runs it on both sides, which must succeed and print the same; returns that.
    #[track_caller]
    fn same(&self, arguments: &str) -> Vec<u8> {
        let [ours, default] = BOTH.map(|side| self.openssl(side, arguments));
        assert!(ours == default, "openssl {arguments}: other output");
        ours
    }

    /// Runs it on both sides, where it must fail, and insists that every reason the default gives is given by ours.
    #[track_caller]
    fn fails_alike(&self, arguments: &str) {
        let [ours, default] = BOTH.map(|side| self.try_openssl(side, arguments));
        assert!(!ours.status.success() && !default.status.success(), "openssl {arguments}: no failure");
        assert_eq!(ours.status.code(), default.status.code(), "openssl {arguments}");
        let ours = reasons(&ours);
        for reason in reasons(&default) {
            assert!(ours.contains(&reason), "openssl {arguments}: {reason} is not in {ours:?}");
        }
    }
}

/// Keys as `genpkey` makes them: name, bits, primes. The first three sizes of two primes are accelerated.
const KEYS: [(&str, u32, u32); 8] = [
    ("2048", 2048, 2),
    ("3072", 3072, 2),
    ("4096", 4096, 2),
    ("1024", 1024, 2),
    ("1536", 1536, 2),
    ("2048x3", 2048, 3),
    ("4096x4", 4096, 4),
    ("8192x5", 8192, 5),
];

const DIGESTS: [&str; 13] = [
    "md5",
    "sha1",
    "sha224",
    "sha256",
    "sha384",
    "sha512",
    "sha512-224",
    "sha512-256",
    "sha3-224",
    "sha3-256",
    "sha3-384",
    "sha3-512",
    "ripemd160",
];

/// Makes `NAME.pem` and `NAME.pub`; every other key is generated through the provider.
fn make(host: &Host, (name, bits, primes): (&str, u32, u32), side: Side) {
    host.openssl(
        side,
        &format!(
            "genpkey -quiet -algorithm RSA -pkeyopt rsa_keygen_bits:{bits} -pkeyopt rsa_keygen_primes:{primes} -out {name}.pem"
        ),
    );
    host.openssl(Side::Default, &format!("pkey -in {name}.pem -pubout -out {name}.pub"));
}

fn all_keys(host: &Host) {
    for (place, key) in KEYS.into_iter().enumerate() {
        make(host, key, BOTH[place % 2]);
    }
}

/// A host with a message, its SHA-256, and one accelerated key.
fn with_one_key() -> Host {
    let host = Host::new();
    host.write("message", b"attack at dawn");
    host.openssl(Side::Default, "dgst -sha256 -binary -out hash message");
    make(&host, KEYS[0], Side::Default);
    host
}

#[test]
fn the_provider_holds_the_keys() {
    let host = Host::new();
    let text =
        String::from_utf8(host.openssl(Side::Ours, "list -key-managers -signature-algorithms")).unwrap();
    for name in [
        "{ 1.2.840.113549.1.1.1, 2.5.8.1.1, RSA, rsaEncryption } @ wattlock",
        "RSA-PSS, RSASSA-PSS, rsassaPss } @ wattlock",
    ] {
        assert!(text.contains(name), "{name} in {text}");
    }
}

#[test]
fn keys_of_every_size_and_form_print_check_and_sign_alike() {
    let host = with_one_key();
    all_keys(&host);
    for (name, ..) in KEYS {
        let key = format!("{name}.pem");
        assert!(!host.same(&format!("pkey -in {key} -text")).is_empty());
        host.same(&format!("pkey -in {key} -check -noout"));
        host.same(&format!("pkey -in {key} -pubcheck -noout"));
        host.same(&format!("pkey -pubin -in {name}.pub -text -pubcheck"));
        host.same(&format!("rsa -in {key} -traditional"));
        host.same(&format!("rsa -in {key} -modulus -noout"));
        host.same(&format!("pkcs8 -topk8 -nocrypt -in {key}"));
        for side in BOTH {
            host.openssl(side, &format!("pkcs8 -topk8 -in {key} -passout pass:secret -out locked.pem"));
            host.openssl(
                side,
                &format!("rsa -in {key} -traditional -aes128 -passout pass:secret -out old.pem"),
            );
            for locked in ["locked.pem", "old.pem"] {
                let opened = host.same(&format!("pkey -in {locked} -passin pass:secret"));
                assert!(opened == host.read(&key));
            }
        }
        // PKCS#1 v1.5, no padding, X9.31 and no hash at all give one signature.
        for options in ["-pkeyopt digest:sha256", "-pkeyopt digest:sha1 -pkeyopt rsa_padding_mode:x931", ""] {
            let input = if options.contains("sha1") { "short" } else { "hash" };
            host.write("short", &host.read("hash")[..20]);
            let signature = host.same(&format!("pkeyutl -sign -inkey {key} -in {input} {options}"));
            host.write("signature", &signature);
            for command in [
                format!("pkeyutl -verify -inkey {key} -in {input} -sigfile signature {options}"),
                format!("pkeyutl -verify -pubin -inkey {name}.pub -in {input} -sigfile signature {options}"),
                format!("pkeyutl -verifyrecover -pubin -inkey {name}.pub -in signature {options}"),
            ] {
                assert!(!host.same(&command).is_empty(), "{command}");
            }
        }
        let mut whole = vec![7; host.read("signature").len()];
        whole[0] = 0;
        host.write("whole", &whole);
        let bare = host.same(&format!("rsautl -sign -raw -inkey {key} -in whole"));
        assert_eq!(bare.len(), whole.len());
        for (options, side) in
            [("", 0), ("-pkeyopt rsa_pss_saltlen:digest", 1), ("-pkeyopt rsa_pss_saltlen:max", 0)]
        {
            for (by, to) in [(side, 1 - side), (1 - side, side)] {
                let options = format!("-pkeyopt rsa_padding_mode:pss -pkeyopt digest:sha256 {options}");
                host.openssl(
                    BOTH[by],
                    &format!("pkeyutl -sign -inkey {key} -in hash -out signature {options}"),
                );
                host.openssl(
                    BOTH[to],
                    &format!(
                        "pkeyutl -verify -pubin -inkey {name}.pub -in hash -sigfile signature {options}"
                    ),
                );
            }
        }
        // Decryption of what the other encrypted.
        for options in ["", "-pkeyopt rsa_padding_mode:oaep"] {
            for (by, to) in [(0, 1), (1, 0), (0, 0)] {
                host.openssl(
                    BOTH[by],
                    &format!("pkeyutl -encrypt -pubin -inkey {name}.pub -in message -out sealed {options}"),
                );
                let plain =
                    host.openssl(BOTH[to], &format!("pkeyutl -decrypt -inkey {key} -in sealed {options}"));
                assert_eq!(plain, host.read("message"), "{name} {options}");
            }
        }
        let raw =
            host.same(&format!("pkeyutl -decrypt -inkey {key} -in whole -pkeyopt rsa_padding_mode:none"));
        assert_eq!(raw.len(), whole.len());
    }
}

#[test]
fn a_two_prime_key_larger_than_any_accelerated_one_works() {
    let host = with_one_key();
    make(&host, ("large", 6144, 2), Side::Default);
    host.same("pkey -in large.pem -text");
    assert_eq!(host.same("dgst -sha256 -sign large.pem message").len(), 768);
}

#[test]
fn every_digest_signs_alike() {
    let host = with_one_key();
    for digest in DIGESTS {
        let signature = host.same(&format!("dgst -{digest} -sign 2048.pem message"));
        assert_eq!(signature.len(), 256, "{digest}");
        host.write("signature", &signature);
        host.same(&format!("dgst -{digest} -verify 2048.pub -signature signature message"));
        for (by, to) in [(0, 1), (1, 0)] {
            let pss = format!("-{digest} -sigopt rsa_padding_mode:pss");
            host.openssl(BOTH[by], &format!("dgst {pss} -sign 2048.pem -out pss message"));
            host.openssl(BOTH[to], &format!("dgst {pss} -verify 2048.pub -signature pss message"));
        }
    }
}

#[test]
fn salts_and_masks_are_as_asked() {
    let host = with_one_key();
    for salt in ["digest", "max", "auto", "-1", "-2", "-3", "0", "1", "20", "32", "222"] {
        for mask in ["", "-sigopt rsa_mgf1_md:sha512"] {
            let pss = format!("-sha256 -sigopt rsa_padding_mode:pss {mask}");
            // The checker insists on the length that was asked for, not on any.
            let exact = match salt {
                "max" | "auto" | "-2" | "-3" => "222",
                "digest" | "-1" => "32",
                salt => salt,
            };
            for (by, to) in [(0, 1), (1, 0)] {
                host.openssl(
                    BOTH[by],
                    &format!("dgst {pss} -sigopt rsa_pss_saltlen:{salt} -sign 2048.pem -out pss message"),
                );
                host.openssl(
                    BOTH[to],
                    &format!(
                        "dgst {pss} -sigopt rsa_pss_saltlen:{exact} -verify 2048.pub -signature pss message"
                    ),
                );
            }
        }
    }
    host.fails_alike(
        "dgst -sha256 -sigopt rsa_padding_mode:pss -sigopt rsa_pss_saltlen:223 -sign 2048.pem -out pss message",
    );
}

#[test]
fn a_changed_signature_or_message_is_refused_alike() {
    let host = with_one_key();
    for options in ["", "-sigopt rsa_padding_mode:pss"] {
        host.openssl(Side::Ours, &format!("dgst -sha256 {options} -sign 2048.pem -out signature message"));
        host.write("other", b"attack at dusk");
        let mut bent = host.read("signature");
        bent[200] ^= 1;
        host.write("bent", &bent);
        host.fails_alike(&format!("dgst -sha256 {options} -verify 2048.pub -signature signature other"));
        host.fails_alike(&format!("dgst -sha256 {options} -verify 2048.pub -signature bent message"));
    }
}

#[test]
fn what_cannot_be_done_fails_for_the_same_reason() {
    let host = with_one_key();
    host.write("long", &[0xff; 256]);
    host.write("much", &[1; 300]);
    make(&host, ("512", 512, 2), Side::Default);
    for arguments in [
        "pkeyutl -sign -inkey 2048.pem -in message -pkeyopt digest:sha256",
        "rsautl -sign -inkey 2048.pem -in much",
        "rsautl -sign -raw -inkey 2048.pem -in long",
        "pkeyutl -sign -inkey 2048.pem -in hash -pkeyopt rsa_padding_mode:none -pkeyopt digest:sha256",
        "pkeyutl -sign -inkey 2048.pem -in hash -pkeyopt rsa_pss_saltlen:20",
        "pkeyutl -sign -inkey 2048.pem -in hash -pkeyopt digest:shake128",
        "pkeyutl -sign -inkey 2048.pem -in hash -pkeyopt digest:nonsense",
        "pkeyutl -decrypt -inkey 2048.pem -in much",
        "pkeyutl -decrypt -inkey 2048.pem -in long",
        "pkeyutl -decrypt -inkey 2048.pem -in long -pkeyopt rsa_padding_mode:oaep",
        "pkeyutl -decrypt -inkey 2048.pem -in long -pkeyopt rsa_padding_mode:pss",
        "pkeyutl -encrypt -pubin -inkey 2048.pub -in much",
        "pkeyutl -encrypt -pubin -inkey 2048.pub -in long -pkeyopt rsa_padding_mode:oaep",
        "dgst -sha512 -sign 512.pem message",
        "genpkey -quiet -algorithm RSA -pkeyopt rsa_keygen_bits:300",
        "genpkey -quiet -algorithm RSA -pkeyopt rsa_keygen_primes:9",
        "genpkey -quiet -algorithm RSA -pkeyopt rsa_keygen_pubexp:2",
    ] {
        host.fails_alike(arguments);
    }
    // A forged OAEP ciphertext.
    host.openssl(
        Side::Default,
        "pkeyutl -encrypt -pubin -inkey 2048.pub -in message -out sealed -pkeyopt rsa_padding_mode:oaep",
    );
    host.fails_alike("pkeyutl -decrypt -inkey 2048.pem -in sealed -pkeyopt rsa_padding_mode:oaep -pkeyopt rsa_oaep_md:sha256");
}

#[test]
fn oaep_takes_labels_hashes_and_masks() {
    let host = with_one_key();
    host.write("empty", b"");
    for digest in ["sha1", "sha256", "sha512", "sha3-256", "ripemd160"] {
        for more in [
            "",
            "-pkeyopt rsa_oaep_label:00ff10",
            "-pkeyopt rsa_mgf1_md:sha1",
            "-pkeyopt rsa_mgf1_md:sha384 -pkeyopt rsa_oaep_label:7f",
        ] {
            let options = format!("-pkeyopt rsa_padding_mode:oaep -pkeyopt rsa_oaep_md:{digest} {more}");
            for input in ["message", "empty"] {
                for (by, to) in [(0, 1), (1, 0)] {
                    let sealed = host.openssl(
                        BOTH[by],
                        &format!("pkeyutl -encrypt -pubin -inkey 2048.pub -in {input} {options}"),
                    );
                    host.write("sealed", &sealed);
                    let plain = host
                        .openssl(BOTH[to], &format!("pkeyutl -decrypt -inkey 2048.pem -in sealed {options}"));
                    assert_eq!(plain, host.read(input), "{options}");
                }
            }
            if more.contains("label") {
                host.fails_alike(&format!("pkeyutl -decrypt -inkey 2048.pem -in sealed -pkeyopt rsa_padding_mode:oaep -pkeyopt rsa_oaep_md:{digest} -pkeyopt rsa_oaep_label:00"));
            }
        }
    }
}

/// Synthetic messages of OpenSSL 4.0.0 (through pyca/cryptography 48.0.0) for ciphertexts of one byte repeated: file,
/// bytes, byte, SHA-256 of what `decrypt` gives with PKCS#1 v1.5 padding.
const SYNTHETIC: [(&str, usize, u8, usize, &str); 4] = [
    ("2048", 256, 1, 197, "bbe02a43bb4b348d5f4be2ce86589b41b5ee80da6dfe623e5142dbd7a7f75885"),
    ("2048", 256, 5, 54, "41170965c2b78e09c5171fcb1f49295a38a37652ed1641c9becbbf3ce1e7fbe7"),
    ("1024", 128, 1, 23, "3de13642df348cac16a530ed9f5c1e10cba12a2eb5e8697ae7f655a2acc0c35f"),
    ("1024", 128, 5, 54, "05425bb632abe5ff1e4b965752e9f7dd06c812d23870516d4b33a07b5bef8677"),
];

#[test]
fn a_forged_ciphertext_yields_the_message_that_newer_versions_of_openssl_yield() {
    let host = Host::new();
    host.write("2048.pem", include_bytes!("../rsa/2048.pem"));
    host.write("1024.pem", include_bytes!("../rsa/1024.pem"));
    for (key, bytes, byte, len, hash) in SYNTHETIC {
        host.write("forged", &vec![byte; bytes]);
        let message = host.openssl(Side::Ours, &format!("pkeyutl -decrypt -inkey {key}.pem -in forged"));
        assert_eq!(message.len(), len);
        host.write("synthetic", &message);
        let digest = String::from_utf8(host.openssl(Side::Default, "dgst -sha256 -r synthetic")).unwrap();
        assert!(digest.starts_with(hash), "{key} {byte}: {digest}");
    }
}

/// A program that wants to be told of a forgery says so, by the parameter's own name or, from OpenSSL 3.2 on, by the control
/// string that `pkeyutl` documents.
#[test]
fn implicit_rejection_is_switched_off_and_on_by_control_strings() {
    let host = with_one_key();
    let (key, bytes, byte, ..) = SYNTHETIC[0];
    assert_eq!(key, "2048");
    host.write("2048.pem", include_bytes!("../rsa/2048.pem"));
    host.write("forged", &vec![byte; bytes]);
    let decrypt = |file: &str, option: &str| format!("pkeyutl -decrypt -inkey 2048.pem -in {file} {option}");
    let usual = host.openssl(Side::Ours, &decrypt("forged", ""));
    host.openssl(Side::Default, "pkeyutl -encrypt -inkey 2048.pem -in message -out sealed");
    let known =
        host.try_openssl(Side::Default, &decrypt("sealed", "-pkeyopt rsa_pkcs1_implicit_rejection:1"));
    let names: &[&str] = match known.status.success() {
        true => &["implicit-rejection", "rsa_pkcs1_implicit_rejection"],
        false => &["implicit-rejection"],
    };
    for name in names {
        let with = |file: &str, value: &str| decrypt(file, &format!("-pkeyopt {name}:{value}"));
        assert_eq!(host.openssl(Side::Ours, &with("forged", "1")), usual, "{name}");
        for value in ["0", "1"] {
            let message = host.openssl(Side::Ours, &with("sealed", value));
            assert_eq!(message, host.read("message"), "{name}:{value}");
        }
        let told = host.try_openssl(Side::Ours, &with("forged", "0"));
        assert!(!told.status.success() && told.stdout.is_empty(), "{name}: a forgery passed");
        if names.len() > 1 {
            host.fails_alike(&with("forged", "0"));
            host.fails_alike(&with("forged", "nonsense"));
        }
    }
}

#[test]
fn restricted_pss_keys_keep_their_restrictions() {
    let host = with_one_key();
    host.openssl(Side::Ours, "genpkey -quiet -algorithm RSA-PSS -pkeyopt rsa_keygen_bits:2048 -out free.pem");
    let strict = "-pkeyopt rsa_pss_keygen_md:sha256 -pkeyopt rsa_pss_keygen_mgf1_md:sha256 -pkeyopt rsa_pss_keygen_saltlen:32";
    for (side, name) in [(Side::Ours, "strict"), (Side::Default, "strict2")] {
        host.openssl(
            side,
            &format!(
                "genpkey -quiet -algorithm RSA-PSS -pkeyopt rsa_keygen_bits:2048 {strict} -out {name}.pem"
            ),
        );
    }
    for name in ["free", "strict", "strict2"] {
        host.same(&format!("pkey -in {name}.pem -text"));
        host.same(&format!("pkey -in {name}.pem -check -noout"));
        host.openssl(Side::Default, &format!("pkey -in {name}.pem -pubout -out {name}.pub"));
        host.same(&format!("pkey -pubin -in {name}.pub -text"));
        for options in ["", "-sigopt rsa_pss_saltlen:32", "-sigopt rsa_pss_saltlen:max"] {
            for (by, to) in [(0, 1), (1, 0)] {
                host.openssl(BOTH[by], &format!("dgst -sha256 {options} -sign {name}.pem -out pss message"));
                host.openssl(
                    BOTH[to],
                    &format!("dgst -sha256 {options} -verify {name}.pub -signature pss message"),
                );
            }
        }
        host.fails_alike(&format!("dgst -sha256 -sigopt rsa_padding_mode:pkcs1 -sign {name}.pem message"));
        host.fails_alike(&format!("pkeyutl -decrypt -inkey {name}.pem -in message"));
    }
    for options in
        ["-sha512", "-sha1", "-sha256 -sigopt rsa_pss_saltlen:20", "-sha256 -sigopt rsa_mgf1_md:sha1"]
    {
        host.fails_alike(&format!("dgst {options} -sign strict.pem message"));
    }
}

#[test]
fn certificates_and_requests_are_signed_and_checked() {
    let host = with_one_key();
    host.openssl(Side::Ours, "genpkey -quiet -algorithm RSA-PSS -pkeyopt rsa_keygen_bits:2048 -out pss.pem");
    // The same bytes where a signature is a function of its input.
    host.same("req -new -key 2048.pem -subj /CN=wattlock -sha384");
    for (key, options) in
        [("2048", ""), ("2048", "-sigopt rsa_padding_mode:pss -sigopt rsa_pss_saltlen:-1"), ("pss", "")]
    {
        for (by, to) in [(0, 1), (1, 0)] {
            host.openssl(
                BOTH[by],
                &format!("req -x509 -new -key {key}.pem -subj /CN=wattlock -days 2 {options} -out root.pem"),
            );
            host.openssl(
                BOTH[by],
                &format!("req -new -key {key}.pem -subj /CN=leaf {options} -out leaf.csr"),
            );
            host.openssl(BOTH[to], "req -in leaf.csr -verify -noout");
            host.openssl(BOTH[by], &format!("x509 -req -in leaf.csr -CA root.pem -CAkey {key}.pem -CAcreateserial {options} -out leaf.pem"));
            host.openssl(BOTH[to], "verify -CAfile root.pem leaf.pem");
            host.same("x509 -in root.pem -text");
        }
    }
}

#[test]
fn messages_are_signed_and_enveloped() {
    let host = with_one_key();
    host.openssl(Side::Ours, "req -x509 -new -key 2048.pem -subj /CN=wattlock -days 2 -out root.pem");
    for (by, to) in [(0, 1), (1, 0)] {
        for options in ["", "-keyopt rsa_padding_mode:pss"] {
            host.openssl(BOTH[by], &format!("cms -sign -nodetach -binary -in message -signer root.pem -inkey 2048.pem {options} -outform DER -out signed"));
            let content =
                host.openssl(BOTH[to], "cms -verify -binary -inform DER -in signed -CAfile root.pem");
            assert_eq!(content, host.read("message"));
        }
        for options in ["", "-keyopt rsa_padding_mode:oaep -keyopt rsa_oaep_md:sha256"] {
            host.openssl(BOTH[by], &format!("cms -encrypt -binary -in message -aes128 -outform DER -out sealed -recip root.pem {options}"));
            let content = host.openssl(
                BOTH[to],
                "cms -decrypt -binary -inform DER -in sealed -recip root.pem -inkey 2048.pem",
            );
            assert_eq!(content, host.read("message"));
        }
    }
}

/// A server for one connection, and the port it chose.
struct Server {
    process: Child,
    port: u16,
}

impl Server {
    fn start(host: &Host, side: Side, options: &str) -> Server {
        let mut command = host.program(side, "openssl");
        command
            .args("s_server -accept 127.0.0.1:0 -naccept 1 -www".split(' '))
            .args(options.split_whitespace());
        let mut process =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let port = loop {
            let line = lines.next().expect("the server says where it listens").unwrap();
            if let Some(address) = line.strip_prefix("ACCEPT ") {
                break address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
            }
        };
        // Whatever else it says must not fill the pipe.
        std::thread::spawn(move || lines.count());
        Server { process, port }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What the client printed, having got the server's page.
fn handshake(
    host: &Host,
    (server, server_options): (Side, &str),
    (client, client_options): (Side, &str),
) -> String {
    let server = Server::start(host, server, server_options);
    let mut command = host.program(client, "timeout");
    command.args(["60", "openssl", "s_client", "-CAfile", "root.pem", "-verify_return_error"]);
    command.arg("-connect").arg(format!("127.0.0.1:{}", server.port)).args(client_options.split_whitespace());
    let mut process =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut input = process.stdin.take().unwrap();
    input.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut words = String::new();
    let mut output = BufReader::new(process.stdout.take().unwrap());
    let mut line = String::new();
    while !words.contains("HTTP/1.0 200 ok") && output.read_line(&mut line).unwrap() > 0 {
        words.push_str(&std::mem::take(&mut line));
    }
    drop(input);
    output.read_to_string(&mut words).unwrap();
    let _ = process.wait();
    assert!(words.contains("HTTP/1.0 200 ok"), "{server_options} / {client_options}: {words}");
    words
}

#[test]
fn handshakes_succeed_with_either_side_ours() {
    let host = with_one_key();
    host.openssl(Side::Ours, "genpkey -quiet -algorithm RSA-PSS -pkeyopt rsa_keygen_bits:2048 -out pss.pem");
    for key in ["2048", "pss"] {
        host.openssl(
            Side::Ours,
            &format!("req -x509 -new -key {key}.pem -subj /CN={key} -days 2 -out {key}.crt"),
        );
    }
    host.write("root.pem", &[host.read("2048.crt"), host.read("pss.crt")].concat());
    let cases = [
        ("2048", "-tls1_2 -cipher AES128-SHA256", "AES128-SHA256"),
        (
            "2048",
            "-tls1_2 -cipher ECDHE-RSA-AES128-GCM-SHA256 -sigalgs RSA+SHA256",
            "ECDHE-RSA-AES128-GCM-SHA256",
        ),
        ("pss", "-tls1_2", "TLSv1.2"),
        ("2048", "-tls1_3", "TLSv1.3"),
        ("pss", "-tls1_3", "TLSv1.3"),
    ];
    for (key, client, says) in cases {
        for asynchronous in ["", "-async"] {
            let options = format!("-cert {key}.crt -key {key}.pem {asynchronous}");
            let words = handshake(&host, (Side::Ours, &options), (Side::Default, client));
            assert!(words.contains(says), "{words}");
        }
        // The other way round, with a certificate of the client's.
        let options =
            format!("-cert {key}.crt -key {key}.pem -Verify 1 -CAfile root.pem -verify_return_error");
        let client = format!("{client} -cert {key}.crt -key {key}.pem");
        handshake(&host, (Side::Default, &options), (Side::Ours, &client));
    }
}

/// From what only security level 0 allows to what only OpenSSL computes, and keys of more than two primes.
#[test]
fn certificates_of_every_size_serve_handshakes() {
    let host = Host::new();
    // Takes half a minute to generate.
    host.write("8192.pem", include_bytes!("../rsa/8192.pem"));
    let keys = [
        ("1024", 1024, 2),
        ("3072", 3072, 2),
        ("4096", 4096, 2),
        ("8192", 8192, 2),
        ("2048x3", 2048, 3),
        ("8192x5", 8192, 5),
    ];
    for (place, key) in keys.into_iter().enumerate() {
        let name = key.0;
        if name != "8192" {
            make(&host, key, BOTH[place % 2]);
        }
        host.openssl(
            Side::Ours,
            &format!("req -x509 -new -key {name}.pem -subj /CN={name} -days 2 -out {name}.crt"),
        );
        host.write("root.pem", &host.read(&format!("{name}.crt")));
        let credentials = format!("-cert {name}.crt -key {name}.pem");
        for (version, cipher, says) in [
            ("-tls1_2", "AES256-GCM-SHA384", "AES256-GCM-SHA384"),
            ("-tls1_2", "ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
            ("-tls1_3", "DEFAULT", "TLSv1.3"),
        ] {
            let level = "@SECLEVEL=0";
            let client = format!("{version} -cipher {cipher}:{level}");
            let server = format!("{credentials} -cipher ALL:{level}");
            let ours = (Side::Ours, &*format!("{server} -async"));
            let words = handshake(&host, ours, (Side::Default, &client));
            assert!(words.contains(says), "{name}: {words}");
            // The other way round, with a certificate of the client's.
            let asking = format!("{server} -Verify 1 -CAfile root.pem -verify_return_error");
            handshake(&host, (Side::Default, &asking), (Side::Ours, &format!("{client} {credentials}")));
        }
    }
}

#[test]
fn an_application_sees_no_difference() {
    let host = with_one_key();
    make(&host, ("1024", 1024, 2), Side::Default);
    host.write("api.py", include_bytes!("../rsa/api.py"));
    for keys in [["2048.pem", "1024.pem"], ["1024.pem", "2048.pem"]] {
        let [ours, default] = BOTH.map(|side| {
            let output = host.program(side, "python3").arg("api.py").args(keys).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let holder = String::from_utf8(output.stderr).unwrap();
            assert_eq!(holder.trim(), if side == Side::Ours { "wattlock" } else { "default" });
            String::from_utf8(output.stdout).unwrap()
        });
        assert_eq!(ours, default);
        assert!(ours.lines().count() > 100);
    }
}

#[test]
fn a_key_of_four_primes_is_valid_however_it_came() {
    let host = Host::new();
    host.write("primes.py", include_bytes!("../rsa/primes.py"));
    let [ours, default] = BOTH.map(|side| {
        let output = host.program(side, "python3").arg("primes.py").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let holder = String::from_utf8(output.stderr).unwrap();
        let expected = if side == Side::Ours { "wattlock" } else { "default" };
        for name in ["generated", "copy", "taken"] {
            assert!(holder.contains(&format!("{name} {expected}\n")), "{name}: {holder}");
        }
        String::from_utf8(output.stdout).unwrap()
    });
    for name in ["generated", "copy", "read", "taken", "rewritten"] {
        let right = format!(
            "{name} check 1 public_check 1 private_check 1 pairwise_check 1 public_check_quick 1\n\
             {name} factor 0 1 2 3\n{name} exponent 0 1 2 3\n{name} coefficient 0 1 2\n{name} equal 1\n"
        );
        assert!(ours.contains(&right), "{ours}");
        // OpenSSL 3.5 alone reverses the last two primes of the key that it takes from parameters.
        assert!(default.contains(&right) || ["taken", "rewritten"].contains(&name), "{default}");
    }
}
