//! Joules of a machine in virtual time: `P = P_static + sum of W·u` over its parts, u the part's utilisation (the form of
//! LECPAES's model, `papers/README.md` section 2, at one clock), integrated exactly, because u changes only at events.
//! Every figure is modelled.

use wattlock_core::Nanos;

/// Integrates power over virtual time.
#[derive(Debug, Clone)]
pub struct Power {
    static_w: f64,
    parts: Vec<State>,
    now: Nanos,
    joules: f64,
}

#[derive(Debug, Clone, Copy)]
struct State {
    /// At full use, beyond the static power.
    watts: f64,
    utilisation: f64,
    /// Integral of the utilisation, in nanoseconds.
    used_ns: f64,
}

impl Power {
    /// Nothing used yet, of parts that take so many watts at full use.
    pub fn new(static_w: f64, parts: &[f64]) -> Power {
        let state = |watts: &f64| State { watts: *watts, utilisation: 0.0, used_ns: 0.0 };
        Power { static_w, parts: parts.iter().map(state).collect(), now: 0, joules: 0.0 }
    }

    /// From now on a part is used so much, 0 to 1.
    ///
    /// # Panics
    /// If there is no such part.
    pub fn used(&mut self, now: Nanos, part: usize, utilisation: f64) {
        if self.parts[part].utilisation != utilisation {
            self.pass(now);
            self.parts[part].utilisation = utilisation;
        }
    }

    /// Watts at this moment.
    pub fn watts(&self) -> f64 {
        self.static_w + self.parts.iter().map(|one| one.watts * one.utilisation).sum::<f64>()
    }

    /// Joules from time 0 to `now`.
    pub fn joules(&mut self, now: Nanos) -> f64 {
        self.pass(now);
        self.joules
    }

    /// Mean utilisation of a part from time 0 to `now`.
    ///
    /// # Panics
    /// If there is no such part.
    pub fn utilisation(&mut self, now: Nanos, part: usize) -> f64 {
        self.pass(now);
        self.parts[part].used_ns / (self.now.max(1)) as f64
    }

    fn pass(&mut self, now: Nanos) {
        let ns = now.saturating_sub(self.now) as f64;
        if ns > 0.0 {
            self.joules += self.watts() * ns / 1e9;
            self.parts.iter_mut().for_each(|one| one.used_ns += one.utilisation * ns);
            self.now = now;
        }
    }
}
