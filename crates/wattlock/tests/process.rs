//! What concerns whole processes: telemetry files, forks. One test, because it forks and changes the environment.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use common::*;
use wattlock::telemetry::{User, read_all, read_running, scan};
use wattlock::{Runtime, Submitted};
use wattlock_core::{Data, Item, Key, Kind, Request};

/// Forks; the child runs `child` and exits with 0 if it returned true. Returns whether it did.
fn in_child(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the only other thread is the harness's, which waits and holds no lock the child needs.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
        // SAFETY: leaves without running the parent's destructors.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place for one int.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status == 0
}

fn digest_inline(dispatcher: &mut wattlock::Dispatcher) -> bool {
    let mut out = [0; 32];
    let request = &mut Request::new(Kind::Sha256, Key::none(), Data::Apart { from: b"abc", to: &mut out });
    dispatcher.run(request) == Ok(32) && out[..4] == [0xba, 0x78, 0x16, 0xbf]
}

fn users() -> Vec<User> {
    let mut users = Vec::new();
    scan(&[], |user| users.push(user));
    users
}

/// Requests of a program that the totals have, and how many of its runtimes ended.
fn summed(program: &str) -> (u64, u64) {
    let users = users();
    let sums = users.iter().flat_map(|user| user.totals.sums());
    let sums: Vec<_> = sums.filter(|sum| sum.program == program).collect();
    let of = |counter| sums.iter().filter(|sum| sum.counter == counter).map(|sum| sum.value).sum();
    (of("requests"), of("ended"))
}

/// Requests of a program, wherever they are.
fn counted(program: &str) -> u64 {
    let users = users();
    let snapshots = users.iter().flat_map(|user| user.living.iter().chain(&user.ended));
    let cells = snapshots.filter(|one| one.header.program == program).flat_map(|one| &one.cells);
    summed(program).0 + cells.map(|cell| cell.requests).sum::<u64>()
}

/// What processes leave when they end, or are killed at any moment of it.
fn totals(folder: &Path) {
    // A runtime that ends, and one that was never used.
    let runtime = Runtime::builder().program("ended").build().unwrap();
    let unused = Runtime::builder().program("unused").build().unwrap();
    let (mut dispatcher, idle) = (runtime.dispatcher(), unused.dispatcher());
    (0..3).for_each(|_| assert!(digest_inline(&mut dispatcher)));
    drop((dispatcher, runtime, idle, unused));
    assert_eq!((summed("ended"), summed("unused")), ((3, 1), (0, 0)));

    // Kept counters: the file says that it ended, and goes when somebody reads or another runtime is built.
    for round in 1..=3 {
        let runtime = Runtime::builder().program("kept").kept_counters().build().unwrap();
        assert!(digest_inline(&mut runtime.dispatcher()));
        drop(runtime);
        assert_eq!(counted("kept"), round);
        assert_eq!(summed("kept"), (round, round));
    }
    // A child counts in its parent's row, and takes nothing in.
    let runtime = Runtime::builder().program("parent").kept_counters().build().unwrap();
    let mut dispatcher = runtime.dispatcher();
    assert!(digest_inline(&mut dispatcher));
    assert!(in_child(|| digest_inline(&mut dispatcher)));
    assert_eq!((summed("parent"), counted("parent")), ((0, 0), 2));
    drop((dispatcher, runtime));
    assert_eq!(summed("parent"), (2, 1));

    // Children that end all at once, some of them killed somewhere in it: each leaves its two requests.
    let children = 60;
    let mut runtime = Some(Runtime::builder().program("child").build().unwrap());
    for round in 0..children / 6 {
        let processes: Vec<i32> = (0..6)
            .map(|number| {
                // SAFETY: the child touches nothing that a thread of its parent may hold, and ends.
                match unsafe { libc::fork() } {
                    0 => {
                        let runtime = runtime.take().unwrap();
                        let mut dispatcher = runtime.dispatcher();
                        let good = digest_inline(&mut dispatcher) && digest_inline(&mut dispatcher);
                        std::fs::write(folder.join(format!("ready {round} {number}")), "").unwrap();
                        drop((dispatcher, runtime));
                        // SAFETY: ends the child without its parent's handlers; what it counted stays in its file.
                        unsafe { libc::_exit(i32::from(!good)) }
                    }
                    child => child,
                }
            })
            .collect();
        for (number, child) in processes.iter().enumerate() {
            let ready = folder.join(format!("ready {round} {number}"));
            while !ready.exists() {
                std::thread::yield_now();
            }
            std::fs::remove_file(ready).unwrap();
            if number % 2 == 0 {
                std::thread::sleep(std::time::Duration::from_micros(17 * (round * 6 + number) as u64 % 500));
                // SAFETY: a child of this process that was not waited for.
                unsafe { libc::kill(*child, libc::SIGKILL) };
            }
        }
        for child in processes {
            // SAFETY: as above; the status is not wanted.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
    }
    drop(runtime);
    assert_eq!(counted("child"), 2 * children as u64);
    assert_eq!(summed("child"), (2 * children as u64, children as u64));
}

/// Another user made the folder of a user's name first: the user has one of a second name, and readers know whose it is.
fn second_name() {
    // SAFETY: a call without arguments.
    if unsafe { libc::geteuid() } != 0 {
        return eprintln!("skipped: only root becomes another user");
    }
    let uid = 1_900_000_000 + std::process::id();
    let first = format!("/dev/shm/wattlock-{uid}");
    let prefix = format!("{first}.");
    std::fs::create_dir(&first).unwrap();
    let good = (0..2).all(|_| {
        in_child(|| {
            // SAFETY: the child has one thread, and these calls change nothing but whose it is.
            unsafe {
                std::env::remove_var("WATTLOCK_TELEMETRY_DIR");
                assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
                assert_eq!(libc::setresgid(uid, uid, uid), 0);
                assert_eq!(libc::setresuid(uid, uid, uid), 0);
            }
            let runtime = Runtime::builder().program("second").build().unwrap();
            let mut dispatcher = runtime.dispatcher();
            let path = || runtime.telemetry_path().unwrap();
            digest_inline(&mut dispatcher) && path().to_str().unwrap().starts_with(&prefix)
        })
    });
    let seen = (counted("second"), summed("second"));
    let names = std::fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().path());
    let made: Vec<_> =
        names.filter(|path| path.to_str().is_some_and(|path| path.starts_with(&prefix))).collect();
    made.iter().for_each(|path| std::fs::remove_dir_all(path).unwrap());
    std::fs::remove_dir(&first).unwrap();
    assert!(good && made.len() == 1, "{made:?}");
    assert_eq!(seen, (2, (2, 2)));
}

/// No test by itself: the program that a process executes after it counted.
#[test]
#[ignore = "a program for another test"]
fn executed() {
    let runtime = Runtime::builder().program("after").build().unwrap();
    assert!(digest_inline(&mut runtime.dispatcher()));
    let own =
        |name: &std::ffi::OsStr| name.to_string_lossy().starts_with(&format!("{}-", std::process::id()));
    let folder = runtime.telemetry_path().unwrap().parent().unwrap().to_owned();
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.filter(|name| own(name)).count(), 1, "what was counted before is in the totals");
}

#[test]
fn telemetry_files_and_forks() {
    // In memory, as it is by default: there reading what has no room takes some.
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    // SAFETY: the only other thread is the harness's, which waits for this test and reads no environment meanwhile.
    unsafe { std::env::set_var("WATTLOCK_TELEMETRY_DIR", folder.path()) };
    let mine = |pid: u32| read_all().into_iter().find(|snapshot| snapshot.header.pid == pid);

    // Loading starts no thread. Nothing else runs in this process, so the count is exact.
    let threads = || -> Vec<_> {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
        tasks.map(|task| name(task.unwrap()).unwrap_or_default()).collect()
    };
    let before = threads();
    drop(Runtime::new().unwrap().dispatcher());
    assert_eq!(threads(), before);

    // A process's file is there while its runtime is, readable by others, and gone after.
    let runtime = Runtime::builder().program("a test").build().unwrap();
    assert!(mine(std::process::id()).is_none(), "nothing before the first dispatcher");
    let mut dispatcher = runtime.dispatcher();
    assert!(digest_inline(&mut dispatcher));
    let seen = mine(std::process::id()).unwrap();
    assert_eq!(seen.header.program, "a test");
    assert!(seen.cells.iter().any(|cell| cell.kind == "sha-256" && cell.requests == 1));

    // A child counts in a file of its own, and the parent's is left alone; so does a grandchild.
    assert!(in_child(|| {
        let own = |requests| {
            let seen = mine(std::process::id()).unwrap();
            seen.cells.iter().any(|cell| cell.kind == "sha-256" && cell.requests == requests)
        };
        digest_inline(&mut dispatcher)
            && digest_inline(&mut dispatcher)
            && own(2)
            && in_child(|| digest_inline(&mut dispatcher) && own(1))
    }));
    // A reader of its own counters takes no room for rows without an owner.
    let room = || std::fs::metadata(runtime.telemetry_path().unwrap()).unwrap().blocks();
    let before = room();
    assert!(runtime.snapshot().cells.iter().any(|cell| cell.kind == "sha-256"));
    assert_eq!(room(), before);
    let after = mine(std::process::id()).unwrap();
    assert!(after.cells.iter().all(|cell| cell.requests == 1));
    drop(dispatcher);
    drop(runtime);
    assert!(mine(std::process::id()).is_none());

    // A dead process's file is swept away by a reader, and by the maker of another one; a living one's is not, nor one
    // that cannot be read.
    let names = || std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let files = || names().filter(|name| !name.to_string_lossy().starts_with("totals")).count();
    let left = |name: &str, content: &[u8]| {
        let mut options = std::fs::OpenOptions::new();
        let mut file =
            options.write(true).create_new(true).mode(0o600).open(folder.path().join(name)).unwrap();
        file.write_all(content).unwrap();
    };
    let runtime = Runtime::builder().program("left behind").build().unwrap();
    let mut dispatcher = runtime.dispatcher();
    assert!(digest_inline(&mut dispatcher));
    let whole = std::fs::read(runtime.telemetry_path().unwrap()).unwrap();
    drop((dispatcher, runtime));
    left("4194303-0", &whole);
    left("4194303-1", b"{\"format\":1, left behind");
    left("1-0", b"still being written");
    assert_eq!(files(), 3);
    read_all();
    assert_eq!(files(), 2);
    left("4194303-0", &whole);
    let dispatcher = Runtime::builder().build().unwrap().dispatcher();
    assert!(!folder.path().join("4194303-0").exists());
    assert_eq!(files(), 3);
    drop(dispatcher);
    assert_eq!(summed("left behind").1, 3);

    // A limit of a file's size ends no process: the counters are private then.
    assert!(in_child(|| {
        let limit = libc::rlimit { rlim_cur: 100_000, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: `limit` is a valid structure; the child is of one thread.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
        let runtime = Runtime::builder().program("limited").build().unwrap();
        digest_inline(&mut runtime.dispatcher()) && runtime.telemetry_path().is_none()
    }));

    // A process that executes another program left a file that names a process which runs.
    assert!(in_child(|| {
        let runtime = Runtime::builder().program("before").build().unwrap();
        let mut dispatcher = runtime.dispatcher();
        assert!(digest_inline(&mut dispatcher));
        let mut next = std::process::Command::new("/proc/self/exe");
        next.args(["--exact", "executed", "--ignored"]);
        panic!("{}", std::os::unix::process::CommandExt::exec(&mut next))
    }));
    assert_eq!((summed("before"), summed("after")), ((1, 1), (1, 1)));

    totals(folder.path());
    second_name();

    // More than is read of one user: it is said.
    assert_eq!(read_running().users_left_out, 0);
    let runtime = Runtime::builder().program("crowded").build().unwrap();
    assert!(digest_inline(&mut runtime.dispatcher()));
    let mut whole = std::fs::read(runtime.telemetry_path().unwrap()).unwrap();
    whole.resize(8 << 20, 1);
    let crowd: Vec<String> = (0..5).map(|at| format!("{}-{}", std::process::id(), 7000 + at)).collect();
    crowd.iter().for_each(|name| left(name, &whole));
    let seen = read_running();
    assert_eq!((seen.users_left_out, seen.found.is_empty()), (1, false));
    crowd.iter().for_each(|name| std::fs::remove_file(folder.path().join(name)).unwrap());
    drop(runtime);

    // Where no file can be made, everything works and no error is reported.
    // SAFETY: as above.
    unsafe { std::env::set_var("WATTLOCK_TELEMETRY_DIR", "/proc/nowhere") };
    let runtime = Runtime::new().unwrap();
    assert!(digest_inline(&mut runtime.dispatcher()));
    assert!(runtime.telemetry_path().is_none());

    // What was opened before a fork is not used after: the child opens its own queue, and the parent's requests
    // complete in the parent alone.
    let (device, clock) = (Scripted::new(1), HandClock::default());
    let runtime = common::runtime(&device, &clock, 0);
    let mut dispatcher = runtime.dispatcher();
    prove(&mut dispatcher, &clock, digest(0));
    assert!(matches!(dispatcher.submit(digest(1)), Submitted::Pending(_)));
    let opens = || device.script.lock().unwrap().opens;
    assert_eq!(opens(), 1);
    assert!(in_child(|| {
        let mut back = 0;
        dispatcher.poll(&mut |_| back += 1);
        let nothing_inherited = back == 0 && dispatcher.in_flight() == 0;
        prove(&mut dispatcher, &clock, digest(2));
        let own = matches!(dispatcher.submit(digest(3)), Submitted::Pending(_)) && opens() == 2;
        let completed = drain(&mut dispatcher, &clock);
        nothing_inherited && own && completed.len() == 1 && completed[0].request.mark == 3
    }));
    // What had come back already, but was not handed out, is the parent's alone as well.
    let mut out = [0; 32];
    let inline = Request::new(Kind::Sha256, Key::none(), Data::Apart { from: b"abc", to: &mut out });
    dispatcher.run_all(&mut [Item::new(inline)]);
    assert_eq!(dispatcher.in_flight(), 1, "it waits to be handed out");
    assert!(in_child(|| {
        let mut back = 0;
        dispatcher.poll(&mut |_| back += 1);
        back == 0 && dispatcher.in_flight() == 0
    }));
    let completed = drain(&mut dispatcher, &clock);
    assert_eq!(completed.iter().map(|completion| completion.request.mark).collect::<Vec<_>>(), [1]);
    completed.iter().for_each(assert_right);
}
