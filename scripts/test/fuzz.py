#!/usr/bin/env python3
"""Fuzzes every target of fuzz/ with the address sanitizer, for a time that they share, on all cores:

    scripts/test/fuzz.py [--minutes N] [TARGET...]     10 minutes, all targets; `make fuzz MINUTES= TARGETS=` is this
    scripts/test/fuzz.py --replay FILE [TARGET]        one input again; the target is the file's name up to its first hyphen
    scripts/test/fuzz.py --minimise [TARGET...]        what the corpora found, into fuzz/seeds: few small files, at most 4 MiB

Corpora grow in target/fuzz-corpus from one run to the next; the seeds in fuzz/seeds are read beside them. A find is kept in
target/fuzz-finds, and the status is 1. So is that of every later run that it still breaks: each begins with them. Prints executions, what is covered (counters of edges that were reached, of those that
there are) and how many inputs are new; the same goes to target/fuzz.json.

SANITIZER=none leaves the sanitizer out. Needs no other toolchain: RUSTC_BOOTSTRAP=1 lets the stable compiler take -Z flags, as
in scripts/test/sanitize.sh. Builds into target/fuzz.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

try:
    import tomllib
except ImportError:  # Python before 3.11
    tomllib = None

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
CORPUS, FINDS, SEEDS = TARGET / "fuzz-corpus", TARGET / "fuzz-finds", ROOT / "fuzz" / "seeds"
# What all seeds in git may take.
SEEDS_MOST = 4 << 20
# What one input may take.
LIMITS = ["-timeout=25", "-rss_limit_mb=4096"]
COVERAGE = [
    "-Cpasses=sancov-module", "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters", "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
]


# The one target that is no program of the manifest, and that no coverage guides: its reader is Python.
PYTHON = {"safetensors": ROOT / "fuzz" / "targets" / "safetensors.py"}


def known():
    """Names of all targets: the manifest's programs, and what is Python."""
    text = (ROOT / "fuzz" / "Cargo.toml").read_text(encoding="utf-8")
    if tomllib:
        programs = [binary["name"] for binary in tomllib.loads(text)["bin"]]
    else:
        programs = re.findall(r'^\[\[bin\]\]\nname = "(\w+)"', text, re.M)
    return programs + list(PYTHON)


def host():
    said = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    return re.search(r"^host: (.*)$", said, re.M).group(1)


def build(names):
    """Builds the programs and returns their folder."""
    names = [name for name in names if name not in PYTHON]
    if not names:
        return TARGET
    flags = ["--cfg", "fuzzing", *COVERAGE, "-Ccodegen-units=1"]
    place, env = TARGET / "fuzz", dict(os.environ)
    if os.environ.get("SANITIZER", "address") == "address":
        flags += ["-Zsanitizer=address", "-Cforce-frame-pointers=yes"]
        env["RUSTC_BOOTSTRAP"] = "1"
    else:
        place = TARGET / "fuzz-plain"
    env |= {"CARGO_TARGET_DIR": str(place), "RUSTFLAGS": " ".join(flags)}
    # A target is named, so that build scripts and macros, which no fuzzer links, stay without coverage.
    triple = host()
    command = ["cargo", "build", "--release", "--locked", "--target", triple, "--features", "linked"]
    command += [word for name in names for word in ("--bin", name)]
    if subprocess.run(command, cwd=ROOT / "fuzz", env=env, check=False).returncode:
        sys.exit("fuzz: the targets do not build")
    return place / triple / "release"


def environment():
    options = os.environ.get("ASAN_OPTIONS", "")
    # Leaks are not looked for: statics keep what they have.
    return {**os.environ, "ASAN_OPTIONS": f"detect_leaks=0:{options}".rstrip(":"), "RUST_BACKTRACE": "1"}


def inputs(name):
    """The corpus, which grows, and the seeds, which are read."""
    (CORPUS / name).mkdir(parents=True, exist_ok=True)
    return [str(path) for path in (CORPUS / name, SEEDS / name) if path.is_dir()]


def fuzz(folder, name, seconds):
    FINDS.mkdir(parents=True, exist_ok=True)
    if name in PYTHON:
        return fuzz_python(name, seconds)
    before = set(FINDS.glob(f"{name}-*"))
    command = [
        str(folder / name), *inputs(name), f"-max_total_time={seconds}", "-max_len=4096", *LIMITS,
        f"-artifact_prefix={FINDS}/{name}-", "-print_final_stats=1",
    ]
    start = time.monotonic()
    with tempfile.NamedTemporaryFile("w+b", suffix=f".{name}") as log:
        code = subprocess.run(command, env=environment(), check=False, stdout=log, stderr=log, cwd=ROOT / "fuzz").returncode
        log.seek(0)
        said = log.read().decode("utf-8", "replace")
    stat = lambda what: next(iter(re.findall(rf"stat::{what}: *(\d+)", said)), "0")
    reached = [int(cov) for cov in re.findall(r"cov: (\d+)", said)] or [0]
    counters = re.search(r"\((\d+) inline 8-bit counters\)", said)
    return {
        "target": name, "seconds": round(time.monotonic() - start, 1), "executions": int(stat("number_of_executed_units")),
        "coverage_before": reached[0], "coverage": max(reached), "counters": int(counters.group(1)) if counters else 0,
        "new_inputs": int(stat("new_units_added")), "status": code, "end": said[-6000:] if code else "",
        "finds": [str(path) for path in sorted(set(FINDS.glob(f"{name}-*")) - before)],
    }


def fuzz_python(name, seconds):
    """The same of a target that is Python: what it prints last has its executions."""
    command = [sys.executable, str(PYTHON[name]), str(seconds)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=FINDS)
    runs = re.search(r": (\d+) files", done.stdout)
    finds = [str(path) for path in FINDS.glob(f"{name}-*")] if done.returncode else []
    return {
        "target": name, "seconds": seconds, "executions": int(runs.group(1)) if runs else 0, "coverage_before": 0, "coverage": 0,
        "counters": 0, "new_inputs": 0, "status": done.returncode, "end": done.stderr[-6000:], "finds": finds,
    }


def one_again(folder, name, file):
    """The command that gives a target one input."""
    if name in PYTHON:
        return [sys.executable, str(PYTHON[name]), "0", str(file)]
    return [str(folder / name), *LIMITS, str(file)]


def unmended(folder, names):
    """Finds of earlier runs that still break their target."""
    finds = [(name, path) for name in names for path in sorted(FINDS.glob(f"{name}-*"))]
    again = lambda command: subprocess.run(command, env=environment(), check=False, capture_output=True).returncode
    return [path for name, path in finds if again(one_again(folder, name, path))]


def run(names, minutes):
    folder, cores = build(names), len(os.sched_getaffinity(0))
    if broken := unmended(folder, names):
        for find in broken:
            print(f"again: scripts/test/fuzz.py --replay {find}")
        print(f"fuzz: nothing is fuzzed: {len(broken)} finds of earlier runs are not mended")
        return True
    # So that every core has something to do until the end.
    seconds = max(2, int(minutes * 60 * cores / max(len(names), cores)))
    print(f"fuzz: {len(names)} targets, {seconds} s each, {cores} at once")
    print(f"{'target':<14} {'executions':>12} {'covered':>8} {'before':>8} {'of':>8} {'new inputs':>10}")
    done, failed = [], []
    with concurrent.futures.ThreadPoolExecutor(cores) as pool:
        for job in concurrent.futures.as_completed([pool.submit(fuzz, folder, name, seconds) for name in names]):
            result = job.result()
            done.append(result)
            print(
                f"{result['target']:<14} {result['executions']:>12,} {result['coverage']:>8,} {result['coverage_before']:>8,} "
                f"{result['counters']:>8,} {result['new_inputs']:>10,}{'  FAILED' if result['status'] else ''}", flush=True,
            )
            if result["status"] or not result["executions"]:
                failed.append(result)
    total = sum(result["executions"] for result in done)
    print(f"fuzz: {total:,} executions, {sum(r['new_inputs'] for r in done):,} new inputs, {len(failed)} targets failed")
    ends = [result.pop("end") for result in done]
    report = {"minutes": minutes, "cores": cores, "sanitizer": os.environ.get("SANITIZER", "address"), "targets": done}
    (TARGET / "fuzz.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for result in failed:
        print(f"\n== {result['target']}\n{ends[done.index(result)]}")
        for find in result["finds"]:
            print(f"again: scripts/test/fuzz.py --replay {find}")
    return bool(failed)


def replay(file, names):
    name = names[0] if names else pathlib.Path(file).name.split("-")[0]
    if name not in known():
        sys.exit(f"fuzz: {name} is no target: name one behind the file")
    return subprocess.run(one_again(build([name]), name, file), env=environment(), check=False).returncode


def minimise(names):
    folder, room = build(names), SEEDS_MOST // len(known())
    for name in names:
        if name in PYTHON:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            command = [str(folder / name), "-set_cover_merge=1", "-max_len=4096", scratch, *inputs(name)]
            subprocess.run(command, env=environment(), check=True, capture_output=True, cwd=ROOT / "fuzz")
            (SEEDS / name).mkdir(exist_ok=True)
            # Seeds with a name of their own stay; those that a machine named are replaced by what there is now.
            for path in SEEDS.joinpath(name).iterdir():
                if re.fullmatch(r"[0-9a-f]{40}", path.name):
                    path.unlink()
            named = {path.read_bytes() for path in SEEDS.joinpath(name).iterdir()}
            left, kept = room - sum(map(len, named)), 0
            for path in sorted(pathlib.Path(scratch).iterdir(), key=lambda path: path.stat().st_size):
                size = path.stat().st_size
                if size <= left and path.read_bytes() not in named:
                    shutil.copy(path, SEEDS / name / path.name)
                    left, kept = left - size, kept + 1
            print(f"{name}: {kept} seeds, and {len(named)} by name")
    total = sum(path.stat().st_size for path in SEEDS.rglob("*") if path.is_file())
    print(f"fuzz/seeds: {total:,} bytes of {SEEDS_MOST:,}")
    return total > SEEDS_MOST


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--replay", metavar="FILE")
    parser.add_argument("--minimise", action="store_true")
    parser.add_argument("targets", nargs="*")
    asked = parser.parse_args()
    for name in asked.targets:
        if name not in known():
            sys.exit(f"fuzz: there is no target {name}; there are {', '.join(known())}")
    if asked.replay:
        return replay(asked.replay, asked.targets)
    names = asked.targets or known()
    return minimise(names) if asked.minimise else run(names, asked.minutes)


if __name__ == "__main__":
    sys.exit(main())
