//! The runtime's only unsafe code: a shared mapping of counters, and a hook that notices forks.
#![allow(unsafe_code, reason = "shared memory and pthread_atfork have no safe interface")]

pub(crate) mod counters;
pub(crate) mod fork;
