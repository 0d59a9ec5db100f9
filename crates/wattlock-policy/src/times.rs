//! What pieces were seen to take: a thread, and a device from its submission to its answer.

use wattlock_core::{Kind, Shape};

/// Times by kind and by the power of two of the bytes.
#[derive(Default)]
pub(crate) struct Times(Vec<Seen>);

struct Seen {
    kind: Kind,
    size: u32,
    cpu_ns: Option<f64>,
    device_ns: Option<f64>,
}

/// Share of what is new in a thread's time.
const NEW: f64 = 0.125;
/// Share by which a device's least time is forgotten: queueing only ever adds to it.
const FORGOTTEN: f64 = 1.0 / 256.0;

fn size(bytes: usize) -> u32 {
    (bytes | 1).ilog2()
}

impl Times {
    /// A piece took so long.
    pub(crate) fn add(&mut self, device: bool, shape: &Shape, ns: f64) {
        let (kind, size) = (shape.kind, size(shape.bytes / shape.messages.max(1) as usize));
        let at = self.0.iter().position(|seen| (seen.kind, seen.size) == (kind, size));
        let at = at.unwrap_or_else(|| {
            self.0.push(Seen { kind, size, cpu_ns: None, device_ns: None });
            self.0.len() - 1
        });
        let seen = &mut self.0[at];
        if device {
            let before = seen.device_ns.unwrap_or(ns);
            seen.device_ns = Some(ns.min(before + (ns - before) * FORGOTTEN));
        } else {
            let before = seen.cpu_ns.unwrap_or(ns);
            seen.cpu_ns = Some(before + (ns - before) * NEW);
        }
    }

    /// What a piece of so many bytes takes a thread, and the device when nothing waits in it.
    pub(crate) fn of(&self, kind: Kind, bytes: usize) -> (Option<f64>, Option<f64>) {
        let seen = self.0.iter().find(|seen| (seen.kind, seen.size) == (kind, size(bytes)));
        seen.map_or((None, None), |seen| (seen.cpu_ns, seen.device_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_devices_least_time_counts_and_is_forgotten_slowly() {
        let shape = Shape { kind: Kind::Aes256GcmSeal, bytes: 16384, class: Default::default(), messages: 1 };
        let mut times = Times::default();
        let least = |times: &Times| times.of(shape.kind, 20_000).1.unwrap();
        [50_000.0, 27_000.0, 90_000.0].into_iter().for_each(|ns| times.add(true, &shape, ns));
        assert!((27_000.0..27_300.0).contains(&least(&times)), "{}", least(&times));
        (0..2000).for_each(|_| times.add(true, &shape, 90_000.0));
        assert!(least(&times) > 89_000.0, "a device that has become slow: {}", least(&times));
        assert_eq!(times.of(shape.kind, 4096), (None, None), "another size");
        assert_eq!(times.of(shape.kind, 16384).0, None, "no thread did any");
    }
}
