#!/usr/bin/env bash
# `openssl speed` with the provider and without it, in turn, on one core: the rows of docs/measurements.
#
#   scripts/measure-openssl.sh [SECONDS] [ROUNDS]
#
# OPENSSL=PROGRAM measures another OpenSSL (its libraries by LD_LIBRARY_PATH; scripts/newer.sh in front sees to both),
# PROVIDER=MODULE another build of the provider, ALGORITHMS=LIST what the provider would not offer by itself, ROWS=REGEX
# only rows that match. Prints medians, their ratio, and the least that it should be beside this version of OpenSSL (-
# where nothing is said).
set -euo pipefail
cd "$(dirname "$0")/.."
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
echo "one core; median of $rounds rounds of $seconds s in turn"

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
# The floor of a row: beside OpenSSL before 3.5, and since, when it got faster itself.
case $("$openssl" version | cut -d' ' -f2) in
3.[0-4].*) floor() { echo "$1"; } ;;
*) floor() { echo "$2"; } ;;
esac
median() { sort -g | awk '{ v[NR] = $1 } END { print (NR ? v[int((NR + 1) / 2)] : 0) }'; }

row() {
    local name=$1 unit=$2 floor=$3 start=$4 column=$5
    shift 5
    [[ $name =~ ${ROWS:-.} ]] || return 0
    : >"$work/theirs"; : >"$work/ours"
    for _ in $(seq "$rounds"); do
        once without "$start" "$column" "$@" >>"$work/theirs"
        once with "$start" "$column" "$@" >>"$work/ours"
    done
    awk -v name="$name" -v unit="$unit" -v floor="$floor" -v a="$(median <"$work/theirs")" -v b="$(median <"$work/ours")" \
        'BEGIN { printf "%-34s %14s %14s %-5s %6.2f  %s\n", name, a, b, unit, (a > 0 ? b / a : 0), floor }'
}

printf '%-34s %14s %14s %-5s %6s  %s\n' row without with '' ratio floor
for size in 64:1.0 1024:2.0 16384:3.6; do
    row "aes-256-gcm, ${size%:*} B" kB/s "$(floor "${size#*:}" 0.97)" AES-256-GCM 1 -aead -evp aes-256-gcm -bytes "${size%:*}"
done
row "aes-128-ctr, 16384 B" kB/s 3 AES-128-CTR 1 -evp aes-128-ctr -bytes 16384
row "aes-256-xts, 16384 B" kB/s - AES-256-XTS 1 -evp aes-256-xts -bytes 16384
for size in 64 1024 16384; do
    row "aes-256-cbc, $size B" kB/s - AES-256-CBC 1 -evp aes-256-cbc -bytes "$size"
    row "aes-256-cbc decryption, $size B" kB/s - AES-256-CBC 1 -decrypt -evp aes-256-cbc -bytes "$size"
done
for key in 2048:3.0:3.0 3072:4.8:2.1 4096:5.4:2.2; do
    IFS=: read -r bits before since <<<"$key"
    row "rsa$bits sign" /s 0.97 "rsa $bits bits" 1 "rsa$bits"
    row "rsa$bits verify" /s 0.97 "rsa $bits bits" 2 "rsa$bits"
    for jobs in 1 2 4; do row "rsa$bits sign, $jobs jobs" /s 0.97 "rsa $bits bits" 1 -async_jobs "$jobs" "rsa$bits"; done
    row "rsa$bits sign, 64 jobs" /s "$(floor "$before" "$since")" "rsa $bits bits" 1 -async_jobs 64 "rsa$bits"
done
row "ecdsap384 sign" /s "$(floor 8 -)" "384 bits ecdsa" 1 ecdsap384
for jobs in 1 2 4; do
    row "ecdsap384 sign, $jobs jobs" /s "$(floor 0.97 -)" "384 bits ecdsa" 1 -async_jobs "$jobs" ecdsap384
done
row "ecdsap384 sign, 64 jobs" /s "$(floor 18 -)" "384 bits ecdsa" 1 -async_jobs 64 ecdsap384
row "ecdsap256 sign" /s 0.97 "256 bits ecdsa" 1 ecdsap256
for jobs in 1 2 4; do row "ecdsap256 sign, $jobs jobs" /s 0.97 "256 bits ecdsa" 1 -async_jobs "$jobs" ecdsap256; done
row "ecdsap256 sign, 64 jobs" /s "$(floor 2.4 0.97)" "256 bits ecdsa" 1 -async_jobs 64 ecdsap256
row "ecdhx25519" /s 0.97 "253 bits ecdh" 1 ecdhx25519
for jobs in 1 2 4; do row "ecdhx25519, $jobs jobs" /s 0.97 "253 bits ecdh" 1 -async_jobs "$jobs" ecdhx25519; done
row "ecdhx25519, 64 jobs" /s "$(floor 4.5 0.97)" "253 bits ecdh" 1 -async_jobs 64 ecdhx25519
