#!/usr/bin/env bash
# What can be known of the GPU kernels without a GPU: that they do on this CPU what OpenSSL does, that sanitizers and
# memcheck have nothing to report, and, if the compiler can be fetched, what they cost on capability 9.0.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${CARGO_TARGET_DIR:-target}/gpu
mkdir -p "$out"
python=.venv/bin/python3
[ -x "$python" ] || python=python3

# Beside the tests: two cores.
gpu/build.sh "$out" sm_90 >"$out/build.log" 2>&1 & compiler=$!
gpu/host/build.sh "$out"
"$python" gpu/host/test.py "$out/libwattlock_gpu_host.so"
gpu/host/watch.sh "$out"
status=0
wait "$compiler" || status=$?
cat "$out/build.log"
case $status in
    0) python3 gpu/tools/count.py "$out/tools" "$out" sm_90 --check gpu/instructions.json ;;
    3) echo "instructions of the kernels: not counted" ;;
    *) exit "$status" ;;
esac
