//! Exit codes: what a script is told, and how a program finds it in an error of any of its crates.

use std::error::Error;

/// An error that ends a program with a code of its own, which is stable between versions.
pub trait Exit: Error {
    /// The process exit code.
    fn code(&self) -> u8;

    /// Whether no line is printed: it is out already, or nobody is there to read it.
    fn is_silent(&self) -> bool {
        false
    }

    /// Whether the command line was at fault, and a line may say how to read about it.
    fn is_usage(&self) -> bool {
        false
    }
}

/// An exit code without a line of its own: another program's, or one whose line is out already. A command that prints
/// JSON has [`Refusal`] instead, whose line is in its object, too.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("exit code {0}")]
pub struct Code(pub u8);

impl Exit for Code {
    fn code(&self) -> u8 {
        self.0
    }

    fn is_silent(&self) -> bool {
        true
    }
}

/// An exit code with the line that belongs to it, which is not out yet.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{line}")]
pub struct Refusal {
    /// The process exit code.
    pub code: u8,
    /// What is wrong, in one line.
    pub line: String,
}

impl Exit for Refusal {
    fn code(&self) -> u8 {
        self.code
    }
}

/// Sees one type of error. A program has a list of these, in [`known`].
pub type Known = for<'a> fn(&'a (dyn Error + 'static)) -> Option<&'a dyn Exit>;

/// This error, if it is of that type.
pub fn known<'a, E: Exit + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a dyn Exit> {
    error.downcast_ref::<E>().map(|error| error as &dyn Exit)
}

/// The first of an error and its causes whose type is in the list.
pub fn exit_of<'a>(
    mut causes: impl Iterator<Item = &'a (dyn Error + 'static)>,
    list: &[Known],
) -> Option<&'a dyn Exit> {
    causes.find_map(|cause| list.iter().find_map(|known| known(cause)))
}

/// Exit code and meaning of every variant of [`crate::Error`], for manuals.
pub const fn exit_codes() -> &'static [(u8, &'static str)] {
    &[
        (2, "usage"),
        (40, "output exists"),
        (41, "not a regular file"),
        (42, "file or folder not found"),
        (43, "disk full"),
        (44, "output pipe closed"),
        (45, "input changed while read"),
        (46, "other input or output error"),
        (50, "no engine could do the work"),
        (130, "interrupted"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_known_cause_decides() {
        let list: &[Known] = &[known::<Code>, known::<crate::Error>];
        let io = std::io::Error::other("unknown");
        let (code, ours) = (Code(7), crate::Error::DiskFull);
        let of = |causes: &[&'static (dyn Error + 'static)]| {
            exit_of(causes.iter().copied(), list).map(|exit| (exit.code(), exit.is_silent()))
        };
        let leak = |error: Box<dyn Error>| -> &'static (dyn Error + 'static) { Box::leak(error) };
        let (io, code, ours) = (leak(io.into()), leak(code.into()), leak(ours.into()));
        assert_eq!(of(&[io, ours, code]), Some((43, false)));
        assert_eq!(of(&[code, ours]), Some((7, true)));
        assert_eq!(of(&[io]), None);
    }
}
