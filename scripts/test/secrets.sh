#!/bin/sh
# Does a branch or an address depend on a key or on plaintext? crates/wattlock-cpu/examples/secrets_undefined.rs under
# valgrind's memcheck: every engine and every kind with a symmetric key or none. Its text says what is not shown. What may
# branch is in scripts/test/secrets.supp, with reasons. Half a minute, and a release build: the additions of other builds
# check for overflow, which is a branch on their result.
set -eu
cd "$(dirname "$0")/../.."
if ! command -v valgrind >/dev/null; then
    echo "valgrind is not installed: nothing is checked" >&2
    exit 0
fi
cargo build --release --quiet --locked -p wattlock-cpu --example secrets_undefined
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
valgrind --quiet --error-limit=no --num-callers=25 --suppressions=scripts/test/secrets.supp --log-file="$log" \
    "${CARGO_TARGET_DIR:-target}/release/examples/secrets_undefined" || status=$?
[ $status = 0 ] || tail -n 80 "$log" >&2
exit $status
