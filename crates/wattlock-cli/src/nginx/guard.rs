//! `wattlock nginx guard`: before a start, nginx is asked whether it takes its configuration with Wattlock. If not, or
//! if the provider is gone, Wattlock's lines go, so that nginx starts.
//!
//! It never fails: its exit code is 0, and what it did is one line. It takes out only what is Wattlock's, and only if
//! nginx takes the result: marked lines, and the block in the `openssl.cnf` of nginx's own, are tried beside the files
//! first; directives of Wattlock's by hand, and the link by which the package's module is loaded, come back if nginx
//! refuses all the same. A configuration that works stays, and so does one that is broken by others. A second call finds
//! nothing to do. The block goes before the lines: what is cut off between them starts, and is mended by the next call.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use wattlock_door::one_line;
use wattlock_shell::nginx::place::Nginx;
use wattlock_shell::program;

use super::file::{
    Changed, Environment, Refused, beside, put_back, read, replace, set_aside, test, text as text_of,
};
use super::{About, NAME, USUAL, edit};
use crate::changes::Change;
use crate::openssl::own;
use crate::trusted;

/// What nginx's module says when it reads a configuration and finds no provider (nginx/src/ngx_http_wattlock_module.c).
const NO_PROVIDER: &str = "wattlock: no provider: ";

/// The link of Debian's package, beside `nginx.conf`; dh_nginx(1) calls it the second name when it takes the module out,
/// and makes it anew when the package is configured.
const LINK: &str = "modules-enabled/50-mod-http-wattlock.conf";
const REMOVED: &str = "modules-enabled/50-mod-http-wattlock.conf.removed";

/// Directives by hand that are set aside at most.
const MOST_ASIDE: usize = 100;

/// Runs the command.
pub fn run(about: &About) {
    let mut told = Vec::new();
    if let Err(error) = look(about, &mut told) {
        told.push(format!("the guard changes nothing: {}", program::line(&error)));
    }
    if !told.is_empty() {
        eprintln!("wattlock: {}", told.join("; "));
    }
}

/// Refuses a configuration that others than root may change, or the name of it.
///
/// # Errors
/// As [`trusted::only_by_root`].
pub fn may_change(named: &Path) -> Result<()> {
    trusted::only_by_root(named)?;
    trusted::only_by_root(named.parent().context("a file lies in a folder")?)
}

/// Refuses to enable where the package's module is there and its link was renamed: with another line for the module
/// nginx would refuse the link when it is made anew.
///
/// # Errors
/// It is so.
pub fn ensure_not_renamed(named: &Path) -> Result<()> {
    let removed = named.with_file_name(REMOVED);
    if removed.is_symlink() && removed.exists() && !named.with_file_name(LINK).exists() {
        bail!(
            "{0}: nginx refused the package's module, or a person took it out: `mv {0} {1}` first",
            one_line(&removed),
            one_line(&named.with_file_name(LINK))
        );
    }
    Ok(())
}

/// The package's link, if it loads the module.
fn link(named: &Path) -> Option<PathBuf> {
    let link = named.with_file_name(LINK);
    (link.is_symlink() && link.exists()).then_some(link)
}

/// Looks and mends; what was done goes to `told`.
fn look(about: &About, told: &mut Vec<String>) -> Result<()> {
    let named = about.config.as_deref().unwrap_or(Path::new(USUAL));
    // Without a look at nginx: most starts are of one that has nothing of ours.
    if (about.config.is_some() || about.places.nginx.is_none())
        && read(named).is_ok_and(|text| !edit::is_enabled(&text))
        && link(named).is_none()
        && !own::is_active(&own::path(NAME))
    {
        return Ok(());
    }
    let nginx = about.places.nginx()?;
    let (named, file) = (about.named(&nginx)?, about.file(&nginx)?);
    let before = read(&file)?;
    // Lines that are out leave the block to the service's environment.
    let conf = edit::conf(&before)
        .or_else(|| about.is_of_the_service(&nginx, &file).then(|| own::path(NAME)))
        .filter(|conf| own::is_active(conf));
    let link = link(&named);
    if !edit::is_enabled(&before) && conf.is_none() && link.is_none() {
        return Ok(());
    }
    told.extend(conf.as_deref().and_then(follow));
    // Idle if it cannot follow.
    let conf = conf.filter(|conf| own::is_active(conf));
    let one = Attempt {
        nginx: &nginx,
        named: &named,
        file: &file,
        prefix: about.prefix.as_deref(),
        before,
        conf,
        link,
    };
    told.extend(one.mend()?);
    Ok(())
}

/// Has nginx's own `openssl.cnf` say what the system's says now; what was done, if anything.
fn follow(conf: &Path) -> Option<String> {
    let mut why = None;
    let change = Change::of(conf, |before| {
        let before = before.unwrap_or_default();
        match own::anew(before, NAME) {
            Ok(text) => Ok(Some(text)),
            Err(error) => {
                why = Some(program::line(&error));
                own::idle(Some(before))
            }
        }
    });
    let shown = one_line(conf);
    match change.and_then(|change| if change.is_none() { Ok(false) } else { change.make().map(|()| true) }) {
        Ok(false) => None,
        Ok(true) => Some(match why {
            None => format!("the system's openssl.cnf has changed, and {shown} follows it"),
            Some(why) => format!(
                "{shown} is without Wattlock, since the system's openssl.cnf has changed: {why}; mend that, then \
                 `wattlock nginx enable`"
            ),
        }),
        Err(error) => {
            Some(format!("{shown} may not follow the system's openssl.cnf: {}", program::line(&error)))
        }
    }
}

/// A configuration that may have to do without Wattlock.
struct Attempt<'a> {
    nginx: &'a Nginx,
    /// By the name that nginx starts with, and links resolved.
    named: &'a Path,
    file: &'a Path,
    prefix: Option<&'a Path>,
    before: String,
    /// The `openssl.cnf` of nginx's own, if it has the provider.
    conf: Option<PathBuf>,
    link: Option<PathBuf>,
}

/// A configuration that nginx takes, without Wattlock.
#[derive(Default)]
struct Mended {
    text: String,
    /// Directives by hand in other files, comments now; and those in this text.
    changed: Vec<Changed>,
    aside: Vec<String>,
    /// Whether the link is renamed.
    renamed: bool,
}

impl Attempt<'_> {
    fn test(&self, file: &Path, environment: Environment<'_>) -> Result<String, Refused> {
        test(self.nginx, file, self.prefix, environment)
    }

    /// As the service starts it.
    fn as_started(&self) -> Result<String, Refused> {
        let environment = self.conf.as_deref().map_or(Environment::AsHere, Environment::Names);
        self.test(self.named, environment)
    }

    fn mend(&self) -> Result<Option<String>> {
        let (words, provider) = match self.as_started() {
            Ok(warned) => match warned.lines().find_map(|line| line.split_once(NO_PROVIDER)) {
                // nginx: [warn] wattlock: no provider: WHY in /etc/nginx/nginx.conf:9
                Some((_, why)) if edit::is_enabled(&self.before) => {
                    let why = why.rsplit_once(" in ").map_or(why, |(why, _)| why);
                    (format!("its provider does not load: {why}"), true)
                }
                _ => return Ok(None),
            },
            // What is not about us may have been for a moment: a port, a name, a full disk.
            Err(refused) if !refused.is_about_us() && self.as_started().is_ok() => return Ok(None),
            Err(refused) => (refused.words, false),
        };
        may_change(self.named)?;
        let block = match &self.conf {
            Some(conf) => {
                let change = Change::of(conf, own::idle)?;
                change.after.is_some().then_some(change)
            }
            None => None,
        };
        // If the fault is the module's, the provider may stay, for groups that a server names.
        let module_alone =
            !provider && (block.is_none() || edit::is_enabled(&self.before) || self.link.is_some());
        let kept = module_alone.then(|| self.without(None)).transpose()?;
        let (mended, block) = match (kept, block) {
            (Some(Ok(mended)), _) => (mended, None),
            (Some(Err(refused)), None) => return self.left(&words, &refused),
            (_, block) => match self.without(block.as_ref())? {
                Ok(mended) => (mended, block),
                Err(refused) => return self.left(&words, &refused),
            },
        };
        let same = mended.text == self.before && mended.changed.is_empty();
        if same && block.is_none() && !mended.renamed {
            // Refused twice, and now no more.
            return Ok(None);
        }
        let unwritten = block.as_ref().and_then(|block| block.make().err());
        if mended.text != self.before
            && let Err(error) = replace(self.file, &self.before, &mended.text)
        {
            self.undo(&mended)?;
            return Err(error);
        }
        Ok(Some(self.told(&words, &mended, block.as_ref(), unwritten)))
    }

    /// What nginx takes without Wattlock's lines, and with this change of its `openssl.cnf`; or why it takes nothing.
    fn without(&self, block: Option<&Change>) -> Result<Result<Mended, Refused>> {
        let idle =
            block.map(|block| beside(&block.path, &text_of(block.after.as_deref().unwrap_or_default())));
        let idle = idle.transpose()?;
        let conf = idle.as_ref().map(|idle| idle.path()).or(self.conf.as_deref());
        let environment = conf.map_or(Environment::AsHere, Environment::Names);
        let mut mended = Mended { text: edit::disabled(&self.before), ..Mended::default() };
        loop {
            let candidate = beside(self.named, &mended.text);
            let result = match &candidate {
                Ok(candidate) => self.test(candidate.path(), environment).map(|_| candidate.path()),
                Err(error) => Err(Refused::from(anyhow::anyhow!("{error:#}"))),
            };
            let Err(refused) = result else { return Ok(Ok(mended)) };
            let path = candidate.as_ref().map_or(self.named, |candidate| candidate.path());
            match self.step(&refused, path, &mut mended) {
                Ok(true) => {}
                Ok(false) => {
                    self.undo(&mended)?;
                    return Ok(Err(refused));
                }
                Err(error) => {
                    self.undo(&mended)?;
                    return Ok(Err(Refused {
                        words: format!("{}; {error:#}", refused.words),
                        at: None,
                        ..refused
                    }));
                }
            }
        }
    }

    /// Takes out what nginx has refused, if it is Wattlock's and no marked line; whether anything was.
    fn step(&self, refused: &Refused, candidate: &Path, mended: &mut Mended) -> Result<bool> {
        if let Some((path, line)) = &refused.at {
            if mended.aside.len() == MOST_ASIDE {
                return Ok(false);
            }
            let told = if path == candidate {
                mended.text = edit::set_aside(&mended.text, *line).with_context(|| {
                    format!("take the directive `wattlock...` of {} out by hand", one_line(self.file))
                })?;
                one_line(self.file)
            } else {
                mended.changed.push(set_aside(path, *line)?);
                format!("line {line} of {}", one_line(path))
            };
            mended.aside.push(told);
            return Ok(true);
        }
        let named = |link: &Path| refused.words.contains(&*format!(" in {}:", link.display()));
        match &self.link {
            Some(link) if !mended.renamed && (refused.ended || (refused.is_about_us() && named(link))) => {
                trusted::only_by_root(link.parent().context("a link lies in a folder")?)?;
                std::fs::rename(link, self.named.with_file_name(REMOVED)).with_context(|| one_line(link))?;
                mended.renamed = true;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn undo(&self, mended: &Mended) -> Result<()> {
        let link = match &self.link {
            Some(link) if mended.renamed => std::fs::rename(self.named.with_file_name(REMOVED), link)
                .with_context(|| format!("undoing: {}", one_line(link))),
            _ => Ok(()),
        };
        put_back(&mended.changed).and(link)
    }

    /// What was done, in one line.
    fn told(
        &self,
        words: &str,
        mended: &Mended,
        block: Option<&Change>,
        unwritten: Option<anyhow::Error>,
    ) -> String {
        let mut out = Vec::new();
        if edit::is_enabled(&self.before) {
            out.push(format!("whose lines are out of {}", one_line(self.file)));
        } else if let Some(block) = block {
            out.push(format!("whose block in {} is idle", one_line(&block.path)));
        }
        if mended.renamed {
            let removed = self.named.with_file_name(REMOVED);
            out.push(format!("whose package's module is out by the name {}", one_line(&removed)));
        }
        if !mended.aside.is_empty() {
            out.push(format!("whose directives by hand are comments: {}", mended.aside.join(", ")));
        }
        let hybrid = if edit::has_hybrid(&self.before) { " --hybrid" } else { "" };
        let mut line = format!(
            "nginx starts without Wattlock, {}: {words}; `wattlock nginx enable{hybrid}` puts them back when it fits \
             again",
            out.join(", ")
        );
        if let Some(error) = unwritten {
            line.push_str(&format!("; the provider is still configured: {}", program::line(&error)));
        }
        line
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
