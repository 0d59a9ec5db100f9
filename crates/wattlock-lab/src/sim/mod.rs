//! Virtual time and the parts machines are made of. Knows no paper; pure and seeded.

mod card;
mod closed;
mod cpu;
pub mod event_loop;
mod events;
mod power;
mod random;
pub mod stream;
pub mod thread;

pub(crate) use card::of_one_kind;
pub use card::{Card, Refused};
pub use closed::{CALLS, CARD, CRYPTO, Closed, Inline, OWN_WORK, Steady};
pub use cpu::{Burst, Cpu, Ended, USES};
pub use events::Events;
pub use power::Power;
pub use random::Random;
pub use wattlock_emul::gpu::{Gpu, GpuModel, Piece, Step};

use wattlock_core::Nanos;
use wattlock_policy::{EngineId, Outcome};

/// What a policy hears of a request that was done by itself and not held, with so many in flight.
pub fn answered(engine: EngineId, latency_ns: Nanos, depth: u32) -> Outcome {
    Outcome { engine, latency_ns, held_ns: 0, batch: 1, depth, energy_nj: None, failed: false }
}
