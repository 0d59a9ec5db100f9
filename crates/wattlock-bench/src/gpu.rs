//! A GPU: copies, kernels by kind and message size in the device's memory, a sealed file into that memory, and files of the
//! host sealed by the CPU, by the GPU and by both. By the clock on the wall, since a GPU has no other.
//!
//! Each row's figure is the median of its rounds. On the stand-in driver the rows say so, and mean nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use wattlock_core::Kind;
use wattlock_cuda::Stream;
use wattlock_cuda::direct::Trouble;
use wattlock_files::{Opener, age, keys};
use wattlock_gpu::Gpu;
use wattlock_shell::{setup, text};

use super::files::new_key;
use super::machine_line;
use super::pair;
use super::record::{By, Record, Row};

/// What to measure.
#[derive(Debug, Args)]
pub struct Settings {
    /// Bytes in the device's memory, and of each copy's and file's content
    #[arg(long, default_value = "1G", value_parser = text::parse_bytes)]
    size: usize,
    /// Rounds of everything
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: u32,
    /// Folder for files; a tmpfs shows the cost of the work and not of a disk
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
}

/// Kinds with the message sizes that are measured.
const KERNELS: [(Kind, &[usize]); 9] = [
    (Kind::Aes128Ctr, &[16 << 10]),
    (Kind::Aes256Ctr, &[16 << 10]),
    (Kind::Aes256GcmSeal, &[4 << 10, 16 << 10, 64 << 10]),
    (Kind::Aes256GcmOpen, &[4 << 10, 16 << 10, 64 << 10]),
    (Kind::Aes256XtsEncrypt, &[16 << 10]),
    (Kind::Aes256XtsDecrypt, &[16 << 10]),
    (Kind::Aes256CbcDecrypt, &[16 << 10]),
    (Kind::ChaCha20Poly1305Seal, &[16 << 10, 64 << 10]),
    (Kind::ChaCha20Poly1305Open, &[16 << 10, 64 << 10]),
];

/// Rows as they are found.
struct Sheet {
    record: Record,
    shown: Vec<Vec<String>>,
    device: String,
}

impl Sheet {
    fn add(&mut self, row: &str, message: Option<usize>, rates: Vec<f64>) {
        let rounds = rates.len();
        let rate = pair::median(rates) / 1e9;
        let size = message.map_or_else(|| "-".into(), |bytes| text::bytes(bytes as u64));
        self.shown.push(vec![row.into(), size, format!("{rate:.2}")]);
        let mut made = Row::alone("gpu", row, "GB/s", By::Time, rate, rounds).detail("device", &self.device);
        if let Some(bytes) = message {
            made = made.param("bytes", bytes);
        }
        self.record.add(made);
    }
}

/// Runs the benchmark.
pub fn run(settings: &Settings, record: Record) -> Result<()> {
    let direct = setup::gpu_memory().map_err(|missing| anyhow::anyhow!("no GPU: {missing}"))?;
    let (rounds, size) = (settings.rounds as usize, settings.size);
    let mut sheet = Sheet { record, shown: Vec::new(), device: direct.about() };
    if sheet.record.shows() {
        say!("{}\n{}\n", machine_line(), sheet.device);
    }
    let (there, back) = direct.copy_rates(size.min(1 << 28), rounds).map_err(trouble)?;
    sheet.add("copy-to-device", None, there);
    sheet.add("copy-to-host", None, back);
    for (kind, sizes) in KERNELS {
        for length in sizes.iter().filter(|length| **length <= size) {
            match direct.rate(kind, size, *length, rounds) {
                Ok(rates) => sheet.add(kind.name(), Some(*length), rates),
                Err(Trouble::Memory) if sheet.record.shows() => {
                    say!("{}: not enough memory on the device", kind.name());
                }
                Err(Trouble::Memory) => {}
                Err(failed) => return Err(trouble(failed)),
            }
        }
    }
    let folder = tempfile::tempdir_in(&settings.dir).with_context(|| settings.dir.display().to_string())?;
    files(&mut sheet, folder.path(), size, rounds, &Gpu::of(direct))?;
    if sheet.record.shows() {
        put!("{}", text::table(&["work", "message", "GB/s"], &sheet.shown));
    }
    sheet.record.finish()
}

fn trouble(trouble: Trouble) -> anyhow::Error {
    anyhow::anyhow!("the GPU: {trouble}")
}

/// A file of the host's: sealed by each, and opened into the device's memory.
fn files(sheet: &mut Sheet, folder: &Path, size: usize, rounds: usize, gpu: &Gpu) -> Result<()> {
    let path = |name: &str| folder.join(name);
    let content: Vec<u8> =
        (0..size as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    std::fs::write(path("in"), &content)?;
    let recipient = new_key(&path("key.txt"))?;
    let program = wattlock_shell::program::wattlock()?;
    for (row, policy) in [("file-cpu", "instruction"), ("file-gpu", "offload"), ("file-both", "adaptive")] {
        let mut rates = Vec::new();
        for _ in 0..rounds {
            let mut seal = Command::new(&program);
            seal.args(["seal", "-q", "-f", "--policy", policy, "-r", &recipient, "-o"]).arg(path("sealed"));
            let start = Instant::now();
            let done = seal.arg(path("in")).stdin(Stdio::null()).output()?;
            if !done.status.success() {
                bail!("wattlock seal: {}", String::from_utf8_lossy(&done.stderr).trim());
            }
            rates.push(size as f64 / start.elapsed().as_secs_f64());
        }
        sheet.add(row, None, rates);
    }
    let opener = Opener::new(keys::identities(&std::fs::read(path("key.txt"))?, age::NoCallbacks)?);
    let runtime = wattlock::Runtime::builder().telemetry(false).build()?;
    let reader = runtime.local(|crypto| opener.reader(path("sealed"), crypto))?;
    let failed = |failure: wattlock_gpu::Failure| anyhow::anyhow!("{}", failure.text());
    let memory = gpu.direct().memory(size).map_err(trouble)?;
    let mut rates = Vec::new();
    for _ in 0..=rounds {
        let start = Instant::now();
        wattlock_gpu::load(gpu, &reader, memory.at(), size as u64, Stream::default()).map_err(failed)?;
        rates.push(size as f64 / start.elapsed().as_secs_f64());
    }
    // The first one gives known answers.
    rates.remove(0);
    let mut found = vec![0; size];
    gpu.direct().read(memory.at(), &mut found).map_err(trouble)?;
    if found != content {
        bail!("the file on the GPU is not the file on the host");
    }
    sheet.add("file-to-device", None, rates);
    Ok(())
}
