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

pub use card::{Call, Card, Link, Refused};
pub use closed::{CALLS, CARD, CRYPTO, Closed, Inline, OWN_WORK, Steady, View};
pub use cpu::{Burst, Cpu, Ended, USES};
pub use events::Events;
pub use power::{Part, Power};
pub use random::Random;
pub use wattlock_emul::gpu::{Gpu, GpuModel, Piece, Step};
