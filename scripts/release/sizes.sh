#!/usr/bin/env bash
# What users load is as small as promised, needs no newer system than promised, and has no emulated cards in it. Builds
# nothing: looks at what `make build` left, stripped as `make install` strips it.
#
#   scripts/release/sizes.sh [FOLDER]       FOLDER: target/release
#
# Names of the C library's functions are as new as the machine's that built: older ones are promised by builds on Debian
# 12 (`make fresh`).
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-${CARGO_TARGET_DIR:-target}/release}
newest=2.34
# What the engine says of itself wherever it is, and so in every file that has it.
cards='emulated, not hardware'
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
bad=0
complain() { echo "sizes: $*" >&2; bad=1; }

for limit in wattlock:15 libwattlock_provider.so:9 libwattlock_gpu.so:8; do
    name=${limit%:*} most=${limit#*:}
    strip -o "$scratch/$name" "$folder/$name"
    bytes=$(stat -c %s "$scratch/$name")
    # Tenths, upwards.
    mib=$(((bytes * 10 + (1 << 20) - 1) >> 20))
    mib=$((mib / 10)).$((mib % 10))
    [ "$bytes" -le $((most << 20)) ] || complain "$name has $mib MiB, at most $most were promised"
    needs=$(objdump -T "$scratch/$name" | sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' | sort -Vu | tail -n 1)
    [ "$(printf '%s\n' "$newest" "$needs" | sort -V | tail -n 1)" = "$newest" ] ||
        complain "$name needs glibc $needs, at most $newest was promised"
    ! grep -aqF "$cards" "$scratch/$name" || complain "$name has emulated cards"
    echo "$name: $mib of $most MiB, glibc $needs"
done
# Or the question would have no answer.
for name in wattlock-emulated libwattlock_emulated.so; do
    grep -aqF "$cards" "$folder/$name" || complain "$name has no emulated cards"
done
exit $bad
