//! The published systems, each reproduced from its platform and its published baselines. No module knows another.

pub mod qweb;

pub mod k20m;
pub mod lecpaes;

pub mod aca_sds;
pub mod eeca;
pub mod eep;
pub mod velocity;
