//! nginx with Wattlock's module, or the stock one, and the client of `bench https`: handshakes, or responses of one page.
//!
//! With one worker the server has a core to itself and the client another, if there are two. Under a published rule, or
//! with an emulated device, the provider offers all its algorithms, since a method is what is measured.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use rustls::{CipherSuite, SupportedProtocolVersion};
use wattlock_core::samples;
use wattlock_shell::nginx::place::Nginx;
use wattlock_shell::nginx::server::{Certificate, KeyType, Listener, OpenSsl, Plan, Server};
use wattlock_shell::nginx::site::cores;
use wattlock_shell::program::line;
use wattlock_shell::text;

use super::answer::{Figures, Measured, Per, cannot};
use super::given::{Given, usage};
use super::{Point, is_device, refuse_idle_device};
use crate::https::client::{self, Load, TLS12, TLS13, Tally};
use crate::https::groups::Group;
use crate::https::{done, pin};
use crate::record::version_of;
use crate::tally::{between, engines};
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
const ALGORITHMS: &str = "gcm,cbc,cbc-hmac,ctr,rsa,ec,x25519,kdf";

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
    suite: CipherSuite,
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
    stock: bool,
}

const CONTENTS: [&str; 3] = ["text", "zero", "random"];
const POLLS: [&str; 3] = ["adaptive", "heuristic", "threshold"];

impl Wanted {
    fn read(given: &mut Given, point: &Point<'_>) -> Result<Wanted> {
        let stock = given.one_of("side", &["wattlock", "stock"])? == 1;
        let version = [&TLS12, &TLS13][given.one_of("version", &["1.2", "1.3"])?];
        let content = CONTENTS[given.one_of("content", &CONTENTS)?];
        if given.text("poll").is_empty() {
            // The published rule looks as published.
            given.set("poll", POLLS[usize::from(!stock && point.choice.policy == "qweb")]);
        }
        let poll = POLLS[given.one_of("poll", &POLLS)?];
        let page = given.bytes("page", 0..=256 << 20)?;
        let stays = given.one_of("keepalive", &["yes", "no"])? == 0 && page > 0;
        let full = given.number("full", 0.0..=1.0)?;
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
        if compressed != [None; 2] && (gzip == 0 || stock) {
            return Err(usage("stream= and chunk= are of Wattlock's compression: they need gzip="));
        }
        let set = |key: &str| format!("{key} does nothing for side=stock: leave it out");
        match stock {
            true if poll != POLLS[0] => return Err(usage(set("poll="))),
            true if point.choice.policy != "adaptive" => return Err(usage(set("--policy"))),
            true if point.choice.emulate.is_some() => return Err(usage(set("--emulate"))),
            _ => {}
        }
        let key = key(given)?;
        let suite = suite(given, key, version == &TLS12)?;
        let groups = groups(given, key, version == &TLS12)?;
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
            stock,
        })
    }

    /// A server's further directives.
    fn directives(&self) -> String {
        let gzip = match self.gzip {
            0 => String::new(),
            level => format!("gzip on; gzip_min_length 0; gzip_types *; gzip_comp_level {level};"),
        };
        format!("ssl_buffer_size {}; {gzip}", self.buffer)
    }

    /// Those of all servers.
    fn common(&self) -> String {
        let [stream, chunk] = self.compressed;
        let directive = |name: &str, size: Option<usize>| {
            size.map_or_else(String::new, |size| format!("wattlock_{name}_size {size};"))
        };
        directive("stream", stream) + &directive("chunk", chunk)
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
    let version = version_of("openssl", "version").ok_or_else(|| cannot("there is no openssl here"))?;
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
fn suite(given: &mut Given, key: KeyType, old: bool) -> Result<CipherSuite> {
    let own = if matches!(key, KeyType::P256 | KeyType::P384) { Signs::Ecdsa } else { Signs::Rsa };
    let fits = |signs: Signs| if old { signs == own } else { signs == Signs::Any };
    let wanted = given.text("suite").to_ascii_lowercase();
    let found = match &*wanted {
        "" => SUITES.iter().find(|(_, _, signs)| fits(*signs)),
        _ => SUITES.iter().find(|(name, _, _)| *name == wanted),
    };
    let exchanges_keys = wanted.starts_with("ecdhe-") || wanted.starts_with("dhe-");
    match found {
        Some((name, suite, signs)) if fits(*signs) => {
            given.set("suite", name);
            Ok(*suite)
        }
        Some(_) => Err(usage(format!(
            "suite={wanted} goes with another version or key than the ones that are given"
        ))),
        // What OpenSSL calls `AES128-SHA`: the client encrypts a secret with the server's key.
        None if old && !exchanges_keys && wanted.trim_start_matches("rsa-").starts_with("aes") => {
            Err(cannot(format!("suite {wanted}: this client has no key exchange by RSA")))
        }
        None => {
            let names: Vec<&str> = SUITES.iter().filter(|(_, _, one)| fits(*one)).map(|one| one.0).collect();
            Err(given.wrong("suite", &names.join(", ")))
        }
    }
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
    given.set("group", text::typed(&group));
    let also = own.filter(|own| old && *own != group);
    Ok([Some(group), also].into_iter().flatten().collect())
}

pub fn run(given: &mut Given, point: &Point<'_>) -> Result<Measured> {
    let wanted = Wanted::read(given, point)?;
    let device = if wanted.stock { "none".to_owned() } else { point.device()? };
    let nginx = point.places.nginx().map_err(|why| match point.places.nginx {
        Some(_) => why,
        None => cannot(line(&why)),
    })?;
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
    let measured = measure(&wanted, point, server, watch);
    rustix::thread::sched_setaffinity(None, &here)?;
    Ok(Measured { device, ..measured? })
}

fn start(wanted: &Wanted, point: &Point<'_>, nginx: &Nginx, folder: &Path, root: &Path) -> Result<Server> {
    let certificate = Certificate::self_signed(wanted.key, folder)?;
    let parts = match wanted.stock {
        true => None,
        false => {
            let mut parts = point.places.parts(nginx, point.choice)?;
            let mut set = |key: &str, value: &str| parts.settings.push((key.to_owned(), value.to_owned()));
            set("poll", wanted.poll);
            if point.choice.policy != "adaptive" || point.choice.emulate.is_some() {
                set("algorithms", ALGORITHMS);
            }
            Some(parts)
        }
    };
    let listeners = vec![Listener { port: 0, certificate: Some(certificate), more: wanted.directives() }];
    let server = Server::start(&Plan {
        nginx,
        openssl: parts.as_ref().map_or(OpenSsl::Stock, OpenSsl::Wattlock),
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
) -> Result<Measured> {
    let watch = RefCell::new(watch);
    let address = server.addresses[0];
    let paths = if wanted.page > 0 { vec!["/page".to_owned()] } else { Vec::new() };
    let head = match (wanted.gzip > 0, wanted.stays) {
        (false, true) => "",
        (true, true) => "Accept-Encoding: gzip\r\n",
        (false, false) => "Connection: close\r\n",
        (true, false) => "Accept-Encoding: gzip\r\nConnection: close\r\n",
    };
    let config = |resume| client::config_of(wanted.version, &wanted.groups, resume, wanted.suite);
    let first = if wanted.stock { Default::default() } else { done(address)? };
    let mut figures = Figures::default();
    for _ in 0..point.rounds {
        server.check()?;
        let before = if wanted.stock { Default::default() } else { done(address)? };
        let fresh = config(false)?;
        let resumes = wanted.full < 1.0;
        let load = Load {
            address,
            config: Some(if resumes { config(true)? } else { fresh.clone() }),
            other: resumes.then_some((wanted.full, fresh)),
            connections: wanted.connections,
            paths: &paths,
            stays: wanted.stays,
            head,
            time: Duration::from_secs_f64(point.seconds),
        };
        // It is asked when counting begins, and when it ends.
        let begun = Cell::new(false);
        let tally = client::drive(&load, &|| {
            if !begun.replace(true) {
                watch.borrow_mut().begin();
                return server.cpu();
            }
            let cpu = server.cpu();
            watch.borrow_mut().end()?;
            cpu
        })?;
        ensure!(tally.done > 0, "nginx answered nothing in {} s", point.seconds);
        if let Some(why) = &tally.failure {
            bail!("{} connections failed, the first: {why}", tally.failed);
        }
        add(&mut figures, wanted, &tally);
        watch
            .borrow_mut()
            .worked(if wanted.page > 0 { tally.done * wanted.page as u64 } else { tally.done } as f64);
        if !wanted.stock {
            let did = between(&before, &done(address)?);
            let inside: f64 =
                did.iter().filter(|((engine, _), _)| !is_device(engine)).map(|(_, did)| did.inside_s()).sum();
            figures.add("engine_share", "1", inside / tally.cpu.as_secs_f64());
        }
    }
    let watch = watch.into_inner();
    let (joules, busy) = (watch.joules(), watch.busy());
    if wanted.stock {
        return Ok(Measured { figures, joules, busy, ..Measured::default() });
    }
    let last = done(address)?;
    refuse_idle_device(point.choice, &between(&first, &last), "the model does nothing of this")?;
    Ok(Measured { figures, engines: engines(&first, &last), joules, busy, ..Measured::default() })
}

fn add(figures: &mut Figures, wanted: &Wanted, tally: &Tally) {
    figures.add("rate", "1/s", tally.rate());
    figures.add("cpu_us", "us", tally.cpu_us());
    figures.add("p50_us", "us", tally.latency_us(0.5));
    figures.add("p99_us", "us", tally.latency_us(0.99));
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
            (&["suite=ECDHE-RSA-AES256-SHA384"], "ecdhe-rsa-aes256-sha384", "x25519", 1),
        ] {
            let (given, wanted) = read(words, "adaptive");
            assert_eq!((given.text("suite"), given.text("group")), (suite, group), "{words:?}");
            let wanted = wanted.unwrap();
            assert_eq!(wanted.groups.len(), offered, "{words:?}");
            client::config_of(wanted.version, &wanted.groups, false, wanted.suite).unwrap();
        }
    }

    #[test]
    fn every_suite_in_the_list_is_the_clients() {
        for (name, suite, signs) in SUITES {
            let version = if *signs == Signs::Any { &TLS13 } else { &TLS12 };
            let config = client::config_of(version, &[Group::P256], false, *suite).unwrap();
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
            &["suite=ecdhe-rsa-aes128-sha", "key=p256"],
            &["suite=ecdhe-rsa-aes128-sha", "version=1.3"],
            &["suite=nonsense"],
            &["key=rsa1024"],
            &["workers=0"],
            &["full=1.5"],
            &["page=64K", "chunk=32K"],
            &["full=nan"],
            &["page=1T"],
            &["group=p521"],
        ] {
            let error = read(words, "adaptive").1.unwrap_err();
            assert!(error.downcast_ref::<wattlock_door::Error>().is_some(), "{words:?}: {error}");
            assert_eq!(error.to_string().lines().count(), 1);
        }
        let error = read(&["side=stock"], "qweb").1.unwrap_err();
        assert_eq!(error.to_string(), "--policy does nothing for side=stock: leave it out");
    }

    #[test]
    fn what_this_machine_or_this_client_lacks_is_an_answer() {
        for (words, why) in [
            (&["suite=rsa-aes128-sha"][..], "no key exchange by RSA"),
            (&["suite=AES128-SHA"], "no key exchange by RSA"),
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
