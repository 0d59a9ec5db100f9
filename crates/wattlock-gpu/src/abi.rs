//! The C entries of `include/wattlock/gpu.h`: pointers are checked, panics caught, and the last failure of a thread is
//! kept for it to ask.
//!
//! What every `unsafe` block here relies on: an opaque pointer came from this library and was not freed, a string ends with
//! a zero, a buffer has the bytes that the call says. That is the header's contract; null is refused, as the rest cannot
//! be checked.

use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use wattlock_core::Kind;
use wattlock_cuda::Stream;
use wattlock_cuda::direct::{Area, DirectKey, Memory, Messages, Trouble};
use wattlock_files::{Opener, Reader, age, keys};

use crate::dlpack::{ManagedTensor, tensor};
use crate::failure::Failure;
use crate::gpu::{Gpu, GpuKey, cpu};
use crate::load::load;

/// `WATTLOCK_GPU_ABI`.
const ABI: c_int = 1;

thread_local! {
    static LAST: RefCell<(CString, u8)> = RefCell::default();
}

/// Does `work`; keeps why it failed; returns the code.
fn entry(work: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Failure::Bug));
    let (code, text, exit) = match &done {
        Ok(()) => (0, String::new(), 0),
        Err(failure) => (failure.code(), failure.text(), failure.exit_code()),
    };
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    LAST.with(|last| *last.borrow_mut() = (CString::new(line).unwrap_or_default(), exit));
    code
}

/// Ends with nothing but a freed value, whatever happens.
fn quietly(work: impl FnOnce()) {
    _ = catch_unwind(AssertUnwindSafe(work));
}

fn null(name: &str) -> Failure {
    Failure::Refused(format!("{name} is null"))
}

/// What a handle stands for.
fn of<'a, T>(handle: *const T, name: &str) -> Result<&'a T, Failure> {
    // SAFETY: null, or from this library and alive, by the header's contract.
    unsafe { handle.as_ref() }.ok_or_else(|| null(name))
}

/// Gives a value to the caller.
fn give<T>(out: *mut *mut T, value: T) -> Result<(), Failure> {
    // SAFETY: null, or a pointer's place, by the header's contract.
    let out = unsafe { out.as_mut() }.ok_or_else(|| null("out"))?;
    *out = Box::into_raw(Box::new(value));
    Ok(())
}

/// Refuses a null place before any work is done for it.
fn wanted<T>(out: *mut *mut T) -> Result<(), Failure> {
    // SAFETY: as in `give`.
    let out = unsafe { out.as_mut() }.ok_or_else(|| null("out"))?;
    *out = std::ptr::null_mut();
    Ok(())
}

fn take<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: from `give`, and given back once, by the header's contract.
        quietly(|| drop(unsafe { Box::from_raw(handle) }));
    }
}

fn string<'a>(text: *const c_char, name: &str) -> Result<&'a CStr, Failure> {
    if text.is_null() {
        return Err(null(name));
    }
    // SAFETY: a string with its zero, by the header's contract.
    Ok(unsafe { CStr::from_ptr(text) })
}

fn bytes<'a>(at: *const c_void, len: u64, name: &str) -> Result<&'a [u8], Failure> {
    match (at.is_null(), usize::try_from(len)) {
        (_, Ok(0)) => Ok(&[]),
        (true, _) => Err(null(name)),
        // SAFETY: so many bytes, by the header's contract.
        (false, Ok(len)) => Ok(unsafe { std::slice::from_raw_parts(at.cast(), len) }),
        (false, Err(_)) => Err(Failure::Refused(format!("{name} is too large"))),
    }
}

fn bytes_mut<'a>(at: *mut c_void, len: u64, name: &str) -> Result<&'a mut [u8], Failure> {
    match (at.is_null(), usize::try_from(len)) {
        (_, Ok(0)) => Ok(&mut []),
        (true, _) => Err(null(name)),
        // SAFETY: so many bytes, which no other code uses, by the header's contract.
        (false, Ok(len)) => Ok(unsafe { std::slice::from_raw_parts_mut(at.cast(), len) }),
        (false, Err(_)) => Err(Failure::Refused(format!("{name} is too large"))),
    }
}

/// A place of the caller's, unless it is null.
fn place<'a, T>(at: *mut T) -> Option<&'a mut T> {
    // SAFETY: null, or a place for this, by the header's contract.
    unsafe { at.as_mut() }
}

fn numbers<'a>(at: *const i64, count: usize) -> &'a [i64] {
    if at.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: so many numbers, by the header's contract.
    unsafe { std::slice::from_raw_parts(at, count) }
}

fn stream(handle: *mut c_void) -> Stream {
    // SAFETY: a stream of the device's primary context, by the header's contract.
    unsafe { Stream::of(handle) }
}

/// A run on a caller's areas, or on our own.
pub(crate) fn run(key: &DirectKey, kind: Kind, messages: &Messages, stream: Stream) -> Result<(), Trouble> {
    // SAFETY: the areas are lent until the stream is done, by the header's contract; our own outlive the wait.
    unsafe { key.direct().run(key, kind, messages, stream) }
}

/// Where this library's file is; empty if the loader does not say.
pub(crate) fn own_path() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        // SAFETY: plain numbers and pointers, for which zeros are values.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        let here = wattlock_gpu_abi as extern "C" fn() -> c_int as *const c_void;
        // SAFETY: an address of ours, and a structure of the call's.
        let found = unsafe { libc::dladdr(here, &mut info) } != 0 && !info.dli_fname.is_null();
        // SAFETY: the loader's string, which stays.
        let name = if found { unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes() } else { b"" };
        let path = PathBuf::from(OsStr::from_bytes(name));
        std::fs::canonicalize(&path).unwrap_or(path)
    })
}

/// An unlocked file.
pub struct File(Reader);
/// A device.
pub struct Device(Arc<Gpu>);
/// A key on it.
pub struct DeviceKey(GpuKey);
/// Memory on it.
pub struct DeviceMemory(Arc<Memory>);

/// `struct wattlock_gpu_area`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CArea {
    /// Address.
    pub at: u64,
    /// Bytes.
    pub bytes: u64,
}

impl From<CArea> for Area {
    fn from(area: CArea) -> Area {
        Area { at: area.at, bytes: area.bytes }
    }
}

/// `struct wattlock_gpu_messages`; the header says what each field is.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the header is their description")]
pub struct CMessages {
    pub size: u32,
    pub count: u32,
    pub length: u64,
    pub last_length: u64,
    pub input: CArea,
    pub input_stride: u64,
    pub output: CArea,
    pub output_stride: u64,
    pub nonces: CArea,
    pub nonce_stride: u64,
    pub aad: CArea,
    pub aad_stride: u64,
    pub aad_length: u64,
    pub tags: CArea,
    pub tag_stride: u64,
    pub last_tag: u64,
    pub results: CArea,
}

impl CMessages {
    fn messages(&self) -> Result<Messages, Failure> {
        if self.size as usize != size_of::<CMessages>() {
            return Err(Failure::Refused(format!("size is not {}", size_of::<CMessages>())));
        }
        Ok(Messages {
            count: self.count,
            length: self.length,
            last_length: self.last_length,
            input: self.input.into(),
            input_stride: self.input_stride,
            output: self.output.into(),
            output_stride: self.output_stride,
            nonces: self.nonces.into(),
            nonce_stride: self.nonce_stride,
            aad: self.aad.into(),
            aad_stride: self.aad_stride,
            aad_length: self.aad_length,
            tags: self.tags.into(),
            tag_stride: self.tag_stride,
            last_tag: self.last_tag,
            results: self.results.into(),
        })
    }
}

/// The interface's version.
#[unsafe(no_mangle)]
pub extern "C" fn wattlock_gpu_abi() -> c_int {
    ABI
}

/// Why the last call on this thread failed.
#[unsafe(no_mangle)]
pub extern "C" fn wattlock_gpu_error() -> *const c_char {
    LAST.with(|last| last.borrow().0.as_ptr())
}

/// The exit code of `wattlock open` for the same failure.
#[unsafe(no_mangle)]
pub extern "C" fn wattlock_gpu_exit_code() -> c_int {
    LAST.with(|last| c_int::from(last.borrow().1))
}

/// Opens a device.
#[unsafe(no_mangle)]
pub extern "C" fn wattlock_gpu_open(device: u32, out: *mut *mut Device) -> c_int {
    entry(|| {
        wanted(out)?;
        let number = u16::try_from(device).unwrap_or(u16::MAX);
        give(out, Device(Gpu::open(number)?))
    })
}

/// Closes it.
#[unsafe(no_mangle)]
pub extern "C" fn wattlock_gpu_close(gpu: *mut Device) {
    take(gpu);
}

/// Describes it.
#[unsafe(no_mangle)]
pub extern "C" fn wattlock_gpu_about(gpu: *const Device, out: *mut c_char, room: usize) -> usize {
    let mut needed = 0;
    entry(|| {
        let about = CString::new(of(gpu, "gpu")?.0.direct.about()).unwrap_or_default();
        needed = about.as_bytes_with_nul().len();
        if room >= needed {
            bytes_mut(out.cast(), needed as u64, "out")?.copy_from_slice(about.as_bytes_with_nul());
        }
        Ok(())
    });
    needed
}

/// Makes a key.
#[unsafe(no_mangle)]
pub extern "C" fn wattlock_gpu_key_new(
    gpu: *const Device,
    algorithm: *const c_char,
    key: *const c_void,
    len: usize,
    out: *mut *mut DeviceKey,
) -> c_int {
    entry(|| {
        wanted(out)?;
        let algorithm = string(algorithm, "algorithm")?.to_string_lossy();
        give(out, DeviceKey(of(gpu, "gpu")?.0.key(&algorithm, bytes(key, len as u64, "key")?)?))
    })
}

/// Frees it.
#[unsafe(no_mangle)]
pub extern "C" fn wattlock_gpu_key_free(key: *mut DeviceKey) {
    take(key);
}

fn messages(
    opens: bool,
    key: *const DeviceKey,
    messages: *const CMessages,
    handle: *mut c_void,
) -> Result<(), Failure> {
    of(key, "key")?.0.run(opens, &of(messages, "messages")?.messages()?, stream(handle))
}

/// Seals or encrypts messages.
#[unsafe(no_mangle)]
pub extern "C" fn wattlock_gpu_seal_messages(
    key: *const DeviceKey,
    what: *const CMessages,
    stream: *mut c_void,
) -> c_int {
    entry(|| messages(false, key, what, stream))
}

/// Opens or decrypts messages.
#[unsafe(no_mangle)]
pub extern "C" fn wattlock_gpu_open_messages(
    key: *const DeviceKey,
    what: *const CMessages,
    stream: *mut c_void,
) -> c_int {
    entry(|| messages(true, key, what, stream))
}

/// Waits and reads results.
#[unsafe(no_mangle)]
pub extern "C" fn wattlock_gpu_check(
    gpu: *const Device,
    results: CArea,
    count: u32,
    handle: *mut c_void,
    first: *mut u32,
) -> c_int {
    entry(|| match of(gpu, "gpu")?.0.check(results.into(), count, stream(handle))? {
        None => Ok(()),
        Some(message) => {
            if let Some(first) = place(first) {
                *first = message;
            }
            Err(Failure::Forged(message))
        }
    })
}

/// Allocates device memory.
#[unsafe(no_mangle)]
pub extern "C" fn wattlock_gpu_memory_new(
    gpu: *const Device,
    len: u64,
    out: *mut *mut DeviceMemory,
) -> c_int {
    entry(|| {
        wanted(out)?;
        let len = usize::try_from(len).map_err(|_| Failure::Memory)?;
        give(out, DeviceMemory(Arc::new(of(gpu, "gpu")?.0.direct.memory(len)?)))
    })
}

/// Its address; 0 for a null handle.
#[unsafe(no_mangle)]
pub extern "C" fn wattlock_gpu_memory_at(memory: *const DeviceMemory) -> u64 {
    of(memory, "memory").map_or(0, |memory| memory.0.at())
}

/// Wipes and frees it.
#[unsafe(no_mangle)]
pub extern "C" fn wattlock_gpu_memory_free(memory: *mut DeviceMemory) {
    take(memory);
}

/// Copies to the host.
#[unsafe(no_mangle)]
pub extern "C" fn wattlock_gpu_read(gpu: *const Device, from: u64, to: *mut c_void, len: u64) -> c_int {
    entry(|| Ok(of(gpu, "gpu")?.0.direct.read(from, bytes_mut(to, len, "to")?)?))
}

/// Copies to the device.
#[unsafe(no_mangle)]
pub extern "C" fn wattlock_gpu_write(gpu: *const Device, to: u64, from: *const c_void, len: u64) -> c_int {
    entry(|| Ok(of(gpu, "gpu")?.0.direct.write(to, bytes(from, len, "from")?)?))
}

/// Copies on the device.
#[unsafe(no_mangle)]
pub extern "C" fn wattlock_gpu_copy(gpu: *const Device, to: u64, from: u64, len: u64) -> c_int {
    entry(|| Ok(of(gpu, "gpu")?.0.direct.copy(to, from, len)?))
}

/// Unlocks a file.
#[unsafe(no_mangle)]
pub extern "C" fn wattlock_file_open(
    path: *const c_char,
    identity: *const c_char,
    out: *mut *mut File,
) -> c_int {
    entry(|| {
        wanted(out)?;
        let named = |text, name| string(text, name).map(|text| Path::new(OsStr::from_bytes(text.to_bytes())));
        let (path, identity) = (named(path, "path")?, named(identity, "identity")?);
        let content = std::fs::read(identity).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                wattlock_files::Error::Door(wattlock_door::Error::NotFound(identity.to_owned()))
            }
            _ => wattlock_files::Error::Door(wattlock_door::Error::Io {
                what: "reading the identity".into(),
                source: error,
            }),
        })?;
        let content = zeroize::Zeroizing::new(content);
        let opener = Opener::new(keys::identities(&content, age::NoCallbacks)?);
        give(out, File(cpu()?.local(|crypto| opener.reader(path.to_owned(), crypto))?))
    })
}

/// Closes it.
#[unsafe(no_mangle)]
pub extern "C" fn wattlock_file_close(file: *mut File) {
    take(file);
}

/// Bytes of content; 0 for a null handle.
#[unsafe(no_mangle)]
pub extern "C" fn wattlock_file_length(file: *const File) -> u64 {
    of(file, "file").map_or(0, |file| file.0.len())
}

/// Reads content on the CPU.
#[unsafe(no_mangle)]
pub extern "C" fn wattlock_file_read(file: *const File, at: u64, to: *mut c_void, len: u64) -> c_int {
    entry(|| {
        let (file, to) = (&of(file, "file")?.0, bytes_mut(to, len, "to")?);
        if at == 0 && len == file.len() {
            return Ok(file.read_into(to, cpu()?)?);
        }
        Ok(cpu()?.local(|crypto| file.read_at(at, to, crypto))?)
    })
}

/// Opens all of it into device memory.
#[unsafe(no_mangle)]
pub extern "C" fn wattlock_file_load(
    file: *const File,
    gpu: *const Device,
    to: u64,
    room: u64,
    handle: *mut c_void,
) -> c_int {
    entry(|| load(&of(gpu, "gpu")?.0, &of(file, "file")?.0, to, room, stream(handle)))
}

/// Makes a tensor.
#[unsafe(no_mangle)]
pub extern "C" fn wattlock_gpu_tensor(
    memory: *const DeviceMemory,
    offset: u64,
    code: u8,
    bits: u8,
    shape: *const i64,
    dimensions: i32,
    out: *mut *mut ManagedTensor,
) -> c_int {
    entry(|| {
        wanted(out)?;
        let dimensions = usize::try_from(dimensions).map_err(|_| null("dimensions"))?;
        if shape.is_null() && dimensions > 0 {
            return Err(null("shape"));
        }
        let shape = numbers(shape, dimensions);
        let made = tensor(&of(memory, "memory")?.0, offset, (code, bits), shape)?;
        if let Some(out) = place(out) {
            *out = made;
        }
        Ok(())
    })
}
