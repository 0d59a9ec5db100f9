//! The runtime's only unsafe code: a shared mapping of counters, memory that no child has, who the process is, and a
//! signal mask.
#![allow(
    unsafe_code,
    reason = "shared memory, wiped memory, user ids and pthread_sigmask have no safe interface"
)]

pub(crate) mod counters;
pub(crate) mod fork;
pub(crate) mod process;
pub(crate) mod signals;
