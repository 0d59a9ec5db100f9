#!/usr/bin/env python3
"""Gets back what Wattlock encrypted, without Wattlock: with a key, Python 3.9, and its package `cryptography`.

    recover.py file    IDENTITY SEALED OUTPUT         a file of `wattlock seal`
    recover.py volume  IDENTITY VOLUME FOLDER         files, folders and links of an encrypted folder into a new FOLDER
    recover.py stream  IDENTITY SEALED OUTPUT         a stream of `wattlock stream seal`
    recover.py records IDENTITY KEYS TOPIC RECORDS [NAME]      records, as lines of JSON

IDENTITY is a file with a line AGE-SECRET-KEY-1..., as on a recovery key's paper, or one that is locked with a passphrase,
such as VOLUME/wattlock.keys/passphrase. Nothing is replaced. Whatever cannot be recovered is named, and the exit status is
then 1. A file is held in memory as a whole. Keep a copy of this file with your backups.
"""

import getpass
import hmac
import os
import stat
import sys
import types

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

# The readers, each written from its format's page alone; `make install` puts them here.
SOURCES = {}
# READERS

for name, source in SOURCES.items():
    module = sys.modules[name] = types.ModuleType(name)
    module.__file__ = __file__
    exec(compile(source, name, "exec"), module.__dict__)
if not SOURCES:
    crates = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../crates")
    sys.path[:0] = [os.path.join(crates, crate, "tests") for crate in ("wattlock-files", "wattlock-fs", "wattlock-stream")]

import read_sealed  # noqa: E402
import read_stream  # noqa: E402
import read_volume  # noqa: E402

WRONG = (read_sealed.Bad, read_volume.Bad, InvalidTag, ValueError, IndexError, KeyError, OSError)
PASSPHRASE = b"age-encryption.org/v1/scrypt"


def identities(path):
    """The identities in a file; its passphrase is asked for if it has one."""
    with open(path, "rb") as file:
        data = file.read()
    if not data.startswith(b"age-encryption.org/"):
        return read_sealed.read_identities(path)
    [(arguments, body)], covered, mac, payload = read_sealed.parse_age(data)
    read_sealed.require(arguments[0] == b"scrypt", "not locked with a passphrase")
    asked = getpass.getpass("Passphrase: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    salt = PASSPHRASE + read_sealed.unbase64(arguments[1])
    wrap = Scrypt(salt, 32, 2 ** int(arguments[2]), 8, 1).derive(asked.encode())
    try:
        key = ChaCha20Poly1305(wrap).decrypt(bytes(12), body, None)
    except InvalidTag:
        raise ValueError("wrong passphrase") from None
    expected = hmac.digest(read_sealed.hkdf(key, b"", b"header"), covered, "sha256")
    read_sealed.require(hmac.compare_digest(mac, expected), "MAC of the age header")
    under = ChaCha20Poly1305(read_sealed.hkdf(key, payload[:16], b"payload"))
    lines = under.decrypt(bytes(11) + b"\x01", payload[16:], None).decode().splitlines()
    return [read_sealed.bech32_bytes(line, "age-secret-key-") for line in lines if line.startswith("AGE-SECRET")]


def write_new(path, pieces):
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        for piece in pieces:
            file.write(piece)


class Recovery:
    """One volume, and how many things of it were lost."""

    def __init__(self, volume):
        self.volume, self.lost = volume, 0

    def lose(self, what, error):
        self.lost += 1
        print(f"recover: {os.fsdecode(what)}: {error or 'authentication failed'}", file=sys.stderr)

    def journal(self):
        try:
            self.volume.require_empty_journal()
        except WRONG as error:
            self.lose(b"wattlock.journal", f"{error}: what was written last, and is only in it, is not recovered")

    def folder(self, stored, to):
        """A backing folder into a new one."""
        os.mkdir(to, 0o700)
        try:
            names = self.volume.folder_names(stored)
        except WRONG as error:
            names = None
            self.lose(to, f"names are lost: {error or 'authentication failed'}")
        for entry in sorted(os.listdir(stored)):
            path = os.path.join(stored, entry)
            try:
                name = self.volume.name(stored, names, entry)
            except WRONG as error:
                self.lose(path, error)
                name = b"lost-" + entry[:240]
            if name is not None:
                try:
                    self.entry(path, os.path.join(to, name))
                except WRONG as error:
                    self.lose(os.path.join(to, name), error)
        self.keep(stored, to)

    def entry(self, path, to):
        mode = os.lstat(path).st_mode
        if stat.S_ISDIR(mode):
            self.folder(path, to)
        elif stat.S_ISLNK(mode):
            os.symlink(self.volume.target(os.fsencode(os.readlink(path))), to)
        elif stat.S_ISREG(mode):
            write_new(to, [self.volume.content(path)])
            self.keep(path, to)
        else:
            self.lose(to, "not a file, a folder or a link")

    def keep(self, path, to):
        """Attributes, permissions and times, as far as this user and this file system have them."""
        for name, value in self.volume.extended(path).items():
            try:
                os.setxattr(to, name, value)
            except OSError as error:
                self.lose(to, f"{os.fsdecode(name)}: {error.strerror}")
        meta = os.stat(path)
        os.chmod(to, stat.S_IMODE(meta.st_mode) & 0o777)
        os.utime(to, ns=(meta.st_atime_ns, meta.st_mtime_ns))


def main():
    counts = {"file": 3, "stream": 3, "volume": 3, "records": 4}
    what, *rest = sys.argv[1:] or [""]
    if not counts.get(what, 9) <= len(rest) <= counts.get(what, 0) + (what == "records"):
        sys.exit(__doc__.strip())
    try:
        keys = identities(rest[0])
        if what == "volume":
            recovery = Recovery(read_volume.Volume(rest[1], keys))
            recovery.journal()
            recovery.folder(recovery.volume.path, os.fsencode(rest[2]))
            sys.exit(1 if recovery.lost else 0)
        if what == "records":
            folder, topic, records, *hidden = rest[1:]
            hidden = bytes.fromhex(hidden[0]) if hidden else None
            with open(records) as lines:
                for opened in read_stream.open_records(keys, folder, topic.encode(), lines, hidden):
                    print(opened)
            return
        with open(rest[1], "rb") as file:
            data = file.read()
        opened = read_sealed.open_sealed if what == "file" else read_stream.open_stream
        write_new(rest[2], opened(data, keys))
    except WRONG as error:
        sys.exit(f"recover: {error or 'authentication failed'}")


if __name__ == "__main__":
    main()
