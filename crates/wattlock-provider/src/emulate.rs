//! The emulated accelerator, added where a setting asks for one: for trying out what happens when a card fails.

use std::io::Read;
use std::sync::Arc;

use wattlock::core::Engine;
use wattlock_cpu::instruction::Instruction;
use wattlock_emul::{Emulated, Model, Pace};

/// An accelerator of that model: a built-in model's name, or a file with one.
///
/// # Errors
/// What is wrong with the name or the file, in words.
pub fn accelerator(model: &str) -> Result<Arc<dyn Engine>, String> {
    let parsed = match Model::preset(model) {
        Some(preset) => preset,
        None => {
            // A model has at most 64 KiB, which its own reader checks.
            let mut text = String::new();
            std::fs::File::open(model)
                .and_then(|file| file.take(1 << 17).read_to_string(&mut text))
                .map_err(|error| format!("emulate = {model}: no model's name, and as a file: {error}"))?;
            Model::parse(&text).map_err(|error| format!("emulate = {model}: {error}"))?
        }
    };
    let computes = Arc::new(Instruction::new());
    let engine = Emulated::new(parsed, computes, Pace::RealTime)
        .map_err(|error| format!("emulate = {model}: {error}"))?;
    Ok(Arc::new(engine))
}
