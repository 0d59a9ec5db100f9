//! Which of the three standard streams the caller closed (`<&-`, `>&-`).
//!
//! Rust's runtime opens /dev/null in the place of a closed one before `main`. From then on sealing a closed standard
//! input would be sealing an empty file, and what is written to a closed standard output would be gone without an
//! error. So the streams are looked at earlier, by a function that the C runtime calls before Rust's begins. Nothing
//! else in this program is unsafe, and that function does nothing but ask and remember.

use std::sync::atomic::{AtomicU8, Ordering};

/// Standard input.
pub const INPUT: u8 = 0;
/// Standard output.
pub const OUTPUT: u8 = 1;

/// One bit for each descriptor that was closed.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Whether this stream was closed when the program began.
pub fn closed(descriptor: u8) -> bool {
    CLOSED.load(Ordering::Relaxed) & (1 << descriptor) != 0
}

/// Closes, when this process becomes another program, the streams that were closed when it began: that program must find
/// them as they were handed to this one.
pub fn hand_on() {
    use rustix::io::{FdFlags, fcntl_setfd};
    let close = |descriptor, stream: rustix::fd::BorrowedFd<'_>| {
        if closed(descriptor) {
            // A descriptor that is open takes the flag.
            let _ = fcntl_setfd(stream, FdFlags::CLOEXEC);
        }
    };
    close(INPUT, std::os::fd::AsFd::as_fd(&std::io::stdin()));
    close(OUTPUT, std::os::fd::AsFd::as_fd(&std::io::stdout()));
}

extern "C" fn look() {
    for descriptor in [INPUT, OUTPUT] {
        // SAFETY: F_GETFD takes no pointer, and for a number that is no descriptor it fails with EBADF, its only error.
        if unsafe { libc::fcntl(i32::from(descriptor), libc::F_GETFD) } == -1 {
            CLOSED.fetch_or(1 << descriptor, Ordering::Relaxed);
        }
    }
}

// SAFETY: the section is an array of functions that the C runtime calls one after the other, on the first thread and
// before `main` (System V ABI, "Initialization and Termination Functions"); `look` has such a function's type, needs
// nothing of Rust's runtime and cannot panic.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = look;
