//! `wattlock stream` as a script meets it: pipes, sockets, signals, exit codes, memory.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use crate::counting::Counting;

/// A folder with a key pair, and the program with its profile and counters in it.
struct Desk {
    folder: tempfile::TempDir,
    recipient: String,
}

impl Desk {
    fn new() -> Desk {
        let folder = tempfile::tempdir().unwrap();
        let mut desk = Desk { folder, recipient: String::new() };
        assert!(desk.command(&["keygen", "-o", "key.txt"]).output().unwrap().status.success());
        let text = fs::read_to_string(desk.at("key.txt")).unwrap();
        desk.recipient =
            text.lines().find_map(|line| line.strip_prefix("# public key: ")).unwrap().to_owned();
        desk
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wattlock"));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("WATTLOCK_PROFILE", self.at("profile.json"))
            .env("WATTLOCK_TELEMETRY_DIR", self.at("telemetry"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn seal(&self, more: &[&str]) -> Command {
        self.command(&[&["stream", "seal", "-r", &self.recipient], more].concat())
    }

    fn open(&self, more: &[&str]) -> Command {
        self.command(&[&["stream", "open", "-i", "key.txt"], more].concat())
    }
}

fn feed(mut command: Command, input: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

fn good(output: &Output) -> &[u8] {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    &output.stdout
}

fn code(output: &Output) -> i32 {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("wattlock: ") && said.matches("wattlock: ").count() == 1, "{said}");
    output.status.code().unwrap()
}

fn terminate(child: &Child) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
}

#[test]
fn a_stream_goes_through_and_its_errors_have_codes() {
    let desk = Desk::new();
    let text = "line\n".repeat(50_000);
    for framing in ["raw", "lines"] {
        let sealed = feed(desk.seal(&["--framing", framing, "--stats"]), text.as_bytes());
        good(&sealed);
        let said = String::from_utf8_lossy(&sealed.stderr).into_owned();
        assert!(said.contains("sealed 244.1 KiB") && said.contains("1 keys"), "{said}");
        assert!(good(&feed(desk.open(&[]), &sealed.stdout)) == text.as_bytes());
        let cut = feed(desk.open(&[]), &sealed.stdout[..sealed.stdout.len() - 1]);
        assert_eq!(code(&cut), 36);
        assert!(text.as_bytes().starts_with(&cut.stdout));
        let mut altered = sealed.stdout.clone();
        altered[400] ^= 1;
        let altered = feed(desk.open(&[]), &altered);
        assert_eq!((code(&altered), altered.stdout.len()), (32, 0));
        let extended = feed(desk.open(&[]), &[&sealed.stdout[..], b"x"].concat());
        assert_eq!(code(&extended), 34);
    }
    assert_eq!(code(&feed(desk.open(&[]), b"something else altogether")), 21);
    assert_eq!(code(&feed(desk.open(&[]), b"")), 20);
    let half = feed(desk.seal(&["--framing", "length"]), b"\0\0\0\x09half");
    assert_eq!(code(&half), 37);
    assert_eq!(code(&feed(desk.open(&[]), &half.stdout)), 36, "the cut goes through");
    for wrong in [&["--latency", "soon"][..], &["--frame", "2MiB"], &["--connect", "x", "--listen", "y"]] {
        assert_eq!(desk.seal(wrong).output().unwrap().status.code(), Some(2), "{wrong:?}");
    }
    let nobody = desk.command(&["stream", "seal"]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(2));
}

#[test]
fn a_termination_ends_the_stream_behind_what_was_read() {
    let desk = Desk::new();
    let mut sealing = desk.seal(&["--latency", "0"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = sealing.stdin.take().unwrap();
    let mut stdout = sealing.stdout.take().unwrap();
    stdin.write_all(b"before").unwrap();
    let mut sealed = vec![0; 16 + 232 + 56 + 26];
    stdout.read_exact(&mut sealed).unwrap();
    terminate(&sealing);
    stdout.read_to_end(&mut sealed).unwrap();
    assert_eq!(code(&sealing.wait_with_output().unwrap()), 130);
    drop(stdin);
    assert_eq!(good(&feed(desk.open(&[]), &sealed)), b"before");
}

#[test]
fn a_consumer_that_leaves_ends_a_silent_stream_quietly() {
    let desk = Desk::new();
    let mut sealing = desk.seal(&[]).stdin(Stdio::piped()).spawn().unwrap();
    let stdin = sealing.stdin.take();
    sealing.stdout.take().unwrap().read_exact(&mut [0; 16]).unwrap();
    let output = sealing.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(44), 0));
    drop(stdin);
}

#[test]
fn a_stream_goes_over_sockets_both_ways_round() {
    let desk = Desk::new();
    let text = "over a socket\n".repeat(10_000);
    let socket = desk.at("socket").to_str().unwrap().to_owned();
    for seal_listens in [false, true] {
        let (mut first, mut second) = match seal_listens {
            true => (desk.seal(&["--listen", &socket]), desk.open(&["--connect", &socket])),
            false => (desk.open(&["--listen", &socket]), desk.seal(&["--connect", &socket])),
        };
        first.stdin(Stdio::piped());
        second.stdin(Stdio::piped());
        let mut listening = first.spawn().unwrap();
        while !desk.at("socket").exists() {
            assert!(listening.try_wait().unwrap().is_none(), "it ended before it listened");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let mut connected = second.spawn().unwrap();
        let (mut from, mut to) = if seal_listens {
            (listening, connected)
        } else {
            std::mem::swap(&mut listening, &mut connected);
            (listening, connected)
        };
        let mut stdin = from.stdin.take().unwrap();
        drop(to.stdin.take());
        let sent = text.clone();
        let writer = std::thread::spawn(move || stdin.write_all(sent.as_bytes()).unwrap());
        let opened = to.wait_with_output().unwrap();
        assert!(good(&opened) == text.as_bytes(), "{seal_listens}");
        writer.join().unwrap();
        good(&from.wait_with_output().unwrap());
        assert!(!desk.at("socket").exists());
    }
    assert_eq!(code(&desk.seal(&["--connect", &socket]).output().unwrap()), 46);
    let mut waiting = desk.open(&["--listen", &socket]).spawn().unwrap();
    while !desk.at("socket").exists() {
        assert!(waiting.try_wait().unwrap().is_none());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    terminate(&waiting);
    assert_eq!(code(&waiting.wait_with_output().unwrap()), 130);
}

/// A quarter of a gigabyte through both, in less memory than a fraction of it.
#[test]
fn memory_does_not_grow_with_the_stream() {
    let desk = Desk::new();
    let mut sealing = desk.seal(&["--stats"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = sealing.stdin.take().unwrap();
    let opening = desk.open(&["--stats"]).stdin(sealing.stdout.take().unwrap()).stdout(Stdio::null()).spawn();
    let writer = std::thread::spawn(move || {
        let block = vec![7; 1 << 20];
        (0..256).for_each(|_| stdin.write_all(&block).unwrap());
    });
    let ends = [opening.unwrap().wait_with_output().unwrap(), sealing.wait_with_output().unwrap()];
    writer.join().unwrap();
    for output in ends {
        good(&output);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let peak = said.lines().find_map(|line| line.strip_prefix("peak resident memory ")).unwrap();
        let (number, unit) = peak.split_once(' ').unwrap();
        assert!(unit == "MiB" && number.parse::<f64>().unwrap() < 64.0, "{peak}");
    }
}

#[test]
fn a_full_disk_behind_the_pipe_is_an_error_of_its_own() {
    let desk = Desk::new();
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let sealed = feed(desk.seal(&[]), &[1; 100_000]);
    for mut command in [desk.seal(&[]), desk.open(&[])] {
        command.stdout(full());
        assert_eq!(code(&feed(command, &sealed.stdout)), 43);
    }
}

#[test]
fn a_signed_key_shows_its_signer_and_keeps_it_for_other_readers() {
    let desk = Desk::new();
    let run = |arguments: &[&str]| desk.command(&[&["stream", "keys"], arguments].concat()).output().unwrap();
    let signer = String::from_utf8(good(&run(&["signer", "-o", "signer.txt"])).to_vec()).unwrap();
    assert!(signer.starts_with("ed25519:") && signer.len() == 8 + 64 + 1, "{signer}");
    assert_eq!(code(&run(&["signer", "-o", "signer.txt"])), 1, "nothing is overwritten");
    good(&run(&["new", "--keys", "keys", "-r", &desk.recipient, "--sign", "signer.txt"]));
    let shown = || String::from_utf8(good(&run(&["list", "--keys", "keys"])).to_vec()).unwrap();
    assert!(shown().contains(signer.trim()), "{}", shown());
    good(&run(&["rewrap", "--keys", "keys", "-i", "key.txt", "-r", &desk.recipient]));
    assert!(shown().contains(signer.trim()), "{}", shown());
    fs::write(desk.at("wrong.txt"), "WATTLOCK-SIGNER-00\n").unwrap();
    let refused = run(&["new", "--keys", "keys", "-r", &desk.recipient, "--sign", "wrong.txt"]);
    assert!(code(&refused) != 0 && !String::from_utf8_lossy(&refused.stderr).contains("SIGNER-00"));
}

/// The bridge is another program: without it one line says how to get it, with it keys are its own to fetch and put.
#[test]
fn the_bridge_is_found_beside_the_program_or_a_line_says_how_to_build_it() {
    use std::os::unix::fs::PermissionsExt;
    let desk = Desk::new();
    let program = desk.at("wattlock");
    fs::copy(env!("CARGO_BIN_EXE_wattlock"), &program).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("stream").args(arguments).current_dir(desk.folder.path()).output().unwrap()
    };
    let missing = run(&["bridge", "--config", "bridge.toml"]);
    let said = String::from_utf8(missing.stderr).unwrap();
    assert!(
        missing.status.code() == Some(127) && said.contains("make bridge") && said.lines().count() == 1,
        "{said}"
    );
    // Help is there without it.
    for help in
        [&["bridge", "--help"][..], &["bridge", "-h"], &["bridge", "help"], &["bridge", "check", "--help"]]
    {
        let page = String::from_utf8(good(&run(help)).to_vec()).unwrap();
        assert!(page.contains("--config <FILE>") && page.contains("make bridge"), "{page}");
    }
    // Says what it is given, and keeps entries in a folder.
    let bridge = "#!/bin/sh\nif [ \"$1\" != entries ]; then echo \"$@\"; exit 7; fi\nshift; what=$1; folder=$5; shift 5\n\
                  case $what in\nget) cp there/* \"$folder\"; echo '{\"new_after_seconds\":86400}' ;;\nput) for id; do cp \"$folder/$id.key\" there; done ;;\n\
                  remove) for id; do rm \"there/$id.key\"; done ;;\nesac\n";
    fs::write(desk.at("wattlock-bridge"), bridge).unwrap();
    fs::set_permissions(desk.at("wattlock-bridge"), fs::Permissions::from_mode(0o755)).unwrap();
    let told = run(&["bridge", "check", "--config", "bridge.toml"]);
    assert_eq!((told.status.code(), &told.stdout[..]), (Some(7), &b"check --config bridge.toml\n"[..]));
    fs::create_dir(desk.at("there")).unwrap();
    fs::write(desk.at("there/README"), "").unwrap();
    let keys = |arguments: &[&str]| run(&[&["keys"], arguments].concat());
    let id = good(&keys(&["new", "--config", "bridge.toml", "-r", &desk.recipient])).to_vec();
    let id = String::from_utf8(id).unwrap().trim().to_owned();
    let there = || desk.at("there").join(format!("{id}.key"));
    let before = fs::read(there()).unwrap();
    assert!(
        String::from_utf8(good(&keys(&["list", "--config", "bridge.toml"])).to_vec()).unwrap().contains(&id)
    );
    good(&keys(&["rewrap", "--config", "bridge.toml", "-i", "key.txt", "-r", &desk.recipient]));
    assert_ne!(fs::read(there()).unwrap(), before);
    let asked = keys(&["shred", "--config", "bridge.toml", &id]);
    let said = String::from_utf8(asked.stdout).unwrap();
    assert!(
        said.contains("in use by a running bridge until") && said.contains("new_after_seconds = 86400"),
        "{said}"
    );
    assert!(there().exists());
    good(&keys(&["shred", "--config", "bridge.toml", "--yes", &id]));
    assert!(!there().exists());
}

#[test]
fn keys_are_made_listed_rewrapped_and_shredded() {
    let desk = Desk::new();
    let run = |arguments: &[&str]| desk.command(&[&["stream", "keys"], arguments].concat()).output().unwrap();
    let id = run(&["new", "--keys", "keys", "-r", &desk.recipient, "--label", "orders"]);
    let id = String::from_utf8(good(&id).to_vec()).unwrap().trim().to_owned();
    let list = || String::from_utf8(good(&run(&["list", "--keys", "keys"])).to_vec()).unwrap();
    assert!(list().starts_with(&id) && list().contains("1 recipient  orders"), "{}", list());
    assert!(desk.command(&["keygen", "-o", "new.txt"]).output().unwrap().status.success());
    let rewrap =
        |with: &str| run(&["rewrap", "--keys", "keys", "-i", with, "-r", &desk.recipient, "-R", "team.txt"]);
    let second = fs::read_to_string(desk.at("new.txt")).unwrap();
    let second = second.lines().find_map(|line| line.strip_prefix("# public key: ")).unwrap();
    fs::write(desk.at("team.txt"), format!("{}\n{second}\n", desk.recipient)).unwrap();
    let other = run(&["new", "--keys", "keys", "-r", &desk.recipient]);
    let other = String::from_utf8(good(&other).to_vec()).unwrap().trim().to_owned();
    let refused = rewrap("new.txt");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(12), "no reader of it");
    assert!(said.contains(&id) && said.contains(&other), "each key that was not rewrapped is named: {said}");
    good(&run(&["shred", "--keys", "keys", "--yes", &other]));
    good(&rewrap("key.txt"));
    assert!(list().contains("2 recipients"), "one that is named twice counts once");
    let asked = run(&["shred", "--keys", "keys", &id]);
    assert!(asked.status.code() == Some(2) && asked.stdout.starts_with(b"would become unreadable"));
    good(&run(&["shred", "--keys", "keys", "--yes", &id]));
    assert_eq!(list(), "");
    assert_eq!(code(&run(&["shred", "--keys", "keys", "--yes", &id])), 39);
    assert_eq!(run(&["shred", "--keys", "keys", "--yes", "../key"]).status.code(), Some(2));
    assert_eq!(code(&run(&["list", "--keys", "nowhere"])), 42);
}

/// A folder in cpufreq's place: a CPU of five steps.
fn cpufreq(desk: &Desk) -> PathBuf {
    let folder = desk.at("cpufreq/policy0");
    fs::create_dir_all(&folder).unwrap();
    for (file, text) in [
        ("affected_cpus", "0 1"),
        ("cpuinfo_max_freq", "3600000"),
        ("cpuinfo_min_freq", "400000"),
        ("scaling_driver", "intel_pstate"),
        ("scaling_governor", "powersave"),
        ("scaling_max_freq", "3600000"),
        ("scaling_min_freq", "400000"),
    ] {
        fs::write(folder.join(file), text).unwrap();
    }
    folder
}

#[test]
fn bench_stream_does_all_programs_on_this_cpu_and_sets_its_clocks() {
    let desk = Desk::new();
    let folder = cpufreq(&desk);
    for (file, text) in [
        ("sys/class/powercap/intel-rapl:0/name", "package-0"),
        ("sys/class/powercap/intel-rapl:0/max_energy_range_uj", "65532610987"),
        ("sys/class/powercap/intel-rapl:0/energy_uj", "1000000"),
        ("proc/stat", "cpu  1 0 0 9 0 0 0 0\ncpu0 1\ncpu1 1\n"),
    ] {
        let path = desk.at("meter").join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    // Ten watts.
    let counter = desk.at("meter/sys/class/powercap/intel-rapl:0/energy_uj");
    let counting = Counting::in_file(&counter, |ms| format!("{}\n", 1_000_000 + ms * 10_000));
    let bench = |rules: &str, more: &[&str]| {
        let first = ["bench", "stream", "--machine", "cpu", "--messages", "40", "--velocity", "500us"];
        let all = [&first[..], &["--json", "-", "--policy", rules], more].concat();
        desk.command(&all).env("WATTLOCK_METER_ROOT", desk.at("meter")).output().unwrap()
    };
    let clocks = ["--clocks", "--clocks-tree", "cpufreq", "--clocks-record", "clocks"];
    let done = bench("cs,cp,gp,lecpaes,adaptive", &clocks);
    let sheet: serde_json::Value = serde_json::from_slice(good(&done)).unwrap();
    let rows = sheet["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 5);
    for (row, names) in rows.iter().zip([Some(false), Some(false), Some(false), Some(true), None]) {
        let detail = &row["detail"];
        assert_eq!((&row["bench"], &detail["messages"]), (&"stream-cpu".into(), &40.into()), "{row}");
        assert_eq!(detail["messages_by_gpu"], 0);
        // To `adaptive` all clocks may cost the same.
        let named = detail["clock_changes_named"].as_u64().map(|count| count > 0);
        assert!(names.is_none() || named == names, "{row}");
    }
    let limit = fs::read_to_string(folder.join("scaling_max_freq")).unwrap();
    assert_eq!((limit, desk.at("clocks").exists()), ("3600000".into(), false));
    // What clocks cost is unknown where none may be set, and where nothing counts joules.
    assert_eq!(bench("adaptive", &[]).status.code(), Some(2));
    drop(counting);
    fs::remove_dir_all(desk.at("meter/sys")).unwrap();
    let blind = bench("adaptive", &clocks);
    assert!(
        !blind.status.success() && String::from_utf8_lossy(&blind.stderr).contains("joules"),
        "{blind:?}"
    );
}

/// A fixture of a tree: what a kill leaves is put back, by the command and by the next start.
#[test]
fn clocks_follow_the_fill_and_come_back() {
    let desk = Desk::new();
    let folder = cpufreq(&desk);
    let limit = || fs::read_to_string(folder.join("scaling_max_freq")).unwrap();
    let with = ["--clocks", "--clocks-tree", "cpufreq", "--clocks-record", "clocks", "--policy", "lecpaes"];
    let clocks = |more: &[&str]| {
        let all = [&["clocks", "--tree", "cpufreq", "--record", "clocks"], more].concat();
        String::from_utf8(good(&desk.command(&all).output().unwrap()).to_vec()).unwrap()
    };
    assert!(clocks(&[]).contains("5 steps can be set"), "{}", clocks(&[]));
    let sealed = feed(desk.seal(&[&with[..], &["--stats"]].concat()), b"slow");
    good(&sealed);
    assert!(String::from_utf8_lossy(&sealed.stderr).contains("1 clock changes of the CPU"));
    assert_eq!((limit(), desk.at("clocks").exists()), ("3600000".into(), false));
    for by_command in [true, false] {
        let mut sealing = desk.seal(&with).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = sealing.stdin.take().unwrap();
        stdin.write_all(b"slow").unwrap();
        let mut stdout = sealing.stdout.take().unwrap();
        stdout.read_exact(&mut [0; 16 + 232 + 56 + 24]).unwrap();
        assert!(clocks(&["restore"]).contains("puts them back when it ends"));
        sealing.kill().unwrap();
        sealing.wait().unwrap();
        assert_eq!((limit(), desk.at("clocks").exists()), ("400000".into(), true));
        if by_command {
            assert_eq!(clocks(&["restore"]), "1 limit was put back\n");
        } else {
            good(&feed(desk.seal(&with), b""));
        }
        assert_eq!((limit(), desk.at("clocks").exists()), ("3600000".into(), false));
    }
    let adaptive = feed(desk.seal(&with[..5]), b"");
    assert_eq!(adaptive.status.code(), Some(2));
    let nothing = ["--clocks", "--clocks-tree", "nowhere", "--policy", "lecpaes"];
    assert_eq!(code(&feed(desk.seal(&nothing), b"")), 1);
}

use std::net::{Shutdown, TcpListener, TcpStream};

/// Starts an opener that listens, and says where.
fn listening(desk: &Desk) -> (Child, String) {
    let mut child = desk.open(&["--listen", "127.0.0.1:0"]).spawn().unwrap();
    let mut said = Vec::new();
    let mut byte = [0];
    while !said.ends_with(b"\n") {
        child.stderr.as_mut().unwrap().read_exact(&mut byte).unwrap();
        said.push(byte[0]);
    }
    let address = String::from_utf8(said).unwrap().trim().rsplit(' ').next().unwrap().to_owned();
    (child, address)
}

#[test]
fn a_receiver_that_is_gone_is_an_error_however_it_went() {
    let desk = Desk::new();
    for silent in [true, false] {
        let (mut opening, address) = listening(&desk);
        let mut sealing =
            desk.seal(&["--framing", "lines", "--connect", &address]).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = sealing.stdin.take().unwrap();
        stdin.write_all(b"one\n").unwrap();
        opening.stdout.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();
        opening.kill().unwrap();
        opening.wait().unwrap();
        if !silent {
            let _ = stdin.write_all(b"two\n");
            drop(stdin);
            let output = sealing.wait_with_output().unwrap();
            assert_eq!(code(&output), 44);
            continue;
        }
        // The producer says nothing more, and its end does not come.
        let output = sealing.wait_with_output().unwrap();
        assert_eq!(code(&output), 44);
        assert!(String::from_utf8_lossy(&output.stderr).contains("the receiver is gone"));
        drop(stdin);
    }
    // One that cannot keep what it got is no better than one that is gone.
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut opening = desk.open(&["--listen", "127.0.0.1:0"]).stdout(full).spawn().unwrap();
    let mut said = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(opening.stderr.take().unwrap()), &mut said)
        .unwrap();
    let address = said.trim().rsplit(' ').next().unwrap();
    assert_eq!(code(&feed(desk.seal(&["--connect", address]), b"lost")), 44);
    assert_eq!(opening.wait().unwrap().code(), Some(43));
}

#[test]
fn a_receiver_that_only_ends_what_it_sends_gets_all_of_it() {
    let desk = Desk::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut sealing =
        desk.seal(&["--framing", "lines", "--connect", &address]).stdin(Stdio::piped()).spawn().unwrap();
    let (mut socket, _) = listener.accept().unwrap();
    socket.shutdown(Shutdown::Write).unwrap();
    let mut stdin = sealing.stdin.take().unwrap();
    stdin.write_all(b"one\n").unwrap();
    // Longer than it takes to be asked twice whether it is there.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    stdin.write_all(b"two\n").unwrap();
    drop(stdin);
    let mut sealed = Vec::new();
    socket.read_to_end(&mut sealed).unwrap();
    good(&sealing.wait_with_output().unwrap());
    assert_eq!(good(&feed(desk.open(&[]), &sealed)), b"one\ntwo\n");
}

#[test]
fn an_end_that_came_too_soon_is_not_taken_for_a_receipt() {
    let desk = Desk::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut sealing = desk.seal(&["--connect", &address]).stdin(Stdio::piped()).spawn().unwrap();
    let (socket, _) = listener.accept().unwrap();
    socket.shutdown(Shutdown::Write).unwrap();
    let mut stdin = sealing.stdin.take().unwrap();
    stdin.write_all(b"content").unwrap();
    drop(stdin);
    // Nothing is read here, and nothing more comes from here.
    let output = sealing.wait_with_output().unwrap();
    good(&output);
    assert!(String::from_utf8_lossy(&output.stderr).contains("unknown"), "{output:?}");
    drop(socket);
}

#[test]
fn probes_do_not_end_a_listening_opener() {
    let desk = Desk::new();
    let (opening, address) = listening(&desk);
    for sent in [&b""[..], b"GET / HTTP/1.0\r\n\r\n", b"\x8bwat"] {
        TcpStream::connect(&address).unwrap().write_all(sent).unwrap();
    }
    // One that stays and says nothing, and one that stays with a part.
    let _silent = TcpStream::connect(&address).unwrap();
    let mut part = TcpStream::connect(&address).unwrap();
    part.write_all(b"\x8bwa").unwrap();
    good(&feed(desk.seal(&["--connect", &address]), b"content"));
    let output = opening.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout), (Some(0), b"content".to_vec()));
}

#[test]
fn a_termination_is_obeyed_while_a_connection_is_not_answered() {
    let desk = Desk::new();
    // A queue for one, and no server that takes from it.
    let listener =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    rustix::net::bind(&listener, &any).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address: std::net::SocketAddr = rustix::net::getsockname(&listener).unwrap().try_into().unwrap();
    let wait = std::time::Duration::from_millis(300);
    let filling: Vec<_> = (0..4).map(|_| TcpStream::connect_timeout(&address, wait)).collect();
    assert!(filling.iter().any(Result::is_err), "the queue is full");
    let to = address.to_string();
    for more in [["seal", "-r", &desk.recipient], ["open", "-i", "key.txt"]] {
        let arguments = [&["stream"], &more[..], &["--connect", &to]].concat();
        let waiting = desk.command(&arguments).spawn().unwrap();
        std::thread::sleep(wait);
        terminate(&waiting);
        assert_eq!(code(&waiting.wait_with_output().unwrap()), 130);
    }
}

#[test]
fn a_file_and_a_stream_name_each_others_command() {
    let desk = Desk::new();
    let stream = feed(desk.seal(&[]), b"x");
    fs::write(desk.at("s"), &stream.stdout).unwrap();
    let opened = desk.command(&["open", "-q", "-i", "key.txt", "-o", "out", "s"]).output().unwrap();
    assert_eq!(code(&opened), 21);
    assert!(String::from_utf8_lossy(&opened.stderr).contains("`wattlock stream open`"));
    for format in [&["--format", "sealed"][..], &["--format", "age"], &["--format", "age", "-a"]] {
        let sealing = desk.command(&[&["seal", "-q", "-r", &desk.recipient], format].concat());
        let opened = feed(desk.open(&[]), &feed(sealing, b"x").stdout);
        assert_eq!(code(&opened), 21);
        assert!(String::from_utf8_lossy(&opened.stderr).contains("`wattlock open`"), "{format:?}");
    }
}

/// Two streams in one file: the first whole, or cut at any place behind its header.
#[test]
fn appended_streams_are_opened_one_after_the_other_also_behind_a_cut_one() {
    let desk = Desk::new();
    let seal = |content: &str| good(&feed(desk.seal(&["--frame", "6"]), content.as_bytes())).to_vec();
    let (first, second) = (seal("first\nlast\n"), seal("second\n"));
    let open = |input: &[u8]| feed(desk.open(&["--joined"]), input);
    let both = [&first[..], &second].concat();
    assert_eq!(code(&feed(desk.open(&[]), &both)), 34);
    assert_eq!(good(&open(&first)), b"first\nlast\n");
    assert_eq!(good(&open(&[&both[..], &both].concat())), b"first\nlast\nsecond\nfirst\nlast\nsecond\n");
    let header = seal("").len() - 20;
    let ends = (header..first.len() - 8).step_by(5).chain([header + 26]);
    for cut in ends {
        let output = open(&[&first[..cut], &second].concat());
        assert_eq!(code(&output), 36, "{cut}");
        assert!(
            [&b"second\n"[..], b"first\nsecond\n"].contains(&&output.stdout[..]),
            "{cut}: {:?}",
            output.stdout
        );
    }
    // What follows and is no stream is an error, and so is a damaged second.
    assert_eq!(code(&open(&[&first[..], b"something else altogether"].concat())), 21);
    let mut damaged = both.clone();
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(code(&open(&damaged)), 32);
}
