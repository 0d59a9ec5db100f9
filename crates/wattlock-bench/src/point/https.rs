//! nginx with Wattlock's module, or the stock one, and the client of `bench https`: handshakes, or responses of one page.
//!
//! Suites with a key exchange by RSA, which that client has not, have `openssl s_time` for one (`s_time.rs`).
//!
//! With one worker the server has a core to itself and the client another, if there are two. Under a published rule, or
//! with an emulated device, the provider offers all its algorithms, since a method is what is measured.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use rustls::{CipherSuite, SupportedProtocolVersion};
use wattlock_core::samples;
use wattlock_shell::nginx::place::{Nginx, Parts, settings};
use wattlock_shell::nginx::server::{
    Certificate, KeyType, Listener, OpenSsl, Plan, Server, provider_section,
};
use wattlock_shell::nginx::site::cores;
use wattlock_shell::program::line;
use wattlock_shell::text;

use super::answer::{Figures, Measured, Per, cannot};
use super::cipher::loads;
use super::given::{Given, usage};
use super::perf;
use super::s_time::{self, STime};
use super::{Point, by_board, is_device, refuse_idle_device};
use crate::https::client::{self, Load, TLS12, TLS13, Tally};
use crate::https::groups::Group;
use crate::https::offer::Offer;
use crate::https::{GROUPS, done, has_hybrid, pin, stock_name};
use crate::record::version_of;
use crate::tally::{self, Done, between, engines};
use crate::tended::Tended;

pub const KEYS: &[(&str, &str)] = &[
    ("version", "1.2"),
    ("suite", ""),
    ("key", "rsa2048"),
    ("group", ""),
    ("page", "0"),
    ("content", "text"),
    ("keepalive", "yes"),
    ("full", "1.0"),
    ("workers", "1"),
    ("connections", "64"),
    ("gzip", "0"),
    ("stream", ""),
    ("chunk", ""),
    ("poll", ""),
    ("buffer", "16k"),
    ("side", "wattlock"),
    ("profile", "no"),
];

/// The suites that this client has, by OpenSSL's names, and the kind of key that each takes.
const SUITES: &[(&str, CipherSuite, Signs)] = &[
    ("ecdhe-rsa-aes256-gcm-sha384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, Signs::Rsa),
    ("ecdhe-rsa-aes128-gcm-sha256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, Signs::Rsa),
    ("ecdhe-rsa-chacha20-poly1305", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256, Signs::Rsa),
    ("ecdhe-rsa-aes128-sha", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA, Signs::Rsa),
    ("ecdhe-rsa-aes256-sha", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA, Signs::Rsa),
    ("ecdhe-rsa-aes128-sha256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256, Signs::Rsa),
    ("ecdhe-rsa-aes256-sha384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384, Signs::Rsa),
    ("ecdhe-ecdsa-aes256-gcm-sha384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, Signs::Ecdsa),
    ("ecdhe-ecdsa-aes128-gcm-sha256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, Signs::Ecdsa),
    (
        "ecdhe-ecdsa-chacha20-poly1305",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        Signs::Ecdsa,
    ),
    ("ecdhe-ecdsa-aes128-sha", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, Signs::Ecdsa),
    ("ecdhe-ecdsa-aes256-sha", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA, Signs::Ecdsa),
    ("ecdhe-ecdsa-aes128-sha256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256, Signs::Ecdsa),
    ("ecdhe-ecdsa-aes256-sha384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384, Signs::Ecdsa),
    ("aes256-gcm-sha384", CipherSuite::TLS13_AES_256_GCM_SHA384, Signs::Any),
    ("aes128-gcm-sha256", CipherSuite::TLS13_AES_128_GCM_SHA256, Signs::Any),
    ("chacha20-poly1305-sha256", CipherSuite::TLS13_CHACHA20_POLY1305_SHA256, Signs::Any),
];

/// A suite, and with it the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Suite {
    /// The client of `bench https` has it.
    Ours(CipherSuite),
    /// Keys are exchanged by RSA: the client is `openssl s_time`, which has this name for it.
    ByRsa(&'static str),
}

/// The signature in a suite; TLS 1.3's leave it open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signs {
    Rsa,
    Ecdsa,
    Any,
}

/// Names of curves that papers have, and OpenSSL's.
const CURVES: &[(&str, &str)] =
    &[("b283", "sect283r1"), ("b409", "sect409r1"), ("k283", "sect283k1"), ("k409", "sect409k1")];

/// All that the provider can be told to offer for TLS.
const ALGORITHMS: &str = "gcm,cbc,cbc-hmac,ctr,rsa,ec,x25519,ml-kem,kdf";

/// How long OpenSSL may take to list its curves.
const PATIENCE: Duration = Duration::from_secs(10);

/// Workers on a core, at most.
const A_CORE: usize = 4;

/// Where the worker runs, and where the client does.
const CORES: [usize; 2] = [0, 1];

/// Text that is repeated in larger pages: far longer than a compressor looks back.
const TEXT: usize = 4 << 20;

/// What is asked for, without contradictions.
#[derive(Debug)]
struct Wanted {
    version: &'static SupportedProtocolVersion,
    suite: Suite,
    key: KeyType,
    groups: Vec<Group>,
    page: usize,
    content: &'static str,
    stays: bool,
    full: f64,
    workers: usize,
    connections: usize,
    gzip: u8,
    /// `wattlock_stream_size` and `wattlock_chunk_size`.
    compressed: [Option<usize>; 2],
    poll: &'static str,
    buffer: usize,
    side: Side,
    /// Whether the kernel's profiler looks, too, after the rounds.
    profile: bool,
}

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    /// nginx with Wattlock's module and provider.
    Wattlock,
    /// The stock nginx with OpenSSL's own providers.
    Stock,
    /// The stock nginx with Wattlock's provider: a call cannot pause, and its worker waits for the device inside it. QWEB's
    /// straight offload.
    Straight,
}

const SIDES: [(&str, Side); 3] =
    [("wattlock", Side::Wattlock), ("stock", Side::Stock), ("straight", Side::Straight)];

const CONTENTS: [&str; 3] = ["text", "zero", "random"];
const POLLS: [&str; 3] = ["adaptive", "heuristic", "threshold"];

impl Wanted {
    fn read(given: &mut Given, point: &Point<'_>) -> Result<Wanted> {
        let side = SIDES[given.one_of("side", &SIDES.map(|(name, _)| name))?].1;
        let version = [&TLS12, &TLS13][given.one_of("version", &["1.2", "1.3"])?];
        let content = CONTENTS[given.one_of("content", &CONTENTS)?];
        if given.text("poll").is_empty() {
            // The published rule looks as published.
            given.set("poll", POLLS[usize::from(side == Side::Wattlock && point.choice.policy == "qweb")]);
        }
        let poll = POLLS[given.one_of("poll", &POLLS)?];
        let page = given.bytes("page", 0..=256 << 20)?;
        let stays = given.one_of("keepalive", &["yes", "no"])? == 0 && page > 0;
        let full = given.number("full", 0.0..=1.0)?;
        let profile = given.one_of("profile", &["no", "yes"])? == 1;
        let workers = given.number("workers", 1..=256_usize)?;
        let connections = given.number("connections", 1..=4096_usize)?;
        let gzip = given.number("gzip", 0..=9_u8)?;
        let buffer = given.bytes("buffer", 1 << 10..=16 << 20)?;
        let mut size = |name: &str| match given.text(name).is_empty() {
            true => Ok(None),
            false => given.bytes(name, 4 << 10..=64 << 20).map(Some),
        };
        let compressed = [size("stream")?, size("chunk")?];
        // Without a page there is nothing that a connection could stay for.
        given.set("keepalive", if stays { "yes" } else { "no" });
        if gzip > 0 && page == 0 {
            return Err(usage("gzip= compresses a page: it needs page="));
        }
        if compressed != [None; 2] && (gzip == 0 || side != Side::Wattlock) {
            return Err(usage("stream= and chunk= are of Wattlock's compression: they need gzip="));
        }
        let idle = [
            ("poll=", side != Side::Wattlock && poll != POLLS[0]),
            // The stock module compresses, as with side=stock, and straight offload is of cryptography.
            ("gzip=", side == Side::Straight && gzip > 0),
            ("--policy", side == Side::Stock && point.choice.policy != "adaptive"),
            ("--emulate", side == Side::Stock && point.choice.emulate.is_some()),
        ];
        if let Some((key, _)) = idle.iter().find(|(_, idle)| *idle) {
            let side = given.text("side");
            return Err(usage(format!("{key} does nothing for side={side}: leave it out")));
        }
        let key = key(given)?;
        let suite = suite(given, key, version == &TLS12)?;
        let groups = match suite {
            Suite::Ours(_) => groups(given, key, version == &TLS12)?,
            Suite::ByRsa(suite) => {
                refuse_by_rsa(given, suite)?;
                Vec::new()
            }
        };
        if workers > A_CORE * cores() {
            return Err(cannot(format!("{workers} workers on {} cores measure the scheduler", cores())));
        }
        if let [Some(stream), Some(chunk)] = compressed
            && stream < 2 * chunk
        {
            return Err(cannot("Wattlock's module works on two chunks of a stream or more"));
        }
        Ok(Wanted {
            version,
            suite,
            key,
            groups,
            page,
            content,
            stays,
            full,
            workers,
            connections,
            gzip,
            compressed,
            poll,
            buffer,
            side,
            profile,
        })
    }

    /// A server's further directives.
    fn directives(&self) -> String {
        let gzip = match self.gzip {
            0 => String::new(),
            level => format!("gzip on; gzip_min_length 0; gzip_types *; gzip_comp_level {level};"),
        };
        let groups = if self.groups.contains(&Group::Hybrid) { GROUPS } else { "" };
        format!("ssl_buffer_size {}; {gzip}{groups}", self.buffer)
    }

    /// Those of all servers.
    fn common(&self) -> String {
        let [stream, chunk] = self.compressed;
        let directive = |name: &str, size: Option<usize>| {
            size.map_or_else(String::new, |size| format!("wattlock_{name}_size {size};"))
        };
        directive("stream", stream) + &directive("chunk", chunk)
    }

    /// Puts the load of a round on a server.
    fn drive(
        &self,
        suite: CipherSuite,
        address: SocketAddr,
        seconds: f64,
        cpu: &dyn Fn() -> Result<Duration>,
    ) -> Result<Tally> {
        let paths = if self.page > 0 { vec!["/page".to_owned()] } else { Vec::new() };
        let head = match (self.gzip > 0, self.stays) {
            (false, true) => "",
            (true, true) => "Accept-Encoding: gzip\r\n",
            (false, false) => "Connection: close\r\n",
            (true, false) => "Accept-Encoding: gzip\r\nConnection: close\r\n",
        };
        let offer = Offer { suite: Some(suite), ..Offer::new(self.version, &self.groups) };
        let mut sorts = vec![(self.full, offer.config()?)];
        if self.full < 1.0 {
            sorts.push((1.0 - self.full, Offer { resumes: true, ..offer }.config()?));
        }
        let load = Load {
            address,
            sorts: &sorts,
            connections: self.connections,
            paths: &paths,
            stays: self.stays,
            head,
            time: Duration::from_secs_f64(seconds),
            visit: None,
        };
        client::drive(&load, cpu)
    }

    /// What a server's engines did so far, by its status page or by its processes' counters.
    fn done(&self, server: &Server) -> Result<Done> {
        match self.side {
            Side::Wattlock => done(server.addresses[0]),
            Side::Stock => Ok(Done::new()),
            Side::Straight => Ok(tally::of(&server.processes())),
        }
    }

    fn page(&self) -> Vec<u8> {
        match self.content {
            "zero" => vec![0; self.page],
            "random" => samples::noise(1, self.page),
            _ => {
                let text = samples::text(1, self.page.min(TEXT));
                text.iter().copied().cycle().take(self.page).collect()
            }
        }
    }
}

/// The server's key, or that nothing here has its curve.
fn key(given: &Given) -> Result<KeyType> {
    let name = given.text("key");
    let known: Vec<String> = KeyType::value_variants().iter().map(text::typed).collect();
    if let Some(at) = known.iter().position(|known| known == name) {
        return Ok(KeyType::value_variants()[at]);
    }
    let curve = CURVES.iter().find(|(short, long)| [*short, *long].contains(&name)).map(|(_, long)| *long);
    let Some(curve) = curve else { return Err(given.wrong("key", &known.join(", "))) };
    let version = openssl()?;
    let mut has = false;
    let mut list = Command::new("openssl");
    Tended::to_end(list.args(["ecparam", "-list_curves"]), PATIENCE, |line| {
        has |= line.text.contains(curve)
    })?;
    Err(cannot(match has {
        true => format!("this client has no curve {curve}"),
        false => format!("OpenSSL {version} has no curve {curve}"),
    }))
}

/// The suite, or the one of the version and the key that is the first in the list.
fn suite(given: &mut Given, key: KeyType, old: bool) -> Result<Suite> {
    let own = if matches!(key, KeyType::P256 | KeyType::P384) { Signs::Ecdsa } else { Signs::Rsa };
    let fits = |signs: Signs| if old { signs == own } else { signs == Signs::Any };
    let wanted = given.text("suite").to_ascii_lowercase();
    let listed = match &*wanted {
        "" => SUITES.iter().find(|(_, _, signs)| fits(*signs)),
        _ => SUITES.iter().find(|(name, _, _)| *name == wanted),
    };
    let listed = listed.map(|(name, suite, signs)| (*name, Suite::Ours(*suite), *signs));
    let by_rsa = s_time::suite(&wanted).map(|(name, openssl)| (name, Suite::ByRsa(openssl), Signs::Rsa));
    match listed.or(by_rsa) {
        Some((name, suite, signs)) if fits(signs) => {
            given.set("suite", name);
            Ok(suite)
        }
        Some(_) => Err(usage(format!(
            "suite={wanted} goes with another version or key than the ones that are given"
        ))),
        None => {
            let mut names: Vec<&str> =
                SUITES.iter().filter(|(_, _, one)| fits(*one)).map(|one| one.0).collect();
            names.extend(s_time::SUITES.iter().map(|one| one.0).filter(|_| fits(Signs::Rsa)));
            Err(given.wrong("suite", &names.join(", ")))
        }
    }
}

/// What `openssl s_time` cannot do.
fn refuse_by_rsa(given: &Given, suite: &str) -> Result<()> {
    let client = format!("the client for {suite} is openssl s_time, which");
    if !given.text("group").is_empty() {
        return Err(usage(format!("group= does nothing for {suite}: leave it out")));
    }
    if given.number("page", 0..=usize::MAX)? > 0 {
        return Err(cannot(format!("{client} counts handshakes only: page=0")));
    }
    if given.number("full", 0.0..=1.0)? < 1.0 {
        return Err(cannot(format!("{client} resumes all sessions or none: full=1.0")));
    }
    if given.number("connections", 1..=usize::MAX)? > s_time::MOST {
        return Err(cannot(format!(
            "{client} is a process for each connection: connections={} at most",
            s_time::MOST
        )));
    }
    s_time::is_here(&openssl()?, suite)
}

fn openssl() -> Result<String> {
    version_of("openssl", "version").ok_or_else(|| cannot("there is no openssl here"))
}

/// What the client offers. With TLS 1.2 OpenSSL takes an ECDSA certificate only if its curve is offered too.
fn groups(given: &mut Given, key: KeyType, old: bool) -> Result<Vec<Group>> {
    let own = match key {
        KeyType::P256 => Some(Group::P256),
        KeyType::P384 => Some(Group::P384),
        KeyType::Rsa2048 | KeyType::Rsa3072 | KeyType::Rsa4096 => None,
    };
    let names: Vec<String> = Group::value_variants().iter().map(text::typed).collect();
    let group = match given.text("group") {
        "" => own.unwrap_or(Group::X25519),
        _ => Group::value_variants()
            [given.one_of("group", &names.iter().map(String::as_str).collect::<Vec<_>>())?],
    };
    if old && group == Group::Hybrid {
        return Err(usage("group=x25519mlkem768 is of TLS 1.3: it needs version=1.3"));
    }
    given.set("group", text::typed(&group));
    let also = own.filter(|own| old && *own != group);
    Ok([Some(group), also].into_iter().flatten().collect())
}

pub fn run(given: &mut Given, point: &mut Point<'_>) -> Result<Measured> {
    let wanted = Wanted::read(given, point)?;
    if let Suite::ByRsa(_) = wanted.suite {
        // `openssl s_time` takes whole seconds, and one more than it is told.
        point.seconds = point.seconds.ceil().max(2.0);
    }
    let device = if wanted.side == Side::Stock { "none".to_owned() } else { point.device()? };
    let nginx = point.places.nginx().map_err(|why| match point.places.nginx {
        Some(_) => why,
        None => cannot(line(&why)),
    })?;
    let stock = stock_name(&nginx);
    if wanted.side == Side::Stock && wanted.groups.contains(&Group::Hybrid) && !has_hybrid(&stock) {
        return Err(cannot(format!("{stock} has no X25519MLKEM768")));
    }
    let folder = super::folder(None)?;
    let root = folder.path().join("files");
    std::fs::create_dir(&root)?;
    std::fs::write(root.join("page"), wanted.page())?;
    let server = start(&wanted, point, &nginx, folder.path(), &root)?;
    let here = rustix::thread::sched_getaffinity(None)?;
    let pinned = wanted.workers == 1 && cores() > 1;
    // Before this thread is pinned: the meter's threads go anywhere.
    let mut watch = point.watch()?;
    watch.per(if wanted.page > 0 { Per::Byte } else { Per::Operation });
    if pinned {
        pin(CORES[1])?;
    }
    let plain = folder.path().join("openssl.cnf");
    std::fs::write(&plain, "")?;
    let measured = measure(&wanted, point, server, watch, (folder.path(), &plain));
    rustix::thread::sched_setaffinity(None, &here)?;
    Ok(Measured { device, ..measured? })
}

fn start(wanted: &Wanted, point: &Point<'_>, nginx: &Nginx, folder: &Path, root: &Path) -> Result<Server> {
    let certificate = Certificate::self_signed(wanted.key, folder)?;
    let mut settings = settings(point.choice)?;
    let mut set = |key: &str, value: &str| settings.push((key.to_owned(), value.to_owned()));
    if wanted.side == Side::Wattlock {
        set("poll", wanted.poll);
    }
    if point.choice.policy != "adaptive" || point.choice.emulate.is_some() {
        set("algorithms", ALGORITHMS);
    }
    let parts = match wanted.side {
        Side::Wattlock => Some(Parts { settings, ..point.places.parts(nginx, point.choice)? }),
        Side::Stock => None,
        // The module is not asked for: it need not be built.
        Side::Straight => {
            Some(Parts { module: PathBuf::new(), provider: point.places.provider(point.choice)?, settings })
        }
    };
    let openssl = match &parts {
        None => OpenSsl::Stock,
        Some(Parts { provider, settings, .. }) if wanted.side == Side::Straight => {
            let configuration = folder.join("straight.cnf");
            std::fs::write(&configuration, provider_section(provider, settings)?)?;
            loads(&configuration)?;
            OpenSsl::Provider { provider, settings }
        }
        Some(parts) => OpenSsl::Wattlock(parts),
    };
    let listeners = vec![Listener { port: 0, certificate: Some(certificate), more: wanted.directives() }];
    let server = Server::start(&Plan {
        nginx,
        openssl,
        root,
        listeners,
        workers: wanted.workers,
        core: (wanted.workers == 1 && cores() > 1).then_some(CORES[0]),
        http2: false,
        more: wanted.common(),
    })?;
    match &server.active {
        Some(Err(why)) => bail!("Wattlock's module is inactive: {why}"),
        _ => Ok(server),
    }
}

fn measure(
    wanted: &Wanted,
    point: &Point<'_>,
    mut server: Server,
    watch: super::watch::Watch,
    (folder, configuration): (&Path, &Path),
) -> Result<Measured> {
    let watch = RefCell::new(watch);
    let address = server.addresses[0];
    let (mut figures, mut rounds) = (Figures::default(), Vec::new());
    for _ in 0..point.rounds {
        server.check()?;
        // What engines did, and the processor time by then. Under load a look takes as long as a response, so it has a
        // processor time of its own, behind it as in the round's other look.
        let counted = RefCell::new(Vec::new());
        let look = || -> Result<()> {
            let done = wanted.done(&server)?;
            counted.borrow_mut().push((done, server.cpu()?));
            Ok(())
        };
        // It is asked when counting begins, and when it ends.
        let begun = Cell::new(false);
        let cpu = || {
            if !begun.replace(true) {
                look()?;
                watch.borrow_mut().begin();
                return server.cpu();
            }
            let cpu = server.cpu();
            watch.borrow_mut().end()?;
            look()?;
            cpu
        };
        let tally = match wanted.suite {
            Suite::Ours(suite) => wanted.drive(suite, address, point.seconds, &cpu)?,
            Suite::ByRsa(suite) => {
                let (processes, seconds) = (wanted.connections, point.seconds as u32 - 1);
                STime { address, suite, processes, seconds, configuration }.drive(&cpu)?
            }
        };
        ensure!(tally.done > 0, "nginx answered nothing in {} s", point.seconds);
        if let Some(why) = &tally.failure {
            bail!("{} connections failed, the first: {why}", tally.failed);
        }
        add(&mut figures, wanted, &tally);
        watch
            .borrow_mut()
            .worked(if wanted.page > 0 { tally.done * wanted.page as u64 } else { tally.done } as f64);
        if let (Side::Wattlock | Side::Straight, [before, after]) = (wanted.side, &counted.borrow()[..]) {
            rounds.push(shared(&mut figures, wanted, before, after));
        }
    }
    profile(&mut figures, wanted, point, &server, (folder, configuration))?;
    if wanted.side != Side::Stock {
        refuse_idle_device(point.choice, &rounds, "it does nothing of this")?;
    }
    let (joules, busy) = (watch.borrow().joules(by_board(&rounds)), watch.borrow().busy());
    Ok(Measured { figures, engines: engines(&rounds), joules, busy, ..Measured::default() })
}

/// The workers' share of processor time inside engines, between two looks at both. Returns what engines did.
fn shared(
    figures: &mut Figures,
    wanted: &Wanted,
    before: &(Done, Duration),
    after: &(Done, Duration),
) -> Done {
    let (did, cpu) = (between(&before.0, &after.0), after.1.saturating_sub(before.1));
    let on_cpu = did.iter().filter(|((engine, _), _)| !is_device(engine));
    let inside: f64 = on_cpu.map(|(_, did)| did.inside_s()).sum();
    // Inside the call the clock on the wall runs. A worker that shares its core, with another one or with this client, is
    // longer there, and takes no more processor time.
    if wanted.workers < cores().max(2) {
        figures.add("engine_share", "1", inside / cpu.as_secs_f64());
    }
    did
}

/// Looks with the kernel's profiler, in spells of their own: it takes processor time from the processes that it looks at.
fn profile(
    figures: &mut Figures,
    wanted: &Wanted,
    point: &Point<'_>,
    server: &Server,
    (folder, configuration): (&Path, &Path),
) -> Result<()> {
    let address = server.addresses[0];
    for _ in 0..if wanted.profile { point.rounds } else { 0 } {
        let cpu = || server.cpu();
        let load = |seconds: f64| match wanted.suite {
            Suite::Ours(suite) => wanted.drive(suite, address, seconds, &cpu).map(drop),
            Suite::ByRsa(suite) => {
                let (processes, seconds) = (wanted.connections, seconds.ceil() as u32);
                STime { address, suite, processes, seconds, configuration }.drive(&cpu).map(drop)
            }
        };
        match perf::shares(&server.processes(), point.seconds, folder, load)? {
            Ok(shares) => {
                figures.add("profiled_share", "1", shares.cryptography);
                figures.add("kernel_share", "1", shares.kernel);
            }
            Err(why) => {
                eprintln!("wattlock: profile=yes: {why}");
                break;
            }
        }
    }
    Ok(())
}

fn add(figures: &mut Figures, wanted: &Wanted, tally: &Tally) {
    figures.add("rate", "1/s", tally.rate());
    figures.add("cpu_us", "us", tally.cpu_us());
    if let Suite::Ours(_) = wanted.suite {
        figures.add("p50_us", "us", tally.latency_us(0.5));
        figures.add("p99_us", "us", tally.latency_us(0.99));
    }
    figures.add("worker_share", "1", tally.share() / wanted.workers as f64);
    if wanted.full < 1.0 && wanted.page == 0 {
        figures.add("resumed_share", "1", tally.resumed as f64 / tally.done as f64);
    }
    if wanted.page > 0 {
        figures.add("bytes_per_s", "B/s", tally.rate() * wanted.page as f64);
    }
    if wanted.gzip > 0 {
        // The paper's: of what was there, how much is left out.
        figures.add("ratio", "1", (tally.done * wanted.page as u64) as f64 / tally.bytes as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::answer::Cannot;
    use crate::point::tests::{choice, point};

    fn read(words: &[&str], policy: &str) -> (Given, Result<Wanted>) {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let mut given = Given::read("https", KEYS, &words).unwrap();
        let choice = choice(policy);
        let wanted = Wanted::read(&mut given, &point(&choice));
        (given, wanted)
    }

    #[test]
    fn suite_and_group_follow_from_version_and_key() {
        for (words, suite, group, offered) in [
            (&[][..], "ecdhe-rsa-aes256-gcm-sha384", "x25519", 1),
            (&["key=p256"], "ecdhe-ecdsa-aes256-gcm-sha384", "p256", 1),
            (&["key=p384", "group=x25519"], "ecdhe-ecdsa-aes256-gcm-sha384", "x25519", 2),
            (&["version=1.3", "key=p384", "group=x25519"], "aes256-gcm-sha384", "x25519", 1),
            (&["version=1.3", "group=x25519mlkem768"], "aes256-gcm-sha384", "x25519mlkem768", 1),
            (&["suite=ECDHE-RSA-AES256-SHA384"], "ecdhe-rsa-aes256-sha384", "x25519", 1),
        ] {
            let (given, wanted) = read(words, "adaptive");
            assert_eq!((given.text("suite"), given.text("group")), (suite, group), "{words:?}");
            let wanted = wanted.unwrap();
            assert_eq!(wanted.groups.len(), offered, "{words:?}");
            let Suite::Ours(suite) = wanted.suite else { panic!("{words:?}") };
            Offer { suite: Some(suite), ..Offer::new(wanted.version, &wanted.groups) }.config().unwrap();
        }
    }

    #[test]
    fn every_suite_in_the_list_is_the_clients() {
        for (name, suite, signs) in SUITES {
            let version = if *signs == Signs::Any { &TLS13 } else { &TLS12 };
            let offer = Offer { suite: Some(*suite), ..Offer::new(version, &[Group::P256]) };
            let config = offer.config().unwrap();
            assert_eq!(config.crypto_provider().cipher_suites[0].suite(), *suite, "{name}");
        }
    }

    #[test]
    fn handshakes_alone_stay_for_nothing() {
        assert_eq!(read(&[], "adaptive").0.text("keepalive"), "no");
        let (given, wanted) = read(&["page=4K"], "adaptive");
        assert_eq!((given.text("keepalive"), given.text("page")), ("yes", "4096"));
        assert!(wanted.unwrap().stays);
    }

    #[test]
    fn what_contradicts_itself_is_a_usage_error() {
        for words in [
            &["gzip=6"][..],
            &["gzip=10", "page=1K"],
            &["side=stock", "poll=heuristic"],
            &["side=straight", "poll=heuristic"],
            &["side=straight", "page=64K", "gzip=1"],
            &["side=straight", "page=64K", "gzip=1", "stream=64K"],
            &["suite=ecdhe-rsa-aes128-sha", "key=p256"],
            &["suite=ecdhe-rsa-aes128-sha", "version=1.3"],
            &["suite=nonsense"],
            &["suite=rsa-aes128-sha", "key=p256"],
            &["suite=rsa-aes128-sha", "version=1.3"],
            &["suite=rsa-aes128-sha", "group=p256"],
            &["key=rsa1024"],
            &["workers=0"],
            &["full=1.5"],
            &["page=64K", "chunk=32K"],
            &["full=nan"],
            &["page=1T"],
            &["group=p521"],
            &["group=x25519mlkem768"],
            &["group=mlkem768", "version=1.3"],
        ] {
            let error = read(words, "adaptive").1.unwrap_err();
            assert!(error.downcast_ref::<wattlock_door::Error>().is_some(), "{words:?}: {error}");
            assert_eq!(error.to_string().lines().count(), 1);
        }
        let error = read(&["side=stock"], "qweb").1.unwrap_err();
        assert_eq!(error.to_string(), "--policy does nothing for side=stock: leave it out");
        assert_eq!(read(&["side=straight"], "offload").1.unwrap().side, Side::Straight);
    }

    #[test]
    fn what_this_machine_or_this_client_lacks_is_an_answer() {
        for (words, why) in [
            (&["suite=rsa-aes128-sha", "page=1K"][..], "page=0"),
            (&["suite=AES128-SHA", "full=0.5"], "full=1.0"),
            (&["suite=rsa-aes256-gcm-sha384", "connections=65"], "connections=64 at most"),
            (&["workers=256"], "256 workers on"),
            (&["gzip=1", "page=64K", "stream=32K", "chunk=32K"], "two chunks"),
        ] {
            let error = read(words, "adaptive").1.unwrap_err();
            let Some(Cannot(said)) = error.downcast_ref() else { panic!("{words:?}: {error}") };
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn a_page_is_as_long_and_as_compressible_as_asked() {
        for content in CONTENTS {
            let (_, wanted) = read(&["page=9M", &format!("content={content}")], "adaptive");
            let page = wanted.unwrap().page();
            assert_eq!(page.len(), 9 << 20);
            assert_eq!(page.iter().all(|byte| *byte == 0), content == "zero");
            assert_eq!(page[..1 << 20] == page[TEXT..TEXT + (1 << 20)], content != "random", "{content}");
        }
    }
}
