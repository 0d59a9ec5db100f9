#!/usr/bin/env bash
# Do the tests of a crate notice a fault? cargo-mutants changes one thing a time (an operator, a returned value, a match arm) and
# runs the tests of the crate, and of its doors where those test it:
#
#   scripts/test/mutants.sh CRATE [K/N]      CRATE with or without its `wattlock-`, or `runtime`; K/N: the K-th even sample, from 0
#
# Without K/N: the first sample of about SAMPLE=150 mutants. CONTINUE=1: the doors only, about what a run before has missed. Ends with
# a line for each mutant that no test noticed, and with counts. Fails where fewer than nine of ten that could be built were
# noticed. What does not matter is left out in scripts/test/mutants.toml, with the reason. Half a minute a mutant, for the doors
# several. Builds and results are in target/mutants.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# = 1 ] || [ $# = 2 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
case $1 in wattlock | wattlock-*) crate=$1 ;; runtime) crate=wattlock ;; *) crate=wattlock-$1 ;; esac
if ! cargo mutants --version >/dev/null 2>&1; then
    echo 'cargo-mutants is not installed: cargo install cargo-mutants --locked' >&2
    exit 1
fi

# The crates whose tests show it at work, asked about what its own have not noticed.
doors=()
case $crate in
    wattlock-core) doors=(wattlock-cpu) ;;
    wattlock-policy) doors=(wattlock wattlock-lab) ;;
    wattlock) doors=(wattlock-files) ;;
    wattlock-files | wattlock-stream) doors=(wattlock-cli) ;;
    wattlock-fs) doors=(wattlock-mount wattlock-cli) ;;
esac
place=$(realpath -m "${CARGO_TARGET_DIR:-target}")/mutants
mkdir -p "$place"
config=(--config scripts/test/mutants.toml --package "$crate")
shard=${2:-}
if [ -z "$shard" ]; then
    all=$(cargo mutants "${config[@]}" --list --json | python3 -c 'import json, sys; print(len(json.load(sys.stdin)))')
    sample=${SAMPLE:-150}
    # As near to it as even samples come.
    samples=$(((all + sample / 2) / sample))
    shard=0/$((samples > 0 ? samples : 1))
    echo "mutants: $crate has $all, this is sample $shard"
fi
mutate() {
    local status=0
    CARGO_TARGET_DIR=$place/target cargo mutants "${config[@]}" --no-shuffle --colors never --cargo-arg=--locked \
        --cargo-arg=--config --cargo-arg=profile.dev.debug=false --timeout-multiplier 3 --minimum-test-timeout 60 "$@" ||
        status=$?
    # Others than these say more than that something was missed.
    case $status in 0 | 2 | 3) ;; *) exit "$status" ;; esac
}
out=$place/$crate/mutants.out
missed=$out/missed.txt
[ "${CONTINUE:-}" = 1 ] ||
    mutate --shard "$shard" --sharding round-robin --output "$place/$crate" --test-package "$crate"
for door in "${doors[@]}"; do
    [ -s "$missed" ] || break
    mapfile -t names < <(python3 -c 'import re, sys; [print(f"--re=^{re.escape(line.strip())}$") for line in sys.stdin]' <"$missed")
    mutate "${names[@]}" --output "$place/$crate-$door" --test-package "$door"
    # It mutates deleted fields whatever it is told.
    { grep -Fxf "$missed" "$place/$crate-$door/mutants.out/missed.txt" || true; } >"$place/$crate/missed-$door.txt"
    missed=$place/$crate/missed-$door.txt
done
python3 - "$out" "$missed" "$crate" "$shard" <<'PYTHON'
import sys
from pathlib import Path
out, missed, crate, shard = sys.argv[1:]
count = lambda path: len(Path(path).read_text().splitlines())
# A mutant that never ends is noticed: a test does not end.
viable = sum(count(f"{out}/{name}.txt") for name in ("caught", "timeout", "missed"))
noticed = viable - count(missed)
print(Path(missed).read_text(), end="")
print(f"mutants: {crate} {shard}: {noticed} of {viable} noticed, by the crate's own tests {viable - count(f'{out}/missed.txt')}; "
      f"{count(f'{out}/unviable.txt')} could not be built")
sys.exit(viable == 0 or noticed < 0.9 * viable)
PYTHON
