//! `wattlock lab reproduce` as a person or a script meets it, with a stand-in for the bench: it answers by the contract,
//! the same for the same words, and misbehaves at the point it is told to.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Each call appends its words to `asked`. A line `N WORD` of `do` is what the N-th call does, `@TEXT WORD` what each does
/// whose words contain the text.
const STAND_IN: &str = r#"#!/bin/sh
here=$(dirname "$0")
echo "$*" >>"$here/asked"
echo $$ >"$here/pid"
call=$(wc -l <"$here/asked")
does=
while read -r key what; do
    case $key in
        @*) case $* in *"${key#@}"*) does=$what ;; esac ;;
        "$call") does=$what ;;
    esac
done <"$here/do"
door=$2 given= device=none policy=adaptive value=$(($(echo "$*" | cksum | cut -d' ' -f1) % 1000 + 1000))
shift 2
for word; do
    case $word in
        --*) break ;;
        *) given="$given${given:+,}\"${word%%=*}\":\"${word#*=}\"" ;;
    esac
done
while [ $# -gt 0 ]; do
    [ "$1" != --emulate ] || device="emulated $2"
    [ "$1" != --policy ] || policy=$2
    shift
done
case $policy in software | instruction) device=none ;; esac
joules='{"value":0.5,"low":0.25,"high":1,"rounds":2,"per":"byte","word":"measured","domain":"package"}'
head() { echo "\"schema\":1,\"door\":\"$door\",\"given\":{$given},\"policy\":\"$policy\""; }
case $does in
    fail) echo "wattlock: nginx ended with 1" >&2; exit 50 ;;
    die) kill -9 $$ ;;
    silent) exit 0 ;;
    door) door=other ;;
    cannot) echo "{$(head),\"cannot\":\"OpenSSL has no such curve\"}"; exit 0 ;;
    negative) value=-1 ;;
    forgetful) given= ;;
    policy) policy=other ;;
    none) device=none ;;
    poor) joules=null ;;
    litter)
        folder=$TMPDIR/wattlock-point-$$-a
        mkdir -p "$folder/mount0" && echo "$folder" >"$here/folder"
        mount -t tmpfs none "$folder/mount0" 2>/dev/null && touch "$folder/mount0/file"
        setsid sh -c 'trap "" TERM; echo $$ >>"$0/escaped"; while :; do sleep 60; done' "$here" &
        setsid sh -c 'echo $$ >>"$0/escaped"; exec sleep 60' "$here" &
        until [ "$(wc -l <"$here/escaped" 2>/dev/null)" = 2 ]; do sleep 0.01; done ;;
    hang) trap 'echo cleaned >>"$here/cleaned"; exit 1' TERM; sleep 60 & touch "$here/hangs"; wait ;;
    stubborn) trap '' TERM INT; sleep 60 & echo $! >"$here/left"; sleep 60 ;;
esac
[ "$does" != litter ] || [ ! -e "$here/killed" ] || kill -9 $$
unit=MB/s
[ "$door" != cipher ] || unit=kB/s
of() { echo "\"$1\":{\"value\":$value,\"low\":$value,\"high\":$((value + 100)),\"unit\":\"$2\",\"rounds\":2}"; }
echo "{$(head),\"figures\":{$(of seconds s),$(of throughput $unit)},\"joules\":$joules,\
\"device\":\"$device\",\"engines\":[\"a\",\"b\"],\"busy\":0.25}"
"#;

/// A folder with the stand-in.
struct Place(TempDir);

impl Place {
    /// What the calls do: `3 fail`, one a line.
    fn new(does: &str) -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        std::fs::write(place.at("bench"), STAND_IN).unwrap();
        std::fs::set_permissions(place.at("bench"), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::write(place.at("do"), format!("{does}\n")).unwrap();
        std::fs::write(place.at("asked"), "").unwrap();
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.at(name)).unwrap_or_default()
    }

    fn asked(&self) -> usize {
        self.read("asked").lines().count()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wattlock-lab"));
        command.arg("reproduce").args(words).arg("--bench").arg(self.at("bench")).current_dir(self.0.path());
        // A GPU of this machine must not change what is asked.
        command.env("WATTLOCK_CUDA_DRIVER", "/no/such/driver").env("TMPDIR", self.0.path());
        command.args(["--csv", "kept.csv", "--report", "page.html"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// The same under a limit of the size of files, in blocks of 512 bytes.
    fn run_limited(&self, blocks: u32, words: &[&str]) -> Output {
        let inner = self.command(words);
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &format!("ulimit -f {blocks}; exec \"$0\" \"$@\"")]);
        command.arg(inner.get_program()).args(inner.get_args()).current_dir(self.0.path()).output().unwrap()
    }

    /// Starts it and waits until a call hangs.
    fn start_until_it_hangs(&self, words: &[&str]) -> Child {
        let child = self.command(words).spawn().unwrap();
        let begun = Instant::now();
        while !self.at("hangs").exists() {
            assert!(begun.elapsed() < Duration::from_secs(300), "asked for {} only", self.asked());
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The objects of `--json`.
fn objects(output: &Output) -> Vec<Value> {
    String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The grid of these tests: table 5 of EEP, the default part.
const GRID: [&str; 2] = ["eep", "table5"];
/// Its points that run.
const RUN: usize = 12;

fn words<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&GRID[..], more].concat()
}

#[test]
fn a_line_has_published_simulated_and_measured_beside_each_other() {
    let place = Place::new("");
    let output = place.run(&words(&["--json", "--meter-command", "echo J 1"]));
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let lines = objects(&output);
    let of = |method: &str, quantity: &str| {
        let mine = lines.iter().find(|line| line["method"] == method && line["quantity"] == quantity);
        mine.unwrap_or_else(|| panic!("{method} {quantity}")).clone()
    };
    let hybrid = of("eep", "seconds");
    let near =
        |value: &Value, by_hand: f64| assert!((value.as_f64().unwrap() - by_hand).abs() < 1e-9, "{value}");
    near(&hybrid["published"], 0.170_797_3);
    assert!(hybrid["simulated"].as_f64().unwrap() > 0.0 && hybrid["value"].as_f64().unwrap() >= 1000.0);
    assert_eq!((&hybrid["device"], &hybrid["busy"]), (&"emulated k20m".into(), &0.25.into()));
    assert_eq!(of("software", "seconds")["device"], "none", "what uses no device is not given one");
    let joules = of("eep", "per_joule");
    assert_eq!(
        (&joules["value"], &joules["unit"], &joules["word"]),
        (&2.0.into(), &"byte/J".into(), &"measured".into())
    );
    let spread =
        ["low", "high", "rounds", "joules", "joules_low", "joules_high"].map(|key| joules[key].as_f64());
    assert_eq!(spread, [1.0, 4.0, 2.0, 0.5, 0.25, 1.0].map(Some));
    let serial = of("serial", "seconds");
    near(&serial["published"], 18.095_260_2);
    assert!(serial["value"].is_number() && serial["point"] == hybrid["point"]);
    assert!(serial["given"].as_str().unwrap().contains("cpus=1"), "{serial}");
    assert_eq!(place.asked(), RUN);
    assert!(place.read("asked").lines().all(|line| line.ends_with("--meter-command echo J 1")));
    assert!(said(&output).contains("25 % at most") && said(&output).contains("left"), "{}", said(&output));
    let page = place.read("page.html");
    for wanted in [
        "emulated k20m",
        "agrees",
        "disagrees",
        "<svg",
        "25 % at most",
        "per_joule, byte/J, measured, package",
    ] {
        assert!(page.contains(wanted), "{wanted}");
    }
    let table = Place::new("").run(&GRID);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(
        table.contains("published") && table.contains("who wins") && table.contains("kept.csv"),
        "{table}"
    );
}

/// Killed after any number of points, and in the middle of a line, what is there and what is added are the uninterrupted
/// run: a point that was measured twice would have its lines twice.
#[test]
fn resuming_repeats_nothing_and_loses_nothing() {
    const DOES: &str = "@instruction cannot\n@software fail\n";
    let whole = Place::new(DOES);
    assert_eq!(whole.run(&GRID).status.code(), Some(1), "a point failed");
    let (content, asked) = (whole.read("kept.csv"), whole.read("asked"));
    let mut cuts: Vec<usize> = content.match_indices('\n').map(|(at, _)| at + 1).collect();
    assert!(cuts.len() > RUN);
    cuts.extend([0, 10, cuts[3] - 1, cuts[9] + 40, content.len() - 1]);
    for cut in cuts {
        let place = Place::new(DOES);
        std::fs::write(place.at("kept.csv"), &content[..cut]).unwrap();
        let output = place.run(&words(&["--resume"]));
        assert_eq!(output.status.code(), Some(1), "cut at {cut}: {}", said(&output));
        assert_eq!(place.read("kept.csv"), content, "cut at {cut}");
        let in_line = cut > 0 && !content[..cut].ends_with('\n');
        assert!(!in_line || said(&output).contains("was cut"), "cut at {cut}: {}", said(&output));
        assert!(
            asked.ends_with(&place.read("asked")),
            "cut at {cut}: the points that are left, in their order"
        );
    }
}

#[test]
fn a_killed_run_leaves_what_it_measured() {
    let place = Place::new("5 hang");
    let mut child = place.start_until_it_hangs(&GRID);
    child.kill().unwrap();
    child.wait().unwrap();
    // Nobody is left to end the bench.
    let group = format!("-{}", place.read("pid").trim());
    assert!(Command::new("kill").args(["-KILL", "--", &group]).status().unwrap().success());
    std::fs::write(place.at("do"), "").unwrap();
    let output = place.run(&words(&["--resume"]));
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(place.asked(), RUN + 1, "the point under way is measured again, and no other");
    let fresh = Place::new("");
    fresh.run(&GRID);
    assert_eq!(place.read("kept.csv"), fresh.read("kept.csv"));
}

fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn an_interrupt_ends_the_bench_and_leaves_a_file_and_a_page() {
    let place = Place::new("4 hang");
    let child = place.start_until_it_hangs(&GRID);
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    assert_eq!(place.read("cleaned"), "cleaned\n", "the bench cleans up");
    let page = place.read("page.html");
    assert!(
        page.contains("interrupted") && page.contains("not run") && page.contains("<svg"),
        "a page of what was measured"
    );
    let resumed = place.run(&words(&["--resume", "--json"]));
    assert_eq!(resumed.status.code(), Some(0), "{}", said(&resumed));
    assert_eq!(place.asked(), RUN + 1);
}

#[test]
fn whatever_the_bench_does_is_a_row_with_a_reason_and_the_grid_goes_on() {
    let place = Place::new("1 fail\n2 die\n3 silent\n4 door\n5 negative\n6 forgetful\n7 cannot\n8 policy");
    let output = place.run(&words(&["--json"]));
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert_eq!(place.asked(), RUN, "every point was tried");
    let lines = objects(&output);
    let all = |column: &str| -> Vec<String> {
        let filled = lines.iter().filter(|line| line["quantity"] == "seconds");
        let filled = filled.map(|line| line[column].as_str().unwrap());
        filled.filter(|why| !why.is_empty()).map(str::to_owned).collect()
    };
    let failed = all("failed");
    let wanted = [
        "nginx ended with 1",
        "signal 9",
        "no answer",
        "of door other",
        "cannot be -1",
        "does not say",
        "of policy",
    ];
    assert_eq!(failed.len(), wanted.len(), "{failed:?}");
    for (why, wanted) in failed.iter().zip(wanted) {
        assert!(why.contains(wanted), "{why}: {wanted}");
    }
    assert!(all("cannot").contains(&"OpenSSL has no such curve".to_owned()));
    let measured = lines.iter().filter(|line| line["quantity"] == "seconds" && line["value"].is_number());
    assert_eq!(measured.count(), RUN - wanted.len() - 1);
    let filled_in =
        lines.iter().find(|line| line["value"].is_null() == (line["failed"] == "" && line["cannot"] == ""));
    assert_eq!(filled_in, None, "nothing is filled in");
    let last = said(&output).lines().last().unwrap().to_owned();
    assert!(last.contains("7 of") && last.contains("failed"), "{last}");
    assert!(place.read("page.html").contains("7 failed"));
}

#[test]
fn a_point_without_joules_has_a_row_that_says_so_and_is_measured() {
    let place = Place::new("@eep poor");
    let output = place.run(&words(&["--json"]));
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let lines = objects(&output);
    let without: Vec<_> = lines.iter().filter(|line| line["cannot"] != "").collect();
    assert_eq!(without.len(), 2, "{without:?}");
    for line in without {
        assert_eq!((&line["method"], &line["quantity"]), (&"eep".into(), &"per_joule".into()));
        assert!(line["simulated"].is_number() && line["value"].is_null(), "{line}");
    }
    let measured = format!("{RUN} points measured, 0 cannot run here, 0 failed");
    assert!(place.read("page.html").contains(&measured));
}

/// The lowest and the highest clock of the emulated GPU; a real one's is set by no door.
#[test]
fn clocks_are_those_of_the_emulated_gpu() {
    let place = Place::new("");
    let output = place.run(&["eep", "figure5", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let asked = place.read("asked");
    let with = |word: &str| asked.lines().filter(|line| line.contains(word)).count();
    assert_eq!(
        [with("clock=324 "), with("clock=758 "), with("clock="), with("--emulate k20m")],
        [3, 3, 6, 6]
    );
    let place = Place::new("");
    let output = place.run(&["eep", "figure5", "--json", "--no-emulate"]);
    assert_eq!((output.status.code(), place.asked()), (Some(0), 0), "{}", said(&output));
    let lines = objects(&output);
    assert!(lines.len() == 6 && lines.iter().all(|line| line["cannot"] != "" && line["value"].is_null()));
}

/// Only the last point is left, so that a slow machine decides nothing: it hangs, and what it has started ends with it.
#[test]
fn a_bench_that_hangs_ends_with_all_that_it_started() {
    let whole = Place::new("");
    assert_eq!(whole.run(&GRID).status.code(), Some(0));
    let content = whole.read("kept.csv");
    let last = content
        .lines()
        .position(|line| line.contains("bytes=400000000") && line.contains(",serial,"))
        .unwrap();
    let before: String = content.lines().take(last).map(|line| format!("{line}\n")).collect();
    for does in ["hang", "stubborn"] {
        let place = Place::new(&format!("1 {does}"));
        std::fs::write(place.at("kept.csv"), &before).unwrap();
        let output = place.run(&words(&["--resume", "--limit", "2"]));
        assert_eq!(output.status.code(), Some(1), "{does}: {}", said(&output));
        assert!(place.read("kept.csv").contains("no answer within 2 s"), "{does}");
        assert!(place.read("page.html").contains("1 failed"), "{does}");
        let left = place.read("left");
        assert!(left.is_empty() || has_ended(&left), "{does}: {left}");
    }
}

/// A process is gone, or only its parent does not know yet.
fn has_ended(pid: &str) -> bool {
    let stat = std::fs::read_to_string(PathBuf::from("/proc").join(pid.trim()).join("stat"));
    stat.map_or(true, |stat| stat.contains(") Z "))
}

/// Programs in sessions of their own, one of which heeds nothing, a mount and a folder: of a bench that is killed, and of
/// one that answers and forgets them.
#[test]
fn what_a_bench_leaves_behind_is_taken_away() {
    for killed in [true, false] {
        let place = Place::new("3 litter");
        if killed {
            std::fs::write(place.at("killed"), "").unwrap();
        }
        let output = place.run(&GRID);
        assert_eq!(output.status.code(), Some(i32::from(killed)), "{}", said(&output));
        assert_eq!(place.read("kept.csv").contains("killed by signal 9"), killed);
        let escaped = place.read("escaped");
        assert!(escaped.lines().count() == 2 && escaped.lines().all(has_ended), "{escaped}");
        let folder = place.read("folder");
        let folder = folder.trim();
        assert!(!folder.is_empty() && !Path::new(folder).exists(), "{folder}: {}", said(&output));
        assert!(!std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(folder));
        assert_eq!(place.asked(), RUN, "the grid goes on");
    }
}

#[test]
fn a_device_that_is_lost_is_not_measured_on_without_it() {
    let place = Place::new("9 none\n10 none\n11 none");
    let output = place.run(&words(&["--json"]));
    assert_eq!(output.status.code(), Some(1));
    let lost: Vec<Value> = objects(&output)
        .into_iter()
        .filter(|line| line["failed"].as_str().unwrap().contains("lost"))
        .collect();
    let methods: BTreeSet<&str> = lost.iter().map(|line| line["method"].as_str().unwrap()).collect();
    assert_eq!(methods.into_iter().collect::<Vec<_>>(), ["adaptive", "eep", "offload"]);
    assert!(lost.iter().all(|line| line["value"].is_null() && line["failed"].as_str().unwrap().contains("emulated k20m")));
}

#[test]
fn a_disk_that_is_full_ends_the_run_and_leaves_whole_lines() {
    let place = Place::new("");
    let output = place.run_limited(9, &GRID);
    assert_eq!(output.status.code(), Some(43), "{}", said(&output));
    let last = said(&output).lines().last().unwrap().to_owned();
    assert!(last.contains("kept.csv") && last.contains("no room"), "{last}");
    let content = place.read("kept.csv");
    assert!(content.ends_with('\n') && content.lines().count() > 1, "{content}");
    let resumed = place.run(&words(&["--resume"]));
    assert_eq!(resumed.status.code(), Some(0), "{}", said(&resumed));
    let fresh = Place::new("");
    fresh.run(&GRID);
    assert_eq!(place.read("kept.csv"), fresh.read("kept.csv"));
}

#[test]
fn a_file_that_is_there_or_another_run_s_is_refused_in_one_line() {
    let place = Place::new("");
    assert_eq!(place.run(&GRID).status.code(), Some(0));
    let content = place.read("kept.csv");
    let refused = |words: &[&str], reason: &str| {
        let output = place.run(words);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).lines().next().unwrap().contains(reason), "{}", said(&output));
        assert!(output.stdout.is_empty());
    };
    refused(&GRID, "--resume");
    refused(&words(&["--resume", "--full"]), "another grid");
    refused(&["eep", "--resume"], "another grid");
    assert_eq!(place.read("kept.csv"), content);
    std::fs::write(place.at("kept.csv"), "name,age\nJohn,3\n").unwrap();
    refused(&words(&["--resume"]), "not the CSV of a reproduction");
    assert_eq!(place.read("kept.csv"), "name,age\nJohn,3\n");
    assert_eq!(place.asked(), RUN);
}

#[test]
fn what_is_listed_is_not_run_and_nonsense_is_one_line() {
    let place = Place::new("");
    for paper in ["eeca", "qweb", "lecpaes", "aca-sds", "eep"] {
        let output = place.run(&[paper, "--list", "--full"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && text.contains("published cells") && text.lines().count() > 20,
            "{text}"
        );
    }
    assert_eq!(place.asked(), 0);
    assert!(!place.at("kept.csv").exists());
    for (words, code) in [
        (&["nobody"][..], 60),
        (&["eep", "figure99"], 60),
        (&["eep", "--no-emulate", "--emulate", "k20m"], 2),
        (&["eep", "--emulate", "no-such-card"], 2),
        (&["eep", "--pictures", "bench"], 1),
        (&["eep", "--pictures", "bench/below"], 1),
        (&["eep", "--limit", "0"], 60),
        (&["eep", "--policy", "eep"], 60),
    ] {
        let output = place.run(words);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", said(&output));
        assert!(said(&output).starts_with("wattlock: "), "{}", said(&output));
        assert!(place.asked() == 0 && !place.at("kept.csv").exists(), "{words:?}: nothing has begun");
    }
    let mut nowhere = Command::new(env!("CARGO_BIN_EXE_wattlock-lab"));
    let nowhere = nowhere
        .args(["reproduce", "eep", "table5", "--bench", "/no/such/bench"])
        .current_dir(place.0.path())
        .output()
        .unwrap();
    assert!(!nowhere.status.success() && said(&nowhere).contains("/no/such/bench"), "{}", said(&nowhere));
}

/// Without a device, and with none emulated, the device's methods are rows that say so; the others run.
#[test]
fn without_a_device_its_methods_cannot_run() {
    let place = Place::new("");
    let mut command = Command::new(env!("CARGO_BIN_EXE_wattlock-lab"));
    command
        .args(["reproduce", "eeca", "table1", "--json", "--no-emulate", "--csv", "kept.csv", "--bench"])
        .arg(place.at("bench"));
    let output =
        command.current_dir(place.0.path()).env("WATTLOCK_CUDA_DRIVER", "/no/such/driver").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let lines = objects(&output);
    let cannot: BTreeSet<&str> = lines
        .iter()
        .filter(|line| line["cannot"] != "")
        .map(|line| line["method"].as_str().unwrap())
        .collect();
    assert_eq!(cannot.into_iter().collect::<Vec<_>>(), ["eeca", "offload"]);
    assert!(!place.read("asked").contains("--emulate") && place.read("asked").contains("--policy adaptive"));
}

#[test]
fn a_picture_of_a_paper_stands_alone() {
    let place = Place::new("");
    let output = place.run(&words(&["--pictures", "new/folder"]));
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let picture = place.read("new/folder/reproduce-eep.svg");
    assert!(picture.starts_with("<svg xmlns=") && picture.contains("emulated k20m"), "{picture}");
    assert_eq!(std::fs::read_dir(place.at("new/folder")).unwrap().count(), 1);
}

/// A page whose generator changed is drawn anew with the command in `docs/research/reproduce.md`.
#[test]
fn the_kept_page_and_its_pictures_are_what_the_kept_lines_say() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/research");
    let folder = tempfile::tempdir().unwrap();
    let drawn = Command::new(env!("CARGO_BIN_EXE_wattlock-lab"))
        .args(["reproduce", "all", "--redraw", "--csv"])
        .arg(kept.join("reproduced.csv"))
        .args(["--report", "reproduced.html", "--pictures", "."])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(drawn.status.code(), Some(0), "{}", said(&drawn));
    let files: BTreeSet<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(files.len(), 6, "{files:?}");
    for file in files {
        let [one, other] =
            [folder.path(), &kept].map(|place| std::fs::read_to_string(place.join(&file)).unwrap());
        assert!(one == other, "{} is not what reproduced.csv says", file.display());
    }
}

#[test]
fn what_is_drawn_anew_runs_nothing_and_names_what_it_leaves_out() {
    let place = Place::new("");
    assert_eq!(place.run(&words(&[])).status.code(), Some(0));
    let asked = place.asked();
    let redraw = |paper: &[&str]| place.run(&[paper, &["--redraw"]].concat());
    std::fs::remove_file(place.at("page.html")).unwrap();
    assert_eq!(redraw(&["eep", "table5"]).status.code(), Some(0));
    assert!(place.read("page.html").contains("emulated k20m") && place.asked() == asked, "nothing was run");
    // Another grid's points are left out, and named.
    assert_eq!(redraw(&["eeca"]).status.code(), Some(0));
    let other = place.read("page.html");
    assert!(other.contains("are left out: EEP table5") && !other.contains("emulated k20m"), "{other}");
}

/// The grid is that of the CSV, and not of the call that draws it.
#[test]
fn what_is_drawn_anew_has_the_grid_that_its_lines_say() {
    for asked in [&["--full"][..], &["--emulate", "dh8970"], &["--no-emulate"], &["--no-emulate", "--full"]] {
        let place = Place::new("");
        assert_eq!(place.run(&words(asked)).status.code(), Some(0), "{asked:?}");
        let page = place.read("page.html");
        std::fs::remove_file(place.at("page.html")).unwrap();
        // Without the figure: that, too, is what the lines say.
        let drawn = place.run(&["eep", "--redraw"]);
        assert_eq!(drawn.status.code(), Some(0), "{asked:?}: {}", said(&drawn));
        assert!(place.read("page.html") == page, "{asked:?}");
    }
}

#[test]
fn what_is_drawn_anew_needs_a_place_and_a_grid_and_has_no_other() {
    let place = Place::new("");
    assert_eq!(place.run(&words(&[])).status.code(), Some(0));
    let lab = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wattlock-lab"));
        command.args(["reproduce", "eep", "--redraw"]).args(words).current_dir(place.0.path());
        command.output().unwrap()
    };
    let nowhere = lab(&["--csv", "kept.csv"]);
    assert_eq!(nowhere.status.code(), Some(2), "{}", said(&nowhere));
    assert!(said(&nowhere).contains("--report or --pictures"), "{}", said(&nowhere));
    for other in [&["--full"][..], &["--no-emulate"], &["--emulate", "dh8970"], &["--limit", "5"]] {
        let refused = lab(&[&["--csv", "kept.csv", "--report", "other.html"], other].concat());
        assert_eq!(refused.status.code(), Some(2), "{other:?}: {}", said(&refused));
    }
    let text =
        place.read("kept.csv").replace("eep table5 default, emulated", "eep table5 somewhat, emulated");
    std::fs::write(place.at("strange.csv"), text).unwrap();
    let strange = lab(&["--csv", "strange.csv", "--report", "other.html"]);
    assert_eq!(strange.status.code(), Some(2), "{}", said(&strange));
    assert!(said(&strange).contains("no grid is") && !place.at("other.html").exists(), "{}", said(&strange));
}
