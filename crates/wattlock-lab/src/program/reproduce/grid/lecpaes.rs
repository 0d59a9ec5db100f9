//! LECPAES's figures: a stream by its velocity, and streams whose velocity changes.

use wattlock_lab::papers::lecpaes;
use wattlock_lab::{Error, table};

use super::{
    ADAPTIVE, Extent, Figure, Paper, Point, Quantity, cell, less, more, point, row, scaled, simulated,
};

/// The figures.
///
/// # Errors
/// The study that simulates them fails.
pub fn figures(extent: Extent) -> Result<Vec<Figure>, Error> {
    const PAPER: Paper = Paper::Lecpaes;
    const USERS: f64 = 12_000.0;
    const RULES: [(&str, Option<&str>); 5] = [
        ("cs", Some("cpu_serial")),
        ("cp", Some("cpu_parallel")),
        ("gp", Some("gpu_fixed")),
        ("lecpaes", Some("lecpaes")),
        (ADAPTIVE, None),
    ];
    const STREAM: &[Quantity] =
        &[less("joules", "J"), less("retransmissions", "1/message"), more("throughput", "MB/s")];
    let study = lecpaes::study(&Default::default())?;
    let messages = if extent.full { USERS } else { 500.0 };
    let ours = extent.machine == "k20m";
    let stream = |place: (&'static str, String), rule: &'static str, first| {
        let keys = vec![place, ("messages", messages.to_string()), ("machine", extent.machine.to_owned())];
        Point {
            policy: None,
            by: Some(("rule", rule)),
            uses_device: !matches!(rule, "cs" | "cp"),
            ..point("stream", keys, rule, first)
        }
    };
    let mut steady = Vec::new();
    for gap in table("lecpaes-energy").column("latency_us") {
        for (rule, column) in RULES {
            let of = |name: &str, suffix: &str| {
                table(name).cell(("latency_us", gap), &format!("{}{suffix}", column?))
            };
            let place = match rule {
                "cs" => format!("by=cpu-serial latency_us={gap}"),
                "cp" => format!("by=cpu-parallel latency_us={gap}"),
                "gp" => format!("by=gpu latency_us={gap}"),
                _ => format!("latency_us={gap}"),
            };
            let experiment = if matches!(rule, "lecpaes" | ADAPTIVE) { "stream" } else { "comparison" };
            let sim = |quantity| simulated(row(&study, experiment, &place, quantity), rule);
            let cells = vec![
                cell(
                    "joules",
                    scaled(of("lecpaes-energy", "_J"), messages / USERS),
                    scaled(sim("energy_j"), messages / USERS),
                ),
                cell("retransmissions", of("lecpaes-retransmission", ""), sim("retransmission_rate")),
                cell("throughput", of("lecpaes-throughput", ""), sim("throughput")),
            ];
            let first = [100.0, 500.0, 3000.0].contains(&gap);
            steady.push(Point { cells, ..stream(("gap_us", gap.to_string()), rule, first) });
        }
    }
    let mut changing = Vec::new();
    for pattern in ["bursts", "day", "on-off", "heavy-tail"] {
        for rule in ["gp", "lecpaes", ADAPTIVE] {
            changing.push(stream(("pattern", pattern.to_owned()), rule, matches!(pattern, "bursts" | "day")));
        }
    }
    Ok(vec![
        Figure {
            paper: PAPER,
            names: &["figure8", "figure9", "table3", "table4", "table5", "table6", "table7", "table8"],
            title: "Joules, retransmissions and throughput by the stream's velocity",
            axis: "gap_us",
            quantities: STREAM.to_vec(),
            note: match ours {
                true => "Published joules are of 12,000 messages and stand here in proportion to this run's.",
                false => {
                    "Another machine than the published one: joules stand in proportion to this run's messages."
                }
            },
            claims: Vec::new(),
            points: steady,
        },
        Figure {
            paper: PAPER,
            names: &["changing"],
            title: "Velocities that change while the stream runs",
            axis: "pattern",
            quantities: STREAM.to_vec(),
            note: "Nothing was published of these.",
            claims: Vec::new(),
            points: changing,
        },
    ])
}
