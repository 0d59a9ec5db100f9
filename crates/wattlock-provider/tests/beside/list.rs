//! Lists of parameters as a hostile program makes them: any name, type and size, but no memory that is not there.

use std::ffi::{CStr, CString, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};

use wattlock_provider::sys::OSSL_PARAM;

use super::Choices;

pub const INT: c_uint = 1;
pub const UINT: c_uint = 2;
pub const REAL: c_uint = 3;
pub const TEXT: c_uint = 4;
pub const OCTETS: c_uint = 5;
pub const OCTETS_PTR: c_uint = 7;

/// A value by name.
#[derive(Clone, Debug)]
pub struct Value {
    pub name: CString,
    pub data_type: c_uint,
    pub data: Vec<u8>,
    /// Without any data: a question about a length, or a value that is not there.
    pub nothing: bool,
    /// The size it says, where that is not the data's.
    pub size: Option<usize>,
}

impl Value {
    pub fn new(name: &CStr, data_type: c_uint, data: Vec<u8>) -> Value {
        Value { name: name.to_owned(), data_type, data, nothing: false, size: None }
    }

    pub fn uint(name: &CStr, value: u32) -> Value {
        Value::new(name, UINT, value.to_ne_bytes().to_vec())
    }

    pub fn int(name: &CStr, value: c_int) -> Value {
        Value::new(name, INT, value.to_ne_bytes().to_vec())
    }

    pub fn text(name: &CStr, value: &str) -> Value {
        Value::new(name, TEXT, value.as_bytes().to_vec())
    }

    pub fn say(&self) -> String {
        let size = if self.nothing { "nothing".to_owned() } else { format!("{:02x?}", self.data) };
        format!("{}:{}={size}", self.name.to_string_lossy(), self.data_type)
    }
}

/// A list for one call. Data is followed by zeros: libcrypto reads texts up to one, and a whole nonce beyond its size.
pub struct List {
    entries: Vec<OSSL_PARAM>,
    data: Vec<Box<[u8]>>,
    /// Boxed: their addresses are in the entries, and the vector moves them when it grows.
    #[allow(clippy::vec_box, reason = "see above")]
    pointers: Vec<Box<*const c_void>>,
    _values: Vec<Value>,
}

const BEYOND: usize = 256;

impl List {
    pub fn new(values: &[Value]) -> List {
        let mut list =
            List { entries: Vec::new(), data: Vec::new(), pointers: Vec::new(), _values: values.to_vec() };
        for value in &list._values {
            let mut held: Box<[u8]> = [&value.data[..], &[0; BEYOND]].concat().into();
            let at = held.as_mut_ptr().cast::<c_void>();
            let size = value.size.unwrap_or(value.data.len());
            let (at, size) = match (value.nothing, value.data_type) {
                (true, _) => (null_mut(), value.size.unwrap_or(0)),
                (false, OCTETS_PTR) => {
                    let mut pointer = Box::new(at.cast_const());
                    let place = (&raw mut *pointer).cast();
                    list.pointers.push(pointer);
                    (place, size)
                }
                (false, _) => (at, size),
            };
            list.data.push(held);
            list.entries.push(OSSL_PARAM {
                key: value.name.as_ptr(),
                data_type: value.data_type,
                data: at,
                data_size: size,
                return_size: usize::MAX,
            });
        }
        list.entries.push(OSSL_PARAM {
            key: null(),
            data_type: 0,
            data: null_mut(),
            data_size: 0,
            return_size: 0,
        });
        list
    }

    pub fn tell(&self) -> *const OSSL_PARAM {
        self.entries.as_ptr()
    }

    pub fn ask(&mut self) -> *mut OSSL_PARAM {
        self.entries.as_mut_ptr()
    }

    /// What was answered: sizes, and bytes where they are a value and not a pointer.
    pub fn answers(&self) -> Vec<u8> {
        let mut all = Vec::new();
        for ((entry, data), value) in self.entries.iter().zip(&self.data).zip(&self._values) {
            all.extend((entry.return_size as u32).to_le_bytes());
            if value.data_type != OCTETS_PTR {
                all.extend(&data[..value.data.len()]);
            }
        }
        all
    }
}

const NUMBERS: [i64; 22] =
    [0, 1, 2, 3, 4, 5, 8, 11, 12, 13, 15, 16, 17, 20, 32, 64, 128, 129, 0x301, 0x303, -1, 1 << 33];

/// A number in any width and of any type that numbers have.
pub fn number(choices: &mut Choices<'_>, name: &CStr) -> Value {
    let value = choices.pick(&NUMBERS);
    let data_type = choices.pick(&[UINT, UINT, INT, REAL]);
    let data = match (data_type, choices.below(6)) {
        (REAL, half) => {
            let more = if half == 0 { 0.5 } else { 0.0 };
            return Value::new(name, REAL, (value as f64 + more).to_ne_bytes().to_vec());
        }
        (_, 0) => vec![value as u8],
        (_, 1) => (value as u16).to_ne_bytes().to_vec(),
        (_, 2 | 3) => (value as u32).to_ne_bytes().to_vec(),
        (_, 4) => i128::from(value).to_ne_bytes().to_vec(),
        _ => value.to_ne_bytes().to_vec(),
    };
    Value::new(name, data_type, data)
}

/// Anything under this name.
pub fn anything(choices: &mut Choices<'_>, name: &CStr) -> Value {
    match choices.below(8) {
        0..=3 => number(choices, name),
        4 => Value::new(name, TEXT, choices.pick(&[&b"1"[..], b"", b"SHA256", b"pss", b"x"]).to_vec()),
        5 => Value { nothing: true, ..Value::new(name, choices.pick(&[TEXT, OCTETS]), Vec::new()) },
        _ => {
            let len = choices.pick(&[0, 1, 4, 8, 12, 13, 16, 17, 32, 64]);
            Value::new(name, OCTETS, choices.fill(len))
        }
    }
}

/// A question under this name: a type, and room or none.
pub fn question(choices: &mut Choices<'_>, name: &CStr) -> Value {
    let data_type = choices.pick(&[INT, UINT, UINT, TEXT, OCTETS, OCTETS, OCTETS_PTR, REAL]);
    let len = match data_type {
        REAL => 8,
        INT | UINT => choices.pick(&[1, 2, 4, 4, 8, 8, 16]),
        _ => choices.pick(&[0, 1, 4, 8, 12, 15, 16, 17, 64, 128, 200, 600]),
    };
    let nothing = choices.one_in(8);
    let data = if nothing { Vec::new() } else { vec![0xee; len] };
    Value { nothing, ..Value::new(name, data_type, data) }
}
