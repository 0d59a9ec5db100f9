#!/usr/bin/env python3
"""Seconds until a model is in a GPU's memory: sealed, by the package `wattlock`, and unsealed, by `safetensors`.

    WATTLOCK=PROGRAM WATTLOCK_LIBRARY=libwattlock_gpu.so WATTLOCK_GPU_IMAGES=FOLDER PYTHONPATH=python \\
        scripts/measure/tensors.py [GB] [ROUNDS]

Wants PyTorch with CUDA, safetensors, and as much room in /dev/shm twice. Every tensor of the first round is compared.
"""
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import wattlock


def timed(load):
    begin = time.perf_counter()
    tensors = load()
    torch.cuda.synchronize()
    return tensors, time.perf_counter() - begin


def main():
    gigabytes, rounds = (float(sys.argv[1]) if len(sys.argv) > 1 else 7), int(sys.argv[2]) if len(sys.argv) > 2 else 5
    program = os.environ.get("WATTLOCK", "wattlock")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        base = [torch.randn(4096, 4096).to(one) for one in (torch.float32, torch.bfloat16, torch.float16)]
        count = max(3, round(gigabytes * 1e9 / (sum(one.nbytes for one in base) / 3)))
        save_file({f"w{i}": base[i % 3].clone() for i in range(count)}, folder / "model")
        subprocess.run([program, "keygen", "-o", folder / "key.txt"], check=True, capture_output=True)
        key = next(line.split()[-1] for line in (folder / "key.txt").read_text().splitlines() if "age1" in line)
        subprocess.run([program, "seal", "-q", "-r", key, "-o", folder / "sealed", folder / "model"], check=True)
        size = (folder / "model").stat().st_size
        torch.zeros(1, device="cuda")  # the context is there before the clock starts
        for turn in range(rounds):
            sealed, ours = timed(lambda: wattlock.load(folder / "sealed", identity=folder / "key.txt", device="cuda"))
            plain, theirs = timed(lambda: load_file(folder / "model", device="cuda"))
            if turn == 0:
                differ = [one for one in plain if not torch.equal(sealed[one], plain[one])]
                if differ or set(sealed) != set(plain):
                    sys.exit(f"not what was sealed: {differ or 'other names'}")
            del sealed, plain
            print(f"{size} bytes: sealed {ours:.3f} s, {size / ours / 1e9:.1f} GB/s; "
                  f"unsealed {theirs:.3f} s, {size / theirs / 1e9:.1f} GB/s")


if __name__ == "__main__":
    main()
