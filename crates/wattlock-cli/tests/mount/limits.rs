//! More open files than the mount may have descriptors: programs are told, what is open goes on, and the log says once
//! what helps.

use std::io::read_to_string;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::desk::{Desk, fuse, has, python};

const MORE: &str = r#"
import errno, os
for i in range(100):
    os.mkdir(f"d{i}"); open(f"d{i}/f", "w").close()
files, failed = [], 0
while len(files) < 400 and failed < 5:
    try:
        files.append(open(f"o{len(files)}", "w"))
    except OSError as error:
        assert error.errno == errno.EMFILE, error
        failed += 1
print(len(files) > 150, failed)
# What is open is written, changed and closed; what is not is removed and looked at.
for at, f in enumerate(files):
    f.write("x"); f.flush(); os.fchmod(f.fileno(), 0o600)
    if at % 2: os.unlink(f"o{at}")
print(len(os.listdir("d7")), os.stat("d8/f").st_size)
for f in files:
    f.close()
print(sum(os.stat(f"o{at}").st_size for at in range(0, len(files), 2)) == (len(files) + 1) // 2)
open("more", "w").close()
"#;

#[test]
fn more_open_files_than_descriptors_are_one_line_that_says_what_helps() {
    if !fuse() || !has("python3") || !has("prlimit") {
        return;
    }
    let desk = Desk::new(&[]);
    let mut command = Command::new("prlimit");
    command.args(["--nofile=256:256", env!("CARGO_BIN_EXE_wattlock"), "mount", "--foreground"]);
    command.args(["-i", "key.txt", "vol", "mnt"]).current_dir(desk.folder.path()).stderr(Stdio::piped());
    command.env("WATTLOCK_PROFILE", desk.at("profile.json")).env("WATTLOCK_STATE_DIR", desk.at("state"));
    let mut server = command.env("WATTLOCK_TELEMETRY_DIR", desk.at("telemetry")).spawn().unwrap();
    let begun = Instant::now();
    while !desk.run(&["fs", "status", "mnt"]).status.success() {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(python(MORE, &desk.at("mnt")), "True 5\n1 0\nTrue\n");
    desk.unmount();
    assert!(server.wait().unwrap().success());
    let said = read_to_string(server.stderr.take().unwrap()).unwrap();
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("files are open")).collect();
    assert!(
        lines.len() == 1 && lines[0].contains("256 descriptors") && lines[0].contains("LimitNOFILE="),
        "{said}"
    );
}
