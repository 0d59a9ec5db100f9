//! Models after published accelerators. Every number says whether it was published, derived or is ours.

use wattlock_core::{Family, Group, Kind, KindSet, Nanos, Window};

use crate::gpu::{GpuModel, Parts, Step};
use crate::model::{Model, Pool, Power, Table};

/// Latencies of one synchronous request from the driver, `papers/qweb-latency.csv` (QWEB, DH8970).
const QWEB: &str = include_str!("../../../papers/qweb-latency.csv");
/// Whole-machine throughput, `papers/eeca-table1.csv` (EECA, accelerator in the SoC).
const EECA: &str = include_str!("../../../papers/eeca-table1.csv");
/// Clocks of a Tesla K20M, and its kernel's speed at each (EEP, LECPAES).
const CLOCKS: &str = include_str!("../../../papers/lecpaes-clocks.csv");
const SPEEDS: &str = include_str!("../../../papers/eep-clocks.csv");

impl Model {
    /// Every preset.
    pub fn presets() -> Vec<Model> {
        vec![Model::qat_dh8970(), Model::eeca_soc(), Model::k20m(), Model::h200()]
    }

    /// The preset of that name.
    pub fn preset(name: &str) -> Option<Model> {
        Model::presets().into_iter().find(|model| model.name == name)
    }

    /// A PCIe card after QWEB's measurements of a QAT DH8970.
    ///
    /// Published: the latencies of RSA-2048 and -4096, AES-128 chained with a hash, and deflate; the limits of 100 k
    /// RSA-2048 and 40 k ECDHE-RSA handshakes a second. Derived: 75 public-key servers (100 k/s x 745 us), and 565 us
    /// for an elliptic-curve operation (75 / 40 k/s = 1,875 us a handshake, of which RSA takes 745 and two operations
    /// the rest). Ours: RSA-3072 (by the cube of the length), P-384 at three times P-256, ML-KEM and SHA-3, which
    /// the card does not do, as an elliptic curve and as a hash, 20 cipher and 24 compression servers, derivation at 20
    /// us, zstd as deflate, window and watts.
    pub fn qat_dh8970() -> Model {
        let rsa = |bits| published(QWEB, "rsa_sign", bits);
        let elliptic = 565_000;
        let public_key = vec![
            table(&[Kind::Rsa2048Private], vec![(256, rsa(2048))]),
            table(&[Kind::Rsa3072Private], vec![(384, rsa(2048) * 27 / 8)]),
            table(&[Kind::Rsa4096Private], vec![(512, rsa(4096))]),
            table(
                &[
                    Kind::EcdsaP256Sign,
                    Kind::P256Derive,
                    Kind::P256Generate,
                    Kind::X25519Derive,
                    Kind::X25519Generate,
                ],
                vec![(0, elliptic)],
            ),
            table(&[Kind::EcdsaP384Sign, Kind::P384Derive, Kind::P384Generate], vec![(0, 3 * elliptic)]),
            Table { kinds: every(|kind| kind.info().group == Group::MlKem), points: vec![(0, elliptic)] },
        ];
        let bulk = |kind: &Kind| {
            matches!(
                kind.info().family,
                Family::Cipher | Family::Seal | Family::Open | Family::Digest | Family::Mac
            )
        };
        let derive = |kind: &Kind| kind.info().family == Family::Derive;
        let cipher = vec![
            Table { kinds: every(bulk), points: points(QWEB, "aes128_chained") },
            Table { kinds: every(derive), points: vec![(0, 20_000)] },
        ];
        let deflate = vec![table(&[Kind::Deflate, Kind::Zstd], points(QWEB, "deflate"))];
        Model {
            name: "dh8970".into(),
            pools: vec![
                Pool { name: "public-key".into(), servers: 75, tables: public_key },
                Pool { name: "cipher".into(), servers: 20, tables: cipher },
                Pool { name: "compression".into(), servers: 24, tables: deflate },
            ],
            window: Window { requests: 256, bytes: 16 << 20 },
            width: 1,
            power: Some(Power { idle_mw: 15_000, active_mw: 25_000 }),
            faults: Vec::new(),
            gpu: None,
            memory_bytes: 0,
        }
    }

    /// An accelerator in the SoC after EECA's table 1, AES-256-CBC encryption; also its inverse and the other AES
    /// modes and key lengths, which is our assumption.
    ///
    /// Published: the throughput by block size. Derived: the latency, by Little's law with eight servers, one for each
    /// core that drove the measurement, so that eight requests in flight give the published throughput exactly. Its
    /// own watts are not published (the table has the whole server's), so there are none.
    pub fn eeca_soc() -> Model {
        let servers = 8;
        let rows = EECA.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
        let point = |line: &str| {
            let cells: Vec<u64> =
                line.split(',').filter_map(|cell| cell.parse::<f64>().ok()).map(|x| x as u64).collect();
            // Columns: block in KiB, then kB/s and W for EECA, software, instruction, accelerator.
            let (bytes, bytes_per_ms) = (cells[0] * 1024, cells[7]);
            (bytes, u64::from(servers) * bytes * 1_000_000 / bytes_per_ms)
        };
        let aes = |kind: &Kind| kind.info().family == Family::Cipher;
        let tables = vec![Table { kinds: every(aes), points: rows.map(point).collect() }];
        Model {
            name: "eeca-soc".into(),
            pools: vec![Pool { name: "cipher".into(), servers, tables }],
            window: Window { requests: 64, bytes: 16 << 20 },
            width: 1,
            power: None,
            faults: Vec::new(),
            gpu: None,
            memory_bytes: 0,
        }
    }

    /// A Tesla K20M after LECPAES and EEP, AES in counter mode; also the other kinds that GPUs do, at the same rate,
    /// which is our assumption.
    ///
    /// Published: clocks, speeds, memory, parts. Fitted by the lab on the papers' baselines, which a test of the lab compares:
    /// setup, kernel, watts. Ours: copies, window.
    pub fn k20m() -> Model {
        let (mhz, speeds) = (column(CLOCKS, 1), [3, 4, 5, 6].map(|at| column(SPEEDS, at)));
        let step = |(at, core_mhz): (usize, f64)| Step {
            core_mhz,
            speed: speeds.iter().map(|size| size[at]).sum::<f64>() / 4.0,
            static_w: if at == 0 { K20M_LOWEST_IDLE_W } else { K20M_IDLE_W },
        };
        let gpu = GpuModel {
            setup_ns: 212_900.0,
            copy_bytes_per_s: 3e9,
            kernel_bytes_per_s: K20M_KERNEL,
            streams: 1,
            steps: mhz.into_iter().enumerate().map(step).collect(),
            reference: 4,
            dynamic_w: K20M_DYNAMIC_W,
            alpha: 3.0,
            set_clock_ns: 0.0,
            parts: Some(Parts { multiprocessors: 13, warp: 32 }),
        };
        let kernels = vec![Table { kinds: every(on_gpus), points: rate(K20M_KERNEL) }];
        gpu_model("k20m", gpu, kernels, 5_000_000_000)
    }

    /// An H200, calculated and not measured: kernels from instructions per byte and the rate of LOP3
    /// (docs/research/gpu.md), copies, watts and parts from data sheets.
    pub fn h200() -> Model {
        let gpu = GpuModel {
            setup_ns: 8_000.0,
            copy_bytes_per_s: 50e9,
            kernel_bytes_per_s: 380e9,
            streams: 4,
            steps: vec![Step { core_mhz: 1980.0, speed: 1.0, static_w: 110.0 }],
            reference: 0,
            dynamic_w: 590.0,
            alpha: 3.0,
            set_clock_ns: 0.0,
            parts: Some(Parts { multiprocessors: 132, warp: 32 }),
        };
        let kernel = |kinds: &[Kind], gb_per_s: f64| table(kinds, rate(gb_per_s * 1e9));
        let kernels = vec![
            kernel(&[Kind::Aes128Ctr], 525.0),
            kernel(&[Kind::Aes256Ctr], 384.0),
            kernel(&[Kind::Aes128GcmSeal, Kind::Aes128GcmOpen], 515.0),
            kernel(&[Kind::Aes256GcmSeal, Kind::Aes256GcmOpen], 380.0),
            kernel(&[Kind::Aes128XtsEncrypt, Kind::Aes128XtsDecrypt], 480.0),
            kernel(&[Kind::Aes256XtsEncrypt, Kind::Aes256XtsDecrypt], 360.0),
            kernel(&[Kind::Aes128CbcDecrypt], 430.0),
            kernel(&[Kind::Aes256CbcDecrypt], 320.0),
            kernel(&[Kind::ChaCha20Poly1305Seal, Kind::ChaCha20Poly1305Open], 1425.0),
        ];
        gpu_model("h200", gpu, kernels, 141_000_000_000)
    }
}

/// The kernel's rate of a K20M at its default clock, in bytes a second, and its watts: what the lab's baselines give
/// (`papers/k20m.rs` there).
const K20M_KERNEL: f64 = 483_206_836.0;
const K20M_IDLE_W: f64 = 73.730;
const K20M_LOWEST_IDLE_W: f64 = 53.366;
const K20M_DYNAMIC_W: f64 = 25.053;

/// Kinds that GPUs have kernels for.
fn on_gpus(kind: &Kind) -> bool {
    let info = kind.info();
    let aes = matches!(info.group, Group::Ctr | Group::Xts | Group::Gcm) && !info.name.contains("192");
    let cbc = matches!(kind, Kind::Aes128CbcDecrypt | Kind::Aes256CbcDecrypt);
    aes || cbc || info.group == Group::ChaChaPoly
}

/// Nanoseconds at so many bytes a second, on a line through zero.
fn rate(bytes_per_s: f64) -> Vec<(u64, Nanos)> {
    vec![(0, 0), (1 << 32, ((1_u64 << 32) as f64 * 1e9 / bytes_per_s) as Nanos)]
}

fn gpu_model(name: &str, gpu: GpuModel, tables: Vec<Table>, memory_bytes: u64) -> Model {
    Model {
        name: name.into(),
        pools: vec![Pool { name: "kernel".into(), servers: 1, tables }],
        window: Window { requests: 64, bytes: 256 << 20 },
        width: 1,
        power: None,
        faults: Vec::new(),
        gpu: Some(gpu),
        memory_bytes,
    }
}

/// A column of a published table.
fn column(csv: &str, at: usize) -> Vec<f64> {
    let rows = csv.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
    rows.filter_map(|row| row.split(',').nth(at)?.parse().ok()).collect()
}

fn every(select: impl Fn(&Kind) -> bool) -> KindSet {
    Kind::ALL.iter().copied().filter(|kind| select(kind)).collect()
}

fn table(kinds: &[Kind], points: Vec<(u64, Nanos)>) -> Table {
    Table { kinds: KindSet::of(kinds), points }
}

/// The rows of one operation: bytes (or bits) and nanoseconds.
fn points(csv: &str, operation: &str) -> Vec<(u64, Nanos)> {
    let row = |line: &str| {
        let mut cells = line.split(',');
        if cells.next()? != operation {
            return None;
        }
        let (size, us): (u64, u64) = (cells.next()?.parse().ok()?, cells.next()?.parse().ok()?);
        Some((size, us * 1000))
    };
    csv.lines().filter_map(row).collect()
}

/// One row's nanoseconds. The tables are part of the program, and a test asks for each row used here.
fn published(csv: &str, operation: &str, size: u64) -> Nanos {
    points(csv, operation).into_iter().find(|point| point.0 == size).map_or(0, |point| point.1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn dh8970_has_the_published_latencies() {
        let model = Model::qat_dh8970();
        assert_eq!(model.service_ns(Kind::Rsa2048Private, 256), Some(745_000));
        assert_eq!(model.service_ns(Kind::Rsa4096Private, 512), Some(5_332_000));
        assert_eq!(model.service_ns(Kind::Aes128CbcEncrypt, 16384), Some(27_000));
        assert_eq!(model.service_ns(Kind::Deflate, 65536), Some(194_000));
    }

    #[test]
    fn dh8970_has_the_published_limits() {
        let model = Model::qat_dh8970();
        let ns = |kind, bytes| model.service_ns(kind, bytes).unwrap();
        let per_second = |busy_ns: u64| 75 * 1_000_000_000 / busy_ns;
        let rsa = ns(Kind::Rsa2048Private, 256);
        assert!(per_second(rsa).abs_diff(100_000) < 1_000);
        assert_eq!(per_second(rsa + ns(Kind::P256Derive, 65) + ns(Kind::P256Generate, 0)), 40_000);
    }

    #[test]
    fn eeca_soc_has_the_published_throughput() {
        let model = Model::eeca_soc();
        for (kib, kbps) in [(1, 556_045), (4, 2_175_144), (16, 6_095_124), (256, 6_271_619)] {
            let bytes = kib * 1024;
            let ns = model.service_ns(Kind::Aes256CbcEncrypt, bytes).unwrap();
            let modelled = 8 * bytes * 1_000_000 / ns;
            assert!(modelled.abs_diff(kbps) * 1000 < kbps, "{kib} KiB: {modelled} kB/s, published {kbps}");
        }
    }

    #[test]
    fn gpus_say_their_clocks_and_parts() {
        let of = |model: Model| model.gpu.and_then(|gpu| gpu.attributes()).unwrap();
        let (k20m, h200) = (of(Model::k20m()), of(Model::h200()));
        assert_eq!(k20m.clocks_mhz, [324, 614, 640, 666, 705, 758]);
        assert_eq!((k20m.multiprocessors, h200.multiprocessors, k20m.warp, h200.warp), (13, 132, 32, 32));
    }

    #[test]
    fn unknown_preset_is_none() {
        assert_eq!(Model::preset("dh8970").map(|model| model.name).as_deref(), Some("dh8970"));
        assert!(Model::preset("dh9999").is_none());
    }
}
