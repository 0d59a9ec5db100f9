"""Makes a tree with everything that `cp -a` keeps, or prints all that a tree has.

    everything.py make FOLDER        everything.py walk FOLDER [atime]
"""
import hashlib, os, socket, stat, struct, sys


def attempt(call, *arguments, **more):
    """What this user or file system cannot have, neither side has."""
    try:
        call(*arguments, **more)
    except OSError as error:
        print("left out:", call.__name__, arguments[:2], error, file=sys.stderr)


def put(name, data=b"", mode=0o644):
    with open(name, "wb") as f:
        f.write(data)
    os.chmod(name, mode)


def acl(*entries):
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


NOBODY = 0xFFFFFFFF
LIST = acl((1, 6, NOBODY), (2, 7, 65533), (4, 4, NOBODY), (16, 5, NOBODY), (32, 0, NOBODY))


def make():
    long = "n" * 255
    os.makedirs("d/closed")
    os.makedirs("d/" + long)
    os.mkdir("empty")
    put("plain", b"some text\n")
    put("zero")
    put("two chunks", b"c" * 8192)
    put("n" * 200, b"long name", 0o640)
    put("line\nfeed \xff", b"odd")
    put("big", bytes(range(256)) * 12_000 + b"x")
    put("setid", b"#!/bin/true\n", 0o6755)
    put("sticky", b"s", 0o1644)
    put("d/read-only", b"r" * 5000, 0o400)
    put("d/closed/file", b"in a closed folder")
    with open("sparse", "wb") as f:
        f.seek(40 << 20)
        f.write(b"x" * 70_000)
        f.truncate(100 << 20)
    with open("trailing", "wb") as f:
        f.write(b"y" * 10)
        f.truncate(20 << 20)
    os.link("plain", "d/again")
    os.link("plain", f"d/{long}/third")
    os.symlink("../plain", "d/link")
    os.symlink("none", "dangling")
    os.link("dangling", "dangling-2", follow_symlinks=False)
    os.mkfifo("pipe", 0o620)
    with socket.socket(socket.AF_UNIX) as s:
        s.bind("socket")
    attempt(os.setxattr, "two chunks", "user.one", b"1" * 100)
    attempt(os.setxattr, "two chunks", "user." + "x" * 164, b"")
    attempt(os.setxattr, "d", "user.folder", b"\0binary\xff")
    attempt(os.setxattr, "big", "system.posix_acl_access", LIST)
    attempt(os.setxattr, "empty", "system.posix_acl_default", LIST)
    if os.geteuid() == 0:
        attempt(os.mknod, "device", 0o660 | stat.S_IFCHR, os.makedev(1, 3))
        attempt(os.mknod, "block", 0o600 | stat.S_IFBLK, os.makedev(7, 300))
        owners = {"plain": (1234, 4321), "d": (7, 8), "dangling": (9, 9), "pipe": (65534, 65534), "setid": (0, 50)}
        for name, owner in owners.items():
            os.chown(name, *owner, follow_symlinks=False)
        os.chmod("setid", 0o6755)
        attempt(os.setxattr, "plain", "trusted.t", b"3")
        attempt(os.setxattr, "dangling", "trusted.on-a-link", b"4", follow_symlinks=False)
        attempt(os.setxattr, "setid", "security.capability", bytes.fromhex("01000002000400") + bytes(13))
    os.chmod("d/closed", 0o555)
    os.chmod("empty", 0o3777)
    for number, (folder, folders, files) in enumerate(os.walk(".", topdown=False)):
        for name in files + folders:
            when = 10**18 + number * 10**9 + len(name) * 1_234_567 + 89
            if name == "zero":
                when = -5 * 10**9 - 7
            os.utime(os.path.join(folder, name), ns=(when + 5, when), follow_symlinks=False)


def content(path):
    """Without a change of its time of access."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOATIME), "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def walk(atime):
    names = {}
    for folder, folders, files in os.walk("."):
        folders.sort()
        for name in sorted(files + folders):
            path = os.path.join(folder, name)
            s = os.lstat(path)
            line = [repr(path), oct(s.st_mode), s.st_uid, s.st_gid, s.st_mtime_ns, s.st_rdev]
            if not stat.S_ISDIR(s.st_mode):
                line += [s.st_nlink, repr(names.setdefault(s.st_ino, path))]
            for attribute in sorted(os.listxattr(path, follow_symlinks=False)):
                line += [attribute, os.getxattr(path, attribute, follow_symlinks=False).hex()]
            if stat.S_ISREG(s.st_mode):
                holes = s.st_size > 1 << 20 and s.st_blocks * 512 < s.st_size // 2
                line += [s.st_size, holes, content(path), s.st_atime_ns if atime else ""]
            if stat.S_ISLNK(s.st_mode):
                line += [os.readlink(path)]
            print(*line)


os.umask(0)
os.chdir(sys.argv[2])
make() if sys.argv[1] == "make" else walk(len(sys.argv) > 3)
