//! Mount options: `-o` of the command line, of mount(8) and of fstab.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use wattlock_files::keys::WORK_FACTOR_LIMIT;
use wattlock_fs::Error;

use super::Command;
use crate::fs::access::{self, Keys};
use wattlock_shell::setup::Choice;
use wattlock_shell::text;

/// What was asked for, by arguments and by options.
pub struct Settled {
    pub foreground: bool,
    pub idle: Option<Duration>,
    pub shared: bool,
    pub allow_other: bool,
    pub flags: Vec<String>,
    pub choice: Choice,
    identities: Vec<String>,
    passphrase_file: Option<String>,
    key: Option<String>,
    work_factor_limit: Option<u8>,
    expect: Option<String>,
}

impl Settled {
    /// Sorts the options out.
    ///
    /// # Errors
    /// [`Error::Usage`] for one that does not exist.
    pub fn new(command: &Command, choice: &Choice) -> Result<Settled> {
        let mut settled = Settled {
            foreground: command.foreground,
            idle: command.idle.map(Duration::from_secs_f64),
            shared: command.shared,
            allow_other: false,
            flags: Vec::new(),
            choice: choice.clone(),
            identities: Vec::new(),
            passphrase_file: None,
            key: None,
            work_factor_limit: None,
            expect: None,
        };
        for option in command.options.iter().filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("identity", file)) => settled.identities.push(file.to_owned()),
                Some(("passphrase-file", file)) => settled.passphrase_file = Some(file.to_owned()),
                Some(("key", name)) => settled.key = Some(name.to_owned()),
                Some(("work-factor-limit", factor)) => {
                    let factor =
                        factor.parse().ok().filter(|factor| (1..=WORK_FACTOR_LIMIT).contains(factor));
                    let wrong = || Error::Usage(format!("work-factor-limit: 1 to {WORK_FACTOR_LIMIT}"));
                    settled.work_factor_limit = Some(factor.ok_or_else(wrong)?);
                }
                Some(("expect", text)) => {
                    settled.expect = Some(access::fingerprint(text).map_err(Error::Usage)?);
                }
                Some(("policy", name)) => name.clone_into(&mut settled.choice.policy),
                Some(("idle", seconds)) => {
                    let seconds = text::parse_seconds(seconds).map_err(Error::Usage)?;
                    settled.idle = Some(Duration::from_secs_f64(seconds));
                }
                None if option == "allow_other" => settled.allow_other = true,
                None if option == "shared" => settled.shared = true,
                None if option == "foreground" => settled.foreground = true,
                _ if wattlock_mount::is_option(option) => settled.flags.push(option.clone()),
                _ => return Err(Error::Usage(format!("unknown mount option {option}")).into()),
            }
        }
        Ok(settled)
    }

    /// What opens the volume.
    pub fn keys(&self, given: &Keys) -> Keys {
        let (file, key) = (self.passphrase_file.as_deref(), self.key.as_deref());
        given.with(&self.identities, file, key, self.work_factor_limit, self.expect.as_deref())
    }
}

/// `mount.wattlock VOLUME MOUNTPOINT [-sfnv] [-t TYPE] [-o OPTIONS]` as `wattlock mount`.
pub fn as_asked(arguments: Vec<OsString>) -> Vec<OsString> {
    let called = arguments.first().map(Path::new).and_then(Path::file_name);
    if called.is_none_or(|name| name != "mount.wattlock" && name != "mount.fuse.wattlock") {
        return arguments;
    }
    // What mounts at boot and what root mounts by hand must be the same: fstab names the key.
    let mut asked: Vec<OsString> = ["wattlock", "mount", "--no-default"].map(OsString::from).into();
    let mut rest = arguments.into_iter().skip(1);
    while let Some(argument) = rest.next() {
        match argument.to_str() {
            // What mount(8) itself does with them is done.
            Some("-s" | "-n" | "-v" | "-f") => {}
            Some("-t") => drop(rest.next()),
            _ => asked.push(argument),
        }
    }
    asked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_mount_calls_becomes_a_command() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let asked = as_asked(words("/sbin/mount.wattlock vol mnt -s -t fuse.wattlock -o rw,identity=k"));
        assert_eq!(asked, words("wattlock mount --no-default vol mnt -o rw,identity=k"));
        let own = words("/usr/bin/wattlock mount vol mnt -v");
        assert_eq!(as_asked(own.clone()), own);
    }
}
