//! `wattlock doctor`: one line a fact of this machine, and what to do where something stands in the way.
//!
//! It looks and changes nothing. What another command says in full (`openssl check`, `nginx check`, `engines`, `energy
//! sources`) is asked of the same code and told in a line.

mod limits;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use wattlock::profile::MachineKey;
use wattlock::telemetry::{Snapshot, scan};
use wattlock::{Profile, Runtime};
use wattlock_door::Code;
use wattlock_meter::Meter;
use wattlock_watch::verdict::named;

use crate::cpu::Summary;
use crate::{nginx, openssl};
use wattlock_shell::program;
use wattlock_shell::setup::{self, Choice};

/// Look at everything that Wattlock needs here, and say what to do
#[derive(Debug, Args)]
pub struct Command {
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// How a fact stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    Good,
    /// Something is not in use, or could be better.
    Note,
    /// Something is in use and does not work as it is configured.
    Problem,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
pub struct Fact {
    what: &'static str,
    standing: Standing,
    words: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

impl Fact {
    fn good(what: &'static str, words: impl Into<String>) -> Fact {
        Fact { what, standing: Standing::Good, words: words.into(), next: None }
    }

    fn note(what: &'static str, words: impl Into<String>, next: impl Into<String>) -> Fact {
        Fact { what, standing: Standing::Note, words: words.into(), next: Some(next.into()) }
    }

    fn problem(what: &'static str, words: impl Into<String>, next: Option<String>) -> Fact {
        Fact { what, standing: Standing::Problem, words: words.into(), next }
    }
}

/// Runs the command.
pub fn run(command: &Command, choice: &Choice) -> Result<()> {
    let runtime = setup::runtime(choice, None, true)?;
    let mut facts = machine(&runtime);
    facts.push(profile(&runtime));
    facts.extend(openssl());
    facts.extend(nginx(choice));
    facts.extend(programs(&running(), rustix::process::geteuid().as_raw()));
    facts.push(joules());
    facts.extend(limits::facts());
    let problems = facts.iter().filter(|fact| fact.standing == Standing::Problem).count();
    if command.json {
        let version = env!("CARGO_PKG_VERSION");
        say!("{:#}", serde_json::json!({"version": version, "facts": facts, "problems": problems}));
    } else {
        for fact in &facts {
            print(fact)?;
        }
    }
    if problems == 0 {
        return Ok(());
    }
    let stand = if problems == 1 { "stands" } else { "stand" };
    eprintln!("wattlock: {problems} of {} things {stand} in the way", facts.len());
    Err(Code(openssl::PROBLEMS).into())
}

fn print(fact: &Fact) -> Result<()> {
    let standing = match fact.standing {
        Standing::Good => "ok     ",
        Standing::Note => "note   ",
        Standing::Problem => "PROBLEM",
    };
    say!("{standing} {}: {}", fact.what, fact.words);
    if let Some(next) = &fact.next {
        say!("        next: {next}");
    }
    Ok(())
}

fn machine(runtime: &Runtime) -> Vec<Fact> {
    let cpu = Summary::here(runtime);
    let names: Vec<&str> = runtime.engines().iter().map(|engine| engine.description().name).collect();
    let missing = wattlock::missing_engines();
    let missing: Vec<String> = missing.iter().map(|(name, why)| format!("; not {name}: {why}")).collect();
    let words = format!("{}; {}", cpu.class, cpu.handshakes());
    vec![
        Fact::good("program", env!("CARGO_PKG_VERSION")),
        Fact::good("CPU", words),
        Fact::good("engines", names.join(", ") + &missing.concat()),
    ]
}

/// Whether costs are this machine's.
fn profile(runtime: &Runtime) -> Fact {
    const WHAT: &str = "profile";
    const NEXT: &str = "wattlock calibrate";
    let origin = runtime.profile_origin();
    let here = MachineKey::here(runtime.engines());
    let Some(path) = Profile::path() else { return Fact::note(WHAT, origin, NEXT) };
    match Profile::load(&path) {
        Ok(profile) => match profile.stale(&here) {
            None => Fact::good(WHAT, origin),
            Some(why) => {
                let words = format!("{}: stale, and so not used: {why}", path.display());
                Fact::problem(WHAT, words, Some(NEXT.to_owned()))
            }
        },
        Err(_) if !path.exists() && Profile::exists_for(runtime.engines()) => Fact::good(WHAT, origin),
        Err(_) if !path.exists() => Fact::note(WHAT, origin, NEXT),
        Err(error) => Fact::problem(WHAT, error.to_string(), Some(format!("{NEXT}, which replaces it"))),
    }
}

/// What `wattlock openssl check` says.
fn openssl() -> Vec<Fact> {
    const WHAT: &str = "OpenSSL";
    let report = match openssl::check::look(None) {
        Ok(report) => report,
        Err(error) => return vec![Fact::note(WHAT, program::line(&error), "wattlock openssl check")],
    };
    if !report.configured {
        let words = format!("{}: programs do not use Wattlock", report.config.display());
        return vec![Fact::note(WHAT, words, "sudo wattlock openssl enable")];
    }
    let problems = report.problems.iter();
    let problems: Vec<Fact> = problems
        .map(|problem| Fact::problem(WHAT, problem.as_str(), Some("wattlock openssl check".to_owned())))
        .collect();
    match problems.is_empty() {
        true => vec![Fact::good(WHAT, report.line())],
        false => problems,
    }
}

/// What `wattlock nginx check` says, where there is an nginx. What only matters to one that is to use Wattlock is a note as
/// long as its configuration has no line of ours.
fn nginx(choice: &Choice) -> Vec<Fact> {
    const WHAT: &str = "nginx";
    let findings = match nginx::look(choice) {
        Ok(findings) => findings,
        Err(error) => {
            let words = format!("not looked at: {}", program::line(&error));
            return vec![Fact::note(WHAT, words, "apt install nginx, or --nginx of `wattlock nginx check`")];
        }
    };
    let enabled = findings.iter().any(|finding| finding.what == nginx::CONFIGURATION && finding.good);
    let fact = |finding: &nginx::Finding| {
        let words = format!("{}: {}", finding.what, finding.words);
        let next = finding.next().unwrap_or("wattlock nginx check").to_owned();
        // A module that is not there keeps nginx from starting, whoever named it.
        match enabled || finding.what == nginx::LOAD_MODULE {
            true => Fact::problem(WHAT, words, Some(next)),
            false => Fact::note(WHAT, words, next),
        }
    };
    let bad: Vec<Fact> = findings.iter().filter(|finding| !finding.good).map(fact).collect();
    match (bad.is_empty(), findings.first()) {
        (true, Some(first)) => vec![Fact::good(WHAT, format!("{}; Wattlock is enabled", first.words))],
        _ => bad,
    }
}

/// A program that runs now and has used Wattlock, as its file in a folder of its user says.
#[derive(Debug)]
struct Program {
    user: u32,
    name: String,
    pid: u32,
    version: String,
}

fn running() -> Vec<Program> {
    let mut found = Vec::new();
    scan(&[], |user| {
        let used = user.living.into_iter().map(|one: Snapshot| (one.is_used(), one.header));
        found.extend(used.filter(|(used, _)| *used).map(|(_, header)| Program {
            user: user.uid,
            name: header.program,
            pid: header.pid,
            version: header.version,
        }));
    });
    found.sort_by_key(|program| program.pid);
    found
}

/// Most programs that are named, and most lines about old ones.
const MOST_NAMED: usize = 8;

/// Programs by name, and those of another version. What another user's file says is that user's to say: it stands in no
/// way of `own` and names nothing, unless it is root's.
fn programs(found: &[Program], own: u32) -> Vec<Fact> {
    const WHAT: &str = "programs";
    if found.is_empty() {
        let words = "none that runs has used Wattlock (or none whose counters this user may read)";
        return vec![Fact::good(WHAT, words)];
    }
    let is_ours = |one: &&Program| [own, 0].contains(&one.user);
    let name = |one: &Program| named(&one.name, one.user, own);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    found.iter().filter(is_ours).for_each(|one| *counts.entry(name(one)).or_default() += 1);
    let more = counts.len().saturating_sub(MOST_NAMED);
    let mut words: Vec<String> =
        counts.iter().take(MOST_NAMED).map(|(name, count)| format!("{name} ({count})")).collect();
    if more > 0 {
        words.push(format!("and {more} more"));
    }
    let users: BTreeSet<u32> = found.iter().filter(|one| !is_ours(one)).map(|one| one.user).collect();
    if !users.is_empty() {
        let count = found.iter().filter(|one| !is_ours(one)).count();
        let plural = if users.len() == 1 { "" } else { "s" };
        words.push(format!("and {count} of {} other user{plural}", users.len()));
    }
    let mut facts = vec![Fact::good(WHAT, words.join(", "))];
    let old = found.iter().filter(|one| one.version != env!("CARGO_PKG_VERSION"));
    let (ours, others): (Vec<&Program>, Vec<&Program>) = old.partition(is_ours);
    facts.extend(ours.iter().take(MOST_NAMED).map(|one| {
        let words = format!("{} (pid {}) runs with version {}", name(one), one.pid, one.version);
        Fact::problem(WHAT, words, Some("restart it".to_owned()))
    }));
    if ours.len() > MOST_NAMED {
        let words = format!("and {} more run with another version", ours.len() - MOST_NAMED);
        facts.push(Fact::problem(WHAT, words, Some("wattlock status names them; restart them".to_owned())));
    }
    if let Some(first) = others.first() {
        let Program { user, name, pid, version } = first;
        let words = format!(
            "programs of other users with another version: {}, the first {name} (pid {pid}) of user {user} with \
             {version}",
            others.len()
        );
        facts.push(Fact::note(WHAT, words, "let those users restart them"));
    }
    facts
}

/// Whether a counter measures joules.
fn joules() -> Fact {
    const WHAT: &str = "joules";
    let meter = Meter::discover(&wattlock_shell::joules::places());
    let sources: Vec<String> =
        meter.sources().map(|about| format!("{} by {}", about.part, about.source)).collect();
    if !sources.is_empty() {
        return Fact::good(WHAT, sources.join(", "));
    }
    let unused: Vec<String> =
        meter.unused().iter().map(|(about, why)| format!("{}: {why}", about.source)).collect();
    let words = match unused.is_empty() {
        true => "no counter and no sensor here: joules are modelled".to_owned(),
        false => format!("nothing is read ({}): joules are modelled", unused.join("; ")),
    };
    Fact::note(WHAT, words, "wattlock energy sources")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_users_own_and_roots_programs_of_another_version_stand_in_the_way() {
        let program = |user: u32, pid: u32, version: &str| Program {
            user,
            name: "nginx".to_owned(),
            pid,
            version: version.to_owned(),
        };
        let standings = |found: &[Program], own: u32| -> Vec<Standing> {
            programs(found, own).iter().map(|fact| fact.standing).collect()
        };
        use Standing::{Good, Note, Problem};
        let (now, old) = (env!("CARGO_PKG_VERSION"), "0.0.0");
        for (user, own, wanted) in [
            (1000, 1000, &[Good, Problem][..]),
            (0, 1000, &[Good, Problem]),
            (0, 0, &[Good, Problem]),
            (1000, 0, &[Good, Note]),
            (1001, 1000, &[Good, Note]),
        ] {
            assert_eq!(standings(&[program(user, 7, old)], own), wanted, "{user} {own}");
            assert_eq!(standings(&[program(user, 7, now)], own), [Good], "{user} {own}");
        }
        // However many files other users make, they are one line.
        let many: Vec<Program> = (1..=5000).map(|pid| program(1000 + pid, pid, old)).collect();
        let facts = programs(&many, 0);
        assert_eq!(facts.len(), 2);
        let wanted = "programs of other users with another version: 5000, the first nginx (pid 1) of user 1001 with \
                      0.0.0";
        assert_eq!(facts[1].words, wanted);
        assert_eq!(facts[0].words, "and 5000 of 5000 other users");
        assert_eq!(standings(&[], 0), [Good]);
    }

    #[test]
    fn programs_are_named_with_their_user_and_there_is_an_end_to_it() {
        let program = |user: u32, name: String, pid: u32, version: &str| Program {
            user,
            name,
            pid,
            version: version.to_owned(),
        };
        let now = env!("CARGO_PKG_VERSION");
        let of = |user: u32, name: &str| program(user, name.to_owned(), 1, now);
        let found = [of(0, "nginx"), of(1000, "cp"), of(1000, "cp"), of(1001, "secret")];
        let words = |own: u32| programs(&found, own)[0].words.clone();
        assert_eq!(words(1000), "cp (2), uid 0: nginx (1), and 1 of 1 other user");
        assert_eq!(words(0), "nginx (1), and 3 of 2 other users");
        for user in [0, 1000] {
            let many: Vec<Program> =
                (0..5000).map(|pid| program(user, format!("p{pid:04}"), pid, "0.0.0")).collect();
            let facts = programs(&many, 1000);
            assert_eq!(facts.len(), 1 + MOST_NAMED + 1);
            assert!(facts[0].words.ends_with("p0007 (1), and 4992 more"), "{}", facts[0].words);
            assert!(facts[1..].iter().all(|fact| fact.standing == Standing::Problem));
            assert_eq!(facts[9].words, "and 4992 more run with another version");
            assert_eq!(facts[1].words.contains("uid 0: p0000"), user == 0, "{}", facts[1].words);
        }
    }
}
