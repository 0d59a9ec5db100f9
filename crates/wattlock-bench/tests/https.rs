//! `wattlock bench https` with the real nginx, module and provider: what a row's name says is what its handshakes were, by
//! the account of the client. `scripts/test/newer.sh` in front makes the nginx and the OpenSSL newer ones.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;

/// The program, with the provider and the module where it looks for them.
fn program() -> &'static Path {
    static BUILT: OnceLock<()> = OnceLock::new();
    let own = Path::new(env!("CARGO_BIN_EXE_wattlock-bench"));
    BUILT.get_or_init(|| {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let folder = own.parent().unwrap();
        let target = folder.parent().unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--locked", "-p", "wattlock-provider", "--target-dir"]).arg(target);
        cargo.args(folder.ends_with("release").then_some("--release")).current_dir(repository);
        assert!(cargo.status().unwrap().success(), "the provider cannot be built");
        let module = Command::new(repository.join("nginx/build.sh")).env("CARGO_TARGET_DIR", target).status();
        assert!(module.unwrap().success(), "the module cannot be built");
    });
    own
}

fn run(words: &[&str]) -> Output {
    Command::new(program()).args(words).env_remove("OPENSSL_CONF").output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// What the program says of one row, after so many seconds of each side.
fn row(name: &str, seconds: f64) -> Value {
    let output = run(&[
        "https",
        "--json",
        "-",
        "--cores",
        "0,0",
        "--rounds",
        "1",
        "--rows",
        name,
        "--seconds",
        &seconds.to_string(),
    ]);
    assert!(output.status.success(), "{}", said(&output));
    let sheet: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [row] = sheet["rows"].as_array().unwrap().as_slice() else { panic!("not one row: {sheet}") };
    assert_eq!(row["row"], name);
    row.clone()
}

/// Names of the rows with this in them.
fn names(part: &str) -> Vec<String> {
    let output = run(&["https", "--list", "--rows", part]);
    assert!(output.status.success(), "{}", said(&output));
    let names: Vec<String> = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    assert!(!names.is_empty());
    names
}

/// Whether the stock OpenSSL of a row has the hybrid itself.
fn stock_has_hybrid(row: &Value) -> bool {
    let (_, version) = row["against"].as_str().unwrap().split_once("OpenSSL ").unwrap();
    !["3.0.", "3.1.", "3.2.", "3.3.", "3.4."].iter().any(|older| version.starts_with(older))
}

/// Counts of one side of a row.
#[derive(Debug)]
struct Side {
    done: u64,
    resumed: u64,
    ecdsa: u64,
    groups: Vec<(String, u64)>,
}

fn side(row: &Value, name: &str) -> Side {
    let side = &row["detail"][name];
    assert_eq!(side["failed"], 0, "{row}");
    let count = |key: &str| side[key].as_u64().unwrap_or_else(|| panic!("no {key}: {row}"));
    let groups = side["groups"].as_object().unwrap().iter();
    Side {
        done: count("done"),
        resumed: count("resumed"),
        ecdsa: count("ecdsa"),
        groups: groups.map(|(name, count)| (name.clone(), count.as_u64().unwrap())).collect(),
    }
}

/// Sixty-four connections at a time: those that are open at either end may all be of one sort, and the first have no
/// session.
const LOOSE: u64 = 2 * 64 + 16;

/// One row by its name: the group, the sessions resumed, the certificates shown.
fn holds(name: &str) {
    let mut seconds = 1.0;
    let row = loop {
        let row = row(name, seconds);
        // How many fit depends on the machine. With fewer, ten of ten could pass for nine.
        let fewest = ["stock", "ours"].map(|at| side(&row, at).done).into_iter().min().unwrap();
        if fewest >= 12 * LOOSE {
            break row;
        }
        seconds *= (13.0 * LOOSE as f64 / fewest as f64).min(4.0);
    };
    for at in ["stock", "ours"] {
        let Side { done, resumed, ecdsa, groups } = side(&row, at);
        let hybrid = name.contains("x25519mlkem768") && (at == "ours" || stock_has_hybrid(&row));
        let group = if hybrid { "X25519MLKEM768" } else { "X25519" };
        assert_eq!(groups, [(group.to_owned(), done)], "{name}, {at}: {row}");
        let full = done - resumed;
        match name.ends_with("-resumed") {
            true => assert!(full.abs_diff(done / 10) <= LOOSE, "{name}, {at}: {full} of {done} in full"),
            false => assert_eq!(resumed, 0, "{name}, {at}"),
        }
        match name.split('-').nth(1) {
            Some("both") => {
                assert!(ecdsa.abs_diff(full * 9 / 10) <= LOOSE, "{name}, {at}: {ecdsa} of {full} by ECDSA");
                assert!(0 < ecdsa && ecdsa < full, "{name}, {at}: {ecdsa} of {full} by ECDSA");
            }
            Some("ecdsa256") => assert_eq!(ecdsa, full, "{name}, {at}"),
            _ => assert_eq!(ecdsa, 0, "{name}, {at}"),
        }
    }
    let engines = row["detail"]["engines"].as_array().unwrap();
    let exchanged = if name.contains("x25519mlkem768") { "ml-kem-768-encapsulate" } else { "x25519-" };
    assert!(
        engines.iter().any(|engine| engine.as_str().unwrap().contains(exchanged)),
        "no {exchanged} went through Wattlock: {row}"
    );
    assert_eq!(row["note"].is_string(), name.contains("mlkem") && !stock_has_hybrid(&row), "{row}");
}

#[test]
fn rows_with_the_hybrid_are_what_their_names_say() {
    for name in names("x25519mlkem768") {
        holds(&name);
    }
}

#[test]
fn rows_of_sites_with_x25519_are_what_their_names_say() {
    for name in ["tls13-ecdsa256-x25519", "tls13-rsa2048-x25519", "tls13-both-x25519"] {
        holds(name);
        holds(&format!("{name}-resumed"));
    }
}

#[test]
fn the_matrix_of_what_sites_serve_is_there() {
    let listed = names("tls13");
    for key in ["ecdsa256", "rsa2048", "both"] {
        for group in ["x25519mlkem768", "x25519"] {
            for resumed in ["", "-resumed"] {
                let name = format!("tls13-{key}-{group}{resumed}");
                assert!(listed.contains(&name), "{name}");
            }
        }
    }
}

#[test]
fn values_that_mean_nothing_are_refused() {
    for (words, why) in [
        (&["--rows", "tls14"][..], "no row's name contains tls14"),
        (&["--rows", "tls13-both-x25519,tls14", "--list"], "no row's name contains tls14"),
        (&["--rounds", "0"], "--rounds"),
        (&["--seconds=-1"], "--seconds"),
        (&["--seconds", "nan"], "--seconds"),
        (&["--rows", "tls13-both-x25519", "--cores", "0"], "--cores takes two"),
        (&["--rows", "tls13-both-x25519", "--cores", "0,100000"], "core 100000"),
    ] {
        let output = run(&[&["https"], words].concat());
        assert!(!output.status.success() && said(&output).contains(why), "{words:?}: {}", said(&output));
    }
}

#[test]
fn one_point_is_measured_with_the_hybrid() {
    let point = |side: &str| {
        let words = ["point", "https", "version=1.3", "group=x25519mlkem768", "connections=8", side];
        let output = run(&[&words[..], &["full=0.5", "--seconds", "1", "--rounds", "1"]].concat());
        assert!(output.status.success(), "{}", said(&output));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let ours = point("side=wattlock");
    assert_eq!(ours["given"]["group"], "x25519mlkem768", "{ours}");
    let engines = ours["engines"].as_array().unwrap();
    assert!(
        engines.iter().any(|engine| engine.as_str().unwrap().contains("ml-kem-768-encapsulate")),
        "{ours}"
    );
    let stock = point("side=stock");
    let cannot = stock["cannot"].as_str().is_some_and(|why| why.ends_with("has no X25519MLKEM768"));
    assert!(cannot || stock["figures"]["rate"]["value"].as_f64() > Some(0.0), "{stock}");
}
