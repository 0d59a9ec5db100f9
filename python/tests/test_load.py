"""The package on files that the test program sealed into $WATTLOCK_TEST_FOLDER, with the stand-in driver for a GPU."""
import ctypes
import gc
import os
import pathlib
import struct
import subprocess
import sys
import unittest

import cases
import wattlock
from wattlock import _tensors

FOLDER = pathlib.Path(os.environ["WATTLOCK_TEST_FOLDER"])
KEY = FOLDER / "key.txt"


def sealed(name):
    return FOLDER / f"{name}.sealed"


def plain(name):
    """A tensor's bytes by the test's own reading of the plain file."""
    content = (FOLDER / name).read_bytes()
    return content[8 + int.from_bytes(content[:8], "little"):]


class Refused(unittest.TestCase):
    def test_every_header_that_does_not_fit_its_file_is_refused(self):
        names = sorted(path.name for path in FOLDER.glob("*.bad"))
        self.assertGreater(len(names), 18)
        for name in names:
            for device in ("cpu", "cuda"):
                with self.subTest(name=name, device=device), self.assertRaises(wattlock.Error) as raised:
                    wattlock.load(sealed(name), identity=KEY, device=device)
                self.assertIn("not a safetensors file", str(raised.exception), name)
                self.assertNotIn("\n", str(raised.exception))
        for name, words in (("exceed", "exceed the file"), ("overlap", "overlap another"), ("same", "overlap another")):
            with self.assertRaisesRegex(wattlock.Error, words):
                wattlock.load(sealed(f"{name}.bad"), identity=KEY)

    def test_an_altered_file_names_its_chunk(self):
        content = bytearray(sealed("large.good").read_bytes())
        content[-16_400 * 20] ^= 1
        altered = FOLDER / "altered.sealed"
        altered.write_bytes(content)
        for device in ("cpu", "cuda"):
            with self.assertRaisesRegex(wattlock.Error, r"altered \(chunk \d+ does not") as raised:
                wattlock.load(altered, identity=KEY, device=device)
            self.assertEqual((raised.exception.code, raised.exception.exit_code), (4, 32))

    def test_what_is_not_there_is_an_error(self):
        for path, identity, device in ((FOLDER / "nothing", KEY, "cpu"), (sealed("small.good"), FOLDER / "none", "cpu"),
                                       (sealed("small.good"), KEY, "tpu"), (sealed("small.good"), KEY, "cuda:"),
                                       (sealed("small.good"), KEY, "cuda:-1"), (sealed("small.good"), KEY, "cuda:9")):
            with self.subTest(path=path, device=device), self.assertRaises(wattlock.Error):
                wattlock.load(path, identity=identity, device=device)


class Cpu(unittest.TestCase):
    def test_tensors_are_what_was_sealed(self):
        tensors = wattlock.load(str(sealed("small.good")), identity=str(KEY))
        data = plain("small.good")
        self.assertEqual(list(tensors), ["a", "b", "c", "d", "e"])
        self.assertEqual(tensors.metadata, {"format": "pt"})
        for name, tensor in tensors.items():
            begin, end = cases.SMALL[name]["data_offsets"]
            self.assertEqual(bytes(tensor.tobytes()), data[begin:end], name)
        self.assertEqual(tuple(tensors["a"].shape), (2, 3))
        self.assertEqual(tensors["c"].tolist(), list(struct.unpack("<2q", data[27:43])))
        large = wattlock.load(sealed("large.good"), identity=KEY)["w"]
        self.assertEqual((tuple(large.shape), bytes(large.tobytes())), ((1500, 1000), plain("large.good")))
        self.assertEqual(wattlock.load(sealed("none.good"), identity=KEY), {})

    def test_without_numpy_there_are_memoryviews(self):
        script = ("import sys; sys.modules['numpy'] = None; import wattlock; "
                  f"t = wattlock.load({str(sealed('small.good'))!r}, identity={str(KEY)!r}); "
                  "assert type(t['a']) is memoryview and t['a'].shape == (2, 3) and t['a'].format == 'f'; "
                  "assert t['e'].nbytes == 0 and t['d'].tobytes() == bytes(t['d'])")
        subprocess.run([sys.executable, "-c", script], check=True)


class Gpu(unittest.TestCase):
    def setUp(self):
        self.driver = ctypes.CDLL(os.environ["WATTLOCK_CUDA_DRIVER"])
        self.driver.wl_standin_count.restype = ctypes.c_longlong

    def seen(self, what):
        return self.driver.wl_standin_count(what)

    def test_tensors_are_on_the_device_and_go_with_their_last_owner(self):
        wattlock.load(sealed("none.good"), identity=KEY, device="cuda")
        gc.collect()
        before = self.seen(b"live")
        tensors = wattlock.load(sealed("small.good"), identity=KEY, device="cuda:0")
        data = plain("small.good")
        for name, tensor in tensors.items():
            begin, end = cases.SMALL[name]["data_offsets"]
            self.assertEqual(tensor.tobytes(), data[begin:end], name)
            self.assertEqual(tensor.__dlpack_device__(), (2, 0))
        capsule = tensors["a"].__dlpack__(stream=1)
        found = _tensors.DLManagedTensor.from_address(_tensors._pointer(id(capsule), b"dltensor"))
        self.assertEqual((found.device_type, found.device_id, found.ndim), (2, 0, 2))
        self.assertEqual((found.code, found.bits, found.lanes, found.byte_offset), (2, 32, 1, 0))
        self.assertEqual((found.shape[:2], found.strides[:2]), ([2, 3], [3, 1]))
        # The stand-in's device memory is the process's own.
        self.assertEqual(ctypes.string_at(found.data, 24), data[:24])
        # Not aligned in the file, aligned here.
        unaligned = tensors["c"].__cuda_array_interface__
        self.assertEqual((unaligned["data"][0] % 8, unaligned["typestr"], unaligned["shape"]), (0, "<i8", (2,)))
        del tensors, tensor
        gc.collect()
        self.assertEqual(ctypes.string_at(found.data, 24), data[:24])
        # Nobody took it: the capsule's end is the tensor's.
        del capsule
        gc.collect()
        self.assertEqual((self.seen(b"live"), self.seen(b"unwiped"), self.seen(b"wrong")), (before, 0, 0))

    def test_a_consumer_frees_what_it_took_after_the_capsule_is_gone(self):
        capsule = wattlock.load(sealed("large.good"), identity=KEY, device="cuda")["w"].__dlpack__()
        managed = _tensors._pointer(id(capsule), b"dltensor")
        name = ctypes.create_string_buffer(b"used_dltensor")
        rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(
            ("PyCapsule_SetName", ctypes.pythonapi))
        self.assertEqual(rename(capsule, ctypes.addressof(name)), 0)
        del capsule
        gc.collect()
        found = _tensors.DLManagedTensor.from_address(managed)
        self.assertEqual(ctypes.string_at(found.data, 6_000_000), plain("large.good"))
        before = self.seen(b"live")
        _tensors._delete(managed)
        self.assertEqual((self.seen(b"live"), self.seen(b"unwiped"), self.seen(b"wrong")), (before - 1, 0, 0))

    def test_the_kernels_did_it(self):
        before = self.seen(b"launches")
        wattlock.load(sealed("large.good"), identity=KEY, device="cuda")
        # Four kernels for each of two pieces, and one for the key.
        self.assertGreaterEqual(self.seen(b"launches") - before, 9)

    def test_a_tensor_goes_to_no_other_device_and_is_not_copied(self):
        tensor = wattlock.load(sealed("small.good"), identity=KEY, device="cuda")["a"]
        with self.assertRaises(BufferError):
            tensor.__dlpack__(copy=True)
        with self.assertRaises(BufferError):
            tensor.__dlpack__(dl_device=(1, 0))


if __name__ == "__main__":
    unittest.main()
