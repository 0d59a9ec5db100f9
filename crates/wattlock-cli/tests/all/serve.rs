//! `wattlock serve`, `wattlock nginx` and `wattlock bench https` with the real nginx, the real module and provider, and
//! curl. Everything lies in folders of the tests' own and listens on 127.0.0.1.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::built;
use built::program;

/// A folder of its own for what the program makes while it runs, and for a test's files.
pub(crate) struct Place(pub(crate) tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        fs::create_dir(place.path("tmp")).unwrap();
        fs::create_dir(place.path("www")).unwrap();
        fs::write(place.path("www/page.txt"), "what is served is what lies there\n".repeat(3000)).unwrap();
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
        command
            .args(arguments)
            .env("TMPDIR", self.path("tmp"))
            .env_remove("OPENSSL_CONF")
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// What the program made while it ran and left.
    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("tmp")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }

    /// `wattlock serve` on a free port, once it says that it is up.
    pub(crate) fn serve(&self, more: &[&str]) -> Serving {
        let www = self.path("www");
        let mut arguments = vec!["serve", www.to_str().unwrap(), "--port", "0", "--workers", "1"];
        arguments.extend(more);
        let mut child = self.command(&arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = Vec::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        while said.last().is_none_or(|line: &String| line != "until Ctrl-C") {
            said.push(lines.next().expect("it serves until it is interrupted").unwrap());
        }
        let url = said[0].split_whitespace().next().unwrap().trim_end_matches('/').to_owned();
        Serving { child, url, said }
    }
}

/// A running `wattlock serve`.
pub(crate) struct Serving {
    child: Child,
    pub(crate) url: String,
    said: Vec<String>,
}

impl Serving {
    fn get(&self, path: &str, more: &[&str]) -> Vec<u8> {
        let mut curl = Command::new("curl");
        curl.args(["-sSk", "--fail", "--max-time", "20"]).args(more).arg(format!("{}{path}", self.url));
        let output = curl.output().unwrap();
        assert!(output.status.success(), "{path}: {}", words(&output));
        output.stdout
    }

    pub(crate) fn status(&self) -> Value {
        serde_json::from_slice(&self.get("/wattlock_status", &[])).unwrap()
    }

    fn listens(&self) -> bool {
        TcpStream::connect(self.url.trim_start_matches("https://")).is_ok()
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // Already ended in most tests.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn words(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_folder_is_served_as_it_lies_there_with_wattlock_in_force_and_nothing_stays_behind() {
    let place = Place::new();
    let mut serving = place.serve(&[]);
    assert!(serving.url.starts_with("https://127.0.0.1:"), "{:?}", serving.said);
    assert!(serving.said.iter().any(|line| line == "Wattlock is active"), "{:?}", serving.said);
    let page = fs::read(place.path("www/page.txt")).unwrap();
    for more in [
        &["--tlsv1.3"][..],
        &["--tls-max", "1.2"],
        &["--tls-max", "1.2", "--curves", "P-256"],
        &["--http1.1"],
    ] {
        assert!(serving.get("/page.txt", more) == page, "{more:?}");
    }
    let status = serving.status();
    assert_eq!(status["active"], true, "{status}");
    assert!(status["handshakes"].as_u64().unwrap() >= 5, "{status}");
    let kinds: Vec<&str> = status["runtime"]["cells"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cell| cell["kind"].as_str().unwrap())
        .collect();
    assert!(kinds.contains(&"rsa-2048-private"), "{kinds:?}");
    assert!(
        String::from_utf8(serving.get("/wattlock_status?format=html", &[])).unwrap().contains("<h1>Wattlock")
    );
    serving.signal("INT");
    assert!(serving.child.wait().unwrap().success());
    assert!(!serving.listens());
    assert_eq!(place.left(), [""; 0]);
}

#[test]
fn nginx_ends_even_when_its_owner_is_killed() {
    let place = Place::new();
    let mut serving = place.serve(&["--key-type", "p256"]);
    serving.signal("KILL");
    serving.child.wait().unwrap();
    let start = Instant::now();
    while serving.listens() {
        assert!(start.elapsed() < Duration::from_secs(20), "nginx goes on without its owner");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn settings_of_the_command_line_reach_the_provider() {
    let place = Place::new();
    let serving = place.serve(&["--policy", "instruction", "--key-type", "p384"]);
    let status = serving.status();
    assert_eq!(status["runtime"]["header"]["policy"], "instruction", "{status}");
}

#[test]
fn a_comparison_prints_both_sides_and_ends() {
    let place = Place::new();
    let www = place.path("www");
    let output = place.run(&[
        "serve",
        www.to_str().unwrap(),
        "--port",
        "0",
        "--compare",
        "--seconds",
        "0.6",
        "--key-type",
        "p256",
        "--json",
        place.path("serve.json").to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", words(&output));
    let text = words(&output);
    for what in ["handshakes, TLS 1.2", "handshakes, TLS 1.3", "requests, TLS 1.3, keep-alive"] {
        let line =
            text.lines().find(|line| line.starts_with(what)).unwrap_or_else(|| panic!("{what}: {text}"));
        let rates: Vec<f64> = line
            .split(" /s")
            .take(2)
            .map(|part| part.split_whitespace().last().unwrap().parse().unwrap())
            .collect();
        assert!(rates.len() == 2 && rates.iter().all(|rate| *rate > 0.0), "{line}");
        // What stands in one line does not contradict itself, unless no ratio is told.
        let told = line.split(" /s").nth(2).unwrap().trim_start();
        let median = told.split("(median ").nth(1).and_then(|rest| rest.split(')').next());
        if told.starts_with("at ") {
            let gain: f64 = median.unwrap().parse().unwrap();
            assert!((gain / (rates[1] / rates[0]) - 1.0).abs() < 0.02, "{line}");
        } else {
            assert!(told.starts_with("no difference (") || told.contains("(one round)"), "{line}");
        }
    }
    let sheet: Value = serde_json::from_slice(&fs::read(place.path("serve.json")).unwrap()).unwrap();
    let rows: Vec<&str> =
        sheet["rows"].as_array().unwrap().iter().map(|row| row["row"].as_str().unwrap()).collect();
    assert_eq!(rows, ["tls12-handshakes", "tls13-handshakes", "tls13-responses"]);
    assert_eq!(place.left(), [""; 0]);
}

#[test]
fn what_cannot_be_served_is_one_line() {
    let place = Place::new();
    let (www, file) = (place.path("www"), place.path("www/page.txt"));
    let (www, file) = (www.to_str().unwrap(), file.to_str().unwrap());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for (arguments, wanted) in [
        (vec!["serve", file], "not a folder"),
        (vec!["serve", www, "--port", &port], port.as_str()),
        (vec!["serve", www, "--port", "0", "--cert", file, "--key", file], "nginx ended"),
        (vec!["serve", www, "--nginx", file], "page.txt"),
        (vec!["serve", www, "--nginx", "/bin/true"], "does not answer as nginx does"),
        (vec!["serve", www, "--module", "/nowhere.so"], "/nowhere.so"),
    ] {
        let output = place.run(&arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(wanted), "{arguments:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let output = place.run(&["serve", www, "--cert", file]);
    assert!(!output.status.success() && words(&output).contains("--key"), "{}", words(&output));
    assert_eq!(place.left(), [""; 0]);
}

/// A small configuration of nginx that needs nothing of the system's.
pub(crate) fn configuration(place: &Place, more: &str) -> PathBuf {
    let at = place.0.path().display().to_string();
    let file = place.path("nginx.conf");
    let text = format!(
        "pid {at}/pid;\nerror_log {at}/log;\nevents {{\n}}\n\nhttp {{ # all of it\n  access_log off;\n  \
         client_body_temp_path {at}/b; proxy_temp_path {at}/p; fastcgi_temp_path {at}/f;\n  uwsgi_temp_path {at}/u; \
         scgi_temp_path {at}/s;\n{more}}}\n"
    );
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    file
}

fn nginx(place: &Place, what: &str, file: &Path, more: &[&str]) -> Output {
    let mut arguments = vec!["nginx", what, "--config", file.to_str().unwrap()];
    arguments.extend(more);
    if what != "check" {
        arguments.push("--yes");
    }
    place.run(&arguments)
}

#[test]
fn enable_shows_what_it_adds_keeps_a_backup_and_disable_takes_it_out_to_the_byte() {
    let place = Place::new();
    let file = configuration(&place, "");
    let before = fs::read_to_string(&file).unwrap();
    let output = nginx(&place, "enable", &file, &["--dry-run"]);
    assert!(output.status.success() && words(&output).contains("+    wattlock on;"), "{}", words(&output));
    assert_eq!(fs::read_to_string(&file).unwrap(), before);

    let unasked = place.run(&["nginx", "enable", "--config", file.to_str().unwrap()]);
    assert!(!unasked.status.success() && words(&unasked).contains("nobody answered"), "{}", words(&unasked));
    assert_eq!(fs::read_to_string(&file).unwrap(), before);

    let output = nginx(&place, "enable", &file, &[]);
    assert!(output.status.success(), "{}", words(&output));
    let said = words(&output);
    assert!(
        said.contains("+load_module")
            && said.contains("not yet active: the provider `wattlock` is not loaded"),
        "{said}"
    );
    let after = fs::read_to_string(&file).unwrap();
    assert!(after.contains("load_module \"") && after.contains("\n    wattlock on;"), "{after}");
    assert_eq!(fs::read_to_string(place.path("nginx.conf.before-wattlock")).unwrap(), before);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);

    let output = nginx(&place, "enable", &file, &[]);
    assert!(output.status.success() && words(&output).contains("nothing to change"), "{}", words(&output));
    assert_eq!(fs::read_to_string(&file).unwrap(), after);

    let output = nginx(&place, "disable", &file, &[]);
    assert!(output.status.success() && words(&output).contains("-    wattlock on;"), "{}", words(&output));
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
    let left = fs::read_dir(place.0.path()).unwrap().flatten();
    assert!(left.into_iter().all(|entry| !entry.file_name().to_string_lossy().contains("before-wattlock")));

    // With other lines changed meanwhile the copy stays, and there is one.
    assert!(nginx(&place, "enable", &file, &[]).status.success());
    fs::write(&file, format!("{}# more\n", fs::read_to_string(&file).unwrap())).unwrap();
    assert!(nginx(&place, "disable", &file, &[]).status.success());
    assert_eq!(fs::read_to_string(&file).unwrap(), format!("{before}# more\n"));
    assert_eq!(fs::read_to_string(place.path("nginx.conf.before-wattlock")).unwrap(), before);
    assert!(!place.path("nginx.conf.before-wattlock.1").exists());
}

#[test]
fn disable_sets_directives_of_other_files_aside_and_nginx_accepts_what_is_left() {
    let place = Place::new();
    let other = place.path("site.conf");
    let file = configuration(&place, &format!("  include {};\n", other.display()));
    let site =
        "server {\n  listen 127.0.0.1:1;\n  wattlock off;\n  location /s { wattlock_status; deny all; }\n}\n";
    fs::write(&other, "").unwrap();
    let output = nginx(&place, "enable", &file, &[]);
    assert!(output.status.success(), "{}", words(&output));
    fs::write(&other, site).unwrap();
    let output = nginx(&place, "disable", &file, &[]);
    assert!(output.status.success() && words(&output).contains("site.conf, line 3"), "{}", words(&output));
    let after = fs::read_to_string(&other).unwrap();
    assert!(
        after.contains("  # wattlock off; ") && after.contains("\n  location /s { deny all; }\n"),
        "{after}"
    );

    // What cannot be set aside is named, and nothing is changed.
    assert!(nginx(&place, "enable", &file, &[]).status.success());
    let odd = "server {\n  wattlock\n  off;\n}\n";
    fs::write(&other, odd).unwrap();
    let on = fs::read_to_string(&file).unwrap();
    let output = nginx(&place, "disable", &file, &[]);
    let said = words(&output);
    assert!(!output.status.success() && said.contains("line 3 of") && said.contains("by hand"), "{said}");
    assert_eq!(
        (fs::read_to_string(&file).unwrap(), fs::read_to_string(&other).unwrap()),
        (on, odd.to_owned())
    );
}

#[test]
fn an_included_file_with_the_http_block_is_named() {
    let place = Place::new();
    let inner = configuration(&place, "");
    let text = fs::read_to_string(&inner).unwrap();
    fs::create_dir(place.path("parts")).unwrap();
    fs::write(place.path("parts/http.conf"), &text[text.find("http {").unwrap()..]).unwrap();
    fs::write(&inner, format!("{}include parts/*.conf;\n", &text[..text.find("http {").unwrap()])).unwrap();
    let output = nginx(&place, "enable", &inner, &[]);
    let said = words(&output);
    assert!(
        !output.status.success() && said.contains("parts/http.conf") && said.contains("load_module"),
        "{said}"
    );
}

#[test]
fn what_nginx_refuses_is_put_back() {
    let place = Place::new();
    let file = configuration(&place, "  no_such_directive on;\n");
    let before = fs::read_to_string(&file).unwrap();
    let output = nginx(&place, "enable", &file, &[]);
    let said = words(&output);
    assert!(
        !output.status.success() && said.contains("no_such_directive") && said.contains("is as it was"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
    assert!(!place.path("nginx.conf.before-wattlock").exists());
}

#[test]
fn a_change_goes_through_a_link_and_leaves_the_link() {
    let place = Place::new();
    let file = configuration(&place, "");
    let link = place.path("link.conf");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    assert!(nginx(&place, "enable", &link, &[]).status.success());
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(fs::read_to_string(&file).unwrap().contains("wattlock on;"));
}

#[test]
fn an_nginx_without_libssl_of_its_own_is_refused() {
    let place = Place::new();
    let fake = place.path("nginx");
    fs::write(&fake, "#!/bin/sh\necho 'nginx version: nginx/1.22.1 --with-http_ssl_module' >&2\n").unwrap();
    fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).unwrap();
    let file = configuration(&place, "");
    let before = fs::read(&file).unwrap();
    for what in ["enable", "check"] {
        let output = nginx(&place, what, &file, &["--nginx", fake.to_str().unwrap()]);
        assert!(!output.status.success() && words(&output).contains("ELF"), "{what}: {}", words(&output));
    }
    assert_eq!(fs::read(&file).unwrap(), before);
}

#[test]
fn check_is_content_only_when_everything_is_in_place() {
    let place = Place::new();
    let file = configuration(&place, "");
    let output = nginx(&place, "check", &file, &["--json"]);
    let findings = |output: &Output| -> Vec<Value> {
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let good =
        |found: &[Value], what: &str| found.iter().find(|one| one["what"] == what).unwrap()["good"].clone();
    let found = findings(&output);
    assert!(!output.status.success(), "{found:?}");
    for (what, wanted) in [
        ("libssl", true),
        ("module", true),
        ("together", true),
        ("kernel TLS", true),
        ("with this machine's openssl.cnf", false),
        ("configuration", false),
    ] {
        assert_eq!(good(&found, what), wanted, "{what}: {found:?}");
    }

    assert!(nginx(&place, "enable", &file, &[]).status.success());
    let provider = program().with_file_name("libwattlock_provider.so");
    let text = format!(
        "openssl_conf = a\n[a]\nproviders = b\nalg_section = c\n[b]\ndefault = d\nwattlock = e\n[c]\n\
         default_properties = ?provider=wattlock\n[d]\nactivate = 1\n[e]\nmodule = {}\nactivate = 1\n",
        provider.display()
    );
    fs::write(place.path("openssl.cnf"), text).unwrap();
    let serving = place.serve(&["--key-type", "p256"]);
    let status = format!("{}/wattlock_status", serving.url);
    let arguments = ["nginx", "check", "--json", "--config", file.to_str().unwrap(), "--status", &status];
    let output = place.command(&arguments).env("OPENSSL_CONF", place.path("openssl.cnf")).output().unwrap();
    let found = findings(&output);
    assert!(output.status.success(), "{found:?}");
    assert_eq!(good(&found, "running"), true, "{found:?}");

    let garbage = place.path("www/page.txt");
    let output = nginx(&place, "check", &file, &["--json", "--provider", garbage.to_str().unwrap()]);
    assert_eq!(good(&findings(&output), "together"), false, "a text is no provider");
}

#[test]
fn enable_warns_of_a_build_folder_and_check_says_how_to_undo_a_module_that_is_gone() {
    let place = Place::new();
    let file = configuration(&place, "");
    let before = fs::read_to_string(&file).unwrap();
    let built = program().with_file_name("../nginx/ngx_http_wattlock_module.so").canonicalize().unwrap();
    let output = nginx(&place, "enable", &file, &["--dry-run", "--module", built.to_str().unwrap()]);
    let warned = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && warned.contains("lies in a build folder"), "{warned}");
    assert!(warned.contains("or does not start") && warned.contains("`make install`"), "{warned}");

    let copy = place.path("ngx_http_wattlock_module.so");
    fs::copy(&built, &copy).unwrap();
    let output = nginx(&place, "enable", &file, &["--module", copy.to_str().unwrap()]);
    assert!(output.status.success(), "{}", words(&output));
    assert!(String::from_utf8_lossy(&output.stderr).contains("must stay there"), "{}", words(&output));
    fs::remove_file(&copy).unwrap();
    let output = nginx(&place, "check", &file, &[]);
    assert!(!output.status.success());
    let said = words(&output);
    let line = said
        .lines()
        .find(|line| line.starts_with("PROBLEM load_module: "))
        .unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains("is not there") && line.contains("wattlock nginx disable"), "{line}");
    assert!(nginx(&place, "disable", &file, &[]).status.success());
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
}

/// As Debian's packages of modules do: nginx refuses a module that is loaded twice.
#[test]
fn enable_adds_no_load_module_if_an_included_file_loads_the_module() {
    let place = Place::new();
    let file = configuration(&place, "");
    let built = program().with_file_name("../nginx/ngx_http_wattlock_module.so").canonicalize().unwrap();
    let folder = place.path("modules-enabled");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("50-mod-http-wattlock.conf"), format!("load_module {};\n", built.display()))
        .unwrap();
    let before = format!("include {}/*.conf;\n{}", folder.display(), fs::read_to_string(&file).unwrap());
    fs::write(&file, &before).unwrap();
    let output = nginx(&place, "enable", &file, &[]);
    assert!(output.status.success(), "{}", words(&output));
    let after = fs::read_to_string(&file).unwrap();
    assert!(!after.contains("load_module") && after.contains("wattlock on;"), "{after}");
    let output = nginx(&place, "enable", &file, &["--module", built.to_str().unwrap()]);
    let said = words(&output);
    assert!(!output.status.success() && said.contains("50-mod-http-wattlock.conf loads a module"), "{said}");
    assert!(nginx(&place, "disable", &file, &[]).status.success());
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
}

/// What `bench https` says of these rows after so many seconds each, without a failed connection.
fn bench_https(place: &Place, rows: &str, seconds: f64) -> Vec<Value> {
    let arguments =
        ["bench", "https", "--json", "-", "--cores", "0,0", "--rounds", "1", "--rows", rows, "--seconds"];
    let output = place.command(&arguments).arg(seconds.to_string()).output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
    let sheet: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(sheet["peers"]["nginx"].is_string() && sheet["peers"]["openssl"].is_string(), "{sheet}");
    let said = sheet["rows"].as_array().unwrap().clone();
    let names: Vec<&str> = said.iter().map(|row| row["row"].as_str().unwrap()).collect();
    assert_eq!(names.join(","), rows);
    for row in &said {
        let detail = &row["detail"];
        assert!(!detail["engines"].as_array().unwrap().is_empty(), "nothing went through Wattlock: {row}");
        for side in ["stock", "ours"] {
            assert!(detail[side]["done"].as_u64() > Some(0) && detail[side]["failed"] == 0, "{row}");
        }
    }
    said
}

#[test]
fn bench_https_measures_both_sides_without_a_failed_connection() {
    let place = Place::new();
    for row in bench_https(&place, "tls13-ecdsa256-x25519,tls13-ecdsa384-p384,response-1m", 0.5) {
        for side in ["stock", "ours"] {
            let side = &row["detail"][side];
            assert_eq!(side["bytes"].as_u64() > Some(0), row["row"] == "response-1m", "{row}");
            assert_eq!(side["resumed"], 0, "{row}");
        }
    }
    assert_eq!(place.left(), [""; 0]);
    let output = place.run(&["bench", "https", "--rows", "no-such-row"]);
    assert!(!output.status.success() && words(&output).contains("no-such-row"));
}

#[test]
fn nine_of_ten_handshakes_of_the_resumed_row_resume_a_session() {
    let (place, mut seconds) = (Place::new(), 0.5);
    let sides = loop {
        let row = bench_https(&place, "tls12-rsa2048-x25519-resumed", seconds).swap_remove(0);
        let count = |side: &str, key: &str| row["detail"][side][key].as_u64().unwrap();
        let sides = ["stock", "ours"].map(|side| (count(side, "done"), count(side, "resumed")));
        // How many fit depends on the machine. With fewer, ten of ten could pass for nine.
        let fewest = sides[0].0.min(sides[1].0);
        if fewest >= 1500 {
            break sides;
        }
        seconds *= (2000.0 / fewest as f64).min(4.0);
    };
    for (done, resumed) in sides {
        // Sixty-four connections at a time. The first of them, and the few that follow before one of them has a session
        // to leave, cannot resume; and those that are open at either end may all be of one sort.
        let whole = done - resumed;
        assert!(
            ((done - 64) / 10 - 64..=(done + 64) / 10 + 80).contains(&whole),
            "{whole} of {done} were whole"
        );
    }
}

#[test]
fn a_benchmark_that_is_interrupted_leaves_nothing_behind() {
    let place = Place::new();
    let arguments =
        ["bench", "https", "--cores", "0,0", "--seconds", "600", "--rows", "tls13-ecdsa256-x25519"];
    let mut child = place.command(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("tls13-ecdsa256-x25519"), "it says what it measures");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert!(!child.wait().unwrap().success());
    assert!(rest.iter().any(|line| line.contains("interrupted")), "{rest:?}");
    assert_eq!(place.left(), [""; 0]);
}

/// `install.sh` with programs of the test's own in front: each writes what it was called with, and whether a service could start.
fn installed(place: &Place, apt_get: &str, packages: &[&str]) -> (Output, String) {
    let (bin, log) = (place.path("bin"), place.path("calls"));
    fs::create_dir_all(&bin).unwrap();
    let _ = fs::remove_file(&log);
    let called = format!("echo \"${{0##*/}} $*\" >>{}\n", log.display());
    for (name, text) in
        [("id", "echo 1000\n"), ("sudo", &*called), ("systemctl", &called), ("apt-get", &called)]
    {
        let more = match name {
            // As root would, except for what lies outside of this folder.
            "sudo" => "case $1 in apt-get|systemctl) exec \"$@\" ;; tee) cat >/dev/null ;; esac\n",
            "apt-get" => apt_get,
            _ => "",
        };
        let program = bin.join(name);
        fs::write(&program, format!("#!/bin/sh\n{text}{more}")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wattlock-shell/src/nginx/install.sh");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let output = Command::new("sh").arg(script).args(packages).env("PATH", path).output().unwrap();
    (output, fs::read_to_string(log).unwrap_or_default())
}

#[test]
fn a_server_is_installed_and_its_own_service_stays_off() {
    let place = Place::new();
    let policy = Path::new("/usr/sbin/policy-rc.d").exists();
    let (output, calls) = installed(&place, "", &["nginx"]);
    assert!(output.status.success(), "{output:?}");
    let calls: Vec<_> = calls.lines().collect();
    let at = |what: &str| calls.iter().position(|call| call.contains(what)).ok_or((what.to_owned(), &calls));
    assert!(at("apt-get update").unwrap() < at("apt-get install").unwrap());
    assert!(calls[at("apt-get install").unwrap()].ends_with("--no-install-recommends nginx"), "{calls:?}");
    assert!(at("apt-get install").unwrap() < at("systemctl --quiet disable nginx").unwrap());
    // A policy that stands there already is another program's.
    if !policy {
        assert!(at("sudo tee /usr/sbin/policy-rc.d").unwrap() < at("apt-get install").unwrap());
        assert!(at("apt-get install").unwrap() < at("sudo rm -f /usr/sbin/policy-rc.d").unwrap());
    }
    let (output, calls) = installed(&place, "", &["--listed", "age"]);
    assert!(output.status.success(), "{output:?}");
    assert!(!calls.contains("update") && !calls.contains("policy") && !calls.contains("disable"), "{calls}");
}

#[test]
fn an_installation_that_fails_says_so_and_leaves_no_policy() {
    let place = Place::new();
    let (output, calls) = installed(&place, "[ $1 != install ] || exit 100\n", &["nginx"]);
    assert_eq!(output.status.code(), Some(100));
    assert!(!calls.contains("disable"), "{calls}");
    assert_eq!(calls.contains("tee /usr/sbin/policy"), calls.contains("rm -f /usr/sbin/policy"), "{calls}");
}

#[test]
fn nothing_is_installed_where_nginx_is_named() {
    let place = Place::new();
    // Whoever asks apt here fails.
    let (_, _) = installed(&place, "exit 100\n", &["nginx"]);
    let path = format!("{}:{}", place.path("bin").display(), std::env::var("PATH").unwrap());
    let (missing, folder) = (place.path("none"), place.path("www"));
    let _ = fs::remove_file(place.path("calls"));
    let mut command = place.command(&["serve", "--install", "--port", "0", "--nginx"]);
    let output = command.arg(&missing).arg(&folder).env("PATH", &path).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("none"), "{output:?}");
    assert!(!place.path("calls").exists(), "a named nginx is not installed");
}
