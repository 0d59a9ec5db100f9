//! What an operator may set in the provider's section of `openssl.cnf`, checked before anything starts.
//!
//! The command line compiles this very file in (`wattlock openssl`), so that it knows the settings without linking
//! libcrypto: nothing of this crate may be imported here.
//!
//! ```text
//! [wattlock_sect]
//! module = /usr/lib/wattlock/libwattlock_provider.so
//! activate = 1
//! policy = adaptive
//! objective = performance
//! ```

use std::time::Duration;

use wattlock::policy::{GatherRule, NAMES, Objective, Settings as PolicySettings};

/// Everything that can be set. Names of parameters are in [`KEYS`].
#[derive(Debug, Clone)]
pub struct Settings {
    /// Which rule chooses an engine.
    pub policy: String,
    /// What it minimises.
    pub objective: Objective,
    /// Settings of the policy.
    pub thresholds: PolicySettings,
    /// Engines that may be used, by name; all if empty.
    pub engines: Vec<String>,
    /// An emulated accelerator to add, by the model's name or file: for trying things out.
    pub emulate: Option<String>,
    /// Groups of algorithms to offer; by default those in which Wattlock is faster here.
    pub algorithms: Option<Vec<String>>,
    /// Which operations in jobs pause.
    pub pause: Pause,
    /// When a loop that asks lets a batch go; [`Settings::gather_rule`] reads it.
    pub poll: String,
    /// The longest time a request waits for batch-mates; by default it depends on whether the application's loop asks.
    pub hold: Option<Duration>,
    /// How long an engine may take before the CPU does the request instead.
    pub give_up: Duration,
    /// Which results are verified.
    pub verify: Verify,
    /// Threads that compress large responses on other cores; by default as many as there are cores. 0: none.
    pub cores: Option<usize>,
    /// Whether counters are published for `wattlock status`.
    pub telemetry: bool,
}

/// Which operations in jobs pause. A program may drop a connection without ending its job, and then each job that has
/// paused is lost: so unless told otherwise only jobs of programs that poll do, which know of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// Those of programs that poll, if batches can gain something here.
    Auto,
    /// Those of any program, if batches can gain something here.
    Jobs,
    /// All, even if nothing here gains by batches.
    Always,
}

/// Which results are verified before they leave. RSA's always are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    /// Those of accelerators: ECDSA signatures all, others by sample.
    Accelerators,
    /// Those, and every ECDSA signature that a CPU engine makes.
    Signatures,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            policy: "adaptive".to_owned(),
            objective: Objective::default(),
            thresholds: PolicySettings::default(),
            engines: Vec::new(),
            emulate: None,
            algorithms: None,
            pause: Pause::Auto,
            poll: "adaptive".to_owned(),
            hold: None,
            give_up: Duration::from_millis(200),
            verify: Verify::Accelerators,
            cores: None,
            telemetry: true,
        }
    }
}

/// Names of the parameters, each with what it takes.
pub const KEYS: &[(&std::ffi::CStr, &str)] = &[
    (
        c"policy",
        "name of a policy: adaptive (default), instruction, software, offload, eeca, aca-sds, qweb, lecpaes, eep",
    ),
    (c"objective", "performance (default), balanced or energy"),
    (c"thresholds", "settings of the policy, key=value, several joined by commas"),
    (c"engines", "engines that may be used, joined by commas; all by default"),
    (c"emulate", "adds an emulated accelerator: a model's name or a file with one; for trying things out"),
    (
        c"algorithms",
        "what to offer, joined by commas: gcm, cbc, cbc-hmac, ctr, xts, rsa, ec, x25519, ml-kem, kdf; what is faster by default",
    ),
    (
        c"pause",
        "auto (default): jobs of programs that poll (nginx) pause if batches can gain something; jobs: those of any program, which must end each; always: even if nothing gains",
    ),
    (
        c"poll",
        "when a batch goes, for applications whose loop asks: adaptive (default), heuristic, threshold [asymmetric=48] [timer=5ms]",
    ),
    (
        c"hold-us",
        "microseconds a request may wait for batch-mates, 0 to 10000; by default 5000 if the application polls, else 1000",
    ),
    (
        c"give-up-ms",
        "milliseconds an engine may take before the CPU does its request, 1 to 60000; 200 by default",
    ),
    (
        c"verify",
        "accelerators (default): their ECDSA signatures are verified before they leave; signatures: those of CPU engines, too, which costs a verification each",
    ),
    (
        c"cores",
        "threads that compress large responses on idle cores, 0 (none) to 256; as many as there are cores by default",
    ),
    (c"telemetry", "yes (default) or no: counters for `wattlock status`"),
];

/// Names of groups of algorithms.
pub const GROUPS: &[&str] = &["gcm", "cbc", "cbc-hmac", "ctr", "xts", "rsa", "ec", "x25519", "ml-kem", "kdf"];

/// A setting that makes no sense.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{key} = {value}: {why}")]
pub struct Nonsense {
    /// Whose value.
    pub key: String,
    /// The value.
    pub value: String,
    /// What was expected.
    pub why: String,
}

fn nonsense(key: &str, value: &str, why: impl Into<String>) -> Nonsense {
    Nonsense { key: key.to_owned(), value: value.to_owned(), why: why.into() }
}

fn number(key: &str, value: &str, range: std::ops::RangeInclusive<u64>) -> Result<u64, Nonsense> {
    let parsed = value.trim().parse().ok().filter(|number| range.contains(number));
    parsed.ok_or_else(|| {
        nonsense(key, value, format!("a whole number from {} to {}", range.start(), range.end()))
    })
}

fn list(value: &str) -> Vec<String> {
    value.split(',').map(|part| part.trim().to_ascii_lowercase()).filter(|part| !part.is_empty()).collect()
}

/// Pairs joined by commas. A part without `=` belongs to the pair before it: some values are lists.
fn pairs(value: &str) -> Vec<String> {
    let mut pairs: Vec<String> = Vec::new();
    for part in list(value) {
        match pairs.last_mut() {
            Some(pair) if !part.contains('=') => {
                pair.push(',');
                pair.push_str(&part);
            }
            _ => pairs.push(part),
        }
    }
    pairs
}

impl Settings {
    /// Takes one setting in.
    ///
    /// # Errors
    /// [`Nonsense`], with what was expected.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), Nonsense> {
        match key {
            "policy" => {
                if !NAMES.contains(&value) {
                    return Err(nonsense(key, value, format!("one of {}", NAMES.join(", "))));
                }
                self.policy = value.to_owned();
            }
            "objective" => {
                self.objective = match value {
                    "performance" => Objective::Performance,
                    "balanced" => Objective::Balanced,
                    "energy" => Objective::Energy,
                    _ => return Err(nonsense(key, value, "performance, balanced or energy")),
                }
            }
            "thresholds" => {
                for pair in pairs(value) {
                    self.thresholds.set(&pair).map_err(|error| nonsense(key, value, error.to_string()))?;
                }
            }
            "engines" => {
                self.engines = list(value);
                if self.engines.is_empty() {
                    return Err(nonsense(key, value, "at least one engine"));
                }
            }
            "emulate" => self.emulate = Some(value.to_owned()),
            "algorithms" => {
                let groups = list(value);
                if let Some(stranger) = groups.iter().find(|group| !GROUPS.contains(&group.as_str())) {
                    return Err(nonsense(key, stranger, format!("any of {}", GROUPS.join(", "))));
                }
                self.algorithms = Some(groups);
            }
            "pause" => {
                self.pause = match value {
                    "auto" => Pause::Auto,
                    "jobs" => Pause::Jobs,
                    "always" => Pause::Always,
                    _ => return Err(nonsense(key, value, "auto, jobs or always")),
                }
            }
            "poll" => {
                let parsed = GatherRule::parse(value, &self.thresholds);
                parsed.map_err(|error| nonsense(key, value, error.to_string()))?;
                self.poll = value.to_owned();
            }
            "hold-us" => self.hold = Some(Duration::from_micros(number(key, value, 0..=10_000)?)),
            "give-up-ms" => self.give_up = Duration::from_millis(number(key, value, 1..=60_000)?),
            "verify" => {
                self.verify = match value {
                    "accelerators" => Verify::Accelerators,
                    "signatures" => Verify::Signatures,
                    _ => return Err(nonsense(key, value, "accelerators or signatures")),
                }
            }
            "cores" => self.cores = Some(number(key, value, 0..=256)? as usize),
            "telemetry" => {
                self.telemetry = match value {
                    "yes" | "1" | "on" => true,
                    "no" | "0" | "off" => false,
                    _ => return Err(nonsense(key, value, "yes or no")),
                }
            }
            _ => return Err(nonsense(key, value, "no such setting")),
        }
        Ok(())
    }

    /// The rule by which batches go, with the thresholds that are set.
    pub fn gather_rule(&self) -> GatherRule {
        // It was read when it was set, and no threshold can spoil it.
        GatherRule::parse(&self.poll, &self.thresholds).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_known_and_takes_something() {
        let good = [
            "eeca",
            "energy",
            "",
            "instruction",
            "dh8970",
            "gcm, rsa",
            "always",
            "heuristic",
            "50",
            "10",
            "signatures",
            "0",
            "no",
        ];
        for ((key, _), value) in KEYS.iter().zip(good) {
            let key = key.to_str().unwrap();
            assert_eq!(Settings::default().set(key, value), Ok(()), "{key}");
        }
        assert_eq!(KEYS.len(), good.len());
    }

    #[test]
    fn nonsense_is_refused_with_what_was_expected() {
        let told = |key, value| Settings::default().set(key, value).unwrap_err().to_string();
        assert!(told("policy", "fastest").contains("adaptive"));
        assert!(told("objective", "speed").contains("balanced"));
        assert!(told("thresholds", "no-such=1").contains("no-such"));
        assert!(told("algorithms", "gcm,rot13").contains("rot13"));
        assert!(told("pause", "never").contains("auto, jobs or always"));
        assert!(told("poll", "sometimes").contains("heuristic"));
        assert!(told("hold-us", "10001").contains("0 to 10000"));
        assert!(told("hold-us", "soon").contains("whole number"));
        assert!(told("verify", "all").contains("accelerators or signatures"));
        assert!(told("cores", "257").contains("0 to 256"));
        assert!(told("give-up-ms", "0").contains("1 to 60000"));
        assert!(told("engines", " , ").contains("at least one"));
        assert!(told("speed", "1").contains("no such setting"));
    }

    #[test]
    fn the_published_rule_has_its_thresholds_in_whatever_order_they_are_set() {
        let (mut first, mut last) = (Settings::default(), Settings::default());
        for settings in [&mut first, &mut last] {
            settings.set("poll", "heuristic").unwrap();
        }
        last.set("thresholds", "qweb.poll_asymmetric=7").unwrap();
        let of = |settings: &Settings| settings.gather_rule();
        assert_eq!(of(&first), GatherRule::heuristic(&PolicySettings::default()));
        assert_eq!(of(&last), GatherRule::heuristic(&last.thresholds));
        assert_ne!(of(&first), of(&last));
    }

    #[test]
    fn a_list_among_thresholds_keeps_its_commas() {
        let mut settings = Settings::default();
        let value = "eeca.bytes=2048, lecpaes.fill_permille=430,810,adaptive.probe=1";
        assert_eq!(pairs(value), ["eeca.bytes=2048", "lecpaes.fill_permille=430,810", "adaptive.probe=1"]);
        assert_eq!(settings.set("thresholds", "lecpaes.fill_permille=430,810"), Ok(()));
    }
}
