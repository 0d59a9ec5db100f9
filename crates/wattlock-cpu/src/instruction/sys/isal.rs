//! igzip, the deflate of Intel's ISA-L, loaded at run time: `libisal.so.2`, 2.30 or later.
//!
//! The library is looked for once in a process and never unloaded; if its file is removed or replaced afterwards, the
//! mapped one stays. Version 2.30 brought `isal_deflate_process_dict`: a library without that symbol is too old and is
//! not used. Structures are those of `igzip_lib.h` of 2.30 to 2.32, of which they have what is public; room for the
//! state behind is half as large again as those versions need.
//!
//! Assembly of the library leaves the upper halves of vector registers set. Code compiled for SSE is then several times
//! slower on many CPUs until they are cleared, so every call here clears them.

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::sync::OnceLock;

use wattlock_core::{Error, Fault, Moved, Then};

/// `struct isal_zstream` up to its internal state, and of that what says where the stream stands.
#[repr(C)]
struct Header {
    next_in: *const u8,
    avail_in: u32,
    total_in: u32,
    next_out: *mut u8,
    avail_out: u32,
    total_out: u32,
    hufftables: *mut c_void,
    level: u32,
    level_buf_size: u32,
    level_buf: *mut u8,
    end_of_stream: u16,
    flush: u16,
    gzip_flag: u16,
    hist_bits: u16,
    // struct isal_zstate
    total_in_start: u32,
    block_next: u32,
    block_end: u32,
    dist_mask: u32,
    hash_mask: u32,
    state: u32,
}

/// `struct isal_zstream` has about 82,400 bytes: 2 x 32 KiB + 288 of window, 16 KiB of hash table, some fields.
const STATE_BYTES: usize = 128 * 1024;

/// With what follows the fields named above. `hashes` want a cache line.
#[repr(C, align(64))]
struct ZStream {
    header: Header,
    rest: [u8; STATE_BYTES],
}

const NO_FLUSH: u16 = 0;
const SYNC_FLUSH: u16 = 1;
const RAW_DEFLATE: u16 = 0;
const COMP_OK: c_int = 0;
const ZSTATE_NEW_HDR: u32 = 0;
const ZSTATE_END: u32 = 11;

/// `ISAL_DEF_LVLn_DEFAULT`: requirement, hash table, 64 Ki tokens of 4 bytes.
const fn level_bytes(level: u8) -> usize {
    const K: usize = 1024;
    match level {
        1 => 4 * K + 2 * 8 * K + 4 * 64 * K,
        2 => 4 * K + 2 * 32 * K + 4 * 64 * K,
        _ => 4 * K + 16 * K + 2 * 32 * K + 4 * 64 * K,
    }
}

/// Bytes given to the library at once: it counts in 32 bits.
const PIECE: usize = 1 << 30;

/// The functions that we use.
pub(in super::super) struct Isal {
    init: unsafe extern "C" fn(*mut ZStream),
    reset: unsafe extern "C" fn(*mut ZStream),
    set_dict: unsafe extern "C" fn(*mut ZStream, *const u8, u32) -> c_int,
    deflate: unsafe extern "C" fn(*mut ZStream) -> c_int,
    name: String,
}

impl fmt::Debug for Isal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The library, if this machine has one that is new enough.
pub(in super::super) fn library() -> Option<&'static Isal> {
    static LIBRARY: OnceLock<Option<Isal>> = OnceLock::new();
    LIBRARY.get_or_init(|| Isal::load(c"libisal.so.2")).as_ref()
}

impl Isal {
    /// Loads the library of that name and has it compress something.
    pub(in super::super) fn load(name: &CStr) -> Option<Isal> {
        // SAFETY: a string with its zero; the library's own initialisers are all that runs.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return None;
        }
        let found = Isal::of(handle).filter(Isal::works);
        if found.is_none() {
            // SAFETY: nothing of it is kept.
            unsafe { libc::dlclose(handle) };
        }
        found
    }

    fn of(handle: *mut c_void) -> Option<Isal> {
        let find = |name: &CStr| {
            // SAFETY: an open library and a string with its zero.
            let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
            (!symbol.is_null()).then_some(symbol)
        };
        // Not called: it says that the library is 2.30 or later.
        find(c"isal_deflate_process_dict")?;
        let (init, reset) = (find(c"isal_deflate_init")?, find(c"isal_deflate_reset")?);
        let (set_dict, deflate) = (find(c"isal_deflate_set_dict")?, find(c"isal_deflate")?);
        // SAFETY: the types are those of igzip_lib.h, and the library stays loaded as long as the value that is returned.
        unsafe {
            Some(Isal {
                init: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut ZStream)>(init),
                reset: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut ZStream)>(reset),
                set_dict: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut ZStream, *const u8, u32) -> c_int,
                >(set_dict),
                deflate: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut ZStream) -> c_int>(
                    deflate,
                ),
                name: file_of(deflate),
            })
        }
    }

    /// A library of another build could have other structures: a library that works at all says so by a right answer.
    fn works(&self) -> bool {
        let input = b"igzip igzip igzip igzip igzip igzip igzip igzip";
        (1..=3).all(|level| {
            // The library is not static here; the coder does not outlive the call.
            let Some(mut coder) = Raw::new(self, level) else { return false };
            let mut output = [0; 256];
            let moved = coder.update(self, input, &mut output, Then::End);
            matches!(moved, Ok(Moved { read: 47, written, done: true })
                if super::super::deflate::inflates_to(&output[..written], &[], input, true))
        })
    }

    /// The library's file, by its full name, which ends in its version.
    pub(in super::super) fn name(&self) -> &str {
        &self.name
    }
}

/// The name of the file that a symbol came from, without its folders.
fn file_of(symbol: *mut c_void) -> String {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: a structure to be filled; all zeroes is a value of it.
    let info = unsafe {
        libc::dladdr(symbol, info.as_mut_ptr());
        info.assume_init()
    };
    if info.dli_fname.is_null() {
        return "libisal.so.2".into();
    }
    // SAFETY: the loader's own string, which lives as long as the library.
    let path = unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy().into_owned();
    let whole = std::fs::canonicalize(&path).unwrap_or_else(|_| path.into());
    whole.file_name().map_or_else(|| "libisal.so.2".into(), |name| name.to_string_lossy().into_owned())
}

/// A compressor of the library's.
pub(in super::super) struct Igzip {
    library: &'static Isal,
    raw: Raw,
}

impl Igzip {
    /// For one of the library's levels, 1 to 3. Allocates about 400 KiB; `None` if there is no memory.
    pub(in super::super) fn new(library: &'static Isal, level: u8) -> Option<Igzip> {
        Some(Igzip { library, raw: Raw::new(library, level)? })
    }

    /// Begins a stream behind a dictionary of at most 32 KiB.
    pub(in super::super) fn start(&mut self, dictionary: &[u8]) -> Result<(), Error> {
        self.raw.start(self.library, dictionary)
    }

    /// As [`wattlock_core::CompressStream::update`].
    pub(in super::super) fn update(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        then: Then,
    ) -> Result<Moved, Error> {
        self.raw.update(self.library, input, output, then)
    }
}

/// The library's state, on the heap, and the memory that it works in.
struct Raw {
    stream: Box<ZStream>,
    level: u8,
    /// The stream points into it; never touched from here.
    level_buf: Box<[u8]>,
}

// SAFETY: the pointers in the stream are to its own buffer and, between calls, to nothing that is used.
unsafe impl Send for Raw {}

impl Raw {
    fn new(library: &Isal, level: u8) -> Option<Raw> {
        let layout = std::alloc::Layout::new::<ZStream>();
        // SAFETY: not of size 0; all zeroes is a value of the type; a box frees it with the same layout.
        let stream = unsafe {
            let memory = std::alloc::alloc_zeroed(layout).cast::<ZStream>();
            if memory.is_null() {
                return None;
            }
            Box::from_raw(memory)
        };
        let mut raw = Raw { stream, level, level_buf: vec![0; level_bytes(level)].into_boxed_slice() };
        // SAFETY: memory larger than the library's structure, and its own from here on.
        unsafe { (library.init)(&mut *raw.stream) };
        let header = &mut raw.stream.header;
        header.level = u32::from(level);
        header.level_buf = raw.level_buf.as_mut_ptr();
        header.level_buf_size = raw.level_buf.len() as u32;
        header.gzip_flag = RAW_DEFLATE;
        Some(raw)
    }

    fn start(&mut self, library: &Isal, dictionary: &[u8]) -> Result<(), Error> {
        // SAFETY: a stream that `init` made; reset keeps level, buffer and flag.
        unsafe { (library.reset)(&mut *self.stream) };
        let header = &mut self.stream.header;
        (header.flush, header.end_of_stream, header.level) = (NO_FLUSH, 0, u32::from(self.level));
        if dictionary.is_empty() {
            return Ok(());
        }
        let len = u32::try_from(dictionary.len()).map_err(|_| Error::Invalid("dictionary length"))?;
        // SAFETY: a fresh stream, and `len` bytes, which are copied.
        let code = unsafe { (library.set_dict)(&mut *self.stream, dictionary.as_ptr(), len) };
        zero_upper();
        if code == COMP_OK { Ok(()) } else { Err(Error::Device(Fault::Reported)) }
    }

    fn update(
        &mut self,
        library: &Isal,
        input: &[u8],
        output: &mut [u8],
        then: Then,
    ) -> Result<Moved, Error> {
        let (mut read, mut written) = (0, 0);
        loop {
            let (rest, room) = (&input[read..], &mut output[written..]);
            let whole = rest.len() <= PIECE;
            let (given, free) = (rest.len().min(PIECE), room.len().min(PIECE));
            let header = &mut self.stream.header;
            (header.next_in, header.avail_in) = (rest.as_ptr(), given as u32);
            (header.next_out, header.avail_out) = (room.as_mut_ptr(), free as u32);
            header.end_of_stream = u16::from(whole && then == Then::End);
            header.flush = if whole && then == Then::Flush { SYNC_FLUSH } else { NO_FLUSH };
            // SAFETY: the stream's pointers are to `given` readable and `free` writable bytes, which the library does not
            // keep beyond the call, and to the buffer of its level.
            let code = unsafe { (library.deflate)(&mut *self.stream) };
            zero_upper();
            let header = &self.stream.header;
            let left = (header.avail_in as usize, header.avail_out as usize);
            if code != COMP_OK || left.0 > given || left.1 > free {
                return Err(Error::Device(Fault::Reported));
            }
            let moved = (given - left.0, free - left.1);
            (read, written) = (read + moved.0, written + moved.1);
            let state = header.state;
            let done = read == input.len()
                && match then {
                    Then::More => true,
                    Then::Flush => state == ZSTATE_NEW_HDR,
                    Then::End => state == ZSTATE_END,
                };
            if done || written == output.len() {
                return Ok(Moved { read, written, done });
            }
            if moved == (0, 0) {
                return Err(Error::Device(Fault::Reported));
            }
        }
    }
}

/// Clears the upper halves of the vector registers, where there are any.
fn zero_upper() {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx")]
        fn clear() {
            std::arch::x86_64::_mm256_zeroupper();
        }
        if std::arch::is_x86_feature_detected!("avx") {
            // SAFETY: the CPU has AVX. Nothing of Rust's lives in an upper half over a call.
            unsafe { clear() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_library_of_that_name_is_no_error() {
        assert!(Isal::load(c"libisal-that-does-not-exist.so.2").is_none());
    }

    #[test]
    fn a_library_without_the_functions_is_refused() {
        // libc is always there, and compresses nothing.
        assert!(Isal::load(c"libc.so.6").is_none());
    }
}
