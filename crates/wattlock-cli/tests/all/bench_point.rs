//! `wattlock bench point`: a tiny point through each door, judged by its form and its counters, never by its times.

use crate::built;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Folders of a test's own for what the program makes while it runs.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        fs::create_dir(place.path("tmp")).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let words = [&["bench", "point"], words].concat();
        built::provider();
        let mut command = Command::new(built::program_for(&words));
        command
            .args(words)
            .env("TMPDIR", self.path("tmp"))
            .env("WATTLOCK_TELEMETRY_DIR", self.path("telemetry"))
            .env("WATTLOCK_PROFILE", self.path("profile.json"))
            .env_remove("OPENSSL_CONF")
            .stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut command = self.command(words);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let id = child.id();
        let output = child.wait_with_output().unwrap();
        assert!(self.is_clean(id), "{words:?} leaves something behind: {output:?}");
        output
    }

    /// Whether nothing is left of a point's process of this number.
    fn is_clean(&self, id: u32) -> bool {
        let own = format!("wattlock-point-{id}-");
        let is_own = |entry: fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&own);
        fs::read_dir(self.path("tmp")).unwrap().count() == 0
            && !fs::read_to_string("/proc/mounts").unwrap().contains(&own)
            && !fs::read_dir("/dev/shm").into_iter().flatten().flatten().any(is_own)
    }

    /// The one line of a point that was answered.
    fn answer(&self, words: &[&str]) -> Value {
        let output = self.run(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {said}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&answer["schema"], &answer["door"]), (&1.into(), &words[0].into()), "{answer}");
        answer
    }

    /// The same of one that was measured, with these figures and perhaps others.
    fn measured(&self, words: &[&str], figures: &[&str]) -> Value {
        let answer = self.answer(words);
        for name in figures {
            let figure = &answer["figures"][name];
            let [value, low, high] = ["value", "low", "high"]
                .map(|key| figure[key].as_f64().unwrap_or_else(|| panic!("{answer}")));
            assert!(low <= value && value <= high && low >= 0.0, "{name}: {figure}");
            assert!(figure["unit"].is_string() && figure["rounds"].as_u64() > Some(0), "{name}: {figure}");
        }
        assert!(answer["busy"].as_f64().is_some_and(|busy| (0.0..=1.0).contains(&busy)), "{answer}");
        if let Some(joules) = answer["joules"].as_object() {
            let [value, low, high] = ["value", "low", "high"].map(|key| joules[key].as_f64().unwrap());
            assert!(0.0 <= low && low <= value && value <= high, "{answer}");
            assert_eq!(joules["rounds"], answer["rounds"], "{answer}");
            assert!(["measured", "modelled"].contains(&joules["word"].as_str().unwrap()), "{answer}");
            assert!(["byte", "operation"].contains(&joules["per"].as_str().unwrap()), "{answer}");
            assert!(joules["domain"].is_string(), "{answer}");
        }
        answer
    }
}

/// What an answer says that an engine did.
fn engines(answer: &Value) -> Vec<String> {
    let list = answer["engines"].as_array().unwrap_or_else(|| panic!("{answer}"));
    list.iter().map(|one| one.as_str().unwrap().to_owned()).collect()
}

fn did(answer: &Value, what: &str) -> bool {
    engines(answer).iter().any(|one| one.starts_with(what))
}

#[test]
fn a_caller_that_is_wrong_gets_one_line_and_exit_code_2() {
    let place = Place::new();
    for (words, why) in [
        (&["cipher", "nonsense=1"][..], "`cipher` has no key `nonsense`; it has cipher, bytes, processes"),
        (&["cipher", "bytes=0"], "bytes=0: expected a size from 1 B to 64 MiB"),
        (&["https", "side=stock", "--policy", "qweb"], "--policy does nothing for side=stock"),
        (&["https", "suite=ecdhe-rsa-aes128-sha", "key=p256"], "goes with another version or key"),
        (&["volume", "operation=append"], "operation=append: expected write, read"),
        (&["https", "side=straight", "page=64K", "gzip=1"], "gzip= does nothing for side=straight"),
        (&["file", "share=500"], "it needs --policy eep"),
        (&["file", "clock=1", "--emulate", "k20m"], "clock=1: expected 324, "),
        (&["file", "clock=1", "--emulate", "dh8970"], "dh8970 has no clocks"),
        (&["stream", "--policy", "lecpaes"], "a stream takes rule= and machine="),
        (&["cipher", "--emulate", "no-such-card"], "no-such-card"),
        (&["stream", "--json", "-"], "--json does nothing for `wattlock bench point`"),
    ] {
        let output = place.run(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        assert!(said.contains(why) && output.stdout.is_empty(), "{words:?}: {said}");
        assert_eq!(said.lines().filter(|line| !line.starts_with("Try '")).count(), 1, "{said}");
    }
    for words in [&["window"][..], &["cipher", "--rounds", "0"], &["cipher", "--policy", "fastest"]] {
        assert_eq!(place.run(words).status.code(), Some(2), "{words:?}");
    }
}

#[test]
fn what_a_machine_lacks_is_an_answer() {
    let place = Place::new();
    for (words, why) in [
        (&["https", "suite=rsa-aes128-sha", "page=1K"][..], "page=0"),
        (&["https", "key=k283"], "no curve sect283k1"),
        (&["https", "workers=256"], "256 workers on"),
        (&["cipher", "cipher=chacha20-poly1305"], "has no chacha20-poly1305"),
        (&["cipher", "--policy", "offload"], "offload gives work to a device"),
        (&["stream", "machine=cpu", "rule=adaptive"], "a point sets no clocks"),
        (&["file", "bytes=1T"], "are needed"),
        (&["file", "clock=705"], "setting this GPU's clocks is not done by this door"),
        (&["file", "cpus=1024"], "cpus=1024: this process may use "),
    ] {
        let answer = place.answer(words);
        let said = answer["cannot"].as_str().unwrap_or_else(|| panic!("{answer}"));
        assert!(said.contains(why), "{words:?}: {said}");
        assert!(answer["given"].is_object() && answer["figures"].is_null(), "{answer}");
    }
}

#[test]
fn openssl_speed_calls_the_engine_that_the_method_names() {
    let place = Place::new();
    let point = ["cipher", "cipher=aes-256-cbc", "bytes=4K", "--seconds", "0.2", "--rounds", "1"];
    let figures = ["throughput", "cpu_share"];
    let by = |more: &[&str]| place.measured(&[&point[..], more].concat(), &figures);
    let cpu = by(&["--policy", "instruction"]);
    assert!(did(&cpu, "instruction aes-256-cbc-encrypt "), "{cpu}");
    assert_eq!((&cpu["device"], &cpu["policy"]), (&"none".into(), &"instruction".into()));
    let given = &cpu["given"];
    assert_eq!((&given["cipher"], &given["bytes"]), (&"aes-256-cbc".into(), &"4096".into()));
    assert_eq!((&given["processes"], &cpu["seconds"]), (&"1".into(), &1.0.into()), "whole seconds");
    let card = by(&["--policy", "offload", "--emulate", "eeca-soc"]);
    assert!(did(&card, "emulated aes-256-cbc-encrypt "), "{card}");
    assert_eq!(card["device"], "emulated eeca-soc");
    let two = by(&["--policy", "instruction", "processes=2"]);
    assert!(did(&two, "instruction aes-256-cbc-encrypt "), "{two}");
}

#[test]
fn nginx_answers_handshakes_and_pages_as_asked() {
    let place = Place::new();
    built::program();
    let figures = ["rate", "cpu_us", "p50_us", "p99_us", "worker_share"];
    let point = |words: &[&str], more: &[&str]| {
        let first = ["https", "connections=4", "--seconds", "0.3", "--rounds", "2"];
        place.measured(&[&first[..], words].concat(), &[&figures[..], more].concat())
    };
    let shaken = point(&["key=p256", "full=0.5"], &["engine_share", "resumed_share"]);
    assert!(
        did(&shaken, "lanes ecdsa-p256-sign ") || did(&shaken, "instruction ecdsa-p256-sign "),
        "{shaken}"
    );
    assert_eq!(shaken["figures"]["rate"]["rounds"], 2);
    assert_eq!(shaken["given"]["suite"], "ecdhe-ecdsa-aes256-gcm-sha384");
    let page = ["version=1.3", "page=64K", "keepalive=no", "gzip=1", "stream=64k", "chunk=16k"];
    let page = point(&page, &["engine_share", "bytes_per_s", "ratio"]);
    assert!(page["figures"]["ratio"]["low"].as_f64() > Some(1.0), "{page}");
    // The suites of old papers, each made by the client itself.
    for suite in ["ecdhe-rsa-aes256-sha384", "ecdhe-rsa-aes128-sha256", "ecdhe-rsa-aes256-sha"] {
        let suite = format!("suite={suite}");
        let stock = point(&["side=stock", "page=64K", &suite], &["bytes_per_s"]);
        assert!(engines(&stock).is_empty() && stock["figures"]["engine_share"].is_null(), "{stock}");
    }
}

/// By RSA alone the server's key opens what the client sends: there is no curve.
#[test]
fn keys_are_exchanged_by_rsa_where_a_suite_says_so() {
    let place = Place::new();
    built::program();
    let words = ["https", "suite=rsa-aes128-sha", "connections=3", "--seconds", "0.2", "--rounds", "1"];
    let exchanged = place.measured(&words, &["rate", "cpu_us", "worker_share", "engine_share"]);
    // Looking at the status page is a handshake with the curve.
    let count = |what: &str| -> u64 {
        let of = |engine: String| engine.split_once(what)?.1.split(' ').next()?.parse::<u64>().ok();
        engines(&exchanged).into_iter().filter_map(of).sum()
    };
    assert!(count(" rsa-2048-private ") > 2 && count(" x25519-derive ") <= 2, "{exchanged}");
    assert!(exchanged["figures"]["p50_us"].is_null(), "{exchanged}");
    let given = &exchanged["given"];
    assert_eq!((&given["suite"], &given["group"]), (&"rsa-aes128-sha".into(), &"".into()));
}

#[test]
fn the_stock_server_gives_a_device_its_work_without_the_module() {
    let place = Place::new();
    built::program();
    let words = ["https", "side=straight", "connections=4", "--seconds", "0.3", "--rounds", "1"];
    let words = [&words[..], &["--policy", "offload", "--emulate", "dh8970"]].concat();
    let straight = place.measured(&words, &["rate", "cpu_us", "p50_us", "p99_us", "worker_share"]);
    assert!(did(&straight, "emulated rsa-2048-private "), "{straight}");
    assert_eq!(
        (&straight["device"], &straight["given"]["side"]),
        (&"emulated dh8970".into(), &"straight".into())
    );
}

#[test]
fn an_emulated_card_shakes_hands_under_a_published_rule() {
    let place = Place::new();
    built::program();
    let words = ["https", "connections=8", "--seconds", "0.5", "--rounds", "1", "--policy", "offload"];
    let card = place.measured(&[&words[..], &["--emulate", "dh8970"]].concat(), &["rate"]);
    assert!(did(&card, "emulated rsa-2048-private "), "{card}");
    assert_eq!(card["device"], "emulated dh8970");
}

#[test]
fn a_volume_is_written_and_read_or_the_answer_says_why_not() {
    let place = Place::new();
    let fuse = fs::File::options().read(true).write(true).open("/dev/fuse");
    for (operation, kind) in [("write", "aes-256-gcm-seal"), ("read", "aes-256-gcm-open")] {
        let operation = format!("operation={operation}");
        let words = ["volume", &operation, "block=64K", "processes=2", "size=1M", "cpus=1"];
        let words = [
            &words[..],
            &["--seconds", "0.2", "--rounds", "1", "--policy", "offload", "--emulate", "dh8970"],
        ]
        .concat();
        if fuse.is_err() {
            let answer = place.answer(&words);
            assert!(answer["cannot"].as_str().is_some_and(|why| why.starts_with("/dev/fuse: ")), "{answer}");
            continue;
        }
        let figures = ["bandwidth", "latency_us", "p99_us", "cpu_share", "submit_us", "complete_us"];
        let volume = place.measured(&words, &figures);
        assert_eq!((&volume["given"]["cpus"], &volume["given"]["place"]), (&"1".into(), &"/dev/shm".into()));
        assert!(did(&volume, &format!("emulated {kind} ")), "{volume}");
    }
}

/// A file that an emulated GPU has some part of. Of a short one the CPU takes everything back where the thread that feeds the
/// GPU comes late.
fn with_a_gpu(place: &Place, words: &[&str]) -> Value {
    let of = |bytes| {
        let words = [&["file", bytes, "--policy", "eep", "--rounds", "1"], words].concat();
        place.measured(&words, &["seconds", "throughput", "cpu_share", "device_share"])
    };
    let mut files = ["bytes=4M", "bytes=32M", "bytes=256M"].into_iter().map(of);
    files.find(|file| did(file, "emulated aes-256-gcm-seal ")).expect("the GPU never works")
}

#[test]
fn a_file_is_divided_between_the_cpu_and_an_emulated_gpu_as_asked() {
    let file = with_a_gpu(&Place::new(), &["share=250", "streams=2", "--emulate", "h200"]);
    // The border at most: what an emulated GPU is late with, the CPU takes back.
    let share = file["figures"]["device_share"]["value"].as_f64().unwrap();
    assert!(share > 0.0 && share <= 0.25 + 2.0 / 256.0, "{file}");
    assert_eq!(file["device"], "emulated h200");
}

#[test]
fn a_file_is_sealed_on_one_cpu_and_at_one_of_a_devices_clocks() {
    let file = with_a_gpu(&Place::new(), &["cpus=1", "clock=324", "--emulate", "k20m", "share=500"]);
    let given = &file["given"];
    assert_eq!((&given["cpus"], &given["clock"]), (&"1".into(), &"324".into()));
    assert!(given["place"].is_string() && file["device"] == "emulated k20m", "{file}");
}

#[test]
fn a_stream_passes_the_published_machine() {
    let place = Place::new();
    let words = ["stream", "messages=30", "rule=gp", "--rounds", "1"];
    let stream = place.measured(&words, &["seconds", "throughput", "retransmissions", "joules"]);
    assert_eq!((&stream["device"], &stream["joules"]["word"]), (&"emulated k20m".into(), &"modelled".into()));
    let cpu =
        place.measured(&["stream", "messages=30", "machine=cpu", "rule=cp", "--rounds", "1"], &["seconds"]);
    assert_eq!(cpu["device"], "none");
}

#[test]
fn an_outside_meter_is_read_while_the_point_runs() {
    let place = Place::new();
    let words = ["file", "bytes=1M", "--policy", "instruction", "--rounds", "1", "--meter-command"];
    let watts = "while :; do echo W 100; sleep 0.02; done";
    let metered = place.measured(&[&words[..], &[watts]].concat(), &["seconds"]);
    let joules = &metered["joules"];
    assert_eq!((&joules["word"], &joules["per"]), (&"measured".into(), &"byte".into()), "{metered}");
    assert_eq!(joules["domain"], "outside meter, watts integrated");
    for (meter, why) in [
        ("echo W 5; sleep 1000", "it said nothing for 5s"),
        ("echo W 5; echo five watts; sleep 1000", "neither `J TOTAL` nor `W NOW`"),
        ("echo no such board >&2; exit 3", "it ended (no such board)"),
    ] {
        let output = place.run(&[&words[..], &[meter]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && said.contains(why), "{meter}: {said}");
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(answer["joules"].is_null() && answer["figures"]["seconds"].is_object(), "{answer}");
    }
}

/// The meter of the point says when it has begun, and goes with it.
#[test]
fn a_point_that_is_interrupted_leaves_nothing_behind() {
    let place = Place::new();
    let (begun, number) = (place.path("begun"), place.path("number"));
    let meter = format!(
        "echo $$ >{}; while :; do echo W 1; : >{}; sleep 0.02; done",
        number.display(),
        begun.display()
    );
    let words = ["cipher", "processes=2", "--seconds", "600", "--meter-command", &meter];
    let mut child = place.command(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while !begun.exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ends before it is interrupted");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let id = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "wattlock: interrupted\n");
    assert!(place.is_clean(id));
    let meter = fs::read_to_string(number).unwrap();
    assert!(!Path::new("/proc").join(meter.trim()).exists(), "the meter outlives the point");
}

/// `timeout` tells the whole process group to end, and the lab its bench once more.
#[test]
fn a_point_that_is_told_to_end_again_and_again_cleans_up_all_the_same() {
    let place = Place::new();
    built::program();
    let begun = place.path("begun");
    let meter = format!("while :; do echo W 1; : >{}; sleep 0.02; done", begun.display());
    let words = ["https", "connections=4", "--seconds", "600", "--meter-command", &meter];
    let mut child = place.command(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while !begun.exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ends before it is told to");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let id = child.id();
    for signal in ["-TERM", "-INT"].iter().cycle() {
        if child.try_wait().unwrap().is_some() {
            break;
        }
        Command::new("kill").args([signal, &*id.to_string()]).stderr(Stdio::null()).status().unwrap();
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(130), &b""[..]), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "wattlock: interrupted\n");
    assert!(place.is_clean(id), "folders are left");
    let own = place.path("").display().to_string();
    let is_own = |entry: &fs::DirEntry| {
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains(&own)
    };
    let left: Vec<_> = fs::read_dir("/proc").unwrap().flatten().filter(is_own).collect();
    assert!(left.is_empty(), "servers are left: {left:?}");
}
