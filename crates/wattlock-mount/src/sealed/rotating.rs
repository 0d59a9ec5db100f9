//! Rotation of a volume that is mounted: its mount seals every header and record under the next key, while it is used.

use std::sync::atomic::Ordering;

use wattlock::Dispatcher;
use wattlock_core::sync::lock;
use wattlock_fs::Error;
use wattlock_fs::rotate::rotate;

use super::Sealed;
use crate::backing::{Next, OTHER_VOLUME, Rotation, Which};

/// How often a rotation looks at everything before it gives up.
const PASSES: usize = 16;
/// Passes after which what cannot be sealed anew is not on its way out.
const REMOVALS: usize = 4;

impl Sealed {
    /// Whether it is the volume that is meant, and can be rotated.
    pub(super) fn may_be_rotated(&self, which: &Which) -> std::result::Result<(), String> {
        if which.id != self.id || which.folder != self.tree.inode() {
            return Err(OTHER_VOLUME.to_owned());
        }
        if self.contents.is_read_only() {
            return Err("it is mounted read-only".to_owned());
        }
        if self.shared.load(Ordering::SeqCst) {
            return Err("it is mounted with --shared, so files may move unseen: unmount it first".to_owned());
        }
        if self.contents.may_be_torn() {
            return Err("what a crash left torn is still looked for: try again later".to_owned());
        }
        Ok(())
    }

    /// Seals everything under the volume's next key, and forgets the older ones.
    pub(super) fn rotate_to(
        &self,
        which: &Which,
        next: &Next,
        stop: &dyn Fn() -> bool,
        thread: &mut Dispatcher,
    ) -> std::result::Result<Rotation, String> {
        let said = |error: Error| error.to_string();
        self.may_be_rotated(which)?;
        let mut volume = lock(&self.volume);
        let (generation, known) = (volume.generation(), volume.succession(thread).map_err(said)?);
        let mut then = volume.clone();
        then.keys.retain(|(of, _)| *of != next.generation);
        then.keys.push((next.generation, next.key.clone()));
        then.successors.clone_from(&next.successors);
        // Who holds the key that is in force has made the next one.
        if next.generation < generation || !then.descends(generation, &known, thread).map_err(said)? {
            return Err("that key is none of the volume's".to_owned());
        }
        *volume = then;
        self.contents.count_moves(true);
        let sealed = (|| {
            self.contents.rekey(&volume, thread).map_err(said)?;
            self.tree.rekey(&volume, thread).map_err(said)?;
            let sealed = self.seal_anew(stop, thread)?;
            if !sealed.failed.is_empty() {
                return Ok(sealed);
            }
            self.contents.rekey_journal(thread).map_err(said)?;
            let old = volume.keys.len() - 1;
            volume.keys.drain(..old);
            self.contents.rekey(&volume, thread).map_err(said)?;
            self.tree.rekey(&volume, thread).map_err(said)?;
            Ok(sealed)
        })();
        self.contents.count_moves(false);
        sealed
    }

    /// Seals everything under the volume's newest key, again until a pass finds nothing to seal while no name moved.
    fn seal_anew(
        &self,
        stop: &dyn Fn() -> bool,
        thread: &mut Dispatcher,
    ) -> std::result::Result<Rotation, String> {
        let said = |error: Error| error.to_string();
        self.contents.checkpoint(thread).map_err(said)?;
        for pass in 0..PASSES {
            let before = self.contents.moves();
            let root = self.tree.root(thread).map_err(said)?;
            let rotated =
                rotate(&self.tree, root, (&self.contents, pass == 0), stop, thread).map_err(said)?;
            if stop() {
                return Err("interrupted".to_owned());
            }
            // What is being removed is looked for again; what is damaged stays so.
            if !rotated.failed.is_empty() {
                if pass + 1 < REMOVALS {
                    continue;
                }
                return Ok(Rotation { failed: rotated.failed, ..Rotation::default() });
            }
            if rotated.sealed == 0 && before.is_some() && before == self.contents.moves() {
                return Ok(Rotation { sealed: rotated.skipped, lost: rotated.lost, failed: Vec::new() });
            }
        }
        Err("names kept moving, so the old key stays in the volume: rotate again at a quieter time"
            .to_owned())
    }
}
