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
        listens.iter().all(|one| one.starts_with("127.0.0.1:") || one.starts_with("unix:/spool/sockets/")),
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
                 location /h { if ($x) { proxy_pass http://localhost:3000; }\n\
                 limit_except GET { proxy_pass http://app; } }\n\
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
    // Where workers of another user reach it.
    assert!(
        text.contains("proxy_pass http://unix:/spool/sockets/socket-") && text.contains(":/u;"),
        "{text}"
    );
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
    let inner = "wattlock_set hold-us 9;\nwattlock_set telemetry yes;\n\
                 log_format m '$request $wattlock_gzip_ratio ${wattlock_x}y';\n\
                 map $wattlock_a $b { default 1; }\nssl_ecdh_curve X25519MLKEM768:X25519;\n\
                 server { listen 443 ssl; wattlock off; }";
    let mut case = http(inner);
    let module = case.folder.path().join("ngx_http_geoip_module.so");
    std::fs::write(&module, "").unwrap();
    let module = format!("load_module {};", module.display());
    std::fs::write(
        case.folder.path().join("nginx.conf"),
        format!(
            "load_module modules/ngx_http_wattlock_module.so;\n{module}\n\
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
    assert!(stock.contains(&module) && stock.contains("env TZ;"), "{stock}");
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
    // Its counters would lie outside of the copy's folders.
    assert!(!ours.contains("telemetry"), "{ours}");
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
fn servers_are_told_apart_as_nginx_tells_them_apart() {
    let found = |inner: &str| {
        let twin = http(inner).make().unwrap();
        let of = |target: &Target| {
            let known = twin.addresses.iter().position(|address| *address == target.address).unwrap();
            (target.name.clone(), target.label.clone(), target.proxied, known)
        };
        (twin.targets.iter().map(of).collect::<Vec<_>>(), twin.notes.len())
    };
    let names = |inner: &str| {
        let (targets, notes) = found(inner);
        (targets.into_iter().map(|(_, label, proxied, _)| (label, proxied)).collect::<Vec<_>>(), notes)
    };
    let of = |wanted: &[(&str, bool)]| -> Vec<(String, bool)> {
        wanted.iter().map(|(label, proxied)| ((*label).to_owned(), *proxied)).collect()
    };
    let (targets, notes) = names(
        "server { listen 1 ssl; }\nserver { listen 1 ssl; server_name _; }\nserver { listen 2 ssl proxy_protocol; \
         server_name ~x b.example; }\nserver { listen 3 ssl; ssl_reject_handshake on; }\n\
         server { listen 4; ssl on; server_name d.example; }",
    );
    assert_eq!(targets, of(&[("localhost", false), ("b.example", true), ("d.example", false)]));
    assert_eq!(notes, 2);
    // The flags of one `listen` are the address's, whichever server has it.
    let (targets, _) = names(
        "server { listen 443; server_name a.example; }\n\
         server { listen *:443 ssl proxy_protocol; server_name b.example; }\n\
         server { listen 0.0.0.0:443 http2; server_name c.example; }\nserver { listen 444; }",
    );
    assert_eq!(targets, of(&[("a.example", true), ("b.example", true), ("c.example", true)]));
    // nginx's default is the one that says so, also if it comes last and has no name.
    let (targets, _) = names(
        "server { listen 443 ssl; server_name _; }\nserver { listen 443 ssl; server_name localhost; }\n\
         server { listen 443 default_server; server_name _; }",
    );
    assert_eq!(targets, of(&[("localhost", false), ("unnamed.invalid", false)]));
    // A server that is the default of its second address is measured there.
    let (targets, _) = found(
        "server { listen 443 ssl; server_name a.example; }\nserver { listen 443 ssl; listen 8443 ssl; }",
    );
    assert_eq!(targets[1].0, "localhost");
    assert_ne!(targets[0].3, targets[1].3);
    // One name at two ports, or at two addresses.
    let (targets, _) = names(
        "server { listen 443 ssl; server_name a.example; }\nserver { listen 8443 ssl; server_name a.example; }\n\
         server { listen 10.0.0.1:443 ssl; server_name b.example; }\n\
         server { listen [::1]:443 ssl; server_name b.example; }\nserver { listen 9 ssl; server_name c.example; }",
    );
    let labels =
        ["a.example:443", "a.example:8443", "b.example@10.0.0.1:443", "b.example@[::1]:443", "c.example"];
    assert_eq!(targets, of(&labels.map(|label| (label, false))));
    // What `http` says is every server's.
    let (targets, notes) = names(
        "ssl_reject_handshake on;\nserver { listen 1 ssl; }\n\
         server { listen 2 ssl; ssl_reject_handshake off; server_name a.example; }",
    );
    assert_eq!((targets, notes), (of(&[("a.example", false)]), 1));
}

#[test]
fn a_server_knows_how_much_of_it_answers_with_204() {
    let inner = "upstream app { server 127.0.0.1:3000; }\n\
                 server { listen 1 ssl; location / { proxy_pass http://app; } location /a { if ($x) { \
                 fastcgi_pass 127.0.0.1:9000; } } location /b { grpc_pass b.example; } }\n\
                 server { listen 2 ssl; return 200; }\nserver { listen 3 ssl; location / { uwsgi_pass $x; } }";
    let mut case = http(inner);
    let counts = |case: &Case| {
        case.make().unwrap().targets.iter().map(|target| target.answered.count).collect::<Vec<usize>>()
    };
    assert_eq!(counts(&case), [3, 0, 1]);
    case.with_upstreams = true;
    assert_eq!(counts(&case), [1, 0, 1]);
}

#[test]
fn work_that_wattlock_does_another_way_is_known_where_it_is_left_out() {
    let handed = "proxy_pass http://app.example;";
    for (outside, server, wanted) in [
        ("", format!("location / {{ {handed} }}"), false),
        ("gzip off;", format!("location / {{ {handed} }}"), false),
        ("gzip on;", format!("location / {{ {handed} }}"), true),
        ("gzip on;", format!("gzip off; location / {{ {handed} }}"), false),
        ("gzip on;", format!("location / {{ gzip off; {handed} }} location /b {{ }}"), false),
        ("", format!("location / {{ {handed} gzip on; }}"), true),
        ("", format!("location / {{ {handed} if ($x) {{ gzip on; }} }}"), true),
        ("", format!("location / {{ gzip on; if ($x) {{ {handed} }} }}"), true),
        ("", format!("location / {{ {handed} }} location /b {{ gzip on; }}"), false),
        ("", format!("location / {{ {handed} }} location /b {{ gzip on; {handed} }}"), true),
        // Nothing is left out.
        ("gzip on;", "return 200;".to_owned(), false),
        ("", "location / { proxy_pass HTTPS://app.example; }".to_owned(), true),
        ("", "location / { grpc_pass grpcs://app.example; }".to_owned(), true),
        ("", "location / { uwsgi_pass suwsgi://app.example; }".to_owned(), true),
        ("", "location / { proxy_pass $app; }".to_owned(), true),
        ("", "location / { fastcgi_pass unix:/run/php.sock; }".to_owned(), false),
    ] {
        let twin = http(&format!("{outside}\nserver {{ listen 1 ssl; {server} }}")).make().unwrap();
        assert_eq!(twin.targets[0].answered.differs, wanted, "{outside} {server}");
    }
    // Of each server its own.
    let two = "server { listen 1 ssl; gzip on; location / { proxy_pass http://a.example; } }\n\
               server { listen 2 ssl; location / { proxy_pass http://a.example; } }";
    let twin = http(two).make().unwrap();
    assert_eq!(twin.targets.iter().map(|target| target.answered.differs).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn upstreams_that_may_be_the_site_itself_have_no_request() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let _own = std::os::unix::net::UnixListener::bind(at("own.sock")).unwrap();
    std::os::unix::fs::symlink(folder.path(), at("link")).unwrap();
    let passes = |listens: &str, passes: &[&str]| {
        let locations: Vec<String> =
            passes.iter().enumerate().map(|(at, pass)| format!("location /{at} {{ {pass}; }}")).collect();
        let mut case = http(&format!("server {{ {listens}\n{} }}", locations.join("\n")));
        let text = std::fs::read_to_string(case.folder.path().join("nginx.conf")).unwrap();
        let stream = "stream { server { listen 9001; listen [::1]:9002; } }\n";
        std::fs::write(case.folder.path().join("nginx.conf"), format!("{stream}{text}")).unwrap();
        case.with_upstreams = true;
        case.text()
    };
    // Through the copy's own sockets, however the address is spelled.
    let own = [
        "proxy_pass http://127.0.0.1".to_owned(),
        "proxy_pass HTTPS://127.0.0.1".to_owned(),
        "proxy_pass HttpS://127.5.5.5:8443/a".to_owned(),
        format!("proxy_pass http://unix:{}:/u", at("own.sock")),
        format!("proxy_pass http://UNIX:{}:/u", at("link/own.sock")),
        format!("fastcgi_pass unix:{}", at("a/../own.sock")),
        format!("fastcgi_pass unix:/{}", at("own.sock")),
        format!("uwsgi_pass unix:{}", at("link/./own.sock")),
    ];
    let listens =
        format!("listen 80; listen 443; listen [::]:8443 ipv6only=off; listen unix:{};", at("own.sock"));
    let text = passes(&listens, &own.each_ref().map(String::as_str));
    assert_eq!(text.matches("_pass ").count(), own.len(), "{text}");
    for line in text.lines().filter(|line| line.contains("_pass ")) {
        let is_ours = line.contains("127.0.0.1:") || line.contains("unix:/spool/sockets/socket-");
        assert!(is_ours && !line.contains(":8443") && !line.contains("own.sock"), "{line}");
    }
    // What could be the site's, and has no copy.
    for (listens, pass) in [
        ("listen 80;", "proxy_pass http://127.0.0.1:9001"),
        ("listen 80;", "proxy_pass http://[::1]:9002"),
        ("listen box.example:8080;", "proxy_pass http://127.0.0.1:8080"),
        ("listen localhost:8080;", "proxy_pass http://127.0.1.1:8080"),
        ("listen [::ffff:127.0.0.1]:8080;", "proxy_pass http://127.0.0.1:8080"),
        ("listen unix:run/own.sock;", "fastcgi_pass unix:/run/own.sock"),
        ("listen unix:/run/own.sock;", "fastcgi_pass unix:own.sock"),
    ] {
        let text = passes(listens, &[pass]);
        assert!(!text.contains("_pass ") && text.contains("return 204;"), "{pass}: {text}");
    }
    // A group of which one is so is none.
    let mut case = http(
        "upstream App { server 127.0.0.1:3000; server 127.0.0.1:8080; }\nupstream fine { server 127.0.0.1:3000; }\n\
         server { listen box.example:8080; location / { proxy_pass http://app; } \
         location /b { proxy_pass http://FINE; } }",
    );
    case.with_upstreams = true;
    let text = case.text();
    assert!(!text.contains("upstream App") && !text.contains("http://app"), "{text}");
    assert!(text.contains("upstream fine") && text.contains("proxy_pass http://FINE;"), "{text}");
}

#[test]
fn a_module_that_is_not_known_is_not_loaded() {
    for module in ["modules/own.so", "/tmp/x/evil.so", "ngx_stream_module.so/../evil.so", ".", ""] {
        let told = Case::of(&format!("\nload_module '{module}';\nhttp {{ }}")).refusal();
        assert!(told.contains("nginx.conf:2: `load_module` of") && told.contains("known modules"), "{told}");
    }
    // A link counts by its own name and by that of what it leads to, and what was judged is loaded.
    let case = Case::of("load_module ngx_mail_module.so;");
    let at = |name: &str| case.folder.path().join(name);
    let link = |to: &str| {
        let _ = std::fs::remove_file(at("ngx_mail_module.so"));
        std::os::unix::fs::symlink(to, at("ngx_mail_module.so")).unwrap();
        let text = format!("load_module {};", at("way/ngx_mail_module.so").display());
        std::fs::write(at("nginx.conf"), text).unwrap();
    };
    std::os::unix::fs::symlink(".", at("way")).unwrap();
    for name in ["evil.so", "ngx_http_wattlock_module.so", "ngx_stream_module.so"] {
        std::fs::write(at(name), "").unwrap();
    }
    for other in ["evil.so", "ngx_http_wattlock_module.so"] {
        link(other);
        let told = case.refusal();
        assert!(told.contains(&format!("{other}, which is none of the known modules")), "{told}");
    }
    link("ngx_stream_module.so");
    let real = at("ngx_stream_module.so").canonicalize().unwrap();
    assert!(case.text().contains(&format!("load_module {};", real.display())), "{}", case.text());
    link("gone.so");
    assert!(case.refusal().contains("nginx.conf:1: "), "{}", case.refusal());
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let case = Case::of("");
    let module = case.folder.path().join("ngx_stream_module.so");
    std::fs::write(case.folder.path().join("nginx.conf"), format!("load_module {};", module.display()))
        .unwrap();
    std::fs::write(&module, "").unwrap();
    assert!(case.text().contains("load_module"));
    // Another user's file, or one in another user's folder, runs with root's rights.
    std::os::unix::fs::chown(&module, Some(1234), None).unwrap();
    assert!(case.refusal().contains("ngx_stream_module.so: it belongs to user 1234"), "{}", case.refusal());
    std::os::unix::fs::chown(&module, Some(0), None).unwrap();
    std::os::unix::fs::chown(case.folder.path(), Some(1234), None).unwrap();
    assert!(case.refusal().contains("it belongs to user 1234"), "{}", case.refusal());
}

#[test]
fn limits_of_http_do_not_hold_for_the_status_page() {
    let mut case = http(
        "limit_req_zone $binary_remote_addr zone=a:1m rate=1r/m;\nlimit_req zone=a;\n\
         limit_conn_zone $binary_remote_addr zone=b:1m;\nlimit_conn b 1;\nlimit_rate 1k;",
    );
    assert!(!case.text().contains("wattlock_status"));
    case.module = Some("/lib/ngx_http_wattlock_module.so".into());
    let text = case.text();
    let page = &text[text.find("location = /wattlock_status").unwrap()..];
    for wanted in [
        "limit_req zone=wattlock_status_requests;",
        "limit_conn wattlock_status_connections 1;",
        "limit_rate 0;",
    ] {
        assert!(page.contains(wanted), "{wanted}: {text}");
    }
    assert!(text.contains("limit_req_zone $http_wattlock_no_such_header"), "{text}");
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
