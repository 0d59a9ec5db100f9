//! An accelerator as a program meets it: a window, a link, the machine behind it
//! ([`wattlock_emul::Device`]: servers with queues), and what each request costs the CPU, which the owner of the CPU has
//! to charge. It refuses what its window has no room for; it does not wait on anybody's behalf.

use std::collections::{BTreeMap, VecDeque};

use wattlock_core::{Kind, Nanos};
use wattlock_emul::{Device, Finished, Model, Work};

/// What one request costs a core.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Call {
    /// To hand it over: mode switches, descriptors.
    pub setup_ns: f64,
    /// To copy it, for each KiB.
    pub copy_ns_per_kib: f64,
    /// To take its completion: interrupt and wake-up.
    pub interrupt_ns: f64,
}

impl Call {
    /// Handing over a request of that size.
    pub fn submit_ns(&self, bytes: usize) -> f64 {
        self.setup_ns + self.copy_ns_per_kib * bytes as f64 / 1024.0
    }
}

/// How requests get to the machine: one after the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// How many bytes a second it moves.
    pub bytes_per_s: f64,
    /// How long a request takes beyond that; others follow meanwhile.
    pub latency_ns: Nanos,
}

/// Why a request was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The window is full.
    Full,
    /// It does not do that kind.
    Unknown,
}

/// The accelerator.
#[derive(Debug)]
pub struct Card {
    device: Device,
    call: Call,
    link: Option<Link>,
    link_free: Nanos,
    link_busy_ns: u128,
    /// On the link, with the time of arrival.
    coming: VecDeque<(Nanos, Work)>,
    /// Bytes of what is in flight, by id.
    flying: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Card {
    /// An idle one.
    pub fn new(model: Model, call: Call, link: Option<Link>) -> Card {
        Card {
            device: Device::new(model, 0),
            call,
            link,
            link_free: 0,
            link_busy_ns: 0,
            coming: VecDeque::new(),
            flying: BTreeMap::new(),
            bytes: 0,
        }
    }

    /// What it costs the CPU.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// The way to it.
    pub fn link(&self) -> Option<Link> {
        self.link
    }

    /// What it is like.
    pub fn model(&self) -> &Model {
        self.device.model()
    }

    /// Hands over a request. Ids in flight must differ.
    ///
    /// # Errors
    /// Says why not; nothing is taken then.
    pub fn submit(&mut self, now: Nanos, id: u64, kind: Kind, bytes: u64) -> Result<(), Refused> {
        let window = self.device.model().window;
        if self.in_flight() >= window.requests || self.bytes.saturating_add(bytes) > window.bytes {
            return Err(Refused::Full);
        }
        if self.device.model().pool_of(kind).is_none() {
            return Err(Refused::Unknown);
        }
        let work = Work::new(id, kind, bytes);
        match self.link {
            None => self.device.accept(now, &[work]).map_err(|_| Refused::Unknown)?,
            Some(link) => {
                let takes = (bytes as f64 * 1e9 / link.bytes_per_s) as Nanos;
                self.link_free = self.link_free.max(now) + takes;
                self.link_busy_ns += u128::from(takes);
                self.coming.push_back((self.link_free + link.latency_ns, work));
            }
        }
        self.flying.insert(id, bytes);
        self.bytes += bytes;
        Ok(())
    }

    /// When something next happens inside it.
    pub fn next_event(&self) -> Option<Nanos> {
        let coming = self.coming.front().map(|(at, _)| *at);
        coming.into_iter().chain(self.device.next_event()).min()
    }

    /// Lets time pass up to `now`, and reports what finished, in the order of time.
    pub fn advance(&mut self, now: Nanos, done: &mut dyn FnMut(Finished)) {
        while let Some((at, work)) = self.coming.front().copied().filter(|(at, _)| *at <= now) {
            self.coming.pop_front();
            // Its kind was asked for when it was submitted.
            let _ = self.device.accept(at, &[work]);
        }
        let (flying, bytes) = (&mut self.flying, &mut self.bytes);
        self.device.advance(now, &mut |one| {
            *bytes -= flying.remove(&one.id).unwrap_or(0);
            done(one);
        });
    }

    /// Requests it has, on the link, waiting or in service.
    pub fn in_flight(&self) -> u32 {
        self.flying.len() as u32
    }

    /// Their bytes.
    pub fn in_flight_bytes(&self) -> u64 {
        self.bytes
    }

    /// Share of its servers at work.
    pub fn busy_share(&self) -> f64 {
        f64::from(self.device.busy()) / f64::from(self.device.model().servers().max(1))
    }

    /// Time the link has been given work for so far.
    pub fn link_busy_ns(&self) -> u128 {
        self.link_busy_ns
    }
}
