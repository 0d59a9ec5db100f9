//! Writes that go to a card, and files that a crash left torn.

use super::*;

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use wattlock::Clock;
use wattlock::core::Engine;
use wattlock::policy::Settings;
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::software::Software;
use wattlock_emul::{Effect, Emulated, Fault, Model, Pace, Trigger};
use wattlock_fs::content::Age;
use wattlock_fs::volume::NameMode;

use crate::backing::OTHER_VOLUME;
use crate::door::Door;

/// Where the card is among the engines.
const CARD: usize = 2;

struct Plain;

impl Engines for Plain {
    fn set(&self, runtime: &Runtime, settings: &[String]) -> std::result::Result<(), String> {
        let mut policy = Settings::default();
        for setting in settings {
            policy.set(setting).map_err(|error| error.to_string())?;
        }
        runtime.set_policy("aca-sds", policy).map_err(|error| error.to_string())
    }

    fn describe(&self, _runtime: &Runtime) -> Vec<String> {
        Vec::new()
    }
}

fn runtime(faults: Vec<Fault>) -> Runtime {
    with_clock(faults, Clock::real())
}

fn with_clock(faults: Vec<Fault>, clock: Clock) -> Runtime {
    let instruction: Arc<dyn Engine> = Arc::new(Instruction::new());
    let card = Emulated::new(Model::qat_dh8970(), instruction.clone(), Pace::RealTime).unwrap();
    Runtime::builder()
        .engines(vec![instruction, Arc::new(Software::new()), Arc::new(card.with_faults(faults))])
        .policy("aca-sds", Settings::default())
        .verify_one_in(1)
        .telemetry(false)
        .clock(clock)
        .profile(wattlock::Profile::built_in())
        .build()
        .unwrap()
}

fn volume() -> Volume {
    Volume::generate(4096, NameMode::Plain).unwrap()
}

fn open(folder: &Path, volume: &Volume, runtime: Runtime) -> Sealed {
    Sealed::open(folder, volume, (runtime, Box::new(Plain)), false, (&|| false, &mut Age::go_on)).unwrap().0
}

fn file(sealed: &Sealed, folder: &Path, name: &str, crypto: &mut Dispatcher) -> SealedContent {
    let path = folder.join(name);
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let stat = file.metadata().unwrap();
    let place = Place { inode: (stat.dev(), stat.ino()), path: name.into() };
    sealed.create_content(file, place, crypto).unwrap()
}

/// Chunks that the card and the others have sealed and opened.
fn done(sealed: &Sealed) -> [u64; 4] {
    let count = |engines: std::ops::Range<usize>, kind: usize| {
        let sizes = engines.flat_map(|engine| &sealed.done.0[engine][kind]);
        sizes.map(|chunks| chunks.load(Ordering::Relaxed)).sum()
    };
    [count(CARD..CARD + 1, 1), count(0..CARD, 1), count(CARD..CARD + 1, 0), count(0..CARD, 0)]
}

/// Until the card has proved itself the CPU does everything.
fn prove(sealed: &Sealed, file: &SealedContent, crypto: &mut Dispatcher) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while done(sealed)[0] == 0 {
        assert!(Instant::now() < deadline, "the card does nothing");
        sealed.write(file, &[1; 65536], 0, crypto).unwrap();
    }
}

#[test]
fn writes_go_to_a_card_by_size_and_files_in_operation_and_settings_change_with_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let (skipped, real) = (Arc::new(AtomicU64::new(0)), Clock::real());
    let skip = skipped.clone();
    let clock = Clock::given(move || real.now() + skip.load(Ordering::Relaxed));
    let pass = || skipped.fetch_add(20_000_000, Ordering::Relaxed);
    let sealed = open(folder.path(), &volume(), with_clock(Vec::new(), clock));
    let mut first = sealed.thread(0);
    let (a, b) =
        (file(&sealed, folder.path(), "a", &mut first), file(&sealed, folder.path(), "b", &mut first));
    let other = sealed.runtime.operates_on(&b.writes);
    prove(&sealed, &a, &mut first);
    // Whether a write of so many bytes goes to the card: all of it, or nothing.
    let offloads = |bytes: usize, crypto: &mut Dispatcher| {
        let before = done(&sealed);
        sealed.write(&a, &vec![2; bytes], 0, crypto).unwrap();
        let after = done(&sealed);
        let (card, cpu) = (after[0] - before[0], after[1] - before[1]);
        assert!((card == 0) != (cpu == 0), "{bytes} bytes: {card} chunks on the card, {cpu} not");
        assert_eq!(card + cpu, bytes as u64 / 4096);
        card > 0
    };
    assert!(offloads(8192, &mut first));
    assert!(!offloads(4096, &mut first), "beta");
    drop(other);
    pass();
    assert!(!offloads(8192, &mut first), "alpha: no other file was in operation lately");
    let other = sealed.runtime.operates_on(&b.writes);
    assert!(offloads(8192, &mut first));
    sealed.set(&["aca-sds.alpha=2".into()]).unwrap();
    assert!(!offloads(8192, &mut first), "alpha, from the next request on");
    sealed.set(&["aca-sds.beta_bytes=8192".into()]).unwrap();
    assert!(!offloads(8192, &mut first), "beta, from the next request on");
    assert!(offloads(16384, &mut first));
    let mut second = sealed.thread(1);
    sealed.set(&["aca-sds.feeders=1".into()]).unwrap();
    assert!(offloads(16384, &mut first), "the first thread feeds the card");
    assert!(!offloads(16384, &mut second), "the second does not");
    assert!(sealed.set(&["aca-sds.alpha=minus".into()]).is_err());
    assert!(offloads(16384, &mut first), "what is wrong changes nothing");
    let before = done(&sealed);
    let mut got = vec![0; 65536];
    assert_eq!(sealed.read(&a, &mut got, 0, &mut first).unwrap(), got.len());
    assert_eq!(done(&sealed)[2], before[2], "reads are the CPU's");
    assert!(done(&sealed)[3] > before[3]);
    drop(other);
    pass();
    let lines = sealed.engines();
    assert!(lines.contains(&"files in operation 0".to_owned()), "{lines:?}");
    let card = lines.iter().find(|line| line.starts_with("write emulated, ")).unwrap();
    assert!(card.contains(" 8 KiB: 4, 16 KiB: 12,"), "{card}");
}

#[test]
fn what_a_faulty_card_seals_in_one_thread_another_reads() {
    let faults = vec![
        Fault::new(Effect::Error, Trigger::Every(29)),
        Fault::new(Effect::WrongResult, Trigger::Every(23)),
        Fault::new(Effect::Lost { back_after_ns: Some(5_000_000) }, Trigger::nth(300)),
    ];
    let (folder, volume) = (tempfile::tempdir().unwrap(), volume());
    let sealed = open(folder.path(), &volume, runtime(faults));
    let mut crypto = sealed.thread(0);
    let names = ["a", "b", "c"];
    let files = names.map(|name| file(&sealed, folder.path(), name, &mut crypto));
    let busy = sealed.runtime.operates_on(&files[0].writes);
    prove(&sealed, &files[1], &mut crypto);
    drop(busy);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let last: Vec<u8> = std::thread::scope(|scope| {
        let changes = scope.spawn(|| {
            for round in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                sealed.set(&[format!("aca-sds.alpha={}", round % 3)]).unwrap();
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let writers: Vec<_> = (0..3_usize)
            .map(|number| {
                let (sealed, file) = (&sealed, &files[number]);
                scope.spawn(move || {
                    let mut crypto = sealed.thread(number);
                    let deadline = Instant::now() + Duration::from_secs(60);
                    let mut round = 0;
                    while round < 200 || done(sealed)[0] < 60 {
                        assert!(Instant::now() < deadline, "the card has done {:?}", done(sealed));
                        round += 1;
                        let byte = (round * 3 + number) as u8;
                        sealed.write(file, &[byte; 40_000], 0, &mut crypto).unwrap();
                        let mut got = vec![0; 40_000];
                        assert_eq!(sealed.read(file, &mut got, 0, &mut crypto).unwrap(), got.len());
                        assert!(got.iter().all(|there| *there == byte), "round {round}");
                    }
                    sealed.sync(file, &mut crypto).unwrap();
                    (round * 3 + number) as u8
                })
            })
            .collect();
        let ended: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        changes.join().unwrap();
        ended.into_iter().map(|ended| ended.unwrap()).collect()
    });
    // As it is stored, without the card.
    drop((files, crypto, sealed));
    let sealed = open(folder.path(), &volume, Runtime::builder().telemetry(false).build().unwrap());
    let mut crypto = sealed.thread(0);
    for (number, name) in names.iter().enumerate() {
        let path = folder.path().join(name);
        let file = File::options().read(true).write(true).open(path).unwrap();
        let stat = file.metadata().unwrap();
        let place = Place { inode: (stat.dev(), stat.ino()), path: (*name).into() };
        let file = sealed.open_content(file, place, &mut crypto).unwrap();
        let mut got = vec![0; 40_000];
        sealed.read(&file, &mut got, 0, &mut crypto).unwrap();
        assert!(got.iter().all(|there| *there == last[number]), "{name}");
    }
}

#[test]
fn a_file_that_a_crash_left_torn_has_its_true_length_at_the_first_look() {
    let (folder, volume) = (tempfile::tempdir().unwrap(), volume());
    let build = || Runtime::builder().telemetry(false).build().unwrap();
    let sealed = open(folder.path(), &volume, build());
    let mut crypto = sealed.thread(0);
    let content = file(&sealed, folder.path(), "torn", &mut crypto);
    sealed.write(&content, &[7; 20_000], 0, &mut crypto).unwrap();
    drop((content, crypto, sealed));
    // What a power cut leaves: the length, and not all of the bytes.
    let backing = File::options().write(true).open(folder.path().join("torn")).unwrap();
    let len = backing.metadata().unwrap().len();
    backing.set_len(96 + 2 * 4136).unwrap();
    backing.set_len(len).unwrap();
    let sealed = open(folder.path(), &volume, build());
    let behaviour =
        crate::Behaviour { shared: false, others: false, unbound: false, log: Arc::new(|_: &str| {}) };
    let door =
        Door::new(sealed, behaviour, crate::Descriptors { folders: 16, held: 16, files: u64::MAX }).unwrap();
    let attr = door.inner.lookup(crate::table::ROOT, OsStr::new("torn")).unwrap().unwrap();
    assert_eq!(attr.size, 2 * 4096);
}

#[test]
fn a_stored_target_says_how_long_it_is() {
    // 16 bytes of nonce, 16 of vector, then the target, in 4 characters for 3 bytes.
    assert_eq!(target_len(44), 1);
    assert_eq!(target_len(0), 0);
}

#[test]
fn a_mount_takes_no_key_but_what_a_holder_of_its_own_has_made() {
    let folder = tempfile::tempdir().unwrap();
    let volume = Volume::generate(4096, NameMode::PerFolder).unwrap();
    let runtime = Runtime::builder().telemetry(false).build().unwrap();
    let mut crypto = runtime.dispatcher();
    Tree::init(folder.path(), &volume, &mut crypto).unwrap();
    let sealed = open(folder.path(), &volume, runtime);
    let meta = folder.path().metadata().unwrap();
    let which = Which { id: volume.id, folder: (meta.dev(), meta.ino()) };
    let other = Which { id: [0; 16], ..which };
    let copied = Which { folder: (meta.dev(), meta.ino() + 1), ..which };
    let mut own = volume.clone();
    own.succeed(&mut crypto).unwrap();
    let next = |volume: &Volume, generation| Next {
        generation,
        key: volume.keys.last().unwrap().1.clone(),
        successors: volume.successors.clone(),
    };
    let made_up = Volume::generate(4096, NameMode::PerFolder).unwrap();
    let mut rotate = |which: &Which, next: Next| sealed.rotate(which, &next, &|| false, &mut crypto);
    for which in [&other, &copied] {
        assert_eq!(rotate(which, next(&own, 2)).unwrap_err(), OTHER_VOLUME);
        assert_eq!(sealed.may_rotate(which).unwrap_err(), OTHER_VOLUME);
    }
    for (of, generation) in [(&made_up, 2), (&made_up, 1), (&made_up, u32::MAX), (&own, 1), (&own, 3)] {
        assert!(
            rotate(&which, next(of, generation)).unwrap_err().contains("none of the volume's"),
            "{generation}"
        );
    }
    let done = Ok(Rotation { sealed: 1, ..Rotation::default() });
    assert_eq!(rotate(&which, next(&own, 2)), done);
    assert_eq!(rotate(&which, next(&own, 2)), done, "once more changes nothing");
    assert!(rotate(&which, next(&volume, 1)).is_err());
}
