//! `wattlock stream bridge`: runs `wattlock-bridge`, which is a program of its own because it contains librdkafka.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};

use anyhow::Context;
use clap::Args;
use wattlock_shell::program::{BRIDGE as NAME, NotInstalled};
use wattlock_stream::record::StreamId;

/// The bridge's own page of help, which its tests keep as it is.
pub const HELP: &str = include_str!("../../../wattlock-bridge/help.txt");

/// Copy topics of a Kafka cluster, sealing or opening their records, exactly once
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Command {
    /// Arguments of the bridge; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<std::ffi::OsString>,
}

impl Command {
    fn asks_for_help(&self) -> bool {
        self.arguments.first().is_some_and(|first| first == "help")
            || self.arguments.iter().any(|argument| argument == "--help" || argument == "-h")
    }
}

/// The program: beside this one, or where it is installed.
fn program() -> anyhow::Result<PathBuf> {
    let own =
        std::env::current_exe().and_then(|path| path.canonicalize()).context("where this program is")?;
    let folder = own.parent().unwrap_or(Path::new("/"));
    // Built: target/release/wattlock and target/bridge/release/wattlock-bridge. Installed: bin and lib/wattlock.
    let beside = [".", "../bridge/release", "../lib/wattlock", "../libexec/wattlock"];
    let found = beside.iter().map(|place| folder.join(place).join(NAME)).find(|path| path.is_file());
    Ok(found.ok_or(NotInstalled(NAME))?)
}

/// Becomes the bridge.
pub fn run(command: &Command) -> anyhow::Result<()> {
    let program = match program() {
        Err(missing) if command.asks_for_help() => {
            say!("{HELP}\n{missing}.");
            return Ok(());
        }
        program => program?,
    };
    let error = Process::new(program).args(&command.arguments).exec();
    Err(anyhow::Error::from(error).context(format!("running {NAME}")))
}

/// What a bridge's configuration says about the use of keys.
pub struct Uses {
    /// How long a bridge seals under one key.
    pub seconds: u64,
    /// Keys that hide record keys, for good.
    pub names: Vec<StreamId>,
}

impl Uses {
    /// Of what the bridge printed; the defaults of a bridge for what it did not.
    pub fn read(printed: &str) -> Uses {
        let printed: serde_json::Value = serde_json::from_str(printed).unwrap_or_default();
        let names = printed["record_keys_under"].as_array().into_iter().flatten();
        let names = names.filter_map(|name| name.as_str()?.parse().ok()).collect();
        Uses { seconds: printed["new_after_seconds"].as_u64().unwrap_or(3600), names }
    }
}

/// Takes entries from where a bridge keeps its keys to a folder, or back.
pub fn entries(what: &str, config: &Path, folder: &Path, ids: &[StreamId]) -> anyhow::Result<Uses> {
    let mut process = Process::new(program()?);
    process.args(["entries", what, "--config"]).arg(config).arg("--folder").arg(folder);
    process.args(ids.iter().map(StreamId::to_string)).stderr(Stdio::inherit());
    let output = process.output().context(NAME)?;
    anyhow::ensure!(output.status.success(), "{NAME} could not {what} the keys");
    Ok(Uses::read(&String::from_utf8_lossy(&output.stdout)))
}
