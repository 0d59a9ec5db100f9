//! The architecture has no kernels of ours: a type without values, so that the choice compiles away.

use std::convert::Infallible;

use wattlock_core::Error;

use super::super::span::Span;
use super::{NONCE, TAG};
use crate::detect::Cpu;

pub(in super::super) struct Key(Infallible);

impl Key {
    pub(super) fn available(_: &Cpu) -> bool {
        false
    }

    pub(super) fn new(_: &Cpu, _: &[u8; 32]) -> Option<Key> {
        None
    }

    pub(super) fn seal(&self, _: &[u8; NONCE], _: &[u8], _: Span<'_>) -> [u8; TAG] {
        match self.0 {}
    }

    pub(super) fn open(&self, _: &[u8; NONCE], _: &[u8], _: Span<'_>, _: &[u8; TAG]) -> Result<(), Error> {
        match self.0 {}
    }
}
