#!/usr/bin/env bash
# The main job, shown: a file sealed and opened beside `cp` and `age`, a pipe sealed, files compressed, an encrypted
# folder mounted, a Kafka topic sealed (if the bridge and Java are there), a web site served by nginx with Wattlock and
# without, what was chosen and why, a damaged file refused.
# Ends with some lines and a page: target/wattlock-run.html.
#
#   scripts/setup/run.sh [INPUT]      a file, or a folder (packed for the first part, served in the second); else both are
#                               made
#
# Some three minutes on two cores. Long tables are `make bench`'s.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}
wattlock=$(realpath -m "${WATTLOCK:-$target/release/wattlock}")
page=$(realpath -m "$target/wattlock-run.html")
input=${1:-}
made=$((256 << 20))
fail() { echo "make run: $*" >&2; exit 1; }
bold='' plain=''
[ ! -t 1 ] || [ -n "${NO_COLOR:-}" ] || { bold=$'\033[1m' plain=$'\033[0m'; }
step() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
have() { PATH=$PATH:/usr/sbin command -v "$1" >/dev/null; }

[ -x "$wattlock" ] || fail "$wattlock is not there: make build"
bytes=$made
if [ -n "$input" ]; then
    [ -f "$input" ] || [ -d "$input" ] || fail "INPUT=$input: neither a file nor a folder"
    [ -r "$input" ] || fail "INPUT=$input: cannot be read"
    bytes=$(du -sbD -- "$input" | cut -f1)
    [ "$bytes" -gt 0 ] || fail "INPUT=$input: empty"
fi

# In memory where there is room, so that the figures are the work's and not a disk's. Room is five times the input:
# itself if made or packed here, sealed, opened, and what the comparison with `cp` and age writes.
free() { df --output=avail -B1 "$1" 2>/dev/null | tail -n 1; }
memory=$(awk '/^MemAvailable:/ { printf "%.0f", $2 * 1024 }' /proc/meminfo)
base=/dev/shm
if [ ! -w "$base" ] || [ "$(free "$base")" -lt $((5 * bytes)) ] || [ "${memory:-0}" -lt $((6 * bytes)) ]; then
    base=${TMPDIR:-/tmp}
    [ "$(free "$base")" -ge $((5 * bytes)) ] ||
        fail "no room: $((5 * bytes >> 20)) MiB are needed in /dev/shm or in $base (TMPDIR=FOLDER names another)"
fi
folder=$(mktemp -d "$base/wattlock-run.XXXXXX")
clear=$folder/clear
cleanup() {
    [ ! -d "$clear" ] || "$wattlock" umount --lazy "$clear" 2>/dev/null || true
    rm -rf --one-file-system "$folder"
}
trap cleanup EXIT
export WATTLOCK_PROFILE=$folder/profile.json
notes=()
note() { notes+=(--note "$*"); echo "$*"; }

# A web site as small ones are: a page, its style, its script, a picture.
make_site() {
    local lines=$1/lines
    mkdir "$1"
    seq -f 'Line %.0f of a page that somebody wrote for somebody else to read.' 400 >"$lines"
    { echo '<!doctype html><link rel="stylesheet" href="style.css"><script src="app.js"></script><img src="picture.jpg">'
      sed 's,.*,<p>&</p>,' "$lines"; } >"$1/index.html"
    sed 's,Line \([0-9]*\).*,.c\1 { margin: \1px; padding: 0; color: #123456 },' "$lines" >"$1/style.css"
    for _ in 1 2 3 4; do sed 's,Line \([0-9]*\) \(.*\),function f\1() { return "\2"; },' "$lines"; done >"$1/app.js"
    head -c 300000 /dev/urandom >"$1/picture.jpg"
    rm "$lines"
}

step "[1/7] Input"
site=$folder/site
if [ -z "$input" ]; then
    head -c "$made" /dev/urandom >"$folder/input"
    input=$folder/input
    echo "made: a file of $((made >> 20)) MiB (INPUT= takes yours)"
elif [ -d "$input" ]; then
    site=$(realpath -- "$input")
    echo "packing $input"
    tar -cf "$folder/input.tar" -C "$(dirname "$site")" "$(basename "$site")"
    input=$folder/input.tar
fi
if [ "$site" = "$folder/site" ]; then
    make_site "$site"
    echo "made: a web site of $(du -sbh "$site" | cut -f1), $(ls "$site" | wc -l) files"
fi

step "[2/7] What each engine costs here (some seconds; all of it: wattlock calibrate --report FILE)"
"$wattlock" calibrate --quick >"$folder/log" || { cat "$folder/log" >&2; exit 1; }
"$wattlock" engines --kind aes-256-gcm-seal

step "[3/7] Sealed, opened, damaged"
"$wattlock" keygen -o "$folder/key.txt" 2>"$folder/log" >&2 || { cat "$folder/log" >&2; exit 1; }
recipient=$(sed -n 's/^# public key: //p' "$folder/key.txt")
"$wattlock" seal -r "$recipient" -o "$folder/sealed" "$input"
"$wattlock" open -i "$folder/key.txt" -o "$folder/opened" "$folder/sealed"
cmp "$input" "$folder/opened"
note "a file that was sealed and opened is the file that it was, byte by byte"
rm -f "$folder/opened"
size=$(stat -c %s "$folder/sealed")
# Another byte than the one there, whatever that is.
byte=$(od -An -tu1 -j $((size / 2)) -N 1 "$folder/sealed")
printf "\\x$(printf %x $((byte ^ 1)))" | dd of="$folder/sealed" bs=1 seek=$((size / 2)) conv=notrunc status=none
code=0
"$wattlock" open -i "$folder/key.txt" -o "$folder/opened" "$folder/sealed" || code=$?
[ "$code" != 0 ] || fail "a damaged file was opened"
[ ! -e "$folder/opened" ] || fail "a damaged file left something behind"
note "a file with one changed bit: refused (exit code $code), and nothing of it was written"
rm -f "$folder/sealed"
if have age; then
    "$wattlock" seal --format age -r "$recipient" -o "$folder/input.age" "$input"
    age -d -i "$folder/key.txt" "$folder/input.age" | cmp - "$input"
    age -r "$recipient" "$input" | "$wattlock" open -i "$folder/key.txt" -o - | cmp - "$input"
    note "age opens what Wattlock seals in age's format, and Wattlock opens what age encrypts"
    rm -f "$folder/input.age"
else
    echo "no age here: the comparison with it is left out (apt-get install age)"
fi

step "[4/7] The same work by cp and age, in turn"
"$wattlock" bench files --dir "$folder" --input "$input" --rounds 5 --json "$folder/files.json" >"$folder/log"

step "[5/7] A pipe, compressed files, an encrypted folder, a Kafka topic"
seq 100000 >"$folder/lines"
"$wattlock" stream seal -r "$recipient" --framing lines <"$folder/lines" |
    "$wattlock" stream open -i "$folder/key.txt" | cmp - "$folder/lines"
note "100,000 lines through a sealed stream, from one process to another, came out as they went in"
"$wattlock" gzip -k "$folder/lines"
gzip -dc "$folder/lines.gz" | cmp - "$folder/lines"
gzip -c "$folder/lines" | "$wattlock" gzip -dc | cmp - "$folder/lines"
note "gzip reads what wattlock gzip writes, and the other way round:" \
    "$(stat -c %s "$folder/lines") bytes, compressed $(stat -c %s "$folder/lines.gz")"
export WATTLOCK_STATE_DIR=$folder/state
"$wattlock" fs init -r "$recipient" "$folder/volume" 2>"$folder/log"
mkdir "$clear"
code=0
"$wattlock" mount -i "$folder/key.txt" "$folder/volume" "$clear" 2>"$folder/log" || code=$?
case $code in
0)
    cp "$folder/lines" "$clear/lines"
    cmp "$folder/lines" "$clear/lines"
    "$wattlock" umount "$clear"
    "$wattlock" fs cat -i "$folder/key.txt" "$folder/volume" lines | cmp - "$folder/lines"
    "$wattlock" fs check -i "$folder/key.txt" "$folder/volume"
    note "an encrypted folder was mounted, written to and unmounted; the file is whole without a mount, too"
    ;;
# 88: no FUSE; 89: the system refused, as containers do.
88 | 89) note "not shown: an encrypted folder mounted ($(sed 's/^wattlock: //' "$folder/log"))" ;;
*) fail "mounting an encrypted folder: exit code $code, $(cat "$folder/log")" ;;
esac

mkdir "$folder/kafka"
code=0
scripts/setup/run-kafka.sh "$wattlock" "$folder/kafka" "$folder/key.txt" >"$folder/kafka/shown" || code=$?
case $code in
0) note "$(cat "$folder/kafka/shown")" ;;
3) note "not shown: a Kafka topic sealed: $(cat "$folder/kafka/shown")" ;;
*) fail "a Kafka topic sealed: exit code $code" ;;
esac

step "[6/7] The site over HTTPS: nginx without Wattlock, and the same nginx with it"
records=("$folder/files.json")
status=0
module=$target/nginx/ngx_http_wattlock_module.so
if ! have nginx; then
    note "not shown: the site over HTTPS, since nginx is not installed"
elif [ ! -e "$module" ] && [ -z "${WATTLOCK_NGINX:-}" ]; then
    note "not shown: the site over HTTPS, since no module for nginx was built (nginx/build.sh says why)"
elif "$wattlock" serve "$site" --port 0 --compare --seconds 4 --json "$folder/serve.json" >"$folder/log"; then
    records+=("$folder/serve.json")
else
    status=1
    note "FAILED: the site over HTTPS (the line above says why)"
fi

step "[7/7] Joules, and the page"
joules() {
    "$wattlock" energy --json --output "$folder/$1.json" --bytes "$(stat -Lc %s "$input")" -- "${@:2}"
    records+=("$folder/$1.json")
}
joules joules-seal "$wattlock" seal -q -r "$recipient" -o /dev/null "$input"
! have age || joules joules-age age -r "$recipient" -o /dev/null "$input"
echo
kept=docs/research/reproduced.html
see=(--see 'All documents' "$(realpath --relative-to="$target" docs/README.md)")
if [ -e "$kept" ]; then
    see+=(--see 'The experiments of five papers, reproduced on emulated devices' "$(realpath --relative-to="$target" "$kept")")
fi
"$wattlock" report -o "$page" "${notes[@]}" "${see[@]}" "${records[@]}"
exit "$status"
