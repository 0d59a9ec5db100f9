//! ML-KEM-768 (FIPS 203 sections 5 and 6) of up to eight requests side by side. Hashing is eight states to a vector; each
//! polynomial lies across eight vectors, one request after the other.
//!
//! *What is public.* Encapsulation keys and the matrix that their seed gives, ciphertexts that come, and whether a
//! decapsulation key is in order. [`Shorts::publish`] gives away what FIPS 203 gives away: of a key pair the whole of it
//! to its owner, and before that the matrix's seed; of an encapsulation ciphertext and shared secret; of a decapsulation the
//! shared secret. Whether a ciphertext was right is never public: a mask chooses between two secrets.

use super::codec::{self, BYTES4, BYTES10, BYTES12, Public, Secret};
use super::ntt::{self, Operand, Sum};
use super::sample::{self, Four, MESSAGE, Message, Samples};
use super::{CIPHERTEXT, LANES, PUBLIC};
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
    /// Whether the key's hash is that of its encapsulation key, and that reduced; if not, the secret is not written.
    pub fits: bool,
}

/// Bytes of each lane; those of a lane without a request are none.
type Lanes<'b> = [&'b [u8]; LANES];

/// What all of a batch's requests need on the way: in the entry's frame, which the stack's overwriting wipes.
struct Work<'w, V: Shorts> {
    messages: &'w mut [Message; LANES],
    samples: &'w mut Samples,
    /// Of each request, random bits of all noise.
    random: &'w mut [[[V; 2]; 2 * K + 1]; LANES],
    /// Of each request, the transformed vector that the matrix is multiplied by.
    operands: &'w mut [[Operand<V>; K]; LANES],
    /// Of each request, the matrix times the vector.
    products: &'w mut [[Poly<V>; K]; LANES],
    /// Of each request, a bit in each coefficient.
    bits: &'w mut [Poly<V>; LANES],
}

/// A [`Work`] in the frame of the caller. (A function would give it by value: two copies of 67 KB.)
macro_rules! work {
    ($vector:ident) => {
        Work::<$vector> {
            messages: &mut [[0; MESSAGE + BYTES]; LANES],
            samples: &mut Samples::new(),
            random: &mut [[[$vector::splat(0); 2]; 2 * K + 1]; LANES],
            operands: &mut [[Operand::zero(); K]; LANES],
            products: &mut [[[$vector::splat(0); 8]; K]; LANES],
            bits: &mut [[$vector::splat(0); 8]; LANES],
        }
    };
}

impl<V: Shorts> Work<'_, V> {
    /// Of each request the noise of numbers 0 to 2, transformed, as operands.
    #[inline(always)]
    fn transform(&mut self, count: usize) {
        for (operands, random) in self.operands.iter_mut().zip(&*self.random).take(count) {
            for (operand, random) in operands.iter_mut().zip(random) {
                let mut poly = codec::binomial(random);
                ntt::ntt(&mut poly);
                *operand = Operand::new(&poly);
            }
        }
    }

    /// Each request's matrix, or the transposed one, times its operands, divided by 2^16.
    #[inline(always)]
    fn multiply(&mut self, seeds: &Four<V>, count: usize, transposed: bool) {
        let (jobs, mut sum) = (K * K * count, Sum::new());
        for from in (0..jobs).step_by(LANES) {
            self.samples.fill(seeds, from, jobs, transposed);
            for job in from..jobs.min(from + LANES) {
                let (lane, row, column) = (job / (K * K), job / K % K, job % K);
                let operand = &self.operands[lane][column];
                for (at, a) in self.samples.poly::<V>(job - from).into_iter().enumerate() {
                    sum.add(at, a, operand);
                }
                if column == K - 1 {
                    self.products[lane][row] = sum.reduced();
                    sum = Sum::new();
                }
            }
        }
    }

    /// K-PKE.Encrypt (FIPS 203 algorithm 14) of `bits` with the randomness of `seeds` under `peers`. `sink` gets the ciphertexts.
    #[inline(always)]
    fn encrypt(&mut self, seeds: &Four<V>, peers: &Lanes<'_>, count: usize, sink: &mut impl Sink<V>) {
        sample::noise(seeds, count, 2 * K + 1, self.random);
        self.transform(count);
        let mut rho = *peers;
        for rho in rho.iter_mut().take(count) {
            *rho = &rho[VECTOR..];
        }
        self.multiply(&sample::public_columns(&rho), count, true);
        for (lane, peer) in peers.iter().enumerate().take(count) {
            for row in 0..K {
                let mut poly = self.products[lane][row];
                ntt::inverse(&mut poly);
                add(&mut poly, &codec::binomial(&self.random[lane][K + row]));
                sink.row(lane, row, &poly);
            }
            let mut sum = Sum::new();
            for (column, operand) in self.operands[lane].iter().enumerate() {
                for at in 0..8 {
                    sum.add(at, codec::decode12::<V, Public>(&peer[BYTES12 * column..], at), operand);
                }
            }
            let mut poly = sum.reduced();
            ntt::inverse(&mut poly);
            add(&mut poly, &codec::binomial(&self.random[lane][2 * K]));
            let half = V::splat16(1665);
            for (x, bit) in poly.iter_mut().zip(&self.bits[lane]) {
                *x = x.add16(bit.mul_lo16(half));
            }
            sink.last(lane, &poly);
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
        let last = last(ciphertext);
        for (at, x) in poly.iter_mut().enumerate() {
            let rest = codec::decompress(codec::decode4::<V>(&last, at)).sub16(*x);
            *x = codec::compress::<V, 1>(ntt::canonical(rest));
        }
        self.bits[lane] = poly;
        V::lowest_bits(&poly)
    }

    /// The hash of each lane's encapsulation key.
    #[inline(always)]
    fn hashes(&mut self, peers: &Lanes<'_>, count: usize) -> Four<V> {
        for (message, peer) in self.messages.iter_mut().zip(peers).take(count) {
            sample::copy::<PUBLIC>(message, peer);
            sample::pad(message, PUBLIC, 0x06);
        }
        sample::digest(self.messages, count)
    }
}

/// What becomes of a ciphertext's polynomials before they are rounded.
trait Sink<V: Shorts> {
    /// One of the vector's.
    fn row(&mut self, lane: usize, row: usize, poly: &Poly<V>);
    /// The last one.
    fn last(&mut self, lane: usize, poly: &Poly<V>);
}

#[inline(always)]
fn add<V: Shorts>(poly: &mut Poly<V>, other: &Poly<V>) {
    for (x, y) in poly.iter_mut().zip(other) {
        *x = x.add16(*y);
    }
}

/// The last polynomial's bytes, with which a ciphertext ends, and zeros where vectors are read beyond them.
#[inline(always)]
fn last(ciphertext: &[u8]) -> [u8; BYTES4 + 16] {
    let mut last = [0; BYTES4 + 16];
    sample::copy::<BYTES4>(&mut last, &ciphertext[K * BYTES10..]);
    last
}

/// Where the vector with which an encapsulation key begins has coefficients that are not reduced.
#[inline(always)]
fn above<V: Shorts>(key: &[u8]) -> V {
    let mut above = V::splat(0);
    for column in 0..K {
        above = above.or(codec::above::<V>(&key[BYTES12 * column..]));
    }
    above
}

/// Whether each coefficient of an encapsulation key is reduced (FIPS 203 section 7.2).
#[inline(always)]
pub fn is_reduced<V: Shorts>(peer: &[u8]) -> bool {
    above::<V>(peer).is_zero().reveal()[0] != 0
}

/// ML-KEM.KeyGen_internal (FIPS 203 algorithms 13 and 16) of one to eight seeds.
#[inline(always)]
pub fn generate<V: Shorts>(items: &mut [Generation<'_>]) {
    let mut work = work!(V);
    let count = items.len();
    let mut seeds: Lanes<'_> = Default::default();
    for (seed, item) in seeds.iter_mut().zip(&*items) {
        *seed = item.seed;
    }
    let ([a, b, c, d], sigma) = sample::g_of_seed(&sample::columns::<V>(&seeds), count);
    let rho = [a.publish(), b.publish(), c.publish(), d.publish()];
    sample::noise(&sigma, count, 2 * K, work.random);
    work.transform(count);
    work.multiply(&rho, count, false);
    for (lane, item) in items.iter_mut().enumerate() {
        for (row, operand) in work.operands[lane].iter().enumerate() {
            put12(operand.plain(), &mut item.out[BYTES12 * row..]);
        }
        for (row, poly) in work.products[lane].iter_mut().enumerate() {
            let mut error = codec::binomial(&work.random[lane][K + row]);
            ntt::ntt(&mut error);
            ntt::each!(poly, ntt::lifted);
            add(poly, &error);
            put12(poly, &mut item.out[VECTOR + BYTES12 * row..]);
        }
    }
    for (item, seed) in items.iter_mut().zip(sample::rows(&rho)) {
        sample::copy::<32>(&mut item.out[2 * VECTOR..], &seed.reveal());
    }
    let mut peers: Lanes<'_> = Default::default();
    for (peer, item) in peers.iter_mut().zip(&*items) {
        *peer = &item.out[VECTOR..];
    }
    let hashes = work.hashes(&peers, count);
    for (item, hash) in items.iter_mut().zip(sample::rows(&hashes)) {
        sample::copy::<32>(&mut item.out[VECTOR + PUBLIC..], &hash.publish().reveal());
        sample::copy::<32>(&mut item.out[VECTOR + PUBLIC + 32..], &item.seed[32..]);
    }
}

/// A polynomial of the key pair, reduced, 12 bits a coefficient.
#[inline(always)]
fn put12<V: Shorts>(poly: &Poly<V>, bytes: &mut [u8]) {
    for (at, x) in poly.iter().enumerate() {
        codec::encode12(ntt::canonical(*x).publish(), bytes, at);
    }
}

/// ML-KEM.Encaps_internal (FIPS 203 algorithm 17) of one to eight requests.
#[inline(always)]
pub fn encapsulate<V: Shorts>(items: &mut [Encapsulation<'_>]) {
    let mut work = work!(V);
    let count = items.len();
    let (mut peers, mut randomness): (Lanes<'_>, Lanes<'_>) = Default::default();
    for (lane, item) in items.iter().enumerate() {
        (peers[lane], randomness[lane]) = (item.peer, item.m);
    }
    let hashes = work.hashes(&peers, count);
    let (secrets, seeds) = sample::g(&sample::columns::<V>(&randomness), &hashes, count);
    for (bits, m) in work.bits.iter_mut().zip(randomness).take(count) {
        let mut bytes = [0; 48];
        sample::copy::<32>(&mut bytes, m);
        for (at, x) in bits.iter_mut().enumerate() {
            *x = codec::decode1(&bytes, at);
        }
        bytes = [0; 48];
        std::hint::black_box(&bytes);
    }
    work.encrypt(&seeds, &peers, count, &mut Ciphertexts(items));
    for (item, secret) in items.iter_mut().zip(sample::rows(&secrets)) {
        sample::copy::<32>(&mut item.out[CIPHERTEXT..], &secret.publish().reveal());
    }
}

/// The ciphertexts, rounded and written.
struct Ciphertexts<'w, 'i>(&'w mut [Encapsulation<'i>]);

impl<V: Shorts> Sink<V> for Ciphertexts<'_, '_> {
    #[inline(always)]
    fn row(&mut self, lane: usize, row: usize, poly: &Poly<V>) {
        let out = &mut self.0[lane].out[BYTES10 * row..];
        for (at, x) in poly.iter().enumerate() {
            codec::encode10(codec::compress::<V, 10>(ntt::canonical(*x)).publish(), out, at);
        }
    }

    #[inline(always)]
    fn last(&mut self, lane: usize, poly: &Poly<V>) {
        let out = &mut self.0[lane].out[BYTES10 * K..];
        for (at, x) in poly.iter().enumerate() {
            codec::encode4(codec::compress::<V, 4>(ntt::canonical(*x)).publish(), out, at);
        }
    }
}

/// ML-KEM.Decaps_internal (FIPS 203 algorithm 18) of one to eight requests, and the check of their keys' hashes (section 7.3).
#[inline(always)]
pub fn decapsulate<V: Shorts>(items: &mut [Decapsulation<'_>]) {
    let mut work = work!(V);
    let count = items.len();
    let (mut peers, mut rests, mut ciphertexts): (Lanes<'_>, Lanes<'_>, Lanes<'_>) = Default::default();
    for (lane, item) in items.iter().enumerate() {
        (peers[lane], rests[lane]) = item.key[VECTOR..].split_at(PUBLIC);
        ciphertexts[lane] = item.ciphertext;
    }
    let (hashes, kept) = (work.hashes(&peers, count), sample::columns::<V>(&rests));
    check(items, &hashes, &kept);
    let mut plain = [V::splat(0); 8];
    for (lane, item) in items.iter().enumerate() {
        plain[lane] = work.decrypt(lane, item.key, item.ciphertext);
    }
    let [a, b, c, d, ..] = V::transpose(&plain);
    let (right, seeds) = sample::g(&[a, b, c, d], &kept, count);
    // What an implicit rejection gives (J).
    for (lane, message) in work.messages.iter_mut().enumerate().take(count) {
        sample::copy::<32>(message, &rests[lane][32..]);
        sample::copy::<CIPHERTEXT>(&mut message[32..], ciphertexts[lane]);
        sample::pad(message, 32 + CIPHERTEXT, 0x1f);
    }
    let rejected = sample::digest::<V>(work.messages, count);
    let mut differences = Differences { ciphertexts, all: [V::splat(0); LANES] };
    work.encrypt(&seeds, &peers, count, &mut differences);
    let mut same = differences.all;
    for same in &mut same {
        *same = same.is_zero();
    }
    // A word of each lane, in its own place.
    let [same, ..] = V::transpose(&same);
    let mut secrets = right;
    for (secret, rejected) in secrets.iter_mut().zip(rejected) {
        *secret = same.and(*secret).or(same.andnot(rejected));
    }
    for (item, secret) in items.iter_mut().zip(sample::rows(&secrets)) {
        if item.fits {
            sample::copy::<32>(item.out, &secret.publish().reveal());
        }
    }
}

/// Whose hash is right, and whose encapsulation key is reduced: public.
#[inline(always)]
fn check<V: Shorts>(items: &mut [Decapsulation<'_>], hashes: &Four<V>, kept: &Four<V>) {
    let mut wrong = *hashes;
    for (wrong, kept) in wrong.iter_mut().zip(kept) {
        *wrong = wrong.xor(*kept);
    }
    for (item, wrong) in items.iter_mut().zip(sample::rows(&wrong)) {
        let above = above::<V>(&item.key[VECTOR..]);
        item.fits = wrong.or(above).is_zero().publish().reveal()[0] != 0;
    }
}

/// Where the ciphertexts that came are not what was computed.
struct Differences<'b, V> {
    ciphertexts: Lanes<'b>,
    all: [V; LANES],
}

impl<V: Shorts> Sink<V> for Differences<'_, V> {
    #[inline(always)]
    fn row(&mut self, lane: usize, row: usize, poly: &Poly<V>) {
        let (bytes, all) = (&self.ciphertexts[lane][BYTES10 * row..], &mut self.all[lane]);
        for (at, x) in poly.iter().enumerate() {
            let rounded = codec::compress::<V, 10>(ntt::canonical(*x)).shl16::<5>();
            *all = all.or(rounded.xor(codec::decode10(bytes, at)));
        }
    }

    #[inline(always)]
    fn last(&mut self, lane: usize, poly: &Poly<V>) {
        let (bytes, all) = (last(self.ciphertexts[lane]), &mut self.all[lane]);
        for (at, x) in poly.iter().enumerate() {
            let rounded = codec::compress::<V, 4>(ntt::canonical(*x)).shl16::<11>();
            *all = all.or(rounded.xor(codec::decode4(&bytes, at)));
        }
    }
}

const _: () = assert!(SHORTS * 8 == 256 && CIPHERTEXT == K * BYTES10 + BYTES4 && PUBLIC == VECTOR + 32);
