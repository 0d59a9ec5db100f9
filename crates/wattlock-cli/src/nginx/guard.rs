//! `wattlock nginx guard`: before a start, nginx is asked whether it takes its configuration with Wattlock. If not,
//! Wattlock's lines go, so that nginx starts.
//!
//! It never fails: its exit code is 0, and what it did is one line. Only nginx's answer decides, never its words, which
//! users whose files it includes can write: a configuration that nginx accepts stays, unless the provider's file is gone,
//! and what nginx refuses is asked for again before anything is written. (A provider that is there and does not load
//! leaves the module inactive, which says why.) Only what is Wattlock's is taken out, and only if nginx accepts the result: marked lines, and the block in the
//! `openssl.cnf` of nginx's own, are tried beside the files first; directives of Wattlock's by hand, and the link by
//! which the package's module is loaded, come back if nginx refuses all the same. A configuration that is broken by
//! others stays. A second call finds nothing to do. The block goes before the lines: what is cut off between them
//! starts, and is mended by the next call.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use wattlock_door::one_line;
use wattlock_shell::nginx::place::Nginx;
use wattlock_shell::program;

use super::file::{
    Changed, Environment, Refused, beside, put_back, read, replace, set_aside, test, text as text_of,
};
use super::{About, NAME, USUAL, edit, groups, lock};
use crate::changes::Change;
use crate::openssl::own;
use crate::{service, trusted};

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

/// Whether a file is the package's link, which the guard can take out.
pub fn is_link(named: &Path, file: &Path) -> bool {
    link(named).is_some_and(|link| link == file)
}

/// Directives of Wattlock's, in files that a configuration includes, that the guard cannot take out, and why.
pub fn out_of_reach(named: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for (file, text) in groups::files(named) {
        let theirs =
            file.canonicalize().context("a file").and_then(|file| trusted::only_by_root(&file)).err();
        for line in edit::by_hand(&text) {
            let why = match &theirs {
                Some(why) => program::line(why),
                None if edit::set_aside(&text, line).is_none() => "it is quoted, or no whole line".to_owned(),
                None => continue,
            };
            found.push(format!("{}:{line}: {why}", one_line(&file)));
        }
    }
    found
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
        && service::removals(NAME).is_ok_and(|removals| removals.is_empty())
    {
        return Ok(());
    }
    // nginx is to start, also beside another call that does not end.
    let _lock = lock::taken_within(lock::PATIENCE_OF_THE_GUARD).ok();
    let nginx = about.places.nginx()?;
    let (named, file) = (about.named(&nginx)?, about.file(&nginx)?);
    let before = read(&file)?;
    let of_service = about.is_of_the_service(&nginx, &file);
    // Lines that are out leave the file to the service's environment. One of another name is a person's.
    let own = own::path(NAME);
    let names_it = edit::conf(&before).as_ref() == Some(&own);
    let conf = ((names_it || of_service) && own::has_block(&own)).then_some(own);
    let link = link(&named);
    // Directives by hand may be left where lines, block and link are out already.
    // What cannot be read is a reason to look.
    let guarded = of_service && service::removals(NAME).map_or(true, |removals| !removals.is_empty());
    if !edit::is_enabled(&before) && conf.is_none() && link.is_none() && !guarded {
        return Ok(());
    }
    let one = Attempt {
        nginx: &nginx,
        named: &named,
        file: &file,
        prefix: about.prefix.as_deref(),
        before,
        conf,
        link,
        asked: Cell::new(None),
    };
    told.extend(one.follow());
    told.extend(one.mend()?);
    Ok(())
}

/// A configuration that may have to do without Wattlock.
struct Attempt<'a> {
    nginx: &'a Nginx,
    /// By the name that nginx starts with, and links resolved.
    named: &'a Path,
    file: &'a Path,
    prefix: Option<&'a Path>,
    before: String,
    /// The `openssl.cnf` of nginx's own, if there is one, its block idle or not.
    conf: Option<PathBuf>,
    link: Option<PathBuf>,
    /// Whether nginx started with Wattlock after all, once it was asked again right before something was to be written. Each
    /// look at one that gives no answer takes 15 s, and systemd waits for 90.
    asked: Cell<Option<bool>>,
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

impl Mended {
    /// Whether no file was changed for it yet.
    fn is_unwritten(&self) -> bool {
        self.changed.is_empty() && !self.renamed
    }
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

    /// The provider's file, if nginx's own `openssl.cnf` names one that is not there.
    fn gone(&self) -> Option<PathBuf> {
        self.conf.as_deref().and_then(own::gone)
    }

    /// Whether Wattlock may stay: nginx starts with it, and there is a provider.
    fn works(&self) -> bool {
        self.gone().is_none() && self.as_started().is_ok()
    }

    /// The same, asked once, before something is written.
    fn works_after_all(&self) -> bool {
        let works = self.asked.get().unwrap_or_else(|| self.works());
        self.asked.set(Some(works));
        works
    }

    /// Has nginx's own `openssl.cnf` say what the system's says now, if nginx accepts that; what was done, if anything.
    /// So a block wakes that an earlier call left idle for the system's file, and not one whose lines went with it.
    fn follow(&self) -> Option<String> {
        let conf = self.conf.as_deref()?;
        let shown = one_line(conf);
        let mut why = None;
        let change = Change::of(conf, |before| {
            let text = before.unwrap_or_default();
            if own::idle(before)?.is_none()
                && (!edit::is_enabled(&self.before) || own::names_gone(text).is_some())
            {
                return Ok(Some(text.to_owned()));
            }
            match own::anew(text, NAME) {
                Ok(anew) => Ok(Some(anew)),
                // For every program, nginx too: its own block is in nobody's way.
                Err(_) if own::includes_ours(text) => Ok(Some(text.to_owned())),
                Err(error) => {
                    why = Some(program::line(&error));
                    Ok(Some(own::idle(before)?.unwrap_or_else(|| text.to_owned())))
                }
            }
        });
        let made = change.and_then(|change| {
            if change.is_none() {
                return Ok(false);
            }
            let candidate = beside(conf, &text_of(change.after.as_deref().unwrap_or_default()))?;
            // Its lines, too, name the file.
            let lines = beside(self.named, &edit::with_conf(&self.before, conf, candidate.path()))?;
            self.test(lines.path(), Environment::Names(candidate.path())).map_err(anyhow::Error::from)?;
            change.make().map(|()| true)
        });
        match (made, why) {
            (Ok(false), _) => None,
            (Ok(true), None) => Some(format!("the system's openssl.cnf has changed, and {shown} follows it")),
            (Ok(true), Some(why)) => Some(format!(
                "{shown} is without Wattlock, since the system's openssl.cnf has changed: {why}; mend that, and the next \
                 start has it again"
            )),
            (Err(error), why) => Some(format!(
                "{shown} does not follow the system's openssl.cnf: {}",
                [why, Some(program::line(&error))].into_iter().flatten().collect::<Vec<_>>().join("; ")
            )),
        }
    }

    fn mend(&self) -> Result<Option<String>> {
        let gone = self.gone();
        let words = match (self.as_started(), &gone) {
            (Ok(_), Some(provider)) if edit::is_enabled(&self.before) => {
                format!("its provider {} is gone", one_line(provider))
            }
            (Ok(_), _) => return Ok(None),
            // Another reason may be gone in a moment: a port, a name, a full disk. (One that gives no answer is asked again
            // when there is something to write.)
            (Err(refused), _) if !refused.ended && self.works() => return Ok(None),
            (Err(refused), _) => refused.words,
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
            block.is_none() || gone.is_none() && (edit::is_enabled(&self.before) || self.link.is_some());
        // One that ends nginx is the provider or the package's module: the provider, whose block is tried at once, more often.
        let ways = [
            module_alone.then_some((None, false)),
            block.as_ref().map(|block| (Some(block), true)),
            (module_alone && block.is_some() && self.link.is_some()).then_some((None, true)),
        ];
        let (mut last, mut found) = (None, None);
        for (block, with_link) in ways.into_iter().flatten() {
            match self.without(block, with_link)? {
                Ok(mended) => {
                    found = Some((mended, block));
                    break;
                }
                Err(refused) => last = Some(refused),
            }
        }
        let Some((mended, block)) = found else {
            let none = || Refused {
                words: "there is nothing of Wattlock's to take out".into(),
                at: None,
                ended: false,
            };
            return self.left(&words, &last.unwrap_or_else(none));
        };
        let same = mended.text == self.before && mended.changed.is_empty();
        if same && block.is_none() && !mended.renamed {
            // Refused twice, and now no more.
            return Ok(None);
        }
        if mended.is_unwritten() && self.works_after_all() {
            return Ok(None);
        }
        let unwritten = block.and_then(|block| block.make().err());
        if mended.text != self.before
            && let Err(error) = replace(self.file, &self.before, &mended.text)
        {
            // Directives by hand come back only with the lines that load their module.
            if read(self.file)? == self.before {
                self.undo(&mended)?;
            }
            return Err(error);
        }
        Ok(Some(self.told(&words, &mended, block, unwritten)))
    }

    /// What nginx takes without Wattlock's lines, and with this change of its `openssl.cnf`; or why it takes nothing. The
    /// package's link may go for an nginx that is ended, too, if that is wanted.
    fn without(&self, block: Option<&Change>, with_link: bool) -> Result<Result<Mended, Refused>> {
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
            let hopeless = refused.ended && !with_link && self.conf.as_deref().is_some_and(own::is_active);
            // A directive of this text is a matter of this text; the rest is written before nginx can be asked about it.
            let writes = !hopeless && refused.at.as_ref().is_none_or(|(at, _)| at != path);
            if writes && mended.is_unwritten() && self.works_after_all() {
                return Ok(Ok(Mended { text: self.before.clone(), ..Mended::default() }));
            }
            let step = if hopeless { Ok(false) } else { self.step(&refused, path, &mut mended) };
            match step {
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
        match &self.link {
            Some(link) if !mended.renamed => {
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
