//! Engines that take a while until they can work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use wattlock_core::Engine;

/// How long a device may take: a GPU's context takes some tenths of a second, and seconds where nothing else has one.
pub const COMES_UP_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Lets every engine with a queue open its device, and waits until each can work or says that it never will. Blocks for at
/// most so long. An engine that is not up by then takes work as soon as it is.
pub fn bring_up(engines: &[Arc<dyn Engine>], within: Duration) {
    let start = Instant::now();
    let now = || start.elapsed().as_nanos() as u64;
    let queued = engines.iter().filter(|engine| !engine.description().queued.is_empty());
    // All of them at the same time.
    let coming: Vec<_> = queued.filter_map(|engine| engine.open(now()).ok()).collect();
    // A device that is not there yet has room for no request, and one that never will be has room for one.
    while coming.iter().any(|instance| instance.window().requests == 0) && start.elapsed() < within {
        std::thread::sleep(LOOK_EVERY);
    }
}
