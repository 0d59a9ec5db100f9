//! ACA-SDS's figures: a volume by block size, processes and method.

use wattlock_lab::papers::aca_sds;
use wattlock_lab::{Error, interval, table};

use super::{
    ADAPTIVE, Extent, Figure, INSTRUCTION, OFFLOAD, PER_JOULE, Paper, Point, Quantity, cell, less, methods,
    more, point, row, scaled, share, simulated,
};
use crate::reproduce::shape::Claim;

/// The figures.
///
/// # Errors
/// The study that simulates them fails.
pub fn figures(extent: Extent) -> Result<Vec<Figure>, Error> {
    const PAPER: Paper = Paper::AcaSds;
    const BLOCKS: [usize; 7] = [1, 4, 8, 16, 32, 64, 128];
    const VOLUME: &[Quantity] = &[
        less("latency_us", "us"),
        more("bandwidth", "MB/s"),
        more(PER_JOULE, "byte/J"),
        less("submit_us", "us"),
        less("complete_us", "us"),
        less("p99_us", "us"),
        share("cpu_share"),
    ];
    const WRITTEN: &[Quantity] =
        &[more("bandwidth", "MB/s"), more(PER_JOULE, "byte/J"), less("latency_us", "us"), share("cpu_share")];
    let study = aca_sds::study(&Default::default())?;
    let size = if extent.full { 64 << 20 } else { 16 << 20 };
    let volume = |operation: &str, kib: usize, processes: usize, method: &'static str, first| {
        let keys = vec![
            ("block", (kib << 10).to_string()),
            ("operation", operation.to_owned()),
            ("processes", processes.to_string()),
            ("size", size.to_string()),
        ];
        point("volume", keys, method, first)
    };
    let on = |cpus: usize, mut of: Point| {
        of.keys.push(("cpus", cpus.to_string()));
        let short = extent.threads < cpus;
        let cannot = short.then(|| format!("published with {cpus} CPUs; here are {}", extent.threads));
        Point { cannot, ..of }
    };
    let mut latencies = Vec::new();
    for operation in ["read", "write"] {
        for processes in [1, 2, 4, 8, 12, 16, 24, 32] {
            for kib in BLOCKS {
                for method in methods("aca-sds") {
                    let column = match method {
                        OFFLOAD => Some(format!("qat_{operation}_{processes}")),
                        INSTRUCTION => Some(format!("aesni_{operation}_{processes}")),
                        _ => None,
                    };
                    let known = table("aca-sds-table1");
                    let column = column.filter(|column| known.columns().contains(&column.as_str()));
                    let published = column.and_then(|column| known.cell(("block_kib", kib as f64), &column));
                    let place = format!("block_kib={kib} operation={operation} processes={processes}");
                    let sim = |quantity| match method {
                        "aca-sds" | ADAPTIVE => simulated(row(&study, "storage", &place, quantity), method),
                        _ => None,
                    };
                    let cells = vec![
                        cell("latency_us", published, sim("latency_us")),
                        cell("bandwidth", None, sim("throughput")),
                    ];
                    let first = processes == 12 && matches!(kib, 4 | 64);
                    latencies.push(Point { cells, ..volume(operation, kib, processes, method, first) });
                }
            }
        }
    }
    let mut idle = Vec::new();
    for (operation, method) in [("write", OFFLOAD), ("read", OFFLOAD), ("write", INSTRUCTION)] {
        for kib in BLOCKS {
            idle.push(volume(operation, kib, 16, method, kib == 64));
        }
    }
    let mut feeders = Vec::new();
    for cores in 1..=8 {
        let per_core = table("aca-sds-feeders").cell(("feeding_cores", cores as f64), "throughput_MB");
        let row = row(&study, "feeders", &format!("feeding_cores={cores}"), "throughput_per_feeder");
        let cells = vec![cell(
            "bandwidth",
            scaled(per_core, cores as f64),
            scaled(simulated(row, OFFLOAD), cores as f64),
        )];
        let one = volume("write", 32, 32, OFFLOAD, matches!(cores, 1 | 2 | 4 | 5));
        feeders.push(on(cores, Point { cells, ..one }));
    }
    let system = |processes: usize, cpus: Option<usize>, first: &[usize]| -> Vec<Point> {
        let of = |kib: usize| {
            methods("aca-sds").map(|method| {
                let one = volume("write", kib, processes, method, first.contains(&kib));
                cpus.map_or(one.clone(), |cpus| on(cpus, one))
            })
        };
        BLOCKS.into_iter().flat_map(of).collect()
    };
    let (few, four) = (system(4, None, &[4, 64]), system(12, Some(4), &[64]));
    let eight = system(12, Some(8), &[64]);
    const BOTH: &[&str] = &[INSTRUCTION, OFFLOAD];
    let over = |low: f64, high: f64, at, of, over| Claim {
        quantity: "bandwidth",
        at,
        of,
        over,
        low: 1.0 + low / 100.0,
        high: 1.0 + high / 100.0,
    };
    let gain = |name, at, of, beside| {
        let (low, high) = interval("aca-sds", name);
        over(low, high, at, of, beside)
    };
    let figure = |names, title, quantities: &[Quantity], note, claims, points| Figure {
        paper: PAPER,
        names,
        title,
        axis: "block",
        quantities: quantities.to_vec(),
        note,
        claims,
        points,
    };
    const LARGE: &[&str] = &["block=65536"];
    Ok(vec![
        figure(
            &["table1", "figure3", "figure7", "figure8"],
            "Latency by block size, processes and method",
            VOLUME,
            "Published: completion latency of an eCryptfs under fio. Here: a call of a mounted volume, which FUSE serves.",
            Vec::new(),
            latencies,
        ),
        figure(
            &["figure1"],
            "Processor time of 16 processes",
            &[share("cpu_share"), more("bandwidth", "MB/s")],
            "Published: 3 to 12 % idle when the card alone writes, else nothing; by which block each is not kept.",
            Vec::new(),
            idle,
        ),
        Figure {
            axis: "cpus",
            ..figure(
                &["figure5"],
                "Bandwidth by the cores that feed the card",
                &[more("bandwidth", "MB/s")],
                "Published: bandwidth for each core, here times the cores. As published, 32 processes write 32 KiB at a time.",
                Vec::new(),
                feeders,
            )
        },
        figure(
            &["figure9"],
            "Writes of 4 processes",
            WRITTEN,
            "",
            vec![gain("card over instructions at 4 processes", LARGE, OFFLOAD, &[INSTRUCTION])],
            few,
        ),
        figure(
            &["figure10"],
            "Writes on four CPUs",
            WRITTEN,
            "With how many processes is not published; 12 are taken.",
            vec![gain("write gain at 4 cores", LARGE, "aca-sds", BOTH)],
            four,
        ),
        figure(
            &["figure11"],
            "Writes on eight CPUs",
            WRITTEN,
            "",
            vec![gain("write gain", LARGE, "aca-sds", BOTH)],
            eight,
        ),
    ])
}
