//! The GPU model against closed forms.

use wattlock_lab::sim::{Gpu, GpuModel, Step};

fn model(streams: usize) -> GpuModel {
    let step = |core_mhz, speed, static_w| Step { core_mhz, speed, static_w };
    GpuModel {
        setup_ns: 1000.0,
        copy_bytes_per_s: 1e9,
        kernel_bytes_per_s: 0.5e9,
        streams,
        steps: vec![step(500.0, 0.5, 20.0), step(1000.0, 1.0, 40.0), step(2000.0, 2.0, 40.0)],
        reference: 1,
        dynamic_w: 10.0,
        alpha: 3.0,
        set_clock_ns: 0.0,
        parts: None,
    }
}

#[test]
fn a_piece_alone_takes_setup_two_copies_and_a_kernel() {
    let mut gpu = Gpu::new(model(1));
    let piece = gpu.submit(5000, 10_000.0);
    assert_eq!((piece.began, piece.copied_in, piece.done), (5000, 16_000, 46_000));
    assert_eq!(gpu.model().alone_ns(10_000.0, 1), 41_000.0);
}

#[test]
fn one_stream_adds_the_stages_and_many_are_bound_by_the_slowest() {
    let rate = |streams| {
        let mut gpu = Gpu::new(model(streams));
        let last = (0..1000).map(|_| gpu.submit(0, 10_000.0).done).max().unwrap_or(0);
        1e7 / last as f64
    };
    assert!((rate(1) / (10_000.0 / 41_000.0) - 1.0).abs() < 1e-9);
    // The kernel: 0.5 bytes a nanosecond, less the pipeline's filling and emptying.
    assert!((rate(16) / 0.5 - 1.0).abs() < 0.005 && rate(16) < 0.5);
    assert!(rate(2) > 1.4 * rate(1) && rate(2) < rate(16));
}

#[test]
fn the_clock_moves_the_kernel_and_nothing_else() {
    let at = |step| {
        let mut gpu = Gpu::new(model(1));
        gpu.set_clock(0, step);
        gpu.submit(0, 10_000.0).done
    };
    assert_eq!([at(0), at(1), at(2), at(9)], [61_000, 41_000, 31_000, 31_000]);
}

#[test]
fn energy_is_static_power_over_time_and_dynamic_power_over_work() {
    let mut gpu = Gpu::new(model(1));
    gpu.set_clock(1_000_000, 2);
    gpu.submit(1_000_000, 10_000.0);
    gpu.set_clock(2_000_000, 0);
    let expected = 40.0 * 2e-3 + 20.0 * 1e-3 + 10.0 * 8.0 * 31e-6;
    assert!((gpu.energy_j(3_000_000) / expected - 1.0).abs() < 1e-9);
    assert_eq!((gpu.changes(), gpu.busy_ns()), (2, 31_000.0));
}

#[test]
fn work_side_by_side_is_paid_once() {
    let energy = |streams| {
        let mut gpu = Gpu::new(model(streams));
        let last = (0..100).map(|_| gpu.submit(0, 10_000.0).done).max().unwrap_or(0);
        (gpu.energy_j(last), last as f64 * 50.0 / 1e9)
    };
    for streams in [1, 4] {
        let (joules, busy_all_along) = energy(streams);
        assert!((joules / busy_all_along - 1.0).abs() < 1e-9, "{streams}");
    }
}
