//! `wattlock sum` beside coreutils' own programs: the same bytes on standard output, the same exit codes, and one line
//! on standard error for each thing that is wrong.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use wattlock_core::samples;

const ALGORITHMS: [&str; 4] = ["sha1", "sha256", "sha384", "sha512"];

struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Desk {
        Desk(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.0.path().join(name.as_ref())
    }

    fn put(&self, name: impl AsRef<OsStr>, content: &[u8]) {
        fs::write(self.at(name), content).unwrap();
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.0.path())
            .env("LC_ALL", "C")
            .env("WATTLOCK_PROFILE", "/nonexistent/profile.json")
            .env("WATTLOCK_TELEMETRY_DIR", "/nonexistent");
        command
    }

    fn fed(&self, mut command: Command, input: &[u8]) -> Output {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        let input = input.to_vec();
        // A program that reads nothing closes the pipe.
        let feeder = std::thread::spawn(move || drop(pipe.write_all(&input)));
        let output = child.wait_with_output().unwrap();
        feeder.join().unwrap();
        output
    }

    fn ours<A: AsRef<OsStr>>(&self, algorithm: &str, arguments: &[A], input: &[u8]) -> Output {
        let mut command = self.command(env!("CARGO_BIN_EXE_wattlock"));
        command.args(["sum", "-a", algorithm]).args(arguments);
        self.fed(command, input)
    }

    fn theirs<A: AsRef<OsStr>>(&self, algorithm: &str, arguments: &[A], input: &[u8]) -> Output {
        let mut command = self.command(&format!("{algorithm}sum"));
        command.args(arguments);
        self.fed(command, input)
    }

    /// Runs both, and returns what both printed, with how often each complained.
    fn same<A: AsRef<OsStr>>(&self, algorithm: &str, arguments: &[A], input: &[u8]) -> (Vec<u8>, i32, usize) {
        let [ours, theirs] =
            [self.ours(algorithm, arguments, input), self.theirs(algorithm, arguments, input)];
        let shown: Vec<_> = arguments.iter().map(|argument| argument.as_ref().to_owned()).collect();
        let said = String::from_utf8_lossy(&ours.stderr).into_owned();
        let want = String::from_utf8_lossy(&theirs.stderr).into_owned();
        assert_eq!(
            String::from_utf8_lossy(&ours.stdout),
            String::from_utf8_lossy(&theirs.stdout),
            "{algorithm} {shown:?}: {said} / {want}"
        );
        assert!(ours.stdout == theirs.stdout, "{shown:?}");
        assert_eq!(ours.status.code(), theirs.status.code(), "{algorithm} {shown:?}: {said} / {want}");
        // What `Try --help` adds is coreutils' own.
        let lines = |text: &str| text.lines().filter(|line| !line.starts_with("Try ")).count();
        assert_eq!(lines(&said), lines(&want), "{algorithm} {shown:?}: {said} / {want}");
        assert!(said.lines().all(|line| line.starts_with("wattlock: ")), "{said}");
        (ours.stdout, ours.status.code().unwrap(), lines(&said))
    }
}

fn odd_names() -> Vec<OsString> {
    let names: [&[u8]; 11] = [
        b"plain",
        b" leading",
        b"*star",
        b"trailing ",
        b"tab\tin",
        b"new\nline",
        b"two\n\nlines\n",
        b"(par) = en",
        b"not\xffutf8",
        b"-dash",
        b"#hash",
    ];
    names.iter().map(|name| OsStr::from_bytes(name).to_owned()).collect()
}

#[test]
fn every_form_of_every_hash_is_coreutils_own() {
    let desk = Desk::new();
    let mut names = odd_names();
    names.push(OsStr::from_bytes(b"back\\slash").to_owned());
    names.push(OsStr::from_bytes(b"re\rturn\\n").to_owned());
    for (index, name) in names.iter().enumerate() {
        desk.put(name, &samples::noise(index as u64, index * 97));
    }
    for algorithm in ALGORITHMS {
        for form in
            [&[][..], &["-b"], &["-t"], &["--tag"], &["-z"], &["--tag", "-z"], &["-tb"], &["-b", "-t"]]
        {
            let mut arguments: Vec<OsString> = form.iter().map(OsString::from).collect();
            arguments.push("--".into());
            arguments.extend(names.iter().cloned());
            let (printed, code, lines) = desk.same(algorithm, &arguments, b"");
            assert!(!printed.is_empty() && (code, lines) == (0, 0));
        }
    }
}

#[test]
fn lengths_around_blocks_batches_and_buffers_are_hashed_right() {
    let desk = Desk::new();
    let mut names: Vec<String> = Vec::new();
    let mib = 1 << 20;
    let lengths = [0, 1, 55, 56, 63, 64, 65, 111, 112, 119, 120, 127, 128, 65_535, 65_536, 65_537];
    let large = [256 * 1024, mib - 1, mib, mib + 1, 3 * mib + 7, 9 * mib];
    for (index, len) in lengths.iter().chain(&large).chain(&lengths).chain(&lengths).enumerate() {
        let name = format!("{index}.{len}");
        desk.put(&name, &samples::noise(index as u64, *len));
        names.push(name);
    }
    for algorithm in ALGORITHMS {
        let (printed, ..) = desk.same(algorithm, &names, b"");
        assert_eq!(printed.split(|byte| *byte == b'\n').count(), names.len() + 1);
    }
}

#[test]
fn standard_input_is_read_where_its_name_stands_and_once() {
    let desk = Desk::new();
    desk.put("file", b"content");
    let none: [&str; 0] = [];
    let long = samples::noise(1, 3_000_001);
    for input in [&b""[..], b"abc", &long] {
        desk.same("sha256", &none, input);
        desk.same("sha256", &["-"], input);
        desk.same("sha256", &["file", "-", "file", "-"], input);
    }
    // Closed is not empty.
    let closed = |program: &str, arguments: &str| {
        let mut command = desk.command("sh");
        command.args(["-c", &format!("exec \"$0\" {arguments} <&-"), program]);
        command.output().unwrap()
    };
    let ours = closed(env!("CARGO_BIN_EXE_wattlock"), "sum file - file");
    let theirs = closed("sha256sum", "file - file");
    assert_eq!((ours.stdout, ours.status.code()), (theirs.stdout, theirs.status.code()));
}

#[test]
fn files_that_cannot_be_read_cost_a_line_each_and_the_rest_is_summed() {
    let desk = Desk::new();
    for name in ["a", "b", "c"] {
        desk.put(name, name.as_bytes());
    }
    fs::create_dir(desk.at("folder")).unwrap();
    symlink("nowhere", desk.at("dangling")).unwrap();
    symlink("loop", desk.at("loop")).unwrap();
    symlink("a", desk.at("link")).unwrap();
    let arguments =
        ["a", "gone", "b", "folder", "dangling", "loop", "/proc/self/mem", "link", "a/b", "c", ""];
    let (printed, code, lines) = desk.same("sha512", &arguments, b"");
    assert_eq!((printed.split(|byte| *byte == b'\n').count(), code, lines), (5, 1, 7));
    desk.same("sha512", &["gone"], b"");
    // Root reads everything.
    fs::set_permissions(desk.at("b"), fs::Permissions::from_mode(0o0)).unwrap();
    desk.same("sha512", &["a", "b", "c"], b"");
}

#[test]
fn pipes_devices_and_proc_are_read_to_their_end() {
    let desk = Desk::new();
    desk.put("file", b"content");
    desk.same(
        "sha1",
        &["/proc/version", "/dev/null", "file", "/proc/cpuinfo", "/sys/kernel/mm/ksm/run"],
        b"",
    );
    let shell = |program: &str| {
        let mut command = desk.command("bash");
        let script = "mkfifo p q; (seq 1 300000 >p; seq 5 >q) & $0 file p q file <(seq 9) <(seq 70000) | sed s@/dev/fd/.*@@; rm p q; wait";
        command.args(["-c", script, program]);
        command.output().unwrap()
    };
    let ours = shell(&format!("{} sum", env!("CARGO_BIN_EXE_wattlock")));
    let theirs = shell("sha256sum");
    assert!(theirs.status.success() && theirs.stdout.len() > 300);
    assert_eq!(String::from_utf8_lossy(&ours.stdout), String::from_utf8_lossy(&theirs.stdout));
}

#[test]
fn folders_are_walked_in_the_order_of_names_and_links_in_them_are_left_out() {
    let desk = Desk::new();
    for folder in ["tree", "tree/a", "tree/a.b", "tree/z", "tree/empty"] {
        fs::create_dir(desk.at(folder)).unwrap();
    }
    let files = ["tree/0", "tree/a/x", "tree/a.b/y", "tree/z/nested", "tree/é", "tree/z/new\nline", "beside"];
    for name in files {
        desk.put(name, name.as_bytes());
    }
    symlink("0", desk.at("tree/link")).unwrap();
    symlink("../tree", desk.at("tree/z/around")).unwrap();
    symlink("tree", desk.at("to-tree")).unwrap();
    let order = ["tree/0", "tree/a/x", "tree/a.b/y", "tree/z/nested", "tree/z/new\nline", "tree/é", "beside"];
    let theirs = desk.theirs("sha256", &order, b"");
    let ours = desk.ours("sha256", &["-r", "tree", "beside"], b"");
    assert_eq!(String::from_utf8_lossy(&ours.stdout), String::from_utf8_lossy(&theirs.stdout));
    assert!(ours.status.success());
    let ours = desk.ours("sha256", &["-r", "to-tree/", "."], b"");
    let text = String::from_utf8(ours.stdout).unwrap();
    assert!(
        text.contains("  to-tree/a/x\n") && text.contains("  ./tree/a/x\n") && text.contains("  ./beside\n")
    );
    assert_eq!(text.lines().count(), 6 + 7);
    // A folder that is gone, one that may not be read, and a mistake: each a line, and the rest is there.
    let ours = desk.ours("sha256", &["-r", "tree/z", "gone", "beside"], b"");
    assert_eq!((ours.status.code(), String::from_utf8(ours.stdout).unwrap().lines().count()), (Some(1), 3));
    assert_eq!(String::from_utf8(ours.stderr).unwrap(), "wattlock: gone: No such file or directory\n");
    let ours = desk.ours("sha256", &["tree"], b"");
    assert_eq!(String::from_utf8(ours.stderr).unwrap(), "wattlock: tree: Is a directory\n");
}

#[test]
fn lists_are_checked_as_coreutils_checks_them() {
    let desk = Desk::new();
    let names = odd_names();
    for (index, name) in names.iter().enumerate() {
        desk.put(name, &samples::noise(index as u64, 100 + index));
    }
    for algorithm in ALGORITHMS {
        for form in [&[][..], &["-b"], &["--tag"]] {
            let mut arguments: Vec<OsString> = form.iter().map(OsString::from).collect();
            arguments.push("--".into());
            arguments.extend(names.iter().cloned());
            let list = desk.ours(algorithm, &arguments, b"").stdout;
            desk.put("list", &list);
            let (_, code, lines) = desk.same(algorithm, &["-c", "list"], b"");
            assert_eq!((code, lines), (0, 0), "{algorithm} {form:?}");
            desk.same(algorithm, &["-c"], &list);
            desk.same(algorithm, &["-c", "--quiet", "list", "list"], b"");
            let upper: Vec<u8> = list
                .split_inclusive(|byte| *byte == b'\n')
                .flat_map(|line| line.strip_suffix(b"\n").unwrap_or(line).iter().copied().chain(*b"\r\n"))
                .collect();
            desk.same(algorithm, &["-c"], &upper);
        }
    }
    desk.put("gone", b"soon");
    desk.put("other", b"one");
    let list = desk.ours("sha256", &["plain", "gone", "other", "*star"], b"").stdout;
    desk.put("list", &list);
    desk.put("good", &desk.ours("sha256", &["plain"], b"").stdout);
    fs::remove_file(desk.at("gone")).unwrap();
    desk.put("other", b"two");
    let options = ["--quiet", "--status", "-w", "--strict", "--ignore-missing"];
    for set in 0..1 << options.len() {
        let mut arguments = vec!["-c"];
        arguments.extend(
            options.iter().enumerate().filter(|(at, _)| set >> at & 1 == 1).map(|(_, option)| option),
        );
        for list in ["list", "good", "nothing", "folder"] {
            desk.same("sha256", &[&arguments[..], &[list, "good"]].concat(), b"");
        }
    }
}

#[test]
fn malformed_lists_are_told_of_as_coreutils_tells() {
    let desk = Desk::new();
    desk.put("a", b"a");
    desk.put(" a", b" a");
    desk.put("name with ) = in it", b"x");
    let hash =
        |name: &str| String::from_utf8(desk.ours("sha256", &[name], b"").stdout).unwrap()[..64].to_owned();
    let (a, b) = (hash("a"), hash(" a"));
    let lists: Vec<Vec<u8>> = vec![
        Vec::new(),
        b"\n\n# only a comment\n".to_vec(),
        b"nonsense\n".to_vec(),
        format!("{a}  a\nnonsense\n").into_bytes(),
        format!("{a}  a").into_bytes(),
        format!("   {a}  a\n\t{a} *a\n").into_bytes(),
        format!("{a}\n{a} \n{a}  \n{a} a\n").into_bytes(),
        format!("{a} a\n{a}  a\n{b}  a\n").into_bytes(),
        format!("{a}  a\n{a} a\n{b}   a\n").into_bytes(),
        format!("{}  a\n{a}0  a\n{}g  a\n", &a[1..], &a[1..]).into_bytes(),
        format!("{}  a\n", a.to_uppercase()).into_bytes(),
        format!("\\{a}  a\n\\{a}  a\\n\n\\{a}  a\\x\n\\{a}  a\\\n").into_bytes(),
        format!("SHA256 (a) = {a}\nSHA256(a)= {a}\nSHA256  (a) = {a}\nSHA256 (a)={a}\nSHA256 (a) {a}\n")
            .into_bytes(),
        format!("SHA1 (a) = {a}\nSHA256 a = {a}\nSHA256 (a = {a}\nSHA256 () = {a}\nSHA256\n").into_bytes(),
        format!("SHA256 (name with ) = in it) = {a}\n\\SHA256 (a\\n) = {a}\n").into_bytes(),
        format!("{a}  a\0b\n").into_bytes(),
        format!("{a}  -\n{a}  a\n").into_bytes(),
        [&samples::noise(7, 5000)[..], b"\n"].concat(),
    ];
    for (index, list) in lists.iter().enumerate() {
        desk.put("list", list);
        for options in [&["-c"][..], &["-c", "-w"], &["-c", "--strict"], &["-cw", "--status", "--strict"]] {
            desk.same("sha256", &[options, &["list"]].concat(), b"");
            if index != 16 {
                desk.same("sha256", options, list);
            }
        }
        desk.same("sha1", &["-c", "list"], b"");
    }
    // The same lines again, in an order that a mixture of forms is made of.
    desk.put("one", &lists[7]);
    desk.put("two", &lists[8]);
    desk.same("sha256", &["-c", "two", "one", "missing", "two"], b"");
    // A line longer than any name is malformed.
    desk.put("long", format!("{a}  {}\n{a}  a\n", "x".repeat(70_000)).as_bytes());
    let ours = desk.ours("sha256", &["-c", "long"], b"");
    assert_eq!((ours.stdout, ours.status.code()), (b"a: OK\n".to_vec(), Some(0)));
    assert_eq!(ours.stderr, b"wattlock: WARNING: 1 line is improperly formatted\n");
}

#[test]
fn options_that_make_no_sense_together_are_refused_with_coreutils_words() {
    let desk = Desk::new();
    desk.put("a", b"a");
    for arguments in [
        &["--tag", "-t", "a"][..],
        &["-c", "-z", "a"],
        &["-c", "--tag", "a"],
        &["-c", "-b", "a"],
        &["--ignore-missing", "a"],
        &["--status", "a"],
        &["-w", "a"],
        &["--quiet", "a"],
        &["--strict", "a"],
    ] {
        let (printed, code, _) = desk.same("sha256", arguments, b"");
        assert_eq!((printed.len(), code), (0, 1));
        let [ours, theirs] = [desk.ours("sha256", arguments, b""), desk.theirs("sha256", arguments, b"")];
        let words = |text: &[u8]| {
            let text = String::from_utf8_lossy(text).into_owned();
            text.lines().next().and_then(|line| line.split_once(": ")).map(|(_, words)| words.to_owned())
        };
        assert_eq!(words(&ours.stderr), words(&theirs.stderr));
    }
}

#[test]
fn a_file_that_changes_while_it_is_read_is_summed_to_whatever_its_end_is() {
    let desk = Desk::new();
    let block = samples::noise(3, 1 << 20);
    for name in ["grows", "shrinks"] {
        desk.put(name, &block.repeat(24));
    }
    desk.put("last", b"last");
    for _ in 0..3 {
        let mut command = desk.command(env!("CARGO_BIN_EXE_wattlock"));
        command
            .args(["sum", "grows", "shrinks", "vanishes", "last"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        desk.put("vanishes", &block.repeat(2));
        let child = command.spawn().unwrap();
        let mut grows = fs::OpenOptions::new().append(true).open(desk.at("grows")).unwrap();
        for round in (0..12).rev() {
            grows.write_all(&block).unwrap();
            let shrinks = fs::OpenOptions::new().write(true).open(desk.at("shrinks")).unwrap();
            shrinks.set_len(round << 20).unwrap();
        }
        fs::remove_file(desk.at("vanishes")).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        // The file that vanishes was seen or was not.
        let lines: Vec<&str> = text.lines().collect();
        let complained = String::from_utf8(output.stderr).unwrap().lines().count();
        assert_eq!((lines.len() + complained, output.status.code()), (4, Some(complained as i32)));
        assert!(lines[0].ends_with("  grows") && lines[1].ends_with("  shrinks"));
        assert!(lines[lines.len() - 1].ends_with("  last"));
    }
    // Nothing moves now.
    desk.same("sha256", &["grows", "shrinks", "last"], b"");
}

#[test]
fn a_reader_that_leaves_ends_it_and_a_full_disk_is_told() {
    let desk = Desk::new();
    let names: Vec<String> = (0..3000).map(|index| format!("{index}")).collect();
    names.iter().for_each(|name| desk.put(name, name.as_bytes()));
    let mut command = desk.command(env!("CARGO_BIN_EXE_wattlock"));
    let mut child =
        command.arg("sum").args(&names).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success() && output.stderr.is_empty());
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = desk.command(env!("CARGO_BIN_EXE_wattlock"));
    let output = command.arg("sum").args(&names).stdout(full).output().unwrap();
    assert!(!output.status.success());
    assert_eq!(String::from_utf8(output.stderr).unwrap().lines().count(), 1);
}

#[test]
fn a_walk_without_a_folder_is_refused_and_does_not_wait_for_standard_input() {
    let desk = Desk::new();
    let output = desk.ours("sha256", &["-r"], b"");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{said}");
    assert!(said.contains("-r needs a folder"), "{said}");
}
