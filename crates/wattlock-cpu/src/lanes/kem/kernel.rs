//! ML-KEM-768 (FIPS 203 sections 5 and 6) of up to eight requests side by side. Hashing is eight states to a vector; each
//! polynomial lies across eight vectors, one request after the other.
//!
//! *What is public.* Encapsulation keys and the matrix that their seed gives, ciphertexts that come, and whether a
//! decapsulation key's hash is right. [`Shorts::publish`] gives away what FIPS 203 gives away: of a key pair the whole of it
//! to its owner, and before that the matrix's seed; of an encapsulation ciphertext and shared secret; of a decapsulation the
//! shared secret. Whether a ciphertext was right is never public: a mask chooses between two secrets.

use super::codec::{self, BYTES4, BYTES10, BYTES12, Public, Secret};
use super::ntt::{self, Operand, Sum};
use super::sample::{self, Four, MESSAGE, Message, Samples};
use super::{CIPHERTEXT, LANES, PUBLIC, SEED};
use crate::lanes::vector::shorts::{BYTES, Poly, SHORTS, Shorts};

/// Polynomials in a vector of them (FIPS 203 section 8, parameter k).
const K: usize = 3;

/// Bytes of the vector at the beginning of a key.
const VECTOR: usize = K * BYTES12;

/// A key pair to be made.
#[derive(Default)]
pub struct Generation<'a> {
    /// `d || z`.
    pub seed: &'a [u8],
    /// The decapsulation key.
    pub out: &'a mut [u8],
}

/// An encapsulation.
#[derive(Default)]
pub struct Encapsulation<'a> {
    /// The peer's key, which is reduced.
    pub peer: &'a [u8],
    /// 32 random bytes.
    pub m: &'a [u8],
    /// Ciphertext and shared secret.
    pub out: &'a mut [u8],
}

/// A decapsulation.
#[derive(Default)]
pub struct Decapsulation<'a> {
    /// The decapsulation key.
    pub key: &'a [u8],
    /// The ciphertext.
    pub ciphertext: &'a [u8],
    /// The shared secret.
    pub out: &'a mut [u8],
    /// Whether the key's hash is that of its encapsulation key; if not, the secret is not written.
    pub fits: bool,
}

/// What all of a batch's requests need on the way. Wiped when it is dropped.
struct Work<V: Shorts> {
    messages: [Message; LANES],
    samples: Samples,
    /// Of each request, the transformed vector that the matrix is multiplied by.
    operands: [[Operand<V>; K]; LANES],
    /// Of each request, random bits of the errors.
    errors: [[[V; 2]; K + 1]; LANES],
    /// Of each request, a bit in each coefficient.
    bits: [Poly<V>; LANES],
}

impl<V: Shorts> Work<V> {
    #[inline(always)]
    fn new() -> Work<V> {
        let zero = V::splat(0);
        Work {
            messages: [[0; MESSAGE + BYTES]; LANES],
            samples: Samples::new(),
            operands: [[Operand::zero(); K]; LANES],
            errors: [[[zero; 2]; K + 1]; LANES],
            bits: [[zero; 8]; LANES],
        }
    }

    /// Zeros that the compiler takes for read.
    #[inline(always)]
    fn wipe(&mut self) {
        *self = Work::new();
        std::hint::black_box(&*self);
    }

    /// Noise of numbers 0 to 2, transformed, as operands; `take` also gets it. Then that of the numbers from 3 on, as bits.
    #[inline(always)]
    fn noise(&mut self, seeds: &Four<V>, count: usize, errors: usize, mut take: impl FnMut(usize, usize, &Poly<V>)) {
        let operands = &mut self.operands;
        let number = |job: usize, of: usize, from: usize| (job / of, (from + job % of) as u8);
        sample::noise(seeds, K * count, |job| number(job, K, 0), |job, random| {
            let mut poly = codec::binomial(random);
            ntt::ntt(&mut poly);
            operands[job / K][job % K] = Operand::new(&poly);
            take(job / K, job % K, &poly);
        });
        let kept = &mut self.errors;
        sample::noise(seeds, errors * count, |job| number(job, errors, K), |job, random| {
            kept[job / errors][job % errors] = *random;
        });
    }

    /// Rows of each request's matrix, or of the transposed one, times its operands: `take` gets each, divided by 2^16.
    #[inline(always)]
    fn products(
        &mut self,
        seeds: &Four<V>,
        count: usize,
        transposed: bool,
        mut take: impl FnMut(&mut [[[V; 2]; K + 1]; LANES], usize, usize, Poly<V>),
    ) {
        let (operands, errors, mut sum) = (&self.operands, &mut self.errors, Sum::new());
        let job = |job: usize| {
            let (row, column) = ((job / K % K) as u8, (job % K) as u8);
            (job / (K * K), if transposed { [row, column] } else { [column, row] })
        };
        sample::matrix(&mut self.samples, seeds, K * K * count, job, |job, poly| {
            let (lane, row, column) = (job / (K * K), job / K % K, job % K);
            for (at, a) in poly.iter().enumerate() {
                sum.add(at, *a, &operands[lane][column]);
            }
            if column == K - 1 {
                take(errors, lane, row, sum.reduced());
                sum = Sum::new();
            }
        });
    }

    /// K-PKE.Encrypt (FIPS 203 algorithm 14) of `bits` with the randomness of `seeds` under `peers`: `take` gets each
    /// polynomial of each request's ciphertext, not rounded: 0 to 2 of the vector, then the last.
    #[inline(always)]
    fn encrypt<'p>(
        &mut self,
        seeds: &Four<V>,
        peers: &impl Fn(usize) -> &'p [u8],
        count: usize,
        mut take: impl FnMut(usize, usize, Poly<V>),
    ) {
        self.noise(seeds, count, K + 1, |_, _, _| {});
        self.products(&matrix_seeds(peers, count), count, true, |errors, lane, row, mut poly| {
            ntt::inverse(&mut poly);
            add(&mut poly, &codec::binomial(&errors[lane][row]));
            take(lane, row, poly);
        });
        for lane in 0..count {
            let (peer, mut sum) = (peers(lane), Sum::new());
            for column in 0..K {
                let bytes = &peer[BYTES12 * column..];
                for at in 0..8 {
                    let t = codec::decode12::<V, Public>(bytes, at);
                    sum.add(at, t, &self.operands[lane][column]);
                }
            }
            let mut poly = sum.reduced();
            ntt::inverse(&mut poly);
            add(&mut poly, &codec::binomial(&self.errors[lane][K]));
            let half = V::splat16(1665);
            for (x, bit) in poly.iter_mut().zip(&self.bits[lane]) {
                *x = x.add16(bit.mul_lo16(half));
            }
            take(lane, K, poly);
        }
    }

    /// K-PKE.Decrypt (FIPS 203 algorithm 15): the bits that a ciphertext carries, to `bits`, and as bytes.
    #[inline(always)]
    fn decrypt(&mut self, lane: usize, key: &[u8], ciphertext: &[u8]) -> V {
        let mut sum = Sum::new();
        for column in 0..K {
            let (bytes, mut poly) = (&ciphertext[BYTES10 * column..], [V::splat(0); 8]);
            for (at, x) in poly.iter_mut().enumerate() {
                *x = codec::decompress(codec::decode10(bytes, at));
            }
            ntt::ntt(&mut poly);
            let (operand, secret) = (Operand::new(&poly), &key[BYTES12 * column..]);
            for at in 0..8 {
                sum.add(at, codec::decode12::<V, Secret>(secret, at), &operand);
            }
        }
        let mut poly = sum.reduced();
        ntt::inverse(&mut poly);
        // The last vectors' bytes end with the ciphertext: what is read beyond them is zeros.
        let mut last = [0; BYTES4 + 16];
        last[..BYTES4].copy_from_slice(&ciphertext[K * BYTES10..][..BYTES4]);
        for (at, x) in poly.iter_mut().enumerate() {
            let rest = codec::decompress(codec::decode4::<V>(&last, at)).sub16(*x);
            *x = codec::compress::<V, 1>(ntt::canonical(rest));
        }
        self.bits[lane] = poly;
        V::lowest_bits(&poly)
    }

    /// The hash of each lane's encapsulation key.
    #[inline(always)]
    fn hashes<'p>(&mut self, peers: &impl Fn(usize) -> &'p [u8], count: usize) -> Four<V> {
        for (lane, message) in self.messages.iter_mut().enumerate().take(count) {
            message[..PUBLIC].copy_from_slice(peers(lane));
            sample::pad(message, PUBLIC, 0x06);
        }
        sample::digest(&self.messages)
    }
}

#[inline(always)]
fn add<V: Shorts>(poly: &mut Poly<V>, other: &Poly<V>) {
    for (x, y) in poly.iter_mut().zip(other) {
        *x = x.add16(*y);
    }
}

/// Bytes of each lane, 32 from each.
#[inline(always)]
fn columns<'b, V: Shorts>(count: usize, bytes: impl Fn(usize) -> &'b [u8]) -> Four<V> {
    let mut rows = [[0; 32]; LANES];
    for (lane, row) in rows.iter_mut().enumerate().take(count) {
        row.copy_from_slice(&bytes(lane)[..32]);
    }
    let columns = sample::columns(&rows);
    rows = [[0; 32]; LANES];
    std::hint::black_box(&rows);
    columns
}

/// The matrix's seed at the end of each encapsulation key. Bytes that anybody knows.
#[inline(always)]
fn matrix_seeds<'p, V: Shorts>(peers: &impl Fn(usize) -> &'p [u8], count: usize) -> Four<V> {
    let mut vectors = [V::splat(0); 8];
    for (lane, vector) in vectors.iter_mut().enumerate().take(count) {
        let mut bytes = [0; BYTES];
        bytes[..32].copy_from_slice(&peers(lane)[VECTOR..]);
        *vector = V::public(&bytes);
    }
    let [a, b, c, d, ..] = V::transpose(&vectors);
    [a, b, c, d]
}

/// Whether each coefficient of an encapsulation key is reduced (FIPS 203 section 7.2).
#[inline(always)]
pub fn is_reduced<V: Shorts>(peer: &[u8]) -> bool {
    (0..K).all(|column| codec::is_reduced::<V>(&peer[BYTES12 * column..]))
}

/// ML-KEM.KeyGen_internal (FIPS 203 algorithms 13 and 16) of one to eight seeds.
#[inline(always)]
pub fn generate<V: Shorts>(items: &mut [Generation<'_>]) {
    let (mut work, count) = (Work::<V>::new(), items.len());
    let (rho, sigma) = sample::g_of_seed(&columns::<V>(count, |lane| items[lane].seed));
    let rho = [rho[0].publish(), rho[1].publish(), rho[2].publish(), rho[3].publish()];
    work.noise(&sigma, count, K, |lane, row, poly| {
        let mut poly = *poly;
        codec::canonical_poly(&mut poly);
        put12(&poly, &mut items[lane].out[BYTES12 * row..]);
    });
    work.products(&rho, count, false, |errors, lane, row, mut poly| {
        let mut error = codec::binomial(&errors[lane][row]);
        ntt::ntt(&mut error);
        ntt::each(&mut poly, ntt::lifted);
        add(&mut poly, &error);
        codec::canonical_poly(&mut poly);
        put12(&poly, &mut items[lane].out[VECTOR + BYTES12 * row..]);
    });
    for (item, seed) in items.iter_mut().zip(sample::rows(&rho)) {
        item.out[2 * VECTOR..][..32].copy_from_slice(&seed.reveal()[..32]);
    }
    let hashes = work.hashes(&|lane| &items[lane].out[VECTOR..][..PUBLIC], count);
    for (item, hash) in items.iter_mut().zip(sample::rows(&hashes)) {
        let rest = &mut item.out[VECTOR + PUBLIC..];
        rest[..32].copy_from_slice(&hash.publish().reveal()[..32]);
        rest[32..64].copy_from_slice(&item.seed[32..SEED]);
    }
    work.wipe();
}

#[inline(always)]
fn put12<V: Shorts>(poly: &Poly<V>, bytes: &mut [u8]) {
    for (at, x) in poly.iter().enumerate() {
        codec::encode12(x.publish(), bytes, at);
    }
}

/// ML-KEM.Encaps_internal (FIPS 203 algorithm 17) of one to eight requests.
#[inline(always)]
pub fn encapsulate<V: Shorts>(items: &mut [Encapsulation<'_>]) {
    let (mut work, count) = (Work::<V>::new(), items.len());
    let mut peers: [&[u8]; LANES] = [&[]; LANES];
    peers.iter_mut().zip(&*items).for_each(|(peer, item)| *peer = item.peer);
    let peers = |lane: usize| peers[lane];
    let hashes = work.hashes(&peers, count);
    let (secrets, seeds) = sample::g(&columns::<V>(count, |lane| items[lane].m), &hashes);
    for (bits, item) in work.bits.iter_mut().zip(&*items) {
        let mut m = [0; 48];
        m[..32].copy_from_slice(&item.m[..32]);
        for (at, x) in bits.iter_mut().enumerate() {
            *x = codec::decode1(&m, at);
        }
        m = [0; 48];
        std::hint::black_box(&m);
    }
    work.encrypt(&seeds, &peers, count, |lane, row, poly| {
        let out = &mut items[lane].out[BYTES10 * row..];
        for (at, x) in poly.into_iter().enumerate() {
            let x = ntt::canonical(x);
            if row < K {
                codec::encode10(codec::compress::<V, 10>(x).publish(), out, at);
            } else {
                codec::encode4(codec::compress::<V, 4>(x).publish(), out, at);
            }
        }
    });
    for (item, secret) in items.iter_mut().zip(sample::rows(&secrets)) {
        item.out[CIPHERTEXT..][..32].copy_from_slice(&secret.publish().reveal()[..32]);
    }
    work.wipe();
}

/// ML-KEM.Decaps_internal (FIPS 203 algorithm 18) of one to eight requests, and the check of their keys' hashes (section 7.3).
#[inline(always)]
pub fn decapsulate<V: Shorts>(items: &mut [Decapsulation<'_>]) {
    let (mut work, count) = (Work::<V>::new(), items.len());
    let (mut keys, mut ciphertexts): ([&[u8]; LANES], [&[u8]; LANES]) = ([&[]; LANES], [&[]; LANES]);
    for (lane, item) in items.iter().enumerate() {
        (keys[lane], ciphertexts[lane]) = (item.key, item.ciphertext);
    }
    let peers = |lane: usize| &keys[lane][VECTOR..][..PUBLIC];
    let hashes = work.hashes(&peers, count);
    let kept = columns::<V>(count, |lane| &keys[lane][VECTOR + PUBLIC..]);
    check(items, &hashes, &kept);
    let mut plain = [V::splat(0); 8];
    for (lane, plain) in plain.iter_mut().enumerate().take(count) {
        *plain = work.decrypt(lane, keys[lane], ciphertexts[lane]);
    }
    let [a, b, c, d, ..] = V::transpose(&plain);
    let (right, seeds) = sample::g(&[a, b, c, d], &kept);
    // What an implicit rejection gives (J).
    for (lane, message) in work.messages.iter_mut().enumerate().take(count) {
        message[..32].copy_from_slice(&keys[lane][VECTOR + PUBLIC + 32..]);
        message[32..32 + CIPHERTEXT].copy_from_slice(ciphertexts[lane]);
        sample::pad(message, 32 + CIPHERTEXT, 0x1f);
    }
    let rejected = sample::digest::<V>(&work.messages);
    let mut differences = [V::splat(0); LANES];
    work.encrypt(&seeds, &peers, count, |lane, row, poly| {
        let from = &ciphertexts[lane][BYTES10 * row..];
        let difference = if row < K { unlike10(&poly, from) } else { unlike4(&poly, from) };
        differences[lane] = differences[lane].or(difference);
    });
    let mut same = [V::splat(0); LANES];
    same.iter_mut().zip(differences).for_each(|(same, difference)| *same = difference.is_zero());
    // A word of each lane, in its own place.
    let [same, ..] = V::transpose(&same);
    let choice = |at: usize| same.and(right[at]).or(same.andnot(rejected[at]));
    let secrets = sample::rows(&[choice(0), choice(1), choice(2), choice(3)]);
    for (item, secret) in items.iter_mut().zip(secrets) {
        if item.fits {
            item.out[..32].copy_from_slice(&secret.publish().reveal()[..32]);
        }
    }
    work.wipe();
}

/// Whose hash is right: public.
#[inline(always)]
fn check<V: Shorts>(items: &mut [Decapsulation<'_>], hashes: &Four<V>, kept: &Four<V>) {
    let mut wrong = [V::splat(0); 4];
    for ((wrong, hash), kept) in wrong.iter_mut().zip(hashes).zip(kept) {
        *wrong = hash.xor(*kept);
    }
    for (item, wrong) in items.iter_mut().zip(sample::rows(&wrong)) {
        item.fits = wrong.is_zero().publish().reveal()[0] != 0;
    }
}

/// Where a polynomial's rounded coefficients are not what ten bits each say.
#[inline(always)]
fn unlike10<V: Shorts>(poly: &Poly<V>, bytes: &[u8]) -> V {
    let mut all = V::splat(0);
    for (at, x) in poly.iter().enumerate() {
        let rounded = codec::compress::<V, 10>(ntt::canonical(*x)).shl16::<5>();
        all = all.or(rounded.xor(codec::decode10(bytes, at)));
    }
    all
}

/// Or four bits each, at the end of a ciphertext.
#[inline(always)]
fn unlike4<V: Shorts>(poly: &Poly<V>, bytes: &[u8]) -> V {
    let (mut all, mut last) = (V::splat(0), [0; BYTES4 + 16]);
    last[..BYTES4].copy_from_slice(&bytes[..BYTES4]);
    for (at, x) in poly.iter().enumerate() {
        let rounded = codec::compress::<V, 4>(ntt::canonical(*x)).shl16::<11>();
        all = all.or(rounded.xor(codec::decode4(&last, at)));
    }
    all
}

const _: () = assert!(SHORTS * 8 == 256 && CIPHERTEXT == K * BYTES10 + BYTES4 && PUBLIC == VECTOR + 32);
