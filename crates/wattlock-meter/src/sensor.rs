//! The interface that every source is read through.

use std::io;

use crate::figure::Boundary;

/// The unit of a sensor's numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Measures {
    /// Energy since some moment.
    Energy {
        /// Joules a count.
        joules: f64,
        /// Largest value, after which the counter starts again at 0; `None` if it never does.
        wraps_after: Option<u64>,
    },
    /// Power now.
    Power {
        /// Watts a count.
        watts: f64,
    },
}

/// A sensor's description.
#[derive(Debug, Clone, PartialEq)]
pub struct About {
    /// `powercap`, `perf`, `nvml`, `hwmon`.
    pub source: &'static str,
    /// The boundary.
    pub boundary: Boundary,
    /// The part's name: `package-0`, `package-0 dram`.
    pub part: String,
    /// File, event or library behind it.
    pub detail: String,
    /// The unit of its numbers.
    pub measures: Measures,
}

/// Why a sensor could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Gone(pub String);

impl From<io::Error> for Gone {
    fn from(error: io::Error) -> Gone {
        Gone(error.to_string())
    }
}

/// One counter or power sensor. Reading it must not block for longer than a system call.
pub trait Sensor: Send {
    /// The sensor's description.
    fn about(&self) -> &About;

    /// The present number.
    ///
    /// # Errors
    /// [`Gone`], with a reason for people. It may come back.
    fn read(&mut self) -> Result<u64, Gone>;
}
