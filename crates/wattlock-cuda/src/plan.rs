//! Which kernels a kind needs, in which order, and how the messages of a batch lie in memory: the launching half of
//! `gpu/kernels/wattlock_gpu.h`. Pure: it knows addresses, and calls nothing.

use std::ffi::CStr;

use wattlock_core::{Family, Group, Kind, KindSet};

use crate::sys::Address;

/// Version of the header that this was written for.
pub(crate) const VERSION: u32 = 1;
/// Threads of a block.
pub(crate) const BLOCK: u32 = 128;
/// Bytes of a row of AES, and rows of a tile.
const ROW: u64 = 512;
const TILE_ROWS: u64 = 32;
/// Bytes of a segment of ChaCha20.
const SEGMENT: u64 = 65536;
/// Messages that a warp does at once in kernels that do one block a message.
const WARP_MESSAGES: u64 = 1024;
/// Bytes of a key area.
pub(crate) const KEY_AREA: usize = 28672;
/// Bytes of scratch for each message, and for each tile or segment.
const SCRATCH_AES: u64 = 32;
const SCRATCH_CHACHA: u64 = 256;
const SCRATCH_UNIT: u64 = 32;
/// `WL_KEY_TWO`: the key area is for a data key and a tweak key.
pub(crate) const KEY_TWO: u32 = 1;
pub(crate) const TAG: usize = 16;
/// Every part of a slot begins at a multiple of this.
const ALIGN: usize = 256;

/// `wl_message`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Message {
    input: u64,
    output: u64,
    length: u64,
    before: u64,
    aad: u64,
    aad_length: u64,
}

/// `wl_run`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Run {
    pub(crate) version: u32,
    pub(crate) messages: u32,
    pub(crate) key_bytes: u32,
    pub(crate) flags: u32,
    pub(crate) units: u64,
    pub(crate) input: Address,
    pub(crate) input_stride: u64,
    pub(crate) output: Address,
    pub(crate) output_stride: u64,
    pub(crate) length: u64,
    pub(crate) last_length: u64,
    pub(crate) table: Address,
    pub(crate) key: Address,
    pub(crate) nonces: Address,
    pub(crate) nonce_stride: u64,
    pub(crate) aad: Address,
    pub(crate) aad_stride: u64,
    pub(crate) aad_length: u64,
    pub(crate) tags: Address,
    pub(crate) tag_stride: u64,
    pub(crate) last_tag: Address,
    pub(crate) results: Address,
    pub(crate) scratch: Address,
}

/// What a kernel's grid counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grid {
    /// Tiles of rows, a warp each.
    Tiles,
    /// Tiles, a thread each.
    Edges,
    /// Segments, a warp each.
    Segments,
    /// Messages, a thread each.
    Each,
    /// Messages, a warp for so many.
    Many,
    /// One block.
    One,
}

/// A kernel of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) kernel: &'static CStr,
    grid: Grid,
}

const fn step(kernel: &'static CStr, grid: Grid) -> Step {
    Step { kernel, grid }
}

const fn xts(most: &'static CStr, end: &'static CStr) -> [Step; 4] {
    [AES_KEY, step(c"wl_aes_xts_tweaks", Grid::Many), step(most, Grid::Tiles), step(end, Grid::Many)]
}

pub(crate) const AES_KEY: Step = step(c"wl_aes_key", Grid::One);
const CTR: &[Step] = &[AES_KEY, step(c"wl_aes_ctr", Grid::Tiles)];
const GCM_SEAL: &[Step] = &[
    AES_KEY,
    step(c"wl_aes_gcm_masks", Grid::Many),
    step(c"wl_aes_gcm_seal", Grid::Tiles),
    step(c"wl_aes_gcm_tags", Grid::Each),
];
const GCM_OPEN: &[Step] = &[
    AES_KEY,
    step(c"wl_aes_gcm_masks", Grid::Many),
    step(c"wl_aes_ghash", Grid::Tiles),
    step(c"wl_aes_gcm_verify", Grid::Each),
    step(c"wl_aes_gcm_open", Grid::Tiles),
];
const XTS_ENCRYPT: &[Step] = &xts(c"wl_aes_xts_encrypt", c"wl_aes_xts_encrypt_end");
const XTS_DECRYPT: &[Step] = &xts(c"wl_aes_xts_decrypt", c"wl_aes_xts_decrypt_end");
const CBC_DECRYPT: &[Step] =
    &[AES_KEY, step(c"wl_aes_cbc_edges", Grid::Edges), step(c"wl_aes_cbc_decrypt", Grid::Tiles)];
const CHACHA_SEAL: &[Step] = &[
    step(c"wl_chacha_keys", Grid::Each),
    step(c"wl_chacha_seal", Grid::Segments),
    step(c"wl_chacha_tags", Grid::Each),
];
const CHACHA_OPEN: &[Step] = &[
    step(c"wl_chacha_keys", Grid::Each),
    step(c"wl_chacha_poly", Grid::Segments),
    step(c"wl_chacha_verify", Grid::Each),
    step(c"wl_chacha_open", Grid::Segments),
];

/// The kernels of a kind; `None` for one that has none.
pub(crate) fn steps(kind: Kind) -> Option<&'static [Step]> {
    let info = kind.info();
    let opens = info.family == Family::Open;
    let decrypts = info.undoes.is_some();
    Some(match info.group {
        Group::Ctr => CTR,
        Group::Gcm if opens => GCM_OPEN,
        Group::Gcm => GCM_SEAL,
        Group::Xts if decrypts => XTS_DECRYPT,
        Group::Xts => XTS_ENCRYPT,
        Group::Cbc if decrypts => CBC_DECRYPT,
        Group::ChaChaPoly if opens => CHACHA_OPEN,
        Group::ChaChaPoly => CHACHA_SEAL,
        _ => return None,
    })
}

/// Every kind that has kernels.
pub(crate) fn kinds() -> KindSet {
    Kind::ALL.iter().copied().filter(|kind| steps(*kind).is_some()).collect()
}

/// One message of a batch, as lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) len: usize,
    pub(crate) aad_len: usize,
}

/// How a batch lies in a slot: one block of memory on the host, its copy on the device, and behind that what only the
/// device has. Offsets in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    kind: Kind,
    messages: usize,
    units: u64,
    table: Vec<Message>,
    pub(crate) nonces: usize,
    pub(crate) nonce_len: usize,
    pub(crate) aad: usize,
    /// Where the host's block begins to come back, too: tags, results, data.
    pub(crate) tags: usize,
    pub(crate) results: usize,
    pub(crate) data: usize,
    /// Bytes of the block that both sides have.
    pub(crate) shared: usize,
    scratch: usize,
    /// Bytes on the device.
    pub(crate) device: usize,
}

fn aligned(at: usize) -> usize {
    at.next_multiple_of(ALIGN)
}

impl Layout {
    /// Where everything goes. The key is at offset 0.
    pub(crate) fn new(kind: Kind, nonce_len: usize, parts: &[Part]) -> Layout {
        let unit = unit(kind);
        let (mut table, mut units, mut at, mut aad_at) = (Vec::with_capacity(parts.len()), 0, 0, 0);
        for part in parts {
            let length = part.len as u64;
            let aad_length = part.aad_len as u64;
            table.push(Message { input: at, output: at, length, before: units, aad: aad_at, aad_length });
            units += length.div_ceil(unit);
            // Rows on multiples of 16 are read and written in one piece.
            at = (at + length).next_multiple_of(16);
            aad_at += aad_length;
        }
        let messages = parts.len();
        let table_at = ALIGN;
        let nonces = aligned(table_at + std::mem::size_of_val(&table[..]));
        let aad = aligned(nonces + messages * nonce_len);
        let tags = aligned(aad + aad_at as usize);
        let results = aligned(tags + messages * TAG);
        let data = aligned(results + messages * 4);
        let shared = aligned(data + at as usize);
        let mut layout = Layout {
            kind,
            messages,
            units,
            table,
            nonces,
            nonce_len,
            aad,
            tags,
            results,
            data,
            shared,
            scratch: 0,
            device: 0,
        };
        // The raw key's copy lies in the key area, which only the device has.
        layout.scratch = shared + aligned(KEY_AREA);
        let scratch = scratch_bytes(kind, messages as u64, units);
        layout.device = aligned(layout.scratch + scratch as usize);
        layout
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Where the table of messages goes in the shared block, and the table.
    pub(crate) fn table(&self) -> (usize, &[Message]) {
        (ALIGN, &self.table)
    }

    /// Where message `index` lies in the shared block.
    pub(crate) fn at(&self, index: usize) -> usize {
        self.data + self.table[index].input as usize
    }

    /// Where its associated data go.
    pub(crate) fn aad_at(&self, index: usize) -> usize {
        self.aad + self.table[index].aad as usize
    }

    /// Where the key area is, from the start of the device's memory.
    pub(crate) fn key_area(&self) -> usize {
        self.shared
    }

    /// The parameter of every kernel, for a slot whose device memory begins at `base`.
    pub(crate) fn run(&self, base: Address, key_len: usize) -> Run {
        let at = |offset: usize| base + offset as u64;
        let two = self.kind.info().group == Group::Xts;
        Run {
            version: VERSION,
            messages: self.messages as u32,
            key_bytes: (if two { key_len / 2 } else { key_len }) as u32,
            flags: if two { KEY_TWO } else { 0 },
            units: self.units,
            input: at(self.data),
            output: at(self.data),
            table: at(ALIGN),
            key: at(self.key_area()),
            nonces: at(self.nonces),
            nonce_stride: self.nonce_len as u64,
            aad: at(self.aad),
            tags: at(self.tags),
            tag_stride: TAG as u64,
            last_tag: at(self.tags + (self.messages.max(1) - 1) * TAG),
            results: at(self.results),
            scratch: at(self.scratch),
            ..Run::default()
        }
    }

    /// Blocks of a step's grid; 0: it need not be launched.
    pub(crate) fn blocks(&self, step: &Step) -> u32 {
        blocks(step, self.kind, self.messages as u64, self.units)
    }
}

/// Bytes of a unit of a kind's messages: a row, or a segment.
pub(crate) fn unit(kind: Kind) -> u64 {
    if kind.info().group == Group::ChaChaPoly { SEGMENT } else { ROW }
}

/// Tiles or segments.
fn strips(kind: Kind, units: u64) -> u64 {
    if unit(kind) == SEGMENT { units } else { units.div_ceil(TILE_ROWS) }
}

/// Bytes of scratch for so many messages of so many units in all.
pub(crate) fn scratch_bytes(kind: Kind, messages: u64, units: u64) -> u64 {
    let each = if unit(kind) == SEGMENT { SCRATCH_CHACHA } else { SCRATCH_AES };
    messages * each + (strips(kind, units) + 1) * SCRATCH_UNIT
}

/// Blocks of a step's grid; 0: it need not be launched.
pub(crate) fn blocks(step: &Step, kind: Kind, messages: u64, units: u64) -> u32 {
    let warps = u64::from(BLOCK / 32);
    let strips = strips(kind, units);
    let blocks = match step.grid {
        Grid::Tiles | Grid::Segments => strips.div_ceil(warps),
        Grid::Edges => strips.div_ceil(u64::from(BLOCK)),
        Grid::Each => messages.div_ceil(u64::from(BLOCK)),
        Grid::Many => messages.div_ceil(warps * WARP_MESSAGES),
        Grid::One => 1,
    };
    blocks.min(u64::from(u32::MAX >> 1)) as u32
}

/// Bytes of a slot's shared block that messages of so many bytes in all, and so many of them, need at most.
pub(crate) fn shared_bytes(bytes: usize, messages: usize) -> usize {
    bytes + messages * (16 + size_of::<Message>() + 64 + TAG + 4) + 8 * ALIGN
}

/// The same for the device's.
pub(crate) fn device_bytes(bytes: usize, messages: usize) -> usize {
    let scratch = messages * SCRATCH_CHACHA as usize + (bytes / ROW as usize + messages + 2) * 32;
    shared_bytes(bytes, messages) + KEY_AREA + scratch + 4 * ALIGN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_header_s_sizes() {
        assert_eq!((size_of::<Message>(), size_of::<Run>()), (48, 168));
    }

    #[test]
    fn numbers_are_the_header_s() {
        let header = include_str!("../../../gpu/kernels/wattlock_gpu.h");
        let number = |name: &str| {
            let line = header.lines().find(|line| line.starts_with(&format!("#define {name} "))).unwrap();
            line.split_whitespace().nth(2).unwrap().trim_end_matches('u').parse::<u64>().unwrap()
        };
        for (name, ours) in [
            ("WL_GPU_VERSION", u64::from(VERSION)),
            ("WL_BLOCK", u64::from(BLOCK)),
            ("WL_ROW", ROW),
            ("WL_TILE_ROWS", TILE_ROWS),
            ("WL_SEGMENT", SEGMENT),
            ("WL_WARP_MESSAGES", WARP_MESSAGES),
            ("WL_KEY_AREA", KEY_AREA as u64),
            ("WL_TAG", TAG as u64),
            ("WL_KEY_TWO", u64::from(KEY_TWO)),
            ("WL_SCRATCH_MESSAGE_AES", SCRATCH_AES),
            ("WL_SCRATCH_MESSAGE_CHACHA", SCRATCH_CHACHA),
            ("WL_SCRATCH_UNIT", SCRATCH_UNIT),
        ] {
            assert_eq!(ours, number(name), "{name}");
        }
    }

    #[test]
    fn parts_of_a_slot_do_not_overlap_and_stay_within_what_was_promised() {
        for kind in kinds().iter() {
            for lengths in [vec![0], vec![1, 16384, 7], vec![65_537; 9], vec![0; 300]] {
                let parts: Vec<Part> = lengths.iter().map(|len| Part { len: *len, aad_len: 13 }).collect();
                let layout = Layout::new(kind, 16, &parts);
                let bytes: usize = lengths.iter().sum();
                assert!(
                    layout.nonces >= ALIGN + 48 * parts.len()
                        && layout.aad >= layout.nonces + 16 * parts.len()
                );
                assert!(layout.tags >= layout.aad + 13 * parts.len());
                assert!(
                    layout.data >= layout.results + 4 * parts.len()
                        && layout.results >= layout.tags + 16 * parts.len()
                );
                assert!(layout.at(parts.len() - 1) + lengths[parts.len() - 1] <= layout.shared);
                assert!(layout.shared <= shared_bytes(bytes, parts.len()), "{kind:?} {lengths:?}");
                assert!(layout.device <= device_bytes(bytes, parts.len()), "{kind:?} {lengths:?}");
            }
        }
    }

    #[test]
    fn units_and_grids_are_the_header_s() {
        let parts =
            [Part { len: 513, aad_len: 0 }, Part { len: 0, aad_len: 0 }, Part { len: 65_536, aad_len: 0 }];
        let layout = Layout::new(Kind::Aes256GcmSeal, 12, &parts);
        assert_eq!(layout.run(0, 32).units, 2 + 128);
        // 130 rows are 5 tiles, 4 to a block.
        let blocks: Vec<u32> = GCM_SEAL.iter().map(|step| layout.blocks(step)).collect();
        assert_eq!(blocks, [1, 1, 2, 1]);
        assert_eq!(layout.table[2].before, 2);
        let layout = Layout::new(Kind::ChaCha20Poly1305Open, 12, &parts);
        assert_eq!(layout.run(0, 32).units, 2);
        let nothing = Layout::new(Kind::Aes128Ctr, 16, &[Part { len: 0, aad_len: 0 }]);
        assert_eq!(nothing.blocks(&CTR[1]), 0);
    }
}
