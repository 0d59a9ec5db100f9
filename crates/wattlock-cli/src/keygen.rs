//! `wattlock keygen`: a fresh identity, in age's own format, so that age and everything around it can use it.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use age::secrecy::ExposeSecret;
use anyhow::Result;
use clap::Args;
use wattlock_door::{AtomicFile, Attributes, Error, Folder, one_line};
use zeroize::Zeroizing;

use crate::defaults::{self, IDENTITY, RECIPIENTS};

/// Make a key pair (an age identity)
#[derive(Debug, Args)]
pub struct Command {
    /// Where the identity goes, readable by no other user; without it, standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the identity where commands look for one if none is given, and its recipient where they look for those
    #[arg(long, conflicts_with_all = ["output", "force"])]
    default: bool,
    /// Replace FILE if it exists; what only the old identity opens is lost then
    #[arg(short, long, requires = "output")]
    force: bool,
}

/// Runs the command.
pub fn run(command: &Command) -> Result<()> {
    let identity = age::x25519::Identity::generate();
    let public = identity.to_public();
    let text = Zeroizing::new(format!("# public key: {public}\n{}\n", identity.to_string().expose_secret()));
    if command.default {
        return write_default(&text, &public.to_string());
    }
    let Some(path) = &command.output else {
        put!("{}", *text);
        if std::io::stdout().is_terminal() {
            eprintln!("wattlock: `wattlock keygen --default` makes one that commands find by themselves");
        }
        return Ok(());
    };
    write(path, text.as_bytes(), command.force)?;
    tell!("Public key: {public}");
    Ok(())
}

/// Makes the default identity, and the default recipients unless there are some: those may be a team's. If only the
/// recipients are missing, they are those of the identity that is there.
fn write_default(text: &str, public: &str) -> Result<()> {
    let folder = defaults::make()?;
    let (key, list) = (folder.at(IDENTITY), folder.at(RECIPIENTS));
    let recipients = match folder.write_new(IDENTITY, text.as_bytes()) {
        Ok(()) => {
            tell!("wattlock: default key {}", one_line(&key));
            format!("{public}\n")
        }
        Err(there @ Error::OutputExists(_)) if list.symlink_metadata().is_err() => {
            // An earlier run ended between the two, or the list was removed.
            let Some(own) = defaults::recipients_of_identity()? else { return Err(there.into()) };
            tell!("wattlock: default key {} stays as it is", one_line(&key));
            own
        }
        Err(error) => return Err(error.into()),
    };
    match folder.write_new(RECIPIENTS, recipients.as_bytes()) {
        Ok(()) => tell!("wattlock: default recipients {}", one_line(&list)),
        Err(Error::OutputExists(path)) => {
            tell!("wattlock: {} stays as it is: without the new key in it", one_line(&path));
        }
        Err(error) => return Err(error.into()),
    }
    for public in recipients.lines() {
        tell!("Public key: {public}");
    }
    Ok(())
}

/// Writes a new file; with `force` in place of a file, or of a link, that has the name.
pub fn write(path: &Path, text: &[u8], force: bool) -> Result<()> {
    match path.symlink_metadata() {
        Ok(there) if there.is_dir() => {
            let error = anyhow::Error::new(Error::NotRegular(path.to_owned()));
            return Err(error.context(format!("{} is a folder", one_line(path))));
        }
        Ok(there) if !there.is_file() && !there.is_symlink() => {
            return Err(Error::NotRegular(path.to_owned()).into());
        }
        Ok(_) if !force => {
            return Err(Error::OutputExists(path.to_owned()).into());
        }
        _ => {}
    }
    let (folder, name) = Folder::of(path)?;
    Ok(private(folder, name, text, force)?)
}

/// Writes a file that its owner alone may read. It gets its name when it is whole, whatever ends the program: half a key
/// is worse than none, and the next try would find it in the way.
pub fn private(folder: Folder, name: OsString, text: &[u8], force: bool) -> Result<(), Error> {
    let file = AtomicFile::create(folder, name, force, None)?;
    let mut made = file.file();
    made.write_all(text).map_err(Error::writing)?;
    // It stays as it was made: for its owner alone.
    let own = Attributes::of(made, &made.metadata().map_err(Error::writing)?);
    file.commit(Some(&own))
}
