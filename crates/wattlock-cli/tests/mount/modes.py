"""Every mode of a folder, and everything that its owner does to it and in it: modes.py FOLDER [FROM] [STEP]. Prints what
came of each, so that two file systems can be compared."""
import errno, os, sys

os.chdir(sys.argv[1])
first, step = (int(word) for word in (sys.argv[2:] + ["0", "1"])[:2])
LONG = "n" * 200
os.umask(0)


def told(work):
    try:
        result = work()
        return "ok" if result is None else str(result)
    except OSError as error:
        return errno.errorcode[error.errno]


def wipe(path):
    if os.path.islink(path) or not os.path.isdir(path):
        if os.path.lexists(path):
            os.unlink(path)
        return
    os.chmod(path, 0o700)
    for name in os.listdir(path):
        wipe(os.path.join(path, name))
    os.rmdir(path)


def put(path):
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))


def mode_of(path):
    return oct(os.stat(path).st_mode)


def synced(path):
    f = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(f)
    finally:
        os.close(f)


def fresh(name, mode, filled=False):
    for one in (name, "e", "o", LONG + "x"):
        wipe(one)
    os.mkdir(name, 0o700)
    os.mkdir("o", 0o700)
    if filled:
        put(f"{name}/f"), put(f"{name}/{LONG}"), os.mkdir(f"{name}/sub")
    os.chmod(name, mode)


def itself(name, mode):
    """What needs rights on the folder that it is in, and none on itself."""
    fresh(name, mode)
    yield told(lambda: os.rmdir(name))
    fresh(name, mode)
    yield told(lambda: os.rename(name, "e"))
    yield told(lambda: mode_of("e"))
    fresh(name, mode)
    yield told(lambda: os.rename(name, LONG + "x"))
    fresh(name, mode)
    yield told(lambda: os.rename(name, "o/e"))
    fresh(name, mode)
    yield told(lambda: os.rename("o", name))
    fresh(name, mode, True)
    yield told(lambda: os.rename("o", name))
    yield told(lambda: os.rmdir(name))
    yield told(lambda: mode_of(name))
    wipe(name)
    yield told(lambda: os.mkdir(name, mode))
    yield told(lambda: mode_of(name))
    yield told(lambda: os.rmdir(name))


def inside(name, mode):
    fresh(name, mode, True)
    for one in ("g", LONG + "g"):
        yield told(lambda: put(f"{name}/{one}"))
        yield told(lambda: os.link(f"{name}/f", f"{name}/{one}l"))
        yield told(lambda: os.symlink("t", f"{name}/{one}s"))
        yield told(lambda: os.readlink(f"{name}/{one}s"))
        yield told(lambda: os.mkfifo(f"{name}/{one}p"))
        yield told(lambda: os.mkdir(f"{name}/{one}d"))
        yield told(lambda: os.rename(f"{name}/{one}", f"{name}/{one}r"))
        yield told(lambda: os.rename(f"{name}/{one}d", f"o/{one}d"))
        yield told(lambda: os.rename(f"o/{one}d", f"{name}/{one}d"))
        yield told(lambda: os.unlink(f"{name}/{one}r"))
        yield told(lambda: os.rmdir(f"{name}/{one}d"))
    yield told(lambda: sorted(os.listdir(name))).replace(LONG, "LONG")
    yield told(lambda: sorted(entry.is_dir(follow_symlinks=False) for entry in os.scandir(name)))
    yield told(lambda: os.stat(f"{name}/f").st_size)
    yield told(lambda: os.stat(f"{name}/{LONG}").st_size)
    yield told(lambda: os.rename(f"{name}/f", f"{name}/{LONG}"))
    yield told(lambda: os.unlink(f"{name}/{LONG}"))
    yield told(lambda: os.rmdir(f"{name}/sub"))
    yield told(lambda: os.setxattr(name, "user.a", b"v"))
    yield told(lambda: os.getxattr(name, "user.a"))
    yield told(lambda: synced(name))


for mode in range(first, 0o1000, step):
    for name in ("d", LONG):
        print(f"{mode:04o}", name[:1], *itself(name, mode), "|", *inside(name, mode))
for mask in (0o777, 0o277, 0o377, 0o077, 0o477, 0o000):
    for name in ("u", LONG + "u"):
        os.umask(mask)
        made = [told(lambda: os.mkdir(name)), told(lambda: mode_of(name)), told(lambda: put(f"{name}/f"))]
        made += [told(lambda: os.rename(name, "uu")), told(lambda: os.rmdir("uu"))]
        os.umask(0)
        print(f"umask {mask:o}", *made)
        wipe("uu")
