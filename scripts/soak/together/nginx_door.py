"""nginx with TLS and compression on a card that fails: workers killed and reloaded, without descriptors, with full logs."""

import argparse
import contextlib
import grp
import http.client
import itertools
import os
import pwd
import random
import signal
import ssl
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

from desk import REPO, Disk, NotHere, Wrong, fallbacks, few_descriptors, is_alive, kill, leaking, requests, wait_for

sys.path.insert(0, str(REPO / "nginx/tests"))
import survive  # noqa: E402

CLIENTS = 4
#: Whose workers are, if root starts nginx.
NOBODY = pwd.getpwnam("nobody")
#: Requests of one client between two quiet moments.
BURST = 15
SIZES = (1, 100, 5000, 70_000, 300_000, 1_000_000)
#: What pools and caches of a worker may still take after the first rounds.
ROOM = 24 << 20

#: Without key agreements: the provider checks one in 64 of a device's, so one that lies costs a connection (README).
CARD = """name card
window 256 requests 4194304 bytes
pool public-key 64 servers
table rsa-2048-private,ecdsa-p256-sign 0:300000
pool compression 8 servers
table deflate,zstd 1024:20000 65536:300000
fault error every 13
fault silence every 37
fault wrong-result every 31
fault slow 20000 every 41
fault lost 200000000 every 97
"""


class Nginx:
    name = "nginx"
    demands = ("nginx: quiet moments", "nginx: kill -9", "nginx: few descriptors", "nginx: settings changed",
               "nginx: responses with gzip", "nginx: card errs", "nginx: card hangs", "nginx: card lies", "nginx: card vanishes")
    demands_disk = ("nginx: full disk",)

    def __init__(self, desk, watch):
        if not desk.nginx or not Path(desk.module).exists() or not Path(desk.provider).exists():
            raise NotHere("no nginx, module or provider (make build)")
        self.desk, self.watch, self.dice = desk, watch, desk.dice(self.name)
        (desk.folder / "nginx").mkdir()
        self.disk = Disk(desk.folder / "nginx/disk", 2, "777")
        survive.ARGS = argparse.Namespace(nginx=desk.nginx, module=desk.module, provider=desk.provider, under="", single=False,
                                          patience=60)
        card = desk.folder / "nginx.card"
        card.write_text(CARD)
        # Every worker of another user reads it.
        for folder in (desk.folder, *desk.folder.parents[:-1]):
            if not folder.stat().st_mode & 0o001:
                raise NotHere(f"{folder} is closed to nginx's workers")
        # Workers may have a user of their own, and so have their counters.
        self.telemetry = desk.folder / "nginx/telemetry"
        self.telemetry.mkdir(mode=0o700)
        if os.geteuid() == 0:
            os.chown(self.telemetry, NOBODY.pw_uid, NOBODY.pw_gid)
        self.server = survive.Nginx(http=self.http(), main=self.main(), provider=f"emulate = {card}\npolicy = offload",
                                    workers=2)
        self.server.env.update(leaking(desk), WATTLOCK_TELEMETRY_DIR=str(self.telemetry))
        self.contents = {f"/c{at}-{size}": self.content(size, at) for at, size in enumerate(SIZES * 2)}
        for path, content in self.contents.items():
            (self.server.folder / f"html{path}").write_bytes(content)
        self.bad, self.lock = [], threading.Lock()
        self.reset()

    def content(self, size, at):
        dice = self.desk.dice(f"content {at}")
        if at < len(SIZES):
            return b"".join(b"<p>line %d of %s</p>\n" % (dice.randrange(1 << 20), b"words " * dice.randrange(9))
                            for _ in range(size // 25 + 1))[:size]
        return dice.randbytes(size)

    def main(self):
        leak = "env LD_PRELOAD;" if leaking(self.desk) else ""
        user = f"user nobody {grp.getgrgid(NOBODY.pw_gid).gr_name};" if os.geteuid() == 0 else ""
        return f"env WATTLOCK_TELEMETRY_DIR; worker_shutdown_timeout 20s; {user} {leak}"

    def http(self):
        dice = self.dice
        self.cores = dice.choice((0, 2))
        poll = dice.choice(("adaptive", "heuristic", "threshold asymmetric=8 timer=2ms"))
        log = f"access_log {self.disk.at}/access.log;" if self.disk.real else ""
        return f"""
  gzip on; gzip_min_length 0; gzip_types *; gzip_proxied any; gzip_comp_level {dice.randint(1, 9)};
  default_type text/html; wattlock_zstd {dice.choice(("on", "off"))};
  wattlock_poll {poll};
  wattlock_set policy {dice.choice(("offload", "offload", "qweb", "adaptive"))};
  wattlock_set cores {self.cores};
  {log}
"""

    def run(self):
        with self.server:
            changes = itertools.cycle((self.reload, self.killed))
            turns = [self.quiet, self.quiet, self.reload, self.quiet, self.few]
            if self.disk.real:
                turns.append(self.full)
            life = min(300, max(20, self.desk.seconds / 5))
            began, rounds, at = time.monotonic(), 0, 0
            while self.desk.going():
                turn = turns[at % len(turns)]
                at += 1
                if turn == self.reload:
                    # Workers live long enough that what grows is seen.
                    if rounds <= self.watch.LEAST or time.monotonic() - began < life:
                        continue
                    turn = next(changes)
                    began, rounds = time.monotonic(), 0
                turn()
                rounds += 1

    def close(self):
        self.disk.close()

    # Workers.

    def workers(self):
        master = self.server.pid()
        children = Path(f"/proc/{master}/task/{master}/children").read_text().split()
        return sorted(int(pid) for pid in children if is_alive(int(pid)))

    def two_workers(self, without=()):
        def there():
            now = self.workers()
            return len(now) == 2 and not set(now) & set(without) and now

        return wait_for(there, "two workers of nginx")

    # Clients.

    def reset(self):
        self.made = {"handshakes": 0, "gzip": 0, "zstd": 0, "gzip bytes": 0, "zstd bytes": 0}

    def client(self, dice, count, forgiven):
        for _ in range(count):
            path = dice.choice(list(self.contents))
            accept = dice.choice(("gzip", "gzip", "gzip", "gzip", "gzip", "zstd, gzip", "identity", "identity"))
            try:
                self.ask(dice, path, accept)
            except (OSError, http.client.HTTPException) as error:
                if not forgiven:
                    with self.lock:
                        self.bad.append(f"{path}, {accept}: {type(error).__name__}: {error}")
                self.desk.notes.add("nginx: requests that failed as provoked")
            except Wrong as error:
                with self.lock:
                    self.bad.append(str(error))

    def ask(self, dice, path, accept):
        version = dice.choice((ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3))
        with self.server.connect(version) as tls:
            with self.lock:
                self.made["handshakes"] += 1
            tls.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: {accept}\r\nConnection: close\r\n\r\n".encode())
            answer = http.client.HTTPResponse(tls)
            answer.begin()
            body = answer.read()
        if answer.status != 200:
            raise http.client.HTTPException(f"status {answer.status}")
        coding, wanted = answer.getheader("content-encoding"), self.contents[path]
        if coding == "gzip":
            decoder = zlib.decompressobj(31)
            body = decoder.decompress(body) + decoder.flush()
            if not decoder.eof or decoder.unused_data:
                raise Wrong(f"{path}: not one whole gzip member")
        elif coding == "zstd":
            body = subprocess.run(["zstd", "-dc", "-M8MB"], input=body, capture_output=True, check=True).stdout
        if coding:
            with self.lock:
                self.made[coding] += 1
                self.made[f"{coding} bytes"] += len(body)
            self.desk.notes.add(f"nginx: responses with {coding}")
        self.desk.compare(f"nginx, {path} ({coding})", wanted, body)
        self.desk.notes.add("nginx: requests")

    @contextlib.contextmanager
    def load(self, forgiven=False, count=BURST):
        dice = [random.Random(self.dice.random()) for _ in range(CLIENTS)]
        threads = [threading.Thread(target=self.client, args=(one, count, forgiven), daemon=True) for one in dice]
        for thread in threads:
            thread.start()
        yield
        for thread in threads:
            thread.join(300)
            if thread.is_alive():
                raise Wrong("nginx: a client waits for ever")
        if self.bad:
            raise Wrong(f"nginx: {len(self.bad)} requests failed: {self.bad[0]}")

    # Turns.

    def settled(self, pids):
        def calm():
            counted = list(self.desk.counted(pids, self.telemetry).values())
            flying = sum(engine["in_flight"] for one in counted for engine in one["engines"] if engine["engine"] != "emulated")
            return counted if flying == 0 else None

        return wait_for(lambda: calm() is not None, "nginx's workers to have nothing in flight") and calm()

    def tally(self, snapshots):
        return {"handshakes": requests(snapshots, "rsa-2048-private"), "gzip": requests(snapshots, "deflate"),
                "gzip bytes": requests(snapshots, "deflate", "bytes"), "zstd": requests(snapshots, "zstd"),
                "zstd bytes": requests(snapshots, "zstd", "bytes")}

    def quiet(self):
        """Requests, none of which may fail; then every counter is what the clients counted."""
        pids = self.two_workers()
        before = self.tally(self.settled(pids))
        self.reset()
        with self.load():
            pass
        snapshots = self.settled(pids)
        after = self.tally(snapshots)
        if self.workers() != pids:
            raise Wrong(f"nginx: workers {pids} became {self.workers()}: {self.server.log()[-500:]}")
        for word, count in after.items():
            if word.startswith("gzip") and self.cores and count - before[word] >= self.made[word]:
                # A chunk on another core is a request, too, and a chunk that a card spoiled is two.
                continue
            self.desk.equal(f"nginx, {word}", self.made[word], count - before[word])
        for snapshot in snapshots:
            for reason, word in (("reported-error", "errs"), ("silent", "hangs"), ("wrong-result", "lies"), ("lost", "vanishes")):
                if fallbacks(snapshot).get(reason):
                    self.desk.notes.add(f"nginx: card {word}")
        for pid in pids:
            self.watch.sample("nginx worker", pid, ROOM)
        self.watch.sample("nginx master", self.server.pid(), ROOM)
        self.desk.notes.add("nginx: quiet moments")

    def reload(self):
        """Other settings under load: no request fails."""
        old = self.two_workers()
        with self.load():
            time.sleep(self.dice.random())
            self.server.write(self.http(), "", self.main(), "worker_connections 2048;", self.desk.module, 2)
            os.kill(self.server.pid(), signal.SIGHUP)
            self.two_workers(old)
        self.desk.notes.add("nginx: settings changed")

    def killed(self):
        """A worker dies under load: its clients lose their connection, nobody else anything."""
        old = self.two_workers()
        with self.load(forgiven=True):
            time.sleep(self.dice.random())
            kill(self.dice.choice(old))
        self.two_workers()
        self.desk.notes.add("nginx: kill -9")

    def few(self):
        """Without descriptors connections wait or fail; afterwards none does."""
        with self.load(forgiven=True, count=8):
            time.sleep(0.2)
            with few_descriptors(self.two_workers(), 3):
                time.sleep(1)
        self.desk.notes.add("nginx: few descriptors")
        self.quiet()

    def full(self):
        """A log that finds no room costs no request."""
        with self.disk.full(), self.load(count=8):
            pass
        (self.disk.at / "access.log").write_bytes(b"")
        self.desk.notes.add("nginx: full disk")
