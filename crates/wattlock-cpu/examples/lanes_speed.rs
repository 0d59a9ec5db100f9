//! What the lanes are worth: operations per second of a full batch on one core, against the system's OpenSSL run in turn.
//!
//! `cargo run --release -p wattlock-cpu --example lanes_speed [NAME]...`: only rows whose name contains one of the words.
//! Both sides are run in short turns and the best turn of each counts, because a shared machine only ever takes away.
//! OpenSSL's figure is its own `openssl speed`'s; for generation and for generate-and-derive, which that does not do, it is a loop
//! over its low-level calls (`EC_KEY_generate_key`, `ECDH_compute_key`), the library loaded at run time.
//! Both sides count processor time.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::process::Command;
use std::sync::Arc;

use wattlock_core::{Curve, EcKey, Engine, Error, Key, Kind, OwnedRequest};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::lanes::{Item, Lanes, WIDTH};
use wattlock_cpu::software::Software;

/// Turns of each side.
const TURNS: usize = 5;

/// How long our turns last, and those of OpenSSL's low-level calls. `openssl speed` takes a second at least.
const TURN_NS: u64 = 300_000_000;

/// A row: its name, what passes of ours it takes, whose figure it is compared with.
struct Row {
    name: &'static str,
    kinds: &'static [Kind],
    peer: Peer,
}

/// A figure of OpenSSL's.
enum Peer {
    /// `openssl speed` of this name: the rate in its answer, of signing where there is one of verifying too.
    Speed(&'static str),
    /// A loop over `EC_KEY_generate_key` on the curve of this number and, if so, `ECDH_compute_key`.
    LowLevel(c_int, bool),
}

/// OpenSSL's numbers of the curves.
const NID_P256: c_int = 415;
const NID_P384: c_int = 715;

#[rustfmt::skip]
const ROWS: &[Row] = &[
    Row { name: "rsa-2048-private", kinds: &[Kind::Rsa2048Private], peer: Peer::Speed("rsa2048") },
    Row { name: "rsa-3072-private", kinds: &[Kind::Rsa3072Private], peer: Peer::Speed("rsa3072") },
    Row { name: "rsa-4096-private", kinds: &[Kind::Rsa4096Private], peer: Peer::Speed("rsa4096") },
    Row { name: "ecdsa-p256-sign", kinds: &[Kind::EcdsaP256Sign], peer: Peer::Speed("ecdsap256") },
    Row { name: "p256-derive", kinds: &[Kind::P256Derive], peer: Peer::Speed("ecdhp256") },
    Row { name: "p256-generate", kinds: &[Kind::P256Generate], peer: Peer::LowLevel(NID_P256, false) },
    Row { name: "p256-generate-derive", kinds: &[Kind::P256Generate, Kind::P256Derive], peer: Peer::LowLevel(NID_P256, true) },
    Row { name: "ecdsa-p384-sign", kinds: &[Kind::EcdsaP384Sign], peer: Peer::Speed("ecdsap384") },
    Row { name: "p384-derive", kinds: &[Kind::P384Derive], peer: Peer::Speed("ecdhp384") },
    Row { name: "p384-generate", kinds: &[Kind::P384Generate], peer: Peer::LowLevel(NID_P384, false) },
    Row { name: "p384-generate-derive", kinds: &[Kind::P384Generate, Kind::P384Derive], peer: Peer::LowLevel(NID_P384, true) },
];

fn main() {
    let Some(isa) = Cpu::detect().ifma512 else {
        println!("no AVX-512 IFMA here");
        return;
    };
    let lanes = Lanes::new(isa);
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let openssl = LowLevel::load();
    println!(
        "operations/s on one core, batches of {WIDTH}, best of {TURNS} turns; {}",
        lanes.description().detail
    );
    println!("{:24} {:>10} {:>10} {:>7}", "", "lanes", "openssl", "ratio");
    for row in
        ROWS.iter().filter(|row| wanted.is_empty() || wanted.iter().any(|word| row.name.contains(word)))
    {
        let mut batches: Vec<_> = row.kinds.iter().map(|kind| batch(*kind)).collect();
        let (mut ours, mut theirs) = (0f64, 0f64);
        for _ in 0..TURNS {
            ours = ours.max(WIDTH as f64 * rate(|| batches.iter_mut().for_each(|batch| pass(&lanes, batch))));
            let rate = match row.peer {
                Peer::Speed(name) => speed(name),
                Peer::LowLevel(curve, derive) => openssl.as_ref().map(|openssl| openssl.speed(curve, derive)),
            };
            theirs = theirs.max(rate.unwrap_or(f64::NAN));
        }
        println!("{:24} {ours:>10.0} {theirs:>10.0} {:>7.2}", row.name, ours / theirs);
    }
}

/// A full batch of a kind, each request with a key of its own.
fn batch(kind: Kind) -> Vec<OwnedRequest> {
    (0..WIDTH).map(|lane| request(kind, lane as u8)).collect()
}

/// RSA's requests are all the known answer's: a fresh key takes long, and no time depends on which key it is.
fn request(kind: Kind, lane: u8) -> OwnedRequest {
    if kind.info().algorithm.modulus_len().is_some() {
        return wattlock_core::known_answers(kind).swap_remove(0).request;
    }
    let room = kind.info().output.unwrap_or(0);
    let Some(curve) = kind.info().algorithm.curve() else {
        return OwnedRequest::new(kind, Arc::new(Key::none_owned()), Vec::new(), room);
    };
    let (key, peer) = (pair(curve), pair(curve));
    let input = if kind.info().family == wattlock_core::Family::Agree {
        peer.public.clone()
    } else {
        vec![lane + 1; curve.scalar_len()]
    };
    let key = Key::ec(curve, key).expect("lengths are the curve's");
    OwnedRequest::new(kind, Arc::new(key), input, room)
}

fn pair(curve: Curve) -> EcKey {
    let kind = match curve {
        Curve::P256 => Kind::P256Generate,
        Curve::P384 => Kind::P384Generate,
        Curve::X25519 => Kind::X25519Generate,
    };
    let room = kind.info().output.unwrap_or(0);
    let mut request = OwnedRequest::new(kind, Arc::new(Key::none_owned()), Vec::new(), room);
    Software::new().execute(&mut request.view()).expect("there is randomness");
    let (scalar, public) = request.output.split_at(curve.scalar_len());
    EcKey { scalar: scalar.to_vec(), public: public.to_vec() }
}

fn pass(lanes: &Lanes, batch: &mut [OwnedRequest]) {
    let kind = batch[0].kind;
    let mut items: Vec<Item<'_>> = batch
        .iter_mut()
        .map(|request| Item { request: request.view(), result: Err(Error::Unsupported) })
        .collect();
    lanes.pass(kind, &mut items).expect("a full batch of a kind it does");
    assert!(items.iter().all(|item| item.result.is_ok()));
}

/// Runs for a turn of processor time; runs a second.
fn rate(mut run: impl FnMut()) -> f64 {
    run();
    let (start, mut runs) = (processor_ns(), 0u64);
    loop {
        (0..8).for_each(|_| run());
        runs += 8;
        let passed = processor_ns() - start;
        if passed > TURN_NS {
            return runs as f64 * 1e9 / passed as f64;
        }
    }
}

fn processor_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The figure that `openssl speed -mr` ends with.
fn speed(name: &str) -> Option<f64> {
    let output = Command::new("openssl").args(["speed", "-mr", "-seconds", "1", name]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let line = text.lines().find(|line| line.starts_with("+F"))?;
    line.split(':').nth(3)?.parse().ok()
}

/// OpenSSL's calls without its provider layer.
struct LowLevel {
    new: unsafe extern "C" fn(c_int) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
    generate: unsafe extern "C" fn(*mut c_void) -> c_int,
    public: unsafe extern "C" fn(*const c_void) -> *const c_void,
    compute: unsafe extern "C" fn(*mut c_void, usize, *const c_void, *const c_void, *const c_void) -> c_int,
}

impl LowLevel {
    fn load() -> Option<LowLevel> {
        let call = |library: *mut c_void, name: &CStr| {
            // SAFETY: a library that was loaded and a terminated name.
            let found = unsafe { libc::dlsym(library, name.as_ptr().cast::<c_char>()) };
            (!found.is_null()).then_some(found)
        };
        // SAFETY: a terminated name; the calls have these types in every OpenSSL 3.
        unsafe {
            let library = libc::dlopen(c"libcrypto.so.3".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            if library.is_null() {
                return None;
            }
            use std::mem::transmute;
            Some(LowLevel {
                new: transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> *mut c_void>(call(
                    library,
                    c"EC_KEY_new_by_curve_name",
                )?),
                free: transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(call(
                    library,
                    c"EC_KEY_free",
                )?),
                generate: transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> c_int>(call(
                    library,
                    c"EC_KEY_generate_key",
                )?),
                public: transmute::<*mut c_void, unsafe extern "C" fn(*const c_void) -> *const c_void>(call(
                    library,
                    c"EC_KEY_get0_public_key",
                )?),
                compute: transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(
                        *mut c_void,
                        usize,
                        *const c_void,
                        *const c_void,
                        *const c_void,
                    ) -> c_int,
                >(call(library, c"ECDH_compute_key")?),
            })
        }
    }

    fn speed(&self, curve: c_int, derive: bool) -> f64 {
        let mut shared = [0u8; 66];
        // SAFETY: keys are ours and freed at the end; the shared secret has room for any of the curves.
        unsafe {
            let (key, peer) = ((self.new)(curve), (self.new)(curve));
            assert!(!key.is_null() && (self.generate)(peer) == 1);
            let rate = rate(|| {
                assert_eq!((self.generate)(key), 1);
                if derive {
                    let point = (self.public)(peer);
                    assert!(
                        (self.compute)(
                            shared.as_mut_ptr().cast(),
                            shared.len(),
                            point,
                            key,
                            std::ptr::null()
                        ) > 0
                    );
                }
            });
            (self.free)(key);
            (self.free)(peer);
            rate
        }
    }
}
