"""Does the same random things in two folders and stops at the first difference.

model.py SEED STEPS MODEL FOLDER [SECONDS]: MODEL lies on an ordinary file system, FOLDER in a mount. What is there
already goes on, so the program can be called again after a remount. At the end everything is synced, so that FOLDER
may be killed then. With SECONDS it stops after these, whatever STEPS says.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import random
import stat
import sys
import time

seed, steps, roots = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:5]
until = time.monotonic() + float(sys.argv[5]) if len(sys.argv) > 5 else None
random.seed(seed)
libc = ctypes.CDLL(None, use_errno=True)
KEEP, PUNCH, ZERO = 1, 2, 16
LONGEST = 400_000
os.umask(0o022)


def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def allocate(side, file, mode, at, size):
    """The model writes zeros itself: not every file system has these modes."""
    if side == 1:
        call("fallocate", file, mode, ctypes.c_long(at), ctypes.c_long(size))
        return
    length = os.fstat(file).st_size
    if mode & (PUNCH | ZERO) and at < length:
        os.pwrite(file, bytes(min(size, length - at)), at)
    if not mode & KEEP and at + size > length:
        os.ftruncate(file, at + size)


def outcome(work, side):
    try:
        return work(side, roots[side])
    except OSError as error:
        return errno.errorcode[error.errno]


def both(what, work):
    global said
    one, two = outcome(work, 0), outcome(work, 1)
    if one != two:
        short = lambda value: repr(value)[:300]
        sys.exit(f"seed {seed}, step {step}: {what}: {short(one)} in the model, {short(two)} in the mount")
    return one


class Open:
    """One file, open in both folders. Appending ones are never positioned."""

    def __init__(self, path, flags):
        self.path, self.append = path, bool(flags & os.O_APPEND)
        self.files = [os.open(f"{root}/{path}", flags, 0o644) for root in roots]

    def both(self, what, work):
        return both(f"{what} in {self.path}", lambda side, root: work(side, self.files[side]))

    def length(self):
        return self.both("length", lambda side, file: os.fstat(file).st_size)

    def close(self):
        for file in self.files:
            os.close(file)


def names():
    """Folders, and everything else, of the model."""
    folders, others = [""], []
    for folder, below, files in os.walk(roots[0]):
        base = os.path.relpath(folder, roots[0]).removeprefix(".").removeprefix("/")
        folders += [os.path.join(base, name) for name in below if not os.path.islink(f"{folder}/{name}")]
        others += [os.path.join(base, name) for name in files]
    return sorted(folders), sorted(others)


def fresh(folder):
    return os.path.join(folder, random.choice("abcdefghijkl") * random.choice((1, 1, 2, 17, 175, 176, 255)))


def data(size):
    return random.randbytes(min(size, 64)) * (size // 64 + 1) if size > 64 else random.randbytes(size)


def size():
    return random.choice((0, 1, 7, 100, 4095, 4096, 4097, 8192, 20_000, 65_536, 70_001))


def place(length):
    at = random.choice((0, length, random.randrange(length + 1), random.randrange(LONGEST)))
    return at & ~4095 if random.random() < 0.3 else at


def content(one):
    """An operation on an open file."""
    length, amount = one.length(), size()
    at = place(length)
    kind = random.randrange(14)
    if kind < 3:
        bytes_ = data(amount)
        if one.append:
            one.both("append", lambda side, file: os.write(file, bytes_) if length < LONGEST else 0)
        else:
            one.both(f"write of {amount} at {at}", lambda side, file: os.pwrite(file, bytes_, at))
    elif kind < 6:
        one.both(f"read of {amount} at {at}", lambda side, file: os.pread(file, amount, at))
    elif kind == 6:
        one.both(f"truncation to {at}", lambda side, file: os.ftruncate(file, at))
    elif kind == 7 and amount:
        mode = random.choice((0, KEEP, PUNCH | KEEP, ZERO | KEEP, ZERO))
        if not one.append:
            what = f"fallocate {mode} of {amount} at {at}"
            one.both(what, lambda side, file: allocate(side, file, mode, at, amount))
    elif kind == 8 and length:
        at, bytes_, flush = min(at, length - 1), data(amount), random.random() < 0.5

        def mapped(side, file):
            with mmap.mmap(file, length) as memory:
                part = bytes_[: length - at]
                memory[at : at + len(part)] = part
                if flush:
                    memory.flush()

        one.both(f"mapped write of {amount} at {at}", mapped)
    elif kind == 9 and length:

        def seen(side, file):
            with mmap.mmap(file, length, prot=mmap.PROT_READ) as memory:
                return memory[at : at + amount]

        one.both(f"mapped read of {amount} at {at}", seen)
    elif kind == 10 and opened:
        target, to = random.choice(opened), place(length)
        if not target.append:

            def copy(side, file):
                try:
                    done = 0
                    while done < amount:
                        n = os.copy_file_range(file, target.files[side], amount - done, at + done, to + done)
                        if not n:
                            break
                        done += n
                    return done
                except OSError as error:
                    if error.errno not in (errno.EXDEV, errno.EOPNOTSUPP) or side == 1:
                        raise
                    return os.pwrite(target.files[0], os.pread(file, amount, at), to)

            one.both(f"copy of {amount} from {at} to {to} of {target.path}", copy)
    elif kind == 11:
        sync = random.choice((os.fsync, os.fdatasync))
        one.both("sync", lambda side, file: sync(file))
    elif kind == 12:
        # Forgets what was written out, so that the next read asks the volume.
        one.both("forget", lambda side, file: os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED))
    else:

        def extents(side, file):
            """What is said to be a hole is zeros, and the seeks come to the end."""
            at = 0
            while at < length:
                try:
                    start = os.lseek(file, at, os.SEEK_DATA)
                except OSError as error:
                    if error.errno != errno.ENXIO:
                        raise
                    start = length
                if os.pread(file, start - at, at).strip(b"\0"):
                    return f"data in a hole at {at}"
                at = length if start >= length else os.lseek(file, start, os.SEEK_HOLE)
            return at

        if not one.append:
            one.both("extents", extents)


def facts(root, path):
    s = os.lstat(f"{root}/{path}")
    found = [stat.S_IFMT(s.st_mode), stat.S_IMODE(s.st_mode)]
    if stat.S_ISREG(s.st_mode):
        found += [s.st_size, s.st_nlink]
    if stat.S_ISLNK(s.st_mode):
        found += [s.st_size, os.readlink(f"{root}/{path}")]
    return found


def tree():
    """An operation on names."""
    folders, others = names()
    path = random.choice(others) if others and random.random() < 0.7 else fresh(random.choice(folders))
    other = random.choice(others) if others and random.random() < 0.3 else fresh(random.choice(folders))
    kind = random.randrange(14) if len(others) < 40 else random.choice((0, 1, 2, 3, 6, 6, 6, 7))
    if kind < 3 and len(opened) < 8:
        flags = os.O_RDWR | random.choice((0, os.O_CREAT, os.O_CREAT, os.O_CREAT | os.O_EXCL, os.O_TRUNC))
        flags |= random.choice((0, 0, os.O_APPEND)) | os.O_NOFOLLOW
        wanted = both(f"open of {path}", lambda side, root: os.close(os.open(f"{root}/{path}", flags, 0o644)))
        if wanted is None:
            opened.append(Open(path, flags & ~(os.O_EXCL | os.O_CREAT | os.O_TRUNC)))
    elif kind == 3 and len(opened) > 4:
        opened.pop(random.randrange(len(opened))).close()
    elif kind == 4 and len(folders) < 20:
        both(f"mkdir {other}", lambda side, root: os.mkdir(f"{root}/{other}"))
    elif kind == 5:
        folder = random.choice(folders)
        if folder:
            both(f"rmdir {folder}", lambda side, root: os.rmdir(f"{root}/{folder}"))
    elif kind == 6:
        both(f"unlink {path}", lambda side, root: os.unlink(f"{root}/{path}"))
    elif kind in (7, 8):
        if random.random() < 0.2 and folders[1:]:
            path = random.choice(folders[1:])
        flags = random.choice((0, 0, 0, 1, 2))
        names_ = lambda root: (f"{root}/{path}".encode(), f"{root}/{other}".encode())
        both(
            f"rename {path} to {other}, {flags}",
            lambda side, root: call("renameat2", -100, names_(root)[0], -100, names_(root)[1], flags),
        )
    elif kind == 9:
        both(f"link {path} to {other}", lambda side, root: os.link(f"{root}/{path}", f"{root}/{other}", follow_symlinks=False))
    elif kind == 10:
        target = "x" * random.choice((1, 30, 1000))
        both(f"symlink {other}", lambda side, root: os.symlink(target, f"{root}/{other}"))
    elif kind == 11 and not os.path.islink(f"{roots[0]}/{path}"):
        mode = random.choice((0o600, 0o640, 0o755, 0o4711))
        both(f"chmod {path}", lambda side, root: os.chmod(f"{root}/{path}", mode))
    elif kind == 12 and not os.path.islink(f"{roots[0]}/{path}"):
        name, value = "user." + random.choice("abc"), random.randbytes(random.choice((0, 1, 30, 300)))
        if random.random() < 0.7:
            both(f"setxattr {path}", lambda side, root: os.setxattr(f"{root}/{path}", name, value))
        else:
            both(f"removexattr {path}", lambda side, root: os.removexattr(f"{root}/{path}", name))
        list_ = lambda root: sorted((n, os.getxattr(f"{root}/{path}", n)) for n in os.listxattr(f"{root}/{path}"))
        both(f"attributes of {path}", lambda side, root: list_(root))
    else:
        folder = random.choice(folders)
        both(f"facts of {path}", lambda side, root: facts(root, path))
        both(f"list of {folder}", lambda side, root: sorted(os.listdir(f"{root}/{folder}")))


def everything():
    """Every name, and every byte, in both folders."""
    folders, others = names()
    for folder in folders:
        both(f"list of {folder}", lambda side, root: sorted(os.listdir(f"{root}/{folder}")))
    for path in others:
        found = both(f"facts of {path}", lambda side, root: facts(root, path))
        if stat.S_ISREG(found[0]):

            def read(side, root):
                with open(f"{root}/{path}", "rb") as file:
                    return file.read()

            both(f"content of {path}", read)


step, opened = 0, []
everything()
while step < steps and (until is None or time.monotonic() < until):
    step += 1
    if opened and random.random() < 0.7:
        content(random.choice(opened))
    else:
        tree()
for one in opened:
    one.both("length", lambda side, file: os.fstat(file).st_size)
    one.both("content", lambda side, file: os.pread(file, 10 * LONGEST, 0))
    one.close()
everything()
folders, others = names()
for path in folders + [path for path in others if stat.S_ISREG(os.lstat(f"{roots[1]}/{path}").st_mode)]:
    file = os.open(f"{roots[1]}/{path}", os.O_RDONLY)
    os.fsync(file)
    os.close(file)
print(f"seed {seed}: {step} steps, {len(folders)} folders, {len(others)} files and links")
