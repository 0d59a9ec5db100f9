//! `wattlock nginx`: an installed nginx is made to use Wattlock, or not to; and what stands in the way is said.
//!
//! A configuration is never left in a state that nginx itself refuses: after each change `nginx -t` reads it, and what
//! it does not accept is put back.

mod edit;
mod groups;

use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use wattlock_shell::nginx::page;
use wattlock_shell::nginx::place::{self, Nginx, Parts, Places};
use wattlock_shell::nginx::server::{Certificate, KeyType, Listener, OpenSsl, Plan, Server};

use crate::ask;
use wattlock_shell::parts::{self, First};
use wattlock_shell::setup::Choice;

/// Make an installed nginx use Wattlock, or check what stands in the way
#[derive(Debug, Args)]
pub struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Add the module to a configuration and turn it on for all its servers
    Enable(Enable),
    /// Take out what `enable` added
    Disable(Change),
    /// Say whether this nginx can use Wattlock, and whether it does
    Check(Check),
}

#[derive(Debug, Args)]
struct Enable {
    #[command(flatten)]
    change: Change,
    /// Offer X25519MLKEM768 before other groups, too, unless a server has groups of its own. Without the provider nginx then
    /// does not start, if its OpenSSL is older than 3.5
    #[arg(long)]
    hybrid: bool,
}

#[derive(Debug, Args)]
struct Change {
    #[command(flatten)]
    about: About,
    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

#[derive(Debug, Args)]
struct About {
    /// The configuration; without it, the one that nginx was built for
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// nginx's prefix, as its own option -p
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
    #[command(flatten)]
    places: Places,
}

#[derive(Debug, Args)]
struct Check {
    #[command(flatten)]
    about: About,
    /// Status page of a running nginx, to be shown too (http or https; any certificate is accepted)
    #[arg(long, value_name = "URL")]
    status: Option<String>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(command: &Command, choice: &Choice) -> Result<()> {
    match &command.what {
        What::Enable(Enable { change, hybrid }) => enable(change, *hybrid),
        What::Disable(change) => disable(change),
        What::Check(wanted) => check(wanted, choice),
    }
}

fn enable(change: &Change, hybrid: bool) -> Result<()> {
    change.about.refuse_provider()?;
    let nginx = change.about.places.nginx()?;
    if let Some(why) = nginx.obstacle()? {
        bail!("{}: {why}", nginx.program.display());
    }
    let environment = std::env::var_os("OPENSSL_CONF").is_some();
    let file = change.about.file(&nginx)?;
    let before = read(&file)?;
    let loaded = change.about.loaded(&nginx, &file, &before);
    let module = match &loaded {
        Some((by, _)) if change.about.places.module.is_some() => {
            bail!("--module does nothing here: {} loads a module already", by.display())
        }
        Some((_, module)) => module.clone(),
        None => change.about.places.module(&nginx, First::Installed)?,
    };
    for warning in parts::warnings(&module, "nginx does not start") {
        eprintln!("wattlock: {warning}");
    }
    let added = loaded.is_none().then_some(module.as_path());
    let after = edit::enabled(&before, added, environment, hybrid)
        .map_err(|error| match http_elsewhere(&file, &before) {
            Some(other) => anyhow::anyhow!(
                "its http block is in {}, which it includes: write `load_module \"{}\";` at the top of {} and `wattlock \
                 on;` into that block by hand",
                other.display(),
                module.display(),
                file.display()
            ),
            None => error,
        })
        .with_context(|| file.display().to_string())?;
    if !change.carry_out(&nginx, &file, &before, &after, false)? {
        return Ok(());
    }
    for line in groups::lines(&file).iter().filter(|line| hybrid && !line.ours) {
        say!("{line} is as it was");
    }
    match probe(
        &nginx,
        OpenSsl::AsInstalled(&Parts { module, provider: PathBuf::new(), settings: Vec::new() }),
    ) {
        Ok(status) if status["active"] == true => {
            say!(
                "to take effect: restart nginx (`nginx -s reload` is enough where its OpenSSL had the provider at its start)"
            );
        }
        Ok(status) => {
            say!("not yet active: {}; then restart nginx", status["why"].as_str().unwrap_or("unknown"))
        }
        Err(error) => say!("could not be tried: {error:#}"),
    }
    if environment {
        say!("OPENSSL_CONF is set here; nginx's own service must set it, too");
    }
    Ok(())
}

fn disable(change: &Change) -> Result<()> {
    change.about.refuse_provider()?;
    ensure!(
        change.about.places.module.is_none(),
        "--module does nothing for `wattlock nginx disable`: it takes out whatever `enable` added"
    );
    let nginx = change.about.places.nginx()?;
    let file = change.about.file(&nginx)?;
    let before = read(&file)?;
    if change.carry_out(&nginx, &file, &before, &edit::disabled(&before), true)? {
        say!("to take effect: nginx -s reload");
    }
    warn_of_groups(&nginx, &file);
    Ok(())
}

/// Says which lines keep nginx from starting once its OpenSSL has no provider.
fn warn_of_groups(nginx: &Nginx, file: &Path) {
    for line in groups::that_need_the_provider(nginx, file) {
        eprintln!(
            "wattlock: {line}: {}; nginx does not start without it: change the line before `wattlock openssl disable`",
            groups::remedy()
        );
    }
}

/// The same before the provider goes, of the nginx that is installed, if there is one.
pub fn warn_before_the_provider_goes() {
    let about = About { config: None, prefix: None, places: Places::default() };
    if let Ok(nginx) = about.places.nginx()
        && let Ok(file) = about.file(&nginx)
    {
        warn_of_groups(&nginx, &file);
    }
}

/// The included file that has the `http` block, if the file itself has none.
fn http_elsewhere(file: &Path, text: &str) -> Option<PathBuf> {
    if edit::has_http(text) {
        return None;
    }
    let folder = file.parent()?;
    let mut files = edit::included(text).into_iter().flat_map(|pattern| groups::included(folder, &pattern));
    files.find(|path| read(path).is_ok_and(|text| edit::has_http(&text)))
}

impl Change {
    /// Shows a change, asks, makes it, lets nginx test it, and undoes it if nginx refuses. What was there is kept beside the
    /// file when something is added; when that is taken out again, the copy goes if nothing else has changed. `false`:
    /// nothing was changed.
    fn carry_out(&self, nginx: &Nginx, file: &Path, before: &str, after: &str, out: bool) -> Result<bool> {
        if before == after {
            say!("{}: nothing to change", file.display());
            return Ok(false);
        }
        put!("{}", edit::diff(file, before, after));
        if self.dry_run || !ask::agreed(self.yes)? {
            return Ok(false);
        }
        let backup = if out { None } else { Some(back_up(file, before)?) };
        let mut changed = vec![(file.to_owned(), before.to_owned())];
        let replaced = replace(file, after);
        let mut tested =
            replaced.map_err(Refused::from).and_then(|()| test(nginx, file, self.about.prefix.as_deref()));
        // Without the module its directives are unknown, wherever a person wrote them: the site must come up all the same.
        while out && changed.len() < 100 {
            let Err(Refused { words, at: Some((other, line)) }) = tested else { break };
            tested = set_aside(&other, line, &mut changed)
                .map_err(|why| Refused { words: format!("{words}; {why:#}"), at: None })
                .and_then(|()| test(nginx, file, self.about.prefix.as_deref()));
        }
        if let Err(refused) = tested {
            for (path, text) in changed.iter().rev() {
                replace(path, text).with_context(|| match &backup {
                    Some(backup) => format!("undoing; what was there before is in {}", backup.display()),
                    None => format!("undoing the change of {}", path.display()),
                })?;
            }
            if let Some(backup) = &backup {
                let _ = std::fs::remove_file(backup);
            }
            let words = match refused.at {
                Some((path, line)) => {
                    format!("{}; take line {line} of {} out by hand", refused.words, path.display())
                }
                None if groups::is_about(&refused.words) => {
                    format!("{}; {}", refused.words, groups::remedy())
                }
                None => refused.words,
            };
            bail!("{} is as it was: {words}", file.display());
        }
        match backup {
            Some(backup) => {
                say!("nginx -t accepts it; what was there before is in {}", backup.display());
            }
            None => match backup_of(file, after) {
                Some(backup) if std::fs::remove_file(&backup).is_ok() => {
                    say!("nginx -t accepts it; the file is what it was, and the backup is gone");
                }
                _ => say!("nginx -t accepts it"),
            },
        }
        Ok(true)
    }
}

/// Puts a directive of ours that nginx no longer knows into a comment.
fn set_aside(path: &Path, line: usize, changed: &mut Vec<(PathBuf, String)>) -> Result<()> {
    let path = path.canonicalize().with_context(|| path.display().to_string())?;
    let before = read(&path)?;
    let after = edit::set_aside(&before, line)
        .with_context(|| format!("take the directive in line {line} of {} out by hand", path.display()))?;
    replace(&path, &after)?;
    put!("{}", crate::openssl::unified(&path, before.as_bytes(), after.as_bytes()));
    say!("{}, line {line}: a directive of Wattlock's, now a comment: bring it back by hand", path.display());
    changed.push((path, before));
    Ok(())
}

impl About {
    /// nginx's configuration does not name the provider.
    fn refuse_provider(&self) -> Result<()> {
        let none = self.places.provider.is_none();
        ensure!(
            none,
            "--provider does nothing here: `wattlock openssl enable` names the provider, in openssl.cnf"
        );
        Ok(())
    }

    /// The module that a file loads which the configuration includes outside of all blocks, and that file: Debian's packages
    /// of modules have such files. nginx refuses a module that is loaded twice.
    fn loaded(&self, nginx: &Nginx, file: &Path, text: &str) -> Option<(PathBuf, PathBuf)> {
        let folder = file.parent()?;
        let prefix = self.prefix.clone().or_else(|| nginx.built_with("--prefix=").map(PathBuf::from));
        let files = edit::included(text).into_iter().flat_map(|pattern| groups::included(folder, &pattern));
        let mut loads = files.flat_map(|by| {
            let modules = read(&by).map(|text| edit::modules(&text)).unwrap_or_default();
            modules.into_iter().map(move |module| (by.clone(), module))
        });
        // As nginx does: what is relative is so to its prefix.
        let (by, module) = loads.next()?;
        let module = prefix.unwrap_or_default().join(module);
        Some((by, module.canonicalize().unwrap_or(module)))
    }

    /// The configuration, links resolved: what is replaced must be the file and not a link to it.
    fn file(&self, nginx: &Nginx) -> Result<PathBuf> {
        let built = nginx.built_with("--conf-path=").unwrap_or("/etc/nginx/nginx.conf");
        let file = self.config.clone().unwrap_or_else(|| PathBuf::from(built));
        file.canonicalize().with_context(|| file.display().to_string())
    }
}

fn read(file: &Path) -> Result<String> {
    let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
    String::from_utf8(bytes).map_err(|_| anyhow::anyhow!("{}: not UTF-8", file.display()))
}

/// Keeps a copy beside the file, under a name that is free.
fn back_up(file: &Path, text: &str) -> Result<PathBuf> {
    let name = file.file_name().context("a file has a name")?.to_string_lossy().into_owned();
    for number in 0..1000_u32 {
        let more = if number == 0 { String::new() } else { format!(".{number}") };
        let path = file.with_file_name(format!("{name}.before-wattlock{more}"));
        let made = std::fs::OpenOptions::new().write(true).create_new(true).open(&path);
        match made {
            Ok(mut out) => {
                out.set_permissions(std::fs::metadata(file)?.permissions())?;
                out.write_all(text.as_bytes()).and_then(|()| out.sync_all()).context("writing a backup")?;
                return Ok(path);
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| format!("a backup, {}", path.display())),
        }
    }
    bail!("{}: a thousand backups lie beside it", file.display())
}

/// The copy that `enable` kept, if it is this very text.
fn backup_of(file: &Path, text: &str) -> Option<PathBuf> {
    let name = file.file_name()?.to_string_lossy().into_owned();
    let numbered = (1..1000_u32).map(|number| format!("{name}.before-wattlock.{number}"));
    let names = std::iter::once(format!("{name}.before-wattlock")).chain(numbered);
    let paths = names.map(|name| file.with_file_name(name)).take_while(|path| path.exists());
    paths.filter(|path| read(path).is_ok_and(|kept| kept == text)).last()
}

/// Puts a new text in the place of a file at once, with the same permissions and owner.
fn replace(file: &Path, text: &str) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let folder = file.parent().context("a file lies in a folder")?;
    let about = std::fs::metadata(file)?;
    let mut new = tempfile::Builder::new()
        .prefix(".wattlock-")
        .tempfile_in(folder)
        .with_context(|| folder.display().to_string())?;
    new.write_all(text.as_bytes())?;
    new.as_file().set_permissions(about.permissions())?;
    std::os::unix::fs::fchown(new.as_file(), Some(about.uid()), Some(about.gid()))?;
    new.as_file().sync_all()?;
    new.persist(file).with_context(|| file.display().to_string())?;
    Ok(())
}

/// Why nginx does not take a configuration, and which line has a directive of ours that it does not know.
struct Refused {
    words: String,
    at: Option<(PathBuf, usize)>,
}

impl From<anyhow::Error> for Refused {
    fn from(error: anyhow::Error) -> Refused {
        Refused { words: format!("{error:#}"), at: None }
    }
}

/// `nginx -t`.
fn test(nginx: &Nginx, file: &Path, prefix: Option<&Path>) -> Result<(), Refused> {
    let mut command = nginx.command();
    command.arg("-t").arg("-q").arg("-c").arg(file);
    if let Some(prefix) = prefix {
        command.arg("-p").arg(prefix);
    }
    let output = command.output().with_context(|| nginx.program.display().to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let wrong = said.lines().find(|line| line.contains("[emerg]")).or(said.lines().next());
    let wrong = wrong.unwrap_or("no reason given");
    // nginx: [emerg] unknown directive "wattlock_status" in /etc/nginx/conf.d/a.conf:3
    let place =
        wrong.split_once("unknown directive \"wattlock").and_then(|(_, rest)| rest.split_once("\" in "));
    let at = place.and_then(|(_, place)| {
        let (path, line) = place.trim().rsplit_once(':')?;
        Some((PathBuf::from(path), line.parse().ok()?))
    });
    Err(Refused { words: format!("nginx -t refuses it: {wrong}"), at })
}

/// Starts an nginx of our own, and returns what its status page says.
fn probe(nginx: &Nginx, openssl: OpenSsl<'_>) -> Result<Value> {
    let text = page::fetch(start(nginx, openssl, "")?.addresses[0], "/wattlock_status")?;
    serde_json::from_str(&text).context("the status page is no JSON")
}

/// Starts an nginx of our own with these directives. It serves a folder that is gone.
fn start(nginx: &Nginx, openssl: OpenSsl<'_>, more: &str) -> Result<Server> {
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
            "with this machine's openssl.cnf" => Some("sudo wattlock openssl enable"),
            CONFIGURATION => Some("sudo wattlock nginx enable"),
            LOAD_MODULE => Some("sudo wattlock nginx disable"),
            _ => None,
        }
    }
}

fn check(wanted: &Check, choice: &Choice) -> Result<()> {
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
        let (good, words) = judge(probe(&nginx, OpenSsl::AsInstalled(parts)));
        let words =
            if good { words } else { format!("{words} (`wattlock openssl enable`, or OPENSSL_CONF)") };
        find("with this machine's openssl.cnf", good, words);
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
    let (text, file) = match about.file(nginx).and_then(|file| Ok((read(&file)?, file))) {
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
    for (good, words) in with.into_iter().flat_map(|parts| groups::looked_at(nginx, parts, &file)) {
        find("groups", good, words);
    }
    findings
}

/// Whether the kernel encrypts records itself where a configuration asks for that (`ssl_conf_command Options KTLS`, kernel
/// documentation networking/tls). It need not.
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
