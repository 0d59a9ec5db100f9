//! Where `wattlock mount` mounts, and what `wattlock umount` unmounts.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use crate::desk::{Desk, fuse, good, refused};
use crate::folder_commands::{apart, fs_command, said, stored};

#[test]
fn a_mount_point_at_in_or_above_the_volume_is_refused() {
    let desk = Desk::new(&["--names", "plain"]);
    fs::create_dir(desk.at("vol/in")).unwrap();
    symlink("vol/in", desk.at("link")).unwrap();
    symlink("vol", desk.at("volume")).unwrap();
    let before = stored(&desk.at("vol"));
    let mount = |volume: &str, point: &str| desk.run(&["mount", "-i", "key.txt", volume, point]);
    for (volume, point) in
        [("vol", "vol"), ("vol", "vol/in"), ("vol", "link"), ("volume", "vol/in/../in"), ("vol", "volume")]
    {
        refused(&mount(volume, point), 2, "is in the volume's own folder");
    }
    refused(&mount("vol", "."), 2, "is above the volume's folder");
    // Through bind mounts, the names have nothing in common.
    let script = r#"
        mkdir one two; mount --bind vol/in one; mount --bind . two
        for place in one two two/vol two/vol/in; do
            $W mount -i key.txt vol $place 2>said && exit 1 || test $? = 2
            grep -q "in the volume's own folder\|above the volume's folder" said
        done
        $W mount -i key.txt two/vol one && exit 1 || test $? = 2
    "#;
    if let Some(output) = apart(&desk, script) {
        good(&output);
    }
    // Where the mount's own process makes files before it answers.
    let script = "mount -t tmpfs none /run; mkdir -m 700 /run/wattlock
        timeout 20 $W mount -i key.txt vol /run/wattlock 2>said && exit 1 || test $? = 2; cat said";
    if let Some(output) = apart(&desk, script) {
        assert!(good(&output).contains("/run/wattlock: mounts are asked through sockets in /run/wattlock"));
    }
    assert_eq!(stored(&desk.at("vol")), before);
}

#[test]
fn what_is_mounted_inside_a_volume_is_not_entered() {
    let desk = Desk::new(&["--names", "plain"]);
    fs::create_dir(desk.at("in")).unwrap();
    fs::write(desk.at("in/f"), "x").unwrap();
    good(&fs_command(&desk, &["cp", "--into", "-r", "vol", "in", "/"]));
    let script = r#"
        mount -t tmpfs none vol/in; echo foreign >vol/in/g
        $W fs cp -r -i key.txt vol / out 2>said && exit 1 || test $? = 46
        grep -q "something else is mounted there" said
        $W fs rm -y -r -i key.txt vol in 2>said && exit 1 || test $? = 46
        grep -q "something else is mounted there" said
        cat vol/in/g; umount vol/in; cat out/in/g 2>&1 || true; $W fs ls -i key.txt vol in
    "#;
    let Some(output) = apart(&desk, script) else { return };
    let text = good(&output);
    assert!(
        text.contains("\nforeign\n") && text.ends_with("\nf\n") && text.contains("No such file"),
        "{text}"
    );
}

#[test]
fn only_a_volume_that_wattlock_mounted_is_unmounted() {
    if !fuse() {
        return;
    }
    let desk = Desk::new(&[]);
    fs::write(desk.at("file"), "").unwrap();
    fs::create_dir(desk.at("folder")).unwrap();
    for place in ["/", "/proc", "/proc/self", "file", "folder", "none"] {
        for more in [&[][..], &["--lazy"]] {
            refused(&desk.run(&[&["umount"][..], more, &[place]].concat()), 90, "not mounted");
        }
    }
    let mounted = desk.mount(&[]);
    fs::create_dir(mounted.join("inside")).unwrap();
    refused(&desk.run(&["umount", "mnt/inside"]), 90, "it is in the volume that is mounted at");
    // Through a link, and whatever the working folder is.
    symlink("mnt", desk.at("link")).unwrap();
    good(&desk.run(&["umount", "link"]));
    refused(&desk.run(&["umount", "mnt"]), 90, "not mounted");
    let script = r#"
        refused() { $W umount "$@" 2>said && exit 1 || test $? = 90; test $(wc -l <said) = 1; cat said; }
        mkdir other; mount -t tmpfs none other; echo x >other/f
        refused other; refused --lazy other; cat other/f
        $W mount -i key.txt vol mnt; mkdir -p mnt/d; mount -t tmpfs none mnt
        refused mnt; refused --lazy mnt
        umount mnt; test -d mnt/d; $W umount mnt; test ! -d mnt/d
        $W mount -i key.txt vol mnt; mount --bind other mnt/d; refused mnt/d; refused --lazy mnt/d
        for lazy in "" --lazy; do $W umount $lazy mnt 2>said && exit 1 || test $? = 89; cat said; done
        cat mnt/d/f; umount mnt/d; (cd mnt && $W umount --lazy ../mnt); test ! -d mnt/d
    "#;
    let Some(output) = apart(&desk, script) else { return };
    let text = good(&output);
    assert!(text.contains("other: not mounted by wattlock: what is there is tmpfs"), "{text}");
    assert_eq!(text.matches("mnt: in use: tmpfs is mounted in it, at ").count(), 2, "{text}");
    assert!(text.contains("mnt: tmpfs lies over the volume that is mounted there: `umount "), "{text}");
}

#[test]
fn a_low_limit_of_open_files_is_told_in_one_line() {
    if !fuse() {
        return;
    }
    let desk = Desk::new(&[]);
    let mount = |limit: &str| {
        let line = format!("ulimit -n {limit}; exec \"$0\" mount -i key.txt vol mnt");
        let mut shell = Command::new("bash");
        shell.args(["-c", &line, env!("CARGO_BIN_EXE_wattlock")]).current_dir(desk.folder.path());
        shell.env("WATTLOCK_PROFILE", desk.at("profile.json")).env("WATTLOCK_TELEMETRY_DIR", desk.at("t"));
        shell.env("WATTLOCK_STATE_DIR", desk.at("state"));
        let output = shell.stdin(Stdio::null()).output().unwrap();
        good(&output);
        desk.unmount();
        said(&output)
    };
    let told = mount("1024");
    let about: Vec<&str> = told.lines().filter(|line| line.contains("open files is 1024")).collect();
    assert_eq!(about.len(), 1, "{told}");
    // A soft limit is raised.
    assert!(!mount("-S 256").contains("open files"));
}

#[test]
fn a_mount_point_in_the_folder_of_another_mounted_volume_is_refused() {
    if !fuse() {
        return;
    }
    let desk = Desk::new(&["--names", "plain"]);
    fs::create_dir(desk.at("vol/x")).unwrap();
    let mounted = desk.mount(&[]);
    let key = fs::read_to_string(desk.at("key.txt")).unwrap();
    let recipient = key.lines().find_map(|line| line.strip_prefix("# public key: ")).unwrap();
    // Its process would wait for that of the first, which waits for it when it looks at `x`.
    good(&desk.run(&["fs", "init", "-r", recipient, "mnt/inner"]));
    let output = desk.run(&["mount", "-i", "key.txt", "mnt/inner", "vol/x"]);
    refused(&output, 2, "is in the folder of the volume that is mounted at");
    fs::create_dir(desk.at("beside")).unwrap();
    good(&desk.run(&["mount", "-i", "key.txt", "mnt/inner", "beside"]));
    fs::write(desk.at("beside/f"), "x").unwrap();
    good(&desk.run(&["umount", "beside"]));
    assert!(mounted.join("x").is_dir());
    desk.unmount();
}

/// The serving process looks at what is on top before it unmounts, and unmounts nothing once its own mount is gone.
#[test]
fn what_is_mounted_over_a_volume_or_after_it_outlives_its_process() {
    let desk = Desk::new(&[]);
    let script = r#"
        process() { $W fs status mnt | sed -n 's/^process \([0-9]*\),.*/\1/p'; }
        gone() { for n in $(seq 400); do kill -0 $1 2>/dev/null || return 0; sleep 0.05; done; return 1; }
        over() { mount -t tmpfs none mnt; echo x >mnt/theirs; }
        $W mount -i key.txt vol mnt; pid=$(process); over; kill $pid; sleep 0.5; cat mnt/theirs
        umount mnt; kill $pid; gone $pid
        $W mount --idle 1 -i key.txt vol mnt; pid=$(process); over; sleep 2.5; cat mnt/theirs
        umount mnt; gone $pid
        # With requests left to answer, the process ends after this mount has taken its place.
        $W mount -i key.txt vol mnt; pid=$(process); echo y >mnt/f; umount mnt; over; gone $pid; cat mnt/theirs
    "#;
    if !fuse() {
        return;
    }
    let Some(output) = apart(&desk, script) else { return };
    assert_eq!(good(&output), "x\nx\nx\n");
}
