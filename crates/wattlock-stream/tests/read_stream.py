#!/usr/bin/env python3
"""Opens sealed streams and sealed records, and shares no code with what sealed them.

Written from docs/stream-format.md alone, on Python's `cryptography`; age's part is the sealed file's reader.

    read_stream.py stream IDENTITY-FILE SEALED-STREAM > CONTENT
    read_stream.py record IDENTITY-FILE KEY-FOLDER TOPIC PARTITION KEY-HEX|- MILLISECONDS|- VALUE-FILE > CONTENT
"""

import hashlib
import hmac
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../wattlock-files/tests"))
from read_sealed import Bad, open_key_file, read_identities, require  # noqa: E402

from cryptography.exceptions import InvalidTag  # noqa: E402
from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: E402
from cryptography.hazmat.primitives.hashes import SHA512  # noqa: E402
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand  # noqa: E402


def expand(secret, info, length):
    return HKDFExpand(SHA512(), length, info).derive(secret)


def xor(base, number):
    return (int.from_bytes(base, "big") ^ number).to_bytes(12, "big")


def key_file(data, magic):
    require(data[:8] == magic, "magic")
    version, length = struct.unpack(">II", data[8:16])
    require(version == 1 and 0 < length <= (1 << 20) - 16, "version or length")
    require(len(data) >= 16 + length, "cut")
    return data[16 : 16 + length], data[16 + length :]


def open_stream(data, identities):
    wrapped, rest = key_file(data, b"\x8bwattls\n")
    require(len(rest) >= 56, "cut")
    salt, commitment, rest = rest[:24], rest[24:56], rest[56:]
    header = data[: 16 + len(wrapped)]
    context = hashlib.sha512(header).digest()
    derived = expand(open_key_file(wrapped, identities), b"wattlock stream v1 start\0" + salt + context, 64)
    require(hmac.compare_digest(commitment, derived[32:]), "commitment")
    secret, number, cipher = derived[:32], 0, None
    while True:
        if cipher is None:
            epoch = expand(secret, b"wattlock stream v1 epoch\0", 76)
            cipher, base, secret = AESGCM(epoch[:32]), epoch[32:44], epoch[44:]
        require(len(rest) >= 4, "cut")
        flags, length = rest[0], int.from_bytes(rest[1:4], "big")
        require(flags & ~0x83 == 0 and flags & 0x82 != 0x82 and length <= 1 << 20, "frame")
        require(len(rest) >= 20 + length, "cut")
        end = flags >> 7
        yield cipher.decrypt(xor(base, number << 8 | end), rest[4 : 20 + length], rest[:4])
        rest, number = rest[20 + length :], number + 1
        if end:
            return require(not rest, "extended")
        if flags & 2:
            cipher = None


def open_record(identities, folder, topic, partition, key, time, value):
    require(value[:1] == b"\x01" and len(value) >= 58, "not a record")
    name, salt, at, index = value[1:17], value[17:41], 41, 0
    for shift in (0, 7, 14):
        byte, at = value[at], at + 1
        index |= (byte & 127) << shift
        if byte < 128:
            break
    require(byte < 128 and (byte or index == 0 and at == 42), "number")
    with open(os.path.join(folder, name.hex() + ".key"), "rb") as file:
        wrapped, _ = key_file(file.read(), b"\x8bwattlr\n")
    secret = open_key_file(wrapped, identities)
    require(expand(secret, b"wattlock record v1 id\0", 16) == name, "another key")
    place = hashlib.sha512(struct.pack(">I", len(topic)) + topic + struct.pack(">I", partition)).digest()
    derived = expand(secret, b"wattlock record v1 batch\0" + salt + place, 44)
    bound = value[:at] + struct.pack(">?I", key is not None, len(key or b"")) + (key or b"")
    bound += b"\0" if time is None else b"\1" + struct.pack(">q", time)
    return AESGCM(derived[:32]).decrypt(xor(derived[32:], index), value[at:], bound)


def main():
    what, identity_file, *rest = sys.argv[1:]
    identities = read_identities(identity_file)
    with open(rest[-1], "rb") as file:
        data = file.read()
    try:
        if what == "stream":
            for content in open_stream(data, identities):
                sys.stdout.buffer.write(content)
        else:
            folder, topic, partition, key, time, _ = rest
            key = None if key == "-" else bytes.fromhex(key)
            time = None if time == "-" else int(time)
            content = open_record(identities, folder, topic.encode(), int(partition), key, time, data)
            sys.stdout.buffer.write(content)
    except (Bad, InvalidTag, ValueError, IndexError) as error:
        sys.exit(f"read_stream: {error or 'authentication failed'}")


if __name__ == "__main__":
    main()
