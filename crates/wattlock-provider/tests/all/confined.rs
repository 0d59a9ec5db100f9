//! Programs that confine themselves: what works behind a seccomp filter with OpenSSL's own provider works with ours. The
//! program is `confined/confined.c`, which names the call that stopped it.
#![allow(clippy::unwrap_used, reason = "a test that meets a failure has failed")]
#![cfg(target_arch = "x86_64")]

use crate::common;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::Host;

const WORKS: &[&str] = &[
    "gcm",
    "ctr",
    "cbc",
    "chacha",
    "kept",
    "rand",
    "rsa",
    "rsa-decrypt",
    "ecdsa",
    "ed25519",
    "ecdh",
    "x25519",
    "derive",
    "hkdf",
    "tls12",
    "tls13",
    "tls12-ec",
    "tls13-ec",
];

/// What `confined` itself needs to tell how it went: write, exit_group, exit, rt_sigreturn.
const OWN: &[&str] = &["1", "231", "60", "15"];
/// The lists begin with what the C library's malloc may need wherever it is, and with the kernel's random numbers, which
/// OpenSSL asks for as well: brk, mmap, munmap, futex, getrandom.
const ANYWHERE: &[&str] = &["12", "9", "11", "202", "318"];
/// What starting a thread takes: sigaction, sigprocmask, clone3, mprotect, madvise, set_robust_list, gettid, rseq.
const THREAD: &[&str] = &["13", "14", "435", "10", "28", "273", "186", "334"];

/// OpenSSH's lists (`sandbox-seccomp-filter.c` of 9.2 and 10): the first part in common.
const OPENSSH: &[&str] = &[
    // lstat, fstat, open, openat, newfstatat, stat, shmget, shmat, shmdt, statx: refused
    "6!13", "5!13", "2!13", "257!13", "262!13", "4!13", "29!13", "30!13", "67!13", "332!13",
    // brk, clock_gettime, close, exit, exit_group, geteuid, getpgid, getpid, getrandom, gettid, gettimeofday, getuid
    "12", "228", "3", "60", "231", "107", "121", "39", "318", "186", "96", "102",
    // mprotect without execution, mremap, munmap, nanosleep, clock_nanosleep, ppoll, poll, pselect6, read, rt_sigprocmask
    "10@2~3", "25", "11", "35", "230", "271", "7", "270", "0", "14",
    // select, shutdown, time, write, writev
    "23", "48", "201", "1", "20",
];
/// futex, madvise, mmap without execution.
const OPENSSH_9: &[&str] = &["202", "28", "9@2~3"];
/// Some operations of futex; advice of six sorts, others refused; private memory only, other maps refused; getsockopt,
/// getsockname, getpeername, uname.
const OPENSSH_10: &[&str] = &[
    "202@1=128",
    "202@1=129",
    "202@1=137",
    "28@2=0",
    "28@2=8",
    "28@2=4",
    "28@2=10",
    "28@2=16",
    "28@2=18",
    "28!22",
    "9@3~1048626@2~3",
    "9!22",
    "55",
    "51",
    "52",
    "63",
];
/// vsftpd's (`seccompsandbox.c`), before login; it has neither futex nor getrandom, which OpenSSL needs by itself.
const VSFTPD: &[&str] = &[
    "0",
    "1",
    "9@2=3@3=34",
    "10@2~1",
    "11",
    "12",
    "25!38",
    "96",
    "15",
    "219",
    "3",
    "231",
    "45@3=2",
    "35",
    "39",
    "48",
    "72@1=3",
    "13",
    "37",
    "47@2=0",
    "54@1=6@2=1",
    "202",
    "318",
];
/// The calls of systemd's `@default` and `@basic-io` (`systemctl service-log` names them), none that opens a file.
const SYSTEMD: &[&str] = &[
    "158", "12", "229", "228", "230", "60", "231", "202", "274", "108", "104", "107", "39", "110", "111",
    "318", "97", "102", "186", "324", "9", "10", "11", "35", "34", "302", "219", "334", "15", "204", "24",
    "273", "218", "201", "3", "32", "33", "8", "0", "1", "17", "18", "19", "20", "295", "296",
];
/// What tor's sandbox allows without an argument (`sandbox.c`), except for opening files, which it does by name.
const TOR: &[&str] = &[
    "12", "228", "3", "231", "5", "202", "39", "318", "96", "102", "9@3=34", "10", "11", "25", "0", "15",
    "14", "1", "20", "28@2=4", "186", "273", "201", "7", "232", "233", "98", "97", "302", "60", "38", "37",
    "35",
];

struct Confined {
    host: Host,
    program: PathBuf,
}

impl Confined {
    fn new() -> Confined {
        let host = Host::new();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/confined/confined.c");
        let program = host.path("confined");
        let mut command = Command::new("cc");
        command.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"]).args([&program, &source]);
        assert!(command.args(["-lssl", "-lcrypto", "-lpthread"]).status().unwrap().success());
        for (name, key) in [
            ("rsa", "RSA -pkeyopt rsa_keygen_bits:2048"),
            ("p256", "EC -pkeyopt ec_paramgen_curve:P-256"),
            ("p384", "EC -pkeyopt ec_paramgen_curve:P-384"),
            ("p521", "EC -pkeyopt ec_paramgen_curve:P-521"),
            ("x25519", "X25519"),
            ("ed25519", "ED25519"),
        ] {
            host.good(false, &format!("genpkey -algorithm {key} -out {name}.key"));
        }
        for name in ["rsa", "p256"] {
            host.good(
                false,
                &format!("req -x509 -key {name}.key -out {name}.crt -days 2 -subj /CN=localhost"),
            );
        }
        std::fs::create_dir(host.path("empty")).unwrap();
        std::fs::create_dir(host.path("counters")).unwrap();
        Confined { host, program }
    }

    fn run(&self, provider: bool, place: &str, work: &str, end: &str, rules: &[&str]) -> Output {
        let mut command = self.host.command(provider, self.program.to_str().unwrap());
        command
            .env("EMPTY", self.host.path("empty"))
            .env("WATTLOCK_TELEMETRY_DIR", self.host.path("counters"));
        command.args([place, work, end]).args(OWN).args(rules).output().unwrap()
    }

    /// The calls that work needs without the provider, beside those given.
    fn needs(&self, place: &str, work: &str, end: &str, given: &[&str]) -> Option<Vec<String>> {
        let mut rules: Vec<String> = given.iter().map(|rule| (*rule).to_owned()).collect();
        for _ in 0..60 {
            let output =
                self.run(false, place, work, end, &rules.iter().map(String::as_str).collect::<Vec<_>>());
            match stopped(&output) {
                Some(call) => rules.push(call),
                None => return output.status.success().then_some(rules),
            }
        }
        None
    }

    /// Both with the same rules; how many works were good without the provider.
    fn same(&self, place: &str, end: &str, rules: &[&str]) -> usize {
        let mut good = 0;
        for work in WORKS {
            let without = self.run(false, place, work, end, rules);
            if !without.status.success() {
                continue;
            }
            good += 1;
            let with = self.run(true, place, work, end, rules);
            assert!(with.status.success(), "{place} {work} {end}: {}", told(&with));
        }
        good
    }
}

fn stopped(output: &Output) -> Option<String> {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let number = text.lines().find_map(|line| line.strip_prefix("call "))?.parse::<u32>().ok()?;
    (output.status.code() == Some(99)).then(|| number.to_string())
}

fn told(output: &Output) -> String {
    format!("{} {}", output.status, String::from_utf8_lossy(&output.stderr))
}

#[test]
fn behind_the_tightest_filter_nothing_is_missed_that_openssl_does_not_miss() {
    let confined = Confined::new();
    for place in ["here", "forked", "used", "fork", "thread"] {
        for end in ["exit", "_exit"] {
            for work in WORKS {
                let given = if place == "thread" { [ANYWHERE, THREAD].concat() } else { ANYWHERE.to_vec() };
                let rules = confined.needs(place, work, end, &given).expect("it works without the provider");
                let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
                let with = confined.run(true, place, work, end, &rules);
                assert!(with.status.success(), "{place} {work} {end}: {}", told(&with));
            }
        }
    }
}

#[test]
fn a_provider_that_is_loaded_behind_a_filter_makes_no_counters_and_needs_what_loading_needs() {
    let confined = Confined::new();
    for work in WORKS {
        // What loading a library takes: openat, newfstatat, fstat, read, pread64, close, lseek, access, mprotect, madvise,
        // readlink, fcntl; the user's id, as OpenSSL asks.
        let given = [
            "257", "262", "5", "0", "17", "3", "8", "21", "10", "28", "89", "72", "102", "104", "107", "108",
        ];
        let rules = confined.needs("before", work, "exit", &[ANYWHERE, &given].concat()).unwrap();
        let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
        let with = confined.run(true, "before", work, "exit", &rules);
        assert!(with.status.success(), "{work}: {}", told(&with));
    }
    assert_eq!(std::fs::read_dir(confined.host.path("counters")).unwrap().count(), 0);
}

#[test]
fn behind_filters_of_known_programs_all_works_that_does_without_the_provider() {
    let confined = Confined::new();
    let lists = [
        ("OpenSSH 9.2", [OPENSSH, OPENSSH_9].concat()),
        ("OpenSSH 10", [OPENSSH, OPENSSH_10].concat()),
        ("vsftpd", VSFTPD.to_vec()),
        ("systemd", SYSTEMD.to_vec()),
        ("tor", TOR.to_vec()),
    ];
    for (name, rules) in lists {
        for place in ["here", "forked", "used"] {
            for end in ["exit", "_exit"] {
                let good = confined.same(place, end, &rules);
                assert!(
                    good >= WORKS.len() / 2,
                    "{name}, {place}, {end}: {good} works go without the provider"
                );
            }
        }
    }
}

#[test]
fn without_file_systems_descriptors_and_processes_all_works() {
    let confined = Confined::new();
    // Everything is answered; what fails then is what the limits say.
    let every: Vec<String> = (0..470).map(|call| call.to_string()).collect();
    let every: Vec<&str> = every.iter().map(String::as_str).collect();
    assert_eq!(confined.same("limits", "exit", &every), WORKS.len());
    // SAFETY: a call without arguments.
    if unsafe { libc::geteuid() } == 0 {
        assert_eq!(confined.same("chroot", "exit", &every), WORKS.len());
    } else {
        eprintln!("skipped: only root can chroot");
    }
}

#[test]
fn counters_of_a_child_are_its_parents_and_the_file_is_taken_away_by_the_next() {
    let confined = Confined::new();
    let config = String::from_utf8(confined.host.read("with.cnf")).unwrap();
    // On any machine, whether it is faster there or not.
    confined.host.write("with.cnf", format!("{config}[wattlock_section]\nalgorithms = gcm\n").as_bytes());
    let every: Vec<String> = (0..470).map(|call| call.to_string()).collect();
    let every: Vec<&str> = every.iter().map(String::as_str).collect();
    let files = || {
        let entries = std::fs::read_dir(confined.host.path("counters")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        // What those before left is in the totals.
        paths.filter(|path| !path.to_str().unwrap().contains("totals")).collect::<Vec<_>>()
    };
    for _ in 0..3 {
        assert!(confined.run(true, "forked", "gcm", "exit", &every).status.success());
        let [file] = &files()[..] else { panic!("{:?}", files()) };
        let mut bytes = std::fs::read(file).unwrap();
        assert_eq!(bytes[0], b'-', "it says that it ended");
        bytes[0] = b'{';
        let snapshot = wattlock::telemetry::parse(&bytes).unwrap();
        let sealed: u64 =
            snapshot.cells.iter().filter(|cell| cell.kind.contains("gcm")).map(|cell| cell.requests).sum();
        assert_eq!(sealed, 280, "70 times two keys, both ways: {:?}", snapshot.cells);
    }
}

/// A copy of the program that has more rights than its caller, which is `nobody`.
#[test]
fn a_set_uid_program_reads_no_variable_and_touches_no_file() {
    // SAFETY: a call without arguments.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: only root can make a set-uid program of another user's");
        return;
    }
    let confined = Confined::new();
    let folder = confined.host.path("");
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(&folder, 0o755);
    // The loader looks for libraries of a set-uid program in few places, and OpenSSL reads the system's configuration only:
    // the copy loads the configuration that is built into it.
    let source = folder.join("elevated.c");
    let module = common::module();
    let text = format!(
        "#include <openssl/provider.h>\n#include <openssl/rand.h>\n#include <openssl/evp.h>\n#include <unistd.h>\n\
         int main(void) {{ unsigned char b[16];\n\
         if (!OSSL_PROVIDER_load(NULL, \"{}\") || !OSSL_PROVIDER_load(NULL, \"default\")) return 2;\n\
         EVP_set_default_properties(NULL, \"?provider=wattlock\");\n\
         return RAND_bytes(b, 16) != 1 || geteuid() != 0; }}\n",
        module.display()
    );
    std::fs::write(&source, text).unwrap();
    let program = folder.join("elevated");
    let built = Command::new("cc").arg("-o").args([&program, &source]).arg("-lcrypto").status();
    assert!(built.unwrap().success());
    open(&program, 0o4755);
    let made = std::fs::metadata(&program).unwrap();
    assert_eq!((made.uid(), made.mode() & 0o4000), (0, 0o4000));

    let targets = folder.join("targets");
    std::fs::create_dir(&targets).unwrap();
    for name in ["99999-hardening.conf", "4194303-0", "4194303-1"] {
        std::fs::write(targets.join(name), b"{\"format\":1}").unwrap();
        open(&targets.join(name), 0o600);
    }
    let pipe = folder.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let run = |variable: &str, value: &Path| {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new("timeout");
        command.arg("20").arg(&program).env_clear().env(variable, value).env("PATH", "/usr/bin:/bin");
        command.uid(65534).gid(65534).current_dir("/").output().unwrap()
    };
    for (variable, value) in [
        ("WATTLOCK_TELEMETRY_DIR", &targets),
        ("WATTLOCK_TELEMETRY_DIR", &folder.join("new")),
        ("WATTLOCK_PROFILE", &pipe),
        ("XDG_CACHE_HOME", &folder.join("cache")),
        ("HOME", &folder.join("home")),
    ] {
        let output = run(variable, value);
        if output.status.code() == Some(2) {
            eprintln!("skipped: nobody may not read {}: {}", module.display(), told(&output));
            return;
        }
        assert!(output.status.success(), "{variable}: {}", told(&output));
    }
    assert_eq!(std::fs::read_dir(&targets).unwrap().count(), 3, "nothing was removed, nothing made");
    assert!(!folder.join("new").exists() && !folder.join("cache").exists() && !folder.join("home").exists());
}

#[test]
fn every_login_through_opensshs_sandbox_is_as_good_as_without_the_provider() {
    let host = Host::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/test/logins.sh");
    let output = Command::new(script).arg(host.path("with.cnf")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.code() == Some(77) {
        eprintln!("{}", said.trim());
        return;
    }
    assert!(output.status.success() && said.contains("45 of 45 logins"), "{said}{}", told(&output));
}

/// vsftpd with its own filter and TLS. Its list has no getrandom, which OpenSSL 3 needs in a child: where it fails without
/// the provider there is nothing to compare.
#[test]
fn vsftpd_in_its_sandbox_does_what_it_does_without_the_provider() {
    if !Path::new("/usr/sbin/vsftpd").exists() {
        eprintln!("skipped: no vsftpd here");
        return;
    }
    let confined = Confined::new();
    let host = &confined.host;
    std::fs::set_permissions(host.path(""), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::create_dir(host.path("files")).unwrap();
    host.write("files/file", b"a file\n");
    let fetched = |provider: bool| {
        let port = common::port();
        let here = |name: &str| host.path(name).display().to_string();
        let configuration = format!(
            "listen=YES\nlisten_address=127.0.0.1\nlisten_port={port}\nbackground=NO\nanonymous_enable=YES\nanon_root={}\n\
             allow_anon_ssl=YES\nssl_enable=YES\nrequire_ssl_reuse=NO\nrsa_cert_file={}\nrsa_private_key_file={}\n\
             seccomp_sandbox=YES\nsecure_chroot_dir={}\nftp_username=nobody\n",
            here("files"),
            here("rsa.crt"),
            here("rsa.key"),
            here("empty")
        );
        host.write("vsftpd.conf", configuration.as_bytes());
        let mut server =
            host.command(provider, "/usr/sbin/vsftpd").arg(host.path("vsftpd.conf")).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(500));
        let url = format!("ftp://127.0.0.1:{port}/file");
        let output = Command::new("curl").args(["-sk", "--ssl-reqd", "--max-time", "20", &url]).output();
        server.kill().unwrap();
        server.wait().unwrap();
        output.is_ok_and(|output| output.stdout == b"a file\n")
    };
    if !fetched(false) {
        eprintln!("skipped: vsftpd in its sandbox fails without the provider, too");
        return;
    }
    assert!(fetched(true));
}
