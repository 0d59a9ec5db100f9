//! What an operator may set, with published values as defaults where there are any. Settings are parsed once, from
//! `key=value`; a value that makes no sense is refused with the key and what is allowed, never bent into shape.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use wattlock_core::Nanos;

use crate::eep::EepInputs;
use crate::error::PolicyError;
use crate::tuning::Tuning;

/// Settings of every policy; each reads its own.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// `busy_permille`: share of a device's window, in thousandths, at which it counts as fully used (`eeca`,
    /// `aca-sds`), 1 to 1000. Default: under `eeca` what the device works on at once, if it says that; else 1000 (ours:
    /// published rules ask the driver).
    pub busy_permille: Option<u16>,
    /// `eeca.threshold_bytes`: T, above which a request is offloaded. Default 8192 (published).
    pub eeca_threshold_bytes: usize,
    /// `aca-sds.alpha`: more files in operation than this, 0 to 65535. Default: calibrated ([`Turning`]), else 1 (ours;
    /// alpha has no published value).
    ///
    /// [`Turning`]: crate::Turning
    pub aca_sds_alpha: Option<u16>,
    /// `aca-sds.beta_bytes`: more bytes than this. Default: calibrated, else 4096 (ours: the published turning point; beta
    /// has no published value).
    pub aca_sds_beta_bytes: Option<usize>,
    /// `aca-sds.idle_permille`: M, 0 to 1000. Default 30 (ours: the least idle share that the paper reports of the
    /// accelerator alone; M has no published value).
    pub aca_sds_idle_permille: u16,
    /// `aca-sds.feeders`: cores that feed the accelerator, 1 to 65535. Default: calibrated, else 4 (published
    /// for 12 QAT engines).
    pub aca_sds_feeders: Option<u16>,
    /// `aca-sds.thread`: the deciding thread's number, 0 to 65535. Default: not known (ours).
    pub aca_sds_thread: Option<u16>,
    /// `qweb.software_bytes`: smaller requests stay on the CPU. Default 256 (published for compression).
    pub qweb_software_bytes: usize,
    /// `qweb.poll_asymmetric`: requests in flight that are worth a poll while one is a public-key operation, 1 to
    /// 65536. Default 48 (published).
    pub qweb_poll_asymmetric: u32,
    /// `qweb.poll_symmetric`: the same while none is, 1 to 65536. Default 24 (published).
    pub qweb_poll_symmetric: u32,
    /// `qweb.timer_ns`: poll after so long without one, 1 to 1,000,000,000. Default 5000 (published example).
    pub qweb_timer_ns: Nanos,
    /// `lecpaes.fill_permille`: ascending thresholds in thousandths of the window, at most 15, comma-separated.
    /// Default: each clock of the device over its highest (published).
    pub lecpaes_fill_permille: Option<Vec<u16>>,
    /// `lecpaes.window_bytes`: window against which fill is measured; 0 for the engine's own. Default 0 (ours; not
    /// published).
    pub lecpaes_window_bytes: u64,
    /// `eep.ratio`: bytes for the GPU per byte for the CPU, 0.001 to 1000. Default: by the formula.
    pub eep_ratio: Option<f64>,
    /// `eep.gpu_mhz`, `eep.multiprocessors`, `eep.warp`, `eep.cpu_mhz`, `eep.cores`, `eep.alpha`, `eep.beta`,
    /// `eep.threads`: the formula's inputs. Default: the machine's own.
    pub eep_inputs: EepInputs,
    /// `eep.clock`: clock step for GPU work, 0 to 255. Default: the device's highest (published).
    pub eep_clock: Option<u8>,
    /// `adaptive.submit_ns`: the deciding thread's own time to put one request through a queue, 0 to 1,000,000.
    /// Default 500 (ours: a pause and resume is 211 ns, rings and bookkeeping the rest).
    pub adaptive_submit_ns: u32,
    /// `adaptive.margin_permille`: how much better another engine must look before the choice changes, 0 to 500.
    /// Default 20 (ours: what staying with the wrong one may cost).
    pub adaptive_margin_permille: u16,
    /// `adaptive.explore_every`: at most one request in so many is spent on finding out, 100 to 1,000,000; 0 for
    /// none. Default 128 (ours).
    pub adaptive_explore_every: u32,
    /// `adaptive.fault_half_life_ns`: time in which half of the penalty for a fault is forgiven, 1,000,000 to
    /// 100,000,000,000. Default 100,000,000 (ours).
    pub adaptive_fault_half_life_ns: Nanos,
    /// Rules and constants of `adaptive`. No key sets them: they are the lab's to change.
    pub adaptive_tuning: &'static Tuning,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            busy_permille: None,
            eeca_threshold_bytes: 8192,
            aca_sds_alpha: None,
            aca_sds_beta_bytes: None,
            aca_sds_idle_permille: 30,
            aca_sds_feeders: None,
            aca_sds_thread: None,
            qweb_software_bytes: 256,
            qweb_poll_asymmetric: 48,
            qweb_poll_symmetric: 24,
            qweb_timer_ns: 5_000,
            lecpaes_fill_permille: None,
            lecpaes_window_bytes: 0,
            eep_ratio: None,
            eep_inputs: EepInputs::default(),
            eep_clock: None,
            adaptive_submit_ns: 500,
            adaptive_margin_permille: 20,
            adaptive_explore_every: 128,
            adaptive_fault_half_life_ns: 100_000_000,
            adaptive_tuning: &Tuning::DEFAULT,
        }
    }
}

/// Sizes: anything a request can have (core's bound is 2^36).
const BYTES: RangeInclusive<usize> = 0..=1 << 36;

/// One table for the list of keys and for what each sets, so that the two cannot differ.
macro_rules! keys {
    ($($key:literal, $range:expr => |$settings:ident, $value:ident| $set:expr;)*) => {
        impl Settings {
            /// Every key [`Settings::set`] knows.
            pub const KEYS: &'static [&'static str] = &[Settings::FILL, $($key),*];

            fn assign(&mut self, key: &str, text: &str) -> Result<(), PolicyError> {
                match key {
                    $($key => {
                        let ($settings, $value) = (self, number($key, text, $range)?);
                        $set;
                    })*
                    _ => return Err(PolicyError::UnknownKey { key: key.to_owned() }),
                }
                Ok(())
            }
        }
    };
}

keys! {
    "busy_permille", 1..=1000 => |s, v| s.busy_permille = Some(v);
    "eeca.threshold_bytes", BYTES => |s, v| s.eeca_threshold_bytes = v;
    "aca-sds.alpha", 0..=u16::MAX => |s, v| s.aca_sds_alpha = Some(v);
    "aca-sds.beta_bytes", BYTES => |s, v| s.aca_sds_beta_bytes = Some(v);
    "aca-sds.idle_permille", 0..=1000 => |s, v| s.aca_sds_idle_permille = v;
    "aca-sds.feeders", 1..=u16::MAX => |s, v| s.aca_sds_feeders = Some(v);
    "aca-sds.thread", 0..=u16::MAX => |s, v| s.aca_sds_thread = Some(v);
    "qweb.software_bytes", BYTES => |s, v| s.qweb_software_bytes = v;
    "qweb.poll_asymmetric", 1..=65_536 => |s, v| s.qweb_poll_asymmetric = v;
    "qweb.poll_symmetric", 1..=65_536 => |s, v| s.qweb_poll_symmetric = v;
    "qweb.timer_ns", 1..=1_000_000_000 => |s, v| s.qweb_timer_ns = v;
    "lecpaes.window_bytes", 0..=1 << 40 => |s, v| s.lecpaes_window_bytes = v;
    "eep.ratio", 0.001..=1000.0 => |s, v| s.eep_ratio = Some(v);
    "eep.gpu_mhz", 1.0..=100_000.0 => |s, v| s.eep_inputs.gpu_mhz = Some(v);
    "eep.multiprocessors", 1.0..=10_000.0 => |s, v| s.eep_inputs.multiprocessors = Some(v);
    "eep.warp", 1.0..=1024.0 => |s, v| s.eep_inputs.warp = Some(v);
    "eep.cpu_mhz", 1.0..=100_000.0 => |s, v| s.eep_inputs.cpu_mhz = Some(v);
    "eep.cores", 1.0..=65_536.0 => |s, v| s.eep_inputs.cores = Some(v);
    "eep.alpha", 1.0..=16.0 => |s, v| s.eep_inputs.alpha = Some(v);
    "eep.beta", 0.01..=1.0 => |s, v| s.eep_inputs.beta = Some(v);
    "eep.threads", 1.0..=65_536.0 => |s, v| s.eep_inputs.threads = Some(v);
    "eep.clock", 0..=255 => |s, v| s.eep_clock = Some(v);
    "adaptive.submit_ns", 0..=1_000_000 => |s, v| s.adaptive_submit_ns = v;
    "adaptive.margin_permille", 0..=500 => |s, v| s.adaptive_margin_permille = v;
    "adaptive.explore_every", 0..=1_000_000 => |s, v| s.adaptive_explore_every = v;
    "adaptive.fault_half_life_ns", 1_000_000..=100_000_000_000 => |s, v| s.adaptive_fault_half_life_ns = v;
}

impl Settings {
    /// The one setting that is a list.
    const FILL: &'static str = "lecpaes.fill_permille";

    /// The defaults with these `key=value` pairs applied in order.
    ///
    /// # Errors
    /// As [`Settings::set`], for the first pair that is wrong.
    pub fn from_pairs<'a>(pairs: impl IntoIterator<Item = &'a str>) -> Result<Settings, PolicyError> {
        let mut settings = Settings::default();
        for pair in pairs {
            settings.set(pair)?;
        }
        Ok(settings)
    }

    /// Applies one `key=value`; white space around either is ignored. The settings are unchanged on error.
    ///
    /// # Errors
    /// [`PolicyError::NotAPair`], [`PolicyError::UnknownKey`], or [`PolicyError::BadValue`] with key and range.
    pub fn set(&mut self, pair: &str) -> Result<(), PolicyError> {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(PolicyError::NotAPair { text: pair.to_owned() });
        };
        let (key, value) = (key.trim(), value.trim());
        if key == Settings::FILL {
            self.lecpaes_fill_permille = Some(thresholds(value)?);
            return Ok(());
        }
        if key == "adaptive.explore_every" && value.parse().is_ok_and(|every: u32| (1..100).contains(&every))
        {
            return Err(bad("adaptive.explore_every", value, "0, or 100 to 1000000"));
        }
        self.assign(key, value)
    }
}

fn bad(key: &'static str, value: &str, range: impl Into<String>) -> PolicyError {
    PolicyError::BadValue { key, value: value.to_owned(), range: range.into() }
}

fn number<T: FromStr + PartialOrd + Display>(
    key: &'static str,
    text: &str,
    range: RangeInclusive<T>,
) -> Result<T, PolicyError> {
    match text.parse() {
        Ok(value) if range.contains(&value) => Ok(value),
        _ => Err(bad(key, text, format!("{} to {}", range.start(), range.end()))),
    }
}

fn thresholds(text: &str) -> Result<Vec<u16>, PolicyError> {
    let error = || bad(Settings::FILL, text, "1 to 15 ascending numbers from 1 to 1000, comma-separated");
    let parsed: Result<Vec<u16>, _> = text.split(',').map(|part| part.trim().parse()).collect();
    let list = parsed.map_err(|_| error())?;
    let ascending = list.windows(2).all(|pair| pair[0] < pair[1]);
    let in_range = list.iter().all(|threshold| (1..=1000).contains(threshold));
    if list.len() > 15 || !ascending || !in_range {
        return Err(error());
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_changes_what_it_names_and_nothing_else() {
        let settings =
            Settings::from_pairs(["eeca.threshold_bytes = 16384", "lecpaes.fill_permille=500,900"]);
        let expected = Settings {
            eeca_threshold_bytes: 16384,
            lecpaes_fill_permille: Some(vec![500, 900]),
            ..Settings::default()
        };
        assert_eq!(settings, Ok(expected));
    }

    #[test]
    fn every_key_refuses_nonsense_and_says_what_is_allowed() {
        for key in Settings::KEYS.iter().copied() {
            for nonsense in ["", "-1", "x", "99999999999999999999999999", "NaN"] {
                let mut settings = Settings::default();
                let error = settings.set(&format!("{key}={nonsense}")).unwrap_err();
                assert!(error.to_string().contains(key) && error.to_string().contains(" to "), "{error}");
                assert_eq!(settings, Settings::default());
            }
        }
    }

    #[test]
    fn wrong_forms_are_refused_by_name() {
        let refused = |pair| Settings::default().set(pair).unwrap_err().to_string();
        assert!(refused("busy_permille").contains("key=value"));
        assert!(refused("busy=1").contains("busy_permille"), "the known keys are named");
        assert!(refused("adaptive.explore_every=99").contains("100"));
        assert!(refused("lecpaes.fill_permille=900,500").contains("ascending"));
        assert!(refused("eep.ratio=0").contains("0.001"));
    }
}
