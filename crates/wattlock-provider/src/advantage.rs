//! Where Wattlock is faster than OpenSSL's own code, group by group: what is offered unless the operator says otherwise.

use std::sync::Arc;

use wattlock::core::{Engine, KindSet};

/// Whether a group is worth offering on this machine.
///
/// # Errors
/// Why it is not, for people.
pub fn of(group: &str, engines: &[Arc<dyn Engine>]) -> Result<(), String> {
    let wide = wide_aes();
    match group {
        "gcm" | "cbc" | "ctr" | "xts" if !wide => Err("this CPU has no 512-bit AES".to_owned()),
        "kdf" if !derives(engines) => Err("no engine here derives keys inside the call".to_owned()),
        _ => Ok(()),
    }
}

fn derives(engines: &[Arc<dyn Engine>]) -> bool {
    let inline = engines.iter().map(|engine| engine.description().inline);
    crate::kdf::is_done_by(inline.fold(KindSet::EMPTY, KindSet::union))
}

#[cfg(target_arch = "x86_64")]
fn wide_aes() -> bool {
    std::arch::is_x86_feature_detected!("vaes") && std::arch::is_x86_feature_detected!("avx512f")
}

#[cfg(not(target_arch = "x86_64"))]
fn wide_aes() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derivations_are_offered_only_where_an_engine_does_them_all() {
        let engines = wattlock::own_engines();
        assert_eq!(of("kdf", &engines), Ok(()));
        let queued = |engine: &Arc<dyn Engine>| !crate::kdf::is_done_by(engine.description().inline);
        let lacking: Vec<_> = engines.into_iter().filter(queued).collect();
        assert!(of("kdf", &lacking).is_err());
    }
}
