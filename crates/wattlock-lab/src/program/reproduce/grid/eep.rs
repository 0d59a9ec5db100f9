//! EEP's figures: one job by its size, and by the GPU's clock.

use wattlock_lab::papers::eep;
use wattlock_lab::{Error, figure, table};

use super::{
    ADAPTIVE, Figure, INSTRUCTION, OFFLOAD, PER_JOULE, Paper, Point, cell, less, methods, more, point, row,
    scaled, share, simulated,
};
use crate::reproduce::shape::Claim;

/// The figures.
///
/// # Errors
/// The study that simulates them fails.
pub fn figures() -> Result<Vec<Figure>, Error> {
    const PAPER: Paper = Paper::Eep;
    const MB: f64 = 1e6;
    let study = eep::study(&Default::default())?;
    let known = |name: &str| figure("eep", name);
    let file = |megabytes: f64, method: &'static str, first| {
        let keys = vec![("bytes", ((megabytes * MB) as u64).to_string()), ("streams", "16".to_owned())];
        point("file", keys, method, first)
    };
    let mut jobs = Vec::new();
    for megabytes in [100.0, 200.0, 400.0, 600.0, 800.0, 1000.0] {
        let place = format!("plaintext_MB={megabytes}");
        let column = |name| table("eep-table5").cell(("plaintext_MB", megabytes), name);
        let first = [100.0, 400.0].contains(&megabytes);
        for method in methods("eep") {
            let sim = |quantity| match method {
                "eep" | ADAPTIVE => simulated(row(&study, "table5", &place, quantity), method),
                _ => None,
            };
            let hybrid = column("hybrid_ms").filter(|_| method == "eep");
            let cells = vec![
                cell("seconds", scaled(hybrid, 1e-3), scaled(sim("time_ms"), 1e-3)),
                cell(PER_JOULE, None, scaled(sim("mb_per_j"), MB)),
            ];
            jobs.push(Point { cells, ..file(megabytes, method, first) });
        }
        let cells = vec![cell("seconds", scaled(column("cpu_serial_ms"), 1e-3), None)];
        let serial = file(megabytes, INSTRUCTION, first);
        jobs.push(Point { method: "serial", by: Some(("cpus", "1")), cells, ..serial });
    }
    let clocks = table("eep-clocks");
    let mut steps = Vec::new();
    let places = || clocks.column("step").into_iter().zip(clocks.column("core_MHz"));
    for (megabytes, (step, mhz)) in
        [100.0, 200.0, 400.0, 800.0].into_iter().flat_map(|size| places().map(move |place| (size, place)))
    {
        let highest = step == clocks.len() as f64;
        // What is printed and simulated by clock is of this size.
        let kept = megabytes == 800.0;
        for method in [INSTRUCTION, OFFLOAD, "eep"] {
            let published = match method {
                INSTRUCTION if step == 1.0 => Some(known("cpu_only")),
                INSTRUCTION if highest => Some(known("cpu_only at the highest clock")),
                OFFLOAD if highest => Some(known("gpu_only")),
                "eep" if highest => Some(known("hybrid")),
                _ => None,
            };
            let name = if method == OFFLOAD { "gpu_only" } else { "cpu_only" };
            let row =
                row(&study, "clocks", &format!("{name} step={step}"), "mb_per_j").filter(|_| method != "eep");
            let mut cells = vec![cell(PER_JOULE, scaled(published, MB), scaled(simulated(row, method), MB))];
            cells.retain(|_| kept);
            let mut point = file(megabytes, method, kept && (step == 1.0 || highest));
            point.keys.insert(0, ("clock", mhz.to_string()));
            // The clock is the emulated device's, also where it does nothing.
            steps.push(Point { cells, uses_device: true, ..point });
        }
    }
    let per_joule = |of: (&'static str, &str), over: &'static [&'static str], other: &str| {
        let ratio = known(of.1) / known(other);
        Claim { quantity: PER_JOULE, at: &[], of: of.0, over, low: ratio, high: ratio }
    };
    Ok(vec![
        Figure {
            paper: PAPER,
            names: &["table5", "figure9", "figure10", "figure11"],
            title: "One job on CPU, GPU and both, by size",
            axis: "bytes",
            quantities: vec![
                less("seconds", "s"),
                more(PER_JOULE, "byte/J"),
                more("throughput", "MB/s"),
                share("device_share"),
            ],
            note: "Published times are of AES-128-CTR alone; here a file is sealed. Serial: one CPU, by instructions; \
                   published was one plain thread. Joules are of the whole program, its start included.",
            claims: vec![
                per_joule(("eep", "hybrid"), &[INSTRUCTION], "cpu_only"),
                per_joule(("eep", "hybrid"), &[OFFLOAD], "gpu_only"),
                per_joule((OFFLOAD, "gpu_only"), &[INSTRUCTION], "cpu_only"),
            ],
            points: jobs,
        },
        Figure {
            paper: PAPER,
            names: &["figure5", "figure6", "figure7", "figure8"],
            title: "Work for each joule by the GPU's clock",
            axis: "clock",
            quantities: vec![more(PER_JOULE, "byte/J"), less("seconds", "s"), share("device_share")],
            note: "Printed by clock is a job of 800 MB. Joules are of the whole program, its start included. Clocks are those of the emulated GPU; what an idle one draws is in no \
                   row.",
            claims: Vec::new(),
            points: steps,
        },
    ])
}
