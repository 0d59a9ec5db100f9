"""System calls that Python has no function for. Each raises OSError; other threads go on meanwhile."""

import ctypes
import errno
import fcntl
import os
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_PUNCH_HOLE_KEEP_SIZE = 3
_SYNC_FILE_RANGE_WRITE = 2
_FS_IOC_SHUTDOWN = 0x8004587D
_CLONE_NEWNS = 0x20000
_MS_REC_PRIVATE = 0x44000


def _call(function, *words):
    if function(*words) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def punch(file, at, size):
    """Makes a hole (FALLOC_FL_PUNCH_HOLE)."""
    _call(_libc.fallocate, file, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_long(at), ctypes.c_long(size))


def write_pages(file, at, size):
    """Has the kernel write dirty pages of a range, without waiting and without what makes them part of the file."""
    _call(_libc.sync_file_range, file, ctypes.c_long(at), ctypes.c_long(size), _SYNC_FILE_RANGE_WRITE)


def syncfs(file):
    _call(_libc.syncfs, file)


def shut_down(file, how):
    """Cuts an ext4 or XFS off its disk (FS_IOC_SHUTDOWN): 0 writes everything first, 1 the log alone, 2 nothing."""
    fcntl.ioctl(file, _FS_IOC_SHUTDOWN, struct.pack("I", how))


def own_mounts():
    """Mounts of this process are its own: a program that copies the mounts it sees does not keep ours in use."""
    _call(_libc.unshare, _CLONE_NEWNS)
    _call(_libc.mount, None, b"/", None, ctypes.c_ulong(_MS_REC_PRIVATE), None)


def write_mapped(memory, content, at):
    """Writes to a mapped file as a program does, but what would be SIGBUS is an OSError."""
    with open("/proc/self/mem", "r+b", buffering=0) as own:
        own.seek(ctypes.addressof(ctypes.c_char.from_buffer(memory)) + at)
        if own.write(content) != len(content):
            raise OSError(errno.EIO, "a short write to mapped memory")
