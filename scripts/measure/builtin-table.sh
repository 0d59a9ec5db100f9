#!/usr/bin/env bash
# Measures the two tables of costs that ship with Wattlock, on this machine, and puts them in place: builtin.json (a CPU with
# AVX-512 IFMA, all kinds) and builtin-fma.json (the kinds of lanes on AVX2 and FMA; the same CPU, its AVX-512 left unused).
# Each names the CPU and the commit. Every point is the least of ROUNDS runs: a neighbour only ever takes time away.
#
#   scripts/measure/builtin-table.sh [ROUNDS [MS_PER_POINT]]
#
# Run it on a machine with nothing else to do and a clean work tree; a round takes some minutes. Needs python3.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-5}
per_point=${2:-15}
grep -qw avx512ifma /proc/cpuinfo || { echo 'this CPU has no AVX-512 IFMA' >&2; exit 2; }
commit=$(git rev-parse --short HEAD)
[ -z "$(git status --porcelain -- crates)" ] || commit="$commit, changed"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cargo build --release --locked --quiet -p wattlock --example builtin_table
program=${CARGO_TARGET_DIR:-target}/release/examples/builtin_table
# AVX-512 F, DQ, IFMA, CD, BW and VL, as AWS-LC is told to leave them unused: bits of CPUID's leaf 7, EBX.
hidden=:~0xd0230000
for round in $(seq "$rounds"); do
    echo "round $round of $rounds" >&2
    "$program" avx512 "$commit" "$per_point" >"$work/avx512.$round" 2>"$work/progress"
    OPENSSL_ia32cap=$hidden "$program" avx2 "$commit" "$per_point" >"$work/avx2.$round" 2>"$work/progress"
done
python3 - "$work" "$rounds" <<'PYTHON'
import json, sys
work, rounds = sys.argv[1], int(sys.argv[2])
for name, place in (("avx512", "builtin.json"), ("avx2", "builtin-fma.json")):
    runs = [json.load(open(f"{work}/{name}.{round}")) for round in range(1, rounds + 1)]
    key = lambda point: (point["engine"], point["kind"], point["bytes"], point["batch"])
    least = {}
    for point in (point for run in runs for point in run["points"]):
        if key(point) not in least or point["ns"] < least[key(point)]["ns"]:
            least[key(point)] = point
    # A fit is that of the run that came nearest to a line.
    fits = {}
    for fit in (fit for run in runs for fit in run["fits"]):
        of = (fit["engine"], fit["kind"])
        if of not in fits or fit["error"] < fits[of]["error"]:
            fits[of] = fit
    table = runs[0]
    row = lambda value: json.dumps(value, separators=(",", ":"))
    head = {field: table[field] for field in ("format", "machine", "commit", "measured", "cores", "quick")}
    with open(f"crates/wattlock/src/{place}", "w") as out:
        out.write(row(head)[:-1] + ",\n\"points\":[\n" + ",\n".join(map(row, least.values())))
        out.write("\n],\n\"fits\":[\n" + ",\n".join(map(row, fits.values())) + "\n]}\n")
    print(f"{place}: {len(least)} points, {table['machine']['cpu']}, {table['commit']}")
PYTHON
