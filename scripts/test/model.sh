#!/usr/bin/env bash
# What the inner loops of the AES kernels would take on a CPU that is not here, by llvm-mca's model of its ports: data in the first
# cache, no neighbours, no calls around the loop. A model, not a measurement: say so wherever its figures go.
#
#   scripts/test/model.sh [PATTERN]       functions by a regular expression; without one, the 512-bit kernels of AES and AWS-LC's GCM
#
# CPU=icelake-server is the model. WATTLOCK=PROGRAM looks into a program that is built already. Needs llvm-mca 15 or later
# (apt-get install llvm-19), nm, objdump and python3; x86-64 Linux only.
set -euo pipefail
cd "$(dirname "$0")/../.."
pattern=${1:-'aes::vaes512::(ctr|gcm|xts)::run|aes_gcm_(en|de)crypt_avx512'}
mca=
for name in llvm-mca llvm-mca-{30..15}; do
    if version=$("$name" --version 2>/dev/null | sed -n 's/.*LLVM version \([0-9]*\).*/\1/p') && [ "${version:-0}" -ge 15 ]; then
        mca=$name
        break
    fi
done
[ -n "$mca" ] || { echo 'missing: llvm-mca 15 or later (apt-get install llvm-19)' >&2; exit 2; }
program=${WATTLOCK:-}
if [ -z "$program" ]; then
    cargo build --release --locked --quiet -p wattlock-cli
    program=${CARGO_TARGET_DIR:-target}/release/wattlock
fi
python3 - "$program" "$pattern" "$mca" "${CPU:-icelake-server}" <<'PYTHON'
import re, subprocess, sys
program, pattern, mca, cpu = sys.argv[1:]

def output(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, check=True, **more).stdout

def instructions(start, size):
    text = output("objdump", "-d", "--no-show-raw-insn", f"--start-address={start}", f"--stop-address={start + size}", program)
    lines = re.findall(r"^\s*([0-9a-f]+):\s+(.*)", text, re.M)
    return [(int(place, 16), re.sub(r"\s*(#.*|<.*>)", "", line).strip()) for place, line in lines]

def loops(code):
    """The bodies of backward jumps that encrypt and have no such body within."""
    index, found = {place: number for number, (place, _) in enumerate(code)}, []
    for end, (place, line) in enumerate(code):
        jump = re.match(r"j\w+\s+([0-9a-f]+)$", line)
        begin = jump and index.get(int(jump[1], 16))
        if begin is not None and begin < end:
            body = [line for _, line in code[begin:end] if not re.match(r"j|nop|call|\(bad\)", line)]
            if sum(bool(re.match("vaes.*%[yz]mm", line)) for line in body) >= 16:
                found.append((begin, end, body))
    return [(begin, body) for begin, end, body in found
            if not any(begin <= b and e <= end and (b, e) != (begin, end) for b, e, _ in found)]

seen = set()
print(f"{cpu}, {output(mca, '--version').split('LLVM version')[1].split()[0]}")
print("function                        bytes  AES  products  instructions   cycles  bytes a cycle")
for line in output("nm", "-S", "-C", program).splitlines():
    fields = line.split(None, 3)
    if len(fields) < 4 or not re.search(pattern, fields[3]):
        continue
    for _, body in loops(instructions(int(fields[0], 16), int(fields[1], 16))):
        stored = {"z": 64, "y": 32, "x": 16}
        # What goes to other places than the stack is a result.
        size = sum(stored[m[1]] for m in (re.match(r"vmov\w+\s+%([xyz])mm\d+,(?!.*\(%rsp)\S*\(", line) for line in body) if m)
        aes, products = (sum(name in line for line in body) for name in ("vaes", "vpclmul"))
        text = output(mca, f"-mcpu={cpu}", "-iterations=200", input="\n".join(body))
        cycles = int(re.search(r"Total Cycles:\s+(\d+)", text)[1]) / 200
        name = re.sub(r".*::(\w+::\w+)::run", r"\1", fields[3])
        row = f"{name[-30:]:<30}{size:>7}{aes:>5}{products:>10}{len(body):>14}{cycles:>9.0f}{size / cycles:>15.2f}"
        # Other sizes are the ends of messages and what stands around the loops.
        if size >= 512 and size % 256 == 0 and row not in seen:
            seen.add(row)
            print(row)
PYTHON
