//! The engine, and its instances: the caller's side of the owner's thread.
//!
//! | entry's cell  | state                                      | counts against the window |
//! |---------------|--------------------------------------------|---------------------------|
//! | has a request | with the owner                             | yes                       |
//! | empty         | hostage: withdrawn, not answered           | yes                       |
//!
//! An entry is made by `submit` and removed once: by `poll`, or by `stop` if it is a hostage. No call waits for the driver;
//! a call may wait for a memory copy of the owner's, since both touch a request under its cell's lock.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use wattlock_core::sync::lock;
use wattlock_core::{
    Completion, Cost, Description, Engine, EngineClass, Error, Family, Fault, GpuAttributes, Instance, Kind,
    KindSet, Nanos, OwnedRequest, Refused, Token, Window,
};
use zeroize::Zeroize;

use crate::confidential;
use crate::device::{self, Device, Missing};
use crate::owner::{self, Answer, Cell, Identity, MESSAGE_MOST, State, Task};
use crate::plan;
use crate::sys::Driver;

/// What may be in flight in one instance.
const WINDOW: Window = Window { requests: 256, bytes: 64 << 20 };

/// Where the driver and the kernels are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The driver's library: a name for the loader, or a path.
    pub driver: PathBuf,
    /// The folder with the images of the kernels.
    pub images: PathBuf,
    /// Streams of the engine, 1 to [`STREAMS_MOST`].
    pub streams: usize,
}

/// One in each of copy-in, kernel and copy-out, and one that is being filled. EEP has 16.
pub const STREAMS: usize = 4;
/// Each takes memory of a slot on both sides.
pub const STREAMS_MOST: usize = 64;

/// The first NVIDIA GPU of this machine.
pub struct Cuda {
    description: Description,
    driver: Arc<Driver>,
    device: Arc<Device>,
    streams: usize,
    owner: Mutex<Option<Owner>>,
    /// The process that found the device. Its children must not touch the driver.
    process: u32,
}

/// The thread that has the context, as instances see it.
#[derive(Clone)]
struct Owner {
    tasks: Sender<Task>,
    state: Arc<State>,
}

impl Cuda {
    /// Loads the driver and looks at the first device. Opens nothing: the context comes up with the first instance, on a
    /// thread of its own.
    ///
    /// # Errors
    /// Why there is none to work with.
    pub fn find(places: &Places) -> Result<Cuda, Missing> {
        let (driver, device) = device::find(&places.driver, &places.images, 0)?;
        let description = Description {
            name: "cuda",
            class: EngineClass::Gpu,
            inline: KindSet::EMPTY,
            queued: plan::kinds(),
            detail: device.about(),
        };
        let (driver, device) = (Arc::new(driver), Arc::new(device));
        let streams = places.streams.clamp(1, STREAMS_MOST);
        let (owner, process) = (Mutex::new(None), std::process::id());
        Ok(Cuda { description, driver, device, streams, owner, process })
    }

    /// Its PCI bus id, by which NVML knows it, too.
    pub fn bus(&self) -> &str {
        &self.device.bus
    }

    /// Whether confidential computing makes copies block, as NVML says: the library of this name, or the driver's. Takes
    /// some milliseconds, and opens no context.
    pub fn copies_block(&self, nvml: Option<&OsStr>) -> bool {
        confidential::is_on(nvml, &self.device.bus)
    }

    /// The owner's thread, started if there is none, or if the last one lost its device.
    fn owner(&self) -> Result<Owner, Error> {
        if std::process::id() != self.process {
            return Err(Error::Device(Fault::Forked));
        }
        let mut owner = lock(&self.owner);
        if let Some(owner) = owner.as_ref().filter(|owner| !owner.state.is_dead()) {
            return Ok(owner.clone());
        }
        let (tasks, ordered) = channel();
        let state = Arc::new(State::default());
        let (driver, device, told) = (self.driver.clone(), self.device.clone(), state.clone());
        let streams = self.streams;
        std::thread::Builder::new()
            .name("wattlock-cuda".into())
            .spawn(move || owner::run(&driver, &device, streams, &ordered, told))
            .map_err(|_| Error::Device(Fault::Lost))?;
        Ok(owner.insert(Owner { tasks, state }).clone())
    }
}

impl Engine for Cuda {
    fn description(&self) -> &Description {
        &self.description
    }

    fn window(&self) -> Window {
        WINDOW
    }

    fn gpu(&self) -> Option<GpuAttributes> {
        self.device.attributes()
    }

    fn takes_runs(&self, kind: Kind, longest: usize) -> bool {
        takes_runs(self.description.queued, kind, longest)
    }

    fn open(&self, _now: Nanos) -> Result<Box<dyn Instance>, Error> {
        let owner = self.owner()?;
        let (answering, answers) = channel();
        let process = self.process;
        let kinds = self.description.queued;
        let entries = HashMap::new();
        Ok(Box::new(Queue { owner: Some(owner), kinds, answering, answers, entries, bytes: 0, process }))
    }
}

struct Entry {
    cell: Arc<Cell>,
    bytes: u64,
    submitted: Nanos,
    withdrawn: bool,
}

/// One dispatcher's way to the owner.
struct Queue {
    /// `None`: stopped.
    owner: Option<Owner>,
    kinds: KindSet,
    answering: Sender<Answer>,
    answers: Receiver<Answer>,
    entries: HashMap<Token, Entry>,
    bytes: u64,
    process: u32,
}

impl Queue {
    fn refusal(&self, token: Token, request: &OwnedRequest) -> Option<Error> {
        let Some(owner) = self.owner.as_ref().filter(|owner| !owner.state.is_dead()) else {
            return Some(Error::Device(Fault::Lost));
        };
        if std::process::id() != self.process {
            return Some(Error::Device(Fault::Forked));
        }
        if !self.kinds.contains(request.kind) {
            return Some(Error::Unsupported);
        }
        if let Err(error) = request.validate() {
            return Some(error);
        }
        if self.entries.contains_key(&token) {
            return Some(Error::Invalid("token"));
        }
        if request.longest() > MESSAGE_MOST {
            return Some(Error::Unsupported);
        }
        let bytes = self.bytes.saturating_add(request.input.len() as u64);
        let full = self.entries.len() as u32 >= WINDOW.requests || bytes > WINDOW.bytes;
        (full || !owner.state.is_up()).then_some(Error::Full)
    }

    fn remove(&mut self, token: Token) -> Option<Entry> {
        let entry = self.entries.remove(&token)?;
        self.bytes -= entry.bytes;
        Some(entry)
    }

    fn settle(&mut self, answer: Answer, now: Nanos, done: &mut dyn FnMut(Completion)) -> usize {
        let Answer { token, result, batch } = answer;
        let Some(entry) = self.remove(token) else { return 0 };
        let Some(mut request) = entry.cell.take().filter(|_| !entry.withdrawn) else { return 0 };
        if result.is_err() {
            wipe_opened(&mut request);
        }
        let latency_ns = now.saturating_sub(entry.submitted);
        let cost = Cost { latency_ns, held_ns: 0, batch, energy_nj: None };
        done(Completion { token, request, result, cost });
        1
    }

    /// Gives everything back.
    fn give_back(&mut self, now: Nanos, done: &mut dyn FnMut(Completion)) -> usize {
        let tokens: Vec<Token> = self.entries.keys().copied().collect();
        let lost = |token| Answer { token, result: Err(Error::Device(Fault::Lost)), batch: 1 };
        tokens.into_iter().map(|token| self.settle(lost(token), now, done)).sum()
    }
}

/// Of a request that ends before all of it has come back nothing may be left that was opened, however much of it was.
fn wipe_opened(request: &mut OwnedRequest) {
    if request.kind.info().family == Family::Open {
        request.output[..].zeroize();
    }
}

fn takes_runs(kinds: KindSet, kind: Kind, longest: usize) -> bool {
    kinds.contains(kind) && longest <= MESSAGE_MOST
}

impl Instance for Queue {
    /// No requests before the context is up; one when it cannot come, so that a submission says so.
    fn window(&self) -> Window {
        let requests = match &self.owner {
            Some(owner) if owner.state.is_up() => WINDOW.requests,
            Some(owner) if !owner.state.is_dead() => 0,
            _ => 1,
        };
        Window { requests, ..WINDOW }
    }

    fn in_flight(&self) -> u32 {
        self.entries.len() as u32
    }

    fn held(&self) -> u32 {
        0
    }

    fn submit(&mut self, token: Token, request: OwnedRequest, now: Nanos) -> Result<(), Refused> {
        if let Some(error) = self.refusal(token, &request) {
            return Err(Refused { error, request });
        }
        let lost = Error::Device(Fault::Lost);
        let identity = request.key.expanded(|_| Ok(Identity::next())).map(|identity| identity.0);
        let (Ok(key), Some(owner)) = (identity, &self.owner) else {
            return Err(Refused { error: Error::Unsupported, request });
        };
        let (kind, messages, bytes) = (request.kind, request.messages(), request.input.len() as u64);
        let cell = Cell::new(request);
        let answers = self.answering.clone();
        let task = Task { token, kind, key, messages, cell: cell.clone(), answers };
        if owner.tasks.send(task).is_err() {
            let Some(request) = cell.take() else { unreachable!("nobody else has it") };
            return Err(Refused { error: lost, request });
        }
        self.bytes += bytes;
        self.entries.insert(token, Entry { cell, bytes, submitted: now, withdrawn: false });
        Ok(())
    }

    fn flush(&mut self, _now: Nanos) {}

    fn poll(&mut self, now: Nanos, done: &mut dyn FnMut(Completion)) -> usize {
        // Read before the answers: what was answered before the owner ended is among them.
        let over = self.owner.as_ref().is_none_or(|owner| owner.state.is_dead());
        let mut count = 0;
        while self.owner.is_some()
            && let Ok(answer) = self.answers.try_recv()
        {
            count += self.settle(answer, now, done);
        }
        if over { count + self.give_back(now, done) } else { count }
    }

    fn withdraw(&mut self, token: Token, _now: Nanos) -> Option<OwnedRequest> {
        let over = self.owner.is_none();
        let entry = self.entries.get_mut(&token).filter(|entry| !entry.withdrawn)?;
        let mut request = entry.cell.take();
        request.iter_mut().for_each(wipe_opened);
        entry.withdrawn = true;
        if over {
            self.remove(token);
        }
        request
    }

    fn stop(&mut self, _now: Nanos) {
        self.owner = None;
        let hostages: Vec<Token> =
            self.entries.iter().filter(|(_, entry)| entry.withdrawn).map(|(token, _)| *token).collect();
        for token in hostages {
            self.remove(token);
        }
    }
}

/// The folder of images beside a program: `lib/wattlock/gpu` next to its own folder.
pub(crate) fn images_beside(program: &Path) -> Option<PathBuf> {
    Some(program.parent()?.parent()?.join("lib/wattlock/gpu"))
}

/// The default for what is no number of streams, which a warning says.
fn streams(text: &OsStr) -> usize {
    let number = text.to_str().and_then(|text| text.parse().ok());
    number.filter(|number| (1..=STREAMS_MOST).contains(number)).unwrap_or_else(|| {
        tracing::warn!("WATTLOCK_CUDA_STREAMS is no number from 1 to {STREAMS_MOST}: {STREAMS} are used");
        STREAMS
    })
}

impl Places {
    /// `WATTLOCK_CUDA_DRIVER` and `WATTLOCK_GPU_IMAGES`, or else `libcuda.so.1` as the loader finds it and
    /// `lib/wattlock/gpu` beside the program's folder. `WATTLOCK_CUDA_STREAMS` is the number of streams.
    pub fn of_environment() -> Places {
        Places::or_images(|| images_beside(&std::env::current_exe().ok()?))
    }

    /// The same for a library that others load: the kernels are in `wattlock/gpu` or `gpu` beside it if there is such a
    /// folder.
    pub fn of_library(library: &Path) -> Places {
        let beside =
            |name: &str| library.parent().map(|folder| folder.join(name)).filter(|folder| folder.is_dir());
        Places::or_images(|| {
            let program = || images_beside(&std::env::current_exe().ok()?);
            beside("wattlock/gpu").or_else(|| beside("gpu")).or_else(program)
        })
    }

    fn or_images(otherwise: impl FnOnce() -> Option<PathBuf>) -> Places {
        let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Places {
            driver: named("WATTLOCK_CUDA_DRIVER").unwrap_or_else(|| "libcuda.so.1".into()),
            images: named("WATTLOCK_GPU_IMAGES").or_else(otherwise).unwrap_or_default(),
            streams: std::env::var_os("WATTLOCK_CUDA_STREAMS").map_or(STREAMS, |text| streams(&text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use wattlock_core::{Algorithm, Key};

    use super::*;

    #[test]
    fn of_a_run_that_is_half_opened_when_it_is_taken_back_or_lost_no_plaintext_is_left() {
        let key = Arc::new(Key::symmetric(Algorithm::Aes256Gcm, &[1; 32]).unwrap());
        let (answering, answers) = channel();
        let mut queue = Queue {
            owner: None,
            kinds: plan::kinds(),
            answering,
            answers,
            entries: HashMap::new(),
            bytes: 0,
            process: std::process::id(),
        };
        for token in [Token(1), Token(2)] {
            let mut request = OwnedRequest::new(Kind::Aes256GcmOpen, key.clone(), vec![7; 64], 64);
            request.output[..32].fill(9);
            let (cell, withdrawn) = (Cell::new(request), false);
            queue.entries.insert(token, Entry { cell, bytes: 0, submitted: 0, withdrawn });
        }
        let taken = queue.withdraw(Token(1), 0).unwrap();
        assert_eq!((taken.input[..] == [7; 64], taken.output[..] == [0; 64]), (true, true));
        let mut given = Vec::new();
        queue.poll(0, &mut |completion| given.push(completion));
        assert_eq!((given.len(), given[0].result), (1, Err(Error::Device(Fault::Lost))));
        assert_eq!(given[0].request.output, [0; 64]);
    }

    #[test]
    fn streams_are_as_many_as_are_set_and_four_else() {
        let of = |text: &str| streams(OsStr::new(text));
        assert_eq!(["1", "16", "64"].map(of), [1, 16, 64]);
        assert_eq!(["", "0", "65", "-1", "four"].map(of), [STREAMS; 5]);
    }

    #[test]
    fn runs_of_messages_that_no_slot_is_sure_to_hold_are_declined_beforehand_and_at_submission() {
        let key = Arc::new(Key::symmetric(Algorithm::Aes128Gcm, &[1; 16]).unwrap());
        let of = |len: usize| OwnedRequest::new(Kind::Aes128GcmSeal, key.clone(), vec![0; len], len);
        for len in [MESSAGE_MOST, MESSAGE_MOST + 1] {
            let takes = takes_runs(plan::kinds(), Kind::Aes128GcmSeal, len);
            assert_eq!((takes, of(len).longest() <= MESSAGE_MOST), (len <= MESSAGE_MOST, takes), "{len}");
        }
    }
}
