//! `wattlock stream bridge`: runs `wattlock-bridge`, which is a program of its own because it contains librdkafka.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use anyhow::Context;
use clap::Args;
use wattlock_stream::record::StreamId;

const NAME: &str = "wattlock-bridge";

/// Copy topics of a Kafka cluster, sealing or opening their records, exactly once
#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "Examples:\n  wattlock stream bridge check --config bridge.toml\n  wattlock stream bridge --config bridge.toml"
)]
pub struct Command {
    /// Arguments of the bridge; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<std::ffi::OsString>,
}

/// The program: beside this one, or where it is installed.
fn program() -> anyhow::Result<PathBuf> {
    let own =
        std::env::current_exe().and_then(|path| path.canonicalize()).context("where this program is")?;
    let folder = own.parent().unwrap_or(Path::new("/"));
    // Built: target/release/wattlock and target/bridge/release/wattlock-bridge. Installed: bin and lib/wattlock.
    let beside = [".", "../bridge/release", "../lib/wattlock", "../libexec/wattlock"];
    let found = beside.iter().map(|place| folder.join(place).join(NAME)).find(|path| path.is_file());
    found.with_context(|| {
        format!("there is no {NAME} here: `make bridge` builds it (librdkafka, some minutes)")
    })
}

/// Becomes the bridge.
pub fn run(command: &Command) -> anyhow::Result<()> {
    let error = Process::new(program()?).args(&command.arguments).exec();
    Err(anyhow::Error::from(error).context(format!("running {NAME}")))
}

/// Takes entries from where a bridge keeps its keys to a folder, or back.
pub fn entries(what: &str, config: &Path, folder: &Path, ids: &[StreamId]) -> anyhow::Result<()> {
    let mut process = Process::new(program()?);
    process.args(["entries", what, "--config"]).arg(config).arg("--folder").arg(folder);
    let status = process.args(ids.iter().map(StreamId::to_string)).status().context(NAME)?;
    anyhow::ensure!(status.success(), "{NAME} could not {what} the keys");
    Ok(())
}
