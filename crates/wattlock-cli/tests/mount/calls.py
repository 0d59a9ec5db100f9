"""Calls at the limits, one line each: what was called, and what came of it. Two file systems' lines can be compared."""
import ctypes, errno, fcntl, os, stat, struct, sys

libc = ctypes.CDLL(None, use_errno=True)
big = ctypes.c_longlong


def call(name, *arguments):
    result = getattr(libc, name)(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result


def told(what, work):
    try:
        print(what, "->", work())
    except OSError as error:
        print(what, "->", errno.errorcode[error.errno])
    except (OverflowError, ValueError) as error:
        print(what, "->", type(error).__name__)


def put(path, data=b"", flags=os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode=0o644):
    f = os.open(path, flags, mode)
    if data:
        os.write(f, data)
    return f


def closed(path, data=b""):
    os.close(put(path, data))


os.umask(0o022)
MOST = (1 << 63) - 1

# Holes.
empty, data, sparse = put("empty"), put("data", b"d" * 300_000), put("sparse")
os.ftruncate(sparse, 3 << 20)
os.pwrite(sparse, b"x" * 262_144, 1 << 20)
os.fsync(sparse)
for name, f in (("empty", empty), ("data", data), ("sparse", sparse)):
    for how, whence in (("data", os.SEEK_DATA), ("hole", os.SEEK_HOLE)):
        for at in (0, 1, 262_144, 299_999, 300_000, 300_001, 1 << 20, (3 << 20) - 1, 3 << 20, 1 << 40, MOST, -1):
            told(f"seek {how} {name} {at}", lambda: call("lseek64", f, big(at), whence))
for whence in (5, 7, 99, -1):
    told(f"seek whence {whence}", lambda: call("lseek64", data, big(0), whence))
told("seek set negative", lambda: call("lseek64", data, big(-1), 0))
told("seek set far", lambda: call("lseek64", data, big(1 << 43), 0))
told("seek end", lambda: os.lseek(data, 100, os.SEEK_END))
told("seek before the start", lambda: os.lseek(data, -(1 << 30), os.SEEK_END))

# Offsets and sizes.
buffer = ctypes.create_string_buffer(b"z" * 4096, 4096)
for at in (-1, 300_000, 300_001, 1 << 43, 1 << 44, (1 << 44) + 4096, 1 << 60, MOST - 4095, MOST - 4096, MOST):
    told(f"pread {at}", lambda: call("pread64", data, buffer, 4096, big(at)))
for at in (-1, 1 << 60, MOST - 4095, MOST - 1, MOST):
    told(f"pwrite {at}", lambda: call("pwrite64", put("far"), buffer, 4096, big(at)))
for size in (-1, 0, 1, 4096, 1 << 40, 1 << 44, (1 << 44) + 4096, 1 << 52, 1 << 60, MOST):
    told(f"ftruncate {size}", lambda: (call("ftruncate64", put("cut"), big(size)), os.stat("cut").st_size))
    told(f"truncate {size}", lambda: (call("truncate64", b"cut", big(size)), os.stat("cut").st_size))
reading = os.open("data", os.O_RDONLY)
told("ftruncate of what is read", lambda: os.ftruncate(reading, 1))
told("write of what is read", lambda: os.write(reading, b"x"))
told("read of what is written", lambda: os.read(os.open("data", os.O_WRONLY), 1))
told("write nothing", lambda: os.write(data, b""))
told("write nowhere", lambda: call("pwrite64", data, ctypes.c_void_p(8), 4096, big(0)))
told("read nowhere", lambda: call("pread64", data, ctypes.c_void_p(8), 4096, big(0)))
told("truncate a folder", lambda: os.truncate(".", 0))
told("read a folder", lambda: os.read(os.open(".", os.O_RDONLY), 1))
told("sync a folder", lambda: os.fsync(os.open(".", os.O_RDONLY)))
told("sync what is read", lambda: os.fdatasync(reading))

# Room.
for mode in (0, 1, 2, 3, 8, 9, 16, 17, 32, 64, 128, -1):
    for at, size in ((0, 4096), (0, 0), (-1, 10), (4096, -1), (1 << 20, 4096), (MOST - 10, 100), (MOST - 10, 5), (1 << 45, 4096)):
        f = put("room", b"r" * 8192)
        told(f"fallocate {mode} {at} {size}", lambda: (call("fallocate64", f, mode, big(at), big(size)), os.fstat(f).st_size))
        os.close(f)
told("fallocate of what is read", lambda: call("fallocate64", reading, 0, big(0), big(10)))
told("fallocate a folder", lambda: call("fallocate64", os.open(".", os.O_RDONLY), 0, big(0), big(10)))
def beneath(mode):
    f = put("room", b"r" * 12_288)
    call("fallocate64", f, mode, big(4096), big(4096))
    return os.pread(f, 99_999, 0) == b"r" * 4096 + bytes(4096) + b"r" * 4096
told("punched", lambda: beneath(3))
told("zeroed", lambda: beneath(16))

# Copies.
def copied(to, length, at=None, into=None, flags=0, source="data"):
    f = os.open(source, os.O_RDONLY)
    offsets = [ctypes.byref(big(one)) if one is not None else None for one in (at, into)]
    return call("copy_file_range", f, offsets[0], to, offsets[1], ctypes.c_size_t(length), flags), os.fstat(to).st_size
told("copy", lambda: copied(put("copy"), 1000, 0, 0))
told("copy beyond the end", lambda: copied(put("copy"), 1000, 300_000, 0))
told("copy nothing", lambda: copied(put("copy"), 0, 0, 0))
told("copy far", lambda: copied(put("copy"), 100, 0, MOST - 10))
told("copy from far", lambda: copied(put("copy"), 100, MOST - 10, 0))
told("copy with flags", lambda: copied(put("copy"), 100, 0, 0, 1))
told("copy over itself", lambda: copied(data, 1000, 0, 500))
told("copy within itself", lambda: copied(data, 1000, 0, 5000)[0])
told("copy to what is appended", lambda: copied(os.open("copy", os.O_WRONLY | os.O_APPEND), 10, 0, 0))
told("copy to what is read", lambda: copied(reading, 10, 0, 0))
told("copy to a folder", lambda: copied(os.open(".", os.O_RDONLY), 10, 0, 0))
told("copy a folder", lambda: copied(put("copy"), 10, 0, 0, 0, "."))
told("copy negative", lambda: copied(put("copy"), 10, -1, 0))
told("send", lambda: os.sendfile(put("sent"), reading, 0, 5000))
told("clone", lambda: fcntl.ioctl(put("clone"), 0x40049409, reading))

# Names.
closed("f", b"text")
os.mkdir("d")
os.symlink("f", "s")
os.symlink("loop", "loop")
for length in (254, 255, 256, 1000):
    name = "n" * length
    told(f"name {length}", lambda: os.close(put(name)))
    told(f"folder {length}", lambda: (os.unlink(name) if length < 256 else None, os.mkdir(name), os.rmdir(name))[:0])
    told(f"rename to {length}", lambda: (os.rename("f", name), os.rename(name, "f"))[:0])
    told(f"link to {length}", lambda: (os.link("f", name), os.unlink(name))[:0])
    told(f"look for {length}", lambda: os.stat(name))
    told(f"attribute of {length}", lambda: os.getxattr(name, "user.a"))
told("any bytes", lambda: (closed(bytes(range(1, 47))), bytes(range(1, 47)) in os.listdir(b".")))
told("path 4095", lambda: os.stat("./" * 2047 + "f").st_size)
told("path 4096", lambda: os.stat("./" * 2048 + "f").st_size)
told("no name", lambda: os.stat(""))
told("a file as folder", lambda: os.stat("f/x"))
told("a file with a slash", lambda: os.stat("f/"))
told("make with a slash", lambda: os.open("new/", os.O_CREAT | os.O_RDWR))
told("a loop", lambda: os.stat("loop"))
for target in ("", "t", "t" * 255, "t" * 1000, "t" * 2000, "t" * 3000, "t" * 4000, "t" * 4096):
    told(f"symlink {len(target)}", lambda: (os.symlink(target, f"l{len(target)}"), len(os.readlink(f"l{len(target)}")), os.lstat(f"l{len(target)}").st_size)[1:])
told("readlink of a file", lambda: os.readlink("f"))
told("link to a folder", lambda: os.link("d", "d2"))
told("link of a link", lambda: (os.link("s", "s2", follow_symlinks=False), os.lstat("s2").st_nlink, os.unlink("s2"))[1])
told("link over", lambda: os.link("f", "data"))
told("unlink a folder", lambda: os.unlink("d"))
told("rmdir a file", lambda: os.rmdir("f"))
told("rmdir itself", lambda: os.rmdir("d/."))
told("rmdir above", lambda: os.rmdir("d/.."))
told("mkdir over", lambda: os.mkdir("f"))

# Opening.
for what, path, flags in (("folder for writing", "d", os.O_RDWR), ("folder made", "d", os.O_RDONLY | os.O_CREAT), ("file as folder", "f", os.O_DIRECTORY),
    ("link not followed", "s", os.O_NOFOLLOW), ("made twice", "f", os.O_CREAT | os.O_EXCL), ("link made", "s", os.O_CREAT | os.O_EXCL), ("nothing", "none", os.O_RDWR),
    ("made in nothing", "none/x", os.O_CREAT), ("cut and read", "f", os.O_RDONLY | os.O_TRUNC), ("a folder cut", "d", os.O_RDONLY | os.O_TRUNC),
    ("unnamed", ".", os.O_TMPFILE | os.O_RDWR), ("unnamed read", ".", os.O_TMPFILE | os.O_RDONLY), ("folder made as folder", "newd", os.O_CREAT | os.O_DIRECTORY)):
    told(f"open {what}", lambda: os.close(os.open(path, flags, 0o644)))
direct = os.open("data", os.O_RDWR | os.O_DIRECT)
for at, size in ((0, 4096), (1, 4096), (0, 100), (512, 512), (300_000, 4096), (299_520, 4096)):
    told(f"direct read {at} {size}", lambda: call("pread64", direct, ctypes.c_void_p((ctypes.addressof(ctypes.create_string_buffer(1 << 14)) + 4095) & ~4095), size, big(at)))

# Renames.
def renamed(flags, a=b"f", b=b"data"):
    return call("renameat2", -100, a, -100, b, flags)
for flags in (1, 2, 3, 6, 8, 1 << 10):
    told(f"rename {flags} over a file", lambda: renamed(flags))
    told(f"rename {flags} to nothing", lambda: (renamed(flags, b"f", b"none2"), renamed(0, b"none2", b"f"))[:0])
    told(f"rename {flags} of nothing", lambda: renamed(flags, b"none", b"none2"))
    told(f"rename {flags} of itself", lambda: renamed(flags, b"f", b"f"))
    told(f"rename {flags} a folder with a file", lambda: (renamed(flags, b"d", b"f"), renamed(flags, b"d", b"f"))[:0])
told("rename .", lambda: os.rename("d/.", "e"))
told("rename ..", lambda: os.rename("d/..", "e"))
told("rename into itself", lambda: os.rename("d", "d/e"))
told("rename onto its folder", lambda: (closed("d/x"), os.rename("d/x", "d"))[:0])
told("rename with a slash", lambda: os.rename("f", "g/"))

# Nodes.
for kind in (0, stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFDIR, stat.S_IFLNK, 0o030000):
    told(f"mknod {kind:o}", lambda: (os.mknod("node", kind | 0o6711, os.makedev(1, 3)), oct(os.lstat("node").st_mode), os.lstat("node").st_rdev, os.unlink("node"))[1:3])
told("mknod over", lambda: os.mknod("f", stat.S_IFIFO | 0o600))

# Attributes.
for name in ("user.a", "user." + "a" * 100, "user." + "a" * 250, "user." + "a" * 251, "user.", "user", "", "trusted.a", "security.a", "system.a", "other.a", "a"):
    told(f"attribute {name[:9]} {len(name)}", lambda: (os.setxattr("f", name, b"v"), os.getxattr("f", name), name in os.listxattr("f"), os.removexattr("f", name))[1:3])
for size in (0, 1, 1000, 3000, 65_536, 65_537):
    told(f"attribute of {size} bytes", lambda: (os.setxattr("f", "user.v", b"v" * size), len(os.getxattr("f", "user.v")))[1])
told("attribute made twice", lambda: (os.setxattr("f", "user.t", b"1"), os.setxattr("f", "user.t", b"2", os.XATTR_CREATE))[:0])
told("attribute replaced", lambda: os.setxattr("f", "user.none", b"2", os.XATTR_REPLACE))
told("attribute with both", lambda: os.setxattr("f", "user.none", b"2", 3))
told("attribute with flags", lambda: os.setxattr("f", "user.none", b"2", 4))
told("attribute's small buffer", lambda: (os.setxattr("f", "user.t", b"12345"), call("getxattr", b"f", b"user.t", buffer, 3))[1])
told("attribute's size", lambda: call("getxattr", b"f", b"user.t", None, 0))
told("list's small buffer", lambda: call("listxattr", b"f", buffer, 3))
told("attribute of a link", lambda: os.setxattr("s", "user.a", b"v", follow_symlinks=False))
told("attribute of a pipe", lambda: (os.mkfifo("p"), os.setxattr("p", "user.a", b"v"))[:0])
told("attribute of a folder", lambda: (os.setxattr("d", "user.a", b"v"), os.getxattr("d", "user.a"))[1])
told("attribute removed", lambda: os.removexattr("f", "user.none"))
for nanos in (0, -1, 1, 999_999_999, 1 << 31, (1 << 32) * 10**9 + 5, -(1 << 31) * 10**9, (1 << 33) * 10**9, -(1 << 33) * 10**9, (1 << 40) * 10**9):
    told(f"time {nanos}", lambda: (os.utime("f", ns=(nanos, nanos)), os.stat("f").st_mtime_ns, os.stat("f").st_atime_ns)[1:])
def bad_time(nanos):
    times = struct.pack("qqqq", 1, nanos, 1, nanos)
    return call("utimensat", -100, b"f", times, 0)
for nanos in (-1, 10**9, (1 << 30) - 3):
    told(f"no time {nanos}", lambda: bad_time(nanos))
for mode in (0o7777, 0o4711, 0o2711, 0o1777, 0, 0o644):
    told(f"mode {mode:o}", lambda: (os.chmod("f", mode), oct(os.stat("f").st_mode))[1])
    told(f"mode of a folder {mode:o}", lambda: (os.chmod("d", mode), oct(os.stat("d").st_mode))[1])
told("mode of a link", lambda: call("fchmodat", -100, b"s", 0o600, 0x100))
told("owner of a link", lambda: (os.lchown("s", 0, 0), os.lstat("s").st_uid)[1])
told("flags", lambda: len(fcntl.ioctl(data, 0x80086601, bytes(8))))
told("longest name", lambda: os.statvfs(".").f_namemax)
told("append at", lambda: (os.pwrite(os.open("f", os.O_WRONLY | os.O_APPEND), b"end", 0), os.stat("f").st_size)[1])
for flags in (0, 1, 2, 4, 8, 16):
    told(f"pwritev2 {flags}", lambda: os.pwritev(data, [b"x"], 0, flags))
    told(f"preadv2 {flags}", lambda: os.preadv(data, [bytearray(1)], 0, flags))
