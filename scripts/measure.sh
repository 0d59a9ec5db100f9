#!/usr/bin/env bash
# Prints every figure that docs/measurements keeps, with the machine beside it. Run it on a machine with nothing else to
# do; it takes about five minutes and 6 GiB of memory.
set -euo pipefail
cd "$(dirname "$0")/.."
wattlock=${CARGO_TARGET_DIR:-target}/release/wattlock
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export WATTLOCK_PROFILE=$folder/profile.json
say() { printf '\n### `%s`\n\n```\n' "$*"; "$@"; printf '```\n'; }

cargo build --release --locked -p wattlock-cli -p wattlock-cpu --examples --bins 2>/dev/null
printf 'OpenSSL: %s; age: %s; %s\n' "$(openssl version)" "$(age --version)" "$(rustc --version)"
say $wattlock bench dispatch
say $wattlock bench start
say $wattlock bench files --size 2G --rounds 5
say $wattlock bench engines --size 1K,16K,64K
say cargo run --quiet --release --locked -p wattlock-cpu --example instruction_speed
say $wattlock bench lanes
say scripts/timing.sh
