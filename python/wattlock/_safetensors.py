"""The header of a safetensors file: eight bytes with its length, then JSON. What does not fit the file is refused."""
import json

from ._library import Error

# More than any model's header has; the format's own limit.
HEADER_MOST = 100_000_000

# Name: bytes of an element, DLPack's type code, numpy's type, memoryview's format, PyTorch's type.
DTYPES = {
    "BOOL": (1, 6, "bool", "?", "bool"),
    "U8": (1, 1, "uint8", "B", "uint8"),
    "I8": (1, 0, "int8", "b", "int8"),
    "U16": (2, 1, "uint16", "H", "uint16"),
    "I16": (2, 0, "int16", "h", "int16"),
    "U32": (4, 1, "uint32", "I", "uint32"),
    "I32": (4, 0, "int32", "i", "int32"),
    "U64": (8, 1, "uint64", "Q", "uint64"),
    "I64": (8, 0, "int64", "q", "int64"),
    "F16": (2, 2, "float16", "H", "float16"),
    "BF16": (2, 4, "uint16", "H", "bfloat16"),
    "F32": (4, 2, "float32", "f", "float32"),
    "F64": (8, 2, "float64", "d", "float64"),
    "C64": (8, 5, "complex64", "Q", "complex64"),
    # DLPack has codes for these that consumers do not know yet: they travel as bytes.
    "F8_E4M3": (1, 1, "uint8", "B", "float8_e4m3fn"),
    "F8_E5M2": (1, 1, "uint8", "B", "float8_e5m2"),
}


class Entry:
    """One tensor: its type, shape, and its bytes from the file's beginning."""

    def __init__(self, name, dtype, shape, begin, end):
        self.name, self.dtype, self.shape, self.begin, self.end = name, dtype, shape, begin, end
        self.element, self.code, self.numpy, self.format, self.torch = DTYPES[dtype]


def _refuse(what):
    raise Error(f"not a safetensors file: {what}")


def _once(pairs):
    found = {}
    for name, value in pairs:
        if name in found:
            _refuse(f"{name!r} is there twice")
        found[name] = value
    return found


def _is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def header_size(start, size):
    """Bytes of the JSON, from the first eight bytes of a file of `size` bytes."""
    if size < 8:
        _refuse("it is shorter than its header")
    length = int.from_bytes(start, "little")
    if length > HEADER_MOST or length > size - 8:
        _refuse(f"a header of {length} bytes exceeds the file")
    return length


def entries(text, size):
    """The tensors of a file of `size` bytes whose JSON is `text`, and its metadata."""
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_once)
    except (UnicodeDecodeError, ValueError, RecursionError):
        _refuse("its header is not JSON")
    if not isinstance(header, dict):
        _refuse("its header is not an object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        _refuse("its metadata are not strings")
    base, found = 8 + len(text), []
    for name, fields in header.items():
        if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
            _refuse(f"{name!r} has not the fields dtype, shape and data_offsets")
        dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
        if not isinstance(dtype, str) or dtype not in DTYPES:
            _refuse(f"{name!r} is of unknown type {dtype!r}")
        if not isinstance(shape, list) or not all(map(_is_count, shape)) or len(shape) > 32:
            _refuse(f"{name!r} has no shape")
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
            _refuse(f"{name!r} has no offsets")
        begin, end = offsets
        if begin > end or end > size - base:
            _refuse(f"the offsets of {name!r} exceed the file")
        count = DTYPES[dtype][0]
        for length in shape:
            count *= length
        if count != end - begin:
            _refuse(f"the offsets of {name!r} are not its shape's")
        found.append(Entry(name, dtype, tuple(shape), base + begin, base + end))
    # The format wants every byte in exactly one tensor.
    at = base
    for entry in sorted(found, key=lambda entry: (entry.begin, entry.end)):
        if entry.begin < at:
            _refuse(f"the offsets of {entry.name!r} overlap another tensor's")
        if entry.begin > at:
            _refuse(f"no tensor has the bytes before {entry.name!r}")
        at = entry.end
    if at != size:
        _refuse("no tensor has the last bytes")
    return found, metadata
