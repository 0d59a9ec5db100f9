//! What sealing costs that follows its compression at once, beside the same work as two passes that meet in a queue (one
//! compresses, the other seals what it reads): processor time and time, in turns.
//!
//! `cargo run -p wattlock-files --example chained_cost -- FOLDER [MIB] [TURNS]`; results are written into FOLDER. By
//! hand on two cores of a Zen 5 beside other work, 64 MiB and 21 turns, in a development build: 0.96 and 0.97 of the
//! processor time.
#![allow(clippy::unwrap_used, reason = "an example that cannot go on ends")]

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use wattlock::Runtime;
use wattlock_core::samples;
use wattlock_door::Output;
use wattlock_files::{Gzip, Input, Progress, Sealer, age};

static NEVER: AtomicBool = AtomicBool::new(false);
/// What one pass hands the other at a time.
const PIECE: usize = 128 * 1024;

struct Handed(SyncSender<Vec<u8>>, Vec<u8>);

impl Write for Handed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.1.extend_from_slice(bytes);
        if self.1.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = std::mem::take(&mut self.1);
        self.0.send(piece).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

struct Taken(Receiver<Vec<u8>>, Vec<u8>, usize);

impl Read for Taken {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.2 == self.1.len() {
            (self.1, self.2) = (self.0.recv().unwrap_or_default(), 0);
        }
        let len = to.len().min(self.1.len() - self.2);
        to[..len].copy_from_slice(&self.1[self.2..self.2 + len]);
        self.2 += len;
        Ok(len)
    }
}

fn chained(from: &Path, to: Output, sealer: &Sealer, runtime: &Runtime) {
    sealer.seal(Input::Path(from.into()), to, runtime, Progress::new(&NEVER)).unwrap();
}

fn apart(from: &Path, to: Output, sealer: &Sealer, runtime: &Runtime) {
    let (sender, receiver) = sync_channel(6);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let to = Output::Stream(Box::new(Handed(sender, Vec::new())));
            let gzip = Gzip::new(1).unwrap();
            gzip.compress(Input::Path(from.into()), to, runtime, Progress::new(&NEVER)).unwrap();
        });
        let read = Input::Stream(Box::new(Taken(receiver, Vec::new(), 0)));
        sealer.seal(read, to, runtime, Progress::new(&NEVER)).unwrap();
    });
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().unwrap_or_else(|| ".".into());
    let mut number = |usual| arguments.next().map_or(usual, |text| text.parse().unwrap());
    let (mib, turns) = (number(64), number(21));
    let runtime = Runtime::builder().telemetry(false).build().unwrap();
    let key = age::x25519::Identity::generate().to_public();
    let sealer = || Sealer::new(vec![Box::new(key.clone())]).unwrap();
    let (with, without) = (sealer().gzip(Some(Gzip::new(1).unwrap())), sealer());
    let (from, to) = (Path::new(&folder).join("plain"), Path::new(&folder).join("sealed"));
    let mut file = std::fs::File::create(&from).unwrap();
    (0..mib).for_each(|turn| file.write_all(&samples::html(turn, 1 << 20)).unwrap());
    let cpu = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let mut all: [Vec<(f64, f64)>; 2] = Default::default();
    for turn in 0..2 * turns {
        // The first of a pair takes turns, too.
        let way = ((turn + turn / 2) % 2) as usize;
        let (to, began, used) = (Output::Path { path: to.clone(), force: true }, Instant::now(), cpu());
        match way {
            0 => chained(&from, to, &with, &runtime),
            _ => apart(&from, to, &without, &runtime),
        }
        all[way].push(((cpu() - used).as_secs_f64(), began.elapsed().as_secs_f64()));
    }
    let mut ratios: Vec<f64> = all[0].iter().zip(&all[1]).map(|(one, other)| one.0 / other.0).collect();
    ratios.sort_by(f64::total_cmp);
    for (name, runs) in ["chained", "apart"].iter().zip(&mut all) {
        let [cpu, time] = [|run: &(f64, f64)| run.0, |run: &(f64, f64)| run.1].map(|of| {
            let mut values: Vec<f64> = runs.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            (values[0] * 1e3, values[values.len() / 2] * 1e3)
        });
        println!(
            "{name:8} processor {:.1} ms least, {:.1} ms median; time {:.1} ms least, {:.1} ms median",
            cpu.0, cpu.1, time.0, time.1
        );
    }
    let at = |share: usize| ratios[(ratios.len() - 1) * share / 4];
    println!("processor time, chained over apart, by pairs: {:.3} ({:.3} to {:.3})", at(2), at(1), at(3));
    std::fs::remove_file(&from).unwrap();
    std::fs::remove_file(&to).unwrap();
}
