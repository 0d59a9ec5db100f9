#!/usr/bin/env bash
# The instructions that one full pass of each kind of lanes executes on this CPU, by class: Lanes::pass from its first to its
# return, so the conversions, checks and wiping as well as the kernel. `wattlock bench lanes` does the pass, single steps count it
# (lanes-instructions.c), objdump names what was counted. A warm pass: the one or two before it are not counted. Of an operation of
# two kinds (-generate-derive), the first kind alone.
#
#   scripts/measure/lanes-instructions.sh [OPERATION]...     names as in `wattlock bench lanes`; without any, what it does here
#
# A step took 10 to 40 microseconds in the virtual machine where this was written (X25519: seconds to three minutes), so
# RSA-2048, with tens of millions of instructions, takes many minutes, and RSA-4096 hours. WATTLOCK=PROGRAM counts in a
# program that is built already. EMULATED=1 steps through it on the emulated CPU with AVX-512 (avx512.sh), where the pass is one of
# AVX-512's: P-256 and X25519 take minutes there, one operation a call (with several the machine stood still after the first); P-384 was not
# seen to end, RSA would take hours. Needs cc, nm, objdump and python3; x86-64 Linux only. Valgrind would be quicker, but it knows no AVX-512.
set -euo pipefail
cd "$(dirname "$0")/../.."
program=${WATTLOCK:-}
if [ -z "$program" ]; then
    cargo build --release --locked --quiet -p wattlock-bench
    program=${CARGO_TARGET_DIR:-target}/release/wattlock-bench
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cc -O2 -Wall -o "$scratch/count" scripts/measure/lanes-instructions.c
# The words after `wattlock` that do the pass, and how many passes come before the one that counts: the first of each kind warms up.
words() { echo "bench lanes --operation $1 --no-openssl --no-runtime --turns 1"; }
before() { case $1 in *-generate-derive) echo 2 ;; *) echo 1 ;; esac; }
address=$(nm -C "$program" | awk '$3 == "wattlock_cpu::lanes::Lanes::pass" { print $1 }')
[ -n "$address" ] || { echo "no Lanes::pass in $program" >&2; exit 1; }
if [ $# = 0 ]; then
    set -- rsa-2048-private rsa-3072-private rsa-4096-private ecdsa-p256-sign p256-derive p256-generate-derive x25519-derive \
        x25519-generate-derive ecdsa-p384-sign p384-derive p384-generate-derive
fi
if [ -n "${EMULATED:-}" ]; then
    for operation; do
        echo "if /tests/01-count $address $(before "$operation") /tests/02-wattlock $(words "$operation") >/tmp/counts 2>/tmp/error
            then echo 'counts of $operation'; busybox gzip -c /tmp/counts | busybox base64; echo; echo 'end of counts'
            else echo 'not counted: $operation'; busybox tail -n 1 /tmp/error; fi"
    done >"$scratch/script"
    cp "$program" "$scratch/wattlock"
    # Its exit code says whether the machine came up; what could not be counted is said below.
    LIMIT=${LIMIT:-7200} scripts/test/avx512.sh -b "$scratch/count" -b "$scratch/wattlock" -r "$scratch/script" >"$scratch/screen"
fi
# The counts of an operation, to $scratch/counts.
counted() {
    if [ -n "${EMULATED:-}" ]; then
        sed -n "/^counts of $1\$/,/^end of counts/p" "$scratch/screen" | sed '1d;$d' | base64 -d -i | gunzip >"$scratch/counts"
    else
        # shellcheck disable=SC2046 # words
        "$scratch/count" "$address" "$(before "$1")" "$program" $(words "$1") >"$scratch/counts"
    fi
}
echo "operation                     all  multiply-adds  other vector  vector moves        scalar  memory operands"
for operation; do
    name=$operation
    case $operation in *-generate-derive) name=${operation%-derive} ;; esac
    if ! counted "$operation" 2>"$scratch/error"; then
        echo "$operation: not counted ($(tail -n 1 "$scratch/error")); does this CPU do it?"
        continue
    fi
    grep '^[0-9a-f]* [0-9]*$' "$scratch/counts" >"$scratch/own"
    grep '^elsewhere' "$scratch/counts" >"$scratch/elsewhere"
    python3 - "$name" "$program" "$scratch/own" "$scratch/elsewhere" <<'PYTHON'
import re, subprocess, sys
name, program, own, elsewhere = sys.argv[1:]
counts = {int(place, 16): int(count) for place, count in map(str.split, open(own))}
# Pieces of what was executed, since the program is large: a gap of more than a page begins another.
places, pieces = sorted(counts), []
for place in places:
    if pieces and place - pieces[-1][1] < 4096:
        pieces[-1][1] = place
    else:
        pieces.append([place, place])
classes = dict.fromkeys(("multiply", "vector", "move", "scalar"), 0)
memory = seen = 0
for low, high in pieces:
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", f"--start-address={low}", f"--stop-address={high + 1}",
                           program], capture_output=True, text=True, check=True).stdout
    for line in text.splitlines():
        match = re.match(r"\s*([0-9a-f]+):\s+(?:\{\w+\} )?(\S+)\s*(.*)", line)
        count = match and counts.pop(int(match[1], 16), 0)
        if not count:
            continue
        mnemonic, operands = match[2], match[3].split("#")[0]
        touches = "(" in operands and mnemonic not in ("lea", "nop", "nopw", "nopl")
        if re.match(r"vf(n?m)(add|sub)|vpmadd52", mnemonic):
            kind = "multiply"
        elif re.match(r"vmov|vp?broadcast", mnemonic):
            kind = "move"
        elif mnemonic.startswith("v") or re.search(r"%[xyz]mm|%k[0-7]", operands):
            kind = "vector"
        else:
            kind = "scalar"
        classes[kind] += count
        memory += count if touches else 0
        seen += count
if counts:
    sys.exit(f"{name}: {len(counts)} addresses that objdump does not know")
other = int(open(elsewhere).read().split()[1])
columns = (seen + other, classes["multiply"], classes["vector"], classes["move"], classes["scalar"] + other, memory)
print(f"{name:<20}" + "".join(f"{value:>{width},}" for value, width in zip(columns, (13, 15, 14, 14, 14, 17))), flush=True)
PYTHON
done
