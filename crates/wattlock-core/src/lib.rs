//! Wattlock's words: what a unit of work is, what its outcome is, and what an engine must be able to do.
//!
//! This crate holds nouns ([`Request`], [`Completion`], [`Key`], [`Kind`]) and the traits of engines ([`Engine`],
//! [`Instance`], and [`Stream`] for messages that come in pieces). It refuses to know the time, to start a thread, to do I/O, to use `unsafe`, or to have heard of
//! any vendor, any door or any policy. Time is an argument ([`Nanos`]) wherever it matters.
//!
//! Two forms of the same request exist because two ways of doing work exist. [`Request`] borrows: an engine that
//! finishes inside the call works on the caller's buffers and allocates nothing. [`OwnedRequest`] travels: from
//! [`Instance::submit`] until its [`Completion`] the instance owns it, so "no other code may touch its buffers" is a
//! move, not a promise.
#![forbid(unsafe_code)]

mod compress;
#[cfg(feature = "dev")]
pub mod dev;
mod engine;
mod error;
mod feed;
mod kat;
mod key;
mod kind;
mod part;
pub mod recent;
mod request;
mod run;
pub mod samples;
mod stream;
pub mod sync;

pub use compress::{CompressStream, Moved, Order, Then, compress_known_answers};
pub use engine::{
    Completion, Cost, Description, Engine, EngineClass, GpuAttributes, Instance, Nanos, Refused, Token,
    Window,
};
pub use error::{Error, Fault};
pub use feed::{Feed, one_by_one};
pub use kat::{Expected, KnownAnswer, known_answers};
pub use key::{Algorithm, Curve, EcKey, Key, ML_KEM_768_PUBLIC, Material, RsaKey};
pub use kind::{Family, Group, Kind, KindInfo, KindSet, NonceLen};
pub use part::{Part, Place};
pub use request::{DICTIONARY_MOST, Data, Item, LatencyClass, Options, OwnedRequest, Request, Shape, Work};
pub use run::{Run, Span, execute};
pub use stream::{Progress, Stream, stream_known_answers};
