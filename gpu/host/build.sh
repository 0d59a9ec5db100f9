#!/usr/bin/env bash
# Builds the kernels as a library for this CPU: build.sh FOLDER [compiler's flags]. Needs a C++ compiler, no CUDA.
set -euo pipefail
here=$(realpath "$(dirname "$0")")
out=${1:?usage: build.sh FOLDER [flags]}
shift
[ $# -gt 0 ] || set -- -O2 -march=native
mkdir -p "$out"
library=$out/libwattlock_gpu_host.so
"${CXX:-g++}" -std=c++17 -x c++ -Wall -Wno-psabi -Wno-unknown-pragmas -fPIC -shared "$@" \
    -o "$library.$$" "$here/host.cpp"
mv "$library.$$" "$library"
