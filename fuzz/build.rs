//! Links libcrypto by its file name, as the provider does, for the targets that have the provider in them.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for target in ["coder", "differential", "provider"] {
        if std::env::var_os("CARGO_FEATURE_LINKED").is_some() {
            println!("cargo:rustc-link-arg-bin={target}=-l:libcrypto.so.3");
        }
    }
}
