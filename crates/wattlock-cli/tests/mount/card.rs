//! An emulated card behind a mount that errs, stays silent, lies and vanishes, while the policy changes every second:
//! every byte is the one that was written, and what is stored is read without the card afterwards. It is emulated: it
//! shows which engine did what, and that faults cost nothing; never a speed. WATTLOCK_CARD_SECONDS is for `make soak`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::desk::{Desk, fuse, good, has};

const FAULTS: &str = "
fault error every 29
fault silence every 397
fault wrong-result every 23
fault slow 20000 every 41
fault lost 300000000 requests 900 900
fault lost 500000000 requests 9000 9000
";

/// Each second the next.
const SETTINGS: &[&[&str]] = &[
    &["policy=offload"],
    &["policy=aca-sds", "aca-sds.alpha=1", "aca-sds.beta_bytes=4096"],
    &["policy=eeca"],
    &["policy=aca-sds", "aca-sds.alpha=4"],
    &["policy=adaptive", "objective=energy"],
    &["policy=qweb"],
    &["policy=software"],
    &["policy=offload", "objective=performance"],
    &["policy=eep"],
    &["policy=instruction"],
];

#[test]
fn a_faulty_card_and_changing_policies_cost_no_byte() {
    if !fuse() || !has("python3") {
        return;
    }
    let seconds: u64 =
        std::env::var("WATTLOCK_CARD_SECONDS").ok().and_then(|value| value.parse().ok()).unwrap_or(10);
    let desk = Desk::new(&[]);
    let models = good(&desk.run(&["engines", "--models"]));
    let model = models.split("\n\n").find(|model| model.contains("name dh8970")).unwrap();
    fs::write(desk.at("card.txt"), model.to_owned() + FAULTS).unwrap();
    fs::create_dir(desk.at("model")).unwrap();
    let card = desk.at("card.txt");
    let mounted = desk.mount(&["--emulate", card.to_str().unwrap(), "--policy", "offload"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/cards.py");
    let mut worker = Command::new("python3")
        .arg(script)
        .arg(&mounted)
        .args([seconds.to_string(), "1".to_owned()])
        .arg(desk.at("model"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut emulated, mut fallbacks) = (BTreeSet::new(), String::new());
    let mut turn = 0;
    while worker.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_secs(1));
        let status = good(&desk.run(&["fs", "status", "mnt"]));
        if status.lines().any(|line| line.contains("emulated")) {
            let policy = status.lines().find(|line| line.contains("policy")).unwrap_or_default();
            emulated.insert(policy.to_owned());
        }
        fallbacks = status;
        let setting = SETTINGS[turn % SETTINGS.len()];
        good(&desk.run(&[&["fs", "set", "mnt"][..], setting].concat()));
        turn += 1;
    }
    good(&worker.wait_with_output().unwrap());
    assert!(!emulated.is_empty(), "the card did nothing: {fallbacks}");
    desk.unmount();
    // Without the card.
    desk.mount(&[]);
    for entry in fs::read_dir(desk.at("model")).unwrap() {
        let name = entry.unwrap().file_name();
        let wanted = fs::read(desk.at("model").join(&name)).unwrap();
        assert!(wanted.len() > 100_000, "{name:?}: too little was done");
        assert!(fs::read(mounted.join(&name)).unwrap() == wanted, "{name:?}");
    }
    desk.unmount();
    good(&desk.run(&["fs", "check", "-i", "key.txt", "vol"]));
}
