#!/usr/bin/env python3
"""Power cuts of a mounted volume on ext4: nothing that a sync acknowledged is lost, and nothing else is damaged.

    cuts.py FOLDER [--cuts 40] [--seed N]        FOLDER is new; WATTLOCK names the program. Takes root, loop devices, FUSE.

Each cut: one to three threads write, append, truncate, punch, replace, link and remove in a mount, and sync. They remember
here, outside, what each sync acknowledged. Then the kernel writes some dirty pages of the backing files and not others,
the ext4 below is cut off its disk (FS_IOC_SHUTDOWN: nothing more is written, or the log alone, or everything), and the
mount's process is killed. A quarter of the cuts happen twice: the second one hits the recovery. Then the ext4 is mounted
again (its log is replayed), and the volume, and everything is read:

- Names are those of one moment, at or after the last acknowledged sync of a folder. A file that was written, synced and
  then renamed over another is the one or the other.
- Each byte of a file is the one that its last sync acknowledged, or one that was written there since. A file is not
  shorter than its shortest size since that sync.
- `wattlock fs check` finds nothing. No entry is stored that is not shown. What docs/formats/volume.md says that a crash may
  leave (`wattlock.new.*`, `wattlock.gone.*`, the name of a long entry that was not made) is counted.

What is promised by what: fsync, fdatasync, msync and O_DSYNC promise content and size, and the name of a new or renamed
file too, as on ext4. fsync of a folder promises its names. sync(2) and syncfs(2) are called and promise nothing: the
kernel writes its pages to the server and sends it no request (FUSE_SYNCFS is for virtio and block devices only).

Volumes: every chunk size with names of a folder and deterministic, mounted by turns with and without --shared, each of
them cut again and again. The seed decides everything but the timing.

That it can fail: CUTS_PLANT=file forgets fsync(2) of files and claims it, CUTS_PLANT=folder that of folders. Tried: the
former loses acknowledged content in most of 6 cuts (--seed 7), the latter names in 1 of 16 (--seed 8): most names are made
durable by other syncs. Mounts are in a namespace of their own: an ext4 that another program copied into its own namespace
stays cut off.
"""

import argparse
import contextlib
import mmap
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "together"))
import calls
from desk import NotHere, Wrong, is_alive, kill, last, wait_for

WATTLOCK = os.environ["WATTLOCK"]
# Volumes are made by the hundred: this machine is to remember none.
STATE = tempfile.TemporaryDirectory()
os.environ["WATTLOCK_STATE_DIR"] = STATE.name
PLANT = os.environ.get("CUTS_PLANT", "")
LONGEST = 150_000
FOLDER = "folder"
#: FS_IOC_SHUTDOWN's flags.
SHUTDOWNS = {2: "nothing more is written", 1: "the log is written", 0: "everything is written"}
#: Options of the ext4: a log that is written every second catches half of an operation on the disk, one that is hardly ever
#: written only what a sync asks for.
EXT4 = ["commit=60", "commit=1", "commit=60,noauto_da_alloc", "commit=1,data=journal"]


class Node:
    """A file: its content at the last acknowledged sync, then after each operation since."""

    def __init__(self, content=b"", named=0):
        self.versions, self.named, self.history = [content], named, []

    def change(self, change, what=""):
        self.history.append(what)
        content = bytearray(self.versions[-1])
        change(content)
        self.versions.append(bytes(content))

    def acknowledge(self, by="sync"):
        self.history.append(by)
        del self.versions[:-1]

    def objection(self, found):
        """Why this content is none that a power cut may leave; None if it may."""
        if found in self.versions:
            return None
        sizes = [len(version) for version in self.versions]
        if not min(sizes) <= len(found) <= max(sizes):
            return f"{len(found)} bytes, {sizes[0]} were synced, sizes since are {sorted(set(sizes[1:]))[:8]}"
        for at in range(0, len(found), 512):
            part = found[at:at + 512]
            if any(version[at:at + 512] == part for version in self.versions):
                continue
            for place in range(at, at + len(part)):
                allowed = {version[place] for version in self.versions if place < len(version)}
                # What was never acknowledged may be a hole.
                if found[place] not in allowed and (found[place] or place < sizes[0]):
                    return (f"byte {place} of {len(found)} is {found[place]}, which was never written there, {sizes[0]} bytes were "
                            f"synced; {', '.join(filter(None, self.history[-12:]))}")
        return None


class Worker(threading.Thread):
    """Works in its own folder of a mount until that is gone, and knows what was acknowledged."""

    def __init__(self, root, dice, state, cutter, folders_only):
        super().__init__(daemon=True)
        #: Syncs of files make names durable, too: some cuts do without.
        self.folders_only = folders_only
        self.root, self.dice, self.cutter = root, dice, cutter
        #: Each state of the names, the folders that the step to it changed, and the first state that may be found.
        self.states, self.touched, self.barrier = [state], [set()], 0
        self.promised_by = "the volume was mounted"
        self.open, self.done, self.fresh, self.acknowledged, self.wrong = {}, 0, 0, 0, None

    # Names.

    def names(self, kind=None):
        state = self.states[-1]
        if kind is FOLDER:
            return [""] + [path for path, what in state.items() if what is FOLDER]
        return [path for path, what in state.items() if kind is None or isinstance(what, kind)]

    def at(self, path):
        return f"{self.root}/{path}" if path else self.root

    def new_name(self):
        self.fresh += 1
        long = "L" * self.dice.choice((0, 0, 0, 190))
        return os.path.join(self.dice.choice(self.names(FOLDER)), f"{self.fresh}{long}-{self.dice.randrange(1000)}")

    def step(self, change, *paths):
        """Notes a change of names before it is asked for: a cut may find it done or not."""
        state = dict(self.states[-1])
        change(state)
        self.states.append(state)
        self.touched.append({os.path.dirname(path) for path in paths})
        return len(self.states) - 1

    def named(self, index, by):
        """A sync acknowledged all steps up to this one."""
        if index > self.barrier:
            self.barrier, self.promised_by = index, f"{by} was synced"

    # Files.

    @contextlib.contextmanager
    def handle(self, path, flags=os.O_RDWR):
        """A descriptor, of which some stay open for later."""
        node = self.states[-1][path]
        file = self.open.get(node) if flags == os.O_RDWR else None
        if file is None:
            file = os.open(self.at(path), flags)
        try:
            yield file, node
        finally:
            if self.open.get(node) != file:
                if len(self.open) < 4 and flags == os.O_RDWR and self.dice.random() < 0.3:
                    self.open[node] = file
                else:
                    os.close(file)
            elif self.dice.random() < 0.3:
                os.close(self.open.pop(node))

    def content(self):
        return self.dice.randbytes(self.dice.choice((1, 100, 4000, 4096, 20_000, 70_000, LONGEST)))

    def sync(self, file, node, by=os.fsync):
        if self.folders_only:
            return
        if PLANT != "file":
            by(file)
        self.before_the_cut()
        node.acknowledge(getattr(by, "__name__", "sync"))
        self.named(node.named, "a file")
        self.acknowledged += 1

    def before_the_cut(self):
        """An ext4 that is being shut down acknowledges what it loses (18 files in 60 cuts of ext4 alone, none of which was
        acknowledged before the cut began): a power cut acknowledges nothing."""
        if self.cutter.cut.is_set():
            raise OSError("acknowledged too late")

    def write(self, file, node, content, at):
        def put(now):
            now.extend(bytes(max(0, at - len(now))))
            now[at:at + len(content)] = content
        node.change(put, f"written {at}+{len(content)}")
        if os.pwrite(file, content, at) != len(content):
            raise OSError("a short write")

    # Operations.

    def make(self, path=None, sync=None):
        path, node = path or self.new_name(), Node()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        through = sync is None and self.dice.random() < 0.1 and not self.folders_only
        node.named = self.step(lambda state: state.__setitem__(path, node), path)
        file = os.open(self.at(path), flags | (os.O_DSYNC if through else 0), 0o644)
        try:
            self.write(file, node, self.content(), 0)
            if through:
                self.sync(file, node, lambda file: None)
            elif sync or self.dice.random() < 0.4:
                self.sync(file, node)
        finally:
            os.close(file)
        return path, node

    def change(self):
        path = self.dice.choice(self.names(Node))
        with self.handle(path) as (file, node):
            size = len(node.versions[-1])
            self.dice.choice((self.overwrite, self.append, self.truncate, self.punch, self.map))(file, node, size)
            if self.dice.random() < 0.4:
                self.sync(file, node, self.dice.choice((os.fsync, os.fdatasync)))

    def overwrite(self, file, node, size):
        at = self.dice.randrange(size + 1)
        self.write(file, node, self.content()[:LONGEST - at], at)

    def append(self, file, node, size):
        if size < LONGEST:
            self.write(file, node, self.content(), size)

    def truncate(self, file, node, size):
        to = self.dice.choice((0, size // 2, self.dice.randrange(size + 1), self.dice.randrange(LONGEST)))
        node.change(lambda now: (now.__delitem__(slice(to, None)), now.extend(bytes(to - len(now)))), f"truncated to {to}")
        os.ftruncate(file, to)

    def punch(self, file, node, size):
        if size:
            at = self.dice.randrange(size)
            length = self.dice.randrange(1, size - at + 1)
            node.change(lambda now: now.__setitem__(slice(at, at + length), bytes(length)), f"punched {at}+{length}")
            calls.punch(file, at, length)

    def map(self, file, node, size):
        if size:
            at = self.dice.randrange(size)
            content = self.content()[:size - at]
            with mmap.mmap(file, size) as memory:
                self.write_mapped(memory, node, content, at)
                if self.dice.random() < 0.5:
                    self.sync(file, node, lambda file: memory.flush())

    def write_mapped(self, memory, node, content, at):
        node.change(lambda now: now.__setitem__(slice(at, at + len(content)), content), f"mapped {at}+{len(content)}")
        calls.write_mapped(memory, content, at)

    def replace(self):
        """As editors and package managers do it: a new file, synced, renamed over the old one."""
        if self.folders_only:
            return
        path = self.dice.choice(self.names(Node))
        temporary, node = self.make(os.path.join(os.path.dirname(path), f"new{self.fresh}"), sync=True)
        self.fresh += 1
        node.named = self.step(lambda state: state.__setitem__(path, state.pop(temporary)), path, temporary)
        os.rename(self.at(temporary), self.at(path))
        if self.dice.random() < 0.5:
            self.sync_folder(os.path.dirname(path))

    def rename(self):
        path, to = self.dice.choice(self.names()), self.new_name()
        if to.startswith(path + "/"):
            return
        what = self.states[-1][path]

        def move(state):
            for one in [one for one in state if one == path or one.startswith(path + "/")]:
                state[to + one[len(path):]] = state.pop(one)
        index = self.step(move, path, to)
        if isinstance(what, Node):
            what.named = index
        os.rename(self.at(path), self.at(to))
        if isinstance(what, Node) and self.dice.random() < 0.3:
            self.sync_file(to)

    def remove(self):
        path = self.dice.choice(self.names())
        folder = self.states[-1][path] is FOLDER
        if not folder or not any(one.startswith(path + "/") for one in self.states[-1]):
            self.step(lambda state: state.pop(path), path)
            (os.rmdir if folder else os.unlink)(self.at(path))

    def folder(self):
        path = self.new_name()
        if path.count("/") < 4:
            self.step(lambda state: state.__setitem__(path, FOLDER), path)
            os.mkdir(self.at(path))

    def link(self):
        path, to = self.dice.choice(self.names(Node)), self.new_name()
        self.states[-1][path].named = self.step(lambda state: state.__setitem__(to, state[path]), to)
        os.link(self.at(path), self.at(to))
        if self.dice.random() < 0.3:
            self.sync_file(to)

    def symlink(self):
        path, target = self.new_name(), f"to/{self.fresh}"
        self.step(lambda state: state.__setitem__(path, target), path)
        os.symlink(target, self.at(path))

    def sync_file(self, path=None):
        with self.handle(path or self.dice.choice(self.names(Node))) as (file, node):
            self.sync(file, node)

    def sync_folder(self, path=None):
        path = self.dice.choice(self.names(FOLDER)) if path is None else path
        upto = max((index for index, touched in enumerate(self.touched) if path in touched), default=0)
        file = os.open(self.at(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            if PLANT != "folder":
                os.fsync(file)
            self.before_the_cut()
            self.named(upto, f"folder {path[:40]}")
            self.acknowledged += 1
        finally:
            os.close(file)

    def sync_all(self):
        file = os.open(self.root, os.O_RDONLY)
        try:
            calls.syncfs(file)
        except OSError as error:
            if not self.cutter.cut.is_set():
                self.wrong = f"before the cut: syncfs: {error}"
        finally:
            os.close(file)

    def run(self):
        few, many = (self.make, self.folder), (
            [self.change] * 12 + [self.make] * 4 + [self.replace] * 4 + [self.rename] * 3 + [self.remove] * 3
            + [self.folder] * 2 + [self.link, self.symlink, self.sync_all] + [self.sync_file] * 3 + [self.sync_folder] * 3)
        try:
            while not self.cutter.cut.is_set():
                self.cutter.going.wait()
                files = len(self.names(Node))
                if files > 60:
                    self.remove()
                else:
                    self.dice.choice(few if files < 3 else many)()
                self.done += 1
        except OSError as error:
            if not self.cutter.cut.is_set():
                where = [frame.name for frame in traceback.extract_tb(error.__traceback__)][1:]
                self.wrong = f"before the cut, {' > '.join(where)}: {error} {error.filename2 or ''}"
        finally:
            for file in self.open.values():
                with contextlib.suppress(OSError):
                    os.close(file)

    # Afterwards.

    def judge(self, found):
        """What is wrong with what a cut left; an empty list if nothing is."""
        best, seen = None, {}
        for state in self.states[self.barrier:]:
            wrong = [f"{path} is lost" for path in state if path not in found]
            wrong += [f"{path} is there and must not be" for path in found if path not in state]
            for path in state.keys() & found.keys():
                what, there = state[path], found[path]
                if isinstance(what, Node) and isinstance(there, bytes):
                    if (what, path) not in seen:
                        seen[what, path] = what.objection(there)
                    objection = seen[what, path]
                    wrong += [f"content of {path} is lost: {objection}"] if objection else []
                elif what != there:
                    wrong.append(f"{path} is lost: something else is there")
            if not wrong:
                return []
            best = wrong if best is None or len(wrong) < len(best) else best
        return [*best, f"(names were promised when {self.promised_by})"]


def look(root):
    """Names below a folder, each with its content."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(folder, name)
            if os.path.islink(path):
                found[path[len(root) + 1:]] = os.readlink(path)
            elif os.path.isdir(path):
                found[path[len(root) + 1:]] = FOLDER
            else:
                found[path[len(root) + 1:]] = Path(path).read_bytes()
    return found


class Disk:
    """An ext4 on a loop device, which can be cut off."""

    def __init__(self, folder, dice):
        self.image, self.at, self.dice = folder / "image", folder / "disk", dice
        self.at.mkdir()
        with open(self.image, "wb") as image:
            image.truncate(1 << 30)
        subprocess.run(["mkfs.ext4", "-q", "-F", self.image], check=True)
        # One device for all cuts: two of one image would have two caches.
        done = subprocess.run(["losetup", "--find", "--show", self.image], capture_output=True)
        if done.returncode != 0:
            raise NotHere(f"no loop device: {last(done.stderr)}")
        self.device = done.stdout.decode().strip()

    def mount(self, options):
        done = subprocess.run(["mount", "-o", options, self.device, self.at], capture_output=True)
        if done.returncode != 0:
            raise NotHere(f"no ext4 on {self.device}: {last(done.stderr)}")
        self.top = os.open(self.at, os.O_RDONLY)

    def write_some(self):
        """The kernel writes dirty pages of some backing files, and of some files a part."""
        with contextlib.suppress(OSError):
            for folder, _, files in os.walk(self.at):
                for name in files:
                    if self.dice.random() < 0.3 or name == "wattlock.journal":
                        file = os.open(os.path.join(folder, name), os.O_RDONLY)
                        try:
                            size = os.fstat(file).st_size
                            at = self.dice.choice((0, self.dice.randrange(size + 1)))
                            calls.write_pages(file, at, self.dice.choice((4096, 65536, size + 1)))
                        finally:
                            os.close(file)

    def cut(self, how):
        try:
            calls.shut_down(self.top, how)
        except OSError as error:
            raise NotHere(f"no FS_IOC_SHUTDOWN: {error}") from None

    def unmount(self):
        os.close(self.top)
        wait_for(lambda: subprocess.run(["umount", self.at], capture_output=True).returncode == 0, "the ext4 to be unmounted")


class Volume:
    """A volume on the disk; `states` are what its workers' folders hold."""

    def __init__(self, cutter, names, chunk):
        self.cutter, self.names, self.chunk = cutter, names, chunk
        self.made = 0
        self.begin_anew()

    def begin_anew(self):
        self.path = self.cutter.disk.at / f"{self.names}-{self.chunk}-{self.made}"
        self.made, self.left, self.states = self.made + 1, 0, [{}, {}, {}]
        self.cutter.good("fs", "init", "-r", self.cutter.recipient, "--names", self.names, "--chunk", self.chunk, self.path)

    def leftovers(self, shown):
        """What is stored and is not shown: how many that docs/formats/volume.md allows a crash to leave, and what else."""
        allowed, wrong, entries = 0, [], 0
        for folder, folders, files in os.walk(self.path):
            known = {"wattlock.dir"}
            if Path(folder) == self.path:
                known |= {"wattlock.fs", "wattlock.journal"}
                folders[:] = [name for name in folders if name != "wattlock.keys"]
            for name in folders + files:
                if name.startswith(("wattlock.new.", "wattlock.gone.", "wattlock.bad.")):
                    allowed += 1
                elif name.startswith("wattlock.long.") and name.endswith(".name"):
                    allowed += not os.path.lexists(os.path.join(folder, name[:-5]))
                elif name.startswith("wattlock.long.") or not name.startswith("wattlock."):
                    entries += 1
                elif name not in known:
                    wrong.append(f"left over: {name}")
            folders[:] = [name for name in folders if not name.startswith(("wattlock.new.", "wattlock.gone."))]
        if entries != shown:
            wrong.append(f"left over: {entries} entries are stored, {shown} are shown")
        new, self.left = allowed - self.left, allowed
        self.cutter.left += max(new, 0)
        return wrong


class Cutter:
    def __init__(self, folder, seed):
        self.folder, self.seed, self.dice = folder, seed, random.Random(seed)
        self.key, self.at = folder / "key.txt", folder / "mnt"
        self.at.mkdir()
        self.good("keygen", "-o", self.key)
        self.recipient = re.search(r"# public key: (\S+)", self.key.read_text())[1]
        self.disk, self.pid = Disk(folder, self.dice), None
        self.cut, self.going = threading.Event(), threading.Event()
        self.wrong = self.left = self.acknowledged = self.operations = 0

    def run(self, *words):
        return subprocess.run([WATTLOCK, *map(str, words)], capture_output=True, stdin=subprocess.DEVNULL, timeout=300)

    def good(self, *words):
        done = self.run(*words)
        if done.returncode != 0:
            said = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()[:12]
            raise Wrong(f"wattlock {' '.join(map(str, words[:2]))}: exit code {done.returncode}: {' | '.join(said)}")
        return done.stdout.decode()

    def show(self, volume, shared):
        # No machine starts as fast as this: what was made within 20 ms of a start counts as made since.
        time.sleep(0.1)
        self.good("mount", "-i", self.key, *(["--shared"] if shared else []), volume.path, self.at)
        self.pid = int(re.search(r"^process (\d+)", self.good("fs", "status", self.at), re.M)[1])

    def hide(self):
        wait_for(lambda: self.run("umount", self.at).returncode == 0, "the volume to be unmounted")
        wait_for(lambda: not is_alive(self.pid), "the mount's process to end")

    def bury(self):
        """Kills what serves the volume, and takes the dead mount and the ext4 below it away."""
        if self.pid and is_alive(self.pid):
            kill(self.pid)
        subprocess.run(["umount", "-l", self.at], capture_output=True)
        self.disk.unmount()

    def close(self):
        if self.pid and is_alive(self.pid):
            kill(self.pid)
        for at in (self.at, self.disk.at):
            while subprocess.run(["umount", "-l", at], capture_output=True).returncode == 0:
                pass
        subprocess.run(["losetup", "-d", self.disk.device], capture_output=True)

    def work(self, volume, number, how):
        """Workers that a cut ends."""
        self.cut.clear()
        self.going.set()
        workers, folders_only = [], self.dice.random() < 0.3
        for at in range(self.dice.randrange(1, 4)):
            root = self.at / str(at)
            if not root.exists():
                root.mkdir()
            workers.append(Worker(str(root), random.Random(f"{self.seed} {number} {at}"), volume.states[at], self, folders_only))
        subprocess.run(["sync", "-f", self.disk.at], check=True)
        for worker in workers:
            worker.start()
        wanted, pause = self.dice.randrange(10, 250), self.dice.random() < 0.2
        while sum(worker.done for worker in workers) < wanted and all(worker.is_alive() for worker in workers):
            time.sleep(0.01)
            if self.dice.random() < 0.05:
                self.disk.write_some()
        if pause:
            # After five idle seconds what the journal holds is copied into place: the cut hits that.
            self.going.clear()
            time.sleep(4.8 + self.dice.random())
        time.sleep(self.dice.random() * 0.05)
        self.disk.write_some()
        self.cut.set()
        self.disk.cut(how)
        self.going.set()
        time.sleep(self.dice.choice((0, 0, 0.1)))
        kill(self.pid)
        for worker in workers:
            worker.join(60)
            if worker.is_alive():
                raise Wrong("a call into a mount that was killed never ends")
        self.bury()
        return workers

    def recover(self, volume, shared, options):
        """A cut in the middle of what a start does."""
        self.disk.mount(options)
        starting = subprocess.Popen([WATTLOCK, "mount", "--foreground", "-i", self.key, volume.path, self.at,
                                     *(["--shared"] if shared else [])], stdin=subprocess.DEVNULL,
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(self.dice.random() * 0.15)
        self.disk.write_some()
        self.disk.cut(2)
        starting.kill()
        starting.wait()
        self.pid = None
        self.bury()

    def judge(self, volume, shared, workers):
        wrong = [f"{worker.wrong}" for worker in workers if worker.wrong]
        try:
            self.show(volume, shared)
        except Wrong as error:
            volume.begin_anew()
            return [*wrong, str(error)]
        shown = 0
        for at, state in enumerate(volume.states):
            root = self.at / str(at)
            found = look(str(root)) if root.exists() else {}
            shown += len(found) + root.exists()
            if at < len(workers):
                wrong += workers[at].judge(found)
            elif found != {path: what.versions[0] if isinstance(what, Node) else what for path, what in state.items()}:
                wrong.append(f"folder {at}, which nobody used, is another")
            volume.states[at] = self.remembered(root, found)
        self.hide()
        wrong += volume.leftovers(shown)
        try:
            self.good("fs", "check", "-i", self.key, volume.path)
        except Wrong as error:
            wrong.append(str(error))
        return wrong

    @staticmethod
    def remembered(root, found):
        """What was found, as what the next cut must leave. Names of one file have one node."""
        nodes, state = {}, {}
        for path, what in found.items():
            if isinstance(what, bytes):
                what = nodes.setdefault(os.lstat(root / path).st_ino, Node(what))
            state[path] = what
        return state

    def all(self, cuts):
        options = EXT4[0]
        self.disk.mount(options)
        volumes = [Volume(self, names, chunk) for chunk in ("4K", "64K", "16K", "256K") for names in ("folder", "deterministic")]
        for number in range(cuts):
            volume, shared, how = volumes[number % 8], number // 8 % 2 == 1, list(SHUTDOWNS)[(0, 1, 0, 2, 0)[number % 5]]
            if number % 3 == 2:
                options = self.dice.choice(EXT4)
            twice = self.dice.random() < 0.25
            self.show(volume, shared)
            workers = self.work(volume, number, how)
            if twice:
                self.recover(volume, shared, options)
            self.disk.mount(options)
            wrong = self.judge(volume, shared, workers)
            done, acknowledged = sum(one.done for one in workers), sum(one.acknowledged for one in workers)
            self.operations, self.acknowledged = self.operations + done, self.acknowledged + acknowledged
            print(f"cuts: {number + 1}: names {volume.names}, chunks of {volume.chunk}, {'--shared' if shared else 'cached'}, "
                  f"{SHUTDOWNS[how]}{', twice' if twice else ''}, ext4 {options}: {len(workers)} workers, {done} operations, "
                  f"{acknowledged} syncs: {'nothing is lost' if not wrong else f'{len(wrong)} wrong'}", flush=True)
            for one in wrong[:10]:
                print(f"    {re.sub('L{100,}', 'L...', one)}", flush=True)
            self.wrong += bool(wrong)
        self.disk.unmount()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cuts", type=int, default=40)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    given = parser.parse_args()
    if os.geteuid() != 0:
        print("skipped: cuts: not root")
        return 0
    print(f"cuts: seed {given.seed}", flush=True)
    calls.own_mounts()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    given.folder.mkdir()
    cutter = None
    try:
        cutter = Cutter(given.folder, given.seed)
        cutter.all(given.cuts)
    except NotHere as error:
        print(f"skipped: cuts: {error}")
        return 0
    finally:
        if cutter:
            cutter.close()
    print(f"cuts: {given.cuts} cuts, {cutter.operations} operations, {cutter.acknowledged} acknowledged syncs: "
          f"{cutter.wrong} cuts lost or damaged something, {cutter.left} unfinished names are left over")
    return int(cutter.wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
