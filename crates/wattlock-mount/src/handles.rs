//! What is open, by handle.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use wattlock_core::sync::lock;

const SHARDS: usize = 16;

/// Handles of one type.
pub struct Handles<T> {
    shards: [Mutex<HashMap<u64, Arc<T>>>; SHARDS],
    next: AtomicU64,
}

impl<T> Default for Handles<T> {
    fn default() -> Handles<T> {
        Handles { shards: std::array::from_fn(|_| Mutex::default()), next: AtomicU64::new(1) }
    }
}

impl<T> Handles<T> {
    /// A new handle.
    pub fn add(&self, value: T) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        lock(self.shard(handle)).insert(handle, Arc::new(value));
        handle
    }

    /// What a handle stands for.
    pub fn get(&self, handle: u64) -> Option<Arc<T>> {
        lock(self.shard(handle)).get(&handle).cloned()
    }

    /// Ends a handle.
    pub fn remove(&self, handle: u64) -> Option<Arc<T>> {
        lock(self.shard(handle)).remove(&handle)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    fn shard(&self, handle: u64) -> &Mutex<HashMap<u64, Arc<T>>> {
        &self.shards[handle as usize % SHARDS]
    }
}
