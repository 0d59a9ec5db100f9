//! What policies are told of a modelled machine's engines: those that finish inside the call, and those behind a window.

use wattlock_core::{EngineClass, KindSet};
use wattlock_policy::{EngineId, EngineView, Widths};

/// What policies know of an engine that finishes `kinds` inside the call.
pub fn inline_engine(id: EngineId, class: EngineClass, kinds: KindSet) -> EngineView {
    EngineView { id, class, inline: kinds, queued: KindSet::EMPTY, widths: Widths::all(1), window: 0 }
}

/// What policies know of an engine that does `kinds` one by one, behind a window of so many requests.
pub fn queued_engine(id: EngineId, class: EngineClass, kinds: KindSet, window: u32) -> EngineView {
    EngineView { id, class, inline: KindSet::EMPTY, queued: kinds, widths: Widths::all(1), window }
}
