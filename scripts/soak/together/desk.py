"""What all doors share: the programs, a key, counters of what was compared, and what may never grow."""

import collections
import contextlib
import json
import os
import random
import re
import resource
import signal
import subprocess
import threading
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]

#: What an emulated card does wrong, and the words with which `wattlock status` counts it.
CARD_FAULTS = {"reported-error": "errs", "silent": "hangs", "wrong-result": "lies", "lost": "vanishes"}

#: Published settings of a mount, a pipe and the provider; each name is one of docs/design/policies.md.
POLICIES = ["offload", "adaptive", "aca-sds", "eeca", "qweb", "instruction", "software", "eep", "lecpaes"]


class Wrong(Exception):
    """A byte, a count, a size or an exit code is not what it must be."""


class NotHere(Exception):
    """What a door needs is not on this machine."""


class Notes:
    """Counts of many threads: what was done, compared and provoked."""

    def __init__(self):
        self.lock, self.counts = threading.Lock(), collections.Counter()

    def add(self, what, count=1):
        with self.lock:
            self.counts[what] += count

    def of(self, what):
        with self.lock:
            return self.counts[what]


class Desk:
    """The folder of a run, its key, and the program under test."""

    def __init__(self, folder, program, provider, module, nginx, bridge, seconds, seed, plant):
        self.folder, self.program, self.seconds, self.seed, self.plant = folder, program, seconds, seed, plant
        self.provider, self.module, self.nginx, self.bridge = provider, module, nginx, bridge
        self.notes, self.end = Notes(), time.monotonic() + seconds
        self.failed = threading.Event()
        self.telemetry = folder / "telemetry"
        # Libraries that a planted fault puts in front of programs are not for the programs that help.
        self.env = {**os.environ, "WATTLOCK_PROFILE": str(folder / "profile.json"),
                    "WATTLOCK_TELEMETRY_DIR": str(self.telemetry), "WATTLOCK_STATE_DIR": str(folder / "state")}
        self.good("keygen", "-o", folder / "key.txt")
        self.key = folder / "key.txt"
        self.recipient = re.search(r"# public key: (\S+)", self.key.read_text())[1]
        self.models = {re.search(r"^name (\S+)", model, re.M)[1]: model
                       for model in self.good("engines", "--models").decode().split("\n\n") if "name " in model}

    def dice(self, name):
        return random.Random(f"{self.seed} {name}")

    def going(self):
        """Whether there is time for another round, and no door has failed."""
        return time.monotonic() < self.end and not self.failed.is_set()

    def command(self, *words):
        return [str(word) for word in (self.program, *words)]

    def run(self, *words, seconds=300, **more):
        """Runs the program to its end."""
        if "input" not in more:
            more.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(self.command(*words), env=self.env, capture_output=True, timeout=seconds, **more)

    def good(self, *words, **more):
        """Runs the program, which must succeed."""
        done = self.run(*words, **more)
        if done.returncode != 0:
            raise Wrong(f"wattlock {' '.join(map(str, words))}: exit code {done.returncode}: {last(done.stderr)}")
        return done.stdout

    def card(self, name, *faults, model="dh8970"):
        """A file with a built-in model and faults, for --emulate."""
        path = self.folder / f"{name}.card"
        path.write_text(self.models[model].rstrip() + "\n" + "".join(f"fault {fault}\n" for fault in faults))
        path.chmod(0o644)
        return path

    def counted(self, pids, folder=None):
        """What `wattlock status` says of processes: by number, its snapshot."""
        env = {**self.env, "WATTLOCK_TELEMETRY_DIR": str(folder or self.telemetry)}
        done = subprocess.run(self.command("status", "--json"), env=env, capture_output=True, timeout=60, check=True)
        return {one["header"]["pid"]: one for one in json.loads(done.stdout) if one["header"]["pid"] in pids}

    def compare(self, what, wanted, found):
        """Compares bytes: the heart of the matter."""
        if self.plant == "byte" and found and self.notes.of("bytes compared") > 1 << 20:
            found = bytes(found[:-1]) + bytes([found[-1] ^ 1])
        self.notes.add("bytes compared", len(wanted))
        if wanted != found:
            at = next((at for at, (one, other) in enumerate(zip(wanted, found)) if one != other), min(len(wanted), len(found)))
            raise Wrong(f"{what}: {len(found)} bytes, {len(wanted)} were written; the first that differs is {at}")

    def equal(self, what, clients, status):
        """Compares a counter of `status` with what clients counted."""
        if self.plant == "count":
            clients += 1
        self.notes.add("counters compared")
        if clients != status:
            raise Wrong(f"{what}: status says {status}, clients counted {clients}")


def last(text):
    lines = [line for line in text.decode(errors="replace").splitlines() if not line.startswith("Try ")]
    return lines[-1] if lines else ""


def fallbacks(snapshot):
    """Reasons for fallback of the emulated card, with their counts."""
    card = [engine for engine in snapshot["engines"] if engine["engine"] == "emulated"]
    return dict(tuple(one) for engine in card for one in engine["fallbacks"])


def requests(snapshots, kind, what="requests"):
    """A counter of a kind, over all engines and processes."""
    return sum(cell[what] for snapshot in snapshots for cell in snapshot["cells"] if cell["kind"] == kind)


def wait_for(what, words, seconds=60, pause=0.05):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):
            found = what()
            if found:
                return found
        time.sleep(pause)
    raise Wrong(f"waited {seconds} s in vain for {words}")


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill(pid):
    """kill -9, and waits until the process is no more."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(pid), f"process {pid} to end")


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def memory(pid):
    """Anonymous resident memory in bytes: what a leak fills. Mapped files and the counters' shared memory are not its."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+)", text)[1]) << 10


def limit(pid, descriptors):
    """Sets a process's limit, soft and hard; as its own user, since root may lack the right (CAP_SYS_RESOURCE)."""
    try:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, descriptors)
    except PermissionError:
        owner = os.stat(f"/proc/{pid}")
        subprocess.run(["prlimit", "--pid", str(pid), "--nofile={}:{}".format(*descriptors)], user=owner.st_uid,
                       group=owner.st_gid, extra_groups=[], check=True, capture_output=True)


@contextlib.contextmanager
def few_descriptors(pids, spare):
    """Processes that may open so many descriptors more than they have (or none at all)."""
    before = {}
    try:
        for pid in pids:
            soft, hard = re.search(r"^Max open files +(\d+) +(\d+)", Path(f"/proc/{pid}/limits").read_text(), re.M).groups()
            before[pid] = int(soft), int(hard)
            taken = set(map(int, os.listdir(f"/proc/{pid}/fd")))
            free = next(number for number in range(len(taken) + 1) if number not in taken)
            limit(pid, (free + spare, int(hard)))
        yield
    finally:
        for pid, was in before.items():
            if is_alive(pid):
                limit(pid, was)


class Disk:
    """A small file system in memory that can be filled up. Takes root."""

    def __init__(self, at, mebibytes, mode="755"):
        at.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode={mode}", "none", at], capture_output=True)
        self.at, self.real = at, done.returncode == 0

    @contextlib.contextmanager
    def full(self, leave=0):
        """Leaves so many bytes."""
        ballast = self.at / "ballast"
        with open(ballast, "wb") as file:
            stat = os.statvfs(self.at)
            room = stat.f_bavail * stat.f_frsize - leave
            if room > 0:
                os.posix_fallocate(file.fileno(), 0, room)
        try:
            yield
        finally:
            ballast.unlink(missing_ok=True)

    def close(self):
        if self.real:
            subprocess.run(["umount", "-l", self.at], capture_output=True)


class Watch:
    """Memory and descriptors of processes that live long, sampled while nothing is under way."""

    #: Descriptors that a process may come to have later: those that threads open when they are first needed.
    DESCRIPTORS = 2
    #: Samples that say something.
    LEAST = 6

    def __init__(self, desk):
        self.desk, self.series, self.lock = desk, {}, threading.Lock()

    def sample(self, name, pid, room, kept=0):
        """`room`: bytes that caches of the process may still fill; `kept`: descriptors that it says it keeps."""
        try:
            now = descriptors(pid) - kept, memory(pid)
        except (OSError, TypeError):
            raise Wrong(f"{name}: process {pid} has gone") from None
        with self.lock:
            self.series.setdefault((name, pid), (room, []))[1].append(now)
            series = list(self.series[name, pid][1])
        self.desk.notes.add("samples of memory and descriptors")
        self.judge(name, room, series)

    def judge(self, name, room, series):
        """Grown is what never comes back: the least of the last third is above the most of the first."""
        if len(series) < self.LEAST:
            return
        third = len(series) // 3
        # The first sample is of a process that has hardly begun.
        first, end = series[1:third + 1], series[-third:]
        for at, what, allowed in ((0, "descriptors", self.DESCRIPTORS), (1, "bytes of memory", room)):
            was, now = max(one[at] for one in first), min(one[at] for one in end)
            if now - was > allowed:
                raise Wrong(f"{name}: {what} grew from {was} to {now} in {len(series)} samples: {[one[at] for one in series][-40:]}")

    def judged(self):
        """Series that were long enough, by name, with their first and last."""
        with self.lock:
            found = {}
            for (name, _), (_, series) in self.series.items():
                if len(series) >= self.LEAST:
                    known = found.setdefault(name, [0, 0])
                    known[0], known[1] = known[0] + 1, known[1] + len(series)
            return found


#: A library in front of a program that leaks, for the run that must notice it.
LEAKS = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void *leak(void *_) {
    for (;;) {
        usleep(500000);
#ifdef MEMORY
        char *p = malloc(4 << 20); if (p) memset(p, 1, 4 << 20);
#else
        open("/dev/null", O_RDONLY | O_CLOEXEC);
#endif
    }
}
static void begin(void) { pthread_t t; pthread_create(&t, 0, leak, 0); }
__attribute__((constructor)) static void first(void) { begin(); pthread_atfork(0, 0, begin); }
"""


def leaking(desk):
    """The environment that plants a leak, if one is to be planted."""
    if desk.plant not in ("descriptors", "memory"):
        return {}
    library = desk.folder / "leak.so"
    if not library.exists():
        source = desk.folder / "leak.c"
        source.write_text(LEAKS)
        flag = ["-DMEMORY"] if desk.plant == "memory" else []
        subprocess.run(["cc", "-shared", "-fPIC", *flag, "-o", library, source], check=True)
    return {"LD_PRELOAD": str(library)}
