//! Links libcrypto by its file name, so that building needs no development package: every declaration this crate uses
//! is its own, of public functions that OpenSSL 3.0 and later export.
//!
//! The module stays in memory once it is loaded (`nodelete`, as libcrypto itself does): a thread that used it may end
//! after a provider was unloaded, and what runs at its end must still be there.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg=-l:libcrypto.so.3");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
