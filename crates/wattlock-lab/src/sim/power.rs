//! Joules of a machine in virtual time: `P = P_static + sum of W·u·f^a` over its parts, u the part's utilisation and f its
//! clock as a share of the highest (the form of LECPAES's model, `papers/README.md` section 2), integrated exactly,
//! because u and f change only at events. Every figure is modelled.

use wattlock_core::Nanos;

/// Something that takes power when it is used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Part {
    /// At full use and the highest clock, beyond the static power.
    pub watts: f64,
    /// The a above.
    pub exponent: f64,
}

impl Part {
    /// A part whose clock does not change.
    pub fn of(watts: f64) -> Part {
        Part { watts, exponent: 1.0 }
    }
}

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
    part: Part,
    utilisation: f64,
    clock: f64,
    /// Integral of the utilisation, in nanoseconds.
    used_ns: f64,
}

impl Power {
    /// Nothing used yet, all clocks at their highest.
    pub fn new(static_w: f64, parts: &[Part]) -> Power {
        let state = |part: &Part| State { part: *part, utilisation: 0.0, clock: 1.0, used_ns: 0.0 };
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

    /// From now on a part runs at that share of its highest clock.
    ///
    /// # Panics
    /// If there is no such part.
    pub fn clocked(&mut self, now: Nanos, part: usize, clock: f64) {
        self.pass(now);
        self.parts[part].clock = clock;
    }

    /// Watts at this moment.
    pub fn watts(&self) -> f64 {
        let watts = |one: &State| one.part.watts * one.utilisation * one.clock.powf(one.part.exponent);
        self.static_w + self.parts.iter().map(watts).sum::<f64>()
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
