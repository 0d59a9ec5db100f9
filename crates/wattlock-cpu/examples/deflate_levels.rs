//! Lengths and speeds of deflate's levels on generated content, on this machine's igzip and zlib-rs, and zstd's. For zlib's
//! own, `tests/compress.rs` and `wattlock bench compress` have the comparison. Time is the thread's processor time.
//!
//! `cargo run --release -p wattlock-cpu --example deflate_levels [DIRECTORY]` also writes the contents there.

use wattlock_core::{Data, Engine, Key, Kind, Options, Request, samples};
use wattlock_cpu::instruction::Instruction;

fn thread_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a structure to be filled.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn main() {
    let engines = [("libraries", Instruction::new()), ("without", Instruction::without_libraries())];
    let directory = std::env::args().nth(1);
    for size in [1 << 20, 150_000, 16 << 10, 4 << 10] {
        let contents = [
            ("html", samples::html(1, size)),
            ("json", samples::json(1, size)),
            ("text", samples::text(1, size)),
            ("noise", samples::noise(1, size)),
        ];
        for (name, content) in contents {
            if let Some(directory) = &directory {
                std::fs::write(format!("{directory}/{name}-{size}"), &content).expect("a file to write");
            }
            for (which, engine) in &engines {
                for (kind, levels) in [(Kind::Deflate, 1..=9), (Kind::Zstd, 1..=5)] {
                    for level in levels {
                        let mut output = vec![0; kind.output_bound(size).expect("a bound")];
                        let (mut best, mut len) = (u64::MAX, 0);
                        let turns = (4_000_000 / size).clamp(3, 200);
                        for _ in 0..turns {
                            let mut options = Options::default();
                            options.level = level;
                            let data = Data::Apart { from: &content, to: &mut output };
                            let mut request = Request { options, ..Request::new(kind, Key::none(), data) };
                            let begin = thread_ns();
                            len = engine.execute(&mut request).expect("room enough");
                            best = best.min(thread_ns() - begin);
                        }
                        let rate = size as f64 * 1000.0 / best as f64;
                        println!("{name} {size} {which} {} {level} {len} {rate:.0}", kind.name());
                    }
                }
            }
        }
    }
}
