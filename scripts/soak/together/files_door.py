"""`wattlock seal` and `open`, one process after another, on a card that fails: killed, without room, without descriptors."""

import os
import re
import resource
import signal
import subprocess
import zlib

from desk import CARD_FAULTS, POLICIES, Disk, Wrong, last

#: Lengths at the edges of chunks and of what one thread does alone.
LENGTHS = (0, 1, 4096, 65_519, 65_536, 65_537, 1 << 20, 3 << 20, 9_000_001)


class Files:
    name = "files"
    demands = ("files: sealed and opened", "files: kill -9", "files: few descriptors", "files: settings changed",
               "files: refused, altered", "files: card errs")
    demands_disk = ("files: full disk",)

    def __init__(self, desk, watch):
        self.desk, self.dice = desk, desk.dice(self.name)
        self.folder = desk.folder / "files"
        self.folder.mkdir()
        self.disk = Disk(self.folder / "disk", 24)
        # A file has few requests and each program a card of its own.
        self.card = desk.card("files", "error every 5", "wrong-result every 7", "silence every 61", "slow 20000 every 11",
                              "lost 200000000 every 97")

    def run(self):
        turns = [self.round_trip, self.round_trip, self.altered, self.killed, self.few] + ([self.full] if self.disk.real else [])
        at = 0
        while self.desk.going():
            turns[at % len(turns)]()
            at += 1

    def close(self):
        self.disk.close()

    def content(self, length=None):
        length = self.dice.choice(LENGTHS) if length is None else length
        # Half of it can be compressed.
        return self.dice.randbytes(length // 2) + b"half of it, " * (length // 24) + bytes(length - length // 2 - length // 24 * 12)

    def choice(self):
        """Another engine, policy and format each time."""
        self.desk.notes.add("files: settings changed")
        words = ["--policy", self.dice.choice(POLICIES)]
        if self.dice.random() < 0.7:
            words = ["--emulate", self.card, "--policy", "offload"] if self.dice.random() < 0.6 else ["--emulate", self.card, *words]
        return words

    def logged(self, *words):
        """A run that must succeed, and what it says, its log of the card's faults included."""
        done = subprocess.run(self.desk.command(*words), env={**self.desk.env, "WATTLOCK_LOG": "debug"}, capture_output=True,
                              timeout=300, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise Wrong(f"wattlock {' '.join(map(str, words))}: exit code {done.returncode}: {last(done.stderr)}")
        said = done.stderr.decode(errors="replace")
        for reason in CARD_FAULTS:
            found = len(re.findall(f'reason="{reason}"', said))
            if found:
                self.desk.notes.add("files: card errs", found)
        return said

    def round_trip(self):
        plain, sealed, opened = self.folder / "plain", self.folder / "sealed", self.folder / "opened"
        content = self.content()
        plain.write_bytes(content)
        how = self.dice.choice(([], [], ["--format", "age"], ["--gzip"]))
        # A card of its own for each program: 137 chunks and more meet its faults.
        seal = self.logged("seal", "-f", "--stats", *how, *self.choice(), "-r", self.desk.recipient, "-o", sealed, plain)
        said = self.logged("open", "-f", "--stats", *self.choice(), "-i", self.desk.key, "-o", opened, sealed)
        found = opened.read_bytes()
        for what, text in (("seal", seal), ("open", said)):
            self.chunks(what, text, len(found), how == ["--format", "age"])
        if how == ["--gzip"]:
            found = zlib.decompress(found, 31)
        self.desk.compare(f"sealed ({how}) and opened", content, found)
        self.desk.notes.add("files: sealed and opened")

    def chunks(self, what, said, length, age):
        """`--stats` counts each chunk once, whichever engine did it at last."""
        kind = "chacha20-poly1305" if age else "aes-256-gcm"
        found = sum(map(int, re.findall(rf"^{kind}-{what} on \S+: (\d+) request", said, re.M)))
        # age has chunks of 64 KiB, none of them empty but the only one; ours have 16 KiB, and the last is shorter.
        wanted = max(1, -(-length // 65_536)) if age else length // 16_384 + 1
        self.desk.equal(f"chunks to {what} {length} bytes", wanted, found)

    def altered(self):
        """A file with another byte is refused, and nothing of it is written."""
        sealed, opened = self.folder / "altered", self.folder / "nothing"
        done = self.desk.good("seal", *self.choice(), "-r", self.desk.recipient, "-o", "-", input=self.content(100_000))
        at = self.dice.randrange(len(done))
        sealed.write_bytes(done[:at] + bytes([done[at] ^ 1 << self.dice.randrange(8)]) + done[at + 1:])
        found = self.desk.run("open", *self.choice(), "-i", self.desk.key, "-o", opened, sealed)
        if found.returncode in (0, 101) or found.returncode < 0 or opened.exists():
            raise Wrong(f"byte {at} was altered: exit code {found.returncode}, {opened.exists()=}: {last(found.stderr)}")
        self.desk.notes.add("files: refused, altered")

    def killed(self):
        """What has its name is whole; what was killed in the middle has none."""
        plain, sealed, opened = self.folder / "large", self.folder / "killed", self.folder / "killed.opened"
        content = self.content(9_000_001)
        plain.write_bytes(content)
        sealed.unlink(missing_ok=True)
        child = subprocess.Popen(self.desk.command("seal", *self.choice(), "-r", self.desk.recipient, "-o", sealed, plain),
                                 env=self.desk.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            child.wait(self.dice.random() * 0.2)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.wait()
            self.desk.notes.add("files: kill -9")
        if sealed.exists():
            self.desk.good("open", "-f", "-i", self.desk.key, "-o", opened, sealed)
            self.desk.compare("a file that was there after a kill", content, opened.read_bytes())
        # What a killed process leaves has a name of its own, and is no result.
        for left in self.folder.glob(".*"):
            left.unlink()

    def few(self):
        """With few descriptors it fails in one line, or does the same as ever."""
        content, allowed = self.content(1 << 20), self.dice.randrange(3, 16)
        plain, sealed, opened = self.folder / "few", self.folder / "few.sealed", self.folder / "few.opened"
        plain.write_bytes(content)
        for path in (sealed, opened):
            path.unlink(missing_ok=True)

        def limit():
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))

        done = self.desk.run("seal", *self.choice(), "-r", self.desk.recipient, "-o", sealed, plain, preexec_fn=limit)
        self.desk.notes.add("files: few descriptors")
        if done.returncode < 0 or done.returncode == 101 or (done.returncode == 0) != sealed.exists():
            raise Wrong(f"sealing with {allowed} descriptors: exit code {done.returncode}, {sealed.exists()=}: {last(done.stderr)}")
        if done.returncode != 0:
            return
        self.desk.good("open", "-i", self.desk.key, "-o", opened, sealed)
        self.desk.compare(f"sealed with {allowed} descriptors", content, opened.read_bytes())

    def full(self):
        """Without room it says so, and leaves nothing; with room it works."""
        plain, sealed, opened = self.folder / "wide", self.disk.at / "sealed", self.folder / "wide.opened"
        content = self.content(3 << 20)
        plain.write_bytes(content)
        with self.disk.full(self.dice.choice((0, 4096, 1 << 20, 2 << 20))):
            done = self.desk.run("seal", *self.choice(), "-r", self.desk.recipient, "-o", sealed, plain)
            left = [path.name for path in self.disk.at.iterdir() if path.name != "ballast"]
            if done.returncode != 43 or left:
                raise Wrong(f"a full disk: exit code {done.returncode}, {left} left: {last(done.stderr)}")
        self.desk.notes.add("files: full disk")
        self.desk.good("seal", "-r", self.desk.recipient, "-o", sealed, plain)
        self.desk.good("open", "-f", "-i", self.desk.key, "-o", opened, sealed)
        sealed.unlink()
        self.desk.compare("sealed once there was room", content, opened.read_bytes())
