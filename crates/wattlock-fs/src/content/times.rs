//! Modification times that tell programs which compare sizes and times (rsync, Syncthing, `cp -u`) that bytes have changed.
//!
//! What is written within a file is in the journal first, and comes into the file later. The time that is shown is that of
//! the write. If the backing file had it at once, a program that looked in between would take the bytes of before for those
//! of that time, and would never look again. So it is some seconds earlier as long as the journal replaces anything of the
//! file, also across a crash, and the time that is shown when all is in place.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use wattlock_core::sync::read;

use super::{Contents, Shared};
use crate::store::{File, Store};

/// By how many seconds: some file systems and programs know every second second only.
const STEP: i64 = 2;

/// A file's modification time moves on, or back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Move {
    /// Before anything of it is in the journal.
    Back,
    /// When nothing is any more, and when its header was sealed anew.
    On,
}

pub(super) fn moved(time: &mut Timespec, by: Move) {
    time.tv_sec = match by {
        Move::Back => time.tv_sec.saturating_sub(STEP),
        Move::On => time.tv_sec.saturating_add(STEP),
    };
}

/// The same times for a backing file of which the journal replaces something.
pub fn earlier(times: &Timestamps) -> Timestamps {
    let mut times = times.clone();
    let time = &mut times.last_modification;
    match time.tv_nsec {
        UTIME_OMIT => return times,
        UTIME_NOW => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
            *time = Timespec { tv_sec: now.as_secs() as i64, tv_nsec: now.subsec_nanos().into() };
        }
        _ => {}
    }
    moved(time, Move::Back);
    times
}

/// Another user's file: its content counts more than its time.
pub(super) fn move_time<F: File>(file: &F, by: Move) {
    if let Ok(Some(mut times)) = file.times() {
        moved(&mut times.last_modification, by);
        _ = file.set_times(&times);
    }
}

impl<S: Store> Shared<S> {
    /// As [`Contents::modified`].
    fn modified(&self, inode: (u64, u64), stored: Timespec) -> Timespec {
        let (mut time, replaced) = match self.known_body(inode) {
            Some(body) => {
                let state = body.state();
                // The one that the caller has may be of before the journal came into place.
                let times = state.file.times().ok().flatten();
                (times.map_or(stored, |times| times.last_modification), state.ledger.is_replaced())
            }
            None if self.read_only => {
                (stored, read(&self.over).get(&inode).is_some_and(|(_, over)| over.is_replaced()))
            }
            None => (stored, false),
        };
        if replaced {
            moved(&mut time, Move::On);
        }
        time
    }
}

impl<S: Store> Contents<S> {
    /// The modification time to show of an inode whose backing file has `stored`.
    pub fn modified(&self, inode: (u64, u64), stored: Timespec) -> Timespec {
        self.shared.modified(inode, stored)
    }
}
