#!/usr/bin/env python3
"""Each long check of SECURITY.md once on a release's product code: `make release-check`. Hours.

    scripts/release/check.py [CHECK...]        runs what is due, of all checks or of these
    scripts/release/check.py --due [CHECK...]  says what is due and why, and runs nothing

A check has parts: a crate under a sanitizer, a quarter of an hour of fuzzing, a family of kinds on the clock. What has
passed is kept at once in docs/measurements/release/checks.json, with its commit, so a run that was cut off goes on with
the part that it was at. A part is due if it was never kept, if its command is another one now, or if what it is about
differs between its commit and HEAD: of a crate's check that crate, the libraries' versions and the check's own script.
So a mend repeats the checks of the crates that it touched. A failed part is told with its log and stays due; the others
go on. Nothing runs on a tree with changes, and nothing is kept of a tree that changed meanwhile.

Timing runs alone: when the machine has been calm for a minute, or not at all. One run at a time; ^C ends its programs.
Exit code: 0 if nothing is due any more, 1 if something is, 2 for a usage error or a tree with changes, 130 after ^C.
"""
import argparse
import dataclasses
import datetime
import fcntl
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts/test"), str(ROOT / "scripts/measure")]
import security  # noqa: E402
from calm import calm  # noqa: E402

KEPT = "docs/measurements/release/checks.json"
# Versions of libraries are part of what any check has seen.
ALWAYS = ("Cargo.lock", "Cargo.toml")
# What is handed out: the programs and libraries of a release, and how they are built and installed.
PRODUCT = ("crates", "nginx", "debian", "systemd", "Makefile", "scripts/setup", "scripts/release", "README.md")
# No door of a user's: only the checks that name them are about them.
TOOLS = ("crates/wattlock-bench", "crates/wattlock-lab")
UNSAFE = re.compile(r"\bunsafe (?:\{|fn\b|impl\b|extern\b)")
MUTANTS = ("policy", "files", "fs", "stream", "runtime")
PLANTED = {  # the crate whose check must find each fault
    "load-by-key": "wattlock-cpu", "byte-past-the-end": "wattlock-cpu", "counter-without-lock": "wattlock",
    "header-trusted": "wattlock-files", "comparison-turned": "wattlock-policy",
}
FUZZ_MINUTES, FUZZ_PARTS = 15, 8


@dataclasses.dataclass(frozen=True)
class Part:
    """`about`: files and folders of which a change makes it due. `says`: what is kept of its output, the last match."""

    name: str
    command: str
    about: tuple
    says: str = r"\S.*"
    alone: bool = False

    @property
    def check(self):
        return self.name.split("/")[0]


def crate(name):
    return f"crates/{name}"


def unsafe_crates(root):
    return sorted({path.relative_to(root / "crates").parts[0] for path in (root / "crates").glob("*/src/**/*.rs")
                   if any(UNSAFE.search(line.split("//")[0]) for line in path.read_text().splitlines())})


def threaded_crates(root):
    """Those that scripts/test/sanitize.sh takes by itself."""
    found = re.search(r"crates=\((wattlock [^)]*)\)", (root / "scripts/test/sanitize.sh").read_text())
    return found[1].split()


def families(root):
    """Kinds with a timed pass, by family; each length of RSA is one of its own, for its passes take long."""
    found = {}
    text = (root / "crates/wattlock-core/src/kind.rs").read_text()
    for name, family in re.findall(r'^    \w+ = "([a-z0-9-]+)", (\w+) ', text, re.M):
        found.setdefault(name if name.startswith("rsa") else family.lower(), []).append(name)
    return found


def parts(root):
    """All parts, in the order in which they run: a fault that is cheap to find comes first."""
    made = []

    def add(name, command, *about, **more):
        made.append(Part(name, command, (*about, *ALWAYS), **more))

    sums = r"(?:address|thread) sanitizer: .*|test result: .*"
    kernels = (crate("wattlock-cpu"), crate("wattlock-core"))
    add("secrets", "scripts/test/secrets.sh", *kernels, "scripts/test/secrets.sh", "scripts/test/secrets.supp")
    for one in unsafe_crates(root):
        add(f"address/{one}", f"scripts/test/sanitize.sh address {one}", crate(one), "scripts/test/sanitize.sh",
            "scripts/test/sanitize.supp", says=sums)
    for one in threaded_crates(root):
        add(f"thread/{one}", f"scripts/test/sanitize.sh thread {one}", crate(one), "scripts/test/sanitize.sh",
            "scripts/test/sanitize.supp", says=sums)
    door = (crate("wattlock-provider"), "nginx")
    add("address/nginx", "scripts/test/newer.sh scripts/test/asan.sh", *door, "scripts/test/asan.sh")
    add("valgrind", "scripts/test/valgrind.sh", *door, "scripts/test/valgrind.sh")
    for fault, one in PLANTED.items():
        add(f"planted/{fault}", f"scripts/test/planted.sh {fault}", crate(one), f"scripts/test/planted/{fault}.patch",
            "scripts/test/planted.sh", says=r"planted: \d.*")
    fuzzed = re.findall(r'path = "\.\./(crates/[\w-]+)"', (root / "fuzz/Cargo.toml").read_text())
    for number in range(1, FUZZ_PARTS + 1):
        add(f"fuzz/{number}-of-{FUZZ_PARTS}", f"make fuzz MINUTES={FUZZ_MINUTES}", "fuzz", "scripts/test/fuzz.py",
            *fuzzed, says=r"fuzz: .* executions.*")
    for one in MUTANTS:
        name = "wattlock" if one == "runtime" else f"wattlock-{one}"
        add(f"mutants/{one}", f"SAMPLE=40 scripts/test/mutants.sh {one}", crate(name), "scripts/test/mutants.sh",
            "scripts/test/mutants.toml", says=r"mutants: .* noticed.*")
    # One part: memory that grows shows over the whole of its time.
    add("soak", "make soak HOURS=1.5", "crates", "nginx", "scripts/soak/together", says=r".*at once: .*")
    whole = (*PRODUCT, *TOOLS)
    for one, kinds in families(root).items():
        add(f"timing/{one}", f"scripts/measure/timing.sh {' '.join(kinds)}", *kernels, "scripts/measure/timing.sh",
            says=r".*(?:none seen|not timed|LEAK).*", alone=True)
    for release in ("own", "next"):
        add(f"package/{release}", f"make package RELEASE={release} && make package-test RELEASE={release}", *whole)
        add(f"fresh/{release}", f"scripts/release/fresh.sh {release}", *whole)
    return made


def git(root, *words):
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def dirty(root):
    """Changed and new files, but for what a run of this keeps."""
    names = [line[3:] for line in git(root, "status", "--porcelain", "--untracked-files=all").splitlines()]
    own = ("docs/measurements/release/", "docs/measurements/fresh.json")
    return [name for name in names if not name.startswith(own)]


def touched(changed, about):
    """The first changed file that a part is about. Pages count only by name, and so do the tools."""
    for name in changed:
        if name.endswith(".md") and name not in about:
            continue
        if name.startswith(tuple(f"{tool}/" for tool in TOOLS)) and not set(about) & set(TOOLS):
            continue
        if any(name == one or name.startswith(f"{one}/") for one in about):
            return name
    return None


def why_due(root, part, kept):
    """Why a part must run, or None."""
    old = kept.get(part.name)
    if old is None:
        return "never passed"
    if old["command"] != part.command:
        return f"it was another command: {old['command']}"
    changed = git(root, "diff", "--name-only", "--no-renames", old["commit"], "HEAD")
    if changed is None:
        return f"its commit {old['commit']} is not here"
    name = touched(changed.splitlines(), part.about)
    return f"{name} differs from {old['commit']}" if name else None


def load(root):
    path = root / KEPT
    return json.loads(path.read_text())["parts"] if path.exists() else {}


def store(root, kept):
    path = root / KEPT
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"what": "make release-check", "parts": dict(sorted(kept.items()))}, indent=1) + "\n")
    new.replace(path)


def execute(root, part, log):
    """Runs a part in a process group of its own. Its exit code and its output."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w+", errors="replace") as out:
        child = subprocess.Popen(["bash", "-o", "pipefail", "-c", part.command], cwd=root, stdin=subprocess.DEVNULL,
                                 stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = child.wait()
        except BaseException:
            os.killpg(child.pid, signal.SIGTERM)
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            raise
        out.seek(0)
        return code, out.read()


def sentence(part, said):
    """What is kept of a part's output."""
    lines = re.findall(rf"^(?:{part.says})$", said, re.M)
    if part.alone:
        return "; ".join(" ".join(line.split()) for line in lines)
    return " ".join(lines[-1].split())[:400] if lines else ""


def run(root, chosen, kept, target, is_calm=calm):
    """Runs what is due of these parts; keeps what passes. Names of what is due still."""
    left = []
    for part in chosen:
        why = why_due(root, part, kept)
        if not why:
            print(f"kept     {part.name}: {kept[part.name]['commit']}, {kept[part.name]['date']}", flush=True)
            continue
        print(f"running  {part.name}: {why}: {part.command}", flush=True)
        if part.alone and not is_calm():
            print(f"NOT RUN  {part.name}: other programs use the machine; run it again when it is calm", flush=True)
            left.append(part.name)
            continue
        commit, began = git(root, "rev-parse", "--short", "HEAD").strip(), time.monotonic()
        log = target / "release-check" / f"{part.name.replace('/', '-')}.log"
        code, said = execute(root, part, log)
        took = round(time.monotonic() - began)
        result = sentence(part, said)
        # What a check says if the machine lacks the program that it is made with.
        empty = not result or re.search(r"nothing is checked|that part is not checked", said)
        changed = dirty(root) or git(root, "rev-parse", "--short", "HEAD").strip() != commit
        if code or empty or changed:
            what = f"exit code {code}" if code else "it checked nothing" if empty else "the tree changed meanwhile"
            print(f"FAILED   {part.name}: {what}, after {took} s: {log}", flush=True)
            left.append(part.name)
            continue
        about = security.run_of(root, part.command, result, None)
        kept[part.name] = {**about, "commit": commit, "seconds": took}
        store(root, kept)
        print(f"passed   {part.name}: {took} s: {result}", flush=True)
    return left


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--due", action="store_true")
    parser.add_argument("checks", nargs="*", metavar="CHECK")
    words = parser.parse_args()
    known, kept = parts(ROOT), load(ROOT)
    chosen = [part for part in known if not words.checks or part.check in words.checks or part.name in words.checks]
    for name in set(words.checks) - {word for part in known for word in (part.check, part.name)}:
        parser.error(f"no check {name}: there are {', '.join(dict.fromkeys(part.check for part in known))}")
    if words.due:
        due = [(part, why) for part in chosen if (why := why_due(ROOT, part, kept))]
        for part, why in due:
            print(f"{part.name}: {why}: {part.command}")
        print(f"{len(due)} of {len(chosen)} parts are due")
        return 1 if due else 0
    if changed := dirty(ROOT):
        print(f"release-check: commit the tree's changes first: {', '.join(changed[:5])}", file=sys.stderr)
        return 2
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
    target.joinpath("release-check").mkdir(parents=True, exist_ok=True)
    with target.joinpath("release-check/lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print("release-check: another one runs here: timing would not be alone", file=sys.stderr)
            return 2
        signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        began = datetime.datetime.now()
        try:
            left = run(ROOT, chosen, kept, target)
        except KeyboardInterrupt:
            print("release-check: cut off; the next run goes on here", file=sys.stderr)
            return 130
    print(f"release-check: {len(chosen) - len(left)} of {len(chosen)} parts have passed on this code; "
          f"{datetime.datetime.now() - began}".split(".")[0])
    for name in left:
        print(f"due: {name}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
