//! QWEB's figures: handshakes, transfers and compression by nginx's workers.

use wattlock_lab::papers::qweb;
use wattlock_lab::{Error, figure, interval, table};

use super::{
    ADAPTIVE, Extent, Figure, OFFLOAD, PER_JOULE, Paper, Point, Quantity, SOFTWARE, absent, cell, less,
    methods, more, point, row, scaled, share, simulated,
};
use crate::reproduce::shape::Claim;

/// A claim about a method's gain over software that is printed as a number or an interval.
fn claim(of: &'static str, name: &str, at: &'static [&'static str]) -> Claim {
    let printed = table("figures");
    let words = |column| printed.words(column);
    let place = words("paper").into_iter().zip(words("figure")).position(|known| known == ("qweb", name));
    let is_interval = place.is_some_and(|place| words("value")[place].contains(" to "));
    let (low, high) = match is_interval {
        true => interval("qweb", name),
        false => (figure("qweb", name), figure("qweb", name)),
    };
    Claim { quantity: "rate", at, of, over: &[SOFTWARE], low, high }
}
/// Straight offload.
const STRAIGHT: &str = "straight";
/// More workers than this on a hardware thread measure the scheduler.
const MOST_WORKERS: usize = 4;

/// Why so many workers cannot be on this machine.
fn crowded(workers: usize, threads: usize) -> Option<String> {
    (workers > MOST_WORKERS * threads)
        .then(|| format!("{workers} workers on {threads} hardware threads would measure the scheduler"))
}

struct Server {
    extent: Extent,
    suite: &'static str,
    key: &'static str,
    workers: usize,
    page: usize,
    /// Further keys, and those that take another value.
    more: Vec<(&'static str, String)>,
}

impl Server {
    fn point(&self, method: &'static str, first: bool) -> Point {
        let mut keys: Vec<(&'static str, String)> = vec![
            ("workers", self.workers.to_string()),
            ("page", self.page.to_string()),
            ("version", "1.2".to_owned()),
            ("suite", self.suite.to_owned()),
            ("key", self.key.to_owned()),
            ("keepalive", if self.page == 0 { "no" } else { "yes" }.to_owned()),
            ("connections", "64".to_owned()),
        ];
        keys.extend(self.more.iter().cloned());
        Point { cannot: crowded(self.workers, self.extent.threads), ..point("https", keys, method, first) }
    }

    /// Stock nginx with the provider alone, which waits for the device in each call.
    fn straight(&self, simulated: Option<f64>) -> Point {
        let cells = vec![cell("rate", None, simulated)];
        Point { method: STRAIGHT, by: Some(("side", "straight")), cells, ..self.point(OFFLOAD, true) }
    }

    /// The same by every method, with what stands beside its rate.
    fn all(&self, first: bool, cells: impl Fn(&str) -> (Option<f64>, Option<f64>)) -> Vec<Point> {
        let of = |method| {
            let (published, simulated) = cells(method);
            Point { cells: vec![cell("rate", published, simulated)], ..self.point(method, first) }
        };
        methods("qweb").into_iter().map(of).collect()
    }
}

const HANDSHAKES: &[Quantity] = &[
    more("rate", "1/s"),
    more(PER_JOULE, "operation/J"),
    less("cpu_us", "us"),
    less("p99_us", "us"),
    share("worker_share"),
];
const TRANSFERS: &[Quantity] =
    &[more("rate", "1/s"), more(PER_JOULE, "byte/J"), less("cpu_us", "us"), share("worker_share")];
const COMPRESSED: &[Quantity] =
    &[more("rate", "1/s"), more(PER_JOULE, "byte/J"), more("ratio", "1"), share("worker_share")];
/// AES128-SHA after a key exchange that the bench's client has. A connection that stays has one handshake.
const SUITE: &str = "ecdhe-rsa-aes128-sha";

/// The figures.
///
/// # Errors
/// The study that simulates them fails.
pub fn figures(extent: Extent) -> Result<Vec<Figure>, Error> {
    const PAPER: Paper = Paper::Qweb;
    let study = qweb::study(&Default::default())?;
    let known = |name: &str| figure("qweb", name);
    let server = |suite, key, workers, page, more: &[(&'static str, &str)]| {
        let more = more.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
        Server { extent, suite, key, workers, page, more }
    };
    let rate = |experiment: &str, name: &str, quantity: &str, method: &str| match method {
        "qweb" | ADAPTIVE => simulated(row(&study, experiment, name, quantity), method),
        _ => None,
    };

    let mut handshakes = Vec::new();
    for (suite, name) in [("rsa-aes128-sha", "rsa-2048"), ("ecdhe-rsa-aes128-sha", "ecdhe-rsa")] {
        for workers in [1, 2, 4, 8, 16, 32] {
            let cells = |method: &str| {
                let published = match (name, workers, method) {
                    ("rsa-2048", 8, SOFTWARE) => Some(known("software rsa-2048")),
                    ("rsa-2048", 8, "qweb") => Some(known("rsa-2048")),
                    ("ecdhe-rsa", 16, "qweb") => Some(known("limit ecdhe-rsa")),
                    _ => None,
                };
                let place = format!("suite={name} workers={workers}");
                let software =
                    row(&study, "software", &format!("suite={name} offload=none"), "handshakes_per_s");
                let baseline = software.filter(|_| workers == 8 && method == SOFTWARE);
                (
                    published,
                    rate("asynchronous", &place, "handshakes_per_s", method).or(simulated(baseline, method)),
                )
            };
            let server = server(suite, "rsa2048", workers, 0, &[]);
            // Of the exchange by RSA a default run has only what was published.
            handshakes.extend(server.all(workers == 8 || workers == 2 && name == "ecdhe-rsa", cells));
            if workers == 8 {
                let place = format!("suite={name} offload=straight");
                let straight = row(&study, STRAIGHT, &place, "handshakes_per_s");
                handshakes.push(server.straight(simulated(straight, STRAIGHT)));
            }
        }
    }
    let limit = |suite, workers: usize, published| {
        let one = server(suite, "rsa2048", workers, 0, &[]).point("qweb", true);
        let short = (extent.threads < workers).then(|| {
            format!("the card's limit needs {workers} hardware threads; here are {}", extent.threads)
        });
        Point { cells: vec![cell("rate", Some(published), None)], cannot: short, ..one }
    };
    // 2 x 22 cores, hyper-threaded.
    handshakes.push(limit("rsa-aes128-sha", 88, known("limit rsa-2048")));

    let mut curves = Vec::new();
    for (key, name) in [
        ("p256", "p256"),
        ("p384", "p384"),
        ("sect283r1", ""),
        ("sect409r1", ""),
        ("sect283k1", ""),
        ("sect409k1", ""),
    ] {
        let place = format!("suite=ecdhe-ecdsa-{name} workers=4");
        let cells = |method: &str| (None, rate("asynchronous", &place, "handshakes_per_s", method));
        curves.extend(
            server("ecdhe-ecdsa-aes128-sha", key, 4, 0, &[])
                .all(!name.is_empty() || key == "sect283r1", cells),
        );
    }

    let mut resumed = Vec::new();
    for workers in [1, 2, 4, 8, 16] {
        let cells = |method: &str| {
            (None, rate("resumption", "full_percent=10", "handshakes_per_s", method).filter(|_| workers == 8))
        };
        let server = server("ecdhe-rsa-aes128-sha", "rsa2048", workers, 0, &[("full", "0.1")]);
        resumed.extend(server.all(workers == 8, cells));
    }

    let mut transfers = Vec::new();
    for kib in [4, 16, 32, 64, 128, 256, 512, 1024] {
        let place = format!("transfer_kib={kib}");
        let cells = |method: &str| (None, rate("transfer", &place, "responses_per_s", method));
        // libssl makes several records at once, which a device may have, from buffers of 64 KiB on.
        let more = [("content", "random"), ("buffer", "131072")];
        let server = server(SUITE, "rsa2048", 8, kib << 10, &more);
        transfers.extend(server.all(matches!(kib, 4 | 128), cells));
        if kib == 128 {
            transfers.push(server.straight(None));
        }
    }

    let text = 512 << 10;
    let mut chunks = Vec::new();
    for (stream, chunk) in [(32, 32), (64, 32), (128, 32), (256, 32), (256, 64), (256, 128), (256, 256)] {
        let sizes = [stream << 10, chunk << 10].map(|bytes: usize| bytes.to_string());
        let more =
            [("gzip", "1"), ("content", "text"), ("stream", sizes[0].as_str()), ("chunk", sizes[1].as_str())];
        let first = matches!((stream, chunk), (32, 32) | (256, 64) | (256, 256));
        let server = server(SUITE, "rsa2048", 1, text, &more);
        for method in [SOFTWARE, "qweb", ADAPTIVE] {
            let best = (stream, chunk) == (256, 64);
            let published = match method {
                SOFTWARE if best => Some(known("software text")),
                "qweb" if best => Some(known("text")),
                _ => None,
            };
            let place =
                if best { "text_kib=512".to_owned() } else { format!("text_kib=512 chunk_kib={chunk}") };
            let sim = rate("compression", &place, "responses_per_s", method).filter(|_| stream == 256);
            let software = row(&study, "compression", "text_kib=512 offload=none", "responses_per_s");
            let sim = sim.or(simulated(software.filter(|_| method == SOFTWARE && best), method));
            let mut cells = vec![cell("rate", published, sim)];
            if (stream, chunk, method) == (256, 32, "qweb") {
                let row = row(&study, "compression", "text_kib=512 chunk_kib=32", "cpu_share");
                cells.push(cell(
                    "worker_share",
                    Some(known("text cpu by 32 KiB") / 100.0),
                    scaled(simulated(row, method), 0.01),
                ));
            }
            if best && method == "qweb" {
                cells.push(cell("ratio", Some(known("text ratio")), None));
            }
            chunks.push(Point { cells, ..server.point(method, first) });
        }
        if (stream, chunk) == (32, 32) {
            const WHY: &str =
                "compression on a device is the module's, which never waits for one inside a call";
            let mut straight = absent(chunks[0].clone(), STRAIGHT, WHY, Some(known("straight text")));
            straight.cells.push(cell("worker_share", Some(known("straight text cpu") / 100.0), None));
            chunks.push(straight);
        }
    }

    let compressing = [("gzip", "1"), ("content", "text")];
    let mut by_workers = Vec::new();
    for workers in [1, 2, 4, 8, 16, 32] {
        let place = format!("text_kib=512 workers={workers}");
        let cells = |method: &str| (None, rate("compression by workers", &place, "responses_per_s", method));
        by_workers.extend(
            server(SUITE, "rsa2048", workers, text, &compressing).all(matches!(workers, 1 | 2), cells),
        );
    }

    let mut pages = Vec::new();
    for bytes in [100_000, 300_000, 500_000, 800_000, 1_100_000] {
        // 10,000 responses in so many seconds.
        let cells = |method: &str| {
            let (published, place) = match method {
                SOFTWARE => {
                    (Some(10_000.0 / known("software pages")), "page_kb=1100 responses=10000 offload=none")
                }
                "qweb" => (Some(10_000.0 / known("pages")), "page_kb=1100 responses=10000"),
                ADAPTIVE => (None, "page_kb=1100 responses=10000"),
                _ => return (None, None),
            };
            let seconds = simulated(row(&study, "compression", place, "seconds"), method);
            match bytes {
                1_100_000 => (published, seconds.map(|seconds| 10_000.0 / seconds)),
                _ => (None, None),
            }
        };
        let server = server(SUITE, "rsa2048", 8, bytes, &compressing);
        pages.extend(server.all(bytes == 1_100_000, cells));
    }

    let mut both = Vec::new();
    for workers in [1, 2, 4, 8] {
        let server = server(
            SUITE,
            "rsa2048",
            workers,
            text,
            &[("gzip", "1"), ("content", "text"), ("buffer", "131072")],
        );
        both.extend(server.all(workers == 1, |_| (None, None)));
    }

    let mut mechanisms = Vec::new();
    for poll in ["heuristic", "threshold", "adaptive"] {
        let more = [("poll", poll)];
        for method in ["qweb", ADAPTIVE] {
            mechanisms.push(server(SUITE, "rsa2048", 8, 0, &more).point(method, poll != "adaptive"));
        }
    }
    for timer_ns in [5_000, 100_000, 1_000_000] {
        let one = server(SUITE, "rsa2048", 8, 0, &[("poll", "heuristic")]).point("qweb", timer_ns != 100_000);
        mechanisms.push(Point { settings: vec![format!("qweb.timer_ns={timer_ns}")], ..one });
    }
    let plain = server(SUITE, "rsa2048", 8, 0, &[("poll", "heuristic")]).point("qweb", true);
    let without =
        |method, why: &str| Point { method, policy: None, cannot: Some(why.to_owned()), ..plain.clone() };
    mechanisms.push(without("polling thread", "Wattlock's module polls in the loop only"));
    mechanisms.push(without("notified by descriptor", "Wattlock's module posts events in user space only"));

    let figure = |names, title, axis, quantities: &[Quantity], note, claims, points| Figure {
        paper: PAPER,
        names,
        title,
        axis,
        quantities: quantities.to_vec(),
        note,
        claims,
        points,
    };
    let gains = |name: &str, at| claim("qweb", name, at);
    const AT_RSA: &[&str] = &["workers=8", "suite=rsa-aes128-sha"];
    const AT_ECDHE: &[&str] = &["workers=8", "suite=ecdhe-rsa-aes128-sha"];
    const CLIENTS: &str = "64 connections; published were 2,000 client processes, and 8 workers on 8 hyper-threads of 4 \
                              cores.";
    Ok(vec![
        figure(
            &["figure7"],
            "Full handshakes by workers",
            "workers",
            HANDSHAKES,
            CLIENTS,
            vec![
                gains("rsa-2048 speedup", AT_RSA),
                gains("ecdhe-rsa speedup", AT_ECDHE),
                claim(STRAIGHT, "straight rsa-2048 speedup", AT_RSA),
                claim(STRAIGHT, "straight ecdhe-rsa speedup", AT_ECDHE),
            ],
            handshakes,
        ),
        figure(
            &["figure8"],
            "Full handshakes by curve, four workers",
            "workers",
            HANDSHAKES,
            CLIENTS,
            vec![
                gains("ecdhe-ecdsa-p256 speedup", &["key=p256"]),
                gains("ecdhe-ecdsa-p384 speedup", &["key=p384"]),
            ],
            curves,
        ),
        figure(
            &["figure9"],
            "Handshakes, one in ten full",
            "workers",
            HANDSHAKES,
            CLIENTS,
            vec![gains("resumption speedup", &["workers=8"])],
            resumed,
        ),
        figure(
            &["figure10"],
            "Transfers by size",
            "page",
            TRANSFERS,
            "64 connections; published were 400 client processes. The key exchange is ECDHE, once a connection.",
            vec![
                gains("transfer speedup", &["page=131072"]),
                claim(STRAIGHT, "straight transfer speedup", &["page=131072"]),
            ],
            transfers,
        ),
        figure(
            &["figure11"],
            "Compression of a text file by stream and chunk size",
            "workers",
            COMPRESSED,
            "Through HTTPS; the paper's servers compressed over HTTP.",
            Vec::new(),
            chunks,
        ),
        figure(
            &["figure12"],
            "Compression of a text file by workers",
            "workers",
            COMPRESSED,
            "Through HTTPS; the paper's servers compressed over HTTP.",
            Vec::new(),
            by_workers,
        ),
        figure(
            &["figure13"],
            "Compression of pages, eight workers",
            "page",
            COMPRESSED,
            "Through HTTPS. Of the five pages one's size is kept, 1.1 MB; four sizes of ours stand for the others.",
            vec![gains("pages speedup", &["page=1100000"])],
            pages,
        ),
        figure(
            &["figure14"],
            "Compression and encryption together",
            "workers",
            COMPRESSED,
            "",
            vec![gains("compressed and encrypted speedup", &["workers=1"])],
            both,
        ),
        figure(
            &["mechanisms"],
            "What polling, notification and the timer are worth",
            "workers",
            HANDSHAKES,
            "Published: polling in the loop is worth 10 to 20 % over a thread, notification in user space 5 to 10 %.",
            Vec::new(),
            mechanisms,
        ),
    ])
}
