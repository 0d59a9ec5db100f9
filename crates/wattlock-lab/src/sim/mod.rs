//! Virtual time and the parts machines are made of. Knows no paper; pure and seeded.

mod card;
mod cpu;
mod events;
mod power;
mod random;

pub use card::{Call, Card, Link, Refused};
pub use cpu::{Burst, Cpu, Ended, USES};
pub use events::Events;
pub use power::{Part, Power};
pub use random::Random;
