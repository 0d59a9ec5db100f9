//! `wattlock serve --compare --config`: a site's own configuration, run twice by the real nginx beside a site that must
//! not notice.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use crate::serve::{Place, words};

/// A site in a folder of its own, which nginx's workers of another user can read; a certificate lies there.
fn site(config: &str, more: &[(&str, &str)]) -> Place {
    let place = Place::new();
    fs::set_permissions(place.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
    put(&place, "site/nginx.conf", config);
    for (name, text) in more {
        put(&place, &format!("site/{name}"), text);
    }
    let mut openssl = Command::new("openssl");
    openssl.args([
        "req",
        "-x509",
        "-nodes",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-subj",
        "/CN=a",
    ]);
    let made =
        openssl.arg("-keyout").arg(place.path("site/own.key")).arg("-out").arg(place.path("site/own.pem"));
    assert!(made.output().unwrap().status.success());
    place
}

fn put(place: &Place, name: &str, text: &str) {
    let path = place.path(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A short comparison of the site.
fn compare(place: &Place, more: &[&str]) -> Command {
    let mut command = lasting(place, "0.6", more);
    if !more.contains(&"--connections") {
        command.args(["--connections", "8"]);
    }
    command
}

/// One of so many seconds.
fn lasting(place: &Place, seconds: &str, more: &[&str]) -> Command {
    let (config, prefix) = (place.path("site/nginx.conf"), place.path("site"));
    let mut command = place.command(&["serve", "--compare", "--seconds", seconds, "--rounds", "2"]);
    command.arg("--config").arg(config).arg("--prefix").arg(prefix).args(more);
    command
}

/// Everything below a folder: kind and permissions, owner, time of change and content.
fn everything(folder: &Path) -> BTreeMap<String, (u32, u32, i64, Vec<u8>)> {
    let (mut all, mut left) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(path) = left.pop() {
        let about = path.symlink_metadata().unwrap();
        if about.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let content = if about.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        all.insert(path.display().to_string(), (about.mode(), about.uid(), about.mtime_nsec(), content));
    }
    all
}

/// What is left of a run.
fn left(place: &Place) -> Vec<String> {
    let entries = fs::read_dir(place.path("tmp")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

fn rows(place: &Place) -> Vec<Value> {
    let sheet: Value = serde_json::from_slice(&fs::read(place.path("site.json")).unwrap()).unwrap();
    sheet["rows"].as_array().unwrap().clone()
}

fn refusal(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    said.lines().last().unwrap_or_default().to_owned()
}

/// Names of files that belong to the site's own nginx, and would show in the site's folder if a copy used one.
const SITE: &str = "pid run/nginx.pid;\nlock_file run/lock;\nerror_log logs/error.log debug;\nworker_processes 7;\n\
                    daemon on;\nevents { worker_connections 128; }\nhttp {\n  include types;\n  \
                    include \"conf.d/*.conf\";\n  log_format own '$request_time \"$status\" {}';\n  \
                    access_log logs/access.log own;\n  client_body_temp_path body;\n  proxy_temp_path proxy;\n  \
                    proxy_cache_path cache keys_zone=c:1m;\n  ssl_certificate own.pem;\n  \
                    ssl_certificate_key own.key;\n  ssl_session_cache shared:SSL:1m;\n  root www;\n  \
                    include sites-enabled/*;\n}\n";

fn whole_site() -> Place {
    let place = site(
        SITE,
        &[
            ("types", "types { text/html html; }\n"),
            ("conf.d/gzip.conf", "gzip on;\ngzip_types text/html;\n"),
            (
                "sites-available/one",
                "server {\n  listen 443 ssl default_server;\n  listen [::]:443 ssl;\n  server_name \
              one.example;\n  include snippets/php;\n}\n",
            ),
            (
                "sites-available/two",
                "server {\n  listen 443 ssl;\n  listen unix:run/two.sock;\n  server_name \
              *.two.example;\n  location / { return 200 two; }\n  location /api { proxy_cache c; proxy_pass \
              http://api.example; }\n}\nserver { listen 80; return 301 https://$host$request_uri; }\n",
            ),
            (
                "snippets/php",
                "location ~ \\.php$ { fastcgi_pass unix:/run/php.sock; }\nlocation /put { dav_methods PUT; }\n",
            ),
            ("www/index.html", &"what the site serves\n".repeat(200)),
        ],
    );
    fs::create_dir(place.path("site/sites-enabled")).unwrap();
    for name in ["one", "two"] {
        let link = place.path(&format!("site/sites-enabled/{name}"));
        std::os::unix::fs::symlink(format!("../sites-available/{name}"), link).unwrap();
    }
    place
}

#[test]
fn a_sites_own_configuration_is_compared_and_the_site_stays_as_it_is() {
    let place = whole_site();
    let before = everything(&place.path("site"));
    let json = place.path("site.json");
    let output = compare(&place, &["--path", "/", "--path", "/a.php", "--json", json.to_str().unwrap()])
        .output()
        .unwrap();
    let said = words(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(everything(&place.path("site")), before, "{said}");
    assert_eq!(left(&place), [""; 0], "{said}");
    for wanted in [
        "one.example",
        "any.two.example",
        "`dav_methods`",
        "`fastcgi_pass unix:/run/php.sock`",
        "not on this machine: `proxy_pass http://api.example`",
        "% of handshakes waited",
    ] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    let rows = rows(&place);
    assert_eq!(rows.len(), 2, "{said}");
    for (row, name) in rows.iter().zip(["one.example", "any.two.example"]) {
        assert_eq!((&row["bench"], &row["params"]["server"]), (&"serve".into(), &name.into()), "{row}");
        assert_eq!((&row["by"], &row["unit"]), (&"cpu".into(), &"responses/s".into()), "{row}");
        let detail = &row["detail"];
        assert!(detail["no_figure"].is_null() && !detail["engines"].as_array().unwrap().is_empty(), "{row}");
        for side in ["stock", "ours"] {
            assert!(detail[side]["done"].as_u64() > Some(0) && detail[side]["failed"] == 0, "{row}");
            assert!(detail[side]["resumed"].as_u64() > Some(0), "{row}");
        }
        // What is told is what the interval says.
        let [low, high] = ["low", "high"].map(|key| row[key].as_f64().unwrap());
        let saving = |ratio: f64| 100.0 * (1.0 - 1.0 / ratio);
        let told = &detail["saving_percent"];
        assert!((told["low"].as_f64().unwrap() - saving(low)).abs() < 1e-6, "{row}");
        assert_eq!(told["median"].is_null(), low <= 1.0 && high >= 1.0, "{row}");
    }
    let statuses = &rows[0]["detail"]["statuses"];
    assert!(statuses["200"].as_u64() > Some(0) && statuses["204"].as_u64() > Some(0), "{statuses}");
}

#[test]
fn debians_default_site_with_tls_is_compared() {
    if !Path::new("/etc/nginx/nginx.conf").exists() {
        eprintln!("skipped: no /etc/nginx here");
        return;
    }
    let place = site("", &[]);
    let copied = Command::new("cp").arg("-aT").arg("/etc/nginx").arg(place.path("debian")).status().unwrap();
    assert!(copied.success());
    let plain = place
        .command(&["serve", "--compare", "--config"])
        .arg(place.path("debian/nginx.conf"))
        .output()
        .unwrap();
    assert!(refusal(&plain).contains("no server of it speaks TLS"), "{}", words(&plain));
    let text = fs::read_to_string(place.path("debian/nginx.conf")).unwrap();
    let own = place.path("site").display().to_string();
    let server = format!(
        "http {{\nssl_certificate {own}/own.pem;\nssl_certificate_key {own}/own.key;\nserver {{ listen 443 ssl; \
                          server_name tls.example; root /var/www/html; }}\n"
    );
    fs::write(place.path("debian/nginx.conf"), text.replacen("http {", &server, 1)).unwrap();
    let before = everything(&place.path("debian"));
    let arguments =
        ["serve", "--compare", "--seconds", "0.4", "--rounds", "1", "--connections", "4", "--config"];
    let output = place.command(&arguments).arg(place.path("debian/nginx.conf")).output().unwrap();
    let said = words(&output);
    assert!(output.status.success() && said.contains("tls.example"), "{said}");
    assert_eq!(everything(&place.path("debian")), before);
    assert_eq!(left(&place), [""; 0]);
}

/// A server of plain HTTP that counts its requests.
fn counting() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, count) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            counted.fetch_add(1, Ordering::SeqCst);
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    (port, count)
}

#[test]
fn an_upstream_on_this_machine_has_requests_only_if_that_is_asked_for() {
    let (port, count) = counting();
    let place = site(
        &format!(
            "events {{ }}\nhttp {{\n  upstream app {{ server 127.0.0.1:{port}; }}\n  server {{\n    \
             listen 443 ssl;\n    ssl_certificate own.pem; ssl_certificate_key own.key;\n    \
             location / {{ proxy_pass http://app; }}\n  }}\n}}\n"
        ),
        &[],
    );
    let json = place.path("site.json");
    let more = ["--resumed", "0", "--json", json.to_str().unwrap()];
    let output = compare(&place, &more).output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
    assert_eq!(count.load(Ordering::SeqCst), 0);
    assert!(
        words(&output).contains("without --with-upstreams: `proxy_pass http://app`"),
        "{}",
        words(&output)
    );
    let row = rows(&place).swap_remove(0);
    assert_eq!(row["detail"]["ours"]["resumed"], 0, "{row}");
    // Without the upstream's part of the work a saving is too good.
    assert!(words(&output).contains("1 location answers 204 here"), "{}", words(&output));
    assert!(row["note"].as_str().unwrap().contains("upper bound"), "{row}");
    assert_eq!(row["detail"]["answered_with_204"], 1, "{row}");
    let output = compare(&place, &[&more[..], &["--with-upstreams"]].concat()).output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
    assert!(count.load(Ordering::SeqCst) > 0);
    assert!(rows(&place)[0]["detail"]["statuses"]["200"].as_u64() > Some(0));
}

#[test]
fn what_refuses_the_visitors_is_told() {
    let place = site(
        "events { }\nhttp {\n  ssl_certificate own.pem; ssl_certificate_key own.key;\n  wattlock off;\n  \
         server { listen 443 ssl; deny all; }\n}\n",
        &[],
    );
    let output = compare(&place, &[]).output().unwrap();
    let said = words(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("403: access is denied") && said.contains("no figure: no handshake came to Wattlock"),
        "{said}"
    );
}

#[test]
fn what_cannot_be_compared_is_one_line_and_leaves_nothing() {
    let tls = "listen 443 ssl; ssl_certificate own.pem; ssl_certificate_key own.key;";
    let http = |more: &str| format!("events {{ }}\nhttp {{\n server {{ {tls}\n{more} }} }}");
    for (config, more, code, wanted) in [
        ("load_module own.so;\nhttp { }".to_owned(), &[][..], 1, "`load_module` of"),
        (http("js_content a.b;"), &[], 1, "nginx.conf:4: `js_content` is not in the list"),
        (http("content_by_lua_block { }"), &[], 1, "a block of Lua"),
        (http("include gone;"), &[], 42, "gone does not exist"),
        (http("include /dev/zero;"), &[], 41, "/dev/zero is not a regular file"),
        (http("etag maybe;"), &[], 1, "site/nginx.conf:4"),
        (http(""), &["--server", "other"], 2, "--help"),
        (http(""), &["--connections", "9999"], 2, "--help"),
        (http(""), &["--path", "nothing"], 2, "--help"),
        (http("").replace("own.key", "gone.key"), &[], 42, "gone.key does not exist"),
        (http("return 444;"), &[], 1, "closed by the server"),
    ] {
        let place = site(&config, &[]);
        let before = everything(&place.path("site"));
        let output = compare(&place, more).output().unwrap();
        assert!(refusal(&output).contains(wanted), "{wanted}: {}", words(&output));
        assert_eq!(output.status.code(), Some(code), "{}", words(&output));
        assert_eq!(everything(&place.path("site")), before, "{wanted}");
        assert_eq!(left(&place), [""; 0], "{wanted}");
    }
    let place = site("", &[]);
    for arguments in [
        &["serve"][..],
        &["serve", "--config", "x"],
        &["serve", ".", "--compare", "--config", "x"],
        &["serve", ".", "--compare", "--resumed", "5"],
        &["serve", "--compare", "--config", "x", "--resumed", "101"],
    ] {
        assert_eq!(place.command(arguments).output().unwrap().status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn an_interrupted_comparison_leaves_nothing_behind() {
    let place = whole_site();
    let before = everything(&place.path("site"));
    let mut command = lasting(&place, "600", &[]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("one.example"));
    // A pause interrupts the client's waiting (signal(7)), and it goes on.
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &child.id().to_string()]).status();
        assert!(sent.unwrap().success(), "{name}");
    };
    for _ in 0..30 {
        signal("-STOP");
        signal("-CONT");
    }
    let folders = left(&place);
    let copy = folders.iter().find(|name| name.starts_with("wattlock-server-")).unwrap();
    let mode = fs::metadata(place.path("tmp").join(copy)).unwrap().mode();
    assert_eq!(mode & 0o777, 0o700);
    signal("-INT");
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
    assert_eq!(everything(&place.path("site")), before);
    assert_eq!(left(&place), [""; 0]);
}

#[test]
fn a_server_that_closes_costs_its_own_figure_alone() {
    let place = site(
        "events { }\nhttp {\n  ssl_certificate own.pem; ssl_certificate_key own.key;\n  \
         server { listen 443 ssl; server_name closes.example; return 444; }\n  \
         server { listen 443 ssl; server_name answers.example; return 200 yes; }\n  \
         server { listen 8443 ssl; server_name answers.example; return 200 too; }\n}\n",
        &[],
    );
    let json = place.path("site.json");
    let output = compare(&place, &["--json", json.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", words(&output));
    let last = refusal(&output);
    assert!(last.contains("closes.example") && last.contains("closed by the server"), "{last}");
    let rows = rows(&place);
    let names: Vec<&str> = rows.iter().map(|row| row["params"]["server"].as_str().unwrap()).collect();
    assert_eq!(names, ["closes.example", "answers.example:443", "answers.example:8443"]);
    let detail = |at: usize| &rows[at]["detail"];
    assert!(detail(0)["no_figure"].is_string() && rows[0]["ratio"].is_null(), "{}", rows[0]);
    for at in [1, 2] {
        assert!(
            detail(at)["no_figure"].is_null() && detail(at)["ours"]["done"].as_u64() > Some(0),
            "{}",
            rows[at]
        );
    }
    let picked = ["--server", "answers.example:8443", "--json", json.to_str().unwrap()];
    let output = compare(&place, &picked).output().unwrap();
    assert!(output.status.success() && !words(&output).contains("closes.example"), "{}", words(&output));
}

#[test]
fn every_path_is_measured_of_a_server_that_closes_behind_each_answer() {
    let place = site(
        "events { }\nhttp {\n  ssl_certificate own.pem; ssl_certificate_key own.key;\n  keepalive_timeout 0;\n  \
         server { listen 443 ssl; location /one { return 201 one; } location /two { return 202 two; } }\n}\n",
        &[],
    );
    let json = place.path("site.json");
    let more = ["--path", "/one", "--path", "/two", "--path", "/three", "--json", json.to_str().unwrap()];
    let output = compare(&place, &more).output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
    let row = rows(&place).swap_remove(0);
    let statuses = row["detail"]["statuses"].as_object().unwrap();
    assert_eq!(statuses.keys().collect::<Vec<_>>(), ["201", "202", "404"], "{row}");
    assert!(row["detail"]["no_figure"].is_null(), "{row}");
}

#[test]
fn limits_of_http_leave_the_status_page_alone() {
    let place = site(
        "events { }\nhttp {\n  ssl_certificate own.pem; ssl_certificate_key own.key;\n  \
         limit_req_zone $binary_remote_addr zone=a:1m rate=1r/m;\n  limit_req zone=a;\n  \
         limit_conn_zone $binary_remote_addr zone=b:1m;\n  limit_conn b 1;\n  \
         server { listen 443 ssl; server_name a.example; limit_req zone=a burst=1000000 nodelay;\n  \
         limit_conn b 1000; return 200 yes; }\n}\n",
        &[],
    );
    let json = place.path("site.json");
    let output = compare(&place, &["--json", json.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
    assert!(rows(&place)[0]["detail"]["no_figure"].is_null(), "{}", words(&output));
}

/// The folders from a file up to this one.
fn above<'a>(file: &'a Path, root: &'a Path) -> impl Iterator<Item = fs::Metadata> + 'a {
    let folders = file.ancestors().skip(1).take_while(move |folder| folder.starts_with(root));
    folders.map(|folder| fs::metadata(folder).unwrap())
}

/// A site's socket may be one that only root reaches, or a group: nginx itself gives every socket mode 0666.
#[test]
fn no_other_user_reaches_the_copys_own_sockets() {
    let place = site(
        "events { }\nhttp {\n  ssl_certificate own.pem; ssl_certificate_key own.key;\n  \
         server { listen unix:run/own.sock; return 200 inner; }\n  \
         server { listen 443 ssl; server_name a.example; return 200 yes; }\n}\n",
        &[],
    );
    let is_root = rustix::process::geteuid().is_root();
    for more in [&[][..], &["--with-upstreams"]] {
        let mut child = lasting(&place, "600", more);
        let mut child = child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(lines.next().unwrap().unwrap().contains("a.example"));
        let tmp = place.path("tmp");
        let (mut sockets, mut folders) = (Vec::new(), vec![tmp.clone()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
                match entry.file_type().unwrap() {
                    kind if kind.is_dir() => folders.push(entry.path()),
                    kind if kind.is_socket() => sockets.push(entry.path()),
                    _ => {}
                }
            }
        }
        assert_eq!(sockets.len(), 2, "one of each side: {sockets:?}");
        for socket in &sockets {
            let mut closed = above(socket, &tmp).filter(|about| about.mode() & 0o077 == 0);
            let closed = closed.next().unwrap_or_else(|| panic!("{socket:?} is open"));
            // nginx's workers reach them only if they are to.
            let is_workers = closed.uid() != rustix::process::geteuid().as_raw();
            assert_eq!(is_workers, is_root && !more.is_empty(), "{socket:?}");
        }
        let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        assert!(sent.unwrap().success());
        let rest: Vec<String> = lines.map(Result::unwrap).collect();
        assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
        assert_eq!(left(&place), [""; 0]);
    }
}

#[test]
fn a_servers_own_socket_is_reached_through_the_copy() {
    let place = site("", &[]);
    let socket = place.path("site/own.sock").display().to_string();
    // The site itself would count.
    let (asked, listener) =
        (Arc::new(AtomicUsize::new(0)), std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let counted = Arc::clone(&asked);
    std::thread::spawn(move || {
        for _ in listener.incoming() {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let config = format!(
        "events {{ }}\nhttp {{\n  ssl_certificate own.pem; ssl_certificate_key own.key;\n  \
         server {{ listen unix:{socket}; return 200 inner; }}\n  \
         server {{ listen 443 ssl; location / {{ proxy_pass http://unix:{}/x/..//site/own.sock:/; }} }}\n}}\n",
        place.0.path().display()
    );
    fs::create_dir(place.path("x")).unwrap();
    put(&place, "site/nginx.conf", &config);
    let json = place.path("site.json");
    let output = compare(&place, &["--with-upstreams", "--json", json.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
    let statuses = rows(&place)[0]["detail"]["statuses"].as_object().unwrap().clone();
    assert_eq!(statuses.keys().collect::<Vec<_>>(), ["200"], "{}", words(&output));
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}
