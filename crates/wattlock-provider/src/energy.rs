//! The machine's joules since this process was first asked for its counters.

use std::sync::{Mutex, PoisonError};

use wattlock::meter::{EVERY_NS, Figure, Meter, Places, Reading, Record};

/// The machine's joules. Sources are looked for at the first question, so that a program without one pays nothing; from
/// then on they are read when asked, ten times a second at most. No thread.
#[derive(Default)]
pub struct Energy(Mutex<Option<Metering>>);

struct Metering {
    /// A child after a fork begins anew: the window is its parent's.
    forks: u32,
    meter: Meter,
    at: u64,
    last: Option<Reading>,
}

impl Energy {
    /// What is known at this time.
    pub fn records(&self, now: u64) -> Vec<Record> {
        // Not waited for: a thread that a fork did not bring along may have held it.
        let mut place = match self.0.try_lock() {
            Ok(place) => place,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(std::sync::TryLockError::WouldBlock) => return Vec::new(),
        };
        let forks = wattlock::forks();
        let metering = match &mut *place {
            Some(metering) if metering.forks == forks => metering,
            place => {
                let mut meter = Meter::discover(&Places::here());
                meter.start(now);
                place.insert(Metering { forks, meter, at: now, last: None })
            }
        };
        if metering.last.is_none() || now.saturating_sub(metering.at) >= EVERY_NS {
            metering.last = Some(metering.meter.finish(now));
            metering.at = now;
        }
        metering.last.iter().flat_map(|reading| reading.figures.iter().map(Figure::record)).collect()
    }
}
