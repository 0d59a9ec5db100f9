//! Every policy by its name. A policy that is not here does not exist for an operator.

use crate::error::PolicyError;
use crate::machine::{MAX_ENGINES, Machine};
use crate::settings::Settings;
use crate::weather::Policy;
use crate::{AcaSds, Adaptive, Eeca, Eep, Instruction, Lecpaes, Offload, Qweb, Software};

/// Every name [`by_name`] knows, the default last.
pub const NAMES: [&str; 9] =
    ["software", "instruction", "offload", "eeca", "aca-sds", "qweb", "lecpaes", "eep", "adaptive"];

/// Those of them that are published and give work to devices, whatever their callers do meanwhile.
pub const OFFLOADING: [&str; 6] = ["offload", "eeca", "aca-sds", "qweb", "lecpaes", "eep"];

/// The policy of that name for this machine. One per deciding thread.
///
/// # Errors
/// [`PolicyError::UnknownPolicy`]; [`PolicyError::BadMachine`] if the machine has no engine, more than
/// [`MAX_ENGINES`], or one that is not at the index of its id.
pub fn by_name(name: &str, machine: Machine, settings: &Settings) -> Result<Box<dyn Policy>, PolicyError> {
    check(&machine)?;
    Ok(match name {
        "software" => Box::new(Software::new(&machine)),
        "instruction" => Box::new(Instruction::new(&machine)),
        "offload" => Box::new(Offload::new(&machine)),
        "eeca" => Box::new(Eeca::new(&machine, settings)),
        "aca-sds" => Box::new(AcaSds::new(&machine, settings)),
        "qweb" => Box::new(Qweb::new(&machine, settings)),
        "lecpaes" => Box::new(Lecpaes::new(&machine, settings)),
        "eep" => Box::new(Eep::new(&machine, settings)),
        "adaptive" => Box::new(Adaptive::new(machine, settings)),
        _ => return Err(PolicyError::UnknownPolicy { name: name.to_owned() }),
    })
}

fn check(machine: &Machine) -> Result<(), PolicyError> {
    if machine.engines.is_empty() {
        return Err(PolicyError::BadMachine("no engine"));
    }
    if machine.engines.len() > MAX_ENGINES {
        return Err(PolicyError::BadMachine("more engines than MAX_ENGINES"));
    }
    if machine.engines.iter().enumerate().any(|(index, engine)| engine.id.index() != index) {
        return Err(PolicyError::BadMachine("an engine is not at the index of its id"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranking::tests::server;

    #[test]
    fn every_name_makes_the_policy_of_that_name() {
        for name in NAMES {
            assert_eq!(by_name(name, server(), &Settings::default()).unwrap().name(), name);
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = by_name("fastest", server(), &Settings::default()).err().unwrap().to_string();
        assert!(error.contains("fastest") && error.contains("adaptive"), "{error}");
    }

    #[test]
    fn a_machine_out_of_order_is_refused() {
        let mut machine = server();
        machine.engines.swap(0, 1);
        assert!(by_name("eeca", machine, &Settings::default()).is_err());
        assert!(by_name("eeca", Machine::default(), &Settings::default()).is_err());
    }
}
