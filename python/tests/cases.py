"""Writes safetensors files to be sealed: cases.py FOLDER. Good ones end in .good, bad ones in .bad."""
import json
import pathlib
import struct
import sys


def file(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def content(size, seed):
    return bytes((i * 31 + seed) >> 3 & 0xff for i in range(size))


SMALL = {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
         "b": {"dtype": "U8", "shape": [3], "data_offsets": [24, 27]},
         # Not aligned, since `b` has three bytes.
         "c": {"dtype": "I64", "shape": [2], "data_offsets": [27, 43]},
         "d": {"dtype": "BF16", "shape": [], "data_offsets": [43, 45]},
         "e": {"dtype": "F64", "shape": [0, 4], "data_offsets": [45, 45]},
         "__metadata__": {"format": "pt"}}


def tensor(**changes):
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


BAD = {
    "exceed": (tensor(data_offsets=[0, 16], shape=[4]), 8),
    "overlap": ({**tensor(), "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}, 12),
    "same": ({**tensor(), "b": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, 8),
    "backwards": (tensor(data_offsets=[8, 0]), 8),
    "hole": ({**tensor(), "b": {"dtype": "F32", "shape": [1], "data_offsets": [12, 16]}}, 16),
    "rest": (tensor(), 9),
    "shape": (tensor(shape=[3]), 8),
    "negative": (tensor(shape=[-2]), 8),
    "huge": (tensor(shape=[1 << 61, 1 << 61]), 8),
    "boolean": (tensor(data_offsets=[False, 8]), 8),
    "type": (tensor(dtype="F7"), 8),
    "fields": ({"a": {"dtype": "F32", "shape": [2]}}, 8),
    "list": ([], 0),
    "text": (b"{not json", 0),
    "twice": (b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1),
    "metadata": ({"__metadata__": {"x": 1}}, 0),
    "deep": (b"[" * 100_000, 0),
}


def main(folder):
    (folder / "small.good").write_bytes(file(SMALL, content(45, 1)))
    large = {"w": {"dtype": "F32", "shape": [1500, 1000], "data_offsets": [0, 6_000_000]}}
    (folder / "large.good").write_bytes(file(large, content(6_000_000, 5)))
    (folder / "none.good").write_bytes(file({}, b""))
    for name, (header, size) in BAD.items():
        (folder / f"{name}.bad").write_bytes(file(header, content(size, 0)))
    (folder / "empty.bad").write_bytes(b"")
    (folder / "seven.bad").write_bytes(b"\0" * 7)
    (folder / "length.bad").write_bytes(struct.pack("<Q", 1 << 63) + b"{}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
