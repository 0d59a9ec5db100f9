//! What a door knows of an operation beyond the requests that it has in hand.

use crate::Kind;

/// What requests are a part of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Part {
    /// Input bytes of the whole operation where that is known, as of a file. The requests in hand count if they have more.
    pub whole: u64,
    /// Where the step before this one was done, if these requests take its result.
    pub after: Option<Place>,
}

impl Part {
    /// A part of so many bytes; 0: nobody knows.
    pub const fn of(whole: u64) -> Part {
        Part { whole, after: None }
    }
}

/// Where requests of one kind were done: their next step is done there, too, if it can be. Made by whoever did them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The engine's place among the engines.
    pub engine: u8,
    /// The queue pair, if it is a device.
    pub pair: Option<u8>,
    /// The kind that was done.
    pub kind: Kind,
}
