//! `make install` and `make uninstall` on a tree of the test's own: what lies where, and what is refused.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::desk::{self, Desk, skipped};

/// A build folder with files that stand for what is built, and a root to install into.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Tree {
        let tree = Tree(tempfile::tempdir().unwrap());
        for built in [
            "release/wattlock",
            "release/wattlock-bench",
            "release/wattlock-lab",
            "release/libwattlock_provider.so",
            "nginx/ngx_http_wattlock_module.so",
        ] {
            tree.write(&format!("my target/{built}"), built);
        }
        tree
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    /// `make what`, with these variables set on its command line.
    fn make(&self, what: &str, variables: &[&str]) -> Output {
        let mut make = Command::new("make");
        make.arg("--no-print-directory").arg("--silent").arg(what).args(variables);
        make.arg(format!("DESTDIR={}", self.path("root").display()));
        make.env("CARGO_TARGET_DIR", self.path("my target")).env_remove("PREFIX").env_remove("MAKEFLAGS");
        make.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).output().unwrap()
    }

    /// Every file under the root, with the permissions that it has, and every link with its target.
    fn files(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut left = vec![self.path("root")];
        while let Some(folder) = left.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_dir() {
                    left.push(entry.path());
                } else {
                    let path = entry.path();
                    let shown = path.strip_prefix(self.path("root")).unwrap().display();
                    // Metadata of an entry is a link's own.
                    found.push(match fs::read_link(&path) {
                        Ok(target) => format!("link /{shown} -> {}", target.display()),
                        Err(_) => {
                            let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
                            format!("{mode:o} /{shown}")
                        }
                    });
                }
            }
        }
        found.sort();
        found
    }
}

fn good(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What a refusal said in its own line; make adds one about itself.
fn refused(output: &Output) -> String {
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let own: Vec<&str> = said.lines().filter(|line| !line.starts_with("make")).collect();
    assert_eq!(own.len(), 1, "{said}");
    own[0].to_owned()
}

#[test]
fn what_install_puts_uninstall_takes_and_nothing_else() {
    let tree = Tree::new();
    tree.write("root/usr/local/bin/other", "");
    let before = tree.files();
    good(&tree.make("install", &[]));
    let mut wanted = vec![
        "644 /usr/local/include/wattlock.h",
        "644 /usr/local/lib/systemd/system/wattlock-exporter.service",
        "644 /usr/local/lib/systemd/system/wattlock@.service",
        "644 /usr/local/lib/wattlock/libwattlock_provider.so",
        "644 /usr/local/lib/wattlock/ngx_http_wattlock_module.so",
        "755 /usr/local/bin/wattlock",
        "755 /usr/local/bin/wattlock-bench",
        "755 /usr/local/bin/wattlock-lab",
        "755 /usr/local/lib/wattlock/recover.py",
        "link /usr/local/sbin/mount.wattlock -> ../bin/wattlock",
        &before[0],
    ];
    wanted.sort_unstable();
    assert_eq!(tree.files(), wanted);
    let module =
        fs::read_to_string(tree.path("root/usr/local/lib/wattlock/ngx_http_wattlock_module.so")).unwrap();
    assert_eq!(module, "nginx/ngx_http_wattlock_module.so");
    let called = fs::read_to_string(tree.path("root/usr/local/sbin/mount.wattlock")).unwrap();
    assert_eq!(called, "release/wattlock", "mount(8) finds the program through the link");
    good(&tree.make("install", &[]));
    assert_eq!(tree.files(), wanted, "a second time changes nothing");
    good(&tree.make("uninstall", &[]));
    assert_eq!(tree.files(), before);
    assert!(!tree.path("root/usr/local/lib/wattlock").exists() && tree.path("root/usr/local/lib").exists());
    assert_eq!(good(&tree.make("uninstall", &[])), "", "there is nothing left to say");
}

#[test]
fn the_library_for_gpus_comes_with_header_package_and_kernels() {
    let tree = Tree::new();
    // Kernels serve the program without the library; header and package would not.
    tree.write("my target/gpu/wattlock.sm_90.cubin", "kernels");
    tree.write("my target/gpu/build.log", "");
    good(&tree.make("install", &[]));
    let of_gpu = |tree: &Tree| -> Vec<String> {
        let mut files = tree.files();
        files.retain(|file| ["gpu", "python"].iter().any(|word| file.contains(word)));
        files
    };
    assert_eq!(of_gpu(&tree), ["644 /usr/local/lib/wattlock/gpu/wattlock.sm_90.cubin"]);
    tree.write("my target/release/libwattlock_gpu.so", "library");
    good(&tree.make("install", &[]));
    let found = of_gpu(&tree);
    for wanted in
        ["include/wattlock/gpu.h", "lib/wattlock/libwattlock_gpu.so", "lib/wattlock/gpu/wattlock.sm_90.cubin"]
    {
        assert!(found.contains(&format!("644 /usr/local/{wanted}")), "{wanted}: {found:?}");
    }
    assert!(
        found.contains(&"644 /usr/local/lib/wattlock/python/wattlock/__init__.py".to_owned()),
        "{found:?}"
    );
    // As an interpreter leaves it.
    tree.write("root/usr/local/lib/wattlock/python/wattlock/__pycache__/x.pyc", "");
    good(&tree.make("uninstall", &[]));
    assert_eq!(tree.files(), [""; 0]);
    assert!(!tree.path("root/usr/local/lib/wattlock").exists());
    assert!(!tree.path("root/usr/local/include/wattlock").exists());
}

#[test]
fn a_prefix_is_where_everything_goes_and_must_be_whole() {
    let tree = Tree::new();
    good(&tree.make("install", &["PREFIX=/usr"]));
    assert!(tree.path("root/usr/lib/wattlock/libwattlock_provider.so").exists());
    assert!(!tree.path("root/usr/local").exists());
    let service = fs::read_to_string(tree.path("root/usr/lib/systemd/system/wattlock@.service")).unwrap();
    let own =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../systemd/wattlock@.service"))
            .unwrap();
    assert!(own.contains("ExecStart=/usr/local/bin/wattlock mount "), "what is replaced is there");
    assert_eq!(service, own.replace("/usr/local/bin/", "/usr/bin/"));
    good(&tree.make("uninstall", &["PREFIX=/usr"]));
    assert_eq!(tree.files(), [""; 0]);
    assert!(refused(&tree.make("install", &["PREFIX=here"])).contains("not an absolute path"));
}

#[test]
fn somebody_elses_file_among_ours_stays_with_its_folder() {
    let tree = Tree::new();
    good(&tree.make("install", &[]));
    tree.write("root/usr/local/lib/wattlock/theirs.so", "");
    good(&tree.make("uninstall", &[]));
    assert_eq!(tree.files(), ["644 /usr/local/lib/wattlock/theirs.so"]);
}

#[test]
fn what_is_still_in_use_is_not_taken_away_but_by_force() {
    let tree = Tree::new();
    good(&tree.make("install", &[]));
    let installed = tree.files().len();
    for (file, line) in [
        ("etc/ssl/openssl.cnf", "module = /usr/local/lib/wattlock/libwattlock_provider.so\n"),
        ("etc/nginx/nginx.conf", "load_module \"/usr/local/lib/wattlock/ngx_http_wattlock_module.so\";\n"),
        (
            "etc/nginx/modules-enabled/w.conf",
            "load_module /usr/local/lib/wattlock/ngx_http_wattlock_module.so;\n",
        ),
    ] {
        let path = format!("root/{file}");
        tree.write(&path, line);
        let said = refused(&tree.make("uninstall", &[]));
        assert!(said.contains(tree.path(&path).canonicalize().unwrap().to_str().unwrap()), "{said}");
        assert!(said.contains("wattlock openssl disable") && said.contains("FORCE=1"), "{said}");
        assert_eq!(tree.files().len(), installed + 1, "all is there yet");
        // Neither a comment nor the copy that `enable` keeps is a use.
        tree.write(&path, &format!("  # {line}"));
        tree.write(&format!("{path}.before-wattlock"), line);
        good(&tree.make("uninstall", &[]));
        assert_eq!(tree.files().len(), 2, "{:?}", tree.files());
        fs::remove_file(tree.path(&format!("{path}.before-wattlock"))).unwrap();
        tree.write(&path, line);
        good(&tree.make("install", &[]));
        good(&tree.make("uninstall", &["FORCE=1"]));
        assert_eq!(tree.files().len(), 1, "by force");
        fs::remove_file(tree.path(&path)).unwrap();
        good(&tree.make("install", &[]));
    }
    // Another program's library of a like name is not ours.
    tree.write("root/etc/ssl/openssl.cnf", "module = /usr/local/lib/wattlocks/x.so\n");
    good(&tree.make("uninstall", &[]));
}

#[test]
fn what_was_not_built_is_not_installed() {
    let tree = Tree::new();
    fs::remove_file(tree.path("my target/nginx/ngx_http_wattlock_module.so")).unwrap();
    assert!(good(&tree.make("install", &[])).contains("not installed: "));
    assert_eq!(tree.files().len(), 9);
    good(&tree.make("uninstall", &[]));
    fs::remove_file(tree.path("my target/release/libwattlock_provider.so")).unwrap();
    assert!(refused(&tree.make("install", &[])).contains("`make build` first"));
    assert_eq!(tree.files(), [""; 0], "half an installation is none");
}

/// The repository's own environment if there is one, else whatever the machine calls Python.
fn python() -> Command {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python3");
    Command::new(if own.exists() { own } else { "python3".into() })
}

#[test]
fn the_installed_recover_py_opens_a_sealed_file_a_volume_and_a_stream() {
    let found = python().args(["-c", "import cryptography"]).stderr(Stdio::null()).status();
    if !found.is_ok_and(|status| status.success()) {
        return skipped("no python3 with cryptography");
    }
    let (tree, desk) = (Tree::new(), Desk::new(&[]));
    good(&tree.make("install", &[]));
    // Alone, as it lies with a backup.
    fs::copy(tree.path("root/usr/local/lib/wattlock/recover.py"), desk.at("recover.py")).unwrap();
    let content: Vec<u8> = (0..200_000_u32).map(|number| (number >> 4) as u8).collect();
    fs::create_dir_all(desk.at("in/letters")).unwrap();
    fs::write(desk.at("in/letters/big"), &content).unwrap();
    fs::write(desk.at(&format!("in/{}", "n".repeat(255))), "long").unwrap();
    std::os::unix::fs::symlink("letters/big", desk.at("in/link")).unwrap();
    let run = |words: &[&str]| desk::good(&desk.run(words));
    run(&["fs", "cp", "--into", "-r", "-i", "key.txt", "vol", "in", "/"]);
    let text = fs::read_to_string(desk.at("key.txt")).unwrap();
    let recipient = text.lines().find_map(|line| line.strip_prefix("# public key: ")).unwrap();
    run(&["seal", "-q", "-r", recipient, "-o", "sealed", "in/letters/big"]);
    let mut seal = desk.command(&["stream", "seal", "-r", recipient]);
    seal.stdin(fs::File::open(desk.at("in/letters/big")).unwrap());
    fs::write(desk.at("stream"), seal.output().unwrap().stdout).unwrap();

    let recover = |words: &[&str], typed: &str| {
        fs::write(desk.at("typed"), typed).unwrap();
        let mut recover = python();
        recover.arg("-I").arg("recover.py").args(words).current_dir(desk.folder.path());
        recover.stdin(fs::File::open(desk.at("typed")).unwrap()).output().unwrap()
    };
    let lost = |output: &Output, said: &str| {
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && errors.contains(said), "{errors}");
    };
    good(&recover(&["file", "key.txt", "sealed", "file"], ""));
    good(&recover(&["stream", "key.txt", "stream", "streamed"], ""));
    assert!([desk.at("file"), desk.at("streamed")].iter().all(|path| fs::read(path).unwrap() == content));
    lost(&recover(&["file", "key.txt", "sealed", "file"], ""), "exists");
    good(&recover(&["volume", "key.txt", "vol", "out"], ""));
    let mut same = Command::new("diff");
    same.args(["-r", "--no-dereference"]).args([desk.at("in"), desk.at("out/in")]);
    assert_eq!(good(&same.output().unwrap()), "");
    // By a passphrase alone.
    fs::write(desk.at("words"), "correct horse\n").unwrap();
    let add =
        ["fs", "key", "add", "-i", "key.txt", "--new-passphrase-file", "words", "--work-factor", "4", "vol"];
    run(&add);
    let locked = "vol/wattlock.keys/passphrase";
    lost(&recover(&["volume", locked, "vol", "by"], "wrong\n"), "wrong passphrase");
    good(&recover(&["volume", locked, "vol", "by"], "correct horse\n"));
    assert_eq!(fs::read(desk.at("by/in/letters/big")).unwrap(), content);
    // What is damaged is named, and the rest is recovered.
    let big = |path: &PathBuf| path.metadata().is_ok_and(|meta| meta.len() > 200_000);
    let stored = crate::folder_commands::stored(&desk.at("vol")).into_iter().find(big).unwrap();
    let mut bytes = fs::read(&stored).unwrap();
    bytes[100_000] ^= 1;
    fs::write(&stored, bytes).unwrap();
    lost(&recover(&["volume", "key.txt", "vol", "rest"], ""), "rest/in/letters/big: slot 24");
    assert_eq!(fs::read(desk.at("rest/in").join("n".repeat(255))).unwrap(), b"long");
    lost(&recover(&["volume", "key.txt"], ""), "recover.py volume");
}

#[test]
fn pages_and_completions_lie_where_man_and_shells_look_and_go_with_the_rest() {
    let tree = Tree::new();
    // As `make build` makes them, by the program itself.
    crate::built::siblings();
    fs::remove_file(tree.path("my target/release/wattlock")).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_wattlock"), tree.path("my target/release/wattlock"))
        .unwrap();
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = Command::new(repository.join("scripts/release/pages.sh"));
    good(&pages.env("CARGO_TARGET_DIR", tree.path("my target")).output().unwrap());
    tree.write("my target/share/man1/wattlock-gone.1", "a command of an earlier version");
    // Another package's page of a like name.
    tree.write("root/usr/local/share/man/man1/wattlock-theirs.1", "");
    let before = tree.files();
    good(&tree.make("install", &[]));
    let shared = |tree: &Tree| -> Vec<String> {
        tree.files().into_iter().filter(|file| file.contains(" /usr/local/share/")).collect()
    };
    let found = shared(&tree);
    for wanted in [
        "man/man1/wattlock.1",
        "man/man1/wattlock-fs-key-add.1",
        "man/man1/wattlock-bench-https.1",
        "man/man1/wattlock-lab.1",
        "man/man1/wattlock-gone.1",
        "bash-completion/completions/wattlock",
        "zsh/site-functions/_wattlock",
        "fish/vendor_completions.d/wattlock.fish",
    ] {
        assert!(found.contains(&format!("644 /usr/local/share/{wanted}")), "{wanted}: {found:?}");
    }
    fs::remove_file(tree.path("my target/share/man1/wattlock-gone.1")).unwrap();
    good(&tree.make("install", &[]));
    assert!(!tree.path("root/usr/local/share/man/man1/wattlock-gone.1").exists());
    assert_eq!(shared(&tree).len(), found.len() - 1);
    // A list that somebody changed names nothing outside its folder.
    let list = tree.path("root/usr/local/lib/wattlock/pages");
    fs::write(&list, fs::read_to_string(&list).unwrap() + "../man1/wattlock-theirs.1\n").unwrap();
    good(&tree.make("uninstall", &[]));
    assert_eq!(tree.files(), before);
}
