//! Which engine does an operation, and how many of its pieces each side may take: pure functions from a request's shape,
//! the weather and the time ([`Policy`]); and when gathered requests go together ([`Gather`]).
//!
//! This crate holds the published rules under their names and `adaptive`, ours. It refuses to read a clock, an
//! atomic or a file, to name an engine (it sees [`EngineClass`]es and ids), and to do anything about its choices.
//!
//! Policies are made by name: [`by_name`], with [`Settings`] read from `key=value` strings. Three facts hold for all of
//! them, and the lab (`every_policy.rs`) shows them on random machines: an engine that cannot do the request is never
//! named; an engine that is not available is never named while another that could do it is; and a question about one
//! request that cannot wait allocates nothing and reads only tables made beforehand.
#![forbid(unsafe_code)]

mod aca_sds;
mod adaptive;
mod catalogue;
mod clocks;
mod eeca;
mod eep;
mod error;
mod estimate;
mod fullness;
mod gather;
mod instruction;
mod lecpaes;
mod machine;
mod offload;
mod qweb;
mod ranking;
mod settings;
mod software;
mod split;
mod times;
mod tuning;
mod weather;

pub use aca_sds::AcaSds;
pub use adaptive::Adaptive;
pub use catalogue::{NAMES, OFFLOADING, by_name};
pub use clocks::ClockCost;
pub use eeca::Eeca;
pub use eep::{Eep, EepInputs, Platform};
pub use error::PolicyError;
pub use gather::{Again, Arrived, Expected, Flight, Gather, GatherRule, Moment, Next};
pub use instruction::Instruction;
pub use lecpaes::Lecpaes;
pub use machine::{
    Costs, CpuAttributes, EngineId, EngineView, Hardware, MAX_ENGINES, Machine, Objective, Turning, Widths,
    inline_engine, queued_engine,
};
pub use offload::Offload;
pub use qweb::Qweb;
pub use settings::Settings;
pub use software::Software;
pub use split::{DEVICE_PIECES, Job, Side, Split};
pub use tuning::{Ablation, Tuning};
pub use wattlock_core::EngineClass;
pub use weather::{Ask, Choice, ClockStep, EngineWeather, Outcome, Policy, Rest, Weather};
