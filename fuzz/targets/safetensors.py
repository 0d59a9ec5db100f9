#!/usr/bin/env python3
"""The header of a safetensors file, as Python reads it: safetensors.py SECONDS [FILE]

Random files, right ones that were changed and texts of the same words, without coverage: this reader is Python. What is taken
has tensors that share the file's bytes among them without a gap; what is refused says that it is no safetensors file. A FILE
is one such file, read once.
"""
import importlib.util
import json
import pathlib
import random
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
WORDS = [
    "{", "}", "[", "]", ":", ",", '"dtype"', '"shape"', '"data_offsets"', '"F32"', '"U8"', '"C64"', '"__metadata__"', '"a"', '"b"',
    "0", "1", "-1", "4", "1e3", "4611686018427387903", "18446744073709551616", "9" * 5000, "true", "null", "NaN", '"\\ud800"', '"\\n"',
    "[" * 2000, " ",
]


def module(name, package=None):
    """One file of the package, without the package: that would look for the C library's users."""
    path = HERE.parent.parent / "python" / "wattlock" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"wattlock.{name}", path)
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


Error = module("_library").Error
READER = module("_safetensors")


def read(file):
    """Whether it is taken. Anything but a refusal is a find."""
    size = len(file)
    try:
        length = READER.header_size(file[:8], size)
        found, metadata = READER.entries(file[8:8 + length], size)
    except Error as error:
        assert str(error).startswith("not a safetensors file: "), error
        str(error).encode("utf-8", "backslashreplace")
        return False
    at = 8 + length
    for entry in sorted(found, key=lambda entry: (entry.begin, entry.end)):
        assert entry.begin == at and entry.end >= at, (entry.begin, at)
        at = entry.end
    assert at == size
    assert all(isinstance(value, str) for value in metadata.values())
    return True


def right(pick):
    header, at = {}, 0
    for number in range(pick.randrange(5)):
        dtype = pick.choice(sorted(READER.DTYPES))
        shape = [pick.randrange(4) for _ in range(pick.randrange(4))]
        count = READER.DTYPES[dtype][0]
        for length in shape:
            count *= length
        header[f"t{number}"] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + count]}
        at += count
    if pick.random() < 0.5:
        header["__metadata__"] = {"format": "pt"}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(at)


def changed(pick, file):
    file = bytearray(file)
    for _ in range(pick.randrange(1, 4)):
        at = pick.randrange(len(file) + 1)
        how = pick.randrange(5)
        if how == 0 and at < len(file):
            file[at] ^= 1 << pick.randrange(8)
        elif how == 1:
            del file[at:at + pick.randrange(20)]
        elif how == 2:
            file[at:at] = pick.choice(WORDS).encode()
        elif how == 3:
            file[at:at + 1] = str(pick.choice([0, 1, 7, 1 << 31, 1 << 62, 1 << 64])).encode()
        else:
            file += bytes(pick.randrange(9))
    if pick.random() < 0.7 and len(file) > 8:
        # The length stays right, so that the text is looked at.
        end = max(8, file.rfind(b"}") + 1)
        file[:8] = (end - 8).to_bytes(8, "little")
    return bytes(file)


def words(pick):
    text = "".join(pick.choice(WORDS) for _ in range(pick.randrange(40))).encode()
    return len(text).to_bytes(8, "little") + text + bytes(pick.randrange(40))


def main():
    if len(sys.argv) > 2:
        read(pathlib.Path(sys.argv[2]).read_bytes())
        return
    end, pick, runs, taken = time.monotonic() + float(sys.argv[1]), random.Random(), 0, 0
    while time.monotonic() < end:
        good = right(pick)
        assert read(good), good
        for file in (changed(pick, good), words(pick)):
            try:
                taken += read(file)
            except BaseException:
                find = pathlib.Path("safetensors-find")
                find.write_bytes(file)
                print(f"the file is {find.resolve()}", file=sys.stderr)
                raise
        runs += 3
    print(f"safetensors: {runs} files, {taken} changed ones taken")


if __name__ == "__main__":
    main()
