//! `wattlock nginx guard`: before a start, nginx is asked whether it takes its configuration with Wattlock. If not, or
//! if the provider is gone, Wattlock's lines go, so that nginx starts.
//!
//! It never fails: its exit code is 0, and what it did is one line. It takes out only marked lines and our block, and
//! only if nginx takes the result, which is tried beside the file first: a configuration that works stays, and so does
//! one that is broken by others. A second call finds nothing to do.

use std::path::Path;

use anyhow::{Result, bail};
use wattlock_door::one_line;
use wattlock_shell::nginx::place::Nginx;
use wattlock_shell::program;

use super::file::{Environment, Refused, beside, read, replace, test};
use super::{About, USUAL, edit};
use crate::changes::Change;
use crate::openssl::own;
use crate::trusted;

/// What nginx's module says when it reads a configuration and finds no provider (nginx/src/ngx_http_wattlock_module.c).
const NO_PROVIDER: &str = "wattlock: no provider: ";

/// Runs the command.
pub fn run(about: &About) {
    match look(about) {
        Ok(None) => {}
        Ok(Some(line)) => eprintln!("wattlock: {line}"),
        Err(error) => eprintln!("wattlock: the guard changes nothing: {}", program::line(&error)),
    }
}

/// Looks and mends; what was done, if anything.
fn look(about: &About) -> Result<Option<String>> {
    let named = about.config.as_deref().unwrap_or(Path::new(USUAL));
    // Without a look at nginx: most starts are of one that has nothing of ours.
    if (about.config.is_some() || about.places.nginx.is_none())
        && read(named).is_ok_and(|text| !edit::is_enabled(&text))
    {
        return Ok(None);
    }
    let nginx = about.places.nginx()?;
    let file = about.file(&nginx)?;
    let before = read(&file)?;
    if !edit::is_enabled(&before) {
        return Ok(None);
    }
    let prefix = about.prefix.as_deref();
    let why = match test(&nginx, &file, prefix, Environment::AsHere) {
        Ok(warned) => match warned.lines().find_map(|line| line.split_once(NO_PROVIDER)) {
            // nginx: [warn] wattlock: no provider: WHY in /etc/nginx/nginx.conf:9
            Some((_, why)) => Why::Provider(why.rsplit_once(" in ").map_or(why, |(why, _)| why).to_owned()),
            None => return Ok(None),
        },
        Err(refused) => Why::Refused(refused),
    };
    trusted::only_by_root(&file)?;
    Attempt { nginx: &nginx, file: &file, prefix, before: &before, after: &edit::disabled(&before) }.mend(why)
}

/// Why Wattlock's lines cannot stay.
enum Why {
    /// The provider does not load; nginx would start, without Wattlock.
    Provider(String),
    Refused(Refused),
}

struct Attempt<'a> {
    nginx: &'a Nginx,
    file: &'a Path,
    prefix: Option<&'a Path>,
    before: &'a str,
    after: &'a str,
}

impl Attempt<'_> {
    fn mend(&self, why: Why) -> Result<Option<String>> {
        let candidate = beside(self.file, self.after)?;
        let accepts = |environment| test(self.nginx, candidate.path(), self.prefix, environment);
        // The module's fault: the provider may stay, for groups that a server names.
        let (words, block) = match why {
            Why::Provider(words) => (format!("its provider does not load: {words}"), true),
            Why::Refused(refused) if accepts(Environment::AsHere).is_ok() => (refused.words, false),
            Why::Refused(refused) => (refused.words, true),
        };
        let block = match edit::conf(self.before).filter(|_| block) {
            Some(conf) => {
                let change = Change::of(&conf, own::idle)?;
                change.after.is_some().then_some(change)
            }
            None => None,
        };
        if let Some(block) = &block {
            let text = String::from_utf8_lossy(block.after.as_deref().unwrap_or_default()).into_owned();
            let idle = beside(&block.path, &text)?;
            if let Err(refused) = accepts(Environment::Names(idle.path())) {
                return self.left(&words, &refused);
            }
        } else if let Err(refused) = accepts(Environment::AsHere) {
            return self.left(&words, &refused);
        }
        replace(self.file, self.before, self.after)?;
        let hybrid = if edit::has_hybrid(self.before) { " --hybrid" } else { "" };
        let mut line = format!(
            "nginx starts without Wattlock, whose lines are out of {}: {words}; `wattlock nginx enable{hybrid}` puts \
             them back when it fits again",
            one_line(self.file)
        );
        if let Some(Err(error)) = block.map(|block| block.make()) {
            line.push_str(&format!("; the provider is still configured: {}", program::line(&error)));
        }
        Ok(Some(line))
    }

    /// What is to be said if nginx does not start without Wattlock either.
    fn left(&self, with: &str, without: &Refused) -> Result<Option<String>> {
        match &without.at {
            Some((place, line)) => bail!(
                "{with}; take line {line} of {}, which a person wrote for Wattlock, out by hand",
                one_line(place)
            ),
            None => bail!("{} does not work without Wattlock either: {}", one_line(self.file), without.words),
        }
    }
}
