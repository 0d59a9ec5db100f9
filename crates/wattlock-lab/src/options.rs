//! The options of a study: of each its help, its type, its default and its bounds, once.

use std::fmt::Display;
use std::ops::RangeInclusive;

use crate::Error;

/// A struct of options, which are arguments on the command line. An option is `name: type = default; bounds`: without a
/// default it is empty, without bounds any value is taken. Attributes in brackets take the place of `arg(long)`.
macro_rules! options {
    ($(#[$about:meta])* pub struct $Options:ident { $($options:tt)* }) => {
        options! { @one ($(#[$about])* $Options) {} {} {} $($options)* }
    };
    (@one $head:tt {$($fields:tt)*} {$($defaults:tt)*} {$($bounded:tt)*}
        $(#[$help:meta])* $name:ident: $type:ty [$($attributes:tt)*] $(= $default:expr)? $(; $bounds:expr)?, $($rest:tt)*
    ) => {
        options! { @one $head
            {$($fields)* $(#[$help])* #[cfg_attr(feature = "program", $($attributes)*)] pub $name: $type,}
            {$($defaults)* $name: options!(@default $($default)?),}
            {$($bounded)* $($name $bounds;)?}
            $($rest)* }
    };
    (@one $head:tt $fields:tt $defaults:tt $bounded:tt
        $(#[$help:meta])* $name:ident: $type:ty $(= $default:expr)? $(; $bounds:expr)?, $($rest:tt)*
    ) => {
        options! { @one $head $fields $defaults $bounded
            $(#[$help])* $name: $type [arg(long $(, default_value_t = $default)?)] $(= $default)? $(; $bounds)?, $($rest)* }
    };
    (@one ($(#[$about:meta])* $Options:ident) {$($fields:tt)*} {$($defaults:tt)*} {$($name:ident $bounds:expr;)*}) => {
        $(#[$about])*
        #[cfg_attr(feature = "program", derive(clap::Args))]
        pub struct $Options { $($fields)* }

        impl Default for $Options {
            fn default() -> $Options {
                $Options { $($defaults)* }
            }
        }

        impl $Options {
            /// Refuses the first option out of its bounds.
            fn check_bounds(&self, words: $crate::options::Words) -> Result<(), $crate::Error> {
                $($crate::options::within(stringify!($name), &self.$name, $bounds, words)?;)*
                Ok(())
            }
        }
    };
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
}

/// The values of an option: one, or as many as there are in one that may have none or several.
pub(crate) trait Values<T> {
    fn values(&self) -> &[T];
}

impl<T> Values<T> for T {
    fn values(&self) -> &[T] {
        std::slice::from_ref(self)
    }
}

impl<T> Values<T> for Option<T> {
    fn values(&self) -> &[T] {
        self.as_slice()
    }
}

impl<T> Values<T> for Vec<T> {
    fn values(&self) -> &[T] {
        self
    }
}

/// How bounds are told: from the least, the greatest and the value that is outside.
pub(crate) type Words = fn(&dyn Display, &dyn Display, &dyn Display) -> String;

/// Bounds, and what was given.
pub(crate) const TO: Words = |least, most, value| format!("{least} to {most}, not {value}");

/// Bounds alone.
pub(crate) const BETWEEN: Words = |least, most, _| format!("between {least} and {most}");

/// Refuses a value outside the bounds of the option of that name, and one that has no order (NaN).
pub(crate) fn within<T: PartialOrd + Display>(
    name: &str,
    option: &impl Values<T>,
    bounds: RangeInclusive<T>,
    words: Words,
) -> Result<(), Error> {
    match option.values().iter().find(|value| !bounds.contains(value)) {
        None => Ok(()),
        Some(value) => {
            let option = format!("--{}", name.replace('_', "-"));
            Err(Error::option(&option, words(bounds.start(), bounds.end(), value)))
        }
    }
}
