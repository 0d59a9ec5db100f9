#!/usr/bin/env bash
# The figures of a machine, by one command: a column for docs/measurements/performance.md, from a CPU that we have not.
#
#   scripts/measure/machine.sh [FOLDER]     everything, into FOLDER (target/machine); some 50 minutes, the build apart: that
#                                           is counted by rounds, as it was not yet run in full
#   QUICK=1 scripts/measure/machine.sh ...  each bench shortly, whatever else runs: to see that all of them can, never for
#                                           figures; about a minute
#
# Builds by `make build`, or takes WATTLOCK=PROGRAM with its provider and module beside it, as a release has them. Two
# cores, and nothing else that runs: a bench begins when the machine has been calm for ten seconds, or is left out after
# ten minutes. Each has a time limit. A bench whose file is in FOLDER already is not run again, so the same command goes
# on after ^C, or after what a bench lacks was installed. BENCHES="https files" chooses.
#
# Afterwards FOLDER has a file for each bench, `machine.txt` about the machine, and `column.md`, which is the machine's
# column of the tables. What FOLDER says of the machine are the CPU's model, the kernel and versions: no names, no addresses.
set -euo pipefail
fail() { echo "machine: $*" >&2; exit 1; }
cd "$(dirname "$0")/../.."
folder=$(realpath -m "${1:-${CARGO_TARGET_DIR:-target}/machine}")
quick=${QUICK:-}
[ "$(uname -m)" = x86_64 ] || fail "$(uname -m): Wattlock runs on x86-64 only"
command -v python3 >/dev/null || fail "python3 is missing"
[ "$(nproc)" -ge 2 ] || fail "one core: server and client need one each"

# The twelve rows that sites serve.
sites=
for certificate in ecdsa256 rsa2048 both; do
    for group in x25519mlkem768 x25519; do
        for more in '' -resumed; do sites+=${sites:+,}tls13-$certificate-$group$more; done
    done
done

# Of each bench: minutes that it takes on two cores, and what it needs.
minutes() {
    case $1 in https) echo 8 ;; openssl) echo 9 ;; compress) echo 10 ;; fs) echo 6 ;; engines) echo 5 ;; *) echo 3 ;; esac
}
lacks() {
    local missing=() name
    need() { for name; do PATH=$PATH:/usr/sbin:/sbin command -v "$name" >/dev/null || missing+=("$name"); done; }
    case $1 in
    https) need nginx openssl; [ -e "$module" ] || missing+=("the module for nginx (nginx/build.sh)") ;;
    openssl) need openssl ;;
    files) need age ;;
    compress) need nginx pigz; [ -e "$module" ] || missing+=("the module for nginx (nginx/build.sh)") ;;
    fs) need gocryptfs fusermount3; [ -r /dev/fuse ] && [ -w /dev/fuse ] || missing+=(/dev/fuse) ;;
    esac
    [ ${#missing[@]} = 0 ] || (IFS=,; echo "${missing[*]}" | sed 's/,/, /g')
}
# A bench's command: as in docs/measurements, or as short as can be.
command_of() {
    case ${quick:+quick-}$1 in
    https) bench=(https --engines --rounds 9 --seconds 0.6 --rows "$sites") ;;
    files) bench=(files --size 1G) ;;
    sums) bench=(engines --batch) ;;
    fs) bench=(fs --size 128M) ;;
    engines | lanes | compress | stream) bench=("$1") ;;
    quick-https) bench=(https --rounds 1 --seconds 0.2 --rows tls13-ecdsa256-x25519) ;;
    quick-files) bench=(files --size 64M --rounds 1) ;;
    quick-sums) bench=(engines --batch --kind sha-256 --rounds 1) ;;
    quick-engines) bench=(engines --kind aes-256-gcm-seal --rounds 1) ;;
    quick-lanes) bench=(lanes --operation x25519 --turns 1) ;;
    quick-compress) bench=(compress --size 16K --level 1 --rounds 1 --file-size 4M --seconds 0.2) ;;
    quick-fs) bench=(fs --size 8M --rounds 1) ;;
    quick-stream) bench=(stream --velocity 500us --messages 50) ;;
    esac
}
all="https files sums compress fs stream engines lanes openssl"
chosen=${BENCHES:-$all}
for one in $chosen; do [[ " $all " = *" $one "* ]] || fail "no bench $one: there are $all"; done

if [ -z "${WATTLOCK:-}" ]; then
    [ -n "$quick" ] || [ -z "$(git status --porcelain --untracked-files=no)" ] ||
        fail "the tree has changes, so no commit says what is measured (git stash)"
    make build
    cargo build --release --locked --quiet -p wattlock-mount --example plain
    WATTLOCK=${CARGO_TARGET_DIR:-target}/release/wattlock
fi
WATTLOCK=$(realpath "$WATTLOCK")
"$WATTLOCK" --version >/dev/null || fail "$WATTLOCK does not run here"
here=$(dirname "$WATTLOCK")
for module in "$here/../nginx" "$here" "$here/../lib/wattlock" /usr/lib/nginx/modules; do
    module+=/ngx_http_wattlock_module.so
    [ ! -e "$module" ] || break
done
for provider in "$here" "$here/../lib/wattlock" "/usr/lib/$(uname -m)-linux-gnu/ossl-modules"; do
    for name in libwattlock_provider.so wattlock.so; do [ ! -e "$provider/$name" ] || break 2; done
done
export PROVIDER=$provider/$name

mkdir -p "$folder"
if [ -e "$folder/program" ] && [ "$(cat "$folder/program")" != "$("$WATTLOCK" --version) ${quick:+quick}" ]; then
    fail "$folder has figures of another program or kind: $(cat "$folder/program"); name another folder"
fi
echo "$("$WATTLOCK" --version) ${quick:+quick}" >"$folder/program"
{
    "$WATTLOCK" doctor | sed -n 's/^[a-z]* *\(CPU: .*\|cgroup: .*\)/\1/p'
    sed -n 's/^\(model name\|cpu family\|model\|stepping\|microcode\)\s*: /\1: /p' /proc/cpuinfo | sort -u
    echo "cores: $(nproc); kernel: $(uname -r); hypervisor: $(systemd-detect-virt 2>/dev/null || echo unknown)"
    echo "governor: $(cat /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor 2>/dev/null || echo unknown)"
    . /etc/os-release && echo "system: $PRETTY_NAME"
} >"$folder/machine.txt"
sed -n '1s/^/this machine: /p' "$folder/machine.txt"

total=0
for one in $chosen; do [ -e "$folder/$one.json" ] || total=$((total + $(minutes "$one"))); done
[ -n "$quick" ] || echo "about $total minutes, while nothing else should run; ^C and the same command go on later"

failed=() number=0
for one in $chosen; do
    number=$((number + 1))
    if [ -e "$folder/$one.json" ]; then echo "== $one: is there"; continue; fi
    missing=$(lacks "$one")
    if [ -n "$missing" ]; then echo "== $one: left out: $missing" >&2; failed+=("$one"); continue; fi
    if [ -z "$quick" ] && ! scripts/measure/calm.py 10 600; then
        echo "== $one: left out: other programs use the machine" >&2
        failed+=("$one")
        continue
    fi
    echo "== $one: about $(minutes "$one") minutes ($number of $(wc -w <<<"$chosen"))"
    if [ "$one" = openssl ]; then
        words=(scripts/measure/measure-openssl.sh --json "$folder/$one.new" 1 5)
        [ -z "$quick" ] || words=(env ROWS=aes-256-gcm scripts/measure/measure-openssl.sh --json "$folder/$one.new" 1 1)
    else
        command_of "$one"
        words=("$WATTLOCK" bench "${bench[@]}" --json "$folder/$one.new")
    fi
    status=0
    # Four times what it should take, and then its end: a bench that hangs costs no more than itself. In this group, so
    # that ^C reaches it.
    timeout --foreground --kill-after=30 "$(($(minutes "$one") * 4))m" "${words[@]}" >"$folder/$one.log" 2>&1 || status=$?
    if [ $status = 0 ] && [ -s "$folder/$one.new" ]; then
        mv "$folder/$one.new" "$folder/$one.json"
    else
        rm -f "$folder/$one.new"
        tail -n 3 "$folder/$one.log" >&2
        [ $status != 130 ] || exit 130
        echo "== $one: failed ($status); all it said is in $folder/$one.log" >&2
        failed+=("$one")
    fi
done

# The column: the same script that makes the pages, on these files alone.
python3 - "$folder" "$quick" <<'PYTHON'
import datetime, json, pathlib, shutil, subprocess, sys, tempfile

folder, quick = pathlib.Path(sys.argv[1]), sys.argv[2]
files = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
if not files:
    sys.exit("machine: no bench ran")
kinds = {(one["cpu"]["class"], one["cpu"].get("name") or one["cpu"]["model"]) for one in files.values()}
if len(kinds) > 1:
    sys.exit(f"machine: {folder} has figures of several machines: {kinds}")
(kind, name), = kinds
names = {stem: f"{one['date']}-{kind}-{stem}.json" for stem, one in files.items()}
with tempfile.TemporaryDirectory() as place:
    root = pathlib.Path(place)
    data = root / "docs/measurements"
    data.mkdir(parents=True)
    for stem, new in names.items():
        shutil.copy(folder / f"{stem}.json", data / new)
    (root / "README.md").write_text("<!-- performance:begin -->\n<!-- performance:end -->\n")
    subprocess.run([sys.executable, "scripts/measure/performance.py", "--root", place], check=True)
    shutil.copy(data / "tables/README.md", folder / "column.md")
copies = "".join(f"cp {folder}/{stem}.json docs/measurements/{new}\n" for stem, new in names.items())
(folder / "keep.sh").write_text(
    "#!/bin/sh\n# In a clone: takes these figures over and writes the pages that are made of them.\nset -e\n"
    + copies + "scripts/measure/performance.py\n")
print(f"\nCPU class {kind} ({name}): {len(files)} benches in {folder}; the column is column.md")
if quick:
    (folder / "keep.sh").unlink()
    print("QUICK: these are no figures, and are not to be kept")
else:
    print(f"to take it over, in a clone: sh {folder}/keep.sh; to hand it on: tar -C {folder} -cz . >machine.tar.gz")
PYTHON
[ ${#failed[@]} = 0 ] || { echo "not measured: ${failed[*]}" >&2; exit 1; }
