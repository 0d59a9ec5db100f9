"""A mounted volume on a small disk, on a card that fails: killed, full, without descriptors, with changing policies."""

import contextlib
import errno
import fcntl
import mmap
import os
import re
import subprocess
import sys
import threading
import time

from desk import (POLICIES, REPO, Disk, NotHere, Wrong, few_descriptors, is_alive, kill, last, leaking, wait_for)

SETTINGS = [["policy=offload"], ["policy=aca-sds", "aca-sds.alpha=1", "aca-sds.beta_bytes=4096"], ["policy=eeca"],
            ["policy=adaptive", "objective=energy"], ["policy=qweb"], ["policy=software"],
            ["policy=offload", "objective=performance"], ["policy=eep"], ["policy=instruction"]]
CHUNK = 4096
#: The file whose requests are counted.
COUNTED = 2 << 20
#: What caches of files, folders and the journal may still take after the first rounds.
ROOM = 16 << 20


class Mount:
    name = "mount"
    demands = ("mount: quiet moments", "mount: kill -9", "mount: few descriptors", "mount: settings changed",
               "mount: checked", "mount: card errs", "mount: card hangs", "mount: card lies", "mount: card vanishes")
    demands_disk = ("mount: full disk",)

    def __init__(self, desk, watch):
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            raise NotHere("no /dev/fuse")
        self.desk, self.watch, self.dice = desk, watch, desk.dice(self.name)
        self.folder = desk.folder / "mount"
        self.folder.mkdir()
        # Room for the longest journal: one that fills a disk keeps room from the files that grew (docs/design/limits.md).
        self.disk = Disk(self.folder / "disk", 512)
        self.volume, self.at = self.disk.at / "volume", self.folder / "clear"
        self.at.mkdir()
        desk.good("fs", "init", "-r", desk.recipient, self.volume)
        self.card = desk.card("mount", "error every 29", "silence every 397", "wrong-result every 23", "slow 20000 every 41",
                              "lost 300000000 requests 900 900", "lost 500000000 every 9001")
        self.ledger = subprocess.Popen(
            [sys.executable, REPO / "crates/wattlock-cli/tests/mount/ledger.py", self.at, str(desk.seed)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = None
        self.turn = 0
        self.seen = {}

    def run(self):
        life = min(300, max(15, self.desk.seconds / 6))
        ends = [self.killed, self.unmounted, *([self.full_and_killed, self.full_and_unmounted] if self.disk.real else [])]
        at = 0
        self.mount()
        while self.desk.going():
            end, rounds = time.monotonic() + life, 0
            while self.desk.going() and (time.monotonic() < end or rounds < self.watch.LEAST + 1):
                self.round(rounds)
                rounds += 1
            ends[at % len(ends)]()
            at += 1
        self.unmounted()
        self.desk.good("umount", self.at)

    def close(self):
        self.ledger.kill()
        subprocess.run(["umount", "-l", self.at], capture_output=True)
        if self.pid and is_alive(self.pid):
            with contextlib.suppress(Wrong):
                wait_for(lambda: not is_alive(self.pid), "the mount's process", 10)
        self.disk.close()

    # A mount's life.

    def mount(self):
        words = ("mount", "-i", self.desk.key, "--emulate", self.card, "--policy", "offload", self.volume, self.at)
        done = subprocess.run(self.desk.command(*words), env={**self.desk.env, **leaking(self.desk)}, capture_output=True,
                              timeout=120, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise Wrong(f"mounting: exit code {done.returncode}: {last(done.stderr)}")
        self.pid = int(re.search(r"^process (\d+)", self.status(), re.M)[1])
        self.seen = {}

    def status(self):
        return self.desk.good("fs", "status", self.at).decode()

    def ask(self, words, answers):
        self.ledger.stdin.write(words + "\n")
        self.ledger.stdin.flush()
        answer = self.ledger.stdout.readline().strip()
        if not re.fullmatch(answers, answer):
            raise Wrong(f"mount, {words}: {answer}")
        return answer

    def verify(self):
        found = self.ask("verify", r"ok \d+")
        self.desk.notes.add("mount: everything verified")
        self.desk.notes.counts["mount: acknowledged"] = int(found.split()[1])

    def bury(self):
        """Takes a dead mount away and waits until its volume is free."""
        wait_for(lambda: subprocess.run(["umount", "-l", self.at], capture_output=True).returncode == 0, "a dead mount to go")
        with open(self.volume / "wattlock.journal", "rb") as journal:
            fcntl.flock(journal, fcntl.LOCK_EX)

    def round(self, number):
        self.desk.good("fs", "set", self.at, *SETTINGS[self.turn % len(SETTINGS)])
        self.desk.notes.add("mount: settings changed")
        self.turn += 1
        self.ask("room 25", "full 0")
        self.counted()
        if number % 4 == 2:
            self.few()
        self.verify()
        kept = int(re.search(r"(\d+) folders open$", self.status(), re.M)[1])
        self.watch.sample("mount", self.pid, ROOM, kept)
        self.desk.notes.add("mount: quiet moments")

    def killed(self):
        self.ask(f"run {self.pid}", "dead")
        self.desk.notes.add("mount: kill -9")
        self.bury()
        self.mount()
        self.verify()

    def unmounted(self):
        self.desk.good("umount", self.at)
        done = self.desk.run("fs", "check", "-i", self.desk.key, self.volume)
        if done.returncode != 0:
            raise Wrong(f"fs check: exit code {done.returncode}: {done.stdout.decode()[-300:]} {last(done.stderr)}")
        self.desk.notes.add("mount: checked")
        self.mount()
        self.verify()

    def full(self):
        self.ask("room 60", r"full \d+")
        self.desk.notes.add("mount: full disk")

    def full_and_killed(self):
        with self.disk.full(self.dice.choice((0, 1, 3, 8, 40)) * 4096):
            self.full()
            kill(self.pid)
            self.bury()
        self.mount()
        self.verify()

    def full_and_unmounted(self):
        with self.disk.full(self.dice.choice((0, 1, 3, 8, 40)) * 4096):
            self.full()
            # What cannot be brought into place now is in the journal.
            self.desk.run("umount", self.at)
        wait_for(lambda: not is_alive(self.pid), "the mount's process to end")
        self.mount()
        self.verify()

    # What is counted.

    def counters(self):
        text = self.status()
        counts = {word: int(re.search(rf"^{word} (\d+)", text, re.M)[1]) for word in ("refused", "failed")}
        done = dict(re.findall(r"(\w+) (\d+)", re.search(r"^requests(.*)$", text, re.M)[1]))
        counts.update({f"requests to {word}": int(done.get(word, 0)) for word in ("read", "write", "lookup", "attributes")})
        for word in ("read", "written"):
            counts[word] = int(re.search(rf"^{word} (\d+) bytes", text, re.M)[1])
        for word in ("read", "write"):
            lines = re.findall(rf"^{word} \S+, chunks in requests up to (.*)$", text, re.M)
            counts[f"chunks {word}"] = sum(int(one.split(": ")[1]) for line in lines for one in line.split(", "))
        for name, reasons in re.findall(r"^  (\S+) +in flight .*, fallbacks (.*)$", text, re.M):
            if name == "emulated" and reasons != "none":
                counts["faults"] = dict((one.rsplit(" ", 1)[0], int(one.rsplit(" ", 1)[1])) for one in reasons.split(", "))
        return counts

    def counted(self):
        """Requests past the kernel's cache: each byte that the mount counts is one that this client wrote or read."""
        path = self.at / "counted"
        content = bytearray(path.read_bytes()) if path.exists() else bytearray()
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        memory = mmap.mmap(-1, 256 << 10)
        try:
            if len(content) < COUNTED:
                content = bytearray(COUNTED)
                os.ftruncate(file, COUNTED)
                for at in range(0, COUNTED, 256 << 10):
                    os.pwrite(file, memory, at)
            before = self.counters()
            found = []
            written = read = writes = reads = missing = 0
            for _ in range(30):
                size = CHUNK * self.dice.choice((1, 2, 7, 16, 32))
                at = CHUNK * self.dice.randrange((COUNTED - size) // CHUNK + 1)
                part = memoryview(memory)[:size]
                if self.dice.random() < 0.5:
                    part[:] = self.dice.randbytes(size)
                    written, writes = written + os.pwritev(file, [part], at), writes + 1
                    content[at:at + size] = part
                else:
                    read, reads = read + os.preadv(file, [part], at), reads + 1
                    found.append((at, bytes(content[at:at + size]), bytes(part)))
            for _ in range(self.dice.randrange(5)):
                with contextlib.suppress(FileNotFoundError):
                    os.open(self.at / f"missing{time.monotonic_ns()}", os.O_RDONLY)
                missing += 1
            after = self.counters()
            os.fsync(file)
            for at, wanted, got in found:
                self.desk.compare(f"a mounted file at {at}", wanted, got)
        except OSError as error:
            disk = os.statvfs(self.volume)
            journal = os.stat(self.volume / "wattlock.journal").st_size
            raise Wrong(f"counted requests: {error}; {disk.f_bavail * disk.f_frsize} bytes and {disk.f_favail} inodes are free, "
                        f"the journal has {journal} bytes") from error
        finally:
            os.close(file)
        for word, count in (("written", written), ("read", read), ("requests to write", writes), ("requests to read", reads),
                            ("requests to lookup", missing)):
            self.desk.equal(f"mount, {word}", count, after[word] - before[word])
        # The kernel asks for attributes that are not there before it writes, and for nothing else that fails.
        refused, asked = (after[word] - before[word] for word in ("refused", "requests to attributes"))
        if refused > asked or after["failed"] != before["failed"]:
            raise Wrong(f"mount: {refused} answers that something is not there, {asked} questions for attributes, "
                        f"{after['failed'] - before['failed']} failures")
        # Engines seal a record of the journal besides, at most one for each chunk.
        for word, least in (("write", written // CHUNK), ("read", read // CHUNK)):
            chunks = after[f"chunks {word}"] - before[f"chunks {word}"]
            if not least <= chunks <= 2 * least:
                raise Wrong(f"mount: engines did {chunks} chunks to {word} {least}")
        for reason, count in after.get("faults", {}).items():
            self.desk.notes.add(f"card: {reason}", count - self.seen.get(reason, 0))
            self.seen[reason] = count
        for reason, word in (("reported-error", "errs"), ("silent", "hangs"), ("wrong-result", "lies"), ("lost", "vanishes")):
            if self.seen.get(reason):
                self.desk.notes.counts[f"mount: card {word}"] = max(1, self.desk.notes.of(f"mount: card {word}"))

    def few(self):
        """Without descriptors calls fail and say so; afterwards all is as it was, and the mount can still be asked."""
        path = self.at / "few"
        with few_descriptors([self.pid], 0):
            asking = subprocess.Popen(self.desk.command("fs", "status", self.at), env=self.desk.env,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            done = {}
            for number in range(12):
                content = self.dice.randbytes(self.dice.choice((10, 5000)))
                try:
                    file = os.open(f"{path}{number}", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
                    try:
                        os.write(file, content)
                        os.fsync(file)
                        done[number] = content
                    finally:
                        os.close(file)
                except OSError as error:
                    if error.errno not in (errno.EMFILE, errno.ENFILE):
                        raise Wrong(f"mount without descriptors: {error}") from None
                    self.desk.notes.add("mount: calls without descriptors")
            time.sleep(0.3)
        with contextlib.suppress(subprocess.TimeoutExpired):
            asking.wait(30)
        self.status()
        for number, content in done.items():
            with open(f"{path}{number}", "rb") as file:
                self.desk.compare("a file written with few descriptors", content, file.read())
        for number in range(12):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{path}{number}")
        self.desk.notes.add("mount: few descriptors")
