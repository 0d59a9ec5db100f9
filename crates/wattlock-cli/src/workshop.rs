//! Commands that programs beside this one do: `wattlock-bench` and `wattlock-lab`. This
//! program hands their whole command line on before it reads it, their `--help` included; what stands here is for its own
//! list of commands.

use std::ffi::OsString;

use clap::Args;

/// A command of another program.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Command {
    /// Arguments; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}
