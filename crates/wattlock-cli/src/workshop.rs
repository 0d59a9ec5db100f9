//! Commands that programs beside this one do: `wattlock-bench` and `wattlock-lab`. This
//! program hands their whole command line on before it reads it, their `--help` included; what stands here is for its own
//! list of commands.

use std::ffi::OsString;

use clap::Args;

/// Measure ciphers, dispatch, files, compression, start-up, public keys and HTTPS, with peers beside them
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Bench {
    #[command(flatten)]
    words: Words,
}

/// Draw one page with pictures from the JSON of other commands: benches, comparisons, joules, a calibration
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Report {
    #[command(flatten)]
    words: Words,
}

/// Reproduce published systems on modelled machines in virtual time: published, simulated and improved side by side
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Lab {
    #[command(flatten)]
    words: Words,
}

#[derive(Debug, Args)]
struct Words {
    /// Arguments; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}
