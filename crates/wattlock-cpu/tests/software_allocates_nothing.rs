//! [`Engine::execute`] allocates only to expand a key for the first time, and for deflate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use wattlock_core::{Engine, Kind, known_answers};
use wattlock_cpu::software::Software;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is the system allocator's with the caller's own arguments; the counter is a plain cell of this
// thread that never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `System.alloc` with this layout, as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn execute_allocates_nothing_once_the_key_is_expanded() {
    let engine = Software::new();
    for &kind in Kind::ALL {
        let mut request = known_answers(kind).swap_remove(0).request;
        let mut view = request.view();
        engine.execute(&mut view).unwrap();
        let before = ALLOCATIONS.get();
        engine.execute(&mut view).unwrap();
        let made = ALLOCATIONS.get() - before;
        // Deflate shows that the counter counts.
        assert_eq!(made > 0, kind == Kind::Deflate, "{} made {made}", kind.name());
    }
}
