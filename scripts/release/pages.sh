#!/usr/bin/env bash
# Manual pages and completions of the programs that were built, made by them, for `make install` to copy: that may run
# as root, and runs nothing that was built.
#
#   scripts/release/pages.sh       into CARGO_TARGET_DIR (target)/share
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}
program=$target/release/wattlock
made=$target/share.new
rm -rf "$made"
mkdir -p "$made/man1"
"$program" man "$made/man1"
"$program" completions bash >"$made/wattlock"
"$program" completions zsh >"$made/_wattlock"
"$program" completions fish >"$made/wattlock.fish"
rm -rf "$target/share"
mv "$made" "$target/share"
