//! `wattlock exporter` as Prometheus and a browser meet it, with programs that end, files that lie, and clients that wait.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::built;

/// A folder of counters of its own, and what is sealed and summed.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir_in("/dev/shm").unwrap());
        fs::create_dir(place.at("counters")).unwrap();
        fs::set_permissions(place.at("counters"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(place.at("input"), vec![7; 300_000]).unwrap();
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn ready(&self, command: &mut Command) {
        command
            .current_dir(self.0.path())
            .env("WATTLOCK_TELEMETRY_DIR", self.at("counters"))
            .env("WATTLOCK_PROFILE", self.at("profile.json"))
            .stdin(Stdio::null());
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(built::program_for(words));
        command.args(words);
        self.ready(&mut command);
        command
    }

    /// A line of the shell in which `$W` is the program.
    fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", line]).env("W", built::program_for(&["sum"]));
        self.ready(&mut command);
        command
    }

    fn sum(&self) {
        assert!(self.command(&["sum", "input"]).output().unwrap().status.success());
    }

    /// Files of counters, without the totals.
    fn files(&self) -> Vec<String> {
        let names = fs::read_dir(self.at("counters")).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter_map(|name| name.into_string().ok()).filter(|name| !name.starts_with("totals")).collect()
    }
}

struct Exporter {
    child: Child,
    address: String,
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Exporter {
    fn start(command: &mut Command) -> Exporter {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().trim_start_matches("http://").trim_end_matches('/').to_owned();
        assert!(!address.is_empty(), "it says where it listens");
        Exporter { child, address }
    }

    fn of(place: &Place, more: &[&str]) -> Exporter {
        Exporter::start(&mut place.command(&[&["exporter", "--listen", "127.0.0.1:0"], more].concat()))
    }

    /// Its descriptors, and what each is.
    fn open(&self) -> BTreeMap<u64, String> {
        let folder = fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        let number = |path: &Path| path.file_name()?.to_str()?.parse().ok();
        // One that is closed meanwhile is none.
        let each = folder.filter_map(|entry| {
            let path = entry.unwrap().path();
            Some((number(&path)?, fs::read_link(&path).ok()?.to_str()?.to_owned()))
        });
        each.collect()
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// What it answers to these bytes, until it closes.
    fn answer(&self, bytes: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(bytes.replace('\n', "\r\n").as_bytes()).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    fn get(&self, path: &str) -> String {
        let answer = self.answer(&format!("GET {path} HTTP/1.1\nHost: localhost\nConnection: close\n\n"));
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{path}: {answer:?}"));
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{path}: {head}");
        body.to_owned()
    }

    /// The sum of a metric's samples whose labels contain a text, as soon as it is this.
    fn becomes(&self, metric: &str, label: &str, wanted: f64) {
        let begun = Instant::now();
        loop {
            let text = self.get("/metrics");
            let found = value(&text, metric, label);
            if found == wanted {
                return;
            }
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "{metric} {label}: {found}, not {wanted}:\n{text}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn samples(text: &str) -> impl Iterator<Item = (&str, &str, f64)> {
    text.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?}"));
        let (name, labels) = name.split_once('{').unwrap_or((name, ""));
        (name, labels, value.parse().unwrap_or_else(|_| panic!("{line:?}")))
    })
}

fn value(text: &str, metric: &str, label: &str) -> f64 {
    let found = samples(text).filter(|(name, labels, _)| *name == metric && labels.contains(label));
    found.map(|(.., value)| value).sum()
}

fn header(program: &str) -> String {
    let names = r#""engines":["x"],"details":[""],"energy":[""],"inactive":[],"kinds":["sha-256"],"cell":["requests"]"#;
    format!(
        r#"{{"format":1,"version":"0","pid":1,"program":{},"started":0,"born":0,"policy":"","objective":"","profile":"",{names},"engine":[],"reasons":0,"rows":1}}"#,
        serde_json::to_string(program).unwrap()
    )
}

fn counters(path: &Path, header: &str, requests: u64) {
    let mut bytes = header.as_bytes().to_vec();
    bytes.resize(65_536, 0);
    bytes.extend(requests.to_ne_bytes());
    bytes.extend([0; 56]);
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn programs_that_ended_however_they_ended_leave_their_counts() {
    let place = Place::new();
    place.sum();
    assert!(place.files().is_empty(), "{:?}", place.files());
    let exporter = Exporter::of(&place, &[]);
    let (requests, ended) = ("wattlock_requests_total", "wattlock_ended_total");
    let once = value(&exporter.get("/metrics"), requests, "sum\"");
    assert!(once > 0.0);
    exporter.becomes(ended, "sum\"", 1.0);
    // With standard streams closed, files that nobody may read by default, and few descriptors.
    for line in [
        "exec $W sum input >/dev/null <&- 2>&-",
        "umask 777; exec $W sum input >/dev/null",
        "ulimit -n 16; exec $W sum input >/dev/null",
    ] {
        assert!(place.shell(line).status().unwrap().success(), "{line}");
    }
    exporter.becomes(ended, "sum\"", 4.0);
    exporter.becomes(requests, "sum\"", 4.0 * once);
    // Killed in the middle of its work.
    let key = place.command(&["keygen", "-o", "key.txt"]).output().unwrap();
    assert!(key.status.success());
    let text = fs::read_to_string(place.at("key.txt")).unwrap();
    let recipient = text.lines().find_map(|line| line.strip_prefix("# public key: ")).unwrap().to_owned();
    let mut command = place.command(&["stream", "seal", "-r", &recipient, "--framing", "lines"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    for number in 0..100_000 {
        writeln!(input, "line {number}").unwrap();
        if place.get_counted(&exporter) > 0.0 {
            break;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let counted = place.get_counted(&exporter);
    assert!(counted > 0.0);
    exporter.becomes(ended, "stream\"", 1.0);
    assert!(place.get_counted(&exporter) >= counted);
    assert!(place.files().is_empty(), "{:?}", place.files());
    // Another exporter begins with what is in the totals.
    let again = Exporter::of(&place, &[]);
    again.becomes(requests, "sum\"", 4.0 * once);
    // Totals that are deleted take nothing away here.
    fs::remove_file(place.at("counters/totals")).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    again.becomes(requests, "sum\"", 4.0 * once);
}

impl Place {
    /// How many programs the totals say have ended.
    fn ended(&self) -> f64 {
        let once = self.command(&["exporter", "--once"]).output().unwrap();
        value(&String::from_utf8(once.stdout).unwrap(), "wattlock_ended_total", "sum\"")
    }

    fn get_counted(&self, exporter: &Exporter) -> f64 {
        value(&exporter.get("/metrics"), "wattlock_requests_total", "stream\"")
    }
}

#[test]
fn files_that_lie_stay_in_their_labels_and_stop_nobody() {
    let place = Place::new();
    let pid = std::process::id();
    let at = |serial: u32| place.at(&format!("counters/{pid}-{serial}"));
    let evil =
        "<script>alert(1)</script>\"} 1\nwattlock_requests_total{uid=\"0\"} 99\n\u{1b}]0;x\u{7}\u{202e}\\";
    counters(&at(0), &header(evil), 5);
    counters(&at(1), &header("huge"), u64::MAX);
    counters(&at(2), &header("huge"), u64::MAX);
    assert!(Command::new("mkfifo").arg(at(3)).status().unwrap().success());
    std::os::unix::fs::symlink("/etc/passwd", at(4)).unwrap();
    fs::write(at(5), "{".repeat(70_000)).unwrap();
    counters(&at(6), &header("x").replace("\"rows\":1", "\"rows\":18446744073709551615"), 1);
    counters(&at(7), &header("other's"), 1);
    fs::set_permissions(at(7), fs::Permissions::from_mode(0o666)).unwrap();
    counters(&place.at("counters/4194303-1"), &header("dead"), 3);
    let exporter = Exporter::of(&place, &[]);
    let text = exporter.get("/metrics");
    assert!(!text.contains(['\u{1b}', '\u{7}', '\u{202e}']));
    assert_eq!(value(&text, "wattlock_requests_total", "alert(1)"), 5.0, "{text}");
    assert!(value(&text, "wattlock_requests_total", "huge") >= u64::MAX as f64);
    assert_eq!(value(&text, "wattlock_requests_total", "program=\"x\""), 1.0);
    assert_eq!(value(&text, "wattlock_requests_total", "dead"), 3.0);
    assert_eq!(value(&text, "wattlock_requests_total", "other's"), 0.0);
    assert_eq!(value(&text, "wattlock_files_wrong", ""), 4.0, "{text}");
    // Every label is the kernel's word for whose file it is.
    let uid = format!(
        "uid=\"{}\"",
        fs::metadata(at(0)).map(|file| std::os::unix::fs::MetadataExt::uid(&file)).unwrap()
    );
    let lies =
        samples(&text).filter(|(name, labels, _)| name.contains("requests") && !labels.starts_with(&uid));
    assert!(lies.filter(|(_, labels, _)| labels.contains("alert")).count() == 0);
    let report: serde_json::Value = serde_json::from_str(&exporter.get("/api/v1/snapshot")).unwrap();
    let programs = report["programs"].as_array().unwrap();
    assert!(programs.iter().any(|program| program["program"].as_str().unwrap().starts_with("<script>")));
    // The page has no program's name in it, and nothing that makes text into elements.
    let page = [exporter.get("/"), exporter.get("/page.js"), exporter.get("/page.css")].concat();
    for word in
        ["alert(1)", "innerHTML", "insertAdjacentHTML", "document.write", "eval(", "http://", "https://"]
    {
        assert!(!page.contains(word), "{word}");
    }
    // Lies that change.
    counters(&at(1), &header("huge"), 1);
    counters(&at(2), &header("\u{0}"), 1);
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(210));
        let text = exporter.get("/metrics");
        assert!(value(&text, "wattlock_requests_total", "huge") >= u64::MAX as f64, "no counter falls");
    }
}

#[test]
fn requests_are_answered_or_refused_by_the_book() {
    let place = Place::new();
    let exporter = Exporter::of(&place, &["--host", "box.example"]);
    let status = |request: &str| exporter.answer(request).lines().next().unwrap_or_default().to_owned();
    let asked =
        |line: &str, host: &str| status(&format!("{line} HTTP/1.1\nHost: {host}\nConnection: close\n\n"));
    for host in ["localhost", "127.0.0.1:19469", "[::1]", "box.example:80"] {
        assert_eq!(asked("GET /metrics", host), "HTTP/1.1 200 OK", "{host}");
    }
    for host in ["evil.example", "box.example.evil.example", "evil.example:19469"] {
        assert_eq!(asked("GET /metrics", host), "HTTP/1.1 421 Misdirected Request", "{host}");
    }
    assert_eq!(asked("GET /nothing", "localhost"), "HTTP/1.1 404 Not Found");
    assert_eq!(asked("GET /../etc/passwd", "localhost"), "HTTP/1.1 404 Not Found");
    assert_eq!(asked("POST /metrics", "localhost"), "HTTP/1.1 405 Method Not Allowed");
    assert_eq!(asked("GET http://evil.example/metrics", "localhost"), "HTTP/1.1 400 Bad Request");
    assert_eq!(status("GET /healthz HTTP/1.0\n\n"), "HTTP/1.0 200 OK");
    assert_eq!(status("GET /healthz HTTP/1.1\n\n"), "HTTP/1.1 400 Bad Request");
    let long = format!("GET /{} HTTP/1.1\nHost: localhost\n\n", "x".repeat(100_000));
    assert!(["", "HTTP/1.1 431 Request Header Fields Too Large"].contains(&&*status(&long)));
    let head = exporter.answer("HEAD /metrics HTTP/1.1\nHost: localhost\nConnection: close\n\n");
    assert!(head.ends_with("\r\n\r\n") && head.contains("Content-Length: "), "{head}");
    assert!(!head.contains("Content-Length: 0"));
    assert!(head.contains("Content-Security-Policy: default-src 'none'"));
    // Several at once, and one after the other, over one connection.
    let one = "GET /healthz HTTP/1.1\nHost: localhost\n\n";
    let last = "GET /healthz HTTP/1.1\nHost: localhost\nConnection: close\n\n";
    let answers = exporter.answer(&[&one.repeat(20), last].concat());
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 21);
    let old = "GET /healthz HTTP/1.0\nConnection: keep-alive\n\n";
    assert_eq!(exporter.answer(&[old, old, last].concat()).matches(" 200 OK\r\n").count(), 3);
}

#[test]
fn what_is_no_plain_request_is_refused_and_nothing_after_it_is_one() {
    let place = Place::new();
    let exporter = Exporter::of(&place, &[]);
    let next = "GET /metrics HTTP/1.1\nHost: localhost\n\n";
    let local = |more: &str| format!("GET /healthz HTTP/1.1\nHost: localhost\n{more}\n");
    let many = local(&"a: b\n".repeat(100));
    let long = local(&format!("a: {}\n", "x".repeat(9000)));
    for (request, statuses) in [
        // A body is this request's, and not the next one.
        (local(&format!("Content-Length: {}\n", next.len() + 3)), [200].as_slice()),
        (local("Content-Length: 5\n") + "hello", &[200]),
        (local("Transfer-Encoding: chunked\n") + "5\nhello\n0\n\n", &[200]),
        (local("Transfer-Encoding: chunked\n") + "ffffffffffffffffff\n", &[200]),
        (local("Transfer-Encoding: chunked\nContent-Length: 5\n") + "0\n\n", &[200]),
        (local("Expect: 100-continue\nContent-Length: 5\n") + "hello", &[200]),
        (local("Content-Length: 0\nConnection: close\n"), &[200]),
        (local("Upgrade: h2c\nConnection: Upgrade, close\n"), &[200]),
        (local("Transfer-Encoding: gzip\n"), &[400]),
        (local("Content-Length: 5\nContent-Length: 6\n"), &[400]),
        (local("Content-Length: -5\n"), &[400]),
        (local("Content-Length: 99999999999999999999\n"), &[400]),
        ("GET / HTTP/1.0\nTransfer-Encoding: chunked\n\n".to_owned(), &[400]),
        // Hosts.
        ("GET /metrics HTTP/1.1\nHost: localhost\nHost: localhost\n\n".to_owned(), &[400]),
        ("GET /metrics HTTP/1.1\nHost: localhost\nhost: evil.example\n\n".to_owned(), &[400]),
        ("GET http://evil.example/metrics HTTP/1.1\nHost: localhost\n\n".to_owned(), &[400]),
        ("GET http://localhost/metrics HTTP/1.1\nHost: evil.example\n\n".to_owned(), &[421]),
        ("GET http://localhost/metrics HTTP/1.1\n\n".to_owned(), &[400]),
        ("GET /metrics HTTP/1.0\nHost: evil.example\nConnection: keep-alive\n\n".to_owned(), &[421]),
        // Methods, targets and versions.
        ("CONNECT localhost:80 HTTP/1.1\nHost: localhost\n\n".to_owned(), &[405]),
        ("OPTIONS * HTTP/1.1\nHost: localhost\n\n".to_owned(), &[405]),
        ("DELETE /metrics HTTP/1.1\nHost: localhost\n\n".to_owned(), &[405]),
        ("GET * HTTP/1.1\nHost: localhost\n\n".to_owned(), &[400]),
        ("GET metrics HTTP/1.1\nHost: localhost\n\n".to_owned(), &[400]),
        ("GET /metrics HTTP/2.0\nHost: localhost\n\n".to_owned(), &[400]),
        ("GET /metrics\n\n".to_owned(), &[400]),
        ("PRI * HTTP/2.0\n\nSM\n\n".to_owned(), &[]),
        ("\0\u{1}\n\n".to_owned(), &[400]),
        // Heads.
        (many, &[431]),
        (long, &[431]),
        (local("a b: c\n"), &[400]),
        (local(" folded\n"), &[400]),
    ] {
        let answer = exporter.answer(&(request.clone() + next));
        let heads = answer.split("HTTP/1.").skip(1).map(|head| head[2..5].parse::<u16>().unwrap());
        assert_eq!(heads.collect::<Vec<_>>(), statuses, "{request:?}: {answer:?}");
        assert!(!answer.contains("wattlock_"), "{request:?}: {answer:?}");
    }
    assert_eq!(exporter.get("/healthz"), "ok\n");
}

#[test]
fn any_number_of_clients_that_wait_keeps_nobody_out() {
    let place = Place::new();
    // With few descriptors, too.
    for line in
        ["exec $W exporter --listen 127.0.0.1:0", "ulimit -n 32; exec $W exporter --listen 127.0.0.1:0"]
    {
        let exporter = Exporter::start(&mut place.shell(line));
        let mut waiting = VecDeque::new();
        for number in 0..2000 {
            let mut stream = exporter.connect();
            // They may be closed again at any time.
            let _ = match number % 4 {
                0 => Ok(()),
                1 => stream.write_all(b"GET /metrics HT"),
                2 => stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"),
                _ => stream.write_all(&b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(50)),
            };
            waiting.push_back(stream);
            // The exporter has closed it long ago, but not before it had what it asked for.
            if waiting.len() > 500
                && let Some(mut first) = waiting.pop_front()
                && (number - 500) % 4 == 2
            {
                let mut answer = Vec::new();
                first.read_to_end(&mut answer).unwrap();
                assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"), "{number}");
            }
            if number % 100 == 0 {
                assert_eq!(exporter.get("/healthz"), "ok\n", "{line}");
            }
        }
        // With all of them waiting, and all counters read.
        place.sum();
        exporter.becomes("wattlock_ended_total", "sum\"", place.ended());
        assert!(exporter.open().len() <= 128 + 20, "{line}");
        drop(waiting);
        assert_eq!(exporter.get("/healthz"), "ok\n", "{line}");
    }
}

/// Fewer descriptors than it counted on at its start, down to none.
#[test]
fn descriptors_that_run_out_cost_clients_that_wait_and_nothing_else() {
    let place = Place::new();
    let exporter = Exporter::of(&place, &[]);
    assert_eq!(exporter.get("/healthz"), "ok\n");
    // The listener alone.
    while exporter.open().values().filter(|open| open.starts_with("socket:")).count() > 1 {
        std::thread::sleep(Duration::from_millis(10));
    }
    let open = exporter.open();
    let free = (0..).find(|number| !open.contains_key(number)).unwrap();
    let limit = |current: u64| {
        let (pid, kind) =
            (rustix::process::Pid::from_child(&exporter.child), rustix::process::Resource::Nofile);
        let limit = rustix::process::Rlimit { current: Some(current), ..rustix::process::getrlimit(kind) };
        rustix::process::prlimit(Some(pid), kind, limit).unwrap();
    };
    limit(free + 8);
    let mut waiting = Vec::new();
    for _ in 0..100 {
        waiting.push(exporter.connect());
        assert_eq!(exporter.get("/healthz"), "ok\n");
    }
    drop(waiting);
    assert_eq!(exporter.get("/healthz"), "ok\n");
    // None at all: a client waits, and is answered when there are some.
    limit(free);
    let mut patient = exporter.connect();
    patient.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").unwrap();
    patient.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    assert_eq!(patient.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    limit(free + 8);
    patient.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut answer = String::new();
    patient.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("ok\n"), "{answer:?}");
}

#[test]
fn an_address_that_is_taken_or_none_has_a_line_and_an_exit_code() {
    let place = Place::new();
    let exporter = Exporter::of(&place, &[]);
    let refused = |address: &str| {
        let output = place.command(&["exporter", "--listen", address]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, line) = refused(&exporter.address);
    assert_eq!(code, Some(46), "{line}");
    assert!(line.contains("another program listens there") && line.lines().count() == 1, "{line}");
    for wrong in ["19469", "unix:relative", "127.0.0.1:99999"] {
        assert_eq!(refused(wrong).0, Some(2), "{wrong}");
    }
    let socket = format!("unix:{}", place.at("socket").display());
    let of = |command: &mut Command| Exporter::start(command);
    let first = of(&mut place.command(&["exporter", "--listen", &socket]));
    assert_eq!(first.address, socket);
    let (code, line) = refused(&socket);
    assert_eq!(code, Some(46), "{line}");
    drop(first);
    // What the killed one left is no obstacle.
    let again = of(&mut place.command(&["exporter", "--listen", &socket]));
    let mut stream = UnixStream::connect(place.at("socket")).unwrap();
    stream.write_all(b"GET /healthz HTTP/1.0\r\nHost: anything\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("\r\n\r\nok\n"), "{answer}");
    drop(again);
}

#[test]
fn once_prints_what_a_scrape_would() {
    let place = Place::new();
    place.sum();
    let output = place.command(&["exporter", "--once"]).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(value(&text, "wattlock_requests_total", "sum\"") > 0.0, "{text}");
    assert_eq!(value(&text, "wattlock_exporter_build_info", ""), 1.0);
}

#[test]
fn the_page_opens_in_a_browser_and_asks_its_own_server_only() {
    let place = Place::new();
    let exporter = Exporter::of(&place, &[]);
    let (pictures, address) = (tempfile::tempdir().unwrap(), format!("http://{}/", exporter.address));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/test/pages.py");
    let looked = Command::new("python3").arg(script).arg(pictures.path()).arg(address).output().unwrap();
    if looked.status.code() == Some(3) {
        println!("skipped: no Chromium installed");
        return;
    }
    assert!(looked.status.success(), "{looked:?}");
    let picture = fs::metadata(pictures.path().join("exporter-390-dark.png")).unwrap();
    assert!(picture.len() > 5_000, "the page is not blank");
}
