//! How fast this device is with data in its own memory, and how fast copies are: measured, with memory of this module's
//! own. Time is the host's, around launches and the event behind them.

use std::sync::Arc;
use std::time::Instant;

use wattlock_core::{Key, Kind};

use super::check::{Area, Messages, nonce_bytes};
use wattlock_core::sync::lock;

use super::{Direct, Trouble};
use crate::plan::TAG;
use crate::sys::{Handle, Stream};

impl Direct {
    /// Bytes a second of a kind over so many bytes in messages of one length, in place: each round's. The device's content
    /// is zeros at first; an open opens what a seal made before, which is not timed.
    ///
    /// # Errors
    /// [`Trouble::Memory`] if so much is not free, [`Trouble::Unsupported`] for a kind without kernels.
    pub fn rate(
        self: &Arc<Direct>,
        kind: Kind,
        bytes: usize,
        length: usize,
        rounds: usize,
    ) -> Result<Vec<f64>, Trouble> {
        let count = bytes / length.max(1);
        let algorithm = kind.info().algorithm;
        let raw: Vec<u8> = (0..algorithm.key_len().unwrap_or(0)).map(|i| i as u8).collect();
        let key = self.key(Key::symmetric(algorithm, &raw).map_err(|_| Trouble::Unsupported)?)?;
        let nonce = nonce_bytes(kind);
        let sizes = [count * length, count * nonce as usize, count * TAG, count * 4];
        let mut ends = [0; 4];
        let mut end = 0_usize;
        for (to, size) in ends.iter_mut().zip(sizes) {
            *to = end;
            end += size.next_multiple_of(256);
        }
        let memory = self.memory(end)?;
        self.wipe(memory.at(), end as u64)?;
        let area = |index: usize| Area { at: memory.at() + ends[index] as u64, bytes: sizes[index] as u64 };
        let messages = Messages {
            count: count as u32,
            length: length as u64,
            last_length: length as u64,
            input: area(0),
            input_stride: length as u64,
            output: area(0),
            output_stride: length as u64,
            nonces: area(1),
            tags: area(2),
            results: area(3),
            ..Messages::default()
        };
        let stream = Stream(lock(&self.own).stream);
        let run = |kind| {
            // SAFETY: the areas are `memory`'s, which outlives the wait behind each run.
            #[allow(unsafe_code, reason = "the areas are ours")]
            unsafe {
                self.run(&key, kind, &messages, stream)
            }
        };
        let mut rates = Vec::with_capacity(rounds);
        // The first round makes scratch, and counts for nothing.
        for round in 0..=rounds {
            if let Some(made) = kind.info().undoes {
                // CBC encryption has no kernels: decrypting anything takes the same time.
                match run(made) {
                    Err(Trouble::Unsupported) => {}
                    done => done?,
                }
            }
            self.wait_for(stream)?;
            let start = Instant::now();
            run(kind)?;
            self.spin(stream.0)?;
            if round > 0 {
                rates.push((count * length) as f64 / start.elapsed().as_secs_f64());
            }
        }
        Ok(rates)
    }

    /// Bytes a second of copies between pinned memory and the device: there, and back.
    ///
    /// # Errors
    /// As [`Direct::rate`].
    pub fn copy_rates(
        self: &Arc<Direct>,
        bytes: usize,
        rounds: usize,
    ) -> Result<(Vec<f64>, Vec<f64>), Trouble> {
        let memory = self.memory(bytes)?;
        let mut pinned = self.inside(|| Ok(self.driver.pin(bytes)?))?;
        let stream = lock(&self.own).stream;
        let (mut there, mut back) = (Vec::new(), Vec::new());
        let measured = self.inside(|| {
            for round in 0..=rounds {
                let start = Instant::now();
                self.driver.copy_in_pinned(memory.at(), &pinned, 0, bytes, stream)?;
                self.spin_here(stream)?;
                let middle = Instant::now();
                self.driver.copy_out_pinned(&mut pinned, 0, memory.at(), bytes, stream)?;
                self.spin_here(stream)?;
                if round > 0 {
                    there.push(bytes as f64 / (middle - start).as_secs_f64());
                    back.push(bytes as f64 / middle.elapsed().as_secs_f64());
                }
            }
            Ok(())
        });
        // After a failure a copy may still be under way: the memory is left to the driver.
        measured?;
        self.inside(|| Ok(self.driver.unpin(pinned)?))?;
        Ok((there, back))
    }

    fn spin(&self, stream: Handle) -> Result<(), Trouble> {
        self.inside(|| self.spin_here(stream))
    }

    /// Waits for a stream without sleeping: a sleep would be a part of the figure.
    fn spin_here(&self, stream: Handle) -> Result<(), Trouble> {
        let own = lock(&self.own);
        self.driver.record_event(own.event, stream)?;
        let start = Instant::now();
        while !self.driver.event_is_done(own.event)? {
            if start.elapsed().as_secs() > 60 {
                return Err(Trouble::Silent);
            }
            std::hint::spin_loop();
        }
        Ok(())
    }
}
