//! Lanes where there are no kernels for the architecture yet: the command says so.

use anyhow::{Result, bail};
use clap::Args;

use super::record::Record;

/// Nothing to choose.
#[derive(Debug, Args)]
pub struct Settings {}

/// Says why not.
pub fn run(_: &Settings, _: Record) -> Result<()> {
    bail!("there are no lanes for this architecture yet")
}
