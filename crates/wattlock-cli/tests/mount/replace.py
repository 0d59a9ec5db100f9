"""Files that are replaced, removed and made anew beside programs that use them: replace.py FOLDER OPERATIONS [SEED]

Four processes share the operations. The names r* always exist: they are only ever replaced by a rename, so whatever goes
by such a name succeeds, and what is read is one writer's content, whole. The names u* come and go: whatever goes by such a
name succeeds or finds nothing, and what goes by an opened file always succeeds. The one exception is POSIX's: link(2) may
find nothing where the file was replaced since its path was walked. Prints what failed, and how often; exits with 1 then."""
import collections, errno, multiprocessing, os, random, sys

folder, operations = sys.argv[1], int(sys.argv[2])
seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
WORKERS, STABLE, PASSING = 4, 3, 4
LONG = "n" * 200


def stable(rng):
    at = rng.randrange(STABLE)
    return f"{folder}/r{at}" + (LONG if at == 2 else "")


def passing(rng):
    return f"{folder}/u{rng.randrange(PASSING)}"


def content(rng):
    return bytes([rng.randrange(1, 256)]) * rng.choice((1, 100, 5000, 9000))


def make(path, data):
    f = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.write(f, data)
    finally:
        os.close(f)


def whole(f):
    data = os.read(f, 1 << 16)
    if not data or data != data[:1] * len(data):
        raise OSError(errno.EBADMSG, "not one writer's content")


def replace(rng, own):
    make(own, content(rng))
    os.rename(own, stable(rng))


def read(rng, own):
    f = os.open(stable(rng), os.O_RDONLY)
    try:
        whole(f)
        os.fstat(f)
    finally:
        os.close(f)


def shown(rng, own):
    path = stable(rng)
    os.stat(path), os.access(path, os.R_OK), os.listxattr(path)
    try:
        os.getxattr(path, "user.a")
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise


def changed(rng, own):
    path = stable(rng)
    os.chmod(path, rng.choice((0o600, 0o644, 0o755)))
    os.utime(path, ns=(1, 2))
    os.setxattr(path, "user.a", b"value")
    if os.geteuid() == 0:
        os.chown(path, 0, 0)


def opened(rng, own):
    f = os.open(stable(rng), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        whole(f)
        os.fchmod(f, 0o644)
        os.setxattr(f, "user.b", b"value")
        os.utime(f, ns=(3, 4))
    finally:
        os.close(f)


def linked(rng, own):
    path = stable(rng)
    try:
        os.link(path, own + ".link")
    except FileNotFoundError:
        return
    os.stat(own + ".link")
    # Replaces what has another name.
    make(own, b"x")
    os.rename(own, own + ".link")
    os.unlink(own + ".link")


def symbolic(rng, own):
    path = f"{folder}/r.soft"
    os.symlink("t" * rng.randrange(1, 200), own)
    os.rename(own, path)
    os.readlink(path), os.lstat(path)


def create(rng, own):
    f = os.open(passing(rng), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.write(f, content(rng))
        os.fstat(f)
        os.ftruncate(f, 3)
        if rng.randrange(200) == 0:
            os.fsync(f)
        os.pread(f, 10, 0)
    finally:
        os.close(f)


def gone(work):
    try:
        work()
    except FileNotFoundError:
        pass


def moved(rng, own):
    gone(lambda: os.rename(passing(rng), passing(rng)))


def removed(rng, own):
    gone(lambda: os.unlink(passing(rng)))


def cut(rng, own):
    gone(lambda: os.truncate(passing(rng), rng.randrange(5000)))


def folders(rng, own):
    """A folder over an empty one, and names in it."""
    os.mkdir(own)
    make(own + "/f", b"x")
    os.rename(own + "/f", own + "/" + LONG)
    os.unlink(own + "/" + LONG)
    os.rename(own, own + ".folder")
    os.rmdir(own + ".folder")


KINDS = [replace] * 4 + [read] * 4 + [shown, changed, opened, linked, symbolic] + [create] * 3
KINDS += [moved, removed, cut, folders]


def work(worker):
    rng, failed = random.Random(seed * 1000 + worker), collections.Counter()
    own = f"{folder}/own{worker}"
    for _ in range(operations // WORKERS):
        kind = rng.choice(KINDS)
        try:
            kind(rng, own)
        except OSError as error:
            failed[f"{kind.__name__} {errno.errorcode.get(error.errno, error.errno)}"] += 1
            for left in (own, own + ".link"):
                gone(lambda: os.unlink(left) if not os.path.isdir(left) else None)
    return failed


rng = random.Random(seed)
for at in range(STABLE):
    make(f"{folder}/r{at}" + (LONG if at == 2 else ""), content(rng))
with multiprocessing.Pool(WORKERS) as pool:
    failed = sum(pool.map(work, range(WORKERS)), collections.Counter())
print(f"{operations} operations, {sum(failed.values())} failed")
for what, count in sorted(failed.items()):
    print(f"{what} {count}")
sys.exit(1 if failed else 0)
