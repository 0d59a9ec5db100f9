//! Engines that take a while until they can work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use wattlock_core::{Engine, KindSet};

/// How long a device may take: a GPU's context takes some tenths of a second, and seconds where nothing else has one.
pub const COMES_UP_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Lets every engine that queues some of these kinds open its device, and waits until each can work or says that it never
/// will. Blocks for at most so long, and until `stop` says so. An engine that is not up by then takes work as soon as it is.
pub fn bring_up(engines: &[Arc<dyn Engine>], kinds: KindSet, within: Duration, stop: &dyn Fn() -> bool) {
    let start = Instant::now();
    let now = || start.elapsed().as_nanos() as u64;
    let wanted = |engine: &&Arc<dyn Engine>| !engine.description().queued.intersection(kinds).is_empty();
    let queued = engines.iter().filter(wanted);
    // All of them at the same time.
    let coming: Vec<_> = queued.filter_map(|engine| engine.open(now()).ok()).collect();
    // A device that is not there yet has room for no request, and one that never will be has room for one.
    let away = || coming.iter().any(|instance| instance.window().requests == 0);
    while away() && start.elapsed() < within && !stop() {
        std::thread::sleep(LOOK_EVERY);
    }
}
