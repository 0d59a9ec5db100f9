//! The function table for applications that poll by themselves (provider parameter `wattlock-table`; the C side is
//! `include/wattlock.h`).
//!
//! Functions act on the calling thread's requests. They may be called from any thread with a live provider, never
//! block longer than the work they do, and never let a panic out.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use wattlock::policy::{Again, Moment};

use crate::abi::Work;
pub use crate::abi::{BEHIND, FunctionTable, LATER, NEVER, NEXT, Setting, Turn, VERSION};
use crate::compress;
use crate::error::entry;
use crate::provider::Provider;
use crate::seat::Seat;
use crate::sys;

/// A provider's table.
pub(crate) fn make(provider: &Provider) -> FunctionTable {
    FunctionTable {
        version: VERSION,
        size: size_of::<FunctionTable>() as u32,
        provider: std::ptr::from_ref(provider).cast_mut().cast(),
        claim,
        poll,
        flush,
        in_flight,
        set_active,
        cancel,
        cancel_for,
        status,
        check,
        set,
        turn,
        compressor: compress::compressor,
        compress_start: compress::start,
        compress: compress::compress,
        compressor_free: compress::free,
        compress_descriptor: compress::descriptor,
        compress_spread: compress::spread,
        compress_woken: compress::woken,
        on_stack,
        status_of,
        polling,
        set_busy,
        compress_offload: compress::offload,
        nested,
        writes_wait,
        hurry_for,
    }
}

unsafe extern "C" fn claim(provider: *mut c_void, yes: c_int) {
    entry(|| {
        // SAFETY: the table's own pointer, of a live provider.
        let provider = unsafe { Provider::of(provider) };
        if yes != 0 {
            // A program that knows us has not confined itself: this process may have counters of its own.
            provider.current().runtime.is_free();
        }
        provider.seat().claim(yes != 0);
    });
}

unsafe extern "C" fn poll(provider: *mut c_void) -> c_uint {
    // SAFETY: as in `claim`.
    entry(|| unsafe { Provider::of(provider) }.seat().poll() as c_int) as c_uint
}

unsafe extern "C" fn flush(provider: *mut c_void) -> c_uint {
    // SAFETY: as in `claim`.
    entry(|| unsafe { Provider::of(provider) }.seat().flush() as c_int) as c_uint
}

unsafe extern "C" fn turn(provider: *mut c_void, moment: c_int, progress: c_uint, out: *mut Turn) {
    // What holds if the work below panics: something may be in flight, so the loop comes round again.
    let mut answer = Turn { again: NEXT, in_flight: 1, ..Turn::default() };
    entry(|| {
        let moment = match moment {
            0 => Moment::Call,
            1 => Moment::Busy,
            _ => Moment::Quiet,
        };
        // SAFETY: as in `claim`.
        let turned = unsafe { Provider::of(provider) }.seat().turn(moment, progress);
        answer.in_flight = turned.in_flight as c_uint;
        answer.went = c_uint::from(turned.went);
        answer.looked = c_uint::from(turned.looked);
        (answer.again, answer.wait_ns) = match turned.again {
            Again::Idle => (NEVER, 0),
            Again::Behind => (BEHIND, 0),
            Again::Turn => (NEXT, 0),
            Again::At(at) => (LATER, at.saturating_sub(turned.now)),
        };
    });
    // SAFETY: the caller's.
    unsafe { out.write(answer) };
}

unsafe extern "C" fn in_flight(provider: *mut c_void) -> c_uint {
    // SAFETY: as in `claim`.
    entry(|| unsafe { Provider::of(provider) }.seat().in_flight() as c_int) as c_uint
}

unsafe extern "C" fn set_active(provider: *mut c_void, active: c_uint) {
    // SAFETY: as in `claim`.
    entry(|| unsafe { Provider::of(provider) }.seat().set_active(active));
}

unsafe extern "C" fn set_busy(provider: *mut c_void, busy: c_uint) {
    // SAFETY: as in `claim`.
    entry(|| unsafe { Provider::of(provider) }.seat().set_busy(busy));
}

unsafe extern "C" fn cancel(_: *mut c_void, context: *mut sys::ASYNC_WAIT_CTX) -> c_int {
    // SAFETY: the caller's wait context is live.
    entry(|| c_int::from(!context.is_null() && unsafe { Seat::cancel(context) }))
}

unsafe extern "C" fn cancel_for(provider: *mut c_void, argument: *const c_void) -> c_int {
    // SAFETY: as in `claim`; the argument is compared, not followed.
    entry(|| c_int::from(unsafe { Provider::of(provider) }.seat().cancel_for(argument)))
}

unsafe extern "C" fn hurry_for(provider: *mut c_void, argument: *const c_void) -> c_int {
    // SAFETY: as in `cancel_for`.
    entry(|| c_int::from(unsafe { Provider::of(provider) }.seat().hurry_for(argument)))
}

unsafe extern "C" fn on_stack(provider: *mut c_void, work: Work, argument: *mut c_void) -> c_int {
    // SAFETY: as in `claim`; the function is the caller's, with its own argument.
    entry(|| unsafe {
        let seat = Provider::of(provider).seat();
        c_int::from(seat.on_large_stack(|| work(argument)).is_some())
    })
}

unsafe extern "C" fn nested(provider: *mut c_void, begins: c_int) {
    // SAFETY: as in `claim`.
    entry(|| unsafe { Provider::of(provider) }.seat().nested(begins != 0));
}

unsafe extern "C" fn writes_wait(provider: *mut c_void) -> c_int {
    // SAFETY: as in `claim`.
    entry(|| c_int::from(unsafe { Provider::of(provider) }.records_wait()))
}

unsafe extern "C" fn status_of(
    provider: *mut c_void,
    form: c_int,
    pids: *const u32,
    count: usize,
    own: *const c_char,
    room: *mut c_char,
    len: usize,
) -> usize {
    let mut need = 0;
    entry(|| {
        let pids = match count {
            0 => &[],
            // SAFETY: the caller's.
            _ => unsafe { std::slice::from_raw_parts(pids, count) },
        };
        // SAFETY: null or a C string, the caller's.
        let own = if own.is_null() { c"" } else { unsafe { CStr::from_ptr(own) } };
        // SAFETY: as in `claim`.
        let provider = unsafe { Provider::of(provider) };
        let text = crate::status::text(provider, form, pids, &own.to_string_lossy());
        // SAFETY: `len` writable bytes.
        need = unsafe { hand_out(&text, room, len) };
    });
    need
}

unsafe extern "C" fn polling(provider: *mut c_void, room: *mut c_char, len: usize) -> usize {
    let mut need = 0;
    entry(|| {
        // SAFETY: as in `claim`.
        let text = unsafe { Provider::of(provider) }.current().settings.poll;
        // SAFETY: `len` writable bytes.
        need = unsafe { hand_out(&text, room, len) };
    });
    need
}

unsafe extern "C" fn status(provider: *mut c_void, form: c_int, room: *mut c_char, len: usize) -> usize {
    let mut need = 0;
    entry(|| {
        // SAFETY: as in `claim`.
        let text = crate::status::text(unsafe { Provider::of(provider) }, form, &[], "");
        // SAFETY: `len` writable bytes.
        need = unsafe { hand_out(&text, room, len) };
    });
    need
}

/// Copies a text and its terminator if they fit; returns the bytes that needs.
///
/// # Safety
/// `room` is null or has `len` writable bytes.
unsafe fn hand_out(text: &str, room: *mut c_char, len: usize) -> usize {
    if !room.is_null() && text.len() < len {
        // SAFETY: the caller's; the text and one byte more fit.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), room.cast::<u8>(), text.len());
            *room.add(text.len()) = 0;
        }
    }
    text.len() + 1
}

unsafe extern "C" fn check(
    provider: *mut c_void,
    settings: *const Setting,
    count: usize,
    words: *mut c_char,
    len: usize,
) -> c_int {
    // SAFETY: as in `claim`; so many settings and room for words.
    entry(|| unsafe { configure(Provider::of(provider), settings, count, words, len, Provider::check) })
}

unsafe extern "C" fn set(
    provider: *mut c_void,
    settings: *const Setting,
    count: usize,
    words: *mut c_char,
    len: usize,
) -> c_int {
    // SAFETY: as in `check`.
    entry(|| unsafe { configure(Provider::of(provider), settings, count, words, len, Provider::set) })
}

/// What is done with settings, each a name and a value; why not, in words.
type Act = fn(&Provider, &[(&str, &str)]) -> Result<(), String>;

/// # Safety
/// `settings` has `count` of them, each with two C strings; `words` is null or has `len` writable bytes.
unsafe fn configure(
    provider: &Provider,
    settings: *const Setting,
    count: usize,
    words: *mut c_char,
    len: usize,
    act: Act,
) -> c_int {
    // A pointer to none may be null.
    let settings = match count {
        0 => &[],
        // SAFETY: the caller's.
        _ => unsafe { std::slice::from_raw_parts(settings, count) },
    };
    // SAFETY: the caller's.
    let text = |at: *const c_char| unsafe { CStr::from_ptr(at) }.to_str();
    let pairs: Result<Vec<_>, _> = settings
        .iter()
        .map(|setting| text(setting.key).and_then(|key| Ok((key, text(setting.value)?))))
        .collect();
    match pairs.map_err(|_| "a setting is not UTF-8".to_owned()).and_then(|pairs| act(provider, &pairs)) {
        Ok(()) => 1,
        Err(why) => {
            let cut = why.len().min(len.saturating_sub(1));
            let cut = (0..=cut).rev().find(|at| why.is_char_boundary(*at)).unwrap_or(0);
            // SAFETY: the caller's.
            unsafe { hand_out(&why[..cut], words, len) };
            0
        }
    }
}
