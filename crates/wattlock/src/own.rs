//! The CPU's own engines on this machine, and why one of them may be missing.

use std::sync::Arc;

use wattlock_core::Engine;
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::software::Software;

/// Engines that run on this CPU, in the order of their ids: `instruction`, `software`, and `lanes` where the CPU has
/// the instructions. Detects once; opens nothing.
pub fn own_engines() -> Vec<Arc<dyn Engine>> {
    let mut engines: Vec<Arc<dyn Engine>> = vec![Arc::new(Instruction::new()), Arc::new(Software::new())];
    engines.extend(lanes(Cpu::detect()).ok());
    engines
}

/// Own engines that this CPU cannot have: name and reason.
pub fn missing_engines() -> Vec<(&'static str, &'static str)> {
    lanes(Cpu::detect()).err().map(|why| ("lanes", why)).into_iter().collect()
}

#[cfg(target_arch = "x86_64")]
fn lanes(cpu: Cpu) -> Result<Arc<dyn Engine>, &'static str> {
    let isa = wattlock_cpu::lanes::Isa::best(&cpu)
        .ok_or("this CPU, or its operating system, has neither AVX-512 IFMA nor AVX2 with FMA")?;
    Ok(Arc::new(wattlock_cpu::lanes::Lanes::new(isa)))
}

#[cfg(not(target_arch = "x86_64"))]
fn lanes(_: Cpu) -> Result<Arc<dyn Engine>, &'static str> {
    Err("there are no lanes for this architecture yet")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_there_or_say_why_not() {
        let names: Vec<_> = own_engines().iter().map(|engine| engine.description().name).collect();
        assert_eq!(names[..2], ["instruction", "software"]);
        assert_eq!(names.contains(&"lanes"), missing_engines().is_empty());
        let without = lanes(Cpu::PLAIN).err();
        assert!(without.is_some_and(|why| !why.is_empty()));
    }
}
