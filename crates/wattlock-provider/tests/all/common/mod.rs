//! The real `openssl` program with the built provider, and without it.
#![allow(clippy::unwrap_used, reason = "a test that meets a failure has failed")]
#![allow(dead_code, reason = "every test program uses its own part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A folder with a configuration that loads the provider, one that does not, and the files of one test.
pub struct Host {
    folder: tempfile::TempDir,
}

impl Host {
    pub fn new() -> Host {
        let folder = tempfile::tempdir().unwrap();
        let module = module();
        let config = format!(
            "openssl_conf = openssl_init\n\
             [openssl_init]\nproviders = providers\nalg_section = properties\n\
             [properties]\ndefault_properties = ?provider=wattlock\n\
             [providers]\ndefault = default_section\nwattlock = wattlock_section\n\
             [default_section]\nactivate = 1\n\
             [wattlock_section]\nmodule = {}\nactivate = 1\npause = always\n\
             [req]\ndistinguished_name = name\nx509_extensions = extensions\n\
             [name]\n[extensions]\nbasicConstraints = CA:TRUE\n",
            module.display()
        );
        let plain = "[req]\ndistinguished_name = name\nx509_extensions = extensions\n[name]\n\
                     [extensions]\nbasicConstraints = CA:TRUE\n";
        std::fs::write(folder.path().join("with.cnf"), config).unwrap();
        std::fs::write(folder.path().join("without.cnf"), plain).unwrap();
        Host { folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap_or_default()
    }

    /// A program in this folder, with the provider or without it.
    pub fn command(&self, provider: bool, program: &str) -> Command {
        let mut command = Command::new(program);
        let config = if provider { "with.cnf" } else { "without.cnf" };
        command.current_dir(self.folder.path()).env("OPENSSL_CONF", self.path(config)).stdin(Stdio::null());
        command
    }

    /// Runs `openssl` with these arguments, separated by spaces.
    pub fn openssl(&self, provider: bool, arguments: &str) -> Output {
        self.command(provider, "openssl").args(arguments.split_whitespace()).output().unwrap()
    }

    /// The same, which must succeed; what it printed.
    pub fn good(&self, provider: bool, arguments: &str) -> String {
        let output = self.openssl(provider, arguments);
        assert!(
            output.status.success(),
            "provider {provider}: openssl {arguments}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs it with and without the provider: exit status and what is printed are the same. Returns what is printed.
    pub fn same(&self, arguments: &str) -> String {
        let (with, without) = (self.openssl(true, arguments), self.openssl(false, arguments));
        let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(
            (with.status.code(), text(&with)),
            (without.status.code(), text(&without)),
            "openssl {arguments}\nwith: {}\nwithout: {}",
            String::from_utf8_lossy(&with.stderr),
            String::from_utf8_lossy(&without.stderr)
        );
        text(&with)
    }
}

/// The provider that was built together with this test.
pub fn module() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.parent().unwrap();
    let places = [folder, folder.parent().unwrap()].map(|folder| folder.join("libwattlock_provider.so"));
    let found = places.iter().find(|place| Path::exists(place));
    found.expect("the provider is built with its tests").clone()
}

/// The same with emulated cards, built when a test first asks for it.
pub fn emulated() -> PathBuf {
    static BUILT: std::sync::OnceLock<()> = std::sync::OnceLock::new();
    let folder = module().parent().unwrap().to_owned();
    let profile = if folder.ends_with("deps") { folder.parent().unwrap() } else { &folder };
    BUILT.get_or_init(|| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--locked", "-p", "wattlock-emulated", "--lib", "--target-dir"]);
        cargo.arg(profile.parent().unwrap());
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert!(cargo.current_dir(folder).status().unwrap().success(), "wattlock-emulated cannot be built");
    });
    profile.join("libwattlock_emulated.so")
}

/// Reasons of the error queue in what `openssl` printed: the numbers between the first and the second colon.
pub fn reasons(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let code = |line: &str| {
        line.split_once(":error:").and_then(|(_, rest)| rest.split(':').next().map(str::to_owned))
    };
    text.lines().filter_map(code).collect()
}

/// A port that was free a moment ago, below those that the kernel gives to connections (ip(7)): one of these would be gone as soon as
/// anybody on the machine connects from it.
pub fn port() -> u16 {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let first = range.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(32_768);
    let listens = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port)).ok();
    let below = (first > 21_000).then(|| {
        let candidates = std::iter::repeat_with(|| std::process::id() * 61 + TRIED.fetch_add(1, Relaxed));
        candidates
            .map(|i| 20_000 + (i % (first - 20_000)) as u16)
            .take(1000)
            .find(|port| listens(*port).is_some())
    });
    below.flatten().unwrap_or_else(|| listens(0).unwrap().local_addr().unwrap().port())
}
