#!/usr/bin/env bash
# The main job on real input: calibrates, seals and opens it, checks that what comes back is what went in, and prints
# what was chosen and how fast it was against the alternatives. INPUT: a file or a folder, else one is made. A folder is
# served over HTTPS, too, by the same nginx with Wattlock and without.
set -euo pipefail
cd "$(dirname "$0")/.."
wattlock=$(realpath -m "${WATTLOCK:-${CARGO_TARGET_DIR:-target}/release/wattlock}")
input=${1:-}
served=

# In memory where there is room, so that the figures are the work's and not a disk's. Room is five times the input: itself
# if made or packed here, sealed, opened, and what the comparison with `cp` and age writes.
made=$((512 << 20))
bytes=$made
[ -z "$input" ] || [ ! -e "$input" ] || bytes=$(du -sbD "$input" | cut -f1)
base=/dev/shm
[ -d "$base" ] && [ "$(df --output=avail -B1 "$base" | tail -n 1)" -gt $((5 * bytes)) ] || base=${TMPDIR:-/tmp}
folder=$(mktemp -d "$base/wattlock-run.XXXXXX")
trap 'rm -rf "$folder"' EXIT
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

if [ -z "$input" ]; then
    say "No INPUT= given: making one of 512 MiB"
    head -c "$made" /dev/urandom >"$folder/input"
    input=$folder/input
elif [ -d "$input" ]; then
    served=$input
    say "INPUT is a folder: packing it first"
    tar -cf "$folder/input.tar" -C "$(dirname "$input")" "$(basename "$input")"
    input=$folder/input.tar
elif [ ! -f "$input" ]; then
    echo "INPUT=$input: neither a file nor a folder" >&2
    exit 1
fi
ls -lh "$input"

say "Quick calibration (a full one: wattlock calibrate --report out.html)"
export WATTLOCK_PROFILE=$folder/profile.json
"$wattlock" calibrate --quick --report "$folder/report.html" | tail -n 2

say "What this machine has, and what would be chosen for sealing"
"$wattlock" engines | sed -n '/^Engines/,/^Profile/p'
"$wattlock" engines --kind aes-256-gcm-seal

say "Seal, open, compare"
"$wattlock" keygen -o "$folder/key.txt"
recipient=$(sed -n 's/^# public key: //p' "$folder/key.txt")
"$wattlock" seal --stats -r "$recipient" -o "$folder/sealed" "$input"
"$wattlock" open --stats -i "$folder/key.txt" -o "$folder/opened" "$folder/sealed"
cmp "$input" "$folder/opened" && echo "what came back is what went in"
rm -f "$folder/opened"

say "A damaged file is refused and leaves nothing behind"
size=$(stat -c %s "$folder/sealed")
# Another byte than the one there, whatever that is.
byte=$(od -An -tu1 -j $((size / 2)) -N 1 "$folder/sealed")
printf "\\x$(printf %x $((byte ^ 1)))" | dd of="$folder/sealed" bs=1 seek=$((size / 2)) conv=notrunc status=none
if "$wattlock" open -i "$folder/key.txt" -o "$folder/opened" "$folder/sealed"; then
    echo "a damaged file was opened" >&2
    exit 1
fi
[ ! -e "$folder/opened" ]
rm -f "$folder/sealed"

say "Plain age files, in both directions with age itself"
"$wattlock" seal --format age -r "$recipient" -o "$folder/input.age" "$input"
age -d -i "$folder/key.txt" "$folder/input.age" | cmp - "$input" && echo "age opens ours"
age -r "$recipient" "$input" | "$wattlock" open -i "$folder/key.txt" -o - | cmp - "$input" && echo "we open age's"
rm -f "$folder/input.age"

say "Engines, and OpenSSL beside them"
"$wattlock" bench engines --size 1K,16K,64K

say "What the runtime adds to a call"
"$wattlock" bench dispatch

say "What starting costs"
"$wattlock" bench start

say "Whole files, with cp and age beside them"
"$wattlock" bench files --dir "$folder" --input "$input" --rounds 3

# nginx/build.sh puts it there; it cannot where there is no nginx-dev, and `make run` goes on without.
module=${CARGO_TARGET_DIR:-target}/nginx/ngx_http_wattlock_module.so
if [ -n "$served" ] && [ ! -e "$module" ]; then
    say "The folder is not served: no module for nginx was built (nginx/build.sh says why)"
elif [ -n "$served" ]; then
    say "The folder over HTTPS: nginx with Wattlock, and the same nginx without"
    "$wattlock" serve "$served" --port 0 --compare --seconds 3
    echo "to look at it: $wattlock serve $served"
fi
