#!/usr/bin/env bash
# Compiles the kernels for GPUs: gpu/build.sh FOLDER [CHIP...]. Without chips: all, and PTX for those to come.
#
# The compiler (NVRTC) and the disassembler are wheels, fetched once into FOLDER/tools by pip: build tools, nothing of
# which is linked or shipped. Nothing of CUDA is installed. NVRTC is pinned to 13.3, the lowest that knows clmad: what a
# 13.x compiler makes (cubins, not PTX) loads on every driver of CUDA 13. Ends with 3 if they cannot be fetched.
set -euo pipefail
here=$(realpath "$(dirname "$0")")
out=${1:?usage: gpu/build.sh FOLDER [CHIP...]}
shift
[ $# -gt 0 ] || set -- sm_80 sm_86 sm_89 sm_90 sm_100 sm_103 sm_120 sm_121 compute_80
mkdir -p "$out"
tools=$out/tools
if [ ! -e "$tools/complete" ]; then
    python=$here/../.venv/bin/python3
    [ -x "$python" ] || python=python3
    rm -rf "$tools" "$tools.new"
    if ! "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$tools.new" \
        'nvidia-cuda-nvrtc==13.3.*' 'nvidia-cuda-cuobjdump==13.5.*' 'nvidia-cuda-nvdisasm==13.5.*'; then
        rm -rf "$tools.new"
        echo "no compiler for GPUs: pip could not fetch it; the kernels are not compiled for GPUs" >&2
        exit 3
    fi
    touch "$tools.new/complete"
    mv "$tools.new" "$tools"
fi
python3 "$here/tools/compile.py" "$tools" "$out" "$@"
