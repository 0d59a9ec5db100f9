#!/usr/bin/env python3
"""Opens sealed streams and sealed records, and shares no code with what sealed them.

Written from docs/formats/stream.md alone, on Python's `cryptography`; age's part is the sealed file's reader.

    read_stream.py stream IDENTITY-FILE SEALED-STREAM > CONTENT
    read_stream.py records IDENTITY-FILE KEY-FOLDER TOPIC RECORDS [NAME] > RECORDS

Records are lines of JSON: {"partition": 3, "time": null, "key": hex, "value": hex, "headers": [[name, hex], ...]}. NAME is
the stream key under which record keys are hidden.
"""

import hashlib
import hmac
import json
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../wattlock-files/tests"))
from read_sealed import Bad, open_key_file, read_identities, require  # noqa: E402

from cryptography.exceptions import InvalidTag  # noqa: E402
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV  # noqa: E402
from cryptography.hazmat.primitives.hashes import SHA512  # noqa: E402
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand  # noqa: E402


def expand(secret, info, length):
    return HKDFExpand(SHA512(), length, info).derive(secret)


def xor(base, number):
    return (int.from_bytes(base, "big") ^ number).to_bytes(12, "big")


def key_file(data, magic):
    require(data[:8] == magic, "magic")
    version, length = struct.unpack(">II", data[8:16])
    require(version in (1, 2) and 0 < length <= (1 << 20) - 16, "version or length")
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


def number(data, at, most=5):
    value = 0
    for shift in range(0, 7 * most, 7):
        byte, at = data[at], at + 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise Bad("number")


def stream_key(identities, folder, name):
    with open(os.path.join(folder, name.hex() + ".key"), "rb") as file:
        secret = open_key_file(key_file(file.read(), b"\x8bwattlr\n")[0], identities)
    require(expand(secret, b"wattlock record v1 id\0", 16) == name, "another key")
    return secret


def put(n):
    return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + put(n >> 7)


def clear_block(headers):
    block = put(len(headers))
    for name, value in headers:
        block += put(len(name.encode()) + 1) + name.encode()
        block += put(0) if value is None else put(len(value) + 1) + value
    return block


def content_parts(content, clear):
    flags, at, headers, clear = content[0], 1, [], list(clear)
    require(flags & ~7 == 0, "flags")
    if flags & 1:
        count, at = number(content, at)
        for _ in range(count):
            n, at = number(content, at)
            if n == 0:
                headers.append(clear.pop(0))
                continue
            name, at = content[at : at + n - 1].decode(), at + n - 1
            m, at = number(content, at)
            value, at = (content[at : at + m - 1], at + m - 1) if m else (None, at)
            headers.append((name, value))
    require(at <= len(content), "headers")
    value = content[at:]
    if flags & 2:
        import zstandard

        require(zstandard.get_frame_parameters(value).content_size <= 64 << 20, "too large")
        value = zstandard.ZstdDecompressor().decompress(value)
    return flags, headers + clear, value


def open_record(find, topic, partition, key, time, value, headers):
    dead = value is None
    require(not dead or headers and headers[-1][0] == "wattlock", "a tombstone without proof")
    sealed, clear = (headers[-1][1], headers[:-1]) if dead else (value, headers)
    require(sealed[:1] == b"\x01", "not a record")
    name, salt = sealed[1:17], sealed[17:41]
    index, at = number(sealed, 41, 3)
    place = hashlib.sha512(struct.pack(">I", len(topic)) + topic + struct.pack(">I", partition)).digest()
    derived = expand(find(name), b"wattlock record v1 batch\0" + salt + place, 44)
    bound = sealed[:at] + struct.pack(">?I", key is not None, len(key or b"")) + (key or b"")
    bound += b"\0" if time is None else b"\1" + struct.pack(">q", time)
    content = AESGCM(derived[:32]).decrypt(xor(derived[32:], index), sealed[at:], bound + clear_block(clear))
    flags, headers, value = content_parts(content, clear)
    require(bool(flags & 4) == dead and not (dead and value), "tombstone")
    return None if dead else value, headers


def record_key(find, topic, name, key):
    place = hashlib.sha512(struct.pack(">I", len(topic)) + topic).digest()
    return AESSIV(expand(find(name), b"wattlock record v1 key\0" + place, 64)).decrypt(key, [b""])


def open_records(identities, folder, topic, lines, hidden):
    known = {}

    def find(name):
        if name not in known:
            known[name] = stream_key(identities, folder, name)
        return known[name]

    def raw(text):
        return None if text is None else bytes.fromhex(text)

    for line in lines:
        record = json.loads(line)
        key, headers = raw(record["key"]), [(name, raw(value)) for name, value in record["headers"]]
        place = (topic, record["partition"], key, record["time"])
        value, headers = open_record(find, *place, raw(record["value"]), headers)
        key = record_key(find, topic, hidden, key) if hidden and key is not None else key
        shown = [None if part is None else part.hex() for part in (key, value)]
        headers = [[name, None if value is None else value.hex()] for name, value in headers]
        yield json.dumps({"key": shown[0], "value": shown[1], "headers": headers})


def main():
    what, identity_file, *rest = sys.argv[1:]
    identities = read_identities(identity_file)
    try:
        if what == "stream":
            with open(rest[0], "rb") as file:
                for content in open_stream(file.read(), identities):
                    sys.stdout.buffer.write(content)
        else:
            folder, topic, records, *hidden = rest
            hidden = bytes.fromhex(hidden[0]) if hidden else None
            with open(records) as lines:
                for opened in open_records(identities, folder, topic.encode(), lines, hidden):
                    print(opened)
    except (Bad, InvalidTag, ValueError, IndexError) as error:
        sys.exit(f"read_stream: {error or 'authentication failed'}")


if __name__ == "__main__":
    main()
