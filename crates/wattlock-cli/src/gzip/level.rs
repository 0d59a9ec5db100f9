//! `-1` to `-9`, of which the last one counts.

use clap::{ArgAction, Args};

/// `-1` to `-9`.
#[derive(Debug, Args)]
pub struct Level {
    /// Fastest
    #[arg(short = '1', long = "fast", overrides_with_all = OTHERS)]
    one: bool,
    #[arg(short = '2', hide = true, overrides_with_all = OTHERS)]
    two: bool,
    #[arg(short = '3', hide = true, overrides_with_all = OTHERS)]
    three: bool,
    #[arg(short = '4', hide = true, overrides_with_all = OTHERS)]
    four: bool,
    #[arg(short = '5', hide = true, overrides_with_all = OTHERS)]
    five: bool,
    /// ... -6 is the default ...
    #[arg(short = '6', overrides_with_all = OTHERS)]
    six: bool,
    #[arg(short = '7', hide = true, overrides_with_all = OTHERS)]
    seven: bool,
    #[arg(short = '8', hide = true, overrides_with_all = OTHERS)]
    eight: bool,
    /// Smallest
    #[arg(short = '9', long = "best", overrides_with_all = OTHERS, action = ArgAction::SetTrue)]
    nine: bool,
}

/// Each overrides all, itself included: it may be repeated.
const OTHERS: [&str; 9] = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];

impl Level {
    pub fn number(&self) -> u8 {
        let flags = [
            self.one, self.two, self.three, self.four, self.five, self.six, self.seven, self.eight, self.nine,
        ];
        (1..).zip(flags).find_map(|(level, given)| given.then_some(level)).unwrap_or(6)
    }
}
