//! A device that has given known answers, and runs on it. If the device declines a run, the CPU does it: the messages are
//! fetched, done, and put back; nothing else knows of that.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

use wattlock::{Builder, Runtime};
use wattlock_core::sync::lock;
use wattlock_core::{Algorithm, Data, Family, Group, Key, Kind, KindSet, LatencyClass, Request};
use wattlock_cpu::instruction::Instruction;
use wattlock_cuda::direct::{Area, Direct, DirectKey, Messages, Trouble, Why};
use wattlock_cuda::{Places, Stream};
use zeroize::Zeroizing;

use crate::failure::Failure;

/// Tag bytes of every kind that has one.
const TAG: usize = 16;

/// A device.
pub struct Gpu {
    pub(crate) direct: Arc<Direct>,
    /// Kinds that have given known answers, and those that gave wrong ones.
    known: Mutex<(KindSet, KindSet)>,
    /// A result was wrong: what the CPU can do, it does.
    doubtful: AtomicBool,
}

/// A key, and what the CPU needs of it.
pub(crate) struct GpuKey {
    gpu: Arc<Gpu>,
    key: Key,
    /// `None`: the device declined it.
    on_device: Option<DirectKey>,
}

/// The CPU, by the one engine that is fastest for a cipher's single request. The others were never chosen, and would make
/// this library a quarter larger.
pub(crate) fn cpu() -> Result<&'static Runtime, Failure> {
    static CPU: OnceLock<Option<Runtime>> = OnceLock::new();
    let build = || Builder::of(vec![Arc::new(Instruction::new())]).telemetry(false).build();
    let made = CPU.get_or_init(|| build().ok());
    made.as_ref().ok_or(Failure::Bug)
}

/// Whether the CPU may do what a device did not.
pub(crate) fn declines(trouble: Trouble) -> bool {
    matches!(trouble, Trouble::Declined(_) | Trouble::Memory | Trouble::Unsupported)
}

/// The kind that seals or opens under an algorithm; counter mode does both.
fn kind_of(algorithm: Algorithm, opens: bool) -> Option<Kind> {
    let family = |kind: Kind| {
        matches!(kind.info().family, Family::Cipher | Family::Seal | Family::Open)
            && kind.info().algorithm == algorithm
    };
    let pair: Vec<Kind> = Kind::ALL.iter().copied().filter(|kind| family(*kind)).collect();
    pair.iter().copied().find(|kind| kind.info().undoes.is_some() == opens).or_else(|| match pair[..] {
        [kind] => Some(kind),
        _ => None,
    })
}

/// The algorithm of this name: that of a kind without what the kind does with it.
fn algorithm_of(name: &str) -> Option<Algorithm> {
    let ends = ["", "-seal", "-open", "-encrypt", "-decrypt"];
    ends.iter().find_map(|end| Some(Kind::from_name(&format!("{name}{end}"))?.info().algorithm))
}

impl Gpu {
    /// Opens the device of this number.
    ///
    /// # Errors
    /// [`Failure::Absent`].
    pub fn open(number: u16) -> Result<Arc<Gpu>, Failure> {
        let places = Places::of_library(crate::abi::own_path());
        Ok(Gpu::of(Direct::open(&places, number)?))
    }

    /// A device that is open.
    pub fn of(direct: Arc<Direct>) -> Arc<Gpu> {
        Arc::new(Gpu { direct, known: Mutex::default(), doubtful: AtomicBool::new(false) })
    }

    /// The device.
    pub fn direct(&self) -> &Arc<Direct> {
        &self.direct
    }

    /// Whether a result was wrong, so that the CPU does what it can from then on.
    pub fn is_doubtful(&self) -> bool {
        self.doubtful.load(Relaxed)
    }

    /// Whether its results are to be trusted for this kind: known answers come before the first use.
    pub(crate) fn is_proved(&self, kind: Kind) -> Result<bool, Failure> {
        if self.is_doubtful() {
            return Ok(false);
        }
        let mut known = lock(&self.known);
        if known.0.contains(kind) {
            return Ok(true);
        }
        if known.1.contains(kind) || !self.direct.kinds().contains(kind) {
            return Ok(false);
        }
        let mut right = match self.prove(kind) {
            Ok(right) => right,
            // It may have room later.
            Err(Failure::Memory | Failure::Lost(Trouble::Declined(_))) => return Ok(false),
            Err(failure) => return Err(failure),
        };
        if !right && kind.info().group == Group::Gcm && self.direct.use_integers()? {
            // Other kinds' GHASH is another kernel's now, too.
            let gcm = known.0.iter().filter(|kind| kind.info().group == Group::Gcm);
            known.0 = gcm.fold(known.0, KindSet::without);
            right = self.prove(kind)?;
        }
        let set = if right { &mut known.0 } else { &mut known.1 };
        *set = set.with(kind);
        Ok(right)
    }

    /// From here on the CPU does what it can.
    pub(crate) fn doubt(&self) {
        self.doubtful.store(true, Relaxed);
    }

    /// Three messages, compared with the CPU's; of an open one tag is wrong.
    fn prove(&self, kind: Kind) -> Result<bool, Failure> {
        const LENGTH: usize = 1024;
        const LAST: usize = 528;
        let (nonce_bytes, opens) = (nonce_bytes(kind), kind.info().family == Family::Open);
        let bytes =
            |from: u8, len: usize| (0..len).map(|i| (i as u8).wrapping_mul(29) ^ from).collect::<Vec<u8>>();
        let algorithm = kind.info().algorithm;
        let key = Key::symmetric(algorithm, &bytes(7, algorithm.key_len().unwrap_or(0)));
        let key = key.map_err(|_| Failure::Bug)?;
        let (nonces, plain) = (bytes(3, 3 * nonce_bytes), bytes(5, 2 * LENGTH + LAST));
        let (mut input, mut tags) = (plain.clone(), vec![0; 3 * TAG]);
        if let Some(made) = kind.info().undoes {
            each(made, &key, &mut input, LENGTH, &nonces, &mut tags)?;
        }
        let (mut expected, mut expected_tags) = (input.clone(), tags.clone());
        each(kind, &key, &mut expected, LENGTH, &nonces, &mut expected_tags)?;
        if opens {
            tags[TAG] ^= 1;
        }
        let direct = &self.direct;
        let on_device = direct.key(key)?;
        let memory = direct.memory(8192)?;
        let at = |offset: u64| memory.at() + offset;
        let mut image = Zeroizing::new(vec![0; 8192]);
        image[..input.len()].copy_from_slice(&input);
        image[3072..3072 + nonces.len()].copy_from_slice(&nonces);
        image[4096..4096 + tags.len()].copy_from_slice(&tags);
        direct.write(at(0), &image)?;
        let messages = Messages {
            count: 3,
            length: LENGTH as u64,
            last_length: LAST as u64,
            input: Area { at: at(0), bytes: 3072 },
            input_stride: LENGTH as u64,
            output: Area { at: at(0), bytes: 3072 },
            output_stride: LENGTH as u64,
            nonces: Area { at: at(3072), bytes: 64 },
            tags: Area { at: at(4096), bytes: 64 },
            results: Area { at: at(5120), bytes: 12 },
            ..Messages::default()
        };
        let stream = Stream::default();
        crate::abi::run(&on_device, kind, &messages, stream)?;
        direct.wait_for(stream)?;
        direct.read(at(0), &mut image)?;
        if opens {
            // The forged message is as it was.
            expected[LENGTH..2 * LENGTH].copy_from_slice(&input[LENGTH..2 * LENGTH]);
            let results: Vec<u8> = [1_u32, 0, 1].iter().flat_map(|result| result.to_ne_bytes()).collect();
            return Ok(image[..expected.len()] == expected && image[5120..5132] == results[..]);
        }
        let tags_right = kind.info().tag == 0 || image[4096..4096 + 3 * TAG] == expected_tags[..];
        Ok(image[..expected.len()] == expected && tags_right)
    }

    pub(crate) fn key(self: &Arc<Gpu>, algorithm: &str, bytes: &[u8]) -> Result<GpuKey, Failure> {
        let algorithm = algorithm_of(algorithm)
            .filter(|algorithm| self.direct.kinds().iter().any(|kind| kind.info().algorithm == *algorithm))
            .ok_or_else(|| {
                Failure::Refused(format!("algorithm: no GPU kernels for {}", algorithm.escape_debug()))
            })?;
        let key = Key::symmetric(algorithm, bytes)
            .map_err(|_| Failure::Refused(format!("key: {} bytes are not this algorithm's", bytes.len())))?;
        for opens in [false, true] {
            kind_of(algorithm, opens).map_or(Ok(false), |kind| self.is_proved(kind))?;
        }
        let on_device = match self.direct.key(key.clone()) {
            Ok(on_device) => Some(on_device),
            Err(trouble) if declines(trouble) => None,
            Err(trouble) => return Err(trouble.into()),
        };
        Ok(GpuKey { gpu: self.clone(), key, on_device })
    }

    /// Waits for the stream; the first message whose result is not 1.
    pub(crate) fn check(&self, results: Area, count: u32, stream: Stream) -> Result<Option<u32>, Failure> {
        if results.bytes < 4 * u64::from(count) {
            return Err(Failure::field("results", Why::Few));
        }
        let mut read = vec![0; 4 * count as usize];
        self.direct.validate_area("results", results.at, read.len() as u64)?;
        self.direct.wait_for(stream)?;
        self.direct.read(results.at, &mut read)?;
        Ok(read.chunks(4).position(|result| result != 1_u32.to_ne_bytes()).map(|first| first as u32))
    }
}

impl GpuKey {
    /// Seals or opens on the caller's stream.
    pub(crate) fn run(&self, opens: bool, messages: &Messages, stream: Stream) -> Result<(), Failure> {
        let kind = kind_of(self.key.algorithm(), opens).ok_or(Failure::Bug)?;
        self.gpu.direct.validate(kind, messages)?;
        if let Some(key) = &self.on_device
            && self.gpu.is_proved(kind)?
        {
            match crate::abi::run(key, kind, messages, stream) {
                Err(trouble) if declines(trouble) => {}
                done => return Ok(done?),
            }
        }
        self.fetch(kind, messages, stream)
    }

    /// On the CPU: fetches each message, does it, and puts it back. The messages have been validated.
    fn fetch(&self, kind: Kind, m: &Messages, stream: Stream) -> Result<(), Failure> {
        let (direct, info, each_nonce) = (&self.gpu.direct, kind.info(), nonce_bytes(kind) as u64);
        let stride = |stride: u64, each: u64| if stride == 0 { each } else { stride };
        let (nonce_stride, tag_stride) =
            (stride(m.nonce_stride, each_nonce), stride(m.tag_stride, TAG as u64));
        direct.wait_for(stream)?;
        let (mut text, mut aad) = (Zeroizing::new(Vec::new()), vec![0; m.aad_length as usize]);
        let mut nonce = vec![0; each_nonce as usize];
        for index in 0..u64::from(m.count) {
            let last = index + 1 == u64::from(m.count);
            let length = if last { m.last_length } else { m.length } as usize;
            text.clear();
            text.resize(length, 0);
            direct.read(m.input.at + index * m.input_stride, &mut text)?;
            direct.read(m.nonces.at + index * nonce_stride, &mut nonce)?;
            direct.read(m.aad.at + index * m.aad_stride, &mut aad)?;
            let nearer = last && m.last_tag != 0;
            let tag_at = if nearer { m.last_tag } else { m.tags.at + index * tag_stride };
            let mut tag = [0; TAG];
            let tag = &mut tag[..info.tag];
            if info.family == Family::Open {
                direct.read(tag_at, tag)?;
            }
            let result = one(kind, &self.key, &mut text, (&nonce, &aad), tag)?;
            if result {
                direct.write(m.output.at + index * m.output_stride, &text)?;
            }
            match info.family {
                Family::Seal => direct.write(tag_at, tag)?,
                Family::Open => direct.write(m.results.at + 4 * index, &u32::from(result).to_ne_bytes())?,
                _ => {}
            }
        }
        Ok(())
    }
}

fn nonce_bytes(kind: Kind) -> usize {
    match kind.info().nonce {
        wattlock_core::NonceLen::Exactly(bytes) => bytes,
        wattlock_core::NonceLen::Any => 0,
    }
}

/// One message on the CPU, in place. Whether it is authentic.
fn one(
    kind: Kind,
    key: &Key,
    text: &mut [u8],
    (nonce, aad): (&[u8], &[u8]),
    tag: &mut [u8],
) -> Result<bool, Failure> {
    cpu()?.local(|dispatcher| {
        let request = Request::new(kind, key, Data::InPlace(text));
        let mut request = Request { nonce, aad, tag, class: LatencyClass::Bulk, ..request };
        match dispatcher.run(&mut request) {
            Ok(_) => Ok(true),
            Err(wattlock_core::Error::Authentication) => Ok(false),
            Err(_) => Err(Failure::Bug),
        }
    })
}

/// Messages of one length side by side, the last one shorter.
fn each(
    kind: Kind,
    key: &Key,
    text: &mut [u8],
    length: usize,
    nonces: &[u8],
    tags: &mut [u8],
) -> Result<(), Failure> {
    let nonces = nonces.chunks(nonce_bytes(kind));
    for ((text, nonce), tag) in text.chunks_mut(length).zip(nonces).zip(tags.chunks_mut(TAG)) {
        let tag = &mut tag[..kind.info().tag];
        if !one(kind, key, text, (nonce, b""), tag)? {
            return Err(Failure::Bug);
        }
    }
    Ok(())
}
