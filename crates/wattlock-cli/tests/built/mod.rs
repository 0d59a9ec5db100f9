//! The program with all that it finds beside itself.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

/// The program, with the provider and the module where it looks for them.
pub fn program() -> &'static Path {
    static BUILT: OnceLock<&Path> = OnceLock::new();
    BUILT.get_or_init(|| {
        let program = Path::new(env!("CARGO_BIN_EXE_wattlock"));
        let folder = program.parent().unwrap();
        let target = folder.parent().unwrap();
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        // Always: a provider that an earlier build left may be of another version than the module.
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--locked", "-p", "wattlock-provider", "--target-dir"]).arg(target);
        if folder.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.current_dir(repository).status().unwrap().success(), "the provider cannot be built");
        let build = Command::new(repository.join("nginx/build.sh")).env("CARGO_TARGET_DIR", target).status();
        assert!(build.unwrap().success(), "the module cannot be built");
        program
    })
}
