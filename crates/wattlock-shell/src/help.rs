//! Examples and remarks below a command's own help: each program has them as one file of text.
//!
//! A command is a line `[wattlock fs key add]`, and its text goes on to the next such line.

/// Puts below the help of this command, which is called `path`, and of all in it what the file has for them.
pub fn with_examples(command: clap::Command, path: &str, file: &'static str) -> clap::Command {
    let command = match text(file, path) {
        Some(text) => command.after_help(text),
        None => command,
    };
    command.mut_subcommands(|inner| {
        let path = format!("{path} {}", inner.get_name());
        with_examples(inner, &path, file)
    })
}

fn text(file: &'static str, path: &str) -> Option<&'static str> {
    let (_, text) = file.split_once(&format!("\n[{path}]\n"))?;
    text.split("\n[").next().map(str::trim_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_ends_where_the_next_command_begins() {
        let file = "Whose.\n\n[w]\nExample:\n  w\n\nMore.\n\n[w a b]\nExample:\n  w a b\n";
        assert_eq!(text(file, "w"), Some("Example:\n  w\n\nMore."));
        assert_eq!(text(file, "w a b"), Some("Example:\n  w a b"));
        assert_eq!(text(file, "w a"), None);
        let inner = clap::Command::new("a").subcommand(clap::Command::new("b"));
        let command = with_examples(clap::Command::new("w").subcommand(inner), "w", file);
        let b = command.find_subcommand("a").and_then(|a| a.find_subcommand("b")).unwrap();
        assert_eq!(b.get_after_help().map(ToString::to_string), Some("Example:\n  w a b".to_owned()));
    }
}
