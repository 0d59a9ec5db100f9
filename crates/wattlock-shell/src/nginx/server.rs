//! An nginx of our own: its configuration, certificate and logs lie in a temporary folder, it listens on 127.0.0.1 and
//! nowhere else, and it ends with its owner.

use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::place::{Nginx, Parts, plain};
use crate::process::{children, cpu_of, ending_with_us, user_of};
use crate::text::typed;

/// The hybrid of ML-KEM-768 and X25519 for TLS 1.3 (draft-ietf-tls-ecdhe-mlkem).
pub const HYBRID: &str = "X25519MLKEM768";

/// nginx's line that offers it before other groups.
pub const HYBRID_FIRST: &str = "ssl_ecdh_curve X25519MLKEM768:X25519:prime256v1:secp384r1;";

/// Time that a start or a stop may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What kind of key a self-signed certificate has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
#[value(rename_all = "lower")]
pub enum KeyType {
    /// RSA, 2048 bits
    Rsa2048,
    /// RSA, 3072 bits
    Rsa3072,
    /// RSA, 4096 bits
    Rsa4096,
    /// ECDSA on P-256
    P256,
    /// ECDSA on P-384
    P384,
}

impl KeyType {
    fn arguments(self) -> [&'static str; 2] {
        match self {
            KeyType::Rsa2048 => ["RSA", "rsa_keygen_bits:2048"],
            KeyType::Rsa3072 => ["RSA", "rsa_keygen_bits:3072"],
            KeyType::Rsa4096 => ["RSA", "rsa_keygen_bits:4096"],
            KeyType::P256 => ["EC", "ec_paramgen_curve:P-256"],
            KeyType::P384 => ["EC", "ec_paramgen_curve:P-384"],
        }
    }
}

/// A certificate chain and its key, as PEM files.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// The chain.
    pub chain: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

impl Certificate {
    /// Makes one for localhost, valid for a month, in a folder.
    ///
    /// # Errors
    /// `openssl` is missing or fails.
    pub fn self_signed(kind: KeyType, folder: &Path) -> Result<Certificate> {
        let config = folder.join("request.cnf");
        let text = "[req]\ndistinguished_name = name\nx509_extensions = more\nprompt = no\n[name]\nCN = localhost\n\
                    [more]\nsubjectAltName = DNS:localhost,IP:127.0.0.1\nbasicConstraints = CA:FALSE\n";
        std::fs::write(&config, text)?;
        let made = Certificate {
            chain: folder.join(format!("{}.pem", typed(&kind))),
            key: folder.join(format!("{}.key", typed(&kind))),
        };
        let [algorithm, option] = kind.arguments();
        let mut command = Command::new("openssl");
        command.args([
            "req", "-x509", "-nodes", "-sha256", "-days", "30", "-newkey", algorithm, "-pkeyopt", option,
        ]);
        command.arg("-config").arg(&config).arg("-out").arg(&made.chain).arg("-keyout").arg(&made.key);
        let output =
            command.env("OPENSSL_CONF", &config).stdin(Stdio::null()).output().context(
                "openssl, which makes the certificate (Debian, Ubuntu: `apt-get install openssl`)",
            )?;
        ensure!(output.status.success(), "openssl req: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(made)
    }

    /// A server's directives for it. A server with several shows each client the one that fits.
    ///
    /// # Errors
    /// A path that cannot stand in a configuration.
    pub fn directives(&self) -> Result<String> {
        let [chain, key] = [quoted(&self.chain)?, quoted(&self.key)?];
        Ok(format!("ssl_certificate {chain};\nssl_certificate_key {key};\n"))
    }
}

/// One address to listen on.
#[derive(Debug, Clone)]
pub struct Listener {
    /// On 127.0.0.1; 0 lets the kernel choose.
    pub port: u16,
    /// What it shows to clients; without one it speaks plain HTTP.
    pub certificate: Option<Certificate>,
    /// Further directives of this server.
    pub more: String,
}

/// How OpenSSL inside nginx is configured.
#[derive(Debug, Clone, Copy)]
pub enum OpenSsl<'a> {
    /// With OpenSSL's own providers only.
    Stock,
    /// With Wattlock's provider by a configuration of its own, and without the module: a call of libcrypto returns when it
    /// is done.
    Provider {
        /// The provider.
        provider: &'a Path,
        /// Further lines of its section in `openssl.cnf`.
        settings: &'a [(String, String)],
    },
    /// With Wattlock's provider too, by a configuration of its own.
    Wattlock(&'a Parts),
    /// With the module, and with whatever configuration this process's environment or the system has.
    AsInstalled(&'a Parts),
    /// With the module, and with this configuration of OpenSSL.
    Named {
        /// Module and provider.
        parts: &'a Parts,
        /// The `openssl.cnf`.
        conf: &'a Path,
    },
}

impl OpenSsl<'_> {
    /// nginx's module, if it is loaded.
    fn module(&self) -> Option<&Path> {
        match self {
            OpenSsl::Stock | OpenSsl::Provider { .. } => None,
            OpenSsl::Wattlock(parts) | OpenSsl::AsInstalled(parts) | OpenSsl::Named { parts, .. } => {
                Some(&parts.module)
            }
        }
    }
}

/// What to start.
#[derive(Debug)]
pub struct Plan<'a> {
    /// Which nginx.
    pub nginx: &'a Nginx,
    /// With or without Wattlock.
    pub openssl: OpenSsl<'a>,
    /// Folder whose files are served.
    pub root: &'a Path,
    /// Where to listen.
    pub listeners: Vec<Listener>,
    /// Worker processes.
    pub workers: usize,
    /// The core to which workers are pinned.
    pub core: Option<usize>,
    /// Whether to offer HTTP/2 where this nginx can.
    pub http2: bool,
    /// Further directives for all of its servers. Without an `ssl_ecdh_curve` among them the groups are X25519, P-256 and
    /// P-384.
    pub more: String,
}

/// A running nginx. Dropping it ends it and removes its folder.
#[derive(Debug)]
pub struct Server {
    child: Child,
    folder: TempDir,
    /// Where it listens, in the order of the plan.
    pub addresses: Vec<SocketAddr>,
    /// Process ids of its workers.
    pub workers: Vec<u32>,
    /// Whether the module is active; if not, why, in the module's own words. `None` without the module.
    pub active: Option<Result<(), String>>,
}

impl Server {
    /// Starts it and waits until it answers.
    ///
    /// # Errors
    /// It did not start; what it said is quoted.
    pub fn start(plan: &Plan<'_>) -> Result<Server> {
        let folder = Server::folder()?;
        let at = folder.path().to_str().context("the temporary folder has no printable name")?;
        // By a link, because nginx would take a `$` in the folder's name for a variable.
        let root = plan.root.canonicalize().with_context(|| plan.root.display().to_string())?;
        std::os::unix::fs::symlink(&root, folder.path().join("www"))?;
        let addresses: Vec<SocketAddr> =
            plan.listeners.iter().map(|one| address(one.port)).collect::<Result<_>>()?;
        std::fs::write(folder.path().join("nginx.conf"), configuration(plan, at, &addresses)?)?;
        Server::with(folder, plan.nginx, &plan.openssl, addresses, plan.workers)
    }

    /// A folder for one, which no other user can read.
    ///
    /// # Errors
    /// The folder for temporary files has no room, or a name that cannot stand in a configuration.
    pub fn folder() -> Result<TempDir> {
        // By the number of this process: whoever started it finds what it leaves if it is killed.
        let prefix = format!("wattlock-server-{}-", std::process::id());
        let private = std::fs::Permissions::from_mode(0o700);
        let folder = tempfile::Builder::new().prefix(&prefix).permissions(private).tempdir()?;
        plain(folder.path().to_str().context("the temporary folder has no printable name")?)?;
        Ok(folder)
    }

    /// Starts one with the `nginx.conf` in this folder and waits until it answers at these addresses. The configuration
    /// names the folder's `error.log` at level notice, and so many worker processes.
    ///
    /// # Errors
    /// It did not start; what it said is quoted.
    pub fn with(
        folder: TempDir,
        nginx: &Nginx,
        openssl: &OpenSsl<'_>,
        addresses: Vec<SocketAddr>,
        workers: usize,
    ) -> Result<Server> {
        let at = folder.path().to_str().context("the temporary folder has no printable name")?;
        let mut command = ending_with_us(&nginx.command());
        let text = match openssl {
            OpenSsl::AsInstalled(_) => None,
            OpenSsl::Named { conf, .. } => {
                command.env("OPENSSL_CONF", conf);
                None
            }
            OpenSsl::Stock => Some(String::new()),
            OpenSsl::Provider { provider, settings } => Some(provider_section(provider, settings)?),
            OpenSsl::Wattlock(parts) => Some(provider_section(&parts.provider, &parts.settings)?),
        };
        if let Some(text) = text {
            openssl_conf(&mut command, &folder, &text)?;
        }
        let log = std::fs::File::create(folder.path().join("stderr"))?;
        command.args(["-p", at, "-c", &format!("{at}/nginx.conf"), "-e", &format!("{at}/error.log")]);
        // nginx would take sockets from it (`ngx_add_inherited_sockets`).
        command.env_remove("NGINX");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        let child = child.with_context(|| nginx.program.display().to_string())?;
        let mut server = Server { child, folder, addresses, workers: Vec::new(), active: None };
        server.wait(openssl.module().is_some(), workers)?;
        Ok(server)
    }

    fn wait(&mut self, modular: bool, workers: usize) -> Result<()> {
        let start = Instant::now();
        loop {
            self.check()?;
            ensure!(start.elapsed() < PATIENCE, "nginx did not start in {PATIENCE:?}: {}", self.said());
            // A site's cache has processes of its own, one of which ends after a minute.
            self.workers = children(self.child.id()).into_iter().filter(|pid| is_worker(*pid)).collect();
            self.active = verdict(&self.log());
            let up = self.addresses.iter().all(|address| TcpStream::connect(address).is_ok());
            if up && self.workers.len() == workers && (!modular || self.active.is_some()) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// It ended; what it said is quoted.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("nginx ended ({status}): {}", self.said()),
        }
    }

    /// Its master and its workers, whose counters are together: what the provider began in the master counts there.
    pub fn processes(&self) -> Vec<u32> {
        [&[self.child.id()], &*self.workers].concat()
    }

    /// Its error log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("error.log")).unwrap_or_default()
    }

    fn said(&self) -> String {
        let stderr = std::fs::read_to_string(self.folder.path().join("stderr")).unwrap_or_default();
        let log = self.log();
        let wrong = |line: &&str| {
            ["[emerg]", "[alert]", "[crit]", "[error]"].iter().any(|level| line.contains(level))
        };
        let line = stderr.lines().chain(log.lines()).find(wrong).or(stderr.lines().next());
        line.unwrap_or("nothing was said").trim().to_owned()
    }

    /// The user as whom its workers run: `user` of its configuration, if root started it.
    ///
    /// # Errors
    /// They are gone.
    pub fn user(&self) -> Result<u32> {
        user_of(*self.workers.first().context("nginx has no worker")?)
    }

    /// Processor time that its workers have used so far.
    ///
    /// # Errors
    /// A worker is gone.
    pub fn cpu(&self) -> Result<Duration> {
        self.workers.iter().map(|pid| cpu_of(*pid)).sum()
    }

    /// Ends it, and waits for that.
    pub fn stop(&mut self) {
        let pid = Pid::from_child(&self.child);
        // An nginx that has ended is what is wanted.
        let _ = kill_process(pid, Signal::TERM);
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Whether a process calls itself a worker of nginx (`ngx_setproctitle`).
fn is_worker(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"nginx: worker process"))
}

fn address(port: u16) -> Result<SocketAddr> {
    let wanted = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let probe = TcpListener::bind(wanted).with_context(|| format!("port {port} on 127.0.0.1"))?;
    Ok(probe.local_addr()?)
}

fn openssl_conf(command: &mut Command, folder: &TempDir, more: &str) -> Result<()> {
    let path = folder.path().join("openssl.cnf");
    std::fs::write(&path, more)?;
    command.env("OPENSSL_CONF", path);
    Ok(())
}

/// A configuration of OpenSSL that loads the provider, with settings, beside OpenSSL's own and prefers it.
///
/// # Errors
/// The path cannot stand in a configuration.
pub fn provider_section(provider: &Path, settings: &[(String, String)]) -> Result<String> {
    let module = provider.to_str().context("the provider's path is not printable")?;
    plain(module)?;
    let mut text = format!(
        "openssl_conf = start\n[start]\nproviders = providers\nalg_section = properties\n\
         [properties]\ndefault_properties = ?provider=wattlock\n\
         [providers]\ndefault = default_section\nwattlock = wattlock_section\n\
         [default_section]\nactivate = 1\n[wattlock_section]\nmodule = {module}\n"
    );
    for (key, value) in settings {
        let _ = writeln!(text, "{key} = {value}");
    }
    text.push_str("activate = 1\n");
    Ok(text)
}

/// A path as nginx reads it: one word in quotes.
fn quoted(path: &Path) -> Result<String> {
    let text = path.to_str().with_context(|| format!("{}: not printable", path.display()))?;
    plain(text)?;
    Ok(format!("\"{text}\""))
}

fn configuration(plan: &Plan<'_>, at: &str, addresses: &[SocketAddr]) -> Result<String> {
    let mut text = String::from("daemon off;\nmaster_process on;\n");
    let mut put = |line: &str| {
        text.push_str(line);
        text.push('\n');
    };
    let modular = plan.openssl.module().is_some();
    if let Some(module) = plan.openssl.module() {
        put(&format!("load_module {};", quoted(module)?));
    }
    if matches!(plan.openssl, OpenSsl::Provider { .. }) {
        // nginx clears its workers' environment. Without a status page their counters are where this program's are.
        put("env WATTLOCK_TELEMETRY_DIR;");
    }
    if rustix::process::geteuid().is_root() {
        put("user root;"); // As the calling user, whose folder is served.
    }
    put(&format!("worker_processes {};\npid {at}/pid;\nlock_file {at}/lock;", plan.workers));
    put(&format!("error_log {at}/error.log notice;\nworker_rlimit_nofile 16384;"));
    if let Some(core) = plan.core {
        put(&format!("worker_cpu_affinity 1{};", "0".repeat(core)));
    }
    put("events { worker_connections 8192; }\nhttp {\naccess_log off;");
    for (directive, module) in TEMPORARY {
        if !plan.nginx.lacks(module) {
            put(&format!("{directive} {at}/{directive};"));
        }
    }
    put(TYPES);
    // Mime types do not matter to what is measured; these let a browser show a page.
    put("sendfile on; tcp_nopush on; keepalive_requests 1000000000; keepalive_timeout 75s;");
    put("ssl_protocols TLSv1.2 TLSv1.3; ssl_session_cache off; ssl_session_tickets on;");
    if !plan.more.contains("ssl_ecdh_curve") {
        put("ssl_ecdh_curve X25519:prime256v1:secp384r1;");
    }
    if modular {
        put("wattlock on;");
    }
    put(&plan.more);
    let http2 = plan.http2 && plan.nginx.built.contains("--with-http_v2_module");
    let own_directive = plan.nginx.version >= [1, 25, 1];
    for (listener, address) in plan.listeners.iter().zip(addresses) {
        put("server {");
        if let Some(certificate) = &listener.certificate {
            let flag = if http2 && !own_directive { " http2" } else { "" };
            put(&format!("listen {address} ssl{flag};"));
            if http2 && own_directive {
                put("http2 on;");
            }
            put(&certificate.directives()?);
        } else {
            put(&format!("listen {address};"));
        }
        put(&listener.more);
        put(&format!("root {at}/www;"));
        if !plan.nginx.lacks("http_autoindex_module") {
            put("autoindex on;");
        }
        if modular {
            put("location = /wattlock_status { wattlock_status; }");
        }
        put("}");
    }
    put("}");
    Ok(text)
}

/// Folders that nginx makes at its start, and the module that each belongs to.
pub const TEMPORARY: [(&str, &str); 5] = [
    ("client_body_temp_path", "http"),
    ("proxy_temp_path", "http_proxy_module"),
    ("fastcgi_temp_path", "http_fastcgi_module"),
    ("uwsgi_temp_path", "http_uwsgi_module"),
    ("scgi_temp_path", "http_scgi_module"),
];

const TYPES: &str = "default_type application/octet-stream;\ntypes { text/html html htm; text/css css; text/plain txt md; \
                     application/javascript js; application/json json; image/svg+xml svg; image/png png; \
                     image/jpeg jpg jpeg; application/pdf pdf; }";

/// What the module said of itself in a log, if it did already. Its last word counts.
fn verdict(log: &str) -> Option<Result<(), String>> {
    let said = log.lines().rev().find_map(|line| {
        let rest = line.split_once("wattlock: ")?.1;
        (rest.starts_with("active") || rest.starts_with("inactive")).then_some(rest)
    })?;
    Some(said.strip_prefix("inactive: ").map_or(Ok(()), |why| Err(why.trim().to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modules_last_word_counts() {
        assert_eq!(verdict("[notice] 1#1: start"), None);
        let log = "[warn] 7#7: wattlock: inactive: the provider is not loaded\n[notice] 8#8: wattlock: active, adaptive polling\n";
        assert_eq!(verdict(log), Some(Ok(())));
        assert_eq!(verdict("7#7: wattlock: inactive: no room\n"), Some(Err("no room".to_owned())));
    }

    #[test]
    fn nothing_listens_but_on_loopback() {
        let nginx =
            Nginx { program: "/n".into(), version: [1, 29, 0], built: String::new(), libraries: None };
        let certificate = Certificate { chain: "/c.pem".into(), key: "/c.key".into() };
        let addresses = [address(0).unwrap(), address(0).unwrap()];
        let listeners = vec![Listener { port: 0, certificate: Some(certificate), more: String::new() }; 2];
        let root = Path::new("/");
        let plan = Plan {
            nginx: &nginx,
            openssl: OpenSsl::Stock,
            root,
            listeners,
            workers: 1,
            core: Some(2),
            http2: true,
            more: String::new(),
        };
        let text = configuration(&plan, "/tmp/x", &addresses).unwrap();
        let listening: Vec<&str> = text.lines().filter(|line| line.starts_with("listen ")).collect();
        assert_eq!(listening.len(), 2, "{text}");
        assert!(listening.iter().all(|line| line.starts_with("listen 127.0.0.1:")), "{text}");
        assert!(!text.contains("wattlock on") && text.contains("worker_cpu_affinity 100;"), "{text}");
    }
}
