//! A counter in a file that goes up by itself.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Ends with this value.
pub struct Counting {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Counting {
    /// `text` says what stands in the file after so many milliseconds.
    pub fn in_file(path: &Path, text: fn(u64) -> String) -> Counting {
        let (stop, path) = (Arc::new(AtomicBool::new(false)), path.to_owned());
        let (seen, start) = (stop.clone(), Instant::now());
        let thread = thread::spawn(move || {
            let next = path.with_extension("next");
            while !seen.load(Ordering::Relaxed) {
                // As the kernel: a reader sees one value or the next.
                fs::write(&next, text(start.elapsed().as_millis() as u64)).unwrap();
                fs::rename(&next, &path).unwrap();
                thread::sleep(Duration::from_millis(5));
            }
        });
        Counting { stop, thread: Some(thread) }
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}
