//! Which command heeds which of the settings that choose engines and policies.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args};

use crate::setup::Choice;

/// Every option of [`Choice`], by its id.
const EVERY: &[&str] = &["policy", "objective", "settings", "emulate"];

/// The same as they are typed.
pub const LONG: [&str; 4] = ["policy", "objective", "set", "emulate"];

/// Which options of [`Choice`] a command heeds, by the command's path. What is not here is refused: an option that does
/// nothing must not look as if it did.
const HEEDED: &[(&str, &[&str])] = &[
    ("seal", EVERY),
    ("open", EVERY),
    ("fs cat", EVERY),
    ("fs cp", EVERY),
    ("fs check", EVERY),
    ("mount", EVERY),
    ("gzip", EVERY),
    ("sum", EVERY),
    ("stream seal", EVERY),
    ("stream open", EVERY),
    ("serve", EVERY),
    ("engines", EVERY),
    ("calibrate", &["emulate"]),
    ("bench", &["emulate"]),
    ("bench engines", &["emulate"]),
    ("bench dispatch", EVERY),
    ("bench start", &["emulate"]),
    ("bench https", EVERY),
    ("bench point", EVERY),
    // Its own `--policy` takes several, and published names.
    ("bench stream", &["policy"]),
    ("lab qweb", &["settings"]),
    ("lab reproduce", &["emulate"]),
    // Its own `--set` takes the provider's settings.
    ("openssl enable", EVERY),
];

/// Shows each option of [`Choice`] in the help of the commands that heed it.
pub fn shown(command: clap::Command) -> clap::Command {
    let every = Choice::augment_args(clap::Command::new("every"));
    HEEDED.iter().fold(command, |command, (path, heeded)| {
        let names: Vec<&str> = path.split(' ').collect();
        within(command, &names, &|command| {
            let own: Vec<_> = command.get_arguments().map(|own| own.get_id().clone()).collect();
            let missing = every.get_arguments().filter(|one| !own.contains(one.get_id()));
            let missing = missing.filter(|one| heeded.contains(&one.get_id().as_str()));
            command.args(missing.map(|one| one.clone().global(false).hide(false)))
        })
    })
}

fn within(
    command: clap::Command,
    names: &[&str],
    change: &dyn Fn(clap::Command) -> clap::Command,
) -> clap::Command {
    match names {
        [] => change(command),
        // All of them are looked at, so that they keep their order in the help.
        [name, rest @ ..] => command.mut_subcommands(|inner| match inner.get_name() == *name {
            true => within(inner, rest, change),
            false => inner,
        }),
    }
}

/// The path of the command that was asked for.
pub fn path(matches: &ArgMatches) -> String {
    let (mut names, mut at) = (Vec::new(), matches);
    while let Some((name, inner)) = at.subcommand() {
        names.push(name);
        at = inner;
    }
    names.join(" ")
}

/// The first option of [`Choice`] that was given to a command that does not heed it, and that command's path.
pub fn ignored(matches: &ArgMatches) -> Option<(&'static str, String)> {
    let path = path(matches);
    let heeded = HEEDED.iter().find(|(known, _)| *known == path).map_or(&[][..], |(_, heeded)| heeded);
    let given = |id: &&&str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let wrong = EVERY.iter().filter(given).find(|id| !heeded.contains(id))?;
    Some((if *wrong == "settings" { "set" } else { wrong }, path))
}
