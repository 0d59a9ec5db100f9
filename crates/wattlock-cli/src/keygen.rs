//! `wattlock keygen`: a fresh identity, in age's own format, so that age and everything around it can use it.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use age::secrecy::ExposeSecret;
use anyhow::Result;
use clap::Args;
use wattlock_files::Error;
use zeroize::Zeroizing;

/// Make a key pair (an age identity)
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  wattlock keygen -o key.txt        prints the recipient, age1..., for `wattlock seal -r`\n  wattlock keygen | wattlock seal -p -o key.txt.sealed        a key file behind a passphrase"
)]
pub struct Command {
    /// Where the identity goes, readable by nobody else; without it, standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Runs the command.
pub fn run(command: &Command) -> Result<()> {
    let identity = age::x25519::Identity::generate();
    let public = identity.to_public();
    let text = Zeroizing::new(format!("# public key: {public}\n{}\n", identity.to_string().expose_secret()));
    let Some(path) = &command.output else {
        put!("{}", *text);
        return Ok(());
    };
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::AlreadyExists => Error::OutputExists(path.clone()),
        _ => Error::Io { what: "writing the key".into(), source },
    })?;
    // Half a key is worse than none: the next try would find it in the way.
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    if let Err(error) = written {
        let _ = std::fs::remove_file(path);
        return Err(Error::writing(error).into());
    }
    tell!("Public key: {public}");
    Ok(())
}
