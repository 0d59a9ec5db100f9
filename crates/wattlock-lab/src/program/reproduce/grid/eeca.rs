//! EECA's figures: a cipher by block size, responses of HTTPS by page size, and where nginx's time goes.

use wattlock_lab::papers::eeca;
use wattlock_lab::{Error, Study, table};

use super::{
    ADAPTIVE, Cell, Extent, Figure, INSTRUCTION, OFFLOAD, PER_JOULE, PROFILED, Paper, Point, SOFTWARE, cell,
    less, methods, more, point, row, share, simulated,
};

/// The column of EECA's tables that a method is.
fn eeca_column(method: &str) -> Option<&'static str> {
    match method {
        SOFTWARE => Some("software"),
        INSTRUCTION => Some("instruction"),
        OFFLOAD => Some("accelerator"),
        "eeca" => Some("eeca"),
        _ => None,
    }
}

/// A rate and its PPW, published and simulated. `by`: how many of the joules' unit one of the table's is.
fn eeca_cells(study: &Study, https: bool, method: &str, kib: f64, rate: &'static str, by: f64) -> Vec<Cell> {
    let (name, size, unit) = match https {
        true => ("eeca-table2", "page_kib", "rps"),
        false => ("eeca-table1", "block_kib", "kBps"),
    };
    let published = |unit: &str| table(name).cell((size, kib), &format!("{}_{unit}", eeca_column(method)?));
    let (experiment, place) = match (https, method) {
        (true, "eeca" | ADAPTIVE) => ("https", format!("{size}={kib}")),
        (false, "eeca" | ADAPTIVE) => ("cipher", format!("{size}={kib}")),
        (_, method) => (
            match (https, method) {
                (false, _) => "cipher baseline",
                (true, SOFTWARE) => "https software",
                (true, INSTRUCTION) => "https instruction",
                (true, _) => "https accelerator",
            },
            format!("baseline={} {size}={kib}", eeca_column(method).unwrap_or_default()),
        ),
    };
    let sim = |quantity| simulated(row(study, experiment, &place, quantity), method);
    let (throughput, watts) = (published(unit), published("W"));
    let per_joule = throughput.zip(watts).map(|(rate, watts)| rate / watts * by);
    let modelled = sim("throughput").zip(sim("power_w")).map(|(rate, watts)| rate / watts * by);
    vec![cell(rate, throughput, sim("throughput")), cell(PER_JOULE, per_joule, modelled)]
}

/// The figures.
///
/// # Errors
/// The study that simulates them fails.
pub fn figures(extent: Extent) -> Result<Vec<Figure>, Error> {
    const BLOCKS: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];
    const PAGES: [f64; 11] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 128.0, 256.0, 512.0, 1024.0, 2048.0];
    let options =
        eeca::Options { block_kib: BLOCKS.to_vec(), page_kib: PAGES.to_vec(), ..Default::default() };
    let study = eeca::study(&options)?;
    let bytes = |kib: f64| ((kib * 1024.0) as usize).to_string();
    let mut ciphers = Vec::new();
    for kib in BLOCKS {
        for method in methods("eeca") {
            let keys = vec![
                ("bytes", bytes(kib)),
                ("cipher", "aes-256-cbc".to_owned()),
                ("processes", extent.threads.to_string()),
            ];
            let first = [1.0, 8.0, 16.0, 256.0].contains(&kib);
            let cells = eeca_cells(&study, false, method, kib, "throughput", 1e3);
            ciphers.push(Point { cells, ..point("cipher", keys, method, first) });
        }
    }
    let https = |kib: f64, keepalive: &str, workers: usize| {
        vec![
            ("page", bytes(kib)),
            ("version", "1.2".to_owned()),
            ("suite", "ecdhe-rsa-aes256-sha384".to_owned()),
            ("key", "rsa2048".to_owned()),
            ("content", "random".to_owned()),
            ("keepalive", keepalive.to_owned()),
            ("workers", workers.to_string()),
            ("connections", "64".to_owned()),
        ]
    };
    let (mut pages, mut shares) = (Vec::new(), Vec::new());
    for kib in PAGES {
        for method in methods("eeca") {
            let first = [1.0, 16.0, 128.0, 1024.0].contains(&kib);
            let cells = eeca_cells(&study, true, method, kib, "rate", kib * 1024.0);
            pages.push(Point { cells, ..point("https", https(kib, "yes", extent.threads), method, first) });
        }
        for keepalive in ["yes", "no"] {
            let first = kib == 16.0 || kib == 1024.0;
            let keys = [https(kib, keepalive, 1), vec![("profile", "yes".to_owned())]].concat();
            shares.push(point("https", keys, SOFTWARE, first));
        }
    }
    const PAPER: Paper = Paper::Eeca;
    Ok(vec![
        Figure {
            paper: PAPER,
            names: &["table1", "figure4"],
            title: "AES-256-CBC by block size",
            axis: "bytes",
            quantities: vec![more("throughput", "kB/s"), more(PER_JOULE, "byte/J"), share("cpu_share")],
            note: "One process for each hardware thread; published were 8 cores. Of the paper's nine sizes six are kept \
                   with their figures; 2, 32 and 128 KiB stand for the others.",
            claims: Vec::new(),
            points: ciphers,
        },
        Figure {
            paper: PAPER,
            names: &["table2", "figure10"],
            title: "HTTPS responses by page size",
            axis: "page",
            quantities: vec![
                more("rate", "1/s"),
                more(PER_JOULE, "byte/J"),
                less("cpu_us", "us"),
                share("worker_share"),
            ],
            note: "One worker for each hardware thread; published were 8 cores. Of the paper's eleven pages eight are kept \
                   with their figures; 4, 8 and 512 KiB stand for the others.",
            claims: Vec::new(),
            points: pages,
        },
        Figure {
            paper: PAPER,
            names: &["figure3"],
            title: "Where nginx's time goes: the share of cryptography",
            axis: "page",
            quantities: vec![share("engine_share"), share(PROFILED), share("worker_share")],
            note: "Published: 40.5 to 62.8 % with and without keep-alive; at which page is not kept, so no point has a \
                   published figure. One worker: the client has a core of its own. `engine_share` is counted time inside \
                   engines; `profiled_share` is samples of perf in libcrypto and the provider, in spells of their own.",
            claims: Vec::new(),
            points: shares,
        },
    ])
}
