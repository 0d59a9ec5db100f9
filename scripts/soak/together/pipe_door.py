"""`wattlock stream seal | wattlock stream open`, fed and read for long: what comes out is what went in, in order."""

import os
import signal
import subprocess
import threading
import time

from desk import POLICIES, Disk, Wrong, descriptors, fallbacks, few_descriptors, is_alive, last, leaking, requests, wait_for

#: Bytes between two quiet moments.
BURST = 3 << 20
#: What caches may still take after the first rounds.
ROOM = 12 << 20


class Pipe:
    name = "pipe"
    demands = ("pipe: quiet moments", "pipe: kill -9", "pipe: few descriptors", "pipe: settings changed", "pipe: ends",
               "pipe: card errs")
    demands_disk = ("pipe: full disk",)

    def __init__(self, desk, watch):
        self.desk, self.watch, self.dice = desk, watch, desk.dice(self.name)
        (desk.folder / "pipe").mkdir()
        self.disk = Disk(desk.folder / "pipe/disk", 2)
        self.card = desk.card("pipe", "error every 29", "wrong-result every 23", "silence every 397", "slow 20000 every 41",
                              "lost 300000000 every 1009")
        self.pair = None

    def run(self):
        life = min(300, max(12, self.desk.seconds / 8))
        turn = 0
        while self.desk.going():
            self.pair = Pair(self)
            end = time.monotonic() + life
            bursts = 0
            while self.desk.going() and (time.monotonic() < end or bursts < self.watch.LEAST + 1):
                self.pair.burst()
                bursts += 1
                if bursts % 5 == 3:
                    self.few()
            (self.pair.end, self.pair.kill_sealer, self.pair.end, self.pair.kill_opener)[turn % 4]()
            self.pair = None
            turn += 1
            if self.disk.real:
                self.full()
        if turn == 0:
            raise Wrong("pipe: not one life")

    def close(self):
        if self.pair:
            self.pair.close()
        self.disk.close()

    def choice(self):
        self.desk.notes.add("pipe: settings changed")
        words = ["--policy", self.dice.choice(POLICIES), "--emulate", self.card]
        return words if self.dice.random() < 0.3 else ["--policy", "offload", "--emulate", self.card]

    def few(self):
        """Descriptors that are short while a stream runs do it no harm: it has all it needs."""
        with few_descriptors([self.pair.sealer.pid, self.pair.opener.pid], 0):
            self.pair.burst()
        self.desk.notes.add("pipe: few descriptors")

    def full(self):
        """A full disk ends the stream with its own exit code; what is there opens up to its end."""
        content = self.dice.randbytes(3 << 20)
        path = self.disk.at / "stream"
        with open(path, "wb") as out:
            done = subprocess.run(self.desk.command("stream", "seal", "-r", self.desk.recipient, *self.choice()), input=content,
                                  stdout=out, stderr=subprocess.PIPE, env=self.desk.env, timeout=300)
        if done.returncode != 43:
            raise Wrong(f"a stream onto a full disk: exit code {done.returncode}: {last(done.stderr)}")
        done = self.desk.run("stream", "open", "-i", self.desk.key, input=path.read_bytes())
        if done.returncode != 36:
            raise Wrong(f"a stream that found no room, opened: exit code {done.returncode}: {last(done.stderr)}")
        self.desk.compare("the beginning of a stream that found no room", content[:len(done.stdout)], done.stdout)
        path.unlink()
        self.desk.notes.add("pipe: full disk")


class Pair:
    """A sealer and an opener, a writer and a reader."""

    def __init__(self, door):
        self.door, self.desk, self.dice = door, door.desk, door.dice
        self.framing = self.dice.choice(("raw", "lines"))
        words = ["--framing", self.framing, "--latency", self.dice.choice(("0", "1ms", "5ms", "50ms")),
                 "--frame", self.dice.choice(("4KiB", "64KiB", "1MiB")), "--workers", self.dice.choice(("0", "1", "2")),
                 "--rekey-after", self.dice.choice(("1MiB", "64GiB"))]
        env = {**self.desk.env, **leaking(self.desk)}
        self.errors = [open(self.desk.folder / f"pipe/{name}.err", "w+b") for name in ("seal", "open")]
        self.sealer = subprocess.Popen(
            self.desk.command("stream", "seal", "-r", self.desk.recipient, *words, *door.choice(), "--stats"),
            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors[0])
        self.opener = subprocess.Popen(
            self.desk.command("stream", "open", "-i", self.desk.key, *door.choice(), "--stats"),
            env=env, stdin=self.sealer.stdout, stdout=subprocess.PIPE, stderr=self.errors[1])
        self.sealer.stdout.close()
        self.written = self.read = 0
        # Written and not read yet.
        self.waiting, self.lock, self.wrong = bytearray(), threading.Lock(), None
        self.reader = threading.Thread(target=self.follow, daemon=True)
        self.reader.start()

    def follow(self):
        try:
            while piece := os.read(self.opener.stdout.fileno(), 1 << 16):
                with self.lock:
                    wanted = bytes(self.waiting[:len(piece)])
                    del self.waiting[:len(piece)]
                self.desk.compare(f"a stream behind {self.read} bytes", wanted, piece)
                self.read += len(piece)
        except (Wrong, OSError) as error:
            self.wrong = error
            # Nobody waits for a reader that is gone.
            self.sealer.kill()

    def write(self, data):
        with self.lock:
            self.waiting += data
        self.written += len(data)
        try:
            self.sealer.stdin.write(data)
            self.sealer.stdin.flush()
        except OSError as error:
            raise self.wrong or Wrong(f"the sealer is gone: {error}: {self.said()}") from None

    def said(self):
        return [*(last(error.seek(0) or error.read()) for error in self.errors), self.sealer.args[3:], self.opener.args[3:]]

    def burst(self):
        """Some megabytes in pieces; then all that went in has come out, and the counters say so."""
        left = BURST
        while left > 0:
            size = min(left, self.dice.choice((1, 100, 4096, 60_000, 300_000)))
            data = self.dice.randbytes(size)
            if self.framing == "lines":
                data = data[:-1] + b"\n"
            self.write(data)
            left -= size

        def all_read():
            if self.wrong:
                raise self.wrong
            if self.sealer.poll() is not None or self.opener.poll() is not None:
                raise Wrong(f"a stream ended by itself: {self.sealer.poll()}, {self.opener.poll()}: {self.said()}")
            return self.read == self.written

        wait_for(all_read, f"{self.written} bytes to come out of the pipe ({self.read} came)")
        self.counters()
        for name, child in (("sealer", self.sealer), ("opener", self.opener)):
            self.door.watch.sample(f"pipe: {name}", child.pid, ROOM)
        self.desk.notes.add("pipe: quiet moments")

    def counters(self):
        counted = self.desk.counted([self.sealer.pid, self.opener.pid])
        if len(counted) != 2:
            raise Wrong(f"wattlock status knows {list(counted)} of {[self.sealer.pid, self.opener.pid]}")
        for name, child, kind in (("sealed", self.sealer, "aes-256-gcm-seal"), ("opened", self.opener, "aes-256-gcm-open")):
            one = counted[child.pid]
            self.desk.equal(f"bytes {name} in the pipe", self.written, self.content(one, kind))
            for reason in fallbacks(one):
                self.desk.notes.add(f"card: {reason}")
                self.desk.notes.add("pipe: card errs")

    def content(self, snapshot, kind):
        return requests([snapshot], kind, "bytes")

    def end(self):
        """The end of the input is the end of both."""
        self.sealer.stdin.close()
        codes = self.sealer.wait(60), self.opener.wait(60)
        self.reader.join(60)
        if self.wrong:
            raise self.wrong
        if codes != (0, 0) or self.read != self.written:
            raise Wrong(f"a stream's end: exit codes {codes}, {self.read} of {self.written} bytes: {self.said()}")
        self.desk.notes.add("pipe: ends")
        self.close()

    def under_way(self):
        """Content that nobody has read yet, from a writer of its own: its pipe breaks."""
        data = self.dice.randbytes(8 << 20)
        with self.lock:
            self.waiting += data

        def write():
            try:
                self.sealer.stdin.write(data)
                self.sealer.stdin.flush()
            except OSError:
                pass

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        time.sleep(self.dice.random() * 0.3)
        return writer

    def kill_sealer(self):
        """The opener has released a true beginning, and says that the rest is missing."""
        self.killed("sealer", self.sealer, "opener", self.opener, 36)

    def kill_opener(self):
        """The sealer notices that nobody reads."""
        self.killed("opener", self.opener, "sealer", self.sealer, 44)

    def killed(self, dies, victim, stays, other, expected):
        writer = self.under_way()
        victim.send_signal(signal.SIGKILL)
        victim.wait(60)
        code = other.wait(60)
        self.reader.join(60)
        writer.join(60)
        if self.wrong:
            raise self.wrong
        if code != expected:
            raise Wrong(f"the {dies} was killed: the {stays}'s exit code is {code}: {self.said()}")
        self.desk.notes.add("pipe: kill -9")
        self.close()

    def close(self):
        for child in (self.sealer, self.opener):
            if child.poll() is None:
                child.kill()
                child.wait()
        for file in (self.sealer.stdin, self.opener.stdout, *self.errors):
            try:
                file.close()
            except OSError:
                pass
