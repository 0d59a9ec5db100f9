//! `wattlock openssl` with the real `openssl` program and the real module, on files in a folder of the test's own.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// Debian's file in short: everything that matters is a comment.
const DISTRIBUTION: &str = "HOME = .\nopenssl_conf = openssl_init\nconfig_diagnostics = 1\noid_section = new_oids\n\n[ new_oids ]\ntsa_policy1 = 1.2.3.4.1\n\n[openssl_init]\n# providers = provider_sect\n\n# [default_sect]\n# activate = 1\n\n[ ca ]\ndefault_ca = CA_default\t\t# The default ca section\n";

/// The module beside the program under test; built if it is not there.
fn module() -> &'static Path {
    static MODULE: OnceLock<PathBuf> = OnceLock::new();
    MODULE.get_or_init(|| {
        let folder = Path::new(env!("CARGO_BIN_EXE_wattlock")).parent().unwrap();
        let module = folder.join("libwattlock_provider.so");
        if !module.is_file() {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["build", "--locked", "-p", "wattlock-provider", "--target-dir"]);
            cargo.arg(folder.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR"));
            if folder.ends_with("release") {
                cargo.arg("--release");
            }
            assert!(cargo.status().unwrap().success(), "the module cannot be built");
        }
        module
    })
}

/// A folder with one `openssl.cnf`.
struct Desk(tempfile::TempDir);

impl Desk {
    fn new(text: &str) -> Desk {
        module();
        let desk = Desk(tempfile::tempdir().unwrap());
        fs::write(desk.file(), text).unwrap();
        desk
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("openssl.cnf")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.file()).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        // Counters that the provider published in the programs that tried it.
        names.retain(|name| name != "telemetry");
        names.sort();
        names
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wattlock"));
        command.arg("openssl").args(arguments).arg("--config").arg(self.file());
        if arguments.contains(&"enable") && !arguments.contains(&"--module") {
            // Not the one that this machine may have installed.
            command.arg("--module").arg(module());
        }
        command.env("WATTLOCK_TELEMETRY_DIR", self.0.path().join("telemetry")).stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn enable(&self, arguments: &[&str]) {
        good(&self.run(&[&["enable", "--yes"], arguments].concat()));
    }

    /// What is wrong, by `check`.
    fn problems(&self) -> Vec<String> {
        let output = self.run(&["check", "--json"]);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let problems = report["problems"].as_array().unwrap().iter();
        let problems: Vec<String> = problems.map(|problem| problem.as_str().unwrap().to_owned()).collect();
        assert_eq!(output.status.code(), Some(if problems.is_empty() { 0 } else { 70 }));
        assert_eq!(said(&output).lines().count(), problems.len(), "one line a problem");
        problems
    }

    /// Providers that programs get under this file.
    fn providers(&self) -> String {
        let mut list = Command::new("openssl");
        let output = list.args(["list", "-providers"]).env("OPENSSL_CONF", self.file()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn good(output: &Output) {
    assert!(output.status.success(), "{}", said(output));
}

/// What one line said, of a command that refused. The module of these tests lies in a build folder, which is warned about.
fn refused(output: &Output) -> String {
    let words = said(output);
    let words: String =
        words.split_inclusive('\n').filter(|line| !line.starts_with("wattlock: warning: ")).collect();
    assert!(!output.status.success());
    assert_eq!(words.lines().count(), 1, "{words}");
    assert!(words.starts_with("wattlock: "), "{words}");
    words
}

#[test]
fn enabling_and_disabling_leave_every_byte_as_it_was() {
    for text in [DISTRIBUTION, "", "# no end", &DISTRIBUTION.replace('\n', "\r\n")] {
        let desk = Desk::new(text);
        fs::set_permissions(desk.file(), fs::Permissions::from_mode(0o640)).unwrap();
        desk.enable(&["--set", "telemetry=no"]);
        assert!(
            desk.providers().contains("Wattlock") && desk.providers().contains("Default"),
            "{}",
            desk.text()
        );
        assert_eq!(fs::metadata(desk.file()).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(desk.names(), ["openssl.cnf", "openssl.cnf.before-wattlock"]);
        assert_eq!(fs::read_to_string(desk.0.path().join("openssl.cnf.before-wattlock")).unwrap(), text);
        assert_eq!(desk.problems(), [""; 0]);
        good(&desk.run(&["disable", "--yes"]));
        assert_eq!(desk.text(), text);
        assert_eq!(desk.names(), ["openssl.cnf"], "nothing is left behind");
        assert!(!desk.providers().contains("Wattlock"));
    }
}

#[test]
fn enabling_twice_changes_nothing_and_keeps_what_was_set() {
    let desk = Desk::new(DISTRIBUTION);
    desk.enable(&["--set", "policy=eeca"]);
    let once = desk.text();
    desk.enable(&[]);
    assert_eq!(desk.text(), once);
    desk.enable(&["--set", "hold-us=50"]);
    assert!(desk.text().contains("policy = eeca\nhold-us = 50\n"), "{}", desk.text());
    assert_eq!(desk.text().matches("# BEGIN wattlock").count(), 1);
    good(&desk.run(&["disable", "--yes"]));
    assert_eq!(desk.text(), DISTRIBUTION);
}

#[test]
fn lines_that_somebody_adds_meanwhile_survive() {
    let desk = Desk::new(DISTRIBUTION);
    desk.enable(&[]);
    fs::write(desk.file(), format!("# first\n{}last = 1\n", desk.text())).unwrap();
    good(&desk.run(&["disable", "--yes"]));
    assert_eq!(desk.text(), format!("# first\n{DISTRIBUTION}last = 1\n"));
    assert_eq!(desk.names().len(), 2, "the backup is another text, so it stays");
}

#[test]
fn a_dry_run_shows_the_change_and_makes_none() {
    let desk = Desk::new(DISTRIBUTION);
    let output = desk.run(&["enable", "--dry-run"]);
    good(&output);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("+default_properties = ?provider=wattlock") && shown.contains("@@"), "{shown}");
    let removed = shown.lines().filter(|line| line.starts_with('-') && !line.starts_with("---")).count();
    assert_eq!(removed, 0, "no line of the file's goes");
    assert_eq!((desk.text().as_str(), desk.names().len()), (DISTRIBUTION, 1));
    desk.enable(&[]);
    let with = desk.text();
    let output = desk.run(&["disable", "--dry-run"]);
    good(&output);
    assert!(String::from_utf8(output.stdout).unwrap().contains("-# BEGIN wattlock"));
    assert_eq!(desk.text(), with);
}

#[test]
fn providers_and_properties_that_are_there_are_kept() {
    let desk = Desk::new(
        "openssl_conf = i\n[i]\nproviders = p\nalg_section = a\n[p]\ndefault = d\nlegacy = l\n[d]\nactivate = 1\n[l]\nactivate = 1\n[a]\ndefault_properties = ?fips=no\n",
    );
    desk.enable(&[]);
    assert!(desk.text().contains("\ndefault_properties = ?fips=no,?provider=wattlock\n"));
    let list = desk.providers();
    assert!(list.contains("Legacy") && list.contains("Wattlock") && list.contains("Default"), "{list}");
    let rival =
        Desk::new("openssl_conf = i\n[i]\nalg_section = a\n[a]\ndefault_properties = ?provider=other\n");
    assert!(refused(&rival.run(&["enable", "--yes"])).contains("?provider=other"));
}

#[test]
fn what_an_included_file_says_counts() {
    let desk = Desk::new("");
    let included = desk.0.path().join("more.cnf");
    fs::write(
        &included,
        "openssl_conf = i\n[i]\nproviders = p\n[p]\nbase = l\ndefault = l\n[l]\nactivate = 1\n",
    )
    .unwrap();
    fs::write(desk.file(), format!(".include {}\n", included.display())).unwrap();
    desk.enable(&[]);
    let list = desk.providers();
    assert!(list.contains("Base") && list.contains("Wattlock") && list.contains("Default"), "{list}");
    assert!(
        !desk.text().contains("openssl_conf") && desk.text().contains("[p]\nwattlock = "),
        "{}",
        desk.text()
    );
}

#[test]
fn a_module_that_does_not_load_changes_nothing() {
    let desk = Desk::new(DISTRIBUTION);
    let broken = desk.0.path().join("broken.so");
    fs::write(&broken, "no library").unwrap();
    let before = desk.names();
    let output = desk.run(&["enable", "--yes", "--module", broken.to_str().unwrap()]);
    assert!(refused(&output).contains("does not load"));
    assert_eq!(output.status.code(), Some(71));
    let output = desk.run(&["enable", "--yes", "--set", "engines=abacus"]);
    assert!(refused(&output).contains("abacus"), "{}", said(&output));
    assert_eq!((desk.text().as_str(), desk.names()), (DISTRIBUTION, before));
}

#[test]
fn a_file_that_works_only_beside_its_place_is_put_back() {
    let desk = Desk::new(DISTRIBUTION);
    // An `openssl` that finds no Wattlock once the file has its final name.
    let folder = tempfile::tempdir().unwrap();
    let wrapper = folder.path().join("openssl");
    let real = Command::new("sh").args(["-c", "command -v openssl"]).output().unwrap().stdout;
    let real = String::from_utf8(real).unwrap();
    let script = "#!/bin/sh\ncase \"$OPENSSL_CONF\" in */openssl.cnf) OPENSSL_CONF=/dev/null ;; esac\nexec ";
    fs::write(&wrapper, format!("{script}{} \"$@\"\n", real.trim())).unwrap();
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let output = desk.command(&["enable", "--yes"]).env("PATH", path).output().unwrap();
    assert!(refused(&output).contains("not with this file"));
    assert_eq!(desk.text(), DISTRIBUTION);
}

#[test]
fn what_cannot_be_changed_is_refused_in_one_line() {
    let desk = Desk::new(DISTRIBUTION);
    let told = |arguments: &[&str]| refused(&desk.run(&[&["enable"], arguments].concat()));
    assert!(told(&[]).contains("--yes"), "nobody at a terminal");
    assert!(told(&["--yes", "--set", "polcy=eeca"]).contains("policy is"));
    assert!(told(&["--yes", "--set", "hold-us=soon"]).contains("whole number"));
    assert!(told(&["--yes", "--module", "/no/such.so"]).contains("/no/such.so"));
    let other = Desk::new("");
    fs::remove_file(other.file()).unwrap();
    assert!(refused(&other.run(&["enable", "--yes"])).contains("no such file"));
    symlink(desk.file(), other.file()).unwrap();
    assert!(
        refused(&other.run(&["enable", "--yes"])).contains(desk.file().to_str().unwrap()),
        "the link's target"
    );
    fs::remove_file(other.file()).unwrap();
    fs::create_dir(other.file()).unwrap();
    assert!(refused(&other.run(&["enable", "--yes"])).contains("not a regular file"));
    let malformed = Desk::new("[open\n");
    assert!(refused(&malformed.run(&["enable", "--yes"])).contains("line 1"));
    for desk in [&desk, &malformed] {
        assert_eq!(desk.names(), ["openssl.cnf"]);
    }
}

#[test]
fn a_full_disk_is_told_and_leaves_nothing() {
    let desk = Desk::new(DISTRIBUTION);
    // No file may grow: writing fails as on a full disk.
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        "trap '' XFSZ; ulimit -f 0; exec \"$0\" openssl enable --yes --config \"$1\" 2>/dev/stdout | cat",
    ]);
    let output =
        shell.arg(env!("CARGO_BIN_EXE_wattlock")).arg(desk.file()).stdin(Stdio::null()).output().unwrap();
    let words = String::from_utf8(output.stdout).unwrap();
    assert!(words.contains("wattlock: "), "{words}");
    assert_eq!((desk.text().as_str(), desk.names()), (DISTRIBUTION, vec!["openssl.cnf".to_owned()]));
}

#[test]
fn somebody_without_the_right_to_read_or_write_is_told() {
    use std::os::unix::process::CommandExt;
    let desk = Desk::new(DISTRIBUTION);
    let copy = desk.0.path().join("wattlock");
    fs::copy(env!("CARGO_BIN_EXE_wattlock"), &copy).unwrap();
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    // Root may do everything, so root's part is played by another user.
    let root = fs::metadata("/proc/self").map(|own| std::os::unix::fs::MetadataExt::uid(&own)).unwrap() == 0;
    let run = || {
        let mut command = Command::new(&copy);
        command.args(["openssl", "enable", "--yes", "--config"]).arg(desk.file());
        command.arg("--module").arg(desk.0.path().join("m.so")).current_dir(desk.0.path());
        if root {
            command.uid(65534).gid(65534);
        }
        command.output().unwrap()
    };
    fs::write(desk.0.path().join("m.so"), "").unwrap();
    set(desk.0.path(), 0o555);
    let unwritable = run();
    set(&desk.file(), 0o000);
    let unreadable = run();
    set(desk.0.path(), 0o755);
    set(&desk.file(), 0o644);
    assert!(refused(&unwritable).contains("nothing can be written beside it"));
    assert!(refused(&unreadable).contains("openssl.cnf: Permission denied"));
    assert_eq!(desk.text(), DISTRIBUTION);
}

#[test]
fn check_names_each_problem_in_a_line() {
    let has = |desk: &Desk, words: &str| {
        let problems = desk.problems();
        assert!(problems.iter().any(|problem| problem.contains(words)), "{words}: {problems:?}");
    };
    let desk = Desk::new(DISTRIBUTION);
    has(&desk, "not enabled");
    desk.enable(&["--set", "policy=eeca"]);
    let text = desk.text();
    let write = |from: &str, to: &str| {
        assert!(text.contains(from));
        fs::write(desk.file(), text.replace(from, to)).unwrap();
    };
    write("policy = eeca", "polcy = eeca");
    has(&desk, "policy is");
    assert_eq!(desk.problems().len(), 1, "a name that nobody reads keeps nothing from loading");
    write("policy = eeca", "policy = fastest");
    has(&desk, "one of");
    assert_eq!(desk.problems().len(), 1, "the same is not told twice");
    write("policy = eeca", "engines = abacus");
    has(&desk, "does not load");
    write("libwattlock_provider.so", "gone.so");
    has(&desk, "the module is not there");
    write("default_properties = ?provider=wattlock", "default_properties = fips=yes,?provider=wattlock");
    has(&desk, "fips=yes");
    write("default_properties = ?provider=wattlock", "default_properties = ?fips=no");
    has(&desk, "do not prefer");
}

#[test]
fn check_tells_what_is_offered_what_not_and_why() {
    let desk = Desk::new(DISTRIBUTION);
    desk.enable(&["--set", "algorithms=gcm,ctr"]);
    let output = desk.run(&["check", "--json"]);
    good(&output);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["offered"], serde_json::json!(["gcm", "ctr"]));
    assert_eq!(report["not_offered"]["rsa"], "not asked for");
    assert_eq!(
        (&report["enabled"], &report["by_command"], &report["module_loads"]),
        (&true.into(), &true.into(), &true.into())
    );
    assert_eq!(report["versions"]["module"], report["versions"]["program"]);
    let output = desk.run(&["check"]);
    good(&output);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(
        shown.contains("offers         gcm, ctr") && shown.contains("does not offer rsa: not asked for"),
        "{shown}"
    );
}

#[test]
fn check_knows_which_programs_can_use_it() {
    let desk = Desk::new(DISTRIBUTION);
    desk.enable(&[]);
    let check = |program: &Path| desk.run(&["check", "--json", "--program", program.to_str().unwrap()]);
    let real = Command::new("sh").args(["-c", "command -v openssl"]).output().unwrap().stdout;
    let real = PathBuf::from(String::from_utf8(real).unwrap().trim());
    let output = check(&real);
    good(&output);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["programs"][real.to_str().unwrap()], "dynamically");
    // A header and nothing behind it is the smallest program that names no library.
    let mut header = vec![0_u8; 64];
    header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    header[16] = 2;
    header[18] = 62;
    header[20] = 1;
    header[52] = 64;
    let alone = desk.0.path().join("static");
    fs::write(&alone, &header).unwrap();
    let output = check(&alone);
    assert_eq!(output.status.code(), Some(70));
    assert!(refused_lines(&output).contains("statically linked"));
    assert!(refused_lines(&check(&desk.file())).contains("not an ELF program"));
}

fn refused_lines(output: &Output) -> String {
    assert!(!output.status.success());
    said(output)
}

/// The program where `make install` would put it, with the module where it would put that, if at all.
fn installed(folder: &Path, with_module: bool) -> PathBuf {
    let program = folder.join("bin/wattlock");
    let library = folder.join("lib/wattlock/libwattlock_provider.so");
    for (from, to) in [(Path::new(env!("CARGO_BIN_EXE_wattlock")), &program), (module(), &library)] {
        if to == &program || with_module {
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(from, to).unwrap();
        }
    }
    program
}

#[test]
fn enable_takes_what_is_installed_without_a_warning_and_gives_up_a_build_folder_for_it() {
    let desk = Desk::new(DISTRIBUTION);
    let prefix = tempfile::tempdir().unwrap();
    let program = installed(prefix.path(), true);
    let library = prefix.path().join("lib/wattlock/libwattlock_provider.so").canonicalize().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(["openssl", "enable", "--yes", "--config"]).arg(desk.file()).args(arguments);
        command.env("WATTLOCK_TELEMETRY_DIR", desk.0.path().join("telemetry"));
        let output = command.stdin(Stdio::null()).output().unwrap();
        good(&output);
        output
    };
    // From a build folder first, which is what a newcomer does.
    let first = run(&["--module", module().to_str().unwrap()]);
    let warned = said(&first);
    assert!(warned.contains("lies in a build folder") && warned.contains("`make install`"), "{warned}");
    assert_eq!(warned.lines().count(), 2, "{warned}");
    assert!(desk.text().contains(module().to_str().unwrap()), "{}", desk.text());
    let second = run(&[]);
    assert_eq!(said(&second), "");
    assert!(desk.text().contains(&format!("module = {}\n", library.display())), "{}", desk.text());
    assert_eq!(desk.problems(), [""; 0]);
    assert_eq!(said(&run(&[])), "", "enabled already, and nothing to warn about");
}

#[test]
fn enable_warns_before_it_asks_or_shows_and_changes_nothing_then() {
    let desk = Desk::new(DISTRIBUTION);
    for arguments in [&["enable", "--dry-run"][..], &["enable"]] {
        let words = said(&desk.run(&[arguments, &["--module", module().to_str().unwrap()]].concat()));
        assert!(words.lines().next().unwrap().contains("warning: "), "{words}");
    }
    assert_eq!(desk.text(), DISTRIBUTION);
    let lost = tempfile::tempdir().unwrap();
    let program = installed(lost.path(), false);
    let output = Command::new(program)
        .args(["openssl", "enable", "--dry-run", "--config"])
        .arg(desk.file())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    // Where this machine has Wattlock installed, that one is found.
    if !["/usr/local/lib/wattlock", "/usr/lib/wattlock"].iter().any(|folder| Path::new(folder).is_dir()) {
        assert!(refused(&output).contains("make install"), "{}", said(&output));
    }
}

#[test]
fn check_says_how_to_undo_a_module_that_is_gone() {
    let desk = Desk::new(DISTRIBUTION);
    let copy = desk.0.path().join("libwattlock_provider.so");
    fs::copy(module(), &copy).unwrap();
    desk.enable(&["--module", copy.to_str().unwrap()]);
    fs::remove_file(&copy).unwrap();
    let problems = desk.problems();
    assert!(
        problems.iter().any(|one| one.contains("is not there") && one.contains("wattlock openssl disable")),
        "{problems:?}"
    );
    good(&desk.run(&["disable", "--yes"]));
    assert_eq!(desk.text(), DISTRIBUTION);
}

#[test]
fn what_the_former_file_does_not_give_is_not_laid_at_our_door() {
    // The machine has no fips module that works; base encodes and decodes, and nothing else.
    let text = "openssl_conf = a\n[a]\nproviders = b\n[b]\nfips = f\nbase = c\n[c]\nactivate = 1\n[f]\nmodule = /nowhere.so\nactivate = 0\n";
    let desk = Desk::new(text);
    let output = desk.run(&["enable", "--yes"]);
    let words = said(&output);
    assert_eq!(output.status.code(), Some(71), "{words}");
    assert!(words.contains("no provider of the file works even without Wattlock"), "{words}");
    assert_eq!(desk.text(), text);
}

#[test]
fn programs_with_settings_of_their_own_are_told_from_those_that_read_the_file() {
    let desk = Desk::new("");
    desk.enable(&[]);
    let compile = |name: &str, text: &str| {
        let (source, program) = (desk.0.path().join("program.c"), desk.0.path().join(name));
        fs::write(&source, text).unwrap();
        let mut command = Command::new("cc");
        command
            .arg("-w")
            .arg("-o")
            .args([&program, &source])
            .args(["-Wl,--no-as-needed", "-l:libcrypto.so.3"]);
        assert!(command.status().unwrap().success());
        program
    };
    let call = |function: &str| {
        format!("int {function}(void *, const char *); int main(void) {{ return {function}(0, \"x\"); }}\n")
    };
    let usual = compile("usual", "int main(void) { return 0; }\n");
    let section = compile("section", &call("OPENSSL_INIT_set_config_appname"));
    let other = compile("other", &call("OPENSSL_INIT_set_config_filename"));
    let node =
        compile("node", "const char name[] = \"nodejs_conf\"; int main(void) { return name[1] == 0; }\n");
    for (program, wanted) in [
        (&usual, None),
        (&section, Some("a section of its own")),
        (&other, Some("a configuration of its own")),
        (&node, Some("the section nodejs_conf")),
    ] {
        let output = desk.run(&["check", "--program", program.to_str().unwrap()]);
        let words = said(&output);
        assert_eq!(output.status.code(), Some(if wanted.is_some() { 70 } else { 0 }), "{words}");
        assert!(wanted.is_none_or(|wanted| words.contains(wanted)), "{words}");
    }
}
