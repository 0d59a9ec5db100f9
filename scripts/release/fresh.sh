#!/usr/bin/env bash
# What a newcomer meets: the README's commands in the smallest root of this machine's own release of Debian (or Ubuntu),
# and in that of the next one. Nothing but `make`, the machine's certificates and its Rust toolchain is put in beside a
# clean clone of what is committed; packages, crates and wheels come through their ordinary clients.
#
#   scripts/release/fresh.sh                        own release: `make run`, `make sizes` and `make test`; next release: `make run`
#   scripts/release/fresh.sh own|next|all [run|test|both]
#                                           one of them, or another choice of commands
#   scripts/release/fresh.sh own|next -- COMMAND    any command there instead; no result is kept
#   scripts/release/fresh.sh own|next bare ROOT [PACKAGE...]
#                                           only makes the smallest root, with these packages, without toolchain and clone
#   scripts/release/fresh.sh own|next suite         the name of that release, which is its root's in target/fresh
#   scripts/release/fresh.sh in ROOT COMMAND        a command in a root that was kept
#
# KEEP=1 keeps the roots (target/fresh/RELEASE), KEEP=good those in which nothing failed; NEXT=SUITE is another release than the one that follows. Logs are in
# target/fresh/*.log. The result is docs/measurements/fresh.json: packages, versions, seconds and the commit. Needs
# root, 8 GB of disk for each release, and mmdebstrap, git and python3.
#
# The mirrors and how to reach them are those that apt is set up with; cargo's and pip's settings and the proxy's and
# certificates' variables come along, nothing else of the environment does. What is mounted is mounted in a namespace of
# its own: it ends with the last process there, so a root is never deleted through a mount.
set -euo pipefail
fail() { echo "fresh: $*" >&2; exit 1; }
self=$(realpath "$0")
cd "$(dirname "$0")/../.."
repo=$PWD
home=/root clone=/srv/wattlock
rust=/opt/rust
# How clients reach their registries, where the machine says so by the environment.
reach=(http_proxy https_proxy ftp_proxy all_proxy no_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY
    SSL_CERT_FILE SSL_CERT_DIR CURL_CA_BUNDLE REQUESTS_CA_BUNDLE PIP_CERT PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST
    PIP_DEFAULT_TIMEOUT CARGO_HTTP_CAINFO CARGO_HTTP_PROXY CARGO_HTTP_TIMEOUT CARGO_NET_RETRY)
[ "$(id -u)" = 0 ] || fail "needs root: mounts, chroot and mmdebstrap"

# The first process of namespaces of mounts and processes of its own: mounts, and runs the command there.
if [ "${1:-}" = inside ]; then
    root=$2
    shift 2
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount -t tmpfs -o mode=755,nosuid dev "$root/dev"
    for node in null zero full random urandom tty; do
        touch "$root/dev/$node"
        mount --bind "/dev/$node" "$root/dev/$node"
    done
    mkdir "$root/dev/pts" "$root/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
    mount -t tmpfs -o mode=1777,nosuid,nodev shm "$root/dev/shm"
    ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
    for stream in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${stream%:*}" "$root/dev/${stream#*:}"; done
    variables=(PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:$rust/bin" HOME=$home LANG=C.UTF-8)
    for name in "${reach[@]}"; do [ -z "${!name:-}" ] || variables+=("$name=${!name}"); done
    # This shell stays the first process: it takes the exit statuses that no other process asks for.
    chroot "$root" /usr/bin/env -i "${variables[@]}" \
        /bin/sh -c "cd $clone && exec \"\$@\"" sh "$@" </dev/null && status=0 || status=$?
    exit "$status"
fi
within() { unshare --mount --propagation private --pid --fork --kill-child -- bash "$self" inside "$@"; }
if [ "${1:-}" = in ]; then
    [ $# -ge 3 ] || fail "in ROOT COMMAND"
    root=$(realpath "$2")
    shift 2
    within "$root" "$@"
    exit
fi

which=${1:-all} what=${2:-} command=() bare=''
case $which in own | next | all) ;; *) fail "own, next or all, not $which" ;; esac
if [ "$what" = bare ]; then
    [ -n "${3:-}" ] && [ "$which" != all ] || fail "one release and a folder"
    bare=$(realpath -m "$3")
    [ ! -e "$bare" ] || fail "$bare is there already"
    shift 3
    packages=("$@")
elif [ "$what" = suite ]; then
    [ "$which" != all ] || fail "one release"
elif [ "$what" = -- ]; then
    shift 2
    [ $# -gt 0 ] && [ "$which" != all ] || fail "one release and a command"
    command=("$@")
else
    case $what in '' | run | test | both) ;; *) fail "run, test or both, not $what" ;; esac
fi
missing=()
for program in mmdebstrap unshare git python3 apt-get $([ -n "$bare" ] || echo rustc cargo); do
    command -v "$program" >/dev/null || missing+=("$program")
done
[ ${#missing[@]} = 0 ] || fail "missing: ${missing[*]} (apt-get install mmdebstrap git python3)"
if [ -z "$bare" ]; then
    toolchain=$(rustc --print sysroot)
    [ -x "$toolchain/bin/cargo" ] && [ "$toolchain" != /usr ] ||
        fail "$toolchain is no toolchain of rustup's, so it cannot be copied"
fi

. /etc/os-release
own=${VERSION_CODENAME:-}
follows() {
    local list=/usr/share/distro-info/$ID.csv
    [ -e "$list" ] || fail "which release follows $own? Say NEXT=, or install distro-info-data"
    awk -F, -v own="$own" 'last == own && $1 != "" { print $3 } { last = $3 }' "$list"
}
next=${NEXT:-$([ "$which" = own ] || follows)}
[ "$which" = own ] || [ -n "$next" ] || fail "which release follows $own? Say NEXT="
if [ "$what" = suite ]; then
    echo "${!which}"
    exit
fi

work=${CARGO_TARGET_DIR:-target}/fresh
mkdir -p "$work"
work=$(realpath "$work")
exec 9>"$work/lock"
flock --nonblock 9 || fail "another is at work in $work"
scratch=$(mktemp -d "$work/scratch.XXXXXX")
records=$scratch/records
touch "$records"
job='' roots=()
mounted() { awk -v root="$1/" 'index($5 "/", root) == 1 { n = 1 } END { exit !n }' /proc/self/mountinfo; }
# Nothing is ever mounted here outside of the namespaces; this looks all the same.
discard() {
    [ -e "$1" ] || return 0
    if mounted "$1"; then fail "something is mounted in $1: not deleted"; fi
    rm -rf --one-file-system "$1"
}
cleanup() {
    local status=$? root
    trap - EXIT INT TERM
    # KILL: unshare holds other signals back, and its processes end with it.
    if [ -n "$job" ]; then
        kill -KILL -- "-$job" 2>/dev/null || true
        wait "$job" 2>/dev/null || true
    fi
    for root in "${roots[@]}"; do
        if [ "${KEEP:-}" = 1 ] || { [ "${KEEP:-}" = good ] && [ "$status" = 0 ]; }; then echo "kept: scripts/release/fresh.sh in $root COMMAND" >&2; else discard "$root"; fi
    done
    discard "$scratch"
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# Runs a command with its output in a log, and says what it is at every half a minute. The seconds are in `took`.
step() {
    local name=$1 log=$2 begin=$SECONDS said=0 status=0
    shift 2
    echo "== $name"
    # A group of its own, so that all of it can be ended.
    set -m
    "$@" >"$log" 2>&1 9>&- &
    job=$!
    set +m
    while kill -0 "$job" 2>/dev/null; do
        sleep 1
        if [ $((SECONDS - begin - said)) -ge 30 ]; then
            said=$((SECONDS - begin))
            printf '   %4d s: %s\n' "$said" "$(tail -n 1 "$log" | tr -cd '[:print:]' | cut -c-100)"
        fi
    done
    wait "$job" || status=$?
    job=''
    took=$((SECONDS - begin))
    echo "   $name: $([ $status = 0 ] && echo good || echo "FAILED with $status") after $took s; $log"
    [ $status = 0 ] || tail -n 20 "$log" | sed 's/^/   | /' >&2
    return $status
}

copied() {
    [ -e "$1" ] || return 0
    rm -rf "$2" && mkdir -p "${2%/*}" && cp -RL "$1" "$2"
}

# The smallest root of a release, with these packages and what is needed to reach registries. It and the next are called
# where no failing command ends them.
smallest() {
    local release=$1 root=$2 file name
    shift 2
    local packages=$*
    apt-get indextargets --format '$(ORIGIN)|$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        sed -n "s/^\(Debian\|Ubuntu\)|\([^ ]* \)$own\(.*\)/deb \2$release\3/p" >"$scratch/sources.list"
    [ -s "$scratch/sources.list" ] || { echo "apt knows no mirror of $own (apt-get update?)"; return 1; }
    apt-config dump | grep -E '^Acquire::(Check-|http::|https::|Retries|ForceIPv)' >"$scratch/apt.conf" || true
    unshare --mount --propagation private -- \
        mmdebstrap --variant=apt --include="${packages// /,}" --aptopt="$scratch/apt.conf" \
        "$release" "$root" "$scratch/sources.list" || return
    # Certificates of the machine's own, for `update-ca-certificates` too, which may be installed there later.
    for file in /etc/ssl/certs/ca-certificates.crt /usr/local/share/ca-certificates /etc/pip.conf; do
        copied "$file" "$root$file" || return
    done
    for file in .config/pip/pip.conf .pip/pip.conf; do copied "$HOME/$file" "$root$home/$file" || return; done
    for file in config config.toml; do
        copied "${CARGO_HOME:-$HOME/.cargo}/$file" "$root$home/.cargo/$file" || return
    done
    for name in SSL_CERT_FILE CURL_CA_BUNDLE REQUESTS_CA_BUNDLE PIP_CERT CARGO_HTTP_CAINFO; do
        file=${!name:-}
        [ -z "$file" ] || [ -e "$root$file" ] || install -D -m 644 "$file" "$root$file" || return
    done
    mkdir -p "$root$clone"
}

# The same with a toolchain and what is committed.
with_clone() {
    local release=$1 root=$2
    smallest "$release" "$root" make || return
    rmdir "$root$clone" && mkdir -p "$root$rust" || return
    tar -C "$toolchain" --exclude=./share/doc --exclude=./lib/rustlib/src -cf - . | tar -C "$root$rust" -xf - || return
    git clone --quiet --no-hardlinks "file://$repo" "$root$clone" &&
        git -C "$root$clone" checkout --quiet --detach "$(git rev-parse HEAD)"
}

try() {
    local release=$1 root=$work/$1 status=0 name log
    shift
    discard "$root"
    roots+=("$root")
    step "$release: the smallest root" "$work/$release-root.log" with_clone "$release" "$root" || return 1
    for name; do
        log=$work/$release-${name//[^a-z0-9]/-}.log
        [ ${#command[@]} -eq 0 ] || log=$work/$release-command.log
        local result=0
        step "$release: $name" "$log" within "$root" bash -c "$name" || result=$?
        printf 'command\t%s\t%s\t%s\t%s\t%s\n' "$release" "$name" "$result" "$took" \
            "$(sed -n 's/^\([0-9]* passed, [0-9]* failed.*\)/\1/p' "$log" | tail -n 1)" >>"$records"
        [ "$result" = 0 ] || status=1
    done
    printf 'rustc\t%s\t%s\n' "$release" "$(within "$root" rustc --version)" >>"$records"
    printf 'system\t%s\t%s\n' "$release" "$(within "$root" sh -c '. /etc/os-release; echo "$PRETTY_NAME"')" >>"$records"
    within "$root" dpkg-query -W -f '${db:Status-Status}\t${Package}\t${Version}\n' \
        openssl libssl-dev nginx nginx-dev age gcc make python3 haproxy postgresql valgrind chromium curl gnutls-bin \
        2>/dev/null |
        sed -n "s/^installed\t/package\t$release\t/p" >>"$records" || true
    return $status
}

commands() {
    case ${what:-$1} in
        run) echo 'make run' ;;
        test) echo 'make test' ;;
        # What is promised of the files is promised of a build here, where the C library is old.
        both) printf '%s\n' 'make run' 'make sizes' 'make test' ;;
    esac
}
if [ -n "$bare" ]; then
    step "what apt knows" "$work/apt.log" apt-get update -qq
    step "${!which}: the smallest root" "$work/${!which}-bare.log" smallest "${!which}" "$bare" apt "${packages[@]}"
    exit
fi
[ -z "$(git status --porcelain)" ] || echo "fresh: what is not committed is not in the clone" >&2
commit=$(git rev-parse --short HEAD)
step "what apt knows" "$work/apt.log" apt-get update -qq || exit 1
failed=0
begin=$SECONDS
for release in own next; do
    case $which in all | "$release") ;; *) continue ;; esac
    if [ ${#command[@]} -gt 0 ]; then
        try "${!release}" "$(printf '%q ' "${command[@]}")" || failed=1
        continue
    fi
    usual=both
    [ $release = own ] || usual=run
    mapfile -t list < <(commands $usual)
    try "${!release}" "${list[@]}" || failed=1
    if [ "${KEEP:-}" != 1 ]; then discard "$work/${!release}"; roots=(); fi
done
if [ ${#command[@]} -gt 0 ]; then exit $failed; fi

# A command's result stays, with its commit, until the command is tried again.
python3 - "$records" "$commit" docs/measurements/fresh.json <<'PYTHON'
import datetime, json, os, pathlib, sys

records, commit, place = sys.argv[1:]
place = pathlib.Path(place)
kept = json.loads(place.read_text()) if place.exists() else {"what": "make fresh", "releases": {}}
cpu = dict(line.split(":", 1) for line in open("/proc/cpuinfo") if ":" in line)
cpu = {name.strip(): value.strip() for name, value in cpu.items()}
flags = cpu.get("flags", "").split()
maker = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}.get(cpu.get("vendor_id"))
kind = f"avx512-{maker}" if "avx512ifma" in flags and maker else "avx2" if "avx2" in flags else "none"
tried = {}
for line in pathlib.Path(records).read_text().splitlines():
    what, release, *rest = line.split("\t")
    one = tried.setdefault(release, {"commands": [], "packages": {}})
    if what == "command":
        name, status, seconds, tests = rest
        row = {"command": name, "commit": commit, "status": int(status), "seconds": int(seconds)}
        one["commands"].append(row | ({"tests": tests} if tests else {}))
    elif what == "package":
        one["packages"][rest[0]] = rest[1]
    else:
        one[what] = rest[0]
for release, one in tried.items():
    if not one["commands"]:
        continue
    before = kept["releases"].get(release, {})
    again = {row["command"] for row in one["commands"]}
    rows = [row for row in before.get("commands", []) if row["command"] not in again]
    kept["releases"][release] = {
        "system": one.get("system", ""),
        "date": datetime.date.today().isoformat(),
        "cpu": {"model": cpu.get("model name", ""), "class": kind, "cores": os.cpu_count()},
        "commands": sorted(rows + one["commands"], key=lambda row: row["command"]),
        "rustc": one.get("rustc", ""),
        "packages": dict(sorted(one["packages"].items())),
    }
place.parent.mkdir(parents=True, exist_ok=True)
place.write_text(json.dumps(kept, indent=1) + "\n")
for release, one in kept["releases"].items():
    for row in one["commands"]:
        told = "good" if row["status"] == 0 else f"FAILED with {row['status']}"
        tests = f", {row['tests']}" if "tests" in row else ""
        print(f"{one['system']}, {row['commit']}: {row['command']}: {told} after {row['seconds']} s{tests}")
PYTHON
echo "== $((SECONDS - begin)) s; docs/measurements/fresh.json"
exit $failed
