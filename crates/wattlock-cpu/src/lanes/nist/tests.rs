//! The kernels against big integers and the portable engine: arithmetic at its bounds, every lane and partial batch,
//! scalars at the edges of the proofs, one wrong request among good ones, and poison.

use std::sync::Arc;

use num_bigint::BigUint;
use wattlock_core::{EcKey, Engine, Error, Fault, Key, Kind, OwnedRequest};

use super::super::vector::LANES;
use super::super::vector::Vector;
use super::super::vector::model::Model;
use super::super::{Isa, Item, Lanes};
use super::curve::{Curve, P256, P256Field, P256Order, P384, P384Field, P384Order};
use super::field::{Field, Limbs, Modulus, add, below, canonical, carry, mul, mul_sum, shl, square, sub};
use super::multiply::{alignment, both_inverses, empty_table};
use super::point::Point;
use super::words::{gather, limbs_of, scatter, write};
use super::{entry, kernel, nonce};
use crate::detect::{Cpu, Ifma512};
use crate::software::Software;
use crate::software::nist::{Signer, verify};

fn isa() -> Option<Ifma512> {
    let found = Cpu::detect().ifma512;
    if found.is_none() {
        println!("no AVX-512 IFMA here: the kernels were not run, only their model is tested");
    }
    found
}

/// Awkward and random numbers in turn.
struct Numbers(u64);

impl Numbers {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 ^ self.0 >> 29
    }

    fn below(&mut self, bound: &BigUint) -> BigUint {
        let random = BigUint::from_slice(&(0..16).map(|_| self.word() as u32).collect::<Vec<_>>()) % bound;
        match self.word() % 6 {
            0 => BigUint::ZERO,
            1 => bound - 1u32,
            2 => bound - BigUint::from(self.word() % 1000 + 1),
            3 => (BigUint::from(1u32) << (self.word() % bound.bits())) % bound,
            _ => random,
        }
    }
}

fn big<const N: usize>(limbs: &Limbs<N>) -> BigUint {
    limbs.iter().rev().fold(BigUint::ZERO, |number, limb| (number << 52) + limb)
}

fn small<const N: usize>(number: &BigUint) -> Limbs<N> {
    let mask = BigUint::from((1u64 << 52) - 1);
    std::array::from_fn(|at| u64::try_from((number >> (52 * at)) & &mask).unwrap())
}

fn bigs<const N: usize>(vectors: [Model; N]) -> Vec<BigUint> {
    scatter(vectors).iter().map(big).collect()
}

/// Every operation on tight numbers up to `reach` times the prime, against big integers.
fn arithmetic<M: Modulus<N>, const N: usize>(reach: u32, seed: u64) {
    let (prime, mut numbers) = (big(&M::PRIME), Numbers(seed));
    let radix = BigUint::from(1u32) << (52 * N);
    let unradix = radix.modpow(&(&prime - 2u32), &prime);
    assert_eq!(big(&M::ONE), &radix % &prime);
    assert_eq!(big(&M::SQUARE), &radix * &radix % &prime);
    for _ in 0..200 {
        let mut draw =
            || -> [Limbs<N>; LANES] { std::array::from_fn(|_| small(&numbers.below(&(&prime * reach)))) };
        let (a, b) = (draw(), draw());
        let vector = gather::<Model, N>;
        let product = bigs(carry(mul::<M, Model, N>(vector(&a), vector(&b))));
        let both = bigs(carry(mul_sum::<M, Model, N>([vector(&a), vector(&b)], [vector(&b), vector(&b)])));
        let squared = bigs(carry(square::<M, Model, N>(vector(&a))));
        let plain = bigs(canonical::<M, Model, N>(vector(&a)));
        for lane in 0..LANES {
            let (a, b) = (big(&a[lane]), big(&b[lane]));
            let expect = |value: BigUint| value * &unradix % &prime;
            // The bound that every formula stands on.
            assert!(product[lane] < &a * &b / &radix + &prime + 1u32);
            assert_eq!(&product[lane] % &prime, expect(&a * &b));
            assert_eq!(&both[lane] % &prime, expect(&a * &b + &b * &b));
            assert_eq!(&squared[lane] % &prime, expect(&a * &a));
            assert_eq!(plain[lane], expect(a));
        }
        let twice: [Limbs<N>; LANES] = std::array::from_fn(|lane| small(&(big(&a[lane]) % (&prime * 2u32))));
        for (reduced, whole) in bigs(below::<M, Model, N>(vector(&twice))).iter().zip(&twice) {
            assert_eq!(*reduced, big(whole) % &prime);
        }
    }
}

#[test]
fn arithmetic_is_that_of_big_integers() {
    arithmetic::<P256Field, 5>(15, 1);
    arithmetic::<P256Order, 5>(15, 2);
    arithmetic::<P384Field, 8>(4096, 3);
    arithmetic::<P384Order, 8>(4096, 4);
}

/// Sums and differences of products as the formulas have them, at the largest values.
fn settling<F: Field<N>, const N: usize>(reach: &BigUint) {
    let (prime, mut numbers) = (big(&F::PRIME), Numbers(5));
    for _ in 0..200 {
        let mut draw =
            || -> [Limbs<N>; LANES] { std::array::from_fn(|_| small(&numbers.below(&(&prime * 2u32)))) };
        let (a, b) = (draw(), draw());
        let (va, vb) = (gather::<Model, N>(&a), gather::<Model, N>(&b));
        let negative = bigs(F::settle(sub(va, shl::<Model, 3, N>(vb))));
        let positive = bigs(F::settle(add(va, shl::<Model, 3, N>(vb))));
        let raised = bigs(carry(F::raise::<Model, 2>(sub(va, vb))));
        for lane in 0..LANES {
            let (a, b) = (big(&a[lane]), big(&b[lane]));
            assert!(negative[lane] < *reach && positive[lane] < *reach);
            assert_eq!(&negative[lane] % &prime, (&a + &prime * 16u32 - &b * 8u32) % &prime);
            assert_eq!(&positive[lane] % &prime, (&a + &b * 8u32) % &prime);
            assert_eq!(&raised[lane] % &prime, (&a + &prime * 2u32 - &b) % &prime);
        }
    }
}

#[test]
fn settled_numbers_are_as_small_as_the_formulas_say() {
    settling::<P256Field, 5>(&(big(&P256Field::PRIME) * 201u32 / 100u32));
    settling::<P384Field, 8>(&(big(&P384Field::PRIME) * 1024u32));
}

fn inverses<C: Curve<N>, const N: usize>() {
    let mut numbers = Numbers(6);
    let (p, n) = (big(&C::Field::PRIME), big(&C::Order::PRIME));
    let radix = BigUint::from(1u32) << (52 * N);
    let a: [Limbs<N>; LANES] = std::array::from_fn(|_| small(&numbers.below(&p)));
    let b: [Limbs<N>; LANES] = std::array::from_fn(|_| small(&numbers.below(&n)));
    let found = both_inverses::<C, Model, N>(gather(&a), gather(&b));
    for (of, prime, found) in [(a, p, found[0]), (b, n, found[1])] {
        for (of, found) in of.iter().zip(bigs(found)) {
            let one = (&radix * &radix) % &prime;
            let expected = if big(of) == BigUint::ZERO { BigUint::ZERO } else { one };
            assert_eq!(big(of) * found % &prime, expected);
        }
    }
}

#[test]
fn inverses_times_numbers_are_one() {
    inverses::<P256, 5>();
    inverses::<P384, 8>();
}

fn bytes<const N: usize>(limbs: &Limbs<N>, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    write(limbs, &mut out);
    out
}

/// Scalars where an incomplete formula could go wrong: around nothing, around the order and its half, around powers
/// of both windows, single bits, all ones, and some random ones.
fn edges<C: Curve<N>, const N: usize>() -> Vec<BigUint> {
    let (n, mut numbers) = (big(&C::Order::PRIME), Numbers(7));
    let mut all: Vec<BigUint> = (1..=40u32).map(BigUint::from).collect();
    all.extend((1..=40u32).map(|below| &n - below));
    all.extend((0..=3u32).flat_map(|by| [(&n >> 1u32) + by, (&n >> 1u32) - by]));
    for bit in (5..C::BITS).step_by(5).chain((6..C::BITS).step_by(6)) {
        let power = BigUint::from(1u32) << bit;
        all.extend([&power - 1u32, power.clone(), &power + 1u32, &power + 16u32, (&n - &power) % &n]);
    }
    // What `n` has in and below the top windows, as the proof for the fixed base speaks of it.
    for bit in [252, 255, 378, 380, 383] {
        all.push((&n % (BigUint::from(1u32) << bit)) * 2u32);
    }
    all.extend((0..64).map(|_| numbers.below(&n)));
    all.retain(|scalar| *scalar > BigUint::ZERO && *scalar < n);
    all
}

/// What the portable arithmetic says: `k G` as x and y.
fn reference(kind: Kind, scalar: &[u8]) -> Vec<u8> {
    use p256::elliptic_curve::sec1::ToSec1Point;
    if kind == Kind::P256Derive {
        let scalar = p256::SecretKey::from_slice(scalar).unwrap();
        scalar.public_key().as_affine().to_sec1_point(false).as_bytes()[1..].to_vec()
    } else {
        let scalar = p384::SecretKey::from_slice(scalar).unwrap();
        scalar.public_key().as_affine().to_sec1_point(false).as_bytes()[1..].to_vec()
    }
}

/// Fixed and variable base against the portable arithmetic, on the model and on the instructions.
fn multiples<C: Curve<N>, const N: usize>(kind: Kind) {
    let isa = isa();
    let generator = [[C::GENERATOR[0]; LANES], [C::GENERATOR[1]; LANES]];
    for (turn, batch) in edges::<C, N>().chunks(LANES).enumerate() {
        let scalar = |lane: usize| bytes(&small::<N>(&batch[lane % batch.len()]), C::BYTES);
        let plain: [Limbs<N>; LANES] = std::array::from_fn(|lane| limbs_of(&scalar(lane), 0));
        let aligned: [Limbs<N>; LANES] =
            std::array::from_fn(|lane| limbs_of(&scalar(lane), alignment::<N>(C::BITS)));
        let expected: Vec<_> = (0..LANES).map(|lane| reference(kind, &scalar(lane))).collect();
        let check = |found: &[Limbs<N>; LANES], at: usize| {
            for lane in 0..LANES {
                let expected = &expected[lane][at * C::BYTES..][..C::BYTES];
                assert_eq!(bytes(&found[lane], C::BYTES), expected, "scalar {:x?}", scalar(lane));
            }
        };
        if let Some(isa) = isa {
            let ([x, y], sound) = entry::generate::<C, N>(isa, &plain);
            assert_eq!(sound, 0xff);
            check(&x, 0);
            check(&y, 1);
            let (x, good) = entry::derive::<C, N>(isa, &aligned, &generator);
            assert_eq!(good, [0xff; 2]);
            check(&x, 0);
        }
        // The model is slow: every edge once would take a minute.
        if turn % 8 == 0 {
            let ([x, y], sound) = kernel::generate::<C, Model, N>(gather(&plain), undisturbed);
            assert_eq!(Model::reveal_mask(sound), 0xff);
            check(&scatter(x), 0);
            check(&scatter(y), 1);
            let mut table = empty_table::<Model, N>();
            let peer = [gather(&generator[0]), gather(&generator[1])];
            let (x, _) = kernel::derive::<C, Model, N>(gather(&aligned), peer, &mut table, undisturbed);
            check(&scatter(x), 0);
        }
    }
}

#[test]
fn multiples_of_p256_at_the_edges_are_the_portable_ones() {
    multiples::<P256, 5>(Kind::P256Derive);
}

#[test]
fn multiples_of_p384_at_the_edges_are_the_portable_ones() {
    multiples::<P384, 8>(Kind::P384Derive);
}

/// Scalars, keys, digests and seeds are poisoned; if a kernel revealed anything computed from one, the model would panic.
fn poisoned<C: Curve<N>, const N: usize>() {
    let secret = |limbs: &Limbs<N>| -> [Model; N] { limbs.map(|limb| Model::secret(&[limb; LANES])) };
    let peer = [gather(&[C::GENERATOR[0]; LANES]), gather(&[C::GENERATOR[1]; LANES])];
    let scalar = small::<N>(&(big(&C::Order::PRIME) / 3u32));
    let mut table = empty_table::<Model, N>();
    let aligned = small::<N>(&(big(&scalar) << alignment::<N>(C::BITS)));
    let (x, [good, sound]) = kernel::derive::<C, Model, N>(secret(&aligned), peer, &mut table, undisturbed);
    assert!(std::panic::catch_unwind(|| Model::reveal_mask(sound)).is_err(), "until the entry says so");
    assert_eq!(Model::reveal_mask(good), 0xff, "whether a peer is on the curve is public");
    let (of_generator, _) = kernel::generate::<C, Model, N>(secret(&scalar), undisturbed);
    assert_eq!(x.map(Model::declassified), of_generator[0].map(Model::declassified));
    let seed = [Model::secret(&[7; LANES]); nonce::SEED];
    let words = nonce::candidate::<C, Model, N>(&seed);
    assert_ne!(words[0].declassified(), words[1].declassified());
    let ([r, s], _) =
        kernel::sign::<C, Model, N>(secret(&scalar), secret(&scalar), secret(&scalar), undisturbed);
    for found in [x[0], of_generator[1][0], words[0], r[0], s[0]] {
        assert!(std::panic::catch_unwind(|| found.reveal()).is_err(), "results of secrets are secret");
    }
}

#[test]
fn kernels_reveal_nothing() {
    poisoned::<P256, 5>();
    poisoned::<P384, 8>();
}

/// No fault.
fn undisturbed<const N: usize>(_: usize, _: &mut Point<Model, N>) {}

/// A bit of a coordinate is flipped in one lane, early, in the middle, or late: that lane's result is found unsound, and the
/// others are what they are without.
fn faults<C: Curve<N>, const N: usize>() {
    let mut numbers = Numbers(11);
    let n = big(&C::Order::PRIME);
    let draw = |numbers: &mut Numbers| -> [Limbs<N>; LANES] {
        std::array::from_fn(|_| small(&(numbers.below(&(&n - 1u32)) + 1u32)))
    };
    let (plain, keys) = (draw(&mut numbers), draw(&mut numbers));
    let aligned = plain.map(|scalar| small::<N>(&(big(&scalar) << alignment::<N>(C::BITS))));
    let peer = [gather(&[C::GENERATOR[0]; LANES]), gather(&[C::GENERATOR[1]; LANES])];
    let keys = keys.map(|key| kernel::scalar_to_montgomery::<C, N>(&key));
    let derive = |disturb: &dyn Fn(usize, &mut Point<Model, N>)| {
        let mut table = empty_table::<Model, N>();
        let (x, [_, sound]) = kernel::derive::<C, Model, N>(gather(&aligned), peer, &mut table, disturb);
        (vec![scatter(x)], Model::reveal_mask(sound))
    };
    let generate = |disturb: &dyn Fn(usize, &mut Point<Model, N>)| {
        let (found, sound) = kernel::generate::<C, Model, N>(gather(&plain), disturb);
        (found.map(scatter).to_vec(), Model::reveal_mask(sound))
    };
    let sign = |disturb: &dyn Fn(usize, &mut Point<Model, N>)| {
        let (found, [_, sound]) =
            kernel::sign::<C, Model, N>(gather(&plain), gather(&keys), gather(&plain), disturb);
        (found.map(scatter).to_vec(), Model::reveal_mask(sound))
    };
    type Operation<'a, const N: usize> =
        &'a dyn Fn(&dyn Fn(usize, &mut Point<Model, N>)) -> (Vec<[Limbs<N>; LANES]>, u8);
    // The last but one of a signature's is its last point, the last the inverse of its nonce.
    let last = super::comb::windows(C::BITS);
    let cases: [(Operation<'_, N>, [usize; 3]); 3] =
        [(&derive, [3, 20, C::BITS / 5]), (&generate, [3, 20, last - 1]), (&sign, [20, last - 1, last])];
    for (operation, windows) in cases {
        let (right, sound) = operation(&undisturbed);
        assert_eq!(sound, 0xff);
        for (turn, at) in windows.into_iter().enumerate() {
            let faulty = (3 * turn + 1) % LANES;
            let flip: [u64; LANES] = std::array::from_fn(|lane| u64::from(lane == faulty) << (7 * turn));
            let (found, sound) = operation(&|window, point| {
                if window == at {
                    point.x[turn] = point.x[turn].xor(Model::new(&flip));
                }
            });
            assert_eq!(sound, !(1u8 << faulty), "window {at}");
            for lane in 0..LANES {
                let same = right.iter().zip(&found).all(|(right, found)| right[lane] == found[lane]);
                assert_eq!(same, lane != faulty, "window {at}, lane {lane}");
            }
        }
    }
}

#[test]
fn a_faulted_lane_alone_is_found_unsound() {
    faults::<P256, 5>();
    faults::<P384, 8>();
}

/// What is not sound does not leave, and only that request fails.
#[test]
fn what_is_not_sound_is_an_error_of_its_own_request() {
    let (mut requests, _) = batch(Kind::P256Derive, 8, 0);
    for (lane, request) in requests.iter_mut().enumerate() {
        for (masks, expected) in [
            ([0xff, !(1 << 3)], Err(Error::Device(Fault::WrongResult))),
            ([!(1 << 3), 0xff], Err(super::BAD_PEER)),
            ([!(1 << 3), !(1 << 3)], Err(super::BAD_PEER)),
        ] {
            let mut item = Item { request: request.view(), result: Ok(32) };
            super::verdict(&mut item, lane, masks, super::BAD_PEER);
            assert_eq!(item.result, if lane == 3 { expected } else { Ok(32) });
        }
    }
}

fn pair(kind: Kind) -> EcKey {
    let (generate, len) = if kind.info().output == Some(64) || kind == Kind::P256Derive {
        (Kind::P256Generate, 32)
    } else {
        (Kind::P384Generate, 48)
    };
    let mut request = OwnedRequest::new(generate, Arc::new(Key::none_owned()), Vec::new(), 1 + 3 * len);
    Software::new().execute(&mut request.view()).unwrap();
    let (scalar, public) = request.output.split_at(len);
    EcKey { scalar: scalar.to_vec(), public: public.to_vec() }
}

fn curve(kind: Kind) -> wattlock_core::Curve {
    kind.info().algorithm.curve().unwrap()
}

fn pass(isa: Ifma512, batch: &mut [OwnedRequest]) -> Vec<Result<usize, wattlock_core::Error>> {
    let mut items: Vec<Item<'_>> = batch
        .iter_mut()
        .map(|request| Item { request: request.view(), result: Err(wattlock_core::Error::Unsupported) })
        .collect();
    Lanes::new(Isa::Ifma512(isa)).execute_all(&mut items);
    items.into_iter().map(|item| item.result).collect()
}

/// A batch of requests of a kind, each with a key of its own, and the public keys.
fn batch(kind: Kind, count: usize, turn: usize) -> (Vec<OwnedRequest>, Vec<Vec<u8>>) {
    let room = kind.info().output.unwrap();
    let one = |lane: usize| {
        let key = pair(kind);
        let public = key.public.clone();
        let input = match kind {
            Kind::P256Derive | Kind::P384Derive => pair(kind).public.clone(),
            // Digests of every length that is allowed, and of ones only: above the order.
            _ if lane == turn % 8 => vec![0xff; 64],
            _ => vec![(lane * 31 + turn) as u8; 20 + (lane * 7 + turn) % 45],
        };
        (OwnedRequest::new(kind, Arc::new(Key::ec(curve(kind), key).unwrap()), input, room), public)
    };
    (0..count).map(one).unzip()
}

fn right(request: &OwnedRequest, public: &[u8]) -> bool {
    match request.kind {
        Kind::EcdsaP256Sign => verify::<p256::NistP256>(public, &request.input, &request.output),
        Kind::EcdsaP384Sign => verify::<p384::NistP384>(public, &request.input, &request.output),
        kind => {
            let mut again =
                OwnedRequest::new(kind, request.key.clone(), request.input.clone(), request.output.len());
            Software::new().execute(&mut again.view()).unwrap();
            again.output == request.output
        }
    }
}

const KEYED: [Kind; 4] = [Kind::P256Derive, Kind::P384Derive, Kind::EcdsaP256Sign, Kind::EcdsaP384Sign];

/// `rounds` full batches and every partial one.
fn mixed_batches(rounds: usize) {
    let Some(isa) = isa() else { return };
    for kind in KEYED {
        for (turn, count) in (1..=LANES).chain(std::iter::repeat_n(LANES, rounds)).enumerate() {
            let (mut requests, publics) = batch(kind, count, turn);
            assert_eq!(pass(isa, &mut requests), vec![Ok(kind.info().output.unwrap()); count]);
            for (request, public) in requests.iter().zip(&publics) {
                assert!(right(request, public), "{} in a batch of {count}", kind.name());
            }
        }
    }
}

#[test]
fn every_partial_batch_of_mixed_keys_is_right() {
    mixed_batches(6);
}

#[test]
#[ignore = "some minutes"]
fn thousands_of_random_keys_sign_and_agree() {
    mixed_batches(1250);
}

#[test]
fn generated_pairs_are_pairs_and_differ() {
    let Some(isa) = isa() else { return };
    for (kind, len) in [(Kind::P256Generate, 32), (Kind::P384Generate, 48)] {
        for count in 1..=LANES {
            let new = || OwnedRequest::new(kind, Arc::new(Key::none_owned()), Vec::new(), 1 + 3 * len);
            let mut requests: Vec<_> = (0..count).map(|_| new()).collect();
            assert_eq!(pass(isa, &mut requests), vec![Ok(1 + 3 * len); count]);
            for request in &requests {
                Software::new().check(request, 1 + 3 * len).unwrap();
            }
            let mut scalars: Vec<_> = requests.iter().map(|request| request.output[..len].to_vec()).collect();
            scalars.sort();
            scalars.dedup();
            assert_eq!(scalars.len(), count);
        }
    }
}

/// Each way to be wrong, in each lane of a full batch: it fails, its neighbours do not notice.
#[test]
fn one_bad_request_fails_alone_in_every_lane() {
    let Some(isa) = isa() else { return };
    for kind in KEYED {
        for lane in 0..LANES {
            for wrong in 0..4 {
                let (mut requests, publics) = batch(kind, LANES, lane);
                spoil(&mut requests[lane], wrong);
                let results = pass(isa, &mut requests);
                for (at, request) in requests.iter().enumerate() {
                    assert_eq!(results[at].is_ok(), at != lane, "{} lane {at}, wrong {wrong}", kind.name());
                    assert!(at == lane || right(request, &publics[at]));
                    assert!(
                        at != lane || request.output.iter().all(|byte| *byte == 0),
                        "nothing was written"
                    );
                }
            }
        }
    }
}

/// A scalar of zero, one that is the order, a public point off its curve, and a peer off the curve or, where there is none, a
/// public point that is another scalar's.
fn spoil(request: &mut OwnedRequest, wrong: usize) {
    let kind = request.kind;
    let wattlock_core::Material::Ec(key) = request.key.material() else { unreachable!() };
    let mut key = key.clone();
    let len = key.scalar.len();
    match (wrong, kind) {
        (0, _) => key.scalar.fill(0),
        (1, _) if len == 32 => write(&P256Order::PRIME, &mut key.scalar),
        (1, _) => write(&P384Order::PRIME, &mut key.scalar),
        (2, _) => key.public[2 * len] ^= 1,
        (_, Kind::P256Derive | Kind::P384Derive) => {
            request.input[7] ^= 0x20;
            return;
        }
        _ => key.public = pair(kind).public.clone(),
    }
    request.key = Arc::new(Key::ec(curve(kind), key).unwrap());
}

#[test]
fn peers_out_of_range_or_compressed_are_refused() {
    let Some(isa) = isa() else { return };
    for (kind, prime) in
        [(Kind::P256Derive, bytes(&P256Field::PRIME, 32)), (Kind::P384Derive, bytes(&P384Field::PRIME, 48))]
    {
        for wrong in 0..4 {
            let (mut requests, _) = batch(kind, 1, 0);
            let len = prime.len();
            match wrong {
                0 => requests[0].input[1..=len].copy_from_slice(&prime),
                1 => requests[0].input[1..].fill(0),
                2 => requests[0].input[1..].fill(0xff),
                _ => requests[0].input[0] = 6,
            }
            assert_eq!(pass(isa, &mut requests), [Err(super::BAD_PEER)]);
        }
    }
}

/// The nonces are the portable engine's, byte for byte, so that its RFC 6979 vectors hold here too.
fn nonces<C: Curve<N>, const N: usize>() {
    let mut numbers = Numbers(8);
    let n = big(&C::Order::PRIME);
    for _ in 0..4 {
        let scalar = bytes(&small::<N>(&(numbers.below(&(&n - 1u32)) + 1u32)), C::BYTES);
        let digest = bytes(&small::<N>(&numbers.below(&n)), C::BYTES);
        let fresh: [u8; nonce::FRESH] = std::array::from_fn(|at| at as u8 ^ scalar[at]);
        let seed = nonce::seed::<C::Hash>(&scalar, &digest, &fresh);
        let public = reference(if N == 5 { Kind::P256Derive } else { Kind::P384Derive }, &scalar);
        let key = EcKey { scalar, public: [vec![4], public].concat() };
        let signer = Signer::<C::Portable>::new(&wattlock_core::Material::Ec(key)).unwrap();
        let mut expected = vec![0; C::BYTES];
        signer.nonce(&digest, &fresh, &mut expected);
        let check = |words: [[u64; LANES]; 8]| {
            for lane in 0..LANES {
                let mut found = vec![0; C::BYTES];
                nonce::write::<C::Hash>(&words, lane, &mut found);
                assert_eq!(found, expected);
            }
        };
        check(nonce::candidate::<C, Model, N>(&gather(&[seed; LANES])).map(Vector::reveal));
        if let Some(isa) = isa() {
            check(*entry::nonces::<C, N>(isa, &[seed; LANES]));
        }
    }
}

#[test]
fn nonces_are_the_portable_ones() {
    nonces::<P256, 5>();
    nonces::<P384, 8>();
}

/// With a nonce of one `s = z + r d`, so that a digest can be chosen which makes it zero. (Nobody knows a nonce for which `r` is.)
#[test]
fn a_signature_with_a_zero_is_reported_in_its_lane() {
    let n = big(&P256Order::PRIME);
    let x = big(&P256::GENERATOR[0]);
    let key = P256Order::ONE;
    let zero = (&n - x % &n) % &n;
    let digests: [Limbs<5>; LANES] =
        std::array::from_fn(|lane| if lane == 3 { small(&zero) } else { small(&(&zero + 1u32)) });
    let one: Limbs<5> = limbs_of(&[1], 0);
    let (_, good) = kernel::sign::<P256, Model, 5>(
        gather(&[one; LANES]),
        gather(&[key; LANES]),
        gather(&digests),
        undisturbed,
    );
    assert_eq!(good.map(Model::reveal_mask), [!(1 << 3), 0xff]);
    if let Some(isa) = isa() {
        assert_eq!(entry::sign::<P256, 5>(isa, &[one; LANES], &[key; LANES], &digests).1, [!(1 << 3), 0xff]);
    }
}
