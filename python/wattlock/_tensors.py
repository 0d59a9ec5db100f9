"""Tensors over what a file gave: views of one buffer on the CPU, DLPack over device memory on a GPU."""
import ctypes
import mmap

from . import _safetensors
from ._library import Device, Error, File, Memory

CUDA = 2  # kDLCUDA


class Tensors(dict):
    """Tensors by name. `metadata` is the file's own."""

    def __init__(self, tensors, metadata):
        super().__init__(tensors)
        self.metadata = metadata


def load(path, identity, device="cpu"):
    """The tensors of a sealed safetensors file.

    identity: a file with the key, of `wattlock keygen` or age. device: "cpu", "cuda" or "cuda:NUMBER".

    On the CPU: numpy arrays; without numpy, memoryviews. Types that neither has (BF16, and for memoryviews F16 and C64)
    come as unsigned integers of the same size, F8 as bytes. On a GPU: PyTorch tensors; without PyTorch, DeviceTensor.
    All tensors share one buffer, which lives until the last of them is gone.

    Raises Error if the file does not open, is no safetensors file, or the device is not there.
    """
    with File(path, identity) as file:
        length = _safetensors.header_size(file.read(0, min(8, file.size)), file.size)
        entries, metadata = _safetensors.entries(file.read(8, length), file.size)
        if device == "cpu":
            return Tensors(_on_cpu(file, entries), metadata)
        return Tensors(_on_gpu(file, entries, _ordinal(device)), metadata)


def _ordinal(device):
    kind, _, number = str(device).partition(":")
    if kind != "cuda" or not (number == "" and ":" not in str(device) or number.isdecimal()) or len(number) > 4:
        raise Error(f"device: {str(device)!r} is neither cpu nor cuda")
    if number:
        return int(number)
    torch = _module("torch")
    return torch.cuda.current_device() if torch is not None and torch.cuda.is_available() else 0


def _module(name):
    try:
        return __import__(name)
    except ImportError:
        return None


def _on_cpu(file, entries):
    # Fresh pages: nothing is zeroed twice, and a large buffer goes back to the system.
    buffer = mmap.mmap(-1, max(file.size, 1))
    file.read_all(buffer)
    numpy = _module("numpy")
    view = memoryview(buffer)
    for entry in entries:
        content = view[entry.begin:entry.end]
        if numpy is not None:
            yield entry.name, numpy.frombuffer(content, numpy.dtype(entry.numpy)).reshape(entry.shape)
        elif entry.shape and 0 not in entry.shape:
            yield entry.name, content.cast(entry.format, entry.shape)
        else:
            yield entry.name, content.cast(entry.format)


def _on_gpu(file, entries, ordinal):
    memory = Memory(Device.of(ordinal), file.size)
    file.load(memory)
    torch = _module("torch")
    for entry in entries:
        tensor = DeviceTensor(memory, entry)
        if torch is None:
            yield entry.name, tensor
        else:
            made = torch.from_dlpack(tensor)
            wanted = getattr(torch, entry.torch)
            yield entry.name, made if made.dtype == wanted else made.view(wanted)


class DeviceTensor:
    """A tensor in a GPU's memory, for everything that takes DLPack or the CUDA array interface."""

    def __init__(self, memory, entry):
        self.shape, self.dtype, self._entry = entry.shape, entry.dtype, entry
        self._memory, self._offset = memory, entry.begin
        if self._offset % entry.element and entry.end > entry.begin:
            # Elements must be aligned, which the format does not promise.
            size = entry.end - entry.begin
            self._memory, self._offset = Memory(memory.device, size), 0
            device = memory.device
            device.library.call("gpu_copy", device.handle, self._memory.at, memory.at + entry.begin, size)
        elif entry.end == entry.begin:
            self._offset = 0

    @property
    def device(self):
        return f"cuda:{self._memory.device.ordinal}"

    @property
    def nbytes(self):
        return self._entry.end - self._entry.begin

    def tobytes(self):
        """A copy on the host."""
        device, buffer = self._memory.device, ctypes.create_string_buffer(max(self.nbytes, 1))
        device.library.call("gpu_read", device.handle, self._memory.at + self._offset, buffer, self.nbytes)
        return buffer.raw[:self.nbytes]

    def __dlpack_device__(self):
        return CUDA, self._memory.device.ordinal

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if copy:
            raise BufferError("no copies are made")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError("the tensor is on another device")
        # Everything is in memory already: no stream has to wait.
        device, entry = self._memory.device, self._entry
        shape = (ctypes.c_int64 * max(len(self.shape), 1))(*self.shape)
        managed = device.library.make("gpu_tensor", self._memory.handle, self._offset, entry.code, entry.element * 8,
                                      shape, len(self.shape))
        try:
            return _capsule(managed, b"dltensor", _drop_capsule)
        except BaseException:
            _delete(managed)
            raise

    @property
    def __cuda_array_interface__(self):
        numpy = {"BOOL": "|b1", "U8": "|u1", "I8": "|i1", "F8_E4M3": "|u1", "F8_E5M2": "|u1", "BF16": "<u2"}
        letter = {0: "i", 1: "u", 2: "f", 5: "c"}
        typestr = numpy.get(self.dtype) or f"<{letter[self._entry.code]}{self._entry.element}"
        at = self._memory.at + self._offset if self.nbytes else 0
        return {"shape": self.shape, "typestr": typestr, "data": (at, False), "strides": None, "version": 3,
                "stream": None}

    def __repr__(self):
        return f"DeviceTensor(shape={self.shape}, dtype={self.dtype}, device={self.device})"


# Capsules. The tensor's deleter is native; a capsule's runs only if no consumer took the tensor, while there is an
# interpreter to drop it.
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)(
    ("PyCapsule_New", ctypes.pythonapi))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))


class DLManagedTensor(ctypes.Structure):
    """dlpack.h, version 0.8."""
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
                ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


def _delete(managed):
    deleter = DLManagedTensor.from_address(managed).deleter
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)(managed)


@_Destructor
def _drop_capsule(capsule):
    if _is_valid(capsule, b"dltensor"):
        _delete(_pointer(capsule, b"dltensor"))
