#!/usr/bin/env python3
"""Compiles the kernels with NVRTC: compile.py NVRTC_FOLDER OUT_FOLDER CHIP...

CHIP is a capability as sm_90 has it (cubin) or compute_80 (PTX). For each, three images: wattlock.CHIP.cubin,
wattlock_i.CHIP.cubin (GHASH by integer multiplication) and rates.CHIP.cubin (for check.py). A PTX image is
wattlock.CHIP.ptx. The compiler's report of
registers and spills goes to wattlock.CHIP.log. Only the standard library is used; no CUDA toolkit, no host compiler.
"""
import ctypes
import pathlib
import sys

KERNELS = pathlib.Path(__file__).resolve().parent.parent / "kernels"
HEADERS = ["wattlock_gpu.h", "simt.h", "sbox.h", "ghash.h", "aes.h", "chacha.h"]


def load(folder):
    libraries = sorted(pathlib.Path(folder).rglob("libnvrtc.so.*"))
    if not libraries:
        sys.exit(f"{folder}: no libnvrtc.so")
    # The compiler finds its built-in declarations beside itself only if they are loaded already.
    for builtins in sorted(pathlib.Path(folder).rglob("libnvrtc-builtins.so.*")):
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(libraries[0]))


def compile_one(nvrtc, chip, source, integer):
    def call(name, *arguments):
        code = getattr(nvrtc, name)(*arguments)
        if code:
            nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise RuntimeError(f"{name}: {nvrtc.nvrtcGetErrorString(code).decode()}")

    def blob(size_of, get, program):
        size = ctypes.c_size_t()
        call(size_of, program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        call(get, program, buffer)
        return buffer.raw

    texts = [(KERNELS / name).read_bytes() for name in HEADERS]
    program = ctypes.c_void_p()
    call("nvrtcCreateProgram", ctypes.byref(program), (KERNELS / source).read_bytes(), source.encode(),
         len(HEADERS), (ctypes.c_char_p * len(HEADERS))(*texts),
         (ctypes.c_char_p * len(HEADERS))(*[name.encode() for name in HEADERS]))
    options = [f"--gpu-architecture={chip}", "--std=c++17", "--device-as-default-execution-space"]
    if chip.startswith("sm_"):
        options.append("--ptxas-options=-v")
    if integer:
        options.append("-DWL_INTEGER")
    array = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
    try:
        call("nvrtcCompileProgram", program, len(options), array)
    except RuntimeError as error:
        log = blob("nvrtcGetProgramLogSize", "nvrtcGetProgramLog", program)
        raise RuntimeError(f"{chip}: {error}\n{log.rstrip(bytes(1)).decode()}") from None
    log = blob("nvrtcGetProgramLogSize", "nvrtcGetProgramLog", program).rstrip(b"\0").decode()
    if chip.startswith("sm_"):
        image = blob("nvrtcGetCUBINSize", "nvrtcGetCUBIN", program)
    else:
        image = blob("nvrtcGetPTXSize", "nvrtcGetPTX", program).rstrip(b"\0")
    call("nvrtcDestroyProgram", ctypes.byref(program))
    return image, log


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    nvrtc, out = load(sys.argv[1]), pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    for chip in sys.argv[3:]:
        for stem, source, integer in (("wattlock", "wattlock.cu", False), ("wattlock_i", "wattlock.cu", True),
                                      ("rates", "rates.cu", False)):
            try:
                image, log = compile_one(nvrtc, chip, source, integer)
            except RuntimeError as error:
                sys.exit(str(error))
            suffix = "cubin" if chip.startswith("sm_") else "ptx"
            (out / f"{stem}.{chip}.{suffix}").write_bytes(image)
            (out / f"{stem}.{chip}.log").write_text(log)
            print(f"{stem}.{chip}.{suffix}: {len(image)} bytes")


if __name__ == "__main__":
    main()
