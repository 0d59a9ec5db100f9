#!/usr/bin/env bash
# The tests under the address or the thread sanitizer, with the runtime that the stable compiler ships:
#
#   scripts/test/sanitize.sh address [CRATE...]     a load or a store outside of what it may touch, use after it was freed
#   scripts/test/sanitize.sh thread [CRATE...]      two threads on the same memory, one of which writes, and nothing orders them
#   ... -- WORDS                               further words for the test runner: names of tests, --skip NAME
#   TESTS="--test NAME [FILTER]" scripts/test/sanitize.sh ...  these tests only
#
# CRATE is a member of the workspace, with or without its `wattlock-`. Without one: for address all of them, then nginx with its
# module (scripts/test/asan.sh); for thread the runtime with its pool, the emulator, the GPU engine on its stand-in driver, streams,
# the runtime's users with threads, and a mounted volume.
#
# Any report fails, and so does a failing test. Reports that say nothing about Wattlock are listed with the reason of each in
# scripts/test/sanitize.supp; reasons are obligatory. KEEP=FOLDER keeps the reports.
#
# What is instrumented: all Rust code of the program or library that is tested, its dependencies included. Not the standard
# library, and not the C of AWS-LC, zstd and ISA-L. The provider and the library for GPUs are loaded by other programs: those get
# the C compiler's runtime, which speaks the same protocol (words in front of `openssl`, `python3` and so on below).
#
# Needs no other toolchain: RUSTC_BOOTSTRAP=1 lets the stable compiler take -Z flags. Builds into target/sanitize.
set -euo pipefail
cd "$(dirname "$0")/../.."
usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[ $# != 0 ] || usage
which=$1
shift
crates=() words=()
while [ $# -gt 0 ]; do
    if [ "$1" = -- ]; then shift; words=("$@"); break; fi
    case $1 in wattlock | wattlock-*) crates+=("$1") ;; runtime) crates+=(wattlock) ;; *) crates+=("wattlock-$1") ;; esac
    shift
done
whole=
[ ${#crates[@]} != 0 ] || whole=1

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/sanitize/$which
triple=$(rustc -vV | sed -n 's/^host: //p')
case $which in
    address)
        flags='-Zsanitizer=address -Cforce-frame-pointers=yes'
        mark='ERROR: AddressSanitizer'
        [ -z "$whole" ] || mapfile -t crates < <(cd crates && ls -d wattlock* | grep -vxE 'wattlock-(bridge|emulated)')
        ;;
    thread)
        flags='-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer'
        mark='WARNING: ThreadSanitizer'
        [ -z "$whole" ] || crates=(wattlock wattlock-emul wattlock-cuda wattlock-files wattlock-stream wattlock-mount wattlock-cli)
        ;;
    *) usage ;;
esac

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
reports=${KEEP:-$scratch/reports}
mkdir -p "$reports" "$scratch/bin"
# nginx's workers may be another user's, who must be able to write there.
chmod 777 "$reports" && chmod 755 "$scratch"

# Lines of this sanitizer: "SANITIZER WHAT:WHERE", below a comment that gives the reason.
python3 - "$which" scripts/test/sanitize.supp >"$scratch/supp" <<'PYTHON'
import sys
which, path = sys.argv[1:]
reason = False
for number, line in enumerate(open(path), 1):
    line = line.strip()
    if not line:
        reason = False
    elif line.startswith("#"):
        reason = True
    else:
        name, _, rest = line.partition(" ")
        if name not in ("address", "thread") or ":" not in rest or not reason:
            sys.exit(f"{path}, line {number}: not 'address|thread TYPE:PATTERN' below a reason")
        if name == which:
            print(rest)
PYTHON

options=log_path=$reports/of:suppressions=$scratch/supp:exitcode=66
export RUSTC_BOOTSTRAP=1 RUSTFLAGS="$flags" CARGO_TARGET_DIR=$target CARGO_BUILD_TARGET=$triple
# Leaks: not looked for. Tests end without joining threads, and statics keep what they have.
export ASAN_OPTIONS=detect_leaks=0:$options
# A child of a process with threads may start threads: pools do.
export TSAN_OPTIONS=$options:history_size=4:second_deadlock_stack=1:die_after_fork=0

# Programs of the system have no runtime of their own, so the C compiler's is loaded first. A sanitized C program of the tests
# has it already. Under the thread sanitizer there is no such way: the runtime must be linked in.
runtime=$(cc -print-file-name=libasan.so)
wrap() {
    local real
    for name; do
        real=$(PATH=$PATH:/usr/sbin:/sbin command -v "$name" || true)
        [ -n "$real" ] || continue
        printf '#!/bin/sh\nLD_PRELOAD=%q exec %q "$@"\n' "$runtime" "$real" >"$scratch/bin/$name"
        chmod +x "$scratch/bin/$name"
    done
}
failed=() passed=0
if [ "$which" = address ]; then
    wrap openssl nginx curl haproxy python3
    # The C programs of the tests.
    printf '#!/bin/sh\nexec %q -fsanitize=address "$@"\n' "$(command -v cc)" >"$scratch/bin/cc"
    chmod +x "$scratch/bin/cc"
fi

# One crate's tests. The loader finds the C compiler's runtime only where it was asked for.
tests() {
    local crate=$1 skip=() only=() path=$PATH
    case $which.$crate in
        address.wattlock-gpu) path=$scratch/bin:$PATH ;;
        # Two servers are started by their full paths, so nothing can be loaded into them first.
        address.wattlock-provider)
            path=$scratch/bin:$PATH
            skip=(--skip psql_and_the_server --skip vsftpd_in_its_sandbox)
            ;;
        # The tests that count allocations or measure memory count the sanitizer's, too. nginx and OpenSSL: scripts/test/asan.sh, and
        # the provider's own tests.
        *.wattlock-cli)
            only=(--test all --test mount)
            for other in energy install nginx openssl report scripts serve typed; do skip+=(--skip "$other::"); done
            ;;
    esac
    [ -z "${TESTS:-}" ] || read -r -a only <<<"$TESTS"
    # Not at level 3, as tests otherwise are: instrumented kernels take minutes to optimise.
    PATH=$path cargo test --config 'profile.dev.package.wattlock-cpu.opt-level=1' --locked --no-fail-fast -p "$crate" "${only[@]}" -- "${skip[@]}" "${words[@]}"
}
for crate in "${crates[@]}"; do
    echo "== $which: $crate"
    status=0
    tests "$crate" >"$scratch/said" 2>&1 || status=$?
    grep -E '^test result|FAILED|failed$|panicked|^error' "$scratch/said" || true
    these=$(awk '/^test result: / { n += $4 } END { print n + 0 }' "$scratch/said")
    passed=$((passed + these))
    # Tests that do not run find nothing.
    if [ $status != 0 ] || [ "$these" = 0 ]; then
        failed+=("$crate")
        tail -n 60 "$scratch/said"
    fi
done

found=$(grep -l "$mark" "$reports"/of.* 2>/dev/null | wc -l || true)
if [ "$found" != 0 ]; then
    grep -h -A 40 "$mark" "$reports"/of.* | sed -n 1,400p
    # Each once, by what it says first and by the first frames.
    echo "== summaries"
    grep -h '^SUMMARY' "$reports"/of.* | sort | uniq -c | sort -rn
fi
if [ "$which" = address ] && [ -n "$whole" ] && [ -n "${WATTLOCK_NGINX:-}" ]; then
    CARGO_TARGET_DIR=${target%/sanitize/*} scripts/test/asan.sh || failed+=(nginx)
fi
echo "$which sanitizer: ${#crates[@]} crates, $passed tests passed, $found programs with reports, failed: ${failed[*]:-none}"
[ "$found" = 0 ] && [ ${#failed[@]} = 0 ]
