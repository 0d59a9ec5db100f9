//! `wattlock top`: what it sees of a program that works in lanes, and how it leaves a terminal, whatever ends it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use wattlock::own_engines;
use wattlock::policy::{Ask, Choice, EngineId, Policy, Weather};
use wattlock_core::{EngineClass, Item, Nanos, known_answers};

const PROGRAM: &str = env!("CARGO_BIN_EXE_wattlock");

fn top(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.arg("top").args(arguments).env("WATTLOCK_TELEMETRY_DIR", folder.join("telemetry"));
    command.env("WATTLOCK_PROFILE", folder.join("profile.json")).stdin(Stdio::null()).output().unwrap()
}

/// Gives everything to lanes.
struct Lanes;

impl Policy for Lanes {
    fn name(&self) -> &'static str {
        "lanes"
    }

    fn choose(&mut self, ask: &Ask, _: &Weather, _: Nanos) -> Choice {
        Choice { count: ask.count, ..Choice::now(EngineId(2)) }
    }
}

/// No test by itself: the program that is looked at, which works in lanes until its standard input ends. It counts
/// where its environment says.
#[test]
#[ignore = "a program for another test"]
fn works_in_lanes() {
    let engines = own_engines();
    let lanes = engines.iter().map(|engine| engine.description()).find(|one| one.class == EngineClass::Lanes);
    let Some(lanes) = lanes else { return };
    let kind = lanes.inline.iter().find(|kind| kind.is_asymmetric()).unwrap();
    let builder = wattlock::Runtime::builder().engines(engines.clone()).program("evil\u{202e}\u{1b}[2Jone");
    let runtime = builder.own_policy("lanes", |_| Box::new(Lanes)).build().unwrap();
    let mut dispatcher = runtime.dispatcher();
    let ended = std::thread::spawn(|| std::io::stdin().read_line(&mut String::new()));
    println!("\nworks");
    while !ended.is_finished() {
        let mut requests: Vec<_> = (0..8).map(|_| known_answers(kind).swap_remove(0).request).collect();
        let mut items: Vec<Item<'_>> = requests.iter_mut().map(|request| Item::new(request.view())).collect();
        dispatcher.run_all(&mut items);
        assert!(items.iter().all(|item| item.result.is_ok()));
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

#[test]
fn once_sees_a_program_that_works_in_lanes_and_its_rate() {
    if own_engines().len() < 3 {
        eprintln!("skipped: no lanes on this CPU");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "top::works_in_lanes", "--ignored", "--nocapture"])
        .env("WATTLOCK_TELEMETRY_DIR", folder.path().join("telemetry"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(said.by_ref().map_while(Result::ok).any(|line| line == "works"));
    // The first batch waits for the known answers.
    let seen = (0..50).find_map(|_| {
        let output = top(folder.path(), &["--once", "--json", "--interval", "0.5"]);
        assert!(output.status.success(), "{output:?}");
        let seen: Value = serde_json::from_slice(&output.stdout).unwrap();
        seen["programs"]
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["operations_per_s"].as_f64().is_some_and(|rate| rate > 0.0))
            .then_some(seen)
    });
    let table = top(folder.path(), &["--once", "--interval", "0.2"]);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    drop(said);
    let seen = seen.expect("the program was seen at work");
    assert_eq!(seen["schema"], 1);
    assert!(seen["seconds"].as_f64().unwrap() >= 0.5, "{seen}");
    let one = &seen["programs"][0];
    assert_eq!(one["pids"][0], child.id());
    assert_eq!(
        (&one["lanes_share"], one["program"].as_str().unwrap().contains('\u{1b}')),
        (&Value::from(1.0), false)
    );
    let (rate, work) = (one["operations_per_s"].as_f64().unwrap(), &one["work"][0]);
    assert!(rate > 0.0, "{seen}");
    assert!(work["engine"] == "lanes" && work["mean_ns"].as_f64().unwrap() > 0.0, "{seen}");
    assert!(one["mean_batch"].as_f64().unwrap() > 1.0, "{seen}");
    assert!(one["saved_cpu_s_per_s"].is_f64(), "the built-in table has the kind: {seen}");
    let table = String::from_utf8(table.stdout).unwrap();
    let row = table.lines().nth(1).unwrap();
    assert!(row.starts_with("evil\u{fffd}\u{fffd}[2Jone") && row.contains(" 100 % "), "{table}");
    assert!(!table.contains(|c: char| (c.is_control() && c != '\n') || c == '\u{202e}'), "{table:?}");
}

#[test]
fn without_a_screen_it_says_what_to_use() {
    let folder = tempfile::tempdir().unwrap();
    for (words, code) in [(&[][..], 2), (&["--json"], 2), (&["--interval", "0"], 2), (&["--once"], 0)] {
        let output = top(folder.path(), words);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {output:?}");
    }
    let said = top(folder.path(), &[]);
    assert!(String::from_utf8_lossy(&said.stderr).contains("--once") && said.stdout.is_empty(), "{said:?}");
    let found = top(folder.path(), &["--once", "--json", "--interval", "0.1"]);
    let found: Value = serde_json::from_slice(&found.stdout).unwrap();
    // Root sees other users' programs, too: none of them is in this folder.
    let own = |one: &Value| one["pids"].as_array().unwrap().contains(&std::process::id().into());
    assert!(!found["programs"].as_array().unwrap().iter().any(own), "{found}");
}

/// Runs the program on a terminal of its own, has something done once it has drawn, and says in JSON how it ended.
const ON_A_TERMINAL: &str = r#"
import fcntl, json, os, pty, select, signal, struct, subprocess, sys, termios, time
program, act, term = sys.argv[1:4]
master, slave = pty.openpty()
def size(rows, columns):
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
size(24, 80)
before = termios.tcgetattr(slave)
owner = act != "hang-up of a terminal that is not its own"
if act.startswith("background"):
    # This process is the shell: it gives the terminal away and takes it back.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
def begin():
    if act.startswith("background"):
        os.setpgid(0, 0)
        if act != "background from the start":
            os.tcsetpgrp(0, os.getpgrp())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        return
    os.setsid()
    if owner:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
child = subprocess.Popen([program, "top", "--interval", "0.1"], stdin=slave, stdout=slave, stderr=slave,
                         preexec_fn=begin, env=dict(os.environ, TERM=term))
said = b""
def until(what, seconds=30):
    global said
    end = time.time() + seconds
    while what not in said and time.time() < end and child.poll() is None:
        if select.select([master], [], [], 0.05)[0]:
            said += os.read(master, 65536)
    return what in said
def again(what):
    global said
    said = b""
    return until(what)
if act == "background from the start":
    # It draws when it is put into the foreground, though nothing tells it so. By then it waits, or was stopped.
    while "wattlock-look" not in [open(f"/proc/{child.pid}/task/{task}/comm").read().strip()
                                  for task in os.listdir(f"/proc/{child.pid}/task")]:
        if os.waitpid(child.pid, os.WUNTRACED | os.WNOHANG)[0]:
            break
        time.sleep(0.01)
    os.tcsetpgrp(slave, child.pid)
drew = until(b"wattlock top")
raw = not termios.tcgetattr(slave)[3] & termios.ICANON
facts = {}
restored = None
if act == "q":
    os.write(master, b"q")
elif act == "control-c":
    os.write(master, b"\x03")
elif act.isdecimal():
    child.send_signal(int(act))
elif act.startswith("hang-up"):
    os.close(slave)
    os.close(master)
elif act == "stop":
    os.write(master, b"\x1a")
    facts["stopped"] = os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
    facts["restored_meanwhile"] = termios.tcgetattr(slave) == before
    child.send_signal(signal.SIGCONT)
    facts["drew_again"] = again(b"wattlock top")
    facts["raw_again"] = not termios.tcgetattr(slave)[3] & termios.ICANON
    child.send_signal(signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    termios.tcsetattr(slave, termios.TCSANOW, before)
    child.send_signal(signal.SIGCONT)
    facts["drew_after_sigstop"] = again(b"wattlock top")
    os.write(master, b"q")
elif act.startswith("background"):
    if act == "background after SIGSTOP":
        child.send_signal(signal.SIGSTOP)
    else:
        os.write(master, b"\x1a")
    facts["stopped"] = os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
    os.tcsetpgrp(slave, os.getpgrp())
    termios.tcsetattr(slave, termios.TCSANOW, before)
    child.send_signal(signal.SIGCONT)
    child.send_signal(signal.SIGTERM)
    # A process that touches the terminal is stopped here, again and again.
    status = os.waitpid(child.pid, os.WUNTRACED)[1]
    facts["ended"] = os.WIFEXITED(status) and os.WEXITSTATUS(status)
    if os.WIFSTOPPED(status):
        os.kill(child.pid, signal.SIGKILL)
    else:
        child.returncode = facts["ended"]
elif act == "size":
    size(10, 40)
    child.send_signal(signal.SIGWINCH)
    facts["drew_again"] = again(b"wattlock top")
    size(3, 20)
    child.send_signal(signal.SIGWINCH)
    facts["too_small"] = again(b"24x5;")
    size(65535, 65535)
    child.send_signal(signal.SIGWINCH)
    facts["huge"] = again(b"wattlock top")
    size(24, 80)
    child.send_signal(signal.SIGWINCH)
    facts["drew_last"] = again(b"wattlock top")
    os.write(master, b"q")
elif act == "stuck":
    # Nobody reads what it draws, until the terminal takes nothing more.
    end = time.time() + 20
    while time.time() < end and child.poll() is None:
        child.send_signal(signal.SIGWINCH)
        time.sleep(0.01)
        if not select.select([], [slave], [], 0)[1]:
            facts["full"] = True
            break
    child.send_signal(signal.SIGTERM)
    facts["ended_while_stuck"] = False
    end = time.time() + 20
    while time.time() < end and not facts["ended_while_stuck"]:
        facts["ended_while_stuck"] = child.poll() is not None
        time.sleep(0.02)
end = time.time() + 20
while child.poll() is None and time.time() < end:
    if not act.startswith("hang-up") and select.select([master], [], [], 0.05)[0]:
        said += os.read(master, 65536)
if child.poll() is None:
    child.kill()
    child.wait()
    facts["had_to_be_killed"] = True
if not act.startswith("hang-up"):
    while select.select([master], [], [], 0.2)[0]:
        said += os.read(master, 65536)
    restored = termios.tcgetattr(slave) == before
facts.update(drew=drew, raw=raw, code=child.returncode, restored=restored, said=said.decode(errors="replace"))
print(json.dumps(facts))
"#;

fn on_a_terminal(act: &str, term: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new("python3")
        .args(["-c", ON_A_TERMINAL, PROGRAM, act, term])
        .env("WATTLOCK_TELEMETRY_DIR", folder.path().join("telemetry"))
        .env("WATTLOCK_PROFILE", folder.path().join("profile.json"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{act}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_terminal_is_what_it_was_whatever_ends_it() {
    // What the kernel sends for a fault, or ends a program with at once, cannot be heeded; what does not end one is not.
    let not_heeded = [
        libc::SIGKILL,
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGILL,
        libc::SIGFPE,
        libc::SIGSTOP,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
        libc::SIGCONT,
        libc::SIGCHLD,
        libc::SIGURG,
        libc::SIGWINCH,
    ];
    // Of the 31 of real time some; two more are the C library's own.
    let real_time = [libc::SIGRTMIN(), libc::SIGRTMAX()];
    let signals = (1..32).filter(|signal| !not_heeded.contains(signal)).chain(real_time);
    let acts = [("q".to_owned(), 0), ("control-c".to_owned(), 130)].into_iter();
    for (act, code) in acts.chain(signals.map(|signal| (signal.to_string(), 130))) {
        let seen = on_a_terminal(&act, "xterm-256color");
        assert_eq!((&seen["drew"], &seen["raw"]), (&Value::from(true), &Value::from(true)), "{act}: {seen}");
        assert_eq!(
            (&seen["code"], &seen["restored"]),
            (&Value::from(code), &Value::from(true)),
            "{act}: {seen}"
        );
        let said = seen["said"].as_str().unwrap();
        let (begun, ended) = (said.rfind("\x1b[?1049h").unwrap(), said.rfind("\x1b[?25h\x1b[?1049l"));
        assert!(ended.is_some_and(|ended| ended > begun), "{act}: {seen}");
    }
}

#[test]
fn a_terminal_that_goes_away_or_takes_nothing_more_is_an_end() {
    for act in ["hang-up", "hang-up of a terminal that is not its own"] {
        let seen = on_a_terminal(act, "xterm");
        assert_eq!((&seen["drew"], &seen["code"]), (&Value::from(true), &Value::from(130)), "{act}: {seen}");
    }
    let seen = on_a_terminal("stuck", "xterm");
    assert_eq!(
        (&seen["full"], &seen["ended_while_stuck"]),
        (&Value::from(true), &Value::from(true)),
        "{seen}"
    );
    assert_eq!(seen["restored"], true, "{seen}");
}

#[test]
fn it_stops_and_goes_on_and_follows_the_size() {
    let seen = on_a_terminal("stop", "xterm");
    for fact in ["stopped", "restored_meanwhile", "drew_again", "raw_again", "drew_after_sigstop", "restored"]
    {
        assert_eq!(seen[fact], true, "{fact}: {seen}");
    }
    assert_eq!(seen["code"], 0, "{seen}");
    let seen = on_a_terminal("size", "xterm");
    for fact in ["drew_again", "too_small", "huge", "drew_last", "restored"] {
        assert_eq!(seen[fact], true, "{fact}: {seen}");
    }
}

#[test]
fn in_the_background_it_touches_no_terminal_and_can_be_ended() {
    for act in ["background", "background after SIGSTOP", "background from the start"] {
        let seen = on_a_terminal(act, "xterm");
        for fact in ["drew", "raw", "stopped", "restored"] {
            assert_eq!(seen[fact], true, "{act}: {fact}: {seen}");
        }
        assert_eq!(seen["ended"], 130, "{act}: {seen}");
    }
}

#[test]
fn a_terminal_without_a_screen_is_refused() {
    for term in ["dumb", ""] {
        let seen = on_a_terminal("none", term);
        assert_eq!(seen["code"], 2, "{seen}");
        let said = seen["said"].as_str().unwrap();
        assert!(said.contains("--once") && !said.contains('\x1b'), "{seen}");
    }
}
