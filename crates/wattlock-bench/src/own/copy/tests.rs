//! Copies, by their text.

use std::path::PathBuf;

use super::*;

/// A site in a folder: its configuration, and what is asked of the copy.
struct Case {
    folder: tempfile::TempDir,
    nginx: Nginx,
    module: Option<PathBuf>,
    with_upstreams: bool,
    hybrid: bool,
    connections: usize,
}

impl Case {
    fn of(text: &str) -> Case {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("nginx.conf"), text).unwrap();
        let nginx =
            Nginx { program: "/n".into(), version: [1, 22, 1], built: String::new(), libraries: None };
        Case { folder, nginx, module: None, with_upstreams: false, hybrid: true, connections: 8 }
    }

    fn make(&self) -> Result<Twin> {
        let tree = Tree::read(&self.folder.path().join("nginx.conf"))?;
        Twin::make(
            &tree,
            &Plan {
                nginx: &self.nginx,
                prefix: Path::new("/prefix"),
                config: self.folder.path(),
                folder: Path::new("/own"),
                spool: Path::new("/spool"),
                module: self.module.as_deref(),
                hybrid: self.hybrid,
                with_upstreams: self.with_upstreams,
                workers: 1,
                core: None,
                connections: self.connections,
            },
        )
    }

    /// The copy without quotes.
    fn text(&self) -> String {
        self.make().unwrap().text.replace('"', "")
    }

    fn refusal(&self) -> String {
        format!("{:#}", self.make().unwrap_err())
    }
}

fn http(inner: &str) -> Case {
    Case::of(&format!("events {{ }}\nhttp {{\n{inner}\n}}\n"))
}

/// Every absolute path of a copy's text.
fn paths(text: &str) -> Vec<&str> {
    text.split(|c: char| c.is_whitespace() || matches!(c, ';' | '"'))
        .filter_map(|word| word.find('/').filter(|at| *at == 0).map(|_| word))
        .collect()
}

#[test]
fn what_nginx_writes_lies_in_folders_of_ours() {
    let case = http(
        "access_log logs/a.log combined buffer=4k;\naccess_log syslog:server=10.0.0.1 combined if=$x;\n\
         error_log /var/log/e.log;\nclient_body_temp_path /var/b 1 2;\nproxy_temp_path p;\n\
         proxy_cache_path /var/cache levels=1:2 keys_zone=z:1m;\nfastcgi_cache_path /var/other keys_zone=f:1m;\n\
         server { listen 80; access_log /var/log/$host.log; access_log off; location / { access_log logs/a.log; } }",
    );
    let twin = case.make().unwrap();
    let text = twin.text.replace('"', "");
    for path in paths(&text) {
        let ours = ["/own/", "/spool/", "/prefix/html"].iter().any(|start| path.starts_with(start));
        assert!(ours || path == "/", "{path}: {text}");
    }
    assert!(text.contains("access_log /own/access-0.log combined buffer=4k;"), "{text}");
    assert!(text.contains("access_log /own/access-1.log combined if=$x;"), "{text}");
    assert!(text.contains("proxy_cache_path /spool/cache-1 levels=1:2 keys_zone=z:1m;"), "{text}");
    assert!(
        text.contains("pid /own/pid;") && text.contains("proxy_temp_path /spool/proxy_temp_path;"),
        "{text}"
    );
    assert!(!text.contains("syslog") && !text.contains("/var/"), "{text}");
}

#[test]
fn every_address_is_a_free_port_of_loopback_and_one_address_is_one_port() {
    let case = http(
        "server { listen 443 ssl default_server http2 reuseport; listen [::]:443 ssl ipv6only=on; }\n\
         server { listen *:443 ssl; server_name a.example *.b.example; }\n\
         server { listen 10.1.2.3:8000-8002; listen unix:/run/x.sock; }\nserver { }",
    );
    let twin = case.make().unwrap();
    let text = twin.text.replace('"', "");
    let listens: Vec<&str> = text.lines().filter_map(|line| line.trim().strip_prefix("listen ")).collect();
    assert_eq!(listens.len(), 8, "{text}");
    assert!(
        listens.iter().all(|one| one.starts_with("127.0.0.1:") || one.starts_with("unix:/own/")),
        "{text}"
    );
    let port = |at: usize| listens[at].split([' ', ';']).next().unwrap();
    assert_eq!(port(0), port(2), "{text}");
    assert_ne!(port(0), port(1), "{text}");
    assert!(listens[0].ends_with(" ssl default_server http2 reuseport;"), "{text}");
    assert!(listens[1].ends_with(" ssl;"), "{text}");
    // With the one of the server that names none.
    assert_eq!(twin.addresses.len(), 6, "{:?}", twin.addresses);
    let names: Vec<&str> = twin.targets.iter().map(|target| target.name.as_str()).collect();
    assert_eq!(names, ["localhost", "a.example"]);
    assert!(http("server { listen 1-65535; }").refusal().contains("more than 256 addresses"));
    assert!(http("server { listen a:b; }").refusal().contains("nginx.conf:3: `a:b`: no port"));
}

#[test]
fn no_request_leaves_this_machine() {
    let inner = "resolver 10.0.0.1;\nupstream app { server 127.0.0.1:3000; keepalive 4; }\n\
                 upstream mixed { server 127.0.0.1:3000; server app.example:80 backup; }\nupstream none { }\n\
                 server { listen 8080; listen unix:/run/own.sock; ssl_stapling on; ssl_stapling_verify on;\n\
                 location /a { proxy_redirect default; proxy_pass http://app/x; }\n\
                 location /b { proxy_pass http://mixed; }\nlocation /c { proxy_pass https://app.example; }\n\
                 location /d { proxy_pass http://$host; }\nlocation /e { fastcgi_pass unix:/run/php.sock; }\n\
                 location /f { proxy_pass http://127.0.0.1:8080/self; }\nlocation /g { grpc_pass 10.0.0.1:1; }\n\
                 location /h { if ($x) { proxy_pass http://localhost:3000; } limit_except GET { proxy_pass http://app; } }\n\
                 location /i { proxy_pass http://unix:/run/own.sock:/u; }\nlocation /j { memcached_pass none; } }";
    let mut case = http(inner);
    let text = case.text();
    assert!(!text.contains("_pass ") && !text.contains("upstream") && !text.contains("resolver"), "{text}");
    assert!(!text.contains("_redirect") && !text.contains("stapling"), "{text}");
    assert_eq!(text.matches("return 204;").count(), 10, "{text}");
    case.with_upstreams = true;
    let twin = case.make().unwrap();
    let text = twin.text.replace('"', "");
    let listens =
        text.lines().find_map(|line| line.trim().strip_prefix("listen ")).unwrap().trim_end_matches(';');
    for kept in [
        "proxy_pass http://app/x;",
        "proxy_redirect default;",
        "server 127.0.0.1:3000;",
        "fastcgi_pass unix:/run/php.sock;",
        "proxy_pass http://localhost:3000;",
        &format!("proxy_pass http://{listens}/self;"),
    ] {
        assert!(text.contains(kept), "{kept}: {text}");
    }
    assert!(text.contains("proxy_pass http://unix:/own/socket-") && text.contains(":/u;"), "{text}");
    for gone in ["mixed", "app.example", "$host", "10.0.0.1", "none", ":8080", "/run/own.sock"] {
        assert!(!text.contains(gone), "{gone}: {text}");
    }
    assert_eq!(text.matches("return 204;").count(), 5, "{text}");
    let names =
        http("set_real_ip_from cdn.example;\nset_real_ip_from 10.0.0.0/8;\nset_real_ip_from unix:;").text();
    assert!(
        !names.contains("cdn.example") && names.contains("10.0.0.0/8") && names.contains("unix:"),
        "{names}"
    );
    let told: Vec<&String> = twin.notes.keys().collect();
    assert!(
        told.iter().any(|note| note.contains("not on this machine: `proxy_pass https://app.example`")),
        "{told:?}"
    );
}

#[test]
fn what_is_not_known_or_runs_code_is_refused_with_its_place() {
    for directive in [
        "js_content a.b;",
        "perl x;",
        "content_by_lua_file /x;",
        "init_by_lua 'x';",
        "vhost_traffic_status_dump /x;",
        "state /x;",
        "lua_shared_dict a 1m;",
        "wasm x;",
        "proxy_something_new on;",
        "PROXY_PASS http://x;",
    ] {
        let name = directive.split(' ').next().unwrap();
        let told = http(&format!("server {{\n{directive} }}")).refusal();
        assert!(told.contains(&format!("nginx.conf:4: `{name}` is not in the list")), "{told}");
        assert!(!told.contains('\n'), "{told}");
    }
    let told = Case::of("http { server { rewrite_by_lua_block { x = {} } } }").refusal();
    assert!(told.contains("a block of Lua"), "{told}");
    let case = Case::of(
        "mail { server { listen 25; anything at all; } }\nstream { server { proxy_pass x:1; } }\nhttp { }",
    );
    let notes = case.make().unwrap().notes;
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(!case.text().contains("25"));
    let writes = http("server { dav_methods PUT; proxy_store on; dav_access user:rw; }").make().unwrap();
    assert!(!writes.text.contains("dav_") && !writes.text.contains("store"), "{}", writes.text);
    assert_eq!(writes.notes.len(), 3, "{:?}", writes.notes);
}

#[test]
fn the_two_sides_differ_in_wattlock_alone() {
    let inner = "wattlock_set hold-us 9;\nlog_format m '$request $wattlock_gzip_ratio ${wattlock_x}y';\n\
                 map $wattlock_a $b { default 1; }\nssl_ecdh_curve X25519MLKEM768:X25519;\n\
                 server { listen 443 ssl; wattlock off; }";
    let mut case = http(inner);
    std::fs::write(
        case.folder.path().join("nginx.conf"),
        format!(
            "load_module modules/ngx_http_wattlock_module.so;\nload_module modules/other.so;\n\
                 env OPENSSL_CONF;\nenv TZ;\nuser www-data;\nevents {{ }}\nhttp {{ {inner} }}"
        ),
    )
    .unwrap();
    case.hybrid = false;
    let stock = case.text();
    assert!(!stock.contains("wattlock") && !stock.contains("MLKEM") && !stock.contains("OPENSSL"), "{stock}");
    assert!(
        stock.contains("log_format m $request - -y;") && stock.contains("ssl_ecdh_curve X25519;"),
        "{stock}"
    );
    assert!(stock.contains("load_module /prefix/modules/other.so;") && stock.contains("env TZ;"), "{stock}");
    case.module = Some("/lib/ngx_http_wattlock_module.so".into());
    case.hybrid = true;
    let twin = case.make().unwrap();
    let ours = twin.text.replace('"', "");
    assert_eq!(ours.matches("load_module /lib/ngx_http_wattlock_module.so;").count(), 1, "{ours}");
    assert_eq!(ours.matches("wattlock_module").count(), 1, "{ours}");
    assert!(
        ours.contains("wattlock on;") && ours.contains("wattlock off;") && ours.contains("hold-us 9"),
        "{ours}"
    );
    assert!(ours.contains("X25519MLKEM768:X25519;") && twin.status.is_some(), "{ours}");
}

#[test]
fn relative_files_are_the_sites_own() {
    let case = http(
        "ssl_trusted_certificate ca.pem;\nauth_basic_user_file users;\nssl_certificate $name.pem;\n\
         ssl_certificate_key engine:x:y;\nroot html;\nserver { listen 1; location /a { alias files/; } root $x/b; }",
    );
    let text = case.text();
    let own = case.folder.path().display().to_string();
    assert!(text.contains(&format!("ssl_trusted_certificate {own}/ca.pem;")), "{text}");
    assert!(text.contains(&format!("auth_basic_user_file {own}/users;")), "{text}");
    assert!(text.contains("root /prefix/html;") && text.contains("alias /prefix/files/;"), "{text}");
    assert!(
        text.contains("ssl_certificate $name.pem;") && text.contains("ssl_certificate_key engine:x:y;"),
        "{text}"
    );
    assert!(text.contains("root $x/b;"), "{text}");
    let gone = http("server {\n  ssl_certificate_key gone.key; }");
    assert!(gone.refusal().contains("nginx.conf:4:") && gone.refusal().ends_with("gone.key does not exist"));
    let pipe = http("ssl_certificate_key pipe;");
    let made = std::process::Command::new("mkfifo").arg(pipe.folder.path().join("pipe")).status().unwrap();
    assert!(made.success() && pipe.refusal().contains("is not a regular file"));
}

#[test]
fn connections_that_do_not_fit_are_refused() {
    let mut case = Case::of("events {\n worker_connections 64;\n}\nhttp { }");
    assert!(case.make().is_ok());
    case.connections = 64;
    let told = case.refusal();
    assert!(told.contains("nginx.conf:2") && told.contains("say --connections 48"), "{told}");
}

#[test]
fn a_server_is_asked_for_by_a_name_that_can_be_sent() {
    for (name, wanted) in [
        ("a.Example", Some("a.example")),
        ("*.b.example", Some("any.b.example")),
        (".c.example", Some("c.example")),
        ("www.d.*", Some("www.d.example")),
        ("_", None),
        ("", None),
        ("~^www", None),
        ("$host", None),
        ("10.0.0.1", None),
        ("-a.b", None),
        ("a..b", None),
        ("a\r\nb", None),
    ] {
        assert_eq!(asked(name).as_deref(), wanted, "{name}");
    }
    let case = http(
        "server { listen 1 ssl; }\nserver { listen 1 ssl; server_name _; }\nserver { listen 2 ssl proxy_protocol; \
         server_name ~x b.example; }\nserver { listen 3 ssl; ssl_reject_handshake on; }\nserver { listen 4; ssl on; }",
    );
    let twin = case.make().unwrap();
    let found: Vec<(&str, bool)> = twin.targets.iter().map(|one| (one.name.as_str(), one.proxied)).collect();
    assert_eq!(found, [("localhost", false), ("b.example", true), ("localhost", false)]);
    assert_eq!(twin.notes.len(), 2, "{:?}", twin.notes);
}

#[test]
fn nginxs_words_are_told_of_the_sites_own_file() {
    let case = http("server {\n  listen 1;\n  etag maybe;\n}");
    let twin = case.make().unwrap();
    let line = twin.text.lines().position(|line| line.contains("etag")).unwrap() + 1;
    let said = format!("invalid value \"maybe\" in /own/nginx.conf:{line}");
    let told = twin.blame(&said, Path::new("/own"));
    let own = case.folder.path().join("nginx.conf");
    assert_eq!(told, format!("invalid value \"maybe\" in {}:5", own.display()));
    for other in [
        "nothing",
        "in /own/nginx.conf:1",
        "in /own/nginx.conf:0",
        "in /own/nginx.conf:99999",
        "/own/nginx.conf:",
    ] {
        assert_eq!(twin.blame(other, Path::new("/own")), other);
    }
}

#[test]
fn debians_own_configuration_is_copied() {
    let config = Path::new("/etc/nginx/nginx.conf");
    if !config.exists() {
        eprintln!("skipped: no /etc/nginx here");
        return;
    }
    let case = Case::of("");
    let tree = Tree::read(config).unwrap();
    let plan = Plan {
        nginx: &case.nginx,
        prefix: Path::new("/usr/share/nginx"),
        config: Path::new("/etc/nginx"),
        folder: Path::new("/own"),
        spool: Path::new("/spool"),
        module: None,
        hybrid: true,
        with_upstreams: false,
        workers: 1,
        core: None,
        connections: 64,
    };
    let twin = Twin::make(&tree, &plan).unwrap();
    assert!(twin.text.contains("types_hash_max_size") && !twin.text.contains("/var/log"), "{}", twin.text);
}
