//! The GPU for programs that have their data on it: runs on the caller's device memory and on the caller's stream, in the
//! primary context of the device, which is the one that CUDA's runtime and PyTorch use.
//!
//! This is apart from the engine: no owner's thread, no slots, no copies. A call enqueues kernels and returns. What it
//! needs beside the caller's memory (a key's round keys, scratch) is this module's, and is wiped by the stream behind the
//! kernels. The calling thread's current context is what it was when a call returns.
//!
//! It refuses an address that is not memory of this device, fields that overlap or are too short ([`Why`]), and a forked
//! child. It decides nothing about fallback.

mod check;
mod rate;
mod stage;

use std::ffi::CStr;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use wattlock_core::sync::{lock, read, write};
use wattlock_core::{Family, Group, Key, Kind, KindSet};
use zeroize::Zeroize;

use crate::device::{self, Device, Missing};
use crate::engine::Places;
use crate::kernels::Kernels;
use crate::plan::{self, AES_KEY, BLOCK, KEY_AREA, KEY_TWO, Run, TAG, VERSION};
use crate::sys::{
    Address, Driver, Failure, Handle, MEMORY_OF_DEVICE, POINTER_DEVICE, POINTER_MEMORY, Pinned, Stream,
};

pub use check::{Area, Messages, Why};
use check::{Field, Refused};
pub use stage::Stage;

/// Scratch blocks that may be in use at once; the next run waits for the oldest.
const BLOCKS_MOST: usize = 16;
/// The smallest scratch block: enough for some thousand messages.
const BLOCK_LEAST: usize = 256 << 10;
/// Pinned memory through which host memory is copied.
const STAGING: usize = 1 << 20;
/// How long work of our own may take beside what its bytes need, until the device counts as silent.
const PATIENCE: Duration = Duration::from_secs(10);
/// Errors that leave the context as it was: a refused argument, no memory, no room for a launch.
const HARMLESS: [i32; 3] = [1, 2, 701];

/// Why a call did nothing, or not all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// This field is wrong; nothing was touched.
    Field(&'static str, Why),
    /// The GPU does not do this kind.
    Unsupported,
    /// This process was forked from the one that opened the device.
    Forked,
    /// The device has no memory left for scratch or keys.
    Memory,
    /// The driver refused a call, and the context is as it was: the CPU may do the work.
    Declined(i32),
    /// The driver failed; nothing can be done with the device any more.
    Lost(i32),
    /// The device does not answer.
    Silent,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Field(field, why) => write!(f, "{field} {why}"),
            Trouble::Unsupported => f.write_str("the GPU has no kernels for this"),
            Trouble::Forked => f.write_str("the device was opened before this process was forked"),
            Trouble::Memory => f.write_str("the GPU has not enough memory"),
            Trouble::Declined(code) => write!(f, "the driver refused a call: error {code}"),
            Trouble::Lost(code) => write!(f, "the GPU is lost: error {code}"),
            Trouble::Silent => f.write_str("the GPU does not answer"),
        }
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Trouble {
        match failure {
            Failure::OUT_OF_MEMORY => Trouble::Memory,
            Failure(code) if HARMLESS.contains(&code) => Trouble::Declined(code),
            Failure(code) => Trouble::Lost(code),
        }
    }
}

impl From<Refused> for Trouble {
    fn from((field, why): Refused) -> Trouble {
        Trouble::Field(field, why)
    }
}

/// One device.
pub struct Direct {
    driver: Driver,
    device: Device,
    context: Handle,
    kernels: RwLock<Kernels>,
    own: Mutex<Own>,
    blocks: Mutex<Vec<Block>>,
    /// Work of ours was not done in time. Nothing is asked of the driver any more: a call might never return.
    silent: AtomicBool,
    /// The process that opened it. Its children must not touch the driver.
    process: u32,
}

/// For copies of our own.
struct Own {
    stream: Handle,
    event: Handle,
    /// `None` only while it is given back.
    staging: Option<Pinned>,
}

impl Own {
    /// Everything that is needed, or nothing.
    fn new(driver: &Driver) -> Result<Own, Failure> {
        let staging = driver.pin(STAGING)?;
        let stream = driver.stream();
        let event = stream.and_then(|_| driver.event());
        match (stream, event) {
            (Ok(stream), Ok(event)) => Ok(Own { stream, event, staging: Some(staging) }),
            (Ok(stream), Err(failure)) => {
                driver.destroy_stream(stream)?;
                driver.unpin(staging)?;
                Err(failure)
            }
            (Err(failure), _) => driver.unpin(staging).and(Err(failure)),
        }
    }

    fn parts(&mut self) -> Result<(Handle, Handle, &mut Pinned), Trouble> {
        let Own { stream, event, staging } = self;
        Ok((*stream, *event, staging.as_mut().ok_or(Trouble::Unsupported)?))
    }
}

/// Scratch of a run, wiped by its stream before the event.
#[derive(Clone, Copy)]
struct Block {
    at: Address,
    bytes: usize,
    event: Handle,
}

/// Takes this thread's context away when the work is over, however it ends.
struct Inside<'a>(&'a Driver);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        _ = self.0.pop();
    }
}

impl Direct {
    /// Opens the device of this number, as the driver counts: takes a share of its primary context and loads the kernels.
    ///
    /// # Errors
    /// Why there is none to work with.
    pub fn open(places: &Places, number: u16) -> Result<Arc<Direct>, Missing> {
        let (driver, device) = device::find(&places.driver, &places.images, number)?;
        let context = driver.retain(device.ordinal)?;
        let made = driver.push(context).map_err(Missing::from).and_then(|()| {
            let _inside = Inside(&driver);
            let kernels = Kernels::load(&driver, &device)?;
            match Own::new(&driver) {
                Ok(own) => Ok((kernels, own)),
                Err(failure) => kernels.unload(&driver).map_err(Missing::from).and(Err(failure.into())),
            }
        });
        match made {
            Ok((kernels, own)) => {
                let (own, blocks) = (Mutex::new(own), Mutex::default());
                let (silent, process) = (AtomicBool::new(false), std::process::id());
                let kernels = RwLock::new(kernels);
                Ok(Arc::new(Direct { driver, device, context, kernels, own, blocks, silent, process }))
            }
            Err(missing) => {
                _ = driver.release(device.ordinal);
                Err(missing)
            }
        }
    }

    /// Name, capability, memory, driver.
    pub fn about(&self) -> String {
        self.device.about()
    }

    /// Its number, as the driver counts.
    pub fn number(&self) -> u32 {
        self.device.ordinal as u32
    }

    /// Every kind that it does.
    pub fn kinds(&self) -> KindSet {
        plan::kinds()
    }

    /// Does `work` with the device's context as this thread's.
    fn inside<T>(&self, work: impl FnOnce() -> Result<T, Trouble>) -> Result<T, Trouble> {
        if std::process::id() != self.process {
            return Err(Trouble::Forked);
        }
        if self.silent.load(Relaxed) {
            return Err(Trouble::Silent);
        }
        self.driver.push(self.context)?;
        let _inside = Inside(&self.driver);
        work()
    }

    /// Enqueues the messages of a run on the caller's stream, and returns: what they name must stay until the stream is
    /// done. An open writes a message only if its tag is right, and says so in `results`; the output of any other message
    /// is left as it was.
    ///
    /// # Errors
    /// [`Trouble::Field`] before anything is touched; [`Trouble::Declined`] and [`Trouble::Memory`] likewise, except that
    /// outputs, tags and results may hold anything.
    ///
    /// # Safety
    /// The areas are the caller's to read and write until the stream is done: that they are this device's memory and do
    /// not overlap is checked, whose they are cannot be.
    #[allow(unsafe_code, reason = "the declaration; the calls are in sys.rs")]
    pub unsafe fn run(
        &self,
        key: &DirectKey,
        kind: Kind,
        messages: &Messages,
        stream: Stream,
    ) -> Result<(), Trouble> {
        if !std::ptr::eq(&*key.direct, self) {
            return Err(Trouble::Field("key", Why::OtherDevice(key.direct.number())));
        }
        if key.key.fits(kind).is_err() {
            return Err(Trouble::Field("key", Why::Length));
        }
        self.validate(kind, messages)?;
        let (steps, units) = (plan::steps(kind).ok_or(Trouble::Unsupported)?, check::units(kind, messages)?);
        if messages.count == 0 {
            return Ok(());
        }
        self.inside(|| self.launch(kind, steps, run_of(kind, messages, key, units), stream.0))
    }

    /// Whether the fields of a run make sense together and are memory of this device.
    ///
    /// # Errors
    /// [`Trouble::Field`].
    pub fn validate(&self, kind: Kind, messages: &Messages) -> Result<(), Trouble> {
        let fields = check::fields(kind, messages)?;
        check::units(kind, messages)?;
        self.inside(|| fields.iter().try_for_each(|field| self.reach(field)))
    }

    /// Whether so many bytes from an address on are memory of this device; `name` is what a refusal calls them.
    ///
    /// # Errors
    /// [`Trouble::Field`].
    pub fn validate_area(&self, name: &'static str, at: u64, bytes: u64) -> Result<(), Trouble> {
        let field = check::whole(name, at, bytes)?;
        self.inside(|| self.reach(&field))
    }

    fn function(&self, kernel: &CStr) -> Handle {
        read(&self.kernels).function(kernel)
    }

    /// From here on GHASH is computed by multiplication of integers. `false`: there is no image for that, or it is so
    /// already.
    ///
    /// # Errors
    /// Those of loading the image.
    pub fn use_integers(&self) -> Result<bool, Trouble> {
        self.inside(|| {
            let mut kernels = write(&self.kernels);
            Ok(kernels.use_integers(&self.driver, &self.device)?)
        })
    }

    /// Launches a run with scratch of ours.
    fn launch(&self, kind: Kind, steps: &[plan::Step], mut run: Run, stream: Handle) -> Result<(), Trouble> {
        let (messages, units) = (u64::from(run.messages), run.units);
        let bytes = plan::scratch_bytes(kind, messages, units) as usize;
        let block = self.block(bytes)?;
        run.scratch = block.at;
        let launched =
            steps.iter().filter(|step| step.kernel != AES_KEY.kernel).try_for_each(
                |step| match plan::blocks(step, kind, messages, units) {
                    0 => Ok(()),
                    blocks => self.driver.launch(self.function(step.kernel), blocks, BLOCK, stream, &run),
                },
            );
        // One-time keys lie there, whatever was launched.
        let wiped = self.driver.wipe(block.at, bytes, stream);
        let recorded = self.driver.record_event(block.event, stream);
        lock(&self.blocks).push(block);
        launched.and(wiped).and(recorded).map_err(Trouble::from)
    }

    /// Refuses a field that is not memory of this device from its first byte to its last. Allocations side by side count
    /// as one: large ones of some allocators are several to the driver.
    fn reach(&self, field: &Field) -> Result<(), Trouble> {
        let (mut at, end) = (field.at(), field.at() + field.bytes);
        let refused = |why| Trouble::Field(field.name, why);
        while at < end {
            let memory = self.driver.pointer(at, POINTER_MEMORY);
            if memory != Ok(MEMORY_OF_DEVICE) {
                return Err(refused(if at == field.at() { Why::Host } else { Why::Short(field.bytes) }));
            }
            let device = self.driver.pointer(at, POINTER_DEVICE)?;
            if device != self.number() {
                let first = at == field.at();
                return Err(refused(if first { Why::OtherDevice(device) } else { Why::Short(field.bytes) }));
            }
            let (start, bytes) = self.driver.range(at)?;
            let next = start.saturating_add(bytes);
            if next <= at {
                return Err(refused(Why::Short(field.bytes)));
            }
            at = next;
        }
        Ok(())
    }

    /// Scratch of at least so many bytes that no stream uses any more.
    fn block(&self, bytes: usize) -> Result<Block, Trouble> {
        let mut blocks = lock(&self.blocks);
        loop {
            let mut idle = None;
            for (index, block) in blocks.iter().enumerate() {
                if self.driver.event_is_done(block.event)? {
                    if block.bytes >= bytes {
                        return Ok(blocks.swap_remove(index));
                    }
                    idle = Some(index);
                }
            }
            if let Some(index) = idle {
                // Too small for this run: its place is taken by a larger one.
                let block = blocks.swap_remove(index);
                self.driver.free(block.at)?;
                self.driver.destroy_event(block.event)?;
            } else if blocks.len() >= BLOCKS_MOST {
                std::thread::sleep(Duration::from_micros(20));
                continue;
            }
            let bytes = bytes.next_power_of_two().max(BLOCK_LEAST);
            let event = self.driver.event()?;
            return match self.driver.allocate(bytes) {
                Ok(at) => Ok(Block { at, bytes, event }),
                Err(failure) => self.driver.destroy_event(event).and(Err(failure)).map_err(Trouble::from),
            };
        }
    }

    /// Waits until everything before now on the caller's stream is done.
    ///
    /// # Errors
    /// [`Trouble::Lost`].
    pub fn wait_for(&self, stream: Stream) -> Result<(), Trouble> {
        self.inside(|| {
            let event = self.driver.event()?;
            let waited = self.driver.record_event(event, stream.0).map_err(Trouble::from).and_then(|()| {
                let mut pause = Duration::from_micros(10);
                while !self.driver.event_is_done(event)? {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(1));
                }
                Ok(())
            });
            self.driver.destroy_event(event)?;
            waited
        })
    }

    /// Waits for an event behind work of ours on so many bytes.
    fn wait(&self, event: Handle, bytes: usize) -> Result<(), Trouble> {
        let (start, most) = (Instant::now(), PATIENCE + Duration::from_nanos(10 * bytes as u64));
        let mut pause = Duration::from_micros(5);
        while !self.driver.event_is_done(event)? {
            if start.elapsed() > most {
                self.silent.store(true, Relaxed);
                return Err(Trouble::Silent);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_micros(500));
        }
        Ok(())
    }

    /// Device memory, which holds anything at first and is wiped when it is given back.
    ///
    /// # Errors
    /// [`Trouble::Memory`] and others of the driver.
    pub fn memory(self: &Arc<Direct>, bytes: usize) -> Result<Memory, Trouble> {
        let at = self.inside(|| Ok(self.driver.allocate(bytes.max(1))?))?;
        Ok(Memory { direct: self.clone(), at, bytes })
    }

    /// Copies host memory to the device; returns when it is there.
    ///
    /// # Errors
    /// [`Trouble::Field`] if it is not this device's memory, or too short.
    pub fn write(&self, to: u64, from: &[u8]) -> Result<(), Trouble> {
        self.inside(|| {
            self.reach(&check::whole("destination", to, from.len() as u64)?)?;
            self.put(to, from)
        })
    }

    fn put(&self, to: Address, from: &[u8]) -> Result<(), Trouble> {
        let mut own = lock(&self.own);
        let (stream, event, staging) = own.parts()?;
        for (index, piece) in from.chunks(STAGING).enumerate() {
            staging.bytes_mut()[..piece.len()].copy_from_slice(piece);
            self.driver.copy_in_pinned(to + (index * STAGING) as u64, staging, 0, piece.len(), stream)?;
            self.driver.record_event(event, stream)?;
            self.wait(event, piece.len())?;
            staging.bytes_mut()[..piece.len()].zeroize();
        }
        Ok(())
    }

    /// The way back.
    ///
    /// # Errors
    /// As [`Direct::write`].
    pub fn read(&self, from: u64, to: &mut [u8]) -> Result<(), Trouble> {
        self.inside(|| {
            self.reach(&check::whole("source", from, to.len() as u64)?)?;
            let mut own = lock(&self.own);
            let (stream, event, staging) = own.parts()?;
            for (index, piece) in to.chunks_mut(STAGING).enumerate() {
                let at = from + (index * STAGING) as u64;
                self.driver.copy_out_pinned(staging, 0, at, piece.len(), stream)?;
                self.driver.record_event(event, stream)?;
                self.wait(event, piece.len())?;
                piece.copy_from_slice(&staging.bytes()[..piece.len()]);
                staging.bytes_mut()[..piece.len()].zeroize();
            }
            Ok(())
        })
    }

    /// Sets device memory to zero; returns when it is.
    ///
    /// # Errors
    /// As [`Direct::write`].
    pub fn wipe(&self, at: u64, bytes: u64) -> Result<(), Trouble> {
        self.inside(|| {
            self.reach(&check::whole("destination", at, bytes)?)?;
            self.zero(at, bytes as usize)
        })
    }

    fn zero(&self, at: Address, bytes: usize) -> Result<(), Trouble> {
        if bytes == 0 {
            return Ok(());
        }
        let own = lock(&self.own);
        self.driver.wipe(at, bytes, own.stream)?;
        self.driver.record_event(own.event, own.stream)?;
        self.wait(own.event, bytes)
    }

    /// Copies within the device's memory; returns when it is done.
    ///
    /// # Errors
    /// As [`Direct::write`].
    pub fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), Trouble> {
        self.inside(|| {
            self.reach(&check::whole("destination", to, bytes)?)?;
            self.reach(&check::whole("source", from, bytes)?)?;
            let own = lock(&self.own);
            self.driver.copy_within(to, from, bytes as usize, own.stream)?;
            self.driver.record_event(own.event, own.stream)?;
            self.wait(own.event, bytes as usize)
        })
    }

    /// Makes a key's round keys on the device, if its algorithm has any.
    ///
    /// # Errors
    /// [`Trouble::Unsupported`] for an algorithm without kernels.
    pub fn key(self: &Arc<Direct>, key: Key) -> Result<DirectKey, Trouble> {
        let kinds = plan::kinds();
        let kind = kinds.iter().find(|kind| key.fits(*kind).is_ok()).ok_or(Trouble::Unsupported)?;
        let area = self.inside(|| Ok(self.driver.allocate(KEY_AREA)?))?;
        let made = DirectKey { direct: self.clone(), key, area };
        self.inside(|| {
            // What is read of it before it is written must not be what another program left there.
            self.zero(area, KEY_AREA)?;
            self.put(area, made.key.bytes())?;
            if kind.info().group == Group::ChaChaPoly {
                return Ok(());
            }
            let run = Run { version: VERSION, key: area, ..key_of(&made.key) };
            let own = lock(&self.own);
            self.driver.launch(self.function(AES_KEY.kernel), 1, BLOCK, own.stream, &run)?;
            self.driver.record_event(own.event, own.stream)?;
            self.wait(own.event, KEY_AREA)
        })?;
        Ok(made)
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        let closed = self.inside(|| {
            for block in std::mem::take(&mut *lock(&self.blocks)) {
                self.wait(block.event, block.bytes)?;
                self.driver.free(block.at)?;
                self.driver.destroy_event(block.event)?;
            }
            let mut own = lock(&self.own);
            self.driver.destroy_event(own.event)?;
            self.driver.destroy_stream(own.stream)?;
            own.staging.take().map_or(Ok(()), |staging| self.driver.unpin(staging))?;
            let mut kernels = write(&self.kernels);
            Ok(std::mem::take(&mut *kernels).unload(&self.driver)?)
        });
        // A lost device keeps what it has; a forked child has no share to give back, and a silent device takes none.
        if !matches!(closed, Err(Trouble::Forked | Trouble::Silent)) {
            _ = self.driver.release(self.device.ordinal);
        }
    }
}

/// Device memory of ours. It is wiped when it is dropped, behind everything that any stream of the context still does.
pub struct Memory {
    direct: Arc<Direct>,
    at: Address,
    bytes: usize,
}

impl Memory {
    /// Its address on the device.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Its bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The device that it is on.
    pub fn direct(&self) -> &Arc<Direct> {
        &self.direct
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let direct = &self.direct;
        // A device that is lost, or a driver that the program has already shut down, has nothing to be wiped any more.
        _ = direct.inside(|| {
            direct.driver.wait_for_all()?;
            direct.zero(self.at, self.bytes)?;
            Ok(direct.driver.free(self.at)?)
        });
    }
}

/// A key with its round keys on the device.
pub struct DirectKey {
    direct: Arc<Direct>,
    key: Key,
    area: Address,
}

impl DirectKey {
    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The device that it is on.
    pub fn direct(&self) -> &Arc<Direct> {
        &self.direct
    }
}

impl Drop for DirectKey {
    fn drop(&mut self) {
        let direct = &self.direct;
        _ = direct.inside(|| {
            // Runs under this key may still be under way: each has a block.
            let busy: Vec<Block> = lock(&direct.blocks).clone();
            for block in busy {
                direct.wait(block.event, block.bytes)?;
            }
            direct.zero(self.area, KEY_AREA)?;
            Ok(direct.driver.free(self.area)?)
        });
    }
}

/// The fields of a run that are the key's.
fn key_of(key: &Key) -> Run {
    let kinds = plan::kinds();
    let two = kinds.iter().any(|kind| kind.info().group == Group::Xts && key.fits(kind).is_ok());
    let bytes = key.bytes().len() as u32;
    Run {
        key_bytes: if two { bytes / 2 } else { bytes },
        flags: if two { KEY_TWO } else { 0 },
        ..Run::default()
    }
}

/// The parameter of the kernels, without scratch.
fn run_of(kind: Kind, m: &Messages, key: &DirectKey, units: u64) -> Run {
    let nonce_stride = check::packed(m.nonce_stride, check::nonce_bytes(kind));
    let tag_stride = check::packed(m.tag_stride, TAG as u64);
    let regular = m.tags.at + u64::from(m.count - 1) * tag_stride;
    let length = if m.count == 1 { m.last_length } else { m.length };
    let results = if kind.info().family == Family::Open { m.results.at } else { 0 };
    Run {
        version: VERSION,
        messages: m.count,
        units,
        input: m.input.at,
        input_stride: m.input_stride,
        output: m.output.at,
        output_stride: m.output_stride,
        length,
        last_length: m.last_length,
        key: key.area,
        nonces: m.nonces.at,
        nonce_stride,
        aad: m.aad.at,
        aad_stride: m.aad_stride,
        aad_length: m.aad_length,
        tags: m.tags.at,
        tag_stride,
        last_tag: if m.last_tag == 0 { regular } else { m.last_tag },
        results,
        ..key_of(&key.key)
    }
}
