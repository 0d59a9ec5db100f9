"""Writes, syncs and replaces files in a mount, and knows what of it was acknowledged.

ledger.py FOLDER SEED reads commands from its standard input, one a line:
  run PID     works until the mount is gone; kills the process PID of the mount itself, at a moment that chance says
  room STEPS  works so many steps; a step may fail for want of room, and with nothing else
  verify      reads everything: what was acknowledged is there, byte for byte, and the rest is something that was written
Each is answered by one line: "dead", "full N", "ok ..." or what is wrong. What this process remembers lies outside the
mount, as a log would.
"""

import contextlib
import errno
import mmap
import os
import random
import signal
import sys
import threading

root, seed = sys.argv[1], int(sys.argv[2])
random.seed(seed)
LONGEST = 120_000
GONE = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ENODEV)
counter = 0
acknowledged = 0


class Short(Exception):
    """A write that wrote a part: what stands against the rest the next call says."""


def fresh(size):
    """Bytes that were never written before."""
    global counter
    counter += 1
    return (b"%d.%d;" % (seed, counter) * (size // 4 + 1))[:size]


class File:
    """A file: what of it is acknowledged, and what was asked for since.

    After a failed sync the kernel holds what it could not write for clean, and a later sync that succeeds says nothing
    of it: what was pending then is in doubt for good.
    """

    def __init__(self, name):
        self.name, self.base, self.pending, self.doubtful, self.made = name, b"", [], [], False

    def failed(self):
        self.doubtful += self.pending
        self.pending = []

    def path(self):
        return f"{root}/{self.name}"

    def acknowledge(self):
        """All that was asked for is durable now."""
        global acknowledged
        acknowledged += 1
        now = bytearray(self.base)
        for kind, at, data in self.pending:
            if kind == "cut":
                del now[at:]
                now.extend(bytes(at - len(now)))
            else:
                now.extend(bytes(max(0, at + len(data) - len(now))))
                now[at : at + len(data)] = data
        self.base, self.pending, self.made = bytes(now), [], True

    def verify(self):
        """Says what is wrong with what is there, and goes on from it."""
        try:
            with open(self.path(), "rb") as file:
                found = file.read()
        except FileNotFoundError:
            if self.made:
                return f"{self.name} is gone"
            self.base, self.pending, self.doubtful = b"", [], []
            return None
        asked = self.doubtful + self.pending
        shortest = longest = length = len(self.base)
        holes = []
        for kind, at, data in asked:
            end = at if kind == "cut" else max(length, at + len(data))
            holes.append((min(length, end if kind == "cut" else at), max(length, end)))
            length = end
            shortest, longest = min(shortest, length), max(longest, length)
        if not shortest <= len(found) <= longest:
            return f"{self.name} has {len(found)} bytes, not {shortest} to {longest}"
        for start in range(0, len(found), 1024):
            part = found[start : start + 1024]
            if part == self.base[start : start + 1024]:
                continue
            for at in range(start, start + len(part)):
                byte = found[at]
                if at < len(self.base) and self.base[at] == byte:
                    continue
                if any(kind == "put" and p <= at < p + len(d) and d[at - p] == byte for kind, p, d in asked):
                    continue
                if byte == 0 and any(low <= at < high for low, high in holes):
                    continue
                was = self.base[at] if at < len(self.base) else None
                return f"{self.name}: byte {at} of {len(found)} is {byte}, was {was}; {len(asked)} unacknowledged"
        self.base, self.pending, self.doubtful, self.made = found, [], [], True
        return None


files = [File(f"f{i}") for i in range(4)]
#: Files that are replaced as a whole: name, contents of which one must be there.
wholes = {f"whole{i}" + "w" * (200 * i): [None] for i in range(2)}
#: Folders that were made and synced, each with a synced file.
folders = {}


def synced(path, flags=os.O_RDONLY):
    file = os.open(path, flags)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def write(one):
    size = random.choice((1, 50, 4096, 5000, 30_000))
    at = random.choice((0, 1, 3, 5, 17)) * 4096 + random.choice((0, 0, 100, 4090))
    data = fresh(size)
    how = random.randrange(8)
    length = max([len(one.base)] + [at + len(data) for kind, at, data in one.pending if kind == "put"])
    flags = os.O_RDWR | os.O_CREAT
    if how == 0:
        file = os.open(one.path(), flags | os.O_DSYNC)
    elif how == 1:
        file = os.open(one.path(), flags | os.O_APPEND)
        at = os.fstat(file).st_size
        if at > LONGEST:
            os.close(file)
            return
    else:
        file = os.open(one.path(), flags)
    try:
        if how == 2:
            to = random.randrange(LONGEST)
            one.pending.append(("cut", to, b""))
            os.ftruncate(file, to)
        elif how == 3 and os.fstat(file).st_size >= at + size:
            one.pending.append(("put", at, data))
            # In a process of its own: a page of a mount that is gone is a signal.
            child = os.fork()
            if child == 0:
                try:
                    with mmap.mmap(file, 0) as memory:
                        memory[at : at + size] = data
                        memory.flush()
                    os._exit(0)
                except OSError as error:
                    os._exit(error.errno)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if code:
                raise OSError(code if code > 0 else errno.ENOTCONN, "a mapped write")
            one.acknowledge()
            return
        else:
            one.pending.append(("put", at, data))
            done = os.pwrite(file, data, at) if how != 1 else os.write(file, data)
            if done < len(data):
                raise Short
            if how == 0:
                # The write alone is durable; of those before it nothing is known. Kept apart only if they overlap.
                if len(one.pending) == 1:
                    one.acknowledge()
                return
        if random.random() < 0.6:
            random.choice((os.fsync, os.fdatasync))(file)
            one.acknowledge()
    finally:
        try:
            os.close(file)
        except OSError:
            pass


def replace(name):
    global acknowledged
    data = fresh(random.choice((10, 5000, 40_000)))
    wholes[name].append(data)
    file = os.open(f"{root}/{name[:150]}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        done = os.write(file, data)
        if done < len(data):
            raise Short
        os.fsync(file)
    finally:
        try:
            os.close(file)
        except OSError:
            pass
    os.rename(f"{root}/{name[:150]}.new", f"{root}/{name}")
    synced(root)
    wholes[name] = [data]
    acknowledged += 1


def make():
    global acknowledged, counter
    counter += 1
    name = f"d{counter}" + "d" * random.choice((0, 180))
    os.mkdir(f"{root}/{name}")
    synced(root)
    data = fresh(3000)
    file = os.open(f"{root}/{name}/in", os.O_WRONLY | os.O_CREAT)
    try:
        if os.write(file, data) < len(data):
            raise Short
        os.fsync(file)
        synced(f"{root}/{name}")
        folders[name] = data
        acknowledged += 1
    finally:
        try:
            os.close(file)
        except OSError:
            pass


def drop():
    name = random.choice(list(folders))
    del folders[name]
    try:
        os.unlink(f"{root}/{name}/in")
        os.rmdir(f"{root}/{name}")
    except OSError as error:
        if error.errno not in GONE:
            raise


def step():
    kind = random.randrange(20)
    if kind == 0:
        make()
    elif kind == 1 and len(folders) > 10:
        drop()
    elif kind in (2, 3):
        replace(random.choice(list(wholes)))
    else:
        one = random.choice(files)
        try:
            write(one)
        except (OSError, Short):
            one.failed()
            raise


def verify():
    for one in files:
        wrong = one.verify()
        if wrong:
            return wrong
    for name, allowed in wholes.items():
        try:
            with open(f"{root}/{name}", "rb") as file:
                found = file.read()
        except FileNotFoundError:
            found = None
        if found not in allowed:
            return f"{name[:20]} is neither what it was nor what it was to be"
        wholes[name] = [found]
    for name, wanted in folders.items():
        with open(f"{root}/{name}/in", "rb") as file:
            if file.read() != wanted:
                return f"{name[:20]}/in has other content"
    # Whatever else is there can be read.
    for folder, below, found in os.walk(root, onerror=lambda error: below.append(error)):
        for name in found:
            with open(f"{folder}/{name}", "rb") as file:
                file.read()
    return f"ok {acknowledged}"


for line in sys.stdin:
    word, *rest = line.split()
    if word == "run":
        killer = threading.Timer(random.random() * 0.15, os.kill, (int(rest[0]), signal.SIGKILL))
        killer.start()
        try:
            while True:
                with contextlib.suppress(Short):
                    step()
        except OSError as error:
            answer = "dead" if error.errno in GONE else f"{error}"
        killer.join()
    elif word == "room":
        full, answer = 0, None
        for _ in range(int(rest[0])):
            try:
                step()
            except Short:
                full += 1
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    answer = f"{error}"
                    break
                full += 1
        answer = answer or f"full {full}"
    else:
        try:
            answer = verify()
        except OSError as error:
            answer = f"{error}"
    print(answer, flush=True)
