#!/usr/bin/env python3
"""Reads an encrypted volume, and shares no code with what wrote it.

Written from docs/formats/volume.md alone, on Python's `cryptography`; the settings are a sealed file, and the reader of
docs/formats/file.md opens. Slow and short on purpose: it is here so that the format is what its document says.

    read_volume.py IDENTITY-FILE VOLUME          a line of JSON for each entry
"""

import base64
import hashlib
import json
import os
import re
import stat
import struct
import sys

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../wattlock-files/tests"))
from read_sealed import open_sealed, read_identities  # noqa: E402

HEADER, RECORD, OVERHEAD, LEVEL_MAX = 96, 128, 40, 52
SYMBOL = rb"[A-Za-z0-9_-]"


def stored_as(sealed):
    """The stored name of a sealed one."""
    long = len(sealed) > 16 + 175
    return b"wattlock.long." + base64url(hashlib.sha256(sealed).digest()) if long else base64url(sealed)


def suffix_of_record(stored):
    """What another program added to the name of a folder record."""
    found = re.fullmatch(rb"wattlock(?:\.dir(.*)|(.*)\.dir)", stored, re.DOTALL)
    is_long = re.match(rb"wattlock\.long\.", stored)
    return (found[1] or found[2] or b"") if found and not is_long else b""


def marked(name, suffix):
    """What is shown for a name that no key holder wrote."""
    mark = b" [conflict " + cut(suffix.strip(b" \t\n\r\f"), 220) + b"]"
    return cut(name, 255 - len(mark)) + mark


def cut(text, most):
    """At most so many bytes, of UTF-8 whole letters."""
    if len(text) <= most:
        return text
    try:
        text.decode()
        return text[:most].decode(errors="ignore").encode()
    except UnicodeDecodeError:
        return text[:most]


class Bad(Exception):
    """Something is not what the document says."""


def require(condition, what):
    if not condition:
        raise Bad(what)


def unbase64url(text):
    data = base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))
    require(base64url(data) == text, "base64url is not canonical")
    return data


def base64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def derive(key, purpose, length):
    return HKDFExpand(SHA256(), length, b"wattlock fs 1 " + purpose).derive(key)


def xaes_open(key, nonce, aad, sealed):
    """XAES-256-GCM: a key derived from the nonce's first half, then AES-256-GCM under the second."""
    encrypt = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update
    doubled = int.from_bytes(encrypt(bytes(16)), "big") << 1
    k1 = doubled & (1 << 128) - 1 ^ (0x87 if doubled >> 128 else 0)
    block = lambda n: (int.from_bytes(bytes([0, n, 0x58, 0]) + nonce[:12], "big") ^ k1).to_bytes(16, "big")
    return AESGCM(encrypt(block(1)) + encrypt(block(2))).decrypt(nonce[12:], sealed, aad)


class Volume:
    def __init__(self, path, identities):
        self.path = os.fsencode(path)
        with open(os.path.join(path, "wattlock.fs"), "rb") as file:
            text = b"".join(open_sealed(file.read(), identities)).decode()
        require(text.endswith("\n"), "the last line is cut")
        first, *lines = text[:-1].split("\n")
        require(first == "wattlock volume 1", "unknown version")
        fields, self.keys, self.openers = {}, {}, []
        for line in lines:
            word, rest = line.split(" ", 1)
            if word == "opener":
                self.openers.append(rest)
            elif word == "key":
                generation, key = rest.split(" ")
                require(int(generation) > max(self.keys, default=0), "key generations ascend")
                self.keys[int(generation)] = bytes.fromhex(key)
            elif word != "successor":
                require(word in ("id", "chunk", "names", "secret", "revision") and word not in fields, f"line {word}")
                fields[word] = rest
        self.chunk, self.names = int(fields["chunk"]), fields["names"]
        require(self.chunk in (4096, 16384, 65536, 262144), "chunk size")
        require(self.names in ("folder", "deterministic", "plain"), "names")
        require(self.keys and len(fields["id"]) == 32 and len(fields["secret"]) == 64, "settings")
        secret = bytes.fromhex(fields["secret"])
        self.links = AESSIV(derive(secret, b"links", 64))
        self.attributes = AESSIV(derive(secret, b"attributes", 64))
        self.all_names = AESSIV(derive(secret, b"names", 64))

    def open_header(self, data, magic, length):
        """The key sealed in a header or a folder record."""
        require(len(data) == length and data[:8] == magic and data[8] == 1, "header")
        generation = struct.unpack(">I", data[12:16])[0]
        require(generation in self.keys, "key generation")
        return xaes_open(derive(self.keys[generation], b"files", 32), data[24:48], data[:24], data[48:])

    def require_empty_journal(self):
        """Files are not what they should be while the journal has records: a reader that repeats nothing refuses."""
        try:
            with open(os.path.join(self.path, b"wattlock.journal"), "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return
        heads = []
        for at in (0, 4096):
            clear = data[at : at + 76]
            if len(clear) < 76 or clear[:8] != b"wattlojh":
                continue
            require(clear[8] == 2, "journal version")
            generation, epoch, salt, count = struct.unpack(">IQ32sI", clear[12:60])
            if generation not in self.keys or count > 52:
                continue
            secret = derive(self.keys[generation], b"journal", 32)
            key = AESGCM(derive(secret, b"journal " + salt, 32))
            try:
                key.decrypt(bytes(4) + b"\xff" * 8, data[at + 76 : at + 92 + 8 * count], clear)
                heads.append((epoch, key))
            except InvalidTag:
                continue
        require(heads or not any(data), "the journal's head")
        if not heads or data[8192:8200] != b"wattlojr":
            return
        key = max(heads, key=lambda head: head[0])[1]
        number, blob, operations, drawn = struct.unpack(">8sII8s", data[8200:8224])
        end = 8224 + blob
        try:
            key.decrypt(drawn + number[4:], data[end : end + operations + 16], data[8192:end])
        except InvalidTag:
            return
        raise Bad("the journal is not empty")

    # Names

    def folder_names(self, folder):
        """What seals the names in a folder, each with the suffix of its record; None if they are plain."""
        if self.names == "plain":
            return None
        if self.names == "deterministic":
            return [(self.all_names, b"")]
        records = [b"wattlock.dir"] + sorted(filter(suffix_of_record, os.listdir(folder)))[:16]
        keys, ids = [], []
        for record in records:
            try:
                with open(os.path.join(folder, record), "rb") as file:
                    data = file.read()
                siv = AESSIV(self.open_header(data, b"wlfolder", RECORD))
            except (Bad, InvalidTag, OSError):
                continue
            if data[16:24] not in ids:
                ids.append(data[16:24])
                keys.append((siv, suffix_of_record(record)))
        require(keys, "no folder record opens")
        return keys

    def name(self, folder, keys, stored):
        """The name that a stored name is shown as; None for what is skipped."""
        if keys is None:
            if stored.startswith(b"wattlock.plain.wattlock."):
                return stored[len(b"wattlock.plain.") :]
            return None if stored.startswith(b"wattlock.") else stored
        if stored.startswith(b"wattlock.") or suffix_of_record(stored):
            behind = re.fullmatch(rb"wattlock\.long\.(" + SYMBOL + rb"{43})(.*)", stored, re.DOTALL)
            within = re.fullmatch(rb"wattlock\.long(.*)\.(" + SYMBOL + rb"{43})", stored, re.DOTALL)
            if not (behind or within) or behind and (behind[2].startswith(b".name") or behind[2].endswith(b".name")):
                return None
            part, suffix = behind.groups() if behind else within.groups()[::-1]
            sealed = self.long_name(folder, part)
        else:
            symbols, suffix = re.fullmatch(rb"(" + SYMBOL + rb"*)(.*)", stored, re.DOTALL).groups()
            sealed = unbase64url(symbols)
        name, suffix = self.opened(folder, keys, sealed, suffix)
        require(0 < len(name) <= 255 and not {0, 47} & set(name) and name not in (b".", b".."), "a name")
        return marked(name, suffix) if suffix else name

    def long_name(self, folder, part):
        """The sealed name beside a long entry, or in a copy of that file."""
        entry = b"wattlock.long." + part
        beside = [one for one in os.listdir(folder) if one.startswith(entry) and b".name" in one]
        for one in sorted(beside, key=lambda one: (one != entry + b".name", one))[:17]:
            with open(os.path.join(folder, one), "rb") as file:
                sealed = file.read(272)
            if base64url(hashlib.sha256(sealed).digest()) == part:
                return sealed
        raise Bad("hash of a long name")

    def opened(self, folder, keys, sealed, suffix):
        """A name, and the suffix that it is marked with: an earlier record's entry may have the name."""
        for at, (siv, of_record) in enumerate(keys):
            try:
                name = siv.decrypt(sealed, [b"name"])
            except InvalidTag:
                continue
            earlier = (other.encrypt(name, [b"name"]) for other, _ in keys[:at])
            taken = any(os.path.lexists(os.path.join(folder, stored_as(one))) for one in earlier)
            return name, suffix or (of_record if taken else b"")
        raise Bad("a name")

    def target(self, stored):
        data = unbase64url(stored)
        return self.links.decrypt(data[16:], [b"link", data[:16]])

    def extended(self, path):
        """Extended attributes by name."""
        found = {}
        for stored in map(os.fsencode, os.listxattr(path, follow_symlinks=False)):
            sealed = re.fullmatch(rb"(user\.|trusted\.|security\.)wattlock\.(" + SYMBOL + rb"+)", stored)
            if sealed:
                name = sealed[1] + self.attributes.decrypt(unbase64url(sealed[2]), [sealed[1]])
                value = os.getxattr(path, stored, follow_symlinks=False)
                found[name] = self.attributes.decrypt(value[16:], [name, value[:16]])
        return found

    # Contents

    def content(self, path):
        with open(path, "rb") as file:
            data = file.read()
        require(len(data) >= HEADER + OVERHEAD and data[9] == self.chunk.bit_length() - 1, "header")
        key = self.open_header(data[:HEADER], b"wattlofs", HEADER)
        flags = struct.unpack(">H", data[10:12])[0]
        require(flags in (0, 1), "flags")
        stride = self.chunk + OVERHEAD
        count, rest = divmod(len(data) - HEADER, stride)
        require(rest >= OVERHEAD, "the end is missing")
        slot = lambda i: data[HEADER + i * stride : HEADER + (i + 1) * stride]
        pieces = []
        for index in range(count + 1):
            stored = slot(index)
            if not any(stored):
                require(flags == 1 and index < count and self.covered(key, slot, index), f"slot {index}")
                pieces.append(bytes(self.chunk))
                continue
            level = self.hole(key, stored, index) if flags == 1 else None
            if level is not None:
                require(index < count, f"slot {index}: a hole at the end")
                pieces.append(bytes(self.chunk))
                continue
            aad = struct.pack(">QB", index, 0)
            try:
                pieces.append(xaes_open(key, stored[:24], aad, stored[24:]))
            except InvalidTag:
                raise Bad(f"slot {index}") from None
        return b"".join(pieces)

    def hole(self, key, stored, index):
        """The level of a hole record; None if it is none."""
        if any(stored[48:]):
            return None
        try:
            level = xaes_open(key, stored[:24], struct.pack(">QB", index, 1), stored[24:48])
        except InvalidTag:
            return None
        level = int.from_bytes(level, "big")
        return level if level <= LEVEL_MAX and index % (1 << level) == 0 else None

    def covered(self, key, slot, index):
        """Whether a hole record covers a slot of zeros."""
        for k in range(LEVEL_MAX + 1):
            start = index >> k << k
            level = self.hole(key, slot(start), start) if any(slot(start)) else None
            if level is not None and index < start + (1 << level):
                return True
        return False

    # The tree

    def entries(self, folder=None, shown=b""):
        folder = folder or self.path
        siv = self.folder_names(folder)
        for stored in sorted(os.listdir(folder)):
            path = os.path.join(folder, stored)
            try:
                name = self.name(folder, siv, stored)
            except (Bad, InvalidTag, ValueError, OSError):
                yield {"path": (shown + b"[" + stored + b"]").hex(), "error": "name"}
                continue
            if name is None:
                continue
            mode = os.lstat(path).st_mode
            entry = {"path": (shown + name).hex()}
            try:
                attributes = self.extended(path)
                entry["attributes"] = {name.hex(): value.hex() for name, value in attributes.items()}
                if stat.S_ISDIR(mode):
                    inner = list(self.entries(path, shown + name + b"/"))
                    yield entry | {"kind": "folder"}
                    yield from inner
                    continue
                if stat.S_ISLNK(mode):
                    entry |= {"kind": "link", "target": self.target(os.readlink(path)).hex()}
                elif stat.S_ISREG(mode):
                    content = self.content(path)
                    digest = hashlib.sha256(content).hexdigest()
                    entry |= {"kind": "file", "length": len(content), "sha256": digest}
                else:
                    entry |= {"kind": "special"}
            except (Bad, InvalidTag, ValueError) as error:
                entry["error"] = str(error) or "authentication failed"
            yield entry


def main():
    identity_file, path = sys.argv[1:]
    try:
        volume = Volume(path, read_identities(identity_file))
        volume.require_empty_journal()
        for entry in volume.entries():
            print(json.dumps(entry))
    except (Bad, InvalidTag, ValueError) as error:
        sys.exit(f"read_volume: {error or 'authentication failed'}")


if __name__ == "__main__":
    main()
