//! Debian's HAProxy with `ssl-mode-async` and the provider, before a server without TLS. On loopback only.
//!
//! It frees a connection without ending its paused job. So the default setting `pause` must keep its jobs from pausing; what
//! else is shown here of pauses is with another.
#![allow(clippy::unwrap_used, reason = "a test that meets a failure has failed")]

use crate::common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Host, port};

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign").join(name)
}

/// Starts it and waits until it listens, without connecting.
fn start(command: &mut Command, port: u16) -> Running {
    let running = Running(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
    let end = Instant::now() + Duration::from_secs(20);
    let listening = format!("0100007F:{port:04X} 00000000:0000 0A");
    while !std::fs::read_to_string("/proc/net/tcp").unwrap().contains(&listening) {
        assert!(Instant::now() < end, "{command:?} does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    running
}

/// HAProxy and the server behind it; the port of its frontend.
fn proxy(host: &Host, maxconn: u32, frontend: &str) -> (Running, Running, u16) {
    let (behind, before) = (port(), port());
    let server =
        start(host.command(false, "python3").arg(script("server.py")).arg(behind.to_string()), behind);
    host.write(
        "haproxy.cfg",
        format!(
            "global\n maxconn {maxconn}\n ssl-mode-async\n nbthread 1\ndefaults\n mode http\n timeout connect 5s\n \
             timeout client 20s\n timeout server 20s\nfrontend front\n {frontend}\n bind 127.0.0.1:{before} ssl crt \
             rsa.pem\n default_backend back\nbackend back\n server one 127.0.0.1:{behind}\n"
        )
        .as_bytes(),
    );
    let mut command = host.command(true, "haproxy");
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin")).args(["-db", "-f", "haproxy.cfg"]);
    let proxy = start(&mut command, before);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", proxy.0.id())).unwrap();
    assert!(maps.contains("libwattlock_provider"));
    (proxy, server, before)
}

/// A host whose provider has `pause` (`always` is the tests' own).
fn host(pause: &str) -> Host {
    let host = Host::new();
    let config = String::from_utf8(host.read("with.cnf")).unwrap();
    assert!(config.contains("pause = always\n"));
    let line = if pause.is_empty() { String::new() } else { format!("pause = {pause}\n") };
    host.write("with.cnf", config.replace("pause = always\n", &line).as_bytes());
    host.good(
        false,
        "req -x509 -newkey rsa:2048 -nodes -keyout rsa.key -out rsa.crt -days 2 -subj /CN=localhost -addext \
         subjectAltName=DNS:localhost",
    );
    host.write("rsa.pem", &[host.read("rsa.key"), host.read("rsa.crt")].concat());
    host
}

/// Clients that ask as `more` says; what they found is in `all_good`.
fn clients(host: &Host, port: u16, more: &str) -> Child {
    let mut command = host.command(false, "timeout");
    command.args(["60", "python3"]).arg(script("client.py")).args([&port.to_string(), "--ca", "rsa.crt"]);
    command.args(more.split_whitespace()).stdout(Stdio::piped()).spawn().unwrap()
}

fn all_good(clients: Child, count: u64) {
    let told = String::from_utf8(clients.wait_with_output().unwrap().stdout).unwrap();
    let found: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&found["good"], &found["bad"]), (&count.into(), &serde_json::json!([])), "{told}");
}

#[test]
fn three_hundred_handshakes_of_sixteen_clients_succeed_and_pause() {
    let host = host("always");
    let (proxy, _server, port) = proxy(&host, 60, "maxconn 40");
    for version in ["1.2", "1.3"] {
        all_good(clients(&host, port, &format!("--version {version} --handshakes 304 --threads 16")), 304);
    }
    assert!(has_paused(&proxy));
}

/// The helper thread is started when something first pauses, and not before.
fn has_paused(proxy: &Running) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{}/task", proxy.0.id())).unwrap().flatten();
    let names = threads.map(|thread| std::fs::read_to_string(thread.path().join("comm")).unwrap());
    names.collect::<String>().contains("wattlock")
}

/// Clients whose first messages come together, and that are gone before they are answered.
const ABORT: &str = "import contextlib, random, socket, ssl, struct, sys, time
context = ssl.create_default_context()
port, count = int(sys.argv[1]), int(sys.argv[2])
for _ in range(count // 40):
    clients = []
    for _ in range(40):
        outgoing = ssl.MemoryBIO()
        client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname='localhost')
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        clients.append((socket.create_connection(('127.0.0.1', port), 20), outgoing.read()))
    for sock, first in clients:
        sock.sendall(first)
    for sock, _ in clients:
        time.sleep(random.uniform(0, 0.0005))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        sock.close()
";

/// So many handshakes that clients abort; the proxy's resident memory after them.
fn abort(host: &Host, proxy: &Running, port: u16, count: u32) -> u64 {
    let mut command = host.command(false, "python3");
    let done = command.args(["-c", ABORT, &port.to_string(), &count.to_string()]).status().unwrap();
    assert!(done.success());
    // What is answered now came behind them.
    all_good(clients(host, port, "--handshakes 16 --threads 4"), 16);
    let pages = std::fs::read_to_string(format!("/proc/{}/statm", proxy.0.id())).unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn aborted_handshakes_leave_no_memory_behind_because_no_job_pauses() {
    let host = host("");
    let (proxy, _server, port) = proxy(&host, 200, "maxconn 190");
    let before = abort(&host, &proxy, port, 2000);
    let after = abort(&host, &proxy, port, 6000);
    // 5 KiB for each that paused would be 30 MB.
    assert!(after < before + (6 << 20), "6000 aborted handshakes: {before} to {after} bytes");
    assert!(!has_paused(&proxy));
    println!("6000 aborted handshakes: {before} to {after} bytes");
}

/// For docs/use/haproxy.md: what it costs if jobs pause. `cargo test ... --ignored --nocapture`
#[test]
#[ignore = "a measurement of another program's leak"]
fn what_aborted_handshakes_cost_by_setting() {
    for pause in ["", "jobs"] {
        let host = host(pause);
        let (proxy, _server, port) = proxy(&host, 200, "maxconn 190");
        let memory: Vec<u64> =
            [1000, 10_000, 10_000].map(|count| abort(&host, &proxy, port, count) >> 10).into();
        println!(
            "pause = {pause:5} KiB resident after 1,000, 11,000 and 21,000: {memory:?}, paused: {}",
            has_paused(&proxy)
        );
    }
}

#[test]
fn eventfds_fit_into_a_table_that_was_made_large_enough() {
    let host = host("always");
    let (mut proxy, _server, port) = proxy(&host, 60, "maxconn 40");
    let first = clients(&host, port, "--handshakes 28 --threads 28 --path /slow");
    std::thread::sleep(Duration::from_millis(1500));
    let second = clients(&host, port, "--handshakes 11 --threads 11 --path /slow");
    all_good(first, 28);
    all_good(second, 11);
    assert_eq!(proxy.0.try_wait().unwrap(), None);
}

/// A `bind` line names the group, and so do curl's own option and, for a program that has none, `openssl.cnf`.
#[test]
fn the_hybrid_is_agreed_on_where_a_bind_line_names_it() {
    let (host, only) = (host("always"), port());
    let bind = format!("bind 127.0.0.1:{only} ssl crt rsa.pem curves X25519MLKEM768");
    let (proxy, _server, usual) = proxy(&host, 60, &format!("maxconn 40\n {bind}"));
    let config = String::from_utf8(host.read("with.cnf")).unwrap();
    let (first, rest) = config.split_once('\n').unwrap();
    assert!(first.starts_with("openssl_conf"), "{first}");
    let (section, rest) = rest.split_once('\n').unwrap();
    let groups = "[tls]\nsystem_default = groups\n[groups]\nGroups = X25519MLKEM768:X25519\n";
    let text = format!("{first}\n{section}\nssl_conf = tls\n{rest}\n{groups}");
    host.write("groups.cnf", text.as_bytes());
    let asks = |config: &str, options: &str, port: u16| {
        let mut curl = host.command(true, "curl");
        curl.env("OPENSSL_CONF", host.path(config)).args(["-sS", "--max-time", "20", "--cacert", "rsa.crt"]);
        curl.args(options.split_whitespace()).arg(format!("https://localhost:{port}/"));
        let output = curl.output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (config, options, port, good) in [
        ("with.cnf", "--curves X25519MLKEM768", only, true),
        ("groups.cnf", "", only, true),
        ("groups.cnf", "", usual, true),
        ("with.cnf", "--curves X25519", usual, true),
        ("with.cnf", "--curves X25519", only, false),
    ] {
        let (done, said) = asks(config, options, port);
        assert_eq!(done, good, "{config} {options}: {said}");
    }
    assert!(has_paused(&proxy));
}
