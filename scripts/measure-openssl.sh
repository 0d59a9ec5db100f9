#!/usr/bin/env bash
# `openssl speed` with the provider and without it, in turn, on one core.
#
#   scripts/measure-openssl.sh [--json FILE] [SECONDS] [ROUNDS]
#
# Prints the medians of both and of the ratios of each round, with the least and the most of these; `noise` where that
# spread is larger than the gain. --json writes them as docs/measurements/README.md says. OPENSSL=PROGRAM measures another
# OpenSSL (its libraries by LD_LIBRARY_PATH; scripts/newer.sh in front sees to both), PROVIDER=MODULE another build of the
# provider, ALGORITHMS=LIST what the provider would not offer by itself, ROWS=REGEX only rows that match.
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
json=
if [ "${1:-}" = --json ]; then
    json=$(cd "$here" && realpath -m "${2:?--json FILE}")
    shift 2
fi
seconds=${1:-1}
rounds=${2:-3}
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
${ALGORITHMS:+algorithms = $ALGORITHMS}
TEXT
: >"$work/without.cnf"

echo "$(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2- | sed 's/^ //'), $(nproc) cores, Linux $(uname -r); $("$openssl" version | cut -d'(' -f1)"
echo "one core; medians of $rounds rounds of $seconds s in turn"
: >"$work/rows"

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
# A row that one of the two has no figure for is left out.
row() {
    local name=$1 unit=$2 start=$3 column=$4
    shift 4
    [[ $name =~ ${ROWS:-.} ]] || return 0
    : >"$work/pairs"
    for _ in $(seq "$rounds"); do
        echo "$(once without "$start" "$column" "$@") $(once with "$start" "$column" "$@")" >>"$work/pairs"
    done
    awk -v name="$name" -v unit="$unit" -v OFS='\t' '
        function median(v, n,   i, j, t) {
            for (i = 2; i <= n; i++) for (j = i; j > 1 && v[j - 1] > v[j]; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
            return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
        }
        NF == 2 && $1 > 0 && $2 > 0 { n++; theirs[n] = $1; ours[n] = $2; ratio[n] = $2 / $1 }
        END { if (n == NR && n) { 
            m = median(ratio, n)
            gain = m < 1 ? -log(m) : log(m)
            known = n == 1 || log(ratio[n] / ratio[1]) <= gain
            print name, median(theirs, n), median(ours, n), unit, (known ? m : ""), ratio[1], ratio[n], n
        } }
    ' OFMT=%.8g "$work/pairs" | tee -a "$work/rows" |
        awk -F '\t' '{ printf "%-34s %14.6g %14.6g %-5s %6s  %.2f to %.2f\n", $1, $2, $3, $4, ($5 ? sprintf("%.2f", $5) : "noise"), $6, $7 }'
}

printf '%-34s %14s %14s %-5s %6s  %s\n' row without with '' ratio spread
for size in 64 1024 16384; do
    row "aes-256-gcm, $size B" kB/s AES-256-GCM 1 -aead -evp aes-256-gcm -bytes "$size"
done
row "aes-128-ctr, 16384 B" kB/s AES-128-CTR 1 -evp aes-128-ctr -bytes 16384
row "aes-256-xts, 16384 B" kB/s AES-256-XTS 1 -evp aes-256-xts -bytes 16384
for size in 64 1024 16384; do
    row "aes-256-cbc, $size B" kB/s AES-256-CBC 1 -evp aes-256-cbc -bytes "$size"
    row "aes-256-cbc decryption, $size B" kB/s AES-256-CBC 1 -decrypt -evp aes-256-cbc -bytes "$size"
done
# An operation without jobs and in 1 to 64 of them.
alone_and_in_jobs() {
    local name=$1 start=$2 algorithm=$3
    row "$name" /s "$start" 1 "$algorithm"
    for jobs in 1 2 4 64; do row "$name, $jobs jobs" /s "$start" 1 -async_jobs "$jobs" "$algorithm"; done
}
for bits in 2048 3072 4096; do
    alone_and_in_jobs "rsa$bits sign" "rsa $bits bits" "rsa$bits"
    row "rsa$bits verify" /s "rsa $bits bits" 2 "rsa$bits"
done
alone_and_in_jobs "ecdsap384 sign" "384 bits ecdsa" ecdsap384
alone_and_in_jobs "ecdsap256 sign" "256 bits ecdsa" ecdsap256
alone_and_in_jobs ecdhx25519 "253 bits ecdh" ecdhx25519

[ -s "$work/rows" ] || { echo "no row has a figure" >&2; exit 1; }
[ -n "$json" ] || exit 0
asked="${ALGORITHMS:+ALGORITHMS=$ALGORITHMS }${ROWS:+ROWS='$ROWS' }scripts/measure-openssl.sh $seconds $rounds"
commit=$(git rev-parse --short HEAD)$([ -z "$(git status --porcelain --untracked-files=no)" ] || echo +)
python3 - "$work/rows" "$asked" "$commit" "$("$openssl" version | cut -d' ' -f2)" >"$work/json" <<'PYTHON'
import datetime, json, os, platform, re, sys
path, command, commit, openssl = sys.argv[1:]
cpu = dict(re.findall(r"(?m)^(.*?)\s*: (.*)$", open("/proc/cpuinfo").read().split("\n\n")[0]))
flags, vendor = cpu.get("flags", "").split(), cpu.get("vendor_id", "")
family, model = int(cpu.get("cpu family", 0)), int(cpu.get("model", 0))
wide = {"avx512f", "avx512bw", "avx512vl", "avx512ifma"} <= set(flags)
maker = "avx512-intel" if vendor == "GenuineIntel" else "avx512-amd"
# The makers' names, as `wattlock bench --json` has them; performance.md needs to tell AMD's apart.
names = {("AuthenticAMD", 26): "Zen 5", ("AuthenticAMD", 25): "Zen 4" if wide else "Zen 3"}
intel = {0x8f: "Sapphire Rapids", 0xcf: "Emerald Rapids", 0xad: "Granite Rapids", 0xae: "Granite Rapids"}
rows = []
for line in open(path):
    name, theirs, ours, unit, ratio, low, high, rounds = line.rstrip("\n").split("\t")
    params = {}
    if found := re.fullmatch(r"(.*), (\d+) (B|jobs)", name):
        name, params = found[1], {"bytes" if found[3] == "B" else "jobs": int(found[2])}
    scale = 1000 if unit == "kB/s" else 1
    rows.append({"bench": "openssl", "row": name, "params": params, "against": f"OpenSSL {openssl}",
                 "unit": "B/s" if unit == "kB/s" else "operations/s", "ours": float(ours) * scale, "theirs": float(theirs) * scale,
                 "ratio": float(ratio) if ratio else None, "low": float(low), "high": float(high), "by": "cpu", "rounds": int(rounds)})
json.dump({"schema": 1, "command": command, "commit": commit, "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
           "cpu": {"model": cpu.get("model name", ""), "name": names.get((vendor, family), intel.get(model, "") if family == 6 else ""),
                   "class": maker if wide else "avx2" if {"avx2", "fma"} <= set(flags) else "none", "cores": os.cpu_count()},
           "kernel": platform.release(), "peers": {"openssl": openssl}, "rows": rows}, sys.stdout, indent=1)
print()
PYTHON
cp "$work/json" "$json"
