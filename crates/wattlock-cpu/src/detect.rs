//! What this CPU can do, found once and carried as values: no other file asks.
//!
//! A witness ([`Vaes512`], [`Vaes256`], [`AesNi`], [`Ifma512`], [`Fma256`], [`Avx512`], [`Avx2`], [`ShaNi`]) is a zero-sized proof that its instructions were found. Only
//! [`Cpu::detect`] makes one, and every kernel that needs the instructions demands one as an argument, so a call
//! without them does not type-check. This module refuses to ask for the CPU's maker: only what it can do.

/// Proof of 512-bit AES: `vaes`, `vpclmulqdq`, `avx512f`, `avx512bw`, `avx512vl` (and what they imply).
#[derive(Debug, Clone, Copy)]
pub struct Vaes512(());

/// Proof of 256-bit AES: `vaes`, `vpclmulqdq`, `avx2`, `aes`, `pclmulqdq`.
#[derive(Debug, Clone, Copy)]
pub struct Vaes256(());

/// Proof of 128-bit AES: `aes`, `pclmulqdq`, `ssse3`, `sse4.1`.
#[derive(Debug, Clone, Copy)]
pub struct AesNi(());

/// Proof of 512-bit multiply-add on 52-bit integers: `avx512f`, `avx512bw`, `avx512dq`, `avx512vl`, `avx512ifma`.
#[derive(Debug, Clone, Copy)]
pub struct Ifma512(());

/// Proof of 256-bit integers and fused multiply-add on doubles: `avx2`, `fma`.
#[derive(Debug, Clone, Copy)]
pub struct Fma256(());

/// Proof of 512-bit integers of 8 to 64 bits: `avx512f`, `avx512bw`.
#[derive(Debug, Clone, Copy)]
pub struct Avx512(());

/// Proof of 256-bit integers: `avx2`.
#[derive(Debug, Clone, Copy)]
pub struct Avx2(());

/// Proof of rounds of SHA-1 and SHA-256: `sha`, `ssse3`, `sse4.1`.
#[derive(Debug, Clone, Copy)]
pub struct ShaNi(());

/// The witnesses this machine gave. Fields can be emptied, to run the siblings on a machine that has better.
#[derive(Debug, Clone, Copy)]
pub struct Cpu {
    /// 512-bit AES, if there is any.
    pub vaes512: Option<Vaes512>,
    /// 256-bit AES, if there is any.
    pub vaes256: Option<Vaes256>,
    /// 128-bit AES, if there is any.
    pub aes_ni: Option<AesNi>,
    /// 512-bit multiply-add on 52-bit integers, if there is any.
    pub ifma512: Option<Ifma512>,
    /// 256-bit fused multiply-add, if there is any.
    pub fma256: Option<Fma256>,
    /// 512-bit integers, if there are any.
    pub avx512: Option<Avx512>,
    /// 256-bit integers, if there are any.
    pub avx2: Option<Avx2>,
    /// Rounds of SHA-1 and SHA-256, if there are any.
    pub sha: Option<ShaNi>,
    /// Whether there is what other libraries are faster with and no kernel of ours uses.
    pub beside: Beside,
}

/// Instructions that no kernel of ours needs. They tell how fast another library is here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Beside {
    /// `avx512vbmi2`, with 512-bit AES and `avx512dq`.
    pub vbmi2: bool,
    /// `avxifma`: 256-bit multiply-add on 52-bit integers without AVX-512.
    pub ifma256: bool,
}

impl Cpu {
    /// A CPU of which nothing is known.
    pub const PLAIN: Cpu = Cpu {
        vaes512: None,
        vaes256: None,
        aes_ni: None,
        ifma512: None,
        fma256: None,
        avx512: None,
        avx2: None,
        sha: None,
        beside: Beside { vbmi2: false, ifma256: false },
    };

    /// Asks the CPU (and the operating system, which must save the wide registers).
    #[cfg(target_arch = "x86_64")]
    pub fn detect() -> Cpu {
        use std::arch::is_x86_feature_detected as has;
        let aes_ni = has!("aes") && has!("pclmulqdq") && has!("ssse3") && has!("sse4.1");
        let vaes256 = aes_ni && has!("vaes") && has!("vpclmulqdq") && has!("avx2");
        let vaes512 = vaes256 && has!("avx512f") && has!("avx512bw") && has!("avx512vl");
        let avx512 = has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
        let ifma512 = avx512 && has!("avx512ifma");
        Cpu {
            vaes512: vaes512.then_some(Vaes512(())),
            vaes256: vaes256.then_some(Vaes256(())),
            aes_ni: aes_ni.then_some(AesNi(())),
            ifma512: ifma512.then_some(Ifma512(())),
            fma256: (has!("avx2") && has!("fma")).then_some(Fma256(())),
            avx512: (has!("avx512f") && has!("avx512bw")).then_some(Avx512(())),
            avx2: has!("avx2").then_some(Avx2(())),
            sha: (has!("sha") && has!("ssse3") && has!("sse4.1")).then_some(ShaNi(())),
            beside: Beside {
                vbmi2: vaes512 && has!("avx512dq") && has!("avx512vbmi2"),
                ifma256: has!("avxifma"),
            },
        }
    }

    /// No kernels of ours exist for this architecture.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn detect() -> Cpu {
        Cpu::PLAIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wider_instructions_imply_narrower_ones() {
        let cpu = Cpu::detect();
        assert!(cpu.vaes512.is_none() || cpu.vaes256.is_some());
        assert!(cpu.vaes256.is_none() || cpu.aes_ni.is_some());
    }
}
