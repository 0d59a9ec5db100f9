//! An accelerator as a program meets it: a window, a link, the machine behind it
//! ([`wattlock_emul::Device`]: servers with queues), and what each request costs the CPU, which the owner of the CPU has
//! to charge. It refuses what its window has no room for; it does not wait on anybody's behalf.

use std::collections::{BTreeMap, VecDeque};

use wattlock_core::{Kind, KindSet, Nanos, Window};
use wattlock_emul::{Device, Finished, Model, Pool, Table, Work};

/// A machine of so many servers that do one kind, with its times by bytes, and room for so many requests.
pub(crate) fn of_one_kind(
    name: &str,
    servers: u32,
    kind: Kind,
    points: Vec<(u64, Nanos)>,
    requests: u32,
) -> Model {
    Model {
        name: name.into(),
        pools: vec![Pool {
            name: "cipher".into(),
            servers,
            tables: vec![Table { kinds: KindSet::of(&[kind]), points }],
        }],
        window: Window { requests, bytes: 1 << 32 },
        width: 1,
        power: None,
        faults: Vec::new(),
        gpu: None,
        memory_bytes: 0,
    }
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
    call_ns: f64,
    link_bytes_per_s: Option<f64>,
    link_free: Nanos,
    /// On the link, with the time of arrival.
    coming: VecDeque<(Nanos, Work)>,
    /// Bytes of what is in flight, by id.
    flying: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Card {
    /// An idle one. To hand it a request costs a core `call_ns`; over a link, which moves so many bytes a second,
    /// requests get to it one after the other.
    pub fn new(model: Model, call_ns: f64, link_bytes_per_s: Option<f64>) -> Card {
        Card {
            device: Device::new(model, 0),
            call_ns,
            link_bytes_per_s,
            link_free: 0,
            coming: VecDeque::new(),
            flying: BTreeMap::new(),
            bytes: 0,
        }
    }

    /// What handing over a request costs a core.
    pub fn call_ns(&self) -> f64 {
        self.call_ns
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
        match self.link_bytes_per_s {
            None => self.device.accept(now, &[work]).map_err(|_| Refused::Unknown)?,
            Some(bytes_per_s) => {
                self.link_free = self.link_free.max(now) + (bytes as f64 * 1e9 / bytes_per_s) as Nanos;
                self.coming.push_back((self.link_free, work));
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
}
