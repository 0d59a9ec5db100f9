#!/usr/bin/env bash
# `openssl speed` with the provider and without it, in turn, on one core: the rows of docs/measurements.
#
#   scripts/measure/measure-openssl.sh [--json FILE] [SECONDS] [ROUNDS]
#
# OPENSSL=PROGRAM measures another OpenSSL (its libraries by LD_LIBRARY_PATH; scripts/test/newer.sh in front sees to both),
# PROVIDER=MODULE another build of the provider, ALGORITHMS=LIST what the provider would not offer by itself, ROWS=REGEX
# only rows that match. `openssl speed` counts the process's own processor time. Prints both figures of the round with the
# median gain, the gain and its spread; --json also writes them to a file, as the benches of the command line do
# (which takes python3).
set -euo pipefail
cd "$(dirname "$0")/../.."
json=
if [ "${1:-}" = --json ]; then
    json=${2:?--json FILE}
    shift 2
    command -v python3 >/dev/null || { echo "--json takes python3, which is not here" >&2; exit 1; }
    [ "$json" = - ] || : >>"$json"
fi
seconds=${1:-1}
rounds=${2:-5}
openssl=${OPENSSL:-openssl}
module=$(realpath "${PROVIDER:-${CARGO_TARGET_DIR:-target}/release/libwattlock_provider.so}")
[ -e "$module" ] || cargo build --release --locked -p wattlock-provider
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/with.cnf" <<TEXT
openssl_conf = init
[init]
providers = providers
alg_section = properties
[properties]
default_properties = ?provider=wattlock
[providers]
default = default_provider
wattlock = wattlock_provider
[default_provider]
activate = 1
[wattlock_provider]
module = $module
activate = 1
pause = jobs
${ALGORITHMS:+algorithms = $ALGORITHMS}
TEXT
: >"$work/without.cnf"

echo "$(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2- | sed 's/^ //'), $(nproc) cores, Linux $(uname -r); $("$openssl" version | cut -d'(' -f1)"
echo "one core; $rounds rounds of $seconds s in turn"

# Rate number $column (1 is the first) of the last line of `openssl speed` that begins with $start; times end in `s`.
once() {
    local config=$1 start=$2 column=$3
    shift 3
    OPENSSL_CONF=$work/$config.cnf taskset -c 0 "$openssl" speed -seconds "$seconds" "$@" 2>/dev/null |
        { grep -E "^ *${start// / +}" || true; } | tail -n 1 | awk -v column="$column" '
            { from = 1; n = 0
              for (i = 1; i <= NF; i++) if ($i == "bits") from = i
              for (i = from + 1; i <= NF; i++) if ($i ~ /^[0-9.]+k?$/ && ++n == column) { sub(/k$/, "", $i); print $i } }'
}

# The gain of paired rounds by the rules of `wattlock bench` (crates/wattlock-bench/src/pair.rs): the round with
# the median ratio (of an even number the worse of the two in the middle); the extremes, of nine rounds or more the
# quartiles; a ratio only if the interval does not contain 1. Reads lines "theirs ours", prints theirs, ours, the ratio or
# `even`, low, high, rounds.
gain() {
    awk '$1 > 0 && $2 > 0 { print $2 / $1, $1, $2 }' | sort -g | awk '
        { ratio[NR] = $1; theirs[NR] = $2; ours[NR] = $3 }
        END { if (!NR) { print "- - none - - 0"; exit }
              middle = int((NR + 1) / 2); skip = NR < 9 ? 0 : int(NR / 4); low = ratio[1 + skip]; high = ratio[NR - skip]
              told = NR == 1 || low > 1 || high < 1 ? sprintf("%.6g", ratio[middle]) : "even"
              print theirs[middle], ours[middle], told, low, high, NR }'
}

row() {
    local name=$1 unit=$2 start=$3 column=$4
    shift 4
    [[ $name =~ ${ROWS:-.} ]] || return 0
    : >"$work/rounds"
    for _ in $(seq "$rounds"); do
        echo "$(once without "$start" "$column" "$@") $(once with "$start" "$column" "$@")" >>"$work/rounds"
    done
    gain <"$work/rounds" >"$work/gain"
    awk -v name="$name" -v unit="$unit" '{
        if ($3 == "none") told = "-"
        else if ($3 == "even") told = sprintf("no difference (%.2f to %.2f)", $4, $5)
        else if ($4 == $5) told = sprintf("%.2f times", $3)
        else if ($4 > 1) told = sprintf("at least %.2f times (median %.2f)", $4, $3)
        else told = sprintf("at most %.2f times (median %.2f)", $5, $3)
        printf "%-34s %14s %14s %-5s %s\n", name, $1, $2, unit, told }' "$work/gain"
    printf '%s\t%s\t%s\n' "$name" "$unit" "$(tr ' ' '\t' <"$work/gain")" >>"$work/table"
}

: >"$work/table"
printf '%-34s %14s %14s %-5s %s\n' row without with '' gain
for size in 64 1024 16384; do
    row "aes-256-gcm, $size B" kB/s AES-256-GCM 1 -aead -evp aes-256-gcm -bytes "$size"
done
row "aes-128-ctr, 16384 B" kB/s AES-128-CTR 1 -evp aes-128-ctr -bytes 16384
row "aes-256-xts, 16384 B" kB/s AES-256-XTS 1 -evp aes-256-xts -bytes 16384
for size in 64 1024 16384; do
    row "aes-256-cbc, $size B" kB/s AES-256-CBC 1 -evp aes-256-cbc -bytes "$size"
    row "aes-256-cbc decryption, $size B" kB/s AES-256-CBC 1 -decrypt -evp aes-256-cbc -bytes "$size"
done
for bits in 2048 3072 4096; do
    row "rsa$bits sign" /s "rsa $bits bits" 1 "rsa$bits"
    row "rsa$bits verify" /s "rsa $bits bits" 2 "rsa$bits"
    for jobs in 1 2 4; do row "rsa$bits sign, $jobs jobs" /s "rsa $bits bits" 1 -async_jobs "$jobs" "rsa$bits"; done
    row "rsa$bits sign, 64 jobs" /s "rsa $bits bits" 1 -async_jobs 64 "rsa$bits"
done
row "ecdsap384 sign" /s "384 bits ecdsa" 1 ecdsap384
for jobs in 1 2 4; do
    row "ecdsap384 sign, $jobs jobs" /s "384 bits ecdsa" 1 -async_jobs "$jobs" ecdsap384
done
row "ecdsap384 sign, 64 jobs" /s "384 bits ecdsa" 1 -async_jobs 64 ecdsap384
row "ecdsap256 sign" /s "256 bits ecdsa" 1 ecdsap256
for jobs in 1 2 4; do row "ecdsap256 sign, $jobs jobs" /s "256 bits ecdsa" 1 -async_jobs "$jobs" ecdsap256; done
row "ecdsap256 sign, 64 jobs" /s "256 bits ecdsa" 1 -async_jobs 64 ecdsap256
row "ecdhx25519" /s "253 bits ecdh" 1 ecdhx25519
for jobs in 1 2 4; do row "ecdhx25519, $jobs jobs" /s "253 bits ecdh" 1 -async_jobs "$jobs" ecdhx25519; done
row "ecdhx25519, 64 jobs" /s "253 bits ecdh" 1 -async_jobs 64 ecdhx25519

[ -n "$json" ] || exit 0
# What is said of the machine is what the command line says of it, where that is built.
wattlock=${WATTLOCK:-${CARGO_TARGET_DIR:-target}/release/wattlock}
"$wattlock" bench engines --kind sha-256 --size 1 --rounds 1 --no-openssl --no-joules --json - \
    >"$work/machine" 2>/dev/null || echo '{}' >"$work/machine"
commit=unknown
if name=$(git rev-parse --short HEAD 2>/dev/null); then
    commit=$name$([ -z "$(git status --porcelain -- crates nginx Cargo.toml Cargo.lock)" ] || echo +)
fi
python3 - "$work/table" "$work/machine" "$commit" "$("$openssl" version)" \
    "scripts/measure/measure-openssl.sh $seconds $rounds" >"$work/json" <<'PYTHON'
import datetime, json, os, re, sys
table, machine, commit, openssl, command = sys.argv[1:]
known, info = json.load(open(machine)), open("/proc/cpuinfo").read()
field = lambda name: (re.search(rf"^{name}\s*: (.*)$", info, re.M) or [0, ""])[1]
maker = "intel" if field("vendor_id") == "GenuineIntel" else "amd"
flags = field("flags").split()
kind = f"avx512-{maker}" if "avx512ifma" in flags else "avx2" if {"avx2", "fma"} <= set(flags) else "none"
version = openssl.split()[1]
cpu = known.get("cpu") or {"model": field("model name"), "name": "", "class": kind, "cores": os.cpu_count()}
rows = []
for line in open(table):
    name, unit, theirs, ours, ratio, low, high, rounds = line.rstrip("\n").split("\t")
    if theirs == "-":
        continue
    place = re.fullmatch(r"(.*), (\d+) (B|jobs)", name)
    params = {{"B": "bytes", "jobs": "jobs"}[place[3]]: int(place[2])} if place else {}
    scale, unit = (1000, "B/s") if unit == "kB/s" else (1, "operations/s")
    rows.append({"bench": "openssl", "row": place[1] if place else name, "params": params,
                 "against": f"OpenSSL {version}", "unit": unit,
                 "ours": float(ours) * scale, "theirs": float(theirs) * scale, "ratio": None if ratio == "even" else float(ratio),
                 "low": float(low), "high": float(high), "by": "cpu", "rounds": int(rounds)})
json.dump({"schema": 1, "command": command, "commit": commit, "date": datetime.date.today().isoformat(), "cpu": cpu,
           "kernel": os.uname().release, "peers": {"openssl": version}, "rows": rows}, sys.stdout, indent=2)
print()
PYTHON
if [ "$json" = - ]; then cat "$work/json"; else cat "$work/json" >"$json"; fi
