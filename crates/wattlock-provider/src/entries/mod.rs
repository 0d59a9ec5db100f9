//! The C entries of keys and of operations with them, under OpenSSL's names: once for all types of key.
//!
//! An entry turns its arguments into references ([`crate::arg`]), catches panics ([`crate::error::entry`]) and calls the
//! type's trait, which is safe Rust. A missing context, key or place for a length fails the call. What a type of key
//! cannot do is not in its table: OpenSSL sees that and does without.

pub mod asym_cipher;
pub mod codec;
pub mod context;
pub mod exchange;
pub mod kem;
pub mod keymgmt;
pub mod signature;

use crate::params::Table;
use crate::sys::OSSL_DISPATCH;

/// A table of functions. A row with `if` is left out where that is false.
macro_rules! dispatch {
    ($($number:expr => $function:expr $(, if $when:expr)?);* $(;)?) => {
        $crate::entries::packed([
            $((
                true $(&& $when)?,
                $crate::sys::OSSL_DISPATCH { function_id: $number, function: $function as *const std::ffi::c_void },
            ),)*
            (false, $crate::sys::OSSL_DISPATCH { function_id: 0, function: std::ptr::null() }),
        ])
    };
}
pub(crate) use dispatch;

/// The rows that are in, then ends of a table.
pub(crate) const fn packed<const N: usize>(rows: [(bool, OSSL_DISPATCH); N]) -> Table<OSSL_DISPATCH, N> {
    let mut table = [OSSL_DISPATCH { function_id: 0, function: std::ptr::null() }; N];
    let (mut from, mut to) = (0, 0);
    while from < N {
        let (is_in, row) = rows[from];
        if is_in {
            table[to] = row;
            to += 1;
        }
        from += 1;
    }
    Table(table)
}
