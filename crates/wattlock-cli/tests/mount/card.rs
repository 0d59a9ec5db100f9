//! An emulated card behind a mount that errs, stays silent, lies and vanishes, while the policy changes every second:
//! every byte is the one that was written, and what is stored is read without the card afterwards. It is emulated: it
//! shows which engine did what, and that faults cost nothing; never a speed. WATTLOCK_CARD_SECONDS is for `make soak`.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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
    &["policy=lecpaes"],
    &["policy=instruction"],
];

/// A card after the published model whose window has so many requests, in a file.
fn with_window(desk: &Desk, window: u32) -> String {
    let models = good(&desk.run(&["engines", "--models"]));
    let model = models.split("\n\n").find(|model| model.contains("name dh8970")).unwrap();
    let changed = model.replace("window 256 requests", &format!("window {window} requests"));
    assert!(changed != model || window == 256, "{model}");
    let card = desk.at("card.txt");
    fs::write(&card, changed).unwrap();
    card.to_str().unwrap().to_owned()
}

/// Writes 24 MiB in requests of so many KiB to the volume of a mount with a card, until the chunks that the card did and
/// those that the CPU did are as wanted, for a minute; these, and what `fs status` says of the card.
fn written(window: u32, kib: usize, policy: &[&str], enough: fn(u64, u64) -> bool) -> (u64, u64, String) {
    let desk = Desk::new(&[]);
    let card = with_window(&desk, window);
    let mounted = desk.mount(&[&["--emulate", &card], policy].concat());
    let content: Vec<u8> = (0..24 << 20).map(|at: u32| (at * 7 + (at >> 12)) as u8).collect();
    let chunks = |of: &str| {
        let status = good(&desk.run(&["fs", "status", "mnt"]));
        let start = format!("write {of}, ");
        let lines = status.lines().filter(|line| line.starts_with(&start));
        let count: u64 = lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
        let card = status.lines().find(|line| line.trim_start().starts_with("emulated ")).unwrap();
        (count, card.to_owned())
    };
    let write = |name: &str| {
        let mut file = fs::File::create(mounted.join(name)).unwrap();
        content.chunks(kib << 10).for_each(|piece| file.write_all(piece).unwrap());
        drop(file);
        assert!(fs::read(mounted.join(name)).unwrap() == content, "{name}");
    };
    // Each thread of the mount asks the card for its known answers first, and the CPU does the card's work until then.
    let begun = Instant::now();
    loop {
        let before = [chunks("emulated").0, chunks("instruction").0];
        write("file");
        let (after, said) = chunks("emulated");
        let (card, cpu) = (after - before[0], chunks("instruction").0 - before[1]);
        if enough(card, cpu) || begun.elapsed() > Duration::from_secs(60) {
            desk.unmount();
            return (card, cpu, said);
        }
    }
}

/// Over 90 % on the card.
fn mostly(card: u64, cpu: u64) -> bool {
    card > 9 * cpu
}

#[test]
fn eeca_sends_a_write_by_its_whole_size_and_shares_it_both_ways_while_the_card_is_full() {
    if !fuse() {
        return;
    }
    let by_window = ["--policy", "eeca", "--set", "busy_permille=1000"];
    let (card, cpu, said) = written(256, 1024, &by_window, mostly);
    assert!(mostly(card, cpu), "{card} and {cpu}: {said}");
    for window in [32, 8] {
        let (card, cpu, said) = written(window, 1024, &by_window, |card, cpu| card > 1024 && cpu > 0);
        assert!(card > 0 && cpu > 0 && said.contains("migrated") && said.contains("returned"), "{said}");
        assert!(!said.contains("window-full"), "{said}");
    }
    let small = ["--policy", "eeca", "--set", "eeca.threshold_bytes=1048576"];
    assert_eq!(written(256, 1024, &small, |_, cpu| cpu > 0).0, 0, "no write is larger than T");
}

#[test]
fn aca_sds_leaves_a_write_to_the_card_where_no_idle_share_is_enough() {
    if !fuse() {
        return;
    }
    let rule = ["--policy", "aca-sds", "--set", "aca-sds.alpha=0", "--set", "aca-sds.idle_permille=1000"];
    for kib in [64, 256, 1024] {
        let (card, cpu, said) = written(256, kib, &rule, mostly);
        assert!(mostly(card, cpu) && !said.contains("migrated"), "{kib}: {card} and {cpu}: {said}");
    }
}

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
