//! The architecture has no kernels of ours: a set of types without values, so that the choice compiles away.

use std::convert::Infallible;

use wattlock_core::Error;

use super::super::span::Span;
use super::Block;
use crate::detect::Cpu;

pub(super) struct Isa(Infallible);

impl Isa {
    pub(super) fn best(_: &Cpu) -> Option<Isa> {
        None
    }

    pub(super) fn name(&self) -> &'static str {
        match self.0 {}
    }
}

pub(super) use Isa as GcmIsa;

pub(in super::super) struct CtrKey(Infallible);

impl CtrKey {
    pub(super) fn new(isa: Isa, _: &[u8]) -> Result<CtrKey, Error> {
        match isa.0 {}
    }

    pub(super) fn rekey(&mut self, _: &[u8]) -> Result<(), Error> {
        match self.0 {}
    }

    pub(super) fn apply(&self, _: u128, _: Span<'_>) {
        match self.0 {}
    }
}

pub(in super::super) struct CbcKey(Infallible);

impl CbcKey {
    pub(super) fn new(isa: Isa, _: &[u8]) -> Result<CbcKey, Error> {
        match isa.0 {}
    }

    pub(super) fn encrypt(&self, _: &mut Block, _: Span<'_>) {
        match self.0 {}
    }

    pub(super) fn decrypt(&self, _: &mut Block, _: Span<'_>) {
        match self.0 {}
    }
}

pub(in super::super) struct XtsKey(Infallible);

impl XtsKey {
    pub(super) fn new(isa: Isa, _: &[u8], _: &[u8]) -> Result<XtsKey, Error> {
        match isa.0 {}
    }

    pub(super) fn begin(&self, _: &Block, _: &mut Block) {
        match self.0 {}
    }

    pub(super) fn apply(&self, _: &Block, _: Span<'_>, _: bool) {
        match self.0 {}
    }
}

pub(in super::super) struct GcmKey(Infallible);

impl GcmKey {
    pub(super) fn new(isa: Isa, _: &[u8]) -> Result<GcmKey, Error> {
        match isa.0 {}
    }

    pub(super) fn apply(&self, _: bool, _: &[u8; 12], _: &[u8], _: &Span<'_>) -> Block {
        match self.0 {}
    }
}

#[derive(Clone, Default)]
pub(in super::super) struct GcmMessage;

impl GcmMessage {
    pub(super) fn start(&mut self, key: &GcmKey, _: &[u8]) {
        match key.0 {}
    }

    pub(super) fn aad(&mut self, key: &GcmKey, _: &[u8]) {
        match key.0 {}
    }

    pub(super) fn update(&mut self, key: &GcmKey, _: bool, _: Span<'_>) {
        match key.0 {}
    }

    pub(super) fn tag(&self, key: &GcmKey) -> Block {
        match key.0 {}
    }
}
