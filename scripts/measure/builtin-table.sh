#!/usr/bin/env bash
# Measures the two tables of costs that ship with Wattlock, on this machine, and puts them in place: builtin.txt (a CPU with
# AVX-512 IFMA, all kinds) and builtin-fma.txt (the kinds of lanes on AVX2 and FMA; the same CPU, its AVX-512 left unused).
# Each names the CPU and the commit. Every point is the least of ROUNDS runs: a neighbour only ever takes time away.
#
#   scripts/measure/builtin-table.sh [ROUNDS [MS_PER_POINT]]
#
# KINDS=sha3-256,shake128 measures these kinds alone and puts their lines into the tables that are there, below a line that
# names this CPU and commit. For those whose lanes do not multiply (hashes, ML-KEM) AVX-512 without IFMA is enough.
#
# Run it on a machine with nothing else to do and a clean work tree; a round takes some minutes. Needs python3.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-5}
per_point=${2:-15}
kinds=${KINDS:-}
needed=avx512ifma
[ -z "$kinds" ] || needed=avx512bw
grep -qw "$needed" /proc/cpuinfo || { echo "this CPU has no $needed" >&2; exit 2; }
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
    "$program" avx512 "$commit" "$per_point" ${kinds:+"$kinds"} >"$work/avx512.$round" 2>"$work/progress"
    OPENSSL_ia32cap=$hidden "$program" avx2 "$commit" "$per_point" ${kinds:+"$kinds"} >"$work/avx2.$round" 2>"$work/progress"
done
python3 - "$work" "$rounds" "$kinds" <<'PYTHON'
import json, sys
work, rounds, only = sys.argv[1], int(sys.argv[2]), [kind for kind in sys.argv[3].split(",") if kind]
for name, place in (("avx512", "builtin.txt"), ("avx2", "builtin-fma.txt")):
    runs = [json.load(open(f"{work}/{name}.{round}")) for round in range(1, rounds + 1)]
    key = lambda point: (point["engine"], point["kind"], point["bytes"], point["batch"])
    least = {}
    for point in (point for run in runs for point in run["points"]):
        if key(point) not in least or point["ns"] < least[key(point)]["ns"]:
            least[key(point)] = point
    # A profile without its points, and a line for each engine and kind: [requests*]bytes:nanoseconds. Programs have it in
    # them, so it is short.
    table = runs[0]
    head = {field: table[field] for field in ("format", "machine", "commit", "measured", "cores", "quick")}
    lines = {}
    for point in least.values():
        batch = "" if point["batch"] == 1 else f"{point['batch']}*"
        lines.setdefault((point["engine"], point["kind"]), []).append(f"{batch}{point['bytes']}:{point['ns']:g}")
    before = [json.dumps({**head, "points": [], "fits": []}, separators=(",", ":")) + "\n"]
    if only:
        with open(f"crates/wattlock/src/{place}") as shipped:
            before = [line for line in shipped if line.split(" ")[1] not in only]
        before.append(f"# {' '.join(only)}: {table['machine']['cpu']}, {table['commit']}\n")
    with open(f"crates/wattlock/src/{place}", "w") as out:
        out.writelines(before)
        out.writelines(" ".join([*of, *points]) + "\n" for of, points in lines.items())
    print(f"{place}: {len(least)} points, {table['machine']['cpu']}, {table['commit']}")
PYTHON
