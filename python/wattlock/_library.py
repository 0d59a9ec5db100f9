"""The C library (wattlock/gpu.h) by ctypes: functions, errors, and handles that free themselves."""
import ctypes
import os
import pathlib
import threading

ABI = 1
NAME = "libwattlock_gpu.so"
REFUSED = 2


class Error(Exception):
    """Why a call failed. `code` is WATTLOCK_GPU_..., `exit_code` that of `wattlock open` if a file does not open."""

    def __init__(self, text, code=REFUSED, exit_code=0):
        super().__init__(text)
        self.code, self.exit_code = code, exit_code


P, U64, U32, C = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int
# Result, arguments.
FUNCTIONS = {
    "wattlock_gpu_abi": (C, []),
    "wattlock_gpu_error": (ctypes.c_char_p, []),
    "wattlock_gpu_exit_code": (C, []),
    "wattlock_gpu_open": (C, [U32, P]),
    "wattlock_gpu_about": (ctypes.c_size_t, [P, ctypes.c_char_p, ctypes.c_size_t]),
    "wattlock_gpu_memory_new": (C, [P, U64, P]),
    "wattlock_gpu_memory_at": (U64, [P]),
    "wattlock_gpu_memory_free": (None, [P]),
    "wattlock_gpu_read": (C, [P, U64, P, U64]),
    "wattlock_gpu_copy": (C, [P, U64, U64, U64]),
    "wattlock_gpu_tensor": (C, [P, U64, ctypes.c_uint8, ctypes.c_uint8, P, ctypes.c_int32, P]),
    "wattlock_file_open": (C, [ctypes.c_char_p, ctypes.c_char_p, P]),
    "wattlock_file_close": (None, [P]),
    "wattlock_file_length": (U64, [P]),
    "wattlock_file_read": (C, [P, U64, P, U64]),
    "wattlock_file_load": (C, [P, P, U64, U64, P]),
}


def _places():
    """Where the library may be; the last is for the loader to find."""
    named = os.environ.get("WATTLOCK_LIBRARY")
    if named:
        return [named]
    # lib/wattlock/python/wattlock/_library.py of an installation.
    folders = [pathlib.Path(__file__).resolve().parents[2], pathlib.Path("/usr/local/lib/wattlock"),
               pathlib.Path("/usr/lib/wattlock")]
    return [str(folder / NAME) for folder in folders if (folder / NAME).exists()] + [NAME]


class Library:
    def __init__(self):
        failure = None
        for place in _places():
            try:
                self.library = ctypes.CDLL(place)
                break
            except OSError as error:
                failure = failure or error
        else:
            raise Error(f"{NAME} does not load: {failure}")
        for name, (result, arguments) in FUNCTIONS.items():
            try:
                function = getattr(self.library, name)
            except AttributeError:
                raise Error(f"{NAME} is of another version: it has no {name}") from None
            function.restype, function.argtypes = result, arguments
        if self.library.wattlock_gpu_abi() != ABI:
            raise Error(f"{NAME} is of another version: {self.library.wattlock_gpu_abi()}, not {ABI}")

    def __getattr__(self, name):
        return getattr(self.library, "wattlock_" + name)

    def call(self, name, *arguments):
        """A function that returns a code."""
        code = getattr(self.library, "wattlock_" + name)(*arguments)
        if code:
            text = (self.library.wattlock_gpu_error() or b"").decode("utf-8", "replace")
            raise Error(text, code, self.library.wattlock_gpu_exit_code())

    def make(self, name, *arguments):
        """A function whose last argument is where a handle goes."""
        out = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(out))
        return out.value


_lock = threading.Lock()
_library = None
_devices = {}


def library():
    global _library
    with _lock:
        if _library is None:
            _library = Library()
        return _library


class Device:
    """A GPU. It stays open as long as the process lives, as its context does."""

    def __init__(self, ordinal):
        self.library, self.ordinal = library(), ordinal
        self.handle = self.library.make("gpu_open", ordinal)

    @staticmethod
    def of(ordinal):
        with _lock:
            known = _devices.get(ordinal)
        if known is None:
            known = Device(ordinal)
            with _lock:
                known = _devices.setdefault(ordinal, known)
        return known


class Memory:
    """Device memory; the library wipes it when this and all tensors over it are gone."""

    def __init__(self, device, size):
        self.device = device
        self.handle = device.library.make("gpu_memory_new", device.handle, max(size, 1))
        self.at, self.size = device.library.gpu_memory_at(self.handle), size

    def __del__(self):
        if getattr(self, "handle", None):
            self.device.library.gpu_memory_free(self.handle)


class File:
    """An unlocked file."""

    def __init__(self, path, identity):
        self.library = library()
        self.handle = self.library.make("file_open", os.fsencode(path), os.fsencode(identity))
        self.size = self.library.file_length(self.handle)

    def read(self, at, size):
        buffer = ctypes.create_string_buffer(max(size, 1))
        self.library.call("file_read", self.handle, at, buffer, size)
        return buffer.raw[:size]

    def read_all(self, buffer):
        """Into a writable buffer of the content's length, on all cores."""
        if self.size:
            place = (ctypes.c_char * self.size).from_buffer(buffer)
            self.library.call("file_read", self.handle, 0, ctypes.addressof(place), self.size)

    def load(self, memory):
        self.library.call("file_load", self.handle, memory.device.handle, memory.at, memory.size, None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.library.file_close(self.handle)
        self.handle = None
