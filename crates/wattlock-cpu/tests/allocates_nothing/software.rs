//! [`Engine::execute`] allocates only to expand a key for the first time, and for deflate.

use wattlock_core::{Engine, Kind, known_answers};
use wattlock_cpu::software::Software;

use crate::{RUST, count_in_aws_lc};

#[test]
fn execute_allocates_nothing_once_the_key_is_expanded() {
    count_in_aws_lc();
    let engine = Software::new();
    for &kind in Kind::ALL {
        let mut request = known_answers(kind).swap_remove(0).request;
        let mut view = request.view();
        engine.execute(&mut view).unwrap();
        let before = RUST.get();
        engine.execute(&mut view).unwrap();
        let made = RUST.get() - before;
        // Deflate shows that the counter counts.
        assert_eq!(made > 0, kind == Kind::Deflate, "{} made {made}", kind.name());
    }
}
