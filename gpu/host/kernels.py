"""The kernels on this machine's CPU, for tests: a run as a caller would describe it, and its plan.

`Library(path)` is libwattlock_gpu_host.so of build.sh. `Library.run(kind, ...)` takes Python bytes and returns Python
bytes. The memory it lends the kernels is exact: a byte too many, read or written, is out of bounds for the sanitizer.
"""
import ctypes
import random

U32, U64 = ctypes.c_uint32, ctypes.c_uint64
VERSION, BLOCK, ROW, TILE, SEGMENT, KEY_AREA = 1, 128, 512, 32, 65536, 28672


class Run(ctypes.Structure):
    _fields_ = [("version", U32), ("messages", U32), ("key_bytes", U32), ("flags", U32)] + [
        (name, U64) for name in (
            "units", "input", "input_stride", "output", "output_stride", "length", "last_length", "table", "key",
            "nonces", "nonce_stride", "aad", "aad_stride", "aad_length", "tags", "tag_stride", "last_tag", "results",
            "scratch")]


class Entry(ctypes.Structure):
    _fields_ = [(name, U64) for name in ("input", "output", "length", "before", "aad", "aad_length")]


# kind: (nonce bytes, tag bytes, kernels with what their grid counts)
PLANS = {
    "ctr": (16, 0, [("wl_aes_ctr", "T")]),
    "gcm-seal": (12, 16, [("wl_aes_gcm_masks", "M"), ("wl_aes_gcm_seal", "T"), ("wl_aes_gcm_tags", "E")]),
    "gcm-open": (12, 16, [("wl_aes_gcm_masks", "M"), ("wl_aes_ghash", "T"), ("wl_aes_gcm_verify", "E"),
                          ("wl_aes_gcm_open", "T")]),
    "gcm-seal-i": (12, 16, [("wl_aes_gcm_masks", "M"), ("wl_aes_gcm_seal_i", "T"), ("wl_aes_gcm_tags", "E")]),
    "gcm-open-i": (12, 16, [("wl_aes_gcm_masks", "M"), ("wl_aes_ghash_i", "T"), ("wl_aes_gcm_verify", "E"),
                            ("wl_aes_gcm_open", "T")]),
    "xts-encrypt": (16, 0, [("wl_aes_xts_tweaks", "M"), ("wl_aes_xts_encrypt", "T"), ("wl_aes_xts_encrypt_end", "M")]),
    "xts-decrypt": (16, 0, [("wl_aes_xts_tweaks", "M"), ("wl_aes_xts_decrypt", "T"), ("wl_aes_xts_decrypt_end", "M")]),
    "cbc-decrypt": (16, 0, [("wl_aes_cbc_edges", "C"), ("wl_aes_cbc_decrypt", "T")]),
    "chacha-seal": (12, 16, [("wl_chacha_keys", "E"), ("wl_chacha_seal", "S"), ("wl_chacha_tags", "E")]),
    "chacha-open": (12, 16, [("wl_chacha_keys", "E"), ("wl_chacha_poly", "S"), ("wl_chacha_verify", "E"),
                             ("wl_chacha_open", "S")]),
}


def units(length, unit):
    return -(-length // unit)


class Memory:
    """Bytes at an address of a wanted alignment, with nothing of ours around them."""

    def __init__(self, content, align=256, offset=0):
        self.size = len(content)
        self.raw = ctypes.create_string_buffer(self.size + align + offset)
        base = ctypes.addressof(self.raw)
        self.at = -(-base // align) * align + offset
        ctypes.memmove(self.at, bytes(content), self.size)

    def bytes(self):
        return ctypes.string_at(self.at, self.size)


class Library:
    def __init__(self, path):
        self.library = ctypes.CDLL(str(path))
        self.library.wl_host_launch.argtypes = [ctypes.c_char_p, U32, U32, U32, U32, ctypes.c_void_p]
        self.library.wl_host_kernels.restype = ctypes.POINTER(ctypes.c_char_p)

    def kernels(self):
        names, found = self.library.wl_host_kernels(), []
        while names[len(found)]:
            found.append(names[len(found)].decode())
        return found

    def launch(self, kernel, blocks, run, parts=1):
        grid = max(1, blocks)
        cuts = [grid * i // parts for i in range(parts + 1)]
        for first, end in zip(cuts, cuts[1:]):
            code = self.library.wl_host_launch(kernel.encode(), grid, first, end - first, BLOCK, ctypes.byref(run))
            if code:
                raise RuntimeError(f"{kernel}: {code}")

    def memory(self, content, align=256, offset=0):
        return Memory(content, align, offset)

    def key(self, kind, key):
        area = self.memory(key + bytes(KEY_AREA - len(key)))
        if not kind.startswith("chacha"):
            two = kind.startswith("xts")
            self.launch("wl_aes_key", 1, Run(version=VERSION, key_bytes=len(key) // (2 if two else 1),
                                             flags=1 if two else 0, key=area.at))
        return area

    def run(self, kind, key, messages, nonces, aads=None, tags=None, *, gap=0, offset=0, table=False, in_place=False,
            grid=None, parts=1):
        """Does `messages`. Returns (outputs, tags) or, for an open, (outputs, results).

        gap: bytes between messages. offset: of the first, from an aligned address. table: describes every message by
        itself, in an order of its own. grid: instead of the one of the plan."""
        nonce_bytes, tag_bytes, plan = PLANS[kind]
        chacha, count = kind.startswith("chacha"), len(messages)
        aads = aads or [b""] * count
        unit = SEGMENT if chacha else ROW
        longest = max(map(len, messages))
        stride = longest + gap
        area = self.key(kind, key)
        run = Run(version=VERSION, messages=count, flags=0, key=area.at,
                  key_bytes=len(key) // (2 if kind.startswith("xts") else 1))
        run.units = sum(units(len(m), unit) for m in messages)
        filler = b"\xa5"
        if table:
            order = list(range(count))
            random.Random(count * 1000 + longest).shuffle(order)
            place, at = {}, 0
            for i in order:
                place[i] = at
                at += len(messages[i]) + gap
            total = at
        else:
            assert all(len(m) == longest for m in messages[:-1]) and all(len(a) == len(aads[0]) for a in aads)
            place = {i: i * stride for i in range(count)}
            total = place[count - 1] + len(messages[-1])
        image = bytearray(filler * total)
        for i, m in enumerate(messages):
            image[place[i]:place[i] + len(m)] = m
        source = self.memory(image, offset=offset)
        target = source if in_place else self.memory(filler * total, offset=offset)
        aad_bytes = b"".join(aads)
        aad = self.memory(aad_bytes, offset=1)
        run.input, run.output, run.aad = source.at, target.at, aad.at
        if table:
            entries, before, aad_at = (Entry * count)(), 0, 0
            for i, m in enumerate(messages):
                entries[i] = Entry(place[i], place[i], len(m), before, aad_at, len(aads[i]))
                before += units(len(m), unit)
                aad_at += len(aads[i])
            lent = self.memory(bytes(entries))
            run.table = lent.at
        else:
            run.input_stride = run.output_stride = stride
            run.length, run.last_length = longest, len(messages[-1])
            run.aad_stride = run.aad_length = len(aads[0])
        nonce = self.memory(b"".join(nonces))
        assert nonce.size == count * nonce_bytes
        run.nonces, run.nonce_stride = nonce.at, nonce_bytes
        tag = self.memory(b"".join(tags) if tags else bytes(max(1, tag_bytes * count)), offset=1)
        run.tags, run.tag_stride = tag.at, tag_bytes
        run.last_tag = tag.at + (count - 1) * tag_bytes
        results = self.memory(b"\xff" * (4 * count))
        run.results = results.at
        tiles = run.units if chacha else units(run.units, TILE)
        scratch = self.memory(b"\x5a" * (count * (256 if chacha else 32) + (tiles + 1) * 32))
        run.scratch = scratch.at
        blocks = {"T": units(tiles, 4), "S": units(tiles, 4), "E": units(count, 128), "M": units(count, 4096),
                  "C": units(tiles, 128)}
        for kernel, counts in plan:
            self.launch(kernel, grid or blocks[counts], run, parts)
        out = target.bytes()
        outputs = [out[place[i]:place[i] + len(m)] for i, m in enumerate(messages)]
        # What is not a message must be as it was.
        rest, clean = bytearray(out), bytearray(filler * total)
        for i, m in enumerate(messages):
            rest[place[i]:place[i] + len(m)] = filler * len(m)
        if rest != clean:
            raise AssertionError(f"{kind}: bytes between messages were written")
        if kind in ("gcm-open", "gcm-open-i", "chacha-open"):
            raw = results.bytes()
            return outputs, [int.from_bytes(raw[4 * i:4 * i + 4], "little") for i in range(count)]
        raw = tag.bytes()
        return outputs, [raw[tag_bytes * i:tag_bytes * (i + 1)] for i in range(count)]
