//! The group X25519MLKEM768 in nginx and `wattlock serve`: offered, counted, and said to need the provider where OpenSSL
//! has none itself.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::built::program;
use crate::serve::{Place, configuration, words};

/// Whether the OpenSSL of this machine, which is nginx's and curl's, has the group itself.
fn openssl_has_it() -> bool {
    let told =
        Command::new("openssl").args(["list", "-kem-algorithms"]).env("OPENSSL_CONF", "/dev/null").output();
    String::from_utf8_lossy(&told.unwrap().stdout).contains("X25519MLKEM768")
}

/// A place with an `openssl.cnf` that has the provider.
fn place() -> (Place, PathBuf) {
    let place = Place::new();
    let provider = program().with_file_name("libwattlock_provider.so");
    let file = place.path("openssl.cnf");
    let text = format!(
        "openssl_conf = a\n[a]\nproviders = b\nalg_section = c\n[b]\ndefault = d\nwattlock = e\n[c]\n\
         default_properties = ?provider=wattlock\n[d]\nactivate = 1\n[e]\nmodule = {}\nactivate = 1\n",
        provider.display()
    );
    fs::write(&file, text).unwrap();
    (place, file)
}

/// A configuration with a TLS server that has this line.
fn with_server(place: &Place, line: &str) -> PathBuf {
    let request = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout";
    let mut openssl = Command::new("openssl");
    openssl.args(request.split(' ')).arg(place.path("key.pem")).arg("-out").arg(place.path("cert.pem"));
    assert!(openssl.output().unwrap().status.success());
    let at = place.path("");
    let at = at.display();
    let server = format!(
        "  server {{\n    listen unix:{at}socket ssl;\n    ssl_certificate {at}cert.pem;\n    \
         ssl_certificate_key {at}key.pem;\n{line}  }}\n"
    );
    configuration(place, &server)
}

/// `wattlock nginx`, under an `openssl.cnf` of its own.
fn nginx(place: &Place, arguments: &[&str], file: &Path, conf: &Path) -> Output {
    let mut command = place.command(&[&["nginx"][..], arguments].concat());
    command.arg("--config").arg(file).env("OPENSSL_CONF", conf);
    command.output().unwrap()
}

/// What `check` says of groups.
fn groups(place: &Place, file: &Path, conf: &Path) -> Vec<(bool, String)> {
    let output = nginx(place, &["check", "--json"], file, conf);
    let findings = String::from_utf8(output.stdout).unwrap();
    let findings = findings.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let of_groups = findings.filter(|one| one["what"] == "groups");
    of_groups.map(|one| (one["good"] == true, one["words"].as_str().unwrap().to_owned())).collect()
}

#[test]
fn enable_offers_the_hybrid_with_a_line_of_its_own_and_check_says_what_it_needs() {
    let (place, conf) = place();
    let none = Path::new("/dev/null");
    let file = with_server(&place, "");
    let before = fs::read_to_string(&file).unwrap();
    let [(good, told)] = &groups(&place, &file, &conf)[..] else { panic!("one line") };
    assert!(*good && told.contains("no `ssl_ecdh_curve`"), "{told}");
    assert_eq!(told.contains("without X25519MLKEM768"), !openssl_has_it(), "{told}");

    for there in [none, &conf] {
        let output = nginx(&place, &["enable", "--yes", "--hybrid"], &file, there);
        assert!(output.status.success(), "{}", words(&output));
    }
    let line = "    wattlock_hybrid on; # by `wattlock nginx enable`\n";
    assert!(fs::read_to_string(&file).unwrap().contains(line));
    let [(good, told)] = &groups(&place, &file, &conf)[..] else { panic!("one line") };
    assert!(*good && told.contains("nginx.conf:"), "{told}");
    if !openssl_has_it() {
        assert!(told.ends_with("from the provider"), "{told}");
        let [(good, told)] = &groups(&place, &file, none)[..] else { panic!("one line") };
        assert!(!good && told.contains("not offered"), "{told}");
    }
    let output = nginx(&place, &["disable", "--yes"], &file, none);
    assert!(output.status.success(), "{}", words(&output));
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
}

#[test]
fn a_line_by_hand_stays_and_both_kinds_of_disable_say_that_it_needs_the_provider() {
    let (place, conf) = place();
    let file = with_server(&place, "    ssl_ecdh_curve X25519MLKEM768:X25519;\n");
    let before = fs::read_to_string(&file).unwrap();
    let output = nginx(&place, &["enable", "--yes", "--hybrid"], &file, &conf);
    assert!(output.status.success(), "{}", words(&output));
    assert!(
        words(&output).contains("`ssl_ecdh_curve X25519MLKEM768:X25519` is as it was"),
        "{}",
        words(&output)
    );
    let warns = |output: &Output| {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let warned = said.contains("nginx.conf:") && said.contains("before `wattlock openssl disable`");
        assert_eq!(warned, !openssl_has_it(), "{said}");
    };
    if !openssl_has_it() {
        // Without the provider nginx refuses the person's line, with Wattlock and without.
        let output = nginx(&place, &["disable", "--yes"], &file, Path::new("/dev/null"));
        let said = words(&output);
        assert!(output.status.success() && said.contains("refuses it without"), "{said}");
        assert_eq!(fs::read_to_string(&file).unwrap(), before);
        let output = nginx(&place, &["enable", "--yes", "--hybrid"], &file, &conf);
        assert!(output.status.success(), "{}", words(&output));
    }
    let output = nginx(&place, &["disable", "--yes"], &file, &conf);
    assert!(output.status.success(), "{}", words(&output));
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
    warns(&output);

    // An nginx whose configuration this is, and an openssl.cnf that has Wattlock by `enable`.
    let real = String::from_utf8(
        Command::new("sh").args(["-c", "PATH=$PATH:/usr/sbin command -v nginx"]).output().unwrap().stdout,
    );
    let real = real.unwrap();
    let script = format!(
        "#!/bin/sh\n[ \"$1\" != -V ] || exec sh -c '{0} -V 2>&1 | sed \"s#--conf-path=[^ ]*#--conf-path={1}#\" >&2'\nexec {0} \"$@\"\n",
        real.trim(),
        file.display()
    );
    fs::create_dir(place.path("bin")).unwrap();
    fs::write(place.path("bin/nginx"), script).unwrap();
    fs::set_permissions(place.path("bin/nginx"), fs::Permissions::from_mode(0o755)).unwrap();
    let other = place.path("other.cnf");
    fs::write(&other, "").unwrap();
    let provider = program().with_file_name("libwattlock_provider.so");
    let path = format!("{}:{}", place.path("bin").display(), std::env::var("PATH").unwrap());
    let run = |arguments: &[&str]| {
        let mut command = place.command(&[&["openssl"][..], arguments].concat());
        command.arg("--config").arg(&other).env("PATH", &path).output().unwrap()
    };
    let output = run(&["enable", "--yes", "--module", provider.to_str().unwrap()]);
    assert!(output.status.success(), "{}", words(&output));
    let output = run(&["disable", "--yes"]);
    assert!(output.status.success(), "{}", words(&output));
    warns(&output);
}

#[test]
fn a_served_folder_has_the_hybrid_for_curl_and_every_handshake_is_in_one_group() {
    let (place, conf) = place();
    let serving = place.serve(&["--hybrid"]);
    let curl = |groups: &str| {
        let mut curl = Command::new("curl");
        curl.args(["-sSk", "--fail", "--max-time", "20", "--curves", groups]).env("OPENSSL_CONF", &conf);
        let output = curl.arg(format!("{}/page.txt", serving.url)).output().unwrap();
        assert!(output.status.success(), "{groups}: {}", words(&output));
        output.stdout
    };
    let page = fs::read(place.path("www/page.txt")).unwrap();
    for groups in ["X25519MLKEM768", "X25519:X25519MLKEM768", "P-384"] {
        assert!(curl(groups) == page, "{groups}");
    }
    let status = serving.status();
    let count = |key: &str| status[key].as_u64().unwrap();
    // The page is asked for by a client that has X25519 or, with a newer OpenSSL, the hybrid.
    let usual = count("group_x25519mlkem768") + count("group_x25519");
    assert_eq!((usual, count("group_other"), count("group_none")), (3, 1, 0), "{status}");
    assert!(count("group_x25519mlkem768") >= 1, "{status}");
    let page = format!("{}/wattlock_status", serving.url);
    let file = with_server(&place, "");
    let output = nginx(&place, &["check", "--status", &page], &file, &conf);
    let said = words(&output);
    let line = said.lines().find(|line| line.contains(" running: ")).unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains("by group: X25519MLKEM768 ") && line.ends_with("% X25519MLKEM768)"), "{line}");
}
