//! A folder over HTTPS by the nginx that is installed, with Wattlock in it, on loopback: what `wattlock serve` does
//! until it is interrupted, and what its comparison measures.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use super::place::{Nginx, Parts, Places};
use super::server::{Certificate, HYBRID_FIRST, KeyType, Listener, OpenSsl, Plan, Server};
use crate::setup::Choice;
use crate::text;

/// Serve a folder over HTTPS on this machine, by the installed nginx with Wattlock; changes nothing else unless
/// --install is given
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  wattlock serve .\n  wattlock serve . --compare --json -\n  sudo wattlock serve --compare --config /etc/nginx/nginx.conf --connections 64\n  wattlock serve . --install\n  wattlock serve /srv/www --port 8444 --key-type p256 --workers 2"
)]
pub struct Command {
    /// Folder to serve
    #[arg(value_name = "DIR", required_unless_present = "config", conflicts_with = "config")]
    folder: Option<PathBuf>,
    /// Port on 127.0.0.1; 0 for any that is free
    #[arg(long, default_value_t = 8443)]
    port: u16,
    /// Install nginx first if there is none (Debian, Ubuntu; uses sudo if it must); nginx's own service stays off
    #[arg(long)]
    install: bool,
    /// Start the same nginx without Wattlock beside it, measure both in turn, print the figures and stop
    #[arg(long)]
    pub compare: bool,
    /// Seconds for each measure and each side of a comparison
    #[arg(long, default_value_t = 3.0, value_parser = text::parse_seconds)]
    pub seconds: f64,
    /// Compare with a site's own nginx.conf: a copy of it and all that it includes, on loopback; the site goes on untouched
    #[arg(long, value_name = "FILE", requires = "compare", conflicts_with_all = ["cert", "key_type", "port", "install"])]
    pub config: Option<PathBuf>,
    // What needs --config also refuses a folder: clap asks for nothing that conflicts with what is given.
    /// Folder that --config's own relative names belong to (`nginx -p`); without it, the one that `nginx -V` tells
    #[arg(long, value_name = "DIR", requires = "config", conflicts_with = "folder")]
    prefix: Option<PathBuf>,
    /// Connections at once in a comparison
    #[arg(long, value_name = "N", requires = "compare", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub connections: u32,
    /// Rounds of each side and measure in a comparison, in turn
    #[arg(long, value_name = "N", requires = "compare", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// A path that each visitor of --config's site requests; may be repeated [default: /]
    #[arg(long = "path", value_name = "PATH", requires = "config", conflicts_with = "folder", value_parser = parse_path)]
    pub paths: Vec<String>,
    /// How many of a hundred visitors of --config's site resume a session
    #[arg(long, value_name = "PER_CENT", requires = "config", conflicts_with = "folder", default_value_t = 90, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub resumed: u32,
    /// Only the server of this name, or NAME:PORT; may be repeated
    #[arg(long = "server", value_name = "NAME", requires = "config", conflicts_with = "folder")]
    pub servers: Vec<String>,
    /// Let --config's upstreams on this machine have requests; those elsewhere never get any
    #[arg(long, requires = "config", conflicts_with = "folder")]
    pub with_upstreams: bool,
    /// Also write the comparison to a file as JSON; `-` for standard output, after all else
    #[arg(long, value_name = "FILE", requires = "compare")]
    pub json: Option<PathBuf>,
    /// Certificate chain (PEM); without it one is made and signed by itself
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Kind of key of a certificate that is made
    #[arg(long, value_enum, default_value = "rsa2048", conflicts_with = "cert")]
    key_type: KeyType,
    /// Offer X25519MLKEM768 before the other groups; curl and browsers that have it use it
    #[arg(long, conflicts_with = "compare")]
    hybrid: bool,
    /// Worker processes; by default as many as there are cores, in a comparison one
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: Option<u32>,
    #[command(flatten)]
    places: Places,
}

/// A served folder.
pub struct Site {
    /// The nginx that is installed.
    pub nginx: Nginx,
    /// The server with Wattlock.
    pub ours: Server,
    certificate: Certificate,
    _scratch: tempfile::TempDir,
}

impl Command {
    /// Starts the server with Wattlock and says where it is.
    ///
    /// # Errors
    /// No folder, no nginx, no module or provider, or a server that does not start.
    pub fn open(&self, choice: &Choice) -> Result<Site> {
        let folder = self.folder();
        ensure!(folder.is_dir(), "{}: not a folder", folder.display());
        if self.install {
            self.places.install()?;
        }
        let nginx = self.places.nginx()?;
        let parts: Parts = self.places.parts(&nginx, choice)?;
        let scratch = tempfile::Builder::new().prefix("wattlock-serve-").tempdir()?;
        let certificate = self.certificate(scratch.path())?;
        let ours = self.start(&nginx, OpenSsl::Wattlock(&parts), self.port, &certificate)?;
        self.greet(&nginx, &ours)?;
        Ok(Site { nginx, ours, certificate, _scratch: scratch })
    }

    /// Starts the same nginx without Wattlock beside it.
    ///
    /// # Errors
    /// It does not start.
    pub fn stock(&self, site: &Site) -> Result<Server> {
        self.start(&site.nginx, OpenSsl::Stock, 0, &site.certificate)
    }

    fn certificate(&self, scratch: &Path) -> Result<Certificate> {
        let whole = |path: &Path| path.canonicalize().with_context(|| path.display().to_string());
        match (&self.cert, &self.key) {
            (Some(chain), Some(key)) => Ok(Certificate { chain: whole(chain)?, key: whole(key)? }),
            _ => Certificate::self_signed(self.key_type, scratch),
        }
    }

    /// The folder to serve.
    pub fn folder(&self) -> &Path {
        self.folder.as_deref().unwrap_or(Path::new("."))
    }

    /// Where nginx and Wattlock's parts are.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// The folder that an nginx's relative names belong to.
    ///
    /// # Errors
    /// The current folder is gone.
    pub fn prefix(&self, nginx: &Nginx) -> Result<PathBuf> {
        let built = nginx.built.split_whitespace().find_map(|word| word.strip_prefix("--prefix="));
        let built = || PathBuf::from(built.unwrap_or("/usr/local/nginx"));
        Ok(std::path::absolute(self.prefix.clone().unwrap_or_else(built))?)
    }

    /// How many worker processes.
    pub fn workers(&self) -> usize {
        self.workers.map_or(if self.compare { 1 } else { cores() }, |workers| workers as usize)
    }

    fn start(
        &self,
        nginx: &Nginx,
        openssl: OpenSsl<'_>,
        port: u16,
        certificate: &Certificate,
    ) -> Result<Server> {
        let core = (self.compare && self.workers() == 1 && cores() > 1).then_some(0);
        let listeners = vec![Listener { port, certificate: Some(certificate.clone()), more: String::new() }];
        Server::start(&Plan {
            nginx,
            openssl,
            root: self.folder(),
            listeners,
            workers: self.workers(),
            core,
            http2: !self.compare,
            more: if self.hybrid { HYBRID_FIRST.to_owned() } else { String::new() },
        })
    }

    fn greet(&self, nginx: &Nginx, server: &Server) -> Result<()> {
        let (folder, release, workers) = (self.folder().display(), nginx.release(), server.workers.len());
        let address = server.addresses[0];
        say!("https://{address}/  {folder} by nginx {release}, {workers} workers");
        say!(
            "https://{address}/wattlock_status?format=html  what is done where (also ?format=json, prometheus)"
        );
        match &server.active {
            Some(Ok(())) => say!("Wattlock is active"),
            Some(Err(why)) => say!("Wattlock is INACTIVE: {why}; nginx works without it"),
            None => bail!("nginx runs without Wattlock's module"),
        }
        Ok(())
    }

    /// What the certificate is called in a comparison.
    pub fn kind(&self) -> String {
        self.cert.as_ref().map_or_else(|| text::typed(&self.key_type), |path| path.display().to_string())
    }
}

/// A path as a request names it.
fn parse_path(text: &str) -> Result<String, String> {
    let plain = text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic());
    plain
        .then(|| text.to_owned())
        .ok_or_else(|| "a path begins with / and is escaped as in a request".to_owned())
}

/// Cores of this machine.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
