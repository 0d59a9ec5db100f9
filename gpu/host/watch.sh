#!/usr/bin/env bash
# The kernels under the address and undefined-behaviour sanitizers, and under memcheck with keys and data undefined:
# watch.sh FOLDER. Each tool must also report a planted fault, or its silence would say nothing.
set -euo pipefail
here=$(realpath "$(dirname "$0")")
out=${1:?usage: watch.sh FOLDER}
mkdir -p "$out"
build() { "${CXX:-g++}" -std=c++17 -Wno-psabi -Wno-unknown-pragmas "$@" "$here/check.cpp"; }

build -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -o "$out/check-asan"
"$out/check-asan"
if "$out/check-asan" overrun 2>"$out/overrun.log"; then
    echo "the address sanitizer did not see a read past the end" >&2
    exit 1
fi
grep -c heap-buffer-overflow "$out/overrun.log" >/dev/null
echo "test sanitizers ... ok"

# Without AVX-512, which this valgrind does not know.
if ! command -v valgrind >/dev/null; then
    echo "no valgrind: constant time of the kernels not checked"
    exit 0
fi
build -O1 -g -march=x86-64-v2 -o "$out/check-memcheck"
valgrind -q --error-exitcode=9 "$out/check-memcheck"
if valgrind -q --error-exitcode=9 "$out/check-memcheck" branch >/dev/null 2>"$out/branch.log"; then
    echo "memcheck did not see a branch on a key" >&2
    exit 1
fi
grep -c "depends on uninitialised" "$out/branch.log" >/dev/null
echo "test memcheck with keys and data undefined ... ok"
