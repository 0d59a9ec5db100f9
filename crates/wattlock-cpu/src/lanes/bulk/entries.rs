//! Which kernel does which hash, and the entries of the generic ones: compiled with AVX-512 or AVX2.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::hash::{Kernels, State};
use super::rounds;
use crate::detect::{Avx2, Avx512, Cpu, ShaNi};
use crate::instruction::aes::chains::Batch;
use crate::instruction::sys::hash::{Hash, Sha1, Sha256, Sha512};
use crate::lanes::words::{Register, Ymm, Zmm, block32, block64};
use crate::lanes::{sha1, sha2};

/// Instructions for a hash. With registers of 512 bits and SHA instructions both, a measurement says how many messages
/// it takes until the registers are quicker: on Zen 5 for SHA-256 and SHA-1, on Zen 4 for SHA-1 only.
#[derive(Debug, Clone, Copy)]
pub enum Isa {
    /// Registers of 512 bits; a few messages by the SHA instructions, where there are any.
    Wide512(Avx512, Option<ShaNi>),
    /// Registers of 256 bits.
    Wide256(Avx2),
    /// The SHA instructions.
    Rounds(ShaNi),
}

impl Isa {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Wide512(_, Some(_)) => "AVX-512 or interleaved SHA instructions",
            Isa::Wide512(_, None) => "AVX-512",
            Isa::Wide256(_) => "AVX2",
            Isa::Rounds(_) => "interleaved SHA instructions",
        }
    }

    /// Eight words in registers of 256 bits are worse than the SHA instructions everywhere.
    fn with_rounds(cpu: &Cpu) -> Option<Isa> {
        let rounds = cpu.sha.filter(|_| cpu.avx512.is_none()).map(Isa::Rounds);
        rounds.or_else(|| Isa::wide(cpu))
    }

    fn wide(cpu: &Cpu) -> Option<Isa> {
        cpu.avx512.map(|wide| Isa::Wide512(wide, cpu.sha)).or(cpu.avx2.map(Isa::Wide256))
    }
}

/// SHA-1.
#[derive(Debug, Clone, Copy)]
pub struct OfSha1(pub Isa);

/// SHA-256.
#[derive(Debug, Clone, Copy)]
pub struct OfSha256(pub Isa);

/// SHA-512 and SHA-384.
#[derive(Debug, Clone, Copy)]
pub struct OfSha512(pub Isa);

impl OfSha1 {
    /// The quickest this CPU has for many messages.
    pub fn best(cpu: &Cpu) -> Option<OfSha1> {
        Isa::with_rounds(cpu).map(OfSha1)
    }
}

impl OfSha256 {
    /// The quickest this CPU has for many messages.
    pub fn best(cpu: &Cpu) -> Option<OfSha256> {
        Isa::with_rounds(cpu).map(OfSha256)
    }
}

impl OfSha512 {
    /// The quickest this CPU has for many messages.
    pub fn best(cpu: &Cpu) -> Option<OfSha512> {
        Isa::wide(&Cpu { sha: None, ..*cpu }).map(OfSha512)
    }
}

/// Blocks of one lane by AWS-LC.
///
/// # Safety
/// So many blocks must be readable behind the lane's pointer.
unsafe fn library<H: Hash, const L: usize>(
    state: &mut State<H::Word, L>,
    at: &[*const u8; L],
    lane: usize,
    blocks: usize,
) {
    let mut words = [state.0[0][lane]; 8];
    words.iter_mut().zip(&state.0).for_each(|(word, row)| *word = row[lane]);
    let mut one = H::between(&words);
    // SAFETY: the caller's blocks.
    one.update(unsafe { std::slice::from_raw_parts(at[lane], blocks * H::BLOCK) });
    state.0.iter_mut().zip(one.words()).for_each(|(row, word)| row[lane] = word);
}

/// A wide step: as many words of the state as the hash has, and blocks by `$block`.
macro_rules! wide {
    ($name:ident: $register:ident, $features:literal, $words:literal, $word:ty, $lanes:literal, $bytes:literal, $block:ident,
     $compress:expr) => {
        /// # Safety
        /// The CPU must have the instructions; so many blocks must be readable behind each pointer.
        #[target_feature(enable = $features)]
        unsafe fn $name(state: &mut State<$word, $lanes>, at: &[*const u8; $lanes], blocks: usize) {
            // SAFETY: the caller's blocks; a row of the state is at least a register long.
            unsafe {
                let mut words = [$register::load(state.0[0].as_ptr().cast()); $words];
                for (word, row) in words.iter_mut().zip(&state.0) {
                    *word = $register::load(row.as_ptr().cast());
                }
                for block in 0..blocks {
                    $compress(&mut words, &$block::<$register>(at, $bytes * block));
                }
                for (word, row) in words.iter().zip(&mut state.0) {
                    word.store(row.as_mut_ptr().cast());
                }
            }
        }
    };
}

wide!(sha1_512: Zmm, "avx512f,avx512bw", 5, u32, 16, 64, block32, sha1::compress);
wide!(sha1_256: Ymm, "avx2", 5, u32, 16, 64, block32, sha1::compress);
wide!(sha256_512: Zmm, "avx512f,avx512bw", 8, u32, 16, 64, block32, sha2::compress::<sha2::Sha256, _>);
wide!(sha256_256: Ymm, "avx2", 8, u32, 16, 64, block32, sha2::compress::<sha2::Sha256, _>);
wide!(sha512_512: Zmm, "avx512f,avx512bw", 8, u64, 8, 128, block64, sha2::compress::<sha2::Sha512, _>);
wide!(sha512_256: Ymm, "avx2", 8, u64, 8, 128, block64, sha2::compress::<sha2::Sha512, _>);

/// The lanes of a hash: in wide registers, by the SHA instructions where it has any, and one by AWS-LC.
macro_rules! kernels {
    ($of:ident, $library:ident, $word:ty, $lanes:literal: $wide512:ident, $wide256:ident $(, $rounds:path, $beside:path)?) => {
        // SAFETY: a register of 512 bits has as many words as there are lanes, one of 256 half as many; the SHA instructions
        // and the library read the lanes that are named.
        unsafe impl Kernels<$lanes> for $of {
            type Word = $word;
            const BLOCK: usize = <$library as Hash>::BLOCK;

            fn lanes(&self) -> usize {
                match self.0 {
                    Isa::Wide512(..) => $lanes,
                    Isa::Wide256(_) => $lanes / 2,
                    Isa::Rounds(_) => 0,
                }
            }

            fn least(&self) -> usize {
                match self.0 {
                    $(Isa::Wide512(_, Some(_)) => {
                        let _ = $rounds;
                        static KNOWN: OnceLock<usize> = OnceLock::new();
                        measured(self, &KNOWN)
                    })?
                    #[allow(unreachable_patterns)]
                    _ => LEAST,
                }
            }

            fn most(&self) -> usize {
                match self.0 {
                    $(Isa::Wide512(_, Some(_)) | Isa::Rounds(_) => {
                        let _ = $rounds;
                        rounds::MOST
                    })?
                    #[allow(unreachable_patterns)]
                    _ => 1,
                }
            }

            unsafe fn wide(&self, state: &mut State<$word, $lanes>, at: &[*const u8; $lanes], blocks: usize) {
                // SAFETY: the witness proves the instructions; the blocks are the caller's.
                unsafe {
                    match self.0 {
                        Isa::Wide512(..) => $wide512(state, at, blocks),
                        Isa::Wide256(_) => $wide256(state, at, blocks),
                        Isa::Rounds(_) => {}
                    }
                }
            }

            unsafe fn few(
                &self,
                state: &mut State<$word, $lanes>,
                at: &[*const u8; $lanes],
                lanes: &[usize],
                blocks: usize,
            ) {
                // SAFETY: as above.
                unsafe {
                    match (self.0, lanes) {
                        (_, [lane]) => library::<$library, $lanes>(state, at, *lane, blocks),
                        $((Isa::Wide512(_, Some(sha)) | Isa::Rounds(sha), _) => $rounds(sha, state, at, lanes, blocks),)?
                        _ => {}
                    }
                }
            }

            $(
            fn leads(&self) -> (usize, usize) {
                match self.0 {
                    Isa::Wide512(_, Some(_)) | Isa::Rounds(_) => (rounds::MOST, rounds::STEPS),
                    _ => (0, 0),
                }
            }

            unsafe fn few_beside(
                &self,
                state: &mut State<$word, $lanes>,
                at: &[*const u8; $lanes],
                lanes: &[usize],
                blocks: usize,
                chains: &mut Batch<'_, '_>,
            ) {
                if let (Isa::Wide512(_, Some(sha)) | Isa::Rounds(sha), Ok(lanes)) = (self.0, lanes.try_into()) {
                    // SAFETY: as above; the steps are the caller's.
                    unsafe { $beside(sha, state, at, lanes, blocks, chains) };
                }
            }
            )?
        }
    };
}

/// From how many lanes in use on a wide step takes less than interleaved ones, on this CPU: measured once, in some 20 us.
/// More than there are lanes if never.
fn measured<K: Kernels<16>>(kernels: &K, known: &OnceLock<usize>) -> usize {
    const BLOCKS: usize = 8;
    *known.get_or_init(|| {
        let text = [0u8; 64 * BLOCKS];
        let (mut state, at, lanes) =
            (State([[K::Word::default(); 16]; 8]), [text.as_ptr(); 16], [0, 1, 2, 3]);
        let mut best = [Duration::MAX; 2];
        for _ in 0..7 {
            let start = Instant::now();
            // SAFETY: every lane reads the text.
            unsafe { kernels.few(&mut state, &at, &lanes, BLOCKS) };
            let between = Instant::now();
            // SAFETY: as above.
            unsafe { kernels.wide(&mut state, &at, BLOCKS) };
            best = [best[0].min(between - start), best[1].min(between.elapsed())];
        }
        let each = (best[0].as_nanos() as usize).max(1);
        (best[1].as_nanos() as usize * lanes.len()).div_ceil(each).clamp(2, 17)
    })
}

/// Lanes in use from which a wide step takes less than one after the other by the library: SHA-512 on Zen 4 and Zen 5, by
/// AVX-512 and by AVX2; SHA-1 and SHA-256 where there are no SHA instructions.
const LEAST: usize = 3;

kernels!(OfSha1, Sha1, u32, 16: sha1_512, sha1_256, rounds::sha1, rounds::sha1_beside);
kernels!(OfSha256, Sha256, u32, 16: sha256_512, sha256_256, rounds::sha256, rounds::sha256_beside);
kernels!(OfSha512, Sha512, u64, 8: sha512_512, sha512_256);
