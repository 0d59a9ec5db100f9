//! The function table's declarations, as `include/wattlock.h` has them. What the functions do is in `table.rs`.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::sys;

/// Rises whenever a function changes its meaning or place; new ones at the end raise `size` only.
pub const VERSION: u32 = 3;

/// One setting of the provider's section: two C strings.
#[repr(C)]
pub struct Setting {
    /// Its name.
    pub key: *const c_char,
    /// What it is to be.
    pub value: *const c_char,
}

/// What a loop is told after a turn.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Turn {
    /// Requests of this thread still in flight, gathered ones included.
    pub in_flight: c_uint,
    /// When to ask again: [`NEVER`], [`BEHIND`], [`NEXT`] or [`LATER`].
    pub again: c_uint,
    /// With [`LATER`]: in how many nanoseconds; the loop may sleep until then.
    pub wait_ns: u64,
    /// Batches that went in this turn.
    pub went: c_uint,
    /// Looks for devices' answers in this turn: 0 or 1.
    pub looked: c_uint,
}

/// [`Turn::again`]: nothing is in flight.
pub const NEVER: c_uint = 0;
/// [`Turn::again`]: in this turn, behind all events that there are now.
pub const BEHIND: c_uint = 1;
/// [`Turn::again`]: in the next turn, without sleeping before it.
pub const NEXT: c_uint = 2;
/// [`Turn::again`]: after [`Turn::wait_ns`].
pub const LATER: c_uint = 3;

/// Takes the provider, so many settings, and room of so many bytes for words.
type Configure = unsafe extern "C" fn(*mut c_void, *const Setting, usize, *mut c_char, usize) -> c_int;

/// What `wattlock-table` points to. Every function takes `provider` first.
#[repr(C)]
pub struct FunctionTable {
    /// [`VERSION`].
    pub version: u32,
    /// Bytes of this structure.
    pub size: u32,
    /// First argument of every function.
    pub provider: *mut c_void,
    /// Says that this thread polls its own requests (1) or no longer does (0).
    pub claim: unsafe extern "C" fn(*mut c_void, c_int),
    /// Takes in what is done and tells what waits; returns how many requests of this thread are still in flight.
    pub poll: unsafe extern "C" fn(*mut c_void) -> c_uint,
    /// Releases what has gathered: no further request can join now. Returns as `poll`.
    pub flush: unsafe extern "C" fn(*mut c_void) -> c_uint,
    /// Requests of this thread in flight.
    pub in_flight: unsafe extern "C" fn(*mut c_void) -> c_uint,
    /// Says how many connections could be waiting at once; 0 if unknown.
    pub set_active: unsafe extern "C" fn(*mut c_void, c_uint),
    /// Withdraws what a wait context has in flight; 1 if there was something. Its job fails when it is resumed.
    pub cancel: unsafe extern "C" fn(*mut c_void, *mut sys::ASYNC_WAIT_CTX) -> c_int,
    /// As `cancel`, for the argument of a wait context's callback: for libssl's that is the `SSL`.
    pub cancel_for: unsafe extern "C" fn(*mut c_void, *const c_void) -> c_int,
    /// Writes this process's counters, terminated, into `room` bytes in a form (0 JSON, 1 Prometheus, 2 HTML), and
    /// returns the bytes it needs with the terminator; writes nothing if they do not fit.
    pub status: unsafe extern "C" fn(*mut c_void, c_int, *mut c_char, usize) -> usize,
    /// Whether settings make sense together, in any order; if not, why, in words. Of one name the last counts,
    /// but that thresholds add up.
    pub check: Configure,
    /// Changes settings, all or none, for requests that begin from now on. What OpenSSL was offered stays.
    pub set: Configure,
    /// Says where the loop is in its turn (0 an operation has begun, 1 other events are left, 2 nothing else is to be
    /// done) and how far it came (a number that changes with each step of a connection). Does what the setting `poll`
    /// says, and fills in when to ask again.
    pub turn: unsafe extern "C" fn(*mut c_void, c_int, c_uint, *mut Turn),
    /// A compressor of a coding (0 gzip, 1 zstd) at a level; null if there is none.
    pub compressor: unsafe extern "C" fn(*mut c_void, c_int, c_int) -> *mut c_void,
    /// Begins a stream on a compressor; 1, or 0 if that failed.
    pub compress_start: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
    /// Compresses a piece: see `wattlock.h`.
    pub compress: Compress,
    /// Frees a compressor; null is none.
    pub compressor_free: unsafe extern "C" fn(*mut c_void, *mut c_void),
    /// What becomes readable when other cores are done with something; -1 if none are to be used.
    pub compress_descriptor: unsafe extern "C" fn(*mut c_void) -> c_int,
    /// Has what follows compressed on other cores, if that pays now: see `wattlock.h`.
    pub compress_spread: SpreadOut,
    /// Takes in that the descriptor of other cores was readable.
    pub compress_woken: unsafe extern "C" fn(*mut c_void),
    /// Runs a function with its argument on a stack as large as the thread's; 0, and nothing is called, if there is none.
    pub on_stack: unsafe extern "C" fn(*mut c_void, Work, *mut c_void) -> c_int,
    /// As `status`, of this process and of others of the same program, by their ids. The second text is a page's own part.
    pub status_of: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        *const u32,
        usize,
        *const c_char,
        *mut c_char,
        usize,
    ) -> usize,
    /// Writes the setting `poll` as it is in force, as `status` does.
    pub polling: unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> usize,
    /// Says how many of the thread's connections are not idle; 0 if unknown.
    pub set_busy: unsafe extern "C" fn(*mut c_void, c_uint),
    /// Has a member go to a device from its first byte on, if the policy gives it to one: see `wattlock.h`.
    pub compress_offload: Offload,
    /// Says that a call begins (1) or has ended (0) inside a handshake on `on_stack` that must not pause in it.
    pub nested: unsafe extern "C" fn(*mut c_void, c_int),
    /// Whether records that the thread writes may be given to a device.
    pub writes_wait: unsafe extern "C" fn(*mut c_void) -> c_int,
    /// Has the CPU do what is in flight for the argument of a wait context's callback; 1 if there was something. Its job goes
    /// on when it is resumed.
    pub hurry_for: unsafe extern "C" fn(*mut c_void, *const c_void) -> c_int,
}

/// Takes its own argument.
pub(crate) type Work = unsafe extern "C" fn(*mut c_void);

// SAFETY: function pointers and a pointer to the provider, which is Sync.
unsafe impl Send for FunctionTable {}
// SAFETY: as above.
unsafe impl Sync for FunctionTable {}

/// The table's function that spreads a response.
pub(crate) type SpreadOut = unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, u64, usize, usize) -> c_int;

/// The table's function that gives a response to a device.
pub(crate) type Offload = unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, usize, usize, usize) -> c_int;

/// The table's function for a piece.
pub(crate) type Compress = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    *const u8,
    *mut usize,
    *mut u8,
    *mut usize,
    c_int,
) -> c_int;
