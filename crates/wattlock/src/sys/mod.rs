//! The runtime's only unsafe code: a shared mapping of counters, a hook that notices forks with values that do not
//! cross one, and a signal mask.
#![allow(unsafe_code, reason = "shared memory, pthread_atfork and pthread_sigmask have no safe interface")]

pub(crate) mod counters;
pub(crate) mod fork;
pub(crate) mod signals;
