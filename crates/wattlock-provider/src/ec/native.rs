//! The two curves that engines do, and keys on them as bytes.
//!
//! Refuses points that are not on the curve, infinity, and scalars out of range: such keys are made by a child, whose
//! verdict then counts.

use std::ffi::CStr;
use std::sync::OnceLock;

use p256::elliptic_curve::CurveArithmetic;
use p256::elliptic_curve::sec1::{FromSec1Point, ModulusSize, Sec1Point};
use wattlock::core::{Curve, EcKey, Error, Key, Kind};
use zeroize::Zeroizing;

use crate::child::Pkey;
use crate::params::List;
use crate::provider::Provider;
use crate::sys::id;

/// Bytes of the largest point.
pub const POINT_MAX: usize = 97;

/// What there is to know about a curve.
pub struct Group {
    pub curve: Curve,
    /// OpenSSL's own name, which it answers with.
    pub name: &'static CStr,
    /// Names it takes, in lower case.
    names: [&'static str; 2],
    /// Bytes of a coordinate and of a scalar.
    pub len: usize,
    pub bits: usize,
    pub security_bits: usize,
    order: &'static [u8],
    /// What the curve was made from, which OpenSSL keeps with it.
    pub seed: &'static [u8],
    on_curve: fn(&[u8]) -> bool,
    pub sign: Kind,
    pub derive: Kind,
    pub generate: Kind,
}

/// P-256 and P-384.
pub static GROUPS: [Group; 2] = [
    Group {
        curve: Curve::P256,
        name: c"prime256v1",
        names: ["prime256v1", "p-256"],
        len: 32,
        bits: 256,
        security_bits: 128,
        // SP 800-186 section 3.2.1.3
        order: &[
            0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            0xbc, 0xe6, 0xfa, 0xad, 0xa7, 0x17, 0x9e, 0x84, 0xf3, 0xb9, 0xca, 0xc2, 0xfc, 0x63, 0x25, 0x51,
        ],
        seed: &[
            0xc4, 0x9d, 0x36, 0x08, 0x86, 0xe7, 0x04, 0x93, 0x6a, 0x66, 0x78, 0xe1, 0x13, 0x9d, 0x26, 0xb7,
            0x81, 0x9f, 0x7e, 0x90,
        ],
        on_curve: on_curve::<p256::NistP256>,
        sign: Kind::EcdsaP256Sign,
        derive: Kind::P256Derive,
        generate: Kind::P256Generate,
    },
    Group {
        curve: Curve::P384,
        name: c"secp384r1",
        names: ["secp384r1", "p-384"],
        len: 48,
        bits: 384,
        security_bits: 192,
        // SP 800-186 section 3.2.1.4
        order: &[
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xc7, 0x63, 0x4d, 0x81, 0xf4, 0x37, 0x2d, 0xdf,
            0x58, 0x1a, 0x0d, 0xb2, 0x48, 0xb0, 0xa7, 0x7a, 0xec, 0xec, 0x19, 0x6a, 0xcc, 0xc5, 0x29, 0x73,
        ],
        seed: &[
            0xa3, 0x35, 0x92, 0x6a, 0xa3, 0x19, 0xa2, 0x7a, 0x1d, 0x00, 0x89, 0x6a, 0x67, 0x73, 0xa4, 0x82,
            0x7a, 0xcd, 0xac, 0x73,
        ],
        on_curve: on_curve::<p384::NistP384>,
        sign: Kind::EcdsaP384Sign,
        derive: Kind::P384Derive,
        generate: Kind::P384Generate,
    },
];

/// Whether an uncompressed encoding is of a point on the curve, coordinates below the prime. Both groups have prime
/// order, so that is all there is to check (SP 800-56A section 5.6.2.3.4).
fn on_curve<C>(point: &[u8]) -> bool
where
    C: CurveArithmetic<FieldBytesSize: ModulusSize, AffinePoint: FromSec1Point<C>>,
{
    Sec1Point::<C>::from_bytes(point)
        .is_ok_and(|point| C::AffinePoint::from_sec1_point(&point).into_option().is_some())
}

impl Group {
    /// The group of that name, whatever its case, if engines do it.
    pub fn by_name(name: &str) -> Option<&'static Group> {
        GROUPS.iter().find(|group| group.names.iter().any(|known| known.eq_ignore_ascii_case(name)))
    }

    /// Bytes of an uncompressed point.
    pub fn point_len(&self) -> usize {
        1 + 2 * self.len
    }

    /// Largest ECDSA signature: a sequence of two integers, each of which may need a leading zero.
    pub fn signature_max(&self) -> usize {
        2 + 2 * (2 + 1 + self.len)
    }
}

/// A public point, uncompressed and on its curve.
#[derive(Clone, Copy)]
pub struct Point {
    bytes: [u8; POINT_MAX],
    len: usize,
}

impl Point {
    /// Reads one. `None` if it is not uncompressed, not on the curve, or infinity.
    pub fn read(group: &Group, bytes: &[u8]) -> Option<Point> {
        if bytes.len() != group.point_len() || bytes[0] != 4 || !(group.on_curve)(bytes) {
            return None;
        }
        Some(Point::copy(bytes))
    }

    fn copy(bytes: &[u8]) -> Point {
        let mut point = Point { bytes: [0; POINT_MAX], len: bytes.len() };
        point.bytes[..bytes.len()].copy_from_slice(bytes);
        point
    }

    /// `0x04 || x || y`
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A private scalar in range. Wiped on drop.
pub type Scalar = Zeroizing<Vec<u8>>;

/// Whether a big-endian scalar of the group's length is from 1 to the order less one. Constant time.
fn in_range(group: &Group, scalar: &[u8]) -> bool {
    let (mut borrow, mut any) = (0_u16, 0_u8);
    for (byte, limit) in scalar.iter().zip(group.order).rev() {
        borrow = (u16::from(*byte).wrapping_sub(u16::from(*limit)).wrapping_sub(borrow) >> 8) & 1;
        any |= byte;
    }
    // The verdict, unlike the scalar, is public.
    borrow == 1 && any != 0
}

/// A key on one of the two curves with OpenSSL's usual settings: named curve, uncompressed point, no cofactor mode.
pub struct Native {
    pub group: &'static Group,
    public: Option<Point>,
    scalar: Option<Scalar>,
    /// Whether scalar and point are known to belong together.
    pub paired: bool,
    key: OnceLock<Option<Key>>,
    child: OnceLock<Option<Pkey>>,
}

impl Native {
    /// The group alone, or with a public point.
    pub fn new(group: &'static Group, public: Option<Point>) -> Native {
        Native { group, public, scalar: None, paired: false, key: OnceLock::new(), child: OnceLock::new() }
    }

    /// With a private scalar too; any length, big-endian. `None` if it is out of range.
    pub fn with_scalar(self, scalar: &[u8]) -> Option<Native> {
        let at = self.group.len.checked_sub(scalar.len())?;
        let mut padded = Scalar::new(vec![0; self.group.len]);
        padded[at..].copy_from_slice(scalar);
        in_range(self.group, &padded).then(|| Native { scalar: Some(padded), ..self })
    }

    /// A fresh key pair. Inside a job this may pause.
    ///
    /// # Errors
    /// As [`Provider::generate`].
    pub fn generate(provider: &Provider, group: &'static Group) -> Result<Native, Error> {
        let mut pair = Zeroizing::new([0; 48 + POINT_MAX]);
        let pair = &mut pair[..group.len + group.point_len()];
        provider.generate(group.generate, pair)?;
        let (scalar, public) = pair.split_at(group.len);
        let mut native = Native::new(group, Some(Point::copy(public)));
        native.scalar = Some(Scalar::new(scalar.to_vec()));
        native.paired = true;
        Ok(native)
    }

    /// The same with another public point, which may not be the scalar's.
    pub fn with_public(&self, public: Point) -> Native {
        let mut changed = Native::new(self.group, Some(public));
        changed.scalar.clone_from(&self.scalar);
        changed
    }

    /// The parts that a selection names.
    pub fn selected(&self, selection: std::ffi::c_int) -> Native {
        let public = self.public.filter(|_| selection & id::SELECT_PUBLIC_KEY != 0);
        let mut copy = Native::new(self.group, public);
        if selection & id::SELECT_PRIVATE_KEY != 0 {
            copy.scalar.clone_from(&self.scalar);
        }
        copy.paired = self.paired && copy.public.is_some() && copy.scalar.is_some();
        copy
    }

    pub fn public(&self) -> Option<&Point> {
        self.public.as_ref()
    }

    pub fn scalar(&self) -> Option<&[u8]> {
        self.scalar.as_ref().map(|scalar| &scalar[..])
    }

    /// What engines want; `None` if a half is missing.
    pub fn key(&self) -> Option<&Key> {
        let make = || {
            let (public, scalar) = (self.public.as_ref()?, self.scalar.as_ref()?);
            let parts = EcKey { scalar: scalar.to_vec(), public: public.bytes().to_vec() };
            Key::ec(self.group.curve, parts).ok()
        };
        self.key.get_or_init(make).as_ref()
    }

    /// The same key in OpenSSL's own provider.
    pub fn child(&self, provider: &Provider) -> Option<&Pkey> {
        self.child.get_or_init(|| self.quick_child(provider).or_else(|| self.full_child(provider))).as_ref()
    }

    /// A public key as a copy of its group with a point: a third of what making the group anew costs.
    fn quick_child(&self, provider: &Provider) -> Option<Pkey> {
        let point = self.public.as_ref().filter(|_| self.scalar.is_none())?;
        let make = || Native::new(self.group, None).full_child(provider);
        let place = GROUPS.iter().position(|group| group.curve == self.group.curve)?;
        let mut copy = provider.kept.groups.get(place)?.get_or_init(make).as_ref()?.duplicate()?;
        copy.set(List::new().octets(c"encoded-pub-key", point.bytes()).params()).then_some(copy)
    }

    fn full_child(&self, provider: &Provider) -> Option<Pkey> {
        let mut selection = id::SELECT_ALL_PARAMETERS;
        let mut list = List::new().text(c"group", self.group.name);
        if let Some(public) = &self.public {
            selection |= id::SELECT_PUBLIC_KEY;
            list = list.octets(c"pub", public.bytes());
        }
        let little: Option<Scalar> =
            self.scalar.as_ref().map(|scalar| Zeroizing::new(scalar.iter().rev().copied().collect()));
        if let Some(little) = &little {
            selection |= id::SELECT_KEYPAIR;
            list = list.number(c"priv", little);
        }
        Pkey::from_data(&provider.child, c"EC", selection, list.params())
    }
}

const _: () = assert!(GROUPS.len() == crate::kept::GROUPS);

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
    }

    /// SP 800-186 section 3.2.1.3
    const BASE: &str = "046b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296\
                        4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5";

    #[test]
    fn a_point_is_taken_uncompressed_and_on_its_curve_only() {
        let group = &GROUPS[0];
        let good = bytes(BASE);
        assert!(Point::read(group, &good).is_some());
        let changed = |at: usize, value: u8| {
            let mut bad = good.clone();
            bad[at] = value;
            Point::read(group, &bad).is_none()
        };
        assert!(changed(64, 0xf4), "off the curve");
        assert!(changed(0, 6), "hybrid");
        assert!(changed(0, 2), "compressed, with too many bytes");
        assert!(Point::read(group, &good[..33]).is_none());
        assert!(Point::read(group, &[0]).is_none(), "infinity");
        assert!(Point::read(group, &[]).is_none());
        assert!(Point::read(&GROUPS[1], &good).is_none());
    }

    #[test]
    fn a_coordinate_is_below_the_prime() {
        // (0, y) is on P-256 for y a root of b; (p, y) is the same residue and no encoding of it (SP 800-186).
        let y = bytes("66485c780e2f83d72433bd5d84a06bb6541c2af31dae871728bf856a174f93f4");
        let prime = bytes("ffffffff00000001000000000000000000000000ffffffffffffffffffffffff");
        let point = |x: &[u8]| Point::read(&GROUPS[0], &[&[4], x, &y].concat()).is_some();
        assert!(point(&[0; 32]));
        assert!(!point(&prime));
    }

    #[test]
    fn a_scalar_is_from_one_to_the_order_less_one() {
        for group in &GROUPS {
            let mut near = group.order.to_vec();
            assert!(!in_range(group, &near));
            *near.last_mut().unwrap() -= 1;
            assert!(in_range(group, &near));
            near.fill(0xff);
            assert!(!in_range(group, &near));
            near.fill(0);
            assert!(!in_range(group, &near));
            near[group.len - 1] = 1;
            assert!(in_range(group, &near));
            assert!(Native::new(group, None).with_scalar(&[1]).is_some(), "short ones are padded");
            assert!(Native::new(group, None).with_scalar(&vec![1; group.len + 1]).is_none());
        }
    }
}
