//! Lanes for CPUs that have none: an engine that does batches as lanes do, with passes that any function makes.
//!
//! For tests and measurements of what lies between a door and a kernel. Such a pass gains nothing by width, so no figure
//! of it says anything about lanes.

use std::sync::Arc;

use wattlock_core::{Curve, Description, Engine, EngineClass, Error, Kind, KindSet, Request};

use super::{Isa, Item, Lanes, WIDTH, nist, x25519};
use crate::detect::Cpu;

/// The lanes of every instruction set that this CPU has, the best first. On an emulated CPU, which `WATTLOCK_EMULATED_CPU`
/// says it is (`scripts/test/avx512.sh` sets it), the best only: there floating-point arithmetic takes minutes for a pass.
pub fn lanes_here() -> Vec<Lanes> {
    let most = if std::env::var_os("WATTLOCK_EMULATED_CPU").is_some() { 1 } else { usize::MAX };
    let cpu = Cpu::detect();
    let narrow = Cpu { avx512: None, vaes512: None, ..cpu };
    let with = |isa| Lanes::with(isa, if matches!(isa, Isa::Ifma512(_)) { cpu } else { narrow });
    // Registers of 512 bits without 52-bit products, as on Cascade Lake: hashes and ML-KEM have lanes there, too.
    let short = Isa::best(&cpu).filter(|_| cpu.avx512.is_some() && cpu.ifma512.is_none());
    short.map(|isa| Lanes::with(isa, cpu)).into_iter().chain(Isa::all(&cpu).map(with)).take(most).collect()
}

/// The pass that makes fresh X25519 pairs, with these scalars instead of fresh ones: whether its time depends on them. Gives each
/// lane's public key; none where the result is not sound. `None` for lanes that do not do this.
pub fn x25519_publics(lanes: &Lanes, scalars: &[[u8; 32]; WIDTH]) -> Option<[Option<[u8; 32]>; WIDTH]> {
    match lanes.isa {
        Isa::Ifma512(isa) => Some(x25519::publics(isa, scalars)),
        Isa::Fma256(_) => None,
    }
}

/// The pass that makes fresh pairs on P-256 or P-384, with these scalars instead of fresh ones: big-endian, the curve's length
/// of each from the front. Gives each lane's public key, `x` and `y` likewise; none where the scalar is not in `[1, n)` or the
/// result not sound. `None` for another curve, and for lanes that do not do these.
pub fn nist_publics(
    lanes: &Lanes,
    curve: Curve,
    scalars: &[[u8; 48]; WIDTH],
) -> Option<[Option<[u8; 96]>; WIDTH]> {
    match (lanes.isa, curve) {
        (Isa::Ifma512(isa), Curve::P256) => Some(nist::p256_publics(isa, scalars)),
        (Isa::Ifma512(isa), Curve::P384) => Some(nist::p384_publics(isa, scalars)),
        _ => None,
    }
}

/// An engine that goes by the lanes' name and is as wide.
pub struct Passes<F> {
    description: Description,
    pass: F,
}

impl<F> Passes<F>
where
    F: Fn(Kind, &mut [Item<'_>]) + Send + Sync,
{
    /// The engine of these kinds. `pass` gets 1 to [`WIDTH`] validated requests of one of them, on the caller's thread, and
    /// writes every [`Item::result`].
    pub fn new(kinds: KindSet, pass: F) -> Passes<F> {
        let description = Description {
            name: "lanes",
            class: EngineClass::Lanes,
            inline: kinds,
            queued: KindSet::EMPTY,
            detail: "passes of a test".into(),
        };
        Passes { description, pass }
    }
}

/// A pass in which this engine does one request after the other.
pub fn one_by_one(engine: Arc<dyn Engine>) -> impl Fn(Kind, &mut [Item<'_>]) + Clone + Send + Sync + 'static {
    move |_: Kind, items: &mut [Item<'_>]| {
        items.iter_mut().for_each(|item| item.result = engine.execute(&mut item.request));
    }
}

impl<F> Engine for Passes<F>
where
    F: Fn(Kind, &mut [Item<'_>]) + Send + Sync,
{
    fn description(&self) -> &Description {
        &self.description
    }

    fn width(&self, kind: Kind) -> u16 {
        if self.description.inline.contains(kind) { WIDTH as u16 } else { 1 }
    }

    fn execute(&self, request: &mut Request<'_>) -> Result<usize, Error> {
        let mut items = [Item::new(request.reborrow())];
        self.execute_all(&mut items);
        items[0].result
    }

    fn execute_all(&self, items: &mut [Item<'_>]) {
        for batch in items.chunks_mut(WIDTH) {
            let kind = batch[0].request.kind;
            match self.description.inline.contains(kind) {
                true => (self.pass)(kind, batch),
                false => batch.iter_mut().for_each(|item| item.result = Err(Error::Unsupported)),
            }
        }
    }
}
