//! What can be wrong in this program's own part of the work, as errors of the doors.

use std::borrow::Cow;

use wattlock_door::Error;

/// The command line makes no sense, in these words.
pub fn usage<E: From<Error>>(words: impl Into<String>) -> E {
    Error::Usage(words.into()).into()
}

/// The system refused what was done.
pub fn system<E: From<Error>>(what: impl Into<Cow<'static, str>>, source: std::io::Error) -> E {
    Error::Io { what: what.into(), source }.into()
}
