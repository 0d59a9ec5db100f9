//! A model by the name that a setting or an option gives, and an engine after it.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use wattlock_core::Engine;

use crate::{Emulated, Model, Pace};

/// Of a file that is longer than a model may be this much is read, and its own reader then says so.
const READ_MAX: u64 = 1 << 17;

impl Model {
    /// The model of that name: a preset's, or a file with one.
    ///
    /// # Errors
    /// What is wrong with the name or the file, in words that begin with it.
    pub fn named(name: &str) -> Result<Model, String> {
        if let Some(model) = Model::preset(name) {
            return Ok(model);
        }
        let mut text = String::new();
        let read = File::open(name).and_then(|file| file.take(READ_MAX).read_to_string(&mut text));
        read.map_err(|error| {
            let presets: Vec<_> = Model::presets().into_iter().map(|model| model.name).collect();
            format!("{name}: neither a model's name ({}) nor a readable file: {error}", presets.join(", "))
        })?;
        Model::parse(&text).map_err(|error| format!("{name}: not a model: {error}"))
    }
}

/// An engine after the model of that name, in real time; `computes` does its work.
///
/// # Errors
/// As of [`Model::named`], or the model is none that can be run.
pub fn card(name: &str, computes: Arc<dyn Engine>) -> Result<Arc<dyn Engine>, String> {
    let model = Model::named(name)?;
    let engine =
        Emulated::new(model, computes, Pace::RealTime).map_err(|error| format!("{name}: {error}"))?;
    Ok(Arc::new(engine))
}

/// The text of every preset.
pub fn models() -> Vec<String> {
    Model::presets().iter().map(Model::to_string).collect()
}
