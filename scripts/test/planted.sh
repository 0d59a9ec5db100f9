#!/usr/bin/env bash
# Does each check notice what it is there for? A fault of each sort is planted in a copy of the working tree, the check that is
# meant for it is run there, and a check that stays silent fails this script. So does one that already complains of the copy
# without the fault: it would have complained of anything.
#
#   scripts/test/planted.sh [FAULT...]
#
# Faults are the patches in scripts/test/planted, so a patch that does not apply any more fails, too: write it anew against the same
# line's successor. Copy and builds are in target/planted; half an hour at first, some minutes a fault afterwards.
set -euo pipefail
cd "$(dirname "$0")/../.."
repo=$PWD
place=$(realpath -m "${CARGO_TARGET_DIR:-target}")/planted
tree=$place/tree
unset RUSTFLAGS CARGO_BUILD_TARGET
export CARGO_TARGET_DIR=$place/target

# The check of each fault, run in the copy.
check() {
    case $1 in
        # An address that depends on a key: the kernels over their poisoned model.
        load-by-key) cargo test --locked -p wattlock-cpu --lib kernels_reveal_nothing ;;
        # One byte behind an output is read and written.
        byte-past-the-end) TESTS='--test all instruction_conforms' scripts/test/sanitize.sh address cpu ;;
        # Threads of a pool count their units in one plain number.
        counter-without-lock) TESTS='--test all pool::' scripts/test/sanitize.sh thread runtime ;;
        # A length is taken from a header and used to cut what was read.
        header-trusted) SECONDS_EACH=30 scripts/test/fuzz-smoke.sh header ;;
        # A full batch is no batch.
        comparison-turned) cargo test --locked -p wattlock-policy --lib gather ;;
        *) echo "planted: no fault $1" >&2; exit 2 ;;
    esac
}
# What the check's output must say, or it failed for another reason: the fault did not build, say.
words() {
    case $1 in
        load-by-key) echo 'a secret was revealed' ;;
        byte-past-the-end) echo 'AddressSanitizer: heap-buffer-overflow' ;;
        counter-without-lock) echo 'ThreadSanitizer: data race' ;;
        header-trusted) echo 'deadly signal\|out of range' ;;
        comparison-turned) echo 'test result: FAILED' ;;
    esac
}

# Only what differs is copied, so that cargo builds no more than that anew.
mkdir -p "$tree"
list=$(mktemp)
trap 'rm -f "$list"' EXIT
git ls-files -z --cached --others --exclude-standard >"$list"
copy() {
    python3 - "$list" "$repo" "$tree" <<'PYTHON'
import filecmp, os, shutil, sys
listed, source, tree = sys.argv[1:]
names = [name for name in open(listed, "rb").read().decode().split("\0") if name and os.path.isfile(os.path.join(source, name))]
for name in names:
    at, to = os.path.join(source, name), os.path.join(tree, name)
    if not (os.path.exists(to) and filecmp.cmp(at, to, shallow=False)):
        os.makedirs(os.path.dirname(to), exist_ok=True)
        shutil.copy(at, to)
PYTHON
}

[ $# != 0 ] || set -- load-by-key byte-past-the-end counter-without-lock header-trusted comparison-turned
silent=0
for fault; do
    copy
    cd "$tree"
    log=$place/$fault.log
    if ! check "$fault" >"$log" 2>&1; then
        tail -n 30 "$log" >&2
        echo "planted: $fault: the check complains without the fault (all of it is in $log)" >&2
        exit 1
    fi
    # --recount and no index: the copy is no repository, and may lie in one.
    GIT_CEILING_DIRECTORIES=$place git apply -C1 "$repo/scripts/test/planted/$fault.patch"
    status=0
    check "$fault" >"$log" 2>&1 || status=$?
    if [ $status = 0 ]; then
        echo "planted: $fault: SILENT"
        silent=$((silent + 1))
    elif ! grep -c "$(words "$fault")" "$log" >/dev/null; then
        tail -n 30 "$log" >&2
        echo "planted: $fault: the check failed, but not by the fault (all of it is in $log)" >&2
        silent=$((silent + 1))
    else
        echo "planted: $fault: found"
    fi
    cd "$repo"
    copy
done
echo "planted: $(($# - silent)) of $# faults found"
[ $silent = 0 ]
