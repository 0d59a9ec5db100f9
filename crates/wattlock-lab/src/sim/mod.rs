//! Virtual time and the parts machines are made of. Knows no paper; pure and seeded.

mod events;
mod random;

pub use events::Events;
pub use random::Random;
