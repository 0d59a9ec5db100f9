//! nginx's configuration language, as a site's own configuration is read to be copied: what is refused says why in one
//! line; what was read is written as the same words, one line for each that is asked about.
#![no_main]

use libfuzzer_sys::fuzz_target;

/// The reader's own file.
#[path = "../../crates/wattlock-shell/src/nginx/conf.rs"]
mod conf;

use conf::Directive;

/// Whether two trees have the same words.
fn same(one: &[Directive], other: &[Directive]) -> bool {
    let block = |one: &Directive, other: &Directive| match (&one.block, &other.block) {
        (None, None) => true,
        (Some(one), Some(other)) => same(one, other),
        _ => false,
    };
    one.len() == other.len()
        && one.iter().zip(other).all(|(one, other)| one.words == other.words && block(one, other))
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let found = match conf::read(text, 0) {
        Ok(found) => found,
        Err(error) => {
            assert!(!format!("{error:#}").contains('\n'), "{error:#}");
            return;
        }
    };
    let (mut out, mut lines) = (String::new(), 0);
    for one in &found {
        let _ = one.argument(1);
        conf::write(&mut out, one, &mut |_| lines += 1);
    }
    assert_eq!(lines, out.matches('\n').count());
    let again = conf::read(&out, 0).expect("what was written is read");
    assert!(same(&found, &again), "other words came back");
});
