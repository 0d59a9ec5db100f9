//! `wattlock-bridge`: copies topics of a Kafka cluster, sealing or opening their records, exactly once.
//!
//! A program of its own because it contains librdkafka; `wattlock stream bridge` runs it.
//!
//! [`work`] seals and opens and knows no client. [`member`] reads, writes and commits. [`shelf`] keeps keys in a topic.
#![forbid(unsafe_code)]

mod cluster;
mod config;
mod member;
mod shelf;
mod status;
mod work;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use rdkafka::producer::{BaseProducer, Producer};
use wattlock::Runtime;
use wattlock_stream::keys::{Folder, Shelf};
use wattlock_stream::record::StreamId;

use cluster::{Admin, Writing};
use config::{Config, Task};
use status::Status;
use work::Work;

/// Copy topics of a Kafka cluster, sealing or opening their records, exactly once
#[derive(Debug, Parser)]
#[command(
    name = "wattlock stream bridge",
    version,
    max_term_width = 100,
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  wattlock stream bridge check --config bridge.toml\n  wattlock stream bridge --config bridge.toml\n\nSIGTERM ends the transaction at hand and leaves the group. docs/streams.md says more."
)]
struct Arguments {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    run: Run,
}

#[derive(Debug, clap::Args)]
struct Run {
    /// The configuration
    #[arg(long, value_name = "FILE", required = true)]
    config: Option<PathBuf>,
    /// This member's name, in place of the configuration's
    #[arg(long, value_name = "NAME")]
    instance: Option<String>,
    /// Print the counters as JSON at the end
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Test the configuration against the brokers, and change nothing but to make the topic of keys
    Check {
        /// The configuration
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Take key entries to a folder, or back (`wattlock stream keys --config` does)
    #[command(hide = true)]
    Entries {
        /// What to do
        what: Way,
        /// The configuration
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// The folder
        #[arg(long, value_name = "DIR")]
        folder: PathBuf,
        /// Names of keys
        ids: Vec<StreamId>,
    },
}

/// What sealing adds to a record, without headers.
const GROWS: usize = 80;

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Way {
    Get,
    Put,
    Remove,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.what {
        None => run(&arguments.run),
        Some(What::Check { config }) => check(&config),
        Some(What::Entries { what, config, folder, ids }) => entries(what, &config, folder, &ids),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("wattlock-bridge: {}", format!("{error:#}").replace(char::is_control, " "));
            let stream = error.chain().find_map(|cause| cause.downcast_ref::<wattlock_stream::Error>());
            let files = error.chain().find_map(|cause| cause.downcast_ref::<wattlock_files::Error>());
            let refused = error.chain().find_map(|cause| cause.downcast_ref::<cluster::Refused>());
            let code = stream
                .map(wattlock_stream::Error::exit_code)
                .or(files.map(wattlock_files::Error::exit_code))
                .or(refused.map(cluster::Refused::exit_code));
            code.map_or(ExitCode::FAILURE, ExitCode::from)
        }
    }
}

fn run(arguments: &Run) -> Result<()> {
    let mut config = Config::read(arguments.config.as_deref().unwrap_or(std::path::Path::new("")))?;
    if arguments.instance.is_some() {
        config.instance.clone_from(&arguments.instance);
    }
    let instance = match &config.instance {
        Some(name) => name.clone(),
        None => drawn()?,
    };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        // The second one kills.
        signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone())?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    cluster::reach(&config)?;
    let targets = Admin::new(&config)?.targets(&config)?;
    let program = std::env::args().take(2).collect::<Vec<_>>().join(" ");
    let runtime = runtime().program(&program).build()?;
    let mut work = Work::new(&config, &targets, &runtime)?;
    let status = Status::new(&config);
    if let Some(address) = &config.status {
        status.serve(address)?;
    }
    let done = member::run(&config, &instance, &mut work, &status, &stop);
    status.keys(work.keys_made);
    if arguments.json {
        println!("{}", status.json());
    }
    done
}

/// What is sealed is stored: whatever an engine that is not the CPU computes, the CPU checks, since a wrong result that
/// is found next year is lost data.
fn runtime() -> wattlock::Builder {
    Runtime::builder().verify_one_in(1)
}

/// A name that no other member has.
fn drawn() -> Result<String> {
    let mut bytes = [0; 8];
    wattlock_files::random(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn check(path: &std::path::Path) -> Result<()> {
    let config = Config::read(path)?;
    cluster::reach(&config)?;
    let admin = Admin::new(&config)?;
    let targets = admin.targets(&config)?;
    for (topic, facts) in config.topics.iter().zip(&targets) {
        let times = if facts.keeps_times { "the producer's times are bound" } else { "the broker's times" };
        let times = if topic.task == Task::Seal { times } else { "" };
        println!("{} -> {}: {:?}, {} partitions {times}", topic.from, topic.to, topic.task, facts.partitions);
        if facts.compacted && topic.task == Task::Seal {
            println!("{} is compacted: equal keys stay equal, so compaction goes on", topic.to);
        }
        let longest = admin.facts(&topic.from)?.map_or(0, |from| from.message_max);
        if topic.task == Task::Seal && facts.message_max < longest.saturating_add(GROWS) {
            let (from, to) = (&topic.from, &topic.to);
            println!(
                "{to}: max.message.bytes should be above {from}'s {longest}, since sealing makes records longer"
            );
        }
    }
    let runtime = runtime().telemetry(false).build()?;
    Work::new(&config, &targets, &runtime).context("keys")?;
    let mut settings = cluster::settings(&config);
    settings.set("transactional.id", format!("{}-check-{}", config.group, drawn()?));
    let writer: BaseProducer<Writing> = settings.create_with_context(Writing::default())?;
    writer.init_transactions(cluster::ASK).context("a transaction")?;
    println!("brokers, topics, keys and transactions are in order");
    Ok(())
}

fn entries(what: Way, path: &std::path::Path, folder: PathBuf, ids: &[StreamId]) -> Result<()> {
    let config = Config::read(path)?;
    let keys = config.keys.as_ref().context("there is no [keys]")?;
    if keys.topic.is_some() {
        cluster::reach(&config)?;
    }
    let mut place = shelf::Place::open(&config, keys)?;
    fs::create_dir_all(&folder)?;
    let mut copy = Folder::open(&folder)?;
    match what {
        Way::Get => {
            for id in place.names()? {
                if let Some(entry) = place.get(id)? {
                    copy.put(id, &entry)?;
                }
            }
        }
        Way::Put => {
            for id in ids {
                let entry = copy.get(*id)?.with_context(|| format!("no entry {id}"))?;
                place.put(*id, &entry)?;
            }
        }
        Way::Remove => {
            for id in ids {
                place.remove(*id)?;
            }
        }
    }
    Ok(())
}
