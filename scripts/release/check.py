#!/usr/bin/env python3
"""Each long check of SECURITY.md once on a release's product code: `make release-check`. Hours.

    scripts/release/check.py [CHECK...]        runs what is due, of all checks or of these
    scripts/release/check.py --due [CHECK...]  says what is due and why, and runs nothing

A check has parts: a crate under a sanitizer, a quarter of an hour of fuzzing, a family of kinds on the clock. What has
passed is kept at once in docs/measurements/release/checks.json, with its commit, so a run that was cut off goes on with
the part that it was at. A part is due if it never passed, if its command is another one now, or if what it is about
differs between its commit and HEAD: of a crate's check that crate, the libraries' versions and the check's own script.
So a mend repeats the checks of the crates that it touched. A failed part is kept with its log and stays due; the others
go on. If it passes later on the same code, its result says at which try. Nothing is kept of a part if what it is about
changed meanwhile, or if it checked less than it should.

A part that lacks a program is told at once and not run, and so is one that lacks disk. Timing runs last and alone: when
the machine has been calm for a minute, or not at all. One run at a time; its end ends its programs.
Exit code: 0 if nothing is due any more, 1 if something is, 2 for a usage error or a tree with changes, 130 if cut off.
"""
import argparse
import contextlib
import ctypes
import dataclasses
import datetime
import fcntl
import json
import os
import pathlib
import re
import shutil
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
# What is handed out: the programs, libraries and pages of a release, and how they are built and installed.
PRODUCT = (".cargo", "crates", "debian", "docs/use", "examples", "Makefile", "nginx", "papers", "scripts/release",
           "scripts/setup", "systemd")
# What `make test` reads beside.
TESTED = ("corpus", "fuzz", "gpu", "monitoring", "python", "scripts/measure", "scripts/test")
# Says nothing of the product: the public keys, which come right before the tag, and this.
APART = ("scripts/release/allowed_signers", "scripts/release/check.py", "scripts/release/check_test.py")
# No door of a user's: only the checks that name them are about them.
TOOLS = ("crates/wattlock-bench", "crates/wattlock-lab")
UNSAFE = re.compile(r"\bunsafe (?:\{|fn\b|impl\b|extern\b)")
MUTANTS = ("policy", "files", "fs", "stream", "runtime")
PLANTED = {  # the crate whose check must find each fault
    "load-by-key": "wattlock-cpu", "byte-past-the-end": "wattlock-cpu", "counter-without-lock": "wattlock",
    "header-trusted": "wattlock-files", "comparison-turned": "wattlock-policy",
}
SANITIZE = ("scripts/test/sanitize.sh", "scripts/test/sanitize.supp")
PLANTED_BY = {  # what runs that check, if cargo alone does not
    "byte-past-the-end": SANITIZE, "counter-without-lock": SANITIZE,
    "header-trusted": ("scripts/test/fuzz-smoke.sh", "fuzz"),
}
FUZZ_MINUTES, FUZZ_PARTS = 15, 8
# What a check says if it did not do all of it. Kafka alone may be absent: Java is no part of a build, and the soak's
# result names what did not run. A line that begins with a space tells how far a fresh machine is. A scenario of nginx's
# tests that cannot run says `NAME: not run: WHY`.
LESS = re.compile(r"^(?! ).*(?:nothing is checked|that part is not checked|not run here)|^[^ ]+: not run: "
                  r"|^not run: (?!bridge: )", re.M)
# Builds of a check, which nothing needs once all of its parts have passed.
BUILDS = {"address": ("sanitize/address", "asan"), "thread": ("sanitize/thread",), "planted": ("planted",),
          "mutants": ("mutants",)}
ROOM = 15 << 30


@dataclasses.dataclass(frozen=True)
class Part:
    """`about`: files and folders of which a change makes it due. `says`: what is kept of its output, the last match.
    `needs`: programs, and files that must be writable."""

    name: str
    command: str
    about: tuple
    says: str = r"\S.*"
    alone: bool = False
    needs: tuple = ()

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
    """Kinds with a secret that lanes do, by family; each length of RSA is one of its own, for its passes take long."""
    lanes, found = set(), {}
    for path in (root / "crates/wattlock-cpu/src/lanes").rglob("mod.rs"):
        for table in re.findall(r"(?:KINDS: \[Kind; \d+\]|KERNELS: &\[Row\]) = &?\[(.*?)\];", path.read_text(), re.S):
            lanes.update(re.findall(r"Kind::(\w+)", table))
    text = (root / "crates/wattlock-core/src/kind.rs").read_text()
    for kind, name, family in re.findall(r'^    (\w+) = "([a-z0-9-]+)", (\w+) ', text, re.M):
        if kind in lanes and family != "Digest":
            found.setdefault(name if name.startswith("rsa") else family.lower(), []).append(name)
    return found


def parts(root):
    """All parts, in the order in which they run: a fault that is cheap to find comes first."""
    made = []

    def add(name, command, *about, **more):
        made.append(Part(name, command, (*about, *ALWAYS), **more))

    sums = r"(?:address|thread) sanitizer: .*"
    kernels = (crate("wattlock-cpu"), crate("wattlock-core"))
    add("secrets", "scripts/test/secrets.sh", *kernels, "scripts/test/secrets.sh", "scripts/test/secrets.supp",
        needs=("valgrind",))
    for one in unsafe_crates(root):
        add(f"address/{one}", f"scripts/test/sanitize.sh address {one}", crate(one), *SANITIZE, says=sums)
    for one in threaded_crates(root):
        add(f"thread/{one}", f"scripts/test/sanitize.sh thread {one}", crate(one), *SANITIZE, says=sums)
    door = (crate("wattlock-provider"), "nginx")
    add("address/nginx", "scripts/test/newer.sh scripts/test/asan.sh", *door, "scripts/test/asan.sh",
        "scripts/test/newer.sh", says=sums)
    add("valgrind", "scripts/test/valgrind.sh", *door, "scripts/test/valgrind.sh", needs=("valgrind", "nginx"))
    for fault, one in PLANTED.items():
        add(f"planted/{fault}", f"scripts/test/planted.sh {fault}", crate(one), f"scripts/test/planted/{fault}.patch",
            "scripts/test/planted.sh", *PLANTED_BY.get(fault, ()), says=r"planted: \d.*")
    fuzzed = re.findall(r'path = "\.\./(crates/[\w-]+)"', (root / "fuzz/Cargo.toml").read_text())
    for number in range(1, FUZZ_PARTS + 1):
        add(f"fuzz/{number}-of-{FUZZ_PARTS}", f"make fuzz MINUTES={FUZZ_MINUTES}", "fuzz", "scripts/test/fuzz.py",
            *fuzzed, says=r"fuzz: .* executions.*")
    for one in MUTANTS:
        name = "wattlock" if one == "runtime" else f"wattlock-{one}"
        add(f"mutants/{one}", f"SAMPLE=40 scripts/test/mutants.sh {one}", crate(name), "scripts/test/mutants.sh",
            "scripts/test/mutants.toml", says=r"mutants: .* noticed.*", needs=("cargo-mutants",))
    # One part: memory that grows shows over the whole of its time.
    add("soak", "make soak HOURS=1.5", "crates", "nginx", "scripts/soak/together", says=r".*at once: .*",
        needs=("nginx", "/dev/fuse"))
    whole = (*PRODUCT, *TOOLS)
    for release, more, command in (("own", TESTED, "test"), ("next", (), "run")):
        add(f"package/{release}", f"make package RELEASE={release} && make package-test RELEASE={release}", *whole,
            says=r"\d+ passed, .*", needs=("mmdebstrap",))
        add(f"fresh/{release}", f"scripts/release/fresh.sh {release}", *whole, *more,
            says=rf".*: make {command}: good .*", needs=("mmdebstrap",))
    for one, kinds in families(root).items():
        add(f"timing/{one}", f"scripts/measure/timing.sh {' '.join(kinds)}", *kernels, "scripts/measure/timing.sh",
            says=r"(?!control:).*(?:none seen|not timed|LEAK).*", alone=True)
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
    """The first changed file that a part is about. Pages count only by their folder, and so do the tools."""
    for name in changed:
        page = name.endswith(".md") and not name.startswith(tuple(one for one in about if one.startswith("docs/")))
        if page or name in APART:
            continue
        if name.startswith(tuple(f"{tool}/" for tool in TOOLS)) and not set(about) & set(TOOLS):
            continue
        if any(name == one or name.startswith(f"{one}/") for one in about):
            return name
    return None


def differs(root, part, commit):
    """In what a part differs from a commit, or None."""
    changed = git(root, "diff", "--name-only", "--no-renames", commit, "HEAD")
    if changed is None:
        return f"its commit {commit} is not here"
    name = touched(changed.splitlines(), part.about)
    return f"{name} differs from {commit}" if name else None


def why_due(root, part, kept):
    """Why a part must run, or None."""
    old = kept.get(part.name, {})
    if "result" not in old:
        return "never passed"
    if old["command"] != part.command:
        return f"it was another command: {old['command']}"
    return differs(root, part, old["commit"])


def lacks(part, target):
    """What a part would run into after hours."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:{pathlib.Path.home()}/.cargo/bin"
    missing = [one for one in part.needs
               if not (os.access(one, os.W_OK) if one.startswith("/") else shutil.which(one, path=path))]
    if shutil.disk_usage(target).free < ROOM:
        missing.append(f"{ROOM >> 30} GB of disk")
    return ", ".join(missing)


def load(root):
    path = root / KEPT
    return json.loads(path.read_text())["parts"] if path.exists() else {}


def store(root, kept):
    path = root / KEPT
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"what": "make release-check", "parts": dict(sorted(kept.items()))}, indent=1) + "\n")
    new.replace(path)


def children():
    """Children of this process, with the time at which each began: its name, or None if it has ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    found = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            name, rest = path.read_text().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue
        state, parent, began = (rest.split()[at] for at in (0, 1, 19))
        if int(parent) == os.getpid():
            found[int(path.parent.name), began] = None if state == "Z" else name
    return found


def end_orphans(before=()):
    """Ends what a part has left behind, and names it: those of a part that has ended came here, for this is their
    subreaper. What was a child of this process `before` is none of a part's: a program that executed this one began it.
    """
    names = set()
    for turn in range(200):
        if not (found := {one: name for one, name in children().items() if one not in before}):
            break
        names |= {name for name in found.values() if name}
        for one, _ in found:
            with contextlib.suppress(OSError):
                os.kill(one, signal.SIGTERM if turn < 100 else signal.SIGKILL)
        time.sleep(0.1)
    return sorted(names)


def execute(root, part, log, lock=None, before=()):
    """Runs a part in a process group of its own, which holds the lock, too. Its exit code and its output."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w+", errors="replace") as out:
        # What interrupts waits until there is a child to end.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        child = subprocess.Popen(["bash", "-o", "pipefail", "-c", part.command], cwd=root, stdin=subprocess.DEVNULL,
                                 stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                                 pass_fds=[lock.fileno()] if lock else [],
                                 preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask))
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            code = child.wait()
        except BaseException:
            os.killpg(child.pid, signal.SIGTERM)
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            raise
        finally:
            if left := end_orphans(before):
                print(f"left     {part.name}: ended {', '.join(left)}", flush=True)
        out.seek(0)
        return code, out.read()


def sentence(part, said):
    """What is kept of a part's output."""
    lines = re.findall(rf"^(?:{part.says})$", said, re.M)
    if part.alone:
        return "; ".join(" ".join(line.split()) for line in lines)
    return " ".join(lines[-1].split())[:600] if lines else ""


def run(root, chosen, kept, target, is_calm=calm, lock=None, known=(), before=()):
    """Runs what is due of these parts, of all that are known; keeps what passes. Names of what is due still. Children
    that this process had `before` are left alone."""
    left, calm_yet, logs = [], True, target / "release-check"
    logs.mkdir(parents=True, exist_ok=True)

    def leave(part, what, word="NOT RUN "):
        print(f"{word} {part.name}: {what}", flush=True)
        left.append(part.name)

    due = []
    for part in chosen:
        if not why_due(root, part, kept):
            print(f"kept     {part.name}: {kept[part.name]['commit']}, {kept[part.name]['date']}", flush=True)
        elif missing := lacks(part, logs):
            leave(part, f"missing: {missing}")
        else:
            due.append(part)
    for part in due:
        if missing := lacks(part, logs):
            leave(part, f"missing: {missing}")
            continue
        if changed := touched(dirty(root), part.about):
            leave(part, f"{changed} is not committed")
            continue
        if part.alone and not (calm_yet := calm_yet and is_calm()):
            leave(part, "other programs use the machine; run it again when it is calm")
            continue
        print(f"running  {part.name}: {why_due(root, part, kept)}: {part.command}", flush=True)
        commit, began = git(root, "rev-parse", "--short", "HEAD").strip(), time.monotonic()
        old = kept.get(part.name, {})
        failed = [one for one in old.get("failed", []) if not differs(root, part, one["commit"])]
        name = part.name.replace("/", "-")
        numbers = [int(path.suffixes[-2][1:]) for path in logs.glob(f"{name}.[0-9]*.log")]
        log = logs / f"{name}.{1 + max(numbers, default=0)}.log"
        code, said = execute(root, part, log, lock, before)
        took = round(time.monotonic() - began)
        result = sentence(part, said)
        if changed := differs(root, part, commit) or touched(dirty(root), part.about):
            leave(part, f"the tree changed meanwhile ({changed}), after {took} s: {log}", "FAILED  ")
        elif code:
            leave(part, f"exit code {code}, after {took} s: {log}", "FAILED  ")
            failed.append({"commit": commit, "date": datetime.date.today().isoformat(), "log": log.name})
            kept[part.name] = {**old, "failed": failed}
            store(root, kept)
        elif not result or LESS.search(said):
            leave(part, f"it checked nothing, or not all, after {took} s: {log}", "FAILED  ")
        else:
            about = security.run_of(root, part.command, result, None)
            kept[part.name] = {**about, "commit": commit, "seconds": took}
            if failed:
                kept[part.name] |= {"result": f"passed at try {len(failed) + 1}: {result}", "failed": failed}
            store(root, kept)
            print(f"passed   {part.name}: {took} s: {kept[part.name]['result']}", flush=True)
            if not any(one.check == part.check and why_due(root, one, kept) for one in known or chosen):
                for folder in BUILDS.get(part.check, ()):
                    shutil.rmtree(target / folder, ignore_errors=True)
    return left


def main():
    before = frozenset(children())
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
        for one in (signal.SIGTERM, signal.SIGHUP):
            # nohup's programs ignore it.
            if signal.getsignal(one) != signal.SIG_IGN:
                signal.signal(one, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        # PR_SET_CHILD_SUBREAPER: what a part leaves behind becomes a child of this process.
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
        began = datetime.datetime.now()
        try:
            left = run(ROOT, chosen, kept, target, lock=lock, known=known, before=before)
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
