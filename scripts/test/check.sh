#!/usr/bin/env bash
# What a change is checked by before it is committed: format, lints, links between pages, and the tests inside the sources.
# Needs the Rust toolchain and Python only and installs nothing; `make test` is everything.
set -euo pipefail
cd "$(dirname "$0")/../.."
step() { printf '\n== %s (%ss)\n' "$*" "$SECONDS"; }

step format
cargo fmt --all --check
(cd fuzz && cargo fmt --check)
(cd crates/wattlock-bridge && cargo fmt --check)

step "lock files"
for folder in . fuzz crates/wattlock-bridge; do
    (cd $folder && cargo metadata --locked --offline --format-version 1 >/dev/null)
done

step "words that do not belong in a commit, and links of pages"
scripts/test/hygiene.sh
scripts/test/links.py

step lints
cargo clippy --workspace --all-targets --locked -- -D warnings

step "tests inside the sources"
cargo test --workspace --locked --no-fail-fast --lib --bins

step done
