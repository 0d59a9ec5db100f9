//! All tests of this crate through what it exports, in one program: linking takes longer than they do.

mod cpufreq;
#[path = "../../../wattlock-meter/tests/fake/mod.rs"]
mod fake;
mod nvml;
