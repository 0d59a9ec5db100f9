#!/usr/bin/env bash
# Do the tests of a crate notice a fault? cargo-mutants changes one thing a time (an operator, a returned value, a match arm) and
# runs the tests of the crate, and of its doors where those test it:
#
#   scripts/mutants.sh CRATE [K/N]      CRATE with or without its `wattlock-`, or `runtime`; K/N: the K-th even sample, from 0
#
# Without K/N: the first sample of about 150 mutants. Prints a line for each mutant that no test noticed, and ends with counts.
# Fails where fewer than nine of ten that could be built were noticed. What does not matter is left out in
# scripts/mutants.toml, with the reason. Several seconds to a minute a mutant. Builds and results are in target/mutants.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# = 1 ] || [ $# = 2 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
case $1 in wattlock | wattlock-*) crate=$1 ;; runtime) crate=wattlock ;; *) crate=wattlock-$1 ;; esac
if ! cargo mutants --version >/dev/null 2>&1; then
    echo 'cargo-mutants is not installed: cargo install cargo-mutants --locked' >&2
    exit 1
fi

# The packages whose tests are the crate's: its own, and where most of them are elsewhere that package, too.
tests=(--test-package "$crate")
case $crate in
    wattlock-core) tests+=(--test-package wattlock-cpu) ;;
esac
place=$(realpath -m "${CARGO_TARGET_DIR:-target}")/mutants
mkdir -p "$place"
config=(--config scripts/mutants.toml --package "$crate")
shard=${2:-}
if [ -z "$shard" ]; then
    all=$(cargo mutants "${config[@]}" --list --json | python3 -c 'import json, sys; print(len(json.load(sys.stdin)))')
    shard=0/$(((all + 149) / 150))
    echo "mutants: $crate has $all, this is sample $shard"
fi
# Its own exit code says no more than that something was missed.
status=0
CARGO_TARGET_DIR=$place/target cargo mutants "${config[@]}" "${tests[@]}" --shard "$shard" --sharding round-robin \
    --output "$place/$crate" --no-shuffle --colors never --cargo-arg=--locked --cargo-arg=--config \
    --cargo-arg=profile.dev.debug=false --timeout-multiplier 3 --minimum-test-timeout 60 || status=$?
case $status in 0 | 2 | 3) ;; *) exit "$status" ;; esac
python3 - "$place/$crate/mutants.out" "$crate" "$shard" <<'PYTHON'
import sys
from pathlib import Path
out, crate, shard = sys.argv[1:]
count = {name: len(Path(out, f"{name}.txt").read_text().splitlines()) for name in ("caught", "missed", "timeout", "unviable")}
# A mutant that never ends was noticed: a test would not have ended.
noticed = count["caught"] + count["timeout"]
viable = noticed + count["missed"]
print(f"mutants: {crate} {shard}: {noticed} of {viable} noticed ({count['timeout']} by a test that did not end), "
      f"{count['unviable']} could not be built")
sys.exit(viable == 0 or noticed < 0.9 * viable)
PYTHON
