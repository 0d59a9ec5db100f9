//! Random operations in a mount and in an ordinary folder: every result, every length and every byte is the same,
//! through remounts and kills. WATTLOCK_MODEL_STEPS is for `make soak`.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::desk::{Desk, fuse, good, has};

#[test]
fn random_operations_give_what_they_give_in_an_ordinary_folder() {
    if !fuse() || !has("python3") {
        return;
    }
    let variable = |name| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let steps: u64 = variable("WATTLOCK_MODEL_STEPS").unwrap_or(400);
    let seed: u64 = variable("WATTLOCK_SOAK_SEED").unwrap_or(1);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/model.py");
    for (at, (init, mount)) in
        [(&[][..], &[][..]), (&["--chunk", "64K", "--names", "plain"], &[]), (&[], &["--shared"])]
            .into_iter()
            .enumerate()
    {
        let desk = Desk::new(init);
        fs::create_dir(desk.at("plain")).unwrap();
        for round in 0..3 {
            let mounted = desk.mount(mount);
            let seed = seed * 100 + at as u64 * 10 + round;
            let mut command = Command::new("python3");
            command.arg(&script).args([seed.to_string(), steps.to_string()]);
            good(&command.arg(desk.at("plain")).arg(&mounted).output().unwrap());
            // Everything was synced: it may be killed.
            match round {
                1 => desk.kill(desk.process()),
                _ => desk.unmount(),
            }
        }
        good(&desk.run(&["fs", "check", "-i", "key.txt", "vol"]));
    }
}
