//! Keys of types EC and X25519 against OpenSSL's own, in the real program: the same output, the same verdicts, and
//! either's results taken by the other.
#![allow(clippy::unwrap_used, reason = "a test that meets a failure has failed")]

use crate::common;

use std::process::Stdio;

use common::{Host, port, reasons};

const BOTH: [bool; 2] = [true, false];

/// Names of every curve but SM2, which is a key type of its own.
fn curves(host: &Host) -> Vec<String> {
    let list = host.good(false, "ecparam -list_curves");
    let names = list.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim().to_owned());
    names.filter(|name| name != "SM2").collect()
}

/// Signs and verifies, and agrees on a secret, crosswise.
fn works_both_ways(host: &Host, curve: &str) {
    for key in ["one", "two"] {
        host.good(false, &format!("pkey -in {key}.pem -pubout -out {key}.pub"));
    }
    // The Oakley curves' order is not what signing needs, and OpenSSL says so.
    if !host.openssl(false, "dgst -sha256 -sign one.pem -out signature message").status.success() {
        assert!(curve.starts_with("Oakley"), "{curve}");
        assert!(!host.openssl(true, "dgst -sha256 -sign one.pem -out signature message").status.success());
        return agree_both_ways(host, curve);
    }
    for signer in BOTH {
        host.good(signer, "dgst -sha256 -sign one.pem -out signature message");
        for verifier in BOTH {
            host.good(verifier, "dgst -sha256 -verify one.pub -signature signature message");
        }
    }
    agree_both_ways(host, curve);
}

fn agree_both_ways(host: &Host, curve: &str) {
    let mut secrets = Vec::new();
    for provider in BOTH {
        host.good(provider, "pkeyutl -derive -inkey one.pem -peerkey two.pub -out secret");
        secrets.push(host.read("secret"));
        host.good(provider, "pkeyutl -derive -inkey two.pem -peerkey one.pub -out secret");
        secrets.push(host.read("secret"));
    }
    assert!(!secrets[0].is_empty() && secrets.iter().all(|secret| *secret == secrets[0]), "{curve}");
}

#[test]
fn every_curve_generates_checks_signs_and_agrees_as_without_the_provider() {
    let host = Host::new();
    host.write("message", b"message");
    let curves = curves(&host);
    assert!(curves.len() > 20, "{curves:?}");
    let mut agreeing = 0;
    for curve in &curves {
        // OpenSSL itself may refuse a curve (some WTLS and Oakley ones have no signature or no usable cofactor).
        let name = format!("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:{curve}");
        let (with, without) = (
            host.openssl(true, &format!("{name} -out one.pem")),
            host.openssl(false, &format!("{name} -out two.pem")),
        );
        assert_eq!(with.status.success(), without.status.success(), "{curve}");
        if !without.status.success() {
            continue;
        }
        for key in ["one", "two"] {
            host.same(&format!("pkey -in {key}.pem -text -noout -check"));
            host.same(&format!("pkey -in {key}.pem -text_pub -noout -pubcheck"));
            host.same(&format!("pkey -in {key}.pem"));
        }
        host.good(false, "pkey -in two.pem -pubout -out two.pub");
        let derive = "pkeyutl -derive -inkey one.pem -peerkey two.pub -out secret";
        let agrees = host.openssl(false, derive);
        agreeing += usize::from(agrees.status.success());
        if agrees.status.success() {
            works_both_ways(&host, curve);
        } else {
            let ours = host.openssl(true, derive);
            assert_eq!(
                (ours.status.code(), reasons(&ours)),
                (agrees.status.code(), reasons(&agrees)),
                "{curve}"
            );
        }
    }
    assert!(agreeing > curves.len() / 2);
}

#[test]
fn every_format_reads_and_writes_the_same() {
    let host = Host::new();
    host.write("message", b"message");
    for curve in ["P-256", "P-384", "P-521", "brainpoolP256r1", "sect283k1"] {
        for provider in BOTH {
            host.good(
                provider,
                &format!("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:{curve} -out one.pem"),
            );
            host.good(
                provider,
                &format!("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:{curve} -out two.pem"),
            );
            host.good(provider, "pkey -in two.pem -pubout -out two.pub");
            for options in [
                "",
                "-conv_form compressed",
                "-conv_form hybrid",
                "-param_enc explicit",
                "-param_enc explicit -conv_form compressed",
                "-no_public",
            ] {
                host.same(&format!("ec -in one.pem {options}"));
                host.same(&format!("ec -in one.pem {options} -text -noout"));
                for form in ["PEM", "DER"] {
                    host.good(provider, &format!("ec -in one.pem {options} -outform {form} -out changed"));
                    host.same(&format!("ec -in changed -inform {form} -text"));
                    host.same(&format!("pkey -in changed -inform {form} -check -text"));
                    host.same(&format!("pkey -in changed -inform {form} -pubout"));
                    let secret = host.same(&format!(
                        "pkeyutl -derive -inkey changed -keyform {form} -peerkey two.pub -hexdump"
                    ));
                    assert!(!secret.is_empty(), "{curve} {options}");
                }
                host.good(!provider, "dgst -sha256 -sign changed -keyform DER -out signature message");
                host.good(provider, "dgst -sha256 -prverify one.pem -signature signature message");
            }
            host.same("pkcs8 -topk8 -nocrypt -in one.pem");
        }
        host.same(&format!("ecparam -name {curve} -text"));
        host.same(&format!("ecparam -name {curve} -param_enc explicit -text -check"));
        host.good(true, &format!("ecparam -name {curve} -param_enc explicit -out parameters"));
        for provider in BOTH {
            host.good(provider, "genpkey -paramfile parameters -out three.pem");
            host.same("pkey -in three.pem -check -text");
        }
    }
}

/// A public key file for a point on P-256 (RFC 5480), however wrong.
fn public_file(point: &[u8]) -> Vec<u8> {
    let algorithm =
        [0x30, 0x13, 6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
    let body = [&algorithm[..], &[3, point.len() as u8 + 1, 0], point].concat();
    [&[0x30, body.len() as u8][..], &body].concat()
}

#[test]
fn wrong_points_are_refused_as_without_the_provider() {
    let host = Host::new();
    host.good(false, "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out own.pem");
    host.good(false, "pkey -in own.pem -pubout -outform DER -out own.der");
    let good = host.read("own.der");
    let good = &good[good.len() - 65..];
    let changed = |at: usize, bit: u8| {
        let mut point = good.to_vec();
        point[at] ^= bit;
        point
    };
    let odd = good[64] & 1;
    let prime = [
        0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff,
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    ];
    let with_first = |first: u8, len: usize| [&[first], &good[1..len]].concat();
    let cases: Vec<(&str, bool, Vec<u8>)> = vec![
        ("as it is", true, good.to_vec()),
        ("compressed", true, with_first(2 + odd, 33)),
        ("hybrid", true, with_first(6 + odd, 65)),
        ("hybrid with the other root's mark", false, with_first(7 - odd, 65)),
        ("off the curve", false, changed(64, 1)),
        ("off the curve in x", false, changed(1, 1)),
        ("infinity", false, vec![0]),
        ("nothing", false, vec![]),
        ("too short", false, good[..64].to_vec()),
        ("too long", false, [good, &[0]].concat()),
        ("of an unknown form", false, with_first(5, 65)),
        ("with a coordinate as large as the prime", false, [&[4], &prime[..], &good[33..]].concat()),
        ("zeros", false, [&[4][..], &[0; 64]].concat()),
    ];
    for (what, right, point) in &cases {
        host.write("peer.der", &public_file(point));
        let run = |provider| {
            let output = host
                .openssl(provider, "pkeyutl -derive -inkey own.pem -peerkey peer.der -peerform DER -hexdump");
            (output.status.code(), output.stdout.clone(), output.stderr.is_empty())
        };
        let ours = run(true);
        assert_eq!(ours, run(false), "{what}");
        assert_eq!(ours.0 == Some(0), *right, "{what}");
        host.same("pkey -pubin -in peer.der -inform DER -pubcheck -text");
    }
}

#[test]
fn keys_whose_halves_do_not_belong_together_are_found_out() {
    let host = Host::new();
    for curve in ["P-256", "P-384"] {
        host.good(false, &format!("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:{curve} -out one.pem"));
        host.good(false, &format!("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:{curve} -out two.pem"));
        host.good(false, "pkey -in one.pem -outform DER -out one.der");
        host.good(false, "pkey -in two.pem -outform DER -out two.der");
        let (mut mixed, two) = (host.read("one.der"), host.read("two.der"));
        // Both encodings end with the public point.
        let len = if curve == "P-256" { 64 } else { 96 };
        let at = mixed.len() - len;
        mixed[at..].copy_from_slice(&two[two.len() - len..]);
        host.write("mixed.der", &mixed);
        let text = host.same("pkey -in mixed.der -inform DER -check -noout");
        assert!(!text.contains("is valid"), "{text}");
        // OpenSSL signs with such a key all the same.
        host.write("message", b"message");
        host.good(true, "dgst -sha256 -sign mixed.der -keyform DER -out signature message");
        host.good(false, "dgst -sha256 -prverify one.pem -signature signature message");
    }
}

#[test]
fn forged_and_malformed_signatures_are_refused() {
    let host = Host::new();
    host.write("message", b"message");
    for curve in ["P-256", "P-384"] {
        host.good(true, &format!("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:{curve} -out one.pem"));
        for digest in ["sha1", "sha256", "sha384", "sha512", "sha3-256", "md5", "sm3", "ripemd160"] {
            host.good(true, &format!("dgst -{digest} -sign one.pem -out signature message"));
            host.good(false, &format!("dgst -{digest} -prverify one.pem -signature signature message"));
            host.good(true, &format!("dgst -{digest} -prverify one.pem -signature signature message"));
        }
        host.good(true, "dgst -sha256 -sign one.pem -out signature message");
        let good = host.read("signature");
        for at in [0, 1, 3, 4, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            host.write("bad", &bad);
            let text = host.same("dgst -sha256 -prverify one.pem -signature bad message");
            assert!(!text.contains("OK"), "{at}");
        }
        host.write("bad", &[&good[..], &[0]].concat());
        host.same("dgst -sha256 -prverify one.pem -signature bad message");
    }
}

#[test]
fn raw_digests_of_any_length_are_signed() {
    let host = Host::new();
    host.good(true, "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out one.pem");
    for len in [1, 16, 19, 20, 31, 32, 33, 48, 64] {
        host.write("digest", &vec![7; len]);
        host.good(true, "pkeyutl -sign -inkey one.pem -in digest -out signature");
        for provider in BOTH {
            host.good(provider, "pkeyutl -verify -inkey one.pem -in digest -sigfile signature");
        }
    }
}

#[test]
fn repeatable_nonces_give_the_same_signature() {
    let host = Host::new();
    host.write("digest", &[7; 32]);
    for curve in ["P-256", "P-384", "P-521"] {
        host.good(true, &format!("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:{curve} -out one.pem"));
        // Where OpenSSL has them (3.2 and later); before, both refuse.
        let options = "-pkeyopt digest:SHA256 -pkeyopt nonce-type:1";
        for round in ["first", "second"] {
            for provider in BOTH {
                let command =
                    format!("pkeyutl -sign -inkey one.pem -in digest -out {round}{provider} {options}");
                let repeatable = host.openssl(provider, &command).status.success();
                assert_eq!(repeatable, !host.read(&format!("{round}{provider}")).is_empty());
            }
        }
        let all = ["firsttrue", "firstfalse", "secondtrue", "secondfalse"].map(|name| host.read(name));
        assert!(all.iter().all(|one| *one == all[0]), "{curve}");
        let sign =
            "pkeyutl -sign -inkey one.pem -rawin -digest sha256 -in digest -hexdump -pkeyopt nonce-type:1";
        host.same(sign);
    }
}

#[test]
fn cofactor_mode_and_key_derivation_give_the_same_bytes() {
    let host = Host::new();
    for curve in ["P-256", "P-384", "P-521", "sect283r1", "brainpoolP384r1"] {
        for key in ["one", "two"] {
            host.good(
                true,
                &format!("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:{curve} -out {key}.pem"),
            );
        }
        host.good(true, "pkey -in two.pem -pubout -out two.pub");
        for options in [
            "-pkeyopt ecdh_cofactor_mode:1",
            "-pkeyopt ecdh_cofactor_mode:0",
            "-pkeyopt kdf-type:X963KDF -pkeyopt kdf-digest:SHA256 -pkeyopt kdf-outlen:77",
            "-pkeyopt kdf-type:X963KDF -pkeyopt kdf-digest:SHA1 -pkeyopt kdf-outlen:20 -pkeyopt hexkdf-ukm:0011",
        ] {
            let text =
                host.same(&format!("pkeyutl -derive -inkey one.pem -peerkey two.pub -hexdump {options}"));
            assert!(!text.is_empty(), "{curve} {options}");
        }
    }
    host.good(true, "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out one.pem");
    host.good(true, "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-384 -out two.pem");
    host.good(true, "pkey -in two.pem -pubout -out two.pub");
    assert!(
        host.same("pkeyutl -derive -inkey one.pem -peerkey two.pub -hexdump").is_empty(),
        "other curves do not mix"
    );
}

#[test]
fn x25519_agrees_and_refuses_small_orders() {
    let host = Host::new();
    host.good(true, "genpkey -algorithm X25519 -out one.pem");
    host.good(false, "genpkey -algorithm X25519 -out two.pem");
    for key in ["one", "two"] {
        host.same(&format!("pkey -in {key}.pem -text -check"));
        host.same(&format!("pkey -in {key}.pem -pubout -text"));
        host.good(true, &format!("pkey -in {key}.pem -pubout -out {key}.pub"));
    }
    let secret = host.same("pkeyutl -derive -inkey one.pem -peerkey two.pub -hexdump");
    assert_eq!(secret, host.same("pkeyutl -derive -inkey two.pem -peerkey one.pub -hexdump"));
    // RFC 7748 section 6.1: zero and one are of small order; the third is of order 8.
    let order_eight = [
        0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3, 0xfa, 0xf1, 0x9f, 0xc4, 0x6a, 0xda,
        0x09, 0x8d, 0xeb, 0x9c, 0x32, 0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16, 0x5f, 0x49, 0xb8, 0x00,
    ];
    let one = std::array::from_fn(|at| u8::from(at == 0));
    for point in [[0; 32], one, order_eight] {
        let head = [0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x6e, 3, 0x21, 0];
        host.write("peer.der", &[&head[..], &point].concat());
        let run = |provider| {
            host.openssl(provider, "pkeyutl -derive -inkey one.pem -peerkey peer.der -peerform DER")
        };
        let (ours, theirs) = (run(true), run(false));
        assert!(!ours.status.success() && !theirs.status.success());
        assert_eq!(reasons(&ours), reasons(&theirs));
    }
}

#[test]
fn certificates_requests_and_messages_pass_both_ways() {
    let host = Host::new();
    host.write("message", b"a message\n");
    for curve in ["P-256", "P-384", "P-521"] {
        for maker in BOTH {
            host.good(
                maker,
                &format!("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:{curve} -out key.pem"),
            );
            host.good(maker, "req -x509 -config with.cnf -key key.pem -subj /CN=test -days 30 -out cert.pem");
            host.good(
                maker,
                "req -new -config with.cnf -key key.pem -subj /CN=test -sha384 -out request.pem",
            );
            host.good(maker, "cms -encrypt -in message -binary -outform DER -aes256 -out sealed -recip cert.pem -keyopt ecdh_kdf_md:sha256");
            host.good(maker, "cms -sign -in message -binary -nodetach -outform DER -signer cert.pem -inkey key.pem -out signed");
            host.same("x509 -in cert.pem -text -noout");
            for reader in BOTH {
                host.good(reader, "verify -CAfile cert.pem cert.pem");
                host.good(reader, "req -config with.cnf -in request.pem -verify -noout");
                let opened =
                    host.good(reader, "cms -decrypt -inform DER -in sealed -recip cert.pem -inkey key.pem");
                assert_eq!(opened.trim_end(), "a message");
                host.good(reader, "cms -verify -inform DER -in signed -CAfile cert.pem -purpose any");
            }
        }
    }
}

/// One connection; what the client printed.
fn connect(host: &Host, sides: (bool, bool), server: &str, client: &str) -> String {
    let port = port();
    let mut listening = host
        .command(sides.0, "openssl")
        .args(
            format!(
                "s_server -accept 127.0.0.1:{port} -naccept 1 -quiet -cert cert.pem -key key.pem {server}"
            )
            .split_whitespace(),
        )
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut last = String::new();
    for _ in 0..100 {
        let output = host.openssl(
            sides.1,
            &format!("s_client -connect 127.0.0.1:{port} -CAfile cert.pem -brief {client}"),
        );
        last = String::from_utf8_lossy(&output.stderr).into_owned();
        if !last.contains("refused") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let _ = listening.kill();
    let _ = listening.wait();
    last
}

#[test]
fn tls_works_with_every_certificate_and_group_with_either_side_ours() {
    let host = Host::new();
    let cases = [
        ("P-256", "-tls1_3", "X25519", "X25519"),
        ("P-256", "-tls1_3", "P-256", "ECDH, prime256v1"),
        ("P-384", "-tls1_3", "P-384", "ECDH, secp384r1"),
        ("P-521", "-tls1_3", "P-521", "ECDH, secp521r1"),
        ("P-256", "-tls1_3", "X448", "X448"),
        ("P-256", "-tls1_2", "X25519:P-256", "X25519"),
        ("P-384", "-tls1_2", "P-256:P-384", "ECDH, prime256v1"),
        ("P-256", "-tls1_2", "P-384:P-256", "ECDH, secp384r1"),
        ("secp256k1", "-tls1_2", "P-256:secp256k1", "ECDH, prime256v1"),
        ("brainpoolP256r1", "-tls1_2", "P-384:brainpoolP256r1", "ECDH, secp384r1"),
        // Signed and agreed in the same curve, which we do not accelerate, or only agreed.
        ("brainpoolP384r1", "-tls1_2", "brainpoolP384r1", "ECDH, brainpoolP384r1"),
        ("brainpoolP512r1", "-tls1_2", "brainpoolP512r1", "ECDH, brainpoolP512r1"),
        ("P-256", "-tls1_2", "brainpoolP256r1:P-256", "ECDH, brainpoolP256r1"),
    ];
    for (curve, version, group, said) in cases {
        host.good(true, &format!("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:{curve} -out key.pem"));
        host.good(true, "req -x509 -config with.cnf -key key.pem -subj /CN=test -days 30 -out cert.pem");
        for (sides, asynchronous) in [
            ((true, true), ""),
            ((true, false), ""),
            ((false, true), ""),
            ((true, false), "-async"),
            ((false, true), "-async"),
        ] {
            let client = format!("{version} -groups {group} -cert cert.pem -key key.pem {asynchronous}");
            let server = format!("-groups {group} -Verify 1 -CAfile cert.pem {asynchronous}");
            let text = connect(&host, sides, &server, &client);
            assert!(text.contains("CONNECTION ESTABLISHED"), "{curve} {version} {group} {sides:?}\n{text}");
            assert!(text.contains(&format!(" Temp Key: {said}")), "{curve} {group} {sides:?}\n{text}");
        }
    }
}
