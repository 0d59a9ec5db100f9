//! Links libcrypto by its file name, so that building needs no development package: every declaration this crate uses
//! is its own, of public functions that OpenSSL 3.0 and later export.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg=-l:libcrypto.so.3");
}
