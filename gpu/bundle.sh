#!/usr/bin/env bash
# What gpu/check.sh needs, as one archive for a machine that has a driver and nothing else: gpu/bundle.sh OUT.tar.gz.
# Compiles the kernels for all chips, which fetches their compiler, and for any x86-64 CPU.
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
tar -C "$out/bundle" -czf "$to" wattlock-gpu
echo "$to: $(($(stat -c %s "$to") / 1024)) KiB"
