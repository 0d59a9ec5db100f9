#!/usr/bin/env python3
"""Opens a sealed file, and shares no code with what sealed it.

Written from docs/formats/file.md alone, on Python's `cryptography`. Slow and short on purpose: it is here so that the
format is what its document says, and not what one program happens to do.

    read_sealed.py IDENTITY-FILE SEALED-FILE > PLAINTEXT
"""

import base64
import hashlib
import hmac
import struct
import sys

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256, SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

MAGIC = b"\x8bwattlk\n"
HEADER_MAX = 1 << 20
CHUNK, TAG = 16384, 16


class Bad(Exception):
    """The file is not what the document says a sealed file is."""


def require(condition, what):
    if not condition:
        raise Bad(what)


def bech32_bytes(text, prefix):
    """The bytes of a Bech32 string (BIP 173, without its limit on length)."""
    alphabet = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
    text = text.lower()
    human, _, data = text.rpartition("1")
    require(human == prefix, "wrong kind of key")
    values = [alphabet.index(letter) for letter in data]
    check = 1
    for value in [ord(c) >> 5 for c in human] + [0] + [ord(c) & 31 for c in human] + values:
        top, check = check >> 25, (check & 0x1FFFFFF) << 5 ^ value
        for bit, part in enumerate((0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)):
            check ^= part if top >> bit & 1 else 0
    require(check == 1, "key checksum")
    bits = "".join(f"{value:05b}" for value in values[:-6])
    return bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits) - 7, 8))


def unbase64(text):
    """Base64 without padding, canonical."""
    data = base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    require(base64.b64encode(data).rstrip(b"=") == text, "base64 is not canonical")
    return data


def hkdf(key, salt, info, length=32):
    return HKDF(SHA256(), length, salt, info).derive(key)


def read_identities(path):
    with open(path) as file:
        lines = (line.strip() for line in file)
        return [bech32_bytes(line, "age-secret-key-") for line in lines if line.startswith("AGE-SECRET-KEY-1")]


def parse_age(data):
    """Stanzas, covered bytes, MAC and what follows the header of an age v1 file."""
    first, rest = data.split(b"\n", 1)
    require(first == b"age-encryption.org/v1", "age version")
    stanzas = []
    while rest.startswith(b"-> "):
        line, rest = rest.split(b"\n", 1)
        body = b""
        while True:
            part, rest = rest.split(b"\n", 1)
            body += part
            if len(part) < 64:
                break
        stanzas.append((line.split(b" ")[1:], unbase64(body)))
    require(rest.startswith(b"--- "), "end of the age header")
    covered = data[: len(data) - len(rest) + 3]
    last, payload = rest.split(b"\n", 1)
    return stanzas, covered, unbase64(last[4:]), payload


def unwrap(stanzas, identities):
    """The file key, from the first X25519 stanza that one of the identities opens."""
    for arguments, body in stanzas:
        if arguments[0] != b"X25519" or len(arguments) != 2 or len(body) != 32:
            continue
        share = unbase64(arguments[1])
        for identity in identities:
            secret = X25519PrivateKey.from_private_bytes(identity)
            public = secret.public_key().public_bytes_raw()
            shared = secret.exchange(X25519PublicKey.from_public_bytes(share))
            key = hkdf(shared, share + public, b"age-encryption.org/v1/X25519")
            try:
                return ChaCha20Poly1305(key).decrypt(bytes(12), body, None)
            except InvalidTag:
                continue
    raise Bad("no identity matches")


def open_key_file(data, identities):
    """The 32-byte input key out of the age file in the header."""
    stanzas, covered, mac, payload = parse_age(data)
    file_key = unwrap(stanzas, identities)
    expected = hmac.digest(hkdf(file_key, b"", b"header"), covered, "sha256")
    require(hmac.compare_digest(mac, expected), "MAC of the age header")
    nonce, sealed = payload[:16], payload[16:]
    require(len(sealed) == 32 + TAG, "length of the input key")
    # One chunk, number zero, and the last: eleven zero bytes, then a one.
    return ChaCha20Poly1305(hkdf(file_key, nonce, b"payload")).decrypt(bytes(11) + b"\x01", sealed, None)


def open_sealed(data, identities):
    """Yields the plaintext, chunk by chunk."""
    require(data[:8] == MAGIC, "not a sealed file")
    version, key_len = struct.unpack(">II", data[8:16])
    require(version == 1, "unknown version")
    require(0 < key_len <= HEADER_MAX - 16, "header length")
    header, payload = data[: 16 + key_len], data[16 + key_len :]
    require(len(header) == 16 + key_len and len(payload) >= 56, "truncated")
    input_key = open_key_file(header[16:], identities)

    salt, commitment = payload[:24], payload[24:56]
    context = hashlib.sha512(header).digest()
    info = b"c2sp.org/chunked-encryption@v1+AEAD_AES_256_GCM\x00" + salt + context
    derived = HKDFExpand(SHA512(), 76, info).derive(input_key)
    key, base, expected = derived[:32], derived[32:44], derived[44:]
    require(hmac.compare_digest(commitment, expected), "commitment")

    cipher = AESGCM(key)
    chunks = payload[56:]
    at, number = 0, 0
    while True:
        chunk = chunks[at : at + CHUNK + TAG]
        require(len(chunk) >= TAG, "truncated")
        nonce = (int.from_bytes(base, "big") ^ number).to_bytes(12, "big")
        yield cipher.decrypt(nonce, chunk, None)
        at, number = at + len(chunk), number + 1
        if len(chunk) < CHUNK + TAG:
            return


def main():
    identity_file, sealed_file = sys.argv[1:]
    with open(sealed_file, "rb") as file:
        data = file.read()
    try:
        for plain in open_sealed(data, read_identities(identity_file)):
            sys.stdout.buffer.write(plain)
    except (Bad, InvalidTag, ValueError) as error:
        sys.exit(f"read_sealed: {error or 'authentication failed'}")


if __name__ == "__main__":
    main()
