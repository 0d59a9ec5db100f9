#!/usr/bin/env python3
"""The full disk, met at every step of a workload in a mounted volume.

    full.py FOLDER [--on tmpfs,ext4] [--step N] [--leave BYTES] [--plain]
    FOLDER is new; WATTLOCK names the program. Takes root. --plain is the same without a volume: what is expected of one
    holds for tmpfs and ext4 themselves.

For every step of STEPS: a new volume on a small disk, the steps before it, then a ballast file takes the room that is left
(but for --leave), and the step and all after it meet a full disk. Every step works, or says ENOSPC or EDQUOT. Then, with
the disk still full:

- Everything that worked can be read. Where a write failed, size and content say how far it came, at once and for good.
- A synced file can be overwritten in place, and `rm` gives its room back at once. The ballast takes that room again.
- The volume can be unmounted (or its process killed: every other step), mounted, read, and checked.

Then the ballast goes: everything is as it was, and new files can be written. Each thing that is not so is one line: the
step before which the disk was filled, what was tried, what came of it. The exit code is 1 if there is one.

That it can fail: FULL_PLANT=1 changes a byte behind the workload's back. Every step must then end with "is another".
"""

import argparse
import contextlib
import errno
import mmap
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "together"))
import calls
from cuts import FOLDER, Node, look
from desk import NotHere, is_alive, kill, last

WATTLOCK = os.environ["WATTLOCK"]
# Volumes are made by the hundred: this machine is to remember none.
STATE = tempfile.TemporaryDirectory()
os.environ["WATTLOCK_STATE_DIR"] = STATE.name
FULL = (errno.ENOSPC, errno.EDQUOT)
PLANT = os.environ.get("FULL_PLANT")


class Work:
    """What a workload did in a mount: names, and of each file what it may hold."""

    def __init__(self, root):
        self.root, self.state, self.dice = root, {}, random.Random(1)

    def at(self, path):
        return f"{self.root}/{path}"

    def content(self, size):
        return self.dice.randbytes(size)

    @contextlib.contextmanager
    def file(self, path, flags=os.O_RDWR, sync=True):
        """An opened file. Whatever call fails, the one that closes it included, the file is then read: that is how far it came."""
        node = self.state[path]
        try:
            file = os.open(self.at(path), flags)
            try:
                yield file, node
                if sync:
                    os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            if error.errno in FULL:
                self.settle(path, node)
            raise
        if sync:
            node.acknowledge()

    def settle(self, path, node):
        found = Path(self.at(path)).read_bytes()
        objection = node.objection(found)
        if objection:
            raise AssertionError(f"{path} after a failed write: {objection}")
        node.versions = [found]
        node.history.append(f"a write failed that left {len(found)} bytes")

    def put(self, path, content, at=None, flags=os.O_RDWR, sync=True):
        with self.file(path, flags, sync) as (file, node):
            at = len(node.versions[-1]) if at is None else at

            def change(now):
                now.extend(bytes(max(0, at - len(now))))
                now[at:at + len(content)] = content
            node.change(change)
            while content:
                done = os.pwrite(file, content, at)
                content, at = content[done:], at + done

    # Steps. What needs a path that an earlier step had no room to make is left out (KeyError).

    def needed(self, path):
        """The folder of a new name, if there is one."""
        if os.path.dirname(path):
            self.state[os.path.dirname(path)]

    def create(self, path, size, sync=True, flags=0):
        self.needed(path)
        os.close(os.open(self.at(path), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644))
        self.state[path] = Node()
        self.put(path, self.content(size), 0, os.O_RDWR | flags, sync)

    def many(self, folder, count, size):
        for number in range(count):
            self.create(f"{folder}/many{number}", size, sync=False)

    def overwrite(self, path, at, size, sync=True):
        self.put(path, self.content(size), at, sync=sync)

    def append(self, path, size, sync=True):
        self.put(path, self.content(size), sync=sync)

    def truncate(self, path, to):
        with self.file(path) as (file, node):
            node.change(lambda now: (now.__delitem__(slice(to, None)), now.extend(bytes(to - len(now)))))
            os.ftruncate(file, to)

    def punch(self, path, at, size):
        with self.file(path) as (file, node):
            size = min(size, len(node.versions[-1]) - at)
            if size > 0:
                node.change(lambda now: now.__setitem__(slice(at, at + size), bytes(size)))
                calls.punch(file, at, size)

    def map(self, path, at, size):
        with self.file(path) as (file, node):
            whole = len(node.versions[-1])
            if at + size <= whole:
                content = self.content(size)
                node.change(lambda now: now.__setitem__(slice(at, at + size), content))
                if os.fstat(file).st_size != whole:
                    raise AssertionError(f"{path}: {os.fstat(file).st_size} bytes, {whole} were written")
                with mmap.mmap(file, whole) as memory:
                    try:
                        calls.write_mapped(memory, content, at)
                    except OSError:
                        raise OSError(errno.ENOSPC, "no room behind mapped memory") from None
                    finally:
                        memory.flush()

    def copy(self, path, to, size):
        source = self.state[path].versions[-1][:size]
        self.create(to, 0)
        with self.file(to) as (file, node):
            node.change(lambda now: now.__setitem__(slice(0, None), source))
            with open(self.at(path), "rb") as other:
                done = 0
                while done < len(source):
                    came = os.copy_file_range(other.fileno(), file, len(source) - done, done, done)
                    if came == 0:
                        raise AssertionError(f"{path} ends at {done}, {len(source)} bytes were written")
                    done += came

    def names(self, call, change, *paths):
        """A change of names, which is done or not."""
        before = {path: os.path.lexists(self.at(path)) for path in paths}
        state = dict(self.state)
        change(state)
        try:
            call(*map(self.at, paths))
        except OSError as error:
            if error.errno in FULL and before != {path: os.path.lexists(self.at(path)) for path in paths}:
                raise AssertionError(f"{call.__name__} {paths} failed and did something") from None
            raise
        self.state = state

    def mkdir(self, path):
        self.needed(path)
        self.names(os.mkdir, lambda state: state.__setitem__(path, FOLDER), path)

    def rmdir(self, path):
        self.names(os.rmdir, lambda state: state.pop(path), path)

    def symlink(self, path, target):
        self.needed(path)
        self.names(lambda at: os.symlink(target, at), lambda state: state.__setitem__(path, target), path)

    def link(self, path, to):
        self.needed(to)
        self.state[path]
        self.names(os.link, lambda state: state.__setitem__(to, state[path]), path, to)

    def rename(self, path, to):
        def move(state):
            for one in [one for one in state if one == path or one.startswith(path + "/")]:
                state[to + one[len(path):]] = state.pop(one)
        self.state[path]
        self.needed(to)
        self.names(os.rename, move, path, to)

    def remove(self, *paths):
        for path in paths:
            if path in self.state:
                self.names(os.unlink, lambda state: state.pop(path), path)

    def replace(self, path, size):
        self.state[path]
        try:
            self.create(path + ".new", size)
        except OSError:
            self.remove(path + ".new")
            raise
        self.rename(path + ".new", path)

    def clear(self, folder):
        for path in sorted((path for path in self.state if path.startswith(folder + "/")), reverse=True):
            (self.rmdir if self.state[path] is FOLDER else self.remove)(path)
        self.rmdir(folder)

    def sync_folder(self, path):
        self.state[path]
        file = os.open(self.at(path), os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def attribute(self, path, size):
        self.state[path]
        os.setxattr(self.at(path), "user.x", bytes(size))

    def mode(self, path):
        self.state[path]
        os.chmod(self.at(path), 0o600)
        os.utime(self.at(path), (1, 1))

    # Afterwards.

    def differences(self):
        found = look(self.root)
        wrong = [f"{path} is lost" for path in self.state if path not in found]
        wrong += [f"{path} is there and must not be" for path in found if path not in self.state]
        for path in self.state.keys() & found.keys():
            what = self.state[path]
            objection = what.objection(found[path]) if isinstance(what, Node) else what != found[path]
            history = f" (after {'; '.join(filter(None, what.history[-4:]))})" if isinstance(what, Node) else ""
            wrong += [f"{path} is another: {objection}{history}"] if objection else []
        return wrong


UNMOUNT, CHECK = "unmount and mount", "check"
STEPS = [
    ("mkdir", "a"), ("create", "a/one", 20_000), ("create", "a/two", 1), ("create", "a/big", 1 << 20), ("append", "a/one", 50_000),
    ("overwrite", "a/one", 30_000, 10_000), ("truncate", "a/one", 30_001), ("truncate", "a/one", 200_000),
    ("punch", "a/big", 65_000, 100_000), ("mkdir", "a/b"), ("create", "a/b/" + "L" * 220, 5000), ("rename", "a/two", "a/b/two"),
    ("replace", "a/one", 60_000), ("symlink", "a/link", "to/nowhere"), ("link", "a/big", "a/b/big"), ("attribute", "a/one", 2000),
    ("mode", "a/one"), ("remove", "a/b/two"), ("many", "a", 20, 3000), ("sync_folder", "a"), (UNMOUNT,),
    ("overwrite", "a/big", 0, 1 << 20), ("append", "a/big", 500_000), ("append", "a/one", 100, False), (CHECK,),
    ("overwrite", "a/big", 5000, 300_000, False), ("replace", "a/big", 700_000), ("map", "a/one", 3000, 20_000),
    ("truncate", "a/big", 0), ("append", "a/big", 300_000, False), ("create", "a/through", 9000, True, os.O_DSYNC),
    ("rename", "a/b", "c"), ("mkdir", "a/empty"), ("rmdir", "a/empty"), ("rename", "a/many3", "a/many4"),
    ("truncate", "a/through", 1 << 20), ("overwrite", "a/through", 600_000, 50_000), ("copy", "a/one", "a/copy", 50_000),
    ("remove", "a/one"), ("clear", "c"), ("create", "last", 400_000), ("append", "last", 400_000, False), (UNMOUNT,),
]


class Disk:
    """A small file system, of which a ballast takes the room."""

    def __init__(self, folder, kind):
        self.at = folder / "disk"
        self.at.mkdir()
        if kind == "tmpfs":
            command = ["mount", "-t", "tmpfs", "-o", "size=24m", "none", self.at]
        else:
            with open(folder / "image", "wb") as image:
                image.truncate(32 << 20)
            subprocess.run(["mkfs.ext4", "-q", "-F", "-b", "4096", "-m", "0", folder / "image"], check=True)
            command = ["mount", "-o", "loop", folder / "image", self.at]
        done = subprocess.run(command, capture_output=True)
        if done.returncode != 0:
            raise NotHere(f"no {kind}: {last(done.stderr)}")

    def free(self):
        stat = os.statvfs(self.at)
        return stat.f_bavail * stat.f_frsize

    def fill(self, leave):
        """The ballast takes everything, whatever it had before."""
        os.sync()
        file = os.open(self.at / "ballast", os.O_RDWR | os.O_CREAT)
        size, part = os.fstat(file).st_size, 16 << 20
        while part >= 4096:
            part = min(part, self.free() - leave) // 4096 * 4096
            try:
                os.posix_fallocate(file, size, max(part, 1))
                size += part
            except OSError as error:
                if error.errno not in FULL:
                    raise
                part //= 2
        os.close(file)

    def empty(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.at / "ballast")

    def close(self):
        while subprocess.run(["umount", "-l", self.at], capture_output=True).returncode == 0:
            pass


class Run:
    """One volume, filled up before one step."""

    def __init__(self, folder, key, recipient, kind, shared, full_at, leave):
        self.key, self.shared, self.full_at, self.leave = key, shared, full_at, leave
        folder.mkdir()
        self.at, self.pid, self.wrong = folder / "mnt", None, []
        self.disk = Disk(folder, kind)
        self.prepare(recipient)

    def prepare(self, recipient):
        self.at.mkdir()
        self.volume = self.disk.at / "vol"
        self.work = Work(str(self.at))
        self.tried("fs init", lambda: self.command("fs", "init", "-r", recipient, self.volume))

    def command(self, *words):
        done = subprocess.run([WATTLOCK, *map(str, words)], capture_output=True, stdin=subprocess.DEVNULL, timeout=120)
        if done.returncode != 0:
            said = [line for line in (done.stdout + done.stderr).decode(errors="replace").strip().splitlines() if "Try " not in line]
            raise AssertionError(f"exit code {done.returncode}: {' | '.join(said[-3:])}")
        return done.stdout.decode()

    def tried(self, what, do):
        """Does it; what goes wrong is written down."""
        try:
            result = do()
            return True if result is None else result
        except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
            self.wrong.append(f"{what}: {error}")
            return None

    def mount(self):
        self.command("mount", "-i", self.key, *(["--shared"] if self.shared else []), self.volume, self.at)
        self.pid = int(re.search(r"^process (\d+)", self.command("fs", "status", self.at), re.M)[1])

    def unmount(self):
        self.command("umount", self.at)

    def kill(self):
        if self.pid:
            kill(self.pid)
        while subprocess.run(["umount", "-l", self.at], capture_output=True).returncode == 0:
            pass
        self.pid = None

    def hidden(self, by_force):
        """Unmounts; a mount that will not go is killed, so that the rest can be tried."""
        if by_force:
            self.kill()
            return
        pid = self.pid
        self.tried("umount", self.unmount)
        end = time.monotonic() + 20
        while pid and is_alive(pid) and time.monotonic() < end:
            time.sleep(0.02)
        if (pid and is_alive(pid)) or os.path.ismount(self.at):
            self.wrong.append("umount: the process goes on")
            self.kill()

    def shown(self, what):
        if self.tried(f"mount, {what}", self.mount) is None:
            return False
        for one in self.tried(f"reading, {what}", self.work.differences) or []:
            if one is not True:
                self.wrong.append(f"reading, {what}: {one}")
        return True

    def step(self, name, *words):
        if name in (UNMOUNT, CHECK):
            self.hidden(by_force=False)
            if name == CHECK:
                self.tried("fs check", lambda: self.command("fs", "check", "-i", self.key, self.volume))
            if self.tried("mount", self.mount) is None:
                raise RuntimeError("not mounted")
            return
        getattr(self.work, name)(*words)

    def steps(self):
        filled = False
        for number, step in enumerate(STEPS):
            if number == self.full_at:
                filled = True
                self.disk.fill(self.leave)
            name = f"step {number} {' '.join(map(str, step))[:40]}"
            try:
                self.step(*step)
            except KeyError:
                continue
            except AssertionError as error:
                self.wrong.append(f"{name}: {error}")
            except OSError as error:
                if error.errno not in FULL or not filled:
                    self.wrong.append(f"{name}: {error}")

    def overwrite(self):
        """A file without holes, in place, synced."""
        files = [path for path, what in self.work.state.items()
                 if isinstance(what, Node) and os.lstat(self.work.at(path)).st_blocks * 512 >= len(what.versions[-1]) >= 4096]
        if files:
            self.work.overwrite(files[0], 0, 4096)

    def remove(self):
        """The largest file; its room is free at once."""
        files = {path: what for path, what in self.work.state.items()
                 if isinstance(what, Node) and os.lstat(self.work.at(path)).st_nlink == 1}
        if not files:
            return
        path = max(files, key=lambda path: os.lstat(self.work.at(path)).st_blocks)
        room, before = os.lstat(self.work.at(path)).st_blocks * 512, self.disk.free()
        self.work.remove(path)
        # A descriptor that was closed a moment ago is let go of without anyone waiting for it.
        end = time.monotonic() + 2
        while (came := self.disk.free() - before) < room * 0.8 - 65_536:
            if time.monotonic() > end:
                raise AssertionError(f"{path} took {room} bytes, {came} are free again after two seconds")
            time.sleep(0.02)

    def afterwards(self):
        for one in self.work.differences():
            self.wrong.append(f"reading, still full: {one}")
        self.tried("overwriting, still full", self.overwrite)
        self.tried("rm, still full", self.remove)
        self.disk.fill(self.leave)
        by_force = self.full_at % 2 == 1
        self.hidden(by_force)
        how = "killed, still full" if by_force else "still full"
        if self.shown(how):
            self.hidden(by_force=False)
        self.tried(f"fs check, {how}", lambda: self.command("fs", "check", "-i", self.key, self.volume))
        self.disk.empty()
        if self.shown("room again"):
            self.tried("a new file, room again", lambda: self.work.create("new", 100_000))
            self.hidden(by_force=False)
            self.tried("fs check, room again", lambda: self.command("fs", "check", "-i", self.key, self.volume))

    def all(self):
        try:
            if self.tried("mount", self.mount):
                self.steps()
                if PLANT:
                    self.plant()
                self.afterwards()
        except RuntimeError:
            self.disk.empty()
            self.shown("room again")
        finally:
            self.kill()
            self.disk.close()
        return self.wrong

    def plant(self):
        path = next(path for path, what in self.work.state.items() if isinstance(what, Node) and what.versions[-1])
        node = self.work.state[path]
        node.versions = [bytes([node.versions[-1][0] ^ 1]) + node.versions[-1][1:]]


class Plain(Run):
    """The same in a folder of the disk itself."""

    def prepare(self, recipient):
        self.at = self.volume = self.disk.at / "plain"
        self.at.mkdir()
        self.work = Work(str(self.at))

    def command(self, *words):
        return ""

    def mount(self):
        pass

    def hidden(self, by_force):
        pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--on", default="tmpfs,ext4")
    parser.add_argument("--step", type=int)
    parser.add_argument("--leave", type=int, default=0)
    parser.add_argument("--plain", action="store_true")
    given = parser.parse_args()
    if os.geteuid() != 0:
        print("skipped: full: not root")
        return 0
    calls.own_mounts()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    given.folder.mkdir()
    key = given.folder / "key.txt"
    subprocess.run([WATTLOCK, "keygen", "-o", key], check=True, capture_output=True)
    recipient = re.search(r"# public key: (\S+)", key.read_text())[1]
    failed = 0
    for kind in given.on.split(","):
        for shared in (False,) if given.plain else (False, True):
            mode = "plain" if given.plain else "--shared" if shared else "cached"
            bad, steps = 0, range(len(STEPS)) if given.step is None else [given.step]
            for step in steps:
                try:
                    wrong = (Plain if given.plain else Run)(given.folder / f"{kind}{mode}{step}", key, recipient, kind, shared, step, given.leave).all()
                except NotHere as error:
                    print(f"skipped: full: {error}")
                    break
                bad += bool(wrong)
                for one in wrong:
                    print(f"full: {kind}, {mode}, full before step {step}: {one}", flush=True)
            else:
                print(f"full: {kind}, {mode}: a full disk before each of {len(steps)} steps: {bad} with something wrong", flush=True)
            failed += bad
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
