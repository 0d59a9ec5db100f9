//! `wattlock exporter`: counters of all programs for Prometheus, as JSON and as a page.

use anyhow::Result;
use clap::Args;
use wattlock_exporter::{Address, Content, Hosts, Refused, serve};

/// Serve counters of running and ended programs for Prometheus, and a page that shows them live
#[derive(Debug, Args)]
pub struct Command {
    /// An address of this machine, or unix:/path for a socket
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:19469")]
    listen: String,
    /// A name that requests may call this server by, beside addresses and localhost
    #[arg(long = "host", value_name = "NAME")]
    hosts: Vec<String>,
    /// Print the counters once, in Prometheus' text format, and listen nowhere
    #[arg(long, conflicts_with_all = ["listen", "hosts"])]
    once: bool,
}

/// Runs the command.
pub fn run(command: &Command) -> Result<()> {
    let mut content = Content::new();
    if command.once {
        put!("{}", content.metrics());
        return Ok(());
    }
    let address = Address::parse(&command.listen).map_err(explained)?;
    let listener = address.listen().map_err(explained)?;
    if address.is_open() {
        eprintln!("wattlock: everybody who reaches {listener} reads which programs of which users do what");
    }
    // It serves as well if nobody reads where.
    let _ = wattlock_shell::text::write(format_args!("{listener}\n"));
    let hosts = match address {
        Address::Socket(_) => Hosts::any(),
        Address::Port(_) => Hosts::named(command.hosts.iter().cloned()),
    };
    let served = serve(listener, content, hosts);
    served.map_err(|error| wattlock_door::Error::io("waiting for connections", error).into())
}

fn explained(refused: Refused) -> anyhow::Error {
    match refused {
        Refused::Words(why) => wattlock_door::Error::Usage(why).into(),
        Refused::System(what, error) => wattlock_door::Error::io(what, error).into(),
    }
}
