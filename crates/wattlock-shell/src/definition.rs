//! What a program's command line consists of, as data: the programs beside `wattlock` hand theirs to it as JSON, so
//! that completions and manual pages of all commands come from the definitions that `--help` shows, and from one
//! program.
//!
//! What is hidden from `--help` is not in it.

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Arg, ArgAction, Command, ValueHint};
use serde::{Deserialize, Serialize};

/// A command with all commands in it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Definition {
    name: String,
    about: Option<String>,
    long_about: Option<String>,
    after_help: Option<String>,
    /// Whether one of the commands in it must be given.
    demands_command: bool,
    options: Vec<Opt>,
    /// The commands in it.
    pub commands: Vec<Definition>,
}

/// An option or an argument.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Opt {
    id: String,
    short: Option<char>,
    long: Option<String>,
    aliases: Vec<String>,
    help: Option<String>,
    long_help: Option<String>,
    heading: Option<String>,
    /// Names of its values; none for a switch.
    values: Vec<String>,
    least: usize,
    most: usize,
    equals: bool,
    required: bool,
    last: bool,
    repeated: bool,
    choices: Vec<(String, Option<String>)>,
    defaults: Vec<String>,
}

impl Definition {
    /// Of a command, as it is shown.
    pub fn of(command: &Command) -> Definition {
        let mut command = command.clone();
        command.build();
        Definition::built(&command)
    }

    fn built(command: &Command) -> Definition {
        let text = |styled: Option<&clap::builder::StyledStr>| styled.map(ToString::to_string);
        let shown = command.get_arguments().filter(|one| !one.is_hide_set());
        // clap adds these itself.
        let own = shown.filter(|one| !matches!(one.get_id().as_str(), "help" | "version"));
        let inner = command.get_subcommands().filter(|one| !one.is_hide_set() && one.get_name() != "help");
        Definition {
            name: command.get_name().to_owned(),
            about: text(command.get_about()),
            long_about: text(command.get_long_about()),
            after_help: text(command.get_after_help()),
            demands_command: command.is_subcommand_required_set(),
            options: own.map(Opt::of).collect(),
            commands: inner.map(Definition::built).collect(),
        }
    }

    /// The command again, to be shown and not to be parsed with: its values have no types.
    pub fn command(self) -> Command {
        let text = |text: Option<String>| text.map(clap::builder::StyledStr::from);
        let mut command = Command::new(fixed(self.name)).disable_help_subcommand(true);
        if let Some(about) = text(self.about) {
            command = command.about(about);
        }
        if let Some(about) = text(self.long_about) {
            command = command.long_about(about);
        }
        if let Some(after) = text(self.after_help) {
            command = command.after_help(after);
        }
        command = command.subcommand_required(self.demands_command);
        command = command.args(self.options.into_iter().map(Opt::arg));
        command.subcommands(self.commands.into_iter().map(Definition::command))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Opt {
    fn of(arg: &Arg) -> Opt {
        let takes = arg.get_num_args().unwrap_or_else(|| 1.into());
        let id = arg.get_id().to_string();
        let named = |names: &[clap::builder::Str]| names.iter().map(ToString::to_string).collect();
        let values = match takes.takes_values() {
            true => arg.get_value_names().map_or_else(|| vec![id.to_uppercase()], named),
            false => Vec::new(),
        };
        let choices =
            arg.get_possible_values().into_iter().filter(|one| takes.takes_values() && !one.is_hide_set());
        let choice =
            |one: PossibleValue| (one.get_name().to_owned(), one.get_help().map(ToString::to_string));
        let aliases = arg.get_visible_aliases().unwrap_or_default();
        let defaults = arg
            .get_default_values()
            .iter()
            .filter(|_| takes.takes_values() && !arg.is_hide_default_value_set());
        Opt {
            short: arg.get_short(),
            long: arg.get_long().map(str::to_owned),
            aliases: aliases.into_iter().map(str::to_owned).collect(),
            help: arg.get_help().map(ToString::to_string),
            long_help: arg.get_long_help().map(ToString::to_string),
            heading: arg.get_help_heading().map(str::to_owned),
            values,
            least: takes.min_values(),
            most: takes.max_values(),
            equals: arg.is_require_equals_set(),
            required: arg.is_required_set(),
            last: arg.is_last_set() || arg.is_trailing_var_arg_set(),
            repeated: matches!(arg.get_action(), ArgAction::Append),
            choices: choices.map(choice).collect(),
            defaults: defaults.map(|one| one.to_string_lossy().into_owned()).collect(),
            id,
        }
    }

    fn arg(self) -> Arg {
        let mut arg = Arg::new(fixed(self.id)).required(self.required).require_equals(self.equals);
        arg = arg.short(self.short).long(self.long.map(fixed));
        arg = arg.visible_aliases(self.aliases.into_iter().map(fixed).collect::<Vec<_>>());
        arg = arg.help_heading(self.heading.map(fixed));
        if let Some(help) = self.help {
            arg = arg.help(help);
        }
        if let Some(help) = self.long_help {
            arg = arg.long_help(help);
        }
        if self.values.is_empty() {
            return arg.action(ArgAction::SetTrue);
        }
        let is_path = self.values.iter().any(|name| PATHS.contains(&name.as_str()));
        if is_path && self.choices.is_empty() {
            arg = arg.value_hint(ValueHint::AnyPath);
        }
        if !self.choices.is_empty() {
            let choice = |(name, help): (String, Option<String>)| {
                let value = PossibleValue::new(fixed(name));
                help.map_or(value.clone(), |help| value.help(help))
            };
            arg = arg.value_parser(PossibleValuesParser::new(self.choices.into_iter().map(choice)));
        }
        arg = arg.value_names(self.values.into_iter().map(fixed).collect::<Vec<_>>());
        arg = arg
            .num_args(self.least..=self.most)
            .default_values(self.defaults.into_iter().map(fixed).collect::<Vec<_>>());
        let action = if self.repeated { ArgAction::Append } else { ArgAction::Set };
        arg.action(action).trailing_var_arg(self.last)
    }
}

/// Names of values that are files or folders, for a shell that completes them.
const PATHS: [&str; 7] = ["FILE", "DIR", "VOLUME", "MOUNTPOINT", "PATH", "PROGRAM", "LIBRARY"];

/// clap wants names that live as long as the program, which ends when these are shown.
fn fixed(text: String) -> &'static str {
    text.leak()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_survives_the_way_to_another_program_without_what_is_hidden() {
        let mode = Arg::new("mode").long("mode").value_parser(["fast", "small"]).default_value("fast");
        let inner = Command::new("seal")
            .about("Seals")
            .arg(Arg::new("to").short('r').long("recipient").value_name("RECIPIENT").help("To whom"))
            .arg(mode)
            .arg(Arg::new("files").value_name("FILE").num_args(0..).help("Files"))
            .arg(Arg::new("secret").long("secret").hide(true).action(ArgAction::SetTrue));
        let hidden = Command::new("internal").hide(true);
        let program = Command::new("w").subcommands([inner, hidden]).after_help("Example:\n  w seal");
        let text = serde_json::to_string(&Definition::of(&program)).unwrap();
        let again: Definition = serde_json::from_str(&text).unwrap();
        assert_eq!(again.commands.iter().map(Definition::name).collect::<Vec<_>>(), ["seal"]);
        let mut again = again.command();
        again.build();
        let seal = again.find_subcommand("seal").unwrap();
        let ids: Vec<&str> = seal.get_arguments().map(|one| one.get_id().as_str()).collect();
        assert_eq!(ids, ["to", "mode", "files", "help"]);
        let mode = seal.get_arguments().find(|one| one.get_id() == "mode").unwrap();
        assert_eq!(mode.get_possible_values().len(), 2);
        assert_eq!(mode.get_default_values(), ["fast"]);
        assert_eq!(again.get_after_help().unwrap().to_string(), "Example:\n  w seal");
    }
}
