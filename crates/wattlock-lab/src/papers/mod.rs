//! The published systems, each reproduced from its platform and its published baselines. No module knows another.

pub mod qweb;

mod k20m;
pub mod lecpaes;

pub mod eeca;
pub mod eep;
