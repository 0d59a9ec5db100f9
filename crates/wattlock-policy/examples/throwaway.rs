use std::hint::black_box;
use std::time::Instant;
use wattlock_core::*;
use wattlock_policy::*;
fn main() {
    let e = |id, class, i, q, w| EngineView {
        id: EngineId(id),
        class,
        inline: i,
        queued: q,
        width: w,
        window: 64,
    };
    let mut m = Machine {
        engines: vec![
            e(0, EngineClass::Software, KindSet::ALL, KindSet::EMPTY, 1),
            e(1, EngineClass::Instruction, KindSet::ALL, KindSet::EMPTY, 1),
            e(2, EngineClass::Lanes, KindSet::EMPTY, KindSet::ALL, 8),
            e(3, EngineClass::Accelerator, KindSet::EMPTY, KindSet::ALL, 1),
        ],
        cores: 2,
        ..Machine::default()
    };
    for i in 0..4 {
        for k in Kind::ALL {
            m.costs.set(
                EngineId(i),
                *k,
                (0..10)
                    .map(|p| {
                        (64usize << (2 * p), 100.0 * (4 - i) as f64 + (64u64 << (2 * p)) as f64 * 0.1, None)
                    })
                    .collect(),
            );
        }
    }
    let mut w = Weather { submitters: 1, ..Default::default() };
    for s in &mut w.engines[..4] {
        s.available = true;
    }
    for n in NAMES {
        let t0 = Instant::now();
        let mut p = by_name(n, m.clone(), &Settings::default()).unwrap();
        let build = t0.elapsed();
        let t = Instant::now();
        p.choose_inline(&Shape { kind: Kind::Aes128GcmSeal, bytes: 100, class: Default::default() }, &w, 0);
        let first = t.elapsed();
        let n1 = 20_000_000u64;
        let t = Instant::now();
        for i in 0..n1 {
            let s =
                Shape { kind: Kind::Aes128GcmSeal, bytes: (i & 16383) as usize, class: Default::default() };
            black_box(p.choose_inline(black_box(&s), black_box(&w), i));
        }
        let a = t.elapsed().as_nanos() as f64 / n1 as f64;
        let n2 = 3_000_000u64;
        let t = Instant::now();
        for i in 0..n2 {
            let s =
                Shape { kind: Kind::Aes128GcmSeal, bytes: (i & 16383) as usize, class: Default::default() };
            black_box(p.choose(black_box(&s), black_box(&w), i * 1000));
        }
        let b = t.elapsed().as_nanos() as f64 / n2 as f64;
        println!("{n}: build {build:?} first {first:?} choose_inline {a:.1} ns choose {b:.1} ns");
    }
}
