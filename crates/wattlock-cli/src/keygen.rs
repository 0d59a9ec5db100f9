//! `wattlock keygen`: a fresh identity, in age's own format, so that age and everything around it can use it.

use std::io::{IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use age::secrecy::ExposeSecret;
use anyhow::Result;
use clap::Args;
use wattlock_door::one_line;
use wattlock_files::Error;
use zeroize::Zeroizing;

use crate::defaults::{self, IDENTITY, RECIPIENTS};
use crate::wrong::system;

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

/// Makes the default identity, and the default recipients unless there are some: those may be a team's.
fn write_default(text: &str, public: &str) -> Result<()> {
    let folder = defaults::make()?;
    let write = |name: &str, text: &str| {
        let path = folder.at(name);
        folder.write_new(name, text.as_bytes()).map_err(|source| failed(&path, source))?;
        Ok::<PathBuf, Error>(path)
    };
    tell!("wattlock: default key {}", one_line(&write(IDENTITY, text)?));
    match write(RECIPIENTS, &format!("{public}\n")) {
        Ok(path) => tell!("wattlock: default recipients {}", one_line(&path)),
        Err(Error::Door(wattlock_door::Error::OutputExists(path))) => {
            tell!("wattlock: {} stays as it is: without the new key in it", one_line(&path));
        }
        Err(error) => return Err(error.into()),
    }
    tell!("Public key: {public}");
    Ok(())
}

/// What the system says of a key's new file.
fn failed(path: &Path, source: std::io::Error) -> Error {
    match source.kind() {
        std::io::ErrorKind::AlreadyExists => Error::Door(wattlock_door::Error::OutputExists(path.to_owned())),
        std::io::ErrorKind::NotFound => {
            Error::Door(wattlock_door::Error::NotFound(folder_of(path).to_owned()))
        }
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            Error::Door(wattlock_door::Error::DiskFull)
        }
        _ => system(format!("writing the key {}", one_line(path)), source),
    }
}

/// Writes a new file; with `force` in place of a file, or of a link, that has the name.
pub fn write(path: &Path, text: &[u8], force: bool) -> Result<()> {
    let failed = |source| failed(path, source);
    match path.symlink_metadata() {
        Ok(there) if there.is_dir() => {
            let error = anyhow::Error::new(Error::Door(wattlock_door::Error::NotRegular(path.to_owned())));
            return Err(error.context(format!("{} is a folder", one_line(path))));
        }
        Ok(there) if !there.is_file() && !there.is_symlink() => {
            return Err(wattlock_door::Error::NotRegular(path.to_owned()).into());
        }
        Ok(_) if !force => {
            return Err(wattlock_door::Error::OutputExists(path.to_owned()).into());
        }
        _ => {}
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.new", std::process::id()));
    let written = if force { PathBuf::from(beside) } else { path.to_owned() };
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(&written).map_err(failed)?;
    // Half a key is worse than none: the next try would find it in the way.
    let done = file.write_all(text).and_then(|()| file.sync_all()).and_then(|()| match force {
        true => std::fs::rename(&written, path),
        false => Ok(()),
    });
    if done.is_err() {
        let _ = std::fs::remove_file(&written);
    }
    Ok(done.map_err(failed)?)
}

/// The folder that a file is to be in.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
