//! What `openssl.cnf` says of Wattlock, and the block of lines that `enable` adds and `disable` removes.
//!
//! A section may be opened again and the last of two values wins, so one block at the end of the file says everything
//! and no line that was there is touched. Removing the block therefore gives back the very bytes that were there. The
//! block's last line opens again the section that was open before, so that lines added later mean what they would have.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::conf::{Conf, Entry, continues, written};
use super::settings::{KEYS, Settings};

const BEGIN: &str = "# BEGIN wattlock: ";
/// Whose block in openssl.cnf it is.
const ADDED: &str = "added by `wattlock openssl enable`, removed by `wattlock openssl disable`";
/// Ends the first line of a block before which a line end had to be added.
const NO_END: &str = " (the line before had no end)";
const END: &str = "# END wattlock";
/// Begins each line of a block that is idle: OpenSSL reads none of it, and its settings are kept.
const IDLE: &str = "# idle: ";

/// Names of the sections of ours.
const INIT: &str = "wattlock_init";
const PROVIDERS: &str = "wattlock_providers";
const DEFAULT: &str = "wattlock_default";
const PROPERTIES: &str = "wattlock_properties";
const OURS: &str = "wattlock_sect";
/// The entry, and its section, that nginx's module asks for (nginx/src/wattlock_openssl.c).
const ALONE: &str = "wattlock_alone";

/// What is preferred.
const PREFERENCE: &str = "?provider=wattlock";

/// A file without our block.
pub struct Split {
    /// What is not ours.
    pub rest: Vec<u8>,
    /// Whether there was a block.
    pub found: bool,
}

/// Takes our block out of a file.
///
/// # Errors
/// A block without its end, or two of them: then a person has to look.
pub fn split(text: &[u8]) -> Result<Split> {
    let mut starts = Vec::new();
    let mut ends = Vec::new();
    let mut at = 0;
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let words = line.trim_ascii_end();
        if words.starts_with(b"# BEGIN wattlock") {
            starts.push((at, words.ends_with(NO_END.as_bytes()), line.ends_with(b"\r\n")));
        } else if words == END.as_bytes() {
            ends.push(at + line.len());
        }
        at += line.len();
    }
    match (&starts[..], &ends[..]) {
        ([], []) => Ok(Split { rest: text.to_vec(), found: false }),
        ([(start, added_end, with_return)], [end]) if start < end => {
            let mut rest = text[..*start].to_vec();
            if *added_end && *end == text.len() {
                // The end that was added is the block's own: a lone carriage return before it was there.
                let added: &[u8] = if *with_return { b"\r\n" } else { b"\n" };
                rest.truncate(rest.strip_suffix(added).map_or(rest.len(), <[u8]>::len));
            }
            rest.extend_from_slice(&text[*end..]);
            Ok(Split { rest, found: true })
        }
        _ => bail!(
            "the lines `# BEGIN wattlock` and `# END wattlock` are not one pair; put them in order by hand"
        ),
    }
}

/// A file with our block idle: each line of it is a comment.
///
/// # Errors
/// As [`split`].
pub fn idle(text: &[u8]) -> Result<Vec<u8>> {
    split(text)?;
    Ok(in_block(text, |line| match line.starts_with(IDLE.as_bytes()) {
        true => line.to_vec(),
        false => [IDLE.as_bytes(), line].concat(),
    }))
}

/// A file whose block is not idle.
pub fn awake(text: &[u8]) -> Vec<u8> {
    in_block(text, |line| line.strip_prefix(IDLE.as_bytes()).unwrap_or(line).to_vec())
}

/// A file, with what a change makes of each line between the first and the last one of our block.
fn in_block(text: &[u8], change: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let (mut out, mut inside) = (Vec::with_capacity(text.len()), false);
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        inside &= line.trim_ascii_end() != END.as_bytes();
        match inside {
            true => out.extend(change(line)),
            false => out.extend_from_slice(line),
        }
        inside |= line.starts_with(b"# BEGIN wattlock");
    }
    out
}

/// What our block says of our provider.
pub struct Kept {
    pub module: Option<String>,
    pub settings: Vec<(String, String)>,
}

/// What our block in a file, idle or not, says of our provider: whether or not the rest of the file, which may have
/// changed since, still leads to it.
///
/// # Errors
/// The file cannot be understood.
pub fn kept(text: &[u8]) -> Result<Kept> {
    let conf = Conf::read(&awake(text))?;
    let settings = conf.entries(OURS).into_iter().filter(|entry| !OWN.contains(&entry.name.as_str()));
    let settings = settings.map(|entry| (entry.name.clone(), entry.value.clone())).collect();
    Ok(Kept { module: known(&conf, OURS, "module")?, settings })
}

/// Whether our block in a file, idle or not, has the entry for nginx's module.
pub fn has_alone(text: &[u8]) -> bool {
    let entry = format!("{ALONE} = ");
    awake(text).split(|byte| *byte == b'\n').any(|line| line.starts_with(entry.as_bytes()))
}

/// What a file says of providers, seen from ours.
#[derive(Debug, Default)]
pub struct State {
    /// Section that `openssl_conf` names.
    init: Option<String>,
    /// Section that lists providers.
    providers: Option<String>,
    /// Section with the properties.
    algorithms: Option<String>,
    /// Providers that are activated, by their names.
    pub active: Vec<String>,
    /// Where `default` is described.
    default: Option<String>,
    /// Our provider's section.
    pub section: Option<String>,
    /// Where our provider is named in the list.
    pub place: String,
    /// The module's path.
    pub module: Option<String>,
    /// Everything else in our section.
    pub settings: Vec<Entry>,
    /// The default properties.
    pub properties: String,
    fips_mode: bool,
}

/// What OpenSSL's own entries in a provider's section are called.
const OWN: [&str; 4] = ["module", "activate", "identity", "soft_load"];

impl State {
    /// # Errors
    /// A value that decides and has a variable in it.
    pub fn of(conf: &Conf) -> Result<State> {
        let mut state = State { init: known(conf, "default", "openssl_conf")?, ..State::default() };
        let Some(init) = &state.init else { return Ok(state) };
        state.providers = known(conf, init, "providers")?;
        state.algorithms = known(conf, init, "alg_section")?;
        for entry in state.providers.as_deref().map(|section| conf.entries(section)).unwrap_or_default() {
            let described = plain(entry)?;
            let name =
                known(conf, &described, "identity")?.unwrap_or_else(|| after_dot(&entry.name).to_owned());
            if known(conf, &described, "activate")?.is_some_and(|value| is_yes(&value)) {
                state.active.push(name.clone());
            }
            match name.as_str() {
                "default" => state.default = Some(described),
                "wattlock" => {
                    state.place.clone_from(&entry.place);
                    state.section = Some(described);
                }
                _ => {}
            }
        }
        if let Some(section) = &state.section {
            state.module = known(conf, section, "module")?;
            let settings =
                conf.entries(section).into_iter().filter(|entry| !OWN.contains(&entry.name.as_str()));
            state.settings = settings.cloned().collect();
        }
        if let Some(section) = &state.algorithms {
            state.properties = known(conf, section, "default_properties")?.unwrap_or_default();
            state.fips_mode = known(conf, section, "fips_mode")?.is_some_and(|value| is_yes(&value));
        }
        Ok(state)
    }

    /// Whether the provider is activated and preferred.
    pub fn enabled(&self) -> bool {
        self.active.iter().any(|name| name == "wattlock") && self.preferred()
    }

    /// Whether the default properties prefer ours.
    pub fn preferred(&self) -> bool {
        clauses(&self.properties).any(|clause| clause == PREFERENCE || clause == "provider=wattlock")
    }

    /// Whether only validated implementations are used, which ours are not.
    pub fn fips(&self) -> bool {
        clauses(&self.properties).any(|clause| clause == "fips" || clause == "fips=yes")
    }

    /// The default properties with ours preferred.
    fn merged(&self) -> Result<String> {
        if self.preferred() {
            return Ok(self.properties.clone());
        }
        if let Some(other) = clauses(&self.properties).find(|clause| property(clause) == "provider") {
            bail!("default_properties already names a provider: {other}; only one can be preferred");
        }
        let fips = (self.fips_mode && !clauses(&self.properties).any(|clause| property(clause) == "fips"))
            .then_some("fips=yes");
        let parts = [fips.unwrap_or_default(), self.properties.trim(), PREFERENCE];
        Ok(parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(","))
    }
}

fn clauses(properties: &str) -> impl Iterator<Item = &str> {
    properties.split(',').map(str::trim).filter(|clause| !clause.is_empty())
}

fn property(clause: &str) -> &str {
    clause.trim_start_matches(['?', '-']).split(['=', '!']).next().unwrap_or_default().trim()
}

fn after_dot(name: &str) -> &str {
    name.split_once('.').map_or(name, |(_, rest)| rest)
}

fn is_yes(value: &str) -> bool {
    ["1", "yes", "true", "on"].iter().any(|yes| value.eq_ignore_ascii_case(yes))
}

fn plain(entry: &Entry) -> Result<String> {
    if entry.computed {
        bail!("{}: {} has a variable in it, so what it means is not known here", entry.place, entry.name);
    }
    Ok(entry.value.clone())
}

fn known(conf: &Conf, section: &str, name: &str) -> Result<Option<String>> {
    conf.get(section, name).map(plain).transpose()
}

/// What the new block is to say.
pub struct Wish<'a> {
    /// The module's path.
    pub module: &'a Path,
    /// Settings, checked.
    pub settings: &'a [(String, String)],
    /// Whether there is also an entry with the provider and the properties alone: for nginx's module, when OpenSSL has
    /// read another file.
    pub alone: bool,
}

/// Checks settings against those that the provider knows.
///
/// # Errors
/// The first that the provider would not take.
pub fn check_settings(settings: &[(String, String)]) -> Result<()> {
    let mut checked = Settings::default();
    for (key, value) in settings {
        known_key(key)?;
        checked.set(key, value)?;
        written(value)?;
    }
    Ok(())
}

/// # Errors
/// A key the provider does not have, with the one that was meant, if it is near.
pub fn known_key(key: &str) -> Result<()> {
    let names: Vec<&str> = KEYS.iter().filter_map(|(name, _)| name.to_str().ok()).collect();
    if names.contains(&key) {
        return Ok(());
    }
    match names.iter().filter(|name| distance(name, key) <= 2).min_by_key(|name| distance(name, key)) {
        Some(near) => bail!("no setting is called {key}; {near} is"),
        None => bail!("no setting is called {key}; there are {}", names.join(", ")),
    }
}

/// How many letters differ between two words (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.chars().enumerate() {
            let best = (corner + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            corner = std::mem::replace(&mut row[j + 1], best);
        }
    }
    row.last().copied().unwrap_or(0)
}

/// A file with our block at its end.
///
/// # Errors
/// What stands in the way, with its line.
pub fn with_block(rest: &[u8], wish: &Wish<'_>) -> Result<Vec<u8>> {
    let conf = Conf::read(rest)?;
    let state = State::of(&conf)?;
    if let Some(section) = &state.section {
        bail!(
            "{}: wattlock is listed by hand already, in [{section}]; take that out first, or leave it so and see `wattlock openssl check`",
            state.place
        );
    }
    let last_line = rest.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty()).unwrap_or_default();
    if continues(&String::from_utf8_lossy(last_line.trim_ascii_end())) {
        bail!("the last line ends in a backslash: whatever is added would belong to it");
    }
    let lines = block(&conf, &state, wish)?;
    let text = appended(rest, ADDED, &lines);
    let result = State::of(&Conf::read(&text)?)?;
    let as_wished = result.enabled() && result.module.as_deref().map(Path::new) == Some(wish.module);
    if !as_wished {
        bail!("what this file says otherwise would keep Wattlock from being used");
    }
    Ok(text)
}

/// A file without such a block, with a block of lines at its end, which [`split`] takes out again. `whose` is for people,
/// in one line.
pub fn appended(rest: &[u8], whose: &str, lines: &[String]) -> Vec<u8> {
    let end = if rest.windows(2).any(|two| two == b"\r\n") { "\r\n" } else { "\n" };
    let unfinished = rest.last().is_some_and(|byte| *byte != b'\n');
    let mut text = rest.to_vec();
    if unfinished {
        text.extend_from_slice(end.as_bytes());
    }
    let begin = format!("{BEGIN}{whose}{}", if unfinished { NO_END } else { "" });
    for line in [&*begin].into_iter().chain(lines.iter().map(String::as_str)).chain([END]) {
        text.extend_from_slice(line.as_bytes());
        text.extend_from_slice(end.as_bytes());
    }
    text
}

fn block(conf: &Conf, state: &State, wish: &Wish<'_>) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    let section = |lines: &mut Vec<String>, name: &str, entries: &[(&str, &str)]| -> Result<()> {
        if !entries.is_empty() {
            lines.push(format!("[{name}]"));
        }
        for (key, value) in entries {
            lines.push(format!("{key} = {}", written(value)?));
        }
        Ok(())
    };
    let own = |name: &'static str| {
        if conf.has(name) { bail!("there is a section [{name}] that is not ours") } else { Ok(name) }
    };
    let init = match &state.init {
        Some(init) => init,
        None => {
            section(&mut lines, "default", &[("openssl_conf", own(INIT)?)])?;
            INIT
        }
    };
    let mut entries = Vec::new();
    let providers = match &state.providers {
        Some(providers) => providers,
        None => {
            entries.push(("providers", own(PROVIDERS)?));
            PROVIDERS
        }
    };
    let algorithms = match &state.algorithms {
        Some(algorithms) => algorithms,
        None => {
            entries.push(("alg_section", own(PROPERTIES)?));
            PROPERTIES
        }
    };
    section(&mut lines, init, &entries)?;
    // Where no provider is activated by name, OpenSSL activates its default one, until one is.
    let mut entries = Vec::new();
    let default = match &state.default {
        _ if !state.active.is_empty() => None,
        Some(described) => Some(described.as_str()),
        None => {
            entries.push(("default", own(DEFAULT)?));
            Some(DEFAULT)
        }
    };
    entries.push(("wattlock", own(OURS)?));
    section(&mut lines, providers, &entries)?;
    if let Some(default) = default {
        section(&mut lines, default, &[("activate", "1")])?;
    }
    let module = wish.module.to_str().context("the module's path is not UTF-8")?;
    let settings = wish.settings.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let entries: Vec<_> = [("module", module), ("activate", "1")].into_iter().chain(settings).collect();
    section(&mut lines, OURS, &entries)?;
    let merged = state.merged()?;
    if merged != state.properties {
        section(&mut lines, algorithms, &[("default_properties", &merged)])?;
    }
    if wish.alone {
        section(&mut lines, "default", &[(ALONE, own(ALONE)?)])?;
        section(&mut lines, ALONE, &[("providers", providers), ("alg_section", algorithms)])?;
    }
    lines.push(format!("[{}]", conf.last));
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(text: &str) -> String {
        let wish =
            Wish { module: Path::new("/w.so"), settings: &[("policy".into(), "eeca".into())], alone: false };
        String::from_utf8(with_block(text.as_bytes(), &wish).unwrap()).unwrap()
    }

    fn refused(text: &str) -> String {
        let wish = Wish { module: Path::new("/w.so"), settings: &[], alone: false };
        with_block(text.as_bytes(), &wish).unwrap_err().to_string()
    }

    fn state(text: &str) -> State {
        State::of(&Conf::read(text.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn every_shape_of_file_is_enabled_and_comes_back_byte_for_byte() {
        let shapes = [
            "",
            "# nothing",
            "a = b\r\n[x]\r\nc = d\r\n",
            "openssl_conf = i\n",
            "openssl_conf = i\n[i]\n",
            "openssl_conf = i\n[i]\nproviders = p\n[p]\n",
            "openssl_conf = i\n[i]\nproviders = p\n[p]\ndefault = d\n[d]\n# activate = 1\n",
            "openssl_conf = i\n[i]\nalg_section = a\n[a]\ndefault_properties = fips=yes",
        ];
        for shape in shapes {
            let with = added(shape);
            let state = state(&with);
            assert!(state.enabled() && state.active.contains(&"default".to_owned()), "{with}");
            assert!(with.starts_with(shape), "{with}");
            assert_eq!(split(with.as_bytes()).unwrap().rest, shape.as_bytes(), "{with}");
            assert!(!with.contains('\r') || with.lines().count() == with.matches("\r\n").count(), "{with:?}");
        }
    }

    #[test]
    fn a_lone_carriage_return_comes_back() {
        for text in ["a = 1\r", "a = 1\r\r", "\r", "a = 1\r\nb = 2\r", "a = 1\r\n\r"] {
            let with = added(text);
            assert_eq!(split(with.as_bytes()).unwrap().rest, text.as_bytes(), "{with:?}");
        }
    }

    #[test]
    fn what_was_active_stays_and_nothing_else_becomes_so() {
        let fips = "openssl_conf = i\n[i]\nproviders = p\n[p]\nbase = b\nfips = b\n[b]\nactivate = 1\n";
        assert_eq!(state(&added(fips)).active, ["base", "fips", "wattlock"]);
        assert_eq!(state(&added("")).active, ["default", "wattlock"]);
    }

    #[test]
    fn properties_that_are_there_are_kept() {
        let text = |a: &str| format!("openssl_conf = i\n[i]\nalg_section = a\n[a]\n{a}\n");
        assert_eq!(
            state(&added(&text("default_properties = fips=yes"))).properties,
            "fips=yes,?provider=wattlock"
        );
        assert_eq!(state(&added(&text("fips_mode = yes"))).properties, "fips=yes,?provider=wattlock");
        assert_eq!(state(&added(&text("default_properties = ?provider=wattlock"))).properties, PREFERENCE);
        assert!(refused(&text("default_properties = ?provider=other")).contains("?provider=other"));
    }

    #[test]
    fn lines_added_later_belong_where_they_would_have() {
        let with = added("openssl_conf = i\n[i]\n[x]\n") + "later = 1\n";
        assert_eq!(Conf::read(with.as_bytes()).unwrap().get("x", "later").unwrap().value, "1");
        assert_eq!(split(with.as_bytes()).unwrap().rest, b"openssl_conf = i\n[i]\n[x]\nlater = 1\n");
        let with = added("a = 1") + "later = 1\n";
        assert_eq!(split(with.as_bytes()).unwrap().rest, b"a = 1\nlater = 1\n", "they do not run together");
    }

    #[test]
    fn what_a_person_must_decide_is_refused() {
        assert!(refused("openssl_conf = $x\n").contains("line 1"));
        assert!(refused("a = b\\\n").contains("backslash"));
        assert!(refused("[wattlock_sect]\n").contains("not ours"));
        let by_hand = "openssl_conf = i\n[i]\nproviders = p\n[p]\nwattlock = w\n[w]\nactivate = 1\n";
        assert!(refused(by_hand).starts_with("line 5"));
        let twice = added(&added("").replace("wattlock_", "other_").replace("wattlock = ", "x = "));
        assert!(split(twice.as_bytes()).is_err());
        assert!(split(b"# END wattlock\n").is_err());
    }

    #[test]
    fn a_misspelt_setting_is_told_its_name() {
        assert!(known_key("polcy").unwrap_err().to_string().contains("policy is"));
        assert!(known_key("colour").unwrap_err().to_string().contains("hold-us"));
        assert!(check_settings(&[("hold-us".into(), "soon".into())]).is_err());
    }
}
