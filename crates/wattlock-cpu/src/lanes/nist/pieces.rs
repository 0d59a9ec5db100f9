//! The large pieces of the kernels, each compiled once for each curve and vector type instead of everywhere it is used: on
//! [`Ifma`] they are functions with its instructions enabled, on the model they are plain.

use super::super::sha2::{self, Block, State};
use super::super::vector::Vector;
use super::curve::Curve;
use super::field::{Modulus, carry, choose, mul, splat, square, sub};
use super::multiply::scan;
use super::nonce::NonceHash;
use super::point::{Addend, Point, addend, double, one, sum, sum_affine};

/// Multiples of a lane's point: 1 to 16.
pub type Table<V, const N: usize> = [Addend<V, N>; 16];

/// A vector type for which the pieces exist.
pub trait Pieces<C: Curve<N>, const N: usize>: Vector {
    /// `2^times` times the point.
    fn double_times(point: &mut Point<Self, N>, times: usize);

    /// Adds, or subtracts where `negative`, an affine point: see [`sum_affine`].
    fn add_affine(point: &mut Point<Self, N>, other: &[[Self; N]; 2], negative: Self::Mask);

    /// A point with the powers of its Z.
    fn addend_into(point: &Point<Self, N>, out: &mut Addend<Self, N>);

    /// Adds a digit's multiple from a lane's own table, unless the digit is zero. Where nothing was added yet (`empty`) the
    /// multiple replaces the point.
    fn add_picked(
        point: &mut Point<Self, N>,
        table: &Table<Self, N>,
        magnitude: Self,
        negative: Self::Mask,
        empty: &mut Self::Mask,
    );

    /// The same from a window of the curve's comb.
    fn add_from_comb(
        point: &mut Point<Self, N>,
        window: usize,
        magnitude: Self,
        negative: Self::Mask,
        empty: &mut Self::Mask,
    );

    /// Takes a block into a state of the curve's nonce hash.
    fn compress(state: &mut State<Self>, block: &Block<Self>);

    /// `a <- a b`, coordinates.
    fn field_times(a: &mut [Self; N], b: &[Self; N]);

    /// `a <- a^(2^times)`, coordinates.
    fn field_squares(a: &mut [Self; N], times: usize);

    /// `a <- a^(2^times)`, coordinates, and `b <- b^(2^times)`, scalars.
    fn both_squares(a: &mut [Self; N], b: &mut [Self; N], times: usize);

    /// `a <- a b`, scalars.
    fn order_times(a: &mut [Self; N], b: &[Self; N]);

    /// `a <- a^(2^times)`, scalars.
    fn order_squares(a: &mut [Self; N], times: usize);
}

mod generic {
    use super::*;

    #[inline(always)]
    pub fn double_times<C: Curve<N>, V: Vector, const N: usize>(point: &mut Point<V, N>, times: usize) {
        for _ in 0..times {
            *point = double::<C, V, N>(point);
        }
    }

    #[inline(always)]
    pub fn add_affine<C: Curve<N>, V: Vector, const N: usize>(
        point: &mut Point<V, N>,
        other: &[[V; N]; 2],
        negative: V::Mask,
    ) {
        *point = sum_affine::<C, V, N>(point, *other, negative);
    }

    #[inline(always)]
    pub fn addend_into<C: Curve<N>, V: Vector, const N: usize>(point: &Point<V, N>, out: &mut Addend<V, N>) {
        *out = addend::<C, V, N>(*point);
    }

    /// `sum` where something was there and something is added, `first` where nothing was there, else the point.
    #[inline(always)]
    fn chosen<V: Vector, const N: usize>(
        point: &mut Point<V, N>,
        sum: Point<V, N>,
        first: Point<V, N>,
        nothing: V::Mask,
        empty: &mut V::Mask,
    ) {
        let kept = Point::choose(nothing, *point, sum);
        *point = Point::choose(*empty, first, kept);
        *empty = V::both(*empty, nothing);
    }

    /// The first digit from the top is positive, so what replaces the point need not be negated.
    #[inline(always)]
    pub fn add_picked<C: Curve<N>, V: Vector, const N: usize>(
        point: &mut Point<V, N>,
        table: &Table<V, N>,
        magnitude: V,
        negative: V::Mask,
        empty: &mut V::Mask,
    ) {
        let other = scan(table, magnitude);
        let sum = sum::<C, V, N>(point, &other, negative);
        chosen(point, sum, other.point, magnitude.is_equal(V::splat(0)), empty);
    }

    #[inline(always)]
    pub fn add_from_comb<C: Curve<N>, V: Vector, const N: usize>(
        point: &mut Point<V, N>,
        window: usize,
        magnitude: V,
        negative: V::Mask,
        empty: &mut V::Mask,
    ) {
        let [x, y] = C::comb().pick(window, magnitude);
        let sum = sum_affine::<C, V, N>(point, [x, y], negative);
        let y = carry(negate_if_below::<C, V, N>(negative, y));
        let first = Point { x, y, z: one::<C::Field, V, N>() };
        chosen(point, sum, first, magnitude.is_equal(V::splat(0)), empty);
    }

    /// `p - y` where the mask is set, for `y` below `p`.
    #[inline(always)]
    fn negate_if_below<C: Curve<N>, V: Vector, const N: usize>(negative: V::Mask, y: [V; N]) -> [V; N] {
        choose(negative, sub(splat(&C::Field::PRIME), y), y)
    }

    #[inline(always)]
    pub fn compress<C: Curve<N>, V: Vector, const N: usize>(state: &mut State<V>, block: &Block<V>) {
        sha2::compress::<<C::Hash as NonceHash>::Family, V>(state, block);
    }

    #[inline(always)]
    pub fn field_times<C: Curve<N>, V: Vector, const N: usize>(a: &mut [V; N], b: &[V; N]) {
        *a = carry(mul::<C::Field, V, N>(*a, *b));
    }

    #[inline(always)]
    pub fn field_squares<C: Curve<N>, V: Vector, const N: usize>(a: &mut [V; N], times: usize) {
        for _ in 0..times {
            *a = carry(square::<C::Field, V, N>(*a));
        }
    }

    #[inline(always)]
    pub fn both_squares<C: Curve<N>, V: Vector, const N: usize>(
        a: &mut [V; N],
        b: &mut [V; N],
        times: usize,
    ) {
        for _ in 0..times {
            *a = carry(square::<C::Field, V, N>(*a));
            *b = carry(square::<C::Order, V, N>(*b));
        }
    }

    #[inline(always)]
    pub fn order_times<C: Curve<N>, V: Vector, const N: usize>(a: &mut [V; N], b: &[V; N]) {
        *a = carry(mul::<C::Order, V, N>(*a, *b));
    }

    #[inline(always)]
    pub fn order_squares<C: Curve<N>, V: Vector, const N: usize>(a: &mut [V; N], times: usize) {
        for _ in 0..times {
            *a = carry(square::<C::Order, V, N>(*a));
        }
    }
}

/// The pieces for the vector type `V` of the module this stands in.
macro_rules! pieces {
    ($(#[$enable:meta])*) => {
        pieces! { @all [$(#[$enable])*]
            double_times(point: &mut Point<V, N>, times: usize);
            add_affine(point: &mut Point<V, N>, other: &[[V; N]; 2], negative: Mask);
            addend_into(point: &Point<V, N>, out: &mut Addend<V, N>);
            add_picked(point: &mut Point<V, N>, table: &Table<V, N>, magnitude: V, negative: Mask, empty: &mut Mask);
            add_from_comb(point: &mut Point<V, N>, window: usize, magnitude: V, negative: Mask, empty: &mut Mask);
            compress(state: &mut State<V>, block: &Block<V>);
            field_times(a: &mut [V; N], b: &[V; N]);
            field_squares(a: &mut [V; N], times: usize);
            both_squares(a: &mut [V; N], b: &mut [V; N], times: usize);
            order_times(a: &mut [V; N], b: &[V; N]);
            order_squares(a: &mut [V; N], times: usize);
        }
    };
    (@all $enable:tt $($name:ident($($argument:ident: $type:ty),*);)*) => {
        mod entries {
            use super::{Addend, Block, Curve, Mask, Point, State, Table, V, generic};
            $( pieces! { @entry $enable $name($($argument: $type),*) } )*
        }

        impl<C: Curve<N>, const N: usize> Pieces<C, N> for V {
            $(
                #[inline(always)]
                fn $name($($argument: $type),*) {
                    // SAFETY: values of a vector type exist only where a witness of its instructions was shown, and
                    // the model needs none.
                    #[allow(unused_unsafe)]
                    unsafe { entries::$name::<C, N>($($argument),*) }
                }
            )*
        }
    };
    (@entry [$(#[$enable:meta])*] $name:ident($($argument:ident: $type:ty),*)) => {
        $(#[$enable])*
        pub fn $name<C: Curve<N>, const N: usize>($($argument: $type),*) {
            generic::$name::<C, V, N>($($argument),*);
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod ifma {
    use super::*;
    type V = super::super::super::vector::Ifma;
    type Mask = <V as Vector>::Mask;
    pieces! { #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512ifma")] }
}

mod plain {
    use super::*;
    type V = super::super::super::vector::model::Model;
    type Mask = <V as Vector>::Mask;
    pieces! {}
}
