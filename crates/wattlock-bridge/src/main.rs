//! `wattlock-bridge`: copies topics of a Kafka cluster, sealing or opening their records, exactly once.
//!
//! A program of its own because it contains librdkafka; `wattlock stream bridge` runs it.
//!
//! [`work`] seals and opens and knows no client. [`member`] reads, writes and commits. [`shelf`] keeps keys in a topic.
//! [`verdict`] sorts errors.
#![forbid(unsafe_code)]
// A panic for a log that cannot be written would end the bridge, in librdkafka's threads by an abort.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod cluster;
mod config;
mod member;
mod say;
mod shelf;
mod status;
mod verdict;
mod work;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use rdkafka::TopicPartitionList;
use rdkafka::consumer::BaseConsumer;
use rdkafka::producer::BaseProducer;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use wattlock::Runtime;
use wattlock_door::{Known, exit_of, known};
use wattlock_stream::keys::{Folder, Shelf};
use wattlock_stream::record::StreamId;

use cluster::{Admin, Facts, Starts, Writing};
use config::{Config, Task};
use shelf::Stop;
use status::{Door, Status};
use work::Work;

/// Copy topics of a Kafka cluster, sealing or opening their records, exactly once
#[derive(Debug, Parser)]
#[command(
    name = "wattlock stream bridge",
    version,
    max_term_width = 100,
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  wattlock stream bridge check --config bridge.toml\n  wattlock stream bridge --config bridge.toml\n\nSIGTERM, SIGINT and SIGHUP end the transaction at hand and leave the group. docs/use/kafka.md says more."
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

/// The errors that have an exit code of their own.
const ENDS: &[Known] = &[
    known::<wattlock_door::Error>,
    known::<wattlock_files::Error>,
    known::<wattlock_stream::Error>,
    known::<cluster::Refused>,
];

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.what {
        None => run(&arguments.run),
        Some(What::Check { config }) => check(&config),
        Some(What::Entries { what, config, folder, ids }) => entries(what, &config, folder, &ids),
    };
    match done {
        Ok(()) => {
            say::finish();
            ExitCode::SUCCESS
        }
        Err(error) => {
            say::line(&format!("{error:#}"));
            say::finish();
            exit_of(error.chain(), ENDS).map_or(ExitCode::FAILURE, |end| ExitCode::from(end.code()))
        }
    }
}

fn run(arguments: &Run) -> Result<()> {
    let mut config = Config::read(arguments.config.as_deref().unwrap_or(std::path::Path::new("")))?;
    if arguments.instance.is_some() {
        config.instance.clone_from(&arguments.instance);
        config.named()?;
    }
    let instance = match &config.instance {
        Some(name) => name.clone(),
        None => drawn()?,
    };
    let stop = Stop::default();
    let hangs_up = (!ignores_hangups()).then_some(SIGHUP);
    for signal in [SIGTERM, SIGINT].into_iter().chain(hangs_up) {
        // The second one kills.
        signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone())?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    cluster::reach(&config, &stop)?;
    if stop.load(Ordering::SeqCst) {
        return Ok(());
    }
    let targets = Admin::new(&config)?.targets(&config)?;
    let batch_max = batch_max(&targets);
    // Not as it was started: other users may read the counters.
    let runtime = runtime().program("wattlock-bridge").build()?;
    let mut work = Work::new(&config, &targets, &runtime, &stop)?;
    let status = Status::new(&config);
    if let Some(door) = Door::open(&config)? {
        status.serve(door)?;
    }
    let done = member::run(&config, &instance, &mut work, &status, batch_max, &stop);
    status.keys(work.keys_made);
    if arguments.json {
        let told = say::put(&status.json());
        done.and(told.map_err(Into::into))
    } else {
        done
    }
}

/// The largest batch that every topic takes which is written.
fn batch_max(targets: &[Facts]) -> usize {
    targets.iter().map(|target| target.message_max).min().unwrap_or(usize::MAX)
}

/// Whether this program was started to outlive its terminal, as `nohup` does.
fn ignores_hangups() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 << (SIGHUP - 1) != 0)
}

/// What is sealed is stored: whatever an engine that is not the CPU computes, the CPU checks, since a wrong result that
/// is found next year is lost data.
fn runtime() -> wattlock::Builder {
    Runtime::builder().verify_one_in(1)
}

/// A name that no other member has.
fn drawn() -> Result<String> {
    let mut bytes = [0; 8];
    wattlock_door::random(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn check(path: &Path) -> Result<()> {
    let config = Config::read(path)?;
    drop(Door::open(&config)?);
    cluster::reach(&config, &AtomicBool::new(false))?;
    let admin = Admin::new(&config)?;
    let targets = admin.targets(&config)?;
    let mut remarks = 0;
    let mut remark = |text: String| {
        remarks += 1;
        say::put(&text)
    };
    for (topic, facts) in config.topics.iter().zip(&targets) {
        let times = if facts.keeps_times { "the producer's times are bound" } else { "the broker's times" };
        let times = if topic.task == Task::Seal { times } else { "" };
        let (from, to) = (&topic.from, &topic.to);
        say::put(
            format!("{from} -> {to}: {:?}, {} partitions {times}", topic.task, facts.partitions).trim_end(),
        )?;
        if facts.compacted && topic.task == Task::Seal {
            say::put(&format!("{to} is compacted: equal keys stay equal, so compaction goes on"))?;
        }
        let Some(source) = admin.facts(from)? else { continue };
        let grows = if topic.task == Task::Seal { GROWS } else { 0 };
        if topic.task != Task::Open && facts.message_max < source.message_max.saturating_add(grows) {
            let longest = source.message_max;
            remark(format!(
                "{to}: max.message.bytes should be {longest} as {from}'s{}, or a record may end the bridge",
                if grows > 0 { format!(" and at least {grows} more for sealing") } else { String::new() }
            ))?;
        }
        for (side, (of, to_max)) in
            ["before", "after"].iter().zip(source.times_max.iter().zip(facts.times_max))
        {
            if facts.keeps_times && *of > to_max {
                remark(format!(
                    "{to}: message.timestamp.{side}.max.ms is {to_max} and {from}'s {of}: a record whose time {to} \
                     refuses stops its partition"
                ))?;
            }
        }
        if facts.compacted && !source.compacted {
            remark(format!(
                "{to} is compacted and {from} is not: a record without a key stops its partition"
            ))?;
        }
    }
    let limits = [("group.min.session.timeout.ms", true), ("group.max.session.timeout.ms", false)];
    let session = config.kafka.get("session.timeout.ms").and_then(|text| text.parse().ok()).unwrap_or(45_000);
    for (name, least) in limits {
        if let Some(limit) =
            admin.broker_setting(name).filter(|limit| (session < *limit) == least && session != *limit)
        {
            bail!("kafka: session.timeout.ms is {session}, and the brokers' {name} is {limit}");
        }
    }
    let runtime = runtime().telemetry(false).build()?;
    let mut work = Work::new(&config, &targets, &runtime, &Stop::default()).context("keys")?;
    work.stale().context("keys")?;
    if let Some(folder) = config.keys.as_ref().and_then(|keys| keys.folder.as_ref())
        && config.topics.iter().any(|topic| topic.task == Task::Seal)
    {
        tempfile::tempfile_in(folder).with_context(|| format!("keys: writing to {}", folder.display()))?;
    }
    let reader: BaseConsumer = member::reading_settings(&config).create().context("[kafka]")?;
    let mut all = TopicPartitionList::new();
    for (topic, facts) in config.topics.iter().zip(&targets) {
        (0..facts.partitions as i32).for_each(|partition| _ = all.add_partition(&topic.from, partition));
    }
    // A broker that has just started has no coordinator of the group yet.
    let (until, reset) = (Instant::now() + cluster::ASK, config.reset()?);
    let starts = loop {
        match Starts::ask(&reader, &all, reset) {
            Err(error) if Instant::now() < until && verdict::passes(&error) => {
                std::thread::sleep(Duration::from_millis(200));
            }
            starts => break starts.context("committed offsets")?,
        }
    };
    if let Some(refusal) = starts.refusal(config.on_gap) {
        bail!(refusal);
    }
    for gap in &starts.gaps {
        remark(gap.to_string())?;
    }
    let id = format!("{}-check-{}", config.group, drawn()?);
    let writer = member::writing_settings(&config, &id, batch_max(&targets));
    let writer: BaseProducer<Writing> = writer.create_with_context(Writing::default()).context("[kafka]")?;
    member::transactions(&writer, &id)?;
    let order = "brokers, topics, keys and transactions are in order";
    say::put(&match remarks {
        0 => order.to_owned(),
        count => format!("{order}; remarks above: {count}"),
    })?;
    Ok(())
}

fn entries(what: Way, path: &std::path::Path, folder: PathBuf, ids: &[StreamId]) -> Result<()> {
    let config = Config::read(path)?;
    let keys = config.keys.as_ref().context("there is no [keys]")?;
    if keys.topic.is_some() {
        cluster::reach(&config, &AtomicBool::new(false))?;
    }
    let mut place = shelf::Place::open(&config, keys, Stop::default())?;
    fs::create_dir_all(&folder)?;
    let mut copy = Folder::open(&folder)?;
    match what {
        Way::Get => {
            for id in place.names()? {
                if let Some(entry) = place.get(id)? {
                    copy.put(id, &entry)?;
                }
            }
            // For the user about to shred: which key may be in use.
            let names: Vec<_> = config.topics.iter().filter_map(|topic| topic.names_key().ok()?).collect();
            let names: Vec<_> = names.iter().map(StreamId::to_string).collect();
            let used = serde_json::json!({ "new_after_seconds": keys.new_after_seconds, "record_keys_under": names });
            say::put(&used.to_string())?;
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// `wattlock` shows this page where the bridge is not built.
    #[test]
    fn the_page_of_help_is_the_file_beside_the_sources() {
        let page = Arguments::command().term_width(100).render_long_help().to_string();
        let kept = include_str!("../help.txt");
        if page != kept {
            let _ = fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/help.txt"), &page);
        }
        assert_eq!(page, kept, "target/help.txt has the page as it is now");
    }
}
