//! Messages to be hashed that are read while others are hashed.
//!
//! An engine with lanes asks for a lane's next piece when the lane has hashed the one before. So messages of any length go
//! side by side through buffers that stay in a core's cache, and no message is ever in memory as a whole.

use crate::{Data, Error, Stream};

/// Where messages come from, and their digests go. A lane is a number from 0 up.
pub trait Feed {
    /// Begins another message in a lane, if there is one.
    fn begin(&mut self, lane: usize) -> bool;
    /// Reads more of a lane's message. Less than the buffer holds only at the message's end. `None` gives the message up:
    /// it has no digest.
    fn fill(&mut self, lane: usize, buffer: &mut [u8]) -> Option<usize>;
    /// Takes the digest of a lane's message, which has ended.
    fn done(&mut self, lane: usize, digest: &[u8]);
}

/// Hashes messages one after the other.
///
/// # Errors
/// The stream's; [`Error::Invalid`] for a room without a byte.
pub fn one_by_one(stream: &mut dyn Stream, room: &mut [u8], feed: &mut dyn Feed) -> Result<(), Error> {
    let len = stream.kind().info().output.unwrap_or(0);
    let mut digest = [0; 64];
    let digest = digest.get_mut(..len).ok_or(Error::Unsupported)?;
    if room.is_empty() {
        return Err(Error::Invalid("no room for pieces"));
    }
    'messages: while feed.begin(0) {
        stream.start(&[])?;
        loop {
            let Some(read) = feed.fill(0, room) else { continue 'messages };
            stream.update(Data::Apart { from: &room[..read], to: &mut [] })?;
            if read < room.len() {
                break;
            }
        }
        stream.finish(digest)?;
        feed.done(0, digest);
    }
    Ok(())
}
