//! ECDSA nonces of eight requests side by side: RFC 6979 section 3.2 with fresh random bytes at the end of what its
//! HMAC-DRBG is seeded with (section 3.6), as the portable engine does it, with a hash exactly as long as the order.
//!
//! Everything hashed is `V`, of a digest's length, or `V || b || secret || digest || fresh` with a byte `b`, padded: all
//! lanes' messages have the same blocks. A key's two pads are hashed once and serve its two codes: twenty (SHA-256) or
//! eighteen (SHA-384) compressions make a nonce.

use super::super::sha2::{Block, Sha2, Sha256, Sha512, State};
use super::super::vector::{LANES, Vector};
use super::curve::Curve;
use super::pieces::Pieces;

/// Random bytes mixed into a nonce.
pub const FRESH: usize = 32;

/// What a curve's nonces are made with.
pub trait NonceHash: 'static {
    /// The family.
    type Family: Sha2;
    /// The state before any block.
    const INITIAL: [u64; 8];
    /// Words of a digest.
    const DIGEST: usize;
}

/// SHA-256, for P-256.
pub struct WithSha256;

/// SHA-384, for P-384.
pub struct WithSha384;

impl NonceHash for WithSha256 {
    type Family = Sha256;
    #[rustfmt::skip]
    const INITIAL: [u64; 8] = [
        0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19,
    ];
    const DIGEST: usize = 8;
}

impl NonceHash for WithSha384 {
    type Family = Sha512;
    #[rustfmt::skip]
    const INITIAL: [u64; 8] = [
        0xcbbb_9d5d_c105_9ed8, 0x629a_292a_367c_d507, 0x9159_015a_3070_dd17, 0x152f_ecd8_f70e_5939,
        0x6733_2667_ffc0_0b31, 0x8eb4_4a87_6858_1511, 0xdb0c_2e0d_64f9_8fa7, 0x47b5_481d_befa_4fa4,
    ];
    const DIGEST: usize = 6;
}

/// Words of the longest seed after `V`: three blocks of sixteen less the digest, for either hash.
pub const SEED: usize = 40;

/// Words of a seed after `V`, padded to whole blocks: SHA-256 `8 + 40 = 3 * 16`, SHA-384 `6 + 26 = 2 * 16`.
const fn seed_words<H: NonceHash>() -> usize {
    if H::DIGEST == 8 { 40 } else { 26 }
}

/// A lane's seed, `0 || secret || digest || fresh`, with the padding of what it is hashed with: a block of pad and `V` before it.
pub fn seed<H: NonceHash>(secret: &[u8], digest: &[u8], fresh: &[u8; FRESH]) -> [u64; SEED] {
    let word = H::Family::BYTES;
    let mut bytes = [0u8; SEED * 8];
    let (middle, end) = (1 + secret.len(), 1 + secret.len() + digest.len());
    let len = end + FRESH;
    bytes[1..middle].copy_from_slice(secret);
    bytes[middle..end].copy_from_slice(digest);
    bytes[end..len].copy_from_slice(fresh);
    bytes[len] = 0x80;
    let mut out = [0; SEED];
    for (out, bytes) in out.iter_mut().zip(bytes.chunks_exact(word)) {
        *out = if let Ok(long) = bytes.try_into() {
            u64::from_be_bytes(long)
        } else {
            bytes.try_into().map_or(0, |short| u64::from(u32::from_be_bytes(short)))
        };
    }
    zeroize::Zeroize::zeroize(&mut bytes);
    out[seed_words::<H>() - 1] = 8 * ((16 + H::DIGEST) * word + len) as u64;
    out
}

/// The states after a key's pads.
#[derive(Clone, Copy)]
struct Pads<V> {
    inner: State<V>,
    outer: State<V>,
}

/// A word of a pad: its byte, repeated.
fn pad<H: NonceHash>(byte: u64) -> u64 {
    (byte * 0x0101_0101_0101_0101) & (u64::MAX >> (64 - 8 * H::Family::BYTES))
}

#[inline(always)]
fn pads<C: Curve<N>, V: Pieces<C, N>, const N: usize>(key: &State<V>) -> Pads<V> {
    Pads { inner: padded::<C, V, N>(key, 0x36), outer: padded::<C, V, N>(key, 0x5c) }
}

#[inline(always)]
fn padded<C: Curve<N>, V: Pieces<C, N>, const N: usize>(key: &State<V>, byte: u64) -> State<V> {
    let mut block = [V::splat(pad::<C::Hash>(byte)); 16];
    for at in 0..C::Hash::DIGEST {
        block[at] = block[at].xor(key[at]);
    }
    let mut state = initial::<C::Hash, V>();
    V::compress(&mut state, &block);
    state
}

#[inline(always)]
fn initial<H: NonceHash, V: Vector>() -> State<V> {
    super::field::splat(&H::INITIAL)
}

/// The code from the inner digest: a digest, then the padding of a block of pad and a digest.
#[inline(always)]
fn finish<C: Curve<N>, V: Pieces<C, N>, const N: usize>(pads: &Pads<V>, inner: &State<V>) -> State<V> {
    let mut state = pads.outer;
    V::compress(&mut state, &digest_block::<C::Hash, V>(inner));
    state
}

#[inline(always)]
fn digest_block<H: NonceHash, V: Vector>(digest: &State<V>) -> Block<V> {
    let mut block = [V::splat(0); 16];
    block[..H::DIGEST].copy_from_slice(&digest[..H::DIGEST]);
    block[H::DIGEST] = V::splat(0x80 << (8 * (H::Family::BYTES - 1)));
    block[15] = V::splat((8 * (16 + H::DIGEST) * H::Family::BYTES) as u64);
    block
}

/// `HMAC(K, V)`.
#[inline(always)]
fn advance<C: Curve<N>, V: Pieces<C, N>, const N: usize>(pads: &Pads<V>, value: &State<V>) -> State<V> {
    let mut inner = pads.inner;
    V::compress(&mut inner, &digest_block::<C::Hash, V>(value));
    finish::<C, V, N>(pads, &inner)
}

/// `HMAC(K, V || b || secret || digest || fresh)`.
#[inline(always)]
fn reseed<C: Curve<N>, V: Pieces<C, N>, const N: usize>(
    pads: &Pads<V>,
    value: &State<V>,
    byte: u64,
    seed: &[V; SEED],
) -> State<V> {
    let mut inner = pads.inner;
    let digest = C::Hash::DIGEST;
    let mut block = [V::splat(0); 16];
    block[..digest].copy_from_slice(&value[..digest]);
    block[digest..].copy_from_slice(&seed[..16 - digest]);
    block[digest] = block[digest].or(V::splat(byte << (8 * (<C::Hash as NonceHash>::Family::BYTES - 1))));
    V::compress(&mut inner, &block);
    for from in (16 - digest..seed_words::<C::Hash>()).step_by(16) {
        block.copy_from_slice(&seed[from..from + 16]);
        V::compress(&mut inner, &block);
    }
    finish::<C, V, N>(pads, &inner)
}

/// The first candidate for a nonce, which is out of range as good as never: its words, in the first [`NonceHash::DIGEST`].
#[inline(always)]
pub fn candidate<C: Curve<N>, V: Pieces<C, N>, const N: usize>(seed: &[V; SEED]) -> State<V> {
    let key = [V::splat(0); 8];
    let value = [V::splat(pad::<C::Hash>(1)); 8];
    let first = pads::<C, V, N>(&key);
    let key = reseed::<C, V, N>(&first, &value, 0, seed);
    let second = pads::<C, V, N>(&key);
    let value = advance::<C, V, N>(&second, &value);
    let key = reseed::<C, V, N>(&second, &value, 1, seed);
    let third = pads::<C, V, N>(&key);
    let value = advance::<C, V, N>(&third, &value);
    advance::<C, V, N>(&third, &value)
}

/// A candidate's words as the bytes of a lane's nonce.
pub fn write<H: NonceHash>(words: &[[u64; LANES]; 8], lane: usize, out: &mut [u8]) {
    for (bytes, word) in out.chunks_exact_mut(H::Family::BYTES).zip(words) {
        bytes.copy_from_slice(&word[lane].to_be_bytes()[8 - H::Family::BYTES..]);
    }
}
