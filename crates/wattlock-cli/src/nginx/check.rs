//! `wattlock nginx check`: each part of an nginx with Wattlock, tried by an nginx of our own on loopback.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::{Value, json};
use wattlock_door::one_line;
use wattlock_shell::nginx::page;
use wattlock_shell::nginx::place::{self, Nginx, Parts, Places};
use wattlock_shell::nginx::server::{Certificate, KeyType, Listener, OpenSsl, Plan, Server};
use wattlock_shell::program;
use wattlock_shell::setup::Choice;

use super::file::read;
use super::{About, NAME, edit, groups};
use crate::openssl::own;

#[derive(Debug, Args)]
pub struct Check {
    #[command(flatten)]
    pub about: About,
    /// Status page of a running nginx, to be shown too (http or https; any certificate is accepted)
    #[arg(long, value_name = "URL")]
    pub status: Option<String>,
    /// One JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// An nginx as it starts here, with the `openssl.cnf` of its own that its configuration names.
pub fn installed<'a>(parts: &'a Parts, own: Option<&'a Path>) -> OpenSsl<'a> {
    match own {
        Some(conf) => OpenSsl::Named { parts, conf },
        None => OpenSsl::AsInstalled(parts),
    }
}

/// Starts an nginx of our own, and returns what its status page says.
pub fn probe(nginx: &Nginx, openssl: OpenSsl<'_>) -> Result<Value> {
    let text = page::fetch(start(nginx, openssl, "")?.addresses[0], "/wattlock_status")?;
    serde_json::from_str(&text).context("the status page is no JSON")
}

/// Starts an nginx of our own with these directives. It serves a folder that is gone.
pub fn start(nginx: &Nginx, openssl: OpenSsl<'_>, more: &str) -> Result<Server> {
    let folder = tempfile::Builder::new().prefix("wattlock-check-").tempdir()?;
    let certificate = Certificate::self_signed(KeyType::P256, folder.path())?;
    let listeners = vec![Listener { port: 0, certificate: Some(certificate), more: String::new() }];
    let root = folder.path();
    Server::start(&Plan {
        nginx,
        openssl,
        root,
        listeners,
        workers: 1,
        core: None,
        http2: false,
        more: more.to_owned(),
    })
}

/// The findings that say whether nginx has the provider with the `openssl.cnf` that it will read.
const WITH_THE_SYSTEMS: &str = "with this machine's openssl.cnf";
const WITH_ITS_OWN: &str = "with nginx's own openssl.cnf";
const OWN_CONF: &str = "nginx's own openssl.cnf";

/// One thing that was looked at.
pub struct Finding {
    pub what: &'static str,
    pub good: bool,
    pub words: String,
}

/// The finding that says whether a configuration has Wattlock.
pub const CONFIGURATION: &str = "configuration";
/// A module that a configuration loads, and that is not there.
pub const LOAD_MODULE: &str = "load_module";

impl Finding {
    /// The command that helps, if one does.
    pub fn next(&self) -> Option<&'static str> {
        match self.what {
            WITH_THE_SYSTEMS => Some("sudo wattlock nginx enable"),
            WITH_ITS_OWN | OWN_CONF => Some("sudo wattlock nginx enable"),
            CONFIGURATION => Some("sudo wattlock nginx enable"),
            LOAD_MODULE => Some("sudo wattlock nginx disable"),
            _ => None,
        }
    }
}

/// Runs the command.
///
/// # Errors
/// Something stands in the way.
pub fn check(wanted: &Check, choice: &Choice) -> Result<()> {
    let findings = findings(wanted, choice)?;
    for finding in &findings {
        if wanted.json {
            say!("{}", json!({"what": finding.what, "good": finding.good, "words": finding.words}));
        } else {
            say!("{} {}: {}", if finding.good { "ok     " } else { "PROBLEM" }, finding.what, finding.words);
        }
    }
    let bad: Vec<&Finding> = findings.iter().filter(|finding| !finding.good).collect();
    if !wanted.json
        && let Some(next) = bad.iter().find_map(|finding| finding.next())
    {
        say!("next: {next}");
    }
    let stand = if bad.len() == 1 { "stands" } else { "stand" };
    ensure!(bad.is_empty(), "{} of {} things {stand} in the way", bad.len(), findings.len());
    Ok(())
}

/// What `check` finds without any option.
///
/// # Errors
/// There is no nginx.
pub fn look(choice: &Choice) -> Result<Vec<Finding>> {
    let about = About { config: None, prefix: None, places: Places::default() };
    findings(&Check { about, status: None, json: false }, choice)
}

/// Whether nginx's own `openssl.cnf` does not follow what the system's says now, in words.
fn behind(conf: &Path) -> Option<String> {
    let text = std::fs::read(conf).ok()?;
    let why = match own::anew(&text, NAME) {
        Ok(anew) if anew == text => return None,
        Ok(_) => "the system's openssl.cnf has changed since, and is not heard in all".to_owned(),
        Err(error) => format!("the system's openssl.cnf has changed since: {}", program::line(&error)),
    };
    Some(format!("{}: {why}", one_line(conf)))
}

/// Everything that `check` looks at.
fn findings(wanted: &Check, choice: &Choice) -> Result<Vec<Finding>> {
    let nginx = wanted.about.places.nginx()?;
    let mut findings = Vec::new();
    let mut find = |what, good, words: String| findings.push(Finding { what, good, words });
    find("nginx", true, format!("{}, {}, with TLS", nginx.program.display(), nginx.release()));
    let obstacle = nginx.obstacle()?;
    let shared = obstacle.is_none();
    find("libssl", shared, obstacle.unwrap_or_else(|| "a shared library to it".to_owned()));
    let parts = wanted.about.places.parts(&nginx, choice);
    match &parts {
        Err(error) => find("module and provider", false, format!("{error:#}")),
        Ok(parts) => {
            let version = place::module_version(&parts.module);
            let same = version.as_deref() == Some(env!("CARGO_PKG_VERSION"));
            let told = version.unwrap_or_else(|| "unknown".to_owned());
            let own = env!("CARGO_PKG_VERSION");
            let words = format!("{}, version {told}", parts.module.display());
            find("module", same, if same { words } else { format!("{words}, but this program is {own}") });
            find("provider", true, parts.provider.display().to_string());
        }
    }
    if let (Ok(parts), true) = (&parts, shared) {
        let (good, words) = judge(probe(&nginx, OpenSsl::Wattlock(parts)));
        find("together", good, words);
        let own = wanted.about.own_conf(&nginx);
        let (good, words) = judge(probe(&nginx, installed(parts, own.as_deref())));
        if let Some(conf) = own.as_deref().filter(|conf| own::is_active(conf))
            && let Some(words) = behind(conf)
        {
            find(OWN_CONF, false, words);
        }
        let (what, how) = match &own {
            Some(conf) => (WITH_ITS_OWN, format!("see {}", conf.display())),
            None => (
                WITH_THE_SYSTEMS,
                "`wattlock nginx enable`, or for all programs `wattlock openssl enable`".to_owned(),
            ),
        };
        find(what, good, if good { words } else { format!("{words} ({how})") });
    }
    let with = parts.as_ref().ok().filter(|_| shared);
    findings.extend(configured(&wanted.about, &nginx, with));
    let mut find = |what, good, words: String| findings.push(Finding { what, good, words });
    find("kernel TLS", true, kernel_tls());
    if let Some(url) = &wanted.status {
        let status = fetch(url).and_then(|text| Ok(serde_json::from_str(&text)?));
        let shares = status.as_ref().ok().and_then(groups::shares);
        let (good, words) = judge(status);
        find("running", good, [Some(words), shares].into_iter().flatten().collect::<Vec<_>>().join("; "));
    }
    Ok(findings)
}

/// What a configuration has of Wattlock, and which groups it offers, which `with` the module can be found out.
fn configured(about: &About, nginx: &Nginx, with: Option<&Parts>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |what, good, words: String| findings.push(Finding { what, good, words });
    let (text, file) = match about.named(nginx).and_then(|file| Ok((read(&file)?, file))) {
        Ok(both) => both,
        Err(error) => {
            find(CONFIGURATION, false, format!("{error:#}"));
            return findings;
        }
    };
    let on = edit::is_enabled(&text);
    let words = if on { "has Wattlock" } else { "has no line of `wattlock nginx enable`" };
    find(CONFIGURATION, on, format!("{} {words}", file.display()));
    for gone in edit::modules(&text).into_iter().filter(|path| path.is_absolute() && !path.exists()) {
        let undo = match on {
            true => "`make install`, then enable again; or `wattlock nginx disable`",
            false => "take that line out",
        };
        let words = format!("{} is not there, and nginx does not start; {undo}", gone.display());
        find(LOAD_MODULE, false, words);
    }
    let own = edit::conf(&text);
    for (good, words) in
        with.into_iter().flat_map(|parts| groups::looked_at(nginx, installed(parts, own.as_deref()), &file))
    {
        find("groups", good, words);
    }
    findings
}

/// Whether the kernel encrypts records itself where a configuration asks for that (`ssl_conf_command Options KTLS`,
/// kernel documentation networking/tls). It need not.
fn kernel_tls() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let ready = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_ulp").unwrap_or_default();
    let modules = Path::new("/lib/modules").join(release.trim()).join("kernel/net/tls");
    if ready.split_whitespace().any(|name| name == "tls") {
        return "the kernel has it; with `ssl_conf_command Options KTLS` it encrypts records, not Wattlock"
            .to_owned();
    }
    match modules.is_dir() {
        true => {
            "not loaded (`modprobe tls`); without it `ssl_conf_command Options KTLS` does nothing".to_owned()
        }
        false => "this kernel has none; `ssl_conf_command Options KTLS` does nothing".to_owned(),
    }
}

/// What a status page, or its absence, means.
fn judge(status: Result<Value>) -> (bool, String) {
    let status = match status {
        Ok(status) => status,
        Err(error) => return (false, format!("{error:#}")),
    };
    if status["active"] != true {
        return (false, format!("inactive: {}", status["why"].as_str().unwrap_or("unknown")));
    }
    let version = status["runtime"]["header"]["version"].as_str().unwrap_or("unknown");
    let count = |key: &str| status[key].as_u64().unwrap_or(0);
    let words = format!(
        "active, provider of version {version}, {} handshakes, {} waited",
        count("handshakes"),
        count("paused")
    );
    if version == env!("CARGO_PKG_VERSION") {
        (true, words)
    } else {
        (false, format!("{words}; this program is {}", env!("CARGO_PKG_VERSION")))
    }
}

/// A page of a user's server.
fn fetch(url: &str) -> Result<String> {
    let (scheme, rest) =
        url.split_once("://").with_context(|| format!("{url}: not an http or https address"))?;
    let (host, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
    let usual = match scheme {
        "http" => 80,
        "https" => 443,
        _ => bail!("{url}: not an http or https address"),
    };
    let named = if host.rsplit(']').next().unwrap_or(host).contains(':') {
        host.to_owned()
    } else {
        format!("{host}:{usual}")
    };
    let address: SocketAddr = named
        .to_socket_addrs()
        .with_context(|| url.to_owned())?
        .next()
        .with_context(|| format!("{host}: no address"))?;
    if scheme == "https" { page::fetch(address, path) } else { page::fetch_plain(address, path) }
}
