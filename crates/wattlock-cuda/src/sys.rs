//! The driver's C interface, as far as it is used: names and types of `cuda.h` of CUDA 12 and 13. Each call returns what
//! the driver says; nothing is decided here.
//!
//! A handle or an address is a plain number to the rest of the crate: it means nothing without this file. What the driver
//! reads or writes after a call has returned is the memory of a [`Lane`]. A lane lends its bytes to no caller between
//! the first copy and an event behind the last one that has come; it panics instead. [`Pinned`] memory has no stream of
//! its own: `direct` touches it only behind an event that it has awaited.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::Path;

/// What a call that failed returned: `CUresult`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failure(pub(crate) c_int);

impl Failure {
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub(crate) const OUT_OF_MEMORY: Failure = Failure(2);
    /// `CUDA_ERROR_NOT_READY`.
    pub(crate) const NOT_READY: Failure = Failure(600);
}

/// An address in device memory.
pub(crate) type Address = u64;

/// A `CUdevice_attribute`.
pub(crate) const CAPABILITY_MAJOR: c_int = 75;
pub(crate) const CAPABILITY_MINOR: c_int = 76;
pub(crate) const MULTIPROCESSORS: c_int = 16;
pub(crate) const CLOCK_KHZ: c_int = 13;
pub(crate) const WARP: c_int = 10;

/// `CU_STREAM_NON_BLOCKING`, `CU_EVENT_DISABLE_TIMING`.
const STREAM_NON_BLOCKING: c_uint = 1;
const EVENT_DISABLE_TIMING: c_uint = 2;

/// A handle of the driver's: context, module, function, stream or event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handle(*mut c_void);

// SAFETY: the driver's handles may be used from any thread of the process.
unsafe impl Send for Handle {}
// SAFETY: a handle is a number; the driver locks what it stands for.
unsafe impl Sync for Handle {}

/// A stream of the caller's (`CUstream`, which is also what CUDA's runtime calls `cudaStream_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream(pub(crate) Handle);

impl Default for Stream {
    /// The default stream.
    fn default() -> Stream {
        Stream(Handle(std::ptr::null_mut()))
    }
}

impl Stream {
    /// The stream of this handle; null is the default stream.
    ///
    /// # Safety
    /// A stream of the device's primary context, alive for as long as this value is used.
    pub unsafe fn of(handle: *mut c_void) -> Stream {
        Stream(Handle(handle))
    }
}

macro_rules! driver {
    ($($field:ident = $name:literal ($($argument:ty),*);)*) => {
        /// The functions. They stay loaded for the life of the process.
        pub(crate) struct Driver {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Driver {
            /// Finds every function, or names the first that is missing.
            fn of(library: *mut c_void) -> Result<Driver, &'static str> {
                Ok(Driver {
                    $($field: {
                        let name = concat!($name, "\0").as_ptr().cast::<c_char>();
                        // SAFETY: an open library and a string with its zero.
                        let symbol = unsafe { libc::dlsym(library, name) };
                        if symbol.is_null() {
                            return Err($name);
                        }
                        // SAFETY: the type is that of cuda.h for this name, and the library is never closed.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_int>(symbol)
                        }
                    },)*
                })
            }

            /// One whose calls do nothing but to note their name.
            #[cfg(test)]
            fn idle() -> Driver {
                Driver {
                    $($field: {
                        unsafe extern "C" fn call($(_: $argument),*) -> c_int {
                            tests::CALLS.with_borrow_mut(|calls| calls.push($name));
                            0
                        }
                        call
                    },)*
                }
            }
        }
    };
}

driver! {
    init = "cuInit" (c_uint);
    version = "cuDriverGetVersion" (*mut c_int);
    device_count = "cuDeviceGetCount" (*mut c_int);
    device_get = "cuDeviceGet" (*mut c_int, c_int);
    device_name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
    device_bus = "cuDeviceGetPCIBusId" (*mut c_char, c_int, c_int);
    device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    device_memory = "cuDeviceTotalMem_v2" (*mut usize, c_int);
    context_retain = "cuDevicePrimaryCtxRetain" (*mut *mut c_void, c_int);
    context_release = "cuDevicePrimaryCtxRelease_v2" (c_int);
    context_set = "cuCtxSetCurrent" (*mut c_void);
    context_push = "cuCtxPushCurrent_v2" (*mut c_void);
    context_pop = "cuCtxPopCurrent_v2" (*mut *mut c_void);
    context_wait = "cuCtxSynchronize" ();
    pointer = "cuPointerGetAttribute" (*mut c_void, c_int, Address);
    module_load = "cuModuleLoadData" (*mut *mut c_void, *const c_void);
    module_unload = "cuModuleUnload" (*mut c_void);
    module_function = "cuModuleGetFunction" (*mut *mut c_void, *mut c_void, *const c_char);
    allocate = "cuMemAlloc_v2" (*mut Address, usize);
    free = "cuMemFree_v2" (Address);
    pin = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    unpin = "cuMemFreeHost" (*mut c_void);
    copy_in = "cuMemcpyHtoDAsync_v2" (Address, *const c_void, usize, *mut c_void);
    copy_out = "cuMemcpyDtoHAsync_v2" (*mut c_void, Address, usize, *mut c_void);
    copy_within = "cuMemcpyDtoDAsync_v2" (Address, Address, usize, *mut c_void);
    set = "cuMemsetD8Async" (Address, u8, usize, *mut c_void);
    stream_create = "cuStreamCreate" (*mut *mut c_void, c_uint);
    stream_destroy = "cuStreamDestroy_v2" (*mut c_void);
    event_create = "cuEventCreate" (*mut *mut c_void, c_uint);
    event_destroy = "cuEventDestroy_v2" (*mut c_void);
    event_record = "cuEventRecord" (*mut c_void, *mut c_void);
    event_query = "cuEventQuery" (*mut c_void);
    launch = "cuLaunchKernel" (*mut c_void, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, *mut c_void,
        *mut *mut c_void, *mut *mut c_void);
}

/// A `CUpointer_attribute`.
pub(crate) const POINTER_MEMORY: c_int = 2;
pub(crate) const POINTER_DEVICE: c_int = 9;
const POINTER_RANGE_START: c_int = 11;
const POINTER_RANGE_SIZE: c_int = 12;
/// `CU_MEMORYTYPE_DEVICE`.
pub(crate) const MEMORY_OF_DEVICE: c_uint = 2;

/// Why there is no driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoDriver {
    /// The library is not there, or does not load.
    Library,
    /// It lacks this function.
    Symbol(&'static str),
}

fn done(code: c_int) -> Result<(), Failure> {
    if code == 0 { Ok(()) } else { Err(Failure(code)) }
}

/// What a call writes that fills a buffer with a string.
fn text(call: impl FnOnce(*mut c_char, c_int) -> Result<(), Failure>) -> Result<String, Failure> {
    let mut text = [0; 256];
    call(text.as_mut_ptr(), text.len() as c_int - 1)?;
    // SAFETY: the last byte is zero: the call was not told of it.
    Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
}

impl Driver {
    /// Loads the library and finds its functions. Calls none.
    pub(crate) fn load(library: &Path) -> Result<Driver, NoDriver> {
        use std::os::unix::ffi::OsStrExt;
        let name = CString::new(library.as_os_str().as_bytes()).map_err(|_| NoDriver::Library)?;
        // SAFETY: a string with its zero; the library's own initialisers are all that runs.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(NoDriver::Library);
        }
        Driver::of(library).map_err(NoDriver::Symbol)
    }

    pub(crate) fn init(&self) -> Result<(), Failure> {
        // SAFETY: flags must be 0.
        done(unsafe { (self.init)(0) })
    }

    /// 1000 times the major version and 10 times the minor one.
    pub(crate) fn version(&self) -> Result<c_int, Failure> {
        let mut version = 0;
        // SAFETY: writes one number.
        done(unsafe { (self.version)(&mut version) }).map(|()| version)
    }

    pub(crate) fn device_count(&self) -> Result<c_int, Failure> {
        let mut count = 0;
        // SAFETY: writes one number.
        done(unsafe { (self.device_count)(&mut count) }).map(|()| count)
    }

    pub(crate) fn device(&self, ordinal: c_int) -> Result<c_int, Failure> {
        let mut device = 0;
        // SAFETY: writes one number.
        done(unsafe { (self.device_get)(&mut device, ordinal) }).map(|()| device)
    }

    pub(crate) fn device_name(&self, device: c_int) -> Result<String, Failure> {
        text(|to, len| {
            // SAFETY: writes at most so many bytes.
            done(unsafe { (self.device_name)(to, len, device) })
        })
    }

    /// Where it is on the bus, which is what NVML knows it by, too.
    pub(crate) fn device_bus(&self, device: c_int) -> Result<String, Failure> {
        text(|to, len| {
            // SAFETY: writes at most so many bytes.
            done(unsafe { (self.device_bus)(to, len, device) })
        })
    }

    pub(crate) fn attribute(&self, device: c_int, attribute: c_int) -> Result<c_int, Failure> {
        let mut value = 0;
        // SAFETY: writes one number.
        done(unsafe { (self.device_attribute)(&mut value, attribute, device) }).map(|()| value)
    }

    pub(crate) fn memory(&self, device: c_int) -> Result<usize, Failure> {
        let mut bytes = 0;
        // SAFETY: writes one number.
        done(unsafe { (self.device_memory)(&mut bytes, device) }).map(|()| bytes)
    }

    /// Takes a share of the device's primary context, and makes it this thread's.
    pub(crate) fn context(&self, device: c_int) -> Result<(), Failure> {
        let mut context = std::ptr::null_mut();
        // SAFETY: writes one handle, which the driver keeps alive until the share is given back.
        done(unsafe { (self.context_retain)(&mut context, device) })?;
        // SAFETY: a context that is alive.
        match done(unsafe { (self.context_set)(context) }) {
            Ok(()) => Ok(()),
            Err(failure) => self.release(device).and(Err(failure)),
        }
    }

    /// Takes a share of the device's primary context, which is the one that programs with data on the device use.
    pub(crate) fn retain(&self, device: c_int) -> Result<Handle, Failure> {
        let mut context = std::ptr::null_mut();
        // SAFETY: writes one handle, which the driver keeps alive until the share is given back.
        done(unsafe { (self.context_retain)(&mut context, device) }).map(|()| Handle(context))
    }

    /// Makes a context this thread's, in front of the one that it has; [`Driver::pop`] takes it away again.
    pub(crate) fn push(&self, context: Handle) -> Result<(), Failure> {
        // SAFETY: a context of which we have a share.
        done(unsafe { (self.context_push)(context.0) })
    }

    /// The way back.
    pub(crate) fn pop(&self) -> Result<(), Failure> {
        let mut context = std::ptr::null_mut();
        // SAFETY: writes one handle.
        done(unsafe { (self.context_pop)(&mut context) })
    }

    /// Waits until all streams of this thread's context are done.
    pub(crate) fn wait_for_all(&self) -> Result<(), Failure> {
        // SAFETY: no pointer is involved.
        done(unsafe { (self.context_wait)() })
    }

    /// An attribute of an address that is one number of 32 bits: [`POINTER_MEMORY`], [`POINTER_DEVICE`].
    pub(crate) fn pointer(&self, address: Address, attribute: c_int) -> Result<c_uint, Failure> {
        let mut value: c_uint = 0;
        // SAFETY: these attributes are one number of 32 bits; the driver only looks the address up.
        done(unsafe { (self.pointer)((&raw mut value).cast(), attribute, address) }).map(|()| value)
    }

    /// The allocation in which an address lies: where it begins, and its bytes.
    pub(crate) fn range(&self, address: Address) -> Result<(Address, u64), Failure> {
        let (mut start, mut bytes) = (0_u64, 0_usize);
        // SAFETY: this attribute is an address.
        done(unsafe { (self.pointer)((&raw mut start).cast(), POINTER_RANGE_START, address) })?;
        // SAFETY: this attribute is a `size_t`.
        done(unsafe { (self.pointer)((&raw mut bytes).cast(), POINTER_RANGE_SIZE, address) })?;
        Ok((start, bytes as u64))
    }

    /// Gives the share back; nothing of the context is used after.
    pub(crate) fn release(&self, device: c_int) -> Result<(), Failure> {
        // SAFETY: no pointer is involved.
        done(unsafe { (self.context_release)(device) })
    }

    pub(crate) fn module(&self, image: &[u8]) -> Result<Handle, Failure> {
        let mut module = std::ptr::null_mut();
        // A cubin says itself how long it is; PTX ends with a zero, which costs a cubin nothing.
        let image = [image, &[0]].concat();
        // SAFETY: writes one handle, and reads an image that lives until the call returns.
        done(unsafe { (self.module_load)(&mut module, image.as_ptr().cast()) }).map(|()| Handle(module))
    }

    pub(crate) fn unload(&self, module: Handle) -> Result<(), Failure> {
        // SAFETY: a module of this context, none of whose functions is used after.
        done(unsafe { (self.module_unload)(module.0) })
    }

    pub(crate) fn function(&self, module: Handle, name: &CStr) -> Result<Handle, Failure> {
        let mut function = std::ptr::null_mut();
        // SAFETY: writes one handle; the name has its zero.
        done(unsafe { (self.module_function)(&mut function, module.0, name.as_ptr()) })
            .map(|()| Handle(function))
    }

    pub(crate) fn allocate(&self, bytes: usize) -> Result<Address, Failure> {
        let mut address = 0;
        // SAFETY: writes one address.
        done(unsafe { (self.allocate)(&mut address, bytes) }).map(|()| address)
    }

    pub(crate) fn free(&self, address: Address) -> Result<(), Failure> {
        // SAFETY: the driver refuses an address that is not its own.
        done(unsafe { (self.free)(address) })
    }

    /// A lane with so many bytes of memory, zeroed.
    pub(crate) fn lane(&self, len: usize) -> Result<Lane, Failure> {
        let (mut at, mut stream, mut event) =
            (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: writes one pointer.
        done(unsafe { (self.pin)(&mut at, len, 0) })?;
        // SAFETY: the driver gave us so many bytes.
        unsafe { at.cast::<u8>().write_bytes(0, len) };
        // SAFETY: writes one handle.
        let mut made = done(unsafe { (self.stream_create)(&mut stream, STREAM_NON_BLOCKING) });
        if made.is_ok() {
            // SAFETY: writes one handle.
            made = done(unsafe { (self.event_create)(&mut event, EVENT_DISABLE_TIMING) });
        }
        let lane =
            Lane { at: at.cast(), len, stream: Handle(stream), event: Handle(event), usage: Usage::Ours };
        match made {
            Ok(()) => Ok(lane),
            Err(failure) => self.close_lane(lane).and(Err(failure)),
        }
    }

    /// Gives back what a lane has: everything, even if one call fails. Memory that its stream may still be using is
    /// overwritten first: a lane in that state is closed only if its context is lost.
    pub(crate) fn close_lane(&self, mut lane: Lane) -> Result<(), Failure> {
        let (mut event, mut stream) = (Ok(()), Ok(()));
        if !lane.event.0.is_null() {
            // SAFETY: an event of this context, gone by value.
            event = done(unsafe { (self.event_destroy)(lane.event.0) });
        }
        if !lane.stream.0.is_null() {
            // SAFETY: a stream of this context, gone by value.
            stream = done(unsafe { (self.stream_destroy)(lane.stream.0) });
        }
        if lane.usage != Usage::Ours {
            lane.scrub();
        }
        // SAFETY: it came from `lane`, and is gone by value. The driver lets nothing write to it when it has taken it back.
        let memory = done(unsafe { (self.unpin)(lane.at.cast()) });
        event.and(stream).and(memory)
    }

    /// Copies `bytes` bytes of a lane's memory from `from` on to the device.
    pub(crate) fn copy_in(
        &self,
        to: Address,
        lane: &mut Lane,
        from: usize,
        bytes: usize,
    ) -> Result<(), Failure> {
        assert!(from.checked_add(bytes).is_some_and(|end| end <= lane.len));
        lane.usage = Usage::Streams;
        // SAFETY: within the lane's memory, by the assertion, which is not touched or freed before its event has come.
        done(unsafe { (self.copy_in)(to, lane.at.add(from).cast(), bytes, lane.stream.0) })
    }

    /// The way back.
    pub(crate) fn copy_out(
        &self,
        lane: &mut Lane,
        to: usize,
        from: Address,
        bytes: usize,
    ) -> Result<(), Failure> {
        assert!(to.checked_add(bytes).is_some_and(|end| end <= lane.len));
        lane.usage = Usage::Streams;
        // SAFETY: as in `copy_in`.
        done(unsafe { (self.copy_out)(lane.at.add(to).cast(), from, bytes, lane.stream.0) })
    }

    /// Sets device memory to zero, in the stream's order.
    pub(crate) fn wipe(&self, address: Address, bytes: usize, stream: Handle) -> Result<(), Failure> {
        // SAFETY: the driver refuses addresses that are not the context's.
        done(unsafe { (self.set)(address, 0, bytes, stream.0) })
    }

    pub(crate) fn stream(&self) -> Result<Handle, Failure> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: writes one handle.
        done(unsafe { (self.stream_create)(&mut stream, STREAM_NON_BLOCKING) }).map(|()| Handle(stream))
    }

    pub(crate) fn destroy_stream(&self, stream: Handle) -> Result<(), Failure> {
        // SAFETY: a stream of this context, not used after.
        done(unsafe { (self.stream_destroy)(stream.0) })
    }

    pub(crate) fn event(&self) -> Result<Handle, Failure> {
        let mut event = std::ptr::null_mut();
        // SAFETY: writes one handle.
        done(unsafe { (self.event_create)(&mut event, EVENT_DISABLE_TIMING) }).map(|()| Handle(event))
    }

    pub(crate) fn destroy_event(&self, event: Handle) -> Result<(), Failure> {
        // SAFETY: an event of this context, not used after.
        done(unsafe { (self.event_destroy)(event.0) })
    }

    pub(crate) fn record_event(&self, event: Handle, stream: Handle) -> Result<(), Failure> {
        // SAFETY: both of this context and alive.
        done(unsafe { (self.event_record)(event.0, stream.0) })
    }

    /// Whether everything before the event is done.
    pub(crate) fn event_is_done(&self, event: Handle) -> Result<bool, Failure> {
        // SAFETY: an event that is alive.
        match done(unsafe { (self.event_query)(event.0) }) {
            Ok(()) => Ok(true),
            Err(Failure::NOT_READY) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Copies `bytes` bytes of pinned memory from `from` on to the device.
    pub(crate) fn copy_in_pinned(
        &self,
        to: Address,
        pinned: &Pinned,
        from: usize,
        bytes: usize,
        stream: Handle,
    ) -> Result<(), Failure> {
        assert!(from.checked_add(bytes).is_some_and(|end| end <= pinned.len));
        // SAFETY: within the pinned buffer, by the line above; its owner keeps it, and lets it be, until the stream is done.
        done(unsafe { (self.copy_in)(to, pinned.at.add(from).cast(), bytes, stream.0) })
    }

    /// The way back.
    pub(crate) fn copy_out_pinned(
        &self,
        pinned: &mut Pinned,
        to: usize,
        from: Address,
        bytes: usize,
        stream: Handle,
    ) -> Result<(), Failure> {
        assert!(to.checked_add(bytes).is_some_and(|end| end <= pinned.len));
        // SAFETY: as in `copy_in`.
        done(unsafe { (self.copy_out)(pinned.at.add(to).cast(), from, bytes, stream.0) })
    }

    /// Pinned host memory, zeroed.
    pub(crate) fn pin(&self, len: usize) -> Result<Pinned, Failure> {
        let mut at = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        done(unsafe { (self.pin)(&mut at, len, 0) })?;
        let at = at.cast::<u8>();
        // SAFETY: the driver gave us so many bytes.
        unsafe { at.write_bytes(0, len) };
        Ok(Pinned { at, len })
    }

    /// Frees pinned memory that no stream uses any more.
    pub(crate) fn unpin(&self, pinned: Pinned) -> Result<(), Failure> {
        // SAFETY: it came from `pin`, and is gone by value.
        done(unsafe { (self.unpin)(pinned.at.cast()) })
    }

    /// Copies within device memory, in the stream's order.
    pub(crate) fn copy_within(
        &self,
        to: Address,
        from: Address,
        bytes: usize,
        stream: Handle,
    ) -> Result<(), Failure> {
        // SAFETY: the driver refuses addresses that are not the context's.
        done(unsafe { (self.copy_within)(to, from, bytes, stream.0) })
    }

    /// Launches a kernel whose one parameter is `parameter`, by value.
    pub(crate) fn launch<P>(
        &self,
        function: Handle,
        grid: u32,
        block: u32,
        stream: Handle,
        parameter: &P,
    ) -> Result<(), Failure> {
        let mut parameters = [std::ptr::from_ref(parameter).cast_mut().cast::<c_void>()];
        let none = std::ptr::null_mut();
        // SAFETY: the driver copies the parameter before the call returns. What the kernel touches is `plan.rs`'s duty.
        done(unsafe {
            (self.launch)(function.0, grid, 1, 1, block, 1, 1, 0, stream.0, parameters.as_mut_ptr(), none)
        })
    }

    /// Has the lane's event come behind everything that the lane was told so far.
    pub(crate) fn record(&self, lane: &mut Lane) -> Result<(), Failure> {
        // SAFETY: both of this context and alive.
        done(unsafe { (self.event_record)(lane.event.0, lane.stream.0) })?;
        if lane.usage == Usage::Streams {
            lane.usage = Usage::Recorded;
        }
        Ok(())
    }

    /// Whether the event behind everything that the lane was told has come. If so, its memory is ours again.
    pub(crate) fn is_done(&self, lane: &mut Lane) -> Result<bool, Failure> {
        if lane.usage != Usage::Recorded {
            return Ok(lane.usage == Usage::Ours);
        }
        // SAFETY: an event that is alive.
        match done(unsafe { (self.event_query)(lane.event.0) }) {
            Ok(()) => {
                lane.usage = Usage::Ours;
                Ok(true)
            }
            Err(Failure::NOT_READY) => Ok(false),
            Err(failure) => Err(failure),
        }
    }
}

/// Page-locked host memory. The driver may read or write it while a stream that was told to is not done; its owner
/// touches it only before and after.
pub(crate) struct Pinned {
    at: *mut u8,
    len: usize,
}

// SAFETY: it is memory, owned by one value.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Its bytes. No stream may be using it now.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `pin` got so many bytes, all initialised; no stream writes to it now, which is the caller's word.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }

    /// Its bytes. No stream may be using it now.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

/// Whose a lane's memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Usage {
    Ours,
    /// The stream was told to copy.
    Streams,
    /// As above, and to say so when it has.
    Recorded,
}

/// Page-locked host memory, and a stream of its own that alone copies from it and to it.
pub(crate) struct Lane {
    at: *mut u8,
    len: usize,
    stream: Handle,
    event: Handle,
    usage: Usage,
}

// SAFETY: memory and handles, owned by one value.
unsafe impl Send for Lane {}

impl Lane {
    /// What orders its work, and that of kernels and wiping for it.
    pub(crate) fn stream(&self) -> Handle {
        self.stream
    }

    /// The memory.
    ///
    /// # Panics
    /// If its stream may be using it.
    pub(crate) fn bytes(&self) -> &[u8] {
        assert_eq!(self.usage, Usage::Ours, "the driver may be writing to it");
        // SAFETY: `lane` got so many bytes, all initialised, and no stream uses them now, by the line above.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }

    /// The memory.
    ///
    /// # Panics
    /// If its stream may be using it.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        assert_eq!(self.usage, Usage::Ours, "the driver may be using it");
        // SAFETY: as in `bytes`.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }

    /// Overwrites the memory, even if it is still in use: a copy that is under way could at worst write some of it
    /// again.
    fn scrub(&mut self) {
        for at in 0..self.len {
            // SAFETY: within the lane's memory. No reference to it exists, and nothing is assumed of what is read later.
            unsafe { self.at.add(at).write_volatile(0) };
        }
    }
}

/// The bytes of a structure of plain numbers, for the device.
pub(crate) fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: `Plain` says that there is no padding and nothing but numbers.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), std::mem::size_of_val(values)) }
}

/// Structures of numbers without padding.
///
/// # Safety
/// Says so.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: `repr(C)`, six 64-bit numbers.
unsafe impl Plain for crate::plan::Message {}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::RefCell;

    use super::*;

    thread_local! {
        /// Calls that this thread's pretended drivers have seen, by name.
        pub(crate) static CALLS: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    }

    unsafe extern "C" fn pin(to: *mut *mut c_void, bytes: usize, _: c_uint) -> c_int {
        // SAFETY: the caller's pointer, and a size that is not 0; what the test leaves there is its process's.
        unsafe { *to = libc::calloc(bytes, 1) };
        0
    }

    unsafe extern "C" fn create(to: *mut *mut c_void, _: c_uint) -> c_int {
        // SAFETY: the caller's pointer.
        unsafe { *to = std::ptr::dangling_mut::<u64>().cast() };
        0
    }

    unsafe extern "C" fn not_ready(_: *mut c_void) -> c_int {
        Failure::NOT_READY.0
    }

    /// A driver that does nothing and says that it did.
    pub(crate) fn pretended() -> Driver {
        Driver { pin, stream_create: create, event_create: create, ..Driver::idle() }
    }

    fn panics(what: impl FnOnce()) -> bool {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(what)).is_err()
    }

    #[test]
    fn a_lane_lends_its_memory_to_nobody_while_its_stream_may_use_it() {
        let mut driver = pretended();
        for copies_in in [true, false] {
            let mut lane = driver.lane(64).unwrap();
            lane.bytes_mut().fill(1);
            match copies_in {
                true => driver.copy_in(0, &mut lane, 0, 64).unwrap(),
                false => driver.copy_out(&mut lane, 0, 0, 64).unwrap(),
            }
            assert!(panics(|| _ = lane.bytes()) && panics(|| _ = lane.bytes_mut()));
            assert_eq!(driver.is_done(&mut lane), Ok(false), "no event is behind the copy");
            driver.record(&mut lane).unwrap();
            driver.event_query = not_ready;
            assert_eq!(driver.is_done(&mut lane), Ok(false));
            assert!(panics(|| _ = lane.bytes()) && panics(|| _ = lane.bytes_mut()));
            // A copy behind the event needs another one.
            driver.copy_out(&mut lane, 0, 0, 1).unwrap();
            driver.event_query = pretended().event_query;
            assert_eq!(driver.is_done(&mut lane), Ok(false));
            driver.record(&mut lane).unwrap();
            assert_eq!(driver.is_done(&mut lane), Ok(true));
            assert_eq!(lane.bytes(), [1; 64]);
            driver.copy_in(0, &mut lane, 0, 1).unwrap();
            lane.scrub();
            driver.record(&mut lane).unwrap();
            assert_eq!(driver.is_done(&mut lane), Ok(true));
            assert_eq!(lane.bytes(), [0; 64]);
            assert!(panics(|| _ = driver.copy_in(0, &mut lane, 1, 64)));
            driver.close_lane(lane).unwrap();
        }
    }
}
