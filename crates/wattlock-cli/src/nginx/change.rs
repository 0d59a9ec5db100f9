//! `enable` and `disable`: the lines of `nginx.conf`, and with them the files by which nginx's service has an
//! `openssl.cnf` of its own and is guarded. All of it is shown and asked for once, and all of it is undone if nginx
//! refuses.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use wattlock_door::one_line;
use wattlock_shell::nginx::place::{Nginx, Parts};
use wattlock_shell::nginx::server::OpenSsl;
use wattlock_shell::parts::{self, First};
use wattlock_shell::setup::Choice;

use super::check::{Check, check, probe};
use super::file::{
    Changed, Environment, Refused, back_up, backup_of, beside, bytes, put_back, read, replace, set_aside,
    test, text,
};
use super::{About, Change, Enable, NAME, USUAL, edit, groups, guard, libcrypto, lock, warn_of_groups};
use crate::ask;
use crate::changes::{self, make_all, undo_all};
use crate::openssl::{own, place, unified};
use crate::service::{self, Service};
use crate::trusted;

/// What is changed together.
struct Set<'a> {
    nginx: &'a Nginx,
    /// By the name that nginx starts with, and links resolved.
    named: &'a Path,
    file: &'a Path,
    before: &'a str,
    after: &'a str,
    /// Files that are there before `nginx.conf` names them, and how they are tried.
    first: Vec<changes::Change>,
    tried: &'a dyn Fn() -> Result<()>,
    /// Files that guard its start, so that a call that is cut off leaves no lines without a guard.
    guard: Vec<changes::Change>,
    /// Files that follow it.
    last: Vec<changes::Change>,
    /// How nginx must accept it.
    environment: Environment<'a>,
    /// Whether lines are taken out.
    out: bool,
}

pub(super) fn enable(command: &Enable, choice: &Choice) -> Result<()> {
    let about = &command.change.about;
    let nginx = about.places.nginx()?;
    if let Some(why) = nginx.obstacle()? {
        bail!("{}: {why}", nginx.program.display());
    }
    let (named, file) = (about.named(&nginx)?, about.file(&nginx)?);
    // What the guard demands later.
    guard::may_change(&named)?;
    ensure!(
        std::fs::metadata(&file)?.nlink() == 1,
        "{}: it has another name, a hard link, which would keep the former text: take that away first",
        one_line(&file)
    );
    guard::ensure_not_renamed(&named)?;
    let before = read(&file)?;
    let service = Service::of(NAME, &nginx.program);
    let of_service = about.is_of_the_service(&nginx, &file);
    if of_service || about.is_usual(&nginx, &file) {
        starts_with(&service, &file)?;
    }
    if of_service && !command.all_programs {
        libcrypto::reads_the_systems(&nginx)?;
    }
    let alone = of_service && !command.all_programs && !for_all_already()?;
    if !alone {
        about.refuse_provider()?;
    }
    let loaded = about.loaded(&nginx, &named, &before);
    if let Some((by, module)) = loaded.as_ref().filter(|(by, _)| of_service && !guard::is_link(&named, by)) {
        bail!(
            "{} loads {} already, and the guard could not take it out: remove that line, `enable` writes one of its own",
            one_line(by),
            one_line(module)
        );
    }
    for place in guard::out_of_reach(&named) {
        eprintln!(
            "wattlock: warning: {place}: the guard cannot take this directive out, and nginx would not start without \
             the module"
        );
    }
    let module = match &loaded {
        Some((by, _)) if about.places.module.is_some() => {
            bail!("--module does nothing here: {} loads a module already", by.display())
        }
        Some((_, module)) => module.clone(),
        None => about.places.module(&nginx, First::Installed)?,
    };
    let provider = alone.then(|| place::module_to_stay(about.places.provider.as_deref())).transpose()?;
    for part in [Some(&module), provider.as_ref()].into_iter().flatten() {
        trusted::only_by_root(part)?;
    }
    let lost = [
        (Some(&module), "nginx does without Wattlock, if it is guarded, or does not start"),
        (provider.as_ref(), "nginx does without Wattlock"),
    ];
    for (part, lost) in lost.into_iter().filter_map(|(part, lost)| Some((part?, lost))) {
        parts::warnings(part, lost).iter().for_each(|warning| eprintln!("wattlock: {warning}"));
    }
    let conf = alone.then(|| own::path(NAME));
    let environment = !alone && std::env::var_os("OPENSSL_CONF").is_some();
    let wish = edit::Wish {
        module: loaded.is_none().then_some(module.as_path()),
        conf: conf.as_deref(),
        environment,
        hybrid: command.hybrid,
    };
    let after = edit::enabled(&before, &wish)
        .map_err(|error| http_elsewhere(&named, &before, &module).unwrap_or(error))
        .with_context(|| file.display().to_string())?;
    let [first, guard, last] = match of_service {
        true => beside_the_lines(&service, &nginx, &named, conf.as_deref().zip(provider.as_deref()))?,
        false => Default::default(),
    };
    let tried = || {
        conf.as_deref().zip(provider.as_deref()).map_or(Ok(()), |(conf, provider)| own::tried(conf, provider))
    };
    let set = Set {
        nginx: &nginx,
        named: &named,
        file: &file,
        before: &before,
        after: &after,
        first,
        tried: &tried,
        guard,
        last,
        environment: if alone { Environment::None } else { Environment::AsHere },
        out: false,
    };
    let done = command.change.carry_out(&set)?;
    let only_restarts = command.restart && command.change.yes && !command.change.dry_run;
    if done.is_none() && !only_restarts {
        return Ok(());
    }
    // First of all: what is said may have no reader.
    match &done {
        Some(written) if of_service => {
            service.settle_or(command.restart, || set.take_back(written))?;
        }
        None if of_service => service.settle(command.restart)?,
        _ => {}
    }
    if let Some(written) = done {
        written.tell(&set)?;
    }
    for line in groups::lines(&named).iter().filter(|line| command.hybrid && !line.ours) {
        say!("{line} is as it was");
    }
    if !of_service {
        say!(
            "{} is not what the service of this machine's nginx starts with: nothing guards its start",
            one_line(&file)
        );
    }
    if !alone {
        return said_of_all(&nginx, module, environment);
    }
    if !service.has_unit() && !service.has_script() {
        say!(
            "no service starts {}: nginx.conf names all that it needs, but nothing guards its start",
            nginx.program.display()
        );
    }
    if !command.restart {
        say!("to take effect: {}", service.restart());
    }
    check(&Check { about: About { config: Some(named), ..about.clone() }, status: None, json: false }, choice)
}

/// Whether the system's `openssl.cnf` has Wattlock for every program, which is then said.
fn for_all_already() -> Result<bool> {
    let already = own::is_for_all()?;
    if already {
        say!("the system's openssl.cnf has Wattlock for every program: nginx takes it from there");
    }
    Ok(already)
}

/// Refuses a configuration that nginx is built for and its unit does not start with.
fn starts_with(service: &Service, file: &Path) -> Result<()> {
    if let Some(prefix) = service.option("-p") {
        bail!(
            "{NAME}.service starts nginx with -p {prefix}: say --prefix and --config, or take that out of the unit"
        );
    }
    if let Some(other) =
        service.option("-c").filter(|other| Path::new(other).canonicalize().ok().as_deref() != Some(file))
    {
        bail!("{NAME}.service starts nginx with -c {other}: say --config with that file");
    }
    Ok(())
}

/// What the lines need, what guards them, and what follows them; with an `openssl.cnf` of its own and its provider, or without.
fn beside_the_lines(
    service: &Service,
    nginx: &Nginx,
    named: &Path,
    own: Option<(&Path, &Path)>,
) -> Result<[Vec<changes::Change>; 3]> {
    if let (Some(_), Some(place)) = (own, service.sets()?) {
        bail!(
            "{} gives nginx another OPENSSL_CONF: take that line out, or turn Wattlock on in that file and say \
             --all-programs",
            one_line(&place)
        );
    }
    let guard = service::this_program().and_then(|program| {
        let (nginx, named) = (service::word(&nginx.program)?, service::word(named)?);
        Ok(format!("{program} nginx guard --nginx {nginx} --config {named}"))
    });
    if let Err(why) = &guard {
        eprintln!("wattlock: warning: no guard before a start: {why:#}");
    }
    let wish = service::Wish { conf: own.map(|(conf, _)| conf), guard: guard.as_deref().ok() };
    let guard = service.changes(&wish)?;
    let (mut first, mut last) = (Vec::new(), Vec::new());
    match own {
        Some((conf, provider)) => {
            let with = |before: Option<&[u8]>| own::with(before, NAME, provider).map(Some);
            first.push(changes::Change::of(conf, with)?);
        }
        None => last.push(changes::Change::of(&own::path(NAME), own::without)?),
    }
    Ok([first, guard, last])
}

/// What there is to do if the provider is left to the system's `openssl.cnf`.
fn said_of_all(nginx: &Nginx, module: PathBuf, environment: bool) -> Result<()> {
    let parts = Parts { module, provider: PathBuf::new(), settings: Vec::new() };
    match probe(nginx, OpenSsl::AsInstalled(&parts)) {
        Ok(status) if status["active"] == true => {
            say!(
                "to take effect: restart nginx (`nginx -s reload` is enough where its OpenSSL had the provider at its \
                 start)"
            );
        }
        Ok(status) => {
            say!("not yet active: {}; then restart nginx", status["why"].as_str().unwrap_or("unknown"))
        }
        Err(error) => say!("could not be tried: {error:#}"),
    }
    if environment {
        say!("OPENSSL_CONF is set here; nginx's own service must set it, too");
    }
    Ok(())
}

pub(super) fn disable(change: &Change) -> Result<()> {
    let about = &change.about;
    about.refuse_provider()?;
    ensure!(
        about.places.module.is_none(),
        "--module does nothing for `wattlock nginx disable`: it takes out whatever `enable` added"
    );
    let nginx = match about.places.nginx() {
        Ok(nginx) => nginx,
        Err(error) => return without_nginx(change, error),
    };
    let (named, file) = (about.named(&nginx)?, about.file(&nginx)?);
    let before = read(&file)?;
    let last = match about.has_the_guard(&nginx, &file) {
        true => service::removals(NAME)?,
        false => Vec::new(),
    };
    let service = Service::of(NAME, &nginx.program);
    let set = Set {
        nginx: &nginx,
        named: &named,
        file: &file,
        before: &before,
        after: &edit::disabled(&before),
        first: Vec::new(),
        tried: &|| Ok(()),
        guard: Vec::new(),
        last,
        environment: if edit::conf(&before).is_some() { Environment::None } else { Environment::AsHere },
        out: true,
    };
    if let Some(written) = change.carry_out(&set)? {
        if !set.last.is_empty() {
            service::reload()?;
        }
        written.tell(&set)?;
        service::name_what_stays(&set.last, NAME)?;
        match edit::conf(&before) {
            Some(_) => say!("to take effect: {}", service.restart()),
            None => say!("to take effect: nginx -s reload"),
        }
    }
    warn_of_groups(&nginx, &named);
    Ok(())
}

/// What is left of `enable` when nginx is gone: its configuration may still be there, and cannot be tested.
fn without_nginx(change: &Change, error: anyhow::Error) -> Result<()> {
    let plain = change.about.config.is_none() && change.about.places.nginx.is_none();
    let mut all = if plain { service::removals(NAME)? } else { Vec::new() };
    let file = Path::new(USUAL);
    if plain && read(file).is_ok_and(|text| edit::is_enabled(&text)) {
        let lines = |before: Option<&[u8]>| Ok(before.map(|before| bytes(&edit::disabled(&text(before)))));
        all.push(changes::Change::of(file, lines)?);
    }
    if all.is_empty() {
        return Err(error);
    }
    for change in &all {
        put!("{}", change.shown());
    }
    if !change.dry_run && ask::agreed(change.yes)? {
        let _lock = lock::taken()?;
        make_all(&all)?;
        service::reload()?;
        service::name_what_stays(&all, NAME)?;
        let kept = read(file).ok().and_then(|text| backup_of(file, &text)).filter(|_| plain);
        kept.map(std::fs::remove_file).transpose()?;
        say!("nothing of Wattlock is left in nginx's configuration; there is no nginx to test it");
    }
    Ok(())
}

/// How to go on if the `http` block is in an included file.
fn http_elsewhere(file: &Path, text: &str, module: &Path) -> Option<anyhow::Error> {
    if edit::has_http(text) {
        return None;
    }
    let folder = file.parent()?;
    let mut files = edit::included(text).into_iter().flat_map(|pattern| groups::included(folder, &pattern));
    let other = files.find(|path| read(path).is_ok_and(|text| edit::has_http(&text)))?;
    Some(anyhow::anyhow!(
        "its http block is in {}, which it includes: write `load_module \"{}\";` at the top of {} and `wattlock on;` \
         into that block by hand",
        other.display(),
        module.display(),
        file.display()
    ))
}

impl Change {
    /// Shows a set of changes, asks, makes them, lets nginx test them, and undoes them if nginx refuses. What was there
    /// is kept beside `nginx.conf` when something is added; when that is taken out again, the copy goes if nothing else
    /// has changed. `None`: nothing was changed.
    fn carry_out(&self, set: &Set<'_>) -> Result<Option<Written>> {
        let others = set.first.iter().chain(&set.guard).chain(&set.last);
        if set.before == set.after && others.clone().all(changes::Change::is_none) {
            say!("{}: nothing to change", set.file.display());
            return Ok(None);
        }
        for change in others {
            put!("{}", change.shown());
        }
        if set.before != set.after {
            put!("{}", edit::diff(set.file, set.before, set.after));
        }
        if self.dry_run || !ask::agreed(self.yes)? {
            return Ok(None);
        }
        let _lock = lock::taken()?;
        make_all(&set.first)?;
        let tried = (set.tried)().and_then(|()| self.candidate(set)).and_then(|()| make_all(&set.guard));
        if let Err(error) = tried {
            undo_all(&set.first)?;
            return Err(error);
        }
        // Before the lines: a call that is cut off behind this leaves a guard that systemd knows.
        let known = if set.guard.iter().all(changes::Change::is_none) { Ok(()) } else { service::reload() };
        let written = match known.and_then(|()| self.lines(set)) {
            Ok(written) => written,
            Err(error) => {
                // Lines that could not be taken back keep their guard.
                if read(set.file)? == set.before {
                    set.undo()?;
                }
                return Err(error);
            }
        };
        if let Err(error) = make_all(&set.last) {
            written.undo()?;
            set.undo()?;
            return Err(error.context(format!("{} is as it was", set.file.display())));
        }
        Ok(Some(written))
    }

    /// Lets nginx test what is to be added, beside the file.
    fn candidate(&self, set: &Set<'_>) -> Result<()> {
        if set.out || set.before == set.after {
            return Ok(());
        }
        let candidate = beside(set.named, set.after)?;
        self.tested(set, candidate.path()).map_err(|refused| self.refused(set, refused))
    }

    fn tested(&self, set: &Set<'_>, file: &Path) -> Result<(), Refused> {
        test(set.nginx, file, self.about.prefix.as_deref(), set.environment).map(|_| ())
    }

    /// What is said if nginx refuses, and nothing has changed.
    fn refused(&self, set: &Set<'_>, refused: Refused) -> anyhow::Error {
        let mut words = said(refused);
        let works = || {
            beside(set.named, &edit::disabled(set.before))
                .is_ok_and(|stock| self.tested(set, stock.path()).is_ok())
        };
        if !set.out && !works() {
            words.push_str("; so it does without Wattlock: mend that first");
        }
        anyhow::anyhow!("{} is as it was: {words}", set.file.display())
    }

    /// Changes `nginx.conf`.
    fn lines(&self, set: &Set<'_>) -> Result<Written> {
        let file = set.file;
        let mut written = Written::default();
        if set.before == set.after {
            return Ok(written);
        }
        // One that nginx refuses already is no worse without our lines.
        let was_refused = set.out && self.tested(set, set.named).is_err();
        if !set.out {
            written.backup = Some(back_up(file, &edit::disabled(set.before))?);
        }
        written.changed.push((file.to_owned(), set.before.to_owned(), set.after.to_owned()));
        let mut result = replace(file, set.before, set.after)
            .map_err(Refused::from)
            .and_then(|()| self.tested(set, set.named));
        // Without the module its directives are unknown, wherever a person wrote them: the site must come up all the
        // same.
        while set.out && written.changed.len() < 100 {
            let Err(Refused { words, at: Some((other, line)), .. }) = result else { break };
            result = set_aside(&other, line)
                .map(|changed| {
                    written.changed.push(changed);
                    written.aside.push(line);
                })
                .map_err(|why| Refused { words: format!("{words}; {why:#}"), at: None, ended: false })
                .and_then(|()| self.tested(set, set.named));
        }
        match result {
            Ok(()) => {}
            Err(refused) if was_refused => written.refused = Some(said(refused)),
            Err(refused) => {
                written.undo()?;
                return Err(self.refused(set, refused));
            }
        }
        Ok(written)
    }
}

impl Set<'_> {
    /// Takes back what was made before the lines, which are out.
    fn undo(&self) -> Result<()> {
        let known =
            || if self.guard.iter().all(changes::Change::is_none) { Ok(()) } else { service::reload() };
        undo_all(&self.guard).and(undo_all(&self.first)).and_then(|()| known())
    }

    /// Takes back all of it.
    fn take_back(&self, written: &Written) -> Result<()> {
        // Another call that holds it is no reason to leave nginx down.
        let _lock = lock::taken().ok();
        let last = undo_all(&self.last);
        written.undo()?;
        self.undo().and(last)
    }
}

/// A refusal, and what helps.
fn said(refused: Refused) -> String {
    match refused.at {
        Some((path, line)) => {
            format!("{}; take line {line} of {} out by hand", refused.words, path.display())
        }
        None if groups::is_about(&refused.words) => format!("{}; {}", refused.words, groups::remedy()),
        None => refused.words,
    }
}

/// What [`Change::lines`] has written.
#[derive(Default)]
struct Written {
    changed: Vec<Changed>,
    /// The lines of what was set aside, in the second change and those behind it.
    aside: Vec<usize>,
    /// Why nginx refuses the result, as it did what was there.
    refused: Option<String>,
    /// The copy of what was there, and whether it was made now.
    backup: Option<(PathBuf, bool)>,
}

impl Written {
    fn undo(&self) -> Result<()> {
        put_back(&self.changed).with_context(|| match &self.backup {
            Some((backup, _)) => format!("what was there before is in {}", backup.display()),
            None => "nginx.conf".to_owned(),
        })?;
        if let Some((backup, true)) = &self.backup {
            let _ = std::fs::remove_file(backup);
        }
        Ok(())
    }

    fn tell(&self, set: &Set<'_>) -> Result<()> {
        let file = set.file;
        for ((path, before, after), line) in self.changed.iter().skip(1).zip(&self.aside) {
            put!("{}", unified(path, &bytes(before), &bytes(after)));
            say!(
                "{}, line {line}: a directive of Wattlock's, now a comment: bring it back by hand",
                path.display()
            );
        }
        if let Some(words) = &self.refused {
            say!("nginx -t refused the configuration with Wattlock, and refuses it without: {words}");
        }
        if let Some((backup, _)) = &self.backup {
            say!("nginx -t accepts it; what was there before is in {}", backup.display());
            return Ok(());
        }
        if !set.out {
            return Ok(());
        }
        // If nothing was changed, the guard took the lines out.
        let gone = backup_of(file, set.after).is_some_and(|backup| std::fs::remove_file(&backup).is_ok());
        match (self.changed.is_empty(), gone) {
            (true, _) => {}
            (false, true) => say!("{} is what it was, and the backup is gone", file.display()),
            (false, false) => say!("{} is without Wattlock", file.display()),
        }
        Ok(())
    }
}
