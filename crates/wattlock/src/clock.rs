//! Where the runtime gets the time from: the only place that reads a clock on a request's way.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use wattlock_core::Nanos;

/// A clock in nanoseconds; monotonic, shared by all threads.
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    Real(Instant),
    Given(Arc<dyn Fn() -> Nanos + Send + Sync>),
}

impl Clock {
    /// The machine's monotonic clock, from now on.
    pub fn real() -> Clock {
        Clock(Source::Real(Instant::now()))
    }

    /// Somebody else's clock, for tests and the lab. It must not run backwards.
    pub fn given(now: impl Fn() -> Nanos + Send + Sync + 'static) -> Clock {
        Clock(Source::Given(Arc::new(now)))
    }

    /// The time now.
    #[inline]
    pub fn now(&self) -> Nanos {
        match &self.0 {
            Source::Real(start) => start.elapsed().as_nanos() as Nanos,
            Source::Given(now) => now(),
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Source::Real(_) => "Clock(real)",
            Source::Given(_) => "Clock(given)",
        })
    }
}
