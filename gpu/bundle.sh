#!/usr/bin/env bash
# What gpu/check.sh needs, as one archive for a machine that has a driver and nothing else: gpu/bundle.sh OUT.tar.gz.
# Compiles the kernels for all chips, which fetches their compiler, and for any x86-64 CPU. The program and that of its
# benches go with it if they were built (`make build`), for files and host memory. At most 40 MiB.
set -euo pipefail
cd "$(dirname "$0")/.."
to=${1:?usage: gpu/bundle.sh OUT.tar.gz}
out=${CARGO_TARGET_DIR:-target}/gpu
gpu/build.sh "$out"
folder=$out/bundle/wattlock-gpu
rm -rf "$out/bundle"
mkdir -p "$folder/host"
cp "$out"/*.cubin "$out"/*.ptx gpu/check.py gpu/check.sh "$folder"
cp gpu/host/kernels.py "$folder/host"
gpu/host/build.sh "$folder" -O2 -march=x86-64-v2
program=${CARGO_TARGET_DIR:-target}/release/wattlock
if [ -f "$program" ] && [ -f "$program-bench" ]; then
    strip -o "$folder/wattlock" "$program"
    strip -o "$folder/wattlock-bench" "$program-bench"
else
    echo "without the program, which was not built: files and host memory will not be measured" >&2
fi
tar -C "$out/bundle" -czf "$to" wattlock-gpu
size=$(stat -c %s "$to")
echo "$to: $((size / 1024)) KiB"
if [ "$size" -gt $((40 << 20)) ]; then
    echo "$to: more than 40 MiB" >&2
    exit 1
fi
