//! A piece of a sealed file on its way into device memory: pinned memory to read it into, device memory for the
//! ciphertext, a stream, and an event. With several, reading, copying and opening overlap.

use std::sync::Arc;

use wattlock_core::{Family, Kind};
use zeroize::Zeroize;

use super::check::{Area, Messages};
use super::{Direct, DirectKey, Trouble, check, run_of};
use crate::plan::{self, TAG};
use crate::sys::{Address, Handle, Pinned};

/// One piece's way.
pub struct Stage {
    direct: Arc<Direct>,
    host: Option<Pinned>,
    device: Address,
    stream: Handle,
    event: Handle,
    /// Bytes of data, and where nonces and results lie behind them, on both sides.
    room: usize,
    nonces: usize,
    results: usize,
    bytes: usize,
    /// Messages that are under way.
    busy: usize,
}

impl Stage {
    /// Room for so many bytes of so many messages.
    ///
    /// # Errors
    /// [`Trouble::Memory`] and others of the driver.
    pub fn new(direct: &Arc<Direct>, room: usize, messages: usize) -> Result<Stage, Trouble> {
        let nonces = room.next_multiple_of(256);
        let results = (nonces + messages * 16).next_multiple_of(256);
        let bytes = results + messages * 4;
        direct.inside(|| {
            let driver = &direct.driver;
            let host = driver.pin(bytes)?;
            let device = match driver.allocate(bytes) {
                Ok(device) => device,
                Err(failure) => {
                    driver.unpin(host)?;
                    return Err(failure.into());
                }
            };
            let handles = driver.stream().and_then(|stream| match driver.event() {
                Ok(event) => Ok((stream, event)),
                Err(failure) => driver.destroy_stream(stream).and(Err(failure)),
            });
            let (stream, event) = match handles {
                Ok(handles) => handles,
                Err(failure) => {
                    driver.free(device)?;
                    driver.unpin(host)?;
                    return Err(failure.into());
                }
            };
            let (direct, host) = (direct.clone(), Some(host));
            Ok(Stage { direct, host, device, stream, event, room, nonces, results, bytes, busy: 0 })
        })
    }

    /// The host's side of the data. Nothing is under way.
    ///
    /// # Panics
    /// If something is.
    pub fn data(&mut self) -> &mut [u8] {
        assert_eq!(self.busy, 0, "a copy may be reading this");
        let room = self.room;
        self.host.as_mut().map_or(&mut [], |host| &mut host.bytes_mut()[..room])
    }

    /// Enqueues: copies so many bytes of data in, and opens them as messages at `stride`, each with its tag behind it, into
    /// memory of the device at `to` and at the messages' length. A message that is not verified is not written.
    ///
    /// # Errors
    /// As [`Direct::run`]; what was enqueued is then awaited, and the data are as they were.
    #[allow(clippy::too_many_arguments, reason = "a run's geometry")]
    pub fn open(
        &mut self,
        key: &DirectKey,
        kind: Kind,
        bytes: usize,
        stride: usize,
        nonces: &[u8],
        to: Area,
    ) -> Result<(), Trouble> {
        let steps = plan::steps(kind).filter(|_| kind.info().family == Family::Open);
        let steps = steps.ok_or(Trouble::Unsupported)?;
        let count = bytes.div_ceil(stride);
        let last = bytes - (count - 1) * stride - TAG;
        let length = stride - TAG;
        let (direct, at) = (self.direct.clone(), |offset: usize| self.device + offset as u64);
        let messages = Messages {
            count: count as u32,
            length: length as u64,
            last_length: last as u64,
            input: Area { at: self.device, bytes: bytes as u64 },
            input_stride: stride as u64,
            output: to,
            output_stride: length as u64,
            nonces: Area { at: at(self.nonces), bytes: nonces.len() as u64 },
            tags: Area { at: at(length.min(bytes - TAG)), bytes: (bytes - length.min(bytes - TAG)) as u64 },
            tag_stride: stride as u64,
            last_tag: at((count - 1) * stride + last),
            results: Area { at: at(self.results), bytes: 4 * count as u64 },
            ..Messages::default()
        };
        let fields = check::fields(kind, &messages)?;
        let units = check::units(kind, &messages)?;
        let (nonces_at, results_at, device, stream) = (self.nonces, self.results, self.device, self.stream);
        let event = self.event;
        let Some(host) = self.host.as_mut() else { return Err(Trouble::Unsupported) };
        host.bytes_mut()[nonces_at..nonces_at + nonces.len()].copy_from_slice(nonces);
        direct.inside(|| {
            fields.iter().filter(|field| field.name == "output").try_for_each(|field| direct.reach(field))?;
            let driver = &direct.driver;
            driver.copy_in_pinned(device, host, 0, bytes, stream)?;
            let (from, len) = (nonces_at, nonces.len());
            driver.copy_in_pinned(device + from as u64, host, from, len, stream)?;
            let launched = direct.launch(kind, steps, run_of(kind, &messages, key, units), stream);
            if launched.is_ok() {
                driver.copy_out_pinned(host, results_at, device + results_at as u64, 4 * count, stream)?;
            }
            driver.record_event(event, stream)?;
            if launched.is_err() {
                direct.wait(event, bytes)?;
            }
            launched
        })?;
        self.busy = count;
        Ok(())
    }

    /// Waits for what [`Stage::open`] enqueued. The first message that was not verified, if there is one.
    ///
    /// # Errors
    /// [`Trouble::Lost`], [`Trouble::Silent`].
    pub fn finish(&mut self) -> Result<Option<usize>, Trouble> {
        let (event, room, direct) = (self.event, self.room, self.direct.clone());
        if self.busy == 0 {
            return Ok(None);
        }
        direct.inside(|| direct.wait(event, room))?;
        let count = std::mem::take(&mut self.busy);
        let results = self.host.as_ref().map_or(&[][..], |host| &host.bytes()[self.results..][..4 * count]);
        Ok(results.chunks(4).position(|result| result != 1_u32.to_ne_bytes()))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // What is under way is awaited; from a device that does not answer nothing is taken back.
        let finished = self.finish();
        let Some(mut host) = self.host.take() else { return };
        if finished.is_err() {
            return;
        }
        host.bytes_mut().zeroize();
        let (direct, device, bytes) = (&self.direct, self.device, self.bytes);
        _ = direct.inside(|| {
            let driver = &direct.driver;
            driver.wipe(device, bytes, self.stream)?;
            driver.record_event(self.event, self.stream)?;
            direct.wait(self.event, bytes)?;
            driver.free(device)?;
            driver.destroy_event(self.event)?;
            driver.destroy_stream(self.stream)?;
            Ok(driver.unpin(host)?)
        });
    }
}
