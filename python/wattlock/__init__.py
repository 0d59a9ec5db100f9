"""Tensors from sealed files, on the CPU or straight into a GPU's memory.

    import wattlock
    tensors = wattlock.load("model.safetensors.sealed", identity="key.txt", device="cuda")

The file is one of `wattlock seal`. With device="cuda" or "cuda:1" the GPU decrypts: plaintext never lies in the host's
memory, and nothing of a tensor is visible before it is verified. Needs the library libwattlock_gpu.so (`make install`,
or WATTLOCK_LIBRARY=); neither PyTorch nor numpy is needed, each is used if it is there.
"""
from ._library import Error
from ._tensors import DeviceTensor, Tensors, load

__all__ = ["DeviceTensor", "Error", "Tensors", "load"]
